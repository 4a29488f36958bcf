// draw: the pictures of the README, as SVG.
//
//     build/draw steps               sequences and their pool, in eight scenes
//     build/draw life <LIFE.csv      a pool while requests come and go, from replay --life
//     build/draw memory <TABLES.csv  where the slots of the budget are, from replay --csv

#include "util.h"

#include <stdarg.h>

// Grey that can be read on white and on black.
static const char *const style =
    "<style>text{font:13px sans-serif;fill:#768390}.line{stroke:#768390;fill:none}"
    ".middle{text-anchor:middle}.end{text-anchor:end}.small{font-size:11px}</style>\n";

static void begin(int width, int height)
{
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
           "height=\"%d\">\n%s",
           width, height, width, height, style);
}

static void text(double x, double y, const char *place, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("<text x=\"%g\" y=\"%g\" class=\"%s\">", x, y, place);
    vprintf(format, arguments);
    printf("</text>");
    va_end(arguments);
}

// ---- steps ------------------------------------------------------------------------------------
// Each scene shows a live pool after an edit. CSS plays the scenes in turn, and moves what changed
// from its place in the previous scene. Where motion is switched off, the scene STILL is shown.

enum { A, B, C, D, SEQS };
enum { SLOTS = 4, BLOCKS = 12, SCENES = 8, STILL = 3, SECONDS = 24 };
enum { TAB = 101, LEFT = 108, FREE_Y = 102, TABLE_Y = 174, POOL_Y = 268 };
enum { CELL = 13, PITCH = SLOTS * CELL + 8, HEIGHT = 28, ID_WIDTH = 36, ID_HEIGHT = 26 };

typedef struct Box {
    int x, y, width, height;
} Box;

typedef struct Film {
    Pool *pool;
    Seq *seqs[SEQS];
    Box slots[SEQS][BLOCKS];  // what each entry of a table saw in the previous scene; width 0: none
    Box ids[BLOCKS];          // where the id of each block was
    int scene;
} Film;

// A card as light or dark as the page, and the motion. All scenes together take SECONDS.
static const char *const steps_style =
    "<style>svg{color:#1f2328}.card{fill:#fff;stroke:#8b949e66}"
    "@media(prefers-color-scheme:dark){svg{color:#f0f6fc}.card{fill:#0d1117}}"
    "text{font:14px -apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:currentColor}"
    ".A{fill:#3572c6;stroke:#3572c6}.B{fill:#bc5b10;stroke:#bc5b10}"
    ".C{fill:#2c8746;stroke:#2c8746}.D{fill:#8250df;stroke:#8250df}"
    ".A+text,.B+text,.C+text,.D+text{fill:#fff;font-weight:600}"
    ".line{fill:none}.kept{fill:#8b949e;fill-opacity:.4}.caption{font-size:17px}"
    ".bold{font-weight:600}.changed{fill:none;stroke:currentColor;stroke-width:3}"
    ".scene{visibility:hidden}.still{visibility:visible}.moves{transform-box:fill-box}"
    "@keyframes show{0%{visibility:visible}12.5%,to{visibility:hidden}}"
    "@keyframes move{0%,1%{transform:var(--from)}4%,to{transform:none}}"
    "@keyframes appear{0%,3%{opacity:0}5%,to{opacity:1}}"
    "@media(prefers-reduced-motion:no-preference){"
    ".scene,.moves,.appears{animation:24s var(--start) infinite}"
    ".scene{animation-name:show;animation-timing-function:step-end}"
    ".moves{animation-name:move}.appears{animation-name:appear}}</style>\n"
    "<rect class=\"card\" x=\".5\" y=\".5\" width=\"839\" height=\"375\" rx=\"8\"/>\n";

static int block_x(int block) { return LEFT + block * PITCH; }
static int middle(int block) { return block_x(block) + SLOTS * CELL / 2; }

// The place of the i-th id in a table, or on the free list.
static Box id_box(int x, int y, int i)
{
    return (Box){x + i * (ID_WIDTH + 4), y, ID_WIDTH, ID_HEIGHT};
}

// A box that comes from another place, with a number in it if that is not negative.
static void draw_box(Box from, Box to, const char *kind, int number)
{
    printf("<g");
    if (memcmp(&from, &to, sizeof to) != 0)
        printf(" class=\"moves\" style=\"--from:translate(%dpx,%dpx) scale(%g,%g)\"", from.x - to.x,
               from.y - to.y, (double)from.width / to.width, (double)from.height / to.height);
    printf("><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" class=\"%s\"/>", to.x,
           to.y, to.width, to.height, kind);
    if (number >= 0) text(to.x + to.width / 2, to.y + 18, "middle", "%d", number);
    printf("</g>");
}

static void draw_outline(int block)
{
    Box box = {block_x(block) - 1, POOL_Y - 1, SLOTS * CELL + 2, HEIGHT + 2};
    draw_box(box, box, "changed appears", -1);
}

// An entry of a table, the curve to its block, and the slots that it sees there. Sequences that
// share the block divide its height: `above` of them have been drawn.
static void draw_entry(Film *film, int seq, int i, Box id, int above)
{
    const char kind[] = {(char)('A' + seq), 0};
    int block = film->seqs[seq]->block_table[i];
    const Block *b = &film->pool->blocks[block];
    int tokens = film->seqs[seq]->length - i * SLOTS;
    if (tokens > SLOTS) tokens = SLOTS;
    int height = HEIGHT / b->ref_count;
    Box slots = {block_x(block), POOL_Y + above * height, tokens * CELL, height};
    Box old = film->slots[seq][i];
    int same = old.width > 0 && old.x == slots.x;
    int from = id.x + ID_WIDTH / 2;
    int to = middle(block);
    printf("<path class=\"%s line%s\" d=\"M%d %dC%d %d %d %d %d %d\"/>", kind,
           same ? "" : " appears", from, TABLE_Y + ID_HEIGHT, from, POOL_Y - 20, to, POOL_Y - 50,
           to, POOL_Y);
    if (old.width > 0 && !same)  // an arrow from the block to its copy
        printf("<path class=\"line appears\" d=\"M%d %dv3c0 20 %d 20 %d 0v-3m-5 7l5-7 5 7\"/>",
               old.x + SLOTS * CELL / 2, POOL_Y + 76, slots.x - old.x, slots.x - old.x);
    if (!same || old.width != slots.width || old.height != height) draw_outline(block);
    if (old.width == 0) {  // a new entry: the block is shared, or found, or written
        old = slots;
        if (above > 0)
            old = (Box){slots.x, POOL_Y + HEIGHT, slots.width, 0};
        else if (b->serial == 0)
            old.width = 0;
    }
    draw_box(old, slots, kind, -1);
    draw_box(same ? id : film->ids[block], id, kind, block);
    film->ids[block] = id;
    film->slots[seq][i] = slots;
}

// The state after an edit, what the edit moved, and a caption.
__attribute__((format(printf, 2, 3))) static void draw_scene(Film *film, const char *caption, ...)
{
    const Block *blocks = film->pool->blocks;
    int sharers[BLOCKS] = {0};
    int scene = film->scene++;
    Box tab = {16 + scene * TAB, 14, TAB, 26};
    if (pool_check(film->pool)) die(1, "%s", pool_check(film->pool));
    printf("<g class=\"scene%s\" style=\"--start:%ds\">", scene == STILL ? " still" : "",
           (scene - SCENES) * SECONDS / SCENES);
    draw_box(tab, tab, "kept", -1);
    for (int s = 0; s < SEQS; s++) {
        Seq *seq = film->seqs[s];
        int x = block_x(4 * (s < C ? s : C));  // D takes the place of C
        int num_entries = seq ? (int)arrlen(seq->block_table) : 0;
        if (seq) text(x, TABLE_Y - 11, "bold", "%c: %d tokens", 'A' + s, seq->length);
        for (int i = 0; i < num_entries; i++)
            draw_entry(film, s, i, id_box(x, TABLE_Y, i), sharers[seq->block_table[i]]++);
        for (int i = num_entries; i < BLOCKS; i++) film->slots[s][i].width = 0;
    }
    int i = 0;
    for (int block = blocks[BLOCKS].next; block < BLOCKS; block = blocks[block].next) {
        const char *kind = blocks[block].serial ? "kept" : "card";
        Box slots = {block_x(block), POOL_Y, SLOTS * CELL, HEIGHT};
        Box id = id_box(LEFT, FREE_Y, i++);
        if (blocks[block].serial) draw_box(slots, slots, kind, -1);
        if (film->ids[block].y != FREE_Y) draw_outline(block);
        draw_box(film->ids[block], id, kind, block);
        film->ids[block] = id;
    }
    for (int block = 0; block < BLOCKS; block++)
        text(middle(block), POOL_Y + 69, "middle", "%d", blocks[block].ref_count);
    va_list arguments;
    va_start(arguments, caption);
    printf("<text x=\"20\" y=\"74\" class=\"caption\">");
    vprintf(caption, arguments);
    printf("</text></g>\n");
    va_end(arguments);
}

// What stays the same.
static void draw_labels(void)
{
    static const char *const edits[] = {"arrive",         "append", "fork",    "copy-on-write",
                                        "write in place", "rewind", "release", "prefix hit"};
    for (int i = 0; i < SCENES; i++) text(16 + i * TAB + TAB / 2, 32, "middle", "%s", edits[i]);
    text(20, TABLE_Y + 18, "start", "block tables");
    text(20, POOL_Y + 19, "start", "pool");
    text(20, POOL_Y + 50, "start", "block");
    text(20, POOL_Y + 69, "start", "ref_count");
    text(20, FREE_Y + 18, "start", "free list");
    for (int block = 0; block < BLOCKS; block++)
        text(middle(block), POOL_Y + 50, "middle", "%d", block);
    printf("\n<path class=\"line\" d=\"");
    for (int block = 0; block < BLOCKS; block++)
        for (int slot = 0; slot < SLOTS; slot++)
            printf("M%d %dh%dv%dh-%dz", block_x(block) + slot * CELL, POOL_Y, CELL, HEIGHT, CELL);
    printf("\"/>");
}

// What a caption says must be true of the pool.
#define EXPECT(truth) ((truth) ? (void)0 : die(1, "not so: " #truth))

static void draw_steps(void)
{
    static const int prompt[10];
    static const float zeros[8];
    PoolConfig config = {1, 1, 1, SLOTS, BLOCKS, PAGED_F16, 0, PAGED_CPU};
    Film film = {0};
    must(pool_create(&config, &film.pool), "pool");
    Pool *pool = film.pool;
    Seq **seqs = film.seqs;
    begin(840, 376);
    fputs(steps_style, stdout);
    for (int i = 0; i < BLOCKS; i++) film.ids[i] = id_box(LEFT, FREE_Y, i);

    int front = pool->blocks[BLOCKS].next;
    must(seq_create(pool, &seqs[A]), "create");
    must(seq_create(pool, &seqs[C]), "create");
    must(seq_append(seqs[A], 6), "append");
    must(seq_append(seqs[C], 8), "append");
    EXPECT(seqs[A]->block_table[0] == front && pool->num_free == BLOCKS - 4);
    draw_scene(&film, "A and C arrive and take blocks from the front of the free list.");

    must(seq_append(seqs[A], 4), "append");
    int last = seqs[A]->block_table[2];
    EXPECT(last != seqs[A]->block_table[1] + 1);
    draw_scene(&film, "A grows and takes block %d: any free block will do.", last);

    must(seq_fork(seqs[A], seqs[A]->length, &seqs[B]), "fork");
    EXPECT(pool->blocks[last].ref_count == 2 && pool->num_copies == 0);
    draw_scene(&film, "B is forked from A: both tables name the same blocks. Nothing is copied.");

    must(seq_append(seqs[A], 1), "append");
    int copy = seqs[A]->block_table[2];
    EXPECT(pool->num_copies == 1 && copy != last && pool->blocks[last].ref_count == 1);
    draw_scene(&film, "A appends. Block %d is shared, so A gets a copy, block %d.", last, copy);

    must(seq_append(seqs[B], 1), "append");
    EXPECT(pool->num_copies == 1 && seqs[B]->block_table[2] == last);
    draw_scene(&film, "B appends. Block %d is now its own, so B writes in place.", last);

    must(seq_rewind(seqs[A], 6), "rewind");
    EXPECT(pool->blocks[BLOCKS].next == copy);
    draw_scene(&film, "A drops the tokens of a rejected draft. Block %d is free again.", copy);

    must(pool_plan(pool, &(Batch){1, &seqs[C], &seqs[C]->length}), "plan");
    must(pool_write(pool, 0, zeros, zeros), "write");  // only computed tokens are published
    must(seq_publish(seqs[C], prompt, 8), "publish");
    int first = seqs[C]->block_table[0];
    seq_release(seqs[C]);
    seqs[C] = NULL;
    EXPECT(pool->blocks[BLOCKS].prev == first && pool->blocks[first].serial != 0);
    draw_scene(&film, "C ends. Its full blocks keep their tokens, at the back of the free list.");

    must(seq_create(pool, &seqs[D]), "create");
    must(seq_lookup(seqs[D], prompt, 10), "lookup");
    int found = seqs[D]->length;
    must(seq_append(seqs[D], 10 - found), "append");
    EXPECT(found == seqs[D]->num_computed_tokens && seqs[D]->block_table[0] == first);
    draw_scene(&film, "D starts with the prompt of C: its first %d blocks are found, not computed.",
               found / SLOTS);

    draw_labels();
    pool_destroy(pool);
}

// ---- what replay measured ---------------------------------------------------------------------

enum { POOL = 160, STEPS = 600, THICK = 3, MARGIN = 60 };

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
    begin(MARGIN + STEPS + 20, POOL * THICK + 70);
    text(MARGIN, 20, "start", "%d blocks, drawn over %d steps. A colour is a request.", POOL,
         STEPS);
    for (int number = 1; number <= last; number++) {  // a path, with a piece for each of its blocks
        printf("<path stroke-width=\"%d\" stroke=\"hsl(%d,55%%,58%%)\" d=\"", THICK,
               number * 137 % 360);
        for (int block = 0; block < POOL; block++)
            for (int step = 0; step < STEPS; step++) {
                int from = step;
                while (step < STEPS && owner[block][step] == number) step++;
                if (step > from)
                    printf("M%d %gh%d", MARGIN + from, 30 + (block + 0.5) * THICK, step - from);
            }
        printf("\"/>");
    }
    for (int block = 0; block <= POOL; block += 40)
        text(MARGIN - 8, 34 + block * THICK, "end", "%d", block);
    for (int step = 0; step <= STEPS; step += 100)
        text(MARGIN + step, POOL * THICK + 48, "middle", "%d", step);
    text(MARGIN + STEPS / 2, POOL * THICK + 65, "middle", "step");
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
    begin(760, 380);
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
    static const char *const names[] = {"steps", "life", "memory", NULL};
    static void (*const pictures[])(void) = {draw_steps, draw_life, draw_memory};
    program = "draw";
    if (argc != 2) die(2, "usage: draw steps, or draw life or memory <FILE.csv");
    pictures[parse_choice("draw", argv[1], names)]();
    printf("\n</svg>\n");
    return finish_output(0);
}
