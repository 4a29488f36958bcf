// 14b (hard): convert once.
//
// The query heads of a group share a KV head, but attend_row() reads each K and V, and converts it
// to float32, once for every query head. Change learn/my-14b.c: for one query token, let the heads
// of a group go through the tokens together, and convert each stored element once, or once for
// every 8 heads if the group is larger than 8. The results stay the same. (`make bench` shows how
// much faster it gets. The vector code of ../fast does this, and more.)
//
//     make exercise N=14b

// Each conversion of a bf16 calls memcpy() once, in bits_float().
#include <string.h>
static long conversions;
static void *count_memcpy(void *to, const void *from, size_t n)
{
    conversions++;
    return memcpy(to, from, n);
}
#define memcpy(to, from, n) count_memcpy(to, from, n)
#define EXERCISE "14b"
#include "exercise.h"

enum { TOKENS = 53, NEWEST = 3, KV_HEADS = 2, DIM = 20, MOST_HEADS = 24 };
static float k[TOKENS * KV_HEADS * DIM], v[TOKENS * KV_HEADS * DIM], q[NEWEST * MOST_HEADS * DIM];
static float out[3][NEWEST * MOST_HEADS * DIM];  // paged, gathered, of the oracle
static float lse[3][NEWEST * MOST_HEADS];

static void try_shape(int heads, int block_size, int dtype)
{
    PoolConfig config = {1, KV_HEADS, DIM, block_size, 60, dtype, 1, PAGED_CPU};
    Pool *pool = new_pool_of(config);
    Seq *seq = new_seq(pool, TOKENS);
    compute(seq, TOKENS, k, v);
    oracle_says(&config, TOKENS, k, v, NEWEST, heads, 0, q, out[2], lse[2]);
    plan(seq, NEWEST);
    for (int flags = ATTEND_GATHER; flags >= ATTEND_PAGED; flags--) {
        conversions = 0;
        must(attend(pool, flags, 0, heads, 0, q, out[flags], lse[flags]));
    }
    compare("out", NEWEST, heads, DIM, 1e-5, out[2], out[0]);
    compare("lse", NEWEST, heads, 1, 1e-5, lse[2], lse[0]);
    check(memcmp(out[0], out[1], sizeof *out) == 0, "gathered and paged differ");

    int seen = 3 * TOKENS - 3;  // the newest three tokens see 51, 52 and 53
    long expected = (long)seen * KV_HEADS * DIM * 2 * ceil_div(heads / KV_HEADS, 8);
    if (dtype == PAGED_BF16 && conversions > expected)
        not_yet("%d query heads, %d KV heads: at most %ld conversions, got %ld", heads, KV_HEADS,
                expected, conversions);
    pool_destroy(pool);
}

int main(void)
{
    const int block_sizes[] = {1, 5, 16, 53};
    randomize(k, TOKENS * KV_HEADS * DIM, 2);
    randomize(v, TOKENS * KV_HEADS * DIM, 3);
    randomize(q, NEWEST * MOST_HEADS * DIM, 2);
    for (int heads = KV_HEADS; heads <= MOST_HEADS; heads += KV_HEADS)
        for (int i = 0; i < 12; i++) try_shape(heads, block_sizes[i % 4], i / 4);
    return solved("");
}
