// 8a. A prompt of 1000 tokens is in the cache, in blocks of 16. It becomes eight samples: the
// sequence itself and seven forks of it. Each sample then grows by 100 tokens, one at a time, all
// in turns. How many blocks are in use at the end, and how many were copied on the way? Put your
// numbers here, then: make exercise N=8a

#define BLOCKS 0  // your number
#define COPIES 0  // your number

#define PAGED_NO_MAIN
#include "../paged.cu.c"

enum { SAMPLES = 8 };

int main(void)
{
    PoolConfig config = {1, 1, 8, 16, 1000, PAGED_F32, 0, PAGED_CPU};
    Pool *pool;
    Seq *samples[SAMPLES];
    int error = pool_create(&config, &pool);
    if (!error) error = seq_create(pool, &samples[0]);
    if (!error) error = seq_append(samples[0], 1000);
    for (int i = 1; i < SAMPLES && !error; i++) error = seq_fork(samples[0], 1000, &samples[i]);
    for (int step = 0; step < 100; step++)
        for (int i = 0; i < SAMPLES && !error; i++) error = seq_append(samples[i], 1);
    if (error || pool_check(pool)) {
        printf("8a: not yet: the engine says: %s\n", error ? paged_error(error) : pool_check(pool));
        return 1;
    }
    int blocks = BLOCKS == config.num_blocks - pool->num_free, copies = COPIES == pool->num_copies;
    pool_destroy(pool);
    if (!blocks) printf("8a: not yet: %d blocks in use is not what the pool says\n", BLOCKS);
    if (!copies) printf("8a: not yet: %d copies is not what the pool says\n", COPIES);
    if (blocks && copies) printf("8a: solved\n");
    return !blocks || !copies;
}
