#!/bin/sh
# The CUDA build. Everything that nvcc has to compile is compiled, without a warning: the two files
# alone, the tests, the benchmark, and the engine that llama and replay are linked with. What needs
# a GPU is skipped without one, aloud.
#
#     sh checks/cuda.sh           part of make test: one generation of GPUs, then the tests if
#                                 there is a GPU
#     sh checks/cuda.sh --all     part of make test-all: three generations, and no kernel spills
#     sh checks/cuda.sh --gpu     make gpu-check: all that can be seen on a real GPU, a table at
#                                 the end; or only the parts that are named after it:
#                                 tests random sanitizer bench story debugger
#
# ARCH=sm_90 says what to compile for; otherwise that is the generation of the GPU, or sm_90.
# CPPFLAGS=-Ifolder says where stb_ds.h is, MODELS where stories260K.bin is. No network is used.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build
LOG=build/cuda.log
. checks/report.sh
MODELS=${MODELS:-../shared/models}
FLAGS="-O2 -g -lineinfo ${CPPFLAGS:-} -Xcompiler -Wall,-Wextra"

command -v nvcc >/dev/null || { skip "CUDA: there is no nvcc"; finish; }
nvcc --version | sed -n 's/.*release/nvcc: release/p'
gpu=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>/dev/null |
    head -n 1)
if [ -z "${ARCH-}" ]; then
    ARCH=sm_90
    [ -n "$gpu" ] && ARCH=sm_$(echo "$gpu" | sed 's/.*, *//; s/[.]//')
fi

# compile OUT ARGUMENTS...: for one generation. Each file is compiled on its own, as what the host's
# compiler makes of the examples needs no GPU.
compile() {
    out=$1; shift
    quietly "CUDA: $out for $ARCH" nvcc $FLAGS -arch=$ARCH "$@" -o build/$out && ok "CUDA: $out for $ARCH"
}

no_spills() {  # OUT GENERATIONS ARGUMENTS...
    out=$1 targets=; shift
    for arch in 75 80 90; do
        targets="$targets -gencode arch=compute_$arch,code=sm_$arch"
    done
    if ! nvcc $FLAGS $targets -Xptxas -v "$@" -o build/$out >$LOG 2>&1; then
        first_error; bad "CUDA: $out for sm_75, sm_80 and sm_90"; return
    fi
    kernels=$(grep -c 'bytes spill' $LOG)
    if grep -i 'warning' $LOG; then bad "CUDA: $out compiles with warnings"; return; fi
    if grep -E '[1-9][0-9]* bytes spill' $LOG; then bad "CUDA: $out spills registers"; return; fi
    [ "$kernels" -gt 0 ] || { bad "CUDA: $out: ptxas says nothing about its kernels"; return; }
    ok "CUDA: $out for sm_75, sm_80 and sm_90: no warning, no spill in $kernels compiled kernels"
}

compile_all() {
    compile cuda-paged -x cu paged.cu.c
    compile cuda-tests -x cu -DPAGED_FAST tests.c
    compile cuda-fast.o -x cu -DPAGED_FAST -DPAGED_NO_MAIN -c paged.cu.c
    compile cuda-bench.o -x cu -DPAGED_FAST -c examples/bench.c &&
        compile cuda-bench build/cuda-bench.o build/cuda-fast.o
    for program in llama replay; do
        quietly "CUDA: $program" cc -O2 -g -Wall -Wextra ${CPPFLAGS:-} -c examples/$program.c \
            -o build/cuda-$program.o && compile cuda-$program build/cuda-$program.o build/cuda-fast.o
    done
}

run_tests() { check "tests on the GPU" build/cuda-tests --gpu; }

# A test of random operations makes 30 launches an operation, so fewer of them do.
run_random() { check "random operations on the GPU" build/cuda-tests --gpu --ops 60000 random; }

run_sanitizer() {
    # Tests that start each kernel; under these tools the others would take hours.
    some="poison append_in_full_pool rewind_into_shared_block scale_and_lse bug_unused_slots
          every_split_kernel bug_empty_sequences_in_batch"
    for tool in memcheck racecheck initcheck synccheck; do
        command -v compute-sanitizer >/dev/null || { skip "compute-sanitizer $tool: not here"; continue; }
        check "compute-sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 9 \
            build/cuda-tests --gpu --quick $some
    done
}

run_bench() { check "the benchmark" build/cuda-bench --quick && cat $LOG; }

run_story() {
    [ -f "$MODELS/stories260K.bin" ] || { skip "the story: no stories260K.bin in $MODELS"; return; }
    story="build/cuda-llama $MODELS/stories260K.bin $MODELS/tok512.bin"
    $story >build/story 2>/dev/null
    for cache in contiguous gather paged; do
        for plain in "" --plain; do
            check "the story, --cache $cache $plain" sh -c \
                "$story --device gpu --cache $cache $plain >build/story-gpu && cmp build/story build/story-gpu"
        done
    done
}

run_debugger() {
    command -v cuda-gdb >/dev/null || { skip "cuda-gdb: not here"; return; }
    quietly "cuda-gdb" nvcc -x cu -O0 -g -G -arch=$ARCH ${CPPFLAGS:-} paged.cu.c \
        -o build/cuda-debug || return
    check "cuda-gdb stops in lane 5 of attend_paged" sh -c "
        cuda-gdb -batch -nx -ex 'set cuda break_on_launch none' -ex 'break attend_paged' -ex run \
            -ex 'cuda thread 5' -ex 'info cuda kernels' -ex 'print threadIdx.x' \
            -ex 'print visible' --args build/cuda-debug --gpu >build/cuda-gdb.log 2>&1
        cat build/cuda-gdb.log; grep -q '= 5' build/cuda-gdb.log"
}

case ${1-} in
--all)
    no_spills cuda-paged-all -x cu paged.cu.c
    no_spills cuda-fast-all.o -x cu -DPAGED_FAST -DPAGED_NO_MAIN -c paged.cu.c
    finish ;;
esac
compile_all
[ $failed = 0 ] || finish
check "./paged of nvcc; pools on the CPU need no GPU" build/cuda-paged
check "tests of the nvcc build, on the CPU" build/cuda-tests --cpu --quick random tensors \
    out_of_memory plan_goes_out_of_date shapes_vllm
if [ -z "$gpu" ]; then
    skip "CUDA: there is no GPU to run it on"
    finish
fi
echo "GPU: $gpu"
if [ "${1-}" != --gpu ]; then run_tests; finish; fi
shift
[ $# -gt 0 ] || set -- tests random sanitizer bench story debugger
for part in "$@"; do
    case $part in
    tests | random | sanitizer | bench | story | debugger) run_$part ;;
    *) echo "$0: there is no part called $part" >&2; exit 2 ;;
    esac
done
finish
