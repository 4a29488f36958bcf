#!/bin/sh
# make test: all parts of the tests, as many at a time as there are processors. What a part prints
# appears when it ends. At the end: what was skipped, and the sum of the parts' closing lines,
# "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 1
out=build/test-$$
mkdir -p $out
trap 'rm -rf "$out"' EXIT
trap 'exit 1' INT TERM

# The longest come first.
cat >$out/parts <<'END'
sh checks/walkthrough.sh
sh checks/cuda.sh
sh checks/learn.sh
build/llama-tests
sh checks/programs.sh
sh checks/golden.sh
sh checks/fuzz.sh
./tests --standin
sh checks/hunts.sh
sh checks/gdb.sh
./tests --cpu
sh checks/replay.sh
./tests-fast --quick --standin every_split_kernel queries_of_any_size scale_and_lse bug_unused_slots extreme_values shapes_crossed
./tests-fast --cpu
END

worker() {
    number=0
    while read -r part; do
        number=$((number + 1))
        mkdir $out/$number 2>/dev/null || continue  # another worker has it
        $part >$out/$number/log 2>&1 </dev/null || echo "FAIL  $part: exit status $?" >>$out/$number/log
        { echo "$ $part"; sed "s/^/  /" $out/$number/log; } >$out/$number/text
        cat $out/$number/text
    done <$out/parts
}

echo "$(wc -l <$out/parts) parts; each is printed when it ends, the first ones after a minute or so"
export OMP_WAIT_POLICY=passive  # threads that spin would starve the others
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
while [ "$jobs" -gt 0 ]; do worker & jobs=$((jobs - 1)); done
wait
if grep -hE '^skip|SKIPPED' $out/*/log >$out/skips; then
    echo "Skipped:"
    sed 's/^/  /' $out/skips
    missing=
    for tool in gcc clang gdb python3 nvcc; do
        command -v $tool >/dev/null || missing="$missing $tool"
    done
    case $missing in *nvcc*) echo "  (nvcc is part of NVIDIA's CUDA Toolkit)" ;; esac
    missing=$(echo "$missing" | sed 's/ nvcc//')
    [ -z "$missing" ] || echo "  to have more of them run: sudo apt-get install$missing"
fi
cat $out/*/log | awk '
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5; parts++ }
    /^FAIL .*: exit status/ { bad = 1 }
    END {
        if (bad && !f) f = 1
        printf "%d passed, %d failed, %d skipped\n", p, f, s
        exit f > 0
    }'
