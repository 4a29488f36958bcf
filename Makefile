# make            builds ./paged and the others       make test       the tests (under 3 minutes)
# make help       says what else there is             make test-all   the tests in every way
# The one-command build of the README needs none of this: cc -O2 paged.cu.c -o paged -lm
# CPPFLAGS=-Ifolder says where stb_ds.h is, if it is not where the system has it.

CFLAGS ?= -O2
WARN    = -Wall -Wextra
OPENMP := $(shell echo 'int main(void) { return 0; }' | $(CC) -fopenmp -x c - -o /dev/null \
            2>/dev/null && echo -fopenmp)
COMPILE = $(CC) $(CFLAGS) -g $(WARN) $(CPPFLAGS)
ENGINE  = paged.cu.c paged.h fast.c standin.h oracle.c
ARCH   ?=
NVCC    = nvcc -x cu -O2 -g $(CPPFLAGS) -Xcompiler -Wall,-Wextra \
          $(if $(ARCH),-arch=$(ARCH),-gencode arch=compute_75,code=[sm_75,compute_75])

all: paged llama replay hello tests

help:             ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## */\t/' | expand -t 16

paged: $(ENGINE) examples/tour.c  ## the tour: ./paged
	$(COMPILE) paged.cu.c -o $@ -lm

paged.o: $(ENGINE)
	$(COMPILE) $(OPENMP) -DPAGED_NO_MAIN -c paged.cu.c -o $@

llama: examples/llama.c paged.o   ## a Llama served from the cache: ./llama --help
	$(COMPILE) $(OPENMP) examples/llama.c paged.o -o $@ -lm

replay: examples/replay.c paged.o  ## requests through several allocators: ./replay --help
	$(COMPILE) $(OPENMP) examples/replay.c paged.o -o $@ -lm

hello: examples/hello.c paged.o   ## the interface in one page
	$(COMPILE) examples/hello.c paged.o -o $@ $(OPENMP) -lm

TRACE ?= ../shared/traces/azure_llm_2023_conv.csv
plots: replay     ## draws docs/replay-*.svg from TRACE=file.csv, where gnuplot is installed
	@mkdir -p build docs
	./replay $(TRACE) --saturate --csv build/replay.csv --curve build/replay-curve.csv
	@if command -v gnuplot >/dev/null; then \
	    gnuplot -c checks/plots.gp build/replay.csv build/replay-curve.csv docs; \
	else echo "gnuplot is not installed: nothing is drawn"; fi

tests: tests.c $(ENGINE)
	$(COMPILE) $(OPENMP) tests.c -o $@ -lm

bench: examples/bench.c $(ENGINE)  ## fractions of what this machine can do; BENCH="--quick --csv"
	@mkdir -p build
	$(CC) -O3 -march=native $(OPENMP) -g $(WARN) $(CPPFLAGS) -DPAGED_NO_MAIN paged.cu.c \
	    examples/bench.c -o build/bench -lm
	build/bench $(BENCH)

cuda-bench: examples/bench.c $(ENGINE)  ## the same for a GPU
	@mkdir -p build
	$(NVCC) -DPAGED_NO_MAIN paged.cu.c examples/bench.c -o build/cuda-bench
	build/cuda-bench $(BENCH)

cuda: $(ENGINE)   ## build/cuda-paged with nvcc: sm_75 and PTX, or ARCH=sm_90
	@mkdir -p build
	$(NVCC) paged.cu.c -o build/cuda-paged

debug: $(ENGINE) examples/tour.c  ## gdb in ./paged --gpu, with the commands of paged.gdb
	@mkdir -p build
	$(CC) -O0 -g3 $(WARN) $(CPPFLAGS) paged.cu.c -o build/debug -lm
	gdb -x paged.gdb --args build/debug --gpu

exercise:         ## an exercise of the walkthrough: make exercise N=3a
	@test -f "exercises/$(N).c" || \
	    { echo "usage: make exercise N=3a; there are:" exercises/*.c; exit 2; }
	@mkdir -p build
	$(CC) -O1 -g $(WARN) $(CPPFLAGS) exercises/$(N).c -o build/exercise-$(N) -lm
	@build/exercise-$(N)

test: paged llama replay hello tests  ## the tests, and what they start
	sh checks/test.sh

test-all:         ## sanitizers, valgrind, all compilers as C and C++, planted bugs, other machines
	sh checks/all.sh
	sh checks/mutants.sh
	sh checks/portability.sh
	sh checks/lint.sh
	sh checks/coverage.sh

mutants:          ## plants the bugs of checks/bugs.txt and shows which test catches each
	sh checks/mutants.sh

mutant:           ## BUG=cow-not-counted: builds one of them, and says how to watch it fail
	sh checks/mutants.sh --build $(BUG)

mutate:           ## flips operators and constants by machine: N=200 SEED=1 JOBS=2
	python3 checks/mutate.py

fuzz:             ## random calls and files, SECONDS=60 for each target; needs clang
	sh checks/fuzz.sh --look

soak: checks/soak.c $(ENGINE)  ## random calls on full pools for SECONDS=1800
	@mkdir -p build
	$(COMPILE) checks/soak.c -o build/soak -lm
	build/soak

coverage:         ## lines and branches of the engine that the tests never run
	sh checks/coverage.sh

lint:             ## gcc -fanalyzer, clang-tidy, cppcheck
	sh checks/lint.sh

portability:      ## 32-bit x86, AArch64, big-endian s390x, musl
	sh checks/portability.sh

gpu-check:        ## all that can be seen on a real GPU, in one call
	sh checks/cuda.sh --gpu

format:           ## clang-format over the sources
	clang-format -i paged.cu.c paged.h tests.c examples/*.c

clean:            ## removes what was built
	rm -rf paged llama replay hello tests build *.o

.PHONY: all help bench cuda cuda-bench debug exercise plots test test-all mutants gpu-check format clean
.PHONY: mutant mutate fuzz soak coverage lint portability
