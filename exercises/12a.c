// 12a: eight predictions.
//
// pool_check() recounts what can be recounted. What is wrong without being inconsistent it cannot
// see: that is left to the oracle. Below, a healthy pool is damaged in eight ways, each time anew.
// Blocks have 4 tokens; A has 10 tokens and a fork B of 6, which has grown to 9 since, so it has a
// copy of A's second block; C has 7 tokens. Say of each damage whether pool_check() sees it (1) or
// not (0), and why. Then run this, which does the damage and asks.
//
//     make exercise N=12a

static const int answer[8] = {-1, -1, -1, -1, -1, -1, -1, -1};  // 1 or 0, as in damage()

#define PAGED_NO_MAIN
#include "../paged.cu.c"

static const char *const unseen[8] = {
    NULL,
    "the same blocks are named as often; A reads its tokens in another order",
    "nothing says what K and V ought to be",
    "6 tokens take 2 blocks, as 7 do",
    NULL,
    "each block is named once, as before; A and C read tokens of each other",
    NULL,
    "each block is named once, as before; A and B read each other's version",
};

static void swap(int *a, int *b)
{
    int old = *a;
    *a = *b;
    *b = old;
}

static void damage(Pool *pool, Seq *a, Seq *b, Seq *c, int which)
{
    int first = pool->blocks[pool->config.num_blocks].next;  // on the free list
    switch (which) {
    case 0: pool->blocks[a->block_table[0]].ref_count++; break;  // it will never be free again
    case 1: swap(&a->block_table[0], &a->block_table[1]); break;
    case 2: ((float *)pool->k)[kv_offset(&pool->config, 0, a->block_table[0], 0, 0)] += 1; break;
    case 3: c->length = c->num_computed_tokens = 6; break;  // it had 7
    case 4: c->length = c->num_computed_tokens = 4; break;
    case 5: swap(&a->block_table[2], &c->block_table[1]); break;  // both count 1
    case 6: c->block_table[1] = first; break;
    case 7: swap(&b->block_table[1], &a->block_table[1]); break;
    }
}

static void grow(Seq *seq, int n)
{
    static const float zeros[20];
    Batch batch = {1, &seq, &n};
    if (seq_append(seq, n) || pool_plan(seq->pool, &batch)) exit(1);
    if (pool_write(seq->pool, 0, zeros, zeros)) exit(1);
}

int main(void)
{
    char told[8][200];
    for (int which = 0; which < 8; which++) {
        PoolConfig config = {1, 1, 2, 4, 16, PAGED_F32, 0, PAGED_CPU};
        Pool *pool;
        Seq *a, *b, *c;
        if (answer[which] < 0) {
            printf("12a: not yet: there is no prediction of damage %d\n", which);
            return 1;
        }
        if (pool_create(&config, &pool) || seq_create(pool, &a) || seq_create(pool, &c)) return 1;
        grow(a, 10);
        if (seq_fork(a, 6, &b)) return 1;
        grow(b, 3);
        grow(c, 7);
        if (pool_check(pool)) return 1;
        damage(pool, a, b, c, which);
        const char *seen = pool_check(pool);
        snprintf(told[which], sizeof told[which], "damage %d is %s: %s", which,
                 seen ? "seen" : "not seen", seen ? seen : unseen[which]);
        if (answer[which] != (seen != NULL)) {
            printf("12a: not yet: %s\n", told[which]);
            return 1;
        }
        // The pool is not destroyed: what is broken cannot be given back. The program ends soon.
    }
    printf("12a: solved:\n");
    for (int which = 0; which < 8; which++) printf("  %s\n", told[which]);
    return 0;
}
