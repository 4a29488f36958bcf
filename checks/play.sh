#!/bin/sh
# docs/play.html, the page: does it show what a native program with a judge has? What does it say of
# engines that are wrong? Ends with the usual line.
#
#     sh checks/play.sh page       sources, tales, random deeds, what was wrong once: make test
#     sh checks/play.sh engines    a page of each of three wrong engines: make test
#     sh checks/play.sh house      Firefox, narrow windows, forced colours, all engines, more deeds
#     sh checks/play.sh planted    do the deeds see mistakes in the page?
set -u && cd "$(dirname "$0")/.." || exit 1
out=build/play-$$ && mkdir -p $out && trap 'rm -rf "$out"' EXIT
LOG=$out/said-last && . checks/report.sh
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
firefox=$(command -v firefox-esr || command -v firefox)
browser=${chromium:-$firefox}
echo 'user_pref("devtools.console.stdout.content", true);' >$out/user.js
cp docs/tales.js $out
[ -x ./llama ] || make -s llama >/dev/null
# console PAGE QUERY: what the page writes to the console when checks/play.js acts on it.
console() {
    (sed '$d' "$1" && cat checks/play_hands.js ${driver-checks/play.js} && echo '</script>') \
        >$out/driven.html
    : >$out/console  # or the loop below might read the end of an earlier run
    options="--no-sandbox --user-data-dir=$out/user --enable-logging=stderr --window-size=1280,900 ${look-}"
    [ "$browser" != "$firefox" ] || options="--no-remote --profile $out"
    "$browser" --headless $options "file://$PWD/$out/driven.html?$2" >$out/console 2>&1 &
    tries=0
    until grep -q '"END"' $out/console || [ $((tries += 1)) -gt ${limit-1500} ]; do sleep .2; done
    kill $! && wait $! 2>/dev/null
    sed -n 's/^\[[^]]*CONSOLE[^]]*\] "\(.*\)", source: .*/\1/p
        /^console.log: /{s/^[^"]*"\(.*\)"$/\1/; s/\\\(["\\]\)/\1/g; p;}' $out/console
}
# judged LOG ENGINE: the calls of a log are made natively, with a judge.
judged() {
    (echo '#include "examples/play.c"' && echo '#include "checks/play_judge.h"' &&
        echo 'int main(void) {' && sed -n 's/^[a-z].*)$/CALL(&);/p' "$1" &&
        echo 'return 0; }') >$out/calls.c
    awk -f examples/play_kernel.awk "$2" >$out/kernel.c
    # WebAssembly has no fused multiply-add.
    ${CC:-cc} -w -ffp-contract=off ${CPPFLAGS-} -DPAGED_NO_MAIN -DKERNEL="\"$out/kernel.c\"" -I. \
        $out/calls.c -o $out/calls -lm && (ulimit -t 60; $out/calls)
}
# agrees PAGE QUERY: nothing is wrong in the log, and it is what the judge's program prints.
agrees() {
    console "$1" "$2" >$out/all && grep -v '^!' $out/all | sed '/^END$/d' >$out/log
    judged $out/log paged.cu.c >$out/judged
    grep '^!' $out/all && return 1
    grep -E '"code":[1456]|"wrong":"[^"]' $out/log && return 1
    tail -n 1 $out/judged | grep 'The judge' && return 1
    grep -q '^END' $out/all || { echo 'it does not come to an end' && return 1; }
    cmp $out/log $out/judged && grep -c '^[a-z]' $out/log
}
# act PAGE QUERY: the same of the act of the kernel: its numbers are those of ./paged's stand-in.
act() (driver=checks/play_kernel.js && agrees "$@" && grep -q '^out: ' $out/log)
in_firefox() (browser=$firefox && "$@")
deeds() {  # SEED NUMBER: of random deeds; half as many with the kernel
    check "after each of $2 random deeds, the page shows what its calls do natively" \
        agrees docs/play.html "random=$1,$2"
    cp $out/log $out/page
    check "the kernel: in $(($2 / 2)) random deeds, the page has each bit of ./paged's stand-in" \
        act docs/play.html "kernel=$1,$(($2 / 2))"
}

# ---- page ----------------------------------------------------------------------------------------

# The model of the tales, natively: its weights are in docs/tales.js.
packed() { awk -v RS='`' "NR == $1" docs/tales.js | base64 -d | gzip -d; }
weights() { packed 2 | cmp - examples/tales.bin && packed 4 | cmp - examples/tales-tokenizer.bin; }
tales() {
    ${CC:-cc} -w ${CPPFLAGS-} -DPAGED_NO_MAIN -DKERNEL='"paged.cu.c"' -I. checks/play_tales.c \
        -o $out/tales -lm && (ulimit -t 60; $out/tales)
}
# What was wrong once: checks/play_cases.js, ?cases=NAMES or, in narrow windows, too, ?narrow=NAMES.
cases() {
    (driver=checks/play_cases.js && console docs/play.html "$1") >$out/cases
    ! grep '^!' $out/cases && grep -q '^END' $out/cases
}
the_page() {
    check "docs/play.html is made of these sources (make play)" \
        grep -q "\"$(make -s play-sum)\"" docs/play.html
    check "docs/tales.js has the weights of the tales (make play)" weights
    check "page and weights have at most 430 KB" \
        test $(cat docs/play.html docs/tales.js | wc -c) -le 430000
    check "its tales are those of ./llama, after a preemption, too" tales
    [ -n "$browser" ] || { skip "play: there is no Chromium and no Firefox" && return; }
    deeds ${SEED-1} ${DEEDS-100}
    check "what was wrong once is right" cases cases=
    check "in a browser that lacks something, it says so or does without" old_browsers
}

# ---- engines -------------------------------------------------------------------------------------

page_of() { make -s play ENGINE="$1 paged.h" PAGE=$out/yours.html >/dev/null 2>&1; }
can_make() {
    [ -n "$browser" ] || { skip "play: engines: there is no Chromium and no Firefox" && return 1; }
    command -v python3 >$LOG || { skip "play: engines: there is no python3" && return 1; }
    make -s play PAGE=$out/play.html >$out/log 2>&1
    grep ' warning: ' $out/log
    ! grep apt-get $out/log || { skip "play: there is no compiler for WebAssembly" && return 1; }
}
# shows ENGINE WHO WORDS: the page of this engine, or its act of the kernel, says these words.
shows() (
    page_of "$1" || return
    case $2 in
    gpu) on_gpu $out/yours.html gpu ;;
    act) driver=checks/play_kernel.js && console $out/yours.html act ;;
    page) console $out/yours.html page ;;
    esac >$out/says
    sed '/^END$/d' $out/says | cut -c1-500
    echo "$3" | awk '{ gsub(/ & /, "\n"); print }' >$out/words
    while read -r words; do grep -F -o -e "$words" $out/says || return; done <$out/words
)
# says NAME WHO WORDS: an engine with this mistake, and a line less.
says() { python3 learn/plant.py edit "$1" | sed 1d >$out/bug.c && shows $out/bug.c "$2" "$3"; }
engines() {  # WHO NAME...: these mistakes, or all that the table has for the page or the act
    who=$1 && shift
    python3 learn/plant.py list $who >$out/list
    while read -r name words; do
        case " ${*:-$name} " in *" $name "*)
            check "an engine with $name: the page says so" says $name $who "$words" ;;
        esac
    done <$out/list
}

# ---- house ---------------------------------------------------------------------------------------

calm() { look=--force-prefers-reduced-motion cases cases=race && grep 'motion: true' $out/cases; }
forced() { look=--force-high-contrast cases cases=forced && grep 'colours: true' $out/cases; }
leads() {  # to a chapter that there is, and to the text of a function, in its line
    sed -n 's/^lead: \(.*\)(), line \([0-9]*\) of paged.cu.c; chapter \([0-9]*\) .*/\1 \2 \3/p' \
        $out/cases | sort -u >$out/leads
    while read -r name line chapter; do
        sed -n "${line}p" paged.cu.c | grep -q " $name(" || { echo "$name: $line" && return 1; }
        grep -q "^## $chapter\. " walkthrough.md || { echo "no chapter $chapter" && return 1; }
    done <$out/leads
    grep -c . $out/leads
}
# What stands there before the script begins: no button, and a sentence.
before() {
    printf '%s\n' '</script><script>' \
        'console.log([...document.querySelectorAll("*")].filter(one => one.checkVisibility() &&' \
        '(one.localName === "button" || /JavaScript/.test(one.textContent) && !one.firstElementChild))' \
        '.map(one => one.localName).join()); console.log("END")' >$out/before.js
    (driver=$out/before.js && console docs/play.html before | grep -x p)
}
# A browser that lacks something says so, or does without. BEFORE is done as the page begins.
lacking() {  # BEFORE LINE
    sed "s|<header>|<script>$1</script>&|;t" docs/play.html >$out/lacking.html
    cat >$out/starting.js <<'END'
</script><script>
const starting = document.getElementById('starting');
new MutationObserver(() => {
  console.log(starting.hidden ? 'it starts' : starting.textContent);
  console.log('END');
}).observe(starting, {attributes: true, childList: true});
END
    (driver=$out/starting.js && console $out/lacking.html before | grep -x "$2")
}
old_browsers() {
    lacking 'delete window.DecompressionStream' 'This page failed: .*Decomp.*' &&
        lacking 'WebAssembly.Module = null; delete Element.prototype.checkVisibility' 'it starts'
}
without_tales() {  # there is no race, and all else is there
    echo 'console.log(`${bench.textOf("a")}: ${$("lap").textContent}`); console.log("END")' \
        >$out/without.js
    mv $out/tales.js $out/away.js
    (driver=$out/without.js && console docs/play.html without >$out/all)
    mv $out/away.js $out/tales.js
    grep 'a cloud : Without tales.js' $out/all
}
# tells PAGE: the tales of its race are those of ./llama.
tells() {
    console "$1" tales | sed '/^END$/d' >$out/told
    for seed in 0 1 2 3 4 5; do
        ./llama $([ $seed = 0 ] || echo -t .7 -s $seed) 2>&- | tr '\n' / | sed 's|/$||' && echo
    done | cmp - $out/told
}
differs() {  # NAME: what the calls of the deeds do on an engine with this mistake
    python3 learn/plant.py edit $1 >$out/bug.c
    judged $out/page $out/bug.c >$out/log 2>&1
    grep -q 'start(4' $out/log && ! cmp $out/page $out/log
}
right() { page_of $out/engine.c && tells $out/yours.html; }
written() {  # an engine with the functions of so many stages
    PYTHONPATH=learn python3 -c "import learn; from common import read
print(learn.skeleton(read('paged.cu.c'), learn.read_stages(), $1))" >$out/bug.c
}
unwritten() {  # STAGES WHO WORDS: the page of such an engine, or its act, says these words
    written $1 && shows $out/bug.c $2 "$3"
}
# The section "On your own GPU": on a GPU of Chromium's, in software.
on_gpu() {  # PAGE QUERY
    (driver=checks/play_webgpu.js && look="--enable-unsafe-webgpu --enable-features=Vulkan \
        --use-webgpu-adapter=swiftshader" && console "$@") | sed '/^END$/d' >$out/gpu && cat $out/gpu
}
both_right() {
    on_gpu docs/play.html gpu=results && [ "$(grep -c '|.*right |.*right |.*right$' $out/gpu)" = 2 ]
}
gpu_right() { page_of $out/bug.c && on_gpu $out/yours.html gpu | grep 'right |.*right |.*right$'; }
early() { written 7 && gpu_right; }
reworded() {  # a while for a for, a choice in a line of its own, other comments
    sed -e 's|//.*|/* ; { */|' -e 's/= l != 0/=@l != 0/' \
        -e 's/for (\(int i = 0\); \(i < count\); i++) \(max.*\)/\1; while (\2) { \3 i++; }/' \
        paged.cu.c | tr @ '\n' >$out/bug.c
    grep -q 'while (i < count)' $out/bug.c && grep -q '^l != 0' $out/bug.c && gpu_right
}
reason() { grep -o "^$1 | $2.\{0,30\}" $out/reasons; }
in_firefox_says_why() { in_firefox on_gpu docs/play.html gpu | grep -E 'right$|WebGPU|adapter'; }
own_gpu() {
    [ -z "$firefox" ] || check "in Firefox, it says what it has, or why not" in_firefox_says_why
    [ "$browser" = "$chromium" ] || { skip "play: WebGPU: there is no Chromium" && return; }
    if on_gpu docs/play.html gpu | grep WebGPU; then
        skip "play: this Chromium has no WebGPU" && return
    fi
    has_gpu=yes
    check "a GPU in software is right in all ways, with shuffles and without" both_right
    on_gpu docs/play.html gpu=reasons >$out/reasons
    while IFS='|' read -r what words; do
        check "on your own GPU, $what: it says so" reason "$what" "$words"
    done <<END
no WebGPU|This browser has no WebGPU
no adapter|WebGPU finds no adapter
no answer|The adapter did not answer in
lost|The GPU was lost
too small|The cache needs .* bytes. A buffer of this device has at most
a line|Line $(sed -n '/+ logf(l)/=' paged.cu.c) of paged.cu.c cannot be translated
a shader|The shader does not compile
costs|On it, paging costs 4.0 %; copying first costs 140.0 %. Sequences: 3 of 3
noise|On it, times differ by 20.0 % from round to round, too much
END
}
house() {
    if [ -n "$firefox" ]; then
        check "in Firefox, after 50 random deeds" in_firefox agrees docs/play.html "random=2,50"
        check "the kernel, in Firefox" in_firefox act docs/play.html "kernel=2,25"
    else skip "play: there is no Firefox"; fi
    [ -n "$browser" ] || { skip "play: there is no Chromium and no Firefox" && return; }
    deeds ${SEED-3} ${DEEDS-200}
    check "what was wrong once is right, at 320 and 390 pixels, too" cases narrow=
    check "a story leads to chapters and lines that there are" leads
    if [ "$browser" = "$chromium" ]; then
        check "with reduced motion, the race steps only" calm
        check "in forced colours, who holds what is visible" forced
    else skip "play: forced colours, reduced motion: there is no Chromium"; fi
    check "before its script runs, there is a sentence and no button" before
    check "without tales.js, the page says so" without_tales
    check "the page tells what ./llama tells" tells docs/play.html
    own_gpu
    can_make || return
    for name in cow-not-in-table fork-not-counted rewind-keeps-a-block free-list-first-in-first \
        prefix-whole-prompt-hit prefix-evicted-first sum-not-rescaled; do
        check "the calls of the deeds show $name" differs $name
    done
    cmp -s docs/play.html $out/play.html ||  # another compiler
        check "a page made now agrees, too" agrees $out/play.html random=2,50
    # An engine that is right, without comments, and with another name in a kernel.
    sed -e 's|//.*||' -e '/ attend_tokens(const Job/,/^}/s/score/sum/g' paged.cu.c >$out/engine.c
    check "an engine of yours that is right tells what ./llama tells" right
    check "and its act agrees with the oracle" shows $out/engine.c act 'It agrees & differs by less'
    sed '/ attend_tokens(const Job/,/^}/s/\([^a-z_.]\)\([mlo]\)\([^a-z_(]\)/\1my_\2\3/g' paged.cu.c \
        >$out/engine.c
    check "of a kernel with other names, its act says what it looks for" \
        shows $out/engine.c act 'It agrees & no variables named m, l and o'
    sed -e '/for (int bits = WARP/d; s/score += __shfl.*/score = warp_sum(score);/' \
        -e 's|^__device__ static void attend_tokens|HD static float warp_sum(float x)\
{ for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(ALL_LANES, x, bits); return x; }\
&|' paged.cu.c >$out/engine.c
    check "of one with a function that the page does not carry, each step is told" \
        shows $out/engine.c act 'It agrees & It has the sum of 32 lanes & The result is o / l'
    engines page
    engines act
    line=$(($(sed -n '/__shfl_xor_sync(ALL_LANES/=' paged.cu.c) - 1))
    check "of a deadlock, it says the line" says idle-lane-returns act "Deadlock: at lines $line and"
    check "an engine of stage 6: the act says what to write" \
        unwritten 6 act 'stage 7: write attend_paged()'
    check "an engine of stage 3: the page says what ~ is" \
        unwritten 3 page 'stage 4: write write_token() & "~" is a slot without a letter'
    [ "${has_gpu-}" ] || return
    engines gpu
    check "an engine of stage 6: a GPU says when it can run" unwritten 6 gpu 'from stage 7 on'
    check "one of stage 7 is right on a GPU, too" early
    check "and one with other statements and comments" reworded
}

# planted NAME DEEDS: deeds of these kinds show this mistake in the page.
planted() {
    python3 learn/plant.py edit $1 >$out/planted.html || return
    case $2 in
    kernel*) act $out/planted.html $2 ;;
    *) agrees $out/planted.html random=1,100,$2 ;;
    esac >$out/said 2>&1 && return 1
    tail -n 1 $out/said | cut -c1-60
}

case ${1-} in
page) the_page ;;
engines)
    can_make && engines page scale-forgotten &&
        engines act barrier-before-merge kernel-not-rescaled ;;
house) house ;;
planted)
    [ -n "$browser" ] || { skip "play: mistakes: there is no Chromium and no Firefox" && finish; }
    limit=450  # a page that is wrong may well never come to an end
    check "the page as it is comes to its end" agrees docs/play.html random=1,100
    python3 learn/plant.py list deeds >$out/list
    while read -r name kinds; do check "seen: $name" planted $name $kinds; done <$out/list ;;
*) sed -n '2,9s/^# *//p' "$0"; exit 2 ;;
esac
finish
