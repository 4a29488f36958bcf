// The tests of the build track, stage by stage, on numbers that a hand can check.
//
//     make stage N=4                      builds this with learn/paged.cu.c and runs stages 1 to 4
//     build/learn/stage_tests NAME        one of them
//     build/learn/stage_tests --debug NAME    without limits, for a debugger: break on failed
//
// A test needs only what was written up to its stage. It runs until the first check that fails,
// which prints the expression, what was expected and why, and draws the block tables and the pool.
// A crash, an endless loop and an exit() are reported in the same way, with the check that they
// happened in. Bytes that nothing has written are NaN: fill_with_nan(), and poison from stage 7 on.

#define PAGED_NO_MAIN
#ifndef ENGINE
#define ENGINE "paged.cu.c"
#endif
#include ENGINE

#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- checks -----------------------------------------------------------------------------------

#ifndef SECONDS
#define SECONDS 5  // of processor time for a test
#endif

static Pool *pool;              // of the test; its sequences are drawn when a check fails
static int device = PAGED_CPU;  // where new pools live
static const char *names[16];   // of the sequences, by their index
static struct {
    int line, finished;
    const char *what, *why;
} now;  // the check that runs

static void draw(void)
{
    if (!pool) return;
    for (int s = 0; s < (int)arrlen(pool->seqs); s++) {
        const Seq *seq = pool->seqs[s];
        int bad = -1;
        for (int i = 0; i < (int)arrlen(seq->block_table); i++)
            if (seq->block_table[i] < 0 || seq->block_table[i] >= pool->config.num_blocks) bad = i;
        printf("%s: ", s < 16 && names[s] ? names[s] : "another");
        if (bad >= 0)
            printf("entry %d of its block table is %d, which is no block\n", bad,
                   seq->block_table[bad]);
        else
            seq_dump(seq, stdout);
    }
    pool_dump(pool, stdout);
}

static void end_badly(void)
{
    now.finished = 1;
    fflush(stdout);
    draw();
    fflush(stdout);
    _exit(1);
}

// Every failing check comes here: break on it in a debugger.
static void failed(void)
{
    if (now.why) printf("  because: %s\n", now.why);
    end_badly();
}

static void begin(int line, const char *what, const char *why)
{
    now.line = line;
    now.what = what;
    now.why = why;
}

static void equal(long long actual, long long expected)
{
    if (actual == expected) return;
    printf("%s:%d: %s: expected %lld, got %lld\n", __FILE__, now.line, now.what, expected, actual);
    failed();
}

static void no_error(int error)
{
    if (error == PAGED_OK) return;
    printf("%s:%d: %s: expected PAGED_OK, got %d (%s)\n", __FILE__, now.line, now.what, error,
           paged_error(error));
    failed();
}

// As close as float32 allows; infinities must be equal, and NaN is close to nothing.
static void close_to(double actual, double expected)
{
    if (actual == expected) return;
    if (isfinite(expected) && fabs(actual - expected) <= 1e-5 * fmax(1, fabs(expected))) return;
    printf("%s:%d: %s: expected %.7g, got %.7g\n", __FILE__, now.line, now.what, expected, actual);
    failed();
}

#define EQUAL(actual, expected, why) (begin(__LINE__, #actual, why), equal(actual, expected))
#define CLOSE(actual, expected, why) (begin(__LINE__, #actual, why), close_to(actual, expected))
#define OK(call) (begin(__LINE__, #call, NULL), no_error(call))
#define CALL(statement, why) \
    do { \
        begin(__LINE__, #statement, why); \
        statement; \
    } while (0)

static void sound(int line)
{
    begin(line, "pool_check(pool)", "it recounts everything, and this is what is broken");
    const char *wrong = pool_check(pool);
    if (!wrong) return;
    printf("%s:%d: pool_check(pool): %s\n", __FILE__, line, wrong);
    failed();
}

#define SOUND() sound(__LINE__)

// A call that must panic runs in a child, whose last words come through a pipe.
static int last_words[2];

static int fork_child(void)
{
    if (pipe(last_words) != 0) return -1;
    fflush(stdout);
    int child = fork();
    if (child != 0) return child;
    signal(SIGABRT, SIG_DFL);
    alarm(SECONDS);
    dup2(last_words[1], STDERR_FILENO);
    return 0;
}

static void has_panicked(int child, const char *expected)
{
    char said[200] = "";
    int status = 0;
    close(last_words[1]);
    ssize_t got = read(last_words[0], said, sizeof said - 1);
    close(last_words[0]);
    waitpid(child, &status, 0);
    if (got > 0 && WIFSIGNALED(status) && strstr(said, expected)) return;
    said[strcspn(said, "\n")] = 0;
    printf("%s:%d: %s: expected a panic that says \"%s\", got %s\n", __FILE__, now.line, now.what,
           expected, said[0] ? said : "none");
    failed();
}

#define PANICS(call, text) \
    do { \
        begin(__LINE__, #call, "a pool that is broken is not worked on: INVARIANT(ok, text)"); \
        int child = fork_child(); \
        if (child == 0) { \
            call; \
            _exit(0); \
        } \
        has_panicked(child, text); \
    } while (0)

// ---- pools and sequences ----------------------------------------------------------------------

static void new_pool(int layers, int heads, int dim, int block_size, int blocks)
{
    PoolConfig config = {layers, heads, dim, block_size, blocks, PAGED_F32, 0, device};
    OK(pool_create(&config, &pool));
}

static Seq *new_seq(const char *name)
{
    Seq *seq;
    OK(seq_create(pool, &seq));
    names[seq->index] = name;
    return seq;
}

static Seq *new_seq_of(const char *name, int length)
{
    Seq *seq = new_seq(name);
    OK(seq_append(seq, length));
    return seq;
}

static void end_pool(void)
{
    SOUND();
    while (arrlen(pool->seqs) > 0)
        CALL(seq_release(arrlast(pool->seqs)), "block_drop() gets all blocks of the sequence");
    SOUND();
    EQUAL(pool->num_free, pool->config.num_blocks, "all sequences are released: all blocks free");
    pool_destroy(pool);
    pool = NULL;
}

// The planes as they look to a step that wrote nothing yet.
static void fill_with_nan(void)
{
    size_t bytes = pool_bytes_per_block(&pool->config) / 2 * pool->config.num_blocks;
    memset(pool->k, 0xff, bytes);
    memset(pool->v, 0xff, bytes);
}

static float k_at(int layer, int block, int head, int slot, int d)
{
    return ((float *)pool->k)[kv_offset(&pool->config, layer, block, head, slot) + d];
}

static float v_at(int layer, int block, int head, int slot, int d)
{
    return ((float *)pool->v)[kv_offset(&pool->config, layer, block, head, slot) + d];
}

// What the key of a token holds in element d; its value has the same with a minus.
static float mark(int layer, int position, int head, int d)
{
    return (float)(1000 * layer + 10 * (position + 1) + 4 * head + d);
}

// Plans the newest n tokens of a sequence and writes their marks, in every layer.
static void write_marks(Seq *seq, int n)
{
    enum { MOST = 1024 };
    float k[MOST], v[MOST];
    const PoolConfig *c = &pool->config;
    Batch batch = {1, &seq, &n};
    OK(pool_plan(pool, &batch));
    for (int layer = 0; layer < c->num_layers; layer++) {
        int i = 0;
        for (int t = seq->length - n; t < seq->length; t++)
            for (int head = 0; head < c->num_kv_heads; head++)
                for (int d = 0; d < c->head_dim; d++, i++) {
                    k[i] = mark(layer, t, head, d);
                    v[i] = -k[i];
                }
        OK(pool_write(pool, layer, k, v));
    }
}

// A sequence whose table is 1 2 0: another one had block 0 before.
static Seq *new_seq_1_2_0(void)
{
    Seq *first = new_seq_of("first", 4);
    Seq *seq = new_seq_of("A", 8);
    CALL(seq_release(first), "block 0 becomes free");
    names[0] = "A";
    OK(seq_append(seq, 3));
    EQUAL(seq->block_table[2], 0, "block 0 was freed last, so it is taken first");
    return seq;
}

// ---- stage 1: addresses -----------------------------------------------------------------------

static void test_ceil_div_rounds_up(void)
{
    EQUAL(ceil_div(0, 4), 0, "no tokens need no block");
    EQUAL(ceil_div(1, 4), 1, "one token needs a block, of which it fills a part");
    EQUAL(ceil_div(4, 4), 1, "four tokens fill one block of four");
    EQUAL(ceil_div(5, 4), 2, "the fifth token needs a second block");
    EQUAL(ceil_div(9, 3), 3, "nine tokens fill three blocks of three");
    EQUAL(ceil_div(6000000001, 4), 1500000001, "the sum is too large for an int: stay in int64_t");
}

static void test_offset_by_hand(void)
{
    // [2 layers][3 blocks][2 heads][4 slots][5 elements]
    PoolConfig c = {2, 2, 5, 4, 3, PAGED_F32, 0, PAGED_CPU};
    EQUAL(kv_offset(&c, 0, 0, 0, 0), 0, "the plane begins with layer 0, block 0, head 0, slot 0");
    EQUAL(kv_offset(&c, 0, 0, 0, 1), 5, "a slot has head_dim = 5 elements");
    EQUAL(kv_offset(&c, 0, 0, 1, 0), 20, "a head has 4 slots of 5 elements");
    EQUAL(kv_offset(&c, 0, 1, 0, 0), 40, "a block has 2 heads of 20 elements");
    EQUAL(kv_offset(&c, 1, 0, 0, 0), 120, "a layer has 3 blocks of 40 elements");
    EQUAL(kv_offset(&c, 1, 2, 1, 3), 235, "120 + 2 * 40 + 20 + 3 * 5");
}

static void test_offset_in_a_large_pool(void)
{
    PoolConfig c = {80, 8, 128, 16, 20000, PAGED_F16, 0, PAGED_CPU};
    EQUAL(kv_offset(&c, 79, 19999, 7, 15), 26214399872, "too large for an int: compute in size_t");
}

static void test_bytes_of_a_token(void)
{
    PoolConfig c = {2, 3, 5, 16, 0, PAGED_F32, 0, PAGED_CPU};
    EQUAL(pool_bytes_per_token(&c), 240, "2 (K and V) * 2 layers * 3 heads * 5 floats * 4 bytes");
    c.dtype = PAGED_BF16;
    EQUAL(pool_bytes_per_token(&c), 120, "an element of 16 bits has 2 bytes");
    PoolConfig llama = {32, 32, 128, 16, 0, PAGED_F16, 0, PAGED_CPU};
    EQUAL(pool_bytes_per_token(&llama), 524288, "Llama 2 7B: half a MiB for every token");
    c.head_dim = 0;
    EQUAL(pool_bytes_per_token(&c), 0, "the shape is invalid: config_ok() says so");
    PoolConfig huge = {INT_MAX, INT_MAX, 256, 16, 0, PAGED_F32, 0, PAGED_CPU};
    EQUAL(pool_bytes_per_token(&huge), 0, "the number overflows size_t: multiply() says so");
}

// ---- stage 2: free list -----------------------------------------------------------------------

// The free list, from the front to the back and back again, must be these blocks.
static void list_is(int line, int count, const int *blocks, const char *why)
{
    const Block *b = pool->blocks;
    int head = pool->config.num_blocks;
    int prev = head;
    for (int i = 0; i <= count; i++) {
        int block = i < count ? blocks[i] : head;
        begin(line, i == 0 ? "the head's next" : "next of the block before", why);
        equal(b[prev].next, block);
        begin(line, i == count ? "the head's prev" : "prev of that block", why);
        equal(b[block].prev, prev);
        prev = block;
    }
    begin(line, "pool->num_free", "it counts the blocks on the list");
    equal(pool->num_free, count);
}

#define LIST(why, ...) \
    list_is(__LINE__, sizeof(int[]){__VA_ARGS__} / sizeof(int), (int[]){__VA_ARGS__}, why)

static void test_list_of_a_new_pool(void)
{
    new_pool(1, 1, 1, 4, 4);
    LIST("pool_create() inserts each block after the last one", 0, 1, 2, 3);
    pool_destroy(pool);
}

static void test_list_remove_and_insert(void)
{
    new_pool(1, 1, 1, 4, 4);
    CALL(free_list_remove(pool, 1), "out of the middle");
    LIST("block 1 is removed; its neighbours are linked to each other", 0, 2, 3);
    EQUAL(pool->blocks[1].prev, -1, "a block that is not on the list has no neighbours");
    EQUAL(pool->blocks[1].next, -1, "a block that is not on the list has no neighbours");
    CALL(free_list_remove(pool, 0), "the first one");
    CALL(free_list_remove(pool, 3), "the last one");
    LIST("only block 2 is left", 2);
    CALL(free_list_insert_after(pool, 4, 3), "after the head, which is record 4");
    LIST("after the head is the front", 3, 2);
    CALL(free_list_insert_after(pool, 3, 0), "between two blocks");
    LIST("block 0 is inserted after block 3", 3, 0, 2);
    CALL(free_list_insert_after(pool, 2, 1), "after the last one");
    LIST("block 1 is inserted after block 2", 3, 0, 2, 1);
    SOUND();
    pool_destroy(pool);
}

static void test_take_the_first(void)
{
    new_pool(1, 1, 1, 4, 4);
    EQUAL(block_take(pool), 0, "a new pool hands out block 0 first");
    EQUAL(block_take(pool), 1, "and then block 1");
    EQUAL(pool->blocks[1].ref_count, 1, "one block table will name the block");
    LIST("a block that is taken is off the list", 2, 3);
    pool->blocks[2].ref_count = 1;
    PANICS(block_take(pool), "a block on the free list is in use");
    pool->blocks[2].ref_count = 0;
    EQUAL(block_take(pool) + block_take(pool), 5, "then blocks 2 and 3");
    PANICS(block_take(pool), "no free block to take");
    pool->num_free = 1;  // which is wrong: the list is empty, the head's next is the head
    PANICS(block_take(pool), "no free block to take");
    pool_destroy(pool);
}

static void test_drop_to_the_front(void)
{
    new_pool(1, 1, 1, 4, 4);
    for (int i = 0; i < 3; i++) EQUAL(block_take(pool), i, "a new pool hands out 0, 1, 2, ...");
    CALL(block_drop(pool, 1), "its only reference");
    EQUAL(pool->blocks[1].ref_count, 0, "the last reference is dropped");
    LIST("the block is free again, at the front", 1, 3);
    CALL(block_drop(pool, 0), "its only reference");
    LIST("what was used last is at the front", 0, 1, 3);
    pool->blocks[2].ref_count = 2;  // two tables name it
    CALL(block_drop(pool, 2), "the first of two references");
    EQUAL(pool->blocks[2].ref_count, 1, "one reference is dropped, one is left");
    LIST("block 2 is still in use, so it does not go to the list", 0, 1, 3);
    CALL(block_drop(pool, 2), "the last reference");
    LIST("now it is free", 2, 0, 1, 3);
    PANICS(block_drop(pool, 2), "a free block is given back");
    SOUND();
    pool_destroy(pool);
}

// ---- stage 3: append --------------------------------------------------------------------------

static void test_append_block_by_block(void)
{
    new_pool(1, 1, 1, 4, 6);
    Seq *a = new_seq("A");
    OK(seq_append(a, 0));
    EQUAL(arrlen(a->block_table), 0, "no tokens, no block");
    for (int length = 1; length <= 13; length++) {
        OK(seq_append(a, 1));
        EQUAL(a->length, length, "each append adds one token");
        EQUAL(arrlen(a->block_table), (length + 3) / 4, "a block is taken for tokens 0, 4, 8, 12");
        EQUAL(pool->num_free, 6 - (length + 3) / 4, "and no other block is taken");
    }
    for (int i = 0; i < 4; i++) EQUAL(a->block_table[i], i, "the list began with 0, 1, 2, 3");
    EQUAL(a->num_computed_tokens, 0, "room is not contents: nothing is computed yet");
    end_pool();
}

static void test_append_two_sequences(void)
{
    new_pool(1, 1, 1, 4, 8);
    Seq *a = new_seq_of("A", 6);
    Seq *b = new_seq_of("B", 5);
    OK(seq_append(a, 4));
    EQUAL(arrlen(a->block_table), 3, "10 tokens in blocks of 4");
    EQUAL(a->block_table[1], 1, "an append leaves the entries before it");
    EQUAL(b->block_table[0], 2, "A has blocks 0 and 1");
    EQUAL(a->block_table[2], 4, "B has blocks 2 and 3");
    end_pool();
}

static void test_append_all_or_nothing(void)
{
    new_pool(1, 1, 1, 4, 4);
    Seq *a = new_seq_of("A", 10);
    Seq *b = new_seq("B");
    EQUAL(seq_append(b, 5), PAGED_OUT_OF_BLOCKS, "B needs 2 blocks, and 1 is free");
    EQUAL(arrlen(b->block_table), 0, "a call that fails changes nothing: count before you take");
    EQUAL(b->length, 0, "a call that fails changes nothing");
    LIST("a call that fails changes nothing", 3);
    EQUAL(seq_append(a, 3), PAGED_OK, "2 tokens fit into the last block, and 1 block is free");
    EQUAL(seq_append(a, 3), PAGED_OK, "they fit into the last block: no free block is needed");
    EQUAL(seq_append(b, 1), PAGED_OUT_OF_BLOCKS, "no block is free");
    EQUAL(seq_append(b, 0), PAGED_OK, "no tokens need no block");
    end_pool();
}

static void test_append_too_long(void)
{
    new_pool(1, 1, 1, 4, 4);
    Seq *a = new_seq_of("A", 3);
    EQUAL(seq_append(NULL, 1), PAGED_BAD_ARGUMENT, "there is no sequence");
    EQUAL(seq_append(a, -1), PAGED_BAD_ARGUMENT, "a length does not shrink");
    EQUAL(seq_append(a, 14), PAGED_TOO_LONG, "17 tokens do not fit into a pool of 16, ever");
    EQUAL(seq_append(a, INT_MAX), PAGED_TOO_LONG, "3 + INT_MAX overflows an int: use int64_t");
    EQUAL(a->length, 3, "a call that fails changes nothing");
    EQUAL(seq_append(a, 13), PAGED_OK, "16 tokens fill the pool");
    end_pool();
}

static void test_append_expires_the_plan(void)
{
    new_pool(1, 1, 1, 4, 4);
    Seq *a = new_seq_of("A", 3);
    int n = 1;
    Batch batch = {1, &a, &n};
    OK(pool_plan(pool, &batch));
    OK(seq_append(a, 0));
    EQUAL(pool->plan_number != 0, 1, "an append of no tokens edits nothing: the plan stays");
    EQUAL(seq_append(a, 20), PAGED_TOO_LONG, "the pool has room for 16");
    EQUAL(pool->plan_number != 0, 1, "a call that fails changes nothing: the plan stays");
    OK(seq_append(a, 1));
    EQUAL(pool->plan_number, 0, "the sequence was edited: plan_expire(seq)");
    end_pool();
}

// ---- stage 4: write and gather ----------------------------------------------------------------

// Two sequences: 3 tokens in block 3, then 6 tokens in blocks 2 and 0.
static const int two_tables[] = {3, 2, 0};
static const Start two_starts[] = {{0, 0}, {3, 1}, {9, 3}};

static View view_of_two(void)
{
    View view;
    memset(&view, 0, sizeof view);
    view.layout = pool->config;
    view.k = pool->k;
    view.v = pool->v;
    view.num_seqs = 2;
    view.max_seq_len = 6;
    view.starts = two_starts;
    view.tables = two_tables;
    return view;
}

static void test_walk_through_the_table(void)
{
    new_pool(2, 2, 3, 4, 4);  // a slot has 3 elements, a head 12, a block 24, a layer 96
    View view = view_of_two();
    EQUAL(token_offset(&view, 0, 0, 0), 72, "sequence 0, token 0: block 3, slot 0");
    EQUAL(token_offset(&view, 0, 2, 1), 90, "sequence 0, token 2: block 3, head 1, slot 2");
    EQUAL(token_offset(&view, 1, 0, 0), 48, "the table of sequence 1 begins at entry 1: block 2");
    EQUAL(token_offset(&view, 1, 5, 1), 15, "5 / 4 is its second entry, block 0; slot 5 % 4 = 1");
    view.layer = 1;
    EQUAL(token_offset(&view, 1, 5, 0), 99, "the same in layer 1, which is 96 elements further");
    pool_destroy(pool);
}

static void test_write_by_hand(void)
{
    new_pool(2, 2, 3, 4, 6);
    Seq *a = new_seq_1_2_0();
    fill_with_nan();
    write_marks(a, 3);
    for (int layer = 0; layer < 2; layer++)
        for (int head = 0; head < 2; head++)
            for (int d = 0; d < 3; d++)
                for (int slot = 0; slot < 3; slot++) {
                    CLOSE(k_at(layer, 0, head, slot, d), mark(layer, 8 + slot, head, d),
                          "the three new tokens, 8 to 10, are in slots 0 to 2 of block 0");
                    CLOSE(v_at(layer, 0, head, slot, d), -mark(layer, 8 + slot, head, d),
                          "V goes to its own plane, at the same element");
                }
    EQUAL(isnan(k_at(0, 0, 0, 3, 0)), 1, "slot 3 belongs to a token that is not there yet");
    EQUAL(isnan(k_at(0, 1, 0, 0, 0)), 1, "block 1 has no query token: only those are written");
    EQUAL(a->num_computed_tokens, 0, "tokens 0 to 7 were not written, so there is a gap");
    end_pool();
}

static void test_write_by_two_threads(void)
{
    new_pool(1, 2, 3, 4, 4);
    fill_with_nan();
    QueryToken queries[] = {{0, 1}, {1, 5}};
    float k[12], v[12];  // [2 rows][2 heads][3 elements]
    for (int i = 0; i < 12; i++) v[i] = -(k[i] = (float)i);
    WriteJob job = {view_of_two(), k, v};
    job.view.queries = queries;
    job.view.num_query_tokens = 2;
    CALL(write_token(&job, 1, 1, 2), "row 1, by thread 1 of 2");
    EQUAL(isnan(k_at(0, 3, 0, 1, 1)), 1, "row 0 is a job of its own");
    int written = 0;
    for (int i = 0; i < 6; i++) written += !isnan(k_at(0, 0, i / 3, 1, i % 3));
    EQUAL(written > 0 && written < 6, 1, "the threads share the row: each writes a part of it");
    CALL(write_token(&job, 1, 0, 2), "row 1, by thread 0 of 2");
    for (int i = 0; i < 6; i++) {
        CLOSE(k_at(0, 0, i / 3, 1, i % 3), 6 + i,
              "row 1 is token 5 of sequence 1: block 0, slot 1");
        CLOSE(v_at(0, 0, i / 3, 1, i % 3), -6 - i, "and the two threads together write all of it");
    }
    pool_destroy(pool);
}

static void test_gather_in_order(void)
{
    new_pool(2, 2, 3, 4, 6);
    Seq *a = new_seq_1_2_0();
    fill_with_nan();
    write_marks(a, 11);
    float k[12 * 6], v[12 * 6];  // a row more than the sequence has
    for (int i = 0; i < 12 * 6; i++) k[i] = v[i] = 0.5f;
    OK(seq_gather(a, 1, k, v));
    for (int i = 0; i < 11 * 6; i++) {
        CLOSE(k[i], mark(1, i / 6, i / 3 % 2, i % 3), "rows are [token][head][element], in order");
        CLOSE(v[i], -mark(1, i / 6, i / 3 % 2, i % 3), "V comes from its own plane");
    }
    CLOSE(k[11 * 6], 0.5, "the last block has 3 filled slots: the fourth is not gathered");
    end_pool();
}

static void test_gather_two_sequences(void)
{
    new_pool(1, 1, 2, 4, 4);
    fill_with_nan();
    for (int slot = 0; slot < 4; slot++)
        for (int d = 0; d < 2; d++)
            for (int block = 0; block < 4; block++) {
                size_t at = kv_offset(&pool->config, 0, block, 0, slot) + d;
                ((float *)pool->k)[at] = (float)(100 * block + 10 * slot + d);
                ((float *)pool->v)[at] = (float)-(100 * block + 10 * slot + d);
            }
    float k[20], v[20];  // [3 + 6 tokens, and one more][1 head][2 elements]
    for (int i = 0; i < 20; i++) k[i] = v[i] = 0.5f;
    GatherJob job = {view_of_two(), k, v, PAGED_F32};
    CALL(gather_block(&job, 1, 1, 0, 1), "sequence 1, logical block 1");
    CLOSE(k[14], 0, "its block 0 goes to tokens 7 and 8 of the copy: 3 before it, 4 in block 2");
    CLOSE(k[17], 11, "token 8 of the copy is slot 1 of block 0");
    CLOSE(k[18], 0.5, "the sequence ends there: starts[2].token is 9");
    CALL(gather_block(&job, 0, 0, 0, 1), "sequence 0, logical block 0");
    CLOSE(v[4], -320, "token 2 of sequence 0 is slot 2 of block 3");
    CLOSE(k[6], 0.5, "sequence 0 has 3 tokens: the next row belongs to sequence 1");
    pool_destroy(pool);
}

static void test_gather_bf16(void)
{
    PoolConfig config = {1, 1, 2, 4, 2, PAGED_BF16, 0, PAGED_CPU};
    OK(pool_create(&config, &pool));
    Seq *a = new_seq_of("A", 1);
    uint16_t *k = (uint16_t *)pool->k;
    uint16_t *v = (uint16_t *)pool->v;
    k[0] = 0x3f80;  // the upper half of 1.0f
    k[1] = 0xc040;  // of -3.0f
    v[0] = 0x4120;  // of 10.0f
    v[1] = 0;
    float to[4];
    OK(seq_gather(a, 0, to, to + 2));
    CLOSE(to[1], -3, "the pool stores 16 bits, the copy is float32: load_element() converts");
    CLOSE(to[2], 10, "the pool stores 16 bits, the copy is float32: load_element() converts");
    end_pool();
}

// ---- stages 5 and 6: attention ----------------------------------------------------------------
// Each test runs over a dense copy (ATTEND_GATHER), which needs no walk through the table, and then
// through the table; in stage 5 on the CPU, in stage 6 with the kernels, on the stand-in.

static int way;  // the flags of attend()

static const char *because(const char *why)
{
    static char text[300];
    snprintf(text, sizeof text, "%s; here %s, %s", why,
             way == ATTEND_GATHER ? "over a dense copy" : "through the table",
             device == PAGED_CPU
                 ? "on the CPU"
                 : "by the kernel on the stand-in, where shared memory begins as NaN");
    return text;
}

#define EACH_WAY for (way = ATTEND_GATHER; way >= ATTEND_PAGED; way--)

static void plan_newest(Seq *seq, int n)
{
    Batch batch = {1, &seq, &n};
    OK(pool_plan(pool, &batch));
}

// A new pool of one layer in which A has n tokens with these K and V, the newest of them planned.
static void new_pool_with(int heads, int dim, int n, const float *k, const float *v, int newest)
{
    new_pool(1, heads, dim, 2, n / 2 + 2);
    Seq *a = new_seq_of("A", n);
    plan_newest(a, n);
    OK(pool_write(pool, 0, k, v));
    plan_newest(a, newest);
}

static void test_walk_in_a_dense_copy(void)
{
    new_pool(2, 2, 3, 4, 4);
    View view = view_of_two();
    view.tables = NULL;
    view.layer = 1;
    EQUAL(token_offset(&view, 0, 2, 1), 15,
          "without a table: 2 tokens of [2 heads][3], then head 1");
    EQUAL(token_offset(&view, 1, 5, 0), 48, "sequence 1 begins at starts[1].token = 3: row 8");
    pool_destroy(pool);
}

static void test_attention_is_causal(void)
{
    const float k[5] = {0}, q[3] = {0}, v[] = {1, 2, 6, 11, 20};
    float out[3], lse[3];
    EACH_WAY
    {
        new_pool_with(1, 1, 5, k, v, 3);
        OK(attend(pool, way, 0, 1, 1, q, out, lse));
        CLOSE(out[0], 3, because("row 0 is token 2: it sees tokens 0 to 2, itself included"));
        CLOSE(out[1], 5, because("row 1 is token 3: the mean of V of tokens 0 to 3"));
        CLOSE(out[2], 8, because("row 2 is token 4: the mean of V of all five"));
        CLOSE(lse[1], log(4), because("lse: four scores of 0; HEADROOM does not count"));
        end_pool();
    }
}

static void test_softmax_by_hand(void)
{
    const float k[] = {0, 1.0986123f}, v[] = {4, 8}, q = 1;  // ln 3
    float out, lse;
    EACH_WAY
    {
        new_pool_with(1, 1, 2, k, v, 1);
        OK(attend(pool, way, 0, 1, 1, &q, &out, &lse));
        CLOSE(out, 7, because("scores 0 and ln 3: weights 1/4 and 3/4; 4 * 1/4 + 8 * 3/4"));
        CLOSE(lse, log(4), because("lse is the log of exp(0) + exp(ln 3)"));
        OK(attend(pool, way, 0, 1, 0.5f, &q, &out, NULL));
        CLOSE(out, (4 + 8 * sqrt(3)) / (1 + sqrt(3)), because("scale 0.5 halves the scores"));
        end_pool();
    }
}

static void test_attention_of_groups(void)
{
    const float k[4 * 2] = {0}, q[6 * 2] = {0};      // 6 query heads on 2 KV heads, head_dim 2
    const float v[] = {1, 2, 10, 20, 3, 4, 30, 40};  // [2 tokens][2 heads][2]
    float out[12];
    EACH_WAY
    {
        new_pool_with(2, 2, 2, k, v, 1);
        OK(attend(pool, way, 0, 6, 1, q, out, NULL));
        for (int head = 0; head < 6; head++) {
            CLOSE(out[head * 2], head < 3 ? 2 : 20,
                  because("query heads 0 to 2 read KV head 0, 3 to 5 read KV head 1"));
            CLOSE(out[head * 2 + 1], head < 3 ? 3 : 30, because("element 1 of the same"));
        }
        end_pool();
    }
}

static void test_attention_of_far_scores(void)
{
    const float k[] = {-INFINITY, -INFINITY, 100, 101.09861f}, v[] = {1, 2, 4, 8}, q[3] = {1, 1, 1};
    float out[3], lse[3];
    EACH_WAY
    {
        new_pool_with(1, 1, 4, k, v, 3);
        OK(attend(pool, way, 0, 1, 1, q, out, lse));
        CLOSE(out[0], 0, because("all scores are -infinity: the row gives 0, not NaN"));
        CLOSE(lse[0], -INFINITY, because("all scores are -infinity: so is lse"));
        CLOSE(out[1], 4, because("exp(100) overflows: subtract the maximum first"));
        CLOSE(out[2], 7, because("weights 1/4 and 3/4; -infinity has weight 0"));
        CLOSE(lse[2], 101.38629, because("lse: the maximum, plus ln(1 + 1/3)"));
        end_pool();
    }
}

static void test_attention_without_overflow(void)
{
    const float k[] = {3e19f, 3e19f, 3e19f}, v[] = {3e38f, 3e38f, 3e38f}, q = 3e19f;
    float out;
    EACH_WAY
    {
        new_pool_with(1, 1, 3, k, v, 1);
        OK(attend(pool, way, 0, 1, 2e-38f, &q, &out, NULL));
        EQUAL(isnan(out), 0, because("q . K overflows a float, unless q is scaled before"));
        CLOSE(out, 3e38f, because("the sum of three V overflows a float: HEADROOM on each weight"));
        end_pool();
    }
}

static void test_attention_keeps_nan(void)
{
    const float q = 1;
    float k[20], v[20], out;
    EACH_WAY
    {
        for (int i = 0; i < 2; i++) {
            for (int t = 0; t < 20; t++) {
                k[t] = i == 0 || t == 19 ? 0 : -INFINITY;
                v[t] = 1;
            }
            *(i == 0 ? k : v) = NAN;
            new_pool_with(1, 1, 20, k, v, 1);
            OK(attend(pool, way, 0, 1, 1, &q, &out, NULL));
            EQUAL(isnan(out), 1,
                  because(i == 0 ? "K of token 0 is NaN, so its score and weight are"
                                 : "V of token 0 is NaN: 0 * NaN is NaN, not 0"));
            end_pool();
        }
    }
}

static float random_float(unsigned *state)  // in [-1, 1)
{
    *state = *state * 1664525 + 1013904223;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

enum { MOST_TOKENS = 50, MOST_HEADS = 4, MOST = MOST_TOKENS * MOST_HEADS * PAGED_MAX_HEAD_DIM };

// Attention of the newest `rows` of n tokens, against the oracle, which has no blocks. The scores
// grow with the position if `growing`, so that later tokens raise the maximum.
static void against_oracle(int dim, int n, int rows, int q_heads, int growing)
{
    static float k[MOST], v[MOST], q[MOST], out[MOST], expected[MOST];
    float lse[MOST_TOKENS * MOST_HEADS], expected_lse[MOST_TOKENS * MOST_HEADS];
    PoolConfig config = {1, 2, dim, 5, 12, PAGED_F32, 0, device};
    unsigned state = 1;
    for (int i = 0; i < n * 2 * dim; i++) {
        k[i] = random_float(&state) + (growing ? 0.25f * (float)(i / (2 * dim)) : 0);
        v[i] = random_float(&state);
    }
    for (int i = 0; i < rows * q_heads * dim; i++) q[i] = random_float(&state) + (growing ? 1 : 0);
    Oracle *oracle;
    OK(oracle_create(&config, n, &oracle));
    OK(oracle_append(oracle, n));
    OK(oracle_write(oracle, 0, n, k, v));
    OK(oracle_attend(oracle, 0, rows, q_heads, 0, q, expected, expected_lse));
    oracle_release(oracle);
    OK(pool_create(&config, &pool));
    Seq *a = new_seq_of("A", n);
    plan_newest(a, n);
    OK(pool_write(pool, 0, k, v));
    plan_newest(a, rows);
    OK(attend(pool, way, 0, q_heads, 0, q, out, lse));
    for (int i = 0; i < rows * q_heads * dim; i++) {
        CLOSE(out[i], expected[i], because("this is what the oracle computes"));
        CLOSE(lse[i / dim], expected_lse[i / dim], because("this is lse of the oracle"));
    }
    end_pool();
}

static void test_attention_of_many_tiles(void)
{
    EACH_WAY
    {
        against_oracle(8, 15, 15, 2, 0);  // one tile
        against_oracle(8, 50, 3, 2, 0);
        against_oracle(8, 50, 3, 4, 1);  // a new maximum in every tile
    }
}

static void test_merge_by_hand(void)
{
    // States of m, l, o[2]. Weights are exp(m - the largest m): 1/2, 1, and 0 for an empty one.
    float states[] = {-3, 1, 4, 10, -3 + 0.6931472f, 2, 6, 20, -INFINITY, 0, 0, 0};
    float m, l;
    CLOSE(merge(states, 3, 2, 0, &m, &l), 8,
          "o[0]: 4 * 1/2 + 6 * 1; the larger of -3 and -2.3 has weight 1");
    CLOSE(m, -3 + log(2), "m is the largest m");
    CLOSE(l, 2.5, "l: 1 * 1/2 + 2 * 1");
    CLOSE(merge(states, 3, 2, 1, &m, &l), 25, "o[1]: 10 * 1/2 + 20 * 1");
    states[0] = states[4] = -INFINITY;
    states[1] = states[2] = states[5] = states[6] = 0;
    CLOSE(merge(states, 3, 2, 0, &m, &l), 0, "no state has seen a token: 0, not NaN");
    CLOSE(l, 0, "no state has seen a token");
    CLOSE(m, -INFINITY, "no state has seen a token");
}

// The tests of stage 5 again, with the kernels.
#define KERNEL_TEST(name) \
    static void test_kernel_##name(void) \
    { \
        device = PAGED_STANDIN; \
        test_##name(); \
    }

KERNEL_TEST(attention_is_causal)
KERNEL_TEST(softmax_by_hand)
KERNEL_TEST(attention_of_groups)
KERNEL_TEST(attention_of_far_scores)
KERNEL_TEST(attention_without_overflow)
KERNEL_TEST(attention_keeps_nan)

static void test_kernel_of_any_head_dim(void)
{
    const int dims[] = {1, 3, 32, 40, 256};
    device = PAGED_STANDIN;
    for (int i = 0; i < 5; i++) {
        way = i % 2;
        against_oracle(dims[i], 3, 1, 2, 0);  // fewer tokens than warps
        against_oracle(dims[i], 21, 2, 4, 1);
    }
}

static void test_kernel_in_lane_orders(void)
{
    device = PAGED_STANDIN;
    way = ATTEND_PAGED;
    for (gpu_lane_order = 0; gpu_lane_order < 4; gpu_lane_order++) {
        against_oracle(40, 2, 1, 4, 1);
        against_oracle(40, 9, 2, 4, 1);
    }
}

// ---- stage 7: sharing -------------------------------------------------------------------------

static void test_share_counts(void)
{
    new_pool(1, 1, 1, 4, 4);
    EQUAL(block_take(pool), 0, "a new pool hands out block 0 first");
    CALL(block_share(pool, 0), "a block in use");
    EQUAL(pool->blocks[0].ref_count, 2, "two tables name it now");
    EQUAL(pool->num_free, 3, "a block in use is not on the free list");
    CALL(block_share(pool, 2), "a free block, from the middle of the list");
    EQUAL(pool->blocks[2].ref_count, 1, "one table names it now");
    LIST("a block that a table names is not free", 1, 3);
    pool_destroy(pool);
}

static void test_fork_shares_blocks(void)
{
    new_pool(1, 1, 1, 4, 8);
    Seq *a = new_seq_of("A", 10);
    write_marks(a, 10);
    Seq *b = NULL;
    EQUAL(seq_fork(a, 11, &b), PAGED_BAD_ARGUMENT, "A has 10 tokens");
    EQUAL(seq_fork(a, -1, &b), PAGED_BAD_ARGUMENT, "at >= 0");
    EQUAL(seq_fork(NULL, 0, &b), PAGED_BAD_ARGUMENT, "there is no parent");
    EQUAL(arrlen(pool->seqs), 1, "a call that fails changes nothing");
    EQUAL(pool->plan_number != 0, 1, "a call that fails changes nothing: the plan stays");
    OK(seq_fork(a, 8, &b));
    names[1] = "B";
    EQUAL(b->length, 8, "B shares the first 8 tokens");
    EQUAL(arrlen(b->block_table), 2, "8 tokens are in 2 blocks, and no further one is shared");
    EQUAL(b->block_table[1], a->block_table[1], "the same blocks in the same order");
    EQUAL(pool->blocks[1].ref_count, 2, "block 1 is counted once more");
    EQUAL(pool->blocks[2].ref_count, 1, "block 2 is A's alone");
    EQUAL(pool->num_free, 5, "no block is taken");
    EQUAL(b->num_computed_tokens, 8, "their K and V are stored");
    EQUAL(pool->plan_number, 0,
          "the plan names A, whose blocks are shared now: plan_expire(parent)");
    Seq *c = NULL;
    OK(seq_append(a, 1));
    OK(seq_fork(a, 11, &c));
    names[2] = "C";
    EQUAL(arrlen(c->block_table), 3, "11 tokens are in 3 blocks, the last one partly filled");
    EQUAL(c->num_computed_tokens, 10, "token 10 of A is not computed, so that of C is not either");
    SOUND();
    CALL(seq_release(a), "A leaves; its blocks stay with B and C");
    end_pool();
}

static void copy_slots_in_a_pool(void)
{
    new_pool(2, 2, 3, 4, 4);
    Seq *a = new_seq_of("A", 4);
    fill_with_nan();
    write_marks(a, 4);
    CALL(pool_copy_slots(pool, 2, 0, 1, 2), "slots 1 and 2 of block 0 to block 2, by copy_slots()");
    for (int layer = 0; layer < 2; layer++)
        for (int head = 0; head < 2; head++)
            for (int slot = 1; slot < 3; slot++) {
                CLOSE(k_at(layer, 2, head, slot, 0), mark(layer, slot, head, 0),
                      "K, first element");
                CLOSE(k_at(layer, 2, head, slot, 2), mark(layer, slot, head, 2), "K, last element");
                CLOSE(v_at(layer, 2, head, slot, 2), -mark(layer, slot, head, 2), "V as well");
            }
    EQUAL(isnan(k_at(1, 2, 1, 0, 2)), 1, "slot 0 is before the first");
    EQUAL(isnan(k_at(1, 2, 1, 3, 0)), 1, "slot 3 is after the last");
    CALL(pool_copy_slots(pool, 0, POISON, 3, 1), "slot 3 of block 0 becomes NaN");
    EQUAL(isnan(k_at(1, 0, 1, 3, 2)), 1, "from POISON: NaN is written, which is source NULL");
    EQUAL(isnan(v_at(1, 0, 1, 3, 2)), 1, "into V as well");
    CLOSE(k_at(1, 0, 1, 2, 2), mark(1, 2, 1, 2), "slot 2 keeps its bytes");
    end_pool();
}

static void test_copy_slots_by_hand(void)
{
    copy_slots_in_a_pool();
    device = PAGED_STANDIN;  // 128 threads share each piece
    copy_slots_in_a_pool();
}

static void test_copy_on_write(void)
{
    new_pool(2, 1, 2, 4, 8);
    Seq *a = new_seq_of("A", 6);
    Seq *b = NULL;
    write_marks(a, 6);
    OK(seq_fork(a, 6, &b));
    names[1] = "B";
    OK(seq_append(a, 1));
    EQUAL(a->block_table[1], 2, "B reads block 1: A gets a block of its own for token 6");
    EQUAL(b->block_table[1], 1, "B keeps what it has");
    EQUAL(a->block_table[0], 0, "block 0 is full, so it is not written: it stays shared");
    EQUAL(pool->blocks[1].ref_count, 1, "A has let go of block 1");
    EQUAL(pool->blocks[0].ref_count, 2, "block 0 is still shared");
    EQUAL(pool->num_copies, 1, "num_copies counts the copies");
    for (int layer = 0; layer < 2; layer++) {
        CLOSE(k_at(layer, 2, 0, 1, 1), mark(layer, 5, 0, 1), "the copy has K of token 5");
        CLOSE(v_at(layer, 2, 0, 0, 0), -mark(layer, 4, 0, 0), "and V of token 4");
    }
    OK(seq_append(b, 1));
    EQUAL(b->block_table[1], 1, "now block 1 is B's alone: it writes in place");
    EQUAL(pool->num_copies, 1, "no second copy is needed");
    SOUND();
    Seq *c = NULL;
    OK(seq_append(b, 1));
    OK(seq_fork(b, 8, &c));
    names[2] = "C";
    OK(seq_append(c, 1));
    EQUAL(c->block_table[1], 1, "block 1 is full: token 8 needs a new block, and no copy");
    EQUAL(pool->num_copies, 1, "a full block is not copied");
    end_pool();
}

static void test_copy_needs_a_block(void)
{
    new_pool(1, 1, 1, 4, 3);
    Seq *a = new_seq_of("A", 6);
    Seq *b = NULL;
    OK(seq_fork(a, 6, &b));
    names[1] = "B";
    EQUAL(seq_append(a, 3), PAGED_OUT_OF_BLOCKS,
          "token 8 needs a block, the copy of 4 and 5 another");
    EQUAL(a->length, 6, "a call that fails changes nothing");
    EQUAL(pool->blocks[1].ref_count, 2, "a call that fails changes nothing");
    EQUAL(seq_append(a, 2), PAGED_OK, "the copy needs one block, and one is free");
    EQUAL(seq_append(b, 2), PAGED_OK, "in place: no block is needed");
    end_pool();
}

static void test_poison_shows(void)
{
    PoolConfig config = {2, 1, 2, 4, 4, PAGED_F32, 1, PAGED_CPU};
    OK(pool_create(&config, &pool));
    size_t floats = pool_bytes_per_block(&config) / 2 * 4 / sizeof(float);
    for (size_t i = 0; i < floats; i++) ((float *)pool->k)[i] = ((float *)pool->v)[i] = 1;
    Seq *a = new_seq_of("A", 3);
    EQUAL(isnan(k_at(1, 0, 0, 2, 1)), 1, "block_take() poisons the block: see block_poison()");
    EQUAL(isnan(k_at(1, 1, 0, 2, 1)), 0, "and no other block");
    write_marks(a, 3);
    CLOSE(v_at(1, 0, 0, 2, 1), -mark(1, 2, 0, 1), "what is written replaces the poison");
    CALL(seq_release(a), "block_drop() gets block 0");
    EQUAL(isnan(v_at(1, 0, 0, 2, 1)), 1, "block_drop() poisons a block that becomes free");
    end_pool();
}

// ---- stage 8: rewind --------------------------------------------------------------------------

static void test_rewind_by_hand(void)
{
    new_pool(1, 1, 1, 4, 6);
    Seq *a = new_seq_of("A", 14);
    write_marks(a, 14);
    EQUAL(seq_rewind(a, 15), PAGED_BAD_ARGUMENT, "A has 14 tokens");
    EQUAL(seq_rewind(a, -1), PAGED_BAD_ARGUMENT, "n >= 0");
    EQUAL(seq_rewind(NULL, 0), PAGED_BAD_ARGUMENT, "there is no sequence");
    OK(seq_rewind(a, 0));
    EQUAL(pool->plan_number != 0, 1, "nothing was edited: the plan stays");
    OK(seq_rewind(a, 1));
    EQUAL(pool->plan_number, 0, "the sequence was edited: plan_expire(seq)");
    EQUAL(a->length, 13, "one token is dropped");
    EQUAL(arrlen(a->block_table), 4, "token 12 is still in block 3");
    EQUAL(a->num_computed_tokens, 13, "token 13 is not there any more");
    OK(seq_rewind(a, 9));
    EQUAL(a->length, 4, "9 tokens are dropped");
    EQUAL(arrlen(a->block_table), 1, "4 tokens fill one block, and no second one is kept");
    LIST("dropped last one first: the free list is in the order of the table", 1, 2, 3, 4, 5);
    OK(seq_append(a, 1));
    EQUAL(a->num_computed_tokens, 4, "the new token is not computed");
    OK(seq_rewind(a, 5));
    EQUAL(arrlen(a->block_table), 0, "no tokens, no blocks");
    end_pool();
}

static void test_rewind_into_a_shared_block(void)
{
    new_pool(1, 1, 2, 4, 6);
    Seq *a = new_seq_of("A", 7);
    Seq *b = NULL;
    write_marks(a, 7);
    OK(seq_fork(a, 7, &b));
    names[1] = "B";
    OK(seq_rewind(a, 2));
    EQUAL(a->length, 5, "2 tokens are dropped");
    EQUAL(a->block_table[1], 1, "A still shares block 1, for token 4");
    EQUAL(pool->blocks[1].ref_count, 2, "A still shares block 1, for token 4");
    CLOSE(k_at(0, 1, 0, 2, 0), mark(0, 6, 0, 0), "B still reads token 6: it stays as it is");
    OK(seq_append(a, 1));
    EQUAL(a->block_table[1], 2, "A would write slot 1 of a shared block: it gets a copy");
    OK(seq_rewind(b, 3));
    EQUAL(pool->num_free, 4, "B has let go of block 1, which had no other table: it is free");
    end_pool();
}

static void test_rewind_poisons(void)
{
    PoolConfig config = {1, 1, 2, 4, 4, PAGED_F32, 1, PAGED_CPU};
    OK(pool_create(&config, &pool));
    Seq *a = new_seq_of("A", 7);
    Seq *b = NULL;
    write_marks(a, 7);
    OK(seq_rewind(a, 2));
    CLOSE(k_at(0, 1, 0, 0, 1), mark(0, 4, 0, 1), "token 4 is still there");
    EQUAL(isnan(k_at(0, 1, 0, 1, 0)), 1, "slots of dropped tokens are poisoned: 1 ...");
    EQUAL(isnan(v_at(0, 1, 0, 2, 1)), 1, "... and 2");
    OK(seq_append(a, 2));
    write_marks(a, 2);
    OK(seq_fork(a, 7, &b));
    names[1] = "B";
    OK(seq_rewind(a, 2));
    CLOSE(k_at(0, 1, 0, 2, 0), mark(0, 6, 0, 0),
          "B reads the block: no poison into a shared block");
    end_pool();
}

// ---- stage 9: the prefix cache ----------------------------------------------------------------

static const int text[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int other[] = {5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 15, 16};

static void test_prefix_by_hand(void)
{
    new_pool(1, 1, 1, 4, 8);
    for (int i = 0; i < 3; i++) EQUAL(block_take(pool), i, "a new pool hands out 0, 1, 2, ...");
    EQUAL(prefix_find(pool, 0, text), -1, "nothing is published");
    CALL(prefix_insert(pool, 0, 0, text), "tokens 5 6 7 8, at the beginning of a prompt");
    EQUAL(pool->blocks[0].serial, 1, "the first publication has number 1");
    EQUAL(pool->blocks[0].parent, 0, "no block comes before it");
    EQUAL(pool->last_serial, 1, "the pool counts publications");
    EQUAL(prefix_find(pool, 0, text), 0, "these tokens, at the beginning");
    EQUAL(prefix_find(pool, 0, other), -1, "the last of the four tokens differs");
    EQUAL(prefix_find(pool, 1, text), -1, "the same tokens, after another block");
    CALL(prefix_insert(pool, 1, 1, text + 4), "its child");
    CALL(prefix_insert(pool, 2, 0, other), "another beginning");
    EQUAL(pool->blocks[2].serial, 3, "a serial is never used again");
    EQUAL(prefix_find(pool, 1, text + 4), 1, "tokens 9 10 11 12 after the block of serial 1");
    EQUAL(prefix_find(pool, 3, text + 4), -1, "K and V depend on all tokens before: no hit");
    EQUAL(prefix_find(pool, 0, other), 2, "the other beginning");
    CALL(prefix_remove(pool, 0), "it is forgotten");
    EQUAL(pool->blocks[0].serial, 0, "0: not published");
    EQUAL(prefix_find(pool, 0, text), -1, "it is forgotten");
    CALL(prefix_insert(pool, 0, 0, text), "published again");
    EQUAL(pool->blocks[0].serial, 4, "a serial is never used again");
    pool->blocks[1].parent = 77;
    PANICS(prefix_remove(pool, 1), "a published block is not in its bucket");
    pool_destroy(pool);
}

static void test_prefix_in_one_bucket(void)
{
    new_pool(1, 1, 1, 4, 8);
    pool->num_buckets = 1;  // all blocks meet in one list
    for (int i = 0; i < 3; i++) EQUAL(block_take(pool), i, "a new pool hands out 0, 1, 2, ...");
    CALL(prefix_insert(pool, 0, 0, text), "the first of the list");
    CALL(prefix_insert(pool, 1, 0, text + 4), "before it, as buckets[0] says");
    CALL(prefix_insert(pool, 2, 0, text + 8), "before both");
    for (int i = 0; i < 3; i++)
        EQUAL(prefix_find(pool, 0, text + 4 * i), i, "follow next_in_bucket to the end, -1");
    CALL(prefix_remove(pool, 1), "from the middle of the list");
    EQUAL(prefix_find(pool, 0, text + 4), -1, "it is removed");
    EQUAL(prefix_find(pool, 0, text), 0, "what comes after it in the list is still found");
    EQUAL(prefix_find(pool, 7, text), -1, "the tokens are the same, but the parent is not");
    EQUAL(prefix_find(pool, 0, text + 8), 2, "what comes before it, too");
    CALL(prefix_remove(pool, 2), "the first of the list");
    CALL(prefix_remove(pool, 0), "the last of the list");
    EQUAL(pool->buckets[0], -1, "the list is empty");
    pool_destroy(pool);
}

static void test_publish_and_look_up(void)
{
    new_pool(1, 1, 1, 4, 8);
    Seq *a = new_seq_of("A", 10);
    EQUAL(seq_publish(a, text, 4), PAGED_BAD_ARGUMENT, "no token of A is computed yet");
    write_marks(a, 10);
    EQUAL(seq_publish(a, NULL, 4), PAGED_BAD_ARGUMENT, "there are no tokens");
    OK(seq_publish(a, text, 10));
    EQUAL(a->num_published, 2, "10 tokens have 2 full blocks");
    EQUAL(pool->blocks[0].serial, 1, "block 0 is published");
    EQUAL(pool->blocks[1].parent, 1, "block 1 comes after serial 1");
    EQUAL(pool->blocks[2].serial, 0, "block 2 is not full: not published");
    SOUND();
    Seq *b = new_seq("B");
    OK(seq_lookup(b, text, 10));
    EQUAL(b->length, 8, "two whole blocks are found");
    EQUAL(arrlen(b->block_table), 2, "two whole blocks are found");
    EQUAL(b->block_table[1], 1, "B shares A's blocks");
    EQUAL(pool->blocks[1].ref_count, 2, "block 1 is counted once more: block_share()");
    EQUAL(b->num_computed_tokens, 8, "their K and V are there");
    EQUAL(b->num_published, 2, "they are published");
    EQUAL(seq_lookup(b, text, 10), PAGED_BAD_ARGUMENT, "B is not empty");
    Seq *c = new_seq("C");
    OK(seq_lookup(c, text, 8));
    EQUAL(c->length, 4, "at most n - 1 tokens: the model needs one to compute");
    Seq *d = new_seq("D");
    OK(seq_lookup(d, other, 10));
    EQUAL(d->length, 0, "the first block differs; those after it do not count");
    end_pool();
}

static void test_free_but_published(void)
{
    new_pool(1, 1, 1, 4, 4);
    Seq *a = new_seq_of("A", 9);
    write_marks(a, 9);
    OK(seq_publish(a, text, 9));
    CALL(seq_release(a), "block_drop() gets 2, 1 and 0");
    LIST("published blocks go to the back, the others to the front", 2, 3, 1, 0);
    SOUND();
    Seq *b = new_seq("B");
    OK(seq_lookup(b, text, 9));
    EQUAL(b->length, 8, "free blocks are found until they are taken");
    LIST("B has blocks 0 and 1: they are not free any more", 2, 3);
    end_pool();
}

static void test_evicted_by_take(void)
{
    new_pool(1, 1, 1, 4, 4);
    Seq *a = new_seq_of("A", 9);
    write_marks(a, 9);
    OK(seq_publish(a, text, 9));
    CALL(seq_release(a), "the free list is now 2 3 1 0");
    Seq *b = new_seq_of("B", 12);
    EQUAL(b->block_table[2], 1, "the third block that is taken is published block 1");
    EQUAL(pool->blocks[1].serial, 0, "block_take() withdraws it: prefix_remove()");
    SOUND();
    Seq *c = new_seq("C");
    OK(seq_lookup(c, text, 9));
    EQUAL(c->length, 4, "block 0 is left of the prefix");
    end_pool();
}

static void test_published_twice(void)
{
    new_pool(1, 1, 1, 4, 8);
    Seq *a = new_seq_of("A", 9);
    Seq *b = new_seq_of("B", 9);
    write_marks(a, 9);
    write_marks(b, 9);
    OK(seq_publish(a, text, 9));
    OK(seq_publish(b, text, 9));
    EQUAL(b->block_table[0], 0, "A has published the same tokens: B takes A's block");
    EQUAL(b->block_table[1], 1, "and the second one");
    EQUAL(b->block_table[2], 5, "the last block is not full: it stays B's own");
    EQUAL(pool->blocks[1].ref_count, 2, "A and B have it");
    EQUAL(pool->num_free, 4, "B's own copies are dropped");
    EQUAL(pool->plan_number, 0, "the table of B was edited: plan_expire(seq)");
    SOUND();
    Seq *c = NULL;
    OK(seq_fork(a, 8, &c));
    names[2] = "C";
    c->num_published = 0;  // as if C had been forked before A published
    EQUAL(seq_publish(c, other, 8), PAGED_BAD_ARGUMENT, "block 0 is published under other tokens");
    OK(seq_publish(c, text, 8));
    EQUAL(pool->blocks[0].ref_count, 3, "its block is the published one: nothing changes");
    end_pool();
}

static void test_append_to_published(void)
{
    new_pool(1, 1, 1, 4, 4);
    Seq *a = new_seq_of("A", 8);
    write_marks(a, 8);
    OK(seq_publish(a, text, 8));
    OK(seq_rewind(a, 2));
    EQUAL(a->num_published, 1, "block 1 is not full in A any more");
    OK(seq_append(a, 1));
    EQUAL(a->block_table[1], 2, "published block 1 is not written: A gets a copy");
    EQUAL(pool->blocks[1].serial != 0, 1, "block 1 is free, but still published");
    SOUND();
    EQUAL(pool->num_copies, 1, "two blocks were free: there was room for a copy");
    Seq *b = new_seq("B");
    OK(seq_lookup(b, text, 9));
    EQUAL(b->length, 8, "both published blocks are still found");
    end_pool();
}

static void test_withdraw_if_full(void)
{
    new_pool(1, 1, 1, 4, 2);
    Seq *a = new_seq_of("A", 8);
    write_marks(a, 8);
    OK(seq_publish(a, text, 8));
    OK(seq_rewind(a, 2));
    EQUAL(pool->num_free, 0, "A has both blocks");
    EQUAL(seq_append(a, 1), PAGED_OK,
          "no block is free for a copy, but only A uses block 1: "
          "it is withdrawn from the prefix cache");
    EQUAL(a->block_table[1], 1, "and written in place");
    EQUAL(pool->blocks[1].serial, 0, "it is not published any more");
    EQUAL(pool->blocks[0].serial, 1, "block 0 still is");
    EQUAL(pool->num_copies, 0, "nothing was copied");
    end_pool();
}

// ---- stage 10: any size -----------------------------------------------------------------------

static void test_f16_to_f32_by_hand(void)
{
    CLOSE(f16_to_f32(0x3c00), 1, "sign 0, exponent 15 - 15, mantissa 0");
    CLOSE(f16_to_f32(0xc100), -2.5, "sign 1, exponent 16 - 15, mantissa 256 / 1024");
    CLOSE(f16_to_f32(0x7bff), 65504, "the largest number");
    EQUAL(float_bits(f16_to_f32(0x0001)), float_bits(0x1p-24f), "the smallest: 1 / 1024 * 2^-14");
    EQUAL(float_bits(f16_to_f32(0x8000)), 0x80000000, "-0 keeps its sign");
    CLOSE(f16_to_f32(0xfc00), -INFINITY, "exponent 31, mantissa 0");
    EQUAL(isnan(f16_to_f32(0x7c01)), 1, "exponent 31, mantissa not 0");
    for (int h = 0; h < 0x7c00; h++) {  // all numbers, by the definition
        int exponent = h >> 10;
        double mantissa = (h & 1023) / 1024.0 + (exponent > 0);
        double number = ldexp(mantissa, (exponent > 0 ? exponent : 1) - 15);
        begin(__LINE__, "f16_to_f32(h)",
              "(1 + mantissa / 1024) * 2^(exponent - 15); exponent 0: "
              "mantissa / 1024 * 2^-14");
        if (f16_to_f32((uint16_t)h) == number) continue;
        printf("h is %#x\n", h);
        equal(float_bits(f16_to_f32((uint16_t)h)), float_bits((float)number));
    }
}

static void test_f32_to_f16_by_hand(void)
{
    EQUAL(f32_to_f16(1), 0x3c00, "exponent 15, mantissa 0");
    EQUAL(f32_to_f16(-2.5f), 0xc100, "the sign goes to bit 15");
    EQUAL(f32_to_f16(0x1.002p0f), 0x3c00, "half-way between 0x3c00 and 0x3c01: to even");
    EQUAL(f32_to_f16(0x1.006p0f), 0x3c02, "half-way between 0x3c01 and 0x3c02: to even");
    EQUAL(f32_to_f16(0x1.003p0f), 0x3c01, "more than half-way: up");
    EQUAL(f32_to_f16(0x1.ffep0f), 0x4000, "rounding up carries into the exponent");
    EQUAL(f32_to_f16(65519), 0x7bff, "just below half-way to 65536: the largest number");
    EQUAL(f32_to_f16(65520), 0x7c00, "half-way to 65536: infinity");
    EQUAL(f32_to_f16(0x1p-24f), 0x0001, "the smallest number");
    EQUAL(f32_to_f16(0x1p-25f), 0x0000, "half of the smallest: to even, which is 0");
    EQUAL(f32_to_f16(0x1.8p-24f), 0x0002, "one and a half of the smallest: to even");
    EQUAL(f32_to_f16(-0x1p-30f), 0x8000, "too small: 0 with the sign");
    EQUAL(f32_to_f16(-INFINITY), 0xfc00, "infinity stays infinity");
    EQUAL((f32_to_f16(bits_float(0x7f800001)) & 0x7fff) > 0x7c00, 1, "NaN stays NaN");
}

static void test_f16_there_and_back(void)
{
    for (int h = 0; h < 0x10000; h++) {
        begin(__LINE__, "f32_to_f16(f16_to_f32(h))", "each number of 16 bits is a float32 exactly");
        if ((h & 0x7fff) <= 0x7c00) equal(f32_to_f16(f16_to_f32((uint16_t)h)), h);
    }
}

static void test_f32_to_bf16_by_hand(void)
{
    EQUAL(f32_to_bf16(1), 0x3f80, "the upper half of 0x3f800000");
    EQUAL(f32_to_bf16(bits_float(0x3f808000)), 0x3f80,
          "half-way between 0x3f80 and 0x3f81: to even");
    EQUAL(f32_to_bf16(bits_float(0x3f818000)), 0x3f82,
          "half-way between 0x3f81 and 0x3f82: to even");
    EQUAL(f32_to_bf16(bits_float(0xbf808001)), 0xbf81, "more than half-way: away from 0");
    EQUAL(f32_to_bf16(bits_float(0x7f7fffff)), 0x7f80, "the largest float32 rounds to infinity");
    EQUAL((f32_to_bf16(bits_float(0x7f800001)) & 0x7fff) > 0x7f80, 1, "NaN stays NaN");
    EQUAL((f32_to_bf16(bits_float(0x7fffffff)) & 0x7fff) > 0x7f80, 1, "NaN stays NaN: no overflow");
}

// ---- main -------------------------------------------------------------------------------------

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
#define TEST(name) \
    { \
#name, test_##name \
    }
    TEST(ceil_div_rounds_up),
    TEST(offset_by_hand),
    TEST(offset_in_a_large_pool),
    TEST(bytes_of_a_token),
    TEST(list_of_a_new_pool),
    TEST(list_remove_and_insert),
    TEST(take_the_first),
    TEST(drop_to_the_front),
    TEST(append_block_by_block),
    TEST(append_two_sequences),
    TEST(append_all_or_nothing),
    TEST(append_too_long),
    TEST(append_expires_the_plan),
    TEST(walk_through_the_table),
    TEST(write_by_hand),
    TEST(write_by_two_threads),
    TEST(gather_in_order),
    TEST(gather_two_sequences),
    TEST(gather_bf16),
    TEST(walk_in_a_dense_copy),
    TEST(attention_is_causal),
    TEST(softmax_by_hand),
    TEST(attention_of_groups),
    TEST(attention_of_far_scores),
    TEST(attention_without_overflow),
    TEST(attention_keeps_nan),
    TEST(attention_of_many_tiles),
    TEST(merge_by_hand),
    TEST(kernel_attention_is_causal),
    TEST(kernel_softmax_by_hand),
    TEST(kernel_attention_of_groups),
    TEST(kernel_attention_of_far_scores),
    TEST(kernel_attention_without_overflow),
    TEST(kernel_attention_keeps_nan),
    TEST(kernel_of_any_head_dim),
    TEST(kernel_in_lane_orders),
    TEST(share_counts),
    TEST(fork_shares_blocks),
    TEST(copy_slots_by_hand),
    TEST(copy_on_write),
    TEST(copy_needs_a_block),
    TEST(poison_shows),
    TEST(rewind_by_hand),
    TEST(rewind_into_a_shared_block),
    TEST(rewind_poisons),
    TEST(prefix_by_hand),
    TEST(prefix_in_one_bucket),
    TEST(publish_and_look_up),
    TEST(free_but_published),
    TEST(evicted_by_take),
    TEST(published_twice),
    TEST(append_to_published),
    TEST(withdraw_if_full),
    TEST(f16_to_f32_by_hand),
    TEST(f32_to_f16_by_hand),
    TEST(f16_there_and_back),
    TEST(f32_to_bf16_by_hand),
};

// A crash, an endless loop, to_write() or panic(): says in which check, and draws what there is.
static void on_signal(int number)
{
    if (number == SIGVTALRM)
        printf("does not end: stopped after %d seconds\n", SECONDS);
    else if (number != SIGABRT)  // of which something has been printed already
        printf("signal %d: %s\n", number, strsignal(number));
    printf("  in %s:%d: %s\n", __FILE__, now.line, now.what ? now.what : "the beginning");
    failed();
}

static void on_exit_inside(void)
{
    if (now.finished) return;
    printf("exit() was called in %s:%d: %s\n", __FILE__, now.line, now.what);
    end_badly();
}

static void set_limits(void)
{
    static char stack[1 << 16];  // so that an endless recursion can be reported, too
    const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGVTALRM};
    stack_t alternate;
    struct sigaction action;
    struct itimerval time = {{0, 0}, {SECONDS, 0}};
    const struct rlimit core = {0, 0};
    const struct rlimit file = {1 << 20, 1 << 20};  // of what is printed
    const struct rlimit memory = {(rlim_t)2 << 30, (rlim_t)2 << 30};
    memset(&alternate, 0, sizeof alternate);
    memset(&action, 0, sizeof action);
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(&alternate, NULL);
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK | (int)SA_RESETHAND | SA_NODEFER;
    for (int i = 0; i < (int)(sizeof signals / sizeof *signals); i++)
        sigaction(signals[i], &action, NULL);
    (void)memory;
    setrlimit(RLIMIT_CORE, &core);
    setrlimit(RLIMIT_FSIZE, &file);
#if !defined(__SANITIZE_ADDRESS__) && !__has_feature(address_sanitizer)  // it maps terabytes
    setrlimit(RLIMIT_AS, &memory);
#endif
    setitimer(ITIMER_VIRTUAL, &time, NULL);
}

int main(int argc, char **argv)
{
    int debug = argc == 3 && strcmp(argv[1], "--debug") == 0;
    static char buffer[BUFSIZ];  // malloc() may be broken by the time something is printed
    setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    for (int i = 0; argc > 1 && i < (int)(sizeof tests / sizeof *tests); i++) {
        if (strcmp(argv[argc - 1], tests[i].name) != 0) continue;
        if (!debug) set_limits();
        atexit(on_exit_inside);
        tests[i].run();
        now.finished = 1;
        printf("passed %s\n", tests[i].name);
        return 0;
    }
    fprintf(stderr, "usage: %s [--debug] NAME, with a name from learn/stages.txt\n", argv[0]);
    return 2;
}
