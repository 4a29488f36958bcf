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

static void check_sequence(const Seq *one, const Sequence *q)
{
    float k[TOKENS], v[TOKENS];
    check(one->length == q->length && one->num_computed_tokens == q->computed, "length, computed");
    check(seq_gather(one, -1, k, v) && seq_gather(one, LAYERS, k, v), "gather a wrong layer");
    for (int layer = 0; layer < LAYERS; layer++) {
        int error = seq_gather(one, layer, k, v), written = layer ? q->computed : size(q->text);
        for (int t = 0; t < q->length; t++) {
            int same = k[t] == k_of(q->text, t, layer) && v[t] == -k[t];
            check(!error && (t < written ? same : isnan(k[t]) && isnan(v[t])), "what is read");
        }
    }
}

// Blocks come from the front of the free list. Freed ones return there, published ones to the back,
// the last of a table first. Only an append unpublishes a block, and leaves NaN in its last slot.
static void check_blocks(void)
{
    const Block *was = BEFORE(pool->blocks), *is = pool->blocks;
    int list[3 * BLOCKS], front = BLOCKS, end = BLOCKS;  // the free list, as it must be
    int have = seq ? blocks_for(BEFORE(seq)->length) : 0;
    const int *table = have ? BEFORE(BEFORE(seq)->block_table) : NULL;
    for (int b = num_blocks; (b = was[b].next) != num_blocks; taken--)
        if (taken <= 0 && (kind < PUBLISH || !is[b].ref_count)) list[end++] = b;
    for (int i = 0; i < have; i++) {
        int b = table[kind == PUBLISH ? i : have - 1 - i];
        if (is[b].ref_count == 0) list[is[b].serial ? end++ : --front] = b;
    }
    list[end] = num_blocks;
    for (int b = is[num_blocks].next; front <= end; b = is[b].next)
        check(b == list[front++], "the free list");
    for (int e = n / block_size - 1; kind == PUBLISH && e >= 0 && !was[table[e]].serial; e--) {
        const int *entry = seq->block_table + e;
        uint64_t parent = e > 0 ? is[entry[-1]].serial : 0;
        check(is[*entry].serial && is[*entry].parent == parent, "a publication");
    }
    for (int b = 0; b < num_blocks; b++) {
        int fresh = kind == PUBLISH && !was[b].serial && BEFORE(pool)->last_serial < is[b].serial;
        int gone = kind == APPEND && !is[b].serial && isnan(last_k(b));
        check(is[b].serial == was[b].serial || fresh || gone, "what is published");
        int freed = was[b].ref_count && !is[b].ref_count && !is[b].serial;
        for (int i = 0; i < LAYERS * block_size && freed; i++)
            check(isnan(stored_k(b, i % LAYERS, i / LAYERS)), "NaN in a freed block");
    }
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
    check_blocks();
    check(pool->num_copies == BEFORE(pool)->num_copies + copied, "the number of copies");
    int edited = memcmp(BEFORE(pool->blocks), pool->blocks, num_blocks * sizeof(Block)) != 0;
    if (seq && (edited || seq->length != BEFORE(seq)->length))  // its plan is out of date
        for (int i = 0; i < s->num_batch; i++)
            if (s->num_tokens[i] && s->batch[i] == seq) s->num_batch = s->writable = s->sealed = 0;
    check(s->writable == (pool->plan_number ? 1 + pool->plan->num_written_layers : 0), "the plan");
    return 1;
}

static void add_plan(void)
{
    add(s->sealed + 2 * s->writable);
    for (int i = 0; i < s->num_batch; i++)
        if (s->num_tokens[i]) add(-s->num_tokens[i]), add(s->batch[i]->index);
}

static int make_plan(void)
{
    int want = PAGED_OK, named = 0, i, one;
    s->sealed = 0;
    s->writable = LAYERS + 1;
    for (i = 0; i < s->num_seqs && (one = choose(-1, s->num_seqs - 1)) >= 0; i++) {
        const Sequence *q = &s->seqs[one];
        int tokens = s->num_tokens[i] = choose(-1, q->length + 1);
        s->batch[i] = pool->seqs[one];
        int bad = tokens < 0 || tokens > q->length || named >> one & 1;
        if (bad) want = PAGED_BAD_ARGUMENT;
        if (tokens > 0 && q->length - tokens > q->computed && !want) want = PAGED_NOT_READY;
        if (tokens > 0 && q->length > q->computed) s->writable = 1;
        for (int t = q->length - tokens; t < q->length && !want; t++)
            s->sealed |= sealed(s->batch[i]->block_table[t / block_size]);
        named |= 1 << one;
    }
    s->num_batch = i;
    return judge(pool_plan(pool, &(Batch){i, s->batch, s->num_tokens}), want);
}

// A write, or attention: the query is 0, so all weights are equal and the result is the mean of V.
static int make_step(int layer, int x)
{
    static const float query[ROWS];
    float k[ROWS], v[ROWS], sum[ROWS] = {0}, out[ROWS], lse[ROWS];
    int rows = 0, want = layer + (kind == ATTEND) >= s->writable ? PAGED_NOT_READY : PAGED_OK;
    if (kind == WRITE && s->sealed && !want) want = PAGED_BLOCK_SHARED;
    if (layer < 0 || layer >= LAYERS) want = PAGED_BAD_ARGUMENT;
    if (layer + 1 == s->writable) s->writable++;
    for (int i = 0; i < s->num_batch && !want; i++) {
        Sequence *q = &s->seqs[s->batch[i]->index];
        int t = q->length - s->num_tokens[i];
        while (t < q->length && size(q->text) < q->length) q->text = 2 * q->text + x;
        if (t < q->length && layer == LAYERS - 1) q->computed = q->length;
        for (; t < q->length; t++, rows++) {
            k[rows] = k_of(q->text, t, layer);
            v[rows] = -k[rows];
            for (int u = 0; u <= t; u++) sum[rows] -= k_of(q->text, u, layer) / (t + 1);
        }
    }
    if (kind == WRITE) return judge(pool_write(pool, layer, k, v), want);
    for (int i = 0; i < ROWS; i++) out[i] = NAN;  // not that of another call
    int error = attend(pool, x, layer, 1, 1, query, out, lse);
    for (int i = 0; i < ROWS; i++) {
        int right = i < rows && !error ? fabs(out[i] / sum[i] - 1) < 1e-6 : isnan(out[i]);
        check(right, "the mean of V, and no more");
    }
    return judge(error, want);
}

static int make_call(void)
{
    kind = choose(CREATE, s->num_seqs ? LOOKUP : ATTEND);
    if ((kind == CREATE || kind == FORK) && s->num_seqs == max_seqs) return 0;
    seq = kind < RELEASE ? NULL : pool->seqs[choose(0, s->num_seqs - 1)];
    n = kind < APPEND ? 0 : choose(-1, num_blocks * block_size + 1);
    taken = copied = 0;
    if (kind == PLAN) return make_plan();
    if (kind == WRITE || kind == ATTEND) return make_step(choose(-1, LAYERS), choose(0, 1));
    Sequence *q = seq ? &s->seqs[seq->index] : &(Sequence){.text = 1};
    int want = n < 0 || n > q->length, tokens[TOKENS + 1] = {0}, text = q->text;
    if (kind == LOOKUP) text = n > 0 && !q->length ? choose(1 << n, (2 << n) - 1) : 1;
    for (int t = 0; kind >= PUBLISH && t < size(text); t++) tokens[t] = first(t + 1, text) & 1;
    switch (kind) {
    case CREATE:
    case FORK:
        s->seqs[s->num_seqs++] = cut(*q, n);
        return judge(seq ? seq_fork(seq, n, &made) : seq_create(pool, &made), want);
    case RELEASE:
        *q = s->seqs[--s->num_seqs];  // the last one takes its place
        seq_release(seq);
        return judge(PAGED_OK, PAGED_OK);
    case APPEND:
        if (n > 0 && q->length % block_size)
            copied = pool->blocks[arrlast(seq->block_table)].ref_count > 1;
        taken = blocks_for(q->length + n) - blocks_for(q->length) + copied;
        want = taken > pool->num_free ? PAGED_OUT_OF_BLOCKS : PAGED_OK;
        if (blocks_for(q->length + n) > num_blocks) want = PAGED_TOO_LONG;
        if (n < 0) want = PAGED_BAD_ARGUMENT;
        *q = cut(*q, q->length + n);
        return judge(seq_append(seq, n), want);
    case REWIND: *q = cut(*q, q->length - n); return judge(seq_rewind(seq, n), want);
    case PUBLISH: return judge(seq_publish(seq, tokens, n), n < 0 || n > q->computed);
    }
    want = n < 0 || q->length > 0;
    int got = seq_lookup(seq, tokens, n), next = seq->length + block_size;
    *q = cut((Sequence){text, n, n}, min_int(seq->length, n ? n - 1 : 0));  // not the last token
    uint64_t parent = seq->length ? pool->blocks[arrlast(seq->block_table)].serial : 0;
    for (int b = 0; b < num_blocks && next < n; b++) {
        int fits = pool->blocks[b].serial && pool->blocks[b].parent == parent;
        check(!fits || last_k(b) != first(next, text), "the longest beginning");
    }
    return judge(got, want);
}

int main(int argc, char **argv)
{
    s = allocate(sizeof *s);
    return search(argc, argv, make_call, add_plan);
}
