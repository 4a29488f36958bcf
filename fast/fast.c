// fast.c: the optional fast paths of attend(), for ATTEND_FAST. paged.cu.c includes this file if it
// is compiled with -DPAGED_FAST, after the plain code, which does the same sums and is to be read
// first: attend_row() on the CPU, attend_paged() on a GPU.
//
// On the CPU: for gcc (12 and later) and clang, every head_dim that is a multiple of 16, in vectors
// as wide as the processor has. What differs from attend_row():
//
//   - The tokens go in tiles of 64: what is done once per tile hardly counts.
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
#define EVENS4(i) i, i + 2, i + 4, i + 6
#define EVENS8(i) EVENS4(i), EVENS4(i + 8)
#ifdef __AVX512F__
#define LANES 16
#define EVENS(i) EVENS8(i), EVENS8(i + 16)
#elif defined(__AVX__)
#define LANES 8
#define EVENS(i) EVENS8(i)
#else
#define LANES 4
#define EVENS(i) EVENS4(i)
#endif
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__  // loops are unrolled so that arrays can live in registers
#define EACH(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

enum { TOKENS = 64, RUNS = 4 };        // in a tile; a run is 16 neighbours
enum { PARTS = TOKENS / LANES };       // vectors that hold a number for each token
enum { VECTORS = 64 };                 // query vectors that go through a sequence together, at most
enum { SUMS = LANES == 16 ? 16 : 8 };  // vectors of sums that fit into the registers

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

// The sum across the lanes of each of LANES vectors, by pairs of neighbours.
INLINE Vec add_across(Vec *x)
{
    int n = LANES;
    EACH(level, 4)
    {
        n /= 2;
        EACH(j, n)
        {
            Vec a = x[2 * j];
            Vec b = x[2 * j + 1];
            x[j] =
                __builtin_shufflevector(a, b, EVENS(0)) + __builtin_shufflevector(a, b, EVENS(1));
        }
    }
    return x[0];
}

// A query vector, and the state of its sums.
typedef struct Query {
    Vec q[PAGED_MAX_HEAD_DIM / LANES];  // times scale / log(2)
    Vec l;                              // the sum of the weights, in LANES parts
    float m;                            // the largest score so far, as a power of 2
    int visible;                        // how many tokens it sees
    float *o;  // where the output goes; until then, the sum of weights times V
} Query;

typedef struct Tile {
    const char *k, *v;  // of a head
    const size_t *at;   // [TOKENS], bytes from there to the rows of the tokens
} Tile;

// Row r, of 2 * TOKENS, of the next tile in the order in which they are asked for: K and V in turn,
// and the runs in turn, so that eight places of the memory are at work at a time.
INLINE const char *row_ahead(Tile next, int r)
{
    int token = r / 2 % RUNS * (TOKENS / RUNS) + r / 2 / RUNS;
    return (r % 2 ? next.v : next.k) + next.at[token];
}

// Makes weights of the scores of a query vector, and raises m and l. Returns the factor for o.
INLINE float weigh(Query *query, Vec *score, int tokens)
{
    for (int t = tokens; t < TOKENS; t++) ((float *)score)[t] = -INFINITY;
    Vec top = (Vec){0} + query->m;
    EACH(j, PARTS)
    {
        Ints higher = score[j] > top;
        top = (Vec)(((Ints)score[j] & higher) | ((Ints)top & ~higher));
    }
    float m = top[0];
    EACH(i, LANES) if (top[i] > m) m = top[i];
    float base = m == -INFINITY ? 0 : m;  // -inf minus -inf is NaN
    Vec shrink = exp2_lanes((Vec){0} + (query->m - base));
    query->m = m;
    query->l *= shrink;
    EACH(j, PARTS)
    {
        score[j] = exp2_lanes(score[j] - base) * HEADROOM;
        query->l += score[j];
    }
    return shrink[0];
}

// n query vectors over a tile, `width` rows or columns of it at a time.
INLINE void attend_tile(Tile tile, Tile next, Query *query, int tokens, int dim, int n, int dtype)
{
    const int width = n * 4 > SUMS ? SUMS / n : 4;  // so that n * width sums stay in registers
    const int step = LANES * (int)dtype_size(dtype);
    int row_bytes = dim * (int)dtype_size(dtype);
    Vec score[8][PARTS];
    Vec sum[8][LANES];
    Vec acc[8][4];
    Vec x[4];
    float shrink[8];

    // 1. The scores. Each is a sum in LANES parts, first of all.
    for (int t = 0; t < tokens; t += LANES) {
        for (int u = 0; u < LANES; u += width) {
            const char *k[4];
            const char *ahead[4];
            EACH(j, width) k[j] = tile.k + tile.at[t + u + j];
            EACH(j, width) ahead[j] = row_ahead(next, t + u + j);
            EACH(i, n) EACH(j, width) acc[i][j] = (Vec){0};
            for (int d = 0; d < row_bytes; d += step) {
                EACH(j, width) __builtin_prefetch(ahead[j] + d, 0, 2);  // to the L2 cache
                EACH(j, width) x[j] = load_lanes(k[j] + d, dtype);
                EACH(i, n) EACH(j, width) acc[i][j] += query[i].q[d / step] * x[j];
            }
            EACH(i, n) EACH(j, width) sum[i][u + j] = acc[i][j];
        }
        EACH(i, n) score[i][t / LANES] = add_across(sum[i]);
    }

    // 2. Their weights.
    EACH(i, n) shrink[i] = weigh(&query[i], score[i], tokens);

    // 3. The values. The last columns may be fewer than `width`: some are added up in vain then.
    int row = next.k == tile.k ? 2 * TOKENS : TOKENS;  // of the next tile, unless it is this one
    const char *line = NULL;
    int left = 0;  // bytes from there to the end of the row
    for (int d = 0; d < row_bytes; d += width * step) {
        int column[4];
        EACH(j, width) column[j] = min_int(d + j * step, row_bytes - step);
        EACH(i, n) EACH(j, width) acc[i][j] = (Vec){0};
        for (int t = 0; t < tokens; t++) {
            if (left <= 0 && row < 2 * TOKENS) {
                line = row_ahead(next, row++);
                left = row_bytes;
            }
            for (int b = 0; b < width * step && left > 0; b += 64, line += 64, left -= 64)
                __builtin_prefetch(line, 0, 2);
            EACH(j, width) x[j] = load_lanes(tile.v + tile.at[t] + column[j], dtype);
            EACH(i, n) EACH(j, width) acc[i][j] += ((float *)score[i])[t] * x[j];
        }
        EACH(i, n) EACH(j, width)
        {
            Floats *o = (Floats *)query[i].o + d / step + j;
            if (column[j] == d + j * step) *o = *o * shrink[i] + acc[i][j];
        }
    }
}

// The same with n and dtype as constants. Out of line: inlined, it runs at half the speed.
INLINE void attend_n(Tile tile, Tile next, Query *query, int tokens, int dim, int n, int dtype)
{
    if (n == 8) attend_tile(tile, next, query, tokens, dim, 8, dtype);
    if (n == 4) attend_tile(tile, next, query, tokens, dim, 4, dtype);
    if (n == 2) attend_tile(tile, next, query, tokens, dim, 2, dtype);
    if (n == 1) attend_tile(tile, next, query, tokens, dim, 1, dtype);
}
__attribute__((noinline)) static void attend_any(Tile tile, Tile next, Query *query, int tokens,
                                                 int dim, int n, int dtype)
{
    if (dtype == PAGED_F32) attend_n(tile, next, query, tokens, dim, n, PAGED_F32);
    if (dtype == PAGED_F16) attend_n(tile, next, query, tokens, dim, n, PAGED_F16);
    if (dtype == PAGED_BF16) attend_n(tile, next, query, tokens, dim, n, PAGED_BF16);
}

// The walk for a tile: where the rows of its tokens are. After the last token, its row again.
static void find_rows(const View *view, int seq, int start, int end, int kv_head, size_t *at)
{
    for (int t = 0; t < TOKENS; t++) {
        int position = t < end - start ? start + t : end - 1;
        at[t] = token_offset(view, seq, position, kv_head) * dtype_size(view->layout.dtype);
    }
}

static void start_query(const AttendJob *job, int row, int head, Query *query)
{
    int dim = job->view.layout.head_dim;
    size_t vector = ((size_t)row * job->num_q_heads + head) * dim;
    double factor = job->scale / 0.69314718055994531;
    float *q = (float *)query->q;
    for (int d = 0; d < dim; d++) q[d] = (float)(job->q[vector + d] * factor);
    query->o = job->out + vector;
    memset(query->o, 0, dim * sizeof(float));
    query->m = -INFINITY;
    query->l = (Vec){0};
    query->visible = job->view.queries[row].position + 1;
}

static void finish_query(const AttendJob *job, const Query *query)
{
    int dim = job->view.layout.head_dim;
    float l = 0;
    EACH(j, LANES) l += query->l[j];
    for (int d = 0; d < dim; d++) query->o[d] = l != 0 ? query->o[d] / l : 0;
    double lse = query->m * 0.69314718055994531 + log(l / HEADROOM);
    if (job->lse) job->lse[(query->o - job->out) / dim] = (float)lse;
}

// Some rows of one sequence, some KV heads.
static void attend_piece(const AttendJob *job, int row, int rows, int kv_head, int heads)
{
    const View *view = &job->view;
    const PoolConfig *c = &view->layout;
    int seq = view->queries[row].seq;
    int end = view->queries[row + rows - 1].position + 1;
    int group = job->num_q_heads / c->num_kv_heads;
    int vectors = rows * group;                              // for each KV head
    size_t head_bytes = c->head_dim * dtype_size(c->dtype);  // from one to the next
    if (view->tables) head_bytes *= c->block_size;
    Query query[VECTORS];
    for (int i = 0; i < heads * vectors; i++) {
        int head = (kv_head + i / vectors) * group + i % group;
        start_query(job, row + i % vectors / group, head, &query[i]);
    }
    size_t at[2][TOKENS];  // of this tile and the next, in turn
    find_rows(view, seq, 0, end, kv_head, at[0]);
    Tile tile = {(const char *)view->k, (const char *)view->v, at[0]};
    for (int start = 0; start < end; start += TOKENS) {
        Tile next = {tile.k, tile.v, at[start / TOKENS % 2 == 0]};
        find_rows(view, seq, start + TOKENS, end, kv_head, at[start / TOKENS % 2 == 0]);
        for (int h = 0; h < heads; h++) {
            Tile head = {tile.k + h * head_bytes, tile.v + h * head_bytes, tile.at};
            Tile ahead = {head.k + head_bytes, head.v + head_bytes, tile.at};
            if (h == heads - 1) ahead = next;
            for (int i = 0, n = 8; i < vectors; i += n, ahead = head) {
                Query *q = &query[h * vectors + i];
                int tokens = min_int(q->visible - start, TOKENS);
                while (i + n > vectors || min_int(q[n - 1].visible - start, TOKENS) > tokens)
                    n /= 2;  // all of them are to see the same
                if (tokens > 0) attend_any(head, ahead, q, tokens, c->head_dim, n, c->dtype);
            }
        }
        tile = next;
    }
    for (int i = 0; i < heads * vectors; i++) finish_query(job, &query[i]);
}

// Attention of a whole step, or 0 if its shape is one for attend_row(). The pieces are as large as
// can be, unless there would be fewer of them than threads.
static int attend_on_cpu(const AttendJob *job)
{
    const View *view = &job->view;
    int total = view->num_query_tokens;
    int kv_heads = view->layout.num_kv_heads;
    int group = job->num_q_heads / kv_heads;
    int most_heads = kv_heads;
    if (view->layout.head_dim % 16 != 0 || group > VECTORS) return 0;
#ifdef _OPENMP
    most_heads = ceil_div((int64_t)kv_heads * view->num_seqs, omp_get_max_threads());
    double elements = 2.0 * total * kv_heads * view->max_seq_len * view->layout.head_dim;
#pragma omp parallel if (elements > THREADS_FROM)
#pragma omp single
#endif
    for (int row = 0, rows; row < total; row += rows) {
        const QueryToken *query = view->queries + row;
        int most = min_int(VECTORS / group, total - row);
        for (rows = 1; rows < most && query[rows].seq == query->seq;) rows++;
        int heads = min_int(VECTORS / (rows * group), most_heads);
        for (int h = 0; h < kv_heads; h += heads) {
#ifdef _OPENMP
#pragma omp task
#endif
            attend_piece(job, row, rows, h, min_int(heads, kv_heads - h));
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
// same at the same time.
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
    launch(kernels[c->dtype][rung - 3], rung == 3 ? "attend_split" : "attend_mma",
           view->num_query_tokens, c->num_kv_heads * ceil_div(group, job.heads), num_splits,
           2 * SPLIT + job.heads * job.parts * (c->head_dim + 2), &job);
    LAUNCH(merge_splits, view->num_query_tokens, attend->num_q_heads, 1, 0, job);
    return 1;
}
