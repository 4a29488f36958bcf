#!/usr/bin/env python3
"""Proves that kernels have no race, with CBMC, for every head_dim and any two threads.

    python3 checks/proof.py            the kernels; mistakes, which must be refused; numbers
    python3 checks/proof.py NAME...    only these, by the names that it prints

checks/proof.c says how. Here, the accesses of the kernels to memory that threads share are replaced
by its words. Each replacement must find as many places as it says, so a kernel that was changed is
looked at again, and a pointer that was forgotten does not compile: an address is a number here.
"""
import os
import re
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../learn'))
sys.dont_write_bytecode = True
from common import call, find, read, start, write  # noqa: E402
from plant import edit, read_mistakes  # noqa: E402
from report import finish, report  # noqa: E402

FOLDER = 'build/proof'
POINTER = r'(?:const )?float \*'
# {function: [(what stands there, what it becomes, how often)]}
EDITS = {
    'merge': [(POINTER, 'Address ', 3), (r'\b(states?)\[(.*?)\]', r'READ(\1 + (\2))', 4),
              (r'to\[(.*?)\] = (\w+);', r'WRITE(to + \1, \2);', 3)],
    'finish': [(POINTER, 'Address ', 1), (r'\bstate\[(.*?)\]', r'READ(state + \1)', 3),
               (r'job->out\[(.*)\] = (.*);', r'WRITE(GLOBAL(OUT, \1), \2);', 1),
               (r'job->lse\[(.*)\] = (.*);', r'WRITE(GLOBAL(LSE, \1), \2);', 1)],
    'attend_tokens': [
        (POINTER, 'Address ', 2), (r'job->q\[(.*?)\]', r'READ(GLOBAL(Q, \1))', 1),
        (r'load_element\(job->[kv]_plane, (.*?), dtype\)', r'LOAD(\1)', 2),
        (r'__shared__ float states\[(.*)\];', r'SHARED(states, STATES_OF_WARPS, \1);', 1),
        (r'\bstate\[(.*?)\] = (.*);', r'WRITE(state + \1, \2);', 3)],
    'attend_paged': [(r'__shared__ float state\[(.*)\];', r'SHARED(state, ONE_STATE, \1);', 1)],
    'write_token': [
        (r'store_element\(job->k_plane, (.*?), .*\);', r'WRITE(GLOBAL(K_PLANE, \1), 0);', 1),
        (r'store_element\(job->v_plane, .*\);', '', 1)],
    'gather_token': [
        (r'load_element\(job->k_plane, (.*?), .*?\)', r'READ(GLOBAL(K_PLANE, \1))', 1),
        (r'load_element\(job->v_plane, (.*?), .*?\)', 'nondet_float()', 1),
        (r'store_element\(job->dense_k, (.*?), .*\);', r'WRITE(GLOBAL(DENSE_K, \1), k);', 1),
        (r'store_element\(job->dense_v, .*\);', '(void)v;', 1)],
    'split_length': [],
    'split_state': [(POINTER, 'Address ', 1),
                    (r'job->states \+ (.*);', r'GLOBAL(SPLITS, \1);', 1)],
    'attend_split': [(POINTER, 'Address ', 1)],
}
MODEL = ['checks/proof.c', '--no-standard-checks']
SHORT = ['--unwindset', 'merge.2:3,finish.0:3,attend_tokens.4:3']  # loops that end early: faster
# Not merge_splits(), for which CBMC takes too long.
KERNELS = {'attend_paged': SHORT, 'attend_split': SHORT, 'write_kv': [], 'gather_kv': []}
CLAIMS = ['f16_survives', 'bf16_is_nearest']
# Mistakes of learn/mistakes.txt, each of which is a race in attend_paged().
REFUSED = ['barrier-before-merge', 'barrier-before-result', 'states-of-two-warps',
           'm-by-every-lane', 'result-by-every-warp', 'barrier-not-at-head-dim-77']


def edited(text, names):
    """The text, with these functions edited."""
    for name in names:
        function = find(text, name)
        part = text[function.start:function.end]
        for old, new, count in EDITS[name]:
            part, found = re.subn(old, new, part)
            if found != count:
                raise SystemExit(f'{name}(): `{old}` stands there {found} times, not {count}')
        text = text[:function.start] + part + text[function.end:]
    return text


def kernels(engine):
    """The text of the engine with its kernels edited, and those of rung 3 after them."""
    names = list(EDITS)
    fast = read('fast/gpu.c')
    rung_3 = names[names.index('split_length'):]
    fast = edited(fast, rung_3)
    parts = ['enum { MAX_SPLIT = 512 };']
    parts += [fast[find(fast, name).start:find(fast, name).end] for name in rung_3]
    engine = edited(engine, names[:names.index('split_length')])
    return engine.replace('#ifdef PAGED_FAST', '\n\n'.join(parts) + '\n\n#ifdef PAGED_FAST', 1)


def prove(name, text, options, refused=False):
    """Runs CBMC with this text as the engine. A mistake may also make a loop longer than it is."""
    write(f'{FOLDER}/{name}.c', text)
    began = time.time()
    said = call(['cbmc', f'-DKERNELS="{FOLDER}/{name}.c"', '-I.', *options, '--unwind', '9',
                 '--unwinding-assertions', '--drop-unused-functions', '--slice-formula'])[1]
    write(f'{FOLDER}/{name}.log', said)
    results = re.findall(r'^\[.*\] (?:line \d+ )?(.*): (SUCCESS|FAILURE)$', said, re.M)
    failed = sorted({what for what, result in results if result == 'FAILURE'})
    good = results and not failed
    if refused:
        good = {'no race', 'in bounds'} & set(failed)
    report(f'{name}: {len(results)} properties, {", ".join(failed) or "proved"}, '
           f'{time.time() - began:.0f} s', [] if good else [said[-1500:]])


def main():
    os.makedirs(FOLDER, exist_ok=True)
    if not shutil.which('cbmc'):
        report('proof', skipped='cbmc is not installed')
        return finish()
    print('CBMC', call(['cbmc', '--version'])[1].strip())
    chosen = sys.argv[1:] or [*KERNELS, *REFUSED, *CLAIMS]
    for name in chosen:
        if name in KERNELS:
            prove(name, kernels(read('paged.cu.c')), [*MODEL, f'-DKERNEL={name}', *KERNELS[name]])
        elif name in REFUSED:
            prove(name, kernels(edit(read_mistakes()[name])), [*MODEL, '-DKERNEL=attend_paged'],
                  refused=True)
        else:
            prove(name, kernels(read('paged.cu.c')),
                  ['checks/proof.c', '-DKERNEL=attend_paged', '--function', name])
    return finish()


start(main)
