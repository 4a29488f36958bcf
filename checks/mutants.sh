#!/bin/sh
# Plants the bugs of checks/bugs.txt in the engine, one at a time, and runs the tests on each. A bug
# that no test catches is a hole in the tests.
#
#     sh checks/mutants.sh                all of them, two at a time (JOBS=4: four)
#     sh checks/mutants.sh NAME...        these
#     sh checks/mutants.sh --list         their names
#     sh checks/mutants.sh --build NAME   builds one, shows the line, and says how to watch it
#     sh checks/mutants.sh --check        does each still have its place, and compile? Runs nothing
#
# A mutant is a folder in build/mutants with a copy of tests.c and the changed engine beside it,
# which is where tests.c looks for it first. A bug in fast/ is built with -DPAGED_FAST, the others
# without. First the engine as it is must pass the same tests in both ways. Each mutant prints a
# line: the first test that fails, where it ran (cpu or standin), and what was reported. Ends with
# the usual line: a bug caught is a pass, one that survives a failure.
set -u
cd "$(dirname "$0")/.." || exit 1
BUGS=${BUGS:-checks/bugs.txt}
OUT=build/mutants
CC=${CC:-cc}
from=.
JOBS=${JOBS:-2}
# Schedules that take the stand-in minutes and find what shorter tests find.
LEFT_OUT="bug_tests_that_cannot_fail tvm_scripts"
SECONDS_EACH=60  # of processor time for a test; what takes longer hangs

# With as many lanes as this processor has.
NATIVE=-march=native
echo 'int main(void) { return 0; }' | $CC $NATIVE -x c - -o /dev/null 2>/dev/null || NATIVE=

# The fields of a line of bugs.txt: name, old, new, and perhaps "expect ...".
FIELDS='
function field(i) { sub(/^[ \t]+/, "", f[i]); sub(/[ \t]+$/, "", f[i]); return f[i] }
function bug(line) {
    if (line ~ /^[ \t]*(#|$)/) return ""
    count = split(line " ", f, " [|] ")
    name = field(1); old = field(2); new = field(3); expect = count > 3 ? field(4) : ""
    return name
}'

names() { awk "$FIELDS"'bug($0) { print name }' $BUGS; }

# Writes the engine with bug $1 to $OUT/$1, and says where it is. "unchanged" is the engine as it is.
plant() {
    rm -rf "${OUT:?}/$1" && mkdir -p "$OUT/$1/fast" || return 1
    for file in tests.c paged.h paged.cu.c fast/fast.c; do
        cp "$from/$file" "$OUT/$1/$file" || return 1
    done
    [ "$1" = unchanged ] && return
    awk -v wanted="$1" -v out="$OUT/$1" "$FIELDS"'
        FNR == 1 { file = file == "" ? "table" : file == "table" ? "paged.cu.c" : "fast/fast.c" }
        file == "table" {
            if (bug($0) != wanted) next
            if (found++) error = "the name occurs twice in the table"
            if (count < 3 || count > 4 || old == "" || old == new) error = "not `name | old | new`"
            if (count == 4 && sub(/^expect +/, "", expect) == 0) error = "field 4 is not `expect TEXT`"
            o = old; n = new
            gsub(/\\n/, "\n", o); gsub(/\\n/, "\n", n)
            shown = old "  ->  " new
            next
        }
        { text[file] = text[file] $0 "\n" }
        END {
            for (file in text)
                for (rest = text[file]; found && (at = index(rest, o)) > 0;) {
                    before = substr(text[file], 1, length(text[file]) - length(rest) + at - 1)
                    rest = substr(rest, at + length(o))
                    line = gsub(/\n/, "\n", before) + 1
                    place = file; changed = before n rest
                    times++
                }
            if (!found) error = "no such bug in the table"
            else if (!error && times != 1) error = "`" o "` occurs " times + 0 " times"
            if (!error) printf "%s", changed >(out "/" place)
            print error ? error : place ":" line ": " shown
            exit error != ""
        }' $BUGS "$from/paged.cu.c" "$from/fast/fast.c"
}

compile() {  # NAME WHERE
    case $2 in fast/*) set -- "$1" -DPAGED_FAST $NATIVE ;; *) set -- "$1" ;; esac
    name=$1; shift
    $CC -O1 -g -w ${CPPFLAGS:-} "$@" "$OUT/$name/tests.c" -o "$OUT/$name/tests" -lm 2>"$OUT/$name/log"
}

# What a run printed, read up to the first failure. Prints nothing if all passed.
JUDGE='
function note(s) {
    gsub(folder "/", "", s)
    all = all " " s
    if (s ~ /(tests|paged\.cu|fast)\.c:[0-9]+: /) report = report (report ? "; " : "") s
}
function result() {
    done = 1
    if (test == "") { print "ERROR: no test has begun"; return }
    for (count = split(expect, text, / & /); count > 0; count--)
        if (!index(all, text[count])) print "MISSED: no `" text[count] "`, but"
    if (length(report) > 170) report = substr(report, 1, 167) "..."
    print "caught by " test " (" device ")" (report ? ": " report : ", which crashes or hangs")
}
/^[a-z][a-z0-9_]* / && substr($0, 33) ~ /^(gpu|   |standin) / {
    test = $1; device = substr($0, 33, 3) == "   " ? "cpu" : "standin"; report = all = ""
    rest = substr($0, 34)
    sub(/^[a-z]* */, "", rest)
    if (rest != "") note(rest)
    next
}
/^  FAILED: / { result(); exit }
/^[0-9]+ passed, 0 failed, / { done = 1 }
{ note($0) }
END { if (!done) result() }'

run_tests() {  # NAME EXPECT ARGUMENTS...
    folder=$OUT/$1 expect=$2; shift 2
    # What the shell itself says of a run that was killed goes to /dev/null.
    { (ulimit -t $SECONDS_EACH; "$folder/tests" "$@" 2>&1); :; } 2>/dev/null |
        awk -v expect="$expect" -v folder="$folder" "$JUDGE"
}

# The tests of a huge pool are skipped under --quick, so they have a run of their own.
judge() {  # NAME EXPECT
    result=$(run_tests "$1" "$2" --quick $TESTS)
    [ "$result" ] || result=$(run_tests "$1" "$2" bug_32_bit_offsets)
}

# Runs mutant $1. Prints one line, the result of which begins with "caught" if all is well.
mutant() {
    where=$(plant "$1") || { printf '%-30s ERROR: %s\n' "$1" "$where"; return; }
    compile "$1" "$where" || { printf '%-30s ERROR: does not compile: %s\n' "$1" \
        "$(awk '/error/ { print; exit }' "$OUT/$1/log")"; return; }
    expect=$(awk -v wanted="$1" "$FIELDS"'
        bug($0) == wanted { sub(/^expect +/, "", expect); print expect }' $BUGS)
    judge "$1" "$expect"
    printf '%-30s %s\n' "$1" "$(echo "${result:-SURVIVED}" | tr '\n' ' ')"
    rm -rf "${OUT:?}/$1"
}

check_mutant() {
    error=$(plant "$1") && error=$($CC -fsyntax-only -w ${CPPFLAGS:-} -DPAGED_NO_MAIN -DPAGED_FAST \
        "$OUT/$1/paged.cu.c" 2>&1) && { rm -rf "${OUT:?}/$1"; return; }
    echo "FAIL  $1: $error"
    return 1
}

case ${1-} in
--list) names; exit ;;
--check)
    passed=0 failed=0
    for name in $(names); do
        if check_mutant "$name"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    done
    echo "$passed passed, $failed failed, 0 skipped"
    [ $failed = 0 ]; exit ;;
--build)
    where=$(plant "${2:?a name}") || { echo "$where"; rm -rf "${OUT:?}/$2"; exit 1; }
    echo "$where"
    compile "$2" "$where" || { cat "$OUT/$2/log"; exit 1; }
    echo "which tests fail:    $OUT/$2/tests --quick"
    echo "one in a debugger:   gdb --args $OUT/$2/tests --quick TEST"
    echo "                     (gdb) break t_fail, or break abort where the program stops; then run"
    exit ;;
esac

OUT=$OUT/run-$$
trap 'rm -rf "$OUT"' EXIT
trap 'exit 1' INT TERM
for where in fast/fast.c paged.cu.c; do
    plant unchanged && compile unchanged $where || { cat $OUT/unchanged/log; exit 1; }
    TESTS=$("$OUT/unchanged/tests" --list | awk -v left_out="$LEFT_OUT" '
        BEGIN { n = split(left_out, out, " ") }
        { for (i = 1; i <= n; i++) if (index($0, out[i]) == 1) next; print }')
    judge unchanged ""
    if [ "$result" ]; then
        echo "the engine as it is fails: $result"
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
done
from=$OUT/unchanged  # all mutants are made from this copy: the sources may be edited meanwhile

[ $# -gt 0 ] || set -- $(names)
job=0
while [ $job -lt "$JOBS" ]; do  # each takes every JOBS-th
    turn=0
    for name in "$@"; do
        [ $((turn % JOBS)) != $job ] || mutant "$name"
        turn=$((turn + 1))
    done &
    job=$((job + 1))
done | awk '
    { print; fflush(); if ($2 == "caught") passed++; else failed++ }
    END { print passed + 0 " passed, " failed + 0 " failed, 0 skipped"; exit failed > 0 }'
