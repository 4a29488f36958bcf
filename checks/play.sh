#!/bin/sh
# docs/play.html: is it made of today's sources? Do its calls print in Chromium what they print
# natively, and those of a page made now, too? Do planted bugs show?
set -u && cd "$(dirname "$0")/.." || exit 1
sum=$(sed 's|//.*||' "${2-paged.cu.c}" paged.h examples/play.[ch]* examples/llama_*.h |
    tr -d '[:space:]' | cksum)
[ "${1-}" != sum ] || { echo "$sum" && exit; }  # for the Makefile: comments are left out
LOG=build/play.log && . checks/report.sh
out=build/play-$$ && mkdir -p $out && trap 'rm -rf "$out"' EXIT
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
log_of() {
    "$chromium" --headless --no-sandbox --user-data-dir=$out/user --virtual-time-budget=60000 \
        --dump-dom "file://$PWD/$1#test" 2>/dev/null | sed -n '/<pre id="log">/,$ {
        s/.*<pre id="log">//; s/<.*//; s/&gt;/>/g; s/&amp;/\&/g; /./p }'
}
native() {
    ${CC:-cc} -w ${CPPFLAGS-} -DPAGED_NO_MAIN -I. $out/calls.c "$1" -o $out/calls -lm && $out/calls
}
check "docs/play.html is made of these sources (make play)" grep -q "\"$sum\"" docs/play.html

# The model of the tales, natively: its weights are in docs/tales.js.
packed() { awk -v RS='`' "NR == $1" docs/tales.js | base64 -d | gzip -d; }
weights() { packed 2 | cmp - examples/tales.bin && packed 4 | cmp - examples/tales-tokenizer.bin; }
small() { [ "$(cat docs/play.html docs/tales.js | wc -c)" -le 400000 ]; }
tales() {
    ${CC:-cc} -w ${CPPFLAGS-} -DPAGED_NO_MAIN -I. checks/play_tales.c "$1" -o $out/tales -lm &&
        (ulimit -t 60; $out/tales)
}
check "docs/tales.js has the weights of the tales (make play)" weights
check "the page and its weights have at most 400 KB" small
check "its tales are those of ./llama, after a branch, a rewind, a preemption" tales paged.cu.c
[ -n "$chromium" ] || { skip "play: there is no Chromium" && finish; }
log_of docs/play.html >$out/page
(echo '#include "examples/play.c"' && echo 'int main(void) {' &&
    sed -n '/^{/!s/.*/CALL(&);/p' $out/page && echo '}') >$out/calls.c
native paged.cu.c >$out/log
check "$(wc -l <$out/calls.c) calls print the same natively" cmp $out/page $out/log
check "no call breaks the pool" sh -c "grep 'start(4' $out/page && ! grep 'wrong...[^\"]' $out/page"
plant() {
    PYTHONPATH=learn python3 -c "from plant import *; print(plant({file: read(file) for file in
        SOURCES}, read_bugs()['$1'])[0]['paged.cu.c'])" >$out/bug.c
}
mixed_up() {
    plant cow-of-one-layer && ! tales $out/bug.c >$out/log && grep -m 1 'a block named' $out/log
}
bugs="cow-not-in-table fork-not-counted rewind-keeps-a-block free-list-first-in-first
    prefix-whole-prompt-hit prefix-evicted-first sum-not-rescaled"
command -v python3 >/dev/null || { skip "play: planted bugs: no python3" && bugs=; }
[ -z "$bugs" ] || check "half a copy-on-write tells another tale" mixed_up
for bug in $bugs; do
    plant "$bug"
    (ulimit -t 20; native $out/bug.c) >$out/log 2>&1
    check "the planted bug $bug shows" sh -c "grep 'start(4' $out/log && ! cmp $out/page $out/log"
done
make -s play PAGE=$out/play.html >$out/log 2>&1 && log_of $out/play.html >$out/again
grep apt-get $out/log && skip "play: there is no compiler for WebAssembly" ||
    { check "a page made now prints the same" cmp $out/page $out/again
      check "its weights are those of docs/" cmp docs/tales.js $out/tales.js; }
finish
