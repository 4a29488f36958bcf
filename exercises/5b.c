// 5b (hard): move a sequence to another pool.
//
// Write copy_to_pool(): it makes a new sequence in `pool` with the tokens of `from`, which lives in
// another pool, with the same layers, KV heads and head_dim, but any block size and dtype. Calls of
// paged.h are all it takes. On an error it returns the code, and `pool` and *out are as before. The
// copy must be ready for whatever may follow: the next append, seq_publish(), a second copy.
//
//     make exercise N=5b

#define PAGED_NO_MAIN
#include "../paged.cu.c"

static int copy_to_pool(const Seq *from, Pool *pool, Seq **out)
{
    (void)from, (void)pool, (void)out;
    return PAGED_BAD_ARGUMENT;
}

enum { LAYERS = 3, HEADS = 2, DIM = 5, ROW = HEADS * DIM, LENGTH = 11 };

static void check(int ok, const char *what)
{
    if (ok) return;
    printf("5b: not yet: %s\n", what);
    exit(1);
}

static Pool *new_pool(int block_size, int num_blocks, int dtype)
{
    PoolConfig config = {LAYERS, HEADS, DIM, block_size, num_blocks, dtype, 1, PAGED_CPU};
    Pool *pool = NULL;
    check(pool_create(&config, &pool) == PAGED_OK, "no pool");
    return pool;
}

// What the newest four tokens of a sequence see, in each layer.
static void look(Seq *seq, float *out)
{
    const int n = 4;
    float q[4 * ROW];
    for (int i = 0; i < 4 * ROW; i++) q[i] = (float)(i % 7) - 3;
    Batch batch = {1, &seq, &n};
    check(pool_plan(seq->pool, &batch) == PAGED_OK, "pool_plan() fails in the new pool");
    for (int layer = 0; layer < LAYERS; layer++, out += 4 * ROW)
        check(attend(seq->pool, ATTEND_PAGED, layer, HEADS, 0, q, out, NULL) == PAGED_OK,
              "attend() fails in the new pool");
}

int main(void)
{
    const int n = LENGTH;
    const int block_sizes[] = {1, 4, 16};
    float k[LENGTH * ROW], before[LAYERS * 4 * ROW], after[LAYERS * 4 * ROW];
    Pool *home = new_pool(4, 8, PAGED_BF16);
    Pool *small = new_pool(4, 2, PAGED_F32);
    Seq *seq = NULL;
    Seq *moved = NULL;
    Seq *empty = NULL;
    int tokens[LENGTH] = {0};
    check(seq_create(home, &seq) == PAGED_OK && seq_append(seq, n) == PAGED_OK, "no sequence");
    Batch all = {1, &seq, &n};
    check(pool_plan(home, &all) == PAGED_OK, "no plan");
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < LENGTH * ROW; i++) k[i] = sinf((float)(i + 100 * layer));
        check(pool_write(home, layer, k, k) == PAGED_OK, "no write");
    }
    look(seq, before);
    check(copy_to_pool(seq, small, &moved) == PAGED_TOO_LONG, "2 blocks of 4 cannot hold 11");
    check(!moved && arrlen(small->seqs) == 0, "after the error something is left in the pool");
    for (int i = 0; i < 6; i++) {
        Pool *pool = new_pool(block_sizes[i % 3], 16, i < 3 ? PAGED_F32 : PAGED_BF16);
        check(copy_to_pool(seq, pool, &moved) == PAGED_OK, "it fails where all would fit");
        check(moved && moved != seq && moved->pool == pool, "the copy is not in the new pool");
        check(moved->length == LENGTH && !pool_check(pool), "the copy has another length");
        look(moved, after);
        check(memcmp(before, after, sizeof before) == 0, "attention differs in the new pool");
        check(seq_publish(moved, tokens, n) == PAGED_OK, "the copy cannot be published");
        check(seq->length == LENGTH, "the original has changed");
        pool_destroy(pool);
    }
    check(seq_create(home, &empty) == PAGED_OK, "no sequence");
    check(copy_to_pool(empty, small, &moved) == PAGED_OK, "an empty sequence cannot be copied");
    check(moved && moved->length == 0, "the copy of an empty sequence is not empty");
    pool_destroy(home);
    pool_destroy(small);
    printf("5b: solved\n");
    return 0;
}
