#!/bin/sh
# Which lines and branches of the engine the tests do not reach: paged.cu.c, and with it oracle.c
# and standin.h, compiled with gcc --coverage and run by tests.c. Prints each line that was never
# executed, and each condition one side of which was never taken. Fails if a line is left.
#
#     sh checks/coverage.sh           the tests, quick, without those that start other programs
#     LONG=1 sh checks/coverage.sh    also the ones that take minutes in a build like this
#
# A branch that is listed is not wrong: some are taken only when a real GPU fails, others only where
# an INVARIANT stops the program.
set -u
cd "$(dirname "$0")/.." || exit 1
OUT=build/coverage
GCC=${GCC:-gcc} GCOV=${GCOV:-gcov}
ROOT=$PWD
if ! command -v "$GCC" >/dev/null || ! command -v "$GCOV" >/dev/null; then
    echo "skip  coverage: no $GCC or no $GCOV"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
rm -rf $OUT && mkdir -p $OUT && cd $OUT || exit 1
"$GCC" -O0 -w --coverage ${CPPFLAGS:-} -I"$ROOT" "$ROOT/tests.c" -o tests -lm || exit 1
left_out='llama|replay|bench|tour|documentation|cannot_fail|bug_32_bit'
long='lane_orders|same_bits|tvm_scripts|beam_search|speculation_(every|leaks)'
[ "${LONG-}" ] || left_out="$left_out|$long"
tests=$(./tests --list | grep -vE "$left_out")
./tests --quick $tests >log 2>&1 || { grep -B3 FAILED log; tail -n 1 log; exit 1; }
tail -n 1 log
"$GCOV" -b -c -o . tests-tests.gcda >gcov.log 2>/dev/null || "$GCOV" -b -c tests.c >gcov.log

lines=0
for file in paged.cu.c fast.c oracle.c standin.h; do
    [ -f $file.gcov ] || { echo "$file: gcov says nothing"; exit 1; }
    # A branch belongs to the line above it; `branch N never executed` to one never reached.
    awk -F: -v file=$file '
        /^ *[0-9#=-]+\*?:/ {
            number = $2 + 0
            text = substr($0, index($0, $2 ":") + length($2) + 1)
            if ($1 ~ /#####|=====/) { missed[++misses] = file ":" number ": never: " text }
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
if [ $lines = 0 ]; then echo "1 passed, 0 failed, 0 skipped"; exit 0; fi
echo "0 passed, 1 failed, 0 skipped"
exit 1
