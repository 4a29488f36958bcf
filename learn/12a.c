// 12a: what pool_check() does not see.
//
// pool_check() recounts what can be recounted. What is wrong without being inconsistent is left to
// the oracle. Write four kinds of damage of that sort. After each, pool_check() must find nothing,
// no byte of K and V may have changed, and exactly those read something else that the comment above
// it names. Blocks have 4 tokens. A has 15 tokens; B was forked off it at 6, and has 9 now; C has
// 7. The first block of A and that of C are published.
//
//     make exercise N=12a

#define EXERCISE "12a"
#include "exercise.h"

// A reads its own 15 tokens in another order.
static void reorder(Seq *a)
{
    (void)a;  // your lines
}

// A reads a token that C has written, and C one of A; neither reads a slot that was never written.
static void exchange(Seq *a, Seq *c)
{
    (void)a, (void)c;  // your lines
}

// C has its first 6 tokens.
static void forget(Seq *c)
{
    (void)c;  // your lines
}

// A, B and C read what they wrote. But a new request that begins as A finds the first block of C in
// the prefix cache, and one that begins as C finds that of A.
static void mislead(Pool *pool, Seq *a, Seq *c)
{
    (void)pool, (void)a, (void)c;  // your lines
}

enum { A, B, C, SEQS, BLOCKS = 16, SIZE = 4, LONGEST = 16 };

typedef struct World {
    Pool *pool;
    Seq *seqs[SEQS];
    int length[SEQS];            // before the damage, and what the sequences had written:
    float wrote[SEQS][LONGEST];  // token t of the i-th sequence is 100 * (i + 1) + t
    float k[BLOCKS * SIZE], v[BLOCKS * SIZE];
} World;

enum { REORDER, EXCHANGE, FORGET, MISLEAD, DAMAGES };
static const char *const names[DAMAGES] = {"reorder()", "exchange()", "forget()", "mislead()"};
static int damage;  // which of them is on

static void expect(int ok, const char *what)
{
    if (!ok) not_yet("%s: %s", names[damage], what);
}

static void grow(World *w, int i, int n)
{
    Seq *seq = w->seqs[i];
    float x[LONGEST];
    must(seq_append(seq, n));
    for (int t = 0; t < n; t++) {
        x[t] = (float)(100 * (i + 1) + seq->length - n + t);
        w->wrote[i][seq->length - n + t] = x[t];
    }
    compute(seq, n, x, x);
}

static void start(World *w)
{
    static const int texts[2][SIZE] = {{1, 1, 1, 1}, {2, 2, 2, 2}};
    memset(w, 0, sizeof *w);
    w->pool = new_pool(1, 1, 1, SIZE, BLOCKS);
    w->seqs[A] = new_seq(w->pool, 0);
    w->seqs[C] = new_seq(w->pool, 0);
    grow(w, A, 15);
    must(seq_publish(w->seqs[A], texts[0], SIZE));
    must(seq_fork(w->seqs[A], 6, &w->seqs[B]));
    memcpy(w->wrote[B], w->wrote[A], sizeof w->wrote[A]);
    grow(w, B, 3);
    grow(w, C, 7);
    must(seq_publish(w->seqs[C], texts[1], SIZE));
    for (int i = 0; i < SEQS; i++) w->length[i] = w->seqs[i]->length;
    memcpy(w->k, w->pool->k, sizeof w->k);
    memcpy(w->v, w->pool->v, sizeof w->v);
}

// How many of the first n tokens that a sequence reads are those of `row`, at the same place; and
// with `anywhere`, at any.
static int count_same(const Seq *seq, const float *row, int n, int anywhere)
{
    float k[LONGEST], v[LONGEST];
    int same = 0;
    expect(seq->length <= LONGEST && !seq_gather(seq, 0, k, v), "a sequence cannot be read");
    for (int t = 0; t < n && t < seq->length; t++)
        for (int u = 0; u < n; u++)
            same += (u == t || anywhere) && k[t] == row[u] && v[t] == row[u];
    return same;
}

static int reads_its_own(const World *w, int i)
{
    int n = w->length[i];
    return w->seqs[i]->length == n && count_same(w->seqs[i], w->wrote[i], n, 0) == n;
}

static void judge(const World *w)
{
    const Seq *a = w->seqs[A];
    const Seq *c = w->seqs[C];
    const char *seen = pool_check(w->pool);
    int own = count_same(a, w->wrote[A], 15, 1);
    int from_c = count_same(a, w->wrote[C], 15, 1);
    int a_is_hurt = damage == REORDER || damage == EXCHANGE;
    if (seen) not_yet("%s: pool_check() sees it: %s", names[damage], seen);
    expect(memcmp(w->k, w->pool->k, sizeof w->k) == 0, "a byte of K has changed");
    expect(memcmp(w->v, w->pool->v, sizeof w->v) == 0, "a byte of V has changed");
    expect(a->length == 15 && c->length == (damage == FORGET ? 6 : 7), "a length is wrong");
    expect(reads_its_own(w, B), "B reads something else, too");
    expect(a_is_hurt || reads_its_own(w, A), "A reads something else, too");
    if (damage == REORDER) {
        expect(count_same(a, w->wrote[A], 15, 0) < 15, "A reads what it did before");
        expect(own == 15, "A does not read all its own tokens");
        expect(reads_its_own(w, C), "C reads something else, too");
    }
    if (damage == EXCHANGE) {
        expect(from_c > 0, "A reads no token of C");
        expect(own + from_c == 15, "A reads a slot that was never written");
        expect(count_same(c, w->wrote[A], 15, 1) > 0, "C reads no token of A");
    }
    if (damage == FORGET) expect(count_same(c, w->wrote[C], 6, 0) == 6, "C reads other tokens");
    if (damage == MISLEAD) expect(reads_its_own(w, C), "C reads something else, too");
    for (int i = 0; i < 2 && damage == MISLEAD; i++) {
        const int text[SIZE + 1] = {i + 1, i + 1, i + 1, i + 1, 9};
        Seq *seq = new_seq(w->pool, 0);
        must(seq_lookup(seq, text, SIZE + 1));
        expect(seq->length == SIZE, "a request that begins as A or C finds nothing");
        expect(count_same(seq, w->wrote[i ? A : C], SIZE, 0) == SIZE,
               "a request that begins as A or C does not find the block of the other");
    }
}

// The pools are not destroyed: they cannot be trusted any more, and the program ends soon.
int main(void)
{
    World w;
    for (damage = 0; damage < DAMAGES; damage++) {
        start(&w);
        if (damage == REORDER) reorder(w.seqs[A]);
        if (damage == EXCHANGE) exchange(w.seqs[A], w.seqs[C]);
        if (damage == FORGET) forget(w.seqs[C]);
        if (damage == MISLEAD) mislead(w.pool, w.seqs[A], w.seqs[C]);
        judge(&w);
    }
    printf(EXERCISE ": solved: pool_check() counts. It sees how often a block is named, but\n"
                    "not by which entry, nor by which sequence; 6 tokens take as many blocks as\n"
                    "7; and it sees that a published block is in the bucket of its tokens, but\n"
                    "not whose K and V are in it. For these one must know what was written, as\n"
                    "the oracle does\n");
    return 0;
}
