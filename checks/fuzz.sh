#!/bin/sh
# Fuzzing: random calls of paged.h against the oracle, and random files for the programs that read
# files from elsewhere. The targets are checks/fuzz_api.c and checks/fuzz_readers.c.
#
#     sh checks/fuzz.sh           part of make test: all inputs of checks/corpus once, and faults.c
#     sh checks/fuzz.sh --look    make fuzz: looks for new inputs with libFuzzer, SECONDS=60 for
#                                 each target, or for TARGETS="api model tokenizer trace"
#
# Looking needs clang; what it finds stays in build/fuzz. An input that stops a target becomes part
# of checks/corpus/TARGET when its bug is repaired. Ends with the usual line.
set -u
cd "$(dirname "$0")/.." || exit 1
TARGETS=${TARGETS:-api model tokenizer trace}
SECONDS=${SECONDS:-60}
BUILD=build/fuzz
mkdir -p $BUILD
LOG=$BUILD/log
. checks/report.sh

SAN="-fsanitize=address,undefined -fno-sanitize-recover=all"

# build TARGET COMMAND...: compiles the target into $BUILD/TARGET, without a word.
build() {
    target=$1; shift
    case $target in
    api) source="-DPAGED_FAST checks/fuzz_api.c" ;;
    faults) source=checks/faults.c ;;
    *) source="-DREADER=$(echo "$target" | tr a-z A-Z) checks/fuzz_readers.c" ;;
    esac
    quietly "$target" "$@" -g ${CPPFLAGS:-} $source -o "$BUILD/$target" -lm
}

look() {
    printf '#include <stdint.h>\n#include <stddef.h>
        int LLVMFuzzerTestOneInput(const uint8_t *d, size_t n) { return d && n > 1000; }' |
        clang -fsanitize=fuzzer -x c - -o $BUILD/probe >/dev/null 2>&1 ||
        { skip "fuzzing: there is no clang with libFuzzer"; return; }
    for target in $TARGETS; do
        build "$target" clang -O1 -w -fsanitize=fuzzer $SAN -DLIBFUZZER || continue
        mkdir -p $BUILD/found-$target
        if $BUILD/$target -max_total_time=$SECONDS -max_len=3000 -close_fd_mask=1 \
            -print_final_stats=1 -artifact_prefix=$BUILD/stops-$target- $BUILD/found-$target \
            checks/corpus/$target >$LOG 2>&1
        then
            reached=$(grep -a -o 'cov: [0-9]* ft: [0-9]*' $LOG | tail -n 1)
            ok "$target: $(grep -a -o 'Done .*' $LOG), $reached, and nothing stopped it"
        else first_error; bad "$target: see $BUILD/stops-$target-*"; fi
    done
}

if [ "${1-}" = --look ]; then look; finish; fi

CC=${CC:-cc}
mkdir -p build
compiles $CC $SAN || { skip "the corpus under the sanitizers: $CC has none, it runs without"; SAN=; }
for target in $TARGETS; do
    build "$target" $CC -O0 -Wall -Wextra $SAN || continue
    if [ ! -d checks/corpus/$target ]; then skip "$target: it has no corpus"; continue; fi
    check "corpus of $target" $BUILD/$target checks/corpus/$target/*
done
build faults $CC -O1 -Wall -Wextra && check "faults" $BUILD/faults && sed '$d' $LOG
finish
