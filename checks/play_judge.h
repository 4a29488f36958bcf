// For checks/play.sh: calls that the page made are made once more by a native program, with a judge
// of each: no handle is lost, and texts are those that the blocks hold.

#include <wchar.h>

static void judge(int right, const char *what)
{
    if (right) return;
    printf("The judge: %s\n", what);
    exit(1);
}

// Prints a word on one line.
static void put_word(int previous, int token)
{
    for (const char *c = token_text(&tokenizer, previous, token); *c; c++)
        putchar(*c == '\n' ? '/' : *c);
}

static int letter_in(int block, int slot)
{
    float key = ((const float *)pool->k)[(block * config.block_size + slot) * HEAD_DIM];
    return key > 0 && key < '~' / 128.0f ? (int)(key * 128) : '~';
}

static int holds(const Seq *seq, const wchar_t *text, int n)
{
    for (int t = 0; t < n; t++) {
        int block = seq->block_table[t / config.block_size];
        if (letter_in(block, t % config.block_size) != text[t]) return 0;
    }
    return 1;
}

// What is in a slot.
static void put_slot(int block, int slot)
{
    if (!has_model) {
        putchar(letter_in(block, slot));
        return;
    }
    for (int i = 0; i < SEQS; i++)
        for (int t = slot; *seqs[i] && t < (*seqs[i])->length; t += config.block_size) {
            int token = -1;
            if ((*seqs[i])->block_table[t / config.block_size] == block)
                token = token_in(block, slot, t);
            if (token == BOS) printf("<s>");
            if (token >= 0 && token != BOS) put_word(-1, token);
            if (token >= 0) return;
        }
    putchar('~');
}

// What the page shows, written as checks/play.js writes it.
static void shown(void)
{
    printf("# ");
    for (int i = 0; i < SEQS; i++) {
        const Seq *seq = *seqs[i];
        if (has_model ? !tales[i].tokens : !seq) continue;
        printf("%c \"", 'a' + i);
        for (int t = 1; has_model && t < arrlen(tales[i].tokens); t++)
            put_word(tales[i].tokens[t - 1], tales[i].tokens[t]);
        for (int t = 0; !has_model && t < seq->length; t++)
            put_slot(seq->block_table[t / config.block_size], t % config.block_size);
        putchar('"');
        for (int j = 0; seq && j < (int)arrlen(seq->block_table); j++)
            printf(" %d", seq->block_table[j]);
        printf("%s; ", seq && arrlen(seq->block_table) ? "" : " ");
    }
    printf("free ");
    for (int i = 0, block = pool->blocks[config.num_blocks].next; i < pool->num_free; i++) {
        printf("%s%d", i ? " " : "", block);
        block = pool->blocks[block].next;
    }
    printf("; pool ");
    for (int i = 0; i < config.num_blocks; i++) {
        const Block *block = &pool->blocks[i];
        if (i) putchar('|');
        for (int slot = 0; slot < config.block_size; slot++) put_slot(i, slot);
        if (block->ref_count) printf(" x%d", block->ref_count);
        if (block->serial) printf(" #%d", (int)block->serial);
    }
    printf("\n");
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
