#!/bin/sh
# Tests of examples/replay.c: what its --help promises, the tables of a tiny trace, and those of the
# real one: TRACE=file.csv, or what the README downloads. Part of make test. Ends with the usual
# line.
set -u
cd "$(dirname "$0")/.." || exit 1
REPLAY=${REPLAY:-./replay}
for trace in AzureLLMInferenceTrace_conv.csv ../shared/traces/azure_llm_2023_conv.csv; do
    [ ! -f $trace ] || TRACE=${TRACE:-$trace}
done
dir=build/replay
mkdir -p $dir
LOG=$dir/log
. checks/report.sh
header=TIMESTAMP,ContextTokens,GeneratedTokens

# ends STATUS TEXT OPTIONS...: so replay ends, with a line that begins with TEXT. What it prints is
# in $dir/out, its tables are in $dir/csv.
ends() {
    expected=$1 text=$2; shift 2
    rm -f $dir/csv
    "$REPLAY" --csv $dir/csv "$@" >$dir/out 2>$dir/err
    status=$?
    cat $dir/err >>$dir/out  # not into the middle of a line
    [ $status = "$expected" ] && grep -e "^$text" $dir/out || { cat $dir/out; return 1; }
}

# ---- what is refused

trace() { printf '%s\n%b\n' $header "$1" >$dir/trace.csv; }
while IFS='|' read -r line message; do
    trace "2023-11-16 18:15:46.6805900,374,44\n$line"
    check "refused: '$line'" ends 1 "replay: $dir/trace.csv:3: $message" $dir/trace.csv
done <<'END'
2023-11-16 18:15:47,374,4.5|GeneratedTokens is not
2023-11-16 18:15:47,374,44,|GeneratedTokens is not
2023-11-16 18:15:47,374|GeneratedTokens is not
2023-11-16 18:15:47,0,44|ContextTokens is not
2023-11-16 18:15:47,16777217,44|ContextTokens is not
2023-11-16 18:15:47,374,44\r2023-11-16 18:15:48,374,44|GeneratedTokens is not
2023-11-16 18:15:47,374,16777217|GeneratedTokens is not
2023-11-16 18:15:47,374,4294967340|GeneratedTokens is not
2023-11-16 18:15:47,3 74,44|ContextTokens is not
2023-11-16,374,44|TIMESTAMP is not
2023-11-16 18:15:47.1e2,374,44|TIMESTAMP is not
2023-11-16 18:15:471,374,44|TIMESTAMP is not
2023-11-16 18:15:60,374,44|TIMESTAMP is not
2023-11-1618:15:47,374,44|TIMESTAMP is not
2023-11-31 18:15:47,374,44|TIMESTAMP is not
2100-02-29 18:15:47,374,44|TIMESTAMP is not
2023-11-16 18:15:47+01:00,374,44|TIMESTAMP is not
2023-11-16 18:15:46.6805899,374,44|TIMESTAMP is before
2023-11-16 18:15:47,374,44\0000|not a line of text
END
trace "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.$(printf %0229d 0),374,44"
check "refused: 256 characters" ends 1 "replay: $dir/trace.csv:3: not a line" $dir/trace.csv
printf '%s\n2023-11-16 18:15:47,374,44\0' $header >$dir/trace.csv
check "refused: a zero byte at the end" ends 1 "replay: $dir/trace.csv:2: not a line" $dir/trace.csv
trace ''
check "refused: no request" ends 1 "replay: $dir/trace.csv: there is no request" $dir/trace.csv
while IFS='|' read -r options status message; do
    check "refused: replay $options" ends "$status" "replay: $message" $options
done <<END
README.md|1|README.md:1: expected
/dev/zero|1|/dev/zero:1: not a line of text
/dev/null|1|/dev/null:1: expected
examples|1|examples: Is a directory
--generate 9 --csv /dev/full|1|--csv: No space left
--generate 9 --life $dir/no/file|1|$dir/no/file: No such file
|2|expected one TRACE.csv
one two|2|expected one TRACE.csv
--generate 9 --blocks 1048577|2|--blocks 1048577: a budget has at most 16777216 slots
--generate 9 --blocks 3 --shared-prefix 49|2|the budget of 48 slots is smaller
END

# No trace, and an error in the last line of one.
kept() {
    trace '2023-11-16 18:15:47,374,44\nnonsense'
    for file in csv life; do echo kept >$dir/kept-$file; done
    "$REPLAY" --csv $dir/kept-csv --life $dir/kept-life
    "$REPLAY" --csv $dir/kept-csv --life $dir/kept-life $dir/trace.csv
    [ "$(cat $dir/kept-csv $dir/kept-life | tr '\n' ' ')" = "kept kept " ]
}
check "no mistake in the options or the trace empties the file of --csv or --life" kept

# ---- a trace that a hand can follow

trace "2024-02-29 23:59:59,3,3\r
2024-02-29 23:59:59,2,4\r
2024-02-29 23:59:59.09,7,0\r
2024-03-01 00:00:00.1,4,1\r
2024-03-01 00:00:00.11,9,0\r"

# The same with a byte order mark, blank lines, and times as the trace of 2024 has them, or with Z.
{ printf '\357\273\277'; awk 'NR > 1 { sub(",", NR == 4 ? "Z," : "+00:00,") }
    { printf "%s\n\r\n", $0 }' $dir/trace.csv; } >$dir/marked.csv
marked() {
    ends 0 "5 requests" $dir/marked.csv && cp $dir/csv $dir/marked-csv &&
        ends 0 "5 requests" $dir/trace.csv && cmp $dir/csv $dir/marked-csv
}
check "a byte order mark, blank lines and zones are read over" marked

# table BLOCKS OPTIONS... <LINES: with these blocks of 2 slots, these lines are written or printed.
table() {
    cat >$dir/table
    ends 0 "5 requests:" $dir/trace.csv --block-size 2 --blocks "$@" &&
        cat $dir/csv >>$dir/out && ! grep -vxFf $dir/out $dir/table
}

# 8 slots. At step 2 the first request needs a third block, and the second gives way with 3 tokens,
# until step 4. The last does not fit at all. Steps 0 to 8, 44 and 45 have 5, 7, 5, 6, 3, 4, 5, 6,
# 7, 4 and 5 tokens: 57 of 88.
check "preemption: the table" table 4 <<'END'
"reserve maximum",0,0.562500,0.177083,0.260417,0.000000,0.000000,1.000,1,46,2.500,0,0,1
"reserve power of 2",0,0.562500,0.177083,0.052083,0.000000,0.208333,1.000,1,46,2.500,0,0,1
"reserve exactly",0,0.562500,0.177083,0.000000,0.000000,0.260417,1.000,1,46,2.500,0,0,1
"paged 2",2,0.647727,0.056818,0.022727,0.000000,0.272727,1.182,2,46,1.250,1,3,1
paged 2             64.77     5.68     2.27     0.00  27.27
END
life() {
    ends 0 "5 requests" $dir/trace.csv --block-size 2 --blocks 4 --life $dir/life &&
        [ "$(echo $(head -n 19 $dir/life))" = "step,block,request 0,0,0 0,1,0 0,2,1 1,0,0 1,1,0 \
1,2,1 1,3,1 2,0,0 2,1,0 2,2,0 3,0,0 3,1,0 3,2,0 4,0,1 4,1,1 5,0,1 5,1,1 6,0,1" ]
}
check "preemption: the blocks of each step" life

# 10 slots. At step 3 the second request gives way with 4 tokens, two full blocks. These are free
# now, but it waits until step 4, when there is a third one for the token that had no room. Steps 0
# to 7 and 44 to 46 have 5, 7, 9, 6, 4, 5, 6, 7, 4, 5 and 9 tokens: 67 of 110.
check "preemption at the end of a block: the table" table 5 <<'END'
"paged 2",2,0.609091,0.036364,0.027273,0.036364,0.290909,1.273,2,47,1.200,1,4,0
END

# 14 slots. At step 4 of "reserve exactly" the first 6 and the last 2 are free, and the third
# request needs 7 in one piece.
check "holes: the table" table 7 <<'END'
"reserve power of 2",0,0.500000,0.134921,0.047619,0.063492,0.253968,1.444,2,47,0.800,0,0,0
"reserve exactly",0,0.562500,0.151786,0.000000,0.071429,0.214286,1.625,2,46,0.400,0,0,0
"paged 2",2,0.642857,0.040816,0.030612,0.000000,0.285714,1.857,2,46,0.200,0,0,0
END

# All at once, 3 tokens more each, in 12 slots. The last run shares the first block; the second,
# with the third of these tokens, is copied by each request.
check "a shared prefix, saturated: the table" table 6 --shared-prefix 3 --saturate <<'END'
"paged 2",2,0.685897,0.032051,0.012821,0.000000,0.269231,1.077,2,13,6.200,1,5,0
"paged 2, prefix",2,0.727273,0.037879,0.098485,0.000000,0.136364,1.091,2,12,4.750,1,2,1
END

# 14 slots. "reserve maximum" has room for one region, of 8. In "reserve exactly" the second request
# has slots 0 to 6 and the fourth 7 to 13. When the second leaves, the last one fits exactly into
# its hole.
trace "2024-03-01 00:00:00,6,2
2024-03-01 00:00:00,2,5
2024-03-01 00:00:00,2,1
2024-03-01 00:00:00,2,5
2024-03-01 00:00:00,5,2"
check "a hole that fits exactly: the table" table 7 --saturate <<'END'
"reserve maximum",0,0.337302,0.142857,0.091270,0.000000,0.428571,1.000,1,20,8.000,0,0,0
"reserve exactly",0,0.557143,0.257143,0.000000,0.000000,0.185714,1.700,2,12,4.000,0,0,0
END

# ---- generated traces, the real one, and an engine that is wrong

small="--generate 500 --blocks 500 --saturate --block-size 16"
thousand_steps() {
    ends 0 "In all 4 runs, each request" $small --life $dir/life &&
        awk -F, 'NR > 1 && !seen[$1]++ { print $1 }' $dir/life >$dir/steps &&
        [ "$(echo $(sed -n '1p;$p' $dir/steps) $(wc -l <$dir/steps))" = "0 999 1000" ]
}
check "--generate; --life has the first 1000 steps" thousand_steps

check "no block is larger than the budget" ends 0 "In all 7 runs" --generate 9 --blocks 2 \
    --shared-prefix 0
averages() {
    ends 0 "20000 requests" --generate 20000 --block-size 16 &&
        awk 'function near(x, y) { return x / y > 19600 && x / y < 20400 }
            NR == 1 { right = near($3, 1148) && near($6, 210) }
            /^reserve exactly/ && !steps { steps = $5 }
            END { exit !(right && near(steps, .18 / .025)) }' $dir/out
}
check "--generate has the averages of the real trace" averages
check "too few requests to tell allocators apart: it says so" ends 0 "In 3 runs, nothing ever waited" \
    --generate 500 --block-size 16

of_readme() {
    awk '/^[0-9]+ requests: / { on = 1 } /^```/ { on = 0 } on' README.md >$dir/readme
    [ -s $dir/readme ] && ends 0 "19366 requests" "$TRACE" --saturate --block-size 16 &&
        head -n "$(wc -l <$dir/readme)" $dir/out | diff - $dir/readme
}
if [ -f "${TRACE-}" ]; then check "the README shows what the real trace gives" of_readme
else skip "the real trace: no ${TRACE:-AzureLLMInferenceTrace_conv.csv}: TRACE=file.csv sh checks/replay.sh"; fi

# wrong NAME WORDS: with this mistake in the engine, exit status 1 is promised, and these words.
wrong() {
    rm -f $dir/wrong
    python3 learn/plant.py edit $1 >$dir/wrong.c &&
        ${CC:-cc} -w -I. ${CPPFLAGS:-} -DPAGED_NO_MAIN $dir/wrong.c examples/replay.c \
            -o $dir/wrong -lm || return
    REPLAY=$dir/wrong ends 1 "replay: paged 16: $2" $small
}
if command -v python3 >$LOG; then
    python3 learn/plant.py list replay >$dir/list
    while read -r name words; do check "exit status 1: $name" wrong $name "$words"; done <$dir/list
else skip "mistakes in the engine: no python3"; fi
finish
