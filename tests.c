// tests.c: what paged.h promises, shown by running it.
//
//     ./tests               all tests, each in a process of its own
//     ./tests NAME          one of them, in this process: for a debugger
//     ./tests NAME...       several
//     ./tests --list        their names
//     ./tests --seed N      other random numbers (the seed of a run is printed)
//     ./tests --quick       random work cut to a twentieth: for valgrind
//     ./tests --huge        also what takes a minute, or 9 GB of memory
//     ./tests --cpu         on CPU pools only
//     ./tests --gpu         on the GPU only (a build of nvcc)
//     ./tests --standin     on the stand-in for a GPU only (any other build)
//     ./tests --ops N       how many operations the random test makes
//
// Behaviour is shown on numbers that a hand can check, and then on random ones, which the oracle of
// paged.h judges: a cache without blocks. Every sequence here has a twin there, and t_append(),
// t_fork(), t_rewind() and t_release() do the same to both. t_room() also restates how many blocks
// an append may take. t_attend() runs attention gathered and paged, plain and fast: gathered and
// paged must agree in every bit, and all of them with the oracle within 1e-5.
//
// A failing check prints where it stands and ends its test; the others go on. In a debugger: break
// on t_fail, then look up the stack. Each test gives back all blocks, and t_finish() checks that.

#include <stdlib.h>

// Allocations of the engine that may fail go through these two, so that a test can make one fail.
static int t_failing = -1;  // this many allocations succeed, then one fails; -1: none fails
static size_t t_asked;      // bytes, by all allocations

static int t_refuse(size_t size)
{
    t_asked += size;
    return t_failing >= 0 && t_failing-- == 0;
}

static void *t_calloc(size_t n, size_t size) { return t_refuse(n * size) ? NULL : calloc(n, size); }

static void *t_aligned_alloc(size_t unit, size_t size)
{
    return t_refuse(size) ? NULL : aligned_alloc(unit, size);
}

#define calloc t_calloc
#define aligned_alloc t_aligned_alloc
#define PAGED_NO_MAIN
#include "paged.cu.c"
#undef calloc
#undef aligned_alloc

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#ifdef __FAST_MATH__
#error "-ffast-math lets NaN pass every comparison, so these tests could not fail"
#endif

// Some tests ask for more memory than there is: the sanitizer shall return NULL, as malloc does.
#ifdef __cplusplus
extern "C" const char *__asan_default_options(void);
#endif
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

// What this build has besides CPU pools, and whether ATTEND_FAST differs from the plain path.
#ifdef __CUDACC__
enum { T_DEVICE = PAGED_GPU, T_REAL_GPU = 1 };
#else
enum { T_DEVICE = PAGED_STANDIN, T_REAL_GPU = 0 };
#endif
#ifdef PAGED_FAST
enum { T_WAYS = 4 };  // of attention: the flags 0 to 3
#else
enum { T_WAYS = 2 };
#endif

// ---- checks -----------------------------------------------------------------------------------

enum { T_PASSED, T_FAILED, T_SKIPPED };
enum { T_AT = 400, T_OPERATIONS = 150000 };

static jmp_buf t_end;  // where a failing check goes
static char *t_where;  // [T_AT], what a loop is at; shared with the parent, which prints it too
static int t_line;     // of the test's last call of a helper; lines before t_first_line are theirs
static int t_first_line;
static void **t_memory;  // what t_alloc() gave out, freed after the test
static const char *t_program;
static uint64_t t_seed = 1, t_state;
static int t_quick, t_huge, t_operations = T_OPERATIONS;
static volatile int t_operation;  // number of the random operation that runs, for a debugger
static unsigned t_turns;          // what is done only every so often: counted in each test anew
static int t_device = PAGED_CPU;  // where the pools of the test live

static void t_at(const char *format, ...)
{
    char text[T_AT];  // as what t_where holds may be part of it
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    strcpy(t_where, text);
}

static void t_fail(int line, const char *what, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("\n%s:%d: %s: ", __FILE__, line, what);
    vprintf(format, list);
    printf("\n");
    va_end(list);
    if (line < t_first_line) printf("  called in line %d\n", t_line);
    if (t_where[0]) printf("  at %s\n", t_where);
    longjmp(t_end, T_FAILED);
}

static void t_skip(const char *reason)
{
    printf("SKIPPED: %s\n", reason);
    longjmp(t_end, T_SKIPPED);
}

static void t_check_eq(int line, const char *what, long long actual, long long expected)
{
    if (actual != expected) t_fail(line, what, "expected %lld, got %lld", expected, actual);
}

// Is it this text, or, if not `whole`, does it have it as a part?
static void t_check_text(int line, const char *what, const char *actual, const char *expected,
                         int whole)
{
    if (!actual) actual = "NULL";
    if (whole ? strcmp(actual, expected) != 0 : !strstr(actual, expected))
        t_fail(line, what, "expected \"%s\", got \"%s\"", expected, actual);
}

// Written so that NaN and infinity are close to nothing.
static int t_close(float a, float b, double largest)
{
    return isfinite(a) && isfinite(b) && fabs((double)a - b) <= 1e-5 * fmax(1, largest);
}

// A result that may be infinity or NaN, if that is what is expected.
static void t_check_close(int line, const char *what, float actual, float expected, double largest)
{
    if (isnan(expected) ? isnan(actual) : actual == expected) return;
    if (!t_close(actual, expected, largest))
        t_fail(line, what, "expected %.9g, got %.9g", expected, actual);
}

static void t_check_bits(int line, const char *what, const float *actual, const float *expected,
                         size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(actual[i]) && isnan(expected[i])) continue;  // a NaN has no value to compare
        if (memcmp(&actual[i], &expected[i], sizeof *actual) != 0)
            t_fail(line, what, "[%zu]: expected %.9g (%#x), got %.9g (%#x)", i, expected[i],
                   float_bits(expected[i]), actual[i], float_bits(actual[i]));
    }
}

#define CHECK(x) ((x) ? (void)0 : t_fail(__LINE__, #x, "expected true, got false"))
#define CHECK_EQ(actual, expected) t_check_eq(__LINE__, #actual, actual, expected)
#define CHECK_OK(call) t_check_eq(__LINE__, #call, call, PAGED_OK)
#define CHECK_TEXT(actual, expected) t_check_text(__LINE__, #actual, actual, expected, 1)
#define CHECK_HAS(actual, part) t_check_text(__LINE__, #actual, actual, part, 0)
#define CHECK_CLOSE(actual, expected, largest) \
    t_check_close(__LINE__, #actual, actual, expected, largest)

#define CHECK_BITS(actual, expected, floats) \
    t_check_bits(__LINE__, #actual, actual, expected, floats)

// ---- random numbers, memory, texts ------------------------------------------------------------

static uint64_t t_random(void)  // splitmix64, Steele et al. 2014
{
    uint64_t z = t_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int t_between(int low, int high)  // both included
{
    return low + (int)(t_random() % (uint64_t)(high - low + 1));
}

static int t_min(int a, int b) { return a < b ? a : b; }

static int t_times(int n)  // how often to do random work
{
    return t_quick ? (n + 19) / 20 : n;
}

static void *t_alloc(size_t size)
{
    void *memory = calloc(size + 1, 1);
    if (!memory) t_fail(__LINE__, "calloc", "no memory for %zu bytes", size);
    arrput(t_memory, memory);
    return memory;
}

// Frees what was given out since t_memory had that many entries.
static void t_free_to(size_t mark)
{
    while (arrlenu(t_memory) > mark) free(arrpop(t_memory));
}

static float *t_floats(size_t n)  // random in [-1, 1)
{
    float *x = (float *)t_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(int64_t)t_random() * 0x1p-63f;
    return x;
}

static float *t_same(size_t n, float value)
{
    float *x = (float *)t_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = value;
    return x;
}

static char *t_format(const char *format, ...)
{
    char *text = (char *)t_alloc(4000);
    va_list list;
    va_start(list, format);
    vsnprintf(text, 4000, format, list);
    va_end(list);
    return text;
}

// ---- the calls on any device ------------------------------------------------------------------
// On a real GPU, tensors have to be in its memory. Tests keep theirs on the host, so there these
// stand between, under the names of the calls. On the other devices the calls themselves are made.

#ifdef __CUDACC__
static size_t t_planned(const Pool *pool)  // query tokens of the plan
{
    return pool && pool->plan ? (size_t)pool->plan->view.num_query_tokens : 0;
}

static float *t_to_device(const Pool *pool, const float *x, size_t count)
{
    if (!x || !pool || pool->config.device == PAGED_CPU) return (float *)x;
    float *tensor = tensor_create(pool, count + 1);
    tensor_copy(pool, tensor, x, count);
    return tensor;
}

static void t_to_host(const Pool *pool, float *x, float *tensor, size_t count)
{
    if (!x || x == tensor) return;
    tensor_copy(pool, x, tensor, count);
    tensor_free(pool, tensor);
}

static int t_pool_write(Pool *pool, int layer, const float *k, const float *v)
{
    size_t row = pool ? (size_t)pool->config.num_kv_heads * pool->config.head_dim : 0;
    float *k_tensor = t_to_device(pool, k, t_planned(pool) * row);
    float *v_tensor = t_to_device(pool, v, t_planned(pool) * row);
    int error = pool_write(pool, layer, k_tensor, v_tensor);
    if (k_tensor != k) tensor_free(pool, k_tensor);
    if (v_tensor != v) tensor_free(pool, v_tensor);
    return error;
}

static int t_seq_gather(const Seq *seq, int layer, float *k, float *v)
{
    const Pool *pool = seq ? seq->pool : NULL;
    size_t n = seq ? (size_t)seq->length * pool->config.num_kv_heads * pool->config.head_dim : 0;
    float *k_tensor = t_to_device(pool, k, n);
    float *v_tensor = t_to_device(pool, v, n);
    int error = seq_gather(seq, layer, k_tensor, v_tensor);
    t_to_host(pool, k, k_tensor, n);
    t_to_host(pool, v, v_tensor, n);
    return error;
}

static int t_pool_attend(Pool *pool, int flags, int layer, int num_q_heads, float scale,
                         const float *q, float *out, float *lse)
{
    size_t heads = num_q_heads > 0 && num_q_heads < 1000 ? (size_t)num_q_heads : 0;
    size_t rows = t_planned(pool) * heads;
    size_t n = pool ? rows * pool->config.head_dim : 0;
    float *q_tensor = t_to_device(pool, q, n);
    float *out_tensor = t_to_device(pool, out, n);
    float *lse_tensor = t_to_device(pool, lse, rows);
    int error = attend(pool, flags, layer, num_q_heads, scale, q_tensor, out_tensor, lse_tensor);
    if (q_tensor != q) tensor_free(pool, q_tensor);
    t_to_host(pool, out, out_tensor, n);
    t_to_host(pool, lse, lse_tensor, rows);
    return error;
}

#define pool_write t_pool_write
#define seq_gather t_seq_gather
#define attend t_pool_attend
#endif

static int t_on_stand_in(void)  // a thousand times slower: tests are cut to that
{
    return t_device == PAGED_STANDIN;
}

static size_t t_plane_bytes(const Pool *pool)
{
    return pool_bytes_per_block(&pool->config) / 2 * pool->config.num_blocks;
}

// The bytes of a plane, wherever it lives.
static unsigned char *t_plane(const Pool *pool, const void *plane)
{
    unsigned char *bytes = (unsigned char *)t_alloc(t_plane_bytes(pool));
    memory_copy(pool->config.device, bytes, plane, t_plane_bytes(pool));
    return bytes;
}

// A step of one layer, for tests that are not about plans.
static int t_plan_write(Pool *pool, int layer, const Batch *batch, const float *k, const float *v)
{
    int error = pool_plan(pool, batch);
    return error ? error : pool_write(pool, layer, k, v);
}

static int t_plan_attend(Pool *pool, int flags, int layer, const Batch *batch, int num_q_heads,
                         float scale, const float *q, float *out, float *lse)
{
    int error = pool_plan(pool, batch);
    return error ? error : attend(pool, flags, layer, num_q_heads, scale, q, out, lse);
}

// ---- sequences and their twins in the oracle --------------------------------------------------

typedef struct Twin {  // entry of a hash map of stb_ds
    Seq *key;
    Oracle *value;
    int *tokens;  // [length], an array of stb_ds
} Twin;

enum { T_SEQS = 12 };  // of a pool in a random test

static Twin *t_twins;
static int t_odds;  // 0: no two tokens are alike; otherwise one in t_odds tokens is 1, the rest 0

// With t_wild set, some tokens have one of these ids, and one of their heads has K or V that is out
// of the ordinary. Queries are then (1, 0, 0, ...) and the scale is 1, so that the score is element
// 0 of K, exactly. A row that sees one of the last five may have a result that is not a number, so
// these are tokens of drafts, which are dropped again.
enum {
    T_FAR = -8,  // a score 87 to 104 below the others, where exp() is a subnormal float
    T_VERY_FAR,  // 178 to 266 below
    T_MINUS_INFINITY,
    T_PLUS_INFINITY,
    T_NAN_IN_K,
    T_NAN_IN_V,
    T_HUGE_V,
    T_INFINITE_V,
};
static int t_wild;
static int t_one_bucket;  // 1: the prefix caches of new pools have a single bucket

static Oracle *t_oracle(Seq *seq) { return hmget(t_twins, seq); }
static int **t_tokens(Seq *seq) { return &hmgetp(t_twins, seq)->tokens; }

static void t_set_twin(Seq *seq, Oracle *oracle)
{
    Twin twin = {seq, oracle, NULL};
    hmputs(t_twins, twin);
}

// A small shape; tests change what they need. All but huge pools have poison.
static PoolConfig t_config(int block_size, int num_blocks)
{
    PoolConfig config = {2, 2, 4, block_size, num_blocks, PAGED_F32, 1, PAGED_CPU};
    return config;
}

static void t_fill(Pool *pool, int byte)  // both planes
{
    size_t size = t_plane_bytes(pool), mark = arrlenu(t_memory);
    void *bytes = t_alloc(size);
    memset(bytes, byte, size);
    memory_copy(pool->config.device, pool->k, bytes, size);
    memory_copy(pool->config.device, pool->v, bytes, size);
    t_free_to(mark);
}

static Pool *t_pool(PoolConfig config)
{
    Pool *pool = NULL;
    config.device = t_device;
    CHECK_OK(pool_create(&config, &pool));
    if (config.poison) t_fill(pool, 0xff);  // blocks never handed out hold NaN too
    if (t_one_bucket) pool->num_buckets = 1;
    return pool;
}

static void t_check_pool(const Pool *pool)
{
    const char *wrong = pool_check(pool);
    if (wrong) t_fail(__LINE__, "pool_check", "%s", wrong);
}

// All there is to know about a pool, in a row of bytes.
typedef struct Snapshot {
    unsigned char *bytes;
    size_t size;
} Snapshot;

static void t_put(Snapshot *snapshot, const void *bytes, size_t size)
{
    if (snapshot->bytes && size > 0) memcpy(snapshot->bytes + snapshot->size, bytes, size);
    snapshot->size += size;
}

static void t_put_plan(Snapshot *s, const Pool *pool)
{
    t_put(s, &pool->plan_number, sizeof pool->plan_number);
    if (pool->plan_number == 0) return;
    const View *view = &pool->plan->view;
    t_put(s, &pool->plan->sealed, sizeof pool->plan->sealed);
    t_put(s, &view->num_query_tokens, sizeof view->num_query_tokens);
    if (pool->config.device == PAGED_GPU) return;
    t_put(s, view->queries, (size_t)view->num_query_tokens * sizeof *view->queries);
    t_put(s, view->starts, ((size_t)view->num_seqs + 1) * sizeof *view->starts);
    t_put(s, view->tables, (size_t)view->starts[view->num_seqs].table * sizeof *view->tables);
}

static Snapshot t_snapshot(const Pool *pool)
{
    Snapshot s = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {  // first the size, then the bytes
        if (pass == 1) s.bytes = (unsigned char *)t_alloc(s.size);
        s.size = 0;
        t_put(&s, &pool->config, sizeof pool->config);
        t_put(&s, &pool->num_free, sizeof pool->num_free);
        t_put(&s, &pool->num_copies, sizeof pool->num_copies);
        t_put(&s, &pool->last_serial, sizeof pool->last_serial);
        t_put(&s, pool->buckets, (size_t)pool->num_buckets * sizeof(int));
        for (int block = 0; block < pool->config.num_blocks; block++)
            if (pool->blocks[block].serial)
                t_put(&s, block_tokens(pool, block), pool->config.block_size * sizeof(int));
        t_put(&s, pool->blocks, ((size_t)pool->config.num_blocks + 1) * sizeof(Block));
        t_put(&s, pool->seqs, arrlenu(pool->seqs) * sizeof(Seq *));
        for (size_t i = 0; i < arrlenu(pool->seqs); i++) {
            const Seq *seq = pool->seqs[i];
            t_put(&s, &seq->length, sizeof seq->length);
            t_put(&s, &seq->num_computed_tokens, sizeof seq->num_computed_tokens);
            t_put(&s, &seq->plan, sizeof seq->plan);
            t_put(&s, seq->block_table, arrlenu(seq->block_table) * sizeof(int));
        }
        t_put_plan(&s, pool);
        t_put(&s, t_plane(pool, pool->k), t_plane_bytes(pool));
        t_put(&s, t_plane(pool, pool->v), t_plane_bytes(pool));
    }
    return s;
}

static void t_check_same(int line, const char *call, const Pool *pool, Snapshot before)
{
    Snapshot after = t_snapshot(pool);
    if (before.size != after.size || memcmp(before.bytes, after.bytes, after.size) != 0)
        t_fail(line, call, "it must not change anything, and did");
}

// A call that must return this code, an error or PAGED_OK, and leave every byte as it was.
#define CHECK_SAME(pool, code, call) \
    do { \
        size_t t_mark = arrlenu(t_memory); \
        Snapshot t_before = t_snapshot(pool); \
        t_check_eq(__LINE__, #call, call, code); \
        t_check_same(__LINE__, #call, pool, t_before); \
        t_free_to(t_mark); \
    } while (0)

// Makes room for n tokens, in the twin too. What that costs is checked against the rule of paged.h:
// the blocks that are missing, and one more if the last one is partly filled and shared or
// published, unless it is only published and there is no block for the copy; all or nothing.
// Returns what seq_append() returned.
static int t_room(Seq *seq, int n)
{
    Pool *pool = seq->pool;
    int b = pool->config.block_size;
    int have = (seq->length + b - 1) / b;
    int need = (seq->length + n + b - 1) / b;
    int last = have > 0 ? seq->block_table[have - 1] : -1;
    int partly = n > 0 && seq->length % b != 0;
    int shared = partly && pool->blocks[last].ref_count > 1;
    int sealed = partly && !shared && pool->blocks[last].serial != 0;
    int copy = shared || (sealed && need - have + 1 <= pool->num_free);
    int error = need - have + copy > pool->num_free ? PAGED_OUT_OF_BLOCKS : PAGED_OK;
    if (need > pool->config.num_blocks) error = PAGED_TOO_LONG;
    if (error) {
        CHECK_SAME(pool, error, seq_append(seq, n));
        return error;
    }
    int num_free = pool->num_free;
    size_t num_copies = pool->num_copies;
    CHECK_OK(seq_append(seq, n));
    t_oracle(seq)->length += n;
    for (int i = 0; i < n; i++) {
        int token = t_odds ? t_between(1, t_odds) == 1 : (int)(t_random() >> 33);
        if (t_wild && t_between(0, 3) == 0) token = t_between(T_FAR, T_MINUS_INFINITY);
        arrput(*t_tokens(seq), token);
    }
    CHECK_EQ(seq->length, t_oracle(seq)->length);
    CHECK_EQ(arrlen(seq->block_table), need);
    CHECK_EQ(num_free - pool->num_free, need - have + shared);  // the sealed one is free now
    CHECK_EQ(pool->num_copies - num_copies, copy);
    if (partly) CHECK((seq->block_table[have - 1] == last) == !copy);
    if (sealed && !copy) CHECK_EQ(pool->blocks[last].serial, 0);
    return PAGED_OK;
}

// Changes K and V of one token to what its id stands for.
static void t_make_wild(int id, const PoolConfig *c, float *k, float *v)
{
    int head = t_between(0, c->num_kv_heads - 1) * c->head_dim;
    int any = head + t_between(0, c->head_dim - 1);
    switch (id) {
    case T_FAR: k[head] = -87 - t_between(0, 17); break;
    case T_VERY_FAR: k[head] = -178 - t_between(0, 88); break;
    case T_MINUS_INFINITY: k[head] = -INFINITY; break;
    case T_PLUS_INFINITY: k[head] = INFINITY; break;
    case T_NAN_IN_K: k[any] = NAN; break;
    case T_NAN_IN_V: v[any] = NAN; break;
    case T_HUGE_V: v[any] = 3e38f; break;
    default: v[any] = INFINITY;
    }
}

// K and V that a model could have for the newest n tokens: random numbers that depend on the layer,
// the token, and all tokens before it. The twin stores them.
static void t_rows_of(Seq *seq, int layer, int n, float *k, float *v)
{
    const PoolConfig *c = &seq->pool->config;
    size_t row = (size_t)c->num_kv_heads * c->head_dim, at = 0;
    uint64_t before = (uint64_t)layer + 1, own = t_state;
    for (int t = 0; t < seq->length; t++) {
        int id = (*t_tokens(seq))[t];
        t_state = before ^ (uint64_t)id << 20;
        before = t_random();
        if (t < seq->length - n) continue;
        for (size_t i = at; i < at + row; i++) {
            k[i] = (float)(int64_t)t_random() * 0x1p-63f;
            v[i] = (float)(int64_t)t_random() * 0x1p-63f;
        }
        if (id < 0) t_make_wild(id, c, k + at, v + at);
        at += row;
    }
    t_state = own;
    oracle_write(t_oracle(seq), layer, n, k, v);
}

// Writes K and V of the newest tokens of a ragged batch, in every layer, there and in the twins.
static void t_write(Seq *const *seqs, const int *num_tokens, int count)
{
    Pool *pool = seqs[0]->pool;
    const PoolConfig *c = &pool->config;
    Batch batch = {count, seqs, num_tokens};
    size_t row = (size_t)c->num_kv_heads * c->head_dim;
    size_t total = 0;
    size_t mark = arrlenu(t_memory);
    for (int i = 0; i < count; i++) total += (size_t)num_tokens[i];
    float *k = t_same(total * row, 0);
    float *v = t_same(total * row, 0);
    CHECK_OK(pool_plan(pool, &batch));
    for (int layer = 0; layer < c->num_layers; layer++) {
        size_t at = 0;
        for (int i = 0; i < count; at += num_tokens[i] * row, i++)
            t_rows_of(seqs[i], layer, num_tokens[i], k + at, v + at);
        CHECK_OK(pool_write(pool, layer, k, v));
    }
    t_free_to(mark);
}

static int t_try_append(Seq *seq, int n)
{
    int error = t_room(seq, n);
    if (!error) t_write(&seq, &n, 1);
    return error;
}

static void t_append(Seq *seq, int n) { CHECK_EQ(t_try_append(seq, n), PAGED_OK); }

// A sequence without a twin, for tests that have numbers of their own.
static Seq *t_bare_seq(Pool *pool, int length)
{
    Seq *seq = NULL;
    CHECK_OK(seq_create(pool, &seq));
    CHECK_OK(seq_append(seq, length));
    return seq;
}

static Seq *t_empty_seq(Pool *pool, int max_tokens)
{
    Seq *seq = t_bare_seq(pool, 0);
    t_set_twin(seq, oracle_create(&pool->config, max_tokens));
    return seq;
}

static Seq *t_seq(Pool *pool, int length)
{
    Seq *seq = t_empty_seq(pool, pool->config.num_blocks * pool->config.block_size);
    t_append(seq, length);
    return seq;
}

static Seq *t_fork(Seq *parent, int at)
{
    Pool *pool = parent->pool;
    Seq *child = NULL;
    int num_free = pool->num_free, b = pool->config.block_size;
    CHECK_OK(seq_fork(parent, at, &child));
    t_set_twin(child, oracle_fork(t_oracle(parent), at));
    for (int i = 0; i < at; i++) {
        int token = (*t_tokens(parent))[i];
        arrput(*t_tokens(child), token);
    }
    CHECK_EQ(pool->num_free, num_free);
    CHECK_EQ(child->num_computed_tokens, t_min(at, parent->num_computed_tokens));
    CHECK_EQ(arrlen(child->block_table), (at + b - 1) / b);
    for (int i = 0; i < (int)arrlen(child->block_table); i++)
        CHECK_EQ(child->block_table[i], parent->block_table[i]);
    return child;
}

static void t_rewind(Seq *seq, int n)
{
    CHECK_OK(seq_rewind(seq, n));
    t_oracle(seq)->length -= n;
    arrsetlen(*t_tokens(seq), seq->length);
    CHECK_EQ(seq->length, t_oracle(seq)->length);
}

// How many leading blocks of a sequence are published, each as the child of the one before.
static int t_published(const Seq *seq)
{
    uint64_t parent = 0;
    for (int i = 0; i < (int)arrlen(seq->block_table); i++) {
        const Block *block = &seq->pool->blocks[seq->block_table[i]];
        if (block->serial == 0 || block->parent != parent) return i;
        parent = block->serial;
    }
    return (int)arrlen(seq->block_table);
}

// Publishes what is left of the full blocks among the first n tokens. Then the last of them is
// published; if it was not before, as the child of the one before it.
static void t_publish(Seq *seq, int n)
{
    int last = n / seq->pool->config.block_size - 1;
    uint64_t serial = seq->pool->last_serial;
    CHECK_OK(seq_publish(seq, *t_tokens(seq), n));
    if (last < 0) return;
    const Block *block = &seq->pool->blocks[seq->block_table[last]];
    CHECK(block->serial != 0);
    if (last > 0 && block->serial > serial)  // now, as the child of the one before
        CHECK(block->parent == seq->pool->blocks[seq->block_table[last - 1]].serial);
}

// A sequence with a twin that begins with what the prefix cache has of these n tokens. How much
// that must be is found without the buckets, by a look at all blocks.
static Seq *t_lookup(Pool *pool, const int *tokens, int n)
{
    int b = pool->config.block_size, hits = 0, found = 1;
    uint64_t parent = 0;
    while (found && (hits + 1) * b < n) {
        found = 0;
        for (int block = 0; block < pool->config.num_blocks && !found; block++)
            if (pool->blocks[block].serial && pool->blocks[block].parent == parent &&
                memcmp(block_tokens(pool, block), tokens + hits * b, b * sizeof(int)) == 0) {
                parent = pool->blocks[block].serial;
                hits++;
                found = 1;
            }
    }
    Seq *seq = t_empty_seq(pool, pool->config.num_blocks * b);
    CHECK_OK(seq_lookup(seq, tokens, n));
    CHECK_EQ(seq->length, hits * b);
    CHECK_EQ(seq->num_computed_tokens, hits * b);
    CHECK_EQ(t_published(seq), hits);
    t_oracle(seq)->length = seq->length;
    for (int i = 0; i < seq->length; i++) arrput(*t_tokens(seq), tokens[i]);
    size_t mark = arrlenu(t_memory),
           row = (size_t)pool->config.num_kv_heads * pool->config.head_dim;
    float *k = t_same(seq->length * row, 0), *v = t_same(seq->length * row, 0);
    for (int layer = 0; layer < pool->config.num_layers; layer++)
        t_rows_of(seq, layer, seq->length, k, v);
    t_free_to(mark);
    return seq;
}

static void t_release(Seq *seq)
{
    if (hmgeti(t_twins, seq) >= 0) {
        oracle_release(t_oracle(seq));
        arrfree(*t_tokens(seq));
        (void)hmdel(t_twins, seq);
    }
    seq_release(seq);
}

// The block table, followed, must give what the twin holds: every layer, byte for byte.
static void t_check(Seq *seq)
{
    const PoolConfig *c = &seq->pool->config;
    size_t row = (size_t)c->num_kv_heads * c->head_dim, n = seq->length * row;
    size_t mark = arrlenu(t_memory);
    float *k = (float *)t_alloc(n * sizeof *k), *v = (float *)t_alloc(n * sizeof *v);
    for (int layer = 0; layer < c->num_layers; layer++) {
        size_t start = (size_t)layer * t_oracle(seq)->max_tokens * row;
        CHECK_OK(seq_gather(seq, layer, k, v));
        CHECK_BITS(k, t_oracle(seq)->k + start, n);
        CHECK_BITS(v, t_oracle(seq)->v + start, n);
    }
    t_free_to(mark);
}

// One layer of t_attend(), below: the rows of one sequence against its twin, for each way in turn.
static void t_check_rows(Seq *seq, int layer, int num_tokens, int num_q_heads, float scale,
                         const float *q, size_t first, float *const *out, float *const *lse)
{
    const Oracle *oracle = t_oracle(seq);
    size_t kv_row = (size_t)oracle->config.num_kv_heads * oracle->config.head_dim;
    size_t rows = (size_t)num_tokens * num_q_heads;
    size_t dim = (size_t)oracle->config.head_dim;
    size_t seen = 0;  // elements of V, and the largest of them
    double largest = 0;
    const float *v = oracle->v + (size_t)layer * oracle->max_tokens * kv_row;
    float *expected = t_same(rows * dim, 0);
    float *expected_lse = t_same(rows, 0);
    oracle_attend(oracle, layer, num_tokens, num_q_heads, scale, q + first * dim, expected,
                  expected_lse);
    for (size_t i = 0; i < rows * dim; i++) {
        size_t row = i / dim, token = oracle->length - num_tokens + row / num_q_heads;
        for (; seen < (token + 1) * kv_row; seen++)
            if (isfinite(v[seen])) largest = fmax(largest, fabs(v[seen]));
        if (!t_wild) CHECK(isfinite(expected[i]) && isfinite(expected_lse[row]));
        for (int way = 0; way < T_WAYS; way += 2) {  // gathered is the same in every bit
            CHECK_CLOSE(out[way][first * dim + i], expected[i], largest);
            CHECK_CLOSE(lse[way][first + row], expected_lse[row], fabs(expected_lse[row]));
        }
    }
}

// One way into out and lse, which are an element too long: nothing may be written there. On the
// stand-in, another order of the lanes must give the same bits: shuffled, or from end to end.
static void t_attend_by(Pool *pool, int flags, int layer, int num_q_heads, float scale,
                        const float *q, float *out, float *lse, size_t rows)
{
    size_t n = rows * pool->config.head_dim;
    CHECK_OK(attend(pool, flags, layer, num_q_heads, scale, q, out, lse));
    CHECK(out[n] == 1234 && lse[rows] == 1234);
#ifndef __CUDACC__
    if (t_on_stand_in()) {
        float *other_out = t_same(n + 1, 1234);
        float *other_lse = t_same(rows + 1, 1234);
        const unsigned order = gpu_lane_order;
        gpu_lane_order = (unsigned)t_between(2, 1 << 30);
        if (t_between(0, 3) == 0) gpu_lane_order = !order;
        CHECK_OK(attend(pool, flags, layer, num_q_heads, scale, q, other_out, other_lse));
        gpu_lane_order = order;
        CHECK_BITS(other_out, out, n + 1);
        CHECK_BITS(other_lse, lse, rows + 1);
    }
#endif
}

// Attention of the newest num_tokens[i] tokens of each sequence, in every layer, with random
// queries: gathered and paged, plain and fast. Gathered and paged agree in every bit, plain and
// fast do not, as they add up in another order; all agree with the oracle within the tolerance. On
// the stand-in, which is slow, three tokens of each sequence are enough.
static void t_attend(Seq *const *seqs, const int *num_tokens, int count, int num_q_heads,
                     float scale)
{
    Pool *pool = seqs[0]->pool;
    const PoolConfig *c = &pool->config;
    size_t rows = 0;
    size_t mark = arrlenu(t_memory);
    int *n_of = (int *)t_alloc((size_t)count * sizeof *n_of);
    Batch batch = {count, seqs, n_of};
    for (int i = 0; i < count; i++) {
        n_of[i] = t_on_stand_in() ? t_min(num_tokens[i], 3) : num_tokens[i];
        rows += (size_t)n_of[i] * num_q_heads;
    }
    CHECK_OK(pool_plan(pool, &batch));
    for (int layer = 0; layer < c->num_layers; layer++) {
        size_t n = rows * c->head_dim, layer_mark = arrlenu(t_memory);
        float *q = t_floats(n), *out[T_WAYS], *lse[T_WAYS];
        for (size_t i = 0; i < n; i++) q[i] *= 4;  // so that the weights differ clearly
        for (size_t i = 0; t_wild && i < n; i++) q[i] = i % c->head_dim == 0;
        for (int way = 0; way < T_WAYS; way++) {
            out[way] = t_same(n + 1, 1234);
            lse[way] = t_same(rows + 1, 1234);
            t_attend_by(pool, way, layer, num_q_heads, scale, q, out[way], lse[way], rows);
            if (!(way & ATTEND_GATHER)) continue;
            CHECK_BITS(out[way], out[way - 1], n);
            CHECK_BITS(lse[way], lse[way - 1], rows);
        }
        size_t row = 0;
        for (int i = 0; i < count; row += (size_t)n_of[i] * num_q_heads, i++)
            t_check_rows(seqs[i], layer, n_of[i], num_q_heads, scale, q, row, out, lse);
        t_free_to(layer_mark);
    }
    t_free_to(mark);
}

// Checks the pool, and K, V and attention of all its sequences that have a twin: up to three
// queries each, because a single one over full blocks cannot see their order.
static void t_check_all(const Pool *pool)
{
    t_check_pool(pool);
    for (size_t i = 0; i < arrlenu(pool->seqs); i++) {
        int n = t_min(pool->seqs[i]->length, 3);
        if (!t_oracle(pool->seqs[i])) continue;
        if (t_on_stand_in() && ++t_turns % 8 != 0) continue;  // it is slow
        t_check(pool->seqs[i]);
        if (t_on_stand_in() && t_turns % 32 != 0) continue;
        t_attend(&pool->seqs[i], &n, 1, 2 * pool->config.num_kv_heads, 0);
    }
}

// Every test ends here, once for each of its pools: all is checked, all sequences go, and then all
// blocks must be free.
static void t_finish(Pool *pool)
{
    t_check_all(pool);
    while (arrlen(pool->seqs) > 0) t_release(arrlast(pool->seqs));
    t_check_pool(pool);
    CHECK_EQ(pool->num_free, pool->config.num_blocks);
    pool_destroy(pool);
}

// From here on, each call of these notes its line, which a check that fails inside will print.
static void t_note(int line) { t_line = line; }
#define t_room(...) (t_note(__LINE__), t_room(__VA_ARGS__))
#define t_write(...) (t_note(__LINE__), t_write(__VA_ARGS__))
#define t_try_append(...) (t_note(__LINE__), t_try_append(__VA_ARGS__))
#define t_append(...) (t_note(__LINE__), t_append(__VA_ARGS__))
#define t_seq(...) (t_note(__LINE__), t_seq(__VA_ARGS__))
#define t_fork(...) (t_note(__LINE__), t_fork(__VA_ARGS__))
#define t_rewind(...) (t_note(__LINE__), t_rewind(__VA_ARGS__))
#define t_release(...) (t_note(__LINE__), t_release(__VA_ARGS__))
#define t_publish(...) (t_note(__LINE__), t_publish(__VA_ARGS__))
#define t_lookup(...) (t_note(__LINE__), t_lookup(__VA_ARGS__))
#define t_check(...) (t_note(__LINE__), t_check(__VA_ARGS__))
#define t_attend(...) (t_note(__LINE__), t_attend(__VA_ARGS__))
#define t_check_pool(...) (t_note(__LINE__), t_check_pool(__VA_ARGS__))
#define t_check_all(...) (t_note(__LINE__), t_check_all(__VA_ARGS__))
#define t_finish(...) (t_note(__LINE__), t_finish(__VA_ARGS__))
enum { T_FIRST_LINE = __LINE__ };

// ---- what tests look at -----------------------------------------------------------------------

// What a block table names: the blocks, "7 2", and their reference counts, "3 1".
static const char *t_list(const Seq *seq, int counts)
{
    const char *text = "";
    for (int i = 0; i < (int)arrlen(seq->block_table); i++) {
        int block = seq->block_table[i];
        text = t_format("%s%s%d", text, i ? " " : "",
                        counts ? seq->pool->blocks[block].ref_count : block);
    }
    return text;
}

#define TABLE(seq) t_list(seq, 0)
#define COUNTS(seq) t_list(seq, 1)

// The ids on the free list, the next one to be handed out first.
static const char *t_free_list(const Pool *pool)
{
    const char *text = "";
    int head = pool->config.num_blocks;
    for (int b = pool->blocks[head].next; b != head; b = pool->blocks[b].next)
        text = t_format("%s%s%d", text, *text ? " " : "", b);
    return text;
}

// Brings the free list of an unused pool into an order: a sequence of one token on every block,
// then the releases, the block that is to be first last.
static void t_order_free_list(Pool *pool, const int *order)
{
    int n = pool->config.num_blocks;
    Seq **owner = (Seq **)t_alloc((size_t)n * sizeof *owner);  // [block]
    for (int i = 0; i < n; i++) {
        Seq *seq = t_bare_seq(pool, 1);
        owner[seq->block_table[0]] = seq;
    }
    for (int i = n - 1; i >= 0; i--) seq_release(owner[order[i]]);
}

static void t_shuffle(Pool *pool)
{
    int n = pool->config.num_blocks, *order = (int *)t_alloc((size_t)n * sizeof *order);
    for (int i = 0; i < n; i++) {
        int j = t_between(0, i);
        order[i] = order[j];
        order[j] = i;
    }
    t_order_free_list(pool, order);
}

// A small pool that hands out these blocks first ("7 2"), then the others from the lowest up.
static Pool *t_ordered_pool(int block_size, int num_blocks, const char *first)
{
    Pool *pool = t_pool(t_config(block_size, num_blocks));
    int *order = (int *)t_alloc((size_t)num_blocks * sizeof *order), n = 0;
    char *taken = (char *)t_alloc((size_t)num_blocks), *end;
    for (; *first; first = end) {
        order[n] = (int)strtol(first, &end, 10);
        taken[order[n++]] = 1;
    }
    for (int block = 0; block < num_blocks; block++)
        if (!taken[block]) order[n++] = block;
    t_order_free_list(pool, order);
    return pool;
}

// Element i of the plane of K, or of V, as float32.
static float t_element(const Pool *pool, const void *plane, size_t i)
{
    size_t size = pool->config.dtype == PAGED_F32 ? 4 : 2;
    float x = 0;
    uint16_t half = 0;
    void *to = size == 4 ? (void *)&x : (void *)&half;
    memory_copy(pool->config.device, to, (const char *)plane + i * size, size);
    if (size == 4) return x;
    return pool->config.dtype == PAGED_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

// Where a slot starts, by the layout of paged.h: [layers][blocks][kv_heads][block_size][head_dim].
static size_t t_offset(const Pool *pool, int layer, int block, int kv_head, int slot)
{
    const PoolConfig *c = &pool->config;
    size_t row = ((size_t)layer * c->num_blocks + block) * c->num_kv_heads + kv_head;
    return (row * c->block_size + slot) * c->head_dim;
}

// In how many of the slots from..to - 1 of a block every element of K and V, in all layers and
// heads, is NaN. Minus 1 if some are NaN and some are not within a slot.
static int t_nan_slots(const Pool *pool, int block, int from, int to)
{
    const PoolConfig *c = &pool->config;
    int count = 0, all = 2 * c->num_layers * c->num_kv_heads * c->head_dim;
    for (int slot = from; slot < to; slot++) {
        int nans = 0;
        for (int i = 0; i < all / 2; i++) {
            int row = i / c->head_dim;
            size_t at = t_offset(pool, row / c->num_kv_heads, block, row % c->num_kv_heads, slot);
            nans += isnan(t_element(pool, pool->k, at + i % c->head_dim)) != 0;
            nans += isnan(t_element(pool, pool->v, at + i % c->head_dim)) != 0;
        }
        if (nans != 0 && nans != all) return -1;
        count += nans == all;
    }
    return count;
}

// ---- numbers that a hand can check ------------------------------------------------------------

// What a token costs is a product of the shape, here of a Llama of 7 billion weights, and OPT-30B.
static void test_example_bytes(void)
{
    if (sizeof(size_t) < 8) t_skip("sizes of several GB, with 32-bit addresses");
    PoolConfig llama = {32, 32, 128, 16, 1, PAGED_F16, 0, PAGED_CPU};
    PoolConfig opt_30b = {48, 56, 128, 16, 0, PAGED_BF16, 0, PAGED_CPU};
    CHECK_EQ(pool_bytes_per_token(&llama), 512 << 10);
    CHECK_EQ(pool_bytes_per_block(&llama), 16 * 512 << 10);
    llama.dtype = PAGED_F32;
    CHECK_EQ(pool_bytes_per_block(&llama), 32 * 512 << 10);
    CHECK_EQ(pool_bytes_per_token(&opt_30b) * 1024 * 128, 180388626432);  // 128 texts: 180.4 GB
}

// Every element of every layer, token and head lies where the layout of paged.h says. A decode step
// writes one slot of each sequence, and leaves every other byte of the pool alone.
static void test_layout(void)
{
    const int block_of[] = {12, 12, 12, 12, 5, 5, 5, 5, 3}, ones[] = {1, 1};
    Pool *pool = t_ordered_pool(4, 16, "7 2 12 5 3");
    Seq *seqs[] = {t_seq(pool, 6), t_seq(pool, 9)};
    CHECK_TEXT(TABLE(seqs[0]), "7 2");
    CHECK_TEXT(TABLE(seqs[1]), "12 5 3");
    for (int i = 0; i < 2 * 9 * 2 * 4; i++) {  // [layer][token][head][dim]
        int layer = i / 72, t = i / 8 % 9, head = i / 4 % 2;
        size_t at = t_offset(pool, layer, block_of[t], head, t % 4) + i % 4;
        size_t there = (size_t)layer * 64 * 8 + i % 72;  // the twin has room for 64 tokens
        float k = t_element(pool, pool->k, at), v = t_element(pool, pool->v, at);
        t_at("layer %d, token %d, head %d", layer, t, head);
        CHECK_BITS(&k, t_oracle(seqs[1])->k + there, 1);
        CHECK_BITS(&v, t_oracle(seqs[1])->v + there, 1);
    }
    CHECK_OK(t_room(seqs[0], 1));  // slot 2 of block 2
    CHECK_OK(t_room(seqs[1], 1));  // slot 1 of block 3
    unsigned char *before = t_plane(pool, pool->k);
    t_write(seqs, ones, 2);
    unsigned char *after = t_plane(pool, pool->k);
    int changed = 0;
    for (size_t i = 0; i < t_plane_bytes(pool); i += sizeof(float))
        changed += memcmp(before + i, after + i, sizeof(float)) != 0;
    CHECK_EQ(changed, 2 * 2 * 2 * 4);  // sequences, layers, heads, head_dim
    CHECK_EQ(t_nan_slots(pool, 2, 0, 4), 1);
    CHECK_EQ(t_nan_slots(pool, 3, 0, 4), 2);
    t_finish(pool);
}

// Copy-on-write in eight steps: the first writer copies, the second finds itself alone.
static void test_example_eight_steps(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    Seq *a = t_seq(pool, 6);       // 1. the prompt is stored once
    Seq *b = t_fork(a, 6);         // 2. two tables point at it
    CHECK_TEXT(COUNTS(a), "2 2");  // 3. the counts are 2
    t_append(a, 1);                // 4. A is about to write, sees a 2,
    CHECK_TEXT(TABLE(a), "0 2");   // 5. takes a free block, copies the tail,
    CHECK_TEXT(COUNTS(b), "2 1");  //    the old count falls to 1;
    t_check_all(pool);             // 6. A has written in the copy
    t_append(b, 1);                // 7. B sees a 1 and writes in place
    CHECK_TEXT(TABLE(b), "0 1");   // 8. only the last blocks differ
    CHECK_EQ(pool->num_copies, 1);
    t_finish(pool);
}

// Query 1, keys log 1 .. log 4: weights 1, 2, 3, 4 tenths; values 1 .. 4. So the output is 3 and
// the log-sum-exp log 10, in blocks of any size; and so on for the rows before, which see less.
static void test_example_softmax_by_hand(void)
{
    const float k[] = {0, logf(2), logf(3), logf(4)}, v[] = {1, 2, 3, 4}, q[] = {1, 1, 1, 1};
    const float sums[] = {1, 5, 14, 30}, weights[] = {1, 3, 6, 10};
    const int n = 4;
    for (int block_size = 1; block_size <= 5; block_size++) {
        PoolConfig config = {1, 1, 1, block_size, 4, PAGED_F32, 1, PAGED_CPU};
        Pool *pool = t_pool(config);
        Seq *seq = t_bare_seq(pool, n);
        Batch batch = {1, &seq, &n};
        float out[4], lse[4];
        CHECK_OK(t_plan_write(pool, 0, &batch, k, v));
        for (int i = 0; i < 16; i++) {  // flags 0 to 3
            if (i % 4 == 0) CHECK_OK(attend(pool, i / 4, 0, 1, 0, q, out, lse));
            CHECK_CLOSE(out[i % 4], sums[i % 4] / weights[i % 4], 1);
            CHECK_CLOSE(lse[i % 4], logf(weights[i % 4]), 1);
        }
        t_finish(pool);
    }
}

// The oracle judges the rest, so it too meets numbers by hand. A scale of 2 squares the weights: 1
// and 4 fifths.
static void test_oracle_by_hand(void)
{
    PoolConfig config = {2, 1, 1, 1, 1, PAGED_F32, 0, PAGED_CPU};
    const float k[] = {0, logf(2)}, v[] = {10, 20}, q = 1;
    float out = 0, lse = 0;
    Oracle *parent = oracle_create(&config, 3);
    CHECK_EQ(parent->length, 0);
    parent->length = 2;
    oracle_write(parent, 1, 2, k, v);
    oracle_attend(parent, 1, 1, 1, 2, &q, &out, &lse);
    CHECK_CLOSE(out, 18, 20);
    CHECK_CLOSE(lse, logf(5), 1);
    Oracle *child = oracle_fork(parent, 1);
    oracle_attend(child, 1, 1, 1, 0, &q, &out, &lse);
    CHECK(out == 10 && lse == 0);
    CHECK(child->length == 1 && parent->length == 2);
    oracle_release(parent);
    oracle_release(child);
}

// ---- rules of the operations ------------------------------------------------------------------

// Blocks are taken from the front of the free list; a release puts them back there, tail block
// first, so that the same sequence would get the same blocks again.
static void test_free_list_order(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    CHECK_TEXT(t_free_list(pool), "0 1 2 3 4 5 6 7");
    Seq *a = t_seq(pool, 12), *b = t_seq(pool, 5);
    CHECK_TEXT(TABLE(a), "0 1 2");
    CHECK_TEXT(TABLE(b), "3 4");
    t_release(a);
    CHECK_TEXT(t_free_list(pool), "0 1 2 5 6 7");
    t_release(b);
    CHECK_TEXT(t_free_list(pool), "3 4 0 1 2 5 6 7");
    a = t_seq(pool, 10);
    t_rewind(a, 7);
    CHECK_TEXT(t_free_list(pool), "4 0 1 2 5 6 7");
    t_append(a, 7);
    CHECK_TEXT(TABLE(a), "3 4 0");
    t_finish(pool);
}

// Exactly ceil(length / block_size) blocks, whether tokens come one by one or at once: the next
// block comes with its first token, not when the last one is full (FlashInfer pull request 725).
static void test_append_takes_blocks_exactly(void)
{
    for (int b = 1; b <= 16; b++) {
        Pool *pool = t_pool(t_config(b, 20));
        Seq *slow = t_seq(pool, 0);
        for (int n = 0, blocks = 0; n <= 5 * b; n++) {
            t_at("block size %d, length %d", b, n);
            Seq *quick = t_seq(pool, n);
            CHECK_EQ(arrlen(quick->block_table), blocks);
            CHECK_EQ(arrlen(slow->block_table), blocks);
            t_release(quick);
            if (n % b == 0) blocks++;
            t_append(slow, 1);
        }
        t_finish(pool);
    }
}

// An append that does not fit in full takes nothing; the copy of a shared tail is counted before
// anything starts (vLLM pull requests 3250, 8824). append(0) is nothing, even in a full pool.
static void test_append_all_or_nothing(void)
{
    Pool *pool = t_pool(t_config(4, 4));
    Seq *a = t_seq(pool, 10), *b = t_fork(a, 10);       // blocks 0 1 2; the last half full, shared
    CHECK_EQ(t_try_append(b, 3), PAGED_OUT_OF_BLOCKS);  // a copy and one more block
    t_append(b, 2);                                     // just the copy
    CHECK_TEXT(TABLE(b), "0 1 3");
    t_append(a, 1);  // in place, no block needed
    Seq *c = t_fork(a, 11);
    for (int again = 0; again < 3; again++)
        CHECK_EQ(t_try_append(c, 1), PAGED_OUT_OF_BLOCKS);  // the slot is there, the copy is not
    CHECK_SAME(pool, PAGED_OK, seq_append(c, 0));
    t_check_all(pool);
    t_release(a);
    t_append(c, 1);  // alone now
    CHECK_EQ(pool->num_copies, 1);
    t_finish(pool);
}

// A rewind may end inside a block that other sequences use; the next append copies it. A rewind
// never takes a block, so it works in a full pool.
static void test_rewind_into_shared_block(void)
{
    Pool *pool = t_pool(t_config(4, 4));
    Seq *a = t_seq(pool, 10), *b = t_fork(a, 10);
    t_append(b, 1);  // a: 0 1 2, b: 0 1 3
    CHECK_EQ(pool->num_free, 0);
    t_check_all(pool);
    t_rewind(b, 8);  // b: the first three slots of block 0
    CHECK_TEXT(COUNTS(a), "2 1 1");
    CHECK_TEXT(t_free_list(pool), "3");
    t_check_all(pool);  // what b dropped is still there for a
    t_append(b, 1);
    CHECK_TEXT(TABLE(b), "3");
    CHECK_EQ(pool->num_copies, 2);
    CHECK_EQ(pool->num_free, 0);
    t_check_all(pool);
    t_rewind(b, 1);
    t_rewind(a, 10);
    CHECK_TEXT(t_free_list(pool), "0 1 2");
    t_append(a, 5);
    t_finish(pool);
}

// A sequence that fills the pool, rewound into a block that it has published, grows in place, and
// the block is withdrawn from the prefix cache. With a free block, or another user, it is copied.
static void test_append_in_full_pool(void)
{
    const int one = 1;
    Pool *pool = t_pool(t_config(4, 3));
    Seq *a = t_seq(pool, 12);
    t_publish(a, 12);
    t_rewind(a, 2);
    Seq *b = t_fork(a, 10);
    CHECK_EQ(t_try_append(a, 1), PAGED_OUT_OF_BLOCKS);
    t_release(b);
    CHECK_EQ(t_try_append(a, 3), PAGED_TOO_LONG);
    CHECK(pool->blocks[2].serial != 0);
    CHECK_OK(t_room(a, 1));
    CHECK_EQ(t_nan_slots(pool, 2, 2, 4), 2);  // what was there is void now
    t_write(&a, &one, 1);
    CHECK_TEXT(TABLE(a), "0 1 2");
    CHECK_EQ(pool->blocks[2].serial, 0);
    CHECK_EQ(pool->num_copies, 0);
    CHECK_EQ(t_published(a), 2);
    t_append(a, 1);
    t_publish(a, 12);  // under its new tokens
    CHECK_EQ(t_published(a), 3);
    t_rewind(a, 7);  // block 2 is free: the tail, block 1, is copied
    t_append(a, 1);
    CHECK_TEXT(TABLE(a), "0 2");
    CHECK_EQ(pool->num_copies, 1);
    t_finish(pool);
}

// A write to a block that another sequence uses is refused, whichever token of the batch is in it.
// What counts is how things stood when the step was planned; attention may read it all the same.
static void test_write_to_shared_block_refused(void)
{
    const int all = 6, two = 2, none = 0, ones[] = {1, 1};
    const float *x = t_floats(6 * 2 * 4);
    float *out = t_same(2 * 2 * 4, 0);
    Pool *pool = t_pool(t_config(4, 8));
    Seq *a = t_seq(pool, 5);
    CHECK_OK(t_room(a, 1));
    Seq *b = t_fork(a, 6);  // after the append, before the write
    Batch whole = {1, &a, &all}, newest = {1, &a, &two}, empty = {1, &a, &none};
    CHECK_OK(pool_plan(pool, &whole));
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 1, x, x));
    CHECK_OK(pool_plan(pool, &empty));
    CHECK_SAME(pool, PAGED_OK, pool_write(pool, 1, x, x));
    CHECK_OK(pool_plan(pool, &newest));
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 0, x, x));
    CHECK_OK(attend(pool, ATTEND_PAGED, 0, 2, 0, x, out, NULL));
    t_rewind(b, 2);  // lets go of the last block, keeps the first
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 0, x, x));
    t_write(&a, &two, 1);  // plans anew
    CHECK_OK(pool_plan(pool, &whole));
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 1, x, x));
    t_release(b);
    t_write(&a, &all, 1);
    t_check_all(pool);

    Seq *seqs[] = {t_seq(pool, 3), a};  // one shared block refuses the write of the whole batch
    t_fork(a, 6);
    Batch batch = {2, seqs, ones};
    CHECK_OK(pool_plan(pool, &batch));
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 0, x, x));
    t_finish(pool);
}

// Swapping out: gather all layers, release, later append and write back. Every bit is restored,
// whatever blocks it lands in, and so is attention.
static void test_gather_and_write_back(void)
{
    const int n = 11;
    for (int dtype = PAGED_F32; dtype <= PAGED_BF16; dtype++) {
        PoolConfig config = t_config(4, 12);
        config.dtype = dtype;
        Pool *pool = t_pool(config);
        t_shuffle(pool);
        Seq *seq = t_seq(pool, n);
        float *k[2], *v[2];
        for (int layer = 0; layer < 2; layer++) {
            k[layer] = t_same(n * 2 * 4, 0);
            v[layer] = t_same(n * 2 * 4, 0);
            CHECK_OK(seq_gather(seq, layer, k[layer], v[layer]));
        }
        Oracle *oracle = oracle_fork(t_oracle(seq), n);
        t_release(seq);
        t_seq(pool, 6);  // takes two of the blocks
        seq = t_bare_seq(pool, n);
        t_set_twin(seq, oracle);
        Batch batch = {1, &seq, &n};
        for (int layer = 0; layer < 2; layer++)
            CHECK_OK(t_plan_write(pool, layer, &batch, k[layer], v[layer]));
        t_finish(pool);
    }
}

// With poison, whatever was not written is NaN: new slots, freed blocks, slots that a rewind
// dropped, the rest of a copy. A slot that another sequence still sees is left alone. Without, a
// block is handed out as it is, and a rewind leaves the bytes.
static void test_poison(void)
{
    for (int dtype = PAGED_F32; dtype <= PAGED_BF16; dtype++) {
        PoolConfig config = t_config(4, 6);
        config.dtype = dtype;
        Pool *pool = t_pool(config);
        t_fill(pool, 0);  // so that NaN can only come from the engine
        Seq *bare = t_bare_seq(pool, 5);
        CHECK_EQ(t_nan_slots(pool, 0, 0, 4) + t_nan_slots(pool, 1, 0, 4), 8);
        CHECK_EQ(t_nan_slots(pool, 2, 0, 4), 0);
        seq_release(bare);

        Seq *a = t_seq(pool, 8), *b = t_fork(a, 7);  // blocks 0 1
        CHECK_EQ(t_nan_slots(pool, 1, 0, 4), 0);
        CHECK_OK(t_room(b, 1));  // copies three slots to block 2
        CHECK_EQ(t_nan_slots(pool, 2, 0, 3), 0);
        CHECK_EQ(t_nan_slots(pool, 2, 3, 4), 1);
        t_rewind(b, 2);  // in its own block: slot 2 is dropped
        CHECK_EQ(t_nan_slots(pool, 2, 0, 2), 0);
        CHECK_EQ(t_nan_slots(pool, 2, 2, 4), 2);
        t_rewind(b, 1);
        CHECK_EQ(t_nan_slots(pool, 2, 1, 4), 3);
        t_rewind(b, 3);  // out of block 2, and into block 0, which a sees
        CHECK_EQ(t_nan_slots(pool, 2, 0, 4), 4);
        CHECK_EQ(t_nan_slots(pool, 0, 0, 4), 0);
        t_check_all(pool);
        t_release(a);  // b still sees two slots of block 0
        CHECK_EQ(t_nan_slots(pool, 0, 0, 2), 0);
        CHECK_EQ(t_nan_slots(pool, 1, 0, 4), 4);
        t_check_all(pool);
        t_release(b);
        CHECK_EQ(t_nan_slots(pool, 0, 0, 4), 4);
        t_finish(pool);

        config.poison = 0;
        pool = t_pool(config);
        a = t_seq(pool, 7);
        CHECK_OK(seq_rewind(a, 7));
        CHECK_OK(seq_append(a, 7));
        t_finish(pool);
    }
}

// ---- errors -----------------------------------------------------------------------------------

// Shapes that are refused: *pool stays as it was. Sizes are computed without overflow.
static void test_refused_pools(void)
{
    const PoolConfig good = t_config(4, 4);
    PoolConfig bad;
    Pool *const unchanged = (Pool *)&bad;
    Pool *pool = unchanged;
    int *fields[] = {&bad.head_dim,     &bad.dtype,      &bad.device,    &bad.num_layers,
                     &bad.num_kv_heads, &bad.block_size, &bad.num_blocks};
    const int wrong[][3] = {{0, -1, PAGED_MAX_HEAD_DIM + 1},
                            {-1, PAGED_BF16 + 1, INT_MIN},
                            {-1, PAGED_STANDIN + 1, INT_MIN},
                            {0, -1, INT_MIN}};  // and of all others
    for (int i = 0; i < 7 * 3; i++) {
        bad = good;
        *fields[i / 3] = wrong[t_min(i / 3, 3)][i % 3];
        t_at("field %d is %d", i / 3, *fields[i / 3]);
        CHECK_EQ(pool_create(&bad, &pool), PAGED_BAD_ARGUMENT);
        if (i / 3 == 6) continue;  // num_blocks is ignored by these
        CHECK_EQ(pool_bytes_per_token(&bad), 0);
        CHECK_EQ(pool_bytes_per_block(&bad), 0);
    }
    CHECK_EQ(pool_create(NULL, &pool), PAGED_BAD_ARGUMENT);
    CHECK_EQ(pool_create(&good, NULL), PAGED_BAD_ARGUMENT);
    CHECK_EQ(pool_bytes_per_token(NULL), 0);
    bad = good;
    bad.device = T_REAL_GPU ? PAGED_STANDIN : PAGED_GPU;  // the one that this build does not have
    CHECK_EQ(pool_create(&bad, &pool), PAGED_NO_GPU);

    const PoolConfig huge[] = {
        {INT_MAX, INT_MAX, 256, INT_MAX, INT_MAX, PAGED_F32, 0, PAGED_CPU},  // 2^73 bytes a token
        {INT_MAX, 1 << 20, 256, INT_MAX, 1, PAGED_F16, 0, PAGED_CPU},        // 2^61, 2^92 a block
        {4096, 4096, 256, 4096, INT_MAX, PAGED_F16, 0, PAGED_CPU},  // 2^46 a block, 2^77 in all
        {4096, 4096, 256, 4096, 1 << 18, PAGED_F16, 0, PAGED_CPU},  // 2^64
        {1, 1, 256, 4096, INT_MAX, PAGED_F16, 0, PAGED_CPU},        // 4 PiB a plane
    };
    for (int i = 0; i < 5; i++) CHECK_EQ(pool_create(&huge[i], &pool), PAGED_OUT_OF_MEMORY);
    CHECK_EQ(pool_bytes_per_token(&huge[0]), 0);
    const int wide = sizeof(size_t) > 4;  // if not, these overflow, too
    CHECK_EQ(pool_bytes_per_token(&huge[1]), wide ? (1ll << 61) - (1ll << 30) : 0);
    CHECK_EQ(pool_bytes_per_block(&huge[1]), 0);
    CHECK_EQ(pool_bytes_per_block(&huge[2]), wide ? 1ll << 46 : 0);
    CHECK(pool == unchanged);
    pool_destroy(NULL);
}

#define BAD(call) CHECK_SAME(pool, PAGED_BAD_ARGUMENT, call)

// Null, negative and oversized arguments of the sequence functions change nothing. A length that no
// int holds is too long, even if the pool is not.
static void test_refused_sequence_calls(void)
{
    const int wrong[] = {-1, 11, INT_MAX, INT_MIN};
    Pool *pool = t_pool(t_config(4, 8));
    Seq *seq = t_seq(pool, 10), *result = seq;
    float *x = t_floats(10 * 2 * 4);
    t_fork(seq, 7);
    BAD(seq_create(NULL, &result));
    BAD(seq_create(pool, NULL));
    BAD(seq_append(NULL, 1));
    BAD(seq_append(seq, -1));
    BAD(seq_append(seq, INT_MIN));
    BAD(seq_fork(NULL, 0, &result));
    BAD(seq_fork(seq, 3, NULL));
    BAD(seq_rewind(NULL, 0));
    BAD(seq_gather(NULL, 0, x, x));
    BAD(seq_gather(seq, 0, NULL, x));
    BAD(seq_gather(seq, 0, x, NULL));
    BAD(seq_gather(seq, 2, x, x));
    for (int i = 0; i < 4; i++) {
        BAD(seq_fork(seq, wrong[i], &result));
        BAD(seq_rewind(seq, wrong[i]));
        BAD(seq_gather(seq, wrong[i], x, x));
    }
    CHECK(result == seq);
    CHECK_SAME(pool, PAGED_OK, seq_rewind(seq, 0));
    CHECK_SAME(pool, PAGED_TOO_LONG, seq_append(seq, INT_MAX));
    pool->config.block_size = 1 << 30;  // as if it were a pool of 2^33 tokens
    CHECK_EQ(seq_append(seq, INT_MAX), PAGED_TOO_LONG);
    CHECK_EQ(seq_append(seq, INT_MAX - 9), PAGED_TOO_LONG);
    pool->config.block_size = 4;
    seq_release(NULL);
    for (int error = 0; error <= PAGED_NO_GPU; error++) CHECK(paged_error(error));
    CHECK_TEXT(paged_error(-1), "unknown error code");
    CHECK_TEXT(paged_error(PAGED_NO_GPU + 1), "unknown error code");
    t_finish(pool);
}

// Every way to plan a wrong batch: nothing changes, and the plan before it stays. A batch without
// tokens is not an error and does nothing.
static void test_refused_batches(void)
{
    Pool *pool = t_pool(t_config(4, 8)), *other_pool = t_pool(t_config(4, 150));
    Seq *a = t_seq(pool, 5), *b = t_seq(pool, 2), *empty = t_seq(pool, 0);
    for (int i = 0; i < 100; i++) t_seq(other_pool, 1);
    Seq *stranger = t_seq(other_pool, 5);  // its index is beyond what the pool has
    Seq *good_seqs[] = {a, b, empty}, *twice[] = {a, a}, *apart[] = {a, b, a}, *null[] = {a, NULL};
    Seq *no_tokens[] = {a, empty}, *foreign[] = {b, stranger}, *first[] = {stranger, b};
    Seq *both[] = {stranger, stranger};
    const int ones[] = {1, 1, 1}, zeros[] = {0, 0, 0}, good_counts[] = {1, 1, 0};
    const int counts[][2] = {{-1, 1}, {6, 1}, {1, INT_MAX}, {1, INT_MIN}};  // bad ones
    const Batch good = {3, good_seqs, good_counts}, none = {0, NULL, NULL};
    const Batch nothing = {3, good_seqs, zeros}, abroad = {1, &stranger, ones};
    const Batch bad[] = {
        {-1, good_seqs, ones},     {INT_MIN, good_seqs, ones}, {INT_MAX, good_seqs, ones},
        {3, NULL, ones},           {3, good_seqs, NULL},       {2, twice, ones},
        {2, twice, zeros},         {3, apart, good_counts},    {2, null, ones},
        {2, foreign, ones},        {2, first, ones},           {2, both, zeros},
        {2, no_tokens, ones},      {2, good_seqs, counts[0]},  {2, good_seqs, counts[1]},
        {2, good_seqs, counts[2]}, {2, good_seqs, counts[3]},  {1, NULL, ones},
        {1, good_seqs, NULL}};
    float *x = t_floats(2 * 4 * 4), *out = t_same(2 * 4 * 4, 7), *lse = t_same(2 * 4, 7);
    BAD(pool_plan(NULL, &good));
    CHECK_OK(pool_plan(pool, &good));
    BAD(pool_plan(pool, NULL));
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        t_at("bad batch %d", i);
        BAD(pool_plan(pool, &bad[i]));
        CHECK_OK(pool_write(pool, i % 2, x, x));
        oracle_write(t_oracle(a), i % 2, 1, x, x);
        oracle_write(t_oracle(b), i % 2, 1, x + 8, x + 8);
        CHECK_OK(pool_plan(other_pool, &abroad));  // the stranger is as it was in its own pool
    }
    const Batch empties[] = {none, nothing};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(pool_plan(pool, &empties[i]));
        CHECK_SAME(pool, PAGED_OK, pool_write(pool, 1, NULL, NULL));
        for (int flags = 0; flags < 4; flags++)
            CHECK_SAME(pool, PAGED_OK, attend(pool, flags, 0, 4, 0, NULL, NULL, lse));
    }
    t_finish(pool);
    t_finish(other_pool);

    pool = t_pool(t_config(4, 8));  // in which no step has been planned
    BAD(pool_write(pool, 0, x, x));
    BAD(attend(pool, ATTEND_PAGED, 0, 4, 0, x, out, lse));
    BAD(pool_plan(pool, &bad[0]));
    BAD(pool_write(pool, 0, x, x));
    for (int i = 0; i < 8; i++) CHECK(out[i] == 7 && lse[i] == 7);
    t_finish(pool);
}

// Wrong arguments of pool_write() and attend() in a planned step: pool and outputs stay the same.
static void test_refused_steps(void)
{
    enum { OUT = 4 * 4 };  // one row of 4 query heads
    Pool *pool = t_pool(t_config(4, 8));
    Seq *seq = t_seq(pool, 5);
    const int one = 1;
    const int wrong[] = {-1, 4, INT_MAX, INT_MIN};              // as flags, and as a layer
    const int wrong_heads[] = {0, -2, 1, 3, INT_MAX, INT_MIN};  // there are two KV heads
    const float wrong_scales[] = {NAN, INFINITY, -INFINITY};
    const Batch batch = {1, &seq, &one};
    float *x = t_floats(OUT), *out = t_same(OUT, 7), *lse = t_same(OUT, 7);
    CHECK_OK(pool_plan(pool, &batch));
    for (int flags = 0; flags < 4; flags++) {
        for (int i = 0; i < 4; i++) {
            BAD(attend(pool, flags, wrong[i], 4, 0, x, out, lse));
            BAD(attend(pool, wrong[i], 0, 4, 0, x, out, lse));
        }
        BAD(attend(pool, flags, 2, 4, 0, x, out, lse));
        for (int i = 0; i < 6; i++) BAD(attend(pool, flags, 0, wrong_heads[i], 0, x, out, lse));
        BAD(attend(pool, flags, 0, PAGED_MAX_Q_HEADS + 1, 0, x, out, lse));
        for (int i = 0; i < 3; i++) BAD(attend(pool, flags, 0, 4, wrong_scales[i], x, out, lse));
        BAD(attend(NULL, flags, 0, 4, 0, x, out, lse));
        BAD(attend(pool, flags, 0, 4, 0, NULL, out, lse));
        BAD(attend(pool, flags, 0, 4, 0, x, NULL, lse));
    }
    for (int i = 0; i < 4; i++) BAD(pool_write(pool, wrong[i], x, x));
    BAD(pool_write(pool, 2, x, x));
    BAD(pool_write(NULL, 0, x, x));
    BAD(pool_write(pool, 0, NULL, x));
    BAD(pool_write(pool, 0, x, NULL));
    CHECK_BITS(out, t_same(OUT, 7), OUT);
    CHECK_BITS(lse, t_same(OUT, 7), OUT);
    t_finish(pool);
}

// The first allocation of a call fails, then the second, ... until the call succeeds. Each time it
// says so, and nothing has changed. There must have been at least `least` allocations.
#define STARVE(least, pool, call) \
    do { \
        int t_error = PAGED_OUT_OF_MEMORY, t_number = 0; \
        for (; t_error != PAGED_OK; t_number++) { \
            Snapshot t_before = t_snapshot(pool); \
            t_failing = t_number; \
            t_error = (call); \
            if (t_error == PAGED_OK && t_failing < 0) \
                t_fail(__LINE__, #call, "allocation %d failed, and it did not say so", t_number); \
            t_failing = -1; \
            if (t_error == PAGED_OK) break; \
            t_check_eq(__LINE__, #call, t_error, PAGED_OUT_OF_MEMORY); \
            t_check_same(__LINE__, #call, pool, t_before); \
        } \
        CHECK(t_number >= (least)); \
    } while (0)

// When the machine has no memory left, calls fail as cleanly as they do for any other reason.
static void test_out_of_memory(void)
{
    const int n = 2;
    Pool *pool = t_pool(t_config(4, 8)), *fresh = t_pool(t_config(4, 8)), *second = NULL;
    Seq *seq = t_seq(pool, 6), *created = NULL, *child = NULL;
    Batch batch = {1, &seq, &n};
    float *x = t_floats(n * 2 * 4);
    STARVE(6, pool, (CHECK(!second), pool_create(&pool->config, &second)));
    STARVE(1, pool, (CHECK(!created), seq_create(pool, &created)));
    STARVE(1, pool, (CHECK(!child), seq_fork(seq, 6, &child)));
    seq_release(created);
    seq_release(child);
    Seq *planned = t_bare_seq(fresh, 2);
    Batch first = {1, &planned, &n};
    STARVE(1, fresh, pool_plan(fresh, &first));
    CHECK_OK(pool_plan(pool, &batch));
    STARVE(0, pool, pool_write(pool, 0, x, x));
    oracle_write(t_oracle(seq), 0, n, x, x);
    STARVE(0, pool, seq_gather(seq, 0, t_same(6 * 8, 0), t_same(6 * 8, 0)));
    for (int flags = 0; flags < 4; flags++) {
        float *out = t_same(n * 2 * 4, 7);
        t_failing = 0;
        int error = attend(pool, flags, 0, 2, 0, x, out, NULL);
        t_failing = -1;
        for (int i = 0; error && i < n * 2 * 4; i++) CHECK(out[i] == 7);
        STARVE(0, pool, attend(pool, flags, 0, 2, 0, x, t_same(n * 2 * 4, 0), NULL));
    }
    t_finish(pool);
    t_finish(fresh);
    t_finish(second);
}

// A pool and a sequence ask for the memory that they need, and no more: K and V, each with 128
// bytes after it, a record for each block and one for the head of the free list, the tokens of all
// blocks, and a bucket for each.
static void test_memory_asked_for(void)
{
    PoolConfig config = t_config(4, 128);
    Pool *pool = NULL;
    Seq *seq = NULL;
    t_asked = 0;
    CHECK_OK(pool_create(&config, &pool));
    size_t records = 129 * sizeof(Block) + 128 * 4 * sizeof(int) + 128 * sizeof(int);
    CHECK_EQ(t_asked, sizeof(Pool) + 128 * pool_bytes_per_block(&config) + 2 * 128 + records);
    t_asked = 0;
    CHECK_OK(seq_create(pool, &seq));
    CHECK_EQ(t_asked, sizeof(Seq));
    t_finish(pool);
}

// ---- the plan of a step -----------------------------------------------------------------------

enum { T_EDITS = 29 };

// Edit number `which`. a and b are planned, b is empty; c is not planned, and shares nothing. a and
// c have 8 tokens each in blocks of 4, and c has published its own. Returns 1 if the edit changes a
// planned sequence, 0 if it does not, or fails.
static int t_edit(int which, Seq *a, Seq *b, Seq *c)
{
    const int tokens[] = {1, 2, 3, 4, 5, 6, 7, 8}, others[] = {9, 2, 3, 4, 5, 6, 7, 8, 9};
    float x[8 * 8];
    Seq *seq = NULL;
    switch (which) {
    case 0: CHECK_OK(seq_append(a, 1)); return 1;
    case 1: CHECK_OK(seq_append(b, 1)); return 1;
    case 2: CHECK_OK(seq_fork(a, 5, &seq)); return 1;
    case 3: CHECK_OK(seq_fork(a, 8, &seq)); return 1;
    case 4: CHECK_OK(seq_rewind(a, 1)); return 1;
    case 5: CHECK_OK(seq_rewind(a, 8)); return 1;
    case 6: seq_release(a); return 1;
    case 7: seq_release(b); return 1;
    case 8:  // the new one may get the memory of the old one
        seq_release(a);
        CHECK_OK(seq_create(c->pool, &seq));
        CHECK_OK(seq_append(seq, 8));
        return 1;
    case 9: CHECK_OK(seq_publish(a, others, 8)); return 1;  // new blocks
    case 10: CHECK_OK(seq_publish(a, others, 4)); return 1;
    case 11: CHECK_OK(seq_publish(a, tokens, 8)); return 1;  // the blocks of c
    case 12: CHECK_OK(seq_lookup(b, tokens, 8)); return 1;
    case 13: CHECK_OK(seq_append(a, 0)); return 0;
    case 14: CHECK_OK(seq_rewind(a, 0)); return 0;
    case 15: CHECK_OK(seq_publish(a, others, 3)); return 0;  // not a block
    case 16: CHECK_OK(seq_lookup(b, others, 9)); return 0;   // finds nothing
    case 17: CHECK_EQ(seq_append(a, 100), PAGED_TOO_LONG); return 0;
    case 18: CHECK_EQ(seq_append(a, 25), PAGED_OUT_OF_BLOCKS); return 0;
    case 19: CHECK_EQ(seq_rewind(a, 9), PAGED_BAD_ARGUMENT); return 0;
    case 20: CHECK_EQ(seq_fork(a, 9, &seq), PAGED_BAD_ARGUMENT); return 0;
    case 21: CHECK_EQ(seq_publish(a, tokens, 9), PAGED_BAD_ARGUMENT); return 0;
    case 22: CHECK_OK(seq_create(c->pool, &seq)); return 0;
    case 23: CHECK_OK(seq_append(c, 3)); return 0;
    case 24: CHECK_OK(seq_fork(c, 7, &seq)); return 0;
    case 25: CHECK_OK(seq_rewind(c, 5)); return 0;
    case 26: seq_release(c); return 0;
    case 27: CHECK_OK(seq_gather(a, 1, x, x)); return 0;
    default: CHECK_OK(seq_gather(c, 0, x, x)); return 0;
    }
}

// Any edit of a planned sequence makes the plan out of date, and nothing else does.
static void test_plan_goes_out_of_date(void)
{
    const int tokens[] = {1, 2, 3, 4, 5, 6, 7, 8}, counts[] = {2, 0}, all[] = {8, 8};
    float *x = t_floats(2 * 8 * 8), *out = t_same(2 * 8, 0);
    for (int which = 0; which < T_EDITS; which++) {
        t_at("edit %d", which);
        Pool *pool = t_pool(t_config(4, 10));
        Seq *a = t_bare_seq(pool, 8), *b = t_bare_seq(pool, 0), *c = t_bare_seq(pool, 8);
        Seq *ab[] = {a, b}, *ac[] = {a, c};
        Batch batch = {2, ab, counts}, first = {2, ac, all};
        CHECK_OK(t_plan_write(pool, 0, &first, x, x));
        CHECK_OK(pool_write(pool, 1, x, x));
        CHECK_OK(seq_publish(c, tokens, 8));
        CHECK_OK(pool_plan(pool, &batch));
        CHECK_OK(pool_write(pool, 0, x, x));
        int stale = t_edit(which, a, b, c);
        int expected = stale ? PAGED_BAD_ARGUMENT : PAGED_OK;
        for (int flags = 0; flags < 4; flags++)
            CHECK_SAME(pool, expected, attend(pool, flags, 0, 2, 0, x, out, NULL));
        CHECK_SAME(pool, expected, pool_write(pool, 0, x, x));  // the same values again
        if (which < 5) {                                        // planned anew, it is good again
            CHECK_OK(pool_plan(pool, &batch));
            CHECK_OK(attend(pool, ATTEND_PAGED, 0, 2, 0, x, out, NULL));
        }
        t_finish(pool);
    }
    Pool *pool = t_pool(t_config(4, 4));
    Seq *a = t_seq(pool, 8), *b = t_fork(a, 8);
    CHECK_OK(seq_publish(a, tokens, 8));
    Batch batch = {1, &b, counts};
    CHECK_OK(pool_plan(pool, &batch));
    CHECK_OK(seq_publish(b, tokens, 8));  // its blocks are published: it keeps them
    CHECK_EQ(pool->plan_number != 0, 1);
    pool_destroy(pool);
}

// A plan is a copy: the caller's arrays may change, other calls use other memory, and layers come
// in any order.
static void test_plan_is_a_copy(void)
{
    Pool *pool = t_pool(t_config(4, 40));
    Seq *a = t_seq(pool, 11), *b = t_seq(pool, 3), *c = t_seq(pool, 90);
    Seq *seqs[] = {a, b};
    int counts[] = {3, 1};
    Batch batch = {2, seqs, counts};
    float *q = t_floats(4 * 4 * 4), *k = t_same(90 * 8, 0), *v = t_same(90 * 8, 0);
    float *out = t_same(4 * 4 * 4, 0), *expected[4];
    for (int flags = 0; flags < 4; flags++) {
        expected[flags] = t_same(4 * 4 * 4, 0);
        CHECK_OK(t_plan_attend(pool, flags, 1, &batch, 4, 0, q, expected[flags], NULL));
    }
    seqs[0] = seqs[1] = c;
    counts[0] = counts[1] = -1;
    memset(&batch, 0xff, sizeof batch);
    for (int i = 0; i < 16; i++) {
        CHECK_OK(attend(pool, i % 4, 1, 4, 0, q, out, NULL));
        CHECK_BITS(out, expected[i % 4], 4 * 4 * 4);
        CHECK_OK(seq_gather(i % 2 ? c : a, i / 2 % 2, k, v));
        CHECK_OK(attend(pool, i / 4, 0, 2, 0, q, out, NULL));
    }
    t_finish(pool);
}

// One long sequence among many short ones: the plan takes the memory of their tables, one after the
// other, not of the longest one times their number, which 32 bits do not hold.
static void test_plan_of_ragged_tables(void)
{
    enum { COUNT = 1024, MIDDLE = COUNT / 2 };
    const int length = 1 << 20;
    PoolConfig config = {1, 1, 1, 1, length + COUNT, PAGED_F16, 0, PAGED_CPU};
    Pool *pool = t_pool(config);
    Seq *seqs[COUNT];
    int ones[COUNT];
    for (int i = 0; i < COUNT; i++) {
        seqs[i] = t_bare_seq(pool, i == MIDDLE ? length : 1);
        ones[i] = 1;
    }
    Batch whole = {1, &seqs[MIDDLE], &length}, newest = {COUNT, seqs, ones};
    float *zeros = t_same((size_t)length, 0), *v = t_same((size_t)length, 1);
    float *out = t_same(COUNT, 0), *lse = t_same(COUNT, 0);
    CHECK_OK(t_plan_write(pool, 0, &whole, zeros, v));
    for (int i = 0; i < COUNT; i++) v[i] = i == MIDDLE ? 1 : (float)i;
    CHECK_OK(t_plan_write(pool, 0, &newest, zeros, v));
    CHECK_EQ(pool->plan->starts[COUNT].table, length + COUNT - 1);
    CHECK_OK(attend(pool, ATTEND_PAGED, 0, 1, 0, zeros, out, lse));
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQ(out[i], v[i]);
        CHECK_CLOSE(lse[i], i == MIDDLE ? logf((float)length) : 0, 1);
    }
    t_check_pool(pool);
    pool_destroy(pool);  // and the sequences that are still in it
}

// Gathered and paged give the same bits, so only the workspace tells that a copy was made. It grows
// to what a call needs, and stays: a smaller call does not make it anew.
static void test_gather_makes_a_dense_copy(void)
{
    enum { COUNT = 70 * 2 * 4 };  // tokens, KV heads, head_dim
    Pool *pool = t_pool(t_config(4, 20));
    Seq *seq = t_seq(pool, 70);
    const int one = 1;
    Batch all = {1, &seq, &seq->length}, newest = {1, &seq, &one};
    float *k = t_same(COUNT, 0), *v = t_same(COUNT, 0), *copy = t_same(COUNT, 0);
    float *q = t_floats(COUNT), *out = t_floats(COUNT);
    CHECK_OK(t_plan_attend(pool, ATTEND_PAGED, 1, &all, 2, 0, q, out, NULL));
    CHECK_EQ(pool->workspace_bytes, 0);
    CHECK_OK(attend(pool, ATTEND_GATHER, 1, 2, 0, q, out, NULL));
    size_t bytes = pool->workspace_bytes;
    const void *workspace = pool->workspace;
    CHECK(bytes >= 2 * COUNT * sizeof(float) && bytes < 4 * COUNT * sizeof(float));
    tensor_copy(pool, copy, (const float *)workspace, COUNT);
    CHECK_OK(seq_gather(seq, 1, k, v));
    CHECK_BITS(copy, k, COUNT);
    t_rewind(seq, 40);
    CHECK_OK(t_plan_attend(pool, ATTEND_GATHER, 0, &newest, 2, 0, q, out, NULL));
    CHECK_OK(attend(pool, ATTEND_PAGED, 0, 2, 0, q, out, NULL));
    CHECK(pool->workspace_bytes == bytes && pool->workspace == workspace);
    t_finish(pool);
}

// Three sequences on blocks "0 1", "2" and "3 4"; the second one brings no token and is left out.
static void test_plan_by_hand(void)
{
    static const int tables[4] = {0, 1, 3, 4};
    static const QueryToken queries[3] = {{0, 3}, {0, 4}, {2, 5}};
    static const Start starts[4] = {{0, 0}, {5, 2}, {5, 2}, {11, 4}};
    Pool *pool = t_pool(t_config(4, 8));
    Seq *seqs[3] = {t_seq(pool, 5), t_seq(pool, 3), t_seq(pool, 6)};
    int counts[3] = {2, 0, 1};
    Batch batch = {3, seqs, counts};
    CHECK_OK(pool_plan(pool, &batch));
    const Plan *plan = pool->plan;
    CHECK_EQ(plan->view.num_query_tokens, 3);
    CHECK_EQ(plan->view.max_seq_len, 6);
    CHECK_EQ(plan->view.num_seqs, 3);
    CHECK(memcmp(plan->tables, tables, sizeof tables) == 0);
    CHECK(memcmp(plan->queries, queries, sizeof queries) == 0);
    CHECK(memcmp(plan->starts, starts, sizeof starts) == 0);
    t_finish(pool);
}

// More query tokens than an int counts are refused.
static void test_plan_of_too_many_tokens(void)
{
    enum { LENGTH = 1 << 20, COPIES = 1 << 11 };
    PoolConfig config = {1, 1, 1, 1 << 16, LENGTH >> 16, PAGED_F16, 1, PAGED_CPU};
    Pool *pool = t_pool(config);
    Seq **seqs = (Seq **)t_alloc(COPIES * sizeof *seqs);
    int *counts = (int *)t_alloc(COPIES * sizeof *counts);
    seqs[0] = t_bare_seq(pool, LENGTH);
    for (int i = 0; i < COPIES; i++) {
        if (i > 0) CHECK_OK(seq_fork(seqs[0], LENGTH, &seqs[i]));
        counts[i] = LENGTH;
    }
    Batch batch = {COPIES, seqs, counts};
    BAD(pool_plan(pool, &batch));
    t_finish(pool);
}

// ---- check and dump ---------------------------------------------------------------------------

#define DAMAGE(field, wrong, word) \
    do { \
        uint64_t t_right = (uint64_t)(field); \
        (field) = (wrong); \
        CHECK(pool_check(pool) != NULL); \
        CHECK_HAS(pool_check(pool), word); \
        (field) = (int64_t)t_right; \
        t_check_pool(pool); \
    } while (0)

// pool_check() finds each kind of damage, and names the block where there is one to blame.
static void test_check_finds_damage(void)
{
    Pool *pool = t_ordered_pool(4, 12, "9 10 11");
    Seq *a = t_seq(pool, 10), *b = t_fork(a, 5);  // a: 9 10 11, b: 9 10; free: 0 to 8
    CHECK(pool_check(NULL) != NULL);
    DAMAGE(pool->blocks[9].ref_count, 3, "9");
    DAMAGE(pool->blocks[10].ref_count, 1, "10");
    DAMAGE(pool->blocks[11].ref_count, 0, "11");
    DAMAGE(pool->blocks[7].ref_count, 1, "7");
    DAMAGE(pool->blocks[7].ref_count, -1, "7");
    DAMAGE(pool->num_free, 8, "free");
    DAMAGE(pool->num_free, 10, "free");
    DAMAGE(pool->blocks[3].next, 5, "");   // block 4 is skipped
    DAMAGE(pool->blocks[3].next, 3, "3");  // a circle
    DAMAGE(pool->blocks[3].next, 0, "");   // a larger one
    DAMAGE(pool->blocks[3].next, 9, "9");  // a block in use
    DAMAGE(pool->blocks[3].next, 13, "");
    DAMAGE(pool->blocks[3].next, -1, "");
    DAMAGE(pool->blocks[3].prev, 5, "3");
    DAMAGE(pool->blocks[3].prev, -1, "3");
    DAMAGE(pool->blocks[12].next, 1, "");  // the head loses block 0
    DAMAGE(pool->blocks[12].prev, 2, "");  // the head's link to the last block
    DAMAGE(pool->blocks[9].prev, 3, "9");  // links of a block in use
    DAMAGE(pool->blocks[11].next, 3, "11");
    DAMAGE(a->block_table[1], 12, "12");
    DAMAGE(a->block_table[1], -1, "-1");
    DAMAGE(a->block_table[1], 9, "");  // 9 once too often, 10 once too rarely
    DAMAGE(a->block_table[2], 8, "");  // a free block
    DAMAGE(a->length, 13, "");
    DAMAGE(a->length, 8, "");
    DAMAGE(a->length, -1, "");
    DAMAGE(a->index, 1, "");
    DAMAGE(b->index, -1, "");
    arrput(a->block_table, 8);
    CHECK(pool_check(pool) != NULL);
    (void)arrpop(a->block_table);
    a->pool = NULL;
    CHECK(pool_check(pool) != NULL);
    a->pool = pool;
    // Several places that agree with each other, so that one look alone would not see it.
    a->block_table[2] = 8;  // a free block, with the right count
    pool->blocks[8].ref_count = 1;
    pool->blocks[11].ref_count = 0;
    CHECK_HAS(pool_check(pool), "block 8 has reference count 1");
    a->block_table[2] = 11;
    pool->blocks[8].ref_count = 0;
    pool->blocks[11].ref_count = 1;
    pool->blocks[3].next = 5;  // block 4 is lost: not in a table, and not free
    pool->blocks[5].prev = 3;
    pool->num_free--;
    CHECK_HAS(pool_check(pool), "8 blocks of 9");
    pool->blocks[3].next = 4;
    pool->blocks[5].prev = 4;
    pool->num_free++;
    t_failing = 0;
    const char *text = pool_check(pool);
    t_failing = -1;
    CHECK_HAS(text, "no memory");
    t_finish(pool);
}

// What pool_dump() and seq_dump() print, to stdout if file is NULL.
static const char *t_drawn(const Pool *pool, const Seq *seq, int to_stdout)
{
    char *text = (char *)t_alloc(4000);
    FILE *file = tmpfile();
    CHECK(file != NULL);
    fflush(stdout);
    int saved = dup(1);
    CHECK(saved >= 0 && dup2(fileno(file), 1) == 1);
    pool_dump(pool, to_stdout ? NULL : file);
    seq_dump(seq, to_stdout ? NULL : file);
    fflush(stdout);
    fflush(file);
    dup2(saved, 1);
    close(saved);
    rewind(file);
    size_t size = fread(text, 1, 3999, file);
    CHECK(size > 0 || !pool);
    fclose(file);
    return text;
}

// The drawings show counts and tables; NULL is allowed, and as a file stands for stdout.
static void test_dump(void)
{
    Pool *pool = t_pool(t_config(4, 100));
    Seq *seq = t_seq(pool, 10);
    t_fork(seq, 6);
    for (int i = 0; i < 10; i++) t_fork(seq, 4);
    const char *text = t_drawn(pool, seq, 0);
    CHECK_HAS(text, "+21....");  // 12, 2 and 1 references, then free blocks
    CHECK_HAS(text, "10 tokens");
    CHECK_HAS(text, "\n        0         0       4         12\n");
    CHECK_HAS(t_drawn(pool, t_fork(seq, 0), 0), "of 0 tokens in 0 blocks");
    CHECK_TEXT(t_drawn(NULL, NULL, 0), "");
    t_finish(pool);
    pool = t_pool(t_config(4, 8));
    seq = t_seq(pool, 10);
    t_publish(seq, 10);
    t_rewind(seq, 6);
    CHECK_HAS(t_drawn(pool, seq, 0), "1p......\n");  // a free block that can be found
    t_finish(pool);
    pool = t_pool(t_config(4, 64 * 5));
    text = t_drawn(pool, t_seq(pool, 57), 1);
    CHECK_HAS(text, ".\n      64  ....");
    CHECK_HAS(text, ".\n     256  ....");
    CHECK_HAS(text, "\n       14        14       1          1\n");  // of 15 entries
    t_finish(pool);
}

// ---- prefix cache -----------------------------------------------------------------------------
// Prompts are texts here, a token a letter; blocks have 4 tokens. The runner calls each test twice:
// with as many buckets as a pool makes, and with one, in which all published blocks collide.

// Serves a prompt: looks it up, computes the rest, and publishes. *hits: tokens that were found.
static Seq *t_serve(Pool *pool, const char *text, int *hits)
{
    int n = (int)strlen(text), *tokens = (int *)t_alloc((size_t)(n + 1) * sizeof *tokens);
    for (int i = 0; i < n; i++) tokens[i] = text[i];
    Seq *seq = t_lookup(pool, tokens, n);
    if (hits) *hits = seq->length;
    int rest = n - seq->length;
    CHECK_EQ(t_room(seq, rest), PAGED_OK);
    for (int i = n - rest; i < n; i++) (*t_tokens(seq))[i] = tokens[i];
    t_write(&seq, &rest, 1);
    t_publish(seq, n);
    t_check_all(pool);
    return seq;
}

static int t_hits(Pool *pool, const char *text)  // what a request for it finds; it is not served
{
    int n = (int)strlen(text), *tokens = (int *)t_alloc((size_t)(n + 1) * sizeof *tokens);
    for (int i = 0; i < n; i++) tokens[i] = text[i];
    Seq *seq = t_lookup(pool, tokens, n);
    int hits = seq->length;
    t_check(seq);
    t_release(seq);
    return hits;
}

// A second request shares the full blocks of what is alike; the released blocks that can be found
// wait after all others, the last one of the sequence first.
static void test_prefix_by_hand(void)
{
    int hits;
    Pool *pool = t_pool(t_config(4, 8));
    Seq *a = t_serve(pool, "aaaabbbbcc", &hits);
    CHECK_EQ(hits, 0);
    Seq *b = t_serve(pool, "aaaabbbbxxx", &hits);
    CHECK_EQ(hits, 8);
    CHECK_TEXT(TABLE(a), "0 1 2");
    CHECK_TEXT(TABLE(b), "0 1 3");
    CHECK_TEXT(COUNTS(b), "2 2 1");
    CHECK_EQ(t_hits(pool, "aaaaxxxxx"), 4);   // the second block differs
    CHECK_EQ(t_hits(pool, "aaaxbbbbb"), 0);   // the first one does
    CHECK_EQ(t_hits(pool, "bbbbb"), 0);       // the second block is no first one
    CHECK_EQ(t_hits(pool, "aaaabbbbcc"), 8);  // "cc" is no full block
    t_release(a);
    CHECK_TEXT(t_free_list(pool), "2 4 5 6 7");
    t_release(b);
    CHECK_TEXT(t_free_list(pool), "3 2 4 5 6 7 1 0");
    t_finish(pool);
}

// At least one token is left to compute, or there would be no logits for the next one.
static void test_prefix_full_prompt_hit(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    t_serve(pool, "aaaabbbbcccc", NULL);
    CHECK_EQ(t_hits(pool, "aaaabbbbcccc"), 8);
    CHECK_EQ(t_hits(pool, "aaaabbbbccccd"), 12);
    CHECK_EQ(t_hits(pool, "aaaa"), 0);
    CHECK_EQ(t_hits(pool, "aaaab"), 4);
    CHECK_EQ(t_hits(pool, ""), 0);
    t_finish(pool);
}

// A block whose parent is gone is not found after what took the parent's memory. The order of
// eviction keeps this from happening to a lone sequence, so the parent is evicted by hand.
static void test_prefix_reused_parent(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    t_release(t_serve(pool, "aaaabbbbc", NULL));  // blocks 0 and 1, published
    free_list_remove(pool, 0);
    free_list_insert_after(pool, 8, 0);  // next to be taken
    Seq *seq = t_serve(pool, "xxxx", NULL);
    CHECK_TEXT(TABLE(seq), "0");
    CHECK_EQ(t_hits(pool, "xxxxbbbbc"), 4);  // its second block is another: after "aaaa"
    CHECK_EQ(t_hits(pool, "aaaabbbbc"), 0);
    t_finish(pool);
}

// Tokens without K and V in every layer cannot be published.
static void test_prefix_before_written(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    int tokens[12] = {0}, n = 4;
    float *x = t_same(12 * 8, 1);
    Seq *seq = t_bare_seq(pool, 4);
    Batch batch = {1, &seq, &n};
    BAD(seq_publish(seq, tokens, 4));
    CHECK_OK(t_plan_write(pool, 0, &batch, x, x));
    BAD(seq_publish(seq, tokens, 4));
    BAD(seq_publish(seq, tokens, 1));
    CHECK_OK(pool_write(pool, 1, x, x));
    CHECK_EQ(seq->num_computed_tokens, 4);
    CHECK_OK(seq_append(seq, 8));
    BAD(seq_publish(seq, tokens, 5));
    for (n = 1; n < 8; n++) {  // the newest of the 8: others are missing
        CHECK_OK(t_plan_write(pool, 1, &batch, x, x));
        CHECK_EQ(seq->num_computed_tokens, 4);
    }

    CHECK_OK(t_plan_write(pool, 1, &batch, x, x));  // all 8
    CHECK_EQ(seq->num_computed_tokens, 12);
    CHECK_OK(seq_rewind(seq, 3));
    CHECK_EQ(seq->num_computed_tokens, 9);
    CHECK_OK(seq_append(seq, 1));
    n = 4;  // three of them were computed before
    CHECK_OK(t_plan_write(pool, 1, &batch, x, x));
    CHECK_EQ(seq->num_computed_tokens, 10);
    n = 1;
    CHECK_OK(t_plan_write(pool, 1, &batch, x, x));
    CHECK_EQ(seq->num_computed_tokens, 10);
    CHECK_OK(seq_publish(seq, tokens, 9));
    CHECK_EQ(t_published(seq), 2);
    CHECK_OK(seq_rewind(seq, 4));
    CHECK_EQ(t_published(seq), 2);  // block 1 is not full any more: another sequence may find it
    t_finish(pool);
}

// A published block is never written: not by a write, not by an append after a rewind into it.
static void test_prefix_blocks_are_sealed(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    Seq *seq = t_serve(pool, "aaaabbbb", NULL);
    int n = 5;
    float *x = t_same((size_t)n * 8, 1);
    Batch batch = {1, &seq, &n};
    CHECK_OK(pool_plan(pool, &batch));
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 0, x, x));
    t_rewind(seq, 2);  // into block 1, of which nothing is poisoned
    CHECK_EQ(t_hits(pool, "aaaabbbbc"), 8);
    n = 2;
    CHECK_OK(pool_plan(pool, &batch));
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 0, x, x));
    t_append(seq, 1);
    CHECK_EQ(pool->num_copies, 1);
    CHECK_TEXT(TABLE(seq), "0 2");
    CHECK_EQ(t_hits(pool, "aaaabbbbc"), 8);
    t_append(seq, 1);  // "bb" and two new tokens: another block
    t_publish(seq, 8);
    CHECK_TEXT(TABLE(seq), "0 2");
    CHECK_EQ(t_hits(pool, "aaaabbbbc"), 8);
    t_finish(pool);
}

static Seq *t_alike(Pool *pool, int n)  // n tokens, the same as those of the others
{
    Seq *seq = t_empty_seq(pool, 32);
    t_odds = 1000000;
    t_append(seq, n);
    return seq;
}

// Two requests that computed the same end up with one copy of it; the other blocks are free again.
static void test_prefix_computed_twice(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    Seq *a = t_alike(pool, 10), *b = t_alike(pool, 10);
    Seq *child = t_fork(b, 10);
    t_publish(a, 10);
    CHECK_EQ(pool->num_free, 2);
    t_publish(b, 10);
    CHECK_TEXT(TABLE(a), "0 1 2");
    CHECK_TEXT(TABLE(b), "0 1 5");
    CHECK_TEXT(TABLE(child), "3 4 5");
    t_publish(child, 10);
    CHECK_TEXT(TABLE(child), "0 1 5");
    CHECK_EQ(pool->num_free, 4);
    t_check_all(pool);
    t_release(a);
    t_release(b);
    t_finish(pool);
}

// A shared block that is published keeps its place in the chain of the sequence that published it.
// One that shares it goes on from there, though it has another copy of a block before it.
static void test_prefix_chain_of_a_sharer(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    Seq *first = t_alike(pool, 4), *a = t_alike(pool, 8), *b = t_fork(a, 8);
    t_publish(first, 4);
    t_publish(a, 8);  // takes block 0 of `first`; b keeps its own copy of it
    CHECK_TEXT(TABLE(a), "0 2");
    CHECK_TEXT(TABLE(b), "1 2");
    CHECK_SAME(pool, PAGED_OK, seq_publish(b, *t_tokens(b), 8));
    t_append(b, 4);
    t_publish(b, 12);
    CHECK_TEXT(TABLE(b), "1 2 3");
    CHECK_EQ(pool->blocks[1].serial, 0);
    CHECK_EQ(pool->blocks[3].parent, pool->blocks[2].serial);
    CHECK_SAME(pool, PAGED_OK, seq_publish(b, *t_tokens(b), 12));
    t_check_all(pool);
    t_release(b);
    CHECK_TEXT(t_free_list(pool), "1 4 5 6 7 3");
    Seq *c = t_lookup(pool, *t_tokens(a), 8);
    t_append(c, 9);
    t_publish(c, 12);
    CHECK_TEXT(TABLE(c), "0 2 3 5");
    t_finish(pool);
}

// What a sequence shares was published by another one: there is nothing left to do, and it goes on
// from there.
static void test_prefix_published_by_a_sharer(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    Seq *a = t_seq(pool, 8), *b = t_fork(a, 8), *c = t_fork(a, 7);
    t_publish(a, 8);
    CHECK_SAME(pool, PAGED_OK, seq_publish(b, *t_tokens(b), 8));
    CHECK_SAME(pool, PAGED_OK, seq_publish(c, *t_tokens(c), 7));
    CHECK_EQ(t_published(c), 2);
    CHECK_EQ(pool->last_serial, 2);
    t_append(b, 4);
    t_publish(b, 12);
    CHECK_EQ(t_published(b), 3);
    t_finish(pool);
}

// Arguments of publish and lookup that are refused, and calls that have nothing to do.
static void test_prefix_refused(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    Seq *seq = t_seq(pool, 8), *empty = t_seq(pool, 0), *one = t_seq(pool, 1);
    int tokens[9] = {0};
    BAD(seq_publish(NULL, tokens, 4));
    BAD(seq_publish(seq, NULL, 1));

    BAD(seq_publish(seq, tokens, -1));
    BAD(seq_publish(seq, tokens, 9));
    BAD(seq_lookup(NULL, tokens, 4));
    BAD(seq_lookup(empty, NULL, 1));

    BAD(seq_lookup(empty, tokens, -1));
    BAD(seq_lookup(seq, tokens, 4));  // not empty
    BAD(seq_lookup(one, tokens, 4));
    CHECK_SAME(pool, PAGED_OK, seq_publish(seq, NULL, 0));
    CHECK_SAME(pool, PAGED_OK, seq_publish(seq, tokens, 3));
    CHECK_SAME(pool, PAGED_OK, seq_lookup(empty, NULL, 0));
    CHECK_SAME(pool, PAGED_OK, seq_lookup(empty, tokens, 9));
    t_finish(pool);
}

// pool_check() sees what is wrong with the prefix cache.
static void test_prefix_check_finds_damage(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    Seq *seq = t_serve(pool, "aaaabbbbc", NULL);
    t_release(t_serve(pool, "xxxxyyyyz", NULL));
    int *bucket = pool->buckets;
    while (*bucket < 0) bucket++;
    DAMAGE(pool->blocks[1].serial, 0, "");
    DAMAGE(pool->blocks[1].serial, 99, "1");
    DAMAGE(pool->blocks[5].serial, 1, "");
    DAMAGE(pool->blocks[1].parent, 3, "1");
    if (!t_one_bucket) DAMAGE(pool->blocks[1].parent, 0, "1");
    if (!t_one_bucket) DAMAGE(pool->tokens[0], 'b', "0");
    DAMAGE(pool->blocks[1].next_in_bucket, 1, "");
    DAMAGE(pool->blocks[1].next_in_bucket, 8, "8");
    DAMAGE(pool->blocks[1].next_in_bucket, -2, "");
    if (t_one_bucket) DAMAGE(pool->blocks[*bucket].next_in_bucket, -1, "1 blocks of 4");
    DAMAGE(*bucket, -1, "");
    DAMAGE(*bucket, 6, "6");
    DAMAGE(*bucket, 8, "8");
    DAMAGE(pool->last_serial, 3, "");
    DAMAGE(seq->num_computed_tokens, 10, "");
    DAMAGE(seq->num_computed_tokens, -1, "");
    t_finish(pool);
}

// Of the free blocks those that hold nothing are taken first, then the least recently used, and the
// end of a text before its beginning. A hit takes a block off the free list, from wherever it is
// there. What was evicted is not found, and neither is it when its memory holds something else.
static void test_prefix_recency(void)
{
    int hits;
    Pool *pool = t_pool(t_config(4, 6));
    t_release(t_serve(pool, "aaaabbbbcccc", NULL));
    CHECK_TEXT(t_free_list(pool), "3 4 5 2 1 0");
    Seq *seq = t_serve(pool, "aaaabbbbxxxx", &hits);
    CHECK_EQ(hits, 8);
    CHECK_TEXT(TABLE(seq), "0 1 3");
    CHECK_TEXT(t_free_list(pool), "4 5 2");
    t_append(seq, 12);  // the rest of the pool: block 2 is forgotten, 0 and 1 are in use
    CHECK_EQ(pool->num_free, 0);
    CHECK_EQ(t_hits(pool, "aaaabbbbcccce"), 8);
    t_finish(pool);
    pool = t_pool(t_config(4, 4));
    t_release(t_serve(pool, "aaaabbbbcccc", NULL));
    CHECK_TEXT(t_free_list(pool), "3 2 1 0");
    t_release(t_serve(pool, "xxxxyyyyz", NULL));  // takes 3, 2, 1
    CHECK_EQ(t_hits(pool, "aaaabbbbccccd"), 4);
    CHECK_TEXT(t_free_list(pool), "1 2 3 0");  // the hit was the last use of block 0
    t_release(t_serve(pool, "vvvvwwwwz", NULL));
    CHECK_EQ(t_hits(pool, "aaaab"), 4);
    CHECK_EQ(t_hits(pool, "xxxxyyyyz"), 0);
    t_release(t_serve(pool, "1111222233334444", NULL));
    CHECK_EQ(t_hits(pool, "aaaab"), 0);
    CHECK_EQ(t_hits(pool, "11112222333344445"), 16);
    t_finish(pool);
}

// A token is mixed in by a round of splitmix64, whose first numbers for some seeds are known.
static void test_prefix_hash(void)
{
    const int zero[] = {0}, minus[] = {-1}, chain[] = {7, 0};
    Pool *pool = t_pool(t_config(1, 1009)), *pairs = t_pool(t_config(2, 1009));
    pool->num_buckets = pairs->num_buckets = 1009;
    CHECK_EQ(prefix_bucket(pool, 0, zero) - pool->buckets, 0xe220a8397b1dcdafu % 1009);
    CHECK_EQ(prefix_bucket(pool, 1234567, zero) - pool->buckets, 6457827717110365317u % 1009);
    CHECK(prefix_bucket(pool, 0, minus) == prefix_bucket(pool, 0xffffffffu, zero));
    CHECK(prefix_bucket(pool, 1, zero) != prefix_bucket(pool, 2, zero));
    uint64_t z = 7 + 0x9e3779b97f4a7c15u;  // the first token, by hand; the second is 0
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    CHECK_EQ(prefix_bucket(pairs, 0, chain) - pairs->buckets,
             prefix_bucket(pool, z, zero) - pool->buckets);
    t_finish(pool);
    t_finish(pairs);
}

// ---- numbers of 16 bits -----------------------------------------------------------------------

// What the bits mean, straight from the definition. The bits of infinity stand for the power of two
// that would come next: rounding up to it is how numbers become infinite.
static double t_value(int dtype, int bits)
{
    const int width = dtype == PAGED_F16 ? 10 : 7;  // of the mantissa
    const int least = dtype == PAGED_F16 ? -24 : -133;
    const int exponent = bits >> width, mantissa = bits % (1 << width);
    return exponent ? ldexp((1 << width) + mantissa, exponent - 1 + least) : ldexp(mantissa, least);
}

// The nearest of all values, ties to even bits, by bisection: slow, and plain to see.
static int t_nearest(float x, int dtype)
{
    double magnitude = fabs((double)x);
    int low = 0, high = dtype == PAGED_F16 ? 0x7c00 : 0x7f80, sign = signbit(x) ? 0x8000 : 0;
    if (magnitude >= t_value(dtype, high)) return sign | high;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(t_value(dtype, middle) <= magnitude ? &low : &high) = middle;
    }
    double down = magnitude - t_value(dtype, low), up = t_value(dtype, high) - magnitude;
    return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}

static void t_check_rounding(float x)
{
    t_at("%a", x);
    CHECK_EQ(f32_to_f16(x), t_nearest(x, PAGED_F16));
    CHECK_EQ(f32_to_bf16(x), t_nearest(x, PAGED_BF16));
}

// By hand, through a cache of each dtype: numbers that it holds, ties to even and their neighbours,
// the largest number, the first that overflows, the smallest, zero, infinity. NaN stays NaN.
static void test_conversions_by_hand(void)
{
    enum { N = 14 };
    // clang-format off
    static const float rows[N][3] = {  // what is stored, and what f16 and bf16 make of it
        {1, 1, 1}, {-2, -2, -2}, {-0.0f, -0.0f, -0.0f}, {-INFINITY, -INFINITY, -INFINITY},
        {65504, 65504, 65536}, {65519.996f, 65504, 65536}, {65520, INFINITY, 65536},
        {3.4e38f, INFINITY, INFINITY}, {0x1p-24f, 0x1p-24f, 0x1p-24f}, {0x1p-25f, 0, 0x1p-25f},
        {0x1.8p-24f, 0x1p-23f, 0x1.8p-24f}, {0x1.002p0f, 1, 1}, {0x1.006p0f, 0x1.008p0f, 1},
        {0x1.03p0f, 0x1.03p0f, 0x1.04p0f}};
    // clang-format on
    const int one = 1;
    for (int dtype = PAGED_F32; dtype <= PAGED_BF16; dtype++) {
        PoolConfig config = {1, 1, N, 1, 1, dtype, 1, PAGED_CPU};
        Pool *pool = t_pool(config);
        Seq *seq = t_bare_seq(pool, 1);
        Batch batch = {1, &seq, &one};
        float in[N], expected[N], k[N], v[N];
        for (int i = 0; i < N; i++) {
            in[i] = rows[i][0];
            expected[i] = rows[i][dtype];
        }
        CHECK_OK(t_plan_write(pool, 0, &batch, in, in));
        CHECK_OK(seq_gather(seq, 0, k, v));
        CHECK_BITS(k, expected, N);
        CHECK_BITS(v, expected, N);
        t_finish(pool);
    }
    CHECK_EQ(f32_to_f16(NAN), 0x7e00);
    CHECK_EQ(f32_to_bf16(NAN), 0x7fc0);
    for (uint32_t nan = 0x7f800001; nan - 1 < 0x7fffffff; nan = nan * 2 - 0x7f800000) {
        float x;  // a NaN with one more low bit set each time: none may round to infinity
        memcpy(&x, &nan, sizeof x);
        CHECK(isnan(x) && isnan(f16_to_f32(f32_to_f16(x))) && isnan(bf16_to_f32(f32_to_bf16(x))));
    }
}

// All 65536 patterns there and back, all ties and their neighbours, and random floats.
static void test_conversions_exhaustively(void)
{
    for (int bits = 0; bits < 65536; bits++) {
        int magnitude = bits & 0x7fff;
        double sign = bits > 0x7fff ? -1 : 1;
        float f16 = f16_to_f32((uint16_t)bits), bf16 = bf16_to_f32((uint16_t)bits);
        t_at("bits %#x", bits);
        CHECK(magnitude > 0x7c00 ? isnan(f16) : f32_to_f16(f16) == bits);
        CHECK(magnitude > 0x7f80 ? isnan(bf16) : f32_to_bf16(bf16) == bits);
        if (magnitude < 0x7c00) CHECK(f16 == sign * t_value(PAGED_F16, magnitude));
        if (magnitude < 0x7f80) CHECK(bf16 == sign * t_value(PAGED_BF16, magnitude));
    }
    for (int i = 0; i < 2 * 0x7f80; i += t_quick ? 37 : 1) {
        if (i % 2 && i / 2 >= 0x7c00) continue;
        int dtype = i % 2 ? PAGED_F16 : PAGED_BF16;
        float tie = (float)((t_value(dtype, i / 2) + t_value(dtype, i / 2 + 1)) / 2);
        t_check_rounding(tie);
        t_check_rounding(-nextafterf(tie, 0));
        t_check_rounding(nextafterf(tie, 1e38f));
    }
    for (int i = 0; i < t_times(200000); i++) {
        uint32_t bits = (uint32_t)t_random();
        float x;
        memcpy(&x, &bits, sizeof x);
        if (!isnan(x)) t_check_rounding(x);
        t_check_rounding((float)ldexp(t_between(-(1 << 24), 1 << 24), t_between(-54, -5)));
    }
}

// ---- bugs that others shipped -----------------------------------------------------------------

// A pool of many GB, of which little is touched; only with --huge, it may be all of it.
static Pool *t_huge_pool(PoolConfig config)
{
    Pool *pool = NULL;
    if (t_quick) t_skip("a huge pool, and this is --quick");
    if (sizeof(size_t) < 8) t_skip("a huge pool, and addresses of 32 bits");
    config.poison = 0;
    config.device = t_device;
    int error = pool_create(&config, &pool);
    if (error == PAGED_OUT_OF_MEMORY) t_skip("no address space for a huge pool");
    CHECK_OK(error);
    return pool;
}

// Offsets beyond 2^31 elements and block ids beyond 65535 (vLLM issues 1486, 50427). The pool is
// huge, but only a few blocks of it are ever touched.
static void test_bug_32_bit_offsets(void)
{
    PoolConfig config = {2, 8, 128, 16, 132000, PAGED_F16, 0, PAGED_CPU};  // 17 GB
    Pool *pool = t_huge_pool(config);
    Seq *most = t_bare_seq(pool, 16 * (132000 - 4)), *high = t_empty_seq(pool, 64);
    t_append(high, 37);
    CHECK_TEXT(TABLE(high), "131996 131997 131998");
    CHECK(t_offset(pool, 0, 131996, 0, 0) > (size_t)1 << 31);
    CHECK((uint64_t)t_offset(pool, 1, 131996, 0, 0) > (uint64_t)1 << 32);
    for (int layer = 0; layer < 2; layer++) {  // written and read at the same wrong place?
        size_t at = t_offset(pool, layer, 131996, 0, 0);
        CHECK(t_element(pool, pool->k, at) == t_oracle(high)->k[layer * 64 * 8 * 128]);
        CHECK(t_element(pool, pool->v, at) == t_oracle(high)->v[layer * 64 * 8 * 128]);
    }
    t_append(t_fork(high, 35), 1);  // copies block 131998 to 131999
    CHECK_EQ(pool->num_copies, 1);
    t_release(most);
    t_append(t_empty_seq(pool, 64), 20);  // blocks 0 and 1
    t_finish(pool);
}

// The prefix cache keeps the tokens of blocks in an array that may have more than 2^31 entries.
static void test_bug_32_bit_prefixes(void)
{
    enum { BLOCK = 1 << 15, BLOCKS = (1 << 16) + 3 };
    PoolConfig config = {1, 1, 1, BLOCK, BLOCKS, PAGED_F16, 0, PAGED_CPU};
    Pool *pool = t_huge_pool(config);
    Seq *half = t_bare_seq(pool, BLOCK * (BLOCKS / 2 - 1)), *most = t_bare_seq(pool, half->length);
    Seq *seq = t_empty_seq(pool, 2 * BLOCK);
    t_append(seq, BLOCK);
    t_release(half);
    t_release(most);
    CHECK((int64_t)seq->block_table[0] * BLOCK > INT_MAX);
    t_publish(seq, BLOCK);
    int *tokens = (int *)t_alloc((BLOCK + 1) * sizeof *tokens);
    memcpy(tokens, *t_tokens(seq), BLOCK * sizeof *tokens);
    Seq *hit = NULL;
    CHECK_OK(seq_create(pool, &hit));
    CHECK_OK(seq_lookup(hit, tokens, BLOCK + 1));
    CHECK_EQ(hit->length, BLOCK);
    CHECK_EQ(hit->block_table[0], seq->block_table[0]);
    t_check(seq);
    t_release(seq);
    t_release(hit);
    CHECK_EQ(pool->num_free, BLOCKS);
    pool_destroy(pool);
}

// One token can have more than 2^31 elements.
static void test_bug_32_bit_rows(void)
{
    enum { HEADS = (1 << 23) + 1, DIM = 256 };
    if (!t_huge) t_skip("it takes ten seconds and 9 GB of memory: --huge");
    PoolConfig config = {1, HEADS, DIM, 1, 1, PAGED_F16, 0, PAGED_CPU};
    Pool *pool = t_huge_pool(config);
    Seq *seq = t_bare_seq(pool, 1);
    const int one = 1, heads[] = {0, 1, HEADS / 2, HEADS - 1};
    Batch batch = {1, &seq, &one};
    volatile size_t count = (size_t)HEADS * DIM;   // volatile: 32-bit compilers would warn
    float *x = (float *)calloc(count, sizeof *x);  // zeros, which take no memory
    if (!x) t_skip("it takes an array of 8 GB");
    for (int i = 0; i < 4; i++) x[(size_t)heads[i] * DIM + DIM - 1] = (float)(i + 1);
    int error = t_plan_write(pool, 0, &batch, x, x);
    free(x);
    CHECK_OK(error);
    for (int i = 0; i < 4; i++) {
        size_t at = t_offset(pool, 0, 0, heads[i], 0) + DIM - 1;
        CHECK_EQ(t_element(pool, pool->k, at), i + 1);
        CHECK_EQ(t_element(pool, pool->v, at), i + 1);
        CHECK_EQ(t_element(pool, pool->v, at - 1), 0);
    }
    t_finish(pool);
}

// A sequence as long as a length can be. Its K and V are the zeros of untouched memory, so the sum
// of the weights is its length.
static void test_bug_longest_sequence(void)
{
    if (!t_huge) t_skip("it takes a minute: --huge");
    PoolConfig config = {1, 1, 1, 1 << 20, 1 << 11, PAGED_F16, 0, PAGED_CPU};
    Pool *pool = t_huge_pool(config);
    Seq *seq = t_bare_seq(pool, INT_MAX);
    const int one = 1;
    const float q = 1;
    Batch batch = {1, &seq, &one};
    CHECK_EQ(seq_append(seq, 1), PAGED_TOO_LONG);
    float out = 1, lse = 0;
    CHECK_OK(t_plan_attend(pool, ATTEND_PAGED, 0, &batch, 1, 0, &q, &out, &lse));
    CHECK_CLOSE(lse, logf((float)INT_MAX), 1);
    CHECK(out == 0);
    t_finish(pool);
}

// Unused slots of the last block may hold anything: NaN (every test with poison), infinity or 1e30,
// left there by others (vLLM issue 641: 0 * NaN is NaN).
static void test_bug_unused_slots(void)
{
    const float garbage[] = {1e30f, -INFINITY, NAN};
    const int n = 32;
    for (int i = 0; i < 18; i++) {  // the fast path has its own way with them
        int dim = i < 9 ? 4 : 64;
        PoolConfig config = t_config(8, 4);
        config.dtype = i % 9 / 3;
        config.head_dim = dim;
        config.poison = 0;
        Pool *pool = t_pool(config);
        Seq *seq = t_seq(pool, n);
        Batch batch = {1, &seq, &n};
        const float *x = t_same(n * 2 * dim, garbage[i % 3]);
        CHECK_OK(t_plan_write(pool, 0, &batch, x, x));
        CHECK_OK(t_plan_write(pool, 1, &batch, x, x));
        t_release(seq);
        seq = t_seq(pool, 11);
        t_check_all(pool);
        t_rewind(seq, 1);
        t_finish(pool);
    }
}

// All tokens alike: the result is their value, whatever their score is. Far below any constant that
// might stand for minus infinity (FlashInfer issue 4450); beyond what a float holds, until it is
// scaled; and values whose sum no float holds.
static void test_bug_large_negative_scores(void)
{
    const struct {
        int dim;
        float q, k, scale, v, score;
    } rows[] = {{128, 64, -64, 0, 1, -46340.95f},
                {1, 0x1p65f, 0x1p65f, 0x1p-126f, 2, 16},
                {64, 0x1p65f, 0x1p65f, 0x1p-126f, 2, 1024},
                {1, 1, 0, 0, 0x1.8p127f, 0},
                {64, 1, 0, 0, 0x1.8p127f, 0}};
    const int one = 1;
    for (int i = 0; i < 5 * 2; i++) {
        const int dim = rows[i % 5].dim, n = 1 + 5 * i;
        PoolConfig config = {1, 1, dim, 16, 4, i % 2 ? PAGED_F32 : PAGED_BF16, 1, PAGED_CPU};
        Pool *pool = t_pool(config);
        Seq *seq = t_bare_seq(pool, n);
        Batch all = {1, &seq, &n}, newest = {1, &seq, &one};
        float out[3 * 128], lse[3], v = rows[i % 5].v, score = rows[i % 5].score;
        const float *q = t_same(3 * dim, rows[i % 5].q), *k = t_same(n * dim, rows[i % 5].k);
        CHECK_OK(t_plan_write(pool, 0, &all, k, t_same(n * dim, v)));
        CHECK_OK(pool_plan(pool, &newest));
        for (int way = 0; way < 8; way++) {
            int heads = way < 4 ? 1 : 3;
            t_at("row %d, %d tokens, %d heads, flags %d", i % 5, n, heads, way % 4);
            CHECK_OK(attend(pool, way % 4, 0, heads, rows[i % 5].scale, q, out, lse));
            for (int d = 0; d < heads * dim; d++) CHECK_CLOSE(out[d], v, v);
            CHECK_CLOSE(lse[heads - 1], score + logf((float)n), fabs(score));
        }
        t_finish(pool);
    }
}

// Chunked prefill: the queries of a chunk see the chunks before it and their own past, no more and
// no less (nano-vllm issue 212). Pages of 4, chunks of 3, 2, 5 and of 4, 3, 2, then a rewind of 3,
// as in tiny-llm's tests.
static void test_bug_chunked_prefill(void)
{
    const int chunks[2][3] = {{3, 2, 5}, {4, 3, 2}};
    for (int script = 0; script < 2; script++) {
        Pool *pool = t_pool(t_config(4, 8));
        t_shuffle(pool);
        Seq *seq = t_seq(pool, 0);
        for (int i = 0; i < 3; i++) {
            t_append(seq, chunks[script][i]);
            t_attend(&seq, &chunks[script][i], 1, 4, 0);
        }
        t_rewind(seq, 3);
        t_finish(pool);
    }
}

// ---- attention --------------------------------------------------------------------------------

// 0 as the scale stands for 1 / sqrt(head_dim), and lse may be left out.
static void test_scale_and_lse(void)
{
    const int n = 5;
    PoolConfig config = {2, 2, 64, 8, 8, PAGED_F32, 1, PAGED_CPU};
    Pool *pool = t_pool(config);
    Seq *seq = t_seq(pool, 29);
    t_attend(&seq, &n, 1, 6, 0.01f);
    Batch batch = {1, &seq, &n};
    float *q = t_floats(n * 6 * 64), *a = t_same(n * 6 * 64, 0), *b = t_same(n * 6 * 64, 0);
    float lse[30];
    CHECK_OK(t_plan_attend(pool, ATTEND_PAGED, 1, &batch, 6, 0, q, a, lse));
    CHECK_OK(t_plan_attend(pool, ATTEND_PAGED, 1, &batch, 6, 0.125f, q, b, NULL));
    CHECK_BITS(a, b, n * 6 * 64);
    t_finish(pool);
}

// A sequence of one layer and one head with these K and V, attended by its newest token, alone and
// in a group of three. The score is element 0 of K. Every way must agree with the oracle; NaN must
// be where the oracle has it.
static void t_attend_values(const PoolConfig *config, int n, const float *k, const float *v)
{
    const int one = 1, dim = config->head_dim;
    Pool *pool = t_pool(*config);
    Seq *seq = t_bare_seq(pool, n);
    Batch all = {1, &seq, &n}, newest = {1, &seq, &one};
    float *q = t_same(3 * dim, 0), *out = t_same(3 * dim, 0), lse[3];
    float *expected = t_same(dim, 0), expected_lse;
    float largest[PAGED_MAX_HEAD_DIM] = {0};
    for (int i = 0; i < n * dim; i++)
        if (isfinite(v[i])) largest[i % dim] = fmaxf(largest[i % dim], fabsf(v[i]));
    for (int head = 0; head < 3; head++) q[head * dim] = 1;
    Oracle *oracle = oracle_create(config, n);
    oracle->length = n;
    oracle_write(oracle, 0, n, k, v);
    oracle_attend(oracle, 0, 1, 1, 1, q, expected, &expected_lse);
    oracle_release(oracle);
    CHECK_OK(t_plan_write(pool, 0, &all, k, v));
    CHECK_OK(pool_plan(pool, &newest));
    for (int way = 0; way < 8; way++) {
        int heads = way < 4 ? 1 : 3;
        CHECK_OK(attend(pool, way % 4, 0, heads, 1, q, out, lse));
        for (int i = 0; i < heads * dim; i++)
            CHECK_CLOSE(out[i], expected[i % dim], largest[i % dim]);
        for (int i = 0; i < heads; i++) CHECK_CLOSE(lse[i], expected_lse, fabs(expected_lse));
    }
    t_finish(pool);
}

// K and V out of the ordinary (t_wild), crossed by chance: scores far below the others, or minus
// infinity, which weigh nothing even where they fill whole tiles, warps and splits and nothing else
// has been seen yet; NaN and infinity, which are not lost, wherever they are; values whose sum
// overflows. A row that sees only minus infinity gives 0, and -infinity as lse. A draw that fails
// is the first one of its --seed.
static void test_extreme_values(void)
{
    const int dims[] = {1, 4, 8, 20, 64, 128};
    const char *const kind[] = {"far",      "very far", "-infinity", "infinity",
                                "NaN in K", "NaN in V", "huge V"};
    const char *const place[] = {"at", "before", "from", "every fourth, as",
                                 "all but every fourth, as"};
    int draws = t_on_stand_in() ? 60 : 300;
    for (int i = 0; i < (t_quick ? draws / 2 : draws); i++) {
        t_state = (t_seed + i) * 0x9e3779b97f4a7c15u;
        int turn = (int)((t_seed + i) % 4), n = turn == 0 ? t_between(510, 600) : t_between(1, 50);
        int leading = turn == 1 ? n : 0;  // of score -infinity
        if (turn == 0) leading = n - t_between(0, 90);
        int dim = dims[t_between(0, 5)];
        PoolConfig config = {1, 1, dim, 4, (n + 3) / 4, t_between(0, 2), 1, PAGED_CPU};
        size_t mark = arrlenu(t_memory);
        float *k = t_floats(n * dim), *v = t_floats(n * dim);
        t_at("--seed %llu: head_dim %d, dtype %d, %d tokens, the first %d of score -infinity",
             (unsigned long long)t_seed + i, dim, config.dtype, n, leading);
        for (int t = 0; t < leading; t++) t_make_wild(T_MINUS_INFINITY, &config, k + t * dim, v);
        for (int kinds = t_between(0, turn == 1 ? 1 : 3); kinds > 0; kinds--) {
            int id = t_between(T_FAR, t_between(0, 1) ? T_MINUS_INFINITY : T_HUGE_V);
            if (id == T_HUGE_V && config.dtype == PAGED_F16) id = T_NAN_IN_V;  // it has no 3e38
            int at = t_between(0, n - 1), where = t_between(0, 4);
            t_at("%s; %s %s token %d", t_where, kind[id - T_FAR], place[where], at);
            for (int t = 0; t < n; t++) {
                const int here[] = {t == at, t < at, t >= at, t % 4 == at % 4, t % 4 != at % 4};
                if (here[where]) t_make_wild(id, &config, k + t * dim, v + t * dim);
            }
        }
        t_attend_values(&config, n, k, v);
        t_free_to(mark);
    }
}

// ---- kernels ----------------------------------------------------------------------------------

// Tensors are made, filled, read and freed where the pool lives; sizes that overflow are refused.
static void test_tensors(void)
{
    Pool *pool = t_pool(t_config(4, 2));
    const size_t too_large[] = {0, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX / 4 - 10, SIZE_MAX / 8};
    const float *x = t_floats(100);
    float *y = t_same(101, 7), *a = tensor_create(pool, 100), *b = tensor_create(pool, 100);
    CHECK(a && b);
    tensor_copy(pool, a, x, 100);
    tensor_copy(pool, b, a, 100);
    tensor_copy(pool, y, b, 100);
    CHECK_BITS(y, x, 100);
    CHECK(y[100] == 7);
    tensor_copy(pool, a, x, 0);
    tensor_copy(pool, NULL, x, 100);
    tensor_copy(pool, y, NULL, 100);
    tensor_copy(NULL, y, x, 1);
    for (int i = 0; i < 5; i++) CHECK(!tensor_create(pool, too_large[i]));
    CHECK(!tensor_create(NULL, 100));
    t_failing = 0;
    float *none = tensor_create(pool, 100);
    t_failing = -1;
    CHECK(!none || (T_REAL_GPU && t_device == PAGED_GPU));  // cudaMalloc() does not ask t_failing
    tensor_free(pool, none);
    tensor_free(pool, a);
    tensor_free(pool, b);
    tensor_free(pool, NULL);
    tensor_free(NULL, y);
    t_finish(pool);
}

// Each of the fast kernels: a dtype, groups of one, four and eight, head_dim up to 128 and beyond.
// Tensor cores are for 16 bits, and vectors of at most 128 elements, a multiple of 8. Then lengths
// around the ends of their splits, 512 tokens, and groups that fill a tile of query heads, overflow
// it, or take several; the last two are larger than what the CPU takes at once.
static void test_every_split_kernel(void)
{
    const int dims[] = {64, 96, 136, 20}, groups[] = {1, 4, 8};
    const int more[][4] = {
        {PAGED_BF16, 511, 9, 24},  {PAGED_F16, 512, 1, 128}, {PAGED_BF16, 513, 17, 8},
        {PAGED_F32, 1024, 2, 64},  {PAGED_F16, 1027, 4, 80}, {PAGED_BF16, 40, 8, 256},
        {PAGED_BF16, 577, 8, 128}, {PAGED_F16, 70, 8, 84},   {PAGED_F16, 70, 2, 20},
        {PAGED_F32, 8200, 1, 8},   {PAGED_F16, 20, 65, 128}, {PAGED_F32, 20, 129, 64}};
    int plain = t_on_stand_in() && T_WAYS != 4;  // there it is slow, and has no splits
    for (int i = 0; i < 36 + (plain ? 2 : 12); i++) {
        const int few[4] = {i / 12, 11, groups[i / 4 % 3], dims[i % 4]};
        const int *shape = i < 36 ? few : more[i - 36], counts[] = {2, 1};
        PoolConfig config = {1, 1, shape[3], 16, 3 + shape[1] / 16, shape[0], 1, PAGED_CPU};
        if (i < 36) config.num_layers = config.num_kv_heads = 2;

        t_at("dtype %d, length %d, group %d, head_dim %d", shape[0], shape[1], shape[2], shape[3]);
        Pool *pool = t_pool(config);
        t_shuffle(pool);
        Seq *seqs[] = {t_seq(pool, shape[1]), t_seq(pool, 3)};  // the longest comes first
        t_attend(seqs, counts, 2, shape[2] * config.num_kv_heads, 0);
#ifndef __CUDACC__
        if (t_on_stand_in() && i < 36) {  // which kernel ran last?
            float *q = t_floats(3 * 2 * 136), *out = t_same(3 * 2 * 136, 0);
            CHECK_OK(attend(pool, ATTEND_FAST, 0, 2, 0, q, out, NULL));
            CHECK_TEXT(gpu.name, T_WAYS == 4 ? "merge_splits" : "attend_paged");
            CHECK_OK(attend(pool, ATTEND_PAGED, 0, 2, 0, q, out, NULL));
            CHECK_TEXT(gpu.name, "attend_paged");
        }
#endif
        t_finish(pool);
    }
}

// Queries far larger and far smaller than f16 holds, infinite ones, and of more bits: two tokens
// have the same score, but for what is beyond 8 bits of q, made of a large q and a small K or of a
// small and a large one.
static void test_queries_of_any_size(void)
{
    const float sizes[] = {0x1p-10f, 1, 0x1p20f};
    const int two = 2;
    for (int i = 0; i < 3 * 3; i++) {
        float k[2 * 8] = {32 / sizes[i / 3]}, v[2 * 8] = {1}, q[2 * 2 * 8] = {0}, out[2 * 2 * 8],
                    lse[4];
        PoolConfig config = {1, 1, 8, 4, 2, i % 3, 1, PAGED_CPU};
        Pool *pool = t_pool(config);
        Seq *seq = t_bare_seq(pool, 2);
        Batch all = {1, &seq, &two};
        for (int h = 0; h < 4; h++) {
            q[h * 8] = (1 + 0x1.5554p-9f) * sizes[i / 3];
            q[h * 8 + 1] = 1 * sizes[i / 3];
        }
        k[8 + 1] = k[0];
        v[8] = -1;
        t_at("dtype %d, queries of %g", i % 3, sizes[i / 3]);
        CHECK_OK(t_plan_write(pool, 0, &all, k, v));
        for (int flags = 0; flags < 4; flags++) {
            CHECK_OK(t_plan_attend(pool, flags, 0, &all, 2, 1, q, out, lse));
            CHECK_CLOSE(out[16], tanhf(16 * 0x1.5554p-9f), 1);
        }
        for (int d = 0; d < 16; d++) k[d] = 1;
        for (int h = 0; h < 4; h++) q[h * 8] = -INFINITY;  // and so are all scores
        CHECK_OK(t_plan_write(pool, 0, &all, k, v));
        for (int flags = 0; flags < 4; flags++) {
            CHECK_OK(t_plan_attend(pool, flags, 0, &all, 2, 1, q, out, lse));
            CHECK(out[16] == 0 && lse[3] == -INFINITY);
        }
        t_finish(pool);
    }
}

// A move of a script: a sequence, forked first if it has a parent, takes n new tokens.
typedef struct Move {
    int step, seq, parent, at, n;  // moves of one step are one batch; parent -1: no fork
} Move;

static void t_play(Pool *pool, Seq **seqs, const Move *moves, int count)
{
    for (int first = 0, end; first < count; first = end) {
        Seq *batch[8];
        int num_tokens[8];
        t_at("step %d", moves[first].step);
        for (end = first; end < count && moves[end].step == moves[first].step; end++) {
            const Move *m = &moves[end];
            if (m->parent >= 0) seqs[m->seq] = t_fork(seqs[m->parent], m->at);
            if (!seqs[m->seq]) seqs[m->seq] = t_seq(pool, 0);
            CHECK_OK(t_room(seqs[m->seq], m->n));
            batch[end - first] = seqs[m->seq];
            num_tokens[end - first] = m->n;
        }
        t_write(batch, num_tokens, end - first);
        t_attend(batch, num_tokens, end - first, 4, 0);
        t_check_all(pool);
    }
}

// TVM's scripts, every sequence checked after every step: ragged prefills and appends; forks on all
// sides of a block boundary; pops, the last one back across a shared boundary.
static void test_tvm_scripts(void)
{
    const Move prefill[] = {{0, 0, -1, 0, 6},  {1, 1, -1, 0, 8},  {2, 2, -1, 0, 11},
                            {3, 3, -1, 0, 16}, {4, 4, -1, 0, 19}, {4, 5, -1, 0, 20},
                            {5, 6, -1, 0, 21}, {5, 7, -1, 0, 24}, {6, 2, -1, 0, 5},
                            {6, 4, -1, 0, 7},  {6, 7, -1, 0, 24}, {7, 0, -1, 0, 1}};
    const Move forks[] = {
        {0, 0, -1, 0, 60},  {0, 1, -1, 0, 88},  {0, 2, -1, 0, 17},  {0, 3, -1, 0, 4},
        {1, 4, 3, 4, 35},   {2, 5, 0, 60, 20},  {3, 6, 1, 33, 11},  {4, 7, 0, 60, 45},
        {4, 8, 0, 15, 14},  {5, 9, 0, 16, 19},  {5, 10, 0, 17, 19}, {6, 11, 5, 60, 8},
        {6, 12, 5, 80, 10}, {7, 13, 5, 75, 11}, {7, 14, 5, 76, 45}, {7, 15, 5, 77, 14},
        {8, 6, -1, 0, 10},  {8, 11, -1, 0, 1},  {8, 15, -1, 0, 4},  {9, 0, -1, 0, 1}};
    const int pops[] = {17, 57, 16, 0, 37};  // sequence 4 began as a fork of 3 at 4
    for (int i = 0; i < 4; i += t_on_stand_in() ? 3 : 1) {
        Pool *pool = t_pool(t_config(i / 2 ? 16 : 4, 256));
        Seq *seqs[16] = {NULL};
        t_play(pool, seqs, i % 2 ? forks : prefill, i % 2 ? 20 : 12);
        for (int j = 0; i % 2 && j < 5; j++) {
            t_rewind(seqs[j], pops[j]);
            t_check_all(pool);
        }

        t_finish(pool);
    }
}

// ---- random operations ------------------------------------------------------------------------

// An append, a fork within it, and only then the write: it must be refused, until the fork is gone.
static void t_fork_before_write(Seq *seq, int n)
{
    const PoolConfig *c = &seq->pool->config;
    if (t_room(seq, n) != PAGED_OK) return;
    const float *x = t_floats((size_t)n * c->num_kv_heads * c->head_dim);
    Batch batch = {1, &seq, &n};
    Seq *child = t_fork(seq, seq->length - t_between(0, n - 1));
    CHECK_OK(pool_plan(seq->pool, &batch));
    CHECK_SAME(seq->pool, PAGED_BLOCK_SHARED, pool_write(seq->pool, c->num_layers - 1, x, x));
    t_release(child);
    t_write(&seq, &n, 1);
}

// One random operation on one of the sequences. Returns what seq_append() said if it was one. Not
// inlined, so that a debugger can stop at it.
__attribute__((noinline)) static int t_random_operation(Pool *pool, Seq *seq, int may_create)
{
    int b = pool->config.block_size, all = pool->config.num_blocks * b;
    int choice = seq ? t_between(0, 19) : 0, sometimes = t_between(0, 3) == 0;
    if (choice <= 1) {
        if (may_create) t_seq(pool, 0);
    } else if (choice <= 7) {
        int n = sometimes ? t_between(0, 3 * b) : t_between(0, 3);
        return t_try_append(seq, t_between(0, 200) ? n : all);
    } else if (choice <= 10) {
        if (may_create) t_fork(seq, sometimes ? t_between(0, seq->length) : seq->length);
    } else if (choice <= 12) {
        t_rewind(seq, t_between(0, sometimes ? seq->length : t_min(seq->length, b)));
    } else if (choice == 13) {
        t_fork_before_write(seq, t_between(1, b + 1));
    } else if (choice <= 16) {
        if (choice < 16) t_publish(seq, sometimes ? t_between(0, seq->length) : seq->length);
        if (choice > 14 && may_create) t_lookup(pool, *t_tokens(seq), seq->length);
    } else if (choice == 17) {  // a prompt that none has now, but that may have been published
        int *tokens = (int *)t_alloc((size_t)all * sizeof *tokens);
        if (t_between(0, 1)) tokens[t_between(0, all - 1)] = 1;
        if (may_create) t_lookup(pool, tokens, t_between(0, all));
    } else {
        t_release(seq);
    }
    return PAGED_OK;
}

// How many of the newest n tokens of a sequence can be attended to, out of what is left of *budget.
// The oracle computes an exponential for each element of V that a query sees, and the stand-in
// takes its time for each token.
static int t_affordable(const Seq *seq, int n, int num_q_heads, double *budget)
{
    double cost = (double)seq->length * num_q_heads;
    if (!t_on_stand_in()) cost *= seq->pool->config.head_dim;
    if (n * cost > *budget) n = (int)(*budget / cost);
    *budget -= n * cost;
    return n;
}

// A step of a model. Of the sequences, some take no token, others one, a chunk, or a draft. All new
// ones are written in one batch and attended to in one, and drafts are dropped again.
static void t_step(Pool *pool, int num_q_heads, int chunk)
{
    int count = (int)arrlen(pool->seqs), first = t_between(0, count - 1);
    Seq *seqs[T_SEQS] = {NULL};
    int new_tokens[T_SEQS] = {0}, num_tokens[T_SEQS] = {0}, drafts[T_SEQS];
    double budget = t_on_stand_in() ? 600 : 100000;
    for (int i = 0; i < count; i++) {
        Seq *seq = seqs[i] = pool->seqs[(first + i) % count];
        int n = t_between(0, 2) == 0 ? 0 : t_between(1, t_between(0, 2) ? 2 : chunk);
        if (t_room(seq, n) != PAGED_OK) n = 0;
        new_tokens[i] = n;
        drafts[i] = t_between(0, 2) ? 0 : t_between(0, n);
        if (t_wild && drafts[i] > 0) {
            int *wild = *t_tokens(seq) + seq->length - t_between(1, drafts[i]);
            *wild = t_between(T_PLUS_INFINITY, T_INFINITE_V);
        }
    }
    t_write(seqs, new_tokens, count);
    for (int i = 0; i < count; i++) {
        int n = t_min(new_tokens[i] + t_between(0, 2), seqs[i]->length);
        num_tokens[i] = t_affordable(seqs[i], n, num_q_heads, &budget);
        if (i == 0 && n > 0 && num_tokens[i] == 0) num_tokens[i] = 1;
    }
    const float scales[] = {0, 0, 0.125f, -0.3f, 1e-30f};
    t_attend(seqs, num_tokens, count, num_q_heads, t_wild ? 1 : scales[t_between(0, 4)]);
    for (int i = 0; i < count; i++) t_rewind(seqs[i], drafts[i]);
}

static int t_block_size(void)
{
    const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 32, 33, 256};
    return sizes[t_between(0, 12)];
}

// What comes out for a token depends on its sequence alone. One sequence of the pool is attended to
// in company; then it is built anew in another pool, in blocks of another size, chunk by chunk, and
// attended to alone, by another number of threads: every bit is the same.
static void t_check_same_bits(Pool *pool, int num_q_heads, int flags)
{
    int count = (int)arrlen(pool->seqs), which = t_between(0, count - 1), first = 0;
    int layer = t_between(0, pool->config.num_layers - 1), num_tokens[T_SEQS];
    Seq *seq = pool->seqs[which];
    double budget = t_on_stand_in() ? 600 : 1e6;
    int n = t_affordable(seq, t_min(seq->length, 40), num_q_heads, &budget);
    size_t row = (size_t)num_q_heads * pool->config.head_dim, rows = 0;
    for (int i = 0; i < count; i++) {
        num_tokens[i] = i == which ? n : t_min(pool->seqs[i]->length, t_between(0, 2));
        if (i < which) first += num_tokens[i];
        rows += num_tokens[i];
    }
    if (n == 0) return;
    float *q = t_floats(rows * row), *out = t_same(rows * row, 0);
    float *lse = t_same(rows * num_q_heads, 0);
    Batch batch = {count, pool->seqs, num_tokens};
    CHECK_OK(t_plan_attend(pool, flags, layer, &batch, num_q_heads, 0, q, out, lse));

    PoolConfig config = pool->config;
    config.block_size = t_block_size();
    config.num_blocks = seq->length / config.block_size + 3;
    Pool *other = t_pool(config);
    t_shuffle(other);
    Seq *copy = t_empty_seq(other, seq->length);
    float *own_out = t_same(n * row, 0), *own_lse = t_same((size_t)n * num_q_heads, 0);
    for (int chunk; copy->length < seq->length;) {
        int missing = seq->length - copy->length;
        chunk = t_min(missing, t_between(1, t_between(0, 1) ? 7 : 99));
        CHECK_OK(t_room(copy, chunk));
        memcpy(*t_tokens(copy), *t_tokens(seq), copy->length * sizeof(int));
        t_write(&copy, &chunk, 1);
        if (missing - chunk >= n) continue;
        int newest = t_min(chunk, n + chunk - missing), at = n + chunk - missing - newest;
        Batch alone = {1, &copy, &newest};
        const float *own_q = q + (first + at) * row;
#ifdef _OPENMP
        omp_set_num_threads(t_between(1, 4));
#endif
        CHECK_OK(t_plan_attend(other, flags ^ t_between(0, 1), layer, &alone, num_q_heads, 0, own_q,
                               own_out, own_lse));
        CHECK_BITS(own_out, out + (first + at) * row, newest * row);
        CHECK_BITS(own_lse, lse + (first + at) * num_q_heads, newest * num_q_heads);
#ifdef _OPENMP
        omp_set_num_threads(omp_get_num_procs());
#endif
    }
    t_release(copy);
    t_finish(other);
}

// Random operations on up to `most` sequences in a pool that keeps running out, compared with the
// oracle after each one; every so often a step. Sequences often begin alike (t_odds), so that the
// prefix cache has hits, some of the time with all blocks in one bucket. The first sequence begins
// with `length` tokens. What fails says which operation it was, so that a debugger can stop there.
static void t_operate(PoolConfig config, int length, int num_q_heads, int operations, int every,
                      int most)
{
    int refused = 0, hits = 0;
    int chunk = every < 50 ? t_between(3, 40) : 3 * config.block_size;
    Pool *pool = t_pool(config);
    if (!config.poison) t_fill(pool, 0);  // for valgrind: all bytes are compared
    const char *shape = t_format("%s", t_where);
    if (t_between(0, 3) == 0) pool->num_buckets = 1;
    t_odds = t_between(0, 3) ? 4 * config.block_size : 0;
    t_seq(pool, length);
    for (int i = 0; i < operations; i++) {
        size_t mark = arrlenu(t_memory);
        int count = (int)arrlen(pool->seqs);
        Seq *seq = count > 0 ? pool->seqs[t_between(0, count - 1)] : NULL;
        t_operation = t_operation + 1;
        t_at("%s\n  in gdb: break t_random_operation if t_operation == %d", shape, t_operation);
        refused += t_random_operation(pool, seq, count < most) != PAGED_OK;
        t_check_pool(pool);
        if (arrlen(pool->seqs) > count && arrlast(pool->seqs)->num_computed_tokens > 0) hits++;
        count = (int)arrlen(pool->seqs);
        for (int j = 0; j < count; j++)  // the one it was, if it is still there, or any other
            if (pool->seqs[j] == seq || t_between(0, 15) == 0) t_check(pool->seqs[j]);
        if (i % every == 0 && count > 0) t_step(pool, num_q_heads, chunk);
        t_free_to(mark);
    }
    if (operations > 1000) CHECK(refused > 0 && (config.block_size == 1 || pool->num_copies > 0));
    if (operations > 10000 && t_odds) CHECK(hits > 0 && pool->last_serial > 20);
    if (arrlen(pool->seqs) > 0) t_check_same_bits(pool, num_q_heads, t_between(0, T_WAYS - 1));
    while (arrlen(pool->seqs) > 0) t_release(arrlast(pool->seqs));
    t_finish(pool);
    t_odds = 0;
}

// A small shape with many operations, in every dtype and many block sizes.
static void test_random(void)
{
    const int block_sizes[] = {1, 2, 3, 4, 5, 7, 8, 16, 32};
    for (int i = 0; i < 27; i++) {
        PoolConfig config = t_config(block_sizes[i / 3], t_between(6, 30));
        config.dtype = i % 3;
        t_at("block size %d, dtype %d", config.block_size, config.dtype);
        int operations = t_times(t_operations) / (t_on_stand_in() ? 1350 : 27);
        t_operate(config, 0, 2 * t_between(1, 3), operations, t_on_stand_in() ? 500 : 50, T_SEQS);
    }
}

// Everything that a shape is made of, crossed by chance: each draw is another shape, on which a few
// operations are made, and several steps. The sequences of every fourth are about as long as one or
// two splits of the fast kernels. A draw that fails is the first one of its --seed.
static void test_shapes_crossed(void)
{
    const int dims[] = {1, 3, 8, 16, 20, 32, 48, 64, 64, 80, 96, 112, 128, 128, 256};
    const int groups[] = {1, 1, 2, 3, 4, 5, 7, 8, 9, 17, 33, 63, 64, 65, 128, 129};
    const int heads[] = {1, 1, 2, 2, 3, 3, 8, 40};
    int draws = t_on_stand_in() ? 30 : 200;
    if (t_quick) draws = t_on_stand_in() ? 6 : 20;
    for (int i = 0; i < draws; i++) {
        t_state = (t_seed + i) * 0x9e3779b97f4a7c15u;
        t_operation = 0;
        int group = groups[t_between(0, t_on_stand_in() ? 9 : 15)], b = t_block_size();
        int is_long = (t_seed + i) % 4 == 0, length = t_between(0, 130);
        if (is_long) length = 512 * t_between(1, 2) + t_between(-8, 8);
        PoolConfig config = t_config(b, 3 + (length + t_between(20, 150)) / b);
        config.num_layers = t_between(1, 2);
        config.num_kv_heads = heads[t_between(0, t_on_stand_in() ? 5 : 7)];
        if (group > 8 || is_long) config.num_layers = config.num_kv_heads = 1;
        config.head_dim = dims[t_between(0, 14)];
        config.dtype = t_between(0, 2);
        config.poison = !is_long && t_between(0, 1);
        t_wild = t_between(0, 2) == 0;
#ifndef __CUDACC__
        gpu_lane_order = t_between(0, 1) ? 0 : (unsigned)t_between(1, 8);  // 1: descending
#endif
        t_at("--seed %llu: %d layers, %d KV heads, group %d, head_dim %d, block size %d, "
             "%d blocks, length %d, dtype %d, poison %d, wild %d",
             (unsigned long long)t_seed + i, config.num_layers, config.num_kv_heads, group,
             config.head_dim, b, config.num_blocks, length, config.dtype, config.poison, t_wild);
        t_operate(config, length, group * config.num_kv_heads, t_on_stand_in() ? 12 : 20, 4, 4);
    }
}

// Shapes for which chunks, blocks and tiles end in different places.
static void test_same_bits_however_cut(void)
{
    for (int i = 0; i < (t_on_stand_in() ? 6 : 24); i++) {
        int b = t_block_size(), dim = i % 4 < 2 ? 64 : 20;
        PoolConfig config = {1, 1 + i % 2, dim, b, 160 / b + 3, i % 3, 1, PAGED_CPU};
        t_at("block size %d, head_dim %d, dtype %d", b, dim, config.dtype);
        Pool *pool = t_pool(config);
        t_shuffle(pool);
        t_seq(pool, 75);
        t_seq(pool, 50 + i);
        for (int flags = 0; flags < T_WAYS; flags++) t_check_same_bits(pool, 4, flags);
        t_finish(pool);
    }
}

// ---- what ends the program ---------------------------------------------------------------------

#ifdef T_COVERAGE
#ifdef __cplusplus
extern "C" void __gcov_dump(void);
#else
void __gcov_dump(void);
#endif

static void t_dump_coverage(int signal)
{
    (void)signal;
    __gcov_dump();
}
#endif

static char *t_child(void (*run)(int), int which, int *status)
{
    int ends[2];
    char *words = (char *)t_alloc(4000);
    CHECK_EQ(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        alarm(300);
#ifdef T_COVERAGE
        signal(SIGABRT, t_dump_coverage);
#endif
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        if (setjmp(t_end) == 0) run(which);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t size = 0, got = 1; got > 0 && size < 4000; size += got)
        got = read(ends[0], words + size, (size_t)(4000 - size));
    close(ends[0]);
    CHECK(child > 0 && waitpid(child, status, 0) == child);
    return words;
}

// Of one that must stop with abort(), as INVARIANT does.
static const char *t_last_words(void (*run)(int), int which)
{
    int status = 0;
    const char *words = t_child(run, which, &status);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    return words;
}

static void t_run_tests_that_fail(int which)
{
    const char *const names[] = {"fails_on_purpose", "crashes_on_purpose", "exits_on_purpose",
                                 "no_such_test", "--seed"};
    execlp(t_program, t_program, "--cpu", "oracle_by_hand", names[which], (char *)NULL);
}

// The comparisons of this file reject NaN and infinity, which `difference > tolerance` lets pass. A
// test that fails, crashes or hangs makes the program fail and is named, and the others still run.
// A name that is not a test is an error.
static void test_bug_tests_that_cannot_fail(void)
{
    const float nan_value = NAN, infinite = INFINITY;
    const char *const says[] = {"1 + 1: expected 3, got 2\n  at the end\n", "signal",
                                "exit status 0", "no_such_test", "--seed"};
    CHECK(t_close(1, 1, 1) && t_close(1, 1.000009f, 1) && t_close(100, 100.0009f, 100));
    CHECK(!t_close(1, 1.00002f, 1) && !t_close(nan_value, nan_value, 1));
    CHECK(!t_close(1, nan_value, 1) && !t_close(nan_value, 1, 1) &&
          !t_close(infinite, infinite, 1));
    for (int i = 0; i < 5; i++) {
        int status = 0;
        const char *text = t_child(t_run_tests_that_fail, i, &status);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), i < 3 ? 1 : 2);
        CHECK_HAS(text, says[i]);
        if (i < 3) CHECK_HAS(text, t_format("FAILED: %s --cpu --seed 1 ", t_program));
        if (i < 3) CHECK_HAS(text, "_on_purpose\n1 passed, 1 failed, 0 skipped\n");
    }
}

static void test_fails_on_purpose(void)
{
    t_at("the %s", "end");
    CHECK_EQ(1 + 1, 3);
}

static void test_crashes_on_purpose(void) { abort(); }
static void test_exits_on_purpose(void) { exit(0); }

static void t_violate(int which)
{
    Pool *pool = t_pool(t_config(4, 4));
    Seq *a = t_seq(pool, 8), *b = t_seq(pool, which == 0 ? 8 : 0);
    int one = 1;
    Batch batch = {1, &a, &one};
    const PoolConfig huge = {INT_MAX, INT_MAX, 256, 1, 1, PAGED_F32, 0, PAGED_CPU};
    void *volatile memory;  // volatile: otherwise a compiler may leave the allocation out
    volatile size_t too_much = SIZE_MAX - 4096;
    if (which == 0) pool->num_free = 1, (void)seq_append(b, 1);
    if (which == 1) pool->blocks[2].ref_count = 1, (void)seq_append(b, 1);
    if (which == 2) pool->blocks[0].ref_count = 0, seq_release(a);
    if (which == 3) a->index = 1, seq_release(a);
    if (which == 4) {
        t_publish(a, 8);
        seq_release(a);
        for (int i = 0; i < pool->num_buckets; i++) pool->buckets[i] = -1;
        (void)seq_append(b, 16);
    }
    if (which == 5) memory = realloc_or_panic(NULL, too_much), (void)memory;
    if (which == 6) (void)oracle_create(&huge, INT_MAX);
    if (which == 7) t_oracle(a)->length = 17, oracle_write(t_oracle(a), 0, 0, NULL, NULL);
    if (which == 8) a->block_table[0] = -1;
    if (which == 9) a->block_table[1] = 4;
    if (which == 10) a->block_table[0] = INT_MAX;
    if (which >= 8) (void)pool_plan(pool, &batch);
}

// A program that has damaged a pool is stopped where the engine notices, with a line that says why.
static void test_invariants_stop(void)
{
    const char *const texts[] = {"no free block to take",
                                 "a block on the free list is in use",
                                 "a free block is given back",
                                 "a sequence that its pool does not know is released",
                                 "a published block is not in its bucket",
                                 "out of memory",
                                 "no oracle has this shape",
                                 "a sequence is longer than its oracle",
                                 "a table entry is not a block"};
    for (int i = 0; i < 11; i++) {
        t_at("violation %d", i);
        const char *words = t_last_words(t_violate, i);
        CHECK_HAS(words, texts[t_min(i, 8)]);
        CHECK_HAS(words, "paged.cu.c:");
    }
}

#ifndef __CUDACC__

KERNEL(t_wrong, int)
{
    if (job == 0 && threadIdx.x < WARP)
        __syncthreads();
    else if (job == 0)
        __syncthreads();
    if (job == 1) (void)__shfl_xor_sync(ALL_LANES >> 1, 0, 1);
    if (job == 2 && threadIdx.x % WARP == 3) __syncthreads();
    if (job == 2) (void)__shfl_xor_sync(ALL_LANES, 0, 1);
    if (job == 3 && threadIdx.x != 33) __syncthreads();
    if (job == 4) shared[threadIdx.x] = 0;
}

static void t_run_wrong_kernel(int which)
{
    const int shared_floats[] = {0, 0, 0, 0, THREADS - 1, 1 << 20};
    unsetenv("PAGED_LANE_ORDER");  // the texts are those of ascending order
    gpu_lane_order = 0;
    LAUNCH(t_wrong, 2, 1, 1, shared_floats[which], which);
}
#endif

// The stand-in for a GPU stops kernels that would hang a real one, or compute anything there, and
// names the lane.
static void test_stand_in_stops(void)
{
#ifdef __CUDACC__
    t_skip("a real GPU does not look at what its kernels do");
#else
    const char *const texts[][2] = {
        {"thread 32 (warp 1, lane 0): ", "the other threads wait at another barrier"},
        {"paged.cu.c:", "the stand-in knows shuffles of whole warps only"},
        {"t_wrong, thread block (0, 0, 0), thread 0 (warp 0, lane 0): ", "deadlock"},
        {"t_wrong, thread block (0, 0, 0), thread 0 (warp 0, lane 0): ", "deadlock"},
        {"paged.cu.c:", "written after the end of the shared memory asked for"},
        {"paged.cu.c:", "too much shared memory"}};
    for (int i = 0; i < 6; i++) {
        t_at("kernel %d", i);
        const char *words = t_last_words(t_run_wrong_kernel, i);
        CHECK_HAS(words, texts[i][0]);
        CHECK_HAS(words, texts[i][1]);
    }
#endif
}

// ---- the runner -------------------------------------------------------------------------------

typedef struct Test {
    const char *name;
    void (*run)(void);
    int on;  // which pools it runs on
} Test;

enum { T_ON_CPU = 1, T_ON_DEVICE = 2, T_NOT_HERE = 4, T_WHEN_NAMED = 8 };

// clang-format off
static const Test t_tests[] = {
#define TEST(name) {#name, test_##name, T_ON_CPU}
#define BOTH(name) {#name, test_##name, T_ON_CPU | T_ON_DEVICE}
#define DEVICE_ONLY(name) {#name, test_##name, T_ON_DEVICE}
#define NAMED(name) {#name, test_##name, T_ON_CPU | T_WHEN_NAMED}
    TEST(example_bytes), BOTH(layout), BOTH(example_eight_steps), BOTH(example_softmax_by_hand),
    TEST(oracle_by_hand), TEST(free_list_order), BOTH(append_takes_blocks_exactly),
    BOTH(append_all_or_nothing), BOTH(rewind_into_shared_block), BOTH(append_in_full_pool),
    BOTH(write_to_shared_block_refused), BOTH(gather_and_write_back), BOTH(poison),
    TEST(refused_pools), TEST(refused_sequence_calls), BOTH(refused_batches), BOTH(refused_steps),
    TEST(out_of_memory), TEST(memory_asked_for), BOTH(plan_goes_out_of_date),
    BOTH(plan_is_a_copy), TEST(plan_of_ragged_tables), TEST(plan_of_too_many_tokens),
    TEST(plan_by_hand), BOTH(gather_makes_a_dense_copy), TEST(check_finds_damage), TEST(dump),
    BOTH(prefix_by_hand), BOTH(prefix_full_prompt_hit), BOTH(prefix_reused_parent),
    BOTH(prefix_before_written), BOTH(prefix_blocks_are_sealed), BOTH(prefix_computed_twice),
    BOTH(prefix_chain_of_a_sharer), BOTH(prefix_published_by_a_sharer),
    BOTH(prefix_recency), TEST(prefix_refused), BOTH(prefix_check_finds_damage), TEST(prefix_hash),
    BOTH(conversions_by_hand), TEST(conversions_exhaustively), BOTH(bug_32_bit_offsets),
    TEST(bug_32_bit_prefixes), TEST(bug_32_bit_rows), TEST(bug_longest_sequence),
    BOTH(bug_unused_slots), BOTH(bug_large_negative_scores), BOTH(bug_chunked_prefill),
    BOTH(scale_and_lse), BOTH(extreme_values), BOTH(queries_of_any_size), BOTH(every_split_kernel),
    BOTH(tensors), BOTH(tvm_scripts), BOTH(random), BOTH(shapes_crossed),
    BOTH(same_bits_however_cut), TEST(bug_tests_that_cannot_fail), TEST(invariants_stop),
    DEVICE_ONLY(stand_in_stops), NAMED(fails_on_purpose), NAMED(crashes_on_purpose),
    NAMED(exits_on_purpose),
};
// clang-format on
enum { T_COUNT = sizeof t_tests / sizeof t_tests[0] };

static double t_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// As the command that runs it again.
static void t_print_failed(const Test *test)
{
    const char *const options[] = {"--cpu", "--gpu", "--standin"};  // [device]
    printf("  FAILED: %s %s%s --seed %llu ", t_program, options[t_device],
           t_quick ? " --quick" : "", (unsigned long long)t_seed);
    if (t_operations != T_OPERATIONS) printf("--ops %d ", t_operations);
    printf("%s\n", test->name);
}

static int t_run_test(const Test *test)
{
    const double start = t_now();
    t_turns = 0;
    t_operation = 0;
    t_state = t_seed;  // its random numbers depend on its name, not on the tests before it
    for (const char *c = test->name; *c; c++) t_state = t_state * 31 + (uint64_t)*c;
    switch (setjmp(t_end)) {
    case 0:
        test->run();
        if (strncmp(test->name, "prefix_", 7) == 0) {
            t_one_bucket = 1;
            t_at("all in one bucket");
            test->run();
        }
        printf("ok %8.2f s\n", t_now() - start);
        return T_PASSED;
    case T_SKIPPED: return T_SKIPPED;
    default: t_print_failed(test); return T_FAILED;
    }
}

static void t_clean_up(void)
{
    t_failing = -1;
    t_free_to(0);
    arrfree(t_memory);
    t_odds = t_wild = t_one_bucket = 0;
#ifndef __CUDACC__
    gpu_lane_order = 0;
#endif
    for (ptrdiff_t i = 0; i < hmlen(t_twins); i++) {
        oracle_release(t_twins[i].value);
        arrfree(t_twins[i].tokens);
    }
    hmfree(t_twins);
}

// In a child, so that a crash ends only this test, and is reported with its name. Exit statuses of
// the sanitizers and of valgrind are not among those that mean a result.
static int t_run_in_child(const Test *test)
{
    enum { RESULT = 40, SECONDS = 1200 };
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        int result = t_run_test(test);
        t_clean_up();
        fflush(stdout);
        if (result == T_FAILED) _exit(RESULT + T_FAILED);  // what it has left behind is not a leak
        exit(RESULT + result);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        printf("SKIPPED: no process to run it in\n");
        return T_SKIPPED;
    }
    int result = WIFEXITED(status) ? WEXITSTATUS(status) - RESULT : -1;
    if (result >= T_PASSED && result <= T_SKIPPED) return result;
    if (WIFSIGNALED(status))
        printf("\nsignal %d: %s\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        printf("\nexit status %d\n", WEXITSTATUS(status));
    if (t_where[0]) printf("  at %s\n", t_where);
    t_print_failed(test);
    return T_FAILED;
}

typedef struct Choice {
    int tests[T_COUNT];
    int num_tests;  // that were named, in the order in which they run; 0: all
    int devices;    // T_ON_CPU and T_ON_DEVICE, if asked for
} Choice;

// Reads argument i of main(), and returns the index of the last one it used, or -1.
static int t_argument(char **argv, int i, Choice *choice)
{
    const char *option = argv[i];
    const char *value = argv[i + 1];
    int test = 0;
    if (value && strcmp(option, "--seed") == 0) {
        t_seed = strtoull(value, NULL, 10);
        return i + 1;
    }
    if (value && strcmp(option, "--ops") == 0) {
        t_operations = atoi(value);
        return i + 1;
    }
    while (test < T_COUNT && strcmp(option, t_tests[test].name) != 0) test++;
    if (strcmp(option, "--quick") == 0)
        t_quick = 1;
    else if (strcmp(option, "--huge") == 0)
        t_huge = 1;
    else if (strcmp(option, "--cpu") == 0)
        choice->devices |= T_ON_CPU;
    else if (strcmp(option, "--gpu") == 0 || strcmp(option, "--standin") == 0)
        choice->devices |= (option[2] == 'g') == T_REAL_GPU ? T_ON_DEVICE : T_NOT_HERE;
    else if (test < T_COUNT && choice->num_tests < T_COUNT)
        choice->tests[choice->num_tests++] = test;
    else
        return -1;
    return i;
}

// Says what the tests marked BOTH and DEVICE_ONLY are going to run on; 0 if there is nothing.
static int t_find_device(void)
{
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
    printf("stand-in: SKIPPED: ThreadSanitizer does not follow its coroutines\n");
    return 0;
#elif defined(__CUDACC__)
    cudaDeviceProp properties;
    if (!device_exists(PAGED_GPU)) {
        printf("GPU: SKIPPED: %s\n", paged_error(PAGED_NO_GPU));
        return 0;
    }
    CUDA(cudaGetDeviceProperties(&properties, 0));
    printf("GPU: %s, sm_%d%d\n", properties.name, properties.major, properties.minor);
    return 1;
#else
    printf("stand-in for a GPU, its lanes in three orders\n");
    return 1;
#endif
}

static void t_run_tests(const Choice *choice, int on, int *count)
{
    int named = choice->num_tests > 0;
    for (int t = 0; t < (named ? choice->num_tests : T_COUNT); t++) {
        const Test *test = &t_tests[named ? choice->tests[t] : t];
        if (!(test->on & on) || (test->on & T_WHEN_NAMED && !named)) continue;
        printf("%-32s%s ", test->name, on == T_ON_CPU ? "   " : T_REAL_GPU ? "gpu" : "standin");
        fflush(stdout);
        t_where[0] = 0;
        // One by name is for a debugger, and CUDA does not survive fork().
        if (choice->num_tests == 1 || (T_REAL_GPU && on == T_ON_DEVICE)) {
            count[t_run_test(test)]++;
            t_clean_up();
        } else {
            count[t_run_in_child(test)]++;
        }
    }
}

int main(int argc, char **argv)
{
    int count[3] = {0, 0, 0};
    Choice choice;
    memset(&choice, 0, sizeof choice);
    t_program = argv[0];
    t_first_line = T_FIRST_LINE;
    t_where = (char *)mmap(NULL, T_AT, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t_where == MAP_FAILED) return perror("mmap"), 2;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);  // what was printed stands, should a sanitizer stop it
    for (int i = 1; i < argc; i++) {
        int last = t_argument(argv, i, &choice);
        if (strcmp(argv[i], "--list") == 0) {
            for (int t = 0; t < T_COUNT; t++)
                if (!(t_tests[t].on & T_WHEN_NAMED)) printf("%s\n", t_tests[t].name);
            return 0;
        }
        if (last < 0) {
            fprintf(stderr, "%s: no test or option is called %s; see --list\n", argv[0], argv[i]);
            return 2;
        }
        i = last;
    }

    if (choice.devices == 0) choice.devices = T_ON_CPU | T_ON_DEVICE;
    printf("seed %llu%s; ATTEND_FAST is %s\n", (unsigned long long)t_seed,
           t_quick ? ", quick: random work is cut to a twentieth" : "",
           T_WAYS == 4 ? "the code of fast/" : "the plain code, for want of -DPAGED_FAST");
    if (choice.devices & T_NOT_HERE) {
        printf("%s\n", T_REAL_GPU ? "stand-in: SKIPPED: nvcc makes no stand-in for a GPU"
                                  : "GPU: SKIPPED: this program was not built by nvcc");
        count[T_SKIPPED]++;
    }
    if (choice.devices & T_ON_CPU) t_run_tests(&choice, T_ON_CPU, count);
    t_device = T_DEVICE;
    if (choice.devices & T_ON_DEVICE) {
        if (t_find_device())
            t_run_tests(&choice, T_ON_DEVICE, count);
        else
            count[T_SKIPPED]++;
    }
    printf("%d passed, %d failed, %d skipped\n", count[T_PASSED], count[T_FAILED],
           count[T_SKIPPED]);
    return count[T_FAILED] > 0;
}
