// play.c: what docs/play.html adds to an engine. The page makes calls, and draws what report()
// prints. It is also the stand-in for a GPU: standIn() in play_standin.js. KERNEL is the engine
// after play_kernel.awk: a kernel says now and then where it is, and what m, l and o are, if it has
// such variables.

#include <limits.h>
#include <math.h>
#include <string.h>

// What a kernel that lacks one of these names sees instead.
static const float m = NAN, l = NAN;
static float o[] = {NAN}, gpu_none[] = {NAN};

typedef struct Job Job;
static void (*gpu_kernel)(Job);
static const Job *gpu_job;
static int gpu_fault;  // 1: no thread waits at its first barrier; 2: the last one leaves early
#ifdef __wasm__
#define PAGE(name) __attribute__((import_module("gpu"), import_name(#name)))
PAGE(launch) void page_launch(unsigned x, unsigned y, unsigned z, int fault);
PAGE(meet)
float page_meet(int line, int bits, unsigned mask, float value, float m, float l, float o);
#define __shared__ static
#define LAUNCH(kernel, x, y, z, job) \
    (gpu_kernel = kernel, gpu_job = &(job), page_launch(x, y, z, gpu_fault))
enum { BARRIER = INT_MAX, WARP_BARRIER = INT_MIN };  // in the place of the bits of a shuffle
#define __syncthreads() (void)page_meet(__LINE__, BARRIER, ~0u, 0, M_L_O)
#define __syncwarp() (void)page_meet(__LINE__, WARP_BARRIER, ~0u, 0, M_L_O)
#define __shfl_xor_sync(mask, value, bits) page_meet(__LINE__, bits, mask, value, M_L_O)
#else  // to compare, a native program has the engine's own stand-in
#define PAGE(name)
#endif
PAGE(see) void page_see(unsigned thread, int line, float m, float l, float o);
PAGE(found) size_t page_found(size_t at);  // returns `at`
PAGE(share) void page_share(const char *name, const void *array, size_t bytes);

#define SHARED(array) page_share(#array, array, sizeof array)
#define FOUND(job, begin, position, kv_head) \
    (SEE, page_found(token_offset(job, begin, position, kv_head)))
#define NUMBER(x) _Generic((x), float : (x), default : NAN)
#define M_L_O NUMBER(m), NUMBER(l), _Generic((o), float * : (o), default : gpu_none)[0]
#define SEE page_see(threadIdx.x, __LINE__, M_L_O)

#ifndef KERNEL
#define KERNEL "paged.cu.c"
#endif
#include KERNEL
#undef STB_DS_IMPLEMENTATION  // the engine has it
#include "util.h"

// ---- letters -----------------------------------------------------------------------------------

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

// K and V of the sequence have room in k and v.
static int fits(const Seq *seq)
{
    return seq && seq->length >= 0 &&
           seq->length <= MAX_TOKENS * HEAD_DIM / (config.num_kv_heads * config.head_dim);
}

#include "play_tales.h"  // the tales

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

// Notes the first element that differs from the oracle's by more than rounding does, or is NaN.
static void compare_with_oracle(const float *out)
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

// The newest token attends, in layer 1: on the CPU, and by the kernel, of which the page sees what
// each lane does. The weights are the oracle's, which no mistake of an engine reaches.
int lanes(Seq *seq, const char *text, int fault)
{
    static float out[HEAD_DIM];
    int error = ask(seq, text);
    if (error) return error;
    weigh(seq->length, 0, q);
    must(attend(pool, ATTEND_PAGED, 1, 1, 0, q, out, NULL), "attend");
    compare_with_oracle(out);
    Pool standin = *pool;  // as it is planned now; its memory is that of the CPU
    standin.config.device = PAGED_STANDIN;
    page_share("out", out, sizeof out);
    gpu_fault = fault;
    must(attend(&standin, ATTEND_PAGED, 1, 1, 0, q, out, NULL), "attend");
    return PAGED_OK;
}

void gpu_lane(unsigned x, unsigned y, unsigned z, unsigned thread)
{
    blockIdx = (struct Index){x, y, z};
    threadIdx.x = thread;
    gpu_kernel(*gpu_job);
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

// ---- your own GPU: the cache that it reads, and what the CPU computes of it ---------------------

static Pool *cache;
static float *cache_q, *cache_expected;  // of each sequence's newest token; arrays of stb_ds

static float *random_numbers(int count, float limit)
{
    float *numbers = NULL;
    arrsetlen(numbers, count);
    for (int i = 0; i < count; i++) numbers[i] = limit * (2.0f * rand() / (float)RAND_MAX - 1);
    return numbers;
}

// Plans the last n tokens of each sequence.
static void plan_each(Seq **all, int num_seqs, int n)
{
    int counts[MAX_TOKENS];
    for (int i = 0; i < num_seqs; i++) counts[i] = n;
    must(pool_plan(cache, &(Batch){num_seqs, all, counts}), "pool_plan");
}

// The sequences take a block in random turns, so each has blocks of the others between its own.
// Then their newest tokens attend.
void cache_create(int num_seqs, int length, int num_kv_heads, int num_q_heads, int head_dim,
                  int block_size, int dtype)
{
    int num_blocks = num_seqs * ((length + block_size - 1) / block_size);
    PoolConfig shape = {1, num_kv_heads, head_dim, block_size, num_blocks, dtype, 0, PAGED_CPU};
    Seq *all[MAX_TOKENS];
    must(pool_create(&shape, &cache), "pool_create");
    for (int i = 0; i < num_seqs; i++) must(seq_create(cache, &all[i]), "seq_create");
    while (cache->num_free > 0) {
        Seq *seq = all[rand() % num_seqs];
        int left = length - seq->length;
        must(seq_append(seq, left < block_size ? left : block_size), "seq_append");
    }
    const float *numbers = random_numbers(num_seqs * length * num_kv_heads * head_dim + 1, 1);
    plan_each(all, num_seqs, length);
    must(pool_write(cache, 0, numbers, numbers + 1), "pool_write");  // V is K, an element later
    plan_each(all, num_seqs, 1);
    int count = num_seqs * num_q_heads * head_dim;
    cache_q = random_numbers(count, 6);
    arrsetlen(cache_expected, count);
    must(attend(cache, ATTEND_PAGED, 0, num_q_heads, 0, cache_q, cache_expected, NULL), "attend");
}

// What the page takes from here, piece by piece.
const void *cache_part(int i)
{
    const Job *job = &cache->plan->job;
    const void *parts[] = {cache_expected, cache->k,     cache->v,    &cache->config,
                           job->offsets,   job->queries, job->tables, cache_q};
    return parts[i];
}
