#!/usr/bin/env python3
"""Bugs to be found by what they do: hunts/hunts.txt has the list, hunts/programs.c the programs.

    make hunt                        python3 hunts/hunt.py              what there is
    make hunt N=7                    python3 hunts/hunt.py 7            builds hunt 7 and runs it
    make hunt N=7 HINT=1             python3 hunts/hunt.py 7 --hint     ... with a hint
    make hunt N=7 ANSWER=seq_rewind  python3 hunts/hunt.py 7 --answer seq_rewind
                                     python3 hunts/hunt.py --prove      the proof, for all or some
                                     python3 hunts/hunt.py --hash 7 seq_rewind   for the list

The engine with the bug goes to the compiler through a pipe, so no file has it. For the debugger it
keeps the name and line numbers of paged.cu.c, so one sees the text there, which is without the bug.
The proof: the engine as it is shows no symptom, the one with the bug does; of all its functions,
just the one that has the bug is accepted as the answer; and no file but the program is left.
"""

import argparse
import codecs
import contextlib
import glob
import hashlib
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CC = shlex.split(os.environ.get('CC', 'cc'))
CPPFLAGS = shlex.split(os.environ.get('CPPFLAGS', ''))
HANGS = '... and then nothing, for'  # what is said of a program that does not end
FUNCTION = re.compile(r'^(?:KERNEL|(?:__attribute__\(\(\w+\)\) )?[a-z][\w *]*?\b(\w+))'
                      r'\((\w+)?(?!.*;$)', re.M | re.I)


def load(path):
    with open(os.path.join(ROOT, path), encoding='utf-8') as file:
        return file.read()


def rot13(text):
    return codecs.encode(text, 'rot13')


def digest(number, function):
    return hashlib.sha256(f'paged {number} {function}'.encode()).hexdigest()[:16]


def read_hunts():
    """{number: {field: text}} of hunts.txt, with what is in rot13 there in clear."""
    hunts = {}
    for line in load('hunts/hunts.txt').splitlines():
        field, _, text = line.partition(' ')
        text = text.strip()
        if field == 'hunt':
            hunt = hunts.setdefault(int(text), {})
        elif field not in ('', '#'):
            hunt[field] = rot13(text) if field in ('bug', 'hint', 'why') else text
    return hunts


def read_bug(name):
    """What the bug replaces, and by what: a line of checks/bugs.txt."""
    for line in load('checks/bugs.txt').splitlines():
        fields = [field.strip() for field in (line + ' ').split(' | ')]
        if fields[0] == name and len(fields) >= 3:
            return [field.replace('\\n', '\n') for field in fields[1:3]]
    raise SystemExit('hunts.txt names a bug that checks/bugs.txt does not have')


def plant(name):
    """The engine with a bug, or as it is for None; lines after the bug keep their numbers."""
    text = load('paged.cu.c')
    if name:
        old, new = read_bug(name)
        if text.count(old) != 1:
            raise SystemExit('a bug of hunts.txt has no place in paged.cu.c')
        before, after = text.split(old)
        rest, _, after = after.partition('\n')
        number = (before + old).count('\n') + 2
        text = f'{before}{new}{rest}\n#line {number} "paged.cu.c"\n{after}'
    return '#line 1 "paged.cu.c"\n' + text


def build(number, name):
    program = f'build/hunt-{number}'
    os.makedirs(os.path.join(ROOT, 'build'), exist_ok=True)
    command = [*CC, '-pipe', '-O0', '-g3', '-w', '-I.', *CPPFLAGS, '-DPAGED_NO_MAIN',
               'hunts/programs.c', '-x', 'c', '-', '-o', program, '-lm']
    done = subprocess.run(command, cwd=ROOT, input=plant(name), text=True)
    if done.returncode:
        raise SystemExit(f'{CC[0]} fails')
    return program


def run(program, number, seconds):
    """The exit status, and what was printed; a program that takes longer is ended."""
    command = [os.path.join(ROOT, program), str(number)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors='replace')
    try:
        printed = process.communicate(timeout=seconds)[0]
        return process.returncode, printed
    except subprocess.TimeoutExpired:
        process.kill()
        return 1, process.communicate()[0] + f'{HANGS} {seconds} seconds\n'


def functions():
    """Where each function of the engine begins, as (place in the text, name)."""
    text = load('paged.cu.c')
    return [(match.start(), match[1] or match[2]) for match in FUNCTION.finditer(text)]


def list_hunts(hunts):
    print('Bugs to be found, the easy ones first, each with the chapter to read before.')
    for number, hunt in hunts.items():
        print(f'{number:4}  {hunt["after"]:10}  {hunt["title"]}')


def show(number, hunt):
    program = build(number, hunt['bug'])
    print(f'Hunt {number}. {hunt["title"]}\n\n$ {program} {number}\n{run(program, number, 5)[1]}')
    print(f'Which function of paged.cu.c has the bug? To look:\n'
          f'    gdb -x debugger/paged.gdb --args {program} {number}')
    for command in hunt.get('look', 'break noticed; run; up 2').split('; '):
        print(f'    (gdb) {command}')
    print(f'A hint:    make hunt N={number} HINT=1')
    print(f'An answer: make hunt N={number} ANSWER=function')


def answer(number, hunt, function):
    """The exit status: 0 if the bug is in that function."""
    function = function.strip('()')
    if function not in {name for _, name in functions()}:
        print(f'hunt {number}: paged.cu.c has no function {function}()')
    elif digest(number, function) != hunt['answer']:
        print(f'hunt {number}: not yet: {function}() does what it should')
    else:
        old, new = read_bug(hunt['bug'])
        print(textwrap.fill(f'hunt {number}: right: {hunt["why"]}', 79))
        print(f'This bug is called {hunt["bug"]} in checks/bugs.txt:\n'
              f'    {old}\nbecame\n    {new or "nothing at all"}')
        return 0
    return 1


def prove(number, hunt, healthy):
    """What is wrong with a hunt, or None."""
    old, new = read_bug(hunt['bug'])
    place = load('paged.cu.c').index(old)
    buggy = [name for at, name in functions() if at <= place][-1]
    accepted = {name for _, name in functions() if digest(number, name) == hunt['answer']}
    if accepted != {buggy}:
        return f'the bug is in {buggy}(), accepted are {accepted}; it ought to be ' \
               f'{digest(number, buggy)}'
    with contextlib.redirect_stdout(io.StringIO()):
        if answer(number, hunt, buggy + '()') or not answer(number, hunt, 'pool_create'):
            return 'the right answer is refused, or a wrong one accepted'
    if re.search(rf'\b{buggy}\b|{hunt["bug"]}', load('hunts/hunts.txt')):
        return 'hunts.txt names the bug or its function'
    status, printed = run(healthy, number, 60)
    if status or hunt['shows'] in printed:
        return f'with the engine as it is: exit status {status}, and it prints {printed}'
    program = build(number, hunt['bug'])
    status, printed = run(program, number, 2 if hunt['shows'] == HANGS else 60)
    if not status or hunt['shows'] not in printed:
        return f'no "{hunt["shows"]}": exit status {status}, and it prints {printed}'
    left = glob.glob(os.path.join(ROOT, program + '[!0-9]*'))
    return f'left in build: {left}' if left else None


def prove_all(hunts, numbers):
    healthy = build(0, None)
    failures = 0
    for number in numbers or hunts:
        wrong = prove(number, hunts[number], healthy)
        failures += wrong is not None
        print(f'FAIL  hunt {number}: {wrong}' if wrong else f'ok    hunt {number}')
    print(f'{len(numbers or hunts) - failures} passed, {failures} failed, 0 skipped')
    return failures > 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    for flag in ('--hint', '--prove', '--hash'):
        parser.add_argument(flag, action='store_true')
    parser.add_argument('--answer')
    parser.add_argument('words', nargs='*')
    options = parser.parse_args()
    hunts = read_hunts()
    numbers = [int(word) for word in options.words if word.isdigit()]
    if any(number not in hunts for number in numbers):
        raise SystemExit(f'there are hunts 1 to {len(hunts)}')
    if options.prove:
        return prove_all(hunts, numbers)
    if not numbers:
        return list_hunts(hunts)
    if options.hash:
        return print(digest(numbers[0], options.words[1]))
    if options.answer:
        return answer(numbers[0], hunts[numbers[0]], options.answer)
    if options.hint:
        return print(textwrap.fill(f'Hint: {hunts[numbers[0]]["hint"]}', 79))
    return show(numbers[0], hunts[numbers[0]])


if __name__ == '__main__':
    sys.exit(main())
