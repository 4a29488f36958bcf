// bench: how fast the cache of ../paged.h is, as fractions of what this machine can do at all.
//
// Attention of one new token reads every K and V of the sequence once, and does two multiply-adds
// with each pair of elements per query head of the group. So no program is faster than
//
//     floor = max(bytes / read ceiling, multiply-adds / FMA roof)
//
// and the tables say floor / time: 1.00 is perfect. Both are measured by the plainest loops there
// are: the roof at the start, the ceiling right before the calls that are compared with it. For the
// memory of a shared machine is a third slower in one minute than in the next; a ratio of neighbours
// is not. Each number is the median over such rounds; the plain way, being slow, runs only once on a
// CPU. All processors take part: OMP_NUM_THREADS=1 asks for one.
//
// Caches are cold: a pool is larger than the last level, and each call takes the next set of its
// sequences. Blocks lie shuffled, as in a server that has run for an hour. "Contiguous" is the same
// call on a pool whose block is as long as the sequence. Planning is not in these times, as a model
// plans once for all its layers. The table "overhead" has it, and what calls cost besides data.
//
//     make bench                     all of it, about six minutes; --quick: some 20 seconds
//     make cuda-bench                the same for a GPU: the kernels alone, timed by CUDA events
//
// The exit status is 1 if a call fails or results differ.

#include "util.h"

#include <getopt.h>

#ifdef _OPENMP
#include <omp.h>
#define PARALLEL_FOR _Pragma("omp parallel for")
#else
#define PARALLEL_FOR
UNUSED static int omp_get_max_threads(void) { return 1; }
#endif

#define MUST(call) must(call, #call)

enum { MAX_ROUNDS = 32 };

static int csv, quick;
static uint64_t random_state = 1;

static void shuffle(Seq **seqs, int n)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(random_bits(&random_state) % (uint64_t)(i + 1));
        Seq *swap = seqs[i];
        seqs[i] = seqs[j];
        seqs[j] = swap;
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    if (x < y) return -1;
    return x > y;
}

static double median(double *samples, int n)
{
    qsort(samples, (size_t)n, sizeof *samples, ascending);
    return (samples[(n - 1) / 2] + samples[n / 2]) / 2;
}

// A line of a table, the first one under the names of the columns. CSV has one value a line. What
// was not measured is NAN: "-" in a table, and no line of CSV.
static void print_row(const char *table, const char *row, int n, const char *const *columns,
                      const double *values, int digits)
{
    static const char *last = "";
    for (int i = 0; i < n && csv; i++)
        if (!isnan(values[i])) printf("%s,\"%s\",%s,%.4f\n", table, row, columns[i], values[i]);
    if (csv) return;
    if (strcmp(table, last) != 0) {
        printf("\n%-34s", table);
        for (int i = 0; i < n; i++) printf(" %7s", columns[i]);
        printf("\n");
    }
    last = table;
    printf("%-34s", row);
    for (int i = 0; i < n; i++) {
        int width = (int)fmax(7, strlen(columns[i]));
        if (isnan(values[i]))
            printf(" %*s", width, "-");
        else
            printf(" %*.*f", width, digits, values[i]);
    }
    printf("\n");
    fflush(stdout);
}

// ---- the machine ------------------------------------------------------------------------------
// What differs between CPU and GPU: the clock, the ceilings, the shapes.

static size_t pool_bytes;  // K and V of a pool
static const char *data;   // what the ceiling reads: the keys of the contiguous pool,
static size_t data_bytes;  // half of that

#ifdef __CUDACC__

enum { ON_GPU = 1, DEVICE = PAGED_GPU, KV_HEADS = 8, MANY = 32, MAX_CALLS = 16 };
static const size_t measured_bytes = (size_t)1 << 30;

#define CUDA(call) cuda_or_die(call, #call)
static void cuda_or_die(cudaError_t error, const char *call)
{
    if (error != cudaSuccess) die(1, "%s: %s", call, cudaGetErrorString(error));
}

static int num_processors;
static cudaEvent_t events[2];
static unsigned *sink;

// Eight independent 16-byte loads in each thread, then the next stretch.
static __global__ void read_kernel(const uint4 *p, size_t n, unsigned *result)
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
    if (x == 1) *result = x;  // hardly ever, but the compiler cannot know
}

static void queue_read(const char *from, size_t bytes)
{
    read_kernel<<<16 * num_processors, 256>>>((const uint4 *)from, bytes / 16, sink);
    CUDA(cudaGetLastError());
}

// The GPU reads for some 100 us before the clock starts. Meanwhile the host queues what is to be
// timed, so that the events enclose kernels alone, whatever the host does between them. The read
// also drives K and V out of the L2 cache.
static void clock_start(void)
{
    size_t bytes = (size_t)256 << 20;
    if (bytes > data_bytes) bytes = data_bytes;
    queue_read(data, bytes);
    CUDA(cudaEventRecord(events[0]));
}

static double clock_stop(void)
{
    float ms;
    CUDA(cudaEventRecord(events[1]));
    CUDA(cudaEventSynchronize(events[1]));
    CUDA(cudaEventElapsedTime(&ms, events[0], events[1]));
    return ms / 1e3;
}

static double read_seconds(const char *from, size_t bytes)
{
    clock_start();
    queue_read(from, bytes);
    return clock_stop();
}

static const double fma_rate = INFINITY;  // on a GPU the floor is memory alone

static void machine_start(FILE *out)  // says what it is, and chooses the size of a pool
{
    cudaDeviceProp gpu;
    size_t free_bytes;
    size_t total;
    CUDA(cudaGetDeviceProperties(&gpu, 0));
    CUDA(cudaMemGetInfo(&free_bytes, &total));
    CUDA(cudaEventCreate(&events[0]));
    CUDA(cudaEventCreate(&events[1]));
    CUDA(cudaMalloc(&sink, sizeof *sink));
    num_processors = gpu.multiProcessorCount;
    fprintf(out, "%s, %d multiprocessors, nvcc %d.%d\n", gpu.name, num_processors,
            __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__);
    pool_bytes = (size_t)4 << 30;
    while (pool_bytes > free_bytes / 5) pool_bytes /= 2;  // two pools, dense copies of one
}

#else

enum { ON_GPU = 0, DEVICE = PAGED_CPU, KV_HEADS = 4, MANY = 8, MAX_CALLS = 64 };
static const size_t measured_bytes = (size_t)64 << 20;

enum { VECTOR = __BIGGEST_ALIGNMENT__ };  // bytes: 64 with AVX-512, 32 with AVX
typedef uint64_t Words __attribute__((vector_size(VECTOR), may_alias));
typedef float Floats __attribute__((vector_size(VECTOR)));

static volatile uint64_t sink;  // what is stored here has to be computed
static volatile float one = 1;
static double started;
static int threads;
static double fma_rate;  // multiply-adds per second, all threads together

static void clock_start(void) { started = now(); }
static double clock_stop(void) { return now() - started; }

// Four streams a thread: with one, some processors leave a tenth of the rate unused.
static void read_part(const Words *p, size_t n)
{
    Words sum[4] = {{0}};
    for (size_t i = 0; i < n / 4; i++)
        for (int j = 0; j < 4; j++) sum[j] += p[i + j * (n / 4)];
    sum[0] += sum[1] + sum[2] + sum[3];
    sink = sum[0][0] + sum[0][1];
}

static double read_seconds(const char *from, size_t bytes)
{
    size_t n = bytes / sizeof(Words) / threads;
    clock_start();
    PARALLEL_FOR
    for (int i = 0; i < threads; i++) read_part((const Words *)from + n * i, n);
    return clock_stop();
}

enum { FMA_STEPS = 400000, SUMS = 12 };

// Twelve sums that do not wait for each other cover the latency, and fit into 16 registers.
static void fma_part(void)
{
    Floats x = one - (Floats){0};
    Floats y = x;
    Floats sum[SUMS];
    for (int j = 0; j < SUMS; j++) sum[j] = x * (float)j;  // equal ones would be merged into one
    for (int i = 0; i < FMA_STEPS; i++)
        for (int j = 0; j < SUMS; j++) sum[j] = sum[j] * x + y;
    for (int j = 1; j < SUMS; j++) sum[0] += sum[j];
    sink = (uint64_t)sum[0][0];
}

static void machine_start(FILE *out)
{
    threads = omp_get_max_threads();
    fprintf(out, "CPU, threads: %d, vectors of %d bits, compiler %s\n", threads, VECTOR * 8,
            __VERSION__);
    pool_bytes = (size_t)1 << (quick ? 29 : 30);
    for (int i = 0; i < 50; i++) {  // the best: a thread may have to wait for a processor
        clock_start();
        PARALLEL_FOR
        for (int j = 0; j < threads; j++) fma_part();
        double rate = (double)SUMS * FMA_STEPS * (VECTOR / 4) * threads / clock_stop();
        fma_rate = fmax(fma_rate, rate);
    }
}

#endif

// Bytes per second that the machine reads just now; each call reads on where the last one ended.
static double read_rate(double bytes)
{
    static size_t at;
    size_t span = (size_t)fmin(fmax(bytes, (double)measured_bytes), (double)data_bytes);
    if (at + span > data_bytes) at = 0;
    double seconds = read_seconds(data + at, span);
    at += span / 4096 * 4096;
    return (double)span / seconds;
}

// ---- caches -----------------------------------------------------------------------------------

static Pool *make_pool(PoolConfig config)
{
    Pool *pool;
    MUST(pool_create(&config, &pool));
    return pool;
}

static Seq *make_seq(Pool *pool, int length)
{
    Seq *seq;
    MUST(seq_create(pool, &seq));
    MUST(seq_append(seq, length));
    return seq;
}

static float *random_tensor(Pool *pool, size_t count, double max)
{
    float *tensor = tensor_create(pool, count);
    float *host = NULL;
    if (!tensor) die(1, "no memory for a tensor of %zu floats", count);
    for (size_t i = 0; i < count; i++)
        arrput(host, (float)(max * (2 * random_uniform(&random_state) - 1)));
    tensor_copy(pool, tensor, host, count);
    arrfree(host);
    return tensor;
}

typedef struct Shape {
    int dtype, head_dim, group, batch, length, num_new, block_size;
} Shape;

typedef struct Cache {  // a pool full of data, cut into sets of sequences
    Pool *pool;
    Seq **seqs;  // [num_sets][batch], an array of stb_ds
    int num_sets, next;
} Cache;

// Writes every slot once, so that all pages are there and no element is slow or NaN. Later
// sequences find these bytes in their blocks, as poison is off.
static void cache_fill(Pool *pool)
{
    int left = pool->config.num_blocks * pool->config.block_size;
    int n = 2048;
    float *rows = random_tensor(pool, (size_t)n * KV_HEADS * pool->config.head_dim, 1);
    Seq *seq = make_seq(pool, 0);
    for (; left > 0; left -= n) {
        if (n > left) n = left;
        Batch batch = {1, &seq, &n};
        MUST(seq_append(seq, n));
        MUST(pool_plan(pool, &batch));
        MUST(pool_write(pool, 0, rows, rows));
    }
    seq_release(seq);
    tensor_free(pool, rows);
}

// Cuts the pool into sequences of this shape, and makes it anew if it was of another kind. The
// sequences grow by a block at a time, in random order, which shuffles their tables over the whole
// pool. Returns 0 if not one batch fits.
static int cache_arrange(Cache *cache, const Shape *s, int block_size)
{
    PoolConfig config = {1, KV_HEADS, s->head_dim, block_size, 1, s->dtype, 0, DEVICE};
    config.num_blocks = (int)(pool_bytes / pool_bytes_per_block(&config));
    int blocks = (s->length + block_size - 1) / block_size;
    cache->num_sets = config.num_blocks / blocks / s->batch;
    cache->next = 0;
    if (cache->num_sets == 0) return 0;
    if (!cache->pool || memcmp(&cache->pool->config, &config, sizeof config) != 0) {
        pool_destroy(cache->pool);
        cache->pool = make_pool(config);
        cache_fill(cache->pool);
    }
    while (arrlen(cache->pool->seqs) > 0) seq_release(arrlast(cache->pool->seqs));
    arrsetlen(cache->seqs, 0);
    Seq **order = NULL;
    for (int i = 0; i < cache->num_sets * s->batch; i++) {
        arrput(cache->seqs, make_seq(cache->pool, 0));
        for (int j = 0; j < blocks; j++) arrput(order, cache->seqs[i]);
    }
    shuffle(order, (int)arrlen(order));
    for (int i = 0; i < arrlen(order); i++)
        MUST(seq_append(order[i], (int)fmin(s->length - order[i]->length, block_size)));
    arrfree(order);
    return 1;
}

// ---- a shape, measured ------------------------------------------------------------------------

// The columns: four ways to attend, as fractions of the floor; how many times faster the fast way is
// than two others; the ceiling. On a GPU, gather, plain and fast are rungs of the ladder: 1, 2, and
// 3 or 4.
enum { CONTIGUOUS, GATHER, PLAIN, FAST, NUM_WAYS };
enum { VS_CONTIGUOUS = NUM_WAYS, VS_GATHER, READ, NUM_COLUMNS };
enum { GATHERED = ON_GPU ? ATTEND_GATHER : ATTEND_GATHER | ATTEND_FAST };
static const int flags[] = {ATTEND_FAST, GATHERED, ATTEND_PAGED, ATTEND_FAST};
static const char *const columns[] = {"contig",  "gather",  "plain", "fast",
                                      "/contig", "/gather", "GB/s"};

static struct {  // what the calls of one shape have in common
    Shape shape;
    double bytes, multiply_adds;  // of one call
    int calls;                    // in a sample
    Cache paged, contiguous;
    int num_tokens[MANY];
    size_t count;  // floats in q and in out
    float *q, *out;
} bench;

// Seconds per call, on average over `calls` of them, each on the next set of sequences.
static double attend_seconds(int way, int calls)
{
    const Shape *s = &bench.shape;
    Cache *cache = &bench.paged;
    if (way == CONTIGUOUS) cache = &bench.contiguous;
    double sum = 0;
    for (int i = 0; i < calls; i++) {
        Batch batch = {s->batch, cache->seqs + (size_t)cache->next * s->batch, bench.num_tokens};
        cache->next = (cache->next + 1) % cache->num_sets;
        MUST(pool_plan(cache->pool, &batch));
        clock_start();
        MUST(attend(cache->pool, flags[way], 0, KV_HEADS * s->group, 0, bench.q, bench.out, NULL));
        sum += clock_stop();
    }
    return sum / calls;
}

// Warms up everything but the data, and sees to it that what is timed is right: all ways must agree
// on the same sequences. Returns the seconds of the plain way, or NAN: on a CPU it is too slow for
// a chunk of a prompt.
static double warm_up(void)
{
    float *out = NULL;
    float *expected = NULL;
    arrsetlen(out, bench.count);
    arrsetlen(expected, bench.count);
    double plain = NAN;
    attend_seconds(CONTIGUOUS, 1);
    for (int way = GATHER; way <= FAST; way++) {
        if (way == PLAIN && bench.shape.num_new > 5 && !ON_GPU) continue;
        bench.paged.next = 0;
        double seconds = attend_seconds(way, 1);
        if (way == PLAIN) plain = seconds;
        tensor_copy(bench.paged.pool, out, bench.out, bench.count);
        if (way == GATHER) memcpy(expected, out, bench.count * sizeof *out);
        for (size_t i = 0; i < bench.count; i++)
            if (!(fabsf(out[i] - expected[i]) <= 1e-4f))
                die(1, "output %zu is %g %s, but %g gathered", i, out[i], columns[way],
                    expected[i]);
    }
    arrfree(out);
    arrfree(expected);
    return plain;
}

// The medians of all columns. What is compared is measured in the same round.
static void measure(double *medians)
{
    double samples[NUM_COLUMNS][MAX_ROUNDS];
    double plain = warm_up();
    double seconds = 0.4;
    if (quick) seconds = 0.1;
    double end = now() + seconds;
    int n = 0;
    for (; n < MAX_ROUNDS && (n < 3 || now() < end); n++) {
        double t[NUM_WAYS];
        double v[NUM_COLUMNS];
        double read = read_rate(bench.bytes * bench.calls);
        double least = fmax(bench.bytes / read, bench.multiply_adds / fma_rate);
        for (int i = 0; i < NUM_WAYS; i++) {
            int way = i;
            if (n % 2) way = NUM_WAYS - 1 - i;  // in both orders, so that a drift cancels
            t[way] = plain;
            if (way != PLAIN || ON_GPU) t[way] = attend_seconds(way, bench.calls);
            v[way] = least / t[way];
        }
        v[READ] = read / 1e9;
        v[VS_CONTIGUOUS] = t[CONTIGUOUS] / t[FAST];
        v[VS_GATHER] = t[GATHER] / t[FAST];
        for (int i = 0; i < NUM_COLUMNS; i++) samples[i][n] = v[i];
    }
    for (int i = 0; i < NUM_COLUMNS; i++) medians[i] = median(samples[i], n);
}

static void bench_start(Shape s)
{
    double element = 2;
    if (s.dtype == PAGED_F32) element = 4;
    double pairs = (double)s.num_new * (s.length - (s.num_new - 1) / 2.0);  // it is causal
    bench.shape = s;
    bench.bytes = 2.0 * KV_HEADS * s.head_dim * s.batch * s.length * element;
    bench.multiply_adds = 2.0 * KV_HEADS * s.head_dim * s.batch * s.group * pairs;
    bench.calls = (int)fmin(fmax((double)measured_bytes / bench.bytes, 1), MAX_CALLS);
    bench.count = (size_t)s.batch * s.num_new * KV_HEADS * s.group * s.head_dim;
    for (int i = 0; i < s.batch; i++) bench.num_tokens[i] = s.num_new;
    const Pool *pool = bench.contiguous.pool;
    data = (const char *)pool->k;
    data_bytes = pool_bytes_per_block(&pool->config) / 2 * pool->config.num_blocks;
    bench.q = random_tensor(bench.paged.pool, bench.count, 8);  // so some tokens count much more
    bench.out = random_tensor(bench.paged.pool, bench.count, 1);
}

// Measures and prints one row.
static void bench_row(const char *table, Shape s)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    char row[64];
    double v[NUM_COLUMNS];
    snprintf(row, sizeof row, "%s %d x%d, %d x %d", dtypes[s.dtype], s.head_dim, s.group, s.batch,
             s.length);
    size_t end = strlen(row);
    if (s.num_new > 1) snprintf(row + end, sizeof row - end, ", %d new", s.num_new);
    if (s.block_size != 16) snprintf(row + end, sizeof row - end, ", blocks %d", s.block_size);
    if (!cache_arrange(&bench.paged, &s, s.block_size) ||
        !cache_arrange(&bench.contiguous, &s, s.length)) {
        fprintf(stderr, "%s: skipped, larger than a pool\n", row);
        return;
    }
    bench_start(s);
    measure(v);
    print_row(table, row, NUM_COLUMNS, columns, v, 2);
    tensor_free(bench.paged.pool, bench.q);
    tensor_free(bench.paged.pool, bench.out);
}

static void decode_table(void)
{
    static const int groups[] = {1, 4, 8};
    Shape s = {0, 0, 0, 0, 0, 1, 16};
    for (s.dtype = PAGED_F32; s.dtype <= PAGED_BF16; s.dtype++)
        for (s.head_dim = 64; s.head_dim <= 128; s.head_dim *= 2)
            for (s.length = 512; s.length <= 32768; s.length *= 4)
                for (s.batch = 1; s.batch <= MANY; s.batch += MANY - 1)
                    for (int i = 0; i < 3; i++) {
                        s.group = groups[i];
                        int usual = s.head_dim == 128 && s.length == 2048 && s.batch == MANY;
                        int quick_one = usual && s.dtype != PAGED_BF16;
                        if (!ON_GPU && s.group > 4) quick_one = 0;
                        if (!quick || quick_one) bench_row("decode", s);
                    }
}

// Several new tokens a sequence: a draft of 5 to verify, and a chunk of a prompt.
static void causal_table(void)
{
    for (int dtype = PAGED_F32; dtype <= PAGED_BF16; dtype++)
        for (int group = 1; group <= 4; group += 3) {
            Shape verify = {dtype, 128, group, MANY, 2048, 5, 16};
            Shape prefill = {dtype, 128, group, 1, 4096, 512, 16};
            if (!quick) bench_row("several new tokens", verify);
            if (!quick || (dtype == PAGED_F16 && group == 4))
                bench_row("several new tokens", prefill);
        }
}

static void blocks_table(void)
{
    static const int sizes[] = {1, 16, 32, 64, 128, 256};
    for (int i = 0; i < 6; i++)
        bench_row("block sizes", (Shape){PAGED_F16, 128, 4, MANY, 2048, 1, sizes[i]});
}

// ---- the overhead of a call -------------------------------------------------------------------
// What pool_write() and attend() cost in a layer beyond their data, and what the plan costs once a
// step. The model has one KV head of one float, in blocks of one token; a table of 512 entries is
// what 8192 tokens have in blocks of 16. In a write, the data that is left is measured beside it:
// the same number of rows in the same blocks, but all of one short sequence, a chunk. So
//
//     beyond = write - chunk + a write of one row
//
// is the fixed cost of a call and all that depends on the number of sequences and on the length of
// their tables. Attention has no such twin, as each row reads its whole sequence. Its fixed cost is
// that of one row over one token, and "a row" is what each further one adds, which should not
// depend on their number. What reading through a table costs is in the column /contig of the other
// tables. On a GPU the host only queues work: all these are its times, and contain no data.

enum { PLAN, WRITE, ATTEND };
enum { MAX_ROWS = 1001, OTHERS = 100000, CALLS = 20, REPEATS = 51 };

static float *rows;  // K, V, q and out of the steps, [MAX_ROWS]

// Layer 0 of two: a write of the last one also marks the tokens as computed, once a step.
static void step_call(Pool *pool, const Batch *batch, int call)
{
    if (call == PLAN) MUST(pool_plan(pool, batch));
    if (call == WRITE) MUST(pool_write(pool, 0, rows, rows));
    if (call == ATTEND) MUST(attend(pool, ATTEND_FAST, 0, 1, 0, rows, rows, NULL));
}

// The ns that a call takes, on average over some.
static double step_time(Pool *pool, const Batch *batch, int call)
{
    float ignored;
    step_call(pool, batch, PLAN);
    step_call(pool, batch, call);
    tensor_copy(pool, &ignored, rows, 1);  // waits for the GPU
    double start = now();
    for (int i = 0; i < CALLS; i++) step_call(pool, batch, call);
    return (now() - start) * 1e9 / CALLS;
}

// The same for a step of n new tokens of the same sequence.
static double chunk_time(Seq *seq, int n, int call)
{
    Batch batch = {1, &seq, &n};
    MUST(seq_append(seq, n));
    double ns = step_time(seq->pool, &batch, call);
    MUST(seq_rewind(seq, n));
    return ns;
}

// Measures and prints a step of num_short sequences of one token and num_long ones of `length`.
static void step_row(Pool *pool, int num_short, int num_long, int length)
{
    enum { WRITES, CHUNK, BEYOND, ATTENDS, A_ROW, PLANS, ENTRY, TIMES };
    static const char *const names[] = {"write", "chunk", "beyond", "attend",
                                        "a row", "plan",  "/entry"};
    double samples[TIMES][REPEATS];
    double t[TIMES];
    Seq *seqs[MAX_ROWS + 1];  // the last one is for the chunk
    int ones[MAX_ROWS];
    int n = num_short + num_long;
    int others = (int)arrlen(pool->seqs);
    Batch batch = {n, seqs, ones};
    for (int i = 0; i <= n; i++) seqs[i] = make_seq(pool, i < num_long ? length - 1 : 0);
    for (int i = 0; i < n; i++) ones[i] = 1;
    for (int round = 0; round < REPEATS; round++) {  // in turns, as the clock rate changes
        for (int i = 0; i < n; i++) MUST(seq_append(seqs[i], 1));
        t[PLANS] = step_time(pool, &batch, PLAN);
        t[WRITES] = step_time(pool, &batch, WRITE);
        t[ATTENDS] = NAN;  // on a CPU, over long sequences, it is all data
        if (num_long == 0 || ON_GPU) t[ATTENDS] = step_time(pool, &batch, ATTEND);
        for (int i = 0; i < n; i++) MUST(seq_rewind(seqs[i], 1));
        t[CHUNK] = chunk_time(seqs[n], n, WRITE);
        t[BEYOND] = t[WRITES] - t[CHUNK] + chunk_time(seqs[n], 1, WRITE);
        t[A_ROW] = NAN;
        if (n > 1) t[A_ROW] = (t[ATTENDS] - chunk_time(seqs[n], 1, ATTEND)) / (n - 1);
        t[ENTRY] = t[PLANS] / (n + num_short + (double)num_long * length);
        for (int i = 0; i < TIMES; i++) samples[i][round] = t[i];
    }
    for (int i = 0; i <= n; i++) seq_release(seqs[i]);
    for (int i = 0; i < TIMES; i++) t[i] = median(samples[i], REPEATS);
    char row[64];
    snprintf(row, sizeof row, "%d x 1, %d x %d; %d others", num_short, num_long, length, others);
    print_row("overhead, ns: sequences x blocks", row, TIMES, names, t, 1);
}

static void overhead_table(void)
{
    static const int steps[6][3] = {{1, 0, 0},    {64, 0, 0},    {1000, 0, 0},
                                    {0, 64, 512}, {0, 1, 65536}, {1000, 1, 65536}};
    Pool *pool = make_pool((PoolConfig){2, 1, 1, 1, 2 * OTHERS, PAGED_F32, 0, DEVICE});
    rows = random_tensor(pool, MAX_ROWS, 1);
    for (int others = 0; others <= OTHERS; others += OTHERS) {
        while (arrlen(pool->seqs) < others) make_seq(pool, 1);
        for (int j = 0; j < 6; j++) step_row(pool, steps[j][0], steps[j][1], steps[j][2]);
    }
    tensor_free(pool, rows);
    pool_destroy(pool);
}

// ---- the block manager ------------------------------------------------------------------------
// K and V of a few bytes, so that only the bookkeeping is left. At 100 000 sequences a call also
// waits for the memory of its sequence, which no cache holds; so the same is measured with calls
// that take turns with 10 of the 100 000. Only that says whether a call does more in a large pool.

enum { PROMPT = 40, SHARED = 32, BLOCK = 16 };  // two full blocks and half of a third
enum { MAX_SEQS = 100000, MIN_CALLS = 160 };

enum { APPEND, REWIND, FORK, COPY, RELEASE, LOOKUP, NUM_OPS };
static const char *const op_names[NUM_OPS] = {
    "append a token",        "rewind a token",   "fork",
    "append, copy-on-write", "release (a fork)", "prefix lookup, 2 blocks"};

static Seq *seqs[MAX_SEQS];            // in random order
static int prompts[MAX_SEQS][PROMPT];  // what they hold
static Seq *others[MAX_SEQS];

static void make_prompt(int *prompt, int number)  // no two tokens of all prompts are the same
{
    for (int i = 0; i < PROMPT; i++) prompt[i] = number * PROMPT + i;
}

static Pool *fill_pool(int n)
{
    static const float zeros[PROMPT] = {0};
    static const int num_tokens = PROMPT;
    Pool *pool = make_pool((PoolConfig){1, 1, 1, BLOCK, n * 6 + 1024, PAGED_F16, 0, PAGED_CPU});
    for (int i = 0; i < n; i++) {
        seqs[i] = make_seq(pool, PROMPT);
        Batch batch = {1, &seqs[i], &num_tokens};
        make_prompt(prompts[0], i);
        MUST(pool_plan(pool, &batch));
        MUST(pool_write(pool, 0, zeros, zeros));
        MUST(seq_publish(seqs[i], prompts[0], PROMPT));
    }
    shuffle(seqs, n);
    for (int i = 0; i < n; i++) make_prompt(prompts[i], seqs[i]->index);
    return pool;
}

#define TIME(op, count, call) \
    do { \
        double start = now(); \
        for (int i = 0; i < (count); i++) call; \
        ns[op] = fmin(ns[op], (now() - start) * 1e9 / (count)); \
    } while (0)

// Times calls with each of the first `used` sequences in turn. A slower round than one before only
// says that something disturbed it.
static void manager_round(int used, double *ns)
{
    int calls = used;
    if (calls < MIN_CALLS) calls = MIN_CALLS;
    // A block's worth of tokens each, so that every sixteenth append takes a block.
    TIME(APPEND, used * BLOCK, MUST(seq_append(seqs[i % used], 1)));
    TIME(REWIND, used * BLOCK, MUST(seq_rewind(seqs[i % used], 1)));

    TIME(FORK, calls, MUST(seq_fork(seqs[i % used], PROMPT, &others[i])));
    shuffle(others, calls);  // not in the order in which malloc gave them out
    TIME(COPY, calls, MUST(seq_append(others[i], 1)));
    TIME(RELEASE, calls, seq_release(others[i]));

    for (int i = 0; i < calls; i++) others[i] = make_seq(seqs[0]->pool, 0);
    TIME(LOOKUP, calls, MUST(seq_lookup(others[i], prompts[i % used], PROMPT)));
    for (int i = 0; i < calls; i++) {
        if (others[i]->length != SHARED) die(1, "a published prefix was not found");
        seq_release(others[i]);
    }
}

static void manager_table(void)
{
    static const char *const names[] = {"10 of 10", "10 of 100000", "all of 100000"};
    static const int sizes[] = {10, MAX_SEQS, MAX_SEQS};
    static const int used[] = {10, 10, MAX_SEQS};
    static const int rounds[] = {32, 32, 5};
    double ns[3][NUM_OPS];
    for (int i = 0; i < 3; i++) {
        Pool *pool = fill_pool(sizes[i]);
        for (int op = 0; op < NUM_OPS; op++) ns[i][op] = INFINITY;
        for (int round = 0; round < rounds[i]; round++) manager_round(used[i], ns[i]);
        pool_destroy(pool);
    }
    for (int op = 0; op < NUM_OPS; op++) {
        double row[3] = {ns[0][op], ns[1][op], ns[2][op]};
        print_row("block manager, ns", op_names[op], 3, names, row, 1);
    }
}

// ---- main -------------------------------------------------------------------------------------

static const char usage[] =
    "usage: bench [--quick] [--csv] [table...]\n"
    "  --quick  a few shapes, some 20 seconds\n"
    "  --csv    one value a line: table, row, column, value\n"
    "  tables: manager overhead decode causal blocks; default: all, with --quick the first four\n";

int main(int argc, char **argv)
{
    static const char *const names[] = {"manager", "overhead", "decode", "causal", "blocks", NULL};
    static void (*const tables[])(void) = {manager_table, overhead_table, decode_table,
                                           causal_table, blocks_table};
    static const struct option options[] = {{"quick", no_argument, &quick, 1},
                                            {"csv", no_argument, &csv, 1},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    program = "bench";
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (option == 0) continue;
        fputs(usage, option == 'h' ? stdout : stderr);
        return option == 'h' ? 0 : 2;
    }
    int wanted[5] = {0};
    for (int i = optind; i < argc; i++) wanted[parse_choice("table", argv[i], names)] = 1;
    for (int i = 0; i < 5 && optind == argc; i++) wanted[i] = i < 4 || !quick;

    machine_start(csv ? stderr : stdout);
    double load;
    if (getloadavg(&load, 1) == 1 && load > 0.5)
        fprintf(stderr, "Others are at work here (load %.1f): no good time.\n", load);
    if (csv) printf("table,row,column,value\n");
    for (int i = 0; i < 5; i++)
        if (wanted[i]) tables[i]();
    return finish_output(0);
}
