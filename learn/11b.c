// 11b (hard): swap out a family.
//
// The samples of one request share blocks, so they are preempted together, and must come back
// together, still sharing. Write swap_out(), which saves K and V of n sequences of a pool on the
// host and releases the sequences, and swap_in(), which restores them: seq_gather() returns the
// same bits as before, together they use as many blocks as before, and no block is copied on the
// way (pool->num_copies stays the same). Without enough free blocks swap_in() returns
// PAGED_OUT_OF_BLOCKS, leaves the pool as it was, and may be called again later. The sequences may
// share all, some or none of their blocks, in any order: a longer one after a shorter one, a sample
// of a sample. The functions of paged.h are enough.
//
//     make exercise N=11b

#define EXERCISE "11b"
#include "exercise.h"

enum { MOST = 6, ROW = 2 * 3, LAYERS = 2, LONGEST = 64, BLOCKS = 40 };

typedef struct Saved {  // of one sequence
    int length;
    float k[LAYERS][LONGEST * ROW], v[LAYERS][LONGEST * ROW];
    // add what you need
} Saved;

static int swap_out(Seq **seqs, int n, Saved *saved)
{
    (void)seqs, (void)n, (void)saved;  // your lines
    return PAGED_OK;
}

static int swap_in(Pool *pool, Seq **seqs, int n, const Saved *saved)
{
    (void)pool, (void)seqs, (void)n, (void)saved;  // your lines
    return PAGED_OK;
}

static int grow(Seq *seq, int n)
{
    static float x[LONGEST * ROW];
    static float next;
    int error = seq_append(seq, n);
    if (error) return error;
    plan(seq, n);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < n * ROW; i++) x[i] = next++;
        must(pool_write(seq->pool, layer, x, x));
    }
    return PAGED_OK;
}

static int same(const Seq *seq, const Saved *before)
{
    static float k[LONGEST * ROW], v[LONGEST * ROW];
    size_t bytes = before->length * ROW * sizeof(float);
    for (int layer = 0; layer < LAYERS; layer++)
        if (seq->length != before->length || seq_gather(seq, layer, k, v) ||
            memcmp(k, before->k[layer], bytes) || memcmp(v, before->v[layer], bytes))
            return 0;
    return 1;
}

int main(void)
{
    static Saved saved[MOST], before[MOST];
    for (int order = 0; order < 12; order++) {
        Pool *pool = new_pool(LAYERS, 2, 3, 4, BLOCKS);
        Seq *s[MOST] = {new_seq(pool, 0), NULL, NULL, NULL, new_seq(pool, 0), NULL};
        Seq *family[MOST];
        check(!grow(s[0], 14) && !seq_fork(s[0], 14, &s[1]) && !seq_fork(s[0], 9, &s[2]) &&
                  !grow(s[2], 13) && !seq_fork(s[2], 20, &s[3]) && !grow(s[1], 7) &&
                  !grow(s[3], 1) && !grow(s[4], 5) && !seq_fork(s[2], 3, &s[5]),
              "the sequences cannot be created");
        for (int i = 0; i < MOST; i++)
            family[i] = s[order < 6 ? (i + order) % MOST : (2 * MOST - 1 - i - order % 6) % MOST];
        int used = BLOCKS - pool->num_free;
        size_t copies = pool->num_copies;
        for (int i = 0; i < MOST; i++) {
            before[i].length = family[i]->length;
            for (int layer = 0; layer < LAYERS; layer++)
                must(seq_gather(family[i], layer, before[i].k[layer], before[i].v[layer]));
        }
        check(!swap_out(family, MOST, saved), "swap_out() fails");
        check(pool->num_free == BLOCKS && arrlen(pool->seqs) == 0,
              "swap_out() did not release all blocks and sequences");
        Seq *occupant = new_seq(pool, 4 * (BLOCKS - used) + 1);
        check(swap_in(pool, family, MOST, saved) == PAGED_OUT_OF_BLOCKS,
              "one block too few: swap_in() must return PAGED_OUT_OF_BLOCKS");
        check(arrlen(pool->seqs) == 1 && pool->num_free == used - 1 && !pool_check(pool),
              "swap_in() failed, but has changed the pool");
        seq_release(occupant);
        occupant = new_seq(pool, 4 * (BLOCKS - used));
        check(!swap_in(pool, family, MOST, saved), "swap_in() fails with enough room");
        for (int i = 0; i < MOST; i++) check(same(family[i], &before[i]), "K or V have changed");
        check(pool->num_free == 0 && !pool_check(pool), "more or fewer blocks than before");
        check(pool->num_copies == copies, "a block was copied on the way");
        seq_release(occupant);
        for (int i = 0; i < MOST; i++) check(!grow(family[i], 2), "a later append fails");
        for (int i = 0; i < MOST; i++) seq_rewind(family[i], 2);
        for (int i = 0; i < MOST; i++)
            check(same(family[i], &before[i]), "an append changed another");
        pool_destroy(pool);
    }
    return solved("");
}
