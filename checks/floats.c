// floats: all 2^32 floats through f32_to_f16(), or with -DBF16 through f32_to_bf16(), against the
// processor's own instruction. `make check C=floats` builds it where the processor has that.
//
//     cc -O2 -mf16c checks/floats.c -o floats -lm && ./floats

#include <immintrin.h>
#define PAGED_NO_MAIN
#include "../paged.cu.c"

#ifdef BF16
enum { INFINITE = 0x7f80 };
static uint16_t ours(float x) { return f32_to_bf16(x); }

// The instruction takes subnormal numbers for 0; adding 1.5 * 2^-81 in double rounds them.
static uint16_t processors(float x)
{
    double rounded = fabsf(x) + 0x1.8p-81 - 0x1.8p-81;
    if (fabsf(x) < FLT_MIN) return float_bits(copysignf((float)rounded, x)) >> 16;
    __m128bh four = _mm_cvtneps_pbh(_mm_set_ss(x));
    uint16_t first;
    memcpy(&first, &four, sizeof first);
    return first;
}
#else
enum { INFINITE = 0x7c00 };
static uint16_t ours(float x) { return f32_to_f16(x); }
static uint16_t processors(float x) { return _cvtss_sh(x, 0); }
#endif

int main(void)
{
    uint32_t bits = 0;
    do {
        uint16_t a = ours(bits_float(bits)), b = processors(bits_float(bits));
        if (a == b || ((a & 0x7fff) > INFINITE && (b & 0x7fff) > INFINITE)) continue;  // NaN
        printf("FAIL  float %#x becomes %#x, and %#x on the processor\n", bits, a, b);
        return 1;
    } while (++bits != 0);
    printf("4294967296 floats become the same as on the processor\n");
    return 0;
}
