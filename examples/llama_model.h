// llama_model.h: a Llama over the paged cache of ../paged.h. forward() takes the new tokens of some
// sequences through all layers. It meets the cache in pool_plan(), once a step, and in pool_write()
// and attend(), once a layer. llama.c serves requests with it; play.c runs it in a browser.
// The end of the file chooses the next token.
//
// No row of a matrix product depends on what else is in the batch: see product().

#include "llama_files.h"

enum { LANES = 16 };  // sums that a matrix product adds up side by side

// ---- forward: one step of the model -----------------------------------------------------------

// What goes through the model in one call: a batch, and a row for each of its new tokens. The
// members are arrays of stb_ds.
typedef struct ModelInput {
    Seq **seqs;       // [num_seqs]
    int *num_tokens;  // [num_seqs] new tokens of each, already appended to its sequence
    int *tokens;      // [rows]
    int *positions;   // [rows] place of the token in its sequence
    int *wanted;      // [num_wanted] the rows whose logits are wanted: seldom those of a prompt
} ModelInput;

static void clear_input(ModelInput *input)
{
    arrsetlen(input->seqs, 0);
    arrsetlen(input->num_tokens, 0);
    arrsetlen(input->tokens, 0);
    arrsetlen(input->positions, 0);
    arrsetlen(input->wanted, 0);
}

typedef struct Workspace {  // the activations: arrays of stb_ds
    float *x;               // [rows][dim] the residual stream
    float *norm, *y;        // [rows][dim] what goes into a matrix product, and what comes back
    float *q;               // [rows][num_heads][head_dim], with room for k and v after it
    float *k, *v;           // [rows][num_kv_heads][head_dim]
    float *h1, *h3;         // [rows][hidden_dim]
    float *rope;            // [rows][head_dim / 2][2] cosine and sine
    float *logits;          // [num_wanted][vocab_size]
    float *tensor;          // q, k, v and the result of attention, where the cache lives
    size_t tensor_rows;
} Workspace;

// A sum of n products in a fixed order: first LANES sums, side by side in a vector of the
// processor, then the sum of these. Out of line, so that every row goes through the same
// instructions: otherwise a request would get other words when it shares a batch.
__attribute__((noinline)) static float product(const float *a, const float *b, int n)
{
    float sums[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) sums[j] += a[i + j] * b[i + j];
    for (int j = 0; i + j < n; j++) sums[j] += a[i + j] * b[i + j];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

// out[rows][d] = x[rows][n] times weights[d][n] transposed. The weights do not fit into the caches
// of the processor, one row of them does: it is read once and meets the whole batch. This is what
// batching buys.
static void matmul(float *out, const float *x, const float *weights, int rows, int n, int d)
{
#ifdef _OPENMP
#pragma omp parallel for if ((double)rows * n * d > 1e6)  // less is done before threads wake up
#endif
    for (int i = 0; i < d; i++)
        for (int row = 0; row < rows; row++)
            out[(size_t)row * d + i] = product(x + (size_t)row * n, weights + (size_t)i * n, n);
}

static void rmsnorm(float *out, const float *x, const float *weight, int rows, int n)
{
    for (; rows > 0; rows--, out += n, x += n) {
        float sum = 0;
        for (int i = 0; i < n; i++) sum += x[i] * x[i];
        float scale = 1 / sqrtf(sum / n + 1e-5f);
        for (int i = 0; i < n; i++) out[i] = weight[i] * (scale * x[i]);
    }
}

// Rotary embedding turns each pair (2i, 2i + 1) of the elements of a head by an angle, the position
// times 10000^(-2i / head_dim). All heads and all layers use the same angles.
static void fill_rope(float *rope, const int *positions, int rows, int head_dim)
{
    for (int row = 0; row < rows; row++, rope += head_dim)
        for (int i = 0; i < head_dim; i += 2) {
            float angle = positions[row] * (1 / powf(10000, i / (float)head_dim));
            rope[i] = cosf(angle);
            rope[i + 1] = sinf(angle);
        }
}

// Turns all heads of one row. Out of line, so that every row goes through the same instructions.
__attribute__((noinline)) static void rotate(float *x, const float *rope, int num_heads,
                                             int head_dim)
{
    for (; num_heads > 0; num_heads--, x += head_dim)
        for (int i = 0; i < head_dim; i += 2) {
            float a = x[i];
            float b = x[i + 1];
            x[i] = a * rope[i] - b * rope[i + 1];
            x[i + 1] = a * rope[i + 1] + b * rope[i];
        }
}

// The tensors that meet the cache live where the cache lives; the model is computed by the CPU.
static void attention_layer(const Model *m, Pool *pool, int flags, int layer, int rows,
                            Workspace *w)
{
    size_t l = layer;
    size_t dim = m->dim;
    size_t kv_dim = m->kv_dim;
    float *q = w->tensor;
    float *k = q + rows * dim;
    float *v = k + rows * kv_dim;
    float *out = v + rows * kv_dim;
    rmsnorm(w->norm, w->x, m->rms_att + l * dim, rows, m->dim);
    matmul(w->q, w->norm, m->wq + l * dim * dim, rows, m->dim, m->dim);
    matmul(w->k, w->norm, m->wk + l * kv_dim * dim, rows, m->dim, m->kv_dim);
    matmul(w->v, w->norm, m->wv + l * kv_dim * dim, rows, m->dim, m->kv_dim);
    for (int row = 0; row < rows; row++) {
        const float *rope = w->rope + (size_t)row * m->head_dim;
        rotate(w->q + row * dim, rope, m->num_heads, m->head_dim);
        rotate(w->k + row * kv_dim, rope, m->num_kv_heads, m->head_dim);
    }
    tensor_copy(pool, q, w->q, rows * (dim + 2 * kv_dim));
    must(pool_write(pool, layer, k, v), "pool_write");
    must(attend(pool, flags, layer, m->num_heads, 0, q, out, NULL), "attend");
    tensor_copy(pool, w->norm, out, rows * dim);
    matmul(w->y, w->norm, m->wo + l * dim * dim, rows, m->dim, m->dim);
    for (size_t i = 0; i < rows * dim; i++) w->x[i] += w->y[i];
}

static void feed_forward_layer(const Model *m, int layer, int rows, Workspace *w)
{
    size_t l = layer;
    size_t dim = m->dim;
    size_t hidden = m->hidden_dim;
    rmsnorm(w->norm, w->x, m->rms_ffn + l * dim, rows, m->dim);
    matmul(w->h1, w->norm, m->w1 + l * hidden * dim, rows, m->dim, m->hidden_dim);
    matmul(w->h3, w->norm, m->w3 + l * hidden * dim, rows, m->dim, m->hidden_dim);
    for (size_t i = 0; i < rows * hidden; i++)
        w->h1[i] = w->h1[i] / (1 + expf(-w->h1[i])) * w->h3[i];
    matmul(w->y, w->h1, m->w2 + l * dim * hidden, rows, m->hidden_dim, m->dim);
    for (size_t i = 0; i < rows * dim; i++) w->x[i] += w->y[i];
}

static void size_workspace(Workspace *w, const Model *m, const Pool *pool, size_t rows,
                           size_t num_wanted)
{
    arrsetlen(w->x, rows * m->dim);
    arrsetlen(w->norm, rows * m->dim);
    arrsetlen(w->y, rows * m->dim);
    arrsetlen(w->q, rows * (m->dim + 2 * m->kv_dim));
    w->k = w->q + rows * m->dim;
    w->v = w->k + rows * m->kv_dim;
    arrsetlen(w->h1, rows * m->hidden_dim);
    arrsetlen(w->h3, rows * m->hidden_dim);
    arrsetlen(w->rope, rows * m->head_dim);
    arrsetlen(w->logits, num_wanted * m->vocab_size);
    if (w->tensor_rows >= rows) return;
    tensor_free(pool, w->tensor);
    w->tensor = tensor_create(pool, rows * 2 * (m->dim + m->kv_dim));
    w->tensor_rows = rows;
    if (!w->tensor) die(1, "out of device memory");
}

// Takes the new tokens of a step through the model: their K and V go into the pool. Returns the
// logits [num_wanted][vocab_size] of the wanted rows, valid until the next call. It knows nothing
// of requests and prompts: a chunk of prefill, a decode and a draft to verify are all just rows.
static const float *forward(const Model *m, Pool *pool, int flags, const ModelInput *input,
                            Workspace *w)
{
    int rows = arrlen(input->tokens);
    int num_wanted = arrlen(input->wanted);
    size_t dim = m->dim;
    Batch batch = {(int)arrlen(input->seqs), input->seqs, input->num_tokens};
    must(pool_plan(pool, &batch), "pool_plan");
    size_workspace(w, m, pool, rows, num_wanted);
    for (int row = 0; row < rows; row++)
        memcpy(w->x + row * dim, m->embedding + input->tokens[row] * dim, dim * sizeof(float));
    fill_rope(w->rope, input->positions, rows, m->head_dim);
    for (int layer = 0; layer < m->num_layers; layer++) {
        attention_layer(m, pool, flags, layer, rows, w);
        feed_forward_layer(m, layer, rows, w);
    }
    for (int i = 0; i < num_wanted; i++)
        rmsnorm(w->norm + i * dim, w->x + input->wanted[i] * dim, m->rms_final, 1, m->dim);
    matmul(w->logits, w->norm, m->classifier, num_wanted, m->dim, m->vocab_size);
    return w->logits;
}

// ---- sampling ---------------------------------------------------------------------------------

static int argmax(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

// Draws from softmax(logits / temperature), or takes the likeliest token if temperature is 0.
static int sample(const float *logits, int n, float temperature, uint64_t *rng)
{
    int best = argmax(logits, n);
    if (temperature == 0) return best;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += expf((logits[i] - logits[best]) / temperature);
    double left = random_uniform(rng) * sum;
    for (int i = 0; i < n; i++) {
        left -= expf((logits[i] - logits[best]) / temperature);
        if (left < 0) return i;
    }
    return best;
}
