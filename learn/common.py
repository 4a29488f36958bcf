"""What the programs of learn/ share: files, commands, compilers, functions of a C text."""
import collections
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ['LC_ALL'] = 'C'  # what compilers and debuggers say is read here
os.environ.update(TSAN_OPTIONS='halt_on_error=1', ASAN_OPTIONS='detect_leaks=0')
CC = shlex.split(os.environ.get('CC', 'cc'))
CPPFLAGS = shlex.split(os.environ.get('CPPFLAGS', ''))

NO_STANDIN = 'This build has no stand-in for a GPU, which needs x86-64 or AArch64.'

Function = collections.namedtuple('Function', 'name start body end')
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


def copy_project(folder):
    """A copy of what is not built, without what a reader has downloaded or written in exercises."""
    left_out = shutil.ignore_patterns('.git', 'build', 'docs', '*.csv', 'stories*', 'tok512.bin',
                                      'my-*')
    shutil.copytree('.', folder, ignore=left_out)


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


DEFINITION = re.compile(
    r'^(?:__attribute__\(\(\w+\)\) )?\w[\w *]*?\b(\w+)\('  # name
    r'[^;{}]*?(\s*\{(?:.*\}$|\n(?:.*\n)*?\}))', re.M)  # arguments, body


@functools.lru_cache(None)
def functions(text):
    """The functions that a C text defines, each with the places of its start, body and end."""
    return [Function(match[1], match.start(), match.start(2), match.end())
            for match in DEFINITION.finditer(text)]


def find(text, name):
    return next((function for function in functions(text) if function.name == name), None)
