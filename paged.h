// paged.h: a KV cache cut into blocks, and attention that reads through the block table.
//
// Every token of a sequence leaves one key and one value vector per KV head in every layer of the
// model. A Pool holds the memory for them as blocks of block_size tokens. A Seq (one request) owns
// no memory: it has a length and a block table, the list of the blocks its tokens live in.
//
//     token position t -> logical block t / block_size, slot t % block_size
//     logical block    -> physical block block_table[t / block_size]
//
// Blocks are handed out one at a time, when a token needs a new one, so a sequence wastes less than
// one block. Several sequences may name the same block; its ref_count says how many. A shared block
// is never written: the sequence that wants to write gets its own copy first (copy-on-write).
//
// One step of a model with the cache, for a batch of sequences with new tokens:
//
//     seq_append(seq, n)          for each sequence: make room for n new tokens
//     pool_plan(pool, batch)      once: check the batch, write its rows and tables down flat
//     for each layer:
//         pool_write(...)         store K and V of the new tokens of the whole batch
//         attend(...)             attention of the new tokens over everything before them
//
// The method: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
// PagedAttention", SOSP 2023. Planning a step once and running it per layer: FlashInfer's plan()
// and run(), vLLM's attention metadata.
//
// As a library: `cc -O2 -DPAGED_NO_MAIN mine.c paged.cu.c -lm`, with GNU C 11 or later (the default
// of gcc and clang). A program that has its own #define STB_DS_IMPLEMENTATION adds
// -DPAGED_NO_STB_DS, and paged.cu.c uses the functions of that one, which must allocate by malloc's
// realloc() and free(), and look themselves whether there is memory.
//
// Errors. Every function that can fail returns PAGED_OK (0) or one of the codes below, and a call
// that fails changes nothing: no table, no count, no order of the free list, no byte of K and V, no
// plan, and nothing at the pointers it was given for results. A null, negative or oversized
// argument is such a failure. A broken invariant is another matter: the program panics, that is, it
// says what broke and aborts. It also does so when one of its growing arrays cannot grow.
//
// Devices. The memory of a pool, and the processor that works on it, is the CPU, a GPU, or the
// stand-in: the CUDA kernels on the CPU, each thread a coroutine. The stand-in is a thousand times
// slower than a CPU pool; it is there for debuggers, sanitizers and tests.
//
// Threads. A pool and its sequences belong to one thread at a time. Different pools are
// independent, except that a program may use only one pool on the stand-in at a time.

#ifndef PAGED_H
#define PAGED_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- types ------------------------------------------------------------------------------------

enum { PAGED_MAX_HEAD_DIM = 256, PAGED_MAX_Q_HEADS = 65535 };

enum {  // what calls return
    PAGED_OK = 0,
    PAGED_BAD_ARGUMENT,   // null, out of range, of another pool, or a plan that is out of date
    PAGED_OUT_OF_BLOCKS,  // too few free blocks at the moment; after a release it may fit
    PAGED_TOO_LONG,       // the sequence would not fit into the whole pool: waiting will not help
    PAGED_OUT_OF_MEMORY,  // the machine has too little memory, or the size overflows size_t
    PAGED_BLOCK_SHARED,   // a write to a block that another sequence uses, or to a published one
    PAGED_NO_GPU,         // there is no GPU; or this build does not have the device
};

enum { PAGED_F32, PAGED_F16, PAGED_BF16 };  // PoolConfig.dtype: how K and V are stored

enum {              // PoolConfig.device: whose memory, and which processor computes
    PAGED_CPU,      // in every build
    PAGED_GPU,      // builds of nvcc only
    PAGED_STANDIN,  // all other builds: the kernels, run one thread at a time on the CPU
};

enum {                  // flags of attend(), to be combined with |
    ATTEND_PAGED = 0,   // read K and V where they are, through the block table
    ATTEND_GATHER = 1,  // copy K and V of each sequence into one dense piece, then attend over it
    ATTEND_FAST = 2,    // with the optional code of fast/ (-DPAGED_FAST); without it, no difference
};

typedef struct PoolConfig {
    int num_layers;    // of the model, >= 1
    int num_kv_heads;  // >= 1; the number of query heads is any multiple of it
    int head_dim;      // floats in one head's key or value, 1 to PAGED_MAX_HEAD_DIM
    int block_size;    // tokens in a block, >= 1
    int num_blocks;    // >= 1
    int dtype;         // PAGED_F32, PAGED_F16 or PAGED_BF16
    int poison;        // 1: fill blocks with NaN when they are handed out and given back, so that
                       // a read of anything not written shows; 0: leave the bytes (fast)
    int device;        // PAGED_CPU, PAGED_GPU or PAGED_STANDIN
} PoolConfig;

typedef struct Pool Pool;
typedef struct Seq Seq;

// The fields of the structs below are there to be read, by programs and in a debugger. Only the
// functions of this file change them.

typedef struct Block {
    int ref_count;       // how many block tables name this block; 0: it is on the free list
    int prev, next;      // its neighbours there; -1 while the block is in use
    int next_in_bucket;  // prefix cache: the next block of its bucket, -1 after the last
    uint64_t serial;     // the number of its publication, from 1 on; 0: not published
    uint64_t parent;     // the serial of the block before it, 0 for the first block of a prompt
} Block;

struct Pool {
    PoolConfig config;
    void *k, *v;    // two planes [num_layers][num_blocks][num_kv_heads][block_size][head_dim]
    Block *blocks;  // [num_blocks + 1]; the last one is the head of the free list, a ring
    int num_free;
    int *tokens;   // [num_blocks][block_size], those of each published block
    int *buckets;  // [num_buckets] of the prefix cache: first block of each, or -1
    int num_buckets;
    uint64_t last_serial;
    Seq **seqs;            // the live sequences, in no order (an array of stb_ds)
    struct Plan *plan;     // the step that pool_plan() was told about last ...
    uint64_t plan_number;  // ... and its number; 0: there is none, or it is out of date
    uint64_t num_batches;  // checked so far, by pool_plan()
    size_t num_copies;     // blocks copied on write since the pool was made
    void *workspace;       // memory on the device, for attend() and seq_gather()
    size_t workspace_bytes;
    void *plan_memory;  // the same for the plan
    size_t plan_bytes;
    void *states;  // the same for the kernels of fast/
    size_t states_bytes;
};

struct Seq {
    Pool *pool;
    int length;               // tokens
    int num_computed_tokens;  // leading tokens whose K and V are stored in all layers
    int *block_table;         // [ceil(length / block_size)] ids of blocks (an array of stb_ds)
    int index;                // pool->seqs[index] is this sequence
    uint64_t plan, checked;   // numbers of the last plan and the last batch that name it
};

// The new tokens of one step, the query tokens: the newest num_tokens[i] tokens of sequence
// seqs[i], already appended. One token each is decode, several are a chunk of prefill or a draft to
// verify, and 0 leaves a sequence out. Tensors hold one row per query token, in the order of the
// batch: all tokens of seqs[0], then all of seqs[1], ...; total_tokens is the sum of num_tokens.
typedef struct Batch {
    int num_seqs;
    Seq *const *seqs;       // [num_seqs], no sequence twice
    const int *num_tokens;  // [num_seqs], each from 0 to the length of its sequence
} Batch;

// What an error code means, in a few words; never NULL.
const char *paged_error(int error);

// ---- pool -------------------------------------------------------------------------------------

// Bytes of K and V that one token, or one block, takes over all layers. Nothing is allocated. 0 if
// the configuration is invalid or the number overflows size_t. num_blocks and poison are ignored.
size_t pool_bytes_per_token(const PoolConfig *config);
size_t pool_bytes_per_block(const PoolConfig *config);

// Makes a pool with all blocks free, to be handed out in the order 0, 1, 2, ... The memory of K
// and V is not touched, so a huge pool costs nothing until it is used.
// Errors: PAGED_BAD_ARGUMENT, PAGED_NO_GPU, PAGED_OUT_OF_MEMORY.
int pool_create(const PoolConfig *config, Pool **pool);

// Frees the pool and the sequences that are still in it. NULL is allowed.
void pool_destroy(Pool *pool);

// Recounts everything: reference counts against the block tables, the free list, table lengths, the
// prefix cache. Returns NULL if all is well, otherwise a text that names what is broken (valid
// until the next call in the same thread).
const char *pool_check(const Pool *pool);

// Draws the pool, one character a block: '.' is free, 'p' is free and published, a digit is the
// reference count ('+' from 10 on).
// In a debugger: call pool_dump(pool, 0), where 0 stands for stdout.
void pool_dump(const Pool *pool, FILE *out);

// ---- sequences --------------------------------------------------------------------------------

// Makes an empty sequence. Errors: PAGED_BAD_ARGUMENT, PAGED_OUT_OF_MEMORY.
int seq_create(Pool *pool, Seq **seq);

// Makes room for n >= 0 more tokens: decode (n = 1), a chunk of prefill, a draft. Takes the blocks
// that are missing. If the last block is partly filled and shared or published, takes one more and
// copies K and V of every layer into it. (A published block that only this sequence uses
// is withdrawn from the prefix cache and written in place if there is no free block for the copy;
// with `poison`, its other slots are poisoned then.)
// All or nothing. The K and V of the new tokens are undefined until pool_write().
// Errors: PAGED_BAD_ARGUMENT, PAGED_OUT_OF_BLOCKS, PAGED_TOO_LONG.
int seq_append(Seq *seq, int n);

// Makes a child that shares the first `at` tokens of the parent, 0 <= at <= length: the same
// blocks, counted once more. No K or V is copied and no block is taken. Tokens that are computed
// for the parent are computed for the child.
// Errors: PAGED_BAD_ARGUMENT, PAGED_OUT_OF_MEMORY.
int seq_fork(const Seq *parent, int at, Seq **child);

// Drops the newest n tokens, 0 <= n <= length, and the blocks that only they needed. It never
// allocates, so it cannot run out of anything. It may end inside a shared block; the next append
// makes the copy. Errors: PAGED_BAD_ARGUMENT.
int seq_rewind(Seq *seq, int n);

// Gives back all blocks and the handle itself. NULL is allowed.
void seq_release(Seq *seq);

// Copies K and V of one layer out of the blocks, in logical order, as float32 rows
// k, v: [length][num_kv_heads][head_dim]. This is the layout pool_write() takes, so a gather, later
// written back, restores a sequence bit for bit. Errors: PAGED_BAD_ARGUMENT, PAGED_OUT_OF_MEMORY.
int seq_gather(const Seq *seq, int layer, float *k, float *v);

// Draws the block table, and for each of its blocks the filled slots and the count.
void seq_dump(const Seq *seq, FILE *out);

// ---- prefix cache -----------------------------------------------------------------------------

// Two requests that begin alike can share the blocks of that beginning, even after the first one
// has ended. A full block is published under its tokens and all those before it. From then on
// it is not written; when no sequence uses it, it waits at the far end of the free list, and can
// be found until its memory is needed.

// Publishes the full blocks among the first n tokens of the sequence; tokens: [n], what the model
// was given at positions 0 to n - 1. Cheap to call after every step: it begins after the last block
// that is published already, by this sequence or by one that shares it, and does not compare the
// tokens up to there. Leave out draft tokens that may yet be rejected. Where another sequence has
// published the same tokens, this one drops its own copy and takes that block into its table
// (taking it off the free list if no sequence uses it).
// Errors: PAGED_BAD_ARGUMENT, also if n is more than num_computed_tokens.
int seq_publish(Seq *seq, const int *tokens, int n);

// For an empty sequence that is to hold tokens[0] to tokens[n - 1]: takes the longest published
// beginning of them, in whole blocks, and at most n - 1 tokens, so that the model has one left
// to compute. seq->length is then the number of tokens found; append the others. Takes no block
// from another sequence, but may take some off the free list. Errors: PAGED_BAD_ARGUMENT.
int seq_lookup(Seq *seq, const int *tokens, int n);

// ---- a step: plan, K and V in, attention out --------------------------------------------------

// Tells the pool which tokens the following calls of pool_write() and attend() are about. The work
// that depends on the batch but not on the layer is done here, once: checking it, and laying out
// its query tokens and block tables as flat arrays on the device. The pool keeps one plan; a new
// one replaces it. Any later edit of one of its sequences (append, fork, rewind, release, a publish
// or lookup that changes something) makes the plan out of date, and pool_write() and attend()
// refuse it. The arrays of `batch` may change as soon as this returns.
// Errors: PAGED_BAD_ARGUMENT, PAGED_OUT_OF_MEMORY; the plan before it stays.
int pool_plan(Pool *pool, const Batch *batch);

// Stores K and V of one layer for the query tokens of the plan.
// k, v: [total_tokens][num_kv_heads][head_dim], float32, rounded to the pool's dtype (to nearest,
// ties to even; what is too large for f16 becomes infinity). A write of the last layer makes the
// tokens computed.
// Errors: PAGED_BAD_ARGUMENT (also: no plan, or out of date); PAGED_BLOCK_SHARED if, when the step
// was planned, a query token was in a block with a count above one (a fork after the append) or in
// a published one.
int pool_write(Pool *pool, int layer, const float *k, const float *v);

// Causal attention of the query tokens of the plan over their sequences. Token i of the n new ones
// of a sequence sees the positions up to and including length - n + i. A row whose scores are all
// -infinity gives 0, and -infinity as lse; any other gives NaN if it sees NaN in K or V. (The plain
// kernels add up in float32, token by token: in very long sequences, small weights that follow one
// large score get lost.)
//   flags         one of the above; with and without ATTEND_GATHER, the results agree in every bit
//   num_q_heads   a multiple of num_kv_heads, at most PAGED_MAX_Q_HEADS; query head h reads KV head
//                 h / (num_q_heads / num_kv_heads)
//   scale         factor on the scores; 0 stands for 1 / sqrt(head_dim)
//   q, out        [total_tokens][num_q_heads][head_dim], float32
//   lse           [total_tokens][num_q_heads], the natural log of the sum of exp(score); or NULL
// Errors: PAGED_BAD_ARGUMENT (also: no plan, or out of date), PAGED_OUT_OF_MEMORY.
int attend(Pool *pool, int flags, int layer, int num_q_heads, float scale, const float *q,
           float *out, float *lse);

// Tensors that pool_write(), seq_gather() and attend() take live where the pool lives: in device
// memory for PAGED_GPU, otherwise in host memory. These make and free `count` floats there, NULL
// if they do not fit, and copy from anywhere to anywhere. On a GPU, calls that read or write K and
// V only queue that; tensor_copy(), which waits for it, brings complete results to the host.
// (pool_plan() and seq_gather() wait for what was queued before them.) On the CPU and on the
// stand-in every call has done its work when it returns.
float *tensor_create(const Pool *pool, size_t count);
void tensor_free(const Pool *pool, float *tensor);
void tensor_copy(const Pool *pool, float *to, const float *from, size_t count);

// ---- the oracle -------------------------------------------------------------------------------

// The cache as it was before paging: each sequence reserves max_tokens in one contiguous piece. The
// plainest code that can be written, and the judge of the engine. It keeps K and V as float32 that
// went through the rounding of the dtype, and attends in double. Its tensors are always in host
// memory. It is for tests: arguments are not checked, and without memory it panics.
typedef struct Oracle {
    PoolConfig config;  // num_blocks and poison are ignored; block_size and device must be valid
    int max_tokens;
    int length;    // yours to change: length += n appends n tokens, length -= n rewinds them
    float *k, *v;  // [num_layers][max_tokens][num_kv_heads][head_dim]
} Oracle;

// One sequence. oracle_fork copies the first `at` tokens; oracle_write and oracle_attend mean what
// pool_write and attend do, for its newest num_tokens tokens.
Oracle *oracle_create(const PoolConfig *config, int max_tokens);
Oracle *oracle_fork(const Oracle *parent, int at);
void oracle_write(Oracle *oracle, int layer, int num_tokens, const float *k, const float *v);
void oracle_attend(const Oracle *oracle, int layer, int num_tokens, int num_q_heads, float scale,
                   const float *q, float *out, float *lse);
void oracle_release(Oracle *oracle);

#ifdef __cplusplus
}
#endif

#endif
