// play.c: what docs/play.html adds to an engine. The page makes calls, and draws what report()
// prints. Here is a side of its stand-in for a GPU, too: KERNEL, an engine after play_kernel.awk,
// says where its kernels are, and what m, l and o are, if they have such variables.

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
PAGE(stop) void page_stop(void);
#define LAUNCH(kernel, x, y, z, job) \
    (gpu_kernel = kernel, gpu_job = &(job), page_launch(x, y, z, gpu_fault))
enum { BARRIER = INT_MAX, WARP_BARRIER = INT_MIN };  // in the place of the bits of a shuffle
#define __syncthreads() (void)page_meet(__LINE__, BARRIER, ~0u, 0, M_L_O)
#define __syncwarp() (void)page_meet(__LINE__, WARP_BARRIER, ~0u, 0, M_L_O)
#define __shfl_xor_sync(mask, value, bits) page_meet(__LINE__, bits, mask, value, M_L_O)

// What a call may spend. At each branch, the compiler calls this (-fsanitize-coverage). Without it,
// an endless loop would freeze the page.
#define UNWATCHED __attribute__((no_sanitize("coverage")))
unsigned gpu_fuel = UINT_MAX;
UNWATCHED void __sanitizer_cov_trace_pc(void)
{
    if (gpu_fuel == 0) page_stop();
    gpu_fuel--;
}
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

#include KERNEL
#ifdef __wasm__
#pragma clang attribute push(UNWATCHED, apply_to = function)
#endif
#undef STB_DS_IMPLEMENTATION  // the engine has it
#include "util.h"

// ---- what calls are made for --------------------------------------------------------------------

enum { LAYERS = 2, HEAD_DIM = 16, MAX_TOKENS = 1024, SEQS = 6 };
static PoolConfig config;
float k[MAX_TOKENS * HEAD_DIM], v[MAX_TOKENS * HEAD_DIM];  // [tokens][kv_heads][head_dim]
Pool *pool;
Seq *a, *b, *c, *d, *e, *f;
Seq **const seqs[SEQS] = {&a, &b, &c, &d, &e, &f};
static int has_model;  // the pool is that of the tales

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

// ---- the race: six tales are requests of llama.c; each has the name of its sequence -------------

#define LLAMA_NO_MAIN
#include "llama.c"

static Server server;

static void read_files(File checkpoint, File tokens)
{
    read_model(&server.model, checkpoint);
    read_tokenizer(&server.tokenizer, tokens, server.model.vocab_size);
}

// The bytes of the files, for the page, which has no files.
void load(char *checkpoint, int size, char *tokens, int tokens_size)
{
    read_files((File){"tales.bin", fmemopen(checkpoint, size, "rb")},
               (File){"tales-tokenizer.bin", fmemopen(tokens, tokens_size, "rb")});
}

// An empty pool in the shape of the model; six tales wait.
int model(int block_size, int num_blocks)
{
    if (server.model.dim == 0)
        read_files(open_file("examples/tales.bin"), open_file("examples/tales-tokenizer.bin"));
    const Model *m = &server.model;
    // No poison: what a wrong engine reads is words, and it mixes them up.
    PoolConfig shape = {m->num_layers, m->num_kv_heads, m->head_dim, block_size,
                        num_blocks,    PAGED_F32,       0,           PAGED_CPU};
    int error = new_pool(shape, 1);
    if (error) return error;
    Options options = {.checkpoint = "tales.bin",
                       .plain = 1,
                       .block_size = block_size,
                       .num_blocks = num_blocks,
                       .chunk = INT_MAX,
                       .steps = m->seq_len};
    server = (Server){
        .options = options, .model = server.model, .tokenizer = server.tokenizer, .pool = pool};
    for (int i = 0; i < SEQS; i++) {
        Request tale = {.id = i, .given = 1, .rng = i, .temperature = i ? 0.7f : 0};
        arrput(tale.tokens, BOS);
        arrput(server.requests, tale);
    }
    for (int i = 0; i < SEQS; i++) arrput(server.waiting, &server.requests[i]);
    return PAGED_OK;
}

// A step: one more token of each tale that has room.
int tell(void)
{
    schedule(&server);
    if (arrlen(server.input.tokens) > 0) take_tokens(&server, compute(&server));
    for (int i = 0; i < SEQS; i++) *seqs[i] = server.requests[i].seq;
    return PAGED_OK;
}

static void print_inside(const char *text)  // a JSON string, without its quotes
{
    for (const char *c = text; *c; c++)
        printf(*c < ' ' ? "\\u%04x" : strchr("\"\\", *c) ? "\\%c" : "%c", *c);
}

static void print_tales(void)
{
    printf(",\"steps\":%ld,\"preemptions\":%ld,\"tales\":{", server.num_steps,
           server.num_preemptions);
    for (int i = 0; i < SEQS; i++) {
        const Request *r = &server.requests[i];
        const char *state = r->ended ? "ended" : r->seq ? "running" : "waiting";
        printf("%s\"%c\":{\"state\":\"%s\",\"text\":\"", i ? "," : "", 'a' + i, state);
        for (int t = 1; t < arrlen(r->tokens); t++)
            print_inside(token_text(&server.tokenizer, r->tokens[t - 1], r->tokens[t]));
        printf("\"}");
    }
    printf("}");
}

// ---- letters: a made-up model -------------------------------------------------------------------

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
    if (!seq || seq->length < 0 || seq->length > (int)strlen(text)) return PAGED_BAD_ARGUMENT;
    int n = seq->length - seq->num_computed_tokens;
    int error = pool_plan(pool, &(Batch){1, &seq, &n});
    make_keys(text, seq->num_computed_tokens, seq->length);
    for (int layer = 0; layer < LAYERS && !error; layer++) error = pool_write(pool, layer, k, v);
    return error;
}

float q[HEAD_DIM], attended[HEAD_DIM];

// The newest token attends, in layer 1: by attend() on the CPU, and by the kernel, of which the
// page sees what each lane does. The query matches the keys of the same letter best, and near ones
// better than far ones.
int lanes(Seq *seq, const char *text, int fault)
{
    static float out[HEAD_DIM];
    if (!seq || seq->length != (int)strlen(text)) return PAGED_BAD_ARGUMENT;
    int n = seq->length;
    make_keys(text, 0, n);
    for (int i = 1; i < HEAD_DIM; i++) q[i] = 2 * k[(n - 1) * HEAD_DIM + i];
    q[HEAD_DIM - 1] = 2;
    must(pool_plan(pool, &(Batch){1, &seq, &(int){1}}), "pool_plan");
    must(attend(pool, ATTEND_PAGED, 1, 1, 0, q, attended, NULL), "attend");
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
    int has_letter = !has_model && *key > 0 && *key < '~' / 128.0f;
    printf("%s%s", slot ? "," : "", has_letter ? "\"" : "null");
    if (!has_letter) return;
    print_inside((char[]){(char)(*key * 128), '\0'});
    putchar('"');
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
    printf("}\n");
    fflush(stdout);
}

#ifdef __wasm__
#pragma clang attribute pop
#endif
