#!/bin/sh
# Sessions in gdb with the commands of paged.gdb. Compared is only what these commands print (and
# printf of gdb), so gdb's version does not matter. Where gdb is missing, or may not run a program,
# the sessions are skipped, and it says so. Ends with the usual line.
#
#     CC=clang DEBUG=build/debug-clang sh checks/gdb.sh      another compiler and another program
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

program=${DEBUG:-build/debug}
if [ ! -x "$program" ] ||
    [ -n "$(find paged.cu.c paged.h fast.c standin.h oracle.c examples/tour.c -newer "$program")" ]; then
    mkdir -p "$(dirname "$program")"
    if ! ${CC:-cc} -O0 -g3 paged.cu.c -o "$scratch/debug" -lm; then
        echo "gdb  FAILED: $program does not compile"
        failed=1
        finish
    fi
    mv "$scratch/debug" "$program"
fi

# debug COMMAND_FILE: a session without a terminal; 20 seconds, where there is a timeout.
limit=
command -v timeout >/dev/null && limit="timeout 20"
debug() {
    $limit gdb -nx -batch -iex 'set debuginfod enabled off' -iex 'set confirm off' \
        -iex 'set width 0' -iex 'set height 0' -x paged.gdb -x "$1" "$program" \
        </dev/null >"$scratch/log" 2>&1
}

printf 'break main\nrun --help\nprintf "traced %%d\\n", argc\nkill\n' >"$scratch/probe"
debug "$scratch/probe"
if ! grep -q '^traced 2$' "$scratch/log"; then
    tail -n 3 "$scratch/log"
    skip "it cannot run a program here"
fi

# line_of FUNCTION TEXT: the number of the first line from the function on that contains the text.
line_of() {
    awk -v function_name="$1" -v text="$2" '
        $0 ~ "^[A-Za-z].* " function_name "\\(" { inside = 1 }
        inside && index($0, text) { print NR; exit }' paged.cu.c
}

# session NAME: runs the commands in $scratch/commands. Of those that begin with "> " the output
# is compared with $scratch/expected.
session() {
    awk '/^ *> / { sub(/> /, ""); print "echo \\n<<<\\n"; print; print "echo >>>\\n"; next }
        { print }' "$scratch/commands" >"$scratch/session"
    echo kill >>"$scratch/session"
    debug "$scratch/session"
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

# A copy on write: before, and after the append that made it.
cat >"$scratch/commands" <<'END'
break move_slots if from >= 0
run 4
up
> table seq
> pool pool
finish
> table seq
> pool seq->pool
> check seq->pool
END
cat >"$scratch/expected" <<'END'
sequence of 200 tokens in 13 blocks of 16
  logical     0    1    2    3    4    5    6    7    8    9   10   11   12
  physical    0    1    2    3    4    5    6    7    8    9   10   11   12
  filled     16   16   16   16   16   16   16   16   16   16   16   16    8
  ref_count   11   11   11   11   11   11   11   11   11   11   11   11   11
pool of 32 blocks of 16 tokens: 14 used, 18 free, 43.8 % in use
       0  +++++++++++++1..................
sequence of 201 tokens in 13 blocks of 16
  logical     0    1    2    3    4    5    6    7    8    9   10   11   12
  physical    0    1    2    3    4    5    6    7    8    9   10   11   13
  filled     16   16   16   16   16   16   16   16   16   16   16   16    9
  ref_count   11   11   11   11   11   11   11   11   11   11   11   11    1
pool of 32 blocks of 16 tokens: 14 used, 18 free, 43.8 % in use
       0  +++++++++++++1..................
all is well
END
session copy_on_write

# Three rejected tokens of a draft.
cat >"$scratch/commands" <<'END'
break seq_rewind if n == 3
run 7
> table seq
> pool seq->pool
finish
> table b
> pool b->pool
END
cat >"$scratch/expected" <<'END'
sequence of 22 tokens in 6 blocks of 4
  logical     0    1    2    3    4    5
  physical   12    5    3    9    0    1
  filled      4    4    4    4    4    2
  ref_count    1    1    1    1    1    1
pool of 16 blocks of 4 tokens: 8 used, 8 free, 50.0 % in use
       0  1111.1.1.1..1...
sequence of 19 tokens in 5 blocks of 4
  logical     0    1    2    3    4
  physical   12    5    3    9    0
  filled      4    4    4    4    3
  ref_count    1    1    1    1    1
pool of 16 blocks of 4 tokens: 7 used, 9 free, 43.8 % in use
       0  1.11.1.1.1..1...
END
session rewind

# K and V as they were written; nan is what was not, and what a 16-bit pool keeps has been rounded.
cat >"$scratch/commands" <<'END'
break pool_write if layer == 0
run 9
finish
> block seq->pool seq->block_table[2] 0 1
> kv seq 0 1 9
> kv seq 1 1 9
delete
break pool_create
run 9
set var ((PoolConfig *) config)->dtype = PAGED_BF16
delete
break attend
continue
> block pool 2 0 1
set var ((uint16_t *) pool->k)[0] = 0x8001
set var ((uint16_t *) pool->k)[1] = 0xfc00
set var ((uint16_t *) pool->k)[2] = 0x7bff
set var ((uint16_t *) pool->k)[3] = 0xbc00
set var ((uint16_t *) pool->k)[4] = 0x03ff
set var ((uint16_t *) pool->k)[5] = 0x3f80
> elements pool->k 0 6 PAGED_F16
> elements pool->k 4 2 PAGED_BF16
END
cat >"$scratch/expected" <<'END'
block 2, layer 0, head 1: reference count 1, elements 0 to 7 of 8
  slot   0 K   0.3239  -0.9277  -0.8311  -0.2214   0.3047   0.4768   0.1733   0.0976
           V   0.9335   0.8085  -0.2427  -0.0701   0.4384  -0.0290   0.0351   0.6982
  slot   1 K  -0.5664   0.6166  -0.5379  -0.4226   0.7675  -0.4078  -0.6799   0.8705
           V  -0.8393   0.4502  -0.1716  -0.3077   0.6544   0.3825  -0.7000  -0.8682
  slot   2 K      nan      nan      nan      nan      nan      nan      nan      nan
           V      nan      nan      nan      nan      nan      nan      nan      nan
  slot   3 K      nan      nan      nan      nan      nan      nan      nan      nan
           V      nan      nan      nan      nan      nan      nan      nan      nan
token 9: entry 2 of the table is block 2, slot 1; layer 0, head 1: element 168
           K  -0.5664   0.6166  -0.5379  -0.4226   0.7675  -0.4078  -0.6799   0.8705
           V  -0.8393   0.4502  -0.1716  -0.3077   0.6544   0.3825  -0.7000  -0.8682
token 9: entry 2 of the table is block 2, slot 1; layer 1, head 1: element 680
           K      nan      nan      nan      nan      nan      nan      nan      nan
           V      nan      nan      nan      nan      nan      nan      nan      nan
block 2, layer 0, head 1: reference count 1, elements 0 to 7 of 8
  slot   0 K   0.3242  -0.9258  -0.8320  -0.2217   0.3047   0.4766   0.1729   0.0977
           V   0.9336   0.8086  -0.2432  -0.0703   0.4375  -0.0291   0.0352   0.6992
  slot   1 K  -0.5664   0.6172  -0.5391  -0.4219   0.7656  -0.4082  -0.6797   0.8711
           V  -0.8398   0.4492  -0.1719  -0.3086   0.6562   0.3828  -0.6992  -0.8672
  slot   2 K      nan      nan      nan      nan      nan      nan      nan      nan
           V      nan      nan      nan      nan      nan      nan      nan      nan
  slot   3 K      nan      nan      nan      nan      nan      nan      nan      nan
           V      nan      nan      nan      nan      nan      nan      nan      nan
  -0.0000     -inf 65504.0000  -1.0000   0.0001   1.8750
   0.0000   1.0000
END
session keys_and_values

# Lane 5 steps through its warp's tokens 0, 4 and 8, over five shuffles each: the scores and the
# maximum are those of the tour's table. All lanes end with the same score; m is each lane's own.
score=$(line_of attend_paged 'if (score == -INFINITY) continue;')
state=$(line_of attend_paged 'float *state = ')
cat >"$scratch/commands" <<END
set \$strayed = 0
define next-to
  info line \$arg0
  set \$there = (long) \$_
  set \$steps = 0
  next
  while (long) \$pc != \$there && \$steps < 200
    next
    set \$steps = \$steps + 1
    set \$strayed = \$strayed + (threadIdx.x != 5 || blockIdx.x != 0)
  end
end
in-lane attend_paged 0 5
> lane
run --gpu 9
> lane
next-to $score
> printf "t %d: score %.4f, m %.4f\n", t, score, m
next-to $score
> printf "t %d: score %.4f, m %.4f\n", t, score, m
next-to $score
> printf "t %d: score %.4f, m %.4f\n", t, score, m
next-to $state
> printf "m %.4f\n", m
> lane
> printf "left the lane %d times\n", \$strayed
END
cat >"$scratch/expected" <<'END'
Not in a kernel.
attend_paged, thread block (0, 0, 0), thread 5: warp 0, lane 5
t 0: score -0.1614, m -inf
t 4: score -0.1638, m -0.1614
t 8: score 0.3659, m -0.1614
m 0.3659
attend_paged, thread block (0, 0, 0), thread 5: warp 0, lane 5
left the lane 0 times
END
session lane

# A count set wrong by hand: check and pool_check() say the same.
cat >"$scratch/commands" <<'END'
break pool_check
run 9
> check pool
set var pool->blocks[1].ref_count = 2
> check pool
finish
> printf "%s\n", $
delete
break pool_check
run 9
set var pool->blocks[5].prev = 7
> check pool
finish
> printf "%s\n", $
delete
break pool_check
run 9
set var pool->num_free = 6
> check pool
finish
> printf "%s\n", $
delete
break pool_check
run 9
set var pool->seqs[0].length = 13
> check pool
finish
> printf "%s\n", $
END
cat >"$scratch/expected" <<'END'
all is well
block 1: reference count 2, but 1 table entries
block 1: reference count 2, but 1 table entries
free list: block 5 has a wrong link back
free list: block 5 has a wrong link back
free list: 5 blocks, but num_free is 6
free list: 5 blocks, but num_free is 6
sequence 0: 3 blocks for 13 tokens
sequence 0: 3 blocks for 13 tokens
END
session broken_pool

# The prefix cache as a second request finds it: two free blocks, one the child of the other.
cat >"$scratch/commands" <<'END'
break seq_lookup if n == 12
run 10
> prefixes seq->pool
> pool seq->pool
finish
> table seq
> block pool 1 1 0
> check pool
set var pool->prefixes[1].value = 0
set var pool->blocks[0].next_alike = 1
set var pool->blocks[1].next_alike = 0
> prefixes pool
END
cat >"$scratch/expected" <<'END'
prefix cache: hashes 2, last serial 2
hash 9aa1326aada8976a
  block 0, count 0: serial 1, parent 0, tokens 98 101 32 107
hash 5f819d79e890b8b7
  block 1, count 0: serial 2, parent 1, tokens 105 110 100 46
pool of 8 blocks of 4 tokens: 0 used, 8 free, 0.0 % in use
       0  pp......
sequence of 8 tokens in 2 blocks of 4
  logical     0    1
  physical    0    1
  filled      4    4
  ref_count    1    1
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
all is well
prefix cache: hashes 2, last serial 2
hash 9aa1326aada8976a
  block 0, count 1: serial 1, parent 0, tokens 98 101 32 107
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  block 0, count 1: serial 1, parent 0, tokens 98 101 32 107
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  block 0, count 1: serial 1, parent 0, tokens 98 101 32 107
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  block 0, count 1: serial 1, parent 0, tokens 98 101 32 107
  block 1, count 1: serial 2, parent 1, tokens 105 110 100 46
  the chain goes on to block 0: `check' says more
hash 5f819d79e890b8b7
  the chain goes on to block 0: `check' says more
END
session prefix_cache

# Damage to the prefix cache, one at a time: check and pool_check() say the same.
while read -r damage; do
    printf 'delete\nbreak pool_check\nrun 10\nset var %s\n' "$damage"
    printf '> check pool\nfinish\n> printf "%%s\\n", $\n'
done >"$scratch/commands" <<'END'
pool->blocks[1].serial = 0
pool->blocks[1].serial = 99
pool->blocks[1].parent = 0
pool->blocks[1].parent = 12
pool->blocks[1].next_alike = 1
pool->blocks[5].serial = 0
pool->tokens[0] = 0
pool->prefixes[0].value = 8
pool->prefixes[0].key = 17
pool->last_serial = 3
pool->seqs[0].published = 3
pool->seqs[0].written = 12
pool->seqs[0].block_table[0] = 1, pool->seqs[0].block_table[1] = 0
END
cat >"$scratch/expected" <<'END'
prefix cache: it leads to block 1
prefix cache: it leads to block 1
block 1: published before its parent, or in the future
block 1: published before its parent, or in the future
prefix cache: block 1 stands under another hash
prefix cache: block 1 stands under another hash
block 1: published before its parent, or in the future
block 1: published before its parent, or in the future
prefix cache: it leads to block 1
prefix cache: it leads to block 1
free list: block 5 stands behind published ones
free list: block 5 stands behind published ones
prefix cache: block 0 stands under another hash
prefix cache: block 0 stands under another hash
prefix cache: it leads to block 8
prefix cache: it leads to block 8
prefix cache: block 0 stands under another hash
prefix cache: block 0 stands under another hash
block 1: published before its parent, or in the future
block 1: published before its parent, or in the future
sequence 0: 11 tokens, 11 written, 3 blocks published
sequence 0: 11 tokens, 11 written, 3 blocks published
sequence 0: 11 tokens, 12 written, 2 blocks published
sequence 0: 11 tokens, 12 written, 2 blocks published
sequence 0: block 0 is not the child of the one before
sequence 0: block 0 is not the child of the one before
END
session broken_prefix_cache

# What is not there is refused in words.
cat >"$scratch/commands" <<'END'
break attend
run 9
> pool 0
> table 0
> check 0
> block 0 0 0 0
> kv 0 0 0 0
> prefixes 0
> block pool 8 2 -1
> kv batch->seqs[0] 0 0 10
> kv batch->seqs[0] 2 2 9
> in-lane attend_paged 0 128
> lane
END
cat >"$scratch/expected" <<'END'
No pool: the pointer is 0.
No sequence: the pointer is 0.
No pool: the pointer is 0.
No pool: the pointer is 0.
No sequence: the pointer is 0.
No pool: the pointer is 0.
No layer 2: the pool has layers 0 to 1.
No block 8: the pool has blocks 0 to 7.
No head -1: the pool has KV heads 0 to 1.
No token 10: the sequence has 10.
No layer 2: the pool has layers 0 to 1.
No head 2: the pool has KV heads 0 to 1.
No thread 128: a thread block has threads 0 to 127.
Not in a kernel.
END
session refusals

# Each command has a help text: that of paged.gdb.
for name in $(sed -n 's/^define //p' paged.gdb); do
    echo "> help $name"
    awk -v name="$name" '/^end$/ { inside = 0 } inside { print }
        $1 == "document" && $2 == name { inside = 1 }' paged.gdb >>"$scratch/texts"
done >"$scratch/commands"
cp "$scratch/texts" "$scratch/expected"
session help

finish
