// fuzz_readers: files from elsewhere, given to the programs that read them. A reader may refuse a
// file, with a message and exit(); it must not crash, nor ask for much more memory than the file is
// long. What it accepts is used: text is encoded, a step of the model is run.
//
// READER says which file of ../examples/llama.c: MODEL or TOKENIZER. An input is the file. The
// inputs are drawn here: a small file that is right, then spoiled.
//
//     cc -O1 -g -DREADER=MODEL checks/fuzz_readers.c -o fuzz_model -lm
//     ./fuzz_model           all inputs that are drawn
//     ./fuzz_model FOLDER    writes them there, for libFuzzer to begin with

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
static int num_used;   // inputs that were accepted

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

// ---- inputs -----------------------------------------------------------------------------------

static uint8_t bytes[1 << 16];  // of the input that is drawn
static size_t size;
static size_t counts[100];  // where an int32 stands that says how much follows
static int num_counts;
static uint64_t state;

static int between(int low, int high)  // both included
{
    return low + (int)(random_bits(&state) % (uint64_t)(high - low + 1));
}

static void put(const void *from, size_t count)
{
    memcpy(bytes + size, from, count);
    size += count;
}

static void put_float(float value) { put(&value, sizeof value); }
static void put_count(int32_t value)
{
    counts[num_counts++] = size;
    put(&value, sizeof value);
}

#if READER == MODEL
static void draw_file(void)
{
    int kv_heads = between(1, 3);  // may be more than the heads, or not divide them
    int heads = between(1, 3);
    int head_dim = between(1, 4);  // should be even
    int dim = heads * head_dim;
    int hidden = between(1, 6);
    int layers = between(1, 2);
    int vocab = between(1, 9);
    int context = between(1, 8);
    int separate = between(0, 1);
    const int header[] = {dim, hidden, layers, heads, kv_heads, vocab, context};
    for (int i = 0; i < 7; i++) put_count(i == 5 && separate ? -vocab : header[i]);
    int per_layer = 2 * dim + 2 * dim * dim + 2 * dim * kv_heads * head_dim + 3 * dim * hidden;
    int floats = (1 + separate) * vocab * dim + layers * per_layer + dim + context * head_dim;
    for (int i = 0; i < floats; i++) put_float((float)between(-1000, 1000) / 500);
}

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
    int token = sample(compute(&s), m->vocab_size, 1, &rng);
    CHECK(token >= 0 && token < m->vocab_size);
    tensor_free(s.pool, s.work.tensor);
    pool_destroy(s.pool);
}
#else
enum { VOCAB = 20 };

static void draw_file(void)
{
    static const char *const texts[] = {"<unk>",    "\n<s>\n",  " ",   "a",      "b",
                                        "ab",       "\xc3\xab", "bab", "<0x0A>", " ab",
                                        "\xe6\x97", "ab",       "",    "aba"};
    put_count(6);
    for (int token = 0; token < VOCAB; token++) {
        const char *text = texts[between(0, 13)];
        put_float((float)between(-20, 20));
        put_count((int)strlen(text));
        put(text, strlen(text));
    }
}

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

// Spoils the file in one of several ways; one in six stays as it is.
static void spoil(void)
{
    static const int extremes[] = {0, -1, 1, 3, 64, 1 << 16, 1 << 20, INT_MAX, INT_MIN, -(1 << 20)};
    const int way = between(0, 5);
    if (way == 0) size = (size_t)between(0, (int)size);
    if (way == 1) put("more than it should have", (size_t)between(1, 24));
    for (int i = 0; way == 2 && i < num_counts; i++) {  // products that overflow
        int power = 1 << between(0, 30);
        memcpy(bytes + counts[i], &power, sizeof power);
    }
    for (int times = between(1, 3); times > 0 && size > 0; times--) {
        uint8_t *byte = &bytes[between(0, (int)size - 1)];
        if (way == 3) *byte ^= (uint8_t)(1 << between(0, 7));
        if (way == 4 && num_counts > 0)
            memcpy(bytes + counts[between(0, num_counts - 1)], &extremes[between(0, 9)], 4);
    }
}

// ---- one input --------------------------------------------------------------------------------

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count)
{
    if (!nowhere) nowhere = fopen("/dev/null", "w");
    CHECK(nowhere != NULL);
    input = data;
    input_size = count;
    if (setjmp(reader_left) == 0) {
        use();
        num_used++;
    }
    while (num_live > 0) fuzz_free(live[num_live - 1]);
    fclose(file_read);
    return 0;
}

#ifndef LIBFUZZER
int main(int argc, char **argv)
{
    enum { INPUTS = 1000 };
    for (int i = 0; i < INPUTS; i++) {
        state = (uint64_t)i;
        size = 0;
        num_counts = 0;
        draw_file();
        spoil();
        if (argc > 1) {
            char path[500];
            snprintf(path, sizeof path, "%s/%d", argv[1], i);
            FILE *file = fopen(path, "wb");
            CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
            continue;
        }
        uint8_t *exact = (uint8_t *)(malloc)(size + 1);  // so that a sanitizer sees its end
        CHECK(exact != NULL);
        LLVMFuzzerTestOneInput(memcpy(exact, bytes, size), size);
        free(exact);
    }
    printf("\n%d inputs, %d of them accepted\n", INPUTS, num_used);
    CHECK(argc > 1 || (num_used > 50 && num_used < INPUTS - 50));
    return 0;
}
#endif
