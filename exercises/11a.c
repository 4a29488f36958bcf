// 11a: two numbers to be predicted.
//
// A pool of 7 blocks of 4 tokens serves three requests: A has a prompt of 6 tokens and ends when 14
// are known, B has 5 and ends at 13, C has 3 and ends at 15. A step is that of plan_step() in
// ../examples/llama.c: the running requests get room for all their known tokens, the oldest first;
// who finds none preempts the newest, perhaps itself; then the queue is admitted while all known
// tokens of its head fit. At the end of the step one more token of each running request is known.
// How often is a request preempted? How many tokens are computed a second time? (A preempted
// request loses seq->length of them.) Write down both, then run this, which counts.
//
//     make exercise N=11a

#define PREEMPTIONS 0  // your number
#define RECOMPUTED 0   // your number

#define PAGED_NO_MAIN
#include "../paged.cu.c"

typedef struct Request {
    int known, end;  // tokens known, and how many there are at the end
    Seq *seq;
} Request;

static Pool *pool;
static Request requests[3] = {{6, 14, NULL}, {5, 13, NULL}, {3, 15, NULL}};
static int running[3], num_running, waiting[3] = {2, 1, 0}, num_waiting = 3;  // the head is last
static int preemptions, recomputed;

static void must(int error)
{
    if (error) printf("11a: not yet: the engine says: %s\n", paged_error(error));
    if (error) exit(1);
}

static void plan(void)
{
    for (int i = 0; i < num_running;) {
        Request *r = &requests[running[i]];
        int error = seq_append(r->seq, r->known - r->seq->length);
        if (!error) i++;
        if (!error) continue;
        if (error != PAGED_OUT_OF_BLOCKS) must(error);
        waiting[num_waiting++] = running[--num_running];
        r = &requests[running[num_running]];
        preemptions++;
        recomputed += r->seq->length;
        seq_release(r->seq);
    }
    while (num_waiting > 0) {
        Request *r = &requests[waiting[num_waiting - 1]];
        if (ceil_div(r->known, pool->config.block_size) > pool->num_free) break;
        must(seq_create(pool, &r->seq));
        must(seq_append(r->seq, r->known));
        running[num_running++] = waiting[--num_waiting];
    }
}

int main(void)
{
    PoolConfig config = {1, 1, 1, 4, 7, PAGED_F32, 0, PAGED_CPU};
    must(pool_create(&config, &pool));
    while (num_running + num_waiting > 0) {
        plan();
        for (int i = 0, count = num_running, kept = num_running = 0; i < count; i++) {
            Request *r = &requests[running[i]];
            if (++r->known <= r->end) running[kept++] = running[i];
            if (r->known > r->end) seq_release(r->seq);
            num_running = kept;
        }
    }
    int right = PREEMPTIONS == preemptions, both = right && RECOMPUTED == recomputed;
    if (!right) printf("11a: not yet: it is not %d preemptions\n", PREEMPTIONS);
    if (!both && right) printf("11a: not yet: they do not lose %d tokens\n", RECOMPUTED);
    if (both) printf("11a: solved\n");
    pool_destroy(pool);
    return !both;
}
