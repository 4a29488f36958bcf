#!/bin/sh
# Under the sanitizers: damaged files for the program that reads files from elsewhere, and random
# calls of paged.h, which are tests of checks/llama_tests.c and tests.c. Part of make test.
#
#     sh checks/fuzz.sh --look    make check C=fuzz: looks for other files with libFuzzer,
#                                 SECONDS=60 for each target, or for TARGETS="model tokenizer"
#
# Looking needs clang; what it finds stays in build/fuzz. Ends with the usual line.
set -u
cd "$(dirname "$0")/.." || exit 1
TARGETS=${TARGETS:-model tokenizer}
SECONDS=${SECONDS:-60}
CC=${CC:-cc}
CPPFLAGS=${CPPFLAGS:-}
BUILD=build/fuzz
mkdir -p $BUILD
LOG=$BUILD/log
. checks/report.sh

SAN="-fsanitize=address,undefined -fno-sanitize-recover=all"

# seed TARGET: a small file that is right. All weights and scores are 0.
seed() {
    if [ "$1" = model ]; then
        printf '\2\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\3\0\0\0\1\0\0\0'
        head -c 144 /dev/zero
        return
    fi
    printf '\6\0\0\0'
    for text in '<unk>' '<s>' '</s>' ' ' a b ab ba bab aba ' a' ' ab' abab '<0x0A>' '<0x41>' \
        aa bb aab bba abb; do
        printf "\0\0\0\0\\$(printf %o ${#text})\0\0\0%s" "$text"
    done
}

look() {
    found=$BUILD/found-$1
    reader=$(echo "$1" | tr a-z A-Z)
    quietly "$1" clang -O1 -g -w -fsanitize=fuzzer $SAN $CPPFLAGS -DREADER=$reader \
        checks/fuzz_readers.c -o "$BUILD/look-$1" -lm || return
    mkdir -p "$found"
    seed "$1" >"$found/seed"
    if "$BUILD/look-$1" -max_total_time="$SECONDS" -max_len=3000 -close_fd_mask=1 \
        -print_final_stats=1 -artifact_prefix="$BUILD/stops-$1-" "$found" >$LOG 2>&1
    then
        reached=$(grep -a -o 'cov: [0-9]* ft: [0-9]*' $LOG | tail -n 1)
        ok "$1: $(grep -a -o 'Done .*' $LOG), $reached, and nothing stopped it"
    else first_error; bad "$1: see $BUILD/stops-$1-*"; fi
}

# build PROGRAM SOURCE...: compiles it into $BUILD/PROGRAM, without a word.
build() {
    built_as=$1; shift
    quietly "$built_as" $CC -O1 -g -Wall -Wextra $CPPFLAGS "$@" -o "$BUILD/$built_as" -lm
}

if [ "${1-}" = --look ]; then
    compiles clang || { skip "fuzzing: there is no clang"; finish; }
    for target in $TARGETS; do look "$target"; done
    finish
fi
compiles $CC $SAN || { skip "sanitizers: $CC has none, the tests run without"; SAN=; }
build llama-tests -DPAGED_NO_MAIN checks/llama_tests.c paged.cu.c &&
    build llama $SAN -DPAGED_FAST -DPAGED_NO_MAIN examples/llama.c paged.cu.c &&
    check "damaged files" env ASAN_OPTIONS=max_allocation_size_mb=4 LLAMA=$BUILD/llama \
        $BUILD/llama-tests damaged_files_are_refused
build tests $SAN -DPAGED_FAST tests.c &&
    check "random calls" $BUILD/tests --quick random_operations_agree_with_the_oracle \
        any_shape_agrees_with_the_oracle
for reader in MODEL TOKENIZER; do
    quietly "fuzz_readers" $CC -fsyntax-only -Wall -Wextra $CPPFLAGS -DREADER=$reader \
        checks/fuzz_readers.c
done
finish
