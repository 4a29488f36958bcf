// 3b (hard): the free block with the lowest number.
//
// The block that was freed last is handed out first. Change the engine: hand out the free block with
// the lowest number, so that the blocks of a sequence tend to be neighbours. Published blocks
// (chapter 10) stay as they are: behind all others, in the order in which they were freed, and taken
// only when no other is left. pool_check() must be content. What does a release cost now?
//
//     make exercise N=3b

#define PAGED_NO_MAIN
#include "../paged.cu.c"

enum { BLOCKS = 24, SEQS = 8 };
static uint64_t seed = 1;

static int below(int n) { return (int)((seed = prefix_hash(seed, &n, 1)) % (uint64_t)n); }

static void check(int ok, const char *what)
{
    if (!ok) printf("3b: not yet: %s\n", what);
    if (!ok) exit(1);
}

// The published blocks on the free list, in its order.
static int published(const Pool *pool, int *order)
{
    const Block *b = pool->blocks;
    int n = 0;
    for (int block = b[BLOCKS].next; block != BLOCKS; block = b[block].next)
        if (b[block].serial) order[n++] = block;
    return n;
}

static void grow(Seq *seq, int n)
{
    const Block *b = seq->pool->blocks;
    Batch batch = {1, &seq, &n};
    float zeros[16] = {0};
    int order[BLOCKS], have = (int)arrlen(seq->block_table), count = 0;
    for (int block = 0; block < BLOCKS; block++)
        if (b[block].ref_count == 0 && !b[block].serial) order[count++] = block;
    count += published(seq->pool, order + count);
    int error = seq_append(seq, n);
    check(error == PAGED_OK || count < 4, "an append fails");
    if (error) return;
    for (int i = have; i < (int)arrlen(seq->block_table); i++)
        check(seq->block_table[i] == order[i - have], "another block should have been taken");
    check(pool_write(seq->pool, 0, &batch, zeros, zeros) == PAGED_OK, "a write fails");
}

static void release(Seq *seq)
{
    Pool *pool = seq->pool;
    int before[BLOCKS], after[BLOCKS], n = published(pool, before);
    seq_release(seq);
    check(published(pool, after) >= n && memcmp(before, after, n * sizeof *before) == 0,
          "published blocks are in another order");
}

int main(void)
{
    PoolConfig config = {1, 1, 1, 4, BLOCKS, PAGED_F32, 1, PAGED_CPU};
    Pool *pool;
    Seq *seqs[SEQS] = {NULL};
    int tokens[4 * BLOCKS + 2];
    for (int i = 0; i < 4 * BLOCKS + 2; i++) tokens[i] = below(1000);
    check(pool_create(&config, &pool) == PAGED_OK, "there is no pool");
    for (int i = 0; i < 2000; i++) {
        Seq **seq = &seqs[below(SEQS)];
        if (!*seq) {
            check(seq_create(pool, seq) == PAGED_OK, "there is no sequence");
        } else if (below(4) == 0) {
            if (below(2)) seq_publish(*seq, tokens + below(3), (*seq)->length);
            release(*seq);
            *seq = NULL;
        } else {
            grow(*seq, below(17));
        }
        const char *wrong = pool_check(pool);
        check(!wrong, wrong ? wrong : "");
    }
    pool_destroy(pool);
    printf("3b: solved\n");
    return 0;
}
