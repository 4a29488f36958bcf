// 9a: the end of a round of speculative decoding.
//
// The newest token and k guesses were appended to the sequence, and the model has said which token
// follows each of these k + 1: model[0] is what follows the newest token, model[1] what follows
// guesses[0], and so on. Write verify(): it finds how many leading guesses are right, drops K and V
// of the others, and returns how many tokens the round gained: the right guesses, and the model's
// own token after them.
//
//     make exercise N=9a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

static int verify(Seq *seq, const int *guesses, int k, const int *model)
{
    (void)seq, (void)guesses, (void)k, (void)model;  // your lines
    return 0;
}

// One round, in which `bits` says which of the guesses are those of the model.
static int round_is_right(Pool *pool, int k, int bits)
{
    Seq *seq;
    int guesses[8], model[9];
    int right = 0;
    for (int i = 0; i <= k; i++) model[i] = 10 * i + 7;
    for (int i = 0; i < k; i++) guesses[i] = bits >> i & 1 ? model[i] : model[i] + 1;
    while (right < k && bits >> right & 1) right++;
    if (seq_create(pool, &seq) || seq_append(seq, 6) || seq_append(seq, 1 + k)) return 0;
    int gained = verify(seq, guesses, k, model);
    int ok = gained == right + 1 && seq->length == 7 + right && !pool_check(pool);
    if (!ok)
        printf("9a: not yet: 6 tokens, the newest, and %d guesses, of which %d are right: expected "
               "%d\n"
               "tokens gained and %d in the cache, came %d and %d\n",
               k, right, right + 1, 7 + right, gained, seq->length);
    seq_release(seq);
    return ok;
}

int main(void)
{
    PoolConfig config = {1, 1, 8, 4, 8, PAGED_F32, 1, PAGED_CPU};
    Pool *pool;
    if (pool_create(&config, &pool)) return 1;
    for (int k = 0; k <= 8; k++)
        for (int bits = 0; bits < 1 << k; bits++)
            if (!round_is_right(pool, k, bits)) return 1;
    pool_destroy(pool);
    printf("9a: solved\n");
    return 0;
}
