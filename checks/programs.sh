#!/bin/sh
# What is true of the programs ./paged and ./tour as a user meets them, of paged.cu.c and
# paged.h alone in a folder, of llama2.c on top of them, and of the pictures. Part of make test. Ends
# with the usual line.
#
#     PAGED=build/paged TOUR=build/tour sh checks/programs.sh
#
# COMPILERS, if it is set, names the compilers to try; none: ./paged and ./tour only. LLAMA2C names
# a folder with the run.c of llama2.c, and MODELS one with stories260K.bin and tok512.bin, if they
# are not here.
set -u
cd "$(dirname "$0")/.." || exit 1
PAGED=${PAGED:-./paged}
TOUR=${TOUR:-./tour}
CPPFLAGS=${CPPFLAGS:-}
COMPILERS=${COMPILERS:-gcc clang}
dir=$(mktemp -d "${TMPDIR:-/tmp}/paged-programs-XXXXXX") || exit 1
stand_in=
trap 'kill $stand_in 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
LOG=$dir/log
. checks/report.sh

# ends STATUS OUT ERR COMMAND...: with this exit status and this many lines to stdout (`some`) and
# stderr. They are in $dir/out and $dir/err.
ends() {
    expected="$1 $2 $3" out=$2; shift 3
    "$@" >"$dir/out" 2>"$dir/err" </dev/null
    got="$? $(wc -l <"$dir/out") $(wc -l <"$dir/err")"
    if [ "$out" = some ]; then got=$(echo "$got" | sed 's/ [1-9][0-9]* / some /'); fi
    [ "$got" = "$expected" ] && return
    echo "expected exit status, lines to stdout and to stderr: $expected; got $got:"
    cat "$dir/out" "$dir/err"
    return 1
}

narrow() { awk 'length > 80 { print "too wide: " $0; bad = 1 } END { exit bad }' "$1"; }

# one_screen PROGRAM: what the first look at the engine has to be. Attention differs from the oracle
# by little, but not by 0: that would be none that was measured.
one_screen() {
    ends 0 some 0 "$1" && narrow "$dir/out" || return 1
    [ "$(wc -l <"$dir/out")" -le 44 ] || { echo "more than 44 lines"; return 1; }
    grep 'differs by' "$dir/out" >"$dir/differs" && ! grep -v 'e-0[6-9] at most$' "$dir/differs"
}

# The longest part runs beside the others.
"$TOUR" --standin >"$dir/standin" 2>&1 </dev/null &
stand_in=$!

# ---- output that cannot be written, and ./paged

full() {
    for program in "$PAGED" "$TOUR"; do
        "$program" >/dev/full 2>"$dir/err"
        [ $? = 1 ] || { echo "$program does not fail"; return 1; }
    done
}
if [ -c /dev/full ]; then check "output to a full disk is a failure" full
else skip "there is no /dev/full"; fi
check "paged: one screen" one_screen "$PAGED"

# ---- ./tour

# The numbers that the public texts on PagedAttention give, and the maps of the pools, but for those
# that walkthrough.md quotes, which are checked there.
cat >"$dir/numbers" <<'END'
250 MiB, 24.4 %. Wasted: 774 MiB a request, 75.6 GiB over 100 requests.
[  0  1  2  3 ]  counts [ 1 1 1 1 ]  12 in the last
next free block is 10.
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
    ends 0 some 0 "$TOUR" && narrow "$dir/out" && cp "$dir/out" "$dir/tour" || return 1
    while read -r number; do
        grep -F -e "$number" "$dir/tour" >"$dir/found" || { echo "not found: $number"; return 1; }
    done <"$dir/numbers"
    ok='[ok] attention within 1e-6 of the oracle; all blocks counted and given back'
    [ "$(grep -cxF "$ok" "$dir/tour")" = 11 ]
}

on_stand_in() { wait $stand_in && stand_in= && diff "$dir/tour" "$dir/standin"; }

help() {
    ends 0 some 0 "$TOUR" --help && narrow "$dir/out" && grep usage "$dir/out" &&
        grep '10  The prefix cache' "$dir/out"
}

# The whole tour is the legend of --help, and then each scene after a blank line.
scenes() {
    "$TOUR" --help | sed -n '/^The signs:/,$p' >"$dir/scenes"
    for chapter in 1 2 3 4 6 8 9 10; do
        { echo; "$TOUR" $chapter; } >>"$dir/scenes" || return
    done
    sed 's/^PagedAttention in .* scenes\. //' "$dir/tour" | diff - "$dir/scenes"
}

# refused TEXT ARGUMENT...: in one line, which has the text.
refused() {
    text=$1; shift
    ends 2 0 1 "$TOUR" "$@" && grep -F -e "$text" "$dir/err"
}

check "tour: the numbers of the public texts, and [ok] after each pool" whole
check "tour: the same with --standin" on_stand_in
check "tour: --help has the scenes" help
check "tour: each scene alone prints its part, and --help the legend" scenes
check "tour: a chapter that has no scene is refused" refused "5 has no scene; 1-4" 5
check "tour: a second chapter is refused" refused "'4' is too much" 3 4
check "tour: an unknown option is refused" refused nonsense --nonsense

[ "$COMPILERS" != none ] || finish

# ---- two files are the engine

alone=$dir/alone
mkdir "$alone"
cp paged.cu.c paged.h "$alone"

# alone NAME COMMAND...: compiles as the README says and runs.
alone() {
    label=$1; shift
    rm -f "$alone/paged"
    # shellcheck disable=SC2086
    quietly "$label" "$@" -Wall -Wextra $CPPFLAGS "$alone/paged.cu.c" -o "$alone/paged" -lm &&
        check "$label: the two files alone are ./paged" one_screen "$alone/paged"
}

first=
for cc in $COMPILERS; do
    command -v "$cc" >/dev/null || { skip "$cc is not installed"; continue; }
    compiles "$cc" || { skip "$cc does not work here"; continue; }
    first=${first:-$cc}
    alone "$cc" "$cc" -O2
    alone "$cc -std=c11" "$cc" -std=c11 -pedantic -O0
    plus="-std=c++20 -x c++"
    if compiles "$cc" $plus; then alone "$cc $plus" "$cc" $plus -O0; else skip "$cc: no C++20"; fi
done
cc=${first:-cc}

# Products of sizes have 64 bits. A compiler that tells where one is cut to 32 finds such a place.
if command -v clang >/dev/null; then
    quietly "no size is cut to 32 bits" clang -fsyntax-only -Wshorten-64-to-32 -DPAGED_FAST \
        -DPAGED_NO_MAIN $CPPFLAGS paged.cu.c && ok "no size is cut to 32 bits unsaid"
else
    skip "no clang: sizes that are cut to 32 bits are not looked for"
fi

# A copy of the header in the folder comes before that of the system, and needs no -I.
stb_beside() {
    cp "$header" "$alone/stb_ds.h"
    $cc -M "$alone/paged.cu.c" | grep -F "$alone/stb_ds.h"
}

# Likewise for make, in a folder with a space, where that of the system is not looked for; nothing
# warns of its macros.
make_beside() {
    beside="$dir/all beside"
    mkdir "$beside" "$beside/examples" && cp examples/*.[ch] "$beside/examples" &&
        cp -R Makefile paged.h tests.c checks fast learn "$header" "$beside" || return
    for file in paged.cu.c examples/util.h; do
        sed 's|<stb/stb_ds.h>|<none.h>|' $file >"$beside/$file"
    done
    made() { MAKEFLAGS= CPPFLAGS= make -s -C "$beside" CC="$cc$1" CFLAGS=-O0 FAST=-DPAGED_FAST $2; }
    mutant() { made " -fsyntax-only" "mutant BUG=cow-never" | grep 'Which tests fail'; }
    quietly "stb_ds.h beside paged.cu.c" made "" "all build/states build/draw" || return
    [ "$python" ] || { skip "stb_ds.h beside paged.cu.c, make mutant: no python3"; return; }
    check "stb_ds.h beside paged.cu.c: make is quiet, and make mutant finds it" mutant
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
    PoolConfig config = {1, 1, 1, 1, 2, PAGED_F32, 0, PAGED_CPU};
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

# notices EDIT: ./paged with this edit of its source says that attention is wrong.
notices() {
    sed "$1" paged.cu.c >"$dir/edited.cu.c"
    ! cmp -s paged.cu.c "$dir/edited.cu.c" || { echo "the edit changes nothing"; return 1; }
    $cc -O1 -w -I. $CPPFLAGS "$dir/edited.cu.c" -o "$dir/edited" -lm || return
    ! "$dir/edited" >"$dir/out" 2>&1 </dev/null && grep 'attention is wrong' "$dir/out"
}

# Without a stand-in, there is no pool on it.
no_standin() {
    echo '#include "paged.h"
int main(void)
{
    PoolConfig config = {1, 1, 1, 1, 1, PAGED_F32, 0, PAGED_STANDIN};
    Pool *pool;
    return pool_create(&config, &pool) != PAGED_NO_GPU;
}' >"$dir/no.c"
    $cc -I. $CPPFLAGS -DPAGED_NO_STANDIN -DPAGED_NO_MAIN "$dir/no.c" paged.cu.c -o "$dir/no" -lm &&
        "$dir/no"
}

# Options under which NaN is not NaN. One that a compiler does not tell by a macro is not refused.
fast_math_is_refused() {
    for option in -Ofast -ffast-math -ffinite-math-only; do
        ! $cc $option $CPPFLAGS -c paged.cu.c -o "$dir/fast.o" 2>"$dir/err" || return
        grep 'assume that there is no NaN' "$dir/err" || return
    done
}

# Two engines in a program, one of them with other names for the calls, must not share anything else.
only_its_names() {
    $cc -O1 -DPAGED_NO_MAIN $CPPFLAGS -c paged.cu.c -o "$dir/names.o" &&
        nm -g --defined-only "$dir/names.o" | sed 's/.* _*//' | grep -v '^stbds_' >"$dir/names" ||
        return
    [ -s "$dir/names" ] || return
    while read -r name; do
        grep -q "[ *]$name(" paged.h || { echo "$name is not in paged.h"; return 1; }
    done <"$dir/names"
}

back='tensor_copy(pool, out, pool_out, QUERIES);'
check "./paged notices that nothing is copied back" notices "s/$back//"
check "./paged notices a NaN" notices "s/$back/$back out[7] = NAN;/"
check "without a stand-in, there is no pool on it" no_standin
check "-Ofast, -ffast-math, -ffinite-math-only are refused" fast_math_is_refused
if command -v nm >/dev/null; then check "no global names but those of paged.h" only_its_names
else skip "no nm: the global names are not looked at"; fi
python=$(command -v python3)
header=$($cc $CPPFLAGS -M "$alone/paged.cu.c" | tr ' \\' '\n\n' | grep 'stb_ds\.h$' | head -n 1)
check "a program that has stb_ds itself links with -DPAGED_NO_STB_DS" own_stb
check "stb_ds.h beside paged.cu.c is found without -I" stb_beside
make_beside

# ---- llama2.c

# run.c, with the lines that README.md shows in place of its cache and its attention, prints what it
# did before.
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

[ -n "${MODELS-}" ] || { [ -f tok512.bin ] && MODELS=. || MODELS=../shared/models; }
for file in "${LLAMA2C-.}/run.c" "$MODELS/stories260K.bin" "$MODELS/tok512.bin" ""; do
    [ -f "$file" ] || break
done
if [ -z "$file" ]; then check "llama2.c: the same text with the lines of README.md" same_text
else skip "llama2.c: no $file: LLAMA2C=folder MODELS=folder sh checks/programs.sh"; fi

# ---- the Makefile, and a clone

# A copy of what make needs, with a compiler for WebAssembly that only leaves a file, and a sed that
# refuses what only GNU's knows: a brace that follows a command, \n and \t in what is inserted.
tree=$dir/tree
mkdir -p "$tree/build" "$tree/bin"
cp -R Makefile paged.cu.c paged.h tests.c fast examples checks $(ls stb_ds.h 2>/dev/null) "$tree"
cat >"$tree/wasm" <<'END'
#!/bin/sh
while [ $# -gt 1 ]; do shift; done
echo wasm >"$1"
END
cat >"$tree/bin/sed" <<END
#!/bin/sh
for word; do
    case \$word in *[a-z]}* | *\\\\[nt]*) echo "only GNU's sed knows: \$word" >&2 && exit 1 ;; esac
done
exec $(command -v sed) "\$@"
END
chmod +x "$tree/bin/sed" "$tree/wasm"

# there TARGET...: make in this copy, with its sed.
there() { (cd "$tree" && MAKEFLAGS= PATH=$tree/bin:$PATH make -s "$@"); }

help_lists_all() {
    there help >"$dir/help" && narrow "$dir/help" &&
        [ "$(grep -c '^  [a-z-]*  *[^ ]' "$dir/help")" = "$(grep -c '^[a-z-]*:.*## ' Makefile)" ]
}

page_has_all_parts() {
    there play WASM=./wasm PAGE=build/play.html && ! grep '^PLAY_' "$tree/build/play.html"
}

quick_starts_kernels() {
    sed 's/^    gpu.name = name;/& fprintf(stderr, "[%s]", name);/' paged.cu.c >"$tree/paged.cu.c"
    [ ! -x build/states ] || cp build/states "$tree/build"
    there quick >"$dir/quick" 2>&1 || return
    sed -n 's/^__global__ static void \([a-z_0-9]*\)(.*/\1/p' paged.cu.c fast/gpu.c >"$dir/kernels"
    [ -s "$dir/kernels" ] || return
    while read -r kernel; do
        grep -F "[$kernel]" "$dir/quick" >"$dir/start" || { echo "not started: $kernel"; return 1; }
    done <"$dir/kernels"
}

bmake_is_told() {
    ! MAKEFLAGS= bmake -n >"$dir/bmake" 2>&1 && head -n 1 "$dir/bmake" | grep 'needs GNU make'
}

# As Git for Windows clones, for WSL or a container: a script whose lines end in CR does not run.
windows_clone() (
    git -c core.autocrlf=true clone -q . "$dir/clone" && cd "$dir/clone" &&
        MAKEFLAGS= PAGER=cat make -s read N=1 && MAKEFLAGS= make -s check &&
        ! git grep -I -l "$(printf '\r')"
)

without_numpy() {
    ! python3 -S examples/judge.py 2>"$dir/err" && [ "$(wc -l <"$dir/err")" = 1 ] &&
        grep 'numpy is not installed' "$dir/err"
}

if command -v bmake >/dev/null; then check "bmake says that GNU make is needed" bmake_is_told
else skip "there is no bmake"; fi
if git rev-parse HEAD >"$LOG" 2>&1; then check "a clone by Git for Windows" windows_clone
else skip "a clone by Git for Windows: $(head -n 1 "$LOG")"; fi
if [ "$python" ]; then
    check "judge.py says that numpy is not installed" without_numpy
    check "plant.py takes names after its options" python3 learn/plant.py mutants --check cow-never
else skip "judge.py, plant.py: no python3"; fi
check "make help lists all targets, with a sed that is not GNU's" help_lists_all
check "make play fills in all parts of the page, with such a sed" page_has_all_parts
check "make quick starts each kernel" quick_starts_kernels

# Two are drawn from a trace that is not here. These and steps.svg may have more than 8 KB.
pictures() {
    rm -f build/*.svg
    MAKEFLAGS= make -s pictures TRACE="--generate 200" || return
    for picture in docs/*.svg; do
        drawn=build/${picture#docs/}
        case $picture in
        */life.svg) [ "$(grep -o '<path' $drawn | wc -l)" -gt 20 ] ;;
        */replay-memory.svg) [ "$(tail -n 1 $drawn)" = '</svg>' ] ;;
        */steps.svg) cmp $picture $drawn ;;
        *) cmp $picture $drawn && [ "$(wc -c <$picture)" -le 8192 ] ;;
        esac || { echo "$picture: not what is drawn, or more than 8 KB"; return 1; }
    done
}
check "the pictures are what make pictures draws" pictures
finish
