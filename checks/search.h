// search.h: every state that a small pool can reach and, in each of them, every call.
//
// All that the engine allocates is in one array, so a copy of it is a state. make_call() asks
// choose() which of calls[] to make, and with which arguments; the search answers with everything
// in turn. It is breadth first: when a check fails, a shortest way to the failure is printed.

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct World {
    size_t used;
    char memory[1 << 15] __attribute__((aligned(64)));
} world, before, empty;  // the state now, before the call, and of the empty pool

#define COPY(to, from) memcpy(&to, &from, offsetof(struct World, memory) + from.used)
#define BEFORE(p) ((__typeof__(p))((char *)(p) + (before.memory - world.memory)))

static void *allocate(size_t size)  // memory is never used again, so no address has two meanings
{
    char *p = world.memory + world.used;
    if (size > sizeof world.memory / 2 || world.used > sizeof world.memory / 2) abort();
    world.used += (size + 15) / 16 * 16;
    return memset(p, 0, size);
}

#define calloc(n, size) allocate((n) * (size))
#define aligned_alloc(unit, size) allocate(size)
#define realloc(p, size) memmove(allocate(size), p, (p) ? (size) : 0)
#define free(p) (void)(p)
#define PAGED_NO_MAIN
#include "../paged.cu.c"

enum { LAYERS = 2, BLOCKS = 4, SEQS = 3, TOKENS = 12, ROWS = 36, CHOICES = 12 };  // at most
static int num_blocks, block_size, max_seqs;
static Pool *pool;

static struct Node {  // a state: the one that it was reached from, and what was chosen there
    uint32_t from;
    short num, chosen[CHOICES];
} nodes[1 << 24], call;
static size_t num_nodes, num_calls;
static int at, highest[CHOICES];  // of the choice that comes next

static int choose(int low, int high)
{
    if (at == call.num) call.chosen[call.num++] = low;
    highest[at] = high;
    return call.chosen[at++];
}

static void print_way(const struct Node *node)
{
    if (node->from) print_way(&nodes[node->from]);
    printf("    %s", calls[node->chosen[0]]);
    for (int i = 1; i < node->num; i++) printf(" %d", node->chosen[i]);
    printf("\n");
}

static void check(int ok, const char *what)
{
    if (ok) return;
    printf("FAIL  %s, after these calls:\n", what);
    print_way(&call);
    printf("0 passed, 1 failed, 0 skipped\n");
    fflush(stdout);
    _Exit(1);
}

static void stopped(int signal) { check(0, signal == SIGABRT ? "a panic" : "a crash"); }

// After a refused call, only the numbers of batches, and memory before the pool, may differ.
static int refused(void)
{
    BEFORE(pool)->batch_number = pool->batch_number;
    for (int i = 0; i < arrlen(pool->seqs); i++)
        BEFORE(pool->seqs[i])->batch_number = pool->seqs[i]->batch_number;
    size_t size = before.used - ((char *)pool - world.memory);
    check(!memcmp(pool, BEFORE(pool), size), "a refused call changes no byte");
    return 0;
}

static uint64_t visited[1 << 25], hash;

static void add(int x)  // adds a number to the hash of a state
{
    hash = (hash ^ (unsigned)x) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
}

static float stored_k(int block, int layer, int slot)
{
    return ((float *)pool->k)[kv_offset(&pool->config, layer, block, 0, slot)];
}

// States that differ only in the names of blocks, or in the size of serials, count as one. Blocks
// are named in the order in which the tables, and then the free list, lead to them.
static int name[BLOCKS], num_names;

static void add_block(int block)
{
    const Block *b = &pool->blocks[block];
    int met = name[block];
    if (!met) name[block] = ++num_names;
    add(name[block]);
    if (met) return;
    for (int i = 0; i < LAYERS * block_size; i++) {
        float k = stored_k(block, i / block_size, i % block_size);
        add(isnan(k) ? -1 : (int)k);
    }
    int published = b->serial ? 1 : 0;
    if (b->parent) published = 2;
    add(published);
    for (int i = 0; i < num_blocks && b->parent; i++) {
        if (pool->blocks[i].serial != b->parent) continue;
        add(-1);
        add_block(i);
    }
}

static void add_pool(void)
{
    memset(name, 0, sizeof name);
    num_names = 0;
    for (int i = 0; i < arrlen(pool->seqs); i++) {
        const Seq *seq = pool->seqs[i];
        add(seq->length);
        add(seq->num_computed_tokens);
        for (int e = 0; e < arrlen(seq->block_table); e++) add_block(seq->block_table[e]);
    }
    add(-1);
    const Block *blocks = pool->blocks;
    for (int b = blocks[num_blocks].next; b != num_blocks; b = blocks[b].next) add_block(b);
}

static int is_new(void (*add_plan)(void))
{
    hash = UINT64_MAX;
    add_plan();
    add_pool();
    size_t size = sizeof visited / sizeof *visited, i = hash % size;
    while (visited[i] && visited[i] != hash) i = (i + 1) % size;
    if (visited[i]) return 0;
    visited[i] = hash;
    return 1;
}

static void reach(const struct Node *node, int (*make_call)(void))
{
    if (node == nodes) {
        COPY(world, empty);
        return;
    }
    reach(&nodes[node->from], make_call);
    COPY(before, world);
    call = *node;
    at = 0;
    make_call();
}

// make_call() returns whether the state may have changed. add_plan() adds to the hash what is part
// of the state but not to be seen in the pool.
static int search(int argc, char **argv, int (*make_call)(void), void (*add_plan)(void))
{
    if (argc != 4) return fprintf(stderr, "usage: states BLOCKS BLOCK_SIZE SEQUENCES\n"), 2;
    num_blocks = atoi(argv[1]);
    block_size = atoi(argv[2]);
    max_seqs = atoi(argv[3]);
    if (num_blocks > BLOCKS || num_blocks * block_size >= TOKENS || max_seqs > SEQS)
        return fprintf(stderr, "states: at most 4 blocks, 11 slots, 3 sequences\n"), 2;
    PoolConfig config = {LAYERS, 1, 1, block_size, num_blocks, PAGED_F32, 1, PAGED_CPU};
    if (pool_create(&config, &pool)) return fprintf(stderr, "states: no such pool\n"), 2;
    pool->num_buckets = 1;                                // all published blocks are in one list
    pool->batch_number = pool->last_serial = UINT32_MAX;  // the next ones need 64 bits
    signal(SIGABRT, stopped);
    signal(SIGSEGV, stopped);
    COPY(empty, world);
    num_nodes = is_new(add_plan);  // the empty pool, which a release may reach again
    for (uint32_t now = 0; now < num_nodes; now++) {
        reach(&nodes[now], make_call);
        COPY(before, world);
        call = (struct Node){.from = now};
        do {
            at = 0;
            int changed = make_call();
            if (changed && is_new(add_plan)) nodes[num_nodes++] = call;
            if (num_nodes == sizeof nodes / sizeof *nodes) return puts("too many states"), 2;
            COPY(world, before);
            while (call.num > 0 && call.chosen[call.num - 1] == highest[call.num - 1]) call.num--;
            if (call.num > 0) call.chosen[call.num - 1]++;
        } while (call.num > 0);
    }
    printf("%d blocks of %d tokens, %d sequences: %zu states, %zu calls\n", num_blocks, block_size,
           max_seqs, num_nodes, num_calls);
    printf("1 passed, 0 failed, 0 skipped\n");
    return 0;
}
