// proof_numbers.c: for CBMC. What is true of every number of 16 bits and of every float32, in the
// engine as it is. checks/proof.py runs it.

#define PAGED_NO_MAIN
#define PAGED_NO_STANDIN
#include KERNELS

uint32_t nondet_number(void);

void f16_survives(void)
{
    uint32_t h = nondet_number();
    __CPROVER_assume(h < 65536 && (h & 0x7fff) <= 0x7c00);  // no NaN
    __CPROVER_assert(f32_to_f16(f16_to_f32((uint16_t)h)) == h, "an f16 survives a round trip");
}

void bf16_is_nearest(void)
{
    uint32_t bits = nondet_number();
    uint32_t low = bits & 0xffff0000;
    uint32_t high = low + 0x10000;
    __CPROVER_assume((bits & 0x7fffffff) <= 0x7f800000);  // no NaN
    uint32_t got = (uint32_t)f32_to_bf16(bits_float(bits)) << 16;
    __CPROVER_assert(got == low || got == high, "a neighbour");
    if (bits - low < high - bits) __CPROVER_assert(got == low, "the lower one is nearer");
    if (bits - low > high - bits) __CPROVER_assert(got == high, "the upper one is nearer");
    if (bits - low == high - bits) __CPROVER_assert((got >> 16 & 1) == 0, "ties to even");
}
