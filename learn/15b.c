// 15b (hard): ALiBi.
//
// Instead of rotating K, some models lower a score by the distance of its token (Press et al.
// 2022): to the score of query head h for the token at position t, a query at position p adds
// slope(h) * (t - p), where slope(h) = 2 to the power of -8 (h + 1) / num_q_heads. Teach
// attend_row() and attend_tokens() of ../paged.cu.c that: if ATTEND_ALIBI is 1, they add it to the
// scaled score; if it is not defined, nothing changes. In the kernel, think of what a sum over
// lanes adds up.
//
//     make exercise N=15b

#define ATTEND_ALIBI 1
#define EXERCISE "15b"
#include "exercise.h"

enum { DIM = 20, KV_HEADS = 2, Q_HEADS = 6, LENGTH = 300, ROWS = 2, SIZE = ROWS * Q_HEADS * DIM };

// Element i of the attention of the newest tokens, without the table, in double.
static double expected(const float *q, const float *k, const float *v, int length, int i, int alibi)
{
    int head = i / DIM % Q_HEADS;
    int p = length - ROWS + i / (Q_HEADS * DIM);
    double slope = alibi ? pow(2, -8.0 * (head + 1) / Q_HEADS) : 0;
    double sum = 0;
    double out = 0;
    for (int t = 0; t <= p; t++) {
        int at = (t * KV_HEADS + head / (Q_HEADS / KV_HEADS)) * DIM;
        double score = slope * (t - p);
        for (int d = 0; d < DIM; d++) score += (double)q[i - i % DIM + d] * k[at + d];
        sum += exp(score);
        out += exp(score) * v[at + i % DIM];
    }
    return out / sum;
}

static void try_device(int device, int length, const float *q, const float *k, const float *v)
{
    static float out[SIZE];
    PoolConfig config = {1, KV_HEADS, DIM, 16, 20, PAGED_F32, 1, device};
    Pool *pool = new_pool_of(config);
    Seq *seq = new_seq(pool, length);
    compute(seq, length, k, v);
    plan(seq, ROWS);
    for (int flags = ATTEND_PAGED; flags <= ATTEND_GATHER; flags++) {
        must(attend(pool, flags, 0, Q_HEADS, 1, q, out, NULL));
        for (int i = 0; i < SIZE; i++) {
            double right = expected(q, k, v, length, i, 1);
            double plain = expected(q, k, v, length, i, 0);
            const char *kernel = device == PAGED_CPU ? "attend_row()" : "attend_paged()";
            const char *ignored = fabs(out[i] - plain) <= 1e-5 ? ": distance is ignored" : "";
            if (!(fabs(out[i] - right) <= 1e-5))
                not_yet("%s%s, %d tokens, query head %d, element %d: expected %.6f, got %.6f%s",
                        kernel, flags ? " over a dense copy" : "", length, i / DIM % Q_HEADS,
                        i % DIM, right, out[i], ignored);
        }
    }
    pool_destroy(pool);
}

int main(void)
{
    static float k[LENGTH * KV_HEADS * DIM], v[LENGTH * KV_HEADS * DIM], q[SIZE];
    for (int i = 0; i < LENGTH * KV_HEADS * DIM; i++) {
        k[i] = sinf((float)i);
        v[i] = cosf((float)i * i);
    }
    for (int i = 0; i < SIZE; i++) q[i] = cosf((float)i) / 4;
    for (int length = 9; length <= LENGTH; length += 97) {
        try_device(PAGED_CPU, length, q, k, v);
        try_device(PAGED_STANDIN, length, q, k, v);
    }
    printf(EXERCISE ": solved\n");
    return 0;
}
