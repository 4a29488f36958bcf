#!/bin/sh
# What is true of the programs ./paged, ./tour and ./hello as a user meets them, and of paged.cu.c
# and paged.h alone in a folder. Part of make test. Ends with the usual line.
#
#     PAGED=build/paged TOUR=build/tour HELLO=build/hello sh checks/programs.sh
#
# CPPFLAGS says where stb_ds.h is, if it is not where the system has it. COMPILERS, if it is set,
# names the compilers to try.
set -u
cd "$(dirname "$0")/.." || exit 1
PAGED=${PAGED:-./paged}
TOUR=${TOUR:-./tour}
HELLO=${HELLO:-./hello}
CPPFLAGS=${CPPFLAGS:-}
COMPILERS=${COMPILERS:-gcc gcc-10 gcc-11 gcc-12 gcc-13 gcc-14
           clang clang-13 clang-14 clang-15 clang-16 clang-17 clang-18}
export LC_ALL=C NO_COLOR=1
passed=0 failed=0 skipped=0 stand_in=
dir=$(mktemp -d "${TMPDIR:-/tmp}/paged-programs-XXXXXX") || exit 1
trap 'kill $stand_in 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM

ok() { echo "ok    $1"; passed=$((passed + 1)); }
bad() { echo "FAIL  $1"; failed=$((failed + 1)); }
skip() { echo "skip  $1"; skipped=$((skipped + 1)); }

# check NAME COMMAND...: passes if the command does, and shows what it printed if not.
check() {
    name=$1; shift
    if "$@" >"$dir/log" 2>&1; then ok "$name"; else head -n 30 "$dir/log"; bad "$name"; fi
}

# silent COMMAND...: succeeds without printing anything, as a compiler without a warning does.
silent() { "$@" >"$dir/words" 2>&1 && [ ! -s "$dir/words" ] || { cat "$dir/words"; return 1; }; }

# run COMMAND...: leaves what it printed in $dir/out and $dir/err, its exit status in $status.
run() { "$@" >"$dir/out" 2>"$dir/err" </dev/null; status=$?; }

# ended STATUS OUT ERR: so the last run did. OUT and ERR are a number of lines, `some` or `any`.
ended() {
    printed="$(wc -l <"$dir/out") and $(wc -l <"$dir/err")"
    [ "$status" = "$1" ] && lines "$2" out && lines "$3" err && return
    echo "expected exit status $1, with $2 and $3 lines to stdout and stderr; got $status,"
    echo "with $printed lines:"
    cat "$dir/out" "$dir/err"
    return 1
}

lines() {
    case $1 in
    any) ;;
    some) [ -s "$dir/$2" ] ;;
    *) [ "$(wc -l <"$dir/$2")" -eq "$1" ] ;;
    esac
}

within_80_columns() { awk 'length > 80 { print "too wide: " $0; bad = 1 } END { exit bad }' "$1"; }

# one_screen PROGRAM: what the first look at the engine has to be.
one_screen() {
    run "$1"
    ended 0 some 0 && within_80_columns "$dir/out" || return 1
    [ "$(wc -l <"$dir/out")" -le 40 ] || { echo "more than 40 lines"; return 1; }
    grep -qF '[ok]' "$dir/out" && ! grep FAIL "$dir/out"
}

# refused PROGRAM ARGUMENT...: exit status 2 and one line that names the last argument.
refused() {
    run "$@"
    ended 2 0 1 || return 1
    for last; do :; done
    last=${last#-}; last=${last#-}
    grep -F -e "$last'" "$dir/err" || { echo "expected '$last', got:"; cat "$dir/err"; return 1; }
}

# The longest part runs beside the others.
if [ -x "$TOUR" ]; then
    "$TOUR" --standin >"$dir/standin-out" 2>"$dir/standin-err" </dev/null &
    stand_in=$!
fi

# ---- two files are the engine

alone=$dir/alone
mkdir "$alone"
cp paged.cu.c paged.h "$alone"

# alone NAME COMMAND...: compiles with the command of the README and runs.
alone() {
    label=$1; shift
    rm -f "$alone/paged"
    check "$label: compiles the two files alone without a word" \
        silent "$@" -Wall -Wextra $CPPFLAGS "$alone/paged.cu.c" -o "$alone/paged" -lm
    [ -x "$alone/paged" ] && check "$label: ./paged prints one screen" one_screen "$alone/paged"
}

nvcc_alone() { silent nvcc -x cu -O2 -arch=sm_75 -Xcompiler -Wall,-Wextra $CPPFLAGS \
    -c "$alone/paged.cu.c" -o "$dir/paged.cu.o"; }

seen=" "
first=
for cc in $COMPILERS; do
    program=$(command -v "$cc") || continue
    inode=$(ls -Li "$program" | awk '{ print $1 }')
    case $seen in *" $inode "*) continue ;; esac  # another name of one that was tried
    seen="$seen$inode "
    if ! echo '#include <ucontext.h>
        int main(void) { return 0; }' | $cc -x c - -o "$dir/probe" 2>/dev/null; then
        skip "$cc does not work here"; continue
    fi
    first=${first:-$cc}
    alone "$cc" $cc -O2
    alone "$cc -std=c11" $cc -std=c11 -pedantic -O2
    if echo 'int main() { return 0; }' | $cc -x c++ - -o "$dir/probe" 2>/dev/null; then
        alone "$cc -x c++" $cc -x c++ -O2
    else
        skip "$cc has no C++"
    fi
done
cc=${first:-cc}
if command -v nvcc >/dev/null; then check "nvcc -x cu: without a warning" nvcc_alone
else skip "nvcc is not installed: the two files are not compiled as CUDA"; fi

# A copy of the header in the folder comes before that of the system, and needs no -I.
stb_beside() {
    cp "$header" "$alone/stb_ds.h"
    $cc -M "$alone/paged.cu.c" >"$dir/files"
    $cc -O0 "$alone/paged.cu.c" -o "$alone/paged" -lm && "$alone/paged" &&
        tr ' \\' '\n\n' <"$dir/files" | grep 'stb_ds\.h$' | sort -u >"$dir/headers"
    error=$?
    rm "$alone/stb_ds.h"
    [ $error = 0 ] && echo "$alone/stb_ds.h" | cmp - "$dir/headers"
}

# A program with stb_ds of its own links, and both it and the engine have their maps and arrays.
own_stb() {
    cat >"$dir/own.c" <<END
#define STB_DS_IMPLEMENTATION
#include "$header"
#include "$alone/paged.h"
int main(void)
{
    struct { int key, value; } *map = NULL;
    PoolConfig config = {.num_layers = 1, .num_kv_heads = 1, .head_dim = 1, .block_size = 1,
                         .num_blocks = 2, .dtype = PAGED_F32, .device = PAGED_CPU};
    Pool *pool;
    Seq *seq;
    hmput(map, 3, 4);
    if (pool_create(&config, &pool) || seq_create(pool, &seq) || seq_append(seq, 2)) return 1;
    arrput(seq->block_table, 5);
    return hmget(map, 3) != 4 || arrlen(seq->block_table) != 3 || arrpop(seq->block_table) != 5;
}
END
    $cc -O1 -DPAGED_NO_STB_DS -DPAGED_NO_MAIN $CPPFLAGS "$dir/own.c" "$alone/paged.cu.c" \
        -o "$dir/own" -lm && "$dir/own"
}

header=$($cc $CPPFLAGS -M "$alone/paged.cu.c" | tr ' \\' '\n\n' | grep 'stb_ds\.h$' | head -n 1)
if [ -f "$header" ]; then
    check "stb_ds.h beside paged.cu.c is found without -I" stb_beside
    check "a program that has stb_ds itself links with -DPAGED_NO_STB_DS" own_stb
else
    bad "there is no stb_ds.h: $header"
fi

# ---- output that cannot be written

# full PROGRAM: what it prints goes to a full disk.
full() {
    "$1" >/dev/full 2>"$dir/err"; status=$?
    : >"$dir/out"
    ended 1 0 any
}

for program in "$PAGED" "$TOUR" "$HELLO"; do
    if [ ! -x "$program" ]; then skip "there is no $program: run make first"
    elif [ ! -c /dev/full ]; then skip "there is no /dev/full: $program is not tried on it"
    else check "$program >/dev/full fails" full "$program"; fi
done

# ---- ./paged

says() { grep -qF -e "$1" "$dir/out" "$dir/err" || { cat "$dir/out" "$dir/err"; return 1; }; }
help() { run "$1" --help; ended 0 some 0 && within_80_columns "$dir/out" && says usage; }
no_gpu() { run "$1" --gpu; ended 1 any 1 && says GPU; }

[ ! -x "$PAGED" ] || check "paged: one screen" one_screen "$PAGED"

# ---- ./tour

golden=checks/tour.txt

# The numbers that the public texts on PagedAttention give are in the expected output, so it cannot
# be replaced by another without notice.
cat >"$dir/numbers" <<'END'
= 524288 bytes
512 KiB
180.4 GB of
about 60 GB
reserves 1024 MiB
250 MiB, 24.4 %
774 MiB a request, 75.6 GiB
request 0: 320 tokens in 20 blocks,
request 1:  48 tokens in  3 blocks,
request 2: 160 tokens in 10 blocks,
request 3:  96 tokens in  6 blocks,
request 4: 272 tokens in 17 blocks,
56 used, 456 free, 10.9 %
53 used, 459 free, 10.4 %
next request starts in block 20.
Counts of 11:
13 blocks in place of 130;
104 MiB in place of 1040 MiB: 117 blocks, 936.0 MiB saved.
The nine others still read block 12; its count is 10.
Copies: 9 for ten writers.
0         1      16
1         5      16
2         3       6
[  0  1  2  3 ]  counts [ 1 1 1 1 ]  12 in the last
[  4  5  x  x ]  counts [ 1 1 ]  16 in the last
[  6  7  8  x ]  counts [ 1 1 1 ]  8 in the last
[  9  x  x  x ]  counts [ 1 ]  12 in the last
next free block is 10.
block 7: Alan Turing is a
block 1: computer scientist and mathematician
block 5: renowned
[  7  2 ]  counts [ 1 1 ]  2 in the last
[  7  2 ]  counts [ 1 1 ]  3 in the last
[ 12  5  3 ]  counts [ 1 1 1 ]  1 in the last
slot 1 of block 3.
moves all 18.
[  2  6  9 ]  counts [ 3 3 1 ]  1 in the last
[  2  6 11 ]  counts [ 3 3 1 ]  1 in the last
[  2  6 14 ]  counts [ 3 3 1 ]  1 in the last
both see:  A [  0  1 ]  counts [ 2 2 ]
A wrote:   A [  0  2 ]  counts [ 2 1 ]
B wrote:   A [  0  2 ]  counts [ 2 1 ]
Copies: 1. A saw a count of 2
what attend() returned: yes.
END
numbers() {
    while IFS= read -r number; do
        grep -qF -e "$number" $golden || { echo "not there: $number"; return 1; }
    done <"$dir/numbers"
    within_80_columns $golden && ! grep FAILED $golden
}

scene() {
    awk -v RS= -v n="$1" 'NR == n + 1' $golden >"$dir/expected"
    run "$TOUR" "$1"
    ended 0 some 0 && diff "$dir/expected" "$dir/out" && grep "^$1\. " "$dir/out"
}

scenes() { for n in 1 2 3 4 5 6 7 8 9 10; do scene $n || return 1; done; }

legend() {
    help "$TOUR" && says '10  The prefix cache' || return 1
    awk -v RS= 'NR == 1' $golden | tail -n +2 >"$dir/expected"
    [ -s "$dir/expected" ] &&
        tail -n "$(wc -l <"$dir/expected")" "$dir/out" | diff "$dir/expected" -
}

whole() { run "$TOUR"; ended 0 some 0 && diff $golden "$dir/out"; }
on_stand_in() {  # it was started at the beginning
    wait "$stand_in"; status=$? stand_in=
    mv "$dir/standin-out" "$dir/out" && mv "$dir/standin-err" "$dir/err"
    ended 0 some 0 && diff $golden "$dir/out"
}

# A standard input that has ended does not hang.
stepwise() {
    run "$TOUR" --step 3
    ended 0 some 0 && says '[return]' && sed 's/\[return\] //' "$dir/out" >"$dir/out-3" &&
        awk -v RS= 'NR == 4' $golden | diff - "$dir/out-3"
}

check "tour: checks/tour.txt has the numbers of the public texts" numbers
if [ -x "$TOUR" ]; then
    check "tour: prints checks/tour.txt" whole
    check "tour: the same with --standin" on_stand_in
    check "tour: --gpu without a GPU" no_gpu "$TOUR"
    check "tour: each scene alone prints its part" scenes
    check "tour: --help has the scenes and the legend" legend
    check "tour: --step" stepwise
    for argument in 0 11 -1 x 1x "" --nonsense; do
        check "tour: '$argument' is refused in one line" refused "$TOUR" "$argument"
    done
    check "tour: a second scene is refused" refused "$TOUR" 3 4
else
    skip "there is no $TOUR: run make first"
fi

# ---- the pictures

draw() { "$dir/draw" blocks >"$dir/blocks.svg" && cmp docs/blocks.svg "$dir/blocks.svg"; }
life() { "$dir/draw" life >"$dir/life.svg" && [ "$(tail -n 1 "$dir/life.svg")" = '</svg>' ] &&
    [ "$(grep -c 'fill="hsl' "$dir/life.svg")" -gt 100 ]; }
no_trace() { run "$dir/draw" life "$dir/none.csv"; ended 1 0 1; }

if silent ${CC:-cc} $CPPFLAGS -Wall -Wextra -DPAGED_NO_MAIN examples/draw.c paged.cu.c -o "$dir/draw" -lm
then
    check "draw: docs/blocks.svg is what it draws" draw
    check "draw: the life of a pool" life
    check "draw: a trace that is not there" no_trace
else
    bad "draw: compiles"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
