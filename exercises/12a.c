// 12a: eight predictions.
//
// pool_check() recounts what can be recounted. What is wrong without being inconsistent, it cannot
// see: that is left to the oracle. Below, a healthy pool is damaged in eight ways, each time anew.
// Blocks have 4 tokens; A has 10 tokens and a fork B of 6, which has grown to 9 since, so it has a
// copy of A's second block; C has 7 tokens. Say of each damage whether pool_check() sees it (1) or
// not (0), then run this, which does the damage and asks.
//
//     make exercise N=12a

static const int answer[8] = {-1, -1, -1, -1, -1, -1, -1, -1};  // 1 or 0, as in damage()

#define PAGED_NO_MAIN
#include "../paged.cu.c"

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
    case 3: c->length = c->written = 6; break;  // it had 7
    case 4: c->length = c->written = 4; break;
    case 5: swap(&a->block_table[2], &c->block_table[1]); break;  // both count 1
    case 6: c->block_table[1] = first; break;
    case 7: swap(&b->block_table[1], &a->block_table[1]); break;
    }
}

int main(void)
{
    int right = 0;
    for (int which = 0; which < 8; which++) {
        PoolConfig config = {1, 1, 2, 4, 16, PAGED_F32, 0, PAGED_CPU};
        int ten = 10, three = 3, seven = 7;
        float x[20] = {0};
        Pool *pool;
        Seq *a, *b, *c;
        if (pool_create(&config, &pool) || seq_create(pool, &a) || seq_create(pool, &c)) return 1;
        Batch write_a = {1, &a, &ten}, write_b = {1, &b, &three}, write_c = {1, &c, &seven};
        if (seq_append(a, 10) || pool_write(pool, 0, &write_a, x, x) || seq_fork(a, 6, &b) ||
            seq_append(b, 3) || pool_write(pool, 0, &write_b, x, x) || seq_append(c, 7) ||
            pool_write(pool, 0, &write_c, x, x) || pool_check(pool))
            return 1;
        damage(pool, a, b, c, which);
        right += (pool_check(pool) != NULL) == answer[which];
        // The pool is not destroyed: what is broken cannot be given back. The program ends soon.
    }
    if (right < 8) printf("12a: not yet: %d of 8 predictions are right\n", right);
    if (right == 8) printf("12a: solved\n");
    return right < 8;
}
