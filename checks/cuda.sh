#!/bin/sh
# The CUDA build: it compiles without a warning, no kernel spills registers, and the hot loops have
# no more instructions than the goals below. What needs a GPU is skipped without one, aloud.
#
#     sh checks/cuda.sh               part of make test: for one generation of GPUs, the program,
#                                     the tests and the fast kernels; with a GPU, the tests run
#     sh checks/cuda.sh --all         part of make test-all: three generations, and the benchmark,
#                                     llama and replay
#     sh checks/cuda.sh --gpu         make gpu-check: all that can be seen on a real GPU
#     sh checks/cuda.sh --gpu PART... only these parts: compile, tests, memcheck, racecheck,
#                                     initcheck, synccheck, bench, story, debugger. None may take
#                                     more than nine minutes. What each has said stays in
#                                     build/gpu-check; at the end comes a table of them all.
#
# ARCH=sm_90 says what to compile for; otherwise that is the generation of the GPU, or sm_90.
# DEPS=folder says where stb_ds.h, stories260K.bin and tok512.bin are. No network is used.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/gpu-check
LOG=build/cuda.log
. checks/report.sh
MODELS=${DEPS:-${MODELS:-../shared/models}}
CPPFLAGS="${CPPFLAGS:-}${DEPS:+ -I$DEPS}"
FLAGS="-O2 -g -lineinfo $CPPFLAGS -Xcompiler -Wall,-Wextra"
FAST="-x cu -DPAGED_FAST -DPAGED_NO_MAIN"
PARTS="compile tests memcheck racecheck initcheck synccheck bench story debugger"

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
    quietly "CUDA: $out for $ARCH" nvcc $FLAGS -arch=$ARCH "$@" -o build/$out &&
        ok "CUDA: $out for $ARCH"
}

compile_programs() {
    compile cuda-fast.o $FAST -c paged.cu.c
    compile cuda-bench.o -x cu -DPAGED_FAST -c examples/bench.c &&
        compile cuda-bench build/cuda-bench.o build/cuda-fast.o
    for program in llama replay; do
        quietly "CUDA: $program" cc -O2 -g -Wall -Wextra $CPPFLAGS -c examples/$program.c \
            -o build/cuda-$program.o &&
            compile cuda-$program build/cuda-$program.o build/cuda-fast.o
    done
}

# ---- what the compiled code says ----------------------------------------------------------------

# kernels OUT ARCH ARGUMENTS...: compiles for one generation, and checks that no kernel spills. What
# ptxas says of them is in build/OUT.ptxas.
kernels() {
    out=$1 arch=$2; shift 2
    if ! nvcc $FLAGS -arch=$arch -cubin -Xptxas -v "$@" -o build/$out >build/$out.ptxas 2>&1; then
        LOG=build/$out.ptxas first_error; bad "CUDA: kernels of $out for $arch"; return 1
    fi
    number=$(grep -c 'bytes spill' build/$out.ptxas)
    if grep -i 'warning' build/$out.ptxas; then bad "CUDA: $out for $arch: warnings"; return 1; fi
    if grep -E '[1-9][0-9]* bytes spill' build/$out.ptxas; then
        bad "CUDA: $out for $arch: a kernel spills registers"; return 1
    fi
    [ "$number" -gt 0 ] || { bad "CUDA: $out: ptxas says nothing about its kernels"; return 1; }
    ok "CUDA: $number kernels of $out for $arch: no warning, no spill"
}

# The hot loop of a kernel, in the output of nvdisasm: the shortest one with the most loads of a
# kind. Prints how many instructions a warp needs for 4 KB of K and V, registers, and how many KB of
# loads are under way in a multiprocessor, if registers alone limit the number of its warps.
HOT_LOOP='
FNR == 1 { file++ }
file == 1 {
    if (/Compiling/) this = $0
    if (/Used/ && this ~ name) { sub(/.*Used /, ""); registers = $1 + 0 }
    next
}
/^\.text/ { inside = $0 ~ name }
!inside { next }
/^\.L_/ { at[$1] = n + 1 }
/^ +\/\*[0-9a-f]+\*\// {
    loads[++n] = index($0, load) > 0
    if (match($0, /BRA.*\.L_x_[0-9]+/) && match($0, /\.L_x_[0-9]+/))
        start[n] = at[substr($0, RSTART, RLENGTH) ":"] + 0  # 0: a label that is yet to come
}
END {
    for (i = 1; i <= n; i++) {
        count = 0
        for (j = start[i]; j && j <= i; j++) count += loads[j]
        if (count > most || (count && count == most && i - start[i] < last - first)) {
            most = count; first = start[i]; last = i
        }
    }
    if (!most || !registers) { print "?"; exit }
    work = last - first + 1
    for (i = first; i < last; i++)
        if (start[i] > first) { print "?"; exit }  # a loop in it: how often does it run?
    blocks = int(65536 / (128 * int((registers + 7) / 8) * 8))
    if (blocks > 16) blocks = 16
    kb = most * bytes * 32 / 1024
    printf "%d %d %d", work * reads * 4 / kb + 0.5, registers, 4 * blocks * kb / same + 0.5
}'

# count RUNG GROUP KERNEL FILE LIMIT: a line of the table. Rung 2 loads 2 bytes a lane, V after K,
# and both again for each head. Registers are those of the kernel as it is.
count() {
    load=LDG.E.128 bytes=16 reads=${2#*-}
    case $2 in MHA) reads=1 ;; esac
    case $1 in
    2*) load=LDG.E.U16 bytes=2 same=2 ;;
    4*) reads=1 same=1 ;;
    esac
    found=$(awk -v name="_Z[0-9]+${3}[0-9]+[A-Z]" -v load=$load -v bytes=$bytes -v reads=$reads \
        -v same=$same "$HOT_LOOP" build/cuda-kernels.ptxas build/$4.sass)
    case $found in
    \?*) bad "CUDA: no hot loop found in $3"; return ;;
    esac
    set -- "$@" $found
    [ -n "$5" ] || { printf '  %-16s %-6s %12d %10d %16d\n' "$1" $2 $6 $7 $8; return; }
    printf '  %-16s %-6s %12d %10d %16d   goals: at most %d, at least 32\n' "$1" $2 $6 $7 $8 $5
    if [ "$6" -le "$5" ] && [ "$8" -ge 32 ]; then
        ok "CUDA: $2 in $6 instructions for 4 KB, $8 KB of loads in flight"
    else
        bad "CUDA: $2 takes $6 instructions for 4 KB, with $8 KB of loads in flight"
    fi
}

# For sm_90, f16 and head_dim 128. In rung 2 these two are variables; here they are constants.
# Rung 3 has the loop of rung 2.
count_table() {
    command -v nvdisasm >/dev/null || { skip "CUDA: no nvdisasm to count with"; return; }
    sed 's/int dtype = view->config.dtype;/int dtype = PAGED_F16;/
        s/int head_dim = view->config.head_dim;/int head_dim = 128;/
        s/if (!view->tables) {/if (0) {/' paged.cu.c >build/cuda-plain.cu
    [ "$(diff paged.cu.c build/cuda-plain.cu | grep -c '^>')" = 3 ] ||
        { bad "CUDA: attend_tokens() is not written as checks/cuda.sh expects"; return; }
    nvcc -I. $FLAGS -arch=sm_90 -cubin -DPAGED_NO_MAIN build/cuda-plain.cu -o build/cuda-plain \
        2>$LOG && nvdisasm -c build/cuda-plain >build/cuda-plain.sass 2>$LOG &&
        nvdisasm -c build/cuda-kernels >build/cuda-kernels.sass 2>$LOG ||
        { first_error; bad "CUDA: nvdisasm"; return; }
    echo "Counted in the code of the hot loops, sm_90, f16, head_dim 128:"
    echo "  rung             heads  for 4 KB of K and V  registers  KB in flight per SM"
    for group in MHA GQA-4 GQA-8; do count "2 paged" $group attend_paged cuda-plain ""; done
    count "4 tensor cores" MHA attend_mma_f16 cuda-kernels 500
    count "4 tensor cores" GQA-4 attend_mma_f16 cuda-kernels 300
    count "4 tensor cores" GQA-8 attend_mma_f16 cuda-kernels 300
    count "4 in bf16" GQA-8 attend_mma_bf16 cuda-kernels 300
}

# ---- on a GPU -----------------------------------------------------------------------------------

check_gpu() {
    check "$@"
    ! grep -q '^GPU: SKIPPED' $LOG || bad "$1: it has seen no GPU"
}

# A test of random operations makes 30 launches an operation, so fewer of them do.
run_tests() { check_gpu "all tests on the GPU" timeout 500 build/cuda-tests --gpu --ops 60000; }

run_compile() {
    compile cuda-paged -x cu paged.cu.c
    compile cuda-tests -x cu -DPAGED_FAST tests.c
    compile_programs
}

# Tests that start each kernel; under these tools the others would take hours.
run_sanitizer() {
    command -v compute-sanitizer >/dev/null || { skip "compute-sanitizer $1: not here"; return; }
    check_gpu "compute-sanitizer $1" timeout 500 compute-sanitizer --tool $1 --error-exitcode 9 \
        build/cuda-tests --gpu --quick rewind_into_shared_block scale_and_lse bug_unused_slots \
        every_split_kernel
}

# The rungs' fractions of the rate at which this GPU reads: columns of the table "decode".
run_bench() {
    timeout 500 build/cuda-bench --quick --csv >build/cuda-bench.csv 2>$LOG ||
        { first_error; bad "the benchmark"; return; }
    ok "the benchmark: $(grep -c . build/cuda-bench.csv) numbers in build/cuda-bench.csv"
    say "$(awk -F'"' '
        /^decode/ {
            split($3, f, ",")
            v[$2, f[2]] = f[3]
            if (!seen[$2]++) row[++n] = $2
        }
        END {
            format = "      %-27s %8s %8s %8s %8s\n"
            printf format, "fraction of the read rate", "1 gather", "2 paged", "3 or 4", "GB/s"
            for (i = 1; i <= n; i++)
                printf format, row[i], v[row[i], "gather"], v[row[i], "plain"], v[row[i], "fast"],
                    v[row[i], "GB/s"]
        }' build/cuda-bench.csv)"
}

run_story() {
    [ -f "$MODELS/stories260K.bin" ] || { skip "the story: no stories260K.bin in $MODELS"; return; }
    story="build/cuda-llama $MODELS/stories260K.bin $MODELS/tok512.bin"
    $story >build/story 2>/dev/null
    for cache in contiguous gather paged; do
        for plain in "" --plain; do
            check "the story, --cache $cache $plain" sh -c "
                $story --device gpu --cache $cache $plain >build/story-gpu &&
                    cmp build/story build/story-gpu"
        done
    done
}

run_debugger() {
    command -v cuda-gdb >/dev/null || { skip "cuda-gdb: not here"; return; }
    quietly "cuda-gdb" nvcc -x cu -O0 -g -G -arch=$ARCH $CPPFLAGS paged.cu.c \
        -o build/cuda-debug || return
    check "cuda-gdb stops in lane 5 of attend_paged" sh -c "
        cuda-gdb -batch -nx -ex 'set cuda break_on_launch none' -ex 'break attend_paged' -ex run \
            -ex 'cuda thread 5' -ex 'info cuda kernels' -ex 'print threadIdx.x' \
            --args build/cuda-debug >build/cuda-gdb.log 2>&1
        cat build/cuda-gdb.log; grep -q '= 5' build/cuda-gdb.log"
}

run_parts() {
    say() { echo "$1"; echo "$1" >>build/gpu-check/$part; }
    ok() { say "ok    $1"; passed=$((passed + 1)); }
    bad() { say "FAIL  $1"; failed=$((failed + 1)); }
    skip() { say "skip  $1"; skipped=$((skipped + 1)); }
    for part in "$@"; do
        case " $PARTS " in *" $part "*) ;; *) echo "$0: no part is called $part" >&2; exit 2 ;; esac
    done
    for part in "$@"; do
        : >build/gpu-check/$part
        case $part in
        *check) run_sanitizer $part ;;
        *) run_$part ;;
        esac
    done
    echo "All parts so far, on $gpu:"
    for part in $PARTS; do
        [ ! -s build/gpu-check/$part ] || sed "s/^/  $(printf %-10s $part) /" build/gpu-check/$part
    done
    finish
}

case ${1-} in
--all)
    for arch in sm_75 sm_80 sm_90; do
        kernels cuda-plain-$arch $arch -x cu paged.cu.c
        kernels cuda-kernels-$arch $arch $FAST paged.cu.c
    done
    compile_programs
    finish ;;
--gpu)
    shift
    [ -n "$gpu" ] || { skip "CUDA: there is no GPU to run it on"; finish; }
    [ $# -gt 0 ] || set -- $PARTS
    run_parts "$@" ;;
esac
compile cuda-paged -x cu paged.cu.c
compile cuda-tests -x cu -DPAGED_FAST tests.c
kernels cuda-kernels sm_90 $FAST paged.cu.c && count_table
[ $failed = 0 ] || finish
check "./paged of nvcc; pools on the CPU need no GPU" build/cuda-paged
check "tests of the nvcc build, on the CPU" build/cuda-tests --cpu --quick random tensors \
    out_of_memory plan_goes_out_of_date shapes_crossed bug_tests_that_cannot_fail
if [ -n "$gpu" ]; then run_tests; else skip "CUDA: there is no GPU to run it on"; fi
finish
