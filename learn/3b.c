// 3b (hard): how large a pool fits?
//
// When a server starts, it has to know how many blocks it can afford. Write largest_pool(): it
// returns the largest num_blocks for which pool_create() allocates at most `budget` bytes in all,
// or 0 if not even one block fits; it ignores config->num_blocks. A pool allocates more than K and
// V: the records of the blocks, one for the head, and two arrays for the prefix cache. Read
// pool_create(), and memory_create(), which rounds bytes up. No product may overflow, however large
// the budget is.
//
//     make exercise N=3b

#include <stdlib.h>
static size_t asked;  // bytes that the engine has allocated
static void *count_calloc(size_t n, size_t bytes) { return asked += n * bytes, calloc(n, bytes); }
static void *count_aligned(size_t unit, size_t n) { return asked += n, aligned_alloc(unit, n); }
#define aligned_alloc(unit, bytes) count_aligned(unit, bytes)
#define calloc(n, bytes) count_calloc(n, bytes)
#define EXERCISE "3b"
#include "exercise.h"

static int largest_pool(const PoolConfig *config, size_t budget)
{
    return (int)(budget / pool_bytes_per_block(config));
}

static size_t cost(PoolConfig config, int num_blocks)
{
    Pool *pool;
    config.num_blocks = num_blocks;
    asked = 0;
    if (pool_create(&config, &pool) != PAGED_OK) return SIZE_MAX;
    size_t bytes = asked;
    pool_destroy(pool);
    return bytes;
}

static void try_budget(PoolConfig config, size_t budget)
{
    int n = largest_pool(&config, budget);
    if (n < 0 || (n > 0 && cost(config, n) > budget))
        not_yet("budget %zu: you say num_blocks %d, which takes %zu bytes (block_size %d)", budget,
                n, cost(config, n), config.block_size);
    if (cost(config, n + 1) <= budget)
        not_yet("budget %zu: you say num_blocks %d, but %d takes only %zu bytes (block_size %d)",
                budget, n, n + 1, cost(config, n + 1), config.block_size);
}

int main(void)
{
    PoolConfig small = {1, 1, 1, 1, 1, PAGED_F16, 0, PAGED_CPU};
    PoolConfig large = {4, 8, 128, 16, 7, PAGED_F32, 0, PAGED_CPU};
    PoolConfig huge = {2000000, 30000, 256, 2000000, 1, PAGED_F32, 0, PAGED_CPU};
    for (size_t budget = 0; budget < 3000; budget++) try_budget(small, budget);
    for (size_t budget = 0; budget < 30000000; budget += 99991) {
        try_budget(large, budget);
        try_budget(small, budget);
    }
    // num_blocks is an int, and a single block may be larger than the memory of any machine.
    int huge_blocks = largest_pool(&huge, SIZE_MAX);
    int small_blocks = largest_pool(&small, SIZE_MAX);
    if (huge_blocks != 0 || small_blocks != INT_MAX)
        not_yet("budget SIZE_MAX: expected 0 huge and %d small blocks, got %d and %d", INT_MAX,
                huge_blocks, small_blocks);
    return solved("Bytes grow with num_blocks, so a binary search finds the largest number.\n");
}
