// 5a: a number to be predicted.
//
// A pool of 3 layers, 2 KV heads, head_dim 8, blocks of 4 tokens, f16. A batch has three sequences,
// of 5, 30 and 9 tokens, and one new token each. How many bytes of K and V does the dense copy take
// that attend() makes for ATTEND_GATHER? (The tokens themselves have 44 * 64 = 2816 bytes.)
//
//     make exercise N=5a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define ANSWER 0  // your number

static void must(int error)
{
    if (error) printf("5a: not yet: %s\n", paged_error(error));
    if (error) exit(1);
}

// What a batch leaves in the workspace of its pool: with method < 0 only the flat arrays that each
// method needs, else also what the method keeps behind them.
static size_t workspace_of(int method)
{
    enum { DIM = 8, HEADS = 2 };
    PoolConfig config = {3, HEADS, DIM, 4, 16, PAGED_F16, 0, PAGED_CPU};
    Pool *pool;
    Step step;
    char *room;
    Seq *seqs[3];
    const int lengths[3] = {5, 30, 9}, ones[3] = {1, 1, 1};
    float zeros[30 * HEADS * DIM] = {0}, out[3 * HEADS * DIM];
    must(pool_create(&config, &pool));
    for (int i = 0; i < 3; i++) {
        Batch all = {1, &seqs[i], &lengths[i]};
        must(seq_create(pool, &seqs[i]));
        must(seq_append(seqs[i], lengths[i]));
        must(pool_write(pool, 0, &all, zeros, zeros));
    }
    Batch batch = {3, seqs, ones};
    memory_free(PAGED_CPU, pool->workspace);
    pool->workspace = NULL;
    pool->workspace_bytes = 0;
    if (method < 0) {
        must(step_create(pool, 0, &batch, &step));
        must(step_upload(pool, &batch, &step, 0, &room));
    } else {
        must(attend(pool, method, 0, &batch, HEADS, 0, zeros, out, NULL));
    }
    size_t bytes = pool->workspace_bytes;
    pool_destroy(pool);
    return bytes;
}

int main(void)
{
    size_t bytes = workspace_of(ATTEND_GATHER) - workspace_of(-1);
    if (ANSWER == 2816) printf("5a: not yet: and what is the copy of the short sequences like?\n");
    if (ANSWER != bytes && ANSWER != 2816)
        printf("5a: not yet: ANSWER is too %s\n", ANSWER < bytes ? "small" : "large");
    if (ANSWER != bytes) return 1;
    printf("5a: solved\n");
    return 0;
}
