// 13b (hard): a shared prompt, read once.
//
// Eight samples of a long prompt share its blocks, but attend() still reads them eight times: once
// for the query of each sample. Keep the prompt in a sequence of its own, and in each sample only
// the tokens behind it. Then attention of a sample's newest token is that over the prompt and that
// over its own tokens, merged. Write attend_shared(), with two calls of attend() for all samples
// together. One query can have many heads, and attend() does not ask whose they are; and lse is
// what merging takes. Scores may be in the hundreds.
//
//     make exercise N=13b

#define PAGED_NO_MAIN
#include "../paged.cu.c"

enum { SAMPLES = 5, KV_HEADS = 2, Q_HEADS = 6, DIM = 8, MOST = 100 };

static int num_calls;

static int counted_attend(Pool *pool, int layer, const Batch *batch, int num_q_heads,
                          const float *q, float *out, float *lse)
{
    num_calls++;
    return attend(pool, ATTEND_PAGED, layer, batch, num_q_heads, 0, q, out, lse);
}

// q, out: [SAMPLES][Q_HEADS][DIM], of the newest token of each sample. Returns an error code.
static int attend_shared(Seq *prompt, Seq *const *samples, int layer, const float *q, float *out)
{
    (void)prompt, (void)samples, (void)layer, (void)q, (void)out;  // your lines,
    (void)counted_attend;                                          // with this one
    return PAGED_OK;
}

static void check(int ok, const char *what)
{
    if (!ok) printf("13b: not yet: %s\n", what);
    if (!ok) exit(1);
}

static void fill(float *x, int n, float size)
{
    static uint32_t state = 1;
    for (int i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        x[i] = size * (float)(int32_t)state * 0x1p-31f;
    }
}

// Appends the same n tokens to two sequences.
static void grow(Seq *a, Seq *b, int n)
{
    float k[MOST * KV_HEADS * DIM], v[MOST * KV_HEADS * DIM];
    Seq *seqs[2] = {a, b};
    for (int layer = 0; layer < 2; layer++) {
        fill(k, n * KV_HEADS * DIM, 30);
        fill(v, n * KV_HEADS * DIM, 1);
        for (int i = 0; i < 2 && seqs[i]; i++) {
            Batch batch = {1, &seqs[i], &n};
            check(layer > 0 || !seq_append(seqs[i], n), "no room");
            check(!pool_write(a->pool, layer, &batch, k, v), "pool_write() fails");
        }
    }
}

int main(void)
{
    static const int own[SAMPLES] = {1, 2, 9, 30, 1};
    static float q[SAMPLES * Q_HEADS * DIM], out[SAMPLES * Q_HEADS * DIM], expected[Q_HEADS * DIM];
    PoolConfig config = {2, KV_HEADS, DIM, 4, 200, PAGED_F32, 1, PAGED_CPU};
    Pool *pool;
    Seq *prompt = NULL, *samples[SAMPLES], *whole[SAMPLES];
    int one = 1;
    check(!pool_create(&config, &pool) && !seq_create(pool, &prompt), "no pool");
    grow(prompt, NULL, 87);
    for (int i = 0; i < SAMPLES; i++) {
        check(!seq_create(pool, &samples[i]) && !seq_fork(prompt, 87, &whole[i]), "no sample");
        grow(samples[i], whole[i], own[i]);
    }
    for (int layer = 0; layer < 2; layer++) {
        fill(q, SAMPLES * Q_HEADS * DIM, 30);
        num_calls = 0;
        check(!attend_shared(prompt, samples, layer, q, out), "attend_shared() fails");
        check(num_calls <= 2, "more than two calls of attend()");
        for (int i = 0; i < SAMPLES; i++) {
            Batch batch = {1, &whole[i], &one};
            const float *mine = out + i * Q_HEADS * DIM;
            check(!attend(pool, ATTEND_PAGED, layer, &batch, Q_HEADS, 0, q + i * Q_HEADS * DIM,
                          expected, NULL),
                  "attend() fails");
            for (int j = 0; j < Q_HEADS * DIM; j++)
                check(fabsf(mine[j] - expected[j]) <= 2e-5f, "a sample sees something else");
        }
    }
    check(prompt->length == 87 && !pool_check(pool), "the sequences have changed");
    pool_destroy(pool);
    printf("13b: solved\n");
    return 0;
}
