// 8b (hard): let the engine say what it wastes.
//
// "43.8 % in use" in the first line of pool_dump() counts blocks. Extend that line by the slots of
// these blocks in which no sequence has a token: "..., 43.8 % in use, 27 slots unfilled". Sequences
// that share a block may have different lengths; the block counts once. Free blocks do not count.
//
//     make exercise N=8b

#define EXERCISE "8b"
#include "exercise.h"

static void grow(Seq *seq, int n)
{
    float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    must(seq_append(seq, n));
    compute(seq, n, ones, ones);
}

// With poison, a slot of a used block that no sequence has written is NaN. (Not so a slot that was
// written and given up in a shared block: such cases are counted by hand, at the end of main().)
static int count_nan(const Pool *pool)
{
    int count = 0;
    for (int block = 0; block < pool->config.num_blocks; block++)
        for (int slot = 0; slot < pool->config.block_size; slot++)
            if (pool->blocks[block].ref_count > 0)
                count += isnan(((float *)pool->k)[kv_offset(&pool->config, 0, block, 0, slot)]);
    return count;
}

static void check_line(const Pool *pool, int unfilled)
{
    char line[200] = "";
    char expected[40];
    FILE *file = tmpfile();
    must(file ? PAGED_OK : PAGED_OUT_OF_MEMORY);
    pool_dump(pool, file);
    rewind(file);
    if (!fgets(line, sizeof line, file)) line[0] = 0;
    fclose(file);
    snprintf(expected, sizeof expected, " %% in use, %d slots unfilled\n", unfilled);
    const char *end = strstr(line, " % in use");
    if (!end || strcmp(end, expected) != 0)
        not_yet("expected at the end \"%.*s\", got:\n%s", (int)strlen(expected) - 1, expected,
                line);
}

int main(void)
{
    Pool *pool = new_pool(1, 1, 1, 8, 64);
    Seq *seqs[6] = {NULL};
    Seq *b;
    check_line(pool, 0);
    for (int i = 0; i < 1000; i++) {  // at most 6 sequences of at most 80 tokens
        Seq **seq = &seqs[below(6)];
        Seq *other = seqs[below(6)];
        if (*seq && ((*seq)->length > 64 || below(6) == 0)) {
            seq_release(*seq);
            *seq = NULL;
        } else if (!*seq && other && below(2)) {
            must(seq_fork(other, other->length, seq));
        } else if (!*seq) {
            *seq = new_seq(pool, 0);
        } else {
            grow(*seq, below(17));
        }
        if (below(4) == 0 || i < 10) check_line(pool, count_nan(pool));
    }
    pool_destroy(pool);
    pool = new_pool(1, 1, 1, 8, 64);
    Seq *a = new_seq(pool, 0);
    grow(a, 13);
    must(seq_fork(a, 10, &b));
    check_line(pool, 3);  // those of the parent, which is longer, count
    must(seq_rewind(a, 2));
    check_line(pool, 5);
    seq_release(a);
    check_line(pool, 6);
    pool_destroy(pool);
    printf(EXERCISE
           ": solved: of a shared block, the slots count that its longest user has filled\n");
    return 0;
}
