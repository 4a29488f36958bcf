// draw: the pictures of README.md and walkthrough.md, as SVG; `make pictures` has the commands.
// Three of them, life, preempt and memory, show what replay measured; the others show a live pool.
// What these say of it is checked: a wrong engine is not drawn. whole.svg is drawn by hand.

#define PAGED_NO_MAIN
#include "../paged.cu.c"  // not only paged.h: a plan and a thread block's memory are shown, too
#undef STB_DS_IMPLEMENTATION
#include "util.h"

// What a picture says must be true of the pool.
#define EXPECT(truth) ((truth) ? (void)0 : die(1, "%s", "not so: " #truth))

static const char *const kinds[] = {"A", "B", "C", "D", "kept"};  // of boxes: classes of CSS
enum { WIDTH = 520, MARGIN = 20, LEFT = 106, RIGHT = WIDTH - MARGIN, CELL = 26 };

#define text(x, y, kind, ...) \
    (printf("<text x=\"%g\" y=\"%g\" class=\"%s\">", (double)(x), (double)(y), kind), \
     printf(__VA_ARGS__), printf("</text>"))

// A box with a value in it.
#define cell(x, y, width, kind, ...) \
    (draw_box(x, y, width, CELL, kind), \
     text((x) + (width) / 2.0, (y) + 18, (kind)[1] ? "middle" : "white", __VA_ARGS__))

static void draw_box(double x, double y, double width, double height, const char *kind)
{
    printf("<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" class=\"%s\"/>", x, y, width, height,
           kind);
}

// A card as light or dark as the page. The title is for those who cannot see the picture.
static void begin(int height, const char *title)
{
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
           "height=\"%d\">\n<title>%s</title>\n"
           "<style>svg{color:#1f2328}.card{fill:#fff;stroke:#8b949e66}"
           "@media(prefers-color-scheme:dark){svg{color:#f0f6fc}.card{fill:#0d1117}}"
           "text{font:15px Helvetica,Arial,sans-serif;fill:currentColor}.end{text-anchor:end}"
           ".middle,.white{text-anchor:middle}.bold,.white{font-weight:600}"
           "rect{rx:3px}.white{fill:#fff}.kept{fill:#8b949e66}.A,.B,.C,.D{fill:currentColor}"
           "path{color:#768390}.mark{color:inherit}.A{color:#3572c6}.B{color:#bc5b10}.C{color:#"
           "2c8746}.D{color:#8250df}"
           "path,path[class],.changed{fill:none;stroke:currentColor}"
           ".changed{stroke-width:2.5}</style>\n",
           WIDTH, height, WIDTH, height, title);
    draw_box(.5, .5, WIDTH - 1, height - 1, "card");
}

// n boxes in a row, each `width` wide; the first `filled` are of a kind.
static void draw_strip(double x, double y, int n, double width, int filled, const char *kind)
{
    if (filled > 0) draw_box(x, y, filled * width, CELL, kind);
    printf("<path d=\"M%g %gh%gv%dh%gz", x, y, n * width, CELL, -n * width);
    for (int i = 1; i < n; i++) printf("m%g 0v%dm0-%d", width, CELL, CELL);
    printf("\"/>");
}

// A curve that leaves and arrives vertically.
static void arrow(const char *kind, double x, double y, double to_x, double to_y)
{
    double bend = (to_y - y) / 2;
    int back = to_y > y ? -5 : 5;
    printf("<path class=\"%s\" d=\"M%g %gC%g %g %g %g %g %gm-3 %dl3 %d 3 %d\"/>", kind, x, y, x,
           y + bend, to_x, to_y - bend, to_x, to_y, back, -back, back);
}

// ---- a live pool ------------------------------------------------------------------------------

enum { A, B, C, D, SEQS, NUM_BLOCKS = 8, NUM_ENTRIES = 4 };  // at most, in a picture
static Pool *pool;
static Seq *seqs[SEQS];
static double slot_width;
static float numbers[4096];  // with which each scene of ./tour begins

static void create_pool(PoolConfig config, double width)
{
    uint64_t seed = 1;
    for (int i = 0; i < 4096; i++) numbers[i] = (float)(2 * random_uniform(&seed) - 1);
    must(pool_create(&config, &pool), "pool");
    slot_width = width;
}

// Appends n tokens to a sequence, a new one if it is NULL, and stores their K and V:
// [num_layers][K, V][n][num_kv_heads][head_dim], or `numbers` if it is NULL.
static Seq *append(Seq *seq, int n, const float *kv)
{
    size_t size = (size_t)n * pool->config.num_kv_heads * pool->config.head_dim;
    if (!seq) must(seq_create(pool, &seq), "create");
    if (!kv) kv = numbers;
    must(seq_append(seq, n), "append");
    must(pool_plan(pool, &(Batch){1, &seq, &n}), "plan");
    for (int layer = 0; layer < pool->config.num_layers; layer++, kv += 2 * size)
        must(pool_write(pool, layer, kv, kv + size), "write");
    return seq;
}

// ---- tables and blocks ------------------------------------------------------------------------
// The block tables of up to four sequences, and the pool below.

enum { SCENES = 7, SECONDS = 4, FREE_Y = 84, TABLE_Y = 150, POOL_Y = 232, GAP = 10, ID = 28 };

static int states;                                     // drawn before
static int old_tables[SEQS][NUM_ENTRIES];              // in the previous state, + 1; 0: no entry
static int filled[NUM_BLOCKS], old_looks[NUM_BLOCKS];  // blocks that change are outlined
static int id_x[NUM_BLOCKS], id_y[NUM_BLOCKS];         // where the id of a block was; y 0: nowhere

static double block_width(void) { return pool->config.block_size * slot_width; }
static double block_x(int block) { return LEFT + block * (block_width() + GAP); }
static double middle(int block) { return block_x(block) + block_width() / 2; }

// The id of a block. In steps, CSS moves it there from where it was.
static void draw_id(int block, int x, int y, const char *kind)
{
    int moves = id_y[block] > 0 && (id_x[block] != x || id_y[block] != y);
    if (moves)
        printf("<g class=\"moves\" style=\"--from:translate(%dpx,%dpx)\">", id_x[block] - x,
               id_y[block] - y);
    cell(x, y, ID, kind, "%d", block);
    if (moves) printf("</g>");
    id_x[block] = x;
    id_y[block] = y;
}

// An entry of a table, the arrow to its block, and the slots that it sees there. If A and B share
// the block, each gets half of its height.
static void draw_entry(int seq, int i, int x)
{
    int block = seqs[seq]->block_table[i];
    int old = old_tables[seq][i] - 1;
    int tokens = min_int(seqs[seq]->length - i * pool->config.block_size, pool->config.block_size);
    double height = (double)CELL / pool->blocks[block].ref_count;
    double y = POOL_Y + seq * (CELL - height);
    draw_box(block_x(block), y, tokens * slot_width, height, kinds[seq]);
    arrow(kinds[seq], x + ID / 2.0, TABLE_Y + CELL, middle(block), POOL_Y);
    if (old == block) id_x[block] = x;  // not where another table has it
    if (old >= 0 && old != block && pool->blocks[old].ref_count > 0) {  // this one is a copy
        printf("<path d=\"M%g %dv3c0 20 %g 20 %g 0v-3m-4 6l4-6 4 6\"/>", middle(old), POOL_Y + 72,
               middle(block) - middle(old), middle(block) - middle(old));
        text(middle(block) + 9, POOL_Y + 92, "", "copy");
    }
    draw_id(block, x, TABLE_Y, kinds[seq]);
    old_tables[seq][i] = block + 1;
    filled[block] = tokens;
}

static void draw_pool(void)
{
    EXPECT(pool_check(pool) == NULL);
    text(MARGIN, TABLE_Y + 18, "small", "block_table");
    text(MARGIN, POOL_Y + 18, "small", "pool");
    text(MARGIN, POOL_Y + 44, "small", "block");
    text(MARGIN, POOL_Y + 64, "small", "ref_count");
    for (int block = 0; block < pool->config.num_blocks; block++) {
        int count = pool->blocks[block].ref_count;
        int look = 100 * count + filled[block];
        draw_strip(block_x(block), POOL_Y, pool->config.block_size, slot_width, 0, "");
        text(middle(block), POOL_Y + 44, "middle", "%d", block);
        text(middle(block), POOL_Y + 64, "middle", "%d", count);
        if (states > 0 && look != old_looks[block])
            draw_box(block_x(block) - 2, POOL_Y - 2, block_width() + 4, CELL + 4, "changed");
        old_looks[block] = look;
    }
    states++;
}

// Tables, filled slots and the pool.
static void draw_state(void)
{
    for (int s = 0; s < SEQS; s++) {
        int x = LEFT + 138 * min_int(s, C);  // D takes the place of C
        int entries = seqs[s] ? (int)arrlen(seqs[s]->block_table) : 0;
        for (int i = 0; i < entries; i++) draw_entry(s, i, x + i * (ID + 4));
        for (int i = entries; i < NUM_ENTRIES; i++) old_tables[s][i] = 0;
        if (entries > 0) text(x, TABLE_Y - 10, "", "%s: %d tokens", kinds[s], seqs[s]->length);
    }
    draw_pool();
}

// ---- steps ------------------------------------------------------------------------------------
// Each scene shows the pool after an edit. CSS plays the scenes in turn, and moves the ids of
// blocks from their places in the previous scene. Without motion, one scene is shown.

static void draw_scene(const char *edit)
{
    const Block *blocks = pool->blocks;
    int x = LEFT;
    printf("<g class=\"scene\" style=\"--start:%.1fs\">", (states - SCENES) * SECONDS - 0.9);
    text(MARGIN, 34, "bold", "%s", edit);
    text(RIGHT, 34, "end small", "%d of %d", states + 1, SCENES);
    draw_state();
    for (int block = blocks[NUM_BLOCKS].next; block < NUM_BLOCKS; block = blocks[block].next) {
        const char *kind = blocks[block].serial != 0 ? "kept" : "card";
        if (blocks[block].serial != 0) draw_box(block_x(block), POOL_Y, block_width(), CELL, kind);
        draw_id(block, x, FREE_Y, kind);
        x += ID + 4;
    }
}

#define SCENE(edit, ...) (draw_scene(edit), text(MARGIN, 60, "", __VA_ARGS__), printf("</g>"))

static void draw_steps(void)
{
    static const int prompt[10];
    create_pool((PoolConfig){1, 1, 1, 4, NUM_BLOCKS, PAGED_F16, 0, PAGED_CPU}, 10);
    for (int block = 0; block < NUM_BLOCKS; block++) {
        id_x[block] = LEFT + block * (ID + 4);
        id_y[block] = FREE_Y;
    }
    begin(362, "A and C take blocks. A grows, is forked, gets a copy of a shared block, guesses "
               "four tokens and drops three. C ends, and D, with its prompt, finds its blocks.");
    printf("<style>.scene{visibility:hidden}.scene:nth-of-type(3){visibility:visible}"
           "@keyframes show{0%%{visibility:visible}%.3f%%,to{visibility:hidden}}"
           "@keyframes move{0%%,1%%{transform:var(--from)}3%%,to{transform:none}}"
           "@media(prefers-reduced-motion:no-preference){"
           ".scene{animation:show %ds var(--start) infinite step-end}"
           ".moves{animation:move %ds var(--start) infinite}}</style>\n",
           100.0 / SCENES, SCENES * SECONDS, SCENES * SECONDS);

    seqs[A] = append(NULL, 6, NULL);
    seqs[C] = append(NULL, 8, NULL);
    append(seqs[A], 4, NULL);
    int last = seqs[A]->block_table[2];
    EXPECT(seqs[A]->block_table[0] == 0 && last > seqs[C]->block_table[1]);
    SCENE("append", "A and C take blocks from the free list. A grows, and takes block %d.", last);

    must(seq_fork(seqs[A], seqs[A]->length, &seqs[B]), "fork");
    EXPECT(pool->blocks[last].ref_count == 2 && pool->num_copies == 0);
    SCENE("fork", "B is a fork of A. Both tables name the same blocks; nothing is copied.");

    append(seqs[A], 1, NULL);
    int copy = seqs[A]->block_table[2];
    EXPECT(pool->num_copies == 1 && copy != last && pool->blocks[last].ref_count == 1);
    SCENE("copy-on-write", "A appends. Block %d is shared, so A copies it to %d.", last, copy);

    append(seqs[A], 4, NULL);
    int draft = seqs[A]->block_table[3];
    EXPECT(seqs[A]->length == 15);
    SCENE("draft", "A guesses its next four tokens. Three are in a new block, %d.", draft);

    must(seq_rewind(seqs[A], 3), "rewind");
    EXPECT(seqs[A]->length == 12 && pool->blocks[NUM_BLOCKS].next == draft);
    SCENE("rewind", "One guess was right. A drops the others; block %d is free again.", draft);

    must(seq_publish(seqs[C], prompt, 8), "publish");
    int first = seqs[C]->block_table[0];
    seq_release(seqs[C]);
    seqs[C] = NULL;
    EXPECT(pool->blocks[NUM_BLOCKS].prev == first && pool->blocks[first].serial != 0);
    SCENE("release", "C ends. Its blocks keep their tokens, at the back of the free list.");

    seqs[D] = append(NULL, 0, NULL);
    must(seq_lookup(seqs[D], prompt, 10), "lookup");
    EXPECT(seqs[D]->num_computed_tokens == 8 && seqs[D]->block_table[0] == first);
    append(seqs[D], 2, NULL);
    SCENE("prefix hit", "D has the prompt of C. Two of its blocks are found, not computed.");

    text(MARGIN, FREE_Y + 18, "small", "free list");
    text(LEFT, 344, "small", "A slot holds K and V of one token, in every layer.");
}

// Chapter 1: the vectors of a token in a layer. What is filled is kept.
static void draw_vectors(void)
{
    static const char *const names[] = {"q = Wq x, used once", "k = Wk x, kept", "v = Wv x, kept"};
    enum { LAYERS = 32, HEADS = 32, DIM = 128, ROW = HEADS * DIM };  // Llama-2-7B
    static float kv[LAYERS * 2 * ROW], k[ROW], v[ROW];
    create_pool((PoolConfig){LAYERS, HEADS, DIM, 1, 1, PAGED_F16, 0, PAGED_CPU}, 0);
    for (int i = 0; i < LAYERS * 2 * ROW; i++) kv[i] = (float)(i % 2039);
    Seq *seq = append(NULL, 1, kv);
    for (int layer = 0; layer < LAYERS; layer++) {
        const float *written = kv + 2 * layer * ROW;
        must(seq_gather(seq, layer, k, v), "gather");
        for (int i = 0; i < ROW; i++) EXPECT(k[i] == written[i] && v[i] == written[ROW + i]);
    }
    size_t row_bytes = ROW * sizeof(uint16_t);
    EXPECT(pool_bytes_per_token(&pool->config) == 2 * LAYERS * row_bytes);
    begin(240, "Each layer multiplies the vector x of a token by three matrices. Two of the "
               "products, k and v, are kept.");
    for (int i = 2; i >= 0; i--) draw_box(MARGIN + 5 * i, 30 - 5 * i, 470, 160, "card");
    text(36, 56, "bold", "layers 0 to %d", LAYERS - 1);
    cell(187, 42, 136, "kept", "x");
    for (int i = 0; i < 3; i++) {
        int x = 31 + 156 * i;
        arrow("", 255, 68, x + 68, 122);
        text(x + 68, 170, "middle small", "%s", names[i]);
        draw_strip(x, 122, HEADS, 4.25, i == 0 ? 0 : HEADS, "A");
    }
    text(MARGIN, 218, "", "Blue: %d x %d numbers, %zu KiB. A token: %d rows, %zu KiB.", HEADS, DIM,
         row_bytes >> 10, 2 * LAYERS, 2 * LAYERS * row_bytes >> 10);
}

// Chapter 3: the free list, from the sentinel on, and block 1 when it is taken.
static void draw_free_list(void)
{
    create_pool((PoolConfig){1, 1, 1, 4, NUM_BLOCKS, PAGED_F32, 1, PAGED_CPU}, 0);
    order_free_list(pool, NUM_BLOCKS, (int[]){0, 2, 4, 6, 1, 5, 3, 7});
    append(NULL, 16, NULL);
    begin(178, "The free blocks 1, 5, 3 and 7 and a sentinel, 8, are linked into a ring in both "
               "directions. Block 1 is taken from the front; dropped, it returns to the front.");
    text(64, 32, "middle small", "sentinel");
    text(114, 46, "middle small", "next");
    text(114, 76, "middle small", "prev");
    cell(42, 42, 44, "kept", "%d", NUM_BLOCKS);
    int block = NUM_BLOCKS;
    for (int x = 86; x < 486; x += 100) {
        int next = pool->blocks[block].next;
        EXPECT(pool->blocks[next].prev == block);
        cell(x + 56, 42, 44, "card", "%d", next);
        printf("<path d=\"M%d 50h56m-6-4l6 4-6 4m6 6h-56m6-4l-6 4 6 4\"/>", x);
        block = next;
    }
    EXPECT(pool->blocks[block].next == NUM_BLOCKS && pool->blocks[NUM_BLOCKS].prev == block);
    printf("<path d=\"M492 51l-6 4 6 4m-6-4h14v30H26V55h16m-6-4l6 4-6 4\"/>");
    Seq *seq = append(NULL, 1, NULL);
    EXPECT(seq->block_table[0] == 1 && pool->num_free == 3);
    arrow("", 154, 68, 154, 134);
    arrow("", 174, 134, 174, 68);
    text(146, 118, "end", "take");
    text(182, 118, "", "drop");
    cell(142, 134, 44, "A", "1");
    text(196, 152, "", "in use, as blocks 0, 2, 4 and 6 are");
    seq_release(seq);
    EXPECT(pool->blocks[NUM_BLOCKS].next == 1 && pool->blocks[1].ref_count == 0);
}

// Chapters 4 and 5: the pool of ./tour 4, and A, its sequence. Returns the element at which the key
// of the last token begins, in layer 0 and head 1.
enum { TOUR_TOKENS = 38, HEAD_DIM = 8 };

static size_t create_tour_pool(void)
{
    int last = TOUR_TOKENS - 1;
    create_pool((PoolConfig){2, 2, HEAD_DIM, 16, NUM_BLOCKS, PAGED_F32, 1, PAGED_CPU}, 2.5);
    order_free_list(pool, NUM_BLOCKS, (int[]){1, 5, 3, 2, 0, 4, 6, 7});
    seqs[A] = append(NULL, TOUR_TOKENS, NULL);
    size_t at = ((seqs[A]->block_table[last / 16] * 2 + 1) * 16 + last % 16) * HEAD_DIM;
    const float *k = (float *)pool->k + at;
    for (int i = 0; i < HEAD_DIM; i++) EXPECT(k[i] == numbers[(last * 2 + 1) * HEAD_DIM + i]);
    return at;
}

static void draw_table(void)
{
    create_tour_pool();
    int token = TOUR_TOKENS - 1;
    int last = token / 16;
    int slot = token % 16;
    int block = seqs[A]->block_table[last];
    EXPECT(arrlen(seqs[A]->block_table) == last + 1);
    begin(312, "38 tokens in blocks of 16: the table has the blocks 1, 5, 3. Token 37 is in slot 5 "
               "of block 3.");
    for (int i = 0; i <= last; i++) {
        int x = LEFT + 133 * i;
        int tokens = min_int(TOUR_TOKENS - 16 * i, 16);
        draw_strip(x, 84, 16, 8, tokens, "A");
        text(x, 78, "small", "tokens %d to %d", 16 * i, 16 * i + tokens - 1);
        arrow("", x + 64, 110, x + 64, TABLE_Y);
        text(x + 72, 134, "small", "entry %d", i);
        draw_entry(A, i, x + 50);
    }
    draw_box(LEFT + 133 * last + 8 * slot, 84, 8, CELL, "B");
    draw_box(block_x(block) + slot * slot_width, POOL_Y, slot_width, CELL, "B");
    draw_pool();
    text(MARGIN, 34, "", "Token %d: entry %d / 16 = %d is block %d; slot %d %% 16 = %d.", token,
         token, last, block, token, slot);
}

static void draw_walk(void)
{
    static const char *const rows[] = {"queries", "offsets", "tables", "plane of K", "block", "K"};
    size_t at = create_tour_pool();
    seqs[B] = append(NULL, 12, NULL);
    must(pool_plan(pool, &(Batch){2, seqs, (int[]){1, 1}}), "plan");
    const Job *job = &pool->plan->job;
    begin(428,
          "Token 37 of A, sequence 0: entry 0 + 37 / 16 = 2 is block 3; its slot is 37 % 16 = 5. "
          "In head 1 that is element 936.");
    for (int i = 0; i < 6; i++) text(MARGIN, 42 + 66 * i, "bold", "%s", rows[i]);
    for (int i = 0; i < NUM_BLOCKS; i++) cell(block_x(i), 222, 40, "card", "%d", i);
    for (int i = 0; i <= 2; i++)
        cell(LEFT + 132 * i, 90, 128, "card", "token %d entry %d", (int)job->offsets[i].token,
             (int)job->offsets[i].entry);
    for (int row = 1; row >= 0; row--) {
        QueryToken q = job->queries[row];
        int begins = (int)job->offsets[q.seq].entry;
        int entry = begins + q.position / 16;
        int block = job->tables[entry];
        int slot = q.position % 16;
        EXPECT(block == seqs[q.seq]->block_table[q.position / 16]);
        cell(LEFT + 204 * row, 24, 190, kinds[row], "%s: seq %d position %d", kinds[row], q.seq,
             q.position);
        arrow(kinds[row], LEFT + 204 * row + 95, 50, LEFT + 132 * q.seq + 64, 90);
        arrow(kinds[row], LEFT + 132 * q.seq + 64, 116, middle(entry), 156);
        arrow(kinds[row], middle(entry), 182, middle(block), 222);
        for (int i = begins; i < (int)job->offsets[q.seq + 1].entry; i++) {
            cell(block_x(i), 156, 40, kinds[row], "%d", job->tables[i]);
            cell(block_x(job->tables[i]), 222, 40, kinds[row], "%d", job->tables[i]);
        }
        if (row > 0) continue;
        int x = LEFT + 200 + 12 * slot;
        text(MARGIN, 141, "small", "entry %d + %d / 16 = %d", begins, q.position, entry);
        text(MARGIN, 273, "small", "slot %d %% 16 = %d", q.position, slot);
        printf("<path d=\"M%g 248L106 288M%g 248L498 288M%d 314L106 354M%d 314L498 354\"/>",
               block_x(block), block_x(block) + 40, x, x + 12);
        for (int head = 0; head < 2; head++) {
            draw_strip(LEFT + 200 * head, 288, 16, 12, slot + 1, kinds[row]);
            text(LEFT + 200 * head + 96, 282, "middle small", "head %d", head);
        }
        draw_box(x, 288, 12, CELL, "changed");
        for (int i = 0; i < HEAD_DIM; i++)
            cell(LEFT + 49.5 * i, 354, 46, "card", "%.2f", ((float *)pool->k)[at + i]);
        text(MARGIN, 406, "", "In layer 0, head 1, the key begins at element %zu.", at);
    }
}

// Chapters 7 and 14: attention of a query over ten tokens. Returns lse.
enum { LENGTH = 10, DIM = 8 };

static float attend_to_ten(int device, float *out)
{
    float lse;
    create_pool((PoolConfig){1, 1, DIM, 4, 3, PAGED_F32, 1, device}, 0);
    Seq *seq = append(NULL, LENGTH, NULL);
    must(pool_plan(pool, &(Batch){1, &seq, (int[]){1}}), "plan");
    must(attend(pool, 0, 0, 1, 0, numbers + 2 * LENGTH * DIM, out, &lse), "attend");
    return lse;
}

// Likewise, by the oracle, over each `step`th of them.
static float attend_to_some(int first, int end, int step, float *out)
{
    float lse;
    Oracle *oracle = oracle_create(&pool->config, LENGTH);
    for (int t = first; t < end; t += step) {
        oracle->length++;
        oracle_write(oracle, 0, 1, numbers + t * DIM, numbers + (LENGTH + t) * DIM);
    }
    oracle_attend(oracle, 0, 1, 1, 0, numbers + 2 * LENGTH * DIM, out, &lse);
    oracle_release(oracle);
    return lse;
}

// Chapter 7: what a thread block leaves in its shared memory.
static void draw_warps(void)
{
#ifdef PAGED_NO_STANDIN
    die(1, "this picture needs the stand-in for a GPU");
#else
    float out[DIM], expected[DIM];
    attend_to_ten(PAGED_STANDIN, out);
    begin(324, "Ten tokens are divided among four warps. In a warp, lane i has element i of each "
               "vector. Each warp ends with a state, m, l and o; after a barrier, these merge.");
    text(82, 30, "small", "its tokens");
    text(174, 30, "small", "%d lanes, %d elements", WARP, DIM);
    text(RIGHT, 30, "end small", "its state: m, l and o");
    for (int warp = 0; warp <= WARPS; warp++) {  // the last state is the merged one
        int y = warp < WARPS ? 42 + 36 * warp : 226;
        float lse = attend_to_some(warp % WARPS, LENGTH, warp < WARPS ? WARPS : 1, expected);
        for (int t = warp; t < LENGTH && warp < WARPS; t += WARPS)
            cell(82 + 26 * (t / WARPS), y, 24, kinds[warp], "%d", t);
        const float *state = (const float *)__start_gpu_shared;
        for (; !(fabsf(state[0] + logf(state[1]) - lse) < 1e-5f); state++)
            EXPECT((const char *)(state + 2) < __stop_gpu_shared);
        for (int d = 0; d < DIM; d++) EXPECT(fabsf(state[2 + d] / state[1] - expected[d]) < 1e-5f);
        cell(350, y, 50, "card", "%.3f", state[0]);
        cell(400, y, 50, "card", "%.2f", state[1]);
        draw_strip(451, y, DIM, 6, DIM, kinds[warp]);
        if (warp == WARPS) break;
        text(MARGIN, y + 18, "bold", "warp %d", warp);
        draw_strip(174, y, WARP, 5, DIM, kinds[warp]);
    }
    for (int d = 0; d < DIM; d++) EXPECT(fabsf(out[d] - expected[d]) < 1e-5f);
    printf("<path stroke-dasharray=\"5 4\" d=\"M20 202h480M20 278h480\"/>");
    printf("<path d=\"M350 55h-8M350 91h-8M350 127h-8M350 163h-8M342 55V239\"/>");  // all four
    printf("<path d=\"M342 239h8m-5-3l5 3-5 3\"/>");
    arrow("", 475, 252, 475, 286);
    text(MARGIN, 244, "", "A barrier; then thread d merges o[d].");
    text(MARGIN, 304, "", "A barrier; then thread d: out[d] = o[d] / l.");
    draw_strip(451, 286, DIM, 6, 0, "");
#endif
}

// Chapter 7: the first load of a warp from a vector of 128 floats, in pieces of 128 bytes.
static void draw_loads(void)
{
    begin(156, "If lane i loads element i, a load touches one piece of a vector; if it loads "
               "element 4 i, four.");
    for (int run = 1; run <= 4; run += 3) {
        int y = 20 + 22 * run;
        text(MARGIN, y - 8, "", "lane i loads element %d * i: pieces of 128 bytes touched: %d", run,
             run);
        for (int piece = 0; piece < 4; piece++)
            draw_box(MARGIN + 120 * piece, y, 118, CELL, piece < run ? "kept" : "card");
        for (int lane = 0; lane < WARP; lane++)
            draw_box(MARGIN + 3.75 * lane * run, y, 3, CELL, "A");
    }
}

// Chapter 6: the weights of four tokens, each time the newest has the largest score so far.
static void draw_softmax(void)
{
    enum { LENGTH = 4, UNIT = 132 };
    const float kv[2 * LENGTH] = {0, logf(2), logf(3), logf(4), 1, 2, 3, 4};
    const float q[LENGTH] = {1, 1, 1, 1};
    float out[LENGTH], lse[LENGTH];
    create_pool((PoolConfig){1, 1, 1, 4, 1, PAGED_F32, 1, PAGED_CPU}, 0);
    Seq *seq = append(NULL, LENGTH, kv);
    must(pool_plan(pool, &(Batch){1, &seq, (int[]){LENGTH}}), "plan");
    must(attend(pool, 0, 0, 1, 0, q, out, lse), "attend");
    begin(252,
          "Four rows of weights. In each row a new token has the weight 1, as the new maximum, and "
          "all weights before it shrink by the same factor. Their sum is l.");
    text(MARGIN, 32, "", "weights, exp(score - m)");
    text(446, 32, "end", "l");
    text(RIGHT, 32, "end", "o / l");
    for (int row = 0; row < LENGTH; row++) {
        double x = 84;
        double l = 0, o = 0;
        for (int t = 0; t <= row; t++) {
            double weight = exp((double)kv[t] - kv[row]);
            l += weight;
            o += weight * kv[LENGTH + t];
            cell(x, 46 + 36 * row, UNIT * weight - 2, kinds[t], "%.2g", weight);
            x += UNIT * weight;
        }
        EXPECT(fabs(exp((double)lse[row] - kv[row]) - l) < 1e-5 && fabs(out[row] - o / l) < 1e-5);
        text(MARGIN, 64 + 36 * row, "bold", "token %d", row);
        text(446, 64 + 36 * row, "end", "%.3g", l);
        text(RIGHT, 64 + 36 * row, "end", "%.3f", out[row]);
    }
    text(MARGIN, 210, "", "The new token is the maximum, so its weight is 1; the others");
    text(MARGIN, 232, "", "shrink by one factor, exp(m - m'), so l and o can be sums.");
}

// Chapter 14: a sequence in splits, whose states merge().
static void draw_split(void)
{
    enum { SPLIT = 4, SPLITS = 3, WIDE = 158 };
    const float *q = numbers + 2 * LENGTH * DIM;
    float out[DIM], states[SPLITS * (DIM + 2)], merged[DIM + 2];
    float lse = attend_to_ten(PAGED_CPU, out);
    begin(300,
          "Ten tokens in splits of four. Each split has a thread block of its own, which leaves a "
          "state, m, l and o. A second launch merges the three states.");
    text(MARGIN, 32, "", "one long sequence, cut into splits");
    for (int split = 0; split < SPLITS; split++) {
        int x = MARGIN + WIDE * split;
        int from = split * SPLIT;
        int end = min_int(from + SPLIT, LENGTH);
        float *state = states + split * (DIM + 2);
        for (int t = from; t < end; t++) {
            cell(x + 34 * (t - from), 44, 32, kinds[split], "%d", t);
            float score = 0;
            for (int d = 0; d < DIM; d++) score += q[d] * numbers[t * DIM + d] / sqrtf(DIM);
            state[0] = t == from ? score : fmaxf(state[0], score);
        }
        state[1] = expf(attend_to_some(from, end, 1, state + 2) - state[0]);  // lse: m + log(l)
        for (int d = 0; d < DIM; d++) state[2 + d] *= state[1];
        arrow("", x + 66, 74, x + 66, 106);
        text(x + 76, 96, "", "%s%d", split == 0 ? "thread block " : "", split);
        cell(x, 110, 52, "card", "%.3f", state[0]);
        cell(x + 52, 110, 40, "card", "%.2f", state[1]);
        draw_strip(x + 92, 110, DIM, 5, DIM, kinds[split]);
        arrow("", x + 66, 140, 250, 196);
    }
    merge(states, SPLITS, DIM, merged, 0, 1);
    EXPECT(fabsf(merged[0] + logf(merged[1]) - lse) < 1e-5f);
    for (int d = 0; d < DIM; d++) EXPECT(fabsf(merged[2 + d] / merged[1] - out[d]) < 1e-5f);
    printf("<path stroke-dasharray=\"5 4\" d=\"M20 164h480\"/>");
    text(MARGIN, 218, "bold", "merge");
    cell(184, 200, 52, "card", "%.3f", merged[0]);
    cell(236, 200, 40, "card", "%.2f", merged[1]);
    draw_strip(276, 200, DIM, 5, DIM, "D");
    text(336, 218, "", "the state of all ten");
    text(MARGIN, 256, "", "The second launch, after the dashed line, reads only m, l and o.");
    text(MARGIN, 280, "", "Many thread blocks, and so many SMs, read one sequence.");
}

// Chapters 8 and 10: a token is a letter; its number is its K and its V.
static int tokens[16];

// Appends what a sequence lacks of a text, and reads all of it back.
static Seq *set_text(Seq *seq, const char *letters)
{
    int have = seq ? seq->length : 0;
    int n = (int)strlen(letters);
    float kv[32] = {0}, k[16], v[16];
    for (int i = 0; i < n; i++) tokens[i] = (unsigned char)letters[i];
    for (int i = 0; i < 2 * (n - have); i++) kv[i] = letters[have + i % (n - have)];
    seq = append(seq, n - have, kv);
    must(seq_gather(seq, 0, k, v), "gather");
    for (int i = 0; i < n; i++) EXPECT(k[i] == letters[i] && v[i] == letters[i]);
    return seq;
}

// A state with its caption; the letters are those in the plane of K. A published block has a
// bucket that leads to it, by the serial of its parent and its own tokens.
static void draw_panel(int y, const char *caption)
{
    printf("<g transform=\"translate(0 %d)\">", y - TABLE_Y);
    text(MARGIN, TABLE_Y - 40, "", "%s", caption);
    draw_state();
    if (pool->last_serial > 0) {
        text(MARGIN, POOL_Y + 84, "small", "serial");
        text(MARGIN, POOL_Y + 128, "small", "buckets");
    }
    for (int block = 0; block < pool->config.num_blocks; block++) {
        const Block *b = &pool->blocks[block];
        const int *t = block_tokens(pool, block);
        const float *k = (float *)pool->k + 4 * block;
        printf("<text class=\"white\" y=\"%d\" x=\"", POOL_Y + 18);
        for (double slot = .5; slot < 4; slot++) printf("%g ", block_x(block) + slot * slot_width);
        printf("\">");
        for (int slot = 0; slot < 4 && k[slot] > 0; slot++) putchar((int)k[slot]);  // not poison
        printf("</text>");
        if (b->serial == 0) continue;
        int x = LEFT + 134 * ((int)b->serial - 1);
        EXPECT(*prefix_find(pool, b->parent, t) == block);
        text(middle(block), POOL_Y + 84, "middle", "%d", (int)b->serial);
        arrow("", x + 61, POOL_Y + 110, middle(block), POOL_Y + 89);
        cell(x, POOL_Y + 110, 122, "card", "(%d, \"%c%c%c%c\")", (int)b->parent, t[0], t[1], t[2],
             t[3]);
        if (b->parent > 0)  // here, it has the serial before this one
            printf("<path d=\"M%d %dh12m-5-3l5 3-5 3\"/>", x - 12, POOL_Y + 123);
    }
    printf("</g>");
}

static void draw_copy(void)
{
    create_pool((PoolConfig){1, 1, 1, 4, 3, PAGED_F32, 1, PAGED_CPU}, 28);
    begin(490, "The tables of A and B name blocks 0 and 1. After A has appended a letter, its "
               "table names block 2, a copy of block 1.");
    seqs[A] = set_text(NULL, "be_kin");
    must(seq_fork(seqs[A], 6, &seqs[B]), "fork");
    EXPECT(pool->num_free == 1 && pool->num_copies == 0);
    draw_panel(76, "Before: B is a fork of A. Nothing has been copied.");
    set_text(seqs[A], "be_kind");
    set_text(seqs[B], "be_kin");
    EXPECT(pool->num_copies == 1 && seqs[A]->block_table[1] == 2 && seqs[B]->block_table[1] == 1);
    draw_panel(306, "After: A appends d. Block 1 is shared, so A gets a copy.");
}

static void draw_publish(void)
{
    create_pool((PoolConfig){1, 1, 1, 4, 5, PAGED_F32, 1, PAGED_CPU}, 17);
    begin(602, "A has published blocks 0 and 1; B has the same tokens in 2 and 3. When B "
               "publishes, its table names 0 and 1 instead, and 2 and 3 are free.");
    seqs[A] = set_text(NULL, "be_kind.");
    seqs[B] = set_text(NULL, "be_kind._Bye");
    must(seq_publish(seqs[A], tokens, 8), "publish");
    EXPECT(seqs[B]->block_table[0] == 2 && seqs[B]->block_table[1] == 3 && pool->last_serial == 2);
    draw_panel(76, "Before: A has published its blocks. B has the same tokens.");
    must(seq_publish(seqs[B], tokens, 12), "publish");
    set_text(seqs[B], "be_kind._Bye");
    EXPECT(seqs[B]->block_table[0] == 0 && seqs[B]->block_table[1] == 1 && pool->num_free == 2);
    draw_panel(366, "After: B publishes, and takes the blocks of A for its own.");
}

static unsigned owner[160][600];  // [block][step]: the request that has it, from 1 on; 0: none

// Reads what replay wrote, and returns the number of requests.
static unsigned read_life(void)
{
    unsigned step, block, request;
    unsigned last = 0;
    while (scanf("%*[^0-9]%u,%u,%u", &step, &block, &request) == 3) {
        if (step >= 600 || block >= 160) continue;
        owner[block][step] = request + 1;
        if (request >= last) last = request + 1;
    }
    return last;
}

static unsigned blocks_of(unsigned number, unsigned step)
{
    unsigned n = 0;
    for (unsigned block = 0; block < 160; block++)
        if (owner[block][step] == number) n++;
    return n;
}

// The number of steps from `step` on in which the block has the same owner.
static unsigned run_of(unsigned block, unsigned step, unsigned steps)
{
    unsigned n = 1;
    while (step + n < steps && owner[block][step + n] == owner[block][step]) n++;
    return n;
}

static void draw_life(void)
{
    enum { POOL = 160, STEPS = 600 };
    unsigned requests = read_life();
    unsigned marked = 1;  // the one that has most blocks at the middle of the time
    unsigned most = 0;
    for (unsigned number = 1; number <= requests; number++) {
        unsigned n = blocks_of(number, STEPS / 2);
        if (n > most) marked = number;
        if (n > most) most = n;
    }
    begin(432, "The blocks of a pool over time. A colour is a request; one is black or white.");
    text(MARGIN, 30, "", "block");
    text(44, 54, "end", "0");
    text(44, 366, "end", "%d", POOL - 1);
    text(50, 386, "", "0");
    text(RIGHT, 386, "end", "step %d", STEPS);
    text(MARGIN, 416, "", "A colour is a request. Marked: one, with %u blocks in step %d.", most,
         STEPS / 2);
    for (unsigned i = 1; i <= requests; i++) {  // a piece of path for each block; `marked` is last
        unsigned number = i;
        if (i >= marked) number = i + 1;
        if (i == requests) number = marked;
        if (number == marked)
            printf("<path style=\"stroke-width:2\" class=\"mark\" d=\"");
        else
            printf("<path style=\"stroke-width:2;stroke:hsl(%u,50%%,65%%)\" d=\"",
                   number * 137 % 360);
        for (unsigned block = 0; block < POOL; block++)
            for (unsigned step = 0, n; step < STEPS; step += n) {
                n = run_of(block, step, STEPS);
                if (owner[block][step] == number)
                    printf("M%g %uh%g", 50 + .75 * step, 47 + 2 * block, .75 * n);
            }
        printf("\"/>");
    }
}

// Chapter 11: which of two requests has which block, and a preemption.
static void draw_preempt(void)
{
    enum { POOL = 5, STEPS = 14, WIDE = 28, HIGH = 30 };  // B ends in step 13
    unsigned requests = read_life();
    unsigned lost = 0;  // the first step in which B has nothing, and the first in which it is back
    unsigned back = 0;
    for (unsigned step = 1; step < STEPS; step++) {
        unsigned n = blocks_of(2, step);
        if (n == 0 && !lost) lost = step;
        if (n > 0 && lost && !back) back = step;
    }
    EXPECT(requests == 2 && lost == 5 && back == 13);
    begin(300,
          "A and B share five blocks. In step 5, A needs a third block, and B, the newer request, "
          "gives back its three. B waits until A has ended, and takes three again.");
    text(MARGIN, 34, "", "block");
    for (int block = 0; block < POOL; block++) {
        text(90, 66 + HIGH * block, "end", "%d", block);
        for (unsigned step = 0, n; step < STEPS; step += n) {
            n = run_of((unsigned)block, step, STEPS);
            const char *kind = owner[block][step] ? kinds[owner[block][step] - 1] : "card";
            draw_box(LEFT + WIDE * step, 47 + HIGH * block, WIDE * n - 2, CELL, kind);
            if (owner[block][step])
                text(LEFT + WIDE * (step + n / 2.0) - 1, 65 + HIGH * block, "white", "%s", kind);
        }
    }
    text(90, 218, "end", "step");
    for (int step = 0; step < STEPS; step++)
        text(LEFT + WIDE * step + 12, 218, "middle", "%d", step);
    printf("<path stroke-dasharray=\"5 4\" d=\"M%d 40v162M%d 40v162\"/>",
           LEFT + WIDE * (int)lost - 1, LEFT + WIDE * (int)back - 1);
    text(MARGIN, 250, "", "Step %u: A needs a block; B, the newer request, gives way.", lost);
    text(MARGIN, 276, "", "Step %u: A has ended. B is back, and computes ten tokens again.", back);
}

// One bar for each allocator, with a piece for each kind of slots.
static void draw_memory(void)
{
    static const char *const names[] = {"used", "reserved", "internal", "external", "free"};
    char allocator[20];
    double part;
    int y = 62;
    begin(396, "Where the slots of the budget are, for each allocator");
    for (int i = 0; i < 5; i++) cell(MARGIN + 97 * i, 20, 92, kinds[i], "%s", names[i]);
    for (; scanf("%*[^\"]\"%19[^\"]\",%*d", allocator) == 1; y += 30) {
        double x = 168;
        text(MARGIN, y + 18, "small", "%s", allocator);
        for (int i = 0; i < 5 && scanf(",%lf", &part) == 1; x += 332 * part, i++) {
            draw_box(x, y, 332 * part, CELL, kinds[i]);
            if (i == 0) text(x + 15, y + 18, "white", "%.0f", 100 * part);
        }
    }
    text(MARGIN, y + 20, "", "Percent of the slots of the budget, average over steps.");
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"vectors", "free-list", "table",  "walk",    "softmax",
                                        "warps",   "split",     "copy",   "publish", "steps",
                                        "life",    "preempt",   "memory", "loads",   NULL};
    static void (*const pictures[])(void) = {
        draw_vectors, draw_free_list, draw_table, draw_walk, draw_softmax, draw_warps,  draw_split,
        draw_copy,    draw_publish,   draw_steps, draw_life, draw_preempt, draw_memory, draw_loads};
    program = "draw";
    if (argc != 2) die(2, "usage: draw NAME, or draw life, preempt or memory <FILE.csv");
    pictures[parse_choice("draw", argv[1], names)]();
    printf("\n</svg>\n");
    pool_destroy(pool);
    return finish_output(0);
}
