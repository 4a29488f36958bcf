// soak: the random calls of fuzz_api.c on pools that are nearly always full, for SECONDS (1800).
// Besides what is checked after every call there, the memory of the process must not grow: at the
// end it may be 4 MB above what it was after a tenth of the time.
//
//     cc -O2 -g checks/soak.c -o soak -lm && SECONDS=60 ./soak

#define NO_TARGET
#include "fuzz_api.c"

#include <time.h>
#include <unistd.h>

// Memory of the process that is in RAM, in KB; 0 where the system does not tell.
static long resident(void)
{
    long pages = 0;
    FILE *in = fopen("/proc/self/statm", "r");
    if (in && fscanf(in, "%*d %ld", &pages) != 1) pages = 0;
    if (in) fclose(in);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(void)
{
    const char *text = getenv("SECONDS");
    double seconds = text ? atof(text) : 1800;
    uint64_t seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 1;
    long calls = 0, full = 0, pools = 0, allowed = 0, copies = 0;
    time_t start = time(NULL), last = start;
    endless = &seed;
    while (difftime(time(NULL), start) < seconds) {
        int block_size = 1 + (int)(pools % 8);
        int num_blocks = MAX_TOKENS * 2 / block_size;  // a quarter of what all sequences could use
        int poison = pools % 2 == 0;
        PoolConfig c = {2, 2, 8, block_size, num_blocks, (int)(pools % 3), poison, PAGED_CPU};
        make_pool(c);
        for (int i = 0; i < 4000; i++, calls++) {
            if (num_twins < MAX_SEQS) call_create();
            if (i % 2) call_step();
            one_call();
            full += pool->num_free < 4;
        }
        copies += pool->num_copies;
        end_pool();
        pools++;
        double elapsed = difftime(time(NULL), start);
        if (allowed == 0 && elapsed >= seconds / 10) allowed = resident() + 4096;
        if (allowed > 0 && resident() > allowed) fuzz_fail(__FILE__, __LINE__, "memory grows");
        if (difftime(time(NULL), last) < seconds / 20) continue;
        last = time(NULL);
        printf("%5.0f s: %ld calls, %ld pools, %ld of %ld after a call nearly full, %ld copies on "
               "write, %ld refused for blocks, %ld KB\n",
               elapsed, calls, pools, full, calls, copies, num_results[PAGED_OUT_OF_BLOCKS],
               resident());
        fflush(stdout);
    }
    printf("%ld plans out of date refused, %ld blocks withdrawn from the prefix cache\n", num_stale,
           num_withdrawn);
    CHECK(num_results[PAGED_OUT_OF_BLOCKS] > 0 && copies > 0 && num_stale > 0);
    CHECK(num_withdrawn > 0);
    printf("1 passed, 0 failed, 0 skipped\n");
    return 0;
}
