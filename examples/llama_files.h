// llama_files.h: the files of llama2.c. The checkpoint has the weights of the model; the tokenizer
// has the texts of the tokens, and turns text into tokens and back. If a file is damaged, or of
// another kind, a message says so and the program ends.

#include "util.h"

#include <ctype.h>

enum {
    BOS = 1,             // the token that begins a text; produced by the model, it ends it
    FIRST_BYTE = 3,      // token b + FIRST_BYTE stands for the single byte b
    MAX_TEXT = 1 << 12,  // bytes of a token
};

// ---- files ------------------------------------------------------------------------------------

typedef struct File {
    const char *path;
    FILE *in;
} File;

static File open_file(const char *path)
{
    File file = {path, fopen(path, "rb")};
    if (!file.in) die(1, "%s: %s", path, strerror(errno));
    return file;
}

static void take(const File *file, void *to, size_t count)
{
    size_t taken = fread(to, 1, count, file->in);
    if (ferror(file->in)) die(1, "%s: %s", file->path, strerror(errno));
    if (taken < count) die(1, "%s: truncated, or of another kind", file->path);
}

static int32_t take_int(const File *file)
{
    int32_t value;
    take(file, &value, sizeof value);
    return value;
}

// A damaged header may promise more floats than the file has, or than memory can hold. Both are
// said before a byte is read.
static const float *take_floats(const File *file, uint64_t count)
{
    long here = ftell(file->in);
    if (here < 0 || fseek(file->in, 0, SEEK_END) != 0)
        die(1, "%s: %s", file->path, strerror(errno));
    uint64_t left = ftell(file->in) - here;
    if (left / sizeof(float) < count) die(1, "%s: truncated, or of another kind", file->path);
    if (fseek(file->in, here, SEEK_SET) != 0) die(1, "%s: %s", file->path, strerror(errno));
    float *floats = (float *)malloc(count * sizeof *floats);
    if (!floats) die(1, "%s: no memory for %.1f GB of weights", file->path, count * 4e-9);
    take(file, floats, count * sizeof *floats);
    return floats;
}

static int at_end(const File *file) { return ungetc(fgetc(file->in), file->in) == EOF; }

// ---- the checkpoint ---------------------------------------------------------------------------
// A checkpoint is seven int32 and then all weights as float32, in one fixed order. They are
// little-endian, and so must the machine be.

typedef struct Model {
    int dim, hidden_dim, num_layers, num_heads, num_kv_heads, vocab_size, seq_len;
    int head_dim, kv_dim;            // kv_dim = num_kv_heads * head_dim
    const float *embedding;          // [vocab_size][dim]
    const float *rms_att, *rms_ffn;  // [num_layers][dim]
    const float *wq, *wo;            // [num_layers][dim][dim]
    const float *wk, *wv;            // [num_layers][kv_dim][dim]
    const float *w1, *w3;            // [num_layers][hidden_dim][dim]
    const float *w2;                 // [num_layers][dim][hidden_dim]
    const float *rms_final;          // [dim]
    const float *classifier;         // [vocab_size][dim], often the embedding itself
} Model;

// Do the seven numbers describe a model?
static int is_model(const int32_t *numbers, Model *m)
{
    int *const fields[] = {&m->dim,          &m->hidden_dim, &m->num_layers, &m->num_heads,
                           &m->num_kv_heads, &m->vocab_size, &m->seq_len};
    const int max = 1 << 20;  // above any model; the product of three still fits into 64 bits
    for (int i = 0; i < 7; i++) {
        int min = fields[i] == &m->vocab_size ? -max : 1;
        if (numbers[i] < min || numbers[i] > max) return 0;
        *fields[i] = numbers[i];
    }
    return m->dim % m->num_heads == 0 && m->num_heads % m->num_kv_heads == 0 &&
           m->dim / m->num_heads % 2 == 0 && m->dim / m->num_heads <= PAGED_MAX_HEAD_DIM &&
           abs(m->vocab_size) > BOS;
}

// Takes the seven numbers. Returns 1 if the classifier has weights of its own, which a negative
// vocab_size says.
static int take_header(Model *m, const File *file)
{
    int32_t numbers[7];
    take(file, numbers, sizeof numbers);
    if (numbers[0] == 0x616b3432)  // "ak42" begins the versions that have a number
        die(1, "%s: a checkpoint of version %d of export.py; only version 0 is read here",
            file->path, numbers[1]);
    if (!is_model(numbers, m)) {
        for (int i = 0; i < 7; i++) numbers[i] = (int32_t)__builtin_bswap32(numbers[i]);
        if (is_model(numbers, m)) die(1, "%s: a checkpoint of the other byte order", file->path);
        die(1, "%s: not a checkpoint, or its heads are not supported", file->path);
    }
    int separate = m->vocab_size < 0;
    m->vocab_size = abs(m->vocab_size);
    m->head_dim = m->dim / m->num_heads;
    m->kv_dim = m->head_dim * m->num_kv_heads;  // at most dim
    return separate;
}

// The weights live as long as the program.
static void read_model(Model *m, File file)
{
    int separate = take_header(m, &file);
    uint64_t dim = m->dim;
    uint64_t norm = m->num_layers * dim;
    uint64_t square = norm * dim;
    uint64_t narrow = norm * m->kv_dim;
    uint64_t hidden = norm * m->hidden_dim;
    uint64_t table = m->vocab_size * dim;
    uint64_t rope = (uint64_t)m->seq_len * m->head_dim;  // not used: see fill_rope()
    const struct {
        const float **weights;
        uint64_t count;
    } parts[] = {{&m->embedding, table},
                 {&m->rms_att, norm},
                 {&m->wq, square},
                 {&m->wk, narrow},
                 {&m->wv, narrow},
                 {&m->wo, square},
                 {&m->rms_ffn, norm},
                 {&m->w1, hidden},
                 {&m->w2, hidden},
                 {&m->w3, hidden},
                 {&m->rms_final, dim},
                 {&m->classifier, rope},
                 {&m->classifier, separate ? table : 0}};
    uint64_t count = 0;
    for (int i = 0; i < 13; i++) count += parts[i].count;
    const float *next = take_floats(&file, count);
    for (int i = 0; i < 13; next += parts[i++].count) *parts[i].weights = next;
    if (!separate) m->classifier = m->embedding;
    if (!at_end(&file)) die(1, "%s: not a checkpoint: too long", file.path);
    fclose(file.in);
}

// ---- the tokenizer ----------------------------------------------------------------------------
// The file: int32 longest token, then for each token float32 score, int32 length, bytes.

typedef struct TokenId {
    char *key;
    int value;
} TokenId;

typedef struct Tokenizer {
    TokenId *ids;       // text -> token, a string map of stb_ds, which owns the texts
    const char **text;  // [vocab_size] token -> text
    float *scores;      // [vocab_size]
    char *pair;         // room for the texts of two tokens, one after the other
    size_t longest;     // bytes of text that one token can stand for, at most
} Tokenizer;

static void read_tokenizer(Tokenizer *t, File file, int vocab_size)
{
    const int longest = take_int(&file);
    t->longest = 1;
    sh_new_strdup(t->ids);
    for (int token = 0; token < vocab_size; token++) {
        if (at_end(&file))
            die(1, "%s: %d tokens, and the model has %d", file.path, token, vocab_size);
        take(&file, arraddnptr(t->scores, 1), sizeof *t->scores);
        int length = take_int(&file);
        if (length < 0 || length > longest || length > MAX_TEXT)
            die(1, "%s: not a tokenizer: token %d has %d bytes", file.path, token, length);
        if (t->longest < (size_t)length) t->longest = length;
        arrsetlen(t->pair, length + 1);
        take(&file, t->pair, length);
        t->pair[length] = '\0';
        if (shgeti(t->ids, t->pair) < 0) shput(t->ids, t->pair, token);  // of equals, the first
        arrput(t->text, t->ids[shgeti(t->ids, t->pair)].key);
    }
    if (!at_end(&file))
        die(1, "%s: more tokens than the model, which has %d", file.path, vocab_size);
    fclose(file.in);
    arrsetlen(t->pair, 2 * t->longest + 1);
}

// Adds the token of one character, or the tokens of its bytes if the vocabulary does not have it.
static void add_character(Tokenizer *t, const char *bytes, int length, int **tokens)
{
    char key[5];
    memcpy(key, bytes, length);
    key[length] = '\0';
    ptrdiff_t found = shgeti(t->ids, key);
    if (found >= 0) arrput(*tokens, t->ids[found].value);
    for (int i = 0; i < length && found < 0; i++) {
        int token = (unsigned char)bytes[i] + FIRST_BYTE;
        arrput(*tokens, token < arrlen(t->text) ? token : 0);
    }
}

// The token that tokens i and i + 1 merge into, or -1.
static int merged(Tokenizer *t, const int *tokens, ptrdiff_t i)
{
    if (i < 0 || i + 1 >= arrlen(tokens)) return -1;
    snprintf(t->pair, arrlenu(t->pair), "%s%s", t->text[tokens[i]], t->text[tokens[i + 1]]);
    ptrdiff_t found = shgeti(t->ids, t->pair);
    return found < 0 ? -1 : t->ids[found].value;
}

// Merges the pair with the best score, of equals the leftmost, until no pair merges.
static void merge_pairs(Tokenizer *t, int *tokens)
{
    int *merges = NULL;  // merges[i] is merged(i), so that a round only compares
    for (ptrdiff_t i = 0; i < arrlen(tokens); i++) arrput(merges, merged(t, tokens, i));
    for (;;) {
        ptrdiff_t best = -1;
        for (ptrdiff_t i = 0; i < arrlen(merges); i++)
            if (merges[i] >= 0 && (best < 0 || t->scores[merges[i]] > t->scores[merges[best]]))
                best = i;
        if (best < 0) break;
        tokens[best] = merges[best];
        arrdel(tokens, best + 1);
        arrdel(merges, best + 1);
        merges[best] = merged(t, tokens, best);
        if (best > 0) merges[best - 1] = merged(t, tokens, best - 1);
    }
    arrfree(merges);
}

// Byte pair encoding: the characters, and then what they merge into. Returns an array of stb_ds
// that begins with BOS.
UNUSED static int *encode(Tokenizer *t, const char *text)
{
    int *tokens = NULL;
    if (*text) add_character(t, " ", 1, &tokens);
    for (int n; *text; text += n) {
        n = 1;
        while (n < 4 && (text[n] & 0xC0) == 0x80) n++;  // UTF-8: bytes 10xxxxxx continue
        add_character(t, text, n, &tokens);
    }
    merge_pairs(t, tokens);
    arrins(tokens, 0, BOS);
    return tokens;
}

// Are there characters without a token among these? They became bytes, which print_token() omits.
UNUSED static int has_bytes(const int *tokens)
{
    for (ptrdiff_t i = 0; i < arrlen(tokens); i++)
        if (tokens[i] >= 0x80 + FIRST_BYTE && tokens[i] < 0x100 + FIRST_BYTE) return 1;
    return 0;
}

// What llama2.c prints for a token: no blank that encode() puts in front of a text, for a token
// spelled <0x0A> that byte, and no single byte that a terminal cannot show. Valid until the next
// call.
static const char *token_text(const Tokenizer *t, int previous, int token)
{
    static char byte[2];
    const char *text = t->text[token];
    unsigned value;
    int end = 0;
    if (previous == BOS && *text == ' ') text++;
    if (sscanf(text, "<0x%2X>%n", &value, &end) == 1 && end == 6) {
        byte[0] = (char)value;
        text = byte;
    }
    int shown = strlen(text) != 1 || isprint((unsigned char)*text) || isspace((unsigned char)*text);
    return shown ? text : "";
}
