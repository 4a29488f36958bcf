// play_tales.c: examples/play.c tells tales, as docs/play.html lets it, in pools of several block
// sizes, and ./llama tells the same ones: with a branch, with too little memory.
// LLAMA names the program, otherwise ./llama.
//
//     cc -DPAGED_NO_MAIN -I. checks/play_tales.c -o build/play-tales -lm
//     build/play-tales

#include "../examples/play.c"

// No kernel runs here.
void page_share(const char *name, const void *array, size_t bytes)
{
    (void)name, (void)array, (void)bytes;
}

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
                         token_text(&server.tokenizer, tokens[i - 1], tokens[i]));
    return text;
}

static void tell_all(int max_steps)
{
    for (int before = -1; before < server.num_steps && max_steps > 0; max_steps--) {
        before = server.num_steps;
        tell();
        const char *wrong = pool_check(pool);
        check(!wrong, wrong);
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

// What look() shows is attention: it gives the sum that attend() gives for this query.
static void check_weights(Seq **seq)
{
    static float q[1 << 7], out[1 << 7], k[1 << 14], v[1 << 14];
    const Model *m = &server.model;
    const int first = LOOK_HEAD * m->head_dim, i = (int)(tale_of(seq, 0) - server.requests);
    memcpy(q + first, asked + i * m->head_dim, m->head_dim * sizeof *q);
    must(pool_plan(pool, &(Batch){1, seq, &(int){1}}), "pool_plan");
    must(attend(pool, ATTEND_PAGED, LOOK_LAYER, m->num_heads, 0, q, out, NULL), "attend");
    must(seq_gather(*seq, LOOK_LAYER, k, v), "seq_gather");
    must(look(seq), "look");
    check(arrlen(weights) == (*seq)->length, "look() does not see each token");
    for (int d = 0; d < m->head_dim; d++) {
        double sum = -out[first + d];
        for (int t = 0; t < (*seq)->length; t++)
            sum += weights[t] *
                   v[t * m->kv_dim + LOOK_HEAD * m->num_kv_heads / m->num_heads * m->head_dim + d];
        check(fabs(sum) < 1e-4, "look() shows weights of which attention is not the sum");
    }
    arrsetlen(weights, 0);
}

static void one_tale_and_branches(int block_size, int num_blocks)
{
    static char prompt[1 << 12];
    must(model(block_size, num_blocks), "model");
    must(tale(&a, 0), "tale");
    tell_all(50);
    strcpy(prompt, text_of(&a, 33));
    must(branch(&a, 33, &b), "branch");
    check(b->length == 32 && b->block_table[0] == a->block_table[0], "a branch does not share");
    must(look(&b), "look");
    check(arrlen(weights) == 0, "a branch looks before it is told");
    tell_all(20);
    check_weights(&a);
    check_weights(&b);
    tell_all(INT_MAX);
    compare(&a, "", "");
    compare(&b, prompt, "-t 0.7 -s 1");
    check(server.num_preemptions == 0, "a preemption");
    check(!a && !b && pool->num_free == num_blocks, "a tale that has ended has blocks");
    must(branch(&a, 33, &c), "branch");  // shares nothing any more
    tell_all(INT_MAX);
    compare(&c, prompt, "-t 0.7 -s 2");
    must(branch(&c, 1, &d), "branch");
    tell_all(INT_MAX);
    check(!d && pool->num_free == num_blocks, "blocks are lost");
}

static void many_tales_in_a_small_pool(int block_size, int num_blocks)
{
    must(model(block_size, num_blocks), "model");
    for (int i = 0; i < SEQS; i++) must(tale(seqs[i], i), "tale");
    for (int before = -1, waits = 0; before < server.num_steps; waits = 0) {
        before = server.num_steps;
        tell_all(1);
        for (int i = 0; i < SEQS; i++) {
            check(!waits || !*seqs[i], "a tale overtakes another");
            if (!*seqs[i] && !server.requests[i].ended) waits = 1;
        }
    }
    compare(&a, "", "");
    for (int i = 1; i < SEQS; i++) {
        char options[20];
        snprintf(options, sizeof options, "-t 0.7 -s %d", i);
        compare(seqs[i], "", options);
    }
    check(server.num_preemptions > 0, "no preemption");
    check(server.num_recomputed > 0, "nothing was computed again");
    check(tale(&e, 0) == PAGED_BAD_ARGUMENT, "a tale in place of another");
}

// A call that cannot be changes nothing.
static void refusals(void)
{
    must(model(4, 20), "model");
    must(tale(&a, 0), "tale");
    tell_all(9);
    check(tale(&a, 0) == PAGED_BAD_ARGUMENT, "a tale in place of another");
    check(look(&b) && branch(&b, 1, &d), "no tale");
    check(branch(&a, 9, &a), "a branch to a tale that there is");
    check(branch(&a, 0, &b) && branch(&a, 11, &b), "no such token");
    check(model(0, 20) && model(4, 0), "no such pool");
    check(arrlen(server.requests[0].tokens) == 10 && a->length == 9 && !b && !d && !e,
          "a refusal has an effect");
    tell_all(INT_MAX);
    check(server.requests[0].ended && arrlen(server.requests[0].tokens) == 81,
          "a tale as long as the pool ends");
    check(branch(&a, 81, &b), "a branch that never fits");
    must(branch(&a, 80, &b), "branch");
    tell_all(INT_MAX);
    check(server.requests[1].ended, "the longest branch ends");
    must(start(4, 4), "start");
    check(tale(&a, 0) == PAGED_BAD_ARGUMENT, "a tale in a pool of letters");
}

// When a name is told again, the head of look() sees where it was.
static void the_head_looks_names_up(void)
{
    int names = 0, found = 0;
    must(model(16, 16), "model");
    must(tale(&a, 0), "tale");
    for (tell(); a; tell()) {
        const int *tokens = server.requests[0].tokens;
        const char *text = server.tokenizer.text[arrlast(tokens)];
        float seen = 0;
        int told = 0;
        must(look(&a), "look");
        for (int t = 0; t < a->length; t++) {
            if (tokens[t] != arrlast(tokens)) continue;
            told = 1;
            seen += weights[t];
        }
        arrsetlen(weights, 0);
        if (!told || text[0] != ' ' || !isupper((unsigned char)text[1])) continue;
        names++;
        if (seen > 0.5) found++;
    }
    check(found > 4 && 2 * found > names, "the head does not look names up");
}

int main(void)
{
    refusals();
    the_head_looks_names_up();
    const int sizes[] = {1, 3, 4, 16, 256};
    for (int i = 0; i < 5; i++) {
        one_tale_and_branches(sizes[i], 512 / sizes[i]);
        if (sizes[i] < 100) many_tales_in_a_small_pool(sizes[i], 300 / sizes[i]);
    }
    return failures > 0;
}
