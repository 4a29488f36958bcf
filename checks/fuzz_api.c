// fuzz_api: calls of paged.h, chosen by bytes. The first bytes are the shape of a pool, each of the
// following groups is a call. Whatever the bytes say, after every call pool_check() finds nothing,
// a call that was refused has changed nothing, every sequence gathers the same bits as its twin, a
// plan is refused if, and only if, one of its sequences was edited since, and attention is that of
// the oracle. The twins, and the rules of append and lookup, are those of tests.c.
//
//     cc -O1 -g checks/fuzz_api.c -o fuzz_api -lm    (-DPAGED_FAST: the fast paths)
//     ./fuzz_api                 400 inputs of random bytes, and what they have reached
//     ./fuzz_api 7               one of them, which has failed
//     ./fuzz_api --faults        each allocation fails once; pools have a block less, two less ...
//     ./fuzz_api --threads       two pools, each in a thread of its own: for the thread sanitizer
//     clang -fsanitize=fuzzer,address,undefined -DLIBFUZZER ...     looks for more inputs

#include <pthread.h>
#include <stdint.h>

// A call that must succeed. Under --faults an allocation in it may fail: that must be reported, and
// have changed nothing, and the same call must succeed when it is made again.
static uint64_t begin_call(void);
static int has_failed(const char *place, const char *call, int error, uint64_t before);
#define CHECK_OK(call) \
    do { \
        uint64_t before_ = begin_call(); \
        int error_ = (call); \
        if (has_failed(PLACE, #call, error_, before_)) error_ = (call); \
        check_eq(PLACE, #call, error_, PAGED_OK); \
    } while (0)

#define TESTS_NO_MAIN
#include "../tests.c"

enum { MOST_SEQS = 8, MOST_TOKENS = 48, MOST_CALLS = 120, MOST_CALLS_STANDIN = 12 };

static __thread Pool *pool;
static __thread struct {  // what the pool was told about the step
    int usable;           // there is a plan, and none of its sequences was edited since
    int sealed;           // it has a query token in a block that may not be written
    int n;
    Seq *seqs[MOST_SEQS];
    int counts[MOST_SEQS];
} told;
static __thread long results[PAGED_NO_GPU + 1];  // how often calls returned each code
static __thread long num_stale, num_withdrawn, hits, num_copied;  // of which no code tells

// ---- allocations that fail --------------------------------------------------------------------

static __thread int fault_after = -1;  // so many succeed, then those of a call fail; -1: none does

static uint64_t begin_call(void)
{
    fail_after = fault_after;
    num_refused = 0;
    return pool && fault_after >= 0 ? fingerprint(pool) : 0;
}

static int has_failed(const char *place, const char *call, int error, uint64_t before)
{
    fault_after = fail_after;
    fail_after = -1;
    if (num_refused == 0) return 0;
    fault_after = -1;
    check_eq(place, call, error, PAGED_OUT_OF_MEMORY);
    if (pool && fingerprint(pool) != before) failed(place, call, "it changed something");
    results[error]++;
    return 1;
}

// ---- the bytes --------------------------------------------------------------------------------

static __thread const uint8_t *input;
static __thread size_t input_left;
static __thread uint64_t endless;  // a state of random numbers that come instead, unless 0

static int byte(void)  // 0 when there are no more
{
    if (input_left > 0) {
        input_left--;
        return *input++;
    }
    if (endless == 0) return 0;
    endless = endless * 6364136223846793005u + 1442695040888963407u;  // Knuth's
    return (int)(endless >> 56);
}

static int below(int n) { return byte() % n; }
static int num_seqs(void) { return (int)arrlen(pool->seqs); }
static Seq *any_seq(void) { return pool->seqs[below(num_seqs())]; }

// ---- the calls --------------------------------------------------------------------------------

// A call that must be refused, and change nothing.
#define REFUSED(code, call) \
    do { \
        KEEPS(pool, code, call); \
        results[code]++; \
    } while (0)

// The sequence was edited.
static void edited(const Seq *seq)
{
    for (int i = 0; i < told.n; i++)
        if (told.seqs[i] == seq) told.usable = 0;
}

static void call_create(void)
{
    if (num_seqs() < MOST_SEQS) empty_seq(pool, MOST_TOKENS);
}

static void call_release(void)
{
    Seq *seq = any_seq();
    edited(seq);
    release(seq);
}

// Makes room for n more tokens. Returns 0 if there was none, and that was as the rules say.
static int grow(Seq *seq, int n)
{
    int length = seq->length;
    int last = length > 0 ? arrlast(seq->block_table) : 0;
    uint64_t serial = pool->blocks[last].serial;
    size_t copies = pool->num_copies;
    if (length + n > MOST_TOKENS) return 0;
    int error = make_room(seq, n);
    results[error]++;
    if (error) return 0;
    if (n > 0) edited(seq);
    num_copied += (long)(pool->num_copies - copies);
    if (length > 0 && serial != 0 && pool->blocks[last].serial == 0) num_withdrawn++;
    for (int t = length; t < seq->length; t++) (*tokens_of(seq))[t] = below(2);  // often alike
    return 1;
}

static void plan(int n, Seq *const *seqs, const int *counts)
{
    Batch batch = {n, seqs, counts};
    CHECK_OK(pool_plan(pool, &batch));
    told.usable = 1;
    told.sealed = 0;
    told.n = n;
    for (int i = 0; i < n; i++) {
        told.seqs[i] = seqs[i];
        told.counts[i] = counts[i];
        for (int t = seqs[i]->length - counts[i]; t < seqs[i]->length; t++) {
            const Block *block = &pool->blocks[seqs[i]->block_table[t / pool->config.block_size]];
            if (block->ref_count > 1 || block->serial != 0) told.sealed = 1;
        }
    }
}

// K and V of the plan, of one layer, from the tokens; also into the oracles, where they may stand
// already.
static void write_layer(int layer)
{
    float *k = filled(num_planned(pool) * row_floats(pool), 0);
    float *v = filled(num_planned(pool) * row_floats(pool), 0);
    size_t at = 0;
    for (int i = 0; i < told.n; i++) {
        make_rows(told.seqs[i], layer, told.counts[i], k + at, v + at);
        at += told.counts[i] * row_floats(pool);
    }
    if (told.sealed && at > 0)
        REFUSED(PAGED_BLOCK_SHARED, pool_write(pool, layer, k, v));
    else
        CHECK_OK(pool_write(pool, layer, k, v));
}

// Room for some tokens in some sequences, and K and V for all of them in one ragged batch. They
// are computed, and may be published, once the last layer is written.
static void call_step(void)
{
    Seq *seqs[MOST_SEQS];
    int counts[MOST_SEQS], computed[MOST_SEQS];
    int n = 0;
    int mask = byte();
    int last = pool->config.num_layers - 1;
    for (int i = 0; i < num_seqs(); i++) {
        Seq *seq = pool->seqs[i];
        int count = mask >> i & 1 ? below(2 * pool->config.block_size + 2) : -1;
        if (count < 0 || !grow(seq, count)) continue;
        seqs[n] = seq;
        computed[n] = seq->num_computed_tokens;
        counts[n++] = count;
    }
    plan(n, seqs, counts);
    for (int layer = 0; layer < last; layer++) write_layer(layer);
    for (int i = 0; i < n && last > 0; i++) {
        CHECK_EQ(seqs[i]->num_computed_tokens, computed[i]);
        if (counts[i] > 0) BAD(seq_publish(seqs[i], *tokens_of(seqs[i]), seqs[i]->length));
    }
    write_layer(last);
    for (int i = 0; i < n; i++) CHECK_EQ(seqs[i]->num_computed_tokens, seqs[i]->length);
}

// The last plan once more: the same K and V change nothing, and a plan of sequences that were
// edited since is refused.
static void call_write_again(void)
{
    int layer = below(pool->config.num_layers);
    if (told.usable) {
        uint64_t before = fingerprint(pool);
        write_layer(layer);
        CHECK(fingerprint(pool) == before);
        return;
    }
    float *x = filled(MOST_SEQS * MOST_TOKENS * 64, 0);
    REFUSED(PAGED_BAD_ARGUMENT, pool_write(pool, layer, x, x));
    REFUSED(PAGED_BAD_ARGUMENT, attend(pool, 0, layer, 6, 0, x, x, NULL));
    num_stale++;
}

static void call_fork(void)
{
    Seq *parent = any_seq();
    if (num_seqs() == MOST_SEQS) return;
    fork_seq(parent, below(parent->length + 1));
    edited(parent);
}

static void call_rewind(void)
{
    Seq *seq = any_seq();
    int n = below(seq->length + 1);
    if (n > 0) edited(seq);
    rewind_seq(seq, n);
}

// A fork between plan and write makes the plan out of date, and one between append and plan the
// write impossible, until a step is planned after one of the two has let go.
static void call_write_shared(void)
{
    Seq *seq = any_seq();
    int n = 1 + below(3);
    int layer = below(pool->config.num_layers);
    const float *x = filled(3 * row_floats(pool), 0);
    if (!grow(seq, n)) return;
    plan(1, &seq, &n);
    Seq *child = fork_seq(seq, seq->length);
    REFUSED(PAGED_BAD_ARGUMENT, pool_write(pool, layer, x, x));
    plan(1, &seq, &n);
    REFUSED(PAGED_BLOCK_SHARED, pool_write(pool, layer, x, x));
    release(child);
    REFUSED(PAGED_BLOCK_SHARED, pool_write(pool, layer, x, x));
    plan(1, &seq, &n);
    write_layer(layer);
    edited(seq);
    rewind_seq(seq, n);  // a draft that was rejected
}

static void call_publish(void)
{
    Seq *seq = any_seq();
    int n = below(seq->length + 1);
    uint64_t before = fingerprint(pool);
    publish(seq, n);
    if (fingerprint(pool) != before) edited(seq);
    if (byte() % 8 == 0) KEEPS(pool, PAGED_OK, seq_publish(seq, *tokens_of(seq), n));
}

// The tokens are those of a sequence, or differ in one. What is found goes to a new sequence, or to
// an empty one, which may be in the plan.
static void call_lookup(void)
{
    int *tokens = (int *)alloc(MOST_TOKENS * sizeof *tokens);
    int n = below(MOST_TOKENS + 1);
    Seq *like = any_seq();
    Seq *seq = any_seq();
    for (int t = 0; t < like->length; t++) tokens[t] = (*tokens_of(like))[t];
    if (n > 0 && below(2)) tokens[below(n)] ^= 1;
    if (seq->length > 0) {
        if (num_seqs() == MOST_SEQS) return;
        seq = empty_seq(pool, MOST_TOKENS);
    }
    look_up(seq, tokens, n);
    if (seq->length == 0) return;
    edited(seq);
    hits++;
}

// Attention in all ways, of the last plan or of a new one.
static void call_attend(void)
{
    Seq *seqs[MOST_SEQS];
    int counts[MOST_SEQS];
    int n = 0;
    int mask = byte();
    int layer = below(pool->config.num_layers);
    int group = byte() % 64 ? 1 + below(3) : 64;  // of query heads; the CPU takes 64 at once
    int heads = pool->config.num_kv_heads * group;
    random_state = (uint64_t)byte();
    for (int i = 0; i < num_seqs(); i++) {
        if (!(mask >> i & 1)) continue;
        seqs[n] = pool->seqs[i];
        counts[n++] = below(min_int(pool->seqs[i]->length, 4) + 1);
    }
    if (!told.usable || below(2)) plan(n, seqs, counts);
    uint64_t before = fingerprint(pool);
    if (told.n > 0)
        attend_as_planned(told.seqs, told.counts, told.n, layer, heads, below(2) ? 0.5f : 0);
    else
        CHECK_OK(attend(pool, below(4), layer, heads, 0, NULL, NULL, NULL));
    CHECK(fingerprint(pool) == before);
}

// Numbers that no call takes.
static void call_wrong(void)
{
    static const int wrong[] = {-1, INT_MIN, INT_MAX, MOST_TOKENS * 8, 1 << 30};
    float x[64];
    int bad = wrong[below(5)];
    Seq *seq = any_seq(), *other = NULL, *twice[2] = {seq, seq};
    const int *tokens = *tokens_of(seq);
    int counts[2] = {seq->length > 0, 0}, too_many[1] = {seq->length + 1}, negative[1] = {-1};
    Batch batches[] = {{2, twice, counts},  {1, &seq, too_many}, {1, &seq, negative},
                       {bad, &seq, counts}, {1, NULL, counts},   {1, &seq, NULL},
                       {1, &other, counts}};
    const Batch *batch = &batches[below(7)];
    PoolConfig config = pool->config;
    Pool *none = NULL;
    config.device = PAGED_GPU;
    int error = PAGED_BAD_ARGUMENT;
    switch (below(12)) {
    case 0:
        if (bad > 0) error = PAGED_TOO_LONG;
        REFUSED(error, seq_append(seq, bad));
        break;
    case 1: REFUSED(error, seq_rewind(seq, bad)); break;
    case 2: REFUSED(error, seq_fork(seq, bad, &other)); break;
    case 3: REFUSED(error, seq_gather(seq, bad, x, x)); break;
    case 4: REFUSED(error, pool_plan(pool, batch)); break;
    case 5: REFUSED(error, pool_write(pool, bad, x, x)); break;
    case 6: REFUSED(error, attend(pool, 1, bad, 6, 0, x, x, x)); break;
    case 7: REFUSED(error, attend(pool, bad, 0, 6, 0, x, x, x)); break;
    case 8: REFUSED(error, attend(pool, 0, 0, 0, 0, x, x, x)); break;
    case 9: REFUSED(error, seq_publish(seq, tokens, bad)); break;
    case 10: REFUSED(PAGED_NO_GPU, pool_create(&config, &none)); break;
    default:
        if (seq->length > 0) REFUSED(error, seq_lookup(seq, tokens, 1));
    }
    CHECK(other == NULL && none == NULL);
}

// ---- one input --------------------------------------------------------------------------------

static void begin_pool(PoolConfig config)
{
    memset(&told, 0, sizeof told);
    random_state = 1;
    device = config.device;
    pool = new_pool(config);
    if (!config.poison) fill_planes(pool, 0xff);  // NaN; what was never written must not be used
    if (below(2)) pool->num_buckets = 1;          // every published block collides
}

static void one_call(void)
{
    static void (*const calls[])(void) = {
        call_step,    call_step,        call_step,        call_create,
        call_fork,    call_rewind,      call_attend,      call_attend,
        call_publish, call_lookup,      call_release,     call_wrong,
        call_publish, call_write_again, call_write_again, call_write_shared};
    if (num_seqs() == 0) call_create();
    calls[below(16)]();
    check_pool(pool);
    for (int i = 0; i < num_seqs(); i++) check_seq(pool->seqs[i]);
    free_to(0);
}

static void finish_pool(void)
{
    while (num_seqs() > 0) release(pool->seqs[0]);
    end_pool(pool);
    pool = NULL;
    free_to(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int dims[] = {1, 4, 5, 8, 9, 16, 33, 64};
    PoolConfig c;
    input = data;
    input_left = size;
    c.num_layers = 1 + below(2);
    c.num_kv_heads = 1 + below(2);
    c.head_dim = dims[below(8)];
    c.block_size = 1 + below(8);
    c.num_blocks = 1 + below(24);
    c.dtype = below(3);
    c.poison = below(2);
    c.device = below(8) == 7 ? PAGED_STANDIN : PAGED_CPU;
    if (c.head_dim > 32) c.num_kv_heads = 1;  // at most 64 floats a row
    begin_pool(c);
    int most = c.device == PAGED_STANDIN ? MOST_CALLS_STANDIN : MOST_CALLS;
    for (int i = 0; i < most && input_left > 0; i++) one_call();
    finish_pool();
    return 0;
}

#ifndef LIBFUZZER

// The input of a seed: up to 1500 random bytes.
static void run_seed(uint64_t number)
{
    note("seed %llu", (unsigned long long)number);
    random_state = number * 0x9e3779b97f4a7c15u;
    size_t size = (size_t)between(10, 1500);
    uint8_t *bytes = (uint8_t *)malloc(size);
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)next_random();
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
}

static void print_results(void)
{
    for (int code = 0; code <= PAGED_NO_GPU; code++)
        printf("%8ld calls returned: %s\n", results[code], paged_error(code));
    printf("%8ld plans out of date, %ld hits, %ld blocks copied, %ld withdrawn\n", num_stale, hits,
           num_copied, num_withdrawn);
}

// All of them, or one. All together must reach whatever calls can return.
static void run_seeds(int only)
{
    for (int number = 1; number <= 400 && only == 0; number++) run_seed((uint64_t)number);
    if (only > 0) run_seed((uint64_t)only);
    print_results();
    for (int code = 0; code <= PAGED_NO_GPU && only == 0; code++)
        CHECK(code == PAGED_OUT_OF_MEMORY || results[code] > 0);
    CHECK(only > 0 || (num_stale > 0 && hits > 0 && num_copied > 0 && num_withdrawn > 0));
}

// ---- many calls on one pool -------------------------------------------------------------------

// The same calls for each seed, on a pool that is soon full. Returns the most blocks in use.
static int run_calls(PoolConfig config, int num_calls, uint64_t number)
{
    int peak = 0;
    endless = number;
    begin_pool(config);
    for (int i = 0; i < num_calls; i++) {
        call_create();
        if (i % 2 == 0) call_step();
        one_call();
        int used = config.num_blocks - pool->num_free;
        if (used > peak) peak = used;
    }
    finish_pool();
    return peak;
}

// First its first allocation fails, the next time its second, until one run goes through. Then the
// pool is one block too small, two blocks, and so on, down to one block.
static void run_faults(void)
{
    for (int i = 0; i < 6; i++) {
        int where = i < 3 ? PAGED_CPU : PAGED_STANDIN;
        PoolConfig config = {2, 1, 4, 3 + i % 3, 16, i % 3, 1, where};
        int number = 0;
        do {
            note("run %d, allocation %d", i, number);
            fault_after = number++;
            run_calls(config, i < 3 ? 60 : 24, 1 + (uint64_t)i);
        } while (fault_after < 0);
        fault_after = -1;
    }
    for (uint64_t number = 1; number <= 10; number++) {
        PoolConfig config = {1, 2, 4, 1 + (int)number % 5, 380, PAGED_F32, 1, PAGED_CPU};
        config.num_blocks /= config.block_size;
        for (int blocks = run_calls(config, 40, number) - 1; blocks > 0; blocks--) {
            note("seed %d, %d blocks", (int)number, blocks);
            config.num_blocks = blocks;
            run_calls(config, 40, number);
        }
    }
    print_results();
    CHECK(results[PAGED_OUT_OF_MEMORY] > 100 && results[PAGED_OUT_OF_BLOCKS] > 0);
    CHECK(results[PAGED_TOO_LONG] > 0 && num_stale > 0);
}

// The sanitizer sees what two threads still share. What they compute, they compare with the oracle.
static void *live(void *seed_of_it)
{
    PoolConfig config = {2, 2, 64, 4, 24, PAGED_F16, 1, PAGED_CPU};
    for (int i = 0; i < 4; i++) run_calls(config, 40, *(const uint64_t *)seed_of_it + i);
    return NULL;
}

static void run_threads(void)
{
    uint64_t seeds[] = {1, 100};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK_EQ(pthread_create(&threads[i], NULL, live, &seeds[i]), 0);
    for (int i = 0; i < 2; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "--faults") == 0)
        run_faults();
    else if (strcmp(mode, "--threads") == 0)
        run_threads();
    else
        run_seeds(atoi(mode));
    printf("1 passed, 0 failed, 0 skipped\n");
    return 0;
}

#endif
