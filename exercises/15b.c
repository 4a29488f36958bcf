// 15b (hard): ALiBi, in the kernels.
//
// Instead of rotating K, some models lower a score by the distance of its token (Press et al. 2022):
// to the score of query head h for the token at position t, a query at position p adds
// slope(h) * (t - p), where slope(h) = 2 to the power of -8 (h + 1) / num_q_heads. Teach the kernels
// attend_paged() and attend_split() of ../paged.cu.c that: where ATTEND_ALIBI is 1, they add it to
// the scaled score; where it is not defined, nothing changes. A sum over lanes, and a split that
// does not begin at 0, are the two places to stumble.
//
//     make exercise N=15b

#define ATTEND_ALIBI 1
#define PAGED_NO_MAIN
#include "../paged.cu.c"

enum { DIM = 20, KV_HEADS = 2, Q_HEADS = 6, LENGTH = 1100, ROWS = 2, SIZE = ROWS * Q_HEADS * DIM };

static void check(int ok, const char *what, const char *where)
{
    if (!ok) printf("15b: not yet: %s%s\n", where, what);
    if (!ok) exit(1);
}

// Attention of the newest tokens of a sequence of so many, without the table, in double.
static double expected(const float *q, const float *k, const float *v, int length, int i, int alibi)
{
    int row = i / (Q_HEADS * DIM), head = i / DIM % Q_HEADS, p = length - ROWS + row;
    double slope = alibi ? pow(2, -8.0 * (head + 1) / Q_HEADS) : 0, sum = 0, out = 0;
    for (int t = 0; t <= p; t++) {
        int at = (t * KV_HEADS + head / (Q_HEADS / KV_HEADS)) * DIM;
        double score = slope * (t - p);
        for (int d = 0; d < DIM; d++) score += (double)q[i - i % DIM + d] * k[at + d];
        sum += exp(score);
        out += exp(score) * v[at + i % DIM];
    }
    return out / sum;
}

int main(void)
{
    static float k[LENGTH * KV_HEADS * DIM], v[LENGTH * KV_HEADS * DIM], q[SIZE], out[SIZE];
    static const char *const where[3] = {"ATTEND_GATHER: ", "ATTEND_PAGED: ", "ATTEND_SPLIT: "};
    for (int i = 0; i < LENGTH * KV_HEADS * DIM; i++)
        k[i] = sinf((float)i), v[i] = cosf((float)i * i);
    for (int i = 0; i < SIZE; i++) q[i] = cosf((float)i) / 4;
    for (int length = 9; length <= LENGTH; length = length == 9 ? 500 : length + 600) {
        PoolConfig config = {1, KV_HEADS, DIM, 16, 70, PAGED_F32, 1, PAGED_GPU};
        const int newest = ROWS;
        Pool *pool;
        Seq *seq;
        check(!pool_create(&config, &pool) && !seq_create(pool, &seq) && !seq_append(seq, length),
              "there is no sequence", "");
        Batch write = {1, &seq, &length}, batch = {1, &seq, &newest};
        check(!pool_write(pool, 0, &write, k, v), "pool_write() fails", "");
        for (int method = 0; method < 3; method++) {
            check(!attend(pool, method, 0, &batch, Q_HEADS, 1, q, out, NULL), "attend() fails", "");
            for (int i = 0; i < SIZE; i++) {
                double right = expected(q, k, v, length, i, 1);
                int plain = fabs(out[i] - expected(q, k, v, length, i, 0)) <= 1e-5;
                check(fabs(out[i] - right) <= 1e-5,
                      plain             ? "the distance of a token plays no part"
                      : length <= SPLIT ? "attention is wrong"
                                        : "attention is wrong with more than one split",
                      where[method]);
            }
        }
        pool_destroy(pool);
    }
    printf("15b: solved\n");
    return 0;
}
