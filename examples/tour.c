// tour: the engine in eight scenes, the examples of the public texts on PagedAttention. A scene has
// the number of the chapter of walkthrough.md that it belongs to.
//
//     cc -O2 -DPAGED_NO_MAIN examples/tour.c paged.cu.c -o tour -lm && ./tour 8
//
// Each scene has pools of its own. Bytes come from the shapes of real models; every count is read
// off a live pool, small in layers and heads. At the end of each pool, attention through the tables
// is compared with that of an oracle, which has no blocks.

#include "util.h"
#include <getopt.h>

enum { LAYERS = 2, KV_HEADS = 2, HEAD_DIM = 8, ROW = KV_HEADS * HEAD_DIM, Q_HEADS = 2 * KV_HEADS };
enum { LONGEST = 2048 };  // tokens

#define MUST(call) must(call, #call)

static const double MIB = 1 << 20;
static const PoolConfig GPT = {  // the model of the examples
    .num_layers = 32, .num_kv_heads = 32, .head_dim = 128, .block_size = 16,
    .num_blocks = 1,  .dtype = PAGED_F16, .poison = 0,     .device = PAGED_CPU};

static const char *const LEGEND =
    "The signs:\n"
    "  [  2  6  9 ]      a block table: the blocks of a sequence, in the order of its\n"
    "                    tokens\n"
    "  counts [ 3 3 1 ]  for each of these blocks, the number of tables it is in\n"
    "  1 in the last     tokens in the last of these blocks; the others are full\n"
    "  ..3...3..+..p.    a pool, one sign a block: . free, 3 in three tables,\n"
    "                    + in ten or more, p free, but the prefix cache can find it\n"
    "  m  l  o           so far: the maximum score, the sum of exp(score - m), and\n"
    "                    the sum of exp(score - m) * V; the attention is o / l\n";

static int device = PAGED_CPU;  // of all pools
static int failures;
static uint64_t seed;

// ---- sequences --------------------------------------------------------------------------------

static void random_floats(float *x, int n)  // in [-1, 1)
{
    for (int i = 0; i < n; i++) x[i] = (float)(2 * random_uniform(&seed) - 1);
}

static Pool *new_pool(int block_size, int num_blocks)
{
    PoolConfig config = {.num_layers = LAYERS,
                         .num_kv_heads = KV_HEADS,
                         .head_dim = HEAD_DIM,
                         .block_size = block_size,
                         .num_blocks = num_blocks,
                         .dtype = PAGED_F32,
                         .poison = 1,
                         .device = device};
    Pool *pool;
    MUST(pool_create(&config, &pool));
    return pool;
}

// n more tokens with random K and V.
static void grow(Seq *seq, int n)
{
    static float k[LONGEST * ROW], v[LONGEST * ROW];
    Batch batch = {.num_seqs = 1, .seqs = &seq, .num_tokens = &n};
    MUST(seq_append(seq, n));
    MUST(pool_plan(seq->pool, &batch));
    for (int layer = 0; layer < LAYERS; layer++) {
        random_floats(k, n * ROW);
        random_floats(v, n * ROW);
        MUST(pool_write(seq->pool, layer, k, v));
    }
}

static Seq *new_seq(Pool *pool, int n)
{
    Seq *seq;
    MUST(seq_create(pool, &seq));
    grow(seq, n);
    return seq;
}

static Seq *fork_seq(Seq *parent)
{
    Seq *child;
    MUST(seq_fork(parent, parent->length, &child));
    return child;
}

// Whether the newest tokens of a sequence attend as an oracle with its K and V does, in each layer
// and in three ways.
static int agrees(Seq *seq)
{
    enum { MAX_ROWS = 3, Q_ROW = Q_HEADS * HEAD_DIM };
    const int ways[3] = {ATTEND_PAGED, ATTEND_GATHER, ATTEND_FAST};
    int n = seq->length < MAX_ROWS ? seq->length : MAX_ROWS;
    int same = 1;
    static float k[LONGEST * ROW], v[LONGEST * ROW];
    float q[MAX_ROWS * Q_ROW], out[MAX_ROWS * Q_ROW], expected[MAX_ROWS * Q_ROW];
    Oracle *oracle = oracle_create(&seq->pool->config, seq->length);
    oracle->length = seq->length;
    random_floats(q, n * Q_ROW);
    Batch batch = {.num_seqs = 1, .seqs = &seq, .num_tokens = &n};
    MUST(pool_plan(seq->pool, &batch));
    for (int layer = 0; layer < LAYERS; layer++) {
        MUST(seq_gather(seq, layer, k, v));
        oracle_write(oracle, layer, seq->length, k, v);
        oracle_attend(oracle, layer, n, Q_HEADS, 0, q, expected, NULL);
        for (int way = 0; way < 3; way++) {
            memset(out, 0xff, sizeof out);  // NaN, so that the way before cannot help
            MUST(attend(seq->pool, ways[way], layer, Q_HEADS, 0, q, out, NULL));
            for (int i = 0; i < n * Q_ROW; i++)
                if (!(fabsf(out[i] - expected[i]) <= 1e-6f)) same = 0;  // also for NaN
        }
    }
    oracle_release(oracle);
    return same;
}

// Ends a pool: compares, recounts, and gives everything back.
static void finish(Pool *pool)
{
    const char *wrong = pool_check(pool);
    while (arrlen(pool->seqs) > 0) {
        if (!agrees(arrlast(pool->seqs))) wrong = "attention is not within 1e-6 of the oracle";
        seq_release(arrlast(pool->seqs));
    }
    if (!wrong && pool->num_free != pool->config.num_blocks) wrong = "blocks were lost";
    if (wrong) {
        printf("[FAILED] %s\n", wrong);
        failures++;
    } else {
        printf("[ok] attention within 1e-6 of the oracle; all blocks counted and given back\n");
    }
    pool_destroy(pool);
}

// ---- the scenes -------------------------------------------------------------------------------

static int blocks_used(const Pool *pool) { return pool->config.num_blocks - pool->num_free; }

// name [table] counts [of its blocks]
static void print_table(const char *name, const Seq *seq)
{
    int entries = (int)arrlen(seq->block_table);
    printf("%s [", name);
    for (int i = 0; i < entries; i++) printf("%3d", seq->block_table[i]);
    printf(" ]  counts [");
    for (int i = 0; i < entries; i++)
        printf("%2d", seq->pool->blocks[seq->block_table[i]].ref_count);
    printf(" ]  %d in the last\n", (seq->length - 1) % seq->pool->config.block_size + 1);
}

static void scene_cost(void)
{
    PoolConfig gqa = GPT;
    PoolConfig opt = GPT;
    gqa.num_kv_heads = 8;
    opt.num_layers = 48;
    opt.num_kv_heads = 56;
    printf("2 (K and V) x %d layers x %d heads x %d dims x 2 bytes (f16) = %zu bytes\n",
           GPT.num_layers, GPT.num_kv_heads, GPT.head_dim, pool_bytes_per_token(&GPT));
    printf("for every token: %zu KiB. Queries are not cached: only the newest is needed.\n",
           pool_bytes_per_token(&GPT) / 1024);
    printf("With %d KV heads that the %d query heads share (GQA): %zu KiB.\n", gqa.num_kv_heads,
           GPT.num_kv_heads, pool_bytes_per_token(&gqa) / 1024);
    printf("OPT-30B, %d layers x %d dims, 128 requests of 1024 tokens: %.1f GB of\n"
           "K and V, beside about 60 GB of parameters.\n",
           opt.num_layers, opt.num_kv_heads * opt.head_dim,
           (double)pool_bytes_per_token(&opt) * 1024 * 128 / 1e9);
}

static void scene_blocks(void)
{
    const int lengths[5] = {320, 48, 160, 96, 272};
    Pool *pool = new_pool(16, 512);
    Seq *seqs[5];
    for (int i = 0; i < 5; i++) {
        seqs[i] = new_seq(pool, lengths[i]);
        printf("request %d: %3d tokens in %2d blocks, %2d to %2d\n", i, seqs[i]->length,
               (int)arrlen(seqs[i]->block_table), seqs[i]->block_table[0],
               arrlast(seqs[i]->block_table));
    }
    pool_dump(pool, stdout);
    printf("Request 1 is done and gives its blocks back:\n");
    seq_release(seqs[1]);
    pool_dump(pool, stdout);
    printf("The next request starts in block %d.\n", new_seq(pool, 1)->block_table[0]);
    finish(pool);
}

static void share_system_prompt(void)
{
    Pool *pool = new_pool(16, 32);
    Seq *prompt = new_seq(pool, 200);
    Seq *requests[10];
    for (int i = 0; i < 10; i++) requests[i] = fork_seq(prompt);
    int together = blocks_used(pool);
    int apart = 10 * (int)arrlen(prompt->block_table);
    double mib = (double)pool_bytes_per_block(&GPT) / MIB;
    printf("Ten requests share a system prompt of %d tokens ('+': 10 or more references).\n",
           prompt->length);
    pool_dump(pool, stdout);
    seq_dump(requests[3], stdout);
    printf("Counts of %d: the ten, and the prompt's own handle. %d blocks in place of %d;\n"
           "at 512 KiB a token, %.0f MiB in place of %.0f MiB: %d blocks, %.1f MiB saved.\n",
           pool->blocks[12].ref_count, together, apart, together * mib, apart * mib,
           apart - together, (apart - together) * mib);

    printf("Request 3 writes its first own token, into a copy of the last block:\n");
    grow(requests[3], 1);
    seq_dump(requests[3], stdout);
    printf("Copies: %zu. The nine others still read block 12; its count is %d.\n"
           "The handle of the prompt is released, and the nine others write:\n",
           pool->num_copies, pool->blocks[12].ref_count);
    seq_release(prompt);
    for (int i = 0; i < 10; i++)
        if (i != 3) grow(requests[i], 1);
    pool_dump(pool, stdout);
    printf("Copies: %zu for ten writers. The last found a count of 1 and wrote in place.\n",
           pool->num_copies);
    finish(pool);
}

static int random_length(void)  // normal, by Box and Muller 1958, and clipped
{
    double radius = sqrt(-2 * log(1 - random_uniform(&seed)));
    double angle = 2 * 3.14159265358979 * random_uniform(&seed);
    return (int)fmin(fmax(500 + 200 * radius * cos(angle), 200), LONGEST);
}

static void print_bar(double part)
{
    printf("   %4.1f %% ", 100 * part);
    for (int i = 0; i < 20; i++) putchar(i < (int)(20 * part + 0.5) ? '#' : '.');
}

static void scene_reserve(void)
{
    const int batches[5] = {10, 25, 50, 100, 200};
    printf("Lengths: normal, mean 500, sd 200, clipped to [200, %d].\n"
           "requests   %d slots reserved for each       blocks of 16\n",
           LONGEST, LONGEST);
    for (int b = 0; b < 5; b++) {
        Pool *pools[2] = {new_pool(LONGEST, batches[b]), new_pool(16, batches[b] * LONGEST / 16)};
        double tokens = 0;
        for (int i = 0; i < batches[b]; i++) {
            int length = random_length();
            tokens += length;
            for (int p = 0; p < 2; p++) {
                Seq *seq;
                MUST(seq_create(pools[p], &seq));
                MUST(seq_append(seq, length));
            }
        }
        printf("%8d", batches[b]);
        for (int p = 0; p < 2; p++) {
            print_bar(tokens / ((double)blocks_used(pools[p]) * pools[p]->config.block_size));
            pool_destroy(pools[p]);
        }
        printf("\n");
    }
    printf("Reserving wastes the same share at every batch size. Paging wastes only the\n"
           "unfilled slots of each last block, 15 at most.\n");
}

static void scene_block_table(void)
{
    Pool *pool = new_pool(16, 8);
    order_free_list(pool, 3, (int[]){1, 5, 3});
    Seq *seq = new_seq(pool, 38);
    seq_dump(seq, stdout);
    for (int t = 5; t < 38; t += 16)
        printf("token %2d: entry %2d / 16 = %d of the table is block %d; slot %2d %% 16 = %d\n", t,
               t, t / 16, seq->block_table[t / 16], t, t % 16);
    finish(pool);

    const char *const words[9] = {"Alan", "Turing",        "is",      "a", "computer", "scientist",
                                  "and",  "mathematician", "renowned"};
    printf("Blocks of 4, one word a token:\n");
    pool = new_pool(4, 8);
    order_free_list(pool, 3, (int[]){7, 1, 5});
    seq = new_seq(pool, 9);
    for (int t = 0; t < 9; t++) {
        if (t % 4 == 0) printf("  block %d:", seq->block_table[t / 4]);
        printf(" %s", words[t]);
        if (t % 4 == 3 || t == 8) printf("\n");
    }
    finish(pool);
}

static void scene_decode(void)
{
    Pool *pool = new_pool(4, 16);
    order_free_list(pool, 6, (int[]){7, 2, 12, 5, 3, 9});
    Seq *a = new_seq(pool, 6);
    print_table("prefill, 6 tokens:", a);
    grow(a, 1);
    print_table("decode, 1 more:   ", a);
    printf("Block %d was not touched.\n", a->block_table[0]);
    Seq *b = new_seq(pool, 9);
    print_table("another, 9 tokens:", b);
    printf("Its next token goes to slot %d of block %d.\n", b->length % 4,
           b->block_table[b->length / 4]);
    grow(b, 8);
    grow(b, 1);
    printf("At %d tokens, decode writes one row; to repack a dense copy moves all %d.\n", b->length,
           b->length);

    printf("Speculation: four drafted tokens are appended; three are rejected and rewound.\n");
    grow(b, 4);
    seq_dump(b, stdout);
    pool_dump(pool, stdout);
    MUST(seq_rewind(b, 3));
    seq_dump(b, stdout);
    pool_dump(pool, stdout);
    finish(pool);
}

static void scene_sharing(void)
{
    printf("Three candidates of one prompt of two full blocks, each with a token of its own:\n");
    Pool *pool = new_pool(4, 16);
    order_free_list(pool, 5, (int[]){2, 6, 9, 11, 14});
    Seq *seqs[3] = {new_seq(pool, 8)};
    for (int i = 1; i < 3; i++) seqs[i] = fork_seq(seqs[0]);
    for (int i = 0; i < 3; i++) grow(seqs[i], 1);
    for (int i = 0; i < 3; i++) print_table("candidate", seqs[i]);
    pool_dump(pool, stdout);
    printf("Copies: %zu. A full block is never written again, so it stays shared.\n",
           pool->num_copies);
    finish(pool);

    printf("Two samples, A and B, of a prompt that ends inside a block:\n");
    pool = new_pool(4, 8);
    Seq *a = new_seq(pool, 6);
    Seq *b = fork_seq(a);
    print_table("both see:  A", a);
    print_table("           B", b);
    grow(a, 1);
    print_table("A wrote:   A", a);
    print_table("           B", b);
    grow(b, 1);
    print_table("B wrote:   A", a);
    print_table("           B", b);
    printf("Copies: %zu. A saw a count of 2 and copied; B then saw a count of 1.\n",
           pool->num_copies);
    finish(pool);
    share_system_prompt();
}

// One line for each block of 4 tokens, of head 0. Returns the first element of the attention.
static double print_online_softmax(const Seq *seq, const float *q, const float *k, const float *v)
{
    double m = -INFINITY, l = 0, o = 0;
    printf("block  scores                            m       l       o   o / l\n");
    for (int first = 0; first < seq->length; first += 4) {
        double scores[4] = {0};
        double old_m = m;
        int n = seq->length - first < 4 ? seq->length - first : 4;
        printf("%5d ", seq->block_table[first / 4]);
        for (int t = 0; t < n; t++) {
            for (int i = 0; i < HEAD_DIM; i++) scores[t] += (double)q[i] * k[(first + t) * ROW + i];
            scores[t] /= sqrt((double)HEAD_DIM);
            m = fmax(m, scores[t]);
            printf(" %6.3f", scores[t]);
        }
        l *= exp(old_m - m);  // what was added so far was relative to the old maximum
        o *= exp(old_m - m);
        for (int t = 0; t < n; t++) {
            l += exp(scores[t] - m);
            o += exp(scores[t] - m) * v[(first + t) * ROW];
        }
        printf("%*s %7.3f %7.3f %7.3f %7.3f\n", 7 * (4 - n), "", m, l, o, o / l);
    }
    return o / l;
}

static void scene_online_softmax(void)
{
    Pool *pool = new_pool(4, 8);
    Seq *seq = new_seq(pool, 10);
    int one = 1;
    Batch batch = {.num_seqs = 1, .seqs = &seq, .num_tokens = &one};
    float k[10 * ROW], v[10 * ROW], q[ROW], out[ROW] = {NAN};
    random_floats(k, 10 * ROW);  // not zeros, should seq_gather() leave them as they are
    random_floats(v, 10 * ROW);
    random_floats(q, ROW);
    MUST(seq_gather(seq, 0, k, v));
    MUST(pool_plan(pool, &batch));
    MUST(attend(pool, ATTEND_PAGED, 0, KV_HEADS, 0, q, out, NULL));
    double expected = print_online_softmax(seq, q, k, v);
    int same = fabs(expected - out[0]) <= 1e-6;
    printf("The last o / l is what attend() returned: %s.\n", same ? "yes" : "NO");
    if (!same) failures++;
    finish(pool);
}

// A request whose tokens are the letters of a text: what the prefix cache has is taken, the rest
// computed and published.
static Seq *serve(Pool *pool, const char *text)
{
    int n = (int)strlen(text);
    int tokens[64];
    Seq *seq;
    for (int i = 0; i < n; i++) tokens[i] = (unsigned char)text[i];
    MUST(seq_create(pool, &seq));
    MUST(seq_lookup(seq, tokens, n));
    printf("\"%s\": %d of %d tokens were found", text, seq->length, n);
    grow(seq, n - seq->length);
    MUST(seq_publish(seq, tokens, n));
    printf("; blocks");
    for (int i = 0; i < (int)arrlen(seq->block_table); i++) printf(" %d", seq->block_table[i]);
    printf("\n");
    pool_dump(pool, stdout);
    return seq;
}

static void scene_prefix_cache(void)
{
    printf("A token is a letter, a block 4 tokens. p: a free block that can be found.\n");
    Pool *pool = new_pool(4, 8);
    Seq *seq = serve(pool, "be kind. Hi");
    seq_release(seq);
    printf("The request ends:\n");
    pool_dump(pool, stdout);
    seq_release(serve(pool, "be kind. Bye"));
    printf("It ends, and a long one comes. It takes the blocks that hold nothing, then\n"
           "those that can be found, the least recently used and the ends of texts first:\n");
    seq_release(serve(pool, "once upon a time, in a land"));
    printf("After it, the beginning is still there:\n");
    serve(pool, "be kind. Hi");
    finish(pool);
}

// ---- main -------------------------------------------------------------------------------------

static const struct {
    int chapter;
    const char *title;
    void (*play)(void);
} SCENES[] = {
    {1, "What one token costs", scene_cost},
    {2, "Utilisation: reserved against paged", scene_reserve},
    {3, "Blocks on demand", scene_blocks},
    {4, "The block table", scene_block_table},
    {6, "Online softmax, block by block", scene_online_softmax},
    {8, "Sharing: samples, and a system prompt", scene_sharing},
    {9, "Prefill, decode, rewind", scene_decode},
    {10, "The prefix cache", scene_prefix_cache},
};
enum { NUM_SCENES = sizeof SCENES / sizeof SCENES[0] };

static const char *const USAGE =
    "usage: ./tour [--standin] [CHAPTER]\n"
    "The engine in scenes, numbered as the chapters: all of them, or one.\n\n"
    "  --standin  with the kernels for the GPU, run on the CPU\n\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {{"standin", no_argument, &device, PAGED_STANDIN},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    program = "tour";
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == '?') return 2;  // getopt_long() has said why
        if (option != 'h') continue;
        printf("%s", USAGE);
        for (int i = 0; i < NUM_SCENES; i++)
            printf("  %2d  %s\n", SCENES[i].chapter, SCENES[i].title);
        printf("\n%s", LEGEND);
        return finish_output(0);
    }
    int only = NUM_SCENES;  // the index of a scene; NUM_SCENES: all
    if (optind < argc) {
        int chapter = (int)parse_int("CHAPTER", argv[optind++], 1, INT_MAX);
        for (only = 0; only < NUM_SCENES && SCENES[only].chapter != chapter; only++) continue;
        if (only == NUM_SCENES) die(2, "chapter %d has no scene; 1-4, 6 and 8-10 do", chapter);
    }
    if (optind < argc) die(2, "one scene or all: '%s' is too much", argv[optind]);
    pool_destroy(new_pool(1, 1));  // a missing device is an error before anything is printed

    int all = only == NUM_SCENES;
    if (all) printf("PagedAttention in %d scenes. %s", NUM_SCENES, LEGEND);
    for (int i = 0; i < NUM_SCENES; i++) {
        if (!all && only != i) continue;
        if (all) printf("\n");
        printf("%d. %s\n", SCENES[i].chapter, SCENES[i].title);
        seed = 1;  // so that a scene prints the same with and without the others
        SCENES[i].play();
    }
    if (failures) fprintf(stderr, "tour: FAILED: %d\n", failures);
    return finish_output(failures > 0);
}
