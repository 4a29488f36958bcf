// llama_tests.c: what examples/llama.c promises, shown by starting it.
//
//     make build/llama-tests && build/llama-tests [NAME...] [--list] [--quick] [--seed N]
//
// The promise is that no way to serve a request changes a byte of its text. The first tests have
// the rules of llama2.c once more, as plainly as can be, and draw the rest: the weights, the
// vocabulary, the prompts, the options. The others show what cannot be drawn: the steps of the
// scheduler, refusals, trained weights. LLAMA names the program, otherwise ./llama; MODELS the
// folder of a published model, otherwise this one or ../shared/models; without it one test is
// skipped.
//
// The files of the last test stay in build/llama-tests-files.

#include "../paged.h"  // for the oracle
#include "test.h"
#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

static char folder[300];        // of all files
static const char *files = "";  // the model and the tokenizer; without them, llama tells tales
static char *out;               // what the last command wrote to standard output
static char *err;               // and to standard error
static const char *path = "./llama";

// ---- files, programs --------------------------------------------------------------------------

static FILE *open_file(const char *name, const char *mode)
{
    snprintf(folder, sizeof folder, "%s-files", program);
    mkdir(folder, 0777);
    FILE *file = fopen(format_text("%s/%s", folder, name), mode);
    CHECK(file != NULL);
    return file;
}

static void save(const char *name, const void *bytes, size_t size)
{
    FILE *file = open_file(name, "wb");
    CHECK_EQ(fwrite(bytes, 1, size, file), size);
    CHECK_EQ(fclose(file), 0);
}

static char *load(const char *name, size_t *size)  // with zeros at its end
{
    FILE *file = open_file(name, "rb");
    char *bytes = alloc(1 << 20);
    *size = fread(bytes, 1, 1 << 20, file);
    CHECK(*size < (1 << 20) - 100);
    fclose(file);
    return bytes;
}

// Runs a command of the shell; returns its exit status. A crash, a hang and a finding of a
// sanitizer fail the test, whatever else it expects.
static int run(const char *line)
{
    size_t size;
    save("command", line, strlen(line));
    int status = system(format_text("ulimit -t 300; sh %s/command >%s/out 2>%s/err </dev/null",
                                    folder, folder, folder));
    out = load("out", &size);
    err = load("err", &size);
    note("%s/command, which says: %s", folder, err);
    CHECK(WEXITSTATUS(status) < 126);
    CHECK(!strstr(err, "Sanitizer") && !strstr(err, "runtime error"));
    return WEXITSTATUS(status);
}

static int llama(const char *options) { return run(format_text("%s %s %s", path, files, options)); }

static char *text_of(const char *options)
{
    CHECK_EQ(llama(options), 0);
    return out;
}

// ---- a checkpoint with random weights, and its tokenizer --------------------------------------
// The text is nonsense, but the same nonsense however it is served. The files are little-endian,
// and so is any machine that llama runs on.

enum { EMBEDDING, RMS_ATT, WQ, WK, WV, WO, RMS_FFN, W1, W2, W3, RMS_FINAL, ROPE, CLASSIFIER };
enum { BOS = 1, FIRST_BYTE = 3 };  // tokens
enum { MAX_DIM = 64, MAX_HIDDEN = 48, CONTEXT = 96, MAX_VOCAB = 500, MAX_TEXT = 23 };

typedef struct Model {                                         // what is in the files
    int dim, hidden, layers, heads, kv_heads, vocab, context;  // the first seven numbers
    int head_dim, kv_dim;
    bool twins;                    // tokens 2i and 2i + 1 have the same weights
    float *parts[CLASSIFIER + 1];  // the weights, in the order of the file
    const char *texts[MAX_VOCAB];
    float scores[MAX_VOCAB];
} Model;

static Model model;

static void add_token(float score, const char *text)
{
    model.scores[model.vocab] = score;
    model.texts[model.vocab++] = text;
}

static float random_weight(int part, int i, const float *weights, float control)
{
    float x = random_float();
    if (part == RMS_ATT || part == RMS_FFN || part == RMS_FINAL) return 1 + x / 4;
    if (part != EMBEDDING && part != CLASSIFIER) return x / 2;
    if (model.twins && i / model.dim % 2) return weights[i - model.dim];
    return i < FIRST_BYTE * model.dim ? x * control : x;
}

static void write_tokenizer(void)
{
    FILE *file = open_file("tokenizer", "wb");
    fwrite(&(int){MAX_TEXT}, 4, 1, file);
    for (int i = 0; i < model.vocab; i++) {
        int length = (int)strlen(model.texts[i]);
        fwrite(&model.scores[i], 4, 1, file);
        fwrite(&length, 4, 1, file);
        fputs(model.texts[i], file);
    }
    CHECK_EQ(fclose(file), 0);
}

// <unk>, <s>, </s>, the 256 bytes, the printable characters, and random merges: equal scores, the
// same text twice, characters of several bytes, with and without a token of their own. In one of
// ten only the first of these.
static void draw_tokenizer(void)
{
    const char *letters[] = {"a", "b", "c", " ", "ë", "日", "😀"};
    model.vocab = 0;
    add_token(0, "<unk>");
    add_token(0, "\n<s>\n");
    add_token(0, "\n</s>\n");
    for (int i = 0; i < 256; i++) add_token(0, format_text("<0x%02X>", i));
    for (char c = ' '; c <= '~'; c++) add_token(-100.0f - c, format_text("%c", c));
    for (int i = between(0, 7); i < 7; i++) add_token(-1, letters[i]);
    int first = model.vocab - 1;
    for (int i = between(0, 40); i > 0; i--) {
        const char *text = letters[between(0, 6)];
        if (between(0, 1)) text = model.texts[between(first, model.vocab - 1)];
        text = format_text("%s%s", text, letters[between(0, 6)]);
        if (between(0, 3) == 0) text = format_text("%s%s", text, model.texts[model.vocab - 1]);
        if (strlen(text) <= MAX_TEXT) add_token((float)between(-8, 8), text);
    }
    if (between(0, 9) == 0) model.vocab = between(FIRST_BYTE, FIRST_BYTE + 255);
    write_tokenizer();
}

// A checkpoint of a random shape. If the classifier has weights of its own, vocab_size is negative.
static void draw_checkpoint(void)
{
    Model *m = &model;
    const float control = between(0, 2) ? 1.7f : 1;  // how often control tokens win
    const bool separate = between(0, 1);
    m->hidden = between(1, MAX_HIDDEN);
    m->layers = between(1, 3);
    m->kv_heads = between(1, 2);
    m->heads = m->kv_heads * between(1, 2);
    m->head_dim = 2 * between(1, 8);
    m->context = between(24, CONTEXT);
    m->twins = between(0, 3) == 0;
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
    FILE *file = open_file("model", "wb");
    if (separate) m->vocab = -m->vocab;
    fwrite(m, sizeof(int), 7, file);
    m->vocab = abs(m->vocab);
    for (int part = 0; part < CLASSIFIER + separate; part++) {
        float *weights = alloc((size_t)sizes[part] * sizeof *weights);
        for (int i = 0; i < sizes[part]; i++) weights[i] = random_weight(part, i, weights, control);
        fwrite(weights, sizeof *weights, (size_t)sizes[part], file);
        m->parts[part] = weights;
    }
    if (!separate) m->parts[CLASSIFIER] = m->parts[EMBEDDING];
    CHECK_EQ(fclose(file), 0);
}

static void draw_model(void)
{
    draw_tokenizer();
    draw_checkpoint();
    files = format_text("%s/model %s/tokenizer", folder, folder);
}

// ---- the rules of llama2.c --------------------------------------------------------------------
// Its run.c once more: one request, one token at a time, over the contiguous cache of the engine's
// oracle. Of its samplers, greedy and plain sampling; the generator of random numbers is llama's.
// Where rounding may decide, as two logits are as good as equal, the comparison ends.

static void product(float *y, const float *weights, const float *x, int rows, int n)
{
    for (int row = 0; row < rows; row++) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += (double)weights[row * n + i] * x[i];
        y[row] = (float)sum;
    }
}

static void normalize(float *y, const float *x, const float *weights, int n)
{
    double squares = 0;
    for (int i = 0; i < n; i++) squares += (double)x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = (float)(weights[i] * x[i] / sqrt(squares / n + 1e-5));
}

static void turn(float *x, int size, int position)
{
    for (int i = 0; i < size; i += 2) {
        double angle = position * pow(10000, -(i % model.head_dim) / (double)model.head_dim);
        double a = x[i];
        double b = x[i + 1];
        x[i] = (float)(a * cos(angle) - b * sin(angle));
        x[i + 1] = (float)(a * sin(angle) + b * cos(angle));
    }
}

static Oracle *empty_cache(int dtype)
{
    PoolConfig config = {model.layers, model.kv_heads, model.head_dim, 1, 1, dtype, 0, PAGED_CPU};
    return oracle_create(&config, CONTEXT);
}

// Takes one more token. logits: [vocab], of the token after it.
static void think(Oracle *cache, int token, float *logits)
{
    const Model *m = &model;
    float x[MAX_DIM], norm[MAX_DIM], q[MAX_DIM], k[MAX_DIM], v[MAX_DIM], seen[MAX_DIM], y[MAX_DIM];
    float h1[MAX_HIDDEN], h3[MAX_HIDDEN];
    const int dim = m->dim;
    const int position = cache->length++;
    for (int i = 0; i < dim; i++) x[i] = m->parts[EMBEDDING][token * dim + i];
    for (int layer = 0; layer < m->layers; layer++) {
        normalize(norm, x, m->parts[RMS_ATT] + layer * dim, dim);
        product(q, m->parts[WQ] + layer * dim * dim, norm, dim, dim);
        product(k, m->parts[WK] + layer * m->kv_dim * dim, norm, m->kv_dim, dim);
        product(v, m->parts[WV] + layer * m->kv_dim * dim, norm, m->kv_dim, dim);
        turn(q, dim, position);
        turn(k, m->kv_dim, position);
        oracle_write(cache, layer, 1, k, v);
        oracle_attend(cache, layer, 1, m->heads, 0, q, seen, NULL);
        product(y, m->parts[WO] + layer * dim * dim, seen, dim, dim);
        for (int i = 0; i < dim; i++) x[i] += y[i];
        normalize(norm, x, m->parts[RMS_FFN] + layer * dim, dim);
        product(h1, m->parts[W1] + layer * m->hidden * dim, norm, m->hidden, dim);
        product(h3, m->parts[W3] + layer * m->hidden * dim, norm, m->hidden, dim);
        for (int i = 0; i < m->hidden; i++) h1[i] *= h3[i] / (1 + expf(-h1[i]));
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
static int tokenize(const char *prompt, int *tokens)
{
    int n = 0;
    tokens[n++] = BOS;
    const char *text = *prompt ? format_text(" %s", prompt) : "";
    while (*text) {
        int size = 1;
        while (size < 4 && (text[size] & 0xc0) == 0x80) size++;
        char piece[8];
        snprintf(piece, sizeof piece, "%.*s", size, text);
        int whole = find_token(piece);
        if (whole >= 0) tokens[n++] = whole;
        for (int i = 0; i < size && whole < 0; i++) {
            int byte = (unsigned char)text[i] + FIRST_BYTE;
            tokens[n++] = byte < model.vocab ? byte : 0;
        }
        text += size;
    }
    for (;;) {  // the pair with the best score becomes one token, of equal pairs the first
        int best = -1;
        int at = 0;
        for (int i = 1; i < n; i++) {
            char piece[64];
            snprintf(piece, 64, "%s%s", model.texts[tokens[i - 1]], model.texts[tokens[i]]);
            int both = find_token(piece);
            if (both < 0 || (best >= 0 && model.scores[both] <= model.scores[best])) continue;
            best = both;
            at = i;
        }
        if (best < 0) return n;
        tokens[at - 1] = best;
        memmove(tokens + at, tokens + at + 1, (size_t)(--n - at) * sizeof *tokens);
    }
}

// Adds what is printed for a token after another one.
static char *print_token(char *end, int previous, int token)
{
    const char *text = model.texts[token];
    const char byte[] = {(char)(token - FIRST_BYTE), 0};
    if (previous == BOS && *text == ' ') text++;
    if (token >= FIRST_BYTE && token < FIRST_BYTE + 256) text = byte;
    unsigned char c = (unsigned char)text[0];
    bool shown = text[1] || (c >= ' ' && c <= '~') || (c >= '\t' && c <= '\r');
    return stpcpy(end, shown ? text : "");
}

// ---- the tokens that follow -------------------------------------------------------------------

typedef struct Draw {  // the options that were drawn
    int asked, steps, samples, dtype, seed;
    bool prefix_cache;
    double temperature;
    const char *prompts[8];
    int num_prompts, num_served;  // the others take too many tokens
    const char *options;
} Draw;

typedef struct Text {  // as it has to be
    int tokens[CONTEXT + 200];
    int count;       // of the tokens of prompt and answer; 0: refused
    bool undecided;  // rounding decides about a token
} Text;

// The likeliest token, of equals the first; -1 if rounding decides which it is.
static int choose_likeliest(const Draw *p, const float *logits)
{
    const double tolerance = p->dtype == PAGED_F32 ? 1e-5 : 2e-3;
    int best = 0;
    for (int i = 1; i < model.vocab; i++)
        if (logits[i] > logits[best]) best = i;
    for (int i = 0; i < model.vocab; i++)
        if (logits[i] < logits[best] && logits[best] - logits[i] < tolerance) return -1;
    return best;
}

// The token that is drawn by the random numbers of test.h, which are those of llama; -1 if rounding
// decides which. An error of the logits is divided by the temperature.
static int draw_token(const Draw *p, const float *logits)
{
    const double tolerance = 5e-6 / p->temperature;
    const double coin = (double)(next_random() >> 11) * 0x1p-53;
    int token = -1;
    int found = 0;
    double below = 0;
    double sum = 0;
    for (int i = 0; i < model.vocab; i++) sum += exp(logits[i] / p->temperature);
    for (int i = 0; i < model.vocab; i++) {
        double above = below + exp(logits[i] / p->temperature) / sum;
        if (coin > below - tolerance && coin < above + tolerance) {
            token = i;
            found++;
        }
        below = above;
    }
    return found == 1 ? token : -1;
}

static Text tell(const Draw *p, const char *prompt, uint64_t seed)
{
    float logits[MAX_VOCAB];
    Text text = {.count = 0};
    int length = tokenize(prompt, text.tokens);
    if (length > p->steps) return text;
    text.count = length;
    Oracle *cache = empty_cache(p->dtype);
    const uint64_t state = random_state;
    random_state = seed;
    for (int i = 0; i < p->steps; i++) {
        think(cache, text.tokens[i], logits);
        if (i + 1 < length) continue;
        int token = p->temperature > 0 ? draw_token(p, logits) : choose_likeliest(p, logits);
        text.undecided = token < 0;
        if (token < 0 || token == BOS) break;
        text.tokens[text.count++] = token;
    }
    random_state = state;
    oracle_release(cache);
    return text;
}

// ---- everything drawn -------------------------------------------------------------------------

static const char *draw_text(int length)
{
    const char *letters[] = {"a", "b", "c", " ", "a", "b", "ab", "ë", "日", "😀", "\t", "Q"};
    const char *text = "";
    for (; length > 0; length--) text = format_text("%s%s", text, letters[between(0, 11)]);
    return text;
}

// Up to eight prompts, of which most begin alike.
static void draw_prompts(Draw *p)
{
    const char *system = draw_text(between(0, 25));
    int tokens[200];
    p->num_prompts = between(1, 8);
    for (int i = 0; i < p->num_prompts; i++) {
        p->prompts[i] = draw_text(between(0, 9));
        if (between(0, 2)) p->prompts[i] = format_text("%s%s", system, p->prompts[i]);
        p->options = format_text("%s -p '%s'", p->options, p->prompts[i]);
        if (tokenize(p->prompts[i], tokens) <= p->steps) p->num_served++;
    }
}

static Draw draw_options(const char *device)
{
    Draw d = {.seed = between(0, 1000), .samples = 1};
    const char *caches[] = {"contiguous", "gather", "paged"};
    const char *dtypes[] = {"f32", "f16", "bf16"};  // order of paged.h
    int cache = between(0, 5) ? between(1, 2) : 0;
    int drafts = 0;
    int block_size = between(0, 2) ? between(1, 4) : between(5, 40);
    if (cache == 0) block_size = model.context;
    d.asked = between(0, 5) ? between(6, model.context + 9) : 0;  // 0: not at all
    if (strcmp(device, "standin") == 0 && (d.asked == 0 || d.asked > 24))
        d.asked = 24;  // it is slow
    d.steps = d.asked && d.asked < model.context ? d.asked : model.context;
    if (between(0, 2) == 0) d.dtype = between(1, 2);
    if (d.dtype == 0 && between(0, 1)) d.temperature = 0.25 * between(1, 6);
    if (between(0, 2)) drafts = between(1, 6);
    if (between(0, 2) == 0) d.samples = between(2, 4);
    d.prefix_cache = cache > 0 && between(0, 2) > 0;
    d.options = format_text(
        "--device %s --dtype %s --temperature %g --seed %d --samples %d --chunk %d --speculate %d "
        "--cache %s%s%s",
        device, dtypes[d.dtype], d.temperature, d.seed, d.samples, between(1, 40), drafts,
        caches[cache], d.prefix_cache ? " --prefix-cache" : "", between(0, 1) ? " --plain" : "");
    if (d.asked) d.options = format_text("%s --steps %d", d.options, d.asked);
    draw_prompts(&d);
    if (cache > 0) d.options = format_text("%s --block-size %d", d.options, block_size);
    int longest = (d.steps + block_size - 1) / block_size;
    if (between(0, 4))  // a small pool
        d.options = format_text("%s --blocks %d", d.options, longest + between(0, longest));
    return d;
}

// The number that llama says before these words; 0 if it does not say them.
static int number_of(const char *words)
{
    const char *at = strstr(err, words);
    while (at && at > err && at[-1] >= '0' && at[-1] <= '9') at--;
    return at ? atoi(at) : 0;
}

// The statistics. needed: how many tokens are computed if none is computed twice, or for a guess
// that is wrong.
static void check_statistics(const Draw *p, int needed)
{
    int requests = p->num_prompts * p->samples;
    int in_vain = number_of(" tokens were guessed") - number_of(" of them right");
    CHECK_EQ(strstr(err, "the model's context is") != NULL, p->asked > p->steps);
    CHECK_HAS(err, format_text("requests: %d, refused: %d; ", requests,
                               requests - p->num_served * p->samples));
    if (!p->prefix_cache)
        CHECK_EQ(number_of(" tokens in "), needed + number_of(" tokens computed again") + in_vain);
}

// Compares the texts of a draw, and the statistics. False if rounding decides about a text.
static bool compare_with_the_rules(const Draw *p)
{
    const int count = p->num_prompts * p->samples;
    int tokens[200];
    int needed = 0;
    char *expected = alloc(1 << 17);
    char *end = expected;
    for (int i = 0; i < count; i++) {
        const char *prompt = p->prompts[i / p->samples];
        const Text text = tell(p, prompt, (uint64_t)(p->seed + i));
        if (text.undecided) return false;
        needed += text.count < p->steps ? text.count : p->steps;
        if (text.count > 0 && i % p->samples > 0) needed -= tokenize(prompt, tokens);  // shared
        if (count > 1) end += sprintf(end, "=== request %d ===\n", i);
        for (int k = 1; k < text.count; k++)
            end = print_token(end, text.tokens[k - 1], text.tokens[k]);
        end = stpcpy(end, "\n");
    }
    CHECK_EQ(llama(p->options), p->num_served < p->num_prompts);
    CHECK_TEXT(out, p->num_served > 0 ? expected : "");
    if (p->num_served > 0) check_statistics(p, needed);
    return true;
}

static void compare_draws(int draws, const char *device)
{
    int preempted = 0;
    int found = 0;
    int decided = 0;
    for (int draw = 0; draw < draws; draw++) {
        draw_model();
        setenv("PAGED_LANE_ORDER", format_text("%d", draw % 2), 1);
        Draw d = draw_options(device);
        if (compare_with_the_rules(&d)) {
            decided++;
            if (number_of(" tokens computed again") > 0) preempted++;
            if (number_of(" tokens were found") > 0) found++;
        }
        free_to(0);
    }
    CHECK(draws < 100 || (preempted > draws / 8 && found > draws / 16 && decided > draws * 3 / 4));
}

TEST(any_options_give_the_text_that_the_rules_give) { compare_draws(times(150, 6), "cpu"); }

// Those of a GPU, or of the stand-in for one.
TEST(kernels_give_the_text_that_the_rules_give)
{
    const char *device = "gpu";
    if (llama("-n 2 --device gpu") != 0) device = "standin";
    CHECK(device[0] == 'g' || strstr(err, "GPU"));
    if (llama(format_text("-n 2 --device %s", device)) != 0) skip("no GPU, and no stand-in here");
    compare_draws(times(12, 6), device);
}

// ---- the scheduler ----------------------------------------------------------------------------

// Prompts of as many tokens: a word is one, after BOS.
#define ONE " -p ''"
#define FIVE " -p 'One day a block'"
#define EIGHT " -p 'One day a block named Zoe had'"
#define TWELVE " -p 'One day a block named Zoe had two empty slots.'"

// What tales take in blocks of four tokens.
TEST(steps_and_blocks_are_what_the_rules_of_the_scheduler_give)
{
    static const char *const cases[][5] = {
        // At most 256 requests run at a time; 44 wait three steps.
        {"-n 3 $(awk 'BEGIN { while (n++ < 300) print \"--prompt=\" }')", " 900 tokens in 6 steps",
         "at the peak: 256, in 256 blocks of 4 tokens"},
        // Samples are not among these 256. The first one takes the block, the others copy it.
        {"-n 3 --samples 300 -t 1", " 601 tokens in 3 steps",
         "at the peak: 300, in 300 blocks of 4 tokens, 675.0 KiB:",
         "1.6 % of the 43200.0 KiB it takes to reserve 256 tokens for each", "299 were copied"},
        // In step 5, when the older one needs a block, the newer gives way. It has 11 tokens.
        {"-n 12 --blocks 4" ONE EIGHT, " 35 tokens in 13 steps",
         "preemptions: 1; 11 tokens computed again", "at the peak: 2, in 4 blocks"},
        // One that gives way is the first to come back.
        {"-n 12 --blocks 4" ONE EIGHT ONE, " 48 tokens in 23 steps",
         "preemptions: 2; 12 tokens computed again", "at the peak: 3, in 4 blocks"},
        // There must be room for all that is known, not only for the first chunk.
        {"-n 12 --blocks 4 --chunk 2" ONE TWELVE, " 32 tokens in 18 steps",
         "preemptions: 1; 8 tokens computed again", "at the peak: 2, in 3 blocks"},
        // When one has left, the newest is still the newest.
        {"-n 12 --blocks 8" TWELVE ONE ONE FIVE ONE, " 64 tokens in 16 steps",
         "preemptions: 1; 4 tokens computed again", "at the peak: 5, in 8 blocks"},
        // What is found is what was computed before: of an equal prompt, the first chunk.
        {"-n 12 --prefix-cache --chunk 4" TWELVE TWELVE, " 20 tokens in 3 steps",
         "preemptions: 0; 0 tokens computed again",
         " 4 tokens were found in the prefix cache when their requests began"},
        // What gave way finds its first block again.
        {"-n 12 --blocks 4 --prefix-cache" ONE EIGHT, " 30 tokens in 14 steps",
         "preemptions: 1; 6 tokens computed again", " 4 tokens were found"},
        // Samples fork off before any of them guesses.
        {"-n 30 --samples 3 -t 1 --speculate 4 --chunk 5 -p 'Zoe had Zoe had Zoe'",
         " 109 tokens in 25 steps", "37 tokens were guessed, 6 of them right; 31 were rewound"},
        // A guess makes none give way.
        {"-n 60 --blocks 18 --speculate 4" ONE ONE, " 262 tokens in 87 steps",
         "preemptions: 2; 66 tokens computed again", " 76 tokens were guessed, 0 of them right"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        text_of(format_text("--block-size 4 %s", cases[i][0]));
        for (int line = 1; line < 5 && cases[i][line]; line++) CHECK_HAS(err, cases[i][line]);
    }
}

// ---- files and options ------------------------------------------------------------------------

// A command that must fail, with a message that has these words, and print no text.
static void fails(const char *options, int status, const char *says)
{
    CHECK_EQ(llama(options), status);
    CHECK_HAS(err, says);
    CHECK_TEXT(out, "");
}

TEST(what_can_never_be_served_is_refused_at_once)
{
    fails("-n 2 -p 'One day'", 1,
          "llama: request 0 refused: its prompt of 7 bytes has more than 2 tokens\n");
    CHECK(!strstr(err, "pool of"));  // there is one, though no request needs it
    fails("-n 40 --block-size 4 --blocks 9", 1,
          "llama: request 0 refused: 40 tokens need 10 blocks, the pool has 9\n");
    text_of("-n 40 --block-size 4 --blocks 10");
    CHECK_EQ(llama("-n 2 -p 'One day' -p ''"), 1);
    CHECK(!strstr(err, "the model ends the text"));  // of a request that has none
}

// Either file is cut off, or too long. Or some of its bits are flipped, perhaps of the numbers at its
// head; then it may be served, perhaps until a logit is not finite.
TEST(damaged_files_are_refused)
{
    enum { CUT_OFF, TOO_LONG, FLIPPED_BITS };
    const char *names[] = {"model", "tokenizer"};
    int served = 0;
    for (int i = 0; i < times(200, 8); i++) {
        const char *name = names[i % 2];
        const int damage = between(CUT_OFF, FLIPPED_BITS);
        size_t size;
        draw_model();
        char *bytes = load(name, &size);
        const int end = (int)size - 1;
        if (damage == CUT_OFF) size = (size_t)between(0, between(0, 1) ? end : 40);
        if (damage == TOO_LONG) size += (size_t)between(1, 24);
        const int last = between(0, 1) ? end : 40;
        for (int bits = between(1, 9); damage == FLIPPED_BITS && bits > 0; bits--)
            bytes[between(0, last)] ^= (char)(1 << between(0, 7));
        save(name, bytes, size);
        int status = llama(format_text("-n 16 -t 1 -p '%s'", draw_text(3)));
        if (damage != FLIPPED_BITS || status != 0) {
            CHECK_EQ(status, 1);
            CHECK_HAS(err, format_text("%s/%s: ", folder, name));
            if (!strstr(err, "a logit is not finite")) CHECK_TEXT(out, "");
        }
        if (status == 0) served++;
        free_to(0);
    }
    CHECK(quick || served > 10);
}

// A file that names what is wrong with it.
static void names_its_fault(const char *name, const void *bytes, size_t size, const char *says)
{
    save(name, bytes, size);
    fails("", 1, format_text("llama: %s/%s: %s\n", folder, name, says));
}

TEST(files_of_another_kind_are_named)
{
    // Heads that do not divide, of an odd size, of a large one; then numbers that are out of range.
    const int wrong[][7] = {{34, 9, 1, 4, 2, 99, 64}, {32, 9, 1, 4, 3, 99, 64},
                            {12, 9, 1, 4, 2, 99, 64}, {258, 9, 1, 1, 1, 99, 64},
                            {32, 9, 1, 4, 2, 1, 64},  {32, 9, 1, 4, 2, 99, (1 << 20) + 1},
                            {32, 9, 0, 4, 2, 99, 64}};
    const int version_2[7] = {0x616b3432, 2, 288, 768, 6, 6, 6};
    int other[7] = {32, 16, 1, 4, 2, -100, 64};
    size_t size;
    for (int i = 0; i < 7; i++) other[i] = (int)__builtin_bswap32((unsigned)other[i]);
    draw_model();
    char *bytes = load("model", &size);
    for (size_t at = 28; at < size; at += 4) memcpy(bytes + at, &(float){NAN}, 4);
    names_its_fault("model", bytes, size, "damaged, or the engine is wrong: a logit is not finite");
    const int vocab = model.vocab--;
    write_tokenizer();
    bytes = load("tokenizer", &size);
    names_its_fault("tokenizer", bytes, size,
                    format_text("%d tokens, and the model has %d", vocab - 1, vocab));
    bytes[0] = 4;
    names_its_fault("tokenizer", bytes, size, "not a tokenizer: token 0 has 5 bytes");
    memcpy(bytes, (int[]){INT_MAX, 0, 4097}, 12);
    names_its_fault("tokenizer", bytes, size, "not a tokenizer: token 0 has 4097 bytes");
    model.vocab = vocab;
    add_token(0, "one more");
    write_tokenizer();
    bytes = load("tokenizer", &size);
    names_its_fault("tokenizer", bytes, size,
                    format_text("more tokens than the model, which has %d", vocab));
    for (int i = 0; i < 7; i++)
        names_its_fault("model", wrong[i], sizeof wrong[i],
                        "not a checkpoint, or its heads are not supported");
    names_its_fault("model", other, sizeof other, "a checkpoint of the other byte order");
    names_its_fault("model", version_2, sizeof version_2,
                    "a checkpoint of version 2 of export.py; only version 0 is read here");
    files = format_text("%s/none none", folder);
    fails("", 1, format_text("llama: %s/none: No such file", folder));
}

TEST(what_may_surprise_is_said)
{
    do draw_model();
    while (model.vocab < FIRST_BYTE + 256);
    text_of("-n 9 --samples 3");
    CHECK_HAS(err, "llama: --samples 3 at temperature 0: one text 3 times; -t 1 samples\n");
    text_of("-n 9 -p a -p b 2>&1");
    CHECK_HAS(out, "\nllama: requests: 2");  // in a line of its own, after the texts
    text_of("-n 9 --samples 3 -t 1 -p '\ta'");
    CHECK(!strstr(err, "llama: --samples") && !strstr(err, "lacks"));
    text_of("-n 30 -p a -p ሴ");  // no tokenizer that is drawn has it
    CHECK_HAS(err, "llama: request 1: the tokenizer lacks characters of the prompt; they are not");
    CHECK(!strstr(err, "request 0: "));
    files = "";  // the model of the tales, to which a whole tale is given
    text_of(format_text("--samples 2 -p \"$(%s 2>/dev/null)\" -p One", path));
    CHECK_HAS(err, "llama: request 0: the model ends the text where its prompt ends\n");
    CHECK_HAS(err, "llama: request 1: the model ends the text where its prompt ends\n");
    CHECK(!strstr(err, "request 2: "));
}

TEST(wrong_options_are_refused)
{
    char wrong[] = "--cache none/--cache/--device tpu/--dtype f64/--unknown 1/-x/"
                   "--block-size 0/--block-size -1/--block-size x/--blocks 0/--blocks 99999999999/"
                   "--chunk 0/--chunk ' 5'/--steps 0/--steps 1.5/--samples 0/"
                   "--temperature -1/--temperature nan/--temperature 0x1/--temperature ''/"
                   "--seed ''/--seed 1.5/--seed ' 5'/--seed '5 '/--seed 0x10/--seed -1/"
                   "--speculate -1/--speculate 1025/-p/one-file/three of them/"
                   "--cache contiguous --prefix-cache/--cache contiguous --block-size 16";
    for (char *options = strtok(wrong, "/"); options; options = strtok(NULL, "/"))
        fails(options, 2, "llama: ");
    CHECK_EQ(run(format_text("llama=$(realpath %s); cd / && \"$llama\"", path)), 1);
    CHECK_HAS(err, "examples/tales.bin: No such file or directory; start llama in the folder of");
}

TEST(short_options_are_long_ones_and_all_are_in_the_help)
{
    char names[] = "--prompt --temperature --seed --steps --samples --speculate "
                   "--chunk --prefix-cache --cache --block-size --blocks --dtype --device --plain";
    char *text = text_of("--prompt One --steps 30 --temperature 0.7 --seed 9");
    CHECK_TEXT(text_of("-p One -n 30 -t 0.7 -s 9"), text);
    CHECK(strcmp(text_of("-p One -n 30 -t 0.7 -s 10"), text) != 0);
    CHECK_EQ(run(format_text("%s --help", path)), 0);
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) CHECK_HAS(out, name);
    CHECK_TEXT(err, "");
}

TEST(output_that_cannot_be_written_is_a_failure)
{
    const char *options[] = {"--help", "-n 9", "-n 9 -p One -p Once"};
    if (access("/dev/full", W_OK) != 0) skip("there is no /dev/full");
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(llama(format_text("%s >/dev/full", options[i])), 1);
        CHECK_HAS(err, "cannot write");
    }
}

// ---- trained weights --------------------------------------------------------------------------

// The published text of the 260K-parameter model of karpathy/tinyllamas: `expected_stdout` of
// karpathy/llama2.c, test_all.py.
TEST(every_cache_prints_the_published_text)
{
    const char *models = access("stories260K.bin", R_OK) == 0 ? "." : "../shared/models";
    if (getenv("MODELS")) models = getenv("MODELS");
    files = format_text("%s/stories260K.bin %s/tok512.bin", models, models);
    const char *expected =
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "park. One day, she saw a big, red ball. She wanted to play with it, but it was too high.\n"
        "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to do. "
        "She said, \"I want to play with your ball, but I can't find it.\"\nLily was sad and "
        "didn't "
        "know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\"\n"
        "Lily didn't want to help her mom, so she\n";
    if (run(format_text("ls %s", files)) != 0) skip("MODELS=folder build/llama-tests");
    CHECK_TEXT(text_of("--steps 200 --cache contiguous"), expected);
    CHECK_TEXT(text_of("--steps 200 --cache gather --block-size 1"), expected);
    CHECK_TEXT(text_of("--steps 200 --plain --block-size 7"), expected);
}

int main(int argc, char **argv)
{
    begin_tests(argc, argv, NULL);
    if (getenv("LLAMA")) path = getenv("LLAMA");
    run_tests("", 1);
    return end_tests();
}
