#!/bin/sh
# The CUDA build. Compiles for three generations of GPUs, without a warning and without a register
# spilled to memory; runs the tests on the GPU, if there is one. What cannot run is skipped, aloud.
#
#     sh checks/cuda.sh          part of make test
#     sh checks/cuda.sh --gpu    make gpu-check: all that can be seen on a real GPU, in one call
set -u
cd "$(dirname "$0")/.."
mkdir -p build
passed=0 failed=0 skipped=0
NVCC="nvcc -x cu -O2 -g -lineinfo ${CPPFLAGS:-} -Xcompiler -Wall,-Wextra"
TARGETS="-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80
         -gencode arch=compute_90,code=[sm_90,compute_90]"
MODELS=${MODELS:-../shared/models}

ok() { echo "ok    $1"; passed=$((passed + 1)); }
bad() { echo "FAIL  $1"; failed=$((failed + 1)); }
skip() { echo "skip  $1"; skipped=$((skipped + 1)); }
finish() { echo "$passed passed, $failed failed, $skipped skipped"; [ $failed = 0 ]; exit; }

# check NAME COMMAND...: passes if the command does, and shows the end of what it printed if not.
check() {
    name=$1; shift
    if "$@" >build/cuda.log 2>&1; then ok "$name: $(tail -n 1 build/cuda.log)"
    else tail -n 30 build/cuda.log; bad "$name"; fi
}

if ! command -v nvcc >/dev/null; then
    skip "CUDA: there is no nvcc"
    finish
fi
nvcc --version | sed -n 's/.*release/nvcc: release/p'

if $NVCC $TARGETS -Xptxas -v paged.cu.c -o build/cuda-paged >build/cuda.log 2>&1; then
    grep -i warning build/cuda.log && bad "CUDA: compiles with warnings" ||
        ok "CUDA: compiles for sm_75, sm_80 and sm_90 without a warning"
    grep -E '[1-9][0-9]* bytes spill' build/cuda.log && bad "CUDA: registers are spilled" ||
        ok "CUDA: no spill in $(grep -c 'bytes spill' build/cuda.log) compiled kernels"
else
    cat build/cuda.log; bad "CUDA: does not compile"; finish
fi

if $NVCC $TARGETS -DPAGED_NO_MAIN paged.cu.c examples/bench.c -o build/cuda-bench \
    >build/cuda.log 2>&1 && ! grep -i warning build/cuda.log; then
    ok "CUDA: the benchmark compiles without a warning"
else cat build/cuda.log; bad "CUDA: bench"; fi

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
if [ -z "$gpu" ]; then
    skip "CUDA: there is no GPU to run it on"
    finish
fi
echo "GPU: $gpu"
$NVCC $TARGETS tests.c -o build/cuda-tests || { bad "CUDA: tests do not compile"; finish; }
$NVCC $TARGETS -DPAGED_NO_MAIN -c paged.cu.c -o build/cuda-paged.o &&
    cc -O2 -g ${CPPFLAGS:-} -c examples/llama.c -o build/cuda-llama.o &&
    nvcc build/cuda-paged.o build/cuda-llama.o -o build/cuda-llama || bad "CUDA: llama"
check "CUDA: the tests, on the GPU" env PAGED=build/cuda-paged LLAMA=build/cuda-llama build/cuda-tests
[ "${1:-}" = --gpu ] || finish

check "CUDA: the benchmark" build/cuda-bench --quick
# A plane with more than 2^31 elements is the test bug_32_bit_offsets; these are the other tools.
some="kernels_in_lane_orders table_entries poison rewind_into_shared_block scale_and_lse
      bug_unused_slots bug_empty_sequences_in_batch speculation_with_samples"
for tool in memcheck racecheck initcheck synccheck; do
    if command -v compute-sanitizer >/dev/null; then
        check "compute-sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 9 \
            build/cuda-tests --quick $some
    else skip "compute-sanitizer $tool: not here"; fi
done
if [ -f "$MODELS/stories260K.bin" ]; then
    build/cuda-llama "$MODELS/stories260K.bin" "$MODELS/tok512.bin" >build/story 2>/dev/null
    for cache in contiguous gather paged split; do
        build/cuda-llama "$MODELS/stories260K.bin" "$MODELS/tok512.bin" --device gpu \
            --cache $cache >build/story-gpu 2>build/cuda.log
        cmp build/story build/story-gpu && ok "the story, --cache $cache" || bad "story, $cache"
    done
else skip "the story: no stories260K.bin in $MODELS"; fi
if command -v cuda-gdb >/dev/null; then
    $NVCC -O0 -G -arch=native paged.cu.c -o build/cuda-debug &&
    cuda-gdb -batch -nx -ex 'set cuda break_on_launch none' -ex 'break attend_paged' -ex run \
        -ex 'cuda thread 5' -ex 'info cuda kernels' -ex 'print threadIdx.x' -ex 'print visible' \
        --args build/cuda-debug --gpu 9 >build/cuda.log 2>&1
    grep -q '= 5' build/cuda.log && ok "cuda-gdb stops in lane 5 of attend_paged" ||
        { tail -n 30 build/cuda.log; bad "cuda-gdb"; }
else skip "cuda-gdb: not here"; fi
finish
