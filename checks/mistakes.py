#!/usr/bin/env python3
"""Plants the mistakes of learn/mistakes.txt in the engine: do the tests notice?

    python3 checks/mistakes.py [NAME...]            each of them, in the words of the table?
    python3 checks/mistakes.py --table [NAME...]    all parts of the tests look for each: what
                                                    notices a mistake that nothing else does?

One build has them all: each function has its body once more for each mistake in it, and MISTAKE=7
in the environment chooses the seventh. What a sanitizer has to name is in a build for it. The
unchanged engine must pass first.
"""
import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../learn'))
sys.dont_write_bytecode = True
from common import CC, CPPFLAGS, call, copy_project, read, start, works, write  # noqa: E402
from plant import edit_body, look_up, place, read_mistakes  # noqa: E402

TOP = f'build/mistakes-{os.getpid()}'
# What looks for a mistake: commands, and how many seconds of the processor's each may take.
SLOW = 'every_[ks]|any_company|extreme|random|without_memory|same_bits'  # these come last
FAST = f'$(tests --list | grep -vE "{SLOW}")'
CPU = {f'tests --quick --cpu {FAST}': 10, 'states 2 1 2': 10, 'tests --quick --cpu': 20,
       'states 3 1 2': 30, 'states 2 2 2': 60}
KERNELS = {f'tests --quick --standin {FAST}': 30,
           'tests --quick --standin $(tests --list | grep -v every_kernel)': 90,
           'tests --quick --standin every_kernel_agrees_with_the_oracle': 90}
STARTED = {'tests --quick --standin unused_slots_may_hold_anything '  # each kernel
           'every_kernel_agrees_with_the_oracle every_shape_agrees_with_the_oracle': 120}
BLOCKS = {f'env PAGED_LANE_ORDER=2 {command}': seconds for command, seconds in STARTED.items()}
OTHERS = {'tests-fast --quick --cpu': 20, 'build/llama-tests --quick': 120,
          'python3 checks/golden.py': 200}
# Who has to notice: an option of the compiler, and what looks.
WHO = {'tests': ('-O1', CPU), 'kernels': ('-O1', KERNELS), 'races': ('-fsanitize=thread', STARTED),
       'blocks': ('-fsanitize=thread', BLOCKS),
       'overflows': ('-fsanitize=address', STARTED)}
BEGINS = re.compile(r'(cpu|gpu|standin) +([a-z]\w*) +(?:\.\.\.)? *(.*)')  # the line of a test
MISTAKES = dict(enumerate(read_mistakes().values(), 1))
CHOICE = '''\
static int mistake;  // the one to make

__attribute__((constructor)) static void choose_mistake(void)
{
    if (getenv("MISTAKE")) mistake = atoi(getenv("MISTAKE"));
}

'''


def choose(text, bodies):
    """A C text in which functions have more bodies: {function: [(condition, body)]}. Of these, the
    first one runs whose condition is true."""
    for function in sorted(bodies, key=lambda function: -function.start):
        is_void = re.search(rf'\bvoid {function.name}\(', text[function.start:function.body])
        leave = ' return;' if is_void else ''
        more = ''.join(f'    if ({condition}) {{{body}{leave} }}\n'
                       for condition, body in bodies[function])
        own = text[function.body:function.end]
        text = f'{text[:function.body]}\n{{\n{more}{own}\n}}{text[function.end:]}'
    return text


def build(option):
    """The tests and the states, with all mistakes for this option: a folder."""
    folder, bodies = f'{TOP}/{option}', {'paged.cu.c': {}}
    for number, mistake in MISTAKES.items():
        if option in [WHO[who][0] for who in mistake.expect if who in WHO]:
            function, body = edit_body(mistake)
            more = bodies.setdefault(place(mistake)[0], {}).setdefault(function, [])
            more.append((f'mistake == {number}', body))
    copy_project(folder)
    for path in bodies:
        write(f'{folder}/{path}', choose(read(path), bodies[path]))
    engine = read(f'{folder}/paged.cu.c')
    write(f'{folder}/paged.cu.c', engine.replace('// ---- ', CHOICE + '// ---- ', 1))
    native = ['-march=native'] if works('-march=native') else []
    for words in (['tests.c', '-DPAGED_FAST', *native, option, '-o', 'tests'],
                  ['checks/states.c', '-o', 'states']):
        status, said = call([*CC, '-O1', '-g', '-w', *CPPFLAGS, *words, '-lm'], cwd=folder)
        if status:
            raise SystemExit(said)
    return folder


def failures(folder, commands, number):
    """Yields (test, device, what it said) for each test that fails with a mistake, or the command
    if it names none. A program ends with whoever needs no more."""
    for command, seconds in commands.items():
        test, device, said, failed = command, 'cpu', [], False
        process = subprocess.Popen(
            ['sh', '-c', f'ulimit -t {seconds}; PATH=.:$PATH; exec {command}'], cwd=folder,
            env={**os.environ, 'MISTAKE': str(number)}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, encoding='utf-8', errors='replace')
        try:
            for line in process.stdout:
                begins = BEGINS.match(line)
                if begins:
                    device, test, said = begins[1], begins[2], [begins[3]]
                elif line.startswith('  FAILED: '):
                    failed = True
                    yield test, device, said
                else:
                    said.append(line.rstrip('\n'))
            if process.wait() != 0 and not failed:
                yield test, device, said
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def judge(failure, words):
    """Whether a mistake is noticed in these words, and a line on it."""
    if not failure:
        return False, 'NOT NOTICED'
    test, device, said = failure
    telling = re.compile(r'(tests|paged\.cu|fast|gpu)\.c:\d+: |FAIL |SUMMARY')
    report = textwrap.shorten('; '.join(filter(telling.search, said)), 150)
    text = f'{test} ({device}): {report or "crashes or hangs"}'
    missed = [part for part in words if part not in ' '.join(said)]
    return not missed, f'no `{missed[0]}`, but {text}' if missed else text


def in_parallel(look, items):
    with ThreadPoolExecutor(int(os.environ.get('JOBS', 2))) as workers:
        yield from zip(items, workers.map(look, items))


def check(numbers):
    """Prints whether each mistake is noticed, after the unchanged engine, which must pass. Returns
    how many are, are not, or are skipped."""
    passed = failed = skipped = 0
    for who in list(numbers):
        if not works(WHO[who][0]):
            print(f'skip  {len(numbers[who])} mistakes: {CC[0]} has no {WHO[who][0]}')
            skipped += len(numbers.pop(who))
    folders = dict(in_parallel(build, sorted({WHO[who][0] for who in numbers})))
    each = [(who, number) for who in numbers for number in [0, *numbers[who]]]

    def look(item):
        option, commands = WHO[item[0]]
        return next(failures(folders[option], commands, item[1]), None)

    for (who, number), failure in in_parallel(look, each):
        if number:
            name = MISTAKES[number].name
            good, text = judge(failure, MISTAKES[number].expect[who])
        else:
            name = f'none, for {who}'
            good, text = not failure, judge(failure, [])[1]
        print(f'{"ok  " if good else "FAIL"}  {name:28} {text}', flush=True)
        passed += good
        failed += not good
    return passed, failed, skipped


def print_table(numbers):
    """Prints what notices each mistake, and for each part of the tests, what it alone notices."""
    folder, noticed, one_at_a_time = build('-O1'), {}, threading.Lock()  # as these write files
    status, said = call(['make', '-s', '-C', folder, 'tests-fast', 'llama', 'build/llama-tests'])
    if status:
        raise SystemExit(said)

    def look(number):
        found = [f'{test} ({device})'
                 for test, device, _ in failures(folder, {**CPU, **KERNELS}, number)]
        with one_at_a_time:
            return found + [command for command in OTHERS if next(
                failures(folder, {command: OTHERS[command]}, number), None)]

    for number, found in in_parallel(look, numbers):
        print(f'{MISTAKES[number].name}: {", ".join(found)}', flush=True)
        for part in found:
            noticed.setdefault(part, []).append((MISTAKES[number].name, len(found) == 1))
    for part, names in sorted(noticed.items(), key=lambda item: len(item[1])):
        alone = [name for name, is_alone in names if is_alone]
        print(f'{part} notices {len(names)}, {len(alone)} alone: {" ".join(alone)}')


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('names', nargs='*')
    parser.add_argument('--table', action='store_true')
    options = parser.parse_intermixed_args()
    chosen = [look_up(name, read_mistakes()) for name in options.names] or MISTAKES.values()
    numbers = {who: [number for number, mistake in MISTAKES.items()
                     if mistake in chosen and who in mistake.expect] for who in WHO}
    if options.table:
        return print_table(numbers['tests'] + numbers['kernels'])
    counts = check({who: numbers[who] for who in WHO if numbers[who]})
    print('%d passed, %d failed, %d skipped' % counts)
    return counts[1] > 0


if __name__ == '__main__':
    try:
        start(main)
    finally:
        shutil.rmtree(TOP, ignore_errors=True)
