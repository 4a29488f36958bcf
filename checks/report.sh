# report.sh: what the scripts of this folder share, which begin with `. checks/report.sh`: they
# count, and show what a command said that failed. What commands print goes to $LOG.
passed=0 failed=0 skipped=0
LOG=${LOG:-build/log}
export UBSAN_OPTIONS=print_stacktrace=1
export LC_ALL=C  # what compilers and debuggers say is read here
mkdir -p build

ok() { printf 'ok    %s\n' "$1"; passed=$((passed + 1)); }
bad() { printf 'FAIL  %s\n' "$1"; failed=$((failed + 1)); }
skip() { echo "skip  $1"; skipped=$((skipped + 1)); }
finish() { echo "$passed passed, $failed failed, $skipped skipped"; [ $failed = 0 ]; exit; }

# The first error in $LOG and 40 lines from there: the stack of a sanitizer's report comes first.
# Without a word that looks like an error, the last 40 lines.
first_error() {
    error='runtime error|ERROR: |WARNING: ThreadSanitizer|^==[0-9]+== [A-Z]|error:|FAIL'
    { grep -a -m 1 -B 4 -A 40 -E "$error" "$LOG" || tail -n 40 "$LOG"; } | sed 's/^/    /'
}

# check NAME COMMAND...: passes if the command does.
check() {
    checked=$1; shift
    if "$@" >"$LOG" 2>&1; then ok "$checked$(tail -n 1 "$LOG" | sed 's/^/: /')"
    else first_error; bad "$checked"; fi
}

# quietly NAME COMMAND...: succeeds if the command does and prints nothing: a compiler without a
# warning. Otherwise that is a failure.
quietly() {
    built=$1; shift
    "$@" >"$LOG" 2>&1 && [ ! -s "$LOG" ] && return
    first_error
    bad "$built: does not compile without messages"
    return 1
}

# compiles COMMAND...: can this compiler, with these options, make a program?
compiles() {
    cc_=$1; shift
    echo 'int main(void) { return 0; }' | "$cc_" -x c "$@" - -o build/probe >/dev/null 2>&1
}
