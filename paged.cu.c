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
//     numbers      float32 to and from the two 16-bit types of the cache
//     layout       where the element of a token, layer and head lies: the only address arithmetic
//     pool         the memory, its free list and its reference counts
//     sequences    append, fork, rewind, release: nothing but edits of tables and counts
//     K and V      write them, gather them
//     attention    online softmax through a block table
//     oracle       the same without blocks, as plain as can be: what all of it is checked against
//     check, dump  recount everything; draw pools and tables
//     tour         what ./paged prints: the numbers of the literature, on live pools
//
// Left out on purpose: sampling, models and servers (see examples/), 8-bit caches, sliding windows.
//
//     cc -O2 paged.cu.c -o paged -lm && ./paged

#include "paged.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

// ---- arrays: stb_ds ---------------------------------------------------------------------------
// A dynamic array of stb_ds is a plain pointer `int *a` with its length hidden in front: arrlen(a),
// arrput(a, x), arrpop(a). NULL is the empty array. arrput may move the array, so it assigns to
// `a`: never keep a second pointer to one. stb_ds does not look whether its realloc succeeded, so
// that one does; it is the only allocation that stops the program instead of returning an error.

static void *realloc_or_stop(void *old, size_t size)
{
    void *p = realloc(old, size);
    if (!p) {
        fprintf(stderr, "paged: out of memory: an array cannot grow to %zu bytes\n", size);
        abort();
    }
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

// ---- errors -----------------------------------------------------------------------------------
// Exhaustion and bad arguments are return codes. A broken invariant means that the memory can no
// longer be trusted: say what broke and stop, so that a debugger shows the moment.

#define INVARIANT(condition, what) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: broken invariant: %s (%s)\n", __FILE__, __LINE__, what, \
                    #condition); \
            abort(); \
        } \
    } while (0)

const char *paged_error(int error)
{
    static const char *const texts[] = {"ok",
                                        "bad argument",
                                        "too few free blocks",
                                        "longer than the whole pool",
                                        "out of memory",
                                        "the block is shared"};
    return error >= 0 && error <= PAGED_BLOCK_SHARED ? texts[error] : "unknown error code";
}

// ---- numbers ----------------------------------------------------------------------------------
// Tensors outside the cache are float32; the cache may store 16 bits. Both 16-bit types are a
// float32 with fewer bits: f16 has 5 bits of exponent and 10 of mantissa, bf16 has 8 and 7, the
// upper half of a float32. Reading one back is exact, so only storing rounds: to nearest, ties to
// even. (These lines need IEEE arithmetic; -ffast-math breaks them, and every test for NaN.)

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t f32_to_f16(float x)
{
    uint32_t sign = float_bits(x) >> 16 & 0x8000, bits = float_bits(x) & 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);   // NaN
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // 65520 and above: infinity
    if (bits < 0x38800000)  // below 2^-14: next to 0.5, one float32 ulp is one f16 subnormal step
        return (uint16_t)(sign | (float_bits(bits_float(bits) + 0.5f) - 0x3f000000));
    bits += 0xfff + (bits >> 13 & 1);  // half a unit, less one if the last kept bit is even
    return (uint16_t)(sign | (bits - 0x38000000) >> 13);
}

static float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    // The f16 bits in the place of float32 bits mean a number 2^112 too small, subnormals included.
    float magnitude = bits_float((uint32_t)(h & 0x7fff) << 13) * 0x1p112f;
    uint32_t infinite =
        magnitude >= 65536.0f ? 0x7f800000 : 0;  // infinity and NaN stay what they are
    return bits_float(sign | float_bits(magnitude) | infinite);
}

static uint16_t f32_to_bf16(float x)
{
    uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);  // NaN stays NaN
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float bf16_to_f32(uint16_t h)
{
    return bits_float((uint32_t)h << 16);
}

static size_t dtype_size(int dtype)
{
    return dtype == PAGED_F32 ? 4 : 2;
}

// Element i of a plane of K or V, and its counterpart for storing.
static float load_element(const void *plane, size_t i, int dtype)
{
    if (dtype == PAGED_F32) return ((const float *)plane)[i];
    uint16_t h = ((const uint16_t *)plane)[i];
    return dtype == PAGED_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static void store_element(void *plane, size_t i, int dtype, float x)
{
    if (dtype == PAGED_F32)
        ((float *)plane)[i] = x;
    else
        ((uint16_t *)plane)[i] = dtype == PAGED_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

// ---- layout -----------------------------------------------------------------------------------
// From a token to its bytes, the walk that a page table walk is in an operating system:
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

static size_t kv_offset(const PoolConfig *c, int layer, int block, int kv_head, int slot)
{
    size_t i = (size_t)layer * c->num_blocks + block;
    i = i * c->num_kv_heads + kv_head;
    i = i * c->block_size + slot;
    return i * c->head_dim;
}

// The address of that element.
static char *kv_address(const PoolConfig *c, void *plane, int layer, int block, int kv_head,
                        int slot)
{
    return (char *)plane + kv_offset(c, layer, block, kv_head, slot) * dtype_size(c->dtype);
}

static int ceil_div(int64_t a, int b)
{
    return (int)((a + b - 1) / b);
}

// ---- pool -------------------------------------------------------------------------------------
// All memory is allocated once. The free list runs through the blocks' own records, as a ring in
// both directions; record num_blocks is its head, so no end needs a special case. A block is taken
// from the front and, when its count falls to 0, put back at the front: what was used last is used
// next, while it may still be in a cache of the processor.

static int config_ok(const PoolConfig *c)
{
    return c && c->num_layers >= 1 && c->num_kv_heads >= 1 && c->head_dim >= 1 &&
           c->head_dim <= PAGED_MAX_HEAD_DIM && c->block_size >= 1 && c->dtype >= PAGED_F32 &&
           c->dtype <= PAGED_BF16;
}

// a * b, or 0 where that overflows; 0 is a size that nothing here has.
static size_t multiply(size_t a, size_t b)
{
    return a > 0 && b <= SIZE_MAX / a ? a * b : 0;
}

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

int pool_create(const PoolConfig *config, Pool **out)
{
    if (!config_ok(config) || config->num_blocks < 1 || !out) return PAGED_BAD_ARGUMENT;
    size_t plane = multiply(pool_bytes_per_block(config) / 2, config->num_blocks);
    size_t records = multiply((size_t)config->num_blocks + 1, sizeof(Block));
    if (plane == 0 || plane > PTRDIFF_MAX || records == 0) return PAGED_OUT_OF_MEMORY;

    Pool *pool = (Pool *)calloc(1, sizeof *pool);
    if (!pool) return PAGED_OUT_OF_MEMORY;
    pool->config = *config;
    pool->k = malloc(plane);
    pool->v = malloc(plane);
    pool->blocks = (Block *)malloc(records);
    if (!pool->k || !pool->v || !pool->blocks) {
        pool_destroy(pool);
        return PAGED_OUT_OF_MEMORY;
    }
    int head = config->num_blocks;
    pool->blocks[head].ref_count = 0;
    pool->blocks[head].prev = pool->blocks[head].next = head;
    for (int block = 0; block < config->num_blocks; block++) {
        pool->blocks[block].ref_count = 0;
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
    free(pool->blocks);
    free(pool->k);
    free(pool->v);
    free(pool);
}

// Fills slots from..to - 1 of a block with NaN, in every layer, in a pool that asks for it. All
// bits set is a NaN in each of the three types.
static void block_poison(Pool *pool, int block, int from, int to)
{
    const PoolConfig *c = &pool->config;
    if (!c->poison) return;
    size_t bytes = (size_t)(to - from) * c->head_dim * dtype_size(c->dtype);
    for (int layer = 0; layer < c->num_layers; layer++)
        for (int head = 0; head < c->num_kv_heads; head++) {
            memset(kv_address(c, pool->k, layer, block, head, from), 0xff, bytes);
            memset(kv_address(c, pool->v, layer, block, head, from), 0xff, bytes);
        }
}

// Copies the first `slots` slots of a block to another, in every layer.
static void block_copy(Pool *pool, int to, int from, int slots)
{
    const PoolConfig *c = &pool->config;
    size_t bytes = (size_t)slots * c->head_dim * dtype_size(c->dtype);
    for (int layer = 0; layer < c->num_layers; layer++)
        for (int head = 0; head < c->num_kv_heads; head++) {
            memcpy(kv_address(c, pool->k, layer, to, head, 0),
                   kv_address(c, pool->k, layer, from, head, 0), bytes);
            memcpy(kv_address(c, pool->v, layer, to, head, 0),
                   kv_address(c, pool->v, layer, from, head, 0), bytes);
        }
}

// Takes the first free block. The caller has counted: there is one.
static int block_take(Pool *pool)
{
    int block = pool->blocks[pool->config.num_blocks].next;
    INVARIANT(pool->num_free > 0 && block < pool->config.num_blocks, "no free block to take");
    INVARIANT(pool->blocks[block].ref_count == 0, "a block on the free list is in use");
    free_list_remove(pool, block);
    pool->blocks[block].ref_count = 1;
    block_poison(pool, block, 0, pool->config.block_size);
    return block;
}

// Drops one reference; the last one frees the block.
static void block_drop(Pool *pool, int block)
{
    INVARIANT(pool->blocks[block].ref_count > 0, "a free block is given back");
    if (--pool->blocks[block].ref_count > 0) return;
    block_poison(pool, block, 0, pool->config.block_size);
    free_list_insert_after(pool, pool->config.num_blocks, block);
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
    // A block that others see is never written. With a count of 1 nobody else can see it: write in
    // place. A full block is not written again, so it can stay shared.
    int copy = live > 0 && pool->blocks[seq->block_table[have - 1]].ref_count > 1;
    if (need - have + copy > pool->num_free) return PAGED_OUT_OF_BLOCKS;

    // 2. Copy-on-write: take the new block, fill it, put it into the table, and only then let go
    //    of the old one.
    if (copy) {
        int shared = seq->block_table[have - 1], own = block_take(pool);
        block_copy(pool, own, shared, live);
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
    int error = seq_create(pool, &child);
    if (error) return error;
    for (int i = 0; i < ceil_div(at, pool->config.block_size); i++) {
        arrput(child->block_table, parent->block_table[i]);
        pool->blocks[parent->block_table[i]].ref_count++;
    }
    child->length = at;
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
    int filled = seq->length - ((int)arrlen(seq->block_table) - 1) * block_size;
    while ((int)arrlen(seq->block_table) > ceil_div(length, block_size)) {
        block_drop(pool, arrpop(seq->block_table));
        filled = block_size;
    }
    seq->length = length;
    if (length % block_size > 0 && pool->blocks[arrlast(seq->block_table)].ref_count == 1)
        block_poison(pool, arrlast(seq->block_table), length % block_size, filled);
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

// ---- K and V ----------------------------------------------------------------------------------
// A batch is ragged: sequence i brings num_tokens[i] rows. Before anything is moved or read, it is
// unrolled into a Step, flat arrays that say for every row to which sequence it belongs and where
// in that sequence it stands, and for every sequence which blocks it has. No pointer to a Seq is
// left in it: this is all that the code below, and a GPU, needs to know.

typedef struct Row {
    int seq;       // index in the batch
    int position;  // in that sequence
} Row;

typedef struct Step {
    PoolConfig layout;
    void *k, *v;  // planes of that layout
    int layer;
    int num_seqs, table_width;
    int *tables;  // [num_seqs][table_width], block tables padded with -1
    Row *rows;    // [num_rows]
    int64_t num_rows;
    void *dense;  // what attention gathered, if it did
} Step;

static void step_free(Step *step)
{
    free(step->tables);
    free(step->rows);
    free(step->dense);
}

// Validates a batch and unrolls it. On success the caller ends with step_free().
static int step_create(const Pool *pool, int layer, const Batch *batch, Step *step)
{
    memset(step, 0, sizeof *step);
    if (!pool || layer < 0 || layer >= pool->config.num_layers || !batch || batch->num_seqs < 0 ||
        batch->num_seqs > arrlen(pool->seqs) ||  // then one would be in it twice
        (batch->num_seqs > 0 && (!batch->seqs || !batch->num_tokens)))
        return PAGED_BAD_ARGUMENT;

    // 1. Look at everything, and measure.
    char *seen = (char *)calloc(arrlenu(pool->seqs) + 1, 1);  // [seq->index]
    if (!seen) return PAGED_OUT_OF_MEMORY;
    int ok = 1;
    for (int i = 0; i < batch->num_seqs && ok; i++) {
        const Seq *seq = batch->seqs[i];
        int n = batch->num_tokens[i];
        ok = seq && seq->pool == pool && !seen[seq->index]++ && n >= 0 && n <= seq->length;
        int entries = ok && n > 0 ? (int)arrlen(seq->block_table) : 0;
        if (step->table_width < entries) step->table_width = entries;
        step->num_rows += n;
    }
    free(seen);
    if (!ok) return PAGED_BAD_ARGUMENT;

    // 2. Fill in.
    step->layout = pool->config;
    step->k = pool->k;
    step->v = pool->v;
    step->layer = layer;
    step->num_seqs = batch->num_seqs;
    size_t entries = (size_t)step->num_seqs * step->table_width;
    step->tables = (int *)malloc(multiply(entries + 1, sizeof(int)));
    step->rows = (Row *)malloc(((size_t)step->num_rows + 1) * sizeof(Row));
    if (!step->tables || !step->rows) {
        step_free(step);
        return PAGED_OUT_OF_MEMORY;
    }
    int *entry = step->tables;
    Row *row = step->rows;
    for (int i = 0; i < batch->num_seqs; i++) {
        const Seq *seq = batch->seqs[i];
        int n = batch->num_tokens[i], used = n > 0 ? (int)arrlen(seq->block_table) : 0;
        for (int j = 0; j < step->table_width; j++) *entry++ = j < used ? seq->block_table[j] : -1;
        for (int t = seq->length - n; t < seq->length; t++, row++) row->seq = i, row->position = t;
    }
    return PAGED_OK;
}

// The walk of section "layout": where K and V of a token and head are, as an element of a plane.
static size_t step_offset(const Step *step, int seq, int position, int kv_head)
{
    const PoolConfig *c = &step->layout;
    int block = step->tables[(size_t)seq * step->table_width + position / c->block_size];
    return kv_offset(c, step->layer, block, kv_head, position % c->block_size);
}

// Row r of k and v, [num_rows][num_kv_heads][head_dim], to its slot (write) or back from there.
static void move_row(const Step *step, int64_t r, float *k, float *v, int write)
{
    const PoolConfig *c = &step->layout;
    for (int head = 0; head < c->num_kv_heads; head++) {
        size_t at = step_offset(step, step->rows[r].seq, step->rows[r].position, head);
        size_t x = ((size_t)r * c->num_kv_heads + head) * c->head_dim;
        for (int i = 0; i < c->head_dim; i++, at++, x++) {
            if (write) {
                store_element(step->k, at, c->dtype, k[x]);
                store_element(step->v, at, c->dtype, v[x]);
            } else {
                k[x] = load_element(step->k, at, c->dtype);
                v[x] = load_element(step->v, at, c->dtype);
            }
        }
    }
}

int pool_write(Pool *pool, int layer, const Batch *batch, const float *k, const float *v)
{
    Step step;
    int error = step_create(pool, layer, batch, &step);
    if (error) return error;
    if (step.num_rows > 0 && (!k || !v)) error = PAGED_BAD_ARGUMENT;
    // Nobody else may see what is written: ask for every row before the first is touched.
    for (int64_t r = 0; r < step.num_rows && !error; r++) {
        const Seq *seq = batch->seqs[step.rows[r].seq];
        int block = seq->block_table[step.rows[r].position / pool->config.block_size];
        if (pool->blocks[block].ref_count > 1) error = PAGED_BLOCK_SHARED;
    }
    for (int64_t r = 0; r < step.num_rows && !error; r++)
        move_row(&step, r, (float *)k, (float *)v, 1);
    step_free(&step);
    return error;
}

int seq_gather(const Seq *seq, int layer, float *k, float *v)
{
    if (!seq || (seq->length > 0 && (!k || !v))) return PAGED_BAD_ARGUMENT;
    Seq *whole = seq->pool->seqs[seq->index];
    Batch batch = {1, &whole, &seq->length};  // all of its tokens
    Step step;
    int error = step_create(seq->pool, layer, &batch, &step);
    if (error) return error;
    for (int64_t r = 0; r < step.num_rows; r++) move_row(&step, r, k, v, 0);
    step_free(&step);
    return PAGED_OK;
}

// ---- attention --------------------------------------------------------------------------------
// out = sum over visible tokens t of softmax(q . K[t] * scale) V[t], for each query token and head.
//
// The sum is built up tile by tile, and never sees all scores at once (online softmax, Milakov and
// Gimelshein 2018). The state is m, the largest score so far, l, the sum of exp(score - m), and o,
// the sum of exp(score - m) V. When a tile raises m, what was summed before is scaled down by
// exp(old m - new m). The result is o / l.
//
// A tile is a fixed number of tokens, whatever the block size, so the result does not depend on the
// block size by one bit.

enum { TILE = 16 };

// One head's vector of one token as float32: in place if that is how it is stored, else in buffer.
static const float *vector_at(const void *plane, size_t at, const PoolConfig *c, float *buffer)
{
    if (c->dtype == PAGED_F32) return (const float *)plane + at;
    for (int i = 0; i < c->head_dim; i++) buffer[i] = load_element(plane, at + i, c->dtype);
    return buffer;
}

// One query vector, of row r and a head. q, out: [head_dim].
static void attend_row(const Step *step, int64_t r, int kv_head, float scale, const float *q,
                       float *out, float *lse)
{
    const PoolConfig *c = &step->layout;
    int seq = step->rows[r].seq, visible = step->rows[r].position + 1;  // itself included
    float m = -INFINITY, l = 0, o[PAGED_MAX_HEAD_DIM] = {0}, buffer[PAGED_MAX_HEAD_DIM];

    for (int start = 0; start < visible; start += TILE) {
        int tokens = visible - start < TILE ? visible - start : TILE;

        // 1. The scores of this tile, and the maximum so far.
        float score[TILE], new_m = m;
        for (int t = 0; t < tokens; t++) {
            const float *k =
                vector_at(step->k, step_offset(step, seq, start + t, kv_head), c, buffer);
            float dot = 0;
            for (int i = 0; i < c->head_dim; i++) dot += q[i] * k[i];
            score[t] = dot * scale;
            if (score[t] > new_m) new_m = score[t];
        }
        if (new_m == -INFINITY) continue;  // nothing to see yet, and -inf minus -inf is NaN

        // 2. The weights and values of this tile.
        float sum = 0, acc[PAGED_MAX_HEAD_DIM] = {0};
        for (int t = 0; t < tokens; t++) {
            const float *v =
                vector_at(step->v, step_offset(step, seq, start + t, kv_head), c, buffer);
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
    for (int i = 0; i < c->head_dim; i++) out[i] = l > 0 ? o[i] / l : 0;
    if (lse) *lse = m + logf(l);
}

// Dense gather: copies K and V of the batch out of the blocks, each sequence into one contiguous
// piece, and turns the step to the copy. The copy is a small pool, too: with one layer, and a block
// per sequence that is as long as the longest. So the same attention reads both, tile for tile,
// and gathered and paged results agree in every bit.
static int step_gather(Step *step)
{
    PoolConfig from = step->layout, to = from;
    to.num_layers = 1;
    to.num_blocks = step->num_seqs;
    to.block_size = 0;
    for (int64_t r = 0; r < step->num_rows; r++)
        if (to.block_size <= step->rows[r].position) to.block_size = step->rows[r].position + 1;

    size_t plane = multiply(pool_bytes_per_block(&to) / 2, to.num_blocks);
    int *tables = (int *)malloc((size_t)step->num_seqs * sizeof(int));
    step->dense = multiply(2, plane) ? malloc(2 * plane) : NULL;
    if (!tables || !step->dense) {
        free(tables);
        return PAGED_OUT_OF_MEMORY;
    }
    void *k = step->dense, *v = (char *)step->dense + plane;
    for (int seq = 0; seq < step->num_seqs; seq++) {
        const int *table = step->tables + (size_t)seq * step->table_width;
        for (int i = 0; i < step->table_width && table[i] >= 0; i++)
            for (int head = 0; head < from.num_kv_heads; head++) {
                int start = i * from.block_size, left = to.block_size - start;
                size_t slots = left < from.block_size ? left : from.block_size;
                size_t bytes = slots * from.head_dim * dtype_size(from.dtype);
                memcpy(kv_address(&to, k, 0, seq, head, start),
                       kv_address(&from, step->k, step->layer, table[i], head, 0), bytes);
                memcpy(kv_address(&to, v, 0, seq, head, start),
                       kv_address(&from, step->v, step->layer, table[i], head, 0), bytes);
            }
        tables[seq] = seq;
    }
    free(step->tables);
    step->tables = tables;
    step->table_width = 1;
    step->layout = to;
    step->layer = 0;
    step->k = k;
    step->v = v;
    return PAGED_OK;
}

int attend(Pool *pool, int method, int layer, const Batch *batch, int num_q_heads, float scale,
           const float *q, float *out, float *lse)
{
    Step step;
    int error = step_create(pool, layer, batch, &step);
    if (error) return error;
    const PoolConfig *c = &pool->config;
    if (method < ATTEND_GATHER || method > ATTEND_PAGED || num_q_heads < 1 ||
        num_q_heads % c->num_kv_heads != 0 || !isfinite(scale) ||
        (step.num_rows > 0 && (!q || !out)))
        error = PAGED_BAD_ARGUMENT;
    if (!error && method == ATTEND_GATHER && step.num_rows > 0) error = step_gather(&step);

    // Rows and heads are independent of one another: each output is one call of attend_row().
    int group = error ? 1 : num_q_heads / c->num_kv_heads;  // query heads that share a KV head
    int64_t items = error ? 0 : step.num_rows * num_q_heads;
    if (scale == 0) scale = 1 / sqrtf((float)c->head_dim);
#ifdef _OPENMP
    double work = 0;  // threads pay off from some 100 microseconds on
    for (int64_t r = 0; r < step.num_rows; r++) work += step.rows[r].position;
#pragma omp parallel for schedule(dynamic) if (work * group * c->head_dim > 1e5)
#endif
    for (int64_t i = 0; i < items; i++)  // [num_rows][num_q_heads]
        attend_row(&step, i / num_q_heads, (int)(i % num_q_heads) / group, scale,
                   q + i * c->head_dim, out + i * c->head_dim, lse ? lse + i : NULL);
    step_free(&step);
    return error;
}

// ---- oracle -----------------------------------------------------------------------------------
// What serving systems did before paging, and the judge of everything above: one contiguous piece
// per sequence, all of it reserved at once; a fork is a memcpy; attention is the textbook formula
// in double, two passes, all scores in an array.

static size_t oracle_offset(const Oracle *o, int layer, int token)
{
    return ((size_t)layer * o->max_tokens + token) * o->config.num_kv_heads * o->config.head_dim;
}

int oracle_create(const PoolConfig *config, int max_tokens, Oracle **out)
{
    if (!config_ok(config) || max_tokens < 1 || !out) return PAGED_BAD_ARGUMENT;
    size_t count =
        multiply(pool_bytes_per_token(config) / dtype_size(config->dtype) / 2, max_tokens);
    size_t bytes = multiply(count, sizeof(float));
    if (bytes == 0 || bytes > PTRDIFF_MAX) return PAGED_OUT_OF_MEMORY;
    Oracle *oracle = (Oracle *)calloc(1, sizeof *oracle);
    if (!oracle) return PAGED_OUT_OF_MEMORY;
    oracle->config = *config;
    oracle->max_tokens = max_tokens;
    oracle->k = (float *)malloc(bytes);
    oracle->v = (float *)malloc(bytes);
    if (!oracle->k || !oracle->v) {
        oracle_release(oracle);
        return PAGED_OUT_OF_MEMORY;
    }
    *out = oracle;
    return PAGED_OK;
}

void oracle_release(Oracle *oracle)
{
    if (!oracle) return;
    free(oracle->k);
    free(oracle->v);
    free(oracle);
}

int oracle_append(Oracle *oracle, int n)
{
    if (!oracle || n < 0) return PAGED_BAD_ARGUMENT;
    if (n > oracle->max_tokens - oracle->length) return PAGED_TOO_LONG;
    oracle->length += n;
    return PAGED_OK;
}

int oracle_rewind(Oracle *oracle, int n)
{
    if (!oracle || n < 0 || n > oracle->length) return PAGED_BAD_ARGUMENT;
    oracle->length -= n;
    return PAGED_OK;
}

int oracle_fork(const Oracle *parent, int at, Oracle **out)
{
    if (!parent || !out || at < 0 || at > parent->length) return PAGED_BAD_ARGUMENT;
    Oracle *child;
    int error = oracle_create(&parent->config, parent->max_tokens, &child);
    if (error) return error;
    child->length = at;
    for (int layer = 0; layer < parent->config.num_layers; layer++) {
        size_t start = oracle_offset(parent, layer, 0), end = oracle_offset(parent, layer, at);
        memcpy(child->k + start, parent->k + start, (end - start) * sizeof(float));
        memcpy(child->v + start, parent->v + start, (end - start) * sizeof(float));
    }
    *out = child;
    return PAGED_OK;
}

static float round_to(int dtype, float x)
{
    if (dtype == PAGED_F16) return f16_to_f32(f32_to_f16(x));
    if (dtype == PAGED_BF16) return bf16_to_f32(f32_to_bf16(x));
    return x;
}

int oracle_write(Oracle *oracle, int layer, int num_tokens, const float *k, const float *v)
{
    if (!oracle || layer < 0 || layer >= oracle->config.num_layers || num_tokens < 0 ||
        num_tokens > oracle->length || (num_tokens > 0 && (!k || !v)))
        return PAGED_BAD_ARGUMENT;
    size_t start = oracle_offset(oracle, layer, oracle->length - num_tokens);
    size_t end = oracle_offset(oracle, layer, oracle->length);
    for (size_t i = 0; i < end - start; i++) {
        oracle->k[start + i] = round_to(oracle->config.dtype, k[i]);
        oracle->v[start + i] = round_to(oracle->config.dtype, v[i]);
    }
    return PAGED_OK;
}

// One query vector over the first `visible` tokens. k, v: [visible][num_kv_heads][head_dim], of one
// layer, from the head in question on; score: [visible].
static void oracle_row(const Oracle *oracle, const float *k, const float *v, int visible,
                       double scale, const float *q, double *score, float *out, float *lse)
{
    int head_dim = oracle->config.head_dim;
    size_t stride = (size_t)oracle->config.num_kv_heads * head_dim;
    double max = -INFINITY, sum = 0;
    for (int t = 0; t < visible; t++) {
        score[t] = 0;
        for (int i = 0; i < head_dim; i++) score[t] += (double)q[i] * k[t * stride + i];
        score[t] *= scale;
        if (score[t] > max) max = score[t];
    }
    for (int t = 0; t < visible; t++) sum += exp(score[t] - max);
    for (int i = 0; i < head_dim; i++) {
        double o = 0;
        for (int t = 0; t < visible; t++) o += exp(score[t] - max) / sum * v[t * stride + i];
        out[i] = (float)o;
    }
    if (lse) *lse = (float)(max + log(sum));
}

int oracle_attend(const Oracle *oracle, int layer, int num_tokens, int num_q_heads, float scale,
                  const float *q, float *out, float *lse)
{
    if (!oracle || layer < 0 || layer >= oracle->config.num_layers || num_tokens < 0 ||
        num_tokens > oracle->length || num_q_heads < 1 || !isfinite(scale) ||
        num_q_heads % oracle->config.num_kv_heads != 0 || (num_tokens > 0 && (!q || !out)))
        return PAGED_BAD_ARGUMENT;
    double *score = (double *)malloc(((size_t)oracle->length + 1) * sizeof *score);
    if (!score) return PAGED_OUT_OF_MEMORY;

    int head_dim = oracle->config.head_dim, group = num_q_heads / oracle->config.num_kv_heads;
    size_t layer_start = oracle_offset(oracle, layer, 0);
    double s = scale == 0 ? 1 / sqrt((double)head_dim) : scale;
    for (int t = 0; t < num_tokens; t++)
        for (int head = 0; head < num_q_heads; head++) {
            size_t row = (size_t)t * num_q_heads + head;  // q, out: [num_tokens][num_q_heads][dim]
            size_t kv = layer_start + (size_t)(head / group) * head_dim;
            oracle_row(oracle, oracle->k + kv, oracle->v + kv, oracle->length - num_tokens + t + 1,
                       s, q + row * head_dim, score, out + row * head_dim, lse ? lse + row : NULL);
        }
    free(score);
    return PAGED_OK;
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

// Follows the free list from its head and back to it.
static const char *check_free_list(const Pool *pool)
{
    int head = pool->config.num_blocks, prev = head, count = 0;
    for (int block = pool->blocks[head].next; block != head; block = pool->blocks[block].next) {
        if (block < 0 || block > head) return broken("free list: %d is no block", block);
        if (pool->blocks[block].prev != prev)  // a block met twice has the wrong one, too
            return broken("free list: block %d has a wrong link back", block);
        if (pool->blocks[block].ref_count != 0)
            return broken("free list: block %d has reference count %d", block,
                          pool->blocks[block].ref_count);
        prev = block;
        count++;
    }
    if (pool->blocks[head].prev != prev) return broken("free list: its head has a wrong link back");
    if (count != pool->num_free)
        return broken("free list: %d blocks, but num_free is %d", count, pool->num_free);
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
    if (!wrong && used + pool->num_free != pool->config.num_blocks)
        wrong = broken("%d blocks in use and %d free make %d, not %d", used, pool->num_free,
                       used + pool->num_free, pool->config.num_blocks);
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
            line[i] = count == 0 ? '.' : count < 10 ? (char)('0' + count) : '+';
        }
        line[width] = 0;
        // Like hexdump: one star stands for all the lines that are like the one above it.
        stars = strcmp(line, above) == 0 ? stars + (stars < 2) : 0;
        if (stars == 0) fprintf(out, "%8d  %s\n", (int)start, line);
        if (stars == 1) fprintf(out, "%8s\n", "*");
        strcpy(above, line);
    }
}

void seq_dump(const Seq *seq, FILE *out)
{
    enum { WIDTH = 13 };
    static const char *const titles[4] = {"logical", "physical", "filled", "ref_count"};
    if (!seq) return;
    if (!out) out = stdout;
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

// ---- tour -------------------------------------------------------------------------------------
// What ./paged prints: the examples of the public texts on PagedAttention, each on a pool of its
// own. Bytes come from the shapes of real models; every count is read off a live pool, small in
// layers and heads. Whatever is done to a sequence is done to its twin, an oracle, as well; at the
// end of a chapter their attention is compared.

#ifndef PAGED_NO_MAIN

#include <unistd.h>

static int failures, waits;  // waits: --step was given
static const char *bold = "", *plain = "";
static uint64_t seed;
static struct {
    Seq *key;
    Oracle *value;
} * twins;  // a map of stb_ds

static const double MIB = 1 << 20;
static const PoolConfig GPT = {32, 32, 128, 16, 1, PAGED_F16, 0};  // the model of the examples

static void must(int error)
{
    if (error) fprintf(stderr, "paged: %s\n", paged_error(error));
    if (error) exit(1);
}

static void pause_tour(void)
{
    if (!waits) return;
    printf("%s[return]%s ", bold, plain);
    fflush(stdout);
    for (int c = 0; c != '\n' && c != EOF;) c = getchar();
}

static double uniform(void)  // in [0, 1): splitmix64 (Steele, Lea, Flood 2014)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static float *random_tensor(int rows, int heads, int head_dim)
{
    float *x = NULL;
    arrsetlen(x, (size_t)rows * heads * head_dim);
    for (size_t i = 0; i < arrlenu(x); i++) x[i] = (float)(2 * uniform() - 1);
    return x;
}

// A pool whose free list begins with the n blocks of `order`: takes all, gives these back last.
static Pool *new_pool(int block_size, int num_blocks, const int *order, int n)
{
    PoolConfig config = {2, 2, 8, block_size, num_blocks, PAGED_F32, 1};
    Pool *pool;
    must(pool_create(&config, &pool));
    Seq *all[16], *last[16];
    for (int b = 0; n > 0 && b < num_blocks; b++) {
        must(seq_create(pool, &all[b]));
        must(seq_append(all[b], 1));
    }
    for (int i = 0; i < n; i++) last[i] = all[order[i]], all[order[i]] = NULL;
    for (int b = num_blocks - 1; n > 0 && b >= 0; b--) seq_release(all[b]);
    for (int i = n - 1; i >= 0; i--) seq_release(last[i]);
    return pool;
}

// n more tokens with random K and V, for a sequence and its twin.
static void grow(Seq *seq, int n)
{
    const PoolConfig *c = &seq->pool->config;
    Oracle *twin = hmget(twins, seq);
    Batch batch = {1, &seq, &n};
    must(seq_append(seq, n));
    must(oracle_append(twin, n));
    for (int layer = 0; layer < c->num_layers; layer++) {
        float *k = random_tensor(n, c->num_kv_heads, c->head_dim);
        float *v = random_tensor(n, c->num_kv_heads, c->head_dim);
        must(pool_write(seq->pool, layer, &batch, k, v));
        must(oracle_write(twin, layer, n, k, v));
        arrfree(k);
        arrfree(v);
    }
}

static Seq *new_seq(Pool *pool, int n)
{
    Seq *seq;
    Oracle *twin;
    must(seq_create(pool, &seq));
    must(oracle_create(&pool->config, 2048, &twin));
    hmput(twins, seq, twin);
    grow(seq, n);
    return seq;
}

static Seq *fork_seq(const Seq *parent)
{
    Seq *child, *key = parent->pool->seqs[parent->index];
    Oracle *twin;
    must(seq_fork(parent, parent->length, &child));
    must(oracle_fork(hmget(twins, key), parent->length, &twin));
    hmput(twins, child, twin);
    return child;
}

static void release(Seq *seq)
{
    oracle_release(hmget(twins, seq));
    (void)hmdel(twins, seq);
    seq_release(seq);
}

// The newest tokens of a sequence attend, by both methods, in every layer, as its twin says.
static int agrees(Seq *seq)
{
    const PoolConfig *c = &seq->pool->config;
    Oracle *twin = hmget(twins, seq);
    int n = seq->length < 3 ? seq->length : 3, num_q_heads = 2 * c->num_kv_heads, same = 1;
    float *q = random_tensor(n, num_q_heads, c->head_dim), *out = NULL, *expected = NULL;
    arrsetlen(out, arrlenu(q));
    arrsetlen(expected, arrlenu(q));
    Batch batch = {1, &seq, &n};
    for (int i = 0; i < 2 * c->num_layers; i++) {
        int method = i % 2 ? ATTEND_PAGED : ATTEND_GATHER;
        must(attend(seq->pool, method, i / 2, &batch, num_q_heads, 0, q, out, NULL));
        must(oracle_attend(twin, i / 2, n, num_q_heads, 0, q, expected, NULL));
        for (size_t j = 0; j < arrlenu(q); j++)
            if (!(fabsf(out[j] - expected[j]) <= 1e-6f)) same = 0;  // so written, NaN differs
    }
    arrfree(q);
    arrfree(out);
    arrfree(expected);
    return same;
}

// Ends a pool of the tour: compares, recounts, and gives everything back.
static void finish(Pool *pool)
{
    const char *wrong = pool_check(pool);
    while (arrlen(pool->seqs) > 0) {
        if (!agrees(arrlast(pool->seqs))) wrong = "attention is not within 1e-6 of the oracle";
        release(arrlast(pool->seqs));
    }
    if (!wrong && pool->num_free != pool->config.num_blocks) wrong = "blocks were lost";
    printf("[%s] %s\n", wrong ? "FAILED" : "ok",
           wrong ? wrong
                 : "attention within 1e-6 of the oracle; all blocks counted and given back");
    failures += wrong != NULL;
    pool_destroy(pool);
    pause_tour();
}

static int blocks_used(const Pool *pool)
{
    return pool->config.num_blocks - pool->num_free;
}

// name [table] counts [of its blocks], with room for `width` entries.
static void print_table(const char *name, const Seq *seq, int width)
{
    int entries = (int)arrlen(seq->block_table);
    printf("%s [", name);
    for (int i = 0; i < entries; i++) printf("%3d", seq->block_table[i]);
    printf("%.*s ]  counts [", 3 * (width - entries), "  x  x  x");
    for (int i = 0; i < entries; i++)
        printf("%2d", seq->pool->blocks[seq->block_table[i]].ref_count);
    printf(" ]  %d in the last\n", (seq->length - 1) % seq->pool->config.block_size + 1);
}

static void chapter_cost(void)
{
    PoolConfig gqa = GPT, opt = {48, 56, 128, 16, 1, PAGED_F16, 0};
    gqa.num_kv_heads = 8;
    printf("2 (K and V) x %d layers x %d heads x %d dims x 2 bytes (f16) = %zu bytes\n"
           "for every token: %zu KiB. There is no cache of queries: only the newest counts.\n"
           "With %d KV heads that the %d query heads share (GQA): %zu KiB.\n"
           "OPT-30B, %d layers x %d dims, 128 requests of 1024 tokens: %.1f GB of\n"
           "K and V, beside about 60 GB of weights.\n",
           GPT.num_layers, GPT.num_kv_heads, GPT.head_dim, pool_bytes_per_token(&GPT),
           pool_bytes_per_token(&GPT) / 1024, gqa.num_kv_heads, GPT.num_kv_heads,
           pool_bytes_per_token(&gqa) / 1024, opt.num_layers, opt.num_kv_heads * opt.head_dim,
           (double)pool_bytes_per_token(&opt) * 1024 * 128 / 1e9);
    pause_tour();
}

static void chapter_reserve(void)
{
    // Reserving is paging, too: with one block a request, as long as the longest request.
    Pool *pool = new_pool(2048, 1, NULL, 0);
    Seq *seq = new_seq(pool, 500);
    double reserved = (double)pool_bytes_per_token(&GPT) * pool->config.block_size / MIB;
    double used = (double)pool_bytes_per_token(&GPT) * seq->length / MIB;
    printf("At most %d tokens, %d on average: a request reserves %.0f MiB and uses\n"
           "%.0f MiB, %.1f %%. Wasted: %.0f MiB a request, %.1f GiB over 100 requests.\n",
           pool->config.block_size, seq->length, reserved, used, 100 * used / reserved,
           reserved - used, 100 * (reserved - used) / 1024);
    finish(pool);
}

static void chapter_blocks(void)
{
    static const int lengths[5] = {320, 48, 160, 96, 272};
    Pool *pool = new_pool(16, 512, NULL, 0);
    Seq *seqs[5];
    for (int i = 0; i < 5; i++) {
        seqs[i] = new_seq(pool, lengths[i]);
        printf("request %d: %3d tokens in %2d blocks, %2d to %2d\n", i, seqs[i]->length,
               (int)arrlen(seqs[i]->block_table), seqs[i]->block_table[0],
               arrlast(seqs[i]->block_table));
    }
    pool_dump(pool, stdout);
    printf("Request 1 is done and gives its blocks back:\n");
    release(seqs[1]);
    pool_dump(pool, stdout);
    printf("The next request starts in block %d.\n", new_seq(pool, 1)->block_table[0]);
    finish(pool);
}

static void chapter_copy_on_write(void)
{
    Pool *pool = new_pool(16, 32, NULL, 0);
    Seq *prompt = new_seq(pool, 200), *requests[10];
    int apart = 10 * blocks_used(pool);
    for (int i = 0; i < 10; i++) requests[i] = fork_seq(prompt);
    int together = blocks_used(pool);
    double mib = (double)pool_bytes_per_block(&GPT) / MIB;
    printf("Ten requests share a system prompt of %d tokens ('+': 10 or more references).\n",
           prompt->length);
    pool_dump(pool, stdout);
    seq_dump(requests[3], stdout);
    printf("Counts of %d: the ten, and the prompt's own handle. %d blocks in place of %d;\n"
           "at 512 KiB a token %.0f MiB in place of %.0f MiB: %d blocks, %.1f MiB saved.\n",
           pool->blocks[12].ref_count, together, apart, together * mib, apart * mib,
           apart - together, (apart - together) * mib);
    pause_tour();

    printf("Request 3 writes its first own token, into a copy of the last block:\n");
    grow(requests[3], 1);
    seq_dump(requests[3], stdout);
    printf("Copies: %ld. The nine others still read block 12; its count is %d.\n"
           "The handle of the prompt is released, and the nine others write:\n",
           pool->num_copies, pool->blocks[12].ref_count);
    release(prompt);
    for (int i = 0; i < 10; i++)
        if (i != 3) grow(requests[i], 1);
    pool_dump(pool, stdout);
    printf("Copies: %ld for ten writers. The last found a count of 1 and wrote in place.\n",
           pool->num_copies);
    finish(pool);
}

static void chapter_utilisation(void)
{
    static const int batches[5] = {10, 25, 50, 100, 200};
    printf("Lengths: normal, mean 500, sd 200, clipped to [200, 2048].\n"
           "requests   2048 slots reserved for each       blocks of 16\n");
    for (int b = 0; b < 5; b++) {
        Pool *pools[2] = {new_pool(2048, batches[b], NULL, 0),
                          new_pool(16, batches[b] * 128, NULL, 0)};
        double tokens = 0, pi = 3.14159265358979;
        for (int i = 0; i < batches[b]; i++) {
            double normal = sqrt(-2 * log(1 - uniform()));  // Box and Muller 1958
            normal *= cos(2 * pi * uniform());
            int length = (int)fmin(fmax(500 + 200 * normal, 200), 2048);
            for (int p = 0; p < 2; p++) {
                Seq *seq;
                must(seq_create(pools[p], &seq));
                must(seq_append(seq, length));
            }
            tokens += length;
        }
        printf("%8d", batches[b]);
        for (int p = 0; p < 2; p++) {
            double in_use = tokens / ((double)blocks_used(pools[p]) * pools[p]->config.block_size);
            int bar = (int)(20 * in_use + 0.5);
            printf("   %4.1f %% %.*s%.*s", 100 * in_use, bar, "####################", 20 - bar,
                   "....................");
            pool_destroy(pools[p]);
        }
        printf("\n");
    }
    printf("Reserving wastes the same at every batch size: it is in the design. Paging\n"
           "wastes the unfilled slots of each last block, %d at most.\n",
           16 - 1);
    pause_tour();
}

static void chapter_block_table(void)
{
    static const int order[3] = {1, 5, 3}, turing[3] = {7, 1, 5}, lengths[4] = {60, 32, 40, 12};
    static const char *const words[9] = {
        "Alan", "Turing", "is", "a", "computer", "scientist", "and", "mathematician", "renowned"};
    Pool *pool = new_pool(16, 8, order, 3);
    Seq *seq = new_seq(pool, 38);
    seq_dump(seq, stdout);
    for (int t = 5; t < 38; t += 16)
        printf("token %2d: entry %2d / 16 = %d of the table is block %d; slot %2d %% 16 = %d\n", t,
               t, t / 16, seq->block_table[t / 16], t, t % 16);
    finish(pool);

    printf("Four sequences; a batch passes their tables as one padded array:\n");
    pool = new_pool(16, 12, NULL, 0);
    for (int i = 0; i < 4; i++) print_table("", new_seq(pool, lengths[i]), 4);
    printf("The next free block is %d.\n", pool->blocks[pool->config.num_blocks].next);
    finish(pool);

    printf("Blocks of 4, one word a token:\n");
    pool = new_pool(4, 8, turing, 3);
    seq = new_seq(pool, 9);
    for (int t = 0; t < 9; t++) {
        if (t % 4 == 0) printf("  block %d:", seq->block_table[t / 4]);
        printf(" %s%s", words[t], t % 4 == 3 || t == 8 ? "\n" : "");
    }
    finish(pool);
}

static void chapter_decode(void)
{
    static const int order[6] = {7, 2, 12, 5, 3, 9};
    Pool *pool = new_pool(4, 16, order, 6);
    Seq *a = new_seq(pool, 6);
    print_table("prefill, 6 tokens:", a, 2);
    grow(a, 1);
    print_table("decode, 1 more:   ", a, 2);
    printf("Block %d was not touched.\n", a->block_table[0]);
    Seq *b = new_seq(pool, 9);
    print_table("another, 9 tokens:", b, 3);
    printf("Its next token goes to slot %d of block %d.\n", b->length % 4,
           b->block_table[b->length / 4]);
    grow(b, 8);
    grow(b, 1);
    printf("At %d tokens, decode writes one row; to repack a dense copy moves all %d.\n", b->length,
           b->length);
    pause_tour();

    printf("Speculation: four drafted tokens are appended; three are rejected and rewound.\n");
    grow(b, 4);
    seq_dump(b, stdout);
    pool_dump(pool, stdout);
    must(seq_rewind(b, 3));
    must(oracle_rewind(hmget(twins, b), 3));
    seq_dump(b, stdout);
    pool_dump(pool, stdout);
    finish(pool);
}

static void chapter_sampling(void)
{
    static const int order[5] = {2, 6, 9, 11, 14};
    printf("Three candidates of one prompt of two full blocks, each with a token of its own:\n");
    Pool *pool = new_pool(4, 16, order, 5);
    Seq *seqs[3] = {new_seq(pool, 8), NULL, NULL};
    for (int i = 1; i < 3; i++) seqs[i] = fork_seq(seqs[0]);
    for (int i = 0; i < 3; i++) grow(seqs[i], 1);
    for (int i = 0; i < 3; i++) print_table("candidate", seqs[i], 3);
    pool_dump(pool, stdout);
    printf("Copies: %ld. A full block is never written again, so it stays shared.\n",
           pool->num_copies);
    finish(pool);

    printf("Two samples, A and B, of a prompt that ends inside a block:\n");
    pool = new_pool(4, 8, NULL, 0);
    Seq *a = new_seq(pool, 6), *b = fork_seq(a);
    print_table("both see:  A", a, 2);
    print_table("           B", b, 2);
    grow(a, 1);
    print_table("A wrote:   A", a, 2);
    print_table("           B", b, 2);
    grow(b, 1);
    print_table("B wrote:   A", a, 2);
    print_table("           B", b, 2);
    printf("Copies: %ld. A saw a count of 2 and copied; B then saw a count of 1.\n",
           pool->num_copies);
    finish(pool);
}

static void chapter_online_softmax(void)
{
    Pool *pool = new_pool(4, 8, NULL, 0);
    Seq *seq = new_seq(pool, 10);
    const PoolConfig *c = &pool->config;
    int n = 1, row = c->num_kv_heads * c->head_dim;  // floats from one token to the next
    Batch batch = {1, &seq, &n};
    float *k = random_tensor(10, 1, row), *v = random_tensor(10, 1, row);
    float *q = random_tensor(1, 1, row), *out = random_tensor(1, 1, row);
    must(seq_gather(seq, 0, k, v));
    must(attend(pool, ATTEND_PAGED, 0, &batch, c->num_kv_heads, 0, q, out, NULL));

    double m = -INFINITY, l = 0, o = 0;  // of head 0, and of o the first element
    printf("block  scores                            m       l       o   o / l\n");
    for (int j = 0; j < 3; j++) {
        double score[4], old_m = m, sum = 0, acc = 0;
        int tokens = j < 2 ? 4 : 2;
        printf("%5d ", seq->block_table[j]);
        for (int t = 0; t < tokens; t++) {
            score[t] = 0;
            for (int i = 0; i < c->head_dim; i++)
                score[t] += (double)q[i] * k[(4 * j + t) * row + i] / sqrt((double)c->head_dim);
            m = fmax(m, score[t]);
            printf(" %6.3f", score[t]);
        }
        for (int t = 0; t < tokens; t++) {
            sum += exp(score[t] - m);
            acc += exp(score[t] - m) * v[(4 * j + t) * row];
        }
        l = exp(old_m - m) * l + sum;
        o = exp(old_m - m) * o + acc;
        printf("%*s %7.3f %7.3f %7.3f %7.3f\n", 7 * (4 - tokens), "", m, l, o, o / l);
    }
    int same = fabs(o / l - out[0]) <= 1e-6;
    printf("The last o / l is what attend() returned: %s.\n", same ? "yes" : "NO");
    failures += !same;
    arrfree(k);
    arrfree(v);
    arrfree(q);
    arrfree(out);
    finish(pool);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *title;
        void (*run)(void);
    } chapters[9] = {
        {"What one token costs", chapter_cost},
        {"Reserving the maximum", chapter_reserve},
        {"Blocks on demand", chapter_blocks},
        {"Copy-on-write of a shared system prompt", chapter_copy_on_write},
        {"Utilisation: reserved against paged", chapter_utilisation},
        {"The block table", chapter_block_table},
        {"Prefill, decode, rewind", chapter_decode},
        {"Parallel sampling", chapter_sampling},
        {"Online softmax, block by block", chapter_online_softmax},
    };
    int only = -1;
    for (int i = 1; i < argc; i++) {
        int help = strcmp(argv[i], "--help") == 0;
        if (strcmp(argv[i], "--step") == 0) {
            waits = 1;
        } else if (argv[i][0] >= '1' && argv[i][0] <= '9' && !argv[i][1]) {
            only = argv[i][0] - '1';
        } else {
            FILE *to = help ? stdout : stderr;
            if (!help) fprintf(to, "paged: unknown argument '%s'\n", argv[i]);
            fprintf(to, "usage: ./paged [--step] [CHAPTER]   --step waits for return\n");
            for (int n = 0; n < 9; n++) fprintf(to, "  %d  %s\n", n + 1, chapters[n].title);
            return help ? 0 : 2;
        }
    }
    if (isatty(1) && !getenv("NO_COLOR")) bold = "\033[1m", plain = "\033[0m";
    for (int n = 0; n < 9; n++) {
        if (only >= 0 && only != n) continue;
        seed = 1;  // a chapter alone prints what it prints in the whole tour
        printf("%s%d. %s%s\n", bold, n + 1, chapters[n].title, plain);
        chapters[n].run();
        if (only < 0 && n < 8) printf("\n");
    }
    hmfree(twins);
    if (failures) fprintf(stderr, "paged: %d checks FAILED\n", failures);
    return failures > 0;
}

#endif
