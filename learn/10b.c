// 10b (hard): the free block with the lowest number.
//
// The block that was freed last is handed out first. Change the engine: hand out the free block
// with the lowest number, so that the blocks of a sequence tend to be neighbours. Published blocks
// stay as they are: after all others, in the order in which they were freed, and taken only when no
// other is left. pool_check() must find nothing. What does a release of 10 blocks cost now, in a
// pool of which 1000 are free?
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
    check(error == PAGED_OK || count < 4, "an append fails");
    if (error) return;
    for (int i = have; i < (int)arrlen(seq->block_table); i++)
        if (seq->block_table[i] != order[i - have])
            not_yet("expected block %d, got %d", order[i - have], seq->block_table[i]);
    compute(seq, n, zeros, zeros);
}

static void release(Seq *seq)
{
    Pool *pool = seq->pool;
    int before[BLOCKS], after[BLOCKS];
    int n = published(pool, before);
    seq_release(seq);
    check(published(pool, after) >= n && memcmp(before, after, n * sizeof *before) == 0,
          "published blocks are in another order");
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
        check(!pool_check(pool), "pool_check() finds something");
    }
    pool_destroy(pool);
    return solved("A release of 10 blocks took 10 steps, and takes up to 10 * 1000 now, as each\n"
                  "looks for its place in a sorted list. With a heap: log2(1000) = 10 for each.\n");
}
