// fast.c: the optional fast paths of attend(), for ATTEND_FAST. paged.cu.c includes this file if it
// is compiled with -DPAGED_FAST, after the plain code, which does the same sums and is to be read
// first: attend_row() on the CPU, attend_paged() on a GPU.
//
// On the CPU: for gcc (12 and later) and clang, every head_dim that is a multiple of 16, in vectors
// as wide as the processor has. What differs from attend_row():
//
//   - A tile is 64 tokens, so that what is done once per tile hardly counts.
//   - Up to eight query vectors (heads of a group, rows of a chunk) go through a tile together: an
//     element of K or V, once in a register, serves them all.
//   - All heads of a tile come before the next tile, so that memory is read in long runs.
//   - While a tile is computed, the next one is asked for (prefetch), in eight places at a time.
//   - exp() is a polynomial, of a vector of scores at once.
//
// What a query vector adds up, and in which order, does not depend on its company, on block sizes
// or on threads, so gather and paged agree in every bit here, too.

// ---- CPU --------------------------------------------------------------------------------------

#ifdef _OPENMP
#include <omp.h>
#endif
#ifndef THREADS_FROM
#define THREADS_FROM 200000  // elements of K and V: some 50 microseconds; less is not shared
#endif

#if (__GNUC__ >= 12 || defined(__clang__)) && !defined(__CUDACC__)
#ifdef __F16C__
#include <immintrin.h>
#endif
#define PICK4(i) i, i + 2, i + 4, i + 6
#define PICK8(i) PICK4(i), PICK4(i + 8)
#ifdef __AVX512F__
#define LANES 16
#define PICK(i) PICK8(i), PICK8(i + 16)
#elif defined(__AVX__)
#define LANES 8
#define PICK(i) PICK8(i)
#else
#define LANES 4
#define PICK(i) PICK4(i)
#endif
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")  // so that arrays can live in registers
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#define EACH(i, n) UNROLLED for (int i = 0; i < (n); i++)

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

enum { TOKENS = 64, RUNS = 4 };        // in a tile; a run is 16 neighbours
enum { PARTS = TOKENS / LANES };       // vectors that hold a number for each token
enum { HAND = 8192, VECTORS = 128 };   // query vectors in hand: elements, and number
enum { SUMS = LANES == 16 ? 16 : 8 };  // vectors of sums that fit into the registers

INLINE Vec choose(Ints yes, Vec x, Vec y) { return (Vec)(((Ints)x & yes) | ((Ints)y & ~yes)); }
INLINE Vec evens(Vec x, Vec y) { return __builtin_shufflevector(x, y, PICK(0)); }
INLINE Vec odds(Vec x, Vec y) { return __builtin_shufflevector(x, y, PICK(1)); }

// LANES elements of K or V. For f16, compilers do not find the instruction themselves.
INLINE Vec load_lanes(const char *from, int dtype)
{
    if (dtype == PAGED_F32) return *(const Floats *)from;
    Halves h = *(const Halves *)from;
#if defined(__F16C__) && LANES == 16
    if (dtype == PAGED_F16) return (Vec)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
    if (dtype == PAGED_BF16)
        return (Vec)((Bits)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h) << 16);
#elif defined(__F16C__) && LANES == 8
    if (dtype == PAGED_F16) return (Vec)_mm256_cvtph_ps((__m128i)h);
#endif
    Bits bits = __builtin_convertvector(h, Bits);
    if (dtype == PAGED_BF16) return (Vec)(bits << 16);
    Vec x = (Vec)((bits & 0x7fff) << 13) * 0x1p112f;  // as in f16_to_f32()
    return (Vec)((bits & 0x8000) << 16 | (Bits)x | ((Bits)(x >= 65536.0f) & 0x7f800000));
}

// 2^x for x <= 0: with x = n + r it is 2^n times a polynomial, the series of e^(r log 2). A NaN
// stays one. Below -94 it is 0: times HEADROOM, that would be a subnormal number.
INLINE Vec exp2_lanes(Vec x)
{
    const float rounder = 0x1.8p23f;  // adding it leaves no bits for a fraction
    Vec n = x + rounder;
    Vec r = x - (n - rounder);
    Vec p = 0.00961812911f + r * (0.00133335581f + r * 0.000154035304f);
    p = 1 + r * (0.693147181f + r * (0.240226507f + r * (0.0555041087f + r * p)));
    p *= (Vec)(((Bits)n << 23) + 0x3f800000);  // n into the exponent
    return (Vec)((Ints)p & ~(x < -94.0f));
}

// Sums across the lanes of n vectors, by pairs of neighbours: x[0] ends with LANES / n partial sums
// of each vector.
INLINE void add_across(Vec *x, int n)
{
    UNROLLED for (n /= 2; n > 0; n /= 2) EACH(j, n)
    {
        x[j] = evens(x[2 * j], x[2 * j + 1]) + odds(x[2 * j], x[2 * j + 1]);
    }
}

typedef struct Hand {  // the query vectors that go through a sequence together, and their state
    size_t count;
    Vec q[HAND / LANES];  // [head_dim / LANES][count], times scale / log(2)
    float *o[VECTORS];    // where the output goes; until then, the sum of weights times V
    float m[VECTORS];     // the largest score, as a power of 2
    Vec l[VECTORS];       // the sum of the weights, in LANES parts
} Hand;

typedef struct Tile {
    const char *k, *v;  // of a head
    const size_t *at;   // [TOKENS], bytes from there to the rows of the tokens
    const char *next_k, *next_v;
    const size_t *next;  // likewise, of the tile that comes next; or NULL
    int tokens, row_bytes;
    const char *line;  // of the next tile: the cache line to be asked for
    int left, row;     // bytes left of its row; rows of K and V before the next one
} Tile;

// Asks for `bytes` bytes of the next tile: a row of K, a row of V, and so on. Neighbours in this
// order are in different blocks, so many places of the memory are at work at a time.
INLINE void fetch(Tile *tile, int bytes)
{
    for (; bytes > 0; bytes -= 64) {
        if (tile->left <= 0) {
            if (tile->row == 2 * TOKENS) return;
            tile->line = (tile->row % 2 ? tile->next_v : tile->next_k) + tile->next[tile->row / 2];
            tile->left = tile->row_bytes;
            tile->row++;
        }
        __builtin_prefetch(tile->line, 0, 2);  // to the L2 cache
        tile->line += 64;
        tile->left -= 64;
    }
}

// Makes weights of the scores of a query vector, and raises m and l. Returns the factor for o.
__attribute__((noinline)) static float weigh(Vec *score, int tokens, float *m, Vec *l)
{
    Ints lane;
    EACH(i, LANES) lane[i] = i;
    Vec unseen = (Vec){0} - INFINITY;
    Vec top = (Vec){0} + *m;
    if (tokens < TOKENS) {
        EACH(j, PARTS) score[j] = choose(lane < tokens - j * LANES, score[j], unseen);
    }
    EACH(j, PARTS) top = choose(score[j] > top, score[j], top);
    UNROLLED for (int left = LANES; left > 1; left /= 2)
    {
        top = choose(evens(top, top) > odds(top, top), evens(top, top), odds(top, top));
    }
    float base = top[0] == -INFINITY ? 0 : top[0];  // -inf minus -inf is NaN
    float shrink = top[0] == *m ? 1 : exp2f(*m - base);
    Vec sum = *l * shrink;
    EACH(j, PARTS)
    {
        score[j] = exp2_lanes(score[j] - base) * HEADROOM;
        sum += score[j];
    }
    *m = top[0];
    *l = sum;
    return shrink;
}

// n query vectors over a tile, `width` rows or columns of it at a time.
INLINE void attend_tile(Tile *tile, Hand *hand, int first, int n, int dtype)
{
    const int width = n * 4 > SUMS ? SUMS / n : 4;  // so that n * width sums stay in registers
    const int step = LANES * (int)dtype_size(dtype);
    Vec score[8][PARTS];
    Vec sum[8][LANES];
    Vec acc[8][4];
    Vec x[4];
    float shrink[8];

    // 1. The scores. Each is a sum in LANES parts, first of all.
    for (int t = 0; t < tile->tokens; t += LANES) {
        for (int u = 0; u < LANES; u += width) {
            const Vec *q = hand->q + first;
            const char *k[4];
            EACH(j, width) k[j] = tile->k + tile->at[t + u + j];
            EACH(i, n) EACH(j, width) acc[i][j] = (Vec){0};
            for (int d = 0; d < tile->row_bytes; d += step, q += hand->count) {
                fetch(tile, width * step);
                EACH(j, width) x[j] = load_lanes(k[j] + d, dtype);
                EACH(i, n) EACH(j, width) acc[i][j] += q[i] * x[j];
            }
            EACH(i, n) add_across(acc[i], width);
            EACH(i, n) sum[i][u / width] = acc[i][0];
        }
        EACH(i, n) add_across(sum[i], LANES / width);
        EACH(i, n) score[i][t / LANES] = sum[i][0];
    }

    // 2. Their weights.
    EACH(i, n) shrink[i] = weigh(score[i], tile->tokens, &hand->m[first + i], &hand->l[first + i]);

    // 3. The values. The last columns may be fewer than `width`: some are added up in vain then.
    for (int d = 0; d < tile->row_bytes; d += width * step) {
        int column[4];
        EACH(j, width) column[j] = min_int(d + j * step, tile->row_bytes - step);
        EACH(i, n) EACH(j, width) acc[i][j] = (Vec){0};
        for (int t = 0; t < tile->tokens; t++) {
            const char *v = tile->v + tile->at[t];
            fetch(tile, width * step);
            EACH(j, width) x[j] = load_lanes(v + column[j], dtype);
            EACH(i, n) EACH(j, width) acc[i][j] += ((float *)score[i])[t] * x[j];
        }
        EACH(i, n) EACH(j, width)
        {
            Floats *o = (Floats *)hand->o[first + i] + d / step + j;
            if (column[j] == d + j * step) *o = *o * shrink[i] + acc[i][j];
        }
    }
}

// Out of line and with constants: inlined into its caller, it runs at half the speed.
typedef void TileFunction(Tile tile, Hand *hand, int first);
#define TILE_FUNCTION(n, dtype) \
    __attribute__((noinline)) static void attend_##n##_##dtype(Tile tile, Hand *hand, int first) \
    { \
        attend_tile(&tile, hand, first, n, dtype); \
    }
#define TILE_FUNCTIONS(n) \
    TILE_FUNCTION(n, PAGED_F32) TILE_FUNCTION(n, PAGED_F16) TILE_FUNCTION(n, PAGED_BF16)
TILE_FUNCTIONS(1)
TILE_FUNCTIONS(2)
TILE_FUNCTIONS(4)
TILE_FUNCTIONS(8)
static TileFunction *const tile_functions[4][3] = {
    {attend_1_PAGED_F32, attend_1_PAGED_F16, attend_1_PAGED_BF16},
    {attend_2_PAGED_F32, attend_2_PAGED_F16, attend_2_PAGED_BF16},
    {attend_4_PAGED_F32, attend_4_PAGED_F16, attend_4_PAGED_BF16},
    {attend_8_PAGED_F32, attend_8_PAGED_F16, attend_8_PAGED_BF16}};

typedef struct Piece {  // of the work: some rows of one sequence, some KV heads
    const AttendJob *job;
    int first_row, rows, kv_head, heads, group;
} Piece;

// The walk for a tile: where the rows of n tokens from `start` on are, in bytes. A whole tile is
// read slot by slot across its runs, what is left at the end of a sequence as it comes.
static void find_rows(const Piece *piece, int start, int n, size_t *at)
{
    const View *view = &piece->job->view;
    const PoolConfig *c = &view->layout;
    int seq = view->queries[piece->first_row].seq;
    int run = TOKENS / RUNS;
    size_t size = dtype_size(c->dtype);
    size_t next = size * c->head_dim;  // from a row to the next one of its block
    if (!view->tables) next *= c->num_kv_heads;
    memset(at, 0, TOKENS * sizeof *at);  // what is not used is loaded, too
    for (int t = 0, end = n; t < n; end = n) {
        size_t row = size * token_offset(view, seq, start + t, piece->kv_head);
        if (view->tables) end = min_int(n, t + (c->block_size - (start + t) % c->block_size));
        for (; t < end; t++, row += next) at[n < TOKENS ? t : t % run * RUNS + t / run] = row;
    }
}

// Rows `row` to `row + rows - 1` of a piece over a tile, head by head.
static void attend_heads(const Piece *piece, Hand *hand, const size_t *at, const size_t *next,
                         int tokens, int row, int rows)
{
    const View *view = &piece->job->view;
    const PoolConfig *c = &view->layout;
    const char *k = (const char *)view->k;
    const char *v = (const char *)view->v;
    int row_bytes = c->head_dim * (int)dtype_size(c->dtype);
    size_t head = row_bytes;  // bytes from one to the next
    if (view->tables) head *= c->block_size;
    for (int h = 0; h < piece->heads; h++, k += head, v += head) {
        Tile tile = {k, v, at, k + head, v + head, at, tokens, row_bytes, NULL, 0, 0};
        if (h == piece->heads - 1) {
            tile.next_k = (const char *)view->k;
            tile.next_v = (const char *)view->v;
            tile.next = next;
        }
        if (!tile.next) tile.row = 2 * TOKENS;
        int i = (h * piece->rows + row) * piece->group;
        int end = i + rows * piece->group;
        for (int power = 3; power >= 0; power--)
            for (; i + (1 << power) <= end; i += 1 << power) {
                tile_functions[power][c->dtype](tile, hand, i);
                tile.row = 2 * TOKENS;  // all has been asked for
            }
    }
}

static void take_in_hand(const Piece *piece, Hand *hand)
{
    const AttendJob *job = piece->job;
    int dim = job->view.layout.head_dim;
    double factor = job->scale / 0.69314718055994531;
    hand->count = piece->heads * piece->rows * piece->group;
    for (size_t i = 0; i < hand->count; i++) {
        size_t row = piece->first_row + i / piece->group % piece->rows;
        size_t head = piece->kv_head + i / piece->group / piece->rows;
        size_t at = (row * job->num_q_heads + head * piece->group + i % piece->group) * dim;
        hand->o[i] = job->out + at;
        hand->m[i] = -INFINITY;
        hand->l[i] = (Vec){0};
        memset(hand->o[i], 0, dim * sizeof(float));
        for (int d = 0; d < dim; d++)
            hand->q[d / LANES * hand->count + i][d % LANES] = (float)(job->q[at + d] * factor);
    }
}

static void finish(const AttendJob *job, const Hand *hand, size_t i)
{
    int dim = job->view.layout.head_dim;
    float l = 0;
    EACH(j, LANES) l += hand->l[i][j];
    for (int d = 0; d < dim; d++) hand->o[i][d] = l != 0 ? hand->o[i][d] / l : 0;
    double lse = hand->m[i] * 0.69314718055994531 + log(l / HEADROOM);
    if (job->lse) job->lse[(hand->o[i] - job->out) / dim] = (float)lse;
}

static void attend_piece(const Piece *piece)
{
    const QueryToken *query = piece->job->view.queries + piece->first_row;
    int end = query[piece->rows - 1].position + 1;
    size_t at[TOKENS];
    size_t next[TOKENS];
    Hand hand;
    take_in_hand(piece, &hand);
    find_rows(piece, 0, min_int(end, TOKENS), next);
    for (int start = 0; start < end; start += TOKENS) {
        int left = end - start - TOKENS;  // tokens after this tile
        int row = 0;                      // from this one on they see all of it
        while (row < piece->rows && query[row].position + 1 - start < TOKENS) row++;
        memcpy(at, next, sizeof at);
        if (left > 0) find_rows(piece, start + TOKENS, min_int(left, TOKENS), next);
        attend_heads(piece, &hand, at, left > 0 ? next : NULL, TOKENS, row, piece->rows - row);
        while (row-- > 0 && query[row].position >= start) {
            int visible = query[row].position + 1 - start;
            find_rows(piece, start, visible, at);
            attend_heads(piece, &hand, at, NULL, visible, row, 1);
        }
    }
    for (size_t i = 0; i < hand.count; i++) finish(piece->job, &hand, i);
}

// Attention of a whole step, or 0 if its shape is one for attend_row(). The pieces are as large as
// the hand is, unless there would be fewer of them than threads.
static int attend_on_cpu(const AttendJob *job)
{
    const View *view = &job->view;
    int total = view->num_query_tokens;
    int kv_heads = view->layout.num_kv_heads;
    int group = job->num_q_heads / kv_heads;
    int vectors = min_int(VECTORS, HAND / view->layout.head_dim);
    int most_heads = kv_heads;
    int rows;
    if (view->layout.head_dim % 16 != 0 || group > vectors) return 0;
#ifdef _OPENMP
    most_heads = ceil_div((int64_t)kv_heads * view->num_seqs, omp_get_max_threads());
    double elements = 2.0 * total * kv_heads * view->max_seq_len * view->layout.head_dim;
#pragma omp parallel if (elements > THREADS_FROM)
#pragma omp single
#endif
    for (int row = 0; row < total; row += rows) {
        const QueryToken *query = view->queries + row;
        int most = min_int(vectors / group, total - row);
        for (rows = 1; rows < most && query[rows].seq == query->seq;) rows++;
        int heads = min_int(vectors / (rows * group), most_heads);
        for (int h = 0; h < kv_heads; h += heads) {
            Piece piece = {job, row, rows, h, min_int(heads, kv_heads - h), group};
#ifdef _OPENMP
#pragma omp task firstprivate(piece)
#endif
            attend_piece(&piece);
        }
    }
    return 1;
}

#else  // another compiler: attend_row() does it all
static int attend_on_cpu(const AttendJob *job) { return (void)job, 0; }
#endif

// ---- GPU --------------------------------------------------------------------------------------
// The upper rungs of the ladder; 1, gather, and 2, paged, are in paged.cu.c.
//
//     3 split          A sequence is cut into splits of 512 tokens, each a thread block, so that
//                      one long sequence fills the whole GPU; a second kernel merges them.
//     4 tensor cores   In 16 bits: one instruction multiplies 16 x 16 by 16 x 8 numbers, so that
//                      eight query heads cost what one does.
//
// Memory answers after some 600 ns, so many loads must be in flight, each of 16 bytes a lane, the
// most that there is. The walk through the table therefore comes first, for the whole split.

#ifdef __CUDACC__
#define EVERY(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)  // arrays stay in registers
#else
#define EVERY(i, n) for (int i = 0; i < (n); i++)
#define __syncwarp() __shfl_xor_sync(ALL_LANES, 0, 0)
#endif

enum { SPLIT = 512, IN_FLIGHT = 4, MMA_DIM = 128 };  // tokens; the largest head_dim of rung 4
typedef size_t __attribute__((may_alias)) Offset;
#define OFFSETS ((Offset *)shared)  // [SPLIT], of the tokens in a plane, in bytes
typedef struct __attribute__((aligned(16), may_alias)) Words {
    uint32_t w[4];  // each is an element of 32 bits, or two of 16
} Words;

typedef struct SplitJob {
    AttendJob attend;
    float *partial;  // states, [num_query_tokens][num_q_heads][num_splits][head_dim + 2]
    int num_splits;
    float room;  // on every weight: see HEADROOM
    int heads;   // query heads of a thread block, all of one group
    int parts;   // of the tokens of a split: each head has a state for each part
    int lanes;   // that compute such a state
} SplitJob;

typedef struct Split {  // what a lane works on
    size_t vector;      // its query vector, of [num_query_tokens][num_q_heads]
    int live;           // is there such a head?
    int part;
    int count;  // tokens of the split; none if the row does not reach it
    int head_dim;
    float *states;  // of its head, [parts][head_dim + 2]
} Split;

// Also walks through the table.
DEVICE Split find_split(const SplitJob *s)
{
    const View *view = &s->attend.view;
    const QueryToken *row = view->queries + blockIdx.x;
    int group = s->attend.num_q_heads / view->layout.num_kv_heads;
    int tiles = (group + s->heads - 1) / s->heads;  // thread blocks for a group
    int kv_head = blockIdx.y / tiles;
    int h = threadIdx.x / s->lanes % s->heads;
    int head = blockIdx.y % tiles * s->heads + h;
    int start = blockIdx.z * SPLIT;
    Split split;
    split.vector = (size_t)blockIdx.x * s->attend.num_q_heads + kv_head * group + head;
    split.live = head < group;
    split.part = threadIdx.x / s->lanes / s->heads;
    split.count = row->position + 1 - start < SPLIT ? row->position + 1 - start : SPLIT;
    split.head_dim = view->layout.head_dim;
    split.states = (float *)(OFFSETS + SPLIT) + h * s->parts * (split.head_dim + 2);
    for (int t = threadIdx.x; t < SPLIT; t += THREADS) {
        size_t at = t < split.count ? token_offset(view, row->seq, start + t, kv_head) : 0;
        OFFSETS[t] = at * dtype_size(view->layout.dtype);
    }
    __syncthreads();
    return split;
}

// Of the vector of token t, 16 bytes in each of `count` equal pieces of MMA_DIM elements, in the
// first from element d on. What does not exist is 0, as 0 times NaN would be NaN.
DEVICE void load(const Split *split, const void *plane, int t, int d, int dtype, int count,
                 Words *words)
{
    const char *vector = (const char *)plane + OFFSETS[t];
    EVERY (i, count) {
        int at = d + MMA_DIM / count * i;
        words[i] = (Words){{0, 0, 0, 0}};
        if (t < split->count && at < split->head_dim)
            words[i] = *(const Words *)(vector + at * dtype_size(dtype));
    }
}

DEVICE float element(const uint32_t *words, int i, int dtype)
{
    if (dtype == PAGED_F32) return bits_float(words[i]);
    uint16_t bits = (uint16_t)(words[i / 2] >> i % 2 * 16);
    return dtype == PAGED_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// m and l join o in the state of this part; then the states of all parts become one.
DEVICE void merge_parts(const SplitJob *s, const Split *split, float m, float l)
{
    int first = threadIdx.x % s->lanes;
    size_t size = split->head_dim + 2;
    float *partial = s->partial + (split->vector * s->num_splits + blockIdx.z) * size;
    if (first == 0) {
        split->states[split->part * size] = m;
        split->states[split->part * size + 1] = l;
    }
    __syncthreads();
    if (!split->live) return;
    for (int d = split->part * s->lanes + first; d < split->head_dim; d += s->parts * s->lanes) {
        partial[2 + d] = merge(split->states, s->parts, split->head_dim, d, &m, &l);
        if (d > 0) continue;
        partial[0] = m;
        partial[1] = l;
    }
}

// Rung 3, split. Against rung 2: only as many lanes share a vector as 16 bytes a lane fill, so that
// there are several tokens to a warp, and fewer shuffles to a token. The heads of a group load the
// same at the same time: once from memory, then from a cache.
DEVICE void attend_split(const SplitJob *s, int dtype)
{
    const int vec = 16 / (int)dtype_size(dtype);
    const Split split = find_split(s);
    int d = threadIdx.x % s->lanes * vec;
    float q[8] = {0}, o[8] = {0}, m = -INFINITY, l = 0;
    if (split.count <= 0) return;
    for (int i = 0; i < vec && split.live && d < split.head_dim; i++)
        q[i] = s->attend.q[split.vector * split.head_dim + d + i] * s->attend.scale;

    for (int base = split.part; base - split.part < split.count; base += s->parts * IN_FLIGHT) {
        Words k[IN_FLIGHT], v[IN_FLIGHT];
        float p[IN_FLIGHT] = {0}, new_m = m;
        EVERY (u, IN_FLIGHT) {
            load(&split, s->attend.view.k, base + u * s->parts, d, dtype, 1, k + u);
            load(&split, s->attend.view.v, base + u * s->parts, d, dtype, 1, v + u);
        }
        __syncwarp();  // so that all loads are under way before the first is used
        EVERY (u, IN_FLIGHT)
            EVERY (i, vec) p[u] += q[i] * element(k[u].w, i, dtype);
        for (int bits = s->lanes / 2; bits > 0; bits /= 2)
            EVERY (u, IN_FLIGHT) p[u] += __shfl_xor_sync(ALL_LANES, p[u], bits);
        EVERY (u, IN_FLIGHT) {
            if (base + u * s->parts >= split.count) p[u] = -INFINITY;
            new_m = fmaxf(new_m, p[u]);
        }
        float zero = new_m == -INFINITY ? 0 : new_m;  // as -inf minus -inf is NaN
        float shrink = expf(m - zero);
        m = new_m;
        l *= shrink;
        EVERY (i, vec) o[i] *= shrink;
        EVERY (u, IN_FLIGHT) {
            float weight = expf(p[u] - zero) * s->room;
            l += weight;
            EVERY (i, vec) o[i] += weight * element(v[u].w, i, dtype);
        }
    }

    float *state = split.states + split.part * (split.head_dim + 2);
    for (int i = 0; i < vec && d < split.head_dim; i++) state[2 + d + i] = o[i];
    merge_parts(s, &split, m, l);
}

// Rung 4, tensor cores. One instruction of a warp, mma, does d += a * b, where a is 16 x 16 and b
// 16 x 8 numbers of 16 bits, and d is 16 x 8 in float32. The matrices lie spread over the lanes.
// With r = lane / 4 and c = lane % 4 * 2, a lane holds
//
//     of a   columns c, c + 1 of rows r and r + 8, then columns c + 8, c + 9 of both
//     of b   rows c, c + 1, c + 8, c + 9 of column r
//     of d   columns c, c + 1 of rows r and r + 8
//
// (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"). Scores are q times K:
// the rows are query heads, the columns tokens. A dot product may be summed in any order, so 16
// bytes of K, as loaded, are a lane's part of b for two mma. The lane then has the scores of those
// heads and tokens whose weights are its part of a in weights times V: only maxima and sums go from
// lane to lane.
//
// 16 bits are too few for q and for weights. Each is split: x rounded, and what that cuts off. Rows
// 0 to 7, one for each head, take the high parts, rows 8 to 15 the low ones, and in the end the two
// results are added. bf16 has only 8 bits, so that q needs a third part.
DEVICE void mma(float *d, const uint32_t *a, const uint32_t *b, int dtype)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MMA(type) \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 " \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
    if (dtype == PAGED_F16)
        MMA("f16");
    else
        MMA("bf16");
#elif defined(__CUDACC__)
    __trap();  // the instruction exists from sm_80 on
#else  // the stand-in: each lane puts its parts where they belong, then reads rows and columns
    static float a_whole[WARPS][16][16], b_whole[WARPS][16][8];
    int warp = threadIdx.x / WARP;
    int r = threadIdx.x % WARP / 4;
    int c = threadIdx.x % 4 * 2;
    for (int i = 0; i < 8; i++)
        a_whole[warp][r + i / 2 % 2 * 8][c + i / 4 * 8 + i % 2] = element(a, i, dtype);
    for (int i = 0; i < 4; i++) b_whole[warp][c + i / 2 * 8 + i % 2][r] = element(b, i, dtype);
    __syncwarp();  // all have written
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 16; j++)
            d[i] += a_whole[warp][r + i / 2 * 8][j] * b_whole[warp][j][c + i % 2];
    __syncwarp();  // all have read
#endif
}

// Rounds two floats to 16 bits each, and leaves in x what that cuts off.
DEVICE uint32_t take_pair(float *x, int dtype)
{
    uint32_t pair = 0;
    EVERY (i, 2) {
        uint32_t bits = dtype == PAGED_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
#ifdef __CUDA_ARCH__  // it has an instruction for f16
        if (dtype == PAGED_F16) bits = __half_as_ushort(__float2half_rn(x[i]));
#endif
        pair |= bits << i * 16;
        x[i] -= element(&pair, i, dtype);
    }
    return pair;
}

// The sum of two parts. If the high one is infinite or NaN, the low one means nothing.
DEVICE float both(float high, float low) { return fabsf(high) < INFINITY ? high + low : high; }

DEVICE void attend_mma(const SplitJob *s, int dtype)
{
    const Split split = find_split(s);
    int r = threadIdx.x % WARP / 4;  // the lane's head
    int c = threadIdx.x % 4 * 2;
    float x[32] = {0}, largest = 0x1p-100f, unit = 1;
    uint32_t q[8][4], rest[8][4] = {{0}};
    float o[16][4] = {{0}}, m = -INFINITY, l = 0;
    if (split.count <= 0) return;

    // 1. The query: those elements that the lane will have of K. For f16, it is divided by a power
    //    of two so that its largest element is 2^14 or more: any q fits in, and keeps 22 bits.
    EVERY (i, 32) {
        int d = i / 8 * 32 + c * 4 + i % 8;
        if (split.live && d < split.head_dim)
            x[i] = s->attend.q[split.vector * split.head_dim + d] * s->attend.scale;
        largest = fmaxf(largest, fabsf(x[i]));
    }
    for (int bits = 1; bits < 4; bits *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, bits));
    if (dtype == PAGED_F16) unit = bits_float(float_bits(largest) & 0x7f800000) * 0x1p-14f;
    EVERY (i, 32) x[i] *= 1 / unit;
    EVERY (i, 16) {
        q[i / 2][i % 2 * 2] = take_pair(x + 2 * i, dtype);
        q[i / 2][i % 2 * 2 + 1] = take_pair(x + 2 * i, dtype);
        rest[i / 2][i % 2 * 2] = take_pair(x + 2 * i, dtype);
    }

    for (int base = split.part * 16; base < split.count; base += WARPS * 16) {
        Words k[2][4], v[4][2];
        EVERY (i, 2) load(&split, s->attend.view.k, base + r + i * 8, c * 4, dtype, 4, k[i]);
        EVERY (i, 4)
            load(&split, s->attend.view.v, base + c + i / 2 * 8 + i % 2, r * 8, dtype, 2, v[i]);
        __syncwarp();

        // 2. Scores.
        float score[2][4] = {{0}}, more[2][4] = {{0}}, p[4], new_m = m;
        EVERY (i, 16) {
            const uint32_t *b = k[i % 2][i / 4].w + i / 2 % 2 * 2;
            mma(score[i % 2], q[i / 2], b, dtype);
            if (dtype == PAGED_BF16) mma(more[i % 2], rest[i / 2], b, dtype);
        }
        EVERY (i, 4) {
            float low = score[i / 2][2 + i % 2] + more[i / 2][i % 2];
            p[i] = both(score[i / 2][i % 2], low) * unit;
            if (base + i / 2 * 8 + c + i % 2 >= split.count) p[i] = -INFINITY;
            new_m = fmaxf(new_m, p[i]);
        }
        for (int bits = 1; bits < 4; bits *= 2)
            new_m = fmaxf(new_m, __shfl_xor_sync(ALL_LANES, new_m, bits));

        // 3. Weights.
        uint32_t weight[4];
        float zero = new_m == -INFINITY ? 0 : new_m;
        float shrink = expf(m - zero);
        m = new_m;
        l *= shrink;
        EVERY (i, 4) l += p[i] = expf(p[i] - zero) * s->room;
        EVERY (i, 4) weight[i] = take_pair(p + i / 2 * 2, dtype);
        EVERY (i, 4) l -= p[i];  // what the two parts do not hold

        // 4. Values: b is an element of 8 vectors, of two tokens in a word.
        EVERY (i, 16) {
            uint32_t b[2] = {0};
            EVERY (j, 4) {
                uint32_t bits = v[j][i / 8].w[i % 8 / 2] >> i % 2 * 16;
                b[j / 2] |= (bits & 0xffff) << j % 2 * 16;
            }
            EVERY (j, 4) o[i][j] *= shrink;
            mma(o[i], weight, b, dtype);
        }
    }

    for (int bits = 1; bits < 4; bits *= 2) l += __shfl_xor_sync(ALL_LANES, l, bits);
    float *state = split.states + split.part * (split.head_dim + 2);
    EVERY (i, 32) {
        int d = i / 16 * 64 + (c + i % 2) * 8 + i / 2 % 8;
        if (d < split.head_dim) state[2 + d] = both(o[i / 2][i % 2], o[i / 2][2 + i % 2]);
    }
    merge_parts(s, &split, m, l);
}

// In C++ these would be templates; here they are forced-inline bodies with constant arguments.
KERNEL(attend_split_f32, SplitJob) { attend_split(&job, PAGED_F32); }
KERNEL(attend_split_f16, SplitJob) { attend_split(&job, PAGED_F16); }
KERNEL(attend_split_bf16, SplitJob) { attend_split(&job, PAGED_BF16); }
KERNEL(attend_mma_f16, SplitJob) { attend_mma(&job, PAGED_F16); }
KERNEL(attend_mma_bf16, SplitJob) { attend_mma(&job, PAGED_BF16); }

// The states of all splits of row x and query head y become the result.
KERNEL(merge_splits, SplitJob)
{
    int head_dim = job.attend.view.layout.head_dim;
    int splits = job.attend.view.queries[blockIdx.x].position / SPLIT + 1;
    size_t vector = (size_t)blockIdx.x * job.attend.num_q_heads + blockIdx.y;
    const float *states = job.partial + vector * job.num_splits * (head_dim + 2);
    for (int d = threadIdx.x; d < head_dim; d += THREADS) {
        float m, l;
        float o = merge(states, splits, head_dim, d, &m, &l);
        job.attend.out[vector * head_dim + d] = l != 0 ? o / l : 0;
        if (d == 0 && job.attend.lse) job.attend.lse[vector] = m + logf(l / job.room);
    }
}

// ---- which path -------------------------------------------------------------------------------

// Bytes of memory that attend_fast() needs on a GPU; SIZE_MAX if that overflows. A grid has at most
// 65535 splits, and a vector is at most 32 lanes of 16 bytes; other shapes go the plain way.
static size_t fast_workspace(const AttendJob *job)
{
    const View *view = &job->view;
    const PoolConfig *c = &view->layout;
    size_t vector_bytes = c->head_dim * dtype_size(c->dtype);
    if (c->device == PAGED_CPU || vector_bytes % 16 != 0 || vector_bytes > 512) return 0;
    if (view->max_seq_len > 65535 * SPLIT) return 0;
    size_t states = multiply((size_t)view->num_query_tokens, job->num_q_heads);
    states = multiply(states, ceil_div(view->max_seq_len, SPLIT));
    size_t bytes = multiply(states, (c->head_dim + 2) * sizeof(float));
    return bytes ? bytes : SIZE_MAX;
}

// Attention of a whole step. Returns 0 if its shape is one for the plain code.
static int attend_fast(const AttendJob *attend, void *workspace)
{
    static const Entry kernels[3][2] = {{ENTRY(attend_split_f32), NULL},
                                        {ENTRY(attend_split_f16), ENTRY(attend_mma_f16)},
                                        {ENTRY(attend_split_bf16), ENTRY(attend_mma_bf16)}};
    const View *view = &attend->view;
    const PoolConfig *c = &view->layout;
    if (c->device == PAGED_CPU) return attend_on_cpu(attend);
    if (!workspace) return 0;

    int group = attend->num_q_heads / c->num_kv_heads;
    int rung = c->dtype != PAGED_F32 && c->head_dim <= MMA_DIM ? 4 : 3;
#ifdef __CUDACC__
    cudaFuncAttributes attributes;
    CUDA(cudaFuncGetAttributes(&attributes, kernels[1][1]));
    if (attributes.ptxVersion < 80) rung = 3;  // compiled for GPUs without this mma
#endif
    float room = c->dtype == PAGED_F16 ? 0x1p15f : HEADROOM;  // f16 ends at 2^-24
    int num_splits = ceil_div(view->max_seq_len, SPLIT);
    SplitJob job = {*attend, (float *)workspace, num_splits, room, 8, WARPS, 4};
    if (rung == 3) {
        job.heads = job.lanes = 1;
        while (job.lanes * 16 < c->head_dim * (int)dtype_size(c->dtype)) job.lanes *= 2;
        while (job.heads < group && job.heads * job.lanes < THREADS) job.heads *= 2;
        job.parts = THREADS / job.lanes / job.heads;
    }
    launch(kernels[c->dtype][rung - 3], "attend_split or attend_mma", view->num_query_tokens,
           c->num_kv_heads * ceil_div(group, job.heads), num_splits,
           2 * SPLIT + job.heads * job.parts * (c->head_dim + 2), &job);
    LAUNCH(merge_splits, view->num_query_tokens, attend->num_q_heads, 1, 0, job);
    return 1;
}
