// replay: a trace of requests, served on paper, to see why paging won.
//
// A trace, such as those of Azure (Patel et al., "Splitwise: Efficient Generative LLM Inference
// Using Phase Splitting", ISCA 2024), says when each request arrives, and how long its prompt and
// its answer are. It is served with continuous batching, once by each allocator, from a budget of
// slots. A slot holds K and V of one token. The allocators:
//
//     reserve maximum     one contiguous region, as long as the longest request of the trace
//     reserve power of 2  one for the prompt, and for the answer's length rounded up to a power of
//                         two, as if the server had guessed it that well
//     reserve exactly     one for the final length, which no real server knows in advance
//     paged               blocks from the pool of ../paged.h, taken when a token needs one
//
// The first three take the first hole that is large enough. Only paged can run out of memory in the
// middle of a request. Then the newest request is preempted: it gives its blocks back and waits at
// the head of the queue. Its K and V are computed again later.
//
// In a step, every running request gets one more token, the oldest first. Then requests are
// admitted from the queue, first come, first served, while there is room for the one at its head; a
// prompt goes in whole. A request that has all its tokens leaves at the end of the step. One whose
// final length exceeds the budget is refused at the start. All steps count the same, however much
// they compute: this is about memory, not about speed.
//
// At the end of every step, before any request leaves, each slot of the budget is
//
//     used       it holds a token; one that several requests share counts once
//     reserved   it is kept for a token that its request will get later
//     internal   it is kept by a request that will never fill it
//     external   it is free, and the next request would fit if the free slots were in one piece
//     free       it is free otherwise: too few slots are, or no request waits
//
// in the terms of figure 2 of Kwon et al., SOSP 2023. The results are averages over the steps; with
// --saturate, over those that begin with a request waiting, as the batch just drains after them.
//
//     cc -O2 -DPAGED_NO_MAIN examples/replay.c paged.cu.c -o replay -lm && ./replay TRACE.csv

#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // strptime(), timegm()
#endif

#include "util.h"

#include <getopt.h>
#include <stdbool.h>

enum {
    MAX_TOKENS = 1 << 24,  // of a prompt, an answer, a budget: all sums fit into an int
    TICKS = 10000000,      // of 100 ns, in a second
    STEP = TICKS / 40,     // what a step takes, for the arrivals
};
enum { RESERVE_MAXIMUM, RESERVE_POWER_OF_2, RESERVE_EXACTLY, PAGED };  // the allocators
enum { USED, RESERVED, INTERNAL, EXTERNAL, FREE, NUM_KINDS };          // of slots

static struct {
    int generate, prefix;        // requests to make up; tokens
    int block_size, num_blocks;  // 0: not given
    int budget;                  // slots
    bool saturate;
    const char *csv, *life;  // paths; NULL: not wanted
} options;

static FILE *life;  // the output of --life, if it is wanted

// ---- the trace --------------------------------------------------------------------------------

typedef struct Request {
    int64_t arrival;  // in ticks
    int context;      // tokens of the prompt
    int generated;    // tokens of the answer
    // What follows changes while the trace is replayed.
    int64_t step;   // of the arrival
    bool admitted;  // has been running
    int delivered;  // tokens of the answer so far; they survive a preemption
    int length;     // tokens that are in the cache, or go there on admission
    int start;      // reserving: the first slot of its region, and their number
    int size;
    Seq *seq;  // paged: its blocks; NULL while it waits
} Request;

static struct {
    Request *requests;  // in the order of arrival (an array of stb_ds)
    double context;     // tokens of all prompts
    double generated;   // and of all answers
    int longest;        // the largest final length
} trace;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads a time in UTC. Returns what follows it, or NULL.
static const char *parse_time(const char *text, int64_t *ticks)
{
    static const char format[] = "%Y-%m-%d %H:%M:%S";
    struct tm date = {0};
    char again[40];
    const char *rest = strptime(text, format, &date);
    time_t seconds = timegm(&date);
    // strptime() takes too much. That comes back as another text: 30 February as 2 March.
    strftime(again, sizeof again, format, gmtime(&seconds));
    if (!rest || strncmp(text, again, 19) != 0) return NULL;
    *ticks = (int64_t)seconds * TICKS;
    if (*rest == '.') {
        rest++;
        for (int unit = TICKS / 10; is_digit(*rest); unit /= 10) *ticks += (*rest++ - '0') * unit;
        if (!is_digit(rest[-1])) return NULL;
    }
    if (*rest == 'Z') return rest + 1;
    if (strncmp(rest, "+00:00", 6) == 0) return rest + 6;
    return rest;
}

// Takes a comma and a number from `min` to 2^24, in digits alone. False: something else is there.
static bool take_count(const char **text, int min, int *count)
{
    int end = 0;
    if (sscanf(*text, ",%8d%n", count, &end) != 1 || !is_digit((*text)[1])) return false;
    *text += end;
    return *count >= min && *count <= MAX_TOKENS;
}

// Returns what is wrong with a line, or NULL.
static const char *parse_line(const char *line, Request *r)
{
    const char *at = parse_time(line, &r->arrival);
    if (!at || *at != ',') return "TIMESTAMP is not a UTC time like 2023-11-16 18:15:46.68";
    if (!take_count(&at, 1, &r->context) || (*at && *at != ','))
        return "ContextTokens is not a number from 1 to 2^24";
    if (!take_count(&at, 0, &r->generated) || *at)
        return "GeneratedTokens is not a number from 0 to 2^24";
    return NULL;
}

static void add_request(Request r)
{
    r.context += options.prefix;
    trace.context += r.context;
    trace.generated += r.generated;
    if (r.context + r.generated > trace.longest) trace.longest = r.context + r.generated;
    arrput(trace.requests, r);
}

static FILE *open_output(const char *path)
{
    if (!path) return NULL;
    FILE *out = fopen(path, "w");
    if (!out) die(1, "%s: %s", path, strerror(errno));
    return out;
}

static void close_output(FILE *out, const char *option)
{
    if (out && (fflush(out) != 0 || ferror(out))) die(1, "%s: %s", option, strerror(errno));
    if (out) fclose(out);
}

// A malformed line ends the program. A byte order mark at the start and blank lines are skipped. A
// line ends with \n or \r\n; the last one may lack its end.
static void read_trace(const char *path)
{
    static const char marked[] = "\xEF\xBB\xBF"
                                 "TIMESTAMP,ContextTokens,GeneratedTokens";
    const char *header = marked + 3;
    FILE *in = fopen(path, "r");
    if (!in) die(1, "%s: %s", path, strerror(errno));
    char line[256];  // longer than any that is right
    Request r = {.arrival = INT64_MIN};
    int c = 0;
    for (int number = 1; c != EOF; number++) {
        size_t length = 0;
        for (c = getc(in); c > 0 && c != '\n' && length < sizeof line - 1; c = getc(in))
            line[length++] = (char)c;
        if (ferror(in)) die(1, "%s: %s", path, strerror(errno));
        if (c != '\n' && c != EOF)
            die(1, "%s:%d: not a line of text: too long, or with a zero byte", path, number);
        if (length > 0 && line[length - 1] == '\r') length--;
        line[length] = '\0';
        if (number == 1 && strcmp(line, header) != 0 && strcmp(line, marked) != 0)
            die(1, "%s:1: expected '%s'", path, header);
        if (number == 1 || length == 0) continue;
        int64_t previous_arrival = r.arrival;
        const char *error = parse_line(line, &r);
        if (!error && r.arrival < previous_arrival) error = "TIMESTAMP is before the previous one";
        if (error) die(1, "%s:%d: %s", path, number, error);
        add_request(r);
    }
    fclose(in);
    if (arrlen(trace.requests) == 0) die(1, "%s: there is no request in it", path);
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
static void generate_trace(void)
{
    uint64_t seed = 1;
    double elapsed = 0;
    for (int i = 0; i < options.generate; i++) {
        Request r = {.arrival = (int64_t)(elapsed * TICKS)};
        r.context = log_normal(&seed, 800, 0.85, 14000);
        r.generated = log_normal(&seed, 150, 0.85, 1000);
        elapsed -= 0.18 * log(random_uniform(&seed) + 0x1p-53);
        add_request(r);
    }
}

// ---- the allocators ---------------------------------------------------------------------------

typedef struct Server {  // serves the whole trace through one allocator
    char name[40];       // of the allocator
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

    double measured;          // steps; what follows are sums over them, in the end averages
    double share[NUM_KINDS];  // slots of each kind, in the end as shares of the budget
    double num_running;
    int peak;
    int refused;
    double preemptions;
    double recomputed;  // tokens
    double waited;      // steps from arrival to the first admission: a sum, in the end an average
} Server;

// The slots that a request takes for its first `tokens` tokens, besides those it shares. A
// reservation covers the final length from the start.
static int slots_needed(const Server *s, const Request *r, int tokens)
{
    if (s->pool)
        return (tokens + s->block_size - 1) / s->block_size * s->block_size - s->shared_slots;
    int final_length = r->context + r->generated;
    int size = final_length;
    if (s->rule == RESERVE_MAXIMUM) size = trace.longest;
    if (s->rule == RESERVE_POWER_OF_2) {
        int answer = 1;
        while (answer < r->generated) answer *= 2;
        size = r->context + answer;
    }
    // A request that fits is not refused because its reservation does not.
    if (size > s->budget && final_length <= s->budget) return s->budget;
    return size;
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
    int length = r->length;
    if (r->delivered > 0) length++;
    if (slots_needed(s, r, length) > s->pool->num_free * s->block_size) return false;
    must(seq_fork(s->system.seq, s->system.length, &r->seq), "seq_fork");
    must(seq_append(r->seq, r->length - s->system.length), "seq_append");
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

// ---- the scheduler ----------------------------------------------------------------------------

// The head of the queue, NULL if no request waits.
static Request *queue_head(const Server *s)
{
    if (arrlen(s->waiting) == 0 || arrlast(s->waiting)->step > s->step) return NULL;
    return arrlast(s->waiting);
}

// One more token for each running request, the oldest first. If there is no room, the newest is
// preempted, in the end the one that asks itself.
static void grow_all(Server *s)
{
    for (int i = 0; i < arrlen(s->running);) {
        Request *r = s->running[i];
        int error = PAGED_OK;
        if (s->pool) error = seq_append(r->seq, 1);
        if (error == PAGED_OUT_OF_BLOCKS) {
            Request *newest = arrpop(s->running);
            s->preemptions++;
            s->recomputed += newest->length - s->system.length;
            release(s, newest);
            arrput(s->waiting, newest);
            continue;
        }
        must(error, "seq_append");
        r->length++;
        r->delivered++;
        i++;
    }
}

// Admits requests while there is room for the head of the queue.
static void admit_all(Server *s)
{
    for (Request *head = queue_head(s); head && admit(s, head); head = queue_head(s)) {
        arrput(s->running, arrpop(s->waiting));
        if (!head->admitted) s->waited += s->step - head->step;
        head->admitted = true;
    }
}

// Counts the slots of each kind, and compares them with what the allocator says is taken.
static void account(Server *s)
{
    int64_t held = s->system.size;
    int64_t used = s->system.length;
    int64_t reserved = 0;
    for (int i = 0; i < arrlen(s->running); i++) {
        const Request *r = s->running[i];
        int slots = r->size;
        if (r->seq) slots = (int)arrlen(r->seq->block_table) * s->block_size - s->shared_slots;
        int tokens = r->length - s->shared_slots;
        int empty = slots - tokens;
        int to_come = r->context + r->generated - r->length;
        held += slots;
        used += tokens;
        reserved += empty < to_come ? empty : to_come;
    }
    if (held != slots_taken(s)) die(1, "%s: the slots held are not those taken", s->name);
    int64_t available = s->budget - held;
    const Request *head = queue_head(s);
    s->measured++;
    s->share[USED] += used;
    s->share[RESERVED] += reserved;
    s->share[INTERNAL] += held - used - reserved;
    if (head && slots_needed(s, head, head->length) <= available) s->share[EXTERNAL] += available;
    s->num_running += arrlen(s->running);
    if (arrlen(s->running) > s->peak) s->peak = (int)arrlen(s->running);
}

// The requests that have all their tokens leave; each must have exactly its own.
static void end_requests(Server *s)
{
    for (int i = 0; i < arrlen(s->running);) {
        Request *r = s->running[i];
        if (r->delivered < r->generated) {
            i++;
            continue;
        }
        int length = r->length;
        if (r->seq) length = r->seq->length;
        if (length != r->context + r->generated)
            die(1, "%s: request %d ends with %d tokens instead of %d + %d", s->name,
                (int)(r - trace.requests), length, r->context, r->generated);
        release(s, r);
        arrdel(s->running, i);
    }
}

// Resets all requests. They wait, but for those that could never end.
static void begin(Server *s)
{
    for (int i = (int)arrlen(trace.requests) - 1; i >= 0; i--) {
        Request *r = &trace.requests[i];
        int needed = slots_needed(s, r, r->context + r->generated);
        r->step = 0;
        if (!options.saturate) r->step = (r->arrival - trace.requests[0].arrival) / STEP;
        r->delivered = 0;
        r->length = r->context;
        r->admitted = false;
        if (needed > s->budget - s->system.size)
            s->refused++;
        else
            arrput(s->waiting, r);
    }
}

static void write_life(const Server *s)
{
    if (s->step >= 1000) return;  // a little more than the picture shows
    for (int i = 0; i < arrlen(s->running); i++) {
        const int *table = s->running[i]->seq->block_table;
        for (int entry = 0; entry < arrlen(table); entry++)
            fprintf(life, "%lld,%d,%d\n", (long long)s->step, table[entry],
                    (int)(s->running[i] - trace.requests));
    }
}

static void run_steps(Server *s)
{
    while (arrlen(s->running) + arrlen(s->waiting) > 0) {
        if (arrlen(s->running) == 0 && !queue_head(s))
            s->step = arrlast(s->waiting)->step;  // nothing to do until then
        bool measured = !options.saturate || queue_head(s);
        grow_all(s);
        admit_all(s);
        if (arrlen(s->running) == 0) die(1, "%s: no request runs, and the head waits", s->name);
        if (measured) account(s);
        if (life && s->pool) write_life(s);
        end_requests(s);
        s->step++;
    }
}

// Makes a pool, and in it the sequence that all requests begin with: often it is empty.
static void create_pool(Server *s, int prefix)
{
    // Only the block tables matter: K and V are never touched.
    PoolConfig config = {.num_layers = 1,
                         .num_kv_heads = 1,
                         .head_dim = 1,
                         .block_size = s->block_size,
                         .num_blocks = s->budget / s->block_size};
    must(pool_create(&config, &s->pool), "pool_create");
    must(seq_create(s->pool, &s->system.seq), "seq_create");
    must(seq_append(s->system.seq, prefix), "seq_append of the shared prefix");
    s->budget = config.num_blocks * s->block_size;
    s->system.length = prefix;
    s->system.size = slots_taken(s);
    s->shared_slots = prefix / s->block_size * s->block_size;
}

// Serves the trace by one rule, and checks that all memory is back.
static Server serve(int rule, int block_size, int prefix)
{
    static const char *const names[] = {"reserve maximum", "reserve power of 2", "reserve exactly"};
    Server s = {.rule = rule, .budget = options.budget, .block_size = block_size};
    if (rule == PAGED) {
        snprintf(s.name, sizeof s.name, "paged %d%s", block_size, prefix ? ", prefix" : "");
        create_pool(&s, prefix);
    } else
        snprintf(s.name, sizeof s.name, "%s", names[rule]);
    begin(&s);
    run_steps(&s);
    seq_release(s.system.seq);
    if (slots_taken(&s) != 0) die(1, "%s: %d slots are still taken", s.name, slots_taken(&s));
    const char *broken = NULL;
    if (s.pool) broken = pool_check(s.pool);
    if (broken) die(1, "%s: %s", s.name, broken);
    pool_destroy(s.pool);
    arrfree(s.reserved);
    arrfree(s.running);
    arrfree(s.waiting);

    double rest = 1;
    for (int kind = 0; kind < FREE; kind++) {
        s.share[kind] /= fmax(s.measured, 1) * options.budget;
        rest -= s.share[kind];
    }
    s.share[FREE] = fmax(0, rest);
    s.num_running /= fmax(s.measured, 1);
    s.waited /= fmax(arrlen(trace.requests) - s.refused, 1);
    return s;
}

// ---- the results ------------------------------------------------------------------------------

static void print_results(const Server *results)
{
    const Server *end = results + arrlen(results);
    int without_waiting = 0;  // runs that memory never delayed
    const char *arrivals = "requests arrive as in the trace";
    if (options.saturate) arrivals = "all requests wait from the start";
    printf("%d requests: %.0f prompt tokens, %.0f generated; longest: %d\n",
           (int)arrlen(trace.requests), trace.context, trace.generated, trace.longest);
    printf("budget: %d slots; %s\n\n", options.budget, arrivals);
    printf("requests           running  peak    steps   waited preempted recomputed refused\n");
    for (const Server *s = results; s < end; s++) {
        printf("%-18s %7.1f %5d %8lld %8.0f %9.0f %10.0f %7d\n", s->name, s->num_running, s->peak,
               (long long)s->step, s->waited, s->preemptions, s->recomputed, s->refused);
        if (s->waited == 0 && s->preemptions == 0) without_waiting++;
    }
    printf("running: together, on average. steps: to the end of the trace.\n"
           "waited: steps before a request is admitted, on average. recomputed: tokens.\n");
    if (without_waiting > 1)
        printf("In %d runs, nothing ever waited: try --saturate, or fewer --blocks.\n",
               without_waiting);
    printf("\n%% of the budget      used reserved internal external   free\n");
    for (const Server *s = results; s < end; s++) {
        const double *share = s->share;
        printf("%-18s %6.2f %8.2f %8.2f %8.2f %6.2f\n", s->name, 100 * share[USED],
               100 * share[RESERVED], 100 * share[INTERNAL], 100 * share[EXTERNAL],
               100 * share[FREE]);
    }
    // Any violation has already ended the program.
    printf("\nIn all %d runs, each request that was not refused got exactly its tokens.\n",
           (int)arrlen(results));
}

static void print_csv(const Server *results, FILE *out)
{
    fprintf(out, "allocator,block_size,used,reserved,internal,external,free,mean_running,"
                 "peak_running,steps,mean_waited,preemptions,recomputed,refused\n");
    for (const Server *s = results; s < results + arrlen(results); s++) {
        fprintf(out, "\"%s\",%d", s->name, s->block_size);
        for (int kind = 0; kind < NUM_KINDS; kind++) fprintf(out, ",%.6f", s->share[kind]);
        fprintf(out, ",%.3f,%d,%lld,%.3f,%.0f,%.0f,%d\n", s->num_running, s->peak,
                (long long)s->step, s->waited, s->preemptions, s->recomputed, s->refused);
    }
}

// ---- main -------------------------------------------------------------------------------------

static const char help[] =
    "replay: serves a trace of requests from one budget, by several allocators\n"
    "\n"
    "usage: replay TRACE.csv [options]\n"
    "       replay --generate N [options]\n"
    "\n"
    "The first line of TRACE.csv is TIMESTAMP,ContextTokens,GeneratedTokens.\n"
    "\n"
    "  --generate N        make up N requests with the averages of a real trace\n"
    "  --saturate          all requests wait from the start; without it they arrive\n"
    "                      at their recorded times, and a step takes 25 ms\n"
    "  --block-size N      paged with this block size only (1, 8, 16, 32 to 256)\n"
    "  --blocks N          the budget, in blocks of that size or of 16 (131072 slots:\n"
    "                      16 GiB at 128 KiB a token, as in Llama 3 8B)\n"
    "  --shared-prefix N   put the same N tokens before every prompt; one more run\n"
    "                      shares their blocks\n"
    "  --csv FILE          write the tables as CSV\n"
    "  --life FILE         write which request has which block, in the first 1000\n"
    "                      steps of the paged runs, as CSV\n"
    "\n"
    "The exit status is 1 if a request does not get exactly its tokens.\n";

static int parse_count(const char *option) { return (int)parse_int(option, optarg, 1, MAX_TOKENS); }

// Returns the path of the trace; NULL: it is generated.
static const char *parse_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"generate", 1, NULL, 'g'}, {"saturate", 0, NULL, 's'},   {"blocks", 1, NULL, 'n'},
        {"csv", 1, NULL, 'c'},      {"block-size", 1, NULL, 'b'}, {"shared-prefix", 1, NULL, 'x'},
        {"life", 1, NULL, 'l'},     {"help", 0, NULL, 'h'},       {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (c) {
        case 'g': options.generate = parse_count("--generate"); break;
        case 's': options.saturate = true; break;
        case 'b': options.block_size = parse_count("--block-size"); break;
        case 'n': options.num_blocks = parse_count("--blocks"); break;
        case 'x': options.prefix = (int)parse_int("--shared-prefix", optarg, 0, MAX_TOKENS); break;
        case 'c': options.csv = optarg; break;
        case 'l': options.life = optarg; break;
        case 'h': fputs(help, stdout); exit(finish_output(0));
        default: die(2, "see --help");
        }
    }
    if (argc - optind > 1 || !argv[optind] == !options.generate)
        die(2, "expected one TRACE.csv or --generate N; see --help");
    return argv[optind];
}

static void set_budget(int block_size)
{
    if (options.num_blocks > MAX_TOKENS / block_size)
        die(2, "--blocks %d: a budget has at most %d slots", options.num_blocks, MAX_TOKENS);
    options.budget = 131072;
    if (options.num_blocks) options.budget = options.num_blocks * block_size;
    if (block_size > options.budget || options.prefix > options.budget)
        die(2, "the budget of %d slots is smaller than a block or the shared prefix",
            options.budget);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 8, 16, 32, 64, 128, 256};
    Server *results = NULL;
    program = "replay";
    const char *path = parse_options(argc, argv);
    int block_size = options.block_size;
    if (!block_size) block_size = 16;
    set_budget(block_size);
    if (path)
        read_trace(path);
    else
        generate_trace();
    // Only now, so that no mistake in the options or the trace empties a file.
    FILE *csv = open_output(options.csv);
    life = open_output(options.life);
    if (life) fprintf(life, "step,block,request\n");
    for (int rule = 0; rule < PAGED; rule++) arrput(results, serve(rule, 0, 0));
    if (options.block_size) arrput(results, serve(PAGED, block_size, 0));
    for (int i = 0; i < 7 && !options.block_size; i++)
        if (sizes[i] <= options.budget) arrput(results, serve(PAGED, sizes[i], 0));
    if (options.prefix) arrput(results, serve(PAGED, block_size, options.prefix));
    print_results(results);
    if (csv) print_csv(results, csv);
    close_output(csv, "--csv");
    close_output(life, "--life");
    arrfree(trace.requests);
    arrfree(results);
    return finish_output(0);
}
