// 5b (hard): move a sequence to another pool.
//
// Write copy_to_pool(): it creates a new sequence in `pool` with the tokens of `from`, which lives
// in another pool with the same layers, KV heads and head_dim, but any block size and dtype. The
// functions of paged.h are enough. If one fails, return its error code and leave `pool` and *out
// unchanged. The copy must allow whatever the original does: append, seq_publish(), another copy.
// Tokens of `from` that are not computed yet are not computed in the copy either.
//
//     make exercise N=5b

#define EXERCISE "5b"
#include "exercise.h"

static int copy_to_pool(const Seq *from, Pool *pool, Seq **out)
{
    (void)from, (void)pool, (void)out;
    return PAGED_BAD_ARGUMENT;
}

enum { LAYERS = 3, HEADS = 2, DIM = 5, ROW = HEADS * DIM, LENGTH = 11 };

static Pool *pool_like(int block_size, int num_blocks, int dtype)
{
    PoolConfig config = {LAYERS, HEADS, DIM, block_size, num_blocks, dtype, 1, PAGED_CPU};
    return new_pool_of(config);
}

// What the newest four tokens of a sequence see, in each layer.
static void look(Seq *seq, float *out)
{
    float q[4 * ROW];
    for (int i = 0; i < 4 * ROW; i++) q[i] = (float)(i % 7) - 3;
    plan(seq, 4);
    for (int layer = 0; layer < LAYERS; layer++)
        must(attend(seq->pool, ATTEND_PAGED, layer, HEADS, 0, q, out + layer * 4 * ROW, NULL));
}

int main(void)
{
    const int block_sizes[] = {1, 4, 16};
    float k[LENGTH * ROW], before[LAYERS * 4 * ROW], after[LAYERS * 4 * ROW];
    Pool *home = pool_like(4, 8, PAGED_BF16);
    Pool *small = pool_like(4, 2, PAGED_F32);
    Seq *seq = new_seq(home, LENGTH);
    Seq *moved = NULL;
    int tokens[LENGTH] = {0};
    plan(seq, LENGTH);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < LENGTH * ROW; i++) k[i] = sinf((float)(i + 100 * layer));
        must(pool_write(home, layer, k, k));
    }
    look(seq, before);
    check(copy_to_pool(seq, small, &moved) == PAGED_TOO_LONG,
          "expected PAGED_TOO_LONG: 11 tokens are too long for 8 slots");
    check(!moved && arrlen(small->seqs) == 0, "after the error, a sequence is left in the pool");
    for (int i = 0; i < 6; i++) {
        Pool *pool = pool_like(block_sizes[i % 3], 16, i < 3 ? PAGED_F32 : PAGED_BF16);
        check(copy_to_pool(seq, pool, &moved) == PAGED_OK, "it fails although there is room");
        check(moved && moved != seq && moved->pool == pool, "the copy is not in the new pool");
        check(moved->length == LENGTH && !pool_check(pool), "the copy has the wrong length");
        look(moved, after);
        check(memcmp(before, after, sizeof before) == 0, "attention over the copy differs");
        check(seq_publish(moved, tokens, LENGTH) == PAGED_OK, "seq_publish() refuses the copy");
        check(seq->length == LENGTH, "the original has changed");
        pool_destroy(pool);
    }
    must(seq_append(seq, 2));
    check(copy_to_pool(seq, home, &moved) == PAGED_OK && moved->length == LENGTH + 2,
          "it cannot copy a sequence with two tokens that are not computed yet");
    check(moved->num_computed_tokens == LENGTH,
          "the two tokens are not computed in the copy either");
    check(copy_to_pool(new_seq(home, 0), small, &moved) == PAGED_OK && moved->length == 0,
          "it cannot copy an empty sequence");
    pool_destroy(home);
    pool_destroy(small);
    return solved("");
}
