// 7a: three numbers to be predicted, of one call of attend().
//
// Two sequences of 1300 and 101 tokens attend with one query token each, on a GPU, by ATTEND_PAGED:
// 12 query heads, 2 KV heads, head_dim 64. How many thread blocks does attend_paged() start? How
// often do the threads of a thread block meet at a barrier, all thread blocks taken together? And
// how often do the lanes of a warp meet at a shuffle, all warps taken together? Write down the
// numbers, then run this, which counts on the stand-in.
//
//     make exercise N=7a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define THREAD_BLOCKS 0  // your number
#define BARRIERS 0       // your number
#define SHUFFLES 0       // your number

enum { DIM = 64, KV_HEADS = 2, Q_HEADS = 12, LONG = 1300, SHORT = 101 };

static void must(int error)
{
    if (!error) return;
    printf("7a: not yet: %s\n", paged_error(error));
    exit(1);
}

static int differs(const char *name, long answer, long right)
{
    if (answer == right) return 0;
    printf("7a: not yet: %s is too %s\n", name, answer < right ? "small" : "large");
    return 1;
}

// A meeting counts how often it took place.
static long count_shuffles(void)
{
    long sum = 0;
    for (int warp = 0; warp < WARPS; warp++) sum += gpu.warps[warp].generation;
    return sum;
}

int main(void)
{
    static float kv[(LONG + SHORT) * KV_HEADS * DIM], q[2 * Q_HEADS * DIM], out[2 * Q_HEADS * DIM];
    PoolConfig config = {1, KV_HEADS, DIM, 16, 100, PAGED_F16, 0, PAGED_STANDIN};
    const int lengths[2] = {LONG, SHORT};
    const int newest[2] = {1, 1};
    Pool *pool;
    Seq *seqs[2];
    must(pool_create(&config, &pool));
    for (int i = 0; i < 2; i++) {
        must(seq_create(pool, &seqs[i]));
        must(seq_append(seqs[i], lengths[i]));
    }
    Batch all = {2, seqs, lengths};
    Batch decode = {2, seqs, newest};
    must(pool_plan(pool, &all));
    must(pool_write(pool, 0, kv, kv));
    must(pool_plan(pool, &decode));

    long barriers = gpu.block.generation;
    long shuffles = count_shuffles();
    must(attend(pool, ATTEND_PAGED, 0, Q_HEADS, 0, q, out, NULL));
    barriers = gpu.block.generation - barriers;
    shuffles = count_shuffles() - shuffles;
    long thread_blocks = (long)gridDim.x * gridDim.y * gridDim.z;
    pool_destroy(pool);

    int wrong = differs("THREAD_BLOCKS", THREAD_BLOCKS, thread_blocks) +
                differs("BARRIERS", BARRIERS, barriers) + differs("SHUFFLES", SHUFFLES, shuffles);
    if (!wrong)
        printf("7a: solved: 2 query tokens * 12 query heads = %ld; in each two barriers: %ld;\n"
               "5 shuffles a dot product, (1300 + 101) tokens * 12 heads of them: %ld\n",
               thread_blocks, barriers, shuffles);
    return wrong > 0;
}
