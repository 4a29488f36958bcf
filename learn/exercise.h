// Shared by the exercises, which begin with
//
//     #define EXERCISE "6a"
//     #include "exercise.h"
//
// An exercise ends at the first mistake, with "6a: not yet: ..." and exit status 1, or with
// "6a: solved" and 0. Status 2: it needs the stand-in, and there is none. new_pool() creates a
// float32 pool on the CPU, with poison.

#define PAGED_NO_MAIN
#ifdef ENGINE
#include ENGINE
#define YOURS ENGINE
#else
#include "../paged.cu.c"
#define YOURS "my-" EXERCISE ".c"
#endif

__attribute__((noreturn, format(printf, 1, 2))) static inline void not_yet(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf(EXERCISE ": not yet: ");
    vprintf(format, arguments);
    printf("\nThe task is at the top of learn/" EXERCISE ".c. Your code goes into learn/" YOURS
           ".\n");
    exit(1);
}

// Prints an explanation and returns the exit status.
static inline int solved(const char *why)
{
    printf(EXERCISE ": solved\n%s", why);
    return 0;
}

static inline void check(int ok, const char *what)
{
    if (!ok) not_yet("%s", what);
}

// For calls that cannot fail, unless the engine was changed.
static inline void must(int error)
{
    if (error) not_yet("a call of the engine fails: %s", paged_error(error));
}

static inline Pool *new_pool_of(PoolConfig config)
{
    Pool *pool;
    if (!device_exists(config.device)) {
        printf("This build has no stand-in for a GPU, which needs x86-64 or AArch64.\n");
        exit(2);
    }
    must(pool_create(&config, &pool));
    return pool;
}

static inline Pool *new_pool(int layers, int heads, int dim, int block_size, int blocks)
{
    PoolConfig config = {layers, heads, dim, block_size, blocks, PAGED_F32, 1, PAGED_CPU};
    return new_pool_of(config);
}

static inline Seq *new_seq(Pool *pool, int length)
{
    Seq *seq;
    must(seq_create(pool, &seq));
    must(seq_append(seq, length));
    return seq;
}

// Makes the newest n tokens of a sequence the batch of the next calls.
static inline void plan(Seq *seq, int n)
{
    Batch batch = {1, &seq, &n};
    must(pool_plan(seq->pool, &batch));
}

// Writes K and V of the newest n tokens, in a pool of one layer.
static inline void compute(Seq *seq, int n, const float *k, const float *v)
{
    plan(seq, n);
    must(pool_write(seq->pool, 0, k, v));
}

static uint32_t random_state = 1;

// Fills an array with pseudo-random numbers in [-size, size], the same in every run.
static inline void randomize(float *x, int n, float size)
{
    for (int i = 0; i < n; i++) {
        random_state = random_state * 1664525 + 1013904223;
        x[i] = size * (float)((int)(random_state >> 8) % 20001 - 10000) / 10000;
    }
}

// The oracle's attention of the newest `rows` of n tokens, in layer 0, with scale 1.
static inline void oracle_says(const PoolConfig *config, int n, const float *k, const float *v,
                               int rows, int heads, const float *q, float *out)
{
    Oracle *oracle = oracle_create(config, n);
    oracle->length = n;
    oracle_write(oracle, 0, n, k, v);
    oracle_attend(oracle, 0, rows, heads, 1, q, out, NULL);
    oracle_release(oracle);
}

// Compares two arrays of [rows][heads][dim].
static inline void compare(const char *what, int rows, int heads, int dim, double tolerance,
                           const float *expected, const float *got)
{
    for (int i = 0; i < rows * heads * dim; i++)
        if (expected[i] != got[i] && !(fabs(expected[i] - got[i]) <= tolerance))
            not_yet("%s: query token %d, query head %d, element %d: expected %.6f, got %.6f", what,
                    i / (heads * dim), i / dim % heads, i % dim, expected[i], got[i]);
}
