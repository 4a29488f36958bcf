// 11a: two numbers to be predicted.
//
// A pool of 7 blocks of 4 tokens serves three requests: A has a prompt of 6 tokens and ends when 14
// are in the cache, B has 5 and ends at 13, C has 3 and ends at 15. A step is that of schedule() in
// ../examples/llama.c: the running requests get room for all their known tokens, the oldest first;
// one that finds none preempts the newest, perhaps itself; then requests are taken from the queue
// while all known tokens of its head fit. At the end of the step one more token of each running
// request is known. How often is a request preempted? How many tokens are computed a second time?
// (A preempted request loses seq->length of them.) Write down both, then run this, which counts.
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
static int running[3];
static int num_running;
static int waiting[3] = {2, 1, 0};  // the head of the queue is last
static int num_waiting = 3;
static int preemptions;
static int recomputed;
static char story[1000];  // what happened, printed once the numbers are right

static void must(int error)
{
    if (!error) return;
    printf("11a: not yet: the engine says: %s\n", paged_error(error));
    exit(1);
}

static void tell(int step, int request, const char *what, int tokens)
{
    size_t at = strlen(story);
    snprintf(story + at, sizeof story - at, "  step %2d: %c %s %d tokens, %d blocks free\n", step,
             'A' + request, what, tokens, pool->num_free);
}

static int differs(const char *name, int answer, int right)
{
    if (answer == right) return 0;
    printf("11a: not yet: %s is too %s\n", name, answer < right ? "small" : "large");
    return 1;
}

static void schedule(int step)
{
    for (int i = 0; i < num_running;) {
        Request *r = &requests[running[i]];
        int error = seq_append(r->seq, r->known - r->seq->length);
        if (!error) {
            i++;
            continue;
        }
        if (error != PAGED_OUT_OF_BLOCKS) must(error);
        int newest = running[--num_running];
        int lost = requests[newest].seq->length;
        waiting[num_waiting++] = newest;
        preemptions++;
        recomputed += lost;
        seq_release(requests[newest].seq);
        tell(step, newest, "is preempted, loses", lost);
    }
    while (num_waiting > 0) {
        Request *r = &requests[waiting[num_waiting - 1]];
        if (ceil_div(r->known, pool->config.block_size) > pool->num_free) break;
        must(seq_create(pool, &r->seq));
        must(seq_append(r->seq, r->known));
        tell(step, waiting[num_waiting - 1], "starts with", r->known);
        running[num_running++] = waiting[--num_waiting];
    }
}

int main(void)
{
    PoolConfig config = {1, 1, 1, 4, 7, PAGED_F32, 0, PAGED_CPU};
    must(pool_create(&config, &pool));
    for (int step = 1; num_running + num_waiting > 0; step++) {
        schedule(step);
        int kept = 0;
        for (int i = 0; i < num_running; i++) {
            Request *r = &requests[running[i]];
            if (++r->known <= r->end) {
                running[kept++] = running[i];
                continue;
            }
            int length = r->seq->length;
            seq_release(r->seq);
            tell(step, running[i], "ends with", length);
        }
        num_running = kept;
    }
    pool_destroy(pool);
    int wrong = differs("PREEMPTIONS", PREEMPTIONS, preemptions) +
                differs("RECOMPUTED", RECOMPUTED, recomputed);
    if (!wrong)
        printf("11a: solved:\n%sso %d preemptions, and %d tokens are computed a second time\n",
               story, preemptions, recomputed);
    return wrong > 0;
}
