#!/usr/bin/env python3
"""The build track: the reader writes the engine, stage by stage. And the exercises.

`make help` lists the commands: learn, stage, debug-stage, story, exercise. They return 0 whatever
the tests say, but `python3 learn/learn.py stage 4` returns 1 if one fails, and 2 if it cannot run
them. They work on learn/paged.cu.c: the engine without the bodies of the functions in stages.txt.
What the reader writes may be wrong in any way, so each test is a process with its own limits.
"""
import argparse
import glob
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap

sys.dont_write_bytecode = True
import plant  # noqa: E402
from plant import (CC, CPPFLAGS, call, debugger, find, functions, read, refuse,  # noqa: E402
                   run, write)

MINE = 'learn/paged.cu.c'
BUILD = 'build/learn'
LIMITS = 'ulimit -S -t 5; ulimit -v 2000000'  # of a program: seconds of processor time, KiB
RACES = ['-O0', '-w', '-fno-builtin-memcpy', '-fsanitize=thread']
STOP = '''\
// Each unwritten function calls this, which says what to write and aborts.
__attribute__((noreturn, unused)) static void to_write(int stage, const char *name,
                                                       const char *contract, int chapter, ...)
{
    fprintf(stderr, "stage %d: write %s(), in chapter %d of walkthrough.md;\\n    %s\\n",
            stage, name, chapter, contract);
    abort();
}

#pragma GCC diagnostic ignored "-Wunused-function"   // functions that only unwritten ones call
#pragma GCC diagnostic ignored "-Wunused-parameter"  // of functions that will do more later

'''
ORACLE = '''\
#pragma GCC diagnostic ignored "-Wuninitialized"  // variables that unwritten functions would set
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
// The linker wants shared memory of a program with a stand-in, and so far no kernel has any.
__shared__ volatile float nothing_yet;
__attribute__((constructor)) static void use_it(void) { nothing_yet = 0; }

'''


class Stage:
    def __init__(self, number, name, chapter, minutes):
        self.number, self.name = int(number), name
        self.chapter, self.minutes = int(chapter), int(minutes)
        self.write, self.again, self.tests, self.suite = {}, {}, [], []
        self.now, self.story = '', []


def read_stages():
    header, stages = read('paged.h'), []
    for line in read('learn/stages.txt').splitlines():
        word, _, rest = line.partition(' ')
        names, _, what = rest.partition(': ')
        if word == 'stage':
            stages.append(Stage(*re.fullmatch(
                r'(\d+): (.*); chapter (\d+); (\d+) minutes', rest).groups()))
        elif word == 'write':
            for name in names.split():
                public = re.search(r'\b%s\(.*[,;]$' % name, header, re.M)
                where = what or ('is in paged.h' if public else 'is above it')
                stages[-1].write[name] = 'its contract ' + where
        elif word == 'again':
            stages[-1].again[names] = 'again: ' + what
        elif word == 'tests':
            stages[-1].tests.extend(rest.split())
        elif word == 'suite':
            stages[-1].suite.append(rest.split())
        elif word == 'now':
            stages[-1].now = rest
        elif word == 'story':
            stages[-1].story.append(rest)
        elif word not in ('', '#'):
            raise SystemExit('learn/stages.txt: what is "%s"?' % line)
    return stages


# ---- functions in a C text ----

def line_of(text, name):
    function = find(text, name)
    return text.count('\n', 0, function.start) + 1 if function else 0


def definition(text, name):
    function = find(text, name)
    return text[function.start:function.end] if function else ''


def unwritten(text, name):
    return 'to_write(' in definition(text, name)


def skeleton(engine, stages, written=0):
    """The engine without the functions of the stages after `written`."""
    for stage in stages[written:]:
        for name, contract in stage.write.items():
            place = find(engine, name)
            head = engine[place.start:place.body]
            names = re.findall(r'(\w+)\s*[,)]', head[head.index('('):])
            body = '\n{\n    to_write(%d, __func__, "%s", %d,\n             %s);\n}' % (
                stage.number, contract, stage.chapter, ', '.join(names))
            engine = engine[:place.body] + body + engine[place.end:]
    first, oracle = engine.index('// ---- '), engine.index('// ---- oracle')
    return engine[:first] + STOP + engine[first:oracle] + ORACLE + engine[oracle:]


# ---- build and run ----

def build(program, flags, source='learn/stage_tests.c', engine=None):
    """Returns whether it compiles, and what the compiler says."""
    engine = engine or MINE
    os.makedirs(BUILD, exist_ok=True)
    other = [] if engine == 'learn/paged.cu.c' else ['-DENGINE="%s"' % engine]
    status, text = call([*CC, *flags, '-g', '-Wall', '-Wextra', '-Werror=return-type', *other,
                         '-I' + os.path.dirname(engine), '-I.', *CPPFLAGS, source, '-o', program,
                         '-lm'])
    return status == 0, text


def race(text):
    """What a report of ThreadSanitizer says of two threads, in words; '' if it is none."""
    mine = [name for stage in read_stages() for name in {**stage.write, **stage.again}]
    said, callers = [], []
    for access, thread, stack in re.findall(
            r'^  (?:Previous )?(read|write) of .*by thread (T\d+).*\n((?:    #.*\n)+)',
            text, re.M | re.I):
        frames = re.findall(r'#\d+ (\w+) \S*?((?:learn/)?paged\.cu\.c:\d+)', stack)
        frames = [(name, place) for name, place in frames if name in mine]
        lane = re.search(r"Thread %s '.*(warp \d+, lane \d+)'" % thread, text)
        if frames and lane:
            name, place = frames[0]
            said.append('    %s() %ss it at %s, in %s\n' % (name, access.lower(), place, lane[1]))
            callers.append([name for name, _ in frames])
    if len(said) != 2:
        return ''
    both = [name for name in callers[0] if name in callers[1]]
    return ('Two lanes use the same memory, and there is no barrier between them:\n' + ''.join(said)
            + 'Another order of the lanes may give another result. Both lines are reached from '
            + both[0] + '().\n')


def run_races(test, program=None):
    """Likewise under ThreadSanitizer. Returns '' if that is missing or does not start, which says
    nothing about races."""
    if not program and not plant.works('-fsanitize=thread'):
        say('%s: skipped: without ThreadSanitizer, nothing looks for races.' % test)
        return ''
    if not program:
        program = [BUILD + '/stage_tests_races']
        compiles, text = build(program[0], RACES)
        if not compiles:
            return text
    for same_addresses in [], ['setarch', '-R']:  # which an old ThreadSanitizer needs
        text = run([*same_addresses, *program, test], 60, 'ulimit -S -t 30')[0]
        if text.endswith('passed %s\n' % test):
            return None
        if 'data race' in text:
            return race(text) or text[:2000]
        if 'stage_tests.c:' in text:
            return text
    say('%s: skipped: ThreadSanitizer does not start here, so nothing looks for races.' % test)
    return ''


def leave_out_kernels(stages, number):
    """Without a stand-in, no kernel runs: leaves out the tests and the tale that need one."""
    skipped = []
    for stage in stages:
        before = stage.tests + stage.suite
        stage.tests = [test for test in stage.tests if not test.startswith(('kernel_', 'races_'))]
        stage.suite = [words for words in stage.suite if '--standin' not in words]
        stage.story = [words for words in stage.story if '--device standin' not in words]
        if before != stage.tests + stage.suite:
            skipped.append(str(stage.number))
    if number == 0 or number >= int(skipped[0]):
        say('Skipped in stages %s: what runs kernels. %s' % (' and '.join(skipped),
                                                             plant.NO_STANDIN))


def run_test(test, program=None):
    """Returns None if it passes, otherwise what it printed."""
    if test.startswith('races_'):
        return run_races(test, program)
    text, status = run([*(program or [BUILD + '/stage_tests']), test], 20,
                       LIMITS + '; ulimit -S -t 1')  # the longest takes a twentieth of that
    if status == 0 and text.endswith('passed %s\n' % test):
        return None
    if status is None:
        text += 'stopped after 20 seconds: it does not end\n'
    elif status < 0:
        text += 'killed by signal %d\n' % -status
    elif status == 0:
        text += 'exit() was called in the middle of the test\n'
    return text if len(text) < 4000 else text[:2000] + '\n...\n' + text[-2000:]


def build_suite(engine=None):
    """Builds tests.c with the reader's engine. It includes the engine that lies beside it, so it is
    copied. Returns None, or what is wrong."""
    write(BUILD + '/tests.c', read('tests.c'))
    compiles, text = build(BUILD + '/tests', ['-Og'], BUILD + '/tests.c', engine)
    return None if compiles else '\n'.join(explain(text)[0] + [text])


def run_suite(arguments):
    text, status = run([BUILD + '/tests', *arguments], 300)
    if status == 0 and re.search(r'^\d+ passed, 0 failed, \d+ skipped$', text, re.M):
        return None
    failed = re.search(r'^(cpu|standin) .*\n((?!cpu|standin).*\n)*?  FAILED: .*\n', text, re.M)
    return failed[0] if failed else 'tests.c did not end:\n' + text[-300:]


# ---- the commands ----

def make():
    if os.path.exists(MINE):
        print('%s exists and is left as it is. To start over:\n    mv %s learn/my-first.c'
              % (MINE, MINE))
        return
    write(MINE, skeleton(read('paged.cu.c'), read_stages()))
    print('%s is the engine without the functions that you will write.\n'
          'make stage lists them; make stage N=1 runs the first tests.' % MINE)


def say(text, indent=4):
    """Prints lines, and folds those that are too long for a terminal."""
    for line in text.splitlines():
        print(textwrap.fill(line, 80, subsequent_indent=' ' * indent, break_on_hyphens=False)
              if len(line) > 80 and ' | ' not in line else line, flush=True)


def explain(text):
    """What messages of the compiler and the linker mean, and whether functions are missing."""
    missing = sorted(set(re.findall(
        r'(?:undefined (?:reference to|symbol:)|of function|undeclared function) \W*(\w+)', text)))
    taken = sorted(set(re.findall(r'tests?\.[ch]:\S+ error: (?=.*(?:conflicting|redef|redecl)).*?'
                                  r'[\'‘](\w+)', text)))
    there = [function.name for function in functions(read(MINE))]
    lines = ['%s() is %s.' % (name, 'called before it is declared' if name in there else 'missing')
             for name in missing]
    lines += [line for line in text.splitlines()  # gcc says "did you mean"
              if MINE in line and any('declar' in line and name in line for name in missing)]
    if any(name.startswith('__') for name in missing):
        lines.append('The stand-in has __shfl_xor_sync() and __syncthreads() only.')
    lines += ['The tests have a %s, too: give yours another name.' % name for name in taken]
    return lines, missing


def compile_mine():
    compiles, text = build(BUILD + '/stage_tests', ['-O0'])
    lines, missing = explain(text)
    if compiles:
        lines = [line for line in text.splitlines() if MINE in line and 'warning:' in line]
    elif not missing:  # otherwise the linker says it of every call
        lines += text.splitlines()
    if len(lines) > 20:
        lines[20:] = ['...']
    say('\n'.join(lines))
    if not compiles:
        raise SystemExit('%s does not compile.' % MINE)


def results(stages):
    """Runs the tests, and yields each stage with {test: what it printed}: None if it passes, '' if
    it is skipped. Stops at a test that does not end, and at the first part of the suite that fails.
    """
    for stage in stages:
        failures = {}
        for test in stage.tests:
            failures[test] = run_test(test)
            if 'does not end' in (failures[test] or ''):
                break
        suite = [] if any(failures.values()) else stage.suite
        wrong = build_suite() if suite else None
        for arguments in suite:
            test = 'tests.c ' + ' '.join(arguments)
            say('On your engine: %s ...' % test)
            failures[test] = wrong or run_suite(arguments)
            if failures[test]:
                break
        yield stage, failures


def what_to_do(number, stage, name):
    mine = read(MINE)
    contracts = {**stage.write, **stage.again}
    print('\nThe functions in %s, for chapter %d of walkthrough.md:' % (MINE, stage.chapter))
    for other, what in contracts.items():
        state = 'to write' if unwritten(mine, other) else 'written'
        say('  %-23s line %d, %s; %s' % (other, line_of(mine, other), state, what), 26)
    if name or not any(unwritten(mine, other) for other in contracts):
        print('In a debugger: make debug-stage N=%d\nA solution: make stage N=%d SHOW=%s'
              % (number, number, name or 'NAME, with one of these names'))


def blame(number, stages, test, said):
    """For a test that fails: prints and returns the function whose replacement by the engine's
    makes it pass, found by halving, and its last stage up to `number`. The function is None if no
    single one does, or if the test stops at one that is not written yet."""
    arguments = test.split()[1:]
    arguments = arguments[:2] + (re.findall(r'FAILED: .* (\w+)\n', said) or arguments[2:])
    names = [name for stage in stages[:number] for name in stage.write]
    raced = re.search(r'reached from (\w+)\(\)', said)
    unwritten = re.search(r'^stage (\d+): write ', said, re.M)
    if unwritten and int(unwritten[1]) <= number:
        return None, stages[number - 1]
    if raced:
        return raced[1], stages[number - 1]

    def passes(replaced):
        mine, engine = read(MINE), read('paged.cu.c')
        program, path = BUILD + '/blame/tests', BUILD + '/blame/paged.cu.c'
        for name in replaced:
            mine = mine.replace(definition(mine, name) or '\0', definition(engine, name))
        write(path, mine)
        if test.startswith('tests.c'):
            return not (build_suite(path) or run_suite(arguments))
        return build(program, ['-O0'], engine=path)[0] and not run_test(test, [program])

    say('\nWhich function is to blame? ...')
    while len(names) > 1:
        half = names[:len(names) // 2]
        names = half if passes(half) else names[len(half):]
    if not passes(names):
        say('No single one of yours: perhaps two are wrong, or a given one has changed.')
        return None, stages[number - 1]
    owners = [stage for stage in stages[:number] if names[0] in {**stage.write, **stage.again}]
    numbers = ', '.join(str(stage.number) for stage in owners)
    say('This test passes with the engine\'s %s() in place of yours (%s %s).'
        % (names[0], 'stages' if len(owners) > 1 else 'stage',
           re.sub(r', (\d+)$', r' and \1', numbers)))
    return names[0], owners[-1]


def too_early(text, number):
    """What a test printed. If it stopped at a function of a later stage, that is not to be written
    now: the call is wrong."""
    later = re.match(r'stage (\d+): write (\w+)\(\), .*\n.*\n', text)
    if not later or int(later[1]) <= number:
        return text
    return '%s(), of stage %s, is called, which nothing needs in stage %d.\n%s' % (
        later[2], later[1], number, text[later.end():])


def stage_command(number, stages):
    compile_mine()
    skipped = []
    for stage, failures in results(stages[:number]):
        bad = [test for test in failures if failures[test]]
        skipped += [test for test in failures if failures[test] == '']
        if not bad:
            continue
        print('Stage %d, %s: %d of %d tests pass' % (
            stage.number, stage.name, list(failures.values()).count(None), len(failures)))
        for test, text in failures.items():
            say('  %-7s %s' % ('FAILED' if text else 'ok' if text is None else 'skipped', test), 10)
        text, number = too_early(failures[bad[0]], stage.number), stage.number
        say('\nThe first one that fails, %s:' % bad[0])
        say(text)
        name, stage = blame(number, stages, bad[0], text)
        what_to_do(number, stage, name)
        return 1
    say('%s: %s' % ('Stage 1' if number == 1 else 'Stages 1 to %d' % number, 'all tests pass.'
                    if not skipped else 'no test fails. Skipped: %s.' % ', '.join(skipped)))
    say(stages[number - 1].now + '\nNow: make show N=%d' % number)
    if number == len(stages):
        print('%s is an engine:\n    cc -O2 -I. %s -o build/mine -lm && build/mine' % (MINE, MINE))
        return 0
    after = stages[number]
    say('Next: stage %d, %s. Read chapter %d of walkthrough.md, then:\n    make stage N=%d'
        % (after.number, after.name, after.chapter, after.number))
    return 0


def list_stages(stages):
    compile_mine()
    mine = read(MINE)
    print('stage                    chapter  minutes  state')
    suite, stages[-1].suite = stages[-1].suite, []  # it takes too long for a list
    for stage, failures in results(stages):
        missing = [name for name in {**stage.write, **stage.again} if unwritten(mine, name)]
        passed = list(failures.values()).count(None)
        state = '%d of %d tests pass' % (passed, len(failures))
        if missing:
            state = 'to write: %s' % ', '.join({**dict.fromkeys(missing), **stage.again})
        elif suite and stage == stages[-1]:
            state += '; the suite: N=%d' % stage.number
        say('%5d  %-16s %8d %8d  %s' % (stage.number, stage.name, stage.chapter, stage.minutes,
                                        state), 43)
    return 0


def tell(stage, program):
    """What llama says with what this stage makes possible, and whether it worked."""
    options = shlex.split(' '.join(stage.story))
    text, status = run([*program, *options], 60, LIMITS)
    tale = [line for line in text.splitlines() if not line.startswith('llama: ')]
    said = [line for line in text.splitlines() if line.startswith('llama: ')]
    if status != 0:
        tale += said + ['make stage N=%d says what is wrong.' % stage.number]
    elif {'--samples', '--speculate', '--prefix-cache'} & set(options):
        tale += said[-1:]  # what was gained
    return tale, status == 0


def build_llama(program, engine):
    compiles, text = build(program, ['-O2', '-DPAGED_NO_MAIN', engine], 'examples/llama.c')
    if not compiles:
        say(text)
        raise SystemExit('%s does not compile.' % engine)


def finished_llama():
    """llama with the finished engine, which is built if it is missing or old."""
    program = BUILD + '/llama-finished'
    sources = ['paged.cu.c', 'paged.h', *glob.glob('examples/*.[ch]')]
    changed = max(os.path.getmtime(path) for path in sources)
    if not os.path.exists(program) or os.path.getmtime(program) < changed:
        build_llama(program, 'paged.cu.c')
    return program


def story(number, stages):
    """A tale, told by the reader's engine: by what is written, or by the stage asked for."""
    mine, written = read(MINE), 0
    missing = [[name for name in stage.write if unwritten(mine, name)] for stage in stages]
    while written < len(stages) and not missing[written]:
        written += 1
    first = next(stage.number for stage in stages if stage.story)
    asked, number = number, max(number or written, first)
    if written < number:
        gap = stages[written]
        say('Your engine %s after stage %d. Still to write, in stage %d, %s: %s.' % (
            'speaks' if number == first else 'can do that', number, gap.number, gap.name,
            ', '.join(missing[written])))
        return 1
    build_llama(BUILD + '/llama', MINE)
    latest = [stage for stage in stages[:number] if stage.story][-1]
    if asked not in (0, latest.number):
        say('Stage %d has no tale of its own. This is that of stage %d:' % (asked, latest.number))
    lines, worked = tell(latest, [BUILD + '/llama'])
    say('\n'.join(lines), 0)
    if not worked:
        return 1
    right, _ = tell(latest, [finished_llama()])
    same = len(os.path.commonprefix([lines, right]))
    says = 'the same.' if lines == right else 'something else from line %d on.' % (same + 1)
    print('The finished engine says ' + says, file=sys.stderr)
    return 0


def show(number, name, stages):
    known = [function.name for function in functions(read('paged.cu.c'))]
    if name not in known:
        refuse('The engine has no function %s.\nmake stage lists those to write.' % name)
    later = [stage for stage in stages[number:] if name in stage.again]
    simple = later and not any(name in stage.again for stage in stages[:number])
    if later and not simple:
        what = later[0].again[name].replace('again: ', '')
        say('Not needed before stage %d: %s.' % (later[0].number, what))
    path = 'walkthrough.md' if simple else 'paged.cu.c'
    for who, path in ("The engine's" if not simple else 'A first one', path), ('Yours', MINE):
        if os.path.exists(path):
            text = read(path)
            body = definition(text, name) or 'There is no %s().' % name
            print('%s, %s:%d\n\n%s\n' % (who, path, line_of(text, name), body))
    return 0


def debug(number, stages, start=os.execvp):
    """gdb or lldb in the first test that fails."""
    compile_mine()
    for stage, failures in results(stages[:number]):
        for test in [test for test in failures if failures[test]]:
            program = [BUILD + '/stage_tests', '--debug', test]
            stops = ['to_write', 'panic', 'failed']
            if test.startswith('tests.c'):
                name = re.findall(r'FAILED: .* (\w+)\n', failures[test])
                program = [BUILD + '/tests', *test.split()[1:3], *name]
            name, begin, _, before_command, before_program = debugger()
            if not shutil.which(name):
                refuse('gdb is not installed: sudo apt-get install gdb')
            print('Stage %d: %s.\n%s stops where the test fails: from failed(), up 2 goes to the '
                  'test. To step\nthrough your function: break NAME, then run, then y.'
                  % (stage.number, test, name), flush=True)
            last = 'bt 8' if name == 'lldb' else 'backtrace -8'
            commands = [*('break ' + stop for stop in stops), 'run', last]
            return start(name, [*shlex.split(begin),
                                *(word for line in commands for word in (before_command, line)),
                                before_program, *program])
    print('All tests of stages 1 to %d pass.' % number)
    return 0


def copy_for(name, original, stages):
    """Makes the reader's file for an exercise, and prints the task. It is a copy of a file of
    learn/ or of an engine: the reader's if there is one, as the finished one has all solutions.
    Returns its path, or None if the reader's engine does not go so far yet."""
    task_path = next(path for path in ('learn/%s.c' % name, original) if os.path.exists(path))
    path = 'learn/my-%s' % os.path.basename(task_path)
    if os.path.exists(path):
        return path
    if original == 'paged.cu.c' and os.path.exists(MINE):
        number = min(int(name[:-1]), len(stages))
        if call([sys.executable, 'learn/learn.py', 'stage', str(number)])[0]:
            print('Your engine will be copied as soon as make stage N=%d passes. To work in the\n'
                  'finished one, with all solutions: cp paged.cu.c %s' % (number, path))
            return None
        original = MINE
    write(path, read(original))
    task = re.sub('^(//|#) ?', '', read(task_path).partition('\n\n')[0], flags=re.M)
    print(fold(task) + 'Your copy of %s: %s' % (original, path))
    return path


def fold(text):
    return call(['awk', '-f', 'learn/read.awk'], input=text)[1]


def read_answers():
    """{name: text} of answers.txt: what it says to the questions of a chapter, or the patch that
    solves an exercise."""
    _, *parts = re.split(r'^(?:chapter|exercise) (\w+)\n', read('learn/answers.txt'), flags=re.M)
    return dict(zip(parts[::2], parts[1::2]))


def exercise(name, shows, stages):
    """An exercise: the task, or what is wrong with the reader's solution. A chapter: the answers to
    its questions."""
    answers = read_answers()
    if not name:
        print('There is code to write in the exercises',
              ' '.join(other for other in answers if not other.isdigit()) + '. For one of them:\n'
              '    make exercise N=6a')
        return 0
    if name not in answers:
        refuse('There is no exercise %s.' % name)
    if shows or name.isdigit():
        print(fold(answers[name]) if name.isdigit() else answers[name], end='')
        return 0
    original = answers[name].splitlines()[0][6:]  # after --- a/
    path = copy_for(name, original, stages)
    if not path:
        return 1
    if path.endswith('.py'):
        status, text = call([sys.executable, path])
        say(text, 0)
        return status
    source = [path]
    if original == 'paged.cu.c':
        source = ['-DENGINE="my-%s.c"' % name, '-I.', 'learn/%s.c' % name]
    if plant.works('-fsanitize=address'):
        source.append('-fsanitize=address')
    os.makedirs('build', exist_ok=True)
    status, text = call([*CC, '-O0', '-g', '-Wall', '-Wextra', *CPPFLAGS, *source,
                         '-o', 'build/exercise', '-lm'])
    say(text, 0)
    if status:
        return 1
    status, text = call(['build/exercise'])
    if status < 0:
        text += 'killed by signal %d\n' % -status
    say(text, 0)
    return status


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('command', choices=['make', 'stage', 'debug', 'story', 'exercise'])
    parser.add_argument('name', nargs='?', default='')
    parser.add_argument('--show')
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for | head
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    stages = read_stages()
    if options.command == 'exercise':
        return exercise(options.name, options.show, stages)
    if options.name not in ['', *map(str, range(1, len(stages) + 1))]:
        refuse('There are stages 1 to %d.' % len(stages))
    number = int(options.name or 0)
    if options.command == 'make' or not os.path.exists(MINE):
        make()
    if options.command == 'make':
        return 0
    if not plant.has_standin():
        leave_out_kernels(stages, number)
    if options.show:
        return show(number or len(stages), options.show, stages)
    if options.command == 'debug':
        return debug(number or len(stages), stages)
    if options.command == 'story':
        return story(number, stages)
    return stage_command(number, stages) if number else list_stages(stages)


if __name__ == '__main__':
    plant.start(main)
