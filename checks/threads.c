// threads: two pools, each in a thread of its own, as the rule of paged.h on threads allows. Both
// run the whole life of sequences at the same time: append, plan, write, attend, publish, look up,
// fork, rewind, check, release. For the thread sanitizer, which sees what the two still share; and
// each thread compares what it computes with what the other one does.
//
//     clang -O1 -g -fsanitize=thread checks/threads.c -o threads -lm && ./threads

#define PAGED_NO_MAIN
#include "../paged.cu.c"

#include <pthread.h>

enum { ROUNDS = 4, PROMPT = 19, STEPS = 12, LAYERS = 2, KV_HEADS = 2, Q_HEADS = 4, DIM = 64 };
enum { KV = PROMPT * KV_HEADS * DIM, Q = PROMPT * Q_HEADS * DIM };

#define CHECK(x) INVARIANT(x, "a check failed")
#define OK(call) CHECK((call) == PAGED_OK)

typedef struct Life {  // of one pool
    Pool *pool;
    float k[KV], v[KV], q[Q], out[Q];
    double sum;  // of all results
    int found;   // tokens that lookups found
} Life;

static void fill(float *x, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(seed >> 8) / (1 << 23) - 1;  // in [-1, 1)
    }
}

// Appends n tokens, computes them, and attends in each way.
static void step(Life *life, Seq *seq, int n, unsigned seed)
{
    Batch batch = {1, &seq, &n};
    OK(seq_append(seq, n));
    OK(pool_plan(life->pool, &batch));
    fill(life->q, n * Q_HEADS * DIM, seed);
    for (int layer = 0; layer < LAYERS; layer++) {
        fill(life->k, n * KV_HEADS * DIM, seed + 1 + layer);
        fill(life->v, n * KV_HEADS * DIM, seed + 8 + layer);
        OK(pool_write(life->pool, layer, life->k, life->v));
        for (int flags = 0; flags < 4; flags++) {
            OK(attend(life->pool, flags, layer, Q_HEADS, 0, life->q, life->out, NULL));
            for (int i = 0; i < n * Q_HEADS * DIM; i++) life->sum += life->out[i];
        }
    }
}

static void request(Life *life, int number)
{
    int tokens[PROMPT + STEPS];
    Seq *seq;
    Seq *child;
    for (int i = 0; i < PROMPT + STEPS; i++) tokens[i] = i < 8 ? i : number % 5 + i;
    OK(seq_create(life->pool, &seq));
    OK(seq_lookup(seq, tokens, PROMPT));
    life->found += seq->length;
    step(life, seq, PROMPT - seq->length, 1);
    OK(seq_publish(seq, tokens, PROMPT));
    OK(seq_fork(seq, PROMPT - 2, &child));
    for (int i = 0; i < STEPS; i++) step(life, seq, 1, 100 + i);
    step(life, child, 3, 200);
    OK(seq_rewind(child, 2));
    OK(seq_publish(seq, tokens, seq->length));
    CHECK(pool_check(life->pool) == NULL);
    seq_release(seq);
    seq_release(child);
    life->pool->num_free++;  // wrong: the check writes its message, which each thread has one of
    CHECK(pool_check(life->pool) != NULL);
    life->pool->num_free--;
}

static void *live(void *argument)
{
    Life *life = (Life *)argument;
    PoolConfig config = {LAYERS, KV_HEADS, DIM, 4, 24, PAGED_F16, 1, PAGED_CPU};
    for (int round = 0; round < ROUNDS; round++) {
        OK(pool_create(&config, &life->pool));
        for (int number = 0; number < 10; number++) request(life, number);
        CHECK(life->pool->num_free == config.num_blocks);
        pool_destroy(life->pool);
    }
    return NULL;
}

int main(void)
{
    static Life lives[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, live, &lives[i]) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(lives[0].sum == lives[1].sum && lives[0].found == lives[1].found && lives[0].found > 0);
    printf("%d tokens found in each prefix cache, sum of the results %.6f\n", lives[0].found,
           lives[0].sum);
    printf("1 passed, 0 failed, 0 skipped\n");
    return 0;
}
