#!/bin/sh
# docs/play.html: is it made of today's sources? Does it print in Chromium what the same calls print
# natively? Does a page made now? Do planted bugs show? `play.sh sum ENGINE` prints what it is made of.
set -u
cd "$(dirname "$0")/.." || exit 1
sum=$(sed 's|//.*||' "${2-paged.cu.c}" paged.h examples/play.[ch]* | tr -d '[:space:]' | cksum)
[ "${1-}" != sum ] || { echo "$sum" && exit; }
. checks/report.sh
out=build/play-$$
mkdir -p $out && trap 'rm -rf "$out"' EXIT
check() { name=$1 && shift && if "$@"; then ok "$name"; else bad "$name"; fi; }
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
browse() {
    "$chromium" --headless --no-sandbox --user-data-dir=$out/user --virtual-time-budget=60000 \
        --dump-dom "file://$PWD/$1#test" 2>/dev/null | sed -n '/<pre id="log">/,$ {
        s/.*<pre id="log">//; s/<.*//; s/&gt;/>/g; s/&amp;/\&/g; /./p }'
}
compile() { cc -w -DPAGED_NO_MAIN -I. $out/calls.c "$1" -o $out/calls -lm; }

check "docs/play.html is made of these sources (make play)" grep -q "\"$sum\"" docs/play.html
[ -n "$chromium" ] || { skip "play: there is no Chromium"; finish; }
browse docs/play.html >$out/page
{ printf '#include "examples/play.c"\nint main(void)\n{\n'
  sed -n '/^{/!s/.*/CALL(&);/p' $out/page; echo '}'; } >$out/calls.c
compile paged.cu.c && $out/calls >$out/native
check "$(grep -c CALL $out/calls.c) calls print the same in Chromium and natively" cmp $out/page $out/native
check "after each of them, all is well" sh -c "! grep -v '\"wrong\":\"\"\|^[^{]\|^{\"same\":1' $out/page"
for bug in cow-never cow-not-in-table fork-not-counted rewind-keeps-a-block free-list-first-in-first \
    gather-past-the-last layer-forgotten; do
    PYTHONPATH=learn python3 -c "from plant import *; print(plant({path: read(path) for path in SOURCES},
        read_bugs()['$bug'])[0]['paged.cu.c'])" >$out/bug.c && compile $out/bug.c || bad "$bug"
    (ulimit -t 20; $out/calls >$out/native 2>&1)
    check "the planted bug $bug shows" sh -c "! cmp -s $out/page $out/native"
done
if make -s play PAGE=$out/play.html >$out/log 2>&1; then
    browse $out/play.html >$out/again
    check "a page made now prints the same" cmp $out/page $out/again
else
    skip "play: $(tail -n 1 $out/log)"
fi
finish
