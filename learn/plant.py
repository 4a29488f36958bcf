#!/usr/bin/env python3
"""Plants the mistakes of learn/mistakes.txt, for a reader or for the tests to find.

`make help` lists the commands hunt and mutant. Two more, for scripts: `plant.py edit NAME` prints
the file with a mistake; `plant.py list WHO` prints what WHO has to notice, with the words, and
refuses a table in which a mistake has no place.

In a hunt, the engine reaches the compiler through a pipe, so no file contains the mistake, and the
debugger shows the text without it. A mutant is a copy of the project in build/mutants.
"""
import argparse
import codecs
import collections
import os
import re
import shutil
import signal
import sys
import textwrap

sys.dont_write_bytecode = True
from common import (CC, CPPFLAGS, GDB, LLDB, NO_STANDIN, call, copy_project,  # noqa: E402,F401
                    debugger, find, functions, has_standin, read, refuse, run, start, works, write)

Mistake = collections.namedtuple('Mistake', 'name files old new expect')


# ---- the table ----

def read_mistakes():
    """{name: Mistake}. `expect` has the words that each who notices it must print: {who: words}."""
    mistakes, files, who, always = {}, [], '', []
    for line in read('learn/mistakes.txt').splitlines():
        fields = [field.strip().replace('\\n', '\n') for field in (line + ' ').split(' | ')]
        heading = re.fullmatch(r'\[(\w+)\] (.*)', fields[0])
        if heading:
            who, files, always = heading[1], heading[2].split(), fields[1:]
        elif line.strip() and not line.startswith('#'):
            if len(fields) < 3 or fields[0] in mistakes:
                refuse(f'learn/mistakes.txt: {fields[0]}: malformed, or there twice')
            name, old, new, *more = fields
            expect = {} if who == 'stages' else {who: list(always)}
            for field in more:
                other = re.fullmatch(r'(stage \d+|page|act): (.*)', field)
                expect.setdefault(other[1] if other else who, []).extend(
                    (other[2] if other else field).split(' & '))
            mistakes[name] = Mistake(name, files, old, new, expect)
    return mistakes


def look_up(name, mistakes):
    if name not in mistakes:
        refuse(f'There is no mistake {name}.')
    return mistakes[name]


def place(mistake):
    """The file of a mistake, and what stands before and after it."""
    places = [path for path in mistake.files for _ in range(read(path).count(mistake.old))]
    if len(places) != 1 or mistake.old == mistake.new:
        refuse(f'learn/mistakes.txt: {mistake.name}: `{mistake.old}` occurs {len(places)} times,'
               ' or is not changed')
    return (places[0], *read(places[0]).split(mistake.old))


def edit(mistake):
    """The text of its file with the mistake."""
    _, before, after = place(mistake)
    return before + mistake.new + after


def edit_body(mistake):
    """The function that a mistake is in, and its body with the mistake."""
    path, before, after = place(mistake)
    for function in functions(read(path)):
        if function.body <= len(before) and len(before + mistake.old) <= function.end:
            end = len(read(path)) - function.end
            return function, before[function.body:] + mistake.new + after[:len(after) - end]
    return refuse(f'learn/mistakes.txt: {mistake.name}: is in no function')


def edit_command(options):
    print(edit(look_up(''.join(options.names), read_mistakes())), end='')
    return 0


def list_command(options):
    for mistake in read_mistakes().values():
        place(mistake)
        for who in set(options.names) & set(mistake.expect):
            print(mistake.name, ' & '.join(mistake.expect[who]))
    return 0


# ---- hunts ----

HANGS = '... and then nothing, for'  # is printed for a program that does not end


def read_hunts():
    """{number: {field: text}} of hunts.txt, with the fields in rot13 decoded."""
    hunts = {}
    for line in read('learn/hunts.txt').splitlines():
        field, _, text = line.partition(' ')
        text = text.strip()
        if field == 'hunt':
            number, after, title = re.fullmatch(r'(\d+), after (chapter \d+): (.*)', text).groups()
            hunt = hunts[number] = {'after': after, 'title': title}
        elif field not in ('', '#'):
            hunt[field] = codecs.encode(text, 'rot13') if field in ('bug', 'hint', 'why') else text
    return hunts


def build_hunt(number, mistake):
    """Builds the program of all hunts on the engine with a mistake, or without one for None."""
    text = read('paged.cu.c')
    if mistake:
        _, before, after = place(mistake)
        rest, _, after = after.partition('\n')
        line = (before + mistake.old).count('\n') + 2
        text = f'{before}{mistake.new}{rest}\n#line {line} "paged.cu.c"\n{after}'
    program = f'build/hunt-{number}'
    os.makedirs('build', exist_ok=True)
    status, printed = call([*CC, '-pipe', '-O0', '-g3', '-w', '-I.', *CPPFLAGS, '-DPAGED_NO_MAIN',
                            'learn/hunts.c', '-x', 'c', '-', '-o', program, '-lm'],
                           input='#line 1 "paged.cu.c"\n' + text)
    if status:
        raise SystemExit(f'{CC[0]} fails: {printed}')
    return program


def run_hunt(program, number, seconds):
    """Returns what a hunt prints, and its exit status."""
    printed, status = run([os.path.abspath(program), number], seconds)
    return printed + (f'{HANGS} {seconds} seconds\n' if status is None else ''), status


def judge_answer(number, hunt, mistake, answer):
    """The exit status: 0 if the mistake is in that function."""
    known, name = [function.name for function in functions(read('paged.cu.c'))], answer.strip(' ()')
    if name not in known:
        print(f'hunt {number}: paged.cu.c has no function {name}.')
        return 1
    if name != edit_body(mistake)[0].name:
        print(f'hunt {number}: not yet: the bug is not in {name}().')
        return 1
    print(textwrap.fill(f'hunt {number}: solved: {hunt["why"]}', 79))
    print(f'This is {mistake.name} of learn/mistakes.txt:\n'
          f'    {mistake.old}\nbecame\n    {mistake.new or "nothing"}')
    return 0


def hunt_command(options):
    hunts = read_hunts()
    number = ''.join(options.names)
    if not number:
        print('Ten bugs to find, easy ones first, and the chapter to read before each:')
        for number, hunt in hunts.items():
            print(f'{number:>4}  {hunt["after"]:10}  {hunt["title"]}')
        return 0
    if number not in hunts:
        raise SystemExit(f'There are hunts 1 to {len(hunts)}.')
    hunt = hunts[number]
    mistake = look_up(hunt['bug'], read_mistakes())
    if options.answer:
        return judge_answer(number, hunt, mistake, options.answer)
    if options.hint:
        print(textwrap.fill(f'Hint: {hunt["hint"]}', 79))
        return 0
    program = build_hunt(number, mistake)
    printed, _ = run_hunt(program, number, 5)
    if NO_STANDIN in printed:
        raise SystemExit(NO_STANDIN)
    print(f'Hunt {number}. {hunt["title"]}\n\n$ {program} {number}\n{printed}')
    name, begin, more, _, before_program = debugger()
    print(f'Which function of paged.cu.c has the bug? To look in {name} ({more}):\n'
          f'    {begin} {before_program} {program} {number}')
    for command in hunt.get('look', 'break noticed; run; up 2').split('; '):
        print(f'    ({name}) {command}')
    print(f'Then: make hunt N={number} HINT=1, or make hunt N={number} ANSWER=function')
    return 0


# ---- mutants ----

def mutant_command(options):
    mistakes = {name: mistake for name, mistake in read_mistakes().items()
                if {'tests', 'kernels', 'races', 'blocks', 'overflows'} & set(mistake.expect)}
    name = ''.join(options.names)
    if not name:
        refuse('usage: make mutant BUG=name; the names are:\n' + textwrap.fill(
            ' '.join(mistakes), 79, break_on_hyphens=False))
    mistake = look_up(name, mistakes)
    folder = f'build/mutants/{name}'
    shutil.rmtree(folder, ignore_errors=True)
    path, before, _ = place(mistake)
    print(f'{path}:{before.count(chr(10)) + 1}: {mistake.old}  ->  {mistake.new or "nothing"}')
    copy_project(folder)
    write(f'{folder}/{path}', edit(mistake))
    fast = ['-DPAGED_FAST'] if path.startswith('fast/') else []
    if fast and works('-march=native'):
        fast.append('-march=native')
    status, printed = call([*CC, '-O1', '-g', '-w', *CPPFLAGS, *fast, f'{folder}/tests.c', '-o',
                            f'{folder}/tests', '-lm'])
    if status:
        raise SystemExit(printed)
    name, begin, _, before_command, before_program = debugger()
    print(f'Which tests fail?  {folder}/tests --quick\n'
          f'One of them in {name}, which also stops if the engine panics:\n'
          f'    {begin} {before_command} "break failed" {before_program} \\\n'
          f'        {folder}/tests --quick TEST')
    return 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    commands = {'hunt': hunt_command, 'mutant': mutant_command, 'edit': edit_command,
                'list': list_command}
    parser.add_argument('command', choices=commands)
    parser.add_argument('names', nargs='*')
    parser.add_argument('--hint', action='store_true')
    parser.add_argument('--answer')
    options = parser.parse_intermixed_args()  # names after options, too
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for | head
    return commands[options.command](options)


if __name__ == '__main__':
    start(main)
