// 6b (hard): a sliding window.
//
// In some models a token sees only the newest ATTEND_WINDOW tokens, itself included. Teach the
// engine that: if this number is defined, attend_row() of ../paged.cu.c begins with the first token
// of the window; otherwise nothing changes. Each of several query tokens has a window of its own.
// When it works: which blocks of the table could be given back now?
//
//     make exercise N=6b

#define ATTEND_WINDOW 20
#define EXERCISE "6b"
#include "exercise.h"

enum { LENGTH = 50, QUERIES = 35, DIM = 5 };

// Attention of query token i over the tokens it sees, the plain way: all scores first, in double.
static double expected(const float *q, const float *k, const float *v, int i, int d)
{
    int position = LENGTH - QUERIES + i;
    int first = position + 1 - ATTEND_WINDOW;
    double sum = 0;
    double out = 0;
    for (int t = first < 0 ? 0 : first; t <= position; t++) {
        double score = 0;
        for (int j = 0; j < DIM; j++) score += (double)q[i * DIM + j] * k[t * DIM + j];
        sum += exp(score);
        out += exp(score) * v[t * DIM + d];
    }
    return out / sum;
}

int main(void)
{
    static float q[QUERIES * DIM], k[LENGTH * DIM], v[LENGTH * DIM], out[QUERIES * DIM];
    for (int i = 0; i < LENGTH * DIM; i++) {
        k[i] = sinf((float)i);
        v[i] = cosf((float)(i * i));
    }
    for (int i = 0; i < QUERIES * DIM; i++) q[i] = sinf((float)(i * i));
    for (int block_size = 1; block_size <= 64; block_size *= 4) {
        Pool *pool = new_pool(1, 1, DIM, block_size, LENGTH);
        Seq *seq = new_seq(pool, LENGTH);
        compute(seq, LENGTH, k, v);
        plan(seq, QUERIES);
        for (int flags = ATTEND_PAGED; flags <= ATTEND_GATHER; flags++) {
            must(attend(pool, flags, 0, 1, 1, q, out, NULL));
            for (int i = 0; i < QUERIES * DIM; i++) {
                double right = expected(q, k, v, i / DIM, i % DIM);
                if (!(fabs(out[i] - right) <= 1e-5))
                    not_yet("%stoken %d, element %d: expected %.6f, got %.6f",
                            flags ? "gathered: " : "", LENGTH - QUERIES + i / DIM, i % DIM, right,
                            out[i]);
            }
        }
        pool_destroy(pool);
    }
    printf(EXERCISE ": solved: blocks that lie before the window of the oldest token yet to be\n"
                    "computed are not read any more\n");
    return 0;
}
