// tests.c: what paged.h promises, shown by running it.
//
//     ./tests               all tests
//     ./tests NAME...       these tests
//     ./tests --list        their names
//     ./tests --seed N      other random numbers (the seed of a run is printed)
//     ./tests --quick       random work cut to a twentieth: for valgrind
//     ./tests --cpu, --gpu  on pools of this device only (without nvcc, the GPU is a stand-in)
//     ./tests --ops N       how many operations the random test makes
//
// Behaviour is shown on numbers that a hand can check, and then on random ones, which the oracle of
// paged.h judges: a cache without blocks. Every sequence here has a twin there, and t_append(),
// t_fork(), t_rewind() and t_release() do the same to both. t_room() also restates how many blocks
// an append may take, and t_attend() runs attention three ways: gathered, paged, and by the oracle.
// The first two must agree in every bit, and with the third within 1e-5.
//
// A failing check prints where it stands and ends its test; the others go on. In a debugger: break
// on t_fail, then look up the stack. Each test gives back all blocks, and t_finish() checks that.

#include <stdlib.h>

// Allocations of the engine go through these three, so that a test can make one fail.
static int t_failing = -1;  // so many allocations succeed, then one fails; -1: none fails

static void *t_malloc(size_t size)
{
    return t_failing >= 0 && t_failing-- == 0 ? NULL : malloc(size);
}

static void *t_calloc(size_t count, size_t size)
{
    return t_failing >= 0 && t_failing-- == 0 ? NULL : calloc(count, size);
}

static void *t_aligned_alloc(size_t alignment, size_t size)
{
    return t_failing >= 0 && t_failing-- == 0 ? NULL : aligned_alloc(alignment, size);
}

#define malloc t_malloc
#define calloc t_calloc
#define aligned_alloc t_aligned_alloc
#define PAGED_NO_MAIN
#include "paged.cu.c"
#undef malloc
#undef calloc
#undef aligned_alloc

#include <glob.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

// ---- checks -----------------------------------------------------------------------------------

enum { T_PASSED, T_FAILED, T_SKIPPED };

static jmp_buf t_end;       // where a failing check goes
static char t_where[200];   // what a loop is at, printed when a check fails
static void **t_memory;     // what t_alloc() gave out, freed after the test
static char t_folder[400];  // of the temporary files of the test, removed after it
static const char *t_program;
static uint64_t t_seed = 1, t_state;
static int t_quick, t_operations = 600000;
static unsigned t_turn, t_turns;  // what is done only every so often: counted in each test anew
static int t_device = PAGED_CPU;  // where the pools of the test live
static const char *t_only;        // --cpu or --gpu, if given

static void t_at(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(t_where, sizeof t_where, format, list);
    va_end(list);
}

static void t_fail(int line, const char *what, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("\n%s:%d: %s: ", __FILE__, line, what);
    vprintf(format, list);
    printf("%s%s\n", t_where[0] ? "\n  at " : "", t_where);
    va_end(list);
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

static void t_check_close(int line, const char *what, float actual, float expected, double largest)
{
    if (!t_close(actual, expected, largest))
        t_fail(line, what, "expected %.9g, got %.9g", expected, actual);
}

#define CHECK(x) ((x) ? (void)0 : t_fail(__LINE__, #x, "expected true, got false"))
#define CHECK_EQ(actual, expected) t_check_eq(__LINE__, #actual, actual, expected)
#define CHECK_OK(call) t_check_eq(__LINE__, #call, call, PAGED_OK)
#define CHECK_TEXT(actual, expected) t_check_text(__LINE__, #actual, actual, expected, 1)
#define CHECK_HAS(actual, part) t_check_text(__LINE__, #actual, actual, part, 0)
#define CHECK_CLOSE(actual, expected, largest) \
    t_check_close(__LINE__, #actual, actual, expected, largest)
#define CHECK_BITS(a, b, floats) CHECK(memcmp(a, b, (floats) * sizeof(float)) == 0)

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
// On a real GPU, tensors have to be in its memory. Tests keep theirs on the host, so there these go
// between, under the names of the calls; on a CPU and on the stand-in the calls are called.

#ifdef __CUDACC__
enum { T_REAL_GPU = 1 };

static size_t t_rows(const Pool *pool, const Batch *batch)  // 0: not a batch, it will be refused
{
    size_t rows = 0;
    if (!pool || !batch || !batch->seqs || !batch->num_tokens) return 0;
    if (batch->num_seqs < 0 || batch->num_seqs > arrlen(pool->seqs)) return 0;
    for (int i = 0; i < batch->num_seqs; i++)
        if (batch->seqs[i] && batch->num_tokens[i] > 0 &&
            batch->num_tokens[i] <= batch->seqs[i]->length)
            rows += (size_t)batch->num_tokens[i];
    return rows;
}

static float *t_there(const Pool *pool, const float *x, size_t count)
{
    if (!x || !pool || pool->config.device == PAGED_CPU) return (float *)x;
    float *there = tensor_create(pool, count + 1);
    tensor_copy(pool, there, x, count);
    return there;
}

static void t_back(const Pool *pool, float *x, float *there, size_t count)
{
    if (!x || x == there) return;
    tensor_copy(pool, x, there, count);
    tensor_free(pool, there);
}

static int t_pool_write(Pool *pool, int layer, const Batch *batch, const float *k, const float *v)
{
    size_t n = pool ? t_rows(pool, batch) * pool->config.num_kv_heads * pool->config.head_dim : 0;
    float *k_there = t_there(pool, k, n), *v_there = t_there(pool, v, n);
    int error = pool_write(pool, layer, batch, k_there, v_there);
    if (k_there != k) tensor_free(pool, k_there);
    if (v_there != v) tensor_free(pool, v_there);
    return error;
}

static int t_seq_gather(const Seq *seq, int layer, float *k, float *v)
{
    const Pool *pool = seq ? seq->pool : NULL;
    size_t n = seq ? (size_t)seq->length * pool->config.num_kv_heads * pool->config.head_dim : 0;
    float *k_there = t_there(pool, k, n), *v_there = t_there(pool, v, n);
    int error = seq_gather(seq, layer, k_there, v_there);
    t_back(pool, k, k_there, n);
    t_back(pool, v, v_there, n);
    return error;
}

static int t_attend_there(Pool *pool, int method, int layer, const Batch *batch, int num_q_heads,
                          float scale, const float *q, float *out, float *lse)
{
    int heads = num_q_heads > 0 && num_q_heads < 1000 ? num_q_heads : 0;
    size_t rows = t_rows(pool, batch) * heads, n = pool ? rows * pool->config.head_dim : 0;
    float *q_there = t_there(pool, q, n), *out_there = t_there(pool, out, n);
    float *lse_there = t_there(pool, lse, rows);
    int error =
        attend(pool, method, layer, batch, num_q_heads, scale, q_there, out_there, lse_there);
    if (q_there != q) tensor_free(pool, q_there);
    t_back(pool, out, out_there, n);
    t_back(pool, lse, lse_there, rows);
    return error;
}

#define pool_write t_pool_write
#define seq_gather t_seq_gather
#define attend t_attend_there
#else
enum { T_REAL_GPU = 0 };
#endif

static int t_on_stand_in(void)  // every thread of a GPU in turn: tests are cut to that
{
    return t_device == PAGED_GPU && !T_REAL_GPU;
}

// The bytes of a plane, wherever it lives.
static unsigned char *t_plane(const Pool *pool, const void *plane)
{
    size_t size = pool_bytes_per_block(&pool->config) / 2 * pool->config.num_blocks;
    unsigned char *bytes = (unsigned char *)t_alloc(size);
    memory_copy(pool->config.device, bytes, plane, size);
    return bytes;
}

// ---- sequences and their twins in the oracle --------------------------------------------------

typedef struct Twin {  // entry of a hash map of stb_ds
    Seq *key;
    Oracle *value;
    int *tokens;  // [length], an array of stb_ds
} Twin;

static Twin *t_twins;
static int t_odds;  // 0: no two tokens are alike; else a token is 1 once in so many times, and 0

static Oracle *t_oracle(Seq *seq) { return hmget(t_twins, seq); }
static int **t_tokens(Seq *seq) { return &hmgetp(t_twins, seq)->tokens; }

static void t_set_twin(Seq *seq, Oracle *oracle)
{
    Twin twin = {seq, oracle, NULL};
    hmputs(t_twins, twin);
}

// A small shape; tests change what they need. Pools have poison, but for huge ones.
static PoolConfig t_config(int block_size, int num_blocks)
{
    PoolConfig config = {2, 2, 4, block_size, num_blocks, PAGED_F32, 1, PAGED_CPU};
    return config;
}

static size_t t_plane_bytes(const Pool *pool)
{
    return pool_bytes_per_block(&pool->config) / 2 * pool->config.num_blocks;
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
    return pool;
}

static void t_check_pool(const Pool *pool)
{
    const char *broken = pool_check(pool);
    if (broken) t_fail(__LINE__, "pool_check", "%s", broken);
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
        for (ptrdiff_t i = 0; i < hmlen(pool->prefixes); i++) {
            t_put(&s, &pool->prefixes[i].key, sizeof pool->prefixes[i].key);
            t_put(&s, &pool->prefixes[i].value, sizeof pool->prefixes[i].value);
        }
        for (int block = 0; block < pool->config.num_blocks; block++)
            if (pool->blocks[block].serial)
                t_put(&s, block_tokens(pool, block), pool->config.block_size * sizeof(int));
        t_put(&s, pool->blocks, ((size_t)pool->config.num_blocks + 1) * sizeof(Block));
        t_put(&s, pool->seqs, arrlenu(pool->seqs) * sizeof(Seq *));
        for (size_t i = 0; i < arrlenu(pool->seqs); i++) {
            const Seq *seq = pool->seqs[i];
            t_put(&s, &seq->length, sizeof seq->length);
            t_put(&s, &seq->written, sizeof seq->written);
            t_put(&s, &seq->published, sizeof seq->published);
            t_put(&s, seq->block_table, arrlenu(seq->block_table) * sizeof(int));
        }
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

// A call that must return this code, be it an error or PAGED_OK, and leave every byte as it was.
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
// published; all or nothing. Returns what seq_append() returned.
static int t_room(Seq *seq, int n)
{
    Pool *pool = seq->pool;
    int b = pool->config.block_size, have = (seq->length + b - 1) / b;
    int need = (seq->length + n + b - 1) / b;
    const Block *tail = have > 0 ? &pool->blocks[seq->block_table[have - 1]] : NULL;
    int copy = n > 0 && seq->length % b != 0 && (tail->ref_count > 1 || tail->serial != 0);
    int error = need - have + copy > pool->num_free ? PAGED_OUT_OF_BLOCKS : PAGED_OK;
    if (need > pool->config.num_blocks) error = PAGED_TOO_LONG;
    if (error) {
        CHECK_SAME(pool, error, seq_append(seq, n));
        return error;
    }
    int num_free = pool->num_free;
    int alone = copy && tail->ref_count == 1;  // published: after the copy it is free
    long num_copies = pool->num_copies;
    CHECK_OK(seq_append(seq, n));
    CHECK_OK(oracle_append(t_oracle(seq), n));
    for (int i = 0; i < n; i++) {
        int token = t_odds ? t_between(1, t_odds) == 1 : (int)(t_random() >> 33);
        arrput(*t_tokens(seq), token);
    }
    CHECK_EQ(seq->length, t_oracle(seq)->length);
    CHECK_EQ(arrlen(seq->block_table), need);
    CHECK_EQ(num_free - pool->num_free, need - have + copy - alone);
    CHECK_EQ(pool->num_copies - num_copies, copy);
    return PAGED_OK;
}

// K and V that a model could have for the newest n tokens: random numbers that depend on the layer,
// the token, and all tokens before it.
static void t_rows_of(Seq *seq, int layer, int n, float *k, float *v)
{
    const PoolConfig *c = &seq->pool->config;
    uint64_t before = (uint64_t)layer + 1, own = t_state;
    for (int t = 0; t < seq->length; t++) {
        t_state = before ^ (uint64_t)(*t_tokens(seq))[t] << 20;
        before = t_random();
        if (t < seq->length - n) continue;
        for (int i = 0; i < c->num_kv_heads * c->head_dim; i++) {
            *k++ = (float)(int64_t)t_random() * 0x1p-63f;
            *v++ = (float)(int64_t)t_random() * 0x1p-63f;
        }
    }
    t_state = own;
}

// Writes K and V of the newest tokens of a ragged batch, in every layer, there and in the twins.
static void t_write(Seq *const *seqs, const int *num_tokens, int count)
{
    const PoolConfig *c = &seqs[0]->pool->config;
    size_t row = (size_t)c->num_kv_heads * c->head_dim, total = 0, mark = arrlenu(t_memory);
    Batch batch = {count, seqs, num_tokens};
    for (int i = 0; i < count; i++) total += (size_t)num_tokens[i];
    float *k = t_same(total * row, 0), *v = t_same(total * row, 0);
    for (int layer = 0; layer < c->num_layers; layer++) {
        size_t at = 0;
        for (int i = 0; i < count; at += num_tokens[i] * row, i++) {
            t_rows_of(seqs[i], layer, num_tokens[i], k + at, v + at);
            CHECK_OK(oracle_write(t_oracle(seqs[i]), layer, num_tokens[i], k + at, v + at));
        }
        CHECK_OK(pool_write(seqs[0]->pool, layer, &batch, k, v));
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
    Oracle *oracle = NULL;
    CHECK_OK(oracle_create(&pool->config, max_tokens, &oracle));
    t_set_twin(seq, oracle);
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
    Oracle *oracle = NULL;
    int num_free = pool->num_free, b = pool->config.block_size;
    CHECK_OK(seq_fork(parent, at, &child));
    CHECK_OK(oracle_fork(t_oracle(parent), at, &oracle));
    t_set_twin(child, oracle);
    for (int i = 0; i < at; i++) {
        int token = (*t_tokens(parent))[i];
        arrput(*t_tokens(child), token);
    }
    CHECK_EQ(pool->num_free, num_free);
    CHECK_EQ(arrlen(child->block_table), (at + b - 1) / b);
    for (int i = 0; i < (int)arrlen(child->block_table); i++)
        CHECK_EQ(child->block_table[i], parent->block_table[i]);
    return child;
}

static void t_rewind(Seq *seq, int n)
{
    CHECK_OK(seq_rewind(seq, n));
    CHECK_OK(oracle_rewind(t_oracle(seq), n));
    arrsetlen(*t_tokens(seq), seq->length);
    CHECK_EQ(seq->length, t_oracle(seq)->length);
}

// Publishes the full blocks among the first n tokens.
static void t_publish(Seq *seq, int n)
{
    CHECK_OK(seq_publish(seq, *t_tokens(seq), n));
    CHECK(seq->published >= n / seq->pool->config.block_size);
}

// A sequence with a twin that begins with what the prefix cache has of these n tokens. How much
// that must be is found without the map, by a look at all blocks.
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
    CHECK_EQ(seq->written, hits * b);
    CHECK_OK(oracle_append(t_oracle(seq), seq->length));
    for (int i = 0; i < seq->length; i++) arrput(*t_tokens(seq), tokens[i]);
    size_t mark = arrlenu(t_memory),
           row = (size_t)pool->config.num_kv_heads * pool->config.head_dim;
    float *k = t_same(seq->length * row, 0), *v = t_same(seq->length * row, 0);
    for (int layer = 0; layer < pool->config.num_layers; layer++) {
        t_rows_of(seq, layer, seq->length, k, v);
        CHECK_OK(oracle_write(t_oracle(seq), layer, seq->length, k, v));
    }
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

// One layer of t_attend(), below: the rows of one sequence against its twin.
static void t_check_rows(Seq *seq, int layer, int num_tokens, int num_q_heads, float scale,
                         const float *q, const float *out, const float *lse)
{
    const Oracle *oracle = t_oracle(seq);
    size_t kv_row = (size_t)oracle->config.num_kv_heads * oracle->config.head_dim;
    size_t rows = (size_t)num_tokens * num_q_heads, count = rows * oracle->config.head_dim;
    const float *v = oracle->v + (size_t)layer * oracle->max_tokens * kv_row;
    float *expected = t_same(count, 0), *expected_lse = t_same(rows, 0);
    double largest = 0;
    for (size_t i = 0; count > 0 && i < oracle->length * kv_row; i++)
        largest = fmax(largest, fabs(v[i]));
    CHECK_OK(
        oracle_attend(oracle, layer, num_tokens, num_q_heads, scale, q, expected, expected_lse));
    for (size_t i = 0; i < count; i++) CHECK_CLOSE(out[i], expected[i], largest);
    for (size_t i = 0; i < rows && lse; i++)
        CHECK_CLOSE(lse[i], expected_lse[i], fabs(expected_lse[i]));
}

// One method into out and lse, which are a row too long: nothing may be written there. On the
// stand-in, another order of the lanes must give the same bits: descending or shuffled, in turns.
static void t_attend_by(Pool *pool, int method, int layer, const Batch *batch, int num_q_heads,
                        float scale, const float *q, float *out, float *lse, size_t rows)
{
    size_t n = rows * pool->config.head_dim;
    CHECK_OK(attend(pool, method, layer, batch, num_q_heads, scale, q, out, lse));
    CHECK(out[n] == 1234 && lse[rows] == 1234);
#ifndef __CUDACC__
    if (t_on_stand_in()) {
        float *other_out = t_same(n + 1, 1234), *other_lse = t_same(rows + 1, 1234);
        gpu_lane_order = ++t_turn % 2 ? 1 : t_turn;
        CHECK_OK(attend(pool, method, layer, batch, num_q_heads, scale, q, other_out, other_lse));
        gpu_lane_order = 0;
        CHECK_BITS(out, other_out, n + 1);
        CHECK_BITS(lse, other_lse, rows + 1);
    }
#endif
}

// Attention of the newest num_tokens[i] tokens of each sequence, in every layer, with random
// queries, by each method. All agree with the oracle within the tolerance. Gathered and paged agree
// in every bit; split does on a CPU, where it is the same, and not on a GPU, a sum of other order,
// as is plain on a CPU.
static void t_attend(Seq *const *seqs, const int *num_tokens, int count, int num_q_heads,
                     float scale)
{
    Pool *pool = seqs[0]->pool;
    const PoolConfig *c = &pool->config;
    size_t rows = 0, mark = arrlenu(t_memory);
    Batch batch = {count, seqs, num_tokens};
    for (int i = 0; i < count; i++) rows += (size_t)num_tokens[i] * num_q_heads;
    for (int layer = 0; layer < c->num_layers; layer++) {
        size_t n = rows * c->head_dim;
        float *q = t_floats(n), *out[4], *lse[4];
        for (size_t i = 0; i < n; i++) q[i] *= 4;  // so that the weights differ clearly
        int last = t_device == PAGED_GPU ? ATTEND_SPLIT : rows < 50 ? ATTEND_PLAIN : ATTEND_PAGED;
        for (int method = ATTEND_GATHER; method <= last; method++) {
            out[method] = t_same(n + 1, 1234);
            lse[method] = t_same(rows + 1, 1234);
            t_attend_by(pool, method, layer, &batch, num_q_heads, scale, q, out[method],
                        lse[method], rows);
        }
        int same = t_min(last, t_device == PAGED_GPU ? ATTEND_PAGED : ATTEND_SPLIT);  // in all bits
        for (int method = ATTEND_PAGED; method <= same; method++) {
            CHECK_BITS(out[ATTEND_GATHER], out[method], n);
            CHECK_BITS(lse[ATTEND_GATHER], lse[method], rows);
        }
        for (int method = same; method <= last; method++) {
            size_t row = 0;
            for (int i = 0; i < count; row += (size_t)num_tokens[i] * num_q_heads, i++)
                t_check_rows(seqs[i], layer, num_tokens[i], num_q_heads, scale,
                             q + row * c->head_dim, out[method] + row * c->head_dim,
                             lse[method] + row);
        }
        t_free_to(mark);
    }
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

static int t_used(const Pool *pool) { return pool->config.num_blocks - pool->num_free; }

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
    float x;
    uint16_t half;
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

// What a token costs is a product of the shape; what reserving the maximum wastes follows from it.
static void test_example_bytes(void)
{
    if (sizeof(size_t) < 8) t_skip("sizes of several GB, with 32-bit addresses");
    PoolConfig llama = {32, 32, 128, 16, 1, PAGED_F16, 0, PAGED_CPU}, opt_30b = llama;
    long long token = (long long)pool_bytes_per_token(&llama);
    CHECK_EQ(token, 2 * 32 * 32 * 128 * 2);  // 512 KiB
    CHECK_EQ(pool_bytes_per_block(&llama), 16 * token);
    CHECK_EQ(2048 * token, 1024 << 20);                       // reserved for a request
    CHECK_EQ(500 * token, 250 << 20);                         // used by one of mean length
    CHECK_EQ(lround(1000.0 * 500 / 2048), 244);               // 24.4 % in use
    CHECK_EQ(lround(10 * 100 * (1024 - 250) / 1024.0), 756);  // 75.6 GiB wasted by 100 requests
    opt_30b.num_layers = 48, opt_30b.num_kv_heads = 56;
    CHECK_EQ(pool_bytes_per_token(&opt_30b) * 1024 * 128, 180388626432);  // 180.4 GB
    llama.num_blocks = 0;
    llama.dtype = PAGED_BF16;
    CHECK_EQ(pool_bytes_per_token(&llama), token);
    llama.dtype = PAGED_F32;
    CHECK_EQ(pool_bytes_per_block(&llama), 32 * token);
}

// Five requests take the blocks they need, and a release makes blocks reusable at once.
static void test_example_blocks_on_demand(void)
{
    const int tokens[] = {320, 48, 160, 96, 272}, blocks[] = {20, 3, 10, 6, 17};
    Pool *pool = t_pool(t_config(16, 512));
    Seq *seqs[5];
    for (int i = 0; i < 5; i++) {
        seqs[i] = t_seq(pool, tokens[i]);
        CHECK_EQ(arrlen(seqs[i]->block_table), blocks[i]);
    }
    CHECK_EQ(t_used(pool), 56);
    CHECK_EQ(lround(1000.0 * t_used(pool) / 512), 109);  // 10.9 %
    t_release(seqs[1]);
    CHECK_EQ(t_used(pool), 53);
    CHECK_EQ(lround(1000.0 * t_used(pool) / 512), 104);
    CHECK_TEXT(TABLE(t_seq(pool, 33)), "20 21 22");
    t_finish(pool);
}

// Ten requests share a system prompt of 12.5 blocks. Who writes first gets a copy of the half
// block; who is left alone with it writes in place.
static void test_example_system_prompt(void)
{
    PoolConfig llama = {32, 32, 128, 16, 1, PAGED_F16, 0, PAGED_CPU};
    Pool *pool = t_pool(t_config(16, 32));
    Seq *prompt = t_seq(pool, 200), *requests[10];
    for (int i = 0; i < 10; i++) requests[i] = t_fork(prompt, 200);
    CHECK_EQ(t_used(pool), 13);
    CHECK_TEXT(COUNTS(prompt), "11 11 11 11 11 11 11 11 11 11 11 11 11");
    CHECK_EQ((10 * 13 - 13) * pool_bytes_per_block(&llama), 936ull << 20);  // 936 MiB saved

    t_append(requests[3], 1);
    for (int i = 0; i < 10; i++) CHECK_EQ(requests[i]->block_table[12], i == 3 ? 13 : 12);
    CHECK_EQ(pool->blocks[12].ref_count, 10);
    CHECK_EQ(pool->num_copies, 1);
    t_check_all(pool);

    for (int i = 0; i < 9; i++) t_release(requests[i]);
    t_release(prompt);
    t_append(requests[9], 1);
    CHECK_EQ(requests[9]->block_table[12], 12);
    CHECK_EQ(pool->num_copies, 1);
    t_finish(pool);
}

// Logical blocks are in order, physical ones anywhere; only the last one is partly filled.
static void test_example_block_table(void)
{
    const int lengths[] = {60, 32, 40, 12}, filled[] = {12, 16, 8, 12};
    const char *tables[] = {"0 1 2 3", "4 5", "6 7 8", "9"};
    Pool *pool = t_ordered_pool(16, 6, "1 5 3");
    CHECK_TEXT(TABLE(t_seq(pool, 38)), "1 5 3");  // 16, 16 and 6 tokens
    t_finish(pool);

    pool = t_ordered_pool(4, 8, "7 1 5");
    CHECK_TEXT(TABLE(t_seq(pool, 9)), "7 1 5");  // 4, 4 and 1
    t_finish(pool);

    pool = t_pool(t_config(16, 11));
    for (int i = 0; i < 4; i++) {
        Seq *seq = t_seq(pool, lengths[i]);
        CHECK_TEXT(TABLE(seq), tables[i]);
        CHECK_EQ(16 - t_nan_slots(pool, arrlast(seq->block_table), 0, 16), filled[i]);
    }
    CHECK_TEXT(t_free_list(pool), "10");
    t_finish(pool);
}

// A decode step writes one slot and leaves every other byte of the pool alone.
static void test_example_one_slot_per_step(void)
{
    Pool *pool = t_ordered_pool(4, 16, "7 2 12 5 3");
    Seq *seqs[] = {t_seq(pool, 6), t_seq(pool, 9)};
    const int ones[] = {1, 1};
    CHECK_TEXT(TABLE(seqs[0]), "7 2");
    CHECK_TEXT(TABLE(seqs[1]), "12 5 3");
    CHECK_OK(t_room(seqs[0], 1));  // slot 2 of block 2
    CHECK_OK(t_room(seqs[1], 1));  // slot 1 of block 3
    unsigned char *before = t_plane(pool, pool->k);
    t_write(seqs, ones, 2);
    int changed = 0;
    unsigned char *after = t_plane(pool, pool->k);
    for (size_t i = 0; i < t_plane_bytes(pool); i += sizeof(float))
        changed += memcmp(before + i, after + i, sizeof(float)) != 0;
    CHECK_EQ(changed, 2 * 2 * 2 * 4);  // sequences, layers, heads, head_dim
    CHECK_EQ(t_nan_slots(pool, 2, 0, 3), 0);
    CHECK_EQ(t_nan_slots(pool, 2, 3, 4), 1);
    CHECK_EQ(t_nan_slots(pool, 3, 0, 2), 0);
    CHECK_EQ(t_nan_slots(pool, 3, 2, 4), 2);
    t_finish(pool);
}

// Every element of every layer, token and head lies where the layout of paged.h says.
static void test_layout(void)
{
    const int n = 9, block_of[] = {5, 5, 5, 5, 0, 0, 0, 0, 3};
    Pool *pool = t_ordered_pool(4, 6, "5 0 3");
    Seq *seq = t_bare_seq(pool, n);
    Batch batch = {1, &seq, &n};
    float *k[2], *v[2];
    for (int layer = 0; layer < 2; layer++) {
        k[layer] = t_floats(n * 2 * 4);
        v[layer] = t_floats(n * 2 * 4);
        CHECK_OK(pool_write(pool, layer, &batch, k[layer], v[layer]));
    }
    for (int i = 0; i < 2 * n * 2 * 4; i++) {  // [layer][token][head][dim]
        int layer = i / 72, t = i / 8 % 9, head = i / 4 % 2;
        size_t at = t_offset(pool, layer, block_of[t], head, t % 4) + i % 4;
        CHECK(t_element(pool, pool->k, at) == k[layer][i % 72]);
        CHECK(t_element(pool, pool->v, at) == v[layer][i % 72]);
    }
    t_finish(pool);
}

// Three candidates of one prompt share its two full blocks and continue in blocks of their own.
static void test_example_three_candidates(void)
{
    Pool *pool = t_ordered_pool(4, 16, "2 6 9 11 14");
    Seq *a = t_seq(pool, 8), *b = t_fork(a, 8), *c = t_fork(a, 8);
    CHECK_TEXT(COUNTS(a), "3 3");
    t_append(a, 1);
    t_append(b, 1);
    t_append(c, 1);
    CHECK_TEXT(TABLE(a), "2 6 9");
    CHECK_TEXT(TABLE(b), "2 6 11");
    CHECK_TEXT(TABLE(c), "2 6 14");
    CHECK_TEXT(COUNTS(c), "3 3 1");
    CHECK_EQ(pool->num_copies, 0);  // the shared blocks are full, nobody writes to them
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
        CHECK_OK(pool_write(pool, 0, &batch, k, v));
        for (int i = 0; i < 8; i++) {
            if (i % 4 == 0) CHECK_OK(attend(pool, i / 4, 0, &batch, 1, 0, q, out, lse));
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
    Oracle *parent, *child;
    CHECK_OK(oracle_create(&config, 3, &parent));
    CHECK_OK(oracle_append(parent, 2));
    CHECK_OK(oracle_write(parent, 1, 2, k, v));
    CHECK_OK(oracle_attend(parent, 1, 1, 1, 2, &q, &out, &lse));
    CHECK_CLOSE(out, 18, 20);
    CHECK_CLOSE(lse, logf(5), 1);
    CHECK_EQ(oracle_append(parent, 2), PAGED_TOO_LONG);
    CHECK_OK(oracle_fork(parent, 1, &child));
    CHECK_OK(oracle_attend(child, 1, 1, 1, 0, &q, &out, &lse));
    CHECK(out == 10 && lse == 0);
    CHECK_EQ(oracle_rewind(parent, 3), PAGED_BAD_ARGUMENT);
    CHECK_OK(oracle_rewind(parent, 2));
    CHECK_EQ(parent->length, 0);
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

// What cannot fit into the whole pool is refused for good (MinivLLM issue 94); what cannot fit now,
// for now.
static void test_too_long_or_out_of_blocks(void)
{
    Pool *pool = t_pool(t_config(4, 4));
    Seq *a = t_seq(pool, 0), *b = t_seq(pool, 1);
    CHECK_SAME(pool, PAGED_TOO_LONG, seq_append(a, 17));
    CHECK_SAME(pool, PAGED_TOO_LONG, seq_append(a, INT_MAX));
    CHECK_SAME(pool, PAGED_TOO_LONG, seq_append(b, INT_MAX));  // 1 + INT_MAX is no int
    CHECK_SAME(pool, PAGED_OUT_OF_BLOCKS, seq_append(a, 16));
    CHECK_SAME(pool, PAGED_OUT_OF_BLOCKS, seq_append(a, 13));
    t_release(b);
    t_append(a, 16);
    CHECK_SAME(pool, PAGED_TOO_LONG, seq_append(a, 1));
    t_finish(pool);
}

// A fork at any position shares the blocks up to there and copies nothing. Afterwards either side
// may grow; a copy is made exactly when its last block is partly filled and shared.
static void test_fork_at_every_position(void)
{
    for (int i = 0; i < 14 * 14 * 2; i++) {
        int length = i / 28, at = i / 2 % 14, child_first = i % 2;
        if (at > length) continue;
        t_at("length %d, fork at %d", length, at);
        Pool *pool = t_pool(t_config(4, 12));
        Seq *seqs[2] = {t_seq(pool, length), NULL};
        seqs[1] = t_fork(seqs[0], at);
        int tail_shared = (length + 3) / 4 == (at + 3) / 4;  // the parent's
        CHECK_EQ(pool->num_copies, 0);
        t_append(seqs[child_first], 1);
        CHECK_EQ(pool->num_copies, child_first ? at % 4 != 0 : length % 4 != 0 && tail_shared);
        t_check_all(pool);
        t_append(seqs[!child_first], 6);
        t_check_all(pool);
        t_release(seqs[child_first]);
        t_finish(pool);
    }
}

// rewind(n) leaves length - n tokens in exactly the blocks they need, and the same sequence, grown
// again, gets the same blocks. rewind(length) gives back all of them; the handle stays usable.
static void test_rewind_to_every_length(void)
{
    for (int i = 0; i < 14 * 14; i++) {
        int length = i / 14, n = i % 14;
        if (n > length) continue;
        t_at("length %d, rewind %d", length, n);
        Pool *pool = t_pool(t_config(4, 8));
        Seq *seq = t_seq(pool, length);
        const char *table = TABLE(seq);
        t_rewind(seq, n);
        CHECK_EQ(arrlen(seq->block_table), (length - n + 3) / 4);
        CHECK_EQ(t_used(pool), (length - n + 3) / 4);
        t_check_all(pool);
        t_append(seq, n);
        CHECK_TEXT(TABLE(seq), table);
        t_finish(pool);
    }
}

// A rewind may end inside a block that others see; the next append copies it. It never takes a
// block, so it works in a full pool.
static void test_rewind_into_shared_block(void)
{
    Pool *pool = t_pool(t_config(4, 4));
    Seq *a = t_seq(pool, 10), *b = t_fork(a, 10);
    t_append(b, 1);  // a: 0 1 2, b: 0 1 3
    CHECK_EQ(pool->num_free, 0);
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

// A write to a block that somebody else sees is refused, whichever token of the batch is in it.
static void test_write_to_shared_block_refused(void)
{
    const int all = 6, two = 2, none = 0, ones[] = {1, 1};
    const float *x = t_floats(6 * 2 * 4);
    Pool *pool = t_pool(t_config(4, 8));
    Seq *a = t_seq(pool, 5);
    CHECK_OK(t_room(a, 1));
    Seq *b = t_fork(a, 6);  // after the append, before the write
    Batch whole = {1, &a, &all}, newest = {1, &a, &two}, empty = {1, &a, &none};
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 0, &newest, x, x));
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 1, &whole, x, x));
    CHECK_SAME(pool, PAGED_OK, pool_write(pool, 1, &empty, x, x));
    t_rewind(b, 2);  // lets go of the last block, keeps the first
    t_write(&a, &two, 1);
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 1, &whole, x, x));
    t_release(b);
    t_write(&a, &all, 1);
    t_check_all(pool);

    Seq *seqs[] = {t_seq(pool, 3), a};  // the one bad sequence of a batch stops all of it
    t_fork(a, 6);
    Batch batch = {2, seqs, ones};
    CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 0, &batch, x, x));
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
        Oracle *oracle;
        float *k[2], *v[2];
        for (int layer = 0; layer < 2; layer++) {
            k[layer] = t_same(n * 2 * 4, 0);
            v[layer] = t_same(n * 2 * 4, 0);
            CHECK_OK(seq_gather(seq, layer, k[layer], v[layer]));
        }
        CHECK_OK(oracle_fork(t_oracle(seq), n, &oracle));
        t_release(seq);
        t_seq(pool, 6);  // somebody else takes two of the blocks
        seq = t_bare_seq(pool, n);
        t_set_twin(seq, oracle);
        Batch batch = {1, &seq, &n};
        for (int layer = 0; layer < 2; layer++)
            CHECK_OK(pool_write(pool, layer, &batch, k[layer], v[layer]));
        t_finish(pool);
    }
}

// With poison, whatever was not written is NaN: new slots, freed blocks, slots that a rewind
// dropped, the rest of a copy. A slot that somebody else still sees is left alone.
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
        t_rewind(b, 4);  // out of block 2, and into block 0, which a sees
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
    }
}

// Without poison a block is handed out as it is, and a rewind leaves the bytes.
static void test_no_poison_keeps_bytes(void)
{
    PoolConfig config = t_config(4, 2);
    config.poison = 0;
    Pool *pool = t_pool(config);
    Seq *seq = t_seq(pool, 7);
    CHECK_OK(seq_rewind(seq, 7));
    CHECK_OK(seq_append(seq, 7));
    t_finish(pool);
}

// A child that forked inside a block has its parent's later tokens behind its end, unseen.
static void test_stale_tokens_of_a_sharer(void)
{
    Pool *pool = t_pool(t_config(8, 4));
    Seq *a = t_seq(pool, 8), *b = t_fork(a, 3), *c = t_fork(b, 1);
    t_check_all(pool);
    t_release(a);
    t_append(b, 1);
    CHECK_EQ(t_nan_slots(pool, b->block_table[0], 4, 8), 4);  // three slots were copied, not eight
    t_check_all(pool);
    t_release(b);
    t_append(c, 1);  // in place, over the stale token
    CHECK_EQ(pool->num_copies, 1);
    t_finish(pool);
}

// ---- errors -----------------------------------------------------------------------------------

// Shapes that are refused: *pool stays as it was. Sizes are computed without overflow.
static void test_refused_pools(void)
{
    const PoolConfig good = t_config(4, 4);
    const int wrong[] = {0, -1, INT_MIN};
    PoolConfig bad;
    Pool *const unchanged = (Pool *)&bad;
    Pool *pool = unchanged;
    int *fields[] = {&bad.num_layers, &bad.num_kv_heads, &bad.head_dim,
                     &bad.block_size, &bad.num_blocks,   &bad.dtype};
    for (int i = 0; i < 6 * 3; i++) {
        bad = good;
        *fields[i / 3] = i == 15 ? PAGED_BF16 + 1 : wrong[i % 3];  // dtype 0 is a good one
        t_at("field %d is %d", i / 3, *fields[i / 3]);
        CHECK_EQ(pool_create(&bad, &pool), PAGED_BAD_ARGUMENT);
        if (i / 3 == 4) continue;  // num_blocks plays no part in these
        CHECK_EQ(pool_bytes_per_token(&bad), 0);
        CHECK_EQ(pool_bytes_per_block(&bad), 0);
    }
    bad = good;
    bad.head_dim = PAGED_MAX_HEAD_DIM + 1;
    CHECK_EQ(pool_create(&bad, &pool), PAGED_BAD_ARGUMENT);
    CHECK_EQ(pool_create(NULL, &pool), PAGED_BAD_ARGUMENT);
    CHECK_EQ(pool_create(&good, NULL), PAGED_BAD_ARGUMENT);
    CHECK_EQ(pool_bytes_per_token(NULL), 0);

    const PoolConfig huge[] = {
        {INT_MAX, INT_MAX, 256, INT_MAX, INT_MAX, PAGED_F32, 0, PAGED_CPU},  // 2^73 bytes a token
        {INT_MAX, 1 << 20, 256, INT_MAX, 1, PAGED_F16, 0, PAGED_CPU},        // 2^61, 2^92 a block
        {1 << 12, 1 << 12, 256, 1 << 12, INT_MAX, PAGED_F16, 0,
         PAGED_CPU},  // 2^46 a block, 2^77 in all
        {1 << 12, 1 << 12, 256, 1 << 12, 1 << 18, PAGED_F16, 0, PAGED_CPU},  // 2^64
        {1, 1, 256, 4096, INT_MAX, PAGED_F16, 0, PAGED_CPU},                 // 4 PiB a plane
    };
    for (int i = 0; i < 5; i++) CHECK_EQ(pool_create(&huge[i], &pool), PAGED_OUT_OF_MEMORY);
    CHECK_EQ(pool_bytes_per_token(&huge[0]), 0);
    const int wide = sizeof(size_t) > 4;  // if not, these overflow, too
    CHECK_EQ(pool_bytes_per_token(&huge[1]), wide ? (1ll << 61) - (1ll << 30) : 0);
    CHECK_EQ(pool_bytes_per_block(&huge[1]), 0);
    CHECK_EQ(pool_bytes_per_block(&huge[2]), wide ? 1ll << 46 : 0);
    CHECK(pool == unchanged);
    pool_destroy(NULL);

    Oracle *oracle = NULL;
    CHECK_EQ(oracle_create(&good, 0, &oracle), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_create(NULL, 1, &oracle), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_create(&huge[0], INT_MAX, &oracle), PAGED_OUT_OF_MEMORY);
    CHECK(oracle == NULL);
}

#define BAD(call) CHECK_SAME(pool, PAGED_BAD_ARGUMENT, call)

// Null, negative and oversized arguments of the sequence functions change nothing.
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
    seq_release(NULL);
    for (int error = -1; error <= PAGED_BLOCK_SHARED + 1; error++) CHECK(paged_error(error));
    t_finish(pool);
}

// Every way to write a wrong batch, by pool_write() and attend(): pool and outputs stay as they
// were. A batch without tokens is no error and does nothing.
static void test_refused_batches(void)
{
    enum { OUT = 2 * 4 * 4 };  // 2 rows of 4 query heads
    Pool *pool = t_pool(t_config(4, 8)), *other_pool = t_pool(t_config(4, 8));
    Seq *a = t_seq(pool, 5), *b = t_seq(pool, 2), *empty = t_seq(pool, 0);
    Seq *good_seqs[] = {a, b}, *twice[] = {a, a}, *null[] = {a, NULL}, *no_tokens[] = {a, empty};
    Seq *stranger[] = {b, t_seq(other_pool, 5)};
    const int ones[] = {1, 1}, zeros[] = {0, 0};
    const int counts[][2] = {{-1, 1}, {6, 1}, {1, INT_MAX}, {1, INT_MIN}};  // bad ones
    const Batch good = {2, good_seqs, ones}, none = {0, good_seqs, ones};
    const Batch nothing = {2, good_seqs, zeros};
    const Batch bad[] = {
        {-1, good_seqs, ones},     {INT_MIN, good_seqs, ones}, {INT_MAX, good_seqs, ones},
        {2, NULL, ones},           {2, good_seqs, NULL},       {2, twice, ones},
        {2, null, ones},           {2, stranger, ones},        {2, no_tokens, ones},
        {2, good_seqs, counts[0]}, {2, good_seqs, counts[1]},  {2, good_seqs, counts[2]},
        {2, good_seqs, counts[3]}};
    const int wrong[] = {-1, 4, INT_MAX, INT_MIN};              // as a method, and as a layer
    const int wrong_heads[] = {0, -2, 1, 3, INT_MAX, INT_MIN};  // there are two KV heads
    const float wrong_scales[] = {NAN, INFINITY, -INFINITY};
    float *x = t_floats(OUT), *out = t_same(OUT, 7), *lse = t_same(OUT, 7);
    for (int method = ATTEND_GATHER; method <= ATTEND_PAGED; method++) {
        for (int i = 0; i < 13; i++) {
            t_at("bad batch %d", i);
            BAD(pool_write(pool, 0, &bad[i], x, x));
            BAD(attend(pool, method, 0, &bad[i], 4, 0, x, out, lse));
        }
        for (int i = 0; i < 4; i++) {
            BAD(pool_write(pool, wrong[i], &good, x, x));
            BAD(attend(pool, method, wrong[i], &good, 4, 0, x, out, lse));
            BAD(attend(pool, wrong[i], 0, &good, 4, 0, x, out, lse));
        }
        for (int i = 0; i < 6; i++)
            BAD(attend(pool, method, 0, &good, wrong_heads[i], 0, x, out, lse));
        for (int i = 0; i < 3; i++)
            BAD(attend(pool, method, 0, &good, 4, wrong_scales[i], x, out, lse));
        BAD(attend(NULL, method, 0, &good, 4, 0, x, out, lse));
        BAD(attend(pool, method, 0, NULL, 4, 0, x, out, lse));
        BAD(attend(pool, method, 0, &good, 4, 0, NULL, out, lse));
        BAD(attend(pool, method, 0, &good, 4, 0, x, NULL, lse));
        CHECK_SAME(pool, PAGED_OK, attend(pool, method, 0, &none, 4, 0, x, out, lse));
        CHECK_SAME(pool, PAGED_OK, attend(pool, method, 0, &nothing, 4, 0, x, out, lse));
    }
    BAD(pool_write(NULL, 0, &good, x, x));
    BAD(pool_write(pool, 0, NULL, x, x));
    BAD(pool_write(pool, 0, &good, NULL, x));
    BAD(pool_write(pool, 0, &good, x, NULL));
    CHECK_SAME(pool, PAGED_OK, pool_write(pool, 0, &none, x, x));
    CHECK_SAME(pool, PAGED_OK, pool_write(pool, 0, &nothing, x, x));
    for (int i = 0; i < OUT; i++) CHECK(out[i] == 7 && lse[i] == 7);
    t_finish(pool);
    t_finish(other_pool);
}

// The first allocation of a call fails, then the second, ... until the call succeeds. Each time it
// says so, and nothing has changed. At least `least` allocations there must have been.
#define STARVE(least, pool, call) \
    do { \
        int t_error = PAGED_OUT_OF_MEMORY, t_number = 0; \
        for (; t_error != PAGED_OK; t_number++) { \
            Snapshot t_before = t_snapshot(pool); \
            t_failing = t_number; \
            t_error = (call); \
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
    Pool *pool = t_pool(t_config(4, 8)), *second = NULL;
    Seq *seq = t_seq(pool, 6), *created = NULL, *child = NULL;
    Batch batch = {1, &seq, &n};
    float *x = t_floats(n * 2 * 4), *out = t_same(n * 2 * 4, 7);
    STARVE(4, pool, pool_create(&pool->config, &second));
    STARVE(1, pool, seq_create(pool, &created));
    STARVE(1, pool, seq_fork(seq, 6, &child));
    seq_release(created);
    seq_release(child);
    STARVE(0, pool, pool_write(pool, 0, &batch, x, x));
    CHECK_OK(oracle_write(t_oracle(seq), 0, n, x, x));
    STARVE(0, pool, seq_gather(seq, 0, t_same(6 * 8, 0), t_same(6 * 8, 0)));
    for (int method = ATTEND_GATHER; method <= ATTEND_PAGED; method++) {
        t_failing = 0;
        int error = attend(pool, method, 0, &batch, 2, 0, x, out, NULL);
        t_failing = -1;
        for (int i = 0; error && i < n * 2 * 4; i++) CHECK(out[i] == 7);
        STARVE(0, pool, attend(pool, method, 0, &batch, 2, 0, x, t_same(n * 2 * 4, 0), NULL));
    }
    t_finish(pool);
    t_finish(second);
}

// What the calls of the oracle refuse, and what they do when there is no memory left.
static void test_oracle_refuses(void)
{
    const int wrong[] = {-1, 4, INT_MAX, INT_MIN};  // there are 3 tokens, and 2 layers
    Pool *pool = t_pool(t_config(4, 8));
    Oracle *oracle = NULL, *child = NULL;
    float *x = t_floats(3 * 2 * 4), *out = t_same(3 * 2 * 4, 7);
    CHECK_EQ(oracle_create(&pool->config, 8, NULL), PAGED_BAD_ARGUMENT);
    STARVE(2, pool, oracle_create(&pool->config, 8, &oracle));
    CHECK_EQ(oracle_append(NULL, 1), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_append(oracle, -1), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_append(oracle, 9), PAGED_TOO_LONG);
    CHECK_OK(oracle_append(oracle, 3));
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(oracle_rewind(oracle, wrong[i]), PAGED_BAD_ARGUMENT);
        CHECK_EQ(oracle_fork(oracle, wrong[i], &child), PAGED_BAD_ARGUMENT);
        CHECK_EQ(oracle_write(oracle, 0, wrong[i], x, x), PAGED_BAD_ARGUMENT);
        CHECK_EQ(oracle_write(oracle, wrong[i], 3, x, x), PAGED_BAD_ARGUMENT);
        CHECK_EQ(oracle_attend(oracle, 0, wrong[i], 2, 0, x, out, NULL), PAGED_BAD_ARGUMENT);
        CHECK_EQ(oracle_attend(oracle, wrong[i], 3, 2, 0, x, out, NULL), PAGED_BAD_ARGUMENT);
    }
    CHECK_EQ(oracle_rewind(NULL, 0), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_fork(oracle, 3, NULL), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_write(NULL, 0, 0, x, x), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_write(oracle, 0, 3, NULL, x), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_write(oracle, 0, 3, x, NULL), PAGED_BAD_ARGUMENT);
    CHECK_OK(oracle_write(oracle, 0, 3, x, x));
    CHECK_EQ(oracle_attend(oracle, 0, 3, 3, 0, x, out, NULL), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_attend(oracle, 0, 3, 0, 0, x, out, NULL), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_attend(oracle, 0, 3, 2, NAN, x, out, NULL), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_attend(oracle, 0, 3, 2, 0, NULL, out, NULL), PAGED_BAD_ARGUMENT);
    CHECK_EQ(oracle_attend(oracle, 0, 3, 2, 0, x, NULL, NULL), PAGED_BAD_ARGUMENT);
    t_failing = 0;
    int error = oracle_attend(oracle, 0, 3, 2, 0, x, out, NULL);
    t_failing = -1;
    CHECK_EQ(error, PAGED_OUT_OF_MEMORY);
    for (int i = 0; i < 3 * 2 * 4; i++) CHECK(out[i] == 7);
    STARVE(2, pool, oracle_fork(oracle, 3, &child));
    oracle_release(oracle);
    oracle_release(child);
    oracle_release(NULL);
    t_finish(pool);
}

// Devices that do not exist, more heads than a grid of a GPU has, lengths that no int holds, a batch
// of one row without tensors.
static void test_refused_limits(void)
{
    PoolConfig config = t_config(4, 8);
    Pool *pool = NULL;
    for (int device = -1; device <= 2; device += 3) {
        config.device = device;
        CHECK_EQ(pool_create(&config, &pool), PAGED_BAD_ARGUMENT);
    }
    config.device = PAGED_GPU;
    config.num_kv_heads = 1 << 16;
    CHECK_EQ(pool_create(&config, &pool), PAGED_BAD_ARGUMENT);
    config.num_kv_heads--;
    CHECK(pool_bytes_per_token(&config) > 0);
    CHECK_TEXT(paged_error(-1), "unknown error code");
    CHECK_TEXT(paged_error(PAGED_NO_GPU + 1), "unknown error code");
    pool = t_pool(t_config(4, 8));
    Seq *seq = t_seq(pool, 3);
    const int one = 1;
    float x[2 * 4] = {0};
    Batch newest = {1, &seq, &one};
    BAD(attend(pool, ATTEND_PAGED, 0, &newest, 2, 0, NULL, x, NULL));
    BAD(attend(pool, ATTEND_PAGED, 0, &newest, 2, 0, x, NULL, NULL));
    pool->config.block_size = 1 << 30;  // as if it were a pool of 2^33 tokens
    CHECK_EQ(seq_append(seq, INT_MAX), PAGED_TOO_LONG);
    CHECK_EQ(seq_append(seq, INT_MAX - 2), PAGED_TOO_LONG);
    pool->config.block_size = 4;
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
    t_finish(pool);
}

// The drawings show counts and tables; NULL is allowed.
static void test_dump(void)
{
    char text[4000] = "";
    Pool *pool = t_pool(t_config(4, 100));
    Seq *seq = t_seq(pool, 10);
    t_fork(seq, 6);
    for (int i = 0; i < 10; i++) t_fork(seq, 4);
    FILE *file = tmpfile();
    CHECK(file != NULL);
    pool_dump(pool, file);
    seq_dump(seq, file);
    seq_dump(t_fork(seq, 0), file);
    pool_dump(NULL, file);
    seq_dump(NULL, file);
    rewind(file);
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    CHECK_HAS(text, "+21....");  // 12, 2 and 1 references, then free blocks
    CHECK_HAS(text, "10 tokens");
    CHECK_HAS(text, "12 ");
    t_finish(pool);
    pool = t_pool(t_config(4, 8));
    file = tmpfile();
    CHECK(file != NULL);
    seq = t_seq(pool, 10);
    t_publish(seq, 10);
    t_rewind(seq, 6);
    pool_dump(pool, file);
    rewind(file);
    memset(text, 0, sizeof text);
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    CHECK_HAS(text, "1p......\n");  // a free block that can be found
    t_finish(pool);
}

// Destroying a pool frees the sequences that are still in it (a sanitizer would see the leak).
static void test_destroy_with_sequences(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    Seq *seq = t_bare_seq(pool, 9), *child;
    CHECK_OK(seq_fork(seq, 5, &child));
    CHECK_TEXT(COUNTS(seq), "2 2 1");
    pool_destroy(pool);
}

// Damage in several places that agree with each other, which one look alone would take for right.
static void test_check_finds_consistent_damage(void)
{
    Pool *pool = t_ordered_pool(4, 12, "9 10 11");
    Seq *seq = t_seq(pool, 10);  // 9 10 11; free: 0 to 8
    seq->block_table[2] = 8;     // a free block, with the right count
    pool->blocks[8].ref_count = 1;
    pool->blocks[11].ref_count = 0;
    CHECK_HAS(pool_check(pool), "block 8 has reference count 1");
    seq->block_table[2] = 11;
    pool->blocks[8].ref_count = 0;
    pool->blocks[11].ref_count = 1;
    t_check_pool(pool);
    pool->blocks[3].next = 5;  // block 4 is lost: nobody has it, and it is not free
    pool->blocks[5].prev = 3;
    pool->num_free--;
    CHECK_HAS(pool_check(pool), "3 blocks in use and 8 free");
    pool->blocks[3].next = 4;
    pool->blocks[5].prev = 4;
    pool->num_free++;
    t_failing = 0;
    const char *text = pool_check(pool);
    t_failing = -1;
    CHECK_HAS(text, "no memory");
    t_finish(pool);
}

// Long tables and pools, drawn to stdout, which NULL stands for. Lines alike become one "*".
static void test_dump_to_stdout(void)
{
    char text[4000] = "";
    Pool *pool = t_pool(t_config(4, 64 * 5));
    Seq *seq = t_seq(pool, 57);
    FILE *file = tmpfile();
    CHECK(file != NULL);
    fflush(stdout);
    int saved = dup(1);
    CHECK(saved >= 0 && dup2(fileno(file), 1) == 1);
    pool_dump(pool, NULL);
    seq_dump(seq, NULL);
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    rewind(file);
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    const char *star = strstr(text, "\n       *\n");
    CHECK(star && !strchr(strchr(star, '*') + 1, '*'));
    CHECK_HAS(text, "\n      64  ....");  // the first of the lines alike
    CHECK(!strstr(text, "\n     128  ."));
    CHECK_HAS(text, "\n  logical     13   14\n");  // 15 entries are 13 and 2
    t_finish(pool);
}

// ---- prefix cache -----------------------------------------------------------------------------
// Prompts are texts here, a token a letter; blocks have 4 tokens. Each test runs with the right
// hash and with one under which all blocks are alike.

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

static uint64_t t_hash_0(uint64_t parent, const int *tokens, int n)
{
    return (void)parent, (void)tokens, (void)n, 0;
}

static Pool *t_prefix_pool(int num_blocks, int bad_hash)
{
    Pool *pool = t_pool(t_config(4, num_blocks));
    if (bad_hash) pool->hash = t_hash_0;
    t_at("%s", bad_hash ? "all hashes 0" : "");
    return pool;
}

// A second request shares the full blocks of what is alike; the released blocks that can be found
// wait behind all others, the last one of the sequence first.
static void test_prefix_by_hand(void)
{
    for (int bad_hash = 0; bad_hash < 2; bad_hash++) {
        int hits;
        Pool *pool = t_prefix_pool(8, bad_hash);
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
}

// At least one token is left to compute, or there would be no logits for the next one.
static void test_prefix_full_prompt_hit(void)
{
    for (int bad_hash = 0; bad_hash < 2; bad_hash++) {
        Pool *pool = t_prefix_pool(8, bad_hash);
        t_serve(pool, "aaaabbbbcccc", NULL);
        CHECK_EQ(t_hits(pool, "aaaabbbbcccc"), 8);
        CHECK_EQ(t_hits(pool, "aaaabbbbccccd"), 12);
        CHECK_EQ(t_hits(pool, "aaaa"), 0);
        CHECK_EQ(t_hits(pool, "aaaab"), 4);
        CHECK_EQ(t_hits(pool, ""), 0);
        t_finish(pool);
    }
}

// A hit on a block that nobody uses takes it off the free list, from wherever it is there.
static void test_prefix_hit_on_free(void)
{
    for (int bad_hash = 0; bad_hash < 2; bad_hash++) {
        int hits;
        Pool *pool = t_prefix_pool(6, bad_hash);
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
    }
}

// What was evicted is not found, and neither is it when its memory holds something else.
static void test_prefix_stale_entry(void)
{
    for (int bad_hash = 0; bad_hash < 2; bad_hash++) {
        Pool *pool = t_prefix_pool(4, bad_hash);
        t_release(t_serve(pool, "aaaabbbbcccc", NULL));
        CHECK_TEXT(t_free_list(pool), "3 2 1 0");
        t_release(t_serve(pool, "xxxxyyyyz", NULL));  // takes 3, 2, 1: leaves before parents
        CHECK_EQ(t_hits(pool, "aaaabbbbccccd"), 4);
        CHECK_TEXT(t_free_list(pool), "1 2 3 0");  // a hit makes it the most recently used
        t_release(t_serve(pool, "vvvvwwwwz", NULL));
        CHECK_EQ(t_hits(pool, "aaaab"), 4);
        CHECK_EQ(t_hits(pool, "xxxxyyyyz"), 0);
        t_release(t_serve(pool, "1111222233334444", NULL));
        CHECK_EQ(t_hits(pool, "aaaab"), 0);
        CHECK_EQ(t_hits(pool, "11112222333344445"), 16);
        t_finish(pool);
    }
}

// A block whose parent is gone is not found behind what took the parent's memory. The order of
// eviction keeps this from happening to a lone sequence, so the parent is evicted by hand.
static void test_prefix_reused_parent(void)
{
    for (int bad_hash = 0; bad_hash < 2; bad_hash++) {
        Pool *pool = t_prefix_pool(8, bad_hash);
        t_release(t_serve(pool, "aaaabbbbc", NULL));  // blocks 0 and 1, published
        free_list_remove(pool, 0);
        free_list_insert_after(pool, 8, 0);  // next to be taken
        Seq *seq = t_serve(pool, "xxxx", NULL);
        CHECK_TEXT(TABLE(seq), "0");
        CHECK_EQ(t_hits(pool, "xxxxbbbbc"), 4);  // its second block is another: after "aaaa"
        CHECK_EQ(t_hits(pool, "aaaabbbbc"), 0);
        t_finish(pool);
    }
}

// Tokens without K and V in every layer cannot be published.
static void test_prefix_before_written(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    int tokens[12] = {0}, n = 4;
    float *x = t_same(12 * 8, 1);
    Seq *seq = t_bare_seq(pool, 4), *child;
    Batch batch = {1, &seq, &n};
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_publish(seq, tokens, 4));
    CHECK_OK(pool_write(pool, 0, &batch, x, x));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_publish(seq, tokens, 4));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_publish(seq, tokens, 1));
    CHECK_OK(pool_write(pool, 1, &batch, x, x));
    CHECK_EQ(seq->written, 4);
    CHECK_OK(seq_append(seq, 8));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_publish(seq, tokens, 5));
    CHECK_OK(pool_write(pool, 1, &batch, x, x));  // the newest 4 of the 8: the others are missing
    CHECK_EQ(seq->written, 4);
    n = 8;
    CHECK_OK(seq_fork(seq, 6, &child));
    CHECK_EQ(child->written, 4);
    seq_release(child);
    CHECK_OK(pool_write(pool, 1, &batch, x, x));
    CHECK_EQ(seq->written, 12);
    CHECK_OK(seq_rewind(seq, 3));
    CHECK_EQ(seq->written, 9);
    CHECK_OK(seq_publish(seq, tokens, 9));
    CHECK_EQ(seq->published, 2);
    CHECK_OK(seq_rewind(seq, 3));
    CHECK_EQ(seq->published, 1);
    t_finish(pool);
}

// A published block is never written: not by a write, not by an append after a rewind into it.
static void test_prefix_blocks_are_sealed(void)
{
    for (int bad_hash = 0; bad_hash < 2; bad_hash++) {
        Pool *pool = t_prefix_pool(8, bad_hash);
        Seq *seq = t_serve(pool, "aaaabbbb", NULL);
        int n = 5;
        float *x = t_same((size_t)n * 8, 1);
        Batch batch = {1, &seq, &n};
        CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 0, &batch, x, x));
        t_rewind(seq, 2);  // into block 1, of which nothing is poisoned
        CHECK_EQ(t_hits(pool, "aaaabbbbc"), 8);
        n = 2;
        CHECK_SAME(pool, PAGED_BLOCK_SHARED, pool_write(pool, 0, &batch, x, x));
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
}

// Two requests that computed the same end up with one copy of it; the other blocks are free again.
static void test_prefix_computed_twice(void)
{
    for (int bad_hash = 0; bad_hash < 2; bad_hash++) {
        Pool *pool = t_prefix_pool(8, bad_hash);
        Seq *a = t_empty_seq(pool, 32), *b = t_empty_seq(pool, 32);
        t_odds = 1000000;  // all tokens alike
        t_append(a, 10);
        t_append(b, 10);
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
        t_odds = 0;
    }
}

// A fork publishes behind a copy of the parent that is gone; its sharer publishes the block again.
static void test_prefix_published_again(void)
{
    Pool *pool = t_pool(t_config(4, 6));
    t_odds = 1000000;
    Seq *a = t_empty_seq(pool, 24), *b = t_empty_seq(pool, 24);
    t_append(a, 4);
    t_append(b, 8);
    Seq *child = t_fork(b, 8);
    t_publish(a, 4);
    t_publish(b, 8);  // "0 2", where block 2 is the child of block 0
    CHECK_TEXT(TABLE(b), "0 2");
    CHECK_TEXT(TABLE(child), "1 2");
    t_release(a);
    t_release(b);
    Seq *other = t_seq(pool, 16);  // block 0 is forgotten
    CHECK_TEXT(TABLE(other), "3 4 5 0");
    t_publish(child, 8);
    t_check_all(pool);
    int zeros[9] = {0};
    Seq *hit = t_lookup(pool, zeros, 9);
    CHECK_TEXT(TABLE(hit), "1 2");
    t_finish(pool);
    t_odds = 0;
}

static void test_prefix_refused(void)
{
    Pool *pool = t_pool(t_config(4, 8));
    Seq *seq = t_seq(pool, 8), *empty = t_seq(pool, 0);
    int tokens[9] = {0};
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_publish(NULL, tokens, 4));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_publish(seq, NULL, 4));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_publish(seq, tokens, -1));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_publish(seq, tokens, 9));
    CHECK_SAME(pool, PAGED_OK, seq_publish(seq, NULL, 0));
    CHECK_SAME(pool, PAGED_OK, seq_publish(seq, tokens, 3));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_lookup(NULL, tokens, 4));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_lookup(empty, NULL, 4));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_lookup(empty, tokens, -1));
    CHECK_SAME(pool, PAGED_BAD_ARGUMENT, seq_lookup(seq, tokens, 4));  // not empty
    CHECK_SAME(pool, PAGED_OK, seq_lookup(empty, NULL, 0));
    CHECK_SAME(pool, PAGED_OK, seq_lookup(empty, tokens, 9));
    t_finish(pool);
}

// pool_check() sees what is wrong with the prefix cache.
static void test_prefix_check_finds_damage(void)
{
    for (int bad_hash = 0; bad_hash < 2; bad_hash++) {
        Pool *pool = t_prefix_pool(8, bad_hash);
        Seq *seq = t_serve(pool, "aaaabbbbc", NULL);
        t_release(t_serve(pool, "xxxxyyyyz", NULL));
        DAMAGE(pool->blocks[1].serial, 0, "");
        DAMAGE(pool->blocks[1].serial, 99, "1");
        DAMAGE(pool->blocks[5].serial, 1, "");
        DAMAGE(pool->blocks[1].parent, 3, "1");
        DAMAGE(pool->blocks[1].parent, 0, "1");
        if (!bad_hash) DAMAGE(pool->tokens[0], 'b', "0");
        DAMAGE(pool->blocks[1].next_alike, 1, "");
        DAMAGE(pool->blocks[1].next_alike, 5, "5");
        DAMAGE(pool->blocks[1].next_alike, 8, "8");
        DAMAGE(pool->prefixes[0].value, -1, "");
        DAMAGE(pool->prefixes[0].value, 6, "6");
        DAMAGE(pool->prefixes[0].key, 17, "");
        DAMAGE(pool->last_serial, 3, "");
        DAMAGE(seq->published, 3, "");
        DAMAGE(seq->published, -1, "");
        DAMAGE(seq->written, 10, "");
        DAMAGE(seq->written, -1, "");
        DAMAGE(seq->written, 7, "");
        t_finish(pool);
    }
}

// The order of eviction, the serials and the tables after a long mixed use of a small pool.
static void test_prefix_recency(void)
{
    for (int bad_hash = 0; bad_hash < 2; bad_hash++) {
        Pool *pool = t_prefix_pool(6, bad_hash);
        t_release(t_serve(pool, "aaaab", NULL));
        t_release(t_serve(pool, "ccccd", NULL));
        t_release(t_serve(pool, "eeeef", NULL));
        CHECK_EQ(t_hits(pool, "aaaab"), 4);  // used again: now c is the oldest
        t_release(t_seq(pool, 13));          // four blocks: three that hold nothing, and c
        CHECK_EQ(t_hits(pool, "ccccd"), 0);
        CHECK_EQ(t_hits(pool, "eeeef"), 4);
        CHECK_EQ(t_hits(pool, "aaaab"), 4);
        t_finish(pool);
    }
}

// A token is mixed in by a round of splitmix64, whose first numbers for some seeds are known.
static void test_prefix_hash(void)
{
    const int tokens[] = {0, -1, 5}, rest[] = {5}, zero[] = {0};
    CHECK(prefix_hash(0, zero, 1) == 0xe220a8397b1dcdafu);
    CHECK(prefix_hash(1234567, zero, 1) == 6457827717110365317u);
    CHECK(prefix_hash(7, zero, 0) == 7);
    CHECK(prefix_hash(0, tokens + 1, 1) == prefix_hash(0xffffffffu, zero, 1));
    CHECK(prefix_hash(3, tokens, 3) == prefix_hash(prefix_hash(3, tokens, 2), rest, 1));
}

// A chain of published blocks of one hash that has lost its end.
static void test_check_finds_cut_chain(void)
{
    Pool *pool = t_pool(t_config(4, 12));
    pool->hash = t_hash_0;
    Seq *seq = t_seq(pool, 10);
    t_publish(seq, 8);
    CHECK_EQ(pool->blocks[1].next_alike, 0);
    pool->blocks[1].next_alike = -1;
    CHECK_HAS(pool_check(pool), "1 blocks of 2");
    pool->blocks[1].next_alike = 0;
    t_finish(pool);
}

// ---- numbers of 16 bits -----------------------------------------------------------------------

// What the bits mean, straight from the definition. The bits of infinity stand for the power of two
// that would come next: rounding up to it is how numbers become infinite.
static double t_f16_value(int bits)
{
    int exponent = bits >> 10, mantissa = bits & 1023;
    return exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
}

static double t_bf16_value(int bits)
{
    int exponent = bits >> 7, mantissa = bits & 127;
    return exponent ? ldexp(128 + mantissa, exponent - 134) : ldexp(mantissa, -133);
}

// The nearest of all values, ties to even bits, by bisection: slow, and plain to see.
static int t_nearest(float x, double (*value)(int), int infinity)
{
    double magnitude = fabs((double)x);
    int low = 0, high = infinity, sign = signbit(x) ? 0x8000 : 0;
    if (magnitude >= value(infinity)) return sign | infinity;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(value(middle) <= magnitude ? &low : &high) = middle;
    }
    double down = magnitude - value(low), up = value(high) - magnitude;
    return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}

static void t_check_rounding(float x)
{
    t_at("%a", x);
    CHECK_EQ(f32_to_f16(x), t_nearest(x, t_f16_value, 0x7c00));
    CHECK_EQ(f32_to_bf16(x), t_nearest(x, t_bf16_value, 0x7f80));
}

// By hand: 1, -2, the largest, the first that overflows, the smallest, ties to even, zero, NaN.
static void test_conversions_by_hand(void)
{
    const struct {
        float x;
        int bits;
    } f16[] = {{1, 0x3c00},          {-2, 0xc000},           {65504, 0x7bff},
               {65519.996f, 0x7bff}, {65520, 0x7c00},        {-1e30f, 0xfc00},
               {0x1p-24f, 1},        {0x1p-25f, 0},          {0x1.8p-24f, 2},
               {-0.0f, 0x8000},      {1 + 0x1p-11f, 0x3c00}, {1 + 0x1.8p-10f, 0x3c02},
               {INFINITY, 0x7c00}},
      bf16[] = {{1, 0x3f80},       {1 + 0x1p-8f, 0x3f80}, {1 + 0x1.8p-7f, 0x3f82},
                {3.4e38f, 0x7f80}, {-0.0f, 0x8000},       {-INFINITY, 0xff80}};
    for (int i = 0; i < 13; i++) CHECK_EQ(f32_to_f16(f16[i].x), f16[i].bits);
    for (int i = 0; i < 6; i++) CHECK_EQ(f32_to_bf16(bf16[i].x), bf16[i].bits);
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
        if (magnitude < 0x7c00) CHECK(f16 == sign * t_f16_value(magnitude));
        if (magnitude < 0x7f80) CHECK(bf16 == sign * t_bf16_value(magnitude));
    }
    for (int i = 0; i < 2 * 0x7f80; i += t_quick ? 37 : 1) {
        if (i % 2 && i / 2 >= 0x7c00) continue;
        double (*value)(int) = i % 2 ? t_f16_value : t_bf16_value;
        float tie = (float)((value(i / 2) + value(i / 2 + 1)) / 2);
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

// The cache rounds what it stores, and a gather shows the rounded values.
static void test_cache_rounds(void)
{
    const float in[] = {1 + 0x1p-11f, 65519, 65520, 1e-8f};
    const float expected[][4] = {{1 + 0x1p-11f, 65519, 65520, 1e-8f},
                                 {1, 65504, INFINITY, 0},
                                 {1, 65536, 65536, 0x1.58p-27f}};
    const int one = 1;
    for (int dtype = PAGED_F32; dtype <= PAGED_BF16; dtype++) {
        PoolConfig config = {1, 1, 4, 1, 1, dtype, 1, PAGED_CPU};
        Pool *pool = t_pool(config);
        Seq *seq = t_bare_seq(pool, 1);
        Batch batch = {1, &seq, &one};
        float k[4], v[4];
        CHECK_OK(pool_write(pool, 0, &batch, in, in));
        CHECK_OK(seq_gather(seq, 0, k, v));
        CHECK_BITS(k, expected[dtype], 4);
        CHECK_BITS(v, expected[dtype], 4);
        t_finish(pool);
    }
}

// ---- bugs that others shipped -----------------------------------------------------------------

// Offsets beyond 2^31 elements and block ids beyond 65535 (vLLM issues 1486, 50427). The pool is
// huge, but only a few blocks of it are ever touched.
static void test_bug_32_bit_offsets(void)
{
    if (t_quick) t_skip("a pool of 17 GB, under --quick");
    if (sizeof(size_t) < 8) t_skip("a pool of 17 GB, with 32-bit addresses");
    PoolConfig config = {2, 8, 128, 16, 132000, PAGED_F16, 0, PAGED_CPU};
    Pool *pool = NULL;
    int error = pool_create(&config, &pool);
    if (error == PAGED_OUT_OF_MEMORY) t_skip("no address space for a pool of 17 GB");
    CHECK_OK(error);
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
        CHECK_OK(pool_write(pool, 0, &batch, x, x));
        CHECK_OK(pool_write(pool, 1, &batch, x, x));
        t_release(seq);
        seq = t_seq(pool, 11);
        t_check_all(pool);
        t_rewind(seq, 1);
        t_finish(pool);
    }
}

// Scores far below any constant that might stand for minus infinity (FlashInfer issue 4450): 128
// products of 64 and -64, scaled, are -46341, for every token. All values are 1, and so is the
// result, exactly.
static void test_bug_large_negative_scores(void)
{
    const int one = 1;
    for (int n = 1; n <= 40; n += 13) {
        PoolConfig config = {1, 1, 128, 16, 4, PAGED_F32, 1, PAGED_CPU};
        Pool *pool = t_pool(config);
        Seq *seq = t_bare_seq(pool, n);
        Batch all = {1, &seq, &n}, newest = {1, &seq, &one};
        float out[128], lse;
        CHECK_OK(pool_write(pool, 0, &all, t_same(n * 128, -64), t_same(n * 128, 1)));
        for (int method = ATTEND_GATHER; method <= ATTEND_PLAIN; method++) {
            CHECK_OK(attend(pool, method, 0, &newest, 1, 0, t_same(128, 64), out, &lse));
            CHECK_BITS(out, t_same(128, 1), 128);
            CHECK_CLOSE(lse, -46340.95f + logf((float)n), 46341);
        }
        t_finish(pool);
    }
}

// Empty sequences, and sequences that take no part, do not harm their neighbours in a batch
// (FlashInfer issue 353, vLLM 57094).
static void test_bug_empty_sequences_in_batch(void)
{
    const int counts[][5] = {
        {1, 0, 1, 0, 0}, {4, 0, 3, 0, 0}, {0, 0, 7, 0, 0}, {0, 0, 0, 0, 0}, {1, 0, 2, 5, 0}};
    Pool *pool = t_pool(t_config(4, 12));
    Seq *seqs[] = {t_seq(pool, 4), t_seq(pool, 0), t_seq(pool, 7), t_seq(pool, 5), t_seq(pool, 0)};
    for (int i = 0; i < 5; i++) t_attend(seqs, counts[i], 5, 4, 0);
    t_finish(pool);
}

// Releases in every order of four sharers: each reference goes exactly once, and who is left still
// has its tokens (vLLM issue 1930, TVM 16666).
static void test_bug_release_orders(void)
{
    for (int order = 0; order < 4 * 4 * 4 * 4; order++) {
        const int turns[] = {order / 64, order / 16 % 4, order / 4 % 4, order % 4};
        if ((1 << turns[0] | 1 << turns[1] | 1 << turns[2] | 1 << turns[3]) != 15) continue;
        Pool *pool = t_pool(t_config(4, 16));
        Seq *seqs[4] = {t_seq(pool, 10), NULL, NULL, NULL};
        seqs[1] = t_fork(seqs[0], 10);
        seqs[2] = t_fork(seqs[0], 6);
        seqs[3] = t_fork(seqs[2], 6);
        t_append(seqs[2], 3);
        t_append(seqs[1], 4);
        for (int i = 0; i < 4; i++) {
            t_release(seqs[turns[i]]);
            t_check_all(pool);
        }
        t_finish(pool);
    }
}

// Chunked prefill: the queries of a chunk see the chunks before it and their own past, no more and
// no less (nano-vllm issue 212). Pages of 4, chunks of 3, 2, 5 and of 4, 3, 2, then a rewind of 3,
// as in tiny-llm's tests; and its 6 tokens whose blocks go to the next 5.
static void test_bug_chunked_prefill(void)
{
    const int chunks[2][3] = {{3, 2, 5}, {4, 3, 2}};
    for (int script = 0; script < 2; script++) {
        Pool *pool = t_pool(t_config(4, 8));
        t_shuffle(pool);
        Seq *seq = t_seq(pool, 6);
        const char *table = TABLE(seq);
        t_release(seq);
        seq = t_seq(pool, 5);
        CHECK_TEXT(TABLE(seq), table);
        t_rewind(seq, 5);
        for (int i = 0; i < 3; i++) {
            t_append(seq, chunks[script][i]);
            t_attend(&seq, &chunks[script][i], 1, 4, 0);
        }
        t_rewind(seq, 3);
        t_finish(pool);
    }
}

// A wrong order of blocks cannot be seen by one query over full blocks, as a softmax does not care
// about order. With several queries, or a partly filled tail, it shows: here we see that it does.
static void test_bug_wrong_block_order_shows(void)
{
    const int n = 3;
    Pool *pool = t_pool(t_config(4, 4));
    Seq *seq = t_seq(pool, 12);
    Batch batch = {1, &seq, &n};
    float *q = t_floats(n * 8), *right = t_same(n * 8, 0), *wrong = t_same(n * 8, 0);
    CHECK_OK(attend(pool, ATTEND_PAGED, 0, &batch, 2, 0, q, right, NULL));
    int last = seq->block_table[2];
    seq->block_table[2] = seq->block_table[1], seq->block_table[1] = last;
    CHECK_OK(attend(pool, ATTEND_PAGED, 0, &batch, 2, 0, q, wrong, NULL));
    seq->block_table[1] = seq->block_table[2], seq->block_table[2] = last;
    for (int i = 0; i < 8; i++) {
        CHECK(!t_close(right[i], wrong[i], 1));           // the first of three queries
        CHECK(t_close(right[16 + i], wrong[16 + i], 1));  // the last one sees all 12 tokens
    }
    t_finish(pool);
}

// ---- attention --------------------------------------------------------------------------------

// The scale is a factor on the scores, 0 stands for 1 / sqrt(head_dim), and lse may be left out.
static void test_scale_and_lse(void)
{
    const float scales[] = {0, 0.125f, 0.01f, -0.3f, 1e-30f};
    const int n = 5;
    PoolConfig config = {2, 2, 64, 8, 8, PAGED_F32, 1, PAGED_CPU};
    Pool *pool = t_pool(config);
    Seq *seq = t_seq(pool, 29);
    for (int i = 0; i < 5; i++) t_attend(&seq, &n, 1, 6, scales[i]);

    Batch batch = {1, &seq, &n};
    float *q = t_floats(n * 6 * 64), *a = t_same(n * 6 * 64, 0), *b = t_same(n * 6 * 64, 0);
    float lse[30];
    CHECK_OK(attend(pool, ATTEND_PAGED, 1, &batch, 6, 0, q, a, lse));
    CHECK_OK(attend(pool, ATTEND_PAGED, 1, &batch, 6, 0.125f, q, b, NULL));
    CHECK_BITS(a, b, n * 6 * 64);  // 1 / sqrt(64) is 0.125
    t_finish(pool);
}

// Scores of plus and minus infinity (an f16 cache makes them from 1e6) crash nothing, and leave the
// other sequences of the batch alone.
static void test_infinite_scores(void)
{
    const int six_none[] = {6, 0}, twos[] = {2, 2};
    for (int dim = 4; dim <= 64; dim += 60) {
        const int ROWS = 2 * 4 * dim;  // floats of two tokens with four query heads
        PoolConfig config = t_config(4, 12);
        config.dtype = PAGED_F16;
        config.head_dim = dim;
        Pool *pool = t_pool(config);
        Seq *seqs[] = {t_bare_seq(pool, 6), t_seq(pool, 6)};
        Batch write = {2, seqs, six_none}, both = {2, seqs, twos}, alone = {1, seqs + 1, twos};
        float *q = t_floats(2 * ROWS), *out = t_same(2 * ROWS, 0), *expected = t_same(ROWS, 0),
              lse[16];
        for (int i = 0; i < 8; i++) {
            float *big = t_same(6 * 2 * dim, i < 4 ? 1e6f : -1e6f);
            CHECK_OK(pool_write(pool, 0, &write, big, big));
            CHECK_OK(attend(pool, i % 4, 0, &both, 4, 0, q, out, lse));
            CHECK_OK(attend(pool, i % 4, 0, &alone, 4, 0, q + ROWS, expected, NULL));
            CHECK_BITS(out + ROWS, expected, ROWS);
        }
        t_finish(pool);
    }
}

// Tokens that were appended and not yet written hold NaN, and attention over them shows it.
static void test_unwritten_tokens_show(void)
{
    for (int dim = 4; dim <= 64; dim += 60) {
        PoolConfig config = t_config(4, 8);
        config.head_dim = dim;
        Pool *pool = t_pool(config);
        Seq *seqs[2] = {t_bare_seq(pool, 7), t_seq(pool, 7)};
        const int ones[2] = {1, 1};
        Batch batch = {2, seqs, ones};
        float *q = t_floats(2 * 2 * dim);
        for (int method = ATTEND_GATHER; method <= ATTEND_PLAIN; method++) {
            float *out = t_same(2 * 2 * dim, 0);
            CHECK_OK(attend(pool, method, 0, &batch, 2, 0, q, out, NULL));
            for (int i = 0; i < 2 * dim; i++) CHECK(isnan(out[i]) && isfinite(out[2 * dim + i]));
        }
        seq_release(seqs[0]);
        t_finish(pool);
    }
}

// Tokens whose scores are minus infinity weigh nothing, even where they fill whole tiles and
// nothing else has been seen yet: (-inf) - (-inf) must not make a NaN of the rest.
static void test_scores_of_minus_infinity(void)
{
    const int all = 600, one = 1;
    for (int dim = 4; dim <= 64; dim += 60) {
        PoolConfig config = t_config(4, 150);
        config.head_dim = dim;
        config.num_layers = config.num_kv_heads = 1;
        config.dtype = PAGED_F16;
        Pool *pool = t_pool(config);
        Seq *seq = t_bare_seq(pool, all);
        Oracle *oracle = NULL;
        Batch write = {1, &seq, &all}, newest = {1, &seq, &one};
        float *k = t_floats(all * dim), *v = t_floats(all * dim), *q = t_same(dim, 1), out[64], lse;
        float expected[64], expected_lse;
        for (int i = 0; i < 595 * dim; i++) k[i] = -1e6f;  // minus infinity in f16
        CHECK_OK(oracle_create(&config, all, &oracle));
        CHECK_OK(oracle_append(oracle, all));
        CHECK_OK(oracle_write(oracle, 0, all, k, v));
        CHECK_OK(oracle_attend(oracle, 0, 1, 1, 0, q, expected, &expected_lse));
        oracle_release(oracle);
        CHECK_OK(pool_write(pool, 0, &write, k, v));
        for (int method = ATTEND_GATHER; method <= ATTEND_PLAIN; method++) {
            CHECK_OK(attend(pool, method, 0, &newest, 1, 0, q, out, &lse));
            for (int i = 0; i < dim; i++) CHECK_CLOSE(out[i], expected[i], 1);
            CHECK_CLOSE(lse, expected_lse, fabs(expected_lse));
        }
        // A query that sees nothing else gets zeros.
        CHECK_OK(seq_rewind(seq, 10));
        for (int method = ATTEND_GATHER; method <= ATTEND_PLAIN; method++) {
            CHECK_OK(attend(pool, method, 0, &newest, 1, 0, q, out, &lse));
            CHECK_BITS(out, t_same(dim, 0), dim);
            CHECK(lse == -INFINITY);
        }
        t_finish(pool);
    }
}

enum { CUT_LENGTH = 75, CUT_HEADS = 4 };

// One sequence of fixed data, appended and attended chunk by chunk: out and lse of every token.
// With company, it has a neighbour on either side of the batch.
static void t_run_chunks(PoolConfig config, int chunk, int company, const float *data, float *out,
                         float *lse)
{
    size_t row = (size_t)config.num_kv_heads * config.head_dim;
    size_t q_row = (size_t)CUT_HEADS * config.head_dim;
    const float *k = data, *v = k + CUT_LENGTH * row, *q = v + CUT_LENGTH * row;
    config.num_blocks = 6 + 3 * CUT_LENGTH / config.block_size;
    Pool *pool = t_pool(config);
    t_shuffle(pool);
    Seq *seqs[] = {t_bare_seq(pool, 0), t_bare_seq(pool, 0), t_bare_seq(pool, 0)};
    for (int start = 0; start < CUT_LENGTH; start += chunk) {
        int n = t_min(chunk, CUT_LENGTH - start), extra = company ? t_min(n, 3) : 0;
        const int num_tokens[] = {extra, n, extra};
        Batch batch = {3, seqs, num_tokens};
        size_t rows = (size_t)(n + 2 * extra), mark = arrlenu(t_memory);
        float *bk = t_floats(rows * row), *bv = t_floats(rows * row), *bq = t_floats(rows * q_row);
        float *bout = t_same(rows * q_row, 0), *blse = t_same(rows * CUT_HEADS, 0);
        for (int i = 0; i < 3; i++) CHECK_OK(seq_append(seqs[i], num_tokens[i]));
        memcpy(bk + extra * row, k + start * row, n * row * sizeof(float));
        memcpy(bv + extra * row, v + start * row, n * row * sizeof(float));
        memcpy(bq + extra * q_row, q + start * q_row, n * q_row * sizeof(float));
        CHECK_OK(pool_write(pool, 0, &batch, bk, bv));
        CHECK_OK(attend(pool, start / chunk % 2, 0, &batch, CUT_HEADS, 0, bq, bout, blse));
        memcpy(out + start * q_row, bout + extra * q_row, n * q_row * sizeof(float));
        memcpy(lse + start * CUT_HEADS, blse + extra * CUT_HEADS, n * CUT_HEADS * sizeof(float));
        t_free_to(mark);
    }
    t_finish(pool);
}

// A token's output depends on its sequence alone: every bit is the same in blocks of any size, in
// chunks of any size, one token at a time or all at once, alone or in a batch.
static void test_same_bits_however_cut(void)
{
    enum { LSE = CUT_LENGTH * CUT_HEADS };
    const int block_sizes[] = {1, 4, 8, 16, 32, 256}, chunks[] = {75, 1, 2, 7, 16, 31};
    for (int shape = 0; shape < 6; shape++) {
        int dtype = shape / 2, dim = shape % 2 ? 64 : 20, out_size = LSE * dim;
        size_t mark = arrlenu(t_memory);
        PoolConfig config = {1, 1 + shape / 3, dim, 16, 1, dtype, 1, PAGED_CPU};
        float *data = t_floats((size_t)CUT_LENGTH * (2 + 2 + CUT_HEADS) * dim);
        float *out = t_same(out_size, 0), *lse = t_same(LSE, 0);
        float *first_out = t_same(out_size, 0), *first_lse = t_same(LSE, 0);
        t_run_chunks(config, CUT_LENGTH, 0, data, first_out, first_lse);
        for (int i = 0; i < 6 * 6 * 2; i += t_on_stand_in() ? 11 : 1) {
            config.block_size = block_sizes[i / 6 % 6];
            t_at("block size %d, chunks of %d, %s, head_dim %d", config.block_size, chunks[i % 6],
                 i < 36 ? "alone" : "in a batch", dim);
#ifdef _OPENMP
            omp_set_num_threads(1 + i % 3);
#endif
            t_run_chunks(config, chunks[i % 6], i / 36, data, out, lse);
            CHECK_BITS(out, first_out, out_size);
            CHECK_BITS(lse, first_lse, LSE);
        }
#ifdef _OPENMP
        omp_set_num_threads(omp_get_num_procs());
#endif
        t_free_to(mark);
    }
}

// fast.c takes up to 64 query vectors at a time: some rows of a small group, all of a group of 64,
// and no larger one. Batches of one token each are cut in another way.
static void test_groups_of_any_size(void)
{
    const int groups[] = {1, 3, 5, 33, 63, 64, 65}, chunks[] = {23, 0, 5}, ones[] = {1, 1, 1};
    for (int i = 0; i < 7; i++) {
        PoolConfig config = {1, i < 3 ? 3 : 1, i % 2 ? 128 : 64, 16, 12, i % 3, 1, PAGED_CPU};
        Pool *pool = t_pool(config);
        t_shuffle(pool);
        t_at("groups of %d query heads", groups[i]);
        Seq *seqs[] = {t_seq(pool, 40), t_seq(pool, 33), t_seq(pool, 19)};
        t_attend(seqs, chunks, 3, groups[i] * config.num_kv_heads, 0);
        t_attend(seqs, ones, 3, groups[i] * config.num_kv_heads, 0);
        t_finish(pool);
    }
}

// ---- kernels ----------------------------------------------------------------------------------

// Every kernel in three orders of the lanes, every dtype, several head_dims and groups, and lengths
// around the ends of the splits: the same bytes of K and V, the same bits of attention.
static void test_kernels_in_lane_orders(void)
{
#ifdef __CUDACC__
    t_skip("a real GPU chooses the order of its lanes itself");
#else
    t_device = PAGED_GPU;
    const int dims[] = {1, 8, 20, 80, 256}, lengths[] = {3, 30, 255, 257, 70};
    for (int i = 0; i < 15; i++) {
        PoolConfig config = {1, 2, dims[i % 5], 1 + 15 * (i % 2), 640, i % 3, 1, PAGED_GPU};
        int num_q_heads = 2 * (i % 4 == 0 ? 1 : i % 4 == 1 ? 4 : 5), n[2] = {lengths[i / 3], 2};
        size_t rows = (size_t)num_q_heads * 3, kv = (size_t)n[0] * 2 * dims[i % 5];
        float *k = t_floats(kv), *v = t_floats(kv), *q = t_floats(rows * dims[i % 5]),
              *first = NULL;
        t_at("head_dim %d, length %d, %d heads, dtype %d", dims[i % 5], n[0], num_q_heads, i % 3);
        for (unsigned order = 0; order < 3; order++) {
            Pool *pool = t_pool(config);
            Seq *seqs[2] = {t_bare_seq(pool, n[0]), NULL};
            gpu_lane_order =
                order * order * 5 + (order > 0);  // 0, 6 and 21: ascending, two shuffled
            if (order == 1) gpu_lane_order = 1;   // descending
            Batch one = {1, seqs, n};
            CHECK_OK(pool_write(pool, 0, &one, k, v));
            CHECK_OK(seq_fork(seqs[0], n[0] - 1, &seqs[1]));
            CHECK_OK(seq_append(seqs[1], 1));  // copies, if its block has room
            int newest[2] = {2, 1};
            Batch both = {2, seqs, newest}, second = {1, seqs + 1, newest + 1};
            CHECK_OK(pool_write(pool, 0, &second, k, v));
            size_t size = rows * dims[i % 5], plane = t_plane_bytes(pool) / sizeof(float);
            float *all = (float *)t_alloc((3 * size + 3 * rows + 2 * plane) * sizeof(float));
            for (int method = 0; method < 3; method++)
                CHECK_OK(attend(pool, method, 0, &both, num_q_heads, 0, q, all + method * size,
                                all + 3 * size + method * rows));
            memcpy(all + 3 * size + 3 * rows, pool->k, plane * sizeof(float));
            memcpy(all + 3 * size + 3 * rows + plane, pool->v, plane * sizeof(float));
            if (first) CHECK_BITS(all, first, 3 * size + 3 * rows + 2 * plane);
            first = all;
            gpu_lane_order = 0;
            seq_release(seqs[0]);
            seq_release(seqs[1]);
            t_finish(pool);
        }
    }
#endif
}

// Kernels and the CPU never follow an entry behind the end of a table: whatever stands there, the
// result is the same. An entry that is needed and names no block is refused.
static void test_table_entries(void)
{
    Pool *pool = t_pool(t_config(4, 16));
    Seq *seqs[2] = {t_seq(pool, 13), t_seq(pool, 3)};
    const int ones[2] = {1, 1};
    Batch batch = {2, seqs, ones};
    size_t n = 2 * 4 * 4;
    float *q = t_floats(n), *out = t_same(n, 0), *x = t_floats(2 * 2 * 4);
    for (int method = ATTEND_GATHER; method <= ATTEND_SPLIT; method++) {
        arrsetcap(seqs[1]->block_table, 8);
        for (int i = 1; i < 8; i++) seqs[1]->block_table[i] = INT_MAX;  // behind its one block
        CHECK_OK(attend(pool, method, 0, &batch, 4, 0, q, out, NULL));
        t_check_rows(seqs[1], 0, 1, 4, 0, q + 16, out + 16, NULL);
        for (int wrong = 0; wrong < 3; wrong++) {
            int right = seqs[0]->block_table[2];
            seqs[0]->block_table[2] = wrong == 0 ? -1 : wrong == 1 ? 16 : INT_MAX;
            CHECK_EQ(attend(pool, method, 0, &batch, 4, 0, q, out, NULL), PAGED_BAD_ARGUMENT);
            if (wrong == 0) CHECK_EQ(pool_write(pool, 0, &batch, x, x), PAGED_BAD_ARGUMENT);
            seqs[0]->block_table[2] = right;
        }
    }
    t_finish(pool);
}

// Tensors are made, filled, read and freed where the pool lives; sizes that overflow are refused.
static void test_tensors(void)
{
    Pool *pool = t_pool(t_config(4, 2));
    const float *x = t_floats(100);
    float *y = t_same(101, 7), *tensor = tensor_create(pool, 100),
          *other = tensor_create(pool, 100);
    CHECK(tensor && other);
    tensor_copy(pool, tensor, x, 100);
    tensor_copy(pool, other, tensor, 100);
    tensor_copy(pool, y, other, 100);
    CHECK_BITS(x, y, 100);
    CHECK(y[100] == 7);
    tensor_copy(pool, NULL, x, 100);
    tensor_copy(pool, y, NULL, 100);
    tensor_copy(NULL, y, x, 1);
    CHECK(!tensor_create(NULL, 100) && !tensor_create(pool, 0) &&
          !tensor_create(pool, SIZE_MAX / 2));
    t_failing = 0;
    float *none = tensor_create(pool, 100);
    t_failing = -1;
    CHECK(!none || (T_REAL_GPU && t_device == PAGED_GPU));  // cudaMalloc() does not ask t_failing
    tensor_copy(pool, tensor, x, 0);
    tensor_free(pool, none);
    tensor_free(pool, tensor);
    tensor_free(pool, other);
    tensor_free(pool, NULL);
    tensor_free(NULL, y);
    t_finish(pool);
}

// The workspace grows to what a call needs, and stays: a smaller call does not make it anew.
static void test_workspace_is_kept(void)
{
    Pool *pool = t_pool(t_config(4, 20));
    Seq *seq = t_seq(pool, 70);
    int n = 1;
    float *q = t_floats(70 * 2 * 4), *out = t_same(70 * 2 * 4, 0);
    Batch one = {1, &seq, &n}, all = {1, &seq, &seq->length};
    CHECK_OK(attend(pool, ATTEND_GATHER, 0, &all, 2, 0, q, out, NULL));
    size_t bytes = pool->workspace_bytes;
    void *workspace = pool->workspace;
    CHECK_OK(attend(pool, ATTEND_GATHER, 0, &one, 2, 0, q, out, NULL));
    CHECK_OK(attend(pool, ATTEND_PAGED, 0, &all, 2, 0, q, out, NULL));
    CHECK(pool->workspace_bytes == bytes && pool->workspace == workspace);
    t_finish(pool);
}

// Around the ends of splits, and with groups that fill a tile of query heads, overflow it, or take
// several.
static void test_splits_and_groups(void)
{
    const int lengths[] = {SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT, 2 * SPLIT + 3, 40};
    const int groups[] = {9, 1, 17, 2, 4, 8}, dims[] = {20, 128, 8, 64, 1, 24};
    for (int i = 0; i < 6; i++) {
        PoolConfig config = t_config(16, 3 * SPLIT / 16);
        config.num_layers = config.num_kv_heads = 1;
        config.head_dim = dims[i];
        config.dtype = i % 3;
        Pool *pool = t_pool(config);
        t_shuffle(pool);
        t_at("length %d, group %d, head_dim %d, dtype %d", lengths[i], groups[i], dims[i], i % 3);
        Seq *seq = t_seq(pool, lengths[i]);
        int n = 2;
        t_attend(&seq, &n, 1, groups[i], 0);
        t_release(seq);
        t_finish(pool);
    }
}

// Each of the nine kernels of the split attention: a dtype, and one, four or eight heads at a time.
static void test_every_split_kernel(void)
{
    for (int i = 0; i < 9; i++) {
        PoolConfig config = t_config(4, 8);
        config.dtype = i / 3;
        Pool *pool = t_pool(config);
        Seq *seq = t_seq(pool, 11);
        int n = 2;
        t_at("dtype %d, group %d", i / 3, i % 3 ? 4 * (i % 3) : 1);
        t_attend(&seq, &n, 1, i % 3 ? 8 * (i % 3) : 2, 0);
#ifndef __CUDACC__
        Batch batch = {1, &seq, &n};
        float *q = t_floats(2 * 2 * 4), *out = t_same(2 * 2 * 4, 0);
        CHECK_OK(attend(pool, ATTEND_SPLIT, 0, &batch, 2, 0, q, out, NULL));
        if (t_device == PAGED_GPU) CHECK_TEXT(gpu.name, "merge_splits");  // which ran last
#endif
        t_finish(pool);
    }
}

// ---- shapes that peers test -------------------------------------------------------------------

// One ragged batch: sequences of these lengths grow in random turns, out of a shuffled free list,
// then attend with their newest tokens.
static void t_shape(PoolConfig config, int num_q_heads, const int *all_lengths,
                    const int *all_num_tokens, int count)
{
    size_t mark = arrlenu(t_memory);
    int most = 0, *lengths = (int *)t_alloc(128 * sizeof(int)), num_tokens[128];
    for (int i = 0; i < count; i++) {
        lengths[i] = all_lengths[i];
        num_tokens[i] = all_num_tokens[i];
        if (!t_on_stand_in()) continue;
        lengths[i] = t_min(lengths[i], i == 0 ? 300 : 40);
        num_tokens[i] = t_min(t_min(num_tokens[i], lengths[i]), 2);
    }
    if (t_on_stand_in()) {  // all of a shape but its size: a group of query heads stays whole
        num_q_heads = num_q_heads / config.num_kv_heads * t_min(config.num_kv_heads, 2);
        config.num_kv_heads = t_min(config.num_kv_heads, 2);
        config.num_layers = 1;
        count = t_min(count, 4);
    }
    t_at("kv heads %d, q heads %d, head_dim %d, block size %d, dtype %d, length %d, queries %d",
         config.num_kv_heads, num_q_heads, config.head_dim, config.block_size, config.dtype,
         lengths[0], num_tokens[0]);
    config.num_blocks = 3;
    for (int i = 0; i < count; i++) {
        config.num_blocks += (lengths[i] + config.block_size - 1) / config.block_size;
        most = lengths[i] > most ? lengths[i] : most;
    }
    Pool *pool = t_pool(config);
    t_shuffle(pool);
    Seq **seqs = (Seq **)t_alloc((size_t)count * sizeof *seqs);
    for (int i = 0; i < count; i++) seqs[i] = t_empty_seq(pool, lengths[i] + 1);
    for (int missing = most; missing > 0; missing /= 2)  // the gap to the end halves at each turn
        for (int i = 0; i < count; i++) {
            int left = lengths[i] - seqs[i]->length;
            t_append(seqs[i], missing == 1 ? left : t_between(0, left));
        }
    t_attend(seqs, num_tokens, count, num_q_heads, 0);
    t_finish(pool);
    t_free_to(mark);
}

// vLLM's kernel tests: 7 sequences of random lengths; every head count with every head_dim, block
// sizes and dtypes in turn.
static void test_shapes_vllm(void)
{
    const int heads[][2] = {{40, 40}, {64, 8}, {32, 8}}, dims[] = {64, 80, 96, 112, 128, 256};
    const int ones[] = {1, 1, 1, 1, 1, 1, 1}, block_sizes[] = {8, 16, 32};
    for (int i = 0; i < 18; i++) {
        const int *h = heads[i % 3], b = block_sizes[(i / 3 + i) % 3];
        PoolConfig config = {1, h[1], dims[i / 3], b, 0, (i / 9 + i) % 3, 1, PAGED_CPU};
        int lengths[7];
        for (int j = 0; j < 7; j++) lengths[j] = t_between(1, t_quick ? 20 : 120);
        t_shape(config, h[0], lengths, ones, 7);
    }
}

// FlashInfer's decode tests. The longest lengths come once in their batch: the oracle is slow.
static void test_shapes_flashinfer_decode(void)
{
    const struct {
        int count, length, block_size, num_q_heads, head_dim, all;
    } shapes[] = {{12, 54, 1, 4, 128, 1},   {17, 97, 8, 32, 128, 1},  {128, 54, 16, 4, 256, 1},
                  {128, 97, 1, 4, 128, 1},  {17, 512, 16, 4, 256, 0}, {12, 2048, 8, 4, 128, 0},
                  {12, 512, 1, 32, 128, 0}, {17, 2048, 1, 4, 256, 0}, {12, 16384, 16, 4, 256, 0},
                  {12, 16384, 1, 4, 128, 0}};
    for (int i = 0; i < (t_quick ? 2 : 10); i++) {
        int lengths[128], ones[128];
        for (int j = 0; j < 128; j++) {
            lengths[j] = j == 0 || shapes[i].all ? shapes[i].length : t_between(1, 100);
            ones[j] = 1;
        }
        PoolConfig config = {1,     4, shapes[i].head_dim, shapes[i].block_size, 0,
                             i % 3, 1, PAGED_CPU};
        t_shape(config, shapes[i].num_q_heads, lengths, ones, shapes[i].count);
    }
}

// FlashInfer's prefill and verify tests: many queries at once.
static void test_shapes_flashinfer_prefill(void)
{
    const int lengths[] = {54, 97, 512, 2048, 33, 17, 65, 129};
    const int queries[] = {17, 37, 127, 577, 2, 3};
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 6; j++) {
            if (queries[j] > lengths[i] || (i < 4) != (j < 4) || (t_quick && i == 3)) continue;
            const int both[] = {lengths[i], t_between(3, 60)}, n[] = {queries[j], t_between(0, 3)};
            PoolConfig config = {1, 1, 32, 1 << (i + j) % 5, 0, (i + j) % 3, 1, PAGED_CPU};
            t_shape(config, 2, both, n, 2);
        }
}

// Lengths around the block size, group sizes, head_dims, several queries, all in ragged batches:
// every block size with every head_dim, and the other lists in turn.
static void test_shapes_ragged(void)
{
    const int heads[][2] = {{8, 8}, {8, 4}, {8, 2}, {8, 1}, {7, 1}, {40, 40}};
    const int block_sizes[] = {1, 4, 8, 16, 32, 256}, dims[] = {8, 32, 64, 80, 128, 256};
    const int queries[] = {1, 2, 3, 17};
    for (int i = 0; i < 36; i += t_quick ? 7 : 1) {
        int b = block_sizes[i / 6], num_tokens[8];
        const int *h = heads[(i + i / 6) % 6];
        const int lengths[] = {97, 0, 1, b - 1, b, b + 1, 129, i % 3 || t_quick ? 40 : 1000};
        for (int j = 0; j < 8; j++) num_tokens[j] = t_min(lengths[j], queries[(i + j) % 4]);
        PoolConfig config = {1 + i % 2, h[1], dims[i % 6], b, 0, (i + i / 3) % 3, 1, PAGED_CPU};
        t_shape(config, h[0], lengths, num_tokens, 8);
    }
}

// vLLM's copy-on-write matrix: a copy happens exactly when the tail is partly filled and shared,
// whoever of the two appends.
static void test_vllm_copy_on_write_matrix(void)
{
    const int sizes[] = {1, 16, 129};
    for (int i = 0; i < 3 * 3 * 2; i++) {
        int length = sizes[i / 6], n = sizes[i / 2 % 3];
        t_at("%d tokens, append %d", length, n);
        Pool *pool = t_pool(t_config(8, 64));
        Seq *parent = t_seq(pool, length), *child = t_fork(parent, length);
        t_append(i % 2 ? parent : child, n);
        CHECK_EQ(pool->num_copies, length % 8 > 0);
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
        for (int j = 0; j < 16 && seqs[j]; j++) {
            t_release(seqs[j]);
            t_check_all(pool);
        }
        t_finish(pool);
    }
}

// Beam search: every step the survivors are forked, the losers released, and each beam takes one
// token. 4 beams, 200 steps.
static void test_beam_search(void)
{
    enum { BEAMS = 4 };
    const int ones[] = {1, 1, 1, 1};
    for (int block_size = 4; block_size <= 16; block_size *= 4) {
        Pool *pool = t_pool(t_config(block_size, 260));
        Seq *beams[BEAMS], *next[BEAMS];
        beams[0] = t_seq(pool, 10);
        for (int i = 1; i < BEAMS; i++) beams[i] = t_fork(beams[0], 10);
        for (int step = 0; step < 200; step++) {
            t_at("step %d", step);
            for (int i = 0; i < BEAMS; i++)
                next[i] = t_fork(beams[t_between(0, BEAMS - 1)], beams[0]->length);
            for (int i = 0; i < BEAMS; i++) {
                t_release(beams[i]);
                beams[i] = next[i];
            }
            for (int i = 0; i < BEAMS; i++) CHECK_OK(t_room(beams[i], 1));
            t_write(beams, ones, BEAMS);
            t_check_pool(pool);
            for (int i = 0; i < BEAMS; i++)
                if (!t_on_stand_in() || step % 10 == 9) t_check(beams[i]);
            if (step % 10 == 9) t_attend(beams, ones, BEAMS, 4, 0);
        }
        CHECK(pool->num_copies > 100);
        t_finish(pool);
    }
}

// Speculative decoding: a round appends the newest token and k guesses, all attend in one call, and
// the wrong guesses are rewound. For every number of right ones the sequence is then the same as
// one that was grown token by token: the same bytes, the same attention bits, the same free blocks.
static void test_speculation_every_accept_count(void)
{
    for (int block_size = 1; block_size <= 5; block_size += 2)
        for (int guesses = 0; guesses <= 8; guesses++)
            for (int right = 0; right <= guesses; right++) {
                t_at("block size %d, %d of %d guesses right", block_size, right, guesses);
                Pool *pool = t_pool(t_config(block_size, 64));
                Seq *seq = t_seq(pool, 7);
                const int n = 1 + guesses;
                t_append(seq, n);
                t_attend(&seq, &n, 1, 4, 0);
                t_rewind(seq, guesses - right);
                CHECK_EQ(seq->length, 8 + right);
                CHECK_EQ(t_used(pool), (8 + right + block_size - 1) / block_size);
                t_check_all(pool);
                t_finish(pool);
            }
}

// 100 rounds of two speculating sequences, one a fork of the other, leak nothing.
static void test_speculation_leaks_nothing(void)
{
    Pool *pool = t_pool(t_config(4, 100));
    Seq *seqs[2];
    seqs[0] = t_seq(pool, 6);
    seqs[1] = t_fork(seqs[0], 6);
    for (int round = 0; round < 100; round++) {
        int attends = !t_on_stand_in() || round % 5 == 0;  // that is slow
        int guesses[2], counts[2];
        for (int i = 0; i < 2; i++) {
            guesses[i] = t_between(0, 8);
            counts[i] = guesses[i] + 1;
            t_append(seqs[i], counts[i]);
        }
        if (attends) t_attend(seqs, counts, 2, 4, 0);
        for (int i = 0; i < 2; i++) {
            t_rewind(seqs[i], t_between(0, guesses[i]));
            if (seqs[i]->length > 90) t_rewind(seqs[i], seqs[i]->length - 6);
        }
        int shared = seqs[0]->block_table[0] == seqs[1]->block_table[0];  // the first one, full
        int blocks = (seqs[0]->length + 3) / 4 + (seqs[1]->length + 3) / 4;
        CHECK_EQ(t_used(pool), blocks - shared);
    }
    t_check_all(pool);
    t_finish(pool);
}

// Samples are forked off a sequence while its guesses are in it, so they share their blocks. It is
// then rewound across those, down to any length, and grows again; so do the samples. Nobody sees
// what another one wrote.
static void test_speculation_with_samples(void)
{
    for (int drop = 0; drop <= 13; drop++) {
        Pool *pool = t_pool(t_config(4, 40));
        Seq *seq = t_seq(pool, 5);
        t_append(seq, 8);  // guesses: 13 tokens in 4 blocks
        Seq *samples[3] = {t_fork(seq, 13), t_fork(seq, 10), t_fork(seq, 6)};
        CHECK_EQ(t_used(pool), 4);
        t_at("%d tokens are rewound", drop);
        long copies = pool->num_copies;
        t_rewind(seq, drop);
        CHECK_EQ(t_used(pool), 4);  // the samples still hold them
        t_check_all(pool);
        t_append(seq, 3);
        // The copy is needed where the rewind ended inside a block: each of them has other readers.
        CHECK_EQ(pool->num_copies - copies, (13 - drop) % 4 != 0);
        t_check_all(pool);
        for (int i = 0; i < 3; i++) {
            t_rewind(samples[i], i);
            t_append(samples[i], 2);
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
    CHECK_SAME(seq->pool, PAGED_BLOCK_SHARED, pool_write(seq->pool, t_between(0, 1), &batch, x, x));
    t_release(child);
    t_write(&seq, &n, 1);
}

// Looks up a prompt that nobody has at the moment, but that may have been published before.
static void t_ask(Pool *pool, int may_create)
{
    int n = pool->config.num_blocks * pool->config.block_size;
    int *tokens = (int *)t_alloc((size_t)n * sizeof *tokens);
    if (t_between(0, 1)) tokens[t_between(0, n - 1)] = 1;
    if (may_create) t_lookup(pool, tokens, t_between(0, n));
}

// One random operation on one of the sequences. Returns what seq_append() said if it was one.
static int t_random_operation(Pool *pool, Seq *seq, int may_create)
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
    } else if (choice == 17) {
        t_ask(pool, may_create);
    } else {
        t_release(seq);
    }
    return PAGED_OK;
}

// With `odds`, sequences often begin alike (t_odds), so that the prefix cache has hits.
static void t_random_operations(int dtype, int block_size, int operations, int odds, int bad_hash)
{
    enum { MOST = 12 };
    int refused = 0, hits = 0;
    PoolConfig config = t_config(block_size, t_between(6, 30));
    config.dtype = dtype;
    Pool *pool = t_pool(config);
    if (bad_hash) pool->hash = t_hash_0;
    t_odds = odds;
    for (int i = 0; i < operations; i++) {
        size_t mark = arrlenu(t_memory);
        int count = (int)arrlen(pool->seqs), num_tokens[MOST];
        t_at("operation %d, block size %d, dtype %d, odds %d, bad hash %d", i, block_size, dtype,
             odds, bad_hash);
        Seq *seq = count > 0 ? pool->seqs[t_between(0, count - 1)] : NULL;
        refused += t_random_operation(pool, seq, count < MOST) != PAGED_OK;
        t_check_pool(pool);
        if (arrlen(pool->seqs) > count && arrlast(pool->seqs)->written > 0) hits++;
        count = (int)arrlen(pool->seqs);
        for (int j = 0; j < count; j++)  // the one it was, if it is still there, or any other
            if (pool->seqs[j] == seq || t_between(0, 15) == 0) t_check(pool->seqs[j]);
        if (i % (t_on_stand_in() ? 500 : 50) == 0 && count > 0) {
            for (int j = 0; j < count; j++)
                num_tokens[j] = t_between(0, t_min(pool->seqs[j]->length, t_between(0, 2) ? 2 : 9));
            t_attend(pool->seqs, num_tokens, count, 2 * t_between(1, 3), 0);
        }
        t_free_to(mark);
    }
    if (operations > 1000) CHECK(refused > 0 && (block_size == 1 || pool->num_copies > 0));
    if (operations > 10000 && odds) CHECK(hits > 0 && pool->last_serial > 20);
    t_finish(pool);
}

// Random operations on up to twelve sequences in a pool that keeps running out, compared with the
// oracle after each one, in every dtype and many block sizes; with the right hash for the prefix
// cache, and with one under which all blocks are alike.
static void test_random(void)
{
    const int block_sizes[] = {1, 2, 3, 4, 5, 7, 8, 16, 32};
    for (int i = 0; i < 27; i++)
        t_random_operations(i % 3, block_sizes[i / 3],
                            t_times(t_operations) / (t_on_stand_in() ? 1350 : 27),
                            i % 4 == 0 ? 0 : 4 * block_sizes[i / 3], i % 4 == 2);
}

// ---- programs ---------------------------------------------------------------------------------

typedef struct Run {
    int status;
    char *out, *err;
} Run;

static char *t_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) t_fail(__LINE__, path, "cannot read it");
    size_t size = (size_t)ftell(file);
    char *text = (char *)t_alloc(size);
    rewind(file);
    CHECK_EQ(fread(text, 1, size, file), size);
    fclose(file);
    return text;
}

static const char *t_next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

static const char *t_path(const char *name)  // of a temporary file
{
    const char *base = getenv("TMPDIR");
    if (!t_folder[0]) {
        snprintf(t_folder, sizeof t_folder, "%s/paged-XXXXXX", base && *base ? base : "/tmp");
        if (!mkdtemp(t_folder)) {
            t_folder[0] = 0;
            t_fail(__LINE__, "mkdtemp", "cannot make a folder in $TMPDIR or /tmp");
        }
    }
    return t_format("%s/%s", t_folder, name);
}

static void t_remove_folder(void)
{
    char pattern[sizeof t_folder + 2];
    glob_t found;
    if (!t_folder[0]) return;
    snprintf(pattern, sizeof pattern, "%s/*", t_folder);
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
    globfree(&found);
    rmdir(t_folder);
    t_folder[0] = 0;
}

static void t_save(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

// Runs a program. '|' separates the words of the command, as prompts have blanks. A crash, a hang
// and a finding of a sanitizer fail the test, whatever else it expects.
static Run t_run(const char *command)
{
    char *words = t_format("%s", command), *argv[100];
    const char *out = t_path("out"), *err = t_path("err");
    int argc = 0, status = 0;
    for (char *word = words; word; argc++) {
        argv[argc] = word;
        word = strchr(word, '|');
        if (word) *word++ = 0;
        CHECK(argc < 98);
    }
    argv[argc] = NULL;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        setenv("OMP_WAIT_POLICY", "passive", 0);  // threads that spin starve a busy machine
        if (freopen("/dev/null", "rb", stdin) && freopen(out, "wb", stdout) &&
            freopen(err, "wb", stderr))
            execv(argv[0], argv);
        _exit(127);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    Run run = {code, t_read(out), t_read(err)};
    if (code >= 126 || strstr(run.err, "Sanitizer") || strstr(run.err, "runtime error"))
        t_fail(__LINE__, command, "exit status %d, standard error:\n%s", code, run.err);
    return run;
}

// The comparisons of this file reject NaN and infinity, which `difference > tolerance` lets pass; a
// failing test makes the program fail; a name that is no test is an error.
static void test_bug_tests_that_cannot_fail(void)
{
    const float nan_value = NAN, infinite = INFINITY;
    CHECK(t_close(1, 1, 1) && t_close(1, 1.000009f, 1) && t_close(100, 100.0009f, 100));
    CHECK(!t_close(1, 1.00002f, 1) && !t_close(nan_value, nan_value, 1));
    CHECK(!t_close(1, nan_value, 1) && !t_close(nan_value, 1, 1) &&
          !t_close(infinite, infinite, 1));
    Run run = t_run(t_format("%s|fails_on_purpose", t_program));
    CHECK_EQ(run.status, 1);
    CHECK_HAS(run.out, "1 + 1: expected 3, got 2");
    CHECK_HAS(run.out, "\n0 passed, 1 failed, 0 skipped\n");
    CHECK_EQ(t_run(t_format("%s|no_such_test", t_program)).status, 2);
}

static void test_fails_on_purpose(void) { CHECK_EQ(1 + 1, 3); }

// The program that this environment variable names, or else this file; without it, a skip.
static const char *t_find_program(const char *variable, const char *otherwise)
{
    const char *program = getenv(variable) ? getenv(variable) : otherwise;
    if (access(program, X_OK) != 0) t_skip(t_format("there is no program %s", program));
    return program;
}

// The whole tour prints what it printed when every number of it was compared with its source, and
// on a file it prints no colour. A chapter alone prints its part of that.
static void test_tour(void)
{
    const char *program = t_find_program("PAGED", "./paged"), *expected = t_read("checks/tour.txt");
    Run run = t_run(program);
    CHECK_EQ(run.status, 0);
    CHECK_TEXT(run.out, expected);
    CHECK(!strstr(expected, "FAILED") && !strchr(expected, '\033'));
    for (const char *line = expected; *line; line = t_next_line(line))
        CHECK(t_next_line(line) - line <= 81);   // 80 columns and the newline
    run = t_run(t_format("%s|--gpu", program));  // the kernels make the same tour
    if (!strstr(run.err, "there is no GPU")) {
        CHECK_EQ(run.status, 0);
        CHECK_TEXT(run.out, expected);
    }
    for (int chapter = 1; chapter <= 10; chapter++) {
        run = t_run(t_format("%s|%d", program, chapter));
        CHECK_EQ(run.status, 0);
        CHECK(strncmp(run.out, t_format("%d. ", chapter), 3) == 0);
        CHECK_HAS(expected, run.out);
    }
}

// Arguments of the tour: help, waiting (a standard input at its end does not hang), and errors.
static void test_tour_arguments(void)
{
    const char *program = t_find_program("PAGED", "./paged");
    const char *wrong[] = {"0", "11", "-1", "x", "--stop", "1x"};
    Run run = t_run(t_format("%s|--help", program));
    CHECK_EQ(run.status, 0);
    CHECK_HAS(run.out, "usage:");
    CHECK_HAS(run.out, "10  The prefix cache");
    run = t_run(t_format("%s|--step|3", program));
    CHECK_EQ(run.status, 0);
    CHECK_HAS(run.out, "[return]");
    for (int i = 0; i < 6; i++) {
        run = t_run(t_format("%s|%s", program, wrong[i]));
        CHECK_EQ(run.status, 2);
        CHECK_HAS(run.err, t_format("'%s'", wrong[i]));
        CHECK_TEXT(run.out, "");
    }
}

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

// What a child prints that does `run(which)`. It must stop with abort(), as INVARIANT does.
static const char *t_last_words(void (*run)(int), int which)
{
    const char *path = t_path("err");
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        alarm(300);
#ifdef T_COVERAGE
        signal(SIGABRT, t_dump_coverage);
#endif
        if (freopen(path, "wb", stderr) && setvbuf(stderr, NULL, _IONBF, 0) == 0 &&
            setjmp(t_end) == 0)
            run(which);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    return t_read(path);
}

static void t_violate(int which)
{
    Pool *pool = t_pool(t_config(4, 4));
    Seq *a = t_seq(pool, 8), *b = t_seq(pool, which == 0 ? 8 : 0);
    void *volatile memory;  // volatile: else a compiler may leave the allocation out
    volatile size_t too_much = SIZE_MAX - 4096;
    if (which == 0) pool->num_free = 1, (void)seq_append(b, 1);
    if (which == 1) pool->blocks[2].ref_count = 1, (void)seq_append(b, 1);
    if (which == 2) pool->blocks[0].ref_count = 0, seq_release(a);
    if (which == 3) a->index = 1, seq_release(a);
    if (which == 4) {
        t_publish(a, 8);
        seq_release(a);
        pool->tokens[0]++;
        (void)seq_append(b, 16);
    }
    if (which == 5) memory = realloc_or_stop(NULL, too_much), (void)memory;
    if (which == 6) cuda_or_stop(1, "a call that fails", 7);
}

// A program that has damaged a pool is stopped where the engine notices, with a line that says why.
static void test_invariants_stop(void)
{
    const char *const texts[] = {"no free block to take",
                                 "a block on the free list is in use",
                                 "a free block is given back",
                                 "a sequence that its pool does not know is released",
                                 "a published block is not in the map",
                                 "out of memory: an array cannot grow",
                                 ":7: a call that fails: "};
    for (int i = 0; i < 7; i++) {
        t_at("violation %d", i);
        const char *words = t_last_words(t_violate, i);
        CHECK_HAS(words, texts[i]);
        CHECK_HAS(words, "paged.cu.c:");
    }
}

#ifndef __CUDACC__
KERNEL t_two_barriers(Step s)
{
    (void)s;
    if (threadIdx.x < WARP)
        __syncthreads();
    else
        __syncthreads();
}

KERNEL t_lane_not_in_mask(Step s) { (void)s, (void)__shfl_sync(ALL_LANES - 1, 0, 1); }
KERNEL t_other_not_in_mask(Step s) { (void)s, (void)__shfl_sync(ALL_LANES >> 1, 0, WARP - 1); }
KERNEL t_no_such_lane(Step s) { (void)s, (void)__shfl_sync(ALL_LANES, 0, WARP); }

KERNEL t_two_masks(Step s)
{
    (void)s;
    (void)__shfl_sync(threadIdx.x % WARP == 1 ? ALL_LANES >> 1 : ALL_LANES, 0, 0);
}

KERNEL t_one_stays_away(Step s)
{
    (void)s;
    if (threadIdx.x != 33) __syncthreads();
}

static void t_run_wrong_kernel(int which)
{
    static void (*const kernels[])(Step) = {t_two_barriers, t_lane_not_in_mask, t_other_not_in_mask,
                                            t_no_such_lane, t_two_masks,        t_one_stays_away};
    Step s;
    memset(&s, 0, sizeof s);
    if (which < 6) launch(kernels[which], "wrong", 2, 1, 1, 0, &s);
    if (which == 6) launch(t_one_stays_away, "wrong", 1, 1, 1, 1 << 20, &s);
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
        {"thread 0 (warp 0, lane 0): ", "lacks this lane"},
        {"thread 0 (warp 0, lane 0): ", "or the one it reads"},
        {"thread 0 (warp 0, lane 0): ", "the mask of the shuffle"},
        {"thread 1 (warp 0, lane 1): ", "its mask is not that of the lanes"},
        {"wrong, thread block (0, 0, 0), thread 0 (warp 0, lane 0): ", "deadlock"},
        {"standin.h:", "too much shared memory"}};
    for (int i = 0; i < 7; i++) {
        t_at("kernel %d", i);
        const char *words = t_last_words(t_run_wrong_kernel, i);
        CHECK_HAS(words, texts[i][0]);
        CHECK_HAS(words, texts[i][1]);
    }
#endif
}

// ---- examples/llama.c -------------------------------------------------------------------------
// A checkpoint with random weights is written to a temporary folder; the text it makes is nonsense,
// but the same nonsense however it is served.

enum { PROMPTS = 16 };

static const char *const t_prompts[PROMPTS] = {"",      "the",      "Once upon a time",
                                               "a",     "in there", "the thin hat",
                                               "x y z", "Zoë",      "hello hello",
                                               " ",     "10 + 10",  "that that",
                                               "an",    "then",     "he ate the hat on the heath",
                                               "Q"};

static const char *t_all_prompts(void)
{
    const char *options = "";
    for (int i = 0; i < PROMPTS; i++) options = t_format("%s|-p|%s", options, t_prompts[i]);
    return options;
}

static unsigned char *t_bytes;  // of the file in the making: an array of stb_ds

static void t_put_int(int64_t value)  // int32, little-endian
{
    for (int i = 0; i < 4; i++) arrput(t_bytes, (unsigned char)(value >> 8 * i & 255));
}

static void t_put_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    t_put_int(bits);
}

static void t_put_token(float score, const char *text, int length)
{
    t_put_float(score);
    t_put_int(length);
    for (int i = 0; i < length; i++) arrput(t_bytes, (unsigned char)text[i]);
}

// <unk>, <s>, </s>, the 256 bytes, the printable characters, and merges. Returns how many.
static int t_make_tokenizer(void)
{
    const char *merges[] = {"th", "the", "at", "hat", " h", "in", "an", "he", "ll", "on"};
    int count = 3;
    arrsetlen(t_bytes, 0);
    t_put_int(7);
    t_put_token(0, "<unk>", 5);
    t_put_token(0, "\n<s>\n", 5);
    t_put_token(0, "\n</s>\n", 6);
    for (int i = 0; i < 256; i++, count++) t_put_token(0, t_format("<0x%02X>", i), 6);
    for (char c = ' '; c <= '~'; c++, count++) t_put_token(-100.0f - c, &c, 1);
    for (int i = 0; i < 10; i++, count++) t_put_token((float)i, merges[i], (int)strlen(merges[i]));
    t_save(t_path("tokenizer"), t_bytes, arrlenu(t_bytes));
    return count;
}

// A checkpoint, in t_bytes too, and its tokenizer. The control tokens have rows of 0, so they never
// win. With `separate`, vocab_size is negative and the classifier stands in the file once more.
static void t_make_model(int separate)
{
    enum { DIM = 32, HIDDEN = 40, LAYERS = 2, HEADS = 4, KV_HEADS = 2, KV_DIM = 16, LONGEST = 96 };
    const int sizes[] = {DIM, DIM * DIM,    DIM * KV_DIM, DIM * KV_DIM, DIM * DIM,
                         DIM, DIM * HIDDEN, DIM * HIDDEN, DIM * HIDDEN};
    int vocab = t_make_tokenizer(), sign = separate ? -1 : 1;
    const int header[] = {DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, sign * vocab, LONGEST};
    t_state = t_seed;
    float *embedding = t_floats((size_t)vocab * DIM);
    memset(embedding, 0, 3 * DIM * sizeof *embedding);
    arrsetlen(t_bytes, 0);
    for (int i = 0; i < 7; i++) t_put_int(header[i]);
    for (int i = 0; i < vocab * DIM; i++) t_put_float(embedding[i]);
    for (int part = 0; part < 9; part++) {
        int n = LAYERS * sizes[part];
        const float *x = t_floats((size_t)n);
        for (int i = 0; i < n; i++) t_put_float(sizes[part] == DIM ? 1 + x[i] / 4 : x[i] / 2);
    }
    for (int i = 0; i < DIM; i++) t_put_float(1);
    for (int i = 0; i < LONGEST * DIM / HEADS; i++) t_put_float(0);
    for (int i = 0; separate && i < vocab * DIM; i++) t_put_float(embedding[i]);
    t_save(t_path("model"), t_bytes, arrlenu(t_bytes));
}

static Run t_llama(const char *options)
{
    t_at("%.190s", options);
    return t_run(t_format("%s|%s|%s%s%s", t_find_program("LLAMA", "./llama"), t_path("model"),
                          t_path("tokenizer"), *options ? "|" : "", options));
}

// The text of a run that must succeed.
static char *t_llama_text(const char *options)
{
    Run run = t_llama(options);
    if (run.status != 0) t_fail(__LINE__, options, "exit status %d: %s", run.status, run.err);
    return run.out;
}

// The text of request i out of the output for several, with the newline, as it would be alone.
static char *t_request(const char *out, int i)
{
    const char *start = strstr(out, t_format("=== request %d ===\n", i));
    if (!start) t_fail(__LINE__, "output", "there is no request %d in\n%s", i, out);
    start = t_next_line(start);
    const char *end = strstr(start, t_format("\n=== request %d ===\n", i + 1));
    size_t size = end ? (size_t)(end + 1 - start) : strlen(start);
    char *text = (char *)t_alloc(size);
    memcpy(text, start, size);
    return text;
}

static const char *const t_caches[] = {"contiguous", "gather", "paged"};
static const char *const t_dtypes[] = {"f32", "f16", "bf16"};

// No way to serve a request changes a byte of its text: any cache, block size and chunk, alone or
// in a batch of sixteen, with temperature (request i draws with seed S + i), from a file of
// prompts.
static void test_llama_same_text_however_served(void)
{
    const int block_sizes[] = {1, 7, 16}, chunks[] = {1, 3, 32};
    t_find_program("LLAMA", "./llama");
    t_make_model(0);
    for (int mode = 0; mode < 4; mode++) {  // three dtypes, and f32 with temperature
        const char *base = t_format("--steps|40|--dtype|%s|--temperature|%s", t_dtypes[mode % 3],
                                    mode == 3 ? "0.8" : "0");
        const char *batch = t_format("%s|--seed|5%s", base, t_all_prompts());
        char *alone[PROMPTS];
        for (int i = 0; i < PROMPTS; i++) {
            const char *one = t_format("--seed|%d|--cache|contiguous|--chunk|1", 5 + i);
            alone[i] = t_llama_text(t_format("%s|%s|-p|%s", base, one, t_prompts[i]));
        }
        CHECK(strcmp(alone[0], alone[1]) != 0 && strlen(alone[2]) > 20);
        for (int i = 0; i < 27; i += t_quick ? 5 : 1) {
            if (i % 3 == 0 && i % 9 > 0) continue;  // contiguous knows no block size
            const char *how = t_format("--cache|%s|--block-size|%d|--chunk|%d", t_caches[i % 3],
                                       block_sizes[i / 3 % 3], chunks[i / 9]);
            char *out = t_llama_text(t_format("%s|%s", batch, how));
            for (int j = 0; j < PROMPTS; j++) CHECK_TEXT(t_request(out, j), alone[j]);
        }
    }
    char *lines = t_format("%s\n", t_prompts[0]);
    for (int i = 1; i < PROMPTS; i++) lines = t_format("%s%s\n", lines, t_prompts[i]);
    t_save(t_path("prompts"), lines, strlen(lines));
    char *text = t_llama_text(t_format("--steps|40%s", t_all_prompts()));
    CHECK_TEXT(t_llama_text(t_format("--steps|40|-f|%s", t_path("prompts"))), text);
    t_make_model(1);  // the same classifier
    CHECK_TEXT(t_llama_text(t_format("--steps|40%s", t_all_prompts())), text);
}

// In a pool too small for all, requests wait or are preempted and computed again; nobody's text
// changes.
static void test_llama_small_pools(void)
{
    const int pools[][2] = {{1, 40}, {1, 90}, {4, 10}, {4, 13}, {4, 30}, {7, 6}, {16, 3}, {16, 5}};
    t_find_program("LLAMA", "./llama");
    t_make_model(0);
    for (int sampled = 0; sampled < 2; sampled++) {
        const char *options =
            t_format("--steps|40|--temperature|%s%s", sampled ? "0.8" : "0", t_all_prompts());
        char *expected = t_llama_text(options);
        for (int i = 0; i < 16; i++) {
            const char *how =
                t_format("--block-size|%d|--blocks|%d|--chunk|%d|--cache|%s", pools[i / 2][0],
                         pools[i / 2][1], i % 2 ? 1 : 8, t_caches[1 + i / 2 % 2]);
            Run run = t_llama(t_format("%s|%s", how, options));
            CHECK_EQ(run.status, 0);
            CHECK_TEXT(run.out, expected);
            if (i / 2 == 4) CHECK(!strstr(run.err, " 0 preemptions"));  // a size that leads to some
        }
    }
}

// --samples N computes a prompt once. Sample j of prompt i is the text of that prompt alone with
// the seed S + N i + j: with any cache, with guesses, and when a small pool preempts some.
static void test_llama_samples(void)
{
    const char *prompts[] = {"Once upon a time", "the thin hat"};
    const char *more[] = {"",
                          "|--speculate|3",
                          "|--cache|gather|--chunk|3",
                          "|--cache|contiguous",
                          "|--block-size|4|--blocks|24",
                          "|--block-size|4|--blocks|24|--speculate|4"};
    t_find_program("LLAMA", "./llama");
    t_make_model(0);
    char *alone[16];
    for (int i = 0; i < 16; i++)
        alone[i] = t_llama_text(
            t_format("--steps|60|--temperature|0.8|--seed|%d|-p|%s", 7 + i, prompts[i / 8]));
    CHECK(strcmp(alone[0], alone[1]) != 0);
    for (int m = 0; m < 6; m++) {
        Run run =
            t_llama(t_format("--samples|8|--steps|60|--temperature|0.8|--seed|7|-p|%s|-p|%s%s",
                             prompts[0], prompts[1], more[m]));
        CHECK_EQ(run.status, 0);
        for (int i = 0; i < 16; i++) CHECK_TEXT(t_request(run.out, i), alone[i]);
        CHECK_HAS(run.err, "separate copies");
        CHECK(!strstr(run.err, "; 0 blocks were copied"));
        if (m >= 4) CHECK(!strstr(run.err, " 0 preemptions"));
    }
}

// --beam N forks and releases at every step, and finds what it finds with a contiguous cache, in
// which every fork is a copy of all that the sequence has. One beam is greedy decoding.
static void test_llama_beams(void)
{
    t_find_program("LLAMA", "./llama");
    t_make_model(0);
    for (int beams = 1; beams <= 5; beams += 2)
        for (int i = 0; i < 3; i++) {
            const char *base =
                t_format("--beam|%d|--steps|70|-p|%s|-p|the", beams, t_prompts[2 * i]);
            char *full_copies = t_llama_text(t_format("%s|--cache|contiguous", base));
            CHECK_TEXT(t_llama_text(t_format("%s|--block-size|1", base)), full_copies);
            CHECK_TEXT(t_llama_text(t_format("%s|--block-size|5|--chunk|2", base)), full_copies);
            CHECK_TEXT(t_llama_text(t_format("%s|--cache|gather", base)), full_copies);
            if (beams == 1) CHECK_TEXT(t_llama_text(base + strlen("--beam|1|")), full_copies);
        }
    Run run = t_llama("--beam|4|--steps|64|--block-size|16|--blocks|15|-p|the");
    CHECK_EQ(run.status, 1);  // four beams of 64 tokens may need 16 blocks
    CHECK_HAS(run.err, "refused");
}

// --speculate K changes how many steps it takes, and not one byte of the text: alone, in a batch,
// in a pool that is too small for all, with temperature.
static void test_llama_speculates(void)
{
    t_find_program("LLAMA", "./llama");
    t_make_model(0);
    for (int k = 1; k <= 8; k++) {
        const char *base = t_format("--steps|80|--temperature|%s", k % 3 ? "0" : "0.5");
        char *plain = t_llama_text(t_format("%s%s", base, t_all_prompts()));
        CHECK_TEXT(t_llama_text(t_format("%s|--speculate|%d%s", base, k, t_all_prompts())), plain);
        Run run = t_llama(
            t_format("%s|--speculate|%d|--block-size|4|--blocks|45%s", base, k, t_all_prompts()));
        CHECK_EQ(run.status, 0);
        CHECK_TEXT(run.out, plain);
        run = t_llama(t_format("%s|--speculate|%d|-p|%s", base, k, t_prompts[2]));
        CHECK_TEXT(run.out, t_llama_text(t_format("%s|-p|%s", base, t_prompts[2])));
        CHECK_HAS(run.err, "were guessed");
        if (k % 3) CHECK(!strstr(run.err, ", 0 of them right"));
    }
}

// Requests that begin alike share what was computed of that, and no text changes: with samples,
// with speculation, in pools so small that requests are preempted and come back to their own blocks.
static void test_llama_prefix_cache(void)
{
    const char *system = "Once upon a time the cat sat on the mat and the dog";
    const char *ends[] = {" ran", " sat on the hat", "", " ran to the man", " ran"};
    const char *more[] = {"",
                          "|--block-size|4|--chunk|5",
                          "|--block-size|1|--cache|gather",
                          "|--block-size|4|--speculate|3",
                          "|--block-size|4|--blocks|45",
                          "|--block-size|4|--blocks|40|--speculate|4|--dtype|f16"};
    t_find_program("LLAMA", "./llama");
    t_make_model(0);
    const char *prompts = "";
    for (int i = 0; i < 5; i++) prompts = t_format("%s|-p|%s%s", prompts, system, ends[i]);
    for (int samples = 1; samples <= 3; samples += 2)
        for (int m = 0; m < 6; m++) {
            const char *base = t_format("--steps|90|--temperature|0.8|--samples|%d%s%s", samples,
                                        prompts, more[m]);
            Run plain = t_llama(base), run = t_llama(t_format("%s|--prefix-cache", base));
            CHECK_EQ(plain.status, 0);
            CHECK_EQ(run.status, 0);
            CHECK_TEXT(run.out, plain.out);
            CHECK_HAS(run.err, "tokens were found in the prefix cache");
            if (m >= 4) CHECK(!strstr(run.err, " 0 preemptions"));
            if (m >= 4) CHECK(!strstr(run.err, " 0 tokens were found"));
        }
    // A queue longer than what may run at once: who comes later finds what the first have left.
    const char *many = "";
    for (int i = 0; i < 5; i++) many = t_format("%s%s", many, prompts);
    Run run = t_llama(t_format("--steps|60|--blocks|40|--block-size|4%s|--prefix-cache", many));
    CHECK_TEXT(run.out, t_llama_text(t_format("--steps|60%s", many)));
    CHECK(!strstr(run.err, " 0 tokens were found"));
    CHECK_EQ(t_llama(t_format("--prefix-cache|--beam|2%s", prompts)).status, 2);
    CHECK_EQ(t_llama(t_format("--prefix-cache|--cache|contiguous%s", prompts)).status, 2);
}

// What can never be served is refused at once, aloud and with exit status 1; the others are served.
static void test_llama_refuses(void)
{
    t_find_program("LLAMA", "./llama");
    t_make_model(0);
    Run run = t_llama("--steps|12|-p|the|-p|he ate the hat on the heath|-p|a");
    CHECK_EQ(run.status, 1);
    CHECK_HAS(run.err, "refused");
    CHECK_TEXT(t_request(run.out, 0), t_llama_text("--steps|12|-p|the"));
    CHECK_TEXT(t_request(run.out, 1), "\n");
    CHECK_TEXT(t_request(run.out, 2), t_llama_text("--steps|12|-p|a"));
    run = t_llama("--steps|40|--block-size|4|--blocks|9|-p|the");  // 40 tokens take 10 blocks
    CHECK_EQ(run.status, 1);
    CHECK_HAS(run.err, "refused");
    CHECK_TEXT(run.out, "\n");
}

// With these bytes in the file, there must be a message, no text, and exit status 1.
static void t_llama_rejects(const char *path, const void *bytes, size_t size, const char *what)
{
    t_save(path, bytes, size);
    Run run = t_llama("--steps|4");
    t_at("%s: %s", path, what);
    CHECK_EQ(run.status, 1);
    CHECK(run.err[0] && !run.out[0]);
}

// Damaged checkpoints and tokenizers end in a message, never in a crash: cut off, numbers out of
// range, bytes at the end, a text, no file.
static void test_llama_damaged_files(void)
{
    const int64_t wrong[] = {0, -1, 3, INT32_MAX, INT32_MIN, 1 << 20, 65536, 1000001};
    const char *text = "Once upon a time there was a text that thought it was a checkpoint.\n";
    t_find_program("LLAMA", "./llama");
    for (int file = 0; file < 2; file++) {
        const char *path = t_path(file ? "tokenizer" : "model");
        t_make_model(0);
        if (file) t_make_tokenizer();
        size_t size = arrlenu(t_bytes);
        const size_t cuts[] = {0,  1,   3,    4,    7,        12,       27,      28,
                               29, 100, 1000, 3000, size / 2, size - 4, size - 1};
        for (int i = 0; i < 15; i++)
            t_llama_rejects(path, t_bytes, cuts[i], t_format("cut to %zu", cuts[i]));
        for (int at = 0; at < (file ? 12 : 28); at += file ? 8 : 4)  // header; length of a token
            for (int i = 0; i < 8; i++) {
                unsigned char *copy = (unsigned char *)t_alloc(size);
                memcpy(copy, t_bytes, size);
                for (int j = 0; j < 4; j++) copy[at + j] = (unsigned char)(wrong[i] >> 8 * j & 255);
                if (file == 1 && at == 0) {  // max_token_length: no crash is enough
                    t_save(path, copy, size);
                    CHECK(t_llama("--steps|4").status <= 1);
                } else {
                    t_llama_rejects(path, copy, size, t_format("%d at byte %d", (int)wrong[i], at));
                }
            }
        t_put_int(0);
        t_llama_rejects(path, t_bytes, size + 1, "a byte at the end");
        t_llama_rejects(path, t_bytes, size + 4, "four bytes at the end");
        t_llama_rejects(path, text, strlen(text), "a text");
        unlink(path);
        CHECK_EQ(t_llama("--steps|4").status, 1);
    }
}

// Wrong options: exit status 2 and a message.
static void test_llama_usage_errors(void)
{
    char wrong[] = "--cache|none --cache --block-size|0 --block-size|-1 --block-size|x --blocks|0 "
                   "--blocks|99999999999 --dtype|f64 --chunk|0 --temperature|-1 --temperature|nan "
                   "--steps|0 --steps|1.5 --seed| -p -f --unknown|1 third-file";
    const char *program = t_find_program("LLAMA", "./llama");
    t_make_model(0);
    for (char *options = strtok(wrong, " "); options; options = strtok(NULL, " ")) {
        Run run = t_llama(options);
        CHECK_EQ(run.status, 2);
        CHECK(run.err[0] && !run.out[0]);
    }
    CHECK_EQ(t_run(program).status, 2);
    CHECK_EQ(t_run(t_format("%s|one file", program)).status, 2);
    CHECK_EQ(t_llama(t_format("-f|%s", t_path("no such file"))).status, 1);
}

// The 260K-parameter model of karpathy/tinyllamas. What it prints is known: `expected_stdout` of
// karpathy/llama2.c, test_all.py.
static void test_llama_real_weights(void)
{
    const char *expected =
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the"
        " park. One day, she saw a big, red ball. She wanted to play with it, but it was too "
        "high.\n"
        "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to "
        "do. She said, \"I want to play with your ball, but I can't find it.\"\n"
        "Lily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know "
        "what to do.\"\n"
        "Lily didn't want to help her mom, so she\n";
    const char *folder = getenv("MODELS") ? getenv("MODELS") : "../shared/models";
    const char *model = t_format("%s/stories260K.bin", folder);
    const char *tokenizer = t_format("%s/tok512.bin", folder);
    const char *program = t_find_program("LLAMA", "./llama");
    const int block_sizes[] = {1, 7, 16};
    if (access(model, R_OK) != 0 || access(tokenizer, R_OK) != 0)
        t_skip(t_format("no stories260K.bin and tok512.bin in %s", folder));
    for (int dtype = 0; dtype < (t_quick ? 1 : 3); dtype++) {
        const char *base = t_format("%s|%s|%s|--temperature|0|--steps|200|--dtype|%s", program,
                                    model, tokenizer, t_dtypes[dtype]);
        if (dtype > 0) expected = t_run(base).out;  // rounded K and V may lead to other words
        for (int i = 0; i < 9; i++) {
            const char *how =
                t_format("--cache|%s|--block-size|%d", t_caches[i % 3], block_sizes[i / 3]);
            t_at("--dtype|%s|%s", t_dtypes[dtype], how);
            CHECK_TEXT(t_run(t_format("%s|%s", base, how)).out, expected);
            if (i / 3 != dtype) continue;  // with fifteen others, too
            Run run = t_run(t_format("%s|%s%s", base, how, t_all_prompts()));
            CHECK_TEXT(t_request(run.out, 0), expected);
        }
    }
}

// --device gpu: gathered, paged and contiguous give the same text, whatever the order of the lanes,
// also when a pool is too small for all, with guesses and with samples.
static void test_llama_on_gpu(void)
{
    const char *more[] = {"", "|--cache|gather", "|--cache|contiguous", "|--speculate|3",
                          "|--block-size|4|--blocks|20|--chunk|3"};
    t_find_program("LLAMA", "./llama");
    t_make_model(0);
    const char *base = "--device|gpu|--steps|20|-p|the|-p|Once upon a time|-p|a";
    Run run = t_llama(base);
    if (strstr(run.err, "there is no GPU")) t_skip("there is no GPU");
    CHECK_EQ(run.status, 0);
    for (int i = 0; i < 5; i++) {
        setenv("PAGED_LANE_ORDER", t_format("%d", i), 1);
        char *text = t_llama_text(t_format("%s%s", base, more[i]));
        unsetenv("PAGED_LANE_ORDER");
        CHECK_TEXT(text, run.out);
    }
    char *split = t_llama_text(t_format("%s|--cache|split", base));
    setenv("PAGED_LANE_ORDER", "9", 1);
    char *shuffled = t_llama_text(t_format("%s|--cache|split|--chunk|2", base));
    unsetenv("PAGED_LANE_ORDER");
    CHECK_TEXT(shuffled, split);
}

// The story on a GPU pool: whole in one order of the lanes, its beginning in two others.
static void test_llama_real_weights_on_gpu(void)
{
    const char *folder = getenv("MODELS") ? getenv("MODELS") : "../shared/models";
    const char *base = t_format("%s|%s/stories260K.bin|%s/tok512.bin",
                                t_find_program("LLAMA", "./llama"), folder, folder);
    if (access(t_format("%s/stories260K.bin", folder), R_OK) != 0)
        t_skip(t_format("no stories260K.bin in %s", folder));
    const char *steps = t_quick ? "20" : "200";
    char *story = t_run(t_format("%s|--steps|%s", base, steps)).out;
    char *start = t_run(t_format("%s|--steps|20", base)).out;
    Run run = t_run(t_format("%s|--device|gpu|--steps|%s", base, steps));
    if (strstr(run.err, "there is no GPU")) t_skip("there is no GPU");
    CHECK_TEXT(run.out, story);
    CHECK_TEXT(t_run(t_format("%s|--device|gpu|--cache|split|--steps|%s", base, steps)).out, story);
    for (int order = 1; order <= 2; order++) {
        setenv("PAGED_LANE_ORDER", order == 1 ? "1" : "77", 1);
        run = t_run(t_format("%s|--device|gpu|--steps|20", base));
        unsetenv("PAGED_LANE_ORDER");
        CHECK_TEXT(run.out, start);
    }
}

// The same three on the real weights: --samples 8, --beam 4, --speculate 1 to 8.
static void test_llama_real_weights_shared(void)
{
    const char *folder = getenv("MODELS") ? getenv("MODELS") : "../shared/models";
    const char *base =
        t_format("%s|%s/stories260K.bin|%s/tok512.bin|--steps|120|-p|Once upon a time",
                 t_find_program("LLAMA", "./llama"), folder, folder);
    if (access(t_format("%s/stories260K.bin", folder), R_OK) != 0)
        t_skip(t_format("no stories260K.bin in %s", folder));
    char *samples = t_run(t_format("%s|--samples|8|--temperature|0.9", base)).out;
    for (int i = 0; i < 8; i++)
        CHECK_TEXT(t_request(samples, i),
                   t_run(t_format("%s|--temperature|0.9|--seed|%d", base, 1 + i)).out);
    char *beams = t_run(t_format("%s|--beam|4|--cache|contiguous", base)).out;
    CHECK_TEXT(t_run(t_format("%s|--beam|4", base)).out, beams);
    CHECK_TEXT(t_run(t_format("%s|--beam|4|--block-size|3", base)).out, beams);
    for (int k = 1; k <= 8; k++) {
        CHECK_TEXT(t_run(t_format("%s|--speculate|%d", base, k)).out, t_run(base).out);
        CHECK_TEXT(t_run(t_format("%s|--speculate|%d|--prefix-cache", base, k)).out,
                   t_run(base).out);
        CHECK_TEXT(
            t_request(t_run(t_format("%s%s|--speculate|%d", base, t_all_prompts(), k)).out, 0),
            t_run(base).out);
    }
}

// ---- the runner -------------------------------------------------------------------------------

typedef struct Test {
    const char *name;
    void (*run)(void);
    int on_gpu;  // it runs on a GPU pool as well
} Test;

// clang-format off
static const Test t_tests[] = {
#define TEST(name) {#name, test_##name, 0}
#define BOTH(name) {#name, test_##name, 1}
    TEST(example_bytes), BOTH(example_blocks_on_demand), BOTH(example_system_prompt),
    BOTH(example_block_table), BOTH(example_one_slot_per_step), BOTH(layout),
    BOTH(example_three_candidates), BOTH(example_eight_steps), BOTH(example_softmax_by_hand),
    TEST(oracle_by_hand), TEST(free_list_order), BOTH(append_takes_blocks_exactly),
    BOTH(append_all_or_nothing), TEST(too_long_or_out_of_blocks), BOTH(fork_at_every_position),
    BOTH(rewind_to_every_length), BOTH(rewind_into_shared_block),
    BOTH(write_to_shared_block_refused), BOTH(gather_and_write_back), BOTH(poison),
    BOTH(no_poison_keeps_bytes), BOTH(stale_tokens_of_a_sharer), TEST(refused_pools),
    TEST(refused_sequence_calls), BOTH(refused_batches), TEST(out_of_memory), TEST(oracle_refuses),
    TEST(refused_limits),
    BOTH(prefix_by_hand), TEST(prefix_full_prompt_hit), BOTH(prefix_hit_on_free),
    BOTH(prefix_stale_entry), TEST(prefix_reused_parent), BOTH(prefix_before_written),
    BOTH(prefix_blocks_are_sealed), BOTH(prefix_computed_twice), TEST(prefix_published_again),
    TEST(prefix_recency), TEST(prefix_refused), TEST(prefix_check_finds_damage),
    TEST(check_finds_damage), TEST(check_finds_consistent_damage),
    TEST(check_finds_cut_chain), TEST(prefix_hash), TEST(dump), TEST(dump_to_stdout),
    BOTH(destroy_with_sequences), TEST(conversions_by_hand),
    TEST(conversions_exhaustively), BOTH(cache_rounds), BOTH(bug_32_bit_offsets),
    BOTH(bug_unused_slots), BOTH(bug_large_negative_scores), BOTH(bug_empty_sequences_in_batch),
    BOTH(bug_release_orders), BOTH(bug_chunked_prefill), BOTH(bug_wrong_block_order_shows),
    BOTH(scale_and_lse), BOTH(infinite_scores), BOTH(scores_of_minus_infinity),
    BOTH(unwritten_tokens_show), BOTH(same_bits_however_cut),
    TEST(groups_of_any_size),
    TEST(kernels_in_lane_orders), BOTH(table_entries), BOTH(splits_and_groups),
    BOTH(every_split_kernel), BOTH(tensors),
    TEST(workspace_is_kept), BOTH(shapes_vllm),
    BOTH(shapes_flashinfer_decode), BOTH(shapes_flashinfer_prefill), BOTH(shapes_ragged),
    BOTH(vllm_copy_on_write_matrix), BOTH(tvm_scripts), BOTH(beam_search),
    BOTH(speculation_every_accept_count), BOTH(speculation_leaks_nothing),
    BOTH(speculation_with_samples), BOTH(random),
    TEST(bug_tests_that_cannot_fail), TEST(invariants_stop), TEST(stand_in_stops), TEST(tour),
    TEST(tour_arguments),
    TEST(llama_same_text_however_served), TEST(llama_small_pools), TEST(llama_refuses),
    TEST(llama_samples), TEST(llama_beams), TEST(llama_speculates), TEST(llama_prefix_cache),
    TEST(llama_damaged_files),
    TEST(llama_usage_errors), TEST(llama_real_weights), TEST(llama_real_weights_shared),
    TEST(llama_on_gpu), TEST(llama_real_weights_on_gpu),
    TEST(fails_on_purpose),  // the last one runs only when it is named
};
// clang-format on
enum { T_COUNT = sizeof t_tests / sizeof t_tests[0] };

static double t_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int t_run_test(const Test *test)
{
    const double start = t_now();
    t_turn = t_turns = 0;
    t_state = t_seed;  // its random numbers depend on its name, not on the tests before it
    for (const char *c = test->name; *c; c++) t_state = t_state * 31 + (uint64_t)*c;
    printf("%-32s%s ", test->name, t_device == PAGED_GPU ? "gpu" : "   ");
    fflush(stdout);
    switch (setjmp(t_end)) {
    case 0:
        test->run();
        printf("ok %8.2f s\n", t_now() - start);
        return T_PASSED;
    case T_SKIPPED: return T_SKIPPED;
    default:
        printf("  FAILED: %s --seed %llu %s\n", t_program, (unsigned long long)t_seed, test->name);
        return T_FAILED;
    }
}

static void t_clean_up(void)
{
    t_failing = -1;
    t_where[0] = 0;
    t_free_to(0);
    t_odds = 0;
    for (ptrdiff_t i = 0; i < hmlen(t_twins); i++) {
        oracle_release(t_twins[i].value);
        arrfree(t_twins[i].tokens);
    }
    hmfree(t_twins);
    t_remove_folder();
}

// Reads argument i of main(), and returns the index of the last one it used, or -1.
static int t_argument(char **argv, int i, int *chosen)
{
    if (strcmp(argv[i], "--quick") == 0) {
        t_quick = 1;
        return i;
    }
    if (strcmp(argv[i], "--cpu") == 0 || strcmp(argv[i], "--gpu") == 0) {
        t_only = argv[i];
        return i;
    }
    if (argv[i + 1] && strcmp(argv[i], "--seed") == 0) {
        t_seed = strtoull(argv[i + 1], NULL, 10);
        return i + 1;
    }
    if (argv[i + 1] && strcmp(argv[i], "--ops") == 0) {
        t_operations = atoi(argv[i + 1]);
        return i + 1;
    }
    for (int t = 0; t < T_COUNT; t++)
        if (strcmp(argv[i], t_tests[t].name) == 0) {
            chosen[t] = chosen[T_COUNT] = 1;
            return i;
        }
    return -1;
}

// Says which GPU the tests are going to run on; 0 and a skip if there is none.
static int t_find_gpu(int *skipped)
{
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
    printf("on a GPU: SKIPPED: ThreadSanitizer does not follow the coroutines of the stand-in\n");
    ++*skipped;
    return 0;
#endif
    PoolConfig config = {1, 1, 1, 1, 1, PAGED_F32, 0, PAGED_GPU};
    Pool *pool = NULL;
    int error = pool_create(&config, &pool);
    pool_destroy(pool);
    if (error == PAGED_NO_GPU && T_REAL_GPU) {
        printf("on a GPU: SKIPPED: %s\n", paged_error(error));
        ++*skipped;
        return 0;
    }
#ifdef __CUDACC__
    cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, 0));
    printf("on a GPU: %s, sm_%d%d\n", properties.name, properties.major, properties.minor);
#else
    printf("on a GPU: the stand-in, its lanes in three orders\n");
#endif
    return 1;
}

int main(int argc, char **argv)
{
    int count[3] = {0, 0, 0}, chosen[T_COUNT + 1] = {0};  // the last one: any at all
    int gpu = 0;
    t_program = argv[0];
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);  // what was printed stands, should a sanitizer stop it
    for (int i = 1; i < argc; i++) {
        int last = t_argument(argv, i, chosen);
        if (strcmp(argv[i], "--list") == 0) {
            for (int t = 0; t < T_COUNT - 1; t++) printf("%s\n", t_tests[t].name);
            return 0;
        }
        if (last < 0) {
            fprintf(stderr, "%s: no test or option is called %s; see --list\n", argv[0], argv[i]);
            return 2;
        }
        i = last;
    }
    printf("seed %llu%s\n", (unsigned long long)t_seed,
           t_quick ? ", quick: random work is cut to a twentieth" : "");
    for (int t = 0; t < 2 * T_COUNT; t++) {
        const Test *test = &t_tests[t % T_COUNT];
        t_device = t < T_COUNT ? PAGED_CPU : PAGED_GPU;
        if (t_only && (t < T_COUNT) != (t_only[2] == 'c')) continue;
        if (t == T_COUNT) gpu = t_find_gpu(&count[T_SKIPPED]);
        if (t >= T_COUNT && (!gpu || !test->on_gpu)) continue;
        if (chosen[T_COUNT] ? !chosen[t % T_COUNT] : t % T_COUNT == T_COUNT - 1) continue;
        count[t_run_test(test)]++;
        t_clean_up();
    }
    arrfree(t_memory);
    arrfree(t_bytes);
    printf("%d passed, %d failed, %d skipped\n", count[T_PASSED], count[T_FAILED],
           count[T_SKIPPED]);
    return count[T_FAILED] > 0;
}
