// 12a: what pool_check() does not see.
//
// pool_check() recounts what can be recounted. Only the oracle can notice what is wrong without
// being inconsistent. Do four kinds of such damage. After each, pool_check() must find nothing, no
// byte of K and V may have changed, and the sequences that the comment above each function names
// must read something else, and no others. Blocks have 4 tokens. A has 15 tokens; B was forked off
// A at 6 and has 9 now; C has 7. The first blocks of A and C are published.
//
//     make exercise N=12a

#define EXERCISE "12a"
#include "exercise.h"

// A reads its own 15 tokens in another order.
static void reorder(Seq *a)
{
    (void)a;  // your lines
}

// A reads a token of C, and C a token of A; neither reads a slot that was never written.
static void exchange(Seq *a, Seq *c)
{
    (void)a, (void)c;  // your lines
}

// C loses its last token: its length is 6.
static void forget(Seq *c)
{
    (void)c;  // your lines
}

// A, B and C read what they wrote. But a new request that begins like A finds the first block of C
// in the prefix cache, and one that begins like C finds the first block of A.
static void mislead(Pool *pool, Seq *a, Seq *c)
{
    (void)pool, (void)a, (void)c;  // your lines
}

enum { A, B, C, SEQS, BLOCKS = 16, SIZE = 4, LONGEST = 16 };

typedef struct World {
    Pool *pool;
    Seq *seqs[SEQS];
    float wrote[SEQS][LONGEST];  // token t of the i-th sequence is 100 * (i + 1) + t
} World;

static const int lengths[SEQS] = {15, 9, 7};
static const char *damage;  // the function that does it

static void expect(int ok, const char *what)
{
    if (!ok) not_yet("%s: %s", damage, what);
}

static void grow(World *w, int i, int n)
{
    Seq *seq = w->seqs[i];
    int start = seq->length;
    must(seq_append(seq, n));
    for (int t = start; t < start + n; t++) w->wrote[i][t] = (float)(100 * (i + 1) + t);
    compute(seq, n, w->wrote[i] + start, w->wrote[i] + start);
}

static void start(World *w, const char *name)
{
    static const int texts[2][SIZE] = {{1, 1, 1, 1}, {2, 2, 2, 2}};
    damage = name;
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
}

// How many of the first n tokens that a sequence reads are in `row`, at the same place, or with
// `anywhere` at any place.
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
    return count_same(w->seqs[i], w->wrote[i], lengths[i], 0) == lengths[i];
}

// Checks what must hold after any damage. not_a, not_c: A or C may read something else.
static void judge(const World *w, int not_a, int not_c, int length_of_c)
{
    World before;
    size_t bytes = BLOCKS * SIZE * sizeof(float);
    start(&before, damage);
    const char *seen = pool_check(w->pool);
    if (seen) not_yet("%s: pool_check() notices: %s", damage, seen);
    expect(memcmp(w->pool->k, before.pool->k, bytes) == 0, "a byte of K has changed");
    expect(memcmp(w->pool->v, before.pool->v, bytes) == 0, "a byte of V has changed");
    expect(w->seqs[A]->length == 15 && w->seqs[B]->length == 9, "A or B has the wrong length");
    expect(w->seqs[C]->length == length_of_c, "C has the wrong length");
    expect(not_a || reads_its_own(w, A), "A reads something else");
    expect(reads_its_own(w, B), "B reads something else");
    expect(not_c || reads_its_own(w, C), "C reads something else");
}

static void expect_found(const World *w, int token, int whose)
{
    const int text[SIZE + 1] = {token, token, token, token, 9};
    Seq *seq = new_seq(w->pool, 0);
    must(seq_lookup(seq, text, SIZE + 1));
    expect(seq->length == SIZE && count_same(seq, w->wrote[whose], SIZE, 0) == SIZE,
           "a request that begins like A or C does not find the block of the other");
}

// The pools are not destroyed, because they are broken and the program ends soon.
int main(void)
{
    World w;
    start(&w, "reorder()");
    reorder(w.seqs[A]);
    judge(&w, 1, 0, 7);
    expect(!reads_its_own(&w, A), "A reads the same as before");
    expect(count_same(w.seqs[A], w.wrote[A], 15, 1) == 15, "A does not read all its own tokens");

    start(&w, "exchange()");
    exchange(w.seqs[A], w.seqs[C]);
    judge(&w, 1, 1, 7);
    int from_c = count_same(w.seqs[A], w.wrote[C], 15, 1);
    expect(from_c > 0, "A reads no token of C");
    expect(count_same(w.seqs[A], w.wrote[A], 15, 1) + from_c == 15,
           "A reads a slot that was never written");
    expect(count_same(w.seqs[C], w.wrote[A], 15, 1) > 0, "C reads no token of A");

    start(&w, "forget()");
    forget(w.seqs[C]);
    judge(&w, 0, 1, 6);
    expect(count_same(w.seqs[C], w.wrote[C], 6, 0) == 6, "C does not read its first 6 tokens");

    start(&w, "mislead()");
    mislead(w.pool, w.seqs[A], w.seqs[C]);
    judge(&w, 0, 0, 7);
    expect_found(&w, 1, C);
    expect_found(&w, 2, A);
    return solved("pool_check() counts. It sees how often a block is named, but not by which\n"
                  "entry; 6 tokens take as many blocks as 7; and a published block is in the\n"
                  "bucket of its tokens, whatever its K and V are. To notice such damage, one\n"
                  "must know what was written, as the oracle does.\n");
}
