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
    if (!error) return seq;
    printf("3a: not yet: %s\n", paged_error(error));
    exit(1);
}

int main(void)
{
    PoolConfig config = {2, 2, 8, 16, 12, PAGED_F32, 0, PAGED_CPU};
    Pool *pool;
    if (pool_create(&config, &pool)) return 1;
    Seq *a = new_seq(pool, 40);
    Seq *b = new_seq(pool, 20);
    seq_release(a);
    seq_release(b);
    Seq *c = new_seq(pool, 70);
    int block = c->block_table[69 / 16];
    long element = (long)kv_offset(&config, 1, block, 1, 69 % 16);
    pool_destroy(pool);
    if (BLOCK != block) {
        printf("3a: not yet: BLOCK is too %s\n", BLOCK < block ? "small" : "large");
        return 1;
    }
    if (ELEMENT != element) {
        printf("3a: not yet: ELEMENT is too %s\n", ELEMENT < element ? "small" : "large");
        return 1;
    }
    printf("3a: solved: the free list is 3 4 0 1 2 5 6 ..., as B was released last, and\n"
           "each from its last block to its first; token 69 is in entry 4, slot 5: (((1\n"
           "* 12 + %d) * 2 + 1) * 16 + 5) * 8 = %ld\n",
           block, element);
    return 0;
}
