// 8b (hard): pay at the fork.
//
// seq_fork() copies nothing: the first append on either side pays, and it may find no free block
// then. Some engines pay at the fork. Change seq_fork() in ../paged.cu.c: a fork that ends inside a
// block takes a block at once, copies the slots that the child sees, and counts that in num_copies;
// parent and child then append in place. A fork at a block boundary still copies nothing. With no
// block free it returns PAGED_OUT_OF_BLOCKS and changes nothing. The tests of the lazy fork fail
// with that: this is another engine.
//
//     make exercise N=8b

#define PAGED_NO_MAIN
#include "../paged.cu.c"

static Pool *pool;

static int wrong(int ok, const char *what)
{
    if (!ok) printf("8b: not yet: %s\n", what);
    return !ok;
}

// The token at position t was written as the number t in every element: are they all there?
static int has_its_tokens(const Seq *seq)
{
    float k[16 * 4], v[16 * 4];
    for (int layer = 0; layer < 2; layer++) {
        if (seq_gather(seq, layer, k, v)) return 0;
        for (int i = 0; i < seq->length * 4; i++)
            if (k[i] != (float)(i / 4 + layer) || v[i] != k[i]) return 0;
    }
    return 1;
}

static int grow(Seq *seq, int n)
{
    float x[16 * 4];
    Batch batch = {1, &seq, &n};
    int error = seq_append(seq, n);
    if (!error) error = pool_plan(pool, &batch);
    for (int layer = 0; layer < 2 && !error; layer++) {
        for (int i = 0; i < n * 4; i++) x[i] = (float)(seq->length - n + i / 4 + layer);
        error = pool_write(pool, layer, x, x);
    }
    return error;
}

int main(void)
{
    PoolConfig config = {2, 2, 2, 4, 4, PAGED_F32, 1, PAGED_CPU};
    Seq *a, *b, *c;
    Seq *none = NULL;
    if (pool_create(&config, &pool) || seq_create(pool, &a) || grow(a, 6)) return 1;
    if (wrong(!seq_fork(a, 6, &b), "a fork inside a block, with two blocks free, fails") ||
        wrong(pool->num_copies == 1, "a fork inside a block does not copy at once") ||
        wrong(b->block_table[0] == a->block_table[0], "the full block is not shared") ||
        wrong(b->block_table[1] != a->block_table[1], "the last block is still shared") ||
        wrong(pool->blocks[a->block_table[1]].ref_count == 1, "the parent's last block is held") ||
        wrong(!seq_fork(a, 4, &c) && pool->num_copies == 1, "a fork at a boundary copies"))
        return 1;
    if (wrong(!grow(a, 2) && !grow(b, 1) && pool->num_copies == 1, "an append copies again") ||
        wrong(has_its_tokens(a) && has_its_tokens(b), "K or V were lost on the way") ||
        wrong(!grow(c, 1) && pool->num_free == 0, "the last free block was taken too early"))
        return 1;
    long seqs = arrlen(pool->seqs);
    if (wrong(seq_fork(a, 6, &none) == PAGED_OUT_OF_BLOCKS && !none,
              "a fork without a free block is not refused") ||
        wrong(arrlen(pool->seqs) == seqs && pool->num_copies == 1, "a failed fork left a trace") ||
        wrong(!pool_check(pool), pool_check(pool)))
        return 1;
    pool_destroy(pool);
    printf("8b: solved\n");
    return 0;
}
