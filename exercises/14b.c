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
#define PAGED_NO_MAIN
#include "../paged.cu.c"

enum { TOKENS = 53, NEWEST = 3, KV_HEADS = 2, DIM = 20, MOST_HEADS = 24 };
static float k[TOKENS * KV_HEADS * DIM], v[TOKENS * KV_HEADS * DIM], q[NEWEST * MOST_HEADS * DIM];
static float out[3][NEWEST * MOST_HEADS * DIM];  // paged, gathered, of the oracle
static float lse[3][NEWEST * MOST_HEADS];

static void must(int error)
{
    if (!error) return;
    printf("14b: not yet: %s\n", paged_error(error));
    exit(1);
}

static void check(int ok, const char *what, int heads, int block_size)
{
    if (ok) return;
    printf("14b: not yet: %d query heads, %d KV heads, blocks of %d: %s\n", heads, KV_HEADS,
           block_size, what);
    exit(1);
}

static void try_shape(int heads, int block_size, int dtype)
{
    PoolConfig config = {1, KV_HEADS, DIM, block_size, 60, dtype, 1, PAGED_CPU};
    int all = TOKENS;
    int newest = NEWEST;
    Pool *pool;
    Seq *seq;
    must(pool_create(&config, &pool));
    must(seq_create(pool, &seq));
    must(seq_append(seq, TOKENS));
    Oracle *oracle = oracle_create(&config, TOKENS);
    oracle->length = TOKENS;
    Batch write = {1, &seq, &all};
    Batch batch = {1, &seq, &newest};
    must(pool_plan(pool, &write));
    must(pool_write(pool, 0, k, v));
    oracle_write(oracle, 0, TOKENS, k, v);
    oracle_attend(oracle, 0, NEWEST, heads, 0, q, out[2], lse[2]);
    must(pool_plan(pool, &batch));
    for (int flags = ATTEND_GATHER; flags >= ATTEND_PAGED; flags--) {
        conversions = 0;
        must(attend(pool, flags, 0, heads, 0, q, out[flags], lse[flags]));
    }
    for (int i = 0; i < NEWEST * heads * DIM; i++)
        check(fabsf(out[0][i] - out[2][i]) <= 1e-5f, "out is not what the oracle says", heads,
              block_size);
    for (int i = 0; i < NEWEST * heads; i++)
        check(fabsf(lse[0][i] - lse[2][i]) <= 1e-5f, "lse is not what the oracle says", heads,
              block_size);
    check(memcmp(out[0], out[1], sizeof *out) == 0, "gathered and paged differ", heads, block_size);

    int group = heads / KV_HEADS;
    int seen = 3 * TOKENS - 3;  // by the newest three tokens: 51, 52 and 53
    long expected = (long)seen * KV_HEADS * DIM * 2 * ceil_div(group, 8);
    if (dtype == PAGED_BF16 && conversions > expected) {
        printf("14b: not yet: %d query heads, %d KV heads: expected %ld conversions, got %ld\n",
               heads, KV_HEADS, expected, conversions);
        exit(1);
    }
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
    printf("14b: solved\n");
    return 0;
}
