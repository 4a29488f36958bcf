// 15a: an attention sink, from outside.
//
// Some models let a head look at nothing: the denominator of softmax has one more term, exp(sink),
// which belongs to no token and brings no value. attend() knows nothing of that. But it returns
// lse, the log of the sum of exp(score). Write add_sink(), which corrects one vector of the output,
// and its lse, without another look at K and V. Scores may be in the hundreds: exp(score) does not
// fit into a float then.
//
//     make exercise N=15a

#define EXERCISE "15a"
#include "exercise.h"

// out: [head_dim] and *lse: what attend() returned for one query token and head. sink: that of the
// head; -INFINITY stands for none.
static void add_sink(float *out, float *lse, int head_dim, float sink)
{
    (void)out, (void)lse, (void)head_dim, (void)sink;
    // your lines
}

enum { DIM = 6, HEADS = 5, LENGTH = 37 };

static void compare(const char *what, float sink, double expected, float got, double tolerance)
{
    if (!(fabs(got - expected) <= tolerance))
        not_yet("%s, with a sink of %g: expected %.5f, got %.5f", what, sink, expected, got);
}

int main(void)
{
    static const float sinks[HEADS] = {-INFINITY, -3, 2, 190, 400};
    static float k[LENGTH * DIM], v[LENGTH * DIM], q[HEADS * DIM], out[HEADS * DIM], lse[HEADS];
    Pool *pool = new_pool(1, 1, DIM, 4, 10);
    Seq *seq = new_seq(pool, LENGTH);
    for (int i = 0; i < LENGTH * DIM; i++) {
        k[i] = sinf((float)i);
        v[i] = 1 + cosf((float)(i * i));
    }
    compute(seq, LENGTH, k, v);
    plan(seq, 1);
    for (int large = 0; large < 2; large++) {  // then with scores up to some 200
        for (int i = 0; i < HEADS * DIM; i++) q[i] = sinf((float)(i * i + 1)) * (large ? 90 : 1);
        must(attend(pool, ATTEND_PAGED, 0, HEADS, 1, q, out, lse));
        for (int h = 0; h < HEADS; h++) {
            add_sink(out + h * DIM, lse + h, DIM, sinks[h]);
            double sum = 0;
            double most = sinks[h];
            double values[DIM] = {0};
            double score[LENGTH];
            for (int t = 0; t < LENGTH; t++) {
                score[t] = 0;
                for (int d = 0; d < DIM; d++) score[t] += (double)q[h * DIM + d] * k[t * DIM + d];
                most = fmax(most, score[t]);
            }
            for (int t = 0; t < LENGTH; t++) {
                sum += exp(score[t] - most);
                for (int d = 0; d < DIM; d++) values[d] += exp(score[t] - most) * v[t * DIM + d];
            }
            sum += exp(sinks[h] - most);
            for (int d = 0; d < DIM; d++)
                compare(large ? "out, where scores are large" : "out", sinks[h], values[d] / sum,
                        out[h * DIM + d], 1e-4);
            compare("lse", sinks[h], most + log(sum), lse[h], 1e-3);
        }
    }
    pool_destroy(pool);
    printf(EXERCISE ": solved\n");
    return 0;
}
