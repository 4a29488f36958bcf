// 7a: three numbers to be predicted, of one call of attend().
//
// Two sequences of 1300 and 100 tokens each attend with one query token: 12 query heads, 2 KV heads,
// head_dim 64, stored as f16, method ATTEND_SPLIT on a GPU. How many bytes of K and V together does
// a thread block of attend_split() have on their way, at most, before it waits for the first? How
// often do the threads of a thread block meet at a barrier, counted over all thread blocks? And how
// many of the states (m, l, o) that merge_splits() finds have seen no token?
//
//     make exercise N=7a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define BYTES 0     // your number
#define BARRIERS 0  // your number
#define EMPTY 0     // your number

enum { DIM = 64, KV_HEADS = 2, Q_HEADS = 12, LONG = 1300, SHORT = 100 };

static void must(int error)
{
    if (error) printf("7a: not yet: %s\n", paged_error(error));
    if (error) exit(1);
}

static int differs(const char *name, long answer, long right)
{
    if (answer == right) return 0;
    printf("7a: not yet: %s is too %s\n", name, answer < right ? "small" : "large");
    return 1;
}

int main(void)
{
    PoolConfig config = {1, KV_HEADS, DIM, 16, 100, PAGED_F16, 0, PAGED_GPU};
    const int lengths[2] = {LONG, SHORT}, newest[2] = {1, 1};
    static float kv[(LONG + SHORT) * KV_HEADS * DIM], q[2 * Q_HEADS * DIM], out[2 * Q_HEADS * DIM];
    Pool *pool;
    Seq *seqs[2];
    must(pool_create(&config, &pool));
    for (int i = 0; i < 2; i++) {
        must(seq_create(pool, &seqs[i]));
        must(seq_append(seqs[i], lengths[i]));
    }
    Batch all = {2, seqs, lengths}, decode = {2, seqs, newest};
    must(pool_write(pool, 0, &all, kv, kv));

    unsigned before = gpu.block.generation;  // it counts the meetings
    must(attend(pool, ATTEND_SPLIT, 0, &decode, Q_HEADS, 0, q, out, NULL));
    long barriers = gpu.block.generation - before, empty = 0;
    long tokens = THREADS / lanes_per_vector(DIM) * IN_FLIGHT;
    const Step *s = &gpu.step;  // the step of the last launch, with the states in `partial`
    for (int i = 0; i < s->num_rows * s->num_q_heads * s->num_splits; i++)
        empty += s->partial[i * (DIM + 2) + 1] == 0;

    int wrong = differs("BYTES", BYTES, tokens * 2 * DIM * (long)dtype_size(config.dtype)) +
                differs("BARRIERS", BARRIERS, barriers) + differs("EMPTY", EMPTY, empty);
    pool_destroy(pool);
    if (!wrong) printf("7a: solved\n");
    return wrong > 0;
}
