#!/bin/sh
# The CUDA build: it compiles without a warning, and no kernel spills registers or has an array outside
# of them. What needs a GPU is skipped without one, aloud.
#
#     sh checks/cuda.sh               in make check C=house: for one generation of GPUs, the program,
#                                     the tests and the fast kernels; with a GPU, the tests run
#     sh checks/cuda.sh --all         make check C=cuda: the kernels for four generations, and the
#                                     benchmark and llama
#     sh checks/cuda.sh --gpu [PART]  make check C=gpu: all that can be seen on a real GPU, each
#                                     part in at most nine minutes
#     SIM=folder sh checks/cuda.sh --sim
#                                     rungs 1 to 3 in GPGPU-Sim 4.2, a simulator of a GPU: results,
#                                     then cycles, in about 15 minutes. It was built in that folder,
#                                     as its README says, with nvcc 11.8 in CUDA_INSTALL_PATH/bin
#
# ARCH=sm_90 says what to compile for; otherwise that is the generation of the GPU, or sm_90. If the
# GPU is newer than nvcc, its driver compiles the PTX of an older generation, ARCH=compute_90, say.
# DEPS=folder says where stb_ds.h is. No network is used.
set -u
cd "$(dirname "$0")/.." || exit 1
LOG=build/cuda.log
. checks/report.sh
CPPFLAGS="${CPPFLAGS:-}${DEPS:+ -I$DEPS}"
FLAGS="-O2 -g $CPPFLAGS -Xcompiler -Wall,-Wextra"
FAST="-x cu -DPAGED_FAST -DPAGED_NO_MAIN"
PARTS="compile tests memcheck racecheck initcheck synccheck bench story"
mode=${1:-test}

# Ends where something is missing: a failure only if a GPU was asked for.
missing() { if [ $mode = --gpu ]; then bad "CUDA: $1"; else skip "CUDA: $1"; fi; finish; }

[ $mode = --sim ] || command -v nvcc >/dev/null || missing "there is no nvcc"

# ---- in a simulator ------------------------------------------------------------------------------

# simulator FOLDER COMMAND...: with its runtime library and its nvcc, in a folder for its files.
simulator() {
    bash -c '. "$0/setup_environment" >/dev/null 2>&1 && cd "$1" && shift && exec "$@"' "$SIM" "$@"
}

# The cycles of each kernel, as GPGPU-Sim prints them, make a row for each line "sim: title".
CYCLES='
/^sim: / { title = substr($0, 6); n = 0; names = "" }
/^kernel_name/ { name = $3; gsub(/^_Z[0-9]+|(3Job|PK).*/, "", name); names = names " " name }
/^gpu_sim_cycle/ { cycles[++n] = $3 }
/^gpu_sim_cycle/ && n == 6 && title != "" {
    if (names != " read_only attend_paged gather_kv attend_paged attend_split merge_splits") exit 1
    printf "  %-34s %10d %9d %9d %9d\n", title, cycles[1], cycles[3] + cycles[4], cycles[2],
        cycles[5] + cycles[6]
    rows++
}
END { exit rows != 1 }'

# sim TEST LINES...: runs a test of sim.c with a configuration in which these lines are others.
sim() {
    test=$1; shift
    to=$PWD/build/sim-$test
    mkdir -p $to
    cp $configuration/*.icnt $to
    sed "$@" $configuration/gpgpusim.config >$to/gpgpusim.config
    simulator $to $PWD/build/sim-tests $test >$to/log 2>&1
    cp $to/log $LOG
    grep -aq '^1 passed, 0 failed, 0 skipped' $LOG && return
    grep -aE 'sim.c:|^  at |ERROR|Abort' $LOG | head -n 5
    bad "simulated: $test"; false
}

# A GPU with fewer processors and no launch latency has the same results, and is simulated faster.
run_sim() {
    [ -n "${SIM-}" ] || { skip "CUDA: SIM names no folder with GPGPU-Sim"; finish; }
    SIM=$(cd "$SIM" && pwd) || { bad "CUDA: there is no such folder"; finish; }
    configuration=$SIM/configs/tested-cfgs/SM7_QV100
    version=$(simulator . nvcc --version | sed -n 's/.*release \(.*\),.*/\1/p')
    [ -n "$version" ] || { bad "the simulator is not built, or CUDA_INSTALL_PATH is not set"; finish; }
    echo "GPGPU-Sim $(sed -n 's|.*Simulator Version *\([0-9.]*\).*|\1|p' "$SIM/version"), SM7_QV100, nvcc $version"
    quietly "sim-tests" simulator . nvcc -x cu -O2 $CPPFLAGS -arch=compute_70 --cudart shared \
        -DPAGED_FAST checks/sim.c -o build/sim-tests || finish
    sim small_shapes_agree_with_the_oracle -e 's/^\(-gpgpu_n_clusters\) .*/\1 4/' \
        -e 's/^\(-gpgpu_kernel_launch_latency\) .*/\1 0/' &&
        ok "simulated: rungs 1 to 3 agree with the oracle, f32, f16, bf16"
    echo "Simulated cycles; a launch is 5000 of them:"
    echo "                                     reads only  1 gather   2 paged   3 split"
    for test in cycles_of_one_sequence cycles_of_a_batch; do
        sim $test '' || continue
        awk "$CYCLES" $LOG && ok "simulated: $test" || bad "simulated: other kernels in $test"
    done
    finish
}
[ $mode != --sim ] || run_sim

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

# A random operation makes about 50 calls of the CUDA runtime, so the GPU does fewer of them.
run_tests() {
    check "all tests on the GPU" timeout 500 build/cuda-tests --gpu --ops 60000
    ! grep -qE '^GPU: SKIPPED|^0 passed' $LOG || bad "the tests have seen no GPU"
    rung_4=no
    build/cuda-tests --gpu tensor_cores_take_16_bits 2>&1 | grep -q '^1 passed' && rung_4=yes
    echo "tensor cores: $rung_4"
    [ $rung_4 = yes ] || [ $generation -lt 80 ] || bad "this GPU has them, and rung 4 did not run"
}

programs() {
    compile cuda-paged -x cu paged.cu.c
    compile cuda-tests -x cu -DPAGED_FAST tests.c
    compile_examples
}

# Tests that start each kernel; under these tools the others would take hours. A tool that refuses
# the GPU, starts no test or ends without its summary has found no bug: it counts as missing.
run_sanitizer() {
    command -v compute-sanitizer >/dev/null || { skip "no compute-sanitizer for $1"; return; }
    timeout 500 compute-sanitizer --tool $1 --error-exitcode 9 build/cuda-tests --gpu --quick \
        rewind_may_end_in_a_shared_block unused_slots_may_hold_anything \
        every_kernel_agrees_with_the_oracle >$LOG 2>&1
    status=$?
    refusal='^===.*(device not supported|not supported on this|unsupported driver|internal sanit)'
    if grep -qiE "$refusal" $LOG || ! grep -q '^gpu ' $LOG || ! grep -q '^===.*SUMMARY' $LOG; then
        grep -i '^===.*error' $LOG | head -n 3
        skip "compute-sanitizer cannot do $1 here"
    elif [ $status = 0 ] && grep -q 'SUMMARY: 0' $LOG && grep -q '^[1-9].* passed, 0 f' $LOG; then
        ok "compute-sanitizer $1: $(sed -n "s/.*SUMMARY: //p" $LOG)"
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
    llama=build/cuda-llama
    for cache in contiguous gather paged; do
        for option in "" --plain "--dtype f16"; do  # f16: the tensor cores
            check "the story, --cache $cache $option" sh -c "$llama $option >build/story &&
                $llama $option --device gpu --cache $cache | cmp build/story -"
        done
    done
}

run_parts() {
    echo "GPU: ${gpu#* }, sm_$generation"
    [ "$1" = compile ] || programs
    for part in "$@"; do
        case " $PARTS " in *" $part "*) ;; *) echo "$0: no part is called $part" >&2; exit 2 ;; esac
        case $part in
        compile) programs; all_kernels ;;
        *check) run_sanitizer $part ;;
        *) run_$part ;;
        esac
    done
    finish
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
