// 8a: two numbers to be predicted.
//
// A prompt of 1000 tokens is in the cache, in blocks of 16. It becomes eight samples: the sequence
// itself and seven forks of it. Each sample then grows by 100 tokens, one at a time, all in turns.
// How many blocks are in use at the end, and how many were copied on the way? Write down both, then
// run this.
//
//     make exercise N=8a

#define BLOCKS 0  // your number
#define COPIES 0  // your number

#define PAGED_NO_MAIN
#include "../paged.cu.c"

enum { SAMPLES = 8 };

static int differs(const char *name, int answer, int right)
{
    if (answer == right) return 0;
    printf("8a: not yet: %s is too %s\n", name, answer < right ? "small" : "large");
    return 1;
}

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
    int blocks = config.num_blocks - pool->num_free;
    int copies = (int)pool->num_copies;
    pool_destroy(pool);
    int wrong = differs("BLOCKS", BLOCKS, blocks) + differs("COPIES", COPIES, copies);
    if (!wrong)
        printf("8a: solved: 1000 / 16 = 62 full blocks stay shared; of 1100 tokens,\n"
               "ceil(1100 / 16) - 62 = 7 blocks are each sample's own: 62 + 8 * 7 = %d. The\n"
               "63rd block is copied by all but the last writer, which finds a count of 1:\n"
               "%d\n",
               blocks, copies);
    return wrong > 0;
}
