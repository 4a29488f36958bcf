// tour: what ./paged prints. It is the last part of paged.cu.c, which includes this file.
//
// The examples of the public texts on PagedAttention, each on a pool of its own. Bytes come from
// the shapes of real models; every count is read off a live pool, small in layers and heads.
// Whatever is done to a sequence is done to its twin, an oracle, as well; at the end of a chapter
// their attention is compared.

#include <unistd.h>

static int failures, waits, device = PAGED_CPU;  // waits: --step was given; device: --gpu was
static const char *bold = "", *plain = "";
static uint64_t seed;
static struct {
    Seq *key;
    Oracle *value;
} * twins;  // a map of stb_ds

static const double MIB = 1 << 20;
static const PoolConfig GPT = {32, 32,        128, 16,
                               1,  PAGED_F16, 0,   PAGED_CPU};  // the model of the examples

static void must(int error)
{
    if (error) fprintf(stderr, "paged: %s\n", paged_error(error));
    if (error) exit(1);
}

static void pause_tour(void)
{
    if (!waits) return;
    printf("%s[return]%s ", bold, plain);
    fflush(stdout);
    for (int c = 0; c != '\n' && c != EOF;) c = getchar();
}

static double uniform(void)  // in [0, 1): splitmix64 (Steele, Lea, Flood 2014)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static float *random_tensor(int rows, int heads, int head_dim)  // an array of stb_ds
{
    float *x = NULL;
    arrsetlen(x, (size_t)rows * heads * head_dim);
    for (size_t i = 0; i < arrlenu(x); i++) x[i] = (float)(2 * uniform() - 1);
    return x;
}

// A copy of a tensor where the pool lives; with back, copies it from there and frees it there.
static float *there(const Pool *pool, const float *x)
{
    float *copy = tensor_create(pool, arrlenu(x));
    must(copy ? PAGED_OK : PAGED_OUT_OF_MEMORY);
    tensor_copy(pool, copy, x, arrlenu(x));
    return copy;
}

static void back(const Pool *pool, float *x, float *copy)
{
    tensor_copy(pool, x, copy, arrlenu(x));
    tensor_free(pool, copy);
}

// A pool whose free list begins with the n blocks of `order`: takes all, gives these back last.
static Pool *new_pool(int block_size, int num_blocks, const int *order, int n)
{
    PoolConfig config = {2, 2, 8, block_size, num_blocks, PAGED_F32, 1, device};
    Pool *pool;
    must(pool_create(&config, &pool));
    Seq *all[16], *last[16];
    for (int b = 0; n > 0 && b < num_blocks; b++) {
        must(seq_create(pool, &all[b]));
        must(seq_append(all[b], 1));
    }
    for (int i = 0; i < n; i++) last[i] = all[order[i]], all[order[i]] = NULL;
    for (int b = num_blocks - 1; n > 0 && b >= 0; b--) seq_release(all[b]);
    for (int i = n - 1; i >= 0; i--) seq_release(last[i]);
    return pool;
}

// n more tokens with random K and V, for a sequence and its twin.
static void grow(Seq *seq, int n)
{
    const PoolConfig *c = &seq->pool->config;
    Oracle *twin = hmget(twins, seq);
    Batch batch = {1, &seq, &n};
    must(seq_append(seq, n));
    must(oracle_append(twin, n));
    for (int layer = 0; layer < c->num_layers; layer++) {
        float *k = random_tensor(n, c->num_kv_heads, c->head_dim);
        float *v = random_tensor(n, c->num_kv_heads, c->head_dim);
        float *k_there = there(seq->pool, k), *v_there = there(seq->pool, v);
        must(pool_write(seq->pool, layer, &batch, k_there, v_there));
        must(oracle_write(twin, layer, n, k, v));
        tensor_free(seq->pool, k_there);
        tensor_free(seq->pool, v_there);
        arrfree(k);
        arrfree(v);
    }
}

static Seq *new_seq(Pool *pool, int n)
{
    Seq *seq;
    Oracle *twin;
    must(seq_create(pool, &seq));
    must(oracle_create(&pool->config, 2048, &twin));
    hmput(twins, seq, twin);
    grow(seq, n);
    return seq;
}

static Seq *fork_seq(const Seq *parent)
{
    Seq *child, *key = parent->pool->seqs[parent->index];
    Oracle *twin;
    must(seq_fork(parent, parent->length, &child));
    must(oracle_fork(hmget(twins, key), parent->length, &twin));
    hmput(twins, child, twin);
    return child;
}

static void release(Seq *seq)
{
    oracle_release(hmget(twins, seq));
    (void)hmdel(twins, seq);
    seq_release(seq);
}

// The newest tokens of a sequence attend, by each method, in every layer, as its twin says.
static int agrees(Seq *seq)
{
    const PoolConfig *c = &seq->pool->config;
    Oracle *twin = hmget(twins, seq);
    int n = seq->length < 3 ? seq->length : 3, num_q_heads = 2 * c->num_kv_heads, same = 1;
    float *q = random_tensor(n, num_q_heads, c->head_dim), *out = NULL, *expected = NULL;
    arrsetlen(out, arrlenu(q));
    arrsetlen(expected, arrlenu(q));
    Batch batch = {1, &seq, &n};
    for (int i = 0; i < 3 * c->num_layers; i++) {
        float *q_there = there(seq->pool, q), *out_there = there(seq->pool, q);
        must(attend(seq->pool, i % 3, i / 3, &batch, num_q_heads, 0, q_there, out_there, NULL));
        must(oracle_attend(twin, i / 3, n, num_q_heads, 0, q, expected, NULL));
        tensor_free(seq->pool, q_there);
        back(seq->pool, out, out_there);
        for (size_t j = 0; j < arrlenu(q); j++)
            if (!(fabsf(out[j] - expected[j]) <= 1e-6f)) same = 0;  // so written, NaN differs
    }
    arrfree(q);
    arrfree(out);
    arrfree(expected);
    return same;
}

// Ends a pool of the tour: compares, recounts, and gives everything back.
static void finish(Pool *pool)
{
    const char *wrong = pool_check(pool);
    while (arrlen(pool->seqs) > 0) {
        if (!agrees(arrlast(pool->seqs))) wrong = "attention is not within 1e-6 of the oracle";
        release(arrlast(pool->seqs));
    }
    if (!wrong && pool->num_free != pool->config.num_blocks) wrong = "blocks were lost";
    printf("[%s] %s\n", wrong ? "FAILED" : "ok",
           wrong ? wrong
                 : "attention within 1e-6 of the oracle; all blocks counted and given back");
    failures += wrong != NULL;
    pool_destroy(pool);
    pause_tour();
}

static int blocks_used(const Pool *pool) { return pool->config.num_blocks - pool->num_free; }

// name [table] counts [of its blocks], with room for `width` entries.
static void print_table(const char *name, const Seq *seq, int width)
{
    int entries = (int)arrlen(seq->block_table);
    printf("%s [", name);
    for (int i = 0; i < entries; i++) printf("%3d", seq->block_table[i]);
    printf("%.*s ]  counts [", 3 * (width - entries), "  x  x  x");
    for (int i = 0; i < entries; i++)
        printf("%2d", seq->pool->blocks[seq->block_table[i]].ref_count);
    printf(" ]  %d in the last\n", (seq->length - 1) % seq->pool->config.block_size + 1);
}

static void chapter_cost(void)
{
    PoolConfig gqa = GPT, opt = {48, 56, 128, 16, 1, PAGED_F16, 0, PAGED_CPU};
    gqa.num_kv_heads = 8;
    printf("2 (K and V) x %d layers x %d heads x %d dims x 2 bytes (f16) = %zu bytes\n"
           "for every token: %zu KiB. There is no cache of queries: only the newest counts.\n"
           "With %d KV heads that the %d query heads share (GQA): %zu KiB.\n"
           "OPT-30B, %d layers x %d dims, 128 requests of 1024 tokens: %.1f GB of\n"
           "K and V, beside about 60 GB of weights.\n",
           GPT.num_layers, GPT.num_kv_heads, GPT.head_dim, pool_bytes_per_token(&GPT),
           pool_bytes_per_token(&GPT) / 1024, gqa.num_kv_heads, GPT.num_kv_heads,
           pool_bytes_per_token(&gqa) / 1024, opt.num_layers, opt.num_kv_heads * opt.head_dim,
           (double)pool_bytes_per_token(&opt) * 1024 * 128 / 1e9);
    pause_tour();
}

static void chapter_reserve(void)
{
    // Reserving is paging, too: with one block a request, as long as the longest request.
    Pool *pool = new_pool(2048, 1, NULL, 0);
    Seq *seq = new_seq(pool, 500);
    double reserved = (double)pool_bytes_per_token(&GPT) * pool->config.block_size / MIB;
    double used = (double)pool_bytes_per_token(&GPT) * seq->length / MIB;
    printf("At most %d tokens, %d on average: a request reserves %.0f MiB and uses\n"
           "%.0f MiB, %.1f %%. Wasted: %.0f MiB a request, %.1f GiB over 100 requests.\n",
           pool->config.block_size, seq->length, reserved, used, 100 * used / reserved,
           reserved - used, 100 * (reserved - used) / 1024);
    finish(pool);
}

static void chapter_blocks(void)
{
    static const int lengths[5] = {320, 48, 160, 96, 272};
    Pool *pool = new_pool(16, 512, NULL, 0);
    Seq *seqs[5];
    for (int i = 0; i < 5; i++) {
        seqs[i] = new_seq(pool, lengths[i]);
        printf("request %d: %3d tokens in %2d blocks, %2d to %2d\n", i, seqs[i]->length,
               (int)arrlen(seqs[i]->block_table), seqs[i]->block_table[0],
               arrlast(seqs[i]->block_table));
    }
    pool_dump(pool, stdout);
    printf("Request 1 is done and gives its blocks back:\n");
    release(seqs[1]);
    pool_dump(pool, stdout);
    printf("The next request starts in block %d.\n", new_seq(pool, 1)->block_table[0]);
    finish(pool);
}

static void chapter_copy_on_write(void)
{
    Pool *pool = new_pool(16, 32, NULL, 0);
    Seq *prompt = new_seq(pool, 200), *requests[10];
    int apart = 10 * blocks_used(pool);
    for (int i = 0; i < 10; i++) requests[i] = fork_seq(prompt);
    int together = blocks_used(pool);
    double mib = (double)pool_bytes_per_block(&GPT) / MIB;
    printf("Ten requests share a system prompt of %d tokens ('+': 10 or more references).\n",
           prompt->length);
    pool_dump(pool, stdout);
    seq_dump(requests[3], stdout);
    printf("Counts of %d: the ten, and the prompt's own handle. %d blocks in place of %d;\n"
           "at 512 KiB a token %.0f MiB in place of %.0f MiB: %d blocks, %.1f MiB saved.\n",
           pool->blocks[12].ref_count, together, apart, together * mib, apart * mib,
           apart - together, (apart - together) * mib);
    pause_tour();

    printf("Request 3 writes its first own token, into a copy of the last block:\n");
    grow(requests[3], 1);
    seq_dump(requests[3], stdout);
    printf("Copies: %ld. The nine others still read block 12; its count is %d.\n"
           "The handle of the prompt is released, and the nine others write:\n",
           pool->num_copies, pool->blocks[12].ref_count);
    release(prompt);
    for (int i = 0; i < 10; i++)
        if (i != 3) grow(requests[i], 1);
    pool_dump(pool, stdout);
    printf("Copies: %ld for ten writers. The last found a count of 1 and wrote in place.\n",
           pool->num_copies);
    finish(pool);
}

static void chapter_utilisation(void)
{
    static const int batches[5] = {10, 25, 50, 100, 200};
    printf("Lengths: normal, mean 500, sd 200, clipped to [200, 2048].\n"
           "requests   2048 slots reserved for each       blocks of 16\n");
    for (int b = 0; b < 5; b++) {
        Pool *pools[2] = {new_pool(2048, batches[b], NULL, 0),
                          new_pool(16, batches[b] * 128, NULL, 0)};
        double tokens = 0, pi = 3.14159265358979;
        for (int i = 0; i < batches[b]; i++) {
            double normal = sqrt(-2 * log(1 - uniform()));  // Box and Muller 1958
            normal *= cos(2 * pi * uniform());
            int length = (int)fmin(fmax(500 + 200 * normal, 200), 2048);
            for (int p = 0; p < 2; p++) {
                Seq *seq;
                must(seq_create(pools[p], &seq));
                must(seq_append(seq, length));
            }
            tokens += length;
        }
        printf("%8d", batches[b]);
        for (int p = 0; p < 2; p++) {
            double in_use = tokens / ((double)blocks_used(pools[p]) * pools[p]->config.block_size);
            int bar = (int)(20 * in_use + 0.5);
            printf("   %4.1f %% %.*s%.*s", 100 * in_use, bar, "####################", 20 - bar,
                   "....................");
            pool_destroy(pools[p]);
        }
        printf("\n");
    }
    printf("Reserving wastes the same at every batch size: it is in the design. Paging\n"
           "wastes the unfilled slots of each last block, %d at most.\n",
           16 - 1);
    pause_tour();
}

static void chapter_block_table(void)
{
    static const int order[3] = {1, 5, 3}, turing[3] = {7, 1, 5}, lengths[4] = {60, 32, 40, 12};
    static const char *const words[9] = {
        "Alan", "Turing", "is", "a", "computer", "scientist", "and", "mathematician", "renowned"};
    Pool *pool = new_pool(16, 8, order, 3);
    Seq *seq = new_seq(pool, 38);
    seq_dump(seq, stdout);
    for (int t = 5; t < 38; t += 16)
        printf("token %2d: entry %2d / 16 = %d of the table is block %d; slot %2d %% 16 = %d\n", t,
               t, t / 16, seq->block_table[t / 16], t, t % 16);
    finish(pool);

    printf("Four sequences; a batch passes their tables as one padded array:\n");
    pool = new_pool(16, 12, NULL, 0);
    for (int i = 0; i < 4; i++) print_table("", new_seq(pool, lengths[i]), 4);
    printf("The next free block is %d.\n", pool->blocks[pool->config.num_blocks].next);
    finish(pool);

    printf("Blocks of 4, one word a token:\n");
    pool = new_pool(4, 8, turing, 3);
    seq = new_seq(pool, 9);
    for (int t = 0; t < 9; t++) {
        if (t % 4 == 0) printf("  block %d:", seq->block_table[t / 4]);
        printf(" %s%s", words[t], t % 4 == 3 || t == 8 ? "\n" : "");
    }
    finish(pool);
}

static void chapter_decode(void)
{
    static const int order[6] = {7, 2, 12, 5, 3, 9};
    Pool *pool = new_pool(4, 16, order, 6);
    Seq *a = new_seq(pool, 6);
    print_table("prefill, 6 tokens:", a, 2);
    grow(a, 1);
    print_table("decode, 1 more:   ", a, 2);
    printf("Block %d was not touched.\n", a->block_table[0]);
    Seq *b = new_seq(pool, 9);
    print_table("another, 9 tokens:", b, 3);
    printf("Its next token goes to slot %d of block %d.\n", b->length % 4,
           b->block_table[b->length / 4]);
    grow(b, 8);
    grow(b, 1);
    printf("At %d tokens, decode writes one row; to repack a dense copy moves all %d.\n", b->length,
           b->length);
    pause_tour();

    printf("Speculation: four drafted tokens are appended; three are rejected and rewound.\n");
    grow(b, 4);
    seq_dump(b, stdout);
    pool_dump(pool, stdout);
    must(seq_rewind(b, 3));
    must(oracle_rewind(hmget(twins, b), 3));
    seq_dump(b, stdout);
    pool_dump(pool, stdout);
    finish(pool);
}

static void chapter_sampling(void)
{
    static const int order[5] = {2, 6, 9, 11, 14};
    printf("Three candidates of one prompt of two full blocks, each with a token of its own:\n");
    Pool *pool = new_pool(4, 16, order, 5);
    Seq *seqs[3] = {new_seq(pool, 8), NULL, NULL};
    for (int i = 1; i < 3; i++) seqs[i] = fork_seq(seqs[0]);
    for (int i = 0; i < 3; i++) grow(seqs[i], 1);
    for (int i = 0; i < 3; i++) print_table("candidate", seqs[i], 3);
    pool_dump(pool, stdout);
    printf("Copies: %ld. A full block is never written again, so it stays shared.\n",
           pool->num_copies);
    finish(pool);

    printf("Two samples, A and B, of a prompt that ends inside a block:\n");
    pool = new_pool(4, 8, NULL, 0);
    Seq *a = new_seq(pool, 6), *b = fork_seq(a);
    print_table("both see:  A", a, 2);
    print_table("           B", b, 2);
    grow(a, 1);
    print_table("A wrote:   A", a, 2);
    print_table("           B", b, 2);
    grow(b, 1);
    print_table("B wrote:   A", a, 2);
    print_table("           B", b, 2);
    printf("Copies: %ld. A saw a count of 2 and copied; B then saw a count of 1.\n",
           pool->num_copies);
    finish(pool);
}

static void chapter_online_softmax(void)
{
    Pool *pool = new_pool(4, 8, NULL, 0);
    Seq *seq = new_seq(pool, 10);
    const PoolConfig *c = &pool->config;
    int n = 1, row = c->num_kv_heads * c->head_dim;  // floats from one token to the next
    Batch batch = {1, &seq, &n};
    float *k = random_tensor(10, 1, row), *v = random_tensor(10, 1, row);
    float *q = random_tensor(1, 1, row), *out = random_tensor(1, 1, row);
    float *k_there = there(pool, k), *v_there = there(pool, v);
    float *q_there = there(pool, q), *out_there = there(pool, out);
    must(seq_gather(seq, 0, k_there, v_there));
    must(attend(pool, ATTEND_PAGED, 0, &batch, c->num_kv_heads, 0, q_there, out_there, NULL));
    tensor_free(pool, q_there);
    back(pool, k, k_there);
    back(pool, v, v_there);
    back(pool, out, out_there);

    double m = -INFINITY, l = 0, o = 0;  // of head 0, and of o the first element
    printf("block  scores                            m       l       o   o / l\n");
    for (int j = 0; j < 3; j++) {
        double score[4], old_m = m, sum = 0, acc = 0;
        int tokens = j < 2 ? 4 : 2;
        printf("%5d ", seq->block_table[j]);
        for (int t = 0; t < tokens; t++) {
            score[t] = 0;
            for (int i = 0; i < c->head_dim; i++)
                score[t] += (double)q[i] * k[(4 * j + t) * row + i] / sqrt((double)c->head_dim);
            m = fmax(m, score[t]);
            printf(" %6.3f", score[t]);
        }
        for (int t = 0; t < tokens; t++) {
            sum += exp(score[t] - m);
            acc += exp(score[t] - m) * v[(4 * j + t) * row];
        }
        l = exp(old_m - m) * l + sum;
        o = exp(old_m - m) * o + acc;
        printf("%*s %7.3f %7.3f %7.3f %7.3f\n", 7 * (4 - tokens), "", m, l, o, o / l);
    }
    int same = fabs(o / l - out[0]) <= 1e-6;
    printf("The last o / l is what attend() returned: %s.\n", same ? "yes" : "NO");
    failures += !same;
    arrfree(k);
    arrfree(v);
    arrfree(q);
    arrfree(out);
    finish(pool);
}

// A request whose tokens are the letters of a text: what the prefix cache has is taken, the rest
// computed and published. `known` has K and V of what is found.
static Seq *serve(Pool *pool, const char *text, const Oracle *known)
{
    int n = (int)strlen(text), tokens[64];
    Seq *seq;
    Oracle *twin;
    for (int i = 0; i < n; i++) tokens[i] = text[i];
    must(seq_create(pool, &seq));
    must(seq_lookup(seq, tokens, n));
    if (known)
        must(oracle_fork(known, seq->length, &twin));
    else
        must(oracle_create(&pool->config, 2048, &twin));
    hmput(twins, seq, twin);
    printf("\"%s\": %d of %d tokens were found", text, seq->length, n);
    grow(seq, n - seq->length);
    must(seq_publish(seq, tokens, n));
    printf("; blocks");
    for (int i = 0; i < (int)arrlen(seq->block_table); i++) printf(" %d", seq->block_table[i]);
    printf("\n");
    pool_dump(pool, stdout);
    return seq;
}

static void chapter_prefix_cache(void)
{
    printf("A token is a letter, a block 4 tokens. p: a free block that can be found.\n");
    Pool *pool = new_pool(4, 8, NULL, 0);
    Oracle *known;
    Seq *seq = serve(pool, "be kind. Hi", NULL);
    must(oracle_fork(hmget(twins, seq), seq->length, &known));
    release(seq);
    printf("The request ends:\n");
    pool_dump(pool, stdout);
    release(serve(pool, "be kind. Bye", known));
    printf("It ends, and a long one comes. It takes the blocks that hold nothing, then\n"
           "those that can be found, the least recently used and the ends of texts first:\n");
    release(serve(pool, "once upon a time, in a land", NULL));
    printf("After it, the beginning is still there:\n");
    serve(pool, "be kind. Hi", known);
    oracle_release(known);
    finish(pool);
}

int main(int argc, char **argv)
{
    enum { CHAPTERS = 10 };
    static const struct {
        const char *title;
        void (*run)(void);
    } chapters[CHAPTERS] = {
        {"What one token costs", chapter_cost},
        {"Reserving the maximum", chapter_reserve},
        {"Blocks on demand", chapter_blocks},
        {"Copy-on-write of a shared system prompt", chapter_copy_on_write},
        {"Utilisation: reserved against paged", chapter_utilisation},
        {"The block table", chapter_block_table},
        {"Prefill, decode, rewind", chapter_decode},
        {"Parallel sampling", chapter_sampling},
        {"Online softmax, block by block", chapter_online_softmax},
        {"The prefix cache", chapter_prefix_cache},
    };
    int only = -1;
    for (int i = 1; i < argc; i++) {
        int help = strcmp(argv[i], "--help") == 0, number = atoi(argv[i]);
        if (strcmp(argv[i], "--step") == 0) {
            waits = 1;
        } else if (strcmp(argv[i], "--gpu") == 0) {
            device = PAGED_GPU;
        } else if (number >= 1 && number <= CHAPTERS &&
                   strspn(argv[i], "0123456789") == strlen(argv[i])) {
            only = number - 1;
        } else {
            FILE *to = help ? stdout : stderr;
            if (!help) fprintf(to, "paged: unknown argument '%s'\n", argv[i]);
            fprintf(to, "usage: ./paged [--step] [--gpu] [CHAPTER]\n");
            fprintf(to,
                    "--step waits for return; --gpu runs the kernels (without nvcc: on the CPU)\n");
            for (int n = 0; n < CHAPTERS; n++) fprintf(to, " %2d  %s\n", n + 1, chapters[n].title);
            return help ? 0 : 2;
        }
    }
    if (isatty(1) && !getenv("NO_COLOR")) bold = "\033[1m", plain = "\033[0m";
    for (int n = 0; n < CHAPTERS; n++) {
        if (only >= 0 && only != n) continue;
        seed = 1;  // a chapter alone prints what it prints in the whole tour
        printf("%s%d. %s%s\n", bold, n + 1, chapters[n].title, plain);
        chapters[n].run();
        if (only < 0 && n < CHAPTERS - 1) printf("\n");
    }
    hmfree(twins);
    if (failures) fprintf(stderr, "paged: FAILED: %d\n", failures);
    return failures > 0;
}
