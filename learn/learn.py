#!/usr/bin/env python3
"""The build track: the engine, written by its reader, one stage after the other.

    learn.py make [--force]         writes learn/paged.cu.c: the engine without the bodies of the
                                    functions of stages.txt (make learn)
    learn.py stage [N]              runs the tests of stages 1 to N on it; without N, lists the
                                    stages (make stage N=4)
    learn.py stage N --show NAME    prints the engine's function and the reader's
    learn.py debug N                opens gdb in the first test that fails (make debug-stage N=4)

What the reader writes may be wrong in any way. So each test is a process with limits of its own,
and what it prints is shown only as far as it helps.
"""
import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MINE = 'learn/paged.cu.c'
BUILD = 'build/learn'
SECONDS = 20  # for one test; it stops itself after 5 seconds of processor time
SUITE_SECONDS = 300
STOP = '''\
// Stands in each function that is yet to be written: says so, and stops the program.
__attribute__((noreturn, unused)) static void to_write(int stage, const char *name,
                                                       const char *contract, int chapter, ...)
{
    fprintf(stderr, "stage %d: write %s(); its contract %s, the text in chapter %d of "
            "walkthrough.md\\n", stage, name, contract, chapter);
    abort();
}

#pragma GCC diagnostic ignored "-Wunused-function"  // of those that only unwritten ones call

'''
ORACLE = '''\
#pragma GCC diagnostic ignored "-Wuninitialized"  // of what unwritten functions would set
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

'''


class Stage:
    def __init__(self, number, name, chapter, minutes):
        self.number, self.name = int(number), name
        self.chapter, self.minutes = int(chapter), int(minutes)
        self.write, self.again, self.tests, self.suite = [], {}, [], []


def read(path):
    with open(os.path.join(ROOT, path), encoding='utf-8', errors='replace') as file:
        return file.read()


def write(path, text):
    path = os.path.join(ROOT, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def read_stages():
    stages = []
    for line in read('learn/stages.txt').splitlines():
        word, _, rest = line.partition(' ')
        if word == 'stage':
            stages.append(Stage(*re.fullmatch(
                r'(\d+): (.*); chapter (\d+); (\d+) minutes', rest).groups()))
        elif word == 'write':
            stages[-1].write.append(rest)
        elif word == 'again':
            name, what = rest.split(': ', 1)
            stages[-1].again[name] = what
        elif word == 'tests':
            stages[-1].tests.extend(rest.split())
        elif word == 'suite':
            stages[-1].suite.append(rest.split())
        elif word not in ('', '#'):
            raise SystemExit('learn/stages.txt: what is "%s"?' % line)
    return stages


# ---- functions in a C text ----

TOKENS = re.compile(r'''//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|[(){}]''', re.S)


def closing(text, at):
    """The place after the bracket that closes the one at `at`."""
    depth = 0
    for token in TOKENS.finditer(text, at):
        depth += (token.group() in '({') - (token.group() in ')}')
        if depth == 0:
            return token.end()
    return len(text)


def find(text, name):
    """Where the definition of a function begins, its body, and where that ends; or None."""
    for head in re.finditer(r'^(?:[A-Za-z_][\w \t*]*\b)?(?:%s\(|KERNEL\(%s,)' % (name, name), text,
                            re.M):
        end = closing(text, text.index('(', head.start()))
        brace = re.compile(r'\s*(?=\{)').match(text, end)
        if brace:
            return head.start(), end, closing(text, brace.end())
    return None


def line_of(text, name):
    place = find(text, name)
    return text.count('\n', 0, place[0]) + 1 if place else 0


def definition(text, name):
    place = find(text, name)
    return text[place[0]:place[2]] if place else ''


def unwritten(text, name):
    return 'to_write(' in definition(text, name)


def skeleton(engine, stages, written=0):
    """The engine without the functions of the stages after `written`."""
    header = read('paged.h')
    for stage in stages[written:]:
        for name in stage.write:
            start, end, last = find(engine, name)
            names = re.findall(r'(\w+)\s*[,)]', engine[engine.index('(', start):end])
            if engine.startswith('KERNEL(', start):
                names = ['job']
            contract = 'is in paged.h' if re.search(r'\b%s\(.*[,;]$' % name, header, re.M) \
                else 'stands above it'
            body = '\n{\n    to_write(%d, __func__, "%s", %d, %s);\n}' % (
                stage.number, contract, stage.chapter, ', '.join(names))
            engine = engine[:end] + body + engine[last:]
    first, oracle = engine.index('// ---- '), engine.index('// ---- oracle')
    return engine[:first] + STOP + engine[first:oracle] + ORACLE + engine[oracle:]


# ---- build and run ----

def build(program, flags, source='learn/stage_tests.c', engine=None):
    """Returns what the compiler says if it fails, otherwise None."""
    engine = engine or MINE
    os.makedirs(os.path.join(ROOT, BUILD), exist_ok=True)
    command = [*shlex.split(os.environ.get('CC', 'cc')), *flags, '-g', '-Wall', '-Wextra',
               *['-DENGINE="%s"' % engine][:engine != 'learn/paged.cu.c'],
               '-I' + os.path.dirname(engine), '-I.', *shlex.split(os.environ.get('CPPFLAGS', '')),
               source, '-o', program, '-lm']
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False, encoding='utf-8', errors='replace')
    return result.stdout if result.returncode else None


def run(command, seconds):
    """Returns what a program printed, and its exit status; None: it was stopped, it took longer."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        status = None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if status is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return output.read().decode('utf-8', 'replace'), status


def sanitizers_say(test):
    """Where a test that crashed went wrong, if the compiler has sanitizers to ask."""
    program = BUILD + '/sanitized'
    if build(program, ['-O0', '-fsanitize=address,undefined', '-fno-sanitize-recover']):
        return ''
    text, _ = run([program, '--debug', test], SECONDS)
    lines = re.findall(r'(?:runtime error|ERROR: AddressSanitizer): (?:.(?! on ))*.', text)[:1]
    lines += re.findall(r'in \w+ \S*%s:\d+' % re.escape(MINE), text)[:3]
    return ''.join('  sanitizer: %s\n' % line.replace(ROOT + '/', '') for line in lines)


def run_test(test, program=None):
    """Returns None if it passes, otherwise what there is to say."""
    text, status = run([*(program or [BUILD + '/stage_tests']), test], SECONDS)
    if status == 0 and text.endswith('passed %s\n' % test):
        return None
    if status is None:
        text += 'stopped after %d seconds: it does not end\n' % SECONDS
    elif status < 0:
        text += 'killed by signal %d, %s\n' % (-status, signal.Signals(-status).name)
    lines = text.splitlines(keepends=True)
    if len(lines) > 40:
        lines[20:-20] = ['  ... %d lines ...\n' % (len(lines) - 40)]
    return ''.join(lines)


def build_suite():
    """tests.c on the reader's engine: a copy of it, as it looks for the engine beside itself."""
    write(BUILD + '/tests.c', read('tests.c'))
    return build(BUILD + '/tests', ['-O1'], BUILD + '/tests.c')


def run_suite(arguments):
    """Returns None if these tests pass, otherwise what the first that fails has printed."""
    text, status = run([BUILD + '/tests', *arguments], SUITE_SECONDS)
    if status == 0 and re.search(r'^\d+ passed, 0 failed, \d+ skipped$', text, re.M):
        return None
    failed = re.search(r'^  FAILED: .* (\w+)\n', text, re.M)
    if failed:
        return text[text.rindex('\n' + failed.group(1), 0, failed.start()) + 1:failed.end()]
    return 'tests.c did not end; the last it said:\n' + '\n'.join(text.splitlines()[-5:]) + '\n'


# ---- the commands ----

def make(force):
    if os.path.exists(os.path.join(ROOT, MINE)):
        if not force:
            print('%s is there, and stays as it is. To begin anew: make learn FORCE=1;\n'
                  'the one that is there becomes %s.1 (or .2, .3, ...).' % (MINE, MINE))
            return 1
        n = 1
        while os.path.exists(os.path.join(ROOT, '%s.%d' % (MINE, n))):
            n += 1
        os.rename(os.path.join(ROOT, MINE), os.path.join(ROOT, '%s.%d' % (MINE, n)))
        print('What was in %s is now in %s.%d.' % (MINE, MINE, n))
    stages = read_stages()
    write(MINE, skeleton(read('paged.cu.c'), stages))
    print('%s: the engine, in which %d functions are for you to write, in %d stages.\n'
          'make stage lists them; make stage N=1 begins.'
          % (MINE, sum(len(stage.write) for stage in stages), len(stages)))
    return 0


def say_what_to_write(stage, mine):
    header = read('paged.h')
    names = [name for name in stage.write if unwritten(mine, name)]
    print('\n%s in %s:' % ('To write' if names else 'To look at', MINE))
    for name in [*(names or stage.write), *stage.again]:
        declared = re.search(r'^(?!//).*\b%s\(' % name, header, re.M)
        contract = 'above it'
        if declared:
            contract = 'paged.h:%d' % (header.count('\n', 0, declared.start()) + 1)
        if name in stage.again:
            contract += '; again: ' + stage.again[name]
        print('  %-24s line %d; contract: %s' % (name, line_of(mine, name), contract))
    title = re.search(r'^## %d\. (.*)$' % stage.chapter, read('walkthrough.md'), re.M)
    print('The text: chapter %d of walkthrough.md, "%s".' % (stage.chapter, title.group(1)))
    if not names:
        print('In a debugger: make debug-stage N=%d. The engine has: make stage N=%d SHOW=%s'
              % (stage.number, stage.number, stage.write[-1]))
    print('Then: make stage N=%d' % stage.number)


def compile_mine():
    if not os.path.exists(os.path.join(ROOT, MINE)):
        raise SystemExit('There is no %s yet: make learn' % MINE)
    error = build(BUILD + '/stage_tests', ['-O0'])
    if error:
        lines = error.splitlines()
        print('\n'.join(lines[:20] + ['...'] * (len(lines) > 20)))
        raise SystemExit('%s does not compile.' % MINE)


def results(stages):
    """Runs the tests, and yields each stage with {test: what it says, None if it passes}. After
    one that does not end, the others are not run."""
    stuck = False
    for stage in stages:
        failures = {}
        for test in stage.tests:
            failures[test] = 'not run\n' if stuck else run_test(test)
            stuck = stuck or 'does not end' in (failures[test] or '')
        if stage.suite and not any(failures.values()):
            print('          ... and tests of tests.c, which take a minute', flush=True)
            error = build_suite()
            for arguments in stage.suite:
                failures['tests.c ' + ' '.join(arguments)] = error or run_suite(arguments)
        yield stage, failures


def stage_command(number, stages):
    compile_mine()
    mine = read(MINE)
    first = None
    for stage, failures in results(stages[:number]):
        bad = [test for test in failures if failures[test]]
        print('stage %2d  %-16s %d of %d tests pass' % (
            stage.number, stage.name, len(failures) - len(bad), len(failures)))
        if bad and not first:
            first = stage, bad[0], failures[bad[0]]
            for test, text in failures.items():
                print('          %-7s %s' % ('FAILED' if text else 'ok', test))
    if not first:
        print('\nAll tests of stages 1 to %d pass.' % number)
        if number < len(stages):
            after = stages[number]
            print('Next: stage %d, %s: %s.\n'
                  'Read chapter %d of walkthrough.md, then: make stage N=%d'
                  % (after.number, after.name, ', '.join([*after.write, *after.again]),
                     after.chapter, after.number))
        else:
            print('%s is an engine: cc -O2 -I. %s -o build/mine -lm && build/mine' % (MINE, MINE))
        return 0
    stage, test, text = first
    print('\nThe first that fails is %s:\n%s' % (test, text), end='')
    if re.search('^signal |corrupt|^free|^munmap|^double', text, re.M):
        print(sanitizers_say(test), end='')
    say_what_to_write(stage, mine)
    return 1


def list_stages(stages):
    compile_mine()
    mine = read(MINE)
    print('stage                    chapter  minutes  state')
    stages[-1].suite = []  # it takes too long for a list
    for stage, failures in results(stages):
        missing = [name for name in stage.write if unwritten(mine, name)]
        passed = sum(not text for text in failures.values())
        state = '%d of %d tests pass' % (passed, len(failures))
        if missing:
            state = 'to write: %s' % ', '.join(missing)
        print('%5d  %-16s %8d %8d  %s' % (stage.number, stage.name, stage.chapter, stage.minutes,
                                         state))
    return 0


def show(number, name, stages):
    engine = 'paged.cu.c'
    if any(name in stage.again for stage in stages[number:]):
        engine = 'learn/simple.c'
    for who, path in ("The engine's", engine), ('Yours', MINE):
        if os.path.exists(os.path.join(ROOT, path)):
            text = read(path)
            print('%s, %s:%d\n\n%s\n' % (who, path, line_of(text, name), definition(text, name)))
    return 0


def debug_command(number, stages):
    """gdb in the first test that fails, or nothing if all pass."""
    compile_mine()
    for stage, failures in results(stages[:number]):
        for test in [test for test in failures if failures[test]]:
            program = [BUILD + '/stage_tests', '--debug', test]
            if test.startswith('tests.c'):
                program = [BUILD + '/tests', *test.split()[1:3], failures[test].split()[0]]
            stops = ['to_write', 'panic', 't_fail' if test.startswith('tests.c') else 'failed']
            print('Stage %d: %s. gdb stops where it fails; `up` leads to the call, `help\n'
                  'user-defined` lists the commands of paged.gdb. An endless loop: Ctrl-C.'
                  % (stage.number, test), flush=True)
            return ['gdb', '-q', '-x', 'debugger/paged.gdb',
                    *[word for stop in stops for word in ('-ex', 'break ' + stop)],
                    '-ex', 'run', '-ex', 'backtrace -8', '--args', *program]
    return []


def debug(number, stages):
    command = debug_command(number, stages)
    if not command:
        print('All tests of stages 1 to %d pass.' % number)
        return 0
    if not shutil.which('gdb'):
        raise SystemExit('gdb is not installed: sudo apt-get install gdb')
    os.chdir(ROOT)
    return os.execvp('gdb', command)


def main():
    parser = argparse.ArgumentParser(description='The build track: see the head of this file.')
    parser.add_argument('command', choices=['make', 'stage', 'debug'])
    parser.add_argument('number', nargs='?', type=int)
    parser.add_argument('--force', action='store_true')
    parser.add_argument('--show')
    options = parser.parse_args()
    stages = read_stages()
    number = options.number or 0
    if not 0 <= number <= len(stages):
        raise SystemExit('There are stages 1 to %d.' % len(stages))
    if options.command == 'make':
        return make(options.force)
    if options.show:
        if not any(options.show in stage.write for stage in stages):
            raise SystemExit('No stage writes a function %s.' % options.show)
        return show(number or len(stages), options.show, stages)
    if options.command == 'debug':
        return debug(number or len(stages), stages)
    return stage_command(number, stages) if number else list_stages(stages)


if __name__ == '__main__':
    sys.exit(main())
