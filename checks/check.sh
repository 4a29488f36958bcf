#!/bin/sh
# make check C=...: the checks that take long, or tools that few have. What is not installed is
# skipped, aloud. Ends with the usual line. Without C: the list.
#
#     SEEDS="5 6" COMPILERS=gcc sh checks/check.sh sanitizers compilers
set -u
cd "$(dirname "$0")/.." || exit 1
OUT=build/check
mkdir -p $OUT
LOG=$OUT/log-$$  # two parts of make test may run at once
. checks/report.sh
WARN="-Wall -Wextra"
SAN="-fsanitize=address,undefined -fno-sanitize-recover=all"
CPPFLAGS=${CPPFLAGS:-}

list() {
    cat <<'END'
make check C=...
  house        what is not in make test and must be right, too: CI runs it
  lint         gcc -fanalyzer and cppcheck: a minute
  sanitizers   address and undefined behaviour, gcc and clang, all vectors
  fuzz         damaged files, random calls, kernels, under sanitizers: part of the house
  lanes        4 and 8 lanes of fast/fast.c: part of the house
  races        races of the kernels, in a thread block and between blocks: part of make test
  shapes       races in each kernel, at each head_dim, dtype and length: minutes
  proof        every head_dim, any two threads: no race, by CBMC: minutes
  threads      the same for more tests, for threads of attend(), pools in two threads
  valgrind     the tests under valgrind
  compilers    all compilers here as C and C++, -O0 to -O3, fast paths or not
  portability  32-bit x86, AArch64, big-endian s390x, musl; macOS, but for running there
  floats       all floats to 16 bits, against the processor's instructions
  cuda         four generations of GPUs, and the benchmark and llama
  planted      mistakes of learn/mistakes.txt: noticed?
  gpu          all checks on a real GPU: PART=tests, DEPS=folder
  bare         both commands of the README in a new Debian: debootstrap, root, a mirror
  all          all of these but house, gpu and bare
END
}

# Tests that start each kernel: for tools under which the stand-in is too slow for all of them.
KERNELS="unused_slots_may_hold_anything extreme_values_agree_with_the_oracle
         every_kernel_agrees_with_the_oracle a_row_has_the_same_bits_in_any_company"
# What takes too long in an emulator.
SLOW="the_same_bits"

# vectors OPTIONS: those options, if this processor has the vectors that they switch on.
vectors() {
    for option in $1; do
        case $option in
        -m*) grep -sqw "${option#-m}" /proc/cpuinfo || { echo lacks$option; return; } ;;
        esac
    done
    echo "$1"
}
WIDTH_8=$(vectors "-DPAGED_FAST -mavx2 -mf16c -mfma")
WIDTH_16=$(vectors "-DPAGED_FAST -mavx512f -mf16c -mfma")

# build NAME COMMAND...: builds the tests as $program with the command.
build() {
    name=$1; shift
    case $* in *lacks-*) skip "$name: not on this processor"; return 1 ;; esac
    program=$OUT/$(echo "$name" | tr -c 'a-zA-Z0-9\n' '_')
    compiles "$@" || { skip "$name: not here"; return 1; }
    quietly "$name" "$@" $WARN -g $CPPFLAGS tests.c -o "$program" -lm
}

# variant ARGUMENTS COMMAND...: builds the tests and runs them.
variant() {
    arguments=$1; shift
    build "$*" "$@" && check "$*" "$program" $arguments
}

# ---- sanitizers, threads, valgrind ---------------------------------------------------------------

# test_programs NAME FOLDER: what the tests of llama, replay, paged and tour say of those there.
test_programs() {
    check "$1: llama" env LLAMA=$2/llama $2/llama_tests --quick
    check "$1: replay" env REPLAY=$2/replay TRACE=none sh checks/replay.sh
    check "$1: paged, tour" env PAGED=$2/paged.cu TOUR=$2/tour COMPILERS=none sh checks/programs.sh
}

# programs NAME COMMAND...: builds and tests them.
programs() {
    name=$1 to=$OUT/san-$2; shift
    mkdir -p $to
    quietly "$name" "$@" $WARN -g $CPPFLAGS -DPAGED_NO_MAIN -c paged.cu.c -o $to/paged.o || return
    for program in llama replay tour; do
        quietly "$name" "$@" $WARN $CPPFLAGS examples/$program.c $to/paged.o -o $to/$program -lm ||
            return
    done
    quietly "$name" "$@" $WARN -g $CPPFLAGS paged.cu.c -o $to/paged.cu -lm || return
    quietly "$name" cc -O1 $WARN $CPPFLAGS -DPAGED_NO_MAIN checks/llama_tests.c paged.cu.c \
        -o $to/llama_tests -lm || return
    test_programs "$name" $to
}

sanitizers() {
    for cc in gcc clang; do
        for options in "-UPAGED_FAST" -DPAGED_FAST "$WIDTH_8" "$WIDTH_16"; do
            variant "--cpu --quick" $cc -O1 $SAN $options || continue
            check "  the same, on the stand-in for a GPU" "$program" --quick --standin $KERNELS
            # Every seed is another run of the random operations.
            for seed in ${SEEDS:-2 3 4}; do
                check "  random operations, seed $seed" "$program" --cpu --seed $seed \
                    random_operations_agree_with_the_oracle
            done
        done
        compiles $cc $SAN && programs "$cc, sanitizers" $cc -O1 $SAN -DPAGED_FAST
    done
}

# What is read from files of others, any order of calls, and the kernels, whose shared memory has a
# red zone behind each array.
fuzz() {
    compiles ${CC:-cc} $SAN || { skip "fuzz: ${CC:-cc} has no sanitizers"; return; }
    quietly "llama" ${CC:-cc} -O1 -g $WARN $SAN $CPPFLAGS -DPAGED_FAST -DPAGED_NO_MAIN examples/llama.c \
        paged.cu.c -o $OUT/fuzz-llama -lm &&
        quietly "llama-tests" ${CC:-cc} -O1 $WARN $CPPFLAGS -DPAGED_NO_MAIN checks/llama_tests.c \
            paged.cu.c -o $OUT/llama-tests -lm &&
        check "damaged files" env ASAN_OPTIONS=max_allocation_size_mb=4 LLAMA=$OUT/fuzz-llama \
            $OUT/llama-tests damaged_files_are_refused
    variant "--quick random_operations_agree_with_the_oracle extreme_values_agree_with_the_oracle
        every_kernel_agrees_with_the_oracle" ${CC:-cc} -O1 $SAN -DPAGED_FAST
}

lanes() {
    for options in -DPAGED_FAST "$WIDTH_8"; do
        variant "--cpu long_sums_keep_their_small_terms float32_ends_where_the_header_says
            equal_scores_of_any_size_weigh_the_same vectors_compute_as_exactly_as_scalars
            extreme_values_agree_with_the_oracle" \
            ${CC:-cc} -O0 $options
    done
}

# tsan NAME ARGUMENTS...: runs $program, which is built for ThreadSanitizer. An old one wants
# addresses that are less random; setarch -R makes them so, where it may.
tsan() {
    name=$1 fixed=; shift
    "$program" --list >"$LOG" 2>&1 || fixed="setarch -R"
    $fixed "$program" --list >"$LOG" 2>&1 || { skip "$name: $(head -n 1 "$LOG")"; return; }
    check "$name" $fixed "$program" "$@"
}

# The races of the kernels, with an order of lanes: 2, those between thread blocks. A test ends at the
# first, and fails. (gcc would make of a memcpy() what ThreadSanitizer does not see.)
find_races() {
    order=$1; shift
    export TSAN_OPTIONS=halt_on_error=1 PAGED_LANE_ORDER=$order
    tsan "races, PAGED_LANE_ORDER=$order: $*" --standin "$@"
    unset PAGED_LANE_ORDER
}
races() {
    build "races" ${CC:-cc} -O1 -fno-builtin-memcpy -fsanitize=thread -DPAGED_FAST || return
    find_races 0 --quick unused_slots_may_hold_anything every_shape_agrees_with_the_oracle
    find_races 2 --quick unused_slots_may_hold_anything
}

# The whole enumeration of shapes. Code of clang takes half the time under ThreadSanitizer.
shapes() {
    compiles clang -fsanitize=thread && cc=clang || cc=${CC:-cc}
    build "every shape" $cc -O1 -fno-builtin-memcpy -fsanitize=thread -DPAGED_FAST || return
    find_races 1 every_shape_agrees_with_the_oracle
}

# The OpenMP runtime of clang is not instrumented, and need not be: what it calls is. Each test runs
# alone, as the sanitizer reports nothing in the children in which several would run.
threads() {
    export OMP_NUM_THREADS=4 TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1"
    build "thread sanitizer" clang -O1 -fsanitize=thread -fopenmp -DPAGED_FAST -DTHREADS_FROM=0 ||
        return
    for test in results_have_the_same_bits_however_cut extreme_values_agree_with_the_oracle \
        every_kernel_agrees_with_the_oracle pools_in_two_threads_are_independent; do
        tsan "thread sanitizer, $test" --quick --cpu $test
    done
    tsan "thread sanitizer, the kernels" --quick --standin $KERNELS
    find_races 2 --quick every_kernel_agrees_with_the_oracle
}

valgrind_runs() {
    command -v valgrind >/dev/null || { skip "valgrind is not installed"; return; }
    build "tests for valgrind" gcc -O1 -DPAGED_FAST || return
    memcheck="valgrind -q --error-exitcode=9 --leak-check=full --max-stackframe=100000000"
    check "valgrind" $memcheck "$program" --cpu --quick
    check "valgrind, on the stand-in for a GPU" $memcheck "$program" --standin --quick $KERNELS
}

# ---- compilers, portability ----------------------------------------------------------------------

compilers() {
    for cc in ${COMPILERS:-gcc gcc-10 gcc-11 gcc-13 gcc-14 clang clang-13 clang-15 clang-16 \
        clang-17 clang-18}; do
        command -v $cc >/dev/null || continue
        for options in -O2 "-O2 -D_FORTIFY_SOURCE=2" "-O2 -DPAGED_FAST"; do
            variant --quick $cc $options
        done
        for options in -O0 -O1 -O3 "-O3 -march=native -fopenmp -DPAGED_FAST" "-O3 $WIDTH_8" \
            "-O3 $WIDTH_16" "-O0 -x c++" "-O2 -x c++" "-O2 -DPAGED_FAST -x c++"; do
            variant "--quick --cpu" $cc $options
        done
    done
}

# machine NAME EMULATOR COMMAND...: the tests that fit, and the kernels.
machine() {
    name=$1 emulator=$2; shift 2
    for fast in "" -DPAGED_FAST; do
        build "$name${fast:+ $fast}" "$@" $fast -isystem $OUT/include || return
        tests=
        [ -z "$emulator" ] || tests=$($emulator "$program" --list | grep -vE "$SLOW")
        check "$name" $emulator "$program" --quick --cpu $tests
        check "  the kernels" $emulator "$program" --quick --standin $kernels
    done
}

# zig TARGET FILE...: compiles these files of $OUT/reader for another system, with zig's compiler.
zig() {
    target=$1 to=$OUT/$1; shift
    mkdir -p $to
    for file in "$@"; do
        needs=
        case $file in
        examples/draw.c) ;;  # which includes the engine, as those of other folders do
        examples/* | learn/hunts.c | checks/llama_tests.c)
            needs="-DPAGED_FAST -DPAGED_NO_MAIN $OUT/reader/paged.cu.c" ;;
        esac
        quietly "$target: $file" python3 -m ziglang cc -target $target -O1 $WARN $CPPFLAGS \
            -isystem $OUT/include -I$OUT/reader $OUT/reader/$file $needs \
            -o $to/$(basename $file .c) -lm || return
    done
    ok "$target: $# programs compile and link"
}

# What zig() has made for musl does what it does elsewhere. zig's own calloc() touches all memory.
musl() {
    to=$OUT/$(uname -m)-linux-musl
    [ "$(uname)" = Linux ] && [ -d $to ] || { skip "musl: not run on this system"; return; }
    check "musl: ./paged" $to/paged.cu
    check "musl: tests" $to/tests --quick --cpu \
        $($to/tests --list | grep -v exactly_its_memory)
    check "musl: the kernels" $to/tests --quick --standin $kernels
    check "musl: states" $to/states 2 1 2
    test_programs "musl" $to
    check "musl: bench" $to/bench --quick
    check "musl: pictures, stages, shows, hunts, exercises" musl_learns
}

musl_learns() {
    for name in table warps; do $to/draw $name | cmp - docs/$name.svg || return; done
    for test in $(sed -n 's/^tests //p' learn/stages.txt); do $to/stage_tests $test || return; done
    for stage in 1 2 3 4 5 6 7 8 9 10 11 12; do $to/show $stage </dev/null || return; done
    for hunt in 1 2 3 4 5 6 7 8 9 10; do $to/hunts $hunt || return; done
    for exercise in learn/[0-9]*.c; do
        $to/$(basename $exercise .c) | grep ': not yet: ' || return
    done
    $to/add
}

# What a reader compiles, for macOS on both processors and for musl, where it is run, too. The copy
# has no file of the reader's; at last `make learn` writes its engine there.
foreign() {
    case $(python3 -m ziglang version 2>/dev/null) in '' | 0.?.* | 0.1[0-3].*)
        skip "macOS, musl: no zig from 0.14 on (0.17.1 was tried): pip install ziglang"; return ;;
    esac
    rm -rf $OUT/reader $OUT/*-macos $OUT/*-musl
    mkdir $OUT/reader
    cp -R paged.h paged.cu.c tests.c checks examples fast learn $OUT/reader
    rm -f $OUT/reader/learn/my-* $OUT/reader/learn/paged.cu.c*
    targets="x86_64-macos aarch64-macos x86_64-linux-musl aarch64-linux-musl"
    all="paged.cu.c tests.c checks/states.c checks/llama_tests.c $(echo examples/[bdlrt]*.c)
         $(cd $OUT/reader && echo learn/*.c)"
    for target in $targets; do zig $target $all; done
    musl
    check "make learn" python3 $OUT/reader/learn/learn.py make
    for target in $targets; do zig $target learn/paged.cu.c learn/stage_tests.c learn/show.c; done
}

# On Debian: gcc-12-multilib libc6-dev-i386 qemu-user-static gcc-12-aarch64-linux-gnu
# libc6-dev-arm64-cross gcc-12-s390x-linux-gnu libc6-dev-s390x-cross libstb-dev
portability() {
    # Compilers for other systems do not look where the headers of this one are.
    mkdir -p $OUT/include
    for folder in /usr/include/stb /usr/local/include/stb; do
        [ -d $folder ] && ln -sfn $folder $OUT/include/stb
    done
    kernels=every_kernel_agrees_with_the_oracle
    foreign
    for cc in gcc clang; do
        for opt in -O0 -O2; do
            machine "x86-32, $cc $opt" "" $cc -m32 -msse2 -mfpmath=sse $opt
        done
    done
    machine "x86-32, gcc -O2, x87" "" gcc -m32 -O2
    for arch in aarch64 s390x; do
        for version in "" -14 -13 -12; do
            command -v $arch-linux-gnu-gcc$version >/dev/null && break
        done
        command -v qemu-$arch-static >/dev/null || { skip "$arch: no qemu-$arch-static"; continue; }
        machine "$arch" qemu-$arch-static $arch-linux-gnu-gcc$version -O2 -static
    done
}

# ---- lint ----------------------------------------------------------------------------------------

# analyse NAME COMMAND...: for each file of C. A tool that does not find the mistake in wrong.c would
# find nothing.
analyse() {
    name=$1; shift
    command -v $1 >/dev/null || { skip "$name is not installed"; return; }
    echo 'int wrong(void) { int *p = 0; return *p; }' >$OUT/wrong.c
    for file in $OUT/wrong.c paged.cu.c examples/*.c; do
        case $file in examples/play.c) continue ;; esac  # it needs what make play writes
        "$@" $file 2>&1
    done | grep -E '(warning|error|portability|performance|style):' | sort -u >$OUT/found-$1
    grep -q check/wrong.c $OUT/found-$1 || { bad "$name misses wrong.c"; return; }
    if grep -v check/wrong.c $OUT/found-$1; then bad "$name"; else ok "$name finds nothing else"; fi
}

lint() {
    # Without the fast paths: it would follow the paths through them for minutes.
    analyse "gcc -fanalyzer" gcc -O1 -fanalyzer $WARN $CPPFLAGS -c -o $OUT/object.o
    analyse cppcheck cppcheck --quiet --std=c11 --enable=warning,performance,portability \
        -D'__has_include(x)=1' -DPAGED_FAST --suppress='*:/usr/*' \
        --template='{file}:{line}: {severity}: {message} [{id}]'
}

# ---- floats --------------------------------------------------------------------------------------

# rounds NAME FLAG_OF_THE_PROCESSOR OPTIONS
rounds() {
    name=$1 flag=$2; shift 2
    grep -sqw $flag /proc/cpuinfo || { skip "$name: this processor has no $flag"; return; }
    compiles cc "$@" || { skip "$name: this compiler has no $flag"; return; }
    quietly "$name" cc -O2 $WARN $CPPFLAGS "$@" checks/floats.c -o $OUT/floats -lm &&
        check "$name" $OUT/floats
}

floats() {
    rounds f32_to_f16 f16c -mf16c
    rounds f32_to_bf16 avx512_bf16 -DBF16 -mavx512vl -mavx512bf16
}

# ---- a bare system -------------------------------------------------------------------------------

# of_readme WORD: runs the block of README.md with this word, in a clone, in the new system. No
# warning is printed. All mounts are in a namespace of their own, and end with it.
of_readme() {
    awk -v word="$1" '/^```sh$/ { on = 1; text = "" } on && /^```$/ { if (text ~ word) print text
        on = 0 } on && !/^```/ { text = text $0 "\n" }' README.md >$system/commands
    [ -s $system/commands ] && unshare --mount --pid --fork --kill-child --mount-proc=$system/proc \
        sh -c 'mount -t devpts devpts $0/dev/pts && exec chroot $0 "$@"' $system env -i HOME=/root \
        PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        sh -ec 'cd "/root/a clone" && . /commands' >$OUT/said 2>&1 </dev/null
    status=$?
    cat $OUT/said
    [ $status = 0 ] && ! grep ' warning: ' $OUT/said
}

# Debian's stable release, or SUITE="--components=main,universe noble" MIRROR=address. What stands
# in for sudo shows what apt-get says if that fails.
bare() {
    for tool in debootstrap unshare git; do
        command -v $tool >/dev/null || { skip "bare: there is no $tool"; return; }
    done
    [ "$(id -u)" = 0 ] || { skip "bare: only root may make a system"; return; }
    system=$(mktemp -d /var/tmp/paged-XXXXXX) || { skip "bare: /var/tmp"; return; }
    trap "rm -rf --one-file-system $system" EXIT
    trap 'exit 1' INT TERM
    unshare --mount debootstrap --variant=minbase ${SUITE:-stable} $system ${MIRROR-} >$LOG 2>&1 ||
        { skip "bare: debootstrap: $(tail -n 1 $LOG)"; return; }
    echo '"$@" >/said 2>&1 || { cat /said; exit 1; }' >$system/usr/local/bin/sudo
    chmod +x $system/usr/local/bin/sudo
    check "bare: a clone" git clone . "$system/root/a clone"
    check "bare: two files, without a warning" of_readme 'cc -O2 paged.cu.c'
    check "bare: make test, without a warning" of_readme 'make test'
}

# ---- which ---------------------------------------------------------------------------------------

# shown NAME COMMAND...: passes if the command does, which prints what it finds.
shown() {
    shown=$1; shift
    if "$@"; then ok "$shown"; else bad "$shown"; fi
}

[ $# -gt 0 ] || { list; exit; }
[ "$*" != all ] ||
    set -- sanitizers threads shapes valgrind compilers portability lint floats cuda planted proof
for part in "$@"; do
    case $part in
    lint | sanitizers | fuzz | lanes | races | shapes | threads | compilers | portability | floats | \
        bare)
        $part ;;
    valgrind) valgrind_runs ;;
    cuda) check "the CUDA build" sh checks/cuda.sh --all ;;
    planted)
        shown "the planted mistakes" python3 checks/mistakes.py
        shown "mistakes in the page" sh checks/play.sh planted ;;
    proof)
        if command -v cbmc >/dev/null
        then shown "the proof" python3 checks/proof.py
        else skip "proof: cbmc is not installed"; fi ;;
    gpu) shown "on a GPU" sh checks/cuda.sh --gpu ${PART-} ;;
    *) echo "there is no check called $part"; list; exit 2 ;;
    esac
done
finish
