// fuzz_readers: what examples/llama.c does with a file, for libFuzzer to try files on. A reader may
// refuse a file, with a message and exit(); it must not crash, nor ask for much more memory than
// the file is long. What it accepts is used: text is encoded, a step of the model is run.
//
// READER says which file: MODEL or TOKENIZER. An input is the file. checks/fuzz.sh begins with a
// small one that is right.
//
//     clang -fsanitize=fuzzer,address,undefined -DREADER=MODEL checks/fuzz_readers.c -lm

#define _GNU_SOURCE 1  // fmemopen(), and what the programs need

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL 1
#define TOKENIZER 2

// ---- what the programs meet instead of the system ---------------------------------------------

static const uint8_t *input;
static size_t input_size;
static jmp_buf reader_left;
static FILE *nowhere;  // for messages

#define CHECK(x) ((x) ? (void)0 : (puts("failed: " #x), fflush(stdout), abort()))

// All that is allocated, and what is read, so that a reader can be left in the middle.
enum { MAX_LIVE = 1 << 14 };
static void *live[MAX_LIVE];
static int num_live;
static FILE *file_read;

static void *fuzz_realloc(void *old, size_t size)
{
    int i = 0;
    while (i < num_live && live[i] != old) i++;                  // NULL stands nowhere
    CHECK(i < MAX_LIVE && size <= (1 << 20) + 64 * input_size);  // so small a file needs no more
    if (i == num_live) num_live++;
    live[i] = realloc(old, size ? size : 1);
    CHECK(live[i] != NULL);
    return live[i];
}

static void fuzz_free(void *memory)  // which may be of another allocator, or NULL
{
    int i = num_live - 1;
    while (i >= 0 && live[i] != memory) i--;
    if (i >= 0) live[i] = live[--num_live];
    free(memory);
}

static FILE *fuzz_open(const char *mode)
{
    file_read = input_size ? fmemopen((void *)input, input_size, mode) : fopen("/dev/null", mode);
    return file_read;
}

__attribute__((noreturn)) static void fuzz_exit(int status)
{
    CHECK(status == 1);  // 2 would be a wrong option
    longjmp(reader_left, 1);
}

#undef stderr
#define stderr nowhere
#define malloc(size) fuzz_realloc(NULL, size)
#define calloc(count, size) memset(fuzz_realloc(NULL, (count) * (size)), 0, (count) * (size))
#define realloc(old, size) fuzz_realloc(old, size)
#define free(memory) fuzz_free(memory)
#define fopen(path, mode) ((void)(path), fuzz_open(mode))
#define fclose(file) ((void)(file))  // closed below
#define exit(status) fuzz_exit(status)

#define PAGED_NO_MAIN
#include "../paged.cu.c"
#undef STB_DS_IMPLEMENTATION
#define main program_main
#include "../examples/llama.c"
#undef main
#undef fopen
#undef fclose
#undef free
#undef exit

// ---- what is done with a file -----------------------------------------------------------------

#if READER == MODEL
static void use(void)  // a step of one sequence with three tokens
{
    Server s = {.options = {.chunk = 3, .num_blocks = 2}};
    const Model *m = &s.model;
    Seq *seq = NULL;
    int *tokens = NULL;
    uint64_t rng = 1;
    read_model(&s.model, open_file("the input"));
    if (m->dim > 1024 || m->vocab_size > 4096 || m->hidden_dim > 4096) return;
    PoolConfig config = {m->num_layers, m->num_kv_heads, m->head_dim, 2, 2, 0, 1, 0};
    must(pool_create(&config, &s.pool), "pool");
    must(seq_create(s.pool, &seq), "sequence");
    for (int i = 0; i < 3; i++) arrput(tokens, i % m->vocab_size);
    must(add_rows(&s, seq, tokens, NULL), "append");
    // Not compute(), which ends the program if logits are not numbers.
    const float *logits = forward(m, s.pool, ATTEND_FAST, &s.input, &s.work);
    int token = sample(logits, m->vocab_size, 1, &rng);
    CHECK(token >= 0 && token < m->vocab_size);
    tensor_free(s.pool, s.work.tensor);
    pool_destroy(s.pool);
}
#else
enum { VOCAB = 20 };

static void use(void)  // for one text that is always the same, and for the end of the file
{
    Tokenizer tokenizer = {0};
    char text[100] = "abab \xc3\xab\xe6\x97\xa5 baabbab";
    read_tokenizer(&tokenizer, open_file("the input"), VOCAB);
    for (size_t end = strlen(text), n = 0; n < 60 && n < input_size; n++)
        text[end + n] = (char)input[input_size - 1 - n];
    int *tokens = encode(&tokenizer, text);
    for (int i = 0; i < arrlen(tokens); i++) {
        CHECK(tokens[i] >= 0 && tokens[i] < VOCAB);
        if (i > 0) fputs(token_text(&tokenizer, tokens[i - 1], tokens[i]), stdout);
    }
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count)
{
    if (!nowhere) nowhere = fopen("/dev/null", "w");
    CHECK(nowhere != NULL);
    input = data;
    input_size = count;
    if (setjmp(reader_left) == 0) use();
    while (num_live > 0) fuzz_free(live[num_live - 1]);
    fclose(file_read);
    return 0;
}
