// fuzz_api: calls of paged.h, chosen by bytes. The first nine are the shape of a pool; after them,
// three bytes are a call: its kind, and the seed of what it draws. The calls, and what is checked
// after each, are those of the random tests in tests.c.
//
//     cc -O1 -g checks/fuzz_api.c -o fuzz_api -lm    (-DPAGED_FAST: the fast paths)
//     ./fuzz_api                 150 inputs of random bytes
//     ./fuzz_api 7               one of them, which has failed
//     clang -fsanitize=fuzzer,address,undefined -DLIBFUZZER ...     looks for more inputs

#define TESTS_NO_MAIN
#include "../tests.c"

enum { MOST_SEQS = 8, MOST_CALLS = 120, MOST_CALLS_STANDIN = 12 };

static Pool *pool;
static const uint8_t *input;
static size_t input_left;

static int byte(void)  // 0 when there are no more
{
    if (input_left == 0) return 0;
    input_left--;
    return *input++;
}

static int below(int n) { return byte() % n; }
static int num_seqs(void) { return (int)arrlen(pool->seqs); }

static void one_call(void)
{
    int kind = below(16);
    random_state = (uint64_t)byte() << 8;
    random_state |= (uint64_t)byte();
    Seq *seq = num_seqs() > 0 ? pool->seqs[between(0, num_seqs() - 1)] : NULL;
    int num_q_heads = pool->config.num_kv_heads * (between(0, 31) ? between(1, 3) : 64);
    if (kind < 11 || !seq)
        random_operation(pool, seq, num_seqs() < MOST_SEQS);
    else
        random_step(pool, num_q_heads, 2 * pool->config.block_size + 2);
    check_pool(pool);
    for (int i = 0; i < num_seqs(); i++) check_seq(pool->seqs[i]);
    free_to(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int dims[] = {1, 4, 5, 8, 9, 16, 33, 64};
    PoolConfig c;
    input = data;
    input_left = size;
    c.num_layers = 1 + below(2);
    c.num_kv_heads = 1 + below(2);
    c.head_dim = dims[below(8)];
    c.block_size = 1 + below(8);
    c.num_blocks = 1 + below(24);
    c.dtype = below(3);
    c.poison = below(2);
    c.device = below(8) == 7 ? PAGED_STANDIN : PAGED_CPU;
    token_odds = 2;  // tokens are 0 or 1, so that texts often begin alike
    device = c.device;
    pool = new_pool(c);
    if (!c.poison) fill_planes(pool, 0xff);  // NaN; what was never written must not be used
    if (below(2)) pool->num_buckets = 1;     // every published block collides
    int most = c.device == PAGED_STANDIN ? MOST_CALLS_STANDIN : MOST_CALLS;
    for (int i = 0; i < most && input_left > 0; i++) one_call();
    while (num_seqs() > 0) release(pool->seqs[0]);
    end_pool(pool);
    free_to(0);
    return 0;
}

#ifndef LIBFUZZER

int main(int argc, char **argv)
{
    static uint8_t bytes[1500];
    int first = argc > 1 ? atoi(argv[1]) : 1;
    int last = argc > 1 ? first : 150;
    for (int number = first; number <= last; number++) {
        note("seed %d", number);
        random_state = (uint64_t)number * 0x9e3779b97f4a7c15u;
        size_t size = (size_t)between(10, (int)sizeof bytes);
        for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)next_random();
        LLVMFuzzerTestOneInput(bytes, size);
    }
    printf("1 passed, 0 failed, 0 skipped\n");
    return 0;
}

#endif
