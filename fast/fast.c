// fast.c: the optional fast paths of attend(), taken with ATTEND_FAST. paged.cu.c includes it if it
// is compiled with -DPAGED_FAST, after the plain code, which computes the same sums and is to be
// read first: attend_row() for the CPU, attend_paged() for a GPU. Here is the path for CPUs; the
// one for GPUs is in gpu.c.

// A loop that compilers unroll (at -O3), so that its arrays become registers.
#ifdef __CUDA_ARCH__
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#else
#define EACH(i, n) for (int i = 0; i < (n); i++)
#endif

// For gcc (12 and later) and clang, in vectors as wide as the processor has. Unlike attend_row():
//   - Tokens are taken in tiles of 64: what is done once per tile hardly counts.
//   - Up to eight query vectors (heads of a group, rows of a chunk) go through a tile together, so
//     an element of K or V, once in a register, serves as many as there are registers for.
//   - All KV heads of a tile come before the next tile, so memory is read in long runs. A full tile
//     is walked in four runs at once, and each stop prefetches what is read eight stops later.
//   - exp() is a polynomial, computed for a vector of scores at once.
//   - The sums of a tile begin at 0. They are added to the earlier ones along with the rounding
//     error, so a million small weights are not lost beside a large one.
// What a query vector adds up, and in which order, does not depend on the vectors beside it, on
// block sizes or on threads, so gathered and paged agree in every bit here, too.

#if (__GNUC__ >= 12 || defined(__clang__)) && !defined(__CUDACC__) && __FLT_EVAL_METHOD__ % 16 == 0
#ifdef _OPENMP
#include <omp.h>
#define OMP(text) _Pragma(#text)
#else
#define OMP(text)  // one thread
#define omp_get_max_threads() 1
#define omp_get_thread_num() 0
#endif
#ifndef THREADS_FROM
#define THREADS_FROM 200000  // elements of K and V; a smaller step is not shared among threads
#endif
#ifdef __AVX512F__
#include <immintrin.h>
#define LANES 16
#define FOURS(i) FOUR(i), FOUR(4 + i), FOUR(8 + i), FOUR(12 + i)
#elif defined(__F16C__)
#include <immintrin.h>
#define LANES 8
#define FOURS(i) FOUR(i), FOUR(4 + i)
#else
#define LANES 4
#define FOURS(i) FOUR(i)
#endif
#define FOUR(i) i, LANES + i, 1 + i, LANES + 1 + i
#define INLINE static inline __attribute__((always_inline))
#define KEEP_ORDER __asm__ volatile("" ::: "memory")  // compilers move no load across it

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef float Quad __attribute__((vector_size(16), may_alias));
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

enum { RUN = 16, RUNS = 4, TOKENS = RUNS * RUN };  // a tile is 64 neighbours, in 4 runs
enum { AHEAD = 8, HALF = AHEAD * RUNS };           // from a prefetch to its use: stops, tokens
enum { COLUMNS = PAGED_MAX_HEAD_DIM / LANES };     // a column of K or V has LANES elements
enum { VECTORS = 64 };                 // query vectors that go through a sequence together, at most
enum { SUMS = LANES == 16 ? 16 : 8 };  // vectors of sums that fit into the registers
enum { TOGETHER = LANES == 16 ? 8 : 4 };  // query vectors that share them, at most

typedef struct Tile {      // where the rows of its tokens are: k + at[0][t], v + at[0][t]
    const char *k, *v;     // the planes, from a KV head on
    size_t at[2][TOKENS];  // bytes; at[0] in the order of the tokens, at[1] in four runs
} Tile;

typedef struct Query {      // a query vector, and the state of its sums
    Vec q[COLUMNS];         // times scale
    Vec sum[1 + COLUMNS];   // l, in LANES parts; then o, of weights times V
    Vec lost[1 + COLUMNS];  // to rounding, from each sum
    float m;                // the largest score so far
    int visible;            // how many tokens it sees
    size_t at;              // where it begins in job->q
} Query;

// Returns LANES elements of K or V. The intrinsics are what compilers do not find themselves.
INLINE Vec load_lanes(const char *from, int dtype)
{
    if (dtype == PAGED_F32) return *(const Floats *)from;
    Halves h = *(const Halves *)from;
#if LANES == 16
    if (dtype == PAGED_F16) return (Vec)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
    if (dtype == PAGED_BF16)
        return (Vec)((Bits)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h) << 16);
#elif LANES == 8
    if (dtype == PAGED_F16) return (Vec)_mm256_cvtph_ps((__m128i)h);
#endif
    Bits bits = __builtin_convertvector(h, Bits);
    if (dtype == PAGED_BF16) return (Vec)(bits << 16);
    Bits x = ((bits & 0x7fff) << 13) + (112 << 23);  // as in f16_to_f32()
    Bits largest = (Bits)(x >= 143u << 23);  // exponents: of infinity and NaN, of subnormals
    Bits smallest = (Bits)(x < 113u << 23);
    Bits small = (Bits)((Vec)(x + (1 << 23)) - 6.103515625e-05f) & 0x7fffffff;
    x = (x + (largest & (112 << 23))) & ~smallest;
    return (Vec)((bits & 0x8000) << 16 | x | (small & smallest));
}

// Returns e^x for x <= 0: with x = n log(2) + r it is 2^n times the series of e^r. NaN stays NaN.
// Below -87 it returns 0: a little lower, the result would be a subnormal number.
INLINE Vec exp_lanes(Vec x)
{
    const float rounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for a fraction
    Vec n = x * 1.44269504f + rounder;
    Vec r = x - (n - rounder) * 0.693147181f;
    Vec p = 1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f));
    p = 1 + r * (1 + r * (1 / 2.0f + r * (1 / 6.0f + r * p)));
    p *= (Vec)(((Bits)n << 23) + 0x3f800000);  // n into the exponent
    return (Vec)((Bits)p & ~(Bits)(x < -87.0f));
}

// Returns a[0] + a[2], b[0] + b[2], a[1] + a[3], b[1] + b[3]; so it goes on for every four lanes.
INLINE Vec add_halves(Vec a, Vec b)
{
    return __builtin_shufflevector(a, b, FOURS(0)) + __builtin_shufflevector(a, b, FOURS(2));
}

// Returns the sums of the lanes of four vectors.
INLINE Quad add_lanes(Vec a, Vec b, Vec c, Vec d)
{
    Vec all = add_halves(add_halves(a, c), add_halves(b, d));
    Quad sums = ((Quad *)&all)[0];
    EACH (i, LANES / 4 - 1) sums += ((Quad *)&all)[1 + i];
    return sums;
}

// Adds x to sum i, and what rounding takes from the result to lost[i] (TwoSum, Knuth).
INLINE void add_exactly(Query *query, int i, Vec x)
{
    Vec old = query->sum[i];
    Vec sum = query->sum[i] = old + x;
    Vec added = sum - old;
    query->lost[i] += (old - (sum - added)) + (x - added);
}

// Turns scores into weights, raises m, and scales the sums to it. Not inlined: in another copy of
// this code a compiler might fuse other products with sums, which gives other bits.
__attribute__((noinline)) static void weigh(Query *query, Vec *score, int tokens, int last)
{
    int count = ceil_div(tokens, LANES);
    for (int t = tokens; t < count * LANES; t++) ((float *)score)[t] = -INFINITY;
    float old_m = query->m;
    Vec top = (Vec){0} + old_m;
    EACH (i, count) {
        Bits higher = (Bits)(score[i] > top);
        top = (Vec)(((Bits)score[i] & higher) | ((Bits)top & ~higher));
    }
    float m[4] = {old_m, old_m, old_m, old_m};  // one maximum would take four times as long
    EACH (i, LANES)
        if (top[i] > m[i % 4]) m[i % 4] = top[i];
    EACH (i, 4)
        if (m[i] > m[0]) m[0] = m[i];
    query->m = m[0];
    Vec shrink = exp_lanes((Vec){0} + (old_m - m[0]));
    int scaled = m[0] > old_m && old_m > -INFINITY;  // at first, the sums are 0
    for (int i = 0; scaled && i <= 1 + last; i++) {
        query->sum[i] *= shrink;
        query->lost[i] *= shrink;
    }
    float base = m[0] > -FLT_MAX ? m[0] : -FLT_MAX;  // -infinity less itself is NaN
    Vec l = {0};
    EACH (i, count) {
        score[i] = exp_lanes(score[i] - base);
        l += score[i];
    }
    add_exactly(query, 0, l);
}

// Takes n query vectors through the first tokens of a tile. next: what is read after it
INLINE void attend_tile(const Tile *tile, const Tile *next, Query *query, int tokens, int head_dim,
                        int n, int dtype)
{
    const int step = LANES * (int)dtype_size(dtype);
    const int last = (head_dim - 1) / LANES;             // column
    const int k_count = n > TOGETHER ? SUMS / RUNS : n;  // query vectors at a time, for K
    const int abreast = min_int(RUNS, SUMS / k_count);   // tokens of K at a time
    const int v_count = min_int(n, TOGETHER);            // query vectors at a time, for V
    const int width = min_int(8, SUMS / v_count);        // columns of V at a time
    Vec score[8][TOKENS / LANES];                        // in the order of the walk
    Vec part[8 * COLUMNS];                               // sums over half of a tile
    Vec floats[COLUMNS][RUNS];                           // K, to be read again
    Vec dot[SUMS];
    Vec sum[SUMS];
    Bits inside = {0};  // the lanes of the last column that belong to the row, not to another
    EACH (i, LANES)
        if (last * LANES + i < head_dim) inside[i] = 0xffffffff;

    // 1. The walk, four tokens at a stop: in a full tile, in four runs; otherwise, in their order.
    const int stops = ceil_div(tokens, RUNS);
    const size_t *at = tile->at[tokens == TOKENS];

    // 2. The scores. The last stop may go past the last token; weigh() drops these scores.
    for (int stop = 0; stop < stops; stop++) {
        int later = stop + AHEAD;
        const char *later_plane = later < stops ? tile->k : tile->v;
        if (later >= stops) later -= stops;
        for (int run = 0; run < RUNS; run += abreast) {
            const char *k[RUNS], *later_k[RUNS];
            EACH (j, abreast) {
                k[j] = tile->k + at[stop * RUNS + run + j];
                later_k[j] = later_plane + at[later * RUNS + run + j];
            }
            for (int first = 0; first < n; first += k_count) {
                EACH (i, SUMS) dot[i] = (Vec){0};
                for (int d = 0; d <= last; d++) {
                    Vec x[RUNS];
                    if (first > 0) {
                        EACH (j, abreast) x[j] = floats[d][j];
                    } else {
                        if (d * step % 64 == 0)  // once for each cache line, to L2
                            EACH (j, abreast) __builtin_prefetch(later_k[j] + d * step, 0, 2);
                        KEEP_ORDER;
                        EACH (j, abreast) x[j] = load_lanes(k[j] + d * step, dtype);
                        if (d == last)  // 0 * NaN would be NaN
                            EACH (j, abreast) x[j] = (Vec)((Bits)x[j] & inside);
                        if (k_count < n)
                            EACH (j, abreast) floats[d][j] = x[j];
                    }
                    EACH (i, k_count)
                        EACH (j, abreast) dot[i * abreast + j] += query[first + i].q[d] * x[j];
                }
                for (int i = 0; i < k_count * abreast; i += 4) {
                    Quad four = add_lanes(dot[i], dot[i + 1], dot[i + 2], dot[i + 3]);
                    float *to = (float *)score[first] + stop * RUNS + run;
                    EACH (j, 4) to[(i + j) / abreast * TOKENS + (i + j) % abreast] = four[j];
                }
            }
        }
    }

    // 3. Their weights.
    EACH (i, n) weigh(&query[i], score[i], tokens, last);

    // 4. The values: half of the walk for all columns, then the other half. Columns past the last
    // one repeat it, and their sums are dropped.
    for (int half = 0; half < tokens; half += HALF)
        for (int d = 0; d <= last; d += width)
            for (int first = 0; first < n; first += v_count) {
                const int end = min_int(half + HALF, tokens);
                const char *plane = end < tokens ? tile->v : next->k;
                const size_t *later = end < tokens ? at + HALF : next->at[1];
                EACH (i, v_count * width) sum[i] = (Vec){0};
                if (half > 0)
                    EACH (i, v_count * width) sum[i] = part[d * n + first * width + i];
#pragma GCC unroll 4
                for (int t = half; t < end; t++) {
                    const char *v = tile->v + at[t];
                    const char *later_v = plane + later[t - half] + d * step;
                    for (int i = 0; first == 0 && i < width * step; i += 64)
                        __builtin_prefetch(later_v + i, 0, 2);
                    KEEP_ORDER;
                    EACH (j, width) {
                        if (j >= 4 && d + 4 > last) continue;  // a short row has none of these
                        Vec x = load_lanes(v + min_int(d + j, last) * step, dtype);
                        EACH (i, v_count) sum[i * width + j] += ((float *)score[first + i])[t] * x;
                    }
                }
                if (end < tokens) {
                    EACH (i, v_count * width) part[d * n + first * width + i] = sum[i];
                    continue;
                }
                EACH (i, v_count)
                    EACH (j, width)
                        if (d + j <= last)
                            add_exactly(&query[first + i], 1 + d + j, sum[i * width + j]);
            }
}

// attend_tile() of constant n and dtype. Not inlined: the caller's variables would take registers.
__attribute__((noinline)) static void attend_tile_of(const Tile *tile, const Tile *next,
                                                     Query *query, int tokens, int head_dim, int n,
                                                     int dtype)
{
#define CASE(N, TYPE) \
    if (n == N && dtype == TYPE) attend_tile(tile, next, query, tokens, head_dim, N, TYPE);
#define CASES(N) CASE(N, PAGED_F32) CASE(N, PAGED_F16) CASE(N, PAGED_BF16)
    CASES(8) CASES(4) CASES(2) CASES(1)
}

static void start_query(const Job *job, int row, int head, Query *query)
{
    int head_dim = job->config.head_dim;
    query->m = -INFINITY;
    query->visible = job->queries[row].position + 1;
    query->at = ((size_t)row * job->num_q_heads + head) * head_dim;
    query->q[(head_dim - 1) / LANES] = (Vec){0};
    EACH (d, head_dim) ((float *)query->q)[d] = job->q[query->at + d] * job->scale;
    EACH (i, 1 + ceil_div(head_dim, LANES)) query->sum[i] = query->lost[i] = (Vec){0};
}

// The sign of a NaN depends on the order of operands, which instances differ in: all become one.
INLINE Vec one_nan(Vec x)
{
    Bits nan = (Bits)(x != x);
    return (Vec)(((Bits)x & ~nan) | (nan & 0x7fc00000));
}

static void finish_query(const Job *job, const Query *query)
{
    int head_dim = job->config.head_dim;
    Vec out[COLUMNS];
    double l = 0;
    EACH (i, LANES) l += (double)query->sum[0][i] + query->lost[0][i];
    EACH (i, ceil_div(head_dim, LANES)) {
        Vec o = query->sum[1 + i];
        Bits finite = (Bits)(o - o == 0);
        o += (Vec)((Bits)query->lost[1 + i] & finite);  // what infinity has lost is NaN
        out[i] = one_nan(l != 0 ? o / (float)l : (Vec){0});
    }
    memcpy(job->out + query->at, out, head_dim * sizeof(float));
    if (!job->lse) return;
    Vec lse = (Vec){0} + (float)(query->m + log(l));
    job->lse[query->at / head_dim] = one_nan(lse)[0];
}

// How many of `count` query vectors, from the first one on, can go through the tile at `start`
// together, as they see the same tokens of it?
static int count_together(const Query *query, int count, int start)
{
    int tokens = min_int(query->visible - start, TOKENS);
    int n = 8;
    while (n > count || min_int(query[n - 1].visible - start, TOKENS) != tokens) n /= 2;
    return n;
}

// Finds the tile at `start`. Past the end of the sequence, the row of its last token is repeated.
static Tile find_tile(const Job *job, SeqOffset begin, unsigned start, unsigned end, int kv_head)
{
    Tile tile = {(const char *)job->k_plane, (const char *)job->v_plane, {{0}}};
    size_t row = job->config.head_dim;  // elements to the next token in a block
    if (!job->tables) row *= job->config.num_kv_heads;
    size_t at = 0;
    int slots = 0;                                    // left in the block
    for (unsigned t = 0; t < TOKENS; t++, slots--) {  // unsigned: start + t may pass INT_MAX
        if (start + t < end) {
            at += row;
            if (slots == 0) {
                at = token_offset(job, begin, start + t, kv_head);
                slots = job->config.block_size - (start + t) % job->config.block_size;
            }
        }
        tile.at[0][t] = at * dtype_size(job->config.dtype);
        tile.at[1][t % RUN * RUNS + t / RUN] = tile.at[0][t];
    }
    return tile;
}

// Some rows of one sequence, some KV heads.
static void attend_piece(const Job *job, Query *query, int row, int rows, int kv_head, int heads)
{
    const PoolConfig *c = &job->config;
    SeqOffset begin = job->offsets[job->queries[row].seq];
    unsigned end = job->queries[row + rows - 1].position + 1;
    int group = job->num_q_heads / c->num_kv_heads;
    int count = rows * group;  // query vectors of a KV head
    size_t head_elements = token_offset(job, begin, 0, 1) - token_offset(job, begin, 0, 0);
    query += omp_get_thread_num() * VECTORS;  // [heads][count]
    EACH (i, heads * count) {
        int head = (kv_head + i / count) * group + i % group;
        start_query(job, row + i / group % rows, head, &query[i]);
    }
    Tile next = find_tile(job, begin, 0, end, kv_head);
    for (unsigned start = 0; start < end; start += TOKENS)
        for (int head = 0; head < heads; head++) {
            Tile tile = next;
            Query *q = query + head * count;
            if (head < heads - 1) {
                next.k += head_elements * dtype_size(c->dtype);
                next.v += head_elements * dtype_size(c->dtype);
            } else if (start + TOKENS < end) {
                next = find_tile(job, begin, start + TOKENS, end, kv_head);
            }
            for (int i = 0, n; i < count; i += n) {
                int tokens = min_int(q[i].visible - start, TOKENS);
                n = count_together(&q[i], count - i, start);
                if (tokens > 0)
                    attend_tile_of(&tile, &next, &q[i], tokens, c->head_dim, n, c->dtype);
            }
        }
    EACH (i, heads * count) finish_query(job, &query[i]);
}

// Attends for a whole step. Returns an error, or -1 if the shape is one for attend_row(). Pieces
// are as large as they can be, rows times KV heads, unless that makes fewer of them than threads.
static int attend_on_cpu(Pool *pool, Job *job)
{
    int total = job->num_query_tokens;
    int kv_heads = job->config.num_kv_heads;
    int group = job->num_q_heads / kv_heads;
    if (group > VECTORS) return -1;
    double pairs = 0;  // of a query token and a token that it sees
    EACH (row, total) pairs += job->queries[row].position + 1;
    int threads = 1;
    if (2 * pairs * kv_heads * job->config.head_dim > THREADS_FROM) threads = omp_get_max_threads();
    int most = min_int(VECTORS / group, ceil_div((int64_t)total * kv_heads, threads));
    size_t bytes = multiply(threads, VECTORS * sizeof(Query));
    if (memory_reserve(PAGED_CPU, &pool->states, bytes)) return PAGED_OUT_OF_MEMORY;
    OMP(omp parallel num_threads(threads))
    OMP(omp single)
    for (int row = 0, rows; row < total; row += rows) {
        const QueryToken *query = job->queries + row;
        for (rows = 1; rows < min_int(most, total - row) && query[rows].seq == query->seq;) rows++;
        int heads = most / rows;
        for (int h = 0; h < kv_heads; h += heads) OMP(omp task)
        attend_piece(job, (Query *)pool->states.p, row, rows, h, min_int(heads, kv_heads - h));
    }
    return PAGED_OK;
}

#else  // another compiler, or an x87, with floats of too many bits: attend_row() does it all
static int attend_on_cpu(Pool *pool, Job *job) { return (void)pool, (void)job, -1; }
#endif

#include "gpu.c"

// Attends for a whole step. Returns an error, or -1 if the shape is one for the plain code.
static int attend_fast(Pool *pool, Job *job)
{
    if (job->config.device == PAGED_CPU) return attend_on_cpu(pool, job);
    return attend_on_gpu(pool, job);
}
