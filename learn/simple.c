// The first bodies of the functions that are written twice: correct for a pool without sharing
// and without a prefix cache, and enough for the stages before those.
//
//     cc -Wall -Wextra -c learn/simple.c -o build/simple.o
//
// The engine's own functions are renamed here, because they have the same names.

#define PAGED_NO_MAIN
#define block_take final_block_take
#define block_drop final_block_drop
#define seq_append final_seq_append
#include "../paged.cu.c"
#undef block_take
#undef block_drop
#undef seq_append
#pragma GCC diagnostic ignored "-Wunused-function"  // the engine calls its own

// Stage 2. Takes the first free block. The caller has counted: there is one.
static int block_take(Pool *pool)
{
    int block = pool->blocks[pool->config.num_blocks].next;
    INVARIANT(pool->num_free > 0 && block < pool->config.num_blocks, "no free block to take");
    INVARIANT(pool->blocks[block].ref_count == 0, "a block on the free list is in use");
    free_list_remove(pool, block);
    pool->blocks[block].ref_count = 1;
    block_poison(pool, block, 0);
    return block;
}

// Drops one reference; the last one frees the block.
static void block_drop(Pool *pool, int block)
{
    Block *b = &pool->blocks[block];
    INVARIANT(b->ref_count > 0, "a free block is dropped");
    b->ref_count--;
    if (b->ref_count > 0) return;
    block_poison(pool, block, 0);
    free_list_insert_after(pool, pool->config.num_blocks, block);
}

// Stage 3. All blocks are counted before one is taken, so a call that fails changes nothing.
int seq_append(Seq *seq, int n)
{
    if (!seq || n < 0) return PAGED_BAD_ARGUMENT;
    if (n == 0) return PAGED_OK;
    Pool *pool = seq->pool;
    int block_size = pool->config.block_size;
    int64_t length = (int64_t)seq->length + n;
    if (length > (int64_t)pool->config.num_blocks * block_size || length > INT_MAX)
        return PAGED_TOO_LONG;
    int needed = ceil_div(length, block_size) - (int)arrlen(seq->block_table);
    if (needed > pool->num_free) return PAGED_OUT_OF_BLOCKS;

    plan_expire(seq);
    for (int i = 0; i < needed; i++) arrput(seq->block_table, block_take(pool));
    seq->length = (int)length;
    return PAGED_OK;
}
