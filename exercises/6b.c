// 6b (hard): a sliding window.
//
// Some models let a token see only the newest ATTEND_WINDOW tokens, itself included. Teach the
// engine that: where this number is defined, attend_row() of paged.cu.c shall begin with the first
// token of the window; where it is not, nothing changes. With several query tokens each has a
// window of its own. When it works: which blocks of the table could be given back now?
//
//     make exercise N=6b

#define ATTEND_WINDOW 20
#define PAGED_NO_MAIN
#include "../paged.cu.c"

enum { LENGTH = 50, QUERIES = 35, DIM = 5 };

static void check(int ok, const char *what)
{
    if (!ok) printf("6b: not yet: %s\n", what);
    if (!ok) exit(1);
}

// Attention of query token i over the tokens it sees, the plain way: all scores first, in double.
static double expected(const float *q, const float *k, const float *v, int i, int d)
{
    int position = LENGTH - QUERIES + i, first = position + 1 - ATTEND_WINDOW;
    double sum = 0, out = 0;
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
    for (int i = 0; i < LENGTH * DIM; i++) k[i] = sinf((float)i), v[i] = cosf((float)(i * i));
    for (int i = 0; i < QUERIES * DIM; i++) q[i] = sinf((float)(i * i));
    for (int block_size = 1; block_size <= 64; block_size *= 4) {
        PoolConfig config = {1, 1, DIM, block_size, LENGTH, PAGED_F32, 1, PAGED_CPU};
        const int all = LENGTH, newest = QUERIES;
        Pool *pool;
        Seq *seq;
        check(pool_create(&config, &pool) == PAGED_OK && seq_create(pool, &seq) == PAGED_OK &&
                  seq_append(seq, LENGTH) == PAGED_OK,
              "no sequence");
        Batch write = {1, &seq, &all}, batch = {1, &seq, &newest};
        check(pool_write(pool, 0, &write, k, v) == PAGED_OK, "pool_write() fails");
        for (int method = ATTEND_GATHER; method <= ATTEND_SPLIT; method++) {
            check(attend(pool, method, 0, &batch, 1, 1, q, out, NULL) == PAGED_OK,
                  "attend() fails");
            for (int i = 0; i < QUERIES * DIM; i++) {
                int position = LENGTH - QUERIES + i / DIM;
                int right = fabs(out[i] - expected(q, k, v, i / DIM, i % DIM)) <= 1e-5;
                check(right || position < ATTEND_WINDOW, "a token sees more than its window");
                check(right, "a token that is not yet beyond its window sees too little");
            }
        }
        pool_destroy(pool);
    }
    printf("6b: solved\n");
    return 0;
}
