// fuzz_api: calls of paged.h, read from bytes. The first bytes are the shape of a pool, each of the
// following groups is a call. Whatever the bytes say, after every call
//
//     pool_check() finds nothing, and a call that was refused has changed nothing;
//     every sequence gathers the same bits as its twin, the contiguous cache of the oracle;
//     append takes as many blocks as the rule of paged.h says, and lookup finds as much as a search
//     through all blocks finds, without the buckets;
//     a plan is refused if, and only if, one of its sequences was edited since;
//
// and attention is that of the oracle, within 1e-5. K and V of a token are a function of it and of
// all tokens before it, as in a model, so that the prefix cache may share them.
//
//     cc -O1 -g checks/fuzz_api.c -o fuzz_api -lm && ./fuzz_api FILE...      runs these inputs
//     clang -fsanitize=fuzzer,address,undefined -DLIBFUZZER ...              looks for more
//
// Add -DPAGED_FAST for the fast paths. faults.c makes allocations fail under the same calls, and
// soak.c makes them for hours.

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#include "fuzz.h"

enum { MAX_SEQS = 8, MAX_TOKENS = 48, MAX_CALLS = 120, MAX_CALLS_STANDIN = 12 };

typedef struct Twin {
    Seq *seq;
    Oracle *oracle;
    int tokens[MAX_TOKENS];
    int published;  // leading tokens that are published for sure, as this sequence holds them
} Twin;

// What the pool was told about the step. The sequences of the plan are named by their addresses.
typedef struct Told {
    int usable;  // there is a plan, and none of its sequences was edited since
    int sealed;  // it has a query token in a block that may not be written
    int num_seqs;
    Seq *seqs[MAX_SEQS];
    int counts[MAX_SEQS];
} Told;

static Pool *pool;
static Twin twins[MAX_SEQS];
static int num_twins;
static Told told;

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

// All that a refused call must leave: records, tables, counts, the plan, the bytes of K and V.
static uint64_t state(void)
{
    if (!pool) return 0;
    uint64_t h = fuzz_hash(&pool->num_free, sizeof pool->num_free, pool->num_copies);
    h = fuzz_hash(&pool->plan_number, sizeof pool->plan_number, h);
    h = fuzz_hash(pool->buckets, (size_t)pool->num_buckets * sizeof(int), h);
    size_t plane = pool_bytes_per_block(&pool->config) / 2 * pool->config.num_blocks;
    h = fuzz_hash(pool->blocks, ((size_t)pool->config.num_blocks + 1) * sizeof(Block), h);
    h = fuzz_hash(pool->k, plane, h);
    h = fuzz_hash(pool->v, plane, h);
    for (int i = 0; i < arrlen(pool->seqs); i++) {
        const Seq *seq = pool->seqs[i];
        h = fuzz_hash(&seq->length, sizeof seq->length, h + (uint64_t)seq->num_computed_tokens);
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
static long num_withdrawn, num_stale;       // appends that withdrew a block, plans out of date

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

static Twin *twin_of(const Seq *seq)
{
    for (int i = 0; i < num_twins; i++)
        if (twins[i].seq == seq) return &twins[i];
    fuzz_fail(__FILE__, __LINE__, "a sequence without a twin");
    return NULL;
}

// The sequence is about to be edited.
static void edit(const Seq *seq)
{
    for (int i = 0; i < told.num_seqs; i++)
        if (told.seqs[i] == seq) told.usable = 0;
}

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
    if (num_twins == MAX_SEQS) return;
    CALL(seq_create(pool, &seq));
    add_twin(seq, oracle_create(&pool->config, MAX_TOKENS));
}

static void release(Twin *twin)
{
    edit(twin->seq);
    seq_release(twin->seq);
    oracle_release(twin->oracle);
    *twin = twins[--num_twins];
}

static void call_release(void) { release(any_twin()); }

// Makes room for n more tokens. Returns 0 if there was none, and that was as the rules say.
static int append(Twin *twin, int n)
{
    Seq *seq = twin->seq;
    int b = pool->config.block_size;
    int length = seq->length + n;
    int have = (seq->length + b - 1) / b;
    int need = (length + b - 1) / b;
    int last = -1;      // the block that the new tokens begin in, if they begin inside one
    int copy = 0;       // it may not be written ...
    int alone = 0;      // ... but only because it is published
    int withdrawn = 0;  // and there is no room for a copy
    if (length > MAX_TOKENS) return 0;
    if (n > 0 && seq->length % b != 0) {
        last = seq->block_table[have - 1];
        copy = pool->blocks[last].ref_count > 1 || pool->blocks[last].serial != 0;
        alone = copy && pool->blocks[last].ref_count == 1;
    }
    if (need > pool->config.num_blocks) {
        RETURNS(PAGED_TOO_LONG, seq_append(seq, n));
        return 0;
    }
    if (alone && need - have == pool->num_free) withdrawn = 1;
    if (need - have + copy - withdrawn > pool->num_free) {
        RETURNS(PAGED_OUT_OF_BLOCKS, seq_append(seq, n));
        return 0;
    }
    int num_free = pool->num_free;
    size_t num_copies = pool->num_copies;
    if (n > 0) edit(seq);
    CALL(seq_append(seq, n));
    CHECK(num_free - pool->num_free == need - have + copy - alone);
    CHECK(pool->num_copies - num_copies == (size_t)(copy - withdrawn));
    if (withdrawn) CHECK(seq->block_table[have - 1] == last && pool->blocks[last].serial == 0);
    num_withdrawn += withdrawn;
    twin->oracle->length += n;
    for (int t = length - n; t < length; t++) twin->tokens[t] = below(2);  // so that many are alike
    return 1;
}

static void plan(int num_seqs, Seq *const *seqs, const int *counts)
{
    Batch batch = {num_seqs, seqs, counts};
    CALL(pool_plan(pool, &batch));
    memset(&told, 0, sizeof told);
    told.usable = 1;
    told.num_seqs = num_seqs;
    for (int i = 0; i < num_seqs; i++) {
        told.seqs[i] = seqs[i];
        told.counts[i] = counts[i];
        for (int t = seqs[i]->length - counts[i]; t < seqs[i]->length; t++) {
            const Block *block = &pool->blocks[seqs[i]->block_table[t / pool->config.block_size]];
            told.sealed |= block->ref_count > 1 || block->serial != 0;
        }
    }
}

// K and V of the plan, of one layer, from the tokens; also into the oracles, where they may stand
// already.
static void write_layer(int layer)
{
    static float k[MAX_SEQS * MAX_TOKENS * 64], v[MAX_SEQS * MAX_TOKENS * 64];
    size_t row = 0;
    for (int i = 0; i < told.num_seqs; i++) {
        const Twin *twin = twin_of(told.seqs[i]);
        size_t at = row * row_floats();
        make_rows(twin, told.counts[i], layer, k + at, v + at);
        oracle_write(twin->oracle, layer, told.counts[i], k + at, v + at);
        row += (size_t)told.counts[i];
    }
    if (told.sealed && row > 0)
        RETURNS(PAGED_BLOCK_SHARED, pool_write(pool, layer, k, v));
    else
        CALL(pool_write(pool, layer, k, v));
}

// Room for some tokens in some sequences, and K and V for all of them in one ragged batch. They
// are computed, and may be published, once the last layer is written.
static void call_step(void)
{
    Seq *seqs[MAX_SEQS];
    int counts[MAX_SEQS];
    int computed[MAX_SEQS];
    int n = 0;
    int mask = byte();
    int last = pool->config.num_layers - 1;
    for (int i = 0; i < num_twins; i++) {
        int count = mask >> i & 1 ? below(2 * pool->config.block_size + 2) : -1;
        if (count < 0 || !append(&twins[i], count)) continue;
        seqs[n] = twins[i].seq;
        computed[n] = seqs[n]->num_computed_tokens;
        counts[n++] = count;
    }
    plan(n, seqs, counts);
    for (int layer = 0; layer < last; layer++) write_layer(layer);
    for (int i = 0; i < n && last > 0; i++) {
        CHECK(seqs[i]->num_computed_tokens == computed[i]);
        if (counts[i] > 0)
            RETURNS(PAGED_BAD_ARGUMENT,
                    seq_publish(seqs[i], twin_of(seqs[i])->tokens, seqs[i]->length));
    }
    write_layer(last);
    for (int i = 0; i < n; i++) CHECK(seqs[i]->num_computed_tokens == seqs[i]->length);
}

// The last plan once more: the same K and V change nothing, and a plan of sequences that were
// edited since is refused.
static void call_write_again(void)
{
    static float x[MAX_SEQS * MAX_TOKENS * 64];
    int layer = below(pool->config.num_layers);
    if (told.usable) {
        uint64_t before = state();
        write_layer(layer);
        CHECK(state() == before);
    } else {
        RETURNS(PAGED_BAD_ARGUMENT, pool_write(pool, layer, x, x));
        RETURNS(PAGED_BAD_ARGUMENT, attend(pool, 0, layer, 6, 0, x, x, NULL));
        num_stale++;
    }
}

static void call_fork(void)
{
    Twin *parent = any_twin();
    Seq *seq = NULL;
    int at = below(parent->seq->length + 1), num_free = pool->num_free;
    if (num_twins == MAX_SEQS) return;
    edit(parent->seq);
    CALL(seq_fork(parent->seq, at, &seq));
    CHECK(pool->num_free == num_free);
    Twin *child = add_twin(seq, oracle_fork(parent->oracle, at));
    memcpy(child->tokens, parent->tokens, sizeof child->tokens);
    child->published = parent->published < at ? parent->published : at;
}

static void rewind_by(Twin *twin, int n)
{
    if (n > 0) edit(twin->seq);
    CALL(seq_rewind(twin->seq, n));
    twin->oracle->length -= n;
    if (twin->published > twin->seq->length) twin->published = twin->seq->length;
}

static void call_rewind(void)
{
    Twin *twin = any_twin();
    rewind_by(twin, below(twin->seq->length + 1));
}

// A fork between plan and write makes the plan out of date, and one between append and plan the
// write impossible, until a step is planned after one of the two has let go.
static void call_write_shared(void)
{
    static float x[MAX_TOKENS * 64];
    Twin *twin = any_twin();
    Seq *child = NULL;
    int n = 1 + below(3);
    int layer = below(pool->config.num_layers);
    if (!append(twin, n)) return;
    plan(1, &twin->seq, &n);
    edit(twin->seq);
    CALL(seq_fork(twin->seq, twin->seq->length, &child));
    RETURNS(PAGED_BAD_ARGUMENT, pool_write(pool, layer, x, x));
    plan(1, &twin->seq, &n);
    RETURNS(PAGED_BLOCK_SHARED, pool_write(pool, layer, x, x));
    seq_release(child);
    RETURNS(PAGED_BLOCK_SHARED, pool_write(pool, layer, x, x));
    plan(1, &twin->seq, &n);
    write_layer(layer);
    rewind_by(twin, n);  // a draft that was rejected
}

static uint64_t table_hash(const Seq *seq)
{
    return fuzz_hash(seq->block_table, arrlenu(seq->block_table) * sizeof(int), 1);
}

static void call_publish(void)
{
    Twin *twin = any_twin();
    int n = below(twin->seq->length + 1), b = pool->config.block_size;
    uint64_t serial = pool->last_serial, table = table_hash(twin->seq);
    CALL(seq_publish(twin->seq, twin->tokens, n));
    if (pool->last_serial != serial || table_hash(twin->seq) != table) edit(twin->seq);
    if (n >= b) CHECK(pool->blocks[twin->seq->block_table[n / b - 1]].serial != 0);
    uint64_t parent = 0;
    for (int i = 0; i < n / b; i++) {  // the chain from the first block on: a lookup must find it
        const Block *block = &pool->blocks[twin->seq->block_table[i]];
        if (block->serial == 0 || block->parent != parent) break;
        if (twin->published < (i + 1) * b) twin->published = (i + 1) * b;
        parent = block->serial;
    }
    if (byte() % 8 == 0) KEEPS(PAGED_OK, seq_publish(twin->seq, twin->tokens, n));
}

// The longest beginning of the tokens that published blocks hold: no buckets, every block is asked.
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
    Twin *twin = num_twins > 0 ? any_twin() : NULL;  // an empty one may be in the plan
    if (!twin || twin->seq->length > 0) {
        if (num_twins == MAX_SEQS) return;
        call_create();
        twin = &twins[num_twins - 1];
    }
    if (expected > 0) edit(twin->seq);
    memcpy(twin->tokens, tokens, sizeof tokens);
    CALL(seq_lookup(twin->seq, tokens, n));
    CHECK(twin->seq->length == expected);
    twin->published = expected;
    twin->oracle->length += expected;
    for (int layer = 0; layer < pool->config.num_layers; layer++) {
        make_rows(twin, expected, layer, k, v);
        oracle_write(twin->oracle, layer, expected, k, v);
    }
}

static void compare(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        CHECK(isfinite(a[i]) && isfinite(b[i]) &&
              fabsf(a[i] - b[i]) <= 1e-5f * fmaxf(1, fabsf(b[i])));
}

// Attention in all ways, of the last plan or of a new one.
static void call_attend(void)
{
    enum { ROWS = MAX_SEQS * MAX_TOKENS, SIZE = ROWS * 64 * 3, WAYS = 4 };
    static float q[SIZE], out[WAYS][SIZE], lse[WAYS][ROWS * 6], expected[SIZE];
    static float expected_lse[ROWS * 6];
    Seq *seqs[MAX_SEQS];
    int counts[MAX_SEQS];
    int n = 0;
    int mask = byte();
    int layer = below(pool->config.num_layers);
    int q_heads = pool->config.num_kv_heads * (1 + below(3));
    float scale = below(2) ? 0.5f : 0;
    size_t row = (size_t)q_heads * pool->config.head_dim;
    size_t rows = 0;
    uint64_t seed = (uint64_t)byte();
    for (int i = 0; i < num_twins; i++) {
        if (!(mask >> i & 1)) continue;
        seqs[n] = twins[i].seq;
        counts[n++] = below((twins[i].seq->length < 4 ? twins[i].seq->length : 4) + 1);
    }
    if (!told.usable || below(2)) plan(n, seqs, counts);
    for (int i = 0; i < told.num_seqs; i++) rows += (size_t)told.counts[i];
    CHECK(rows <= ROWS);
    for (size_t i = 0; i < rows * row; i++) q[i] = fuzz_float(seed, i);
    rows = 0;
    for (int i = 0; i < told.num_seqs; i++) {
        oracle_attend(twin_of(told.seqs[i])->oracle, layer, told.counts[i], q_heads, scale,
                      q + rows * row, expected + rows * row, expected_lse + rows * q_heads);
        rows += (size_t)told.counts[i];
    }
    for (int flags = 0; flags < WAYS; flags++) {
        watched = out[flags];
        KEEPS(PAGED_OK, attend(pool, flags, layer, q_heads, scale, q, out[flags], lse[flags]));
        watched = NULL;
        compare(out[flags], expected, rows * row);
        compare(lse[flags], expected_lse, rows * q_heads);
        if (flags & ATTEND_GATHER)  // the same bits as without
            CHECK(memcmp(out[flags], out[flags - 1], rows * row * sizeof(float)) == 0);
    }
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
    const Batch *batch = &batches[below(7)];
    switch (below(11)) {
    case 0: RETURNS(bad < 0 ? PAGED_BAD_ARGUMENT : PAGED_TOO_LONG, seq_append(seq, bad)); break;
    case 1: RETURNS(PAGED_BAD_ARGUMENT, seq_rewind(seq, bad)); break;
    case 2: RETURNS(PAGED_BAD_ARGUMENT, seq_fork(seq, bad, &other)); break;
    case 3: RETURNS(PAGED_BAD_ARGUMENT, seq_gather(seq, bad, x, x)); break;
    case 4: RETURNS(PAGED_BAD_ARGUMENT, pool_plan(pool, batch)); break;
    case 5: RETURNS(PAGED_BAD_ARGUMENT, pool_write(pool, bad, x, x)); break;
    case 6: RETURNS(PAGED_BAD_ARGUMENT, attend(pool, 1, bad, 6, 0, x, x, x)); break;
    case 7: RETURNS(PAGED_BAD_ARGUMENT, attend(pool, bad, 0, 6, 0, x, x, x)); break;
    case 8: RETURNS(PAGED_BAD_ARGUMENT, attend(pool, 0, 0, 0, 0, x, x, x)); break;
    case 9: RETURNS(PAGED_BAD_ARGUMENT, seq_publish(seq, twin->tokens, bad)); break;
    default:
        if (seq->length > 0) RETURNS(PAGED_BAD_ARGUMENT, seq_lookup(seq, twin->tokens, 1));
    }
    CHECK(other == NULL);
}

// ---- one input --------------------------------------------------------------------------------

static void make_pool(PoolConfig config)
{
    size_t plane = pool_bytes_per_block(&config) / 2 * config.num_blocks;
    pool = NULL;
    num_twins = 0;
    memset(&told, 0, sizeof told);
    CALL(pool_create(&config, &pool));
    memset(pool->k, 0xff, plane);  // NaN; what was never written must not be used
    memset(pool->v, 0xff, plane);
    if (below(2)) pool->num_buckets = 1;  // every published block collides
}

static void one_call(void)
{
    static void (*const calls[])(void) = {
        call_step,    call_step,        call_step,        call_create,
        call_fork,    call_rewind,      call_attend,      call_attend,
        call_publish, call_lookup,      call_release,     call_wrong,
        call_publish, call_write_again, call_write_again, call_write_shared};
    if (num_twins == 0) call_create();
    calls[below(16)]();
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
    static const int dims[] = {1, 4, 5, 8, 9, 16, 33, 64};
    PoolConfig c;
    c.num_layers = 1 + below(2);
    c.num_kv_heads = 1 + below(2);
    c.head_dim = dims[below(8)];
    c.block_size = 1 + below(8);
    c.num_blocks = 1 + below(24);
    c.dtype = below(3);
    c.poison = below(2);
    c.device = below(8) == 7 ? PAGED_STANDIN : PAGED_CPU;
    if (c.head_dim > 32) c.num_kv_heads = 1;  // at most 64 floats a row
    return c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input = data, input_left = size;
    PoolConfig config = shape();
    int most = config.device == PAGED_STANDIN ? MAX_CALLS_STANDIN : MAX_CALLS;
    make_pool(config);
    for (int i = 0; i < most && input_left > 0; i++) one_call();
    end_pool();
    return 0;
}
#endif
