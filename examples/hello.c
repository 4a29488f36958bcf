// hello: the whole interface in one page. Two sequences share a prompt, and each adds a token.
//
//     cc -O2 -DPAGED_NO_MAIN paged.cu.c examples/hello.c -o hello -lm && ./hello

#include "../paged.h"
#include <stdlib.h>

enum { LAYERS = 2, KV_HEADS = 2, Q_HEADS = 4, HEAD_DIM = 8, PROMPT = 6 };

// One step of a model, for the newest n[i] tokens of each sequence: real ones compute q, k and v.
static void step(Pool *pool, int num_seqs, Seq **seqs, const int *n, int tokens)
{
    float k[PROMPT * KV_HEADS * HEAD_DIM], v[PROMPT * KV_HEADS * HEAD_DIM];
    float q[PROMPT * Q_HEADS * HEAD_DIM], out[PROMPT * Q_HEADS * HEAD_DIM];
    Batch batch = {num_seqs, seqs, n};
    for (int i = 0; i < tokens * KV_HEADS * HEAD_DIM; i++) k[i] = v[i] = (float)(i % 5);
    for (int i = 0; i < tokens * Q_HEADS * HEAD_DIM; i++) q[i] = (float)(i % 3);
    if (pool_plan(pool, &batch)) exit(1);
    for (int layer = 0; layer < LAYERS; layer++)
        if (pool_write(pool, layer, k, v) ||
            attend(pool, ATTEND_PAGED, layer, Q_HEADS, 0, q, out, NULL))
            exit(1);
}

int main(void)
{
    PoolConfig config = {.num_layers = LAYERS,
                         .num_kv_heads = KV_HEADS,
                         .head_dim = HEAD_DIM,
                         .block_size = 4,
                         .num_blocks = 8,
                         .dtype = PAGED_F16,
                         .device = PAGED_CPU};
    Pool *pool;
    Seq *a, *b;
    if (pool_create(&config, &pool) || seq_create(pool, &a)) return 1;
    if (seq_append(a, PROMPT)) return 1;  // prefill: takes two blocks of 4 tokens
    step(pool, 1, &a, (int[]){PROMPT}, PROMPT);
    if (seq_fork(a, PROMPT, &b)) return 1;  // shares both; nothing is copied
    pool_dump(pool, stdout);

    if (seq_append(a, 1) || seq_append(b, 1)) return 1;  // a copies the second block, b need not
    step(pool, 2, (Seq *[]){a, b}, (int[]){1, 1}, 2);
    pool_dump(pool, stdout);
    seq_dump(a, stdout);
    pool_destroy(pool);
    return fflush(stdout) || ferror(stdout);  // output that could not be written is a failure
}
