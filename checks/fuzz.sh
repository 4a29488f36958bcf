#!/bin/sh
# Fuzzing: random calls of paged.h against the oracle, and random files for the programs that read
# files of others. The targets are checks/fuzz_api.c and checks/fuzz_readers.c.
#
#     sh checks/fuzz.sh           part of make test: all inputs of checks/corpus once, and faults.c
#     sh checks/fuzz.sh --look    make fuzz: looks for new inputs with libFuzzer, SECONDS=60 for
#                                 each target, or for TARGETS="api model tokenizer trace"
#
# Looking needs clang; what it finds stays in build/fuzz. An input that stops a target becomes part
# of checks/corpus/TARGET when its bug is repaired. Ends with the usual line.
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 skipped=0
TARGETS=${TARGETS:-api model tokenizer trace}
SECONDS=${SECONDS:-60}
BUILD=build/fuzz
mkdir -p $BUILD

ok() { echo "ok    $1"; passed=$((passed + 1)); }
bad() { echo "FAIL  $1"; tail -n 30 $BUILD/log; failed=$((failed + 1)); }
skip() { echo "skip  $1"; skipped=$((skipped + 1)); }
finish() { echo "$passed passed, $failed failed, $skipped skipped"; [ $failed = 0 ]; exit; }

# stb_ds shifts into the sign bit; that one check of UBSan is off.
SAN="-fsanitize=address,undefined -fno-sanitize=shift-base -fno-sanitize-recover=all"
probe() { echo 'int main(void) { return 0; }' | "$@" -x c - -o $BUILD/probe >/dev/null 2>&1; }

# build TARGET COMMAND...: compiles the target into $BUILD/TARGET.
build() {
    target=$1; shift
    reader=$(echo "$target" | tr a-z A-Z) source=checks/fuzz_readers.c
    [ "$target" = api ] && source=checks/fuzz_api.c
    [ "$target" = faults ] && source=checks/faults.c
    "$@" -g ${CPPFLAGS:-} -DREADER="$reader" $source -o "$BUILD/$target" -lm >$BUILD/log 2>&1
}

if [ "${1-}" = --look ]; then
    printf '#include <stdint.h>\n#include <stddef.h>
        int LLVMFuzzerTestOneInput(const uint8_t *d, size_t n) { return d && n > 1000; }' |
        clang -fsanitize=fuzzer -x c - -o $BUILD/probe >/dev/null 2>&1 ||
        { skip "fuzzing: there is no clang with libFuzzer"; finish; }
    for target in $TARGETS; do
        build "$target" clang -O1 -w -fsanitize=fuzzer $SAN -DLIBFUZZER ||
            { bad "$target does not compile"; continue; }
        mkdir -p $BUILD/found-$target
        if $BUILD/$target -max_total_time=$SECONDS -max_len=3000 -close_fd_mask=1 \
            -print_final_stats=1 -artifact_prefix=$BUILD/stops-$target- $BUILD/found-$target \
            checks/corpus/$target >$BUILD/log 2>&1
        then
            reached=$(grep -a -o 'cov: [0-9]* ft: [0-9]*' $BUILD/log | tail -n 1)
            ok "$target: $(grep -a -o 'Done .*' $BUILD/log), $reached, and nothing stopped it"
        else bad "$target: see $BUILD/stops-$target-*"; fi
    done
    finish
fi

CC=${CC:-cc}
probe $CC $SAN || { skip "the corpus under the sanitizers: $CC has none, it runs without"; SAN=; }
for target in $TARGETS; do
    build "$target" $CC -O0 -Wall -Wextra $SAN || { bad "$target does not compile"; continue; }
    [ -s $BUILD/log ] && { bad "$target compiles with warnings"; continue; }
    if [ ! -d checks/corpus/$target ]; then skip "$target: it has no corpus"; continue; fi
    if $BUILD/$target checks/corpus/$target/* >$BUILD/log 2>&1
    then ok "corpus of $target: $(tail -n 1 $BUILD/log)"
    else bad "corpus of $target"; fi
done
build faults $CC -O1 -Wall -Wextra || { bad "faults does not compile"; finish; }
if $BUILD/faults >$BUILD/log 2>&1; then
    sed '$d' $BUILD/log; ok "faults: $(tail -n 1 $BUILD/log)"
else bad "faults"; fi
finish
