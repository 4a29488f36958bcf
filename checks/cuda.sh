#!/bin/sh
# The CUDA build: it compiles without a warning, no kernel spills registers, and the hot loops have
# no more instructions than the goals below. What needs a GPU is skipped without one, aloud.
#
#     sh checks/cuda.sh               part of make test: for one generation of GPUs, the program,
#                                     the tests and the fast kernels; with a GPU, the tests run
#     sh checks/cuda.sh --all         make check C=cuda: three generations, and the benchmark, llama
#                                     and replay
#     sh checks/cuda.sh --gpu [PART]  make gpu-check: all that can be seen on a real GPU, each part
#                                     in at most nine minutes. Where a tool is missing, it says at
#                                     the end that this was incomplete, with exit status 3
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
FLAGS="-O2 -g -lineinfo $CPPFLAGS -Xcompiler -Wall,-Wextra"
FAST="-x cu -DPAGED_FAST -DPAGED_NO_MAIN"
PARTS="compile tests memcheck racecheck initcheck synccheck bench story debugger"
mode=${1:-test}

# What cannot be done is skipped; where a GPU was asked for, it is a failure.
missing() { if [ "$mode" = --gpu ]; then bad "$1"; else skip "$1"; fi; }

command -v nvcc >/dev/null || { missing "CUDA: there is no nvcc"; finish; }
nvcc --version | sed -n 's/.*release/nvcc: release/p'

# The GPU that will run: the first that CUDA_VISIBLE_DEVICES names, by its index or the beginning of
# its UUID. If the variable is empty, programs see no GPU.
export CUDA_DEVICE_ORDER=PCI_BUS_ID  # as nvidia-smi counts them
visible=${CUDA_VISIBLE_DEVICES-0}
gpu=$(nvidia-smi --query-gpu=index,uuid,name,driver_version,compute_cap --format=csv,noheader \
    2>/dev/null | awk -F ', *' -v card="${visible%%,*}" 'card == "" { next }
        $1 == card || index($2, card) == 1 { print; exit }')
if [ -z "${ARCH-}" ]; then
    arch=$(echo "${gpu:-9.0}" | sed 's/.*, *//; s/[.]//')
    newest=$(nvcc --list-gpu-arch | sed 's/compute_//' | sort -n | awk -v arch=$arch '$1 <= arch' |
        tail -n 1)
    ARCH=sm_$arch
    [ "${newest:-$arch}" = $arch ] || ARCH=compute_$newest
fi

# compile OUT ARGUMENTS...: for one generation. On a GPU a warning, say of a compiler that is newer
# than this, is no failure.
compile() {
    out=$1; shift
    nvcc $FLAGS -arch=$ARCH "$@" -o build/$out >$LOG 2>&1; status=$?
    [ $mode = --gpu ] || [ ! -s $LOG ] || status=1
    if [ $status = 0 ]; then ok "CUDA: $out for $ARCH"; return; fi
    first_error
    bad "CUDA: $out for $ARCH"
    return 1
}

# Each file is compiled on its own, as what the host's compiler makes of the examples needs no GPU.
compile_programs() {
    compile cuda-fast.o $FAST -c paged.cu.c
    compile cuda-bench.o -x cu -DPAGED_FAST -c examples/bench.c &&
        compile cuda-bench build/cuda-bench.o build/cuda-fast.o
    for program in llama replay; do
        cc -O2 -g $CPPFLAGS -c examples/$program.c -o build/cuda-$program.o &&
            compile cuda-$program build/cuda-$program.o build/cuda-fast.o
    done
}

# ---- what the compiled code says ----------------------------------------------------------------

# kernels OUT ARCH ARGUMENTS...: compiles for one generation, and checks that no kernel spills. What
# ptxas says of them is in build/OUT.ptxas.
kernels() {
    out=$1 arch=$2 said=build/$1.ptxas; shift 2
    nvcc $FLAGS -arch=$arch -cubin -Xptxas -v "$@" -o build/$out >$said 2>&1
    status=$?
    number=$(grep -c 'bytes spill' $said)
    if [ $status = 0 ] && [ "$number" -gt 0 ] &&
        ! grep -iE 'warning|[1-9][0-9]* bytes spill' $said; then
        ok "CUDA: $number kernels of $out for $arch: no warning, no spill"
    else
        grep -iE 'error|warning' $said
        bad "CUDA: $out for $arch: see above, or no kernel at all"
    fi
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
    if (!most || !registers) exit 1
    work = last - first + 1
    for (i = first; i < last; i++)
        if (start[i] > first) exit 1  # a loop in it: how often does it run?
    blocks = int(65536 / (128 * int((registers + 7) / 8) * 8))
    if (blocks > 16) blocks = 16
    kb = most * bytes * 32 / 1024
    printf "%d %d %d", work * reads * 4 / kb + 0.5, registers, 4 * blocks * kb / same + 0.5
}'

# count RUNG GROUP KERNEL FILE [GOAL]: a row of the table. Each of the query heads of a group reads
# K and V anew on rung 2; a warp of rung 4 reads them once for all.
count() {
    load=LDG.E.128 bytes=16 same=1 reads=1
    case $1 in 2*) load=LDG.E.U16 bytes=2 same=2 reads=${2#*-} ;; esac
    [ "$reads" != MHA ] || reads=1
    found=$(awk -v name="_Z[0-9]+${3}[0-9]+[A-Z]" -v load=$load -v bytes=$bytes -v reads=$reads \
        -v same=$same "$HOT_LOOP" build/cuda-kernels.ptxas build/$4.sass) ||
        { bad "CUDA: no hot loop found in $3"; return; }
    goal=${5-}
    set -- "$1" "$2" $found
    printf '  %-16s %-6s %12s %10s %16s\n' "$@"
    [ -n "$goal" ] || return 0
    goals="$1, $2 in at most $goal instructions for 4 KB, at least 32 KB in flight"
    if [ "$3" -le "$goal" ] && [ "$5" -ge 32 ]; then ok "CUDA: $goals"; else bad "CUDA: $goals"; fi
}

# Thread blocks of rung 4 for one token of each sequence, by split_length() of fast/gpu.c, and how
# often they fill an H100 or H200, of which registers limit the number.
wave_table() {
    registers=$(awk '/Compiling/ { this = $0 }
        /Used/ && this ~ /attend_mma_f16[0-9]+A/ { sub(/.*Used /, ""); print $1 }' \
        build/cuda-kernels.ptxas)
    {
        printf '#include <stdio.h>\n#define HD\n'
        sed -n '/^enum { MAX_SPLIT/,/^HD static int count_splits/p' fast/gpu.c
        cat <<'END'
int main(void)
{
    int shapes[][2] = {{1, 2048}, {8, 2048}, {64, 2048}, {1, 32768}, {8, 32768}, {64, 32768}};
    int places = 132 * (65536 / (128 * ((REGISTERS + 7) / 8 * 8)));
    printf("Thread blocks of rung 4, 8 KV heads, %d at a time on 132 SMs:\n", places);
    printf("  sequences x tokens   splits of  thread blocks   waves\n");
    for (int i = 0; i < 6; i++) {
        int last = shapes[i][1] - 1;
        int blocks = shapes[i][0] * 8 * count_splits(last);
        printf("  %9d x %-5d %13d %14d %7.2f\n", shapes[i][0], shapes[i][1], split_length(last),
               blocks, (double)blocks / places);
    }
}
END
    } >build/waves.c
    cc -DREGISTERS=$registers build/waves.c -o build/waves 2>$LOG && build/waves ||
        { first_error; bad "CUDA: no table of waves"; }
}

# For sm_90, f16 and head_dim 128. In rung 2 these two are variables; here they are constants.
# Rung 3 has the loop of rung 2.
count_table() {
    command -v nvdisasm >/dev/null || { skip "CUDA: no nvdisasm to count with"; return; }
    sed 's/int dtype = view->[a-z]*.dtype;/int dtype = PAGED_F16;/
        s/int head_dim = view->[a-z]*.head_dim;/int head_dim = 128;/
        s/if (!view->tables) {/if (0) {/' paged.cu.c >build/cuda-plain.cu
    [ "$(diff paged.cu.c build/cuda-plain.cu | grep -c '^>')" = 3 ] ||
        { bad "CUDA: attend_tokens() is not written as checks/cuda.sh expects"; return; }
    nvcc -I. $FLAGS -arch=sm_90 -cubin -DPAGED_NO_MAIN build/cuda-plain.cu -o build/cuda-plain \
        2>$LOG && nvdisasm -c build/cuda-plain >build/cuda-plain.sass 2>$LOG &&
        nvdisasm -c build/cuda-kernels >build/cuda-kernels.sass 2>$LOG ||
        { first_error; bad "CUDA: nvdisasm"; return; }
    echo "Counted in the code of the hot loops, sm_90, f16, head_dim 128:"
    echo "  rung             heads  for 4 KB of K and V  registers  KB in flight per SM"
    for group in MHA GQA-4 GQA-8; do count "2 paged" $group attend_paged cuda-plain; done
    for group in MHA GQA-4 GQA-8; do
        count "4 tensor cores" $group attend_mma_f16 cuda-kernels 300
    done
    count "4 in bf16" GQA-8 attend_mma_bf16 cuda-kernels 300
    count "4, head_dim 64" GQA-8 attend_mma_f16_64 cuda-kernels 350
}

# ---- on a GPU -----------------------------------------------------------------------------------

incomplete=
lacks() { skip "$1: not here"; incomplete="$incomplete, $1"; }

# check_gpu NAME COMMAND...: passes if the command does, and has seen a GPU.
check_gpu() {
    checked=$1; shift
    "$@" >$LOG 2>&1; status=$?
    if grep -qE '^GPU: SKIPPED|^0 passed' $LOG; then bad "$checked: it has seen no GPU"
    elif [ $status = 0 ]; then ok "$checked: $(tail -n 1 $LOG)"
    else first_error; bad "$checked"; fi
}

# A random operation makes about 50 calls of the CUDA runtime, so the GPU does fewer of them.
run_tests() { check_gpu "all tests on the GPU" timeout 500 build/cuda-tests --gpu --ops 60000; }

run_compile() {
    compile cuda-paged -x cu paged.cu.c
    compile cuda-tests -x cu -DPAGED_FAST tests.c
    compile_programs
}

# Tests that start each kernel; under these tools the others would take hours.
run_sanitizer() {
    command -v compute-sanitizer >/dev/null || { lacks "compute-sanitizer for $1"; return; }
    check_gpu "compute-sanitizer $1" timeout 500 compute-sanitizer --tool $1 --error-exitcode 9 \
        build/cuda-tests --gpu --quick rewind_may_end_in_a_shared_block \
        unused_slots_may_hold_anything every_kernel_agrees_with_the_oracle
}

run_bench() { check "the benchmark" timeout 500 build/cuda-bench --quick; cat $LOG; }

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

run_debugger() {
    command -v cuda-gdb >/dev/null || { lacks "cuda-gdb"; return; }
    compile cuda-debug -O0 -G -x cu paged.cu.c || return
    check "cuda-gdb stops in lane 5 of attend_paged" sh -c "
        cuda-gdb -batch -nx -ex 'set cuda break_on_launch none' -ex 'break attend_paged' -ex run \
            -ex 'cuda thread 5' -ex 'info cuda kernels' -ex 'print threadIdx.x' \
            --args build/cuda-debug >build/cuda-gdb.log 2>&1
        cat build/cuda-gdb.log; grep -q '= 5' build/cuda-gdb.log"
}

# True if no source is newer than the last program that run_compile() builds.
built() {
    newer=$(find paged.cu.c paged.h tests.c fast examples -newer build/cuda-replay 2>$LOG) &&
        [ -z "$newer" ]
}

run_parts() {
    echo "GPU: $gpu"
    [ "$1" = compile ] || built || run_compile
    for part in "$@"; do
        case " $PARTS " in *" $part "*) ;; *) echo "$0: no part is called $part" >&2; exit 2 ;; esac
        case $part in
        *check) run_sanitizer $part ;;
        *) run_$part ;;
        esac
    done
    [ -n "$incomplete" ] || finish
    (finish) && echo "incomplete, for want of ${incomplete#, }" && exit 3
    exit 1
}

case $mode in
--all)
    for arch in sm_75 sm_80 sm_90; do
        kernels cuda-plain-$arch $arch -x cu paged.cu.c
        kernels cuda-kernels-$arch $arch $FAST paged.cu.c
    done
    compile_programs
    finish ;;
--gpu)
    shift
    [ -n "$gpu" ] || { missing "CUDA: there is no GPU to run it on"; finish; }
    [ $# -gt 0 ] || set -- $PARTS
    run_parts "$@" ;;
esac
compile cuda-paged -x cu paged.cu.c
compile cuda-tests -x cu -DPAGED_FAST tests.c
kernels cuda-kernels sm_90 $FAST paged.cu.c
[ $failed = 0 ] || finish
wave_table
count_table
check "./paged of nvcc; pools on the CPU need no GPU" build/cuda-paged
check "tests of the nvcc build, on the CPU" build/cuda-tests --cpu --quick \
    random_operations_agree_with_the_oracle tensors_live_where_the_pool_lives \
    a_call_without_memory_changes_nothing only_edits_of_its_sequences_expire_a_plan \
    any_shape_agrees_with_the_oracle
if [ -n "$gpu" ]; then run_tests; else skip "CUDA: there is no GPU to run it on"; fi
finish
