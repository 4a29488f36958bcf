#!/bin/sh
# Runs a part of the tests, for the Makefile. The part passes if its command does and its last line
# is the usual one. build/parts/NAME says so, with the time when it began: make compares that with the
# files of the part. What the command printed stays in build/parts/NAME.log; if it fails, it is shown.
#
#     sh checks/part.sh NAME COMMAND...
#     sh checks/part.sh sum NAME...      what was skipped, and the sum of the closing lines
set -u
parts=build/parts
mkdir -p $parts

if [ "$1" = sum ]; then
    shift
    for name in "$@"; do
        cat $parts/$name.log 2>/dev/null
        [ -e $parts/$name ] || echo "FAILED $name"
    done | awk '
        /^ *skip|SKIPPED/ && !seen[$0]++ { skips = skips "\n  " $0 }
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5 }
        /^FAILED / { names = names " " $2; failed++ }
        END {
            if (skips) print "Skipped:" skips
            if (names) print "Failed:" names
            if (f < failed) f = failed
            printf "%d passed, %d failed, %d skipped\n", p, f, s
            exit f > 0
        }'
    exit
fi

name=$1; shift
log=$parts/$name.log
rm -f $parts/$name
# The jobs are those of whoever runs this, and what make was asked for it need not do again.
unset MAKEFLAGS MFLAGS C
: >$parts/$name.began
began=$(date +%s)
python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null && python=yes || python=no
limit=
if command -v timeout >/dev/null; then limit="timeout 2400"; fi  # what hangs fails, after all
case $1$python in
python3no) printf 'skip  %s: no python3 from 3.7 on\n0 passed, 0 failed, 1 skipped\n' "$*" ;;
*) $limit "$@" || echo "FAIL  $*: exit status $?" ;;
esac >$log 2>&1 </dev/null
last=$(tail -n 1 $log)
case $last in
"0 passed, 0 failed, 0 skipped" | *[!a-z0-9,\ ]*) ;;
*" passed, 0 failed, "*" skipped")
    mv $parts/$name.began $parts/$name
    echo "$*: $last, in $(($(date +%s) - began)) s"
    exit ;;
esac
echo "$*:"
sed 's/^/  /' $log
exit 1
