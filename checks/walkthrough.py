#!/usr/bin/env python3
"""Holds the prose against the program: every snippet, output, session and name in the documents.

    python3 checks/walkthrough.py [--actual] [FILE.md ...]

Without a file: the DOCUMENTS, and then SAMPLE below with edits of a few characters, each of which
must be noticed. Run it after `make all build/llama-tests`, as commands start ./tour and the others.
--actual prints failing console and gdb blocks as they ought to be. What it looks at:

    ```c         stands word for word in one source; `...` alone on a line leaves lines out, of one
                 function or between a line and one that begins at the margin. A block `c simple`
                 is the first body of a function of two stages, which checks/learn.py tests
    ```console   `$ command`, then exactly what it prints to stdout; `...` stands for any lines. The
                 exit status is 0. `console needs=FILE` is skipped aloud without that file, which
                 is looked for in MODELS or, without this, here and in ../shared/models; likewise
                 `console needs=-OPTION` without that option of the compiler
    ```gdb       `$ gdb -x debugger/paged.py --args build/debug-tour ARGS`, then `(gdb) command`s,
                 each with what one sees; addresses, line numbers, process ids and blank lines do
                 not count. build/debug is ./paged, build/debug-tour is ./tour, both with -O0 -g3
    ```lldb      likewise, `$ lldb -Q -o "command script import debugger/paged.py" -- PROGRAM ARGS`.
                 lldb may show late what the program writes, so lines may come anywhere after their
                 command
    prose        what it names exists: functions, fields and other names of the code, files, links,
                 make targets, tests, options of programs, bugs, exercises, chapters, stages, scenes
    ```text      a drawing or a table: it is not checked
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENV = {**os.environ, 'LC_ALL': 'C', 'NO_COLOR': '1', 'TERM': 'dumb', 'DEBUGINFOD_URLS': '',
       'OMP_WAIT_POLICY': 'passive', 'MAKEFLAGS': ''}
DOCUMENTS = ['walkthrough.md', 'README.md', 'docs/systems.md', 'checks/sessions.md']
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
    return subprocess.run(command, shell=isinstance(command, str), cwd=ROOT, env=ENV, text=True,
                          errors='replace', timeout=600, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=stderr)


def load(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def read(pattern):
    """The files of the project that match, as {name: lines}."""
    return {os.path.relpath(path, ROOT): [line.rstrip() for line in load(path).split('\n')]
            for path in sorted(glob.glob(os.path.join(ROOT, pattern)))}


SOURCES = {name: lines for pattern in ('paged.*', 'fast/*.c', 'tests.c', 'examples/*.[ch]',
                                       'learn/hunts.c', 'learn/add.c')
           for name, lines in read(pattern).items()}
FUNCTIONS = {name for lines in (*SOURCES.values(), *read('learn/*.[ch]').values())
             for line in lines for name in re.findall(r'\b([A-Za-z_]\w*)\(', line.split('//')[0])}
WORDS = {word for pattern in ('Makefile', '*.[ch]', *(folder + '/*.[!bm]*' for folder in (
             'fast', 'examples', 'learn', 'checks', 'debugger')))
         for name, lines in read(pattern).items() if name != 'checks/walkthrough.py'
         for word in re.findall(r'--[a-z][\w-]*|\w+', '\n'.join(lines))}
TARGETS = set(re.findall(r'^([a-z-]+):', load(ROOT + '/Makefile'), re.M))
LISTED = load(ROOT + '/checks/check.sh')
BUGS = set(re.findall(r'^([a-z][\w-]*) +\|', load(ROOT + '/learn/mistakes.txt'), re.M))
PREDICT = load(ROOT + '/learn/predict.c')
ANSWERS = load(ROOT + '/learn/answers.txt')
# The numbers of what has numbers; the options that a program's source explains.
NUMBERED = {name: set(re.findall(place, load(f'{ROOT}/{path}'), re.M)) for names, path, place in (
    ('chapter|make read', 'walkthrough.md', r'^## (\d+)\.'),
    ('stage', 'learn/stages.txt', r'^stage (\d+)'), ('hunt', 'learn/hunts.txt', r'^hunt (\d+)'),
    ('scene|./tour', 'examples/tour.c', r'^    \{(\d+), "')) for name in names.split('|')}
OPTIONS = {'./' + os.path.basename(path): re.findall('--[a-z-]+', load(f'{ROOT}/{path}.c'))
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
    if not any(wanted.search('\n'.join(lines)) for lines in SOURCES.values()):
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
    come late, among other lines and those of later commands."""
    wrong = []
    for i, (command, expected) in enumerate(session):
        actual = actual + [prompt + command] + outputs[i]
        seen = sum(outputs[i:], []) if late else outputs[i]
        message = difference(clean(['...', *expected, '...'] if late else expected), clean(seen))
        wrong += [f'{prompt}{command}: {message}'] if message else []
    if wrong or not session:
        raise Failed((wrong or ['expected a command'])[0], actual)


def check_console(block):
    session, outputs = commands(block.lines, '$ '), []
    for command, _ in session:
        for name in block.needs:
            command = command.replace(name, found(name))
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


@functools.lru_cache(None)
def problem(debugger):
    """Builds both programs and says why it can hold no session here, or None."""
    for tool in (debugger, 'make') + ('stdbuf',) * (debugger == 'gdb'):
        if not shutil.which(tool):
            return f'there is no {tool}'
    if run(['make', '-s', *PROGRAMS], stderr=None).returncode:
        raise SystemExit(f'{PROGRAMS} do not compile')
    hold = gdb if debugger == 'gdb' else lldb
    got = normal(hold('build/debug-tour', [], ['break main', 'run', 'print argc'])[2])
    return None if {'$1 = 1', '(int) 1'} & set(got) else f'{debugger} cannot run a program here'


def check_session(block):
    if problem(block.kind):
        raise Skipped(problem(block.kind))
    expected, prompt = DEBUGGERS[block.kind], f'({block.kind}) '
    start = (block.lines or [''])[0]
    program, *arguments = shlex.split(start[len(expected):]) or ['']
    if not start.startswith(expected + ' ') or program not in PROGRAMS:
        raise Failed(f'expected first "{expected} build/debug..."')
    session = commands(block.lines[1:], prompt)
    hold = gdb if block.kind == 'gdb' else lldb
    outputs = hold(program, arguments, [command for command, _ in session])
    outputs = [[re.sub(*VARYING[0], line) for line in x if not NOISE.match(line)] for x in outputs]
    compare(session, prompt, outputs, normal, [start], hold == lldb)  # shown without the noise


def exists(*path):
    return bool(glob.glob(os.path.join(ROOT, *path)))


def found(name):
    """Where a file is that users download, or None. An option of the compiler is where it works."""
    if name.startswith('-'):
        probe = f'echo "int main(void) {{ return 0; }}" | cc {name} -x c - -o build/probe'
        return None if run(f'{probe} && build/probe').returncode else name
    for folder in [os.environ['MODELS']] if 'MODELS' in os.environ else ['', '../shared/models']:
        if exists(folder, name):
            return os.path.join(folder, name)
    return None


# What prose names, and how one knows that it exists: inside of backticks, and everywhere.
IN_CODE = [
    (r'\b(\w+_\w+)\(', lambda x: x in FUNCTIONS, 'is no function'),
    (r'^((?:[\w.*/-]+\.(?:c|h|md|sh|gp|txt|svg|patch)|\w+/\S+\.py))(?::\d+)?$',
     lambda x: x in ('stb_ds.h', 'learn/paged.cu.c') or exists(x.replace('/my-', '/')), 'is no file'),
    (r'(?:^(?=\w+$)|->|\b(?=[A-Za-z]+_))([A-Za-z]\w*)\b(?![/.-]\w)',
     lambda x: x in WORDS or x == 'quit' or exists(x), 'is no word of the sources'),
    (r'(?:^|[;&] )make ([a-z][a-z-]*)', lambda x: x in TARGETS, 'is no target of make'),
    (r'make exercise N=(\w+)', lambda x: f'"{x}"' in PREDICT or f'chapter {x}\n' in ANSWERS or
     exists(f'learn/{x}.c') and exists(f'learn/{x}.patch'), 'is no exercise'),
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
        spans, own_spans = (re.findall(r'`([^`]+)`', text) for text in (line, own))
        for texts, rules in (spans, IN_CODE[3:]), (own_spans, IN_CODE[:3]), \
                            ([line], [WITH_NUMBERS, link]), ([own], [ANYWHERE]):
            for pattern, known, message in rules:
                wrong += [f'line {number}: {"".join(x)} {message}' for text in texts
                          for x in re.findall(pattern, text) if not known(x)]
    if wrong:
        raise Failed('; '.join(wrong))


KINDS = {'c': check_c, 'console': check_console, 'gdb': check_session, 'lldb': check_session,
         'prose': check_prose}


def judge(block):
    """passed, failed or skipped, with a line for the reader, and the block as it ought to be."""
    where = f'{block.path}:{block.number}: {block.kind}'
    try:
        if block.kind not in KINDS:
            raise Failed('expected c, console, gdb, lldb, text or sh')
        for name in block.needs:
            if not found(name):
                raise Skipped(f'no {name}' + ': MODELS=folder python3 checks/walkthrough.py' *
                              (not name.startswith('-')))
        KINDS[block.kind](block)
        return 'passed', None, None
    except subprocess.TimeoutExpired as timeout:
        return 'failed', f'FAIL  {where}: {timeout}', None
    except Failed as failure:
        message, actual = (*failure.args, None)[:2]
        return 'failed', f'FAIL  {where}: {message}', actual
    except Skipped as reason:
        return 'skipped', f'skip  {where}: {reason}', None


def judge_all(blocks):
    for debugger in {block.kind for block in blocks} & set(DEBUGGERS):
        problem(debugger)  # before two threads build it
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(judge, blocks))


SAMPLE = r'''# Sample
`ceil_div()`, [the header](../paged.h), `checks/report.sh`, `make debug`, `./tests TEST`,
`attend_paged()`, `num_free`, chapter 3, `make mutant BUG=cow-never`, `./tour 3`, `./tests --list`,
`make check C=lint`.
```c
HD static int ceil_div(int64_t a, int b) { return (int)((a + b - 1) / b); }
...
static void free_list_remove(Pool *pool, int block)
...
}
```
```console
$ printf 'a\nb\n' | \
  cat
...
b
```
```gdb
$ gdb -x debugger/paged.py --args build/debug-tour 4
(gdb) break seq_append if n == 38
Breakpoint 1 at 0x1234: file paged.cu.c, line 1.
(gdb) run
...
Breakpoint 1, seq_append (seq=0x..., n=38) at paged.cu.c:1
1	    if (!seq || n < 0) return PAGED_BAD_ARGUMENT;
(gdb) print n
$1 = 38
```
```lldb
$ lldb -Q -o "command script import debugger/paged.py" -- build/debug-tour 4
(lldb) break seq_append if n == 38
(lldb) run
(lldb) print n
(int) 38
```
# In other systems
| `block_take()` | theirs(), `their.c` |
'''
EDITS = r'''ceil_div()>ceil_dif() | paged.h)>paged.k) | cks/rep>cks/red | make debug>make debud
sts >sts x | d_paged>d_pages | a + b - 1>a + b - 2 | free_list_remove>free_list_removf
\nb\n`>\nc\n` | ...\nb>..\nb | n=38>n=39 | $1 = 38>$1 = 39 | (int) 38>(int) 39 | ```c\n>```C\n
--list>--lst | C=lint>C=lind | num_f>num_g | block_take>block_tale | chapter 3>chapter 33
BUG=cow>BUG=cov | tour 3>tour 5
static void free_list_remove(Pool *pool, int block)>    block_poison(pool, block, 0);'''


def self_test():
    """SAMPLE passes as it is. With one of the EDITS, each OLD>NEW, one block of it fails. A debugger
    that is not here has been said to be missing in the DOCUMENTS."""
    text = SAMPLE.replace('./tests TEST', min(tests()))
    sample = parse('checks/SAMPLE', text)
    results = judge_all(sample)
    for edit in re.split(r' \| |\n', EDITS):
        edited = text.replace(*edit.replace('\\n', '\n').split('>'))
        changed = [b for a, b in zip(sample, parse('checks/SAMPLE', edited))
                   if (a.kind, a.lines) != (b.kind, b.lines)]
        states = [state for state, _, _ in judge_all(changed)]
        state = {('failed',): 'passed', ('skipped',): 'skipped'}.get(tuple(states), 'failed')
        results.append((state, state == 'failed' and f'FAIL  with the edit {edit}', None))
    return [result for result in results if result[0] != 'skipped']


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('--actual', action='store_true')
    parser.add_argument('names', nargs='*')
    options = parser.parse_args()
    paths = options.names or [f'{ROOT}/{x}' for x in DOCUMENTS]
    results = judge_all([block for path in paths
                         for block in parse(os.path.relpath(path, ROOT), load(path))])
    if not options.names:
        results += self_test()
    for _, line, block in results:
        for text in ([line] if line else []) + (block if block and options.actual else []):
            print(text)
    states = [state for state, _, _ in results]
    print(', '.join(f'{states.count(x)} {x}' for x in ('passed', 'failed', 'skipped')))
    return 'failed' in states


if __name__ == '__main__':
    sys.exit(main())
