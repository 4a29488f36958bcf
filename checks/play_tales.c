// play_tales.c: the race of docs/play.html, in pools of several block sizes, one of them too small
// for all six: ./llama tells the same tales. LLAMA names the program, otherwise ./llama.
//
//     cc -DPAGED_NO_MAIN -DKERNEL='"paged.cu.c"' -I. checks/play_tales.c -o build/play-tales -lm
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

// The words of a tale, as ./llama prints them.
static const char *text_of(int tale)
{
    static char text[1 << 14];
    const int *tokens = server.requests[tale].tokens;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 1; i < arrlen(tokens); i++)
        used += snprintf(text + used, sizeof text - used, "%s",
                         token_text(&server.tokenizer, tokens[i - 1], tokens[i]));
    return text;
}

static void compare(int tale)
{
    static char expected[1 << 14], command[1 << 10];
    const char *llama = getenv("LLAMA") ? getenv("LLAMA") : "./llama";
    snprintf(command, sizeof command, "%s -t %s -s %d 2>/dev/null", llama, tale ? "0.7" : "0",
             tale);
    FILE *out = popen(command, "r");
    expected[fread(expected, 1, sizeof expected - 1, out)] = '\0';
    check(pclose(out) == 0, command);
    const char *text = text_of(tale);
    size_t length = strlen(text);
    check(strncmp(text, expected, length) == 0 && strcmp(expected + length, "\n") == 0, text);
}

static void six_tales(int block_size, int num_blocks)
{
    must(model(block_size, num_blocks), "model");
    for (int before = -1, waits = 0; before < server.num_steps; waits = 0) {
        before = server.num_steps;
        tell();
        const char *wrong = pool_check(pool);
        check(!wrong, wrong);
        for (int i = 0; i < SEQS; i++) {
            check(!waits || !*seqs[i], "a tale overtakes another");
            if (!*seqs[i] && !server.requests[i].ended) waits = 1;
        }
    }
    for (int i = 0; i < SEQS; i++) compare(i);
    check(pool->num_free == num_blocks, "a tale that has ended has blocks");
}

int main(void)
{
    const int sizes[] = {1, 3, 4, 16, 256};
    for (int i = 0; i < 5; i++) {
        six_tales(sizes[i], 512 / sizes[i]);
        if (sizes[i] == 256) continue;
        six_tales(sizes[i], 300 / sizes[i]);
        check(server.num_preemptions > 0 && server.num_recomputed > 0, "no preemption");
    }
    check(model(0, 20) && model(4, 0), "no such pool");
    return failures > 0;
}
