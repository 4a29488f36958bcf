#!/bin/sh
# The page: is docs/play.html that of today's sources? Does it print in Chromium what the same calls
# print in a native build? Does a page built now print the same? Do planted bugs show?
set -u
cd "$(dirname "$0")/.." || exit 1
sum() { cat "${1:-paged.cu.c}" paged.h examples/play.[ch]* | sed 's|//.*||' | tr -d '[:space:]' | cksum; }
[ "${1-}" != sum ] || { sum "${2-}"; exit; }
out=build/play-$$
passed=0 failed=0 skipped=0
mkdir -p $out
trap 'rm -rf "$out"' EXIT
skip() { echo "skip  play: $1"; skipped=$((skipped + 1)); }
check() {  # a name, and a command that must succeed
    name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAIL  play: $name"; fi
}
browse() {  # what a page prints for #test
    "$chromium" --headless --no-sandbox --disable-gpu --user-data-dir=$out/user --dump-dom \
        --virtual-time-budget=60000 "file://$PWD/$1#test" 2>/dev/null |
        sed -n '/<pre id="log">/,/<\/pre>/p' | sed 's/.*<pre id="log">//; /<\/pre>/d' |
        sed 's/&gt;/>/g; s/&amp;/\&/g'
}
native() { cc -w -DPAGED_NO_MAIN -I. $out/calls.c "$1" -o $out/calls -lm && $out/calls; }

check "docs/play.html is of other sources: make play" grep -q "data-sum=\"$(sum)\"" docs/play.html
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -z "$chromium" ]; then
    skip "no Chromium, which runs the page"
else
    browse docs/play.html >$out/page
    check "the page makes hundreds of calls" test "$(grep -c '^{"code"' $out/page)" -gt 500
    { echo '#include "examples/play.c"'; echo 'int main(void) {'
      sed '/^{/d; s/^seq_release\(.*\)/RELEASE\1;/; t; s/.*/CALL(&);/' $out/page; echo '}'; } >$out/calls.c
    native paged.cu.c >$out/native
    check "a native build prints something else" cmp $out/page $out/native
    check "a call broke the pool" sh -c "! grep -v '^{.*\"wrong\":\"\"' $out/native | grep '^{\"code'"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
