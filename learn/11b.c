// 11b (hard): all or nothing, for a whole batch.
//
// seq_append() is all or nothing for one sequence. Write append_all(), which appends num_tokens[i]
// tokens to sequence i of the batch: to all of them, or to none. It succeeds exactly when appending
// to one after the other, in their order, would succeed. Otherwise nothing may change: no table, no
// order of the free list, no copy-on-write. It then returns PAGED_TOO_LONG if one of the sequences
// would not fit into the whole pool, and PAGED_OUT_OF_BLOCKS otherwise. The last block of a
// sequence may be shared, within the batch or outside of it, and may be published. Step 1 of
// seq_append() counts what one append takes. What do those before it in the batch change?
//
//     make exercise N=11b

#define EXERCISE "11b"
#include "exercise.h"

static int append_all(Pool *pool, const Batch *batch)
{
    (void)pool;
    for (int i = 0; i < batch->num_seqs; i++) {
        int error = seq_append(batch->seqs[i], batch->num_tokens[i]);
        if (error) return error;
    }
    return PAGED_OK;
}

enum { SIZE = 4, MOST = 6, LONGEST = 64, CASES = 20000 };

// A pool with some sequences and a batch of some of them, the same for the same seed.
typedef struct Case {
    Pool *pool;
    Seq *batch[MOST];
    int num_tokens[MOST], num_seqs;
} Case;

// Edits a sequence at random. All hold the same text, so what they publish is shared, too.
static void edit(Case *c, Seq *seq)
{
    static const float zeros[LONGEST];
    static int text[LONGEST];
    Seq *child;
    int n = 1 + below(9);
    switch (below(5)) {
    case 0: (void)seq_rewind(seq, min_int(seq->length, below(4))); break;
    case 1: (void)seq_publish(seq, text, seq->num_computed_tokens); break;
    case 2:
        if (arrlen(c->pool->seqs) < MOST)
            (void)seq_fork(seq, seq->length - seq->length / n, &child);
        break;
    default:
        if (!seq_append(seq, n)) compute(seq, n, zeros, zeros);
    }
}

static void start(Case *c, int seed)
{
    int simple = seed < CASES / 2;  // simple cases come first: two sequences, a few edits
    random_state = (uint32_t)seed;
    c->pool = new_pool(1, 1, 1, SIZE, 2 + below(simple ? 4 : 12));
    for (int n = 1 + below(simple ? 2 : 3); n > 0; n--) new_seq(c->pool, 0);
    for (int i = 0; i < (simple ? 6 : 25); i++)
        edit(c, c->pool->seqs[below((int)arrlen(c->pool->seqs))]);
    int n = (int)arrlen(c->pool->seqs);
    int first = below(n);
    c->num_seqs = 0;
    for (int i = 0; i < n; i++) {
        if (c->num_seqs > 0 && below(4) == 0) continue;  // outside of the batch
        c->batch[c->num_seqs] = c->pool->seqs[(first + i) % n];
        c->num_tokens[c->num_seqs++] = below(8);
    }
}

// Whether tables, counts, the free list in its order and the prefix cache are the same.
static int same(const Pool *a, const Pool *b)
{
    int ok = a->num_copies == b->num_copies && a->num_free == b->num_free;
    ok = ok && memcmp(a->blocks, b->blocks, (a->config.num_blocks + 1) * sizeof(Block)) == 0;
    for (int s = 0; s < (int)arrlen(a->seqs) && ok; s++) {
        int entries = (int)arrlen(a->seqs[s]->block_table);
        ok = a->seqs[s]->length == b->seqs[s]->length &&
             entries == (int)arrlen(b->seqs[s]->block_table);
        for (int i = 0; i < entries && ok; i++)
            ok = a->seqs[s]->block_table[i] == b->seqs[s]->block_table[i];
    }
    return ok;
}

static void complain(int seed, const char *what)
{
    Case c;
    start(&c, seed);
    printf(EXERCISE ": not yet: %s. The case, before the call:\n", what);
    pool_dump(c.pool, stdout);  // p: published and free
    for (int i = 0; i < c.num_seqs; i++) {
        printf("append %d tokens to a ", c.num_tokens[i]);
        seq_dump(c.batch[i], stdout);
    }
    exit(1);
}

static void try_case(int seed)
{
    Case c, twin;
    start(&c, seed);
    start(&twin, seed);
    int error = PAGED_OK;  // of one after the other, in the twin
    int too_long = 0;
    for (int i = 0; i < twin.num_seqs; i++) {
        int length = twin.batch[i]->length + twin.num_tokens[i];
        too_long |= length > SIZE * twin.pool->config.num_blocks;
        if (!error) error = seq_append(twin.batch[i], twin.num_tokens[i]);
    }
    if (error) {  // nothing may have changed
        error = too_long ? PAGED_TOO_LONG : PAGED_OUT_OF_BLOCKS;
        pool_destroy(twin.pool);
        start(&twin, seed);
    }
    Batch batch = {c.num_seqs, c.batch, c.num_tokens};
    int got = append_all(c.pool, &batch);
    if (got != error) complain(seed, "the wrong error code");
    if (!same(c.pool, twin.pool))
        complain(seed, error ? "it fails, but has changed something"
                             : "one append after the other gives another result");
    if (pool_check(c.pool)) complain(seed, pool_check(c.pool));
    pool_destroy(c.pool);
    pool_destroy(twin.pool);
}

int main(void)
{
    for (int seed = 0; seed < CASES; seed++) try_case(seed);
    return solved("An append that copies lowers the count of the old block, so the next one may\n"
                  "find it unshared and write in place.\n");
}
