// draw.c: two pictures of live pools, as SVG.
//
//     build/draw blocks            three sequences, their tables, the pool, a block and its copy
//     build/draw life [TRACE.csv]  a pool while requests come and go: block by time
//
// TRACE has a line for each request: time, tokens of the prompt, tokens generated, as in
// Azure/AzurePublicDataset. Without it the lengths are made up.

#include "util.h"

// Grey that can be read on white and on black.
static const char *const style =
    "<style>text{font:13px sans-serif;fill:#768390}.line{stroke:#768390;fill:none}"
    ".free{fill:none;stroke:#768390}</style>\n";

static void begin(int width, int height)
{
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
           "height=\"%d\">\n%s",
           width, height, width, height, style);
}

static void text(double x, double y, const char *kind, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("<text x=\"%g\" y=\"%g\" %s>", x, y, kind);
    vprintf(format, arguments);
    printf("</text>\n");
    va_end(arguments);
}

// ---- blocks -----------------------------------------------------------------------------------

enum { SLOTS = 4, BLOCKS = 10, CELL = 18, BLOCK = SLOTS * CELL, PITCH = BLOCK + 12, LEFT = 20 };
enum { TABLE_Y = 50, POOL_Y = 190 };
static const char *const colors[] = {"#4c8dd6", "#d9893b", "#55a868"};

static Seq *new_seq(Pool *pool, int length)
{
    Seq *seq;
    must(seq_create(pool, &seq), "create");
    must(seq_append(seq, length), "append");
    return seq;
}

static double block_x(int block) { return LEFT + block * PITCH; }

static void draw_table(const Seq *seq, char name, const char *color, double x)
{
    text(x, TABLE_Y - 22, "", "%c: %d tokens", name, seq->length);
    for (int i = 0; i < (int)arrlen(seq->block_table); i++) {
        int block = seq->block_table[i];
        double left = x + i * 40;
        printf("<rect x=\"%g\" y=\"%d\" width=\"36\" height=\"28\" rx=\"4\" fill=\"%s\"/>\n", left,
               TABLE_Y, color);
        text(left + 18, TABLE_Y + 19, "text-anchor=\"middle\" style=\"fill:#fff\"", "%d", block);
        text(left + 18, TABLE_Y - 6, "text-anchor=\"middle\"", "%d", i);
        printf("<path class=\"line\" style=\"stroke:%s\" d=\"M%g %dC%g %d %g %d %g %d\"/>\n", color,
               left + 18, TABLE_Y + 28, left + 18, TABLE_Y + 90, block_x(block) + BLOCK / 2.0,
               POOL_Y - 60, block_x(block) + BLOCK / 2.0, POOL_Y - 2);
    }
}

// A sequence that names the block colours the slots it sees; two share them half and half.
static void draw_block(const Pool *pool, int block, const Seq *const *seqs)
{
    enum { HEIGHT = 26 };
    double y = POOL_Y;
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < (int)arrlen(seqs[s]->block_table); i++) {
            if (seqs[s]->block_table[i] != block) continue;
            int tokens = seqs[s]->length - i * SLOTS;
            double height = (double)HEIGHT / pool->blocks[block].ref_count;
            printf("<rect x=\"%g\" y=\"%g\" width=\"%d\" height=\"%g\" fill=\"%s\"/>\n",
                   block_x(block), y, CELL * (tokens < SLOTS ? tokens : SLOTS), height, colors[s]);
            y += height;
        }
    for (int slot = 0; slot < SLOTS; slot++)
        printf("<rect class=\"free\" x=\"%g\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
               block_x(block) + slot * CELL, POOL_Y, CELL, HEIGHT);
    int count = pool->blocks[block].ref_count;
    double middle = block_x(block) + BLOCK / 2.0;
    text(middle, POOL_Y + 44, "text-anchor=\"middle\"", "block %d", block);
    text(middle, POOL_Y + 61, "text-anchor=\"middle\"", count == 0 ? "free" : "ref_count %d",
         count);
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
    int shared = a->block_table[2];
    must(seq_fork(a, a->length, &b), "fork");
    must(seq_append(a, 1), "append");
    int copy = a->block_table[2];
    const Seq *seqs[3] = {a, b, c};

    begin(LEFT + BLOCKS * PITCH, 320);
    for (int s = 0; s < 3; s++) draw_table(seqs[s], (char)('A' + s), colors[s], LEFT + s * 300);
    for (int block = 0; block < BLOCKS; block++) draw_block(pool, block, seqs);
    double from = block_x(shared) + BLOCK / 2.0;
    double to = block_x(copy) + BLOCK / 2.0;
    printf("<path class=\"line\" stroke-dasharray=\"5 4\" d=\"M%g %dC%g %d %g %d %g %d\"/>\n", from,
           POOL_Y + 66, from, POOL_Y + 95, to, POOL_Y + 95, to, POOL_Y + 68);
    printf("<path class=\"line\" d=\"M%g %dl5 -9m-5 9l-5 -9\" transform=\"rotate(180 %g %d)\"/>\n",
           to, POOL_Y + 68, to, POOL_Y + 68);
    text((from + to) / 2, POOL_Y + 110, "text-anchor=\"middle\"",
         "copy-on-write: A was forked, so it got a copy before it wrote its 11th token");
    printf("</svg>\n");
    pool_destroy(pool);
}

// ---- life -------------------------------------------------------------------------------------
// First come, first served; if no block is left, the request admitted last is preempted: its blocks
// are dropped, and its tokens computed again later.

enum { BLOCK_SIZE = 64, POOL = 160, STEPS = 900, ROW = 3, MARGIN = 60 };

typedef struct Request {
    int id, prompt, total;
    int tokens;  // prompt and generated so far
    Seq *seq;
} Request;

static void read_requests(FILE *in, Request **queue)
{
    char line[256];
    uint64_t random = 1;
    for (int id = 0; id < 200; id++) {
        double u = random_uniform(&random);
        int prompt = 100 + (int)(3000 * u * u);
        int generated = 20 + (int)(500 * random_uniform(&random));
        if (in && !fgets(line, sizeof line, in)) return;
        if (in && sscanf(line, "%*[^,],%d,%d", &prompt, &generated) != 2) continue;
        Request request = {id, prompt, prompt + generated, prompt, NULL};
        if (request.total <= POOL * BLOCK_SIZE) arrput(*queue, request);
    }
}

// One step: admit, append a token to each, let the finished go.
static void serve(Pool *pool, Request **queue, Request **running)
{
    while (arrlen(*queue) > 0 && (*queue)[0].tokens / BLOCK_SIZE + 2 <= pool->num_free) {
        Request next = (*queue)[0];
        next.seq = new_seq(pool, next.tokens);
        arrdel(*queue, 0);
        arrput(*running, next);
    }
    for (int i = 0; i < (int)arrlen(*running); i++) {
        while (seq_append((*running)[i].seq, 1) == PAGED_OUT_OF_BLOCKS) {
            Request last = arrpop(*running);
            seq_release(last.seq);
            arrins(*queue, 0, last);
            if (i == (int)arrlen(*running)) return;  // it was the last one itself
        }
        (*running)[i].tokens++;
    }
    for (int i = (int)arrlen(*running) - 1; i >= 0; i--)
        if ((*running)[i].tokens >= (*running)[i].total) {
            seq_release((*running)[i].seq);
            arrdel(*running, i);
        }
}

static void draw_life(FILE *in)
{
    PoolConfig config = {1, 1, 1, BLOCK_SIZE, POOL, PAGED_F16, 0, PAGED_CPU};
    Pool *pool;
    Request *queue = NULL;
    Request *running = NULL;
    int owner[POOL], since[POOL] = {0};
    must(pool_create(&config, &pool), "pool");
    read_requests(in, &queue);
    for (int block = 0; block < POOL; block++) owner[block] = -1;

    begin(MARGIN + STEPS + 20, POOL * ROW + 70);
    text(MARGIN, 20, "", "%d blocks of %d tokens, drawn over %d steps. A colour is a request.",
         POOL, BLOCK_SIZE, STEPS);
    for (int step = 0; step <= STEPS; step++) {
        int now_owner[POOL];
        for (int block = 0; block < POOL; block++) now_owner[block] = -1;
        if (step < STEPS) serve(pool, &queue, &running);
        for (int i = 0; i < (int)arrlen(running) && step < STEPS; i++)
            for (int entry = 0; entry < (int)arrlen(running[i].seq->block_table); entry++)
                now_owner[running[i].seq->block_table[entry]] = running[i].id;
        for (int block = 0; block < POOL; block++) {
            if (now_owner[block] == owner[block]) continue;
            if (owner[block] >= 0)
                printf("<path fill=\"hsl(%d,55%%,58%%)\" d=\"M%d %dh%dv%dh-%dz\"/>\n",
                       owner[block] * 137 % 360, MARGIN + since[block], 30 + block * ROW,
                       step - since[block], ROW, step - since[block]);
            owner[block] = now_owner[block];
            since[block] = step;
        }
    }
    for (int block = 0; block <= POOL; block += 40)
        text(MARGIN - 8, 34 + block * ROW, "text-anchor=\"end\"", "%d", block);
    for (int step = 0; step <= STEPS; step += 100)
        text(MARGIN + step, POOL * ROW + 48, "text-anchor=\"middle\"", "%d", step);
    text(MARGIN + STEPS / 2.0, POOL * ROW + 65, "text-anchor=\"middle\"", "step");
    text(14, 22, "", "block");
    printf("</svg>\n");
    arrfree(queue);
    arrfree(running);
    pool_destroy(pool);
}

int main(int argc, char **argv)
{
    program = "draw";
    if (argc == 2 && strcmp(argv[1], "blocks") == 0) {
        draw_blocks();
    } else if ((argc == 2 || argc == 3) && strcmp(argv[1], "life") == 0) {
        FILE *in = argc == 3 ? fopen(argv[2], "r") : NULL;
        if (argc == 3 && !in) die(1, "%s: %s", argv[2], strerror(errno));
        draw_life(in);
        if (in) fclose(in);
    } else {
        die(2, "usage: draw blocks, or draw life [TRACE.csv]");
    }
    return finish_output(0);
}
