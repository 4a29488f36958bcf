// 10a: six numbers to be predicted.
//
// Blocks have 4 tokens, a token is a letter. "abcdefghijkl" was computed and published, and so was
// "abcdXXXXijkl", in this order; both requests have ended, and the pool has room for all. How many
// tokens does a new request find in the prefix cache, for each of the texts below? Write the
// numbers into the list, then run this.
//
//     make exercise N=10a

#define PAGED_NO_MAIN
#include "../paged.cu.c"

static const struct {
    const char *text;
    int found;  // your number in place of -1
    const char *why;
} questions[] = {
    {"abcdefghijkl", -1, "all of it is there, but the last token is always computed"},
    {"abcdefghijklm", -1, "three full blocks"},
    {"abcdXXXXijklm", -1, "three, the last one in a block of its own: another beginning"},
    {"abcdefghXXXXm", -1, "two; XXXX was published after abcd only"},
    {"efghijklm", -1, "efgh was published after abcd only"},
    {"abcdefgXijklm", -1, "one; a block is found as a whole or not at all"},
};

static Pool *pool;

// How many tokens a request finds. With `serve`, it is also computed and published.
static int ask(const char *text, int serve)
{
    int n = (int)strlen(text);
    int tokens[16];
    float x[16] = {0};
    Seq *seq;
    for (int i = 0; i < n; i++) tokens[i] = text[i];
    if (seq_create(pool, &seq) || seq_lookup(seq, tokens, n)) exit(1);
    int found = seq->length;
    int rest = n - found;
    Batch batch = {1, &seq, &rest};
    if (serve && (seq_append(seq, rest) || pool_plan(pool, &batch))) exit(1);
    if (serve && (pool_write(pool, 0, x, x) || seq_publish(seq, tokens, n))) exit(1);
    seq_release(seq);
    return found;
}

int main(void)
{
    PoolConfig config = {1, 1, 1, 4, 16, PAGED_F32, 1, PAGED_CPU};
    if (pool_create(&config, &pool)) return 1;
    ask("abcdefghijkl", 1);
    ask("abcdXXXXijkl", 1);
    int n = (int)(sizeof questions / sizeof *questions);
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        int found = ask(questions[i].text, 0);
        if (found == questions[i].found) continue;
        printf("10a: not yet: \"%s\": your number is too %s\n", questions[i].text,
               questions[i].found < found ? "small" : "large");
        wrong = 1;
    }
    pool_destroy(pool);
    if (wrong) return 1;
    printf("10a: solved:\n");
    for (int i = 0; i < n; i++)
        printf("%14s %2d  %s\n", questions[i].text, questions[i].found, questions[i].why);
    return 0;
}
