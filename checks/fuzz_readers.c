// fuzz_readers: files from elsewhere, given to the programs that read them. A reader may refuse a
// file, with a message and exit(); it must not crash, nor ask for much more memory than the file is
// long. What it accepts is used: text is encoded, a step of the model is run.
//
// READER says which: MODEL and TOKENIZER are files of ../examples/llama.c, TRACE of replay.c.
// An input is the file; for a tokenizer, the size of the vocabulary, the length of a text and that
// text come before it.
//
//     cc -O1 -g -DREADER=MODEL checks/fuzz_readers.c -o fuzz_model -lm && ./fuzz_model FILE...

#define _GNU_SOURCE  // fmemopen(), and what the programs need

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define MODEL 1
#define TOKENIZER 2
#define TRACE 3

// ---- what the programs meet instead of the system ---------------------------------------------

static const uint8_t *input;
static size_t input_size;
static jmp_buf reader_left;
static FILE *nowhere;  // for messages

typedef struct Allocation {
    void *memory;
    size_t size;
} Allocation;

static Allocation *allocations;  // all that is allocated: [num_live]
static size_t num_live, max_live, live_bytes;

static void forget(size_t i)
{
    live_bytes -= allocations[i].size;
    allocations[i] = allocations[--num_live];
}

static void *fuzz_realloc(void *old, size_t size)
{
    for (size_t i = num_live; old && i-- > 0;)
        if (allocations[i].memory == old) {
            forget(i);
            break;
        }
    live_bytes += size;
    if (live_bytes > (1 << 20) + 64 * input_size)
        fuzz_fail(__FILE__, __LINE__, "more memory than 64 times the size of the file");
    if (num_live == max_live) {
        max_live = 2 * max_live + 64;
        allocations = (Allocation *)realloc(allocations, max_live * sizeof *allocations);
    }
    void *memory = realloc(old, size ? size : 1);
    CHECK(memory != NULL && allocations != NULL);
    allocations[num_live].memory = memory;
    allocations[num_live++].size = size;
    return memory;
}

static void *fuzz_calloc(size_t count, size_t size)
{
    CHECK(size == 0 || count <= SIZE_MAX / size);
    return memset(fuzz_realloc(NULL, count * size), 0, count * size);
}

static void fuzz_free(void *memory)
{
    for (size_t i = num_live; memory && i-- > 0;)
        if (allocations[i].memory == memory) {
            forget(i);
            break;
        }
    free(memory);
}

__attribute__((unused)) static ssize_t fuzz_getline(char **line, size_t *room, FILE *in)
{
    size_t size = 0;
    for (int c = 0; c != '\n' && (c = getc(in)) != EOF;) {
        if (*room < size + 2) *room = 2 * size + 100;
        *line = (char *)fuzz_realloc(*line, *room);
        (*line)[size++] = (char)c;
        (*line)[size] = 0;
    }
    return size > 0 ? (ssize_t)size : -1;
}

static FILE *fuzz_open(const char *mode)
{
    return input_size > 0 ? fmemopen((void *)input, input_size, mode) : fopen("/dev/null", mode);
}

__attribute__((noreturn)) static void fuzz_exit(int status)
{
    CHECK(status == 1);  // 2 would be a wrong option
    longjmp(reader_left, 1);
}

#undef stderr
#define stderr nowhere
#define malloc(size) fuzz_realloc(NULL, size)
#define calloc(count, size) fuzz_calloc(count, size)
#define realloc(old, size) fuzz_realloc(old, size)
#define free(memory) fuzz_free(memory)
#define fopen(path, mode) ((void)(path), fuzz_open(mode))
#define getline(line, room, in) fuzz_getline(line, room, in)
#define exit(status) fuzz_exit(status)

#define PAGED_NO_MAIN
#define Entry EngineEntry  // a name that the engine and llama.c both have
#include "../paged.cu.c"
#undef Entry
#undef STB_DS_IMPLEMENTATION
#define main program_main
#if READER == TRACE
#include "../examples/replay.c"
#else
#include "../examples/llama.c"
#endif
#undef main

// ---- one input --------------------------------------------------------------------------------

#if READER == MODEL
static void run_model(void)
{
    static Model model;
    static Workspace workspace;
    memset(&model, 0, sizeof model);
    memset(&workspace, 0, sizeof workspace);
    read_model(&model, "the input");
    if (model.dim > 1024 || model.vocab_size > 4096 || model.hidden_dim > 4096) return;

    PoolConfig config = {model.num_layers, model.num_kv_heads, model.head_dim, 2, 2, 0, 1, 0};
    Pool *pool = NULL;
    Seq *seq = NULL;
    must(pool_create(&config, &pool), "pool");
    must(seq_create(pool, &seq), "sequence");
    must(seq_append(seq, 3), "append");
    ModelInput input;
    memset(&input, 0, sizeof input);
    arrput(input.seqs, seq);
    arrput(input.num_tokens, 3);
    for (int i = 0; i < 3; i++) {
        arrput(input.tokens, i % model.vocab_size);
        arrput(input.positions, i);
    }
    arrput(input.wanted, 2);
    const float *logits = forward(&model, pool, ATTEND_FAST, &input, &workspace);
    uint64_t rng = 1;
    int token = sample(logits, model.vocab_size, 1, &rng);
    CHECK(token >= 0 && token < model.vocab_size);
    pool_destroy(pool);
}
#elif READER == TOKENIZER
static void run_tokenizer(void)
{
    static Tokenizer tokenizer;
    static char text[256];
    memset(&tokenizer, 0, sizeof tokenizer);
    if (input_size < 2) return;
    int vocab_size = 2 + input[0], length = input[1] % 64;
    input += 2;
    input_size -= 2;
    if ((size_t)length > input_size) length = (int)input_size;
    memcpy(text, input, (size_t)length);
    text[length] = 0;
    input += length;
    input_size -= (size_t)length;
    read_tokenizer(&tokenizer, "the input", vocab_size);
    int *tokens = encode(&tokenizer, text);
    for (int i = 0; i < arrlen(tokens); i++) {
        CHECK(tokens[i] >= 0 && tokens[i] < vocab_size);
        if (i > 0) print_token(&tokenizer, tokens[i - 1], tokens[i]);
    }
}
#else
static void run_trace(void)
{
    static Trace trace;
    memset(&trace, 0, sizeof trace);
    read_trace(&trace, "the input", 1000, 0);
    for (int i = 0; i < arrlen(trace.requests); i++) {
        const Request *r = &trace.requests[i];
        CHECK(r->context >= 1 && r->context <= MAX_TOKENS);
        CHECK(r->generated >= 0 && r->context + r->generated <= trace.longest);
        CHECK(i == 0 || r->arrival >= r[-1].arrival);
    }
}
#endif

#undef fopen
#undef free
#undef exit

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!nowhere) nowhere = fopen("/dev/null", "w");
    CHECK(nowhere != NULL);
    input = data;
    input_size = size;
    if (setjmp(reader_left) == 0) {
#if READER == MODEL
        run_model();
#elif READER == TOKENIZER
        run_tokenizer();
#else
        run_trace();
#endif
    }
    while (num_live > 0) free(allocations[--num_live].memory);
    live_bytes = 0;
    return 0;
}
