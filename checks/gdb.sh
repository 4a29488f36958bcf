#!/bin/sh
# Sessions in gdb with the commands of debugger/paged.gdb. Compared is only what these commands
# print (and printf of gdb), so gdb's version does not matter. Where gdb is missing, or may not run
# a program, the sessions are skipped, and it says so. Ends with the usual line.
#
#     CC=clang DEBUG=build/debug-clang sh checks/gdb.sh      another compiler and other programs
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 skipped=0
LC_ALL=C DEBUGINFOD_URLS=
export LC_ALL DEBUGINFOD_URLS

finish() {
    rm -rf "$scratch"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
    exit
}

skip() {
    echo "SKIPPED: gdb: $1"
    skipped=1
    finish
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/gdb-XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
command -v gdb >/dev/null || skip "not here"

# build PROGRAM SOURCE...: where it is missing, or older than a source.
build() {
    program=$1
    shift
    [ -x "$program" ] && [ -z "$(find paged.h examples/util.h "$@" -newer "$program")" ] && return
    mkdir -p "$(dirname "$program")"
    main=
    [ $# = 1 ] || main=-DPAGED_NO_MAIN
    # shellcheck disable=SC2086
    if ! ${CC:-cc} -O0 -g3 ${CPPFLAGS:-} $main "$@" -o "$scratch/debug" -lm; then
        echo "gdb  FAILED: $program does not compile"
        failed=1
        finish
    fi
    mv "$scratch/debug" "$program"
}

screen=${DEBUG:-build/debug}
tour=$screen-tour
build "$screen" paged.cu.c
build "$tour" paged.cu.c examples/tour.c

# debug PROGRAM COMMANDS: a session without a terminal; 20 seconds, where there is a timeout.
limit=
command -v timeout >/dev/null && limit="timeout 20"
debug() {
    $limit gdb -nx -batch -iex 'set debuginfod enabled off' -iex 'set confirm off' \
        -iex 'set width 0' -iex 'set height 0' -x debugger/paged.gdb -x "$2" "$1" \
        </dev/null >"$scratch/log" 2>&1
}

printf 'break show_tables\nrun\nprintf "traced %%d\\n", 2\nkill\n' >"$scratch/probe"
debug "$screen" "$scratch/probe"
if ! grep -q '^traced 2$' "$scratch/log"; then
    tail -n 3 "$scratch/log"
    skip "it cannot run a program here"
fi

# session NAME PROGRAM: reads commands of gdb. A line that begins with "$ " is one whose output does
# not matter; after "> " comes one that must print the lines that follow it.
session() {
    : >"$scratch/expected"
    awk -v expected="$scratch/expected" '
        /^\$ / { print substr($0, 3); next }
        /^> / { print "echo \\n<<<\\n"; print substr($0, 3); print "echo >>>\\n"; next }
        { print >expected }
        END { print "kill" }' >"$scratch/session"
    debug "$2" "$scratch/session"
    awk '/^>>>$/ { inside = 0 } inside { print } /^<<<$/ { inside = 1 }' "$scratch/log" \
        >"$scratch/actual"
    if diff -u "$scratch/expected" "$scratch/actual" >"$scratch/diff"; then
        echo "gdb_$1  ok"
        passed=$((passed + 1))
    else
        echo "gdb_$1  FAILED (- expected, + printed)"
        sed 1,2d "$scratch/diff"
        echo "The end of the session:"
        tail -n 5 "$scratch/log"
        failed=$((failed + 1))
    fi
}

# A copy-on-write: before, and after the append that made it.
session copy_on_write "$screen" <<'END'
$ break block_copy
$ run
$ up
> table seq
sequence of 10 tokens in 3 blocks of 4
  logical  physical  filled  ref_count
        0         0       4          2
        1         1       4          2
        2         4       2          2
> pool pool
pool of 16 blocks of 4 tokens: 6 used, 10 free, 37.5 % in use
       0  221121..........
$ finish
> table a
sequence of 11 tokens in 3 blocks of 4
  logical  physical  filled  ref_count
        0         0       4          2
        1         1       4          2
        2         5       3          1
> pool pool
pool of 16 blocks of 4 tokens: 6 used, 10 free, 37.5 % in use
       0  221111..........
> check pool
all is well
END

# More rows than one, and the signs for many references and for published blocks.
session rows "$tour" <<'END'
$ break pool_dump
$ run 3
> table pool->seqs[0]
sequence of 320 tokens in 20 blocks of 16
  logical  physical  filled  ref_count
        0         0      16          1
        1         1      16          1
        2         2      16          1
        3         3      16          1
        4         4      16          1
        5         5      16          1
        6         6      16          1
        7         7      16          1
        8         8      16          1
        9         9      16          1
       10        10      16          1
       11        11      16          1
       12        12      16          1
       13        13      16          1
       14        14      16          1
       15        15      16          1
       16        16      16          1
       17        17      16          1
       18        18      16          1
       19        19      16          1
$ set var pool->blocks[70].ref_count = 9
$ set var pool->blocks[71].ref_count = 10
$ set var pool->blocks[72].serial = 1
$ set var pool->config.num_blocks = 130, pool->num_free = 60
> pool pool
pool of 130 blocks of 16 tokens: 70 used, 60 free, 53.8 % in use
       0  11111111111111111111111111111111111111111111111111111111........
      64  ......9+p.......................................................
     128  ..
END

# A planned step, and what makes it out of date.
session plan "$tour" <<'END'
$ break pool_write if layer == 0
$ run 7
> plan pool
plan 1: 6 query tokens
  sequence 0: positions 0 to 5, table 7 2
$ break seq_rewind if n == 3
$ ignore 1 10
$ continue
> plan seq->pool
plan 6: 4 query tokens
  sequence 0: positions 18 to 21, table 12 5 3 9 0 1
$ set var seq->pool->plan->sealed = 1
$ set var seq->pool->plan->view.num_seqs = 2
$ set var seq->pool->plan->starts = (Start *)seq->pool->tokens
$ set var seq->pool->plan->starts[0].table = 0
$ set var seq->pool->plan->starts[1].table = 0
$ set var seq->pool->plan->starts[2].table = 6
$ set var seq->pool->plan->queries[0].seq = 1
$ set var seq->pool->plan->queries[1].seq = 1
$ set var seq->pool->plan->queries[2].seq = 1
$ set var seq->pool->plan->queries[3].seq = 1
> plan seq->pool
plan 6: 4 query tokens, in a shared or published block
  sequence 0: left out
  sequence 1: positions 18 to 21, table 12 5 3 9 0 1
$ finish
> plan pool
No plan, or it is out of date: pool_plan() comes next.
END

# K and V as they were written; nan is what was not, and what a 16-bit pool keeps has been rounded.
session keys_and_values "$tour" <<'END'
$ break pool_write if layer == 0
$ run 9
$ finish
> block seq->pool seq->block_table[2] 0 1
block 2, layer 0, head 1: reference count 1, elements 0 to 7 of 8
  slot   0 K   0.3239  -0.9277  -0.8311  -0.2214   0.3047   0.4768   0.1733   0.0976
           V   0.9335   0.8085  -0.2427  -0.0701   0.4384  -0.0290   0.0351   0.6982
  slot   1 K  -0.5664   0.6166  -0.5379  -0.4226   0.7675  -0.4078  -0.6799   0.8705
           V  -0.8393   0.4502  -0.1716  -0.3077   0.6544   0.3825  -0.7000  -0.8682
  slot   2 K      nan      nan      nan      nan      nan      nan      nan      nan
           V      nan      nan      nan      nan      nan      nan      nan      nan
  slot   3 K      nan      nan      nan      nan      nan      nan      nan      nan
           V      nan      nan      nan      nan      nan      nan      nan      nan
> kv seq 0 1 9
token 9: entry 2, block 2, slot 1; layer 0, head 1: element 168
  K  -0.5664   0.6166  -0.5379  -0.4226   0.7675  -0.4078  -0.6799   0.8705
  V  -0.8393   0.4502  -0.1716  -0.3077   0.6544   0.3825  -0.7000  -0.8682
> kv seq 0 0 0
token 0: entry 0, block 0, slot 0; layer 0, head 0: element 0
  K   0.1331   0.4916   0.9420  -0.1113  -0.1115   0.5258   0.7547   0.0461
  V  -0.9944  -0.6789   0.4445   0.5495  -0.4210  -0.2937   0.7160  -0.1241
> kv seq 1 1 9
token 9: entry 2, block 2, slot 1; layer 1, head 1: element 680
  K      nan      nan      nan      nan      nan      nan      nan      nan
  V      nan      nan      nan      nan      nan      nan      nan      nan
$ delete
$ break pool_create if config->num_blocks == 8
$ run 9
$ set var ((PoolConfig *) config)->dtype = PAGED_BF16
$ delete
$ break attend
$ continue
> kv pool->seqs[0] 0 1 9
token 9: entry 2, block 2, slot 1; layer 0, head 1: element 168
  K  -0.5664   0.6172  -0.5391  -0.4219   0.7656  -0.4082  -0.6797   0.8711
  V  -0.8398   0.4492  -0.1719  -0.3086   0.6562   0.3828  -0.6992  -0.8672
$ set var ((uint16_t *) pool->k)[0] = 0x8001
$ set var ((uint16_t *) pool->k)[1] = 0xfc00
$ set var ((uint16_t *) pool->k)[2] = 0x7bff
$ set var ((uint16_t *) pool->k)[3] = 0xbc00
$ set var ((uint16_t *) pool->k)[4] = 0x03ff
$ set var ((uint16_t *) pool->k)[5] = 0x3f80
$ set var ((uint16_t *) pool->k)[6] = 0x7fff
$ set var ((uint16_t *) pool->k)[7] = 0x0001
$ set var ((uint16_t *) pool->k)[8] = 0x7f80
$ set var ((uint16_t *) pool->k)[9] = 0xff81
> elements pool->k 0 9 PAGED_F16
  -0.0000     -inf 65504.0000  -1.0000   0.0001   1.8750      nan   0.0000
                  nan
> elements pool->k 4 6 PAGED_BF16
   0.0000   1.0000      nan   0.0000      inf      nan
END

# Lane 5 steps through its warp's tokens 0, 4 and 8, over five shuffles each. All lanes of a warp
# end with the same score and the same m.
line_of() { awk -v text="$1" 'index($0, text) { print NR; exit }' paged.cu.c; }
session lane "$tour" <<END
\$ set \$strayed = 0
\$ define next-to
\$   info line \$arg0
\$   set \$there = (long) \$_
\$   set \$steps = 0
\$   next
\$   while (long) \$pc != \$there && \$steps < 200
\$     next
\$     set \$steps = \$steps + 1
\$     set \$strayed = \$strayed + (threadIdx.x != 5 || blockIdx.x != 0)
\$   end
\$ end
\$ in-lane attend_tokens 0 5
> lane
Not in a kernel.
\$ run --standin 9
> lane
attend_paged, thread block (0, 0, 0), thread 5: warp 0, lane 5
\$ next-to $(line_of 'float new_m = fmaxf(m, score);')
> printf "t %d: score %.4f, m %.4f\n", t, score, m
t 0: score -0.1614, m -inf
\$ next-to $(line_of 'float new_m = fmaxf(m, score);')
> printf "t %d: score %.4f, m %.4f\n", t, score, m
t 4: score -0.1638, m -0.1614
\$ next-to $(line_of 'float new_m = fmaxf(m, score);')
> printf "t %d: score %.4f, m %.4f\n", t, score, m
t 8: score 0.3659, m -0.1614
\$ next-to $(line_of 'float *state = shared')
> printf "m %.4f\n", m
m 0.3659
> lane
attend_paged, thread block (0, 0, 0), thread 5: warp 0, lane 5
> printf "left the lane %d times\n", \$strayed
left the lane 0 times
END

# Damage by hand, one at a time: check says what pool_check() says.
while read -r damage; do
    read -r message
    printf '%s\n' '$ delete' '$ break pool_check' '$ run 9' "\$ set var $damage" \
        '> check pool' "$message" '$ finish' '> printf "%s\n", $' "$message"
done >"$scratch/damages" <<'END'
pool->blocks[1].ref_count = 2
block 1: reference count 2, but 1 table entries
pool->blocks[5].prev = 7
free list: block 5 has a wrong link back
pool->blocks[5].next = 9
free list: 9 is no block
pool->blocks[8].prev = 6
free list: its head has a wrong link back
pool->num_free = 6
free list: 5 blocks, but num_free is 6
pool->seqs[0].length = 13
sequence 0: 3 blocks for 13 tokens
pool->seqs[0].block_table[2] = 8
sequence 0: entry 2 of its table is 8
pool->seqs[0].block_table[2] = 1
block 1: reference count 1, but 2 table entries
END
session broken_pool "$tour" <"$scratch/damages"

# The prefix cache as a second request finds it: two free blocks, one the child of the other. Then
# a list that goes in circles.
session prefix_cache "$tour" <<'END'
$ break seq_lookup if n == 12
$ run 10
> prefixes seq->pool
prefix cache: buckets 8, last serial 2
bucket 2
  block 0, count 0: serial 1, parent 0, tokens 98 101 32 107
bucket 7
  block 1, count 0: serial 2, parent 1, tokens 105 110 100 46
> pool seq->pool
pool of 8 blocks of 4 tokens: 0 used, 8 free, 0.0 % in use
       0  pp......
$ finish
> table seq
sequence of 8 tokens in 2 blocks of 4
  logical  physical  filled  ref_count
        0         0       4          1
        1         1       4          1
> block pool 1 1 0
block 1, layer 1, head 0: reference count 1, elements 0 to 7 of 8
  published: serial 2, parent 1, tokens 105 110 100 46
  slot   0 K  -0.7890  -0.7655  -0.9678  -0.4594   0.9383   0.8764  -0.6040  -0.5120
           V  -0.3842  -0.7135  -0.5042   0.2311   0.2398  -0.3519   0.9385   0.8305
  slot   1 K  -0.0519   0.7081   0.6270   0.9910   0.3066  -0.4583   0.4727  -0.7994
           V  -0.0841  -0.6246   0.4030   0.8726  -0.5845   0.8569  -0.9390   0.7193
  slot   2 K  -0.0999   0.9498  -0.5104   0.1193  -0.2272   0.1106  -0.5738  -0.7842
           V   0.9575  -0.1371  -0.7815  -0.4142   0.2920   0.4080   0.1764  -0.4514
  slot   3 K  -0.2399  -0.5688  -0.3043  -0.5681   0.1931   0.6069  -0.2441   0.2845
           V   0.7802   0.0011   0.0605  -0.2679   0.5807  -0.6692  -0.3557  -0.7728
> check pool
all is well
$ set var pool->blocks[1].next_in_bucket = 1
> prefixes pool
prefix cache: buckets 8, last serial 2
bucket 2
  block 0, count 1: serial 1, parent 0, tokens 98 101 32 107
bucket 7
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  and then block 1, which is wrong
END

# What is not there is refused in words.
session refusals "$tour" <<'END'
$ break attend
$ run 9
> block pool 8 2 -1
No layer 2: the pool has layers 0 to 1.
No block 8: the pool has blocks 0 to 7.
No head -1: the pool has KV heads 0 to 1.
> kv pool->seqs[0] 0 0 10
No token 10: the sequence has 10.
> kv pool->seqs[0] 2 2 9
No layer 2: the pool has layers 0 to 1.
No head 2: the pool has KV heads 0 to 1.
> in-lane attend_tokens 0 128
No thread 128: a thread block has threads 0 to 127.
> lane
Not in a kernel.
END

# Each command has a help text: that of paged.gdb.
awk '$1 == "define" { names[++n] = $2 }
    /^end$/ { name = "" }
    name { text[name] = text[name] $0 "\n" }
    $1 == "document" { name = $2 }
    END { for (i = 1; i <= n; i++) printf "> help %s\n%s", names[i], text[names[i]] }' \
    debugger/paged.gdb >"$scratch/help"
session help "$screen" <"$scratch/help"

finish
