// sim.c: the kernels of rungs 1 to 3 in GPGPU-Sim, a simulator of a GPU that this project had no
// part in. `SIM=folder sh checks/cuda.sh --sim` compiles and runs it.
//
// What attention returns is compared with the oracle, as everywhere, by the words of test.h.

#include <cuda_fp16.h>
#include <string.h>

// GPGPU-Sim 4.2 tells the memory of the host from that of the GPU by the address, and takes all
// from 3 GiB on for the GPU's. That is where its own begins; the host's stacks and heap lie far
// above.
static int simulated(const void *p) { return (size_t)p >> 30 >= 3 && (size_t)p >> 40 == 0; }

static cudaError_t copy_anywhere(void *to, const void *from, size_t bytes)
{
    if (simulated(to) && simulated(from))
        return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice);
    if (simulated(to)) return cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
    if (simulated(from)) return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost);
    memcpy(to, from, bytes);
    return cudaSuccess;
}

#define cudaMemcpy(to, from, bytes, kind) copy_anywhere(to, from, bytes)

// A shuffle of nvcc's has a second result, whether the lane exists. With it, the simulator stores
// neither.
__device__ static float shuffle_xor(unsigned mask, float x, int bits)
{
    float y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, %3;" : "=f"(y) : "f"(x), "r"(bits), "r"(mask));
    return y;
}

#define __shfl_xor_sync(mask, x, bits) shuffle_xor(mask, x, bits)

#define PAGED_NO_MAIN
#include "../paged.cu.c"
#include "test.h"

enum { MAX_SEQS = 4 };

typedef struct Shape {
    int dtype, num_seqs, length, num_new, kv_heads, group, head_dim;
} Shape;

// A copy in the memory of the GPU.
static float *lend(const Pool *pool, const float *x, size_t n)
{
    float *tensor = tensor_create(pool, n);
    CHECK(tensor != NULL);
    tensor_copy(pool, tensor, x, n);
    return tensor;
}

// Sequences whose blocks are handed out in a random order.
static Pool *make_seqs(Shape s)
{
    PoolConfig config = {1, s.kv_heads, s.head_dim, 16, 0, s.dtype, 1, PAGED_GPU};
    Pool *pool;
    Seq *seq;
    config.num_blocks = s.num_seqs * ceil_div(s.length, config.block_size);
    CHECK_EQ(pool_create(&config, &pool), PAGED_OK);
    for (int i = 0; i < config.num_blocks; i++) {  // each time, one of them goes to the back
        int block = between(0, config.num_blocks - 1);
        free_list_remove(pool, block);
        free_list_insert_after(pool, pool->blocks[config.num_blocks].prev, block);
    }
    for (int i = 0; i < s.num_seqs; i++) {
        CHECK_EQ(seq_create(pool, &seq), PAGED_OK);
        CHECK_EQ(seq_append(seq, s.length), PAGED_OK);
    }
    return pool;
}

static void plan(Pool *pool, int num_tokens)  // of each sequence
{
    int counts[MAX_SEQS] = {num_tokens, num_tokens, num_tokens, num_tokens};
    Batch batch = {(int)arrlen(pool->seqs), pool->seqs, counts};
    CHECK_EQ(pool_plan(pool, &batch), PAGED_OK);
}

// Attention of the newest tokens over random K and V, paged, gathered and fast, against the oracle.
static void attend_to(Shape s)
{
    Pool *pool = make_seqs(s);
    int num_q_heads = s.group * s.kv_heads;
    size_t kv_size = (size_t)s.length * s.kv_heads * s.head_dim;  // of one sequence
    size_t q_size = (size_t)s.num_new * num_q_heads * s.head_dim;
    float *k = random_floats(s.num_seqs * kv_size), *v = random_floats(s.num_seqs * kv_size);
    float *q = random_floats(s.num_seqs * q_size), *expected = random_floats(q_size), *out[3];
    float *pool_k = lend(pool, k, s.num_seqs * kv_size);
    float *pool_v = lend(pool, v, s.num_seqs * kv_size);
    float *pool_q = lend(pool, q, s.num_seqs * q_size);
    note("dtype %d, %d x %d tokens, %d new, %d heads on %d of %d", s.dtype, s.num_seqs, s.length,
         s.num_new, num_q_heads, s.kv_heads, s.head_dim);
    plan(pool, s.length);
    CHECK_EQ(pool_write(pool, 0, pool_k, pool_v), PAGED_OK);
    plan(pool, s.num_new);
    for (int flags = 0; flags < 3; flags++) {
        out[flags] = random_floats(s.num_seqs * q_size);
        float *pool_out = lend(pool, out[flags], s.num_seqs * q_size);
        CHECK_EQ(attend(pool, flags, 0, num_q_heads, 1, pool_q, pool_out, NULL), PAGED_OK);
        tensor_copy(pool, out[flags], pool_out, s.num_seqs * q_size);
        tensor_free(pool, pool_out);
    }
    for (int i = 0; i < s.num_seqs; i++) {
        Oracle *oracle = oracle_create(&pool->config, s.length);
        oracle->length = s.length;
        oracle_write(oracle, 0, s.length, k + i * kv_size, v + i * kv_size);
        oracle_attend(oracle, 0, s.num_new, num_q_heads, 1, q + i * q_size, expected, NULL);
        oracle_release(oracle);
        for (size_t d = 0; d < q_size; d++) {
            CHECK_CLOSE(out[ATTEND_PAGED][i * q_size + d], expected[d], 1);
            CHECK_CLOSE(out[ATTEND_FAST][i * q_size + d], expected[d], 1);
        }
    }
    CHECK(memcmp(out[ATTEND_GATHER], out[ATTEND_PAGED], s.num_seqs * q_size * sizeof *q) == 0);
    tensor_free(pool, pool_k);
    tensor_free(pool, pool_v);
    tensor_free(pool, pool_q);
    pool_destroy(pool);
}

TEST(small_shapes_agree_with_the_oracle)
{
    const Shape shapes[] = {{PAGED_F32, 1, 11, 1, 2, 1, 32},  {PAGED_F16, 1, 10, 3, 2, 2, 32},
                            {PAGED_F16, 1, 45, 1, 2, 2, 32},  {PAGED_F32, 2, 17, 2, 1, 2, 20},
                            {PAGED_BF16, 1, 1, 1, 1, 1, 1},   {PAGED_BF16, 1, 140, 3, 1, 1, 64},
                            {PAGED_F16, 1, 129, 1, 1, 2, 128}};
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) attend_to(shapes[i]);
}

int main(int argc, char **argv)
{
    begin_tests(argc, argv, NULL);
    one_process = 1;
    run_tests("", 1);
    return end_tests();
}
