// The tests of the build track, stage by stage, with numbers that can be checked by hand.
//
//     make stage N=4                      builds this with learn/paged.cu.c and runs stages 1 to 4
//     build/learn/stage_tests NAME        one test; kernel_NAME, races_NAME: on the stand-in
//     build/learn/stage_tests --debug NAME    for a debugger: break on failed
//
// A test needs only the functions up to its stage. It stops at the first check that fails, and
// prints the expression, what was expected and why, the block tables and the pool. A crash prints
// the same for the check in which it happened. Bytes never written are NaN.

#define PAGED_NO_MAIN
#ifndef ENGINE
#define ENGINE "paged.cu.c"  // the one beside this file
#endif
#include ENGINE

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- checks -----------------------------------------------------------------------------------

static Pool *pool;              // of the test
static int device = PAGED_CPU;  // where new pools live
static Seq *seqs[8];            // of the test, which calls them A, B, C, ...
static int num_seqs;
static int races;           // the test only looks for races: of wrong results, others say more
static int attention, way;  // in tests of attention: how attend() is called
static int moderate;        // ... and whether K and V are finite and so small that no NaN results
static struct {
    int line;
    const char *what, *why;
} now = {0, "the beginning", NULL};  // the current check

static char *drawn;  // by state()
static FILE *drawing;

enum { MOST_DRAWN = 12 };  // entries of a list: a broken list may have any length

static void add_block(int i, int block)
{
    int sane = block >= 0 && block < pool->config.num_blocks;
    if (i < MOST_DRAWN) fprintf(drawing, " %d", block);
    if (i < MOST_DRAWN && sane && pool->blocks[block].serial) fprintf(drawing, "*");
    if (i == MOST_DRAWN) fprintf(drawing, " ...");
}

static void add_free_list(void)
{
    const Block *b = pool->blocks;
    int sentinel = pool->config.num_blocks;
    int prev = sentinel;
    int count = 0;
    fprintf(drawing, "free");
    for (int block = b[sentinel].next; block != sentinel; block = b[block].next) {
        add_block(count, block);
        if (count++ == MOST_DRAWN || block < 0 || block > sentinel) return;
        if (b[block].prev != prev) fprintf(drawing, " (whose prev is %d)", b[block].prev);
        prev = block;
    }
    if (b[sentinel].prev != prev)
        fprintf(drawing, " (prev of the sentinel is %d)", b[sentinel].prev);
    if (count != pool->num_free) fprintf(drawing, " (num_free is %d)", pool->num_free);
}

// Block tables and free list as text. In "A 6: 0* 1; B 2: 3; free 2 4", A has 6 tokens in blocks 0
// (* for published) and 1, B has 2 tokens in block 3, and blocks 2 and 4 are free.
static const char *state(void)
{
    static size_t size;
    free(drawn);
    drawing = open_memstream(&drawn, &size);
    for (int s = 0; s < num_seqs; s++) {
        if (!seqs[s]) continue;  // released
        fprintf(drawing, "%c %d:", 'A' + s, seqs[s]->length);
        for (int i = 0; i < (int)arrlen(seqs[s]->block_table) && i <= MOST_DRAWN; i++)
            add_block(i, seqs[s]->block_table[i]);
        fprintf(drawing, "; ");
    }
    add_free_list();
    fclose(drawing);
    return drawn;
}

static const char *legend(const char *text) { return strchr(text, '*') ? "  (* published)" : ""; }

static void draw(void)
{
    if (attention) {
        printf("  here: %s", way == ATTEND_GATHER ? "over a dense copy" : "through the table");
        if (device == PAGED_STANDIN) printf(", on the stand-in");
        printf("\n");
    } else if (pool) {
        state();
        printf("  it is:    %s%s\n", drawn, legend(drawn));
        pool_dump(pool, stdout);
        int seen[16];  // no test of the prefix cache has more blocks
        const char *wrong = pool->last_serial > 0 ? check_prefixes(pool, seen) : NULL;
        if (wrong) printf("  %s\n", wrong);
    }
}

// Every failing check comes here: break on it in a debugger.
__attribute__((noreturn, format(printf, 1, 2))) static void failed(const char *format, ...)
{
    va_list arguments;
    printf("%s:%d: %s: ", __FILE__, now.line, now.what);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    if (now.why) printf("  because: %s\n", now.why);
    fflush(stdout);
    draw();
    fflush(stdout);
    _exit(1);
}

static void begin(int line, const char *what, const char *why)
{
    now.line = line;
    now.what = what;
    now.why = why;
}

// Adds to the reason of a check in a loop where in the loop it is.
__attribute__((format(printf, 1, 2))) static const char *because(const char *format, ...)
{
    static char words[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    return words;
}

// `name` is the expected number as the test has it.
static void equal(long long actual, long long expected, const char *name)
{
    if (actual == expected) return;
    if (strncmp(name, "PAGED_", 6) == 0)
        failed("expected %s, got %lld: %s", name, actual, paged_error((int)actual));
    if (strstr(now.what, "f16")) failed("expected %#llx, got %#llx", expected, actual);
    failed("expected %lld, got %lld", expected, actual);
}

static const float NOT_WRITTEN = -12345;  // what attend() finds in its results

// Equal within the precision of float32. Infinities must be equal, and NaN equals nothing.
static void close_to(double actual, double expected)
{
    double difference = actual == expected ? 0 : fabs(actual - expected);
    if (races || (difference <= 1e-5 * fmax(1, fabs(expected)) && !isinf(difference))) return;
    if (actual == NOT_WRITTEN)
        now.why = "that is what was there: attend() has written nothing to it";
    if (device == PAGED_STANDIN && isnan(actual) && moderate)
        now.why =
            "shared memory begins as NaN, and a thread has read what no thread had written: "
            "a barrier is missing, or no thread ever writes it (each warp's m and l? elements "
            "from 128 on?)";
    failed("expected %.7g, got %.7g", expected, isnan(actual) ? NAN : actual);  // never -nan
}

static void sound(void)
{
    now.why = "pool_check() recounts everything; this is what it found";
    const char *wrong = pool_check(pool);
    if (wrong) failed("%s", wrong);
}

static void state_is(const char *expected)
{
    if (strcmp(state(), expected) != 0)
        failed("wrong\n  expected: %s%s", expected, legend(expected));
    if (arrlen(pool->seqs) > 0) sound();  // otherwise a test of lists
}

#define EQUAL(actual, expected, why) \
    (begin(__LINE__, #actual, why), equal(actual, expected, #expected))
#define CLOSE(actual, expected, why) (begin(__LINE__, #actual, why), close_to(actual, expected))
#define POOL_STATE(expected, why) (begin(__LINE__, "tables and free list", why), state_is(expected))
#define OK(call) EQUAL(call, PAGED_OK, NULL)
#define CALL(call, why) (begin(__LINE__, #call, why), call)

// Whether the process can get more memory; what it has, it keeps.
static void allow_memory(int allowed)
{
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = allowed ? limit.rlim_max : 0;
    setrlimit(RLIMIT_AS, &limit);
}

// A crash, an endless loop, to_write() or panic().
static void on_signal(int number)
{
    allow_memory(1);
    signal(number, SIG_DFL);
    if (number == SIGXCPU) failed("it does not end");
    if (number == SIGABRT) failed("it called abort(), see above");
    failed("signal %d, %s", number, strsignal(number));
}

// A call that must panic with this text; tests.c compares it, too. A child makes the call, as the
// pool may be damaged then; in the child it returns 1.
static int must_panic(const char *text)
{
    char words[400];
    int status = 0;
    FILE *said = tmpfile();
    fflush(stdout);
    if (fork() == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(fileno(said), STDERR_FILENO);
        return 1;
    }
    wait(&status);
    rewind(said);
    words[fread(words, 1, sizeof words - 1, said)] = 0;
    fclose(said);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) _exit(1);  // it has said what is wrong
    int breakpoint = WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP;  // in panic(), by lldb
    if (strstr(words, text) || breakpoint) return 0;
    words[strcspn(words, "\n")] = 0;
    failed("it must panic, with INVARIANT(condition, \"%s\"); it says \"%s\"", text, words);
}

#define PANICS(call, text, why) \
    do { \
        begin(__LINE__, #call, why); \
        if (must_panic(text)) call, fprintf(stderr, "(it returned)"), _exit(0); \
    } while (0)

// ---- pools and sequences ----------------------------------------------------------------------

static void release(Seq *seq)
{
    for (int s = 0; s < num_seqs; s++)
        if (seqs[s] == seq) seqs[s] = NULL;
    CALL(seq_release(seq), "block_drop() gets all its blocks, the last one first");
}

// At the end of a test, too.
static void end_pool(void)
{
    if (!pool) return;
    int used = arrlen(pool->seqs) > 0;
    if (used) CALL(sound(), NULL);
    while (arrlen(pool->seqs) > 0) release(arrlast(pool->seqs));
    if (used) EQUAL(pool->num_free, pool->config.num_blocks, "all sequences are released");
    pool_destroy(pool);
    pool = NULL;
    memset(seqs, 0, sizeof seqs);
    num_seqs = 0;
}

static void new_pool_of(PoolConfig config)
{
    end_pool();
    config.device = device;
    OK(pool_create(&config, &pool));
    size_t bytes = pool_bytes_per_block(&config) / 2 * config.num_blocks;
    memset(pool->k, 0xff, bytes);
    memset(pool->v, 0xff, bytes);
}

static void new_pool(int layers, int heads, int dim, int block_size, int blocks)
{
    PoolConfig config = {layers, heads, dim, block_size, blocks, PAGED_F32, 0, PAGED_CPU};
    new_pool_of(config);
}

static void pool_of_blocks(int blocks) { new_pool(1, 1, 1, 4, blocks); }

static void pool_with_poison(int blocks)
{
    PoolConfig config = {2, 1, 2, 4, blocks, PAGED_F32, 1, PAGED_CPU};
    new_pool_of(config);
}

static Seq *new_seq(int length)
{
    OK(seq_create(pool, &seqs[num_seqs]));
    Seq *seq = seqs[num_seqs++];
    if (length > 0) OK(seq_append(seq, length));
    return seq;
}

static Seq *fork_of(const Seq *parent, int at)
{
    OK(seq_fork(parent, at, &seqs[num_seqs]));
    return seqs[num_seqs++];
}

static void take_blocks(int count)
{
    for (int i = 0; i < count; i++) EQUAL(block_take(pool), i, "a new pool hands out 0, 1, 2, ...");
}

static float at(const void *plane, int layer, int block, int head, int slot, int d)
{
    return ((const float *)plane)[kv_offset(&pool->config, layer, block, head, slot) + d];
}

// Each element of K holds its place in the plane, and of V the same with a minus.
static void number_planes(void)
{
    size_t bytes = pool_bytes_per_block(&pool->config) / 2 * pool->config.num_blocks;
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        ((float *)pool->k)[i] = (float)i;
        ((float *)pool->v)[i] = -(float)i;
    }
}

static void plan_newest(Seq *seq, int n)
{
    Batch batch = {1, &seq, &n};
    OK(pool_plan(pool, &batch));
}

// A step of a model: K and V of the newest n tokens are computed.
static void compute(Seq *seq, int n)
{
    static const float zeros[64];
    plan_newest(seq, n);
    for (int layer = 0; layer < pool->config.num_layers; layer++)
        OK(pool_write(pool, layer, zeros, zeros));
}

static Seq *new_computed_seq(int length)
{
    Seq *seq = new_seq(length);
    compute(seq, length);
    return seq;
}

static struct {
    const char *name;
    void (*run)(void);
} tests[64];
static int num_tests;

#define TEST(test) \
    static void test_##test(void); \
    __attribute__((constructor)) static void add_##test(void) \
    { \
        tests[num_tests].name = #test; \
        tests[num_tests++].run = test_##test; \
    } \
    static void test_##test(void)

// ---- stage 1: addresses -----------------------------------------------------------------------

TEST(ceil_div_rounds_up)
{
    EQUAL(ceil_div(0, 4), 0, "no tokens need no block");
    EQUAL(ceil_div(1, 4), 1, "one token needs a block, of which it fills a part");
    EQUAL(ceil_div(4, 4), 1, "four tokens fill one block of four");
    EQUAL(ceil_div(5, 4), 2, "the fifth token needs a second block");
    EQUAL(ceil_div(6000000001, 4), 1500000001, "the sum is too large for an int: keep int64_t");
}

TEST(offset_by_hand)
{
    // [2 layers][3 blocks][2 heads][4 slots][5 elements]
    PoolConfig c = {2, 2, 5, 4, 3, PAGED_F32, 0, PAGED_CPU};
    EQUAL(kv_offset(&c, 0, 0, 0, 0), 0, "the plane begins with layer 0, block 0, head 0, slot 0");
    EQUAL(kv_offset(&c, 0, 0, 0, 1), 5, "a slot has head_dim = 5 elements");
    EQUAL(kv_offset(&c, 0, 0, 1, 0), 20, "a head has 4 slots of 5 elements");
    EQUAL(kv_offset(&c, 0, 1, 0, 0), 40, "a block has 2 heads of 20 elements");
    EQUAL(kv_offset(&c, 1, 0, 0, 0), 120, "a layer has 3 blocks of 40 elements");
    EQUAL(kv_offset(&c, 1, 2, 1, 3), 235, "120 + 2 * 40 + 20 + 3 * 5");
    PoolConfig big = {80, 8, 128, 16, 600000, PAGED_F16, 0, PAGED_CPU};
    EQUAL(kv_offset(&big, 79, 599999, 7, 15), 786431999872,
          "6144000000 vectors of 128 are too many for an int: use size_t from the start");
}

// ---- stage 2: free list -----------------------------------------------------------------------

TEST(insert_and_remove)
{
    pool_of_blocks(4);
    POOL_STATE("free 0 1 2 3", "pool_create() inserts each block after the last one");
    CALL(free_list_remove(pool, 1), "out of the middle");
    POOL_STATE("free 0 2 3", "block 1 is removed; its neighbours are linked to each other");
    EQUAL(pool->blocks[1].prev, -1, "a block that is not on the list has no neighbours");
    EQUAL(pool->blocks[1].next, -1, "a block that is not on the list has no neighbours");
    CALL(free_list_remove(pool, 0), "the first one");
    CALL(free_list_remove(pool, 3), "the last one");
    POOL_STATE("free 2", "only block 2 is left");
    CALL(free_list_insert_after(pool, 4, 3), "after the sentinel, which is record 4");
    POOL_STATE("free 3 2", "after the sentinel is the front");
    CALL(free_list_insert_after(pool, 3, 0), "between two blocks");
    POOL_STATE("free 3 0 2", "block 0 is inserted after block 3");
    CALL(free_list_insert_after(pool, 2, 1), "after the last one");
    POOL_STATE("free 3 0 2 1", "block 1 is inserted after block 2");
    pool->blocks[0].serial = 6;  // published (chapter 10)
    CALL(free_list_remove(pool, 0), "a published block");
    CALL(free_list_insert_after(pool, 3, 0), "a published block");
    POOL_STATE("free 3 0* 2 1", "only prev and next change: block 0 stays published");
}

TEST(take_the_first)
{
    pool_with_poison(4);
    number_planes();
    take_blocks(2);
    EQUAL(pool->blocks[1].ref_count, 1, "the caller will put the block into one table");
    POOL_STATE("free 2 3", "a block that is taken leaves the list");
    EQUAL(isnan(at(pool->k, 1, 1, 0, 2, 1)), 1, "block_take() poisons the block: block_poison()");
    EQUAL(isnan(at(pool->k, 1, 2, 0, 2, 1)), 0, "and no other block");
    EQUAL(block_take(pool), 2, "block 2 is first");
    EQUAL(block_take(pool), 3, "block 3 is left");
    PANICS(block_take(pool), "no free block to take", "no block is free");
    pool_of_blocks(1);
    take_blocks(1);
    pool->num_free = 1;
    PANICS(block_take(pool), "no free block to take", "num_free is 1, but the ring is empty");
    pool_of_blocks(1);
    pool->blocks[0].ref_count = 1;
    PANICS(block_take(pool), "a block on the free list is in use", "the count of block 0 is 1");
}

TEST(drop_to_the_front)
{
    pool_with_poison(4);
    take_blocks(3);
    number_planes();
    CALL(block_drop(pool, 1), "its only reference");
    EQUAL(pool->blocks[1].ref_count, 0, "the last reference is dropped");
    POOL_STATE("free 1 3", "the block is free again, at the front");
    EQUAL(isnan(at(pool->v, 1, 1, 0, 2, 1)), 1, "block_drop() poisons a block that becomes free");
    pool->blocks[2].ref_count = 2;  // two tables name it
    CALL(block_drop(pool, 2), "the first of two references");
    EQUAL(pool->blocks[2].ref_count, 1, "one reference is dropped, one is left");
    POOL_STATE("free 1 3", "block 2 is still in use, so it does not go to the list");
    CALL(block_drop(pool, 2), "the last reference");
    POOL_STATE("free 2 1 3", "now it is free; the block used last is at the front");
    PANICS(block_drop(pool, 2), "a free block is dropped", "its count is 0 already");
}

// ---- stage 3: append --------------------------------------------------------------------------

TEST(append_block_by_block)
{
    pool_of_blocks(6);
    Seq *a = new_seq(0);
    OK(seq_append(a, 0));
    POOL_STATE("A 0:; free 0 1 2 3 4 5", "no tokens, no block");
    for (int length = 1; length <= 13; length++) {
        OK(seq_append(a, 1));
        EQUAL(a->length, length, "each append adds one token");
        EQUAL(arrlen(a->block_table), (length + 3) / 4, "a block is taken for tokens 0, 4, 8, 12");
    }
    POOL_STATE("A 13: 0 1 2 3; free 4 5", "the free list began with 0, 1, 2, 3");
    EQUAL(a->num_computed_tokens, 0, "an append makes room; nothing is computed yet");
    new_seq(3);
    OK(seq_append(a, 4));
    POOL_STATE("A 17: 0 1 2 3 5; B 3: 4; free", "B has block 4 when A needs a fifth block");
}

TEST(append_all_or_nothing)
{
    pool_of_blocks(4);
    Seq *a = new_seq(10);
    Seq *b = new_seq(0);
    EQUAL(seq_append(b, 5), PAGED_OUT_OF_BLOCKS, "B needs 2 blocks, and 1 is free");
    POOL_STATE("A 10: 0 1 2; B 0:; free 3",
               "a call that fails changes nothing: count before you take");
    EQUAL(seq_append(a, 3), PAGED_OK, "2 tokens fit into the last block, and 1 block is free");
    EQUAL(seq_append(a, 3), PAGED_OK, "they fit into the last block: no free block is needed");
    EQUAL(seq_append(b, 1), PAGED_OUT_OF_BLOCKS, "no block is free");
    EQUAL(seq_append(b, 0), PAGED_OK, "no tokens need no block");
}

TEST(append_edits_or_refuses)
{
    pool_of_blocks(4);
    Seq *a = new_seq(3);
    plan_newest(a, 3);
    EQUAL(seq_append(NULL, 0), PAGED_BAD_ARGUMENT, "there is no sequence");
    EQUAL(seq_append(a, -1), PAGED_BAD_ARGUMENT, "a length does not shrink");
    EQUAL(seq_append(a, 14), PAGED_TOO_LONG, "17 tokens do not fit into a pool of 16, ever");
    EQUAL(seq_append(a, INT_MAX), PAGED_TOO_LONG, "3 + INT_MAX overflows an int: use int64_t");
    POOL_STATE("A 3: 0; free 1 2 3", "a call that fails changes nothing");
    EQUAL(pool->plan_number != 0, 1, "a call that fails changes nothing: the plan stays");
    OK(seq_append(a, 0));
    EQUAL(pool->plan_number != 0, 1, "an append of no tokens edits nothing: the plan stays");
    EQUAL(seq_append(a, 13), PAGED_OK, "16 tokens fill the pool");
    EQUAL(pool->plan_number, 0, "the sequence was edited: plan_expire(seq)");
    new_pool(1, 1, 1, 1, 8);
    a = new_seq(5);
    Seq *b = new_seq(0);
    EQUAL(seq_append(a, INT_MAX), PAGED_TOO_LONG,
          "5 + INT_MAX blocks of 1 overflow the int of ceil_div(): compare tokens, not blocks");
    pool->config.block_size = 1 << 30;  // as if: 2^33 tokens have room
    EQUAL(seq_append(a, INT_MAX), PAGED_TOO_LONG, "5 + INT_MAX is more than `length` can hold");
    EQUAL(seq_append(b, 1), PAGED_OK, "1 token fits into 2^33 slots, which overflow an int");
    pool->config.block_size = 1;
}

// ---- stage 4: write and gather ----------------------------------------------------------------

// B has 11 tokens in blocks 1 2 0, C has 3 in block 3. The newest 3 of each are planned.
static Job plan_of_two(void)
{
    static const int tokens[] = {3, 3};
    new_pool(2, 2, 3, 4, 6);  // a slot has 3 elements, a head 12, a block 24, a layer 144
    Seq *a = new_seq(4);
    Seq *b = new_seq(8);
    release(a);
    OK(seq_append(b, 3));
    b->num_computed_tokens = 8;  // as if
    Seq *both[] = {b, new_seq(3)};
    POOL_STATE("B 11: 1 2 0; C 3: 3; free 4 5", "block 0 was freed last, so it is taken first");
    Batch batch = {2, both, tokens};
    OK(pool_plan(pool, &batch));
    return pool->plan->job;
}

TEST(walk_through_the_table)
{
    Job job = plan_of_two();
    SeqOffset b = job.offsets[0], c = job.offsets[1];
    EQUAL(token_offset(&job, b, 0, 0), 24, "B, token 0: block 1, slot 0");
    EQUAL(token_offset(&job, b, 10, 1), 18, "B, token 10: entry 10 / 4, block 0; slot 10 % 4 = 2");
    EQUAL(token_offset(&job, c, 0, 0), 72, "the table of C begins at entry 3: block 3");
    job.layer = 1;
    EQUAL(token_offset(&job, c, 1, 0), 219, "in layer 1, which is 144 elements further, slot 1");
}

TEST(walk_in_a_dense_copy)
{
    Job job = plan_of_two();
    job.tables = NULL;
    job.layer = 1;
    EQUAL(token_offset(&job, job.offsets[0], 2, 1), 15, "no table: 2 tokens of [2 heads][3]");
    EQUAL(token_offset(&job, job.offsets[1], 2, 0), 78, "C begins at begin.token = 11: row 13");
}

TEST(write_by_hand)
{
    float k[14 * 6], v[14 * 6];  // [query tokens][heads][elements], and more that is not to be read
    for (int i = 0; i < 14 * 6; i++) k[i] = (float)i + 1;
    for (int i = 0; i < 14 * 6; i++) v[i] = -k[i];
    Job job = plan_of_two();
    job.k = k;
    job.v = v;
    CALL(write_token(&job, 1, 0, 1), "row 1");
    EQUAL(isnan(at(pool->k, 0, 0, 0, 1, 0)), 0, "row 1 is token 9 of B, in block 0, slot 1");
    EQUAL(isnan(at(pool->k, 0, 0, 0, 0, 0)), 1, "row 0 is for another call");
    OK(pool_write(pool, 0, v, k));
    OK(pool_write(pool, 1, k, v));
    for (int i = 0; i < 36; i++) {
        int row = i / 6;
        int block = row < 3 ? 0 : 3;
        const char *why = because("rows 0 to 2 go to slots 0 to 2 of B's block 0, rows 3 to 5 to "
                                  "C's block 3; this is row %d, head %d",
                                  row, i / 3 % 2);
        CLOSE(at(pool->k, 1, block, i / 3 % 2, row % 3, i % 3), i + 1, why);
        CLOSE(at(pool->v, 1, block, i / 3 % 2, row % 3, i % 3), -i - 1, "V goes to its own plane");
    }
    EQUAL(isnan(at(pool->k, 1, 0, 0, 3, 0)), 1, "slot 3 is for a token yet to come");
}

TEST(gather_in_order)
{
    enum { ROWS = 11 + 3 };
    static const int blocks[] = {1, 2, 0, 3};
    float k[(ROWS + 1) * 6], v[(ROWS + 1) * 6];  // a row more than the two sequences have
    Job job = plan_of_two();
    SeqOffset b = job.offsets[0], c = job.offsets[1];
    job.layer = 1;
    job.dense_k = k;
    job.dense_v = v;
    job.dense_dtype = PAGED_F32;
    number_planes();
    for (int i = 0; i < (ROWS + 1) * 6; i++) k[i] = v[i] = 0.5f;
    CALL(gather_token(&job, c, 0, 0, 1), "C, its first token");
    CLOSE(at(pool->k, 1, 3, 0, 0, 1), 144 + 3 * 24 + 1, "the pool is read, not written");
    CLOSE(k[0], 0.5, "C begins at row begin.token, 11: the rows before it are B's");
    for (int t = 0; t < 11; t++) CALL(gather_token(&job, b, t, 0, 1), "B, token by token");
    for (int t = 1; t < 3; t++) CALL(gather_token(&job, c, t, 0, 1), "C, the other tokens");
    for (int i = 0; i < ROWS * 6; i++) {
        int row = i / 6;
        int token = row < 11 ? row : row + 1;  // C begins with the fourth block
        float expected = at(pool->k, 1, blocks[token / 4], i / 3 % 2, token % 4, i % 3);
        const char *why = because("rows are [token][head][element]: 11 of B, then 3 of C; this is "
                                  "row %d, head %d",
                                  row, i / 3 % 2);
        CLOSE(k[i], expected, why);
        CLOSE(v[i], -expected, "V comes from its own plane");
    }
    CLOSE(k[ROWS * 6], 0.5, "C ends at row 14");
}

TEST(gather_bf16)
{
    PoolConfig config = {1, 1, 2, 4, 2, PAGED_BF16, 0, PAGED_CPU};
    const uint16_t stored[] = {0x3f80, 0xc040};  // the upper halves of 1.0f and -3.0f
    float k[2], v[2];
    new_pool_of(config);
    Seq *a = new_seq(1);
    memcpy(pool->k, stored, sizeof stored);
    CALL(seq_gather(a, 0, k, v), "the copy is of job->dense_dtype, here float32");
    CLOSE(k[1], -3, "16 bits in the pool, float32 in the copy: load_element() converts");
}

// ---- stages 5 to 7: attention -----------------------------------------------------------------
// Tests whose names begin with attention run twice: over a dense copy (ATTEND_GATHER) and through
// the table; in stages 5 and 6 on the CPU, in stage 7 with the kernels, on the stand-in.

static float out[50 * 4 * PAGED_MAX_HEAD_DIM], lse[50 * 4];

// attend() into out and lse, where nothing is left of an earlier call.
static int attend_anew(int q_heads, float scale, const float *q, float *lse_or_null)
{
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) out[i] = NOT_WRITTEN;
    for (size_t i = 0; i < sizeof lse / sizeof *lse; i++) lse[i] = NOT_WRITTEN;
    return attend(pool, way, 0, q_heads, scale, q, out, lse_or_null);
}

// A new pool of one layer in which A has n tokens with these K and V; the newest `rows` attend.
static void attend_with(int heads, int dim, int n, const float *k, const float *v, int rows,
                        int q_heads, const float *q, float scale)
{
    moderate = 1;
    for (int i = 0; i < n * heads * dim; i++)
        if (!(fabsf(k[i]) < 50 && fabsf(v[i]) < 50)) moderate = 0;
    new_pool(1, heads, dim, 5, n / 5 + 2);
    Seq *a = new_seq(n);
    plan_newest(a, n);
    OK(pool_write(pool, 0, k, v));
    plan_newest(a, rows);
    OK(attend_anew(q_heads, scale, q, lse));
}

TEST(attention_is_causal)
{
    const float k[5] = {0}, q[3] = {0}, v[] = {1, 2, 6, 11, 20};
    attend_with(1, 1, 5, k, v, 3, 1, q, 1);
    CLOSE(out[0], 3, "row 0 is token 2: it sees tokens 0 to 2, itself included");
    CLOSE(out[1], 5, "row 1 is token 3: the mean of V of tokens 0 to 3");
    CLOSE(out[2], 8, "row 2 is token 4: the mean of V of all five");
    CLOSE(lse[1], log(4), "lse: log(4), as four scores are 0");
}

TEST(attention_by_hand)
{
    const float k[] = {0, 1.0986123f}, v[] = {4, 8}, q = 1;  // ln 3
    attend_with(1, 1, 2, k, v, 1, 1, &q, 1);
    CLOSE(out[0], 7, "scores 0 and ln 3: weights 1/4 and 3/4; 4 * 1/4 + 8 * 3/4");
    CLOSE(lse[0], log(4), "lse is the log of exp(0) + exp(ln 3)");
    float *no_lse = NULL;
    OK(attend_anew(1, 0.5f, &q, no_lse));
    CLOSE(out[0], (4 + 8 * sqrt(3)) / (1 + sqrt(3)), "scale 0.5 halves the scores");
}

TEST(attention_over_lanes)
{
    float ones[64];
    for (int i = 0; i < 64; i++) ones[i] = 1;
    attend_with(1, 64, 1, ones, ones, 1, 1, ones, 1);
    CLOSE(lse[0], 64, "one score of 64 products of 1: the sum over all lanes, each counted once");
}

TEST(attention_of_groups)
{
    const float k[4 * 2] = {0}, q[6 * 2] = {0};      // 6 query heads on 2 KV heads, head_dim 2
    const float v[] = {1, 2, 10, 20, 3, 4, 30, 40};  // [2 tokens][2 heads][2]
    attend_with(2, 2, 2, k, v, 1, 6, q, 1);
    for (int head = 0; head < 6; head++)
        CLOSE(out[head * 2], head < 3 ? 2 : 20,
              because("query heads 0 to 2 read KV head 0, 3 to 5 read 1; this is %d", head));
}

TEST(attention_of_two_sequences)
{
    const float k[4] = {0}, q[4] = {0}, v[] = {1, 3, 10, 30}, means[] = {1, 2, 10, 20};
    static const int tokens[] = {2, 2};
    moderate = 1;
    new_pool(1, 1, 1, 5, 2);
    Seq *both[] = {new_seq(2), new_seq(2)};
    Batch batch = {2, both, tokens};
    OK(pool_plan(pool, &batch));
    OK(pool_write(pool, 0, k, v));
    OK(attend_anew(1, 1, q, lse));
    for (int row = 0; row < 4; row++)
        CLOSE(out[row], means[row],
              because("rows 0 and 1 are A's and see A's tokens, rows 2 and 3 "
                      "are B's and see B's; this is row %d",
                      row));
}

TEST(attention_of_large_scores)
{
    const float k[] = {100, 101.09861f}, v[] = {4, 8}, q[2] = {1, 1};
    attend_with(1, 1, 2, k, v, 2, 1, q, 1);
    CLOSE(out[0], 4, "exp(100) overflows: subtract the maximum first");
    CLOSE(out[1], 7, "weights 1/4 and 3/4");
    CLOSE(lse[1], 101.38629, "lse: the maximum, plus ln(1 + 1/3)");
}

TEST(attention_of_infinite_scores)
{
    const float k[] = {-INFINITY, -INFINITY, 1, 2.0986123f}, v[] = {1, 2, 4, 8}, q[3] = {1, 1, 1};
    attend_with(1, 1, 4, k, v, 3, 1, q, 1);
    CLOSE(lse[0], -INFINITY,
          "-inf - -inf is NaN: m begins at a finite number, in attend_row() and in a kernel");
    CLOSE(out[0], 0, "all scores are -infinity: l is 0, and 0 / 0 is NaN; the result is 0");
    CLOSE(out[1], 4, "-infinity has weight 0");
    CLOSE(out[2], 7, "weights 1/4 and 3/4");
}

TEST(attention_without_overflow)
{
    const float most = device == PAGED_CPU ? 3e38f : 1e38f;  // kernels add up in float32
    const float k[] = {3e19f, 3e19f, 3e19f}, v[] = {most, most, most}, q = 3e19f;
    attend_with(1, 1, 3, k, v, 1, 1, &q, 2e-38f);
    EQUAL(isnan(out[0]), 0, "q . K overflows a float, unless q is scaled before");
    CLOSE(out[0], most, "the sum of three V overflows a float: add up in double");
    const float low[] = {-1e35f}, one = 1;
    attend_with(1, 1, 1, low, &one, 1, 1, &one, 1);
    CLOSE(out[0], 1, "a score may be below any number you choose: m begins at the lowest");
}

TEST(attention_keeps_nan)
{
    const float zeros[20] = {0}, nan_first[20] = {NAN}, q = 1;
    float k[20];
    for (int t = 0; t < 20; t++) k[t] = t < 19 ? -INFINITY : 0;
    attend_with(1, 1, 20, nan_first, zeros, 1, 1, &q, 1);
    EQUAL(isnan(out[0]), 1, "K of token 0 is NaN, so its score and weight are");
    attend_with(1, 1, 20, k, nan_first, 1, 1, &q, 1);
    EQUAL(isnan(out[0]), 1, "V of token 0 is NaN: 0 * NaN is NaN, not 0");
    const float mixed[] = {NAN, -INFINITY, NAN}, ones[] = {1, 1, 1};
    attend_with(1, 1, 3, mixed, ones, 3, 1, ones, 1);
    for (int row = 0; row < 3; row++)
        EQUAL(isnan(out[row]), 1, "its scores are NaN and -infinity: only if all are -infinity, 0");
}

#ifdef PAGED_NO_STANDIN
static int gpu_lane_order;
#endif

// Compares with the oracle, which has no blocks; on the stand-in in both orders of the lanes. Later
// tokens have larger scores.
TEST(attention_like_the_oracle)
{
    enum { HEADS = 2, MOST = 50 * 4 * PAGED_MAX_HEAD_DIM };
    static float k[MOST], v[MOST], q[MOST], expected[MOST], expected_lse[4];
    const struct {
        int dim, n, q_heads;
    } cases[] = {{8, 35, 2}, {1, 2, 4}, {40, 5, 4}, {256, 8, 4}};  // 2 tokens: idle warps
    for (int c = 0; c < 4; c++) {
        int dim = cases[c].dim;
        int n = cases[c].n;
        int q_heads = cases[c].q_heads;
        for (int i = 0; i < n * HEADS * dim; i++) {
            k[i] = sinf((float)i) + 0.25f * (float)(i / (HEADS * dim));
            v[i] = cosf((float)i);
        }
        for (int i = 0; i < q_heads * dim; i++) q[i] = sinf(2.5f * (float)i) + 1;
        attend_with(HEADS, dim, n, k, v, 1, q_heads, q, 0);
        Oracle *oracle = oracle_create(&pool->config, n);
        oracle->length = n;
        oracle_write(oracle, 0, n, k, v);
        oracle_attend(oracle, 0, 1, q_heads, 0, q, expected, expected_lse);
        oracle_release(oracle);
        for (int order = 0; order <= (device == PAGED_STANDIN); order++) {
            gpu_lane_order = order;
            OK(attend_anew(q_heads, 0, q, lse));
            for (int i = 0; i < q_heads * dim; i++)
                CLOSE(out[i], expected[i],
                      because("the oracle says so, for both orders of the lanes; i is %d, of "
                              "[%d heads][%d elements]",
                              i, q_heads, dim));
        }
        for (int i = 0; i < q_heads; i++)
            CLOSE(lse[i], expected_lse[i], because("the oracle says so, of query head %d", i));
    }
}

TEST(a_sequence_of_any_length)
{
    enum { LENGTH = 2500000 };
    const float q = 1;
    new_pool(1, 1, 1, LENGTH / 10, 10);
    Seq *a = new_seq(1);
    a->num_computed_tokens = 1;  // as if, and so below
    ((float *)pool->k)[0] = ((float *)pool->v)[0] = 0;
    plan_newest(a, 1);
    OK(attend_anew(1, 1, &q, NULL));
    OK(seq_append(a, LENGTH - 1));
    a->num_computed_tokens = LENGTH;
    for (int t = 0; t < LENGTH; t++) {
        ((float *)pool->k)[t] = (float)(t / (LENGTH - 2));  // the last two tokens have score 1
        ((float *)pool->v)[t] = (float)(t % 2);
    }
    plan_newest(a, 1);
    allow_memory(0);
    EQUAL(attend_anew(1, 1, &q, lse), PAGED_OK,
          "2500000 tokens, and no memory for so many scores: attend_row() keeps m, l and o");
    allow_memory(1);
    CLOSE(out[0], 0.5, "attend_row(): half of the weights are of V = 0, half of V = 1");
    CLOSE(lse[0], log(LENGTH - 2 + 2 * exp(1)), "all weights count: l adds up in double");
}

TEST(threads_share_a_write)
{
    const float row[6] = {1, 2, 3, 4, 5, 6};
    Job job = plan_of_two();
    job.k = job.v = row;
    for (int thread = 0; thread < 2; thread++) {
        int written = 0;
        CALL(write_token(&job, 0, thread, 2), "each of two threads writes a part of the row");
        for (int i = 0; i < 6; i++)
            if (!isnan(at(pool->k, 0, 0, i / 3, 0, i % 3))) written++;
        if ((written == 6) != (thread == 1)) failed("%d of 6 elements are written", written);
    }
}

TEST(threads_share_a_copy)
{
    float k[14 * 6], v[14 * 6];
    Job job = plan_of_two();
    job.dense_k = k;
    job.dense_v = v;
    number_planes();
    for (int i = 0; i < 14 * 6; i++) k[i] = v[i] = NAN;
    for (int thread = 0; thread < 2; thread++) {  // row 0 is token 8 of the first sequence
        int gathered = 0;
        CALL(gather_token(&job, job.offsets[0], 8, thread, 2), "each of two copies a part");
        for (int i = 8 * 6; i < 9 * 6; i++)
            if (!isnan(k[i]) && !isnan(v[i])) gathered++;
        if ((gathered == 6) != (thread == 1)) failed("%d of 6 elements are copied", gathered);
    }
}

TEST(merge_by_hand)
{
    // States of m, l, o[2]. Weights are exp(m - the largest m): 1/2, 1, and 0 for an empty one.
    float states[3 * STATE] = {
        -3, 1, 4, 10, -3 + 0.6931472f, 2, 6, 20, -FLT_MAX, 0, 0, 0, [12 ... 3 * STATE - 1] = NAN};
    float to[4] = {NAN, NAN, NAN, NAN};
    for (int thread = 0; thread < 2; thread++)  // however they share m, l and o
        CALL(merge(states, 3, 2, to, thread, 2), "by threads 0 and 1 of 2");
    const char *why = "o[0]: 4 * 1/2 + 6 * 1, as -2.3 is larger than -3";
    if (isnan(to[2])) why = "states are head_dim + 2 floats apart; STATE is room for the largest";
    CLOSE(to[2], 8, why);
    CLOSE(to[0], -3 + log(2), "m is the largest m");
    CLOSE(to[1], 2.5, "l: 1 * 1/2 + 2 * 1");
    CLOSE(to[3], 25, "o[1]: 10 * 1/2 + 20 * 1");
}

// ---- stage 8: sharing -------------------------------------------------------------------------

TEST(share_counts)
{
    pool_of_blocks(4);
    take_blocks(1);
    CALL(block_share(pool, 0), "a block in use");
    EQUAL(pool->blocks[0].ref_count, 2, "two tables name it now");
    CALL(block_share(pool, 2), "a free block, from the middle of the list");
    EQUAL(pool->blocks[2].ref_count, 1, "one table names it now");
    POOL_STATE("free 1 3", "a block that a table names is not free");
}

TEST(fork_shares_blocks)
{
    pool_of_blocks(8);
    Seq *a = new_computed_seq(10);
    Seq *b = NULL;
    EQUAL(seq_fork(a, 11, &b), PAGED_BAD_ARGUMENT, "A has 10 tokens");
    EQUAL(seq_fork(a, -1, &b), PAGED_BAD_ARGUMENT, "no sequence has -1 tokens");
    EQUAL(seq_fork(a, 8, NULL), PAGED_BAD_ARGUMENT, "there is no place for the child");
    EQUAL(arrlen(pool->seqs), 1, "a call that fails changes nothing");
    EQUAL(pool->plan_number != 0, 1, "a call that fails changes nothing: the plan stays");
    OK(seq_fork(a, 0, &b));
    EQUAL(pool->plan_number != 0, 1, "a fork of 0 tokens shares no block: the plan stays");
    CALL(seq_release(b), "it has no blocks");
    b = fork_of(a, 8);
    EQUAL(pool->blocks[1].ref_count, 2, "block 1 is counted once more");
    POOL_STATE("A 10: 0 1 2; B 8: 0 1; free 3 4 5 6 7",
               "8 tokens are in 2 blocks, and no further one is shared");
    EQUAL(pool->plan_number, 0, "the plan names A, whose blocks are shared: plan_expire(parent)");
    OK(seq_append(a, 1));
    Seq *c = fork_of(a, 11);
    EQUAL(c->num_computed_tokens, 10, "10 of A's 11 tokens are computed: so are C's");
    release(a);
    POOL_STATE("B 8: 0 1; C 11: 0 1 2; free 3 4 5 6 7", "A is released; B and C keep its blocks");
}

TEST(copy_by_hand)
{
    new_pool(2, 2, 3, 4, 4);
    number_planes();
    CALL(block_copy(pool, 2, 0), "block 0 to block 2, by block_copy()");
    for (int i = 0; i < 2 * 24; i++) {
        int layer = i / 24;
        int element = i % 24;  // of [2 heads][4 slots][3]
        float old = (float)kv_offset(&pool->config, layer, 0, 0, 0) + element;
        float next = (float)kv_offset(&pool->config, layer, 3, 0, 0) + element;
        const char *why = because("K in each layer, head and slot: here layer %d, head %d, slot %d",
                                  layer, element / 12, element / 3 % 4);
        CLOSE(at(pool->k, layer, 2, 0, 0, element), old, why);
        CLOSE(at(pool->v, layer, 2, 0, 0, element), -old, "V as well");
        CLOSE(at(pool->k, layer, 3, 0, 0, element), next, "block 3 stays as it was");
    }
}

TEST(copy_on_write)
{
    pool_with_poison(8);
    Seq *a = new_seq(6);
    Seq *b = fork_of(a, 6);
    number_planes();
    OK(seq_append(a, 1));
    POOL_STATE("A 7: 0 2; B 6: 0 1; free 3 4 5 6 7",
               "B reads block 1: A gets a block of its own for token 6, and drops block 1");
    for (int layer = 0; layer < 2; layer++) {
        CLOSE(at(pool->k, layer, 2, 0, 1, 1), at(pool->k, layer, 1, 0, 1, 1), "K of token 5");
        CLOSE(at(pool->v, layer, 2, 0, 0, 0), at(pool->v, layer, 1, 0, 0, 0), "V of token 4");
    }
    EQUAL(isnan(at(pool->k, 1, 2, 0, 2, 1)), 1,
          "the copy has nothing yet in slot 2, for token 6: block_poison()");
    OK(seq_append(b, 2));
    POOL_STATE("A 7: 0 2; B 8: 0 1; free 3 4 5 6 7",
               "now block 1 is B's alone: it writes in place");
    OK(seq_append(fork_of(b, 8), 1));
    POOL_STATE("A 7: 0 2; B 8: 0 1; C 9: 0 1 3; free 4 5 6 7",
               "block 1 is full: token 8 needs a new block, and no copy");
    OK(seq_append(fork_of(a, 7), 1));
    POOL_STATE("A 7: 0 2; B 8: 0 1; C 9: 0 1 3; D 8: 0 4; free 5 6 7",
               "D copies block 2 to block 4");
    OK(seq_append(fork_of(a, 7), 3));
    POOL_STATE("A 7: 0 2; B 8: 0 1; C 9: 0 1 3; D 8: 0 4; E 10: 0 5 6; free 7",
               "E copies block 2 for token 7, and takes a block for tokens 8 and 9");
    EQUAL(pool->num_copies, 3, "num_copies counts the copies");
}

TEST(copy_needs_a_block)
{
    pool_of_blocks(3);
    Seq *a = new_seq(6);
    Seq *b = fork_of(a, 6);
    EQUAL(seq_append(a, 3), PAGED_OUT_OF_BLOCKS,
          "token 8 needs a block, the copy of 4 and 5 another");
    POOL_STATE("A 6: 0 1; B 6: 0 1; free 2", "a call that fails changes nothing");
    EQUAL(seq_append(a, 2), PAGED_OK, "the copy needs one block, and one is free");
    EQUAL(seq_append(b, 2), PAGED_OK, "in place: no block is needed");
}

// ---- stage 9: rewind --------------------------------------------------------------------------

TEST(rewind_by_hand)
{
    pool_of_blocks(6);
    Seq *a = new_computed_seq(14);
    EQUAL(seq_rewind(a, 15), PAGED_BAD_ARGUMENT, "A has 14 tokens");
    EQUAL(seq_rewind(a, -1), PAGED_BAD_ARGUMENT, "a rewind does not add tokens");
    OK(seq_rewind(a, 0));
    EQUAL(pool->plan_number != 0, 1, "nothing was edited: the plan stays");
    OK(seq_rewind(a, 1));
    EQUAL(pool->plan_number, 0, "the sequence was edited: plan_expire(seq)");
    EQUAL(arrlen(a->block_table), 4, "token 12 is still in block 3");
    EQUAL(a->num_computed_tokens, 13, "token 13 is gone");
    OK(seq_rewind(a, 9));
    POOL_STATE("A 4: 0; free 1 2 3 4 5",
               "4 tokens fill one block; the others are dropped, the last "
               "one first, so the free list has the order of the table");
    OK(seq_append(a, 1));
    EQUAL(a->num_computed_tokens, 4, "the new token is not computed");
    OK(seq_rewind(a, 5));
    POOL_STATE("A 0:; free 0 1 2 3 4 5", "no tokens, no blocks");
}

TEST(rewind_into_a_shared_block)
{
    pool_with_poison(6);
    Seq *a = new_computed_seq(7);
    Seq *b = fork_of(a, 7);
    OK(seq_rewind(a, 2));
    POOL_STATE("A 5: 0 1; B 7: 0 1; free 2 3 4 5", "A still shares block 1, for token 4");
    EQUAL(isnan(at(pool->k, 0, 1, 0, 2, 0)), 0, "B reads it: no poison in a shared block");
    OK(seq_append(a, 1));
    OK(seq_rewind(b, 3));
    POOL_STATE("A 6: 0 2; B 4: 0; free 1 3 4 5", "no other table names block 1: it is free");
    Seq *c = new_computed_seq(12);
    OK(seq_rewind(c, 4));
    EQUAL(isnan(at(pool->k, 0, 3, 0, 0, 0)), 0, "8 tokens fill two blocks: no slot is unused");
    OK(seq_rewind(c, 6));
    EQUAL(isnan(at(pool->k, 0, 1, 0, 1, 0)), 0, "token 1 of C is still there");
    EQUAL(isnan(at(pool->v, 0, 1, 0, 2, 1)), 1, "slots of dropped tokens are poisoned: 2 ...");
    EQUAL(isnan(at(pool->k, 0, 1, 0, 3, 0)), 1, "... and 3");
}

// ---- stages 10 and 11: the prefix cache -------------------------------------------------------

static const int text[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int other[] = {5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 15, 16};

TEST(prefix_by_hand)
{
    pool_of_blocks(8);
    pool->num_buckets = 1;  // all blocks meet in one list
    take_blocks(3);
    EQUAL(*prefix_find(pool, 0, text), -1, "nothing is published");
    CALL(prefix_insert(pool, 0, 0, text), "tokens 5 6 7 8, at the beginning of a prompt");
    EQUAL(pool->blocks[0].next_in_bucket, -1,
          "prefix_insert() makes it the last: next_in_bucket is -1");
    EQUAL(pool->blocks[0].serial, 1, "the first publication has number 1");
    EQUAL(pool->last_serial, 1, "the pool counts publications");
    EQUAL(*prefix_find(pool, 0, text), 0, "block 0 has these tokens, at the beginning");
    EQUAL(*prefix_find(pool, 0, other), -1, "the last of the four tokens differs");
    EQUAL(*prefix_find(pool, 1, text), -1, "the tokens are the same, but the parent is not");
    CALL(prefix_insert(pool, 1, 1, text + 4), "its child, after it in the list of buckets[0]");
    EQUAL(*prefix_find(pool, 0, text), 0, "it is still the first in that list");
    EQUAL(*prefix_find(pool, 1, text + 4), 1, "it is second in that list: follow next_in_bucket");
    CALL(prefix_insert(pool, 2, 0, other), "another beginning, after both");
    EQUAL(*prefix_find(pool, 0, other), 2, "tokens 5 6 7 0, at the beginning");
    CALL(prefix_remove(pool, 1), "from the middle of the list");
    EQUAL(pool->blocks[1].serial, 0, "0 means not published");
    EQUAL(*prefix_find(pool, 1, text + 4), -1, "it is no longer published");
    EQUAL(*prefix_find(pool, 0, other), 2, "the block after it in the list is still found");
    CALL(prefix_insert(pool, 1, 1, text + 4), "published again");
    EQUAL(pool->blocks[1].next_in_bucket, -1,
          "prefix_insert() makes it the last: next_in_bucket is -1");
    EQUAL(pool->blocks[1].serial, 4, "a serial is never used again");
    pool->buckets[0] = -1;
    PANICS(prefix_remove(pool, 2), "a published block is not in its bucket", "buckets[0] is -1");
}

TEST(free_but_published)
{
    pool_with_poison(4);
    take_blocks(3);
    number_planes();
    CALL(prefix_insert(pool, 0, 0, text), "tokens 5 6 7 8, the first of a prompt");
    CALL(prefix_insert(pool, 1, 1, text + 4), "tokens 9 10 11 12, after block 0");
    for (int block = 2; block >= 0; block--) CALL(block_drop(pool, block), "its only reference");
    EQUAL(isnan(at(pool->k, 1, 1, 0, 0, 0)), 0,
          "a published block that becomes free keeps K and V");
    POOL_STATE("free 2 3 1* 0*", "published blocks go to the back, the others to the front");
    EQUAL(*prefix_find(pool, 0, text), 0, "block 0 is free, and it is found");
    EQUAL(block_take(pool), 2, "from the front");
    EQUAL(block_take(pool), 3, "from the front");
    EQUAL(block_take(pool), 1, "from the front");
    EQUAL(pool->blocks[1].serial, 0, "it is taken: block_take() withdraws it: prefix_remove()");
    POOL_STATE("free 0*", "block 0 is still published");
    EQUAL(*prefix_find(pool, 1, text + 4), -1, "block 1 will hold other tokens");
}

static Seq *new_published_seq(int length)
{
    Seq *seq = new_computed_seq(length);
    OK(seq_publish(seq, text, length));
    return seq;
}

static Seq *look_up(const int *prompt, int n)
{
    Seq *seq = new_seq(0);
    OK(seq_lookup(seq, prompt, n));
    return seq;
}

TEST(publish_and_look_up)
{
    pool_of_blocks(8);
    Seq *a = new_seq(10);
    EQUAL(seq_publish(a, text, 4), PAGED_BAD_ARGUMENT, "no token of A is computed yet");
    compute(a, 10);
    EQUAL(seq_publish(a, NULL, 4), PAGED_BAD_ARGUMENT, "there are no tokens");
    EQUAL(seq_publish(a, text, -1), PAGED_BAD_ARGUMENT, "a count is not negative");
    EQUAL(seq_publish(a, NULL, 0), PAGED_OK, "an empty array may be null");
    OK(seq_publish(a, text, 10));
    EQUAL(pool->blocks[1].parent, 1, "block 1 comes after serial 1");
    POOL_STATE("A 10: 0* 1* 2; free 3 4 5 6 7", "block 2 is not full: not published");
    EQUAL(pool->plan_number, 0, "published blocks are not written any more: plan_expire(seq)");
    Seq *b = new_seq(0);
    EQUAL(seq_lookup(b, NULL, 0), PAGED_OK, "an empty array may be null");
    EQUAL(seq_lookup(b, NULL, 4), PAGED_BAD_ARGUMENT, "there are no tokens");
    EQUAL(seq_lookup(b, text, -1), PAGED_BAD_ARGUMENT, "a count is not negative");
    OK(seq_lookup(b, text, 10));
    POOL_STATE("A 10: 0* 1* 2; B 8: 0* 1*; free 3 4 5 6 7",
               "two whole blocks are found: block_share()");
    EQUAL(b->num_computed_tokens, 8, "their K and V are there");
    EQUAL(seq_lookup(b, text, 10), PAGED_BAD_ARGUMENT, "B is not empty");
    look_up(text, 8);
    POOL_STATE("A 10: 0* 1* 2; B 8: 0* 1*; C 4: 0*; free 3 4 5 6 7",
               "at most n - 1 tokens: the model needs one to compute");
}

TEST(look_up_free_blocks)
{
    pool_of_blocks(4);
    release(new_published_seq(9));
    POOL_STATE("free 2 3 1* 0*", "published blocks go to the back, the others to the front");
    release(look_up(text, 9));
    POOL_STATE("free 2 3 1* 0*", "free blocks are found until they are taken");
    new_seq(12);
    look_up(text, 9);
    POOL_STATE("C 12: 2 3 1; D 4: 0*; free", "block 0 is left of the prefix");
}

TEST(published_twice)
{
    pool_of_blocks(8);
    Seq *a = new_computed_seq(9);
    Seq *b = new_computed_seq(9);
    OK(seq_publish(a, text, 9));
    OK(seq_publish(b, text, 9));
    POOL_STATE("A 9: 0* 1* 2; B 9: 0* 1* 5; free 4 3 6 7",
               "A has published the same: B takes A's full blocks, and B's own copies are dropped");
    EQUAL(pool->plan_number, 0, "the table of B was edited: plan_expire(seq)");
    Seq *c = fork_of(a, 8);
    plan_newest(c, 1);
    OK(seq_publish(c, text, 8));
    POOL_STATE("A 9: 0* 1* 2; B 9: 0* 1* 5; C 8: 0* 1*; free 4 3 6 7",
               "C has the published blocks");
    EQUAL(pool->plan_number != 0, 1, "nothing is left to publish: the plan stays");
}

// "Where to begin" of chapter 10: A and B share blocks 0 and 1, C has published the first block.
TEST(publish_after_the_last_published)
{
    pool_of_blocks(8);
    Seq *a = new_computed_seq(8);
    Seq *b = fork_of(a, 8);
    OK(seq_publish(new_computed_seq(4), text, 4));
    OK(seq_publish(a, text, 8));
    POOL_STATE("A 8: 2* 1*; B 8: 0 1*; C 4: 2*; free 3 4 5 6 7",
               "A takes the block of C, and drops 0");
    OK(seq_publish(b, text, 8));
    POOL_STATE("A 8: 2* 1*; B 8: 0 1*; C 4: 2*; free 3 4 5 6 7",
               "B begins after block 1, which is published, though block 0 is not");
    OK(seq_publish(b, text, 4));
    POOL_STATE("A 8: 2* 1*; B 8: 2* 1*; C 4: 2*; free 0 3 4 5 6 7",
               "n is 4, so only block 0 counts, which is not published; block 1 is beyond n");
}

TEST(append_to_published)
{
    pool_with_poison(4);
    Seq *a = new_published_seq(8);
    Seq *b = look_up(text, 9);
    OK(seq_rewind(b, 2));
    OK(seq_append(b, 1));
    POOL_STATE("A 8: 0* 1*; B 7: 0* 2; free 3", "A uses block 1, too: B gets a copy");
    OK(seq_append(a, 1));
    POOL_STATE("A 9: 0* 1* 3; B 7: 0* 2; free", "block 1 is full, so it stays as it is");
    OK(seq_rewind(a, 3));
    EQUAL(isnan(at(pool->k, 1, 1, 0, 2, 0)), 0, "block 1 can still be found: no poison");
    OK(seq_append(a, 1));
    POOL_STATE("A 7: 0* 1; B 7: 0* 2; free 3", "only A uses block 1: it leaves the prefix cache");
    EQUAL(isnan(at(pool->k, 1, 1, 0, 2, 0)), 1, "slot 2 is to be written: block_poison()");
}

// ---- stage 12: any size -----------------------------------------------------------------------

TEST(round_off_by_hand)
{
    EQUAL(round_off(0x17, 4), 1, "0x17 is nearer to 0x10 than to 0x20");
    EQUAL(round_off(0x18, 4), 2, "half-way between 0x10 and 0x20: to even");
    EQUAL(round_off(0x28, 4), 2, "half-way between 0x20 and 0x30: to even");
    EQUAL(round_off(0x29, 4), 3, "0x29 is nearer to 0x30 than to 0x20");
}

TEST(f16_by_hand)
{
    CLOSE(f16_to_f32(0x3c00), 1, "sign 0, exponent 15 - 15, mantissa 0");
    CLOSE(f16_to_f32(0xc100), -2.5, "sign 1, exponent 16 - 15, mantissa 256 / 1024");
    EQUAL(float_bits(f16_to_f32(0x0001)), float_bits(0x1p-24f), "the smallest: 1 / 1024 * 2^-14");
    EQUAL(float_bits(f16_to_f32(0x8000)), 0x80000000, "-0 keeps its sign");
    CLOSE(f16_to_f32(0xfc00), -INFINITY, "exponent 31, mantissa 0");
    EQUAL(isnan(f16_to_f32(0x7c01)), 1, "exponent 31, mantissa not 0");
    EQUAL(f32_to_f16(-2.5f), 0xc100, "the sign goes to bit 15");
    EQUAL(f32_to_f16(0x1.006p0f), 0x3c02, "half-way between 0x3c01 and 0x3c02: to even");
    EQUAL(f32_to_f16(0x1.ffep0f), 0x4000, "rounding up carries into the exponent");
    EQUAL(f32_to_f16(65520), 0x7c00, "half-way to 65536: infinity");
    EQUAL(f32_to_f16(0x1p-25f), 0x0000, "half of the smallest: to even, which is 0");
    EQUAL((f32_to_f16(bits_float(0x7f800001)) & 0x7fff) > 0x7c00, 1, "NaN stays NaN");
    for (int h = 0; h <= 0x7c00; h++)
        EQUAL(f32_to_f16(f16_to_f32((uint16_t)h)), h,
              because("f16 to float32 and back is exact: h is %#x", h));
}

TEST(bf16_by_hand)
{
    EQUAL(f32_to_bf16(1), 0x3f80, "the upper half of 0x3f800000");
    EQUAL(f32_to_bf16(bits_float(0x3f808000)), 0x3f80, "half-way to 0x3f81: to even");
    EQUAL(f32_to_bf16(bits_float(0x3f818000)), 0x3f82, "half-way from 0x3f81: to even");
    EQUAL(f32_to_bf16(bits_float(0x7f7fffff)), 0x7f80, "the largest float32 rounds to infinity");
    EQUAL((f32_to_bf16(bits_float(0x7f800001)) & 0x7fff) > 0x7f80, 1, "NaN stays NaN");
}

// ---- main -------------------------------------------------------------------------------------

int main(int argc, char **argv)
{
    static char buffer[BUFSIZ];  // malloc() may be broken by the time something is printed
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGXCPU};
    const char *name = argv[argc - 1];
    setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    signal(SIGABRT, on_signal);
    static char handler_stack[1 << 16];  // the other one may have overflowed
    stack_t stack = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, NULL);
    for (int i = 0; argc == 2 && i < (int)(sizeof signals / sizeof *signals); i++)
        sigaction(signals[i], &action, NULL);
    races = strncmp(name, "races_", 6) == 0;
    if (races || strncmp(name, "kernel_", 7) == 0) {
        device = PAGED_STANDIN;
        name = strchr(name, '_') + 1;
    }
    attention = strncmp(name, "attention", 9) == 0;
    for (int i = 0; i < num_tests; i++) {
        if (strcmp(name, tests[i].name) != 0) continue;
        for (way = attention ? ATTEND_GATHER : ATTEND_PAGED; way >= ATTEND_PAGED; way--)
            tests[i].run();
        end_pool();
        printf("passed %s\n", argv[argc - 1]);
        return 0;
    }
    fprintf(stderr, "usage: %s [--debug] NAME, with a name from learn/stages.txt\n", argv[0]);
    return 2;
}
