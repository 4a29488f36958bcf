// gpu.c: the optional fast paths for a GPU, rungs 3 and 4 of the ladder; 1, gather, and 2, paged,
// are in paged.cu.c. fast.c includes it.
//
// Rung 3, split: unlike on rung 2, a sequence is cut into splits, each for a thread block of its
// own, so that one long sequence fills the whole GPU. A second kernel merges their states.

// How many tokens a split has, for the row at a position. A short sequence needs short splits to
// keep many processors busy; in a long one they would only make more states to merge. Nothing but
// the position decides, so attention is batch-invariant: a row has the same bits in any batch.
enum { MAX_SPLIT = 512 };
HD static int split_length(int position)
{
    if (position < 2048) return MAX_SPLIT / 4;
    if (position < 16384) return MAX_SPLIT / 2;
    return MAX_SPLIT;
}

HD static int count_splits(int position) { return position / split_length(position) + 1; }

// Where a split has the state of a row and query head: job->states are
// [num_query_tokens][num_q_heads][splits][head_dim + 2], in global memory.
__device__ static float *split_state(const Job *job, int row, int head, int split)
{
    size_t q_index = (size_t)row * job->num_q_heads + head;
    return job->states + (q_index * job->splits + split) * (job->config.head_dim + 2);
}

// blockIdx: x is the row, y the query head, z the split, which this row may not have.
__global__ static void attend_split(Job job)
{
    int row = blockIdx.x;
    int head = blockIdx.y;
    int position = job.queries[row].position;
    int start = blockIdx.z * split_length(position);
    int end = min_int(start + split_length(position), position + 1);
    float *state = split_state(&job, row, head, blockIdx.z);
    int dtype = job.config.dtype;
    if (start >= end) return;
    if (dtype == PAGED_F32) attend_tokens(&job, PAGED_F32, row, head, start, end, state);
    if (dtype == PAGED_F16) attend_tokens(&job, PAGED_F16, row, head, start, end, state);
    if (dtype == PAGED_BF16) attend_tokens(&job, PAGED_BF16, row, head, start, end, state);
}

// Makes the result of a row and query head from the states of its splits: each warp merges a part
// of them, then those of the warps become one.
__global__ static void merge_splits(Job job)
{
    int row = blockIdx.x;
    int head = blockIdx.y;
    int head_dim = job.config.head_dim;
    int splits = count_splits(job.queries[row].position);
    int warp = threadIdx.x / WARP;
    int first = splits * warp / WARPS;
    int end = splits * (warp + 1) / WARPS;
    __shared__ float states[WARPS * STATE], result[STATE];
    merge(split_state(&job, row, head, first), end - first, head_dim,
          states + warp * (head_dim + 2), threadIdx.x % WARP, WARP);
    __syncthreads();  // all warps have merged their part
    merge(states, WARPS, head_dim, result, threadIdx.x, THREADS);
    __syncthreads();  // thread 0 has merged l, which all threads read
    finish(&job, row, head, result);
}

// Rung 4, tensor cores, for K and V in 16 bits and head_dim up to 128 in multiples of 8. Unlike
// on rung 3, up to eight query vectors share all that is loaded and converted: the heads of a
// group, and of neighbouring rows if there are fewer than eight. A warp's instruction mma does
// d += a * b.
// Lane 4 * r + c holds
//
//     of a, 16 x 8   column c of rows r and r + 8, then column c + 4 of both
//     of b,  8 x 8   rows c and c + 4 of column r
//     of d, 16 x 8   columns 2 * c and 2 * c + 1 of row r, then of row r + 8
//
// (PTX ISA, "Matrix Fragments for mma.m16n8k8", .tf32). a and b are tf32, a float32 without its
// lower 13 bits. K and V fit; q and the weights are cut in two: row r has the upper 11 bits of the
// mantissa for query vector r, row r + 8 the next 11. In the end both results are added.
//
// A warp takes 16 tokens at a time. The 16 bytes of a load are 8 elements:
//
//              lane 4 * r + c                               lane 5: r = 1, c = 1, head_dim 64
//     q        vector r, elements 8 * c on, of each 32      vector 1, elements 8 to 15, 40 to 47
//     K        tokens r / 2 * 4 + r % 2 and 2 more, same    tokens 1 and 3, the same elements
//     scores   vector r, tokens 4 * c to 4 * c + 3          vector 1, tokens 4 to 7
//     V        these tokens, elements 8 * r on, of each 64  tokens 4 to 7, elements 8 to 15
//     o        vector r, elements 16 * c on, of each 64     vector 1, elements 16 to 31
//
// K is b as it is loaded, two elements an mma, as a dot product may be summed in any order. Tokens
// 0 1 4 5 8 9 12 13 are the columns of one d, and 2 3 6 7 10 11 14 15 those of another: a lane has
// the scores of four neighbours, and their weights are its part of a for weights times V, two
// tokens an mma. Only maxima go from lane to lane.

typedef struct __attribute__((aligned(16), may_alias)) Piece {
    uint32_t words[4];  // 8 elements, one load of 16 bytes
} Piece;

// The pieces of a row go to `lanes` lanes in turn. Returns the index of element i of lane n.
__device__ static int element_of_lane(int i, int n, int lanes)
{
    return (i / 8 * lanes + n) * 8 + i % 8;
}

// Loads the pieces of lane n of token t. What lies outside is 0, since 0 times NaN would be NaN.
__device__ static void load_pieces(const Job *job, const void *plane, const size_t *offsets, int t,
                                   int count, int n, int lanes, int max_dim, Piece *to)
{
    const uint16_t *row = (const uint16_t *)plane + offsets[t];
    EACH (i, max_dim / 8 / lanes) {
        int d = element_of_lane(i * 8, n, lanes);
        to[i] = (Piece){{0, 0, 0, 0}};
        if (t < count && d < job->config.head_dim) to[i] = *(const Piece *)(row + d);
    }
}

__device__ static uint32_t tf32(float x) { return float_bits(x) & 0xffffe000; }

// Returns the sum of both parts of column i of d. An infinite first part makes NaN of the other.
__device__ static float sum_of_parts(const float *d, int i)
{
    if (fabsf(d[i]) < INFINITY) return d[i] + d[i + 2];
    return d[i];
}

// a: two columns, to be cut in parts
__device__ static void mma(float *d, const float *a, float b0, float b1)
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
    __shared__ float a_whole[WARPS][16][8], b_whole[WARPS][8][8];
    int warp = threadIdx.x / WARP;
    int r = threadIdx.x % WARP / 4;
    int c = threadIdx.x % 4;
    EACH (i, 4)  // without the lower 13 bits, which tensor cores ignore
        a_whole[warp][r + i % 2 * 8][c + i / 2 * 4] = bits_float(part[i] & 0xffffe000);
    b_whole[warp][c][r] = bits_float(tf32(b0));
    b_whole[warp][c + 4][r] = bits_float(tf32(b1));
    __syncwarp();  // all have written
    EACH (i, 4)
        EACH (j, 8) d[i] += a_whole[warp][r + i / 2 * 8][j] * b_whole[warp][j][2 * c + i % 2];
    __syncwarp();  // all have read
#endif
}

// A thread block has room for `most` rows, 1, 2, 4 or 8: neighbours in their sequence, up to the
// next position that is a multiple of `most`. They share a split if each of them sees all its
// tokens, so the last split of a row is its own. (Split lengths change at multiples of 8, so
// neighbours have the same splits.) Returns how many rows share the split that ends before token
// `end`, this one included, or 0 if an earlier row leads them.
__device__ static int rows_sharing(const Job *job, int row, QueryToken query, QueryToken before,
                                   int length, int most, int end)
{
    int place = query.position % most;
    if (query.position < end) return 1;
    if (place > 0 && row > 0 && before.seq == query.seq) return 0;
    return min_int(min_int(length - query.position, most - place), job->num_query_tokens - row);
}

// blockIdx: x is the row and which eight query heads of a group; y the KV head; z the split.
// head_dim is at most max_dim, a constant, 64 or 128.
__device__ static void attend_mma(const Job *job, int dtype, int max_dim)
{
    int head_dim = job->config.head_dim;
    int group = job->num_q_heads / job->config.num_kv_heads;
    int parts = ceil_div(group, 8);  // neighbours in the grid, so that they share the L2 cache
    int row = blockIdx.x / parts;
    int kv_head = blockIdx.y;
    int first = kv_head * group + blockIdx.x % parts * 8;   // query head
    int heads = min_int((kv_head + 1) * group - first, 8);  // from there on
    int warp = threadIdx.x / WARP;
    int r = threadIdx.x % WARP / 4;
    int c = threadIdx.x % 4;

    // 1. Which rows? Both loads are under way before the first is used, as __syncwarp() sees to;
    // below, so are those of K and V.
    QueryToken query = job->queries[row];
    QueryToken before = job->queries[row - min_int(row, 1)];
    __syncwarp();
    int length = split_length(query.position);
    int from = blockIdx.z * length;
    int count = min_int(query.position + 1 - from, length);
    if (count <= 0) return;
    SeqOffset begin = job->offsets[query.seq];
    int seq_len = (int)(job->offsets[query.seq + 1].token - begin.token);
    int vectors = heads * rows_sharing(job, row, query, before, seq_len, 8 / heads, from + length);
    if (vectors == 0) return;

    // 2. The query vectors: the elements that the lane will have of K.
    size_t q_index = (size_t)(row + r / heads) * job->num_q_heads + first + r % heads;
    float q[32] = {0}, o[64] = {0}, l[4] = {0}, m = -FLT_MAX;
    EACH (i, max_dim / 4) {
        int d = element_of_lane(i, c, 4);
        if (r < vectors && d < head_dim) q[i] = job->q[q_index * head_dim + d];
    }

    // 3. The walk, for the whole split, so that later loads have nothing to wait for. Tokens past
    // the end get the offset of the last one, so that the loop need not check.
    __shared__ size_t offsets[MAX_SPLIT];  // in a plane
    for (int t = threadIdx.x; t < length; t += THREADS)
        offsets[t] = token_offset(job, begin, from + min_int(t, count - 1), kv_head);
    __syncthreads();
    EACH (i, max_dim / 4) q[i] *= job->scale;

    for (int start = warp * 16; start < count; start += WARPS * 16) {
        Piece k[2][4], v[4][2];
        EACH (t, 2)
            load_pieces(job, job->k_plane, offsets, start + r / 2 * 4 + t * 2 + r % 2, count, c, 4,
                        max_dim, k[t]);
        EACH (i, 4)
            load_pieces(job, job->v_plane, offsets, start + c * 4 + i, count, r, 8, max_dim, v[i]);
        __syncwarp();

        // 4. Scores.
        float score[2][4] = {{0}}, p[4];
        float old_m = m;
        EACH (i, max_dim / 8)
            EACH (t, 2)
                mma(score[t], q + i * 2, load_element(k[t], i * 2, dtype),
                    load_element(k[t], i * 2 + 1, dtype));
        EACH (i, 4) {
            p[i] = sum_of_parts(score[i / 2], i % 2);
            if (start + c * 4 + i >= count) p[i] = -INFINITY;
            m = fmaxf(m, p[i]);
        }

        // 5. Weights.
        for (int bits = 1; bits < 4; bits *= 2) m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, bits));
        float shrink = expf(old_m - m);
        EACH (i, 4) p[i] = expf(p[i] - m);

        // 6. Values. The last mma are for l: as if V had columns of 1.
        EACH (i, max_dim / 2) o[i] *= shrink;
        EACH (i, 4) l[i] *= shrink;
        EACH (i, max_dim / 8)
            EACH (t, 2)
                mma(o + i * 4, p + t * 2, load_element(v[t * 2], i, dtype),
                    load_element(v[t * 2 + 1], i, dtype));
        EACH (t, 2) mma(l, p + t * 2, 1, 1);
    }

    // 7. The states of the warps meet in shared memory, and become one for each vector.
    __shared__ float states[8 * WARPS * (128 + 2)];  // [8][WARPS][head_dim + 2]
    float *state = states + (r * WARPS + warp) * (head_dim + 2);
    if (c == 0) {
        state[0] = m;
        state[1] = sum_of_parts(l, 0);
    }
    EACH (i, max_dim / 4) {
        int d = element_of_lane(i / 2, 2 * c + i % 2, 8);
        if (d < head_dim) state[2 + d] = sum_of_parts(o + i / 2 * 4, i % 2);
    }
    __syncthreads();
    for (int i = warp; i < vectors; i += WARPS)
        merge(states + i * WARPS * (head_dim + 2), WARPS, head_dim,
              split_state(job, row + i / heads, first + i % heads, blockIdx.z), threadIdx.x % WARP,
              WARP);
}

__global__ static void attend_mma_f16(Job job) { attend_mma(&job, PAGED_F16, 128); }
__global__ static void attend_mma_bf16(Job job) { attend_mma(&job, PAGED_BF16, 128); }
__global__ static void attend_mma_f16_64(Job job) { attend_mma(&job, PAGED_F16, 64); }
__global__ static void attend_mma_bf16_64(Job job) { attend_mma(&job, PAGED_BF16, 64); }

// Starts the kernels for some rows.
static void launch_splits(Job job)
{
    const PoolConfig *c = &job.config;
    int rows = job.num_query_tokens;
    int heads = job.num_q_heads;
    int parts = rows * ceil_div(heads / c->num_kv_heads, 8);  // rows times parts of a group
    int tensor_cores = c->dtype != PAGED_F32 && c->head_dim <= 128 && c->head_dim % 8 == 0;
#ifdef __CUDACC__
    static __thread int known = -1, compiled_for;  // for the GPU that this thread used last
    int gpu;
    cudaFuncAttributes attributes;
    CUDA(cudaGetDevice(&gpu));
    if (gpu != known) {
        CUDA(cudaFuncGetAttributes(&attributes, attend_mma_f16));
        compiled_for = attributes.ptxVersion;
        known = gpu;
    }
    if (compiled_for < 80) tensor_cores = 0;  // 80 is the first generation whose mma knows tf32
#endif
    if (!tensor_cores)
        LAUNCH(attend_split, rows, heads, job.splits, job);
    else if (c->dtype == PAGED_F16 && c->head_dim <= 64)
        LAUNCH(attend_mma_f16_64, parts, c->num_kv_heads, job.splits, job);
    else if (c->dtype == PAGED_F16)
        LAUNCH(attend_mma_f16, parts, c->num_kv_heads, job.splits, job);
    else if (c->head_dim <= 64)
        LAUNCH(attend_mma_bf16_64, parts, c->num_kv_heads, job.splits, job);
    else
        LAUNCH(attend_mma_bf16, parts, c->num_kv_heads, job.splits, job);
    LAUNCH(merge_splits, rows, heads, 1, job);
}

// Rows are taken together while their states fit into so many bytes, or one by one, so that a long
// prompt does not need more memory than a short one.
enum { STATES_LIMIT = 128 << 20 };
static size_t states_limit = STATES_LIMIT;  // tests lower it

// Returns how many of `count` rows are taken together, if there is room for `room` states of each
// head. Sets *splits to the most that one of them has.
static int rows_together(const QueryToken *queries, int count, size_t room, int *splits)
{
    int rows = 0;
    *splits = 0;
    for (; rows < count; rows++) {
        int most = count_splits(queries[rows].position);
        if (most < *splits) most = *splits;
        if (rows > 0 && multiply(rows + 1, most) > room) break;
        *splits = most;
    }
    return rows;
}

// Attends for a whole step. Returns an error, or -1 if the plain kernel has to do it: a sequence
// has more splits than a grid can have, or there is no memory for their states.
static int attend_on_gpu(Pool *pool, const Job *job)
{
    Job host = *job;
    place_arrays(&host, pool->plan->memory);  // where the queries are in host memory
    int total = job->num_query_tokens;
    int device = job->config.device;
    int head_dim = job->config.head_dim;
    size_t bytes = (size_t)job->num_q_heads * (head_dim + 2) * sizeof(float);  // a row's split
    Job part = *job;  // for some of the rows
    for (int row = 0, rows; row < total; row += rows) {
        rows = rows_together(host.queries + row, total - row, states_limit / bytes, &part.splits);
        size_t needed = multiply(multiply(rows, part.splits), bytes);
        if (part.splits > 65535) return -1;
        if (memory_reserve(device, &pool->states, needed)) return -1;
        size_t q_index = (size_t)row * job->num_q_heads;
        part.states = (float *)pool->states.p;
        part.queries = job->queries + row;
        part.num_query_tokens = rows;
        part.q = job->q + q_index * head_dim;
        part.out = job->out + q_index * head_dim;
        if (job->lse) part.lse = job->lse + q_index;
        launch_splits(part);
    }
    return PAGED_OK;
}
