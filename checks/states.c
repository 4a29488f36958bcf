// states: every state that a small pool can reach, and in each of them every call.
//
//     cc -O2 checks/states.c -o states -lm
//     ./states 2 2 2           2 blocks of 2 tokens, at most 2 sequences; more triples may follow
//
// Beside the engine runs a model of what paged.h says: plain arrays, no links, no hashes, no
// addresses. After each call, the engine's memory is read and must be what the model expects. The
// search is breadth first, so a mistake is reported with one of the shortest ways to it.
// Tokens are 0 or 1. A text is a number: its tokens as bits, after a leading 1. K and V of a token
// are made from the text that ends with it, so whatever is read shows whose it is.

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t Number;
enum { LAYERS = 2, BLOCKS = 4, SLOTS = 4, SEQS = 3, TEXTS = 1024, LOST = 0xffff, UNKNOWN = 0xfffe };

typedef struct Sequence {
    Number text, length, computed;
    Number place;          // in the batch of the plan, from 1 on; 0: not in it
    Number planned;        // number of query tokens
    Number table[BLOCKS];  // 0 after the last entry
} Sequence;

typedef struct State {  // numbers of one kind, so that there are no gaps between them
    Number num_blocks, block_size, num_free, num_seqs;
    Number free_list[BLOCKS];  // the next one first; 0 after the last one
    Number count[BLOCKS];
    Number published[BLOCKS];         // under this text; 0: not; LOST: its beginning has gone
    Number kv[BLOCKS][LAYERS][SLOTS];  // the text of the token that was written; 0: NaN
    Sequence seqs[SEQS];
    Number has_plan, sealed, num_written;
} State;

// The engine allocates from an array, so to go back to an earlier state is one memcpy().
static struct World {
    State state;  // of the model
    size_t used;  // of the memory of the engine
    char memory[1 << 16] __attribute__((aligned(64)));
} world, saved;

typedef struct Cell {
    size_t size, in_use;
} __attribute__((aligned(64))) Cell;

static void *cell_take(size_t size)
{
    size = (size + 63) / 64 * 64;
    Cell *cell = (Cell *)world.memory, *end = (Cell *)(world.memory + world.used);
    while (cell < end && (cell->in_use || cell->size != size)) cell += 1 + cell->size / sizeof *cell;
    if (cell == end) world.used += sizeof *cell + size;
    if (world.used > sizeof world.memory) abort();
    cell->size = size;
    cell->in_use = 1;
    return memset(cell + 1, 0, size);
}

static void cell_free(void *p)
{
    if (!p) return;
    Cell *cell = (Cell *)p - 1;
    cell->in_use = 0;
    memset(p, 0xa5, cell->size);  // a pointer to it that is used later shows
}

static void *cell_grow(void *p, size_t size)
{
    void *larger = cell_take(size);
    if (p) memcpy(larger, p, ((Cell *)p - 1)->size < size ? ((Cell *)p - 1)->size : size);
    cell_free(p);
    return larger;
}

#define calloc(n, size) cell_take((n) * (size))
#define aligned_alloc(unit, size) cell_take(size)
#define realloc(p, size) cell_grow(p, size)
#define free(p) cell_free(p)
#define PAGED_NO_MAIN
#include "../paged.cu.c"
#undef calloc
#undef realloc
#undef free

// ---- the model --------------------------------------------------------------------------------
// Rules under way; each is one line.
enum { IN_ORDER = 0, ZERO_IS_OUT = 0, FORK_0_KEEPS = 0, TAIL_IS_NAN = 0 };

static State *const s = &world.state;

static int blocks_for(int length) { return (length + s->block_size - 1) / s->block_size; }
static int beginning(const Sequence *q, int n) { return q->text >> (q->length - n); }

static void clear(int block, int from)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = from; i < s->block_size; i++) s->kv[block][layer][i] = 0;
}

static void expire(const Sequence *q)
{
    if (!q->place) return;
    s->has_plan = s->sealed = s->num_written = 0;
    for (int i = 0; i < SEQS; i++) s->seqs[i].place = s->seqs[i].planned = 0;
}

static void free_remove(int place)
{
    s->num_free--;
    for (int i = place; i < s->num_free; i++) s->free_list[i] = s->free_list[i + 1];
    s->free_list[s->num_free] = 0;
}

// No longer published; and what was published as its continuation cannot be found any more.
static void unpublish(int block)
{
    int text = s->published[block];
    s->published[block] = 0;
    if (text == 0 || text == LOST) return;
    for (int i = 0; i < s->num_blocks; i++)
        for (int t = s->published[i]; s->published[i] != LOST && t; t >>= s->block_size)
            if (t == text) s->published[i] = LOST;
}

static int take(void)
{
    int block = s->free_list[0];
    free_remove(0);
    unpublish(block);
    clear(block, 0);
    s->count[block] = 1;
    return block;
}

static void drop(int block)
{
    if (--s->count[block] > 0) return;
    int place = s->published[block] ? s->num_free : 0;
    for (int i = s->num_free++; i > place; i--) s->free_list[i] = s->free_list[i - 1];
    s->free_list[place] = block;
    if (!s->published[block]) clear(block, 0);
}

static void share(int block)
{
    if (s->count[block]++ > 0) return;
    int place = 0;
    while (s->free_list[place] != block) place++;
    free_remove(place);
}

static int find(int text)
{
    for (int i = 0; i < s->num_blocks; i++)
        if (s->published[i] == text) return i;
    return -1;
}

static int is_sealed(int block) { return s->count[block] > 1 || s->published[block]; }

static int model_append(Sequence *q, int n, int token)
{
    int filled = q->length % s->block_size, have = blocks_for(q->length);
    if (n < 0) return PAGED_BAD_ARGUMENT;
    if (n == 0) return PAGED_OK;
    if (q->length + n > s->num_blocks * s->block_size) return PAGED_TOO_LONG;
    int copy = filled > 0 && s->count[q->table[have - 1]] > 1;
    if (blocks_for(q->length + n) - have + copy > s->num_free) return PAGED_OUT_OF_BLOCKS;
    expire(q);
    if (copy) {
        int old = q->table[have - 1], own = take();
        memcpy(s->kv[own], s->kv[old], sizeof s->kv[own]);
        clear(own, filled);
        drop(old);
        q->table[have - 1] = own;
    } else if (filled > 0) {
        if (TAIL_IS_NAN || s->published[q->table[have - 1]]) clear(q->table[have - 1], filled);
        unpublish(q->table[have - 1]);
    }
    for (int i = have; i < blocks_for(q->length + n); i++) q->table[i] = take();
    q->length += n;
    for (int i = 0; i < n; i++) q->text = 2 * q->text + token;
    return PAGED_OK;
}

static void shorten(Sequence *q, int length)
{
    for (int i = blocks_for(q->length) - 1; i >= blocks_for(length); i--) {
        drop(q->table[i]);
        q->table[i] = 0;
    }
    q->text = beginning(q, length);
    q->length = length;
    q->computed = min_int(q->computed, length);
}

static int model_rewind(Sequence *q, int n)
{
    if (n < 0 || n > q->length) return PAGED_BAD_ARGUMENT;
    if (n == 0) return PAGED_OK;
    expire(q);
    shorten(q, q->length - n);
    int filled = q->length % s->block_size;
    if (filled > 0 && !is_sealed(q->table[q->length / s->block_size]))
        clear(q->table[q->length / s->block_size], filled);
    return PAGED_OK;
}

static int model_create(void)
{
    s->seqs[s->num_seqs++].text = 1;
    return PAGED_OK;
}

static int model_fork(Sequence *q, int at)
{
    if (at < 0 || at > q->length) return PAGED_BAD_ARGUMENT;
    if (at > 0 || !FORK_0_KEEPS) expire(q);
    Sequence *child = &s->seqs[s->num_seqs++];
    child->text = beginning(q, at);
    child->length = at;
    child->computed = min_int(q->computed, at);
    for (int i = 0; i < blocks_for(at); i++) share(child->table[i] = q->table[i]);
    return PAGED_OK;
}

static int model_release(Sequence *q)
{
    expire(q);
    shorten(q, 0);
    *q = s->seqs[--s->num_seqs];  // the last one takes its place
    memset(&s->seqs[s->num_seqs], 0, sizeof *q);
    return PAGED_OK;
}

static int model_publish(Sequence *q, int n)
{
    if (n < 0 || n > q->computed) return PAGED_BAD_ARGUMENT;
    int i = n / s->block_size;
    while (i > 0 && !s->published[q->table[i - 1]]) i--;
    for (; i < n / s->block_size; i++) {
        int own = q->table[i], text = beginning(q, (i + 1) * s->block_size), same = find(text);
        expire(q);
        if (same < 0) {
            s->published[own] = text;
        } else {
            share(same);
            drop(own);
            q->table[i] = same;
        }
    }
    return PAGED_OK;
}

static int model_lookup(Sequence *q, int text, int n)
{
    if (q->length > 0 || n < 0) return PAGED_BAD_ARGUMENT;
    for (int end = s->block_size; end < n && find(text >> (n - end)) >= 0; end += s->block_size) {
        int block = find(text >> (n - end));
        expire(q);
        share(block);
        q->table[end / s->block_size - 1] = block;
        q->text = text >> (n - end);
        q->length = q->computed = end;
    }
    return PAGED_OK;
}

static int model_plan(const int *seqs, const int *counts, int n)
{
    int rows = 0, sealed = 0, num_written = LAYERS, seen = 0;
    if (n > s->num_seqs) return PAGED_BAD_ARGUMENT;
    for (int i = 0; i < n; i++) {
        const Sequence *q = &s->seqs[seqs[i]];
        if (counts[i] < 0 || counts[i] > q->length || seen >> seqs[i] & 1) return PAGED_BAD_ARGUMENT;
        seen |= 1 << seqs[i];
        if (counts[i] == 0) continue;
        if (q->length - counts[i] > q->computed) return PAGED_BAD_ARGUMENT;
        rows += counts[i];
        if (q->computed < q->length) num_written = 0;
        for (int t = q->length - counts[i]; t < q->length; t++)
            sealed |= is_sealed(q->table[t / s->block_size]);
    }
    for (int i = 0; i < SEQS; i++) s->seqs[i].place = s->seqs[i].planned = 0;
    s->has_plan = 1;
    s->sealed = sealed;
    s->num_written = num_written;
    for (int i = 0, place = 0; i < n; i++) {
        if (ZERO_IS_OUT && counts[i] == 0) continue;
        s->seqs[seqs[i]].place = ++place;
        s->seqs[seqs[i]].planned = counts[i];
    }
    return PAGED_OK;
}

// The rows of the plan, in order: of which sequence, and at which position.
typedef struct Row {
    Sequence *q;
    int at;
} Row;

static int list_rows(Row *rows)
{
    int n = 0;
    for (int place = 1; place <= SEQS; place++)
        for (int i = 0; i < s->num_seqs; i++)
            for (int k = s->seqs[i].planned; s->seqs[i].place == place && k > 0; k--)
                rows[n++] = (Row){&s->seqs[i], s->seqs[i].length - k};
    return n;
}

static Number *slot(const Sequence *q, int layer, int t)
{
    return &s->kv[q->table[t / s->block_size]][layer][t % s->block_size];
}

static int model_write(int layer)
{
    Row rows[BLOCKS * SLOTS * SEQS];
    int n = list_rows(rows);
    if (!s->has_plan || layer < 0 || layer >= LAYERS) return PAGED_BAD_ARGUMENT;
    if (n == 0) return PAGED_OK;
    if (IN_ORDER && layer > s->num_written) return PAGED_BAD_ARGUMENT;
    if (s->sealed) return PAGED_BLOCK_SHARED;
    for (int i = 0; i < n; i++)
        *slot(rows[i].q, layer, rows[i].at) = beginning(rows[i].q, rows[i].at + 1);
    if (layer == s->num_written) s->num_written++;
    for (int i = 0; i < n; i++)
        if (s->num_written == LAYERS) rows[i].q->computed = rows[i].q->length;
    return PAGED_OK;
}

// ---- the engine -------------------------------------------------------------------------------

static Pool *pool;

static float k_of(int text, int layer) { return text ? text + TEXTS * layer : NAN; }
static float v_of(int text, int layer) { return text ? 1 - 2 * k_of(text, layer) : NAN; }

static int text_of_kv(float k, float v, int layer)
{
    if (isnan(k) && isnan(v)) return 0;
    int text = k >= 0 && k < TEXTS * LAYERS ? (int)k - TEXTS * layer : 0;
    return k == k_of(text, layer) && v == v_of(text, layer) ? text : UNKNOWN;
}

// The text under which a block is published.
static int published_text(const Block *b)
{
    int text = b->parent ? LOST : 1;
    if (b->serial == 0) return 0;
    for (int i = 0; i < s->num_blocks; i++)
        if (b->parent && pool->blocks[i].serial == b->parent) text = published_text(pool->blocks + i);
    for (int i = 0; i < s->block_size && text != LOST; i++)
        text = text * 2 + pool->tokens[(b - pool->blocks) * s->block_size + i];
    return text;
}

// What the engine's memory says. Only the model knows the tokens, and what the plan does.
static State observe(void)
{
    State o = *s;
    o.num_free = pool->num_free;
    o.num_seqs = arrlen(pool->seqs);
    o.has_plan = pool->plan_number != 0;
    memset(o.free_list, 0, sizeof o.free_list);
    for (int i = 0, b = pool->blocks[s->num_blocks].next; i < pool->num_free; i++) {
        o.free_list[i] = b;
        b = pool->blocks[b].next;
    }
    for (int b = 0; b < s->num_blocks; b++) {
        o.count[b] = pool->blocks[b].ref_count;
        o.published[b] = published_text(&pool->blocks[b]);
        for (int i = 0; i < LAYERS * s->block_size; i++) {
            int layer = i / s->block_size, slot = i % s->block_size;
            size_t at = kv_offset(&pool->config, layer, b, 0, slot);
            o.kv[b][layer][slot] = text_of_kv(((float *)pool->k)[at], ((float *)pool->v)[at], layer);
        }
    }
    for (int i = 0; i < o.num_seqs; i++) {
        const Seq *seq = pool->seqs[i];
        Sequence *q = &o.seqs[i];
        q->length = seq->length;
        q->computed = seq->num_computed_tokens;
        if ((o.has_plan && seq->plan_number == pool->plan_number) != (q->place > 0)) q->place = UNKNOWN;
        for (int e = 0; e < BLOCKS; e++)
            q->table[e] = e < arrlen(seq->block_table) ? seq->block_table[e] : 0;
    }
    return o;
}

// ---- calls ------------------------------------------------------------------------------------

enum { CREATE, APPEND, FORK, REWIND, RELEASE, PUBLISH, LOOKUP, GATHER, PLAN, WRITE, ATTEND };
static const char *const names[] = {"create", "append", "fork", "rewind", "release", "publish",
                                    "lookup", "gather", "plan", "write", "attend"};

typedef struct Call {
    signed char kind, num;             // num: of sequences
    signed char seqs[SEQS], n[SEQS];   // n: of tokens of each; or the layer
    Number text;                       // of a lookup; or the token that is appended
} Call;

typedef struct Node {
    uint32_t before;
    Call call;
} Node;

static Node *nodes;
static size_t num_nodes, num_calls;
static uint64_t *visited, mask;
static size_t now;      // the node
static Call now_call;

static void print_way(size_t node)
{
    if (node) print_way(nodes[node].before);
    Call c = node ? nodes[node].call : now_call;
    if (!node) return;
    printf("  %s", names[(int)c.kind]);
    for (int i = 0; i < c.num; i++) printf(" %d,%d", c.seqs[i], c.n[i]);
    printf(" %d\n", c.text);
}

static void wrong(const char *what, long long got, long long expected)
{
    printf("%s: %s is %lld, expected %lld, after these calls:\n", names[(int)now_call.kind], what, got, expected);
    print_way(now);
    nodes[0].call = now_call;
    printf("  %s", names[(int)now_call.kind]);
    for (int i = 0; i < now_call.num; i++) printf(" %d,%d", now_call.seqs[i], now_call.n[i]);
    printf(" %d\n0 passed, 1 failed, 0 skipped\n", now_call.text);
    fflush(stdout);
    _Exit(1);
}

static void panicked(int signal) { wrong("signal", signal, 0); }

static void check(const char *what, long long got, long long expected)
{
    if (got != expected) wrong(what, got, expected);
}

static float weights[TEXTS];
static const float scale = 1 / 2048.f;

static void check_gather(const Sequence *q, const Seq *seq, int layer)
{
    float k[BLOCKS * SLOTS + 1], v[BLOCKS * SLOTS + 1];
    int bad = layer < 0 || layer >= LAYERS;
    check("result", seq_gather(seq, layer, k, v), bad ? PAGED_BAD_ARGUMENT : PAGED_OK);
    for (int t = 0; t < q->length && !bad; t++) {
        check("K and V", text_of_kv(k[t], v[t], layer), *slot(q, layer, t));
        if (t < q->computed) check("text", *slot(q, layer, t), beginning(q, t + 1));
    }
}

static void check_attend(int layer, int flags)
{
    enum { MOST = BLOCKS * SLOTS * SEQS };
    Row rows[MOST];
    float q[MOST], out[MOST], lse[MOST];
    int n = list_rows(rows);
    int good = s->has_plan && layer >= 0 && layer < LAYERS && (n == 0 || layer < s->num_written);
    for (int i = 0; i < MOST; i++) q[i] = 1;
    check("result", attend(pool, flags, layer, 1, scale, q, out, lse), good ? PAGED_OK : PAGED_BAD_ARGUMENT);
    for (int i = 0; i < n && good; i++) {
        double sum = 0, o = 0;
        for (int t = 0; t <= rows[i].at; t++) {
            int text = beginning(rows[i].q, t + 1);
            sum += weights[text];
            o += weights[text] * v_of(text, layer);
        }
        check("attention", fabs(out[i] - o / sum) <= 1e-5 * fabs(o / sum), 1);
    }
}

static size_t differs(const void *a, const void *b, size_t size)
{
    return memcmp(a, b, size) ? 1 : 0;
}

// Makes a call in the engine and in the model. Returns whether the model changed.
static int make_call(Call c)
{
    static Number empty;
    (void)empty;
    int got = PAGED_OK, expected = PAGED_OK;
    int i = c.seqs[0], n = c.n[0];
    Sequence *q = &s->seqs[i];
    Seq *seq = i < s->num_seqs ? pool->seqs[i] : NULL;
    Seq *made = NULL;
    int tokens[BLOCKS * SLOTS + 1] = {0};
    State before = *s;
    now_call = c;
    num_calls++;
    switch (c.kind) {
    case CREATE: got = seq_create(pool, &made), expected = model_create(); break;
    case APPEND: got = seq_append(seq, n), expected = model_append(q, n, c.text); break;
    case FORK: got = seq_fork(seq, n, &made), expected = model_fork(q, n); break;
    case REWIND: got = seq_rewind(seq, n), expected = model_rewind(q, n); break;
    case RELEASE: seq_release(seq), model_release(q); break;
    case PUBLISH:
        for (int t = 0; t < q->length; t++) tokens[t] = beginning(q, t + 1) & 1;
        got = seq_publish(seq, tokens, n), expected = model_publish(q, n);
        break;
    case LOOKUP:
        for (int t = 0; t < n; t++) tokens[t] = c.text >> (n - 1 - t) & 1;
        got = seq_lookup(seq, tokens, n), expected = model_lookup(q, c.text, n);
        break;
    case GATHER: check_gather(q, seq, n); break;
    case PLAN: {
        Seq *seqs[SEQS];
        int ids[SEQS], counts[SEQS];
        for (int b = 0; b < c.num; b++) {
            ids[b] = c.seqs[b];
            seqs[b] = pool->seqs[ids[b]];
            counts[b] = c.n[b];
        }
        Batch batch = {c.num, seqs, counts};
        got = pool_plan(pool, &batch), expected = model_plan(ids, counts, c.num);
        break;
    }
    case WRITE: {
        Row rows[BLOCKS * SLOTS * SEQS];
        float k[BLOCKS * SLOTS * SEQS], v[BLOCKS * SLOTS * SEQS];
        for (int r = list_rows(rows) - 1; r >= 0; r--) {
            k[r] = k_of(beginning(rows[r].q, rows[r].at + 1), n);
            v[r] = v_of(beginning(rows[r].q, rows[r].at + 1), n);
        }
        got = pool_write(pool, n, k, v), expected = model_write(n);
        break;
    }
    case ATTEND: check_attend(n, c.text); break;
    }
    check("result", got, expected);
    if (made) check("the new sequence", made == arrlast(pool->seqs), 1);
    const char *broken = pool_check(pool);
    if (broken) wrong(broken, 1, 0);
    State o = observe();
    if (memcmp(&o, s, sizeof o)) {
        const Number *a = (Number *)&o, *b = (Number *)s;
        for (size_t at = 0; at < sizeof o / 2; at++) if (a[at] != b[at]) printf("at %zu: %d, expected %d\n", at, a[at], b[at]);
        wrong("state", 1, 0);
    }
    return memcmp(s, &before, sizeof before) != 0;
}

// ---- the search -------------------------------------------------------------------------------

// The state with its sequences sorted, and blocks renamed in the order in which the tables and then the
// free list name them.
static int by_content(const void *a, const void *b) { return memcmp(a, b, offsetof(Sequence, table)); }

static uint64_t canonical_hash(void)
{
    State c = *s;
    int name[BLOCKS], names = 0;
    memset(name, -1, sizeof name);
    qsort(c.seqs, c.num_seqs, sizeof *c.seqs, by_content);
    for (int i = 0; i < c.num_seqs; i++)
        for (int e = 0; e < blocks_for(c.seqs[i].length); e++) {
            Number *entry = &c.seqs[i].table[e];
            if (name[*entry] < 0) name[*entry] = names++;
            *entry = name[*entry];
        }
    for (int i = 0; i < c.num_free; i++) {
        name[c.free_list[i]] = names++;
        c.free_list[i] = 0;
    }
    for (int b = 0; b < c.num_blocks; b++) {
        c.count[name[b]] = s->count[b];
        c.published[name[b]] = s->published[b];
        memcpy(c.kv[name[b]], s->kv[b], sizeof s->kv[b]);
    }
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof c / sizeof(Number); i++) {
        hash = (hash ^ ((Number *)&c)[i]) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    return hash ? hash : 1;
}

// Returns 0 if this state has been seen before.
static int is_new(void)
{
    uint64_t hash = canonical_hash(), at = hash & mask;
    while (visited[at] && visited[at] != hash) at = (at + 1) & mask;
    if (visited[at]) return 0;
    visited[at] = hash;
    return 1;
}

static void restore(void) { memcpy(&world, &saved, offsetof(struct World, memory) + saved.used); }

static void add(Call c)
{
    if (!is_new()) return;
    nodes[num_nodes++] = (Node){now, c};
    if (num_nodes * 2 > mask) printf("too many states\n"), exit(2);
}

static void try_call(Call c)
{
    int changed = make_call(c);
    if (changed) add(c);
    if (changed && c.kind == PLAN) {
        // all its work at once, too, as what the plan keeps is not part of the state
        for (int layer = 0; layer < LAYERS; layer++) {
            make_call((Call){.kind = WRITE, .n = {layer}});
            for (int flags = 0; flags < 2; flags++)
                make_call((Call){.kind = ATTEND, .n = {layer}, .text = flags});
        }
    }
    restore();
}

static void plans(Call c)
{
    try_call(c);
    if (c.num == s->num_seqs) return;
    int place = c.num++;
    for (int i = 0; i < s->num_seqs; i++) {
        c.seqs[place] = i;
        for (int n = place ? 0 : -1; n <= s->seqs[i].length + 1; n++) {
            c.n[place] = n;
            plans(c);
        }
    }
}

static void every_call(int max_seqs)
{
    int most = s->num_blocks * s->block_size;
    if (s->num_seqs < max_seqs) try_call((Call){.kind = CREATE});
    for (int i = 0; i < s->num_seqs; i++) {
        int length = s->seqs[i].length;
        for (int n = -1; n <= most - length + 1; n++)
            for (int token = 0; token < (n > 0 ? 2 : 1); token++)
                try_call((Call){APPEND, 1, {i}, {n}, token});
        for (int n = -1; n <= length + 1; n++) {
            if (s->num_seqs < max_seqs || n < 0 || n > length) try_call((Call){FORK, 1, {i}, {n}, 0});
            try_call((Call){REWIND, 1, {i}, {n}, 0});
            try_call((Call){PUBLISH, 1, {i}, {n}, 0});
        }
        for (int n = -1; n <= (length ? 0 : most + 1); n++)
            if (n < 2 || n % s->block_size < 2)
                for (int text = 1 << (n > 0 ? n : 0); text < 2 << (n > 0 ? n : 0); text++)
                    try_call((Call){LOOKUP, 1, {i}, {n}, text});
        try_call((Call){RELEASE, 1, {i}, {0}, 0});
        for (int layer = -1; layer <= LAYERS; layer++) try_call((Call){GATHER, 1, {i}, {layer}, 0});
    }
    for (int layer = -1; layer <= LAYERS; layer++) {
        try_call((Call){.kind = WRITE, .n = {layer}});
        for (int flags = 0; flags < 2; flags++)
            try_call((Call){.kind = ATTEND, .n = {layer}, .text = flags});
    }
    plans((Call){.kind = PLAN});
}

static void reach(size_t node)
{
    if (node == 0) {
        memset(&world, 0, sizeof world);
        s->num_blocks = saved.state.num_blocks;
        PoolConfig config = {LAYERS, 1, 1, saved.state.block_size, s->num_blocks, PAGED_F32, 1, PAGED_CPU};
        s->block_size = config.block_size;
        s->num_free = s->num_blocks;
        for (int i = 0; i < s->num_blocks; i++) s->free_list[i] = i;
        if (pool_create(&config, &pool)) exit(2);
        pool->num_buckets = 1;
        size_t bytes = pool_bytes_per_block(&config) / 2 * config.num_blocks;
        memset(pool->k, 0xff, bytes), memset(pool->v, 0xff, bytes);
        return;
    }
    reach(nodes[node].before);
    make_call(nodes[node].call);
}

int main(int argc, char **argv)
{
    signal(SIGABRT, panicked);
    signal(SIGSEGV, panicked);
    mask = ((uint64_t)1 << 26) - 1;
    nodes = malloc(sizeof *nodes << 25);
    for (int i = 0; i < TEXTS; i++) weights[i] = expf(i * scale);
    for (int i = 1; i + 2 < argc; i += 3) {
        visited = calloc(sizeof *visited, mask + 1);
        num_nodes = num_calls = 0;
        saved.state.num_blocks = atoi(argv[i]);
        saved.state.block_size = atoi(argv[i + 1]);
        reach(0);
        add((Call){.kind = CREATE});
        for (now = 0; now < num_nodes; now++) {
            reach(now);
            saved = world;
            every_call(atoi(argv[i + 2]));
        }
        printf("%s blocks of %s tokens, %s sequences: %zu states, %zu calls, used %zu\n", argv[i], argv[i + 1], argv[i + 2], num_nodes, num_calls, world.used);
        free(visited);
    }
    printf("%d passed, 0 failed, 0 skipped\n", (argc - 1) / 3);
}
