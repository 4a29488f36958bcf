// test.h: the words of the tests in C, and what runs them. A program of tests is
//
//     TEST(two_and_two_are_four) { CHECK_EQ(2 + 2, 4); }
//
// and a main() that calls begin_tests(), run_tests() and end_tests(). It takes names of tests and
// the options --list, --quick and --seed N. Each test is a process of its own; if only one is
// named, it runs in this process, for a debugger. A failing check prints where it stands and ends
// its test only: break on failed.

#include <getopt.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))  // not every program uses everything here

// ---- tests and checks -------------------------------------------------------------------------

typedef struct Test {
    const char *name;
    void (*run)(void);
    int on;     // of which calls of run_tests() it is a part
    int named;  // on the command line
} Test;

static Test tests[100];
static int num_tests;

#define TEST(name) TEST_ON(name, 1)
#define TEST_ON(name, on) \
    static void test_##name(void); \
    __attribute__((constructor)) static void add_##name(void) \
    { \
        Test test = {#name, test_##name, on, 0}; \
        tests[num_tests++] = test; \
    } \
    static void test_##name(void)

#define TEXT_OF(line) #line
#define PLACE_IN(file, line) file ":" TEXT_OF(line)
#define PLACE PLACE_IN(__FILE__, __LINE__)
#define CHECK(x) ((x) ? (void)0 : failed(PLACE, #x, "expected true, got false"))
#define CHECK_EQ(actual, expected) check_eq(PLACE, #actual, actual, expected)
#define CHECK_TEXT(actual, expected) check_text(PLACE, #actual, actual, expected)
#define CHECK_HAS(actual, part) check_has(PLACE, #actual, actual, part)
#define CHECK_CLOSE(actual, expected, largest) \
    check_close(PLACE, #actual, actual, expected, largest)

enum { PASSED, FAILED, SKIPPED, NOTE = 400, SECONDS = 900 };  // that a test may take

static jmp_buf test_end;  // where a failing check goes ...
static int in_a_test;     // ... in a test; anywhere else the program aborts
static char own_note[NOTE];
static char *noted = own_note;

// What a loop is at; a failing check prints it.
#define note(...) snprintf(noted, NOTE, __VA_ARGS__)

// Every failing check comes here.
__attribute__((noreturn, format(printf, 3, 4))) static void
failed(const char *place, const char *what, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("\n%s: %s: ", place, what);
    vprintf(format, list);
    printf("\n");
    va_end(list);
    if (noted[0]) printf("  at %s\n", noted);
    fflush(stdout);
    if (!in_a_test) abort();
    longjmp(test_end, FAILED);
}

__attribute__((noreturn)) UNUSED static void skip(const char *reason)
{
    printf("SKIPPED: %s\n", reason);
    longjmp(test_end, SKIPPED);
}

UNUSED static void check_eq(const char *place, const char *what, long long actual,
                            long long expected)
{
    if (actual != expected) failed(place, what, "expected %lld, got %lld", expected, actual);
}

UNUSED static void check_text(const char *place, const char *what, const char *actual,
                              const char *expected)
{
    if (!actual) failed(place, what, "expected \"%s\", got NULL", expected);
    if (strcmp(actual, expected) != 0)
        failed(place, what, "expected \"%s\", got \"%s\"", expected, actual);
}

// An empty part is refused, since it is in every text.
UNUSED static void check_has(const char *place, const char *what, const char *actual,
                             const char *part)
{
    if (!actual || !*part || !strstr(actual, part))
        failed(place, what, "expected \"%s\" in \"%s\"", part, actual ? actual : "NULL");
}

// A result that may be infinity or NaN, if that is what is expected: these are close to nothing.
UNUSED static void check_close(const char *place, const char *what, float actual, float expected,
                               double largest)
{
    if (isnan(expected) ? isnan(actual) : actual == expected) return;
    int close = fabs((double)actual - expected) <= 1e-5 * fmax(1, largest);
    if (!close || !isfinite(actual) || !isfinite(expected))
        failed(place, what, "expected %.9g, got %.9g", expected, actual);
}

// ---- random numbers, memory -------------------------------------------------------------------

static uint64_t seed = 1;  // --seed
static int quick;          // --quick

static __thread uint64_t random_state;

static uint64_t next_random(void)  // splitmix64, Steele et al. 2014
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

UNUSED static int between(int low, int high)  // a random number, both included
{
    return low + (int)(next_random() % (uint64_t)(high - low + 1));
}

UNUSED static int times(int n, int cut)  // how often to do random work: n, or by --quick n / cut
{
    return quick ? (n + cut - 1) / cut : n;
}

UNUSED static float random_float(void)  // in [-1, 1)
{
    return (float)(int64_t)next_random() * 0x1p-63f;
}

static __thread void **memory;  // what alloc() gave out
static __thread size_t num_allocs;

// Memory for the test, all zeros, which is freed when it ends.
static void *alloc(size_t size)
{
    enum { STEP = 1024 };
    if (num_allocs % STEP == 0)
        memory = (void **)realloc(memory, (num_allocs + STEP) * sizeof *memory);
    void *p = calloc(size + 1, 1);
    if (!memory || !p) failed(PLACE, "alloc", "no memory for %zu bytes", size);
    memory[num_allocs++] = p;
    return p;
}

// Frees what was given out since num_allocs was `mark`.
static void free_to(size_t mark)
{
    while (num_allocs > mark) free(memory[--num_allocs]);
}

UNUSED static float *random_floats(size_t n)
{
    float *x = (float *)alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    return x;
}

UNUSED static char *format_text(const char *format, ...)
{
    char *text = (char *)alloc(4000);
    va_list list;
    va_start(list, format);
    vsnprintf(text, 4000, format, list);
    va_end(list);
    return text;
}

// ---- the runner -------------------------------------------------------------------------------

static const char *program;         // the name of this one
static int num_named;               // tests on the command line
static char numbers[60];            // the program's own options with a number, as given
static int one_process;             // for CUDA, which does not survive fork()
static void (*clean_up)(int good);  // of a program: ends what a test has left; good: it has passed
static int results[SKIPPED + 1];    // how many tests have passed, ...

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Prints the command that runs it again.
static void print_failed(const Test *test, const char *option)
{
    printf("  FAILED: %s %s%s%s--seed %llu %s%s\n", program, option, *option ? " " : "",
           quick ? "--quick " : "", (unsigned long long)seed, numbers, test->name);
}

static void end_test(int good)
{
    if (clean_up) clean_up(good);
    free_to(0);
}

static int run_test(const Test *test, const char *option)
{
    const double start = now();
    random_state = seed;  // its random numbers depend on its name, not on the tests before it
    for (const char *c = test->name; *c; c++) random_state = random_state * 31 + (uint64_t)*c;
    in_a_test = 1;
    switch (setjmp(test_end)) {
    case 0:
        test->run();
        end_test(1);
        printf("ok %8.2f s\n", now() - start);
        return PASSED;
    case SKIPPED: return SKIPPED;
    default: print_failed(test, option); return FAILED;
    }
}

static int run_here(const Test *test, const char *option)
{
    int result = run_test(test, option);
    if (result != PASSED) end_test(0);
    return result;
}

// In a child, so that a crash ends only this test, and is reported with its name. Exit statuses of
// the sanitizers and of valgrind are not among those that mean a result.
static int run_in_child(const Test *test, const char *option)
{
    enum { RESULT = 40 };
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        int result = run_test(test, option);
        fflush(stdout);
        if (result == FAILED) _exit(RESULT + result);  // what it has left behind is not a leak
        exit(RESULT + result);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("fork");
        return FAILED;
    }
    int result = WIFEXITED(status) ? WEXITSTATUS(status) - RESULT : -1;
    if (result >= PASSED && result <= SKIPPED) return result;
    if (WIFSIGNALED(status))
        printf("\nsignal %d: %s\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        printf("\nexit status %d\n", WEXITSTATUS(status));
    if (noted[0]) printf("  at %s\n", noted);
    print_failed(test, option);
    return FAILED;
}

// Runs the tests that are a part of `on` or, of these, those that are named. The option, such as
// --cpu, is the one that makes the program run them so; it may be empty.
static void run_tests(const char *option, int on)
{
    for (const Test *test = tests; test < tests + num_tests; test++) {
        if (!(test->on & on)) continue;
        if (num_named > 0 && !test->named) continue;
        if (*option) printf("%-8s ", option + strlen("--"));
        printf("%-46s ", test->name);
        fflush(stdout);
        noted[0] = 0;
        if (num_named == 1 || one_process)
            results[run_here(test, option)]++;
        else
            results[run_in_child(test, option)]++;
    }
}

static void name_test(const char *name)
{
    for (int t = 0; t < num_tests; t++) {
        if (strcmp(tests[t].name, name) != 0) continue;
        tests[t].named = 1;
        num_named++;
        return;
    }
    fprintf(stderr, "%s: there is no test %s\n", program, name);
    exit(2);
}

// Reads the command line. A program's own options end with one that has no name, and are flags or
// have a number, which goes to where the flag would.
static void begin_tests(int argc, char **argv, const struct option *own)
{
    int list = 0, index = 0;
    struct option options[10] = {{"quick", no_argument, &quick, 1},
                                 {"list", no_argument, &list, 1},
                                 {"seed", required_argument, NULL, 's'}};
    for (int i = 0; own && own[i].name; i++) options[3 + i] = own[i];
    program = argv[0];
    noted = (char *)mmap(NULL, NOTE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (noted == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);  // what was printed stands, should a sanitizer stop it
    for (int c; (c = getopt_long(argc, argv, "", options, &index)) != -1;) {
        if (c == '?') {
            fprintf(stderr, "The top of its source lists the options.\n");
            exit(2);
        }
        if (c == 's') seed = strtoull(optarg, NULL, 10);
        if (c != 0 || options[index].has_arg == no_argument) continue;
        *options[index].flag = atoi(optarg);
        size_t used = strlen(numbers);
        snprintf(numbers + used, sizeof numbers - used, "--%s %s ", options[index].name, optarg);
    }
    for (; optind < argc; optind++) name_test(argv[optind]);
    for (int t = 0; list && t < num_tests; t++) printf("%s\n", tests[t].name);
    if (list) exit(0);
    printf("seed %llu%s\n", (unsigned long long)seed,
           quick ? ", quick: random work is cut to a twentieth" : "");
}

static int end_tests(void)
{
    printf("%d passed, %d failed, %d skipped\n", results[PASSED], results[FAILED],
           results[SKIPPED]);
    return results[FAILED] > 0 || results[PASSED] + results[SKIPPED] == 0;
}
