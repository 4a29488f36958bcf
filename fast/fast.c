// fast.c: the optional fast paths of attend(), for ATTEND_FAST. paged.cu.c includes this file if it
// is compiled with -DPAGED_FAST, after the plain code, which does the same sums and is to be read
// first: attend_row() on the CPU, attend_paged() on a GPU.
//
// On the CPU: for gcc (12 and later) and clang, head_dim 64 and 128, in vectors as wide as the
// processor has. What differs from attend_row():
//
//   - Four query vectors (heads of a group, rows of a chunk) go through a tile together, so that an
//     element of K or V, once in a register, serves all four.
//   - All heads of a tile come before the next tile, so that memory is read in long runs.
//   - While a tile is computed, the next ones are asked for (prefetch).
//   - exp() is a polynomial, and 16 or fewer scores go through it at once.
//
// What a query vector adds up, and in which order, does not depend on its company, on block sizes
// or on threads, so gather and paged agree in every bit here, too.

#ifdef _OPENMP
#include <omp.h>
#endif

// ---- CPU --------------------------------------------------------------------------------------

#ifndef THREADS_FROM
#define THREADS_FROM 100000  // elements of K to be read: some 50 microseconds; less is not shared
#endif

#ifdef __has_builtin
#define HAS_SHUFFLE __has_builtin(__builtin_shufflevector)  // gcc 12 and later, and clang
#else
#define HAS_SHUFFLE 0
#endif
#if defined(__GNUC__) && HAS_SHUFFLE && !defined(__CUDACC__)
#ifdef __AVX512F__
#define LANES 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(__AVX__)
#define LANES 8
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define LANES 4
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#endif
#if defined(__F16C__) && LANES > 4
#include <immintrin.h>
#endif
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")  // so that arrays can live in registers
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#define EACH(i, n) UNROLLED for (int i = 0; i < (n); i++)

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t VecInt __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t VecHalf __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
enum { QUAD = 4, VECTORS = 64, HAND_DIM = 128 };  // query vectors at a time, and in hand; 64 KB
enum { STEP = LANES == 16 ? 4 : 2 };              // QUAD * STEP sums fit into the registers

INLINE Vec choose(VecInt yes, Vec x, Vec y)
{
    return (Vec)(((VecInt)x & yes) | ((VecInt)y & ~yes));
}
INLINE Vec evens(Vec x, Vec y) { return __builtin_shufflevector(x, y, EVEN); }
INLINE Vec odds(Vec x, Vec y) { return __builtin_shufflevector(x, y, ODD); }

// load_element() for LANES elements. For f16, compilers do not find the instruction themselves.
INLINE Vec load_lanes(const void *plane, size_t at, int dtype)
{
    if (dtype == PAGED_F32) return *(const Vec *)((const float *)plane + at);
    VecHalf h = *(const VecHalf *)((const uint16_t *)plane + at);
#if defined(__F16C__) && LANES == 16
    if (dtype == PAGED_F16) return (Vec)_mm512_cvtph_ps((__m256i)h);
    if (dtype == PAGED_BF16) return (Vec)(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16));
#elif defined(__F16C__) && LANES == 8
    if (dtype == PAGED_F16) return (Vec)_mm256_cvtph_ps((__m128i)h);
#endif
    VecInt bits = __builtin_convertvector(h, VecInt);
    if (dtype == PAGED_BF16) return (Vec)(bits << 16);
    Vec x = (Vec)((bits & 0x7fff) << 13) * 0x1p112f;  // as in f16_to_f32()
    return (Vec)((bits & 0x8000) << 16 | (VecInt)x | ((x >= 65536.0f) & 0x7f800000));
}

// exp(x) for x <= 0: with x = n log(2) + r it is 2^n e^r. A NaN stays one; below -87 it is 0.
INLINE Vec exp_lanes(Vec x)
{
    const float rounder = 0x1.8p23f;  // adding it leaves no bits for a fraction
    VecInt tiny = x < -87.0f;
    x = choose(tiny, (Vec){0} - 87.0f, x);  // further down, the exponent below would overflow
    Vec n = x * 1.44269504f + rounder, r = (x * 1.44269504f - (n - rounder)) * 0.693147181f;
    Vec p = 1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f));
    p = 1 + r * (1 + r * (0.5f + r * (1 / 6.0f + r * p)));
    p *= (Vec)(((VecInt)n << 23) + 0x3f800000);  // n into the exponent
    return (Vec)((VecInt)p & ~tiny);
}

typedef struct Hand {  // the query vectors that go through a sequence together, and their state
    float q[VECTORS][HAND_DIM], o[VECTORS][HAND_DIM], m[VECTORS];
    Vec l[VECTORS];  // in LANES parts
} __attribute__((aligned(64))) Hand;

typedef struct Tile {
    size_t at[TILE];          // where the rows of these 16 tokens are in the planes
    size_t next[TILE][TILE];  // and those of the tiles after it
    int tokens, prefetch;
} Tile;

// Asks for `bytes` bytes of what comes, `from` counted as if it were one tile: its row r stands for
// row r of the tile that comes TILE - r tiles later. So a tile is asked for row by row, from far
// ahead, and as many places of the memory are at work at a time.
INLINE void fetch(const void *plane, const Tile *tile, size_t from, size_t bytes, int dim,
                  size_t size)
{
    if (!tile->prefetch || from % 64 != 0) return;
    for (size_t at = from; at < from + bytes; at += 64) {
        size_t row = at / (dim * size), element = tile->next[TILE - 1 - row][row];
        __builtin_prefetch((const char *)plane + element * size + at % (dim * size), 0, 2);
    }
}

// n query vectors from `first` on over a tile.
INLINE void attend_tile(const AttendJob *job, Hand *hand, int first, int n, const Tile *tile,
                        int dim, int dtype)
{
    Vec sum[QUAD][TILE], acc[QUAD][STEP];
    float weight[QUAD][TILE] __attribute__((aligned(64)));
    VecInt lane;
    size_t size = dtype_size(dtype);
    EACH(j, LANES) lane[j] = j;

    // 1. Products, in LANES parts.
    for (int t = 0; t < TILE; t += STEP) {
        EACH(i, n) EACH(j, STEP) acc[i][j] = (Vec){0};
        for (int d = 0; d < dim; d += LANES) {
            Vec k[STEP];
            fetch(job->view.k, tile, (t * dim + d * STEP) * size, STEP * LANES * size, dim, size);
            EACH(j, STEP) k[j] = load_lanes(job->view.k, tile->at[t + j] + d, dtype);
            EACH(i, n) EACH(j, STEP) acc[i][j] += *(Vec *)(hand->q[first + i] + d) * k[j];
        }
        EACH(i, n) EACH(j, STEP) sum[i][t + j] = acc[i][j];
    }

    // 2. Their sums by pairs: in the end a lane has the score of a token. Then the weights.
    EACH(i, n)
    {
        UNROLLED for (int left = TILE / 2; left >= TILE / LANES; left /= 2) EACH(j, left)
            sum[i][j] =
                evens(sum[i][2 * j], sum[i][2 * j + 1]) + odds(sum[i][2 * j], sum[i][2 * j + 1]);
        float m = hand->m[first + i];
        Vec top = (Vec){0} + m;
        for (int j = 0; j < TILE / LANES; j++) {
            sum[i][j] = choose(lane < tile->tokens - j * LANES, sum[i][j], (Vec){0} - INFINITY);
            top = choose(sum[i][j] > top, sum[i][j], top);
        }
        UNROLLED for (int left = LANES; left > 1; left /= 2) top =
            choose(evens(top, top) > odds(top, top), evens(top, top), odds(top, top));
        float base = top[0] == -INFINITY ? 0 : top[0];  // -inf minus -inf is NaN
        if (top[0] != m) {
            float shrink = expf(m - base);
            for (int d = 0; d < dim; d += LANES) *(Vec *)(hand->o[first + i] + d) *= shrink;
            hand->l[first + i] *= shrink;
            hand->m[first + i] = top[0];
        }
        for (int j = 0; j < TILE / LANES; j++) {
            Vec p = exp_lanes(sum[i][j] - base) * HEADROOM;
            hand->l[first + i] += p;
            *(Vec *)(weight[i] + j * LANES) = p;
        }
    }

    // 3. The values.
    for (int d = 0; d < dim; d += STEP * LANES) {
        EACH(i, n) EACH(j, STEP) acc[i][j] = *(Vec *)(hand->o[first + i] + d + j * LANES);
        for (int t = 0; t < tile->tokens; t++) {
            Vec v[STEP];
            fetch(job->view.v, tile, (d * TILE + t * STEP * LANES) * size, STEP * LANES * size, dim,
                  size);
            EACH(j, STEP) v[j] = load_lanes(job->view.v, tile->at[t] + d + j * LANES, dtype);
            EACH(i, n) EACH(j, STEP) acc[i][j] += weight[i][t] * v[j];
        }
        EACH(i, n) EACH(j, STEP) * (Vec *)(hand->o[first + i] + d + j * LANES) = acc[i][j];
    }
}

// Out of line and with constants: inlined into its caller, it runs at half the speed.
typedef void TileFunction(const AttendJob *job, Hand *hand, int first, const Tile *tile);
#define ATTEND_TILE(name, n, dim, dtype) \
    __attribute__((noinline)) static void name(const AttendJob *job, Hand *hand, int first, \
                                               const Tile *tile) \
    { \
        attend_tile(job, hand, first, n, tile, dim, dtype); \
    }
#define ATTEND_TILES(suffix, dtype) \
    ATTEND_TILE(attend_64_1_##suffix, 1, 64, dtype) \
    ATTEND_TILE(attend_64_4_##suffix, 4, 64, dtype) \
    ATTEND_TILE(attend_128_1_##suffix, 1, 128, dtype) \
    ATTEND_TILE(attend_128_4_##suffix, 4, 128, dtype)
ATTEND_TILES(f32, PAGED_F32)
ATTEND_TILES(f16, PAGED_F16)
ATTEND_TILES(bf16, PAGED_BF16)
static TileFunction *const tile_functions[3][2][2] = {
    {{attend_64_1_f32, attend_64_4_f32}, {attend_128_1_f32, attend_128_4_f32}},
    {{attend_64_1_f16, attend_64_4_f16}, {attend_128_1_f16, attend_128_4_f16}},
    {{attend_64_1_bf16, attend_64_4_bf16}, {attend_128_1_bf16, attend_128_4_bf16}}};

// The walk for a tile: rows of one block follow each other. After the last token, the first one is
// repeated.
static void find_rows(const AttendJob *job, int seq, int kv_head, int start, int end, size_t *at)
{
    const View *view = &job->view;
    int block_size = view->tables ? view->layout.block_size : 1;  // a dense copy has no blocks
    for (int t = 0; t < TILE; t++) {
        if (start + t >= end)
            at[t] = at[0];
        else if (t > 0 && (start + t) % block_size != 0)
            at[t] = at[t - 1] + view->layout.head_dim;
        else
            at[t] = token_offset(view, seq, start + t, kv_head);
    }
}

// n rows of one sequence, from r on, for KV heads kv_head to kv_head + heads - 1.
static void attend_rows(const AttendJob *job, int r, int n, int kv_head, int heads)
{
    const QueryToken *row = job->view.queries + r;
    int dim = job->view.layout.head_dim, group = job->num_q_heads / job->view.layout.num_kv_heads;
    int count = n * group, end = row[n - 1].position + 1;  // count: query vectors of a KV head
    TileFunction *const *function = tile_functions[job->view.layout.dtype][dim == 128];
    size_t vector[VECTORS];
    Hand hand;
    Tile tile;
    for (int i = 0; i < heads * count; i++) {
        vector[i] = (size_t)(r + i % count / group) * job->num_q_heads;
        vector[i] += (kv_head + i / count) * group + i % group;
        for (int d = 0; d < dim; d++) hand.q[i][d] = job->q[vector[i] * dim + d] * job->scale;
        memset(hand.o[i], 0, dim * sizeof(float));
        hand.l[i] = (Vec){0};
        hand.m[i] = -INFINITY;
    }
    int tiles = ceil_div(end, TILE) * heads;  // tile t: of head t % heads
    for (int t = -TILE; t < tiles; t++) {     // those below 0 just look up what comes
        int start = t / heads * TILE, first = t % heads * count;
        int ahead = t + TILE < tiles ? t + TILE : tiles - 1;
        memcpy(tile.at, tile.next[0], sizeof tile.at);
        memmove(tile.next[0], tile.next[1], sizeof tile.next - sizeof tile.at);
        find_rows(job, row->seq, kv_head + ahead % heads, ahead / heads * TILE, end,
                  tile.next[TILE - 1]);
        tile.prefetch = t + 1 < tiles;
        if (t < 0) continue;
        for (int i = 0, some; i < count; i += some) {  // rows that see all of the tile, or one row
            int visible = row[i / group].position + 1 - start;
            tile.tokens = visible < TILE ? visible : TILE;
            some = visible < TILE ? group : count - i;
            for (int j = i; j < i + some && visible > 0; tile.prefetch = 0) {
                int quad = i + some - j >= QUAD;
                function[quad](job, &hand, first + j, &tile);
                j += quad ? QUAD : 1;
            }
        }
    }
    for (int i = 0; i < heads * count; i++) {
        float l = 0;
        EACH(j, LANES) l += hand.l[i][j];
        for (int d = 0; d < dim; d++) job->out[vector[i] * dim + d] = l != 0 ? hand.o[i][d] / l : 0;
        if (job->lse) job->lse[vector[i]] = hand.m[i] + logf(l / HEADROOM);
    }
}

// Attention of a whole step, or 0 if its shape is one for attend_row(). A piece of work is some
// rows of one sequence, up to a position that is a multiple of `rows`, for all KV heads; or, where
// there are fewer pieces than threads, for some of them.
static int attend_on_cpu(const AttendJob *job)
{
    int kv_heads = job->view.layout.num_kv_heads, group = job->num_q_heads / kv_heads,
        dim = job->view.layout.head_dim;
    int threads = 1, seqs = 1;
    if ((dim != 64 && dim != 128) || group > VECTORS) return 0;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    for (int r = 1; r < job->view.num_query_tokens; r++)
        seqs += job->view.queries[r].seq != job->view.queries[r - 1].seq;
    int rows = seqs == job->view.num_query_tokens ? 1 : VECTORS / group,
        heads = VECTORS / (rows * group);
    if (heads > kv_heads) heads = kv_heads;
    while (heads > 1 && seqs * ceil_div(kv_heads, heads) < threads) heads = ceil_div(heads, 2);
    int parts = ceil_div(kv_heads, heads);
    int64_t items = (int64_t)job->view.num_query_tokens * parts;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) if (items * heads * job->view.max_seq_len > \
                                               2 * THREADS_FROM / dim)
#endif
    for (int64_t i = 0; i < items; i++) {
        int r = (int)(i / parts), h = (int)(i % parts) * heads, n = 1;
        const QueryToken *row = job->view.queries + r,
                         *end = job->view.queries + job->view.num_query_tokens;
        if (r > 0 && row[-1].seq == row->seq && row->position % rows != 0) continue;  // no start
        while (row + n < end && row[n].seq == row->seq && row[n].position % rows != 0) n++;
        attend_rows(job, r, n, h, kv_heads - h < heads ? kv_heads - h : heads);
    }
    return 1;
}

#else  // another compiler: attend_row() does it all
static int attend_on_cpu(const AttendJob *job) { return (void)job, 0; }
#endif

// ---- GPU --------------------------------------------------------------------------------------

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")  // so that arrays can live in registers
#else
#define UNROLL
#endif

// Rung 3 of the ladder, paged and split (rungs 1 and 2: paged.cu.c). The sequence is cut into
// splits of SPLIT tokens, each a thread block, so that one long sequence fills the whole GPU; a
// second kernel merges them. A lane holds 8 neighbouring elements, which is 16 bytes of a 16-bit
// type, the most that one load can bring, and only as many lanes share a vector as it needs:
// several tokens to a warp, and fewer shuffles a sum. Up to `heads` query heads of a group use each
// K and V that was loaded. Memory answers after some 600 ns, so many loads must be in flight: the
// walk through the table is done first, for the whole split, and a lane then has K and V of
// IN_FLIGHT tokens on their way before it waits.
enum { SPLIT = 512, VEC = 8, IN_FLIGHT = 4, MAX_HEADS = 8 };

typedef struct __attribute__((aligned(16), may_alias)) Words {
    uint32_t w[4];
} Words;
typedef size_t __attribute__((may_alias)) Offset;

// Elements at to at + VEC - 1 of a plane, as they are stored; those from `count` on are 0.
DEVICE void load_words(const void *plane, size_t at, int dtype, int count, Words *x)
{
    if (count >= VEC && at % VEC == 0) {
        const Words *from = (const Words *)((const char *)plane + at * dtype_size(dtype));
        x[0] = from[0];
        if (dtype == PAGED_F32) x[1] = from[1];
        return;
    }
    for (int i = 0; i < VEC; i++) {
        uint32_t bits = 0;
        if (i < count && dtype == PAGED_F32) bits = ((const uint32_t *)plane)[at + i];
        if (i < count && dtype != PAGED_F32) bits = ((const uint16_t *)plane)[at + i];
        if (dtype == PAGED_F32)
            x[i / 4].w[i % 4] = bits;
        else
            x[0].w[i / 2] = i % 2 ? x[0].w[i / 2] | bits << 16 : bits;
    }
}

// Element i of what load_words() loaded.
DEVICE float word_element(const Words *x, int i, int dtype)
{
    if (dtype == PAGED_F32) return bits_float(x[i / 4].w[i % 4]);
    uint16_t h = (uint16_t)(x[0].w[i / 2] >> i % 2 * 16);
    return dtype == PAGED_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

// Lanes that share a vector: the smallest power of two that holds it.
HD static int lanes_per_vector(int head_dim)
{
    int lanes = 1;
    while (lanes * VEC < head_dim) lanes *= 2;
    return lanes;
}

typedef struct SplitJob {
    AttendJob attend;
    float *partial;  // states, [num_query_tokens][num_q_heads][num_splits][head_dim + 2]
    int num_splits;
} SplitJob;

DEVICE void attend_split(const SplitJob *s, int dtype, int heads)
{
    const AttendJob *job = &s->attend;
    const View *view = &job->view;
    int head_dim = view->layout.head_dim, group = job->num_q_heads / view->layout.num_kv_heads;
    int tiles = (group + heads - 1) / heads;  // of query heads, in a group
    int row = blockIdx.x, kv_head = blockIdx.y / tiles, split = blockIdx.z;
    int head = kv_head * group + blockIdx.y % tiles * heads, end_head = (kv_head + 1) * group;
    int lanes = lanes_per_vector(head_dim), tokens = THREADS / lanes;
    int d = threadIdx.x % lanes * VEC, token = threadIdx.x / lanes;  // elements d.. of which token
    int start = split * SPLIT, left = view->queries[row].position + 1 - start;
    int count = left < SPLIT ? left : SPLIT;  // tokens of this split; none if it begins too late
    size_t vector = ((size_t)row * job->num_q_heads + head) * head_dim;

    // 1. The walk through the table, and the queries.
    Offset *offset = (Offset *)shared;  // [SPLIT]
    for (int t = threadIdx.x; t < count; t += THREADS)
        offset[t] = token_offset(view, view->queries[row].seq, start + t, kv_head);
    __syncthreads();
    float q[MAX_HEADS][VEC], o[MAX_HEADS][VEC], m[MAX_HEADS], l[MAX_HEADS];
    UNROLL
    for (int h = 0; h < heads; h++) {
        m[h] = -INFINITY;
        l[h] = 0;
        for (int i = 0; i < VEC; i++) {
            int live = head + h < end_head && d + i < head_dim;
            q[h][i] = live ? job->q[vector + h * head_dim + d + i] * job->scale : 0;
            o[h][i] = 0;
        }
    }

    // 2. IN_FLIGHT tokens at a time: all loads first, then scores, then the sum.
    for (int base = token; base - token < count; base += tokens * IN_FLIGHT) {
        Words k[IN_FLIGHT][2], v[IN_FLIGHT][2];
        for (int u = 0; u < IN_FLIGHT; u++) {
            int t = base + u * tokens;
            size_t at = t < count ? offset[t] + d : 0;
            load_words(view->k, at, dtype, t < count ? head_dim - d : 0, k[u]);
            load_words(view->v, at, dtype, t < count ? head_dim - d : 0, v[u]);
        }
        UNROLL
        for (int h = 0; h < heads; h++) {
            float score[IN_FLIGHT], new_m = m[h];
            for (int u = 0; u < IN_FLIGHT; u++) {
                score[u] = 0;
                for (int i = 0; i < VEC; i++) score[u] += q[h][i] * word_element(k[u], i, dtype);
                for (int bits = lanes / 2; bits > 0; bits /= 2)
                    score[u] += __shfl_xor_sync(ALL_LANES, score[u], bits);
                if (base + u * tokens >= count) score[u] = -INFINITY;
                new_m = fmaxf(new_m, score[u]);
            }
            float base = new_m == -INFINITY ? 0 : new_m;  // as -inf minus -inf is NaN
            float shrink = expf(m[h] - base);
            l[h] *= shrink;
            for (int i = 0; i < VEC; i++) o[h][i] *= shrink;
            for (int u = 0; u < IN_FLIGHT; u++) {
                float p = expf(score[u] - base) * HEADROOM;
                l[h] += p;
                for (int i = 0; i < VEC; i++) o[h][i] += p * word_element(v[u], i, dtype);
            }
            m[h] = new_m;
        }
    }

    // 3. The states of all tokens in hand become one, for each head.
    float *states = shared + SPLIT * sizeof(size_t) / sizeof(float), all_m, all_l;
    UNROLL
    for (int h = 0; h < heads; h++) {
        if (head + h >= end_head) break;
        float *state = states + token * (head_dim + 2);
        for (int i = 0; i < VEC; i++)
            if (d + i < head_dim) state[2 + d + i] = o[h][i];
        if (d == 0) state[0] = m[h], state[1] = l[h];
        __syncthreads();
        size_t to = ((size_t)row * job->num_q_heads + head + h) * s->num_splits + split;
        float *partial = s->partial + to * (head_dim + 2);
        for (int i = threadIdx.x; i < head_dim; i += THREADS) {
            partial[2 + i] = merge(states, tokens, head_dim, i, &all_m, &all_l);
            if (i == 0) partial[0] = all_m, partial[1] = all_l;
        }
        __syncthreads();
    }
}

// In C++ this would be a template; here it is a forced-inline body with constant arguments.
#define ATTEND_SPLIT(suffix, dtype, heads) \
    KERNEL(attend_split_##suffix, SplitJob) { attend_split(&job, dtype, heads); }
ATTEND_SPLIT(f32_1, PAGED_F32, 1)
ATTEND_SPLIT(f32_4, PAGED_F32, 4)
ATTEND_SPLIT(f32_8, PAGED_F32, 8)
ATTEND_SPLIT(f16_1, PAGED_F16, 1)
ATTEND_SPLIT(f16_4, PAGED_F16, 4)
ATTEND_SPLIT(f16_8, PAGED_F16, 8)
ATTEND_SPLIT(bf16_1, PAGED_BF16, 1)
ATTEND_SPLIT(bf16_4, PAGED_BF16, 4)
ATTEND_SPLIT(bf16_8, PAGED_BF16, 8)

KERNEL(merge_splits, SplitJob)  // of row x and query head y
{
    int head_dim = job.attend.view.layout.head_dim;
    int splits = job.attend.view.queries[blockIdx.x].position / SPLIT + 1;
    size_t to = (size_t)blockIdx.x * job.attend.num_q_heads + blockIdx.y;
    const float *states = job.partial + to * job.num_splits * (head_dim + 2);
    for (int d = threadIdx.x; d < head_dim; d += THREADS) {
        float m, l, o = merge(states, splits, head_dim, d, &m, &l);
        job.attend.out[to * head_dim + d] = l != 0 ? o / l : 0;
        if (d == 0 && job.attend.lse) job.attend.lse[to] = m + logf(l / HEADROOM);
    }
}

static void attend_on_gpu(const AttendJob *attend, void *workspace)
{
    static const Entry split[3][3] = {
        {ENTRY(attend_split_f32_1), ENTRY(attend_split_f32_4), ENTRY(attend_split_f32_8)},
        {ENTRY(attend_split_f16_1), ENTRY(attend_split_f16_4), ENTRY(attend_split_f16_8)},
        {ENTRY(attend_split_bf16_1), ENTRY(attend_split_bf16_4), ENTRY(attend_split_bf16_8)}};
    const View *view = &attend->view;
    int head_dim = view->layout.head_dim;
    int kv_heads = view->layout.num_kv_heads;
    int group = attend->num_q_heads / kv_heads;
    int wide = (group > 1) + (group > 4);
    int heads = wide ? 4 * wide : 1;
    int tokens = THREADS / lanes_per_vector(head_dim);
    int shared_floats = SPLIT * (int)(sizeof(size_t) / sizeof(float)) + tokens * (head_dim + 2);
    SplitJob job = {*attend, (float *)workspace, ceil_div(view->max_seq_len, SPLIT)};
    launch(split[view->layout.dtype][wide], "attend_split", view->num_query_tokens,
           kv_heads * ceil_div(group, heads), job.num_splits, shared_floats, &job);
    LAUNCH(merge_splits, view->num_query_tokens, attend->num_q_heads, 1, 0, job);
}

// ---- which path -------------------------------------------------------------------------------

// A grid has at most 65535 splits; longer sequences go the plain way.
static int splits(const AttendJob *job)
{
    return job->view.layout.device != PAGED_CPU && job->view.max_seq_len <= 65535 * SPLIT;
}

// Bytes of memory that attend_fast() needs; SIZE_MAX if that overflows.
static size_t fast_workspace(const AttendJob *job)
{
    const View *view = &job->view;
    if (!splits(job)) return 0;
    size_t states = multiply((size_t)view->num_query_tokens, job->num_q_heads);
    states = multiply(states, ceil_div(view->max_seq_len, SPLIT));
    size_t bytes = multiply(states, (view->layout.head_dim + 2) * sizeof(float));
    return bytes ? bytes : SIZE_MAX;
}

// Attention of a whole step. Returns 0 if its shape is one for the plain code.
static int attend_fast(const AttendJob *job, void *workspace)
{
    if (job->view.layout.device == PAGED_CPU) return attend_on_cpu(job);
    if (splits(job)) attend_on_gpu(job, workspace);
    return splits(job);
}
