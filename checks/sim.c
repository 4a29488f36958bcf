// sim.c: the kernels of rungs 1 to 3 in GPGPU-Sim, a simulator of a GPU that this project had no
// part in. `SIM=folder sh checks/cuda.sh --sim` compiles and runs it.
//
// What attention returns is compared with the oracle, as everywhere, by the words of ../tests.c.
// Tests that count cycles also start a kernel that does nothing but read the same K and V.

#include <cuda_fp16.h>
#include <string.h>

// GPGPU-Sim 4.2 tells the memory of the host from that of the GPU by the address, and takes all from
// 3 GiB on for the GPU's. That is where its own begins; the host's stacks and heap lie far above.
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

#include "../tests.c"

// Runs before the tests below are added: those of tests.c are not run here.
__attribute__((constructor)) static void begin(void) { num_tests = 0; }

typedef struct Shape {
    int dtype, num_seqs, length, num_new, kv_heads, group, head_dim;
} Shape;

static void make_seqs(const Shape *s, Seq **seqs, int *counts)
{
    PoolConfig config = {1, s->kv_heads, s->head_dim, 16, 0, s->dtype, 1, PAGED_GPU};
    config.num_blocks = s->num_seqs * ceil_div(s->length, config.block_size);
    Pool *pool = new_pool(config);
    shuffle_free_list(pool);
    for (int i = 0; i < s->num_seqs; i++) {
        seqs[i] = new_seq(pool, s->length);
        counts[i] = s->num_new;
    }
    note("dtype %d, %d x %d tokens, %d new, %d heads on %d of %d", s->dtype, s->num_seqs, s->length,
         s->num_new, s->group * s->kv_heads, s->kv_heads, s->head_dim);
}

// All ways of attention against the oracle.
static void attend_and_end(const Shape *s, Seq **seqs, const int *counts)
{
    Pool *pool = seqs[0]->pool;
    attend_in_all_ways(seqs, counts, s->num_seqs, s->group * s->kv_heads, 0);
    for (int i = 0; i < s->num_seqs; i++) release(seqs[i]);
    end_pool(pool);
}

TEST(small_shapes_agree_with_the_oracle, ON_DEVICE)
{
    const Shape shapes[] = {{PAGED_F32, 1, 11, 1, 2, 1, 32},  {PAGED_F16, 1, 10, 3, 2, 2, 32},
                            {PAGED_F16, 1, 45, 1, 2, 2, 32},  {PAGED_F32, 2, 17, 2, 1, 2, 20},
                            {PAGED_BF16, 1, 1, 1, 1, 1, 1},   {PAGED_BF16, 1, 140, 3, 1, 1, 64},
                            {PAGED_F16, 1, 129, 1, 1, 2, 128}};
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
        const Shape *s = &shapes[i];
        Seq *seqs[MAX_SEQS];
        int counts[MAX_SEQS];
        make_seqs(s, seqs, counts);
        attend_and_end(s, seqs, counts);
    }
}

// Each thread loads 16 bytes of K and of V.
static __global__ void read_only(const uint4 *k, const uint4 *v, size_t n, unsigned *result)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint4 a = k[i];
    uint4 b = v[i];
    unsigned x = a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
    if (x == 1) *result = x;  // hardly ever, but the compiler cannot know
}

// The simulator prints the cycles of each kernel, and checks/cuda.sh makes a table of them.
static void count_cycles(const char *title, Shape s)
{
    Seq *seqs[MAX_SEQS];
    int counts[MAX_SEQS];
    unsigned *result;
    make_seqs(&s, seqs, counts);
    Pool *pool = seqs[0]->pool;
    size_t bytes = plane_bytes(pool);
    CUDA(cudaMalloc(&result, sizeof *result));
    CUDA(cudaDeviceSynchronize());
    printf("\nsim: %s\n", title);
    read_only<<<ceil_div(bytes / 16, 256), 256>>>((const uint4 *)pool->k, (const uint4 *)pool->v,
                                                  bytes / 16, result);
    attend_and_end(&s, seqs, counts);
    CUDA(cudaFree(result));
}

TEST(cycles_of_one_sequence, ON_DEVICE)
{
    count_cycles("1 x 256 tokens, f16, 2 heads of 64", (Shape){PAGED_F16, 1, 256, 1, 2, 1, 64});
}

TEST(cycles_of_a_batch, ON_DEVICE)
{
    count_cycles("4 x 128 tokens, f16, 4 heads of 64", (Shape){PAGED_F16, 4, 128, 1, 4, 1, 64});
}
