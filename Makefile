# make            builds ./paged and the others       make test       all tests, in about two minutes
# make help       lists the other targets             make quick      tests an edit in seconds
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
DEBUG   = $(CC) -O0 -g3 $(WARN) $(CPPFLAGS)
ENGINE  = paged.cu.c paged.h
PYTHON3 = command -v python3 >/dev/null || { echo "sudo apt-get install python3"; exit 1; }; \
            CC="$(CC)" CPPFLAGS="$(CPPFLAGS)" python3
NVCC    = command -v nvcc >/dev/null || { echo "nvcc is not installed"; exit 1; }; \
            nvcc -x cu -O2 -g $(CPPFLAGS) -Xcompiler -Wall,-Wextra $$(sh checks/cuda.sh --arch)

## Build and read
all: paged tour llama replay tests  ## what make builds without a target: the programs and the tests

help:
	@sed -nE 's/^## (.*)/\n\1/p; s/^([a-z-]+):.*## */  \1\t/p' Makefile | expand -t 16

paged: $(ENGINE)  ## one screen of block tables, sharing, attention: ./paged
	$(COMPILE) paged.cu.c -o $@ -lm

build/paged.o: $(ENGINE)
	@mkdir -p build
	$(COMPILE) -DPAGED_NO_MAIN -c paged.cu.c -o $@

build/fast.o: $(ENGINE) $(wildcard fast/*.c)
	@mkdir -p build
	$(COMPILE) $(FAST) -DPAGED_NO_MAIN -c paged.cu.c -o $@

tour: examples/tour.c examples/util.h build/paged.o  ## ten scenes with the numbers of the literature: ./tour 4
	$(COMPILE) examples/tour.c build/paged.o -o $@ -lm

llama: examples/llama.c $(wildcard examples/*.h) build/fast.o  ## a Llama served from the cache: ./llama --help
	$(COMPILE) $(FAST) examples/llama.c build/fast.o -o $@ -lm

replay: examples/replay.c examples/util.h build/fast.o  ## a trace of requests, by several allocators: ./replay --help
	$(COMPILE) $(OPENMP) examples/replay.c build/fast.o -o $@ -lm

bench: examples/bench.c examples/util.h build/fast.o  ## speed against the machine: one minute; BENCH=--quick
	$(COMPILE) $(FAST) examples/bench.c build/fast.o -o build/bench -lm
	build/bench $(BENCH)

build/draw: examples/draw.c examples/util.h $(ENGINE)
	@mkdir -p build
	$(COMPILE) examples/draw.c -o $@ -lm

pictures: replay build/draw  ## draws those of docs/ into build/: TRACE=file.csv
	./replay $(or $(TRACE),--generate 10000) --saturate --csv build/replay.csv
	./replay $(or $(TRACE),--generate 10000) --saturate --block-size 64 --blocks 160 \
	    --life build/life.csv >build/log
	build/draw memory <build/replay.csv >build/replay-memory.svg
	build/draw life <build/life.csv >build/life.svg
	for name in steps vectors free-list table walk warps copy publish; do \
	    build/draw $$name >build/$$name.svg || exit; done

# WebAssembly: `pip install ziglang` has a compiler, too: WASM="python3 -m ziglang cc --target=wasm32-wasi"
WASM    = clang --target=wasm32-wasi
PAGE    = $(if $(filter paged.cu.c,$(ENGINE)),docs,build)/play.html
EXPORT  = start step report attention pool seqs malloc $(addprefix seq_,create append fork rewind \
            release publish lookup)
play:             ## docs/play.html: the engine in a browser; ENGINE=learn/paged.cu.c: yours, in build/
	@mkdir -p build
	@echo 'int main(void) { return 0; }' | $(WASM) -x c - -o build/play.wasm 2>/dev/null || { echo \
	    "sudo apt-get install clang lld wasi-libc libclang-rt-dev-wasm32"; exit 1; }
	$(WASM) -mexec-model=reactor -Oz -s $(WARN) $(CPPFLAGS) -idirafter /usr/include -I. \
	    -DPAGED_NO_MAIN examples/play.c $(firstword $(ENGINE)) \
	    $(EXPORT:%=-Wl,--export=%) -Wl,-z,stack-size=1048576 -o build/play.wasm
	sed 's|ENGINE_NAME|$(firstword $(ENGINE))|; s|ENGINE_SUM|$(shell sh checks/play.sh sum $(firstword \
	    $(ENGINE)))|; /id="wasm"/q' examples/play.html >build/page
	gzip -9nc build/play.wasm | base64 >>build/page
	sed '1,/id="wasm"/d' examples/play.html >>build/page
	mv build/page $(PAGE)
	@echo "Open $(PAGE) in a browser."

build/debug: $(ENGINE)
	@mkdir -p build
	$(DEBUG) paged.cu.c -o $@ -lm

build/debug-tour: examples/tour.c examples/util.h $(ENGINE)
	@mkdir -p build
	$(DEBUG) -DPAGED_NO_MAIN examples/tour.c paged.cu.c -o $@ -lm

debug: build/debug build/debug-tour  ## gdb in ./paged, with the commands of debugger/paged.gdb
	@command -v gdb >/dev/null || { echo "gdb is not installed: sudo apt-get install gdb"; exit 1; }
	gdb -x debugger/paged.gdb --args build/debug

## Learn
read:             ## the text without its answers: N=7, a chapter; SHOW=1, with them
	@awk 'BEGIN { on = !"$(N)" } /^## / && "$(N)" { on = $$2 == "$(N)." } \
	    /^<.?details>/ { gsub(/<[^>]*>/, ""); fold = $$0 && !"$(SHOW)"; \
	        if (fold) $$0 = "[" $$0 "] (SHOW=1)"; if (on) print; next } \
	    on && !fold { n++; print } END { if (!n) print "There is no chapter $(N)." }' \
	    walkthrough.md | cat -s | awk 'function end() { if (p) print p; p = "" } \
	    /^```/ { code = !code } code || /^(```|    |[|#<]|$$)/ { end(); print; next } \
	    /^(-|[0-9]+\.) / { end() } { sub(/^ +/, ""); p = p (p ? " " : "") $$0 } END { end() }' \
	    | fold -s -w 80 | $${PAGER:-$$(command -v less || echo cat)} || true

learn:            ## writes learn/paged.cu.c, for you to finish; FORCE=1: start over
	@$(PYTHON3) learn/learn.py make $(if $(FORCE),--force)

stage:            ## tests your functions: N=4, SHOW=seq_append; without N: list
	@$(PYTHON3) learn/learn.py stage $(N) $(if $(SHOW),--show $(SHOW)) || true

debug-stage:      ## gdb in the first of these tests that fails: N=4
	@$(PYTHON3) learn/learn.py debug $(N) || true

story:            ## what your engine can say, from stage 5 on: N=7, with stage 7
	@$(PYTHON3) learn/learn.py story $(N) || true

COMMA    = ,
EXERCISE = $(if $(wildcard learn/$(N).c),$(N),predict)
exercise:         ## N=5b, or N=1a ANSWER=10; N=5: answers to the questions of chapter 5
	@mkdir -p build
	@awk '/^chapter/ { on = $$2 == "$(N)"; next } on && NF' learn/answers.txt | grep . || { \
	    $(CC) -O1 -g $(WARN) $(CPPFLAGS) learn/$(EXERCISE).c -o build/exercise-$(EXERCISE) -lm && \
	    build/exercise-$(EXERCISE) "$(N)" $(subst $(COMMA), ,$(ANSWER)); } 2>&1 | \
	    fold -s -w 80 | sed 's/ *$$//'

hunt:             ## a bug to find: N=7, HINT=1, ANSWER=seq_rewind; without N: list
	@$(PYTHON3) learn/plant.py hunt $(N) $(if $(HINT),--hint) \
	    $(if $(ANSWER),--answer "$(ANSWER)") | fold -s -w 80 | sed 's/ *$$//'

mutant:           ## a bug for the tests to find: BUG=cow-not-counted; without: list
	@$(PYTHON3) learn/plant.py mutant $(BUG) || true

## Check
tests: tests.c $(ENGINE)  ## builds ./tests, the tests of the engine: ./tests --list
	$(COMPILE) tests.c -o $@ -lm

tests-fast: tests.c $(ENGINE) $(wildcard fast/*.c)
	$(COMPILE) $(FAST) tests.c -o $@ -lm

build/llama-tests: checks/llama_tests.c tests.c $(ENGINE)
	@mkdir -p build
	$(COMPILE) checks/llama_tests.c -o $@ -lm

build/states: checks/states.c checks/search.h $(ENGINE)
	@mkdir -p build
	$(COMPILE) checks/states.c -o $@ -lm

test: all tests-fast build/llama-tests build/states  ## all tests: about two minutes on two cores
	sh checks/test.sh

quick: build/states  ## the engine's tests on the CPU, in seconds: run it after an edit
	build/states 2 1 2
	$(CC) -O1 -g $(WARN) $(CPPFLAGS) tests.c -o build/quick -lm
	build/quick --cpu --quick

check:            ## what is slow or needs rare tools: C=lint; without C: the list
	@sh checks/check.sh $(C)

mutants:          ## plants the bugs of checks/bugs.txt: is each caught? ten minutes
	@$(PYTHON3) learn/plant.py mutants

fuzz:             ## fuzzes calls and files, SECONDS=60 for each target; needs clang
	sh checks/fuzz.sh --look

## GPU
cuda: $(ENGINE)   ## builds build/cuda-paged with nvcc for this GPU, or ARCH=sm_90
	@mkdir -p build
	@$(NVCC) paged.cu.c -o build/cuda-paged

cuda-bench: examples/bench.c $(ENGINE) $(wildcard fast/*.c)  ## make bench on a GPU
	@mkdir -p build
	@$(NVCC) -DPAGED_FAST -DPAGED_NO_MAIN paged.cu.c examples/bench.c -o build/cuda-bench
	build/cuda-bench $(BENCH)

gpu-check:        ## all checks on a real GPU: PART=tests, DEPS=folder
	sh checks/cuda.sh --gpu $(PART)

## Files
format:           ## clang-format over the sources
	clang-format -i paged.cu.c paged.h fast/*.c tests.c examples/*.[ch] checks/*.c \
	    learn/[0-9]*.c learn/predict.c learn/hunts.c learn/stage_tests.c learn/exercise.h

clean:            ## removes what was built
	rm -rf paged tour llama replay tests tests-fast build *.o

.PHONY: all help bench pictures play debug read learn stage debug-stage story exercise hunt mutant test
.PHONY: quick check mutants fuzz cuda cuda-bench gpu-check format clean
