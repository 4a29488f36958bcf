#!/bin/sh
# Tests of examples/replay.c: what its --help promises. The judge of its tables and curves is
# serve.awk below, on random traces. Part of make test. Ends with the usual line.
#
#     REPLAY=build/replay sh checks/replay.sh
set -u
cd "$(dirname "$0")/.." || exit 1
REPLAY=${REPLAY:-./replay}
TRACE=${TRACE:-../shared/traces/azure_llm_2023_conv.csv}
dir=build/replay
mkdir -p $dir
LOG=$dir/log
. checks/report.sh
header=TIMESTAMP,ContextTokens,GeneratedTokens

# ends STATUS TEXT OPTIONS...: so replay ends, with a line that begins with TEXT. What it prints is
# in $dir/out, its tables are in $dir/csv.
ends() {
    expected=$1 text=$2; shift 2
    "$REPLAY" --csv $dir/csv "$@" >$dir/out 2>&1
    status=$?
    [ $status = "$expected" ] && grep -e "^$text" $dir/out || { cat $dir/out; return 1; }
}

# ---- what is refused, and what only looks so

trace() { printf '%s\n2023-11-16 18:15:46.6805900,374,44\n%b\n' $header "$1" >$dir/trace.csv; }
while IFS='|' read -r line message; do
    trace "$line"
    check "refused: '$line'" ends 1 "replay: $dir/trace.csv:3: $message" $dir/trace.csv
done <<'END'
2023-11-16 18:15:47,374|after TIMESTAMP, numbers
2023-11-16 18:15:47,374,4.5|after TIMESTAMP
2023-11-16 18:15:47,1,16777217|after TIMESTAMP
2023-02-29 18:15:47,374,44|TIMESTAMP is not a time
2023-11-16 18:15:46.6805899,374,44|TIMESTAMP is before
2023-11-16 18:15:47,374,44\0000|it contains a zero byte
END
trace "2024-02-29 00:00:00,1,0\r\n2024-03-01 00:00:00,16777216,16777216"
check "taken: a leap day, no answer, CRLF, the largest numbers" \
    ends 0 "8 requests in" $dir/trace.csv --block-size 16 --blocks 1048576

while IFS='|' read -r options status message; do
    # shellcheck disable=SC2086
    check "refused: replay $options" ends "$status" "replay: $message" $options
done <<END
README.md|1|README.md:1: this is not
/dev/null|1|/dev/null: it contains no request
--generate 9 --csv /dev/full|1|/dev/full: cannot write it
--generate 9999 --blocks 9 --curve $dir/no/file|1|$dir/no/file: No such file
|2|one TRACE.csv
a.csv --blocks 1048577|2|--blocks 1048577
END

# ---- random traces, served once more by awk

cat >$dir/serve.awk <<'END'
# Draws a trace from -v seed. Writes it, and the tables and the curves as --csv and --curve have
# them; prints the options for replay. There are no blocks here, only counts of slots.
function between(low, high) { return low + int(rand() * (high - low + 1)) }
function ceil_to_block(n) { return int((n + bs - 1) / bs) * bs }
function needed(r, tokens,    size, answer) {
    if (rule == "paged") return ceil_to_block(tokens) - shared
    for (answer = 1; answer < g[r]; answer *= 2) {}
    size = rule == "maximum" ? longest : c[r] + (rule == "exactly" ? g[r] : answer)
    return size > budget && c[r] + g[r] <= budget ? budget : size
}
function get(r,    i, start) {  # takes room for its tokens; 0: there is none
    if (rule == "paged") {
        if (needed(r, len[r] + (said[r] > 0)) > room) return 0
    } else {
        for (i = 1; i <= nr; i++) {  # the first hole: on from each region that is in the way
            if (at[run[i]] >= start + needed(r) || at[run[i]] + size[run[i]] <= start) continue
            start = at[run[i]] + size[run[i]]
            i = 0
        }
        if (start + needed(r) > budget) return 0
        at[r] = start
    }
    room -= size[r] = needed(r, len[r])
    return 1
}
function arrival(r) { return saturate ? 0 : int((t[r] - t[1]) / 2.5) }  # hundredths, in 25 ms
function head() { return nw > 0 && arrival(w[nw]) <= step ? w[nw] : 0 }
function serve(name, prefix,    i, r, kept, common, sum, rest) {
    shared = int(prefix / bs) * bs
    common = ceil_to_block(prefix)
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
    for (; nr + nw > 0; step++) {
        if (nr == 0 && !head()) step = arrival(w[nw])
        counts = !saturate || head()
        for (i = 1; i <= nr; i++) {  # a token more for each
            r = run[i]
            if (rule == "paged" && len[r] % bs == 0) {
                if (room == 0) {  # the newest gives way
                    r = w[++nw] = run[nr--]
                    room += size[r]
                    preempted++
                    moved += len[r] - prefix
                    i--
                    continue
                }
                room -= bs
                size[r] += bs
            }
            len[r]++
            said[r]++
        }
        while ((r = head()) && get(r)) {
            run[++nr] = r
            nw--
            waited += new[r] * (step - arrival(r))
            new[r] = 0
        }
        printf "\"%s\",%d,%d\n", name, step, nr >(dir "/expected-curve")
        if (counts) {
            measured++
            running += nr
            if (nr > peak) peak = nr
            used += prefix
            internal += common - prefix
            if (head() && needed(head(), len[head()]) <= room) external += room
        }
        kept = 0
        for (i = 1; i <= nr; i++) {
            r = run[i]
            empty = size[r] - (len[r] - shared)
            left = g[r] - said[r]
            if (counts) {
                used += len[r] - shared
                reserved += empty < left ? empty : left
                internal += empty < left ? 0 : empty - left
            }
            if (left > 0) run[++kept] = r
            else {
                room += size[r]
                ended++
            }
        }
        nr = kept
    }
    sum = measured ? measured * budget : 1
    rest = 1 - used / sum - reserved / sum - internal / sum - external / sum
    printf "\"%s\",%d,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.3f,%d,%d,%.3f,%d,%d,%d\n", name,
        rule == "paged" ? bs : 0, used / sum, reserved / sum, internal / sum, external / sum,
        rest < 0 ? 0 : rest, used_at_end / taken_at_end, measured ? running / measured : 0, peak,
        step, ended ? waited / ended : 0, preempted, moved, out >(dir "/expected")
}
BEGIN {
    srand(seed)
    bs = between(1, 7)
    budget = between(9, 14) * bs
    prefix = between(0, 1) * between(1, 9)
    saturate = between(0, 1)
    print header >(dir "/draw.csv")
    time = 5000
    for (n = between(1, 40); r < n; time += between(0, 40) * between(0, 1)) {
        t[++r] = time
        c[r] = prefix + between(1, 20)
        g[r] = between(0, 16)
        if (c[r] + g[r] > longest) longest = c[r] + g[r]
        printf "2024-01-01 00:%02d:%05.2f,%d,%d\n", time / 6000, time % 6000 / 100, c[r] - prefix,
            g[r] >(dir "/draw.csv")
    }
    split("maximum,power of 2,exactly", rules, ",")
    for (i = 1; i <= 3; i++) { rule = rules[i]; serve("reserve " rule, 0) }
    rule = "paged"; serve("paged " bs, 0)
    if (prefix) serve("paged " bs ", prefix", prefix)
    print "--block-size", bs, "--blocks", budget / bs, "--shared-prefix", prefix, \
        saturate ? "--saturate" : "", seed % 3 ? "--preempt swap" : ""
}
END

as_by_awk() {
    rm -f $dir/all
    for seed in $(seq 40); do
        options=$(awk -v seed="$seed" -v header=$header -v dir=$dir -f $dir/serve.awk)
        echo "seed $seed: $options"
        # shellcheck disable=SC2086
        ends 0 "K and V of all paged ones" $dir/draw.csv --verify --curve $dir/curve $options &&
            tail -n +2 $dir/csv | diff - $dir/expected &&
            tail -n +2 $dir/curve | diff - $dir/expected-curve || return 1
        cat $dir/expected >>$dir/all
    done
    # Requests were preempted and refused, and memory was in pieces.
    awk -F, '$13 > 0 { a++ } $15 > 0 { b++ } $6 > 0 { c++ }
        END { print "40 traces"; exit !(a > 9 && b > 9 && c > 9) }' $dir/all
}
check "each column and the curves are what awk finds" as_by_awk

# ---- generated traces, the real one, and an engine that is wrong

generated() {
    ends 0 "500 requests" --generate 500 --save $dir/a.csv && cp $dir/csv $dir/first &&
        ends 0 "500 requests" $dir/a.csv && cmp $dir/csv $dir/first
}
check "--save: the trace that is saved is the one that was served" generated

without_prefix() {
    ends 0 "500 requests" --generate 500 --shared-prefix 20 --save $dir/b.csv &&
        cmp $dir/a.csv $dir/b.csv
}
check "--save: without the shared prefix" without_prefix

of_readme() {
    awk '/^```/ { text = /^```text/; on = 0; next }
         text && /^[0-9]+ requests: / { on = 1 } on' README.md >$dir/readme
    ends 0 "19366 requests" "$TRACE" --saturate --block-size 16 &&
        head -n "$(wc -l <$dir/readme)" $dir/out | diff - $dir/readme
}
if [ -f "$TRACE" ]; then check "the README shows what the real trace gives" of_readme
else skip "the real trace: $TRACE is not there"; fi

# wrong FUNCTION TEXT: with an engine whose FUNCTION is TEXT, exit status 1 is promised.
wrong() {
    printf '#define %s right\n#include "paged.cu.c"\n#undef %s\n%s\n' "$1" "$1" "$2" >$dir/wrong.c
    ${CC:-cc} -w -I. ${CPPFLAGS:-} -DPAGED_NO_MAIN $dir/wrong.c examples/replay.c -o $dir/wrong -lm
    REPLAY=$dir/wrong ends 1 "replay: " $dir/a.csv --blocks 500 --saturate --block-size 16 --verify
}
check "exit status 1: blocks do not come back" wrong seq_release 'void seq_release(Seq *s) {}'
check "exit status 1: a number of K is not what was written" wrong seq_gather \
    'int seq_gather(const Seq *s, int l, float *k, float *v)
     { right(s, l, k, v); k[5]++; return 0; }'
check "exit status 1: the last number of V is not what was written" wrong seq_gather \
    'int seq_gather(const Seq *s, int l, float *k, float *v)
     { right(s, l, k, v); v[s->length * 8 - 1]++; return 0; }'
check "exit status 1: attention is not the oracle's" wrong attend \
    'int attend(Pool *p, int f, int l, int n, float s, const float *q, float *o, float *lse)
     { right(p, f, l, n, s, q, o, lse); o[1] += 1e-4f; return 0; }'
check "exit status 1: attention is not a number" wrong attend \
    'int attend(Pool *p, int f, int l, int n, float s, const float *q, float *o, float *lse)
     { right(p, f, l, n, s, q, o, lse); o[0] = NAN; return 0; }'
finish
