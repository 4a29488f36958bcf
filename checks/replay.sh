#!/bin/sh
# Tests of examples/replay.c, on generated traces, on some that can be followed by hand, and on the
# real one where it is present.
#
#     sh checks/replay.sh            part of make test
#     sh checks/replay.sh --quick    without the real trace and the planted bugs: for slow builds
set -u
cd "$(dirname "$0")/.."
mkdir -p build/replay
passed=0 failed=0 skipped=0
REPLAY=${REPLAY:-./replay}
OBJECT=${OBJECT:-build/paged.o}
TRACE=${TRACE:-../shared/traces/azure_llm_2023_conv.csv}
dir=build/replay
header=TIMESTAMP,ContextTokens,GeneratedTokens

ok() { echo "ok    $1"; passed=$((passed + 1)); }
bad() { echo "FAIL  $1"; failed=$((failed + 1)); }
skip() { echo "skip  $1"; skipped=$((skipped + 1)); }

# check NAME COMMAND...: passes if the command does.
check() {
    name=$1; shift
    if "$@" >$dir/log 2>&1; then ok "$name"; else tail -n 20 $dir/log; bad "$name"; fi
}

# equal NAME EXPECTED ACTUAL
equal() {
    if [ "$2" = "$3" ]; then ok "$1"; else bad "$1: expected '$2', got '$3'"; fi
}

# replay FILE OPTIONS...: runs with the tables to $dir/tables.csv; what it prints is in $dir/out.
replay() { rm -f $dir/tables.csv; $REPLAY "$@" --csv $dir/tables.csv >$dir/out 2>&1; }

# columns ALLOCATOR COLUMN...: of the last run.
columns() {
    awk -F '"' -v name="$1" -v columns="$2" '$2 == name {
        split($3, v, ","); n = split(columns, c, " ")
        for (i = 1; i <= n; i++) printf "%s%s", v[c[i]], i < n ? " " : "\n" }' $dir/tables.csv
}
# The numbers of those columns.
shares="3 4 5 6 7" at_end=8 running=9 steps=11 preempted=13 moved=14 refused=15

# All requests of all runs of a table of N requests ended or were refused, and some were preempted.
lost_nothing() {
    n=$1; shift
    replay "$@" || { cat $dir/out; return 1; }
    runs=$(($(wc -l <$dir/tables.csv) - 1))
    out_of_all=$(awk -F, '{ n += $NF } END { print n + 0 }' $dir/tables.csv)
    grep "^$((n * runs - out_of_all)) requests in $runs runs ended with exactly their tokens" $dir/out &&
        [ "$(awk -F, '{ n += $(NF - 2) } END { print n }' $dir/tables.csv)" -gt 20 ] ||
        { cat $dir/out; return 1; }
}

# ---- the generator

replay --generate 20000 --block-size 16 --save $dir/a.csv
# The static accounting, added up by awk.
static() {
    tail -n +2 "$1" | tr -d '\r' | awk -F, '{ n = $2 + $3; sum += n; if (n > max) max = n
        paged += int((n + 15) / 16) * 16 }
        END { printf "%.6f 1.000000 %.6f", sum / (max * NR), sum / paged }'
}
equal "generator: the trace that is saved is the one that is served" "$(static $dir/a.csv)" \
    "$(columns "reserve maximum" $at_end) $(columns "reserve exactly" $at_end) $(
        columns "paged 16" $at_end)"
cp $dir/tables.csv $dir/first.csv
replay $dir/a.csv --block-size 16
check "  and gives the same tables as a file" cmp $dir/tables.csv $dir/first.csv
$REPLAY --generate 500 --seed 1 --block-size 16 --save $dir/b.csv >$dir/out
equal "generator: the same seed, the same requests" "$(head -n 501 $dir/a.csv)" "$(cat $dir/b.csv)"
$REPLAY --generate 20000 --seed 2 --block-size 16 --save $dir/b.csv >$dir/out
check "generator: another seed, other requests" sh -c "! cmp -s $dir/a.csv $dir/b.csv"
equal "generator: the header, and a line for each request" "20001 $header" \
    "$(wc -l <$dir/a.csv | tr -d ' ') $(head -n 1 $dir/a.csv)"
# Average prompt, answer and gap of two seeds: 2.5 % is over three standard errors of each.
for seed in a b; do
    averages=$(tail -n +2 $dir/$seed.csv | awk -F '[ :,]' '{
        c += $5; g += $6; n++; split($1, day, "-"); t = day[3] * 86400 + $2 * 3600 + $3 * 60 + $4
        if (n == 1) t0 = t } END { printf "%f %f %f", c / n, g / n, (t - t0) / (n - 1) }')
    check "generator: averages as documented ($averages)" awk -v averages="$averages" 'BEGIN {
        split(averages, a, " "); split("1148 210 0.18", e, " ")
        for (i in e) if (!(a[i] > 0.975 * e[i] && a[i] < 1.025 * e[i])) exit 1 }'
    equal "  and limits" "1 14000 1 1000" "$(tail -n +2 $dir/$seed.csv | awk -F, '
        $2 < 1 || $3 < 1 { bad = 1 } $2 > c { c = $2 } $3 > g { g = $3 }
        END { print 1 - bad, c, 1 - bad, g }')"
done

# ---- malformed lines: the line's number, and exit status 1

good="2023-11-16 18:15:46.6805900,374,44"
# malformed NAME LINE MESSAGE: LINE is the third of a file whose others are good.
malformed() {
    printf '%s\n%s\n%b\n%s\n' $header "$good" "$2" "2023-11-16 18:20:00,1,1" >$dir/bad.csv
    replay $dir/bad.csv; status=$?
    equal "malformed: $1" "1 1" "$status $(grep -c "bad.csv:3: $3" $dir/out)"
}
malformed "a field is missing" "2023-11-16 18:15:47,374" "after TIMESTAMP, numbers of tokens"
malformed "a field too many" "2023-11-16 18:15:47,374,44,1" "after TIMESTAMP"
malformed "negative" "2023-11-16 18:15:47,-374,44" "after TIMESTAMP"
malformed "no prompt" "2023-11-16 18:15:47,0,44" "after TIMESTAMP"
malformed "text" "2023-11-16 18:15:47,374,many" "after TIMESTAMP"
malformed "a fraction" "2023-11-16 18:15:47,374,4.5" "after TIMESTAMP"
malformed "no answer" "2023-11-16 18:15:47,374," "after TIMESTAMP"
malformed "one more than allowed" "2023-11-16 18:15:47,16777217,1" "after TIMESTAMP"
malformed "one more than allowed in an answer" "2023-11-16 18:15:47,1,16777217" "after TIMESTAMP"
malformed "more than an int" "2023-11-16 18:15:47,374,4294967297" "after TIMESTAMP"
malformed "an empty line" "" "TIMESTAMP is not a time"
malformed "no time" "yesterday,374,44" "TIMESTAMP is not a time"
malformed "no such day" "2023-02-29 18:15:47,374,44" "TIMESTAMP is not a time"
malformed "no such hour" "2023-11-16 24:00:00,374,44" "TIMESTAMP is not a time"
malformed "a missing zero" "2023-11-16 8:15:47,374,44" "TIMESTAMP is not a time"
malformed "eight decimals" "2023-11-16 18:15:47.12345678,374,44" "after TIMESTAMP"
malformed "no digit after the point" "2023-11-16 18:15:47.,374,44" "TIMESTAMP is not a time"
malformed "before the line above" "2023-11-16 18:15:46.6805899,374,44" "TIMESTAMP is before"
malformed "a byte 0" "2023-11-16 18:15:47,374,44\\0000" "it contains a zero byte"
printf '%s\n' "$good" >$dir/bad.csv; replay $dir/bad.csv
equal "malformed: no header" "1 1" "$? $(grep -c 'bad.csv:1: ' $dir/out)"
: >$dir/bad.csv; replay $dir/bad.csv
equal "an empty file" "1 1" "$? $(grep -c 'it contains no request' $dir/out)"
replay $dir/nowhere.csv; equal "no such file" 1 $?
printf '%s\r\n%s\r\n2024-02-29 00:00:00,1,0' $header "$good" >$dir/good.csv; replay $dir/good.csv
equal "CRLF, a leap day, no answer and no newline at the end are good" 0 $?
printf '%s\n%s\n' $header "2024-02-29 00:00:00,16777216,16777216" >$dir/good.csv
replay $dir/good.csv --block-size 16 --blocks 1048576
equal "the largest prompt, answer and budget are good" "0 1 1" \
    "$? $(grep -c '^0 requests in 4 runs' $dir/out) $(grep -c '^after .*; 4 refused' $dir/out)"
for options in "" "a.csv --blocks 0" "a.csv --blocks 0x10" "a.csv --blocks 1.5" \
               "a.csv --preempt maybe" "a.csv --limit" "a.csv --wrong" "a.csv b.csv" \
               "a.csv --generate 3" "a.csv --seed 3" "a.csv --save b.csv" "--generate 3 --limit 2" \
               "a.csv --block-size 131073" "a.csv --blocks 1048577"; do
    $REPLAY $options >$dir/out 2>&1
    equal "usage: '$options'" "2 1" "$? $(grep -c '^replay: ' $dir/out)"
done
printf '%s\n%s\nx\n' $header "$good" >$dir/bad.csv; replay $dir/bad.csv --limit 1
equal "--limit 1: one request, and no further line is read" "0 1" \
    "$? $(grep -c '^1 requests: 374 tokens of prompts, 44 generated' $dir/out)"

# ---- traces that can be followed by hand

trace() { # CONTEXT,GENERATED...: all at the same time
    echo $header; for request in "$@"; do echo "2024-01-01 00:00:00,$request"; done
}

# 14 slots. Reserving exactly, the third request needs 6; when the first has left, 8 are free, 4
# before the second and 4 after it: that is external. It has to wait for the second.
trace 3,1 3,3 5,1 >$dir/hand.csv
replay $dir/hand.csv --saturate --blocks 14 --block-size 1
equal "by hand: reserve maximum" "0.571429 0.190476 0.095238 0.000000 0.142857 4" \
    "$(columns "reserve maximum" "$shares $steps")"
equal "by hand: reserve power of 2" "0.428571 0.114286 0.057143 0.200000 0.200000 6" \
    "$(columns "reserve power of 2" "$shares $steps")"
equal "by hand: reserve exactly" "0.428571 0.114286 0.000000 0.228571 0.228571 6" \
    "$(columns "reserve exactly" "$shares $steps")"

# 2 blocks of 4. Both run; the second is preempted twice, by itself and by the first.
trace 3,2 4,1 >$dir/hand.csv
for policy in recompute swap; do
    replay $dir/hand.csv --saturate --blocks 2 --block-size 4 --preempt $policy --verify
    equal "by hand: paged, preemption by $policy" \
        "0.687500 0.062500 0.000000 0.000000 0.250000 0.625000 1.500 5 2 8" \
        "$(columns "paged 4" "$shares $at_end $running $steps $preempted $moved")"
done

# A system prompt of 5 in blocks of 4: the first is shared; the second is copied for the request.
trace 2,1 >$dir/hand.csv
replay $dir/hand.csv --saturate --blocks 8 --block-size 4 --shared-prefix 5 --verify
equal "by hand: shared prefix" "0.250000 0.031250 0.093750 0.000000 0.625000 0.750000" \
    "$(columns "paged 4, prefix" "$shares $at_end")"

# The second arrives 100 ms after the first: at step 4. It takes two steps.
printf '%s\n%s\n%s\n' $header "2023-12-31 23:59:59.95,1,1" "2024-01-01 00:00:00.05,1,1" \
    >$dir/hand.csv
replay $dir/hand.csv; equal "by hand: arrivals" 6 "$(columns "paged 16" $steps)"

# The second can never end in 8 slots; the third can.
trace 3,2 8,1 4,4 >$dir/hand.csv
replay $dir/hand.csv --saturate --blocks 2 --block-size 4 --verify
equal "too large for the pool: refused for good, by all" "0 1 1 1 1" \
    "$? $(columns "reserve maximum" $refused) $(columns "reserve power of 2" $refused) $(
        columns "reserve exactly" $refused) $(columns "paged 4" $refused)"
equal "  and the others end" "1 1" \
    "$(grep -c '^8 requests in 4 runs' $dir/out) $(grep -c '^after .*; 4 refused' $dir/out)"

# A prompt of 3 and an answer of 5 fit into 8 slots; the 3 + 8 of the power of two do not.
trace 3,5 >$dir/hand.csv
replay $dir/hand.csv --saturate --blocks 8 --block-size 1
equal "by hand: a reservation is cut to the budget" "0 6" \
    "$(columns "reserve power of 2" $refused) $(columns "reserve power of 2" $steps)"

# ---- random traces

cat >$dir/serve.awk <<'END_OF_AWK'
# What replay must find, said once more: the same tables as --csv writes, for --block-size bs,
# --blocks blocks, --shared-prefix prefix. There are no blocks here, only counts of slots.
function ceil_div(a, b) { return int((a + b - 1) / b) }
function needed(r, tokens,    size, answer) {
    if (rule == "paged") return ceil_div(tokens, bs) * bs - shared
    for (answer = 1; answer < g[r]; answer *= 2) {}
    size = rule == "maximum" ? longest : c[r] + (rule == "exactly" ? g[r] : answer)
    return size > budget && c[r] + g[r] <= budget ? budget : size
}
function get(r,    start, i, next_start) { # takes room for its tokens; 0: there is none
    if (rule == "paged") {
        if (needed(r, len[r] + (said[r] > 0)) > room) return 0
        room -= size[r] = needed(r, len[r])
        return 1
    }
    size[r] = needed(r, len[r])
    for (start = 0; start + size[r] <= budget; start = next_start) { # the first hole
        next_start = 0
        for (i = 1; i <= nr; i++)
            if (at[run[i]] < start + size[r] && start < at[run[i]] + size[run[i]])
                next_start = at[run[i]] + size[run[i]]
        if (next_start) continue
        at[r] = start
        room -= size[r]
        return 1
    }
    return 0
}
function arrival(r) { return saturate ? 0 : int((t[r] - t[1]) / 2.5) } # hundredths, in 25 ms
function head() { return nw > 0 && arrival(w[nw]) <= step ? w[nw] : 0 }
function serve(name, prefix,    i, r, common, kept, measured, sum) {
    shared = int(prefix / bs) * bs
    common = ceil_div(prefix, bs) * bs
    room = budget - common
    used_at_end = prefix
    taken_at_end = common
    nr = nw = step = peak = ended = out = waited = preempted = moved = measured = running = 0
    used = reserved = internal = external = 0
    for (r = n; r >= 1; r--) {
        len[r] = c[r]
        said[r] = 0
        new[r] = 1
        used_at_end += c[r] + g[r] - shared
        taken_at_end += needed(r, c[r] + g[r])
        if (needed(r, c[r] + g[r]) > room) out++
        else w[++nw] = r
    }
    while (nr + nw > 0) {
        if (nr == 0 && !head()) step = arrival(w[nw])
        counts = !saturate || head()
        for (i = 1; i <= nr; ) {
            r = run[i]
            if (rule == "paged" && len[r] % bs == 0) {
                if (room == 0) {
                    r = w[++nw] = run[nr--]
                    room += size[r]
                    preempted++
                    moved += len[r] - prefix
                    continue
                }
                room -= bs
                size[r] += bs
            }
            len[r]++
            said[r]++
            i++
        }
        while ((r = head()) && get(r)) {
            run[++nr] = r
            nw--
            if (new[r]) waited += step - arrival(r)
            new[r] = 0
        }
        if (counts) {
            measured++
            running += nr
            if (nr > peak) peak = nr
            used += prefix
            internal += common - prefix
            for (i = 1; i <= nr; i++) {
                r = run[i]
                empty = size[r] - (len[r] - shared)
                left = c[r] + g[r] - len[r]
                used += len[r] - shared
                reserved += empty < left ? empty : left
                internal += empty < left ? 0 : empty - left
            }
            if (head() && needed(head(), len[head()]) <= room) external += room
        }
        kept = 0
        for (i = 1; i <= nr; i++) {
            r = run[i]
            if (said[r] < g[r]) run[++kept] = r
            else {
                room += size[r]
                ended++
            }
        }
        nr = kept
        step++
    }
    sum = measured ? measured * budget : 1
    rest = 1 - used / sum - reserved / sum - internal / sum - external / sum
    if (rest < 0) rest = 0
    printf "\"%s\",%d,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.3f,%d,%d,%.3f,%d,%d,%d\n", name,
        rule == "paged" ? bs : 0, used / sum, reserved / sum, internal / sum, external / sum,
        rest, used_at_end / taken_at_end, measured ? running / measured : 0, peak, step,
        ended ? waited / ended : 0, preempted, moved, out
}
NR > 1 {
    split($1, time, /[ :]/)
    t[++n] = int((time[3] * 60 + time[4]) * 100 + 0.5)
    c[n] = $2 + prefix
    g[n] = $3
    if (c[n] + g[n] > longest) longest = c[n] + g[n]
}
END {
    budget = blocks * bs
    rule = "maximum"
    serve("reserve maximum", 0)
    rule = "power"
    serve("reserve power of 2", 0)
    rule = "exactly"
    serve("reserve exactly", 0)
    rule = "paged"
    serve("paged " bs, 0)
    if (prefix) serve("paged " bs ", prefix", prefix)
}
END_OF_AWK

# Draws a trace; prints a block size, a number of blocks, a shared prefix, and whether to saturate.
draw() {
    awk -v seed="$1" -v header=$header -v file=$dir/draw.csv '
        function between(low, high) { return low + int(rand() * (high - low + 1)) }
        BEGIN {
            srand(seed); print header >file
            at = 5000
            for (n = between(1, 40); n > 0; n--) {
                printf "2024-01-01 00:%02d:%05.2f,%d,%d\n", at / 6000, at % 6000 / 100,
                    between(1, 20), between(0, 16) >file
                at += between(0, 40) * between(0, 1)
            }
            print between(1, 7), between(9, 14), between(0, 1) * between(1, 9), between(0, 1)
        }'
}

# Each column of each table is what awk says.
as_by_awk() {
    for seed in $(seq "$1"); do
        set -- $(draw $seed)
        saturate=; [ $4 = 0 ] || saturate=--saturate
        awk -F, -v bs=$1 -v blocks=$2 -v prefix=$3 -v saturate=$4 -f $dir/serve.awk $dir/draw.csv \
            >$dir/expected
        replay $dir/draw.csv --block-size $1 --blocks $2 --shared-prefix $3 $saturate --verify
        tail -n +2 $dir/tables.csv | diff - $dir/expected ||
            { echo "$seed: --block-size $1 --blocks $2 --shared-prefix $3 $saturate"; return 1; }
        cat $dir/expected >>$dir/all
    done
    # Requests were preempted and refused, and memory was in pieces.
    awk -F, '$13 > 0 { a++ } $15 > 0 { b++ } $6 > 0 { c++ }
        END { exit !(a > 9 && b > 9 && c > 9) }' $dir/all
}
rm -f $dir/all
check "random traces: all columns are what awk finds" as_by_awk 40

# ---- generated traces

$REPLAY --generate 400 --seed 7 --block-size 16 --save $dir/small.csv >$dir/out

# Nobody is preempted here: a request runs for one step and one more for each token it generates.
expected=$(tail -n +2 $dir/small.csv | awk -F, '{ n += $3 + 1 } END { print n }')
for saturate in "" --saturate; do
    replay $dir/small.csv $saturate --blocks 60000 --block-size 16 --curve $dir/curve.csv
    equal "the curve adds up to all steps of all requests${saturate:+, $saturate}" \
        "$expected $expected" "$(awk -F '[,"]' '{ sum[$2] += $5 }
            END { printf "%.0f %.0f", sum["paged 16"], sum["reserve exactly"] }' $dir/curve.csv)"
done
# An output that cannot be written is found before the work, and the work is not begun.
for option in --csv --curve; do
    $REPLAY $dir/small.csv $option /nonexistent/file >$dir/out 2>&1
    equal "$option to a file that cannot be opened" "1 1 1" \
        "$? $(wc -l <$dir/out | tr -d ' ') $(grep -c '^replay: /nonexistent' $dir/out)"
done
if [ -c /dev/full ]; then
    $REPLAY $dir/small.csv >/dev/full 2>$dir/out
    equal "standard output that is full" "1 1" "$? $(grep -c 'cannot write the output' $dir/out)"
    for option in --csv --curve; do
        $REPLAY $dir/small.csv $option /dev/full >$dir/out 2>&1
        equal "$option to a device that is full" "1 1" "$? $(grep -c 'cannot write it' $dir/out)"
    done
fi

for policy in recompute swap; do
    check "preemption by $policy: nothing is lost in a small pool" \
        lost_nothing 400 $dir/small.csv --blocks 400 --preempt $policy
    for prefix in 0 100; do
        check "--verify: $policy, a shared prefix of $prefix" \
            lost_nothing 200 $dir/small.csv --limit 200 --blocks 500 --preempt $policy \
            --block-size 16 --shared-prefix $prefix --verify --saturate
        equal "  and K and V were compared" 1 "$(grep -c '^K and V of all paged' $dir/out)"
    done
done
cp $dir/out $dir/first
replay $dir/small.csv --limit 200 --blocks 500 --preempt swap --block-size 16 --shared-prefix 100 \
    --verify --saturate
check "the same run prints the same" cmp $dir/out $dir/first
check "the slots add up to the budget" awk -F '[,"]' 'NR > 1 && NF == 17 {
    s = $5 + $6 + $7 + $8 + $9; if (s < 0.999995 || s > 1.000005) exit 1; n++ }
    END { exit n != 4 }' $dir/tables.csv

if [ "${1:-}" = --quick ]; then
    skip "the real trace and the planted bugs: --quick"
    echo "$passed passed, $failed failed, $skipped skipped"; [ $failed = 0 ]; exit
fi

# ---- the real trace

if [ -f "$TRACE" ]; then
    before=$(date +%s)
    for policy in recompute swap; do
        check "real trace, $policy: nothing is lost" \
            lost_nothing 19366 "$TRACE" --saturate --block-size 16 --preempt $policy
    done
    check "  both in under ten seconds" [ $(($(date +%s) - before)) -lt 10 ]
    equal "real trace: 99.46 % used at block size 16, 9.7 % with the maximum reserved" \
        "0.096943 1.000000 0.994562" "$(columns "reserve maximum" $at_end) $(
            columns "reserve exactly" $at_end) $(columns "paged 16" $at_end)"
    equal "  and awk says so, too" "0.096943 1.000000 0.994562" "$(static "$TRACE")"
    equal "real trace: requests running together, paged and with the maximum reserved" \
        "105.362 9.000" "$(columns "paged 16" $running) $(columns "reserve maximum" $running)"
    awk '/^```/ { text = /^```text/; on = 0; next }
         text && /^[0-9]+ requests: / { on = 1 } on' README.md >$dir/readme
    if [ -s $dir/readme ]; then
        $REPLAY "$TRACE" --saturate --block-size 16 >$dir/out 2>&1
        check "the README shows what --saturate --block-size 16 prints" diff $dir/out $dir/readme
    else
        skip "the README: it shows no table"
    fi
else
    skip "the real trace: $TRACE is not there"
fi

# ---- the program's own checks must be able to fail

# planted NAME OLD NEW OPTIONS...: with OLD replaced by NEW, which must change the source, a run
# must end with status 1 and a message.
planted() {
    name=$1 old=$2 new=$3; shift 3
    sed "s/$old/$new/" examples/replay.c >$dir/planted.c
    if [ "$(diff examples/replay.c $dir/planted.c | grep -c '^>')" != 1 ]; then
        bad "planted: $name: the text to change is not there once"; return
    fi
    if ! ${CC:-cc} -Iexamples ${CPPFLAGS:-} $dir/planted.c "$OBJECT" -o $dir/planted -lm \
            2>$dir/log; then
        cat $dir/log; bad "planted: $name: does not compile"; return
    fi
    $dir/planted $dir/small.csv --blocks 500 --saturate "$@" >$dir/out 2>&1; status=$?
    equal "planted: $name: $(tail -n 1 $dir/out)" "1 1" "$status $(grep -c '^replay: ' $dir/out)"
}
if [ ! -f "$OBJECT" ]; then
    OBJECT=$dir/paged.o
    ${CC:-cc} -O1 ${CPPFLAGS:-} -DPAGED_NO_MAIN -c paged.cu.c -o $OBJECT
fi
planted "preemption drops a token" 'arrput(s->waiting, newest);' \
    'arrput(s->waiting, newest), newest->length--;'
planted "preemption loses the request" 'arrput(s->waiting, newest);' ';'
planted "other tokens are swapped in" 'size_t first = .*;' 'size_t first = 0;' \
    --preempt swap --shared-prefix 16 --verify --block-size 16
planted "recompute leaves out a token" 'r->num_new = r->length - s->system.length;' \
    'r->num_new = r->length - s->system.length - (r->delivered > 0);' --verify --block-size 16
planted "attention of another scale" 'NUM_Q_HEADS, 0, q, out' 'NUM_Q_HEADS, 0.4f, q, out' --verify \
    --block-size 16
planted "a hole too small is taken" 'start - start >= size' 'start - start >= size \/ 2'
planted "a sequence is not released" 'seq_release(r->seq);' ';'
planted "a region is not released" 'arrdel(s->reserved, at);' ';'

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
