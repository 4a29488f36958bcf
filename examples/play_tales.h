// play_tales.h: the race of docs/play.html. Six tales are requests of llama.c, which serves them; each
// has the name of its sequence. play.c includes this.
//
//     model(16, 32)                     an empty pool in the shape of the model; six tales wait
//     tell()                            a step: one more token of each tale that has room

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
    for (int i = 0; i < arrlen(server.requests); i++) arrfree(server.requests[i].tokens);
    arrsetlen(server.requests, 0);
    arrsetlen(server.waiting, 0);
    arrsetlen(server.running, 0);
    for (int i = 0; i < SEQS; i++) {
        Request tale = {.id = i, .given = 1, .rng = i, .temperature = i ? 0.7f : 0};
        arrput(tale.tokens, BOS);
        arrput(server.requests, tale);
    }
    for (int i = 0; i < SEQS; i++) arrput(server.waiting, &server.requests[i]);
    server.num_steps = server.num_tokens = server.num_recomputed = server.num_preemptions = 0;
    server.pool = pool;
    server.options = (Options){.plain = 1,
                               .block_size = block_size,
                               .num_blocks = num_blocks,
                               .chunk = INT_MAX,
                               .steps = m->seq_len};
    return PAGED_OK;
}

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
