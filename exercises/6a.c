// 6a: three numbers to be predicted, by hand.
//
// Four tokens have the keys 0, ln 2, ln 4 and ln 8 and the values 1, 2, 3 and 4; head_dim is 1, and
// each query is 1, so the keys are the scores. What is the attention of the newest token? Of the
// one before it? And what is l, the sum of exp(score - m), at the end of the newest row? Answers
// within 0.001 count.
//
//     make exercise N=6a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define NEWEST 0.0  // your number
#define BEFORE 0.0  // your number
#define L 0.0       // your number

static void must(int error)
{
    if (!error) return;
    printf("6a: not yet: %s\n", paged_error(error));
    exit(1);
}

static int differs(const char *name, double answer, double right)
{
    if (fabs(answer - right) <= 0.001) return 0;
    printf("6a: not yet: %s is too %s\n", name, answer < right ? "small" : "large");
    return 1;
}

int main(void)
{
    PoolConfig config = {1, 1, 1, 2, 2, PAGED_F32, 1, PAGED_CPU};
    const int n = 4;
    const float k[4] = {0, logf(2), logf(4), logf(8)};
    const float v[4] = {1, 2, 3, 4};
    const float q[4] = {1, 1, 1, 1};
    float out[4], lse[4];
    Pool *pool;
    Seq *seq;
    must(pool_create(&config, &pool));
    must(seq_create(pool, &seq));
    must(seq_append(seq, n));
    Batch batch = {1, &seq, &n};
    must(pool_plan(pool, &batch));
    must(pool_write(pool, 0, k, v));
    must(attend(pool, ATTEND_PAGED, 0, 1, 0, q, out, lse));
    pool_destroy(pool);
    // lse is m + log(l), and the largest score is the last one.
    int wrong = differs("NEWEST", NEWEST, out[3]) + differs("BEFORE", BEFORE, out[2]) +
                differs("L", L, exp((double)lse[3] - k[3]));
    if (!wrong)
        printf("6a: solved: exp(score) is 1, 2, 4, 8; newest (1 + 4 + 12 + 32) / 15 = %.4f,\n"
               "before (1 + 4 + 12) / 7 = %.4f; m is ln 8, so l = 15 / 8\n",
               out[3], out[2]);
    return wrong > 0;
}
