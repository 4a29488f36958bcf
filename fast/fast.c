// fast.c: the optional fast paths of attend(), taken with ATTEND_FAST. paged.cu.c includes it if it
// is compiled with -DPAGED_FAST, after the plain code, which computes the same sums and is to be
// read first: attend_row() for the CPU, attend_paged() for a GPU.

// A loop that compilers unroll (at -O3), so that its arrays become registers.
#define EACH(i, n) for (int i = 0; i < (n); i++)

// ---- CPU --------------------------------------------------------------------------------------
// For gcc (12 and later) and clang, in vectors as wide as the processor has. Unlike attend_row():
//   - Tokens are taken in tiles of 64: what is done once per tile hardly counts.
//   - Up to eight query vectors (heads of a group, rows of a chunk) go through a tile together, so
//     an element of K or V, once in a register, serves them all.
//   - All KV heads of a tile come before the next tile, so memory is read in long runs. A full tile
//     is walked in four runs at once, and each stop prefetches the same stop of what comes next.
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
#elif defined(__F16C__)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#endif
#define INLINE static inline __attribute__((always_inline))
#define KEEP_ORDER __asm__ volatile("" ::: "memory")  // compilers move no load across it

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef float Half __attribute__((vector_size(2 * LANES), may_alias));
typedef float Quad __attribute__((vector_size(16), may_alias));
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

enum { RUN = 16, RUNS = 4, TOKENS = RUNS * RUN };  // a tile is 64 neighbours, in 4 runs
enum { COLUMNS = PAGED_MAX_HEAD_DIM / LANES };     // a column of K or V has LANES elements
enum { VECTORS = 64 };                 // query vectors that go through a sequence together, at most
enum { SUMS = LANES == 16 ? 16 : 8 };  // vectors of sums that fit into the registers

typedef struct Tile {   // where the rows of its tokens are: k + at[t], v + at[t]
    const char *k, *v;  // the planes, from a KV head on
    size_t at[TOKENS];  // bytes
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
    Vec x = (Vec)((bits & 0x7fff) << 13) * 5.192296858534828e33f;  // 2^112, as in f16_to_f32()
    return (Vec)((bits & 0x8000) << 16 | (Bits)x | ((Bits)(x >= 65536.0f) & 0x7f800000));
}

// Returns e^x for x <= 0: with x = n log(2) + r it is 2^n times the series of e^r. NaN stays NaN.
// Below -65 it returns 0: times HEADROOM, the result would be a subnormal number.
INLINE Vec exp_lanes(Vec x)
{
    const float rounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for a fraction
    Vec n = x * 1.44269504f + rounder;
    Vec r = x - (n - rounder) * 0.693147181f;
    Vec p = 1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f));
    p = 1 + r * (1 + r * (1 / 2.0f + r * (1 / 6.0f + r * p)));
    p *= (Vec)(((Bits)n << 23) + 0x3f800000);  // n into the exponent
    return (Vec)((Bits)p & ~(Bits)(x < -65.0f));
}

// Adds up the lanes of x until four are left.
INLINE Quad fold(Vec x)
{
    if (LANES == 4) return *(Quad *)&x;
    Half half = ((Half *)&x)[0] + ((Half *)&x)[1];
    if (LANES == 8) return *(Quad *)&half;
    return ((Quad *)&half)[0] + ((Quad *)&half)[1];
}

// Returns a[0] + a[2], b[0] + b[2], a[1] + a[3], b[1] + b[3].
INLINE Quad add_halves(Quad a, Quad b)
{
    return __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
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
    for (int t = tokens; t < TOKENS; t++) ((float *)score)[t] = -INFINITY;
    float old_m = query->m;
    Vec top = (Vec){0} + old_m;
    EACH (i, TOKENS / LANES) {
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
    for (int i = 0; m[0] > old_m && i <= 1 + last; i++) {
        query->sum[i] *= shrink;
        query->lost[i] *= shrink;
    }
    Vec l = {0};
    EACH (i, TOKENS / LANES) {
        score[i] = exp_lanes(score[i] - m[0]) * HEADROOM;
        l += score[i];
    }
    add_exactly(query, 0, l);
}

// Takes n query vectors through the first tokens of a tile. next: what is read after it
INLINE void attend_tile(const Tile *tile, const Tile *next, Query *query, int tokens, int head_dim,
                        int n, int dtype)
{
    const int step = LANES * (int)dtype_size(dtype);
    const int last = (head_dim - 1) / LANES;  // column
    const int pair = min_int(2, SUMS / n);    // tokens of K at a time
    const int width = min_int(8, SUMS / n);   // columns of V at a time
    Vec score[8][TOKENS / LANES];             // in the order of the walk
    Vec sum[SUMS];
    Bits inside = {0};  // the lanes of the last column that belong to the row, not to another
    EACH (i, LANES)
        if (last * LANES + i < head_dim) inside[i] = 0xffffffff;

    // 1. The walk: a full tile in four runs at once, any other one from its first token on.
    size_t at[TOKENS], next_at[TOKENS];
    for (int stop = 0; stop < min_int(tokens + 1, TOKENS); stop++) {
        int t = stop;
        if (tokens == TOKENS) t = stop % RUNS * RUN + stop / RUNS;
        at[stop] = tile->at[t];
        next_at[stop] = next->at[t];
    }

    // 2. The scores.
    for (int stop = 0; stop < tokens; stop += pair) {
        const char *k[2], *next_k[2];
        EACH (j, pair) {
            k[j] = tile->k + at[stop + j];
            next_k[j] = next->k + next_at[stop + j];
        }
        EACH (i, SUMS) sum[i] = (Vec){0};
        for (int d = 0; d <= last; d++) {
            Vec x[2];
            if (d * step % 64 == 0)  // once for each cache line
                EACH (j, pair) __builtin_prefetch(next_k[j] + d * step, 0, 2);  // to L2
            KEEP_ORDER;
            EACH (j, pair) x[j] = load_lanes(k[j] + d * step, dtype);
            if (d == last)
                EACH (j, pair) x[j] = (Vec)((Bits)x[j] & inside);  // 0 times NaN would be NaN
            EACH (i, n) {
                Vec q = query[i].q[d];
                if (pair == 2) q = *(volatile Vec *)&query[i].q[d];  // gcc would load it twice
                EACH (j, pair) sum[i * pair + j] += q * x[j];
            }
        }
        for (int i = 0; i < n * pair; i += 4) {
            Quad even = add_halves(fold(sum[i]), fold(sum[i + 2]));
            Quad odd = add_halves(fold(sum[i + 1]), fold(sum[i + 3]));
            Quad four = add_halves(even, odd);
            EACH (j, min_int(4, n * pair))
                ((float *)score[(i + j) / pair])[stop + (i + j) % pair] = four[j];
        }
    }

    // 3. Their weights.
    EACH (i, n) weigh(&query[i], score[i], tokens, last);

    // 4. The values. After the last column comes it again, for nothing.
    int row = 0;    // of the next tile: it is prefetched once, row by row, however often this
    int ahead = 0;  // one is walked; and how many bytes of that row have been
    for (int d = 0; d <= last; d += width) {
        EACH (i, SUMS) sum[i] = (Vec){0};
        for (int stop = 0; stop < tokens; stop++) {
            const char *v = tile->v + at[stop];
            const char *next_v = next->v + next_at[row] + ahead;
            for (int i = 0; i < width * step; i += 64) __builtin_prefetch(next_v + i, 0, 2);
            ahead += width * step;
            if (ahead > last * step) {
                ahead = 0;
                row++;
            }
            KEEP_ORDER;
            EACH (j, width) {
                Vec x = load_lanes(v + min_int(d + j, last) * step, dtype);
                EACH (i, n) sum[i * width + j] += ((float *)score[i])[stop] * x;
            }
        }
        EACH (i, n)
            EACH (j, width)
                if (d + j <= last) add_exactly(&query[i], 1 + d + j, sum[i * width + j]);
    }
}

// attend_tile() with n and dtype as constants. Not inlined: the caller's variables would take
// registers from the sums.
__attribute__((noinline)) static void attend_tile_of(const Tile *tile, const Tile *next,
                                                     Query *query, int tokens, int head_dim, int n,
                                                     int dtype)
{
#define CASE(N, TYPE) \
    if (n == N && dtype == TYPE) attend_tile(tile, next, query, tokens, head_dim, N, TYPE);
#define CASES(N) CASE(N, PAGED_F32) CASE(N, PAGED_F16) CASE(N, PAGED_BF16)
    CASES(8) CASES(4) CASES(2) CASES(1)
}

static void start_query(const AttendJob *job, int row, int head, Query *query)
{
    int head_dim = job->view.config.head_dim;
    query->m = -__FLT_MAX__;  // not -infinity: -infinity less that would be NaN
    query->visible = job->view.queries[row].position + 1;
    query->at = ((size_t)row * job->num_q_heads + head) * head_dim;
    query->q[(head_dim - 1) / LANES] = (Vec){0};
    EACH (d, head_dim) ((float *)query->q)[d] = job->q[query->at + d] * job->scale;
    EACH (i, 1 + ceil_div(head_dim, LANES)) query->sum[i] = query->lost[i] = (Vec){0};
}

static void finish_query(const AttendJob *job, const Query *query)
{
    int head_dim = job->view.config.head_dim;
    const float *sum = (const float *)query->sum;
    const float *lost = (const float *)query->lost;
    double l = 0;
    EACH (i, LANES) l += (double)sum[i] + lost[i];
    EACH (d, head_dim) {
        float o = sum[LANES + d];
        if (fabsf(o) < INFINITY) o += lost[LANES + d];  // after infinity, that is NaN
        job->out[query->at + d] = l != 0 ? o / (float)l : 0;
    }
    if (job->lse) job->lse[query->at / head_dim] = (float)(query->m + log(l / HEADROOM));
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

// Finds the tile at `start`. After the last token of the sequence comes its row again.
static Tile find_tile(const View *view, int seq, int start, int end, int kv_head)
{
    Tile tile = {(const char *)view->k, (const char *)view->v, {0}};
    size_t at = 0;
    EACH (t, TOKENS) {
        if (start + t < end) at = token_offset(view, seq, start + t, kv_head);
        tile.at[t] = at * dtype_size(view->config.dtype);
    }
    return tile;
}

// Some rows of one sequence, some KV heads.
static void attend_piece(const AttendJob *job, int row, int rows, int kv_head, int heads)
{
    const View *view = &job->view;
    const PoolConfig *c = &view->config;
    int seq = view->queries[row].seq;
    int end = view->queries[row + rows - 1].position + 1;
    int group = job->num_q_heads / c->num_kv_heads;
    int count = rows * group;  // query vectors of a KV head
    size_t head_elements = token_offset(view, seq, 0, 1) - token_offset(view, seq, 0, 0);
    Query *query = (Query *)job->states + omp_get_thread_num() * VECTORS;  // [heads][count]
    EACH (i, heads * count) {
        int head = (kv_head + i / count) * group + i % group;
        start_query(job, row + i / group % rows, head, &query[i]);
    }
    Tile next = find_tile(view, seq, 0, end, kv_head);
    for (int start = 0; start < end; start += TOKENS)
        for (int head = 0; head < heads; head++) {
            Tile tile = next;
            Query *q = query + head * count;
            if (head < heads - 1) {
                next.k += head_elements * dtype_size(c->dtype);
                next.v += head_elements * dtype_size(c->dtype);
            } else if (start + TOKENS < end) {
                next = find_tile(view, seq, start + TOKENS, end, kv_head);
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
static int attend_on_cpu(Pool *pool, AttendJob *job)
{
    const View *view = &job->view;
    int total = view->num_query_tokens;
    int kv_heads = view->config.num_kv_heads;
    int group = job->num_q_heads / kv_heads;
    if (group > VECTORS || view->max_seq_len > INT_MAX - 2 * TOKENS) return -1;
    double elements = 2.0 * total * kv_heads * view->max_seq_len * view->config.head_dim;
    int threads = 1;
    if (elements > THREADS_FROM) threads = omp_get_max_threads();
    int most = min_int(VECTORS / group, ceil_div((int64_t)total * kv_heads, threads));
    size_t bytes = multiply(threads, VECTORS * sizeof(Query));
    if (memory_reserve(PAGED_CPU, &pool->states, &pool->states_bytes, bytes))
        return PAGED_OUT_OF_MEMORY;
    job->states = (float *)pool->states;
    OMP(omp parallel num_threads(threads))
    OMP(omp single)
    for (int row = 0, rows; row < total; row += rows) {
        const QueryToken *query = view->queries + row;
        for (rows = 1; rows < min_int(most, total - row) && query[rows].seq == query->seq;) rows++;
        int heads = most / rows;
        for (int h = 0; h < kv_heads; h += heads)
            OMP(omp task) attend_piece(job, row, rows, h, min_int(heads, kv_heads - h));
    }
    return PAGED_OK;
}

#else  // another compiler, or an x87, with floats of too many bits: attend_row() does it all
static int attend_on_cpu(Pool *pool, AttendJob *job) { return (void)pool, (void)job, -1; }
#endif

// ---- GPU --------------------------------------------------------------------------------------
// Rungs 3 and 4 of the ladder; 1, gather, and 2, paged, are in paged.cu.c. Rung 3, split: against
// rung 2, a sequence is cut into splits of 512 tokens, each for a thread block of its own, so that
// one long sequence fills the whole GPU. A second kernel merges them.

enum { SPLIT = 512 };
#ifndef __CUDACC__  // for the stand-in
#define __syncwarp() __shfl_xor_sync(ALL_LANES, 0, 0)
#endif

// Where split blockIdx.z of a row and query head has its state: job->states are
// [num_query_tokens][num_q_heads][splits][head_dim + 2], in global memory.
DEVICE float *split_state(const AttendJob *job, int row, int head)
{
    size_t vector = (size_t)row * job->num_q_heads + head;
    size_t split = vector * ceil_div(job->view.max_seq_len, SPLIT) + blockIdx.z;
    return job->states + split * (job->view.config.head_dim + 2);
}

KERNEL(attend_split, AttendJob)
{
    int start = blockIdx.z * SPLIT;
    int end = min_int(start + SPLIT, job.view.queries[blockIdx.x].position + 1);
    float *state = split_state(&job, blockIdx.x, blockIdx.y);
    if (start < end) attend_tokens(&job, blockIdx.y, start, end, state);
}

// Makes the result of a row and query head of the states of its splits, from split 0 on.
KERNEL(merge_splits, AttendJob)
{
    int splits = job.view.queries[blockIdx.x].position / SPLIT + 1;
    float *states = split_state(&job, blockIdx.x, blockIdx.y);
    merge(states, splits, job.view.config.head_dim, shared);
    __syncthreads();
    finish(&job, blockIdx.y, shared);
}

// Rung 4, tensor cores, for K and V in 16 bits and head_dim up to 128 in multiples of 8. Against
// rung 3, up to eight query heads of a group share all that is loaded and converted. A warp's
// instruction mma does d += a * b. Lane 4 * r + c holds
//
//     of a, 16 x 8   column c of rows r and r + 8, then column c + 4 of both
//     of b,  8 x 8   rows c and c + 4 of column r
//     of d, 16 x 8   columns 2 * c and 2 * c + 1 of row r, then of row r + 8
//
// (PTX ISA, "Matrix Fragments for mma.m16n8k8", .tf32). a and b are tf32, a float32 without its
// lower 13 bits. K and V fit; q and the weights are cut in two: row r has the upper 11 bits of the
// mantissa for query head r, row r + 8 the next 11. In the end both results are added.
//
// A warp takes 16 tokens at a time. The 16 bytes of a load are 8 elements:
//
//              lane 4 * r + c                               lane 5: r = 1, c = 1, head_dim 64
//     q        head r, elements 8 * c on, of each 32        head 1, elements 8 to 15, 40 to 47
//     K        tokens r / 2 * 4 + r % 2 and 2 more, same    tokens 1 and 3, the same elements
//     scores   head r, tokens 4 * c to 4 * c + 3            head 1, tokens 4 to 7
//     V        these tokens, elements 8 * r on, of each 64  tokens 4 to 7, elements 8 to 15
//     o        head r, elements 16 * c on, of each 64       head 1, elements 16 to 31
//
// K is b as it is loaded, two elements an mma, as a dot product may be summed in any order. Tokens
// 0 1 4 5 8 9 12 13 are the columns of one d, and 2 3 6 7 10 11 14 15 those of another: a lane has
// the scores of four neighbours, and their weights are its part of a for weights times V, two
// tokens an mma. Only maxima go from lane to lane.

typedef size_t __attribute__((may_alias)) Offset;
#define OFFSETS ((Offset *)shared)  // [SPLIT], of the tokens in a plane
typedef struct __attribute__((aligned(16), may_alias)) Piece {
    uint32_t words[4];  // 8 elements, one load of 16 bytes
} Piece;
enum { VALUES = 64, SUM = VALUES };  // in o: weights times V, then 4 floats for the sum of weights

// The pieces of a row go to `lanes` lanes in turn. Returns the index of element i of lane n.
DEVICE int element_of_lane(int i, int n, int lanes) { return (i / 8 * lanes + n) * 8 + i % 8; }

// Loads the pieces of lane n of token t. What does not exist is 0, as 0 times NaN would be NaN.
DEVICE void load_pieces(const View *view, const void *plane, int t, int count, int n, int lanes,
                        Piece *to)
{
    const uint16_t *row = (const uint16_t *)plane + OFFSETS[t];
    EACH (i, 16 / lanes) {
        int d = element_of_lane(i * 8, n, lanes);
        to[i] = (Piece){{0, 0, 0, 0}};
        if (t < count && d < view->config.head_dim) to[i] = *(const Piece *)(row + d);
    }
}

DEVICE uint32_t tf32(float x) { return float_bits(x) & 0xffffe000; }

// Returns the sum of both parts of column i of d. An infinite first part makes NaN of the other.
DEVICE float sum_of_parts(const float *d, int i)
{
    if (fabsf(d[i]) < INFINITY) return d[i] + d[i + 2];
    return d[i];
}

// a: two columns, to be cut in parts
DEVICE void mma(float *d, const float *a, float b0, float b1)
{
    uint32_t a0 = tf32(a[0]);
    uint32_t a1 = tf32(a[1]);
    uint32_t part[4] = {a0, tf32(a[0] - bits_float(a0)), a1, tf32(a[1] - bits_float(a1))};
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3]), "r"(float_bits(b0)),
                   "r"(float_bits(b1)));
#elif !defined(__CUDACC__)  // the stand-in: each lane puts its parts in place, then reads them all
    static float a_whole[WARPS][16][8], b_whole[WARPS][8][8];
    int warp = threadIdx.x / WARP;
    int r = threadIdx.x % WARP / 4;
    int c = threadIdx.x % 4;
    EACH (i, 4) a_whole[warp][r + i % 2 * 8][c + i / 2 * 4] = bits_float(part[i]);
    b_whole[warp][c][r] = bits_float(tf32(b0));
    b_whole[warp][c + 4][r] = bits_float(tf32(b1));
    __syncwarp();  // all have written
    EACH (i, 4)
        EACH (j, 8) d[i] += a_whole[warp][r + i / 2 * 8][j] * b_whole[warp][j][2 * c + i % 2];
    __syncwarp();  // all have read
#endif
}

// blockIdx: x is the row and which eight query heads of a group; y the KV head; z the split.
DEVICE void attend_mma(const AttendJob *job, int dtype)
{
    const View *view = &job->view;
    int head_dim = view->config.head_dim;
    int group = job->num_q_heads / view->config.num_kv_heads;
    int parts = ceil_div(group, 8);  // neighbours in the grid, so that they share the L2 cache
    int row = blockIdx.x / parts;
    int kv_head = blockIdx.y;
    int first = kv_head * group + blockIdx.x % parts * 8;   // query head
    int heads = min_int((kv_head + 1) * group - first, 8);  // from there on
    int warp = threadIdx.x / WARP;
    int r = threadIdx.x % WARP / 4;
    int c = threadIdx.x % 4;
    int count = min_int(view->queries[row].position + 1 - (int)blockIdx.z * SPLIT, SPLIT);
    if (count <= 0) return;

    // 1. The walk, for the whole split, so that later many loads can be in flight, with nothing to
    // wait for. After the last token comes it again.
    int seq = view->queries[row].seq;
    for (int t = threadIdx.x; t < SPLIT; t += THREADS)
        OFFSETS[t] = token_offset(view, seq, blockIdx.z * SPLIT + min_int(t, count - 1), kv_head);
    __syncthreads();

    // 2. The query: the elements that the lane will have of K.
    size_t vector = ((size_t)row * job->num_q_heads + first + r) * head_dim;
    float q[32] = {0}, o[VALUES + 4] = {0}, m = -__FLT_MAX__;  // -infinity less itself would be NaN
    EACH (i, 32) {
        int d = element_of_lane(i, c, 4);
        if (r < heads && d < head_dim) q[i] = job->q[vector + d];
    }
    __syncwarp();  // here and below: all loads are under way before the first is used
    EACH (i, 32) q[i] *= job->scale;

    for (int start = warp * 16; start < count; start += WARPS * 16) {
        Piece k[2][4], v[4][2];
        EACH (t, 2)
            load_pieces(view, view->k, start + r / 2 * 4 + t * 2 + r % 2, count, c, 4, k[t]);
        EACH (i, 4) load_pieces(view, view->v, start + c * 4 + i, count, r, 8, v[i]);
        __syncwarp();

        // 3. Scores.
        float score[2][4] = {{0}}, p[4];
        float old_m = m;
        EACH (i, 16)
            EACH (t, 2)
                mma(score[t], q + i * 2, load_element(k[t], i * 2, dtype),
                    load_element(k[t], i * 2 + 1, dtype));
        EACH (i, 4) {
            p[i] = sum_of_parts(score[i / 2], i % 2);
            if (start + c * 4 + i >= count) p[i] = -INFINITY;
            m = fmaxf(m, p[i]);
        }

        // 4. Weights.
        for (int bits = 1; bits < 4; bits *= 2) m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, bits));
        float shrink = expf(old_m - m);
        EACH (i, 4) p[i] = expf(p[i] - m) * HEADROOM;

        // 5. Values. The last mma are for l: as if V had columns of 1.
        EACH (i, VALUES + 4) o[i] *= shrink;
        EACH (i, 16)
            EACH (t, 2)
                mma(o + i * 4, p + t * 2, load_element(v[t * 2], i, dtype),
                    load_element(v[t * 2 + 1], i, dtype));
        EACH (t, 2) mma(o + SUM, p + t * 2, 1, 1);
    }

    // 6. The states of the warps, in shared memory, become one for each head.
    float *states = shared + 2 * SPLIT;  // [8][WARPS][head_dim + 2]
    float *state = states + (r * WARPS + warp) * (head_dim + 2);
    if (c == 0) {
        state[0] = m;
        state[1] = sum_of_parts(o + SUM, 0);
    }
    EACH (i, 32) {
        int d = element_of_lane(i / 2, 2 * c + i % 2, 8);
        if (d < head_dim) state[2 + d] = sum_of_parts(o + i / 2 * 4, i % 2);
    }
    __syncthreads();
    for (int h = 0; h < heads; h++)
        merge(states + h * WARPS * (head_dim + 2), WARPS, head_dim,
              split_state(job, row, first + h));
}

KERNEL(attend_mma_f16, AttendJob) { attend_mma(&job, PAGED_F16); }
KERNEL(attend_mma_bf16, AttendJob) { attend_mma(&job, PAGED_BF16); }

// ---- which path -------------------------------------------------------------------------------

// Attends for a whole step. Returns an error, or -1 if the shape is one for the plain code.
static int attend_fast(Pool *pool, AttendJob *job)
{
    const PoolConfig *c = &job->view.config;
    if (c->device == PAGED_CPU) return attend_on_cpu(pool, job);
    int rows = job->view.num_query_tokens;
    int heads = job->num_q_heads;
    int splits = ceil_div(job->view.max_seq_len, SPLIT);
    int parts = ceil_div(heads / c->num_kv_heads, 8);  // of a group, for attend_mma()
    size_t bytes = multiply(multiply(rows, heads), splits * (c->head_dim + 2) * sizeof(float));
    if (splits > 65535 || rows > INT_MAX / parts) return -1;  // more than a grid can have
    if (memory_reserve(c->device, &pool->states, &pool->states_bytes, bytes))
        return PAGED_OUT_OF_MEMORY;
    job->states = (float *)pool->states;
    int states = WARPS * (c->head_dim + 2);
    int mma_floats = 2 * SPLIT + 8 * states;
    int tensor_cores = c->dtype != PAGED_F32 && c->head_dim <= 128 && c->head_dim % 8 == 0;
#ifdef __CUDACC__
    static int compiled_for;  // 80 is the first generation whose mma knows tf32
    cudaFuncAttributes attributes;
    if (!compiled_for) {
        CUDA(cudaFuncGetAttributes(&attributes, attend_mma_f16));
        compiled_for = attributes.ptxVersion;
    }
    if (compiled_for < 80) tensor_cores = 0;
#endif
    if (!tensor_cores)
        LAUNCH(attend_split, rows, heads, splits, states, *job);
    else if (c->dtype == PAGED_F16)
        LAUNCH(attend_mma_f16, rows * parts, c->num_kv_heads, splits, mma_floats, *job);
    else
        LAUNCH(attend_mma_bf16, rows * parts, c->num_kv_heads, splits, mma_floats, *job);
    LAUNCH(merge_splits, rows, heads, 1, c->head_dim + 2, *job);
    return PAGED_OK;
}
