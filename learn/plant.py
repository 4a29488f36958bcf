#!/usr/bin/env python3
"""Plants the bugs of checks/bugs.txt in the engine, for a reader or for the tests to find.

`make help` lists the commands hunt and mutant; `plant.py mutants` is in `make check C=planted`.
Three more: `plant.py mutants NAME...`; `plant.py mutants --check`, which only asks whether each bug
still has its place and compiles; and `plant.py mutants --states`, where checks/states.c is the only
test: how many bugs does it find?

In a hunt, the engine reaches the compiler through a pipe, so no file contains the bug, and the
debugger shows the text without it. A mutant is a folder in build/mutants: tests.c beside the
changed engine. The unchanged engine must pass the tests first, with and without the fast paths.
"""
import argparse
import codecs
import collections
import difflib
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor

os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ['LC_ALL'] = 'C'  # what compilers and debuggers say is read here
os.environ.update(TSAN_OPTIONS='halt_on_error=1', ASAN_OPTIONS='detect_leaks=0')
CC = shlex.split(os.environ.get('CC', 'cc'))
CPPFLAGS = shlex.split(os.environ.get('CPPFLAGS', ''))
SOURCES = ('tests.c', 'checks/test.h', 'checks/states.c', 'checks/search.h', 'paged.h',
           'paged.cu.c', 'fast/fast.c', 'fast/gpu.c')

NO_STANDIN = 'This build has no stand-in for a GPU, which needs x86-64 or AArch64.'

# What a sanitizer says of the bugs that it has to name, and the tests that start each kernel.
SANITIZERS = {'data race': '-fsanitize=thread', 'global-buffer-overflow': '-fsanitize=address'}
KERNELS = ['--standin', 'unused_slots_may_hold_anything', 'every_kernel_agrees_with_the_oracle']
POOLS = '2 1 2', '3 1 2', '2 2 2'  # in all of whose states every call is made
# Before a command: a test that takes longer than 60 seconds of processor time hangs.
LIMITED = ['sh', '-c', 'ulimit -t 60; exec "$@"', 'sh']

Function = collections.namedtuple('Function', 'name start body end')
Bug = collections.namedtuple('Bug', 'name old new expect')
# A debugger with the commands of debugger/; what comes before a command and before the program.
Debugger = collections.namedtuple('Debugger', 'name start help before_command before_program')
GDB = Debugger('gdb', 'gdb -q -x debugger/paged.py', 'help user-defined', '-ex', '--args')
LLDB = Debugger('lldb', 'lldb -Q -o "command script import debugger/paged.py"', 'help', '-o', '--')


def read(path):
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def call(command, **options):
    """Runs a command. Returns its exit status and what it printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          encoding='utf-8', errors='replace', **options)
    return done.returncode, done.stdout


def run(command, seconds, limits='true'):
    """Returns what a program printed, and its exit status: None if it took too long. A limit that
    the system does not have is ignored."""
    limits = '{ ulimit -c 0; ulimit -f 2048; %s; } 2>/dev/null; exec "$@"' % limits
    shell = ['sh', '-c', limits, 'sh']
    with tempfile.TemporaryFile() as output:
        try:
            status = subprocess.run(shell + command, stdin=subprocess.DEVNULL, stdout=output,
                                    stderr=subprocess.STDOUT, timeout=seconds,
                                    check=False).returncode
        except subprocess.TimeoutExpired:
            status = None
        output.seek(0)
        return output.read().decode('utf-8', 'replace'), status


@functools.lru_cache(None)
def works(option):
    """Whether a program made with this option of the compiler runs. With an old ThreadSanitizer, it
    fails if addresses are too random."""
    os.makedirs('build', exist_ok=True)
    with tempfile.TemporaryDirectory(dir='build') as folder:
        compile_it = [*CC, option, '-x', 'c', '-', '-o', folder + '/probe']
        return call(compile_it, input='int main(void) { return 0; }')[0] == 0 \
            and call([folder + '/probe'])[0] == 0


@functools.lru_cache(None)
def has_standin():
    """Whether the compiler sees a stand-in in the engine, by its macros."""
    return '#define PAGED_NO_STANDIN' not in call([*CC, *CPPFLAGS, '-E', '-dM', 'paged.cu.c'])[1]


def refuse(text):
    """Ends a command that cannot do its work."""
    print(text, file=sys.stderr)
    sys.exit(2)


def start(main):
    try:
        sys.exit(main())
    except OSError as error:  # the folder cannot be written, say
        refuse(f'{error.filename}: {error.strerror}')


def debugger():
    return LLDB if shutil.which('lldb') and not shutil.which('gdb') else GDB


# ---- functions and bugs ----

DEFINITION = re.compile(
    r'^(?:__attribute__\(\(\w+\)\) )?\w[\w *]*?\b(\w+)\('  # name
    r'[^;{}]*?(\s*\{(?:.*\}$|\n(?:.*\n)*?\}))', re.M)  # arguments, body


def functions(text):
    """The functions that a C text defines, each with the places of its start, body and end."""
    return [Function(match[1], match.start(), match.start(2), match.end())
            for match in DEFINITION.finditer(text)]


def find(text, name):
    return next((function for function in functions(text) if function.name == name), None)


def near(name, names):
    """A question that suggests names like this one, or nothing."""
    close = difflib.get_close_matches(name, names, 3, 0.7)
    return f' Did you mean {", ".join(close)}?' if close else ''


def split_fields(line):
    """The fields of a line of bugs.txt or wrong.txt; none for a comment."""
    if not line.strip() or line.startswith('#'):
        return []
    return [field.strip().replace('\\n', '\n') for field in (line + ' ').split(' | ')]


def read_bugs():
    bugs = {}
    for fields in filter(None, map(split_fields, read('checks/bugs.txt').splitlines())):
        name, old, new, *expect = fields + [''] * (3 - len(fields))
        expects = not expect or (len(expect) == 1 and expect[0].startswith('expect '))
        if name in bugs or not old or old == new or not expects:
            raise SystemExit(f'checks/bugs.txt: {name}: malformed, or there twice')
        bugs[name] = Bug(name, old, new, expect[0][7:].strip().split(' & ') if expect else [])
    return bugs


def plant(sources, bug):
    """A copy of the sources with a bug, its file and its line; or None and the reason."""
    places = [path for path in SOURCES[4:] for _ in range(sources[path].count(bug.old))]
    if len(places) != 1:
        return sources, None, f'`{bug.old}` occurs {len(places)} times'
    before, after = sources[places[0]].split(bug.old)
    return {**sources, places[0]: before + bug.new + after}, places[0], before.count('\n') + 1


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


def build_hunt(number, bug):
    """Builds the program of all hunts on the engine with a bug, or without one for None."""
    text = read('paged.cu.c')
    if bug:
        before, after = text.split(bug.old)
        rest, _, after = after.partition('\n')
        line = (before + bug.old).count('\n') + 2
        text = f'{before}{bug.new}{rest}\n#line {line} "paged.cu.c"\n{after}'
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


def judge_answer(number, hunt, bug, answer):
    """The exit status: 0 if the bug is in that function."""
    engine, name = read('paged.cu.c'), answer.strip(' ()')
    place = find(engine, name)
    if not place:
        known = [function.name for function in functions(engine)]
        print(f'hunt {number}: paged.cu.c has no function {name}.{near(name, known)}')
        return 1
    if not place.start <= engine.index(bug.old) < place.end:
        print(f'hunt {number}: not yet: the bug is not in {name}().')
        return 1
    print(textwrap.fill(f'hunt {number}: solved: {hunt["why"]}', 79))
    print(f'This is {bug.name} of checks/bugs.txt:\n'
          f'    {bug.old}\nbecame\n    {bug.new or "nothing"}')
    return 0


def hunt_command(options):
    hunts = read_hunts()
    number = ''.join(options.names)
    if not number:
        print('Thirteen bugs to find, easy ones first, and the chapter to read before each:')
        for number, hunt in hunts.items():
            print(f'{number:>4}  {hunt["after"]:10}  {hunt["title"]}')
        return 0
    if number not in hunts:
        raise SystemExit(f'There are hunts 1 to {len(hunts)}.')
    hunt = hunts[number]
    bug = read_bugs()[hunt['bug']]
    if options.answer:
        return judge_answer(number, hunt, bug, options.answer)
    if options.hint:
        print(textwrap.fill(f'Hint: {hunt["hint"]}', 79))
        return 0
    program = build_hunt(number, bug)
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

BEGINS = re.compile(r'(cpu|gpu|standin) +([a-z]\w*) +(?:\.\.\.)? *(.*)')  # the line of a test


def build_tests(folder, sources, place, *flags):
    """Builds the tests with these sources. Returns the compiler's messages if that fails."""
    for path, text in sources.items():
        write(f'{folder}/{path}', text)
    fast = ['-DPAGED_FAST'] if place.startswith('fast/') else []
    if fast and works('-march=native'):
        fast.append('-march=native')
    status, printed = call([*CC, '-O1', '-g', '-w', *CPPFLAGS, *fast, *flags,
                            f'{folder}/tests.c', '-o', f'{folder}/tests', '-lm'])
    return printed if status else None


def first_failure(folder, arguments):
    """Returns the first test that fails, its device, and its output; None if all pass."""
    test, device, said = None, None, []
    with subprocess.Popen([*LIMITED, f'{folder}/tests', *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding='utf-8',
                          errors='replace') as process:
        for line in process.stdout:
            line = line.replace(folder + '/', '').rstrip('\n')
            begins = BEGINS.match(line)
            if begins:
                device, test, said = begins[1], begins[2], [begins[3]]
            elif line.startswith('  FAILED: '):
                break
            elif re.match(r'\d+ passed, 0 failed, ', line):
                return None
            else:
                said.append(line)
    return test, device, said


def wrong_state(folder):
    """Likewise for the states of small pools; these run on the CPU only."""
    status, said = call([*CC, '-O1', '-w', *CPPFLAGS, f'{folder}/checks/states.c', '-o',
                         f'{folder}/states', '-lm'])
    for pool in () if status else POOLS:
        status, said = call([*LIMITED, f'{folder}/states', *pool.split()])
        if status != 0:
            return f'states {pool}', 'cpu', said.splitlines()
    return ('states', 'cpu', said.splitlines()) if status else None


def sanitizer(expect):
    """The option for the sanitizer that has to name the bug, or nothing."""
    return next((SANITIZERS[words] for words in expect if words in SANITIZERS), None)


def judge(folder, only_states, expect):
    """Returns whether the tests, or only the states, catch the bug, and a line on it."""
    if only_states:
        failure = wrong_state(folder)
    elif sanitizer(expect):
        failure = first_failure(folder, ['--quick', *KERNELS])
    else:
        failure = first_failure(folder, ['--quick']) or wrong_state(folder)
    if not failure:
        return False, 'SURVIVED'
    test, device, said = failure
    if not test:
        return False, 'no test has begun: ' + ' '.join(said)
    place = re.compile(r'(tests|paged\.cu|fast|gpu)\.c:\d+: |FAIL |SUMMARY')
    report = '; '.join(filter(place.search, said))
    text = f'{test} ({device}): {textwrap.shorten(report, 170) or "crashes or hangs"}'
    missed = [part for part in expect if part not in ' '.join(said)]
    return not missed, text if not missed else f'no `{missed[0]}`, but {text}'


def mutant_command(options):
    bugs, name = read_bugs(), ''.join(options.names)
    if name and name not in bugs:
        raise SystemExit(f'There is no bug {name}.{near(name, bugs)}\nmake mutant lists all.')
    if not name:
        raise SystemExit('usage: make mutant BUG=name; the names are:\n' + textwrap.fill(
            ' '.join(bugs), 79, break_on_hyphens=False))
    folder, bug = f'build/mutants/{name}', bugs[name]
    shutil.rmtree(folder, ignore_errors=True)
    sources, path, line = plant({path: read(path) for path in SOURCES}, bug)
    if not path:
        raise SystemExit(line)
    print(f'{path}:{line}: {bug.old}  ->  {bug.new or "nothing"}')
    error = build_tests(folder, sources, path)
    if error:
        raise SystemExit(error)
    name, start, _, before_command, before_program = debugger()
    print(f'Which tests fail?  {folder}/tests --quick\n'
          f'One of them in {name}, which also stops if the engine panics:\n'
          f'    {start} {before_command} "break failed" {before_program} \\\n'
          f'        {folder}/tests --quick TEST')
    return 0


def mutants_command(options):
    original = {path: read(path) for path in SOURCES}
    bugs = read_bugs()
    chosen = options.names or list(bugs)
    if not set(chosen) <= set(bugs):
        raise SystemExit(f'checks/bugs.txt has no bug {", ".join(set(chosen) - set(bugs))}')
    top = f'build/mutants/run-{os.getpid()}'
    flags = ['-fsyntax-only'] if options.check or options.states else []

    def run_one(name):
        folder = f'{top}/{name}'
        sources, path, wrong = plant(original, bugs[name])
        if not path:
            return False, wrong
        option = sanitizer(bugs[name].expect)
        error = build_tests(folder, sources, path, *(flags or filter(None, [option])))
        result = not error, error or ''
        if not error and not options.check:
            result = judge(folder, options.states, bugs[name].expect)
        shutil.rmtree(folder)
        return result

    try:
        for place in () if flags else ('fast/fast.c', 'paged.cu.c'):
            folder = f'{top}/unchanged'
            error = build_tests(folder, original, place)
            if error:
                raise SystemExit(error)
            caught, text = judge(folder, False, [])
            if caught or text != 'SURVIVED':
                raise SystemExit(f'the unchanged engine fails: {text}\n'
                                 '0 passed, 1 failed, 0 skipped')
        for option in () if flags else SANITIZERS.values():
            those = [name for name in chosen if sanitizer(bugs[name].expect) == option]
            if those and not works(option):
                print(f'skip  {len(those)} bugs: {CC[0]} has no {option}')
                chosen = [name for name in chosen if name not in those]
        passed, asked = 0, len(options.names or bugs)
        with ThreadPoolExecutor(int(os.environ.get('JOBS', 2))) as pool:
            for name, (good, text) in zip(chosen, pool.map(run_one, chosen)):
                print(f'{"ok  " if good else "FAIL"}  {name:28} {text}'.rstrip(), flush=True)
                passed += good
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(f'{passed} passed, {len(chosen) - passed} failed, {asked - len(chosen)} skipped')
    return passed < len(chosen)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    commands = {'hunt': hunt_command, 'mutant': mutant_command, 'mutants': mutants_command}
    parser.add_argument('command', choices=commands)
    parser.add_argument('names', nargs='*')
    parser.add_argument('--hint', action='store_true')
    parser.add_argument('--check', action='store_true')
    parser.add_argument('--states', action='store_true')
    parser.add_argument('--answer')
    options = parser.parse_intermixed_args()  # names after options, too
    return commands[options.command](options)


if __name__ == '__main__':
    start(main)
