// replay: a trace of real requests, served on paper, to see why paging won.
//
// It takes arrival times, prompt lengths and answer lengths from a trace, such as the Azure LLM
// inference traces of 2023 (Patel et al., "Splitwise: Efficient Generative LLM Inference Using
// Phase Splitting", ISCA 2024), and serves them with continuous batching, once for each allocator,
// from one budget of slots. A slot holds K and V of one token. The allocators:
//
//     reserve maximum     one contiguous region, as long as the longest request of the trace
//     reserve power of 2  one for the prompt, and for the answer's length rounded up to a power of
//                         two, as if the server had guessed it that well
//     reserve exactly     one for the final length, which no real server knows in advance
//     paged               blocks from the pool of ../paged.h, taken when a token needs one
//
// The first three take the first hole that is large enough. Only paged can run out of memory in the
// middle of a request. Then the newest request is preempted: it gives its blocks back and waits at
// the head of the queue. Its K and V are computed again later, or swapped out and back in.
//
// A step. Every running request gets one more token, the oldest first. Then requests are admitted
// from the queue, first come, first served, while there is room for the one at its head; a prompt
// goes in whole. A request that has all its tokens leaves at the end of the step. A request whose
// final length exceeds the budget is refused at the start. All steps count the same, however much
// they compute: this is about memory, not about speed.
//
// Measured at the end of every step, before any request leaves. Each slot of the budget is
//
//     used       it holds a token; one that several requests share counts once
//     reserved   it is kept for a token that its request will get later
//     internal   it is kept by a request that will never fill it
//     external   it is free, and enough slots for the head of the queue are, but not in one piece
//     free       it is free otherwise: too few are, or no request waits
//
// in the terms of figure 2 of Kwon et al., SOSP 2023. The shares are sums over all steps, divided
// by steps times budget. With --saturate only steps that begin with a request waiting are measured:
// after them the batch just drains.
//
//     cc -O2 -DPAGED_NO_MAIN examples/replay.c paged.cu.c -o replay -lm && ./replay TRACE.csv

#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // strptime(), timegm()
#endif

#include "util.h"

#include <getopt.h>
#include <stdbool.h>
#include <unistd.h>

enum {
    MAX_TOKENS = 1 << 24,     // of a prompt, an answer, a budget: all sums fit into an int
    DEFAULT_BUDGET = 131072,  // slots: see --help
    DEFAULT_BLOCK_SIZE = 16,
    TICKS = 10000000,   // of 100 ns, in a second
    STEP = TICKS / 40,  // what a step takes, for the arrivals
};

// ---- the trace --------------------------------------------------------------------------------

typedef struct Request {
    int64_t arrival;  // in ticks
    int context;      // tokens of the prompt
    int generated;    // tokens of the answer
    // What follows changes while the trace is replayed.
    int id;
    int delivered;  // tokens of the answer so far; they survive a preemption
    int length;     // tokens that are in the cache, or go there on admission
    int num_new;    // the newest of these, whose K and V are not written yet
    int start;      // reserving: the first slot of its region, and their number
    int size;
    Seq *seq;        // paged: its blocks; NULL while it waits
    Oracle *oracle;  // with --verify: its K and V once more
    bool admitted;   // has been running
} Request;

typedef struct Trace {
    Request *requests;  // in the order of arrival (an array of stb_ds)
    int64_t context;    // tokens of all prompts
    int64_t generated;  // and of all answers
    int longest;        // the largest final length
} Trace;

static const char header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";
static const char time_format[] = "%Y-%m-%d %H:%M:%S";

// Takes a time such as 2023-11-16 18:15:46.6805900, with up to 7 decimals. Returns what follows it
// in the text, or NULL.
static const char *parse_time(const char *text, int64_t *ticks)
{
    struct tm date = {0};
    char again[20];
    if (!strptime(text, time_format, &date)) return NULL;
    *ticks = (int64_t)timegm(&date) * TICKS;
    // strptime() accepts missing zeros and 30 February; these do not print as they were written.
    if (strftime(again, sizeof again, time_format, &date) != 19) return NULL;
    if (strncmp(text, again, 19) != 0) return NULL;
    text += 19;
    if (*text != '.') return text;
    int unit = TICKS;
    for (text++; *text >= '0' && *text <= '9' && unit > 1; text++) {
        unit /= 10;
        *ticks += (*text - '0') * unit;
    }
    return unit < TICKS ? text : NULL;
}

// Returns what is wrong with a line, or NULL.
static const char *parse_line(const char *line, int64_t previous_arrival, Request *r)
{
    char context[9];
    char generated[9];
    int end = 0;
    const char *rest = parse_time(line, &r->arrival);
    if (!rest) return "TIMESTAMP is not a time such as 2023-11-16 18:15:46.68";
    if (r->arrival < previous_arrival) return "TIMESTAMP is before that of the line above";
    if (sscanf(rest, ",%8[0-9],%8[0-9]%n", context, generated, &end) == 2 && !rest[end]) {
        r->context = atoi(context);
        r->generated = atoi(generated);
        if (r->context >= 1 && r->context <= MAX_TOKENS && r->generated <= MAX_TOKENS) return NULL;
    }
    return "after TIMESTAMP, numbers of tokens from 1 and from 0 to 16777216 are expected";
}

// Adds a request whose prompt has `prefix` tokens more.
static void add_request(Trace *trace, Request r, int prefix)
{
    r.id = (int)arrlen(trace->requests);
    r.context += prefix;
    trace->context += r.context;
    trace->generated += r.generated;
    if (r.context + r.generated > trace->longest) trace->longest = r.context + r.generated;
    arrput(trace->requests, r);
}

// Reads up to `limit` requests. A malformed line ends the program.
static void read_trace(Trace *trace, const char *path, int limit, int prefix)
{
    FILE *in = fopen(path, "r");
    if (!in) die(1, "%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    int64_t previous_arrival = INT64_MIN;
    for (int number = 1; arrlen(trace->requests) < limit; number++) {
        ssize_t size = getline(&line, &room, in);
        if (size < 0) break;
        if (size > 0 && line[size - 1] == '\n') line[--size] = 0;
        if (size > 0 && line[size - 1] == '\r') line[--size] = 0;
        if ((size_t)size != strlen(line)) die(1, "%s:%d: it contains a zero byte", path, number);
        if (number == 1) {
            if (strcmp(line, header) != 0) die(1, "%s:1: this is not '%s'", path, header);
            continue;
        }
        Request r = {0};
        const char *error = parse_line(line, previous_arrival, &r);
        if (error) die(1, "%s:%d: %s", path, number, error);
        previous_arrival = r.arrival;
        add_request(trace, r, prefix);
    }
    if (ferror(in)) die(1, "%s: %s", path, strerror(errno));
    fclose(in);
    free(line);
    if (arrlen(trace->requests) == 0) die(1, "%s: it contains no request", path);
}

// A whole number from 1 to `max`, log-normal about the median (Box and Muller).
static int log_normal(uint64_t *rng, double median, double sigma, int max)
{
    double radius = sqrt(-2 * log(random_uniform(rng) + 0x1p-53));  // never the log of 0
    double angle = 6.283185307179586 * (random_uniform(rng) + 0x1p-53);
    double x = floor(median * exp(sigma * radius * cos(angle)) + 0.5);
    return (int)fmin(fmax(x, 1), max);
}

// Makes a trace with the averages of the real one: a request every 0.18 s (exponential), log-normal
// prompts (median 800, sigma 0.85, at most 14000, 1148 on average) and answers (median 150, sigma
// 0.85, at most 1000, 210 on average), all independent. Also writes it to `save`, if not NULL.
static void generate_trace(Trace *trace, int count, uint64_t seed, int prefix, FILE *save)
{
    time_t first = 946684800;  // 2000-01-01
    double elapsed = 0;
    if (save) fprintf(save, "%s\n", header);
    for (int i = 0; i < count; i++) {
        Request r = {0};
        r.arrival = (int64_t)first * TICKS + (int64_t)(elapsed * TICKS);
        r.context = log_normal(&seed, 800, 0.85, 14000);
        r.generated = log_normal(&seed, 150, 0.85, 1000);
        elapsed -= 0.18 * log(random_uniform(&seed) + 0x1p-53);
        add_request(trace, r, prefix);
        if (!save) continue;
        char date[20];
        time_t seconds = (time_t)(r.arrival / TICKS);
        strftime(date, sizeof date, time_format, gmtime(&seconds));
        fprintf(save, "%s.%07d,%d,%d\n", date, (int)(r.arrival % TICKS), r.context, r.generated);
    }
}

// ---- the allocators ---------------------------------------------------------------------------

enum { RESERVE_MAXIMUM, RESERVE_POWER_OF_2, RESERVE_EXACTLY, PAGED };
enum { USED, RESERVED, INTERNAL, EXTERNAL, FREE, NUM_KINDS };  // of slots
enum { RECOMPUTE, SWAP };

typedef struct Options {
    const char *path;                // of the trace, NULL: it is generated
    const char *save, *csv, *curve;  // paths of outputs, NULL: not wanted
    FILE *curve_out;
    int generate, limit, prefix, preempt;
    int block_size, num_blocks;  // 0: not given
    int budget;                  // slots
    int64_t seed;                // -1: not given
    bool saturate, verify;
} Options;

typedef struct Server {  // serves the whole trace through one allocator
    const Options *options;
    const Trace *trace;
    char name[40];  // of the allocator
    int rule;
    int budget;          // slots, whole blocks of them if paged
    Request **reserved;  // reserving: the requests with a region, by address (an array of stb_ds)
    Pool *pool;          // paged
    int block_size;
    Request system;    // paged: the tokens that all requests begin with and share, if any
    int shared_slots;  // in the full blocks among them; a partly filled one is copied on write

    int64_t step;
    Request **waiting;  // or yet to arrive: the head of the queue is the last
    Request **running;  // the oldest first (both are arrays of stb_ds)

    int64_t slots[NUM_KINDS];  // sums over measured steps, as the next one
    int64_t num_running;
    int64_t measured;  // steps
    int peak;
    int ended;
    int refused;
    int64_t preemptions;
    int64_t moved;   // tokens that were computed again, or swapped out and in
    int64_t waited;  // steps from arrival to the first admission, of all requests
    double at_end;   // used of taken, with each request counted once, at its final length
} Server;

// The slots that a request takes for its first `tokens` tokens, besides those it shares. A
// reservation covers the final length from the start.
static int slots_needed(const Server *s, const Request *r, int tokens)
{
    int final_length = r->context + r->generated;
    int size = final_length;
    int answer = 1;
    switch (s->rule) {
    case PAGED:
        return (tokens + s->block_size - 1) / s->block_size * s->block_size - s->shared_slots;
    case RESERVE_MAXIMUM: size = s->trace->longest; break;
    case RESERVE_POWER_OF_2:
        while (answer < r->generated) answer *= 2;
        size = r->context + answer;
    }
    // A request that fits is not refused because its reservation does not.
    return size > s->budget && final_length <= s->budget ? s->budget : size;
}

// The slots that are not free.
static int slots_taken(const Server *s)
{
    if (s->pool) return (s->pool->config.num_blocks - s->pool->num_free) * s->block_size;
    int sum = 0;
    for (int i = 0; i < arrlen(s->reserved); i++) sum += s->reserved[i]->size;
    return sum;
}

// Takes the first hole between the regions that is large enough. False: there is none.
static bool reserve(Server *s, Request *r)
{
    int size = slots_needed(s, r, r->length);
    int start = 0;
    int at = 0;
    for (; at < arrlen(s->reserved); at++) {
        if (s->reserved[at]->start - start >= size) break;
        start = s->reserved[at]->start + s->reserved[at]->size;
    }
    if (s->budget - start < size) return false;
    if (at < arrlen(s->reserved) && start + size > s->reserved[at]->start)
        die(1, "%s: two regions overlap at slot %d", s->name, s->reserved[at]->start);
    r->start = start;
    r->size = size;
    arrins(s->reserved, at, r);
    return true;
}

// Makes room for the r->length tokens that a request has. False: there is none.
static bool admit(Server *s, Request *r)
{
    if (!s->pool) return reserve(s, r);
    // A request that was preempted lacked room for one more token. Without that it would be
    // preempted again in the next step.
    int length = r->length + (r->delivered > 0);
    if (slots_needed(s, r, length) > s->pool->num_free * s->block_size) return false;
    if (s->system.seq)
        must(seq_fork(s->system.seq, s->system.length, &r->seq), "seq_fork");
    else
        must(seq_create(s->pool, &r->seq), "seq_create");
    r->num_new = r->length - s->system.length;
    must(seq_append(r->seq, r->num_new), "seq_append");
    return true;
}

// Makes room for one more token. False: there is none, and nothing has changed.
static bool grow(Server *s, Request *r)
{
    if (s->pool) {
        int error = seq_append(r->seq, 1);
        if (error == PAGED_OUT_OF_BLOCKS) return false;
        must(error, "seq_append");
    } else if (r->length == r->size)
        die(1, "%s: request %d grows beyond its %d slots", s->name, r->id, r->size);
    r->length++;
    r->num_new = 1;
    return true;
}

static void release(Server *s, Request *r)
{
    seq_release(r->seq);
    r->seq = NULL;
    int at = 0;
    while (at < arrlen(s->reserved) && s->reserved[at] != r) at++;
    if (at < arrlen(s->reserved)) arrdel(s->reserved, at);
}

// ---- K and V, with --verify -------------------------------------------------------------------
// K and V of a request are random numbers. They go to an oracle, which keeps them through every
// preemption, and from there to the pool: when its tokens are new, and when they are computed again
// or swapped in.

enum { NUM_Q_HEADS = 4, NUM_KV_HEADS = 2, HEAD_DIM = 4 };
enum { ROW = NUM_KV_HEADS * HEAD_DIM, Q_ROW = NUM_Q_HEADS * HEAD_DIM };  // floats of a token

static float random_element(void)  // in [-1, 1), and nothing that f16 would round
{
    static uint64_t rng = 1;
    return (float)(random_bits(&rng) % 128) / 64 - 1;
}

static void write_new_tokens(Server *s, Request *r)
{
    if (!r->oracle && s->system.oracle && r != &s->system)
        r->oracle = oracle_fork(s->system.oracle, s->system.length);
    else if (!r->oracle)
        r->oracle = oracle_create(&s->pool->config, s->trace->longest);
    while (r->oracle->length < r->length) {
        float k[ROW], v[ROW];
        for (int i = 0; i < ROW; i++) {
            k[i] = random_element();
            v[i] = random_element();
        }
        r->oracle->length++;
        oracle_write(r->oracle, 0, 1, k, v);
    }
    Batch batch = {1, &r->seq, &r->num_new};
    size_t first = (size_t)(r->length - r->num_new) * ROW;
    must(pool_plan(s->pool, &batch), "pool_plan");
    must(pool_write(s->pool, 0, r->oracle->k + first, r->oracle->v + first), "pool_write");
    r->num_new = 0;
}

// K and V of a request, gathered, are what was written, and attention of its newest token is what
// the oracle computes.
static void verify(const Server *s, const Request *r)
{
    size_t count = (size_t)r->length * ROW;
    float *k = (float *)malloc(2 * count * sizeof(float));
    if (!k) die(1, "out of memory");
    float *v = k + count;
    must(seq_gather(r->seq, 0, k, v), "seq_gather");
    if (memcmp(k, r->oracle->k, count * sizeof(float)) != 0 ||
        memcmp(v, r->oracle->v, count * sizeof(float)) != 0)
        die(1, "%s: request %d: K or V is not what was written", s->name, r->id);
    free(k);

    float q[Q_ROW], out[Q_ROW], expected[Q_ROW];
    for (int i = 0; i < Q_ROW; i++) q[i] = random_element();
    int one = 1;
    Batch batch = {1, &r->seq, &one};
    must(pool_plan(s->pool, &batch), "pool_plan");
    must(attend(s->pool, ATTEND_PAGED, 0, NUM_Q_HEADS, 0, q, out, NULL), "attend");
    oracle_attend(r->oracle, 0, 1, NUM_Q_HEADS, 0, q, expected, NULL);
    for (int i = 0; i < Q_ROW; i++)
        if (!(fabsf(out[i] - expected[i]) <= 1e-5f))
            die(1, "%s: request %d: attention over %d tokens gives %g, the oracle %g", s->name,
                r->id, r->length, (double)out[i], (double)expected[i]);
}

// ---- the scheduler ----------------------------------------------------------------------------

static int64_t arrival_step(const Server *s, const Request *r)
{
    if (s->options->saturate) return 0;
    return (r->arrival - s->trace->requests[0].arrival) / STEP;
}

// The head of the queue, NULL if no request waits.
static Request *queue_head(const Server *s)
{
    if (arrlen(s->waiting) == 0 || arrival_step(s, arrlast(s->waiting)) > s->step) return NULL;
    return arrlast(s->waiting);
}

static void preempt_newest(Server *s)
{
    Request *newest = arrpop(s->running);
    s->preemptions++;
    s->moved += newest->length - s->system.length;
    if (s->options->verify && s->options->preempt == SWAP) verify(s, newest);  // gathers K and V
    release(s, newest);
    arrput(s->waiting, newest);
}

// One more token for each running request. The oldest gets its room, if need be by preempting all
// others.
static void grow_all(Server *s)
{
    for (int i = 0; i < arrlen(s->running);) {
        if (grow(s, s->running[i])) {
            s->running[i]->delivered++;
            i++;
        } else
            preempt_newest(s);  // in the end running[i] itself, and the loop ends
    }
}

// Admits requests while there is room for the head of the queue.
static void admit_all(Server *s)
{
    for (Request *head; (head = queue_head(s)) && admit(s, head);) {
        arrput(s->running, arrpop(s->waiting));
        if (!head->admitted) s->waited += s->step - arrival_step(s, head);
        head->admitted = true;
    }
}

// Counts the slots of each kind, and compares them with what the allocator says is taken.
static void account(Server *s, bool measured)
{
    int64_t held = 0;
    int64_t used = s->system.length;
    int64_t reserved = 0;
    if (s->system.seq) held = arrlen(s->system.seq->block_table) * s->block_size;
    for (int i = 0; i < arrlen(s->running); i++) {
        const Request *r = s->running[i];
        int slots = r->size;
        if (r->seq) slots = (int)arrlen(r->seq->block_table) * s->block_size - s->shared_slots;
        int tokens = r->length - s->shared_slots;
        int empty = slots - tokens;
        int to_come = r->context + r->generated - r->length;
        if (empty < 0 || to_come < 0) die(1, "%s: request %d has too many tokens", s->name, r->id);
        held += slots;
        used += tokens;
        reserved += empty < to_come ? empty : to_come;
    }
    if (held != slots_taken(s))
        die(1, "%s: step %lld: requests hold %lld slots, but %d are taken", s->name,
            (long long)s->step, (long long)held, slots_taken(s));
    if (!measured) return;
    int64_t available = s->budget - held;
    const Request *head = queue_head(s);
    bool enough = head && slots_needed(s, head, head->length) <= available;
    s->measured++;
    s->slots[USED] += used;
    s->slots[RESERVED] += reserved;
    s->slots[INTERNAL] += held - used - reserved;
    s->slots[enough ? EXTERNAL : FREE] += available;
    s->num_running += arrlen(s->running);
    if (arrlen(s->running) > s->peak) s->peak = (int)arrlen(s->running);
}

// The requests that have all their tokens leave; each must have exactly its own.
static void end_requests(Server *s)
{
    int kept = 0;
    for (int i = 0; i < arrlen(s->running); i++) {
        Request *r = s->running[i];
        if (r->delivered < r->generated) {
            s->running[kept++] = r;
            continue;
        }
        int length = r->seq ? r->seq->length : r->length;
        if (length != r->context + r->generated)
            die(1, "%s: request %d ends with %d tokens instead of %d + %d", s->name, r->id, length,
                r->context, r->generated);
        if (r->oracle) verify(s, r);
        oracle_release(r->oracle);
        r->oracle = NULL;
        release(s, r);
        s->ended++;
    }
    arrsetlen(s->running, kept);
}

// Resets all requests. They wait, but for those that could never end.
static void begin(Server *s)
{
    int taken_now = slots_taken(s);
    double used = s->system.length;
    double taken = taken_now;
    for (int i = (int)arrlen(s->trace->requests) - 1; i >= 0; i--) {
        Request *r = &s->trace->requests[i];
        int final_length = r->context + r->generated;
        int needed = slots_needed(s, r, final_length);
        used += final_length - s->shared_slots;
        taken += needed;
        r->delivered = 0;
        r->length = r->context;
        r->admitted = false;
        if (needed > s->budget - taken_now)
            s->refused++;
        else
            arrput(s->waiting, r);
    }
    s->at_end = used / taken;
}

static void run_steps(Server *s)
{
    while (arrlen(s->running) + arrlen(s->waiting) > 0) {
        if (arrlen(s->running) == 0 && !queue_head(s))
            s->step = arrival_step(s, arrlast(s->waiting));  // nothing to do until then
        bool measured = !s->options->saturate || queue_head(s);
        grow_all(s);
        admit_all(s);
        if (arrlen(s->running) == 0) die(1, "%s: no request runs, and the head waits", s->name);
        for (int i = 0; s->pool && s->options->verify && i < arrlen(s->running); i++)
            write_new_tokens(s, s->running[i]);
        account(s, measured);
        if (s->options->curve_out)
            fprintf(s->options->curve_out, "\"%s\",%lld,%d\n", s->name, (long long)s->step,
                    (int)arrlen(s->running));
        end_requests(s);
        s->step++;
    }
}

static void create_pool(Server *s, int prefix)
{
    // Without --verify only the block tables matter: K and V are never touched.
    PoolConfig config = {1,         1, 1,        s->block_size, s->budget / s->block_size,
                         PAGED_F16, 0, PAGED_CPU};
    if (s->options->verify) {
        config.num_kv_heads = NUM_KV_HEADS;
        config.head_dim = HEAD_DIM;
        config.poison = 1;
    }
    must(pool_create(&config, &s->pool), "pool_create");
    s->budget = config.num_blocks * s->block_size;
    if (!prefix) return;
    must(seq_create(s->pool, &s->system.seq), "seq_create");
    must(seq_append(s->system.seq, prefix), "seq_append of the shared prefix");
    s->system.length = prefix;
    s->system.num_new = prefix;
    if (s->options->verify) write_new_tokens(s, &s->system);
    s->shared_slots = prefix / s->block_size * s->block_size;
}

// Serves the trace by one rule, and checks that all was served and all memory is back.
static Server serve(const Options *o, const Trace *trace, int rule, int block_size, int prefix)
{
    static const char *const names[] = {"reserve maximum", "reserve power of 2", "reserve exactly"};
    Server s = {
        .options = o, .trace = trace, .rule = rule, .budget = o->budget, .block_size = block_size};
    if (rule == PAGED) {
        snprintf(s.name, sizeof s.name, "paged %d%s", block_size, prefix ? ", prefix" : "");
        create_pool(&s, prefix);
    } else
        snprintf(s.name, sizeof s.name, "%s", names[rule]);
    begin(&s);
    run_steps(&s);
    if (s.ended + s.refused != arrlen(trace->requests))
        die(1, "%s: %d requests ended and %d were refused, of %d", s.name, s.ended, s.refused,
            (int)arrlen(trace->requests));
    seq_release(s.system.seq);
    oracle_release(s.system.oracle);
    if (slots_taken(&s) != 0) die(1, "%s: %d slots are still taken", s.name, slots_taken(&s));
    const char *broken = s.pool ? pool_check(s.pool) : NULL;
    if (broken) die(1, "%s: %s", s.name, broken);
    pool_destroy(s.pool);
    arrfree(s.reserved);
    arrfree(s.running);
    arrfree(s.waiting);
    return s;
}

// ---- the results ------------------------------------------------------------------------------

// Of the whole budget and all measured steps.
static double share(const Server *s, int kind)
{
    if (s->measured == 0) return kind == FREE;
    double slots = (double)s->measured * s->options->budget;
    if (kind != FREE) return (double)s->slots[kind] / slots;
    double rest = 1;
    for (int i = 0; i < FREE; i++) rest -= share(s, i);
    return fmax(0, rest);
}

static double mean_running(const Server *s)
{
    return s->measured ? (double)s->num_running / s->measured : 0;
}

static double mean_waited(const Server *s) { return s->ended ? (double)s->waited / s->ended : 0; }

static void print_tables(const Server *results, const Options *o, const Trace *t)
{
    const char *moved = o->preempt == SWAP ? "swapped" : "recomputed";
    printf("%d requests: %lld tokens of prompts, %lld generated; the longest has %d\n",
           (int)arrlen(t->requests), (long long)t->context, (long long)t->generated, t->longest);
    printf("budget: %d slots; %s; preemption by %s\n\n", o->budget,
           o->saturate ? "all requests wait from the start" : "requests arrive as in the trace",
           o->preempt == SWAP ? "swap" : "recompute");
    printf("%-18s %7s %5s %8s %8s %9s %10s %7s\n", "requests", "running", "peak", "steps", "waited",
           "preempted", moved, "refused");
    for (int i = 0; i < arrlen(results); i++) {
        const Server *s = &results[i];
        printf("%-18s %7.1f %5d %8lld %8.0f %9lld %10lld %7d\n", s->name, mean_running(s), s->peak,
               (long long)s->step, mean_waited(s), (long long)s->preemptions, (long long)s->moved,
               s->refused);
    }
    printf("running: together, on average. steps: to the end of the trace.\n"
           "waited: steps before a request is admitted, on average. %s: tokens.\n\n",
           moved);
    printf("%-18s %6s %8s %8s %8s %6s %8s %10s\n", "% of the budget", "used", "reserved",
           "internal", "external", "free", "of taken", "at the end");
    for (int i = 0; i < arrlen(results); i++) {
        const Server *s = &results[i];
        double taken = share(s, USED) + share(s, RESERVED) + share(s, INTERNAL);
        printf("%-18s %6.2f %8.2f %8.2f %8.2f %6.2f %8.2f %10.2f\n", s->name, 100 * share(s, USED),
               100 * share(s, RESERVED), 100 * share(s, INTERNAL), 100 * share(s, EXTERNAL),
               100 * share(s, FREE), taken > 0 ? 100 * share(s, USED) / taken : 0, 100 * s->at_end);
    }
    printf("of taken: used slots as a share of those used, reserved or internal.\n"
           "at the end: the same, with every request counted once, at its final length.\n");
}

static void print_bars(const Server *results)
{
    printf("\n# used   = reserved   - internal   ! external   . free\n");
    for (int i = 0; i < arrlen(results); i++) {
        char bar[58];
        double sum = 0;
        int at = 0;
        for (int kind = 0; kind < NUM_KINDS; kind++) {
            sum += share(&results[i], kind);
            while (at < 58 && (at + 0.5) / 58 <= sum) bar[at++] = "#=-!."[kind];
        }
        printf("%-18s |%-58.*s|\n", results[i].name, at, bar);
    }
}

static void print_checks(const Server *results, const Options *o)
{
    int64_t ended = 0;
    int64_t refused = 0;
    int64_t preemptions = 0;
    for (int i = 0; i < arrlen(results); i++) {
        ended += results[i].ended;
        refused += results[i].refused;
        preemptions += results[i].preemptions;
    }
    // Any violation has already ended the program.
    printf("\n%lld requests in %d runs ended with exactly their tokens,\n"
           "after %lld preemptions; %lld refused.\n",
           (long long)ended, (int)arrlen(results), (long long)preemptions, (long long)refused);
    if (o->verify)
        printf("K and V of all paged ones were what was written; attention was the oracle's.\n");
}

static void print_csv(const Server *results, FILE *out)
{
    fprintf(out,
            "allocator,block_size,used,reserved,internal,external,free,at_the_end,mean_running,"
            "peak_running,steps,mean_waited,preemptions,tokens_moved,refused\n");
    for (int i = 0; i < arrlen(results); i++) {
        const Server *s = &results[i];
        fprintf(out, "\"%s\",%d", s->name, s->block_size);
        for (int kind = 0; kind < NUM_KINDS; kind++) fprintf(out, ",%.6f", share(s, kind));
        fprintf(out, ",%.6f,%.3f,%d,%lld,%.3f,%lld,%lld,%d\n", s->at_end, mean_running(s), s->peak,
                (long long)s->step, mean_waited(s), (long long)s->preemptions, (long long)s->moved,
                s->refused);
    }
}

// ---- the options ------------------------------------------------------------------------------

static const char help[] =
    "replay: a trace of requests, served from one budget by several allocators\n"
    "\n"
    "usage: replay TRACE.csv [options]\n"
    "       replay --generate N [options]\n"
    "\n"
    "A trace is lines of TIMESTAMP,ContextTokens,GeneratedTokens under that header.\n"
    "\n"
    "  --generate N        make up a trace of N requests, like those of a real one\n"
    "  --seed N            the same seed, the same requests (1)\n"
    "  --save FILE         write the trace that was made up to FILE, too\n"
    "  --limit N           only the first N requests of TRACE.csv\n"
    "  --saturate          all requests wait from the start (otherwise they arrive\n"
    "                      when they did, and a step takes 25 ms)\n"
    "  --block-size N      paged with this block size only (1, 8, 16, 32 to 256)\n"
    "  --blocks N          the budget, in blocks of that size or of 16 (131072 slots:\n"
    "                      16 GiB at 128 KiB a token, as Llama 3 8B has, or 64 GiB at\n"
    "                      512 KiB)\n"
    "  --preempt POLICY    recompute or swap (recompute): tables differ in one word\n"
    "  --shared-prefix N   every prompt has N tokens more, the same for all; one more\n"
    "                      run shares them\n"
    "  --verify            paged runs write K and V, check all bytes, and attention\n"
    "  --csv FILE          the tables, as CSV\n"
    "  --curve FILE        requests running together in each step, as CSV\n"
    "\n"
    "It returns 1 if a request does not end with exactly its tokens.\n";

static int parse_count(const char *option) { return (int)parse_int(option, optarg, 1, MAX_TOKENS); }

static Options parse_options(int argc, char **argv)
{
    static const char *const policies[] = {"recompute", "swap", NULL};
    static const struct option names[] = {
        {"generate", 1, NULL, 'g'},      {"seed", 1, NULL, 'r'},
        {"save", 1, NULL, 'o'},          {"limit", 1, NULL, 'l'},
        {"saturate", 0, NULL, 's'},      {"blocks", 1, NULL, 'n'},
        {"block-size", 1, NULL, 'b'},    {"preempt", 1, NULL, 'p'},
        {"csv", 1, NULL, 'c'},           {"curve", 1, NULL, 'u'},
        {"shared-prefix", 1, NULL, 'x'}, {"verify", 0, NULL, 'v'},
        {"help", 0, NULL, 'h'},          {NULL, 0, NULL, 0}};
    Options o = {.seed = -1, .limit = INT_MAX};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (c) {
        case 'g': o.generate = parse_count("--generate"); break;
        case 'r': o.seed = parse_int("--seed", optarg, 0, INT64_MAX); break;
        case 'o': o.save = optarg; break;
        case 'l': o.limit = parse_count("--limit"); break;
        case 's': o.saturate = true; break;
        case 'b': o.block_size = parse_count("--block-size"); break;
        case 'n': o.num_blocks = parse_count("--blocks"); break;
        case 'p': o.preempt = parse_choice("--preempt", optarg, policies); break;
        case 'x': o.prefix = (int)parse_int("--shared-prefix", optarg, 0, MAX_TOKENS); break;
        case 'v': o.verify = true; break;
        case 'c': o.csv = optarg; break;
        case 'u': o.curve = optarg; break;
        case 'h': fputs(help, stdout); exit(finish_output(0));
        default: die(2, "see --help");
        }
    }
    o.path = argv[optind];
    if (argc - optind > 1 || !o.path == !o.generate)
        die(2, "one TRACE.csv or --generate N is needed; see --help");
    if (o.path && (o.seed >= 0 || o.save)) die(2, "--seed and --save are for --generate");
    if (o.generate && o.limit != INT_MAX) die(2, "--limit is for a TRACE.csv");
    int block_size = o.block_size ? o.block_size : DEFAULT_BLOCK_SIZE;
    if ((int64_t)o.num_blocks * block_size > MAX_TOKENS)
        die(2, "--blocks %d: a budget has at most %d slots", o.num_blocks, MAX_TOKENS);
    o.budget = o.num_blocks ? o.num_blocks * block_size : DEFAULT_BUDGET;
    if (o.block_size > o.budget || o.prefix > o.budget)
        die(2, "the budget of %d slots is smaller than a block or the shared prefix", o.budget);
    return o;
}

static FILE *open_output(const char *path)
{
    FILE *out = path ? fopen(path, "w") : NULL;
    if (path && !out) die(1, "%s: %s", path, strerror(errno));
    return out;
}

static void close_output(FILE *out, const char *path)
{
    if (!out) return;
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed) die(1, "%s: cannot write it: %s", path, strerror(errno));
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 8, 16, 32, 64, 128, 256};
    Trace trace = {NULL, 0, 0, 0};
    Server *results = NULL;
    program = "replay";
    Options o = parse_options(argc, argv);
    FILE *save = open_output(o.save);
    if (o.path)
        read_trace(&trace, o.path, o.limit, o.prefix);
    else
        generate_trace(&trace, o.generate, o.seed < 0 ? 1 : (uint64_t)o.seed, o.prefix, save);
    close_output(save, o.save);
    // Opened before the work, so that it is not lost, and after the trace is read, in case that
    // is the same file.
    FILE *csv = open_output(o.csv);
    o.curve_out = open_output(o.curve);
    if (o.curve_out) fprintf(o.curve_out, "allocator,step,running\n");
    for (int rule = 0; rule < PAGED; rule++) arrput(results, serve(&o, &trace, rule, 0, 0));
    for (int i = 0; i < 7; i++) {
        if (o.block_size == 0 && sizes[i] <= o.budget)
            arrput(results, serve(&o, &trace, PAGED, sizes[i], 0));
    }
    int block_size = o.block_size ? o.block_size : DEFAULT_BLOCK_SIZE;
    if (o.block_size) arrput(results, serve(&o, &trace, PAGED, block_size, 0));
    if (o.prefix) arrput(results, serve(&o, &trace, PAGED, block_size, o.prefix));
    print_tables(results, &o, &trace);
    print_bars(results);
    print_checks(results, &o);
    if (csv) print_csv(results, csv);
    close_output(csv, o.csv);
    close_output(o.curve_out, o.curve);
    arrfree(trace.requests);
    arrfree(results);
    return finish_output(0);
}
