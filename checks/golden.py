"""Attention and K/V against numpy in float64: no code of the engine, none of the oracle.

The engine is a shared library: plain, on the stand-in, and with the fast paths at 4, 8 and 16 lanes
where the processor has them. Each shape is a pool with a few sequences that are appended to in
chunks, forked, rewound and released, with blocks in no order; after each step a ragged batch is
written and attended to, gathered and paged, plain and fast. numpy keeps its own copy of every K and
V, rounded to the type of the cache by numpy's float16 or by hand for bfloat16. Ends with "N passed,
N failed, N skipped".
"""

import ctypes
import math
import os
import shlex
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

F32, F16, BF16 = range(3)
CPU, GPU, STANDIN = range(3)
GATHER, FAST = 1, 2


class PoolConfig(ctypes.Structure):
    NAMES = "num_layers num_kv_heads head_dim block_size num_blocks dtype poison device".split()
    _fields_ = [(name, ctypes.c_int) for name in NAMES]


class Batch(ctypes.Structure):
    _fields_ = [("num_seqs", ctypes.c_int), ("seqs", ctypes.POINTER(ctypes.c_void_p)),
                ("num_tokens", ctypes.POINTER(ctypes.c_int))]


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

    def __init__(self, lib, rng, device, dtype):
        self.lib, self.rng = lib, rng
        groups = [(8, 1), (4, 2), (2, 4), (1, 8), (1, 7), (5, 1), (3, 12)]
        kv_heads, self.group = groups[rng.integers(7)]
        dim = int(rng.choice([1, 3, 8, 20, 32, 64, 80, 96, 112, 128, 256]))
        block = int(rng.choice([1, 2, 3, 4, 7, 8, 16, 17, 32, 256]))
        self.longest = int(rng.choice([20, 40, 130])) if device == CPU else 20
        blocks = 6 * (self.longest // block + 2)
        self.c = PoolConfig(int(rng.integers(1, 4)), kv_heads, dim, block, blocks, dtype, 1, device)
        self.pool = ctypes.c_void_p()
        self.call("pool_create", ctypes.byref(self.c), ctypes.byref(self.pool))
        self.seqs = []
        self.rows = 0  # of attention that were compared

    def __str__(self):
        return "group %d, %s" % (self.group, {x: getattr(self.c, x) for x in self.c.NAMES})

    def call(self, name, *arguments):
        error = getattr(self.lib, name)(*arguments)
        if error:
            raise AssertionError("%s returned %d" % (name, error))

    def edit(self):
        """A random edit of the tables."""
        kind, handle = self.rng.integers(4), ctypes.c_void_p()
        if not self.seqs or (kind == 0 and len(self.seqs) < 4):
            self.call("seq_create", self.pool, ctypes.byref(handle))
            rows = (self.c.num_layers, 0, self.c.num_kv_heads, self.c.head_dim)
            empty = np.zeros(rows, np.float32)
            self.seqs.append(Sequence(handle, empty, empty))
            return
        i = int(self.rng.integers(len(self.seqs)))
        seq = self.seqs[i]
        at = int(self.rng.integers(len(seq) + 1))
        if kind == 1 and len(self.seqs) < 4:
            self.call("seq_fork", seq.handle, at, ctypes.byref(handle))
            self.seqs.append(Sequence(handle, seq.k[:, :at], seq.v[:, :at]))
        elif kind == 2:
            self.call("seq_rewind", seq.handle, len(seq) - at)
            seq.k, seq.v = seq.k[:, :at], seq.v[:, :at]
        elif kind == 3 and self.rng.integers(3) == 0:
            self.lib.seq_release(seq.handle)
            self.seqs.pop(i)

    def step(self):
        """Appends to some sequences, in one batch; writes, attends, compares."""
        rng, c = self.rng, self.c
        order = [self.seqs[i] for i in rng.permutation(len(self.seqs))]
        counts = []
        for seq in order:
            n = min(int(rng.choice([0, 1, 1, 2, 3, 17, 37])), self.longest - len(seq))
            self.call("seq_append", seq.handle, n)
            counts.append(n)
        total, layers = sum(counts), c.num_layers
        handles = (ctypes.c_void_p * max(1, len(order)))(*[s.handle for s in order])
        batch = Batch(len(order), handles, (ctypes.c_int * max(1, len(order)))(*counts))
        self.call("pool_plan", self.pool, ctypes.byref(batch))
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
            self.call("pool_write", self.pool, layer, pointer(k[layer]), pointer(v[layer]))
            self.compare(layer, q[layer], order, counts, scale)

    def compare(self, layer, q, order, counts, scale):
        heads = self.c.num_kv_heads * self.group
        outs, lses = [], []
        for flags in (0, GATHER, FAST, GATHER | FAST):
            outs.append(np.full_like(q, np.nan))
            lses.append(np.full(q.shape[:2], np.nan, np.float32))
            self.call("attend", self.pool, flags, layer, heads, ctypes.c_float(scale), pointer(q),
                      pointer(outs[-1]), pointer(lses[-1]))
        for results in (outs, lses):
            for plain in (0, FAST):
                assert results[plain].tobytes() == results[plain | GATHER].tobytes(), \
                    "gather and paged differ in a bit"
        row = 0
        factor = scale or 1 / math.sqrt(self.c.head_dim)
        for seq, n in zip(order, counts):
            for seen in range(len(seq) - n + 1, len(seq) + 1):
                out, lse = attention(q[row], seq.k[layer, :seen], seq.v[layer, :seen], factor)
                limit = 1e-5 * max(1, np.abs(lse).max())
                for flags in (0, FAST):
                    difference = np.abs(outs[flags][row] - out).max()
                    assert difference <= 1e-5, "out differs by %g, flags %d" % (difference, flags)
                    difference = np.abs(lses[flags][row] - lse).max()
                    assert difference <= limit, "lse differs by %g, flags %d" % (difference, flags)
                row += 1
        self.rows += row

    def gather(self):
        for seq in self.seqs:
            for layer in range(self.c.num_layers):
                k, v = np.zeros_like(seq.k[layer]), np.zeros_like(seq.v[layer])
                self.call("seq_gather", seq.handle, layer, pointer(k), pointer(v))
                assert k.tobytes() == np.ascontiguousarray(seq.k[layer]).tobytes(), "K differs"
                assert v.tobytes() == np.ascontiguousarray(seq.v[layer]).tobytes(), "V differs"

    def run(self):
        for _ in range(10):
            self.edit()
            self.step()
        self.gather()
        assert self.seqs and self.rows >= 20, "only %d rows were compared" % self.rows
        wrong = self.lib.pool_check(self.pool)
        assert wrong is None, wrong
        self.lib.pool_destroy(self.pool)


def pointer(array):
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data if array.size else None)


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


def load(name, flags):
    """The engine as a library, compiled with these flags."""
    os.makedirs("build/golden", exist_ok=True)
    path = os.path.abspath("build/golden/%s.so" % name.replace(" ", "-"))
    command = [os.environ.get("CC", "cc"), "-O1", *flags.split(), "-fPIC", "-shared",
               "-DPAGED_NO_MAIN", *shlex.split(os.environ.get("CPPFLAGS", "")), "paged.cu.c", "-o",
               path, "-lm"]
    subprocess.run(command, check=True)
    lib = ctypes.CDLL(path)
    lib.pool_check.restype = ctypes.c_char_p
    for function in (lib.pool_destroy, lib.pool_check, lib.seq_release):
        function.argtypes = [ctypes.c_void_p]
    return lib


def main():
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    states = []
    for number, (name, device, flags) in enumerate(LIBRARIES):
        if lacking(flags):
            print("skip  golden, %s: this processor has no %s" % (name, lacking(flags)))
            states.append("skipped")
            continue
        lib = load(name, flags)
        for i in range(4 if device == CPU else 2):
            seed = number * 1000003 + i
            shape = Shape(lib, np.random.default_rng(seed), device, (F16, BF16, F32)[i % 3])
            try:
                shape.run()
                states.append("passed")
                print("ok    golden, %s, seed %d" % (name, seed))
            except AssertionError as error:
                states.append("failed")
                print("FAIL  golden, %s, seed %d: %s\n      %s" % (name, seed, error, shape))
    print(", ".join("%d %s" % (states.count(x), x) for x in ("passed", "failed", "skipped")))
    return "failed" in states


if __name__ == "__main__":
    sys.exit(main())
