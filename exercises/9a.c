// 9a: three numbers to be predicted.
//
// Blocks have 4 tokens. A has 10 tokens in the cache, and B is a fork of all of A. Then A
// speculates, three rounds: each appends the newest token and 4 guesses, and drops the wrong
// guesses when the model has said which these are: 2 guesses are right in the first round, none in
// the second, all in the third. In the second round, C is forked off A while all guesses are in it,
// and B and C do nothing ever after. How many tokens of A are in the cache at the end? How many
// blocks are in use, all three together, and how many were copied on the way? Write down the
// numbers, then run this.
//
//     make exercise N=9a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define LENGTH 0  // your number
#define BLOCKS 0  // your number
#define COPIES 0  // your number

enum { GUESSES = 4, ROUNDS = 3 };

static void must(int error)
{
    if (!error) return;
    printf("9a: not yet: %s\n", paged_error(error));
    exit(1);
}

static int differs(const char *name, int answer, int right)
{
    if (answer == right) return 0;
    printf("9a: not yet: %s is too %s\n", name, answer < right ? "small" : "large");
    return 1;
}

int main(void)
{
    static const int right[ROUNDS] = {2, 0, 4};
    PoolConfig config = {1, 1, 1, 4, 20, PAGED_F32, 0, PAGED_CPU};
    Pool *pool;
    Seq *a, *b, *c;
    must(pool_create(&config, &pool));
    must(seq_create(pool, &a));
    must(seq_append(a, 10));
    must(seq_fork(a, 10, &b));
    for (int round = 0; round < ROUNDS; round++) {
        must(seq_append(a, 1 + GUESSES));
        if (round == 1) must(seq_fork(a, a->length, &c));
        must(seq_rewind(a, GUESSES - right[round]));
    }
    int length = a->length;
    int blocks = config.num_blocks - pool->num_free;
    int copies = (int)pool->num_copies;
    pool_destroy(pool);
    int wrong = differs("LENGTH", LENGTH, length) + differs("BLOCKS", BLOCKS, blocks) +
                differs("COPIES", COPIES, copies);
    if (!wrong)
        printf("9a: solved: 10 + (1 + 2) + (1 + 0) + (1 + 4) = %d tokens. Of logical block\n"
               "  0, 1  (tokens 0 to 7) there is one, shared by all\n"
               "  2     A appended to what it shared with B, and got a copy, now shared with C\n"
               "  3     rewound to 14 tokens, A shared it with C, and the next append copied it\n"
               "  4     A gave it up in round 2, C kept it; A took another one in round 3\n"
               "so 2 + 2 + 2 + 2 = %d blocks, and %d copies, both made by an append\n",
               length, blocks, copies);
    return wrong > 0;
}
