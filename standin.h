// standin.h: enough of a GPU to run the kernels of paged.cu.c without one. Part of that file, in
// builds that nvcc does not make; it is no header of its own.
//
// Each thread is a coroutine with its own stack, run alone up to its next barrier or shuffle. So
// gdb stops in any lane, the sanitizers see every access, and lanes can run in another order: a
// kernel that lacks a barrier gives another result then. To read this, begin at launch(), at the
// end.

#include <setjmp.h>
#include <ucontext.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>  // it wants to know when the stack is another one
#else
#define __sanitizer_start_switch_fiber(save, bottom, size) (void)(save)
#define __sanitizer_finish_switch_fiber(saved, bottom, size) (void)(saved)
#endif

#define UNROLL
#define KERNEL static void
#define DEVICE static inline __attribute__((always_inline))
#define __syncthreads() gpu_meet(&gpu.block, THREADS, __LINE__)
#define __shfl_sync(mask, value, lane) gpu_shuffle(mask, value, lane, __LINE__)
#define __shfl_xor_sync(mask, value, bits) __shfl_sync(mask, value, (threadIdx.x % WARP) ^ (bits))

typedef struct Meeting {  // of the threads of a block at a barrier, of those of a warp at a shuffle
    int arrived, line;
    unsigned mask, generation;
    float values[2][WARP];  // of this shuffle, and of the last one, which some may yet read
} Meeting;

typedef struct Thread {
    int id, started, done, line;
    const Meeting *meeting;  // what it waits for, in which line; NULL: nothing
    unsigned generation;     // of that meeting
    jmp_buf here;            // where it left off
    ucontext_t context;      // where it begins
    void *fake_stack;
    char stack[128 << 10];
} Thread;

static struct {
    unsigned x, y, z;
} threadIdx, blockIdx;
static __attribute__((aligned(16))) float shared[12288];  // 48 KB, as any thread block can have
static unsigned gpu_lane_order;  // 0: ascending, 1: descending, else the seed of a shuffle
static struct {
    Thread *threads, *now;  // [THREADS], and the one that runs
    Meeting block, warps[WARPS];
    int shared_floats;  // that the kernel has asked for
    jmp_buf launcher;
    void (*kernel)(Step);
    const char *name;
    Step step;
    const void *stack;  // of the launcher
    size_t stack_bytes;
    void *fake_stack;
} gpu;

// longjmp by another name: FORTIFY lets longjmp itself only go up the same stack.
#ifdef __APPLE__
void gpu_jump(jmp_buf, int) __asm__("__longjmp");
#else
void gpu_jump(jmp_buf, int) __asm__("_longjmp");
#endif

static void gpu_stop(const Thread *t, const char *what, int line)
{
    fprintf(stderr, "%s, thread block (%u, %u, %u), thread %d (warp %d, lane %d): ", gpu.name,
            blockIdx.x, blockIdx.y, blockIdx.z, t->id, t->id / WARP, t->id % WARP);
    stop("paged.cu.c", line, "GPU", what);
}

// From a thread to the launcher. Returns when the thread is resumed.
static void gpu_pause(Thread *t)
{
    __sanitizer_start_switch_fiber(&t->fake_stack, gpu.stack, gpu.stack_bytes);
    if (_setjmp(t->here) == 0) gpu_jump(gpu.launcher, 1);
    __sanitizer_finish_switch_fiber(t->fake_stack, &gpu.stack, &gpu.stack_bytes);
}

static void gpu_thread_main(void)
{
    __sanitizer_finish_switch_fiber(NULL, &gpu.stack, &gpu.stack_bytes);
    for (;;) {  // once for each thread block
        gpu.kernel(gpu.step);
        gpu.now->done = 1;
        gpu_pause(gpu.now);
    }
}

// From the launcher to a thread. Returns when the thread pauses. Not inlined: a caller's variables
// in registers would not survive the jump.
__attribute__((noinline)) static void gpu_resume(Thread *t)
{
    gpu.now = t;
    threadIdx.x = t->id;
    __sanitizer_start_switch_fiber(&gpu.fake_stack, t->stack, sizeof t->stack);
    if (_setjmp(gpu.launcher) == 0) {
        if (t->started++) gpu_jump(t->here, 1);
        setcontext(&t->context);
    }
    __sanitizer_finish_switch_fiber(gpu.fake_stack, NULL, NULL);
}

// Waits until `expected` threads have come. The last one goes on at once.
static void gpu_meet(Meeting *meeting, int expected, int line)
{
    Thread *t = gpu.now;
    if (meeting->arrived > 0 && meeting->line != line)
        gpu_stop(t, "the other threads wait at another barrier or shuffle", line);
    meeting->line = t->line = line;
    if (++meeting->arrived == expected) {
        meeting->arrived = 0;
        meeting->generation++;
        return;
    }
    t->meeting = meeting;
    t->generation = meeting->generation;
    gpu_pause(t);
}

static float gpu_shuffle(unsigned mask, float x, int lane, int line)
{
    Thread *t = gpu.now;
    Meeting *warp = &gpu.warps[t->id / WARP];
    if (lane >= WARP || !(mask >> t->id % WARP & 1) || !(mask >> lane & 1))
        gpu_stop(t, "the mask of the shuffle lacks this lane, or the one it reads", line);
    if (warp->arrived > 0 && warp->mask != mask)
        gpu_stop(t, "its mask is not that of the lanes which wait at the shuffle", line);
    float *values = warp->values[warp->generation % 2];
    int expected = 0;
    for (unsigned m = mask; m; m &= m - 1) expected++;
    values[t->id % WARP] = x;
    warp->mask = mask;
    gpu_meet(warp, expected, line);
    return values[lane];
}

// One thread block: each thread in turn, as far as it gets, until all are done.
static void gpu_run_block(const int *order)
{
    memset(shared, 0xff, sizeof shared);  // NaN: what is read must have been written
    for (int i = 0; i < THREADS; i++) gpu.threads[i].done = 0;
    for (int left = THREADS, moved = 1; left > 0; moved = 0) {
        for (int i = 0; i < THREADS; i++) {
            Thread *t = &gpu.threads[order[i]];
            if (t->done || (t->meeting && t->meeting->generation == t->generation)) continue;
            t->meeting = NULL;
            gpu_resume(t);
            left -= t->done;
            moved = 1;
            if (gpu_lane_order == 1) i = -1;  // in this order, the last warp runs far ahead
        }
        for (Thread *t = gpu.threads; t < gpu.threads + THREADS && !moved; t++)
            if (!t->done)
                gpu_stop(t, "deadlock: it waits here for threads that never come", t->line);
    }
    for (size_t i = gpu.shared_floats; i < sizeof shared / sizeof *shared; i++)
        INVARIANT(float_bits(shared[i]) == UINT32_MAX,
                  "written behind the shared memory asked for");
}

static void gpu_create_threads(void)
{
    gpu.threads = (Thread *)realloc_or_stop(NULL, THREADS * sizeof(Thread));
    if (getenv("PAGED_LANE_ORDER")) gpu_lane_order = (unsigned)atoi(getenv("PAGED_LANE_ORDER"));
    for (int i = 0; i < THREADS; i++) {
        Thread *t = &gpu.threads[i];
        memset(t, 0, offsetof(Thread, stack));
        t->id = i;
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = t->stack;
        t->context.uc_stack.ss_size = sizeof t->stack;
        makecontext(&t->context, gpu_thread_main, 0);
    }
}

static void launch(void (*kernel)(Step), const char *name, int x, int y, int z, int shared_floats,
                   const Step *s)
{
    int order[THREADS];
    unsigned random = gpu_lane_order;
    INVARIANT(shared_floats <= (int)(sizeof shared / sizeof *shared), "too much shared memory");
    if (!gpu.threads) gpu_create_threads();
    for (int i = 0; i < THREADS; i++) {  // thread i goes to place j of those before it
        random = random * 1664525 + 1013904223;
        int j = gpu_lane_order == 0 ? i : gpu_lane_order == 1 ? 0 : (int)(random >> 8) % (i + 1);
        memmove(order + j + 1, order + j, (i - j) * sizeof *order);
        order[j] = i;
    }
    gpu.kernel = kernel, gpu.name = name, gpu.step = *s, gpu.shared_floats = shared_floats;
    for (blockIdx.z = 0; blockIdx.z < (unsigned)z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < (unsigned)y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < (unsigned)x; blockIdx.x++) gpu_run_block(order);
}
