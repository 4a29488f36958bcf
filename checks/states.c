// states: every state that a small pool can reach and, in each of them, every call.
//
//     cc -O2 checks/states.c -o states -lm
//     ./states 2 2 2           2 blocks of 2 tokens, at most 2 sequences; more triples may follow
//
// A model of what paged.h says runs beside the engine: plain arrays, without links, hashes or
// addresses. After each call, the memory of the engine must say what the model says. The search is
// breadth first, so a mistake is shown with a shortest way to it. Two states that differ only in
// the names of their blocks, or in the order of their sequences, are one.
//
// A text is a number: its tokens, 0 or 1, as bits after a leading 1. A token is chosen when it is
// first written. Its K and V are made of the text up to it, so what is read shows whose it is.

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, BLOCKS = 4, SLOTS = 4, SEQS = 3, MOST = BLOCKS * SLOTS, TEXTS = 2 << MOST };
enum { GONE = 0xffff, WRONG = 0xfffe };  // no block, no text
typedef uint16_t Number;

typedef struct Sequence {
    Number length, computed, text;
    Number place, planned;  // from 1 on, in the batch of the plan; its query tokens. 0: not in it
    Number table[BLOCKS];
} Sequence;

typedef struct State {  // blocks have the numbers from 1 on; 0 is none
    Number num_free, free_list[BLOCKS];
    Number count[BLOCKS + 1];
    Number published[BLOCKS + 1];           // the text of the block alone; 0: it is not published
    Number parent[BLOCKS + 1];              // the block before it; GONE: no longer published
    Number kv[BLOCKS + 1][LAYERS][SLOTS];  // the text up to the token that was written; 0: NaN
    Number num_seqs, has_plan, sealed, num_written;
    Sequence seqs[SEQS];
} State;

// The engine allocates from an array. So memcpy() saves a state, and goes back to it.
static struct World {
    State model;
    size_t used;
    char memory[1 << 16] __attribute__((aligned(64)));
} world, saved;

static void *take_memory(size_t size)
{
    void *p = world.memory + world.used;
    if (size > sizeof world.memory - world.used - 16) return NULL;
    world.used += (size + 15) / 16 * 16;
    return memset(p, 0, size);
}

#define calloc(n, size) take_memory((n) * (size))
#define aligned_alloc(unit, size) take_memory(size)
#define realloc(p, size) memmove(take_memory(size), p, (p) ? (size) : 0)
#define free(p) (void)(p)
#define PAGED_NO_MAIN
#include "../paged.cu.c"
#undef calloc
#undef realloc
#undef free

// ---- the model --------------------------------------------------------------------------------

static State *const s = &world.model;
static int num_blocks, block_size, max_seqs;

static int blocks_for(int length) { return (length + block_size - 1) / block_size; }
static int is_sealed(int block) { return s->count[block] > 1 || s->published[block] != 0; }
static int beginning(const Sequence *q, int n) { return q->text >> (q->length - n); }

static Number *slot(const Sequence *q, int layer, int position)
{
    return &s->kv[q->table[position / block_size]][layer][position % block_size];
}

static void clear(int block, int first)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = first; i < block_size; i++) s->kv[block][layer][i] = 0;
}

static void unpublish(int block)
{
    s->published[block] = s->parent[block] = 0;
    for (int i = 1; i <= num_blocks; i++)
        if (s->parent[i] == block) s->parent[i] = GONE;
}

static int fresh_block(void)
{
    unpublish(s->free_list[0]);
    clear(s->free_list[0], 0);
    return s->free_list[0];
}

// Puts a block, or none, into a table. One that is no longer in any is free: it goes to the front
// of the free list or, if it is published, to the back.
static void enter(Sequence *q, int entry, int block)
{
    int old = q->table[entry], i = 0;
    q->table[entry] = block;
    if (block && s->count[block]++ == 0) {
        while (s->free_list[i] != block) i++;
        memmove(s->free_list + i, s->free_list + i + 1, (BLOCKS - i - 1) * sizeof(Number));
        s->free_list[--s->num_free] = 0;
    }
    if (!old || --s->count[old] > 0) return;
    if (s->published[old]) {
        s->free_list[s->num_free++] = old;
    } else {
        clear(old, 0);
        memmove(s->free_list + 1, s->free_list, s->num_free++ * sizeof(Number));
        s->free_list[0] = old;
    }
}

static void expire(const Sequence *q)
{
    if (!q->place) return;
    s->has_plan = s->sealed = s->num_written = 0;
    for (int i = 0; i < SEQS; i++) s->seqs[i].place = s->seqs[i].planned = 0;
}

static int model_append(Sequence *q, int n)
{
    int have = blocks_for(q->length), want = blocks_for(q->length + n);
    int filled = q->length % block_size, last = filled ? q->table[have - 1] : 0;
    int copy = last && s->count[last] > 1;
    if (n < 0) return PAGED_BAD_ARGUMENT;
    if (n == 0) return PAGED_OK;
    if (want > num_blocks) return PAGED_TOO_LONG;
    if (want - have + copy > s->num_free) return PAGED_OUT_OF_BLOCKS;
    expire(q);
    if (copy) {
        enter(q, have - 1, fresh_block());
        memcpy(s->kv[q->table[have - 1]], s->kv[last], sizeof *s->kv);
    } else if (last) {
        unpublish(last);
    }
    if (last) clear(q->table[have - 1], filled);
    for (int i = have; i < want; i++) enter(q, i, fresh_block());
    q->length += n;
    q->text <<= n;
    return PAGED_OK;
}

static int model_fork(const Sequence *q, int at)
{
    if (at < 0 || at > q->length) return PAGED_BAD_ARGUMENT;
    if (at > 0) expire(q);
    Sequence *child = &s->seqs[s->num_seqs++];
    child->length = at;
    child->computed = min_int(at, q->computed);
    child->text = beginning(q, at);
    for (int i = 0; i < blocks_for(at); i++) enter(child, i, q->table[i]);
    return PAGED_OK;
}

static int model_rewind(Sequence *q, int n)
{
    if (n < 0 || n > q->length) return PAGED_BAD_ARGUMENT;
    if (n == 0) return PAGED_OK;
    expire(q);
    int length = q->length - n, filled = length % block_size;
    for (int i = blocks_for(q->length) - 1; i >= blocks_for(length); i--) enter(q, i, 0);
    q->text = beginning(q, length);
    q->length = length;
    q->computed = min_int(length, q->computed);
    int last = filled ? q->table[length / block_size] : 0;
    if (last && !is_sealed(last)) clear(last, filled);
    return PAGED_OK;
}

static void model_release(Sequence *q)
{
    expire(q);
    model_rewind(q, q->length);
    *q = s->seqs[--s->num_seqs];  // the last one takes its place
    memset(&s->seqs[s->num_seqs], 0, sizeof *q);
}

// The published block with the tokens of block i of a text, after that parent.
static int find(int parent, int text, int length, int i, int *own)
{
    *own = text >> (length - (i + 1) * block_size) & ((1 << block_size) - 1);
    *own |= 1 << block_size;
    for (int block = 1; block <= num_blocks; block++)
        if (s->published[block] == *own && s->parent[block] == parent) return block;
    return 0;
}

static int model_publish(Sequence *q, int n)
{
    if (n < 0 || n > q->computed) return PAGED_BAD_ARGUMENT;
    int i = n / block_size, own;
    while (i > 0 && !s->published[q->table[i - 1]]) i--;
    for (; i < n / block_size; i++) {
        int parent = i > 0 ? q->table[i - 1] : 0;
        int block = find(parent, q->text, q->length, i, &own);
        expire(q);
        if (block) {
            enter(q, i, block);
        } else {
            s->published[q->table[i]] = own;
            s->parent[q->table[i]] = parent;
        }
    }
    return PAGED_OK;
}

static int model_lookup(Sequence *q, int text, int n)
{
    if (n < 0 || q->length > 0) return PAGED_BAD_ARGUMENT;
    for (int i = 0, block = 0, own; (i + 1) * block_size < n; i++) {
        block = find(block, text, n, i, &own);
        if (!block) break;
        enter(q, i, block);
        q->length = q->computed = (i + 1) * block_size;
        q->text = text >> (n - q->length);
    }
    return PAGED_OK;
}

typedef struct Call {
    signed char kind, num;            // of pairs
    signed char seqs[SEQS], n[SEQS];  // each a sequence and a number of tokens, or a layer
    int text;                         // of a lookup; a token to write; flags of attend()
} Call;

static int model_plan(const Call *c)
{
    int sealed = 0, num_written = LAYERS, seen = 0;
    for (int i = 0; i < c->num; i++) {
        const Sequence *q = &s->seqs[(int)c->seqs[i]];
        int start = q->length - c->n[i];
        if (c->n[i] < 0 || start < 0 || seen & 1 << c->seqs[i]) return PAGED_BAD_ARGUMENT;
        if (c->n[i] > 0 && start > q->computed) return PAGED_BAD_ARGUMENT;
        seen |= 1 << c->seqs[i];
        if (c->n[i] > 0 && q->computed < q->length) num_written = 0;
        for (int t = start; t < q->length; t++) sealed |= is_sealed(q->table[t / block_size]);
    }
    for (int i = 0; i < SEQS; i++) s->seqs[i].place = s->seqs[i].planned = 0;
    for (int i = 0, place = 0; i < c->num; i++) {
        if (c->n[i] == 0) continue;
        s->seqs[(int)c->seqs[i]].place = ++place;
        s->seqs[(int)c->seqs[i]].planned = c->n[i];
    }
    s->has_plan = 1;
    s->sealed = sealed;
    s->num_written = num_written;
    return PAGED_OK;
}

// The query tokens of the plan in their order: of which sequence, at which position.
static int num_rows, positions[MOST * SEQS];
static Sequence *rows[MOST * SEQS];

static void list_rows(void)
{
    num_rows = 0;
    for (int place = 1; place <= SEQS; place++)
        for (Sequence *q = s->seqs; q < s->seqs + SEQS; q++)
            for (int left = q->place == place ? q->planned : 0; left > 0; left--) {
                positions[num_rows] = q->length - left;
                rows[num_rows++] = q;
            }
}

static int model_write(int layer)
{
    if (!s->has_plan || layer < 0 || layer >= LAYERS) return PAGED_BAD_ARGUMENT;
    if (num_rows == 0) return PAGED_OK;
    if (s->sealed) return PAGED_BLOCK_SHARED;
    if (layer > s->num_written) return PAGED_BAD_ARGUMENT;
    for (int row = 0; row < num_rows; row++)
        *slot(rows[row], layer, positions[row]) = beginning(rows[row], positions[row] + 1);
    if (layer == s->num_written) s->num_written++;
    for (int row = 0; row < num_rows; row++)
        if (s->num_written == LAYERS) rows[row]->computed = rows[row]->length;
    return PAGED_OK;
}

// ---- the engine beside it ---------------------------------------------------------------------

enum { CREATE, APPEND, FORK, REWIND, RELEASE, PUBLISH, LOOKUP, GATHER, PLAN, WRITE, ATTEND };
static const char *const names[] = {"create",  "append", "fork",   "rewind", "release", "publish",
                                    "lookup", "gather", "plan",  "write",  "attend"};

static struct Node {  // a state, and how it is reached: by a call from another one
    uint32_t before;
    Call call;
} *nodes;
static size_t num_nodes, num_calls, now;
static Call calling;
static Pool *pool;

static void print_call(Call c)
{
    printf("    %s", names[(int)c.kind]);
    for (int i = 0; i < c.num; i++) printf("  %d: %d", c.seqs[i], c.n[i]);
    printf("  %d\n", c.text);
}

static void print_way(size_t node)
{
    if (node == 0) return;
    print_way(nodes[node].before);
    print_call(nodes[node].call);
}

static void check(int ok, const char *what)
{
    if (ok) return;
    printf("FAIL  %s, after these calls (sequence: n  text):\n", what);
    print_way(now);
    print_call(calling);
    printf("0 passed, 1 failed, 0 skipped\n");
    fflush(stdout);
    _Exit(1);
}

static void stopped(int number) { check(0, number == SIGABRT ? "panic" : "crash"); }

static float k_of(int text, int layer) { return text ? text + (float)TEXTS * layer : NAN; }

static int text_of(float k, float v, int layer)
{
    if (isnan(k) && isnan(v)) return 0;
    k -= (float)TEXTS * layer;
    return k > 0 && k < WRONG && k_of((int)k, layer) == -v ? (int)k : WRONG;
}

// What the memory of the engine says. The tokens and the rows of a plan are known to the model only.
static State observe(void)
{
    State o = *s;
    o.num_free = pool->num_free;
    o.num_seqs = arrlen(pool->seqs);
    o.has_plan = pool->plan_number != 0;
    for (int i = 0, b = num_blocks; i < BLOCKS; i++) {
        b = i < pool->num_free ? pool->blocks[b].next : -1;
        o.free_list[i] = b + 1;
    }
    for (int b = 1; b <= num_blocks; b++) {
        const Block *block = &pool->blocks[b - 1];
        o.count[b] = block->ref_count;
        o.published[b] = block->serial != 0;
        o.parent[b] = block->parent ? GONE : 0;
        for (int i = 0; i < num_blocks; i++)
            if (block->parent && pool->blocks[i].serial == block->parent) o.parent[b] = i + 1;
        for (int i = 0; i < block_size && block->serial; i++)
            o.published[b] = 2 * o.published[b] + pool->tokens[(b - 1) * block_size + i];
        for (int i = 0; i < LAYERS * block_size; i++) {
            size_t at = kv_offset(&pool->config, i / block_size, b - 1, 0, i % block_size);
            o.kv[b][i / block_size][i % block_size] =
                text_of(((float *)pool->k)[at], ((float *)pool->v)[at], i / block_size);
        }
    }
    for (int i = 0; i < o.num_seqs && i < SEQS; i++) {
        const Seq *seq = pool->seqs[i];
        Sequence *q = &o.seqs[i];
        int in_plan = o.has_plan && seq->plan_number == pool->plan_number;
        q->length = seq->length;
        q->computed = seq->num_computed_tokens;
        if (in_plan != (q->place > 0)) q->place = WRONG;
        for (int e = 0; e < BLOCKS; e++)
            q->table[e] = e < arrlen(seq->block_table) ? seq->block_table[e] + 1 : 0;
    }
    return o;
}

static int check_gather(const Sequence *q, const Seq *seq, int layer)
{
    float k[MOST], v[MOST];
    int error = seq_gather(seq, layer, k, v);
    for (int t = 0; t < q->length && !error; t++) {
        check(text_of(k[t], v[t], layer) == *slot(q, layer, t), "K and V are those of the blocks");
        check(t >= q->computed || *slot(q, layer, t) == beginning(q, t + 1), "K and V are its own");
    }
    return error;
}

// The query is 0, so all weights are equal: the mean of V.
static int check_attend(int layer, int flags)
{
    static const float q[MOST * SEQS];
    float out[MOST * SEQS], lse[MOST * SEQS];
    int error = attend(pool, flags, layer, 1, 1, q, out, lse);
    for (int row = 0; row < num_rows && !error; row++) {
        double sum = 0;
        int visible = positions[row] + 1;
        for (int t = 0; t < visible; t++) sum -= k_of(beginning(rows[row], t + 1), layer);
        check(fabs(out[row] * visible - sum) <= -1e-6 * sum, "attention is the mean of V");
    }
    return error;
}

static int layer_ok(int layer)
{
    int ok = s->has_plan && layer >= 0 && layer < LAYERS && (!num_rows || layer < s->num_written);
    return ok ? PAGED_OK : PAGED_BAD_ARGUMENT;
}

static void check_unchanged(void)
{
    ptrdiff_t to_saved = saved.memory - world.memory;
    ((Pool *)((char *)pool + to_saved))->batch_number = pool->batch_number;
    for (int i = 0; i < s->num_seqs; i++)
        ((Seq *)((char *)pool->seqs[i] + to_saved))->batch_number = pool->seqs[i]->batch_number;
    check(memcmp(world.memory, saved.memory, saved.used) == 0, "a refused call changes no byte");
}

// Makes a call in the engine and in the model.
static int make_call(Call c)
{
    int got = PAGED_OK, expected = PAGED_OK, n = c.n[0];
    Sequence *q = &s->seqs[(int)c.seqs[0]];
    Seq *seq = c.seqs[0] < s->num_seqs ? pool->seqs[(int)c.seqs[0]] : NULL;
    Seq *made = NULL, *seqs[SEQS];
    int tokens[MOST + 1] = {0}, counts[SEQS];
    float k[MOST * SEQS], v[MOST * SEQS];
    calling = c;
    num_calls++;
    list_rows();
    switch (c.kind) {
    case CREATE:
        got = seq_create(pool, &made);
        s->seqs[s->num_seqs++].text = 1;
        break;
    case APPEND:
        got = seq_append(seq, n);
        expected = model_append(q, n);
        break;
    case FORK:
        got = seq_fork(seq, n, &made);
        expected = model_fork(q, n);
        break;
    case REWIND:
        got = seq_rewind(seq, n);
        expected = model_rewind(q, n);
        break;
    case RELEASE:
        seq_release(seq);
        model_release(q);
        break;
    case PUBLISH:
        for (int t = 0; t < q->length; t++) tokens[t] = beginning(q, t + 1) & 1;
        got = seq_publish(seq, tokens, n);
        expected = model_publish(q, n);
        break;
    case LOOKUP:
        for (int t = 0; t < n; t++) tokens[t] = c.text >> (n - 1 - t) & 1;
        got = seq_lookup(seq, tokens, n);
        expected = model_lookup(q, c.text, n);
        break;
    case GATHER:
        got = check_gather(q, seq, n);
        expected = n < 0 || n >= LAYERS ? PAGED_BAD_ARGUMENT : PAGED_OK;
        break;
    case PLAN:
        for (int i = 0; i < c.num; i++) {
            seqs[i] = pool->seqs[(int)c.seqs[i]];
            counts[i] = c.n[i];
        }
        got = pool_plan(pool, &(Batch){c.num, seqs, counts});
        expected = model_plan(&c);
        break;
    case WRITE:
        for (int row = 0; row < num_rows && !s->sealed && n == 0; row++)
            if (!*slot(rows[row], 0, positions[row]))
                rows[row]->text |= c.text << (rows[row]->length - 1 - positions[row]);
        for (int row = 0; row < num_rows; row++) {
            k[row] = k_of(beginning(rows[row], positions[row] + 1), n);
            v[row] = -k[row];
        }
        got = pool_write(pool, n, k, v);
        expected = model_write(n);
        break;
    case ATTEND:
        got = check_attend(n, c.text);
        expected = layer_ok(n);
        break;
    }
    check(got == expected, "the result is what paged.h says");
    check(made == (c.kind <= FORK && c.kind != APPEND && !got ? arrlast(pool->seqs) : NULL), "out");
    if (got) {
        check_unchanged();
        return 0;
    }
    const char *broken = pool_check(pool);
    check(!broken, broken);
    State o = observe();
    check(memcmp(&o, s, sizeof o) == 0, "the engine is in the state of the model");
    return 1;
}

// ---- the search -------------------------------------------------------------------------------

static uint64_t *visited, mask, hash;
static int new_name[BLOCKS + 1], num_names;

static void add_to_hash(int x)
{
    hash = (hash ^ (unsigned)x) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
}

// Blocks are named in the order in which the tables, and then the free list, lead to them.
static void add_block(int block)
{
    if (block && block != GONE && !new_name[block]) {
        new_name[block] = ++num_names;
        add_block(s->parent[block]);
        add_to_hash(s->count[block]);
        add_to_hash(s->published[block]);
        for (int i = 0; i < LAYERS * SLOTS; i++)
            add_to_hash(s->kv[block][i / SLOTS][i % SLOTS]);
    }
    add_to_hash(block == GONE ? GONE : new_name[block]);
}

static int compare(const void *a, const void *b) { return memcmp(a, b, sizeof(Sequence)); }

static int is_new(void)
{
    Sequence seqs[SEQS];
    memcpy(seqs, s->seqs, sizeof seqs);
    qsort(seqs, SEQS, sizeof *seqs, compare);
    memset(new_name, 0, sizeof new_name);
    hash = num_names = 0;
    for (int i = 0; i < SEQS; i++) {
        for (int f = 0; f < 5; f++) add_to_hash((&seqs[i].length)[f]);
        for (int e = 0; e < blocks_for(seqs[i].length); e++) add_block(seqs[i].table[e]);
    }
    for (int i = 0; i < s->num_free; i++) add_block(s->free_list[i]);
    add_to_hash(s->has_plan + 2 * s->sealed + 4 * s->num_written);
    uint64_t at = hash & mask;
    while (visited[at] && visited[at] != hash) at = (at + 1) & mask;
    if (visited[at]) return 0;
    visited[at] = hash;
    return 1;
}

static void try_call(Call c)
{
    if (!make_call(c)) return;
    if (is_new()) nodes[num_nodes++] = (struct Node){(uint32_t)now, c};
    if (num_nodes * 2 > mask) printf("too many states\n"), exit(2);
    memcpy(&world, &saved, offsetof(struct World, memory) + saved.used);
}

static void try_plans(Call c)
{
    try_call(c);
    if (c.num == s->num_seqs) return;
    c.num++;
    for (int i = 0; i < s->num_seqs; i++)
        for (int n = c.num == 1 ? -1 : 0; n <= s->seqs[i].length + 1; n++) {
            c.seqs[c.num - 1] = i;
            c.n[c.num - 1] = n;
            try_plans(c);
        }
}

static void every_call(void)
{
    if (s->num_seqs < max_seqs) try_call((Call){.kind = CREATE});
    for (signed char i = 0; i < s->num_seqs; i++) {
        int length = s->seqs[i].length, room = num_blocks * block_size - length;
        try_call((Call){RELEASE, 1, {i}, {0}, 0});
        for (signed char n = -1; n <= room + 1; n++) try_call((Call){APPEND, 1, {i}, {n}, 0});
        for (signed char n = -1; n <= length + 1; n++) {
            if (s->num_seqs < max_seqs || n < 0 || n > length)
                try_call((Call){FORK, 1, {i}, {n}, 0});
            try_call((Call){REWIND, 1, {i}, {n}, 0});
            try_call((Call){PUBLISH, 1, {i}, {n}, 0});
        }
        for (signed char n = -1; n <= (length ? 0 : room + 1); n++)
            for (int text = 1 << (n < 0 ? 0 : n), end = 2 * text; text < end; text += 1 + (n % block_size == 1 ))
                try_call((Call){LOOKUP, 1, {i}, {n}, text});
        for (signed char layer = -1; layer <= LAYERS; layer++)
            try_call((Call){GATHER, 1, {i}, {layer}, 0});
    }
    for (signed char layer = -1; layer <= LAYERS; layer++)
        for (int x = 0; x < 2; x++) {
            try_call((Call){WRITE, 0, {0}, {layer}, x});   // a token
            try_call((Call){ATTEND, 0, {0}, {layer}, x});  // flags: the blocks, or gathered
        }
    try_plans((Call){.kind = PLAN});
}

static void reach(size_t node)
{
    if (node > 0) {
        reach(nodes[node].before);
        make_call(nodes[node].call);
        return;
    }
    PoolConfig config = {LAYERS, 1, 1, block_size, num_blocks, PAGED_F32, 1, PAGED_CPU};
    memset(&world, 0, offsetof(struct World, memory) + world.used);
    if (pool_create(&config, &pool) != PAGED_OK) exit(2);
    pool->num_buckets = 1;  // all blocks in one list
    size_t plane = pool_bytes_per_block(&config) / 2 * num_blocks;
    memset(pool->k, 0xff, plane);
    memset(pool->v, 0xff, plane);
    for (int i = 0; i < num_blocks; i++) s->free_list[i] = i + 1;
    s->num_free = num_blocks;
}

int main(int argc, char **argv)
{
    signal(SIGABRT, stopped);
    signal(SIGSEGV, stopped);
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    mask = ((uint64_t)1 << 26) - 1;
    nodes = (struct Node *)malloc((mask / 2 + 2) * sizeof *nodes);
    for (int i = 1; i + 2 < argc; i += 3) {
        num_blocks = atoi(argv[i]);
        block_size = atoi(argv[i + 1]);
        max_seqs = atoi(argv[i + 2]);
        visited = (uint64_t *)calloc(mask + 1, sizeof *visited);
        num_nodes = num_calls = now = 0;
        reach(0);
        is_new();
        nodes[num_nodes++] = (struct Node){0, {0}};
        for (; now < num_nodes; now++) {
            reach(now);
            memcpy(&saved, &world, offsetof(struct World, memory) + world.used);
            every_call();
        }
        printf("ok    %d blocks of %d tokens, %d sequences: %zu states, %zu calls\n", num_blocks,
               block_size, max_seqs, num_nodes, num_calls);
        free(visited);
    }
    printf("%d passed, 0 failed, 0 skipped\n", (argc - 1) / 3);
    return 0;
}
