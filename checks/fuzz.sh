#!/bin/sh
# Fuzzing: random calls of paged.h against the oracle, and random files for the programs that read
# files from elsewhere. The targets are checks/fuzz_api.c and checks/fuzz_readers.c; each draws its
# inputs from seeds.
#
#     sh checks/fuzz.sh           part of make test: the inputs of all seeds
#     sh checks/fuzz.sh --look    make check C=fuzz: looks for other inputs with libFuzzer,
#                                 SECONDS=60 for each target, or for TARGETS="api model tokenizer"
#
# Looking needs clang; what it finds stays in build/fuzz. Ends with the usual line.
set -u
cd "$(dirname "$0")/.." || exit 1
TARGETS=${TARGETS:-api model tokenizer}
SECONDS=${SECONDS:-60}
CC=${CC:-cc}
BUILD=build/fuzz
mkdir -p $BUILD
LOG=$BUILD/log
. checks/report.sh

SAN="-fsanitize=address,undefined -fno-sanitize-recover=all"

# build PROGRAM TARGET COMMAND...: compiles the target into $BUILD/PROGRAM, without a word.
build() {
    built_as=$1 target=$2; shift 2
    case $target in
    api) source="-DPAGED_FAST checks/fuzz_api.c" ;;
    *) source="-DREADER=$(echo "$target" | tr a-z A-Z) checks/fuzz_readers.c" ;;
    esac
    quietly "$target" "$@" -g ${CPPFLAGS:-} $source -o "$BUILD/$built_as" -lm
}

look() {
    build "look-$1" "$1" clang -O1 -w -fsanitize=fuzzer $SAN -DLIBFUZZER || return
    found=$BUILD/found-$1
    mkdir -p "$found"
    if [ "$1" != api ]; then
        build "$1" "$1" "$CC" -O1 || return
        "$BUILD/$1" "$found" >$LOG || { bad "$1: writes no inputs"; return; }
    fi
    if "$BUILD/look-$1" -max_total_time="$SECONDS" -max_len=3000 -close_fd_mask=1 \
        -print_final_stats=1 -artifact_prefix="$BUILD/stops-$1-" "$found" >$LOG 2>&1
    then
        reached=$(grep -a -o 'cov: [0-9]* ft: [0-9]*' $LOG | tail -n 1)
        ok "$1: $(grep -a -o 'Done .*' $LOG), $reached, and nothing stopped it"
    else first_error; bad "$1: see $BUILD/stops-$1-*"; fi
}

if [ "${1-}" = --look ]; then
    compiles clang || { skip "fuzzing: there is no clang"; finish; }
    for target in $TARGETS; do look "$target"; done
    finish
fi
compiles $CC $SAN || { skip "sanitizers: $CC has none, the targets run without"; SAN=; }
for target in $TARGETS; do
    build "$target" "$target" $CC -O0 -Wall -Wextra $SAN &&
        check "seeds of $target" "$BUILD/$target"
done
finish
