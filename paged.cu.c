// paged: PagedAttention in one file.
//
// A language model that serves many requests keeps, for every token of every request, a key and a
// value vector in each layer: the KV cache. How long a request gets is not known in advance, and
// reserving the maximum for each wastes most of the memory. PagedAttention (Kwon et al., SOSP 2023)
// does what operating systems do with pages: memory is cut into blocks of a few tokens, a block is
// handed out when a token needs it, a table per sequence says which blocks hold its tokens, and
// attention looks the blocks up in that table while it reads. Blocks can then be shared, with a
// reference count, and copied when somebody writes: copy-on-write.
//
// Read paged.h first, then this file from top to bottom:
//
//     numbers, layout    16-bit floats; where the element of a token, layer and head lies
//     memory, pool       where the bytes are; free list and reference counts
//     sequences          append, fork, rewind, release: nothing but edits of tables and counts
//     prefix cache       blocks that are found again by the tokens in them
//     K and V            what moves them, on either processor
//     attention          online softmax through a block table, on the CPU
//     GPU, kernels       the same work as CUDA kernels
//     calls              pool_write(), seq_gather(), attend(): a batch in, on either processor
//     check, dump        recount everything; draw pools and tables
//
// Four files belong to it that can be read later: fast.c, faster attention on the CPU, standin.h,
// which runs the kernels without a GPU, oracle.c, the same cache without blocks and the judge of
// this one, and examples/tour.c, main().
//
// Left out on purpose: sampling, models and servers (see examples/), 8-bit caches, sliding windows.
//
//     cc -O2 paged.cu.c -o paged -lm && ./paged

#include "paged.h"

#ifdef __linux__
#include <sys/mman.h>
#endif
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

// Exhaustion and bad arguments are return codes. A broken invariant means that the memory can no
// longer be trusted: say what broke and stop, so that a debugger shows the moment.
__attribute__((noreturn)) static void stop(const char *file, int line, const char *what,
                                           const char *why)
{
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, why);
    abort();
}

#define INVARIANT(ok, why) ((ok) ? (void)0 : stop(__FILE__, __LINE__, #ok, why))

// stb_ds: a dynamic array is a plain pointer `int *a` with its length hidden in front of it:
// arrlen(a), arrput(a, x), arrpop(a); NULL is the empty one. arrput may move the array and assigns
// to `a`, so never keep a second pointer to it. stb_ds does not look whether its realloc succeeded,
// so this one does: the only allocation here that stops the program instead of returning an error.
static void *realloc_or_stop(void *old, size_t size)
{
    void *p = realloc(old, size);
    INVARIANT(p, "out of memory: an array cannot grow");
    return p;
}

#define STBDS_REALLOC(context, pointer, size) realloc_or_stop(pointer, size)
#define STBDS_FREE(context, pointer) free(pointer)
#define STB_DS_IMPLEMENTATION
#if __has_include(<stb/stb_ds.h>)
#include <stb/stb_ds.h>
#else
#include <stb_ds.h>
#endif

const char *paged_error(int error)
{
    static const char *const texts[] = {"ok",
                                        "bad argument",
                                        "too few free blocks",
                                        "longer than the whole pool",
                                        "out of memory",
                                        "the block is shared",
                                        "there is no GPU"};
    return error >= 0 && error <= PAGED_NO_GPU ? texts[error] : "unknown error code";
}

// nvcc compiles this file for a CPU and a GPU. For other compilers these lines turn the few calls
// of CUDA that handle memory into the C library's; section "GPU" has a stand-in for the rest.

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define HD __host__ __device__  // for functions of both processors
#else
#define HD
#define cudaSuccess 0
#define cudaGetDeviceCount(count) (*(count) = 1, 0)
#define cudaMalloc(p, bytes) ((*(p) = malloc(bytes)) == NULL)
#define cudaFree(p) (free(p), 0)
#define cudaMemcpy(to, from, bytes, kind) (memcpy(to, from, bytes), 0)
#define cudaGetErrorString(error) "failed"
#define cudaGetLastError() 0
#define cudaDeviceSynchronize() 0
#endif

// ---- numbers ----------------------------------------------------------------------------------
// Tensors outside the cache are float32; the cache may store 16 bits. Both 16-bit types are a
// float32 with fewer bits: f16 has 5 bits of exponent and 10 of mantissa, bf16 has 8 and 7, the
// upper half of a float32. Reading one back is exact, so only storing rounds: to nearest, ties to
// even. (These lines need IEEE arithmetic; -ffast-math breaks them, and every test for NaN.)

HD static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

HD static float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

HD static uint16_t f32_to_f16(float x)
{
    uint32_t sign = float_bits(x) >> 16 & 0x8000, bits = float_bits(x) & 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);   // NaN
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // 65520 and above: infinity
    if (bits < 0x38800000)  // below 2^-14: next to 0.5, one float32 ulp is one f16 subnormal step
        return (uint16_t)(sign | (float_bits(bits_float(bits) + 0.5f) - 0x3f000000));
    bits += 0xfff + (bits >> 13 & 1);  // half a unit, less one if the last kept bit is even
    return (uint16_t)(sign | (bits - 0x38000000) >> 13);
}

HD static float f16_to_f32(uint16_t h)
{
#ifdef __CUDA_ARCH__  // a GPU has an instruction for it
    return __half2float(__ushort_as_half(h));
#endif
    // The f16 bits in the place of float32 bits mean a number 2^112 too small, subnormals included.
    float x = bits_float((uint32_t)(h & 0x7fff) << 13) * 0x1p112f;
    uint32_t infinite = x >= 65536.0f ? 0x7f800000 : 0;  // infinity and NaN stay what they are
    return bits_float((uint32_t)(h & 0x8000) << 16 | float_bits(x) | infinite);
}

HD static uint16_t f32_to_bf16(float x)
{
    uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);  // NaN stays NaN
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

HD static float bf16_to_f32(uint16_t h) { return bits_float((uint32_t)h << 16); }

HD static size_t dtype_size(int dtype) { return dtype == PAGED_F32 ? 4 : 2; }

// Element i of a plane of K or V.
HD static float load_element(const void *plane, size_t i, int dtype)
{
    if (dtype == PAGED_F32) return ((const float *)plane)[i];
    uint16_t h = ((const uint16_t *)plane)[i];
    return dtype == PAGED_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

HD static void store_element(void *plane, size_t i, int dtype, float x)
{
    if (dtype == PAGED_F32)
        ((float *)plane)[i] = x;
    else
        ((uint16_t *)plane)[i] = dtype == PAGED_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

// ---- layout -----------------------------------------------------------------------------------
// From a token to its bytes; in an operating system this is the page table walk:
//
//     position t of a sequence
//       t / block_size     logical block     which entry of the block table
//       t % block_size     slot              which place inside the block
//     block_table[t / block_size]            physical block, the same id in every layer
//     kv_offset(layer, block, head, slot)    element in the plane of K, and likewise of V
//
// A plane is [num_layers][num_blocks][num_kv_heads][block_size][head_dim]: the slots of one block
// and head are one contiguous run of block_size * head_dim elements, which is what attention reads.
// Offsets are size_t: a pool of a few GiB already has more elements than an int can count.

HD static size_t kv_offset(const PoolConfig *c, int layer, int block, int kv_head, int slot)
{
    size_t i = (size_t)layer * c->num_blocks + block;
    i = i * c->num_kv_heads + kv_head;
    i = i * c->block_size + slot;
    return i * c->head_dim;
}

static int ceil_div(int64_t a, int b) { return (int)((a + b - 1) / b); }

// ---- memory -----------------------------------------------------------------------------------
// A pool lives in the memory of the CPU or of a GPU. With the stand-in both are the same.

static void cuda_or_stop(int error, const char *call, int line)
{
    if (error != cudaSuccess) stop(__FILE__, line, call, cudaGetErrorString((cudaError_t)error));
}

#define CUDA(call) cuda_or_stop((int)(call), #call, __LINE__)

static void *memory_create(int device, size_t bytes)
{
    void *p = NULL;
    if (device == PAGED_CPU) {  // in cache lines; or in pages of 2 MB, where Linux has them: blocks
                                // lie apart, and each would else need page table walks of its own
        size_t unit = bytes < 4 << 20 ? 64 : 2 << 20, all = (bytes + unit - 1) / unit * unit;
        p = aligned_alloc(unit, all);
#ifdef MADV_HUGEPAGE
        if (p && unit > 64) (void)madvise(p, all, MADV_HUGEPAGE);
#endif
        return p;
    }
    if (cudaMalloc(&p, bytes) == cudaSuccess) return p;
    (void)cudaGetLastError();  // too little memory is no error that sticks
    return NULL;
}

static void memory_free(int device, void *p)
{
    if (device == PAGED_CPU)
        free(p);
    else
        CUDA(cudaFree(p));
}

static void memory_copy(int device, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) return;
    if (device == PAGED_CPU)
        memcpy(to, from, bytes);
    else
        CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}

// ---- pool -------------------------------------------------------------------------------------
// All memory is allocated once. The free list runs through the blocks' own records, as a ring in
// both directions; record num_blocks is its head, so no end needs a special case. A block is taken
// from the front and, when its count falls to 0, put back at the front: what was used last is used
// next, while it may still be in a cache of the processor. Published blocks (prefix cache) go to
// the back, so that they can be found as long as possible.

static int config_ok(const PoolConfig *c)
{
    return c && c->num_layers >= 1 && c->num_kv_heads >= 1 && c->head_dim >= 1 &&
           c->head_dim <= PAGED_MAX_HEAD_DIM && c->block_size >= 1 && c->dtype >= PAGED_F32 &&
           c->dtype <= PAGED_BF16 &&
           (c->device == PAGED_CPU || (c->device == PAGED_GPU && c->num_kv_heads < 1 << 16));
}

// a * b, or 0 where that overflows; 0 is a size that nothing here has.
static size_t multiply(size_t a, size_t b) { return a > 0 && b <= SIZE_MAX / a ? a * b : 0; }

size_t pool_bytes_per_token(const PoolConfig *c)
{
    if (!config_ok(c)) return 0;
    size_t vectors = multiply(multiply(2, c->num_layers), c->num_kv_heads);  // 2: K and V
    return multiply(multiply(vectors, c->head_dim), dtype_size(c->dtype));
}

size_t pool_bytes_per_block(const PoolConfig *c)
{
    return config_ok(c) ? multiply(pool_bytes_per_token(c), c->block_size) : 0;
}

static void free_list_remove(Pool *pool, int block)
{
    Block *b = pool->blocks;
    b[b[block].prev].next = b[block].next;
    b[b[block].next].prev = b[block].prev;
    b[block].prev = b[block].next = -1;
    pool->num_free--;
}

static void free_list_insert_after(Pool *pool, int prev, int block)
{
    Block *b = pool->blocks;
    b[block].prev = prev;
    b[block].next = b[prev].next;
    b[b[block].next].prev = block;
    b[prev].next = block;
    pool->num_free++;
}

static uint64_t prefix_hash(uint64_t parent, const int *tokens, int n);  // section "prefix cache"
static void prefix_remove(Pool *pool, int block);

int pool_create(const PoolConfig *config, Pool **out)
{
    int gpus = 0, head;
    if (!config_ok(config) || config->num_blocks < 1 || !out) return PAGED_BAD_ARGUMENT;
    if (config->device == PAGED_GPU && (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0))
        return PAGED_NO_GPU;
    size_t plane = multiply(pool_bytes_per_block(config) / 2, config->num_blocks);
    size_t records = multiply((size_t)config->num_blocks + 1, sizeof(Block));
    size_t slots = multiply(multiply(config->num_blocks, config->block_size), sizeof(int));
    if (plane == 0 || plane > PTRDIFF_MAX || !records || !slots) return PAGED_OUT_OF_MEMORY;

    Pool *pool = (Pool *)calloc(1, sizeof *pool);
    if (!pool) return PAGED_OUT_OF_MEMORY;
    pool->config = *config;
    pool->k = memory_create(config->device, plane);
    pool->v = memory_create(config->device, plane);
    pool->blocks = (Block *)malloc(records);
    pool->tokens = (int *)malloc(slots);
    pool->hash = prefix_hash;
    if (!pool->k || !pool->v || !pool->blocks || !pool->tokens) {
        pool_destroy(pool);
        return PAGED_OUT_OF_MEMORY;
    }
    head = config->num_blocks;
    memset(&pool->blocks[head], 0, sizeof(Block));
    pool->blocks[head].prev = pool->blocks[head].next = head;
    for (int block = 0; block < config->num_blocks; block++) {
        memset(&pool->blocks[block], 0, sizeof(Block));
        free_list_insert_after(pool, pool->blocks[head].prev, block);  // at the back: 0 is first
    }
    *out = pool;
    return PAGED_OK;
}

void pool_destroy(Pool *pool)
{
    if (!pool) return;
    while (arrlen(pool->seqs) > 0) seq_release(arrlast(pool->seqs));
    arrfree(pool->seqs);
    memory_free(pool->config.device, pool->k);
    memory_free(pool->config.device, pool->v);
    memory_free(pool->config.device, pool->workspace);
    hmfree(pool->prefixes);
    free(pool->tokens);
    free(pool->blocks);
    free(pool);
}

// Moves slots first .. first + count - 1 of K and V, in every layer: from one block to another, or
// NaN to it if `from` is POISON. It stands with the calls, further down.
enum { POISON = -1 };
static void move_slots(Pool *pool, int to, int from, int first, int count);

static void block_poison(Pool *pool, int block, int first, int count)
{
    if (pool->config.poison) move_slots(pool, block, POISON, first, count);
}

// Nobody may write a block that others see: in their tables, or through the prefix cache.
static int block_sealed(const Pool *pool, int block)
{
    return pool->blocks[block].ref_count > 1 || pool->blocks[block].serial != 0;
}

// Takes the first free block. The caller has counted: there is one.
static int block_take(Pool *pool)
{
    int block = pool->blocks[pool->config.num_blocks].next;
    INVARIANT(pool->num_free > 0 && block < pool->config.num_blocks, "no free block to take");
    INVARIANT(pool->blocks[block].ref_count == 0, "a block on the free list is in use");
    free_list_remove(pool, block);
    if (pool->blocks[block].serial) prefix_remove(pool, block);
    pool->blocks[block].ref_count = 1;
    block_poison(pool, block, 0, pool->config.block_size);
    return block;
}

// Drops one reference; the last one frees the block.
static void block_drop(Pool *pool, int block)
{
    INVARIANT(pool->blocks[block].ref_count > 0, "a free block is given back");
    int head = pool->config.num_blocks, published = pool->blocks[block].serial != 0;
    if (--pool->blocks[block].ref_count > 0) return;
    if (!published) block_poison(pool, block, 0, pool->config.block_size);
    free_list_insert_after(pool, published ? pool->blocks[head].prev : head, block);
}

// One more table names the block, which may be a free one.
static void block_share(Pool *pool, int block)
{
    if (pool->blocks[block].ref_count++ == 0) free_list_remove(pool, block);
}

// ---- sequences --------------------------------------------------------------------------------
// Everything here edits block tables and reference counts. K and V move in one case only, when
// seq_append() meets a partly filled block that somebody else sees too.

int seq_create(Pool *pool, Seq **out)
{
    if (!pool || !out) return PAGED_BAD_ARGUMENT;
    Seq *seq = (Seq *)calloc(1, sizeof *seq);
    if (!seq) return PAGED_OUT_OF_MEMORY;
    seq->pool = pool;
    seq->index = (int)arrlen(pool->seqs);
    arrput(pool->seqs, seq);
    *out = seq;
    return PAGED_OK;
}

int seq_append(Seq *seq, int n)
{
    if (!seq || n < 0) return PAGED_BAD_ARGUMENT;
    if (n == 0) return PAGED_OK;
    Pool *pool = seq->pool;
    int block_size = pool->config.block_size;

    // 1. Count, before anything is touched.
    int64_t length = (int64_t)seq->length + n;
    if (length > (int64_t)pool->config.num_blocks * block_size || length > INT_MAX)
        return PAGED_TOO_LONG;
    int have = (int)arrlen(seq->block_table), need = ceil_div(length, block_size);
    int live = seq->length % block_size;  // filled slots of the last block; 0: it is full
    // A block that others see is never written. With a count of 1 nobody else can see it, unless it
    // is published: write in place. A full block is not written again, so it can stay shared.
    int copy = live > 0 && block_sealed(pool, seq->block_table[have - 1]);
    if (need - have + copy > pool->num_free) return PAGED_OUT_OF_BLOCKS;

    // 2. Copy-on-write: take the new block, fill it, put it into the table, and only then let go
    //    of the old one.
    if (copy) {
        int shared = seq->block_table[have - 1], own = block_take(pool);
        move_slots(pool, own, shared, 0, live);
        seq->block_table[have - 1] = own;
        block_drop(pool, shared);
        pool->num_copies++;
    }

    // 3. Grow.
    for (int i = have; i < need; i++) arrput(seq->block_table, block_take(pool));
    seq->length = (int)length;
    return PAGED_OK;
}

int seq_fork(const Seq *parent, int at, Seq **out)
{
    if (!parent || !out || at < 0 || at > parent->length) return PAGED_BAD_ARGUMENT;
    Pool *pool = parent->pool;
    Seq *child;
    int block_size = pool->config.block_size, error = seq_create(pool, &child);
    if (error) return error;
    for (int i = 0; i < ceil_div(at, block_size); i++) {
        arrput(child->block_table, parent->block_table[i]);
        block_share(pool, parent->block_table[i]);
    }
    child->length = at;
    child->written = at < parent->written ? at : parent->written;
    child->published = at / block_size < parent->published ? at / block_size : parent->published;
    *out = child;
    return PAGED_OK;
}

int seq_rewind(Seq *seq, int n)
{
    if (!seq || n < 0 || n > seq->length) return PAGED_BAD_ARGUMENT;
    Pool *pool = seq->pool;
    int block_size = pool->config.block_size, length = seq->length - n;
    // Last block first: it ends up behind the others on the free list, and the same sequence,
    // grown again, gets the same blocks in the same order.
    while ((int)arrlen(seq->block_table) > ceil_div(length, block_size))
        block_drop(pool, arrpop(seq->block_table));
    seq->length = length;
    if (seq->written > length) seq->written = length;
    if (seq->published > length / block_size) seq->published = length / block_size;
    int live = length % block_size;  // of the last block; what comes after it is void now
    if (live > 0 && !block_sealed(pool, arrlast(seq->block_table)))
        block_poison(pool, arrlast(seq->block_table), live, block_size - live);
    return PAGED_OK;
}

void seq_release(Seq *seq)
{
    if (!seq) return;
    Pool *pool = seq->pool;
    INVARIANT(seq->index < arrlen(pool->seqs) && pool->seqs[seq->index] == seq,
              "a sequence that its pool does not know is released");
    seq_rewind(seq, seq->length);
    arrdelswap(pool->seqs, seq->index);  // the last sequence of the list takes the place
    if (seq->index < arrlen(pool->seqs)) pool->seqs[seq->index]->index = seq->index;
    arrfree(seq->block_table);
    free(seq);
}

// ---- prefix cache -----------------------------------------------------------------------------
// A published block is found by its tokens and all tokens before it, as K and V depend on these,
// too. It would be long to compare them all. So each publication gets a number, its serial, and
// keeps that of the block before it: (parent's serial, own tokens) names the whole beginning. The
// id of the parent would not do: the parent may be evicted and its memory hold something else,
// while a serial is never used again, so that the children of an evicted block are never found.
//
// The map goes from the hash of that pair to the first block of that hash, and next_alike from
// there to the others. Two different blocks may well have the same hash: a hit is believed
// only after serial and tokens were compared. Publishing is a flag of the block and no reference. A
// published block that nobody uses is on the free list, and is forgotten when it is taken.
//
// An older scheme names a block by the hash of its own tokens alone, and gives one prompt the K and
// V of another.

static uint64_t prefix_hash(uint64_t parent, const int *tokens, int n)
{
    uint64_t hash = parent;
    for (int i = 0; i < n; i++) {  // a round of splitmix64 for each token
        hash = (hash ^ (uint32_t)tokens[i]) + 0x9e3779b97f4a7c15;
        hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
        hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
        hash ^= hash >> 31;
    }
    return hash;
}

static int *block_tokens(const Pool *pool, int block)
{
    return pool->tokens + (size_t)block * pool->config.block_size;
}

// The published block with these tokens behind that parent, or -1.
static int prefix_find(Pool *pool, uint64_t parent, const int *tokens)
{
    int n = pool->config.block_size;
    uint64_t hash = pool->hash(parent, tokens, n);
    ptrdiff_t entry = hmgeti(pool->prefixes, hash);
    int block = entry < 0 ? -1 : pool->prefixes[entry].value;
    for (; block >= 0; block = pool->blocks[block].next_alike)
        if (pool->blocks[block].parent == parent &&
            memcmp(block_tokens(pool, block), tokens, n * sizeof *tokens) == 0)
            break;
    return block;
}

static void prefix_insert(Pool *pool, int block, uint64_t parent, const int *tokens)
{
    int n = pool->config.block_size;
    Block *b = &pool->blocks[block];
    uint64_t hash = pool->hash(parent, tokens, n);
    ptrdiff_t entry = hmgeti(pool->prefixes, hash);
    b->next_alike = entry < 0 ? -1 : pool->prefixes[entry].value;
    b->serial = ++pool->last_serial;
    b->parent = parent;
    memcpy(block_tokens(pool, block), tokens, n * sizeof *tokens);
    hmput(pool->prefixes, hash, block);
}

static void prefix_remove(Pool *pool, int block)
{
    Block *b = &pool->blocks[block];
    uint64_t hash = pool->hash(b->parent, block_tokens(pool, block), pool->config.block_size);
    ptrdiff_t entry = hmgeti(pool->prefixes, hash);
    INVARIANT(entry >= 0, "a published block is not in the map");
    int *link = &pool->prefixes[entry].value;  // what names the block: the map or another block
    while (*link != block) link = &pool->blocks[*link].next_alike;
    *link = b->next_alike;
    if (pool->prefixes[entry].value < 0) (void)hmdel(pool->prefixes, hash);
    b->serial = b->parent = 0;
}

int seq_lookup(Seq *seq, const int *tokens, int n)
{
    if (!seq || seq->length > 0 || n < 0 || (n > 0 && !tokens)) return PAGED_BAD_ARGUMENT;
    Pool *pool = seq->pool;
    int block_size = pool->config.block_size, block;
    uint64_t parent = 0;
    // The last token is always left to compute: its logits are what the request is waiting for.
    for (int64_t end = block_size; end < n; end += block_size) {
        block = prefix_find(pool, parent, tokens + end - block_size);
        if (block < 0) break;
        block_share(pool, block);
        arrput(seq->block_table, block);
        seq->length = seq->written = (int)end;
        seq->published++;
        parent = pool->blocks[block].serial;
    }
    return PAGED_OK;
}

int seq_publish(Seq *seq, const int *tokens, int n)
{
    if (!seq || n < 0 || n > seq->written || (n > 0 && !tokens)) return PAGED_BAD_ARGUMENT;
    Pool *pool = seq->pool;
    int block_size = pool->config.block_size;
    for (int i = seq->published; i < n / block_size; i++) {
        const int *own_tokens = tokens + (size_t)i * block_size;
        int own = seq->block_table[i];
        uint64_t parent = i > 0 ? pool->blocks[seq->block_table[i - 1]].serial : 0;
        int block = prefix_find(pool, parent, own_tokens);
        if (block < 0) {
            // It may be published already, by a sequence that shares it, behind another copy of the
            // parent. That sequence is gone (it would hold the parent, which would be found), so
            // nobody's chain breaks when the block gets a new serial.
            if (pool->blocks[own].serial) prefix_remove(pool, own);
            prefix_insert(pool, own, parent, own_tokens);
        } else if (block != own) {  // somebody was faster: one copy is enough
            block_share(pool, block);
            seq->block_table[i] = block;
            block_drop(pool, own);
        }
        seq->published = i + 1;
    }
    return PAGED_OK;
}

// ---- K and V ----------------------------------------------------------------------------------
// A batch is ragged: sequence i brings num_tokens[i] rows. Before anything is moved or read, it is
// unrolled into a Step: flat arrays that say for every row to which sequence it belongs and where
// in that sequence it stands, and for every sequence which blocks it has. No pointer to a Seq is
// left in it, so it is all that a kernel needs to know.
//
// A Piece is a part of the work of a step that does not depend on the others: a GPU has a thread
// block for each, the CPU does one after the other, as thread 0 of 1.

typedef struct Row {
    int seq;       // index in the batch
    int position;  // in that sequence
} Row;

typedef struct Step {
    PoolConfig layout;
    void *k, *v;  // planes of that layout
    int layer, num_seqs, num_rows, table_width;
    int longest;             // the most positions that a row sees
    const int *tables;       // [num_seqs][table_width], block tables padded with -1
    const Row *rows;         // [num_rows]
    float *k_rows, *v_rows;  // to write, or to gather: [num_rows][num_kv_heads][head_dim]
    int write;
    PoolConfig dense;  // dense gather: layout and planes of the copy
    void *dense_k, *dense_v;
    int num_q_heads, num_splits;  // attention
    float scale;
    const float *q;              // [num_rows][num_q_heads][head_dim]
    float *out, *lse;            // likewise; [num_rows][num_q_heads] or NULL
    float *partial;              // [num_rows][num_q_heads][num_splits][head_dim + 2]
    int to, from, first, count;  // move_slots()
} Step;

typedef struct Piece {
    int x, y, thread, threads;
} Piece;

// The walk of section "layout": where K and V of a token and head are, as an element of a plane.
HD static size_t step_offset(const Step *s, int seq, int position, int kv_head)
{
    const PoolConfig *c = &s->layout;
    int block = s->tables[(size_t)seq * s->table_width + position / c->block_size];
    return kv_offset(c, s->layer, block, kv_head, position % c->block_size);
}

// Row x of k_rows and v_rows, rounded, to its slot; or back from there, which is exact.
HD static void move_row(const Step *s, Piece p)
{
    int dim = s->layout.head_dim, dtype = s->layout.dtype, n = s->layout.num_kv_heads * dim;
    float *k = s->k_rows + (size_t)p.x * n, *v = s->v_rows + (size_t)p.x * n;
    for (int i = p.thread; i < n; i += p.threads) {
        size_t at = step_offset(s, s->rows[p.x].seq, s->rows[p.x].position, i / dim) + i % dim;
        if (s->write) {
            store_element(s->k, at, dtype, k[i]);
            store_element(s->v, at, dtype, v[i]);
        } else {
            k[i] = load_element(s->k, at, dtype);
            v[i] = load_element(s->v, at, dtype);
        }
    }
}

// `slots` slots of one head, from one place of a plane to another; `from` NULL: NaN, which all bits
// set is in each of the three types. Two bytes at a time, as every dtype has an even size.
HD static void move_run(void *to, const void *from, int slots, const PoolConfig *c, Piece p)
{
    size_t bytes = (size_t)slots * c->head_dim * dtype_size(c->dtype);
    if (p.threads == 1 && from) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t i = p.thread; i < bytes / 2; i += p.threads)
        ((uint16_t *)to)[i] = from ? ((const uint16_t *)from)[i] : 0xffff;
}

HD static char *address(void *plane, const PoolConfig *c, int layer, int block, int head, int slot)
{
    return (char *)plane + kv_offset(c, layer, block, head, slot) * dtype_size(c->dtype);
}

// Copy-on-write, or poison, for layer x and head y.
HD static void move_block(const Step *s, Piece p)
{
    const PoolConfig *c = &s->layout;
    void *planes[2] = {s->k, s->v};
    for (int i = 0; i < 2; i++) {
        char *to = address(planes[i], c, p.x, s->to, p.y, s->first);
        char *from = address(planes[i], c, p.x, s->from < 0 ? 0 : s->from, p.y, s->first);
        move_run(to, s->from == POISON ? NULL : from, s->count, c, p);
    }
}

// Dense gather of entry x of the tables, for head y: from the pool into one contiguous piece. The
// copy is a small pool, too: one layer, and a block per sequence, as long as the longest. Slots
// that hold nothing are copied, too; no row sees them.
HD static void gather_block(const Step *s, Piece p)
{
    const PoolConfig *c = &s->layout;
    int seq = p.x / s->table_width, start = p.x % s->table_width * c->block_size;
    int left = s->longest - start, slots = left < c->block_size ? left : c->block_size;
    if (s->tables[p.x] < 0) return;  // padding: this sequence is shorter
    move_run(address(s->dense_k, &s->dense, 0, seq, p.y, start),
             address(s->k, c, s->layer, s->tables[p.x], p.y, 0), slots, c, p);
    move_run(address(s->dense_v, &s->dense, 0, seq, p.y, start),
             address(s->v, c, s->layer, s->tables[p.x], p.y, 0), slots, c, p);
}

// ---- attention on the CPU ---------------------------------------------------------------------
// out = sum over visible tokens t of softmax(q . K[t] * scale) V[t], for each query token and head.
//
// The sum is built up tile by tile, and never sees all scores at once (online softmax, Milakov and
// Gimelshein 2018). The state is m, the largest score so far, l, the sum of exp(score - m), and o,
// the sum of exp(score - m) V. When a tile raises m, what was summed before is scaled down by
// exp(old m - new m). The result is o / l.
//
// A tile is a fixed number of tokens, whatever the block size, so not one bit of the result depends
// on the block size; nor on whether the blocks are those of the pool or of a dense copy.

enum { TILE = 16 };

#ifndef THREADS_FROM
#define THREADS_FROM 100000  // elements of K to be read: some 50 microseconds; less is not shared
#endif

// One head's vector of one token as float32: in place if that is how it is stored, else in buffer.
static const float *vector_at(const void *plane, size_t at, const PoolConfig *c, float *buffer)
{
    if (c->dtype == PAGED_F32) return (const float *)plane + at;
    for (int i = 0; i < c->head_dim; i++) buffer[i] = load_element(plane, at + i, c->dtype);
    return buffer;
}

static void attend_row(const Step *s, int r, int head)
{
    const PoolConfig *c = &s->layout;
    int seq = s->rows[r].seq, visible = s->rows[r].position + 1;  // itself included
    int kv_head = head / (s->num_q_heads / c->num_kv_heads);
    size_t vector = ((size_t)r * s->num_q_heads + head) * c->head_dim;
    const float *q = s->q + vector;
    float m = -INFINITY, l = 0, o[PAGED_MAX_HEAD_DIM] = {0}, buffer[PAGED_MAX_HEAD_DIM];

    for (int start = 0; start < visible; start += TILE) {
        int tokens = visible - start < TILE ? visible - start : TILE;

        // 1. The scores of this tile, and the maximum so far.
        float score[TILE], new_m = m;
        for (int t = 0; t < tokens; t++) {
            const float *k = vector_at(s->k, step_offset(s, seq, start + t, kv_head), c, buffer);
            float dot = 0;
            for (int i = 0; i < c->head_dim; i++) dot += q[i] * k[i];
            score[t] = dot * s->scale;
            if (!(score[t] <= new_m)) new_m = score[t];  // so written, NaN is not lost
        }
        if (new_m == -INFINITY) continue;  // nothing to see yet, and -inf minus -inf is NaN

        // 2. The weights and values of this tile.
        float sum = 0, acc[PAGED_MAX_HEAD_DIM] = {0};
        for (int t = 0; t < tokens; t++) {
            const float *v = vector_at(s->v, step_offset(s, seq, start + t, kv_head), c, buffer);
            float p = expf(score[t] - new_m);
            sum += p;
            for (int i = 0; i < c->head_dim; i++) acc[i] += p * v[i];
        }

        // 3. Into the running state, scaled to the new maximum (by 0 for the first tile).
        float shrink = expf(m - new_m);
        l = l * shrink + sum;
        for (int i = 0; i < c->head_dim; i++) o[i] = o[i] * shrink + acc[i];
        m = new_m;
    }
    for (int i = 0; i < c->head_dim; i++) s->out[vector + i] = l != 0 ? o[i] / l : 0;
    if (s->lse) s->lse[(size_t)r * s->num_q_heads + head] = m + logf(l);
}

#include "fast.c"  // the same for the usual shapes, as fast as plain C gets

// ---- GPU --------------------------------------------------------------------------------------
// A kernel is a function that runs in many threads at once. 32 of them are a warp and go hand in
// hand: a shuffle reads a variable of another lane. Some warps are a thread block, which has memory
// of its own, `shared`, and can meet at a barrier. A launch starts a grid of thread blocks.
//
// Without nvcc the kernels run on a stand-in, standin.h: threads are coroutines, so that gdb stops
// in any lane and the sanitizers see every access.

enum { WARP = 32, THREADS = 128, WARPS = THREADS / WARP };
#define ALL_LANES 0xffffffffu
#define LAUNCH(kernel, x, y, z, shared_floats, s) launch(kernel, #kernel, x, y, z, shared_floats, s)

#ifdef __CUDACC__

#define KERNEL static __global__ void
#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")  // so that arrays can live in registers
extern __shared__ __align__(16) float shared[];

static void launch(void (*kernel)(Step), const char *, int x, int y, int z, int shared_floats,
                   const Step *s)
{
    kernel<<<dim3(x, y, z), THREADS, shared_floats * sizeof(float)>>>(*s);
    CUDA(cudaGetLastError());
}

#else
#include "standin.h"
#endif

// ---- kernels ----------------------------------------------------------------------------------
// What moves K and V is the same code as on the CPU.

DEVICE Piece this_piece(void)
{
    Piece p = {(int)blockIdx.x, (int)blockIdx.y, (int)threadIdx.x, THREADS};
    return p;
}

KERNEL move_row_kernel(Step s) { move_row(&s, this_piece()); }
KERNEL move_block_kernel(Step s) { move_block(&s, this_piece()); }
KERNEL gather_block_kernel(Step s) { gather_block(&s, this_piece()); }

// Attention is a ladder of three rungs. In all of them each warp, or part of a warp, takes every so
// many-th token and ends with an (m, l, o) of its own, head_dim + 2 floats. Merging such states is
// what step 3 on the CPU does. This returns element d of the merged o, and m and l; a state with
// l = 0 has seen nothing, and is skipped (-inf minus -inf is NaN).
DEVICE float merge(const float *states, int count, int head_dim, int d, float *m, float *l)
{
    float o = 0;
    *m = -INFINITY;
    *l = 0;
    for (int i = 0; i < count; i++) *m = fmaxf(*m, states[i * (head_dim + 2)]);
    for (int i = 0; i < count; i++) {
        const float *state = states + i * (head_dim + 2);
        if (state[1] == 0) continue;
        float weight = expf(state[0] - *m);
        *l += weight * state[1];
        o += weight * state[2 + d];
    }
    return o;
}

// Rung 1 is dense gather: gather_block_kernel, then attend_paged over the copy.
//
// Rung 2, paged, the plain way: a thread block for each row and KV head, one warp a token, and the
// block table is read on the way. Lane i holds elements i, i + 32, ... of the vectors, so the 32
// lanes read neighbouring addresses; a dot product is summed in each lane, then across the lanes.
// Against rung 1 nothing is copied: K and V are read once, not read, written and read again.
KERNEL attend_paged(Step s)
{
    enum { PER_LANE = PAGED_MAX_HEAD_DIM / WARP };
    int row = blockIdx.x, kv_head = blockIdx.y, warp = threadIdx.x / WARP,
        lane = threadIdx.x % WARP;
    int head_dim = s.layout.head_dim, dtype = s.layout.dtype;
    int group = s.num_q_heads / s.layout.num_kv_heads;
    int seq = s.rows[row].seq, visible = s.rows[row].position + 1;

    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        size_t vector = ((size_t)row * s.num_q_heads + head) * head_dim;
        float q[PER_LANE], o[PER_LANE], m = -INFINITY, l = 0;
        for (int i = 0, d = lane; i < PER_LANE; i++, d += WARP) {
            q[i] = d < head_dim ? s.q[vector + d] * s.scale : 0;
            o[i] = 0;
        }
        for (int t = warp; t < visible; t += WARPS) {
            size_t at = step_offset(&s, seq, t, kv_head);
            float score = 0;
            for (int i = 0, d = lane; i < PER_LANE; i++, d += WARP)
                if (d < head_dim) score += q[i] * load_element(s.k, at + d, dtype);
            for (int bits = WARP / 2; bits > 0; bits /= 2)
                score += __shfl_xor_sync(ALL_LANES, score, bits);
            if (score == -INFINITY) continue;
            float new_m = fmaxf(m, score), shrink = expf(m - new_m), p = expf(score - new_m);
            l = l * shrink + p;
            for (int i = 0, d = lane; i < PER_LANE; i++, d += WARP)
                if (d < head_dim) o[i] = o[i] * shrink + p * load_element(s.v, at + d, dtype);
            m = new_m;
        }

        float *state = shared + warp * (head_dim + 2);
        for (int i = 0, d = lane; i < PER_LANE; i++, d += WARP)
            if (d < head_dim) state[2 + d] = o[i];
        if (lane == 0) state[0] = m, state[1] = l;
        __syncthreads();
        for (int d = threadIdx.x; d < head_dim; d += THREADS) {
            float sum = merge(shared, WARPS, head_dim, d, &m, &l);
            s.out[vector + d] = l != 0 ? sum / l : 0;
            if (d == 0 && s.lse) s.lse[(size_t)row * s.num_q_heads + head] = m + logf(l);
        }
        __syncthreads();  // all have read `shared`; the next head may write it
    }
}

// Rung 3, paged and split. The sequence is cut into splits of SPLIT tokens, each a thread block, so
// that one long sequence fills the whole GPU; a second kernel merges them. A lane holds 8
// neighbouring elements, which is 16 bytes of a 16-bit type, the most that one load can bring, and
// only as many lanes share a vector as it needs: several tokens to a warp, and fewer shuffles a
// sum. Up to `heads` query heads of a group use each K and V that was loaded. Memory answers after
// some 600 ns, so much must be asked for at once: the walk through the table is done first, for the
// whole split, and a lane then has K and V of IN_FLIGHT tokens on their way before it waits.
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

DEVICE void attend_split(const Step *s, int dtype, int heads)
{
    int head_dim = s->layout.head_dim, group = s->num_q_heads / s->layout.num_kv_heads;
    int tiles = (group + heads - 1) / heads;  // of query heads, in a group
    int row = blockIdx.x, kv_head = blockIdx.y / tiles, split = blockIdx.z;
    int head = kv_head * group + blockIdx.y % tiles * heads, end_head = (kv_head + 1) * group;
    int lanes = lanes_per_vector(head_dim), tokens = THREADS / lanes;
    int d = threadIdx.x % lanes * VEC, token = threadIdx.x / lanes;  // elements d.. of which token
    int start = split * SPLIT, left = s->rows[row].position + 1 - start;
    int count = left < SPLIT ? left : SPLIT;  // tokens of this split; none if it begins too late
    size_t vector = ((size_t)row * s->num_q_heads + head) * head_dim;

    // 1. The walk through the table, and the queries.
    Offset *offset = (Offset *)shared;  // [SPLIT]
    for (int t = threadIdx.x; t < count; t += THREADS)
        offset[t] = step_offset(s, s->rows[row].seq, start + t, kv_head);
    __syncthreads();
    float q[MAX_HEADS][VEC], o[MAX_HEADS][VEC], m[MAX_HEADS], l[MAX_HEADS];
    UNROLL
    for (int h = 0; h < heads; h++) {
        m[h] = -INFINITY;
        l[h] = 0;
        for (int i = 0; i < VEC; i++) {
            int live = head + h < end_head && d + i < head_dim;
            q[h][i] = live ? s->q[vector + h * head_dim + d + i] * s->scale : 0;
            o[h][i] = 0;
        }
    }

    // 2. IN_FLIGHT tokens at a time: all loads first, then scores, then the sum.
    for (int base = token; base - token < count; base += tokens * IN_FLIGHT) {
        Words k[IN_FLIGHT][2], v[IN_FLIGHT][2];
        for (int u = 0; u < IN_FLIGHT; u++) {
            int t = base + u * tokens;
            size_t at = t < count ? offset[t] + d : 0;
            load_words(s->k, at, dtype, t < count ? head_dim - d : 0, k[u]);
            load_words(s->v, at, dtype, t < count ? head_dim - d : 0, v[u]);
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
            float shrink = m[h] == new_m ? 1 : expf(m[h] - new_m);  // -inf minus -inf is NaN
            l[h] *= shrink;
            for (int i = 0; i < VEC; i++) o[h][i] *= shrink;
            for (int u = 0; u < IN_FLIGHT; u++) {
                float p = score[u] == -INFINITY ? 0 : expf(score[u] - new_m);
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
        size_t to = ((size_t)row * s->num_q_heads + head + h) * s->num_splits + split;
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
    KERNEL attend_split_##suffix(Step s) { attend_split(&s, dtype, heads); }
ATTEND_SPLIT(f32_1, PAGED_F32, 1)
ATTEND_SPLIT(f32_4, PAGED_F32, 4)
ATTEND_SPLIT(f32_8, PAGED_F32, 8)
ATTEND_SPLIT(f16_1, PAGED_F16, 1)
ATTEND_SPLIT(f16_4, PAGED_F16, 4)
ATTEND_SPLIT(f16_8, PAGED_F16, 8)
ATTEND_SPLIT(bf16_1, PAGED_BF16, 1)
ATTEND_SPLIT(bf16_4, PAGED_BF16, 4)
ATTEND_SPLIT(bf16_8, PAGED_BF16, 8)

KERNEL merge_splits(Step s)  // of row x and query head y
{
    int head_dim = s.layout.head_dim, splits = s.rows[blockIdx.x].position / SPLIT + 1;
    size_t to = (size_t)blockIdx.x * s.num_q_heads + blockIdx.y;
    const float *states = s.partial + to * s.num_splits * (head_dim + 2);
    for (int d = threadIdx.x; d < head_dim; d += THREADS) {
        float m, l, o = merge(states, splits, head_dim, d, &m, &l);
        s.out[to * head_dim + d] = l != 0 ? o / l : 0;
        if (d == 0 && s.lse) s.lse[to] = m + logf(l);
    }
}

// ---- calls ------------------------------------------------------------------------------------
// A batch in, its rows and tables to the device of the pool, the work done there.

#define RUN(s, work, x, y) run(s, work, work##_kernel, #work, x, y)

static void run(const Step *s, void (*work)(const Step *, Piece), void (*kernel)(Step),
                const char *name, int num_x, int num_y)
{
    Piece p = {0, 0, 0, 1};
    if (s->layout.device == PAGED_GPU) {
        launch(kernel, name, num_x, num_y, 1, 0, s);
        CUDA(cudaDeviceSynchronize());
    } else
        for (p.y = 0; p.y < num_y; p.y++)
            for (p.x = 0; p.x < num_x; p.x++) work(s, p);
}

static Step step_of(const Pool *pool)
{
    Step s;
    memset(&s, 0, sizeof s);
    s.layout = pool->config;
    s.k = pool->k, s.v = pool->v;
    return s;
}

static void move_slots(Pool *pool, int to, int from, int first, int count)
{
    Step s = step_of(pool);
    s.to = to, s.from = from, s.first = first, s.count = count;
    RUN(&s, move_block, s.layout.num_layers, s.layout.num_kv_heads);
}

// Validates a batch and measures it.
static int step_create(Pool *pool, int layer, const Batch *batch, Step *s)
{
    if (!pool || layer < 0 || layer >= pool->config.num_layers || !batch || batch->num_seqs < 0 ||
        batch->num_seqs > arrlen(pool->seqs) ||  // then one would be in it twice
        (batch->num_seqs > 0 && (!batch->seqs || !batch->num_tokens)))
        return PAGED_BAD_ARGUMENT;
    char *seen = (char *)calloc(arrlenu(pool->seqs) + 1, 1);  // [seq->index]
    if (!seen) return PAGED_OUT_OF_MEMORY;
    int64_t num_rows = 0, ok = 1;
    *s = step_of(pool);
    for (int i = 0; i < batch->num_seqs && ok; i++) {
        const Seq *seq = batch->seqs[i];
        int n = batch->num_tokens[i];
        ok = seq && seq->pool == pool && !seen[seq->index]++ && n >= 0 && n <= seq->length;
        if (ok && n > 0 && s->longest < seq->length) s->longest = seq->length;
        num_rows += n;
    }
    free(seen);
    s->layer = layer;
    s->num_seqs = batch->num_seqs;
    s->num_rows = (int)num_rows;
    s->table_width = ceil_div(s->longest, s->layout.block_size);
    ok = ok && num_rows <= INT_MAX && (int64_t)s->num_seqs * s->table_width <= INT_MAX;
    return ok ? PAGED_OK : PAGED_BAD_ARGUMENT;
}

// Unrolls the batch into the workspace of the pool, on its device, and makes room for `extra` bytes
// behind it, at *room. From here on the tables of the sequences may change.
static int step_upload(Pool *pool, const Batch *batch, Step *s, size_t extra, char **room)
{
    size_t entries = (size_t)s->num_seqs * (s->table_width + 1);
    size_t bytes = (s->num_rows * sizeof(Row) + entries * sizeof(int) + 255) / 256 * 256;
    Row *row = (Row *)malloc(bytes), *rows = row;
    if (!row) return PAGED_OUT_OF_MEMORY;
    int *entry = (int *)(row + s->num_rows), ok = 1;
    for (int i = 0; i < s->num_seqs; i++) {
        const Seq *seq = batch->seqs[i];
        int n = batch->num_tokens[i], used = n > 0 ? (int)arrlen(seq->block_table) : 0;
        for (int j = 0; j < s->table_width; j++, entry++) {
            *entry = j < used ? seq->block_table[j] : -1;
            if (j < used && (*entry < 0 || *entry >= s->layout.num_blocks)) ok = 0;
        }
        for (int t = seq->length - n; t < seq->length; t++, row++) row->seq = i, row->position = t;
    }
    for (int i = 0; i < s->num_seqs; i++) *entry++ = i;  // tables of a dense copy: block i for i
    int error = ok ? PAGED_OK : PAGED_BAD_ARGUMENT;
    if (ok && pool->workspace_bytes < bytes + extra) {  // it grows, and is kept
        memory_free(s->layout.device, pool->workspace);
        pool->workspace = memory_create(s->layout.device, bytes + extra);
        pool->workspace_bytes = pool->workspace ? bytes + extra : 0;
        if (!pool->workspace) error = PAGED_OUT_OF_MEMORY;
    }
    if (!error) memory_copy(s->layout.device, pool->workspace, rows, bytes);
    free(rows);
    if (error) return error;
    s->rows = (const Row *)pool->workspace;
    s->tables = (const int *)(s->rows + s->num_rows);
    *room = (char *)pool->workspace + bytes;
    return PAGED_OK;
}

static int move_rows(Pool *pool, int layer, const Batch *batch, float *k, float *v, int write)
{
    Step s;
    char *room;
    int error = step_create(pool, layer, batch, &s);
    if (error || s.num_rows == 0) return error;
    if (!k || !v) return PAGED_BAD_ARGUMENT;
    error = step_upload(pool, batch, &s, 0, &room);
    for (int i = 0; i < batch->num_seqs && write && !error; i++) {
        const Seq *seq = batch->seqs[i];
        int first = (seq->length - batch->num_tokens[i]) / s.layout.block_size;
        if (batch->num_tokens[i] == 0) continue;
        for (int j = first; j < (int)arrlen(seq->block_table); j++)
            if (block_sealed(pool, seq->block_table[j])) error = PAGED_BLOCK_SHARED;
    }
    if (error) return error;
    s.k_rows = k, s.v_rows = v, s.write = write;
    RUN(&s, move_row, s.num_rows, 1);
    for (int i = 0; i < batch->num_seqs && write && layer == s.layout.num_layers - 1; i++) {
        Seq *seq = batch->seqs[i];
        if (seq->length - batch->num_tokens[i] <= seq->written) seq->written = seq->length;
    }
    return PAGED_OK;
}

int pool_write(Pool *pool, int layer, const Batch *batch, const float *k, const float *v)
{
    return move_rows(pool, layer, batch, (float *)k, (float *)v, 1);
}

int seq_gather(const Seq *seq, int layer, float *k, float *v)
{
    if (!seq) return PAGED_BAD_ARGUMENT;
    Batch all = {1, &seq->pool->seqs[seq->index], &seq->length};
    return move_rows(seq->pool, layer, &all, k, v, 0);
}

static void attend_on_cpu(const Step *s, int method)
{
    if (method != ATTEND_PLAIN && attend_fast(s)) return;
    int64_t items = (int64_t)s->num_rows * s->num_q_heads;
#ifdef _OPENMP
    int64_t least = THREADS_FROM / s->longest / s->layout.head_dim;
#pragma omp parallel for schedule(dynamic) if (items > least)
#endif
    for (int64_t i = 0; i < items; i++)
        attend_row(s, (int)(i / s->num_q_heads), (int)(i % s->num_q_heads));
}

static void attend_on_gpu(const Step *s, int method)
{
    static void (*const split[3][3])(Step) = {
        {attend_split_f32_1, attend_split_f32_4, attend_split_f32_8},
        {attend_split_f16_1, attend_split_f16_4, attend_split_f16_8},
        {attend_split_bf16_1, attend_split_bf16_4, attend_split_bf16_8}};
    int head_dim = s->layout.head_dim, kv_heads = s->layout.num_kv_heads;
    int group = s->num_q_heads / kv_heads, wide = (group > 1) + (group > 4),
        heads = wide ? 4 * wide : 1;
    if (method != ATTEND_SPLIT || s->num_splits > 65535) {  // the most that a grid has
        LAUNCH(attend_paged, s->num_rows, kv_heads, 1, WARPS * (head_dim + 2), s);
        return;
    }
    int tokens = THREADS / lanes_per_vector(head_dim);
    launch(split[s->layout.dtype][wide], "attend_split", s->num_rows,
           kv_heads * ceil_div(group, heads), s->num_splits,
           SPLIT * (int)(sizeof(size_t) / sizeof(float)) + tokens * (head_dim + 2), s);
    LAUNCH(merge_splits, s->num_rows, s->num_q_heads, 1, 0, s);
}

int attend(Pool *pool, int method, int layer, const Batch *batch, int num_q_heads, float scale,
           const float *q, float *out, float *lse)
{
    Step s;
    char *room;
    int error = step_create(pool, layer, batch, &s);
    if (error) return error;
    const PoolConfig *c = &pool->config;
    if (method < ATTEND_GATHER || method > ATTEND_PLAIN || num_q_heads < 1 ||
        num_q_heads > PAGED_MAX_Q_HEADS || !isfinite(scale) || num_q_heads % c->num_kv_heads != 0 ||
        (s.num_rows > 0 && (!q || !out)))
        return PAGED_BAD_ARGUMENT;
    if (s.num_rows == 0) return PAGED_OK;
    s.num_q_heads = num_q_heads;
    s.scale = scale == 0 ? 1 / sqrtf((float)c->head_dim) : scale;
    s.q = q, s.out = out, s.lse = lse;
    s.num_splits = ceil_div(s.longest, SPLIT);

    size_t extra = 1;
    if (method == ATTEND_GATHER) {
        s.dense = *c;
        s.dense.num_layers = 1;
        s.dense.num_blocks = s.num_seqs;
        s.dense.block_size = s.longest;
        extra = multiply(pool_bytes_per_block(&s.dense), s.num_seqs);
    } else if (c->device == PAGED_GPU) {
        extra = multiply((size_t)s.num_rows * num_q_heads, s.num_splits);
        extra = multiply(extra, (c->head_dim + 2) * sizeof(float));
    }
    if (extra == 0 || extra > PTRDIFF_MAX) return PAGED_OUT_OF_MEMORY;
    error = step_upload(pool, batch, &s, extra, &room);
    if (error) return error;
    s.partial = (float *)room;
    if (method == ATTEND_GATHER) {
        s.dense_k = room, s.dense_v = room + extra / 2;
        RUN(&s, gather_block, s.num_seqs * s.table_width, c->num_kv_heads);
        s.layout = s.dense;  // and from here on the step reads the copy
        s.layer = 0;
        s.k = s.dense_k, s.v = s.dense_v;
        s.tables += (size_t)s.num_seqs * s.table_width;
        s.table_width = 1;
    }
    if (c->device == PAGED_GPU) {
        attend_on_gpu(&s, method);
        CUDA(cudaDeviceSynchronize());
    } else
        attend_on_cpu(&s, method);
    return PAGED_OK;
}

float *tensor_create(const Pool *pool, size_t count)
{
    size_t bytes = multiply(count, sizeof(float));
    return pool && bytes > 0 ? (float *)memory_create(pool->config.device, bytes) : NULL;
}

void tensor_free(const Pool *pool, float *tensor)
{
    if (pool) memory_free(pool->config.device, tensor);
}

void tensor_copy(const Pool *pool, float *to, const float *from, size_t count)
{
    if (pool && to && from) memory_copy(pool->config.device, to, from, count * sizeof(float));
}

// ---- check and dump ---------------------------------------------------------------------------
// For tests, debuggers and the tour. In gdb: print pool_check(pool), call pool_dump(pool, 0).

static const char *broken(const char *format, ...)
{
    static char message[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return message;
}

// Counts in seen[block] how often the block tables name each block.
static const char *check_tables(const Pool *pool, int *seen)
{
    for (int s = 0; s < (int)arrlen(pool->seqs); s++) {
        const Seq *seq = pool->seqs[s];
        int entries = (int)arrlen(seq->block_table);
        if (seq->pool != pool || seq->index != s)
            return broken("sequence %d: wrong pool, or index %d", s, seq->index);
        if (seq->written < 0 || seq->written > seq->length || seq->published < 0 ||
            seq->published > seq->written / pool->config.block_size)
            return broken("sequence %d: %d tokens, %d written, %d blocks published", s, seq->length,
                          seq->written, seq->published);
        if (seq->length < 0 || entries != ceil_div(seq->length, pool->config.block_size))
            return broken("sequence %d: %d blocks for %d tokens", s, entries, seq->length);
        for (int i = 0; i < entries; i++) {
            int block = seq->block_table[i];
            if (block < 0 || block >= pool->config.num_blocks)
                return broken("sequence %d: entry %d of its table is %d", s, i, block);
            seen[block]++;
        }
    }
    return NULL;
}

// Follows the free list from its head and back to it. A block met twice has a wrong link back.
static const char *check_free_list(const Pool *pool)
{
    const Block *b = pool->blocks;
    int head = pool->config.num_blocks, prev = head, count = 0;
    for (int block = b[head].next; block != head; prev = block, block = b[block].next, count++) {
        if (block < 0 || block > head) return broken("free list: %d is no block", block);
        if (b[block].prev != prev)
            return broken("free list: block %d has a wrong link back", block);
        if (b[block].ref_count != 0)
            return broken("free list: block %d has reference count %d", block, b[block].ref_count);
        if (b[prev].serial && !b[block].serial)
            return broken("free list: block %d stands behind published ones", block);
    }
    if (b[head].prev != prev) return broken("free list: its head has a wrong link back");
    if (count == pool->num_free) return NULL;
    return broken("free list: %d blocks, but num_free is %d", count, pool->num_free);
}

// Every published block is in the map once, under its hash, and was published after its parent.
// What a sequence has published is a chain of parents and children.
static const char *check_prefixes(const Pool *pool)
{
    const Block *b = pool->blocks;
    int published = 0, found = 0;
    for (int block = 0; block < pool->config.num_blocks; block++) {
        published += b[block].serial != 0;
        if (b[block].serial > pool->last_serial ||
            (b[block].serial && b[block].parent >= b[block].serial))
            return broken("block %d: published before its parent, or in the future", block);
    }
    for (int i = 0; i < (int)hmlen(pool->prefixes); i++) {
        int block = pool->prefixes[i].value;
        do {
            if (block < 0 || block >= pool->config.num_blocks || !b[block].serial ||
                ++found > published)
                return broken("prefix cache: it leads to block %d", block);
            if (pool->hash(b[block].parent, block_tokens(pool, block), pool->config.block_size) !=
                pool->prefixes[i].key)
                return broken("prefix cache: block %d stands under another hash", block);
            block = b[block].next_alike;
        } while (block != -1);
    }
    if (found != published) return broken("prefix cache: %d blocks of %d", found, published);
    for (int s = 0; s < (int)arrlen(pool->seqs); s++) {
        uint64_t parent = 0;
        for (int i = 0; i < pool->seqs[s]->published; i++) {
            const Block *block = &b[pool->seqs[s]->block_table[i]];
            if (!block->serial || block->parent != parent)
                return broken("sequence %d: block %d is not the child of the one before", s, i);
            parent = block->serial;
        }
    }
    return NULL;
}

const char *pool_check(const Pool *pool)
{
    if (!pool) return broken("no pool");
    int *seen = (int *)calloc(pool->config.num_blocks, sizeof *seen), used = 0;
    if (!seen) return broken("no memory for the check");
    const char *wrong = check_tables(pool, seen);
    for (int block = 0; block < pool->config.num_blocks && !wrong; block++) {
        used += seen[block] > 0;
        if (pool->blocks[block].ref_count != seen[block])
            wrong = broken("block %d: reference count %d, but %d table entries", block,
                           pool->blocks[block].ref_count, seen[block]);
    }
    free(seen);
    if (!wrong) wrong = check_free_list(pool);
    if (!wrong) wrong = check_prefixes(pool);
    if (!wrong && used + pool->num_free != pool->config.num_blocks)
        wrong = broken("%d blocks in use and %d free are not all", used, pool->num_free);
    return wrong;
}

void pool_dump(const Pool *pool, FILE *out)
{
    enum { WIDTH = 64 };
    if (!pool) return;
    if (!out) out = stdout;
    int n = pool->config.num_blocks, used = n - pool->num_free;
    fprintf(out, "pool of %d blocks of %d tokens: %d used, %d free, %.1f %% in use\n", n,
            pool->config.block_size, used, pool->num_free, 100.0 * used / n);
    char line[WIDTH + 1], above[WIDTH + 1] = "", stars = 0;
    for (int64_t start = 0; start < n; start += WIDTH) {
        int width = n - start < WIDTH ? (int)(n - start) : WIDTH;
        for (int i = 0; i < width; i++) {
            int count = pool->blocks[start + i].ref_count;
            int published = pool->blocks[start + i].serial != 0;
            line[i] = count >= 10 ? '+' : count ? (char)('0' + count) : published ? 'p' : '.';
        }
        line[width] = 0;
        stars = strcmp(line, above) == 0 ? stars + (stars < 2) : 0;  // as hexdump does: "*" for
        if (stars == 0)
            fprintf(out, "%8d  %s\n", (int)start, line);  // all lines like the one above
        if (stars == 1) fprintf(out, "%8s\n", "*");
        strcpy(above, line);
    }
}

void seq_dump(const Seq *seq, FILE *out)
{
    enum { WIDTH = 13 };
    static const char *const titles[4] = {"logical", "physical", "filled", "ref_count"};
    if (!out) out = stdout;
    if (!seq) return;
    int entries = (int)arrlen(seq->block_table), block_size = seq->pool->config.block_size;
    fprintf(out, "sequence of %d tokens in %d blocks of %d\n", seq->length, entries, block_size);
    for (int start = 0; start < entries; start += WIDTH)
        for (int line = 0; line < 4; line++) {
            fprintf(out, "  %-9s", titles[line]);
            for (int i = start; i < entries && i < start + WIDTH; i++) {
                int block = seq->block_table[i], left = seq->length - i * block_size;
                int filled = left < block_size ? left : block_size;
                int values[4] = {i, block, filled, seq->pool->blocks[block].ref_count};
                fprintf(out, " %4d", values[line]);
            }
            fprintf(out, "\n");
        }
}

#include "oracle.c"  // the same without blocks, plain as can be: the judge of all the above

#ifndef PAGED_NO_MAIN
#include "examples/tour.c"  // main: the numbers of the literature, on live pools
#endif
