# Commands that show pools, sequences, K and V, and the lanes of a kernel: make debug, or one of
#
#     gdb -x debugger/paged.py build/debug
#     lldb -Q -o "command script import debugger/paged.py" build/debug
#
# `help user-defined` lists them in gdb, and `help` in lldb; `help NAME` explains one. For gdb's
# `print a[6]@4`, lldb has `parray 4 &a[6]`. An argument ends at a space, so write seq->length-1.
#
# They print what is in memory, and say what they compute. They call no function of the program, so
# they work at any point, and on the core file of a program that has panicked. Use -O0 -g3: at -O1,
# gdb's `next` over a barrier or a shuffle leaves its lane. That of lldb always does:
# use `in-lane paged.cu.c:LINE 0 5`, with the next line, and `continue`.

python = 'A gdb without Python takes this line for a command, and says that it has none.'

import struct
import textwrap
try:
    import gdb
    Failure = gdb.error
except ImportError:
    import lldb
    gdb, Failure = None, ValueError
    if not hasattr(lldb, 'SBDebugger'):  # as in Debian 12
        raise SystemExit('lldb does not find its Python module: before you start it, set PYTHONPATH'
                         ' to\nthe folder that has lldb/embedded_interpreter.py.')

commands, context = {}, None  # of lldb


class Value:
    """A value of lldb, which can be used as one of gdb."""
    def __init__(self, value):
        self.value = value
        if value.GetError().Fail():  # after many warnings about macros
            raise Failure(value.GetError().GetCString().rpartition('error: ')[2].splitlines()[0])

    def __getitem__(self, key):
        return Value(self.value.GetValueForExpressionPath('[%d]' % key) if isinstance(key, int)
                     else self.value.GetChildMemberWithName(key))

    def __int__(self):
        return self.value.GetValueAsSigned()

    def string(self):
        return self.value.GetSummary().strip('"')


def evaluate(expression):
    if gdb:
        return gdb.parse_and_eval(expression)
    return Value((context.GetFrame() or context.GetTarget()).EvaluateExpression(expression))


def numbers(value, names):
    return [int(value[name]) for name in names.split()]


def argument(name, text):
    if name == 'PLACE':
        return text
    kind = {'POOL': 'Pool *', 'SEQ': 'Seq *'}.get(name, 'long')
    value = evaluate('(%s) (%s)' % (kind, text))
    return int(value) if kind == 'long' else value


def command(function):
    """Makes a command of a function that yields lines. Its documentation begins with the name and
    the arguments."""
    usage = function.__doc__.partition(':')[0]
    name, *names = usage.split()

    def lines(text):
        words = text.split()
        if len(words) != len(names):
            yield 'usage: ' + usage
            return
        try:
            for line in function(*map(argument, names, words)):
                yield textwrap.fill(line, 80, subsequent_indent='    ') if len(line) > 80 else line
        except Failure as error:
            yield str(error)

    if gdb:
        class Command(gdb.Command):
            __doc__ = function.__doc__

            def invoke(self, text, _):
                for line in lines(text):
                    print(line)
        return Command(name, gdb.COMMAND_USER)

    def run(_, text, current, result, __):
        global context
        context = current
        for line in lines(text):
            result.AppendMessage(line)
    run.__doc__ = function.__doc__
    commands[function.__name__] = name
    return run


@command
def pool(pool):
    """pool POOL: draw a map of the pool, one character for each block.
'.' is free, 'p' is free and published, a digit is the reference count, '+' a
count of 10 or more."""
    n, size = numbers(pool['config'], 'num_blocks block_size')
    free, signs = int(pool['num_free']), ''
    yield 'pool of %d blocks of %d tokens: %d used, %d free, %.1f %% in use' % (
        n, size, n - free, free, 100 * (n - free) / n)
    for i in range(n):
        count, serial = numbers(pool['blocks'][i], 'ref_count serial')
        signs += '+' if count > 9 else str(count) if count > 0 else 'p' if serial else '.'
    for i in range(0, n, 64):
        yield '%8d  %s' % (i, signs[i:i + 64])


def follow(pool, block, link, end):
    """The blocks of a list, and what is wrong with its end: a broken list may go in circles."""
    blocks = {}
    while 0 <= block < int(pool['config']['num_blocks']) and block not in blocks:
        blocks[block] = pool['blocks'][block]
        block = int(blocks[block][link])
    wrong = 'then %d%s' % (block, ' again' if block in blocks else ', which is no block')
    return blocks, '' if block == end else wrong


@command
def free_list(pool):
    """free-list POOL: list the free blocks, from the one that is taken next to the last.
A * marks a published block."""
    sentinel = int(pool['config']['num_blocks'])
    blocks, wrong = follow(pool, int(pool['blocks'][sentinel]['next']), 'next', sentinel)
    words = ['%d%s' % (i, '*' if int(block['serial']) else '') for i, block in blocks.items()]
    if wrong:
        words.append(wrong)
    yield 'num_free is %d, the list has %d: %s' % (
        int(pool['num_free']), len(blocks), ' '.join(words))


def table_of(seq):
    """The entries of a block table. stb_ds keeps the length of an array in front of it."""
    array = int(seq['block_table'])
    if array == 0:
        return []
    length = int(evaluate('((stbds_array_header *) %d - 1)->length' % array))
    return [int(seq['block_table'][i]) for i in range(length)]


@command
def table(seq):
    """table SEQ: print the block table of a sequence.
For each logical block: the physical block, the number of its filled slots (which
is computed from the length of the sequence), its reference count."""
    size, length = int(seq['pool']['config']['block_size']), int(seq['length'])
    entries = table_of(seq)
    yield 'sequence of %d tokens in %d blocks of %d' % (length, len(entries), size)
    yield '  logical  physical  filled  ref_count'
    for i, block in enumerate(entries):
        yield '  %7d  %8d  %6d  %9d' % (i, block, max(0, min(length - i * size, size)),
                                        int(seq['pool']['blocks'][block]['ref_count']))


@command
def prefixes(pool):
    """prefixes POOL: list the blocks in the prefix cache, bucket by bucket.
For each block: its reference count, its serial, its parent's serial (0 for the
first block of a prompt), and its first 16 tokens."""
    num_buckets, last_serial = numbers(pool, 'num_buckets last_serial')
    size = int(pool['config']['block_size'])
    yield 'prefix cache: buckets %d, last serial %d' % (num_buckets, last_serial)
    for bucket in range(num_buckets):
        blocks, wrong = follow(pool, int(pool['buckets'][bucket]), 'next_in_bucket', -1)
        if blocks or wrong:
            yield 'bucket %d' % bucket
        for i, block in blocks.items():
            tokens = ' '.join(str(int(pool['tokens'][i * size + t])) for t in range(min(size, 16)))
            yield '  block %d, count %d: serial %d, parent %d, tokens %s%s' % (
                i, *numbers(block, 'ref_count serial parent'), tokens, ' ...' if size > 16 else '')
        if wrong:
            yield '  ' + wrong


# How an element of PAGED_F32, PAGED_F16 or PAGED_BF16, the upper half of a float, becomes a number.
FORMATS = ('int', 0, '=i', '=f'), ('short', 0, '=h', '=e'), ('short', 16, '=i', '=f')


def text_of(x):
    """A number in at most 8 characters. What is not 0 does not look like 0."""
    texts = '%.4f' % x, '%.0f' % x, '%.1e' % x
    return next(text for text in texts if len(text) <= 8 and (x == 0 or float(text) != 0))


def vectors(pool, element, count):
    """K and V from this element on, in lines of 8 numbers."""
    kind, shift, bits, number = FORMATS[int(pool['config']['dtype'])]
    for name in 'kv':
        plane = evaluate('(%s *) %d + %d' % (kind, int(pool[name]), element))
        words = [struct.pack(bits, int(plane[i]) << shift) for i in range(count)]
        texts = ['%9s' % text_of(*struct.unpack(number, word)) for word in words]
        for i in range(0, count, 8):
            yield '  %s%s' % (' ' if i else name.upper(), ''.join(texts[i:i + 8]))


@command
def kv(seq, layer, head, token):
    """kv SEQ LAYER HEAD TOKEN: print K and V where those of a token belong.
The block is the one in the table. The entry, the slot and the element of the
plane are computed: an engine that computes others has its K and V elsewhere.
HEAD is a KV head. It cannot read the memory of a real GPU."""
    pool, length, entries = seq['pool'], int(seq['length']), table_of(seq)
    layers, blocks, heads, size, dim = numbers(
        pool['config'], 'num_layers num_blocks num_kv_heads block_size head_dim')
    entry, slot = divmod(token, size)
    if not 0 <= token < length or entry >= len(entries):
        yield 'No token %d: the sequence has %d, in %d blocks.' % (token, length, len(entries))
    elif not 0 <= layer < layers or not 0 <= head < heads:
        yield 'No such place: layers 0 to %d, KV heads 0 to %d.' % (layers - 1, heads - 1)
    else:
        block = entries[entry]
        element = (((layer * blocks + block) * heads + head) * size + slot) * dim
        yield 'token %d: entry %d, block %d, slot %d; layer %d, head %d: element %d, computed' % (
            token, entry, block, slot, layer, head, element)
        yield from vectors(pool, element, dim)


@command
def in_lane(place, x, thread):
    """in-lane PLACE BLOCK_X THREAD: set a breakpoint for one thread, from 0 to 127.
It stops in the thread blocks with that x; then `run', or `continue'. PLACE is what
`break' accepts: a kernel, a function that kernels call (write_token), or a line of
one (paged.cu.c:900). On the stand-in the threads of a thread block run one at a
time: gdb's `next' over a barrier or a shuffle comes back in the same thread."""
    # The stand-in keeps threadIdx and blockIdx as global variables; in cuda-gdb they are built in.
    line = 'break %s if blockIdx.x == %d && threadIdx.x == %d' % (place, x, thread)
    if gdb:
        gdb.execute(line)
    else:
        context.GetTarget().GetDebugger().HandleCommand(line)
    return ()


@command
def lane():
    """lane: say which kernel, thread block, thread, warp and lane this is.
It reads the variables of the stand-in. On a GPU, cuda-gdb answers the same
question with `cuda kernel block thread warp lane'."""
    # Outside of a kernel, threadIdx belongs to the last thread that ran: check whose stack this is.
    gpu, thread = evaluate('gpu'), int(evaluate('threadIdx.x'))
    depth = int(evaluate('(long) $sp')) - int(gpu['threads'][thread]['stack'])
    if not 0 <= depth < int(evaluate('(long) sizeof gpu.stacks[0]')):
        yield 'Not in a kernel.'
        return
    yield '%s, thread block (%d, %d, %d), thread %d: warp %d, lane %d' % (
        gpu['name'].string(), *numbers(evaluate('blockIdx'), 'x y z'), thread, thread // 32,
        thread % 32)


# `step` does not enter the following functions: those of libc, which begin with _, and the smallest
# ones of the engine. A breakpoint in one of them stops as ever. pool_write() stores element by
# element: `finish` takes you out of write_token().
SMALL = ('dtype_size kv_offset ceil_div min_int multiply realloc_or_panic memory_poison '
         'memory_copy block_poison plan_expire float_bits bits_float f16_to_f32 f32_to_f16 '
         'f32_to_bf16 bf16_to_f32 load_element store_element')
SKIPPED = '^(_.*|stbds_.*|%s)$' % '|'.join(SMALL.split())

if gdb:
    gdb.execute('skip -rfu ' + SKIPPED, to_string=True)
    try:  # so that `info locals` prints few elements of a vector
        gdb.execute('set print characters 200')
        gdb.execute('set print elements 8')
    except gdb.error:  # until gdb 13, the latter are the characters of a text, too
        gdb.execute('set print elements 64')


def __lldb_init_module(debugger, _):
    lines = ['command script add -f paged.%s %s' % names for names in commands.items()]
    lines += ['settings set target.process.thread.step-avoid-regexp ' + SKIPPED,
              'settings set target.max-children-count 8',
              'command regex break '  # with conditions, as in gdb
              '"s/(.+):([0-9]+) if (.+)/breakpoint set -f %1 -l %2 -c \'%3\'/" '
              '"s/(.+) if (.+)/breakpoint set -n %1 -c \'%2\'/" "s/(.+)/b %1/"']
    for line in lines:
        debugger.HandleCommand(line)
