// tests.c: what is true of the engine, as code. The name of a test is a sentence about the engine.
//
//     ./tests               all tests, each in a process of its own
//     ./tests NAME...       some of them; a single one runs in this process: for a debugger
//     ./tests --list        their names
//     ./tests --seed N      other random numbers (the seed of a run is printed)
//     ./tests --quick       random work cut to a twentieth: for valgrind
//     ./tests --cpu         on CPU pools only; likewise --gpu (a build of nvcc) and
//     ./tests --standin     the stand-in for a GPU (any other build)
//     ./tests --ops N       how many operations the random test makes
//
// The helpers come first. What is done to a sequence is done to its twin, too: the oracle of
// paged.h, a cache without blocks, which judges the engine. Then come tests that one can check by
// hand (go to "numbers to check by hand"), and tests by random numbers. The words of the tests are
// those of checks/test.h. A failing check ends its test only: in a debugger, break on failed.

#include <stdint.h>
#include <stdlib.h>

// Allocations of the engine that may fail ask this first, so that a test can make one fail.
static __thread int fail_after = -1;  // allocations that succeed before one fails; -1: none does
static __thread int fail_all = 1;     // whether all after that one fail, too
static __thread int num_refused;      // allocations that were made to fail
static __thread size_t bytes_asked;   // by all allocations
static __thread int num_live;         // allocations that the engine has not freed

static int fails_now(size_t size)
{
    bytes_asked += size;
    int fails = fail_after == 0;
    if (fails) num_refused++;
    if (fail_after > 0 || (fails && !fail_all)) fail_after--;
    return fails;
}

static void *counted(void *p)
{
    if (p) num_live++;
    return p;
}

static void released(void *p)
{
    if (p) num_live--;
    free(p);
}

#define calloc(n, size) (fails_now((n) * (size)) ? NULL : counted(calloc(n, size)))
#define aligned_alloc(unit, size) (fails_now(size) ? NULL : counted(aligned_alloc(unit, size)))
#define realloc(p, size) ((p) ? realloc(p, size) : counted(malloc(size)))
#define free(p) released(p)
#define PAGED_NO_MAIN
#include "paged.cu.c"
#undef calloc
#undef aligned_alloc
#undef realloc
#undef free

#include "checks/test.h"
#include <fenv.h>
#include <limits.h>
#include <pthread.h>
#include <sys/resource.h>
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_set_num_threads(n) (void)(n)
#define omp_get_num_procs() 1
#endif
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#ifndef LANES
#define LANES 0  // fast/fast.c, if it is here at all, has no vectors for this processor
#endif

// ---- devices, and what a run has ---------------------------------------------------------------

enum { ON_CPU = 1, ON_DEVICE = 2, ON_BOTH = 3 };
#ifdef PAGED_FAST
enum { NUM_WAYS = 4 };  // of attention: the flags 0 to 3
#else
enum { NUM_WAYS = 2 };  // ATTEND_FAST makes no difference
#endif
enum { ALL_WAYS = (1 << NUM_WAYS) - 1, NOT_GATHERED = 5 & ALL_WAYS, PAGED_ONLY = 1 };
static int ways = ALL_WAYS;  // which of them attend_to_layer() takes: bit ATTEND_GATHER, ...

#ifdef __CUDACC__
enum { OTHER_DEVICE = PAGED_GPU };  // what this build has besides CPU pools
#elif defined PAGED_NO_STANDIN
enum { OTHER_DEVICE = PAGED_CPU };
#else
#define HAS_STANDIN
enum { OTHER_DEVICE = PAGED_STANDIN };
#endif
#ifdef SANITIZER_TSAN_INTERFACE_H  // the stand-in includes it for ThreadSanitizer
enum { SEES_RACES = 1 };
#else
enum { SEES_RACES = 0 };
#endif

static __thread int device = PAGED_CPU;  // where the pools of a test live

// It is a thousand times slower, so tests do less there.
static int on_stand_in(void) { return device == PAGED_STANDIN; }

enum { OPERATIONS = 150000, MAX_SEQS = 12 };  // of a random test, and in its pool

static int num_operations = OPERATIONS;
static volatile int operation;   // number of the random operation that runs, for a debugger
static __thread unsigned turns;  // what is done only every so often: counted in each test anew

// ---- checks -----------------------------------------------------------------------------------

#define CHECK_BITS(actual, expected, floats) check_bits(PLACE, #actual, actual, expected, floats)

static void check_bits(const char *place, const char *what, const float *actual,
                       const float *expected, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(actual[i]) && isnan(expected[i])) continue;  // a NaN has no value to compare
        if (float_bits(actual[i]) != float_bits(expected[i]))
            failed(place, what, "[%zu]: expected %.9g (%#x), got %.9g (%#x)", i, expected[i],
                   float_bits(expected[i]), actual[i], float_bits(actual[i]));
    }
}

static void check_pool(const Pool *pool)
{
    const char *wrong = pool_check(pool);
    if (wrong) failed(PLACE, "pool_check", "%s", wrong);
}

static size_t plane_bytes(const Pool *pool)
{
    return pool_bytes_per_block(&pool->config) / 2 * pool->config.num_blocks;
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size)  // FNV-1a
{
    const unsigned char *b = (const unsigned char *)bytes;
    for (size_t i = 0; i < size; i++) hash = (hash ^ b[i]) * 1099511628211u;
    return hash;
}

#define HASH(x) h = hash_bytes(h, &(x), sizeof(x))

// Of all there is to know about a pool.
static uint64_t fingerprint(const Pool *pool)
{
    size_t mark = num_allocs;
    uint64_t h = 14695981039346656037u;
    HASH(pool->config);
    HASH(pool->num_free);
    HASH(pool->num_copies);
    HASH(pool->last_serial);
    HASH(pool->plan_number);
    h = hash_bytes(h, pool->buckets, (size_t)pool->num_buckets * sizeof(int));
    h = hash_bytes(h, pool->blocks, ((size_t)pool->config.num_blocks + 1) * sizeof(Block));
    for (int block = 0; block < pool->config.num_blocks; block++)
        if (pool->blocks[block].serial != 0)
            h = hash_bytes(h, block_tokens(pool, block), pool->config.block_size * sizeof(int));
    for (size_t i = 0; i < arrlenu(pool->seqs); i++) {
        const Seq *seq = pool->seqs[i];
        HASH(pool->seqs[i]);
        HASH(seq->length);
        HASH(seq->num_computed_tokens);
        HASH(seq->plan_number);
        h = hash_bytes(h, seq->block_table, arrlenu(seq->block_table) * sizeof(int));
    }
    if (pool->plan_number != 0) {
        Job job = pool->plan->job;
        place_arrays(&job, pool->plan->memory);
        size_t bytes =
            (size_t)((char *)(job.tables + job.offsets[job.num_seqs].entry) - (char *)job.offsets);
        HASH(*pool->plan);
        h = hash_bytes(h, job.offsets, bytes);
        void *copy = alloc(bytes);
        memory_copy(pool->config.device, copy, pool->plan_memory.p, bytes);
        h = hash_bytes(h, copy, bytes);
    }
    void *plane = alloc(plane_bytes(pool));
    for (int i = 0; i < 2; i++) {
        memory_copy(pool->config.device, plane, i == 0 ? pool->k : pool->v, plane_bytes(pool));
        h = hash_bytes(h, plane, plane_bytes(pool));
    }
    free_to(mark);
    return h;
}

static __thread int fault_after = -1;     // allocations that succeed before those of one call fail
static __thread const Pool *faulty_pool;  // in which nothing must change then

static uint64_t begin_call(void)
{
    if (fault_after < 0) return 0;
    fail_after = fault_after;
    num_refused = 0;
    return faulty_pool ? fingerprint(faulty_pool) : 0;
}

static int has_failed(const char *place, const char *call, int error, uint64_t before)
{
    if (fault_after < 0) return 0;
    fault_after = fail_after;
    fail_after = -1;
    if (num_refused == 0) return 0;
    fault_after = -1;
    if (!error) return 0;  // it did without: the plain kernel
    check_eq(place, call, error, PAGED_OUT_OF_MEMORY);
    if (faulty_pool && fingerprint(faulty_pool) != before)
        failed(place, call, "it changed something");
    return 1;
}

// A call that must succeed: at once or, if it makes an allocation that fails, on the second try.
#define CHECK_OK(call) \
    do { \
        uint64_t before_ = begin_call(); \
        int error_ = (call); \
        if (has_failed(PLACE, #call, error_, before_)) error_ = (call); \
        check_eq(PLACE, #call, error_, PAGED_OK); \
    } while (0)

// A call that must return this code, an error or PAGED_OK, and leave every byte as it was.
#define KEEPS(pool, code, call) \
    do { \
        uint64_t before_ = fingerprint(pool); \
        check_eq(PLACE, #call, call, code); \
        if (fingerprint(pool) != before_) failed(PLACE, #call, "it changed something"); \
    } while (0)
#define BAD(call) KEEPS(pool, PAGED_BAD_ARGUMENT, call)
#define EARLY(call) KEEPS(pool, PAGED_NOT_READY, call)

// ---- pools, sequences, tensors ----------------------------------------------------------------

static float *filled(size_t n, float value)
{
    float *x = (float *)alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = value;
    return x;
}

static void fill_planes(Pool *pool, int byte)
{
    void *bytes = alloc(plane_bytes(pool));
    memset(bytes, byte, plane_bytes(pool));
    memory_copy(pool->config.device, pool->k, bytes, plane_bytes(pool));
    memory_copy(pool->config.device, pool->v, bytes, plane_bytes(pool));
}

static __thread Pool **pools;  // that are not ended

// A pool where the tests are to run, and a sequence without a twin (see below).
static Pool *new_pool(PoolConfig config)
{
    Pool *const none = (Pool *)&config, *pool = none;  // as it stays if the call fails
    config.device = device;
    CHECK_OK((CHECK(pool == none), pool_create(&config, &pool)));
    arrput(pools, pool);
    if (config.poison) fill_planes(pool, 0xff);  // blocks never handed out hold NaN too
    return pool;
}

static Seq *bare_seq(Pool *pool, int length)
{
    Seq *const none = (Seq *)pool, *seq = none;
    CHECK_OK((CHECK(seq == none), seq_create(pool, &seq)));
    CHECK_OK(seq_append(seq, length));
    return seq;
}

static size_t row_floats(const Pool *pool)
{
    return pool ? (size_t)pool->config.num_kv_heads * pool->config.head_dim : 0;
}

static size_t num_planned(const Pool *pool)  // query tokens of the plan
{
    return pool && pool->plan ? (size_t)pool->plan->job.num_query_tokens : 0;
}

// The tensors of a call, which on a GPU have to be in its memory.
typedef struct Loan {
    float *tensor, *result;  // result: where a result is wanted; NULL for K, V and queries
    size_t count;
} Loan;
static __thread Loan loans[5];
static __thread int num_loans;

static float *lend(const Pool *pool, const float *x, size_t count)
{
    if (!x || !pool || pool->config.device != PAGED_GPU) return (float *)x;
    Loan loan = {tensor_create(pool, count + 1), NULL, count};
    tensor_copy(pool, loan.tensor, x, count);
    loans[num_loans++] = loan;
    return loan.tensor;
}

// A result begins as NaN, so that what an earlier call has left cannot pass for it. A call that is
// refused leaves NaN there, and any call the NaN after its end.
enum { AFTER_IT = 64 };

static float *lend_nan(const Pool *pool, float *result, size_t count)
{
    if (!result || !pool || count == 0) return result;
    size_t bytes = (count + AFTER_IT) * sizeof *result;
    float *nan = (float *)memset(alloc(bytes), 0xff, bytes);
    Loan loan = {lend(pool, nan, count + AFTER_IT), result, count};
    loans[num_loans++] = loan;
    return loan.tensor;
}

static int take_back(const Pool *pool, int error)
{
    while (num_loans > 0) {
        Loan loan = loans[--num_loans];
        if (!loan.result) {
            tensor_free(pool, loan.tensor);
            continue;
        }
        float *got = (float *)alloc((loan.count + AFTER_IT) * sizeof *got);
        tensor_copy(pool, got, loan.tensor, loan.count + AFTER_IT);
        for (size_t i = error ? 0 : loan.count; i < loan.count + AFTER_IT; i++)
            CHECK(float_bits(got[i]) == UINT32_MAX);
        if (!error) memcpy(loan.result, got, loan.count * sizeof *got);
    }
    return error;
}

// pool_write(), seq_gather() and attend() with tensors in host memory.
static int t_write(Pool *pool, int layer, const float *k, const float *v)
{
    size_t n = num_planned(pool) * row_floats(pool);
    int error = pool_write(pool, layer, lend(pool, k, n), lend(pool, v, n));
    return take_back(pool, error);
}

static int t_gather(const Seq *seq, int layer, float *k, float *v)
{
    const Pool *pool = seq ? seq->pool : NULL;
    size_t n = seq ? seq->length * row_floats(pool) : 0, mark = num_allocs;
    int error = seq_gather(seq, layer, lend_nan(pool, k, n), lend_nan(pool, v, n));
    take_back(pool, error);
    free_to(mark);
    return error;
}

static int t_attend(Pool *pool, int flags, int layer, int num_q_heads, float scale, const float *q,
                    float *out, float *lse)
{
    size_t heads = num_q_heads > 0 && num_q_heads <= PAGED_MAX_Q_HEADS ? num_q_heads : 0;
    size_t rows = num_planned(pool) * heads, mark = num_allocs;
    size_t n = rows > 0 ? rows * pool->config.head_dim : 0;
    int error = attend(pool, flags, layer, num_q_heads, scale, lend(pool, q, n),
                       lend_nan(pool, out, n), lend_nan(pool, lse, rows));
    take_back(pool, error);
    free_to(mark);
    return error;
}

// A step of the newest n tokens of one sequence; and one that stores their K and V, in each layer.
static int plan_one(Seq *seq, int n)
{
    Batch batch = {1, &seq, &n};
    return pool_plan(seq->pool, &batch);
}

static int store(Seq *seq, int n, const float *k, const float *v)
{
    int error = plan_one(seq, n);
    for (int layer = 0; layer < seq->pool->config.num_layers && !error; layer++)
        error = t_write(seq->pool, layer, k, v);
    return error;
}

// A sequence of n tokens, with these K and V, in a pool of one layer and one head. The newest token
// is planned.
static Seq *seq_of(int n, int head_dim, int dtype, const float *k, const float *v)
{
    Pool *pool = new_pool((PoolConfig){1, 1, head_dim, 16, ceil_div(n, 16), dtype, 1, PAGED_CPU});
    Seq *seq = bare_seq(pool, n);
    CHECK_OK(store(seq, n, k, v));
    CHECK_OK(plan_one(seq, 1));
    return seq;
}

// A small shape; tests change what they need. All but huge pools have poison.
static PoolConfig small_config(int block_size, int num_blocks)
{
    return (PoolConfig){2, 2, 4, block_size, num_blocks, PAGED_F32, 1, PAGED_CPU};
}

// ---- sequences and their twins in the oracle --------------------------------------------------
// These calls do the same to a sequence and to its twin. K and V are random numbers that depend on
// the token and on all tokens before it, as in a model.

typedef struct Twin {
    Seq *seq;
    Oracle *oracle;
    int *tokens;  // [length], an array of stb_ds
} Twin;

static __thread Twin *twins;        // an array of stb_ds
static __thread long tokens_found;  // by lookups
static int token_odds;  // 0: no two tokens are alike; else one in token_odds tokens is 1, others 0

// With `wild` set, the id of some tokens is minus one of these, or minus a sum, and one of their
// heads has K or V that is out of the ordinary. Queries are then (1, 0, 0, ...) and the scale is 1,
// so that the score is element 0 of K, exactly.
enum {
    FAR = 1,       // a score 87 to 104 below the others, where exp() is a subnormal float
    VERY_FAR = 2,  // 178 to 266 below
    MINUS_INFINITY = 4,
    PLUS_INFINITY = 8,
    NAN_IN_K = 16,
    NAN_IN_V = 32,
    HUGE_V = 64,
    INFINITE_V = 128
};
static int wild;

static Twin *twin_of(const Seq *seq)
{
    for (int i = 0; i < (int)arrlen(twins); i++)
        if (twins[i].seq == seq) return &twins[i];
    return NULL;
}

static int **tokens_of(Seq *seq) { return &twin_of(seq)->tokens; }

static Oracle *oracle_of(Seq *seq) { return twin_of(seq)->oracle; }

static void set_twin(Seq *seq, Oracle *oracle)
{
    Twin twin = {seq, oracle, NULL};
    arrput(twins, twin);
}

static void plan(Pool *pool, Seq *const *seqs, const int *counts, int n)
{
    Batch batch = {n, seqs, counts};
    CHECK_OK(pool_plan(pool, &batch));
}

// Appends n tokens without K and V. What was refused is not in the twin, either. (When an append
// must be refused, and how many blocks another one takes, is what checks/states.c knows.)
static int make_room(Seq *seq, int n)
{
    int error = seq_append(seq, n);
    if (error == PAGED_OUT_OF_BLOCKS || error == PAGED_TOO_LONG) {
        KEEPS(seq->pool, error, seq_append(seq, n));
        return error;
    }
    CHECK_EQ(error, PAGED_OK);
    oracle_of(seq)->length += n;
    for (int i = 0; i < n; i++) {
        int token = token_odds ? between(1, token_odds) == 1 : (int)(next_random() >> 33);
        arrput(*tokens_of(seq), token);
    }
    CHECK_EQ(seq->length, oracle_of(seq)->length);
    return PAGED_OK;
}

// Changes K and V of one token to what its id stands for.
static void make_wild(int kinds, const PoolConfig *c, float *k, float *v)
{
    int head = between(0, c->num_kv_heads - 1) * c->head_dim;
    int any = head + between(0, c->head_dim - 1);
    if (kinds & FAR) k[head] = -87 - between(0, 17);
    if (kinds & VERY_FAR) k[head] = -178 - between(0, 88);
    if (kinds & MINUS_INFINITY) k[head] = -INFINITY;
    if (kinds & PLUS_INFINITY) k[head] = INFINITY;
    if (kinds & NAN_IN_K) k[any] = NAN;
    if (kinds & HUGE_V) v[any] = 3e35f;
    if (kinds & INFINITE_V) v[any] = INFINITY;
    if (kinds & NAN_IN_V) v[head + between(0, c->head_dim - 1)] = NAN;
}

// K and V that a model could have for the newest n tokens: random numbers that depend on the layer,
// the token, and all tokens before it. The twin stores them.
static void make_rows(Seq *seq, int layer, int n, float *k, float *v)
{
    size_t row = row_floats(seq->pool);
    size_t at = 0;
    uint64_t before = (uint64_t)layer + 1;
    uint64_t own = random_state;
    for (int t = 0; t < seq->length; t++) {
        int id = (*tokens_of(seq))[t];
        random_state = before ^ (uint64_t)id << 20;
        before = next_random();
        if (t < seq->length - n) continue;
        for (size_t i = at; i < at + row; i++) {
            k[i] = random_float();
            v[i] = random_float();
        }
        if (id < 0) make_wild(-id, &seq->pool->config, k + at, v + at);
        at += row;
    }
    random_state = own;
    oracle_write(oracle_of(seq), layer, n, k, v);
}

static void compute(Seq *const *seqs, const int *counts, int n)
{
    Pool *pool = seqs[0]->pool;
    size_t row = row_floats(pool);
    size_t total = 0;
    int computed = seqs[0]->num_computed_tokens;
    for (int i = 0; i < n; i++) total += (size_t)counts[i];
    float *k = filled(total * row, 0);
    float *v = filled(total * row, 0);
    plan(pool, seqs, counts, n);
    for (int layer = 0; layer < pool->config.num_layers; layer++) {
        size_t at = 0;
        CHECK_EQ(seqs[0]->num_computed_tokens, computed);  // until the last layer is written
        for (int i = 0; i < n; i++) {
            make_rows(seqs[i], layer, counts[i], k + at, v + at);
            at += counts[i] * row;
        }
        CHECK_OK(t_write(pool, layer, k, v));
    }
}

static void append(Seq *seq, int n)
{
    CHECK_EQ(make_room(seq, n), PAGED_OK);
    compute(&seq, &n, 1);
}

static Seq *empty_seq(Pool *pool, int max_tokens)  // of the twin
{
    Seq *seq = bare_seq(pool, 0);
    set_twin(seq, oracle_create(&pool->config, max_tokens));
    return seq;
}

static Seq *new_seq(Pool *pool, int length)
{
    Seq *seq = empty_seq(pool, pool->config.num_blocks * pool->config.block_size);
    append(seq, length);
    return seq;
}

static Seq *fork_seq(Seq *parent, int at)
{
    Seq *child = parent;  // as it stays if the call fails
    CHECK_OK((CHECK(child == parent), seq_fork(parent, at, &child)));
    set_twin(child, oracle_fork(oracle_of(parent), at));
    for (int i = 0; i < at; i++) {
        int token = (*tokens_of(parent))[i];
        arrput(*tokens_of(child), token);
    }
    return child;
}

static void rewind_seq(Seq *seq, int n)
{
    Twin *twin = twin_of(seq);
    CHECK_OK(seq_rewind(seq, n));
    twin->oracle->length -= n;
    arrsetlen(twin->tokens, seq->length);
    CHECK_EQ(seq->length, twin->oracle->length);
}

static void publish(Seq *seq, int n) { CHECK_OK(seq_publish(seq, *tokens_of(seq), n)); }

// An empty sequence takes what the prefix cache has of these n tokens.
static void look_up(Seq *seq, const int *tokens, int n)
{
    const Pool *pool = seq->pool;
    CHECK_OK(seq_lookup(seq, tokens, n));
    int length = seq->length;
    tokens_found += length;
    oracle_of(seq)->length = length;
    for (int i = 0; i < length; i++) arrput(*tokens_of(seq), tokens[i]);
    float *k = filled(length * row_floats(pool), 0);
    float *v = filled(length * row_floats(pool), 0);
    for (int layer = 0; layer < pool->config.num_layers; layer++)
        make_rows(seq, layer, length, k, v);
}

static void release(Seq *seq)
{
    Twin *twin = twin_of(seq);
    if (twin) {
        oracle_release(twin->oracle);
        arrfree(twin->tokens);
        arrdelswap(twins, twin - twins);
    }
    seq_release(seq);
}

// The block table, followed, must give what the twin holds: every layer, byte for byte.
static void check_seq(Seq *seq)
{
    const PoolConfig *c = &seq->pool->config;
    const Twin *twin = twin_of(seq);
    size_t n = seq->length * row_floats(seq->pool);
    float *k = filled(n, 0);
    float *v = filled(n, 0);
    for (int layer = 0; layer < c->num_layers; layer++) {
        size_t start = (size_t)layer * twin->oracle->max_tokens * row_floats(seq->pool);
        CHECK_OK(t_gather(seq, layer, k, v));
        CHECK_BITS(k, twin->oracle->k + start, n);
        CHECK_BITS(v, twin->oracle->v + start, n);
    }
}

// ---- attention in all ways --------------------------------------------------------------------

// The rows of one sequence against its twin, for each way in turn.
static void check_rows(Seq *seq, int layer, int num_tokens, int num_q_heads, float scale,
                       const float *q, size_t first, float *const *out, float *const *lse)
{
    const Oracle *oracle = oracle_of(seq);
    size_t kv_row = row_floats(seq->pool);
    size_t rows = (size_t)num_tokens * num_q_heads;
    size_t dim = (size_t)oracle->config.head_dim;
    size_t seen = 0;  // elements of V, and the largest of each column
    double *largest = (double *)alloc(kv_row * sizeof *largest);
    const float *v = oracle->v + (size_t)layer * oracle->max_tokens * kv_row;
    float *expected = filled(rows * dim, 0);
    float *expected_lse = filled(rows, 0);
    oracle_attend(oracle, layer, num_tokens, num_q_heads, scale, q + first * dim, expected,
                  expected_lse);
    for (size_t i = 0; i < rows * dim; i++) {
        size_t row = i / dim;
        size_t token = oracle->length - num_tokens + row / num_q_heads;
        size_t column =
            row % num_q_heads * oracle->config.num_kv_heads / num_q_heads * dim + i % dim;
        for (; seen < (token + 1) * kv_row; seen++)
            if (isfinite(v[seen]))
                largest[seen % kv_row] = fmax(largest[seen % kv_row], fabs(v[seen]));
        if (!wild) CHECK(isfinite(expected[i]) && isfinite(expected_lse[row]));
        for (int way = 0; way < NUM_WAYS; way += 2) {  // gathered is the same in every bit
            if (!(ways >> way & 1)) continue;
            CHECK_CLOSE(out[way][first * dim + i], expected[i], largest[column]);
            CHECK_CLOSE(lse[way][first + row], expected_lse[row], fabs(expected_lse[row]));
        }
    }
}

// One way into out and lse. On the stand-in, the opposite order of the lanes must give the same
// bits; ThreadSanitizer, which sees why it might not, needs no other order.
static void attend_one_way(Pool *pool, int flags, int layer, int num_q_heads, float scale,
                           const float *q, float *out, float *lse, size_t rows)
{
    CHECK_OK(t_attend(pool, flags, layer, num_q_heads, scale, q, out, lse));
#ifdef HAS_STANDIN
    if (!on_stand_in() || SEES_RACES) return;
    size_t n = rows * pool->config.head_dim;
    float *other_out = filled(n, 0), *other_lse = filled(rows, 0);
    gpu_lane_order = !gpu_lane_order;
    CHECK_OK(t_attend(pool, flags, layer, num_q_heads, scale, q, other_out, other_lse));
    gpu_lane_order = !gpu_lane_order;
    CHECK_BITS(other_out, out, n);
    CHECK_BITS(other_lse, lse, rows);
#else
    (void)rows;
#endif
}

// One layer of the step that is planned, with random queries: gathered and paged, plain and fast.
// Gathered and paged agree in every bit, plain and fast do not, as they add up in another order;
// all agree with the oracle within the tolerance.
static void attend_to_layer(int layer, Seq *const *seqs, const int *counts, int n, int num_q_heads,
                            float scale)
{
    Pool *pool = seqs[0]->pool;
    size_t rows = num_planned(pool) * num_q_heads;
    size_t size = rows * pool->config.head_dim;
    size_t mark = num_allocs;
    float *q = random_floats(size), *out[NUM_WAYS], *lse[NUM_WAYS];
    for (size_t i = 0; i < size; i++) {
        q[i] *= 4;  // so that the weights differ clearly
        if (wild) q[i] = 0;
        if (wild && i % pool->config.head_dim == 0) q[i] = 1;
    }
    for (int way = 0; way < NUM_WAYS; way++) {
        if (!(ways >> way & 1)) continue;
        out[way] = filled(size, 0);
        lse[way] = filled(rows, 0);
        attend_one_way(pool, way, layer, num_q_heads, scale, q, out[way], lse[way], rows);
        if (!(way & ATTEND_GATHER)) continue;
        CHECK_BITS(out[way], out[way - 1], size);
        CHECK_BITS(lse[way], lse[way - 1], rows);
    }
    size_t row = 0;
    for (int i = 0; i < n; i++) {
        check_rows(seqs[i], layer, counts[i], num_q_heads, scale, q, row, out, lse);
        row += (size_t)counts[i] * num_q_heads;
    }
    free_to(mark);
}

// All ways of attention, of the newest tokens of each sequence. On the stand-in, which is slow,
// three of them are enough.
static void attend_in_all_ways(Seq *const *seqs, const int *counts, int n, int num_q_heads,
                               float scale)
{
    Pool *pool = seqs[0]->pool;
    int *cut = (int *)alloc((size_t)n * sizeof *cut);
    for (int i = 0; i < n; i++) cut[i] = on_stand_in() ? min_int(counts[i], 3) : counts[i];
    plan(pool, seqs, cut, n);
    for (int layer = 0; layer < pool->config.num_layers; layer++)
        attend_to_layer(layer, seqs, cut, n, num_q_heads, scale);
}

// Up to three queries each, because a single one over full blocks cannot see their order.
static void check_all(const Pool *pool)
{
    check_pool(pool);
    for (size_t i = 0; i < arrlenu(pool->seqs); i++) {
        int n = min_int(pool->seqs[i]->length, 3);
        if (!twin_of(pool->seqs[i])) continue;
        turns++;
        if (on_stand_in() && turns % 8 != 0) continue;  // it is slow
        check_seq(pool->seqs[i]);
        if (on_stand_in() && turns % 32 != 0) continue;
        attend_in_all_ways(&pool->seqs[i], &n, 1, 2 * pool->config.num_kv_heads, 0);
    }
}

static void end_pool(Pool *pool)
{
    check_all(pool);
    while (arrlen(pool->seqs) > 0) release(arrlast(pool->seqs));
    check_pool(pool);
    CHECK_EQ(pool->num_free, pool->config.num_blocks);
    pool_destroy(pool);
    for (int i = 0; i < (int)arrlen(pools); i++)
        if (pools[i] == pool) arrdelswap(pools, i);
}

// ---- numbers to check by hand -----------------------------------------------------------------

// A Llama of 7 billion weights, and OPT-30B.
TEST_ON(a_token_costs_the_product_of_its_shape, ON_CPU)
{
    if (sizeof(size_t) < 8) skip("32-bit build");
    PoolConfig llama = {32, 32, 128, 16, 1, PAGED_F16, 0, PAGED_CPU};
    PoolConfig opt_30b = {48, 56, 128, 16, 1 << 20, PAGED_BF16, 0, PAGED_CPU};
    CHECK_EQ(pool_bytes_per_token(&llama), 512 << 10);
    CHECK_EQ(pool_bytes_per_block(&llama), 16 * 512 << 10);
    llama.dtype = PAGED_F32;
    CHECK_EQ(pool_bytes_per_block(&llama), 32 * 512 << 10);
    CHECK_EQ(pool_bytes_per_token(&opt_30b) * 1024 * 128, 180388626432);  // 128 texts: 180.4 GB
    CHECK_EQ(ceil_div(6000000001, 4), 1500000001);
    CHECK(multiply(2, SIZE_MAX / 2) == SIZE_MAX - 1 && multiply(3, SIZE_MAX / 3) == SIZE_MAX);
    CHECK(multiply(2, SIZE_MAX / 2 + 1) == 0 && multiply(SIZE_MAX / 3 + 1, 3) == 0);
    CHECK_EQ(kv_offset(&opt_30b, 1 << 12, 0, 0, 0), (1ll << 32) * 56 * 16 * 128);
}

// Query 1, keys log 1 .. log 4: weights 1, 2, 3, 4 tenths; values 1 .. 4. So the output is 3 and
// the log-sum-exp log 10, in blocks of any size; and so on for the rows before, which see less.
TEST_ON(attention_is_a_softmax_by_hand, ON_BOTH)
{
    const float k[] = {0, logf(2), logf(3), logf(4)}, v[] = {1, 2, 3, 4}, q[] = {1, 1, 1, 1};
    const float sums[] = {1, 5, 14, 30}, weights[] = {1, 3, 6, 10};
    for (int block_size = 1; block_size <= 5; block_size++) {
        Pool *pool = new_pool((PoolConfig){1, 1, 1, block_size, 4, PAGED_F32, 1, PAGED_CPU});
        Seq *seq = bare_seq(pool, 4);
        float out[4], lse[4];
        CHECK_OK(store(seq, 4, k, v));
        for (int i = 0; i < 16; i++) {  // flags 0 to 3
            if (i % 4 == 0) CHECK_OK(t_attend(pool, i / 4, 0, 1, 0, q, out, lse));
            CHECK_CLOSE(out[i % 4], sums[i % 4] / weights[i % 4], 1);
            CHECK_CLOSE(lse[i % 4], logf(weights[i % 4]), 1);
        }
    }
}

// The oracle judges the rest, so it is checked by hand, too. A scale of 2 squares the weights: 1
// and 4 fifths. Its dot products are in double: a float would lose the 1 beside 10^8.
TEST_ON(the_oracle_gives_what_a_hand_computes, ON_CPU)
{
    PoolConfig config = {2, 1, 1, 1, 1, PAGED_F32, 0, PAGED_CPU};
    const float k[] = {0, logf(2)}, v[] = {10, 20}, q = 1;
    float out = 0, lse = 0;
    Oracle *parent = oracle_create(&config, 2);
    parent->length = 2;
    oracle_write(parent, 1, 2, k, v);
    oracle_attend(parent, 1, 1, 1, 2, &q, &out, &lse);
    CHECK_CLOSE(out, 18, 20);
    CHECK_CLOSE(lse, logf(5), 1);
    Oracle *child = oracle_fork(parent, 1);
    oracle_attend(child, 1, 1, 1, 0, &q, &out, &lse);
    CHECK(out == 10 && lse == 0);
    oracle_attend(child, 1, 1, 1, 0, &q, &out, NULL);
    CHECK(child->length == 1 && parent->length == 2);
    CHECK_BITS(child->v + 2, v, 2);  // to the last float of layer 1
    config.head_dim = 3;
    const float ones[] = {1, 1, 1}, far_apart[] = {1e8f, 1, -1e8f};
    float result[3];
    Oracle *exact = oracle_create(&config, 1);
    exact->length = 1;
    oracle_write(exact, 0, 1, ones, ones);
    oracle_attend(exact, 0, 1, 1, 1, far_apart, result, &lse);
    CHECK(lse == 1);
    oracle_release(parent);
    oracle_release(child);
    oracle_release(exact);
}

// ---- where K and V are ------------------------------------------------------------------------

static void shuffle_free_list(Pool *pool)
{
    int n = pool->config.num_blocks;
    for (int block = 0; block < n; block++) {  // each goes after a random one, or the sentinel
        int prev = between(0, n - 1);
        if (prev == block) prev = n;
        free_list_remove(pool, block);
        free_list_insert_after(pool, prev, block);
    }
}

// An element of the plane of K, or of V, where it is by the layout of paged.h.
static float stored(const Pool *pool, const void *plane, int layer, int block, int head, int slot,
                    int d)
{
    const PoolConfig *c = &pool->config;
    size_t i = ((size_t)layer * c->num_blocks + block) * c->num_kv_heads + head;
    i = (i * c->block_size + slot) * c->head_dim + d;
    float x = 0;
    memory_copy(c->device, &x, (const char *)plane + i * dtype_size(c->dtype),
                dtype_size(c->dtype));
    return load_element(&x, 0, c->dtype);
}

// One sign for each slot of a block: 'N' if every element of K and V is NaN, '.' if none is.
static const char *slots(const Pool *pool, int block)
{
    const PoolConfig *c = &pool->config;
    char *text = (char *)alloc((size_t)c->block_size + 1);
    for (int slot = 0; slot < c->block_size; slot++) {
        int nans = 0, all = 2 * c->num_layers * c->num_kv_heads * c->head_dim;
        for (int i = 0; i < all; i++) {  // [layers][heads][head_dim][K and V]
            int d = i / 2 % c->head_dim, row = i / 2 / c->head_dim;
            int head = row % c->num_kv_heads, layer = row / c->num_kv_heads;
            const void *plane = i % 2 == 0 ? pool->k : pool->v;
            if (isnan(stored(pool, plane, layer, block, head, slot, d))) nans++;
        }
        text[slot] = '?';
        if (nans == 0) text[slot] = '.';
        if (nans == all) text[slot] = 'N';
    }
    return text;
}

TEST_ON(every_element_lies_where_the_layout_says, ON_BOTH)
{
    Pool *pool = new_pool(small_config(4, 16));
    shuffle_free_list(pool);
    Seq *seq = new_seq(pool, 9);
    for (int i = 0; i < 2 * 9 * 2 * 4; i++) {  // [layer][token][head][dim]
        int layer = i / 72, t = i / 8 % 9, head = i / 4 % 2;
        size_t there = (size_t)layer * 64 * 8 + i % 72;  // the twin has room for 64 tokens
        int block = seq->block_table[t / 4];
        float k = stored(pool, pool->k, layer, block, head, t % 4, i % 4);
        float v = stored(pool, pool->v, layer, block, head, t % 4, i % 4);
        note("layer %d, token %d, head %d", layer, t, head);
        CHECK_BITS(&k, oracle_of(seq)->k + there, 1);
        CHECK_BITS(&v, oracle_of(seq)->v + there, 1);
    }
}

// With poison, whatever was not written is NaN, in every layer, head and dtype: new slots, slots
// that a rewind dropped, freed blocks. (checks/states.c knows which slots in which case.)
TEST_ON(poison_marks_every_unwritten_slot, ON_BOTH)
{
    for (int dtype = PAGED_F32; dtype <= PAGED_BF16; dtype++) {
        const int any[] = {1, -1, INT_MAX};  // but 0
        PoolConfig config = small_config(4, 6);
        config.dtype = dtype;
        config.poison = any[dtype];
        Pool *pool = new_pool(config);
        fill_planes(pool, 0);  // so that NaN can only come from the engine
        Seq *bare = bare_seq(pool, 5);
        CHECK_TEXT(slots(pool, 1), "NNNN");
        CHECK_TEXT(slots(pool, 2), "....");
        seq_release(bare);

        Seq *a = new_seq(pool, 9);  // blocks 0 1 2
        rewind_seq(a, 3);           // drops block 2, and slots of block 1
        CHECK_TEXT(slots(pool, 1), "..NN");
        CHECK_TEXT(slots(pool, 2), "NNNN");
    }
}

// ---- errors -----------------------------------------------------------------------------------

// Shapes that are refused: *pool stays as it was. Sizes are computed without overflow.
TEST_ON(a_bad_shape_makes_no_pool, ON_CPU)
{
    const PoolConfig good = small_config(4, 4);
    PoolConfig bad;
    Pool *const unchanged = (Pool *)&bad;
    Pool *pool = unchanged;
    int *fields[] = {&bad.head_dim,   &bad.num_kv_heads, &bad.dtype,     &bad.device,
                     &bad.num_layers, &bad.block_size,   &bad.num_blocks};
    const int wrong[][3] = {{0, -1, PAGED_MAX_HEAD_DIM + 1},
                            {0, INT_MIN, PAGED_MAX_Q_HEADS + 1},
                            {-1, PAGED_BF16 + 1, INT_MIN},
                            {-1, PAGED_STANDIN + 1, INT_MIN},
                            {0, -1, INT_MIN}};  // and of all others
    for (int i = 0; i < 7 * 3; i++) {
        bad = good;
        *fields[i / 3] = wrong[min_int(i / 3, 4)][i % 3];
        note("field %d is %d", i / 3, *fields[i / 3]);
        CHECK_EQ(pool_create(&bad, &pool), PAGED_BAD_ARGUMENT);
        if (i / 3 == 6) continue;  // num_blocks is ignored by these
        CHECK_EQ(pool_bytes_per_token(&bad), 0);
        CHECK_EQ(pool_bytes_per_block(&bad), 0);
    }
    CHECK_EQ(pool_create(NULL, &pool), PAGED_BAD_ARGUMENT);
    CHECK_EQ(pool_create(&good, NULL), PAGED_BAD_ARGUMENT);
    CHECK_EQ(pool_bytes_per_token(NULL), 0);
    bad = good;
    for (bad.device = PAGED_GPU; bad.device <= PAGED_STANDIN; bad.device++)
        if (bad.device != OTHER_DEVICE) CHECK_EQ(pool_create(&bad, &pool), PAGED_NO_GPU);

    const PoolConfig huge[] = {
        {INT_MAX, 1 << 15, 256, INT_MAX, INT_MAX, PAGED_F32, 0, PAGED_CPU},  // 2^57 bytes a token
        {4096, 4096, 256, 4096, INT_MAX, PAGED_F16, 0, PAGED_CPU},  // 2^46 a block, 2^77 in all
        {1, 1, 256, 4096, INT_MAX, PAGED_F16, 0, PAGED_CPU},        // 4 PiB a plane
        {276131137, 8681, 1, 384773, 5, PAGED_F16, 0, PAGED_CPU},   // 2^64 + 4 in all
        {6700417, 641, 256, 4096, 2048, PAGED_F16, 0, PAGED_CPU},   // 2^64 + 2^32 a plane
    };
    for (int i = 0; i < 5; i++) CHECK_EQ(pool_create(&huge[i], &pool), PAGED_OUT_OF_MEMORY);
    CHECK_EQ(pool_bytes_per_block(&huge[0]), 0);
    const int wide = sizeof(size_t) > 4;  // if not, these overflow, too
    CHECK_EQ(pool_bytes_per_token(&huge[0]), wide ? (1ll << 57) - (1ll << 26) : 0);
    CHECK_EQ(pool_bytes_per_block(&huge[1]), wide ? 1ll << 46 : 0);
    CHECK(pool == unchanged);
    pool_destroy(NULL);
}

// Null pointers, the largest numbers and calls that come too early change nothing; numbers that are
// wrong by one are in checks/states.c. A length beyond INT_MAX is too long, however large the pool.
TEST_ON(a_refused_sequence_call_changes_nothing, ON_CPU)
{
    const int wrong[] = {INT_MAX, INT_MIN};
    const char *const words[] = {"ok",     "argument", "free blocks", "whole pool",
                                 "memory", "shared",   "GPU",         "not ready"};  // of the texts
    Pool *pool = new_pool(small_config(4, 8));
    Seq *seq = new_seq(pool, 10), *empty = new_seq(pool, 0), *result = seq;
    float *x = random_floats(10 * 2 * 4);
    BAD(seq_create(NULL, &result));
    BAD(seq_create(pool, NULL));
    BAD(seq_append(NULL, 0));
    BAD(seq_fork(NULL, 0, &result));
    BAD(seq_fork(seq, 3, NULL));
    BAD(seq_rewind(NULL, 0));
    BAD(t_gather(NULL, 0, x, x));
    BAD(t_gather(seq, 0, NULL, x));
    BAD(t_gather(seq, 0, x, NULL));
    BAD(seq_publish(NULL, NULL, 0));
    BAD(seq_publish(seq, NULL, 1));
    BAD(seq_lookup(NULL, NULL, 0));
    BAD(seq_lookup(empty, NULL, 1));
    for (int i = 0; i < 2; i++) {
        BAD(seq_fork(seq, wrong[i], &result));
        BAD(seq_rewind(seq, wrong[i]));
        BAD(t_gather(seq, wrong[i], x, x));
        BAD(seq_publish(seq, *tokens_of(seq), wrong[i]));
    }
    CHECK(result == seq);
    BAD(seq_append(seq, INT_MIN));
    BAD(seq_lookup(empty, *tokens_of(seq), INT_MIN));
    BAD(seq_lookup(seq, *tokens_of(seq), 4));
    Seq *two = bare_seq(pool, 2);  // which are not computed
    EARLY(plan_one(two, 1));
    CHECK_OK(plan_one(two, 2));
    EARLY(t_attend(pool, ATTEND_PAGED, 0, 2, 0, x, x, NULL));
    EARLY(t_write(pool, 1, x, x));
    CHECK_OK(seq_rewind(two, 1));  // the plan is out of date
    EARLY(t_attend(pool, ATTEND_PAGED, 0, 2, 0, x, x, NULL));
    EARLY(t_write(pool, 0, x, NULL));  // without a plan, it may be right that there are no rows
    CHECK_OK(seq_fork(two, 1, &result));
    CHECK_OK(plan_one(two, 1));
    EARLY(t_write(pool, 1, x, x));  // and shared, which comes second
    KEEPS(pool, PAGED_BLOCK_SHARED, t_write(pool, 0, x, x));
    fork_seq(seq, 7);
    CHECK_OK(plan_one(seq, 10));
    KEEPS(pool, PAGED_BLOCK_SHARED, t_write(pool, 0, x, x));
    KEEPS(pool, PAGED_OK, t_gather(empty, 0, NULL, NULL));
    KEEPS(pool, PAGED_OK, seq_publish(seq, NULL, 0));
    KEEPS(pool, PAGED_OK, seq_lookup(empty, NULL, 0));
    KEEPS(pool, PAGED_TOO_LONG, seq_append(seq, INT_MAX));
    pool->config.block_size = 1 << 30;  // as if it were a pool of 2^33 tokens
    CHECK_EQ(seq_append(seq, INT_MAX), PAGED_TOO_LONG);
    pool->config.poison = 0;
    Seq *longest = bare_seq(pool, (1 << 30) + 1);
    CHECK_OK(seq_append(longest, INT_MAX - longest->length));
    CHECK_EQ(seq_append(longest, 1), PAGED_TOO_LONG);
    CHECK_EQ(arrlen(longest->block_table), 2);
    seq_release(longest);
    pool->config.poison = 1;
    pool->config.block_size = 4;
    seq_release(NULL);
    for (int i = 0; i <= PAGED_NOT_READY; i++) {  // CUDA has its own words for why there is no GPU
        if (i == PAGED_NO_GPU && (int)OTHER_DEVICE == PAGED_GPU && !device_exists(PAGED_GPU))
            continue;
        CHECK_HAS(paged_error(i), words[i]);
    }
    CHECK_TEXT(paged_error(-1), "unknown error code");
    CHECK_TEXT(paged_error(PAGED_NOT_READY + 1), "unknown error code");
}

// Batches that checks/states.c does not know: null pointers, the largest numbers, sequences of
// another pool. Nothing changes, and the plan before it stays. A batch without tokens is not an
// error, and does nothing.
TEST_ON(a_refused_batch_keeps_the_plan_before_it, ON_BOTH)
{
    Pool *pool = new_pool(small_config(4, 8)), *other_pool = new_pool(small_config(4, 150));
    Seq *a = new_seq(pool, 5), *b = new_seq(pool, 2);
    for (int i = 0; i < 100; i++) new_seq(other_pool, 1);
    Seq *stranger = new_seq(other_pool, 5);  // its index is beyond what the pool has
    Seq *early = bare_seq(pool, 2);          // not computed, which is said of valid batches only
    Seq *good_seqs[] = {a, b}, *null[] = {a, NULL}, *twice[] = {a, a},
        *both_wrong[] = {early, NULL};
    Seq *foreign[] = {b, stranger}, *first[] = {stranger, b}, *both[] = {stranger, stranger};
    const int ones[] = {1, 1}, zeros[] = {0, 0}, large[] = {1, INT_MAX}, low[] = {1, INT_MIN};
    const Batch good = {2, good_seqs, ones}, abroad = {1, &stranger, ones};
    const Batch bad[] = {{-1, good_seqs, ones},      {INT_MIN, good_seqs, ones},
                         {INT_MAX, good_seqs, ones}, {2, NULL, ones},
                         {2, good_seqs, NULL},       {1, NULL, ones},
                         {1, good_seqs, NULL},       {2, null, ones},
                         {2, foreign, ones},         {2, first, ones},
                         {2, both, zeros},           {2, good_seqs, large},
                         {2, good_seqs, low},        {2, twice, ones},
                         {2, both_wrong, ones}};
    BAD(pool_plan(NULL, &good));
    CHECK_OK(pool_plan(pool, &good));
    BAD(pool_plan(pool, NULL));
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        note("bad batch %d", i);
        BAD(pool_plan(pool, &bad[i]));
        CHECK_OK(pool_plan(other_pool, &abroad));  // the stranger is as it was in its own pool
        CHECK_OK(pool_plan(pool, &good));          // and so are the others in theirs
    }
    float lse[4] = {0};
    const Batch nothing = {0, NULL, NULL};
    CHECK_OK(pool_plan(pool, &nothing));
    KEEPS(pool, PAGED_OK, t_write(pool, 1, NULL, NULL));
    BAD(t_attend(pool, ATTEND_PAGED, 0, 3, 0, NULL, NULL, lse));
    for (int flags = 0; flags < 4; flags++)
        KEEPS(pool, PAGED_OK, t_attend(pool, flags, 0, 4, 0, NULL, NULL, lse));
}

// Wrong arguments of pool_write() and attend() in a planned step: pool and outputs stay the same.
TEST_ON(a_refused_step_changes_nothing, ON_BOTH)
{
    enum { OUT = 4 * 4 };  // one row of 4 query heads
    Pool *pool = new_pool(small_config(4, 8));
    Seq *seq = new_seq(pool, 5);
    const int wrong[] = {-1, 4, INT_MAX, INT_MIN};              // as flags, and as a layer
    const int wrong_heads[] = {0, -2, 1, 3, INT_MAX, INT_MIN};  // there are two KV heads
    const float wrong_scales[] = {NAN, INFINITY, -INFINITY};
    float *x = random_floats(OUT), *out = filled(OUT, 7), *lse = filled(OUT, 7);
    CHECK_OK(plan_one(seq, 1));
    for (int flags = 0; flags < 4; flags++) {
        for (int i = 0; i < 4; i++) {
            BAD(t_attend(pool, flags, wrong[i], 4, 0, x, out, lse));
            BAD(t_attend(pool, wrong[i], 0, 4, 0, x, out, lse));
        }
        for (int i = 0; i < 6; i++) BAD(t_attend(pool, flags, 0, wrong_heads[i], 0, x, out, lse));
        BAD(t_attend(pool, flags, 0, PAGED_MAX_Q_HEADS + 1, 0, x, out, lse));
        for (int i = 0; i < 3; i++) BAD(t_attend(pool, flags, 0, 4, wrong_scales[i], x, out, lse));
        BAD(t_attend(NULL, flags, 0, 4, 0, x, out, lse));
        BAD(t_attend(pool, flags, 0, 4, 0, NULL, out, lse));
        BAD(t_attend(pool, flags, 0, 4, 0, x, NULL, lse));
    }
    for (int i = 0; i < 4; i++) BAD(t_write(pool, wrong[i], x, x));
    BAD(t_write(NULL, 0, x, x));
    BAD(t_write(pool, 0, NULL, x));
    BAD(t_write(pool, 0, x, NULL));
    CHECK_BITS(out, filled(OUT, 7), OUT);
    CHECK_BITS(lse, filled(OUT, 7), OUT);
}

// A pool asks for the memory that it needs, and no more: K and V, each with 128 bytes after it, a
// record for each block and one for the sentinel of the free list, the tokens of all blocks, and a
// bucket for each. A plan takes what its tables need, one after the other, not the longest times
// their number, and half as much again. All of it is freed, after a refusal and with a pool that
// ends at work. At first only records and buckets are touched; the other 512 MB take no memory.
TEST_ON(a_pool_asks_for_exactly_its_memory, ON_CPU)
{
    PoolConfig config = small_config(4, 128);
    Pool *pool = NULL;
    Seq *seqs[3];
    float *x = filled(3 * 8, 1), *out = filled(3 * 8, 0);
    const int ones[] = {1, 1, 1}, before = num_live;
    bytes_asked = 0;
    CHECK_OK(pool_create(&config, &pool));
    size_t records = 129 * sizeof(Block) + 128 * 4 * sizeof(int) + 128 * sizeof(int);
    CHECK_EQ(bytes_asked, sizeof(Pool) + 128 * pool_bytes_per_block(&config) + 2 * 128 + records);
    for (int i = 0; i < 3; i++) {
        seqs[i] = bare_seq(pool, i == 0 ? 400 : 5);
        seqs[i]->num_computed_tokens = seqs[i]->length - 1;  // as if they had been written
    }
    const int live = num_live;
    fail_after = 1;  // the plan itself is there, its memory on the device is not
    CHECK_EQ(plan_one(seqs[1], 1), PAGED_OUT_OF_MEMORY);
    fail_after = -1;
    CHECK_EQ(num_live, live);
    CHECK_OK(plan_one(seqs[1], 1));
    CHECK(pool->plan->job.offsets == pool->plan_memory.p);  // where kernels can read them
    bytes_asked = 0;
    plan(pool, seqs, ones, 3);
    size_t bytes = 4 * sizeof(SeqOffset) + 3 * sizeof(QueryToken) + 104 * sizeof(int);
    CHECK(bytes_asked <= sizeof(Plan) + bytes + bytes / 2 * 3 + 128);
    for (int layer = 0; layer < 2; layer++) CHECK_OK(pool_write(pool, layer, x, x));
    CHECK_OK(attend(pool, ATTEND_GATHER | ATTEND_FAST, 1, 2, 0, x, out, NULL));
    check_pool(pool);
    pool_destroy(pool);
    CHECK_EQ(num_live, before);
    for (int i = 0; i < 6; i++) {
        fail_after = i;
        CHECK_EQ(pool_create(&config, &pool), PAGED_OUT_OF_MEMORY);
        fail_after = -1;
        CHECK_EQ(num_live, before);
    }

    struct rusage at_first, in_the_end;
    PoolConfig large = {1, 1, 1, 1 << 19, 128, PAGED_F16, 1, PAGED_CPU};
    getrusage(RUSAGE_SELF, &at_first);
    CHECK_OK(pool_create(&large, &pool));
    getrusage(RUSAGE_SELF, &in_the_end);
    pool_destroy(pool);
    CHECK(in_the_end.ru_maxrss < 10 * at_first.ru_maxrss);
}

// ---- the plan of a step -----------------------------------------------------------------------

// Gathered and paged give the same bits, so only the workspace tells that a copy was made, by plain
// and by fast code. It grows to what a call needs, and stays: a smaller call does not make it anew.
TEST_ON(attend_gathers_into_a_dense_copy, ON_BOTH)
{
    enum { COUNT = 70 * 2 * 4 };  // tokens, KV heads, head_dim
    Pool *pool = new_pool(small_config(4, 20));
    Seq *seq = new_seq(pool, 70);
    float *k = filled(COUNT, 0), *v = filled(COUNT, 0), *copy = filled(COUNT, 0);
    float *q = random_floats(COUNT), *out = random_floats(COUNT);
    CHECK_OK(plan_one(seq, 70));
    CHECK_OK(t_attend(pool, ATTEND_PAGED, 1, 2, 0, q, out, NULL));
    CHECK_EQ(pool->workspace.bytes, 0);
    CHECK_OK(t_attend(pool, ATTEND_GATHER, 1, 2, 0, q, out, NULL));
    size_t bytes = pool->workspace.bytes;
    const void *workspace = pool->workspace.p;
    CHECK(bytes >= 3 * COUNT * sizeof(float) && bytes < 4 * COUNT * sizeof(float));
    rewind_seq(seq, 40);
    CHECK_OK(plan_one(seq, 1));
    for (int flags = ATTEND_GATHER; flags < 4; flags += 2) {  // other numbers, gathered once more
        const float *x = random_floats(8);
        CHECK_OK(t_write(pool, 1, x, x));
        oracle_write(oracle_of(seq), 1, 1, x, x);
        CHECK_OK(t_attend(pool, flags, 1, 2, 0, q, out, NULL));
        tensor_copy(pool, copy, (const float *)workspace, 30 * 8);
        CHECK_OK(t_gather(seq, 1, k, v));
        CHECK_BITS(copy, k, 30 * 8);
    }
    CHECK(pool->workspace.bytes == bytes && pool->workspace.p == workspace);
}

// More bytes of states than 32 bits count, and more splits than a grid can have: both are left to
// the plain kernel. Rows that may share a split have splits of one length, for which there is room.
TEST_ON(without_states_the_plain_kernel_runs, ON_DEVICE)
{
#if defined PAGED_FAST && defined HAS_STANDIN
    QueryToken *queries = (QueryToken *)alloc(1024 * sizeof *queries);  // 1024 * 2^22 is 2^32
    queries[1023].position = INT_MAX;
    int splits;
    CHECK_EQ(rows_together(queries, 1024, 1 << 20, &splits), 1023);
    for (int p = 0; p < 1 << 15; p++)
        CHECK(split_length(p) == split_length(p / 8 * 8) && split_length(p) <= MAX_SPLIT);
    const int lengths[] = {1 << 15, 1 << 26}, heads[] = {65535, 1}, dims[] = {256, 1};
    if (sizeof(size_t) < 8) skip("only where size_t has 64 bits");
    for (int i = 0; i < 2; i++) {
        PoolConfig config = {1, 1, dims[i], lengths[i], 1, PAGED_F16, 0, PAGED_CPU};
        Seq *seq = bare_seq(new_pool(config), lengths[i]);
        seq->num_computed_tokens = lengths[i];  // as if it had been written; it is not read
        CHECK_OK(plan_one(seq, 1));
        Job job = seq->pool->plan->job;
        job.num_q_heads = heads[i];
        bytes_asked = fail_after = 0;
        CHECK_EQ(attend_on_gpu(seq->pool, &job), -1);
        fail_after = -1;
        CHECK(i == 0 ? bytes_asked / 65535 / 64 >= 258 * sizeof(float) : bytes_asked == 0);
    }
#else
    skip("stand-in with -DPAGED_FAST only");
#endif
}

// A block of 65536 tokens and 65536 forks of it. More query tokens than an int counts are refused.
// One token each can be planned, but there is no memory for a dense copy of the 2^32 tokens that
// they see, and it is asked for in full; if size_t has 32 bits, not at all.
TEST_ON(tokens_of_all_sequences_are_counted_in_64_bits, ON_CPU)
{
    enum { LENGTH = 1 << 16, COUNT = LENGTH + 1 };
    Pool *pool = new_pool((PoolConfig){1, 1, 1, LENGTH, 1, PAGED_F16, 1, PAGED_CPU});
    Seq **seqs = (Seq **)alloc(COUNT * sizeof *seqs);
    int *counts = (int *)alloc(COUNT * sizeof *counts);
    float *x = filled(COUNT, 0);
    const Batch batch = {COUNT, seqs, counts};
    seqs[0] = bare_seq(pool, LENGTH);
    seqs[0]->num_computed_tokens = LENGTH;  // as if it had been written
    for (int i = 1; i < COUNT; i++) CHECK_OK(seq_fork(seqs[0], LENGTH, &seqs[i]));
    for (int i = 0; i < COUNT; i++) counts[i] = LENGTH;
    BAD(pool_plan(pool, &batch));
    for (int i = 0; i < COUNT; i++) counts[i] = 1;
    CHECK_OK(pool_plan(pool, &batch));
    const Job *job = &pool->plan->job;
    CHECK(dense_offset(job, job->offsets[LENGTH], 1, 0) == (size_t)LENGTH * LENGTH + 1);
    bytes_asked = fail_after = 0;
    KEEPS(pool, PAGED_OUT_OF_MEMORY, attend(pool, ATTEND_GATHER, 0, 1, 0, x, x, NULL));
    fail_after = -1;
    CHECK(bytes_asked / 4 > UINT32_MAX || (sizeof(size_t) < 8 && bytes_asked == 0));
}

// ---- check ------------------------------------------------------------------------------------

// Spoils a field while a statement runs: another DAMAGE, or REPORTS.
#define DAMAGE(field, wrong, statement) \
    do { \
        int64_t right_ = (int64_t)(field); \
        (field) = (wrong); \
        statement; \
        (field) = right_; \
    } while (0)
#define REPORTS(field, wrong, part) DAMAGE(field, wrong, CHECK_HAS(pool_check(pool), part))

TEST_ON(pool_check_finds_each_kind_of_damage, ON_CPU)
{
    Pool *pool = new_pool(small_config(4, 12));
    Block *b = pool->blocks;
    Seq *first = new_seq(pool, 1);
    Seq *a = new_seq(pool, 10);  // blocks 1 2 3
    release(first);              // free: 0 4 5 6 7 8 9 10 11
    fork_seq(a, 5);              // blocks 1 2
    const int before = num_live;
    REPORTS(b[1].ref_count, 3, "block 1: ref_count is 3, should be 2");
    REPORTS(b[7].ref_count, 1, "block 7: ref_count is 1, should be 0");
    REPORTS(pool->num_free, 10, "num_free is 10, should be 9");
    REPORTS(b[6].next, 6, "block 6 has a wrong link back");  // a circle
    REPORTS(b[6].next, 13, "13 is not a block");
    REPORTS(b[6].next, -1, "-1 is not a block");
    REPORTS(b[12].next, 4, "block 4 has a wrong link back");  // the sentinel loses block 0
    REPORTS(b[12].prev, 5, "wrong link back at the end");
    REPORTS(b[1].prev, 6, "block 1: in use, but linked");
    REPORTS(b[3].next, 6, "block 3: in use, but linked");
    REPORTS(a->block_table[1], 12, "entry 1 of its table is 12");
    REPORTS(a->block_table[1], -1, "entry 1 of its table is -1");
    REPORTS(a->index, 1, "sequence 0: wrong pool, or index 1");
    REPORTS(a->num_computed_tokens, 11, "sequence 0: num_computed_tokens is 11");
    REPORTS(a->num_computed_tokens, -1, "sequence 0: num_computed_tokens is -1");
    REPORTS(a->length, 13, "sequence 0: length 13, length of table 3");
    DAMAGE(a->num_computed_tokens, 8, REPORTS(a->length, 8, "length 8, length of table 3"));
    a->pool = NULL;
    CHECK_HAS(pool_check(pool), "sequence 0: wrong pool");
    a->pool = pool;
    CHECK_TEXT(pool_check(NULL), "no pool");
    // Damage in several places that agree with each other, so no single look sees it.
    DAMAGE(
        b[8].ref_count, 1,  // a free block is in a table, with the right count
        DAMAGE(b[3].ref_count, 0, REPORTS(a->block_table[2], 8, "free block 8: ref_count is 1")));
    DAMAGE(b[12].next, 4,  // block 0 is lost: not in a table, and not free
           DAMAGE(b[4].prev, 12,
                  REPORTS(pool->num_free, 8, "block 0: neither in use nor on the free list")));
    fail_after = 0;
    const char *text = pool_check(pool);
    fail_after = -1;
    CHECK_TEXT(text, "no memory for the check");
    CHECK_EQ(num_live, before);
}

// Blocks 0, 1, 3, 4 are published.
TEST_ON(pool_check_finds_damage_to_the_prefix_cache, ON_CPU)
{
    Pool *pool = new_pool(small_config(4, 8));
    Block *b = pool->blocks;
    Seq *seqs[] = {new_seq(pool, 9), new_seq(pool, 9)};
    for (int i = 0; i < 2; i++) publish(seqs[i], 9);
    release(seqs[1]);
    int *bucket = pool->buckets;
    while (*bucket < 0) bucket++;
    REPORTS(b[0].serial, 0, "leads to block 0");
    REPORTS(b[1].serial, 99, "block 1: published before its parent, or in the future");
    REPORTS(b[1].parent, 2, "block 1: published before its parent");  // it is its own
    REPORTS(pool->last_serial, 3, "block 4: published before its parent, or in the future");
    REPORTS(b[5].serial, 1, "block 6 comes after published ones");
    REPORTS(b[5].parent, 1, "block 5: a parent, but no serial");
    REPORTS(b[1].next_in_bucket, 1, "block 1 is in a list twice");
    REPORTS(b[1].next_in_bucket, 8, "leads to block 8");
    REPORTS(b[1].next_in_bucket, INT_MIN, "leads to block -2147483648");
    REPORTS(*bucket, 6, "leads to block 6");
    REPORTS(*bucket, -1, " of 4 published blocks");
    REPORTS(b[1].parent, 0, "block 1 is in the wrong bucket");
    REPORTS(pool->tokens[0], -1, "block 0 is in the wrong bucket");
    REPORTS(pool->tokens[3 * 4], -1, "block 3 is in the wrong bucket");  // it is free
}

// ---- numbers of 16 bits -----------------------------------------------------------------------

// What the bits mean, straight from the definition. The bits of infinity stand for the power of two
// that would come next: rounding up to it is how numbers become infinite.
static double value_of_bits(int dtype, int bits)
{
    const int width = dtype == PAGED_F16 ? 10 : 7;  // of the mantissa
    const int least = dtype == PAGED_F16 ? -24 : -133;
    const int exponent = bits >> width, mantissa = bits % (1 << width);
    return exponent ? ldexp((1 << width) + mantissa, exponent - 1 + least) : ldexp(mantissa, least);
}

// What a program may have set for all its floats: a rounding direction and, where the processor has
// it, that subnormal numbers are taken for 0. 0 is the default.
enum { SETTINGS = 8 };

static void set_floats(int setting)
{
    const int directions[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    CHECK_EQ(fesetround(directions[setting % 4]), 0);
#ifdef __SSE__
    const unsigned no_subnormals = 0x8040;  // neither as a result nor as an operand
    _mm_setcsr((_mm_getcsr() & ~no_subnormals) | (setting < 4 ? 0 : no_subnormals));
#endif
}

// Conversions under a setting. Compilers do not know of it: volatile keeps them from moving these.
static float read_under(int setting, float (*convert)(uint16_t), int bits)
{
    volatile uint16_t in = (uint16_t)bits;
    set_floats(setting);
    volatile uint32_t out = float_bits(convert(in));
    set_floats(0);
    return bits_float(out);
}

static int store_under(int setting, uint16_t (*convert)(float), float x)
{
    volatile uint32_t in = float_bits(x);
    set_floats(setting);
    volatile uint16_t out = convert(bits_float(in));
    set_floats(0);
    return out;
}

// All 65536 patterns there and back. Rounding never goes down as x grows, so what it makes of each
// tie and of the neighbours of a tie says all: even bits, and the nearest. NaN stays NaN.
static void convert_all(int dtype, int setting)
{
    float (*const read)(uint16_t) = dtype == PAGED_F16 ? f16_to_f32 : bf16_to_f32;
    uint16_t (*const store)(float) = dtype == PAGED_F16 ? f32_to_f16 : f32_to_bf16;
    const int infinity = dtype == PAGED_F16 ? 0x7c00 : 0x7f80;
    for (int bits = 0; bits < 65536; bits++) {
        const int magnitude = bits & 0x7fff;
        const float x = read_under(setting, read, bits);
        note("dtype %d, floats set to %d, bits %#x", dtype, setting, bits);
        if (magnitude > infinity) {
            CHECK(isnan(x));
            continue;
        }
        float right = magnitude == infinity ? INFINITY : (float)value_of_bits(dtype, magnitude);
        if (bits > magnitude) right = -right;
        CHECK(x == right);
        CHECK_EQ(store_under(setting, store, x), bits);
    }
    for (int bits = 0; bits < infinity; bits++) {
        float tie = (float)((value_of_bits(dtype, bits) + value_of_bits(dtype, bits + 1)) / 2);
        note("dtype %d, floats set to %d, above bits %#x", dtype, setting, bits);
        CHECK_EQ(store_under(setting, store, tie), bits + bits % 2);
        CHECK_EQ(store_under(setting, store, -nextafterf(tie, 0)), 0x8000 | bits);
        CHECK_EQ(store_under(setting, store, nextafterf(tie, INFINITY)), bits + 1);
    }
}

TEST_ON(every_16_bit_number_converts_exactly, ON_CPU)
{
    for (int i = 0; i < 2 * SETTINGS; i++) convert_all(PAGED_F16 + i % 2, i / 2);
    CHECK_EQ(f32_to_f16(NAN), 0x7e00);
    CHECK_EQ(f32_to_bf16(NAN), 0x7fc0);
    for (uint32_t nan = 0x7f800001; nan - 1 < 0x7fffffff; nan = nan * 2 - 0x7f800000) {
        float x = bits_float(nan);  // of one bit, another each time: none may become infinity
        CHECK(isnan(x) && isnan(f16_to_f32(f32_to_f16(x))) && isnan(bf16_to_f32(f32_to_bf16(x))));
    }
}

// ---- bugs that others shipped -----------------------------------------------------------------

// Unused slots of the last block may hold anything: NaN (every test with poison), infinity or 1e30,
// left there by other sequences (vLLM issue 641: 0 * NaN is NaN).
TEST_ON(unused_slots_may_hold_anything, ON_BOTH)
{
    const float garbage[] = {1e30f, -INFINITY, NAN};
    const int n = 32;
    for (int i = 0; i < 18; i++) {  // the fast path has its own way with them
        int dim = i < 9 ? 4 : 24;
        PoolConfig config = small_config(8, 4);
        config.dtype = i % 9 / 3;
        config.head_dim = dim;
        config.poison = 0;
        Pool *pool = new_pool(config);
        Seq *seq = new_seq(pool, n);
        check_all(pool);  // vectors must not be read past the last slot of the pool
        const float *x = filled(n * 2 * dim, garbage[i % 3]);
        CHECK_OK(store(seq, n, x, x));
        release(seq);
        seq = new_seq(pool, 11);
        check_all(pool);
        rewind_seq(seq, 1);
    }
}

// All tokens alike: the result is their value, whatever their score is. Far below any constant that
// might stand for minus infinity (FlashInfer issue 4450); beyond what a float holds, until it is
// scaled; and the lowest that it holds.
TEST_ON(equal_scores_of_any_size_weigh_the_same, ON_BOTH)
{
    const struct {
        int dim;
        float q, k, scale, v, score;
    } rows[] = {{128, 64, -64, 0, 1, -46340.95f},
                {1, 0x1p65f, 0x1p65f, 0x1p-126f, 2, 16},
                {64, 0x1p65f, 0x1p65f, 0x1p-126f, 2, 1024},
                {64, 0x1p110f, -1, 1, 1, -0x1p116f},
                {1, 0x1.fffffep0f, -0x1p127f, 1, 1, -FLT_MAX}};
    for (int i = 0; i < 5 * 2; i++) {
        const int dim = rows[i / 2].dim, n = 1 + 5 * (i % 10);
        float out[3 * 128], lse[3], v = rows[i / 2].v, score = rows[i / 2].score;
        const float *q = filled(3 * dim, rows[i / 2].q), *k = filled(n * dim, rows[i / 2].k);
        Seq *seq = seq_of(n, dim, i % 2 ? PAGED_BF16 : PAGED_F32, k, filled(n * dim, v));
        for (int way = 0; way < 8; way++) {
            int heads = way < 4 ? 1 : 3;
            note("row %d, %d tokens, %d heads, flags %d", i / 2, n, heads, way % 4);
            CHECK_OK(t_attend(seq->pool, way % 4, 0, heads, rows[i / 2].scale, q, out, lse));
            for (int d = 0; d < heads * dim; d++) CHECK_CLOSE(out[d], v, v);
            CHECK_CLOSE(lse[heads - 1], score + logf((float)n), fabs(score));
        }
    }
}

// Many small weights are not lost beside a large one, before or after it, nor among each other. The
// kernels, which are slow on the stand-in, add up fewer.
TEST_ON(long_sums_keep_their_small_terms, ON_BOTH)
{
    const struct {
        int n;
        float large, others;  // scores
        float large_v, v;
    } rows[] = {{300001, 0, -18, 0, 1},
                {1 << 18, 17, 0, -1, 0.3f},
                {1 << 15, 0, 0, 0.3f, 0.3f},
                {1 << 18, 0, 0, 0.3f, 0.3f},
                {65, 0, -FLT_MAX, 2, 1}};
    for (int j = 0; j < 5 * 2; j++) {
        const int i = j / 2, n = device == PAGED_CPU || i == 4 ? rows[i].n : rows[i].n / 512;
        const int at = j % 2 ? n - 1 : 0;                                     // the large score
        const double weight = (n - 1) * exp(rows[i].others - rows[i].large);  // of the others
        const double v = (rows[i].large_v + weight * rows[i].v) / (1 + weight);
        float *scores = filled((size_t)n, rows[i].others), *values = filled((size_t)n, rows[i].v);
        float q = 1, out = 0, lse = 0;
        scores[at] = rows[i].large;
        values[at] = rows[i].large_v;
        Seq *seq = seq_of(n, 1, PAGED_F32, scores, values);
        for (int flags = 0; flags < 4; flags++) {
            note("row %d, the large score at %d, flags %d", i, at, flags);
            CHECK_OK(t_attend(seq->pool, flags, 0, 1, 1, &q, &out, &lse));
            CHECK_CLOSE(out, (float)v, rows[i].v);
            CHECK_CLOSE(lse, (float)(rows[i].large + log1p(weight)), fabs(rows[i].large) + 12);
        }
    }
}

// ---- attention --------------------------------------------------------------------------------

// Up to the limits that paged.h names, the result is right. Beyond them a weight may be 0, and 0
// times an infinite V is NaN; or a sum may overflow. A result that is right there, too, is welcome.
TEST_ON(float32_ends_where_the_header_says, ON_BOTH)
{
    enum { PLAIN = 1, FAST = 2, KERNELS = 4 };  // the plain code of the CPU, fast/fast.c
    const struct {
        float score, v, other_v;  // the largest score is 0, in the middle; v: before it, or after
        float right, limit;       // NaN will do, or anything if this is INFINITY, ...
        int where;                // ... where float32, or double, is at its end
    } rows[] = {{-86, INFINITY, 1, INFINITY, NAN, 0},
                {-105, INFINITY, 1, INFINITY, NAN, FAST | KERNELS},
                {-752, INFINITY, 1, INFINITY, NAN, PLAIN | FAST | KERNELS},
                {0, 1e38f, 1e38f, 1e38f, INFINITY, FAST | KERNELS},  // 9 times that
                {0, 3e37f, 3e37f, 3e37f, 0, 0},
                {0, 1e-34f, 1e-34f, 1e-34f, 0, 0},
                {-INFINITY, NAN, 1, NAN, 0, 0}};
    for (int i = 0; i < 7 * 4; i++) {
        const int row = i / 4, dtype = i / 2 % 2 ? PAGED_BF16 : PAGED_F32;
        const float q[8] = {1}, right = rows[row].right, limit = rows[row].limit;
        float k[9 * 8] = {0}, v[9 * 8] = {0}, out[8];
        for (int t = 0; t < 9; t++) {
            k[t * 8] = t == 4 ? 0 : rows[row].score;
            v[t * 8] = (i % 2 ? t : 8 - t) < 4 ? rows[row].v : rows[row].other_v;
        }
        Seq *seq = seq_of(9, 8, dtype, k, v);
        for (int flags = 0; flags < 4; flags++) {
            int here = KERNELS;
            if (device == PAGED_CPU) here = flags >= ATTEND_FAST && LANES > 0 ? FAST : PLAIN;
            CHECK_OK(t_attend(seq->pool, flags, 0, 1, 1, q, out, NULL));
            note("row %d, dtype %d, flags %d: %g", row, dtype, flags, out[0]);
            if (rows[row].where & here && (limit == INFINITY || isnan(out[0]))) continue;
            if (isnan(right) && isnan(out[0])) continue;
            CHECK(out[0] == right || fabsf(out[0] / right - 1) < 5e-3f);
        }
    }
}

// The plain code of the CPU has no such limits: scores of 10^40; V of 3e38 beside a score of 200.
TEST_ON(doubles_hold_what_floats_do_not, ON_CPU)
{
    const struct {
        float k[2], v[2], q, right;
    } rows[] = {{{1e20f, 2e20f}, {1, 2}, 1e20f, 2},
                {{-1e20f, -2e20f}, {1, 2}, 1e20f, 1},
                {{0, 200}, {3e38f, 1}, 1, 1}};
    for (int i = 0; i < 3; i++) {
        float out = 0;
        Seq *seq = seq_of(2, 1, PAGED_F32, rows[i].k, rows[i].v);
        CHECK_OK(t_attend(seq->pool, ATTEND_PAGED, 0, 1, 1, &rows[i].q, &out, NULL));
        CHECK(out == rows[i].right);
    }
}

// The plain code of the CPU and the oracle compute in double: what they give is a result in long
// double, rounded once. Scores are near 50000, where floats are 0.004 apart, and 400 equal weights,
// each with the same error if it is rounded, are beside a large one of another value.
TEST_ON(doubles_are_rounded_once, ON_CPU)
{
    enum { N = 401 };
    for (int i = 0; i < 40; i++) {
        float k[N * 2], v[N * 2], out[2][2], lse[2];
        const float q[] = {1.5f + random_float() / 4, 1.5f + random_float() / 4};
        const float base[] = {16000 + random_float(), 16000 + random_float()};
        for (int j = 0; j < N * 2; j++) {
            k[j] = j / 2 == i ? base[j % 2] + 2 : base[j % 2];
            v[j] = (j / 2 == i ? 0.1f : 1.5f) + random_float() / 16;
        }
        long double sums[3] = {0}, top = 0;  // of weights, and times V
        for (int t = 0; t < N; t++)
            top = fmaxl(top, (long double)q[0] * k[2 * t] + (long double)q[1] * k[2 * t + 1]);
        for (int t = 0; t < N; t++) {
            long double score = (long double)q[0] * k[2 * t] + (long double)q[1] * k[2 * t + 1];
            long double weight = expl(score - top);
            sums[2] += weight;
            for (int d = 0; d < 2; d++) sums[d] += weight * v[2 * t + d];
        }
        Seq *seq = seq_of(N, 2, PAGED_F32, k, v);
        CHECK_OK(t_attend(seq->pool, ATTEND_PAGED, 0, 1, 1, q, out[0], &lse[0]));
        Oracle *oracle = oracle_create(&seq->pool->config, N);
        oracle->length = N;
        oracle_write(oracle, 0, N, k, v);
        oracle_attend(oracle, 0, 1, 1, 1, q, out[1], &lse[1]);
        oracle_release(oracle);
        for (int j = 0; j < 2 * 3; j++) {  // of a float, half a unit of the last place, and no more
            int which = j / 3, d = j % 3;
            long double right = d == 2 ? top + logl(sums[2]) : sums[d] / sums[2];
            long double got = d == 2 ? lse[which] : out[which][d];
            note("case %d, %s, result %d", i, which ? "the oracle" : "attend()", d);
            CHECK(fabsl(got / right - 1) < 0x1.02p-24);
        }
    }
}

// In the vectors of fast/fast.c, exp() is a series, and exact to a few units in the last place.
// Sums lose nothing to rounding, neither a small sum before a large term nor the other way round.
// All numbers of 16 bits are read as they are.
TEST_ON(vectors_compute_as_exactly_as_scalars, ON_CPU)
{
#if LANES
    for (int i = 0; i < 2 * SETTINGS * 65536; i += LANES) {
        const int dtype = PAGED_F16 + i / 65536 % 2;
        float expected[LANES];
        uint16_t in[LANES];
        for (int lane = 0; lane < LANES; lane++) in[lane] = (uint16_t)(i + lane);
        for (int lane = 0; lane < LANES; lane++) expected[lane] = load_element(in, lane, dtype);
        set_floats(i / 65536 / 2);
        volatile Vec out = load_lanes((const char *)in, dtype);
        set_floats(0);
        note("dtype %d, floats set to %d, bits %#x", dtype, i / 65536 / 2, in[0]);
        CHECK_BITS((const float *)&out, expected, LANES);
    }
    for (double x = 0; x > -87; x -= 1.0 / 512)
        CHECK(fabs(exp_lanes((Vec){0} + (float)x)[0] / exp(x) - 1) < 3e-7 - 1.2e-7 * x);
    const float terms[] = {0.1f, 1e6f, -1e6f};
    Query query;
    memset(&query, 0, sizeof query);
    for (int i = 0; i < 3; i++) add_exactly(&query, 0, (Vec){0} + terms[i]);
    CHECK(query.sum[0][0] + query.lost[0][0] == 0.1f);
#else
    skip("this build has no vectors");
#endif
}

// Queries far larger and far smaller than f16 holds, infinite ones, and of more bits: two tokens
// have the same score, a large q times a small K or the other way round, but for bits 9 on of q.
TEST_ON(queries_may_be_of_any_size, ON_BOTH)
{
    const float sizes[] = {0x1p-10f, 1, 0x1p20f};
    for (int i = 0; i < 3 * 3; i++) {
        float k[2 * 8] = {32 / sizes[i / 3]}, v[2 * 8] = {1}, q[2 * 2 * 8] = {0}, out[2 * 2 * 8],
                    lse[4];
        for (int h = 0; h < 4; h++) {
            q[h * 8] = (1 + 0x1.5554p-9f) * sizes[i / 3];
            q[h * 8 + 1] = 1 * sizes[i / 3];
        }
        k[8 + 1] = k[0];
        v[8] = -1;
        note("dtype %d, queries of %g", i % 3, sizes[i / 3]);
        Seq *seq = seq_of(2, 8, i % 3, k, v);
        CHECK_OK(plan_one(seq, 2));
        for (int flags = 0; flags < 4; flags++) {
            CHECK_OK(t_attend(seq->pool, flags, 0, 2, 1, q, out, lse));
            CHECK_CLOSE(out[16], tanhf(16 * 0x1.5554p-9f), 1);
        }
        for (int d = 0; d < 16; d++) k[d] = 1;
        for (int h = 0; h < 4; h++) q[h * 8] = -INFINITY;  // and so are all scores
        CHECK_OK(store(seq, 2, k, v));
        for (int flags = 0; flags < 4; flags++) {
            CHECK_OK(t_attend(seq->pool, flags, 0, 2, 1, q, out, lse));
            CHECK(out[16] == 0 && lse[3] == -INFINITY);
        }
    }
}

// As many query heads as there may be, each with a KV head of its own. With one token, the result
// is its V. (The number of a head times that of all heads is more than an int.)
TEST_ON(every_query_head_finds_its_kv_head, ON_CPU)
{
    enum { HEADS = PAGED_MAX_Q_HEADS };
    Seq *seq = bare_seq(new_pool((PoolConfig){1, HEADS, 1, 1, 1, PAGED_F32, 1, PAGED_CPU}), 1);
    const float *v = random_floats(HEADS);
    float *out = filled(HEADS, 0);
    CHECK_OK(store(seq, 1, v, v));
    for (int flags = 0; flags < 4; flags++) {
        CHECK_OK(t_attend(seq->pool, flags, 0, HEADS, 0, v, out, NULL));
        CHECK_BITS(out, v, HEADS);
    }
}

TEST_ON(tensors_live_where_the_pool_lives, ON_BOTH)
{
    Pool *pool = new_pool(small_config(4, 2));
    const size_t too_large[] = {0, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX / 4 - 10, SIZE_MAX / 4 + 2};
    const float *x = random_floats(100);
    float *y = filled(101, 7), *a = tensor_create(pool, 100), *b = tensor_create(pool, 100);
    CHECK(a && b);
    tensor_copy(pool, a, x, 100);
    tensor_copy(pool, b, a, 100);
    tensor_copy(pool, y, b, 100);
    CHECK_BITS(y, x, 100);
    CHECK(y[100] == 7);
    tensor_copy(pool, NULL, x, 100);
    tensor_copy(pool, y, NULL, 100);
    tensor_copy(NULL, y, x, 1);
    for (int i = 0; i < 5; i++) CHECK(!tensor_create(pool, too_large[i]));
    CHECK(!tensor_create(NULL, 100));
    tensor_free(pool, a);
    tensor_free(pool, b);
    tensor_free(pool, NULL);
    tensor_free(NULL, y);
}

// ---- random tests -----------------------------------------------------------------------------

// K and V out of the ordinary (wild), crossed by chance: scores far below the others, or minus
// infinity, which weigh nothing even where they fill whole tiles, warps and splits and nothing else
// has been seen; NaN and infinity, which are not lost; huge values. A row that sees only minus
// infinity gives 0, and -infinity as lse. A failing draw is the first of its --seed.
TEST_ON(extreme_values_agree_with_the_oracle, ON_BOTH)
{
    const int dims[] = {1, 4, 8, 20, 64, 128}, one = 1;
    const char *const places[] = {"at", "before", "from", "at every fourth, as", "not at, as"};
    int draws = times(on_stand_in() ? 60 : 300, 2);
    wild = 1;
    for (int i = 0; i < draws; i++) {
        random_state = (seed + i) * 0x9e3779b97f4a7c15u;
        int turn = (int)((seed + i) % 4), n = turn == 0 ? between(510, 600) : between(1, 50);
        int leading = turn == 1 ? n : 0;  // of score -infinity
        if (turn == 0) leading = n - between(0, 90);
        PoolConfig config = {1, 1,        dims[between(0, 5)], 4, (n + 3) / 4, between(0, 2),
                             1, PAGED_CPU};
        Pool *pool = new_pool(config);
        Seq *seq = empty_seq(pool, n);
        CHECK_OK(make_room(seq, n));
        int *tokens = *tokens_of(seq);
        note("--seed %llu: head_dim %d, dtype %d, %d tokens, the first %d of score -infinity",
             (unsigned long long)seed + i, config.head_dim, config.dtype, n, leading);
        for (int t = 0; t < n; t++) tokens[t] = t < leading ? -MINUS_INFINITY : between(0, 1 << 30);
        for (int kinds = between(0, turn == 1 ? 1 : 3); kinds > 0; kinds--) {
            int kind = 1 << between(0, between(0, 1) ? 2 : 7);
            if (kind == HUGE_V && config.dtype == PAGED_F16) kind = NAN_IN_V;  // it has no 3e35
            int at = between(0, n - 1), where = between(0, 4);
            note("%s", format_text("%s; kind %d %s token %d", noted, kind, places[where], at));
            for (int t = 0; t < n; t++) {
                const int here[] = {t == at, t < at, t >= at, t % 4 == at % 4, t % 4 != at % 4};
                int before = tokens[t] < 0 ? -tokens[t] : 0;
                if (kind <= PLUS_INFINITY) before &= HUGE_V | NAN_IN_K | NAN_IN_V;  // one score
                if (kind == INFINITE_V) before = 0;  // times a weight of 0 it would be NaN
                if (here[where]) tokens[t] = -(before | kind);
            }
        }
        compute(&seq, &n, 1);
        attend_in_all_ways(&seq, &one, 1, 1, 1);
        attend_in_all_ways(&seq, &one, 1, 3, 1);
        release(seq);
        end_pool(pool);
        free_to(0);
    }
}

// Sequences of n lengths, the longest last, each with its newest token as a query. They are forks
// of one, of which the kernel writes the newest tokens. (The stand-in is slow: the earlier ones are
// written as on the CPU.)
static void check_lengths(PoolConfig config, int num_q_heads, const int *lengths, int n)
{
    const int ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, newest = 2, longest = lengths[n - 1];
    Seq *seqs[9];
    config.num_blocks = ceil_div(longest, config.block_size) + n;
    Pool *pool = new_pool(config);
    shuffle_free_list(pool);
    if (on_stand_in()) pool->config.device = PAGED_CPU;
    Seq *seq = new_seq(pool, longest - newest);
    pool->config.device = device;
    append(seq, newest);
    if (ways == ALL_WAYS) check_seq(seq);
    for (int i = 0; i < n; i++) seqs[i] = fork_seq(seq, lengths[i]);
    plan(pool, seqs, ones, n);
    attend_to_layer(0, seqs, ones, n, num_q_heads, 0);
    while (arrlen(pool->seqs) > 0) release(arrlast(pool->seqs));
    end_pool(pool);
    free_to(0);
}

// Which elements a thread has, and where the ends of tiles and splits fall, depends on head_dim, on
// how many tokens a row sees, and on the dtype. So each head_dim meets each dtype and each of these
// lengths; block sizes and heads take turns. By --quick, and on a stand-in with the plain code
// alone, the short ones meet attend_paged() only, in one head.
TEST_ON(every_shape_agrees_with_the_oracle, ON_BOTH)
{
    const int few[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, many[] = {127, 128, 129, 257};
    const int block_sizes[] = {1, 2, 3, 16};
    const int heads[8][2] = {{1, 8}, {1, 1}, {2, 2}, {1, 1}, {1, 4}, {1, 1}, {2, 4}, {1, 1}};
    const int brief = quick || (on_stand_in() && NUM_WAYS != 4);
    for (int dim = 1; dim <= PAGED_MAX_HEAD_DIM; dim++) {
        const int *kv_and_q = heads[brief ? 1 : dim % 8];
        for (int dtype = PAGED_F32; dtype <= PAGED_BF16; dtype++) {
            PoolConfig config = small_config(block_sizes[(dim + dtype) % 4], 0);
            config.num_layers = 1;
            config.num_kv_heads = kv_and_q[0];
            config.head_dim = dim;
            config.dtype = dtype;
            note("head_dim %d, dtype %d, block size %d", dim, dtype, config.block_size);
            ways = brief ? PAGED_ONLY : ALL_WAYS;
            check_lengths(config, kv_and_q[1], few, 9);
            ways = NOT_GATHERED;
            if (!brief) check_lengths(config, kv_and_q[1], many, 4);
        }
    }
}

// Each of the fast kernels: tensor cores are for 16 bits, and vectors of at most 128 elements, a
// multiple of 8; groups of one, four and eight in turn. Then lengths around the ends of their
// splits, 128 to 512 tokens, and groups that fill a tile of query heads, overflow it, or take
// several; the last two are as large as the CPU takes at once, and larger.
TEST_ON(every_kernel_agrees_with_the_oracle, ON_BOTH)
{
    const int dims[] = {64, 96, 136, 20}, groups[] = {1, 4, 8};
    const int more[][4] = {
        {PAGED_BF16, 127, 9, 24},  {PAGED_BF16, 40, 8, 256}, {PAGED_F16, 128, 1, 128},
        {PAGED_BF16, 129, 17, 8},  {PAGED_F32, 256, 2, 64},  {PAGED_F16, 260, 4, 80},
        {PAGED_BF16, 146, 3, 128}, {PAGED_F16, 70, 8, 84},   {PAGED_F16, 70, 2, 20},
        {PAGED_F32, 8200, 1, 8},   {PAGED_F16, 20, 64, 128}, {PAGED_F32, 20, 65, 64},
        {PAGED_BF16, 2049, 2, 8},  {PAGED_F16, 16385, 1, 8}};
    int plain = on_stand_in() && NUM_WAYS != 4;  // there it is slow, and has no splits
    for (int i = 0; i < 12 + (plain ? 2 : 14); i++) {
        const int few[4] = {i / 4, 11, groups[i % 3], dims[i % 4]};
        const int *shape = i < 12 ? few : more[i - 12], counts[] = {2, 1};
        PoolConfig config = {1, 1, shape[3], 16, 3 + shape[1] / 16, shape[0], 1, PAGED_CPU};
        if (i < 12) config.num_layers = config.num_kv_heads = 2;
        note("dtype %d, length %d, group %d, head_dim %d", shape[0], shape[1], shape[2], shape[3]);
        if (SEES_RACES && quick && (shape[1] > 256 || i % 4 == 3)) continue;
        Pool *pool = new_pool(config);
        shuffle_free_list(pool);
        Seq *seqs[] = {new_seq(pool, shape[1]), new_seq(pool, 3)};  // the longest comes first
        attend_in_all_ways(seqs, counts, 2, shape[2] * config.num_kv_heads, 0);
#ifdef HAS_STANDIN
        if (on_stand_in())  // the last launch
            CHECK_TEXT(gpu.name, NUM_WAYS == 4 ? "merge_splits" : "attend_paged");
#endif
        end_pool(pool);
    }
}

// Tensor cores take q in two parts of 11 bits, too few for this one. The state has the score.
TEST_ON(tensor_cores_take_16_bits, ON_DEVICE)
{
    if (NUM_WAYS != 4) skip("-DPAGED_FAST only");
#ifdef __CUDACC__
    cudaDeviceProp gpu;
    CUDA(cudaGetDeviceProperties(&gpu, 0));
    if (gpu.major < 8) skip("this GPU has none for tf32");
#endif
    for (int i = 0; i < 6; i++) {
        const int dtype = i % 3, dim = 64 << i / 3;
        Pool *pool = seq_of(1, dim, dtype, filled(dim, 1), filled(dim, 1))->pool;
        float max = 0, *q = filled(dim, 0);
        q[0] = 0x1.001002p0f;
        CHECK_OK(t_attend(pool, ATTEND_FAST, 0, 1, 1, q, filled(dim, 0), NULL));
        memory_copy(device, &max, pool->states.p, sizeof max);
        CHECK_EQ(max == q[0], dtype == PAGED_F32);
        CHECK_EQ(max == 0x1.001p0f, dtype != PAGED_F32);
    }
}

// One random operation on one of the sequences. Returns 0 if it was an append that was refused. Not
// inlined, so that a debugger can stop at it.
__attribute__((noinline)) static int random_operation(Pool *pool, Seq *seq, int may_create)
{
    int b = pool->config.block_size, all = pool->config.num_blocks * b;
    int choice = seq ? between(0, 19) : 0, sometimes = between(0, 3) == 0;
    if (choice <= 1) {
        if (may_create) new_seq(pool, 0);
    } else if (choice <= 7) {
        int n = sometimes ? between(0, 3 * b) : between(0, 3);
        if (between(0, 200) == 0) n = all;
        if (make_room(seq, n) != PAGED_OK) return 0;
        compute(&seq, &n, 1);
    } else if (choice <= 10) {
        if (may_create) fork_seq(seq, sometimes ? between(0, seq->length) : seq->length);
    } else if (choice <= 12) {
        rewind_seq(seq, between(0, sometimes ? seq->length : min_int(seq->length, b)));
    } else if (choice <= 16) {
        if (choice < 16) publish(seq, sometimes ? between(0, seq->length) : seq->length);
        if (choice > 14 && may_create) look_up(new_seq(pool, 0), *tokens_of(seq), seq->length);
    } else if (choice == 17) {  // a prompt that none has now, but that may have been published
        int *tokens = (int *)alloc((size_t)all * sizeof *tokens);
        if (between(0, 1)) tokens[between(0, all - 1)] = 1;
        if (seq->length == 0)
            look_up(seq, tokens, between(0, all));
        else if (may_create)
            look_up(new_seq(pool, 0), tokens, between(0, all));
    } else {
        release(seq);
    }
    return 1;
}

// How many of the newest n tokens of a sequence can be attended to, out of what is left of *budget.
// The oracle is slow for each element of V that a query sees, the stand-in for each token.
static int affordable(const Seq *seq, int n, int num_q_heads, double *budget)
{
    double cost = (double)seq->length * num_q_heads;
    if (!on_stand_in()) cost *= seq->pool->config.head_dim;
    if (n * cost > *budget) n = (int)(*budget / cost);
    *budget -= n * cost;
    return n;
}

// A step of a model. Of the sequences, some take no token, others one, a chunk, or a draft. All new
// ones are written in one batch and attended to in one, and drafts are dropped again.
static void random_step(Pool *pool, int num_q_heads, int chunk)
{
    int count = (int)arrlen(pool->seqs), first = between(0, count - 1);
    Seq *seqs[MAX_SEQS] = {NULL};
    int new_tokens[MAX_SEQS] = {0}, num_tokens[MAX_SEQS] = {0}, drafts[MAX_SEQS];
    double budget = on_stand_in() ? 600 : 100000;
    for (int i = 0; i < count; i++) {
        Seq *seq = seqs[i] = pool->seqs[(first + i) % count];
        int n = 0;
        if (between(0, 2) > 0) n = between(1, between(0, 2) ? 2 : chunk);
        if (make_room(seq, n) != PAGED_OK) n = 0;
        new_tokens[i] = n;
        drafts[i] = between(0, 2) ? 0 : between(0, n);
    }
    compute(seqs, new_tokens, count);
    for (int i = 0; i < count; i++) {
        int n = min_int(new_tokens[i] + between(0, 2), seqs[i]->length);
        num_tokens[i] = affordable(seqs[i], n, num_q_heads, &budget);
        if (i == 0 && n > 0 && num_tokens[i] == 0) num_tokens[i] = 1;
    }
    const float scales[] = {0, 0, 0.125f, -0.3f, 1e-30f};
    attend_in_all_ways(seqs, num_tokens, count, num_q_heads, scales[between(0, 4)]);
    for (int i = 0; i < count; i++) rewind_seq(seqs[i], drafts[i]);
}

static int some_block_size(void)
{
    const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 32, 33, 256};
    return sizes[between(0, 12)];
}

// What comes out for a token depends on its sequence alone. One sequence of the pool is attended to
// in company; then it is built anew in another pool, in blocks of another size, chunk by chunk, and
// attended to alone, by another number of threads: every bit is the same.
static void check_same_bits(Pool *pool, int num_q_heads, int flags)
{
    int count = (int)arrlen(pool->seqs), which = between(0, count - 1), first = 0;
    int layer = between(0, pool->config.num_layers - 1), num_tokens[MAX_SEQS];
    Seq *seq = pool->seqs[which];
    double budget = on_stand_in() ? 600 : 1e6;
    int n = affordable(seq, min_int(seq->length, 40), num_q_heads, &budget);
    size_t row = (size_t)num_q_heads * pool->config.head_dim, rows = 0;
    for (int i = 0; i < count; i++) {
        num_tokens[i] = i == which ? n : min_int(pool->seqs[i]->length, between(0, 2));
        if (i < which) first += num_tokens[i];
        rows += num_tokens[i];
    }
    if (n == 0) return;
    float *q = random_floats(rows * row), *out = filled(rows * row, 0);
    float *lse = filled(rows * num_q_heads, 0);
    plan(pool, pool->seqs, num_tokens, count);
    CHECK_OK(t_attend(pool, flags, layer, num_q_heads, 0, q, out, lse));

    PoolConfig config = pool->config;
    config.block_size = some_block_size();
    config.num_blocks = seq->length / config.block_size + 3;
    Pool *other = new_pool(config);
    shuffle_free_list(other);
    Seq *copy = empty_seq(other, seq->length);
    float *own_out = filled(n * row, 0), *own_lse = filled((size_t)n * num_q_heads, 0);
    for (int chunk; copy->length < seq->length;) {
        int missing = seq->length - copy->length;
        chunk = min_int(missing, between(1, between(0, 1) ? 7 : 99));
        CHECK_OK(make_room(copy, chunk));
        memcpy(*tokens_of(copy), *tokens_of(seq), copy->length * sizeof(int));
        compute(&copy, &chunk, 1);
        if (missing - chunk >= n) continue;
        int newest = min_int(chunk, n + chunk - missing), at = n + chunk - missing - newest;
        const float *own_q = q + (first + at) * row;
        omp_set_num_threads(between(1, 4));
        CHECK_OK(plan_one(copy, newest));
        CHECK_OK(
            t_attend(other, flags ^ between(0, 1), layer, num_q_heads, 0, own_q, own_out, own_lse));
        CHECK_BITS(own_out, out + (first + at) * row, newest * row);
        CHECK_BITS(own_lse, lse + (first + at) * num_q_heads, newest * num_q_heads);
        omp_set_num_threads(omp_get_num_procs());
    }
    release(copy);
    end_pool(other);
}

// Random operations in a pool that keeps running out, compared with the oracle after each one; every
// so often a step. Sequences often begin alike (token_odds), so that the prefix cache has hits, some
// of the time with all blocks in one bucket. What fails says which operation it was, so that gdb can
// stop there.
static void operate(PoolConfig config, int operations)
{
    const int every = on_stand_in() ? 500 : 50, num_q_heads = 2 * between(1, 3);
    int refused = 0;
    Pool *pool = new_pool(config);
    if (!config.poison) fill_planes(pool, 0);  // for valgrind: all bytes are compared
    const char *shape = format_text("%s", noted);
    if (between(0, 3) == 0) pool->num_buckets = 1;
    token_odds = between(0, 3) ? 4 * config.block_size : 0;
    for (int i = 0; i < operations; i++) {
        size_t mark = num_allocs;
        int count = (int)arrlen(pool->seqs);
        Seq *seq = count > 0 ? pool->seqs[between(0, count - 1)] : NULL;
        operation = operation + 1;
        note("%s\n  in gdb: break random_operation if operation == %d", shape, operation);
        if (!random_operation(pool, seq, count < MAX_SEQS)) refused++;
        check_pool(pool);
        count = (int)arrlen(pool->seqs);
        for (int j = 0; j < count; j++)  // the one it was, if it is still there, or any other
            if (pool->seqs[j] == seq || between(0, 15) == 0) check_seq(pool->seqs[j]);
        if (i % every == 0 && count > 0) random_step(pool, num_q_heads, 3 * config.block_size);
        free_to(mark);
    }
    if (operations > 1000) CHECK(refused > 0 && (config.block_size == 1 || pool->num_copies > 0));
    if (arrlen(pool->seqs) > 0) check_same_bits(pool, num_q_heads, between(0, NUM_WAYS - 1));
    end_pool(pool);
    token_odds = 0;
}

// A small shape with many operations, in every dtype and many block sizes.
TEST_ON(random_operations_agree_with_the_oracle, ON_BOTH)
{
    const int block_sizes[] = {1, 2, 3, 4, 5, 7, 8, 16, 32};
    for (int i = 0; i < 27; i++) {
        PoolConfig config = small_config(block_sizes[i / 3], between(6, 30));
        config.dtype = i % 3;
        config.poison = between(0, 1);
        note("block size %d, dtype %d", config.block_size, config.dtype);
        operate(config, times(num_operations, 20) / (on_stand_in() ? 1350 : 27));
    }
    if (!on_stand_in() && num_operations == OPERATIONS) CHECK(tokens_found > 1000);
}

static void some_operations(Pool *pool, int count)
{
    for (int i = 0; i < count; i++) {
        int last = (int)arrlen(pool->seqs) - 1;
        random_operation(pool, last < 0 ? NULL : pool->seqs[between(0, last)], last < 7);
        if (i % 4 == 0 && arrlen(pool->seqs) > 0)
            random_step(pool, 2 * pool->config.num_kv_heads, 5);
        for (int j = 0; j < (int)arrlen(pool->seqs); j++) check_seq(pool->seqs[j]);
    }
}

// When the machine has no memory left, calls fail as cleanly as ever. In the first run of some
// operations the first allocation fails, in the next one the second, until a run goes through; all
// that follow in the same call fail, too, or none does.
TEST_ON(a_call_without_memory_changes_nothing, ON_BOTH)
{
    const int slow = device != PAGED_CPU;  // some thousand launches are enough
    for (int i = 0; i < (quick || slow ? 2 : 4); i++) {
        int run = 0;
        fail_all = i % 2;
        do {
            note("block size %d, run %d", 3 + i, run);
            random_state = seed;
            fault_after = run++;
            Pool *pool = new_pool((PoolConfig){2, 1, 4, 3 + i, 16, i % 3, 1, PAGED_CPU});
            faulty_pool = pool;
            some_operations(pool, slow ? 12 : 60);
            end_pool(pool);
            faulty_pool = NULL;
        } while (fault_after < 0);
        fault_after = -1;
        CHECK(run > 5);
    }
}

// Shapes for which chunks, blocks and tiles end in different places.
TEST_ON(results_have_the_same_bits_however_cut, ON_BOTH)
{
    for (int i = 0; i < (on_stand_in() ? 6 : 24); i++) {
        int b = some_block_size(), dim = i % 4 < 2 ? 64 : 20;
        note("block size %d, head_dim %d, dtype %d", b, dim, i % 3);
        Pool *pool = new_pool((PoolConfig){1, 1 + i % 2, dim, b, 160 / b + 3, i % 3, 1, PAGED_CPU});
        shuffle_free_list(pool);
        new_seq(pool, 75);
        new_seq(pool, 50 + i);
        for (int flags = 0; flags < NUM_WAYS; flags++) check_same_bits(pool, 4, flags);
    }
}

// Among longer and shorter sequences, with splits of other lengths, a row gets every bit that it
// has alone, even where the room for states is so small that rows are taken one by one. Its
// neighbours in a chunk see more or fewer tokens; what only the last one sees is NaN. The second
// sequence begins at the position after it.
TEST_ON(a_row_has_the_same_bits_in_any_company, ON_BOTH)
{
    const int counts[] = {12, 3, 1}, groups[] = {1, 3, 4, 9};
    for (int i = 0; i < 4; i++) {
        const int group = groups[i], lengths[] = {131, i == 0 ? 2050 : 134, 1};
        const int dtype = group == 4 ? PAGED_F32 : 1 + i % 2;
        Pool *pool = new_pool((PoolConfig){1, 1, 8, 16, 300, dtype, 1, PAGED_CPU});
        Seq *seqs[3];
        for (int s = 0; s < 3; s++) seqs[s] = new_seq(pool, lengths[s]);
        CHECK_OK(store(seqs[0], 1, filled(8, -NAN), filled(8, -NAN)));
        float *q = random_floats(16 * 9 * 8), *own = filled(9 * 8, 0), *own_lse = filled(9, 0);
        for (int way = 0; way < NUM_WAYS - 1; way++) {  // plain, fast with little room, fast
            int flags = way > 0 ? ATTEND_FAST : ATTEND_PAGED;
            float *out = filled(16 * 9 * 8, 0), *lse = filled(16 * 9, 0);
            Batch batch = {3, seqs, counts};
#ifdef PAGED_FAST
            const int few = i % 2 ? 1 : 5 * group * (8 + 2) * sizeof(float);  // for 5 splits
            states_limit = way == 1 ? few : STATES_LIMIT;
#endif
            CHECK_OK(pool_plan(pool, &batch));
            CHECK_OK(t_attend(pool, flags, 0, group, 0, q, out, NULL));
            CHECK_OK(t_attend(pool, flags, 0, group, 0, q, out, lse));
            float *q_and_out = tensor_create(pool, 16 * group * 8), *copy = filled(16 * 9 * 8, 0);
            tensor_copy(pool, q_and_out, q, 16 * group * 8);
            CHECK_OK(attend(pool, flags, 0, group, 0, q_and_out, q_and_out, NULL));
            tensor_copy(pool, copy, q_and_out, 16 * group * 8);
            tensor_free(pool, q_and_out);
            CHECK_BITS(copy, out, 16 * group * 8);
#if defined PAGED_FAST && defined HAS_STANDIN
            states_limit = STATES_LIMIT;
            size_t states = (size_t)count_splits(lengths[1] - 1) * group * (8 + 2);
            if (flags && on_stand_in()) CHECK(pool->states.bytes >= states * sizeof(float));
            const int one_row = 16 * group * (8 + 2) * (int)sizeof(float);  // of at most 16 splits
            if (way == 1 && on_stand_in())                                  // half as much again
                CHECK(pool->states.bytes <= (size_t)(few > one_row ? few : one_row) * 3 / 2);
            Job job = pool->plan->job;  // of 14 rows, each is in one thread block
            const QueryToken *queries = job.queries;
            job.num_query_tokens = 14;
            CHECK_EQ(rows_together(queries, 14, 5, &job.splits), 5);  // of one split each
            const int sharing[14] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 0, 0, 2, 0};
            for (int row = 0; row < 14 && i > 0; row++) {
                QueryToken before = queries[row - min_int(row, 1)];
                int n = rows_sharing(&job, row, queries[row], before, lengths[queries[row].seq], 8,
                                     128);
                CHECK_EQ(n, sharing[row]);
            }
#endif
            for (int s = 0, row = 0; s < 3; s++)
                for (int t = lengths[s] - counts[s]; t < lengths[s]; t++, row++) {
                    Seq *alone;
                    note("group %d, way %d, row %d: position %d", group, way, row, t);
                    CHECK_OK(seq_fork(seqs[s], t + 1, &alone));
                    CHECK_OK(plan_one(alone, 1));
                    CHECK_OK(t_attend(pool, flags, 0, group, 0, q + row * group * 8, own, own_lse));
                    CHECK_BITS(out + row * group * 8, own, group * 8);
                    CHECK_BITS(lse + row * group, own_lse, group);
                    CHECK_EQ(isnan(own[0]), row == 11);
                    if (LANES > 0 && device == PAGED_CPU && flags)  // one NaN
                        for (int j = row * group * 8; j < (row + 1) * group * 8; j++) {
                            CHECK(!isnan(out[j]) || float_bits(out[j]) == 0x7fc00000);
                            CHECK(!isnan(lse[j / 8]) || float_bits(lse[j / 8]) == 0x7fc00000);
                        }
                    seq_release(alone);
                }
        }
        for (int s = 0; s < 3; s++) release(seqs[s]);
        free_to(0);
    }
}

// ---- threads ----------------------------------------------------------------------------------

static void *live(void *argument)
{
    random_state = *(const uint64_t *)argument;
    Pool *pool = new_pool((PoolConfig){1, 4, 64, 4, 40, PAGED_F16, 1, PAGED_CPU});
    pool->num_free++;
    CHECK(pool_check(pool));
    pool->num_free--;
    some_operations(pool, times(400, 4));
    end_pool(pool);
    free_to(0);
    free(memory);
    arrfree(pools);
    arrfree(twins);
    return NULL;
}

// Two threads, each with its own pool, get what each would get alone; what pool_check() says in one
// can be read after it has reported in the other. (What they share, the thread sanitizer sees.)
TEST_ON(pools_in_two_threads_are_independent, ON_CPU)
{
    uint64_t seeds[2] = {seed, seed + 1};
    pthread_t threads[2];
    Pool *pool = new_pool(small_config(4, 3));
    pool->num_free++;
    const char *text = pool_check(pool);
    pool->num_free--;
    in_a_test = 0;  // a check that fails in a thread aborts
    for (int i = 0; i < 2; i++) CHECK_EQ(pthread_create(&threads[i], NULL, live, &seeds[i]), 0);
    for (int i = 0; i < 2; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    in_a_test = 1;
    CHECK_HAS(text, "num_free is 4, should be 3");
}

// ---- what it prints, and what ends the program ------------------------------------------------

static int child_output;  // what a child prints is read here

// Forks a child that ends, or is ended by what it does. Returns 0 in it; a failing check aborts it.
static pid_t begin_child(void)
{
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    fflush(stdout);
    child_output = ends[0];
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        alarm(SECONDS);
        in_a_test = 0;
        dup2(ends[1], 1);
        dup2(ends[1], 2);
    }
    close(ends[1]);
    return child;
}

// What a child has printed, which must have been ended by this signal; 0: by none.
static const char *last_words(pid_t child, int signal)
{
    int status = 0;
    char *words = (char *)alloc(4000);
    for (ssize_t size = 0, got = 1; got > 0 && size < 4000; size += got)
        got = read(child_output, words + size, (size_t)(4000 - size));
    close(child_output);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : 0, signal);
    return words;
}

static const char *drawn(const Pool *pool, const Seq *seq)
{
    char *text = (char *)alloc(4000);
    FILE *file = fmemopen(text, 4000, "w");
    pool_dump(pool, file);
    seq_dump(seq, file);
    fclose(file);
    return text;
}

// The drawings show counts and tables; NULL is allowed, and as a file stands for stdout.
TEST_ON(dumps_draw_counts_and_tables, ON_CPU)
{
    Pool *pool = new_pool(small_config(4, 100));
    Seq *seq = new_seq(pool, 10);
    Seq *sharer = fork_seq(seq, 6);
    for (int i = 0; i < 7; i++) fork_seq(seq, 4);
    CHECK_HAS(drawn(pool, seq), "  921....");  // 9, 2 and 1 references, then free blocks
    fork_seq(seq, 4);
    CHECK_HAS(drawn(pool, seq), "pool of 100 blocks of 4 tokens: 3 used, 97 free, 3.0 % in use\n");
    CHECK_HAS(drawn(pool, seq), "  +21....");
    CHECK_HAS(drawn(pool, seq), ".\nsequence of 10 tokens in 3 blocks of 4\n");
    CHECK_HAS(drawn(pool, seq), "\n        0         0       4         10\n");
    Seq *full = new_seq(pool, 8);
    CHECK_HAS(drawn(pool, full), "\n        1         4       4          1\n");
    release(full);
    CHECK_HAS(drawn(pool, fork_seq(seq, 0)), "of 0 tokens in 0 blocks");
    CHECK_TEXT(drawn(NULL, NULL), "");
    release(sharer);
    publish(seq, 10);
    rewind_seq(seq, 6);
    pid_t child = begin_child();
    if (child == 0) {
        pool_dump(pool, NULL);
        seq_dump(seq, NULL);
        exit(0);
    }
    const char *text = last_words(child, 0);
    CHECK_HAS(text, "  9p......");         // a free block that can be found
    CHECK_HAS(text, ".\n      64  ....");  // its second line
    CHECK_HAS(text, "4 tokens");
}

// A statement that must end with abort(), as INVARIANT does, and say both texts.
#define PANICS(text, place, statement) \
    do { \
        pid_t child_ = begin_child(); \
        if (child_ == 0) { \
            (void)(statement); \
            _exit(0); \
        } \
        const char *words_ = last_words(child_, SIGABRT); \
        CHECK_HAS(words_, text); \
        CHECK_HAS(words_, place); \
    } while (0)

// A program that has damaged a pool is stopped where the engine notices, with a line that says why.
TEST_ON(a_broken_invariant_panics, ON_CPU)
{
    Pool *pool = new_pool(small_config(4, 4));
    Seq *a = new_seq(pool, 8), *b = new_seq(pool, 0);  // a: blocks 0 and 1
    const PoolConfig too_large = {INT_MAX, 1 << 15, 256, 1, 1, PAGED_F32, 0, PAGED_CPU};
    const char *const place = "paged.cu.c:";
    void *volatile p = NULL;  // volatile: otherwise a compiler may leave the allocation out
    volatile size_t too_much = SIZE_MAX - 4096;
    PANICS("no free block to take", place, (pool->num_free = 3, seq_append(b, 12)));
    PANICS("a block on the free list is in use", place,
           (pool->blocks[2].ref_count = 1, seq_append(b, 1)));
    PANICS("a free block is dropped", place, (pool->blocks[0].ref_count = 0, seq_release(a)));
    PANICS("a sequence that its pool does not know is released", place,
           (a->index = 1, seq_release(a)));
    PANICS("a published block is not in its bucket", place,
           (publish(a, 8), seq_release(a), memset(pool->buckets, 0xff, 4 * sizeof(int)),
            seq_append(b, 16)));
    PANICS("out of memory", place, (p = realloc_or_panic(NULL, too_much)));
    PANICS("no oracle has this shape", place, (p = oracle_create(&too_large, INT_MAX)));
    PANICS("a sequence is longer than its oracle", place,
           (oracle_of(a)->length = 17, oracle_write(oracle_of(a), 0, 0, NULL, NULL)));
    PANICS("a table entry is not a block", place, (a->block_table[0] = -1, plan_one(a, 1)));
    PANICS("a table entry is not a block", place, (a->block_table[1] = 4, plan_one(a, 1)));
    (void)p;
}

// Where nothing is computed in 32 bits: row 2^28 + 1 of a step, heads of a block that are more than
// 2^32 elements apart, entry 2^32 + 1 of the tables, token 2^28 + 9 of a dense copy. Below that,
// all is 0, so an index of 32 bits finds 0, or writes to another place. Of the addresses, 384 GiB,
// only a few pages are ever touched.
enum { FAR_ROW = (1 << 28) + 1, FAR_DIM = 8, FAR_SLOTS = (1 << 29) + 1 };
enum { FAR_KV_HEADS = 2, FAR_Q_HEADS = 16, FAR_TOKENS = 4 };
static const uint64_t FAR_BLOCK = (uint64_t)FAR_SLOTS * FAR_KV_HEADS * FAR_DIM * 2;  // in f16
static const uint64_t FAR_UNIT = 1ull << 36, GIB = 1 << 30;
static const int64_t FAR_ENTRY = (1ll << 32) + 1;

static char *far_memory(uint64_t bytes)
{
    if (sizeof(size_t) < 8) skip("only where size_t has 64 bits");
    if (device == PAGED_GPU) skip("on the CPU and the stand-in only");
    int kind = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    kind |= MAP_NORESERVE;
#endif
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (p == MAP_FAILED) skip("this system does not hand out so many addresses");
#ifdef MADV_NOHUGEPAGE
    (void)madvise(p, (size_t)bytes, MADV_NOHUGEPAGE);  // a page in use takes 4 KB, not 2 MB
#endif
    return (char *)p;
}

static void run_far(void (*kernel)(Job), const Job *job, unsigned x, unsigned y)
{
#ifdef HAS_STANDIN
    launch(kernel, "a kernel in a test", 0, 1, 1, *job);  // no thread block yet
    blockIdx = (struct Index){x, y, 0};
    gpu_run_block();
#else
    (void)kernel, (void)job, (void)x, (void)y;
#endif
}

// Attends from the far row, on the CPU: way 0, by the plain code; 1, by fast/fast.c.
static void far_on_cpu(const Job *job, int way)
{
    for (int head = 0; head < FAR_Q_HEADS && way == 0; head++) attend_row(job, FAR_ROW, head);
#if defined PAGED_FAST && LANES
    if (way == 0) return;
    Query *queries = (Query *)memory_create(device, VECTORS * sizeof *queries);
    attend_piece(job, queries, FAR_ROW, 1, 0, FAR_KV_HEADS);
    memory_free(device, queries);
#endif
}

// By kernels: way 0, the plain one; 1, splits; 2, tensor cores. The last two leave states to merge.
static void far_in_kernels(const Job *job, int way)
{
    void (*kernel)(Job) = attend_paged;
    int heads = FAR_Q_HEADS;
#ifdef PAGED_FAST
    float *states = job->states + (size_t)FAR_ROW * FAR_Q_HEADS * (FAR_DIM + 2);
    memset(states, 0, FAR_Q_HEADS * (FAR_DIM + 2) * sizeof *states);
    if (way == 1) kernel = attend_split;
    if (way == 2) kernel = attend_mma_bf16_64;
    if (way == 2 && job->config.dtype == PAGED_F16) kernel = attend_mma_f16_64;
    if (way == 2) heads = FAR_KV_HEADS;
#endif
    for (int head = 0; head < heads; head++) run_far(kernel, job, FAR_ROW, head);
#ifdef PAGED_FAST
    for (int head = 0; head < FAR_Q_HEADS && way > 0; head++) {
        CHECK(states[head * (FAR_DIM + 2)] == 80);  // m comes first; there is one split
        run_far(merge_splits, job, FAR_ROW, head);
    }
#endif
    (void)way;
}

static int num_far_ways(int dtype)
{
    if (NUM_WAYS < 4) return 1;
    if (device == PAGED_CPU) return LANES > 0 ? 2 : 1;
    return dtype == PAGED_F32 ? 2 : 3;  // tensor cores take 16 bits
}

// A step of one sequence, whose tokens are in block 1. All tensors, states and the dense K begin at
// x, and all V 64 elements after it: where each is used, no other is.
static Job far_job(char *far, int dtype, const SeqOffset *offsets)
{
    float *x = (float *)(far + 2 * FAR_UNIT);
    Job job;
    memset(&job, 0, sizeof job);
    job.config = (PoolConfig){1, FAR_KV_HEADS, FAR_DIM, FAR_SLOTS, 2, dtype, 1, device};
    job.k_plane = far;
    job.v_plane = far + FAR_UNIT;
    job.num_seqs = 1;
    job.num_query_tokens = FAR_ROW + 1;
    job.offsets = (SeqOffset *)offsets;
    job.queries = (QueryToken *)(far + 5 * FAR_UNIT);
    job.tables = (int *)(far + 5 * FAR_UNIT + FAR_UNIT / 2);
    job.queries[FAR_ROW].position = FAR_TOKENS - 1;
    job.tables[FAR_ENTRY] = 1;
    job.num_q_heads = FAR_Q_HEADS;
    job.scale = 1;
    job.splits = 1;
    job.k = job.q = job.out = job.lse = job.states = x;
    job.v = x + 64;
    job.dense_k = x;
    job.dense_v = x + 64;
    job.dense_dtype = dtype;
    return job;
}

TEST_ON(a_step_reaches_beyond_2_to_the_32, ON_BOTH)
{
    const SeqOffset begin = {(1 << 28) + 9, FAR_ENTRY};
    const SeqOffset offsets[2] = {begin, {begin.token + FAR_TOKENS, begin.entry + 1}};
    for (int dtype = PAGED_F32; dtype <= PAGED_BF16; dtype++) {
        char *far = far_memory(6 * FAR_UNIT);
        Job job = far_job(far, dtype, offsets);
        float *k = job.out + (size_t)FAR_ROW * FAR_KV_HEADS * FAR_DIM;
        float *q = job.out + (size_t)FAR_ROW * FAR_Q_HEADS * FAR_DIM;
        float *lse = job.lse + (size_t)FAR_ROW * FAR_Q_HEADS;
        for (int head = 0; head < FAR_KV_HEADS; head++) {
            k[head * FAR_DIM] = 80;  // the score: no other token weighs anything
            k[head * FAR_DIM + 64] = 7 + head;
        }
        if (device == PAGED_CPU)
            write_token(&job, FAR_ROW, 0, 1);
        else
            run_far(write_kv, &job, FAR_ROW, 0);
        for (int head = 0; head < FAR_KV_HEADS; head++) {
            uint64_t at = ((uint64_t)(FAR_KV_HEADS + head) * FAR_SLOTS + FAR_TOKENS - 1) * FAR_DIM;
            note("dtype %d, KV head %d", dtype, head);
            CHECK(load_element(job.k_plane, at, dtype) == 80);
            CHECK(load_element(job.v_plane, at, dtype) == 7 + head);
        }
        for (int way = 0; way < 2 * num_far_ways(dtype); way++) {
            note("dtype %d, way %d", dtype, way);
            if (way == num_far_ways(dtype)) {  // from here on, K and V are the dense copy
                for (int t = 0; t < FAR_TOKENS && device == PAGED_CPU; t++)
                    gather_token(&job, begin, t, 0, 1);
                if (device != PAGED_CPU) run_far(gather_kv, &job, 0, 0);
                job.k_plane = job.dense_k;
                job.v_plane = job.dense_v;
                job.tables = NULL;
            }
            for (int head = 0; head < FAR_Q_HEADS; head++) {
                memset(q + head * FAR_DIM, 0, FAR_DIM * sizeof *q);
                q[head * FAR_DIM] = 1;
                lse[head] = 0;
            }
            if (device == PAGED_CPU)
                far_on_cpu(&job, way % num_far_ways(dtype));
            else
                far_in_kernels(&job, way % num_far_ways(dtype));
            for (int head = 0; head < FAR_Q_HEADS; head++) {
                CHECK(q[head * FAR_DIM] == 7 + head / (FAR_Q_HEADS / FAR_KV_HEADS));
                CHECK(lse[head] == 80);
            }
        }
        munmap(far, (size_t)(6 * FAR_UNIT));
    }
}

// Ends a child without a signal if a page is touched that must not be.
static void touched(int number) { _exit(number < 0); }

// A statement that must go beyond the first page from `start` on; all after it cannot be touched.
#define GOES_BEYOND(start, bytes, statement) \
    do { \
        char *page_ = (char *)(((uintptr_t)(start) + (1 << 16)) & ~(uintptr_t)0xffff); \
        pid_t child_ = begin_child(); \
        if (child_ == 0) { \
            signal(SIGSEGV, touched); \
            signal(SIGBUS, touched); /* on a Mac */ \
            if (mprotect(page_, bytes, PROT_NONE) == 0) statement; \
            abort(); \
        } \
        last_words(child_, 0); \
    } while (0)

// A pool of which only the planes and the published tokens are there.
static Pool far_pool(char *far)
{
    Pool pool;
    memset(&pool, 0, sizeof pool);
    pool.config = (PoolConfig){1, FAR_KV_HEADS, FAR_DIM, FAR_SLOTS, 2, PAGED_F16, 1, PAGED_CPU};
    pool.k = far;
    pool.v = far + 2 * FAR_BLOCK;
    pool.tokens = (int *)far;
    return pool;
}

// Large blocks, and many (vLLM issues 1486, 50427).
TEST_ON(blocks_lie_beyond_2_to_the_32, ON_CPU)
{
    char *far = far_memory(4 * FAR_BLOCK);
    Pool pool = far_pool(far);
    block_poison(&pool, 0, FAR_SLOTS);  // no slot
    block_poison(&pool, 1, FAR_SLOTS - 1);
    for (int head = 0; head < FAR_KV_HEADS; head++) {
        const size_t last_slot = ((size_t)(3 + head) * FAR_SLOTS - 1) * FAR_DIM;
        CHECK(isnan(load_element(pool.k, last_slot, PAGED_F16)));
        CHECK(isnan(load_element(pool.v, last_slot, PAGED_F16)));
    }
    CHECK(block_tokens(&pool, 9) == pool.tokens + 9 * (size_t)FAR_SLOTS);

    int block = (1 << 21) + 1;
    const size_t at = (size_t)block * 256 * FAR_DIM;
    uint16_t *k = (uint16_t *)far + at;
    Job job;
    memset(&job, 0, sizeof job);
    pool.config = (PoolConfig){1, 1, FAR_DIM, 256, 1 << 22, PAGED_F16, 1, PAGED_CPU};
    k[0] = 7;
    block_copy(&pool, block + 1, block);
    CHECK_EQ(k[256 * FAR_DIM], 7);
    job.config = pool.config;
    job.tables = &block;
    CHECK(token_offset(&job, (SeqOffset){0, 0}, 0, 0) == at);
    munmap(far, 4 * FAR_BLOCK);
}

TEST_ON(the_oracle_reaches_beyond_2_to_the_32, ON_CPU)
{
    float *x = (float *)far_memory(FAR_UNIT);
    Oracle oracle = {
        {2, FAR_KV_HEADS, FAR_DIM, 1, 1, PAGED_F16, 1, PAGED_CPU}, FAR_ROW, 1, x, x + 64};
    float row[2 * FAR_DIM] = {80, 1}, out[2 * FAR_DIM] = {0}, lse[2] = {0};
    oracle_write(&oracle, 1, 1, row, row);
    CHECK(x[(size_t)FAR_ROW * 2 * FAR_DIM] == 80);
    oracle_attend(&oracle, 1, 1, 2, 1, row, out, lse);
    CHECK(out[0] == 80 && lse[0] == 6401);
    oracle.max_tokens = INT_MAX;
    CHECK(oracle_offset(&oracle, 3, 0, 0) == 3 * (size_t)INT_MAX * FAR_KV_HEADS * FAR_DIM);
    munmap(x, FAR_UNIT);
}

// What is copied or filled runs into a page that cannot be touched. A dense copy is of as many
// tokens as the plan says: V begins 2^35 bytes after K.
TEST_ON(copies_have_64_bits, ON_BOTH)
{
    char *far = far_memory(8 * FAR_BLOCK);
    Pool huge = far_pool(far), *pool = new_pool(small_config(4, 4));
    float *x = (float *)(far + 4 * FAR_BLOCK);
    GOES_BEYOND(far, FAR_BLOCK / 2 - (1 << 17), block_poison(&huge, 0, 0));  // one head
    GOES_BEYOND(far + FAR_BLOCK, FAR_BLOCK / 2, block_copy(&huge, 1, 0));
    GOES_BEYOND(x, 4 * GIB, tensor_copy(&huge, x, (float *)far, GIB + 1));

    const float *ones = filled(4 * 8, 1);
    CHECK_OK(store(bare_seq(pool, 4), 4, ones, ones));
    pool->plan->num_tokens = 1 << 30;
    pool->workspace = (Memory){far, 64 * GIB};
    CHECK_OK(attend(pool, ATTEND_GATHER, 0, 2, 0, ones, filled(4 * 8, 0), NULL));
    CHECK(*(float *)(far + 32 * GIB) == 1);
    pool->workspace = (Memory){NULL, 0};
    munmap(far, 8 * FAR_BLOCK);
}

// What is asked for and is not there.
TEST_ON(requests_have_64_bits, ON_BOTH)
{
    if (sizeof(size_t) < 8) skip("only where size_t has 64 bits");
    PoolConfig large = {1, FAR_KV_HEADS, FAR_DIM, 1 << 30, 5, PAGED_F16, 1, PAGED_CPU};
    Pool *pool = new_pool(small_config(4, 4)), *none = pool;
    Seq *seq = bare_seq(pool, 4);
    Memory memory = {NULL, 0};
    float x[4 * 8];
    CHECK_OK(store(seq, 4, filled(4 * 8, 1), filled(4 * 8, 1)));
    bytes_asked = fail_after = 0;
    CHECK(!tensor_create(pool, GIB + 1));
    CHECK(bytes_asked > 4 * GIB);
    CHECK_EQ(memory_reserve(PAGED_CPU, &memory, 4 * GIB), PAGED_OUT_OF_MEMORY);
    CHECK(bytes_asked > 10 * GIB);
    bytes_asked = 0;
    stbds_header(seq->block_table)->length = GIB;
    CHECK_EQ(seq_gather(seq, 0, x, x), PAGED_OUT_OF_MEMORY);
    CHECK(bytes_asked > 6 * GIB);
    bytes_asked = 0;
    stbds_header(seq->block_table)->length = 4 * GIB;
    CHECK_EQ(plan_one(seq, 4), PAGED_OUT_OF_MEMORY);
    CHECK(bytes_asked > 16 * GIB);
    stbds_header(seq->block_table)->length = 1;
    bytes_asked = 0;
    fail_after = 1;
    CHECK_EQ(pool_create(&large, &none), PAGED_OUT_OF_MEMORY);
    fail_after = -1;
    CHECK(bytes_asked - 5 * GIB * (2 * 2 * FAR_KV_HEADS * FAR_DIM + sizeof(int)) < 16 << 20);
}

#ifdef HAS_STANDIN
enum { BARRIERS, ONE_LINE, OR_A_SHUFFLE, HALF_A_WARP, TWO_WARPS, BELOW_0, AT_A_BARRIER, ALONE };
enum { A_WHOLE_STACK = ALONE + 1, UNWRITTEN };
static int num_nan;         // threads that found shared memory to which nothing was written
static int num_crooked;     // and those whose stack is not aligned, which an emulator does not mind
static int second_barrier;  // its line

__attribute__((noinline)) static void use_a_whole_stack(void)
{
    volatile char bytes[STACK];
    for (int i = 0; i < STACK; i++) bytes[i] = 0;
    (void)bytes[0];
}

__global__ static void wrong_kernel(Job job)
{
    int kind = job.layer, thread = threadIdx.x, odd = thread % 2;
    if (kind == BARRIERS && thread < WARP) __syncthreads();
    if (kind == BARRIERS && thread >= WARP) __syncthreads();
    second_barrier = __LINE__ - 1;
    if (kind == ONE_LINE) odd ? __syncthreads() : __syncthreads();
    if (kind == OR_A_SHUFFLE) odd ? __syncwarp() : (void)__shfl_xor_sync(ALL_LANES, 0, 1);
    if (kind == HALF_A_WARP) (void)__shfl_xor_sync(ALL_LANES >> 1, 0, 1);
    if (kind == TWO_WARPS) (void)__shfl_xor_sync(ALL_LANES, 0, WARP);
    if (kind == BELOW_0) (void)__shfl_xor_sync(ALL_LANES, 0, -1);
    if (kind == AT_A_BARRIER && thread % WARP == 3) __syncthreads();
    if (kind == AT_A_BARRIER || kind == UNWRITTEN) (void)__shfl_xor_sync(ALL_LANES, 0, 1);
    if (kind == ALONE && thread == 0) __syncthreads();
    if (kind == A_WHOLE_STACK && thread == WARP + 5) use_a_whole_stack();
    __shared__ float unwritten[THREADS];
    if (kind == UNWRITTEN && isnan(unwritten[thread / (2 * WARP) * WARP])) num_nan++;
    unwritten[thread] = 0;
    __attribute__((aligned(16))) char local[16];
    volatile uintptr_t at = (uintptr_t)local;  // volatile: a compiler would know the answer
    if (at % 16 != 0) num_crooked++;
}

static void run_wrong_kernel(int kind, const char *order)
{
    Job job;
    memset(&job, 0, sizeof job);
    job.layer = kind;
    setenv("PAGED_LANE_ORDER", order, 1);
    gpu.kernel = NULL;  // as before the first launch
    LAUNCH(wrong_kernel, 2, 1, 1, job);
}

// It stops kernels that would hang a real GPU, or compute anything there, and names the lane and
// the place. (Under AddressSanitizer, no shared memory is filled with NaN.)
TEST_ON(the_stand_in_panics_on_wrong_kernels, ON_DEVICE)
{
    const char *const other = "the other threads wait at another barrier";
    const char *const whole = "the stand-in knows shuffles of whole warps only";
    const char *const first =
        "wrong_kernel, thread block (0, 0, 0), warp 0, lane 0:\n" __FILE__ ":";
    const char *const second = "warp 0, lane 1:\n" __FILE__ ":";
    const int filled = &__stop_gpu_shared[0] > &__start_gpu_shared[0];
    run_wrong_kernel(UNWRITTEN, "1");  // in descending order, each warp to its end
    CHECK_EQ(num_crooked, 0);
    CHECK_EQ(num_nan,
             filled ? 2 * (3 * WARP + 1) : 0);  // twice: warps 3 to 1, and a lane of warp 0
    PANICS(other, format_text("warp 1, lane 0:\n" __FILE__ ":%d:", second_barrier),
           (run_wrong_kernel(BARRIERS, "0"), 0));
    PANICS(other, second, (run_wrong_kernel(ONE_LINE, "0"), 0));
    PANICS(other, second, (run_wrong_kernel(OR_A_SHUFFLE, "0"), 0));
    PANICS(whole, first, (run_wrong_kernel(HALF_A_WARP, "0"), 0));
    PANICS(whole, first, (run_wrong_kernel(TWO_WARPS, "0"), 0));
    PANICS(whole, first, (run_wrong_kernel(BELOW_0, "0"), 0));
    PANICS("deadlock", first, (run_wrong_kernel(AT_A_BARRIER, "0"), 0));
    PANICS("deadlock", first, (run_wrong_kernel(ALONE, "0"), 0));
    PANICS("too much on its stack", "wrong_kernel, thread block (0, 0, 0), warp 1, lane 5:\n",
           (run_wrong_kernel(A_WHOLE_STACK, "0"), 0));
}
#endif

// ---- the runner -------------------------------------------------------------------------------

// Some tests ask for more memory than there is: the sanitizer must return NULL, as malloc does.
#ifdef __cplusplus
extern "C" const char *__asan_default_options(void);
#endif
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

// Ends what a test has left: if it has passed, its pools must be sound.
static void clean_up_engine(int good)
{
    while (good && arrlen(pools) > 0) end_pool(arrlast(pools));
    fail_after = fault_after = -1;
    fail_all = 1;
    faulty_pool = NULL;
    arrfree(pools);
    arrfree(twins);
    token_odds = wild = num_loans = 0;
    operation = 0;
    turns = 0;
    ways = ALL_WAYS;
#ifdef PAGED_FAST
    states_limit = STATES_LIMIT;
#endif
}

// Says what the tests are going to run on. Returns 0 if it is not there. The engine is not asked,
// since its mistake would skip all tests.
static int find_device(void)
{
    const char *why = device != OTHER_DEVICE ? "this build does not have it" : NULL;
#ifdef __CUDACC__
    cudaDeviceProp gpu;
    if (cudaGetDeviceProperties(&gpu, 0) != cudaSuccess)
        why = cudaGetErrorString(cudaGetLastError());
    else
        printf("GPU: %s, sm_%d%d\n", gpu.name, gpu.major, gpu.minor);
#endif
    if (why) printf("%s: SKIPPED: %s\n", device == PAGED_GPU ? "GPU" : "stand-in", why);
    return why == NULL;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--cpu", "--gpu", "--standin"};
    int on[3] = {0};  // the devices that are asked for
    const struct option own[] = {{"cpu", no_argument, &on[PAGED_CPU], 1},
                                 {"gpu", no_argument, &on[PAGED_GPU], 1},
                                 {"standin", no_argument, &on[PAGED_STANDIN], 1},
                                 {"ops", required_argument, &num_operations, 0},
                                 {NULL, 0, NULL, 0}};
    begin_tests(argc, argv, own);
    clean_up = clean_up_engine;
    if (!on[PAGED_CPU] && !on[PAGED_GPU] && !on[PAGED_STANDIN])
        on[PAGED_CPU] = on[(int)OTHER_DEVICE == PAGED_GPU ? PAGED_GPU : PAGED_STANDIN] = 1;
    printf("ATTEND_FAST is %s\n",
           NUM_WAYS == 4 ? "the code of fast/" : "the plain code, for want of -DPAGED_FAST");
    if (on[PAGED_CPU]) run_tests(names[PAGED_CPU], ON_CPU);
    for (device = PAGED_GPU; device <= PAGED_STANDIN; device++) {
        if (!on[device]) continue;
        one_process = device == PAGED_GPU;
        if (find_device())
            run_tests(names[device], ON_DEVICE);
        else
            results[SKIPPED]++;
    }
    return end_tests();
}
