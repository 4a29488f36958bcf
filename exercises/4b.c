// 4b (hard): all or nothing, for a whole batch.
//
// seq_append() is all or nothing for one sequence. Write append_all(), which appends num_tokens[i]
// tokens to sequence i of the batch: to all of them, or to none. It succeeds exactly if appending
// to one after the other, in their order, would. Otherwise nothing has changed: no table, no order
// of the free list, no copy-on-write; and it returns PAGED_TOO_LONG if one of them would not fit
// into the whole pool, PAGED_OUT_OF_BLOCKS otherwise. Sequences may share their last block (with
// seq_fork(), chapter 8), also with sequences outside of the batch, and it may be published (chapter
// 10). What each append takes is counted in seq_append(), step 1; think of what it gives back.
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

enum { SIZE = 4, MOST = 6 };  // tokens in a block; sequences

typedef struct Case {
    int num_blocks, tokens, forks, outside, published, n;
} Case;

static void check(int ok, const char *what, const Case *c)
{
    if (ok) return;
    printf(
        "4b: not yet: %s\n(%d blocks of 4; a sequence of 3 tokens, one of %d%s with %d forks, %d "
        "of them outside of the batch; %d more tokens for each)\n",
        what, c->num_blocks, c->tokens, c->published ? ", published," : "", c->forks, c->outside,
        c->n);
    exit(1);
}

// A pool as the case says, or NULL if it is too small. The batch comes first in `seqs`.
static Pool *start(const Case *c, Seq **seqs)
{
    static const float zeros[2 * SIZE];
    static const int tokens[2 * SIZE];
    PoolConfig config = {1, 1, 1, SIZE, c->num_blocks, PAGED_F32, 1, PAGED_CPU};
    int all = 2 * SIZE;
    Pool *pool;
    int error = pool_create(&config, &pool);
    for (int i = 0; i < 2 && !error; i++) error = seq_create(pool, &seqs[i]);
    if (!error) error = seq_append(seqs[0], 3);
    if (!error) error = seq_append(seqs[1], all);
    Batch batch = {1, &seqs[1], &all};
    if (!error) error = pool_plan(pool, &batch);
    if (!error) error = pool_write(pool, 0, zeros, zeros);
    if (!error && c->published) error = seq_publish(seqs[1], tokens, all);
    if (!error) error = seq_rewind(seqs[1], all - c->tokens);
    for (int i = 2; i < 2 + c->forks && !error; i++) error = seq_fork(seqs[1], c->tokens, &seqs[i]);
    if (!error) return pool;
    pool_destroy(pool);
    return NULL;
}

// Whether tables, counts, the free list in its order and the prefix cache are the same.
static int same(const Pool *a, const Pool *b)
{
    int ok = a->num_copies == b->num_copies && a->num_free == b->num_free;
    for (int i = 0; i <= a->config.num_blocks; i++)
        ok = ok && memcmp(&a->blocks[i], &b->blocks[i], sizeof(Block)) == 0;
    for (int s = 0; s < (int)arrlen(a->seqs); s++) {
        int entries = (int)arrlen(a->seqs[s]->block_table);
        ok = ok && a->seqs[s]->length == b->seqs[s]->length;
        ok = ok && entries == (int)arrlen(b->seqs[s]->block_table);
        for (int i = 0; i < entries && ok; i++)
            ok = a->seqs[s]->block_table[i] == b->seqs[s]->block_table[i];
    }
    return ok;
}

static void try_case(const Case *c)
{
    Seq *seqs[MOST], *twins[MOST];
    int num_tokens[MOST];
    Pool *pool = start(c, seqs);
    Pool *twin = start(c, twins);
    Batch batch = {2 + c->forks - c->outside, seqs, num_tokens};
    if (!pool) return;
    int error = PAGED_OK;  // of one after the other, in the twin
    int too_long = 0;
    for (int i = 0; i < batch.num_seqs; i++) {
        num_tokens[i] = c->n;
        too_long |= twins[i]->length + c->n > SIZE * c->num_blocks;
        if (!error) error = seq_append(twins[i], c->n);
    }
    if (error) error = too_long ? PAGED_TOO_LONG : PAGED_OUT_OF_BLOCKS;
    if (error) {  // nothing may have changed
        pool_destroy(twin);
        twin = start(c, twins);
    }
    int came = append_all(pool, &batch);
    char what[100];
    snprintf(what, sizeof what, "expected \"%s\", came \"%s\"", paged_error(error),
             paged_error(came));
    check(came == error, what, c);
    check(same(pool, twin), error ? "after an error, something has changed" : "another result", c);
    check(!pool_check(pool), "pool_check() finds something", c);
    pool_destroy(pool);
    pool_destroy(twin);
}

int main(void)
{
    Case c;
    for (c.num_blocks = 3; c.num_blocks < 14; c.num_blocks++)
        for (c.tokens = 4; c.tokens <= 7; c.tokens++)
            for (c.forks = 0; c.forks <= MOST - 2; c.forks++)
                for (c.outside = 0; c.outside <= c.forks; c.outside++)
                    for (c.published = 0; c.published < 2; c.published++)
                        for (c.n = 0; c.n < 13; c.n++) try_case(&c);
    printf("4b: solved: an append that copies lowers the count of the old block; the next one may\n"
           "find it unshared, and if it was published and no other uses it, it is free again\n");
    return 0;
}
