// 10a. Blocks have 4 tokens, a token is a letter. "abcdefghijkl" was computed and published, and so
// was "abcdXXXXijkl", in this order; both requests have ended, and the pool has room for all. How
// many tokens does a new request find in the prefix cache, for each of the texts below? Put your
// numbers into the list, then: make exercise N=10a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

static const struct {
    const char *text;
    int found;  // your number in place of -1
} questions[] = {
    {"abcdefghijkl", -1},  {"abcdefghijklm", -1}, {"abcdXXXXijklm", -1},
    {"abcdefghXXXXm", -1}, {"efghijklm", -1},     {"abcdefgXijklm", -1},
};

static Pool *pool;

// How many tokens a request finds. With `serve`, it is also computed and published.
static int ask(const char *text, int serve)
{
    int n = (int)strlen(text), tokens[16];
    float x[16] = {0};
    Seq *seq;
    for (int i = 0; i < n; i++) tokens[i] = text[i];
    if (seq_create(pool, &seq) || seq_lookup(seq, tokens, n)) exit(1);
    int found = seq->length, rest = n - found;
    Batch batch = {1, &seq, &rest};
    if (serve && (seq_append(seq, rest) || pool_write(pool, 0, &batch, x, x))) exit(1);
    if (serve && seq_publish(seq, tokens, n)) exit(1);
    seq_release(seq);
    return found;
}

int main(void)
{
    PoolConfig config = {1, 1, 1, 4, 16, PAGED_F32, 1, PAGED_CPU};
    if (pool_create(&config, &pool)) return 1;
    ask("abcdefghijkl", 1);
    ask("abcdXXXXijkl", 1);
    int wrong = 0;
    for (int i = 0; i < (int)(sizeof questions / sizeof *questions); i++)
        if (ask(questions[i].text, 0) != questions[i].found) {
            printf("10a: not yet: \"%s\" does not find %d tokens\n", questions[i].text,
                   questions[i].found);
            wrong = 1;
        }
    pool_destroy(pool);
    if (!wrong) printf("10a: solved\n");
    return wrong;
}
