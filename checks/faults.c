// faults: what the engine does when it gets no memory, or no block. A fixed run of the random calls
// of fuzz_api.c is made again and again. The first time its first allocation fails, the next time
// its second, until one run goes through; and then with a pool that is one block too small, two
// blocks too small, and so on, down to one block. Each failure must be reported, must leave every
// byte as it was, and the call must succeed when it is repeated. The run goes on, and ends with all
// blocks free.
//
//     cc -O1 -g checks/faults.c -o faults -lm && ./faults

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long num_allocations;
static long failing = -1;   // which of them fails; -1: none
static long num_faults[2];  // of records on the host, of memory where the pool is
static int armed, taken;

static int fault(const char *function)
{
    if (!armed || num_allocations++ != failing) return 0;
    num_faults[strcmp(function, "memory_create") == 0]++;
    return taken = 1;
}

static int fault_taken(void)
{
    int was = taken;
    taken = 0;
    return was;
}

#define aligned_alloc(alignment, size) (fault(__func__) ? NULL : aligned_alloc(alignment, size))
#define calloc(count, size) (fault(__func__) ? NULL : calloc(count, size))
#define ARM(on) (armed = (on))
#define FAULTS
#define NO_TARGET
#include "fuzz_api.c"
#undef aligned_alloc
#undef calloc

enum { NUM_BLOCKS = 16 };

// One run. Returns the most blocks that were in use.
static int run_calls(PoolConfig config, int num_calls, uint64_t seed)
{
    int peak = 0;
    endless = &seed;
    num_allocations = 0;
    make_pool(config);
    for (int i = 0; i < num_calls; i++) {
        one_call();
        if (peak < config.num_blocks - pool->num_free) peak = config.num_blocks - pool->num_free;
    }
    end_pool();
    return peak;
}

static long starve(PoolConfig config, int num_calls, uint64_t seed)
{
    for (failing = 0;; failing++) {
        run_calls(config, num_calls, seed);
        if (num_allocations <= failing) break;
    }
    long number = failing;
    failing = -1;
    return number;
}

int main(void)
{
    long passed = 0;
    for (int i = 0; i < 6; i++) {
        int device = i < 3 ? PAGED_CPU : PAGED_STANDIN;
        int calls = i < 3 ? 80 : 24;
        PoolConfig config = {2, 1, 4, 3 + i % 3, NUM_BLOCKS, i % 3, 1, device};
        long allocations = starve(config, calls, 1 + (uint64_t)i);
        CHECK(allocations > calls / 4 && num_faults[0] > 0 && num_faults[1] > 0);
        passed += allocations;
    }
    printf("allocations that failed: %ld of records on the host, %ld where K and V are\n",
           num_faults[0], num_faults[1]);

    long before = num_results[PAGED_OUT_OF_BLOCKS] + num_results[PAGED_TOO_LONG];
    for (uint64_t seed = 1; seed <= 10; seed++) {
        PoolConfig config = {1, 2, 4, 1 + (int)seed % 5, 380, PAGED_F32, 1, PAGED_CPU};
        config.num_blocks /= config.block_size;
        for (int blocks = run_calls(config, 60, seed) - 1; blocks > 0; blocks--, passed++) {
            config.num_blocks = blocks;
            run_calls(config, 60, seed);
        }
    }
    long short_of = num_results[PAGED_OUT_OF_BLOCKS] + num_results[PAGED_TOO_LONG] - before;
    CHECK(short_of > 0 && num_stale > 0);
    printf("blocks: %ld calls found too few, or a sequence longer than the pool\n", short_of);
    printf("%ld passed, 0 failed, 0 skipped\n", passed);
    return 0;
}
