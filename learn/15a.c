// 15a: an attention sink, from outside.
//
// Some models let a head look at nothing: the denominator of softmax has one more term, exp(sink),
// which belongs to no token and adds no value. attend() does not know of it, but returns lse, the
// log of the sum of exp(score). Write add_sink(), which corrects one vector of the output and its
// lse without reading K and V again. Scores may be in the hundreds, and exp(score) then overflows a
// float.
//
//     make exercise N=15a

#define EXERCISE "15a"
#include "exercise.h"

// out [head_dim] and *lse: what attend() returned for one query token and head. sink: the sink of
// that head; -INFINITY means none.
static void add_sink(float *out, float *lse, int head_dim, float sink)
{
    (void)out, (void)lse, (void)head_dim, (void)sink;
    // your lines
}

enum { DIM = 6, HEADS = 5, LENGTH = 37 };

// For the oracle, the sink is one more token, with the value 0. The last element of its key is 1,
// that of all other keys is 0, and that of a query is the sink. So the score is the sink.
int main(void)
{
    static const float sinks[HEADS] = {-INFINITY, -3, 2, 190, 400};
    static float k[(LENGTH + 1) * DIM], v[(LENGTH + 1) * DIM], q[HEADS * DIM], out[HEADS * DIM];
    float right[HEADS * DIM], lse[HEADS], right_lse[HEADS];
    Pool *pool = new_pool(1, 1, DIM, 4, 10);
    Seq *seq = new_seq(pool, LENGTH);
    randomize(k, LENGTH * DIM, 1);
    randomize(v, LENGTH * DIM, 2);
    for (int t = 0; t <= LENGTH; t++) k[t * DIM + DIM - 1] = 0;
    k[LENGTH * DIM + DIM - 1] = 1;
    compute(seq, LENGTH, k, v);
    plan(seq, 1);
    for (int large = 0; large < 2; large++) {  // then with scores up to some 200
        randomize(q, HEADS * DIM, large ? 150.0f : 2.0f);
        for (int h = 0; h < HEADS; h++) q[h * DIM + DIM - 1] = fmaxf(sinks[h], -1e9f);
        oracle_says(&pool->config, LENGTH + 1, k, v, 1, HEADS, 1, q, right, right_lse);
        must(attend(pool, ATTEND_PAGED, 0, HEADS, 1, q, out, lse));
        for (int h = 0; h < HEADS; h++) add_sink(out + h * DIM, lse + h, DIM, sinks[h]);
        compare(large ? "out with large scores" : "out", 1, HEADS, DIM, 1e-4, right, out);
        compare("lse", 1, HEADS, 1, 1e-3, right_lse, lse);
    }
    pool_destroy(pool);
    return solved("");
}
