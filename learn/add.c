// add.c: the first kernel of chapter 7. It adds two vectors, on the stand-in for a GPU.
//
//     cc -g learn/add.c -o build/add -lm && build/add

#define PAGED_NO_MAIN
#include "../paged.cu.c"

__global__ static void add(Job job)
{
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < job.num_query_tokens) job.out[i] = job.k[i] + job.v[i];
}

int main(void)
{
    enum { COUNT = 300 };
    float a[COUNT], b[COUNT], sum[COUNT];
    int blocks = ceil_div(COUNT, THREADS);
    for (int i = 0; i < COUNT; i++) a[i] = (float)i - 1;
    for (int i = 0; i < COUNT; i++) b[i] = (float)i;
    Job job = {.num_query_tokens = COUNT, .k = a, .v = b, .out = sum};
    LAUNCH(add, blocks, 1, 1, job);
    printf("%d thread blocks of %d threads added %d numbers: the last is %g + %g = %g\n",
           blocks, (int)THREADS, (int)COUNT, a[COUNT - 1], b[COUNT - 1], sum[COUNT - 1]);
    return 0;
}
