// states: every state that a small pool can reach and, in each of them, every call.
//
//     cc -O2 checks/states.c -o states -lm
//     ./states 2 2 2           2 blocks of 2 tokens, and at most 2 sequences
//
// What a call must return and leave follows from the state before it, of which search.h keeps a
// copy. Each sequence must read its own text, NaN where nothing is written, and rules say which
// blocks are taken, which stay published, and in which order the others are free.
//
// A token is 0 or 1, chosen when it is first written. A text is a number: its tokens as bits, after
// a leading 1. K of a token is the text up to it, and V is -K, so what is read shows whose it is.

#include "search.h"

enum { CREATE, PLAN, WRITE, ATTEND, RELEASE, APPEND, FORK, REWIND, PUBLISH, LOOKUP };
static const char *const calls[] = {"create", "plan", "write",  "attend",  "release",
                                    "append", "fork", "rewind", "publish", "lookup"};

typedef struct Sequence {
    int text, length, computed;  // text: of the tokens that are written in layer 0
} Sequence;

struct Expected {
    Sequence seqs[SEQS];  // what pool->seqs must be
    int num_seqs;
    Seq *batch[SEQS];  // of the plan
    int num_batch, num_tokens[SEQS], sealed, num_written;
};
static struct Expected *s;  // it is part of a state, too
static int kind, n, taken;  // of the call: its kind, tokens, and blocks that it must take
static Seq *seq, *made;     // its sequence, or NULL; and the new one

static int blocks_for(int length) { return (length + block_size - 1) / block_size; }
static int size(int text) { return 31 - __builtin_clz(text); }
static int first(int t, int text) { return text >> (size(text) - min_int(t, size(text))); }
static float k_of(int text, int t, int layer) { return first(t + 1, text) + layer * 8192; }
static float last_k(int block) { return ((float *)pool->k)[(block + 1) * block_size - 1]; }

static void cut(Sequence *q, int length)
{
    q->length = length;
    q->text = first(length, q->text);
    q->computed = min_int(length, q->computed);
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

// Blocks are taken from the front of the free list. Freed ones go to the front, published ones to
// the back, the last of a table first. A block is published until it is taken or written, which
// leaves NaN in its last slot.
static void check_blocks(void)
{
    const Block *was = BEFORE(pool->blocks), *is = pool->blocks;
    int rank[BLOCKS], i = 0, last = -BLOCKS, have = seq ? blocks_for(BEFORE(seq)->length) : 0;
    const int *table = have ? BEFORE(BEFORE(seq)->block_table) : NULL;
    for (int e = 0; e < have; e++) {
        int b = table[e];
        rank[b] = is[b].serial ? 3 * BLOCKS - e : kind == PUBLISH ? -e : e;
    }
    for (int b = num_blocks; (b = was[b].next) != num_blocks; i++) {
        int shared = kind >= PUBLISH && is[b].serial == was[b].serial;
        check(!is[b].ref_count == (i >= taken) || shared, "which blocks are taken");
        rank[b] = BLOCKS + i;
    }
    for (int b = num_blocks; (b = is[b].next) != num_blocks; last = rank[b])
        check(rank[b] > last, "the order of the free list");
    for (int e = n / block_size - 1; kind == PUBLISH && e >= 0 && !was[table[e]].serial; e--) {
        const int *entry = seq->block_table + e;
        uint64_t parent = e > 0 ? is[entry[-1]].serial : 0;
        check(is[*entry].serial && is[*entry].parent == parent, "a publication");
    }
    for (int b = 0; b < num_blocks; b++) {
        int fresh = kind == PUBLISH && !was[b].serial && BEFORE(pool)->last_serial < is[b].serial;
        int gone = !is[b].serial && isnan(last_k(b));
        check(is[b].serial == was[b].serial || fresh || gone, "what is published");
        check(!is[b].serial || !isnan(last_k(b)), "a published block is full");
    }
}

static int judge(int got, int want)
{
    int usable = BEFORE(pool)->plan_number != 0;
    num_calls++;
    check(got == want, "the result");
    if (want != PAGED_OK) {  // only the numbers of batches may change
        *s = *BEFORE(s);
        BEFORE(pool)->batch_number = pool->batch_number;
        for (int i = 0; i < s->num_seqs; i++)
            BEFORE(pool->seqs[i])->batch_number = pool->seqs[i]->batch_number;
        check(!memcmp(world.memory, before.memory, before.used), "a refused call changes no byte");
        return 0;
    }
    const char *broken = pool_check(pool);
    check(!broken, broken);
    check(arrlen(pool->seqs) == s->num_seqs, "the number of sequences");
    for (int i = 0; i < s->num_seqs; i++) check_sequence(pool->seqs[i], &s->seqs[i]);
    check_blocks();
    // A plan is out of date when a call edits one of its sequences.
    int edited = memcmp(BEFORE(pool->blocks), pool->blocks, num_blocks * sizeof(Block)) != 0;
    if (seq && (edited || seq->length != BEFORE(seq)->length))
        for (int i = 0; i < s->num_batch; i++) usable &= !s->num_tokens[i] || s->batch[i] != seq;
    usable |= kind == PLAN;
    check(usable == (pool->plan_number != 0), "whether the plan can be used");
    if (!usable) s->num_batch = s->sealed = s->num_written = 0;
    check(!usable || pool->plan->sealed == s->sealed, "whether the plan can be written");
    check(!usable || pool->plan->num_written_layers == s->num_written, "the layers written");
    for (int i = 0; i < s->num_batch; i++)
        if (s->num_tokens[i]) add(-s->num_tokens[i]), add(s->batch[i]->index);
    return 1;
}

static int make_plan(void)
{
    int want = PAGED_OK, named = 0, i, one;
    s->sealed = 0;
    s->num_written = LAYERS;
    for (i = 0; i < s->num_seqs && (one = choose(-1, s->num_seqs - 1)) >= 0; i++) {
        const Sequence *q = &s->seqs[one];
        int tokens = choose(-1, q->length + 1);
        s->batch[i] = pool->seqs[one];
        s->num_tokens[i] = tokens;
        if (tokens < 0 || tokens > q->length || named >> one & 1) want = PAGED_BAD_ARGUMENT;
        if (tokens > 0 && q->length - tokens > q->computed) want = PAGED_BAD_ARGUMENT;
        if (tokens > 0 && q->length > q->computed) s->num_written = 0;
        for (int t = q->length - tokens; t < q->length && !want; t++) {
            const Block *block = &pool->blocks[s->batch[i]->block_table[t / block_size]];
            s->sealed |= block->ref_count > 1 || block->serial;
        }
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
    int rows = 0, want = layer >= s->num_written + (kind == WRITE);
    if (kind == WRITE && s->sealed) want = PAGED_BLOCK_SHARED;
    if (!pool->plan_number || layer < 0 || layer >= LAYERS) want = PAGED_BAD_ARGUMENT;
    if (layer == s->num_written) s->num_written++;
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
    int error = attend(pool, x, layer, 1, 1, query, out, lse);
    for (int i = 0; i < rows; i++) check(fabs(out[i] / sum[i] - 1) < 1e-6, "the mean of V");
    return judge(error, want);
}

static int make_call(void)
{
    kind = choose(CREATE, s->num_seqs ? LOOKUP : ATTEND);
    taken = n = 0;
    seq = NULL;
    if ((kind == CREATE || kind == FORK) && s->num_seqs == max_seqs) return 0;
    if (kind == PLAN) return make_plan();
    if (kind == WRITE || kind == ATTEND) return make_step(choose(-1, LAYERS), choose(0, 1));
    seq = kind == CREATE ? NULL : pool->seqs[choose(0, s->num_seqs - 1)];
    n = kind < APPEND ? 0 : choose(-1, num_blocks * block_size + 1);
    Sequence *q = seq ? &s->seqs[seq->index] : s->seqs;
    int want = n < 0 || n > q->length, tokens[TOKENS + 1], text = q->text;
    if (kind == LOOKUP) text = n > 0 && !q->length ? choose(1 << n, (2 << n) - 1) : 1;
    for (int t = 0; kind >= PUBLISH && t < size(text); t++) tokens[t] = first(t + 1, text) & 1;
    switch (kind) {
    case CREATE:
        s->seqs[s->num_seqs++] = (Sequence){.text = 1};
        return judge(seq_create(pool, &made), PAGED_OK);
    case RELEASE:
        *q = s->seqs[--s->num_seqs];  // the last one takes its place
        seq_release(seq);
        return judge(PAGED_OK, PAGED_OK);
    case APPEND:
        taken = blocks_for(q->length + n) - blocks_for(q->length);
        if (n > 0 && q->length % block_size)  // a shared block is copied
            taken += pool->blocks[arrlast(seq->block_table)].ref_count > 1;
        want = taken > pool->num_free ? PAGED_OUT_OF_BLOCKS : PAGED_OK;
        if (blocks_for(q->length + n) > num_blocks) want = PAGED_TOO_LONG;
        if (n < 0) want = PAGED_BAD_ARGUMENT;
        cut(q, q->length + n);
        return judge(seq_append(seq, n), want);
    case FORK:
        s->seqs[s->num_seqs] = *q;
        cut(&s->seqs[s->num_seqs++], n);
        return judge(seq_fork(seq, n, &made), want);
    case REWIND: cut(q, q->length - n); return judge(seq_rewind(seq, n), want);
    case PUBLISH: return judge(seq_publish(seq, tokens, n), n < 0 || n > q->computed);
    }
    want = n < 0 || q->length > 0;
    int got = seq_lookup(seq, tokens, n), next = seq->length + block_size;
    if (want || got) return judge(got, want);
    *q = (Sequence){text, n, n};
    cut(q, seq->length);
    check(q->length < n || n == 0, "a lookup leaves a token");
    uint64_t parent = q->length ? pool->blocks[arrlast(seq->block_table)].serial : 0;
    for (int b = 0; b < num_blocks && next < n; b++) {
        int fits = pool->blocks[b].serial && pool->blocks[b].parent == parent;
        check(!fits || last_k(b) != first(next, text), "the longest beginning");
    }
    return judge(got, want);
}

int main(int argc, char **argv)
{
    names = calls;
    s = allocate(sizeof *s);
    return search(argc, argv, make_call);
}
