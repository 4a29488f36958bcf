"""Attention and K/V against numpy in float64: no code of the engine, none of the oracle.

examples/paged.py loads the engine: plain, on the stand-in, and with the fast paths at 4, 8 and 16
lanes where the processor has them. Each shape is a pool with a few sequences that are appended to
in chunks, forked, rewound and released, with blocks in no order; after each step a ragged batch is
written and attended to, gathered and paged, plain and fast. numpy keeps its own copy of every K and
V, rounded to the type of the cache by numpy's float16 or by hand for bfloat16.
"""

import math
import os
import subprocess
import sys

try:
    import numpy as np
except ImportError:
    if os.path.exists("/usr/bin/python3") and not os.environ.get("GOLDEN"):  # not again
        os.environ["GOLDEN"] = "1"
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])  # which may have it
    print("skip  golden: no python3 with numpy (sudo apt-get install python3-numpy)")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit()

os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = "examples", "learn"
sys.dont_write_bytecode = True
os.environ.pop("MAKEFLAGS", None)  # of the make that runs this: its own would warn
import paged  # noqa: E402  (after the path is set)
import plant  # noqa: E402
from report import finish, report  # noqa: E402
from paged import BF16, CPU, F16, F32, FAST, GATHER, STANDIN  # noqa: E402


def rounded(x, dtype):
    """float32 values as the cache of this type stores them."""
    if dtype == F32:
        return x
    if dtype == F16:
        return x.astype(np.float16).astype(np.float32)
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def attention(q, k, v, scale):
    """One query token over all of k and v: [heads][dim], [tokens][kv_heads][dim]. Out, lse."""
    group = q.shape[0] // k.shape[1]
    k = np.repeat(k.astype(np.float64), group, axis=1)
    v = np.repeat(v.astype(np.float64), group, axis=1)
    scores = np.einsum("hd,thd->ht", q.astype(np.float64), k) * scale
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True)
    return np.einsum("ht,thd->hd", weights / total, v), (top + np.log(total))[:, 0]


class Sequence:
    def __init__(self, handle, k, v):  # [layers][tokens][kv_heads][dim]
        self.handle, self.k, self.v = handle, k, v

    def __len__(self):
        return self.k.shape[1]


class Shape:
    """One pool and its sequences, and their twins in numpy."""

    def __init__(self, rng, device, dtype):
        self.rng = rng
        groups = [(8, 1), (4, 2), (2, 4), (1, 8), (1, 7), (5, 1), (3, 12)]
        kv_heads, self.group = groups[rng.integers(7)]
        dim = int(rng.choice([1, 3, 8, 20, 32, 64, 80, 96, 112, 128, 256]))
        block = int(rng.choice([1, 2, 3, 4, 7, 8, 16, 17, 32, 256]))
        self.longest = int(rng.choice([20, 40, 130])) if device == CPU else 20
        blocks = 6 * (self.longest // block + 2)
        self.pool = paged.pool_create(
            num_layers=int(rng.integers(1, 4)), num_kv_heads=kv_heads, head_dim=dim,
            block_size=block, num_blocks=blocks, dtype=dtype, poison=1, device=device)
        self.c = self.pool.contents
        self.seqs = []
        self.rows = 0  # of attention that were compared

    def __str__(self):
        return "group %d, %s" % (self.group, {x: getattr(self.c, x) for x in paged.CONFIG})

    def edit(self):
        """A random edit of the tables."""
        kind = self.rng.integers(4)
        if not self.seqs or (kind == 0 and len(self.seqs) < 4):
            rows = (self.c.num_layers, 0, self.c.num_kv_heads, self.c.head_dim)
            empty = np.zeros(rows, np.float32)
            self.seqs.append(Sequence(paged.seq_create(self.pool), empty, empty))
            return
        i = int(self.rng.integers(len(self.seqs)))
        seq = self.seqs[i]
        at = int(self.rng.integers(len(seq) + 1))
        if kind == 1 and len(self.seqs) < 4:
            self.seqs.append(Sequence(paged.seq_fork(seq.handle, at), seq.k[:, :at], seq.v[:, :at]))
        elif kind == 2:
            paged.seq_rewind(seq.handle, len(seq) - at)
            seq.k, seq.v = seq.k[:, :at], seq.v[:, :at]
        elif kind == 3 and self.rng.integers(3) == 0:
            paged.seq_release(seq.handle)
            self.seqs.pop(i)

    def step(self):
        """Appends to some sequences, in one batch; writes, attends, compares."""
        rng, c = self.rng, self.c
        order = [self.seqs[i] for i in rng.permutation(len(self.seqs))]
        counts = []
        for seq in order:
            n = min(int(rng.choice([0, 1, 1, 2, 3, 17, 37])), self.longest - len(seq))
            paged.seq_append(seq.handle, n)
            counts.append(n)
        total, layers = sum(counts), c.num_layers
        self.metadata = paged.pool_plan(self.pool, [seq.handle for seq in order], counts)
        spread = float(rng.choice([1, 1, 1, 5]))  # with large scores, some weights vanish
        k, v = (rng.uniform(-1, 1, (layers, total, c.num_kv_heads, c.head_dim)).astype(np.float32)
                for _ in range(2))
        q = rng.uniform(-spread, spread, (layers, total, c.num_kv_heads * self.group,
                                          c.head_dim)).astype(np.float32)
        row = 0
        for seq, n in zip(order, counts):
            seq.k = np.concatenate([seq.k, rounded(k[:, row:row + n], c.dtype)], axis=1)
            seq.v = np.concatenate([seq.v, rounded(v[:, row:row + n], c.dtype)], axis=1)
            row += n
        scale = 0.25 if spread == 1 and rng.integers(2) else 0  # 0: 1 / sqrt(head_dim)
        for layer in range(layers):
            paged.pool_write(self.pool, layer, k[layer], v[layer])
            self.compare_cache(layer, order, k[layer], v[layer])
            self.compare(layer, q[layer], order, counts, scale)

    def compare_cache(self, layer, order, k, v):
        """What a kernel that takes vLLM's metadata would find in the cache."""
        block_tables, seq_lens, slot_mapping = self.metadata
        assert [x.dtype for x in self.metadata] == [np.int32, np.int32, np.int64], "types"
        entries = -(-seq_lens[:, None] // self.c.block_size)
        absent = np.arange(entries.max(initial=0)) >= entries
        assert np.array_equal(block_tables == -1, absent), "-1 where there is no block"
        for name, cache, new in zip("kv", paged.cache(self.pool, layer), (k, v)):
            if self.c.dtype == BF16:
                cache = (cache.astype(np.uint32) << 16).view(np.float32)
            slots = cache.reshape(-1, *cache.shape[2:])
            assert np.array_equal(slots[slot_mapping], rounded(new, self.c.dtype)), "slot_mapping"
            for seq, table, length in zip(order, block_tables, seq_lens):
                found = cache[table[table >= 0]].reshape(-1, *cache.shape[2:])[:length]
                assert np.array_equal(found, getattr(seq, name)[layer]), "block_tables, seq_lens"

    def compare(self, layer, q, order, counts, scale):
        results = {flags: paged.attend(self.pool, flags, layer, q, scale)
                   for flags in (0, GATHER, FAST, GATHER | FAST)}
        for flags in 0, FAST:
            for one, other in zip(results[flags], results[flags | GATHER]):
                assert one.tobytes() == other.tobytes(), "gather and paged differ in a bit"
        row = 0
        for seq, n in zip(order, counts):
            for seen in range(len(seq) - n + 1, len(seq) + 1):
                out, lse = attention(q[row], seq.k[layer, :seen], seq.v[layer, :seen],
                                     scale or 1 / math.sqrt(self.c.head_dim))
                for flags in 0, FAST:
                    differs = np.abs(results[flags][0][row] - out).max()
                    assert differs <= 1e-5, "out differs by %g, flags %d" % (differs, flags)
                    differs = np.abs(results[flags][1][row] - lse).max() / max(1, np.abs(lse).max())
                    assert differs <= 1e-5, "lse differs by %g, flags %d" % (differs, flags)
                row += 1
        self.rows += row

    def run(self):
        for _ in range(10):
            self.edit()
            self.step()
        assert self.seqs and self.rows >= 20, "only %d rows were compared" % self.rows
        wrong = paged.lib.pool_check(self.pool)
        assert wrong is None, wrong
        paged.pool_destroy(self.pool)


LIBRARIES = [
    ("plain", CPU, ""),
    ("stand-in", STANDIN, ""),
    ("4 lanes", CPU, "-DPAGED_FAST"),
    ("8 lanes", CPU, "-DPAGED_FAST -mavx2 -mf16c -mfma"),
    ("16 lanes", CPU, "-DPAGED_FAST -mavx512f -mavx512vl -mavx512bw -mf16c -mfma")]


def lacking(flags):
    """The features that these flags switch on and the processor does not have."""
    known = open("/proc/cpuinfo").read().split() if os.path.exists("/proc/cpuinfo") else []
    return [flag for flag in flags.split() if flag.startswith("-m") and flag[2:] not in known]


def judge(source):
    """What examples/judge.py prints to both streams, and its exit status."""
    done = subprocess.run([sys.executable, "-c", source], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True,
                          env={**os.environ, "PYTHONPATH": "examples"})
    return done.stdout, done.returncode


def judges():
    """README.md shows what it prints, its tables share blocks, and no wrong kernel is right: those
    of learn/mistakes.txt."""
    with open("examples/judge.py") as file, open("README.md") as readme:
        source, shown = file.read(), readme.read().split("python3 examples/judge.py\n")[1]
    printed, status = judge(source + "used = block_tables[block_tables >= 0]\n"
                                     "assert len(set(used)) < len(used), 'no block is shared'\n")
    assert status == 0, printed
    last_line = shown.split("\n")[1]
    assert last_line.startswith("step 7: ") and last_line in printed, printed
    for mistake in plant.read_mistakes().values():
        for words in mistake.expect.get("judge", ()):
            printed, status = judge(plant.edit(mistake))
            assert status and words in printed, mistake.name + " was right"


def refused(words, name, *arguments, **named):
    """This call raises an exception that names the function, and then says these words."""
    try:
        getattr(paged, name)(*arguments, **named)
        said = "nothing"
    except Exception as error:
        said = str(error)
    assert said.startswith("%s(): %s" % (name, words)), "%s: %s" % (name, said)


def spoiled(x):
    """An array of another shape, type or byte order, or in memory that C would read otherwise."""
    return [x.tolist(), x[None], x[:-1], x[..., :-1].copy(), x.astype(float), x.view(np.uint32),
            x.astype(x.dtype.newbyteorder()), x[::-1],
            np.frombuffer(b"x" + x.tobytes(), x.dtype, offset=1).reshape(x.shape)]


def refusals():
    """What C would misread is an exception that names the call and the argument."""
    config = dict(num_layers=1, num_kv_heads=2, head_dim=4, block_size=2, num_blocks=9)
    pool, closed = paged.pool_create(**config), paged.pool_create(**config)
    seq, new, gone = (paged.seq_create(pool) for _ in range(3))
    lost = paged.seq_create(closed)
    paged.seq_release(gone)
    paged.pool_destroy(closed)
    paged.seq_append(seq, 5)
    k, q = np.ones((5, 2, 4), np.float32), np.ones((5, 4, 4), np.float32)
    constant = k.copy()
    constant.setflags(write=False)

    refused("k: array must have shape (0, 2, 4)", "pool_write", pool, 0, k, k)  # there is no plan
    refused("bad argument", "seq_rewind", seq, 6)
    refused("expects num_layers, num_kv_heads", "pool_create", **config, hed_dim=4)
    refused("one number", "pool_plan", pool, [seq], [1, 1])
    refused("one number", "pool_plan", pool, [seq, new], [1])
    for layer in 1, -1:
        refused("there is no layer", "cache", pool, layer)
    for scale in "1", None, 1e-50, 1e50:
        refused("scale: must", "attend", pool, 0, 0, q, scale)

    wrong = [None, 1.5, "3", 2**32 + 1, -2**31 - 1, [1.5], [2**32 + 1], [gone], np.ones(2), gone,
             lost, closed]
    for field in paged.CONFIG:
        for x in wrong:
            refused(field + ": ", "pool_create", **{**config, field: x})
    for name, right in [  # each argument is replaced by wrong ones, in turn
            ("pool_plan", dict(pool=pool, seqs=(seq, new), num_tokens=np.array([5, 0], np.int16))),
            ("pool_write", dict(pool=pool, layer=0, k=k, v=constant)),
            ("attend", dict(pool=pool, flags=np.uint8(0), layer=0, q=q)),
            ("cache", dict(pool=pool, layer=0)),
            ("seq_append", dict(seq=new, n=np.int64(0))),
            ("seq_rewind", dict(seq=new, n=0)),
            ("seq_fork", dict(seq=seq, at=True)),
            ("seq_create", dict(pool=pool)),
            ("seq_release", dict(seq=new)),
            ("pool_destroy", dict(pool=pool))]:
        for label, x in right.items():
            others = [seq if label == "pool" else pool]
            others += spoiled(x) if label in ("k", "v", "q") else [k]
            for other in wrong + others:
                refused(label + ": ", name, **{**right, label: other})
        getattr(paged, name)(**right)
    refused("seq: it is released, or its pool is destroyed", "seq_append", seq, 1)


def holds(name, check, what=""):
    """A check holds if none of its assertions fails. With one that does, says what was checked."""
    problems = []
    try:
        check()
    except AssertionError as error:
        problems = [str(error), what]
    report("golden, " + name, problems)


def main():
    holds("judge.py", judges)
    holds("refusals", refusals)
    for number, (name, device, flags) in enumerate(LIBRARIES):
        if lacking(flags):
            report("golden, " + name, skipped="this processor has no %s" % lacking(flags))
            continue
        path = "build/golden-%s.so" % name.replace(" ", "-")
        paged.lib = paged.load(path, "-B", "CFLAGS=-O0 " + flags)
        for i in range(4 if device == CPU else 2):
            seed = number * 1000003 + i
            shape = Shape(np.random.default_rng(seed), device, (F16, BF16, F32)[i % 3])
            holds("%s, seed %d" % (name, seed), shape.run, str(shape))
    return finish()


if __name__ == "__main__":
    sys.exit(main())
