#!/bin/sh
# Other machines: the core tests as 32-bit x86, as AArch64 and as big-endian s390x under qemu, and
# with musl instead of glibc. What is not installed is skipped, aloud. Ends with the usual line.
#
#     sh checks/portability.sh [x86-32 | aarch64 | s390x | musl]...
#
# On Debian: gcc-12-multilib libc6-dev-i386 qemu-user-static gcc-12-aarch64-linux-gnu
# libc6-dev-arm64-cross gcc-12-s390x-linux-gnu libc6-dev-s390x-cross musl-tools libstb-dev
set -u
cd "$(dirname "$0")/.." || exit 1
OUT=build/portability
mkdir -p $OUT/include
LOG=$OUT/log
. checks/report.sh
# A test that starts the tests themselves; and those that take too long in an emulator.
LEFT_OUT="tests_that_cannot_fail|bug_32_bit|bug_longest"
SLOW="same_bits_however_cut|shapes_|tvm_scripts|beam_search"

probe() { printf '#include <math.h>\n#include <stdio.h>\nint main(void) { return 0; }' |
    "$@" -x c - -o $OUT/probe -lm >/dev/null 2>&1; }

# Compilers for other systems do not look where the headers of this one are.
for folder in /usr/include/stb /usr/local/include/stb; do
    [ -d $folder ] && ln -sfn $folder $OUT/include/stb
done

# variant NAME EMULATOR LEAVE_OUT COMMAND...: builds the tests and runs those that fit.
variant() {
    name=$1 emulator=$2 leave_out=$3; shift 3
    program=$OUT/$(echo "$name" | tr -c 'a-zA-Z0-9\n' '_')
    if ! command -v "$1" >/dev/null || ! probe "$@"; then skip "$name: no $* that works"; return; fi
    if [ "$emulator" ] && ! command -v "$emulator" >/dev/null; then
        skip "$name: no $emulator"; return
    fi
    quietly "$name" "$@" -g -Wall -Wextra ${CPPFLAGS:-} -isystem $OUT/include tests.c $more \
        -o "$program" -lm || return
    tests=$($emulator "$program" --list | grep -vE "$leave_out")
    check "$name" $emulator "$program" --quick --cpu $tests
    [ "$kernels" ] && check "$name, the kernels" $emulator "$program" --quick --standin $kernels
}

x86_32() {
    for cc in gcc clang; do
        for opt in -O0 -O2; do
            for fast in "" -DPAGED_FAST; do
                variant "x86-32, $cc $opt${fast:+ $fast}" "" "$LEFT_OUT" \
                    $cc -m32 -msse2 -mfpmath=sse $opt $fast
            done
        done
    done
    variant "x86-32, gcc -O2 -DPAGED_FAST, x87" "" "$LEFT_OUT" gcc -m32 -O2 -DPAGED_FAST
}

emulated() {  # NAME TRIPLE
    for version in "" -14 -13 -12; do
        command -v $2-gcc$version >/dev/null && break
    done
    for fast in "" -DPAGED_FAST; do
        variant "$1, $2-gcc$version${fast:+ $fast}" "qemu-$1-static" "$LEFT_OUT|$SLOW" \
            $2-gcc$version -O2 -static $fast
    done
}

musl() {
    # musl has no makecontext(), with which the stand-in for a GPU begins its lanes. So these tests
    # are built with one that aborts, and run on the CPU only.
    cat >$OUT/no_ucontext.c <<'END'
#include <stdlib.h>
int getcontext(void *c) { (void)c; abort(); }
int setcontext(const void *c) { (void)c; abort(); }
int swapcontext(void *c, const void *d) { (void)c, (void)d; abort(); }
void makecontext(void *c, void (*f)(void), int n, ...) { (void)c, (void)f, (void)n; abort(); }
END
    more=
    if echo '#include <ucontext.h>
        int main(void) { return getcontext(0); }' |
        musl-gcc -x c - -o $OUT/probe >/dev/null 2>&1
    then :; else
        kernels= more="-x c -fno-builtin $OUT/no_ucontext.c"
        command -v musl-gcc >/dev/null &&
            skip "musl has no ucontext: nothing is run on the stand-in for a GPU"
    fi
    variant "musl, static" "" "$LEFT_OUT" musl-gcc -O2 -static
    variant "musl, static -DPAGED_FAST" "" "$LEFT_OUT" musl-gcc -O2 -static -DPAGED_FAST
    more= kernels=$KERNELS
}

KERNELS="scale_and_lse every_split_kernel"  # they start each kernel
more= kernels=$KERNELS
[ $# -gt 0 ] || set -- x86-32 aarch64 s390x musl
for which in "$@"; do
    case $which in
    x86-32) x86_32 ;;
    aarch64) emulated aarch64 aarch64-linux-gnu ;;
    s390x) emulated s390x s390x-linux-gnu ;;
    musl) musl ;;
    *) echo "$0: no machine is called $which" >&2; exit 2 ;;
    esac
done
finish
