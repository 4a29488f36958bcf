// util.h: what the examples share. Messages that end the program, strict numbers for options, a
// clock, random numbers. Each example sets `program` first, and includes <getopt.h> for itself.

#ifndef UTIL_H
#define UTIL_H

#include "../paged.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if __has_include("../stb_ds.h")
#include "../stb_ds.h"
#elif __has_include(<stb/stb_ds.h>)
#include <stb/stb_ds.h>
#else
#include <stb_ds.h>
#endif

#define UNUSED __attribute__((unused))  // not every example uses everything here

static const char *program = "paged";

// Prints a message after the name of the program. die() then ends it.
#define note(...) \
    (fprintf(stderr, "%s: ", program), fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\n"))
#define die(status, ...) (note(__VA_ARGS__), exit(status))

UNUSED static void must(int error, const char *what)
{
    if (error) die(1, "%s: %s", what, paged_error(error));
}

// Makes the n blocks of `order` the first that a new pool, of at most 16 blocks, hands out. What is
// released last comes first: so a sequence takes each block, and those of `order` come last.
UNUSED static void order_free_list(Pool *pool, int n, const int *order)
{
    Seq *owners[16], *first[16];
    for (int b = 0; b < pool->config.num_blocks; b++) {
        must(seq_create(pool, &owners[b]), "seq_create");
        must(seq_append(owners[b], 1), "seq_append");
    }
    for (int i = 0; i < n; i++) {
        first[i] = owners[order[i]];
        owners[order[i]] = NULL;
    }
    for (int b = pool->config.num_blocks - 1; b >= 0; b--) seq_release(owners[b]);
    for (int i = n - 1; i >= 0; i--) seq_release(first[i]);
}

// A program whose output could not be written has failed. Returns the exit status for main().
UNUSED static int finish_output(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fprintf(stderr, "%s: cannot write the output: %s\n", program, strerror(errno));
    return 1;
}

// The whole text as a number in [min, max], in decimal, without spaces; anything else is refused
// with the name of the option and exit status 2.
UNUSED static int64_t parse_int(const char *option, const char *text, int64_t min, int64_t max)
{
    const char *digits = text + (text[0] == '-');
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (!*digits || strspn(digits, "0123456789") != strlen(digits) || errno || value < min ||
        value > max)
        die(2, "%s takes a whole number from %lld to %lld, not '%s'", option, (long long)min,
            (long long)max, text);
    return value;
}

UNUSED static double parse_double(const char *option, const char *text, double min, double max)
{
    char *end;
    double value = strtod(text, &end);
    if (!strchr("0123456789.", text[0]) || *end || end == text || !(value >= min && value <= max) ||
        strpbrk(text, "xX"))
        die(2, "%s takes a number from %g to %g, not '%s'", option, min, max, text);
    return value;
}

// The index of `text` in `names`, a list that ends with NULL.
UNUSED static int parse_choice(const char *option, const char *text, const char *const *names)
{
    int i = 0;
    while (names[i] && strcmp(text, names[i]) != 0) i++;
    if (!names[i]) die(2, "%s: unknown value '%s'; see --help", option, text);
    return i;
}

UNUSED static double now(void)  // seconds, of a clock that never goes back
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

UNUSED static uint64_t random_bits(uint64_t *state)  // splitmix64, Steele et al. 2014
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

UNUSED static double random_uniform(uint64_t *state)  // in [0, 1)
{
    return (random_bits(state) >> 11) * 0x1p-53;
}

#endif
