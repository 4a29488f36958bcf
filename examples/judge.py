"""Judges an attention kernel: put yours in place of kernel(), which is numpy's.

It gets what vLLM's kernels get. The sequences are forks of each other, so their tables name the
same blocks, in no order; slots without a token are NaN.
"""
try:
    import numpy as np
except ImportError:
    raise SystemExit("numpy is not installed: sudo apt-get install python3-numpy")
import paged

KV_HEADS, Q_HEADS, HEAD_DIM, BLOCK_SIZE = 2, 8, 64, 16


def kernel(q, k_cache, v_cache, block_tables, seq_lens, query_lens):
    """q: [tokens, Q_HEADS, HEAD_DIM]; caches: [num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM]."""
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:2])
    row = 0
    for table, length, new in zip(block_tables, seq_lens, query_lens):
        blocks = table[:-(-length // BLOCK_SIZE)]
        k, v = (cache[blocks].reshape(-1, KV_HEADS, HEAD_DIM).repeat(Q_HEADS // KV_HEADS, axis=1)
                for cache in (k_cache, v_cache))
        for visible in range(length - new + 1, length + 1):
            scores = np.einsum("hd,thd->ht", q[row], k[:visible].astype(float)) / HEAD_DIM ** .5
            top = scores.max(axis=1, keepdims=True)
            weights = np.exp(scores - top)
            total = weights.sum(axis=1, keepdims=True)
            out[row] = np.einsum("ht,thd->hd", weights / total, v[:visible].astype(float))
            lse[row] = (top + np.log(total))[:, 0]
            row += 1
    return out, lse


pool = paged.pool_create(num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK_SIZE,
                         num_blocks=100, dtype=paged.F16, poison=1)
owners = [paged.seq_create(pool) for _ in range(100)]
for owner in owners:
    paged.seq_append(owner, BLOCK_SIZE)
for owner in np.random.default_rng(0).permutation(owners):  # now the free blocks are in no order
    paged.seq_release(owner)
seqs = [paged.seq_create(pool)]
rng = np.random.default_rng(1)
for step in range(8):
    query_lens = rng.choice([1, 2, 30], len(seqs))  # decode, a draft, a chunk of prefill
    for seq, n in zip(seqs, query_lens):
        paged.seq_append(seq, n)
    block_tables, seq_lens, slot_mapping = paged.pool_plan(pool, seqs, query_lens)
    q, k, v = (rng.standard_normal((len(slot_mapping), heads, HEAD_DIM), np.float32)
               for heads in (Q_HEADS, KV_HEADS, KV_HEADS))
    paged.pool_write(pool, 0, k, v)  # to slot_mapping
    out, lse = paged.attend(pool, 0, 0, q)
    yours = kernel(q, *paged.cache(pool, 0), block_tables, seq_lens, query_lens)
    differs = [np.abs(a - b).max() for a, b in zip((out, lse), yours)]
    if not np.max(differs) < 1e-5:  # nor NaN
        raise SystemExit("step %d: out differs by %.1e, lse by %.1e" % (step, *differs))
    print("step %d: %3d query tokens of %d sequences: right" % (step, len(q), len(seqs)))
    seqs.append(paged.seq_fork(seqs[step // 2], seq_lens[step // 2] // 2))
