// bench: how fast the cache of ../paged.h is, as fractions of what this machine can do at all.
//
// Attention of one new token reads every K and V of the sequence once and does with each pair of
// elements two multiply-adds per query head of the group. So no program is faster than
//
//     floor = max(bytes / read ceiling, multiply-adds / FMA roof)
//
// and the tables say floor / time: 1.00 is perfect. Ceiling and roof are measured too, by the two
// plainest loops there are, right before the calls that are held against them: the memory of a
// shared machine is a third slower in one minute than in the next, a ratio of neighbours is not.
// Each number is the median over such rounds; only the plain way, being slow, has but one.
//
// Caches are cold: a pool is larger than the last level, and each call takes the next set of its
// sequences. Blocks lie shuffled, as in a server that has run for an hour. "Contiguous" is the same
// call on a pool whose block is as long as the sequence.
//
//     make bench                     all of it, about six minutes; --quick: some ten seconds
//     make cuda-bench                the same for a GPU, timed by CUDA events
//
// Then the block manager alone, in ns per call, and at the end the goals, met or missed. A missed
// goal is a measurement, not an error; the exit status is 1 if a call fails or results differ.

#include "../paged.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

__attribute__((noreturn, format(printf, 2, 3))) static void die(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "bench: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(status);
}

static void must_at(int line, int error)
{
    if (error) die(1, "%s:%d: %s", __FILE__, line, paged_error(error));
}

#define MUST(call) must_at(__LINE__, call)

static void *allocate(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (!p) die(1, "no memory for %zu times %zu bytes", count, size);
    return p;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint32_t random_below(uint32_t n)  // xorshift
{
    static uint64_t x = 88172645463325252u;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (uint32_t)((x >> 32) * n >> 32);
}

static void shuffle(int *a, int n)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)random_below((uint32_t)i + 1), swap = a[i];
        a[i] = a[j], a[j] = swap;
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { MAX_ROUNDS = 32 };

static double median(const double *samples, int n)  // of those that are not NAN: not measured
{
    double a[MAX_ROUNDS];
    int count = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(samples[i])) a[count++] = samples[i];
    if (count == 0) return NAN;
    qsort(a, (size_t)count, sizeof *a, ascending);
    return (a[(count - 1) / 2] + a[count / 2]) / 2;
}

static int csv, quick;

// ---- the machine ------------------------------------------------------------------------------
// What differs between the two: the clock, the ceilings, the shapes, and what attend() is asked.

enum { CONTIGUOUS, GATHER, PLAIN, PAGED, NUM_WAYS };  // of attending, in the order of the table
#define MAX_LENGTH 32768

#ifdef __CUDACC__

enum { ON_GPU = 1, KV_HEADS = 8, MANY = 32 };
static const int methods[] = {ATTEND_SPLIT, ATTEND_GATHER, ATTEND_PAGED, ATTEND_SPLIT};
static const char *const ways[] = {"cont", "gath", "paged", "split"};
static const size_t measured_bytes = (size_t)2 << 30;
static int num_processors;

#define CUDA(call) cuda_or_die(call, #call)
static void cuda_or_die(cudaError_t error, const char *call)
{
    if (error != cudaSuccess) die(1, "%s: %s", call, cudaGetErrorString(error));
}

static cudaEvent_t events[2];
static void clock_start(void) { CUDA(cudaEventRecord(events[0])); }
static double clock_stop(void)
{
    float ms;
    CUDA(cudaEventRecord(events[1]));
    CUDA(cudaEventSynchronize(events[1]));
    CUDA(cudaEventElapsedTime(&ms, events[0], events[1]));
    return ms / 1e3;
}

// Eight independent 16-byte loads in each thread, then the next stretch.
static __global__ void read_kernel(const uint4 *p, size_t n, unsigned *sink)
{
    unsigned x = 0;
    size_t stretch = (size_t)gridDim.x * blockDim.x * 8;
    for (size_t i = (size_t)blockIdx.x * blockDim.x * 8 + threadIdx.x; i < n; i += stretch)
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (i + j * blockDim.x < n) {
                uint4 u = p[i + j * blockDim.x];
                x ^= u.x ^ u.y ^ u.z ^ u.w;
            }
    if (x == 1) *sink = x;  // never, but the compiler cannot know
}

static double read_seconds(const void *from, size_t bytes)
{
    static unsigned *sink;
    if (!sink) CUDA(cudaMalloc(&sink, sizeof *sink));
    clock_start();
    read_kernel<<<16 * num_processors, 256>>>((const uint4 *)from, bytes / 16, sink);
    CUDA(cudaGetLastError());
    return clock_stop();
}

static double fma_rate(void) { return INFINITY; }  // the goals for GPUs are about memory alone
static void set_threads(int n) { (void)n; }
static int max_threads(void) { return 1; }

static void *machine_create(size_t bytes)
{
    void *p;
    CUDA(cudaMalloc(&p, bytes));
    CUDA(cudaMemset(p, 0, bytes));
    return p;
}

// Prints what it is; returns the size of a pool, of which there are two, a copy and the ceiling's.
static size_t machine_start(void)
{
    cudaDeviceProp gpu;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        die(1, "%s", paged_error(PAGED_NO_GPU));
    CUDA(cudaGetDeviceProperties(&gpu, 0));
    num_processors = gpu.multiProcessorCount;
    CUDA(cudaEventCreate(&events[0]));
    CUDA(cudaEventCreate(&events[1]));
    fprintf(csv ? stderr : stdout, "%s, %d multiprocessors, nvcc %d.%d\n", gpu.name, num_processors,
            __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__);
    size_t most = (size_t)(quick ? 1 : 4) << 30;
    while (most > gpu.totalGlobalMem / 6) most /= 2;
    return most;
}

#else

enum { ON_GPU = 0, KV_HEADS = 4, MANY = 8 };
static const int methods[] = {ATTEND_PAGED, ATTEND_GATHER, ATTEND_PLAIN, ATTEND_PAGED};
static const char *const ways[] = {"cont", "gath", "plain", "paged"};
static const size_t measured_bytes = (size_t)64 << 20;

static double started;
static void clock_start(void) { started = now(); }
static double clock_stop(void) { return now() - started; }

#if defined __AVX512F__
#define VECTOR 64
#elif defined __AVX__
#define VECTOR 32
#else
#define VECTOR 16
#endif
typedef uint64_t Words __attribute__((vector_size(VECTOR), may_alias));
typedef float Floats __attribute__((vector_size(VECTOR)));

static volatile uint64_t sink;  // what is stored here has to be computed
static volatile float one = 1;

// Four streams a thread: with one, some processors leave a tenth of the rate unused.
static void read_part(const Words *p, size_t n)
{
    Words sum[4] = {{0}};
    for (size_t i = 0; i < n / 4; i++)
        for (int j = 0; j < 4; j++) sum[j] += p[i + j * (n / 4)];
    sum[0] += sum[1] + sum[2] + sum[3];
    sink = sum[0][0] + sum[0][1];
}

static double read_seconds(const void *from, size_t bytes)
{
    clock_start();
#ifdef _OPENMP
#pragma omp parallel
    {
        size_t n = bytes / sizeof(Words) / omp_get_num_threads();
        read_part((const Words *)from + n * omp_get_thread_num(), n);
    }
#else
    read_part((const Words *)from, bytes / sizeof(Words));
#endif
    return clock_stop();
}

enum { STEPS = 100000, SUMS = 12 };

// Twelve sums that do not wait for each other cover the latency, and fit into 16 registers.
static void fma_part(int steps)
{
    Floats sum[SUMS], x = one - (Floats){0}, y = x;
    for (int j = 0; j < SUMS; j++) sum[j] = x * (float)j;  // equal ones would become one
    for (int i = 0; i < steps; i++)
        for (int j = 0; j < SUMS; j++) sum[j] = sum[j] * x + y;
    for (int j = 1; j < SUMS; j++) sum[0] += sum[j];
    sink = (uint64_t)sum[0][0];
}

static double fma_rate(void)  // multiply-adds per second, all threads together
{
    int threads = 1;
    double best = INFINITY;
    for (int i = 0; i < 4; i++) {  // the roof does not sway, but a thread may lose its processor
        clock_start();
#ifdef _OPENMP
        threads = omp_get_max_threads();
#pragma omp parallel
#endif
        fma_part(STEPS);
        best = fmin(best, clock_stop());
    }
    return (double)SUMS * STEPS * VECTOR / sizeof(float) * threads / best;
}

#ifdef _OPENMP
static void set_threads(int n) { omp_set_num_threads(n); }
static int max_threads(void) { return omp_get_num_procs() < 2 ? 1 : 2; }
#else
static void set_threads(int n) { (void)n; }
static int max_threads(void) { return 1; }
#endif

static void *machine_create(size_t bytes)
{
    void *p = aligned_alloc(4096, bytes);
    if (!p) die(1, "no memory for the %zu bytes that the ceiling reads", bytes);
    return memset(p, 1, bytes);
}

static size_t machine_start(void)
{
    char line[256] = "", name[256] = "unknown processor";
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info && fgets(line, sizeof line, info))
        if (sscanf(line, "model name : %255[^\n]", name) == 1) break;
    if (info) fclose(info);
#ifdef __clang__
    const char *compiler = "";
#else
    const char *compiler = "gcc ";
#endif
    fprintf(csv ? stderr : stdout, "%s, %s%s, vectors of %d bits, %s\n", name, compiler,
            __VERSION__, VECTOR * 8,
            max_threads() > 1 ? "2 threads" : "1 thread: no second processor, or no OpenMP");
    return (size_t)(quick ? 512 : 1024) << 20;
}

#endif

static size_t pool_bytes;  // K and V of each pool; the buffer that the ceiling reads is as large
static char *ceiling_buffer;

// Bytes per second that the machine reads just now; each call reads on where the last one ended.
static double read_rate(size_t bytes)
{
    static size_t at;
    if (at + bytes > pool_bytes) at = 0;
    double seconds = read_seconds(ceiling_buffer + at, bytes);
    at += (bytes + 4095) / 4096 * 4096;
    return (double)bytes / seconds;
}

// ---- caches -----------------------------------------------------------------------------------

typedef struct Cache {  // a pool full of data, cut into sets of sequences
    Pool *pool;
    Seq **seqs;  // [num_sets][batch]
    int num_sets, batch, next;
} Cache;

// Writes every slot once, so that all pages are there and no element is slow or NaN. Later
// sequences find these bytes in their blocks, as poison is off.
static void cache_fill(Pool *pool)
{
    enum { CHUNK = 2048 };
    int left = pool->config.num_blocks * pool->config.block_size, n = CHUNK;
    size_t count = (size_t)CHUNK * KV_HEADS * pool->config.head_dim;
    float *host = (float *)allocate(count, sizeof *host), *rows = tensor_create(pool, count);
    if (!rows) die(1, "no memory for the rows to write");
    for (size_t i = 0; i < count; i++) host[i] = (float)random_below(1 << 16) / 32768 - 1;
    tensor_copy(pool, rows, host, count);
    Seq *seq;
    MUST(seq_create(pool, &seq));
    for (Batch batch = {1, &seq, &n}; left > 0; left -= n) {
        if (n > left) n = left;
        MUST(seq_append(seq, n));
        MUST(pool_write(pool, 0, &batch, rows, rows));
    }
    seq_release(seq);
    tensor_free(pool, rows);
    free(host);
}

static Cache cache_create(int dtype, int head_dim, int block_size)
{
    PoolConfig config = {1, KV_HEADS, head_dim, block_size,
                         1, dtype,    0,        ON_GPU ? PAGED_GPU : PAGED_CPU};
    Cache cache = {NULL, NULL, 0, 0, 0};
    config.num_blocks = (int)(pool_bytes / pool_bytes_per_block(&config));
    if (config.num_blocks > 0) {
        MUST(pool_create(&config, &cache.pool));
        cache_fill(cache.pool);
    }
    return cache;
}

static void cache_clear(Cache *cache)
{
    for (int i = 0; i < cache->num_sets * cache->batch; i++) seq_release(cache->seqs[i]);
    free(cache->seqs);
    cache->seqs = NULL;
    cache->num_sets = 0;
}

static void cache_destroy(Cache *cache)
{
    cache_clear(cache);
    pool_destroy(cache->pool);
}

// Cuts the pool anew. Sequences grow by a block at a time, in random order, which shuffles their
// tables over the whole pool. Returns 0 if not one batch fits.
static int cache_arrange(Cache *cache, int batch, int length)
{
    cache_clear(cache);
    if (!cache->pool) return 0;
    int block_size = cache->pool->config.block_size;
    int blocks = (length + block_size - 1) / block_size;
    cache->num_sets = cache->pool->config.num_blocks / blocks / batch;
    cache->batch = batch;
    cache->next = 0;
    int num_seqs = cache->num_sets * batch, n = 0;
    cache->seqs = (Seq **)allocate((size_t)num_seqs + 1, sizeof *cache->seqs);
    int *order = (int *)allocate((size_t)num_seqs * blocks + 1, sizeof *order);
    for (int i = 0; i < num_seqs; i++) {
        MUST(seq_create(cache->pool, &cache->seqs[i]));
        for (int j = 0; j < blocks; j++) order[n++] = i;
    }
    shuffle(order, n);
    for (int i = 0; i < n; i++) {
        Seq *seq = cache->seqs[order[i]];
        int left = length - seq->length;
        MUST(seq_append(seq, left < block_size ? left : block_size));
    }
    free(order);
    return cache->num_sets;
}

// ---- a shape, measured ------------------------------------------------------------------------

typedef struct Shape {
    int dtype, head_dim, group, batch, length, num_new, block_size;
} Shape;

enum {                      // the columns behind the four ways
    ONE_THREAD = NUM_WAYS,  // the last way, by one thread, against the ceilings of one thread
    VS_CONTIGUOUS,          // how many times faster the last way is than another
    VS_GATHER,
    VS_ONE_THREAD,
    READ,  // GB/s
    NUM_COLUMNS
};

typedef struct Row {
    Shape shape;
    char name[48];
    double value[NUM_COLUMNS];  // medians; NAN: not measured
} Row;

static double shape_bytes(const Shape *s)
{
    double element = s->dtype == PAGED_F32 ? 4 : 2;
    return 2.0 * KV_HEADS * s->head_dim * element * s->batch * s->length;
}

static double shape_fma(const Shape *s)  // causal: the first of the new tokens sees fewest
{
    double visible = s->num_new * (s->length - (s->num_new - 1) / 2.0);
    return 2.0 * KV_HEADS * s->group * s->head_dim * visible * s->batch;
}

typedef struct Bench {  // what the calls of one shape have in common
    Shape shape;
    Cache *paged, *contiguous;
    float *q, *out;
    int *num_tokens;
    size_t count;  // floats in q and in out
} Bench;

// Seconds per call, on average over `calls` of them, each on the next set of sequences.
static double attend_seconds(Bench *b, int way, int calls)
{
    Cache *cache = way == CONTIGUOUS ? b->contiguous : b->paged;
    const Shape *s = &b->shape;
    clock_start();
    for (int i = 0; i < calls; i++) {
        Batch batch = {s->batch, cache->seqs + (size_t)cache->next * s->batch, b->num_tokens};
        MUST(attend(cache->pool, methods[way], 0, &batch, KV_HEADS * s->group, 0, b->q, b->out,
                    NULL));
        cache->next = (cache->next + 1) % cache->num_sets;
    }
    return clock_stop() / calls;
}

// Warms up everything but the data, and sees to it that what is timed is right: two ways over the
// same blocks must agree. On a GPU tensor cores may round the weights to the cache's type.
static void check_ways(Bench *b)
{
    const float tolerance = ON_GPU ? 0.02f : 1e-4f;
    float *out = (float *)allocate(2 * b->count, sizeof *out), *expected = out + b->count;
    attend_seconds(b, CONTIGUOUS, 1);
    b->paged->next = 0;
    attend_seconds(b, GATHER, 1);
    tensor_copy(b->paged->pool, expected, b->out, b->count);
    b->paged->next = 0;
    attend_seconds(b, PAGED, 1);
    tensor_copy(b->paged->pool, out, b->out, b->count);
    for (size_t i = 0; i < b->count; i++)
        if (!(fabsf(out[i] - expected[i]) <= tolerance))
            die(1, "output %zu: %s %g, %s %g", i, ways[PAGED], out[i], ways[GATHER], expected[i]);
    free(out);
}

// Rounds of all columns, one after the other, until the time is up: a few at least, but one of an
// engine that takes very long. Returns how many.
static int measure_rounds(Bench *b, double samples[NUM_COLUMNS][MAX_ROUNDS], double budget)
{
    double bytes = shape_bytes(&b->shape), fma = shape_fma(&b->shape), begin = now();
    int calls = bytes < (double)measured_bytes ? (int)((double)measured_bytes / bytes) : 1;
    size_t span = (size_t)(bytes * calls);
    int round = 0, threads = max_threads(), few = quick ? 3 : 4;
    for (; round < MAX_ROUNDS; round++) {
        double spent = now() - begin;
        if (spent > (round >= few ? budget : 4 * budget) && round > 0) break;
        double t[NUM_WAYS + 1];
        set_threads(threads);
        double read = read_rate(span);
        double least = fmax(bytes / read, fma / fma_rate());
        for (int i = 0; i < NUM_WAYS; i++) {
            int way = round % 2 ? NUM_WAYS - 1 - i : i;  // there and back: a drift cancels
            int slow = way == PLAIN && !ON_GPU;
            if (slow)  // so only once, and not as long
                t[way] = round == 0 ? attend_seconds(b, way, calls / 16 + 1) : NAN;
            else
                t[way] = attend_seconds(b, way, calls);
            samples[way][round] = least / t[way];
        }
        samples[READ][round] = read / 1e9;
        samples[VS_CONTIGUOUS][round] = t[CONTIGUOUS] / t[PAGED];
        samples[VS_GATHER][round] = t[GATHER] / t[PAGED];
        samples[ONE_THREAD][round] = samples[VS_ONE_THREAD][round] = NAN;
        if (threads == 1) continue;
        set_threads(1);
        read = read_rate(span);
        least = fmax(bytes / read, fma / fma_rate());
        t[ONE_THREAD] = attend_seconds(b, PAGED, calls);
        samples[ONE_THREAD][round] = least / t[ONE_THREAD];
        samples[VS_ONE_THREAD][round] = t[ONE_THREAD] / t[PAGED];
    }
    return round;
}

static Row measure(const Shape *shape, Cache *paged, Cache *contiguous)
{
    static double samples[NUM_COLUMNS][MAX_ROUNDS];
    const Shape *s = shape;
    Row row = {*s, "", {0}};
    const char *dtypes[] = {"f32", "f16", "bf16"};
    char heads[16] = "MHA";
    if (s->group > 1) snprintf(heads, sizeof heads, "GQA-%d", s->group);
    snprintf(row.name, sizeof row.name,
             csv ? "%s %d %s %d %d %d %d" : "%4s %3d %-5s %2d %5d %3d %3d", dtypes[s->dtype],
             s->head_dim, heads, s->batch, s->length, s->num_new, s->block_size);

    size_t rows = (size_t)s->batch * s->num_new, count = rows * KV_HEADS * s->group * s->head_dim;
    float *q = (float *)allocate(count, sizeof *q), *tensor = tensor_create(paged->pool, 2 * count);
    if (!tensor) die(1, "no memory for q and out");
    Bench b = {*s, paged, contiguous, tensor, tensor + count, NULL, count};
    for (size_t i = 0; i < count; i++)  // large, so that some tokens count much more than others
        q[i] = (float)random_below(1 << 16) / 4096 - 8;
    tensor_copy(paged->pool, b.q, q, count);
    b.num_tokens = (int *)allocate((size_t)s->batch, sizeof *b.num_tokens);
    for (int i = 0; i < s->batch; i++) b.num_tokens[i] = s->num_new;

    check_ways(&b);
    int rounds = measure_rounds(&b, samples, quick ? 0.1 : 0.4);
    for (int i = 0; i < NUM_COLUMNS; i++) row.value[i] = median(samples[i], rounds);
    tensor_free(paged->pool, tensor);
    free(b.num_tokens);
    free(q);
    return row;
}

// ---- goals ------------------------------------------------------------------------------------

typedef struct Goal {
    const char *name;
    double least;    // met if every value is that large
    int met, total;  // of the shapes that it is about
    double worst;
    char where[48];
} Goal;

#ifdef __CUDACC__
enum { MANY_SEQS, ONE_SEQ, CONTIGUITY, BLOCK_SIZES, MANAGER, NUM_GOALS };
static Goal goals[NUM_GOALS] = {
    {"16 bits, batch >= 32, length >= 2048: of the ceiling", 0.90, 0, 0, 0, ""},
    {"16 bits, batch 1, length 32768: of the ceiling", 0.85, 0, 0, 0, ""},
    {"split against the same, contiguous", 0.98, 0, 0, 0, ""},
    {"block sizes 16 to 256: slowest against fastest", 0.97, 0, 0, 0, ""},
#else
enum { MHA, GQA4_F32, GQA_16, CONTIGUITY, NO_GATHER, PREFILL, THREADS, MANAGER, NUM_GOALS };
static Goal goals[NUM_GOALS] = {
    {"MHA: of the ceiling", 0.90, 0, 0, 0, ""},
    {"GQA-4, f32: of the ceiling", 0.88, 0, 0, 0, ""},
    {"GQA-4 and GQA-8, f16 and bf16: of min(ceiling, roof)", 0.85, 0, 0, 0, ""},
    {"paged against contiguous", 0.95, 0, 0, 0, ""},
    {"paged against gather, then attend", 2, 0, 0, 0, ""},
    {"prefill in chunks of 512: of the FMA roof", 0.5, 0, 0, 0, ""},
    {"two threads against one (0.02 for noise)", 0.98, 0, 0, 0, ""},
#endif
    {"block manager, the same 10 of 100 000 against 10 of 10", 0.67, 0, 0, 0, ""},
};

static void judge(int goal, double value, const char *where)
{
    Goal *g = &goals[goal];
    if (isnan(value)) return;
    if (g->total++ == 0 || value < g->worst) {
        g->worst = value;
        snprintf(g->where, sizeof g->where, "%s", where);
    }
    g->met += value >= g->least;
}

static void judge_row(const Row *row)
{
    const Shape *s = &row->shape;
    const double *value = row->value;
    int decode = s->num_new == 1, half = s->dtype != PAGED_F32;
#ifdef __CUDACC__
    if (decode && half && s->batch >= 32 && s->length >= 2048)
        judge(MANY_SEQS, value[PAGED], row->name);
    if (decode && half && s->batch == 1 && s->length == MAX_LENGTH)
        judge(ONE_SEQ, value[PAGED], row->name);
    if (decode) judge(CONTIGUITY, value[VS_CONTIGUOUS], row->name);
#else
    if (s->num_new > 5) judge(PREFILL, value[PAGED], row->name);
    judge(THREADS, value[VS_ONE_THREAD], row->name);
    if (!decode) return;
    if (s->group == 1) judge(MHA, value[PAGED], row->name);
    if (s->group == 4 && !half) judge(GQA4_F32, value[PAGED], row->name);
    if (s->group >= 4 && half) judge(GQA_16, value[PAGED], row->name);
    judge(CONTIGUITY, value[VS_CONTIGUOUS], row->name);
    judge(NO_GATHER, value[VS_GATHER], row->name);
#endif
}

static void print_goals(void)
{
    if (!csv) printf("\nGoals. For each the shapes that meet it, and the worst of all.\n");
    for (Goal *g = goals; g < goals + NUM_GOALS; g++) {
        const char *verdict = g->total == 0 ? "none" : g->met == g->total ? "met" : "missed";
        if (csv)
            printf("goal,\"%s >= %g\",%s,%.4f\n", g->name, g->least, verdict, g->worst);
        else if (g->total == 0)
            printf("%-7s%s >= %g: not measured\n", verdict, g->name, g->least);
        else
            printf("%-7s%s >= %g\n       %d of %d, worst %.3f: %s\n", verdict, g->name, g->least,
                   g->met, g->total, g->worst, g->where);
    }
}

// ---- tables -----------------------------------------------------------------------------------

static void print_title(const char *title)
{
    if (csv) return;
    printf("\n%s\n", title);
    printf("type dim heads  n   len new blk |  GB/s | %5s %5s %5s %5s  1thr | /cont /gath /1thr\n",
           ways[0], ways[1], ways[2], ways[3]);
}

static const char *cell(double value, int digits)
{
    static char text[16][16];
    static int next;
    char *s = text[next++ % 16];
    snprintf(s, sizeof text[0], isnan(value) ? "-" : "%.*f", digits, value);
    return s;
}

// CSV is one value a line: table, row, column, value. What was not measured has no line.
static void print_row(const char *table, const Row *row)
{
    static const char *const columns[] = {"1 thread",    "vs contiguous", "vs gather",
                                          "vs 1 thread", "read GB/s",     NULL};
    const double *v = row->value;
    for (int i = 0; csv && i < NUM_COLUMNS; i++)
        if (!isnan(v[i]))
            printf("%s,%s,%s,%.4f\n", table, row->name,
                   i < NUM_WAYS ? ways[i] : columns[i - NUM_WAYS], v[i]);
    if (!csv)
        printf("%s | %5s | %5s %5s %5s %5s %5s | %5s %5s %5s\n", row->name, cell(v[READ], 1),
               cell(v[0], 2), cell(v[1], 2), cell(v[2], 2), cell(v[3], 2), cell(v[ONE_THREAD], 2),
               cell(v[VS_CONTIGUOUS], 2), cell(v[VS_GATHER], 2), cell(v[VS_ONE_THREAD], 2));
    fflush(stdout);
    if (strcmp(table, "block size")) judge_row(row);  // those are variations of one shape
}

// A shape on pools that are filled already.
static double table_row(const char *table, Shape s, Cache *paged, Cache *contiguous)
{
    if (!cache_arrange(paged, s.batch, s.length) || !cache_arrange(contiguous, s.batch, s.length)) {
        if (!csv)
            printf("skipped: dim %d, n %d, len %d would take %.1f GB, a pool has %.1f\n",
                   s.head_dim, s.batch, s.length, shape_bytes(&s) / 1e9, (double)pool_bytes / 1e9);
        return NAN;
    }
    Row row = measure(&s, paged, contiguous);
    print_row(table, &row);
    return row.value[PAGED];
}

static const int groups[] = {1, 4, 8}, dtypes[] = {PAGED_F32, PAGED_F16, PAGED_BF16};

// Decode: one pool in blocks of 16 and one contiguous pool serve all batches and groups.
static void decode_table(void)
{
    print_title("Decode: one new token a sequence, fractions of the floor.");
    for (int d = 0; d < (quick ? 2 : 3); d++)
        for (int head_dim = quick ? 128 : 64; head_dim <= 128; head_dim *= 2) {
            Cache paged = cache_create(dtypes[d], head_dim, 16);
            for (int length = 512; length <= MAX_LENGTH; length *= 4) {
                if (quick && length != 2048) continue;
                Cache contiguous = cache_create(dtypes[d], head_dim, length);
                for (int batch = 1; batch <= MANY; batch += MANY - 1)
                    for (int g = 0; g < (quick ? 2 : 3); g++) {
                        Shape s = {dtypes[d], head_dim, groups[g], batch, length, 1, 16};
                        if (!quick || batch > 1) table_row("decode", s, &paged, &contiguous);
                    }
                cache_destroy(&contiguous);
            }
            cache_destroy(&paged);
        }
}

// Several new tokens a sequence: a draft of 5 to verify, and a chunk of a prompt.
static void causal_table(void)
{
    print_title("Several new tokens a sequence, causal: verify 5, prefill a chunk of 512.");
    for (int d = quick ? 1 : 0; d < (quick ? 2 : 3); d++) {
        Cache paged = cache_create(dtypes[d], 128, 16);
        for (int prefill = quick; prefill <= 1; prefill++) {
            int length = prefill ? 4096 : 2048;
            Cache contiguous = cache_create(dtypes[d], 128, length);
            for (int group = quick ? 4 : 1; group <= 4; group *= 4) {
                Shape s = {dtypes[d],         128, group, prefill ? 1 : MANY, length,
                           prefill ? 512 : 5, 16};
                table_row(prefill ? "prefill" : "verify", s, &paged, &contiguous);
            }
            cache_destroy(&contiguous);
        }
        cache_destroy(&paged);
    }
}

static void block_size_table(void)
{
    print_title("Block sizes.");
    Cache contiguous = cache_create(PAGED_F16, 128, 2048);
    double slowest = INFINITY, fastest = 0;
    for (int block_size = 1; block_size <= 256; block_size *= 2) {
        if (block_size > 1 && block_size < 16) continue;
        if (!ON_GPU && (block_size == 64 || block_size == 128)) continue;
        Cache paged = cache_create(PAGED_F16, 128, block_size);
        Shape s = {PAGED_F16, 128, 4, MANY, 2048, 1, block_size};
        double value = table_row("block size", s, &paged, &contiguous);
        if (block_size >= 16) slowest = fmin(slowest, value), fastest = fmax(fastest, value);
        cache_destroy(&paged);
    }
#ifdef __CUDACC__
    judge(BLOCK_SIZES, slowest / fastest, "f16 128 GQA-4, length 2048");
#else
    (void)slowest, (void)fastest;
#endif
    cache_destroy(&contiguous);
}

// ---- the block manager ------------------------------------------------------------------------
// K and V of one byte pair, so that only the bookkeeping is left. At 100 000 sequences a call also
// waits for the memory of its sequence, which no cache holds; so the same is measured with calls
// that take turns with 10 of the 100 000. Only that says whether a call does more in a large pool.

enum { PROMPT = 40, SHARED = 32, BLOCK = 16 };  // two full blocks and half of a third

enum { APPEND, REWIND, FORK, COPY, RELEASE, LOOKUP, NUM_OPS };
static const char *const op_names[NUM_OPS] = {
    "append a token",        "rewind a token",   "fork",
    "append, copy-on-write", "release (a fork)", "prefix lookup, 2 blocks"};

typedef struct Manager {
    Pool *pool;
    int num_seqs, *order;    // the sequences shuffled; the first ones are the ones used
    int (*prompts)[PROMPT];  // what each sequence holds
    Seq **seqs, **children;
} Manager;

static Manager manager_create(int num_seqs)
{
    PoolConfig config = {1, 1, 1, BLOCK, num_seqs * 6 + 1024, PAGED_F16, 0, PAGED_CPU};
    Manager m = {NULL, num_seqs, NULL, NULL, NULL, NULL};
    MUST(pool_create(&config, &m.pool));
    m.order = (int *)allocate((size_t)num_seqs, sizeof *m.order);
    m.prompts = (int(*)[PROMPT])allocate((size_t)num_seqs, sizeof *m.prompts);
    m.seqs = (Seq **)allocate((size_t)num_seqs, sizeof *m.seqs);
    m.children = (Seq **)allocate((size_t)num_seqs + 160, sizeof *m.children);
    float rows[PROMPT] = {0};
    for (int i = 0; i < num_seqs; i++) m.order[i] = i;
    shuffle(m.order, num_seqs);
    for (int i = 0, n = PROMPT; i < num_seqs; i++) {
        Batch batch = {1, &m.seqs[i], &n};
        for (int j = 0; j < PROMPT; j++) m.prompts[i][j] = (int)random_below(50000);
        MUST(seq_create(m.pool, &m.seqs[i]));
        MUST(seq_append(m.seqs[i], PROMPT));
        MUST(pool_write(m.pool, 0, &batch, rows, rows));
        MUST(seq_publish(m.seqs[i], m.prompts[i], PROMPT));
    }
    return m;
}

static void manager_destroy(Manager *m)
{
    if (pool_check(m->pool)) die(1, "%s", pool_check(m->pool));
    pool_destroy(m->pool);
    free(m->order);
    free(m->prompts);
    free(m->seqs);
    free(m->children);
}

#define TIME(op, count, call) \
    do { \
        double start = now(); \
        for (int i = 0; i < (count); i++) call; \
        ns[op] = (now() - start) * 1e9 / (count); \
    } while (0)

// ns per call of each operation, over sequences order[0] to order[used - 1] in turn.
static void manager_round(Manager *m, int used, double *ns)
{
    int calls = used < 160 ? 160 : used, *order = m->order;
    long copies = m->pool->num_copies;
    Seq **children = m->children;
    // A block's worth of tokens each, so that every sixteenth append takes a block.
    TIME(APPEND, used * BLOCK, MUST(seq_append(m->seqs[order[i % used]], 1)));
    TIME(REWIND, used * BLOCK, MUST(seq_rewind(m->seqs[order[i % used]], 1)));

    TIME(FORK, calls, MUST(seq_fork(m->seqs[order[i % used]], PROMPT, &children[i])));
    for (int i = calls - 1; i > 0; i--) {  // not in the order in which malloc gave them out
        int j = (int)random_below((uint32_t)i + 1);
        Seq *swap = children[i];
        children[i] = children[j], children[j] = swap;
    }
    TIME(COPY, calls, MUST(seq_append(children[i], 1)));
    if (m->pool->num_copies != copies + calls) die(1, "append to a fork did not copy");
    TIME(RELEASE, calls, seq_release(children[i]));

    for (int i = 0; i < calls; i++) MUST(seq_create(m->pool, &children[i]));
    TIME(LOOKUP, calls, MUST(seq_lookup(children[i], m->prompts[order[i % used]], PROMPT)));
    for (int i = 0; i < calls; i++) {
        if (children[i]->length != SHARED) die(1, "a published prefix was not found");
        seq_release(children[i]);
    }
}

static void manager_measure(Manager *m, int used, double *ns)
{
    double samples[NUM_OPS][MAX_ROUNDS], one[NUM_OPS];
    int rounds = used < 1000 ? MAX_ROUNDS : quick ? 3 : 9;
    for (int round = -1; round < rounds; round++) {  // the first one warms up
        manager_round(m, used, one);
        for (int op = 0; op < NUM_OPS && round >= 0; op++) samples[op][round] = one[op];
    }
    for (int op = 0; op < NUM_OPS; op++) ns[op] = median(samples[op], rounds);
}

// The bytes of a copy-on-write, in a pool of the shape of Llama 3 8B.
static void copy_row(void)
{
    enum { LAYERS = 32, HEADS = 8, DIM = 128, FORKS = 32, FILLED = 8 };
    PoolConfig config = {LAYERS, HEADS, DIM, BLOCK, 64, PAGED_F16, 0, PAGED_CPU};
    Pool *pool;
    Seq *seq, *forks[FORKS];
    int n = FILLED;
    static float rows[FILLED * HEADS * DIM];
    double samples[MAX_ROUNDS];
    MUST(pool_create(&config, &pool));
    MUST(seq_create(pool, &seq));
    MUST(seq_append(seq, FILLED));
    Batch batch = {1, &seq, &n};
    for (int layer = 0; layer < LAYERS; layer++) MUST(pool_write(pool, layer, &batch, rows, rows));
    for (int round = -1; round < 9; round++) {  // the first one meets fresh memory
        for (int i = 0; i < FORKS; i++) MUST(seq_fork(seq, FILLED, &forks[i]));
        double start = now();
        for (int i = 0; i < FORKS; i++) MUST(seq_append(forks[i], 1));
        if (round >= 0) samples[round] = (now() - start) / FORKS;
        for (int i = 0; i < FORKS; i++) seq_release(forks[i]);
    }
    double seconds = median(samples, 9), bytes = FILLED * (double)pool_bytes_per_token(&config);
    if (csv)
        printf("copy,Llama 3 8B half a block,us,%.1f\n", seconds * 1e6);
    else
        printf("The copy itself, %d of %d tokens of Llama 3 8B, f16, %.1f MB: %.0f us, %.1f GB/s\n",
               FILLED, BLOCK, bytes / 1e6, seconds * 1e6, bytes / seconds / 1e9);
    pool_destroy(pool);
}

static void manager_table(void)
{
    enum { FEW = 10, LOTS = 100000 };
    static const char *const columns[] = {"10 of 10", "10 of 100 000", "100 000 at random"};
    double ns[3][NUM_OPS];
    Manager few = manager_create(FEW), lots = manager_create(LOTS);
    manager_measure(&few, FEW, ns[0]);
    manager_measure(&lots, FEW, ns[1]);
    manager_measure(&lots, LOTS, ns[2]);
    manager_destroy(&few);
    manager_destroy(&lots);
    if (!csv)
        printf("\nThe block manager, on the CPU, without K and V: ns per call.\n"
               "%-26s %18s %18s %18s\n",
               "sequences used", columns[0], columns[1], columns[2]);
    for (int op = 0; op < NUM_OPS; op++) {
        if (!csv)
            printf("%-26s %18.1f %18.1f %18.1f\n", op_names[op], ns[0][op], ns[1][op], ns[2][op]);
        for (int i = 0; csv && i < 3; i++)
            printf("manager ns,\"%s\",%s,%.1f\n", op_names[op], columns[i], ns[i][op]);
        judge(MANAGER, ns[0][op] / ns[1][op], op_names[op]);
    }
    copy_row();
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--csv"))
            csv = 1;
        else if (!strcmp(argv[i], "--quick"))
            quick = 1;
        else {
            fprintf(strcmp(argv[i], "--help") ? stderr : stdout,
                    "usage: bench [--quick] [--csv]\n"
                    "  --quick  a few shapes, some ten seconds\n"
                    "  --csv    one value a line: table, row, column, value\n");
            return strcmp(argv[i], "--help") ? 2 : 0;
        }
    }
    pool_bytes = machine_start();
    ceiling_buffer = (char *)machine_create(pool_bytes);
    if (csv)
        printf("table,row,column,value\n");
    else
        printf(
            "Each pool has %.1f GB; GB/s is the read ceiling; n sequences, with `new` tokens "
            "each.\n"
            "In columns with a slash: how many times faster %s is than contiguous, than gather,\n"
            "and than itself on one thread.\n",
            (double)pool_bytes / 1e9, ways[PAGED]);
    double load;
    if (getloadavg(&load, 1) == 1 && load > 0.5)
        fprintf(csv ? stderr : stdout, "Others are at work here (load %.1f): no good time.\n",
                load);
    manager_table();
    decode_table();
    causal_table();
    if (!quick) block_size_table();
    print_goals();
    return 0;
}
