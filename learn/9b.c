// 9b (hard): a draft that is a tree.
//
// A draft may be a tree: several guesses at what comes next, each a branch of K tokens. Write
// grow_best(): fork a branch off *seq for each of the guesses, as many as the pool has room for,
// and append its K tokens to it with grow(). No branch is released before the last one is in.
// Then keep the branch with the most right tokens (of equals the first), drop its wrong ones, and
// release all others. *seq becomes the kept branch; if not even one branch fits, it stays as it is.
// Return the number of right tokens. truth[i] is what the model says at position i after the old
// end.
//
//     make exercise N=9b

#define EXERCISE "9b"
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
    int used = num_blocks - pool->num_free;
    int ok = got == best && seq->length == 6 + best && arrlen(pool->seqs) == 1 &&
             used == (6 + best + 3) / 4 && !pool_check(pool) && !seq_gather(seq, 0, k, v);
    for (int t = 0; ok && t < seq->length; t++) ok = k[t] == (float)(t + 1) && v[t] == k[t];
    if (!ok)
        not_yet("a pool of %d blocks, right tokens %d %d %d %d: expected %d right; got %d, %d\n"
                "tokens in %d blocks, %d sequences, or K and V of others",
                num_blocks, right[0], right[1], right[2], right[3], best, got, seq->length, used,
                (int)arrlen(pool->seqs));
    pool_destroy(pool);
}

int main(void)
{
    static const int right[3][BRANCHES] = {{1, 4, 2, 4}, {0, 0, 0, 0}, {5, 0, 5, 1}};
    static const int best[3] = {4, 0, 5};
    static const int last[BRANCHES] = {0, 1, 2, 5};
    for (int i = 0; i < 3; i++) try_tree(20, right[i], best[i]);
    // A branch takes 2 blocks; with 2 + 2 blocks there is room for the first one, and so on.
    for (int fit = 0; fit <= BRANCHES; fit++)
        try_tree(2 + 2 * fit, last, fit > 0 ? last[fit - 1] : 0);
    return solved("");
}
