// play_webgpu.c: the cache that docs/play.html has your own GPU read, and the judge of the result.

#include "util.h"

static Pool *cache;
static Seq **seqs;  // an array of stb_ds

static int fill(Seq *seq, unsigned *random)  // with random K and V
{
    const PoolConfig *c = &cache->config;
    int count = seq->length * c->num_kv_heads * c->head_dim;
    float *k = malloc(2 * count * sizeof *k);
    for (int i = 0; i < 2 * count; i++) {
        *random = *random * 1664525u + 1013904223u;
        k[i] = (float)(*random >> 8) / (1 << 23) - 1;
    }
    int error = pool_plan(cache, &(Batch){1, &seq, &seq->length});
    if (!error) error = pool_write(cache, 0, k, k + count);
    free(k);
    return error;
}

// The sequences grow in random turns, a block at a time: between the blocks of each are others'.
// Returns an error code.
int cache_create(int num_seqs, int length, int num_kv_heads, int head_dim, int block_size,
                 int dtype, unsigned random)
{
    int blocks = (length + block_size - 1) / block_size;
    PoolConfig config = {1, num_kv_heads, head_dim, block_size, num_seqs * blocks, dtype,
                         0, PAGED_CPU};
    int error = pool_create(&config, &cache);
    arrsetlen(seqs, num_seqs);
    for (int i = 0; i < num_seqs && !error; i++) error = seq_create(cache, &seqs[i]);
    while (cache->num_free > 0 && !error) {
        random = random * 1664525u + 1013904223u;
        Seq *seq = seqs[(random >> 8) % num_seqs];
        int left = length - seq->length;
        error = seq_append(seq, left < block_size ? left : block_size);
    }
    for (int i = 0; i < num_seqs && !error; i++) error = fill(seqs[i], &random);
    return error;
}

void *cache_plane(int v) { return v ? cache->v : cache->k; }
int *cache_table(int seq) { return seqs[seq]->block_table; }

// How far the results of a GPU for the newest token of a sequence, out and then lse, are from those
// of the CPU.
double cache_difference(int seq, int num_q_heads, const float *q, const float *results)
{
    int count = num_q_heads * cache->config.head_dim;
    float *right = malloc((count + num_q_heads) * sizeof *right);
    double worst = 0;
    must(pool_plan(cache, &(Batch){1, &seqs[seq], &(int){1}}), "pool_plan");
    must(attend(cache, ATTEND_PAGED, 0, num_q_heads, 0, q, right, right + count), "attend");
    for (int i = 0; i < count + num_q_heads; i++) {
        double difference = fabs((double)results[i] - right[i]);
        if (!(difference <= worst)) worst = isnan(difference) ? INFINITY : difference;
    }
    free(right);
    return worst;
}
