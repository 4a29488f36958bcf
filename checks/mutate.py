#!/usr/bin/env python3
"""Mutates the engine by machine, runs the tests on each mutant, and keeps a ledger.

checks/bugs.txt holds bugs that a person thought of; this finds the other holes. It flips operators,
constants and conditions and deletes statements, one at a time. In paged.cu.c all mutants of some
sections are taken, and of the others, as of fast/fast.c, some that are drawn (DRAWS, below). A
mutant that no test kills is printed: either a test is missing, or the line is not needed, or the
mutant does what the original does.

checks/ledger.txt has the result of each mutant. A function has a line with its name and a digest of
its code, then its lines that were mutated, and under each the changes and what came of them:

    seq_rewind 5d3a9c01
      if (n == 0) return PAGED_OK;
        6:!= 4:0&& -> plan_goes_out_of_date
        9:1 = a rewind of one token is then none: written by hand

In column 6 of the line `==` was made `!=`. After `->` stands the test that killed these mutants (on
the CPU, unless "standin" follows), or `the sanitizer`, `no compile`, `same code`, or SURVIVED; after
`=`, written there by hand, why a survivor does the same. A run repeats the mutants of a function
whose digest has changed, those whose test is gone, and survivors, and adds those that are missing.
Reasons stay as long as function and line are there. A run that is stopped goes on from there.

    python3 checks/mutate.py   JOBS=2 at a time
    SECTION=kernels  only in sections whose title has this in it (a regular expression)
    LEDGER=0         repeats all of them
    LIST=1           lists what it would run, and runs nothing

Many mutants are compiled into one program, in which a function stands once for each of its mutants,
and T_MUTANT in the environment says which one is called. There a mutant meets the tests that take no
time, those first that have killed most. What is left is compiled on its own, with the fast paths
and without, and meets the longer ones; then the address sanitizer.

Left alone are prefetches, alignments and the number of threads in fast/fast.c, which change no
result, and what is compiled only for other processors, with OpenMP or by nvcc.
"""

import collections
import concurrent.futures
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading

CC = os.environ.get("CC", "cc")
JOBS = int(os.environ.get("JOBS", "2"))
SECTION = os.environ.get("SECTION", "")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "build", "mutate")
LEDGER = os.path.join(ROOT, "checks", "ledger.txt")
FILES = ("paged.cu.c", "fast/fast.c")
CORE = ("numbers", "calls")  # the first and the last section of paged.cu.c
ALL = 10**6
DRAWS = [  # sections, and how many of their mutants
    ("^(pool|sequences|prefix cache|K and V|calls)$", ALL),
    ("^(numbers|layout|memory|attention on the CPU|kernels)$", 300),
    ("^fast, ", 100),
]
SLOW = {"--cpu": 0.3, "--standin": 0.1}  # seconds: what takes longer is not among the first tests
UNFINISHED = "UNFINISHED"  # in the ledger: the quick tests have not killed it, the others are to come
ON_STANDIN = "memory|pool|K and V|calls|kernels|GPU|path"  # sections that do something else there
LONG = 6    # nor does one of the stand-in that takes this long run at all
LEFT_OUT = "tests_that_cannot_fail"  # it starts the tests
HUGE = ("bug_32_bit_offsets", "bug_32_bit_prefixes")  # not with --quick
FLAGS = ("-w", *os.environ.get("CPPFLAGS", "").split())
FIRST = (shutil.which("clang") or CC, "-O0", *FLAGS)  # the one that is faster
SECOND = (CC, "-O1", *FLAGS)
SANITIZER = (*FIRST, "-fsanitize=address")
FAST = "-DPAGED_FAST"
TOGETHER = 200  # mutants in one program
NO_RESULT = re.compile(r"prefetch|\bahead\b|(?<![.\w])threads\b|aligned\(")
PATIENCE = 5  # times what a test takes, and a second: what needs more processor time hangs
ELSEWHERE = re.compile(r"#if.*(__F16C__|_OPENMP|__AVX|__CUDA_ARCH__)|#ifdef __CUDACC__")

# What is between spaces is a binary operator: clang-format sees to that.
SWAPS = [
    (r" < ", [" <= ", " >= "]), (r" <= ", [" < ", " > "]), (r" > ", [" >= ", " <= "]),
    (r" >= ", [" > ", " < "]), (r" == ", [" != "]), (r" != ", [" == "]),
    (r" \+ ", [" - "]), (r" - ", [" + "]), (r" \* ", [" / "]), (r" / ", [" * "]),
    (r" % ", [" / "]), (r" && ", [" || "]), (r" \|\| ", [" && "]),
    (r" & ", [" | "]), (r" \| ", [" & "]), (r" << ", [" >> "]), (r" >> ", [" << "]),
    (r" \+= ", [" -= ", " = "]), (r" -= ", [" += "]), (r" \*= ", [" /= "]), (r" /= ", [" *= "]),
    (r"\+\+", ["--"]), (r"--", ["++"]), (r"(?<=[(=,&|?:] )!(?=[\w(])|(?<=\()!(?=[\w(])", [""]),
    (r"\bfmaxf\b", ["fminf"]), (r"\bexpf\b", ["expm1f"]), (r"\bcontinue\b", ["break"]),
]
CONSTANT = re.compile(r"(?<![\w.'])(0x[0-9a-f]+|\d+)(?![\w.'])")
STATEMENT = re.compile(r"\s+(?!return|break|continue|goto|case|else|if|for|while|do\b)"
                       r"[\w*(].*;$")
DECLARATION = re.compile(r"\s+(static |const |unsigned |void |enum |struct |typedef )*"
                         r"[A-Za-z_]\w* \*?\w+(\[.*\])*( =|,|;)")


def comment_starts(line):
    """Where the comment at the end of a line begins; text literals are not part of the core."""
    at = line.find("//")
    return len(line.rstrip()) if at < 0 else len(line[:at].rstrip())


def core(path, lines):
    """The numbers of the lines that can be mutated, each with the title of its section."""
    title, prefix = "", "fast, " if path != FILES[0] else ""
    inside, elsewhere = prefix != "", []  # elsewhere: of each #if, are its lines not compiled?
    for number, line in enumerate(lines):
        ruled = re.match(r"// ---- (.*?) -+$", line)
        if ruled:
            if title == CORE[1]:
                inside = False
            title = prefix + ruled.group(1)
            inside = inside or title == CORE[0]
        if line.startswith("#if"):
            elsewhere.append(bool(ELSEWHERE.match(line)))
        elif line.startswith("#else"):
            elsewhere[-1] = not elsewhere[-1]
        elif line.startswith("#endif"):
            elsewhere.pop()
        code = line[:comment_starts(line)]
        if line.startswith(("#", "//", "typedef")):
            continue
        if inside and not any(elsewhere) and code.strip():
            if not NO_RESULT.search(code):
                yield number, title


def changes_of(code):
    """All (start, end, replacement, what to call it) of one line of code."""
    quoted = [m.span() for m in re.finditer(r'"(\\.|[^"\\])*"', code)]
    outside = lambda at: not any(a <= at < b for a, b in quoted)
    for pattern, others in SWAPS:
        for m in re.finditer(pattern, code):
            for other in others if outside(m.start()) else []:
                yield m.start(), m.end(), other, other.strip() or "gone"
    for m in CONSTANT.finditer(code):
        if outside(m.start()):
            value = int(m.group(), 0)
            for other in sorted({value + 1, value - 1, 0} - {value, -1}):
                text = hex(other) if m.group().startswith("0x") else str(other)
                yield m.start(), m.end(), text, text
    m = re.match(r"(\s+(?:if|while) \()(.*)", code)
    if m:  # up to the parenthesis that closes the condition, if that is in this line
        depth, start = 1, len(m.group(1))
        for at in range(start, len(code)):
            depth += {"(": 1, ")": -1}.get(code[at], 0)
            if depth == 0:
                condition = code[start:at]
                yield start, at, "!(" + condition + ")", "!"
                yield start, at, "0 && (" + condition + ")", "0&&"
                if code.lstrip().startswith("if"):
                    yield start, at, "1 || (" + condition + ")", "1||"
                break
    whole = code.count("(") == code.count(")")
    if whole and STATEMENT.match(code) and not DECLARATION.match(code):
        yield len(code) - len(code.lstrip()), len(code), ";", ";"


FUNCTION = re.compile(r"[A-Za-z].*?\w\((?!\()")


def functions_of(lines):
    """Name, digest and first line of the function, or what else it is, that each line belongs to."""
    starts = [n for n, line in enumerate(lines)
              if FUNCTION.match(line) and not line.startswith(("typedef", "enum"))]
    names, result = collections.Counter(), [("?", "", -1)] * len(lines)
    for start, end in zip(starts, starts[1:] + [len(lines)]):
        m = re.search(r"(\w+)\((?!\()(\w*)", lines[start])
        name = m.group(2) if m.group(1) == "KERNEL" else m.group(1)
        names[name] += 1
        if names[name] > 1:
            name += "#%d" % names[name]
        code = " ".join(line[:comment_starts(line)].strip() for line in lines[start:end]
                        if not line.startswith("//"))
        digest = hashlib.sha256(" ".join(code.split()).encode()).hexdigest()[:8]
        result[start:end] = [(name, digest, start)] * (end - start)
    return result


Mutant = collections.namedtuple("Mutant", "path number title function digest text label new start")


def all_mutants(sources):
    mutants = []
    for path in FILES:
        lines = sources[path].split("\n")
        functions = functions_of(lines)
        times = collections.Counter()  # a line may stand in a function more than once
        for number, title in core(path, lines):
            line, (name, digest, start_line) = lines[number], functions[number]
            code = line[:comment_starts(line)]
            text, indent = code.strip(), len(line) - len(line.lstrip())
            times[name, text] += 1
            if times[name, text] > 1:
                text += "  (%d)" % times[name, text]
            seen = set()
            for start, end, other, label in changes_of(code):
                new = code[:start] + other + line[end:]
                label = "%d:%s" % (start - indent, label)
                if new not in seen and label not in seen:
                    seen |= {new, label}
                    mutants.append(Mutant(path, number, title, path + " " + name, digest, text,
                                          label, new, start_line))
    return mutants


def draw(mutants):
    """Those that the ledger is about. Which ones are drawn does not depend on the others."""
    rank = lambda m: hashlib.sha256("\n".join((m.function, m.text, m.label)).encode()).digest()
    chosen = set()
    for sections, number in DRAWS:
        some = [m for m in mutants if re.search(sections, m.title)]
        chosen |= set(sorted(some, key=rank)[:number])
    return [m for m in mutants if m in chosen]


class Function:
    """One of C, as text: made of copies of itself, and one that calls the right one."""

    SIGNATURE = re.compile(r"([\w ]*?\w[ *]+)(\w+)\((.*)\)$")

    def __init__(self, lines, start):
        self.lines, self.start, self.end = lines, start, start
        self.signature = None
        while lines[self.end].rstrip()[-1:] != "}" or lines[self.end][:1] == " ":
            self.end += 1
            if self.end == len(lines) or self.end > start + 200:
                return
        self.body = start
        while lines[self.body].rstrip()[-1:] not in "{}":
            self.body += 1
        head = " ".join(line.strip() for line in lines[start:self.body])
        if self.body == start:  # it is one line
            head = lines[start][:lines[start].find(" {")]
        self.signature = self.SIGNATURE.match(head)

    def has(self, number):
        return self.signature is not None and self.start <= number <= self.end

    def copy(self, number, changed, new):
        """As text, under another name; line `changed` is `new`."""
        lines = [new if n == changed else self.lines[n] for n in range(self.start, self.end + 1)]
        name = self.signature.group(2)
        lines[0] = re.sub(r"\b%s\(" % name, "%s__%d(" % (name, number), lines[0], count=1)
        return lines if "static" in lines[0] else ["static " + lines[0]] + lines[1:]

    def chooser(self, numbers):
        type_name, name, parameters = self.signature.groups()
        names = [] if parameters == "void" else [re.search(r"(\w+)$", p.strip()).group(1)
                                                 for p in parameters.split(",")]
        give = "" if re.search(r"\bvoid $", type_name) else "return "
        call = lambda n: "%s%s__%d(%s);" % (give, name, n, ", ".join(names))
        cases = ["    case %d: %s return%s" % (n, call(n), ";") if not give else
                 "    case %d: %s" % (n, call(n)) for n in numbers]
        return [self.signature.group(0), "{", "    switch (t_mutant) {", *cases, "    }",
                "    " + call(0), "}"]


CHOICE = """#include <stdlib.h>
static int t_mutant;
__attribute__((constructor)) static void t_choose_mutant(void)
{
    const char *number = getenv("T_MUTANT");
    t_mutant = number ? atoi(number) : 0;
}""".split("\n")


class Ledger:
    """{(function, line, label): result}; a result that begins with "= " is a reason."""

    def __init__(self, mutants):
        self.mutants, self.results, self.lock = mutants, {}, threading.Lock()
        digests = {m.function: m.digest for m in mutants}
        function = text = ""
        fresh = False
        with open(LEDGER, encoding="utf-8") if os.path.exists(LEDGER) else open(os.devnull) as file:
            for line in file:
                line = line.rstrip("\n")
                indent = len(line) - len(line.lstrip())
                if indent == 0 and line and not line.startswith("#"):
                    function, _, digest = line.rpartition(" ")
                    fresh = digests.get(function) == digest
                elif indent == 2:
                    text = line.strip()
                elif indent == 4:
                    labels, sign, result = re.match(r"\s+(.*?) (->|=) (.*)", line).groups()
                    for label in labels.split():
                        if sign == "=" or fresh:
                            self.results[function, text, label] = ("= " if sign == "=" else "") + result

    def result(self, m):
        return self.results.get((m.function, m.text, m.label))

    def forget(self, m):
        if not (self.result(m) or "").startswith("= "):
            self.results.pop((m.function, m.text, m.label), None)

    def note(self, m, result):
        with self.lock:
            self.results[m.function, m.text, m.label] = result

    def write(self):
        with self.lock, open(LEDGER + ".new", "w", encoding="utf-8") as file:
            print("# What came of each mutant: see checks/mutate.py, which writes this file.", file=file)
            function = text = None
            lines = collections.OrderedDict()
            for m in self.mutants:
                if self.result(m):
                    by_line = lines.setdefault((m.function, m.digest, m.text), collections.OrderedDict())
                    by_line.setdefault(self.result(m), []).append(m.label)
            for (name, digest, text), results in lines.items():
                if name != function:
                    print(name, digest, file=file)
                    function = name
                print("  " + text, file=file)
                for result, labels in results.items():
                    arrow = "" if result.startswith("= ") else "-> "
                    print("   ", *labels, arrow + result, file=file)
        os.replace(LEDGER + ".new", LEDGER)


def run_tests(program, device, tests, quick=True, limit=True, number=0):
    """The first of these tests that fails, or None. `tests` maps names to seconds."""
    if not tests:
        return None
    seconds = round((1 + PATIENCE * max(tests.values())) * (1 if limit else 5))

    def limits():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))

    last = next(iter(tests))
    suffix = " standin" if device == "--standin" else ""
    with subprocess.Popen([program, *(["--quick"] if quick else []), device, *tests],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=limits,
                          cwd=ROOT, env={**os.environ, "T_MUTANT": str(number)}) as run:
        try:
            for line in run.stdout:
                if re.match(rb"[a-z][a-z0-9_]+ +(standin )?(ok|\Z|\n)", line):
                    last = line.split()[0].decode()
                if b"FAILED: " in line:
                    return line.split()[-1].decode() + suffix
            return last + suffix if run.wait() != 0 else None
        finally:
            run.kill()


class Lab:
    """A copy of the sources, and the tests with the time they take."""

    def __init__(self):
        os.makedirs(OUT, exist_ok=True)
        self.sources = {}
        for path in ("tests.c", "paged.h", *FILES):
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                self.sources[path] = file.read()
        self.lines = {path: self.sources[path].split("\n") for path in FILES}
        self.kills = collections.Counter()
        self.names = re.findall(r"\b(?:TEST|BOTH|DEVICE_ONLY)\((?!name)(\w+)\)", self.sources["tests.c"])

    def compile(self, folder, command, changed):
        os.makedirs(os.path.join(folder, "fast"), exist_ok=True)
        for path, text in {**self.sources, **changed}.items():
            with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
                file.write(text)
        return subprocess.run([*command, "-ferror-limit=0" if "clang" in command[0] else "-w",
                               "tests.c", "-o", "tests", "-lm"], cwd=folder,
                              stderr=subprocess.PIPE, text=True)

    def build(self, folder, command, mutant=None):
        changed = {}
        if mutant:
            lines = list(self.lines[mutant.path])
            lines[mutant.number] = mutant.new
            changed[mutant.path] = "\n".join(lines)
        return self.compile(folder, command, changed).returncode == 0

    def together(self, folder, mutants, command):
        """Builds one program of many mutants of the same file. Returns {mutant: number}, without
        those that do not compile."""
        path = mutants[0].path
        by_start = collections.OrderedDict()
        for number, m in enumerate(mutants, 1):
            by_start.setdefault(m.start, []).append((number, m))
        bad = set()
        while True:
            lines, whose = [], {}
            at = 0
            for start in sorted(by_start):
                function = Function(self.lines[path], start)
                good = [(number, m) for number, m in by_start[start] if number not in bad]
                lines += self.lines[path][at:start] + function.copy(0, -1, "")
                for number, m in good:
                    copy = function.copy(number, m.number, m.new)
                    whose.update((len(lines) + i + 1, number) for i in range(len(copy)))
                    lines += copy
                lines += function.chooser([number for number, m in good])
                at = function.end + 1
            lines += self.lines[path][at:]
            after = next(n for n, line in enumerate(lines) if line.startswith("#include")) + 1
            lines[after:after] = CHOICE
            # A frame with all copies of an inlined function would not fit on a thread's stack.
            text = "\n".join(lines).replace("inline __attribute__((always_inline))", "inline")
            result = self.compile(folder, command, {path: text})
            found = {whose.get(int(line) - len(CHOICE)) for line in
                     re.findall(path + r":(\d+):\d+: (?:fatal )?error", result.stderr)}
            if result.returncode == 0:
                return {m: number for number, m in enumerate(mutants, 1) if number not in bad}
            found.discard(None)
            if not found:
                sys.exit("mutants do not compile together:\n" + result.stderr[-3000:])
            bad |= found

    def object_code(self, folder, *flags):
        subprocess.run([CC, "-O2", *flags, *FLAGS, "-DPAGED_NO_MAIN", "-c", "paged.cu.c",
                        "-o", "paged.o"], cwd=folder, check=True, stderr=subprocess.DEVNULL)
        with open(os.path.join(folder, "paged.o"), "rb") as file:
            return file.read()

    def prepare(self):
        """Measures the tests that no run has measured: {device: {name: seconds}}."""
        times = os.path.join(OUT, "times.json")
        self.seconds = {"--cpu": {}, "--standin": {}}
        if os.path.exists(times):
            with open(times, encoding="utf-8") as file:
                self.seconds = json.load(file)
        names = [name for name in self.names if name not in self.seconds["--cpu"] and
                 name not in self.seconds["--standin"] and not re.search(LEFT_OUT, name)]
        with tempfile.TemporaryDirectory(dir=OUT) as folder:
            if names and not self.build(folder, FIRST):
                sys.exit("the engine as it is does not compile\n0 passed, 1 failed, 0 skipped")
            for device in self.seconds if names else ():
                run = subprocess.run([os.path.join(folder, "tests"), "--quick", device, *names],
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT,
                                     text=True, errors="replace")
                if run.returncode != 0:
                    sys.exit("the engine as it is fails:\n" + run.stdout[-2000:] +
                             "\n0 passed, 1 failed, 0 skipped")
                self.seconds[device].update({m.group(1): float(m.group(2)) for m in re.finditer(
                    r"^(\w+) +(?:standin )?ok +([\d.]+) s", run.stdout, re.M)})
        for device in self.seconds:
            known = self.seconds[device].items()
            self.seconds[device] = {name: s for name, s in known if name in self.names}
        with open(times, "w", encoding="utf-8") as file:
            json.dump(self.seconds, file)

    def prepare_slowly(self):
        with tempfile.TemporaryDirectory(dir=OUT) as folder:
            self.build(folder, FIRST)
            self.original = [self.object_code(folder), self.object_code(folder, FAST)]

    def chosen(self, device, low, high):
        """The tests that take so long, those first that have killed most in the time they take."""
        some = {name: s for name, s in self.seconds[device].items() if low <= s < high}
        worth = lambda name: (self.kills[name, device] + 0.1) / (some[name] + 0.02)
        return {name: some[name] for name in sorted(some, key=worth, reverse=True)}

    def killer(self, program, title, number=0):
        """Of the quick tests."""
        devices = ["--cpu", "--standin"]
        if title in ("kernels", "fast, GPU"):
            devices.reverse()
        for device in devices:
            if device == "--standin" and not re.search(ON_STANDIN, title):
                continue
            found = run_tests(program, device, self.chosen(device, 0, SLOW[device]), number=number)
            if found:
                self.kills[found.split()[0], device] += 1
                return found
        return None

    def result(self, mutant):
        """Of one that the quick tests have not met yet, or have not killed."""
        folder = tempfile.mkdtemp(dir=OUT)
        try:
            program = os.path.join(folder, "tests")
            if not self.build(folder, (*FIRST, FAST), mutant):
                return "no compile"
            if self.object_code(folder) == self.original[0]:
                if self.object_code(folder, FAST) == self.original[1]:
                    return "same code"
            found = self.killer(program, mutant.title)
            if found:
                return found
            plain = mutant.path == FILES[0] and mutant.title not in ("calls", "kernels")
            self.build(folder, SECOND if plain else (*SECOND, FAST), mutant)
            more = {}
            if re.search(ON_STANDIN, mutant.title):
                more = self.chosen("--standin", SLOW["--standin"], LONG)
            return (run_tests(program, "--cpu", self.chosen("--cpu", SLOW["--cpu"], ALL)) or
                    run_tests(program, "--cpu", dict.fromkeys(HUGE, 1), quick=False) or
                    run_tests(program, "--standin", more) or
                    "SURVIVED")
        finally:
            shutil.rmtree(folder)

    def sanitized(self, program, _title, number=0):
        """Leaks, and reads of what is not there."""
        tests = self.chosen("--cpu", 0, 0.05)
        return run_tests(program, "--cpu", tests, limit=False, number=number) and "the sanitizer"


def run_quickly(lab, ledger, mutants, sanitized):
    """Notes those of many mutants that the quick tests kill, or the sanitizer when they run."""
    with tempfile.TemporaryDirectory(dir=OUT) as folder:
        numbers = lab.together(folder, mutants, SANITIZER if sanitized else FIRST)
        program = os.path.join(folder, "tests")
        killer = lab.sanitized if sanitized else lab.killer
        if killer(program, "kernels"):
            sys.exit("the engine as it is fails\n0 passed, 1 failed, 0 skipped")
        for m in mutants:
            if m not in numbers:
                ledger.note(m, "no compile")
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            futures = {pool.submit(killer, program, m.title, n): m for m, n in numbers.items()}
            for count, future in enumerate(concurrent.futures.as_completed(futures)):
                ledger.note(futures[future], future.result() or UNFINISHED)
                if count % 10 == 0:
                    ledger.write()
    ledger.write()


def run_slowly(lab, ledger, mutants):
    if mutants:
        lab.prepare_slowly()
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        futures = {pool.submit(lab.result, m): m for m in mutants}
        for future in concurrent.futures.as_completed(futures):
            ledger.note(futures[future], future.result())
            ledger.write()
            if future.result() == "SURVIVED":
                report(lab, futures[future])


def main():
    lab = Lab()
    mutants = draw(all_mutants(lab.sources))
    ledger = Ledger(mutants)
    others = ("no compile", "same code", "the sanitizer")
    todo = []
    for m in mutants:
        if not re.search(SECTION, m.title):
            continue
        result = ledger.result(m) or "SURVIVED"
        killed = not result.startswith("= ") and result not in others
        if os.environ.get("LEDGER") == "0" or killed and result.split()[0] not in lab.names:
            todo.append(m)
    print(f"{len(mutants)} mutants, {len(todo)} of them to be run", flush=True)
    if os.environ.get("LIST"):
        for m in todo:
            print(f"{m.path}:{m.number + 1}: {m.new.strip()}")
        return 0
    if todo:
        lab.prepare()
    for m in todo if os.environ.get("LEDGER") == "0" else ():
        ledger.forget(m)
    for m in mutants:  # what killed others may kill these
        killer = (ledger.result(m) or "?").split()
        lab.kills[killer[0], "--standin" if "standin" in killer else "--cpu"] += 1
    many = [m for m in todo if m.path == FILES[0] and m.start >= 0 and
            Function(lab.lines[m.path], m.start).has(m.number) and not ledger.result(m)]
    for start in range(0, len(many), TOGETHER):
        run_quickly(lab, ledger, many[start:start + TOGETHER], False)
    many = [m for m in todo if ledger.result(m) == UNFINISHED]
    for start in range(0, len(many), TOGETHER):
        run_quickly(lab, ledger, many[start:start + TOGETHER], True)
    run_slowly(lab, ledger, [m for m in todo if not ledger.result(m) or
                             ledger.result(m) in (UNFINISHED, "SURVIVED")])
    ledger.write()
    count = collections.Counter()
    for m in mutants:
        result = ledger.result(m) or "not run"
        kind = "equivalent" if result.startswith("= ") else result
        known = ("SURVIVED", "equivalent", "not run", UNFINISHED, *others[:2])
        count[kind if kind in known else "killed"] += 1
    equivalent = count["equivalent"] + count["same code"]
    print(f"{count['killed']} of {count['killed'] + count['SURVIVED']} killed; {equivalent} do the same, "
          f"{count['equivalent']} of them with a reason and the others in the same code; "
          f"{count['no compile']} do not compile; {count['not run']} were not run, "
          f"{count[UNFINISHED]} not to the end")
    print(f"{count['killed']} passed, {count['SURVIVED']} failed, "
          f"{equivalent + count['no compile']} skipped")
    return count["SURVIVED"] > 0


def report(lab, m):
    print(f"SURVIVED  {m.path}:{m.number + 1}, {m.function.split()[1]}, in {m.title}\n"
          f"    {lab.lines[m.path][m.number].strip()}\n    {m.new.strip()}", flush=True)


if __name__ == "__main__":
    sys.exit(__doc__ if sys.argv[1:] else main())
