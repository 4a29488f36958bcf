#!/bin/sh
# make test-all: the tests under sanitizers and valgrind, and with every compiler at hand as C and
# as C++, -O0 to -O3, without the fast paths and with them, at each width of vector that this
# processor has. What cannot run here is skipped, and says so. Ends with the usual line.
#
#     sh checks/all.sh [sanitizers | threads | valgrind | compilers]...
#     COMPILERS="gcc clang" sh checks/all.sh compilers
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build
LOG=build/all.log
. checks/report.sh
WARN="-Wall -Wextra"
SAN="-fsanitize=address,undefined -fno-sanitize-recover=all"
# Only tests.c needs this exception: it hashes pointers with stb_ds, which shifts into the sign bit.
HASH=-fno-sanitize=shift-base
COMPILERS=${COMPILERS:-gcc gcc-10 gcc-11 gcc-13 gcc-14 clang clang-13 clang-15 clang-16 clang-17
           clang-18}

# Tests that start each kernel; under these tools the stand-in is too slow for all of them.
stand_in="scale_and_lse rewind_into_shared_block bug_unused_slots extreme_values every_split_kernel
          shapes_crossed"

# fast WIDTH: the options for the fast paths with vectors of WIDTH floats; empty without them.
fast() {
    case $1 in
    0) echo ;;
    4) echo "-DPAGED_FAST" ;;
    8) echo "-DPAGED_FAST -mavx2 -mf16c -mfma" ;;
    16) echo "-DPAGED_FAST -mavx512f -mf16c -mfma" ;;
    esac
}

# The widths that this processor has. 4 is what it has without an option.
widths() {
    echo 0 4
    grep -qw avx2 /proc/cpuinfo 2>/dev/null && echo 8
    grep -qw avx512f /proc/cpuinfo 2>/dev/null && echo 16
}

# variant NAME ARGUMENTS COMMAND...: builds the tests with the command and runs them.
variant() {
    name=$1 arguments=$2; shift 2
    program=build/$(echo "$name" | tr -c 'a-zA-Z0-9\n' '_')
    quietly "$name" "$@" $WARN -g ${CPPFLAGS:-} tests.c -o "$program" -lm || return 1
    check "$name" "$program" $arguments
}

# programs NAME COMMAND...: llama, replay, paged, tour and hello, and what their tests say.
programs() {
    name=$1; shift
    to=build/san-$1
    quietly "$name" "$@" $WARN -g ${CPPFLAGS:-} -DPAGED_NO_MAIN -c paged.cu.c -o $to.o || return
    for program in llama replay tour hello; do
        quietly "$name, $program" "$@" $WARN -g ${CPPFLAGS:-} examples/$program.c $to.o \
            -o $to-$program -lm || return
    done
    quietly "$name, paged" "$@" $WARN -g ${CPPFLAGS:-} paged.cu.c -o $to-paged -lm || return
    quietly "$name" cc -O1 $WARN checks/llama_tests.c -o build/llama-tests -lm || return
    check "$name: llama" env LLAMA=$to-llama build/llama-tests --quick
    check "$name: replay" env REPLAY=$to-replay OBJECT=$to.o sh checks/replay.sh --quick
    check "$name: paged, tour, hello" env PAGED=$to-paged TOUR=$to-tour HELLO=$to-hello \
        COMPILERS=none sh checks/programs.sh
}

sanitizers() {
    for cc in gcc clang; do
        compiles $cc $SAN || { skip "sanitizers with $cc: not here"; continue; }
        for width in $(widths); do
            name="$cc, address and undefined behaviour sanitizer, fast paths $width wide"
            [ $width = 0 ] && name="$cc, address and undefined behaviour sanitizer"
            variant "$name" "--cpu --quick" $cc -O1 $SAN $HASH $(fast $width) || continue
            [ $width -le 4 ] || continue  # vectors are for the CPU
            check "  the same, on the stand-in for a GPU" "$program" --quick --standin $stand_in
            # Every seed is another run of the random operations.
            for seed in ${SEEDS:-2 3 4}; do
                check "  random operations, seed $seed" "$program" --cpu --seed $seed random
            done
        done
        programs "$cc, sanitizers" $cc -O1 $SAN -DPAGED_FAST
    done
}

# The OpenMP runtime of clang is not instrumented, and need not be: what it calls is.
threads() {
    tsan="clang -O1 -fsanitize=thread"
    compiles $tsan -fopenmp || { skip "thread sanitizer: no clang with OpenMP"; return; }
    export OMP_NUM_THREADS=4 TSAN_OPTIONS=ignore_noninstrumented_modules=1
    variant "thread sanitizer, the threads of attend()" \
        "--cpu --quick same_bits_however_cut shapes_crossed every_split_kernel bug_chunked_prefill" \
        $tsan -fopenmp -DPAGED_FAST -DTHREADS_FROM=0
    for options in "" "-DPAGED_FAST"; do
        name="thread sanitizer, two pools in two threads${options:+, $options}"
        quietly "$name" $tsan $WARN -g $options ${CPPFLAGS:-} checks/threads.c -o build/threads \
            -lm && check "$name" build/threads
    done
}

valgrind_runs() {
    command -v valgrind >/dev/null || { skip "valgrind: not here"; return; }
    quietly "valgrind" gcc -O1 -g ${CPPFLAGS:-} -DPAGED_FAST tests.c -o build/valgrind -lm || return
    check "valgrind" \
        valgrind -q --error-exitcode=9 --leak-check=full build/valgrind --cpu --quick
    check "valgrind, on the stand-in for a GPU" \
        valgrind -q --error-exitcode=9 --max-stackframe=100000000 build/valgrind --standin --quick \
        $stand_in
}

compilers() {
    for cc in $COMPILERS; do
        command -v $cc >/dev/null || continue
        for options in -O0 -O1 -O2 -O3 "-O2 -D_FORTIFY_SOURCE=2" \
            "-O3 -march=native -fopenmp -DPAGED_FAST"; do
            compiles $cc $options || { skip "$cc $options: not here"; continue; }
            devices=--cpu; case $options in -O2*) devices= ;; esac
            variant "$cc $options" "--quick $devices" $cc $options
        done
        for width in $(widths); do
            [ $width = 0 ] && continue
            options="-O2 $(fast $width)"
            compiles $cc $options || { skip "$cc $options: not here"; continue; }
            devices=--cpu; [ $width = 4 ] && devices=
            variant "$cc $options" "--quick $devices" $cc $options
        done
        for options in -O0 -O2 "-O2 -DPAGED_FAST"; do
            variant "$cc $options, as C++" "--quick --cpu" $cc $options -x c++
        done
    done
}

[ $# -gt 0 ] || set -- sanitizers threads valgrind compilers
for part in "$@"; do
    case $part in
    sanitizers | threads | compilers) $part ;;
    valgrind) valgrind_runs ;;
    *) echo "$0: there is no part called $part" >&2; exit 2 ;;
    esac
done
finish
