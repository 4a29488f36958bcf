// paged: PagedAttention in one file.
//
// The length of an answer is not known in advance, and a KV cache that reserves the maximum for
// every request wastes most of its memory. PagedAttention (Kwon et al., SOSP 2023) does what
// operating systems do with pages: a request gets a block of a few tokens when it needs one, and
// attention finds the blocks of a sequence through its block table.
//
// Read paged.h first, then this file from top to bottom. Layout, memory, pool, sequences and prefix
// cache are bookkeeping: they decide where each token goes. The sections from "a step" to "calls"
// store the tokens there and compute with them. The rest can wait: check and dump, the oracle (the
// same cache without blocks, which judges all of the above), the stand-in for a GPU, and main, one
// screen that shows the ideas on live pools.
//
// Left out on purpose: sampling, models and servers (see examples/), vector code and split-KV
// kernels (see fast/), 8-bit caches, sliding windows.
//
//     cc -O2 paged.cu.c -o paged -lm && ./paged

#define _GNU_SOURCE 1  // makes headers expose GNU names even under -std=c11
#include "paged.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
#if defined __FAST_MATH__ || __FINITE_MATH_ONLY__ || defined __ASSOCIATIVE_MATH__
#error "-ffast-math and -Ofast let compilers assume that there is no NaN, and reorder sums"
#endif

// After a broken invariant, memory can no longer be trusted. A debugger stops here.
__attribute__((noreturn)) static void panic(const char *file, int line, const char *what,
                                            const char *why)
{
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, why);
    abort();
}

#define INVARIANT(ok, why) ((ok) ? (void)0 : panic(__FILE__, __LINE__, #ok, why))

// stb_ds: a dynamic array is a plain pointer `int *a` with its length hidden in front of it:
// arrlen(a), arrput(a, x), arrpop(a); NULL is the empty one. arrput may move the array and assigns
// to `a`, so never keep a second pointer to it. stb_ds does not check whether its realloc succeeds,
// so this one does. Oracles use it, too; all other allocations can return an error.
static void *realloc_or_panic(void *old, size_t size)
{
    void *p = realloc(old, size);
    INVARIANT(p, "out of memory");
    return p;
}

#define STBDS_REALLOC(context, pointer, size) realloc_or_panic(pointer, size)
#define STBDS_FREE(context, pointer) free(pointer)
#ifndef PAGED_NO_STB_DS  // defined if the program has its own copy of the functions of stb_ds
#define STB_DS_IMPLEMENTATION
#endif
#if __has_include("stb_ds.h")
#include "stb_ds.h"
#else
#include <stb/stb_ds.h>  // missing? apt install libstb-dev, or put stb_ds.h beside this file
#endif

// nvcc compiles this file for a CPU and a GPU; functions marked HD run on both.
#ifdef __CUDACC__
#include <cuda_fp16.h>
#define HD __host__ __device__
#define CUDA(call) INVARIANT((call) == cudaSuccess, cudaGetErrorString(cudaGetLastError()))
#else
#define HD
#define CUDA(call) (void)0  // no pool of this build is on a GPU
#endif

// The stand-in for a GPU has some machine code, of two processors, and works with sanitizers.
#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(PAGED_NO_STANDIN)
#define PAGED_NO_STANDIN
#endif
#ifndef __has_feature  // for gcc before 14
#define __has_feature(feature) 0
#endif

// ---- layout -----------------------------------------------------------------------------------
// From a token to its bytes; an operating system calls this the page table walk. K and V are planes
// [num_layers][num_blocks][num_kv_heads][block_size][head_dim], so the slots of one block and head
// are contiguous, which is how attention reads them. Offsets are size_t: a pool of a few GiB
// already has more elements than an int can count.

HD static size_t dtype_size(int dtype) { return dtype == PAGED_F32 ? 4 : 2; }

HD static size_t kv_offset(const PoolConfig *c, int layer, int block, int kv_head, int slot)
{
    size_t i = (size_t)layer * c->num_blocks + block;
    i = i * c->num_kv_heads + kv_head;
    i = i * c->block_size + slot;
    return i * c->head_dim;
}

// a / b, rounded up; a >= 0 and b > 0.
HD static int ceil_div(int64_t a, int b) { return (int)((a + b - 1) / b); }

HD static int min_int(int a, int b) { return a < b ? a : b; }

// a * b, or 0 if size_t, which may have 32 bits, cannot hold it. No size is 0 here.
static size_t multiply(uint64_t a, uint64_t b)
{
    if (a == 0 || b > SIZE_MAX / a) return 0;
    return (size_t)(a * b);
}

// ---- memory -----------------------------------------------------------------------------------
// The memory of a GPU, or host memory for the CPU and the stand-in.

static void *memory_create(int device, size_t bytes)
{
#ifdef __CUDACC__
    if (device == PAGED_GPU) {
        void *p = NULL;
        cudaError_t error = cudaMalloc(&p, bytes);
        if (error != cudaErrorMemoryAllocation) CUDA(error);  // perhaps that of an earlier kernel
        return p;
    }
#endif
    (void)device;
    // Aligned to cache lines; large allocations to huge pages of 2 MB, for fewer TLB misses. At
    // least 64 bytes stay unused at the end, so that vector code may read past the last element.
    size_t unit = bytes < 2 << 20 ? 64 : 2 << 20;
    if (bytes > PTRDIFF_MAX - 2 * unit) return NULL;
    void *p = aligned_alloc(unit, (bytes / unit + 2) * unit);
#ifdef MADV_HUGEPAGE
    if (p && unit > 64) (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

static void memory_free(int device, void *p)
{
    if (device == PAGED_GPU) {
        CUDA(cudaDeviceSynchronize());  // queued kernels may still use it
        CUDA(cudaFree(p));
    } else {
        free(p);
    }
}

// On a GPU, a copy runs after earlier kernels. If it is from or to the host, the caller waits, too.
static void memory_copy(int device, void *to, const void *from, size_t bytes)
{
    if (device == PAGED_GPU)
        CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    else
        memcpy(to, from, bytes);
}

// Sets all bits, which is NaN in every dtype.
static void memory_poison(int device, void *p, size_t bytes)
{
    if (device == PAGED_GPU)
        CUDA(cudaMemset(p, 0xff, bytes));
    else
        memset(p, 0xff, bytes);
}

// Makes room for `bytes` bytes; growing discards the contents. It allocates half as much again as
// requested, so that a batch that grows with every step rarely allocates.
static int memory_reserve(int device, Memory *memory, size_t bytes)
{
    if (bytes == 0 || bytes > PTRDIFF_MAX) return PAGED_OUT_OF_MEMORY;  // 0: a product overflowed
    if (bytes <= memory->bytes) return PAGED_OK;
    size_t size = bytes + bytes / 2;
    void *larger = memory_create(device, size);
    if (!larger) return PAGED_OUT_OF_MEMORY;
    memory_free(device, memory->p);
    memory->p = larger;
    memory->bytes = size;
    return PAGED_OK;
}

// ---- pool -------------------------------------------------------------------------------------
// K, V and the records of the blocks are allocated once. The free list is a ring, linked in both
// directions through the records; record num_blocks is its sentinel, so the ends need no special
// case. A block is taken from the front and, when its count falls to 0, returned to the front: the
// most recently used block is reused first, while it may still be in the processor's cache.
// Published blocks go to the back: the prefix cache, which comes later, finds such a block by its
// tokens for as long as its memory is not needed. A block with a serial is published.

static int config_ok(const PoolConfig *c)
{
    if (!c || c->num_layers < 1 || c->block_size < 1) return 0;
    if (c->num_kv_heads < 1 || c->num_kv_heads > PAGED_MAX_Q_HEADS) return 0;
    if (c->head_dim < 1 || c->head_dim > PAGED_MAX_HEAD_DIM) return 0;
    if (c->dtype < PAGED_F32 || c->dtype > PAGED_BF16) return 0;
    return c->device >= PAGED_CPU && c->device <= PAGED_STANDIN;
}

size_t pool_bytes_per_token(const PoolConfig *c)
{
    if (!config_ok(c)) return 0;
    size_t vectors = multiply(multiply(2, c->num_layers), c->num_kv_heads);  // 2: K and V
    return multiply(multiply(vectors, c->head_dim), dtype_size(c->dtype));
}

size_t pool_bytes_per_block(const PoolConfig *c)
{
    return c ? multiply(pool_bytes_per_token(c), c->block_size) : 0;
}

// Removes a free block from the ring, wherever it is: its links become -1, num_free falls by 1.
static void free_list_remove(Pool *pool, int block)
{
    Block *blocks = pool->blocks;
    blocks[blocks[block].prev].next = blocks[block].next;
    blocks[blocks[block].next].prev = blocks[block].prev;
    blocks[block].prev = blocks[block].next = -1;
    pool->num_free--;
}

// Inserts `block` after `prev`, which is a free block or the sentinel.
static void free_list_insert_after(Pool *pool, int prev, int block)
{
    Block *blocks = pool->blocks;
    blocks[block].prev = prev;
    blocks[block].next = blocks[prev].next;
    blocks[blocks[block].next].prev = block;
    blocks[prev].next = block;
    pool->num_free++;
}

static int device_exists(int device);              // section "check and dump"
static void prefix_remove(Pool *pool, int block);  // section "prefix cache"

int pool_create(const PoolConfig *config, Pool **out)
{
    if (!config_ok(config) || config->num_blocks < 1 || !out) return PAGED_BAD_ARGUMENT;
    if (!device_exists(config->device)) return PAGED_NO_GPU;
    int n = config->num_blocks;
    size_t plane = multiply(pool_bytes_per_block(config) / 2, n);
    if (plane == 0) return PAGED_OUT_OF_MEMORY;  // otherwise n * block_size fits size_t, too

    Pool *pool = (Pool *)calloc(1, sizeof *pool);
    if (!pool) return PAGED_OUT_OF_MEMORY;
    pool->config = *config;
    pool->k = memory_create(config->device, plane);
    pool->v = memory_create(config->device, plane);
    pool->blocks = (Block *)calloc((size_t)n + 1, sizeof(Block));
    pool->tokens = (int *)calloc((size_t)n * config->block_size, sizeof(int));
    pool->buckets = (int *)calloc(n, sizeof(int));
    if (!pool->k || !pool->v || !pool->blocks || !pool->tokens || !pool->buckets) {
        pool_destroy(pool);
        return PAGED_OUT_OF_MEMORY;
    }
    pool->num_buckets = n;
    memset(pool->buckets, 0xff, n * sizeof(int));  // -1: empty
    pool->blocks[n].prev = pool->blocks[n].next = n;
    for (int block = 0; block < n; block++)  // each at the back, so 0 is first
        free_list_insert_after(pool, pool->blocks[n].prev, block);
    *out = pool;
    return PAGED_OK;
}

void pool_destroy(Pool *pool)
{
    if (!pool) return;
    while (arrlen(pool->seqs) > 0) seq_release(arrlast(pool->seqs));
    arrfree(pool->seqs);
    free(pool->plan);
    memory_free(pool->config.device, pool->k);
    memory_free(pool->config.device, pool->v);
    memory_free(pool->config.device, pool->plan_memory.p);
    memory_free(pool->config.device, pool->workspace.p);
    memory_free(pool->config.device, pool->states.p);
    free(pool->buckets);
    free(pool->tokens);
    free(pool->blocks);
    free(pool);
}

// Copy-on-write: copies K and V of a block, in all layers.
static void block_copy(Pool *pool, int to, int from)
{
    const PoolConfig *c = &pool->config;
    size_t size = dtype_size(c->dtype);
    size_t bytes = kv_offset(c, 0, 1, 0, 0) * size;  // from one block to the next
    for (int layer = 0; layer < c->num_layers; layer++) {
        size_t from_at = kv_offset(c, layer, from, 0, 0) * size;
        size_t to_at = kv_offset(c, layer, to, 0, 0) * size;
        memory_copy(c->device, (char *)pool->k + to_at, (char *)pool->k + from_at, bytes);
        memory_copy(c->device, (char *)pool->v + to_at, (char *)pool->v + from_at, bytes);
    }
}

// Fills a block with NaN from slot `first` on, if the pool uses poison.
static void block_poison(Pool *pool, int block, int first)
{
    const PoolConfig *c = &pool->config;
    if (!c->poison) return;
    size_t size = dtype_size(c->dtype);
    size_t bytes = (size_t)(c->block_size - first) * c->head_dim * size;
    for (int layer = 0; layer < c->num_layers; layer++)
        for (int head = 0; head < c->num_kv_heads; head++) {
            size_t at = kv_offset(c, layer, block, head, first) * size;
            memory_poison(c->device, (char *)pool->k + at, bytes);
            memory_poison(c->device, (char *)pool->v + at, bytes);
        }
}

// A sealed block must not be written: other tables name it, or the prefix cache can find it.
static int block_sealed(const Pool *pool, int block)
{
    return pool->blocks[block].ref_count > 1 || pool->blocks[block].serial != 0;
}

// Takes the first free block, which the caller knows to exist, and counts one reference to it.
static int block_take(Pool *pool)
{
    int block = pool->blocks[pool->config.num_blocks].next;
    INVARIANT(pool->num_free > 0 && block < pool->config.num_blocks, "no free block to take");
    INVARIANT(pool->blocks[block].ref_count == 0, "a block on the free list is in use");
    free_list_remove(pool, block);
    if (pool->blocks[block].serial) prefix_remove(pool, block);
    pool->blocks[block].ref_count = 1;
    block_poison(pool, block, 0);
    return block;
}

// Drops one reference; the last one frees the block.
static void block_drop(Pool *pool, int block)
{
    Block *blocks = pool->blocks;
    int sentinel = pool->config.num_blocks;
    INVARIANT(blocks[block].ref_count > 0, "a free block is dropped");
    blocks[block].ref_count--;
    if (blocks[block].ref_count > 0) return;
    if (blocks[block].serial) {  // published: to the back
        free_list_insert_after(pool, blocks[sentinel].prev, block);
    } else {
        block_poison(pool, block, 0);
        free_list_insert_after(pool, sentinel, block);
    }
}

// Adds a reference to a block, which may be free.
static void block_share(Pool *pool, int block)
{
    if (pool->blocks[block].ref_count == 0) free_list_remove(pool, block);
    pool->blocks[block].ref_count++;
}

// ---- sequences --------------------------------------------------------------------------------
// Everything here edits block tables and reference counts. K and V are copied in one case only,
// when seq_append() meets a partly filled block that another sequence uses.

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

// A plan (section "a step") holds copies of block tables, and whether blocks are shared. So an edit
// or a fork of a sequence that is not empty calls this: a plan that includes it is out of date.
static void plan_expire(const Seq *seq)
{
    if (seq->plan_number == seq->pool->plan_number) seq->pool->plan_number = 0;
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
    int have = (int)arrlen(seq->block_table);
    int want = ceil_div(length, block_size);
    int filled = seq->length % block_size;  // slots of the last block; 0: it is full, or none
    int last = have > 0 ? seq->block_table[have - 1] : -1;
    int copy = filled > 0 && pool->blocks[last].ref_count > 1;  // a full block can stay shared
    int needed = want - have;
    if (copy) needed++;
    if (needed > pool->num_free) return PAGED_OUT_OF_BLOCKS;

    // 2. The last block, if it is partly filled. Shared: copy-on-write. Take the new block, fill
    //    it, put it into the table, and only then let go of the old one. Otherwise write in place;
    //    a published block first leaves the prefix cache, since its tokens are about to change.
    plan_expire(seq);
    if (copy) {
        int own = block_take(pool);
        block_copy(pool, own, last);
        seq->block_table[have - 1] = own;
        block_drop(pool, last);
        pool->num_copies++;
    } else if (filled > 0 && pool->blocks[last].serial) {
        prefix_remove(pool, last);
    }
    if (filled > 0) block_poison(pool, seq->block_table[have - 1], filled);  // the rest is stale

    // 3. Grow.
    for (int i = have; i < want; i++) arrput(seq->block_table, block_take(pool));
    seq->length = (int)length;
    return PAGED_OK;
}

int seq_fork(const Seq *parent, int at, Seq **out)
{
    if (!parent || !out || at < 0 || at > parent->length) return PAGED_BAD_ARGUMENT;
    Pool *pool = parent->pool;
    Seq *child;
    int error = seq_create(pool, &child);
    if (error) return error;
    if (at > 0) plan_expire(parent);
    for (int i = 0; i < ceil_div(at, pool->config.block_size); i++) {
        arrput(child->block_table, parent->block_table[i]);
        block_share(pool, parent->block_table[i]);
    }
    child->length = at;
    child->num_computed_tokens = min_int(at, parent->num_computed_tokens);
    *out = child;
    return PAGED_OK;
}

int seq_rewind(Seq *seq, int n)
{
    if (!seq || n < 0 || n > seq->length) return PAGED_BAD_ARGUMENT;
    if (n == 0) return PAGED_OK;
    Pool *pool = seq->pool;
    int block_size = pool->config.block_size;
    int length = seq->length - n;
    plan_expire(seq);
    // The last block goes first. The others then precede it on the free list, so if the sequence
    // grows again, it gets the same blocks in the same order.
    while ((int)arrlen(seq->block_table) > ceil_div(length, block_size))
        block_drop(pool, arrpop(seq->block_table));
    seq->length = length;
    seq->num_computed_tokens = min_int(length, seq->num_computed_tokens);
    int filled = length % block_size;  // slots of the last block in use; the rest is stale now
    if (filled > 0 && !block_sealed(pool, arrlast(seq->block_table)))
        block_poison(pool, arrlast(seq->block_table), filled);
    return PAGED_OK;
}

void seq_release(Seq *seq)
{
    if (!seq) return;
    Pool *pool = seq->pool;
    INVARIANT(seq->index < arrlen(pool->seqs) && pool->seqs[seq->index] == seq,
              "a sequence that its pool does not know is released");
    plan_expire(seq);
    while (arrlen(seq->block_table) > 0) block_drop(pool, arrpop(seq->block_table));
    arrlast(pool->seqs)->index = seq->index;  // it takes the place of this one
    arrdelswap(pool->seqs, seq->index);
    arrfree(seq->block_table);
    free(seq);
}

// ---- prefix cache -----------------------------------------------------------------------------
// A published block is found by its tokens and all those before it, since K and V depend on all of
// them. Comparing them all would be slow. So each publication gets a number, its serial, and the
// pair (serial of the block before it, own tokens) stands for the whole beginning. The id of the
// block before it would not do: that block may be evicted and filled anew, while a serial is never
// used again. The pairs are hashed into buckets, and the blocks of a bucket form a list.

static int *block_tokens(const Pool *pool, int block)
{
    return pool->tokens + (size_t)block * pool->config.block_size;
}

// The bucket to which a block with this parent and these tokens belongs.
static int *prefix_bucket(const Pool *pool, uint64_t parent, const int *tokens)
{
    uint64_t hash = parent;
    for (int i = 0; i < pool->config.block_size; i++) {  // a round of splitmix64 for each token
        hash = (hash ^ (uint32_t)tokens[i]) + 0x9e3779b97f4a7c15;
        hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
        hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
        hash ^= hash >> 31;
    }
    return &pool->buckets[hash % (uint64_t)pool->num_buckets];
}

// The link to the published block with these tokens after that parent, or the link at the end of
// the list, which is -1. A link is a bucket, or a field of the previous block in the list.
static int *prefix_find(const Pool *pool, uint64_t parent, const int *tokens)
{
    int *link = prefix_bucket(pool, parent, tokens);
    size_t bytes = pool->config.block_size * sizeof *tokens;
    while (*link >= 0) {
        Block *b = &pool->blocks[*link];
        if (b->parent == parent && memcmp(block_tokens(pool, *link), tokens, bytes) == 0) break;
        link = &b->next_in_bucket;
    }
    return link;
}

// Publishes a block: gives it a serial and puts it at the end of its list.
static void prefix_insert(Pool *pool, int block, uint64_t parent, const int *tokens)
{
    Block *b = &pool->blocks[block];
    *prefix_find(pool, parent, tokens) = block;  // the link at the end of the list
    b->serial = ++pool->last_serial;
    b->parent = parent;
    b->next_in_bucket = -1;
    memcpy(block_tokens(pool, block), tokens, pool->config.block_size * sizeof *tokens);
}

// Removes a block from its list; it is no longer published. The list is linked in one direction, so
// the link that leads to the block has to be found.
static void prefix_remove(Pool *pool, int block)
{
    Block *b = &pool->blocks[block];
    int *link = prefix_find(pool, b->parent, block_tokens(pool, block));
    INVARIANT(*link == block, "a published block is not in its bucket");
    *link = b->next_in_bucket;
    b->serial = b->parent = 0;
}

int seq_lookup(Seq *seq, const int *tokens, int n)
{
    if (!seq || seq->length > 0 || n < 0 || (n > 0 && !tokens)) return PAGED_BAD_ARGUMENT;
    Pool *pool = seq->pool;
    int block_size = pool->config.block_size;
    uint64_t parent = 0;
    // The last token is always left to compute, since the request needs its logits.
    for (int64_t end = block_size; end < n; end += block_size) {
        int block = *prefix_find(pool, parent, tokens + end - block_size);
        if (block < 0) break;
        block_share(pool, block);
        arrput(seq->block_table, block);
        seq->length = seq->num_computed_tokens = (int)end;
        parent = pool->blocks[block].serial;
    }
    return PAGED_OK;
}

int seq_publish(Seq *seq, const int *tokens, int n)
{
    if (!seq || n < 0 || n > seq->num_computed_tokens || (n > 0 && !tokens))
        return PAGED_BAD_ARGUMENT;
    Pool *pool = seq->pool;
    const Block *blocks = pool->blocks;
    int block_size = pool->config.block_size;
    int first = n / block_size;  // after the last block that is already published
    while (first > 0 && blocks[seq->block_table[first - 1]].serial == 0) first--;
    for (int i = first; i < n / block_size; i++) {
        const int *own_tokens = tokens + (size_t)i * block_size;
        int own = seq->block_table[i];
        uint64_t parent = i > 0 ? blocks[seq->block_table[i - 1]].serial : 0;
        int block = *prefix_find(pool, parent, own_tokens);
        plan_expire(seq);
        if (block < 0) {
            prefix_insert(pool, own, parent, own_tokens);
        } else {  // another sequence has published the same tokens: one copy is enough
            block_share(pool, block);
            seq->block_table[i] = block;
            block_drop(pool, own);
        }
    }
    return PAGED_OK;
}

// ---- a step -----------------------------------------------------------------------------------
// In a step, every layer needs the same lists: which tokens are new, and which blocks hold the
// tokens of each sequence. pool_plan() validates the batch and flattens these lists into arrays,
// once. A Job points to them. A kernel gets a Job instead of a Pool or a Seq: the step as it was
// planned, and the fields that a call adds, such as the layer.

typedef struct QueryToken {
    int seq;       // index in the batch
    int position;  // in that sequence
} QueryToken;

typedef struct SeqOffset {  // where a sequence begins in the flat arrays
    int64_t token;          // in a dense copy of all the sequences, counted in tokens
    int64_t entry;          // in the block tables, laid out one after the other
} SeqOffset;

typedef struct Job {
    // The step.
    PoolConfig config;
    void *k_plane, *v_plane;  // those of the pool, or the dense copy
    int num_seqs;
    int num_query_tokens;  // total_tokens in paged.h
    SeqOffset *offsets;    // [num_seqs + 1]; the last one is the end of the last sequence
    QueryToken *queries;   // [num_query_tokens]
    int *tables;           // all entries; NULL: the planes are the dense copy
    // What a call adds.
    int layer;
    const float *k, *v;       // [num_query_tokens][num_kv_heads][head_dim]
    void *dense_k, *dense_v;  // [tokens of all sequences][num_kv_heads][head_dim]
    int dense_dtype;
    int num_q_heads;
    float scale;
    const float *q;  // [num_query_tokens][num_q_heads][head_dim]
    float *out;      // likewise
    float *lse;      // [num_query_tokens][num_q_heads], or NULL
    // For fast/gpu.c.
    float *states;  // in pool->states
    int splits;     // pieces of a sequence: the largest number that any row has
} Job;

typedef struct Plan {
    Job job;     // its arrays are on the device, in pool->plan_memory: copies of those below
    int sealed;  // a query token is in a shared or published block: it must not be written
    int num_written_layers;  // leading layers that have K and V of the query tokens
    int64_t num_tokens;      // in all sequences that have query tokens, together
    SeqOffset memory[];      // for offsets, queries and tables, in this order
} Plan;

// Validates a batch, marks its sequences with a new number, and counts its query tokens and the
// entries of its block tables. A batch that is invalid is that first, and only then not ready.
static int batch_check(Pool *pool, const Batch *batch, int64_t *num_tokens, int64_t *num_entries)
{
    if (!pool || !batch) return PAGED_BAD_ARGUMENT;
    if (batch->num_seqs < 0 || batch->num_seqs > arrlen(pool->seqs)) return PAGED_BAD_ARGUMENT;
    if (batch->num_seqs > 0 && (!batch->seqs || !batch->num_tokens)) return PAGED_BAD_ARGUMENT;
    int error = PAGED_OK;
    *num_tokens = *num_entries = 0;
    pool->batch_number++;
    for (int i = 0; i < batch->num_seqs; i++) {
        Seq *seq = batch->seqs[i];
        int n = batch->num_tokens[i];
        if (!seq || seq->pool != pool || n < 0 || n > seq->length) return PAGED_BAD_ARGUMENT;
        if (seq->batch_number == pool->batch_number) return PAGED_BAD_ARGUMENT;  // it is in twice
        seq->batch_number = pool->batch_number;
        if (n == 0) continue;  // the sequence is left out
        if (seq->length - n > seq->num_computed_tokens) error = PAGED_NOT_READY;
        *num_tokens += n;
        *num_entries += arrlen(seq->block_table);
    }
    return *num_tokens > INT_MAX ? PAGED_BAD_ARGUMENT : error;
}

// Places the arrays of a job in one piece of memory.
static void place_arrays(Job *job, void *memory)
{
    job->offsets = (SeqOffset *)memory;
    job->queries = (QueryToken *)(job->offsets + job->num_seqs + 1);
    job->tables = (int *)(job->queries + job->num_query_tokens);
}

int pool_plan(Pool *pool, const Batch *batch)
{
    int64_t num_tokens, num_entries;
    int error = batch_check(pool, batch, &num_tokens, &num_entries);
    if (error) return error;

    // 1. Memory to build the arrays in, and memory of the device for them, even if that is the CPU.
    int device = pool->config.device;
    int64_t bytes = ((int64_t)batch->num_seqs + 1) * sizeof(SeqOffset);
    bytes += num_tokens * sizeof(QueryToken) + num_entries * sizeof(int);
    if (bytes > PTRDIFF_MAX - (int64_t)sizeof(Plan)) return PAGED_OUT_OF_MEMORY;
    Plan *plan = (Plan *)calloc(1, sizeof *plan + (size_t)bytes);
    if (!plan || memory_reserve(device, &pool->plan_memory, (size_t)bytes)) {
        free(plan);
        return PAGED_OUT_OF_MEMORY;
    }
    free(pool->plan);
    pool->plan = plan;
    pool->plan_number = pool->batch_number;
    plan->num_written_layers = pool->config.num_layers;  // unless a token is not computed

    // 2. The step, with its arrays in host memory.
    Job *job = &plan->job;
    job->config = pool->config;
    job->k_plane = pool->k;
    job->v_plane = pool->v;
    job->num_seqs = batch->num_seqs;
    job->num_query_tokens = (int)num_tokens;
    place_arrays(job, plan->memory);
    QueryToken *query = job->queries;
    SeqOffset end = {0, 0};
    for (int i = 0; i < batch->num_seqs; i++) {
        Seq *seq = batch->seqs[i];
        int start = seq->length - batch->num_tokens[i];  // position of the first query token
        int first = start / pool->config.block_size;     // its table entry
        job->offsets[i] = end;
        if (start == seq->length) continue;  // it is left out
        seq->plan_number = pool->plan_number;
        for (int entry = 0; entry < (int)arrlen(seq->block_table); entry++) {
            int block = seq->block_table[entry];
            INVARIANT(block >= 0 && block < pool->config.num_blocks,
                      "a table entry is not a block");
            if (entry >= first && block_sealed(pool, block)) plan->sealed = 1;
            job->tables[end.entry + entry] = block;
        }
        for (int position = start; position < seq->length; position++, query++) {
            query->seq = i;
            query->position = position;
        }
        end.token += seq->length;
        end.entry += arrlen(seq->block_table);
        if (seq->num_computed_tokens < seq->length) plan->num_written_layers = 0;
    }
    job->offsets[batch->num_seqs] = end;
    plan->num_tokens = end.token;

    // 3. The same arrays on the device.
    place_arrays(job, pool->plan_memory.p);
    memory_copy(device, pool->plan_memory.p, plan->memory, (size_t)bytes);
    return PAGED_OK;
}

// ---- numbers ----------------------------------------------------------------------------------
// Tensors outside the cache are float32; the cache may store 16 bits. Each 16-bit type is a float32
// with fewer bits: f16 has 5 bits of exponent and 10 of mantissa; bf16 has 8 and 7, so it is the
// upper half of a float32. Reading one back is exact, so only storing rounds: to nearest, ties to
// even. It works on bits, since a program may tell its processor to round otherwise.

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

// Drops the last `count` bits. Adding half of the last kept bit first, less 1 if that bit is 0,
// rounds to nearest, ties to even.
HD static uint32_t round_off(uint32_t bits, int count)
{
    uint32_t half = 1u << (count - 1);
    return (bits + half - 1 + (bits >> count & 1)) >> count;
}

HD static uint16_t f32_to_f16(float x)
{
    uint32_t sign = float_bits(x) >> 16 & 0x8000;
    uint32_t bits = float_bits(x) & 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);   // NaN
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // 65520 and above: infinity
    if (bits >= 0x38800000)  // 2^-14 and above: the bias of the exponent falls from 127 to 15
        return (uint16_t)(sign | round_off(bits - (112 << 23), 13));
    if (bits < 0x33000000) return (uint16_t)sign;      // below 2^-25: 0
    uint32_t mantissa = (bits & 0x7fffff) | 0x800000;  // subnormal: it counts steps of 2^-24
    return (uint16_t)(sign | round_off(mantissa, 126 - (int)(bits >> 23)));
}

HD static float f16_to_f32(uint16_t h)
{
#ifdef __CUDA_ARCH__  // a GPU has an instruction for it
    return __half2float(__ushort_as_half(h));
#else
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t bits = ((uint32_t)(h & 0x7fff) << 13) + (112 << 23);  // the bias rises to 127
    if ((h & 0x7c00) == 0x7c00) bits += 112 << 23;  // infinity, NaN: the largest exponent again
    if ((h & 0x7c00) == 0)  // subnormal: a float32 has 2^-14 more; without it, 0 may be -0
        bits = float_bits(bits_float(bits + (1 << 23)) - 6.103515625e-05f) & 0x7fffffff;
    return bits_float(sign | bits);
#endif
}

HD static uint16_t f32_to_bf16(float x)
{
    uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);  // NaN stays NaN
    return (uint16_t)round_off(bits, 16);
}

HD static float bf16_to_f32(uint16_t h) { return bits_float((uint32_t)h << 16); }

// Element i of a plane of K or V.
HD static inline float load_element(const void *plane, size_t i, int dtype)
{
    if (dtype == PAGED_F32) return ((const float *)plane)[i];
    uint16_t h = ((const uint16_t *)plane)[i];
    return dtype == PAGED_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

HD static inline void store_element(void *plane, size_t i, int dtype, float x)
{
    if (dtype == PAGED_F32)
        ((float *)plane)[i] = x;
    else
        ((uint16_t *)plane)[i] = dtype == PAGED_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

// ---- K and V ----------------------------------------------------------------------------------
// write_token() and gather_token() move a token between the blocks of the cache and dense tensors,
// [tokens][num_kv_heads][head_dim]. On a GPU, `threads` threads share this work: thread number
// `thread` takes every threads-th element, starting at `thread`. The CPU does it as thread 0 of 1.

// Where the vector of a token and head begins in a dense copy of all the sequences.
HD static size_t dense_offset(const Job *job, SeqOffset begin, int position, int kv_head)
{
    size_t token = (size_t)begin.token + position;
    return (token * job->config.num_kv_heads + kv_head) * job->config.head_dim;
}

// The walk of section "layout": where that vector begins in job->k_plane and job->v_plane.
HD static size_t token_offset(const Job *job, SeqOffset begin, int position, int kv_head)
{
    const PoolConfig *c = &job->config;
    if (!job->tables) return dense_offset(job, begin, position, kv_head);
    int block = job->tables[begin.entry + position / c->block_size];
    return kv_offset(c, job->layer, block, kv_head, position % c->block_size);
}

// Writes query token `row` to its slot.
HD static void write_token(const Job *job, int row, int thread, int threads)
{
    const PoolConfig *c = &job->config;
    QueryToken query = job->queries[row];
    for (int head = 0; head < c->num_kv_heads; head++) {
        size_t to = token_offset(job, job->offsets[query.seq], query.position, head);
        size_t from = ((size_t)row * c->num_kv_heads + head) * c->head_dim;
        for (int i = thread; i < c->head_dim; i += threads) {
            store_element(job->k_plane, to + i, c->dtype, job->k[from + i]);
            store_element(job->v_plane, to + i, c->dtype, job->v[from + i]);
        }
    }
}

// Gathers one token: copies it to its place in the dense copy.
HD static void gather_token(const Job *job, SeqOffset begin, int position, int thread, int threads)
{
    const PoolConfig *c = &job->config;
    size_t size = dtype_size(c->dtype);
    size_t bytes = c->head_dim * size;
    for (int head = 0; head < c->num_kv_heads; head++) {
        size_t from = token_offset(job, begin, position, head);
        size_t to = dense_offset(job, begin, position, head);
        if (threads == 1 && job->dense_dtype == c->dtype) {
            memcpy((char *)job->dense_k + to * size, (char *)job->k_plane + from * size, bytes);
            memcpy((char *)job->dense_v + to * size, (char *)job->v_plane + from * size, bytes);
            continue;
        }
        for (int i = thread; i < c->head_dim; i += threads) {
            float k = load_element(job->k_plane, from + i, c->dtype);
            float v = load_element(job->v_plane, from + i, c->dtype);
            store_element(job->dense_k, to + i, job->dense_dtype, k);
            store_element(job->dense_v, to + i, job->dense_dtype, v);
        }
    }
}

// ---- attention on the CPU ---------------------------------------------------------------------
// out = sum over visible tokens t of softmax(q . K[t] * scale) V[t], for each query token and head.
//
// The sum is built up token by token, without ever holding all the scores (online softmax, Milakov
// and Gimelshein 2018). The state is m, the largest score so far, l, the sum of exp(score - m), and
// o, the sum of exp(score - m) V. When a token raises m, the sums so far are scaled down by
// exp(old m - new m). The result is o / l.
//
// The terms are added in the order of the tokens. So not one bit of the result depends on the block
// size, nor on whether K and V are in the blocks of the pool or in a dense copy.

// Query token `row`, query head `head`.
static void attend_row(const Job *job, int row, int head)
{
    const PoolConfig *c = &job->config;
    SeqOffset begin = job->offsets[job->queries[row].seq];
    int visible = job->queries[row].position + 1;  // the query token itself included
    int kv_head = head / (job->num_q_heads / c->num_kv_heads);
    size_t q_at = ((size_t)row * job->num_q_heads + head) * c->head_dim;
    double q[PAGED_MAX_HEAD_DIM];
    for (int i = 0; i < c->head_dim; i++) q[i] = job->q[q_at + i] * job->scale;

    double m = -DBL_MAX;  // not -infinity: a score may be that, and -inf minus -inf is NaN
    double l = 0;         // in double: a float would lose the small weights of very long sequences
    double o[PAGED_MAX_HEAD_DIM] = {0};
    for (int t = 0; t < visible; t++) {
        size_t at = token_offset(job, begin, t, kv_head);
        double score = 0;
        for (int i = 0; i < c->head_dim; i++)
            score += q[i] * load_element(job->k_plane, at + i, c->dtype);
        if (score > m) {  // a new maximum: scale the sums so far to it
            double shrink = exp(m - score);
            l *= shrink;
            for (int i = 0; i < c->head_dim; i++) o[i] *= shrink;
            m = score;
        }
        double weight = exp(score - m);
        l += weight;
        for (int i = 0; i < c->head_dim; i++)
            o[i] += weight * load_element(job->v_plane, at + i, c->dtype);
    }
    for (int i = 0; i < c->head_dim; i++) job->out[q_at + i] = l != 0 ? (float)(o[i] / l) : 0;
    if (job->lse) job->lse[(size_t)row * job->num_q_heads + head] = (float)(m + log(l));
}

// ---- kernels ----------------------------------------------------------------------------------
// A kernel is a function that many threads run at once. 32 threads form a warp and mostly run in
// lockstep; each is a lane of it, and a shuffle reads a variable of another lane. Several warps
// form a thread block. It has memory of its own, `__shared__`, and its threads can meet at a
// barrier, where each waits until all have arrived. A launch starts a grid of thread blocks, on a
// GPU or on the stand-in.

enum { WARP = 32, THREADS = 128, WARPS = THREADS / WARP, PER_LANE = PAGED_MAX_HEAD_DIM / WARP };
#define ALL_LANES 0xffffffffu

#ifdef __CUDACC__
// It clears an earlier error code first. A sticky error is still there after the launch.
#define LAUNCH(kernel, x, y, z, job) \
    ((void)cudaGetLastError(), kernel<<<dim3(x, y, z), THREADS>>>(job), CUDA(cudaPeekAtLastError()))
#else
// Here a kernel is an ordinary function. To follow one lane, set a breakpoint in the kernel: a step
// from LAUNCH goes to launch(), and from there to one thread after another.
#define __global__
#define __device__
static struct Index {
    unsigned x, y, z;
} threadIdx, blockIdx, gridDim;
#endif

#ifndef LAUNCH  // section "stand-in"; a program that includes this file may have one of its own
typedef struct Place {  // of a barrier or shuffle in the source; a line may have several
    int number, line;
    const char *file;
} Place;
#define HERE ((Place){__COUNTER__, __LINE__, __FILE__})
#define LAUNCH(kernel, x, y, z, job) launch(kernel, #kernel, x, y, z, job)
#define __syncthreads() gpu_sync(THREADS, HERE)
#define __syncwarp() gpu_sync(WARP, HERE)
#define __shfl_xor_sync(mask, value, bits) gpu_shuffle_xor(mask, value, bits, HERE)
#if defined __SANITIZE_ADDRESS__ || __has_feature(address_sanitizer)
#define __shared__ static  // AddressSanitizer sees what is beyond a variable, but not in a section
#elif defined __APPLE__
#define __shared__ static __attribute__((section("__DATA,gpu_shared")))
#else
#define __shared__ static __attribute__((section("gpu_shared")))
#endif
#ifdef PAGED_NO_STANDIN  // no device of this build runs kernels
#define launch(kernel, name, x, y, z, job) ((void)(kernel), (void)(x), (void)(y))
#define gpu_sync(...) (void)0
#define gpu_shuffle_xor(mask, value, ...) (value)
#else
static void launch(void (*kernel)(Job), const char *name, int x, int y, int z, Job job);
static void gpu_sync(int threads, Place place);
static float gpu_shuffle_xor(unsigned mask, float x, int bits, Place place);
#endif
#endif

// K and V are moved by the same code as on the CPU.
__global__ static void write_kv(Job job) { write_token(&job, blockIdx.x, threadIdx.x, THREADS); }

// Attention is a ladder of kernels; rungs 3 and 4 are in fast/. Rung 1, dense gather: gather_kv()
// copies each sequence into a contiguous array, which attend_paged() then reads. A sequence has
// gridDim.y thread blocks, each of which takes every gridDim.y-th token.
__global__ static void gather_kv(Job job)
{
    SeqOffset begin = job.offsets[blockIdx.x];
    unsigned length = (unsigned)(job.offsets[blockIdx.x + 1].token - begin.token);
    for (unsigned t = blockIdx.y; t < length; t += gridDim.y)
        gather_token(&job, begin, t, threadIdx.x, THREADS);
}

// Attention over some of the tokens yields a state: m, l, o, in head_dim + 2 floats. The threads of
// a thread block, or of a warp, merge `count` neighbouring states into one: the largest m, and the
// sums of l and o, each times exp(its m - the largest m). The thread of element 0 writes m and l.
#define STATE (PAGED_MAX_HEAD_DIM + 2)  // of the largest head_dim
__device__ static void merge(const float *states, int count, int head_dim, float *to, int thread,
                             int threads)
{
    float max = -FLT_MAX;
    for (int i = 0; i < count; i++) max = fmaxf(max, states[i * (head_dim + 2)]);
    for (int d = thread; d < head_dim; d += threads) {
        float l = 0;
        float o = 0;
        for (int i = 0; i < count; i++) {
            const float *state = states + i * (head_dim + 2);
            float weight = expf(state[0] - max);
            l += weight * state[1];
            o += weight * state[2 + d];
        }
        to[2 + d] = o;
        if (d == 0) {
            to[0] = max;
            to[1] = l;
        }
    }
}

// Writes the result of a row and query head from its merged state.
__device__ static void finish(const Job *job, int row, int head, const float *state)
{
    int head_dim = job->config.head_dim;
    size_t q_index = (size_t)row * job->num_q_heads + head;
    float l = state[1];
    for (int d = threadIdx.x; d < head_dim; d += THREADS)
        job->out[q_index * head_dim + d] = l != 0 ? state[2 + d] / l : 0;
    if (threadIdx.x == 0 && job->lse) job->lse[q_index] = state[0] + logf(l);
}

// A row and query head attend to the tokens from `start` to `end` - 1; the state goes to `to`. Each
// warp takes every WARPS-th token. Lane i holds elements i, i + 32, ... of the vectors, so the 32
// lanes read neighbouring addresses; a dot product is summed within each lane, then across the
// lanes. A warp that gets no token must not leave early, since the barrier waits for every thread:
// it ends with l and o at 0, which add nothing.
__device__ static void attend_tokens(const Job *job, int dtype, int row, int head, unsigned start,
                                     unsigned end, float *to)
{
    int warp = threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    int head_dim = job->config.head_dim;
    int kv_head = head / (job->num_q_heads / job->config.num_kv_heads);
    SeqOffset begin = job->offsets[job->queries[row].seq];

    // 1. The query, in the registers of each warp.
    size_t q_at = ((size_t)row * job->num_q_heads + head) * head_dim;
    float q[PER_LANE], o[PER_LANE] = {0};
    float m = -FLT_MAX;
    float l = 0;
    for (int i = 0, d = lane; i < PER_LANE; i++, d += WARP)
        q[i] = d < head_dim ? job->q[q_at + d] * job->scale : 0;

    // 2. This warp's tokens: compute the score, update the state.
    for (unsigned t = start + warp; t < end; t += WARPS) {  // unsigned: t may pass INT_MAX
        size_t at = token_offset(job, begin, t, kv_head);
        float score = 0;
        for (int i = 0, d = lane; i < PER_LANE; i++, d += WARP)
            if (d < head_dim) score += q[i] * load_element(job->k_plane, at + d, dtype);
        for (int bits = WARP / 2; bits > 0; bits /= 2)
            score += __shfl_xor_sync(ALL_LANES, score, bits);
        float new_m = fmaxf(m, score);
        float shrink = expf(m - new_m);
        float weight = expf(score - new_m);
        l = l * shrink + weight;
        for (int i = 0, d = lane; i < PER_LANE; i++, d += WARP)
            if (d < head_dim)
                o[i] = o[i] * shrink + weight * load_element(job->v_plane, at + d, dtype);
        m = new_m;
    }

    // 3. The states of the warps meet in shared memory, and become one.
    __shared__ float states[WARPS * STATE];
    float *state = states + warp * (head_dim + 2);
    if (lane == 0) {
        state[0] = m;
        state[1] = l;
    }
    for (int i = 0, d = lane; i < PER_LANE; i++, d += WARP)
        if (d < head_dim) state[2 + d] = o[i];
    __syncthreads();  // merge() reads what other warps wrote
    merge(states, WARPS, head_dim, to, threadIdx.x, THREADS);
}

// Rung 2, paged: attend_tokens() finds each token through the block table. Each query token and
// query head gets a thread block, which reads K and V once. Rung 1 reads and writes them once more
// beforehand, for its copy.
__global__ static void attend_paged(Job job)
{
    __shared__ float state[STATE];
    int dtype = job.config.dtype;
    int row = blockIdx.x;
    int head = blockIdx.y;
    int end = job.queries[row].position + 1;
    // With dtype as a constant, the loop has one kind of load, so several can be under way.
    if (dtype == PAGED_F32) attend_tokens(&job, PAGED_F32, row, head, 0, end, state);
    if (dtype == PAGED_F16) attend_tokens(&job, PAGED_F16, row, head, 0, end, state);
    if (dtype == PAGED_BF16) attend_tokens(&job, PAGED_BF16, row, head, 0, end, state);
    __syncthreads();  // thread 0 has merged l, which all threads read
    finish(&job, row, head, state);
}

#ifdef PAGED_FAST  // optional: vector code for the CPU; splits and tensor cores for a GPU
#include "fast/fast.c"
#endif

// ---- calls ------------------------------------------------------------------------------------
// What a model calls in each layer of a step, and the memory for its tensors.

int pool_write(Pool *pool, int layer, const float *k, const float *v)
{
    if (!pool || layer < 0 || layer >= pool->config.num_layers) return PAGED_BAD_ARGUMENT;
    if (pool->plan_number == 0) return PAGED_NOT_READY;
    Plan *plan = pool->plan;
    Job job = plan->job;
    if (job.num_query_tokens == 0) return PAGED_OK;
    if (!k || !v) return PAGED_BAD_ARGUMENT;
    if (layer > plan->num_written_layers) return PAGED_NOT_READY;
    if (plan->sealed) return PAGED_BLOCK_SHARED;
    job.layer = layer;
    job.k = k;
    job.v = v;
    if (pool->config.device != PAGED_CPU)
        LAUNCH(write_kv, job.num_query_tokens, 1, 1, job);
    else
        for (int row = 0; row < job.num_query_tokens; row++) write_token(&job, row, 0, 1);
    if (layer == plan->num_written_layers) plan->num_written_layers++;
    if (plan->num_written_layers < pool->config.num_layers) return PAGED_OK;
    for (int i = 0; i < (int)arrlen(pool->seqs); i++) {
        Seq *seq = pool->seqs[i];
        if (seq->plan_number == pool->plan_number) seq->num_computed_tokens = seq->length;
    }
    return PAGED_OK;
}

// Copies K and V of the sequences, num_tokens in all, into job->dense_k and dense_v.
static void gather(const Job *job, int64_t num_tokens)
{
    if (job->config.device != PAGED_CPU) {
        LAUNCH(gather_kv, job->num_seqs, min_int(ceil_div(num_tokens, job->num_seqs), 64), 1, *job);
        return;
    }
    for (int seq = 0; seq < job->num_seqs; seq++) {
        SeqOffset begin = job->offsets[seq];
        int64_t length = job->offsets[seq + 1].token - begin.token;
        for (int t = 0; t < length; t++) gather_token(job, begin, t, 0, 1);
    }
}

int seq_gather(const Seq *seq, int layer, float *k, float *v)
{
    if (!seq || layer < 0 || layer >= seq->pool->config.num_layers) return PAGED_BAD_ARGUMENT;
    if (seq->length == 0) return PAGED_OK;
    if (!k || !v) return PAGED_BAD_ARGUMENT;
    Pool *pool = seq->pool;
    int device = pool->config.device;
    size_t table_bytes = arrlenu(seq->block_table) * sizeof(int);
    SeqOffset offsets[2] = {{0, 0}, {seq->length, arrlen(seq->block_table)}};
    if (memory_reserve(device, &pool->workspace, sizeof offsets + table_bytes))
        return PAGED_OUT_OF_MEMORY;
    Job job;
    memset(&job, 0, sizeof job);
    job.config = pool->config;
    job.k_plane = pool->k;
    job.v_plane = pool->v;
    job.num_seqs = 1;
    place_arrays(&job, pool->workspace.p);  // there is no query: the table follows the offsets
    memory_copy(device, job.offsets, offsets, sizeof offsets);
    memory_copy(device, job.tables, seq->block_table, table_bytes);
    job.layer = layer;
    job.dense_k = k;
    job.dense_v = v;
    job.dense_dtype = PAGED_F32;
    gather(&job, seq->length);
    return PAGED_OK;
}

int attend(Pool *pool, int flags, int layer, int num_q_heads, float scale, const float *q,
           float *out, float *lse)
{
    if (!pool || layer < 0 || layer >= pool->config.num_layers) return PAGED_BAD_ARGUMENT;
    if (flags & ~(ATTEND_GATHER | ATTEND_FAST) || !isfinite(scale)) return PAGED_BAD_ARGUMENT;
    const PoolConfig *c = &pool->config;
    const Plan *plan = pool->plan;
    if (num_q_heads < 1 || num_q_heads > PAGED_MAX_Q_HEADS || num_q_heads % c->num_kv_heads != 0)
        return PAGED_BAD_ARGUMENT;
    if (pool->plan_number == 0) return PAGED_NOT_READY;
    Job job = plan->job;
    if (job.num_query_tokens == 0) return PAGED_OK;
    if (!q || !out) return PAGED_BAD_ARGUMENT;
    if (layer >= plan->num_written_layers) return PAGED_NOT_READY;
    job.layer = layer;
    job.num_q_heads = num_q_heads;
    job.scale = scale;
    if (scale == 0) job.scale = 1 / sqrtf((float)c->head_dim);
    job.q = q;
    job.out = out;
    job.lse = lse;

    if (flags & ATTEND_GATHER) {  // into the workspace: K of all sequences, then V; 256-aligned
        size_t token_bytes = (size_t)c->num_kv_heads * c->head_dim * dtype_size(c->dtype);
        size_t bytes = (multiply(plan->num_tokens, 2 * token_bytes) + 511) / 512 * 512;
        if (memory_reserve(c->device, &pool->workspace, bytes)) return PAGED_OUT_OF_MEMORY;
        job.dense_k = pool->workspace.p;
        job.dense_v = (char *)pool->workspace.p + bytes / 2;
        job.dense_dtype = c->dtype;
        gather(&job, plan->num_tokens);
        job.k_plane = job.dense_k;
        job.v_plane = job.dense_v;
        job.tables = NULL;  // from here on, K and V are the copy
    }
#ifdef PAGED_FAST
    if (flags & ATTEND_FAST) {
        int error = attend_fast(pool, &job);
        if (error >= 0) return error;  // negative: the plain code has to do it
    }
#endif
    if (c->device != PAGED_CPU)
        LAUNCH(attend_paged, job.num_query_tokens, num_q_heads, 1, job);
    else
        for (int row = 0; row < job.num_query_tokens; row++)
            for (int head = 0; head < num_q_heads; head++) attend_row(&job, row, head);
    return PAGED_OK;
}

float *tensor_create(const Pool *pool, size_t count)
{
    size_t bytes = multiply(count, sizeof(float));
    if (!pool || bytes == 0) return NULL;
    return (float *)memory_create(pool->config.device, bytes);
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
// For people, tests and debuggers: texts of errors, a recount of all that a pool keeps, drawings.

static int device_exists(int device)
{
#ifdef __CUDACC__
    cudaFuncAttributes attributes;  // an error if this program has no code for the GPU
    if (device == PAGED_GPU) return cudaFuncGetAttributes(&attributes, write_kv) == cudaSuccess;
#elif !defined(PAGED_NO_STANDIN)
    if (device == PAGED_STANDIN) return 1;
#endif
    return device == PAGED_CPU;
}

const char *paged_error(int error)
{
    static const char *const texts[] = {"ok",
                                        "bad argument",
                                        "too few free blocks",
                                        "longer than the whole pool",
                                        "out of memory",
                                        "the block is shared or published",
                                        "no GPU, or no such device in this build",
                                        "not ready: no plan, or K and V are not written"};
    if (error < 0 || error > PAGED_NOT_READY) return "unknown error code";
#ifdef __CUDACC__
    if (error == PAGED_NO_GPU && !device_exists(PAGED_GPU))  // the driver may be too old
        return cudaGetErrorString(cudaGetLastError());
#endif
    return texts[error];
}

static const char *broken(const char *format, ...)
{
    static __thread char message[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return message;
}

// Counts in seen[block] how often the block tables name each block: what its ref_count should be.
static const char *check_tables(const Pool *pool, int *seen)
{
    for (int s = 0; s < (int)arrlen(pool->seqs); s++) {
        const Seq *seq = pool->seqs[s];
        int entries = (int)arrlen(seq->block_table);
        if (seq->pool != pool || seq->index != s)
            return broken("sequence %d: wrong pool, or index %d", s, seq->index);
        if (seq->num_computed_tokens < 0 || seq->num_computed_tokens > seq->length)
            return broken("sequence %d: num_computed_tokens is %d", s, seq->num_computed_tokens);
        if (entries != ceil_div(seq->length, pool->config.block_size))
            return broken("sequence %d: length %d, length of table %d", s, seq->length, entries);
        for (int i = 0; i < entries; i++) {
            int block = seq->block_table[i];
            if (block < 0 || block >= pool->config.num_blocks)
                return broken("sequence %d: entry %d of its table is %d", s, i, block);
            seen[block]++;
        }
    }
    for (int block = 0; block < pool->config.num_blocks; block++)
        if (pool->blocks[block].ref_count != seen[block])
            return broken("block %d: ref_count is %d, should be %d", block,
                          pool->blocks[block].ref_count, seen[block]);
    return NULL;
}

// Follows the free list once around and counts its blocks in seen[], too. After that, every block
// must have been seen. A block that is met twice has a wrong link back.
static const char *check_free_list(const Pool *pool, int *seen)
{
    const Block *blocks = pool->blocks;
    int sentinel = pool->config.num_blocks;
    int prev = sentinel;
    int count = 0;
    for (int block = blocks[sentinel].next; block != sentinel; block = blocks[block].next) {
        if (block < 0 || block > sentinel) return broken("free list: %d is not a block", block);
        const Block *b = &blocks[block];
        if (b->prev != prev) return broken("free list: block %d has a wrong link back", block);
        if (b->ref_count != 0) return broken("free block %d: ref_count is %d", block, b->ref_count);
        if (blocks[prev].serial && !b->serial)
            return broken("free list: block %d comes after published ones", block);
        prev = block;
        seen[block]++;
        count++;
    }
    if (blocks[sentinel].prev != prev) return broken("free list: wrong link back at the end");
    if (count != pool->num_free)
        return broken("free list: num_free is %d, should be %d", pool->num_free, count);
    for (int block = 0; block < sentinel; block++) {
        const Block *b = &blocks[block];
        if (seen[block] == 0) return broken("block %d: neither in use nor on the free list", block);
        if (b->ref_count > 0 && (b->prev != -1 || b->next != -1))
            return broken("block %d: in use, but linked into the free list", block);
    }
    return NULL;
}

// Every published block must be in the list of its hash, once, and have an older parent.
static const char *check_prefixes(const Pool *pool, int *seen)
{
    const Block *blocks = pool->blocks;
    int n = pool->config.num_blocks;
    int published = 0;
    int found = 0;
    memset(seen, 0, n * sizeof *seen);
    for (int block = 0; block < n; block++) {
        if (blocks[block].serial)
            published++;
        else if (blocks[block].parent)
            return broken("block %d: a parent, but no serial", block);
    }
    for (int i = 0; i < pool->num_buckets; i++)
        for (int block = pool->buckets[i]; block != -1; block = blocks[block].next_in_bucket) {
            if (block < 0 || block >= n || !blocks[block].serial)
                return broken("prefix cache: bucket %d leads to block %d", i, block);
            if (seen[block]) return broken("prefix cache: block %d is in a list twice", block);
            const Block *b = &blocks[block];
            if (b->serial > pool->last_serial || b->parent >= b->serial)
                return broken("block %d: published before its parent, or in the future", block);
            if (prefix_bucket(pool, b->parent, block_tokens(pool, block)) != pool->buckets + i)
                return broken("prefix cache: block %d is in the wrong bucket", block);
            seen[block] = 1;
            found++;
        }
    if (found != published) return broken("found %d of %d published blocks", found, published);
    return NULL;
}

const char *pool_check(const Pool *pool)
{
    if (!pool) return "no pool";
    int *seen = (int *)calloc(pool->config.num_blocks, sizeof *seen);
    if (!seen) return "no memory for the check";
    const char *wrong = check_tables(pool, seen);
    if (!wrong) wrong = check_free_list(pool, seen);
    if (!wrong) wrong = check_prefixes(pool, seen);
    free(seen);
    return wrong;
}

void pool_dump(const Pool *pool, FILE *out)
{
    if (!pool) return;
    if (!out) out = stdout;
    int n = pool->config.num_blocks;
    int used = n - pool->num_free;
    fprintf(out, "pool of %d blocks of %d tokens: %d used, %d free, %.1f %% in use\n", n,
            pool->config.block_size, used, pool->num_free, 100.0 * used / n);
    for (int block = 0; block < n; block++) {
        if (block % 64 == 0) fprintf(out, "%8d  ", block);
        int count = pool->blocks[block].ref_count;
        int sign = '.';
        if (pool->blocks[block].serial) sign = 'p';
        if (count > 0) sign = '0' + count;
        if (count > 9) sign = '+';
        fputc(sign, out);
        if (block % 64 == 63 || block == n - 1) fputc('\n', out);
    }
}

void seq_dump(const Seq *seq, FILE *out)
{
    if (!out) out = stdout;
    if (!seq) return;
    int entries = (int)arrlen(seq->block_table);
    int block_size = seq->pool->config.block_size;
    fprintf(out, "sequence of %d tokens in %d blocks of %d\n", seq->length, entries, block_size);
    fprintf(out, "  logical  physical  filled  ref_count\n");
    for (int i = 0; i < entries; i++) {
        int block = seq->block_table[i];
        int filled = min_int(seq->length - i * block_size, block_size);
        fprintf(out, "  %7d  %8d  %6d  %9d\n", i, block, filled,
                seq->pool->blocks[block].ref_count);
    }
}

// ---- oracle -----------------------------------------------------------------------------------
// The oracle judges everything above. It is plain enough to verify by reading: a fork is a memcpy,
// and attention is the textbook formula in double, in two passes.

// Where the vector of a token and KV head begins in k and in v.
static size_t oracle_offset(const Oracle *oracle, int layer, int token, int kv_head)
{
    size_t i = (size_t)layer * oracle->max_tokens + token;
    i = i * oracle->config.num_kv_heads + kv_head;
    return i * oracle->config.head_dim;
}

Oracle *oracle_create(const PoolConfig *config, int max_tokens)
{
    PoolConfig f32 = *config;
    f32.dtype = PAGED_F32;
    size_t bytes = multiply(pool_bytes_per_token(&f32), max_tokens);  // of K and V
    INVARIANT(bytes > 0, "no oracle has this shape");
    Oracle *oracle = (Oracle *)realloc_or_panic(NULL, sizeof *oracle + bytes);
    oracle->config = *config;
    oracle->max_tokens = max_tokens;
    oracle->length = 0;
    oracle->k = (float *)(oracle + 1);
    oracle->v = oracle->k + oracle_offset(oracle, config->num_layers, 0, 0);
    return oracle;
}

Oracle *oracle_fork(const Oracle *parent, int at)
{
    Oracle *child = oracle_create(&parent->config, parent->max_tokens);
    child->length = at;
    memcpy(child->k, parent->k, 2 * (parent->v - parent->k) * sizeof(float));  // both planes
    return child;
}

void oracle_release(Oracle *oracle) { free(oracle); }

static float round_to(int dtype, float x)
{
    float rounded;
    store_element(&rounded, 0, dtype, x);
    return load_element(&rounded, 0, dtype);
}

void oracle_write(Oracle *oracle, int layer, int num_tokens, const float *k, const float *v)
{
    INVARIANT(oracle->length <= oracle->max_tokens, "a sequence is longer than its oracle");
    size_t start = oracle_offset(oracle, layer, oracle->length - num_tokens, 0);
    size_t end = oracle_offset(oracle, layer, oracle->length, 0);
    for (size_t i = start; i < end; i++) {
        oracle->k[i] = round_to(oracle->config.dtype, k[i - start]);
        oracle->v[i] = round_to(oracle->config.dtype, v[i - start]);
    }
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

void oracle_attend(const Oracle *oracle, int layer, int num_tokens, int num_q_heads, float scale,
                   const float *q, float *out, float *lse)
{
    int head_dim = oracle->config.head_dim;
    double s = scale != 0 ? scale : 1 / sqrt((double)head_dim);
    size_t rows = (size_t)num_tokens * num_q_heads;  // of q and out: a token and a head
    for (size_t row = 0; row < rows; row++, q += head_dim, out += head_dim) {
        int kv_head = (int)(row % num_q_heads) / (num_q_heads / oracle->config.num_kv_heads);
        int visible = oracle->length - num_tokens + (int)(row / num_q_heads) + 1;
        double max = -DBL_MAX;
        double sum = 0;
        double o[PAGED_MAX_HEAD_DIM] = {0};
        for (int t = 0; t < visible; t++) {
            const float *k = oracle->k + oracle_offset(oracle, layer, t, kv_head);
            max = fmax(max, s * dot(q, k, head_dim));
        }
        for (int t = 0; t < visible; t++) {
            const float *k = oracle->k + oracle_offset(oracle, layer, t, kv_head);
            const float *v = oracle->v + oracle_offset(oracle, layer, t, kv_head);
            double weight = exp(s * dot(q, k, head_dim) - max);
            sum += weight;
            for (int i = 0; i < head_dim; i++) o[i] += weight * v[i];
        }
        for (int i = 0; i < head_dim; i++) out[i] = sum != 0 ? (float)(o[i] / sum) : 0;
        if (lse) lse[row] = (float)(max + log(sum));
    }
}

// ---- stand-in ---------------------------------------------------------------------------------
// Enough of a GPU to run the kernels without one. Each thread is a coroutine with its own stack and
// runs alone up to its next barrier or shuffle. So gdb can stop in any lane, and sanitizers see
// every access. Built with -fsanitize=thread, it reports races: two threads of a thread block use
// one address, one of them writes, and no barrier or __syncwarp() is between them (a shuffle orders
// no memory). With PAGED_LANE_ORDER=2, it reports those of two thread blocks, which nothing orders.

#if !defined(__CUDACC__) && !defined(PAGED_NO_STANDIN)

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
void __tsan_java_init(uintptr_t, uintptr_t), __tsan_java_alloc(uintptr_t, uintptr_t);
#define TSAN(call) call  // tells it which thread runs, and what is ordered
#else
#define TSAN(call)
#endif
#define UNSEEN __attribute__((no_sanitize("thread")))  // the stand-in itself has no races
#if defined __SANITIZE_ADDRESS__ || __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#define ASAN(call) call  // tells it which stack is in use
static char __start_gpu_shared[1], *const __stop_gpu_shared = __start_gpu_shared;  // nothing
#else
#define ASAN(call)
#ifdef __APPLE__  // the linker defines the bounds of shared memory
extern char __start_gpu_shared[] __asm__("section$start$__DATA$gpu_shared");
extern char __stop_gpu_shared[] __asm__("section$end$__DATA$gpu_shared");
#else
extern char __start_gpu_shared[], __stop_gpu_shared[];
#endif
#endif

// Where the threads of a thread block meet, or, at a shuffle or __syncwarp(), those of a warp.
typedef struct Meeting {
    int arrived;
    Place place;
    unsigned generation;
    float values[2][WARP];  // of this shuffle and the one before, which a lane may still read
} Meeting;

typedef struct Thread {
    void *stack_pointer;  // where it left off
    char *stack;
    size_t stack_bytes;
    void *fake_stack;  // for ASan
    void *fiber;       // for TSan
} Thread;

enum { STACK = 128 << 10, STACK_LEFT = 4 << 10, STACK_MARK = 0x5afe };
static int gpu_lane_order;  // bits: 1, descending; 2, TSan looks for races between thread blocks
static struct {
    Thread threads[THREADS];           // the running one is threads[threadIdx.x]
    const Meeting *waits[THREADS];     // what each thread waits for; NULL: it can run
    Meeting block, warps[WARPS], end;  // end: what threads that have returned wait for
    Thread launcher;                   // the thread of the program
    void (*kernel)(Job);
    const char *name;
    Job job;
    __attribute__((aligned(16))) char stacks[THREADS][STACK];
} gpu;

// gpu_switch() continues on another stack. It pushes an address and the registers that a function
// must preserve, saves the stack pointer in *from, takes `to`, and pops the FRAME words that were
// pushed there; word ADDRESS is where it returns to. (Shadow stacks are not supported.)
#ifdef __x86_64__
enum { FRAME = 7, ADDRESS = 6 };
#define SWITCH \
    "lea 1f(%%rip), %%rax\n push %%rax\n push %%rbp\n push %%rbx\n push %%r12\n push %%r13\n" \
    "push %%r14\n push %%r15\n mov %%rsp, (%0)\n mov %1, %%rsp\n pop %%r15\n pop %%r14\n" \
    "pop %%r13\n pop %%r12\n pop %%rbx\n pop %%rbp\n ret\n 1:"
#define CHANGED "rax"
#define NO_CALLER ".cfi_undefined rip"
#else
enum { FRAME = 20, ADDRESS = 11 };
#define SWITCH \
    "adr x30, 1f\n stp x19, x20, [sp, -160]!\n stp x21, x22, [sp, 16]\n" \
    "stp x23, x24, [sp, 32]\n stp x25, x26, [sp, 48]\n stp x27, x28, [sp, 64]\n" \
    "stp x29, x30, [sp, 80]\n stp d8, d9, [sp, 96]\n stp d10, d11, [sp, 112]\n" \
    "stp d12, d13, [sp, 128]\n stp d14, d15, [sp, 144]\n mov x9, sp\n str x9, [%0]\n" \
    "mov sp, %1\n ldp d14, d15, [sp, 144]\n ldp d12, d13, [sp, 128]\n" \
    "ldp d10, d11, [sp, 112]\n ldp d8, d9, [sp, 96]\n ldp x29, x30, [sp, 80]\n" \
    "ldp x27, x28, [sp, 64]\n ldp x25, x26, [sp, 48]\n ldp x23, x24, [sp, 32]\n" \
    "ldp x21, x22, [sp, 16]\n ldp x19, x20, [sp], 160\n ret\n 1:"
#define CHANGED "x9", "x30"
#define NO_CALLER ".cfi_undefined x30"
#endif
UNSEEN static void gpu_switch(void **from, void *to)
{
    __asm__ volatile(SWITCH : : "r"(from), "r"(to) : CHANGED, "memory");
}
static void (*volatile gpu_switch_to)(void **, void *) = gpu_switch;  // may change what calls may

static const char *gpu_thread_name(char name[64])
{
    snprintf(name, 64, "%s, thread block (%u, %u, %u), warp %u, lane %u", gpu.name, blockIdx.x,
             blockIdx.y, blockIdx.z, threadIdx.x / WARP, threadIdx.x % WARP);
    return name;
}

static void gpu_panic(const char *what, Place place)
{
    char name[64];
    fprintf(stderr, "%s:\n", gpu_thread_name(name));
    panic(place.file, place.line, "stand-in", what);
}

// Switches to another thread. Returns when that switches back.
UNSEEN static void gpu_change(Thread *from, Thread *to)
{
    ASAN(__sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes));
    TSAN(__tsan_switch_to_fiber(to->fiber, __tsan_switch_to_fiber_no_sync));
    gpu_switch_to(&from->stack_pointer, to->stack_pointer);
    ASAN(__sanitizer_finish_switch_fiber(from->fake_stack, (const void **)&to->stack,
                                         &to->stack_bytes));
}

UNSEEN static void gpu_thread_main(void)
{
#ifdef __GCC_HAVE_DWARF2_CFI_ASM
    __asm__(NO_CALLER);  // a debugger's backtrace ends here
#endif
    ASAN(__sanitizer_finish_switch_fiber(NULL, (const void **)&gpu.launcher.stack,
                                         &gpu.launcher.stack_bytes));
    for (;;) {  // once for each thread block
        TSAN(char name[64]);
        TSAN(__tsan_set_fiber_name(gpu.threads[threadIdx.x].fiber, gpu_thread_name(name)));
        TSAN(__tsan_acquire(&gpu.job));
        gpu.kernel(gpu.job);
        TSAN(__tsan_release(&gpu.end));
        gpu.waits[threadIdx.x] = &gpu.end;
        gpu_change(&gpu.threads[threadIdx.x], &gpu.launcher);
    }
}

// Makes the stack of a thread as if it had called gpu_switch() just before gpu_thread_main().
UNSEEN static void gpu_start(Thread *t)
{
    t->stack = gpu.stacks[t - gpu.threads];
    t->stack_bytes = STACK;
    *(int *)(t->stack + STACK_LEFT) = STACK_MARK;
    uintptr_t *words = (uintptr_t *)(t->stack + t->stack_bytes) - (FRAME + 1) / 2 * 2;
    words[ADDRESS] = (uintptr_t)gpu_thread_main;
    t->stack_pointer = words;
    TSAN(if (!(gpu_lane_order & 2)) t->fiber = __tsan_create_fiber(0));
}

#ifdef SANITIZER_TSAN_INTERFACE_H
// For races between thread blocks: to TSan, the threads of each block are one, and new, as is the
// memory that they share with earlier blocks.
UNSEEN static void gpu_new_block(void)
{
    static void *fiber;
    uintptr_t shared = (uintptr_t)__start_gpu_shared & ~7;
    if (fiber) __tsan_destroy_fiber(fiber);
    if (!fiber) __tsan_java_init(8, (uintptr_t)1 << 46);
    fiber = __tsan_create_fiber(0);
    __tsan_java_alloc(shared, ((uintptr_t)__stop_gpu_shared - shared + 7) & ~7);
    for (int i = 0; i < THREADS; i++) {
        __tsan_java_alloc((uintptr_t)gpu.stacks[i] + STACK - STACK_LEFT, STACK_LEFT);
        gpu_start(&gpu.threads[i]);
        gpu.threads[i].fiber = fiber;
    }
}
#endif

// Waits until `expected` threads have arrived. The last one wakes the others and continues at once.
UNSEEN static void gpu_meet(Meeting *meeting, int expected, Place place)
{
    if (meeting->arrived > 0 && meeting->place.number != place.number)
        gpu_panic("the other threads wait at another barrier or shuffle", place);
    meeting->place = place;
    meeting->arrived++;
    if (meeting->arrived < expected) {
        gpu.waits[threadIdx.x] = meeting;
        gpu_change(&gpu.threads[threadIdx.x], &gpu.launcher);
        return;
    }
    meeting->arrived = 0;
    meeting->generation++;
    for (int i = 0; i < THREADS; i++)
        if (gpu.waits[i] == meeting) gpu.waits[i] = NULL;
}

// A barrier, or __syncwarp(): what a thread wrote before it, the others may read after it.
UNSEEN static void gpu_sync(int threads, Place place)
{
    Meeting *meeting = &gpu.block;
    if (threads == WARP) meeting = &gpu.warps[threadIdx.x / WARP];
    TSAN(char *order = (char *)meeting + meeting->generation % 2);  // the next has another address
    TSAN(if (!(gpu_lane_order & 2)) __tsan_release(order));
    gpu_meet(meeting, threads, place);
    TSAN(if (!(gpu_lane_order & 2)) __tsan_acquire(order));
}

UNSEEN static float gpu_shuffle_xor(unsigned mask, float x, int bits, Place place)
{
    Meeting *warp = &gpu.warps[threadIdx.x / WARP];
    float *values = warp->values[warp->generation % 2];
    if (mask != ALL_LANES || bits < 0 || bits >= WARP)
        gpu_panic("the stand-in knows shuffles of whole warps only", place);
    values[threadIdx.x % WARP] = x;
    gpu_meet(warp, WARP, place);
    return values[threadIdx.x % WARP ^ bits];
}

// Runs a thread block: the threads take turns, each as far as it can. Shared memory starts as NaN.
UNSEEN static void gpu_run_block(void)
{
    int turn = 0;
    int idle = 0;  // turns since a thread last ran
    TSAN(if (gpu_lane_order & 2) gpu_new_block());
    memset(__start_gpu_shared, 0xff, __stop_gpu_shared - __start_gpu_shared);
    memset(gpu.waits, 0, sizeof gpu.waits);
    TSAN(__tsan_release(&gpu.job));
    while (idle < THREADS) {
        threadIdx.x = turn % THREADS;
        if (gpu_lane_order & 1) threadIdx.x = THREADS - 1 - threadIdx.x;
        turn++;
        idle++;
        if (gpu.waits[threadIdx.x]) continue;
        idle = 0;
        gpu_change(&gpu.launcher, &gpu.threads[threadIdx.x]);
        if (*(int *)(gpu.stacks[threadIdx.x] + STACK_LEFT) != STACK_MARK)
            gpu_panic("a thread has too much on its stack, of 128 KB", HERE);
        if (gpu_lane_order & 1) turn = 0;  // the last lane again: its warp runs far ahead
    }
    for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++)
        if (gpu.waits[threadIdx.x] != &gpu.end)
            gpu_panic("deadlock: not all threads arrive", gpu.waits[threadIdx.x]->place);
    TSAN(if (!(gpu_lane_order & 2)) __tsan_acquire(&gpu.end));
}

UNSEEN static void launch(void (*kernel)(Job), const char *name, int x, int y, int z, Job job)
{
    const char *order = getenv("PAGED_LANE_ORDER");
    if (!gpu.kernel && order) gpu_lane_order = atoi(order);  // the first launch
    gpu.kernel = kernel;
    gpu.name = name;
    gpu.job = job;
    TSAN(gpu.launcher.fiber = __tsan_get_current_fiber());
    for (int i = 0; i < THREADS && !gpu.threads[i].stack_pointer; i++) gpu_start(&gpu.threads[i]);
    gridDim = (struct Index){(unsigned)x, (unsigned)y, (unsigned)z};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) gpu_run_block();
    TSAN(__tsan_acquire(&gpu.end));
}

#endif

// ---- main -------------------------------------------------------------------------------------
// One screen that shows what the engine does, on live pools: first the tables, then attention.

#ifndef PAGED_NO_MAIN

static void must(int error) { INVARIANT(error == PAGED_OK, paged_error(error)); }

static Seq *new_seq(Pool *pool, int length)
{
    Seq *seq;
    must(seq_create(pool, &seq));
    must(seq_append(seq, length));
    return seq;
}

static void show(const char *text, const Seq *a, const Seq *b)
{
    const Seq *seqs[2] = {a, b};
    printf("\n%s\n", text);
    for (int s = 0; s < 2; s++) {
        printf("  %c: %2d tokens, blocks [", 'A' + s, seqs[s]->length);
        for (int i = 0; i < (int)arrlen(seqs[s]->block_table); i++)
            printf(" %d", seqs[s]->block_table[i]);
        printf(" ]");
    }
    printf("\n");
    pool_dump(a->pool, stdout);
}

static PoolConfig config = {.num_layers = 1,
                            .num_kv_heads = 2,
                            .head_dim = 32,
                            .block_size = 4,
                            .num_blocks = 16,
                            .dtype = PAGED_F16,
                            .poison = 1,
                            .device = PAGED_CPU};

static void show_tables(void)
{
    Pool *pool;
    Seq *b;
    must(pool_create(&config, &pool));
    Seq *a = new_seq(pool, 6);
    new_seq(pool, 5);
    must(seq_append(a, 4));
    printf("The block table of a sequence says where its tokens are. This is A's:\n");
    seq_dump(a, stdout);
    printf("Token 9: entry 9 / 4 = 2 of the table is block %d; slot 9 %% 4 = 1.\n"
           "Blocks 2 and 3 belong to another sequence.\n",
           a->block_table[2]);
    must(seq_fork(a, a->length, &b));
    show("Fork: B starts with A's tokens and shares A's blocks. Nothing is copied.", a, b);
    must(seq_append(a, 1));
    show("Copy-on-write: A appends. Its last block is shared, so A gets a copy.", a, b);
    must(seq_append(b, 1));
    show("B appends: the original block is now B's alone, so B writes in place.", a, b);
    must(seq_append(a, 4));
    show("Draft: A guesses four tokens ahead, so that one step can verify them all.", a, b);
    must(seq_rewind(a, 3));
    show("Rewind: only the first guess was right. A block becomes free.", a, b);
    pool_destroy(pool);
}

// Attention of 45 tokens, gathered and paged, against the oracle. Panics if they differ too much.
static void show_attention(int device, const char *device_name)
{
    enum { TOKENS = 45, Q_HEADS = 4, KV = TOKENS * 2 * 32, QUERIES = TOKENS * Q_HEADS * 32 };
    static const char *const ways[] = {"paged", "dense gather"};        // with their flags as index
    static float x[2 * KV + QUERIES], out[QUERIES], expected[QUERIES];  // x: K, V, q
    for (int i = 0; i < 2 * KV + QUERIES; i++) x[i] = sinf((float)i * i);  // numbers in [-1, 1]
    Oracle *oracle = oracle_create(&config, TOKENS);
    oracle->length = TOKENS;
    oracle_write(oracle, 0, TOKENS, x, x + KV);
    oracle_attend(oracle, 0, TOKENS, Q_HEADS, 0, x + 2 * KV, expected, NULL);
    oracle_release(oracle);

    Pool *pool;
    config.device = device;
    must(pool_create(&config, &pool));
    Seq *seq = new_seq(pool, TOKENS);
    Batch batch = {.num_seqs = 1, .seqs = &seq, .num_tokens = &seq->length};
    float *pool_x = tensor_create(pool, 2 * KV + QUERIES);
    float *pool_out = tensor_create(pool, QUERIES);
    INVARIANT(pool_x && pool_out, "out of memory");
    tensor_copy(pool, pool_x, x, 2 * KV + QUERIES);
    must(pool_plan(pool, &batch));
    must(pool_write(pool, 0, pool_x, pool_x + KV));
    for (int way = 1; way >= 0; way--) {
        for (int i = 0; i < QUERIES; i++) out[i] = NAN;  // a result of the other way must not pass
        tensor_copy(pool, pool_out, out, QUERIES);
        must(attend(pool, way, 0, Q_HEADS, 0, pool_x + 2 * KV, pool_out, NULL));
        tensor_copy(pool, out, pool_out, QUERIES);
        float largest = 0;
        for (int i = 0; i < QUERIES; i++) {
            float difference = fabsf(out[i] - expected[i]);
            if (difference > largest || isnan(difference)) largest = difference;
        }
        printf("  %-12s on %-24s differs by %.1e at most\n", ways[way], device_name, largest);
        INVARIANT(largest <= 1e-5f, "attention is wrong");
    }
    tensor_free(pool, pool_x);
    tensor_free(pool, pool_out);
    pool_destroy(pool);
}

int main(void)
{
    static const char *const names[] = {"the CPU", "the GPU", "the stand-in for a GPU"};
    printf("PagedAttention on live pools. A block holds 4 tokens. In a map of the pool, each\n"
           "character is a block: '.' is free, a digit counts the tables that name it.\n\n");
    show_tables();
    printf("\nAttention of 45 tokens through their table, compared with the oracle, which has\n"
           "no blocks and computes in double precision:\n");
    for (int device = PAGED_CPU; device <= PAGED_STANDIN; device++)
        if (device_exists(device)) show_attention(device, names[device]);
    if (!device_exists(PAGED_GPU) && !device_exists(PAGED_STANDIN))
        printf("This build has no stand-in for a GPU, which needs x86-64 or AArch64.\n");
    return fflush(stdout) != 0 || ferror(stdout);  // output that cannot be written is a failure
}

#endif
