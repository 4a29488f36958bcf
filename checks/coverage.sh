#!/bin/sh
# Which lines and branches of the engine the tests do not reach: paged.cu.c, and with it
# fast/fast.c, compiled with gcc --coverage and run by tests.c. Prints each line that was never
# executed, and each condition one side of which was never taken. Fails if there is such a line.
#
#     sh checks/coverage.sh           the tests, quick
#     LONG=1 sh checks/coverage.sh    also the ones that take minutes in a build like this
#
# A branch that is listed is not wrong. Why they are left:
#
#   - Kernels and attend_tile() are one body with constant arguments, inlined many times over. gcov
#     counts the branches of each copy: `dtype == PAGED_F32` has one side only in the f32 copy, and
#     a loop over one head is never left early. Most of the list is of this kind.
#   - The macros of CUDA: without nvcc, cudaGetDeviceCount(), cudaFree() and the others never fail.
#   - Sizes that no test can have: 2^31 rows in a batch, 65535 splits, which is 33 million tokens,
#     a gather of 2^63 bytes. And in a condition of several, one may hide another: a pool whose
#     records overflow has planes that do.
#   - pool_check() looks twice at some things, and the first look finds all that is wrong.
#   - Arrays of stb_ds: arrlen() asks each time whether the array is NULL, and where one is in use
#     it cannot be.
#   - INVARIANT(a && b) where a test breaks one of the two only.
#   - Without OpenMP, as here, attend_on_cpu() has one thread, and never splits heads among more.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build
. checks/report.sh
OUT=build/coverage
GCC=${GCC:-gcc} GCOV=${GCOV:-gcov}
ROOT=$PWD
if ! command -v "$GCC" >/dev/null || ! command -v "$GCOV" >/dev/null; then
    skip "coverage: no $GCC or no $GCOV"
    finish
fi
rm -rf $OUT && mkdir -p $OUT && cd $OUT || exit 1
LOG=log
"$GCC" -O0 -w --coverage -DT_COVERAGE -DPAGED_FAST ${CPPFLAGS:-} -I"$ROOT" "$ROOT/tests.c" \
    -o tests -lm || exit 1
left_out='cannot_fail|bug_32_bit|bug_longest'
long='shapes_crossed|same_bits|tvm_scripts'
[ "${LONG-}" ] || left_out="$left_out|$long"
tests=$(./tests --list | grep -vE "$left_out")
check "the tests" ./tests --quick $tests
[ $failed = 0 ] || finish
"$GCOV" -b -c -o . tests-tests.gcda >gcov.log 2>/dev/null || "$GCOV" -b -c tests.c >gcov.log

lines=0
for file in paged.cu.c fast.c; do
    [ -f $file.gcov ] || { echo "$file: gcov says nothing"; exit 1; }
    # A branch belongs to the line above it; `branch N never executed` to one never reached.
    awk -F: -v file=$file '
        /^ *[0-9#=-]+\*?:/ {
            number = $2 + 0
            text = substr($0, index($0, $2 ":") + length($2) + 1)
            if ($1 ~ /#####|=====/) missed[++misses] = file ":" number ": never: " text
            if ($1 !~ /-/) compiled++
        }
        /^branch/ {
            branches++
            if ($0 ~ /taken 0|never executed/) {
                untaken++
                if (number != last) partly[++some] = file ":" number ": a side of:" text
                last = number
            }
        }
        END {
            printf "%s: %d of %d lines, %d of %d branches\n", file, compiled - misses, compiled,
                branches - untaken, branches
            for (i = 1; i <= misses; i++) print missed[i]
            for (i = 1; i <= some; i++) print partly[i]
        }' $file.gcov >report
    cat report
    lines=$((lines + $(grep -c ': never: ' report)))
done
if [ $lines = 0 ]; then ok "every line is run"; else bad "$lines lines"; fi
finish
