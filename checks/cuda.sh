#!/bin/sh
# The CUDA build: it compiles without a warning, and no kernel spills registers or has an array outside
# of them. What needs a GPU is skipped without one, aloud.
#
#     sh checks/cuda.sh               in make check C=house: for one generation of GPUs, the program,
#                                     the tests and the fast kernels; with a GPU, the tests run
#     sh checks/cuda.sh --all         make check C=cuda: the kernels for four generations, and the
#                                     benchmark and llama
#     sh checks/cuda.sh --gpu [PART]  make check C=gpu: all that can be seen on a real GPU, each
#                                     part in at most nine minutes. Exit status 3: incomplete, for
#                                     want of a tool that works here
#
# ARCH=sm_90 says what to compile for; otherwise that is the generation of the GPU, or sm_90. If the
# GPU is newer than nvcc, its driver compiles the PTX of an older generation, ARCH=compute_90, say.
# DEPS=folder says where stb_ds.h, stories260K.bin and tok512.bin are. No network is used.
set -u
cd "$(dirname "$0")/.." || exit 1
LOG=build/cuda.log
. checks/report.sh
MODELS=${DEPS:-${MODELS:-../shared/models}}
CPPFLAGS="${CPPFLAGS:-}${DEPS:+ -I$DEPS}"
FLAGS="-O2 -g $CPPFLAGS -Xcompiler -Wall,-Wextra"
FAST="-x cu -DPAGED_FAST -DPAGED_NO_MAIN"
PARTS="compile tests memcheck racecheck initcheck synccheck bench story debugger"
mode=${1:-test}

# Ends where something is missing: a failure only if a GPU was asked for.
missing() { if [ $mode = --gpu ]; then bad "CUDA: $1"; else skip "CUDA: $1"; fi; finish; }

command -v nvcc >/dev/null || missing "there is no nvcc"

# The GPU that programs run on, "90 NVIDIA H200" for sm_90, or why there is none. Only CUDA itself
# knows: nvidia-smi ignores CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
find_gpu() {
    cat >build/device-$$.cpp <<'END'
#include <cstdio>
#include <cuda_runtime.h>
int main()
{
    cudaDeviceProp gpu;
    cudaError_t error = cudaGetDeviceProperties(&gpu, 0);
    if (error != cudaSuccess) return puts(cudaGetErrorString(error)), 1;
    printf("%d%d %s\n", gpu.major, gpu.minor, gpu.name);
}
END
    if nvcc build/device-$$.cpp -o build/device-$$ >$LOG 2>&1; then build/device-$$
    else head -n 1 $LOG; false; fi
}

gpu=$(find_gpu) || { no_gpu="there is no GPU to run it on: $gpu" gpu=; }
rm -f build/device-$$*
generation=${gpu%% *}
known=$(nvcc --list-gpu-arch 2>/dev/null | sed 's/compute_//' | sort -n)
if [ -z "${ARCH-}" ]; then
    ARCH=sm_${generation:=90}
    newest=$(echo "$known" | awk -v gpu=$generation '$1 <= gpu' | tail -n 1)
    [ "${newest:-$generation}" = $generation ] || ARCH=compute_$newest
fi
nvcc --version | sed -n 's/.*release/nvcc: release/p'
stamp=build/for-$ARCH-$(nvcc --version | cksum | tr -d ' ')

# cuda ARGUMENTS...: nvcc, with line numbers for compute-sanitizer. ptxas 11.8 breaks down over them
# for sm_90, so there is a second try without.
cuda() {
    nvcc -lineinfo $FLAGS "$@" >$LOG 2>&1 && return
    nvcc $FLAGS "$@" >$LOG 2>&1 && echo "      nvcc fails with -lineinfo, not without: $*"
}

# compile OUT ARGUMENTS...: for one generation. On a GPU a warning, say of a compiler that is newer
# than this, is no failure.
compile() {
    out=$1; shift
    cuda -arch=$ARCH "$@" -o build/$out; status=$?
    [ $mode = --gpu ] || [ ! -s $LOG ] || status=1
    if [ $status = 0 ]; then ok "CUDA: $out for $ARCH"
    else first_error; bad "CUDA: $out for $ARCH"; false; fi
}

# Each file is compiled on its own, as what the host's compiler makes of the examples needs no GPU.
compile_examples() {
    compile cuda-fast.o $FAST -c paged.cu.c
    compile cuda-bench.o -x cu -DPAGED_FAST -c examples/bench.c &&
        compile cuda-bench build/cuda-bench.o build/cuda-fast.o
    cc -O2 -g $CPPFLAGS -c examples/llama.c -o build/cuda-llama.o &&
        compile cuda-llama build/cuda-llama.o build/cuda-fast.o
}

# ---- what the compiled code says ----------------------------------------------------------------

# kernels GENERATION: compiles them for sm_GENERATION. None has an array in memory, which is what a
# stack frame holds, or spills registers. What ptxas says is in build/kernels-GENERATION.ptxas.
kernels() {
    cuda $FAST -arch=sm_$1 -cubin -Xptxas -v paged.cu.c -o build/kernels-$1; status=$?
    cp $LOG build/kernels-$1.ptxas
    number=$(grep -c 'Compiling entry' $LOG)
    wrong='[1-9][0-9]* bytes (stack frame|spill)'
    [ $mode = --gpu ] || wrong="warning|$wrong"
    if [ $status = 0 ] && [ "$number" -gt 0 ] && ! grep -B 1 -iE "$wrong" $LOG; then
        ok "CUDA: $number kernels for sm_$1: no stack frame, no spill"
    else
        grep -i error $LOG
        bad "CUDA: the kernels for sm_$1: see above, or no kernel at all"
    fi
}

all_kernels() {
    for sm in 75 80 90 120; do
        case $(echo '' $known '') in *\ $sm\ *) kernels $sm ;;
        *) skip "CUDA: this nvcc does not know sm_$sm" ;; esac
    done
}

# ---- on a GPU -----------------------------------------------------------------------------------

incomplete=
lacks() { skip "$1: not here"; incomplete="$incomplete, $1"; }

# A random operation makes about 50 calls of the CUDA runtime, so the GPU does fewer of them.
run_tests() {
    check "all tests on the GPU" timeout 500 build/cuda-tests --gpu --ops 60000
    ! grep -qE '^GPU: SKIPPED|^0 passed' $LOG || bad "the tests have seen no GPU"
    rung_4=no
    build/cuda-tests --gpu tensor_cores_take_16_bits 2>&1 | grep -q '^1 passed' && rung_4=yes
    echo "tensor cores: $rung_4"
    [ $rung_4 = yes ] || [ $generation -lt 80 ] || bad "this GPU has them, and rung 4 did not run"
}

# These belong together, and to one ARCH.
programs() {
    rm -f build/for-*
    compile cuda-paged -x cu paged.cu.c
    compile cuda-tests -x cu -DPAGED_FAST tests.c
    compile_examples
    [ $failed != 0 ] || : >$stamp
}

# Tests that start each kernel; under these tools the others would take hours. A tool that refuses
# the GPU, starts no test or ends without its summary has found no bug: it counts as missing. One that
# finds nothing must find a planted bug.
run_sanitizer() {
    command -v compute-sanitizer >/dev/null || { lacks "compute-sanitizer for $1"; return; }
    sanitize() {
        timeout 500 compute-sanitizer --tool $1 --error-exitcode 9 $2 --gpu --quick \
            unused_slots_may_hold_anything every_kernel_agrees_with_the_oracle >$LOG 2>&1
    }
    case $1 in
    memcheck) bug=shared-memory-too-small ;;
    racecheck) bug=barrier-before-merge ;;
    initcheck) bug=tables-of-the-last-step ;;
    synccheck) bug=barrier-in-a-branch ;;
    esac
    sanitize $1 build/cuda-tests; status=$?
    refusal='^===.*(device not supported|not supported on this|unsupported driver|internal sanit)'
    if grep -qiE "$refusal" $LOG || ! grep -q '^gpu ' $LOG || ! grep -q '^===.*SUMMARY' $LOG; then
        grep -i '^===.*error' $LOG | head -n 3
        lacks "a compute-sanitizer that can do $1"
    elif [ $status = 0 ] && grep -q 'SUMMARY: 0' $LOG && grep -q '^[1-9].* passed, 0 f' $LOG; then
        ok "compute-sanitizer $1: $(sed -n "s/.*SUMMARY: //p" $LOG)"
        python3 learn/plant.py mutant $bug >$LOG 2>&1 || { bad "cannot plant $bug"; return; }
        compile cuda-$bug -x cu -DPAGED_FAST build/mutants/$bug/tests.c || return
        sanitize $1 build/cuda-$bug
        if grep -q 'SUMMARY: [1-9]' $LOG; then ok "compute-sanitizer $1 finds $bug"
        else bad "compute-sanitizer $1 does not find $bug"; fi
    else first_error; bad "compute-sanitizer $1"; fi
}

# In decode of 64 sequences, rung 4 must reach half of what the memory delivers. That, "fast", is the
# last column but one.
run_bench() {
    check "the benchmark" timeout 500 build/cuda-bench; cat $LOG
    [ $generation -ge 80 ] || return
    slow=$(awk '/^f16 x4, 64 x 2048, 1 new, blocks 16 / { rows++; if (!($(NF - 1) >= .5)) print }
        END { if (rows != 1) print "no such row" }' $LOG)
    if [ -z "$slow" ]; then ok "f16, groups of 4, 64 x 2048: at least half the bandwidth"
    else echo "$slow"; bad "f16, groups of 4, 64 x 2048: less than half the bandwidth"; fi
}

run_story() {
    [ -f "$MODELS/stories260K.bin" ] || { lacks "stories260K.bin in $MODELS"; return; }
    story="build/cuda-llama $MODELS/stories260K.bin $MODELS/tok512.bin"
    for cache in contiguous gather paged; do
        for option in "" --plain "--dtype f16"; do  # f16: the tensor cores
            check "the story, --cache $cache $option" sh -c "$story $option >build/story &&
                $story $option --device gpu --cache $cache | cmp build/story -"
        done
    done
}

# The stop at the first launch says whether this cuda-gdb stops in kernels at all. The breakpoint
# may stop in a host stub first: it has the name of the kernel, but no lane 5.
run_debugger() {
    command -v cuda-gdb >/dev/null || { lacks "cuda-gdb"; return; }
    compile cuda-debug -O0 -G -x cu paged.cu.c || return
    set -- -ex continue -ex 'cuda thread 5' -ex 'print threadIdx.x'
    timeout 300 cuda-gdb -batch -nx -ex 'set cuda break_on_launch application' -ex run \
        -ex 'set cuda break_on_launch none' -ex 'break attend_paged' "$@" "$@" "$@" \
        --args build/cuda-debug >$LOG 2>&1 </dev/null
    if grep -q '^[$].* = 5$' $LOG; then ok "cuda-gdb stops in lane 5 of attend_paged"
    elif grep -q 'focus to CUDA kernel' $LOG; then cat $LOG; bad "cuda-gdb: no lane 5"
    else tail -n 5 $LOG; lacks "a cuda-gdb that stops in kernels"; fi
}

# True if no source is newer than the programs that this nvcc made for this ARCH.
built() {
    newer=$(find paged.cu.c paged.h tests.c checks/test.h fast examples -newer $stamp 2>$LOG) &&
        [ -z "$newer" ]
}

run_parts() {
    echo "GPU: ${gpu#* }, sm_$generation"
    [ "$1" = compile ] || built || programs
    for part in "$@"; do
        case " $PARTS " in *" $part "*) ;; *) echo "$0: no part is called $part" >&2; exit 2 ;; esac
        case $part in
        compile) programs; all_kernels ;;
        *check) run_sanitizer $part ;;
        *) run_$part ;;
        esac
    done
    [ -n "$incomplete" ] || finish
    (finish) && echo "incomplete, for want of ${incomplete#, }" && exit 3
    exit 1
}

case $mode in
--all) all_kernels; compile_examples; finish ;;
--gpu)
    shift; [ $# -gt 0 ] || set -- $PARTS
    [ -n "$gpu" ] || missing "$no_gpu"
    run_parts "$@" ;;
esac
compile cuda-paged -x cu paged.cu.c
compile cuda-tests -x cu -DPAGED_FAST tests.c
kernels 90
[ $failed = 0 ] || finish
check "./paged of nvcc; pools on the CPU need no GPU" build/cuda-paged
check "tests of the nvcc build, on the CPU" build/cuda-tests --cpu --quick
if [ -n "$gpu" ]; then run_tests; else skip "CUDA: $no_gpu"; fi
finish
