#!/usr/bin/env python3
"""Plays tales on a pool of three blocks: every passage must be true when it is said.

    python3 checks/true_tales.py [N]

It knows what the passages of examples/tales.py say, but not how they come about. Judges a thousand
tales of the grammar, and N (50) that ./llama tells. Ends with "N passed, N failed, N skipped".
"""
import os
import random
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'examples'))
sys.dont_write_bytecode = True
from tales import BLOCKS, NUMBERS, SEQUENCES, SHE, tell  # noqa: E402  (after the path is set)


class Pool:
    """The blocks and sequences of a tale, by name."""
    def __init__(self):
        self.size, self.free, self.signs = 0, [], set()
        self.came, self.length, self.table = {}, {}, {}  # of each sequence

    def begin(self, size, *blocks):
        self.size, self.free = size, list(blocks)
        return len(set(blocks)) == 3

    def come(self, seq, tokens):
        new = seq not in self.came
        self.came[seq], self.length[seq], self.table[seq] = tokens, 0, []
        return new

    def users(self, block):
        return sum(block in table for table in self.table.values())

    def is_full(self, seq):
        return self.length[seq] % self.size == 0

    def append(self, seq, tokens, take=''):
        """The blocks `take` come from the free list, the first perhaps for a copy."""
        table, taken = self.table[seq], []
        if not self.is_full(seq) and self.users(table[-1]) > 1:
            table.pop()
        elif not self.is_full(seq):
            self.signs.discard(table[-1])
        self.length[seq] += tokens
        while len(table) * self.size < self.length[seq]:
            taken.append(self.free.pop(0))
            table.append(taken[-1])
            self.signs.discard(taken[-1])
        return taken == take.split()

    def rewind(self, seq, tokens, back=''):
        """The blocks `back` go back to the free list, in this order."""
        table, went = self.table[seq], []
        self.length[seq] -= tokens
        while table and (len(table) - 1) * self.size >= self.length[seq]:
            block = table.pop()
            if self.users(block) == 0:
                self.free.insert(len(self.free) if block in self.signs else 0, block)
                went.append(block)
        return went == back.split()

    def end(self, seq, back=''):
        return self.rewind(seq, self.length[seq], back)

    def share(self, parent, child):
        self.length[child], self.table[child] = self.length[parent], self.table[parent][:]
        return True

    def find(self, seq, block):
        self.free.remove(block)
        self.length[seq], self.table[seq] = self.size, [block]
        return block in self.signs


# What is in the first sentence of a passage; its names and numbers, in order; and what must be true
# of it. Then it is so in the pool. abc are blocks, stow sequences, mn numbers, xy guessed words; a
# capital letter is a pronoun of that name.
RULES = [
    ('a block named', 'anAAbc', 'begin(n, a, b, c)'),
    ('The whole pool', 'n', 'n == 3 * size'),
    ('a sequence named', 'sn', 'size == 0 and come(s, n)'),
    ('a block named', 'sanAAbcsa', '[*came] == [s] and begin(n, a, b, c)'),
    # A sequence comes.
    ('a sequence named', 'snsa', 'come(s, n) and free[0] == a'),
    ('tokens? into', 'snam', 'n == came[s] and append(s, n, a) and m == size - n'),
    ('tokens? into', 'snaa', 'n == came[s] == size and append(s, n, a)'),
    ('tokens? into', 'snabc', "n == came[s] and append(s, n, f'{a} {b} {c}')"),
    ('a sequence named', 'tnt', 'come(t, n) and not free'),
    ('At last', 'scbaatn', "end(s, f'{c} {b} {a}') and n == came[t] and append(t, n, a)"),
    ('came with twenty', 'ttat', 'come(t, 20) and 20 > 3 * size and free[0] == a'),
    ('a sequence named', 'tnb', 'come(t, n) and append(t, n, b)'),
    ('was done, and', 'sa', 'end(s, a) and free[0] == a'),
    ('had a new token', 'tbatba', 'is_full(t) and append(t, 1, a) and table[t] == [b, a]'),
    ('a sequence named', 'tnbc', "come(t, n) and append(t, n, f'{b} {c}')"),
    ('had a new token', 'satTcbTsbSbatab',
     "table[s] == [a] and is_full(s) and not free and end(t, f'{c} {b}') and append(s, 1, b) and "
     "end(s, f'{b} {a}') and append(t, came[t], f'{a} {b}')"),
    # It grows, alone or not.
    ('had a new token', 'sabsabsbaabc',
     "is_full(s) and append(s, 1, b) and table[s] == [a, b] and end(s, f'{b} {a}') and "
     "free == [a, b, c]"),
    ('began just like', 'tsa', 'come(t, 0) and share(s, t) and table[t] == [a]'),
    ('had a new token', 'woawbawboawb', 'append(w, 1, b) and table == {o: [a], w: [b]}'),
    (', too', 'oaA', 'users(a) == 1 and table[o] == [a] and append(o, 1)'),
    ('had a new token', 'waAbwb', 'is_full(w) and append(w, 1, b) and users(a) == 2'),
    ('At last', 'staa', 'end(s) and table[t][0] == a'),
    ('had a new token', 'tat', 'table[t] == [a] and append(t, 1)'),
    # It guesses.
    ('guessed that', 'sxaysxSyx',
     'x != y and append(s, 1) and rewind(s, 1) and append(s, 1) and table[s] == [a]'),
    ('guessed two', 'snab', 'table[s] == [a] and append(s, n, b) and length[s] == size + 1'),
    ('rewound', 'snb', 'rewind(s, n, b)'),
    ('Both were right', 'bn', '[b] == [*table.values()][0][1:] and n == 1'),
    # It puts up a sign.
    ('A full block may', 'sa', 'table[s] == [a] and is_full(s) and not signs.add(a)'),
    (r'Soon \w+ was done\.', 'sabc', 'end(s, a) and free == [b, c, a] and a in signs'),
    ('a sequence named', 'tnmTamb',
     'come(t, n) and find(t, a) and n > m == size and append(t, n - m, b)'),
    ('a sequence named', 'tnmTTsab',
     'come(t, n) and a in signs and share(s, t) and n > m == size and append(t, n - m, b)'),
    (r'Then \w+ was done and', 'tcba', "end(t, f'{c} {b}') and free == [b, c, a] and a in signs"),
    ('a sequence named', 'tnTbca', "come(t, n) and append(t, n, f'{b} {c} {a}') and not signs"),
    ('took the last token', 'sSas',
     'rewind(s, 1) and users(a) == 1 and append(s, 1) and not signs'),
]
KINDS = {letter: words for letters, words in (
    ('abc', BLOCKS), ('stow', SEQUENCES), ('mn', NUMBERS), ('xy', 'cheese honey moon rain'.split()))
    for letter in letters}
NUMBER = '|'.join(NUMBERS)
WORD = re.compile(rf'\b(?:{"|".join(BLOCKS + SEQUENCES + KINDS["x"])}|[Hh]e|his|him|[Ss]he|her|'
                  rf'(?:{NUMBER})(?= (?:\w+ )?(?:slot|token)| were))\b')
SINGULAR = re.compile(r'one (\w+ )?(slots|tokens|slot were)|'
                      rf'\b(?!one)({NUMBER}) (\w+ )?(slot\b|token\b|slots was)')


def values(letters, words):
    """What the letters stand for; None if the words are not of these kinds."""
    known = {}
    for letter, word in zip(letters, words):
        if letter.isupper():
            woman = known[letter.lower()] in SHE
            fits = word in (('she', 'She', 'her') if woman else ('he', 'He', 'his', 'him'))
        else:
            fits = word in KINDS[letter] and known.setdefault(letter, word) == word
        if not fits:
            return None
    known.update((n, NUMBERS.index(known[n])) for n in 'mn' if n in known)
    return known if len(letters) == len(words) else None


def is_true(pool, passage):
    text = ' '.join(passage)
    for begin, letters, true in RULES:
        known = values(letters, WORD.findall(text))
        if known and re.search(begin, passage[0]) and not SINGULAR.search(text):
            try:
                return eval(true, {name: getattr(pool, name) for name in dir(pool)}, known)
            except (LookupError, ValueError):  # of a name that is not in the pool, for example
                return False
    return False


def untrue(tale):
    """The first passage of a tale that is not true, or not known."""
    pool, passages = Pool(), []
    for sentence in re.split(r'(?<=\.) ', ' '.join(tale.split())):
        if not passages or any(re.search(begin, sentence) for begin, _, _ in RULES):
            passages.append([])
        passages[-1].append(sentence)
    return next((' '.join(passage) for passage in passages if not is_true(pool, passage)), '')


def exchanges(tale):
    """The same tale with one name in one place exchanged for another one of it."""
    names = list(re.finditer(rf'\b({"|".join(BLOCKS + SEQUENCES)})\b', tale))
    for place in names:
        for name in {name[0] for name in names} - {place[0]}:
            yield tale[:place.start()] + name + tale[place.end():]


def tell_tales(options):
    out = subprocess.run(f'./llama {options}', shell=True, cwd=ROOT, check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding='utf-8').stdout
    return re.split(r'=== request \d+ ===\n', out)[1:] or [out]


def told_of(name, end=''):
    """The tale after a prompt with this block, which the judge meets under a name that it knows."""
    tale, = tell_tales(f'-p "One day a block named {name} had four empty slots{end}"')
    return [tale] * all(name not in tale.split('.', 1)[1] or untrue(tale.replace(name, known))
                        for known in BLOCKS if known == name or known not in tale)


def main():
    results = []

    def report(name, wrong):
        results.append(not wrong)
        print(f'{"FAIL" if wrong else "ok  "}  tales: {name}')
        for tale in wrong[:3]:
            print(tale, '  untrue: ' + (untrue(tale) or 'nothing'), sep='\n')

    rng = random.Random(7)
    told = [tell(rng) for _ in range(1000)]
    report('a thousand of the grammar are true', list(filter(untrue, told)))
    report('their lines fit into a terminal',
           [tale for tale in told if max(map(len, tale.split('\n'))) > 80])
    report('none is true with one of its names exchanged',
           [tale for whole in told[:100] for tale in exchanges(whole) if not untrue(tale)])
    report('the one that llama tells is true', list(filter(untrue, tell_tales(''))))
    report('the first sampled one is true', list(filter(untrue, tell_tales('-t 0.7'))))
    samples = int(sys.argv[1]) if sys.argv[1:] else 50
    others = tell_tales(f'-t 0.7 --samples {samples}')
    wrong = list(filter(untrue, others))
    report(f'at temperature 0.7, {len(others) - len(wrong)} of {len(others)} are true',
           wrong if len(wrong) > samples / 8 or len(others) != samples else [])
    report('a prompt may end in a full stop', [tale for name in BLOCKS for tale in told_of(name, '.')])
    wrong = [tale for name in SEQUENCES for tale in told_of(name)]
    report(f'a block may have the name of a sequence: {12 - len(wrong)} of 12 are true',
           wrong if len(wrong) > 1 else [])
    print(f'{results.count(True)} passed, {results.count(False)} failed, 0 skipped')
    return not all(results)


if __name__ == '__main__':
    sys.exit(main())
