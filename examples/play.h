// play.h: the model of the tales, in docs/play.html. A tale is what llama.c calls a request. It has
// the name of its sequence, and a token is a word or a part of one. play.c includes this file.
//
//     model(4, 64)                      an empty pool in the shape of the model
//     tale(&a, 0)                       begins a tale, which waits until tell() has room for it
//     tell()                            a step: one more token of each tale
//     branch(&a, 9, &b)                 b begins with the first 9 tokens of a, shared with it
//     say(&b, "Gus")                    gives the next word of b
//     back(&a, 9)                       keeps the first 9 tokens of a
//     look(&a, 9)                       finds the head that looked token 9 of a up, and its weights
//     forget(&a)                        a is gone
//
// Of a tale that goes on, all tokens but the last known one are in its sequence.

#include "llama_model.h"

#include <stdarg.h>

typedef struct Tale {
    int *tokens;     // all that are known; NULL: there is no such tale (an array of stb_ds)
    float *queries;  // [tokens computed][num_layers][dim] (an array of stb_ds)
    uint64_t rng;    // 0: takes the likeliest token
    int ended;       // its blocks stay until another tale needs them
    int lost;        // tokens whose K and V were dropped with its blocks
} Tale;

static Model m;
static Tokenizer tokenizer;
static float *values;  // [vocab_size][kv_dim] V of each token in layer 0
static Workspace work;
static ModelInput input;
static Tale tales[SEQS];
static int *order;       // the tales, oldest first (an array of stb_ds)
static int *step_tales;  // those in the current step (likewise)
static char *calls;      // of the engine since the last report(), as JSON (likewise)
static int num_steps, num_computed, num_recomputed, num_preemptions;
static int best_layer, best_head;  // that look() has found
static float best_seen;            // the part of its weights on earlier occurrences

static char name(int i) { return (char)('a' + i); }

// Notes a call of the engine and returns its code.
__attribute__((format(printf, 2, 3))) static int did(int code, const char *format, ...)
{
    char call[100], json[150];
    va_list list;
    va_start(list, format);
    vsnprintf(call, sizeof call, format, list);
    va_end(list);
    int n = snprintf(json, sizeof json, "{\"call\":\"%s\",\"code\":%d}", call, code);
    if (arrlen(calls)) arrput(calls, ',');
    memcpy(arraddnptr(calls, n), json, n);
    return code;
}

// ---- the model and its pool -------------------------------------------------------------------

static void read_files(File checkpoint, File tokens)
{
    float *norm = NULL;
    read_model(&m, checkpoint);
    read_tokenizer(&tokenizer, tokens, m.vocab_size);
    arrsetlen(norm, (size_t)m.vocab_size * m.dim);
    arrsetlen(values, (size_t)m.vocab_size * m.kv_dim);
    for (int token = 0; token < m.vocab_size; token++)
        rmsnorm(norm + token * m.dim, m.embedding + token * m.dim, m.rms_att, 1, m.dim);
    matmul(values, norm, m.wv, m.vocab_size, m.dim, m.kv_dim);
    arrfree(norm);
}

// The bytes of the files, for the page, which has no files.
void load(char *checkpoint, int size, char *tokens, int tokens_size)
{
    read_files((File){"tales.bin", fmemopen(checkpoint, size, "rb")},
               (File){"tales-tokenizer.bin", fmemopen(tokens, tokens_size, "rb")});
}

int model(int block_size, int num_blocks)
{
    if (!values)
        read_files(open_file("examples/tales.bin"), open_file("examples/tales-tokenizer.bin"));
    // No poison: what a wrong engine reads is words, and it mixes them up.
    PoolConfig shape = {m.num_layers, m.num_kv_heads, m.head_dim, block_size,
                        num_blocks,   PAGED_F32,      0,          PAGED_CPU};
    int error = new_pool(shape, 1);
    if (error) return error;
    for (int i = 0; i < SEQS; i++) {
        arrfree(tales[i].tokens);
        arrfree(tales[i].queries);
        tales[i] = (Tale){0};
    }
    arrsetlen(order, 0);
    num_steps = num_computed = num_recomputed = num_preemptions = 0;
    best_layer = best_head = 0;
    best_seen = 0;
    return PAGED_OK;
}

// The tokens that a tale can have. Alone in the pool, any tale can be told to its end.
static int longest(void)
{
    int64_t slots = (int64_t)config.num_blocks * config.block_size;
    return slots < m.seq_len ? (int)slots : m.seq_len;
}

// ---- tales ------------------------------------------------------------------------------------

// The tale of a sequence; NULL if there is none, or, with `unused`, if there is one.
static Tale *tale_of(Seq **seq, int unused)
{
    for (int i = 0; i < SEQS && has_model; i++)
        if (seqs[i] == seq && (tales[i].tokens == NULL) == unused) return &tales[i];
    return NULL;
}

int tale(Seq **seq, int seed)
{
    Tale *t = tale_of(seq, 1);
    if (!t || *seq) return PAGED_BAD_ARGUMENT;
    *t = (Tale){.rng = seed};
    arrput(t->tokens, BOS);
    arrput(order, (int)(t - tales));
    return PAGED_OK;
}

int branch(Seq **from, int at, Seq **to)
{
    Tale *parent = tale_of(from, 0);
    Tale *child = tale_of(to, 1);
    if (!parent || !child || *to) return PAGED_BAD_ARGUMENT;
    if (at < 1 || at > arrlen(parent->tokens)) return PAGED_BAD_ARGUMENT;
    if (*from) {
        int shared = at - 1 < (*from)->length ? at - 1 : (*from)->length;
        int error = did(seq_fork(*from, shared, to), "seq_fork(%c, %d, &%c)", name(parent - tales),
                        shared, name(child - tales));
        if (error) return error;
        size_t floats = (size_t)shared * m.num_layers * m.dim;
        memcpy(arraddnptr(child->queries, floats), parent->queries, floats * sizeof(float));
    }
    memcpy(arraddnptr(child->tokens, at), parent->tokens, at * sizeof(int));
    child->rng = parent->rng ? parent->rng + 1 : 0;
    arrput(order, (int)(child - tales));
    return PAGED_OK;
}

int say(Seq **seq, const char *text)
{
    Tale *t = tale_of(seq, 0);
    if (!t) return PAGED_BAD_ARGUMENT;
    int *tokens = encode(&tokenizer, text);
    int n = (int)arrlen(tokens) - 1;  // without its <s>
    int fits = arrlen(t->tokens) + n <= longest();
    if (fits && n > 0) {
        memcpy(arraddnptr(t->tokens, n), tokens + 1, n * sizeof(int));
        t->ended = 0;
    }
    arrfree(tokens);
    return fits ? PAGED_OK : PAGED_TOO_LONG;
}

int back(Seq **seq, int at)
{
    Tale *t = tale_of(seq, 0);
    if (!t || at < 1 || at > arrlen(t->tokens)) return PAGED_BAD_ARGUMENT;
    int extra = *seq ? (*seq)->length - (at - 1) : 0;
    if (extra > 0) did(seq_rewind(*seq, extra), "seq_rewind(%c, %d)", name(t - tales), extra);
    if (t->lost > at - 1) t->lost = at - 1;
    arrsetlen(t->tokens, at);
    t->ended = 0;
    return PAGED_OK;
}

static void give_back_blocks(int i)
{
    tales[i].lost = (*seqs[i])->length;
    did(seq_release(*seqs[i]), "seq_release(%c)", name(i));
}

int forget(Seq **seq)
{
    Tale *t = tale_of(seq, 0);
    if (!t) return PAGED_BAD_ARGUMENT;
    int i = (int)(t - tales);
    if (*seq) give_back_blocks(i);
    arrfree(t->tokens);
    arrfree(t->queries);
    *t = (Tale){0};
    for (int n = 0; n < arrlen(order); n++)
        if (order[n] == i) arrdel(order, n);
    return PAGED_OK;
}

// ---- a step -----------------------------------------------------------------------------------
// The rules are those of llama.c, and one more: a tale that has ended keeps its blocks, and can be
// looked at, until another one needs them.

// Takes the blocks of a tale that has ended or, to preempt, of the one that came last: it waits
// again. Returns which one; -1: none.
static int take_blocks(int preempt)
{
    int taken = -1;
    for (int n = 0; n < arrlen(order); n++) {
        int i = order[n];
        if (!*seqs[i]) continue;
        if (tales[i].ended || preempt) taken = i;
        if (tales[i].ended) break;
    }
    if (taken < 0) return -1;
    if (!tales[taken].ended) num_preemptions++;
    give_back_blocks(taken);
    return taken;
}

// Lets a waiting tale in, if all its known tokens fit.
static void admit(int i)
{
    int known = (int)arrlen(tales[i].tokens);
    int blocks = (known - 1) / config.block_size + 1;
    while (blocks > pool->num_free && take_blocks(0) >= 0) continue;
    if (blocks > pool->num_free) return;
    num_recomputed += tales[i].lost;
    must(did(seq_create(pool, seqs[i]), "seq_create(pool, &%c)", name(i)), "seq_create");
}

// Makes room for the next tokens of a tale, if need be by preempting all that came later, and adds
// them to the step. Returns 0 if the tale has been preempted itself.
static int add_to_step(int i)
{
    Tale *t = &tales[i];
    int known = (int)arrlen(t->tokens);
    int n = known - (*seqs[i])->length;
    int error;
    while ((error = did(seq_append(*seqs[i], n), "seq_append(%c, %d)", name(i), n)) != PAGED_OK) {
        if (error != PAGED_OUT_OF_BLOCKS) must(error, "seq_append");
        if (take_blocks(1) == i) return 0;
    }
    arrput(input.seqs, *seqs[i]);
    arrput(input.num_tokens, n);
    for (int position = known - n; position < known; position++) {
        arrput(input.tokens, t->tokens[position]);
        arrput(input.positions, position);
    }
    arrput(input.wanted, (int)arrlen(input.tokens) - 1);
    arrsetlen(t->queries, (size_t)known * m.num_layers * m.dim);
    return 1;
}

// forward() shows the queries of each layer. look() needs them.
static void keep_queries(int layer, const float *q)
{
    const int *position = input.positions;
    for (int i = 0; i < arrlen(step_tales); i++)
        for (int n = input.num_tokens[i]; n > 0; n--, position++, q += m.dim)
            memcpy(tales[step_tales[i]].queries + (*position * m.num_layers + layer) * m.dim, q,
                   m.dim * sizeof *q);
}

int tell(void)
{
    int blocked = 0;
    arrsetlen(step_tales, 0);
    clear_input(&input);
    for (int n = 0; n < arrlen(order); n++) {
        int i = order[n];
        if (tales[i].ended) continue;
        if (!*seqs[i] && !blocked) admit(i);
        if (*seqs[i] && add_to_step(i)) arrput(step_tales, i);
        blocked |= !*seqs[i];  // no later tale overtakes it
    }
    if (arrlen(step_tales) == 0) return PAGED_OK;
    work.look = keep_queries;
    const float *logits = forward(&m, pool, ATTEND_PAGED, &input, &work);
    for (int i = 0; i < arrlen(step_tales); i++, logits += m.vocab_size) {
        Tale *t = &tales[step_tales[i]];
        int token = sample(logits, m.vocab_size, t->rng ? 0.7f : 0, &t->rng);
        t->ended = token == BOS || arrlen(t->tokens) >= longest();
        if (!t->ended) arrput(t->tokens, token);
    }
    num_steps++;
    num_computed += (int)arrlen(input.tokens);
    return PAGED_OK;
}

// ---- what the page shows ----------------------------------------------------------------------

// The weights of one head for the query at `at`, over the keys of the tokens up to there.
static void weigh(const float *q, const float *k, int at, int head, float *weights)
{
    float max = -INFINITY;
    float sum = 0;
    const int kv_head = head / (m.num_heads / m.num_kv_heads);
    for (int t = 0; t <= at; t++) {
        const float *key = k + (t * m.num_kv_heads + kv_head) * m.head_dim;
        weights[t] = product(q + head * m.head_dim, key, m.head_dim) / sqrtf((float)m.head_dim);
        max = fmaxf(max, weights[t]);
    }
    for (int t = 0; t <= at; t++) sum += weights[t] = expf(weights[t] - max);
    for (int t = 0; t <= at; t++) weights[t] /= sum;
}

// Finds the head that looked token `at` up when it was chosen: the one that saw most of it where it
// had stood before. report() prints what that head saw of each token.
int look(Seq **seq, int at)
{
    Tale *t = tale_of(seq, 0);
    if (!t || !*seq || at < 1 || at > (*seq)->num_computed_tokens) return PAGED_BAD_ARGUMENT;
    const float *q = t->queries + (at - 1) * m.num_layers * m.dim;
    float *k = NULL, *v = NULL, *of_head = NULL;
    arrsetlen(k, (*seq)->length * m.kv_dim);
    arrsetlen(v, (*seq)->length * m.kv_dim);
    arrsetlen(of_head, at);
    arrsetlen(weights, at);
    best_seen = -1;
    for (int layer = m.num_layers - 1; layer >= 0; layer--) {
        must(seq_gather(*seq, layer, k, v), "seq_gather");
        for (int head = 0; head < m.num_heads; head++) {
            float seen = 0;
            weigh(q + layer * m.dim, k, at - 1, head, of_head);
            for (int i = 0; i < at && at < arrlen(t->tokens); i++)
                if (t->tokens[i] == t->tokens[at]) seen += of_head[i];
            if (seen <= best_seen) continue;
            best_seen = seen;
            best_layer = layer;
            best_head = head;
            memcpy(weights, of_head, at * sizeof *weights);
        }
    }
    arrfree(k);
    arrfree(v);
    arrfree(of_head);
    return PAGED_OK;
}

static void print_quoted(const char *text)
{
    putchar('"');
    for (const char *c = text; *c; c++)
        printf(*c < ' ' ? "\\u%04x" : strchr("\"\\", *c) ? "\\%c" : "%c", *c);
    putchar('"');
}

static void print_word(int previous, int token)
{
    print_quoted(token == BOS ? "<s>" : token_text(&tokenizer, previous, token));
}

// The token in a slot, as its V in layer 0 says, which has no position in it. -1: it is no token's.
static int token_in(int block, int slot)
{
    size_t row = (size_t)block * m.num_kv_heads * config.block_size + slot;  // of KV head 0
    const float *value = (const float *)pool->v + row * m.head_dim;
    for (int token = 0, i; token < m.vocab_size; token++) {
        for (i = 0; i < m.head_dim && fabsf(value[i] - values[token * m.kv_dim + i]) < 1e-4f;) i++;
        if (i == m.head_dim) return token;
    }
    return -1;
}

static void print_tales(void)
{
    printf(",\"steps\":%d,\"computed\":%d,\"recomputed\":%d,\"preemptions\":%d", num_steps,
           num_computed, num_recomputed, num_preemptions);
    printf(",\"layer\":%d,\"head\":%d,\"seen\":%.3f", best_layer, best_head, best_seen);
    printf(",\"calls\":[%.*s],\"tales\":{", (int)arrlen(calls), calls);
    arrsetlen(calls, 0);
    for (int n = 0; n < arrlen(order); n++) {  // the oldest first
        const Tale *t = &tales[order[n]];
        printf("%s\"%c\":{\"state\":\"%s\",\"words\":[", n ? "," : "", name(order[n]),
               t->ended          ? "ended"
               : *seqs[order[n]] ? "running"
                                 : "waiting");
        for (int i = 0; i < arrlen(t->tokens); i++) {
            printf(i ? "," : "");
            print_word(i ? t->tokens[i - 1] : -1, t->tokens[i]);
        }
        printf("]}");
    }
    printf("}");
}
