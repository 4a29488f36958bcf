// play_tales.h: the model of the tales, for docs/play.html. A tale is a request of llama.c, which
// serves it, and has the name of its sequence. A token is a word or a part of one. play.c includes
// this.
//
//     model(4, 64)                      an empty pool in the shape of the model
//     tale(&a, 0)                       begins a tale, which waits until tell() has room for it
//     tell()                            a step: one more token of each tale
//     branch(&a, 9, &b)                 b begins with the first 9 tokens of a, shared with it
//     look(&a)                          what a head saw as it chose the newest token of a
//
// Of a tale that goes on, all tokens but the last known one are in its sequence.

#define LLAMA_NO_MAIN
#include "llama.c"

enum { LOOK_LAYER = 1, LOOK_HEAD = 3 };  // the head that finds where a name stood before

static Server server;
static float *asked;  // [SEQS][head_dim] of that head, for the newest token (an array of stb_ds)

// ---- the model and its pool -------------------------------------------------------------------

// forward() shows the queries of each layer. look() needs one of each sequence.
static void keep_queries(int layer, const float *q)
{
    const Model *m = &server.model;
    for (int i = 0; i < arrlen(server.running) && layer == LOOK_LAYER; i++) {
        q += server.input.num_tokens[i] * m->dim;
        memcpy(asked + server.running[i]->id * m->head_dim, q - m->dim + LOOK_HEAD * m->head_dim,
               m->head_dim * sizeof *q);
    }
}

static void read_files(File checkpoint, File tokens)
{
    read_model(&server.model, checkpoint);
    read_tokenizer(&server.tokenizer, tokens, server.model.vocab_size);
    arrsetlen(asked, SEQS * server.model.head_dim);
}

// The bytes of the files, for the page, which has no files.
void load(char *checkpoint, int size, char *tokens, int tokens_size)
{
    read_files((File){"tales.bin", fmemopen(checkpoint, size, "rb")},
               (File){"tales-tokenizer.bin", fmemopen(tokens, tokens_size, "rb")});
}

int model(int block_size, int num_blocks)
{
    if (!asked)
        read_files(open_file("examples/tales.bin"), open_file("examples/tales-tokenizer.bin"));
    const Model *m = &server.model;
    // No poison: what a wrong engine reads is words, and it mixes them up.
    PoolConfig shape = {m->num_layers, m->num_kv_heads, m->head_dim, block_size,
                        num_blocks,    PAGED_F32,       0,           PAGED_CPU};
    int error = new_pool(shape, 1);
    if (error) return error;
    for (int i = 0; i < arrlen(server.requests); i++) arrfree(server.requests[i].tokens);
    arrsetlen(server.requests, 0);
    arrsetlen(server.waiting, 0);
    arrsetlen(server.running, 0);
    for (int i = 0; i < SEQS; i++) arrput(server.requests, (Request){.id = i});
    server.num_steps = server.num_tokens = server.num_recomputed = server.num_preemptions = 0;
    server.pool = pool;
    server.options = (Options){.plain = 1,
                               .block_size = block_size,
                               .num_blocks = num_blocks,
                               .chunk = INT_MAX,
                               .steps = m->seq_len};
    int64_t slots = (int64_t)num_blocks * block_size;  // alone in the pool, a tale comes to its end
    if (slots < m->seq_len) server.options.steps = (int)slots;
    server.work.look = keep_queries;
    return PAGED_OK;
}

// ---- tales ------------------------------------------------------------------------------------

// The tale of a sequence; NULL if there is none, or, with `unused`, if there is one.
static Request *tale_of(Seq **seq, int unused)
{
    for (int i = 0; i < SEQS && has_model; i++)
        if (seqs[i] == seq && (server.requests[i].tokens == NULL) == unused)
            return &server.requests[i];
    return NULL;
}

int tale(Seq **seq, int seed)
{
    Request *r = tale_of(seq, 1);
    if (!r) return PAGED_BAD_ARGUMENT;
    *r = (Request){.id = r->id, .given = 1, .rng = seed, .temperature = seed ? 0.7f : 0};
    arrput(r->tokens, BOS);
    arrput(server.waiting, r);
    return PAGED_OK;
}

int branch(Seq **from, int at, Seq **to)
{
    const Request *parent = tale_of(from, 0);
    Request *child = tale_of(to, 1);
    if (!parent || !child) return PAGED_BAD_ARGUMENT;
    if (at < 1 || at > arrlen(parent->tokens) || at > server.options.steps)
        return PAGED_BAD_ARGUMENT;
    *child = (Request){.id = child->id, .given = at, .rng = child->id, .temperature = 0.7f};
    if (parent->seq) {
        int error = seq_fork(parent->seq, at - 1, &child->seq);
        if (error) return error;
        arrput(server.running, child);
    } else {
        child->lost = at - 1;  // computed once, but the parent has no blocks any more
        arrput(server.waiting, child);
    }
    memcpy(arraddnptr(child->tokens, at), parent->tokens, at * sizeof(int));
    *to = child->seq;
    return PAGED_OK;
}

int tell(void)
{
    schedule(&server);
    if (arrlen(server.input.tokens) > 0) take_tokens(&server, compute(&server));
    for (int i = 0; i < SEQS; i++) *seqs[i] = server.requests[i].seq;
    return PAGED_OK;
}

// What a query sees of each of n tokens, whose keys are in k: softmax of the scores.
static void weigh(int n, int kv_head, const float *query)
{
    const int dim = config.head_dim;
    float max = -INFINITY, sum = 0;
    for (int t = 0; t < n; t++) {
        const float *key = k + (t * config.num_kv_heads + kv_head) * dim;
        arrput(weights, product(query, key, dim) / sqrtf((float)dim));
        max = fmaxf(max, weights[t]);
    }
    for (int t = 0; t < n; t++) sum += weights[t] = expf(weights[t] - max);
    for (int t = 0; t < n; t++) weights[t] /= sum;
}

int look(Seq **seq)
{
    const Request *r = tale_of(seq, 0);
    const Model *m = &server.model;
    if (!r || (r->seq && !fits(r->seq))) return PAGED_BAD_ARGUMENT;
    if (!r->seq || arrlen(r->tokens) == r->given) return PAGED_OK;  // it has chosen no token
    must(seq_gather(r->seq, LOOK_LAYER, k, v), "seq_gather");
    weigh(r->seq->length, LOOK_HEAD / (m->num_heads / m->num_kv_heads),
          asked + r->id * m->head_dim);
    return PAGED_OK;
}

// ---- what the page shows ----------------------------------------------------------------------

static void print_quoted(const char *text)
{
    putchar('"');
    for (const char *c = text; *c; c++)
        printf(*c < ' ' ? "\\u%04x" : strchr("\"\\", *c) ? "\\%c" : "%c", *c);
    putchar('"');
}

static void print_tales(void)
{
    printf(",\"steps\":%ld,\"preemptions\":%ld,\"tales\":{", server.num_steps,
           server.num_preemptions);
    for (int n = 0, count = 0; n < SEQS; n++) {
        const Request *r = &server.requests[n];
        if (!r->tokens) continue;
        printf("%s\"%c\":{\"state\":\"%s\",\"words\":[", count++ ? "," : "", 'a' + n,
               r->ended ? "ended"
               : r->seq ? "running"
                        : "waiting");
        for (int i = 0; i < arrlen(r->tokens); i++) {
            printf(i ? "," : "");
            print_quoted(i ? token_text(&server.tokenizer, r->tokens[i - 1], r->tokens[i]) : "<s>");
        }
        printf("]}");
    }
    printf("}");
}
