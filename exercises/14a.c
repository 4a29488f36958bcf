// 14a: two numbers to be predicted.
//
// One decode step, one layer, of 8 sequences of 1000 tokens each, cached in bf16. The model has 24
// query heads, 8 KV heads and a head_dim of 64. How many bytes of K and V must be read at least?
// And how many multiply-adds are there with them (scores and values; not counting exp() and sums)?
//
//     make exercise N=14a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define BYTES 0          // your number
#define MULTIPLY_ADDS 0  // your number

static int differs(const char *name, long long answer, long long right)
{
    if (answer == right) return 0;
    printf("14a: not yet: %s is too %s\n", name, answer < right ? "small" : "large");
    return 1;
}

int main(void)
{
    PoolConfig config = {1, 8, 64, 16, 8 * 63, PAGED_BF16, 0, PAGED_CPU};
    Pool *pool;
    long long bytes = 0;
    long long multiply_adds = 0;
    if (pool_create(&config, &pool)) return 1;
    for (int i = 0; i < 8; i++) {
        Seq *seq;
        if (seq_create(pool, &seq) || seq_append(seq, 1000)) return 1;
        bytes += (long long)pool_bytes_per_token(&config) * seq->length;
        for (int t = 0; t < seq->length; t++)
            for (int head = 0; head < 24; head++) multiply_adds += 2 * config.head_dim;
    }
    pool_destroy(pool);
    int wrong = differs("BYTES", BYTES, bytes);
    wrong += differs("MULTIPLY_ADDS", MULTIPLY_ADDS, multiply_adds);
    if (!wrong)
        printf("14a: solved: 8 * 1000 tokens * 2 * 8 KV heads * 64 * 2 bytes = %lld; 8 *\n"
               "1000 tokens * 24 heads * 2 * 64 = %lld: %.1f multiply-adds a byte\n",
               bytes, multiply_adds, (double)multiply_adds / (double)bytes);
    return wrong > 0;
}
