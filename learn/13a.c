// 13a: the rows of a step.
//
// Write fill(), which does for a list of requests what add_rows() in ../examples/llama.c does for
// one. For each request, it makes room for the next known tokens that the cache does not hold yet,
// at most `chunk` of them, and adds a row for each to the model's input. A row is wanted if its
// output gives the next token of a request: it is the row of the last known token, if that token is
// in this step. The pool has room for all. Leave out requests with all known tokens in the cache.
//
//     make exercise N=13a

#define EXERCISE "13a"
#include "exercise.h"

enum { REQUESTS = 3, END = 40, ROWS = REQUESTS * END };

typedef struct Request {
    Seq *seq;
    int tokens[END], known;
} Request;

typedef struct Input {
    int num_seqs, num_rows, num_wanted;  // all 0 when fill() is called
    Seq *seqs[REQUESTS];
    int num_tokens[REQUESTS];           // new tokens of each
    int tokens[ROWS], positions[ROWS];  // of each row: all rows of seqs[0], then those of seqs[1]
    int wanted[REQUESTS];               // row
    int whose[REQUESTS];                // index of the request that the wanted row belongs to
} Input;

static int fill(Request *requests, int n, int chunk, Input *input)  // returns an error code
{
    (void)requests, (void)n, (void)chunk, (void)input;  // your lines
    return PAGED_OK;
}

// A model of one layer. K, V and query depend on token and position. out: a token for each row.
static void forward(Pool *pool, const Input *input, int *out)
{
    float k[ROWS], v[ROWS], q[ROWS], x[ROWS];
    Batch batch = {input->num_seqs, input->seqs, input->num_tokens};
    for (int i = 0; i < input->num_rows; i++) {
        q[i] = sinf(input->tokens[i] + 0.3f * input->positions[i]);
        k[i] = 3 * cosf(input->tokens[i] - 0.7f * input->positions[i]);
        v[i] = sinf(7.0f * input->tokens[i]);
    }
    must(pool_plan(pool, &batch));
    must(pool_write(pool, 0, k, v));
    must(attend(pool, ATTEND_PAGED, 0, 1, 0, q, x, NULL));
    for (int i = 0; i < input->num_rows; i++) out[i] = (int)(1e4f * fabsf(x[i])) % 50;
}

// Serves the requests from first to end - 1 until they end, and returns how many rows that took.
static int serve(Request *requests, int first, int end, int chunk)
{
    int rows = 0;
    int most = (end - first) * chunk;
    int out[ROWS];
    Pool *pool = new_pool(1, 1, 1, 4, REQUESTS * END);
    for (int i = first; i < end; i++) requests[i].seq = new_seq(pool, 0);
    int left = 1;
    for (int steps = 0; left > 0; steps++) {
        Input input = {0, 0, 0, {NULL}, {0}, {0}, {0}, {0}, {0}};
        check(steps < 200, "after 200 steps the requests have not ended");
        check(!fill(requests + first, end - first, chunk, &input), "fill() fails");
        check(input.num_rows <= most, "more than `chunk` rows for a request");
        for (int i = 0; i < input.num_seqs; i++)
            check(input.num_tokens[i] > 0, "a request without a new token is not left out");
        forward(pool, &input, out);
        rows += input.num_rows;
        for (int i = 0; i < input.num_wanted; i++) {
            Request *r = &requests[first + input.whose[i]];
            check(r->seq->length == r->known, "a wanted row is not that of the last known token");
            if (r->known < END) r->tokens[r->known++] = out[input.wanted[i]];
        }
        left = 0;
        for (int i = first; i < end; i++) left += requests[i].seq->length < END;
    }
    pool_destroy(pool);
    return rows;
}

int main(void)
{
    const int prompts[REQUESTS] = {17, 1, 6};
    const int chunks[] = {1, 2, 5, 17, 40};
    Request alone[REQUESTS], together[REQUESTS];
    for (int c = 0; c < 5; c++) {
        for (int i = 0; i < REQUESTS; i++) {
            for (int t = 0; t < prompts[i]; t++) alone[i].tokens[t] = (5 * i + 3 * t) % 11;
            alone[i].known = prompts[i];
            together[i] = alone[i];
            check(serve(alone, i, i + 1, END) == END, "alone, a token is computed twice, or never");
        }
        check(serve(together, 0, REQUESTS, chunks[c]) == REQUESTS * END,
              "together, a token is computed twice, or never");
        for (int i = 0; i < REQUESTS; i++)
            if (memcmp(alone[i].tokens, together[i].tokens, sizeof alone[i].tokens) != 0)
                not_yet("chunks of %d: request %d gets other tokens than alone", chunks[c], i);
    }
    return solved("");
}
