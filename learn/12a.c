// 12a (hard): one test, six bugs.
//
// Below, append(), rewind_by() and attention() call the engine and add one of six bugs, or none.
// Write test(): it returns 1 if it finds anything wrong, and 0 if all is well. It may call these
// three functions, those of ../paged.h and the oracle, but must not look at `bug`. Real programs
// had all six: an incomplete copy-on-write, a rewind that damages another sequence, a chunk whose
// tokens see too much, blocks in the wrong order, the wrong KV head, and a NaN. Some show only with
// several layers, heads, blocks or queries.
//
//     make exercise N=12a

#define EXERCISE "12a"
#include "exercise.h"

enum { NONE, COPY, REWIND, CHUNK, ORDER, HEAD, NOT_A_NUMBER, BUGS };

static int bug;

static int append(Seq *seq, int n)
{
    Pool *pool = seq->pool;
    const PoolConfig *c = &pool->config;
    int length = seq->length;
    size_t copies = pool->num_copies;
    int error = seq_append(seq, n);
    if (bug == COPY && pool->num_copies > copies) {
        int block = seq->block_table[length / c->block_size];
        size_t at = kv_offset(c, c->num_layers - 1, block, c->num_kv_heads - 1,
                              (length - 1) % c->block_size);
        memset((char *)pool->v + at * dtype_size(c->dtype), 0, dtype_size(c->dtype));
    }
    return error;
}

static int rewind_by(Seq *seq, int n)
{
    int error = seq_rewind(seq, n);
    int rest = seq->length % seq->pool->config.block_size;
    if (bug == REWIND && !error && rest > 0)
        block_poison(seq->pool, arrlast(seq->block_table), rest);
    return error;
}

static void exchange(int *table)
{
    int first = table[0];
    table[0] = table[1];
    table[1] = first;
}

// Plans the newest n tokens of one sequence and attends with ATTEND_PAGED.
static int attention(Seq *seq, int layer, int n, int num_q_heads, const float *q, float *out)
{
    const PoolConfig *c = &seq->pool->config;
    size_t row = (size_t)num_q_heads * c->head_dim;
    int one = 1;
    int group = num_q_heads / c->num_kv_heads;
    int reorder = bug == ORDER && arrlen(seq->block_table) > 2;
    float *own_q = (float *)calloc(n * row + 1, sizeof(float));
    for (size_t i = 0; i < n * row; i++) {  // which head goes to place i
        int head = (int)(i % row) / c->head_dim;
        int from = bug == HEAD ? head % group * c->num_kv_heads + head / group : head;
        own_q[i] = q[i + (from - head) * c->head_dim];
    }
    float *own = (float *)calloc(n * row + 1, sizeof(float));
    Batch batch = {1, &seq, bug == CHUNK ? &one : &n};
    if (reorder) exchange(seq->block_table);
    int error = pool_plan(seq->pool, &batch);
    for (int t = 0; t < (bug == CHUNK ? n : 1) && !error; t++)
        error = attend(seq->pool, ATTEND_PAGED, layer, num_q_heads, 0, own_q + t * row,
                       own + t * row, NULL);
    if (reorder) exchange(seq->block_table);
    for (size_t i = 0; i < n * row; i++) {
        int head = (int)(i % row) / c->head_dim;
        int to = bug == HEAD ? head % group * c->num_kv_heads + head / group : head;
        out[i + (to - head) * c->head_dim] = own[i];
    }
    if (bug == NOT_A_NUMBER && n > 0) out[n * row - 1] = NAN;
    free(own_q);
    free(own);
    return error;
}

static int test(void)
{
    (void)append, (void)rewind_by, (void)attention;  // your lines
    return 0;
}

int main(void)
{
    static const char *const names[BUGS] = {"none",  "copy", "rewind", "chunk",
                                            "order", "head", "NaN"};
    int order[BUGS] = {NONE, HEAD, COPY, NOT_A_NUMBER, CHUNK, ORDER, REWIND};
    int solved = 1;
    // Twice if all goes well, in case test() keeps something in a variable.
    for (int i = 0; i < BUGS || (solved && i < 2 * BUGS); i++) {
        bug = order[i % BUGS];
        if (test() == (bug != NONE)) continue;
        printf(EXERCISE ": not yet: %s %s\n",
               bug ? "test() does not find" : "test() returns 1, but the bug is", names[bug]);
        solved = 0;
    }
    if (solved) printf(EXERCISE ": solved\n");
    return !solved;
}
