// play_webgpu.c: the cache that your own GPU reads on docs/play.html, and the judge of the result.

#include "util.h"

static Pool *cache;
static Seq **all;  // an array of stb_ds

static int fill(Seq *seq)  // with random K and V
{
    int count = seq->length * cache->config.num_kv_heads * cache->config.head_dim;
    static float *k;  // then v; an array of stb_ds, too
    arrsetlen(k, 2 * count);
    for (int i = 0; i < 2 * count; i++) k[i] = 2.0f * rand() / (float)RAND_MAX - 1;
    int error = pool_plan(cache, &(Batch){1, &seq, &seq->length});
    if (error) return error;
    return pool_write(cache, 0, k, k + count);
}

// The sequences take a block in random turns, so each has blocks of the others between its own.
// Returns an error code.
int cache_create(int num_seqs, int length, int num_kv_heads, int head_dim, int block_size,
                 int dtype)
{
    int num_blocks = num_seqs * ((length + block_size - 1) / block_size);
    PoolConfig config = {1, num_kv_heads, head_dim, block_size, num_blocks, dtype, 0, PAGED_CPU};
    int error = pool_create(&config, &cache);
    arrsetlen(all, num_seqs);
    for (int i = 0; i < num_seqs && !error; i++) error = seq_create(cache, &all[i]);
    while (cache->num_free > 0 && !error) {
        Seq *seq = all[rand() % num_seqs];
        int left = length - seq->length;
        error = seq_append(seq, left < block_size ? left : block_size);
    }
    for (int i = 0; i < num_seqs && !error; i++) error = fill(all[i]);
    return error;
}

void *cache_plane(int v) { return v ? cache->v : cache->k; }
int *cache_table(int seq) { return all[seq]->block_table; }

// How far `out`, of a GPU for the newest token of a sequence, is from what the CPU computes.
double cache_difference(int seq, int num_q_heads, const float *q, const float *out)
{
    int count = num_q_heads * cache->config.head_dim;
    static float *expected;
    arrsetlen(expected, count);
    double worst = 0;
    must(pool_plan(cache, &(Batch){1, &all[seq], &(int){1}}), "pool_plan");
    must(attend(cache, ATTEND_PAGED, 0, num_q_heads, 0, q, expected, NULL), "attend");
    for (int i = 0; i < count; i++) {
        double difference = fabs((double)out[i] - expected[i]);
        if (!(difference <= worst)) worst = isnan(difference) ? INFINITY : difference;
    }
    return worst;
}
