// 6b (hard): a sliding window.
//
// In some models a token sees only the newest ATTEND_WINDOW tokens, itself included. Teach this to
// attend_row() in learn/my-6b.c: if ATTEND_WINDOW is defined, begin with the first token of the
// window; otherwise change nothing. Each query token has its own window. When it works, ask which
// blocks of the table could now be freed.
//
//     make exercise N=6b

#define ATTEND_WINDOW 20
#define EXERCISE "6b"
#include "exercise.h"

enum { LENGTH = 50, QUERIES = 35, DIM = 5 };

int main(void)
{
    static float q[QUERIES * DIM], k[LENGTH * DIM], v[LENGTH * DIM], out[QUERIES * DIM];
    float right[QUERIES * DIM];
    randomize(k, LENGTH * DIM, 1);
    randomize(v, LENGTH * DIM, 1);
    randomize(q, QUERIES * DIM, 1);
    for (int block_size = 1; block_size <= 64; block_size *= 4) {
        Pool *pool = new_pool(1, 1, DIM, block_size, LENGTH);
        for (int i = 0; i < QUERIES; i++) {  // the oracle gets the tokens of the window only
            int end = LENGTH - QUERIES + i + 1;
            int first = end > ATTEND_WINDOW ? end - ATTEND_WINDOW : 0;
            oracle_says(&pool->config, end - first, k + first * DIM, v + first * DIM, 1, 1,
                        q + i * DIM, right + i * DIM);
        }
        Seq *seq = new_seq(pool, LENGTH);
        compute(seq, LENGTH, k, v);
        plan(seq, QUERIES);
        must(attend(pool, ATTEND_PAGED, 0, 1, 1, q, out, NULL));
        compare("through the table", QUERIES, 1, DIM, 1e-5, right, out);
        memset(out, 0xff, sizeof out);  // NaN, so that the first result cannot pass for this one
        must(attend(pool, ATTEND_GATHER, 0, 1, 1, q, out, NULL));
        compare("over a dense copy", QUERIES, 1, DIM, 1e-5, right, out);
        pool_destroy(pool);
    }
    return solved("Blocks that lie wholly before the window of the next token are never read\n"
                  "again, so they could be freed.\n");
}
