# make            builds ./paged, the tour            make test       the tests (under 3 minutes)
# make help       says what else there is             make test-all   the tests in every way
# The one-command build of the README needs none of this: cc -O2 paged.cu.c -o paged -lm

CFLAGS ?= -O2
WARN    = -Wall -Wextra
# stb_ds shifts into the sign bit; that check of UBSan is off, all others stop the program.
SAN     = -O1 -fsanitize=address,undefined -fno-sanitize=shift-base -fno-sanitize-recover=all
OPENMP := $(shell echo 'int main(void) { return 0; }' | $(CC) -fopenmp -x c - -o /dev/null \
            2>/dev/null && echo -fopenmp)
NVCC   := $(shell command -v nvcc 2>/dev/null)
SOURCES = paged.cu.c paged.h

all: paged llama

help:                        ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## */\t/' | expand -t 16

paged: $(SOURCES) examples/tour.c            ## the tour: ./paged
	$(CC) $(CFLAGS) -g $(WARN) paged.cu.c -o $@ -lm

paged.o: $(SOURCES)
	$(CC) $(CFLAGS) -g $(WARN) $(OPENMP) -DPAGED_NO_MAIN -c paged.cu.c -o $@

llama: examples/llama.c paged.o  ## a Llama served from the cache: ./llama --help
	$(CC) $(CFLAGS) -g $(WARN) $(OPENMP) examples/llama.c paged.o -o $@ -lm

tests: tests.c $(SOURCES)
	$(CC) $(CFLAGS) -g $(WARN) $(OPENMP) tests.c -o $@ -lm

test: paged llama tests      ## the tests, with what is needed for them
	@if [ -n "$(NVCC)" ]; then echo "nvcc: $(NVCC)"; else echo "nvcc: not found"; fi
	./tests

test-all: test               ## sanitizers, valgrind, all compilers as C and C++, -O0 to -O3
	sh checks/all.sh

format:                      ## clang-format over the sources
	clang-format -i paged.cu.c paged.h tests.c examples/*.c

clean:                       ## removes what was built
	rm -rf paged llama tests build *.o

.PHONY: all help test test-all format clean
