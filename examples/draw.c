// draw: the pictures of the README, as SVG.
//
//     build/draw blocks              three sequences, their tables, the pool, a block and its copy
//     build/draw life <LIFE.csv      a pool while requests come and go, from replay --life
//     build/draw memory <TABLES.csv  where the slots of the budget are, from replay --csv

#include "util.h"

// Grey that can be read on white and on black.
static const char *const style =
    "<style>text{font:13px sans-serif;fill:#768390}.line{stroke:#768390;fill:none}"
    ".middle{text-anchor:middle}.end{text-anchor:end}.white{fill:#fff}"
    ".small{font-size:11px}</style>\n";

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
    printf("</text>\n");
    va_end(arguments);
}

// ---- blocks -----------------------------------------------------------------------------------

enum { SLOTS = 4, BLOCKS = 10, CELL = 18, BLOCK = SLOTS * CELL, PITCH = BLOCK + 12, LEFT = 20 };
enum { TABLE_Y = 50, POOL_Y = 190, HEIGHT = 26 };
static const char *const colors[] = {"#4c8dd6", "#d9893b", "#55a868"};

static Seq *new_seq(Pool *pool, int length)
{
    Seq *seq;
    must(seq_create(pool, &seq), "create");
    must(seq_append(seq, length), "append");
    return seq;
}

static int block_x(int block) { return LEFT + block * PITCH; }
static int middle(int block) { return block_x(block) + BLOCK / 2; }

static void draw_table(const Seq *seq, char name, const char *color, int x)
{
    text(x, TABLE_Y - 22, "start", "%c: %d tokens", name, seq->length);
    for (int i = 0; i < (int)arrlen(seq->block_table); i++) {
        int block = seq->block_table[i];
        int from = x + i * 40 + 18;
        printf("<rect x=\"%d\" y=\"%d\" width=\"36\" height=\"28\" rx=\"4\" fill=\"%s\"/>\n",
               from - 18, TABLE_Y, color);
        text(from, TABLE_Y + 19, "middle white", "%d", block);
        text(from, TABLE_Y - 6, "middle", "%d", i);
        printf("<path class=\"line\" style=\"stroke:%s\" d=\"M%d %dC%d %d %d %d %d %d\"/>\n", color,
               from, TABLE_Y + 28, from, TABLE_Y + 90, middle(block), POOL_Y - 60, middle(block),
               POOL_Y - 2);
    }
}

// A sequence that names the block colours the slots it sees; two share them half and half.
static void draw_block(const Pool *pool, int block, const Seq *const *seqs)
{
    int count = pool->blocks[block].ref_count;
    int x = block_x(block);
    int y = POOL_Y;
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < (int)arrlen(seqs[s]->block_table); i++) {
            if (seqs[s]->block_table[i] != block) continue;
            int tokens = seqs[s]->length - i * SLOTS;
            if (tokens > SLOTS) tokens = SLOTS;
            printf("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", x, y,
                   CELL * tokens, HEIGHT / count, colors[s]);
            y += HEIGHT / count;
        }
    text(middle(block), POOL_Y + 44, "middle", "block %d", block);
    text(middle(block), POOL_Y + 61, "middle", count == 0 ? "free" : "ref_count %d", count);
}

static void draw_blocks(void)
{
    PoolConfig config = {1, 1, 1, SLOTS, BLOCKS, PAGED_F16, 0, PAGED_CPU};
    Pool *pool;
    Seq *b;
    must(pool_create(&config, &pool), "pool");
    Seq *a = new_seq(pool, 6);
    Seq *c = new_seq(pool, 7);
    must(seq_append(a, 4), "append");
    int from = middle(a->block_table[2]);
    must(seq_fork(a, a->length, &b), "fork");
    must(seq_append(a, 1), "append");
    int to = middle(a->block_table[2]);
    const Seq *seqs[3] = {a, b, c};

    begin(LEFT + BLOCKS * PITCH, 320);
    for (int s = 0; s < 3; s++) draw_table(seqs[s], (char)('A' + s), colors[s], LEFT + s * 300);
    for (int block = 0; block < BLOCKS; block++) draw_block(pool, block, seqs);
    printf("<path class=\"line\" d=\"");
    for (int block = 0; block < BLOCKS; block++)
        for (int slot = 0; slot < SLOTS; slot++)
            printf("M%d %dh%dv%dh-%dz", block_x(block) + slot * CELL, POOL_Y, CELL, HEIGHT, CELL);
    printf("\"/>\n");
    printf("<path class=\"line\" stroke-dasharray=\"5 4\" d=\"M%d %dC%d %d %d %d %d %d\"/>\n", from,
           POOL_Y + 66, from, POOL_Y + 95, to, POOL_Y + 95, to, POOL_Y + 68);
    printf("<path class=\"line\" d=\"M%d %dl5 9m-5 -9l-5 9\"/>\n", to, POOL_Y + 68);
    text((from + to) / 2, POOL_Y + 110, "middle",
         "copy-on-write: A was forked, so it got a copy before it wrote its 11th token");
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
        printf("\"/>\n");
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
    static const char *const names[] = {"blocks", "life", "memory", NULL};
    static void (*const pictures[])(void) = {draw_blocks, draw_life, draw_memory};
    program = "draw";
    if (argc != 2) die(2, "usage: draw blocks, or draw life or memory <FILE.csv");
    pictures[parse_choice("draw", argv[1], names)]();
    printf("</svg>\n");
    return finish_output(0);
}
