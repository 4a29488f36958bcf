#!/usr/bin/env python3
"""Holds the prose against the program: every snippet, output, session and name in the documents.

    python3 checks/walkthrough.py [--actual] [FILE.md ...]

Without a file: the DOCUMENTS, and then the PLANTED edits of them, each of which must be noticed.
Run it after `make all build/llama-tests`, as commands start ./tour and the others. --actual prints
failing console and gdb blocks as they ought to be. What it looks at:

    ```c         stands word for word in one source; `...` alone on a line leaves lines out, of one
                 function or between a line and one that begins at the margin. A block `c simple`
                 is the first body of a function of two stages, which checks/course.py tests
    ```console   `$ command`, then exactly what it prints to stdout; `...` stands for any lines. The
                 exit status is 0. `console needs=-OPTION` is skipped aloud where the compiler does
                 not have that option
    ```gdb       `$ gdb -x debugger/paged.py --args build/debug-tour ARGS`, then `(gdb) command`s,
                 each with what one sees; addresses, line numbers, process ids and blank lines do
                 not count. build/debug is ./paged, build/debug-tour is ./tour, both with -O0 -g3
    ```lldb      likewise, `$ lldb -Q -o "command script import debugger/paged.py" -- PROGRAM ARGS`.
                 lldb may show late what the program writes, so lines may come anywhere after their
                 command
    prose        what it names exists: functions, fields and other names of the code, files, links,
                 make targets, tests, options of programs, bugs, exercises, chapters, stages, scenes
    ```text      a drawing or a table: it is not checked
    picture      docs/whole.svg: sections, what is in them, and what calls what. The pictures of
                 kernels say "thread block", and never "block" alone
"""

import argparse
import functools
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'learn'))
sys.dont_write_bytecode = True
import plant  # noqa: E402  (its folder has to be known first; it goes to the root of the project)
from plant import read  # noqa: E402
from report import finish, report  # noqa: E402

ENV = {**os.environ, 'LC_ALL': 'C', 'NO_COLOR': '1', 'TERM': 'dumb', 'DEBUGINFOD_URLS': '',
       'OMP_WAIT_POLICY': 'passive', 'MAKEFLAGS': '', 'TSAN_OPTIONS': '', 'ASAN_OPTIONS': ''}
DOCUMENTS = ['walkthrough.md', 'README.md', 'docs/systems.md', 'checks/sessions.md',
             'docs/whole.svg', 'docs/split.svg', 'docs/warps.svg', 'docs/loads.svg']
PLANTED = [  # edits of a document, in a block of each kind
    ('walkthrough.md', '// how many block tables name', '// how few block tables name'),
    ('walkthrough.md', '$1 = 2984', '$1 = 2985'),
    ('checks/sessions.md', '(size_t) 2984', '(size_t) 2985'),
    ('README.md', 'llama: 59 blocks', 'llama: 58 blocks'),
    ('README.md', '`examples/llama.c` serves', '`examples/lama.c` serves'),
    ('docs/whole.svg', 'attend() calls attend_row()', 'attend() calls attend_tokens()'),
    ('docs/whole.svg', '<g><title>section numbers', '<g><title>section words'),
    ('docs/split.svg', 'Many thread blocks', 'Many blocks')]
PROGRAMS = ['build/debug', 'build/debug-tour']
# The lldb of Debian 12 looks for its Python module in another place than this.
LLDB_PATH = ':'.join(['/usr/lib/python3/dist-packages', *glob.glob(os.path.dirname(
    os.path.realpath(shutil.which('lldb') or '')) + '/../lib/python3*/dist-packages')])
DEBUGGERS = {'gdb': '$ gdb -x debugger/paged.py --args',
             'lldb': '$ lldb -Q -o "command script import debugger/paged.py" --'}


class Failed(Exception):
    """What is wrong, in one line; and the block as it ought to be, if that is known."""


class Skipped(Exception):
    """Why something cannot be checked here."""


def run(command, stderr=subprocess.PIPE):
    """Runs a command without standard input; a list, or a string for the shell."""
    return subprocess.run(command, shell=isinstance(command, str), env=ENV, errors='replace',
                          encoding='utf-8', timeout=600, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=stderr)


def texts(*patterns):
    """{name: text} of the files that match."""
    return {path: read(path) for pattern in patterns for path in sorted(glob.glob(pattern))}


SOURCES = texts('paged.*', 'fast/*.c', 'tests.c', 'examples/*.[ch]', 'learn/hunts.c', 'learn/add.c')
FUNCTIONS = {name for text in (*SOURCES.values(), *texts('learn/*.[ch]').values())
             for name in re.findall(r'\b([A-Za-z_]\w*)\(', re.sub('//.*', '', text))}
WORDS = {word for text in texts('Makefile', '*.[ch]', *(folder + '/*.[!bm]*' for folder in (
             'fast', 'examples', 'learn', 'checks', 'debugger'))).values()
         for word in re.findall(r'--[a-z][\w-]*|\w+', text)}
TARGETS = set(re.findall(r'^([a-z-]+):', read('Makefile'), re.M))
LISTED = read('checks/check.sh')
BUGS = set(re.findall(r'^([a-z][\w-]*) +\|', read('learn/mistakes.txt'), re.M))
PREDICT = read('learn/predict.c')
ANSWERS = read('learn/answers.txt')
# The numbers of what has numbers; the options that a program's source explains.
NUMBERED = {name: set(re.findall(place, read(path), re.M)) for names, path, place in (
    ('chapter|make read', 'walkthrough.md', r'^## (\d+)\.'),
    ('stage', 'learn/stages.txt', r'^stage (\d+)'), ('hunt', 'learn/hunts.txt', r'^hunt (\d+)'),
    ('scene|./tour', 'examples/tour.c', r'^    \{(\d+), "')) for name in names.split('|')}
OPTIONS = {'./' + os.path.basename(path): re.findall('--[a-z-]+', read(path + '.c'))
           for path in ('tests', 'examples/tour', 'examples/llama', 'examples/replay')}


@functools.lru_cache(None)
def tests():
    """The commands that run one test."""
    programs = './tests', 'build/llama-tests'
    for program in programs:
        if not exists(program):
            raise SystemExit(f'There is no {program}: make all build/llama-tests')
    return {f'{program} {name}' for program in programs
            for name in run([program, '--list']).stdout.split()}


class Block:
    def __init__(self, path, number, info):
        self.path, self.number, self.lines = path, number, []
        self.kind, *self.needs = info.replace('needs=', '').split() or ['']


def parse(path, text):
    """The fenced blocks of a document, and what lies between them as a block of kind prose."""
    blocks, prose, fence = [], Block(path, 1, 'prose'), None
    if path.endswith('.svg'):
        prose.kind, prose.lines = 'picture', text.split('\n')
        return [prose]
    for number, line in enumerate(text.split('\n'), 1):
        is_fence = line.startswith('```')
        if is_fence and not fence:
            fence = Block(path, number, line[3:])
            blocks.append(fence)
        elif is_fence:
            fence = None
        elif fence:
            fence.lines.append(line.rstrip())
        if fence and fence.kind == 'sh':  # commands for the reader are prose, too
            line = f'`{line}`'
        prose.lines.append('' if is_fence or (fence and fence.kind != 'sh') else line)
    if fence:
        raise SystemExit(f'{path}:{fence.number}: the block has no end')
    return [block for block in blocks if block.kind not in ('text', 'sh')
            and block.needs != ['simple']] + [prose]


def pattern(lines):
    """These lines as a regular expression, in which `...` stands for any lines."""
    return ''.join('(?:.*\n)*?' if line.strip() == '...' else re.escape(line) + '\n'
                   for line in lines)


def difference(expected, actual):
    """The first line of an output that does not come where it should, in words, or None."""
    text = ''.join(line + '\n' for line in actual)
    if re.fullmatch(pattern(expected), text):
        return None
    come = max(n for n in range(len(expected) + 1) if re.match(pattern(expected[:n]), text))
    line = f'"{expected[come]}"' if come < len(expected) else 'the end'
    return f'expected {line} after {come} lines; got {actual[come:come + 1] or "the end"}'


def check_c(block):
    """From inside of a function, `...` goes on in this function, or to a line at the margin."""
    if all(line.strip() == '...' for line in block.lines):
        raise Failed('expected a line of a source')
    wanted = ''
    for line, after in zip(block.lines, block.lines[1:] + ['}']):
        inside = '' if re.match(r'\w|/', after) else r'(?![\w}])'
        wanted += f'(?:{inside}.*\n)*?' if line == '...' else re.escape(line) + '\n'
    wanted = re.compile('^' + wanted, re.M)
    if not any(map(wanted.search, SOURCES.values())):
        raise Failed('its lines stand in no source in this order, without others between them')


def commands(lines, prompt):
    """[command, lines of output] for each; a command goes on after a backslash."""
    result = []
    for line in lines:
        if line.startswith(prompt):
            result.append([line[len(prompt):], []])
        elif not result:
            raise Failed(f'expected first "{prompt}command", got "{line}"')
        elif not result[-1][1] and result[-1][0].endswith('\\'):
            result[-1][0] += '\n' + line
        else:
            result[-1][1].append(line)
    return result


def compare(session, prompt, outputs, clean, actual, late=False):
    """Fails with the first command whose output is not as expected, both once cleaned; if it may
    come late, among other lines and those of later commands. `actual`: what comes before them."""
    wrong = []
    for i, (command, expected) in enumerate(session):
        actual = actual + [prompt + command] + outputs[i]
        seen = sum(outputs[i:], []) if late else outputs[i]
        message = difference(clean(['...', *expected, '...'] if late else expected), clean(seen))
        if message:
            wrong.append(f'{prompt}{command}: {message}')
    if not session:
        raise Failed('expected a command')
    if wrong:
        raise Failed(wrong[0], actual)


def check_console(block):
    session, outputs = commands(block.lines, '$ '), []
    for command, _ in session:
        done = run(command)
        outputs.append([line.rstrip() for line in done.stdout.splitlines()])
        if done.returncode:
            outputs[-1] += [f'(exit status {done.returncode})'] + done.stderr.splitlines()
    compare(session, '$ ', outputs, list, [])


# What gdb says of the machine more than of the program.
NOISE = re.compile(r'Starting program|Run till exit|\[(New )?Thread|\[(At|De)tach|warning:|\s*$|'
                   r'Using host libthread_db|Reading symbols')
# What may differ from one machine, or one edit of the sources, to another.
VARYING = [(r'0x[0-9a-f]{4,}', '0x...'), (r'\.(c|h):\d+', r'.\1:N'), (r'\bline \d+', 'line N'),
           (r'^\d+\t', 'N\t'), (r'\bprocess \d+', 'process N'), (r'(reakpoint \d+)\.\d+,', r'\1,'),
           (r'^(\([\w *]+\)) \$\d+ = ', r'\1 '), (r'^  \(\w+\) \[', '  [')]  # lldb 14, not 19


def normal(lines):
    lines = [line.rstrip() for line in lines if not NOISE.match(line)]
    for varying in VARYING:
        lines = [re.sub(*varying, line) for line in lines]
    return lines


def gdb(program, arguments, session):
    """The lines after each command. stdbuf makes the program write its lines at once."""
    settings = ['debuginfod enabled off', 'confirm off', 'width 0', 'height 0',
                'style enabled off', 'exec-wrapper stdbuf -oL']
    line = ['gdb', '-q', '-nx', *(x for s in settings for x in ('-iex', 'set ' + s))]
    line += ['-x', 'debugger/paged.py']
    for command in session + ['kill']:
        line += ['-ex', 'echo \\n<<<>>>\\n', '-ex', command]
    done = run([*line, '-ex', 'quit', '--args', program, *arguments], stderr=subprocess.STDOUT)
    parts = done.stdout.split('\n<<<>>>\n')[1:]
    return [part.split('\n') for part in parts] + [['gdb has ended']] * len(session)


def lldb(program, arguments, session):
    """The lines after each command."""
    line = ['env', 'PYTHONPATH=' + LLDB_PATH, 'lldb', '-x', '--batch']  # without -Q: shows commands
    for command in ['command script import debugger/paged.py', *session]:
        line += ['-o', command]
    text, parts = run([*line, '--', program, *arguments], stderr=subprocess.STDOUT).stdout, []
    for command in session + ['']:
        part, _, text = text.partition(f'(lldb) {command}\n')
        parts.append(part.split('\n'))
    return parts[1:]


HOLD = {'gdb': gdb, 'lldb': lldb}


@functools.lru_cache(None)
def problem(debugger):
    """Builds both programs and says why it can hold no session here, or None."""
    for tool in ('gdb', 'stdbuf') if debugger == 'gdb' else ('lldb',):
        if not shutil.which(tool):
            return f'there is no {tool}'
    if run(['make', '-s', *PROGRAMS], stderr=None).returncode:
        raise SystemExit(f'{PROGRAMS} do not compile')
    got = normal(HOLD[debugger]('build/debug-tour', [], ['break main', 'run', 'print argc'])[2])
    if '$1 = 1' in got or '(int) 1' in got:
        return None
    return f'{debugger} cannot run a program here'


def check_session(block):
    if problem(block.kind):
        raise Skipped(problem(block.kind))
    expected, prompt = DEBUGGERS[block.kind], f'({block.kind}) '
    start = (block.lines or [''])[0]
    program, *arguments = shlex.split(start[len(expected):]) or ['']
    if not start.startswith(expected + ' ') or program not in PROGRAMS:
        raise Failed(f'expected first "{expected} build/debug..."')
    session = commands(block.lines[1:], prompt)
    outputs = HOLD[block.kind](program, arguments, [command for command, _ in session])
    outputs = [[re.sub(*VARYING[0], line) for line in x if not NOISE.match(line)] for x in outputs]
    compare(session, prompt, outputs, normal, [start], block.kind == 'lldb')  # shown without the noise


def exists(*path):
    return bool(glob.glob(os.path.join(*path)))


# What prose names, and how one knows that it exists: inside of backticks, and everywhere.
IN_CODE = [
    (r'\b(\w+_\w+)\(', lambda x: x in FUNCTIONS, 'is no function'),
    (r'^((?:[\w.*/-]+\.(?:c|h|md|sh|gp|txt|svg)|\w+/\S+\.py))(?::\d+)?$',
     lambda x: x in ('stb_ds.h', 'learn/paged.cu.c') or exists(x.replace('/my-', '/')),
     'is no file'),
    (r'(?:^(?=\w+$)|->|\b(?=[A-Za-z]+_))([A-Za-z]\w*)\b(?![/.-]\w)',
     lambda x: x in WORDS or x == 'quit' or exists(x), 'is no word of the sources'),
    (r'(?:^|[;&] )make ([a-z][a-z-]*)', lambda x: x in TARGETS, 'is no target of make'),
    (r'make exercise N=(\w+)', lambda x: f'"{x}"' in PREDICT or
     re.search(rf'^(chapter|exercise) {x}$', ANSWERS, re.M), 'is no exercise'),
    (r'((?:\./|build/llama-)tests [a-z]\w*)', lambda x: x in tests(), 'is no test'),
    (r'\bBUG=([\w-]+)', lambda x: x in BUGS, 'is no bug'),
    (r'\bC=(\w+)', lambda x: f'\n  {x} ' in LISTED, 'is not in the list of make check'),
    (r'((?:\./|build/)[\w-]+(?: [^ |;&<>]+)* --[\w-]+)', lambda x: set(
        re.findall('--[a-z-]+', x)) <= set(OPTIONS.get(x.split()[0], ())), 'is no command'),
    (r'^(--[a-z][\w-]*)', lambda x: x in WORDS, 'is no option')]
ANYWHERE = (r'\b([A-Za-z_]\w*)\(\)', lambda x: x in FUNCTIONS, 'is no function')
WITH_NUMBERS = (r'(?i)(%s)s? (?:N=)?((?:\d+(?:, | and | to )?)+)' % '|'.join(NUMBERED),
                lambda x: set(re.findall(r'\d+', x[1])) <= NUMBERED[x[0].lower()],
                'does not exist')


def check_prose(block):
    """Sections about other systems and further reading may name files and functions of others, but
    not in the first column of a table."""
    wrong, ours, folder = [], True, os.path.dirname(block.path)
    link = (r'\]\(([^)#:]+)(?:#[^)]*)?\)', lambda x: exists(folder, x), 'is a link to nowhere')
    for number, line in enumerate(block.lines, 1):
        if line.startswith('#'):
            ours = not re.search(r'other systems|read on', line)
        own = line if ours else ''.join(re.findall(r'^\|([^|]*)', line))
        code, own_code = (re.findall(r'`([^`]+)`', text) for text in (line, own))
        for parts, rules in (code, IN_CODE[3:]), (own_code, IN_CODE[:3]), \
                            ([line], [WITH_NUMBERS, link]), ([own], [ANYWHERE]):
            for names, known, message in rules:
                wrong += [f'line {number}: {"".join(x)} {message}' for part in parts
                          for x in re.findall(names, part) if not known(x)]
    if wrong:
        raise Failed('; '.join(wrong))


def check_picture(block):
    text, engine = '\n'.join(block.lines), SOURCES['paged.cu.c']
    if block.path != 'docs/whole.svg':
        alone = re.search(r'(?<!thread )\bblock[^<]*', text)
        if alone:
            raise Failed(f'a block of threads is a thread block: "{alone[0]}"')
        return
    pieces = re.split(r'^// ---- (.*?) -+$', engine, flags=re.M)[1:]
    source = dict(zip(pieces[::2], pieces[1::2]))
    shown = dict(re.findall(r'<title>section (.*?)</title>(.*?)</g>', text))
    wrong = [f'{name} is no section, or not shown' for name in source.keys() ^ shown.keys()]
    for section, names in shown.items():
        wrong += [f'{name}() is not in section {section}' for name in re.findall(r'(\w+)\(\)', names)
                  if not re.search(rf'^\w.*\b{name}\(.*[^;]$', source.get(section, ''), re.M)]
    for caller, callee in re.findall(r'<title>(\w+)\(\) calls (\w+)\(\)</title>', text):
        body = re.search(rf'^\w.*\b{caller}\([^;]*?\{{((.*\}}$)|(.|\n)*?^\}})', engine, re.M)
        if not body or not re.search(rf'\b{callee}\b', body[1]):
            wrong.append(f'{caller}() does not call {callee}()')
    if wrong:
        raise Failed('; '.join(wrong))


KINDS = {'c': check_c, 'console': check_console, 'gdb': check_session, 'lldb': check_session,
         'picture': check_picture, 'prose': check_prose}


def judge(block):
    """The problem with a block, why it is skipped, and what it ought to be: each may be nothing."""
    try:
        if block.kind not in KINDS:
            raise Failed('expected c, console, gdb, lldb, text or sh')
        for option in block.needs:
            if not plant.works(option):
                raise Skipped(f'no {option}')
        KINDS[block.kind](block)
        return '', '', []
    except subprocess.TimeoutExpired as timeout:
        return str(timeout), '', []
    except Failed as failure:
        message, actual = (*failure.args, [])[:2]
        return message, '', actual
    except Skipped as reason:
        return '', str(reason), []


def planted(path, old, new):
    """The one block of a document that an edit changes."""
    text = read(path)
    assert text.count(old) == 1, f'{path}: "{old}" occurs {text.count(old)} times'
    before, after = parse(path, text), parse(path, text.replace(old, new))
    changed, = [block for block, was in zip(after, before) if block.lines != was.lines]
    return changed


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('--actual', action='store_true')
    parser.add_argument('names', nargs='*')
    options = parser.parse_args()
    blocks = [block for path in options.names or DOCUMENTS for block in parse(path, read(path))]
    edited = [] if options.names else [planted(*edit) for edit in PLANTED]
    for debugger in {block.kind for block in blocks} & set(DEBUGGERS):
        problem(debugger)  # before two threads build it
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(judge, blocks + edited)
        for block, (message, skipped, actual) in zip(blocks + edited, results):
            name = f'{block.path}:{block.number}: {block.kind}'
            if block in edited:
                name += ', with a planted mistake'
                message = '' if message else 'it is not noticed'
            report(name, [message] if message else [], skipped)
            for line in actual if options.actual and block not in edited else []:
                print(line)
    return finish()


if __name__ == '__main__':
    sys.exit(main())
