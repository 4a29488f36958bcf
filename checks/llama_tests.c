// llama_tests.c: what examples/llama.c promises, shown by starting it.
//
//     llama_tests            all tests, of ./llama or of the program that LLAMA names
//     llama_tests NAME...    these tests
//     llama_tests --list     their names
//     llama_tests --seed N   other random numbers (the seed of a run is printed)
//     llama_tests --quick    random draws cut to a tenth
//
// The promise is that no way to serve a request changes a byte of its text. Most tests write a
// small checkpoint with random weights into a temporary folder. Its text is nonsense, but the same
// nonsense however it is served. The real weights are looked for in the folder that MODELS names,
// otherwise in ../shared/models; without them those tests are skipped.
//
// A failing check says where it stands, what the program was given, and what it wrote to standard
// error; it ends its test, and the others go on.
//
//     cc -O2 checks/llama_tests.c -o build/llama_tests && build/llama_tests

#define _GNU_SOURCE

#include <glob.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- checks -----------------------------------------------------------------------------------

enum { PASSED, FAILED, SKIPPED };

static jmp_buf test_end;             // where a failing check goes
static char command_line[4000];      // of the last program that was started
static const char *last_error = "";  // what it wrote to standard error
static uint64_t seed = 1;
static uint64_t state;
static int quick;

__attribute__((noreturn, format(printf, 3, 4))) static void fail(int line, const char *what,
                                                                 const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("\n%s:%d: %s: ", __FILE__, line, what);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    if (command_line[0]) printf("  the last command:\n    %s\n", command_line);
    if (*last_error) printf("  its standard error:\n%s", last_error);
    longjmp(test_end, FAILED);
}

__attribute__((noreturn)) static void skip(const char *reason)
{
    printf("SKIPPED: %s\n", reason);
    longjmp(test_end, SKIPPED);
}

static void check_equal(int line, const char *what, long long actual, long long expected)
{
    if (actual != expected) fail(line, what, "expected %lld, got %lld", expected, actual);
}

static void check_text(int line, const char *what, const char *actual, const char *expected)
{
    size_t same = 0;
    while (actual[same] && actual[same] == expected[same]) same++;
    if (actual[same] == expected[same]) return;
    fail(line, what, "byte %zu differs\n  expected: \"%s\"\n  got:      \"%s\"", same, expected,
         actual);
}

static void check_has(int line, const char *what, const char *actual, const char *part, int has)
{
    if ((strstr(actual, part) != NULL) == has) return;
    fail(line, what, "expected it %s \"%s\", got \"%s\"", has ? "to have" : "without", part,
         actual);
}

#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x, "expected true, got false"))
#define CHECK_EQ(actual, expected) check_equal(__LINE__, #actual, actual, expected)
#define CHECK_TEXT(actual, expected) check_text(__LINE__, #actual, actual, expected)
#define CHECK_HAS(actual, part) check_has(__LINE__, #actual, actual, part, 1)
#define CHECK_LACKS(actual, part) check_has(__LINE__, #actual, actual, part, 0)

// ---- random numbers, memory, texts ------------------------------------------------------------

static uint64_t random_bits(void)  // splitmix64, Steele et al. 2014
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int between(int low, int high)  // both included
{
    return low + (int)(random_bits() % (uint64_t)(high - low + 1));
}

static float random_float(void)  // in [-1, 1)
{
    return (float)(int64_t)random_bits() * 0x1p-63f;
}

typedef struct Allocation {
    struct Allocation *next;
    char bytes[];
} Allocation;

static Allocation *allocations;  // freed after the test

static void *allocate(size_t size)  // zeros, and one more, so that a text always ends
{
    Allocation *a = calloc(1, sizeof *a + size + 1);
    if (!a) fail(__LINE__, "calloc", "no memory for %zu bytes", size);
    a->next = allocations;
    allocations = a;
    return a->bytes;
}

__attribute__((format(printf, 1, 2))) static char *format(const char *pattern, ...)
{
    va_list arguments;
    va_start(arguments, pattern);
    int length = vsnprintf(NULL, 0, pattern, arguments);
    va_end(arguments);
    char *text = allocate((size_t)length);
    va_start(arguments, pattern);
    vsnprintf(text, (size_t)length + 1, pattern, arguments);
    va_end(arguments);
    return text;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

static int count_lines(const char *text)
{
    int lines = 0;
    for (; *text; text = next_line(text)) lines++;
    return lines;
}

// ---- files ------------------------------------------------------------------------------------

static char folder[400];  // of the temporary files of a test, removed after it

static const char *path_of(const char *name)
{
    const char *base = getenv("TMPDIR");
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "%s/llama-XXXXXX", base && *base ? base : "/tmp");
        if (!mkdtemp(folder)) {
            folder[0] = 0;
            fail(__LINE__, "mkdtemp", "cannot make a folder in $TMPDIR or /tmp");
        }
    }
    return format("%s/%s", folder, name);
}

static void remove_folder(void)
{
    char pattern[sizeof folder + 2];
    glob_t found;
    if (!folder[0]) return;
    snprintf(pattern, sizeof pattern, "%s/*", folder);
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
    globfree(&found);
    rmdir(folder);
    folder[0] = 0;
}

static char *load(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) fail(__LINE__, path, "cannot read it");
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = allocate(*size);
    CHECK_EQ(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void save(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, size, file), size);
    CHECK(fclose(file) == 0);
}

// ---- programs ---------------------------------------------------------------------------------

typedef struct Run {
    int status;
    char *out, *err;
} Run;

// Runs a program. '|' separates the words of the command, as prompts have blanks. A crash, a hang
// and a finding of a sanitizer fail the test, whatever else it expects. `output` is where its
// standard output goes; it is read back from there.
static Run run_into(const char *output, const char *command)
{
    char *words = format("%s", command);
    char *argv[200];
    int argc = 0;
    int status = 0;
    size_t size;
    for (char *word = words; word; argc++) {
        CHECK(argc < 198);
        argv[argc] = word;
        word = strchr(word, '|');
        if (word) *word++ = 0;
    }
    argv[argc] = NULL;
    snprintf(command_line, sizeof command_line, "%s", command);
    last_error = "";
    const char *err = path_of("err");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        setenv("OMP_WAIT_POLICY", "passive", 0);  // threads that spin starve a busy machine
        if (freopen("/dev/null", "rb", stdin) && freopen(output, "wb", stdout) &&
            freopen(err, "wb", stderr))
            execv(argv[0], argv);
        _exit(127);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    Run run = {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
    last_error = run.err = load(err, &size);
    if (run.status >= 126 || strstr(run.err, "Sanitizer") || strstr(run.err, "runtime error"))
        fail(__LINE__, "the program", "exit status %d", run.status);
    run.out = strcmp(output, "/dev/full") == 0 ? "" : load(output, &size);
    return run;
}

static const char *find_llama(void)
{
    const char *path = getenv("LLAMA") ? getenv("LLAMA") : "./llama";
    if (access(path, X_OK) != 0) skip(format("there is no program %s; LLAMA names another", path));
    return path;
}

static Run llama_into(const char *output, const char *options)
{
    return run_into(output, format("%s|%s|%s%s%s", find_llama(), path_of("model"),
                                   path_of("tokenizer"), *options ? "|" : "", options));
}

static Run llama(const char *options) { return llama_into(path_of("out"), options); }

// The same for a run that must succeed.
static Run served(Run run)
{
    if (run.status != 0) fail(__LINE__, "the program", "exit status %d, expected 0", run.status);
    return run;
}

static char *text_of(const char *options) { return served(llama(options)).out; }

// The text of request i out of the output for several, with the newline, as it would be alone.
static char *request(const char *out, int i)
{
    const char *start = strstr(out, format("=== request %d ===\n", i));
    if (!start) fail(__LINE__, "output", "there is no request %d in\n%s", i, out);
    start = next_line(start);
    const char *end = strstr(start, format("\n=== request %d ===\n", i + 1));
    size_t size = end ? (size_t)(end + 1 - start) : strlen(start);
    return memcpy(allocate(size), start, size);
}

// The number before ` word` in the statistics: statistic(err, "preemptions").
static long statistic(const char *err, const char *word)
{
    const char *found = strstr(err, format(" %s", word));
    if (!found) fail(__LINE__, word, "it is not in the statistics");
    while (found > err && found[-1] >= '0' && found[-1] <= '9') found--;
    return atol(found);
}

// ---- a checkpoint with random weights ---------------------------------------------------------

enum { PROMPTS = 16 };

static const char *const prompts[PROMPTS] = {"",      "the",      "Once upon a time",
                                             "a",     "in there", "the thin hat",
                                             "x y z", "Zoë",      "hello hello",
                                             " ",     "10 + 10",  "that that",
                                             "an",    "then",     "he ate the hat on the heath",
                                             "Q"};

static const char *all_prompts(void)
{
    const char *options = "";
    for (int i = 0; i < PROMPTS; i++) options = format("%s|-p|%s", options, prompts[i]);
    return options;
}

static void put_int(FILE *file, int64_t value)  // int32, little-endian
{
    for (int i = 0; i < 4; i++) putc((int)(value >> 8 * i & 255), file);
}

static void put_float(FILE *file, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_int(file, bits);
}

static void put_token(FILE *file, float score, const char *text, int length)
{
    put_float(file, score);
    put_int(file, length);
    fwrite(text, 1, (size_t)length, file);
}

// <unk>, <s>, </s>, the 256 bytes, the printable characters, and merges. Returns how many.
static int make_tokenizer(void)
{
    const char *merges[] = {"th", "the", "at", "hat", " h", "in",  "an",
                            "he", "ll",  "on", "xy",  "yz", "wxy", "kll"};
    FILE *file = fopen(path_of("tokenizer"), "wb");
    CHECK(file != NULL);
    int count = 3;
    put_int(file, 7);
    put_token(file, 0, "<unk>", 5);
    put_token(file, 0, "\n<s>\n", 5);
    put_token(file, 0, "\n</s>\n", 6);
    for (int i = 0; i < 256; i++, count++) put_token(file, 0, format("<0x%02X>", i), 6);
    for (char c = ' '; c <= '~'; c++, count++) put_token(file, -100.0f - c, &c, 1);
    for (int i = 0; i < 14; i++, count++)
        put_token(file, (float)i - 500, merges[i], (int)strlen(merges[i]));
    CHECK(fclose(file) == 0);
    return count;
}

enum { CONTEXT = 96 };

// A checkpoint and its tokenizer. The control tokens have rows of 0, so they never win. With
// `separate`, vocab_size is negative and the classifier stands in the file once more.
static void make_model(int separate)
{
    enum { DIM = 32, HIDDEN = 40, LAYERS = 2, HEADS = 4, KV_HEADS = 2, KV_DIM = 16 };
    const int sizes[] = {DIM, DIM * DIM,    DIM * KV_DIM, DIM * KV_DIM, DIM * DIM,
                         DIM, DIM * HIDDEN, DIM * HIDDEN, DIM * HIDDEN};
    int vocab = make_tokenizer();
    const int header[] = {DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, separate ? -vocab : vocab, CONTEXT};
    FILE *file = fopen(path_of("model"), "wb");
    CHECK(file != NULL);
    uint64_t before = state;
    state = seed;
    float *embedding = allocate((size_t)vocab * DIM * sizeof *embedding);
    for (int i = 3 * DIM; i < vocab * DIM; i++) embedding[i] = random_float();
    for (int i = 0; i < 7; i++) put_int(file, header[i]);
    for (int i = 0; i < vocab * DIM; i++) put_float(file, embedding[i]);
    for (int part = 0; part < 9; part++)
        for (int i = 0; i < LAYERS * sizes[part]; i++) {
            float x = random_float();
            put_float(file, sizes[part] == DIM ? 1 + x / 4 : x / 2);
        }
    for (int i = 0; i < DIM; i++) put_float(file, 1);
    for (int i = 0; i < CONTEXT * DIM / HEADS; i++) put_float(file, 0);
    for (int i = 0; separate && i < vocab * DIM; i++) put_float(file, embedding[i]);
    CHECK(fclose(file) == 0);
    state = before;
}

static const char *const caches[] = {"contiguous", "gather", "paged"};
static const char *const dtypes[] = {"f32", "f16", "bf16"};

// --cache and, if the cache has a choice, --block-size.
static const char *cache_options(int cache, int block_size)
{
    if (cache == 0) return "--cache|contiguous";
    return format("--cache|%s|--block-size|%d", caches[cache], block_size);
}

// ---- the same text ----------------------------------------------------------------------------

// Any cache, block size and chunk, alone or in a batch of sixteen, with temperature (request i
// draws with seed S + i).
static void test_same_text_however_served(void)
{
    const int block_sizes[] = {1, 7, 16};
    const int chunks[] = {1, 3, 32};
    make_model(0);
    for (int mode = 0; mode < 4; mode++) {  // three dtypes, and f32 with temperature
        const char *base = format("--steps|40|--dtype|%s|--temperature|%s", dtypes[mode % 3],
                                  mode == 3 ? "0.8" : "0");
        const char *batch = format("%s|--seed|5%s", base, all_prompts());
        char *alone[PROMPTS];
        for (int i = 0; i < PROMPTS; i++)
            alone[i] = text_of(
                format("%s|--seed|%d|--cache|contiguous|--chunk|1|-p|%s", base, 5 + i, prompts[i]));
        CHECK(strcmp(alone[0], alone[1]) != 0 && strlen(alone[2]) > 20);
        for (int i = 0; i < 27; i += quick ? 5 : 1) {
            if (i % 3 == 0 && i % 9 > 0) continue;  // contiguous has no block size
            const char *how = format("%s|--chunk|%d", cache_options(i % 3, block_sizes[i / 3 % 3]),
                                     chunks[i / 9]);
            char *out = text_of(format("%s|%s", batch, how));
            for (int j = 0; j < PROMPTS; j++) CHECK_TEXT(request(out, j), alone[j]);
        }
    }
    char *text = text_of(format("--steps|40%s", all_prompts()));
    make_model(1);  // the same classifier
    CHECK_TEXT(text_of(format("--steps|40%s", all_prompts())), text);
}

// In a pool too small for all, requests wait, or are preempted and computed again; no text changes.
static void test_small_pools(void)
{
    const int pools[][2] = {{1, 40}, {1, 90}, {4, 10}, {4, 13}, {4, 30}, {7, 6}, {16, 3}, {16, 5}};
    make_model(0);
    for (int sampled = 0; sampled < 2; sampled++) {
        const char *options =
            format("--steps|40|--temperature|%s%s", sampled ? "0.8" : "0", all_prompts());
        char *expected = text_of(options);
        for (int i = 0; i < 16; i++) {
            const int *pool = pools[i / 2];
            const char *how = format("--block-size|%d|--blocks|%d|--chunk|%d|--cache|%s", pool[0],
                                     pool[1], i % 2 ? 1 : 8, caches[1 + i / 2 % 2]);
            Run run = served(llama(format("%s|%s", how, options)));
            CHECK_TEXT(run.out, expected);
            if (i / 2 == 4) CHECK(statistic(run.err, "preemptions") > 0);
        }
    }
}

// --samples N computes a prompt once. Sample j of prompt i is the text of that prompt alone with
// the seed S + N i + j: with any cache, with guesses, and when a small pool preempts some.
static void test_samples(void)
{
    const char *two[] = {"Once upon a time", "the thin hat"};
    const char *more[] = {"",
                          "|--speculate|3",
                          "|--cache|gather|--chunk|3",
                          "|--cache|contiguous",
                          "|--block-size|4|--blocks|24",
                          "|--block-size|4|--blocks|24|--speculate|4"};
    make_model(0);
    char *alone[16];
    for (int i = 0; i < 16; i++)
        alone[i] =
            text_of(format("--steps|60|--temperature|0.8|--seed|%d|-p|%s", 7 + i, two[i / 8]));
    CHECK(strcmp(alone[0], alone[1]) != 0);
    for (int m = 0; m < 6; m++) {
        const char *options =
            format("--samples|8|--steps|60|--temperature|0.8|--seed|7|-p|%s|-p|%s%s", two[0],
                   two[1], more[m]);
        Run run = served(llama(options));
        for (int i = 0; i < 16; i++) CHECK_TEXT(request(run.out, i), alone[i]);
        CHECK_HAS(run.err, "separate copies");
        CHECK(statistic(run.err, "blocks were copied") > 0);
        if (m >= 4) CHECK(statistic(run.err, "preemptions") > 0);
    }
}

// --beam N forks and releases at every step, and finds what it finds with a contiguous cache, in
// which every fork is a copy of all that the sequence has. One beam is greedy decoding.
static void test_beams(void)
{
    make_model(0);
    for (int beams = 1; beams <= 5; beams += 2)
        for (int i = 0; i < 3; i++) {
            const char *plain = format("--steps|70|-p|%s|-p|the", prompts[2 * i]);
            const char *base = format("--beam|%d|%s", beams, plain);
            char *full_copies = text_of(format("%s|--cache|contiguous", base));
            CHECK_TEXT(text_of(format("%s|--block-size|1", base)), full_copies);
            CHECK_TEXT(text_of(format("%s|--block-size|5|--chunk|2", base)), full_copies);
            CHECK_TEXT(text_of(format("%s|--cache|gather", base)), full_copies);
            if (beams == 1) CHECK_TEXT(text_of(plain), full_copies);
        }
    Run run = llama("--beam|4|--steps|64|--block-size|16|--blocks|15|-p|the");
    CHECK_EQ(run.status, 1);  // four beams of 64 tokens may need 16 blocks
    CHECK_HAS(run.err, "refused");
}

// --speculate K changes how many steps it takes, and not one byte of the text: alone, in a batch,
// in a pool that is too small for all, with temperature.
static void test_speculates(void)
{
    make_model(0);
    for (int k = 1; k <= 8; k++) {
        const char *base = format("--steps|80|--temperature|%s", k % 3 ? "0" : "0.5");
        const char *batch = format("%s%s", base, all_prompts());
        const char *small = "--block-size|4|--blocks|45";
        char *plain = text_of(batch);
        CHECK_TEXT(text_of(format("%s|--speculate|%d", batch, k)), plain);
        CHECK_TEXT(text_of(format("%s|--speculate|%d|%s", batch, k, small)), plain);
        char *alone = text_of(format("%s|-p|%s", base, prompts[2]));
        Run run = served(llama(format("%s|--speculate|%d|-p|%s", base, k, prompts[2])));
        CHECK_TEXT(run.out, alone);
        CHECK(statistic(run.err, "tokens were guessed") > 0);
        if (k % 3) CHECK(statistic(run.err, "of them right") > 0);
    }
    char *plain = text_of("-n|30|-p|the");  // 0 is the default, and may be said
    CHECK_TEXT(text_of("-n|30|-p|the|--speculate|0"), plain);
}

// Requests that begin alike share what was computed of that, and no text changes: with samples,
// with speculation, in pools so small that requests are preempted and find their own blocks again.
static void test_prefix_cache(void)
{
    const char *system = "Once upon a time the cat sat on the mat and the dog";
    const char *ends[] = {" ran", " sat on the hat", "", " ran to the man", " ran"};
    const char *more[] = {"",
                          "|--block-size|4|--chunk|5",
                          "|--block-size|1|--cache|gather",
                          "|--block-size|4|--speculate|3",
                          "|--block-size|4|--blocks|45",
                          "|--block-size|4|--blocks|40|--speculate|4|--dtype|f16"};
    make_model(0);
    const char *five = "";
    for (int i = 0; i < 5; i++) five = format("%s|-p|%s%s", five, system, ends[i]);
    for (int samples = 1; samples <= 3; samples += 2)
        for (int m = 0; m < 6; m++) {
            const char *base =
                format("--steps|90|--temperature|0.8|--samples|%d%s%s", samples, five, more[m]);
            char *plain = text_of(base);
            Run run = served(llama(format("%s|--prefix-cache", base)));
            CHECK_TEXT(run.out, plain);
            CHECK_HAS(run.err, "tokens were found in the prefix cache");
            if (m >= 4) CHECK(statistic(run.err, "preemptions") > 0);
            if (m >= 4) CHECK(statistic(run.err, "tokens were found") > 0);
        }
    // By hand, blocks of 4. Two equal prompts of 50 tokens (BOS, blank, 48 x) do not fit at once
    // into 23 blocks. Step 1 computes the first one; step 2 its next token, and of the second
    // prompt what is not in 12 full blocks, 2 tokens. Each goes on to 60 positions: steps 2 to 11,
    // and 3 to 12.
    const char *x48 = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    Run run = served(llama(format("--steps|60|--chunk|64|--blocks|23|--block-size|4|-p|%s|-p|%s|"
                                  "--prefix-cache",
                                  x48, x48)));
    CHECK_EQ(statistic(run.err, "tokens were found"), 48);
    CHECK_EQ(statistic(run.err, "tokens in "), 60 + 12);
    CHECK_EQ(statistic(run.err, "steps"), 12);
    CHECK_EQ(statistic(run.err, "preemptions"), 0);
    // A queue longer than what may run at once: what comes later finds what the first have left.
    const char *many = format("%s%s%s%s%s", five, five, five, five, five);
    char *plain = text_of(format("--steps|60%s", many));
    run = served(llama(format("--steps|60|--blocks|40|--block-size|4%s|--prefix-cache", many)));
    CHECK_TEXT(run.out, plain);
    CHECK(statistic(run.err, "tokens were found") > 0);
    CHECK_EQ(llama(format("--prefix-cache|--beam|2%s", five)).status, 2);
    CHECK_EQ(llama(format("--prefix-cache|--cache|contiguous%s", five)).status, 2);
}

// The options crossed at random. The contiguous cache, which has no blocks to get wrong, says what
// the text must be. And the statistics add up: at temperature 0 each request computes exactly
// --steps tokens, and besides those only what it lost by preemptions and wrong guesses.
static void test_options_crossed(void)
{
    int preempted = 0;
    int found = 0;
    make_model(0);
    for (int draw = 0; draw < (quick ? 12 : 120); draw++) {
        int steps = between(30, 80);
        int samples = between(0, 2) ? 1 : between(2, 4);
        int sampled = between(0, 3) == 0;
        int block_size = between(1, 18);
        int cache = between(1, 2);
        int longest = (steps - 1) / block_size + 1;
        int prefix_cache = between(0, 1);
        int num_prompts = between(1, 8);
        const char *what =
            format("--steps|%d|--samples|%d|--temperature|%s|--seed|%d%s", steps, samples,
                   sampled ? "0.9" : "0", between(0, 1000), between(0, 3) ? "" : "|--plain");
        int first = between(0, PROMPTS - 1);
        for (int i = 0; i < num_prompts; i++)  // no prompt twice
            what = format("%s|-p|%s", what, prompts[(first + i) % PROMPTS]);
        const char *how =
            format("%s|--chunk|%d|--speculate|%d|--dtype|f32%s", cache_options(cache, block_size),
                   between(1, 40), between(0, 1) ? 0 : between(1, 6),
                   prefix_cache ? "|--prefix-cache" : "");
        if (between(0, 1)) how = format("%s|--blocks|%d", how, longest + between(0, 2 * longest));

        char *expected = text_of(format("%s|--cache|contiguous|--chunk|1", what));
        Run run = served(llama(format("%s|%s", what, how)));
        CHECK_TEXT(run.out, expected);
        preempted += statistic(run.err, "preemptions") > 0;
        if (prefix_cache) found += statistic(run.err, "tokens were found") > 0;
        if (samples > 1 || sampled) continue;
        long computed = statistic(run.err, "tokens in ");
        if (strstr(run.err, "were rewound")) computed -= statistic(run.err, "were rewound");
        if (prefix_cache && block_size == 1) continue;  // different prompts share the first token
        CHECK_EQ(computed - statistic(run.err, "tokens computed again"), num_prompts * steps);
    }
    CHECK(quick || (preempted > 10 && found > 10));
}

// ---- the tokenizer ----------------------------------------------------------------------------

// How many tokens a prompt takes, merged by hand: BOS, the blank in front, and of all pairs the one
// with the best score first, the later in the list of make_tokenizer(). A prompt of n tokens is
// served with --steps n, and refused with one position less.
static void test_merges_by_hand(void)
{
    const struct {
        const char *prompt;
        int tokens;
    } cases[] = {
        {"", 1},            // nothing in front of nothing
        {" ", 3},           // two blanks
        {"x", 3},           // blank x
        {"the", 3},         // blank t he, blank the
        {"in an inn", 8},   // blank in blank an blank in n
        {"hat", 3},         // " h" before at, and then hat can no longer be made
        {"wxy", 3},         // blank w xy, blank wxy
        {"wxyz", 5},        // blank w x yz: had xy come first, blank wxy z
        {"klll", 4},        // blank k ll l, blank kll l: the leftmost of equals
        {"Zo\xc3\xab", 6},  // blank Z o, and two bytes
    };
    make_model(0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int tokens = cases[i].tokens;
        CHECK_EQ(llama(format("--steps|%d|-p|%s", tokens, cases[i].prompt)).status, 0);
        if (tokens == 1) continue;
        Run run = llama(format("--steps|%d|-p|%s", tokens - 1, cases[i].prompt));
        CHECK_EQ(run.status, 1);
        CHECK_HAS(run.err, "refused");
    }
    // A tab has no token of its own, so it is a byte; the prompt is printed first.
    char *text = text_of("--steps|6|-p|a\tb");
    text[3] = 0;
    CHECK_TEXT(text, "a\tb");
}

// A file of prompts, one a line, with and without a newline at the end, with \n and with \r\n.
static void test_prompt_files(void)
{
    const char *file = path_of("prompts");
    const char *text[] = {"the thin hat\n\nhello\n", "the thin hat\n\nhello",
                          "the thin hat\r\n\r\nhello\r\n", "the thin hat\r\n\nhello\r"};
    make_model(0);
    char *expected = text_of("--steps|40|-p|the thin hat|-p||-p|hello");
    for (int i = 0; i < 4; i++) {
        save(file, text[i], strlen(text[i]));
        CHECK_TEXT(text_of(format("--steps|40|-f|%s", file)), expected);
    }
    char *one_empty = text_of("--steps|40");
    save(file, "\n", 1);
    CHECK_TEXT(text_of(format("--steps|40|--file|%s", file)), one_empty);

    const struct {
        const char *bytes;
        size_t size;
        const char *message;
    } wrong[] = {{"", 0, "no prompt"}, {"the\0hat\n", 8, "not a text"}};
    for (int i = 0; i < 2; i++) {
        save(file, wrong[i].bytes, wrong[i].size);
        Run run = llama(format("-f|%s", file));
        CHECK_EQ(run.status, 1);
        CHECK_HAS(run.err, wrong[i].message);
        CHECK_TEXT(run.out, "");
    }
    CHECK_EQ(llama(format("-f|%s", path_of("no such file"))).status, 1);
    CHECK_EQ(llama(format("-f|%s", folder)).status, 1);
}

// ---- what is refused --------------------------------------------------------------------------

// What can never be served is refused at once, with one line and exit status 1; the others are
// served.
static void test_refuses(void)
{
    make_model(0);
    char *the = text_of("--steps|12|-p|the");
    char *a = text_of("--steps|12|-p|a");
    Run run = llama("--steps|12|-p|the|-p|he ate the hat on the heath|-p|a");
    CHECK_EQ(run.status, 1);
    CHECK_HAS(run.err, "llama: request 1 refused: ");
    CHECK_TEXT(request(run.out, 0), the);
    CHECK_TEXT(request(run.out, 1), "\n");
    CHECK_TEXT(request(run.out, 2), a);
    run = llama("--steps|40|--block-size|4|--blocks|9|-p|the");
    CHECK_EQ(run.status, 1);
    CHECK_TEXT(run.err,
               "llama: request 0 refused: 40 tokens take 10 blocks, the whole pool has 9\n");
    CHECK_TEXT(run.out, "");
    CHECK_EQ(llama("--steps|40|--block-size|4|--blocks|10|-p|the").status, 0);
}

// What has no effect as it was asked for is said, or refused.
static void test_notes(void)
{
    make_model(0);
    Run run = served(llama("-p|the|--steps|97"));
    CHECK_HAS(run.err, "--steps 97");
    CHECK_HAS(run.err, "96");
    CHECK_EQ(count_lines(run.err), 3);
    char *expected = run.out;
    run = served(llama("-p|the|--steps|96"));
    CHECK_TEXT(run.out, expected);
    CHECK_EQ(count_lines(run.err), 2);
    run = served(llama("-p|the"));  // the default of 200 was not asked for
    CHECK_TEXT(run.out, expected);
    CHECK_EQ(count_lines(run.err), 2);
    run = llama("-p|the|--cache|contiguous|--block-size|16");
    CHECK_EQ(run.status, 2);
    CHECK_HAS(run.err, "--block-size");
}

// With these bytes in the file, there must be a message, no text, and exit status 1.
static void rejects(const char *path, const void *bytes, size_t size)
{
    save(path, bytes, size);
    Run run = llama("--steps|4");
    CHECK_EQ(run.status, 1);
    CHECK_HAS(run.err, path);
    CHECK_TEXT(run.out, "");
}

// Damaged checkpoints and tokenizers end in a message, never in a crash: cut off, numbers out of
// range, bytes at the end, a text, no file.
static void test_damaged_files(void)
{
    const int64_t wrong[] = {0, -1, 3, INT32_MAX, INT32_MIN, 1 << 20, 65536, 1000001};
    const char *text = "Once upon a time there was a text that thought it was a checkpoint.\n";
    for (int tokenizer = 0; tokenizer < 2; tokenizer++) {
        make_model(0);
        const char *path = path_of(tokenizer ? "tokenizer" : "model");
        size_t size;
        char *bytes = load(path, &size);
        const size_t cuts[] = {0,  1,   3,    4,    7,        12,       27,      28,
                               29, 100, 1000, 3000, size / 2, size - 4, size - 1};
        for (int i = 0; i < 15; i++) rejects(path, bytes, cuts[i]);
        for (int at = 0; at < (tokenizer ? 12 : 28); at += tokenizer ? 8 : 4)
            for (int i = 0; i < 8; i++) {
                char *copy = memcpy(allocate(size), bytes, size);
                for (int j = 0; j < 4; j++) copy[at + j] = (char)(wrong[i] >> 8 * j & 255);
                if (tokenizer && at == 0) {  // max_token_length: not to crash is enough
                    save(path, copy, size);
                    CHECK(llama("--steps|4").status <= 1);
                } else
                    rejects(path, copy, size);
            }
        char *longer = memcpy(allocate(size + 4), bytes, size);
        rejects(path, longer, size + 1);
        rejects(path, longer, size + 4);
        rejects(path, text, strlen(text));
        unlink(path);
        CHECK_EQ(llama("--steps|4").status, 1);
    }
}

// Wrong options: exit status 2, a message, and no text.
static void test_usage_errors(void)
{
    // Between the options stands '/'; a blank is part of the value.
    char wrong[] = "--cache|none/--cache|split/--cache/--device|tpu/--block-size|0/--block-size|-1/"
                   "--block-size|x/--blocks|0/--blocks|99999999999/--dtype|f64/--chunk|0/"
                   "--chunk| 5/--temperature|-1/--temperature|nan/--temperature|0x1/"
                   "--temperature|/--steps|0/--steps|1.5/--seed|/--seed|1.5/--seed| 5/--seed|5 /"
                   "--seed|0x10/--seed|-1/--speculate|-1/--speculate|1025/--samples|0/--beam|0/"
                   "--beam|2|--samples|2/--beam|2|--speculate|1/--beam|2|--temperature|1/-p/-f/-x/"
                   "--unknown|1/third-file";
    make_model(0);
    for (char *options = strtok(wrong, "/"); options; options = strtok(NULL, "/")) {
        Run run = llama(options);
        CHECK_EQ(run.status, 2);
        CHECK_HAS(run.err, "llama: ");
        CHECK_TEXT(run.out, "");
    }
    CHECK_EQ(run_into(path_of("out"), find_llama()).status, 2);
    CHECK_EQ(run_into(path_of("out"), format("%s|one file", find_llama())).status, 2);
}

// Short options are long ones, options may stand before the files, and every long option is in the
// help.
static void test_options(void)
{
    char names[] = "--prompt --file --temperature --seed --steps --samples --beam --speculate "
                   "--chunk --prefix-cache --cache --block-size --blocks --dtype --device --plain";
    make_model(0);
    char *text = text_of("--prompt|the|--steps|30|--temperature|0.7|--seed|9");
    CHECK_TEXT(text_of("-p|the|-n|30|-t|0.7|-s|9"), text);
    CHECK(strcmp(text_of("-p|the|-n|30|-t|0.7|-s|10"), text) != 0);
    const char *first = format("%s|-pthe|-n30|--temperature=0.7|-s9|%s|%s", find_llama(),
                               path_of("model"), path_of("tokenizer"));
    CHECK_TEXT(run_into(path_of("out"), first).out, text);
    Run run = served(run_into(path_of("out"), format("%s|--help", find_llama())));
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) CHECK_HAS(run.out, name);
    CHECK_TEXT(run.err, "");
}

// A program whose output cannot be written has failed, and says so.
static void test_output_that_cannot_be_written(void)
{
    const char *options[] = {"--help", "-p|the", "-p|the|-p|hat", "-p|the|--beam|2"};
    if (access("/dev/full", W_OK) != 0) skip("there is no /dev/full");
    make_model(0);
    for (int i = 0; i < 4; i++) {
        Run run = llama_into("/dev/full", options[i]);
        CHECK_EQ(run.status, 1);
        CHECK_HAS(run.err, "cannot write");
    }
}

// ---- real weights and devices -----------------------------------------------------------------

// llama with the 260K-parameter model of karpathy/tinyllamas, or a skip.
static const char *real_llama(void)
{
    const char *models = getenv("MODELS") ? getenv("MODELS") : "../shared/models";
    const char *model = format("%s/stories260K.bin", models);
    const char *tokenizer = format("%s/tok512.bin", models);
    if (access(model, R_OK) != 0 || access(tokenizer, R_OK) != 0)
        skip(
            format("no stories260K.bin and tok512.bin in %s; MODELS names another folder", models));
    return format("%s|%s|%s", find_llama(), model, tokenizer);
}

static char *real_text(const char *options)
{
    return served(run_into(path_of("out"), format("%s|%s", real_llama(), options))).out;
}

// What it prints is known: `expected_stdout` of karpathy/llama2.c, test_all.py.
static void test_real_weights(void)
{
    const char *expected =
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the"
        " park. One day, she saw a big, red ball. She wanted to play with it, but it was too "
        "high.\n"
        "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to "
        "do. She said, \"I want to play with your ball, but I can't find it.\"\n"
        "Lily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know "
        "what to do.\"\n"
        "Lily didn't want to help her mom, so she\n";
    const int block_sizes[] = {1, 7, 16};
    for (int dtype = 0; dtype < (quick ? 1 : 3); dtype++) {
        const char *base = format("--temperature|0|--steps|200|--dtype|%s", dtypes[dtype]);
        if (dtype > 0) expected = real_text(base);  // rounded K and V may lead to other words
        for (int i = 0; i < 9; i++) {
            const char *how = cache_options(i % 3, block_sizes[i / 3]);
            CHECK_TEXT(real_text(format("%s|%s", base, how)), expected);
            if (dtype == 0) CHECK_TEXT(real_text(format("%s|%s|--plain", base, how)), expected);
            if (i != 4 * dtype) continue;  // with fifteen others, too
            char *batch = real_text(format("%s|%s%s", base, how, all_prompts()));
            CHECK_TEXT(request(batch, 0), expected);
        }
    }
}

// --samples 8, --beam 4, and --speculate 1 to 8, with and without the prefix cache.
static void test_real_weights_shared(void)
{
    const char *base = "--steps|120|-p|Once upon a time";
    char *samples = real_text(format("%s|--samples|8|--temperature|0.9", base));
    for (int i = 0; i < 8; i++)
        CHECK_TEXT(request(samples, i),
                   real_text(format("%s|--temperature|0.9|--seed|%d", base, 1 + i)));
    char *beams = real_text(format("%s|--beam|4|--cache|contiguous", base));
    CHECK_TEXT(real_text(format("%s|--beam|4", base)), beams);
    CHECK_TEXT(real_text(format("%s|--beam|4|--block-size|3", base)), beams);
    char *to_the_end = real_text("--steps|400");  // the model ends the text after 346 tokens
    CHECK_TEXT(real_text("--steps|400|--speculate|5"), to_the_end);
    char *both = real_text("--steps|400|--speculate|5|--samples|2|--prefix-cache");
    for (int i = 0; i < 2; i++) CHECK_TEXT(request(both, i), to_the_end);
    CHECK_LACKS(real_text("--steps|400|--beam|2"), "<s>");  // nor does a beam go on after its end
    char *plain = real_text(base);
    for (int k = 1; k <= 8; k++) {
        CHECK_TEXT(real_text(format("%s|--speculate|%d", base, k)), plain);
        CHECK_TEXT(real_text(format("%s|--speculate|%d|--prefix-cache", base, k)), plain);
        if (k % 3 != 1) continue;
        char *batch = real_text(format("%s%s|--speculate|%d", base, all_prompts(), k));
        CHECK_TEXT(request(batch, 0), plain);
    }
}

// The device of this build that runs kernels: the GPU, or the stand-in for one.
static const char *kernel_device(void)
{
    Run run = llama("--device|gpu|--steps|2");
    if (run.status == 0) return "gpu";
    CHECK_EQ(run.status, 1);
    run = llama("--device|standin|--steps|2");
    if (run.status == 0) return "standin";
    CHECK_HAS(run.err, "GPU");
    skip("there is no GPU, and this build has no stand-in");
}

// Gathered, paged and contiguous give the same text, whatever the order of the lanes, also when a
// pool is too small for all, with guesses and with samples; with the fast kernels and the plain.
static void test_on_a_gpu(void)
{
    const char *more[] = {"", "|--cache|gather", "|--cache|contiguous", "|--speculate|3|--chunk|2",
                          "|--block-size|4|--blocks|20|--chunk|3"};
    make_model(0);
    const char *base =
        format("--device|%s|--steps|20|-p|the|-p|Once upon a time|-p|a", kernel_device());
    for (int plain = 0; plain < 2; plain++) {
        const char *way = plain ? "|--plain" : "";
        char *expected = text_of(format("%s%s", base, way));
        for (int i = 0; i < 5; i++) {
            setenv("PAGED_LANE_ORDER", format("%d", i), 1);
            Run run = llama(format("%s%s%s", base, way, more[i]));
            unsetenv("PAGED_LANE_ORDER");
            CHECK_TEXT(served(run).out, expected);
        }
    }
}

// The story from the kernels: whole in one order of the lanes, its beginning in two others.
static void test_real_weights_on_a_gpu(void)
{
    real_llama();
    make_model(0);
    const char *device = kernel_device();
    const char *steps = quick ? "20" : "200";
    char *story = real_text(format("--steps|%s", steps));
    char *beginning = real_text("--steps|20");
    CHECK_TEXT(real_text(format("--device|%s|--steps|%s", device, steps)), story);
    for (int order = 1; order <= 2; order++) {
        setenv("PAGED_LANE_ORDER", order == 1 ? "1" : "77", 1);
        char *text = real_text(format("--device|%s|--steps|20", device));
        char *plain = real_text(format("--device|%s|--steps|20|--plain", device));
        unsetenv("PAGED_LANE_ORDER");
        CHECK_TEXT(text, beginning);
        CHECK_TEXT(plain, beginning);
    }
}

// ---- the tests of the tests, and the runner ---------------------------------------------------

static const char *own_path;

// A failing test makes the program fail, with what llama wrote to standard error; a name that is no
// test is an error.
static void test_tests_can_fail(void)
{
    find_llama();
    Run run = run_into(path_of("out"), format("%s|fails_on_purpose", own_path));
    CHECK_EQ(run.status, 1);
    CHECK_HAS(run.out, "expected 0, got 2");
    CHECK_HAS(run.out, "--temperature takes a number");
    CHECK_HAS(run.out, "\n0 passed, 1 failed, 0 skipped\n");
    CHECK_EQ(run_into(path_of("out"), format("%s|no_such_test", own_path)).status, 2);
}

static void test_fails_on_purpose(void)
{
    make_model(0);
    CHECK_EQ(llama("--temperature|warm").status, 0);
}

typedef struct Test {
    const char *name;
    void (*run)(void);
} Test;

// clang-format off
static const Test tests[] = {
#define TEST(name) {#name, test_##name}
    TEST(same_text_however_served), TEST(options_crossed), TEST(small_pools), TEST(samples),
    TEST(beams), TEST(speculates), TEST(prefix_cache), TEST(merges_by_hand), TEST(prompt_files),
    TEST(refuses), TEST(notes), TEST(damaged_files), TEST(usage_errors), TEST(options),
    TEST(output_that_cannot_be_written), TEST(real_weights), TEST(real_weights_shared),
    TEST(on_a_gpu), TEST(real_weights_on_a_gpu), TEST(tests_can_fail),
    TEST(fails_on_purpose),  // the last one runs only when it is named
};
// clang-format on
enum { COUNT = sizeof tests / sizeof tests[0] };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run_test(const Test *test)
{
    const double start = seconds();
    command_line[0] = 0;
    last_error = "";
    state = seed;  // its random numbers depend on its name, not on the tests before it
    for (const char *c = test->name; *c; c++) state = state * 31 + (uint64_t)*c;
    printf("%-36s ", test->name);
    fflush(stdout);
    switch (setjmp(test_end)) {
    case 0:
        test->run();
        printf("ok %8.2f s\n", seconds() - start);
        return PASSED;
    case SKIPPED: return SKIPPED;
    default:
        printf("  FAILED: %s --seed %llu %s\n", own_path, (unsigned long long)seed, test->name);
        return FAILED;
    }
}

static void clean_up(void)
{
    remove_folder();
    while (allocations) {
        Allocation *next = allocations->next;
        free(allocations);
        allocations = next;
    }
}

static int find_test(const char *name)
{
    for (int t = 0; t < COUNT; t++)
        if (strcmp(name, tests[t].name) == 0) return t;
    return -1;
}

// Reads the arguments into chosen[]. Returns how many tests were named, or -1 for an error.
static int read_arguments(int argc, char **argv, int *chosen)
{
    int named = 0;
    for (int i = 1; i < argc; i++) {
        int test = find_test(argv[i]);
        if (test >= 0)
            chosen[test] = ++named;
        else if (strcmp(argv[i], "--quick") == 0)
            quick = 1;
        else if (strcmp(argv[i], "--seed") == 0 && argv[i + 1])
            seed = strtoull(argv[++i], NULL, 10);
        else {
            fprintf(stderr, "%s: no test or option is called %s; see --list\n", argv[0], argv[i]);
            return -1;
        }
    }
    return named;
}

int main(int argc, char **argv)
{
    int count[3] = {0, 0, 0};
    int chosen[COUNT] = {0};
    own_path = argv[0];
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (int t = 0; t < COUNT - 1; t++) printf("%s\n", tests[t].name);
        return 0;
    }
    int named = read_arguments(argc, argv, chosen);
    if (named < 0) return 2;
    printf("seed %llu%s\n", (unsigned long long)seed, quick ? ", quick" : "");
    for (int t = 0; t < COUNT; t++) {
        if (named ? !chosen[t] : t == COUNT - 1) continue;
        count[run_test(&tests[t])]++;
        clean_up();
    }
    printf("%d passed, %d failed, %d skipped\n", count[PASSED], count[FAILED], count[SKIPPED]);
    return count[FAILED] > 0;
}
