#!/usr/bin/env python3
"""Mutates the engine by machine, and runs the tests on each mutant.

checks/bugs.txt holds bugs that a person thought of; this finds the other holes. It flips operators,
constants and conditions and deletes statements, one at a time, in the sections "numbers" to "calls"
of paged.cu.c and in fast/fast.c, whose sections are called "fast, CPU" and so on. All are compiled
with -DPAGED_FAST. A mutant that no test kills is printed: either a test is missing, or the line is
not needed, or the mutant does the same as the original. Those that do are listed with the reason in
checks/equivalent.txt, and do not count:

    line as it is | line of the mutant | reason

    N=200 mutants drawn with SEED=1, JOBS=2 at a time; N=0 makes all of them.
    SECTION=kernels  only in sections whose title has this in it (a regular expression)
    LONG=1           takes the long tests too, which find what the short ones find, as a rule
    LIST=1           lists the mutants and runs nothing

Results are kept in build/mutate/. A run that is repeated goes on where it was stopped, and tries
survivors again; it begins anew when engine or tests have changed. A mutant first meets the tests
that take no time in a build without optimization, then the others, and at last the first ones
again, under the address sanitizer.

Left alone are prefetches, alignments and the number of threads in fast/fast.c, which change no
result, and what is compiled only for other processors, with OpenMP or by nvcc.
"""

import concurrent.futures
import hashlib
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile

CC = os.environ.get("CC", "cc")
N = int(os.environ.get("N", "200"))
SEED = int(os.environ.get("SEED", "1"))
JOBS = int(os.environ.get("JOBS", "2"))
SECTION = os.environ.get("SECTION", "")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "build", "mutate")
FILES = ("paged.cu.c", "fast/fast.c")
CORE = ("numbers", "calls")  # the first and the last section of paged.cu.c
LEFT_OUT = "tests_that_cannot_fail"  # it starts the tests
LONG = "lane_orders|tvm_scripts|beam_search|speculation_(every|leaks)"
LONG_ON_STANDIN = LONG + "|same_bits"
if os.environ.get("LONG"):
    LONG = LONG_ON_STANDIN = "nothing_is_long"
SANITIZER = ("-O1", "-fsanitize=address")
FAST = ("-w", "-DPAGED_FAST", *os.environ.get("CPPFLAGS", "").split())
DEVICES = ("--cpu", "--standin")
NO_RESULT = re.compile(r"\bfetch\(|\.prefetch|(?<![.\w])threads\b|aligned\(")
PATIENCE = 15  # times what the tests take, and as many seconds: what needs more hangs
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
            no_result = function_of(lines, number) == "fetch" or NO_RESULT.search(code)
            if re.search(SECTION, title) and not no_result:
                yield number, title


def changes_of(code):
    """All (start, end, replacement) of one line of code."""
    quoted = [m.span() for m in re.finditer(r'"(\\.|[^"\\])*"', code)]
    outside = lambda at: not any(a <= at < b for a, b in quoted)
    for pattern, others in SWAPS:
        for m in re.finditer(pattern, code):
            for other in others if outside(m.start()) else []:
                yield m.start(), m.end(), other
    for m in CONSTANT.finditer(code):
        if outside(m.start()):
            value = int(m.group(), 0)
            for other in {value + 1, value - 1, 0} - {value, -1}:
                text = hex(other) if m.group().startswith("0x") else str(other)
                yield m.start(), m.end(), text
    m = re.match(r"(\s+(?:if|while) \()(.*)", code)
    if m:  # up to the parenthesis that closes the condition, if that is in this line
        depth, start = 1, len(m.group(1))
        for at in range(start, len(code)):
            depth += {"(": 1, ")": -1}.get(code[at], 0)
            if depth == 0:
                condition = code[start:at]
                yield start, at, "!(" + condition + ")"
                yield start, at, "0 && (" + condition + ")"
                if code.lstrip().startswith("if"):
                    yield start, at, "1 || (" + condition + ")"
                break
    if STATEMENT.match(code) and not DECLARATION.match(code):
        yield len(code) - len(code.lstrip()), len(code), ";"


def all_mutants(sources):
    """[(file, line number, section, the whole line as it becomes)], each once."""
    mutants = []
    for path in FILES:
        lines = sources[path].split("\n")
        for number, title in core(path, lines):
            line = lines[number]
            code = line[:comment_starts(line)]
            for start, end, text in changes_of(code):
                mutant = (path, number, title, code[:start] + text + line[end:])
                if mutant not in mutants[-40:]:
                    mutants.append(mutant)
    return mutants


def function_of(lines, number):
    while number > 0 and not re.match(r"[A-Za-z].*\w\((?!\()", lines[number]):
        number -= 1
    m = re.search(r"(\w+)\((?!\()", lines[number])
    return m.group(1) if m else "?"


def run_tests(program, tests):
    """The first test that fails, or None if all pass. `tests` maps a device to {name: seconds}."""
    for device, names in tests.items():
        if not names:
            continue
        last = "?"
        most = int(PATIENCE * (1 + sum(names.values())))

        def limits():
            resource.setrlimit(resource.RLIMIT_CPU, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        with subprocess.Popen([program, "--quick", device, *names], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, preexec_fn=limits, cwd=ROOT) as run:
            try:
                for line in run.stdout:
                    if re.match(rb"[a-z][a-z0-9_]+ +(standin )?(ok|\Z|\n)", line):
                        last = line.split()[0].decode()
                    if b"FAILED: " in line:
                        return line.split()[-1].decode() + " " + device
                if run.wait() != 0:
                    return "crash or hang after " + last + " " + device
            finally:
                run.kill()
    return None


def measure(program, names):
    """Runs the tests on the engine as it is, which must pass. Returns {(device, name): seconds}."""
    seconds = {}
    for device, left_out in zip(DEVICES, (LONG, LONG_ON_STANDIN)):
        chosen = [name for name in names if not re.search(left_out, name)]
        run = subprocess.run([program, "--quick", device, *chosen], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, cwd=ROOT, text=True, errors="replace")
        if run.returncode != 0:
            sys.exit("the engine as it is fails:\n" + run.stdout[-2000:] +
                     "\n0 passed, 1 failed, 0 skipped")
        for m in re.finditer(r"^(\w+) +(?:standin )?ok +([\d.]+) s", run.stdout, re.M):
            seconds[device, m.group(1)] = float(m.group(2))
    return seconds


class Lab:
    """A copy of the sources, the tests sorted by the time they take, and what is known already."""

    def __init__(self):
        os.makedirs(OUT, exist_ok=True)
        self.sources = {}
        for path in ("tests.c", "paged.h", *FILES):
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                self.sources[path] = file.read()
        self.lines = {path: self.sources[path].split("\n") for path in FILES}
        digest = hashlib.sha256("".join(sorted(self.sources.values())).encode()).hexdigest()
        self.log = os.path.join(OUT, digest[:12] + ".txt")
        self.known = {}
        if os.path.exists(self.log):
            with open(self.log, encoding="utf-8") as file:
                for line in file:
                    key, result = line.rstrip("\n").split("\t")
                    self.known[key] = result
        self.equivalent = {}
        with open(os.path.join(ROOT, "checks", "equivalent.txt"), encoding="utf-8") as file:
            for line in file:
                if line.strip() and not line.startswith("#"):
                    both, _, reason = line.strip().rpartition(" | ")
                    self.equivalent[both] = reason

    def build(self, folder, mutant=None, flags=("-O1",)):
        os.makedirs(os.path.join(folder, "fast"), exist_ok=True)
        for path, text in self.sources.items():
            if mutant and path == mutant[0]:
                lines = list(self.lines[path])
                lines[mutant[1]] = mutant[3]
                text = "\n".join(lines)
            with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
                file.write(text)
        return subprocess.run([CC, *flags, *FAST, "tests.c", "-o", "tests", "-lm"], cwd=folder,
                              stderr=subprocess.DEVNULL).returncode == 0

    def object_code(self, folder):
        subprocess.run([CC, "-O2", *FAST, "-DPAGED_NO_MAIN", "-c", "paged.cu.c", "-o", "paged.o"],
                       cwd=folder, check=True, stderr=subprocess.DEVNULL)
        with open(os.path.join(folder, "paged.o"), "rb") as file:
            return file.read()

    def prepare(self):
        with tempfile.TemporaryDirectory(dir=OUT) as folder:
            if not self.build(folder):
                sys.exit("the engine as it is does not compile\n0 passed, 1 failed, 0 skipped")
            program = os.path.join(folder, "tests")
            names = subprocess.run([program, "--list"], capture_output=True, text=True,
                                   check=True).stdout.split()
            names = [name for name in names if not re.search(LEFT_OUT, name)]
            seconds = measure(program, names)
            self.rounds = []  # of tests
            for low, high in ((0, 0.05), (0.05, 0.3), (0.3, 1e9)):
                self.rounds.append({device: {name: s for (d, name), s in seconds.items()
                                             if d == device and low <= s < high}
                                    for device in DEVICES})
            self.original = self.object_code(folder)
            self.sanitizer = self.build(folder, flags=SANITIZER)
            if self.sanitizer and run_tests(program, self.rounds[0]):
                sys.exit("the engine as it is fails under the address sanitizer\n"
                         "0 passed, 1 failed, 0 skipped")

    def result(self, mutant):
        reason = self.equivalent.get(self.change(mutant))
        if reason:
            return "equivalent: " + reason
        rounds = self.rounds
        if mutant[2] == "fast, CPU":  # it has no part in what kernels do
            rounds = [{"--cpu": tests["--cpu"]} for tests in rounds]
        folder = tempfile.mkdtemp(dir=OUT)
        try:
            program = os.path.join(folder, "tests")
            if not self.build(folder, mutant, ("-O0",)):
                return "does not compile"
            killer = run_tests(program, rounds[0])
            if killer:
                return "killed by " + killer
            self.build(folder, mutant)
            if self.object_code(folder) == self.original:
                return "equivalent: the same object code"
            for tests in rounds:
                killer = run_tests(program, tests)
                if killer:
                    return "killed by " + killer
            if self.sanitizer and self.build(folder, mutant, SANITIZER):
                killer = run_tests(program, rounds[0])  # leaks, and reads of what is not there
                if killer:
                    return "killed by the address sanitizer, " + killer
            return "SURVIVED"
        finally:
            shutil.rmtree(folder)

    def change(self, mutant):
        return self.lines[mutant[0]][mutant[1]].strip() + " | " + mutant[3].strip()

    def key(self, mutant):
        return f"{mutant[0]}:{mutant[1] + 1}: {mutant[3].strip()}"


def main():
    lab = Lab()
    mutants = all_mutants(lab.sources)
    unknown = set(lab.equivalent) - {lab.change(mutant) for mutant in mutants}
    for change in unknown if not SECTION else ():  # the line has changed since
        print(f"checks/equivalent.txt: no mutant is {change}")
    if unknown and not SECTION:
        print(f"0 passed, {len(unknown)} failed, 0 skipped")
        return 1
    random.Random(SEED).shuffle(mutants)
    chosen = mutants[:N] if N > 0 else mutants
    print(f"{len(mutants)} mutants, {len(chosen)} of them drawn with SEED={SEED}", flush=True)
    if os.environ.get("LIST"):
        for mutant in sorted(chosen):
            print(lab.key(mutant))
        return 0
    todo = [m for m in chosen if lab.known.get(lab.key(m), "SURVIVED") == "SURVIVED"]
    if todo:
        lab.prepare()
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool, open(lab.log, "a") as log:
        futures = {pool.submit(lab.result, mutant): mutant for mutant in todo}
        for future in concurrent.futures.as_completed(futures):
            mutant = futures[future]
            lab.known[lab.key(mutant)] = future.result()
            print(lab.key(mutant), future.result(), sep="\t", file=log, flush=True)
            if future.result() == "SURVIVED":
                report(lab, mutant)
    count = {"killed": 0, "SURVIVED": 0, "equivalent": 0, "does": 0}
    for mutant in chosen:
        known = lab.change(mutant) in lab.equivalent
        count["equivalent" if known else re.match(r"\w+", lab.known[lab.key(mutant)]).group()] += 1
        if mutant not in todo and lab.known[lab.key(mutant)] == "SURVIVED" and not known:
            report(lab, mutant)
    of = count["killed"] + count["SURVIVED"]
    print(f"{count['killed']} of {of} killed, {100 * count['killed'] / max(of, 1):.1f} %; "
          f"{count['equivalent']} equivalent, {count['does']} do not compile")
    print(f"{count['killed']} passed, {count['SURVIVED']} failed, "
          f"{count['equivalent'] + count['does']} skipped")
    return count["SURVIVED"] > 0


def report(lab, mutant):
    path, number, title, new = mutant
    lines = lab.lines[path]
    print(f"SURVIVED  {path}:{number + 1}, {function_of(lines, number)}, in {title}\n"
          f"    {lines[number].strip()}\n    {new.strip()}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
