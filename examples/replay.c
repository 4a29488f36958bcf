// replay: a trace of real requests, served on paper, to see why paging won.
//
// It takes arrival times, prompt lengths and answer lengths from a trace, such as the Azure LLM
// inference traces of 2023 (Patel et al., "Splitwise: Efficient Generative LLM Inference Using
// Phase Splitting", ISCA 2024), and runs them through continuous batching, once for each allocator,
// on one budget of slots. A slot holds K and V of one token. The allocators:
//
//     reserve maximum    one contiguous piece for the longest request of the trace, for everyone
//     reserve power of 2 one for the prompt, and for the answer's length rounded up to a power of
//                        two, as if the server had guessed it that well
//     reserve exactly    one for the final length: an oracle, no server knows it
//     paged              blocks from the pool of ../paged.h, taken when a token needs one
//
// The first three take the first hole that is large enough. Only paged can run out of memory in the
// middle of a request. Then the newest request is preempted: it gives its blocks back and waits at
// the head of the queue. Its K and V are computed again later, or swapped out and back.
//
// A step. Every running request gets one more token, the oldest first. Then requests are taken from
// the queue, first come, first served, while the head finds room; its whole prompt goes in at once.
// A request that has all its tokens leaves at the end of the step. One whose final length exceeds
// the whole budget could never end, so it is refused for good, before it starts. A step counts the
// same however much it computes: this is about memory, and says nothing of speed.
//
// What is measured, at the end of every step, before anyone leaves. Each slot of the budget is
//
//     used       it holds a token; one that several requests share counts once
//     reserved   it is held for a token that its request will get later
//     internal   it is held by a request that will never fill it
//     external   it is free, and so are as many as the head of the queue needs, but apart
//     free       the other free ones: too few for the head, or nobody waits
//
// in the terms of figure 2 of Kwon et al., SOSP 2023. The shares are sums over steps, divided by
// steps times budget, and add up to 100 %; utilisation is the share that is used. With --saturate
// only steps that begin with a request waiting are measured: the others just drain the batch.
//
// Read on in order: the trace, the two allocators, the scheduler, what it checks and prints.
//
//     cc -O2 examples/replay.c paged.o -o replay -lm && ./replay TRACE.csv

#include "../paged.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if __has_include(<stb/stb_ds.h>)
#include <stb/stb_ds.h>
#else
#include <stb_ds.h>
#endif

enum {
    MAX_TOKENS = 1 << 24,     // of a prompt, an answer, a budget: all sums fit
    DEFAULT_BUDGET = 131072,  // slots: see --help
    MOST_POINTS = 256,        // of a curve
    VERIFY_EVERY = 61,        // steps between two looks at attention
    NUM_LAYERS = 2,           // these are of the model with --verify
    NUM_Q_HEADS = 4,
    NUM_KV_HEADS = 2,
    HEAD_DIM = 4,
};

enum { RECOMPUTE, SWAP };
enum { RESERVE_MAXIMUM, RESERVE_POWER_OF_2, RESERVE_EXACTLY };

__attribute__((noreturn, format(printf, 2, 3))) static void die(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "replay: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(status);
}

static void must(int error, const char *what)
{
    if (error) die(1, "%s: %s", what, paged_error(error));
}

// ---- the trace --------------------------------------------------------------------------------

typedef struct Request {
    int64_t arrival;         // in ticks of 100 ns
    int context, generated;  // tokens of the prompt, and of the answer
    // What follows changes while a trace is replayed.
    int delivered;    // tokens of the answer so far; they outlive a preemption
    int length;       // tokens that are in the cache, or go there when it is admitted
    int fresh;        // of these, the newest, which this step has to write
    int start, size;  // its piece of contiguous memory
    Seq *seq;         // its blocks; NULL while it waits
    float *saved;     // swapped out: [layers][K, V][length][num_kv_heads][head_dim]
    char admitted, ended, refused;
} Request;

typedef struct Trace {
    Request *requests;  // in the order of arrival (an array of stb_ds)
    int64_t context, generated;
    int longest;  // final length
} Trace;

static const char header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

// Days from 1 March of year 0 to a date of the Gregorian calendar. With the year begun in March,
// the leap day is its last.
static int64_t day_number(int year, int month, int day)
{
    int y = month < 3 ? year - 1 : year, m = (month + 9) % 12;
    return 365 * (int64_t)y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
}

// Takes a time like 2023-11-16 18:15:46.6805900, with 0 to 7 decimals, as ticks of 100 ns. -1: it
// is none.
static int64_t take_time(const char **at)
{
    int year, month, day, hour, minute, second;
    for (const char *form = "dddd-dd-dd dd:dd:dd"; *form; form++, (*at)++)
        if (*form == 'd' ? **at < '0' || **at > '9' : **at != *form) return -1;
    sscanf(*at - 19, "%4d-%2d-%2d %2d:%2d:%2d", &year, &month, &day, &hour, &minute, &second);
    if (year < 1 || month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 59)
        return -1;
    int next_month = month % 12 + 1, next_year = year + month / 12;
    if (day > day_number(next_year, next_month, 1) - day_number(year, month, 1)) return -1;
    int64_t time = ((day_number(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    int decimals = 0;
    if (**at == '.')
        for ((*at)++; **at >= '0' && **at <= '9' && decimals < 7; (*at)++, decimals++)
            time = 10 * time + (**at - '0');
    if ((*at)[-1] == '.') return -1;
    for (; decimals < 7; decimals++) time *= 10;
    return time;
}

// Takes a whole number of tokens from `least` to MAX_TOKENS. -1: there is none.
static int take_tokens(const char **at, int least)
{
    int value = 0, digits = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++, digits++)
        if ((value = 10 * value + (**at - '0')) > MAX_TOKENS) return -1;
    return digits > 0 && value >= least ? value : -1;
}

// Returns what is wrong with a line, or NULL. `after` is the arrival of the request before it.
static const char *parse_line(const char *at, int64_t after, Request *r)
{
    if ((r->arrival = take_time(&at)) < 0)
        return "TIMESTAMP is no time like 2023-11-16 18:15:46.68";
    if (r->arrival < after) return "TIMESTAMP is before that of the line above";
    if (*at++ != ',') return "there is no comma after TIMESTAMP";
    if ((r->context = take_tokens(&at, 1)) < 0)
        return "ContextTokens is no whole number from 1 to 16777216";
    if (*at++ != ',') return "there is no comma after ContextTokens";
    if ((r->generated = take_tokens(&at, 0)) < 0)
        return "GeneratedTokens is no whole number from 0 to 16777216";
    return *at ? "something follows GeneratedTokens" : NULL;
}

// Reads at most `limit` requests and puts `prefix` tokens before each prompt. Nothing is guessed:
// one malformed line and there is no trace.
static void read_trace(Trace *trace, const char *path, int limit, int prefix)
{
    FILE *in = fopen(path, "r");
    if (!in) die(1, "%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    int64_t last = 0;
    int number = 0, wrong = 0;
    while (arrlen(trace->requests) < limit && (size = getline(&line, &room, in)) >= 0) {
        if (size > 0 && line[size - 1] == '\n') line[--size] = 0;
        if (size > 0 && line[size - 1] == '\r') line[--size] = 0;
        Request r;
        memset(&r, 0, sizeof r);
        const char *error = (size_t)size != strlen(line) ? "there is a byte 0 in it"
                            : number > 0                 ? parse_line(line, last, &r)
                            : strcmp(line, header) != 0  ? "this is not the header of a trace"
                                                         : NULL;
        if (error && wrong < 10) fprintf(stderr, "replay: %s:%d: %s\n", path, number + 1, error);
        wrong += error != NULL;
        if (number++ == 0 || error) continue;
        last = r.arrival;
        r.context += prefix;
        trace->context += r.context;
        trace->generated += r.generated;
        if (r.context + r.generated > trace->longest) trace->longest = r.context + r.generated;
        arrput(trace->requests, r);
    }
    if (ferror(in)) die(1, "%s: %s", path, strerror(errno));
    fclose(in);
    free(line);
    if (wrong)
        die(1, "%s: %d malformed line%s; nothing was replayed", path, wrong, &"s"[wrong == 1]);
    if (!arrlen(trace->requests)) die(1, "%s: there is no request in it", path);
}

static uint64_t next_random(uint64_t *state)  // splitmix64
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double uniform(uint64_t *state)  // above 0, at most 1
{
    return (double)((next_random(state) >> 11) + 1) / 9007199254740992.0;
}

// A whole number from 1 to `most`, log-normal about the median (Box and Muller).
static int log_normal(uint64_t *state, double median, double sigma, int most)
{
    double radius = sqrt(-2 * log(uniform(state))), angle = 6.283185307179586 * uniform(state);
    double x = floor(median * exp(sigma * radius * cos(angle)) + 0.5);
    return x < 1 ? 1 : x > most ? most : (int)x;
}

// Prints a trace that is like the real one in its means: arrivals after exponential gaps of 0.18 s
// in the mean; log-normal prompts (median 800, sigma 0.85, at most 14000, mean about 1148) and
// answers (median 150, sigma 0.85, at most 1000, mean about 210), all independent.
static void generate(int count, uint64_t seed)
{
    double time = 0;
    puts(header);
    for (int i = 0; i < count; i++) {
        int64_t ticks = (int64_t)(time * 1e7), second = ticks / 10000000;
        int context = log_normal(&seed, 800, 0.85, 14000);
        int generated = log_normal(&seed, 150, 0.85, 1000);
        int day = (int)(second / 86400) + 1;
        if (day > 31) die(2, "--generate %d: so many requests would take more than a month", count);
        printf("2000-01-%02d %02d:%02d:%02d.%07d,%d,%d\n", day, (int)(second / 3600 % 24),
               (int)(second / 60 % 60), (int)(second % 60), (int)(ticks % 10000000), context,
               generated);
        time -= 0.18 * log(uniform(&seed));
    }
}

// ---- what an allocator is ---------------------------------------------------------------------

typedef struct Piece {
    int start, size;
} Piece;

typedef struct Allocator Allocator;
struct Allocator {
    // The slots that a request takes to hold so many tokens, beside what it shares with others.
    int (*need)(const Allocator *a, const Request *r, int tokens);
    int (*admit)(Allocator *a, Request *r);  // takes room for r->length tokens; 0: there is none
    int (*grow)(Allocator *a, Request *r);   // one more token; 0: there is no room
    void (*release)(Allocator *a, Request *r);
    int (*held)(const Allocator *a, const Request *r);  // slots that this request alone holds
    int (*taken)(const Allocator *a);                   // slots that are not free, all in all

    char name[40];
    int budget;  // slots
    // contiguous
    int rule, longest;
    Piece *pieces;  // by address (an array of stb_ds)
    int taken_by_pieces;
    // paged
    Pool *pool;
    int prefix;        // tokens that all requests begin with and share, or 0
    Seq *system;       // holds them
    int shared_slots;  // in the full blocks among them; a partly filled one is copied on write
};

// ---- contiguous, first fit --------------------------------------------------------------------

static int piece_need(const Allocator *a, const Request *r, int tokens)
{
    int64_t size = r->context, answer = 1;
    (void)tokens;  // all of it is taken at the start
    if (a->rule == RESERVE_POWER_OF_2) {
        while (answer < r->generated) answer *= 2;
        size += answer;
    } else
        size = a->rule == RESERVE_MAXIMUM ? a->longest : size + r->generated;
    // No reservation is larger than the budget if the request itself is not.
    return size > a->budget && r->context + r->generated <= a->budget ? a->budget : (int)size;
}

static int piece_admit(Allocator *a, Request *r)
{
    int need = piece_need(a, r, r->length), start = 0, at = 0;
    for (; at < arrlen(a->pieces) && a->pieces[at].start - start < need; at++)
        start = a->pieces[at].start + a->pieces[at].size;
    if (a->budget - start < need) return 0;
    Piece piece = {start, need};
    arrins(a->pieces, at, piece);
    if (at + 1 < arrlen(a->pieces) && start + need > a->pieces[at + 1].start)
        die(1, "%s: the pieces at %d and %d overlap", a->name, start, a->pieces[at + 1].start);
    r->start = start;
    r->size = need;
    a->taken_by_pieces += need;
    return 1;
}

static int piece_grow(Allocator *a, Request *r)
{
    (void)a;
    if (r->length >= r->size) die(1, "a request grows past the %d slots of its piece", r->size);
    r->length++;
    return 1;
}

static void piece_release(Allocator *a, Request *r)
{
    int at = 0;
    while (at < arrlen(a->pieces) && a->pieces[at].start != r->start) at++;
    if (at == arrlen(a->pieces)) die(1, "a piece at %d is released that is not there", r->start);
    a->taken_by_pieces -= a->pieces[at].size;
    arrdel(a->pieces, at);
}

static int piece_held(const Allocator *a, const Request *r) { return (void)a, r->size; }
static int piece_taken(const Allocator *a) { return a->taken_by_pieces; }

// ---- paged ------------------------------------------------------------------------------------
// All the work is the pool's. A sequence is forked from the system prompt's, if there is one, and
// appended to.

static int paged_need(const Allocator *a, const Request *r, int tokens)
{
    (void)r;
    int block_size = a->pool->config.block_size;
    return (tokens + block_size - 1) / block_size * block_size - a->shared_slots;
}

static int paged_admit(Allocator *a, Request *r)
{
    // Who was preempted for want of one more token would else be back at once, and out again.
    int length = r->length + (r->delivered > 0);
    if (paged_need(a, r, length) > a->pool->num_free * a->pool->config.block_size) return 0;
    must(a->system ? seq_fork(a->system, a->prefix, &r->seq) : seq_create(a->pool, &r->seq),
         "a new sequence");
    must(seq_append(r->seq, r->length - a->prefix), "seq_append");
    r->fresh = r->length - a->prefix;
    return 1;
}

static int paged_grow(Allocator *a, Request *r)
{
    (void)a;
    int error = seq_append(r->seq, 1);
    if (error == PAGED_OUT_OF_BLOCKS) return 0;
    must(error, "seq_append");
    r->length++;
    r->fresh = 1;
    return 1;
}

static void paged_release(Allocator *a, Request *r)
{
    (void)a;
    seq_release(r->seq);
    r->seq = NULL;
}

static int paged_held(const Allocator *a, const Request *r)
{
    return (int)arrlen(r->seq->block_table) * a->pool->config.block_size - a->shared_slots;
}

static int paged_taken(const Allocator *a)
{
    return (a->pool->config.num_blocks - a->pool->num_free) * a->pool->config.block_size;
}

static size_t token_floats(const Pool *pool)
{
    return (size_t)pool->config.num_kv_heads * pool->config.head_dim;
}

// Swapping out is gather and release; in, append and write. What is shared stays where it is. The
// caller releases and appends.
static void swap_out(Pool *pool, Request *r)
{
    size_t plane = r->length * token_floats(pool);
    r->saved = (float *)malloc(2 * pool->config.num_layers * plane * sizeof(float));
    if (!r->saved) die(1, "out of memory");
    for (int layer = 0; layer < pool->config.num_layers; layer++) {
        float *k = r->saved + 2 * layer * plane;
        must(seq_gather(r->seq, layer, k, k + plane), "seq_gather");
    }
}

static void swap_in(Pool *pool, Request *r)
{
    size_t plane = r->length * token_floats(pool);
    size_t skip = (r->length - r->fresh) * token_floats(pool);
    Batch batch = {1, &r->seq, &r->fresh};
    for (int layer = 0; layer < pool->config.num_layers; layer++) {
        float *k = r->saved + 2 * layer * plane;
        must(pool_write(pool, layer, &batch, k + skip, k + plane + skip), "pool_write");
    }
    free(r->saved);
    r->saved = NULL;
    r->fresh = 0;
}

// ---- K and V with --verify --------------------------------------------------------------------

// Element i of K (which = 0) or V (1) of a token. Those of a shared prefix belong to nobody, and
// have -1 for a request. All are multiples of 1/64 in [-1, 1): every dtype holds them exactly.
static float element(int request, int position, int layer, int which, int i)
{
    uint64_t state = (uint64_t)(request + 2) << 40 ^ (uint64_t)position << 12 ^
                     (uint64_t)(layer * 2 + which) << 8 ^ (uint64_t)i;
    return (float)(int)(next_random(&state) % 128) / 64 - 1;
}

// One layer of positions `first` to `end` - 1 of a request, in the layout of pool_write().
static void fill(const Allocator *a, int request, int first, int end, int layer, float *k, float *v)
{
    int n = (int)token_floats(a->pool);
    for (int t = first; t < end; t++)
        for (int i = 0; i < n; i++) {
            *k++ = element(t < a->prefix ? -1 : request, t, layer, 0, i);
            *v++ = element(t < a->prefix ? -1 : request, t, layer, 1, i);
        }
}

typedef struct Floats {
    float *k, *v, *k2, *v2;  // [rows][num_kv_heads][head_dim] each (arrays of stb_ds)
} Floats;

static void make_room(Floats *f, size_t count)
{
    arrsetlen(f->k, count), arrsetlen(f->v, count);
    arrsetlen(f->k2, count), arrsetlen(f->v2, count);
}

static void free_floats(Floats *f) { arrfree(f->k), arrfree(f->v), arrfree(f->k2), arrfree(f->v2); }

// Every byte of a request, gathered, is what was written.
static void verify_bytes(const Allocator *a, const Request *r, int request, Floats *f)
{
    size_t count = r->length * token_floats(a->pool);
    make_room(f, count);
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        fill(a, request, 0, r->length, layer, f->k, f->v);
        must(seq_gather(r->seq, layer, f->k2, f->v2), "seq_gather");
        if (memcmp(f->k, f->k2, count * sizeof(float)) ||
            memcmp(f->v, f->v2, count * sizeof(float)))
            die(1, "%s: request %d: its K or V in layer %d is not what was written", a->name,
                request, layer);
    }
}

// Attention of its newest token, in the last layer, is the oracle's.
static void verify_attention(const Allocator *a, const Request *r, int request, Floats *f)
{
    float q[NUM_Q_HEADS * HEAD_DIM], out[NUM_Q_HEADS * HEAD_DIM], expected[NUM_Q_HEADS * HEAD_DIM];
    int one = 1, layer = NUM_LAYERS - 1;
    Batch batch = {1, &r->seq, &one};
    Oracle *oracle;
    make_room(f, r->length * token_floats(a->pool));
    fill(a, request, 0, r->length, layer, f->k, f->v);
    for (int i = 0; i < NUM_Q_HEADS * HEAD_DIM; i++)
        q[i] = element(request, r->length, layer, 2, i);
    must(oracle_create(&a->pool->config, r->length, &oracle), "oracle_create");
    must(oracle_append(oracle, r->length), "oracle_append");
    must(oracle_write(oracle, layer, r->length, f->k, f->v), "oracle_write");
    must(oracle_attend(oracle, layer, 1, NUM_Q_HEADS, 0, q, expected, NULL), "oracle_attend");
    oracle_release(oracle);
    must(attend(a->pool, ATTEND_PAGED, layer, &batch, NUM_Q_HEADS, 0, q, out, NULL), "attend");
    for (int i = 0; i < NUM_Q_HEADS * HEAD_DIM; i++)
        if (!(fabsf(out[i] - expected[i]) <= 1e-5f))
            die(1, "%s: request %d: attention over %d tokens gives %g, the oracle %g", a->name,
                request, r->length, (double)out[i], (double)expected[i]);
}

// ---- the scheduler ----------------------------------------------------------------------------

typedef struct Options {
    const char *path, *csv, *curve;
    int block_size, num_blocks;  // 0: not given
    int limit, step_ms, prefix, preempt, saturate, verify;
    int generate;
    uint64_t seed;
} Options;

typedef struct Curve {  // requests running together
    int64_t sum[MOST_POINTS];
    int64_t width;  // steps that share a point
} Curve;

typedef struct Replay {  // of the whole trace through one allocator
    const Options *options;
    Allocator *a;
    Request *requests;
    int count, next;        // requests before `next` have been in the queue's head, or are there
    int *running;           // the oldest first; both are arrays of stb_ds
    int *preempted;         // these go before all others; the oldest is the last
    int64_t now, measured;  // steps
    int64_t used, reserved, internal, external;  // sums over measured steps, in slots
    int64_t running_sum;
    int peak, ended, refused;
    int64_t preemptions, moved;  // moved: tokens that were computed again, or swapped out and in
    int64_t waited;              // steps from arrival to the first admission, of all requests
    int64_t samples;             // looks at attention
    Curve curve;
    Floats floats;
    // The results, made of all that.
    char name[40];
    int block_size;   // 0: contiguous
    double share[5];  // used, reserved, internal, external, free, of the whole budget
    double running_mean, waited_mean;  // over measured steps, and over requests
    double at_end;  // used of what is taken, every request counted once at its final length
} Replay;

static void add_point(Curve *c, int64_t step, int running)
{
    while (step / c->width >= MOST_POINTS) {  // too long: halve the resolution
        for (int i = 0; i < MOST_POINTS; i++)
            c->sum[i] = i < MOST_POINTS / 2 ? c->sum[2 * i] + c->sum[2 * i + 1] : 0;
        c->width *= 2;
    }
    c->sum[step / c->width] += running;
}

static int64_t arrival_step(const Replay *p, int i)
{
    if (p->options->saturate) return 0;
    return (p->requests[i].arrival - p->requests[0].arrival) / (p->options->step_ms * 10000ll);
}

// The head of the queue, -1 if nobody waits.
static int queue_head(const Replay *p)
{
    if (arrlen(p->preempted) > 0) return arrlast(p->preempted);
    return p->next < p->count && arrival_step(p, p->next) <= p->now ? p->next : -1;
}

static void preempt_newest(Replay *p)
{
    int newest = arrpop(p->running);
    Request *r = &p->requests[newest];
    p->preemptions++;
    p->moved += r->length - p->a->prefix;
    if (p->options->preempt == SWAP) swap_out(p->a->pool, r);
    p->a->release(p->a, r);
    arrput(p->preempted, newest);
}

// One more token for all that run. The oldest gets its room, if need be by preempting all others.
static void grow_all(Replay *p)
{
    for (int i = 0; i < arrlen(p->running);) {
        Request *r = &p->requests[p->running[i]];
        if (p->a->grow(p->a, r)) {
            r->delivered++;
            i++;
        } else
            preempt_newest(p);  // at last i itself, and the loop ends
    }
}

// Takes requests from the queue while the head finds room.
static void admit_all(Replay *p)
{
    for (int head; (head = queue_head(p)) >= 0;) {
        Request *r = &p->requests[head];
        if (!p->a->admit(p->a, r)) break;
        if (r->saved) swap_in(p->a->pool, r);
        if (!r->admitted) p->waited += p->now - arrival_step(p, head);
        r->admitted = 1;
        arrput(p->running, head);
        if (arrlen(p->preempted) > 0)
            arrpop(p->preempted);
        else
            while (++p->next < p->count && p->requests[p->next].refused) {
            }
    }
}

// Writes K and V of all new tokens, layer by layer, and looks at one request of the batch.
static void write_and_verify(Replay *p)
{
    Allocator *a = p->a;
    Seq **seqs = NULL;
    int *num_tokens = NULL, rows = 0, count = (int)arrlen(p->running);
    for (int i = 0; i < count; i++) {
        Request *r = &p->requests[p->running[i]];
        arrput(seqs, r->seq);
        arrput(num_tokens, r->fresh);
        rows += r->fresh;
    }
    Batch batch = {count, seqs, num_tokens};
    size_t n = token_floats(a->pool);
    make_room(&p->floats, rows * n);
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        size_t at = 0;
        for (int i = 0; i < count; at += num_tokens[i++] * n) {
            int end = seqs[i]->length;
            fill(a, p->running[i], end - num_tokens[i], end, layer, p->floats.k + at,
                 p->floats.v + at);
        }
        must(pool_write(a->pool, layer, &batch, p->floats.k, p->floats.v), "pool_write");
    }
    for (int i = 0; i < count; i++) p->requests[p->running[i]].fresh = 0;
    if (count > 0 && p->now % VERIFY_EVERY == 0) {
        int sample = p->running[p->now / VERIFY_EVERY % count];
        verify_bytes(a, &p->requests[sample], sample, &p->floats);
        verify_attention(a, &p->requests[sample], sample, &p->floats);
        p->samples++;
    }
    arrfree(seqs);
    arrfree(num_tokens);
}

// Adds up what the slots are, and holds it against the allocator's own books.
static void account(Replay *p, int measured)
{
    Allocator *a = p->a;
    int system = a->system ? (int)arrlen(a->system->block_table) * a->pool->config.block_size : 0;
    int64_t held = system, used = a->system ? a->prefix : 0, reserved = 0;
    for (int i = 0; i < arrlen(p->running); i++) {
        const Request *r = &p->requests[p->running[i]];
        int slots = a->held(a, r), tokens = r->length - a->shared_slots;
        int empty = slots - tokens, to_come = r->context + r->generated - r->length;
        if (empty < 0 || to_come < 0) die(1, "%s: a request has too many tokens", a->name);
        held += slots;
        used += tokens;
        reserved += empty < to_come ? empty : to_come;
    }
    int taken = a->taken(a), available = a->budget - taken, head = queue_head(p);
    if (held != taken)
        die(1, "%s: step %lld: requests hold %lld slots, but %d are taken", a->name,
            (long long)p->now, (long long)held, taken);
    add_point(&p->curve, p->now, (int)arrlen(p->running));
    if (!measured) return;
    p->measured++;
    p->used += used;
    p->reserved += reserved;
    p->internal += held - used - reserved;
    if (head >= 0 && a->need(a, &p->requests[head], p->requests[head].length) <= available)
        p->external += available;
    p->running_sum += arrlen(p->running);
    if (arrlen(p->running) > p->peak) p->peak = (int)arrlen(p->running);
}

// Those that have all their tokens leave; each must have exactly its own.
static void end_requests(Replay *p)
{
    int kept = 0;
    for (int i = 0; i < arrlen(p->running); i++) {
        int id = p->running[i];
        Request *r = &p->requests[id];
        if (r->delivered < r->generated) {
            p->running[kept++] = id;
            continue;
        }
        int length = r->seq ? r->seq->length : r->length;
        if (r->ended || length != r->context + r->generated)
            die(1, "%s: request %d ends with %d tokens instead of %d + %d", p->a->name, id, length,
                r->context, r->generated);
        if (r->seq && p->options->verify) verify_bytes(p->a, r, id, &p->floats);
        p->a->release(p->a, r);
        r->ended = 1;
        p->ended++;
    }
    arrsetlen(p->running, kept);
}

// Puts all requests to their start. What could never end is refused.
static void begin(Replay *p)
{
    int64_t room = p->a->budget - p->a->taken(p->a);
    for (int i = 0; i < p->count; i++) {
        Request *r = &p->requests[i];
        r->delivered = r->fresh = r->admitted = r->ended = 0;
        r->length = r->context;
        r->refused = p->a->need(p->a, r, r->context + r->generated) > room;
        p->refused += r->refused;
    }
    while (p->next < p->count && p->requests[p->next].refused) p->next++;
}

// All were served, once each and whole, and all memory is back.
static void check_end(const Replay *p, int taken_before)
{
    int64_t delivered = 0, expected = 0;
    int ended = 0;
    for (int i = 0; i < p->count; i++) {
        const Request *r = &p->requests[i];
        ended += r->ended;
        delivered += r->delivered;
        expected += r->refused ? 0 : r->generated;
    }
    if (ended != p->ended || ended + p->refused != p->count || delivered != expected)
        die(1, "%s: %d requests: %d ended, %d were refused; %lld tokens of %lld", p->a->name,
            p->count, ended, p->refused, (long long)delivered, (long long)expected);
    if (p->a->taken(p->a) != taken_before)
        die(1, "%s: %d slots are still taken after the end", p->a->name,
            p->a->taken(p->a) - taken_before);
    const char *broken = p->a->pool ? pool_check(p->a->pool) : NULL;
    if (broken) die(1, "%s: %s", p->a->name, broken);
}

static void replay(Replay *p)
{
    int taken_before = p->a->taken(p->a), terminal = isatty(2);
    p->curve.width = 1;
    begin(p);
    while (arrlen(p->running) + arrlen(p->preempted) > 0 || p->next < p->count) {
        if (arrlen(p->running) == 0 && queue_head(p) < 0)
            p->now = arrival_step(p, p->next);  // nothing to do until then
        int measured = !p->options->saturate || queue_head(p) >= 0;
        grow_all(p);
        admit_all(p);
        if (arrlen(p->running) == 0) die(1, "%s: nobody runs, and the head waits", p->a->name);
        if (p->options->verify && p->a->pool) write_and_verify(p);
        account(p, measured);
        end_requests(p);
        p->now++;
        if (terminal && p->now % 1024 == 0)
            fprintf(stderr, "\r%-28s %3d %%", p->a->name, (int)(100.0 * p->ended / p->count));
    }
    if (terminal) fprintf(stderr, "\r%34s\r", "");
    check_end(p, taken_before);
    free_floats(&p->floats);
    arrfree(p->running);
    arrfree(p->preempted);
}

// ---- results ----------------------------------------------------------------------------------

static int budget_of(const Options *o)
{
    return o->num_blocks ? o->num_blocks * (o->block_size ? o->block_size : 16) : DEFAULT_BUDGET;
}

// The static accounting: no time, no budget shared with others.
static double used_at_end(const Allocator *a, const Trace *t)
{
    double taken = a->taken(a), used = a->prefix;
    for (int i = 0; i < arrlen(t->requests); i++) {
        const Request *r = &t->requests[i];
        taken += a->need(a, r, r->context + r->generated);
        used += r->context + r->generated - a->shared_slots;
    }
    return used / taken;
}

static Replay run(Allocator *a, const Options *o, const Trace *t, int block_size)
{
    Replay p;
    memset(&p, 0, sizeof p);
    memcpy(p.name, a->name, sizeof p.name);
    p.block_size = block_size;
    p.at_end = used_at_end(a, t);
    p.options = o;
    p.a = a;
    p.requests = t->requests;
    p.count = (int)arrlen(t->requests);
    replay(&p);
    p.a = NULL;  // it does not live as long as the results
    if (p.ended > 0) {
        double steps = (double)p.measured, slots = steps * budget_of(o);
        p.running_mean = (double)p.running_sum / steps;
        p.waited_mean = (double)p.waited / p.ended;
        p.share[0] = (double)p.used / slots;
        p.share[1] = (double)p.reserved / slots;
        p.share[2] = (double)p.internal / slots;
        p.share[3] = (double)p.external / slots;
    }
    p.share[4] = fmax(0, 1 - p.share[0] - p.share[1] - p.share[2] - p.share[3]);
    return p;
}

static Replay run_contiguous(int rule, const Options *o, const Trace *t)
{
    static const char *const names[] = {"reserve maximum", "reserve power of 2", "reserve exactly"};
    Allocator a;
    memset(&a, 0, sizeof a);
    a.need = piece_need, a.admit = piece_admit, a.grow = piece_grow;
    a.release = piece_release, a.held = piece_held, a.taken = piece_taken;
    snprintf(a.name, sizeof a.name, "%s", names[rule]);
    a.budget = budget_of(o);
    a.rule = rule;
    a.longest = t->longest;
    Replay result = run(&a, o, t, 0);
    arrfree(a.pieces);
    return result;
}

static Replay run_paged(int block_size, int prefix, const Options *o, const Trace *t)
{
    Allocator a;
    memset(&a, 0, sizeof a);
    a.need = paged_need, a.admit = paged_admit, a.grow = paged_grow;
    a.release = paged_release, a.held = paged_held, a.taken = paged_taken;
    snprintf(a.name, sizeof a.name, "paged %d%s", block_size, prefix ? ", shared prefix" : "");
    // Without --verify nobody looks at K and V, so one number has to do.
    PoolConfig one = {1, 1, 1, block_size, budget_of(o) / block_size, PAGED_F16, 0, PAGED_CPU};
    if (o->verify)
        one.num_layers = NUM_LAYERS, one.num_kv_heads = NUM_KV_HEADS, one.head_dim = HEAD_DIM;
    int error = pool_create(&one, &a.pool);
    if (error)
        die(1, "a pool of %d blocks of %d tokens: %s", one.num_blocks, block_size,
            paged_error(error));
    a.budget = one.num_blocks * block_size;
    if (prefix) {
        Floats f = {NULL, NULL, NULL, NULL};
        a.prefix = prefix;
        a.shared_slots = prefix / block_size * block_size;
        must(seq_create(a.pool, &a.system), "seq_create");
        must(seq_append(a.system, prefix), "the shared prefix");
        Batch batch = {1, &a.system, &prefix};
        make_room(&f, prefix * token_floats(a.pool));
        for (int layer = 0; layer < one.num_layers; layer++) {
            fill(&a, 0, 0, prefix, layer, f.k, f.v);
            must(pool_write(a.pool, layer, &batch, f.k, f.v), "pool_write");
        }
        free_floats(&f);
    }
    Replay result = run(&a, o, t, block_size);
    if (a.system) seq_release(a.system);
    if (a.pool->num_free != one.num_blocks) die(1, "%s: blocks were not given back", a.name);
    pool_destroy(a.pool);
    return result;
}

static void print_tables(const Replay *results, const Options *o, const Trace *t)
{
    int n = (int)arrlen(results);
    printf("%d requests: %lld tokens of prompts, %lld generated; the longest has %d\n"
           "budget: %d slots; %s; preemption by %s\n\n",
           (int)arrlen(t->requests), (long long)t->context, (long long)t->generated, t->longest,
           budget_of(o),
           o->saturate ? "all requests wait from the start" : "requests arrive as in the trace",
           o->preempt == SWAP ? "swap" : "recompute");
    printf("%-24s %8s %6s %9s %9s %9s %11s %8s\n", "requests", "running", "peak", "steps", "waited",
           "preempted", o->preempt == SWAP ? "swapped" : "recomputed", "refused");
    for (int i = 0; i < n; i++) {
        const Replay *p = &results[i];
        printf("%-24s %8.1f %6d %9lld %9.0f %9lld %11lld %8d\n", results[i].name, p->running_mean,
               p->peak, (long long)p->now, p->waited_mean, (long long)p->preemptions,
               (long long)p->moved, p->refused);
    }
    printf(
        "running: together, in the mean. steps: to the end of the trace. waited: steps before a\n"
        "request is admitted, in the mean. %s: tokens.\n",
        o->preempt == SWAP ? "swapped out and in" : "recomputed");
    printf("\n%-24s %8s %9s %9s %9s %6s %12s %10s\n", "% of the budget", "used", "reserved",
           "internal", "external", "free", "of taken", "at the end");
    for (int i = 0; i < n; i++) {
        const double *s = results[i].share, taken = s[0] + s[1] + s[2];
        printf("%-24s %8.2f %9.2f %9.2f %9.2f %6.2f %12.2f %10.2f\n", results[i].name, 100 * s[0],
               100 * s[1], 100 * s[2], 100 * s[3], 100 * s[4], taken > 0 ? 100 * s[0] / taken : 0,
               100 * results[i].at_end);
    }
    printf("of taken: used slots of those that are not free. at the end: the same, with every\n"
           "request counted once, at its final length.\n");
}

static void print_bars(const Replay *results)
{
    puts("\n# used   = reserved   - internal   ! external   . free");
    for (int i = 0; i < arrlen(results); i++) {
        enum { WIDTH = 64 };
        char bar[WIDTH + 1] = "";
        double sum = 0;
        for (int kind = 0, at = 0; kind < 5; kind++) {
            sum += results[i].share[kind];
            while (at < WIDTH && (at + 0.5) / WIDTH <= sum) bar[at++] = "#=-!."[kind];
        }
        printf("%-24s |%-*s|\n", results[i].name, WIDTH, bar);
    }
}

// What did not hold has ended the program before.
static void print_checks(const Replay *results, const Options *o)
{
    int64_t ended = 0, refused = 0, preemptions = 0, samples = 0;
    for (int i = 0; i < arrlen(results); i++) {
        ended += results[i].ended;
        refused += results[i].refused;
        preemptions += results[i].preemptions;
        samples += results[i].samples;
    }
    printf("\n%lld requests in %d runs ended with exactly their tokens, after %lld preemptions; "
           "%lld refused.\n",
           (long long)ended, (int)arrlen(results), (long long)preemptions, (long long)refused);
    if (o->verify)
        printf("K and V of all paged ones were what was written; attention was the oracle's, %lld "
               "times.\n",
               (long long)samples);
}

static FILE *open_output(const char *path)
{
    FILE *out = fopen(path, "w");
    if (!out) die(1, "%s: %s", path, strerror(errno));
    return out;
}

static void close_output(FILE *out, const char *path)
{
    if (fflush(out) || ferror(out)) die(1, "%s: %s", path, strerror(errno));
    fclose(out);
}

static void write_csv(const Replay *results, const char *path)
{
    FILE *out = open_output(path);
    fprintf(out,
            "allocator,block_size,used,reserved,internal,external,free,at_the_end,mean_running,"
            "peak_running,steps,mean_waited,preemptions,tokens_moved,refused\n");
    for (int i = 0; i < arrlen(results); i++) {
        const Replay *p = &results[i];
        fprintf(out, "\"%s\",%d", results[i].name, results[i].block_size);
        for (int kind = 0; kind < 5; kind++) fprintf(out, ",%.6f", results[i].share[kind]);
        fprintf(out, ",%.6f,%.3f,%d,%lld,%.3f,%lld,%lld,%d\n", results[i].at_end, p->running_mean,
                p->peak, (long long)p->now, p->waited_mean, (long long)p->preemptions,
                (long long)p->moved, p->refused);
    }
    close_output(out, path);
}

static void write_curves(const Replay *results, const char *path)
{
    FILE *out = open_output(path);
    fprintf(out, "allocator,step,running\n");
    for (int i = 0; i < arrlen(results); i++) {
        const Curve *c = &results[i].curve;
        for (int64_t at = 0; at * c->width < results[i].now; at++) {
            int64_t steps = results[i].now - at * c->width;  // the last point may have fewer
            if (steps > c->width) steps = c->width;
            fprintf(out, "\"%s\",%lld,%.3f\n", results[i].name, (long long)(at * c->width),
                    (double)c->sum[at] / (double)steps);
        }
    }
    close_output(out, path);
}

// ---- options ----------------------------------------------------------------------------------

static const char help[] =
    "replay: a trace of requests, served from one budget by several allocators\n"
    "\n"
    "usage: replay TRACE.csv [options]\n"
    "       replay --generate N [--seed S] > TRACE.csv\n"
    "\n"
    "A trace is lines of TIMESTAMP,ContextTokens,GeneratedTokens under that header.\n"
    "\n"
    "  --saturate          all requests wait from the start (else they arrive when they did)\n"
    "  --step-ms N         milliseconds that a step takes, for the arrivals (25)\n"
    "  --block-size N      paged with this block size only (1, 8, 16, 32, 64, 128 and 256)\n"
    "  --blocks N          the budget, in blocks of that size, or of 16 (131072 slots: 16 GiB\n"
    "                      at 128 KiB a token, as Llama 3 8B has, or 64 GiB at 512 KiB)\n"
    "  --preempt POLICY    recompute, or swap (recompute)\n"
    "  --shared-prefix N   every prompt has N tokens more, the same for all; one more run shares\n"
    "  --limit N           only the first N requests\n"
    "  --verify            paged runs write K and V, and check all bytes and some attention\n"
    "  --csv FILE          the tables, as CSV\n"
    "  --curve FILE        requests running together, over time\n"
    "  --generate N        no replay: print a trace of N requests, from the seed S (1)\n"
    "\n"
    "It returns 1 if a request does not end with exactly its tokens.\n";

static int64_t parse_number(const char *option, const char *value, int64_t least, int64_t most)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (errno || end == value || *end || number < least || number > most)
        die(2, "%s '%s': a whole number from %lld to %lld is needed", option, value,
            (long long)least, (long long)most);
    return number;
}

// Takes one option and its value, and returns how many arguments that was.
static int parse_option(Options *o, const char *name, const char *value)
{
    struct {
        const char *name;
        int least, *to;
    } counts[] = {{"--step-ms", 1, &o->step_ms},   {"--block-size", 1, &o->block_size},
                  {"--blocks", 1, &o->num_blocks}, {"--shared-prefix", 0, &o->prefix},
                  {"--limit", 1, &o->limit},       {"--generate", 1, &o->generate}};
    if (strcmp(name, "--saturate") == 0) return o->saturate = 1;
    if (strcmp(name, "--verify") == 0) return o->verify = 1;
    if (!value) die(2, "%s: no such option, or its value is missing; see --help", name);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (strcmp(name, counts[i].name) == 0) {
            *counts[i].to = (int)parse_number(name, value, counts[i].least, MAX_TOKENS);
            return 2;
        }
    if (strcmp(name, "--csv") == 0)
        o->csv = value;
    else if (strcmp(name, "--curve") == 0)
        o->curve = value;
    else if (strcmp(name, "--seed") == 0)
        o->seed = (uint64_t)parse_number(name, value, 0, INT64_MAX);
    else if (strcmp(name, "--preempt") == 0 && strcmp(value, "recompute") == 0)
        o->preempt = RECOMPUTE;
    else if (strcmp(name, "--preempt") == 0 && strcmp(value, "swap") == 0)
        o->preempt = SWAP;
    else
        die(2, "%s '%s': no such option, or not with this value; see --help", name, value);
    return 2;
}

static void parse_options(Options *o, int argc, char **argv)
{
    for (int i = 1; i < argc;)
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            exit(0);
        } else if (argv[i][0] == '-')
            i += parse_option(o, argv[i], argv[i + 1]);  // argv[argc] is NULL
        else if (o->path)
            die(2, "%s: one trace is enough; see --help", argv[i]);
        else
            o->path = argv[i++];
    if (!o->path == !o->generate) die(2, "a TRACE.csv or --generate N is needed; see --help");
    if ((int64_t)o->num_blocks * (o->block_size ? o->block_size : 16) > MAX_TOKENS)
        die(2, "--blocks %d: a budget goes up to %d slots", o->num_blocks, MAX_TOKENS);
    if (o->block_size > budget_of(o) || o->prefix > budget_of(o))
        die(2, "the budget of %d slots is smaller than a block or the shared prefix", budget_of(o));
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 8, 16, 32, 64, 128, 256};
    Options o;
    Trace trace = {NULL, 0, 0, 0};
    Replay *results = NULL;
    memset(&o, 0, sizeof o);
    o.limit = MAX_TOKENS;
    o.step_ms = 25;
    o.seed = 1;
    parse_options(&o, argc, argv);
    if (o.generate)
        generate(o.generate, o.seed);
    else {
        read_trace(&trace, o.path, o.limit, o.prefix);
        for (int rule = 0; rule < 3; rule++) arrput(results, run_contiguous(rule, &o, &trace));
        for (int i = 0; i < (o.block_size ? 1 : 7); i++) {
            int block_size = o.block_size ? o.block_size : sizes[i];
            if (block_size <= budget_of(&o)) arrput(results, run_paged(block_size, 0, &o, &trace));
        }
        if (o.prefix)
            arrput(results, run_paged(o.block_size ? o.block_size : 16, o.prefix, &o, &trace));
        print_tables(results, &o, &trace);
        if (o.csv) write_csv(results, o.csv);
        if (o.curve) write_curves(results, o.curve);
        print_bars(results);
        print_checks(results, &o);
    }
    arrfree(trace.requests);
    arrfree(results);
    if (fflush(stdout) || ferror(stdout)) die(1, "standard output: %s", strerror(errno));
    return 0;
}
