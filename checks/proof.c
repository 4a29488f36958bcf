// proof.c: for CBMC, which tries every value at once. checks/proof.py runs it, with the kernels of
// the engine, in which it has replaced each access to memory that threads share.
//
// Two threads of a thread block, any two, run a kernel, one after the other. Thread 1 leaves behind
// one of its accesses, any one. If thread 2 touches the same address, with no barrier in between
// and at least one of them writing, that is a race; CBMC looks for a choice that leads to one. (This
// is the method of GPUVerify.) What is read from memory, and what a shuffle gives, may be any float.
//
// KERNEL is the kernel. There is one row, of up to 8 tokens, and one head. At the end stand claims on
// every number of 16 bits, and on every float32.

#define PAGED_NO_MAIN
#define PAGED_NO_STANDIN
#define LAUNCH(kernel, x, y, z, job) ((void)(kernel))
#define __syncthreads() (void)phase++
#define __syncwarp() (void)0
#define __shfl_xor_sync(mask, value, bits) ((void)(value), nondet_float())

#include <math.h>
#include <stddef.h>
#define expf(x) ((void)(x), nondet_float())
#define logf(x) ((void)(x), nondet_float())
#define fmaxf(x, y) ((void)(x), (void)(y), nondet_float())

// Shared memory and tensors are regions, far apart. An address is region * APART + index.
typedef unsigned Address;
enum { APART = 1 << 20 };
enum { STATES_OF_WARPS = 1, ONE_STATE, Q, OUT, LSE, SPLITS, K_PLANE, DENSE_K, REGIONS };
static unsigned sizes[REGIONS];
#define SHARED(name, region, size) \
    const Address name = region * APART; \
    sizes[region] = size
#define GLOBAL(region, i) ((Address)(region * APART + (i)))
#define READ(at) (touch(at, 0), nondet_float())
#define WRITE(at, x) ((void)(x), touch(at, 1))
#define LOAD(i) ((void)(i), nondet_float())
unsigned char nondet_byte(void);
_Bool nondet_bool(void);
float nondet_float(void);
unsigned nondet_unsigned(void);
static int thread;  // which one runs: 1 or 2
static int phase;   // barriers that it has met
static struct {
    Address at;
    int write;
    int phase;
} seen;  // by thread 1; at 0 is no region

static void touch(Address at, int write)
{
    unsigned size = 0;
    for (int region = 1; region < REGIONS; region++)
        if (at / APART == (unsigned)region) size = sizes[region];
    __CPROVER_assert(at % APART < size, "in bounds");
    if (thread == 2) {
        int meets = at == seen.at && phase == seen.phase && (write || seen.write);
        __CPROVER_assert(!meets, "no race");
    } else if (nondet_bool()) {
        seen.at = at;
        seen.write = write;
        seen.phase = phase;
    }
}

#include KERNELS  // written by proof.py

static int any(int low, int high)  // at most 256 apart
{
    int x = low + nondet_byte();
    __CPROVER_assume(x <= high);
    return x;
}

static int run(int number, int index, Job job)
{
    thread = number;
    threadIdx.x = index;
    phase = 0;
    KERNEL(job);
    return phase;
}

int main(void)
{
    QueryToken query = {0, any(0, 7)};
    SeqOffset offsets[2] = {{0, 0}, {query.position + 1, query.position + 1}};
    int tables[8] = {0}, first = any(0, THREADS - 1), second = any(0, THREADS - 1);
    float lse;
    Job job = {0};
    job.config.head_dim = any(1, PAGED_MAX_HEAD_DIM);
    job.config.num_layers = job.config.num_blocks = job.config.num_kv_heads = 1;
    job.config.block_size = 1;
    job.num_q_heads = 1;
    job.splits = 1;
    gridDim.y = 8;
    job.queries = &query;
    job.offsets = offsets;
    job.tables = tables;
    if (nondet_bool()) job.lse = &lse;
    sizes[Q] = sizes[OUT] = sizes[K_PLANE] = job.config.head_dim;
    sizes[LSE] = 1;
    sizes[SPLITS] = job.config.head_dim + 2;
    sizes[DENSE_K] = (query.position + 1) * job.config.head_dim;
    __CPROVER_assume(first != second);
    int barriers = run(1, first, job);
    int same = run(2, second, job) == barriers;
    __CPROVER_assert(same, "both threads meet the same barriers");
    return 0;
}

// ---- numbers ----------------------------------------------------------------------------------

void f16_survives(void)
{
    uint32_t h = nondet_unsigned();
    __CPROVER_assume(h < 65536 && (h & 0x7fff) <= 0x7c00);  // no NaN
    __CPROVER_assert(f32_to_f16(f16_to_f32((uint16_t)h)) == h, "an f16 survives a round trip");
}

void bf16_is_nearest(void)
{
    uint32_t bits = nondet_unsigned();
    uint32_t low = bits & 0xffff0000;
    uint32_t high = low + 0x10000;
    __CPROVER_assume((bits & 0x7fffffff) <= 0x7f800000);  // no NaN
    uint32_t got = (uint32_t)f32_to_bf16(bits_float(bits)) << 16;
    __CPROVER_assert(got == low || got == high, "a neighbour");
    if (bits - low < high - bits) __CPROVER_assert(got == low, "the lower one is nearer");
    if (bits - low > high - bits) __CPROVER_assert(got == high, "the upper one is nearer");
    if (bits - low == high - bits) __CPROVER_assert((got >> 16 & 1) == 0, "ties to even");
}
