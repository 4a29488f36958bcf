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
// nonsense however it is served. options_crossed knows which: it has the rules of llama2.c and of
// the scheduler once more. The real weights are looked for in the folder that MODELS names,
// otherwise in ../shared/models; without them those tests are skipped.
//
// A failing check says where it stands, what the program was given, and what it wrote to standard
// error; it ends its test, and the others go on.
//
//     cc -O2 checks/llama_tests.c -o build/llama_tests -lm && build/llama_tests

#define _GNU_SOURCE

#include <glob.h>
#include <limits.h>
#include <math.h>
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

// The number before ` word` in the statistics: statistic(err, "tokens computed again").
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

static void put_text(FILE *file, float score, const char *text)
{
    put_float(file, score);
    put_int(file, (int)strlen(text));
    fputs(text, file);
}

enum {
    EMBEDDING,
    RMS_ATT,
    WQ,
    WK,
    WV,
    WO,
    RMS_FFN,
    W1,
    W2,
    W3,
    RMS_FINAL,
    ROPE,
    CLASSIFIER,
    PARTS
};
enum { BOS = 1, FIRST_BYTE = 3 };  // tokens
enum { MAX_DIM = 64, MAX_LAYERS = 3, CONTEXT = 96, MAX_VOCAB = 500 };

typedef struct Model {  // what is in the files
    int dim, hidden, layers, heads, kv_heads, context;
    int head_dim, kv_dim;
    int twins;                  // 1: tokens 2i and 2i + 1 have the same weights
    const float *parts[PARTS];  // the weights, in the order of the file
    int vocab;
    const char *texts[MAX_VOCAB];
    float scores[MAX_VOCAB];
} Model;

static Model model;

static void add_token(float score, const char *text)
{
    CHECK(model.vocab < MAX_VOCAB);
    model.scores[model.vocab] = score;
    model.texts[model.vocab++] = text;
}

// <unk>, <s>, </s>, the 256 bytes, and the printable characters.
static void add_characters(void)
{
    model.vocab = 0;
    add_token(0, "<unk>");
    add_token(0, "\n<s>\n");
    add_token(0, "\n</s>\n");
    for (int i = 0; i < 256; i++) add_token(0, format("<0x%02X>", i));
    for (char c = ' '; c <= '~'; c++) add_token(-100.0f - c, format("%c", c));
}

static void save_tokenizer(void)
{
    FILE *file = fopen(path_of("tokenizer"), "wb");
    CHECK(file != NULL);
    int longest = 0;
    for (int i = 0; i < model.vocab; i++)
        if ((int)strlen(model.texts[i]) > longest) longest = (int)strlen(model.texts[i]);
    put_int(file, longest);
    for (int i = 0; i < model.vocab; i++) put_text(file, model.scores[i], model.texts[i]);
    CHECK(fclose(file) == 0);
}

// Writes a checkpoint of that shape with random weights. `control` is a factor on those of the
// three control tokens: 0 and they never win, 1 and they are like the others, more and they win
// oftener. With `separate`, vocab_size is negative and the classifier has weights of its own.
static void save_checkpoint(float control, int separate)
{
    Model *m = &model;
    m->kv_dim = m->head_dim * m->kv_heads;
    m->dim = m->head_dim * m->heads;
    const int square = m->layers * m->dim * m->dim;
    const int narrow = m->layers * m->dim * m->kv_dim;
    const int hidden = m->layers * m->dim * m->hidden;
    const int norm = m->layers * m->dim;
    const int table = m->vocab * m->dim;
    const int sizes[] = {table, norm,   square, narrow, narrow, square,
                         norm,  hidden, hidden, hidden, m->dim, m->context * m->head_dim,
                         table};
    const int header[] = {m->dim,    m->hidden,   m->layers,
                          m->heads,  m->kv_heads, separate ? -m->vocab : m->vocab,
                          m->context};
    FILE *file = fopen(path_of("model"), "wb");
    CHECK(file != NULL);
    for (int i = 0; i < 7; i++) put_int(file, header[i]);
    for (int part = 0; part < PARTS - !separate; part++) {
        float *weights = allocate((size_t)sizes[part] * sizeof *weights);
        m->parts[part] = weights;
        for (int i = 0; i < sizes[part] && part != ROPE; i++) {  // nobody reads those of ROPE
            float x = random_float();
            if (part == RMS_ATT || part == RMS_FFN || part == RMS_FINAL)
                weights[i] = 1 + x / 4;
            else if (part != EMBEDDING && part != CLASSIFIER)
                weights[i] = x / 2;
            else if (m->twins && i / m->dim % 2)
                weights[i] = weights[i - m->dim];
            else
                weights[i] = i < FIRST_BYTE * m->dim ? x * control : x;
        }
        for (int i = 0; i < sizes[part]; i++) put_float(file, weights[i]);
    }
    if (!separate) m->parts[CLASSIFIER] = m->parts[EMBEDDING];
    CHECK(fclose(file) == 0);
}

// The checkpoint of most tests, and its tokenizer: the control tokens never win.
static void make_model(void)
{
    const char *merges[] = {"th", "the", "at", "hat", " h", "in",  "an",
                            "he", "ll",  "on", "xy",  "yz", "wxy", "kll"};
    uint64_t before = state;
    state = seed;
    add_characters();
    for (int i = 0; i < 14; i++) add_token((float)i - 500, merges[i]);
    save_tokenizer();
    model.hidden = 40;
    model.layers = 2;
    model.heads = 4;
    model.kv_heads = 2;
    model.head_dim = 8;
    model.context = CONTEXT;
    model.twins = 0;
    save_checkpoint(0, 0);
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

// ---- the oracle: what llama2.c does -----------------------------------------------------------

// The rules of llama2.c's run.c, said once more: one request, one token at a time, a contiguous
// cache, no vectors, in double. Of its samplers, greedy and plain sampling; the generator of random
// numbers is llama's. What rounding may decide (two logits as good as equal) is left to the text
// that llama gave.

typedef struct Past {
    int length;
    double k[MAX_LAYERS][CONTEXT][MAX_DIM], v[MAX_LAYERS][CONTEXT][MAX_DIM];
} Past;

// To the nearest number with so many bits in its significand, ties to even; the smallest exponent
// of a normal number sets the last bit of those below it.
static double rounded(double x, int dtype)
{
    const int bits[] = {24, 11, 8};
    const int smallest[] = {-125, -13, -125};  // as frexp() counts
    int exponent;
    frexp(x, &exponent);
    if (exponent < smallest[dtype]) exponent = smallest[dtype];
    return ldexp(nearbyint(ldexp(x, bits[dtype] - exponent)), exponent - bits[dtype]);
}

static void product(double *out, const float *weights, const double *x, int rows, int n)
{
    for (int row = 0; row < rows; row++) {
        out[row] = 0;
        for (int i = 0; i < n; i++) out[row] += (double)weights[row * n + i] * x[i];
    }
}

static void normalize(double *out, const double *x, const float *weights, int n)
{
    double squares = 0;
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    for (int i = 0; i < n; i++) out[i] = weights[i] * x[i] / sqrt(squares / n + 1e-5);
}

static void rotate(double *x, int size, int position)
{
    for (int i = 0; i < size; i += 2) {
        double angle = position * pow(10000, -(i % model.head_dim) / (double)model.head_dim);
        double a = x[i];
        double b = x[i + 1];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + 1] = a * sin(angle) + b * cos(angle);
    }
}

// Attention of the newest position, for one query head: q and out are its head_dim numbers.
static void look_back(const Past *past, int layer, int head, const double *q, double *out)
{
    int first = head / (model.heads / model.kv_heads) * model.head_dim;
    double weights[CONTEXT];
    double max = -INFINITY;
    double sum = 0;
    for (int t = 0; t < past->length; t++) {
        weights[t] = 0;
        for (int i = 0; i < model.head_dim; i++) weights[t] += q[i] * past->k[layer][t][first + i];
        weights[t] /= sqrt(model.head_dim);
        max = fmax(max, weights[t]);
    }
    for (int t = 0; t < past->length; t++) sum += weights[t] = exp(weights[t] - max);
    for (int i = 0; i < model.head_dim; i++) {
        out[i] = 0;
        for (int t = 0; t < past->length; t++)
            out[i] += weights[t] / sum * past->v[layer][t][first + i];
    }
}

// Takes one more token. logits: [vocab], of the token after it.
static void think(Past *past, int token, int dtype, double *logits)
{
    const Model *m = &model;
    double x[MAX_DIM], norm[MAX_DIM], q[MAX_DIM], seen[MAX_DIM], y[MAX_DIM];
    double h1[MAX_DIM], h3[MAX_DIM];
    int dim = m->dim;
    int position = past->length++;
    for (int i = 0; i < dim; i++) x[i] = m->parts[EMBEDDING][token * dim + i];
    for (int layer = 0; layer < m->layers; layer++) {
        double *k = past->k[layer][position];
        double *v = past->v[layer][position];
        normalize(norm, x, m->parts[RMS_ATT] + layer * dim, dim);
        product(q, m->parts[WQ] + layer * dim * dim, norm, dim, dim);
        product(k, m->parts[WK] + layer * m->kv_dim * dim, norm, m->kv_dim, dim);
        product(v, m->parts[WV] + layer * m->kv_dim * dim, norm, m->kv_dim, dim);
        rotate(q, dim, position);
        rotate(k, m->kv_dim, position);
        for (int i = 0; i < m->kv_dim; i++) k[i] = rounded(k[i], dtype);
        for (int i = 0; i < m->kv_dim; i++) v[i] = rounded(v[i], dtype);
        for (int head = 0; head < m->heads; head++)
            look_back(past, layer, head, q + head * m->head_dim, seen + head * m->head_dim);
        product(y, m->parts[WO] + layer * dim * dim, seen, dim, dim);
        for (int i = 0; i < dim; i++) x[i] += y[i];
        normalize(norm, x, m->parts[RMS_FFN] + layer * dim, dim);
        product(h1, m->parts[W1] + layer * m->hidden * dim, norm, m->hidden, dim);
        product(h3, m->parts[W3] + layer * m->hidden * dim, norm, m->hidden, dim);
        for (int i = 0; i < m->hidden; i++) h1[i] *= h3[i] / (1 + exp(-h1[i]));
        product(y, m->parts[W2] + layer * m->hidden * dim, h1, dim, m->hidden);
        for (int i = 0; i < dim; i++) x[i] += y[i];
    }
    normalize(norm, x, m->parts[RMS_FINAL], dim);
    product(logits, m->parts[CLASSIFIER], norm, m->vocab, dim);
}

static int find_token(const char *text)  // of equal ones the first
{
    for (int i = 0; i < model.vocab; i++)
        if (strcmp(model.texts[i], text) == 0) return i;
    return -1;
}

// The tokens of a prompt, the first of which is BOS. Returns how many.
static int tokenize(const char *text, int *tokens)
{
    char piece[64];
    int n = 0;
    tokens[n++] = BOS;
    if (*text) tokens[n++] = find_token(" ");
    while (*text) {
        int size = 1;
        while (size < 4 && (text[size] & 0xc0) == 0x80) size++;
        snprintf(piece, sizeof piece, "%.*s", size, text);
        int whole = find_token(piece);
        for (int i = 0; i < (whole < 0 ? size : 1); i++)
            tokens[n++] = whole < 0 ? (unsigned char)text[i] + FIRST_BYTE : whole;
        text += size;
    }
    for (;;) {  // the pair with the best score becomes one token, of equal pairs the first
        int best = -1;
        int at = 0;
        for (int i = 0; i + 1 < n; i++) {
            snprintf(piece, sizeof piece, "%s%s", model.texts[tokens[i]],
                     model.texts[tokens[i + 1]]);
            int both = find_token(piece);
            if (both < 0 || (best >= 0 && model.scores[both] <= model.scores[best])) continue;
            best = both;
            at = i;
        }
        if (best < 0) return n;
        tokens[at] = best;
        memmove(tokens + at + 1, tokens + at + 2, (size_t)(--n - at - 1) * sizeof *tokens);
    }
}

// What is printed for a token after another one.
static const char *printed(int previous, int token)
{
    const char *text = model.texts[token];
    if (previous == BOS && *text == ' ') text++;
    if (token >= FIRST_BYTE && token < FIRST_BYTE + 256) text = format("%c", token - FIRST_BYTE);
    unsigned char c = (unsigned char)text[0];
    int hidden = text[0] && !text[1] && (c < ' ' || c > '~') && !(c >= '\t' && c <= '\r');
    return hidden ? "" : text;
}

// Marks the tokens that may follow, more than one where rounding decides.
static void may_follow(const double *logits, double temperature, uint64_t *rng, double tolerance,
                       char *may)
{
    int n = model.vocab;
    double best = logits[0];
    double sum = 0;
    double below = 0;
    for (int i = 0; i < n; i++) best = fmax(best, logits[i]);
    if (temperature == 0) {
        for (int i = 0; i < n; i++)  // of equal ones, which are neighbours, the first
            may[i] = logits[i] >= best - tolerance && !(i > 0 && logits[i] == logits[i - 1]);
        return;
    }
    uint64_t before = state;
    state = *rng;
    double coin = (double)(random_bits() >> 11) * 0x1p-53;
    *rng = state;
    state = before;
    for (int i = 0; i < n; i++) sum += exp((logits[i] - best) / temperature);
    for (int i = 0; i < n; i++) {
        double above = below + exp((logits[i] - best) / temperature) / sum;
        may[i] = coin > below - tolerance && coin < above + tolerance;
        below = above;
    }
}

typedef struct Story {  // a request as it has to be
    int tokens[CONTEXT + 200];
    int prompt, count;  // tokens of the prompt, and of prompt and answer
    int refused;
    int decided;  // 0: the tokens are known up to `count`, as rounding decides about the next one
} Story;

// As it is printed.
static char *text_of_story(const Story *s)
{
    char *text = allocate(64 * (size_t)s->count + 2);
    char *end = text;
    for (int i = 1; i < s->count; i++) end = stpcpy(end, printed(s->tokens[i - 1], s->tokens[i]));
    if (s->decided) strcpy(end, "\n");
    return text;
}

// The token that follows, or -1 if llama may take this or that and its text does not say which.
static int settle(const char *may, int previous, const char *actual)
{
    int next = -1;
    int first = -1;
    for (int token = 0; token < model.vocab; token++) {
        if (!may[token]) continue;
        const char *piece = token == BOS ? "\n" : printed(previous, token);
        if (first < 0) first = token;
        if (strncmp(actual, piece, strlen(piece)) != 0) continue;
        if (next >= 0) return -1;
        next = token;
    }
    return next >= 0 ? next : first;
}

// Greedy decoding or sampling. `actual` is what llama printed.
static Story tell(const char *prompt, int steps, double temperature, uint64_t rng, int dtype,
                  const char *actual)
{
    static Past past;
    static double logits[MAX_VOCAB];
    static char may[MAX_VOCAB];
    Story s = {.decided = 1};
    s.prompt = s.count = tokenize(prompt, s.tokens);
    s.refused = s.prompt > steps;
    if (s.refused) s.count = 0;
    past.length = 0;
    for (int i = 0; i < steps && i < s.count; i++) {
        if (i > 0) {
            size_t size = strlen(printed(s.tokens[i - 1], s.tokens[i]));
            actual += strnlen(actual, size);
        }
        think(&past, s.tokens[i], dtype, logits);
        if (i + 1 < s.prompt) continue;
        may_follow(logits, temperature, &rng, dtype ? 1e-3 : 2e-6, may);
        int next = settle(may, s.tokens[i], actual);
        if (next < 0) s.decided = 0;
        if (next >= 0 && next != BOS) s.tokens[s.count++] = next;
    }
    return s;
}

// ---- the pool and the scheduler, on paper ------------------------------------------------------

// The rules of the pool and of llama.c's scheduler, once more, for requests whose tokens are known.
// Blocks are numbers, and there is no K and V. It says what the statistics must be.

enum { MAX_REQUESTS = 32 };

typedef struct Paper {
    int block_size, num_blocks, chunk, drafts, steps, samples, prefix_cache;
    int *counts;            // [num_blocks]
    const int **published;  // [num_blocks] the tokens of a block and of all before it, or NULL
    int *ends;              // [num_blocks] how many these are
    int *free_blocks;       // [num_free] in the order in which they are handed out
    int num_free;
    struct Served *running[MAX_REQUESTS], *waiting[MAX_REQUESTS];
    int num_running, num_waiting;
    int rows, calls, preemptions, again, found, guessed, right, copies;
    int peak, peak_running, peak_apart;
} Paper;

typedef struct Served {  // a request, or a beam
    const int *tokens;   // all of its story
    int count, known;    // how many these are, and how many of them are known by now
    int forks, lost;
    int table[CONTEXT];
    int blocks, length;  // of the table; tokens in them
    int published;       // blocks
    int draft[8];
    int num_draft;
} Served;

static void make_paper_pool(Paper *p)
{
    p->counts = allocate((size_t)p->num_blocks * sizeof(int));
    p->published = allocate((size_t)p->num_blocks * sizeof *p->published);
    p->ends = allocate((size_t)p->num_blocks * sizeof(int));
    p->free_blocks = allocate((size_t)p->num_blocks * sizeof(int));
    for (; p->num_free < p->num_blocks; p->num_free++) p->free_blocks[p->num_free] = p->num_free;
}

static int take_free(Paper *p, int at)
{
    int *place = p->free_blocks + at;
    int block = *place;
    memmove(place, place + 1, (size_t)(--p->num_free - at) * sizeof *place);
    return block;
}

static int take_block(Paper *p)
{
    int block = take_free(p, 0);
    p->published[block] = NULL;
    p->counts[block] = 1;
    return block;
}

// What is published goes to the end of the free list, the rest to its front.
static void drop_block(Paper *p, int block)
{
    if (--p->counts[block] > 0) return;
    int *place = p->free_blocks + (p->published[block] ? p->num_free : 0);
    memmove(place + 1, place, (size_t)(p->free_blocks + p->num_free++ - place) * sizeof *place);
    *place = block;
}

static int share_block(Paper *p, int block)
{
    int at = 0;
    while (p->counts[block] == 0 && p->free_blocks[at] != block) at++;
    if (p->counts[block]++ == 0) take_free(p, at);
    return block;
}

static int find_published(const Paper *p, const int *tokens, int end)
{
    for (int b = 0; b < p->num_blocks; b++)
        if (p->published[b] && p->ends[b] == end &&
            memcmp(p->published[b], tokens, (size_t)end * sizeof *tokens) == 0)
            return b;
    return -1;
}

static void shorten(Paper *p, Served *r, int length)
{
    while ((r->blocks - 1) * p->block_size >= length) drop_block(p, r->table[--r->blocks]);
    r->length = length;
    if (length == 0) r->published = 0;
}

// Returns 0 if there are too few blocks, with nothing changed.
static int lengthen(Paper *p, Served *r, int n)
{
    int missing = (r->length + n + p->block_size - 1) / p->block_size - r->blocks;
    int *last = r->table + r->blocks - 1;
    int copy = r->length % p->block_size > 0 && p->counts[*last] > 1;
    if (missing + copy > p->num_free) return 0;
    if (copy) {
        int shared = *last;
        *last = take_block(p);
        drop_block(p, shared);
        p->copies++;
    }
    while (missing-- > 0) r->table[r->blocks++] = take_block(p);
    r->length += n;
    return 1;
}

static void share_blocks(Paper *p, Served *child, const Served *parent)
{
    child->blocks = parent->blocks;
    child->length = parent->length;
    child->published = parent->published;
    for (int b = 0; b < parent->blocks; b++) child->table[b] = share_block(p, parent->table[b]);
}

static void publish(Paper *p, Served *r)
{
    for (; r->published < r->length / p->block_size; r->published++) {
        int end = (r->published + 1) * p->block_size;
        int *own = &r->table[r->published];
        int before = *own;
        int found = find_published(p, r->tokens, end);
        if (found < 0) {
            p->published[*own] = r->tokens;
            p->ends[*own] = end;
        } else if (found != *own) {
            *own = share_block(p, found);
            drop_block(p, before);
        }
    }
}

// The model is called for those that run.
static void call(Paper *p)
{
    int used = p->num_blocks - p->num_free;
    p->calls++;
    if (used <= p->peak) return;
    p->peak = used;
    p->peak_running = p->num_running;
    p->peak_apart = 0;
    for (int i = 0; i < p->num_running; i++) p->peak_apart += p->running[i]->blocks;
}

// Guesses what followed the last earlier place of the newest three tokens, or two, or one.
static void guess(const Paper *p, Served *r)
{
    int max = p->drafts < p->steps - r->known ? p->drafts : p->steps - r->known;
    r->num_draft = 0;
    if (r->known - r->length != 1 || r->forks > 0) return;
    for (int n = 3; n > 0; n--)
        for (int at = r->known - 1; at >= n; at--) {  // where the guess would begin
            const int *newest = r->tokens + r->known - n;
            if (memcmp(r->tokens + at - n, newest, (size_t)n * sizeof *newest) != 0) continue;
            for (; r->num_draft < max && at < r->known; at++)
                r->draft[r->num_draft++] = r->tokens[at];
            return;
        }
}

// Gives a request its rows in a step: a chunk of what is known, and guesses if there is room.
// Returns 0 if there is none at all.
static int get_rows(Paper *p, Served *r)
{
    int n = r->known - r->length < p->chunk ? r->known - r->length : p->chunk;
    guess(p, r);
    int all = lengthen(p, r, n + r->num_draft);
    if (!all) r->num_draft = 0;
    if (!all && !lengthen(p, r, n)) return 0;
    p->rows += n + r->num_draft;
    p->guessed += r->num_draft;
    return 1;
}

// Rows for those that run, the oldest first. The newest gives way, and becomes the head of the
// queue.
static void rows_for_running(Paper *p)
{
    for (int i = 0; i < p->num_running;) {
        if (get_rows(p, p->running[i])) {
            i++;
            continue;
        }
        Served *newest = p->running[--p->num_running];
        newest->lost = newest->length;
        shorten(p, newest, 0);
        memmove(p->waiting + 1, p->waiting, (size_t)p->num_waiting++ * sizeof newest);
        p->waiting[0] = newest;
        p->preemptions++;
    }
}

// Lets in the head of the queue, if there is room for all that is known of it.
static int let_in(Paper *p)
{
    Served *r = p->waiting[0];
    for (int end = p->block_size; p->prefix_cache && end < r->known; end += p->block_size) {
        int block = find_published(p, r->tokens, end);
        if (block < 0) break;
        r->table[r->blocks++] = share_block(p, block);
        r->length = end;
        r->published++;
    }
    int found = r->length;
    if ((r->known + p->block_size - 1) / p->block_size - r->blocks > p->num_free) {
        shorten(p, r, 0);
        return 0;
    }
    p->found += found;
    if (r->lost > found) p->again += r->lost - found;
    p->running[p->num_running++] = r;
    memmove(p->waiting, p->waiting + 1, (size_t)--p->num_waiting * sizeof r);
    return get_rows(p, r);
}

// The next token becomes known, and those after guesses that were right. Returns 1 at the end.
static int move_on(Paper *p, Served *r)
{
    int ended;
    int right = 0;
    for (;; right++) {
        ended = r->known == r->count || r->known == p->steps;
        if (r->known < r->count) r->known++;
        if (ended || right == r->num_draft || r->draft[right] != r->tokens[r->known - 1]) break;
    }
    shorten(p, r, r->length - (r->num_draft - right));
    p->right += right;
    return ended;
}

// After a call: those whose known tokens are computed move on. Samples that fork off, which stand
// after their request in its array, are the newest.
static void move_all(Paper *p)
{
    Served *forked[MAX_REQUESTS];
    int kept = 0;
    int num_forked = 0;
    for (int i = 0; i < p->num_running; i++) {
        Served *r = p->running[i];
        int computed = r->length >= r->known;
        if (computed && r->forks > 0 && p->prefix_cache) publish(p, r);
        while (computed && r->forks > 0) {
            Served *child = r + r->forks--;
            share_blocks(p, child, r);
            if (move_on(p, child))
                shorten(p, child, 0);
            else
                forked[num_forked++] = child;
        }
        int ended = computed && move_on(p, r);
        if (p->prefix_cache) publish(p, r);
        if (ended)
            shorten(p, r, 0);
        else
            p->running[kept++] = r;
    }
    for (int i = 0; i < num_forked; i++) p->running[kept++] = forked[i];
    p->num_running = kept;
}

static void serve_on_paper(Paper *p, const Story *stories, int count)
{
    Served *all = allocate((size_t)count * sizeof *all);
    for (int i = 0; i < count; i++) {
        all[i].tokens = stories[i].tokens;
        all[i].count = stories[i].count;
        all[i].known = stories[i].prompt;
        if (i % p->samples > 0 || stories[i].refused) continue;
        all[i].forks = p->samples - 1;
        p->waiting[p->num_waiting++] = &all[i];
    }
    while (p->num_running + p->num_waiting > 0) {
        rows_for_running(p);
        while (p->num_waiting > 0 && let_in(p)) continue;
        call(p);
        move_all(p);
    }
}

// ---- beam search, on paper ----------------------------------------------------------------------

enum { MAX_BEAMS = 5 };

typedef struct Beam {
    Past past;
    Served served;
    int tokens[CONTEXT + 1];
    int count, ended;
    double score;
    double logits[MAX_VOCAB];
} Beam;

// The best `max` of all continuations, of equals the first. That of a beam that has ended is BOS
// once more, at no cost. Returns how many there are, 0 if rounding decides which.
static int best_beams(const Beam *beams, int count, int max, Beam *best)
{
    static double scores[MAX_BEAMS * MAX_VOCAB];
    int n = model.vocab;
    for (int b = 0; b < count; b++) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += exp(beams[b].logits[i]);
        for (int i = 0; i < n; i++) {
            scores[b * n + i] = beams[b].score + beams[b].logits[i] - log(sum);
            if (beams[b].ended) scores[b * n + i] = i == BOS ? beams[b].score : -INFINITY;
        }
    }
    for (int found = 0;; found++) {
        int at = 0;
        for (int i = 1; i < count * n; i++)
            if (scores[i] > scores[at]) at = i;
        if (scores[at] == -INFINITY) return found;
        // Near is the first that is not in to the last that is, or the second to the best?
        double ahead = found == 1 || found == max ? best[found - 1].score - scores[at] : 0;
        if (ahead > 0 && ahead < 1e-5) return 0;
        if (found == max) return found;
        Beam *b = &best[found];
        *b = beams[at / n];
        b->score = scores[at];
        b->ended |= at % n == BOS;
        if (!b->ended) b->tokens[b->count++] = at % n;
        scores[at] = -INFINITY;
    }
}

// The beams that go on are forked, then the old ones give back their blocks.
static void fork_beams(Paper *p, Beam *beams, int count, Beam *best, int num_best)
{
    for (int b = 0; b < num_best; b++) {
        Served parent = best[b].served;
        memset(&best[b].served, 0, sizeof parent);
        if (!best[b].ended) share_blocks(p, &best[b].served, &parent);
    }
    for (int b = 0; b < count; b++) shorten(p, &beams[b].served, 0);
    memcpy(beams, best, (size_t)num_best * sizeof *best);
}

// The likeliest text that `max` beams find.
static Story search(Paper *p, const char *prompt, int max, int dtype)
{
    static Beam beams[MAX_BEAMS], best[MAX_BEAMS];
    Story s = {.decided = 1};
    int count = 1;
    s.prompt = tokenize(prompt, s.tokens);
    s.refused = s.prompt > p->steps;
    if (s.refused) return s;
    memset(beams, 0, sizeof beams);
    memcpy(beams[0].tokens, s.tokens, (size_t)s.prompt * sizeof(int));
    beams[0].count = s.prompt;
    for (int i = 0; i < p->steps && count > 0; i++) {
        p->num_running = 0;
        for (Beam *b = beams; b < beams + count; b++) {
            if (b->ended) continue;
            CHECK(lengthen(p, &b->served, 1));
            p->running[p->num_running++] = &b->served;
            think(&b->past, b->tokens[i], dtype, b->logits);
        }
        if (p->num_running == 0) break;
        p->rows += p->num_running;
        if (i + 1 >= s.prompt || (i + 1) % p->chunk == 0) call(p);
        if (i + 1 < s.prompt) continue;
        int found = best_beams(beams, count, max, best);
        fork_beams(p, beams, count, best, found);
        count = found;
    }
    for (int b = 0; b < count; b++) shorten(p, &beams[b].served, 0);
    s.decided = count > 0;
    s.count = count > 0 ? beams[0].count : 0;
    memcpy(s.tokens, beams[0].tokens, sizeof beams[0].tokens);
    return s;
}

// ---- the options crossed ----------------------------------------------------------------------

typedef struct Draw {
    Paper paper;  // and the options it knows
    int dtype, beams, seed;
    double temperature;
    const char *prompts[8];
    int num_prompts, num_served;  // the others take too many tokens
    const char *options;
} Draw;

// A vocabulary with random merges of what it has already: equal scores, the same text twice,
// characters of several bytes, with and without a token of their own.
static void draw_tokenizer(void)
{
    const char *letters[] = {"a", "b", "c", " ", "ë", "日", "😀"};
    add_characters();
    for (int i = between(0, 7); i < 7; i++) add_token(-1, letters[i]);
    int first = model.vocab - 1;
    for (int i = between(0, 40); i > 0; i--) {
        const char *text = letters[between(0, 6)];
        if (between(0, 1)) text = model.texts[between(first, model.vocab - 1)];
        text = format("%s%s", text, letters[between(0, 6)]);
        if (between(0, 3) == 0) text = format("%s%s", text, model.texts[model.vocab - 1]);
        if (strlen(text) < 24) add_token((float)between(-8, 8), text);
    }
    save_tokenizer();
}

static void draw_model(void)
{
    const int head_dims[] = {2, 4, 6, 8, 16};
    draw_tokenizer();
    model.hidden = between(1, 48);
    model.layers = between(1, MAX_LAYERS);
    model.kv_heads = between(1, 2);
    model.heads = model.kv_heads * between(1, 2);
    model.head_dim = head_dims[between(0, 4)];
    model.context = between(24, CONTEXT);
    model.twins = between(0, 3) == 0;
    save_checkpoint(between(0, 2) ? 1.7f : 1, between(0, 1));
}

static const char *draw_text(int length)
{
    const char *letters[] = {"a", "b", "c", " ", "a", "b", "ab", "ë", "日", "😀", "\t", "Q"};
    const char *text = "";
    for (; length > 0; length--) text = format("%s%s", text, letters[between(0, 11)]);
    return text;
}

// Up to eight prompts, of which most begin alike.
static void draw_prompts(Draw *d)
{
    const char *system = draw_text(between(0, 25));
    int tokens[200];
    d->num_prompts = between(1, 8);
    for (int i = 0; i < d->num_prompts; i++) {
        const char *prompt = format("%s%s", between(0, 2) ? system : "", draw_text(between(0, 9)));
        d->prompts[i] = prompt;
        d->options = format("%s|-p|%s", d->options, prompt);
        d->num_served += tokenize(prompt, tokens) <= d->paper.steps;
    }
}

static Draw draw_options(void)
{
    Draw d = {.seed = between(0, 1000), .beams = between(0, 5) ? 1 : between(2, MAX_BEAMS)};
    Paper *p = &d.paper;
    int cache = between(0, 5) ? between(1, 2) : 0;
    p->chunk = between(1, 40);
    p->steps = between(6, model.context);
    p->samples = 1;
    p->block_size = between(0, 2) ? between(1, 4) : between(5, 40);
    if (between(0, 2) == 0) d.dtype = between(1, 2);
    if (d.beams == 1) {
        if (d.dtype == 0 && between(0, 1)) d.temperature = 0.25 * between(1, 6);
        if (between(0, 2)) p->drafts = between(1, 6);
        if (between(0, 2) == 0) p->samples = between(2, 4);
        p->prefix_cache = cache > 0 && between(0, 2) > 0;
    }
    d.options = format("--steps|%d|--dtype|%s|--temperature|%g|--seed|%d|--samples|%d|--beam|%d|"
                       "--chunk|%d|--speculate|%d|%s%s%s",
                       p->steps, dtypes[d.dtype], d.temperature, d.seed, p->samples, d.beams,
                       p->chunk, p->drafts, cache_options(cache, p->block_size),
                       p->prefix_cache ? "|--prefix-cache" : "", between(0, 1) ? "|--plain" : "");
    draw_prompts(&d);
    if (cache == 0) p->block_size = model.context;
    int longest = (p->steps - 1) / p->block_size + 1;
    p->num_blocks = d.num_served * p->samples * d.beams * longest;
    if (between(0, 4)) {  // a small pool
        p->num_blocks = d.beams * longest + between(0, d.beams * longest);
        d.options = format("%s|--blocks|%d", d.options, p->num_blocks);
    }
    make_paper_pool(p);
    return d;
}

static void check_statistics(const Draw *d, const char *err)
{
    const Paper *p = &d->paper;
    int requests = d->num_prompts * p->samples;
    CHECK_HAS(err, format("requests: %d, refused: %d; %d tokens in %d steps, ", requests,
                          requests - d->num_served * p->samples, p->rows, p->calls));
    CHECK_HAS(err, format("llama: preemptions: %d; %d tokens computed again\n", p->preemptions,
                          p->again));
    CHECK_HAS(err, format("sequences at the peak: %d, in %d blocks of %d tokens, ", p->peak_running,
                          p->peak, p->block_size));
    if (p->samples > 1 || d->beams > 1)
        CHECK_HAS(err, format("separate copies would have had %d blocks; %d blocks were copied\n",
                              p->peak_apart, p->copies));
    if (p->prefix_cache) CHECK_HAS(err, format("%d tokens were found in the prefix", p->found));
    if (p->drafts == 0) return;
    CHECK_HAS(err, format("%d tokens were guessed, %d of them right, ", p->guessed, p->right));
    CHECK_HAS(err, format("; %d were rewound\n", p->guessed - p->right));
}

// The options crossed at random, over random checkpoints and tokenizers. The oracle says what the
// texts must be, and the scheduler on paper what the statistics must be.
static void test_options_crossed(void)
{
    const int draws = quick ? 20 : 120;
    int preempted = 0;
    int found = 0;
    int undecided = 0;
    for (int draw = 0; draw < draws; draw++) {
        if (draw % 4 == 0) draw_model();
        Draw d = draw_options();
        Paper *p = &d.paper;
        int count = d.num_prompts * p->samples;
        int decided = 1;
        Story *stories = allocate((size_t)count * sizeof *stories);
        Run run = llama(d.options);
        CHECK_EQ(run.status, d.num_served < d.num_prompts);
        if (d.num_served == 0) CHECK_TEXT(run.out, "");
        for (int i = 0; i < count && d.num_served > 0; i++) {
            char *actual = count > 1 ? request(run.out, i) : run.out;
            const char *prompt = d.prompts[i / p->samples];
            if (d.beams > 1)
                stories[i] = search(p, prompt, d.beams, d.dtype);
            else
                stories[i] =
                    tell(prompt, p->steps, d.temperature, (uint64_t)(d.seed + i), d.dtype, actual);
            const char *expected = text_of_story(&stories[i]);
            if (!stories[i].decided) actual[strnlen(actual, strlen(expected))] = 0;
            CHECK_TEXT(actual, expected);
            decided &= stories[i].decided;
        }
        undecided += !decided;
        if (!decided || d.num_served == 0) continue;
        if (d.beams == 1) serve_on_paper(p, stories, count);
        check_statistics(&d, run.err);
        preempted += p->preemptions > 0;
        found += p->found > 0;
    }
    CHECK(quick || (preempted > draws / 8 && found > draws / 16 && undecided < draws / 8));
}

// ---- the same text ----------------------------------------------------------------------------

// Any cache, block size and chunk, alone or in a batch of sixteen, with temperature (request i
// draws with seed S + i).
static void test_same_text_however_served(void)
{
    const int block_sizes[] = {1, 7, 16};
    const int chunks[] = {1, 3, 32};
    make_model();
    for (int mode = 0; mode < 2; mode++) {
        const char *base = mode ? "--steps|40|--temperature|0.8" : "--steps|40|--dtype|f16";
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
}

// In a pool too small for all, requests wait, or are preempted and computed again; no text changes.
static void test_small_pools(void)
{
    const int pools[][2] = {{1, 40}, {1, 90}, {4, 10}, {4, 13}, {4, 30}, {7, 6}, {16, 3}, {16, 5}};
    make_model();
    const char *options = format("--steps|40|--temperature|0.8%s", all_prompts());
    char *expected = text_of(options);
    for (int i = 0; i < 16; i++) {
        const int *pool = pools[i / 2];
        const char *how = format("--block-size|%d|--blocks|%d|--chunk|%d|--cache|%s", pool[0],
                                 pool[1], i % 2 ? 1 : 8, caches[1 + i / 2 % 2]);
        Run run = served(llama(format("%s|%s", how, options)));
        CHECK_TEXT(run.out, expected);
        if (i / 2 == 4) CHECK(statistic(run.err, "tokens computed again") > 0);
    }
}

// One beam is greedy decoding. Beams must fit together.
static void test_beams(void)
{
    make_model();
    const char *greedy = text_of("--steps|70|-p|a|-p|the");
    CHECK_TEXT(text_of("--steps|70|-p|a|-p|the|--beam|1|--block-size|5"), greedy);
    CHECK_EQ(llama("--beam|4|--steps|64|--block-size|16|--blocks|16|-p|the").status, 0);
    Run run = llama("--beam|4|--steps|64|--block-size|16|--blocks|15|-p|the");
    CHECK_EQ(run.status, 1);  // four beams of 64 tokens may need 16 blocks
    CHECK_HAS(run.err, "refused");
}

// --speculate K changes how many steps it takes, and not one byte of the text: alone, in a batch,
// in a pool that is too small for all, with temperature.
static void test_speculates(void)
{
    make_model();
    for (int k = 1; k <= 8; k += 2) {
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
    const char *more[] = {"--block-size|4|--chunk|5", "--block-size|1|--cache|gather",
                          "--block-size|4|--blocks|45|--samples|3",
                          "--block-size|4|--blocks|40|--speculate|4|--dtype|f16"};
    make_model();
    const char *five = "";
    for (int i = 0; i < 5; i++) five = format("%s|-p|%s%s", five, system, ends[i]);
    for (int m = 0; m < 4; m++) {
        const char *base = format("%s|--steps|90|--temperature|0.8%s", more[m], five);
        char *plain = text_of(base);
        Run run = served(llama(format("%s|--prefix-cache", base)));
        CHECK_TEXT(run.out, plain);
        if (m >= 2) CHECK(statistic(run.err, "tokens computed again") > 0);
        CHECK((statistic(run.err, "tokens were found") > 0) == (m >= 2));
    }
}

// Some that can be followed by hand: blocks of 4, and 12 positions for each request. A prompt of n
// letters x is n + 2 tokens: BOS and a blank stand in front.
static void test_scheduler_by_hand(void)
{
    const char *options = "--block-size|4|--steps";
    make_model();
    // Four blocks. A has 3 tokens; B and C have 8, and C has to wait. Step 2: B takes the last
    // block. Step 3: A lacks one, and B, which has 9 tokens in the cache, is preempted. It is the
    // head of the queue again, so C, for which there is room, has to wait for it. A ends in step
    // 10. Step 11: B computes 10 tokens; two more steps. Step 14: C computes 8; four more steps.
    Run run = served(llama(format("%s|12|--blocks|4|-p|Q|-p|xxxxxx|-p|xxxxxx", options)));
    CHECK_HAS(run.err, "; 45 tokens in 18 steps, ");
    CHECK_HAS(run.err, "llama: preemptions: 1; 9 tokens computed again\n");
    CHECK_HAS(run.err, "sequences at the peak: 2, in 4 blocks of 4 tokens, ");
    // The same with the prefix cache. When A takes its third block in step 7, it is the second of
    // the two that B has left there, the leaf. Step 11: B finds its first block, and computes 6 of
    // its 10 tokens. So does C, and computes 4 of 8; its second block is given up for that of B.
    // Step 13: B ends. Step 15: C ends.
    run =
        served(llama(format("%s|12|--blocks|4|-p|Q|-p|xxxxxx|-p|xxxxxx|--prefix-cache", options)));
    CHECK_HAS(run.err, "; 37 tokens in 15 steps, ");
    CHECK_HAS(run.err, "llama: preemptions: 1; 5 tokens computed again\n");
    CHECK_HAS(run.err, "8 tokens were found");
    // Two equal prompts of 50 tokens do not fit at once into 23 blocks. Step 1 computes the first
    // one; step 2 its next token, and of the second prompt what is not in 12 full blocks, 2 tokens.
    // Each goes on to 60 positions: steps 2 to 11, and 3 to 12.
    const char *x48 = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    run = served(llama(
        format("%s|60|--chunk|64|--blocks|23|-p|%s|-p|%s|--prefix-cache", options, x48, x48)));
    CHECK_HAS(run.err, "; 72 tokens in 12 steps, ");
    CHECK_HAS(run.err, "llama: preemptions: 0; ");
    CHECK_HAS(run.err, "48 tokens were found");
    // At most 256 requests run at a time: of 300, 44 wait for three steps.
    char *lines = memset(allocate(300), '\n', 300);
    save(path_of("lines"), lines, 300);
    run = served(llama(format("%s|3|-f|%s", options, path_of("lines"))));
    CHECK_HAS(run.err, "; 900 tokens in 6 steps, ");
    CHECK_HAS(run.err, "sequences at the peak: 256, in 256 blocks of 4 tokens, ");
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
    make_model();
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
    make_model();
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
    make_model();
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
    make_model();
    Run run = served(llama("-p|the|--steps|97"));
    CHECK_HAS(run.err, "--steps 97");
    CHECK_HAS(run.err, "96");
    CHECK_EQ(count_lines(run.err), 5);
    char *expected = run.out;
    run = served(llama("-p|the|--steps|96"));
    CHECK_TEXT(run.out, expected);
    CHECK_EQ(count_lines(run.err), 4);
    run = served(llama("-p|the"));  // the default of 200 was not asked for
    CHECK_TEXT(run.out, expected);
    CHECK_EQ(count_lines(run.err), 4);
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
        make_model();
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
                   "--beam|2|--samples|2/--beam|2|--speculate|1/--beam|2|--temperature|1/"
                   "--prefix-cache|--beam|2/"
                   "--prefix-cache|--cache|contiguous/-p/-f/-x/"
                   "--unknown|1/third-file";
    make_model();
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
    make_model();
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
    make_model();
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
        for (int i = 0; i < 9; i += dtype ? 4 : 1) {
            const char *how = cache_options(i % 3, block_sizes[i / 3]);
            CHECK_TEXT(real_text(format("%s|%s", base, how)), expected);
            if (i == 4) CHECK_TEXT(real_text(format("%s|%s|--plain", base, how)), expected);
            if (i != 4 || dtype > 0) continue;  // with fifteen others, too
            char *batch = real_text(format("%s|%s%s", base, how, all_prompts()));
            CHECK_TEXT(request(batch, 0), expected);
        }
    }
}

// --samples 8, --beam 4, and --speculate up to 8 with the prefix cache.
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
    for (int k = 1; k <= 8; k *= 2)
        CHECK_TEXT(real_text(format("%s|--speculate|%d|--prefix-cache", base, k)), plain);
    char *batch = real_text(format("%s%s|--speculate|4", base, all_prompts()));
    CHECK_TEXT(request(batch, 0), plain);
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
    make_model();
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
    make_model();
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
    make_model();
    CHECK_EQ(llama("--temperature|warm").status, 0);
}

typedef struct Test {
    const char *name;
    void (*run)(void);
} Test;

// clang-format off
static const Test tests[] = {
#define TEST(name) {#name, test_##name}
    TEST(options_crossed), TEST(scheduler_by_hand), TEST(same_text_however_served),
    TEST(small_pools), TEST(beams), TEST(speculates), TEST(prefix_cache), TEST(merges_by_hand),
    TEST(prompt_files), TEST(refuses), TEST(notes), TEST(damaged_files), TEST(usage_errors),
    TEST(options), TEST(output_that_cannot_be_written), TEST(real_weights),
    TEST(real_weights_shared), TEST(on_a_gpu), TEST(real_weights_on_a_gpu), TEST(tests_can_fail),
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
