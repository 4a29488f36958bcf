// 10b (hard): what would a request take?
//
// Before a scheduler lets a request in, it asks whether there is room. With a prefix cache that is
// not ceil(n / block_size): what is found need not be taken, unless it is on the free list, where it
// counts as free. Write blocks_taken(): by how much pool->num_free would fall if a new sequence
// looked up tokens[0] to tokens[n - 1] and then appended the ones not found. It looks, and changes
// nothing: not the order of the free list either, which says what is forgotten first.
//
//     make exercise N=10b

#define PAGED_NO_MAIN
#include "../paged.cu.c"

static int blocks_taken(const Pool *pool, const int *tokens, int n)
{
    (void)tokens;  // your lines
    return ceil_div(n, pool->config.block_size);
}

enum { SIZE = 4, LONGEST = 24, TEXTS = 5, BLOCKS = 20 };

static int text[TEXTS][LONGEST];  // beginnings in common, of different lengths
static Pool *pool;

static int below(int n)
{
    static uint32_t random = 1;
    random = random * 1664525 + 1013904223;
    return (int)((uint64_t)random * n >> 32);
}

static void must(int ok, const char *what)
{
    if (ok) return;
    printf("10b: not yet: %s\n", what);
    exit(1);
}

// Serves a request for real, if there is room, and compares. NULL if there is none.
static Seq *serve(const int *tokens, int n)
{
    static const float zeros[LONGEST];
    static Block before[BLOCKS + 1];
    Seq *seq;
    memcpy(before, pool->blocks, sizeof before);
    int num_free = pool->num_free;
    int taken = blocks_taken(pool, tokens, n);
    must(memcmp(before, pool->blocks, sizeof before) == 0 && pool->num_free == num_free,
         "it changes the pool");
    must(!seq_create(pool, &seq) && !seq_lookup(seq, tokens, n), "seq_lookup() fails");
    int found = seq->length;
    int rest = n - found;
    int error = seq_append(seq, rest);
    if (error ? taken <= num_free : taken != num_free - pool->num_free) {
        printf("10b: not yet: %d tokens, %d of them are found; of %d free blocks, ", n, found,
               num_free);
        if (error)
            printf("too few: expected more, came %d\n", taken);
        else
            printf("expected %d, came %d\n", num_free - pool->num_free, taken);
        exit(1);
    }
    Batch batch = {1, &seq, &rest};
    if (!error) error = pool_plan(pool, &batch);
    if (!error) error = pool_write(pool, 0, zeros, zeros);
    if (!error) error = seq_publish(seq, tokens, n);
    if (!error) return seq;
    seq_release(seq);
    return NULL;
}

int main(void)
{
    PoolConfig config = {1, 1, 1, SIZE, BLOCKS, PAGED_F32, 1, PAGED_CPU};
    Seq *running[6] = {NULL};
    for (int i = 0; i < TEXTS; i++)
        for (int t = 0; t < LONGEST; t++) text[i][t] = t < 5 * i ? t : 100 * i + t;
    must(!pool_create(&config, &pool), "there is no pool");
    for (int i = 0; i < 3000; i++) {
        Seq **seq = &running[below(6)];
        seq_release(*seq);
        *seq = below(3) ? serve(text[below(TEXTS)], 1 + below(LONGEST)) : NULL;
    }
    must(!pool_check(pool), "pool_check() finds something");
    pool_destroy(pool);
    printf("10b: solved\n");
    return 0;
}
