#!/bin/sh
# The engine against numpy: golden.py on paged.cu.c as a shared library, plain, and with the fast
# paths at 4, 8 and 16 lanes where the processor has them. Ends with the usual line.
#
#     sh checks/golden.sh [SHAPES]     random shapes for each library; 4 unless told
set -u
cd "$(dirname "$0")/.." || exit 1
shapes=${1:-4}
CC=${CC:-cc}
OUT=build/golden
mkdir -p $OUT
passed=0 failed=0 skipped=0
skip() { echo "skip  $1"; skipped=$((skipped + 1)); }

python=
for candidate in python3 /usr/bin/python3; do
    $candidate -c 'import numpy' 2>/dev/null && python=$candidate && break
done
if [ -z "$python" ]; then
    skip "golden: no python3 with numpy (sudo apt-get install python3-numpy)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

# compile NAME FLAGS: the engine as a library.
compile() {
    # shellcheck disable=SC2086
    $CC $2 -fPIC -shared -DPAGED_NO_MAIN ${CPPFLAGS:-} paged.cu.c -o "$OUT/$1.so" -lm && return
    echo "FAIL  golden: $1 does not compile"
    failed=$((failed + 1))
    return 1
}

# compare NAME LIBRARY ARGUMENTS: the shapes on this library.
compare() {
    # shellcheck disable=SC2086
    $python checks/golden.py "$OUT/$2.so" $3 >"$OUT/log" 2>&1
    grep -v ' passed, ' "$OUT/log"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$OUT/log" || echo "0 passed, 1 failed")
    echo "golden, $1: $line"
    passed=$((passed + ${line%% passed*}))
    line=${line#*passed, }
    failed=$((failed + ${line%% failed*}))
}

# fast LANES SEED FLAGS: the fast paths, compiled for LANES lanes.
fast() {
    compile "fast-$1" "-O1 -DPAGED_FAST $3" && compare "fast, $1 lanes" "fast-$1" "--shapes $shapes --seed $2"
}

has() { grep -qw "$1" /proc/cpuinfo 2>/dev/null; }
compile plain -O1 && compare plain plain "--shapes $shapes" && compare stand-in plain "--shapes 1 --standin"
fast 4 2 ""
if [ "$(uname -m)" = x86_64 ]; then
    if has avx2 && has f16c && has fma; then fast 8 3 "-mavx2 -mf16c -mfma"
    else skip "golden: this processor has no AVX2"; fi
    if has avx512f && has f16c; then fast 16 4 "-mavx512f -mavx512vl -mavx512bw -mf16c -mfma"
    else skip "golden: this processor has no AVX-512"; fi
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
