#!/bin/sh
# make test-all: the tests under sanitizers and valgrind, and with every compiler at hand as C and
# as C++, -O0 to -O3. What cannot run here is skipped, and says so. Ends with the usual line.
set -u
cd "$(dirname "$0")/.."
mkdir -p build
passed=0 failed=0 skipped=0
WARN="-Wall -Wextra"
# stb_ds shifts into the sign bit; that one check of UBSan is off.
SAN="-fsanitize=address,undefined -fno-sanitize=shift-base -fno-sanitize-recover=all"

# Tests that start each kernel; under these tools the stand-in is too slow for all of them.
stand_in="poison table_entries scale_and_lse rewind_into_shared_block bug_unused_slots
          scores_of_minus_infinity speculation_with_samples shapes_vllm"

skip() { echo "skip  $1"; skipped=$((skipped + 1)); }

# check NAME COMMAND...: passes if the command does, and shows what it printed if not.
check() {
    name=$1; shift
    if "$@" >build/log 2>&1; then
        echo "ok    $name: $(tail -n 1 build/log)"; passed=$((passed + 1))
    else
        echo "FAIL  $name"; tail -n 40 build/log; failed=$((failed + 1))
    fi
}

# build OUT COMMAND...: compiles tests.c and the llama that the tests start, without a warning.
build() {
    out=$1; shift
    "$@" $WARN -g tests.c -o "build/$out" -lm &&
    "$@" $WARN -g -DPAGED_NO_MAIN -c paged.cu.c -o "build/$out.o" &&
    "$@" $WARN -g -c examples/llama.c -o "build/$out-llama.o" &&
    "$@" $WARN -g -x none "build/$out.o" "build/$out-llama.o" -o "build/$out-llama" -lm &&
    "$@" $WARN -g -c examples/replay.c -o "build/$out-replay.o" &&
    "$@" $WARN -g -x none "build/$out.o" "build/$out-replay.o" -o "build/$out-replay" -lm &&
    "$@" $WARN -g paged.cu.c -o "build/$out-paged" -lm
}

# variant NAME ARGUMENTS COMMAND...: builds with the command and runs the tests with the arguments.
variant() {
    name=$1 arguments=$2; shift 2
    out=$(echo "$name" | tr -c 'a-zA-Z0-9\n' '_')
    if ! build "$out" "$@" >build/log 2>&1 || [ -s build/log ]; then
        echo "FAIL  $name: does not compile without a word"; head -n 20 build/log
        failed=$((failed + 1)); return
    fi
    check "$name" env MODELS=none PAGED="build/$out-paged" LLAMA="build/$out-llama" "build/$out" $arguments
}

for cc in gcc clang; do
    if ! echo 'int main(void) { return 0; }' | $cc $SAN -x c - -o build/probe 2>/dev/null; then
        skip "sanitizers with $cc: not here"; continue
    fi
    name="$cc, address and undefined behaviour sanitizer"
    variant "$name" "--cpu --quick" $cc -O1 $SAN
    san="build/$(echo "$name" | tr -c 'a-zA-Z0-9\n' '_')"
    check "  the same, on the stand-in for a GPU" "$san" --quick --gpu $stand_in
    check "  replay" env REPLAY="$san-replay" sh checks/replay.sh --quick
    [ $cc = gcc ] || continue
    # Every seed is another run of the random operations.
    for seed in ${SEEDS:-2 3 4}; do
        check "  random operations, seed $seed" "$san" --cpu --seed $seed random
    done
done

# The OpenMP runtime of clang is not instrumented, and need not be: what it calls is.
if echo 'int main(void) { return 0; }' | clang -fsanitize=thread -fopenmp -x c - -o build/probe \
    2>/dev/null && clang -O1 -g -fsanitize=thread -fopenmp -DTHREADS_FROM=0 $WARN tests.c -o build/tsan -lm; then
    check "clang, thread sanitizer, the threads of attend()" \
        env OMP_NUM_THREADS=4 TSAN_OPTIONS=ignore_noninstrumented_modules=1 build/tsan --cpu --quick \
        same_bits_however_cut shapes_vllm shapes_ragged bug_chunked_prefill
else
    skip "thread sanitizer: no clang with OpenMP"
fi

if command -v valgrind >/dev/null; then
    build valgrind gcc -O1 >build/log 2>&1
    check "valgrind" env LLAMA=none PAGED=none \
        valgrind -q --error-exitcode=9 --leak-check=full build/valgrind --cpu --quick
    check "valgrind, on the stand-in for a GPU" env LLAMA=none PAGED=none \
        valgrind -q --error-exitcode=9 --max-stackframe=100000000 build/valgrind --gpu --quick \
        $stand_in
else
    skip "valgrind: not here"
fi

for cc in gcc gcc-10 gcc-11 gcc-13 gcc-14 clang clang-13 clang-15 clang-16 clang-17 clang-18 tcc; do
    command -v $cc >/dev/null || continue
    for opt in "-O0" "-O1" "-O2" "-O3" "-O2 -D_FORTIFY_SOURCE=2" "-O3 -march=native -fopenmp"; do
        echo 'int main(void) { return 0; }' | $cc $opt -x c - -o build/probe 2>/dev/null ||
            { skip "$cc $opt: not here"; continue; }
        devices=--cpu; case $opt in -O2*) devices= ;; esac
        variant "$cc $opt" "--quick $devices" $cc $opt
    done
    for opt in "-O0" "-O2"; do
        variant "$cc $opt, as C++" "--quick --cpu" $cc $opt -x c++
    done
done

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
