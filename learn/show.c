// show: a scene for each stage of the build track. In `make show N=8`, each frame asks what a call
// will change, waits for Enter, makes the call, and draws the pool, as far as the engine goes.
// A token is a letter. The letters are read from the plane of K, so a wrong engine gives a wrong
// picture. A dot is a slot without a letter; a star marks what is new since the frame before.

#define PAGED_NO_MAIN
#include "paged.cu.c"  // the one beside this file or, without it, the finished one
#include <unistd.h>

enum { BLOCKS = 8, SLOTS = 4, TOKENS = BLOCKS * SLOTS, DIM = 32, SIZE = TOKENS * DIM };

static PoolConfig config = {1, 1, DIM, SLOTS, BLOCKS, PAGED_F32, 1, PAGED_CPU};
static Pool *pool;
static Seq *a, *b;
static float k[SIZE], v[SIZE], out[SIZE], lse[TOKENS];
static char cells[2][8][BLOCKS][16];  // the picture of this frame and of the one before
static int frame;

static void print_cell(int row, int column)
{
    const char *now = cells[frame % 2][row][column], *old = cells[(frame + 1) % 2][row][column];
    if (!*old) old = "     0";  // its row was not drawn
    printf("%s%c ", now, frame > 1 && strcmp(now, old) != 0 ? '*' : ' ');
}

#define CELL(row, column, ...) \
    snprintf(cells[frame % 2][row][column], 16, __VA_ARGS__), print_cell(row, column)
#define ROW(row, name, ...) \
    printf("\n%-10s", name); \
    for (int i = 0; i < BLOCKS; i++) CELL(row, i, __VA_ARGS__)

// Each weight under its letter. The largest one has a full bar.
static void draw_bars(void)
{
    float largest = 0;
    for (int i = 0; i < TOKENS; i++) largest = fmaxf(largest, out[i]);
    for (int i = 0; i < 5 * TOKENS && largest > 0; i++) {
        if (i % SLOTS == 0) printf(i % TOKENS == 0 ? "\n           " : "    ");
        putchar(out[i % TOKENS] * 5 > largest * (i / TOKENS) ? '#' : ' ');
    }
    float m = lse[0] + logf(largest);
    if (largest > 0) printf("\nweights   largest score m: %.3f   sum l: %.3f", m, 1 / largest);
}

static void draw(void)
{
    char letters[TOKENS + 1] = "";
    for (int i = 0; i < TOKENS; i++) {
        float x = load_element(pool ? pool->k : k, (size_t)i * DIM, config.dtype);
        letters[i] = x >= '_' && x <= 'z' ? (char)x : '.';
    }
    memset(cells[++frame % 2], 0, sizeof cells[0]);
    if (!pool) {  // stage 1 has nothing but the plane
        ROW(0, "layer", "%6d", i / 4);
        ROW(1, "block.head", "%4d.%d", i / 2 % 2, i % 2);
        ROW(2, "element", "%6d", i * SLOTS * DIM);
        ROW(3, "", "|%.4s|", letters + i * SLOTS);
        printf("\n");
        return;
    }
    printf("\nfree list ");
    int next = pool->blocks[BLOCKS].next, n = 0;
    for (; n < BLOCKS && next >= 0 && next < BLOCKS; n++, next = pool->blocks[next].next)
        CELL(0, next, "%d", next);
    if (next != BLOCKS) printf(n < BLOCKS ? "(then %d)" : "(a loop)", next);
    ROW(1, "block", "%6d", i);
    ROW(2, "", pool->blocks[i].ref_count ? "|%.4s|" : " %.4s ", letters + i * SLOTS);
    draw_bars();
    ROW(3, "ref_count", "%6d", pool->blocks[i].ref_count);
    if (pool->last_serial) {
        ROW(4, "serial", "%6d", (int)pool->blocks[i].serial);
        ROW(5, "parent", "%6d", (int)pool->blocks[i].parent);
    }
    const Seq *seqs[] = {a, b};
    for (int s = 0; s < 2; s++) {
        if (!seqs[s] || seqs[s]->length == 0) continue;
        printf("\n%c: table  ", 'A' + s);
        for (int i = 0; i < BLOCKS && i < (int)arrlen(seqs[s]->block_table); i++) {
            int block = seqs[s]->block_table[i], n = min_int(SLOTS, seqs[s]->length - i * SLOTS);
            CELL(6 + s, i, "%d %.*s", block, n, letters + (unsigned)block % BLOCKS * SLOTS);
        }
    }
    const char *wrong = arrlen(pool->seqs) > 0 ? pool_check(pool) : NULL;
    printf("\n%s%s", wrong ? "WRONG: " : "", wrong ? wrong : "");
}

static void ask(const char *question, const char *call)
{
    printf("\n%s\n> %s\n", question, call);
    if (isatty(1) && getchar() == EOF) exit(2);  // on a terminal, waits for Enter
}

#define CALL(question, call) (ask(question, #call), call, draw())
#define VALUE(question, call) (ask(question, #call), printf("= %d\n", (int)(call)), draw())
#define CODE(question, call) (ask(question, #call), printf("= %s\n", paged_error(call)), draw())
#define seq_release(seq) (seq_release(seq), seq = NULL)  // NULL is not drawn
#define ids(text) ((const int *)L##text)                 // a token's id is its letter

// Appends tokens. Element 0 of a key is the letter, and one of the others, which depends on the
// letter, is 1. A value is 1 at its slot in the pool, so attention returns the weights by slot.
static int put(Seq *seq, const char *text)
{
    float keys[SIZE] = {0}, values[SIZE] = {0};
    int n = (int)strlen(text), error = seq_append(seq, n);
    for (int i = 0; i < n && !error; i++) {
        int t = seq->length - n + i;
        keys[i * DIM] = text[i];
        keys[i * DIM + 1 + text[i] % 29] = 1;
        values[i * DIM + seq->block_table[t / SLOTS] * SLOTS + t % SLOTS] = 1;
    }
    if (!error) error = pool_plan(pool, &(Batch){1, &seq, &n});
    return error ? error : pool_write(pool, 0, keys, values);
}

// Attends from token n - 1, which sees the first n tokens. This letter scores 2, all others 0.
static int look_for(int letter, Seq *seq, int n)
{
    float q[SIZE] = {0};
    int rows = seq->length - n + 1, error = pool_plan(pool, &(Batch){1, &seq, &rows});
    q[1 + letter % 29] = 2;
    return error ? error : attend(pool, 0, 0, 1, 1, q, out, lse);
}

int main(int argc, char **argv)
{
    const PoolConfig shape = {2, 2, DIM, SLOTS, 2, PAGED_F32, 0, PAGED_CPU};
    int stage = atoi(argv[argc - 1]);
    if (stage < 1 || stage > 12) return puts("There are stages 1 to 12."), 2;
    if (stage == 7) config.device = PAGED_STANDIN;
    if (!device_exists(config.device))
        return puts("This build has no stand-in for a GPU, which needs x86-64 or AArch64."), 0;
    setvbuf(stdout, NULL, _IONBF, 0);  // so that a panic comes after its call
    printf("\nStage %d. Decide what each call will change, then press Enter.\n"
           "|ab..| is a block in use, with two empty slots; a star marks what has changed.\n",
           stage);
    if (stage == 12) config.dtype = PAGED_F16;
    if (stage > 1) CODE("All blocks of a new pool are free.", pool_create(&config, &pool));
    if (stage > 2) seq_create(pool, &a), seq_create(pool, &b);
    if (stage > 3) CODE("A gets five letters, then their K and V.", put(a, "be_ki"));
    if (stage == 1) {
        draw();
        CALL("Token 0: block 0, slot 0.", k[kv_offset(&shape, 0, 0, 0, 0)] = 'b');
        CALL("Token 1: slot 1. A key has 32 elements.", k[kv_offset(&shape, 0, 0, 0, 1)] = 'e');
        CALL("Token 0, head 1. Head 0 takes 4 slots.", k[kv_offset(&shape, 0, 0, 1, 0)] = 'b');
        CALL("Another token is in slot 3 of block 1.", k[kv_offset(&shape, 0, 1, 0, 3)] = 'k');
        CALL("Token 0 in layer 1, after all of layer 0.", k[kv_offset(&shape, 1, 0, 0, 0)] = 'b');
    } else if (stage == 2) {
        CALL("Block 4 leaves the list, from the middle.", free_list_remove(pool, 4));
        CALL("It comes back, after block 7.", free_list_insert_after(pool, 7, 4));
        VALUE("Which block is taken first?", block_take(pool));
        CALL("Block 0 is dropped. Does it go to the front or to the back?", block_drop(pool, 0));
        VALUE("Which one is taken now?", block_take(pool));
    } else if (stage == 3) {
        CODE("A gets room for three tokens. How many blocks is that?", seq_append(a, 3));
        CODE("B gets room for two. In which block?", seq_append(b, 2));
        CODE("A gets four more. What will its table be?", seq_append(a, 4));
        CODE("B needs 7 more blocks, and 5 are free. Does it get any?", seq_append(b, 30));
        CALL("A ends and drops its last block first. Which is at the front?", seq_release(a));
        CODE("B gets eight more. In which blocks?", seq_append(b, 8));
    } else if (stage == 4) {
        CODE("B gets two. In which block?", put(b, "hi"));
        CODE("A gets five. Three fill its block; where do the others go?", put(a, "nd_to"));
        CODE("A is copied out of its blocks into k. What does k hold?", seq_gather(a, 0, k, v));
        for (int t = 0; t < a->length; t++) putchar((int)k[t * DIM]);
    } else if (stage == 8) {
        CODE("B begins with the same five. How many blocks are taken?", seq_fork(a, 5, &b));
        CODE("A gets n and d, but B uses block 1, too. Where do they go?", put(a, "nd"));
        CODE("B gets t and e. Does it need a copy as well?", put(b, "te"));
        CALL("A ends. Which of its blocks become free?", seq_release(a));
    } else if (stage == 9) {
        CODE("A guesses five more.", put(a, "ndred"));
        CODE("Only the first two were right. Which block becomes free?", seq_rewind(a, 3));
        CODE("B begins like A.", seq_fork(a, 7, &b));
        CODE("B drops the d, which A still uses. Does A lose it?", seq_rewind(b, 1));
        CODE("B gets a g instead. Where does it go?", put(b, "g"));
    } else if (stage == 10) {
        CODE("A gets three more.", put(a, "nd_"));
        CALL("Block 0 begins a prompt: no parent.", prefix_insert(pool, 0, 0, ids("be_k")));
        CALL("Block 1 follows serial 1.", prefix_insert(pool, 1, 1, ids("ind_")));
        VALUE("Which block begins a prompt with ind_?", *prefix_find(pool, 0, ids("ind_")));
        VALUE("Which one has ind_ after serial 1?", *prefix_find(pool, 1, ids("ind_")));
        CALL("A ends. Where on the free list are its blocks?", seq_release(a));
        CODE("B needs 7 blocks. Is be_k lost? And ind_?", put(b, "keep_them_and_do_not_wait_so"));
    } else if (stage == 11) {
        CODE("A gets five more.", put(a, "nd_to"));
        CODE("Its full blocks are published. How many?", seq_publish(a, ids("be_kind_to"), 10));
        CODE("B must compute its last token. What is found?", seq_lookup(b, ids("be_kind_"), 8));
        CODE("B computes the rest, in a block of its own.", put(b, "ind_"));
        CODE("B publishes it. Does the pool keep both?", seq_publish(b, ids("be_kind_"), 8));
    } else {  // stages 5, 6, 7 and 12: attention
        CODE("B gets two.", put(b, "hi"));
        CODE("A gets ten more.", put(a, "nd_to_bees"));
        for (int n = 0; stage == 6 && n < 5;)
            CODE("One token more. Does m rise? Does l shrink or grow?", look_for('k', a, ++n));
        CODE("Token 1 is an e and scores 2, token 0 scores 0. What is m?", look_for('e', a, 2));
        if (stage == 7) VALUE("A thread block for each query token: how many?", gridDim.x);
        if (stage == 12) VALUE("1024 bytes in 32 bits. And in 16?", pool_bytes_per_block(&config));
        CODE("Which block gets most of the weight?", look_for('e', a, 15));
        CODE("No letter is an x. How long are the bars?", look_for('x', a, 15));
        CODE("Does B see the letters of A?", look_for('e', b, 2));
    }
    printf("\n");
}
