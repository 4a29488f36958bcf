// 4b (hard): all or nothing, for a whole batch.
//
// seq_append() is all or nothing for one sequence. Write append_all(), which appends num_tokens[i]
// tokens to sequence i of the batch: to all of them or to none. It returns PAGED_TOO_LONG if one of
// them would not fit into the whole pool, else PAGED_OUT_OF_BLOCKS if all together do not fit now;
// then nothing has changed: no table, no order of the free list, no copy on write. Sequences may
// share their last block (seq_fork(), chapter 8); what that costs stands in seq_append(), step 1.
//
//     make exercise N=4b

#define PAGED_NO_MAIN
#include "../paged.cu.c"

static int append_all(Pool *pool, const Batch *batch)
{
    (void)pool;
    for (int i = 0; i < batch->num_seqs; i++) {
        int error = seq_append(batch->seqs[i], batch->num_tokens[i]);
        if (error) return error;
    }
    return PAGED_OK;
}

static void check(int ok, const char *what)
{
    if (!ok) printf("4b: not yet: %s\n", what);
    if (!ok) exit(1);
}

static Seq *new_seq(Pool *pool, int n)
{
    Seq *seq;
    check(seq_create(pool, &seq) == PAGED_OK && seq_append(seq, n) == PAGED_OK, "no sequence");
    return seq;
}

// Tables, counts, and the free list in its order, as one number.
static uint64_t state_of(const Pool *pool)
{
    uint64_t h = prefix_hash((uint64_t)pool->num_copies, &pool->num_free, 1);
    for (int i = 0; i <= pool->config.num_blocks; i++) {
        int block[2] = {pool->blocks[i].ref_count, pool->blocks[i].next};
        h = prefix_hash(h, block, 2);
    }
    for (int i = 0; i < arrlen(pool->seqs); i++)
        h = prefix_hash(h, pool->seqs[i]->block_table, (int)arrlen(pool->seqs[i]->block_table));
    return h;
}

// Sequences of 3 and 6 tokens and `forks` forks of the second, in blocks of 4; each is to get n.
static void try_batch(int num_blocks, int forks, int n, int expected)
{
    PoolConfig config = {1, 1, 2, 4, num_blocks, PAGED_F32, 1, PAGED_CPU};
    Pool *pool;
    check(pool_create(&config, &pool) == PAGED_OK, "no pool");
    Seq *seqs[6] = {new_seq(pool, 3), new_seq(pool, 6)};
    int num_tokens[6] = {n, n}, count = 2, lengths = 9 + 6 * forks;
    for (; count < 2 + forks; count++) {
        check(seq_fork(seqs[1], 6, &seqs[count]) == PAGED_OK, "no fork");
        num_tokens[count] = n;
    }
    uint64_t before = state_of(pool);
    Batch batch = {count, seqs, num_tokens};
    int error = append_all(pool, &batch);
    if (error != expected)
        printf("4b: not yet: %d blocks, %d forks, %d tokens each: \"%s\" came, not \"%s\"\n",
               num_blocks, forks, n, paged_error(error), paged_error(expected));
    if (error != expected) exit(1);
    check(!error || state_of(pool) == before, "after an error, something has changed");
    check(!pool_check(pool), "pool_check() is not content");
    for (int i = 0; i < count; i++) lengths -= seqs[i]->length - (error ? 0 : n);
    check(lengths == 0, "a sequence has another length than it should");
    pool_destroy(pool);
}

int main(void)
{
    try_batch(5, 0, 4, PAGED_OK);             // 3 blocks in use, 2 more are needed
    try_batch(5, 0, 6, PAGED_OUT_OF_BLOCKS);  // 3 more are needed
    try_batch(4, 0, 11, PAGED_TOO_LONG);      // 17 tokens fit into no pool of 4 blocks
    try_batch(4, 1, 1, PAGED_OK);             // one copy; who comes second owns the old block
    try_batch(5, 3, 1, PAGED_OUT_OF_BLOCKS);  // three copies, two free blocks
    try_batch(6, 3, 1, PAGED_OK);
    try_batch(11, 3, 6, PAGED_OUT_OF_BLOCKS);  // three copies, and 6 blocks more
    try_batch(12, 3, 6, PAGED_OK);
    printf("4b: solved\n");
    return 0;
}
