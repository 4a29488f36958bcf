// play_tales.c: examples/play.c tells tales, as docs/play.html lets it, in pools of several block
// sizes, and ./llama tells the same ones: with a branch, another word, a rewind, too little memory.
// LLAMA names the program, otherwise ./llama.
//
//     cc -DPAGED_NO_MAIN -I. checks/play_tales.c paged.cu.c -o build/play-tales -lm
//     build/play-tales

#include "../examples/play.c"

static int failures;

static void check(int right, const char *what)
{
    if (right) return;
    if (failures++ < 100) printf("block_size %d: %s\n", config.block_size, what);
}

// The first n words of a tale, as ./llama prints them.
static const char *text_of(Seq **seq, int n)
{
    static char text[1 << 14];
    const int *tokens = tale_of(seq, 0)->tokens;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 1; i < n && i < arrlen(tokens); i++)
        used += snprintf(text + used, sizeof text - used, "%s",
                         token_text(&tokenizer, tokens[i - 1], tokens[i]));
    return text;
}

// What is in the slots is what the tales say, in a pool without a fault.
static void check_pool(void)
{
    const char *wrong = pool_check(pool);
    check(!wrong, wrong);
    for (int i = 0; i < SEQS; i++)
        for (int t = 0; *seqs[i] && t < (*seqs[i])->num_computed_tokens; t++)
            check(token_in((*seqs[i])->block_table[t / config.block_size],
                           t % config.block_size) == tales[i].tokens[t],
                  "a slot has another word");
}

static void tell_all(int max_steps)
{
    for (int before = -1; before < num_steps && max_steps > 0; max_steps--) {
        before = num_steps;
        tell();
        check_pool();
    }
}

// The words that ./llama adds to a prompt.
static void compare(Seq **seq, const char *prompt, const char *options)
{
    static char expected[1 << 14], command[1 << 10];
    const char *llama = getenv("LLAMA") ? getenv("LLAMA") : "./llama";
    setenv("PROMPT", prompt, 1);
    snprintf(command, sizeof command, "%s %s -p \"$PROMPT\" 2>/dev/null", llama, options);
    FILE *out = popen(command, "r");
    expected[fread(expected, 1, sizeof expected - 1, out)] = '\0';
    check(pclose(out) == 0, command);
    const char *text = text_of(seq, INT_MAX);
    size_t length = strlen(text);
    check(strncmp(text, expected, length) == 0 && strcmp(expected + length, "\n") == 0, text);
}

// The weights of each head are those of attention: they give the sums that attend() gives.
static void check_weights(Seq *seq, const float *queries)
{
    static float k[1 << 14], v[1 << 14], weights[1 << 10], out[1 << 10];
    const int n = seq->length;
    must(pool_plan(pool, &(Batch){1, &seq, &(int){1}}), "pool_plan");
    for (int layer = 0; layer < m.num_layers; layer++) {
        const float *q = queries + ((n - 1) * m.num_layers + layer) * m.dim;
        must(attend(pool, ATTEND_PAGED, layer, m.num_heads, 0, q, out, NULL), "attend");
        must(seq_gather(seq, layer, k, v), "seq_gather");
        for (int head = 0; head < m.num_heads; head++) {
            weigh(q, k, n - 1, head, weights);
            for (int d = 0; d < m.head_dim; d++) {
                double sum = -out[head * m.head_dim + d];
                for (int t = 0; t < n; t++)
                    sum += weights[t] *
                           v[t * m.kv_dim + head * m.num_kv_heads / m.num_heads * m.head_dim + d];
                check(fabs(sum) < 1e-4, "look() shows weights of which attention is not the sum");
            }
        }
    }
}

static void one_tale_and_a_branch(int block_size, int num_blocks)
{
    static char prompt[1 << 12];
    must(model(block_size, num_blocks), "model");
    must(tale(&a, 0), "tale");
    tell_all(50);
    snprintf(prompt, sizeof prompt, "%s Zoe", text_of(&a, 33));
    must(branch(&a, 33, &b), "branch");
    check(b->length == 32 && b->block_table[0] == a->block_table[0], "a branch does not share");
    check(memcmp(tales[1].queries, tales[0].queries,
                 (size_t)32 * m.num_layers * m.dim * sizeof(float)) == 0,
          "a branch has other queries");
    must(say(&b, "Zoe"), "say");
    tell_all(20);
    check_weights(a, tales[0].queries);
    check_weights(b, tales[1].queries);
    must(back(&a, 40), "back");
    tell_all(INT_MAX);
    compare(&a, "", "");
    compare(&b, prompt, "");
    check(num_preemptions == 0, "a preemption");
    must(back(&b, 10), "back");
    tell_all(INT_MAX);
    compare(&b, "", "");
    must(forget(&a), "forget");
    must(branch(&b, 10, &a), "branch");
    tell_all(INT_MAX);
    compare(&a, "", "");
    must(forget(&a), "forget");
    must(forget(&b), "forget");
    check(pool->num_free == num_blocks, "blocks are lost");
}

static void many_tales_in_a_small_pool(int block_size, int num_blocks)
{
    const char *prompts[] = {"", "Long ago", "One day a block named Gus", "Once upon a time"};
    must(model(block_size, num_blocks), "model");
    for (int i = 0; i < 4; i++) must(tale(seqs[i], 0) || say(seqs[i], prompts[i]), "tale");
    must(tale(&e, 5), "tale");
    must(tale(&f, 9), "tale");
    for (int before = -1, waits = 0; before < num_steps; waits = 0) {
        before = num_steps;
        tell_all(1);
        for (int i = 0; i < SEQS; i++) {
            check(!waits || !*seqs[i] || tales[i].ended, "a tale overtakes another");
            waits |= !*seqs[i] && !tales[i].ended;
        }
    }
    for (int i = 0; i < 4; i++) compare(seqs[i], prompts[i], "");
    compare(&e, "", "-t 0.7 -s 5");
    compare(&f, "", "-t 0.7 -s 9");
    check(num_preemptions > 0, "no preemption");
    check(num_recomputed > 0, "nothing was computed again");
    check(tale(&e, 0) == PAGED_BAD_ARGUMENT, "a tale in place of another");
}

// A call that cannot be changes nothing.
static void refusals(void)
{
    static char long_text[2000];
    memset(long_text, 'x', sizeof long_text - 1);
    must(model(4, 20), "model");
    must(tale(&a, 0), "tale");
    tell_all(9);
    must(seq_create(pool, &c), "seq_create");  // not a tale
    check(tale(&a, 0) && tale(&c, 0), "a tale in place of another sequence");
    check(say(&a, long_text) == PAGED_TOO_LONG, "words that never fit");
    check(say(&b, "Gus") && back(&b, 1) && forget(&b) && look(&b, 1), "no tale");
    check(branch(&b, 1, &d) && branch(&a, 9, &a) && branch(&a, 9, &c), "a branch of none, to one");
    check(branch(&a, 0, &b) && branch(&a, 11, &b) && back(&a, 0) && back(&a, 11), "no such token");
    must(tale(&e, 0), "tale");
    check(look(&a, 0) && look(&a, 10) && look(&e, 1), "no such choice, or not in the pool");
    must(forget(&e), "forget");
    check(model(0, 20) && model(4, 0), "no such pool");
    check(arrlen(tales[0].tokens) == 10 && a->length == 9 && !b && !d, "a refusal has an effect");
    must(back(&a, 1), "back");
    check(a->length == 0, "all is taken back");
    tell_all(INT_MAX);
    check(tales[0].ended && a->length == 80, "a tale as long as the pool ends");
    must(back(&a, 80), "back");
    tell_all(INT_MAX);
    check(tales[0].ended && a->length == 80, "and can be told again");
    must(start(4, 4), "start");
    check(tale(&a, 0) == PAGED_BAD_ARGUMENT, "a tale in a pool of letters");
}

// When a name is told again, a head looks at where it was.
static void a_head_looks_names_up(void)
{
    double most = 0;
    must(model(16, 16), "model");
    must(tale(&a, 0), "tale");
    tell_all(INT_MAX);
    for (int at = 1; at < a->length; at++) {
        const int token = tales[0].tokens[at];
        const char *text = tokenizer.text[token];
        int told = 0;
        for (int i = 0; i < at; i++) told |= tales[0].tokens[i] == token;
        must(look(&a, at), "look");
        if (told && text[0] == ' ' && isupper((unsigned char)text[1]))
            most = fmax(most, best_seen);
    }
    check(most > 0.5 && most <= 1, "no head looks a name up");
}

int main(void)
{
    refusals();
    a_head_looks_names_up();
    const int sizes[] = {1, 3, 4, 16, 256};
    for (int i = 0; i < 5; i++) {
        one_tale_and_a_branch(sizes[i], 512 / sizes[i]);
        if (sizes[i] < 100) many_tales_in_a_small_pool(sizes[i], 300 / sizes[i]);
    }
    return failures > 0;
}
