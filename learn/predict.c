// Exercises that ask for numbers, to be worked out on paper.
//
//     make exercise N=6a                      prints the question
//     make exercise N=6a ANSWER="3 2.5 4"     judges your numbers, in the order of the question
//
// The functions below get the right numbers from the engine. The explanations, which are printed
// once your numbers are right, are at the end of this file: read them last.

#define EXERCISE "predict"
#include "exercise.h"

enum { QUESTIONS = 7, MOST = 5 };  // MOST: answers to a question

typedef void Right(double *right);  // fills in the right numbers
static Right right_1a, right_2a, right_5a, right_6a, right_7a, right_11a, right_14a;

typedef struct Question {
    const char *name, *text;
    int count;  // of answers
    Right *right;
} Question;

static const Question questions[QUESTIONS] = {
    {"1a",
     "The memory that a Llama-3-8B leaves for its cache has room for 40 requests of\n"
     "8192 tokens, in 16 bits. How many would fit if you changed one thing: 64 query\n"
     "heads instead of 32? 2 KV heads instead of 8? K and V in 32 bits? 16 KV heads\n"
     "of 64 numbers instead of 8 of 128? Requests of 2048 tokens?",
     5, right_1a},
    {"2a",
     "A memory has 64 slots, and many requests wait. Each has a prompt of 5 tokens and\n"
     "will end at 12 tokens, which the server does not know: 16 is the longest that it\n"
     "allows. How many requests run at once if each reserves 16 slots? In blocks of 4\n"
     "slots, how many prompts fit at once? And how many requests have room when all of\n"
     "them have grown to 12 tokens?",
     3, right_2a},
    {"5a",
     "A pool has 3 layers, 2 KV heads, head_dim 8 and blocks of 4 tokens, in f16. A\n"
     "batch has four sequences, of 5, 30, 100 and 13 tokens. The first, second and\n"
     "fourth bring one new token each; the third brings none in this step. How many\n"
     "bytes does the dense copy take that attend() makes for ATTEND_GATHER, in f16,\n"
     "too? And how many bytes more than with ATTEND_PAGED does a whole step move, in\n"
     "all layers? Attention through the table reads K and V once; gather reads them,\n"
     "writes the copy and reads that.",
     2, right_5a},
    {"6a",
     "Four tokens have the keys 0, ln 2, ln 4 and ln 8 and the values 1, 2, 3 and 4;\n"
     "head_dim is 1, and each query is 1, so the keys are the scores. What is the\n"
     "output for the newest token? For the one before it? And what is l, the sum of\n"
     "exp(score - m), at the end of the newest row? Answers within 0.001 count.",
     3, right_6a},
    {"7a",
     "Two sequences of 1300 and 101 tokens attend with one query token each, on a\n"
     "GPU, with ATTEND_PAGED: 12 query heads, 2 KV heads, head_dim 64. How many\n"
     "thread blocks run attend_paged()? How often do threads meet at a barrier, over\n"
     "all thread blocks? And how often do lanes meet at a shuffle, over all warps?",
     3, right_7a},
    {"11a",
     "A pool of 7 blocks of 4 tokens serves three requests: A has a prompt of 6 tokens\n"
     "and ends when 14 are in the cache, B has 5 and ends at 13, C has 3 and ends at\n"
     "15. A step works as in schedule() of examples/llama.c. The running requests get\n"
     "room for all their known tokens, the oldest first; a request that finds none\n"
     "preempts the newest one, perhaps itself. Then requests leave the queue, as long\n"
     "as all known tokens of the first one fit. At the end of the step each running\n"
     "request knows one more token. How often is a request preempted? How many tokens\n"
     "are computed a second time? (A preempted request loses seq->length tokens.)",
     2, right_11a},
    {"14a",
     "One decode step, one layer, of 8 sequences of 1000 tokens each, cached in bf16.\n"
     "The model has 24 query heads, 8 KV heads and a head_dim of 64. How many bytes of\n"
     "K and V must be read at least? And how many multiply-adds use them, for scores\n"
     "and values (without exp() and the sums of weights)?",
     2, right_14a}};

// ---- the engine's answers ---------------------------------------------------------------------

static void right_1a(double *right)
{
    const PoolConfig llama = {32, 8, 128, 16, 0, PAGED_F16, 0, PAGED_CPU};
    const PoolConfig changed[5] = {llama,  // the number of query heads is no part of it
                                   {32, 2, 128, 16, 0, PAGED_F16, 0, PAGED_CPU},
                                   {32, 8, 128, 16, 0, PAGED_F32, 0, PAGED_CPU},
                                   {32, 16, 64, 16, 0, PAGED_F16, 0, PAGED_CPU},
                                   llama};
    size_t memory = 40 * 8192 * pool_bytes_per_token(&llama);
    for (int i = 0; i < 5; i++)
        right[i] = (double)(memory / pool_bytes_per_token(&changed[i]) / (i < 4 ? 8192 : 2048));
}

static void right_2a(double *right)
{
    const int block_sizes[3] = {16, 4, 4};  // reserving is paging in blocks of the longest length
    const int lengths[3] = {5, 5, 12};
    for (int i = 0; i < 3; i++) {
        Pool *pool = new_pool(1, 1, 1, block_sizes[i], 64 / block_sizes[i]);
        int per_seq = ceil_div(lengths[i], block_sizes[i]);
        for (; pool->num_free >= per_seq; right[i]++) new_seq(pool, lengths[i]);
        pool_destroy(pool);
    }
}

static void right_5a(double *right)
{
    const PoolConfig config = {3, 2, 8, 4, 50, PAGED_F16, 1, PAGED_CPU};
    size_t copy = (5 + 30 + 13) * pool_bytes_per_token(&config) / config.num_layers;
    right[0] = (double)copy;
    right[1] = (double)(2 * copy * config.num_layers);
}

static void right_6a(double *right)
{
    const float k[4] = {0, logf(2), logf(4), logf(8)};
    const float v[4] = {1, 2, 3, 4};
    const float q[4] = {1, 1, 1, 1};
    float out[4], lse[4];
    Pool *pool = new_pool(1, 1, 1, 2, 2);
    compute(new_seq(pool, 4), 4, k, v);
    must(attend(pool, ATTEND_PAGED, 0, 1, 0, q, out, lse));
    right[0] = out[3];
    right[1] = out[2];
    right[2] = exp((double)lse[3] - k[3]);  // lse is m + log(l), and the largest score is the last
    pool_destroy(pool);
}

#ifdef PAGED_NO_STANDIN
static void right_7a(double *right)
{
    (void)right;
    no_standin();
}
#else
// A Meeting counts how often it has taken place.
static long count_shuffles(void)
{
    long sum = 0;
    for (int warp = 0; warp < WARPS; warp++) sum += gpu.warps[warp].generation;
    return sum;
}

static void right_7a(double *right)
{
    enum { DIM = 64, KV_HEADS = 2, Q_HEADS = 12, LONG = 1300, SHORT = 101 };
    static float kv[LONG * KV_HEADS * DIM], q[2 * Q_HEADS * DIM], out[2 * Q_HEADS * DIM];
    const PoolConfig config = {1, KV_HEADS, DIM, 16, 100, PAGED_F16, 0, PAGED_STANDIN};
    const int newest[2] = {1, 1};
    Pool *pool = new_pool_of(config);
    Seq *seqs[2] = {new_seq(pool, LONG), new_seq(pool, SHORT)};
    compute(seqs[0], LONG, kv, kv);
    compute(seqs[1], SHORT, kv, kv);
    Batch decode = {2, seqs, newest};
    must(pool_plan(pool, &decode));
    long barriers = gpu.block.generation;
    long shuffles = count_shuffles();
    must(attend(pool, ATTEND_PAGED, 0, Q_HEADS, 0, q, out, NULL));
    right[0] = (double)gridDim.x * gridDim.y * gridDim.z;
    right[1] = (double)(gpu.block.generation - barriers);
    right[2] = (double)(count_shuffles() - shuffles);
    pool_destroy(pool);
}
#endif

static void right_11a(double *right)
{
    int known[3] = {6, 5, 3};
    const int end[3] = {14, 13, 15};
    Seq *seqs[3] = {NULL};  // those that run; a preempted one waits before the newer ones
    Pool *pool = new_pool(1, 1, 1, 4, 7);
    for (int step = 1; step <= 20; step++) {
        for (int r = 0; r < 3; r++)
            while (seqs[r] && seq_append(seqs[r], known[r] - seqs[r]->length)) {
                int newest = 2;
                while (!seqs[newest]) newest--;
                right[0]++;
                right[1] += seqs[newest]->length;
                seq_release(seqs[newest]);
                seqs[newest] = NULL;
            }
        for (int r = 0; r < 3; r++) {
            if (seqs[r] || known[r] > end[r]) continue;
            if (ceil_div(known[r], 4) > pool->num_free) break;
            seqs[r] = new_seq(pool, known[r]);
        }
        for (int r = 0; r < 3; r++) {
            if (!seqs[r]) continue;
            known[r]++;
            if (known[r] <= end[r]) continue;
            seq_release(seqs[r]);
            seqs[r] = NULL;
        }
    }
    pool_destroy(pool);
}

static void right_14a(double *right)
{
    const PoolConfig config = {1, 8, 64, 16, 0, PAGED_BF16, 0, PAGED_CPU};
    right[0] = 8 * 1000 * (double)pool_bytes_per_token(&config);
    right[1] = 8 * 1000 * 24 * 2.0 * config.head_dim;
}

// ---- the command ------------------------------------------------------------------------------

static const char *const reasons[QUESTIONS];  // in the order of the questions

// The exit status.
static int judge(const Question *question, int count, char **answers)
{
    double right[MOST] = {0};
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        char *end;
        strtod(answers[i], &end);
        if (end != answers[i] && *end == 0) continue;
        printf("%s: not yet: %s is not a number\n", question->name, answers[i]);
        return 1;
    }
    if (count != question->count) {
        printf("%s: not yet: numbers expected: %d, got: %d\n", question->name, question->count,
               count);
        return 1;
    }
    question->right(right);
    for (int i = 0; i < count; i++) {
        double answer = atof(answers[i]);
        if (fabs(answer - right[i]) <= 0.001) continue;
        printf("%s: not yet: number %d (%s) is %s\n", question->name, i + 1, answers[i],
               answer < right[i] ? "too small" : "too large");
        wrong = 1;
    }
    if (!wrong) printf("%s: solved:\n%s.\n", question->name, reasons[question - questions]);
    return wrong;
}

int main(int argc, char **argv)
{
    for (int i = 0; i < QUESTIONS && argc > 1; i++) {
        if (strcmp(argv[1], questions[i].name) != 0) continue;
        if (argc > 2) return judge(&questions[i], argc - 2, argv + 2);
        printf("Exercise %s\n\n%s\n\nTo answer: make exercise N=%s ANSWER=\"...", argv[1],
               questions[i].text, argv[1]);
        for (int n = 1; n < questions[i].count; n++) printf(" ...");
        printf("\"\n");
        return 0;
    }
    if (argc > 1) printf("There is no exercise %s.\n", argv[1]);
    printf("usage: make exercise N=1a\nnumbers to predict:");
    for (int i = 0; i < QUESTIONS; i++) printf(" %s", questions[i].name);
    printf("\ncode to write, in learn/my-6b.c and so on: 6b 7b 9b 12a 13a 13b\n");
    return argc > 1 ? 2 : 0;
}

// ---- the explanations: stop here if you have not answered -------------------------------------

static const char *const reasons[QUESTIONS] = {
    "queries are not stored, so query heads cost nothing: 40. A quarter of the KV\n"
    "heads stores a quarter: 160. Twice the bits: 20. 16 * 64 is 8 * 128: 40. A\n"
    "quarter of the tokens: 160",
    "64 / 16 = 4 with reservations. A prompt of 5 takes two of the 16 blocks: 8 fit.\n"
    "At 12 tokens a request has three: 5 have room, so 3 of the 8 must give way for\n"
    "a while (chapter 11). Even 5 are more than the 4 of reserving",
    "one layer at a time: (5 + 30 + 13) tokens * 2 * 2 heads * 8 * 2 bytes = 3072.\n"
    "The copy is written and read once in each of 3 layers: 2 * 3 * 3072 = 18432",
    "exp(score) is 1, 2, 4, 8. The newest gets (1 + 4 + 12 + 32) / 15 = 3.2667, the\n"
    "one before (1 + 4 + 12) / 7 = 2.4286; m is ln 8, so l = 15 / 8 = 1.875",
    "2 query tokens * 12 query heads = 24 thread blocks, with two barriers each: 48.\n"
    "(1300 + 101) tokens * 12 heads are 16812 dot products of 5 shuffles: 84060",
    "in step 1 A, B and C start; 2 blocks stay free, which C and A take in steps 3\n"
    "and 4. Step 5: B finds no block and preempts C, which loses 6 tokens. Step 9: B\n"
    "finds none and preempts itself, losing 12; A ends. Step 10: B and C start again,\n"
    "and B ends. Step 18: C ends. So 2 preemptions, and 18 tokens computed twice",
    "8 * 1000 tokens * 2 * 8 KV heads * 64 * 2 bytes = 16384000 bytes.\n"
    "8 * 1000 tokens * 24 query heads * 2 * 64 = 24576000 multiply-adds: 1.5 for each\n"
    "byte"};
