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

# library NAME FLAGS ARGUMENTS: the shapes on a library compiled with these flags.
library() {
    name=$1 flags=$2 arguments=$3
    # shellcheck disable=SC2086
    if ! $CC $flags -fPIC -shared -DPAGED_NO_MAIN ${CPPFLAGS:-} paged.cu.c -o "$OUT/$name.so" -lm; then
        echo "FAIL  golden: $name does not compile"; failed=$((failed + 1)); return
    fi
    # shellcheck disable=SC2086
    $python checks/golden.py "$OUT/$name.so" $arguments >"$OUT/log" 2>&1
    grep -v ' passed, ' "$OUT/log"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$OUT/log" || echo "0 passed, 1 failed")
    echo "golden, $name: $line"
    passed=$((passed + ${line%% passed*}))
    line=${line#*passed, }
    failed=$((failed + ${line%% failed*}))
}

has() { grep -qw "$1" /proc/cpuinfo 2>/dev/null; }
library plain "-O2" "--shapes $shapes"
library stand-in "-O2" "--shapes 1 --standin"
case $(uname -m) in
x86_64)
    library fast-4-lanes "-O2 -DPAGED_FAST" "--shapes $shapes --seed 2"
    if has avx2 && has f16c && has fma; then
        library fast-8-lanes "-O3 -mavx2 -mf16c -mfma -DPAGED_FAST" "--shapes $shapes --seed 3"
    else skip "golden: this processor has no AVX2"; fi
    if has avx512f && has f16c; then
        library fast-16-lanes "-O3 -mavx512f -mavx512vl -mavx512bw -mf16c -mfma -DPAGED_FAST" "--shapes $shapes --seed 4"
    else skip "golden: this processor has no AVX-512"; fi
    ;;
*) library fast "-O2 -DPAGED_FAST" "--shapes $shapes --seed 2" ;;
esac
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
