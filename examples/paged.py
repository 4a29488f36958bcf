"""The engine from Python: the functions of paged.h by their names, with arrays of numpy.
An error is an exception. As in C, nothing is released unless you do it. README.md shows more."""
import ctypes as C
import functools
import os
import subprocess
import numpy as np

F32, F16, BF16 = range(3)
CPU, GPU, STANDIN = range(3)  # numpy cannot reach the memory of a GPU
GATHER, FAST = 1, 2
CONFIG = "num_layers num_kv_heads head_dim block_size num_blocks dtype poison device".split()
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def structure(**fields):
    return type("Structure", (C.Structure,), {"_fields_": list(fields.items())})


Config = structure(**{name: C.c_int for name in CONFIG})
Pool = structure(config=Config, k=C.c_void_p, v=C.c_void_p)  # the first fields
Seq = structure(pool=C.POINTER(Pool), length=C.c_int, num_computed_tokens=C.c_int,
                block_table=C.POINTER(C.c_int))
Batch = structure(num_seqs=C.c_int, seqs=C.c_void_p, num_tokens=C.c_void_p)


def load(path="build/libpaged.so", *options):
    subprocess.run(["make", "-s", path, *options], cwd=ROOT, check=True)  # if missing or old
    library = C.CDLL(os.path.join(ROOT, path))
    library.paged_error.restype = library.pool_check.restype = C.c_char_p
    library.seq_release.restype = library.pool_destroy.restype = None
    return library


def call(name, *arguments):
    """Calls a function of paged.h."""
    for x in arguments:
        if isinstance(x, np.ndarray) and not (x.flags.c_contiguous and x.dtype.char in "fi"):
            raise TypeError("%s(): arrays are contiguous, of float32 or int32" % name)
    error = getattr(lib, name)(*(getattr(x, "ctypes", x) for x in arguments))
    if error:
        raise RuntimeError("%s(): %s" % (name, lib.paged_error(error).decode()))


def create(name, kind, *arguments):
    made = C.POINTER(kind)()
    call(name, *arguments, C.byref(made))
    return made


lib = load()
for name in """seq_append seq_rewind seq_publish seq_lookup seq_release seq_gather
               pool_write pool_destroy""".split():
    globals()[name] = functools.partial(call, name)
seq_create = functools.partial(create, "seq_create", Seq)
seq_fork = functools.partial(create, "seq_fork", Seq)


def pool_create(**config):  # num_layers is 1 and the others are 0 unless they are given
    return create("pool_create", Pool, C.byref(Config(**{"num_layers": 1, **config})))


def pool_plan(pool, seqs, num_tokens):
    """Returns what vLLM's kernels take: block_tables (-1: no block), seq_lens, slot_mapping."""
    handles, counts = (C.POINTER(Seq) * len(seqs))(*seqs), np.array(num_tokens, np.int32)
    call("pool_plan", pool, C.byref(Batch(len(seqs), C.addressof(handles), counts.ctypes.data)))
    size, slots = pool.contents.config.block_size, []
    lengths = np.array([seq.contents.length for seq in seqs], np.int32)
    tables = np.full((len(seqs), -(-lengths.max(initial=0) // size)), -1, np.int32)
    for seq, table, length, n in zip(seqs, tables, lengths, counts):
        table[:-(-length // size)] = seq.contents.block_table[:-(-length // size)]
        slots += [table[i // size] * size + i % size for i in range(length - n, length)]
    return tables, lengths, np.array(slots, np.int64)


def attend(pool, flags, layer, q, scale=0):
    out, lse = np.full(q.shape, np.nan, np.float32), np.full(q.shape[:2], np.nan, np.float32)
    call("attend", pool, flags, layer, q.shape[1], C.c_float(scale), q, out, lse)
    return out, lse


def cache(pool, layer):
    """K and V of a layer, as views [num_blocks, block_size, num_kv_heads, head_dim]; bf16: bits."""
    c = pool.contents.config
    shape = c.num_layers, c.num_blocks, c.num_kv_heads, c.block_size, c.head_dim
    kind = np.dtype([np.float32, np.float16, np.uint16][c.dtype])
    for plane in pool.contents.k, pool.contents.v:
        memory = (C.c_char * (kind.itemsize * int(np.prod(shape)))).from_address(plane)
        yield np.frombuffer(memory, kind).reshape(shape)[layer].swapaxes(1, 2)
