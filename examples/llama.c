// llama: a Llama model that serves many prompts at once, over the paged cache of ../paged.h.
//
// It reads the checkpoints and tokenizers of llama2.c and prints the same text. The model is the
// easy half: forward() of llama_model.h takes the new tokens of some sequences through all layers.
// Here is the other half, the scheduler, which decides whose tokens those are. It asks the pool for
// room before each step, and it follows three rules:
//
//     continuous batching      a request may join or leave the batch at any step
//     chunked prefill          a prompt is computed in pieces, beside the single tokens of others
//     preemption by recompute  out of blocks? The newest request gives back its own and waits. It
//                              keeps its tokens, so later they are computed again, like a prompt
//
// None of them may change a word of the text. Read forward() and schedule(), and what is around
// them. Files and the tokenizer are in llama_files.h. Left out: top-p, beam search, quantized
// weights, chat.
//
//     cc -O2 -DPAGED_NO_MAIN examples/llama.c paged.cu.c -o llama -lm
//     ./llama                       tells a tale; examples/tales.py made its model
//     ./llama MODEL TOKENIZER -p "Once upon"

#include "llama_model.h"

#include <getopt.h>
#include <unistd.h>

enum { MAX_RUNNING = 256 };  // requests in a batch; the samples that fork off come on top

// ---- requests and their scheduler -------------------------------------------------------------

enum { CACHE_PAGED, CACHE_GATHER, CACHE_CONTIGUOUS };

typedef struct Options {
    const char *checkpoint, *tokenizer;
    const char **prompts;  // an array of stb_ds
    int cache, device, dtype;
    int plain, prefix_cache;            // yes or no
    int block_size, num_blocks, steps;  // 0: not given
    int chunk, samples, drafts;
    float temperature;
    uint64_t seed;
} Options;

typedef struct Request {
    int id;
    int *tokens;  // all that are known: the prompt, then what was sampled (an array of stb_ds)
    int *draft;   // guesses at the tokens after them, in this step (an array of stb_ds)
    int forks;    // how many of the next requests fork off this one when its prompt is computed
    Seq *seq;     // holds K and V of the first seq->length tokens; NULL while it waits
    float temperature;
    uint64_t rng;  // moved by sampling alone: a preemption repeats no draw
    int given;     // tokens of the prompt
    int lost;      // tokens whose K and V a preemption dropped
    int ended;
    ptrdiff_t printed;  // tokens at the front that need not be printed any more, such as BOS
} Request;

typedef struct Server {
    Options options;
    Model model;
    Tokenizer tokenizer;
    Pool *pool;
    Request *requests;  // all of them; these three are arrays of stb_ds
    Request **waiting;  // first come, first served
    Request **running;  // the oldest first
    ModelInput input;
    Workspace work;
    long num_refused, num_steps, num_tokens, num_preemptions, num_recomputed;
    long num_drafted, num_accepted;
    long num_found;                 // tokens, in the prefix cache
    int peak_blocks, peak_running;  // the most blocks in use, and by how many requests
    int peak_apart;                 // the blocks they would have if they shared none
} Server;

// Makes room for the next tokens of a request, and adds their rows to the input: a chunk of the
// known tokens that its sequence lacks, then the draft. Returns what seq_append() says; on an error
// nothing has changed.
static int add_rows(Server *s, const Request *r)
{
    ModelInput *input = &s->input;
    int first = r->seq->length;
    int known = arrlen(r->tokens);
    int n = known - first < s->options.chunk ? known - first : s->options.chunk;
    int error = seq_append(r->seq, n + (int)arrlen(r->draft));
    if (error) return error;
    arrput(input->seqs, r->seq);
    arrput(input->num_tokens, r->seq->length - first);
    for (int i = first; i < r->seq->length; i++) {
        // The logits of the last known token say the next one, those of a guess the one after it.
        if (i >= known - 1) arrput(input->wanted, (int)arrlen(input->tokens));
        arrput(input->tokens, i < known ? r->tokens[i] : r->draft[i - known]);
        arrput(input->positions, i);
    }
    return PAGED_OK;
}

// Computes the step that is in the input. Logits that are not numbers, and so choose no token, end
// the program.
static const float *compute(Server *s)
{
    const Options *o = &s->options;
    int used = o->num_blocks - s->pool->num_free;
    if (used > s->peak_blocks) {
        s->peak_blocks = used;
        s->peak_running = arrlen(s->input.seqs);
        s->peak_apart = 0;
        for (int i = 0; i < s->peak_running; i++)
            s->peak_apart += arrlen(s->input.seqs[i]->block_table);
    }
    s->num_steps++;
    s->num_tokens += arrlen(s->input.tokens);
    int flags = o->plain ? 0 : ATTEND_FAST;
    if (o->cache == CACHE_GATHER) flags |= ATTEND_GATHER;
    const float *logits = forward(&s->model, s->pool, flags, &s->input, &s->work);
    for (ptrdiff_t i = 0; i < arrlen(s->work.logits); i++)
        if (!isfinite(logits[i]))
            die(1, "%s: damaged, or the engine is wrong: a logit is not finite", o->checkpoint);
    return logits;
}

// Prompt lookup (Saxena 2023): text repeats itself. Finds the last earlier place of the newest
// three tokens, or two, or one, and guesses that what followed them there follows here too.
static void guess(const Server *s, Request *r)
{
    int known = arrlen(r->tokens);
    int max = s->options.steps - known;
    if (max > s->options.drafts) max = s->options.drafts;
    for (int n = 3; n > 0 && max > 0; n--)
        for (int at = known - n - 1; at >= 0; at--) {
            if (memcmp(r->tokens + at, r->tokens + known - n, n * sizeof(int)) != 0) continue;
            for (int i = at + n; i < known && i < at + n + max; i++) arrput(r->draft, r->tokens[i]);
            return;
        }
}

// Samples after the last known token of a request, and after each guess that turned out right. What
// was computed for the other guesses is rewound. logits: [1 + guesses][vocab_size]. Returns 1 at
// the end of the text.
static int sample_request(Server *s, Request *r, const float *logits)
{
    int guesses = arrlen(r->draft);
    int right = 0;
    int ended;
    for (;; right++, logits += s->model.vocab_size) {
        int token = sample(logits, s->model.vocab_size, r->temperature, &r->rng);
        ended = token == BOS || arrlen(r->tokens) >= s->options.steps;
        if (token != BOS) arrput(r->tokens, token);
        if (ended || right == guesses || token != r->draft[right]) break;
    }
    s->num_accepted += right;
    if (guesses > right) must(seq_rewind(r->seq, guesses - right), "seq_rewind");
    return ended;
}

static int blocks_for(const Server *s, int tokens)
{
    return (tokens - 1) / s->options.block_size + 1;
}

// Adds the next tokens of a request to the step: a chunk of its prompt, or the token sampled last
// and guesses at those after it.
static int add_to_step(Server *s, Request *r)
{
    arrsetlen(r->draft, 0);
    if (arrlen(r->tokens) - r->seq->length == 1 && r->forks == 0) guess(s, r);
    int error = add_rows(s, r);
    if (error == PAGED_OUT_OF_BLOCKS && arrlen(r->draft) > 0) {  // a guess preempts no request
        arrsetlen(r->draft, 0);
        error = add_rows(s, r);
    }
    s->num_drafted += arrlen(r->draft);  // none if there is no room
    return error;
}

static void give_back_blocks(Request *r)
{
    seq_release(r->seq);
    r->seq = NULL;
}

// Takes the blocks of the request that came last. It goes to the head of the queue, with all its
// tokens; their K and V will be computed again.
static void preempt_newest(Server *s)
{
    Request *r = arrpop(s->running);
    s->num_preemptions++;
    r->lost = r->seq->length;
    give_back_blocks(r);
    arrins(s->waiting, 0, r);
}

// Starts the request at the head of the queue, if it fits. All known tokens must fit, not just the
// first chunk: a preempted request, which just lacked a block, would otherwise be back at once,
// only to be preempted again. Returns 0 if it has to wait; what the prefix cache has for it then
// counts as used just now, and is kept for longer.
static int admit(Server *s)
{
    Request *r = s->waiting[0];
    int known = arrlen(r->tokens);
    int needed = blocks_for(s, known);
    if (needed > s->pool->num_free && !s->options.prefix_cache) return 0;
    must(seq_create(s->pool, &r->seq), "seq_create");
    if (s->options.prefix_cache) must(seq_lookup(r->seq, r->tokens, known), "seq_lookup");
    int found = r->seq->length;
    if (needed - found / s->options.block_size > s->pool->num_free) {
        give_back_blocks(r);
        return 0;
    }
    s->num_found += found;
    if (r->lost > found) s->num_recomputed += r->lost - found;
    must(add_to_step(s, r), "seq_append");
    arrdel(s->waiting, 0);
    arrput(s->running, r);
    return 1;
}

// Decides what the next step computes. The oldest request always gets its room, if need be by
// preempting all others, and add_prompt() saw to it that it fits into the pool alone. So every
// step brings some request nearer its end, and none waits for ever.
static void schedule(Server *s)
{
    clear_input(&s->input);
    for (ptrdiff_t i = 0; i < arrlen(s->running);) {
        int error = add_to_step(s, s->running[i]);
        if (error == PAGED_OUT_OF_BLOCKS)
            preempt_newest(s);  // in the end i itself; then the loop is over
        else {
            must(error, "seq_append");
            i++;
        }
    }
    while (arrlen(s->waiting) > 0 && arrlen(s->running) < MAX_RUNNING && admit(s))
        if (s->options.prefix_cache) break;  // the next request finds what this one computes now
}

static void print_request(const Tokenizer *t, Request *r)
{
    for (; r->printed < arrlen(r->tokens); r->printed++)
        fputs(token_text(t, r->tokens[r->printed - 1], r->tokens[r->printed]), stdout);
    fflush(stdout);
}

// Parallel sampling: another request for the same prompt shares its blocks. The first of them to
// write into the last block, if that is partly filled, gets a copy.
static Request *fork_request(Server *s, Request *r)
{
    Request *child = &s->requests[r->id + r->forks--];
    size_t known = arrlenu(r->tokens);
    memcpy(arraddnptr(child->tokens, known), r->tokens, known * sizeof *r->tokens);
    child->given = r->given;
    must(seq_fork(r->seq, r->seq->length, &child->seq), "seq_fork");
    return child;
}

static void publish_request(Server *s, Request *r)
{
    if (!s->options.prefix_cache) return;
    must(seq_publish(r->seq, r->tokens, r->seq->length), "seq_publish");
}

// Samples for each request whose known tokens are all computed. Requests that fork off are the
// newest. Those whose text has ended leave.
static void take_tokens(Server *s, const float *logits)
{
    const ptrdiff_t num_running = arrlen(s->running);
    for (ptrdiff_t i = 0; i < num_running; i++) {
        Request *r = s->running[i];
        if (r->seq->length >= arrlen(r->tokens)) {
            if (r->forks > 0) publish_request(s, r);  // first: the forks get the blocks that stay
            while (r->forks > 0) {
                Request *child = fork_request(s, r);
                child->ended = sample_request(s, child, logits);
                arrput(s->running, child);
            }
            r->ended = sample_request(s, r, logits);
            logits += (1 + arrlenu(r->draft)) * s->model.vocab_size;
        }
        // Wrong guesses are gone by now: what the sequence holds are known tokens.
        publish_request(s, r);
        if (arrlen(s->requests) == 1) print_request(&s->tokenizer, r);
    }
    for (ptrdiff_t i = 0; i < arrlen(s->running);) {
        Request *r = s->running[i];
        if (r->ended) {
            give_back_blocks(r);
            arrdel(s->running, i);
        } else
            i++;
    }
}

#ifndef LLAMA_NO_MAIN  // docs/play.html serves its tales with all that is above
static void serve(Server *s)
{
    while (arrlen(s->waiting) + arrlen(s->running) > 0) {
        schedule(s);
        take_tokens(s, compute(s));
    }
}

// ---- options ----------------------------------------------------------------------------------

static const char help[] =
    "usage: llama [CHECKPOINT TOKENIZER] [options]\n"
    "Without files, it tells tales: examples/tales.bin, examples/tales-tokenizer.bin.\n"
    "These know no words but their own; a prompt is the beginning of a tale, such as\n"
    "-p \"One day a block named Zoe had two empty slots.\"\n"
    "  -p, --prompt TEXT    a prompt; may be repeated (one empty prompt)\n"
    "  -t, --temperature T  0: take the likeliest token; 1: sample from the model (0)\n"
    "  -s, --seed S         request i samples with seed S + i (1)\n"
    "  -n, --steps N        positions of a request, including its prompt (200)\n"
    "  --samples N          texts per prompt, which is computed once; use -t 1 (1)\n"
    "  --speculate K        guess up to K tokens from the text so far, and verify\n"
    "                       them in one step: saves steps in long texts (0)\n"
    "  --chunk N            tokens of a prompt in one step (32)\n"
    "  --prefix-cache       reuse full blocks that other requests have computed: of a\n"
    "                       prompt in progress, the chunks so far\n"
    "  --cache KIND         paged; gather; contiguous: full length reserved (paged)\n"
    "  --block-size N       tokens in a block (16)\n"
    "  --blocks N           blocks in the pool (enough for all at full length)\n"
    "  --dtype TYPE         type of K and V in the cache: f32, f16 or bf16 (f32)\n"
    "  --device KIND        where the cache is: cpu, gpu or standin (cpu)\n"
    "  --plain              attend with the plain code, not the fast paths\n";

static void parse_option(Options *o, int letter, const char *value)
{
    static const char *const caches[] = {"paged", "gather", "contiguous", NULL};
    static const char *const devices[] = {"cpu", "gpu", "standin", NULL};  // order of paged.h
    static const char *const dtypes[] = {"f32", "f16", "bf16", NULL};      // likewise
    switch (letter) {
    case 'p': arrput(o->prompts, value); break;
    case 't': o->temperature = (float)parse_double("--temperature", value, 0, 1e6); break;
    case 's': o->seed = parse_int("--seed", value, 0, INT64_MAX); break;
    case 'n': o->steps = parse_int("--steps", value, 1, INT_MAX); break;
    case 'M': o->samples = parse_int("--samples", value, 1, 1024); break;
    case 'G': o->drafts = parse_int("--speculate", value, 0, 1024); break;
    case 'C': o->chunk = parse_int("--chunk", value, 1, INT_MAX); break;
    case 'X': o->prefix_cache = 1; break;
    case 'K': o->cache = parse_choice("--cache", value, caches); break;
    case 'Z': o->block_size = parse_int("--block-size", value, 1, INT_MAX); break;
    case 'N': o->num_blocks = parse_int("--blocks", value, 1, INT_MAX); break;
    case 'T': o->dtype = parse_choice("--dtype", value, dtypes); break;
    case 'D': o->device = parse_choice("--device", value, devices); break;
    case 'P': o->plain = 1; break;
    case 'h': fputs(help, stdout); exit(finish_output(0));
    default: die(2, "see --help");  // getopt_long() has said what is wrong
    }
}

static void choose_files(Options *o, int count, char **files)
{
    if (count == 2) {
        o->checkpoint = files[0];
        o->tokenizer = files[1];
        return;
    }
    if (count != 0) die(2, "expected two files, CHECKPOINT and TOKENIZER, or none; see --help");
    o->checkpoint = "examples/tales.bin";
    o->tokenizer = "examples/tales-tokenizer.bin";
    if (access(o->checkpoint, R_OK) != 0)
        die(1, "%s: %s; start llama in the folder of paged.cu.c", o->checkpoint, strerror(errno));
}

static void parse_options(Options *o, int argc, char **argv)
{
    static const struct option options[] = {
        {"prompt", 1, NULL, 'p'}, {"seed", 1, NULL, 's'},         {"temperature", 1, NULL, 't'},
        {"steps", 1, NULL, 'n'},  {"samples", 1, NULL, 'M'},      {"speculate", 1, NULL, 'G'},
        {"chunk", 1, NULL, 'C'},  {"prefix-cache", 0, NULL, 'X'}, {"cache", 1, NULL, 'K'},
        {"blocks", 1, NULL, 'N'}, {"block-size", 1, NULL, 'Z'},   {"dtype", 1, NULL, 'T'},
        {"device", 1, NULL, 'D'}, {"plain", 0, NULL, 'P'},        {"help", 0, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    *o = (Options){.chunk = 32, .samples = 1, .seed = 1};
    for (int c; (c = getopt_long(argc, argv, "p:t:s:n:h", options, NULL)) != -1;)
        parse_option(o, c, optarg);
    choose_files(o, argc - optind, argv + optind);
    if (o->prefix_cache && o->cache == CACHE_CONTIGUOUS)
        die(2, "--prefix-cache excludes --cache contiguous");
    if (o->block_size && o->cache == CACHE_CONTIGUOUS)
        die(2, "--cache contiguous has one block per request; leave out --block-size");
    if (o->samples > 1 && o->temperature == 0)
        note("--samples %d at temperature 0: one text %d times; -t 1 samples", o->samples,
             o->samples);
    if (arrlen(o->prompts) == 0) arrput(o->prompts, "");
}

// ---- start and end ----------------------------------------------------------------------------

// Puts a request into the queue, or refuses it for good: what can never finish must not wait.
static void add_prompt(Server *s, Request *r, const char *prompt)
{
    const Options *o = &s->options;
    size_t bytes = strlen(prompt);
    int blocks = blocks_for(s, o->steps);
    if (bytes / s->tokenizer.longest <= (size_t)o->steps) r->tokens = encode(&s->tokenizer, prompt);
    if (!r->tokens || arrlen(r->tokens) > o->steps)
        note("request %d refused: its prompt of %zu bytes has more than %d tokens", r->id, bytes,
             o->steps);
    else if (o->num_blocks && blocks > o->num_blocks)
        note("request %d refused: %d tokens need %d blocks, the pool has %d", r->id, o->steps,
             blocks, o->num_blocks);
    else {
        if (has_bytes(r->tokens))
            note("request %d: the tokenizer lacks characters of the prompt; they are not printed",
                 r->id);
        r->forks = o->samples - 1;
        r->given = arrlen(r->tokens);
        arrput(s->waiting, r);
        return;
    }
    arrfree(r->tokens);
    s->num_refused += o->samples;
}

static void start(Server *s)
{
    Options *o = &s->options;
    const Model *m = &s->model;
    read_model(&s->model, open_file(o->checkpoint));
    read_tokenizer(&s->tokenizer, open_file(o->tokenizer), m->vocab_size);
    if (o->steps > m->seq_len)
        note("--steps %d: the model's context is %d, which is used", o->steps, m->seq_len);
    if (!o->steps) o->steps = 200;
    if (o->steps > m->seq_len) o->steps = m->seq_len;
    if (!o->block_size) o->block_size = 16;
    if (o->cache == CACHE_CONTIGUOUS) o->block_size = m->seq_len;  // that is all it takes
    for (ptrdiff_t i = 0; i < arrlen(o->prompts) * o->samples; i++) {
        Request r = {.id = (int)i, .temperature = o->temperature, .rng = o->seed + i, .printed = 1};
        arrput(s->requests, r);
    }
    for (ptrdiff_t i = 0; i < arrlen(o->prompts); i++)
        add_prompt(s, &s->requests[i * o->samples], o->prompts[i]);
    if (!o->num_blocks) {
        double all = (double)arrlen(s->waiting) * blocks_for(s, o->steps) * o->samples;
        o->num_blocks = (int)fmin(fmax(all, 1), INT_MAX);
    }
    PoolConfig config = {m->num_layers, m->num_kv_heads, m->head_dim, o->block_size,
                         o->num_blocks, o->dtype,        0,           o->device};
    int error = pool_create(&config, &s->pool);
    if (error)
        die(1, "a pool of %d blocks of %d tokens: %s", o->num_blocks, o->block_size,
            paged_error(error));
}

static void print_statistics(const Server *s, double seconds)
{
    const Options *o = &s->options;
    double token_kib = pool_bytes_per_token(&s->pool->config) / 1024.0;
    double paged = token_kib * s->peak_blocks * o->block_size;
    double reserved = token_kib * s->peak_running * s->model.seq_len;
    note("requests: %d, refused: %ld; %ld tokens in %ld steps, %.0f tokens/s",
         (int)arrlen(s->requests), s->num_refused, s->num_tokens, s->num_steps,
         s->num_tokens / fmax(seconds, 1e-9));
    note("preemptions: %ld; %ld tokens computed again", s->num_preemptions, s->num_recomputed);
    note("sequences at the peak: %d, in %d blocks of %d tokens, %.1f KiB:", s->peak_running,
         s->peak_blocks, o->block_size, paged);
    note("%.1f %% of the %.1f KiB it takes to reserve %d tokens for each", 100 * paged / reserved,
         reserved, s->model.seq_len);
    if (o->samples > 1)
        note("%d blocks instead of %d without sharing; %zu were copied", s->peak_blocks,
             s->peak_apart, s->pool->num_copies);
    if (o->prefix_cache)
        note("%ld tokens were found in the prefix cache when their requests began", s->num_found);
    if (o->drafts > 0)
        note("%ld tokens were guessed, %ld of them right; %ld were rewound", s->num_drafted,
             s->num_accepted, s->num_drafted - s->num_accepted);
}

static void print_texts(Server *s)
{
    for (ptrdiff_t i = 0; i < arrlen(s->requests); i++) {
        if (arrlen(s->requests) > 1) printf("=== request %d ===\n", (int)i);
        print_request(&s->tokenizer, &s->requests[i]);
        printf("\n");
        if (s->requests[i].given > 0 && arrlen(s->requests[i].tokens) == s->requests[i].given)
            note("request %d: the model ends the text where its prompt ends", (int)i);
    }
    fflush(stdout);  // before the statistics, should both go to one place
}

int main(int argc, char **argv)
{
    static Server server;  // static, so that all of it starts at zero
    program = "llama";
    parse_options(&server.options, argc, argv);
    start(&server);
    double begin = now();
    serve(&server);
    double seconds = now() - begin;
    if (server.num_steps > 0) {  // not if every request was refused
        print_texts(&server);
        print_statistics(&server, seconds);
    }
    int missing = server.options.num_blocks - server.pool->num_free;
    if (missing > 0) die(1, "%d blocks were never released", missing);
    tensor_free(server.pool, server.work.tensor);
    pool_destroy(server.pool);
    return finish_output(server.num_refused > 0);
}

#endif
