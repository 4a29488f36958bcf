// search.h: every state that a program can reach and, in each of them, every call.
//
// All that the program allocates is in one array, so a copy of the array is a state. make_call()
// asks choose() which call to make, and with which arguments; the search answers with everything in
// turn. The search is breadth first: when a check fails, a shortest way to the failure is printed.

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct World {
    size_t used;
    char memory[1 << 15] __attribute__((aligned(64)));
} world, before, start;  // the state as it is, before the call, and that of the first node

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

enum { CHOICES = 12 };

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

static const char *const *names;  // of the calls; the first choice is one of them

static void print_way(const struct Node *node)
{
    if (node->from) print_way(&nodes[node->from]);
    printf("    %s", names[node->chosen[0]]);
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

static uint64_t visited[1 << 25], hash;

static void add(int x)  // adds a number to the hash of a state
{
    hash = (hash ^ (unsigned)x) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
}

static int is_new(void)
{
    size_t size = sizeof visited / sizeof *visited, i = hash % size;
    while (visited[i] && visited[i] != hash) i = (i + 1) % size;
    if (visited[i]) return 0;
    visited[i] = hash;
    return 1;
}

static void reach(const struct Node *node, int (*make_call)(void))
{
    if (node == nodes) {
        COPY(world, start);
        return;
    }
    reach(&nodes[node->from], make_call);
    COPY(before, world);
    call = *node;
    at = 0;
    make_call();
}

// make_call() returns whether the state may have changed; add_state() adds all of it to the hash.
static void search(int (*make_call)(void), void (*add_state)(void))
{
    signal(SIGABRT, stopped);
    signal(SIGSEGV, stopped);
    COPY(start, world);
    num_nodes = 1;
    for (uint32_t now = 0; now < num_nodes; now++) {
        reach(&nodes[now], make_call);
        COPY(before, world);
        call = (struct Node){.from = now};
        do {
            hash = at = 0;
            int changed = make_call();
            if (changed) add_state();
            if (changed && is_new()) nodes[num_nodes++] = call;
            if (num_nodes == sizeof nodes / sizeof *nodes) puts("too many states"), exit(2);
            COPY(world, before);
            while (call.num > 0 && call.chosen[call.num - 1] == highest[call.num - 1]) call.num--;
            if (call.num > 0) call.chosen[call.num - 1]++;
        } while (call.num > 0);
    }
}
