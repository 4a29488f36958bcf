#!/bin/sh
# make test: all parts of the tests, one more at a time than there are processors, as browsers and
# debuggers often wait. What a part prints appears when it ends. At the end: what was skipped, and
# the sum of the parts' closing lines, "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 1
out=build/test-$$
mkdir -p $out
trap 'rm -rf "$out"' EXIT
trap 'exit 1' INT TERM

# The longest come first.
cat >$out/parts <<END
sh checks/play.sh page
sh checks/play.sh engines
python3 checks/walkthrough.py
sh checks/cuda.sh
python3 checks/course.py track
python3 checks/course.py hunts
build/llama-tests
sh checks/programs.sh
python3 checks/golden.py
sh checks/fuzz.sh
./tests-fast --quick --standin
./tests --standin
./tests --cpu
sh checks/replay.sh
python3 checks/true_tales.py
sh checks/check.sh races
sh checks/check.sh lanes
build/states 2 2 2
build/states 3 1 2
build/states 2 1 3
./tests-fast --cpu
END

python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null && python= || python=no

start() {
    case $1$python in
    python3*no) printf 'skip  %s: no python3 from 3.7 on\n0 passed, 0 failed, 1 skipped\n' "$1" ;;
    *) $1 || echo "FAIL  $1: exit status $?" ;;
    esac
}

worker() {
    number=0
    while read -r part; do
        number=$((number + 1))
        mkdir $out/$number 2>/dev/null || continue  # another worker has it
        start "$part" >$out/$number/log 2>&1 </dev/null
        { echo "$ $part"; sed "s/^/  /" $out/$number/log; } >$out/$number/text
        cat $out/$number/text
    done <$out/parts
}

echo "Six to seven minutes on two idle cores, thirteen on one:" \
    "$(wc -l <$out/parts) parts, each printed when it ends."
export OMP_WAIT_POLICY=passive  # threads that spin would starve the others
jobs=${JOBS:-$(($(nproc 2>/dev/null || echo 2) + 1))}
while [ "$jobs" -gt 0 ]; do worker & jobs=$((jobs - 1)); done
wait
if grep -hE '^skip|SKIPPED' $out/*/log >$out/skips; then
    echo "Skipped:"
    sed 's/^/  /' $out/skips
fi
# A part that has failed without saying so, or that has no closing line, is a failure, too.
cat $out/*/log | awk -v parts="$(wc -l <$out/parts)" '
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5; parts-- }
    /^0 passed, 0 failed, 0 skipped$/ { print "FAIL  a part that tests and skips nothing"; bad = 1 }
    /^FAIL .*: exit status/ { bad = 1 }
    END {
        if ((bad || parts != 0) && !f) f = 1
        printf "%d passed, %d failed, %d skipped\n", p, f, s
        exit f > 0
    }'
