// states: every state that a small pool can reach and, in each of them, every call.
//
//     make build/states && build/states 2 2 2  # 2 blocks of 2 tokens, at most 2 sequences
//
// What a call must return and leave follows from the state before it, of which search.h keeps a
// copy. Each sequence must read its own text, and NaN where nothing is written. A token is 0 or 1,
// chosen when it is first written. A text is a number: its tokens as bits, after a leading 1. K of
// a token is the text up to it, and V is -K, so what is read shows whose it is.

enum { CREATE, PLAN, WRITE, ATTEND, RELEASE, APPEND, FORK, REWIND, PUBLISH, LOOKUP };
static const char *const calls[] = {"create", "plan", "write",  "attend",  "release",
                                    "append", "fork", "rewind", "publish", "lookup"};
#include "search.h"

typedef struct Sequence {
    int text, length, computed;  // text: of the tokens that are written in layer 0
} Sequence;

struct Expected {
    Sequence seqs[SEQS];  // what pool->seqs must be
    Seq *batch[SEQS];     // of the plan
    int num_seqs, num_batch, num_tokens[SEQS], sealed;
    int writable;  // layers that can be written; one less can be read; 0: there is no plan
};
static struct Expected *s;  // part of the state, too
static int kind, n;         // of the call: its kind, and its tokens
static int taken, copied;   // blocks that it must take, and copy
static Seq *seq, *made;     // its sequence, or NULL; and the new one
static Sequence *own;       // what is expected of its sequence

static int blocks_for(int length) { return (length + block_size - 1) / block_size; }
static int size(int text) { return 31 - __builtin_clz(text); }
static int first(int t, int text) { return text >> (size(text) - min_int(t, size(text))); }
static float k_of(int text, int t, int layer) { return first(t + 1, text) + layer * 8192; }
static int sealed(int b) { return pool->blocks[b].ref_count > 1 || pool->blocks[b].serial; }
static float last_k(int b) { return stored_k(b, 0, block_size - 1); }

static Sequence cut(Sequence q, int length)
{
    return (Sequence){first(length, q.text), length, min_int(length, q.computed)};
}

// ---- what a call must leave --------------------------------------------------------------------

static void check_sequence(const Seq *one, const Sequence *q)
{
    float k[TOKENS], v[TOKENS];
    check(one->length == q->length && one->num_computed_tokens == q->computed, "length, computed");
    check(seq_gather(one, -1, k, v) && seq_gather(one, LAYERS, k, v), "gather a wrong layer");
    for (int layer = 0; layer < LAYERS; layer++) {
        int written = layer == 0 ? size(q->text) : q->computed;
        check(seq_gather(one, layer, k, v) == PAGED_OK, "gather");
        for (int t = 0; t < q->length; t++) {
            int right = k[t] == k_of(q->text, t, layer) && v[t] == -k[t];
            if (t >= written) right = isnan(k[t]) && isnan(v[t]);
            check(right, "what is read");
        }
    }
}

// Blocks come from the front of the free list. Freed ones return there, published ones to the back:
// the last of a table first, but when a publication has found others in their place.
static void check_order(void)
{
    const Block *was = BEFORE(pool->blocks), *is = pool->blocks;
    int list[3 * BLOCKS], front = BLOCKS, end = BLOCKS;  // as it must be
    int have = seq ? blocks_for(BEFORE(seq)->length) : 0;
    int place = 0;
    for (int b = was[num_blocks].next; b != num_blocks; b = was[b].next) {
        int found = kind >= PUBLISH && is[b].ref_count > 0;
        if (place >= taken && !found) list[end++] = b;
        place++;
    }
    for (int i = 0; i < have; i++) {
        int b = BEFORE(BEFORE(seq)->block_table)[kind == PUBLISH ? i : have - 1 - i];
        if (is[b].ref_count > 0) continue;
        if (is[b].serial)
            list[end++] = b;
        else
            list[--front] = b;
    }
    list[end] = num_blocks;
    for (int b = num_blocks; front <= end; front++) {
        b = is[b].next;
        check(b == list[front], "the free list");
    }
}

// Of the blocks of the n tokens, those after the last published one are published now, or others of
// the same tokens are in their place.
static void check_publication(void)
{
    const Block *is = pool->blocks;
    for (int e = n / block_size - 1; e >= 0; e--) {
        if (BEFORE(pool->blocks)[BEFORE(BEFORE(seq)->block_table)[e]].serial) return;
        const int *entry = seq->block_table + e;
        uint64_t parent = e > 0 ? is[entry[-1]].serial : 0;
        check(is[*entry].serial && is[*entry].parent == parent, "a publication");
    }
}

// Only an append unpublishes a block, and leaves NaN in its last slot.
static void check_block(int b)
{
    const Block *was = BEFORE(pool->blocks) + b, *is = pool->blocks + b;
    int fresh = kind == PUBLISH && !was->serial && BEFORE(pool)->last_serial < is->serial;
    int gone = kind == APPEND && !is->serial && isnan(last_k(b));
    check(is->serial == was->serial || fresh || gone, "what is published");
    if (was->ref_count == 0 || is->ref_count > 0 || is->serial) return;
    for (int i = 0; i < LAYERS * block_size; i++)
        check(isnan(stored_k(b, i % LAYERS, i / LAYERS)), "NaN in a freed block");
}

// A plan is out of date once one of its sequences, or of its blocks, has been edited.
static void check_plan(void)
{
    int edited = memcmp(BEFORE(pool->blocks), pool->blocks, num_blocks * sizeof(Block)) != 0;
    if (seq && (edited || seq->length != BEFORE(seq)->length))
        for (int i = 0; i < s->num_batch; i++)
            if (s->num_tokens[i] && s->batch[i] == seq) s->num_batch = s->writable = s->sealed = 0;
    int writable = 0;
    if (pool->plan_number) writable = 1 + pool->plan->num_written_layers;
    check(s->writable == writable, "the plan");
}

static int judge(int got, int want)
{
    num_calls++;
    check(got == want, "the result");
    if (want != PAGED_OK) return refused();
    const char *broken = pool_check(pool);
    check(!broken, broken);
    check(arrlen(pool->seqs) == s->num_seqs, "the number of sequences");
    for (int i = 0; i < s->num_seqs; i++) check_sequence(pool->seqs[i], &s->seqs[i]);
    check_order();
    if (kind == PUBLISH) check_publication();
    for (int b = 0; b < num_blocks; b++) check_block(b);
    check(pool->num_copies == BEFORE(pool)->num_copies + copied, "the number of copies");
    check_plan();
    return 1;
}

static void add_plan(void)
{
    add(s->sealed + 2 * s->writable);
    for (int i = 0; i < s->num_batch; i++) {
        if (s->num_tokens[i] == 0) continue;
        add(-s->num_tokens[i]);
        add(s->batch[i]->index);
    }
}

// ---- the calls: each says what it must return and leave, and makes itself -----------------------

// Adds a sequence to the batch. Returns what pool_plan() must say of it.
static int add_to_batch(int i, int one)
{
    const Sequence *q = &s->seqs[one];
    int tokens = choose(-1, q->length + 1);
    s->batch[i] = pool->seqs[one];
    s->num_tokens[i] = tokens;
    for (int j = 0; j < i; j++)
        if (s->batch[j] == s->batch[i]) return PAGED_BAD_ARGUMENT;
    if (tokens < 0 || tokens > q->length) return PAGED_BAD_ARGUMENT;
    if (tokens > 0 && q->length - tokens > q->computed) return PAGED_NOT_READY;
    if (tokens > 0 && q->length > q->computed) s->writable = 1;
    for (int t = q->length - tokens; t < q->length; t++)
        if (sealed(s->batch[i]->block_table[t / block_size])) s->sealed = 1;
    return PAGED_OK;
}

static int make_plan(void)
{
    int want = PAGED_OK;
    s->num_batch = s->sealed = 0;
    s->writable = LAYERS + 1;
    while (s->num_batch < s->num_seqs) {
        int one = choose(-1, s->num_seqs - 1);
        if (one < 0) break;
        int error = add_to_batch(s->num_batch++, one);
        if (!want || error == PAGED_BAD_ARGUMENT) want = error;
    }
    return judge(pool_plan(pool, &(Batch){s->num_batch, s->batch, s->num_tokens}), want);
}

// K and V of the rows of the plan, and the mean of the V that each sees. Returns how many there
// are. A token that was not written before is `x`.
static int make_rows(int layer, int x, float *k, float *v, float *mean)
{
    int rows = 0;
    for (int i = 0; i < s->num_batch; i++) {
        Sequence *q = &s->seqs[s->batch[i]->index];
        if (s->num_tokens[i] == 0) continue;
        while (size(q->text) < q->length) q->text = 2 * q->text + x;
        if (layer == LAYERS - 1) q->computed = q->length;
        for (int t = q->length - s->num_tokens[i]; t < q->length; t++, rows++) {
            k[rows] = k_of(q->text, t, layer);
            v[rows] = -k[rows];
            mean[rows] = 0;
            for (int u = 0; u <= t; u++) mean[rows] -= k_of(q->text, u, layer) / (t + 1);
        }
    }
    return rows;
}

static int make_write(void)
{
    float k[ROWS], v[ROWS], mean[ROWS];
    int layer = choose(-1, LAYERS), x = choose(0, 1), want = PAGED_OK;
    if (s->sealed) want = PAGED_BLOCK_SHARED;
    if (layer >= s->writable) want = PAGED_NOT_READY;
    if (layer < 0 || layer >= LAYERS) want = PAGED_BAD_ARGUMENT;
    if (!want) make_rows(layer, x, k, v, mean);
    if (layer + 1 == s->writable) s->writable++;
    return judge(pool_write(pool, layer, k, v), want);
}

// The query is 0, so all weights are equal.
static int make_attend(void)
{
    static const float query[ROWS];
    float k[ROWS], v[ROWS], mean[ROWS], out[ROWS], lse[ROWS];
    int layer = choose(-1, LAYERS), flags = choose(0, 1), want = PAGED_OK;
    if (layer + 1 >= s->writable) want = PAGED_NOT_READY;
    if (layer < 0 || layer >= LAYERS) want = PAGED_BAD_ARGUMENT;
    int rows = want ? 0 : make_rows(layer, 0, k, v, mean);
    for (int i = 0; i < ROWS; i++) out[i] = NAN;  // not that of another call
    int error = attend(pool, flags, layer, 1, 1, query, out, lse);
    for (int i = 0; i < ROWS; i++) {
        int right = i < rows ? fabs(out[i] / mean[i] - 1) < 1e-6 : isnan(out[i]);
        check(right, "the mean of V, and no more");
    }
    return judge(error, want);
}

static int make_create(void)
{
    if (s->num_seqs == max_seqs) return 0;
    s->seqs[s->num_seqs++] = (Sequence){.text = 1};
    return judge(seq_create(pool, &made), PAGED_OK);
}

static int make_release(void)
{
    *own = s->seqs[--s->num_seqs];  // the last one takes its place
    seq_release(seq);
    return judge(PAGED_OK, PAGED_OK);
}

static int make_append(void)
{
    int want = PAGED_OK, tokens = own->length + n;
    if (n > 0 && own->length % block_size > 0)
        if (pool->blocks[arrlast(seq->block_table)].ref_count > 1) copied = 1;
    taken = blocks_for(tokens) - blocks_for(own->length) + copied;
    if (taken > pool->num_free) want = PAGED_OUT_OF_BLOCKS;
    if (blocks_for(tokens) > num_blocks) want = PAGED_TOO_LONG;
    if (n < 0) want = PAGED_BAD_ARGUMENT;
    *own = cut(*own, tokens);
    return judge(seq_append(seq, n), want);
}

static int bad_number(int most) { return n < 0 || n > most ? PAGED_BAD_ARGUMENT : PAGED_OK; }

static int make_fork(void)
{
    if (s->num_seqs == max_seqs) return 0;
    s->seqs[s->num_seqs++] = cut(*own, n);
    return judge(seq_fork(seq, n, &made), bad_number(own->length));
}

static int make_rewind(void)
{
    int want = bad_number(own->length);
    *own = cut(*own, own->length - n);
    return judge(seq_rewind(seq, n), want);
}

static const int *tokens_of(int text)
{
    static int tokens[TOKENS + 1];
    for (int t = 0; t < size(text); t++) tokens[t] = first(t + 1, text) & 1;
    return tokens;
}

static int make_publish(void)
{
    return judge(seq_publish(seq, tokens_of(own->text), n), bad_number(own->computed));
}

// It finds the longest beginning: no published block goes on with the text.
static int make_lookup(void)
{
    int text = 1, want = PAGED_OK;
    if (n < 0 || own->length > 0) want = PAGED_BAD_ARGUMENT;
    if (!want && n > 0) text = choose(1 << n, (2 << n) - 1);
    int got = seq_lookup(seq, tokens_of(text), n), next = seq->length + block_size;
    *own = cut((Sequence){text, n, n}, min_int(seq->length, n ? n - 1 : 0));  // not the last token
    uint64_t parent = seq->length ? pool->blocks[arrlast(seq->block_table)].serial : 0;
    for (int b = 0; b < num_blocks && next < n; b++) {
        int follows = pool->blocks[b].serial && pool->blocks[b].parent == parent;
        check(!follows || last_k(b) != first(next, text), "the longest beginning");
    }
    return judge(got, want);
}

static int make_call(void)
{
    static int (*const makes[])(void) = {make_create,  make_plan,   make_write, make_attend,
                                         make_release, make_append, make_fork,  make_rewind,
                                         make_publish, make_lookup};  // in the order of calls[]
    kind = choose(CREATE, s->num_seqs > 0 ? LOOKUP : ATTEND);
    seq = NULL;
    n = taken = copied = 0;
    if (kind >= RELEASE) {
        seq = pool->seqs[choose(0, s->num_seqs - 1)];
        own = &s->seqs[seq->index];
    }
    if (kind >= APPEND) n = choose(-1, num_blocks * block_size + 1);
    return makes[kind]();
}

int main(int argc, char **argv)
{
    s = allocate(sizeof *s);
    return search(argc, argv, make_call, add_plan);
}
