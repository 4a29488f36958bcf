// 9a (hard): a draft that is a tree.
//
// A draft may be a tree: several guesses at what comes next, each a branch of K tokens. Write
// grow_best(). For each guess, fork a branch off *seq and append the K tokens with grow(), for as
// many guesses as the pool has room; release no branch before the last one is in. Then keep the
// branch with the most right tokens (any of them, if several are equally good), rewind its wrong
// tokens and release all other sequences. *seq becomes the branch that is kept, or stays as it is
// if not even one branch fits. Return the number of right tokens. truth[i] is the model's token at
// position i after the old end.
//
//     make exercise N=9a

#define EXERCISE "9a"
#include "exercise.h"

enum { K = 5, BRANCHES = 4 };

// Appends n tokens, with their numbers as K and V. An error of seq_append() changes nothing.
static int grow(Seq *seq, const int *tokens, int n)
{
    float x[32];
    int error = seq_append(seq, n);
    for (int i = 0; i < n; i++) x[i] = (float)tokens[i];
    if (!error) compute(seq, n, x, x);
    return error;
}

static int grow_best(Seq **seq, const int guesses[BRANCHES][K], const int *truth)
{
    (void)seq, (void)guesses, (void)truth, (void)grow;  // your lines
    return -1;
}

// A prompt of 6 tokens in a pool of num_blocks blocks of 4; branch b has right[b] right tokens, and
// `best` of them must be left.
static void try_tree(int num_blocks, const int *right, int best)
{
    int prompt[6] = {1, 2, 3, 4, 5, 6};
    int truth[K] = {7, 8, 9, 10, 11};
    int guesses[BRANCHES][K];
    float k[32], v[32];
    Pool *pool = new_pool(1, 1, 1, 4, num_blocks);
    Seq *seq = new_seq(pool, 0);
    for (int b = 0; b < BRANCHES; b++)
        for (int i = 0; i < K; i++) guesses[b][i] = i == right[b] ? 99 : truth[i];
    must(grow(seq, prompt, 6));
    int got = grow_best(&seq, guesses, truth);
    const int expected[] = {best, 6 + best, (6 + best + 3) / 4, 1};
    const int found[] = {got, seq->length, num_blocks - pool->num_free, (int)arrlen(pool->seqs)};
    static const char *const what[] = {"right tokens", "tokens", "blocks in use", "sequences"};
    for (int i = 0; i < 4; i++)
        if (found[i] != expected[i])
            not_yet("%d blocks, branches with %d %d %d %d right tokens: %s: expected %d, got %d",
                    num_blocks, right[0], right[1], right[2], right[3], what[i], expected[i],
                    found[i]);
    check(!pool_check(pool) && !seq_gather(seq, 0, k, v), "the pool is broken");
    for (int t = 0; t < seq->length; t++)
        check(k[t] == (float)(t + 1) && v[t] == k[t], "*seq holds K and V of another branch");
    pool_destroy(pool);
}

int main(void)
{
    static const int right[3][BRANCHES] = {{1, 4, 2, 4}, {0, 0, 0, 0}, {5, 0, 5, 1}};
    static const int best[3] = {4, 0, 5};
    static const int last[BRANCHES] = {0, 1, 2, 5};
    for (int i = 0; i < 3; i++) try_tree(20, right[i], best[i]);
    // A branch takes 2 blocks, so 2 + 2 blocks have room for one branch, and so on.
    for (int fit = 0; fit <= BRANCHES; fit++)
        try_tree(2 + 2 * fit, last, fit > 0 ? last[fit - 1] : 0);
    return solved("");
}
