// floats: all 2^32 floats through f32_to_f16(), or with -DBF16 through f32_to_bf16(), against the
// processor's own instruction; and all numbers of f16 back. Each with all floats rounded in the four
// directions, and with subnormal numbers taken for 0 or not, none of which may change a result.
// `make check C=floats` builds it where the processor has the instruction.
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

static void read_back(void) {}  // a shift
#else
enum { INFINITE = 0x7c00 };
static uint16_t ours(float x) { return f32_to_f16(x); }
static uint16_t processors(float x) { return _cvtss_sh(x, 0); }

static void read_back(void)
{
    for (unsigned h = 0; h < 65536; h++) {
        uint32_t a = float_bits(f16_to_f32((uint16_t)h));
        uint32_t b = float_bits(_cvtsh_ss((uint16_t)h));
        if (a == b || (h & 0x7fff) > INFINITE) continue;
        printf("FAIL  f16 %#x becomes %#x, and %#x on the processor\n", h, a, b);
        exit(1);
    }
}
#endif

enum { SOME = 1 << 16 };

__attribute__((noinline)) static void convert(uint16_t (*one)(float), uint32_t start, uint16_t *to)
{
    for (uint32_t i = 0; i < SOME; i++) to[i] = one(bits_float(start + i));
}

int main(void)
{
    static uint16_t right[SOME], got[SOME];
    const unsigned normal = _mm_getcsr();
    uint32_t start = 0;
    do {
        convert(processors, start, right);
        for (unsigned setting = 0; setting < 8; setting++) {
            unsigned no_subnormals = setting < 4 ? 0 : 0x8040;
            _mm_setcsr(normal | setting % 4 << 13 | no_subnormals);
            convert(ours, start, got);
            if (start == 0) read_back();
            _mm_setcsr(normal);
            for (uint32_t i = 0; i < SOME; i++) {
                int nan = (got[i] & 0x7fff) > INFINITE && (right[i] & 0x7fff) > INFINITE;
                if (got[i] == right[i] || nan) continue;
                printf("FAIL  float %#x becomes %#x, and %#x on the processor\n", start + i, got[i],
                       right[i]);
                return 1;
            }
        }
        start += SOME;
    } while (start != 0);
    printf("4294967296 floats become the same as on the processor, in eight settings of it\n");
    return 0;
}
