// 5a: two numbers to be predicted.
//
// A pool of 3 layers, 2 KV heads, head_dim 8, blocks of 4 tokens, f16. A batch has four sequences,
// of 5, 30, 100 and 13 tokens. The first, second and fourth bring one new token each, the third
// brings none in this step. How many bytes of K and V does the dense copy take that attend() makes
// for ATTEND_GATHER? And how many bytes does a whole step, of all layers, move more than with
// ATTEND_PAGED, if that reads each K and V once, and the gather reads, writes and reads them again?
//
//     make exercise N=5a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define COPY 0  // your number
#define MORE 0  // your number

static void must(int error)
{
    if (!error) return;
    printf("5a: not yet: %s\n", paged_error(error));
    exit(1);
}

static int differs(const char *name, size_t answer, size_t right)
{
    if (answer == right) return 0;
    printf("5a: not yet: %s is too %s\n", name, answer < right ? "small" : "large");
    return 1;
}

int main(void)
{
    enum { SEQS = 4, HEADS = 2, DIM = 8, ROWS = 3 };
    PoolConfig config = {3, HEADS, DIM, 4, 50, PAGED_F16, 0, PAGED_CPU};
    const int lengths[SEQS] = {5, 30, 100, 13};
    const int num_tokens[SEQS] = {1, 1, 0, 1};
    float q[ROWS * HEADS * DIM] = {0};
    float out[ROWS * HEADS * DIM];
    Pool *pool;
    Seq *seqs[SEQS];
    must(pool_create(&config, &pool));
    for (int i = 0; i < SEQS; i++) {
        must(seq_create(pool, &seqs[i]));
        must(seq_append(seqs[i], lengths[i]));
    }
    memset(pool->k, 0, pool_bytes_per_block(&config) / 2 * config.num_blocks);
    memset(pool->v, 0, pool_bytes_per_block(&config) / 2 * config.num_blocks);
    Batch batch = {SEQS, seqs, num_tokens};
    must(pool_plan(pool, &batch));
    must(attend(pool, ATTEND_GATHER, 0, HEADS, 0, q, out, NULL));
    size_t copy = pool->workspace_bytes / 3 * 2;  // memory_reserve() takes half as much again
    size_t more = 2 * copy * config.num_layers;
    pool_destroy(pool);
    int wrong = differs("COPY", COPY, copy) + differs("MORE", MORE, more);
    if (!wrong)
        printf("5a: solved: (5 + 30 + 13) tokens * 2 * 2 heads * 8 * 2 bytes = %zu, of one\n"
               "layer at a time; it is written once and read once more, in each of 3 layers:\n"
               "%zu\n",
               copy, more);
    return wrong > 0;
}
