// play_gpu.c: the engine as docs/play.html has it. The page is its stand-in for a GPU: standIn() in
// play_standin.js. KERNEL is the engine after play_gpu.sed. There, a kernel says now and then where
// it is, and what m, l and o are, if it has such variables.

#include <limits.h>
#include <math.h>
#include <string.h>

// What a kernel that lacks one of these names sees instead.
static const float m = NAN, l = NAN;
static float o[] = {NAN}, gpu_none[] = {NAN};

#define PAGE(name) __attribute__((import_module("gpu"), import_name(#name)))
PAGE(see) void page_see(unsigned thread, int line, float m, float l, float o);
PAGE(found) size_t page_found(size_t at);  // returns `at`
PAGE(share) void page_share(const char *name, const void *array, size_t bytes);
PAGE(meet)
float page_meet(int line, int bits, unsigned mask, float value, float m, float l, float o);
PAGE(launch) void page_launch(unsigned x, unsigned y, unsigned z, int fault);

typedef struct Job Job;
static void (*gpu_kernel)(Job);
static const Job *gpu_job;
static int gpu_fault;
#ifdef __wasm__  // natively, to compare, the engine has its own stand-in
#define __shared__ static
#define LAUNCH(kernel, x, y, z, job) \
    (gpu_kernel = kernel, gpu_job = &(job), page_launch(x, y, z, gpu_fault))
enum { BARRIER = INT_MAX, WARP_BARRIER = INT_MIN };  // in the place of the bits of a shuffle
#define __syncthreads() (void)page_meet(__LINE__, BARRIER, ~0u, 0, M_L_O)
#define __syncwarp() (void)page_meet(__LINE__, WARP_BARRIER, ~0u, 0, M_L_O)
#define __shfl_xor_sync(mask, value, bits) page_meet(__LINE__, bits, mask, value, M_L_O)
#endif

#define SHARED(array) page_share(#array, array, sizeof array)
#define FOUND(job, begin, position, kv_head) \
    (SEE, page_found(token_offset(job, begin, position, kv_head)))
#define NUMBER(x) _Generic((x), float : (x), default : NAN)
#define M_L_O NUMBER(m), NUMBER(l), _Generic((o), float * : (o), default : gpu_none)[0]
#define SEE page_see(threadIdx.x, __LINE__, M_L_O)

#include KERNEL

extern float q[];  // these are in play.c
int ask(Seq *seq, const char *text);
void compare_with_oracle(const float *out);

// The kernel attends for the newest token, in layer 1; the page sees what each lane does. `fault`:
// 1, no thread waits at its first barrier; 2, the last thread leaves early.
int lanes(Seq *seq, const char *text, int fault)
{
    static float out[PAGED_MAX_HEAD_DIM];
    int error = ask(seq, text);
    if (error) return error;
    Pool standin = *seq->pool;  // as it is planned now; its memory is that of the CPU
    standin.config.device = PAGED_STANDIN;
    page_share("out", out, standin.config.head_dim * sizeof *out);
    gpu_fault = fault;
    attend(&standin, ATTEND_PAGED, 1, 1, 0, q, out, NULL);
    if (!fault) compare_with_oracle(out);
    return PAGED_OK;
}

void gpu_lane(unsigned x, unsigned y, unsigned z, unsigned thread)
{
    blockIdx = (struct Index){x, y, z};
    threadIdx.x = thread;
    gpu_kernel(*gpu_job);
}
