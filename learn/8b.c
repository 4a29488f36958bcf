// 8b (hard): let the engine report what it wastes.
//
// "43.8 % in use" in the first line of pool_dump() counts blocks. Extend that line by the number of
// slots of these blocks in which no sequence has a token: "..., 43.8 % in use, 27 slots unfilled".
// Sequences that share a block may have different lengths. Count each block once, free ones never.
//
//     make exercise N=8b

#define EXERCISE "8b"
#include "exercise.h"

static void check_line(const Pool *pool, int unfilled)
{
    char line[200] = "";
    char expected[40];
    FILE *file = fmemopen(line, sizeof line, "w");
    must(file ? PAGED_OK : PAGED_OUT_OF_MEMORY);
    pool_dump(pool, file);
    fclose(file);
    line[strcspn(line, "\n")] = 0;
    snprintf(expected, sizeof expected, " %% in use, %d slots unfilled", unfilled);
    const char *end = strstr(line, " % in use");
    if (!end || strcmp(end, expected) != 0)
        not_yet("expected a line that ends with \"%s\", got:\n%s", expected, line);
}

int main(void)
{
    Pool *pool = new_pool(1, 1, 1, 8, 64);
    Seq *b, *c;
    check_line(pool, 0);
    Seq *a = new_seq(pool, 13);
    check_line(pool, 3);
    must(seq_fork(a, 10, &b));
    check_line(pool, 3);  // the parent is longer, so its slots count
    must(seq_rewind(a, 2));
    check_line(pool, 5);
    must(seq_append(b, 2));  // gets a copy of the second block
    check_line(pool, 5 + 4);
    must(seq_fork(b, 4, &c));
    check_line(pool, 5 + 4);
    seq_release(a);
    check_line(pool, 4);
    must(seq_rewind(b, 4));
    check_line(pool, 0);
    seq_release(b);
    check_line(pool, 4);
    must(seq_append(c, 20));
    check_line(pool, 0);
    pool_destroy(pool);
    return solved("In a shared block, the sequence that reaches furthest determines the count.\n");
}
