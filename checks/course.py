#!/usr/bin/env python3
"""Checks learn/: the build track, the exercises and the hunts.

    python3 checks/course.py track    all stages with right functions, with a wrong one each; what
                                      they tell and draw
    python3 checks/course.py hunts    each hunt shows its symptom, and accepts its function alone
    python3 checks/course.py house    all wrong functions, what make says to a reader, the
                                      exercises, hints in debuggers, other systems, the suite

One build of the engine serves the whole track. Each function first asks which stage the reader has
reached (CHECK_STAGE). It then panics as unwritten, or goes on with a wrong body (CHECK_WRONG), with
its simple body, which the walkthrough has, until a later stage extends it (CHECK_SIMPLE), or with
the engine's.
"""
import collections
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'learn'))
sys.dont_write_bytecode = True
import learn  # noqa: E402  (the folder has to be known first)
import mistakes  # noqa: E402
import plant  # noqa: E402
import walkthrough  # noqa: E402
from plant import call, find, read, write  # noqa: E402
from report import finish, report  # noqa: E402

os.environ['LC_ALL'] = 'C'
os.environ.pop('MAKEFLAGS', None)  # of the make that runs this: its own would warn
SCRATCH = 'build/course-%d' % os.getpid()
TRACK = SCRATCH + '/one/paged.cu.c'  # the engine with everything
ENGINE, SIMPLE = read('paged.cu.c'), read('walkthrough.md')
STAGES = learn.read_stages()


def report_if(name, *checks):
    """A check: reports the texts of those (condition, text) whose condition is true."""
    report(name, [text for wrong, text in checks if wrong])


def report_text(name, text, parts, *checks):
    """Likewise, and the text must have these parts, with any line breaks."""
    words = ' '.join(text.split())
    problems = ['it does not say "%s"' % part for part in parts if part not in words]
    problems += [problem for wrong, problem in checks if wrong]
    if problems:
        problems.append('but:\n' + text)
    report(name, problems)


def make_in(folder, *arguments, **environment):
    return call(['make', '-s', *arguments], cwd=folder, env={**os.environ, **environment},
                stdin=subprocess.DEVNULL, timeout=1200)


def in_pairs(function, items):
    """Each item of a list with the result of a function. Two run at once."""
    with ThreadPoolExecutor(2) as workers:
        yield from zip(items, workers.map(function, items))


def copy_project(folder, engine='#error "unfinished"\n'):
    """A copy of the project with an engine that is not finished."""
    plant.copy_project(folder)
    write(folder + '/learn/paged.cu.c', engine)


# ---- the track: one build with everything ----

Wrong = collections.namedtuple('Wrong', 'number stage name function body text')


def body_of(text, name):
    return text[find(text, name).body:find(text, name).end]


def wrong_bodies():
    """Those of mistakes.txt, and the simple bodies, in the stage that extends them."""
    wrong = []
    for mistake in plant.read_mistakes().values():
        for who in mistake.expect:
            if who.startswith('stage '):
                function, body = plant.edit_body(mistake)
                wrong.append(Wrong(len(wrong) + 1, int(who[6:]), mistake.name, function.name, body,
                                   ' & '.join(mistake.expect[who])))
    for stage in STAGES:
        for name in stage.again:
            wrong.append(Wrong(len(wrong) + 1, stage.number, 'simple ' + name, name,
                               body_of(SIMPLE, name), ''))
    return wrong


CHOICE = '''
static int check_stage, check_simple, check_wrong;

__attribute__((constructor)) static void read_environment(void)
{
    check_stage = atoi(getenv("CHECK_STAGE"));
    check_simple = atoi(getenv("CHECK_SIMPLE"));
    check_wrong = atoi(getenv("CHECK_WRONG"));
}

'''


def all_in_one(wrong):
    bodies, unwritten = {}, learn.skeleton(ENGINE, STAGES)
    engine = learn.skeleton(ENGINE, STAGES, len(STAGES)).replace('// ---- ', CHOICE + '// ---- ', 1)
    for stage in STAGES:
        for name in stage.write:
            choices = [('check_stage < %d' % stage.number, body_of(unwritten, name))]
            choices += [('check_wrong == %d' % one.number, one.body)
                        for one in wrong if one.function == name]
            later = [later.number for later in STAGES if name in later.again]
            if later:
                choices.append(('check_simple && check_stage < %d' % later[0],
                                body_of(SIMPLE, name)))
            bodies[find(engine, name)] = choices
    return mistakes.choose(engine, bodies)


def build_track(wrong):
    """Builds the tests of the stages on it, and says whether that worked."""
    write(TRACK, all_in_one(wrong))
    compiles, text = learn.build(SCRATCH + '/one/tests', ['-O0', '-w'], engine=TRACK)
    report_if('the track compiles', (not compiles, text))
    if plant.works('-fsanitize=thread'):
        learn.build(SCRATCH + '/one/races', learn.RACES, engine=TRACK)
    else:
        report('races in stages', skipped='this compiler has no ThreadSanitizer')
    return compiles


def on_track(program, stage, simple=0, wrong=0):
    """The command that runs a program with what a reader at this stage has."""
    return ['env', 'CHECK_STAGE=%d' % stage, 'CHECK_SIMPLE=%d' % simple, 'CHECK_WRONG=%d' % wrong,
            SCRATCH + '/one/' + program]


def run_test(test, *reader):
    """What a test prints if it fails, or nothing."""
    if not test.startswith('races_'):
        return learn.run_test(test, on_track('tests', *reader))
    if plant.works('-fsanitize=thread'):
        return learn.run_test(test, on_track('races', *reader))
    return None


def fails_with(stage, simple):
    """With the bodies of the stages so far, simple or not, their tests pass. Looking for races is
    slow: in their stage and in the last."""
    for before in STAGES[:stage.number]:
        looks = stage.number in (before.number, len(STAGES))
        for test in before.tests:
            said = None
            if looks or not test.startswith('races_'):
                said = run_test(test, stage.number, simple)
            if said:
                return ['%s fails:\n%s' % (test, said)]
    return []


def passes_without(stage):
    """Without the bodies of a stage, each of its tests fails, and says what to write and where. If
    it only extends a function, its first tests may be enough."""
    stop = r'\Astage %d: write |\b(%s)\(' % (stage.number, '|'.join(stage.again) or '$.')
    for test in stage.tests if stage.write else stage.tests[:2]:
        said = run_test(test, stage.number - 1, 1) or 'it passes'
        if not re.search(stop, said) or 'the beginning' in said:
            return ['%s:\n%s' % (test, said)]
    return []


def passes_with(wrong):
    """A wrong body fails a test of its stage, and the first that fails prints the text."""
    for test in STAGES[wrong.stage - 1].tests:
        said = run_test(test, wrong.stage, 0, wrong.number)
        if said:
            return ['it does not print "%s", but\n%s: %s' % (part, test, said)
                    for part in wrong.text.split(' & ') if part not in said]
    return [] if wrong.text == 'passes' else ['no test of stage %d fails' % wrong.stage]


def check_stages():
    for simple in 0, 1:
        for stage, problems in in_pairs(lambda stage: fails_with(stage, simple), STAGES):
            report('stages 1 to %d%s' % (stage.number, ', simple' if simple else ''), problems)
    for stage, problems in in_pairs(passes_without, STAGES):
        report('stage %d unwritten' % stage.number, problems)


def check_wrong(wrong):
    for one, problems in in_pairs(passes_with, wrong):
        report('wrong body of stage %d: %s' % (one.stage, one.name), problems)


def check_stories():
    """From the stage that has a story, llama tells it as with the finished engine; before, it stops
    at a function of that stage."""
    compiles, text = learn.build(SCRATCH + '/one/llama', ['-O2', '-w', '-DPAGED_NO_MAIN', TRACK],
                                 'examples/llama.c')
    report_if('llama on the track', (not compiles, text))
    for stage in [stage for stage in STAGES if stage.story]:
        if '--device standin' in ' '.join(stage.story):
            stage.story.append('-n 60')  # the beginning is enough of what takes long
        finished, told, before = (
            learn.tell(stage, on_track('llama', number, 1))
            for number in (len(STAGES), stage.number, stage.number - 1))
        report_if('story of stage %d' % stage.number,
                  (told != finished or not told[1], '%s\nis not\n%s' % (told, finished)),
                  ('free list' not in '\n'.join(told[0]), 'no tale'),
                  ('stage %d: write ' % stage.number not in '\n'.join(before[0]), str(before)))


def draw(stage, written):
    command = [*on_track('show', written, 1), str(stage.number)]
    text, status = plant.run(command, 20, learn.LIMITS)
    return re.sub(' +$', '', text, flags=re.M), status


def check_show():
    """make show draws each stage as on the finished engine, and stops at what is not written."""
    write(SCRATCH + '/one/show.c', read('learn/show.c'))  # beside its engine
    compiles, text = learn.build(SCRATCH + '/one/show', ['-O0', '-w'], SCRATCH + '/one/show.c')
    report_if('show on the track', (not compiles, text))
    for stage in STAGES:
        text, status = draw(stage, stage.number)
        before, _ = draw(stage, stage.number - 1)
        stops = 'stage %d: write ' % stage.number in before
        report_if('show of stage %d' % stage.number,
                  (status != 0 or 'WRONG' in text, text),
                  (max(map(len, text.splitlines())) > 80, 'too wide:\n' + text),
                  (draw(stage, len(STAGES)) != (text, status), 'the finished engine differs'),
                  (stage.write and not stops, before))
    quoted = re.search(r'```text\n(A gets n(?:.*\n)*?)```', read('README.md'))
    text, _ = draw(STAGES[7], 8)
    report_if('the frame in README.md', (not quoted or quoted[1] not in text, text))


def check_text():
    """The text counts the functions and the minutes as stages.txt does, and a skeleton compiles."""
    text = read('walkthrough.md') + read('README.md')
    rows = re.findall(r'^\| *(\d+) \|.*\| (\d+): (.*?) \| *(\d+) \|$', text, re.M)
    listed = [(str(stage.chapter), str(stage.number), stage.name, str(stage.minutes))
              for stage in STAGES]
    rows += re.findall(r'^\| *(\d+) \| \w.*? \| (\d+) \|', text, re.M)
    listed += re.findall(r'^## (\d+)\. .*\n\n\*Reading (\d+) minutes', text, re.M)
    minutes = [stage.minutes for stage in STAGES]
    written = sum(len(stage.write) for stage in STAGES)
    hours = {9: 'nine', 10: 'ten'}.get(round(sum(minutes) / 60))
    report_text('times of the walkthrough', text, [
        *('stage %d: %d minutes' % (stage.number, stage.minutes) for stage in STAGES),
        '%d functions are empty' % written, 'empties %d functions' % written,
        '%d at the keyboard' % sum(minutes[:5]), 'all twelve take some %s hours' % hours],
        (rows != listed, '%s\nis not\n%s' % (rows, listed)))
    write(SCRATCH + '/skeleton/paged.cu.c', learn.skeleton(ENGINE, STAGES))
    said = call([*plant.CC, '-O2', '-Wall', '-Wextra', '-I.', *plant.CPPFLAGS, '-c',
                 SCRATCH + '/skeleton/paged.cu.c', '-o', os.devnull])[1]
    report_if('no warning', (said != '', said))


# ---- what the commands say ----

def expect(name, status, parts, function, *arguments):
    """A command of learn.py or plant.py must print these parts, and return this status."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            actual = function(*arguments)
        except SystemExit as end:
            output.write(str(end))  # a text or a status
            actual = 1 if isinstance(end.code, str) else end.code
    report_text(name, output.getvalue(), parts,
                (actual != status, 'exit status %s' % (actual,)))


def reader_has(number, old='', new=''):
    """Writes the reader's engine: the functions of the stages so far, with an edit."""
    assert old in ENGINE, old
    write(learn.MINE, learn.skeleton(ENGINE.replace(old, new), STAGES, number))


# What make stage says of an edit: {name: (stage, old, new, exit status, parts)}.
STAGE_SAYS = {
    'right': (3, 'return i * c->head_dim;', 'int n = 1; return i * c->head_dim;', 0, [
        'Stages 1 to 3: all tests pass', 'Next: stage 4', 'unused variable', 'Now: make show']),
    'wrong': (8, 'if (filled > 0) block_poison', 'if (0) block_poison', 1, [
        'Stage 8, sharing: 4 of 5 tests pass', 'The first one that fails, copy_on_write',
        'learn/stage_tests.c:', 'A 7: 0 2; B', 'pool of 8 blocks', 'written; its contract',
        "engine's seq_append() in place of yours (stages 3 and 8)", 'SHOW=seq_append']),
    'stopped at a later stage': (4, 'to + i, job->dense_dtype, k)', 'to + i, c->dtype, k)', 1, [
        'f32_to_bf16(), of stage 12, is called, which nothing needs in stage 4',
        'because: the copy is of job->dense_dtype, here float32',
        "engine's gather_token() in place of yours (stage 4)"]),
    'misspelt': (
        2, 'block_poison(pool, block, 0);\n    r', 'block_posion(pool, block, 0);\n    r', 1,
        ['block_posion() is missing', 'learn/paged.cu.c:', 'declar']),
    'too early': (2, 'blocks[block].ref_count--;', 'prefix_find(pool, 0, 0);', 1, [
        'prefix_find() is called before it is declared']),
    'name of the tests': (
        1, 'HD static int ceil_div', 'static void release(int *a) { *a = 0; }\n'
        'HD static int ceil_div', 1, ['The tests have a release, too']),
    'return forgotten': (1, 'return i * c->head_dim;', ';', 1, [
        'error:', 'return-type', 'does not compile'])}
# What make story says: {name: (stages that are written, an edit, N, exit status, parts)}.
STORY_SAYS = {
    'no story yet': (4, '', '', 0, 1, [
        'speaks after stage 5. Still to write, in stage 5, attention: attend']),
    'story': (6, '', '', 6, 0, [
        'Stage 6 has no tale of its own. This is that of stage 5:',
        'A block with a sign may rest for long. The finished engine says the same']),
    'another story': (6, 'l += weight;', 'l += 0.2;', 0, 0, ['says something else from line 1 on']),
    'later story': (6, '', '', 9, 1, [
        'after stage 9. Still to write, in stage 7, paged kernel: merge'])}


def check_commands():
    learn.MINE, learn.BUILD = SCRATCH + '/mine/learn/paged.cu.c', SCRATCH
    sys.argv[1:] = 'stage', '1'
    expect('no file yet', 1, [
        'make stage N=1 runs the first tests', '0 of 2 tests pass', 'FAILED ceil_div_rounds_up',
        'to write; its contract is above it',
        'stage 1: write ceil_div(), in chapter 3 of walkthrough.md'], learn.main)
    expect('list', 0, ['to write: ceil_div, kv_offset'], learn.list_stages, learn.read_stages())
    write(learn.MINE, 'my work')
    sys.argv[1:] = ['make']
    expect('make learn, twice', 0, ['is left as it is', 'mv ' + learn.MINE], learn.main)
    report_if('my work is kept', (read(learn.MINE) != 'my work', 'it is gone'))
    for name, (number, old, new, status, parts) in STAGE_SAYS.items():
        reader_has(number, old, new)
        expect(name, status, parts, learn.stage_command, number, STAGES)
    for name, (number, old, new, asked, status, parts) in STORY_SAYS.items():
        reader_has(number, old, new)
        expect(name, status, parts, learn.story, asked, STAGES)

    reader_has(3, 'if (needed > pool->num_free)', 'if (0)')
    expect('show', 0, ['walkthrough.md:', 'Yours, ' + learn.MINE, 'if (0) return'],
           learn.show, 3, 'seq_append', STAGES)
    expect('show the copy', 0, ['before stage 11: remove', 'block_copy(pool, own, last)'],
           learn.show, 8, 'seq_append', STAGES)
    check_debugger(plant.LLDB, '-x', '--batch')
    check_debugger(plant.GDB, '-nx', '-batch', '-iex', 'set debuginfod enabled off')

    reader_has(7)
    expect('a race test that does not start', '', [': skipped: ThreadSanitizer does not start'],
           learn.run_races, 'races_attention_like_the_oracle', ['sh', '-c', 'exit 66'])
    run_races, learn.run_races = learn.run_races, lambda *_: ''
    expect('skipped races', 0, [
        'Stages 1 to 7: no test fails. Skipped: races_attention_like_the_oracle.', 'Next: stage 8'],
        learn.stage_command, 7, STAGES)
    learn.run_races = run_races


def check_debugger(debugger, *options):
    """make debug-stage stops in the reader's function."""
    name = debugger.name
    if not shutil.which(name):
        report(name, skipped='there is no ' + name)
        return
    learn.debugger = lambda: debugger
    with contextlib.redirect_stdout(io.StringIO()):
        words = learn.debug(3, STAGES, lambda name, arguments: arguments)
    path = 'PYTHONPATH=' + walkthrough.LLDB_PATH
    text, _ = plant.run(['env', path, name, *options, *words[1:]], 60)
    stopped = re.search(r'\bpanic ?\((.|\n)*\bseq_append ?\((.|\n)*\bmain ?\(', text)
    cannot = re.search('ptrace|personality', text)
    report(name, [] if stopped else [name + ' does not stop there:\n' + text],
           name + ' cannot run a program here' if cannot else '')


def check_make_show():
    folder = SCRATCH + '/make-show'
    copy_project(folder, learn.skeleton(ENGINE, STAGES, 2))
    text = make_in(folder, 'show')[1]
    os.remove(folder + '/learn/paged.cu.c')
    text += make_in(folder, 'show', 'N=12')[1]  # of the finished engine
    shown = re.findall(r'^[Ss]tage \d+[.:](?: write \w+)?|Aborted|Your engine goes this far|'
                       '^This is the finished engine', text, re.M)
    report_if('make show', (shown != [
        'Stage 1.', 'Stage 2.', 'Stage 3.', 'stage 3: write seq_append',
        'Your engine goes this far', 'This is the finished engine', 'Stage 12.'], text))


NO_LIMIT = """#!/bin/sh
# A shell without ulimit -v, such as that of macOS.
shift
script="ulimit() {
    case \\$* in *-v*) echo ulimit: -v: invalid >&2 ;; *) command ulimit \\$* ;; esac
}
$1"; shift
exec /bin/sh -c "$script" "$@"
"""


def check_make():
    """What a command is asked is never run by a shell. What it cannot do, it says. It works in a
    shell without a limit of memory."""
    folder = os.path.abspath(SCRATCH + '/make')
    copy_project(folder)
    os.remove(folder + '/learn/paged.cu.c')
    for target in 'read', 'stage', 'story', 'debug-stage', 'show', 'exercise', 'hunt', 'mutant':
        text = make_in(folder, target, *('%s=`touch run-%s`' % (name, target) for name in (
            'N', 'SHOW', 'ANSWER', 'BUG')), PAGER='cat')[1]
        report_if('make %s runs no command of N' % target,
                  (os.path.exists('%s/run-%s' % (folder, target)), text))

    for target, says in (('exercise', 'There is no exercise 99.'),
                         ('stage', 'There are stages 1 to 12.')):
        status, text = make_in(folder, target, 'N=99')
        report_text('make %s N=99' % target, text, [says], ('Traceback' in text, 'a traceback'),
                    (status == 0, 'exit status 0'))

    write(folder + '/sh', NO_LIMIT)
    os.chmod(folder + '/sh', 0o755)
    path = folder + ':' + os.environ['PATH']
    for target, says in ('show', 'Stage 1.'), ('stage', 'The first one that fails'):
        text = make_in(folder, target, 'N=1', 'SHELL=./sh', PATH=path)[1]
        report_text('make %s without ulimit -v' % target, text, [says],
                    ('ulimit' in text, 'it says ulimit'))


def check_without_standin():
    """In a build without a stand-in, all stages can be reached, and what needs one says so."""
    folder = SCRATCH + '/no-standin'
    copy_project(folder, learn.skeleton(ENGINE, STAGES, 12))
    flags = 'CPPFLAGS=' + ' '.join([*plant.CPPFLAGS, '-DPAGED_NO_STANDIN'])

    def says(parts, *arguments, only=False):
        text = make_in(folder, *arguments, flags)[1]
        text = re.sub(r'^make(\[\d+\])?: .*', '', text, flags=re.M)
        report_text('without a stand-in: make ' + ' '.join(arguments), text, parts,
                    (only and text.strip() != plant.NO_STANDIN, 'it says more'),
                    ('warning:' in text, 'a warning'))

    says(['Skipped in stages 7 and 12: what runs kernels. ' + plant.NO_STANDIN,
          'Stages 1 to 12: all tests pass'], 'stage', 'N=12')
    says(['This is that of stage 5', plant.NO_STANDIN, 'The finished engine says the same'],
         'story', 'N=7')
    says([plant.NO_STANDIN], 'hunt', 'N=2', only=True)
    says(['too few free blocks', 'make hunt N=1 ANSWER'], 'hunt', 'N=1')
    says([plant.NO_STANDIN], 'show', 'N=7', only=True)
    says(['Your copy of', plant.NO_STANDIN], 'exercise', 'N=7a')
    says([], 'paged')
    text = call([folder + '/paged'])[1]
    report_text('without a stand-in: ./paged', text, [plant.NO_STANDIN])


def check_read():
    parts = '# Walkthrough', '## 3.', 'void block_drop', '## 4.'
    for arguments, right in ([], (0, 1, 3)), (['N=3'], (1,)), (['N=3', 'SHOW=1'], (1, 2)):
        text = make_in('.', 'read', *arguments, PAGER='cat')[1]
        report_if(' '.join(['make read', *arguments]),
                  ([i for i in range(4) if parts[i] in text] != list(right), text),
                  (re.search(r'^(?:Look|Answer|```c simple)$', text, re.M), 'a mark is left'))
    table = '| a row | that is longer than the terminal |\n\n'
    folded = call(['awk', '-v', 'width=24', '-f', 'learn/read.awk'], input=(
        '9 and sixty-four are ln\n4. So there.\n\n\n' + table +
        '1. one two\n   three four `five six seven` eight\n2. nine\n'))[1]
    right = ('9 and sixty-four are\nln 4. So there.\n\n' + table + '1. one two three four\n'
             '   `five six seven`\n   eight\n2. nine\n')
    report_if('lines are folded', (folded != right, folded))


# ---- exercises ----

CODE = {name: text for name, text in learn.read_answers().items() if not name.isdigit()}


def code_problems(name, patch):
    """An exercise is first not solved, then solved by the patch that SHOW=1 prints."""
    folder, copied = SCRATCH + '/' + name, patch.splitlines()[0][6:]
    copy_project(folder)
    problems = []

    def says(part):
        text = make_in(folder, 'exercise', 'N=' + name)[1]
        if part not in text or 'warning:' in text:
            problems.append('expected "%s", got\n%s' % (part, text))
        return text

    if name in ('6a', '7a'):  # in a copy of the reader's engine, once it goes so far
        number, copied = int(name[0]), 'learn/paged.cu.c'
        write(folder + '/' + copied, learn.skeleton(ENGINE, STAGES, number - 2))
        says('as soon as make stage N=%d passes' % number)
        write(folder + '/' + copied, learn.skeleton(ENGINE, STAGES, number))
    elif copied == 'paged.cu.c':
        os.remove(folder + '/learn/paged.cu.c')
    mine = 'learn/my-%s.%s' % (name, 'py' if name == '12a' else 'c')
    task = says('\n%s: not yet' % name)
    if not task.startswith(name) or 'Your copy of ' + copied not in task:
        problems.append('no task:\n' + task)
    if read(folder + '/' + mine) != read(folder + '/' + copied):
        problems.append('it is no copy')
    shown = make_in(folder, 'exercise', 'N=' + name, 'SHOW=1')[1]
    if shown != patch:
        problems.append('SHOW=1 prints\n' + shown)
    _, text = call(['patch', '-s', mine], cwd=folder, input=shown)
    if text:
        problems.append('patch: ' + text)
    says('%s: solved' % name)
    return problems


def check_code():
    expect('list of exercises', 0, list(CODE), learn.exercise, '', '', STAGES)
    if not shutil.which('patch'):
        report('exercises', skipped='there is no patch')
        return
    patches = CODE.copy()
    if call([sys.executable, '-c', 'import z3'])[0]:
        del patches['12a']
        report('exercise 12a', skipped='z3 is not installed')
    for name, problems in in_pairs(lambda name: code_problems(name, patches[name]), patches):
        report('exercise ' + name, problems)


# ---- hunts ----

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


def check_hunts():
    bugs, healthy = plant.read_mistakes(), plant.build_hunt(0, None)
    for number, hunt in plant.read_hunts().items():
        report('hunt ' + number, list(hunt_problems(number, hunt, bugs[hunt['bug']], healthy)))


# What a reader sees in a debugger who follows the hint of a hunt.
SEEN = {'1': 'in 3 blocks of 4', '3': 'V  -1.0000  -1.0000   1.0000 & V   0.0000   0.0000',
        '4': '4 used, 4 free', '7': '0* 1* 2* 3* 4* 5* 6 7', '8': 'then 0 again'}
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


def check_hints():
    bugs, hunts = plant.read_mistakes(), plant.read_hunts()
    hinted = {number: hunt for number, hunt in hunts.items() if '`' in hunt['hint']}
    for number, hunt in hinted.items():
        plant.build_hunt(number, bugs[hunt['bug']])
    for name, hold in walkthrough.HOLD.items():
        missing = walkthrough.problem(name)
        if missing:
            report('hints of hunts in ' + name, skipped=missing)
            continue
        for number, problems in in_pairs(lambda n: hint_problems(n, hinted[n], hold), hinted):
            report('hint of hunt %s in %s' % (number, name), problems)


# ---- the parts ----

def track():
    wrong = wrong_bodies()
    chosen = [next(one for one in wrong if one.stage == stage.number) for stage in STAGES]
    if build_track(chosen):
        check_stages()
        check_wrong(chosen)
    check_stories()
    check_show()
    check_text()
    check_read()


def house():
    wrong = wrong_bodies()
    if build_track(wrong):
        check_wrong(wrong)
    check_commands()
    check_make_show()
    check_make()
    check_without_standin()
    check_code()
    check_hints()
    reader_has(len(STAGES))
    expect('all stages', 0, ['Stages 1 to 12: all tests pass', 'build/mine'], learn.stage_command,
           len(STAGES), STAGES)


def main():
    parts = {'track': track, 'hunts': check_hunts, 'house': house}
    if sys.argv[1:2] != sys.argv[1:] or sys.argv[-1] not in parts:
        raise SystemExit(__doc__)
    parts[sys.argv[1]]()
    return finish()


if __name__ == '__main__':
    os.makedirs(SCRATCH)
    try:
        sys.exit(main())
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
