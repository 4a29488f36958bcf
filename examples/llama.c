// llama: a Llama model that serves many prompts at once, over the paged cache of ../paged.h.
//
// It reads the checkpoints and tokenizers of llama2.c and prints the same text. The model is the
// easy half: forward() takes the new tokens of some sequences through all layers and meets the
// cache in two calls, pool_write() and attend(). The other half is the scheduler, which decides
// whose tokens those are. Before each step it asks the pool for room, and lives by three rules:
//
//     continuous batching      a request may join or leave the batch at any step
//     chunked prefill          a prompt goes in by pieces, beside the others' single tokens
//     preemption by recompute  out of blocks? The newest request gives back its own and waits. It
//                              keeps its tokens, so later they are computed again, like a prompt
//
// None of them may change a word of the text, so no row of a matrix product may depend on what
// else is in the batch: see dots(). Read on in order: the model, forward(), the tokenizer, sampling,
// then the scheduler in plan_step(). Left out: top-p, quantized weights, chat.
//
//     cc -O2 examples/llama.c paged.o -o llama -lm && ./llama MODEL TOKENIZER -p "Once upon"

#include "../paged.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if __has_include(<stb/stb_ds.h>)
#include <stb/stb_ds.h>
#else
#include <stb_ds.h>
#endif

#define OUT_OF_LINE __attribute__((noinline))

enum {
    BOS = 1,            // the token that begins a text; produced by the model, it ends it
    FIRST_BYTE = 3,     // token b + FIRST_BYTE stands for the single byte b
    MAX_RUNNING = 256,  // requests in a batch: bounds the memory that a step takes
};

__attribute__((noreturn, format(printf, 2, 3))) static void die(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "llama: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(status);
}

static void must(int error, const char *what)
{
    if (error) die(1, "%s: %s", what, paged_error(error));
}

// ---- files ------------------------------------------------------------------------------------

typedef struct File {
    const char *path;
    char *bytes;
    size_t size, at;  // what lies before `at` has been taken
} File;

static void read_file(File *file, const char *path)
{
    FILE *in = fopen(path, "rb");
    long size = -1;
    if (in && (getc(in) != EOF || !ferror(in)) && fseek(in, 0, SEEK_END) == 0)
        size = ftell(in);  // the getc was for directories: they open, but cannot be read
    if (size < 0) die(1, "%s: %s", path, strerror(errno));
    rewind(in);
    file->path = path;
    file->size = (size_t)size;
    file->bytes = (char *)malloc(file->size + 1);
    if (!file->bytes || fread(file->bytes, 1, file->size, in) != file->size)
        die(1, "%s: cannot read its %ld bytes into memory", path, size);
    fclose(in);
}

static const char *take(File *file, size_t count)
{
    if (count > file->size - file->at)
        die(1, "%s: its %zu bytes end too early: truncated, or not what it should be", file->path,
            file->size);
    file->at += count;
    return file->bytes + file->at - count;
}

static int32_t take_int(File *file)
{
    int32_t value;
    memcpy(&value, take(file, sizeof value), sizeof value);
    return value;
}

// ---- the model --------------------------------------------------------------------------------
// A checkpoint is seven int32 and then all weights as float32, little-endian, in one fixed order.

typedef struct Model {
    int dim, hidden_dim, num_layers, num_heads, num_kv_heads, vocab_size, seq_len;
    int head_dim, kv_dim;            // kv_dim = num_kv_heads * head_dim
    const float *embedding;          // [vocab_size][dim]
    const float *rms_att, *rms_ffn;  // [num_layers][dim]
    const float *wq, *wo;            // [num_layers][dim][dim]
    const float *wk, *wv;            // [num_layers][kv_dim][dim]
    const float *w1, *w3;            // [num_layers][hidden_dim][dim]
    const float *w2;                 // [num_layers][dim][hidden_dim]
    const float *rms_final;          // [dim]
    const float *classifier;         // [vocab_size][dim], often the embedding itself
    File file;                       // the pointers above point into it
} Model;

// Takes the seven numbers. Returns 1 if the classifier has weights of its own, which the file tells
// by a negative vocab_size.
static int take_header(Model *m)
{
    static const char *const names[] = {"dim",        "hidden_dim", "n_layers", "n_heads",
                                        "n_kv_heads", "vocab_size", "seq_len"};
    const int most = 1 << 20;  // above any model; the product of three still fits into 64 bits
    int h[7];
    for (int i = 0; i < 7; i++) {
        h[i] = take_int(&m->file);
        if (h[i] > most || h[i] < (i == 5 ? -most : 1))
            die(1, "%s: not a checkpoint: its %s is %d", m->file.path, names[i], h[i]);
    }
    m->dim = h[0], m->hidden_dim = h[1], m->num_layers = h[2], m->num_heads = h[3];
    m->num_kv_heads = h[4], m->vocab_size = abs(h[5]), m->seq_len = h[6];
    m->head_dim = m->dim / m->num_heads;
    if (m->dim % m->num_heads || m->num_heads % m->num_kv_heads || m->head_dim % 2 ||
        m->head_dim > PAGED_MAX_HEAD_DIM || m->vocab_size <= BOS)
        die(1,
            "%s: not a checkpoint, or not supported: dim %d, n_heads %d, n_kv_heads %d, "
            "vocab_size %d",
            m->file.path, m->dim, m->num_heads, m->num_kv_heads, m->vocab_size);
    m->kv_dim = m->head_dim * m->num_kv_heads;
    return h[5] < 0;
}

static void read_model(Model *m, const char *path)
{
    read_file(&m->file, path);
    int separate = take_header(m);
    const float *unused;
    uint64_t D = m->dim, H = m->hidden_dim, L = m->num_layers, KV = m->kv_dim, V = m->vocab_size;
    struct {
        const float **start;
        uint64_t count;
    } parts[] = {
        {&m->embedding, V * D},
        {&m->rms_att, L * D},
        {&m->wq, L * D * D},
        {&m->wk, L * KV * D},
        {&m->wv, L * KV * D},
        {&m->wo, L * D * D},
        {&m->rms_ffn, L * D},
        {&m->w1, L * H * D},
        {&m->w2, L * D * H},
        {&m->w3, L * H * D},
        {&m->rms_final, D},
        {&unused, (uint64_t)m->seq_len * m->head_dim},  // cosines and sines: see fill_rope()
        {&m->classifier, separate ? V * D : 0},
    };
    const int num_parts = sizeof parts / sizeof parts[0];
    double expected = (double)m->file.at;  // exact to 2^53, and no file is longer
    for (int i = 0; i < num_parts; i++) expected += 4.0 * (double)parts[i].count;
    if (expected != (double)m->file.size)
        die(1, "%s: its header calls for %.0f bytes, it has %zu: truncated, or not a checkpoint",
            path, expected, m->file.size);
    for (int i = 0; i < num_parts; i++)
        *parts[i].start = (const float *)take(&m->file, 4 * (size_t)parts[i].count);
    if (!separate) m->classifier = m->embedding;
}

// ---- forward: one step of the model -----------------------------------------------------------

// What goes through the model in one call: a batch, with a row for each of its new tokens. The
// members are arrays of stb_ds.
typedef struct Step {
    Seq **seqs;       // [num_seqs]
    int *num_tokens;  // [num_seqs] new tokens of each, already appended to its sequence
    int *tokens;      // [rows]
    int *positions;   // [rows] place of the token in its sequence
    int *wanted;      // [num_wanted] the rows whose logits are wanted: seldom those of a prompt
} Step;

typedef struct Workspace {  // the activations
    float *x;               // [rows][dim] the residual stream
    float *norm, *y;        // [rows][dim] what goes into a matrix product, and what comes back
    float *q;               // [rows][num_heads][head_dim]
    float *k, *v;           // [rows][num_kv_heads][head_dim]
    float *h1, *h3;         // [rows][hidden_dim]
    float *rope;            // [rows][head_dim / 2][2] cosine and sine
    float *logits;          // [num_wanted][vocab_size]
    float *row;             // [vocab_size] the one that is sampled from
    float *on_device;       // [rows] of q, k, v and the result, for a pool that is not on the CPU
    size_t device_rows;
    float *memory;  // all of them: an array of stb_ds that grows with the largest step
} Workspace;

// out[r] = the sum of x[r][i] * weight[i], for one to four rows x. The order of summation depends on
// n alone, and the vectors say it, so that no compiler finds another one for another number of
// rows: a request would get other words when it shares a batch.
typedef float Sums __attribute__((vector_size(64), aligned(4), may_alias));
typedef float Half __attribute__((vector_size(32), aligned(4), may_alias));
typedef float Quarter __attribute__((vector_size(16), aligned(4), may_alias));

static OUT_OF_LINE void dots(float *const *out, const float *const *x, int rows,
                             const float *weight, int n)
{
    Sums sum[4] = {{0}};
    int i = 0;
    for (; rows > 1 && i + 16 <= n; i += 16) {
        Sums w = *(const Sums *)(weight + i);
        sum[0] += *(const Sums *)(x[0] + i) * w;
        sum[1] += *(const Sums *)(x[1] + i) * w;
        sum[2] += *(const Sums *)(x[2] + i) * w;
        sum[3] += *(const Sums *)(x[3] + i) * w;
    }
    for (; i + 16 <= n; i += 16) sum[0] += *(const Sums *)(x[0] + i) * *(const Sums *)(weight + i);
    for (int r = 0; r < rows; r++) {
        for (int j = i; j < n; j++) sum[r][j % 16] += x[r][j] * weight[j];
        Half half = ((const Half *)&sum[r])[0] + ((const Half *)&sum[r])[1];
        Quarter part = ((const Quarter *)&half)[0] + ((const Quarter *)&half)[1];
        *out[r] = part[0] + part[2] + (part[1] + part[3]);
    }
}

// out[rows][d] = x[rows][n] times weights[d][n] transposed. Weights do not fit into the caches of
// the processor, rows do: each row of weights is read once and meets the whole batch. This is what
// batching buys.
static void matmul(float *out, const float *x, const float *weights, int rows, int n, int d)
{
#ifdef _OPENMP
#pragma omp parallel for if ((double)rows * n * d > 1e6)  // less is done before threads wake up
#endif
    for (int i = 0; i < d; i++)
        for (int row = 0; row < rows; row += 4) {
            float *to[4];
            const float *from[4];
            int count = rows - row < 4 ? rows - row : 4;
            for (int r = 0; r < 4; r++) {  // behind the last row, the first one again
                int at = r < count ? row + r : row;
                to[r] = out + (size_t)at * d + i;
                from[r] = x + (size_t)at * n;
            }
            dots(to, from, count, weights + (size_t)i * n, n);
        }
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

// Rotary embedding: the pair (2i, 2i+1) of every head rope by an angle that grows with the
// position, the fast pairs first. The angles are the same in all layers.
static void fill_rope(float *rope, const int *positions, int rows, int head_dim)
{
    for (int row = 0; row < rows; row++, rope += head_dim)
        for (int i = 0; i < head_dim; i += 2) {
            float angle = positions[row] * (1 / powf(10000, i / (float)head_dim));
            rope[i] = cosf(angle);
            rope[i + 1] = sinf(angle);
        }
}

// Turns all heads of one row. Out of line for the same reason as dots().
static OUT_OF_LINE void rotate(float *x, const float *rope, int num_heads, int head_dim)
{
    for (; num_heads > 0; num_heads--, x += head_dim)
        for (int i = 0; i < head_dim; i += 2) {
            float a = x[i], b = x[i + 1];
            x[i] = a * rope[i] - b * rope[i + 1];
            x[i + 1] = a * rope[i + 1] + b * rope[i];
        }
}

// The tensors that meet the cache live where the cache lives; the model is computed by the CPU. A
// CPU pool takes them as they are.
static void attention(const Model *m, Pool *pool, int method, int layer, const Batch *batch,
                      size_t rows, Workspace *w)
{
    float *q = w->q, *k = w->k, *v = w->v, *out = w->norm;
    int copy = pool->config.device != PAGED_CPU;
    if (copy) {
        q = w->on_device;
        k = q + rows * m->dim;
        v = k + rows * m->kv_dim;
        out = v + rows * m->kv_dim;
        tensor_copy(pool, q, w->q, rows * (m->dim + 2 * m->kv_dim));  // q, k and v are neighbours
    }
    must(pool_write(pool, layer, batch, k, v), "pool_write");
    must(attend(pool, method, layer, batch, m->num_heads, 0, q, out, NULL), "attend");
    if (copy) tensor_copy(pool, w->norm, out, rows * m->dim);
}

static void attention_layer(const Model *m, Pool *pool, int method, int layer, const Batch *batch,
                            int rows, Workspace *w)
{
    size_t l = layer, dim = m->dim, kv_dim = m->kv_dim;
    rmsnorm(w->norm, w->x, m->rms_att + l * dim, rows, m->dim);
    matmul(w->q, w->norm, m->wq + l * dim * dim, rows, m->dim, m->dim);
    matmul(w->k, w->norm, m->wk + l * kv_dim * dim, rows, m->dim, m->kv_dim);
    matmul(w->v, w->norm, m->wv + l * kv_dim * dim, rows, m->dim, m->kv_dim);
    for (int row = 0; row < rows; row++) {
        const float *rope = w->rope + (size_t)row * m->head_dim;
        rotate(w->q + row * dim, rope, m->num_heads, m->head_dim);
        rotate(w->k + row * kv_dim, rope, m->num_kv_heads, m->head_dim);
    }
    attention(m, pool, method, layer, batch, rows, w);
    matmul(w->y, w->norm, m->wo + l * dim * dim, rows, m->dim, m->dim);
    for (size_t i = 0; i < rows * dim; i++) w->x[i] += w->y[i];
}

static void feed_forward_layer(const Model *m, int layer, int rows, Workspace *w)
{
    size_t l = layer, dim = m->dim, hidden = m->hidden_dim;
    rmsnorm(w->norm, w->x, m->rms_ffn + l * dim, rows, m->dim);
    matmul(w->h1, w->norm, m->w1 + l * hidden * dim, rows, m->dim, m->hidden_dim);
    matmul(w->h3, w->norm, m->w3 + l * hidden * dim, rows, m->dim, m->hidden_dim);
    for (size_t i = 0; i < rows * hidden; i++)
        w->h1[i] = w->h1[i] / (1 + expf(-w->h1[i])) * w->h3[i];
    matmul(w->y, w->h1, m->w2 + l * dim * hidden, rows, m->hidden_dim, m->dim);
    for (size_t i = 0; i < rows * dim; i++) w->x[i] += w->y[i];
}

static void size_workspace(Workspace *w, const Model *m, size_t rows, size_t num_wanted)
{
    size_t dim = rows * m->dim, kv = rows * m->kv_dim, hidden = rows * m->hidden_dim;
    size_t rope = rows * m->head_dim, logits = num_wanted * m->vocab_size, row = m->vocab_size;
    arrsetlen(w->memory, 4 * dim + 2 * kv + 2 * hidden + rope + logits + row);
    w->x = w->memory;
    w->norm = w->x + dim;
    w->y = w->norm + dim;
    w->q = w->y + dim;
    w->k = w->q + dim;
    w->v = w->k + kv;
    w->h1 = w->v + kv;
    w->h3 = w->h1 + hidden;
    w->rope = w->h3 + hidden;
    w->logits = w->rope + rope;
    w->row = w->logits + logits;
}

// Takes the new tokens of a step through the model: their K and V go into the pool. Returns the
// logits [num_wanted][vocab_size] of the wanted rows, valid until the next call. It knows nothing
// of requests and prompts: a chunk of prefill, a decode and a draft to verify are all just rows.
static float *forward(const Model *m, Pool *pool, int method, const Step *step, Workspace *w)
{
    int rows = (int)arrlen(step->tokens), num_wanted = (int)arrlen(step->wanted);
    size_t dim = m->dim;
    Batch batch = {(int)arrlen(step->seqs), step->seqs, step->num_tokens};
    size_workspace(w, m, rows, num_wanted);
    if (pool->config.device != PAGED_CPU && w->device_rows < (size_t)rows) {
        tensor_free(pool, w->on_device);
        w->on_device = tensor_create(pool, (size_t)rows * 2 * (m->dim + m->kv_dim));
        w->device_rows = rows;
        if (!w->on_device) die(1, "out of device memory");
    }
    for (int row = 0; row < rows; row++)
        memcpy(w->x + row * dim, m->embedding + step->tokens[row] * dim, dim * sizeof(float));
    fill_rope(w->rope, step->positions, rows, m->head_dim);
    for (int layer = 0; layer < m->num_layers; layer++) {
        attention_layer(m, pool, method, layer, &batch, rows, w);
        feed_forward_layer(m, layer, rows, w);
    }
    for (int i = 0; i < num_wanted; i++)
        rmsnorm(w->norm + i * dim, w->x + step->wanted[i] * dim, m->rms_final, 1, m->dim);
    matmul(w->logits, w->norm, m->classifier, num_wanted, m->dim, m->vocab_size);
    return w->logits;
}

// ---- the tokenizer ----------------------------------------------------------------------------
// The file: int32 longest token, then for each token float32 score, int32 length, bytes.

typedef struct Entry {
    char *key;
    int value;
} Entry;

typedef struct Tokenizer {
    Entry *ids;         // text -> token, a string map of stb_ds, which owns the texts
    const char **text;  // [vocab_size] token -> text
    float *scores;      // [vocab_size]
    char *pair;         // room for the texts of two tokens, one after the other
    size_t longest;     // bytes of text that one token can stand for, at most
    File file;
} Tokenizer;

static void read_tokenizer(Tokenizer *t, const char *path, int vocab_size)
{
    read_file(&t->file, path);
    const int32_t longest = take_int(&t->file);
    t->longest = 1;
    sh_new_strdup(t->ids);
    for (int token = 0; token < vocab_size; token++) {
        float score;
        memcpy(&score, take(&t->file, sizeof score), sizeof score);
        int32_t length = take_int(&t->file);
        if (length < 0 || length > longest)
            die(1, "%s: not a tokenizer: token %d has length %d, the longest is to have %d", path,
                token, (int)length, (int)longest);
        const char *bytes = take(&t->file, (size_t)length);
        if (t->longest < (size_t)length) t->longest = (size_t)length;
        arrsetlen(t->pair, (size_t)length + 1);
        memcpy(t->pair, bytes, (size_t)length);
        t->pair[length] = '\0';
        if (shgeti(t->ids, t->pair) < 0)  // of two tokens with one text, the first is the one
            shput(t->ids, t->pair, token);
        arrput(t->text, t->ids[shgeti(t->ids, t->pair)].key);
        arrput(t->scores, score);
    }
    if (t->file.at != t->file.size)
        die(1, "%s: not the tokenizer of this checkpoint: %zu bytes are left after %d tokens", path,
            t->file.size - t->file.at, vocab_size);
    arrsetlen(t->pair, 2 * t->longest + 1);
}

// Adds the token of one character, or the tokens of its bytes if the vocabulary does not have it.
static void add_character(Tokenizer *t, const char *bytes, int length, int **tokens)
{
    char key[5];
    memcpy(key, bytes, (size_t)length);
    key[length] = '\0';
    ptrdiff_t found = shgeti(t->ids, key);
    if (found >= 0) arrput(*tokens, t->ids[found].value);
    for (int i = 0; i < length && found < 0; i++) {
        int token = (unsigned char)bytes[i] + FIRST_BYTE;
        arrput(*tokens, token < arrlen(t->text) ? token : 0);
    }
}

// The token that tokens i and i + 1 merge into, or -1.
static int merged(Tokenizer *t, const int *tokens, ptrdiff_t i)
{
    if (i < 0 || i + 1 >= arrlen(tokens)) return -1;
    snprintf(t->pair, arrlenu(t->pair), "%s%s", t->text[tokens[i]], t->text[tokens[i + 1]]);
    ptrdiff_t found = shgeti(t->ids, t->pair);
    return found < 0 ? -1 : t->ids[found].value;
}

// Byte pair encoding: starts from characters and merges the pair whose token has the best score,
// the leftmost of equals, until no pair merges. Returns an array of stb_ds that begins with BOS.
static int *encode(Tokenizer *t, const char *text)
{
    int *tokens = NULL, *merges = NULL;  // merges[i] is merged(i), so that a round only compares
    if (*text) add_character(t, " ", 1, &tokens);
    for (int n; *text; text += n) {
        for (n = 1; n < 4 && (text[n] & 0xC0) == 0x80; n++)  // UTF-8: 10xxxxxx goes on
            ;
        add_character(t, text, n, &tokens);
    }
    for (ptrdiff_t i = 0; i < arrlen(tokens); i++) arrput(merges, merged(t, tokens, i));
    for (;;) {
        ptrdiff_t best = -1;
        float best_score = -1e10f;
        for (ptrdiff_t i = 0; i < arrlen(merges); i++)
            if (merges[i] >= 0 && t->scores[merges[i]] > best_score) {
                best = i;
                best_score = t->scores[merges[i]];
            }
        if (best < 0) break;
        tokens[best] = merges[best];
        arrdel(tokens, best + 1);
        arrdel(merges, best + 1);
        merges[best] = merged(t, tokens, best);
        if (best > 0) merges[best - 1] = merged(t, tokens, best - 1);
    }
    arrfree(merges);
    arrins(tokens, 0, BOS);
    return tokens;
}

// Prints a token as llama2.c does: without the blank that encode() puts in front of a text, a token
// spelled <0x0A> as that byte, and no single byte that a terminal cannot show.
static void print_token(const Tokenizer *t, int previous, int token)
{
    const char *text = t->text[token];
    char byte[2] = {0, 0};
    unsigned value;
    int end = 0;
    if (previous == BOS && *text == ' ') text++;
    if (sscanf(text, "<0x%2X>%n", &value, &end) == 1 && end == 6) {
        byte[0] = (char)value;
        text = byte;
    }
    if (strlen(text) != 1 || isprint((unsigned char)*text) || isspace((unsigned char)*text))
        fputs(text, stdout);
}

// ---- sampling ---------------------------------------------------------------------------------
// Both ways return a valid token even if every logit is NaN: a comparison with NaN is false.

static int argmax(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

// Uniform in [0, 1): splitmix64, a counter whose bits are mixed well.
static double uniform(uint64_t *rng)
{
    uint64_t z = *rng += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;  // 2^53
}

// Draws from softmax(logits / temperature), or takes the likeliest if temperature is 0. The logits
// are overwritten.
static int sample(float *logits, int n, float temperature, uint64_t *rng)
{
    int best = argmax(logits, n);
    if (temperature == 0) return best;
    float top = logits[best];
    double sum = 0;
    for (int i = 0; i < n; i++) sum += logits[i] = expf((logits[i] - top) / temperature);
    double left = uniform(rng) * sum;
    for (int i = 0; i < n; i++)
        if ((left -= logits[i]) < 0) return i;
    return best;
}

// ---- options ----------------------------------------------------------------------------------

enum { CACHE_CONTIGUOUS, CACHE_GATHER, CACHE_PAGED, CACHE_SPLIT };

typedef struct Options {
    const char *checkpoint, *tokenizer;
    char *prompts;  // one after the other, each with its '\0' (an array of stb_ds)
    int cache, device, dtype, block_size, num_blocks, chunk, steps;  // num_blocks 0: enough for all
    int samples, beams, drafts;  // of a request; 1, 1 and 0 are plain decoding
    int prefix_cache;
    float temperature;
    uint64_t seed;
} Options;

static const char help[] =
    "usage: llama CHECKPOINT TOKENIZER [options]\n"
    "  -p TEXT           a prompt; may be repeated\n"
    "  -f FILE           prompts from a file, one a line; without -p and -f: one empty prompt\n"
    "  --cache KIND      paged; gather; contiguous: each request reserves all positions; split: "
    "as\n"
    "                    paged, and a GPU splits long sequences (paged)\n"
    "  --device KIND     where the cache is, and who attends: cpu or gpu (cpu)\n"
    "  --block-size N    tokens in a block (16)\n"
    "  --blocks N        blocks in the pool (enough for all requests at their longest)\n"
    "  --dtype TYPE      how K and V are stored: f32, f16 or bf16 (f32)\n"
    "  --chunk N         tokens of a prompt in one step (32)\n"
    "  --temperature T   0 takes the likeliest token, 1 samples from the model's odds (0)\n"
    "  --seed S          request i samples with the seed S + i (1)\n"
    "  --steps N         positions of a request, its prompt included (200)\n"
    "  --samples N       N texts for each prompt, which is computed once and forked (1)\n"
    "  --beam N          the likeliest text that N beams find (1)\n"
    "  --speculate K     up to K tokens are guessed and verified in one step (0)\n"
    "  --prefix-cache    what requests begin with alike is computed once\n";

static double parse_number(const char *option, const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most))
        die(2, "%s '%s': not a number from %.0f to %.0f", option, text, least, most);
    return value;
}

static int parse_count(const char *option, const char *text)
{
    double value = parse_number(option, text, 1, INT_MAX);
    if (value != floor(value)) die(2, "%s '%s': not a whole number", option, text);
    return (int)value;
}

static int parse_choice(const char *option, const char *text, const char *const *choices)
{
    for (int i = 0; choices[i]; i++)
        if (strcmp(text, choices[i]) == 0) return i;
    die(2, "%s '%s': no such choice; see --help", option, text);
}

static void read_prompts(Options *o, const char *path)
{
    FILE *in = fopen(path, "rb");
    int c = 0, last = '\n';
    for (; in && (c = getc(in)) > 0; last = c) arrput(o->prompts, (char)(c == '\n' ? '\0' : c));
    if (!in || ferror(in) || c == 0)
        die(1, "%s: %s", path, in && c == 0 ? "not a text: it has a byte 0" : strerror(errno));
    if (last != '\n') arrput(o->prompts, '\0');
    fclose(in);
}

static void parse_option(Options *o, const char *name, const char *value)
{
    static const char *const caches[] = {"contiguous", "gather", "paged", "split", NULL};
    static const char *const devices[] = {"cpu", "gpu", NULL};  // PAGED_CPU, PAGED_GPU
    static const char *const dtypes[] = {"f32", "f16", "bf16",
                                         NULL};  // PAGED_F32, ... in this order
    if (!value)
        die(2, "%s: no such option, or its value is missing; see --help", name);
    else if (strcmp(name, "-p") == 0)
        memcpy(arraddnptr(o->prompts, strlen(value) + 1), value, strlen(value) + 1);
    else if (strcmp(name, "-f") == 0)
        read_prompts(o, value);
    else if (strcmp(name, "--cache") == 0)
        o->cache = parse_choice(name, value, caches);
    else if (strcmp(name, "--device") == 0)
        o->device = parse_choice(name, value, devices);
    else if (strcmp(name, "--dtype") == 0)
        o->dtype = parse_choice(name, value, dtypes);
    else if (strcmp(name, "--block-size") == 0)
        o->block_size = parse_count(name, value);
    else if (strcmp(name, "--blocks") == 0)
        o->num_blocks = parse_count(name, value);
    else if (strcmp(name, "--chunk") == 0)
        o->chunk = parse_count(name, value);
    else if (strcmp(name, "--steps") == 0)
        o->steps = parse_count(name, value);
    else if (strcmp(name, "--samples") == 0)
        o->samples = parse_count(name, value);
    else if (strcmp(name, "--beam") == 0)
        o->beams = parse_count(name, value);
    else if (strcmp(name, "--speculate") == 0)
        o->drafts = parse_count(name, value);
    else if (strcmp(name, "--seed") == 0)
        o->seed = (uint64_t)parse_number(name, value, 0, 9007199254740992.0);  // 2^53
    else if (strcmp(name, "--temperature") == 0)
        o->temperature = (float)parse_number(name, value, 0, 1e6);
    else
        die(2, "%s: no such option; see --help", name);
}

static void parse_options(Options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            exit(0);
        } else if (strcmp(argv[i], "--prefix-cache") == 0) {
            o->prefix_cache = 1;
        } else if (argv[i][0] == '-') {
            parse_option(o, argv[i], argv[i + 1]);  // argv[argc] is NULL
            i++;
        } else if (o->tokenizer)
            die(2, "%s: two files are enough; see --help", argv[i]);
        else
            *(o->checkpoint ? &o->tokenizer : &o->checkpoint) = argv[i];
    if (!o->tokenizer) die(2, "a CHECKPOINT and a TOKENIZER are needed; see --help");
    if (o->samples > 1024 || o->beams > 1024 || o->drafts > 1024)
        die(2, "--samples, --beam and --speculate go up to 1024");
    if (o->beams > 1 && (o->samples > 1 || o->drafts > 0 || o->temperature > 0))
        die(2, "--beam goes with neither --samples nor --speculate nor --temperature");
    if (o->prefix_cache && (o->beams > 1 || o->cache == CACHE_CONTIGUOUS))
        die(2, "--prefix-cache goes with neither --beam nor --cache contiguous");
    if (!arrlen(o->prompts)) arrput(o->prompts, '\0');
}

// ---- requests and their scheduler -------------------------------------------------------------

typedef struct Request {
    int id;
    int *tokens;   // all that are known: the prompt, then what was sampled (an array of stb_ds)
    int *draft;    // guesses at the tokens after them, in this step (an array of stb_ds)
    int forks;     // so many requests, those behind it in the list, fork off when it has its prompt
    Seq *seq;      // holds K and V of the first seq->length tokens; NULL while it waits
    uint64_t rng;  // moved by sampling alone: a preemption repeats no draw
    int lost;      // tokens whose K and V a preemption dropped
    ptrdiff_t printed;  // tokens that need not be printed any more
} Request;

typedef struct Server {
    Options options;
    Model model;
    Tokenizer tokenizer;
    Pool *pool;
    Request **requests;  // all of them; these three are arrays of stb_ds
    Request **waiting;   // first come, first served
    Request **running;   // the oldest first
    Step step;
    Workspace work;
    long num_refused, num_steps, num_tokens, num_preemptions, num_recomputed;
    long num_drafted, num_accepted;
    long num_found;                 // tokens, in the prefix cache
    int peak_blocks, peak_running;  // the most blocks in use, and by how many requests
    int peak_apart;                 // the blocks they would have, did they share none
} Server;

static int blocks_for(const Server *s, int tokens)
{
    return (tokens - 1) / s->options.block_size + 1;
}

static Request *new_request(Server *s, int forks)
{
    Request *r = (Request *)calloc(1, sizeof *r);
    if (!r) die(1, "out of memory");
    r->id = (int)arrlen(s->requests);
    r->rng = s->options.seed + (uint64_t)r->id;
    r->forks = forks;
    r->printed = 1;  // BOS is never printed
    arrput(s->requests, r);
    return r;
}

// Puts a prompt into the queue, or refuses it for good: what can never finish must not wait. Beams
// go on together, so they must fit together, even if they come to share nothing.
static void add_prompt(Server *s, const char *prompt)
{
    const Options *o = &s->options;
    Request *r = new_request(s, o->samples - 1);
    for (int i = 1; i < o->samples; i++) new_request(s, 0);
    size_t bytes = strlen(prompt);
    int blocks = o->beams * blocks_for(s, o->steps);
    if (bytes / s->tokenizer.longest <= (size_t)o->steps) r->tokens = encode(&s->tokenizer, prompt);
    if (!r->tokens || arrlen(r->tokens) > o->steps)
        fprintf(stderr,
                "llama: request %d refused: its prompt of %zu bytes takes more than %d "
                "tokens (the model's seq_len is %d)\n",
                r->id, bytes, o->steps, s->model.seq_len);
    else if (o->num_blocks && blocks > o->num_blocks)
        fprintf(stderr,
                "llama: request %d refused: %d tokens take %d blocks, the whole pool has "
                "%d\n",
                r->id, o->beams * o->steps, blocks, o->num_blocks);
    else {
        arrput(s->waiting, r);
        return;
    }
    arrfree(r->tokens);
    s->num_refused += o->samples;
}

// Speculation by prompt lookup (Saxena 2023): text repeats itself. Finds the last place where the
// newest three tokens, or two, or one, stand already, and guesses that what followed them there
// follows here.
static void guess(const Server *s, Request *r)
{
    int known = (int)arrlen(r->tokens), most = s->options.steps - known;
    if (most > s->options.drafts) most = s->options.drafts;
    for (int n = 3; n > 0; n--)
        for (int at = known - n - 1; at >= 0; at--) {
            if (memcmp(r->tokens + at, r->tokens + known - n, n * sizeof(int)) != 0) continue;
            for (int i = at + n; i < known && i < at + n + most; i++)
                arrput(r->draft, r->tokens[i]);
            return;
        }
}

// Makes room for the next tokens of a request: a chunk of its prompt, or the token sampled last and
// guesses at those after it. Adds them to the step. Returns what seq_append() says; on an error
// nothing has changed.
static int add_to_step(Server *s, Request *r)
{
    Step *step = &s->step;
    int first = r->seq->length, known = (int)arrlen(r->tokens);
    int n = known - first < s->options.chunk ? known - first : s->options.chunk;
    arrsetlen(r->draft, 0);
    if (known - first == 1 && !r->forks) guess(s, r);
    int error = seq_append(r->seq, n + (int)arrlen(r->draft));
    if (error == PAGED_OUT_OF_BLOCKS && arrlen(r->draft) > 0) {  // a guess preempts nobody
        arrsetlen(r->draft, 0);
        error = seq_append(r->seq, n);
    }
    if (error) return error;
    arrput(step->seqs, r->seq);
    arrput(step->num_tokens, r->seq->length - first);
    for (int i = first; i < r->seq->length; i++) {
        arrput(step->tokens, i < known ? r->tokens[i] : r->draft[i - known]);
        arrput(step->positions, i);
        // The logits of the last known token say the next one, those of a guess the one after it.
        if (i >= known - 1) arrput(step->wanted, (int)arrlen(step->tokens) - 1);
    }
    s->num_drafted += arrlen(r->draft);
    return PAGED_OK;
}

// Takes the blocks of the request that came last. It goes to the head of the queue, with all its
// tokens; their K and V will be computed again.
static void preempt_newest(Server *s)
{
    Request *r = arrpop(s->running);
    s->num_preemptions++;
    r->lost = r->seq->length;
    seq_release(r->seq);
    r->seq = NULL;
    arrins(s->waiting, 0, r);
}

static void clear_step(Step *step)
{
    arrsetlen(step->seqs, 0);
    arrsetlen(step->num_tokens, 0);
    arrsetlen(step->tokens, 0);
    arrsetlen(step->positions, 0);
    arrsetlen(step->wanted, 0);
}

// Starts the request at the head of the queue, if it fits. All known tokens must fit, not just the
// first chunk: a preempted request, which just lacked a block, would else be back at once, only
// to be preempted again. Returns 0 if it has to wait; what the prefix cache has for it then counts
// as used just now, and is kept for longer.
static int admit(Server *s)
{
    Request *r = s->waiting[0];
    int known = (int)arrlen(r->tokens);
    must(seq_create(s->pool, &r->seq), "seq_create");
    if (s->options.prefix_cache) must(seq_lookup(r->seq, r->tokens, known), "seq_lookup");
    int found = r->seq->length;
    if (blocks_for(s, known) - found / s->options.block_size > s->pool->num_free) {
        seq_release(r->seq);
        r->seq = NULL;
        return 0;
    }
    s->num_found += found;
    if (r->lost > found) s->num_recomputed += r->lost - found;
    r->lost = 0;
    must(add_to_step(s, r), "seq_append");
    arrdel(s->waiting, 0);
    arrput(s->running, r);
    return 1;
}

// Decides what the next step computes. The oldest request always gets its room, if need be by
// preempting all others, and add_prompt() saw to it that it fits into the pool alone. So every
// step brings some request nearer its end, and none waits for ever.
static void plan_step(Server *s)
{
    clear_step(&s->step);
    for (ptrdiff_t i = 0; i < arrlen(s->running);) {
        int error = add_to_step(s, s->running[i]);
        if (error == PAGED_OUT_OF_BLOCKS)
            preempt_newest(s);  // at last i itself, and the loop ends
        else {
            must(error, "seq_append");
            i++;
        }
    }
    while (arrlen(s->waiting) > 0 && arrlen(s->running) < MAX_RUNNING && admit(s)) continue;
}

static void print_request(const Tokenizer *t, Request *r)
{
    for (; r->printed < arrlen(r->tokens); r->printed++)
        print_token(t, r->tokens[r->printed - 1], r->tokens[r->printed]);
    fflush(stdout);
}

// Samples after the last known token of a request, and after each guess that turned out right. What
// was computed for the others is rewound. logits: [1 + guesses][vocab_size]. Returns 1 at the end
// of the text.
static int sample_request(Server *s, Request *r, const float *logits)
{
    int guesses = (int)arrlen(r->draft), n = s->model.vocab_size, right = 0, done;
    for (;; right++) {
        memcpy(s->work.row, logits + (size_t)right * n, n * sizeof(float));
        int token = sample(s->work.row, n, s->options.temperature, &r->rng);
        done = token == BOS || arrlen(r->tokens) >= s->options.steps;
        if (token != BOS) arrput(r->tokens, token);
        if (done || right == guesses || token != r->draft[right]) break;
    }
    s->num_accepted += right;
    must(seq_rewind(r->seq, guesses - right), "seq_rewind");
    return done;
}

// Parallel sampling: another request for the same prompt shares its blocks. Who first writes into
// the last of them, if it is partly filled, gets a copy.
static Request *fork_request(Server *s, Request *r)
{
    Request *child = s->requests[r->id + r->forks--];
    arrsetlen(child->tokens, arrlenu(r->tokens));
    memcpy(child->tokens, r->tokens, arrlenu(r->tokens) * sizeof(int));
    must(seq_fork(r->seq, r->seq->length, &child->seq), "seq_fork");
    return child;
}

static void finish(Request *r)  // its blocks go to whoever needs them in the next step
{
    seq_release(r->seq);
    r->seq = NULL;
}

// Samples for each request whose known tokens are used up.
static void take_tokens(Server *s, const float *logits)
{
    ptrdiff_t kept = 0, count = arrlen(s->running);
    for (ptrdiff_t i = 0; i < count; i++) {
        Request *r = s->running[i];
        int done = 0;
        if (r->seq->length >= arrlen(r->tokens)) {
            while (r->forks > 0) {
                Request *child = fork_request(s, r);
                if (sample_request(s, child, logits))
                    finish(child);
                else
                    arrput(s->running, child);
            }
            done = sample_request(s, r, logits);
            logits += (size_t)(1 + arrlen(r->draft)) * s->model.vocab_size;
        }
        // Guesses that were wrong are gone by now: what the sequence holds are known tokens.
        if (s->options.prefix_cache)
            must(seq_publish(r->seq, r->tokens, r->seq->length), "seq_publish");
        if (arrlen(s->requests) == 1) print_request(&s->tokenizer, r);
        if (done)
            finish(r);
        else
            s->running[kept++] = r;
    }
    for (ptrdiff_t i = count; i < arrlen(s->running); i++) s->running[kept++] = s->running[i];
    arrsetlen(s->running, kept);
}

// Computes the step that was planned.
static float *compute(Server *s)
{
    int used = s->options.num_blocks - s->pool->num_free;
    if (used > s->peak_blocks) {
        s->peak_blocks = used;
        s->peak_running = (int)arrlen(s->step.seqs);
        s->peak_apart = 0;
        for (int i = 0; i < s->peak_running; i++)
            s->peak_apart += (int)arrlen(s->step.seqs[i]->block_table);
    }
    s->num_steps++;
    s->num_tokens += arrlen(s->step.tokens);
    static const int methods[] = {ATTEND_PAGED, ATTEND_GATHER, ATTEND_PAGED, ATTEND_SPLIT};
    return forward(&s->model, s->pool, methods[s->options.cache], &s->step, &s->work);
}

static void serve(Server *s)
{
    while (arrlen(s->waiting) + arrlen(s->running) > 0) {
        plan_step(s);
        take_tokens(s, compute(s));
    }
}

// ---- beam search ------------------------------------------------------------------------------
// The same pool, used in another way: every step forks the beams that go on and releases all the
// old ones. Beams of one family share the blocks of their common past, and only the last block is
// ever copied. One request at a time; its beams are the batch.

typedef struct Beam {
    Seq *seq;      // NULL once the text has ended
    int *tokens;   // an array of stb_ds
    double score;  // sum of the logarithms of the probabilities
    int parent, token;
} Beam;

// Puts a candidate into the list of the best ones, which is sorted; of equals the first one stays.
static void offer(Beam *best, int *count, int most, Beam candidate)
{
    int at = *count;
    while (at > 0 && best[at - 1].score < candidate.score) at--;
    if (at == most) return;
    if (*count < most) ++*count;
    memmove(best + at + 1, best + at, (*count - at - 1) * sizeof *best);
    best[at] = candidate;
}

// Lists the best continuations of all beams. logits: a row for each beam that has not ended.
static int best_candidates(const Beam *beams, int count, int most, const float *logits, int n,
                           Beam *best)
{
    int found = 0;
    for (int b = 0; b < count; b++) {
        Beam candidate = {NULL, NULL, beams[b].score, b, BOS};
        if (!beams[b].seq) {
            offer(best, &found, most, candidate);
            continue;
        }
        double sum = 0, top = logits[argmax(logits, n)];
        for (int i = 0; i < n; i++) sum += exp(logits[i] - top);
        for (int i = 0; i < n; i++) {
            candidate.score = beams[b].score + (logits[i] - top - log(sum));
            candidate.token = i;
            offer(best, &found, most, candidate);
        }
        logits += n;
    }
    return found;
}

// Makes beams of the candidates: forks those that go on, then releases the old ones.
static void take_candidates(Beam *beams, int *count, Beam *best, int found)
{
    for (int b = 0; b < found; b++) {
        Beam *beam = &best[b], *parent = &beams[beam->parent];
        arrsetlen(beam->tokens, arrlenu(parent->tokens));
        memcpy(beam->tokens, parent->tokens, arrlenu(parent->tokens) * sizeof(int));
        if (!parent->seq || beam->token == BOS) continue;  // ended
        arrput(beam->tokens, beam->token);
        must(seq_fork(parent->seq, parent->seq->length, &beam->seq), "seq_fork");
    }
    for (int b = 0; b < *count; b++) {
        seq_release(beams[b].seq);
        arrfree(beams[b].tokens);
    }
    memcpy(beams, best, found * sizeof *beams);
    *count = found;
}

// Plans and computes a step of all beams that have not ended. NULL: there are none, or no steps.
static const float *compute_beams(Server *s, Beam *beams, int count)
{
    clear_step(&s->step);
    for (int b = 0; b < count; b++) {
        Request r = {0, beams[b].tokens, NULL, 1, beams[b].seq, 0, 0, 0};
        if (r.seq && r.seq->length < s->options.steps) must(add_to_step(s, &r), "seq_append");
    }
    return arrlen(s->step.seqs) > 0 ? compute(s) : NULL;
}

static void beam_search(Server *s, Request *r)
{
    int most = s->options.beams, count = 1;
    Beam *beams = (Beam *)calloc(2 * (size_t)most, sizeof *beams), *best = beams + most;
    if (!beams) die(1, "out of memory");
    beams[0].tokens = r->tokens;
    must(seq_create(s->pool, &beams[0].seq), "seq_create");
    for (const float *logits; (logits = compute_beams(s, beams, count)) != NULL;)
        if (arrlen(s->step.wanted) > 0) {  // else the prompt is not all in yet
            int found = best_candidates(beams, count, most, logits, s->model.vocab_size, best);
            take_candidates(beams, &count, best, found);
        }
    r->tokens = beams[0].tokens;
    for (int b = 0; b < count; b++) {
        seq_release(beams[b].seq);
        if (b > 0) arrfree(beams[b].tokens);
    }
    free(beams);
}

// ---- start and end ----------------------------------------------------------------------------

static void start(Server *s)
{
    const uint16_t one = 1;
    if (!*(const unsigned char *)&one)
        die(1, "checkpoints are little-endian and this machine is big-endian: not supported");
    Options *o = &s->options;
    const Model *m = &s->model;
    read_model(&s->model, o->checkpoint);
    read_tokenizer(&s->tokenizer, o->tokenizer, m->vocab_size);
    if (o->steps > m->seq_len) o->steps = m->seq_len;
    if (o->cache == CACHE_CONTIGUOUS)  // that is all it takes: one block for each sequence
        o->block_size = m->seq_len;
    for (ptrdiff_t at = 0; at < arrlen(o->prompts); at += (ptrdiff_t)strlen(o->prompts + at) + 1)
        add_prompt(s, o->prompts + at);
    if (!o->num_blocks) {
        double all = (double)arrlen(s->waiting) * blocks_for(s, o->steps) * o->samples * o->beams;
        o->num_blocks = all < 1 ? 1 : all > INT_MAX ? INT_MAX : (int)all;
    }
    PoolConfig config = {m->num_layers, m->num_kv_heads, m->head_dim, o->block_size,
                         o->num_blocks, o->dtype,        0,           o->device};
    int error = pool_create(&config, &s->pool);
    if (error)
        die(1, "a pool of %d blocks of %d tokens: %s", o->num_blocks, o->block_size,
            paged_error(error));
}

static void print_statistics(const Server *s, double seconds)
{
    double token_kib = (double)pool_bytes_per_token(&s->pool->config) / 1024;
    double paged = token_kib * s->peak_blocks * s->options.block_size;
    double reserved = token_kib * s->peak_running * s->model.seq_len;
    fprintf(stderr,
            "llama: %d requests, %ld refused; %ld tokens in %ld steps, %.0f tokens/s; "
            "%ld preemptions, %ld tokens computed again\n",
            (int)arrlen(s->requests), s->num_refused, s->num_tokens, s->num_steps,
            seconds > 0 ? s->num_tokens / seconds : 0, s->num_preemptions, s->num_recomputed);
    fprintf(stderr,
            "llama: at the peak %d sequences had %d blocks of %d tokens, %.1f KiB: %.1f %% "
            "of the %.1f KiB that reserving %d tokens for each takes\n",
            s->peak_running, s->peak_blocks, s->options.block_size, paged,
            reserved > 0 ? 100 * paged / reserved : 0, reserved, s->model.seq_len);
    if (s->options.samples > 1 || s->options.beams > 1)
        fprintf(stderr, "llama: separate copies would have had %d blocks; %ld blocks were copied\n",
                s->peak_apart, s->pool->num_copies);
    if (s->options.prefix_cache)
        fprintf(stderr, "llama: %ld tokens were found in the prefix cache and not computed\n",
                s->num_found);
    if (s->options.drafts > 0)
        fprintf(stderr,
                "llama: %ld tokens were guessed, %ld of them right, which saved as many calls of "
                "the model for a sequence; %ld were rewound\n",
                s->num_drafted, s->num_accepted, s->num_drafted - s->num_accepted);
}

static void print_texts(Server *s)
{
    for (ptrdiff_t i = 0; i < arrlen(s->requests); i++) {
        if (arrlen(s->requests) > 1) printf("=== request %d ===\n", (int)i);
        print_request(&s->tokenizer, s->requests[i]);
        printf("\n");
    }
    if (fflush(stdout) || ferror(stdout)) die(1, "standard output: %s", strerror(errno));
}

static void free_server(Server *s)
{
    tensor_free(s->pool, s->work.on_device);
    pool_destroy(s->pool);
    for (ptrdiff_t i = 0; i < arrlen(s->requests); i++) {
        arrfree(s->requests[i]->tokens);
        arrfree(s->requests[i]->draft);
        free(s->requests[i]);
    }
    arrfree(s->requests);
    arrfree(s->waiting);
    arrfree(s->running);
    arrfree(s->step.seqs);
    arrfree(s->step.num_tokens);
    arrfree(s->step.tokens);
    arrfree(s->step.positions);
    arrfree(s->step.wanted);
    arrfree(s->work.memory);
    shfree(s->tokenizer.ids);
    arrfree(s->tokenizer.text);
    arrfree(s->tokenizer.scores);
    arrfree(s->tokenizer.pair);
    free(s->tokenizer.file.bytes);
    free(s->model.file.bytes);
    arrfree(s->options.prompts);
}

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    static Server server;  // static, so that all of it starts at zero
    Options *o = &server.options;
    o->cache = CACHE_PAGED;
    o->block_size = 16;
    o->chunk = 32;
    o->steps = 200;
    o->samples = o->beams = 1;
    o->seed = 1;
    parse_options(o, argc, argv);
    start(&server);
    double begin = now();
    for (; o->beams > 1 && arrlen(server.waiting) > 0; arrdel(server.waiting, 0))
        beam_search(&server, server.waiting[0]);
    serve(&server);
    double seconds = now() - begin;
    print_texts(&server);
    print_statistics(&server, seconds);
    if (server.pool->num_free != server.options.num_blocks)
        die(1, "%d blocks were not given back", server.options.num_blocks - server.pool->num_free);
    int status = server.num_refused > 0;
    free_server(&server);
    return status;
}
