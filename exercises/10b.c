// 10b (hard). A sequence that was rewound into its own published block copies it at the next
// append, also when it is the only user, and in a full pool that append fails. Change seq_append()
// in ../paged.cu.c: if no block is free, and the sequence is the only user of its published last
// block, the block is taken out of the prefix cache and written in place. While there is a free
// block, and when others use the block, all stays as it is: the cache is worth a copy. Nothing may
// change if the append fails all the same. Then: make exercise N=10b

#define PAGED_NO_MAIN
#include "../paged.cu.c"

static const int tokens[9] = {11, 12, 13, 14, 15, 16, 17, 18, 19};
static Pool *pool;

static int wrong(int ok, const char *what)
{
    if (!ok) printf("10b: not yet: %s\n", what);
    return !ok;
}

static int grow(Seq *seq, int n)  // K and V of a token are its number
{
    float x[9];
    Batch batch = {1, &seq, &n};
    int error = seq_append(seq, n);
    for (int i = 0; i < n && !error; i++) x[i] = (float)tokens[seq->length - n + i];
    return error ? error : pool_write(pool, 0, &batch, x, x);
}

static int found(void)
{
    Seq *seq;
    if (seq_create(pool, &seq) || seq_lookup(seq, tokens, 9)) return -1;
    int n = seq->length;
    seq_release(seq);
    return n;
}

// A sequence of two published blocks of 4 in a pool of so many, rewound to 6 tokens.
static Seq *start(int num_blocks)
{
    PoolConfig config = {1, 1, 1, 4, num_blocks, PAGED_F32, 1, PAGED_CPU};
    Seq *seq;
    if (pool_create(&config, &pool) || seq_create(pool, &seq) || grow(seq, 8) ||
        seq_publish(seq, tokens, 8) || seq_rewind(seq, 2))
        exit(1);
    return seq;
}

int main(void)
{
    float k[9], v[9];
    Seq *seq = start(3), *other, *occupant;
    if (wrong(!grow(seq, 1) && pool->num_copies == 1 && found() == 8, "a free block is not used"))
        return 1;
    seq_release(seq);
    pool_destroy(pool);

    seq = start(3);
    if (seq_create(pool, &occupant) || seq_append(occupant, 1) || seq_fork(seq, 6, &other))
        return 1;
    if (wrong(grow(seq, 1) == PAGED_OUT_OF_BLOCKS, "a block that two sequences see was written"))
        return 1;
    seq_release(other);
    if (wrong(grow(seq, 3) == PAGED_OUT_OF_BLOCKS && found() == 8,
              "a failed append left a trace") ||
        wrong(!grow(seq, 1), "an append for which there is room fails") ||
        wrong(seq->length == 7 && pool->num_copies == 0, "it was copied") ||
        wrong(found() == 4, "what is written now can still be found") ||
        wrong(!grow(seq, 1) && !pool_check(pool), "the pool is damaged") ||
        wrong(!seq_gather(seq, 0, k, v), "K and V cannot be read"))
        return 1;
    for (int t = 0; t < 8; t++)
        if (wrong(k[t] == (float)tokens[t] && v[t] == k[t], "K or V were lost")) return 1;
    if (wrong(!seq_publish(seq, tokens, 8) && found() == 8, "it cannot be published again"))
        return 1;
    pool_destroy(pool);
    printf("10b: solved\n");
    return 0;
}
