#!/bin/sh
# What is true of the programs as a user meets them. Ends with the usual line.
#
#     sh checks/programs.sh          ./paged, ./tour, the two files of the engine alone: make test
#     sh checks/programs.sh house    other options, llama2.c, make, the pictures
#
# PAGED and TOUR name the programs, COMPILERS the compilers; none: ./paged and ./tour only. LLAMA2C
# names a folder with the run.c of llama2.c, and MODELS one with stories260K.bin and tok512.bin, if
# they are not here.
set -u
cd "$(dirname "$0")/.." || exit 1
PAGED=${PAGED:-./paged}
TOUR=${TOUR:-./tour}
CPPFLAGS=${CPPFLAGS:-}
COMPILERS=${COMPILERS:-gcc clang}
cc=${CC:-cc}
dir=$(mktemp -d "${TMPDIR:-/tmp}/paged-programs-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
LOG=$dir/log
. checks/report.sh

# prints COMMAND...: it succeeds, and prints to $dir/out alone.
prints() {
    "$@" >"$dir/out" 2>"$dir/err" </dev/null && [ -s "$dir/out" ] && [ ! -s "$dir/err" ] && return
    cat "$dir/out" "$dir/err"
    return 1
}

narrow() { awk 'length > 80 { print "too wide: " $0; bad = 1 } END { exit bad }' "$1"; }

# one_screen PROGRAM: what the first look at the engine has to be. Attention differs from the oracle
# by little, but not by 0: that would be none that was measured.
one_screen() {
    prints "$1" && narrow "$dir/out" || return 1
    [ "$(wc -l <"$dir/out")" -le 44 ] || { echo "more than 44 lines"; return 1; }
    grep 'differs by' "$dir/out" >"$dir/differs" && ! grep -v 'e-0[6-9] at most$' "$dir/differs"
}

# ---- ./paged and ./tour --------------------------------------------------------------------------

full() {
    for program in "$PAGED" "$TOUR"; do
        "$program" >/dev/full 2>"$dir/err"
        [ $? = 1 ] || { echo "$program does not fail"; return 1; }
    done
}

# The numbers that the public texts on PagedAttention give, and the maps of the pools, but for those
# that walkthrough.md quotes, which are checked there.
cat >"$dir/numbers" <<'END'
block 5: renowned
2   0.366  0.205                 0.366   7.873  -2.921  -0.371
what attend() returned: yes.
[  2  6 14 ]  counts [ 3 3 1 ]  1 in the last
0  ..3...3..1.1..1.
0  +++++++++++++...................
104 MiB in place of 1040 MiB: 117 blocks, 936.0 MiB saved.
12        13       9          1
Copies: 9 for ten writers.
[ 12  5  3 ]  counts [ 1 1 1 ]  1 in the last
slot 1 of block 3.
0  1111.1.1.1..1...
0  pp......
0  111ppppp
END

whole() {
    prints "$TOUR" && narrow "$dir/out" && cp "$dir/out" "$dir/tour" || return 1
    while read -r number; do
        grep -F -e "$number" "$dir/tour" >"$dir/found" || { echo "not found: $number"; return 1; }
    done <"$dir/numbers"
    ok='[ok] attention within 1e-6 of the oracle; all blocks counted and given back'
    [ "$(grep -cxF "$ok" "$dir/tour")" = 9 ]
}

on_stand_in() { prints "$TOUR" --standin && diff "$dir/tour" "$dir/out"; }

# The whole tour is the legend of --help, and then each scene after a blank line.
scenes() {
    prints "$TOUR" --help && narrow "$dir/out" && grep usage "$dir/out" &&
        sed -n '/^The signs:/,$p' "$dir/out" >"$dir/scenes" || return
    for chapter in 1 2 3 4 6 8 9 10; do
        { echo; "$TOUR" $chapter; } >>"$dir/scenes" || return
    done
    sed 's/^PagedAttention in .* scenes\. //' "$dir/tour" | diff - "$dir/scenes"
}

# refused TEXT ARGUMENT...: in one line, which has the text.
refused() {
    text=$1; shift
    "$TOUR" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    [ $? = 2 ] && [ ! -s "$dir/out" ] && [ "$(wc -l <"$dir/err")" = 1 ] &&
        grep -F -e "$text" "$dir/err"
}

# alone OPTIONS...: each compiler makes ./paged of the two files alone, without a message.
alone() {
    mkdir -p "$dir/alone" && cp paged.cu.c paged.h "$dir/alone"
    for compiler in $COMPILERS; do
        compiles "$compiler" "$@" || { skip "$compiler $*: not here"; continue; }
        rm -f "$dir/alone/paged"
        quietly "$compiler $*" "$compiler" "$@" -Wall -Wextra $CPPFLAGS "$dir/alone/paged.cu.c" \
            -o "$dir/alone/paged" -lm &&
            check "$compiler $*: the two files alone are ./paged" one_screen "$dir/alone/paged"
    done
}

reader() {
    if [ -c /dev/full ]; then check "output to a full disk is a failure" full
    else skip "there is no /dev/full"; fi
    check "paged: one screen" one_screen "$PAGED"
    check "tour: the numbers of the public texts, and [ok] after each pool" whole
    check "tour: the same with --standin" on_stand_in
    check "tour: each scene alone prints its part, and --help the legend" scenes
    check "tour: a chapter that has no scene is refused" refused "5 has no scene; 1-4" 5
    check "tour: a second chapter is refused" refused "'4' is too much" 3 4
    check "tour: an unknown option is refused" refused nonsense --nonsense
    [ "$COMPILERS" = none ] || alone -O2
}

# ---- the engine in other programs ----------------------------------------------------------------

# A program with stb_ds of its own links, and both it and the engine have their maps and arrays.
# Without a stand-in, there is no pool on it.
own_stb() {
    cat >"$dir/own.c" <<END
#define STB_DS_IMPLEMENTATION
#include "$header"
#include "paged.h"
int main(void)
{
    struct { int key, value; } *map = NULL;
    PoolConfig config = {1, 1, 1, 1, 2, PAGED_F32, 0, PAGED_STANDIN};
    Pool *pool;
    Seq *seq;
    hmput(map, 3, 4);
    if (pool_create(&config, &pool) != PAGED_NO_GPU) return 1;
    config.device = PAGED_CPU;
    if (pool_create(&config, &pool) || seq_create(pool, &seq) || seq_append(seq, 2)) return 2;
    arrput(seq->block_table, 5);
    return hmget(map, 3) != 4 || arrlen(seq->block_table) != 3 || arrpop(seq->block_table) != 5;
}
END
    $cc -O1 -I. -DPAGED_NO_STB_DS -DPAGED_NO_STANDIN -DPAGED_NO_MAIN $CPPFLAGS "$dir/own.c" \
        paged.cu.c -o "$dir/own" -lm && "$dir/own"
}

# notices NAME WORDS: ./paged with this mistake fails with these words.
notices() {
    python3 learn/plant.py edit "$1" >"$dir/edited.cu.c" &&
        $cc -O1 -w -I. $CPPFLAGS "$dir/edited.cu.c" -o "$dir/edited" -lm || return
    ! "$dir/edited" >"$dir/out" 2>&1 </dev/null && grep "$2" "$dir/out"
}

# Options under which NaN is not NaN. One that a compiler does not tell by a macro is not refused.
fast_math_is_refused() {
    for option in -Ofast -ffast-math -ffinite-math-only; do
        ! $cc $option $CPPFLAGS -c paged.cu.c -o "$dir/fast.o" 2>"$dir/err" || return
        grep 'assume that there is no NaN' "$dir/err" || return
    done
}

# Two engines in a program, one with other names for the calls, must not share anything else.
only_its_names() {
    $cc -O1 -DPAGED_NO_MAIN $CPPFLAGS -c paged.cu.c -o "$dir/names.o" &&
        nm -g --defined-only "$dir/names.o" | sed 's/.* _*//' | grep -v '^stbds_' >"$dir/names" ||
        return
    sed -n 's/.*[ *]\([a-z_]*\)(.*/\1/p' paged.h >"$dir/calls"
    [ -s "$dir/names" ] && ! grep -vxFf "$dir/calls" "$dir/names"
}

# run.c of llama2.c, with the lines that README.md shows in place of its cache and its attention,
# prints what it did before.
same_text() {
    rm -f "$dir"/part*
    sed -n '/^at the top /,/^```/p' README.md | cut -c24- | awk -v RS= '{ print >"'"$dir"'/part" NR }'
    sed -e "1r $dir/part1" -e "/float\* value_cache;/r $dir/part2" \
        -e "/value_cache = calloc/r $dir/part3" -e "/RunState\* s = &.*->state/r $dir/part4" \
        -e "/int h;/r $dir/part5" -e "/free(s->value_cache)/r $dir/part6" \
        -e 's/|| !s->key_cache || !s->value_cache//' -e '/private(h)/,/^        }/d' -e /_cache/d \
        "$LLAMA2C/run.c" >"$dir/new.c"
    $cc -O2 -w "$LLAMA2C/run.c" -o "$dir/old" -lm &&
        $cc -O2 -w -I. $CPPFLAGS -DPAGED_NO_MAIN "$dir/new.c" paged.cu.c -o "$dir/new" -lm || return
    for prompt in "" "Once upon a time" "Lily saw a dog"; do
        for run in old new; do
            "$dir/$run" "$MODELS/stories260K.bin" -z "$MODELS/tok512.bin" -t 0 -n 300 -i "$prompt" \
                >"$dir/$run.txt" || return
        done
        [ -s "$dir/old.txt" ] && cmp "$dir/old.txt" "$dir/new.txt" || return
    done
}

# ---- the Makefile, the pictures ------------------------------------------------------------------

# In a folder with a space, with stb_ds.h beside paged.cu.c.
builds_quietly() {
    copy="$dir/a copy"
    mkdir -p "$copy" && cp -R Makefile paged.cu.c paged.h fast examples "$header" "$copy" || return
    [ -z "$(cd "$copy" && MAKEFLAGS= CPPFLAGS= make -s tour CFLAGS=-O0 2>&1)" ] && "$copy/tour" 3
}

help_lists_all() {
    MAKEFLAGS= make -s help >"$dir/help" && narrow "$dir/help" &&
        [ "$(grep -c '^  [a-z-]*  *[^ ]' "$dir/help")" = "$(grep -c '^[a-z-]*:.*## ' Makefile)" ]
}

# Only GNU's sed knows a brace that follows a command, and \n and \t in what is inserted.
sed_is_portable() {
    ! grep -e 'sed ' -e ' -e ' Makefile | grep -E '[a-z]\}|\\[nt]'
}

# As Git for Windows clones, for WSL or a container: a script whose lines end in CR does not run.
windows_clone() (
    git -c core.autocrlf=true clone -q . "$dir/clone" && cd "$dir/clone" &&
        MAKEFLAGS= PAGER=cat make -s read N=1 && MAKEFLAGS= make -s check &&
        ! git grep -I -l "$(printf '\r')"
)

bmake_is_told() {
    ! MAKEFLAGS= bmake -n >"$dir/bmake" 2>&1 && head -n 1 "$dir/bmake" | grep 'needs GNU make'
}

without_numpy() {
    ! python3 -S examples/judge.py 2>"$dir/err" && [ "$(wc -l <"$dir/err")" = 1 ] &&
        grep 'numpy is not installed' "$dir/err"
}

# Two are drawn from a trace that is not here. These and steps.svg may have more than 8 KB.
# whole.svg is drawn by hand.
pictures() {
    rm -f build/*.svg
    MAKEFLAGS= make -s pictures TRACE="--generate 200" || return
    for picture in docs/*.svg; do
        drawn=build/${picture#docs/}
        case $picture in
        */life.svg) [ "$(grep -o '<path' $drawn | wc -l)" -gt 20 ] ;;
        */replay-memory.svg) [ "$(tail -n 1 $drawn)" = '</svg>' ] ;;
        */steps.svg) cmp $picture $drawn ;;
        */whole.svg) ;;
        *) cmp $picture $drawn && [ "$(wc -c <$picture)" -le 8192 ] ;;
        esac || { echo "$picture: not what is drawn, or more than 8 KB"; return 1; }
    done
}

house() {
    alone -std=c11 -pedantic -O0
    alone -std=c++20 -O0 -x c++
    # Products of sizes have 64 bits. A compiler that tells where one is cut finds such a place.
    if compiles clang; then
        quietly "no size is cut to 32 bits" clang -fsyntax-only -Wshorten-64-to-32 -DPAGED_FAST \
            -DPAGED_NO_MAIN $CPPFLAGS paged.cu.c && ok "no size is cut to 32 bits unsaid"
    else skip "no clang: sizes that are cut to 32 bits are not looked for"; fi
    check "-Ofast, -ffast-math, -ffinite-math-only are refused" fast_math_is_refused
    if command -v nm >"$LOG"; then check "no global names but those of paged.h" only_its_names
    else skip "no nm: the global names are not looked at"; fi
    header=$($cc $CPPFLAGS -M paged.cu.c | tr ' \\' '\n\n' | grep 'stb_ds\.h$' | head -n 1)
    check "the engine without stb_ds of its own, without a stand-in" own_stb
    [ -n "${MODELS-}" ] || { [ -f tok512.bin ] && MODELS=. || MODELS=../shared/models; }
    if [ -f "${LLAMA2C-.}/run.c" ] && [ -f "$MODELS/stories260K.bin" ] &&
        [ -f "$MODELS/tok512.bin" ]
    then check "llama2.c: the same text with the lines of README.md" same_text
    else skip "llama2.c: no run.c, or no model: LLAMA2C=folder MODELS=folder sh $0 house"; fi
    if command -v bmake >"$LOG"; then check "bmake says that GNU make is needed" bmake_is_told
    else skip "there is no bmake"; fi
    if git rev-parse HEAD >"$LOG" 2>&1; then check "a clone by Git for Windows" windows_clone
    else skip "this is no clone of git: one by Git for Windows is not tried"; fi
    if command -v python3 >"$LOG"; then
        check "judge.py says that numpy is not installed" without_numpy
        python3 learn/plant.py list paged >"$dir/list"
        while read -r name words; do
            check "./paged notices $name" notices "$name" "$words"
        done <"$dir/list"
    else skip "judge.py, mistakes in ./paged: no python3"; fi
    check "make is quiet in a folder with a space, with stb_ds.h in it" builds_quietly
    check "make help lists all targets" help_lists_all
    check "make play needs no sed of GNU" sed_is_portable
    check "the pictures are what make pictures draws" pictures
}

case ${1-} in '') reader ;; *) house ;; esac
finish
