#!/bin/sh
# Static analysers over the engine and the examples: gcc -fanalyzer, clang-tidy with .clang-tidy,
# cppcheck. Every finding is repaired or answered here, with the reason. What is not installed is
# skipped, aloud. Ends with the usual line.
set -u
cd "$(dirname "$0")/.." || exit 1
OUT=build/lint
mkdir -p $OUT
LOG=$OUT/log
. checks/report.sh
C_FILES="paged.cu.c examples/*.c"
FAST=-DPAGED_FAST  # not for gcc -fanalyzer, which follows the paths through them for minutes

# The answers: `what the message says # why it is no bug`.
cat >$OUT/answers <<'END'
stb_ds.h # not ours
double-.free. of .old. # realloc_or_panic: when realloc fails, the program panics and nothing is freed
invalidPointerCast # one allocation holds a table and then floats, or K and V of any dtype
'draft'|field 'tokens'|field 'prompts'|(llama.c|decoding.h).*Null pointer passed # NULL is the empty array of stb_ds
llama.c.*dereference of NULL .end. # read_prompts() has put a line feed at the end of the text
replay.c.*Dereference of null pointer # likewise: arrays of stb_ds that have as many entries as asked for
replay.c.*signed char.* to .int. # a chain of assignments of 0
replay.c.*leak of FILE # open_output() gives it to its caller, and close_output() closes it
replay.c.*Uninitialized variable: bar # its first `at` characters are filled, and no others printed
bench.c.*Uninitialized variable: samples # a parameter; its first n are filled by the caller
bench.c.*leak of .m\. # manager_create() gives them to its caller, and manager_destroy() frees them
bench.c.*uninitialized value .m\.ns # likewise: an array that its caller fills
bench.c.*integer division # a vector of 4-byte floats: its size is a multiple of 4
bench.c.*Access to field 'length' # the two loops above have filled all of it
bench.c.*'(many|one_seq)' during its initialization # on a GPU they are not asked
llama.c.*'half' is accessed at non-zero # a vector, read as the two halves it has
leak of .<unknown>. # arrays of stb_ds that live as long as the program
nullPointerArithmeticRedundantCheck # arrlen(NULL) is 0, and then the loop is not entered
paged.cu.c.*global variable 'gpu' # the stand-in uses the job during launch() only
paged.cu.c.*Null pointer passed to 1st # realloc_or_panic() does not return NULL
paged.cu.c.*Uninitialized variable: q # its first head_dim elements are filled, and no others read
END
sed 's/ # .*//' $OUT/answers >$OUT/answered

# judge NAME: of what the analyser wrote to $OUT/log, shows what has no answer.
judge() {
    grep -E '(warning|error|portability|performance|style):' $OUT/log | sort -u >$OUT/found
    grep -vE -f $OUT/answered $OUT/found >$OUT/left
    if [ -s $OUT/left ]; then cat $OUT/left; bad "$1"; return; fi
    ok "$1: $(($(wc -l <$OUT/found))) findings, all answered in checks/lint.sh"
}

have() { command -v "$1" >/dev/null || { skip "$1: not here"; return 1; }; }

if have gcc; then
    for file in $C_FILES; do
        gcc -O1 -fanalyzer -Wall -Wextra ${CPPFLAGS:-} -c $file -o $OUT/object.o
    done >$OUT/log 2>&1
    judge "gcc -fanalyzer"
fi
if have clang-tidy; then
    for file in $C_FILES; do
        clang-tidy --quiet $file -- -x c -std=gnu11 $FAST ${CPPFLAGS:-}
    done >$OUT/log 2>/dev/null
    judge "clang-tidy"
fi
if have cppcheck; then
    cppcheck --quiet --std=c11 --enable=warning,performance,portability -D'__has_include(x)=1' \
        $FAST \
        --suppress='*:/usr/*' --template='{file}:{line}: {severity}: {message} [{id}]' \
        $C_FILES >$OUT/log 2>&1
    judge "cppcheck"
fi
finish
