// 14b (hard): convert once.
//
// The query heads of a group share a KV head, but attend_row() reads, and converts to float32, each
// K and V once for every query head. Change ../paged.cu.c: for one query token, the heads of a
// group go through the tokens together, and each stored element is converted once. Groups may be
// large: for those of more than 8 heads, once for every 8 is enough. Results stay the same. (How
// much faster it gets, `make bench` says; the vector code of ../fast does the same, and more.)
//
//     make exercise N=14b

// Each conversion of a bf16 calls memcpy() once, in bits_float().
#include <string.h>
static long conversions;
static void *count_memcpy(void *to, const void *from, size_t n)
{
    conversions++;
    return memcpy(to, from, n);
}
#define memcpy(to, from, n) count_memcpy(to, from, n)
#define EXERCISE "14b"
#include "exercise.h"

enum { TOKENS = 53, NEWEST = 3, KV_HEADS = 2, DIM = 20, MOST_HEADS = 24 };
static float k[TOKENS * KV_HEADS * DIM], v[TOKENS * KV_HEADS * DIM], q[NEWEST * MOST_HEADS * DIM];
static float out[3][NEWEST * MOST_HEADS * DIM];  // paged, gathered, of the oracle
static float lse[3][NEWEST * MOST_HEADS];

static void try_shape(int heads, int block_size, int dtype)
{
    PoolConfig config = {1, KV_HEADS, DIM, block_size, 60, dtype, 1, PAGED_CPU};
    const char *wrong = NULL;
    Pool *pool = new_pool_of(config);
    Seq *seq = new_seq(pool, TOKENS);
    Oracle *oracle = oracle_create(&config, TOKENS);
    oracle->length = TOKENS;
    compute(seq, TOKENS, k, v);
    oracle_write(oracle, 0, TOKENS, k, v);
    oracle_attend(oracle, 0, NEWEST, heads, 0, q, out[2], lse[2]);
    plan(seq, NEWEST);
    for (int flags = ATTEND_GATHER; flags >= ATTEND_PAGED; flags--) {
        conversions = 0;
        must(attend(pool, flags, 0, heads, 0, q, out[flags], lse[flags]));
    }
    for (int i = 0; i < NEWEST * heads * DIM; i++)
        if (!(fabsf(out[0][i] - out[2][i]) <= 1e-5f)) wrong = "out is not what the oracle says";
    for (int i = 0; i < NEWEST * heads; i++)
        if (!(fabsf(lse[0][i] - lse[2][i]) <= 1e-5f)) wrong = "lse is not what the oracle says";
    if (memcmp(out[0], out[1], sizeof *out) != 0) wrong = "gathered and paged differ";
    if (wrong)
        not_yet("%d query heads, %d KV heads, blocks of %d: %s", heads, KV_HEADS, block_size,
                wrong);

    int group = heads / KV_HEADS;
    int seen = 3 * TOKENS - 3;  // by the newest three tokens: 51, 52 and 53
    long expected = (long)seen * KV_HEADS * DIM * 2 * ceil_div(group, 8);
    if (dtype == PAGED_BF16 && conversions > expected)
        not_yet("%d query heads, %d KV heads: expected %ld conversions, got %ld", heads, KV_HEADS,
                expected, conversions);
    oracle_release(oracle);
    pool_destroy(pool);
}

int main(void)
{
    const int block_sizes[] = {1, 5, 16, 53};
    for (int i = 0; i < TOKENS * KV_HEADS * DIM; i++) {
        k[i] = 2 + sinf((float)(i * 7 % 1013));
        v[i] = 2 + cosf((float)(i * 3 % 911));
    }
    for (int i = 0; i < NEWEST * MOST_HEADS * DIM; i++) q[i] = 2 * sinf((float)(i * 5 % 701));
    for (int heads = KV_HEADS; heads <= MOST_HEADS; heads += KV_HEADS)
        for (int i = 0; i < 12; i++) try_shape(heads, block_sizes[i % 4], i / 4);
    printf(EXERCISE ": solved\n");
    return 0;
}
