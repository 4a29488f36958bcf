// fuzz.h: what the fuzz targets share. A target is LLVMFuzzerTestOneInput(), which libFuzzer calls
// with bytes that it makes up. Without libFuzzer, main() is here and runs the files that are named.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    abort();
}

#define CHECK(x) ((x) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #x))

static inline uint64_t fuzz_hash(const void *bytes, size_t size, uint64_t h)  // FNV-1a
{
    for (size_t i = 0; i < size; i++) h = (h ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return h;
}

static inline float fuzz_float(uint64_t seed, size_t i)  // in [-1, 1)
{
    uint64_t h = fuzz_hash(&i, sizeof i, seed ^ 14695981039346656037u);
    return (float)(h >> 40) * 0x1p-23f - 1;
}

static inline uint64_t fuzz_random(uint64_t *state)  // splitmix64, Steele et al. 2014
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

#if !defined(LIBFUZZER) && !defined(NO_TARGET)
int main(int argc, char **argv)
{
    enum { MOST = 1 << 20 };
    static uint8_t bytes[MOST];
    for (int i = 1; i < argc; i++) {
        FILE *in = fopen(argv[i], "rb");
        if (!in) fuzz_fail(argv[i], 0, "cannot be opened");
        size_t size = fread(bytes, 1, MOST, in);
        fclose(in);
        uint8_t *exact = (uint8_t *)malloc(size + 1);  // so that a sanitizer sees its end
        CHECK(exact != NULL);
        for (size_t at = 0; at < size; at++) exact[at] = bytes[at];
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    printf("\n%d inputs\n", argc - 1);
    return 0;
}
#endif
