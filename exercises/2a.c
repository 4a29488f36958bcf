// 2a: a number to be predicted.
//
// Five requests have 1, 16, 17, 100 and 2047 tokens. Their K and V lie in blocks of 16 slots. How
// many slots of these blocks are not filled, all five together? Write down the number, then run
// this, which counts.
//
//     make exercise N=2a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define ANSWER 0  // your number

int main(void)
{
    static const int lengths[5] = {1, 16, 17, 100, 2047};
    PoolConfig config = {1, 1, 1, 16, 256, PAGED_F32, 0, PAGED_CPU};
    Pool *pool;
    int tokens = 0;
    int error = pool_create(&config, &pool);
    for (int i = 0; i < 5 && !error; i++) {
        Seq *seq;
        error = seq_create(pool, &seq);
        if (!error) error = seq_append(seq, lengths[i]);
        tokens += lengths[i];
    }
    if (error) {
        printf("2a: not yet: %s\n", paged_error(error));
        return 1;
    }
    int slots = (config.num_blocks - pool->num_free) * config.block_size;
    pool_destroy(pool);
    if (ANSWER != slots - tokens) {
        printf("2a: not yet: ANSWER is too %s\n", ANSWER < slots - tokens ? "small" : "large");
        return 1;
    }
    printf("2a: solved: 1 + 1 + 2 + 7 + 128 blocks have %d slots, of which 15 + 0 + 15 +\n"
           "12 + 1 = %d are not filled: %.1f %% in use\n",
           slots, slots - tokens, 100.0 * tokens / slots);
    return 0;
}
