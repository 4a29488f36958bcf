// states: every state that a small pool can reach and, in each of them, every call.
//
//     cc -O2 checks/states.c -o states -lm
//     ./states 2 2 2           2 blocks of 2 tokens, and at most 2 sequences
//
// A model of what paged.h says runs beside the engine: plain arrays, without links, hashes and
// addresses. After each call, both must be in the same state; after a refused one, no byte of the
// engine may differ. The search is breadth first, so a mistake is shown with a shortest way to it.
// States that differ only in the names of blocks or in the order of sequences count as one.
//
// A token is 0 or 1, chosen when it is first written. A text is a number: its tokens as bits, after
// a leading 1. K and V of a token are the text up to it, so what is read shows whose it is.

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, BLOCKS = 4, SEQS = 3, TOKENS = 12, ROWS = TOKENS * SEQS, GONE = 0xffff };
typedef uint16_t Number;

typedef struct Sequence {
    Number length, begun, computed;  // tokens; leading ones that are written: in layer 0, in all
    Number text, place, planned;     // place: in the batch of the plan, from 1 on; 0: not in it
    Number table[BLOCKS];            // blocks have the numbers from 1 on; 0 is none
} Sequence;

typedef struct State {
    Number num_free, num_seqs, has_plan, sealed, num_written;
    Number free_list[BLOCKS], count[BLOCKS + 1];
    Number published[BLOCKS + 1];  // the text of the block alone; 0: it is not published
    Number parent[BLOCKS + 1];     // the block before it; GONE: that is no longer published
    Sequence seqs[SEQS];
} State;

static struct World {  // a copy of it is all that is needed to go back
    State model;
    size_t used;
    char memory[1 << 15] __attribute__((aligned(64)));  // all that the engine allocates
} world, saved;

static void *allocate(size_t size)
{
    char *p = world.memory + world.used;
    if (size > sizeof world.memory / 2 || world.used > sizeof world.memory / 2) abort();
    world.used += (size + 15) / 16 * 16;
    return memset(p, 0, size);
}

#define calloc(n, size) allocate((n) * (size))
#define aligned_alloc(unit, size) allocate(size)
#define realloc(p, size) memmove(allocate(size), (p) ? (p) : world.memory, (p) ? (size) : 0)
#define free(p) (void)(p)
#define PAGED_NO_MAIN
#include "../paged.cu.c"

// ---- the model --------------------------------------------------------------------------------

static State *const s = &world.model;
static int num_blocks, block_size, max_seqs;
static int num_rows, position[ROWS];  // the query tokens of the plan
static Sequence *row[ROWS];

static int blocks_for(int length) { return (length + block_size - 1) / block_size; }
static int beginning(const Sequence *q, int n) { return q->text >> (q->length - n); }

static void expire(const Sequence *q)
{
    if (!q->place) return;
    s->has_plan = s->sealed = s->num_written = 0;
    for (int i = 0; i < SEQS; i++) s->seqs[i].place = s->seqs[i].planned = 0;
}

static int unpublish(int block)
{
    s->published[block] = s->parent[block] = 0;
    for (int i = 1; i <= num_blocks; i++)
        if (s->parent[i] == block) s->parent[i] = GONE;
    return block;
}

// Puts a block into a table, or 0. One that is in no table is free: at the front of the list or, if
// it is published, at the back.
static void enter(Number *entry, int block)
{
    int old = *entry, i = 0;
    *entry = block;
    if (block && s->count[block]++ == 0) {
        while (s->free_list[i] != block) i++;
        memmove(s->free_list + i, s->free_list + i + 1, (BLOCKS - i - 1) * sizeof(Number));
        s->free_list[--s->num_free] = 0;
    }
    if (!old || --s->count[old] > 0) return;
    i = s->published[old] ? s->num_free : 0;
    memmove(s->free_list + i + 1, s->free_list + i, (s->num_free++ - i) * sizeof(Number));
    s->free_list[i] = old;
}

static void set_length(Sequence *q, int length)
{
    q->text = length < q->length ? beginning(q, length) : q->text << (length - q->length);
    q->length = length;
    q->begun = min_int(length, q->begun);
    q->computed = min_int(length, q->computed);
}

static int model_create(void)
{
    s->seqs[s->num_seqs++].text = 1;
    return PAGED_OK;
}

static int model_append(Sequence *q, int n)
{
    int have = blocks_for(q->length), want = blocks_for(q->length + n);
    int last = q->length % block_size > 0 ? q->table[have - 1] : 0;
    int copy = s->count[last] > 1;
    if (n <= 0) return n == 0 ? PAGED_OK : PAGED_BAD_ARGUMENT;
    if (want > num_blocks) return PAGED_TOO_LONG;
    if (want - have + copy > s->num_free) return PAGED_OUT_OF_BLOCKS;
    expire(q);
    if (last && !copy) unpublish(last);
    for (int i = have - copy; i < want; i++) enter(&q->table[i], unpublish(s->free_list[0]));
    set_length(q, q->length + n);
    return PAGED_OK;
}

static int model_fork(const Sequence *q, int at)
{
    if (at < 0 || at > q->length) return PAGED_BAD_ARGUMENT;
    if (at > 0) expire(q);
    Sequence *child = &s->seqs[s->num_seqs++];
    *child = *q;
    child->place = child->planned = 0;
    memset(child->table, 0, sizeof child->table);
    set_length(child, at);
    for (int i = 0; i < blocks_for(at); i++) enter(&child->table[i], q->table[i]);
    return PAGED_OK;
}

static int model_rewind(Sequence *q, int n)
{
    if (n < 0 || n > q->length) return PAGED_BAD_ARGUMENT;
    if (n > 0) expire(q);
    for (int i = blocks_for(q->length) - 1; i >= blocks_for(q->length - n); i--)
        enter(&q->table[i], 0);
    set_length(q, q->length - n);
    return PAGED_OK;
}

static int model_release(Sequence *q)
{
    expire(q);
    model_rewind(q, q->length);
    *q = s->seqs[--s->num_seqs];  // the last one takes its place
    memset(&s->seqs[s->num_seqs], 0, sizeof *q);
    return PAGED_OK;
}

// Block i of a text, alone, and the block that is published with these tokens after that parent.
static int find(int parent, int text, int length, int i, int *own)
{
    *own = (text >> (length - (i + 1) * block_size)) % (1 << block_size) + (1 << block_size);
    for (int block = 1; block <= num_blocks; block++)
        if (s->published[block] == *own && s->parent[block] == parent) return block;
    return 0;
}

static int model_publish(Sequence *q, int n)
{
    int own, i = n / block_size;
    if (n < 0 || n > q->computed) return PAGED_BAD_ARGUMENT;
    while (i > 0 && !s->published[q->table[i - 1]]) i--;
    for (; i < n / block_size; i++) {
        int parent = i > 0 ? q->table[i - 1] : 0;
        int block = find(parent, q->text, q->length, i, &own);
        expire(q);
        if (block) {
            enter(&q->table[i], block);
        } else {
            s->published[q->table[i]] = own;
            s->parent[q->table[i]] = parent;
        }
    }
    return PAGED_OK;
}

static int model_lookup(Sequence *q, int text, int n)
{
    int own, block = 0;
    if (n < 0 || q->length > 0) return PAGED_BAD_ARGUMENT;
    for (int i = 0; (i + 1) * block_size < n; i++) {
        block = find(block, text, n, i, &own);
        if (!block) break;
        enter(&q->table[i], block);
        q->length = q->begun = q->computed = (i + 1) * block_size;
        q->text = text >> (n - q->length);
    }
    return PAGED_OK;
}

typedef struct Call {
    signed char kind, num, seq[SEQS], n[SEQS];  // n: tokens of each sequence, or a layer
    Number text;                                // of a lookup; a token to write; flags of attend()
} Call;

static int model_plan(const Call *c)
{
    int sealed = 0, num_written = LAYERS, used = 0;
    for (int i = 0; i < c->num; used |= 1 << c->seq[i++]) {
        const Sequence *q = &s->seqs[(int)c->seq[i]];
        int n = c->n[i], start = q->length - n;
        if (n < 0 || start < 0 || used >> c->seq[i] & 1) return PAGED_BAD_ARGUMENT;
        if (n > 0 && start > q->computed) return PAGED_BAD_ARGUMENT;
        if (n > 0 && q->computed < q->length) num_written = 0;
        for (int t = start; t < q->length; t++)
            sealed |=
                s->count[q->table[t / block_size]] > 1 || s->published[q->table[t / block_size]];
    }
    for (int i = 0; i < SEQS; i++) s->seqs[i].place = s->seqs[i].planned = 0;
    for (int i = 0, place = 0; i < c->num; i++) {
        if (c->n[i] == 0) continue;  // the sequence is left out
        s->seqs[(int)c->seq[i]].place = ++place;
        s->seqs[(int)c->seq[i]].planned = c->n[i];
    }
    s->has_plan = 1;
    s->sealed = sealed;
    s->num_written = num_written;
    return PAGED_OK;
}

static void list_rows(void)
{
    num_rows = 0;
    for (int place = 1; place <= SEQS; place++)
        for (Sequence *q = s->seqs; q < s->seqs + SEQS; q++)
            for (int t = q->length - q->planned; q->place == place && t < q->length; t++) {
                position[num_rows] = t;
                row[num_rows++] = q;
            }
}

static int model_write(int layer)
{
    if (!s->has_plan || layer < 0 || layer >= LAYERS) return PAGED_BAD_ARGUMENT;
    if (num_rows == 0) return PAGED_OK;
    if (s->sealed) return PAGED_BLOCK_SHARED;
    if (layer > s->num_written) return PAGED_BAD_ARGUMENT;
    if (layer == s->num_written) s->num_written++;
    for (int i = 0; i < num_rows; i++) {
        row[i]->begun = row[i]->length;
        if (s->num_written == LAYERS) row[i]->computed = row[i]->length;
    }
    return PAGED_OK;
}

static int model_attend(int layer)
{
    int good = s->has_plan && layer >= 0 && layer < LAYERS;
    return good && (num_rows == 0 || layer < s->num_written) ? PAGED_OK : PAGED_BAD_ARGUMENT;
}

// ---- the engine beside it ---------------------------------------------------------------------

enum { CREATE, APPEND, FORK, REWIND, PUBLISH, GATHER, RELEASE, LOOKUP, PLAN, WRITE, ATTEND };
static const char *const names[] = {"create",  "append", "fork", "rewind", "publish", "gather",
                                    "release", "lookup", "plan", "write",  "attend"};

static struct Node {  // a state, and the call that leads to it from another one
    uint32_t before;
    Call call;
} nodes[1 << 24];
static size_t num_nodes, num_calls, now;
static Call calling;
static Pool *pool;

static void print_call(Call c)
{
    printf("    %s", names[(int)c.kind]);
    if (c.kind >= WRITE)
        printf(" layer %d, %s %d", c.n[0], c.kind == WRITE ? "token" : "flags", c.text);
    for (int i = 0; i < c.num; i++) printf(" s%d %d", c.seq[i], c.n[i]);
    if (c.kind == LOOKUP) printf(" text %d", c.text);
    printf("\n");
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
    printf("FAIL  %s, after these calls:\n", what);
    print_way(now);
    print_call(calling);
    printf("0 passed, 1 failed, 0 skipped\n");
    fflush(stdout);
    _Exit(1);
}

static void stopped(int signal) { check(0, signal == SIGABRT ? "a panic" : "a crash"); }

static float k_of(const Sequence *q, int t, int layer)
{
    return (float)(beginning(q, t + 1) + layer * 8192);
}

// What the engine says: counts, tables, lists, as numbers of the model.
static State observe(void)
{
    State o = *s;
    o.num_free = pool->num_free;
    o.num_seqs = arrlen(pool->seqs);
    o.has_plan = pool->plan_number != 0;
    if (o.has_plan) {
        o.sealed = pool->plan->sealed;
        o.num_written = pool->plan->num_written_layers;
    }
    for (int i = 0, b = num_blocks; i < BLOCKS; i++) {
        b = i < pool->num_free ? pool->blocks[b].next : -1;
        o.free_list[i] = b + 1;
    }
    for (int b = 0; b < num_blocks; b++) {
        const Block *block = &pool->blocks[b];
        o.count[b + 1] = block->ref_count;
        o.published[b + 1] = block->serial != 0;
        o.parent[b + 1] = block->parent ? GONE : 0;
        for (int i = 0; i < num_blocks; i++)
            if (block->parent && pool->blocks[i].serial == block->parent) o.parent[b + 1] = i + 1;
        for (int i = 0; i < block_size && block->serial; i++)
            o.published[b + 1] = 2 * o.published[b + 1] + pool->tokens[b * block_size + i];
    }
    for (int i = 0; i < s->num_seqs; i++) {
        const Seq *seq = pool->seqs[i];
        o.seqs[i].length = seq->length;
        o.seqs[i].computed = seq->num_computed_tokens;
        if ((pool->plan_number && seq->plan_number == pool->plan_number) != (s->seqs[i].place > 0))
            o.seqs[i].place = GONE;
        for (int e = 0; e < BLOCKS; e++)
            o.seqs[i].table[e] = e < arrlen(seq->block_table) ? seq->block_table[e] + 1 : 0;
    }
    return o;
}

// Every sequence must read its own text, and NaN where nothing is written.
static void check_contents(void)
{
    float k[TOKENS], v[TOKENS];
    for (int i = 0; i < s->num_seqs * LAYERS; i++) {
        const Sequence *q = &s->seqs[i / LAYERS];
        int layer = i % LAYERS, written = layer == 0 ? q->begun : q->computed;
        check(!seq_gather(pool->seqs[i / LAYERS], layer, k, v), "gather");
        for (int t = 0; t < q->length; t++) {
            float expected = k_of(q, t, layer);
            int good =
                t < written ? k[t] == expected && v[t] == -expected : isnan(k[t]) && isnan(v[t]);
            check(good, "a sequence reads what it has written");
        }
    }
}

// The query is 0, so that all weights are equal and the result is the mean of V.
static int check_attend(int flags, int layer)
{
    static const float query[ROWS];
    float out[ROWS], lse[ROWS];
    int error = attend(pool, flags, layer, 1, 1, query, out, lse);
    for (int i = 0; i < num_rows && !error; i++) {
        double sum = 0;
        for (int t = 0; t <= position[i]; t++) sum += k_of(row[i], t, layer);
        check(fabs(out[i] * (position[i] + 1) + sum) <= 1e-6 * sum, "attention is the mean of V");
    }
    return error;
}

static void check_memory(void)
{
    ptrdiff_t to_saved = saved.memory - world.memory;  // but for the number of the batch
    ((Pool *)((char *)pool + to_saved))->batch_number = pool->batch_number;
    for (int i = 0; i < s->num_seqs; i++)
        ((Seq *)((char *)pool->seqs[i] + to_saved))->batch_number = pool->seqs[i]->batch_number;
    check(memcmp(world.memory, saved.memory, saved.used) == 0, "a refused call changes no byte");
}

// Compares what the engine and the model have made of a call. Returns 0 if it was refused.
static int judge(int got, int expected)
{
    check(got == expected, "the result is not what paged.h says");
    if (got != PAGED_OK) {
        check_memory();
        return 0;
    }
    State o = observe();
    const char *broken = pool_check(pool);
    check(!broken, broken);
    check(memcmp(&o, s, sizeof o) == 0, "the engine is not in the state of the model");
    check_contents();
    return 1;
}

static int make_call(Call c)
{
    float k[ROWS], v[ROWS];
    int n = c.n[0], tokens[TOKENS + 1], counts[SEQS];
    Sequence *q = &s->seqs[(int)c.seq[0]];
    Seq *seqs[SEQS], *made;
    calling = c;
    num_calls++;
    list_rows();
    for (int i = 0; i < c.num; i++) {
        seqs[i] = pool->seqs[(int)c.seq[i]];
        counts[i] = c.n[i];
    }
    int text = c.kind == LOOKUP ? c.text : q->text;
    int length = c.kind == LOOKUP ? n : q->length;
    for (int t = 0; t < length; t++) tokens[t] = text >> (length - 1 - t) & 1;
    for (int i = 0; i < num_rows && c.kind == WRITE; i++) {
        if (position[i] >= row[i]->begun && n == 0 && !s->sealed)
            row[i]->text |= c.text << (row[i]->length - 1 - position[i]);
        k[i] = k_of(row[i], position[i], n);
        v[i] = -k[i];
    }
    switch (c.kind) {
    case CREATE: return judge(seq_create(pool, &made), model_create());
    case APPEND: return judge(seq_append(seqs[0], n), model_append(q, n));
    case FORK: return judge(seq_fork(seqs[0], n, &made), model_fork(q, n));
    case REWIND: return judge(seq_rewind(seqs[0], n), model_rewind(q, n));
    case PUBLISH: return judge(seq_publish(seqs[0], tokens, n), model_publish(q, n));
    case GATHER: return judge(seq_gather(seqs[0], n, k, v), n < 0 || n >= LAYERS);
    case RELEASE: return seq_release(seqs[0]), judge(PAGED_OK, model_release(q));
    case LOOKUP: return judge(seq_lookup(seqs[0], tokens, n), model_lookup(q, text, n));
    case PLAN: return judge(pool_plan(pool, &(Batch){c.num, seqs, counts}), model_plan(&c));
    case WRITE: return judge(pool_write(pool, n, k, v), model_write(n));
    default: return judge(check_attend(c.text, n), model_attend(n));
    }
}

// ---- the search -------------------------------------------------------------------------------

static uint64_t visited[1 << 25], hash;  // of the states
static int new_name[BLOCKS + 1], num_names;

static void add(int x)
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
        add(s->count[block]);
        add(s->published[block]);
    }
    add(block == GONE ? GONE : new_name[block]);
}

static int compare(const void *a, const void *b) { return memcmp(a, b, sizeof(Sequence)); }

static int is_new(void)
{
    Sequence seqs[SEQS];
    memcpy(seqs, s->seqs, sizeof seqs);
    qsort(seqs, SEQS, sizeof *seqs, compare);
    memset(new_name, 0, sizeof new_name);
    hash = num_names = 0;
    for (const Sequence *q = seqs; q < seqs + SEQS; q++) {
        for (const Number *field = &q->length; field < q->table; field++) add(*field);
        for (int i = 0; i < BLOCKS; i++) add_block(q->table[i]);
    }
    for (int i = 0; i < s->num_free; i++) add_block(s->free_list[i]);
    add(s->has_plan + 2 * s->sealed + 4 * s->num_written);
    size_t mask = sizeof visited / sizeof *visited - 1, at = hash & mask;
    while (visited[at] && visited[at] != hash) at = (at + 1) & mask;
    if (visited[at]) return 0;
    visited[at] = hash;
    return 1;
}

static void copy_world(struct World *to, const struct World *from)
{
    memcpy(to, from, offsetof(struct World, memory) + from->used);
}

static void try_call(Call c)
{
    if (c.kind <= FORK && c.kind != APPEND && s->num_seqs == max_seqs) return;
    if (!make_call(c)) return;
    if (is_new()) nodes[num_nodes++] = (struct Node){(uint32_t)now, c};
    if (num_nodes == sizeof nodes / sizeof *nodes) puts("too many states"), exit(2);
    copy_world(&world, &saved);
}

static void try_plans(Call c)  // a batch, and all that are longer
{
    try_call(c);
    if (c.num++ == s->num_seqs) return;
    for (int i = 0; i < s->num_seqs; i++)
        for (int n = -1; n <= s->seqs[i].length + 1; n++) {
            c.seq[c.num - 1] = (signed char)i;
            c.n[c.num - 1] = (signed char)n;
            if (n >= 0 || c.num == 1) try_plans(c);
        }
}

static void every_call(void)
{
    int most = num_blocks * block_size + 1;
    try_call((Call){.kind = CREATE});
    for (signed char i = 0; i < s->num_seqs; i++) {
        for (signed char kind = APPEND; kind <= GATHER; kind++)
            for (signed char n = -1; n <= most; n++) try_call((Call){kind, 1, {i}, {n}, 0});
        try_call((Call){RELEASE, 1, {i}, {0}, 0});
        try_call((Call){LOOKUP, 1, {i}, {-1}, 0});
        for (signed char n = 0; n <= (s->seqs[i].length ? 0 : most); n++)
            for (int text = 1 << n; text < 2 << n; text++)
                try_call((Call){LOOKUP, 1, {i}, {n}, text});
    }
    for (signed char layer = -1; layer <= LAYERS; layer++)
        for (Number x = 0; x < 2; x++) {
            try_call((Call){WRITE, 0, {0}, {layer}, x});   // a token
            try_call((Call){ATTEND, 0, {0}, {layer}, x});  // paged, gathered
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
    world.used = 0;
    memset(s, 0, sizeof *s);
    if (pool_create(&config, &pool) != PAGED_OK) exit(2);
    pool->num_buckets = 1;                                // all published blocks are in one list
    pool->batch_number = pool->last_serial = UINT32_MAX;  // the next ones need 64 bits
    for (int i = 0; i < num_blocks; i++) s->free_list[i] = i + 1;
    s->num_free = num_blocks;
}

int main(int argc, char **argv)
{
    if (argc == 4) {
        num_blocks = atoi(argv[1]);
        block_size = atoi(argv[2]);
        max_seqs = atoi(argv[3]);
    }
    if (num_blocks < 1 || num_blocks > BLOCKS || block_size < 1 ||
        num_blocks * block_size >= TOKENS || max_seqs < 1 || max_seqs > SEQS) {
        fprintf(stderr,
                "usage: states BLOCKS BLOCK_SIZE SEQUENCES (at most %d, %d tokens in all, %d)\n",
                BLOCKS, TOKENS - 1, SEQS);
        return 2;
    }
    signal(SIGABRT, stopped);
    signal(SIGSEGV, stopped);
    for (num_nodes = 1; now < num_nodes; now++) {
        reach(now);
        if (now == 0) is_new();
        copy_world(&saved, &world);
        every_call();
    }
    printf("%d blocks of %d tokens, %d sequences: %zu states, %zu calls\n", num_blocks, block_size,
           max_seqs, num_nodes, num_calls);
    printf("1 passed, 0 failed, 0 skipped\n");
    return 0;
}
