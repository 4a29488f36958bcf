// fast.c: the optional fast paths of attend(), for ATTEND_FAST. paged.cu.c includes this file if it
// is compiled with -DPAGED_FAST, after the plain code, which does the same sums and is to be read
// first: attend_row() on the CPU, attend_paged() on a GPU.

// A loop that compilers take apart (at -O3), so that its arrays become registers.
#define EACH(i, n) for (int i = 0; i < (n); i++)

// ---- CPU --------------------------------------------------------------------------------------
// For gcc (12 and later) and clang, in vectors as wide as the processor has. Against attend_row():
//   - The tokens go in tiles of 64: what is done once per tile hardly counts.
//   - Up to eight query vectors (heads of a group, rows of a chunk) go through a tile together: an
//     element of K or V, once in a register, serves them all.
//   - All heads of a tile come before the next tile, so that memory is read in long runs. What is
//     next is asked for meanwhile (prefetch), in eight places at a time.
//   - exp() is a polynomial, of a vector of scores at once.
// What a query vector adds up, and in which order, does not depend on its company, on block sizes
// or on threads, so gather and paged agree in every bit here, too.

#if (__GNUC__ >= 12 || defined(__clang__)) && !defined(__CUDACC__) && __FLT_EVAL_METHOD__ % 16 == 0
#ifdef _OPENMP
#include <omp.h>
#define OMP(text) _Pragma(#text)
#else
#define OMP(text)  // one thread
#define omp_get_max_threads() 1
#endif
#ifndef THREADS_FROM
#define THREADS_FROM 200000  // elements of K and V: some 50 microseconds; less is not shared
#endif
#define EVENS4(i) i, i + 2, i + 4, i + 6
#ifdef __AVX512F__
#include <immintrin.h>
#define LANES 16
#define EVENS(i) EVENS4(i), EVENS4(i + 8), EVENS4(i + 16), EVENS4(i + 24)
#elif defined(__F16C__)
#include <immintrin.h>
#define LANES 8
#define EVENS(i) EVENS4(i), EVENS4(i + 8)
#else
#define LANES 4
#define EVENS(i) EVENS4(i)
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

enum { RUN = 16, RUNS = 4, TOKENS = RUNS * RUN };  // a tile is 64 neighbours, in 4 runs
enum { VECTORS = 64 };                 // query vectors that go through a sequence together, at most
enum { SUMS = LANES == 16 ? 16 : 8 };  // vectors of sums that fit into the registers

// LANES elements of K or V. The intrinsics are what compilers do not find themselves.
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
    Vec x = (Vec)((bits & 0x7fff) << 13) * 0x1p112f;  // exponents count from -127, not -15
    return (Vec)((bits & 0x8000) << 16 | (Bits)x | ((Bits)(x >= 65536.0f) & 0x7f800000));
}

// e^x for x <= 0: with x = n log(2) + r it is 2^n times the series of e^r. A NaN stays one. Below
// -65 it is 0: times HEADROOM, that would be a subnormal number.
INLINE Vec exp_lanes(Vec x)
{
    const float rounder = 0x1.8p23f;  // adding it leaves no bits for a fraction
    Vec n = x * 1.44269504f + rounder;
    Vec r = x - (n - rounder) * 0.693147181f;
    Vec p = 1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f));
    p = 1 + r * (1 + r * (1 / 2.0f + r * (1 / 6.0f + r * p)));
    p *= (Vec)(((Bits)n << 23) + 0x3f800000);  // n into the exponent
    return (Vec)((Bits)p & ~(Bits)(x < -65.0f));
}

// The sum across the lanes of each of LANES vectors, by pairs of neighbours: x[2 * j] and the next
// become x[LANES + j], until one is left. x: [2 * LANES]
INLINE Vec add_across(Vec *x)
{
    EACH (j, LANES - 1)
        x[LANES + j] = __builtin_shufflevector(x[2 * j], x[2 * j + 1], EVENS(0)) +
                       __builtin_shufflevector(x[2 * j], x[2 * j + 1], EVENS(1));
    return x[2 * LANES - 2];
}

// A query vector, and the state of its sums.
typedef struct Query {
    Vec q[PAGED_MAX_HEAD_DIM / LANES];  // times scale
    Vec o[PAGED_MAX_HEAD_DIM / LANES];  // the sum of weights times V
    Vec l;                              // the sum of the weights, in LANES parts
    float m;                            // the largest score so far
    int visible;                        // how many tokens it sees
    size_t at;                          // where it begins in job->q
    size_t head;                        // bytes from the rows of the first KV head to its own
} Query;

// Makes weights of the scores of a query vector, raises m and l, and scales o to the new m.
INLINE void weigh(Query *query, Vec *score, int tokens, int dim)
{
    for (int t = tokens; t < TOKENS; t++) ((float *)score)[t] = -INFINITY;
    float old_m = query->m;
    Vec top = (Vec){0} + old_m;
    EACH (j, TOKENS / LANES) {
        Bits higher = (Bits)(score[j] > top);
        top = (Vec)(((Bits)score[j] & higher) | ((Bits)top & ~higher));
    }
    EACH (i, LANES)
        if (top[i] > query->m) query->m = top[i];
    Vec shrink = exp_lanes((Vec){0} + (old_m - query->m));
    for (int d = 0; query->m > old_m && d * LANES < dim; d++) query->o[d] *= shrink;
    query->l *= shrink;
    EACH (j, TOKENS / LANES) {
        score[j] = exp_lanes(score[j] - query->m) * HEADROOM;
        query->l += score[j];
    }
}

// n query vectors over a tile, `width` rows or columns of it at a time. tile: where the rows of its
// tokens are, in the first KV head; next: those that come next, for query[n]. They are asked for as
// they stand there, [RUN][RUNS][2]: K and V in turn, and the runs in turn, in eight places.
INLINE void attend_tile(const char **tile, const char **next, Query *query, int tokens, int dim,
                        int n, int dtype)
{
    const int width = n * 4 > SUMS ? SUMS / n : 4;  // so that n * width sums stay in registers
    const int step = LANES * (int)dtype_size(dtype);
    const int last = (dim - 1) / LANES;  // column
    Bits inside = {0};  // the lanes of the last column that belong to the vector, not to another
    EACH (i, LANES) inside[i] = last * LANES + i < dim ? 0xffffffff : 0;
    size_t head = query->head;
    size_t ahead = query[n].head;
    Vec score[8][TOKENS / LANES];
    Vec sum[8][2 * LANES];
    Vec acc[8][4];
    Vec x[4];

    // 1. The scores. Each is a sum in LANES parts, first of all.
    for (int t = 0; t < tokens || t % LANES > 0; t += width) {
        const char **k = &tile[(t % RUN * RUNS + t / RUN) * 2];
        EACH (i, n)
            EACH (j, width) acc[i][j] = (Vec){0};
        for (int d = 0; d <= last; d++) {
            EACH (j, width) __builtin_prefetch(next[t + j] + ahead + d * step, 0, 2);  // to L2
            EACH (j, width) x[j] = load_lanes(k[j * 2 * RUNS] + head + d * step, dtype);
            if (d == last)
                EACH (j, width) x[j] = (Vec)((Bits)x[j] & inside);  // 0 times NaN would be NaN
            EACH (i, n)
                EACH (j, width) acc[i][j] += query[i].q[d] * x[j];
        }
        EACH (i, n)
            EACH (j, width) sum[i][t % LANES + j] = acc[i][j];
        if ((t + width) % LANES == 0)
            EACH (i, n) score[i][t / LANES] = add_across(sum[i]);
    }

    // 2. Their weights.
    EACH (i, n) weigh(&query[i], score[i], tokens, dim);

    // 3. The values, run by run. After the last column comes it again: those sums go to a place in
    // o beyond head_dim, which is never read.
    for (int run = 0; run < tokens; run += RUN) {
        for (int d = 0; d <= last; d += width) {
            const char **v = &tile[run / RUN * 2 + 1];
            EACH (i, n)
                EACH (j, width) acc[i][j] = (Vec){0};
            for (int t = run; t < min_int(run + RUN, tokens); t++, v += 2 * RUNS) {
                EACH (j, width) __builtin_prefetch(next[TOKENS + t] + ahead + (d + j) * step, 0, 2);
                EACH (j, width) x[j] = load_lanes(*v + head + min_int(d + j, last) * step, dtype);
                EACH (i, n)
                    EACH (j, width) acc[i][j] += ((float *)score[i])[t] * x[j];
            }
            EACH (i, n)
                EACH (j, width) query[i].o[d + j] += acc[i][j];
        }
    }
}

static void start_query(const AttendJob *job, int row, int head, Query *query)
{
    int dim = job->view.config.head_dim;
    memset(query, 0, sizeof *query);
    query->m = -__FLT_MAX__;  // not -infinity: -infinity less that would be NaN
    query->visible = job->view.queries[row].position + 1;
    query->at = ((size_t)row * job->num_q_heads + head) * dim;
    for (int d = 0; d < dim; d++) ((float *)query->q)[d] = job->q[query->at + d] * job->scale;
}

static void finish_query(const AttendJob *job, const Query *query)
{
    int dim = job->view.config.head_dim;
    float *out = job->out + query->at;
    float l = 0;
    EACH (j, LANES) l += query->l[j];
    for (int d = 0; d < dim; d++) out[d] = l != 0 ? ((const float *)query->o)[d] / l : 0;
    if (job->lse) job->lse[query->at / dim] = (float)(query->m + log(l / HEADROOM));
}

// Some rows of one sequence, some KV heads.
static void attend_piece(const AttendJob *job, int row, int rows, int kv_head, int heads)
{
    const View *view = &job->view;
    int seq = view->queries[row].seq;
    int end = view->queries[row + rows - 1].position + 1;
    const PoolConfig *c = &view->config;
    int group = job->num_q_heads / c->num_kv_heads;
    int vectors = rows * group;  // for each KV head
    size_t head_elements = token_offset(view, seq, 0, 1) - token_offset(view, seq, 0, 0);
    Query query[VECTORS + 1];
    for (int i = 0; i < heads * vectors; i++) {
        int head = (kv_head + i / vectors) * group + i % group;
        start_query(job, row + i / group % rows, head, &query[i]);
        query[i].head = i / vectors * head_elements * dtype_size(c->dtype);
    }
    query[heads * vectors].head = 0;  // after the last head, the first one of the next tile
    const char *kv[2][RUN][RUNS][2];  // the rows of this tile and the next, in turn
    size_t at = 0;
    for (int start = 0, found = 0; start < end; start += TOKENS) {
        for (; found < start + 2 * TOKENS; found++) {  // after the last token, its row again
            if (found < end) at = token_offset(view, seq, found, kv_head);
            const char **to = kv[found / TOKENS % 2][found % RUN][found / RUN % RUNS];
            to[0] = (const char *)view->k + at * dtype_size(c->dtype);
            to[1] = (const char *)view->v + at * dtype_size(c->dtype);
        }
        const char **tile = kv[start / TOKENS % 2][0][0];
        const char **after = kv[start / TOKENS % 2 == 0][0][0];
        for (int i = 0, n; i < heads * vectors; i += n) {
            Query *q = &query[i];
            int tokens = min_int(q->visible - start, TOKENS);
            for (n = 8; i + n > heads * vectors || q[n - 1].head != q->head ||
                        min_int(q[n - 1].visible - start, TOKENS) > tokens;)
                n /= 2;  // all of them are to see the same
            const char **next = i + n < heads * vectors ? tile : after;
            if (tokens <= 0) continue;
#define IF(N, TYPE) /* so that n and dtype are constants */ \
    if (n == N && c->dtype == TYPE) attend_tile(tile, next, q, tokens, c->head_dim, N, TYPE);
#define IF_TYPE(TYPE) IF(8, TYPE) IF(4, TYPE) IF(2, TYPE) IF(1, TYPE)
            IF_TYPE(PAGED_F32) IF_TYPE(PAGED_F16) IF_TYPE(PAGED_BF16)
        }
    }
    for (int i = 0; i < heads * vectors; i++) finish_query(job, &query[i]);
}

// Attention of a whole step, or -1 if its shape is one for attend_row(). The pieces are as large as
// can be, rows times KV heads, unless there would be fewer of them than threads.
static int attend_on_cpu(const AttendJob *job)
{
    const View *view = &job->view;
    int total = view->num_query_tokens;
    int kv_heads = view->config.num_kv_heads;
    int group = job->num_q_heads / kv_heads;
    if (group > VECTORS || view->max_seq_len > INT_MAX - 2 * TOKENS) return -1;
    double elements = 2.0 * total * kv_heads * view->max_seq_len * view->config.head_dim;
    int threads = elements > THREADS_FROM ? omp_get_max_threads() : 1;
    int most = min_int(VECTORS / group, ceil_div((int64_t)total * kv_heads, threads));
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
static int attend_on_cpu(const AttendJob *job) { return (void)job, -1; }
#endif

// ---- GPU --------------------------------------------------------------------------------------
// Rungs 3 and 4 of the ladder; 1, gather, and 2, paged, are in paged.cu.c. Rung 3, split: against
// rung 2, a sequence is cut into splits of 512 tokens, each for a thread block of its own, so that
// one long sequence fills the whole GPU. A second kernel merges them.

enum { SPLIT = 512 };

// The state of split blockIdx.z of a query head, in global memory: job->states are
// [num_query_tokens][num_q_heads][splits][head_dim + 2].
DEVICE float *split_state(const AttendJob *job, int head)
{
    size_t vector = (size_t)blockIdx.x * job->num_q_heads + head;
    size_t split = vector * ceil_div(job->view.max_seq_len, SPLIT) + blockIdx.z;
    return job->states + split * (job->view.config.head_dim + 2);
}

KERNEL(attend_split, AttendJob)
{
    int start = blockIdx.z * SPLIT;
    int end = min_int(start + SPLIT, job.view.queries[blockIdx.x].position + 1);
    if (start < end) attend_tokens(&job, blockIdx.y, start, end, split_state(&job, blockIdx.y));
}

// The states of all splits of a row and query head, from 0 on, become its result.
KERNEL(merge_splits, AttendJob)
{
    int splits = job.view.queries[blockIdx.x].position / SPLIT + 1;
    merge(split_state(&job, blockIdx.y), splits, job.view.config.head_dim, shared);
    __syncthreads();
    finish(&job, blockIdx.y, shared);
}

// Rung 4, tensor cores, for K and V in 16 bits, and head_dim up to 128 in multiples of 8. Against
// rung 3, up to eight query heads of a group share all that is loaded and converted. A warp's
// instruction mma does d += a * b. With r = lane / 4 and c = lane % 4, a lane holds
//
//     of a, 16 x 8   column c in rows r and r + 8, then column c + 4
//     of b,  8 x 8   rows c and c + 4 of column r
//     of d, 16 x 8   columns 2 * c and 2 * c + 1 of row r, then of row r + 8
//
// (PTX ISA, "Matrix Fragments for mma.m16n8k8", .tf32). a and b are tf32, a float32 without its
// lower 13 bits. K and V fit; q and the weights are cut in two: row r has the upper 11 bits of the
// mantissa for query head r, row r + 8 the next 11. In the end both results are added. 16 bytes of
// K, as loaded, are a lane's part of b for four mma, as a dot product may be summed in any order.
// 16 tokens are dealt to the columns of two tiles in pairs, so the lane then has the scores of four
// neighbours, 4 * c and on, and they become its part of a for weights times V, each pair columns c
// and c + 4. So only maxima go from lane to lane.

typedef size_t __attribute__((may_alias)) Offset;
#define OFFSETS ((Offset *)shared)  // [SPLIT], of the tokens in a plane
typedef struct __attribute__((aligned(16), may_alias)) Piece {
    uint32_t words[4];  // 8 elements, in 16 bytes, the most that a lane can load at once
} Piece;

// The pieces of a vector go to `lanes` lanes in turn. Where in it is element i of what lane n gets?
DEVICE int element(int i, int n, int lanes) { return (i / 8 * lanes + n) * 8 + i % 8; }

// What lane n gets of token t. What does not exist is 0, as 0 times NaN would be NaN.
DEVICE void load(const View *view, const void *plane, int t, int count, int n, int lanes, Piece *to)
{
    const uint16_t *vector = (const uint16_t *)plane + OFFSETS[t];
    EACH (i, 16 / lanes) {
        int d = element(i * 8, n, lanes);
        to[i] = (Piece){{0, 0, 0, 0}};
        if (t < count && d < view->config.head_dim) to[i] = *(const Piece *)(vector + d);
    }
}

DEVICE uint32_t tf32(float x) { return float_bits(x) & 0xffffe000; }

// The sum of both parts, in column i of d. If the first is infinite or NaN, it is the result.
DEVICE float both(const float *d, int i) { return fabsf(d[i]) < INFINITY ? d[i] + d[i + 2] : d[i]; }

// a: two columns, to be cut. If the upper part is infinite, the lower one is NaN.
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
#define __syncwarp() __shfl_xor_sync(ALL_LANES, 0, 0)
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

// blockIdx: x is the row; y the KV head, and which eight query heads of its group; z the split.
DEVICE void attend_mma(const AttendJob *job, int dtype)
{
    const View *view = &job->view;
    int head_dim = view->config.head_dim;
    int kv_heads = view->config.num_kv_heads;
    int group = job->num_q_heads / kv_heads;
    int kv_head = blockIdx.y % kv_heads;
    int first = kv_head * group + blockIdx.y / kv_heads * 8;  // query head
    int heads = min_int((kv_head + 1) * group - first, 8);    // from there on
    int warp = threadIdx.x / WARP;
    int r = threadIdx.x % WARP / 4;
    int c = threadIdx.x % 4;
    int count = min_int(view->queries[blockIdx.x].position + 1 - (int)blockIdx.z * SPLIT, SPLIT);
    if (count <= 0) return;

    // 1. The walk, for the whole split. Memory answers after some 600 ns, so many loads must be in
    // flight later, with nothing to wait for. After the last token comes it again.
    int seq = view->queries[blockIdx.x].seq;
    for (int t = threadIdx.x; t < SPLIT; t += THREADS)
        OFFSETS[t] = token_offset(view, seq, blockIdx.z * SPLIT + min_int(t, count - 1), kv_head);
    __syncthreads();

    // 2. The query: those elements that the lane will have of K.
    size_t vector = ((size_t)blockIdx.x * job->num_q_heads + first + r) * head_dim;
    float q[32], o[68] = {0}, m = -__FLT_MAX__;  // -infinity less itself would be NaN
    EACH (i, 32) {
        int d = element(i, c, 4);
        q[i] = r < heads && d < head_dim ? job->q[vector + d] * job->scale : 0;
    }

    for (int start = warp * 16; start < count; start += WARPS * 16) {
        Piece k[2][4], v[4][2];
        EACH (t, 2) load(view, view->k, start + r / 2 * 4 + t * 2 + r % 2, count, c, 4, k[t]);
        EACH (i, 4) load(view, view->v, start + c * 4 + i, count, r, 8, v[i]);
        __syncwarp();  // so that all loads are under way before the first is used

        // 3. Scores.
        float score[2][4] = {{0}}, p[4];
        float old_m = m;
        EACH (i, 16)
            EACH (t, 2)
                mma(score[t], q + i * 2, load_element(k[t], i * 2, dtype),
                    load_element(k[t], i * 2 + 1, dtype));
        EACH (i, 4) {
            p[i] = both(score[i / 2], i % 2);
            if (start + c * 4 + i >= count) p[i] = -INFINITY;
            m = fmaxf(m, p[i]);
        }

        // 4. Weights.
        for (int bits = 1; bits < 4; bits *= 2) m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, bits));
        float shrink = expf(old_m - m);
        EACH (i, 4) p[i] = expf(p[i] - m) * HEADROOM;

        // 5. Values. The last mma are for l: as if V had columns of 1.
        EACH (i, 68) o[i] *= shrink;
        EACH (i, 16)
            EACH (t, 2)
                mma(o + i * 4, p + t * 2, load_element(v[t * 2], i, dtype),
                    load_element(v[t * 2 + 1], i, dtype));
        EACH (t, 2) mma(o + 64, p + t * 2, 1, 1);
    }

    // 6. The states of the warps, in shared memory, become one for each head.
    float *states = shared + 2 * SPLIT;  // [8][WARPS][head_dim + 2]
    float *state = states + (r * WARPS + warp) * (head_dim + 2);
    state[0] = m;
    state[1] = both(o + 64, 0);
    EACH (i, 32) {
        int d = element(i / 2, 2 * c + i % 2, 8);
        if (d < head_dim) state[2 + d] = both(o + i / 2 * 4, i % 2);
    }
    __syncthreads();
    for (int h = 0; h < heads; h++)
        merge(states + h * WARPS * (head_dim + 2), WARPS, head_dim, split_state(job, first + h));
}

KERNEL(attend_mma_f16, AttendJob) { attend_mma(&job, PAGED_F16); }
KERNEL(attend_mma_bf16, AttendJob) { attend_mma(&job, PAGED_BF16); }

// ---- which path -------------------------------------------------------------------------------

// Attention of a whole step: PAGED_OK, an error, or -1 if its shape is one for the plain code.
static int attend_fast(Pool *pool, AttendJob *job)
{
    const PoolConfig *c = &job->view.config;
    if (c->device == PAGED_CPU) return attend_on_cpu(job);
    int rows = job->view.num_query_tokens;
    int heads = job->num_q_heads;
    int splits = ceil_div(job->view.max_seq_len, SPLIT);
    size_t bytes = multiply(multiply(rows, heads), splits * (c->head_dim + 2) * sizeof(float));
    if (splits > 65535) return -1;  // a grid cannot have more
    if (memory_reserve(c->device, &pool->states, &pool->states_bytes, bytes))
        return PAGED_OUT_OF_MEMORY;
    job->states = (float *)pool->states;
    int blocks = c->num_kv_heads * ceil_div(heads / c->num_kv_heads, 8);  // of attend_mma()
    int states = WARPS * (c->head_dim + 2);
    int tensor_cores = c->dtype != PAGED_F32 && c->head_dim <= 128 && c->head_dim % 8 == 0;
#ifdef __CUDACC__  // mma exists from sm_80 on
    cudaFuncAttributes attributes;
    CUDA(cudaFuncGetAttributes(&attributes, attend_mma_f16));
    if (attributes.ptxVersion < 80) tensor_cores = 0;
#endif
    if (!tensor_cores)
        LAUNCH(attend_split, rows, heads, splits, states, *job);
    else if (c->dtype == PAGED_F16)
        LAUNCH(attend_mma_f16, rows, blocks, splits, 2 * SPLIT + 8 * states, *job);
    else
        LAUNCH(attend_mma_bf16, rows, blocks, splits, 2 * SPLIT + 8 * states, *job);
    LAUNCH(merge_splits, rows, heads, 1, c->head_dim + 2, *job);
    return PAGED_OK;
}
