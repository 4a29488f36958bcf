#!/usr/bin/env python3
"""Proves the build track of learn/.

    python3 checks/learn.py          in seconds
    python3 checks/learn.py --all    also each skeleton by itself, sanitizers, tests.c at stage 10

One build of the engine has all of it: at its start each function asks in which stage the reader
is (CHECK_STAGE) and stops if it is not written yet, or goes on with its simple body
(CHECK_SIMPLE), a wrong one (CHECK_WRONG) or its own. With it:

    - with the bodies of stages 1 to k, the tests of stages 1 to k pass; with the simple bodies of
      functions that come twice, too
    - without the bodies of stage k, each of its tests fails, with the stop's message
    - a simple body fails the stage that extends it
    - each wrong body of learn/wrong.txt fails the tests of its stage, with a message that helps

And the commands, on a file of their own. Ends with the usual line.
"""
import contextlib
import io
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'learn'))
sys.dont_write_bytecode = True
import learn  # noqa: E402  (the folder has to be known first)

os.environ['LC_ALL'] = 'C'
SCRATCH = 'build/learn-%d' % os.getpid()
LAST = 10
ENGINE = learn.read('paged.cu.c')
SIMPLE = learn.read('learn/simple.c')
STAGES = learn.read_stages()
counts = {'ok': 0, 'FAILED': 0, 'SKIPPED': 0}


def report(name, problems, skipped=''):
    result = 'SKIPPED' if skipped else 'FAILED' if problems else 'ok'
    counts[result] += 1
    print('%-32s %s' % (name, result + bool(skipped) * ': ' + skipped), flush=True)
    for problem in problems[:5]:
        print('  ' + problem.rstrip().replace('\n', '\n  '))


# ---- one build with everything ----

def read_wrong():
    """(stage, name, old, new, text) for each wrong body."""
    bugs = {}
    for line in learn.read('checks/bugs.txt').splitlines():
        fields = [field.strip() for field in (line + ' ').split(' | ')]
        if len(fields) > 2 and not line.startswith('#'):
            bugs[fields[0]] = fields[1:3]
    for line in learn.read('learn/wrong.txt').splitlines():
        if line and not line.startswith('#'):
            fields = [field.strip() for field in (line + ' ').split(' | ')]
            old, new = fields[2:4] if len(fields) == 5 else bugs[fields[1]]
            yield int(fields[0]), fields[1], old.replace('\\n', '\n'), new.replace('\\n', '\n'), \
                fields[-1]


def wrong_bodies(problems):
    """{function: [(number, body)]}, and [(stage, name, text)] by number, from 1 on."""
    bodies, known = {}, [None]
    places = {name: learn.find(ENGINE, name) for stage in STAGES for name in stage.write}
    for stage, name, old, new, text in read_wrong():
        at = ENGINE.find(old)
        functions = [function for before in STAGES[:stage] for function in before.write
                     if places[function][1] <= at < places[function][2]]
        if ENGINE.count(old) != 1 or not functions or not text:
            problems.append('%s: OLD occurs %d times, in %s; or TEXT is missing'
                            % (name, ENGINE.count(old), functions))
            continue
        body = body_of(ENGINE, functions[0]).replace(old, new)
        bodies.setdefault(functions[0], []).append((len(known), body))
        known.append((stage, name, text))
    return bodies, known


def body_of(text, name):
    place = learn.find(text, name)
    return text[place[1]:place[2]]


def all_in_one(wrong):
    engine = learn.skeleton(ENGINE, STAGES)
    for stage in STAGES:
        for name in stage.write:
            start, end, last = learn.find(engine, name)
            stop = engine[end:last].strip()
            void = re.search(r'\bvoid %s\(|^KERNEL' % name, engine[start:end])
            choice = '    if (%s) { %s ' + 'return; ' * bool(void) + '}\n'
            body = '\n{\n    if (check_stage < %d) %s\n' % (stage.number, stop)
            again = [later.number for later in STAGES if name in later.again]
            if again and learn.find(SIMPLE, name):
                condition = 'check_simple("%s", %d)' % (name, again[0])
                body += choice % (condition, body_of(SIMPLE, name))
            for number, text in wrong.get(name, []):
                body += choice % ('check_wrong == %d' % number, text)
            engine = engine[:end] + body + body_of(ENGINE, name) + '\n}' + engine[last:]
    first = engine.index('// ---- ')
    return engine[:first] + '''
static int check_stage, check_wrong;
static const char *check_simple_name;
__attribute__((constructor)) static void check_read(void)
{
    check_stage = atoi(getenv("CHECK_STAGE"));
    check_wrong = atoi(getenv("CHECK_WRONG"));
    check_simple_name = getenv("CHECK_SIMPLE");
}
static int check_simple(const char *name, int again)
{
    if (strcmp(check_simple_name, "until") == 0) return check_stage < again;
    return strcmp(check_simple_name, name) == 0;
}
''' + engine[first:]


class Tests:
    """Runs tests of the one build."""

    def __init__(self, program):
        self.program = program

    def __call__(self, test, stage, simple='', wrong=0):
        return learn.run_test(test, ['env', 'CHECK_STAGE=%d' % stage, 'CHECK_SIMPLE=%s' % simple,
                                     'CHECK_WRONG=%d' % wrong, self.program])


def check_stages(run, workers):
    def passes(number, simple):
        for stage in STAGES[:number]:
            for test in stage.tests:
                text = run(test, number, simple)
                if text:
                    yield '%s fails with the bodies of stages 1 to %d:\n%s' % (test, number, text)

    def stops(stage):
        for test in stage.tests:
            text = run(test, stage.number - 1, 'until') or 'it passes\n'
            names = '|'.join(stage.again) or '$.'
            if not re.match(r'stage %d: write ' % stage.number, text) and \
               not re.search(r'\b(%s)\(' % names, text):
                yield '%s without the bodies of stage %d:\n%s' % (test, stage.number, text)

    both = [(number, simple) for simple in ('', 'until') for number in range(1, LAST + 1)]
    for which, problems in zip(both, workers.map(lambda which: list(passes(*which)), both)):
        report('stages_1_to_%d%s' % (which[0], '_simple' * bool(which[1])), problems)
    for stage, problems in zip(STAGES, workers.map(lambda stage: list(stops(stage)), STAGES)):
        report('stage_%d_unwritten' % stage.number, problems)
    for stage in STAGES:
        for name in stage.again:
            if learn.find(SIMPLE, name):
                failures = [run(test, stage.number, name) for test in stage.tests]
                report('simple_%s_in_stage_%d' % (name, stage.number),
                       [] if any(failures) else ['no test of the stage fails'])


def check_wrong(run, known, workers):
    def look(number):
        stage, name, text = known[number]
        for test in STAGES[stage - 1].tests:
            said = run(test, stage, '', number)
            if said:
                missing = [part for part in text.split(' & ') if part not in said]
                return ['it does not print "%s", but\n%s: %s' % (part, test, said)
                        for part in missing]
        return ['no test of stage %d fails' % stage]

    for number, problems in zip(range(1, len(known)), workers.map(look, range(1, len(known)))):
        report('wrong_%d_%s' % known[number][:2], problems)
    for stage in STAGES:
        if sum(entry[0] == stage.number for entry in known[1:]) < 3:
            report('wrong_of_stage_%d' % stage.number, ['fewer than three'])


# ---- the commands ----

def command(function, *arguments):
    """What a command of learn.py prints, and its exit status or last words."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            status = function(*arguments)
        except SystemExit as end:
            output.write(str(end))
            status = 1
    return output.getvalue(), status


def check_commands(everything):
    learn.MINE = SCRATCH + '/mine/paged.cu.c'
    learn.BUILD = SCRATCH
    compile_mine, sanitizers_say = learn.compile_mine, learn.sanitizers_say
    if not everything:
        learn.sanitizers_say = lambda test: ''  # a build of seconds for each crash

    def expect(name, status, parts, function, *arguments):
        text, actual = command(function, *arguments)
        flat = ' '.join(text.split())
        problems = ['it does not say "%s"' % part for part in parts if part not in flat]
        problems += ['exit status %s' % actual] * (actual != status)
        report(name, problems and problems + ['but:\n' + text])

    def written(number, old='', new=''):
        engine = ENGINE.replace(old, new) if old else ENGINE
        learn.write(learn.MINE, learn.skeleton(engine, STAGES, number))
        return learn.stage_command, max(number, 1), STAGES

    def kept():
        with open(learn.MINE + '.1', encoding='utf-8') as file:
            return file.read() == 'my work'

    expect('no_file_yet', 1, ['make learn'], learn.stage_command, 1, STAGES)
    expect('make_learn', 0, ['make stage N=1 begins'], learn.make, False)
    learn.write(learn.MINE, 'my work')
    expect('make_learn_twice', 0, ['stays as it is', 'FORCE=1'], learn.make, False)
    report('my_work_stays', [] if learn.read(learn.MINE) == 'my work' else ['it is gone'])
    expect('make_learn_force', 0, ['is now in'], learn.make, True)
    report('my_work_is_kept', [] if kept() else ['it is gone'])
    expect('nothing_written', 1, [
        '0 of 3 tests pass', 'FAILED ceil_div_rounds_up', 'to write; its contract is in paged.h',
        'stage 1: write ceil_div(); its contract stands above it, the text in chapter 1 of'],
        learn.stage_command, 1, STAGES)
    expect('list', 0, ['to write: ceil_div, kv_offset', 'to write: f32_to_f16'], learn.list_stages,
           learn.read_stages())
    expect('right', 0, ['Stages 1 to 3: all tests pass', 'Next: stage 4', 'unused variable'],
           *written(3, 'return i * c->head_dim;', 'int n = 1; return i * c->head_dim;'))
    expect('wrong', 1, ['Stage 3, append: 3 of 4 tests pass',
                        'The first that fails is append_all_or_nothing', 'learn/stage_tests.c:',
                        'A 10: 0 1 2; B', 'pool of 4 blocks', 'written; its contract',
                        'SHOW=seq_append'],
           *written(3, 'if (needed > pool->num_free)', 'if (0)'))
    expect('show', 0, ['learn/simple.c:', 'Yours, ' + learn.MINE, 'if (0) return'],
           learn.show, 3, 'seq_append', STAGES)
    expect('show_final', 0, ['paged.cu.c:', 'withdraw'], learn.show, 9, 'seq_append', STAGES)
    learn.compile_mine = lambda: None  # as that was just done
    check_debugger()
    learn.compile_mine = compile_mine
    expect('does_not_compile', 1, ['error:', 'does not compile'],
           *written(1, 'return i * c->head_dim;', 'return i * c->head_dim'))
    expect('return_forgotten', 1, ['return-type', 'does not compile'],
           *written(1, 'return i * c->head_dim;', ';'))
    if everything:
        at = 'pool->num_free++;\n'
        written(2, at, at + '    b[1 << 28].next = 1;\n')
        text = sanitizers_say('insert_and_remove')
        report('sanitizers_say_where', [text] * (' in free_list_insert_after ' not in text))


def check_debugger():
    if not shutil.which('gdb'):
        report('debugger', [], skipped='there is no gdb')
        return
    with contextlib.redirect_stdout(io.StringIO()):
        words = learn.debug(3, STAGES, lambda name, arguments: arguments)
    text, _ = learn.run([words[0], '-nx', '-batch', '-iex', 'set debuginfod enabled off',
                         *words[1:]], 60)
    if 'ptrace' in text:
        report('debugger', [], skipped='gdb cannot run a program here')
        return
    stopped = re.search(r'panic \((.|\n)* in seq_append \((.|\n)* in main \(', text)
    report('debugger', [] if stopped else ['gdb does not stop there:\n' + text])


# ---- compilers, and what takes longer ----

def check_warnings(everything):
    sources = [SCRATCH + '/skeleton/paged.cu.c', 'learn/simple.c'][:1 + everything]
    learn.write(sources[0], learn.skeleton(ENGINE, STAGES))
    for compiler in 'gcc', 'clang':
        for source in sources:
            for level in ['-O0', '-O1', '-O2', '-O3'] if everything else ['-O1']:
                name = 'warnings_%s_%s%s' % (os.path.basename(source), compiler, level)
                if not shutil.which(compiler):
                    report(name, [], skipped='there is no ' + compiler)
                    continue
                text, status = learn.run(
                    [compiler, level, '-Wall', '-Wextra', '-I.',
                     *os.environ.get('CPPFLAGS', '').split(), '-c', source,
                     '-o', SCRATCH + '/warnings.o'], 120)
                report(name, [text] if text or status else [])


def check_walkthrough():
    """The table of chapters says the same of the stages as learn/stages.txt."""
    rows = re.findall(r'^\| *(\d+) \|.*\| (\d+): (.*?) \| *(\d+) \|$', learn.read('walkthrough.md'),
                      re.M)
    listed = [(str(stage.chapter), str(stage.number), stage.name, str(stage.minutes))
              for stage in STAGES]
    report('table_of_the_walkthrough', ['%s\nis not\n%s' % (rows, listed)] * (rows != listed))


def check_skeletons():
    """The text that a reader has, in each stage; at the end, all of tests.c."""
    learn.LIMITS = 'true'  # the sanitizers map terabytes
    for number in range(LAST + 1):
        engine = '%s/skeleton-%d/paged.cu.c' % (SCRATCH, number)
        learn.write(engine, learn.skeleton(ENGINE, STAGES, number))
        for flags in ['-O0'], ['-O1', '-fsanitize=address,undefined', '-fno-sanitize-recover']:
            program = '%s/stage_tests-%d' % (SCRATCH, number)
            compiles, text = learn.build(program, flags, engine=engine)
            problems = [text] * (not compiles)
            for stage in STAGES[:number + 1] if compiles else []:
                for test in stage.tests:
                    text = learn.run_test(test, [program])
                    if stage.number <= number:
                        problems.append(text)
                    elif 'stage %d: write' % stage.number not in str(text):
                        problems.append('%s: %s' % (test, text or 'it passes'))
            report('skeleton_%d%s' % (number, '_sanitized' * (len(flags) > 1)),
                   list(filter(None, problems)))
    learn.MINE = engine
    for arguments in STAGES[-1].suite:
        text = learn.run_suite(arguments)
        report('tests.c_' + arguments[0].strip('-'), [text] if text else [])


def main():
    everything = sys.argv[1:] == ['--all']
    os.makedirs(SCRATCH)
    problems = []
    wrong, known = wrong_bodies(problems)
    learn.write(SCRATCH + '/one/paged.cu.c', all_in_one(wrong))
    learn.LIMITS = learn.LIMITS.replace('-t 5', '-t 1')
    compiles, text = learn.build(SCRATCH + '/one/tests', ['-O0', '-w'],
                                 engine=SCRATCH + '/one/paged.cu.c')
    report('wrong_txt', problems + [text] * (not compiles))
    if compiles:
        with ThreadPoolExecutor(2) as workers:
            run = Tests(SCRATCH + '/one/tests')
            check_stages(run, workers)
            check_wrong(run, known, workers)
    check_commands(everything)
    check_warnings(everything)
    check_walkthrough()
    if everything:
        check_skeletons()
    print('%d passed, %d failed, %d skipped' % tuple(counts.values()))
    return counts['FAILED'] > 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
