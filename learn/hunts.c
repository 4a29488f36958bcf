// Ten small programs that use the engine, for `make hunt N=1` to N=10. A hunt builds them with
// a bug in the engine. Without it, each reads back the texts that it wrote and returns 0.
//
//     build/hunt-7 7
//
// Most of them keep texts in the cache. A token is a letter: its key encodes the position, its
// value the letter. Attention with a query for a position returns the value of that token, so a
// program can read a text back and show what the cache holds.

#include "paged.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 16, LONGEST = 80, MAX_LAYERS = 2, MAX_HEADS = 2 };

static int failed;

// Called when a program notices that something is wrong. Set a breakpoint here.
__attribute__((noinline)) static void noticed(void) { failed = 1; }

static void must(int error, const char *what)
{
    if (!error) return;
    printf("%s refuses: %s\n", what, paged_error(error));
    noticed();
    exit(1);
}

static Pool *new_pool(int num_layers, int num_heads, int block_size, int num_blocks, int device)
{
    PoolConfig config = {num_layers, num_heads, DIM, block_size, num_blocks, PAGED_F16, 0, device};
    Pool *pool;
    int error = pool_create(&config, &pool);
    if (error == PAGED_NO_GPU) {
        printf("This build has no stand-in for a GPU, which needs x86-64 or AArch64.\n");
        exit(2);
    }
    must(error, "pool_create()");
    return pool;
}

static Seq *new_seq(Pool *pool)
{
    Seq *seq;
    must(seq_create(pool, &seq), "seq_create()");
    return seq;
}

// The key of a position: its phases in periods of 3, 5, 7, ... tokens. The dot product of two keys
// is 8 for equal positions and at most a little above 5 for different ones below 80.
static void encode_position(int position, float *key)
{
    static const int periods[DIM / 2] = {3, 5, 7, 11, 13, 17, 19, 23};
    for (int i = 0; i < DIM / 2; i++) {
        double angle = 2 * M_PI * position / periods[i];
        key[2 * i] = (float)cos(angle);
        key[2 * i + 1] = (float)sin(angle);
    }
}

// The value of a letter: its eight bits, as 1 and -1.
static void encode_letter(char letter, float *value)
{
    memset(value, 0, DIM * sizeof *value);
    for (int i = 0; i < 8; i++) value[i] = letter >> i & 1 ? 1.0f : -1.0f;
}

static char decode_letter(const float *value)
{
    int letter = 0;
    for (int i = 0; i < 8; i++) {
        if (isnan(value[i])) return '?';
        if (value[i] > 0) letter |= 1 << i;
    }
    return (char)(letter < ' ' || letter > '~' ? '~' : letter);
}

// Stores K and V of the newest n tokens. lines[layer * num_kv_heads + head] are their letters.
static int write_letters(Seq *seq, int n, const char *const *lines)
{
    static float k[LONGEST * MAX_HEADS * DIM], v[LONGEST * MAX_HEADS * DIM];
    const PoolConfig *c = &seq->pool->config;
    Batch batch = {1, &seq, &n};
    int error = pool_plan(seq->pool, &batch);
    for (int layer = 0; layer < c->num_layers && !error; layer++) {
        for (int i = 0; i < n * c->num_kv_heads; i++) {
            int token = i / c->num_kv_heads;
            int head = i % c->num_kv_heads;
            encode_position(seq->length - n + token, k + (size_t)i * DIM);
            encode_letter(lines[layer * c->num_kv_heads + head][token], v + (size_t)i * DIM);
        }
        error = pool_write(seq->pool, layer, k, v);
    }
    return error;
}

static void say_all(Seq *seq, const char *const *lines)
{
    int n = (int)strlen(lines[0]);
    must(seq_append(seq, n), "seq_append()");
    must(write_letters(seq, n, lines), "pool_write()");
}

// The same letters in every layer and head.
static void say(Seq *seq, const char *text)
{
    const char *lines[MAX_LAYERS * MAX_HEADS] = {text, text, text, text};
    say_all(seq, lines);
}

// Reads the text of a sequence back with attention of its newest token: query head i of a KV head
// asks for position i.
static const char *recall(Seq *seq, int layer, int head)
{
    static char text[LONGEST + 1];
    static float q[LONGEST * MAX_HEADS * DIM], out[LONGEST * MAX_HEADS * DIM];
    const float sharp = 30;  // the right token gets all the weight
    int num_q_heads = seq->length * seq->pool->config.num_kv_heads;
    int one = 1;
    Batch batch = {1, &seq, &one};
    for (int i = 0; i < num_q_heads; i++) encode_position(i % seq->length, q + (size_t)i * DIM);
    must(pool_plan(seq->pool, &batch), "pool_plan()");
    must(attend(seq->pool, ATTEND_PAGED, layer, num_q_heads, sharp, q, out, NULL), "attend()");
    for (int i = 0; i < seq->length; i++)
        text[i] = decode_letter(out + ((size_t)head * seq->length + i) * DIM);
    text[seq->length] = 0;
    return text;
}

static void compare(const char *what, const char *expected, const char *got)
{
    printf("%s: \"%s\"\n", what, got);
    if (strcmp(expected, got) == 0) return;
    printf("    expected:     \"%s\"\n", expected);
    noticed();
}

// A new request for a text: takes what the prefix cache has of it, computes and publishes the rest.
// Returns the number of tokens found.
static int serve(Pool *pool, const char *const *lines, Seq **seq)
{
    int tokens[LONGEST];
    const char *rest[MAX_HEADS];
    int n = (int)strlen(lines[0]);
    for (int i = 0; i < n; i++) tokens[i] = lines[0][i];
    *seq = new_seq(pool);
    must(seq_lookup(*seq, tokens, n), "seq_lookup()");
    int found = (*seq)->length;
    for (int head = 0; head < pool->config.num_kv_heads; head++) rest[head] = lines[head] + found;
    say_all(*seq, rest);
    must(seq_publish(*seq, tokens, n), "seq_publish()");
    return found;
}

// ---- the programs -----------------------------------------------------------------------------

static void full_house(void)
{
    static const char *const texts[4] = {"the cats", "eat fish", "the dogs", "eat meat"};
    Pool *pool = new_pool(1, 1, 4, 8, PAGED_CPU);
    printf("4 requests of 8 letters, in 8 blocks of 4\n");
    for (int i = 0; i < 4; i++) {
        Seq *seq = new_seq(pool);
        must(seq_append(seq, 8), "seq_append()");
        must(write_letters(seq, 8, &texts[i]), "pool_write()");
        compare("a request says", texts[i], recall(seq, 0, 0));
    }
    pool_destroy(pool);
}

static void short_request(void)
{
    Pool *pool = new_pool(1, 1, 4, 16, PAGED_STANDIN);
    Seq *a = new_seq(pool);
    Seq *b = new_seq(pool);
    say(a, "good morning");
    compare("a long request says", "good morning", recall(a, 0, 0));
    say(b, "hi");
    compare("a short request says", "hi", recall(b, 0, 0));
    pool_destroy(pool);
}

static void two_layers(void)
{
    static const char *const lines[2] = {"sun moon stars", "day dusk night"};
    Pool *pool = new_pool(2, 1, 4, 8, PAGED_CPU);
    Seq *seq = new_seq(pool);
    say_all(seq, lines);
    compare("layer 0 says", lines[0], recall(seq, 0, 0));
    compare("layer 1 says", lines[1], recall(seq, 1, 0));
    pool_destroy(pool);
}

static void two_samples(void)
{
    Pool *pool = new_pool(2, 1, 8, 8, PAGED_CPU);
    Seq *a = new_seq(pool);
    Seq *old = new_seq(pool);
    Seq *b;
    say(a, "kitten");
    say(old, "rabbits!");
    seq_release(old);
    must(seq_fork(a, a->length, &b), "seq_fork()");
    say(b, " on a mat");
    say(a, " in a box");
    for (int layer = 0; layer < 2; layer++) {
        printf("layer %d\n", layer);
        compare("  sample a says", "kitten in a box", recall(a, layer, 0));
        compare("  sample b says", "kitten on a mat", recall(b, layer, 0));
    }
    if (!failed) pool_destroy(pool);
}

// Every value is 1, so the average is 1, whatever the weights are.
static void average_of_ones(void)
{
    Pool *pool = new_pool(1, 1, 4, 16, PAGED_CPU);
    Seq *seq = new_seq(pool);
    float key[DIM], ones[DIM], q[DIM], out[DIM];
    const int one = 1;
    Batch batch = {1, &seq, &one};
    for (int i = 0; i < DIM; i++) ones[i] = 1;
    for (int n = 1; n <= 60; n++) {
        encode_position(n, key);
        encode_position(23, q);
        must(seq_append(seq, 1), "seq_append()");
        must(pool_plan(pool, &batch), "pool_plan()");
        must(pool_write(pool, 0, key, ones), "pool_write()");
        must(attend(pool, ATTEND_PAGED, 0, 1, 0, q, out, NULL), "attend()");
        int right = fabsf(out[0] - 1) < 1e-4f;
        if (n % 10 == 0 || !right) printf("the average of %d ones is %.3f\n", n, out[0]);
        if (!right) noticed();
        if (!right) break;
    }
    pool_destroy(pool);
}

// The second head knows which animal the text is about.
static void who_eats(void)
{
    static const char *const who[] = {"cats", "dogs", "cows", "hens", "pigs",
                                      "rats", "bees", "ants", "owls", "crow"};
    Pool *pool = new_pool(1, 2, 4, 32, PAGED_CPU);
    for (int i = 0; i < 10; i++) {
        char text[10], subject[10], what[60];
        const char *const lines[2] = {text, subject};
        Seq *seq;
        snprintf(text, sizeof text, "%s eat.", who[i]);
        snprintf(subject, sizeof subject, "%s%s%c", who[i], who[i], who[i][0]);
        serve(pool, lines, &seq);
        snprintf(what, sizeof what, "asked who it is about, \"%s\" says", text);
        compare(what, subject, recall(seq, 0, 1));
    }
    pool_destroy(pool);
}

static void system_prompt(void)
{
    static const char *const prompt = "you are helpful.";
    static const char *const others[] = {"one", "two", "three", "four"};
    Pool *pool = new_pool(1, 1, 4, 32, PAGED_CPU);
    for (int round = 0; round < 3; round++) {
        char text[LONGEST];
        const char *const lines[1] = {text};
        Seq *seq;
        snprintf(text, sizeof text, "%s round %d", prompt, round);
        int found = serve(pool, lines, &seq);
        printf("round %d: the prompt has 16 letters, and %d letters are found\n", round, found);
        if (round > 0 && found < 16) noticed();
        compare("  it says", text, recall(seq, 0, 0));
        seq_release(seq);
        for (int i = 0; i < 4; i++) {  // small requests, which are not published
            seq = new_seq(pool);
            say(seq, others[i]);
            seq_release(seq);
        }
    }
    pool_destroy(pool);
}

static void news(void)
{
    static const char *const texts[] = {"rain.", "snow!", "wind.", "hail!",
                                        "fog..", "sun!!", "heat."};
    Pool *pool = new_pool(1, 1, 4, 4, PAGED_CPU);
    for (int i = 0; i < 28; i++) {
        const char *text = texts[(3 * i + i / 7) % 7];
        Seq *seq;
        serve(pool, &text, &seq);
        compare("the news", text, recall(seq, 0, 0));
        seq_release(seq);
    }
    pool_destroy(pool);
}

static void kernel_says(const char *text)
{
    Pool *pool = new_pool(1, 1, 4, 16, PAGED_STANDIN);
    Seq *seq = new_seq(pool);
    say(seq, text);
    compare("it says", text, recall(seq, 0, 0));
    pool_destroy(pool);
}

static void another_order(void)
{
    setenv("PAGED_LANE_ORDER", "1", 0);  // descending
    kernel_says("the quick brown fox jumps");
}

static void two_opinions(void) { kernel_says("the lazy dog"); }

int main(int argc, char **argv)
{
    static void (*const programs[])(void) = {
        full_house, short_request, two_layers, two_samples,   average_of_ones,
        who_eats,   system_prompt, news,       another_order, two_opinions};
    int n = argc == 2 ? atoi(argv[1]) : 0;
    if (n < 1 || n > (int)(sizeof programs / sizeof *programs)) {
        fprintf(stderr, "usage: %s N, a number from 1 to 10\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);  // so that a crash loses no line
    programs[n - 1]();
    return failed;
}
