"""The engine from Python: tables and attention of paged.h, with arrays of numpy.

An error is an exception, and so is an argument that C would misread. As in C, nothing is released
unless you do it. README.md shows more.
"""
import ctypes as C
import math
import operator
import os
import subprocess
import numpy as np

F32, F16, BF16 = range(3)
CPU, GPU, STANDIN = range(3)  # numpy cannot reach the memory of a GPU
GATHER, FAST = 1, 2
CONFIG = "num_layers num_kv_heads head_dim block_size num_blocks dtype poison device".split()
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Pool(C.Structure):  # its first fields; the others of C are not used here
    _fields_ = [(name, C.c_int) for name in CONFIG] + [("k", C.c_void_p), ("v", C.c_void_p)]


class Seq(C.Structure):
    _fields_ = [("pool", C.c_void_p), ("length", C.c_int), ("num_computed_tokens", C.c_int),
                ("block_table", C.POINTER(C.c_int))]


class Batch(C.Structure):
    _fields_ = [("num_seqs", C.c_int), ("seqs", C.POINTER(C.POINTER(Seq))),
                ("num_tokens", C.POINTER(C.c_int))]


class Handle:
    """A pool or a sequence. Its `contents` are the fields, in the engine's memory."""

    def __init__(self, kind, pool=None):
        self.pool = pool or self
        self._as_parameter_ = C.POINTER(kind)()  # what C takes; None once it is released
        self.num_rows = 0  # of a pool: the tokens of its plan

    @property
    def contents(self):
        if not (self._as_parameter_ and self.pool._as_parameter_):
            raise ValueError("it is released, or its pool is destroyed")
        return self._as_parameter_.contents


def load(path="build/libpaged.so", *options):
    subprocess.run(["make", "-s", path, *options], cwd=ROOT, check=True)  # if missing or old
    library = C.CDLL(os.path.join(ROOT, path))
    library.paged_error.restype = library.pool_check.restype = C.c_char_p
    library.seq_release.restype = library.pool_destroy.restype = None
    return library


lib = load()


def convert(label, x, given):
    """An argument as C takes it. Its name says what it has to be; `given` has all arguments."""
    if label in ("pool", "seq"):
        if not isinstance(x, Handle) or type(x.contents) != {"pool": Pool, "seq": Seq}[label]:
            raise TypeError("must be a " + label)
        return x
    if label == "seqs":
        return [convert("seq", one, given) for one in x]
    if label == "num_tokens":
        return [convert("n", one, given).value for one in x]
    if label in ("k", "v", "q"):
        pool, fields = given["pool"], given["pool"].contents
        heads = np.shape(x)[1] if label == "q" and np.ndim(x) == 3 else fields.num_kv_heads
        shape = pool.num_rows, heads, fields.head_dim  # contiguous (C) and aligned (A)
        return np.ctypeslib.ndpointer(np.float32, shape=shape, flags="C,A").from_param(x)
    number = C.c_float(x) if label == "scale" else C.c_int(operator.index(x))
    if not math.isclose(number.value, x, rel_tol=1e-6):
        raise OverflowError("must fit into a " + type(number).__name__)
    return number


def check(name, **given):
    """The arguments as C takes them. What it would misread raises an exception."""
    converted = []
    for label, x in given.items():
        try:
            converted.append(convert(label, x, given))
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError("%s(): %s: %s" % (name, label, error)) from None
    return converted


def run(name, *arguments):
    """Calls a function of paged.h."""
    error = getattr(lib, name)(*arguments)
    if error:
        raise RuntimeError("%s(): %s" % (name, lib.paged_error(error).decode()))


def pool_create(**config):  # num_layers is 1 and the others are 0 unless they are given
    if not set(config) <= set(CONFIG):
        raise TypeError("pool_create(): expects " + ", ".join(CONFIG))
    numbers = check("pool_create", **{**dict.fromkeys(CONFIG, 0), "num_layers": 1, **config})
    pool = Handle(Pool)
    run("pool_create", (C.c_int * len(CONFIG))(*numbers), C.byref(pool._as_parameter_))
    return pool


def create(name, **given):
    parent, *number = check(name, **given)
    seq = Handle(Seq, parent.pool)
    run(name, parent, *number, C.byref(seq._as_parameter_))
    return seq


def release(name, **given):
    handle, = check(name, **given)
    run(name, handle)
    handle._as_parameter_ = None


def seq_create(pool): return create("seq_create", pool=pool)
def seq_fork(seq, at): return create("seq_fork", seq=seq, at=at)
def seq_append(seq, n): run("seq_append", *check("seq_append", seq=seq, n=n))
def seq_rewind(seq, n): run("seq_rewind", *check("seq_rewind", seq=seq, n=n))
def seq_release(seq): release("seq_release", seq=seq)
def pool_destroy(pool): release("pool_destroy", pool=pool)


def pool_plan(pool, seqs, num_tokens):
    """Returns what vLLM's kernels take: block_tables (-1: no block), seq_lens, slot_mapping."""
    pool, seqs, counts = check("pool_plan", pool=pool, seqs=seqs, num_tokens=num_tokens)
    if len(seqs) != len(counts):
        raise TypeError("pool_plan(): one number of tokens for each of seqs")
    handles = (C.POINTER(Seq) * len(seqs))(*(seq._as_parameter_ for seq in seqs))
    batch = Batch(len(seqs), handles, (C.c_int * len(seqs))(*counts))
    run("pool_plan", pool, C.byref(batch))
    pool.num_rows = sum(counts)
    size, slots = pool.contents.block_size, []
    lengths = np.array([seq.contents.length for seq in seqs], np.int32)
    tables = np.full((len(seqs), -(-lengths.max(initial=0) // size)), -1, np.int32)
    for seq, table, length, n in zip(seqs, tables, lengths, counts):
        table[:-(-length // size)] = seq.contents.block_table[:-(-length // size)]
        slots += [table[i // size] * size + i % size for i in range(length - n, length)]
    return tables, lengths, np.array(slots, np.int64)


def pool_write(pool, layer, k, v):
    run("pool_write", *check("pool_write", pool=pool, layer=layer, k=k, v=v))


def attend(pool, flags, layer, q, scale=0):
    *first, scale, data = check("attend", pool=pool, flags=flags, layer=layer, scale=scale, q=q)
    out, lse = np.full(q.shape, np.nan, np.float32), np.full(q.shape[:2], np.nan, np.float32)
    run("attend", *first, q.shape[1], scale, data, out.ctypes, lse.ctypes)
    return out, lse


def cache(pool, layer):
    """K and V of a layer, as views [num_blocks, block_size, num_kv_heads, head_dim]; bf16: bits.
    They end with the pool: do not use them after pool_destroy()."""
    pool, layer = check("cache", pool=pool, layer=layer)
    c, views = pool.contents, []
    if not 0 <= layer.value < c.num_layers:
        raise IndexError("cache(): there is no layer %d" % layer.value)
    shape = c.num_layers, c.num_blocks, c.num_kv_heads, c.block_size, c.head_dim
    kind = np.dtype([np.float32, np.float16, np.uint16][c.dtype])
    for plane in c.k, c.v:
        memory = (C.c_char * (kind.itemsize * int(np.prod(shape)))).from_address(plane)
        views.append(np.frombuffer(memory, kind).reshape(shape)[layer.value].swapaxes(1, 2))
    return views
