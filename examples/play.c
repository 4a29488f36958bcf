// play: what docs/play.html adds to paged.h. The page has both in it; it makes calls and draws what
// report() prints. Its calls, copied as C: cc -DPAGED_NO_MAIN calls.c paged.cu.c -lm && ./a.out

#include "util.h"

enum { LAYERS = 2, HEAD_DIM = 16, MAX_TOKENS = 1024, SEQS = 6 };

static PoolConfig config;
float k[MAX_TOKENS * HEAD_DIM], v[MAX_TOKENS * HEAD_DIM];  // [tokens][kv_heads][head_dim]
Pool *pool;
Seq *a, *b, *c, *d, *e, *f;
Seq **const seqs[SEQS] = {&a, &b, &c, &d, &e, &f};

static int has_model;   // the pool is that of the tales
static float *weights;  // of attention, which report() prints once (an array of stb_ds)

// How the last result of attention differs from the oracle's. An element of -1: it agrees.
static struct {
    int element;
    float by, is, should;
} difference = {-1, 0, 0, 0};

static int new_pool(PoolConfig shape, int for_tales)
{
    Pool *made;
    int error = pool_create(&shape, &made);
    if (error) return error;
    size_t bytes = pool_bytes_per_block(&shape) * shape.num_blocks / 2;
    memset(made->k, 0, bytes);  // no letters, and on any machine the same
    memset(made->v, 0, bytes);
    for (int i = 0; i < SEQS; i++) *seqs[i] = NULL;
    pool_destroy(pool);
    pool = made;
    config = shape;
    has_model = for_tales;
    return PAGED_OK;
}

static void weigh(int n, int kv_head, const float *query);
static int fits(const Seq *seq);

#include "play_tales.h"  // the tales

#define CALL(call) report(#call, call)
#define seq_release(seq) \
    (seq_release(seq), (seq) = NULL, PAGED_OK)  // a released name is free again

int start(int block_size, int num_blocks)
{
    PoolConfig shape = {LAYERS, 1, HEAD_DIM, block_size, num_blocks, PAGED_F32, 1, PAGED_CPU};
    return new_pool(shape, 0);
}

// K and V of tokens `first` to `end` - 1 in a made-up model: element 0 of a key is the letter, the
// last one is the position. Products of these are exact: all compilers get the same scores.
static void make_keys(const char *text, int first, int end)
{
    for (int t = first, i = 0; t < end; t++)
        for (int d = 0; d < HEAD_DIM; d++, i++) {
            k[i] = text[t] * 2654435761u >> d & 1 ? 0.5f : -0.5f;
            v[i] = (text[t] + t) * 2654435761u >> d & 1 ? 0.5f : -0.5f;
            if (d == 0) k[i] = text[t] / 128.0f;
            if (d == HEAD_DIM - 1) k[i] = t / 4.0f;
        }
}

// K and V of the sequence have room in k and v.
static int fits(const Seq *seq)
{
    return seq && seq->length >= 0 &&
           seq->length <= MAX_TOKENS * HEAD_DIM / (config.num_kv_heads * config.head_dim);
}

// A step of the model, for the tokens that are not computed yet.
int step(Seq *seq, const char *text)
{
    if (!fits(seq) || (int)strlen(text) < seq->length) return PAGED_BAD_ARGUMENT;
    int n = seq->length - seq->num_computed_tokens;
    int error = pool_plan(pool, &(Batch){1, &seq, &n});
    make_keys(text, seq->num_computed_tokens, seq->length);
    for (int layer = 0; layer < LAYERS && !error; layer++) error = pool_write(pool, layer, k, v);
    return error;
}

float q[HEAD_DIM], expected[HEAD_DIM];

// The query of the newest token, and the oracle's attention in layer 1. The query matches the keys
// of the same letter best, and near ones better than far ones.
int ask(Seq *seq, const char *text)
{
    if (!fits(seq) || seq->length != (int)strlen(text)) return PAGED_BAD_ARGUMENT;
    int n = seq->length;
    must(pool_plan(pool, &(Batch){1, &seq, &(int){1}}), "pool_plan");
    make_keys(text, 0, n);
    for (int i = 1; i < HEAD_DIM; i++) q[i] = 2 * k[(n - 1) * HEAD_DIM + i];
    q[HEAD_DIM - 1] = 2;
    Oracle *oracle = oracle_create(&config, n);
    oracle->length = n;
    oracle_write(oracle, 1, n, k, v);
    oracle_attend(oracle, 1, 1, 1, 0, q, expected, NULL);
    oracle_release(oracle);
    return PAGED_OK;
}

// Notes the first element that differs by more than rounding does, or is NaN.
void compare_with_oracle(const float *out)
{
    difference.element = -1;
    for (int i = HEAD_DIM - 1; i >= 0; i--) {
        float by = fabsf(out[i] - expected[i]);
        if (by <= 1e-6f) continue;
        difference.element = i;
        difference.by = by;
        difference.is = out[i];
        difference.should = expected[i];
    }
}

// What a query sees of each of n tokens, whose keys are in k: softmax of the scores.
static void weigh(int n, int kv_head, const float *query)
{
    const int dim = config.head_dim;
    float max = -INFINITY, sum = 0;
    for (int t = 0; t < n; t++) {
        const float *key = k + (t * config.num_kv_heads + kv_head) * dim;
        arrput(weights, product(query, key, dim) / sqrtf((float)dim));
        max = fmaxf(max, weights[t]);
    }
    for (int t = 0; t < n; t++) sum += weights[t] = expf(weights[t] - max);
    for (int t = 0; t < n; t++) weights[t] /= sum;
}

// What attention of the newest token in layer 1 sees of each token: the oracle's, which no mistake
// of an engine reaches. attend() is compared with it.
int attention(Seq *seq, const char *text)
{
    float out[HEAD_DIM];
    int error = ask(seq, text);
    if (error) return error;
    must(attend(pool, ATTEND_PAGED, 1, 1, 0, q, out, NULL), "attend");
    compare_with_oracle(out);
    weigh(seq->length, 0, q);
    return PAGED_OK;
}

// Prints the letter in a slot, as its K in layer 0 says; null: there is none, or a word.
static void print_slot(int block, int slot)
{
    const float *key = (float *)pool->k + (block * config.block_size + slot) * HEAD_DIM;
    printf(slot ? "," : "");
    if (!has_model && *key > 0 && *key < '~' / 128.0f)
        print_quoted((char[]){(char)(*key * 128), '\0'});
    else
        printf("null");
}

// Prints a call and, as JSON, the code it returned and the state after it.
void report(const char *call, int code)
{
    const Block *blocks = pool->blocks;
    const char *wrong = pool_check(pool);
    printf("%s\n{\"code\":%d,\"wrong\":\"%s\",\"copies\":%d,\"free\":[", call, code,
           wrong ? wrong : "", (int)pool->num_copies);
    for (int i = 0, block = blocks[config.num_blocks].next; i < pool->num_free;
         i++, block = blocks[block].next)
        printf("%s%d", i ? "," : "", block);
    for (int i = 0; i < config.num_blocks; i++) {
        printf("%s{\"ref_count\":%d,\"serial\":%d,\"slots\":[", i ? "," : "],\"blocks\":[",
               blocks[i].ref_count, (int)blocks[i].serial);
        for (int slot = 0; slot < config.block_size; slot++) print_slot(i, slot);
        printf("]}");
    }
    printf("],\"seqs\":{");
    for (int i = 0, count = 0; i < SEQS; i++) {
        const Seq *seq = *seqs[i];
        if (!seq) continue;
        printf("%s\"%c\":{\"length\":%d,\"table\":[", count++ ? "," : "", 'a' + i, seq->length);
        for (int j = 0; j < (int)arrlen(seq->block_table); j++)
            printf("%s%d", j ? "," : "", seq->block_table[j]);
        printf("]}");
    }
    printf("}");
    if (has_model) print_tales();
    if (difference.element >= 0)  // as texts: JSON has no NaN
        printf(",\"differs\":{\"element\":%d,\"by\":\"%.3g\",\"is\":\"%.3f\",\"should\":\"%.3f\"}",
               difference.element, difference.by, difference.is, difference.should);
    printf(",\"weights\":[");
    for (int i = 0; i < arrlen(weights); i++)  // of a wrong engine, they may be no numbers
        printf("%s%.3f", i ? "," : "", fminf(fmaxf(weights[i], 0), 1));
    arrsetlen(weights, 0);
    printf("]}\n");
    fflush(stdout);
}
