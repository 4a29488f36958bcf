// draw: the pictures of README.md and walkthrough.md, as SVG.
//
//     build/draw copy                one of walkthrough.md: vectors, free-list, table, walk, warps,
//                                    copy, publish
//     build/draw steps               requests and their pool, in nine scenes
//     build/draw life <LIFE.csv      a pool while requests come and go, from replay --life
//     build/draw memory <TABLES.csv  where the slots of the budget are, from replay --csv
//
// All but the last two show a live pool. What they say is checked: a wrong engine is not drawn.

#define PAGED_NO_MAIN
#include "../paged.cu.c"  // not only paged.h: a plan and a thread block's memory are shown, too
#undef STB_DS_IMPLEMENTATION
#include "util.h"

// What a picture says must be true of the pool.
#define EXPECT(truth) ((truth) ? (void)0 : die(1, "%s", "not so: " #truth))

// Grey that can be read on white and on black.
static const char *const style =
    "<style>text{font:13px sans-serif;fill:#768390}.line{stroke:#768390;fill:none}"
    ".middle{text-anchor:middle}.end{text-anchor:end}.small{font-size:11px}</style>\n";

// A card as light or dark as the page.
static const char *const card_style =
    "<style>svg{color:#1f2328}.card{fill:#fff;stroke:#8b949e66}"
    "@media(prefers-color-scheme:dark){svg{color:#f0f6fc}.card{fill:#0d1117}}"
    "text{font:15px -apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:currentColor}"
    ".middle,.white{text-anchor:middle}.end{text-anchor:end}.bold,.white{font-weight:600}"
    ".small{font-size:13px}.white{fill:#fff}.kept{fill:#8b949e;fill-opacity:.4}"
    ".A{fill:#3572c6;stroke:#3572c6}.B{fill:#bc5b10;stroke:#bc5b10}"
    ".C{fill:#2c8746;stroke:#2c8746}.D{fill:#8250df;stroke:#8250df}"
    "rect{rx:3px}path{stroke:#768390}path,path[class],.frame,.changed{fill:none}.frame{stroke:#"
    "768390}"
    ".changed{stroke:currentColor;stroke-width:2.5}</style>\n";

enum { WIDTH = 520, MARGIN = 20, LEFT = 106, RIGHT = WIDTH - MARGIN, CELL = 26 };

static void begin(int width, int height, const char *styles)
{
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
           "height=\"%d\">\n%s",
           width, height, width, height, styles);
}

#define text(x, y, place, ...) \
    (printf("<text x=\"%g\" y=\"%g\" class=\"%s\">", (double)(x), (double)(y), place), \
     printf(__VA_ARGS__), printf("</text>"))

static void draw_box(double x, double y, double width, double height, const char *kind)
{
    printf("<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" class=\"%s\"/>", x, y, width, height,
           kind);
}

// A box with a value in it. The kinds A to D are colours.
#define cell(x, y, width, kind, ...) \
    (draw_box(x, y, width, CELL, kind), \
     text((x) + (width) / 2.0, (y) + 18, (kind)[1] ? "middle" : "white", __VA_ARGS__))

// The title and the description are for those who cannot see the picture.
static void begin_card(int height, const char *title, const char *description)
{
    begin(WIDTH, height, card_style);
    printf("<title>%s</title>\n<desc>%s</desc>\n", title, description);
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

// A curve that leaves and arrives vertically, in the colour of its kind, with a head or without.
static void curve(const char *kind, double x, double y, double to_x, double to_y, int head)
{
    double bend = (to_y - y) / 2;
    int back = to_y > y ? -6 : 6;
    printf("<path class=\"%s\" d=\"M%g %gC%g %g %g %g %g %g", kind, x, y, x, y + bend, to_x,
           to_y - bend, to_x, to_y);
    if (head) printf("m-4 %dl4 %d 4 %d", back, -back, back);
    printf("\"/>");
}

// ---- a live pool ------------------------------------------------------------------------------

enum { A, B, C, D, SEQS };
enum { NUM_BLOCKS = 8 };  // at most, in a picture
static Pool *pool;        // of the picture
static Seq *seqs[SEQS];

static void create_pool(PoolConfig config) { must(pool_create(&config, &pool), "pool"); }

// Appends n tokens to a sequence, a new one if it is NULL, and stores their K and V, zeros or
// [num_layers][K, V][n][num_kv_heads][head_dim].
static Seq *append(Seq *seq, int n, const float *kv)
{
    static const float zeros[4096];
    size_t size = (size_t)n * pool->config.num_kv_heads * pool->config.head_dim;
    if (!seq) must(seq_create(pool, &seq), "create");
    must(seq_append(seq, n), "append");
    must(pool_plan(pool, &(Batch){1, &seq, &n}), "plan");
    for (size_t i = 0; i < pool->config.num_layers * 2 * size; i += 2 * size) {
        const float *k = kv ? kv + i : zeros;
        must(pool_write(pool, (int)(i / size / 2), k, k + size), "write");
    }
    return seq;
}

// The numbers with which a scene of ./tour begins.
static void random_floats(float *x, int n)
{
    uint64_t seed = 1;
    for (int i = 0; i < n; i++) x[i] = (float)(2 * random_uniform(&seed) - 1);
}

// The n blocks of `order` become the front of the free list; the others stay in use.
static void set_free_list(int n, const int *order)
{
    Seq *owners[NUM_BLOCKS];
    for (int i = 0; i < NUM_BLOCKS; i++) owners[i] = append(NULL, pool->config.block_size, NULL);
    for (int i = n - 1; i >= 0; i--) seq_release(owners[order[i]]);
}

// ---- tables and blocks ------------------------------------------------------------------------
// The block tables of up to four sequences, and the pool below. The pictures of chapters 8 and 10
// show two such states; steps is a film of nine, in which CSS moves what has changed.

enum { TABLE_Y = 168, POOL_Y = 250, GAP = 10, ID = 28, NUM_ENTRIES = 4 };

typedef struct Box {
    double x, y, width, height;
} Box;

static double slot_width = 10;
static int film;  // it is one
static struct {   // what the previous state looked like
    int number;   // 0: there is none
    size_t num_copies;
    Box slots[SEQS][NUM_ENTRIES];  // what each entry of a table saw; width 0: there was none
    Box ids[NUM_BLOCKS];           // where the id of each block was
    int counts[NUM_BLOCKS], lengths[SEQS];
} old;

static double block_width(void) { return pool->config.block_size * slot_width; }
static double block_x(int block) { return LEFT + block * (block_width() + GAP); }
static double middle(int block) { return block_x(block) + block_width() / 2; }

// A box that comes from another place, with a number in it if that is not negative.
static void draw_move(Box from, Box to, const char *kind, int number)
{
    int moves = film && (from.x != to.x || from.y != to.y || from.width != to.width ||
                         from.height != to.height);
    if (moves)
        printf("<g class=\"moves\" style=\"--from:translate(%gpx,%gpx) scale(%g,%g)\">",
               from.x - to.x, from.y - to.y, from.width / to.width, from.height / to.height);
    if (number >= 0)
        cell(to.x, to.y, to.width, kind, "%d", number);
    else
        draw_box(to.x, to.y, to.width, to.height, kind);
    if (moves) printf("</g>");
}

static void draw_outline(int block)
{
    if (film || old.number > 0)
        draw_box(block_x(block) - 2, POOL_Y - 2, block_width() + 4, CELL + 4, "changed appears");
}

// An entry of a table, the curve to its block, and the slots that it sees there. Sequences that
// share the block divide its height: `above` of them have been drawn.
static void draw_entry(int seq, int i, Box id, int above)
{
    const char kind[] = {(char)('A' + seq), 0};
    int block = seqs[seq]->block_table[i];
    int tokens = min_int(seqs[seq]->length - i * pool->config.block_size, pool->config.block_size);
    double height = (double)CELL / pool->blocks[block].ref_count;
    Box slots = {block_x(block), POOL_Y + above * height, tokens * slot_width, height};
    Box from = old.slots[seq][i];
    int same = from.width > 0 && from.x == slots.x;
    if (film && !same) printf("<g class=\"appears\">");
    curve(kind, id.x + ID / 2.0, TABLE_Y + CELL, middle(block), POOL_Y, 0);
    if (pool->num_copies > old.num_copies && from.width > 0 && !same)  // to the copy
        printf("<path d=\"M%g %dv3c0 20 %g 20 %g 0v-3m-4 6l4-6 4 6\"/>", from.x + block_width() / 2,
               POOL_Y + 72, slots.x - from.x, slots.x - from.x);
    if (film && !same) printf("</g>");
    if (!same || from.width != slots.width || from.height != height) draw_outline(block);
    if (from.width == 0) {  // a new entry: what the prefix cache found is there already
        from = slots;
        if (pool->blocks[block].serial == 0) from.width = 0;
    }
    draw_move(from, slots, kind, -1);
    draw_move(same ? id : old.ids[block], id, kind, block);
    old.ids[block] = id;
    old.slots[seq][i] = slots;
}

// The pool. A count that has changed is replaced when the boxes have moved.
static void draw_pool(void)
{
    text(MARGIN, POOL_Y + 18, "small", "pool");
    text(MARGIN, POOL_Y + 44, "small", "block");
    text(MARGIN, POOL_Y + 64, "small", "ref_count");
    for (int block = 0; block < pool->config.num_blocks; block++) {
        int count = pool->blocks[block].ref_count;
        int changed = film && old.counts[block] != count;
        draw_strip(block_x(block), POOL_Y, pool->config.block_size, slot_width, 0, "");
        text(middle(block), POOL_Y + 44, "middle", "%d", block);
        if (changed) text(middle(block), POOL_Y + 64, "middle leaves", "%d", old.counts[block]);
        text(middle(block), POOL_Y + 64, changed ? "middle appears" : "middle", "%d", count);
        old.counts[block] = count;
    }
}

// Tables, filled slots and the pool.
static void draw_state(void)
{
    int sharers[NUM_BLOCKS] = {0};
    if (pool_check(pool)) die(1, "%s", pool_check(pool));
    text(MARGIN, TABLE_Y + 18, "small", "block_table");
    for (int s = 0; s < SEQS; s++) {
        int x = LEFT + 138 * min_int(s, C);  // D takes the place of C
        int entries = seqs[s] ? (int)arrlen(seqs[s]->block_table) : 0;
        for (int i = entries; i < NUM_ENTRIES; i++) old.slots[s][i].width = 0;
        for (int i = 0; i < entries; i++)
            draw_entry(s, i, (Box){x + i * (ID + 4), TABLE_Y, ID, CELL},
                       sharers[seqs[s]->block_table[i]]++);
        if (entries == 0) continue;
        int changed = film && old.lengths[s] != seqs[s]->length;
        text(x, TABLE_Y - 10, "bold", "%c", 'A' + s);
        text(x + 18, TABLE_Y - 10, changed ? "appears" : "", "%d tokens", seqs[s]->length);
        old.lengths[s] = seqs[s]->length;
    }
    draw_pool();
    old.num_copies = pool->num_copies;
    old.number++;
}

// ---- steps ------------------------------------------------------------------------------------
// Each scene shows the pool after an edit. CSS plays the scenes in turn, and moves what changed
// from its place in the previous scene. Where motion is switched off, the scene STILL is shown.

enum { SCENES = 9, STILL = 3, SECONDS = 54, FREE_Y = 104 };

static const char *const motion =
    "<style>.caption{font-size:16px}.scene{visibility:hidden}.still{visibility:visible}"
    ".moves{transform-box:fill-box}.leaves{opacity:0}"
    "@keyframes show{0%%{visibility:visible}%.3f%%,to{visibility:hidden}}"
    "@keyframes move{0%%,1%%{transform:var(--from)}2.5%%,to{transform:none}}"
    "@keyframes appear{0%%,2%%{opacity:0}3%%,to{opacity:1}}"
    "@keyframes leave{0%%,2%%{opacity:1}3%%,to{opacity:0}}"
    "@media(prefers-reduced-motion:no-preference){"
    ".scene,.moves,.appears,.leaves{animation:%ds var(--start) infinite}"
    ".scene{animation-name:show;animation-timing-function:step-end}"
    ".moves{animation-name:move}.appears{animation-name:appear}.leaves{animation-name:leave}}"
    "</style>\n";

static Box free_box(int i) { return (Box){LEFT + i * (ID + 4), FREE_Y, ID, CELL}; }

// The state after an edit, and what the edit moved. The caption follows.
static void draw_scene(const char *edit)
{
    const Block *blocks = pool->blocks;
    int scene = old.number;
    int i = 0;
    printf("<g class=\"scene%s\" style=\"--start:%ds\">", scene == STILL ? " still" : "",
           (scene - SCENES) * SECONDS / SCENES);
    text(MARGIN, 34, "caption bold", "%s", edit);
    text(RIGHT, 34, "end small", "%d of %d", scene + 1, SCENES);
    draw_state();
    for (int block = blocks[NUM_BLOCKS].next; block < NUM_BLOCKS; block = blocks[block].next) {
        int kept = blocks[block].serial != 0;
        if (kept) draw_box(block_x(block), POOL_Y, block_width(), CELL, "kept");
        if (old.ids[block].y != FREE_Y) draw_outline(block);
        draw_move(old.ids[block], free_box(i), kept ? "kept" : "card", block);
        old.ids[block] = free_box(i++);
    }
}

#define SCENE(edit, line_1, line_2, ...) \
    (draw_scene(edit), printf("<text x=\"20\" y=\"62\" class=\"caption\">" line_1 \
                              "<tspan x=\"20\" dy=\"21\">" line_2 "</tspan></text></g>\n", \
                              ##__VA_ARGS__))

static void draw_steps(void)
{
    static const int prompt[10];
    create_pool((PoolConfig){1, 1, 1, 4, NUM_BLOCKS, PAGED_F16, 0, PAGED_CPU});
    film = 1;
    for (int block = 0; block < NUM_BLOCKS; block++) old.ids[block] = free_box(block);
    begin_card(392, "Block tables, the pool and the free list, in nine scenes",
               "Requests A and C take free blocks. A grows and is forked; its next token goes to a "
               "copy of the block that it shares with B. A guesses four tokens and drops three. C "
               "ends, and D, with the same prompt, finds its blocks.");
    printf(motion, 100.0 / SCENES, SECONDS);

    seqs[A] = append(NULL, 6, NULL);
    seqs[C] = append(NULL, 8, NULL);
    EXPECT(seqs[A]->block_table[0] == 0 && pool->blocks[NUM_BLOCKS].next == 4);
    SCENE("arrive", "Requests A and C arrive, with prompts of 6 and 8 tokens.",
          "They take blocks from the front of the free list.");

    for (int i = 0; i < 4; i++) append(seqs[A], 1, NULL);
    int last = seqs[A]->block_table[2];
    EXPECT(last != seqs[A]->block_table[1] + 1);
    SCENE("append", "A generates four tokens, one at a time. When its last block",
          "is full, it takes block %d: any free block will do.", last);

    must(seq_fork(seqs[A], seqs[A]->length, &seqs[B]), "fork");
    EXPECT(pool->blocks[last].ref_count == 2 && pool->num_copies == 0);
    SCENE("fork", "B is forked from A, for a second answer. Both tables",
          "name the same blocks; nothing is copied.");

    append(seqs[A], 1, NULL);
    int copy = seqs[A]->block_table[2];
    EXPECT(pool->num_copies == 1 && copy != last && pool->blocks[last].ref_count == 1);
    SCENE("copy-on-write", "A appends a token. Its last block, %d, is shared,",
          "so A gets a copy of its own, block %d.", last, copy);

    append(seqs[B], 1, NULL);
    EXPECT(pool->num_copies == 1 && seqs[B]->block_table[2] == last);
    SCENE("write in place", "B appends a token. No other request uses block %d now,",
          "so B writes in place.", last);

    append(seqs[A], 4, NULL);
    int draft = seqs[A]->block_table[3];
    EXPECT(seqs[A]->length == 15);
    SCENE("draft", "A guesses its next four tokens, to check them in one step.",
          "The last three are in a new block, %d.", draft);

    must(seq_rewind(seqs[A], 3), "rewind");
    EXPECT(seqs[A]->length == 12 && pool->blocks[NUM_BLOCKS].next == draft);
    SCENE("rewind", "Only the first guess was right. A drops the other three,",
          "and block %d is free again.", draft);

    must(seq_publish(seqs[C], prompt, 8), "publish");
    int first = seqs[C]->block_table[0];
    seq_release(seqs[C]);
    seqs[C] = NULL;
    EXPECT(pool->blocks[NUM_BLOCKS].prev == first && pool->blocks[first].serial != 0);
    SCENE("release", "C ends. Its full blocks keep their tokens, at the back", "of the free list.");

    seqs[D] = append(NULL, 0, NULL);
    must(seq_lookup(seqs[D], prompt, 10), "lookup");
    EXPECT(seqs[D]->num_computed_tokens == 8 && seqs[D]->block_table[0] == first);
    append(seqs[D], 2, NULL);
    SCENE("prefix hit", "Request D begins with the prompt of C. Its first two blocks",
          "are found, not computed.");

    text(MARGIN, FREE_Y + 18, "small", "free list");
    draw_box(LEFT + .5, 361.5, slot_width, 14, "frame");
    text(LEFT + 18, 373, "small", "a slot: K and V of one token, in every layer");
}

// ---- the walkthrough --------------------------------------------------------------------------

// Chapter 1: the vectors of a token in a layer. What is filled is kept.
static void draw_layer(int layer, int y)
{
    static const char *const names[] = {"q = Wq x", "k = Wk x", "v = Wv x"};
    static const char *const heads[] = {"0", "1", "...", "31"};
    draw_box(MARGIN, y, RIGHT - MARGIN, 136, "frame");
    text(36, y + 30, "bold", "layer %d", layer);
    cell(192, y + 12, 136, "kept", "x");
    for (int i = 0; i < 3; i++) {
        int x = 36 + 156 * i;
        curve("", 260, y + 38, x + 68, y + 78, 1);
        text(x + (i == 0 ? 56 : 80), y + 70, i == 0 ? "end small" : "small", "%s", names[i]);
        for (int head = 0; head < 4; head++)
            cell(x + 34 * head, y + 78, 34, i == 0 ? "card" : "A", "%s", heads[head]);
        text(x + 68, y + 124, "middle small", i == 0 ? "used once" : "kept");
    }
}

static void draw_vectors(void)
{
    enum { LAYERS = 32, HEADS = 32, DIM = 128, ROW = HEADS * DIM };  // Llama-2-7B
    static float kv[LAYERS * 2 * ROW], k[ROW], v[ROW];
    create_pool((PoolConfig){LAYERS, HEADS, DIM, 1, 1, PAGED_F16, 0, PAGED_CPU});
    for (int i = 0; i < LAYERS * 2 * ROW; i++) kv[i] = (float)(i % 2039);
    Seq *seq = append(NULL, 1, kv);
    for (int layer = 0; layer < LAYERS; layer++) {
        const float *written = kv + 2 * layer * ROW;
        must(seq_gather(seq, layer, k, v), "gather");
        for (int i = 0; i < ROW; i++) EXPECT(k[i] == written[i] && v[i] == written[ROW + i]);
    }
    size_t row_bytes = ROW * sizeof(uint16_t);
    EXPECT(pool_bytes_per_token(&pool->config) == 2 * LAYERS * row_bytes);
    begin_card(424, "The vectors of a token in Llama-2-7B",
               "Each of 32 layers multiplies the vector x of the token by three matrices. The "
               "products q, k and v are cut into 32 heads. k and v of every layer are kept.");
    cell(192, 16, 136, "card", "a token");
    curve("", 260, 42, 260, 70, 1);
    draw_layer(0, 58);
    curve("", 260, 194, 260, 242, 1);
    text(272, 217, "small", "30 more layers");
    draw_layer(LAYERS - 1, 230);
    text(MARGIN, 389, "", "A blue row is %d heads of %d numbers: %zu KiB in 16 bits.", HEADS, DIM,
         row_bytes >> 10);
    text(MARGIN, 410, "", "A token leaves %d such rows: %zu KiB.", 2 * LAYERS,
         2 * LAYERS * row_bytes >> 10);
}

// Chapter 3: the free list, from the sentinel on. Each block has a place of its own.
static void draw_ring(int y, const int *x)
{
    int from = NUM_BLOCKS;
    do {
        int to = pool->blocks[from].next;
        EXPECT(pool->blocks[to].prev == from);
        cell(x[from], y, 44, from == NUM_BLOCKS ? "kept" : "card", "%d", from);
        if (to != NUM_BLOCKS)
            printf("<path d=\"M%d %dH%dm-6-4l6 4-6 4M%d %dH%dm6-4l-6 4 6 4\"/>", x[from] + 44,
                   y + 8, x[to], x[to], y + 18, x[from] + 44);
        from = to;
    } while (from != NUM_BLOCKS);
    printf("<path d=\"M486 %dm6-4l-6 4 6 4m-6-4h6q8 0 8 8v14q0 8-8 8H34q-8 0-8-8v-14q0-8 8-8h8"
           "m-6-4l6 4-6 4\"/>",
           y + 13);
}

static void draw_free_list(void)
{
    static const int x[NUM_BLOCKS + 1] = {0, 142, 0, 342, 0, 242, 0, 442, 42};
    create_pool((PoolConfig){1, 1, 1, 4, NUM_BLOCKS, PAGED_F32, 1, PAGED_CPU});
    set_free_list(4, (int[]){1, 5, 3, 7});
    begin_card(376, "The free list",
               "The free blocks 1, 5, 3 and 7 and a sentinel, 8, are linked into a ring in both "
               "directions. Block 1 is taken from the front; dropped, it returns to the front.");
    printf("<g transform=\"translate(0 %d)\">", MARGIN - POOL_Y);
    for (int block = 0; block < NUM_BLOCKS; block++)
        if (pool->blocks[block].ref_count > 0)
            draw_box(block_x(block), POOL_Y, block_width(), CELL, "A");
    draw_pool();
    printf("</g>");
    text(64, 128, "middle small", "sentinel");
    text(164, 128, "middle small", "first");
    text(464, 128, "middle small", "last");
    text(114, 142, "middle small", "next");
    text(114, 172, "middle small", "prev");
    draw_ring(138, x);
    Seq *seq = append(NULL, 1, NULL);
    EXPECT(seq->block_table[0] == 1 && pool->blocks[1].ref_count == 1);
    curve("", 154, 164, 154, 230, 1);
    curve("", 174, 230, 174, 164, 1);
    text(146, 214, "end", "take");
    text(182, 214, "", "drop");
    cell(142, 230, 44, "A", "1");
    text(196, 248, "", "in use: not on the list");
    draw_ring(284, x);
    seq_release(seq);
    EXPECT(pool->blocks[NUM_BLOCKS].next == 1 && pool->blocks[1].ref_count == 0);
    text(MARGIN, 358, "", "Blocks are taken from the front, and return to the front.");
}

// Chapters 4 and 5: the pool of ./tour 6, and A, its sequence.
enum { TOKENS = 38, HEAD_DIM = 8, FLOATS = 2 * 2 * TOKENS * 2 * HEAD_DIM };
static float tour_kv[FLOATS];

static void create_tour_pool(void)
{
    create_pool((PoolConfig){2, 2, HEAD_DIM, 16, NUM_BLOCKS, PAGED_F32, 1, PAGED_CPU});
    slot_width = 2.5;
    set_free_list(NUM_BLOCKS, (int[]){1, 5, 3, 2, 0, 4, 6, 7});
    random_floats(tour_kv, FLOATS);
    seqs[A] = append(NULL, TOKENS, tour_kv);
}

// The element at which the key of a slot begins, in layer 0 and head 1. It must be that of a token.
static size_t find_key(int block, int slot, int token)
{
    size_t at = ((block * 2 + 1) * 16 + slot) * HEAD_DIM;
    const float *k = tour_kv + (token * 2 + 1) * HEAD_DIM;
    for (int i = 0; i < HEAD_DIM; i++) EXPECT(((float *)pool->k)[at + i] == k[i]);
    return at;
}

static void draw_table(void)
{
    create_tour_pool();
    const int *block_table = seqs[A]->block_table;
    int token = TOKENS - 1;
    int entry = token / 16;
    int block = block_table[entry];
    find_key(block, token % 16, token);
    EXPECT(arrlen(block_table) == entry + 1 && pool_check(pool) == NULL);
    begin_card(318, "A block table",
               "38 tokens in blocks of 16. The table has the blocks 1, 5, 3. Token 37 is in slot 5 "
               "of block 3.");
    printf("<g transform=\"translate(0 -58)\">");
    text(MARGIN, 110, "small", "positions");
    text(MARGIN, TABLE_Y + 18, "small", "block_table");
    for (int i = 0; i <= entry; i++) {
        int x = LEFT + 133 * i;
        int tokens = min_int(TOKENS - 16 * i, 16);
        draw_strip(x, 92, 16, 8, tokens, "A");
        text(x, 86, "small", "%d to %d", 16 * i, 16 * i + tokens - 1);
        curve("", x + 64, 118, x + 64, TABLE_Y, 1);
        text(x + 72, 146, "small", "entry %d", i);
        cell(x + 44, TABLE_Y, 40, "A", "%d", block_table[i]);
        curve("A", x + 64, TABLE_Y + CELL, middle(block_table[i]), POOL_Y, 0);
        draw_box(block_x(block_table[i]), POOL_Y, tokens * slot_width, CELL, "A");
    }
    draw_box(LEFT + 133 * entry + 8 * (token % 16), 92, 8, CELL, "B");
    draw_box(block_x(block) + token % 16 * slot_width, POOL_Y, slot_width, CELL, "B");
    draw_pool();
    draw_box(MARGIN, 332, 8, CELL, "B");
    text(36, 341, "", "Token %d: entry %d / 16 = %d of the table is block %d;", token, token, entry,
         block);
    text(36, 361, "", "slot %d %% 16 = %d.", token, token % 16);
    printf("</g>");
}

// Chapter 5: lines from the corners of a box to those of the row that shows what is in it.
static void draw_zoom(double x, double width, int y)
{
    printf("<path opacity=\".6\" d=\"M%g %dL%d %dM%g %dL498 %d\"/>", x, y, LEFT, y + 50, x + width,
           y, y + 50);
}

static void draw_walk(void)
{
    create_tour_pool();
    seqs[B] = append(NULL, 12, tour_kv);
    must(pool_plan(pool, &(Batch){2, seqs, (int[]){1, 1}}), "plan");
    const Job *job = &pool->plan->job;
    begin_card(468, "From a query token to its slot",
               "Token 37 of sequence 0: its entries begin at 0 in the tables; 37 / 16 is 2, so its "
               "block is 3, and its slot there 37 % 16 = 5. In head 1 that is element 936.");
    text(MARGIN, 42, "bold", "queries");
    text(MARGIN, 118, "bold", "offsets");
    text(MARGIN, 194, "bold", "tables");
    text(MARGIN, 270, "bold", "plane of K");
    for (int i = 0; i < NUM_BLOCKS; i++) cell(block_x(i), 252, 40, "card", "%d", i);
    for (int i = 0; i <= 2; i++)
        cell(LEFT + 132 * i, 100, 128, "card", "token %d entry %d", (int)job->offsets[i].token,
             (int)job->offsets[i].entry);
    for (int row = 1; row >= 0; row--) {
        const char kind[] = {(char)('A' + row), 0};
        QueryToken query = job->queries[row];
        int begins = (int)job->offsets[query.seq].entry;
        int entry = begins + query.position / 16;
        int block = job->tables[entry];
        int slot = query.position % 16;
        size_t at = find_key(block, slot, query.position);
        cell(LEFT + 164 * row, 24, 154, kind, "seq %d position %d", query.seq, query.position);
        curve(kind, LEFT + 164 * row + 77, 50, LEFT + 132 * query.seq + 64, 100, 1);
        curve(kind, LEFT + 132 * query.seq + 64, 126, middle(entry), 176, 1);
        for (int i = begins; i < (int)job->offsets[query.seq + 1].entry; i++) {
            cell(block_x(i), 176, 40, kind, "%d", job->tables[i]);
            cell(block_x(job->tables[i]), 252, 40, kind, "%d", job->tables[i]);
        }
        curve(kind, middle(entry), 202, middle(block), 252, 1);
        if (row > 0) continue;
        text(MARGIN, 156, "small", "%d + %d / 16 = %d", begins, query.position, entry);
        text(MARGIN, 307, "small", "%d %% 16 = %d", query.position, slot);
        text(MARGIN, 346, "bold", "block %d", block);
        text(MARGIN, 422, "bold", "K");
        draw_zoom(block_x(block), 40, 278);
        for (int x = LEFT; x <= LEFT + 200; x += 200) {  // KV heads 0 and 1
            draw_strip(x, 328, 16, 12, slot + 1, kind);
            text(x + 96, 320, "middle small", "head %d", x / 200);
        }
        int x = LEFT + 200 + 12 * slot;
        draw_box(x, 328, 12, CELL, "changed");
        draw_zoom(x, 12, 354);
        text(x + 6, 376, "middle small", "slot %d", slot);
        for (int i = 0; i < HEAD_DIM; i++)
            cell(LEFT + 49.5 * i, 404, 46, "card", "%.2f", ((float *)pool->k)[at + i]);
        text(MARGIN, 452, "", "In layer 0, head 1, the key of token %d begins at element %zu.",
             query.position, at);
    }
}

// Chapter 7: what is left in the shared memory of a thread block, as in ./tour --standin 9. The
// state of these tokens must be in it.
static const float *find_state(float lse)
{
    const float *state = (const float *)__start_gpu_shared;
    while (!(fabsf(state[0] + logf(state[1] / HEADROOM) - lse) < 1e-5f)) {
        state++;
        EXPECT((const char *)(state + 1) < __stop_gpu_shared);
    }
    return state;
}

static void draw_warps(void)
{
    enum { LENGTH = 10, DIM = 8, NUMBERS = 6 * LENGTH * 2 * DIM };
    static float numbers[NUMBERS + DIM], kv[2 * LENGTH * DIM];
    float out[DIM], expected[DIM], lse;
    const float *q = numbers + NUMBERS;
    create_pool((PoolConfig){1, 1, DIM, 4, 3, PAGED_F32, 1, PAGED_STANDIN});
    random_floats(numbers, NUMBERS + DIM);
    for (int i = 0; i < 2 * LENGTH * DIM; i++) kv[i] = numbers[i / DIM * 2 * DIM + i % DIM];
    Seq *seq = append(NULL, LENGTH, kv);
    must(pool_plan(pool, &(Batch){1, &seq, (int[]){1}}), "plan");
    must(attend(pool, 0, 0, 1, 0, q, out, NULL), "attend");
    begin_card(384, "A thread block",
               "Ten tokens are divided among four warps. In a warp, lane i has element i of each "
               "vector. Each warp ends with a state, m, l and o; after a barrier, these merge.");
    text(82, 44, "small", "its tokens");
    text(174, 44, "small", "its %d lanes", WARP);
    text(RIGHT, 26, "end small", "its state, in shared memory");
    text(375, 44, "middle small", "m");
    text(425, 44, "middle small", "l");
    text(475, 44, "middle small", "o");
    for (int warp = 0; warp <= WARPS; warp++) {  // the last state is the merged one
        const char kind[] = {(char)('A' + warp), 0};
        int y = warp < WARPS ? 54 + 36 * warp : 240;
        Oracle *oracle = oracle_create(&pool->config, LENGTH);
        for (int t = warp % WARPS; t < LENGTH; t += warp < WARPS ? WARPS : 1) {
            if (warp < WARPS) cell(82 + 26 * (t / WARPS), y, 24, kind, "%d", t);
            oracle->length++;
            oracle_write(oracle, 0, 1, kv + t * DIM, kv + (LENGTH + t) * DIM);
        }
        oracle_attend(oracle, 0, 1, 1, 0, q, expected, &lse);
        oracle_release(oracle);
        const float *state = find_state(lse);
        for (int d = 0; d < DIM; d++) EXPECT(fabsf(state[2 + d] / state[1] - expected[d]) < 1e-5f);
        cell(350, y, 50, "card", "%.3f", state[0]);
        cell(400, y, 50, "card", "%.2f", state[1] / HEADROOM);
        draw_strip(451, y, DIM, 6, DIM, warp < WARPS ? kind : "kept");
        if (warp == WARPS) break;
        text(MARGIN, y + 18, "bold", "warp %d", warp);
        draw_strip(174, y, WARP, 5, DIM, kind);
    }
    for (int d = 0; d < DIM; d++) EXPECT(fabsf(out[d] - expected[d]) < 1e-5f);
    printf("<path stroke-dasharray=\"5 4\" d=\"M20 214h480M20 290h480\"/>");
    curve("", 425, 190, 425, 240, 1);
    curve("", 475, 266, 475, 316, 1);
    text(MARGIN, 232, "small", "barrier");
    text(MARGIN, 308, "small", "barrier");
    text(82, 258, "", "thread d merges element d");
    text(82, 334, "", "thread d: out[d] = o[d] / l");
    draw_strip(451, 316, DIM, 6, 0, "");
    text(MARGIN, 368, "", "Here head_dim is %d, so lanes %d to %d have no element.", DIM, DIM,
         WARP - 1);
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

// The published blocks: a bucket leads to each, by the serial of its parent and its own tokens.
static void draw_buckets(void)
{
    text(MARGIN, POOL_Y + 84, "small", "serial");
    text(MARGIN, POOL_Y + 132, "small", "buckets");
    for (int block = 0; block < pool->config.num_blocks; block++) {
        const Block *b = &pool->blocks[block];
        const int *t = block_tokens(pool, block);
        int x = LEFT + 134 * ((int)b->serial - 1);
        if (b->serial == 0) continue;
        EXPECT(*prefix_find(pool, b->parent, t) == block);
        text(middle(block), POOL_Y + 84, "middle", "%d", (int)b->serial);
        curve("", x + 61, POOL_Y + 114, middle(block), POOL_Y + 89, 1);
        cell(x, POOL_Y + 114, 122, "card", "(%d, \"%c%c%c%c\")", (int)b->parent, t[0], t[1], t[2],
             t[3]);
    }
}

// A state with its caption. The letters are those in the plane of K.
static void draw_panel(int y, const char *caption)
{
    printf("<g transform=\"translate(0 %d)\">", y - TABLE_Y);
    text(MARGIN, TABLE_Y - 40, "", "%s", caption);
    draw_state();
    for (int block = 0; block < pool->config.num_blocks; block++) {
        const float *k = (float *)pool->k + 4 * block;
        if (!(k[0] > 0)) continue;  // nothing, or poison
        printf("<text class=\"white\" y=\"%d\" x=\"", POOL_Y + 18);
        for (int slot = 0; slot < 4; slot++)
            printf("%g ", block_x(block) + (slot + .5) * slot_width);
        printf("\">");
        for (int slot = 0; slot < 4 && k[slot] > 0; slot++) putchar((int)k[slot]);
        printf("</text>");
    }
    if (pool->last_serial > 0) draw_buckets();
    printf("</g>");
}

static void draw_copy(void)
{
    create_pool((PoolConfig){1, 1, 1, 4, 3, PAGED_F32, 1, PAGED_CPU});
    slot_width = 28;
    begin_card(498, "Copy-on-write",
               "The tables of A and B name blocks 0 and 1. After A has appended a token, its table "
               "names block 2 in place of 1: a copy, with the new token.");
    seqs[A] = set_text(NULL, "be_kin");
    must(seq_fork(seqs[A], 6, &seqs[B]), "fork");
    EXPECT(pool->num_free == 1 && pool->num_copies == 0);
    draw_panel(76, "Before: B is a fork of A. Nothing has been copied.");
    set_text(seqs[A], "be_kind");
    set_text(seqs[B], "be_kin");
    EXPECT(pool->num_copies == 1 && seqs[A]->block_table[1] == 2 && seqs[B]->block_table[1] == 1);
    draw_panel(310, "After: A appends d. Block 1 is shared, so A gets a copy.");
}

static void draw_publish(void)
{
    create_pool((PoolConfig){1, 1, 1, 4, 5, PAGED_F32, 1, PAGED_CPU});
    slot_width = 17;
    begin_card(608, "Publishing",
               "A has published blocks 0 and 1. B has the same tokens in blocks 2 and 3. When B "
               "publishes, its table names 0 and 1 instead, and 2 and 3 are free.");
    seqs[A] = set_text(NULL, "be_kind.");
    seqs[B] = set_text(NULL, "be_kind._Bye");
    must(seq_publish(seqs[A], tokens, 8), "publish");
    EXPECT(seqs[B]->block_table[0] == 2 && seqs[B]->block_table[1] == 3 && pool->last_serial == 2);
    draw_panel(76, "Before: A has published its blocks. B has the same tokens.");
    must(seq_publish(seqs[B], tokens, 12), "publish");
    set_text(seqs[B], "be_kind._Bye");
    EXPECT(seqs[B]->block_table[0] == 0 && seqs[B]->block_table[1] == 1 && pool->num_free == 2);
    draw_panel(370, "After: B publishes, and takes the blocks of A for its own.");
}

// ---- what replay measured ---------------------------------------------------------------------

enum { POOL = 160, STEPS = 600, THICK = 3, SIDE = 60 };

static void draw_life(void)
{
    static int owner[POOL][STEPS];  // the number of the request that has the block, 0: it is free
    char line[256];
    int last = 0;
    while (fgets(line, sizeof line, stdin)) {
        int step, block, request;
        if (sscanf(line, "%d,%d,%d", &step, &block, &request) != 3) continue;
        if (step < 0 || step >= STEPS || block < 0 || block >= POOL) continue;
        owner[block][step] = request + 1;
        if (request + 1 > last) last = request + 1;
    }
    begin(SIDE + STEPS + 20, POOL * THICK + 70, style);
    text(SIDE, 20, "start", "%d blocks, drawn over %d steps. A colour is a request.", POOL, STEPS);
    for (int number = 1; number <= last; number++) {  // a path, with a piece for each of its blocks
        printf("<path stroke-width=\"%d\" stroke=\"hsl(%d,55%%,58%%)\" d=\"", THICK,
               number * 137 % 360);
        for (int block = 0; block < POOL; block++)
            for (int step = 0; step < STEPS; step++) {
                int from = step;
                while (step < STEPS && owner[block][step] == number) step++;
                if (step > from)
                    printf("M%d %gh%d", SIDE + from, 30 + (block + 0.5) * THICK, step - from);
            }
        printf("\"/>");
    }
    for (int block = 0; block <= POOL; block += 40)
        text(SIDE - 8, 34 + block * THICK, "end", "%d", block);
    for (int step = 0; step <= STEPS; step += 100)
        text(SIDE + step, POOL * THICK + 48, "middle", "%d", step);
    text(SIDE + STEPS / 2, POOL * THICK + 65, "middle", "step");
    text(14, 22, "start", "block");
}

enum { FROM = 70, TO = 740, TOP = 60, BOTTOM = 320 };

static int bar_x(int bar) { return FROM + 40 + 65 * bar; }
static double y_at(double part) { return BOTTOM - part * (BOTTOM - TOP); }

static void draw_y_axis(void)
{
    for (int percent = 0; percent <= 100; percent += 20) {
        double y = y_at(percent / 100.0);
        printf("<path class=\"line\" opacity=\".4\" d=\"M%d %gH%d\"/>\n", FROM, y, TO);
        text(FROM - 8, y + 4, "end", "%d", percent);
    }
    printf("<g transform=\"translate(20 %d) rotate(-90)\">\n", (TOP + BOTTOM) / 2);
    text(0, 0, "middle", "%% of the budget, average over steps");
    printf("</g>\n");
}

// One bar for each allocator, with a piece for each kind of slots: a path has those of a kind.
static void draw_memory(void)
{
    static const char *const kinds[] = {"used", "reserved", "internal", "external", "free"};
    static const char *const fills[] = {"#2f8f4a", "#a6dba0", "#c2a5cf", "#8e5aa8", "#cccccc"};
    enum { MAX_BARS = 10 };
    char line[256];
    double parts[MAX_BARS][5];
    double sums[MAX_BARS] = {0};
    int bars = 0;
    begin(760, 380, style);
    draw_y_axis();
    while (bars < MAX_BARS && fgets(line, sizeof line, stdin)) {
        char first[20], rest[20];
        double *part = parts[bars];
        if (sscanf(line, "\"%19[a-z] %19[^\"]\",%*d,%lf,%lf,%lf,%lf,%lf", first, rest, &part[0],
                   &part[1], &part[2], &part[3], &part[4]) != 7)
            continue;  // the names of the columns
        text(bar_x(bars), BOTTOM + 20, "middle small", "%s", first);
        text(bar_x(bars), BOTTOM + 36, "middle small", "%s", rest);
        bars++;
    }
    for (int kind = 0; kind < 5; kind++) {
        int x = 120 + 120 * kind;
        printf("<path stroke=\"%s\" stroke-width=\"10\" d=\"M%d 25h20\"/>\n", fills[kind], x);
        text(x + 26, 30, "start", "%s", kinds[kind]);
        printf("<path stroke=\"%s\" stroke-width=\"46\" d=\"", fills[kind]);
        for (int bar = 0; bar < bars; bar++) {
            printf("M%d %.1fV", bar_x(bar), y_at(sums[bar]));
            sums[bar] += parts[bar][kind];
            printf("%.1f", y_at(sums[bar]));
        }
        printf("\"/>\n");
    }
}

// ---- main -------------------------------------------------------------------------------------

int main(int argc, char **argv)
{
    static const char *const names[] = {"vectors", "free-list", "table", "walk",   "warps", "copy",
                                        "publish", "steps",     "life",  "memory", NULL};
    static void (*const pictures[])(void) = {draw_vectors, draw_free_list, draw_table,   draw_walk,
                                             draw_warps,   draw_copy,      draw_publish, draw_steps,
                                             draw_life,    draw_memory};
    program = "draw";
    if (argc != 2) die(2, "usage: draw NAME, or draw life or memory <FILE.csv");
    pictures[parse_choice("draw", argv[1], names)]();
    printf("\n</svg>\n");
    pool_destroy(pool);
    return finish_output(0);
}
