# make            builds ./paged and the others       make test       all tests, in 2 to 3 minutes
# make help       lists the other targets             make quick      tests an edit in seconds
# The one-command build of the README needs none of this: cc -O2 paged.cu.c -o paged -lm
# CPPFLAGS=-Ifolder says where stb_ds.h is, if it is neither here nor where the system has it.

.error = this Makefile needs GNU make, often called gmake  # a variable; a directive in other makes
# One job more than there are processors, as browsers and debuggers often wait.
MAKEFLAGS += $(if $(filter 0,$(MAKELEVEL)),--jobs=$(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1))))
CFLAGS ?= -O2
WARN    = -Wall -Wextra
ifneq ($(wildcard stb_ds.h),)  # found from build/, too; what its macros warn of is not ours
export CPPFLAGS += -isystem ./
WARN   += -Wno-sign-compare -Wno-type-limits -Wno-unused-value
endif
OPENMP := $(shell echo 'int main(void) { return 0; }' | $(CC) -fopenmp -x c - -o /dev/null \
            2>/dev/null && echo -fopenmp)
NATIVE := $(shell echo 'int main(void) { return 0; }' | $(CC) -march=native -x c - -o /dev/null \
            2>/dev/null && echo -march=native)
COMPILE = $(CC) $(CFLAGS) -g $(WARN) $(CPPFLAGS)
FAST    = -O3 $(NATIVE) $(OPENMP) -DPAGED_FAST
DEBUG   = $(CC) -O0 -g3 $(WARN) $(CPPFLAGS)
ENGINE  = paged.cu.c paged.h
PYTHON3 = command -v python3 >/dev/null || { \
            echo "python3 is not installed: sudo apt-get install python3"; exit 1; }; \
            CC="$(CC)" CPPFLAGS="$(CPPFLAGS)" python3
ARCHES  = -gencode arch=compute_75,code=sm_75 -gencode "arch=compute_80,code=[sm_80,compute_80]"
NVCC    = command -v nvcc >/dev/null || { echo "nvcc is not installed"; exit 1; }; \
            nvcc -x cu -O2 -g $(CPPFLAGS) -Xcompiler -Wall,-Wextra $(if $(ARCH),-arch=$(ARCH),$(ARCHES))

## Use
all: paged tour llama replay tests  ## what make builds without a target: the programs, ./tests

help:
	@awk -F ':.*## *' '/^## / { print "\n" substr($$0, 4) } \
	    /^[a-z-]+:.*## / { printf "  %-14s%s\n", $$1, $$2 }' Makefile

paged: $(ENGINE)  ## one screen of block tables, sharing, attention: ./paged
	$(COMPILE) paged.cu.c -o $@ -lm

build/paged.o: $(ENGINE)
	@mkdir -p build
	$(COMPILE) -DPAGED_NO_MAIN -c paged.cu.c -o $@

build/%.so: $(ENGINE)  # for examples/paged.py
	@mkdir -p build
	$(COMPILE) -fPIC -shared -DPAGED_NO_MAIN paged.cu.c -o $@ -lm

build/fast.o: $(ENGINE) $(wildcard fast/*.c)
	@mkdir -p build
	$(COMPILE) $(FAST) -DPAGED_NO_MAIN -c paged.cu.c -o $@

tour: examples/tour.c examples/util.h build/paged.o  ## eight scenes, numbered as the chapters: ./tour 8
	$(COMPILE) examples/tour.c build/paged.o -o $@ -lm

llama: examples/llama.c $(wildcard examples/*.h) build/fast.o  ## a Llama served from the cache: ./llama --help
	$(COMPILE) $(FAST) examples/llama.c build/fast.o -o $@ -lm

replay: examples/replay.c examples/util.h build/paged.o  ## a trace of requests, by several allocators: ./replay --help
	$(COMPILE) examples/replay.c build/paged.o -o $@ -lm

bench: examples/bench.c examples/util.h build/fast.o  ## speed against the machine: one minute; BENCH=--quick
	$(COMPILE) $(FAST) examples/bench.c build/fast.o -o build/bench -lm
	build/bench $(BENCH)

# WebAssembly: ziglang 0.17.1 of pip has a compiler, too: WASM="python3 -m ziglang cc --target=wasm32-wasi"
WASM    = clang --target=wasm32-wasi
PAGE    = $(if $(filter paged.cu.c,$(ENGINE)),docs,build)/play.html
EXPORT  = start step report pool seqs malloc $(addprefix seq_,create append fork rewind \
            release publish lookup) lanes k v q attended gpu_lane gpu_fuel __stack_pointer \
            load model tell
TALES   = $(dir $(PAGE))tales.js
# The parts of the page, @FILE, stand there without indentation and lines of comment: it is small.
play:             ## docs/play.html, the page; ENGINE=learn/paged.cu.c: with yours
	@mkdir -p build
	@echo 'int main(void) { return 0; }' | $(WASM) -x c - -o build/play.wasm 2>/dev/null || { echo \
	    "There is no compiler for WebAssembly:" \
	    "sudo apt-get install clang lld wasi-libc libclang-rt-dev-wasm32"; exit 1; }
	awk -f examples/play_kernel.awk $(firstword $(ENGINE)) >build/kernel.c
	awk '/^(__device__.*|__global__.* attend_paged|HD.*_offset|[a-z]* seq_(append|fork|lookup|rewind))\(/, \
	    /^}|^[^ ].*}$$/ { print NR "\t" $$0 }' $(firstword $(ENGINE)) | gzip -9n | base64 >build/source.base64
	$(WASM) -mexec-model=reactor -Oz -s -fsanitize-coverage=edge,trace-pc,no-prune \
	    $(WARN) $(CPPFLAGS) -idirafter /usr/include -I. \
	    -DPAGED_NO_MAIN -DKERNEL='"build/kernel.c"' examples/play.c \
	    $(EXPORT:%=-Wl,--export=%) -Wl,--stack-first,-z,stack-size=1048576 -o build/play.wasm
	gzip -9nc build/play.wasm | base64 >build/play.base64
	awk '/^@/ { while ((getline line <("examples/" substr($$0, 2))) > 0) { \
	        sub(/^ */, "", line); if (line !~ "^// ") print line } next } 1' examples/play.html | \
	    sed -e '/id="source"/r build/source.base64' \
	    -e "s|ENGINE_NAME|$(firstword $(ENGINE))|; s|ENGINE_SUM|$$($(MAKE) -s play-sum)|" \
	    -e '/id="wasm"/r build/play.base64' >build/page
	mv build/page $(PAGE)
	echo 'const tales = [`' >$(TALES)
	gzip -9nc examples/tales.bin | base64 | tr -d '\n' >>$(TALES)
	echo '`, `' >>$(TALES)
	gzip -9nc examples/tales-tokenizer.bin | base64 | tr -d '\n' >>$(TALES)
	echo '`];' >>$(TALES)
	@echo "Open $(PAGE) in a browser."

play-sum:         # of what the page is made of, without comments
	@sed 's|//.*||' $(firstword $(ENGINE)) paged.h examples/play[._]* examples/llama*.[ch] \
	    examples/util.h | tr -d '[:space:]' | cksum

cuda: $(ENGINE)   ## build/cuda-paged, by nvcc, for sm_75 and later or ARCH=sm_90
	@mkdir -p build
	@$(NVCC) paged.cu.c -o build/cuda-paged

cuda-bench: examples/bench.c $(ENGINE) $(wildcard fast/*.c)  ## make bench on a GPU
	@mkdir -p build
	@$(NVCC) -DPAGED_FAST -DPAGED_NO_MAIN paged.cu.c examples/bench.c -o build/cuda-bench
	build/cuda-bench $(BENCH)

## Learn
# make puts N=7 into the environment. The recipes take it from there, so that no shell runs a part
# of it. Status 2 is a failure; a test that fails is none.
read:             ## the text without its answers: N=7, a chapter; SHOW=1, with them
	@awk -v chapter="$$N" -v show="$$SHOW" \
	    -v width="$$( (stty size </dev/tty) 2>/dev/null | cut -d ' ' -f 2)" \
	    -f learn/read.awk walkthrough.md | $${PAGER:-$$(command -v less || echo cat)} || true

learn:            ## writes learn/paged.cu.c, for you to finish
	@$(PYTHON3) learn/learn.py make

stage:            ## tests your functions: N=4, SHOW=seq_append; without N: list
	@$(PYTHON3) learn/learn.py stage "$$N" --show="$$SHOW" || [ $$? != 2 ]

debug-stage:      ## gdb or lldb in the first of these tests that fails: N=4
	@$(PYTHON3) learn/learn.py debug "$$N" || [ $$? != 2 ]

show:             ## your engine, call by call: N=8, one stage; PLAY=1, by itself
	@mkdir -p build
	@[ -e learn/paged.cu.c ] || echo "This is the finished engine. To begin yours: make learn"
	@$(CC) -O0 -g $(WARN) $(CPPFLAGS) -I. learn/show.c -o build/show -lm
	@exec 3>&2 2>/dev/null; ulimit -S -t 5; ulimit -v 2000000; \
	for n in $${N:-1 2 3 4 5 6 7 8 9 10 11 12}; do \
	    $(if $(PLAY),while sleep 3; do echo; done |) (exec build/show "$$n" 2>&3) && continue; \
	    [ $$? -eq 2 ] || (echo "Your engine goes this far."); break; done; true

story:            ## what your engine can say, from stage 5 on: N=7, with stage 7
	@$(PYTHON3) learn/learn.py story "$$N" || [ $$? != 2 ]

exercise:         ## code to write: N=6a, SHOW=1: solved; N=5: answers of chapter 5
	@$(PYTHON3) learn/learn.py exercise "$$N" --show="$$SHOW" || [ $$? != 2 ]

hunt:             ## a bug to debug: N=7, HINT=1, ANSWER=name; without N: list
	@$(PYTHON3) learn/plant.py hunt "$$N" $(if $(HINT),--hint) --answer="$$ANSWER" \
	    | fold -s -w 80 | sed 's/ *$$//'

mutant:           ## a bug for the tests to find: BUG=name; without BUG: list
	@$(PYTHON3) learn/plant.py mutant "$$BUG" || true

build/debug: $(ENGINE)
	@mkdir -p build
	$(DEBUG) paged.cu.c -o $@ -lm

build/debug-tour: examples/tour.c examples/util.h $(ENGINE)
	@mkdir -p build
	$(DEBUG) -DPAGED_NO_MAIN examples/tour.c paged.cu.c -o $@ -lm

debug:            ## gdb or lldb in ./paged, with the commands of debugger/
	@$(MAKE) -s build/debug build/debug-tour
	@if command -v gdb >/dev/null; then gdb -x debugger/paged.py --args build/debug; \
	elif command -v lldb >/dev/null; then \
	    lldb -Q -o "command script import debugger/paged.py" -- build/debug; \
	else echo "gdb is not installed: sudo apt-get install gdb"; exit 1; fi

## Maintain
tests: tests.c checks/test.h $(ENGINE)  ## builds ./tests, and runs nothing: ./tests --list
	$(COMPILE) tests.c -o $@ -lm

tests-fast: tests.c checks/test.h $(ENGINE) $(wildcard fast/*.c)
	$(COMPILE) $(FAST) tests.c -o $@ -lm

build/llama-tests: checks/llama_tests.c checks/test.h build/paged.o
	$(COMPILE) checks/llama_tests.c build/paged.o -o $@ -lm

build/states: checks/states.c checks/search.h $(ENGINE)
	@mkdir -p build
	$(COMPILE) checks/states.c -o $@ -lm

# The parts of `make test`, and those of the house, which CI runs, too: $(call part,TEST or HOUSE,
# NAME,COMMAND,FILES). A part runs again only if one of its files has changed since it passed. The
# longest come first.
define part
$(1) += build/parts/$(2)
build/parts/$(2): $(4) checks/part.sh $(wildcard checks/report.*)
	@sh checks/part.sh $(2) $(3)
endef
BUILT  := paged tour llama replay tests
TESTS  := tests.c checks/test.h $(ENGINE) $(wildcard fast/*.c checks/search.h)
SHELLS := checks/check.sh checks/report.sh
COURSE := $(wildcard learn/*.* examples/*.h) examples/llama.c walkthrough.md $(TESTS) Makefile \
    checks/course.py checks/mistakes.py checks/walkthrough.py
BOOK   := $(wildcard *.md docs/* debugger/* examples/*.* learn/*.* checks/*.*) $(TESTS) Makefile
WEB    := $(wildcard docs/play.html docs/tales.js examples/play* examples/llama* examples/tales* checks/play*) \
    examples/util.h $(wildcard learn/*.py learn/*.txt) $(ENGINE) checks/report.sh Makefile
$(eval $(call part,TEST,course,python3 checks/course.py track,$(COURSE)))
$(eval $(call part,TEST,llama,build/llama-tests,build/llama-tests llama))
$(eval $(call part,TEST,fast-standin,./tests-fast --standin --quick,tests-fast))
$(eval $(call part,TEST,races,sh checks/check.sh races,$(TESTS) $(SHELLS)))
$(eval $(call part,TEST,page,sh checks/play.sh page,$(WEB) llama))
$(eval $(call part,TEST,engines,sh checks/play.sh engines,$(WEB)))
$(eval $(call part,TEST,text,python3 checks/walkthrough.py,$(BOOK) $(BUILT) build/debug build/debug-tour build/llama-tests))
$(eval $(call part,TEST,programs,sh checks/programs.sh,README.md paged tour checks/programs.sh $(SHELLS)))
$(eval $(call part,TEST,standin,./tests --standin,tests))
$(eval $(call part,TEST,cpu,./tests --cpu,tests))
$(eval $(call part,TEST,states,build/states 2 2 2,build/states))
$(eval $(call part,TEST,python,python3 checks/golden.py,$(wildcard examples/*.py learn/*.py) learn/mistakes.txt checks/golden.py $(ENGINE)))
$(eval $(call part,TEST,model,python3 checks/true_tales.py,$(wildcard examples/*tales*) checks/true_tales.py))
$(eval $(call part,TEST,replay,sh checks/replay.sh,checks/replay.sh README.md replay))
$(eval $(call part,TEST,fast-cpu,./tests-fast --cpu,tests-fast))
$(eval $(call part,HOUSE,course-house,python3 checks/course.py house,$(COURSE)))
$(eval $(call part,HOUSE,hunts,python3 checks/course.py hunts,$(wildcard learn/*.*) $(ENGINE) checks/course.py))
$(eval $(call part,HOUSE,planted,python3 checks/mistakes.py,$(TESTS) learn/mistakes.txt checks/mistakes.py))
$(eval $(call part,HOUSE,page-house,sh checks/play.sh house,$(WEB) llama))
$(eval $(call part,HOUSE,page-planted,sh checks/play.sh planted,$(WEB)))
$(eval $(call part,HOUSE,cuda,sh checks/cuda.sh,$(TESTS) $(wildcard examples/*.[ch]) checks/cuda.sh))
$(eval $(call part,HOUSE,programs-house,sh checks/programs.sh house,$(BOOK) $(BUILT)))
$(eval $(call part,HOUSE,fuzz,sh checks/check.sh fuzz,$(BOOK) $(wildcard checks/*.c)))
$(eval $(call part,HOUSE,threads,sh checks/check.sh threads,$(TESTS) $(SHELLS)))
$(eval $(call part,HOUSE,lanes,sh checks/check.sh lanes,$(TESTS) $(SHELLS)))
$(eval $(call part,HOUSE,more-states,build/states 3 1 2,build/states))
KEEP_ON = $(MAKE) -k --no-print-directory $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

test: all  ## all that a reader relies on: 2 to 3 minutes, less after an edit
	+@$(KEEP_ON) $(TEST); sh checks/part.sh sum $(notdir $(TEST))

house: all  # make check C=house: the same, and what else must be right
	+@$(KEEP_ON) $(TEST) $(HOUSE); sh checks/part.sh sum $(notdir $(TEST) $(HOUSE))

# Together they start every kernel.
KERNELS = tensor_cores_take_16_bits unused_slots_may_hold_anything \
    equal_scores_of_any_size_weigh_the_same results_have_the_same_bits_however_cut \
    random_operations_agree_with_the_oracle
quick: build/states  ## the tests of the engine that take seconds: run it after an edit
	build/states 2 1 2
	$(CC) -O1 -g $(WARN) $(CPPFLAGS) -DPAGED_FAST tests.c -o build/quick -lm
	build/quick --cpu --quick
	build/quick --standin --quick $(KERNELS)

check:            ## what is slow or needs rare tools: C=lint; without C: list
	@$(if $(filter house,$(C)),$(MAKE) house,sh checks/check.sh $$C)

build/draw: examples/draw.c examples/util.h $(ENGINE)
	@mkdir -p build
	$(COMPILE) examples/draw.c -o $@ -lm

pictures: replay build/draw  ## draws those of docs/ into build/: TRACE=file.csv
	./replay $(or $(TRACE),--generate 10000) --saturate --csv build/replay.csv
	./replay $(or $(TRACE),--generate 10000) --saturate --block-size 64 --blocks 160 \
	    --life build/life.csv >build/log
	build/draw memory <build/replay.csv >build/replay-memory.svg
	build/draw life <build/life.csv >build/life.svg
	printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2000-01-01 00:00:00,4,12\n2000-01-01 00:00:00,6,5\n' | \
	    ./replay /dev/stdin --saturate --block-size 4 --blocks 5 --life build/preempt.csv >build/log
	build/draw preempt <build/preempt.csv >build/preempt.svg
	for name in steps vectors free-list table walk softmax warps split copy publish loads; do \
	    build/draw $$name >build/$$name.svg || exit; done

format:           ## clang-format over the sources
	clang-format -i paged.cu.c paged.h fast/*.c tests.c examples/*.[ch] checks/*.[ch] \
	    learn/[0-9]*.c learn/hunts.c learn/stage_tests.c learn/show.c learn/exercise.h

clean:            ## removes what was built
	rm -rf paged tour llama replay tests tests-fast build *.o

.PHONY: all help bench pictures play debug read learn stage debug-stage show story exercise hunt mutant
.PHONY: play-sum test house quick check cuda cuda-bench format clean
