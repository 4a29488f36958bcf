# paged.gdb: commands that show pools, sequences, K and V, and the lanes of a kernel.
#
#     make debug                               or, by hand:
#     cc -O0 -g3 paged.cu.c -o build/debug -lm
#     gdb -x debugger/paged.gdb build/debug
#
# Use -O0: only then does `next` over a barrier or a shuffle stay in its lane. The commands are plain
# gdb, without Python. Except for `check`, they only read memory, so they work at any point, and on
# the core file of a program that has panicked. `help user-defined` lists them, `help NAME` explains
# one. An argument ends at a space, so write seq->length-1.
#
define pool
  set $paged_pool = (Pool *) ($arg0)
  set $paged_n = $paged_pool->config.num_blocks
  set $paged_used = $paged_n - $paged_pool->num_free
  printf "pool of %d blocks of %d tokens: ", $paged_n, $paged_pool->config.block_size
  printf "%d used, %d free, ", $paged_used, $paged_pool->num_free
  printf "%.1f %% in use\n", 100.0 * $paged_used / $paged_n
  set $paged_i = 0
  while $paged_i < $paged_n
    if $paged_i % 64 == 0
      printf "%8d  ", $paged_i
    end
    set $paged_b = $paged_pool->blocks[$paged_i]
    set $paged_sign = $paged_b.serial != 0 ? 'p' : '.'
    if $paged_b.ref_count > 0
      set $paged_sign = $paged_b.ref_count < 10 ? '0' + $paged_b.ref_count : '+'
    end
    printf "%c", $paged_sign
    set $paged_i = $paged_i + 1
    if $paged_i % 64 == 0 || $paged_i == $paged_n
      echo \n
    end
  end
end
document pool
pool POOL: draw a map of the pool, one character for each block.
'.' is free, 'p' is free and published, a digit is the reference count, '+' a
count of 10 or more.
end

define table
  set $paged_seq = (Seq *) ($arg0)
  set $paged_size = $paged_seq->pool->config.block_size
  set $paged_n = ($paged_seq->length + $paged_size - 1) / $paged_size
  printf "sequence of %d tokens in %d blocks ", $paged_seq->length, $paged_n
  printf "of %d\n", $paged_size
  printf "  logical  physical  filled  ref_count\n"
  set $paged_i = 0
  while $paged_i < $paged_n
    set $paged_block = $paged_seq->block_table[$paged_i]
    set $paged_filled = $paged_seq->length - $paged_i * $paged_size
    if $paged_filled > $paged_size
      set $paged_filled = $paged_size
    end
    printf "  %7d  %8d  ", $paged_i, $paged_block
    printf "%6d  %9d\n", $paged_filled, $paged_seq->pool->blocks[$paged_block].ref_count
    set $paged_i = $paged_i + 1
  end
end
document table
table SEQ: print the block table of a sequence.
For each logical block: the physical block, its filled slots, its reference count.
end

define check
  set $paged_wrong = pool_check($arg0)
  if $paged_wrong
    printf "%s\n", $paged_wrong
  else
    echo all is well\n
  end
end
document check
check POOL: what pool_check() finds broken, or "all is well".
It recounts block tables, reference counts, the free list and the prefix cache.
Use it between two calls of the engine; during one, the counts need not agree.
It runs code of the program, so it does not work on a core file, nor where gdb
says "Couldn't write extended state status": gdb 13, on a processor with AMX.
end

define plan
  set $paged_pool = (Pool *) ($arg0)
  set $paged_plan = $paged_pool->plan
  if $paged_pool->plan_number == 0
    echo No plan, or it is out of date: pool_plan() comes next.\n
  else
    # In host memory: first the offsets, then the query tokens, then the tables.
    set $paged_n = $paged_plan->job.num_query_tokens
    set $paged_offset = $paged_plan->memory
    set $paged_query = (QueryToken *) ($paged_offset + $paged_plan->job.num_seqs + 1)
    set $paged_tables = (int *) ($paged_query + $paged_n)
    printf "plan %lu: %d query tokens", $paged_pool->plan_number, $paged_n
    if $paged_plan->sealed
      printf ", in a shared or published block"
    end
    echo \n
    set $paged_row = 0
    set $paged_i = 0
    while $paged_i < $paged_plan->job.num_seqs
      set $paged_entry = $paged_offset[$paged_i].entry
      set $paged_end = $paged_offset[$paged_i + 1].entry
      if $paged_entry == $paged_end
        printf "  sequence %d: left out", $paged_i
      else
        printf "  sequence %d: positions ", $paged_i
        printf "%d to ", $paged_query[$paged_row].position
        while $paged_row < $paged_n && $paged_query[$paged_row].seq == $paged_i
          set $paged_row = $paged_row + 1
        end
        printf "%d, table", $paged_query[$paged_row - 1].position
      end
      while $paged_entry < $paged_end
        printf " %d", $paged_tables[$paged_entry]
        set $paged_entry = $paged_entry + 1
      end
      echo \n
      set $paged_i = $paged_i + 1
    end
  end
end
document plan
plan POOL: print the plan of the step that pool_plan() made last.
For each sequence: the positions of its query tokens, and its block table.
end

define elements
  # The mantissa has 10 bits in f16 and 7 in bf16. gdb has no 16-bit floats.
  set $paged_one = ($arg3) == PAGED_F16 ? 1 << 10 : 1 << 7
  set $paged_top = 0x7fff / $paged_one
  set $paged_i = 0
  while $paged_i < ($arg2)
    if $paged_i > 0 && $paged_i % 8 == 0
      printf "\n            "
    end
    if ($arg3) == PAGED_F32
      set $paged_x = ((float *) ($arg0))[($arg1) + $paged_i]
    else
      set $paged_h = (int) ((uint16_t *) ($arg0))[($arg1) + $paged_i]
      set $paged_e = ($paged_h & 0x7fff) / $paged_one
      set $paged_x = 1.0 * ($paged_h % $paged_one) / $paged_one
      if $paged_e == $paged_top
        # Infinity is 1 / 0, and NaN 0 / 0.
        set $paged_x = ($paged_x == 0) / 0.0
      else
        set $paged_x = $paged_x + ($paged_e > 0)
        set $paged_e = $paged_e + ($paged_e == 0) - $paged_top / 2
        while $paged_e != 0 && $paged_x != 0
          set $paged_x = $paged_e > 0 ? $paged_x * 2 : $paged_x / 2
          set $paged_e = $paged_e > 0 ? $paged_e - 1 : $paged_e + 1
        end
      end
      if $paged_h & 0x8000
        set $paged_x = -$paged_x
      end
    end
    if $paged_x != $paged_x
      printf "      nan"
    else
      printf " %8.4f", $paged_x
    end
    set $paged_i = $paged_i + 1
  end
  echo \n
end
document elements
elements PLANE FIRST COUNT DTYPE: print elements of a plane of K or V as numbers.
FIRST is what kv_offset() returns. `block' and `kv' use this.
end

define in-range
  set $paged_c = &$paged_pool->config
  set $paged_ok = ($arg0) >= 0 && ($arg0) < $paged_c->num_layers
  set $paged_ok = $paged_ok && ($arg1) >= 0 && ($arg1) < $paged_c->num_blocks
  set $paged_ok = $paged_ok && ($arg2) >= 0 && ($arg2) < $paged_c->num_kv_heads
  if !$paged_ok
    printf "No such place: the pool has layers 0 to %d, ", $paged_c->num_layers - 1
    printf "blocks 0 to %d, ", $paged_c->num_blocks - 1
    printf "KV heads 0 to %d.\n", $paged_c->num_kv_heads - 1
  end
  # The first element of slot 0, as kv_offset() has it.
  set $paged_at = ((size_t) ($arg0) * $paged_c->num_blocks + ($arg1)) * $paged_c->num_kv_heads
  set $paged_at = ($paged_at + ($arg2)) * $paged_c->block_size * $paged_c->head_dim
end
document in-range
(internal, for `block' and `kv') in-range LAYER BLOCK HEAD: check a place.
Sets $paged_ok, and $paged_at to the element of a plane where the place begins.
end

define publication
  set $paged_size = $paged_pool->config.block_size
  set $paged_b = $paged_pool->blocks[$arg0]
  printf ": serial %lu, parent %lu, tokens", $paged_b.serial, $paged_b.parent
  set $paged_t = 0
  while $paged_t < $paged_size && $paged_t < 16
    printf " %d", $paged_pool->tokens[(size_t) ($arg0) * $paged_size + $paged_t]
    set $paged_t = $paged_t + 1
  end
  if $paged_t < $paged_size
    printf " ... of %d", $paged_size
  end
  echo \n
end
document publication
(internal, for `block' and `prefixes') publication BLOCK: end a line on a published block.
end

define prefixes
  set $paged_pool = (Pool *) ($arg0)
  printf "prefix cache: buckets %d, ", $paged_pool->num_buckets
  printf "last serial %lu\n", $paged_pool->last_serial
  # A broken list may go in circles: no more than all blocks are printed.
  set $paged_left = $paged_pool->config.num_blocks
  set $paged_i = 0
  while $paged_i < $paged_pool->num_buckets
    set $paged_block = $paged_pool->buckets[$paged_i]
    if $paged_block != -1
      printf "bucket %d\n", $paged_i
    end
    while $paged_block >= 0 && $paged_block < $paged_pool->config.num_blocks && $paged_left > 0
      printf "  block %d, count ", $paged_block
      printf "%d", $paged_pool->blocks[$paged_block].ref_count
      publication $paged_block
      set $paged_block = $paged_pool->blocks[$paged_block].next_in_bucket
      set $paged_left = $paged_left - 1
    end
    if $paged_block != -1
      printf "  and then block %d, which is wrong\n", $paged_block
    end
    set $paged_i = $paged_i + 1
  end
end
document prefixes
prefixes POOL: list the blocks in the prefix cache, bucket by bucket.
For each block: its reference count, its serial, its parent's serial (0 for the
first block of a prompt), and its first 16 tokens.
end

define block
  set $paged_pool = (Pool *) ($arg0)
  in-range ($arg2) ($arg1) ($arg3)
  if $paged_ok
    set $paged_count = $paged_c->head_dim < 8 ? $paged_c->head_dim : 8
    printf "block %d, layer %d, head %d: ", $arg1, $arg2, $arg3
    printf "reference count %d, ", $paged_pool->blocks[$arg1].ref_count
    printf "elements 0 to %d of %d\n", $paged_count - 1, $paged_c->head_dim
    if $paged_pool->blocks[$arg1].serial != 0
      printf "  published"
      publication ($arg1)
    end
    set $paged_slot = 0
    while $paged_slot < $paged_c->block_size
      printf "  slot %3d K", $paged_slot
      elements $paged_pool->k $paged_at $paged_count $paged_c->dtype
      printf "           V"
      elements $paged_pool->v $paged_at $paged_count $paged_c->dtype
      set $paged_at = $paged_at + $paged_c->head_dim
      set $paged_slot = $paged_slot + 1
    end
  end
end
document block
block POOL BLOCK LAYER HEAD: print K and V of all slots of a block, for one KV head.
It prints the first 8 elements of each vector; `kv' prints all of one token. In a
pool with poison, slots not yet written are nan. For a published block it also
prints serial, parent and tokens. It cannot read the memory of a real GPU.
end

define kv
  set $paged_seq = (Seq *) ($arg0)
  set $paged_pool = $paged_seq->pool
  set $paged_token = (int) ($arg3)
  if $paged_token < 0 || $paged_token >= $paged_seq->length
    printf "No token %d: the sequence has %d.\n", $paged_token, $paged_seq->length
  else
    set $paged_entry = $paged_token / $paged_pool->config.block_size
    set $paged_slot = $paged_token % $paged_pool->config.block_size
    set $paged_block = $paged_seq->block_table[$paged_entry]
    in-range ($arg1) $paged_block ($arg2)
    if $paged_ok
      set $paged_at = $paged_at + $paged_slot * $paged_c->head_dim
      printf "token %d: entry %d, ", $paged_token, $paged_entry
      printf "block %d, slot %d; ", $paged_block, $paged_slot
      printf "layer %d, head %d: element %lu\n", $arg1, $arg2, $paged_at
      printf "  K"
      elements $paged_pool->k $paged_at $paged_c->head_dim $paged_c->dtype
      printf "  V"
      elements $paged_pool->v $paged_at $paged_c->head_dim $paged_c->dtype
    end
  end
end
document kv
kv SEQ LAYER HEAD TOKEN: walk from a token to its K and V, and print both.
The walk: the entry of the block table, the block, the slot, the element of the
plane. HEAD is a KV head. It cannot read the memory of a real GPU.
end

# The stand-in keeps threadIdx and blockIdx as global variables; in cuda-gdb they are built in.
define in-lane
  if ($arg2) < 0 || ($arg2) >= THREADS
    printf "No thread %d: a thread block has threads 0 to %d.\n", $arg2, THREADS - 1
  else
    break $arg0 if blockIdx.x == ($arg1) && threadIdx.x == ($arg2)
  end
end
document in-lane
in-lane KERNEL BLOCK_X THREAD: set a breakpoint for one thread.
It stops in the thread blocks with that x; then `run', or `continue'. KERNEL may be
anything that `break' accepts: a function that kernels call (write_token), or a
line of a kernel (paged.cu.c:900). Without nvcc the threads of a thread block run
one at a time: `next' over a barrier or a shuffle runs the others, and comes back
in the same thread.
end

define lane
  # Outside of a kernel, threadIdx belongs to the last thread that ran: check whose stack this is.
  set $paged_inside = 0
  if gpu.name != 0
    set $paged_depth = (long) $sp - (long) gpu.threads[threadIdx.x].stack
    set $paged_inside = $paged_depth >= 0 && $paged_depth < sizeof gpu.stacks[0]
  end
  if !$paged_inside
    echo Not in a kernel.\n
  else
    printf "%s, thread block (%u, %u, %u), ", gpu.name, blockIdx.x, blockIdx.y, blockIdx.z
    printf "thread %u: warp %u, lane %u\n", threadIdx.x, threadIdx.x / WARP, threadIdx.x % WARP
  end
end
document lane
lane: say which kernel, thread block, thread, warp and lane this is.
It reads the variables of the stand-in. On a GPU, cuda-gdb answers the same
question with `cuda kernel block thread warp lane'.
end

# `step` does not enter the following functions: those of libc, which begin with _, and the smallest
# ones of the engine. A breakpoint in one of them stops as ever; `skip disable` lets `step` in, too.
# pool_write() stores element by element: `finish` takes you out of write_token(). `pipe` (gdb 10)
# keeps `skip` quiet.
pipe -d ; skip -rfu ^_ ; cat >/dev/null
pipe -d ; skip -rfu ^(dtype_size|kv_offset|ceil_div|min_int|multiply|realloc_or_panic)$ ; cat >/dev/null
pipe -d ; skip -rfu ^(stbds_.*|memory_(poison|copy)|block_poison)$ ; cat >/dev/null
pipe -d ; skip -rfu ^(plan_(usable|expire)|float_bits|bits_float)$ ; cat >/dev/null
pipe -d ; skip -rfu ^(b?f(16|32)_to_b?f(16|32)|(load|store)_element)$ ; cat >/dev/null
