"""The engine from Python: the functions of paged.h by their names, with arrays of numpy.

An error is an exception, and so is an argument that C would misread. As in C, nothing is released
unless you do it. README.md shows more.
"""
import ctypes as C
import functools
import math
import operator
import os
import subprocess
import weakref
import numpy as np

F32, F16, BF16 = range(3)
CPU, GPU, STANDIN = range(3)  # numpy cannot reach the memory of a GPU
GATHER, FAST = 1, 2
CONFIG = "num_layers num_kv_heads head_dim block_size num_blocks dtype poison device".split()
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ARGUMENTS = {  # convert() knows by its name what an argument must be
    "pool_create": " ".join(CONFIG), "pool_destroy": "pool", "pool_write": "pool layer k v",
    "pool_plan": "pool seqs num_tokens", "attend": "pool flags layer q scale",
    "cache": "pool layer", "seq_create": "pool", "seq_append": "seq n", "seq_fork": "seq at",
    "seq_rewind": "seq n", "seq_publish": "seq tokens n", "seq_lookup": "seq tokens n",
    "seq_gather": "seq layer k v", "seq_release": "seq"}
LISTS = {"seqs": "seq", "num_tokens": "n"}
ARRAYS = "k", "v", "q", "tokens"


def structure(**fields):
    return type("Structure", (C.Structure,), {"_fields_": list(fields.items())})


Config = structure(**{name: C.c_int for name in CONFIG})
Pool = structure(config=Config, k=C.c_void_p, v=C.c_void_p)  # the first fields
Seq = structure(pool=C.POINTER(Pool), length=C.c_int, num_computed_tokens=C.c_int,
                block_table=C.POINTER(C.c_int))
Batch = structure(num_seqs=C.c_int, seqs=C.POINTER(C.POINTER(Seq)), num_tokens=C.POINTER(C.c_int))
HANDLES = {"pool": Pool, "seq": Seq}


class Handle:
    """A pool or a sequence."""

    def __init__(self, kind, pool=None):
        self.kind, self.pool = kind, pool or self
        self.num_rows, self.views = None, []  # of a pool: planned tokens, arrays of cache()
        self._as_parameter_ = C.POINTER(HANDLES[kind])()  # what C takes

    @property
    def contents(self):
        """The fields, in the engine's memory: do not keep them beyond the release."""
        if not (self._as_parameter_ and self.pool._as_parameter_):
            raise ValueError("it is released, or its pool is destroyed")
        return self._as_parameter_.contents


def load(path="build/libpaged.so", *options):
    subprocess.run(["make", "-s", path, *options], cwd=ROOT, check=True)  # if missing or old
    library = C.CDLL(os.path.join(ROOT, path))
    library.paged_error.restype = library.pool_check.restype = C.c_char_p
    library.seq_release.restype = library.pool_destroy.restype = None
    return library


def array_type(label, x, given):
    """What an array must be: contiguous, aligned (C,A), of this type, byte order and shape."""
    if label == "tokens":  # n or more
        return np.ctypeslib.ndpointer(np.int32, shape=max(given["n"], np.size(x)), flags="C,A")
    if "seq" in given:  # seq_gather() writes (W)
        pool, rows, flags = given["seq"].pool, given["seq"].contents.length, "C,A,W"
    else:
        pool, rows, flags = given["pool"], given["pool"].num_rows, "C,A"
    if rows is None:
        raise ValueError("there is no plan")
    config = pool.contents.config
    heads = np.shape(x)[1] if label == "q" and np.ndim(x) == 3 else config.num_kv_heads
    return np.ctypeslib.ndpointer(np.float32, shape=(rows, heads, config.head_dim), flags=flags)


def convert(label, x, given):
    """An argument as C takes it."""
    if label in ARRAYS:
        return array_type(label, x, given).from_param(x)
    if label in LISTS:
        return [convert(LISTS[label], one, given) for one in x]
    if label in HANDLES:
        if not (isinstance(x, Handle) and x.kind == label and x.contents):
            raise TypeError("must be a %s" % label)
        return x
    number = C.c_float(x) if label == "scale" else C.c_int(operator.index(x))
    if not math.isclose(number.value, x, rel_tol=1e-6):
        raise OverflowError("must fit into a %s" % type(number).__name__)
    return number.value


def check(name, *arguments):
    """Returns the arguments as C takes them; what C would misread raises an exception."""
    labels = ARGUMENTS[name].split()
    if len(arguments) != len(labels):
        raise TypeError("%s(): expects %s" % (name, ", ".join(labels)))
    given = dict(zip(labels, arguments))
    for label in sorted(labels, key=ARRAYS.__contains__):  # arrays last: n is the length of tokens
        try:
            given[label] = convert(label, given[label], given)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError("%s(): %s: %s" % (name, label, error)) from None
    return list(given.values())


def run(name, *arguments):
    """Calls a function of paged.h."""
    error = getattr(lib, name)(*arguments)
    if error:
        raise RuntimeError("%s(): %s" % (name, lib.paged_error(error).decode()))


def call(name, *arguments):
    run(name, *check(name, *arguments))


def create(name, *arguments):
    parent, *numbers = check(name, *arguments)
    made = Handle("seq", parent.pool)
    run(name, parent, *numbers, C.byref(made._as_parameter_))
    return made


def release(name, *arguments):
    handle, = check(name, *arguments)
    if handle.views:
        raise BufferError("%s(): an array of cache() is in use" % name)
    run(name, handle)
    C.c_void_p.from_buffer(handle._as_parameter_).value = None  # from now on, it is NULL


lib = load()
for name in "seq_append seq_rewind seq_publish seq_lookup seq_gather pool_write".split():
    globals()[name] = functools.partial(call, name)
for name in "seq_create", "seq_fork":
    globals()[name] = functools.partial(create, name)
for name in "seq_release", "pool_destroy":
    globals()[name] = functools.partial(release, name)


def pool_create(**config):  # num_layers is 1 and the others are 0 unless they are given
    config = {**dict.fromkeys(CONFIG, 0), "num_layers": 1, **config}
    values, made = check("pool_create", *config.values()), Handle("pool")
    run("pool_create", C.byref(Config(*values)), C.byref(made._as_parameter_))
    return made


def pool_plan(pool, seqs, num_tokens):
    """Returns what vLLM's kernels take: block_tables (-1: no block), seq_lens, slot_mapping."""
    pool, seqs, counts = check("pool_plan", pool, seqs, num_tokens)
    if len(seqs) != len(counts):
        raise TypeError("pool_plan(): one number of tokens for each of seqs")
    handles = (C.POINTER(Seq) * len(seqs))(*(seq._as_parameter_ for seq in seqs))
    batch = Batch(len(seqs), handles, (C.c_int * len(seqs))(*counts))
    run("pool_plan", pool, C.byref(batch))
    pool.num_rows = sum(counts)
    size, slots = pool.contents.config.block_size, []
    lengths = np.array([seq.contents.length for seq in seqs], np.int32)
    tables = np.full((len(seqs), -(-lengths.max(initial=0) // size)), -1, np.int32)
    for seq, table, length, n in zip(seqs, tables, lengths, counts):
        table[:-(-length // size)] = seq.contents.block_table[:-(-length // size)]
        slots += [table[i // size] * size + i % size for i in range(length - n, length)]
    return tables, lengths, np.array(slots, np.int64)


def attend(pool, flags, layer, q, scale=0):
    pool, flags, layer, data, scale = check("attend", pool, flags, layer, q, scale)
    out, lse = np.full(q.shape, np.nan, np.float32), np.full(q.shape[:2], np.nan, np.float32)
    run("attend", pool, flags, layer, q.shape[1], C.c_float(scale), data, out.ctypes, lse.ctypes)
    return out, lse


def cache(pool, layer):
    """K and V of a layer, as views [num_blocks, block_size, num_kv_heads, head_dim]; bf16: bits."""
    pool, layer = check("cache", pool, layer)
    c, views = pool.contents.config, []
    if not 0 <= layer < c.num_layers:
        raise IndexError("cache(): there is no layer %d" % layer)
    shape = c.num_layers, c.num_blocks, c.num_kv_heads, c.block_size, c.head_dim
    kind = np.dtype([np.float32, np.float16, np.uint16][c.dtype])
    for plane in pool.contents.k, pool.contents.v:
        memory = (C.c_char * (kind.itemsize * int(np.prod(shape)))).from_address(plane)
        pool.views.append(weakref.ref(memory, pool.views.remove))
        views.append(np.frombuffer(memory, kind).reshape(shape)[layer].swapaxes(1, 2))
    return views
