// 13b (hard): a shared prompt, read once.
//
// Samples of a long prompt share its blocks, but attend() still reads them once for each sample.
// Here the prompt is a sequence of its own, and each sample holds only the tokens after it.
// Attention of a sample's newest token is then attention over the prompt, merged with attention
// over the sample's own tokens. Write attend_shared(), with two calls of plan_and_attend() for all
// samples together. A query token may have many heads, and attend() does not ask which sample a
// head belongs to. Merging needs lse. Scores may be in the hundreds.
//
//     make exercise N=13b

#define EXERCISE "13b"
#include "exercise.h"

enum { SAMPLES = 5, KV_HEADS = 2, Q_HEADS = 6, DIM = 8, MOST = 100 };
enum { SIZE = SAMPLES * Q_HEADS * DIM };

static int num_calls;

// Plans a batch of newest tokens, one of each sequence, and attends.
static int plan_and_attend(int num_seqs, Seq *const *seqs, int layer, int num_q_heads,
                           const float *q, float *out, float *lse)
{
    static const int ones[SAMPLES] = {1, 1, 1, 1, 1};
    Batch batch = {num_seqs, seqs, ones};
    int error = pool_plan(seqs[0]->pool, &batch);
    num_calls++;
    return error ? error : attend(seqs[0]->pool, ATTEND_PAGED, layer, num_q_heads, 0, q, out, lse);
}

// q, out: [SAMPLES][Q_HEADS][DIM], of the newest token of each sample. Returns an error code.
static int attend_shared(Seq *prompt, Seq *const *samples, int layer, const float *q, float *out)
{
    (void)prompt, (void)samples, (void)layer, (void)q, (void)out;  // your lines,
    (void)plan_and_attend;                                         // with this one
    return PAGED_OK;
}

// Appends the same n tokens to two sequences.
static void grow(Seq *a, Seq *b, int n)
{
    float k[2][MOST * KV_HEADS * DIM], v[2][MOST * KV_HEADS * DIM];
    Seq *seqs[2] = {a, b};
    for (int layer = 0; layer < 2; layer++) {
        randomize(k[layer], n * KV_HEADS * DIM, 30);
        randomize(v[layer], n * KV_HEADS * DIM, 1);
    }
    for (int i = 0; i < 2 && seqs[i]; i++) {
        must(seq_append(seqs[i], n));
        plan(seqs[i], n);
        for (int layer = 0; layer < 2; layer++)
            must(pool_write(a->pool, layer, k[layer], v[layer]));
    }
}

int main(void)
{
    static const int own[SAMPLES] = {1, 2, 9, 30, 1};
    static float q[SIZE], out[SIZE], right[SIZE];
    Pool *pool = new_pool(2, KV_HEADS, DIM, 4, 200);
    Seq *prompt = new_seq(pool, 0);
    Seq *samples[SAMPLES], *whole[SAMPLES];
    grow(prompt, NULL, 87);
    for (int i = 0; i < SAMPLES; i++) {
        samples[i] = new_seq(pool, 0);
        must(seq_fork(prompt, 87, &whole[i]));
        grow(samples[i], whole[i], own[i]);
    }
    for (int layer = 0; layer < 2; layer++) {
        randomize(q, SIZE, 30);
        must(plan_and_attend(SAMPLES, whole, layer, Q_HEADS, q, right, NULL));
        num_calls = 0;
        must(attend_shared(prompt, samples, layer, q, out));
        check(num_calls <= 2, "more than two calls of plan_and_attend()");
        compare(layer ? "layer 1" : "layer 0", SAMPLES, Q_HEADS, DIM, 2e-5, right, out);
    }
    check(prompt->length == 87 && !pool_check(pool), "the sequences have changed");
    pool_destroy(pool);
    return solved("");
}
