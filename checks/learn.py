#!/usr/bin/env python3
"""Checks learn/: the build track, the exercises and the hunts.

    python3 checks/learn.py --all     also runs tests.c on the finished track

One build of the engine serves the whole track. Each function first asks which stage the reader has
reached (CHECK_STAGE). It then panics as unwritten, or goes on with a wrong body (CHECK_WRONG), with
its simple body, which the walkthrough has, until a later stage extends it (CHECK_SIMPLE), or with
the engine's.
"""
import contextlib
import glob
import io
import os
import pty
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'learn'))
sys.dont_write_bytecode = True
import learn  # noqa: E402  (the folder has to be known first)
import plant  # noqa: E402
import walkthrough  # noqa: E402
from plant import call, find, read, write  # noqa: E402

os.environ['LC_ALL'] = 'C'
os.environ.pop('MAKEFLAGS', None)  # of the make that runs this: its own would warn
SCRATCH = 'build/learn-%d' % os.getpid()
ENGINE, SIMPLE = read('paged.cu.c'), read('walkthrough.md')
STAGES = learn.read_stages()
NUMBERS = {'1a': '40 160 20 40 160', '2a': '4 8 5', '3a': '2 3752', '4a': '19 28',
           '5a': '3072 18432', '6a': '3.2667 2.4286 1.875', '7a': '24 48 84060', '8a': '118 7', '9a': '19 8 2',
           '10a': '8 12 12 8 0 4', '11a': '2 18', '14a': '16384000 24576000'}
counts = {'ok  ': 0, 'FAIL': 0, 'skip': 0}


def report(name, problems, skipped=''):
    result = 'skip' if skipped else 'FAIL' if problems else 'ok  '
    counts[result] += 1
    print('%s  %s%s' % (result, name, bool(skipped) * ': ' + skipped), flush=True)
    for problem in problems[:5]:
        print('  ' + problem.rstrip().replace('\n', '\n  '))


def report_parts(name, text, parts, problems=()):
    """A text must have these parts, with any line breaks."""
    words = ' '.join(text.split())
    problems = [*problems, *('it does not say "%s"' % part for part in parts if part not in words)]
    report(name, problems and problems + ['but:\n' + text])


def make_in(folder, *arguments, **environment):
    return call(['make', '-s', *arguments], cwd=folder, env={**os.environ, **environment},
                stdin=subprocess.DEVNULL, timeout=1200)


# ---- the track: one build with everything ----

def body_of(text, name):
    return text[find(text, name).body:find(text, name).end]


def wrong_bodies():
    """{function: [(number, body)]}, and [(stage, name, text)] by number, from 1 on: those of
    mistakes.txt, and the simple bodies, in the stage that extends them."""
    bodies, known = {}, [None]

    def add(function, body, *entry):
        bodies.setdefault(function, []).append((len(known), body))
        known.append(entry)

    for mistake in plant.read_mistakes().values():
        for who in [who for who in mistake.expect if who.startswith('stage ')]:
            function, body = plant.edit_body(mistake)
            add(function.name, body, int(who[6:]), mistake.name, ' & '.join(mistake.expect[who]))
    for stage in STAGES:
        for name in stage.again:
            add(name, body_of(SIMPLE, name), stage.number, 'simple ' + name, '')
    return bodies, known


def all_in_one(wrong):
    engine = learn.skeleton(ENGINE, STAGES)
    for stage in STAGES:
        for name in stage.write:
            place = find(engine, name)
            stop = engine[place.body:place.end].strip()
            void = re.search(r'\bvoid %s\(' % name, engine[place.start:place.body])
            choice = '    if (%s) { %s ' + 'return; ' * bool(void) + '}\n'
            body = '\n{\n    if (check("STAGE") < %d) %s\n' % (stage.number, stop)
            for number, text in wrong.get(name, []):
                body += choice % ('check("WRONG") == %d' % number, text)
            for later in [later.number for later in STAGES if name in later.again][:1]:
                body += choice % ('check("SIMPLE") && check("STAGE") < %d' % later,
                                  body_of(SIMPLE, name))
            body += body_of(ENGINE, name) + '\n}'
            engine = engine[:place.body] + body + engine[place.end:]
    first = engine.index('// ---- ')
    return engine[:first] + '''
static int check(const char *name)
{
    static int values[128];  // by first letter: a kernel asks often
    char variable[20] = "CHECK_";
    if (!values[(int)*name]) values[(int)*name] = atoi(getenv(strcat(variable, name))) + 1;
    return values[(int)*name] - 1;
}
''' + engine[first:]


def on_track(program, stage, simple=0, wrong=0):
    """The command that runs a program with what a reader at this stage has."""
    return ['env', 'CHECK_STAGE=%d' % stage, 'CHECK_SIMPLE=%d' % simple, 'CHECK_WRONG=%d' % wrong,
            SCRATCH + '/one/' + program]


def run_test(test, *reader):
    races = test.startswith('races_')
    if races and not plant.works('-fsanitize=thread'):
        return None
    return learn.run_test(test, on_track('races' if races else 'tests', *reader))


def passes(number, simple):
    """With the bodies of stages 1 to `number`, the tests of these stages pass. Looking for races is
    slow: in their stage and in the last."""
    results = [(test, run_test(test, number, simple))
               for stage in STAGES[:number] for test in stage.tests
               if number in (stage.number, len(STAGES)) or not test.startswith('races_')]
    return ['%s fails:\n%s' % result for result in results if result[1]]


def stops(stage):
    """Without the bodies of a stage, each of its tests fails, and says what to write and where. If
    it only extends a function, its first tests may be enough."""
    results = [(test, run_test(test, stage.number - 1, 1) or 'it passes')
               for test in stage.tests[:None if stage.write else 2]]
    stop = r'\Astage %d: write |\b(%s)\(' % (stage.number, '|'.join(stage.again) or '$.')
    return ['%s:\n%s' % result for result in results
            if not re.search(stop, result[1]) or 'the beginning' in result[1]]


def fails(entry, number):
    """A wrong body fails a test of its stage, and the first that fails prints the text."""
    for test in STAGES[entry[0] - 1].tests:
        said = run_test(test, entry[0], 0, number)
        if said:
            return ['it does not print "%s", but\n%s: %s' % (part, test, said)
                    for part in entry[2].split(' & ') if part not in said]
    return [] if entry[2] == 'passes' else ['no test of stage %d fails' % entry[0]]


def check_bodies(known):
    jobs = [('stages 1 to %d%s' % (stage.number, ', simple' * simple), passes, stage.number, simple)
            for simple in (0, 1) for stage in STAGES]
    jobs += [('stage %d unwritten' % stage.number, stops, stage) for stage in STAGES]
    jobs += [('wrong body of stage %d: %s' % known[number][:2], fails, known[number], number)
             for number in range(1, len(known))]
    with ThreadPoolExecutor(2) as workers:
        for job, problems in zip(jobs, workers.map(lambda job: job[1](*job[2:]), jobs)):
            report(job[0], problems)


# A program that starts only where addresses are not random, as with an old ThreadSanitizer.
FIXED = '''grep -q 40000 /proc/$$/personality && exec "$@"
echo FATAL: ThreadSanitizer: unexpected memory mapping; exit 66'''


def check_races(known):
    """A race is seen where only `setarch -R` lets ThreadSanitizer start. Without that, the test is
    skipped, aloud."""
    number = [entry and entry[1] for entry in known].index('barrier-before-result')
    program = ['sh', '-c', FIXED, 'sh', *on_track('races', 7, 0, number)]
    test, output = 'races_attention_like_the_oracle', io.StringIO()
    fixed = plant.works('-fsanitize=thread') and shutil.which('setarch') and not call(
        ['setarch', '-R', 'true'])[0]
    with contextlib.redirect_stdout(output):
        said = learn.run_races(test, program)
        never = learn.run_races(test, ['sh', '-c', 'exit 66'])
    report('race without random addresses', [] if 'no barrier between them' in str(said) else [said],
           '' if fixed else 'no setarch -R, or no ThreadSanitizer')
    skipped = never == '' and test + ': skipped: ' in output.getvalue()
    report('race test that does not start', [] if skipped else [repr(never), output.getvalue()])


def check_stories():
    """From the stage that has a story, llama tells it as with the finished engine; before, it stops
    at a function of that stage."""
    compiles, text = learn.build(SCRATCH + '/one/llama', [
        '-O2', '-w', '-DPAGED_NO_MAIN', SCRATCH + '/one/paged.cu.c'], 'examples/llama.c')
    report('llama on the track', [text] * (not compiles))
    for stage in [stage for stage in STAGES if stage.story and compiles]:
        told = []
        for number in (len(STAGES), stage.number, stage.number - 1):
            lines, worked = learn.tell(stage, on_track('llama', number, 1))
            told.append((worked, '\n'.join(lines)))
        problems = [str(told)] * (told[0] != told[1] or not told[0][0])
        problems += ['no tale'] * ('free list' not in told[1][1])
        problems += [told[2][1]] * ('stage %d: write ' % stage.number not in told[2][1])
        report('story of stage %d' % stage.number, problems)


# A line that make show draws in each stage. All letters are read from the bytes of the pool.
DRAWN = {1: '          |be..|  |b...|  |...k|* |....|  |....|  |....|  |....|  |....|',
         2: 'free list 0* 1  2  3  5  6  7  4',
         3: 'B: table  1 ....* 0 ....* 2 ..*',
         4: '          |be_k|  |ind_|* |hi..|  |to..|*  ....    ....    ....    ....',
         5: '            #                              ##',
         6: 'weights   largest score m: 2.000   sum l: 1.406',
         7: '= 14',
         8: '          |be_k|  |ite.|* |ind.|   ....    ....    ....    ....    ....',
         9: 'B: table  0 be_k  2 ing*',
         10: 'serial         1       0*      0       0       0       0       0       0',
         11: 'free list 3* 4  5  6  7',
         12: '= 512'}


def check_show(known):
    """make show draws each stage as on the finished engine, stops at what is not written yet, and
    draws another picture for some wrong body of each stage (of stage 6: of stage 5)."""
    write(SCRATCH + '/one/show.c', read('learn/show.c'))  # beside its engine
    compiles, text = learn.build(SCRATCH + '/one/show', ['-O0', '-w'], SCRATCH + '/one/show.c')
    report('show on the track', [text] * (not compiles))

    def draw(stage, written, wrong=0):
        command = [*on_track('show', written, 1, wrong), str(stage.number)]
        text, status = plant.run(command, 20, learn.LIMITS)
        return re.sub(' +$', '', text, flags=re.M), status

    for stage in STAGES if compiles else []:
        text, status = draw(stage, stage.number)
        bugs = [number for number in range(1, len(known)) if known[number][2]
                and known[number][0] in (stage.number, stage.number - 1 + bool(stage.write))]
        problems = [text] * (status != 0 or 'WRONG' in text)
        problems += ['too wide: ' + line for line in text.splitlines() if len(line) > 80]
        problems += ['no line "%s"' % DRAWN[stage.number]] * (
            DRAWN[stage.number] not in text.splitlines())
        problems += ['the finished engine has other frames'] * (
            draw(stage, len(STAGES)) != (text, status))
        before = draw(stage, stage.number - 1)[0]
        problems += [before] * (bool(stage.write)
                                and 'stage %d: write ' % stage.number not in before)
        problems += ['no wrong body is seen'] * (
            all(draw(stage, stage.number, number)[0] == text for number in bugs))
        if stage.number == 8:
            quoted = re.search(r'```text\n(A gets n(?:.*\n)*?)```', read('README.md'))
            problems += ['README.md shows another frame'] * (not quoted or quoted[1] not in text)
        report('show of stage %d' % stage.number, problems)

    terminal, output = pty.openpty()
    ended = subprocess.run([*on_track('show', 2), '2'], input=b'\n', stdout=output, check=False)
    os.close(output)
    text = ''
    with contextlib.suppress(OSError):  # how Linux says that the terminal has nothing left
        for part in iter(lambda: os.read(terminal, 10000), b''):
            text += part.decode()
    os.close(terminal)
    calls = ['pool_create', 'free_list_remove']  # one Enter: it asks, calls, and asks
    report('show in a terminal', [text] * (
        ended.returncode != 2 or re.findall(r'> (\w+)', text) != calls))

    folder = SCRATCH + '/make-show'
    copy_project(folder)
    write(folder + '/learn/paged.cu.c', learn.skeleton(ENGINE, STAGES, 2))
    text = make_in(folder, 'show')[1]
    os.remove(folder + '/learn/paged.cu.c')
    text += make_in(folder, 'show', 'N=12')[1]  # of the finished engine
    shown = re.findall(r'^[Ss]tage \d+[.:](?: write \w+)?|Aborted|Your engine goes this far|'
                       '^This is the finished engine', text, re.M)
    right = ['Stage 1.', 'Stage 2.', 'Stage 3.', 'stage 3: write seq_append',
             'Your engine goes this far', 'This is the finished engine', 'Stage 12.']
    report('make show', [text] * (shown != right))


# ---- the track: its commands ----

def expect(name, status, parts, function, *arguments):
    """A command of learn.py or plant.py must print these parts, and return this status."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            actual = function(*arguments)
        except SystemExit as end:
            output.write(str(end))  # a text or a status
            actual = 1 if isinstance(end.code, str) else end.code
    report_parts(name, output.getvalue(), parts,
                 ['exit status %s' % (actual,)] * (actual != status))


def check_commands():
    learn.MINE, learn.BUILD = SCRATCH + '/mine/paged.cu.c', SCRATCH

    def written(number, old='', new=''):
        engine = ENGINE.replace(old, new) if old else ENGINE
        write(learn.MINE, learn.skeleton(engine, STAGES, number))
        return learn.stage_command, max(number, 1), STAGES

    sys.argv[1:] = 'stage', '1'
    expect('no file yet', 1, [
        'make stage N=1 runs the first tests', '0 of 2 tests pass', 'FAILED ceil_div_rounds_up',
        'to write; its contract is above it',
        'stage 1: write ceil_div(), in chapter 3 of walkthrough.md'], learn.main)
    expect('list', 0, ['to write: ceil_div, kv_offset'], learn.list_stages, learn.read_stages())
    write(learn.MINE, 'my work')
    sys.argv[1:] = ['make']
    expect('make learn, twice', 0, ['is left as it is', 'mv ' + learn.MINE], learn.main)
    report('my work is kept', ['it is gone'] * (read(learn.MINE) != 'my work'))
    expect('right', 0, ['Stages 1 to 3: all tests pass', 'Next: stage 4', 'unused variable',
                       'Now: make show'],
           *written(3, 'return i * c->head_dim;', 'int n = 1; return i * c->head_dim;'))
    expect('wrong', 1, ['Stage 3, append: 2 of 3 tests pass',
                        'The first one that fails, append_all_or_nothing', 'learn/stage_tests.c:',
                        'A 10: 0 1 2; B', 'pool of 4 blocks', 'written; its contract',
                        'SHOW=seq_append'],
           *written(3, 'if (needed > pool->num_free)', 'if (0)'))
    expect('show', 0, ['walkthrough.md:', 'Yours, ' + learn.MINE, 'if (0) return'],
           learn.show, 3, 'seq_append', STAGES)
    expect('show the copy', 0, ['before stage 11: remove', 'block_copy(pool, own, last)'],
           learn.show, 8, 'seq_append', STAGES)
    written(12, 'min_int(length, seq->num', 'min_int(0, seq->num')
    run_suite, learn.run_suite = learn.run_suite, lambda _, path: 'min_int(0, seq' in read(path)
    expect('function to blame', ('seq_rewind', STAGES[8]), [
        "engine's seq_rewind() in place of yours (stage 9)"],
        learn.blame, 12, STAGES, 'tests.c --cpu', '')
    learn.run_suite = run_suite
    written(3, 'if (needed > pool->num_free)', 'if (0)')
    check_debugger(plant.LLDB, '-x', '--batch')
    gdb = check_debugger(plant.GDB, '-nx', '-batch', '-iex', 'set debuginfod enabled off')
    expect('crash', 1, ['signal 11'] + ['It crashes in attend_row(), at ' + learn.MINE] * gdb,
           *written(5, 'double m = -DBL_MAX;', 'double m = *(volatile float *)8;'))
    expect('crash in what is given', 1,
           ['signal 11'] + ['It crashes in attend_tokens(), at ' + learn.MINE] * gdb,
           *written(7, 'q[i] * load_element(job->k_plane, at + d',
                    'q[i] * load_element((void *)8, at + d'))
    expect('to blame in a stage', 1, [
        "engine's seq_append() in place of yours (stages 3 and 8)", 'SHOW=seq_append'],
        *written(8, 'if (filled > 0) block_poison', 'if (0) block_poison'))
    expect('stopped at a later stage', 1, [
        'f32_to_bf16(), of stage 12, is called, which nothing needs in stage 4',
        'because: the copy is of job->dense_dtype, here float32',
        "engine's gather_token() in place of yours (stage 4)"],
           *written(4, 'to + i, job->dense_dtype, k)', 'to + i, c->dtype, k)'))
    each = 'for (int i = thread; i < c->head_dim; i += threads) {'
    expect('two to blame', 1, ["engine's write_token() in place of yours (stages 4 and 7)"],
           *written(7, each, each.replace('thread;', '0;').replace('threads', '1')))
    expect('misspelt', 1, ['block_posion() is missing', learn.MINE + ':', 'declar'],
           *written(2, 'block_poison(pool, block, 0);\n    r', 'block_posion(pool, block, 0);\n    r'))
    expect('too early', 1, ['prefix_find() is called before it is declared'],
           *written(2, 'blocks[block].ref_count--;', 'prefix_find(pool, 0, 0);'))
    expect('name of the tests', 1, ['The tests have a release, too'],
           *written(1, "HD static int ceil_div", "static void release(int *a) { *a = 0; }\n"
                    "HD static int ceil_div"))
    written(4)
    expect('no story yet', 1, ['speaks after stage 5. Still to write, in stage 5, attention: attend'],
           learn.story, 0, STAGES)
    written(6)
    expect('story', 0, ['A block with a sign may rest for long. The finished engine says the same'],
           learn.story, 0, STAGES)
    expect('no story of its own', 0, ['Stage 6 has no tale of its own. This is that of stage 5:'],
           learn.story, 6, STAGES)
    written(6, 'l += weight;', 'l += 0.2;')
    expect('another story', 0, ['says something else from line 1 on'],
           learn.story, 0, STAGES)
    expect('later story', 1, ['after stage 9. Still to write, in stage 7, paged kernel: merge'],
           learn.story, 9, STAGES)
    run_races, learn.run_races = learn.run_races, lambda *_: ''
    expect('skipped races', 0, [
        'Stages 1 to 7: no test fails. Skipped: races_attention_like_the_oracle.', 'Next: stage 8'],
        *written(7))
    learn.run_races = run_races
    expect('return forgotten', 1, ['error:', 'return-type', 'does not compile'],
           *written(1, 'return i * c->head_dim;', ';'))


def check_refusals():
    """What a command is asked is never run by a shell. What it cannot do, it says."""
    folder = SCRATCH + '/refusals'
    copy_project(folder)
    os.remove(folder + '/learn/paged.cu.c')
    for target in 'read', 'stage', 'story', 'debug-stage', 'show', 'exercise', 'hunt', 'mutant':
        text = make_in(folder, target, *('%s=`touch run-%s`' % (name, target) for name in (
            'N', 'SHOW', 'ANSWER', 'BUG')), PAGER='cat')[1]
        report('make %s runs no command of N' % target,
               [text] * os.path.exists('%s/run-%s' % (folder, target)))

    def refuses(name, part, *arguments):
        status, text = make_in(folder, *arguments)
        problems = ['a traceback'] * ('Traceback' in text)
        if status == 0 and arguments[0] != 'hunt':  # whose status is that of a filter
            problems.append('exit status 0')
        report_parts(name, text, [part], problems)

    refuses('no such exercise', 'There is no exercise 99.', 'exercise', 'N=99')
    refuses('no such stage', 'There are stages 1 to 12.', 'stage', 'N=99')
    shutil.rmtree(folder + '/build')
    write(folder + '/build', 'nothing can be written here')
    refuses('make stage where nothing can be written', 'build/learn: ', 'stage')
    refuses('make hunt there', 'build: ', 'hunt', 'N=1')


GERMAN = """#!/bin/sh
# A compiler that speaks German, but for LC_ALL=C. In German it says no more than this.
[ "$LC_ALL" = C ] && exec %s "$@"
echo "Fehler"
exit 1
"""
NO_LIMIT = """#!/bin/sh
# A shell without ulimit -v, such as that of macOS.
shift
script="ulimit() { case \\$* in *-v*) echo ulimit: -v: invalid >&2 ;; *) command ulimit \\$* ;; esac; }
$1"; shift
exec /bin/sh -c "$script" "$@"
"""
NO_TOOL = """#!/bin/sh
echo "$0: not found" >&2
exit 127
"""


def check_other_systems():
    """A compiler that speaks another language; a shell without a limit, no nproc."""
    folder = os.path.abspath(SCRATCH + '/other')
    copy_project(folder)
    for path, text in (('german', GERMAN % ' '.join(plant.CC)), ('bin/sh', NO_LIMIT),
                       ('bin/nproc', NO_TOOL)):
        write(f'{folder}/{path}', text)
        os.chmod(f'{folder}/{path}', 0o755)

    engine = ENGINE.replace('__shfl_xor_sync(ALL_LANES, score', '__shfl_down_sync(ALL_LANES, score')
    write(folder + '/learn/paged.cu.c', learn.skeleton(engine, STAGES, 7))
    text = make_in(folder, 'stage', 'N=7', 'CC=./german', LC_ALL='de_DE.UTF-8')[1]
    report_parts('no such shuffle, in German', text, ['The stand-in has __shfl_xor_sync()'])
    text = call(['sh', '-c', '. checks/report.sh; echo $LC_ALL'],
                env={**os.environ, 'LC_ALL': 'de_DE.UTF-8'})[1]
    report('the language of checks/*.sh', [text] * (text != 'C\n'))

    os.remove(folder + '/learn/paged.cu.c')
    path = folder + '/bin:' + os.environ['PATH']
    for target, says in ('show', 'Stage 1.'), ('stage', 'The first one that fails'):
        text = make_in(folder, target, 'N=1', 'SHELL=bin/sh', PATH=path)[1]
        report_parts('make %s without ulimit -v and nproc' % target, text, [says],
                     [word for word in ('ulimit', 'nproc') if word in text])


def check_without_standin(everything):
    """In a build without a stand-in, all stages can be reached, and what needs one says so."""
    folder = SCRATCH + '/no-standin'
    copy_project(folder)
    write(folder + '/learn/paged.cu.c', learn.skeleton(ENGINE, STAGES, 12))
    shutil.copytree('examples', folder + '/examples')

    def says(parts, *arguments, only=False):
        flags = ' '.join([*plant.CPPFLAGS, '-DPAGED_NO_STANDIN'])
        text = make_in(folder, *arguments, 'CPPFLAGS=' + flags)[1]
        text = re.sub(r'^make(\[\d+\])?: .*', '', text, flags=re.M)
        problems = ['it says more'] * (only and text.strip() != plant.NO_STANDIN)
        problems += ['a warning'] * ('warning:' in text)
        report_parts('without a stand-in: make ' + ' '.join(arguments), text, parts, problems)

    number = len(STAGES) if everything else len(STAGES) - 1  # the last one has a suite
    says(['Skipped in stages 7 and 12: what runs kernels. ' + plant.NO_STANDIN,
          'Stages 1 to %d: all tests pass' % number], 'stage', 'N=%d' % number)
    says(['This is that of stage 5', plant.NO_STANDIN, 'The finished engine says the same'],
         'story', 'N=7')
    for number in 2, 9, 11, 13:
        says([], 'hunt', 'N=%d' % number, only=True)
    says(['too few free blocks', 'make hunt N=1 ANSWER'], 'hunt', 'N=1')
    says([], 'show', 'N=7', only=True)
    says([], 'exercise', 'N=7a', 'ANSWER=24 48 84060', only=True)
    says(['Your copy of', plant.NO_STANDIN], 'exercise', 'N=7b')
    says([], 'paged')
    text = call([folder + '/paged'])[1]
    report('without a stand-in: ./paged', [text] * (plant.NO_STANDIN not in text))


def check_read():
    said = [make_in('.', 'read', *arguments, PAGER='cat')[1]
            for arguments in ([], ['N=3'], ['N=3', 'SHOW=1'])]
    seen = [[part in text for part in ('# Walkthrough', '## 3.', 'void block_drop', '## 4.')]
            for text in said]
    problems = [str(seen)] * (seen != [[1, 1, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0]])
    table = '| a row | that is longer than the terminal |\n\n'
    folded = call(['awk', '-v', 'width=24', '-f', 'learn/read.awk'], input=(
        '9 and sixty-four are ln\n4. So there.\n\n\n' + table + '1. one two\n   three four `five six seven` eight\n'
        '2. nine\n'))[1]
    right = ('9 and sixty-four are\nln 4. So there.\n\n' + table + '1. one two three four\n'
             '   `five six seven`\n   eight\n2. nine\n')
    wide = call(['awk', '-v', 'width=300', '-f', 'learn/read.awk'], input='four\n4. ' * 40)[1]
    problems += [folded] * (folded != right) + [wide] * (len(wide.splitlines()[0]) != 100)
    problems += re.findall(r'^(?:Look|Answer|```c simple)$', said[2], re.M)
    report('make read', problems)


def check_debugger(debugger, *options):
    name = debugger.name
    if not shutil.which(name):
        report(name, [], 'there is no ' + name)
        return False
    learn.debugger = lambda: debugger
    with contextlib.redirect_stdout(io.StringIO()):
        words = learn.debug(3, STAGES, lambda name, arguments: arguments)
    path = 'PYTHONPATH=' + walkthrough.LLDB_PATH
    text, _ = plant.run(['env', path, name, *options, *words[1:]], 60)
    stopped = re.search(r'\bpanic ?\((.|\n)*\bseq_append ?\((.|\n)*\bmain ?\(', text)
    report(name, [] if stopped else [name + ' does not stop there:\n' + text],
           name + ' cannot run a program here' if re.search('ptrace|personality', text) else '')
    return bool(stopped)


def check_times():
    text, minutes = read('walkthrough.md') + read('README.md'), [stage.minutes for stage in STAGES]
    rows = re.findall(r'^\| *(\d+) \|.*\| (\d+): (.*?) \| *(\d+) \|$', text, re.M)
    listed = [(str(stage.chapter), str(stage.number), stage.name, str(stage.minutes))
              for stage in STAGES]
    rows += re.findall(r'^\| *(\d+) \| \w.*? \| (\d+) \|', text, re.M)
    listed += re.findall(r'^## (\d+)\. .*\n\n\*Reading (\d+) minutes', text, re.M)
    written, words = sum(len(stage.write) for stage in STAGES), ' '.join(text.split())
    says = ['stage %d: %d minutes' % (stage.number, stage.minutes) for stage in STAGES]
    says += ['%d functions are empty' % written, 'empties %d functions' % written,
             '%d at the keyboard' % sum(minutes[:5]),
             'all twelve take some %s hours' % {9: 'nine', 10: 'ten'}.get(round(sum(minutes) / 60))]
    short = re.sub(r'(?s)\n## 2\..*?(?=\n## 3\.)|\n### From memory.*?(?=\n##)|'
                   r'<details>.*?</details>|\n\*\*(Predict\.|\d[abc]).*?\n(?=\n)', '',
                   text[:text.index('### Why one pass')])
    reading = len(short.split()) / 160  # words of text and code in a minute
    problems = ['%s\nis not\n%s' % (rows, listed)] * (rows != listed)
    problems += ['nowhere: ' + part for part in says if part not in words]
    problems += ['the short way has %d minutes of reading' % reading] * (
        reading > int(re.search(r'(\d+) minutes of reading', words)[1]))
    report('times of the walkthrough', problems)


def check_track(everything):
    wrong, known = wrong_bodies()
    write(SCRATCH + '/one/paged.cu.c', all_in_one(wrong))
    compiles, text = learn.build(SCRATCH + '/one/tests', ['-O0', '-w'],
                                 engine=SCRATCH + '/one/paged.cu.c')
    if plant.works('-fsanitize=thread'):
        learn.build(SCRATCH + '/one/races', learn.RACES, engine=SCRATCH + '/one/paged.cu.c')
    else:
        print('skip  races in stages: this compiler has no ThreadSanitizer')
    report('stages with mistakes', [text] * (not compiles))
    if compiles:
        check_bodies(known)
        check_races(known)
    check_stories()
    check_show(known)
    check_commands()
    check_refusals()
    check_other_systems()
    check_without_standin(everything)
    write(SCRATCH + '/skeleton/paged.cu.c', learn.skeleton(ENGINE, STAGES))
    said = call([*plant.CC, '-O2', '-Wall', '-Wextra', '-I.', *plant.CPPFLAGS, '-c',
                 SCRATCH + '/skeleton/paged.cu.c', '-o', os.devnull])[1]
    report('no warning', [said] * (said != ''))
    check_times()
    write(learn.MINE, learn.skeleton(ENGINE, STAGES, len(STAGES)))
    for arguments in STAGES[-1].suite if everything else []:
        report('tests.c ' + ' '.join(arguments), list(filter(None, [learn.run_suite(arguments)])))


# ---- exercises and hunts ----

def check_numbers():
    program = SCRATCH + '/predict'
    status, text = call([*plant.CC, '-O1', '-Wall', '-Wextra', *plant.CPPFLAGS, 'learn/predict.c',
                         '-o', program, '-lm'])
    report('predict.c compiles', [text] * (status != 0 or text != ''))
    listed = set(re.findall(r'\b\d+[a-c]\b', call([program])[1]))
    there = {*NUMBERS, *map(name_of, glob.glob('learn/[0-9]*.patch'))}
    report('list of exercises', ['%s is not %s' % (listed, there)] * (listed != there))
    for name, right in NUMBERS.items() if status == 0 else []:
        numbers, problems = right.split(), []

        def said(state, pattern, *answers):
            status, text = call([program, name, *answers])
            if status != state or not re.search(pattern, text) or state and text.count('\n') > 1:
                problems.append('%s: exit status %s, and\n%s' % (answers, status, text))
            return text

        said(0, r'N=%s ANSWER="%s\.\.\."' % (name, r'\.\.\. ' * (len(numbers) - 1)))
        text = said(0, '^%s: solved' % name, *numbers)
        problems += ['too wide: ' + line for line in text.splitlines() if len(line) > 80]
        problems += ['the reason lacks ' + number for number in numbers
                     if not re.search(r'\b%s\b' % re.escape(number), text)]
        said(1, 'numbers expected: %d' % len(numbers), *numbers, '1')
        said(1, 'x is not a number', *numbers, 'x')
        for i, number in enumerate(numbers):
            for more, word in (-1, 'too small'), (1, 'too large'):
                other = str(float(number) + more)
                said(1, '^%s: not yet: .*%s$' % (name, word), *numbers[:i], other, *numbers[i + 1:])
        report('exercise ' + name, problems)
    expect('thousands', 0, ['14a: solved'], learn.exercise, '14a', '16,384,000, 24,576,000', STAGES)
    expect('commas', 0, ['1a: solved'], learn.exercise, '1a', '40,160,20,40,160', STAGES)


def name_of(path):
    return os.path.basename(path).partition('.')[0]


def copy_project(folder):
    """What a reader needs, beside an engine that is not finished."""
    for path in ['Makefile', 'paged.cu.c', 'paged.h', 'tests.c', 'walkthrough.md',
                 *glob.glob('fast/*.c'), *glob.glob('learn/*.*')]:
        if not re.match('learn/(my-|paged)', path):  # of whoever runs this
            write('%s/%s' % (folder, path), read(path))
    write(folder + '/learn/paged.cu.c', '#error "unfinished"\n')


# What a solution of code may lack: {exercise: (old, new, what it prints then)}.
WRONG_CODE = {
    '5b': ('= (size_t)n *', '= (size_t)from->num_computed_tokens *', 'heap-buffer-overflow'),
    '13a': ('        if (count == 0) continue;\n', '', 'not left out')}


def check_code(path):
    """(problems, why it is skipped) of an exercise that asks for code."""
    if not shutil.which('patch'):
        return [], 'there is no patch'
    name, folder = name_of(path), SCRATCH + '/' + name_of(path)
    copy_project(folder)
    copied = re.match('--- a/(.*)', read(path))[1]
    if name in ('6b', '7b'):  # in a copy of the reader's engine, once it goes so far
        copied = 'learn/paged.cu.c'
        write(folder + '/' + copied, learn.skeleton(ENGINE, STAGES, int(name[0]) - 2))
        text = make_in(folder, 'exercise', 'N=' + name)[1]
        if 'as soon as make stage N=%s passes' % name[0] not in text:
            return [text], ''
        write(folder + '/' + copied, learn.skeleton(ENGINE, STAGES, int(name[0])))
    elif copied == 'paged.cu.c':
        os.remove(folder + '/learn/paged.cu.c')
    mine = folder + '/learn/my-%s.c' % name
    for state in 'not yet', 'solved':
        text = make_in(folder, 'exercise', 'N=' + name)[1]
        task = state == 'solved' or (read(mine) == read(folder + '/' + copied)
                                     and 'Your copy of ' + copied in text and name in text[:3])
        if 'warning:' in text or not task or not re.search(
                '^%s: %s' % (name, state), text, re.M):
            return ['expected "%s", got\n%s' % (state, text)], ''
        failed, text = state == 'not yet' and call(
            ['patch', '-s', 'learn/my-%s.c' % name, 'learn/%s.patch' % name], cwd=folder) or (0, '')
        if failed or text:
            return ['patch: ' + text], ''
    if name in WRONG_CODE:
        old, new, says = WRONG_CODE[name]
        write(mine, read(mine).replace(old, new))
        text = make_in(folder, 'exercise', 'N=' + name)[1]
        if name == '5b' and 'solved' in text:
            return [], 'no AddressSanitizer'
        if says not in text:
            return [text], ''
    return [], ''


def check_exercises():
    paths = sorted(glob.glob('learn/[0-9]*.patch'))
    with ThreadPoolExecutor(2) as workers:
        for path, result in zip(paths, workers.map(check_code, paths)):
            report('exercise ' + name_of(path), *result)


def hunt_problems(number, hunt, bug, healthy):
    names = [function.name for function in plant.functions(ENGINE)]
    buggy = [function.name for function in plant.functions(ENGINE)
             if function.start <= ENGINE.index(bug.old)][-1]
    with contextlib.redirect_stdout(io.StringIO()):
        accepted = [name for name in names
                    if not plant.judge_answer(number, hunt, bug, name + '()')]
    if accepted != [buggy]:
        yield 'in %s(), accepted: %s' % (buggy, accepted)
    if re.search(r'\b%s\b|%s' % (buggy, bug.name), read('learn/hunts.txt')):
        yield 'hunts.txt names the bug or its function'
    printed, status = plant.run_hunt(healthy, number, 60)
    if status != 0 or hunt['shows'] in printed:
        yield 'with the engine as it is: exit status %s, and\n%s' % (status, printed)
    program = plant.build_hunt(number, bug)
    printed, status = plant.run_hunt(program, number, 2 if hunt['shows'] == plant.HANGS else 60)
    if status == 0 or hunt['shows'] not in printed:
        yield 'no "%s": exit status %s, and\n%s' % (hunt['shows'], status, printed)


# What a reader sees in a debugger who follows the hint of a hunt.
SEEN = {'1': 'in 3 blocks of 4', '3': 'V  -1.0000  -1.0000   1.0000 & V   0.0000   0.0000',
        '4': '4 used, 4 free', '8': '0* 1* 2* 3* 4* 5* 6 7', '10': 'then 0 again'}
MISUNDERSTOOD = 'Undefined|No symbol|not a valid|undeclared|usage:|Cannot|error:'


def hint_problems(number, hunt, hold):
    """The commands of `look`, then those of the hint, exist in a debugger and lead there."""
    line = ENGINE.count('\n', 0, ENGINE.index('float new_m = fmaxf(m, score)')) + 1
    start = hunt.get('look', 'break noticed; run; up 2')
    start = start.replace('run; (Ctrl-C', 'break prefix_find if pool->last_serial == 3; run; (')
    stops, runs = [], []
    for command in start.split('; ') + re.findall('`(.*?)`', hunt['hint']):
        if command.startswith('break '):
            stops.append(command)
        elif command == 'run':
            runs.append([*stops, command])
        elif not command.startswith(('make ', '(')):
            runs[-1].append(command.replace('LINE', str(line)))
    said = '\n'.join(line for commands in runs
                     for output in hold('build/hunt-' + number, [number], commands)[:len(commands)]
                     for line in output)
    lost = [part for part in SEEN.get(number, '').split(' & ') if part not in said]
    return [said] if lost or re.search(MISUNDERSTOOD, said) else []


def check_hunts():
    bugs, hunts, healthy = plant.read_mistakes(), plant.read_hunts(), plant.build_hunt(0, None)
    for number, hunt in hunts.items():
        problems = list(hunt_problems(number, hunt, bugs[hunt['bug']], healthy))
        report('hunt ' + number, problems)
    for name in 'gdb', 'lldb':
        missing = walkthrough.problem(name)
        if missing:
            report('hints of hunts in ' + name, [], missing)
            continue
        hinted = [number for number in hunts if '`' in hunts[number]['hint']]
        with ThreadPoolExecutor(2) as workers:
            found = workers.map(lambda number, hold=getattr(walkthrough, name):
                                hint_problems(number, hunts[number], hold), hinted)
            for number, problems in zip(hinted, found):
                report('hint of hunt %s in %s' % (number, name), problems)


def main():
    os.makedirs(SCRATCH)
    check_track('--all' in sys.argv)
    check_read()
    check_numbers()
    check_exercises()
    check_hunts()
    print('%d passed, %d failed, %d skipped' % tuple(counts.values()))
    return counts['FAIL'] > 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
