// llama_tests.c: what examples/llama.c promises, shown by starting it.
//
//     build/llama-tests [NAME...] [--list] [--quick] [--seed N]
//
// The promise is that no way to serve a request changes a byte of its text. The first test has the
// rules of llama2.c and of the scheduler once more, as plainly as can be, and draws the rest: the
// weights, the vocabulary, the prompts, the options. The tests after it show what it cannot draw:
// refusals and trained weights. LLAMA names the program, otherwise ./llama; MODELS the folder of a
// published model, otherwise this one or ../shared/models; without it one test is skipped.
//
// The words of the tests, such as CHECK_EQ(), and their runner are those of ../tests.c. A test that
// fails prints where its last command is; the files that it used stay there. A single test by name
// leaves its files in any case.
//
//     cc -O2 checks/llama_tests.c -o build/llama-tests -lm && build/llama-tests

#include "../tests.c"

#include <stdbool.h>

static pid_t first_process;
static char *folder;            // of all files of a test
static const char *files = "";  // the model and the tokenizer; without them, llama tells tales
static char *out;               // what the last command wrote to standard output
static char *err;               // and to standard error

// Runs before the tests below are added: those of tests.c are not run here.
__attribute__((constructor)) static void begin(void)
{
    num_tests = 0;
    first_process = getpid();
}

// ---- files, programs --------------------------------------------------------------------------

// A failing check ends the process of its test without this.
static void remove_folder(void)
{
    char line[500];
    snprintf(line, sizeof line, "rm -r %s", folder);
    if (getpid() != first_process && system(line) != 0) perror(line);
}

static FILE *open_file(const char *name, const char *mode)
{
    if (!folder) {
        folder = mkdtemp(strdup(format_text("%s-XXXXXX", program)));
        CHECK(folder != NULL && atexit(remove_folder) == 0);
    }
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

static char *load(const char *name, size_t *size)  // with a zero at its end
{
    FILE *file = open_file(name, "rb");
    char *bytes = alloc(1 << 20);
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

// Runs a command of the shell; returns its exit status. A crash, a hang and a finding of a
// sanitizer fail the test, whatever else it expects.
static int run(const char *line)
{
    size_t size;
    save("command", line, strlen(line));
    int status = system(format_text("ulimit -t 300; sh %s/command >%s/out 2>%s/err "
                                    "</dev/null",
                                    folder, folder, folder));
    out = load("out", &size);
    err = load("err", &size);
    note("%s/command, which says: %s", folder, err);
    CHECK(WEXITSTATUS(status) < 126);
    CHECK(!strstr(err, "Sanitizer") && !strstr(err, "runtime error"));
    return WEXITSTATUS(status);
}

static const char *llama_path(void) { return getenv("LLAMA") ? getenv("LLAMA") : "./llama"; }

static int llama(const char *options)
{
    return run(format_text("%s %s %s", llama_path(), files, options));
}

static char *text_of(const char *options)
{
    CHECK_EQ(llama(options), 0);
    return out;
}

// The text of request i out of the output for several, with the newline, as it would be alone.
static char *request(const char *texts, int i)
{
    const char *title = format_text("=== request %d ===\n", i);
    const char *start = strstr(texts, title);
    CHECK(start != NULL);
    start += strlen(title);
    const char *end = strstr(start, format_text("\n=== request %d ===\n", i + 1));
    return format_text("%.*s", end ? (int)(end + 1 - start) : INT_MAX, start);
}

// ---- a checkpoint with random weights, and its tokenizer --------------------------------------
// The text is nonsense, but the same nonsense however it is served. The files are little-endian,
// and so is any machine that llama runs on.

enum { EMBEDDING, RMS_ATT, WQ, WK, WV, WO, RMS_FFN, W1, W2, W3, RMS_FINAL, ROPE, CLASSIFIER };
enum { PARTS = CLASSIFIER + 1 };
enum { BOS = 1, FIRST_BYTE = 3 };  // tokens
enum { MAX_DIM = 64, MAX_HIDDEN = 48, CONTEXT = 96, MAX_VOCAB = 500, MAX_TEXT = 23 };

typedef struct Model {  // what is in the files
    int dim, hidden, layers, heads, kv_heads, vocab, context;
    int head_dim, kv_dim;
    bool twins;           // tokens 2i and 2i + 1 have the same weights
    float *parts[PARTS];  // the weights, in the order of the file
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

static void save_tokenizer(void)
{
    FILE *file = open_file("tokenizer", "wb");
    const int longest = MAX_TEXT;
    fwrite(&longest, 4, 1, file);
    for (int i = 0; i < model.vocab; i++) {
        int length = (int)strlen(model.texts[i]);
        fwrite(&model.scores[i], 4, 1, file);
        fwrite(&length, 4, 1, file);
        fputs(model.texts[i], file);
    }
    CHECK_EQ(fclose(file), 0);
}

static float random_weight(int part, int i, const float *weights, float control)
{
    float x = random_float();
    if (part == RMS_ATT || part == RMS_FFN || part == RMS_FINAL) return 1 + x / 4;
    if (part != EMBEDDING && part != CLASSIFIER) return x / 2;
    if (model.twins && i / model.dim % 2) return weights[i - model.dim];
    return i < FIRST_BYTE * model.dim ? x * control : x;
}

// Writes a checkpoint of that shape with random weights. `control` is a factor on those of the
// three control tokens: 0 and they never win, 1 and they are like the others, more and they win
// oftener. With `separate`, vocab_size is negative and the classifier has weights of its own.
static void save_checkpoint(float control, bool separate)
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
    FILE *file = open_file("model", "wb");
    fwrite(header, sizeof header, 1, file);
    m->parts[CLASSIFIER] = NULL;
    for (int part = 0; part < PARTS; part++) {
        if (part == CLASSIFIER && !separate) continue;
        float *weights = alloc((size_t)sizes[part] * sizeof *weights);
        for (int i = 0; i < sizes[part]; i++) weights[i] = random_weight(part, i, weights, control);
        fwrite(weights, sizeof *weights, (size_t)sizes[part], file);
        m->parts[part] = weights;
    }
    if (!separate) m->parts[CLASSIFIER] = m->parts[EMBEDDING];
    CHECK_EQ(fclose(file), 0);
    files = format_text("%s/model %s/tokenizer", folder, folder);
}

// <unk>, <s>, </s>, the 256 bytes, the printable characters, and random merges: equal scores, the
// same text twice, characters of several bytes, with and without a token of their own.
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
    save_tokenizer();
}

static void draw_model(void)
{
    const int head_dims[] = {2, 4, 6, 8, 16};
    draw_tokenizer();
    model.hidden = between(1, MAX_HIDDEN);
    model.layers = between(1, 3);
    model.kv_heads = between(1, 2);
    model.heads = model.kv_heads * between(1, 2);
    model.head_dim = head_dims[between(0, 4)];
    model.context = between(24, CONTEXT);
    model.twins = between(0, 3) == 0;
    save_checkpoint(between(0, 2) ? 1.7f : 1, between(0, 1));
}

// The files of most tests: the control tokens never win, so that no text ends early.
static void make_model(void)
{
    draw_model();
    model.context = CONTEXT;
    model.twins = false;
    save_checkpoint(0, false);
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
    PoolConfig config = {.num_layers = model.layers,
                         .num_kv_heads = model.kv_heads,
                         .head_dim = model.head_dim,
                         .block_size = 1,
                         .num_blocks = 1,
                         .dtype = dtype};
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
static int tokenize(const char *text, int *tokens)
{
    int n = 0;
    tokens[n++] = BOS;
    if (*text) tokens[n++] = find_token(" ");
    while (*text) {
        int size = 1;
        while (size < 4 && (text[size] & 0xc0) == 0x80) size++;
        char piece[8];
        snprintf(piece, sizeof piece, "%.*s", size, text);
        int whole = find_token(piece);
        if (whole >= 0) tokens[n++] = whole;
        for (int i = 0; i < size && whole < 0; i++)
            tokens[n++] = (unsigned char)text[i] + FIRST_BYTE;
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

// What is printed for a token after another one.
static const char *printed(int previous, int token)
{
    static char bytes[256][2];
    const char *text = model.texts[token];
    if (previous == BOS && *text == ' ') text++;
    if (token >= FIRST_BYTE && token < FIRST_BYTE + 256) {
        bytes[token - FIRST_BYTE][0] = (char)(token - FIRST_BYTE);
        text = bytes[token - FIRST_BYTE];
    }
    unsigned char c = (unsigned char)text[0];
    bool shown = text[1] || (c >= ' ' && c <= '~') || (c >= '\t' && c <= '\r');
    return shown ? text : "";
}

static double toss(uint64_t *rng)  // in [0, 1), by the generator of tests.c, which llama has, too
{
    random_state = *rng;
    double coin = (double)(next_random() >> 11) * 0x1p-53;
    *rng = random_state;
    return coin;
}

// The token with the highest logit, or one that is drawn; -1 if rounding decides which.
static int next_token(const float *logits, double temperature, uint64_t *rng, double tolerance)
{
    int next = -1;
    double best = logits[0];
    double sum = 0;
    double below = 0;
    double coin = temperature > 0 ? toss(rng) : 0;
    for (int i = 0; i < model.vocab; i++) best = fmax(best, logits[i]);
    for (int i = 0; i < model.vocab; i++) sum += exp((logits[i] - best) / temperature);
    for (int i = 0; i < model.vocab; i++) {
        double above = below + exp((logits[i] - best) / temperature) / sum;
        bool may = coin > below - tolerance && coin < above + tolerance;
        if (temperature == 0)  // of equal ones, which are neighbours, the first
            may = logits[i] >= best - tolerance && !(i > 0 && logits[i] == logits[i - 1]);
        if (may && next >= 0) return -1;
        if (may) next = i;
        below = above;
    }
    return next;
}

typedef struct Draw {  // the options that were drawn, and what the scheduler makes of them
    int block_size, num_blocks, chunk, drafts, steps, samples, prefix_cache;
    int dtype, beams, seed;
    double temperature;
    const char *prompts[8];
    int num_prompts, num_served;  // the others take too many tokens
    const char *options;
    Pool *pool;
    struct Story **running, **waiting;  // arrays of stb_ds
    int rows, calls, preemptions, again, found, guessed, right;
    int peak, peak_running, peak_apart;
} Draw;

typedef struct Story {  // a request as it has to be
    int tokens[CONTEXT + 200];
    int prompt, count;  // tokens of the prompt, and of prompt and answer; 0: refused
    bool decided;       // false: rounding decides about the token after `count`, or about all
    // For the scheduler:
    int known;  // how many of the tokens are known by now
    int forks, lost;
    Seq *seq;
    int draft[8];
    int num_draft;
    bool ended;
} Story;

// As it is printed.
static char *text_of_story(const Story *s)
{
    char *text = alloc(64 * (size_t)s->count + 2);
    char *end = text;
    for (int i = 1; i < s->count; i++) end = stpcpy(end, printed(s->tokens[i - 1], s->tokens[i]));
    if (s->decided) strcpy(end, "\n");
    return text;
}

// Greedy decoding or sampling.
static Story tell(const Draw *p, const char *prompt, uint64_t rng)
{
    float logits[MAX_VOCAB];
    Story s = {.decided = true};
    s.prompt = s.known = s.count = tokenize(prompt, s.tokens);
    if (s.prompt > p->steps) s.count = 0;
    Oracle *cache = empty_cache(p->dtype);
    for (int i = 0; i < p->steps && i < s.count; i++) {
        think(cache, s.tokens[i], logits);
        if (i + 1 < s.prompt) continue;
        double tolerance = p->dtype == PAGED_F32 ? 4e-6 : 2e-3;
        int next = next_token(logits, p->temperature, &rng, tolerance);
        if (next < 0) s.decided = false;
        if (next >= 0 && next != BOS) s.tokens[s.count++] = next;
    }
    oracle_release(cache);
    return s;
}

// ---- the rules of the scheduler ---------------------------------------------------------------
// Once more, for requests whose tokens are known, on a pool of the engine of its own. There is no
// model: K and V are zeros. It says what the statistics must be.

// The model is called for those that run.
static void call(Draw *p)
{
    int used = p->num_blocks - p->pool->num_free;
    p->calls++;
    if (used <= p->peak) return;
    p->peak = used;
    p->peak_running = (int)arrlen(p->running);
    p->peak_apart = 0;
    for (int i = 0; i < p->peak_running; i++)
        p->peak_apart += (int)arrlen(p->running[i]->seq->block_table);
}

// Guesses what followed the last earlier place of the newest three tokens, or two, or one.
static void draft(const Draw *p, Story *r)
{
    int max = p->drafts < p->steps - r->known ? p->drafts : p->steps - r->known;
    r->num_draft = 0;
    if (r->known - r->seq->length != 1 || r->forks > 0) return;
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
// False: there is none at all.
static bool get_rows(Draw *p, Story *r)
{
    static const float nothing[2 * (CONTEXT + 8)];
    int n = r->known - r->seq->length;
    if (n > p->chunk) n = p->chunk;
    draft(p, r);
    bool all = seq_append(r->seq, n + r->num_draft) == PAGED_OK;
    if (!all) r->num_draft = 0;
    if (!all && seq_append(r->seq, n) != PAGED_OK) return false;
    CHECK_OK(write_one(r->seq, n + r->num_draft, 0, nothing, nothing));
    p->rows += n + r->num_draft;
    p->guessed += r->num_draft;
    return true;
}

// Lets in the head of the queue, if there is room for all that is known of it.
static bool let_in(Draw *p)
{
    Story *r = p->waiting[0];
    CHECK_OK(seq_create(p->pool, &r->seq));
    if (p->prefix_cache) CHECK_OK(seq_lookup(r->seq, r->tokens, r->known));
    int found = r->seq->length;
    if (ceil_div(r->known - found, p->block_size) > p->pool->num_free) {
        seq_release(r->seq);
        return false;
    }
    p->found += found;
    if (r->lost > found) p->again += r->lost - found;
    arrdel(p->waiting, 0);
    arrput(p->running, r);
    return get_rows(p, r);
}

// Rows for those that run, the oldest first. The newest gives way, and becomes the head of the
// queue. Then others are let in.
static void rows_for_all(Draw *p)
{
    for (int i = 0; i < arrlen(p->running);) {
        if (get_rows(p, p->running[i])) {
            i++;
            continue;
        }
        Story *newest = arrpop(p->running);
        newest->lost = newest->seq->length;
        seq_release(newest->seq);
        arrins(p->waiting, 0, newest);
        p->preemptions++;
    }
    while (arrlen(p->waiting) > 0 && let_in(p))
        if (p->prefix_cache) break;
}

// The next token becomes known, and those after guesses that were right.
static void move_on(Draw *p, Story *r)
{
    int right = 0;
    for (;; right++) {
        r->ended = r->known == r->count || r->known == p->steps;
        if (r->known < r->count) r->known++;
        if (r->ended || right == r->num_draft || r->draft[right] != r->tokens[r->known - 1]) break;
    }
    CHECK_OK(seq_rewind(r->seq, r->num_draft - right));
    p->right += right;
}

static void publish_known(const Draw *p, Story *r)
{
    if (p->prefix_cache) CHECK_OK(seq_publish(r->seq, r->tokens, r->seq->length));
}

// After a call: those whose known tokens are computed move on. Samples that fork off, which stand
// after their request in its array, are the newest. Those that have ended leave, the oldest first.
static void move_all(Draw *p)
{
    const int count = (int)arrlen(p->running);
    for (int i = 0; i < arrlen(p->running); i++) {
        Story *r = p->running[i];
        bool computed = r->seq->length >= r->known;
        if (computed && r->forks > 0) publish_known(p, r);
        for (; computed && r->forks > 0; r->forks--) {
            Story *child = r + r->forks;
            CHECK_OK(seq_fork(r->seq, r->seq->length, &child->seq));
            arrput(p->running, child);
        }
        if (computed) move_on(p, r);
        if (i < count) publish_known(p, r);
    }
    for (int i = 0; i < arrlen(p->running);)
        if (p->running[i]->ended) {
            seq_release(p->running[i]->seq);
            arrdel(p->running, i);
        } else
            i++;
}

static void serve_on_paper(Draw *p, Story *stories, int count)
{
    PoolConfig config = {1, 1, 2, p->block_size, p->num_blocks, PAGED_F32, PAGED_CPU, 0};
    CHECK_OK(pool_create(&config, &p->pool));
    for (Story *r = stories; r < stories + count; r += p->samples) {
        r->forks = p->samples - 1;
        if (r->count > 0) arrput(p->waiting, r);
    }
    while (arrlen(p->running) + arrlen(p->waiting) > 0) {
        rows_for_all(p);
        call(p);
        move_all(p);
    }
}

// ---- the rules of beam search -----------------------------------------------------------------

enum { MAX_BEAMS = 5 };

typedef struct Beam {
    Oracle *cache;  // NULL once its text has ended
    int tokens[CONTEXT + 1];
    int count;
    double score;
    float logits[MAX_VOCAB];
} Beam;

// The best `max` of all continuations, of equals the first. That of a beam that has ended is BOS
// once more, at no cost. Returns how many there are, 0 if rounding decides which.
static int best_beams(const Beam *beams, int count, int max, Beam *best)
{
    static double scores[MAX_BEAMS * MAX_VOCAB];
    const int n = model.vocab;
    for (int b = 0; b < count; b++) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += exp(beams[b].logits[i]);
        for (int i = 0; i < n; i++) {
            scores[b * n + i] = beams[b].score + beams[b].logits[i] - log(sum);
            if (!beams[b].cache) scores[b * n + i] = i == BOS ? beams[b].score : -INFINITY;
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
        if (at % n == BOS) b->cache = NULL;
        if (b->cache) b->tokens[b->count++] = at % n;
        scores[at] = -INFINITY;
    }
}

// The likeliest text that the beams find. Counts rows and calls in p.
static Story search(Draw *p, const char *prompt)
{
    static Beam beams[MAX_BEAMS], best[MAX_BEAMS];
    Story s = {.decided = true};
    int count = 1;
    s.prompt = tokenize(prompt, s.tokens);
    if (s.prompt > p->steps) return s;
    memset(beams, 0, sizeof beams);
    memcpy(beams[0].tokens, s.tokens, (size_t)s.prompt * sizeof(int));
    beams[0].count = s.prompt;
    beams[0].cache = empty_cache(p->dtype);
    for (int i = 0; i < p->steps && count > 0; i++) {
        int rows = p->rows;
        for (Beam *b = beams; b < beams + count; b++) {
            if (!b->cache) continue;
            think(b->cache, b->tokens[i], b->logits);
            p->rows++;
        }
        if (p->rows == rows) break;
        if (i + 1 >= s.prompt || (i + 1) % p->chunk == 0) p->calls++;
        if (i + 1 < s.prompt) continue;
        int found = best_beams(beams, count, p->beams, best);
        for (Beam *b = best; b < best + found; b++)
            if (b->cache) b->cache = oracle_fork(b->cache, b->cache->length);
        for (int b = 0; b < count; b++) oracle_release(beams[b].cache);
        memcpy(beams, best, (size_t)found * sizeof *best);
        count = found;
    }
    s.decided = count > 0;
    s.count = count > 0 ? beams[0].count : 0;
    memcpy(s.tokens, beams[0].tokens, sizeof beams[0].tokens);
    return s;
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

static Draw draw_options(void)
{
    Draw d = {.seed = between(0, 1000), .samples = 1, .beams = 1, .chunk = between(1, 40)};
    int cache = between(0, 5) ? between(1, 2) : 0;
    const char *caches[] = {"contiguous", "gather", "paged"};
    const char *dtypes[] = {"f32", "f16", "bf16"};  // order of paged.h
    d.steps = between(6, model.context);
    d.block_size = between(0, 2) ? between(1, 4) : between(5, 40);
    if (between(0, 2) == 0) d.dtype = between(1, 2);
    if (between(0, 5) == 0) {
        d.beams = between(2, MAX_BEAMS);
    } else {
        if (d.dtype == 0 && between(0, 1)) d.temperature = 0.25 * between(1, 6);
        if (between(0, 2)) d.drafts = between(1, 6);
        if (between(0, 2) == 0) d.samples = between(2, 4);
        d.prefix_cache = cache > 0 && between(0, 2) > 0;
    }
    d.options = format_text(
        "--steps %d --dtype %s --temperature %g --seed %d --samples %d "
        "--beam %d --chunk %d --speculate %d --cache %s%s%s",
        d.steps, dtypes[d.dtype], d.temperature, d.seed, d.samples, d.beams, d.chunk, d.drafts,
        caches[cache], d.prefix_cache ? " --prefix-cache" : "", between(0, 1) ? " --plain" : "");
    draw_prompts(&d);
    if (cache > 0) d.options = format_text("%s --block-size %d", d.options, d.block_size);
    if (cache == 0) d.block_size = model.context;
    int longest = ceil_div(d.steps, d.block_size);
    d.num_blocks = d.num_served * d.samples * d.beams * longest;
    if (between(0, 4)) {  // a small pool
        d.num_blocks = d.beams * longest + between(0, d.beams * longest);
        d.options = format_text("%s --blocks %d", d.options, d.num_blocks);
    }
    return d;
}

static void check_statistics(const Draw *p)
{
    int requests = p->num_prompts * p->samples;
    CHECK_HAS(err, format_text("requests: %d, refused: %d; %d tokens in %d steps, ", requests,
                               requests - p->num_served * p->samples, p->rows, p->calls));
    if (p->beams > 1) return;
    CHECK_HAS(err,
              format_text("preemptions: %d; %d tokens computed again\n", p->preemptions, p->again));
    CHECK_HAS(err, format_text("sequences at the peak: %d, in %d blocks of %d tokens, ",
                               p->peak_running, p->peak, p->block_size));
    if (p->samples > 1)
        CHECK_HAS(err, format_text("blocks instead of %d without sharing; %zu were copied\n",
                                   p->peak_apart, p->pool->num_copies));
    if (p->prefix_cache) CHECK_HAS(err, format_text("%d tokens were found in", p->found));
    if (p->drafts == 0) return;
    CHECK_HAS(err, format_text("%d tokens were guessed, %d of them right; %d were rewound\n",
                               p->guessed, p->right, p->guessed - p->right));
}

// Compares the texts of a draw, then the statistics. False if rounding decided about one of them.
static bool compare_with_the_rules(Draw *p)
{
    const int count = p->num_prompts * p->samples;
    bool decided = p->num_served > 0;
    Story *stories = alloc((size_t)count * sizeof *stories);
    CHECK_EQ(llama(p->options), p->num_served < p->num_prompts);
    if (p->num_served == 0) CHECK_TEXT(out, "");
    for (int i = 0; i < count && p->num_served > 0; i++) {
        Story *s = &stories[i];
        char *actual = count > 1 ? request(out, i) : out;
        if (p->beams > 1)
            *s = search(p, p->prompts[i]);
        else
            *s = tell(p, p->prompts[i / p->samples], (uint64_t)(p->seed + i));
        const char *expected = text_of_story(s);
        if (!s->decided) actual[strnlen(actual, strlen(expected))] = 0;
        CHECK_TEXT(actual, expected);
        if (!s->decided) decided = false;
    }
    if (!decided) return false;
    if (p->beams == 1) serve_on_paper(p, stories, count);
    check_statistics(p);
    pool_destroy(p->pool);
    return true;
}

TEST(any_options_give_the_text_that_the_rules_give, ON_CPU)
{
    const int draws = times(120, 6);
    int preempted = 0;
    int found = 0;
    int decided = 0;
    for (int draw = 0; draw < draws; draw++) {
        draw_model();
        Draw d = draw_options();
        if (compare_with_the_rules(&d)) decided++;
        if (d.preemptions > 0) preempted++;
        if (d.found > 0) found++;
        free_to(0);
    }
    CHECK(quick || (preempted > draws / 8 && found > draws / 16 && decided > draws * 3 / 4));
}

// ---- files and options ------------------------------------------------------------------------

// A command that must fail, with a message that has these words, and print no text.
static void fails(const char *options, int status, const char *says)
{
    CHECK_EQ(llama(options), status);
    CHECK_HAS(err, says);
    CHECK_TEXT(out, "");
}

TEST(at_most_256_requests_run_at_a_time, ON_CPU)
{
    text_of("--block-size 4 --steps 3 $(yes -- --prompt= | head -n 300)");  // 44 wait three steps
    CHECK_HAS(err, "; 900 tokens in 6 steps, ");
    CHECK_HAS(err, "sequences at the peak: 256, in 256 blocks of 4 tokens, ");
}

// With one line and exit status 1; the others are served.
TEST(what_can_never_be_served_is_refused_at_once, ON_CPU)
{
    make_model();
    char *the = text_of("--steps 12 -p the");
    CHECK_EQ(llama("--steps 12 -p the -p 'he ate the hat on the heath' -p the"), 1);
    CHECK_HAS(err, "llama: request 1 refused: ");
    CHECK_TEXT(request(out, 0), the);
    CHECK_TEXT(request(out, 1), "\n");
    CHECK_TEXT(request(out, 2), the);
    fails("--steps 40 --block-size 4 --blocks 9 -p the", 1,
          "llama: request 0 refused: 40 tokens need 10 blocks, the pool has 9\n");
    text_of("--steps 40 --block-size 4 --blocks 10 -p the");
    fails("--beam 4 --steps 64 --blocks 15 -p the", 1, "refused");  // beams must fit together
    text_of("--beam 4 --steps 64 --blocks 16 -p the");
}

TEST(steps_beyond_the_context_are_cut_with_a_note, ON_CPU)
{
    make_model();
    char *expected = text_of("-p the --steps 97");
    CHECK_HAS(err, "--steps 97: the model's context is 96");
    CHECK_TEXT(text_of("-p the --steps 96"), expected);
    CHECK(!strstr(err, "--steps"));
    CHECK_TEXT(text_of("-p the"), expected);  // the default of 200 was not asked for
    CHECK(!strstr(err, "--steps"));
}

static void refuses_file(const char *name, const void *bytes, size_t size)
{
    save(name, bytes, size);
    fails("--steps 4", 1, format_text("%s/%s: ", folder, name));
}

// The seven numbers of a checkpoint; in a tokenizer the length of a text is at offset 8, too.
TEST(damaged_files_are_refused, ON_CPU)
{
    const char *names[] = {"model", "tokenizer"};
    const int wrong[] = {0, -1, 101, INT_MAX, INT_MIN, 1 << 20, 65536, 1000001};
    const size_t cuts[] = {0, 1, 3, 4, 7, 12, 27, 28, 29, 100, 1000};
    const char *prose = "Once upon a time there was a text that thought it was a checkpoint.\n";
    for (int file = 0; file < 2; file++) {
        size_t size;
        make_model();
        char *bytes = load(names[file], &size);
        for (int i = 0; i < 11; i++) refuses_file(names[file], bytes, cuts[i]);
        refuses_file(names[file], bytes, size - 1);
        refuses_file(names[file], bytes, size + 4);
        for (int i = 0; i < 56; i++) {
            char *field = bytes + i / 8 * 4;
            char kept[4];
            if (file == 1 && i / 8 != 2) continue;
            memcpy(kept, field, 4);
            memcpy(field, &wrong[i % 8], 4);
            refuses_file(names[file], bytes, size);
            memcpy(field, kept, 4);
        }
        refuses_file(names[file], prose, strlen(prose));
        CHECK_EQ(unlink(format_text("%s/%s", folder, names[file])), 0);
        fails("--steps 4", 1, names[file]);
    }
}

TEST(wrong_options_are_refused, ON_CPU)
{
    char wrong[] = "--cache none/--cache split/--cache/--device tpu/--dtype f64/--unknown 1/-x/"
                   "--block-size 0/--block-size -1/--block-size x/--blocks 0/--blocks 99999999999/"
                   "--chunk 0/--chunk ' 5'/--steps 0/--steps 1.5/--samples 0/--beam 0/"
                   "--temperature -1/--temperature nan/--temperature 0x1/--temperature ''/"
                   "--seed ''/--seed 1.5/--seed ' 5'/--seed '5 '/--seed 0x10/--seed -1/"
                   "--speculate -1/--speculate 1025/-p/one-file/three of them/--beam 2 --samples 2/"
                   "--beam 2 --speculate 1/--beam 2 --temperature 1/--beam 2 --prefix-cache/"
                   "--cache contiguous --prefix-cache/--cache contiguous --block-size 16";
    for (char *options = strtok(wrong, "/"); options; options = strtok(NULL, "/"))
        fails(options, 2, "llama: ");
    CHECK_EQ(run(format_text("llama=$(realpath %s); cd / && $llama", llama_path())), 1);
    CHECK_HAS(err, "examples/tales.bin: No such file or directory; start llama in the folder of");
}

TEST(short_options_are_long_ones_and_all_are_in_the_help, ON_CPU)
{
    char names[] = "--prompt --temperature --seed --steps --samples --beam --speculate "
                   "--chunk --prefix-cache --cache --block-size --blocks --dtype --device --plain";
    char *text = text_of("--prompt One --steps 30 --temperature 0.7 --seed 9");
    CHECK_TEXT(text_of("-p One -n 30 -t 0.7 -s 9"), text);
    CHECK_TEXT(text_of("-pOne -n30 --temperature=0.7 -s9"), text);
    CHECK(strcmp(text_of("-p One -n 30 -t 0.7 -s 10"), text) != 0);
    CHECK_EQ(run(format_text("%s --help", llama_path())), 0);
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) CHECK_HAS(out, name);
    CHECK_TEXT(err, "");
}

TEST(output_that_cannot_be_written_is_a_failure, ON_CPU)
{
    const char *options[] = {"--help", "-n 9", "-n 9 -p One -p Once", "-n 9 --beam 2"};
    if (access("/dev/full", W_OK) != 0) skip("there is no /dev/full");
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(llama(format_text("%s >/dev/full", options[i])), 1);
        CHECK_HAS(err, "cannot write");
    }
}

// ---- tales, a story, kernels ------------------------------------------------------------------

// Ten tales at temperature 0, where the two best logits are at least 0.02 apart, so that the fast
// paths choose the same, and forty at 0.7. checks/tales.py judges what they say.
TEST(fifty_tales_are_the_same_however_they_are_served, ON_CPU)
{
    const char *how[] = {"--beam 4", "-t 0", "-t 0 --plain", "-t 0.7 --samples 4",
                         "-t 0.7 --samples 4 --plain"};
    const char *ways[] = {"--cache gather --block-size 1", "--block-size 4 --chunk 3",
                          "--block-size 16 --blocks 60",   "--block-size 1 --prefix-cache",
                          "--block-size 4 --speculate 4",  "--cache gather --speculate 2"};
    const char *prompts =
        "-p '' -p 'One day' -p 'Long ago' -p 'One day a block named Bo' -p 'Long ago a block named "
        "Lou' -p 'Long ago a block named Hal had two' -p 'One day a block named Ivy had three' "
        "-p 'Once upon a time a block named Eli had three' -p 'Long ago a block named Fay had two' "
        "-p 'Once upon a time a block named Bo had two'";
    char *texts[5];
    for (int i = 0; i < 5; i++) {
        const char *base = format_text("%s %s", quick || i == 0 ? "-p ''" : prompts, how[i]);
        texts[i] = text_of(format_text("%s --cache contiguous", base));
        for (int way = 0; way < (i % 2 ? 6 : 3); way++)
            CHECK_TEXT(text_of(format_text("%s %s", base, ways[way])), texts[i]);
    }
    CHECK_TEXT(texts[2], texts[1]);  // of the plain code and the fast paths
}

// The published text of the 260K-parameter model of karpathy/tinyllamas: `expected_stdout` of
// karpathy/llama2.c, test_all.py.
TEST(every_cache_prints_the_published_text, ON_CPU)
{
    const char *models = access("stories260K.bin", R_OK) == 0 ? "." : "../shared/models";
    if (getenv("MODELS")) models = getenv("MODELS");
    files = format_text("%s/stories260K.bin %s/tok512.bin", models, models);
    const char *expected =
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the"
        " park. One day, she saw a big, red ball. She wanted to play with it, but it was too "
        "high.\n"
        "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to "
        "do. She said, \"I want to play with your ball, but I can't find it.\"\n"
        "Lily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know "
        "what to do.\"\n"
        "Lily didn't want to help her mom, so she\n";
    if (run(format_text("ls %s", files)) != 0) skip("MODELS=folder build/llama-tests");
    CHECK_TEXT(text_of("--steps 200 --cache contiguous"), expected);
    CHECK_TEXT(text_of("--steps 200 --cache gather --block-size 1"), expected);
    CHECK_TEXT(text_of("--steps 200 --plain --block-size 7"), expected);
}

// The same text on the GPU, or on the stand-in for one, from every cache, whatever the order of the
// lanes, also when a pool is too small for all, with guesses; from the fast kernels and the plain.
TEST(kernels_change_no_text, ON_CPU)
{
    const char *more[] = {"", "--cache gather", "--cache contiguous", "--speculate 3 --chunk 2",
                          "--block-size 4 --blocks 20 --chunk 3"};
    const char *device = "gpu";
    if (llama("-n 2 --device gpu") != 0) device = "standin";
    CHECK(device[0] == 'g' || strstr(err, "GPU"));
    if (llama(format_text("-n 2 --device %s", device)) != 0) skip("no GPU, and no stand-in here");
    for (int i = 0; i < 10; i++) {
        const char *base =
            format_text("-n 20 -p '' -p 'One day' -p 'Long ago' %s", i / 5 ? "--plain" : "");
        char *expected = text_of(base);
        setenv("PAGED_LANE_ORDER", format_text("%d", i), 1);
        CHECK_TEXT(text_of(format_text("%s --device %s %s", base, device, more[i % 5])), expected);
        unsetenv("PAGED_LANE_ORDER");
    }
}
