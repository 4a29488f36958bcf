// 1a: a number to be predicted.
//
// Eight cards of 80 GB hold a Llama-3-70B: 80 layers, 64 query heads, 8 KV heads, vectors of 128
// elements. After weights and other needs, 450 GB (450e9 bytes) are left for K and V in 16 bits.
// How many requests of 131072 tokens each, the longest that later versions of the model take, fit
// in there at once? Write down the number, then run this.
//
//     make exercise N=1a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define ANSWER 0  // your number

int main(void)
{
    PoolConfig llama = {0};
    llama.num_layers = 80;
    llama.num_kv_heads = 8;
    llama.head_dim = 128;
    llama.block_size = 16;
    llama.dtype = PAGED_F16;
    double bytes = (double)pool_bytes_per_token(&llama) * 131072;
    int fit = (int)(450e9 / bytes);
    if (ANSWER != fit) {
        printf("1a: not yet: ANSWER is too %s\n", ANSWER < fit ? "small" : "large");
        return 1;
    }
    printf("1a: solved: 2 * 80 layers * 8 KV heads * 128 * 2 bytes = %zu bytes a token,\n"
           "times 131072 tokens = %.2f GB a request: %d of them, and %.1f GB are left\n",
           pool_bytes_per_token(&llama), bytes / 1e9, fit, (450e9 - fit * bytes) / 1e9);
    return 0;
}
