# make            builds ./paged and the others       make test       the tests (some two minutes)
# make help       says what else there is             make quick      the tests that find most, in seconds
# The one-command build of the README needs none of this: cc -O2 paged.cu.c -o paged -lm
# CPPFLAGS=-Ifolder says where stb_ds.h is, if it is not where the system has it.

MAKEFLAGS += --jobs=$(shell nproc 2>/dev/null || echo 2)
CFLAGS ?= -O2
WARN    = -Wall -Wextra
OPENMP := $(shell echo 'int main(void) { return 0; }' | $(CC) -fopenmp -x c - -o /dev/null \
            2>/dev/null && echo -fopenmp)
NATIVE := $(shell echo 'int main(void) { return 0; }' | $(CC) -march=native -x c - -o /dev/null \
            2>/dev/null && echo -march=native)
COMPILE = $(CC) $(CFLAGS) -g $(WARN) $(CPPFLAGS)
FAST    = -O3 $(NATIVE) $(OPENMP) -DPAGED_FAST
ENGINE  = paged.cu.c paged.h
PYTHON3 = command -v python3 >/dev/null || { echo "python3 is not installed"; exit 1; }; python3
ARCH   ?= $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
            sed -n '1s/\([0-9]*\)[.]/sm_\1/p')
NVCC    = nvcc -x cu -O2 -g $(CPPFLAGS) -Xcompiler -Wall,-Wextra $(if $(ARCH),-arch=$(ARCH), \
            -gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=[sm_80,compute_80])

all: paged tour llama replay hello tests

help:             ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## */\t/' | expand -t 16

paged: $(ENGINE)  ## one screen of block tables, sharing, attention: ./paged
	$(COMPILE) paged.cu.c -o $@ -lm

build/paged.o: $(ENGINE)
	@mkdir -p build
	$(COMPILE) -DPAGED_NO_MAIN -c paged.cu.c -o $@

build/fast.o: $(ENGINE) fast/fast.c
	@mkdir -p build
	$(COMPILE) $(FAST) -DPAGED_NO_MAIN -c paged.cu.c -o $@

tour: examples/tour.c examples/util.h build/paged.o  ## ten scenes with the numbers of the literature: ./tour 4
	$(COMPILE) examples/tour.c build/paged.o -o $@ -lm

hello: examples/hello.c examples/util.h build/paged.o  ## the interface in one page
	$(COMPILE) examples/hello.c build/paged.o -o $@ -lm

llama: examples/llama.c $(wildcard examples/*.h) build/fast.o  ## a Llama served from the cache: ./llama --help
	$(COMPILE) $(FAST) examples/llama.c build/fast.o -o $@ -lm

replay: examples/replay.c examples/util.h build/fast.o  ## requests through several allocators: ./replay --help
	$(COMPILE) $(OPENMP) examples/replay.c build/fast.o -o $@ -lm

tests: tests.c $(ENGINE)  ## the tests of the engine alone: ./tests --list
	$(COMPILE) tests.c -o $@ -lm

tests-fast: tests.c $(ENGINE) fast/fast.c  ## the same with the fast paths compiled in
	$(COMPILE) $(FAST) tests.c -o $@ -lm

build/draw: examples/draw.c examples/util.h build/paged.o
	$(COMPILE) examples/draw.c build/paged.o -o $@ -lm

plots: replay build/draw  ## draws a replay into build/: TRACE=file.csv, or made-up requests
	./replay $(or $(TRACE),--generate 10000) --saturate --csv build/replay.csv --curve build/curve.csv
	build/draw memory build/replay.csv >build/replay-memory.svg
	build/draw running build/curve.csv >build/replay-running.svg

pictures: build/draw  ## docs/blocks.svg and docs/life.svg: TRACE=file.csv
	build/draw blocks >docs/blocks.svg
	build/draw life $(TRACE) >docs/life.svg

bench: examples/bench.c examples/util.h build/fast.o  ## fractions of what this machine can do; BENCH="--quick --csv"
	$(COMPILE) $(FAST) examples/bench.c build/fast.o -o build/bench -lm
	build/bench $(BENCH)

cuda-bench: examples/bench.c $(ENGINE) fast/fast.c  ## the same for a GPU
	@mkdir -p build
	$(NVCC) -DPAGED_FAST -DPAGED_NO_MAIN paged.cu.c examples/bench.c -o build/cuda-bench
	build/cuda-bench $(BENCH)

cuda: $(ENGINE)   ## build/cuda-paged with nvcc, for the GPU here, or ARCH=sm_90
	@mkdir -p build
	$(NVCC) paged.cu.c -o build/cuda-paged

build/debug: $(ENGINE)
	@mkdir -p build
	$(CC) -O0 -g3 $(WARN) $(CPPFLAGS) paged.cu.c -o $@ -lm

build/debug-tour: examples/tour.c examples/util.h $(ENGINE)
	@mkdir -p build
	$(CC) -O0 -g3 $(WARN) $(CPPFLAGS) -DPAGED_NO_MAIN examples/tour.c paged.cu.c -o $@ -lm

debug: build/debug build/debug-tour  ## gdb in ./paged, with the commands of debugger/paged.gdb
	@command -v gdb >/dev/null || { echo "gdb is not installed: sudo apt-get install gdb"; exit 1; }
	gdb -x debugger/paged.gdb --args build/debug

exercise:         ## an exercise of the walkthrough: make exercise N=3a
	@test -f "exercises/$(N).c" || \
	    { echo "usage: make exercise N=3a; there are:"; cd exercises; ls *.c | sed 's/[.]c//' | sort -n | tr '\n' ' ' | fold -sw 72; echo; exit 2; }
	@mkdir -p build
	$(CC) -O1 -g $(WARN) $(CPPFLAGS) exercises/$(N).c -o build/exercise-$(N) -lm
	@build/exercise-$(N) || true

hunt:             ## a bug to be found: N=7, HINT=1, ANSWER=seq_rewind
	@export CC="$(CC)" CPPFLAGS="$(CPPFLAGS)"; $(PYTHON3) hunts/hunt.py $(N) \
	    $(if $(HINT),--hint) $(if $(ANSWER),--answer "$(ANSWER)")

learn:            ## writes learn/paged.cu.c for you to finish; FORCE=1: anew
	@$(PYTHON3) learn/learn.py make $(if $(FORCE),--force)

stage:            ## tests of what you wrote: N=4, SHOW=seq_append; without N: list
	@$(PYTHON3) learn/learn.py stage $(N) $(if $(SHOW),--show $(SHOW)) || true

debug-stage:      ## N=4: gdb in the first of these tests that fails
	@$(PYTHON3) learn/learn.py debug $(N) || true

build/llama-tests: checks/llama_tests.c
	@mkdir -p build
	$(COMPILE) checks/llama_tests.c -o $@ -lm

test: all tests-fast build/llama-tests  ## all tests, and what they start
	sh checks/test.sh

quick:            ## the engine's tests on the CPU, in seconds: after each edit
	@mkdir -p build
	$(CC) -O1 -g $(WARN) $(CPPFLAGS) tests.c -o build/quick -lm
	build/quick --cpu --quick

check:            ## C=lint, say: what takes long or needs rare tools; without C: the list
	@sh checks/check.sh $(C)

mutants:          ## plants the bugs of checks/bugs.txt: which test catches each?
	sh checks/mutants.sh

mutant:           ## BUG=cow-not-counted: builds one, says how to watch it fail
	@test -n "$(BUG)" || { echo "usage: make mutant BUG=name; the names are:"; \
	    sh checks/mutants.sh --list | column -c 80; exit 2; }
	sh checks/mutants.sh --build $(BUG)

mutate:           ## flips operators and constants by machine: checks/ledger.txt
	python3 checks/mutate.py

fuzz:             ## random calls and files, SECONDS=60 for each target; needs clang
	sh checks/fuzz.sh --look

gpu-check:        ## all that a real GPU can show: PART=tests, DEPS=folder
	sh checks/cuda.sh --gpu $(PART)

format:           ## clang-format over the sources
	clang-format -i paged.cu.c paged.h fast/fast.c tests.c examples/*.c examples/*.h checks/*.c \
	    hunts/*.c learn/stage_tests.c learn/simple.c

clean:            ## removes what was built
	rm -rf paged tour llama replay hello tests tests-fast build *.o

.PHONY: all help bench cuda cuda-bench debug exercise plots pictures test quick check mutants gpu-check
.PHONY: format clean mutant mutate fuzz learn stage debug-stage hunt
