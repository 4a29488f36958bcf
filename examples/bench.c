// bench: how fast the cache of ../paged.h is, as fractions of what this machine can do at all.
//
// Attention of one new token reads every K and V of the sequence once, and does two multiply-adds
// with each pair of elements per query head of the group. So no program is faster than
//
//     floor = max(bytes / read ceiling, multiply-adds / FMA roof)
//
// and the tables say floor / time: 1.00 is perfect. The plainest loops there are measure both: the
// roof before each row, the ceiling right before each call, over about as many bytes, as the memory
// of a shared machine may be a third slower in the next minute. Each number is the median of such
// rounds; the plain way, being slow, runs only once on a CPU. OMP_NUM_THREADS=1 uses one processor.
//
// Caches are cold: a pool is larger than the last level, and each call takes the next set of its
// sequences. Blocks lie shuffled, as in a server that has run for an hour. "Contiguous" is the same
// call on a pool whose block is as long as the sequence. Planning, which a model does once for all
// its layers, has a column of its own.
//
//     make bench                     all of it, about a minute; --quick: ten seconds
//     make -B bench NATIVE="-march=native -mno-avx512f"          as on a processor without AVX-512
//     make cuda-bench                the same for a GPU: the kernels alone, timed by CUDA events
//
// The exit status is 1 if a call fails or results differ.

#include "util.h"

#ifdef _OPENMP
#include <omp.h>
#define PARALLEL_FOR _Pragma("omp parallel for")
#else
#define PARALLEL_FOR
UNUSED static int omp_get_max_threads(void) { return 1; }
#endif

#define MUST(call) must(call, #call)

enum { HEAD_DIM = 128, MAX_ROUNDS = 32 };

static int quick;
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

static double median(double *samples, int n)
{
    for (int i = 1; i < n; i++)  // sorts them
        for (int j = i; j > 0 && samples[j - 1] > samples[j]; j--) {
            double swap = samples[j];
            samples[j] = samples[j - 1];
            samples[j - 1] = swap;
        }
    return (samples[(n - 1) / 2] + samples[n / 2]) / 2;
}

// ---- the machine ------------------------------------------------------------------------------
// What differs between CPU and GPU: the clock, the ceilings, the shapes.

static size_t pool_bytes;  // K and V of a pool
static const char *data;   // what the ceiling reads: the keys of the contiguous pool,
static size_t data_bytes;  // half of that

#ifdef __CUDACC__

enum { ON_GPU = 1, DEVICE = PAGED_GPU, KV_HEADS = 8, MANY = 32 };

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

static void queue_read(size_t bytes)
{
    read_kernel<<<16 * num_processors, 256>>>((const uint4 *)data, bytes / 16, sink);
    CUDA(cudaGetLastError());
}

// The GPU reads for some 100 us before the clock starts. Meanwhile the host queues what is to be
// timed, so that the events enclose kernels alone, whatever the host does between them. The read
// also drives K and V out of the L2 cache.
static void clock_start(void)
{
    size_t bytes = (size_t)256 << 20;
    if (bytes > data_bytes) bytes = data_bytes;
    queue_read(bytes);
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

static double read_rate(void)  // bytes per second
{
    clock_start();
    queue_read(data_bytes);
    return (double)data_bytes / clock_stop();
}

static const double fma_rate = INFINITY;  // on a GPU the floor is memory alone
static void measure_fma(void) {}

static void machine_start(void)  // says what it is, and chooses the size of a pool
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
    printf("%s, %d multiprocessors, nvcc %d.%d\n", gpu.name, num_processors, __CUDACC_VER_MAJOR__,
           __CUDACC_VER_MINOR__);
    pool_bytes = (size_t)4 << 30;
    while (pool_bytes > free_bytes / 5) pool_bytes /= 2;  // two pools, dense copies of one
}

#else

enum { ON_GPU = 0, DEVICE = PAGED_CPU, KV_HEADS = 4, MANY = 8 };

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

static double read_rate(void)  // bytes per second, over the next 64 MB
{
    static size_t next;
    size_t bytes = (size_t)64 << 20;
    size_t n = bytes / sizeof(Words) / threads;
    if (next + bytes > data_bytes) next = 0;
    const Words *p = (const Words *)(data + next);
    next += bytes;
    clock_start();
    PARALLEL_FOR
    for (int i = 0; i < threads; i++) read_part(p + n * i, n);
    return (double)bytes / clock_stop();
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

static void machine_start(void)
{
    threads = omp_get_max_threads();
    printf("CPU, threads: %d, vectors of %d bits, compiler %s\n", threads, VECTOR * 8, __VERSION__);
    pool_bytes = (size_t)1 << (quick ? 29 : 30);
}

static void measure_fma(void)
{
    for (int i = 0; i < 20; i++) {  // the best: a thread may have to wait for a processor
        clock_start();
        PARALLEL_FOR
        for (int j = 0; j < threads; j++) fma_part();
        double rate = (double)SUMS * FMA_STEPS * (VECTOR / 4) * threads / clock_stop();
        fma_rate = fmax(fma_rate, rate);
    }
}

#endif

// ---- caches -----------------------------------------------------------------------------------

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
    int batch, length, num_new, block_size, dtype, group;
} Shape;

typedef struct Cache {  // a pool full of data, cut into sets of sequences
    Pool *pool;
    Seq **seqs;  // [num_sets][batch], an array of stb_ds
    int num_sets, next;
} Cache;

// A pool cut into sequences of this shape. They grow by a block at a time, in random order, which
// shuffles their tables over the whole pool.
static Cache cache_create(const Shape *s, int block_size)
{
    PoolConfig config = {1, KV_HEADS, HEAD_DIM, block_size, 1, s->dtype, 0, DEVICE};
    config.num_blocks = (int)(pool_bytes / pool_bytes_per_block(&config));
    int blocks = (s->length + block_size - 1) / block_size;
    Cache cache = {NULL, NULL, config.num_blocks / blocks / s->batch, 0};
    MUST(pool_create(&config, &cache.pool));
    if (cache.num_sets == 0) die(1, "no batch fits into %zu bytes", pool_bytes);
    Seq **order = NULL;
    for (int i = 0; i < cache.num_sets * s->batch; i++) {
        Seq *seq;
        MUST(seq_create(cache.pool, &seq));
        arrput(cache.seqs, seq);
        for (int j = 0; j < blocks; j++) arrput(order, seq);
    }
    shuffle(order, (int)arrlen(order));
    for (int i = 0; i < arrlen(order); i++)
        MUST(seq_append(order[i], (int)fmin(s->length - order[i]->length, block_size)));
    arrfree(order);
    // All is written, so that all pages are there and no element is slow or NaN.
    float *rows = random_tensor(cache.pool, (size_t)s->length * KV_HEADS * HEAD_DIM, 1);
    for (int i = 0; i < arrlen(cache.seqs); i++) {
        Batch batch = {1, &cache.seqs[i], &s->length};
        MUST(pool_plan(cache.pool, &batch));
        MUST(pool_write(cache.pool, 0, rows, rows));
    }
    tensor_free(cache.pool, rows);
    return cache;
}

static void cache_destroy(Cache *cache)
{
    pool_destroy(cache->pool);
    arrfree(cache->seqs);
}

// ---- a shape, measured ------------------------------------------------------------------------

// The columns: four ways to attend, as fractions of the floor, the ceiling, and planning. On a GPU,
// gather, plain and fast are rungs of the ladder: 1, 2, and 3 or 4.
enum { CONTIGUOUS, GATHER, PLAIN, FAST, NUM_WAYS, READ = NUM_WAYS, PLAN, NUM_COLUMNS };
enum { GATHERED = ON_GPU ? ATTEND_GATHER : ATTEND_GATHER | ATTEND_FAST };
static const int flags[] = {ATTEND_FAST, GATHERED, ATTEND_PAGED, ATTEND_FAST};
static const char *const columns[] = {"contig", "gather", "plain", "fast", "GB/s", "plan us"};

static struct {  // what the calls of one shape have in common
    Shape shape;
    double bytes, multiply_adds;  // of one call
    Cache paged, contiguous;
    double plan_seconds;  // of the last one
    int num_tokens[MANY];
    size_t count;  // floats in q and in out
    float *q, *out;
} bench;

// The seconds of a call, on the next set of sequences.
static double attend_seconds(int way)
{
    const Shape *s = &bench.shape;
    Cache *cache = &bench.paged;
    if (way == CONTIGUOUS) cache = &bench.contiguous;
    Batch batch = {s->batch, cache->seqs + (size_t)cache->next * s->batch, bench.num_tokens};
    cache->next = (cache->next + 1) % cache->num_sets;
    double begin = now();
    MUST(pool_plan(cache->pool, &batch));
    bench.plan_seconds = now() - begin;
    clock_start();
    MUST(attend(cache->pool, flags[way], 0, KV_HEADS * s->group, 0, bench.q, bench.out, NULL));
    return clock_stop();
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
    attend_seconds(CONTIGUOUS);
    for (int way = GATHER; way <= FAST; way++) {
        if (way == PLAIN && bench.shape.num_new > 1 && !ON_GPU) continue;
        bench.paged.next = 0;
        for (size_t i = 0; i < bench.count; i++) out[i] = NAN;  // what is left of the way before
        tensor_copy(bench.paged.pool, bench.out, out, bench.count);
        double seconds = attend_seconds(way);
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
    measure_fma();
    double seconds = 0.4;
    if (quick) seconds = 0.1;
    double end = now() + seconds;
    int n = 0;
    for (; n < MAX_ROUNDS && (n < 3 || now() < end); n++) {
        for (int i = 0; i < NUM_WAYS; i++) {
            int way = i;
            if (n % 2) way = NUM_WAYS - 1 - i;  // in both orders, so that a drift cancels
            double read = read_rate();
            double t = plain;
            if (way != PLAIN || ON_GPU) t = attend_seconds(way);
            samples[way][n] = fmax(bench.bytes / read, bench.multiply_adds / fma_rate) / t;
            samples[READ][n] = read / 1e9;
            if (way == FAST) samples[PLAN][n] = bench.plan_seconds * 1e6;
        }
    }
    for (int i = 0; i < NUM_COLUMNS; i++) medians[i] = median(samples[i], n);
}

// Measures and prints one row.
static void attention_row(Shape s)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    char row[64];
    double v[NUM_COLUMNS];
    double element = 2;
    if (s.dtype == PAGED_F32) element = 4;
    double pairs = (double)s.num_new * (s.length - (s.num_new - 1) / 2.0);  // it is causal
    bench.shape = s;
    bench.bytes = 2.0 * KV_HEADS * HEAD_DIM * s.batch * s.length * element;
    bench.multiply_adds = 2.0 * KV_HEADS * HEAD_DIM * s.batch * s.group * pairs;
    bench.count = (size_t)s.batch * s.num_new * KV_HEADS * s.group * HEAD_DIM;
    for (int i = 0; i < s.batch; i++) bench.num_tokens[i] = s.num_new;
    bench.q = random_tensor(bench.paged.pool, bench.count, 8);  // so some tokens count much more
    bench.out = random_tensor(bench.paged.pool, bench.count, 1);
    measure(v);
    snprintf(row, sizeof row, "%s x%d, %d x %d, %d new, blocks %d", dtypes[s.dtype], s.group,
             s.batch, s.length, s.num_new, s.block_size);
    printf("%-37s", row);
    for (int i = 0; i < NUM_COLUMNS; i++) {
        if (isnan(v[i]))  // it was not measured
            printf(" %7s", "-");
        else
            printf(" %7.2f", v[i]);
    }
    printf("\n");
    fflush(stdout);
    tensor_free(bench.paged.pool, bench.q);
    tensor_free(bench.paged.pool, bench.out);
}

// Decode of a batch, of one long sequence, and from blocks of one token; a chunk of a prompt.
static void attention_table(void)
{
    static const int groups[] = {1, 4, 8};
    static const Shape shapes[] = {{MANY, 2048, 1, 16, 0, 0},
                                   {1, 32768, 1, 16, 0, 0},
                                   {MANY, 2048, 1, 1, 0, 0},
                                   {1, 4096, 512, 16, 0, 0}};
    int num_shapes = 4;
    if (quick) num_shapes = 1;
    printf("\n%-37s", "attention");
    for (int i = 0; i < NUM_COLUMNS; i++) printf(" %7s", columns[i]);
    printf("\n");
    for (int i = 0; i < num_shapes; i++) {
        Shape s = shapes[i];
        for (s.dtype = PAGED_F32; s.dtype <= PAGED_BF16; s.dtype++) {
            bench.paged = cache_create(&s, s.block_size);
            bench.contiguous = cache_create(&s, s.length);
            data = (const char *)bench.contiguous.pool->k;
            data_bytes = pool_bytes_per_block(&bench.contiguous.pool->config) / 2;
            data_bytes *= arrlen(bench.contiguous.seqs);
            for (int j = 0; j < 3; j++) {
                s.group = groups[j];
                attention_row(s);
            }
            cache_destroy(&bench.paged);
            cache_destroy(&bench.contiguous);
        }
    }
}

// ---- main -------------------------------------------------------------------------------------

int main(int argc, char **argv)
{
    program = "bench";
    quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
    if (argc > 1 && !quick) die(2, "usage: bench [--quick]");
    machine_start();
    attention_table();
    return finish_output(0);
}
