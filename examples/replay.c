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
// Read on in order: the trace, the allocators, K and V, the scheduler, the results, the options.
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
    TICKS = 10000000,  // of 100 ns, in a second
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
    int num_new;    // the newest of these, whose K and V this step writes
    int start;      // reserving: its region of the budget
    int size;
    Seq *seq;      // paged: its blocks; NULL while it waits
    float *saved;  // swapped out: [num_layers][K, V][length][num_kv_heads][head_dim]
    bool admitted;
    bool ended;
    bool refused;
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
    struct tm date;
    char again[20];
    memset(&date, 0, sizeof date);
    if (!strptime(text, time_format, &date)) return NULL;
    *ticks = (int64_t)timegm(&date) * TICKS;
    // strptime() accepts missing zeros and 30 February, but these do not print as they were written.
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

// Reads up to `limit` requests. One malformed line, and the whole trace is refused.
static void read_trace(Trace *trace, const char *path, int limit)
{
    FILE *in = fopen(path, "r");
    if (!in) die(1, "%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    int64_t previous_arrival = INT64_MIN;
    int malformed = 0;
    for (int number = 1; arrlen(trace->requests) < limit; number++) {
        if ((size = getline(&line, &room, in)) < 0) break;
        if (size > 0 && line[size - 1] == '\n') line[--size] = 0;
        if (size > 0 && line[size - 1] == '\r') line[--size] = 0;
        Request r;
        memset(&r, 0, sizeof r);
        const char *error = NULL;
        if ((size_t)size != strlen(line))
            error = "it contains a zero byte";
        else if (number > 1)
            error = parse_line(line, previous_arrival, &r);
        else if (strcmp(line, header) != 0)
            error = "this is not the header of a trace";
        if (error && ++malformed <= 10)
            fprintf(stderr, "replay: %s:%d: %s\n", path, number, error);
        if (error || number == 1) continue;
        previous_arrival = r.arrival;
        arrput(trace->requests, r);
    }
    if (ferror(in)) die(1, "%s: %s", path, strerror(errno));
    fclose(in);
    free(line);
    if (malformed) die(1, "%s: lines that are malformed: %d; nothing replayed", path, malformed);
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
// 0.85, at most 1000, 210 on average), all independent.
static void generate_trace(Trace *trace, int count, uint64_t seed)
{
    int64_t start = 946684800ll * TICKS;  // 2000-01-01
    double elapsed = 0;
    for (int i = 0; i < count; i++) {
        Request r;
        memset(&r, 0, sizeof r);
        r.arrival = start + (int64_t)(elapsed * TICKS);
        r.context = log_normal(&seed, 800, 0.85, 14000);
        r.generated = log_normal(&seed, 150, 0.85, 1000);
        arrput(trace->requests, r);
        elapsed -= 0.18 * log(random_uniform(&seed) + 0x1p-53);
    }
}

static void save_trace(const Trace *trace, FILE *out)
{
    fprintf(out, "%s\n", header);
    for (int i = 0; i < arrlen(trace->requests); i++) {
        const Request *r = &trace->requests[i];
        time_t seconds = r->arrival / TICKS;
        char date[20];
        strftime(date, sizeof date, time_format, gmtime(&seconds));
        fprintf(out, "%s.%07d,%d,%d\n", date, (int)(r->arrival % TICKS), r->context, r->generated);
    }
}

// Puts `prefix` more tokens before each prompt, and adds everything up.
static void sum_up_trace(Trace *trace, int prefix)
{
    for (int i = 0; i < arrlen(trace->requests); i++) {
        Request *r = &trace->requests[i];
        r->id = i;
        r->context += prefix;
        trace->context += r->context;
        trace->generated += r->generated;
        if (r->context + r->generated > trace->longest) trace->longest = r->context + r->generated;
    }
}

// ---- the allocators ---------------------------------------------------------------------------

enum { RESERVE_MAXIMUM, RESERVE_POWER_OF_2, RESERVE_EXACTLY };

typedef struct Allocator {
    char name[40];
    int budget;  // slots
    // Reserving:
    int rule;
    int longest;         // of the trace
    Request **reserved;  // the requests with a region, by address (an array of stb_ds)
    // Paged:
    Pool *pool;        // NULL: this one reserves
    Request system;    // the tokens that all requests begin with and share, if there are any
    int shared_slots;  // in the full blocks among them; a partly filled one is copied on write
} Allocator;

// The slots that a request takes for its first `tokens` tokens, besides those it shares. A
// reservation covers the final length from the start.
static int slots_needed(const Allocator *a, const Request *r, int tokens)
{
    if (a->pool) {
        int block_size = a->pool->config.block_size;
        return (tokens + block_size - 1) / block_size * block_size - a->shared_slots;
    }
    int final_length = r->context + r->generated;
    int size = final_length;
    if (a->rule == RESERVE_MAXIMUM) size = a->longest;
    if (a->rule == RESERVE_POWER_OF_2) {
        int answer = 1;
        while (answer < r->generated) answer *= 2;
        size = r->context + answer;
    }
    // A request that fits is not refused because its reservation does not.
    return size > a->budget && final_length <= a->budget ? a->budget : size;
}

// The slots that are not free.
static int slots_taken(const Allocator *a)
{
    if (a->pool) return (a->pool->config.num_blocks - a->pool->num_free) * a->pool->config.block_size;
    int sum = 0;
    for (int i = 0; i < arrlen(a->reserved); i++) sum += a->reserved[i]->size;
    return sum;
}

// The slots that this request alone holds.
static int slots_held(const Allocator *a, const Request *r)
{
    if (!a->pool) return r->size;
    return (int)arrlen(r->seq->block_table) * a->pool->config.block_size - a->shared_slots;
}

// Takes the first hole between the regions that is large enough. False: there is none.
static bool reserve(Allocator *a, Request *r)
{
    int size = slots_needed(a, r, r->length);
    int start = 0;
    int at = 0;
    for (; at < arrlen(a->reserved); at++) {
        if (a->reserved[at]->start - start >= size) break;
        start = a->reserved[at]->start + a->reserved[at]->size;
    }
    if (a->budget - start < size) return false;
    if (at < arrlen(a->reserved) && start + size > a->reserved[at]->start)
        die(1, "%s: two regions overlap at slot %d", a->name, a->reserved[at]->start);
    r->start = start;
    r->size = size;
    arrins(a->reserved, at, r);
    return true;
}

// Makes room for the r->length tokens that a request has. False: there is none.
static bool admit(Allocator *a, Request *r)
{
    if (!a->pool) return reserve(a, r);
    // A request that was preempted lacked room for one more token. Without that it would be
    // preempted again in the next step.
    int length = r->length + (r->delivered > 0);
    if (slots_needed(a, r, length) > a->pool->num_free * a->pool->config.block_size) return false;
    if (a->system.seq)
        must(seq_fork(a->system.seq, a->system.length, &r->seq), "seq_fork");
    else
        must(seq_create(a->pool, &r->seq), "seq_create");
    r->num_new = r->length - a->system.length;
    must(seq_append(r->seq, r->num_new), "seq_append");
    return true;
}

// Makes room for one more token. False: there is none, and nothing has changed.
static bool grow(Allocator *a, Request *r)
{
    if (a->pool) {
        int error = seq_append(r->seq, 1);
        if (error == PAGED_OUT_OF_BLOCKS) return false;
        must(error, "seq_append");
    } else if (r->length == r->size)
        die(1, "%s: a request grows beyond its %d slots", a->name, r->size);
    r->length++;
    r->num_new = 1;
    return true;
}

static void release(Allocator *a, Request *r)
{
    if (a->pool) {
        seq_release(r->seq);
        r->seq = NULL;
        return;
    }
    int at = 0;
    while (at < arrlen(a->reserved) && a->reserved[at] != r) at++;
    if (at == arrlen(a->reserved)) die(1, "%s: request %d has no region", a->name, r->id);
    arrdel(a->reserved, at);
}

// ---- K and V, with --verify -------------------------------------------------------------------

enum { NUM_LAYERS = 2, NUM_Q_HEADS = 4, NUM_KV_HEADS = 2, HEAD_DIM = 4 };
enum { ROW = NUM_KV_HEADS * HEAD_DIM, Q_ROW = NUM_Q_HEADS * HEAD_DIM };  // floats of a token

static float *new_floats(size_t count)
{
    float *floats = (float *)malloc(count * sizeof(float));
    if (!floats) die(1, "out of memory");
    return floats;
}

// An element of K (which = 0), V (1) or q (2). All are multiples of 1/64 in [-1, 1), which f16 holds
// exactly.
static float element(int request, int position, int layer, int which, int i)
{
    uint64_t state = (uint64_t)(request + 2) << 40 ^ (uint64_t)position << 12 ^
                     (uint64_t)(layer * 3 + which) << 8 ^ (uint64_t)i;
    return (float)(int)(random_bits(&state) % 128) / 64 - 1;
}

// K and V of the newest `count` tokens of a request, in the layout of pool_write().
static void fill(const Allocator *a, const Request *r, int count, int layer, float *k, float *v)
{
    for (int t = r->length - count; t < r->length; t++) {
        int owner = t < a->system.length ? -1 : r->id;
        for (int i = 0; i < ROW; i++) {
            *k++ = element(owner, t, layer, 0, i);
            *v++ = element(owner, t, layer, 1, i);
        }
    }
}

// Writes K and V of the new tokens of all requests: made up, or as they were swapped out.
static void write_new_tokens(const Allocator *a, Request **requests, int count)
{
    Seq **seqs = NULL;
    int *num_tokens = NULL;
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        arrput(seqs, requests[i]->seq);
        arrput(num_tokens, requests[i]->num_new);
        total += requests[i]->num_new;
    }
    Batch batch = {count, seqs, num_tokens};
    must(pool_plan(a->pool, &batch), "pool_plan");
    float *k = new_floats(2 * total * ROW);
    float *v = k + total * ROW;
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        size_t at = 0;
        for (int i = 0; i < count; i++) {
            const Request *r = requests[i];
            size_t size = (size_t)r->num_new * ROW;
            if (r->saved) {
                size_t plane = (size_t)r->length * ROW;
                const float *saved_k = r->saved + 2 * layer * plane + plane - size;
                memcpy(k + at, saved_k, size * sizeof(float));
                memcpy(v + at, saved_k + plane, size * sizeof(float));
            } else
                fill(a, r, r->num_new, layer, k + at, v + at);
            at += size;
        }
        must(pool_write(a->pool, layer, k, v), "pool_write");
    }
    for (int i = 0; i < count; i++) {
        free(requests[i]->saved);
        requests[i]->saved = NULL;
        requests[i]->num_new = 0;
    }
    free(k);
    arrfree(seqs);
    arrfree(num_tokens);
}

static void swap_out(Request *r)
{
    size_t plane = (size_t)r->length * ROW;
    r->saved = new_floats(2 * NUM_LAYERS * plane);
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        float *k = r->saved + 2 * layer * plane;
        must(seq_gather(r->seq, layer, k, k + plane), "seq_gather");
    }
}

// Every byte of K and V of a request is what was written, and attention of its newest token is what
// the oracle computes.
static void verify(const Allocator *a, const Request *r)
{
    size_t plane = (size_t)r->length * ROW;
    float *written = new_floats(2 * plane);  // [K, V][length][num_kv_heads][head_dim]
    float *gathered = new_floats(2 * plane);
    float q[Q_ROW], out[Q_ROW], expected[Q_ROW];
    int one = 1;
    Batch batch = {1, &r->seq, &one};
    Oracle *oracle;
    must(oracle_create(&a->pool->config, r->length, &oracle), "oracle_create");
    must(oracle_append(oracle, r->length), "oracle_append");
    must(pool_plan(a->pool, &batch), "pool_plan");
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        fill(a, r, r->length, layer, written, written + plane);
        must(seq_gather(r->seq, layer, gathered, gathered + plane), "seq_gather");
        if (memcmp(written, gathered, 2 * plane * sizeof(float)) != 0)
            die(1, "%s: request %d: K or V of layer %d is not what was written", a->name, r->id,
                layer);
        for (int i = 0; i < Q_ROW; i++) q[i] = element(r->id, r->length, layer, 2, i);
        must(oracle_write(oracle, layer, r->length, written, written + plane), "oracle_write");
        must(oracle_attend(oracle, layer, 1, NUM_Q_HEADS, 0, q, expected, NULL), "oracle_attend");
        must(attend(a->pool, ATTEND_PAGED, layer, NUM_Q_HEADS, 0, q, out, NULL), "attend");
        for (int i = 0; i < Q_ROW; i++)
            if (!(fabsf(out[i] - expected[i]) <= 1e-5f))
                die(1, "%s: request %d: attention over %d tokens gives %g, the oracle %g", a->name,
                    r->id, r->length, (double)out[i], (double)expected[i]);
    }
    oracle_release(oracle);
    free(written);
    free(gathered);
}

// ---- the scheduler ----------------------------------------------------------------------------

enum { RECOMPUTE, SWAP };
enum { USED, RESERVED, INTERNAL, EXTERNAL, FREE, NUM_KINDS };  // of slots

typedef struct Options {
    const char *path;                    // of the trace
    const char *save, *csv, *curve;      // paths, NULL: not given
    int generate, block_size, num_blocks, step_ms, prefix;  // 0: not given
    int64_t seed;                        // -1: not given
    int limit;
    int preempt;
    bool saturate;
    bool verify;
} Options;

enum { MAX_POINTS = 256 };

typedef struct Curve {  // requests running together, over time
    int64_t sum[MAX_POINTS];
    int64_t width;  // steps that share a point
} Curve;

typedef struct Server {  // serves the trace through one allocator
    const Options *options;
    Allocator *a;
    Request *requests;
    int count;
    int next;             // requests[next] arrives next, or waits and is the first that is new
    Request **running;    // the oldest first (both are arrays of stb_ds)
    Request **preempted;  // these go before all others; the oldest is the last
    int64_t step;
    // The results:
    char name[40];
    int budget;                // slots
    int64_t measured;          // steps
    int64_t slots[NUM_KINDS];  // sums over measured steps, as the next one
    int64_t num_running;
    int peak;
    int ended;
    int refused;
    int64_t preemptions;
    int64_t moved;   // tokens that were computed again, or swapped out and in
    int64_t waited;  // steps from arrival to the first admission, of all requests
    double at_end;   // used of taken, with each request counted once, at its final length
    Curve curve;
} Server;

static void add_point(Curve *c, int64_t step, int running)
{
    while (step / c->width >= MAX_POINTS) {  // too long: halve the resolution
        for (int i = 0; i < MAX_POINTS / 2; i++) c->sum[i] = c->sum[2 * i] + c->sum[2 * i + 1];
        memset(c->sum + MAX_POINTS / 2, 0, sizeof c->sum / 2);
        c->width *= 2;
    }
    c->sum[step / c->width] += running;
}

static int64_t arrival_step(const Server *s, const Request *r)
{
    if (s->options->saturate) return 0;
    return (r->arrival - s->requests[0].arrival) / (s->options->step_ms * (TICKS / 1000));
}

// The head of the queue, NULL if no request waits.
static Request *queue_head(const Server *s)
{
    if (arrlen(s->preempted) > 0) return arrlast(s->preempted);
    if (s->next == s->count) return NULL;
    Request *r = &s->requests[s->next];
    return arrival_step(s, r) <= s->step ? r : NULL;
}

static void skip_refused(Server *s)
{
    while (s->next < s->count && s->requests[s->next].refused) s->next++;
}

static void preempt_newest(Server *s)
{
    Request *newest = arrpop(s->running);
    s->preemptions++;
    s->moved += newest->length - s->a->system.length;
    if (s->options->verify && s->options->preempt == SWAP) swap_out(newest);
    release(s->a, newest);
    arrput(s->preempted, newest);
}

// One more token for each running request. The oldest gets its room, if need be by preempting all
// others.
static void grow_all(Server *s)
{
    for (int i = 0; i < arrlen(s->running);) {
        if (grow(s->a, s->running[i])) {
            s->running[i]->delivered++;
            i++;
        } else
            preempt_newest(s);  // in the end running[i] itself, and the loop ends
    }
}

// Admits requests while there is room for the head of the queue.
static void admit_all(Server *s)
{
    for (Request *head; (head = queue_head(s)) && admit(s->a, head);) {
        if (!head->admitted) s->waited += s->step - arrival_step(s, head);
        head->admitted = true;
        arrput(s->running, head);
        if (arrlen(s->preempted) > 0) {
            (void)arrpop(s->preempted);
        } else {
            s->next++;
            skip_refused(s);
        }
    }
}

// Counts the slots of each kind, and compares them with what the allocator says is taken.
static void account(Server *s, bool measured)
{
    const Allocator *a = s->a;
    int64_t held = 0;
    int64_t used = a->system.length;
    int64_t reserved = 0;
    if (a->system.seq) held = slots_held(a, &a->system) + a->shared_slots;
    for (int i = 0; i < arrlen(s->running); i++) {
        const Request *r = s->running[i];
        int tokens = r->length - a->shared_slots;
        int empty = slots_held(a, r) - tokens;
        int to_come = r->context + r->generated - r->length;
        if (empty < 0 || to_come < 0) die(1, "%s: request %d has too many tokens", a->name, r->id);
        held += tokens + empty;
        used += tokens;
        reserved += empty < to_come ? empty : to_come;
    }
    if (held != slots_taken(a))
        die(1, "%s: step %lld: requests hold %lld slots, but %d are taken", a->name,
            (long long)s->step, (long long)held, slots_taken(a));
    add_point(&s->curve, s->step, (int)arrlen(s->running));
    if (!measured) return;
    int64_t available = a->budget - held;
    const Request *head = queue_head(s);
    bool enough = head && slots_needed(a, head, head->length) <= available;
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
        if (r->ended || length != r->context + r->generated)
            die(1, "%s: request %d ends with %d tokens instead of %d + %d", s->name, r->id, length,
                r->context, r->generated);
        if (r->seq && s->options->verify) verify(s->a, r);
        release(s->a, r);
        r->ended = true;
        s->ended++;
    }
    arrsetlen(s->running, kept);
}

// Resets all requests, and refuses those that could never end.
static void begin(Server *s)
{
    double used = s->a->system.length;
    double taken = slots_taken(s->a);
    int room = s->a->budget - slots_taken(s->a);
    for (int i = 0; i < s->count; i++) {
        Request *r = &s->requests[i];
        int final_length = r->context + r->generated;
        int needed = slots_needed(s->a, r, final_length);
        used += final_length - s->a->shared_slots;
        taken += needed;
        r->delivered = 0;
        r->length = r->context;
        r->admitted = r->ended = false;
        r->refused = needed > room;
        s->refused += r->refused;
    }
    s->at_end = used / taken;
    skip_refused(s);
}

// All requests were served, once each and whole, and all memory is back.
static void check_end(const Server *s, int taken_before)
{
    int64_t delivered = 0;
    int64_t expected = 0;
    int ended = 0;
    for (int i = 0; i < s->count; i++) {
        const Request *r = &s->requests[i];
        ended += r->ended;
        delivered += r->delivered;
        if (!r->refused) expected += r->generated;
    }
    if (ended != s->ended || ended + s->refused != s->count || delivered != expected)
        die(1, "%s: of %d requests, %d ended and %d were refused; they got %lld tokens of %lld",
            s->name, s->count, ended, s->refused, (long long)delivered, (long long)expected);
    if (slots_taken(s->a) != taken_before)
        die(1, "%s: %d slots are still taken at the end", s->name, slots_taken(s->a) - taken_before);
    const char *broken = s->a->pool ? pool_check(s->a->pool) : NULL;
    if (broken) die(1, "%s: %s", s->name, broken);
}

static Server serve(Allocator *a, const Options *o, const Trace *trace)
{
    Server s;
    memset(&s, 0, sizeof s);
    s.options = o;
    s.a = a;
    s.requests = trace->requests;
    s.count = (int)arrlen(trace->requests);
    s.budget = budget_of(o);
    memcpy(s.name, a->name, sizeof s.name);
    s.curve.width = 1;
    int taken_before = slots_taken(a);
    begin(&s);
    while (arrlen(s.running) + arrlen(s.preempted) > 0 || s.next < s.count) {
        if (arrlen(s.running) == 0 && !queue_head(&s))
            s.step = arrival_step(&s, &s.requests[s.next]);  // nothing to do until then
        bool measured = !o->saturate || queue_head(&s);
        grow_all(&s);
        admit_all(&s);
        if (arrlen(s.running) == 0) die(1, "%s: no request runs, and the head waits", s.name);
        if (o->verify && a->pool) write_new_tokens(a, s.running, (int)arrlen(s.running));
        account(&s, measured);
        end_requests(&s);
        s.step++;
        if (isatty(2) && s.step % 1024 == 0)
            fprintf(stderr, "\r%-28s %3d %%\r", s.name, (int)(100.0 * s.ended / s.count));
    }
    check_end(&s, taken_before);
    arrfree(s.running);
    arrfree(s.preempted);
    return s;
}

static Server serve_reserving(int rule, const Options *o, const Trace *trace)
{
    static const char *const names[] = {"reserve maximum", "reserve power of 2", "reserve exactly"};
    Allocator a;
    memset(&a, 0, sizeof a);
    snprintf(a.name, sizeof a.name, "%s", names[rule]);
    a.budget = budget_of(o);
    a.rule = rule;
    a.longest = trace->longest;
    Server s = serve(&a, o, trace);
    arrfree(a.reserved);
    return s;
}

static Server serve_paged(int block_size, int prefix, const Options *o, const Trace *trace)
{
    Allocator a;
    memset(&a, 0, sizeof a);
    snprintf(a.name, sizeof a.name, "paged %d%s", block_size, prefix ? ", shared prefix" : "");
    // Without --verify the pool keeps block tables only, and its K and V are never touched.
    PoolConfig config = {1, 1, 1, block_size, budget_of(o) / block_size, PAGED_F16, 0, PAGED_CPU};
    if (o->verify) {
        config.num_layers = NUM_LAYERS;
        config.num_kv_heads = NUM_KV_HEADS;
        config.head_dim = HEAD_DIM;
        config.poison = 1;
    }
    must(pool_create(&config, &a.pool), "pool_create");
    a.budget = config.num_blocks * block_size;
    if (prefix) {
        Request *system = &a.system;
        system->length = prefix;
        system->num_new = prefix;
        must(seq_create(a.pool, &system->seq), "seq_create");
        must(seq_append(system->seq, prefix), "the shared prefix");
        if (o->verify) write_new_tokens(&a, &system, 1);
        a.shared_slots = prefix / block_size * block_size;
    }
    Server s = serve(&a, o, trace);
    if (prefix) seq_release(a.system.seq);
    if (a.pool->num_free != config.num_blocks) die(1, "%s: blocks were not given back", a.name);
    pool_destroy(a.pool);
    return s;
}
