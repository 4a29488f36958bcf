// 4a: two numbers to be predicted.
//
// A pool has 10 blocks of 4 tokens. Sequence A has 13 tokens, sequence B has 6, and no block is
// shared. What is the largest n for which seq_append(A, n) succeeds? And from which n on does it
// return PAGED_TOO_LONG instead of PAGED_OUT_OF_BLOCKS? Write down both, then run this.
//
//     make exercise N=4a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#define LARGEST 0        // your number
#define TOO_LONG_FROM 0  // your number

static void must(int error)
{
    if (!error) return;
    printf("4a: not yet: %s\n", paged_error(error));
    exit(1);
}

int main(void)
{
    PoolConfig config = {1, 1, 4, 4, 10, PAGED_F32, 1, PAGED_CPU};
    Pool *pool;
    Seq *a, *b;
    int largest = 0;
    int too_long_from = 0;
    int error = PAGED_OK;
    must(pool_create(&config, &pool));
    must(seq_create(pool, &a));
    must(seq_create(pool, &b));
    must(seq_append(a, 13));
    must(seq_append(b, 6));
    for (int n = 1; error != PAGED_TOO_LONG; n++) {
        error = seq_append(a, n);
        if (error == PAGED_OK) {
            largest = n;
            must(seq_rewind(a, n));
        }
        too_long_from = n;
    }
    pool_destroy(pool);
    if (LARGEST != largest) {
        printf("4a: not yet: LARGEST is %s\n", LARGEST < largest ? "too small" : "too large");
        return 1;
    }
    if (TOO_LONG_FROM != too_long_from) {
        printf("4a: not yet: TOO_LONG_FROM is %s\n",
               TOO_LONG_FROM < too_long_from ? "too small" : "too large");
        return 1;
    }
    printf("4a: solved: A fills its last block with 3 tokens and takes the 10 - 4 - 2 =\n"
           "4 free blocks for 16 more: %d. 13 + 27 = 10 * 4 tokens would fit into the\n"
           "whole pool, so from %d on waiting does not help\n",
           largest, too_long_from);
    return 0;
}
