// fast.c: attention on the CPU as fast as plain C gets. paged.cu.c includes it behind attend_row(),
// which does the same sums, and which is the one to read first.
//
// For gcc (12 and later) and clang, head_dim 64 and 128, in vectors as wide as the processor has.
// What differs:
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
enum { QUAD = 4, VECTORS = 64 };      // query vectors at a time, and in hand
enum { STEP = LANES == 16 ? 4 : 2 };  // QUAD * STEP sums fit into the registers

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
    Vec n = x * 1.44269504f + rounder, r = (x * 1.44269504f - (n - rounder)) * 0.693147181f;
    Vec p = 1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f));
    p = 1 + r * (1 + r * (0.5f + r * (1 / 6.0f + r * p)));
    p *= (Vec)(((VecInt)n << 23) + 0x3f800000);  // n into the exponent
    return (Vec)((VecInt)p & ~(x < -87.0f));
}

typedef struct Hand {  // the query vectors that go through a sequence together, and their state
    float q[VECTORS][PAGED_MAX_HEAD_DIM], o[VECTORS][PAGED_MAX_HEAD_DIM], m[VECTORS];
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
INLINE void attend_tile(const Step *s, Hand *hand, int first, int n, const Tile *tile, int dim,
                        int dtype)
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
            fetch(s->k, tile, (t * dim + d * STEP) * size, STEP * LANES * size, dim, size);
            EACH(j, STEP) k[j] = load_lanes(s->k, tile->at[t + j] + d, dtype);
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
            sum[i][j] =
                choose(lane < tile->tokens - j * LANES, sum[i][j] * s->scale, (Vec){0} - INFINITY);
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
            Vec p = exp_lanes(sum[i][j] - base);
            hand->l[first + i] += p;
            *(Vec *)(weight[i] + j * LANES) = p;
        }
    }

    // 3. The values.
    for (int d = 0; d < dim; d += STEP * LANES) {
        EACH(i, n) EACH(j, STEP) acc[i][j] = *(Vec *)(hand->o[first + i] + d + j * LANES);
        for (int t = 0; t < tile->tokens; t++) {
            Vec v[STEP];
            fetch(s->v, tile, (d * TILE + t * STEP * LANES) * size, STEP * LANES * size, dim, size);
            EACH(j, STEP) v[j] = load_lanes(s->v, tile->at[t] + d + j * LANES, dtype);
            EACH(i, n) EACH(j, STEP) acc[i][j] += weight[i][t] * v[j];
        }
        EACH(i, n) EACH(j, STEP) * (Vec *)(hand->o[first + i] + d + j * LANES) = acc[i][j];
    }
}

// Out of line and with constants: inlined into its caller, it runs at half the speed.
typedef void TileFunction(const Step *s, Hand *hand, int first, const Tile *tile);
#define ATTEND_TILE(name, n, dim, dtype) \
    __attribute__((noinline)) static void name(const Step *s, Hand *hand, int first, \
                                               const Tile *tile) \
    { \
        attend_tile(s, hand, first, n, tile, dim, dtype); \
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

// The walk for a tile: rows of one block follow each other. Behind the last token, the first one is
// repeated.
static void find_rows(const Step *s, int seq, int kv_head, int start, int end, size_t *at)
{
    for (int t = 0; t < TILE; t++)
        at[t] = start + t >= end ? at[0]
                : t > 0 && (start + t) % s->layout.block_size != 0
                    ? at[t - 1] + s->layout.head_dim
                    : step_offset(s, seq, start + t, kv_head);
}

// n rows of one sequence, from r on, for KV heads kv_head to kv_head + heads - 1.
static void attend_rows(const Step *s, int r, int n, int kv_head, int heads)
{
    const Row *row = s->rows + r;
    int dim = s->layout.head_dim, group = s->num_q_heads / s->layout.num_kv_heads;
    int count = n * group, end = row[n - 1].position + 1;  // count: query vectors of a KV head
    TileFunction *const *function = tile_functions[s->layout.dtype][dim == 128];
    size_t vector[VECTORS];
    Hand hand;
    Tile tile;
    for (int i = 0; i < heads * count; i++) {
        vector[i] = (size_t)(r + i % count / group) * s->num_q_heads;
        vector[i] += (kv_head + i / count) * group + i % group;
        memcpy(hand.q[i], s->q + vector[i] * dim, dim * sizeof(float));
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
        find_rows(s, row->seq, kv_head + ahead % heads, ahead / heads * TILE, end,
                  tile.next[TILE - 1]);
        tile.prefetch = t + 1 < tiles;
        if (t < 0) continue;
        for (int i = 0, some; i < count; i += some) {  // rows that see all of the tile, or one row
            int visible = row[i / group].position + 1 - start;
            tile.tokens = visible < TILE ? visible : TILE;
            some = visible < TILE ? group : count - i;
            for (int j = i; j < i + some && visible > 0; tile.prefetch = 0) {
                int quad = i + some - j >= QUAD;
                function[quad](s, &hand, first + j, &tile);
                j += quad ? QUAD : 1;
            }
        }
    }
    for (int i = 0; i < heads * count; i++) {
        float l = 0;
        EACH(j, LANES) l += hand.l[i][j];
        for (int d = 0; d < dim; d++) s->out[vector[i] * dim + d] = l != 0 ? hand.o[i][d] / l : 0;
        if (s->lse) s->lse[vector[i]] = hand.m[i] + logf(l);
    }
}

// Attention of a whole step, or 0 if its shape is one for attend_row(). A piece of work is some
// rows of one sequence, up to a position that is a multiple of `rows`, for all KV heads; or, where there
// are fewer pieces than threads, for some of them.
static int attend_fast(const Step *s)
{
    int kv_heads = s->layout.num_kv_heads, group = s->num_q_heads / kv_heads,
        dim = s->layout.head_dim;
    int threads = 1, seqs = 1;
    if ((dim != 64 && dim != 128) || group > VECTORS) return 0;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    for (int r = 1; r < s->num_rows; r++) seqs += s->rows[r].seq != s->rows[r - 1].seq;
    int rows = seqs == s->num_rows ? 1 : VECTORS / group, heads = VECTORS / (rows * group);
    if (heads > kv_heads) heads = kv_heads;
    while (heads > 1 && seqs * ceil_div(kv_heads, heads) < threads) heads = ceil_div(heads, 2);
    int parts = ceil_div(kv_heads, heads);
    int64_t items = (int64_t)s->num_rows * parts;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) if (items * heads * s->longest > 2 * THREADS_FROM / dim)
#endif
    for (int64_t i = 0; i < items; i++) {
        int r = (int)(i / parts), h = (int)(i % parts) * heads, n = 1;
        const Row *row = s->rows + r, *end = s->rows + s->num_rows;
        if (r > 0 && row[-1].seq == row->seq && row->position % rows != 0) continue;  // no start
        while (row + n < end && row[n].seq == row->seq && row[n].position % rows != 0) n++;
        attend_rows(s, r, n, h, kv_heads - h < heads ? kv_heads - h : heads);
    }
    return 1;
}

#else  // another compiler: attend_row() does it all
static int attend_fast(const Step *s) { return (void)s, 0; }
#endif
