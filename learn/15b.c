// 15b (hard): ALiBi.
//
// Instead of rotating K, some models lower a score by the distance of its token (Press et al.
// 2022): if the query is at position p and the token at position t, slope(h) * (t - p) is added to
// the scaled score of query head h, where slope(h) is 2 to the power of -8 (h + 1) / num_q_heads.
// Teach this to attend_row() and attend_tokens() in learn/my-15b.c, if ATTEND_ALIBI is 1; if it is
// not defined, change nothing. In the kernel, the score is a sum over lanes: add the term once.
//
//     make exercise N=15b

#define ATTEND_ALIBI 1
#define EXERCISE "15b"
#include "exercise.h"

enum { DIM = 20, KV_HEADS = 2, Q_HEADS = 6, LENGTH = 300, ROWS = 2, SIZE = ROWS * Q_HEADS * DIM };

// For the oracle, ALiBi is part of the dot product: the last two elements of a query are slope and
// -slope * p, those of a key are t and 1. In the engine's keys they are 0.
static void set_last_two(float *x, int vector, float a, float b)
{
    x[vector * DIM + DIM - 2] = a;
    x[vector * DIM + DIM - 1] = b;
}

int main(void)
{
    static const char *const where[] = {"attend_row()", "attend_row() over a dense copy",
                                        "attend_paged()", "attend_paged() over a dense copy"};
    static float k[LENGTH * KV_HEADS * DIM], v[LENGTH * KV_HEADS * DIM], q[SIZE], out[SIZE];
    float right[SIZE];
    randomize(k, LENGTH * KV_HEADS * DIM, 1);
    randomize(v, LENGTH * KV_HEADS * DIM, 1);
    randomize(q, SIZE, 0.25f);
    for (int i = 0; i < 16; i++) {
        int length = 9 + i / 4 * 97;
        int device = i % 4 < 2 ? PAGED_CPU : PAGED_STANDIN;
        PoolConfig config = {1, KV_HEADS, DIM, 16, 20, PAGED_F32, 1, device};
        for (int row = 0; row < ROWS * Q_HEADS; row++) {
            float slope = exp2f(-8.0f * (float)(row % Q_HEADS + 1) / Q_HEADS);
            set_last_two(q, row, slope, -slope * (float)(length - ROWS + row / Q_HEADS));
        }
        for (int t = 0; t < length * KV_HEADS; t++) set_last_two(k, t, (float)(t / KV_HEADS), 1);
        oracle_says(&config, length, k, v, ROWS, Q_HEADS, 1, q, right, NULL);
        for (int t = 0; t < length * KV_HEADS; t++) set_last_two(k, t, 0, 0);
        Pool *pool = new_pool_of(config);
        Seq *seq = new_seq(pool, length);
        compute(seq, length, k, v);
        plan(seq, ROWS);
        memset(out, 0xff, sizeof out);  // NaN, not the result before
        must(attend(pool, i % 2 ? ATTEND_GATHER : ATTEND_PAGED, 0, Q_HEADS, 1, q, out, NULL));
        compare(where[i % 4], ROWS, Q_HEADS, DIM, 1e-5, right, out);
        pool_destroy(pool);
    }
    return solved("");
}
