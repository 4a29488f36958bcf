// 6b (hard): a sliding window.
//
// In some models a token sees only the newest ATTEND_WINDOW tokens, itself included. Teach the
// engine that: if this number is defined, attend_row() of ../paged.cu.c begins with the first token
// of the window; otherwise nothing changes. Each of several query tokens has a window of its own.
// When it works: which blocks of the table could be given back now?
//
//     make exercise N=6b

#define ATTEND_WINDOW 20
#define PAGED_NO_MAIN
#include "../paged.cu.c"

enum { LENGTH = 50, QUERIES = 35, DIM = 5 };

static void check(int ok, const char *what)
{
    if (ok) return;
    printf("6b: not yet: %s\n", what);
    exit(1);
}

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
        PoolConfig config = {1, 1, DIM, block_size, LENGTH, PAGED_F32, 1, PAGED_CPU};
        const int all = LENGTH;
        const int newest = QUERIES;
        Pool *pool;
        Seq *seq;
        check(pool_create(&config, &pool) == PAGED_OK && seq_create(pool, &seq) == PAGED_OK &&
                  seq_append(seq, LENGTH) == PAGED_OK,
              "no sequence");
        Batch write = {1, &seq, &all};
        Batch batch = {1, &seq, &newest};
        check(!pool_plan(pool, &write) && !pool_write(pool, 0, k, v), "pool_write() fails");
        check(!pool_plan(pool, &batch), "pool_plan() fails");
        for (int flags = ATTEND_PAGED; flags <= ATTEND_GATHER; flags++) {
            check(!attend(pool, flags, 0, 1, 1, q, out, NULL), "attend() fails");
            for (int i = 0; i < QUERIES * DIM; i++) {
                double right = expected(q, k, v, i / DIM, i % DIM);
                if (fabs(out[i] - right) <= 1e-5) continue;
                printf("6b: not yet: %stoken %d, element %d: expected %.6f, got %.6f\n",
                       flags ? "gathered: " : "", LENGTH - QUERIES + i / DIM, i % DIM, right,
                       out[i]);
                return 1;
            }
        }
        pool_destroy(pool);
    }
    printf("6b: solved: blocks that lie before the window of the oldest token yet to be\n"
           "computed are not read any more\n");
    return 0;
}
