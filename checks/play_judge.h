// For checks/play.sh: calls that the page made are made once more by a native program, with a judge
// of each: no handle is lost, and texts are those that the blocks hold.

#include <wchar.h>

static void judge(int right, const char *what)
{
    if (right) return;
    printf("The judge: %s\n", what);
    exit(1);
}

static int holds(const Seq *seq, const wchar_t *text, int n)
{
    for (int t = 0; t < n; t++) {
        int slot = seq->block_table[t / config.block_size] * config.block_size;
        slot += t % config.block_size;
        if (((const float *)pool->k)[slot * HEAD_DIM] != text[t] / 128.0f) return 0;
    }
    return 1;
}

static int looked_up(const Seq *seq, const wchar_t *text, int code)
{
    judge(code || holds(seq, text, seq->length), "a lookup found other letters");
    return code;
}

#define seq_create(pool, seq) (judge(!*(seq), "a handle is lost"), seq_create(pool, seq))
#define seq_fork(parent, at, seq) (judge(!*(seq), "a handle is lost"), seq_fork(parent, at, seq))
#define seq_lookup(seq, text, n) looked_up(seq, text, seq_lookup(seq, text, n))
#define seq_publish(seq, text, n) \
    (judge((seq)->length == (n) && holds(seq, text, n), "a text that the blocks do not hold"), \
     seq_publish(seq, text, n))
