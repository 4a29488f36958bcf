// 3a: two numbers to be predicted.
//
// A new pool has 12 blocks of 16 tokens; the model has 2 layers, 2 KV heads and vectors of 8
// elements. Sequence A gets 40 tokens, B gets 20. A is released, then B. C gets 70 tokens. In which
// block is its token 69 (the last), and which element of the plane of K is the first one of that
// token's key, in layer 1, for KV head 1? Write down both, then run this.
//
//     make exercise N=3a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define BLOCK -1    // your number
#define ELEMENT -1  // your number

static Seq *new_seq(Pool *pool, int n)
{
    Seq *seq;
    int error = seq_create(pool, &seq);
    if (!error) error = seq_append(seq, n);
    if (error) printf("3a: not yet: %s\n", paged_error(error));
    if (error) exit(1);
    return seq;
}

int main(void)
{
    PoolConfig config = {2, 2, 8, 16, 12, PAGED_F32, 0, PAGED_CPU};
    Pool *pool;
    if (pool_create(&config, &pool)) return 1;
    Seq *a = new_seq(pool, 40), *b = new_seq(pool, 20);
    seq_release(a);
    seq_release(b);
    Seq *c = new_seq(pool, 70);
    int block = c->block_table[69 / 16];
    long element = (long)kv_offset(&config, 1, block, 1, 69 % 16);
    pool_destroy(pool);
    if (BLOCK != block) {
        printf("3a: not yet: BLOCK is another one\n");
        return 1;
    }
    if (ELEMENT != element) {
        printf("3a: not yet: ELEMENT is too %s\n", ELEMENT < element ? "small" : "large");
        return 1;
    }
    printf("3a: solved\n");
    return 0;
}
