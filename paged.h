// paged.h: a KV cache cut into blocks, and attention that reads through the block table.
//
// Every token of a sequence leaves one key and one value vector per KV head in every layer of the
// model. A Pool holds that memory as blocks of block_size tokens. A Seq (one request) owns none of
// it: a Seq is a length and a block table, the list of the blocks that hold its tokens.
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
//     pool_plan(pool, batch)      once: validate the batch, flatten its rows and block tables
//     for each layer:
//         pool_write(...)         store K and V of the new tokens of the whole batch
//         attend(...)             let the new tokens attend to themselves and all before them
//
// The method comes from Kwon et al., "Efficient Memory Management for Large Language Model Serving
// with PagedAttention", SOSP 2023. Planning a step once and running it in each layer follows
// FlashInfer's plan() and run(), and vLLM's attention metadata.
//
// To use it as a library: `cc -O2 -DPAGED_NO_MAIN mine.c paged.cu.c -lm`, in GNU C 11 or later (the
// default of gcc and clang). If your program already defines STB_DS_IMPLEMENTATION, add
// -DPAGED_NO_STB_DS; paged.cu.c then uses your copy of those functions, which must use realloc()
// and free(), and check for failure themselves.
//
// Errors. A function that returns int returns PAGED_OK (0) or one of the codes below. A call that
// fails changes nothing: no table, no count, not the order of the free list, no byte of K and V, no
// plan, and none of the caller's result variables. A null, negative or oversized argument is such a
// failure; null is allowed only for an empty array and where stated. If a call has several errors,
// the one that its description lists first is returned; without a valid plan, which says how many
// rows tensors have, a null tensor is not an error. If an invariant is broken, the program prints
// what broke and aborts (it panics). It also panics if an array cannot grow.
//
// Devices. A pool lives on the CPU, on a GPU, or on the stand-in, which runs the CUDA kernels on
// the CPU with each thread as a coroutine. It is 10 to 1000 times slower than a CPU pool.
// It exists for debuggers, sanitizers and tests, on x86-64 and AArch64. Built with
// -fsanitize=thread, it reports the races of the kernels: of threads of a thread block or, with
// PAGED_LANE_ORDER=2 in the environment, of thread blocks near each other in a launch.
// -DPAGED_NO_STANDIN leaves it out, and with it the 17 MB that its stacks reserve.
//
// Floating point. Another rounding direction, or subnormal numbers taken for 0 (a library built
// with -ffast-math may turn that on for the whole process), change no bit of K and V, stored,
// copied or gathered. What attend() promises holds for the defaults only.
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
    PAGED_BAD_ARGUMENT,   // null, out of range, or from another pool
    PAGED_OUT_OF_BLOCKS,  // too few free blocks at the moment: retry after a release
    PAGED_TOO_LONG,       // the sequence would not fit into the whole pool: waiting will not help
    PAGED_OUT_OF_MEMORY,  // the machine has too little memory, or the size overflows size_t
    PAGED_BLOCK_SHARED,   // a write to a block that another sequence uses, or to a published one
    PAGED_NO_GPU,         // there is no GPU, or this build has no code for it or for the device
    PAGED_NOT_READY,      // a step has no valid plan, or needs K and V that are not written yet
};

enum { PAGED_F32, PAGED_F16, PAGED_BF16 };  // PoolConfig.dtype: how K and V are stored

enum {              // PoolConfig.device: where the memory is, and which processor computes
    PAGED_CPU,      // in every build
    PAGED_GPU,      // only in builds by nvcc
    PAGED_STANDIN,  // in other builds: the kernels, one thread at a time on the CPU
};

enum {                  // flags of attend(), combined with |
    ATTEND_PAGED = 0,   // read K and V where they are, through the block table
    ATTEND_GATHER = 1,  // copy K and V of each sequence into one dense array, then attend to that
    ATTEND_FAST = 2,    // use the optional code of fast/ (-DPAGED_FAST); no effect without it
};

typedef struct PoolConfig {
    int num_layers;    // of the model, >= 1
    int num_kv_heads;  // 1 to PAGED_MAX_Q_HEADS; the number of query heads is a multiple of it
    int head_dim;      // numbers in one head's key or value, 1 to PAGED_MAX_HEAD_DIM
    int block_size;    // tokens in a block, >= 1
    int num_blocks;    // >= 1
    int dtype;         // PAGED_F32, PAGED_F16 or PAGED_BF16
    int poison;        // not 0: fill blocks with NaN when taken and, unless published, when freed,
                       // so that reading an unwritten slot shows up; 0: leave the bytes (fast)
    int device;        // PAGED_CPU, PAGED_GPU or PAGED_STANDIN
} PoolConfig;

typedef struct Pool Pool;
typedef struct Seq Seq;

// Programs and debuggers may read the fields of Block, Pool and Seq. Only the functions of this
// file change them.

typedef struct Block {
    int ref_count;       // how many block tables name this block; 0: it is on the free list
    int prev, next;      // neighbours on the free list; -1 while the block is in use
    int next_in_bucket;  // prefix cache: the next block of the same bucket, -1 after the last
    uint64_t serial;     // the number of its publication, from 1 on; 0: not published
    uint64_t parent;     // the serial of the block before it, 0 for the first block of a prompt
} Block;

typedef struct Memory {
    void *p;
    size_t bytes;
} Memory;

struct Pool {
    PoolConfig config;
    void *k, *v;    // two planes [num_layers][num_blocks][num_kv_heads][block_size][head_dim]
    Block *blocks;  // [num_blocks + 1]; the last one is the sentinel of the free list, a ring
    int num_free;
    int *tokens;   // [num_blocks][block_size], the tokens of each published block
    int *buckets;  // [num_buckets] of the prefix cache: the first block of each, or -1
    int num_buckets;
    uint64_t last_serial;
    Seq **seqs;             // the live sequences, in no particular order (an stb_ds array)
    struct Plan *plan;      // the step that pool_plan() prepared last ...
    uint64_t plan_number;   // ... and its number; 0: there is none, or it is out of date
    uint64_t batch_number;  // of the last batch that pool_plan() checked
    size_t num_copies;      // blocks copied on write since the pool was created
    Memory workspace;       // on the device: of attend() and seq_gather(),
    Memory plan_memory;     // the arrays of the plan,
    Memory states;          // and the sums of fast/
};

struct Seq {
    Pool *pool;
    int length;               // tokens
    int num_computed_tokens;  // leading tokens whose K and V are stored in all layers
    int *block_table;         // [ceil(length / block_size)] block ids (an stb_ds array)
    int index;                // pool->seqs[index] is this sequence
    uint64_t plan_number;     // of the last plan that includes it
    uint64_t batch_number;    // of the last batch that names it, valid or not
};

// The new tokens of one step, called query tokens: the newest num_tokens[i] tokens of sequence
// seqs[i], already appended. One token is decode, several are a chunk of prefill or a draft to
// verify, and 0 leaves the sequence out. Tensors hold one row per query token, in the order of the
// batch: all tokens of seqs[0], then all of seqs[1], ...; total_tokens is the sum of num_tokens.
typedef struct Batch {
    int num_seqs;
    Seq *const *seqs;       // [num_seqs], no sequence twice
    const int *num_tokens;  // [num_seqs], each from 0 to the length of its sequence
} Batch;

// What an error code means, in a few words; never NULL.
const char *paged_error(int error);

// ---- pool -------------------------------------------------------------------------------------

// The bytes of K and V that one token, or one block, takes in all layers together. Returns 0 if the
// configuration is invalid or the number overflows size_t. num_blocks and poison are ignored.
size_t pool_bytes_per_token(const PoolConfig *config);
size_t pool_bytes_per_block(const PoolConfig *config);

// Creates a pool whose blocks are all free and will be taken in the order 0, 1, 2, ... A block that
// is freed later is the next to be taken or, if it is published, the last. K and V are
// allocated but not touched: in host memory, even a huge pool takes up only 36 bytes per block
// until it is used. Then Linux hands out huge pages of 2 MB, one for K and one for V in each layer:
// the first token of a pool with 32 layers may take up 134 MB. On a GPU, all the memory is taken at
// once.
// Errors: PAGED_BAD_ARGUMENT, PAGED_NO_GPU, PAGED_OUT_OF_MEMORY.
int pool_create(const PoolConfig *config, Pool **pool);

// Frees the pool and the sequences that are still in it. NULL is allowed.
void pool_destroy(Pool *pool);

// Recounts the reference counts from the block tables, follows the free list and each list of the
// prefix cache, and compares lengths and counters with what it finds. It does not look at K, V or
// the plan, nor whether two published blocks have one serial. Returns NULL if all is well,
// otherwise a message that names what is broken (valid until the next call in the same thread).
const char *pool_check(const Pool *pool);

// Draws the pool, one character per block: '.' is free, 'p' is free and published, a digit is the
// reference count ('+' from 10 on). In a debugger: call pool_dump(pool, 0); 0 stands for stdout.
void pool_dump(const Pool *pool, FILE *out);

// ---- sequences --------------------------------------------------------------------------------

// Creates an empty sequence. Errors: PAGED_BAD_ARGUMENT, PAGED_OUT_OF_MEMORY.
int seq_create(Pool *pool, Seq **seq);

// Makes room for n >= 0 more tokens: decode (n = 1), a chunk of prefill, a draft. Takes as many
// blocks as that needs. A partly filled last block is copied, into one more block and for every
// layer, if another sequence uses it. Otherwise it will be written in place; if it was published,
// it first leaves the prefix cache, and published blocks that follow it are no longer found.
// All or nothing. The K and V of the new tokens are undefined until pool_write().
// Errors: PAGED_BAD_ARGUMENT, PAGED_TOO_LONG, PAGED_OUT_OF_BLOCKS.
int seq_append(Seq *seq, int n);

// Creates a child that shares the first `at` tokens of the parent, 0 <= at <= length: the same
// blocks, counted once more. No K or V is copied and no block is taken. Tokens already computed for
// the parent are computed for the child, too.
// Errors: PAGED_BAD_ARGUMENT, PAGED_OUT_OF_MEMORY.
int seq_fork(const Seq *parent, int at, Seq **child);

// Drops the newest n tokens, 0 <= n <= length, and the blocks that only they needed. It allocates
// nothing, so it cannot run out of memory or blocks. The new end may be inside a shared block; the
// next append then makes the copy. Errors: PAGED_BAD_ARGUMENT.
int seq_rewind(Seq *seq, int n);

// Gives back all blocks and the handle itself, which must not be used again. NULL is allowed.
void seq_release(Seq *seq);

// Copies K and V of one layer out of the blocks, in logical order, as float32 rows
// k, v: [length][num_kv_heads][head_dim]. pool_write() takes the same layout, so writing a gathered
// sequence back restores it bit for bit. Errors: PAGED_BAD_ARGUMENT, PAGED_OUT_OF_MEMORY.
int seq_gather(const Seq *seq, int layer, float *k, float *v);

// Prints the block table, and for each block its filled slots and reference count.
void seq_dump(const Seq *seq, FILE *out);

// ---- prefix cache -----------------------------------------------------------------------------

// Two requests that begin alike can share the blocks of that beginning, even after the first one
// has ended. A full block is published under its tokens and all those before it. It is read-only
// until it leaves the cache; when no sequence uses it, it waits at the back of the free list, where
// it can be found until its memory is needed.

// Publishes the full blocks among the first n tokens of the sequence.
//   - tokens: [n], the model's input at positions 0 to n - 1; it may be null if n is 0.
//   - Cheap to call after every step: it starts after the last of these blocks that is already
//     published, by this sequence or by one that shares it, and compares no tokens up to there.
//   - Where another sequence has published the same tokens, this one drops its own copy and takes
//     that block into its table, off the free list if need be.
//   - Leave out draft tokens that may yet be rejected.
// Errors: PAGED_BAD_ARGUMENT, also if n is more than num_computed_tokens.
int seq_publish(Seq *seq, const int *tokens, int n);

// For an empty sequence that is to hold tokens[0] to tokens[n - 1]: takes the longest published
// beginning of them, in whole blocks, and at most n - 1 tokens, so that the model has one left
// to compute. seq->length is then the number of tokens found; append the rest. Takes no block
// away from another sequence, but may take some off the free list. tokens may be null if n is 0.
// Errors: PAGED_BAD_ARGUMENT.
int seq_lookup(Seq *seq, const int *tokens, int n);

// ---- a step: plan, K and V in, attention out --------------------------------------------------

// Says which tokens the following calls of pool_write() and attend() work on. Whatever depends on
// the batch but not on the layer is done here, once: the batch is validated, and its query tokens
// and block tables are flattened into arrays on the device. The pool keeps one plan; a new one
// replaces it. Any later edit of one of its sequences (an append, fork or rewind of at least one
// token, a release, a publish that changes something) makes the plan out of date, and pool_write()
// and attend() refuse it. The arrays of `batch` may change as soon as this returns.
// Errors: PAGED_BAD_ARGUMENT; PAGED_NOT_READY if a token before the new ones is not computed, as
// attention would read what was never written; PAGED_OUT_OF_MEMORY. The previous plan stays.
int pool_plan(Pool *pool, const Batch *batch);

// Stores K and V of one layer for the query tokens of the plan.
// k, v: [total_tokens][num_kv_heads][head_dim], float32, rounded to the pool's dtype (to nearest,
// ties to even; values too large for f16 become infinity). The layers are written in order, from 0
// on; after the last one, the tokens count as computed. A layer may be written again. A new plan
// starts over at layer 0, unless all its tokens are computed.
// Errors: PAGED_BAD_ARGUMENT; PAGED_NOT_READY without a valid plan, or if an earlier layer is not
// written; PAGED_BLOCK_SHARED if, when the step was planned, a query token was in a block with a
// count above one (because of a fork after the append) or in a published one.
int pool_write(Pool *pool, int layer, const float *k, const float *v);

// Causal attention of the query tokens of the plan over their sequences. Token i of the n new ones
// of a sequence sees the positions up to and including length - n + i. A row whose scores are all
// -infinity gives 0, and -infinity as lse; any other row gives NaN if it sees NaN in K or V.
// The plain code of the CPU computes in double, all other code in float32, which has limits:
//   - A score is a float32, too, so the relative error of a weight grows with the sum of abs(q * k)
//     over head_dim: if that is 20,000, it is some 1e-3.
//   - The plain kernels add up token by token: in very long sequences they lose small weights that
//     follow one large score.
//   - A score, and V times the number of tokens, must not exceed the largest float. If one does,
//     the row is undefined: mostly infinity or NaN, but 0 if all scores are below -FLT_MAX.
//   - A weight becomes 0 once its score is 87 to 104 below the maximum (745 in double); 0 times an
//     infinite V is NaN.
// Results are batch-invariant on every device: with the same flags, a row has the same bits in any
// batch, in chunks of any length and in blocks of any size. (One exception: ATTEND_FAST on a GPU
// runs the plain kernel instead, silently, if there is no memory for its partial results, or if a
// sequence has more than about 2^25 tokens.)
//   flags         from the enum above; with and without ATTEND_GATHER, results agree in every bit
//   num_q_heads   a multiple of num_kv_heads, at most PAGED_MAX_Q_HEADS; query head h reads KV head
//                 h / (num_q_heads / num_kv_heads)
//   scale         factor on the scores, finite, of any sign; 0 stands for 1 / sqrt(head_dim). It is
//                 applied to q, in float32, so q * scale must not overflow
//   q, out        [total_tokens][num_q_heads][head_dim], float32; they may be the same array
//   lse           [total_tokens][num_q_heads], the natural log of the sum of exp(score); or NULL
// Errors: PAGED_BAD_ARGUMENT; PAGED_NOT_READY without a valid plan, or if K and V of the query
// tokens are not written in this layer; PAGED_OUT_OF_MEMORY.
int attend(Pool *pool, int flags, int layer, int num_q_heads, float scale, const float *q,
           float *out, float *lse);

// The tensors of pool_write(), seq_gather() and attend() live where the pool lives: in device
// memory for PAGED_GPU, otherwise in host memory. tensor_create() allocates `count` floats there,
// and returns NULL if they do not fit or count is 0. tensor_copy() copies in any direction between
// host and device. On a GPU, calls that read or write K and V only queue their work, on the default
// stream of the GPU that was current in pool_create() and must still be. A tensor_copy() from or to
// the host waits for it, so the results that it brings are complete; pool_plan() and seq_gather()
// also wait for earlier work. Elsewhere, every call has done its work when it returns.
float *tensor_create(const Pool *pool, size_t count);
void tensor_free(const Pool *pool, float *tensor);
void tensor_copy(const Pool *pool, float *to, const float *from, size_t count);

// ---- the oracle -------------------------------------------------------------------------------

// The cache as it was before paging: each sequence reserves max_tokens in one contiguous array. It
// is written as plainly as possible, and it judges the engine. K and V are kept as float32, rounded
// to the dtype, and attention is computed in double. Its tensors are always in host memory.
// It is for tests: it does not check its arguments, and it panics if it runs out of memory.
typedef struct Oracle {
    PoolConfig config;  // num_blocks and poison are ignored; block_size and device must be valid
    int max_tokens;
    int length;    // the caller changes it: += n appends n tokens, -= n rewinds them
    float *k, *v;  // [num_layers][max_tokens][num_kv_heads][head_dim]
} Oracle;

// One sequence. oracle_fork() copies the first `at` tokens. oracle_write() and oracle_attend() do
// what pool_write() and attend() do, for the newest num_tokens tokens of this sequence.
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
