# paged.gdb: commands that show pools, sequences, K and V, and the lanes of a kernel.
#
#     cc -O0 -g3 paged.cu.c -o build/debug -lm
#     gdb -x paged.gdb build/debug
#
# Take -O0: only there does `next` over a barrier or a shuffle stay in its lane. The commands are
# plain gdb, without Python. They read memory and call nothing in the program, so they work in the
# middle of anything, and on the core file of a program that a broken invariant stopped.
# `help user-defined` lists them, `help NAME` explains one.
#
# A session on the host, from before a copy on write to after it:
#
#     (gdb) break move_slots if from >= 0
#     (gdb) run 4
#     (gdb) up                                 into seq_append(), where `pool` and `seq` are
#     (gdb) table seq
#     (gdb) pool pool
#     (gdb) finish                             this ends seq_append(): the caller is grow()
#     (gdb) table seq
#     (gdb) pool seq->pool
#     (gdb) check seq->pool
#
# `prefixes pool` lists what the prefix cache of a pool can find.
#
# And in thread 5 of the thread blocks with x = 0:
#
#     (gdb) in-lane attend_paged 0 5
#     (gdb) run --gpu 9
#     (gdb) lane
#     (gdb) next                               as often as you like, over shuffles, too
#     (gdb) print score
#
# An argument ends at a space: write seq->length-1, not seq->length - 1.

define pool
  if $argc != 1
    help pool
  else
    set $paged_pool = (Pool *) ($arg0)
    if $paged_pool == 0
      echo No pool: the pointer is 0.\n
    else
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
        set $paged_count = $paged_pool->blocks[$paged_i].ref_count
        if $paged_count == 0
          if $paged_pool->blocks[$paged_i].serial == 0
            echo .
          else
            echo p
          end
        else
          if $paged_count < 10
            printf "%d", $paged_count
          else
            echo +
          end
        end
        set $paged_i = $paged_i + 1
        if $paged_i % 64 == 0 || $paged_i == $paged_n
          echo \n
        end
      end
    end
  end
end
document pool
pool POOL: draw the map of a pool, one character a block.
'.' is free, 'p' is free and published, a digit is the reference count, '+' a
count of 10 or more.
end

define table
  if $argc != 1
    help table
  else
    set $paged_seq = (Seq *) ($arg0)
    if $paged_seq == 0
      echo No sequence: the pointer is 0.\n
    else
      set $paged_size = $paged_seq->pool->config.block_size
      set $paged_n = ($paged_seq->length + $paged_size - 1) / $paged_size
      printf "sequence of %d tokens in %d blocks ", $paged_seq->length, $paged_n
      printf "of %d\n", $paged_size
      set $paged_start = 0
      while $paged_start < $paged_n
        set $paged_end = $paged_start + 13
        if $paged_end > $paged_n
          set $paged_end = $paged_n
        end
        set $paged_line = 0
        while $paged_line < 4
          if $paged_line == 0
            echo \ \ logical\ \ 
          end
          if $paged_line == 1
            echo \ \ physical\ 
          end
          if $paged_line == 2
            echo \ \ filled\ \ \ 
          end
          if $paged_line == 3
            echo \ \ ref_count
          end
          set $paged_i = $paged_start
          while $paged_i < $paged_end
            set $paged_block = $paged_seq->block_table[$paged_i]
            set $paged_x = $paged_i
            if $paged_line == 1
              set $paged_x = $paged_block
            end
            if $paged_line == 2
              set $paged_x = $paged_seq->length - $paged_i * $paged_size
              if $paged_x > $paged_size
                set $paged_x = $paged_size
              end
            end
            if $paged_line == 3
              set $paged_x = $paged_seq->pool->blocks[$paged_block].ref_count
            end
            printf " %4d", $paged_x
            set $paged_i = $paged_i + 1
          end
          echo \n
          set $paged_line = $paged_line + 1
        end
        set $paged_start = $paged_end
      end
    end
  end
end
document table
table SEQ: print the block table of a sequence.
For each logical block: the physical block, its filled slots, its reference count.
end

# Sets $paged_ok to 0, and says why, if the prefix cache is broken. The first entry of a hash map of
# stb_ds is a default, and the pointer goes past it: the header is one entry further in front.
define check-prefixes
  if $argc != 1
    help check-prefixes
  else
    set $paged_pool = (Pool *) ($arg0)
    set $paged_records = $paged_pool->blocks
    set $paged_n = $paged_pool->config.num_blocks
    set $paged_size = $paged_pool->config.block_size
    set $paged_ok = 1
    set $paged_published = 0
    set $paged_i = 0
    while $paged_ok && $paged_i < $paged_n
      set $paged_b = $paged_records[$paged_i]
      if $paged_b.serial != 0
        set $paged_published = $paged_published + 1
        if $paged_b.serial > $paged_pool->last_serial || $paged_b.parent >= $paged_b.serial
          printf "block %d: published before its parent, or in the future\n", $paged_i
          set $paged_ok = 0
        end
      end
      set $paged_i = $paged_i + 1
    end
    set $paged_entries = 0
    if $paged_pool->prefixes != 0
      set $paged_entries = (int) ((size_t *) ($paged_pool->prefixes - 1))[-4] - 1
    end
    set $paged_found = 0
    set $paged_i = 0
    while $paged_ok && $paged_i < $paged_entries
      set $paged_block = $paged_pool->prefixes[$paged_i].value
      set $paged_more = 1
      while $paged_ok && $paged_more
        set $paged_found = $paged_found + 1
        set $paged_ok = $paged_block >= 0 && $paged_block < $paged_n
        if $paged_ok
          set $paged_ok = $paged_found <= $paged_published
          set $paged_ok = $paged_ok && $paged_records[$paged_block].serial != 0
        end
        if !$paged_ok
          printf "prefix cache: it leads to block %d\n", $paged_block
        else
          # prefix_hash() by hand, if it is the one that the pool uses.
          set $paged_hash = $paged_pool->prefixes[$paged_i].key
          if $paged_pool->hash == &prefix_hash
            set $paged_hash = $paged_records[$paged_block].parent
            set $paged_t = 0
            while $paged_t < $paged_size
              set $paged_x = $paged_pool->tokens[(size_t) $paged_block * $paged_size + $paged_t]
              set $paged_hash = ($paged_hash ^ (uint32_t) $paged_x) + 0x9e3779b97f4a7c15
              set $paged_hash = ($paged_hash ^ ($paged_hash >> 30)) * 0xbf58476d1ce4e5b9
              set $paged_hash = ($paged_hash ^ ($paged_hash >> 27)) * 0x94d049bb133111eb
              set $paged_hash = $paged_hash ^ ($paged_hash >> 31)
              set $paged_t = $paged_t + 1
            end
          end
          if $paged_hash != $paged_pool->prefixes[$paged_i].key
            printf "prefix cache: block %d stands under another hash\n", $paged_block
            set $paged_ok = 0
          end
          set $paged_block = $paged_records[$paged_block].next_alike
          set $paged_more = $paged_block != -1
        end
      end
      set $paged_i = $paged_i + 1
    end
    if $paged_ok && $paged_found != $paged_published
      printf "prefix cache: %d blocks of %d\n", $paged_found, $paged_published
      set $paged_ok = 0
    end
    set $paged_seqs = 0
    if $paged_pool->seqs != 0
      set $paged_seqs = ((size_t *) $paged_pool->seqs)[-4]
    end
    set $paged_s = 0
    while $paged_ok && $paged_s < $paged_seqs
      set $paged_seq = $paged_pool->seqs[$paged_s]
      set $paged_parent = (uint64_t) 0
      set $paged_i = 0
      while $paged_ok && $paged_i < $paged_seq->published
        set $paged_b = $paged_records[$paged_seq->block_table[$paged_i]]
        if $paged_b.serial == 0 || $paged_b.parent != $paged_parent
          printf "sequence %d: block %d is not the child of the one before\n", $paged_s, $paged_i
          set $paged_ok = 0
        end
        set $paged_parent = $paged_b.serial
        set $paged_i = $paged_i + 1
      end
      set $paged_s = $paged_s + 1
    end
  end
end
document check-prefixes
check-prefixes POOL: the part of `check' that looks at the prefix cache.
Sets $paged_ok to 0 and says what is broken, or to 1 and says nothing.
end

# What pool_check() does, with its words. The length of an array of stb_ds stands in a header of
# four words in front of it.
define check
  if $argc != 1
    help check
  else
    set $paged_pool = (Pool *) ($arg0)
    set $paged_ok = $paged_pool != 0
    if !$paged_ok
      echo No pool: the pointer is 0.\n
    else
      set $paged_n = $paged_pool->config.num_blocks
      set $paged_size = $paged_pool->config.block_size
      set $paged_records = $paged_pool->blocks
      # A variable for each block, $paged_seen_0 and so on: gdb has no arrays of its own.
      set $paged_i = 0
      while $paged_i < $paged_n
        eval "set $paged_seen_%d = 0", $paged_i
        set $paged_i = $paged_i + 1
      end
      set $paged_seqs = 0
      if $paged_pool->seqs != 0
        set $paged_seqs = ((size_t *) $paged_pool->seqs)[-4]
      end
      set $paged_s = 0
      while $paged_ok && $paged_s < $paged_seqs
        set $paged_seq = $paged_pool->seqs[$paged_s]
        set $paged_entries = 0
        if $paged_seq->block_table != 0
          set $paged_entries = (int) ((size_t *) $paged_seq->block_table)[-4]
        end
        if $paged_seq->pool != $paged_pool || $paged_seq->index != $paged_s
          printf "sequence %d: wrong pool, or index %d\n", $paged_s, $paged_seq->index
          set $paged_ok = 0
        end
        set $paged_written = $paged_seq->written
        set $paged_published = $paged_seq->published
        set $paged_x = $paged_written < 0 || $paged_written > $paged_seq->length
        set $paged_x = $paged_x || $paged_published < 0
        if $paged_ok && ($paged_x || $paged_published > $paged_written / $paged_size)
          printf "sequence %d: %d tokens, ", $paged_s, $paged_seq->length
          printf "%d written, %d blocks published\n", $paged_written, $paged_published
          set $paged_ok = 0
        end
        if $paged_ok && $paged_entries != ($paged_seq->length + $paged_size - 1) / $paged_size
          printf "sequence %d: %d blocks ", $paged_s, $paged_entries
          printf "for %d tokens\n", $paged_seq->length
          set $paged_ok = 0
        end
        set $paged_i = 0
        while $paged_ok && $paged_i < $paged_entries
          set $paged_block = $paged_seq->block_table[$paged_i]
          if $paged_block < 0 || $paged_block >= $paged_n
            printf "sequence %d: entry %d of its table ", $paged_s, $paged_i
            printf "is %d\n", $paged_block
            set $paged_ok = 0
          else
            eval "set $paged_seen_%d = $paged_seen_%d + 1", $paged_block, $paged_block
          end
          set $paged_i = $paged_i + 1
        end
        set $paged_s = $paged_s + 1
      end
      set $paged_i = 0
      set $paged_used = 0
      while $paged_ok && $paged_i < $paged_n
        eval "set $paged_count = $paged_seen_%d", $paged_i
        if $paged_count > 0
          set $paged_used = $paged_used + 1
        end
        if $paged_records[$paged_i].ref_count != $paged_count
          printf "block %d: reference count %d, ", $paged_i, $paged_records[$paged_i].ref_count
          printf "but %d table entries\n", $paged_count
          set $paged_ok = 0
        end
        set $paged_i = $paged_i + 1
      end
      set $paged_prev = $paged_n
      set $paged_count = 0
      set $paged_block = $paged_records[$paged_n].next
      while $paged_ok && $paged_block != $paged_n
        if $paged_block < 0 || $paged_block > $paged_n
          printf "free list: %d is no block\n", $paged_block
          set $paged_ok = 0
        end
        if $paged_ok && $paged_records[$paged_block].prev != $paged_prev
          printf "free list: block %d has a wrong link back\n", $paged_block
          set $paged_ok = 0
        end
        if $paged_ok && $paged_records[$paged_block].ref_count != 0
          printf "free list: block %d has reference count ", $paged_block
          printf "%d\n", $paged_records[$paged_block].ref_count
          set $paged_ok = 0
        end
        set $paged_x = $paged_records[$paged_prev].serial
        if $paged_ok && $paged_x != 0 && $paged_records[$paged_block].serial == 0
          printf "free list: block %d stands behind published ones\n", $paged_block
          set $paged_ok = 0
        end
        if $paged_ok
          set $paged_prev = $paged_block
          set $paged_block = $paged_records[$paged_block].next
          set $paged_count = $paged_count + 1
        end
      end
      if $paged_ok && $paged_records[$paged_n].prev != $paged_prev
        echo free list: its head has a wrong link back\n
        set $paged_ok = 0
      end
      if $paged_ok && $paged_count != $paged_pool->num_free
        printf "free list: %d blocks, but num_free is ", $paged_count
        printf "%d\n", $paged_pool->num_free
        set $paged_ok = 0
      end
      if $paged_ok
        check-prefixes $paged_pool
      end
      if $paged_ok && $paged_used + $paged_count != $paged_n
        printf "%d blocks in use and %d free are not all\n", $paged_used, $paged_count
        set $paged_ok = 0
      end
      if $paged_ok
        echo all is well\n
      end
    end
  end
end
document check
check POOL: recount a pool as pool_check() does; say what is broken, or "all is well".
Ask between two calls: in the middle of one, the counts are on their way.
end

define elements
  if $argc != 4
    help elements
  else
    set $paged_i = 0
    while $paged_i < ($arg2)
      if $paged_i > 0 && $paged_i % 8 == 0
        printf "\n            "
      end
      if ($arg3) == PAGED_F32
        set $paged_x = ((float *) ($arg0))[($arg1) + $paged_i]
      else
        # Sign, exponent and mantissa by hand: gdb knows no 16-bit floats.
        set $paged_h = (int) ((uint16_t *) ($arg0))[($arg1) + $paged_i]
        if ($arg3) == PAGED_F16
          set $paged_e = ($paged_h >> 10) & 31
          set $paged_m = ($paged_h & 1023) / 1024.0
          set $paged_top = 31
        else
          set $paged_e = ($paged_h >> 7) & 255
          set $paged_m = ($paged_h & 127) / 128.0
          set $paged_top = 255
        end
        if $paged_e == $paged_top
          # Infinity is 1 / 0, and NaN 0 / 0.
          set $paged_x = ($paged_m == 0) / 0.0
        else
          if $paged_e == 0
            set $paged_x = $paged_m
            set $paged_e = 1
          else
            set $paged_x = 1 + $paged_m
          end
          set $paged_e = $paged_e - $paged_top / 2
          while $paged_e > 0 && $paged_x != 0
            set $paged_x = $paged_x * 2
            set $paged_e = $paged_e - 1
          end
          while $paged_e < 0 && $paged_x != 0
            set $paged_x = $paged_x / 2
            set $paged_e = $paged_e + 1
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
end
document elements
elements PLANE FIRST COUNT DTYPE: print elements of a plane of K or V as numbers.
FIRST is what kv_offset() returns. `block' and `kv' use this.
end

# Sets $paged_ok: whether the pool has that layer, block and head; if not, says so.
define in-range
  if $argc != 4
    help in-range
  else
    set $paged_ok = 1
    set $paged_c = &((Pool *) ($arg0))->config
    if ($arg1) < 0 || ($arg1) >= $paged_c->num_layers
      printf "No layer %d: the pool has layers 0 to %d.\n", $arg1, $paged_c->num_layers - 1
      set $paged_ok = 0
    end
    if ($arg2) < 0 || ($arg2) >= $paged_c->num_blocks
      printf "No block %d: the pool has blocks 0 to %d.\n", $arg2, $paged_c->num_blocks - 1
      set $paged_ok = 0
    end
    if ($arg3) < 0 || ($arg3) >= $paged_c->num_kv_heads
      printf "No head %d: the pool has KV heads 0 to %d.\n", $arg3, $paged_c->num_kv_heads - 1
      set $paged_ok = 0
    end
    # The first element of slot 0, as kv_offset() has it.
    set $paged_at = ((size_t) ($arg1) * $paged_c->num_blocks + ($arg2)) * $paged_c->num_kv_heads
    set $paged_at = ($paged_at + ($arg3)) * $paged_c->block_size * $paged_c->head_dim
  end
end
document in-range
in-range POOL LAYER BLOCK HEAD: complain if the pool has no such place.
Sets $paged_ok, and $paged_at to the element of a plane where the place begins.
end

define publication
  if $argc != 2
    help publication
  else
    set $paged_record = ((Pool *) ($arg0))->blocks[$arg1]
    printf ": serial %lu, parent %lu, tokens", $paged_record.serial, $paged_record.parent
    set $paged_t = 0
    set $paged_size = ((Pool *) ($arg0))->config.block_size
    while $paged_t < $paged_size && $paged_t < 16
      printf " %d", ((Pool *) ($arg0))->tokens[(size_t) ($arg1) * $paged_size + $paged_t]
      set $paged_t = $paged_t + 1
    end
    if $paged_t < $paged_size
      printf " ... of %d", $paged_size
    end
    echo \n
  end
end
document publication
publication POOL BLOCK: the rest of a line on a published block.
Its serial, that of its parent (0: the first block of a prompt), and its first 16
tokens. `block' and `prefixes' use this.
end

define prefixes
  if $argc != 1
    help prefixes
  else
    set $paged_pool = (Pool *) ($arg0)
    if $paged_pool == 0
      echo No pool: the pointer is 0.\n
    else
      set $paged_entries = 0
      if $paged_pool->prefixes != 0
        set $paged_entries = (int) ((size_t *) ($paged_pool->prefixes - 1))[-4] - 1
      end
      printf "prefix cache: hashes %d, ", $paged_entries
      printf "last serial %lu\n", $paged_pool->last_serial
      # A broken chain may go in circles: no more than all blocks are printed.
      set $paged_left = $paged_pool->config.num_blocks
      set $paged_i = 0
      while $paged_i < $paged_entries
        printf "hash %016lx\n", $paged_pool->prefixes[$paged_i].key
        set $paged_block = $paged_pool->prefixes[$paged_i].value
        while $paged_block >= 0 && $paged_block < $paged_pool->config.num_blocks && $paged_left > 0
          printf "  block %d, count ", $paged_block
          printf "%d", $paged_pool->blocks[$paged_block].ref_count
          publication $paged_pool $paged_block
          set $paged_block = $paged_pool->blocks[$paged_block].next_alike
          set $paged_left = $paged_left - 1
        end
        if $paged_block != -1
          printf "  the chain goes on to block %d: `check' says more\n", $paged_block
        end
        set $paged_i = $paged_i + 1
      end
    end
  end
end
document prefixes
prefixes POOL: list the prefix cache: each hash, and the chain of blocks under it.
Of each block the reference count, its serial, that of its parent (0: the first
block of a prompt), and its first 16 tokens.
end

define block
  if $argc != 4
    help block
  else
    set $paged_pool = (Pool *) ($arg0)
    if $paged_pool == 0
      echo No pool: the pointer is 0.\n
    else
      in-range $paged_pool ($arg2) ($arg1) ($arg3)
      if $paged_ok
        set $paged_count = $paged_c->head_dim
        if $paged_count > 8
          set $paged_count = 8
        end
        printf "block %d, layer %d, head %d: ", $arg1, $arg2, $arg3
        printf "reference count %d, ", $paged_pool->blocks[$arg1].ref_count
        printf "elements 0 to %d of %d\n", $paged_count - 1, $paged_c->head_dim
        if $paged_pool->blocks[$arg1].serial != 0
          printf "  published"
          publication $paged_pool ($arg1)
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
  end
end
document block
block POOL BLOCK LAYER HEAD: print K and V of all slots of a block, for one KV head.
Of every vector the first 8 elements; `kv' shows all of one token. In a pool with
poison, nan is what was not written. Not for the memory of a real GPU. Of a
published block also its serial, its parent's, and its tokens.
end

define kv
  if $argc != 4
    help kv
  else
    set $paged_seq = (Seq *) ($arg0)
    if $paged_seq == 0
      echo No sequence: the pointer is 0.\n
    else
      set $paged_pool = $paged_seq->pool
      set $paged_token = (int) ($arg3)
      if $paged_token < 0 || $paged_token >= $paged_seq->length
        printf "No token %d: the sequence has %d.\n", $paged_token, $paged_seq->length
      else
        set $paged_entry = $paged_token / $paged_pool->config.block_size
        set $paged_slot = $paged_token % $paged_pool->config.block_size
        set $paged_block = $paged_seq->block_table[$paged_entry]
        in-range $paged_pool ($arg1) $paged_block ($arg2)
        if $paged_ok
          set $paged_at = $paged_at + $paged_slot * $paged_c->head_dim
          printf "token %d: entry %d of the table is ", $paged_token, $paged_entry
          printf "block %d, slot %d; ", $paged_block, $paged_slot
          printf "layer %d, head %d: element %lu\n", $arg1, $arg2, $paged_at
          printf "           K"
          elements $paged_pool->k $paged_at $paged_c->head_dim $paged_c->dtype
          printf "           V"
          elements $paged_pool->v $paged_at $paged_c->head_dim $paged_c->dtype
        end
      end
    end
  end
end
document kv
kv SEQ LAYER HEAD TOKEN: walk from a token to its K and V, and print both.
The walk: the entry of the block table, the block, the slot, the element of the
plane. HEAD is a KV head. Not for the memory of a real GPU.
end

# The stand-in keeps threadIdx and blockIdx as global variables; in cuda-gdb they are built in.
define in-lane
  if $argc != 3
    help in-lane
  else
    if ($arg2) < 0 || ($arg2) >= THREADS
      printf "No thread %d: a thread block has threads 0 to %d.\n", $arg2, THREADS - 1
    else
      break $arg0 if blockIdx.x == ($arg1) && threadIdx.x == ($arg2)
    end
  end
end
document in-lane
in-lane KERNEL BLOCK_X THREAD: stop in one thread of the thread blocks with that x.
Then `run --gpu 9', or `continue'. In place of KERNEL goes what `break' takes: a
function that kernels call (attend_split), a line of a kernel (paged.cu.c:900).
Without nvcc the threads of a thread block run one at a time, and `next' over a
barrier or a shuffle lets the others run and comes back in the same one.
end

define lane
  # Outside of a kernel gpu.now is the last thread that ran: ask whose stack this is.
  set $paged_now = gpu.now
  set $paged_inside = 0
  if $paged_now != 0
    set $paged_depth = (long) $sp - (long) $paged_now->stack
    set $paged_inside = $paged_depth >= 0 && $paged_depth < sizeof gpu.now->stack
  end
  if !$paged_inside
    echo Not in a kernel.\n
  else
    printf "%s, thread block (%u, %u, %u), ", gpu.name, blockIdx.x, blockIdx.y, blockIdx.z
    printf "thread %u: warp %u, lane %u\n", threadIdx.x, threadIdx.x / WARP, threadIdx.x % WARP
  end
end
document lane
lane: say where one stands: kernel, thread block, thread, warp and lane.
It reads the variables of the stand-in. In cuda-gdb on a GPU the same question is
`cuda kernel block thread warp lane'.
end
