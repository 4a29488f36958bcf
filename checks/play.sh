#!/bin/sh
# docs/play.html: is it made of today's sources? Random deeds on it, in Chromium and in Firefox: are
# its states those of a native program with a judge, and does it show them? What does it say of
# engines that are wrong? `page` and `engines` ask one half of that. With the argument `planted`: do
# the judge and the deeds see mistakes in the page?
set -u && cd "$(dirname "$0")/.." || exit 1
sum=$(sed 's|//.*||' "${2-paged.cu.c}" paged.h examples/play[._]* examples/llama*.[ch] \
    examples/decoding.h examples/util.h | tr -d '[:space:]' | cksum)
[ "${1-}" != sum ] || { echo "$sum" && exit; }  # for the Makefile: comments are left out
out=build/play-$$ && mkdir -p $out && trap 'rm -rf "$out"' EXIT
LOG=$out/said-last && . checks/report.sh
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
firefox=$(command -v firefox-esr || command -v firefox)
browser=${chromium:-$firefox}
echo 'user_pref("devtools.console.stdout.content", true);' >$out/user.js
cp docs/tales.js $out
# console PAGE WHAT: what the page writes to the console when checks/play.js acts on it. The tales
# are a link.
console() {
    (sed '$d' "$1" && cat checks/play_hands.js ${driver-checks/play.js} && echo '</script>') \
        >$out/driven.html
    case $2 in tales) url="#$2" ;; *) url="?$2" ;; esac
    : >$out/console  # or the loop below might read the end of an earlier run
    options="--no-sandbox --user-data-dir=$out/user --enable-logging=stderr --window-size=1280,900 ${look-}"
    [ "$browser" != "$firefox" ] || options="--no-remote --profile $out"
    "$browser" --headless $options "file://$PWD/$out/driven.html$url" >$out/console 2>&1 &
    tries=0
    until grep -q '"END"' $out/console || [ $((tries += 1)) -gt ${limit-3000} ]; do sleep .2; done
    kill $! && wait $! 2>/dev/null
    sed -n 's/^\[[^]]*CONSOLE[^]]*\] "\(.*\)", source: .*/\1/p
        /^console.log: /{s/^[^"]*"\(.*\)"$/\1/; s/\\\(["\\]\)/\1/g; p;}' $out/console
}
# judged LOG ENGINE: the calls of a log are made natively, with a judge.
judged() {
    (echo '#include "examples/play.c"' && echo '#include "checks/play_judge.h"' &&
        echo 'int main(void) {' && sed -n 's/^[a-z].*)$/CALL(&);/p' "$1" &&
        echo 'return 0; }') >$out/calls.c
    sed -f examples/play_gpu.sed "$2" >$out/kernel.c
    # WebAssembly has no fused multiply-add.
    ${CC:-cc} -w -ffp-contract=off ${CPPFLAGS-} -DPAGED_NO_MAIN -DKERNEL="\"$out/kernel.c\"" -I. \
        $out/calls.c examples/play_gpu.c -o $out/calls -lm && (ulimit -t 60; $out/calls)
}
# agrees PAGE HASH: nothing is wrong in the log, and it is what the judge's program prints.
agrees() {
    console "$1" "$2" >$out/all && grep -v '^!' $out/all | sed '/^END$/d' >$out/log
    judged $out/log paged.cu.c >$out/judged
    grep '^!' $out/all && return 1
    grep -E '"code":[1456]|"wrong":"[^"]|"agrees":0' $out/log && return 1
    tail -n 1 $out/judged | grep 'The judge' && return 1
    grep -q '^END' $out/all || { echo 'it does not come to an end' && return 1; }
    cmp $out/log $out/judged && grep -c '^[a-z]' $out/log
}
bug() {
    PYTHONPATH=learn python3 -c "from plant import *; print(plant({file: read(file) for file in
        SOURCES}, read_bugs()['$1'])[0]['paged.cu.c'])" >$out/bug.c
}

# act PAGE HASH: the same of the act of the kernel: its numbers are those of ./paged's stand-in.
act() (driver=checks/play_kernel.js && agrees "$@" && grep -q '^out: ' $out/log)

# What was wrong once: checks/play_cases.js.
cases() {
    (driver=checks/play_cases.js && console docs/play.html "cases=${1-}") >$out/cases
    ! grep '^!' $out/cases && grep -q '^END' $out/cases
}
calm() { look=--force-prefers-reduced-motion cases race && grep 'motion: true' $out/cases; }
leads() {  # to a chapter that there is, and a function in its line
    sed -n 's/^lead: //p' $out/cases | sort -u >$out/leads
    sed -n 's/^## //p' walkthrough.md | tr 'A-Z ' 'a-z-' | tr -d '.,:' >$out/chapters
    sed -n 's/^walkthrough.md#\(.*\): .*/\1/p' $out/leads | grep -v -x -F -f $out/chapters && return 1
    sed -n 's/^paged.cu.c: \(.*\)(), line \([0-9]*\) .*/\2 \1/p' $out/leads >$out/lines
    while read -r line name; do
        sed -n "${line}p" paged.cu.c | grep -q " $name(" || { echo "$name: $line" && return 1; }
    done <$out/lines
    grep -c . $out/leads
}
cases_in_forced_colours() { look=--force-high-contrast cases forced && grep 'colours: true' $out/cases; }
copied() {  # the calls that the last case copied compile, as their first line says, and run
    sed -n 's/^copied: //p' $out/cases | awk 'NR > 1 && /^\/\/ / { exit } 1' >$out/copied.c
    compile=$(sed -n "1s|.*: cc \(.*\) calls.c \(.*\) && .*|${CC:-cc} -w -I. \1 $out/copied.c \2|p" $out/copied.c)
    [ -n "$compile" ] && $compile -o $out/copied && $out/copied | grep -c '"code":0'
}
# What stands there before the script begins: no button, and a sentence.
before() {
    printf '%s\n' '</script><script>' \
        'console.log([...document.querySelectorAll("*")].filter(one => one.checkVisibility() &&' \
        '(one.localName === "button" || /JavaScript/.test(one.textContent) && !one.firstElementChild))' \
        '.map(one => one.localName).join()); console.log("END")' >$out/before.js
    (driver=$out/before.js && console docs/play.html before | grep -x p)
}
without_tales() {  # a model's story cannot be told: the first story can
    echo 'console.log(`${moment().story}: ${$("message").textContent}`); console.log("END")' \
        >$out/without.js
    mv $out/tales.js $out/away.js
    (driver=$out/without.js && console docs/play.html tales >$out/all)
    mv $out/away.js $out/tales.js
    grep -x 'sampling: tales.js is not beside this page.' $out/all
}

# planted WHAT DEEDS EDIT: a mistake in the page, an edit for sed. Deeds of these kinds show it.
planted() {
    sed "$3" docs/play.html >$out/planted.html
    ! cmp -s docs/play.html $out/planted.html || { bad "nothing to plant: $1" && return; }
    case $2 in kernel*) act $out/planted.html "$2" ;; *) agrees $out/planted.html "random=1,100,$2" ;;
    esac >$LOG 2>&1 && bad "not seen: $1" ||
        ok "seen: $1: $(tail -n 1 $LOG | cut -c1-90)"
}
if [ "${1-}" = planted ]; then
    [ -n "$browser" ] || { skip "play: mistakes: there is no Chromium and no Firefox" && finish; }
    limit=450  # a page that is wrong may well never come to an end
    check "the page as it is comes to its end" agrees docs/play.html random=1,100
    planted "a fork gets the name that was free when it was wished for" twice.click \
        's/`&\${free()}`/`\&${window.wished}`/; s/^  const n = \$(name).selectionStart,/  window.wished = free(); &/'
    planted "attention of the text before the calls" type.undo \
        's/^  const text = textOf(hand), /  const text = $(hand).value, /; s/text.length === held && //'
    planted "the line is published, not the sequence" story 's/^      const text = textOf(name);$/      const text = $(name).value;/'
    planted "a story does not wait for its turn" type.story.look \
        's/^const open = link => later(async () => {/const open = link => (go => go().then(draw))(async () => {/'
    planted "num_blocks passes its maximum" shape 's/Math.min(MAX_BLOCKS, /Math.max(1, /'
    planted "what is typed after Enter stays in the old line" enter 's/typing ? child/false ? child/'
    planted "the focus is lost after Release" click 's/^  (near.find.*focus();//'
    planted "a refusal is not said" shape.enter 's/code ? refusal({call, code})/false ? ""/'
    planted "the race counts tales that have ended" race.type 's/count(running.length/count(Object.keys(tales).length/'
    planted "the race shows the first slots only" race.type 's/length - i \* STRIP/length/'
    planted "the calls of another shape are made again, not the wishes" type.shape \
        's/return act(wishes, {size, count, slots, .*/return act([], {size, count, slots});/'
    planted "a shuffle answers with the lane's own number" kernel=1,30 's/asks\[i ^ first.bits\]/asks[i]/'
    planted "a shuffle is wrong by a bit" kernel=1,60 's/asks\[i ^ first.bits\].value/& * (1 + 7e-8)/'
    planted "a thread that runs again sees what came later" kernel=1,100 's/view !== shown/!view/'
    planted "all steps have the lanes of the last" kernel=1,30 's/lanes: lanes.map(.*)),$/lanes,/'
    planted "a warp's token is the one before" kernel=1,60 's/return {block, slot, t,/return {block, slot, t: t - 1,/'
    planted "the act shows the line before" kernel=1,100 "s/text, table, size, count, fault\]/table, size, count, fault]/"
    finish
fi

# The model of the tales, natively: its weights are in docs/tales.js.
packed() { awk -v RS='`' "NR == $1" docs/tales.js | base64 -d | gzip -d; }
weights() { packed 2 | cmp - examples/tales.bin && packed 4 | cmp - examples/tales-tokenizer.bin; }
tales() {
    ${CC:-cc} -w ${CPPFLAGS-} -DPAGED_NO_MAIN -I. checks/play_tales.c "$1" -o $out/tales -lm &&
        (ulimit -t 60; $out/tales)
}
in_firefox() (browser=$firefox && "$@")
# tells PAGE: a tale, and one that branches off, are those of ./llama. The second is printed.
told() { sed -n "$1p" $out/told | tr / '\n'; }
tells() {
    console "$1" tales >$out/told
    told 2 | grep asked
    [ "$(told 1)" = "$(./llama 2>&-)" ] && [ "$(told 2)" = "$(./llama -t .7 -p "$(told 3)" 2>&-)" ]
}
[ -x ./llama ] || make -s llama >/dev/null
bugs="cow-not-in-table fork-not-counted rewind-keeps-a-block free-list-first-in-first
    prefix-whole-prompt-hit prefix-evicted-first sum-not-rescaled"
command -v python3 >/dev/null || { skip "play: planted bugs: no python3" && bugs=; }

the_page() {
    check "docs/play.html is made of these sources (make play)" grep -q "\"$sum\"" docs/play.html
    check "docs/tales.js has the weights of the tales (make play)" weights
    check "page and weights have at most 430 KB" \
        test $(cat docs/play.html docs/tales.js | wc -c) -le 430000
    check "its tales are those of ./llama, after a branch, a preemption" tales paged.cu.c
    [ -n "$browser" ] || { skip "play: there is no Chromium and no Firefox" && return; }
    deeds=${DEEDS-200}
    check "after each of $deeds random deeds, the page shows what its calls do natively" \
        agrees docs/play.html "random=${SEED-1},$deeds"
    cp $out/log $out/page
    check "the kernel: in $((deeds / 2)) random deeds, the page has each bit of ./paged's stand-in" \
        act docs/play.html "kernel=${SEED-1},$((deeds / 2))"
    if [ -n "$firefox" ]; then 
        check "and in Firefox, after $((deeds / 4))" \
            in_firefox agrees docs/play.html "random=2,$((deeds / 4))"
        check "the kernel, in Firefox" in_firefox act docs/play.html "kernel=2,$((deeds / 8))"
    else skip "play: there is no Firefox"; fi
    check "what was wrong once is right, at 320 and 390 pixels, too" cases
    check "the calls that it copies compile and run" copied
    check "a story leads to chapters and lines that there are" leads
    if [ "$browser" = "$chromium" ]; then
        check "with reduced motion, the race steps only" calm
        check "in forced colours, who holds what is visible" cases_in_forced_colours
    else skip "play: forced colours, reduced motion: there is no Chromium"; fi
    check "before its script runs, there is a sentence and no button" before
    check "without tales.js, the page says so and opens the first story" without_tales
    check "the page tells what ./llama tells" tells docs/play.html
    for bug in $bugs; do
        bug "$bug"
        judged $out/page $out/bug.c >$out/log 2>&1
        check "the planted bug $bug shows" sh -c "grep 'start(4' $out/log && ! cmp $out/page $out/log"
    done
}
[ "${1-}" = engines ] || the_page
[ "${1-}" != page ] || finish
[ -n "$browser" ] || { skip "play: engines: there is no Chromium and no Firefox" && finish; }

make -s play PAGE=$out/play.html >$out/log 2>&1
grep ' warning: ' $out/log
grep apt-get $out/log && skip "play: there is no compiler for WebAssembly" && finish
cmp -s docs/play.html $out/play.html ||  # another compiler
    check "a page made now agrees, too" agrees $out/play.html random=2,50

page_of() { make -s play ENGINE="$1 paged.h" PAGE=$out/yours.html >/dev/null 2>&1; }
sed 's|//.*||' paged.cu.c >$out/engine.c && page_of $out/engine.c
check "an engine of yours that is right tells what ./llama tells" tells $out/yours.html
mixed_up() {
    bug cow-of-one-layer && page_of $out/bug.c && ! tells $out/yours.html && told 2 | grep 'asked Bo'
}
[ -z "$bugs" ] || check "one that copies half a block mixes up names" mixed_up
said() { sed '/^END$/d' $out/says | cut -c1-300 && grep -q -E "$1" $out/says; }
# wrong_engine WHAT EDIT SAYS: the page of an engine with this mistake and a line less says so.
sed 1d paged.cu.c >$out/less.c
wrong_engine() {
    sed "$2" $out/less.c >$out/bug.c
    ! cmp -s $out/less.c $out/bug.c || { bad "nothing to plant: an engine that $1" && return; }
    page_of $out/bug.c || { bad "it does not compile: an engine that $1" && return; }
    console $out/yours.html wrong >$out/says
    check "an engine that $1: the page says so" said "$3"
}
append='/^int seq_append/,/^}/s/^    if (n == 0) return PAGED_OK;/&'
wrong_engine "believes a length of 1e9" "$append seq->length = 1000000000; return PAGED_OK;/" \
    '^(a: length|sequence|seq|a->length).*1000000000'
wrong_engine "loops in seq_append" "$append for (;;) ;/" '^seq_append\(a, 2\): no answer in'
wrong_engine "prints to stderr" "$append fprintf(stderr, \"hello\\\\n\");/" '^ \| .*PAGED_OK.*It prints: hello'
wrong_engine "prints a {" "$append printf(\"{hello\\\\n\");/" '^ \| .*It prints: .hello'
wrong_engine "returns 99" "$append return 99;/" '^seq_append\(a, 2\) = 99, which is not a code'
wrong_engine "calls exit(99)" "$append exit(99);/" '^seq_append\(a, 2\): it called exit\(99\)'
wrong_engine "panics" "$append abort();/" \
    '^seq_append\(a, 2\): unreachable.* Reserved: unreachable'
wrong_engine "has no pool" '/^int pool_create/,/^}/s/^{/{ return PAGED_OUT_OF_MEMORY;/' \
    '^start\(4, 16\): there is no pool'
wrong_engine "does not copy" '/^int seq_append/,/^}/s/ref_count > 1/ref_count > 9/' 'None, in this engine'
# The act of the kernel says so, with the lines of that file.
driver=checks/play_kernel.js
shuffle=$(($(sed -n '/__shfl_xor_sync(ALL_LANES/=' paged.cu.c) - 1))
kernel='/^__device__ static void attend_tokens/,/^}/s'
wrong_engine "has no barrier" "$kernel/__syncthreads()/(void)0/" 'not all are written'
wrong_engine "shuffles half of its lanes" "$kernel|bits = WARP / 2|bits = WARP / 4|" 'do not agree'
wrong_engine "leaves out a shuffle" "$kernel/bits > 0/bits > 1/" "oracle, .*, differs by more"
wrong_engine "returns from a lane" "$kernel/^    int kv_head/    if (lane >= head_dim) return; &/" \
    "^Deadlock: at lines $shuffle and [0-9]*, 128 threads wait for each other"
wrong_engine "shuffles too far" "$kernel|bits = WARP / 2|bits = WARP|" 'reaches beyond its warp'
wrong_engine "has no merge() yet" '/^__device__ static void merge/,/^}/s/^{/{ abort();/' \
    'opens\. unreachable'
[ -z "$bugs" ] || {  # with the functions of six stages
    PYTHONPATH=learn python3 -c "import learn; from plant import read
print(learn.skeleton(read('paged.cu.c'), learn.read_stages(), 6))" >$out/bug.c
    page_of $out/bug.c
    console $out/yours.html kernel >$out/says
    check "an engine of stage 6: the act says what to write" said '^stage 7: write attend_paged\(\)'
}
wrong_engine "has another name for score" "$kernel/score/sum/g" "oracle, .*, differs by less"
finish
