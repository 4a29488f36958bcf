// show: a scene for each stage of the build track, which learn/show.py draws. It prints `? TEXT`,
// what to predict; `> CALL`, which follows; `= VALUE`, what that returned; and `{ ... }`, the state
// after it, as a literal of Python. All other lines come from the engine.
//
// A token is a letter. The letters of a state are those in the plane of K, so a wrong engine gives
// a wrong picture. A scene calls only what its stage and those before it have.

#define PAGED_NO_MAIN
#ifndef ENGINE
#define ENGINE "../learn/paged.cu.c"  // a missing one is not replaced by ../paged.cu.c
#endif
#include ENGINE

enum { BLOCKS = 8, SLOTS = 4, TOKENS = BLOCKS * SLOTS, DIM = 32, SEQS = 3 };

static PoolConfig config = {1, 1, DIM, SLOTS, BLOCKS, PAGED_F32, 1, PAGED_CPU};
static Pool *pool;
static Seq *a, *b, *c;
static Seq **const seqs[SEQS] = {&a, &b, &c};
static const char *texts[SEQS];  // a sequence has the first `length` letters of its text
static int tokens[TOKENS];       // the letters of A, as numbers
static float k[TOKENS * DIM], v[TOKENS * DIM], q[TOKENS * DIM], out[TOKENS * DIM], lse[TOKENS];
static const Seq *reader;  // attended last, ...
static int seen;           // ... to its first `seen` tokens; 0: not since the last put()

static void report(void)
{
    const Block *blocks = pool->blocks;
    float m = -INFINITY;
    printf("{'free': [");
    for (int n = 0, i = blocks[BLOCKS].next; n <= BLOCKS && i >= 0 && i < BLOCKS; n++) {
        printf("%d, ", i);
        i = blocks[i].next;
    }
    printf("], 'blocks': [");
    for (int i = 0; i < BLOCKS; i++) {
        printf("(%d, %d, %d, '", blocks[i].ref_count, (int)blocks[i].serial, (int)blocks[i].parent);
        for (int slot = i * SLOTS; slot < (i + 1) * SLOTS; slot++) {
            float x = load_element(pool->k, (size_t)slot * DIM, config.dtype);
            putchar((x >= 'a' && x <= 'z') || x == '_' ? (int)x : '.');
        }
        printf("'), ");
    }
    printf("], 'seqs': {");
    for (int s = 0; s < SEQS; s++) {
        const Seq *seq = *seqs[s];
        if (!seq) continue;
        printf("'%c': ('%.*s', %d, [", 'A' + s, seq->length, texts[s], seq->num_computed_tokens);
        for (int i = 0; i < (int)arrlen(seq->block_table); i++) printf("%d, ", seq->block_table[i]);
        printf("]), ");
    }
    printf("}, 'weights': [");
    for (int t = 0; t < seen; t++) {
        printf("(%d, '%g'), ", reader->block_table[t / SLOTS], out[t]);
        m = fmaxf(m, logf(out[t]) + lse[0]);  // the score of token t
    }
    const char *wrong = NULL;
    if (arrlen(pool->seqs) > 0) wrong = pool_check(pool);
    if (!wrong) wrong = "";
    printf("], 'm': '%.3f', 'l': '%.3f', 'wrong': '%s'}\n", m, expf(lse[0] - m), wrong);
}

static void ask(const char *question, const char *call) { printf("? %s\n> %s\n", question, call); }

static void returned(int error, int expected)
{
    printf("= %s\n", paged_error(error));
    report();
    if (error == expected) return;
    printf("WRONG: it should be: %s\n", paged_error(expected));
    exit(1);
}

// A call that returns an error code, a number, or nothing.
#define TRY(expected, question, call) (ask(question, #call), returned(call, expected))
#define OK(question, call) TRY(PAGED_OK, question, call)
#define VALUE(question, call) (ask(question, #call), printf("= %d\n", (int)(call)), report())
#define CALL(question, call) (ask(question, #call), (call), report())
#define seq_release(seq) (seq_release(seq), (seq) = NULL)  // of this name

static int plan(Seq *seq, int n) { return pool_plan(pool, &(Batch){1, &seq, &n}); }

// K and V of the newest n tokens. Element 0 of a key is its letter, the last one its position, and
// one of the others, which the letter chooses, is 1. A value is 1 at its position and otherwise 0,
// so that attention returns the weights themselves.
static void compute(const Seq *seq, int n)
{
    int s = 0;
    while (*seqs[s] != seq) s++;
    memset(k, 0, sizeof k);
    memset(v, 0, sizeof v);
    for (int i = 0, t = seq->length - n; i < n; i++, t++) {
        k[i * DIM] = texts[s][t];
        k[i * DIM + 1 + texts[s][t] % 29] = 1;
        k[i * DIM + DIM - 1] = (float)t;
        v[i * DIM + t] = 1;
    }
}

static int put(Seq *seq, int n)
{
    int error = seq_append(seq, n);
    seen = 0;
    if (error) return error;
    compute(seq, n);
    error = plan(seq, n);
    return error ? error : pool_write(pool, 0, k, v);
}

// Attention to the first n tokens: this letter scores 2, and each position 1/8 more.
static int look_for(int letter, Seq *seq, int n)
{
    int rows = seq->length - n + 1;
    int error = plan(seq, rows);
    for (int i = 0; i < rows; i++) {
        memset(q + i * DIM, 0, DIM * sizeof *q);
        q[i * DIM + 1 + letter % 29] = 2;
        q[i * DIM + DIM - 1] = 0.125f;
    }
    if (!error) error = attend(pool, 0, 0, 1, 1, q, out, lse);
    reader = seq;
    seen = n;
    return error;
}

static void begin(const char *text_of_a, const char *text_of_b)
{
    size_t bytes = pool_bytes_per_block(&config) / 2 * BLOCKS;
    int error = pool_create(&config, &pool);
    INVARIANT(!error, paged_error(error));
    memset(pool->k, 0xff, bytes);
    memset(pool->v, 0xff, bytes);
    seq_create(pool, &a);
    seq_create(pool, &b);
    texts[0] = texts[2] = text_of_a;
    texts[1] = text_of_b;
    for (int t = 0; text_of_a[t]; t++) tokens[t] = text_of_a[t];
    report();
}

// ---- scenes -----------------------------------------------------------------------------------

static void stage_1(void)
{
#define NUMBER(question, call) (ask(question, #call), at = call, printf("= %zu\n", at))
#define KEY(key, question, call) \
    (NUMBER(question, call), printf("{'key': '%s', 'at': %zu}\n", key, at))
    const PoolConfig shape = {2, 2, 2, SLOTS, 4, PAGED_F32, 0, PAGED_CPU};
    size_t at;
    KEY("b", "Token 0: block 0, slot 0. Where does its key begin?", kv_offset(&shape, 0, 0, 0, 0));
    KEY("e", "Token 1 is in slot 1, and a key has 2 numbers.", kv_offset(&shape, 0, 0, 0, 1));
    KEY("b", "Token 0 for head 1: after the 4 slots of head 0.", kv_offset(&shape, 0, 0, 1, 0));
    KEY("k", "Another token is in slot 3 of block 2.", kv_offset(&shape, 0, 2, 0, 3));
    KEY("b", "Token 0 in layer 1: after the 4 blocks of layer 0.", kv_offset(&shape, 1, 0, 0, 0));
    NUMBER("How many blocks do 9 tokens need?", ceil_div(9, SLOTS));
    NUMBER("How many bytes does a token take, in K and V?", pool_bytes_per_token(&shape));
}

static void stage_2(void)
{
    OK("A new pool puts each block at the back. Which is first?", pool_create(&config, &pool));
    CALL("Block 4 is taken out of the middle. Which links change?", free_list_remove(pool, 4));
    CALL("It is put back, after block 7.", free_list_insert_after(pool, 7, 4));
    VALUE("Which block is taken first?", block_take(pool));
    VALUE("Which one is next?", block_take(pool));
    VALUE("And which one then?", block_take(pool));
    CALL("Block 1 is dropped. Does it go to the front or to the back?", block_drop(pool, 1));
    CALL("Block 0 is dropped. Which one is first now?", block_drop(pool, 0));
    VALUE("Which one is taken: the block that came back first, or last?", block_take(pool));
}

static void stage_3(void)
{
    begin("be_kind_to_all", "hi_there_you");
    OK("A gets three letters. How many blocks does that take?", seq_append(a, 3));
    OK("B gets two. In which block?", seq_append(b, 2));
    OK("A gets a fourth letter. Is a block taken?", seq_append(a, 1));
    OK("A gets three more. What will its table be?", seq_append(a, 3));
    TRY(PAGED_OUT_OF_BLOCKS, "B needs 7 blocks; 5 are free. Does it get them?", seq_append(b, 30));
    TRY(PAGED_TOO_LONG, "One more, and B is longer than the whole pool.", seq_append(b, 31));
    CALL("A ends, and drops its last block first. Which one is first now?", seq_release(a));
    OK("B gets eight letters. In which blocks?", seq_append(b, 8));
}

static void stage_4(void)
{
    begin("be_kind_to_all", "hi_there_you");
    OK("A gets room for three letters. What do its slots hold?", seq_append(a, 3));
    compute(a, 3);
    OK("The plan lists the new tokens. Does it store anything?", plan(a, 3));
    OK("Now K and V of the three are stored.", pool_write(pool, 0, k, v));
    OK("put() makes these three calls. Where do two letters of B go?", put(b, 2));
    OK("A gets four. One fills its block. Where do the others go?", put(a, 4));
    OK("B gets six.", put(b, 6));
    OK("A is copied out of its blocks, into k. What does k hold?", seq_gather(a, 0, k, v));
    printf("k: ");
    for (int t = 0; t < a->length; t++) putchar((int)k[t * DIM]);
    printf("\n");
}

static void begin_attention(void)
{
    printf("look_for('e', a, 4): token 3 of A attends to tokens 0 to 3 and looks for an e.\n");
    begin("be_seen_by_bees", "hi_there_you");
    if (put(a, 3) || put(b, 2) || put(a, 4)) printf("WRONG: put() fails\n");
    report();
}

static void stage_5(void)
{
    begin_attention();
    OK("An e scores 2, and each position 1/8. Which two bars are longest?", look_for('e', a, 7));
    OK("Token 3 sees nothing after it. Which bar is longest now?", look_for('e', a, 4));
    OK("No letter is an x. What still makes a difference?", look_for('x', a, 7));
    OK("A gets eight letters.", put(a, 8));
    OK("Which block gets most of the weight?", look_for('e', a, 15));
    OK("Does B see the letters of A?", look_for('e', b, 2));
}

static void stage_6(void)
{
    char question[80];
    begin_attention();
    for (int t = 0; t < a->length; t++) {
        double score = t / 8.0;
        if (texts[0][t] == 'e') score += 2;
        snprintf(question, sizeof question, "Token %d is %c, and its score is %.3f. Does m rise?",
                 t, texts[0][t], score);
        OK(question, look_for('e', a, t + 1));
    }
}

static void stage_7(void)
{
    begin_attention();
    OK("The CPU takes one token after another.", look_for('e', a, 7));
#ifdef PAGED_NO_STANDIN
    printf("This build has no stand-in for a GPU.\n");
#else
    config.device = PAGED_STANDIN;
    begin_attention();
    OK("On the stand-in, four warps share the tokens. Are the bars the same?", look_for('e', a, 7));
    gpu_lane_order = DESCENDING;
    OK("Now the last lane runs first, as far as it can. Still the same?", look_for('e', a, 7));
#endif
}

static void stage_8(void)
{
    begin("be_kind", "be_kite");
    OK("A gets five letters.", put(a, 5));
    seq_release(b);
    OK("B begins with the same five. How many blocks are taken?", seq_fork(a, 5, &b));
    OK("A gets n and d, but B uses block 1, too. Where do they go?", put(a, 2));
    OK("B gets t and e. Does it need a copy as well?", put(b, 2));
    OK("C begins with a full block.", seq_fork(a, 4, &c));
    OK("C gets two letters. Is block 0 copied?", put(c, 2));
    CALL("A ends. Which of its blocks become free?", seq_release(a));
}

static void stage_9(void)
{
    begin("be_kindred", "be_kind");
    OK("A gets six letters.", put(a, 6));
    OK("A guesses four more: d, r, e and d.", put(a, 4));
    OK("Only the first guess was right. Which block becomes free?", seq_rewind(a, 3));
    texts[0] = "be_kind_to";
    OK("A goes on. Which block does it take?", put(a, 3));
    seq_release(b);
    OK("B begins with the first seven letters of A.", seq_fork(a, 7, &b));
    OK("B drops the d, which A still uses. Does A lose it?", seq_rewind(b, 1));
    texts[1] = "be_king";
    OK("B gets a g instead. Where does it go?", put(b, 1));
}

static void stage_10(void)
{
    begin("be_kind_", "");
    pool->num_buckets = 1;  // so that one list has all published blocks
    OK("A gets eight letters.", put(a, 8));
    CALL("Block 0 begins a prompt, so its parent is 0.", prefix_insert(pool, 0, 0, tokens));
    CALL("Block 1 follows serial 1.", prefix_insert(pool, 1, 1, tokens + 4));
    VALUE("Which block begins a prompt with be_k?", *prefix_find(pool, 0, tokens));
    VALUE("Which one begins a prompt with ind_?", *prefix_find(pool, 0, tokens + 4));
    VALUE("Which one has ind_ after serial 1?", *prefix_find(pool, 1, tokens + 4));
    CALL("Block 0 leaves the cache. Are its letters gone?", prefix_remove(pool, 0));
    VALUE("Is be_k found now?", *prefix_find(pool, 0, tokens));
}

static void stage_11(void)
{
    begin("be_kind_to_all_of_them_and_to_me", "be_kind_");
    OK("A gets ten letters.", put(a, 10));
    OK("Its full blocks are published. How many are there?", seq_publish(a, tokens, 10));
    OK("How much of be_kind_ is found, if B must compute its end?", seq_lookup(b, tokens, 8));
    OK("B computes the rest, in a block of its own.", put(b, 4));
    OK("B publishes it. Does the pool keep ind_ twice?", seq_publish(b, tokens, 8));
    CALL("A ends. Which of its blocks become free?", seq_release(a));
    CALL("B ends. Where on the free list are the published blocks?", seq_release(b));
    seq_create(pool, &c);
    OK("C has A's prompt. What is found, though all blocks are free?", seq_lookup(c, tokens, 10));
    CALL("C ends.", seq_release(c));
    seq_create(pool, &a);
    OK("A needs seven blocks. Which of the published ones is taken?", put(a, 28));
}

static void stage_12(void)
{
    printf("K and V are stored in 16 bits.\n");
    config.dtype = PAGED_F16;
    stage_5();
}

int main(int argc, char **argv)
{
    static void (*const scenes[])(void) = {stage_1, stage_2, stage_3, stage_4,  stage_5,  stage_6,
                                           stage_7, stage_8, stage_9, stage_10, stage_11, stage_12};
    int number = argc > 1 ? atoi(argv[1]) : 1;
    setvbuf(stdout, NULL, _IOLBF, 0);  // so that a crash comes after its call
    if (number > 4)
        printf("put(a, 3): A gets its next three letters, and their K and V are stored.\n");
    scenes[number - 1]();
    return 0;
}
