// fuzz_api: calls of paged.h, read from bytes. The first bytes are the shape of a pool, each of the
// following groups is a call. Whatever the bytes say, after every call
//
//     pool_check() finds nothing, and a call that was refused has changed nothing;
//     every sequence gathers the same bits as its twin, the contiguous cache of the oracle;
//     append takes as many blocks as the rule of paged.h says, and lookup finds as much as a search
//     through all blocks without the hash map finds;
//
// and attention is that of the oracle, within 1e-5. K and V of a token are a function of it and of
// all tokens before it, as in a model, so that the prefix cache may share them.
//
//     cc -O1 -g checks/fuzz_api.c -o fuzz_api -lm && ./fuzz_api FILE...      runs these inputs
//     clang -fsanitize=fuzzer,address,undefined -DLIBFUZZER ...              looks for more
//
// faults.c makes allocations fail under the same calls, and soak.c makes them for hours.

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#include "fuzz.h"

enum { MAX_SEQS = 8, MAX_TOKENS = 48, MAX_CALLS = 120, MAX_CALLS_GPU = 12 };

typedef struct Twin {
    Seq *seq;
    Oracle *oracle;
    int tokens[MAX_TOKENS];
    int published;  // so many tokens of it are published for sure, as this sequence holds them
} Twin;

static Pool *pool;
static Twin twins[MAX_SEQS];
static int num_twins;

// ---- the bytes --------------------------------------------------------------------------------

static const uint8_t *input;
static size_t input_left;
static uint64_t *endless;  // a state of random numbers that come instead, unless NULL

static int byte(void)  // 0 when there are no more
{
    if (input_left == 0) return endless ? (int)(fuzz_random(endless) & 255) : 0;
    input_left--;
    return *input++;
}

static int below(int n) { return byte() % n; }
static Twin *any_twin(void) { return &twins[below(num_twins)]; }

// ---- the state --------------------------------------------------------------------------------

// All that a refused call must leave: records, tables, counts and the bytes of K and V.
static uint64_t state(void)
{
    if (!pool) return 0;
    uint64_t h = fuzz_hash(&pool->num_free, sizeof pool->num_free, pool->num_copies);
    size_t plane = pool_bytes_per_block(&pool->config) / 2 * pool->config.num_blocks;
    h = fuzz_hash(pool->blocks, ((size_t)pool->config.num_blocks + 1) * sizeof(Block), h);
    h = fuzz_hash(pool->k, plane, h);
    h = fuzz_hash(pool->v, plane, h);
    for (int i = 0; i < arrlen(pool->seqs); i++) {
        const Seq *seq = pool->seqs[i];
        h = fuzz_hash(&seq->length, sizeof seq->length, h + (uint64_t)seq->written);
        h = fuzz_hash(seq->block_table, arrlenu(seq->block_table) * sizeof(int), h);
    }
    return h;
}

#ifndef FAULTS  // faults.c has its own, which let an allocation fail
#define ARM(on) (void)0
static int fault_taken(void) { return 0; }
#endif
static float *watched;  // the output of a call, which a failing one must not touch: [WATCHED]
enum { WATCHED = 96 };
static long num_results[PAGED_NO_GPU + 1];  // how often calls returned each code

// The call returns this code, and what is not PAGED_OK has changed nothing. Where the call fails
// for an allocation that was made to fail, that has changed nothing either, and it works next time.
#define RETURNS(code, call) \
    do { \
        uint64_t before_ = state(), output_ = fuzz_hash(watched, watched ? 4 * WATCHED : 0, 0); \
        ARM(1); \
        int error_ = (call); \
        ARM(0); \
        if (fault_taken()) { \
            CHECK(error_ == PAGED_OUT_OF_MEMORY); \
            CHECK(state() == before_); \
            CHECK(fuzz_hash(watched, watched ? 4 * WATCHED : 0, 0) == output_); \
            error_ = (call); \
        } \
        CHECK(error_ == (code)); \
        if (error_ != PAGED_OK) CHECK(state() == before_); \
        num_results[error_]++; \
    } while (0)
#define CALL(call) RETURNS(PAGED_OK, call)

// The same, and the state is that before the call though it may be PAGED_OK.
#define KEEPS(code, call) \
    do { \
        uint64_t kept_ = state(); \
        RETURNS(code, call); \
        CHECK(state() == kept_); \
    } while (0)

static size_t row_floats(void) { return (size_t)pool->config.num_kv_heads * pool->config.head_dim; }

// K and V of the newest n tokens, in the order of pool_write(), made of the tokens up to each.
static void make_rows(const Twin *twin, int n, int layer, float *k, float *v)
{
    int length = twin->seq->length;
    for (int t = length - n; t < length; t++) {
        uint64_t h = fuzz_hash(twin->tokens, (size_t)(t + 1) * sizeof(int), (uint64_t)layer);
        for (size_t i = 0; i < row_floats(); i++) {
            *k++ = fuzz_float(h, 2 * i);
            *v++ = fuzz_float(h, 2 * i + 1);
        }
    }
}

static void check_all(void)
{
    static float k[MAX_TOKENS * 64], v[MAX_TOKENS * 64];
    const char *wrong = pool_check(pool);
    if (wrong) fuzz_fail(__FILE__, __LINE__, wrong);
    for (int i = 0; i < num_twins; i++) {
        const Twin *twin = &twins[i];
        const Oracle *oracle = twin->oracle;
        CHECK(twin->seq->length == oracle->length);
        for (int layer = 0; layer < pool->config.num_layers; layer++) {
            size_t at = (size_t)layer * MAX_TOKENS * row_floats();
            size_t bytes = oracle->length * row_floats() * sizeof(float);
            CALL(seq_gather(twin->seq, layer, k, v));
            CHECK(memcmp(k, oracle->k + at, bytes) == 0);
            CHECK(memcmp(v, oracle->v + at, bytes) == 0);
        }
    }
}

// ---- the calls --------------------------------------------------------------------------------

static Twin *add_twin(Seq *seq, Oracle *oracle)
{
    Twin *twin = &twins[num_twins++];
    memset(twin, 0, sizeof *twin);
    twin->seq = seq;
    twin->oracle = oracle;
    return twin;
}

static void call_create(void)
{
    Seq *seq = NULL;
    Oracle *oracle = NULL;
    if (num_twins == MAX_SEQS) return;
    CALL(seq_create(pool, &seq));
    CHECK(oracle_create(&pool->config, MAX_TOKENS, &oracle) == PAGED_OK);
    add_twin(seq, oracle);
}

static void release(Twin *twin)
{
    seq_release(twin->seq);
    oracle_release(twin->oracle);
    *twin = twins[--num_twins];
}

static void call_release(void) { release(any_twin()); }

// Makes room for n more tokens. Returns 0 if there was none, and that was as the rules say.
static int append(Twin *twin, int n)
{
    Seq *seq = twin->seq;
    int b = pool->config.block_size, length = seq->length + n, copy = 0;
    int have = (seq->length + b - 1) / b, need = (length + b - 1) / b;
    if (length > MAX_TOKENS) return 0;
    if (n > 0 && seq->length % b != 0) {
        const Block *last = &pool->blocks[seq->block_table[have - 1]];
        copy = last->ref_count > 1 || last->serial != 0;
    }
    if (need > pool->config.num_blocks) {
        RETURNS(PAGED_TOO_LONG, seq_append(seq, n));
        return 0;
    }
    if (need - have + copy > pool->num_free) {
        RETURNS(PAGED_OUT_OF_BLOCKS, seq_append(seq, n));
        return 0;
    }
    int num_free = pool->num_free, block = copy ? seq->block_table[have - 1] : 0;
    int freed = copy && pool->blocks[block].ref_count == 1;  // only the prefix cache saw it
    CALL(seq_append(seq, n));
    CHECK(num_free - pool->num_free == need - have + copy - freed);
    CHECK(oracle_append(twin->oracle, n) == PAGED_OK);
    for (int t = length - n; t < length; t++) twin->tokens[t] = below(2);  // so that many are alike
    return 1;
}

// Room for some tokens in some sequences, and K and V for all of them in one ragged batch.
static void call_step(void)
{
    static float k[MAX_SEQS * MAX_TOKENS * 64], v[MAX_SEQS * MAX_TOKENS * 64];
    Seq *seqs[MAX_SEQS];
    int counts[MAX_SEQS], who[MAX_SEQS], n = 0, mask = byte();
    for (int i = 0; i < num_twins; i++)
        if (mask >> i & 1) {
            int count = below(2 * pool->config.block_size + 2);
            if (append(&twins[i], count)) seqs[n] = twins[i].seq, counts[n] = count, who[n++] = i;
        }
    Batch batch = {n, seqs, counts};
    for (int layer = 0; layer < pool->config.num_layers; layer++) {
        size_t row = 0;
        for (int i = 0; i < n; i++) {
            size_t at = row * row_floats();
            make_rows(&twins[who[i]], counts[i], layer, k + at, v + at);
            CHECK(oracle_write(twins[who[i]].oracle, layer, counts[i], k + at, v + at) == 0);
            row += (size_t)counts[i];
        }
        CALL(pool_write(pool, layer, &batch, k, v));
    }
}

static void call_fork(void)
{
    Twin *parent = any_twin();
    Seq *seq = NULL;
    Oracle *oracle = NULL;
    int at = below(parent->seq->length + 1), num_free = pool->num_free;
    if (num_twins == MAX_SEQS) return;
    CALL(seq_fork(parent->seq, at, &seq));
    CHECK(pool->num_free == num_free);
    CHECK(oracle_fork(parent->oracle, at, &oracle) == PAGED_OK);
    Twin *child = add_twin(seq, oracle);
    memcpy(child->tokens, parent->tokens, sizeof child->tokens);
    child->published = parent->published < at ? parent->published : at;
}

static void call_rewind(void)
{
    Twin *twin = any_twin();
    int n = below(twin->seq->length + 1);
    CALL(seq_rewind(twin->seq, n));
    CHECK(oracle_rewind(twin->oracle, n) == PAGED_OK);
    if (twin->published > twin->seq->length) twin->published = twin->seq->length;
}

// Who forks between append and write makes the write impossible, until one of both lets go.
static void call_write_shared(void)
{
    static float x[MAX_TOKENS * 64];
    Twin *twin = any_twin();
    Seq *child = NULL;
    int n = 1 + below(3), layer = below(pool->config.num_layers);
    if (!append(twin, n)) return;
    Batch batch = {1, &twin->seq, &n};
    CALL(seq_fork(twin->seq, twin->seq->length, &child));
    RETURNS(PAGED_BLOCK_SHARED, pool_write(pool, layer, &batch, x, x));
    seq_release(child);
    CALL(seq_rewind(twin->seq, n));  // a draft that was rejected
    CHECK(oracle_rewind(twin->oracle, n) == PAGED_OK);
    if (twin->published > twin->seq->length) twin->published = twin->seq->length;
}

static void call_publish(void)
{
    Twin *twin = any_twin();
    int n = below(twin->seq->length + 1), b = pool->config.block_size;
    CALL(seq_publish(twin->seq, twin->tokens, n));
    if (twin->published < n / b * b) twin->published = n / b * b;
    if (byte() % 8 == 0) KEEPS(PAGED_OK, seq_publish(twin->seq, twin->tokens, n));
}

// The longest beginning of the tokens that published blocks hold: no hash, every block is asked.
static int search(const int *tokens, int n)
{
    int b = pool->config.block_size, found = 0;
    uint64_t parent = 0;
    for (int matches = 1; matches && found + b < n; found += matches ? b : 0) {
        matches = 0;
        for (int i = 0; i < pool->config.num_blocks; i++) {
            const Block *block = &pool->blocks[i];
            const int *held = pool->tokens + (size_t)i * b;
            if (!block->serial || block->parent != parent || matches) continue;
            if (memcmp(held, tokens + found, b * sizeof(int)) != 0) continue;
            matches = 1 + i;
        }
        if (matches) parent = pool->blocks[matches - 1].serial;
    }
    return found;
}

static void call_lookup(void)
{
    static float k[MAX_TOKENS * 64], v[MAX_TOKENS * 64];
    int tokens[MAX_TOKENS], n = below(MAX_TOKENS + 1), b = pool->config.block_size;
    if (num_twins == MAX_SEQS) return;
    memset(tokens, 0, sizeof tokens);
    if (num_twins > 0) memcpy(tokens, any_twin()->tokens, sizeof tokens);
    if (n > 0 && below(2)) tokens[below(n)] ^= 1;
    int expected = search(tokens, n);
    for (int i = 0; i < num_twins; i++) {  // what a sequence holds cannot have been forgotten
        int alike = 0;
        while (alike < twins[i].published && twins[i].tokens[alike] == tokens[alike]) alike++;
        if (alike > n - 1) alike = n - 1;
        CHECK(n == 0 || expected >= alike / b * b);
    }
    call_create();
    Twin *twin = &twins[num_twins - 1];
    memcpy(twin->tokens, tokens, sizeof tokens);
    CALL(seq_lookup(twin->seq, tokens, n));
    CHECK(twin->seq->length == expected);
    twin->published = expected;
    CHECK(oracle_append(twin->oracle, expected) == PAGED_OK);
    for (int layer = 0; layer < pool->config.num_layers; layer++) {
        make_rows(twin, expected, layer, k, v);
        CHECK(oracle_write(twin->oracle, layer, expected, k, v) == PAGED_OK);
    }
}

static void compare(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        CHECK(isfinite(a[i]) && isfinite(b[i]) &&
              fabsf(a[i] - b[i]) <= 1e-5f * fmaxf(1, fabsf(b[i])));
}

// Attention of a ragged batch, in all ways.
static void call_attend(void)
{
    enum { ROWS = MAX_SEQS * 4, SIZE = ROWS * 64 * 3 };
    static float q[SIZE], out[3][SIZE], lse[3][ROWS * 64], expected[SIZE], expected_lse[ROWS * 64];
    Seq *seqs[MAX_SEQS];
    int counts[MAX_SEQS], n = 0, mask = byte(), layer = below(pool->config.num_layers);
    int q_heads = pool->config.num_kv_heads * (1 + below(3));
    float scale = below(2) ? 0.5f : 0;
    size_t rows = 0, row = (size_t)q_heads * pool->config.head_dim;
    uint64_t seed = (uint64_t)byte();
    for (size_t i = 0; i < SIZE; i++) q[i] = fuzz_float(seed, i);
    for (int i = 0; i < num_twins; i++)
        if (mask >> i & 1) {
            int most = twins[i].seq->length < 4 ? twins[i].seq->length : 4, count = below(most + 1);
            seqs[n] = twins[i].seq;
            CHECK(oracle_attend(twins[i].oracle, layer, count, q_heads, scale, q + rows * row,
                                expected + rows * row, expected_lse + rows * q_heads) == PAGED_OK);
            counts[n++] = count;
            rows += (size_t)count;
        }
    Batch batch = {n, seqs, counts};
    for (int method = ATTEND_GATHER; method <= ATTEND_SPLIT; method++) {
        watched = out[method];
        KEEPS(PAGED_OK,
              attend(pool, method, layer, &batch, q_heads, scale, q, out[method], lse[method]));
        watched = NULL;
        compare(out[method], expected, rows * row);
        compare(lse[method], expected_lse, rows * q_heads);
    }
    CHECK(memcmp(out[ATTEND_GATHER], out[ATTEND_PAGED], rows * row * sizeof(float)) == 0);
}

// Numbers that no call takes, or that it takes for nothing.
static void call_wrong(void)
{
    static const int wrong[] = {-1, INT_MIN, INT_MAX, MAX_TOKENS * 8, 1 << 30};
    static float x[64];
    int bad = wrong[below(5)];
    Twin *twin = any_twin();
    Seq *seq = twin->seq, *other = NULL, *twice[2] = {seq, seq};
    int counts[2] = {seq->length > 0, 0}, too_many[1] = {seq->length + 1}, negative[1] = {-1};
    Batch batches[] = {{2, twice, counts},  {1, &seq, too_many}, {1, &seq, negative},
                       {bad, &seq, counts}, {1, NULL, counts},   {1, &seq, NULL},
                       {1, &other, counts}};
    const Batch *batch = &batches[below(7)], good = {1, &seq, counts};
    switch (below(10)) {
    case 0: RETURNS(bad < 0 ? PAGED_BAD_ARGUMENT : PAGED_TOO_LONG, seq_append(seq, bad)); break;
    case 1: RETURNS(PAGED_BAD_ARGUMENT, seq_rewind(seq, bad)); break;
    case 2: RETURNS(PAGED_BAD_ARGUMENT, seq_fork(seq, bad, &other)); break;
    case 3: RETURNS(PAGED_BAD_ARGUMENT, seq_gather(seq, bad, x, x)); break;
    case 4: RETURNS(PAGED_BAD_ARGUMENT, pool_write(pool, 0, batch, x, x)); break;
    case 5: RETURNS(PAGED_BAD_ARGUMENT, attend(pool, 0, 0, batch, 6, 0, x, x, x)); break;
    case 6: RETURNS(PAGED_BAD_ARGUMENT, attend(pool, 1, bad, &good, 6, 0, x, x, x)); break;
    case 7: RETURNS(PAGED_BAD_ARGUMENT, attend(pool, bad, 0, &good, 6, 0, x, x, x)); break;
    case 8: RETURNS(PAGED_BAD_ARGUMENT, seq_publish(seq, twin->tokens, bad)); break;
    default:
        if (seq->length > 0) RETURNS(PAGED_BAD_ARGUMENT, seq_lookup(seq, twin->tokens, 1));
    }
    CHECK(other == NULL);
}

// ---- one input --------------------------------------------------------------------------------

static uint64_t bad_hash(uint64_t parent, const int *tokens, int n)  // every block collides
{
    (void)parent, (void)tokens, (void)n;
    return 0;
}

static void make_pool(PoolConfig config)
{
    size_t plane = pool_bytes_per_block(&config) / 2 * config.num_blocks;
    pool = NULL, num_twins = 0;
    CALL(pool_create(&config, &pool));
    memset(pool->k, 0xff, plane);  // NaN; what was never written must not be used
    memset(pool->v, 0xff, plane);
    if (below(2)) pool->hash = bad_hash;
}

static void one_call(void)
{
    static void (*const calls[])(void) = {
        call_step,   call_step,    call_step,   call_create,  call_fork,  call_rewind,
        call_attend, call_publish, call_lookup, call_release, call_wrong, call_write_shared};
    if (num_twins == 0) call_create();
    calls[below(12)]();
    check_all();
}

static void end_pool(void)
{
    while (num_twins > 0) release(&twins[num_twins - 1]);
    CHECK(pool_check(pool) == NULL);
    CHECK(pool->num_free == pool->config.num_blocks);
    pool_destroy(pool);
}

#ifndef NO_TARGET
static PoolConfig shape(void)
{
    static const int dims[] = {1, 2, 4, 5, 8, 9, 16, 33};
    PoolConfig c;
    c.num_layers = 1 + below(2);
    c.num_kv_heads = 1 + below(2);
    c.head_dim = dims[below(8)];
    c.block_size = 1 + below(8);
    c.num_blocks = 1 + below(24);
    c.dtype = below(3);
    c.poison = below(2);
    c.device = below(8) == 7 ? PAGED_GPU : PAGED_CPU;
    if (c.head_dim == 33) c.num_kv_heads = 1;  // at most 64 floats a row
    return c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input = data, input_left = size;
    PoolConfig config = shape();
    int most = config.device == PAGED_GPU ? MAX_CALLS_GPU : MAX_CALLS;
    make_pool(config);
    for (int i = 0; i < most && input_left > 0; i++) one_call();
    end_pool();
    return 0;
}
#endif
