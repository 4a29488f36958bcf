// 7b (hard): one thread block for all query heads of a KV head.
//
// attend_paged() in learn/my-7b.c has a thread block for each query token and query head, so the
// heads of a group read the same K and V in several thread blocks. Let one thread block compute
// them one after the other: the later heads find K and V in the processor's cache. (The kernel gets
// slower if this leaves too few thread blocks to fill the GPU.) The results must stay the same bit
// for bit, in both orders of the lanes. A fast warp may already be at the next head: why does it
// not spoil the previous one?
//
//     make exercise N=7b

#define EXERCISE "7b"
#include "exercise.h"

#ifdef PAGED_NO_STANDIN
static int gpu_lane_order;
#endif

enum { DIM = 40, KV_HEADS = 2, Q_HEADS = 10, LENGTH = 70, ROWS = 3, SIZE = ROWS * Q_HEADS * DIM };

int main(void)
{
    static float kv[LENGTH * KV_HEADS * DIM], q[SIZE], out[SIZE], first[SIZE], right[SIZE];
    PoolConfig config = {1, KV_HEADS, DIM, 16, 10, PAGED_F32, 1, PAGED_STANDIN};
    randomize(kv, LENGTH * KV_HEADS * DIM, 1);
    randomize(q, SIZE, 1);
    oracle_says(&config, LENGTH, kv, kv, ROWS, Q_HEADS, q, right);
    Pool *pool = new_pool_of(config);
    Seq *seq = new_seq(pool, LENGTH);
    compute(seq, LENGTH, kv, kv);
    plan(seq, ROWS);
    for (gpu_lane_order = 0; gpu_lane_order < 2; gpu_lane_order++) {
        memset(out, 0xff, sizeof out);  // NaN, not the result of the order before
        must(attend(pool, ATTEND_PAGED, 0, Q_HEADS, 1, q, out, NULL));
        compare("out", ROWS, Q_HEADS, DIM, 1e-5, right, out);
        if (gpu_lane_order == 0) memcpy(first, out, sizeof out);
        check(memcmp(first, out, sizeof out) == 0, "the result depends on the order of the lanes");
        check(gridDim.x * gridDim.y * gridDim.z == ROWS * KV_HEADS,
              "expected a thread block for each query token and KV head");
    }
    pool_destroy(pool);
    return solved("The warps' states are last read before the barrier that precedes finish(). The\n"
                  "merged state is next written after the barrier of attend_tokens().\n");
}
