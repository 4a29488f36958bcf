// 10b (hard): the free block with the lowest number.
//
// The engine hands out the block that was freed last. Change it: hand out the free block with the
// lowest number, so that the blocks of a sequence tend to be neighbours. Published blocks keep
// their place: after all others, in the order in which they were freed, taken only when no other is
// left. pool_check() must find nothing wrong. What does releasing 10 blocks cost now, in a pool
// with 1000 free blocks?
//
//     make exercise N=10b

#define EXERCISE "10b"
#include "exercise.h"

enum { BLOCKS = 24, SEQS = 8 };

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
    float zeros[16] = {0};
    int order[BLOCKS];
    int have = (int)arrlen(seq->block_table);
    int count = 0;
    for (int block = 0; block < BLOCKS; block++)
        if (b[block].ref_count == 0 && !b[block].serial) order[count++] = block;
    count += published(seq->pool, order + count);
    int error = seq_append(seq, n);
    check(error == PAGED_OK || count < 4, "seq_append() fails although enough blocks are free");
    if (error) return;
    for (int i = have; i < (int)arrlen(seq->block_table); i++)
        if (seq->block_table[i] != order[i - have])
            not_yet("an append takes block %d, expected %d", seq->block_table[i], order[i - have]);
    compute(seq, n, zeros, zeros);
}

static void release(Seq *seq)
{
    Pool *pool = seq->pool;
    int before[BLOCKS], after[BLOCKS];
    int n = published(pool, before);
    seq_release(seq);
    check(published(pool, after) >= n && memcmp(before, after, n * sizeof *before) == 0,
          "published blocks have changed their order");
}

int main(void)
{
    Pool *pool = new_pool(1, 1, 1, 4, BLOCKS);
    Seq *seqs[SEQS] = {NULL};
    int tokens[4 * BLOCKS + 2];
    for (int i = 0; i < 4 * BLOCKS + 2; i++) tokens[i] = below(1000);
    for (int i = 0; i < 2000; i++) {
        Seq **seq = &seqs[below(SEQS)];
        if (!*seq) {
            *seq = new_seq(pool, 0);
        } else if (below(4) == 0) {
            if (below(2)) seq_publish(*seq, tokens + below(3), (*seq)->length);
            release(*seq);
            *seq = NULL;
        } else {
            grow(*seq, below(17));
        }
        if (pool_check(pool)) not_yet("pool_check() finds: %s", pool_check(pool));
    }
    pool_destroy(pool);
    return solved("Releasing 10 blocks took 10 steps and now takes up to 10 * 1000, because each\n"
                  "has to find its place in a sorted list; in a heap, log2(1000) = 10 each.\n");
}
