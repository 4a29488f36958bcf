#!/usr/bin/env python3
"""Plays tales on a pool of three blocks: every passage must be true when it is said.

It knows what the passages of examples/tales.py say, but not how they come about. Judges a thousand
tales of the grammar, and those that ./llama tells.
"""
import os
import random
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'examples'))
sys.dont_write_bytecode = True
from report import finish, report  # noqa: E402  (after the path is set)
from tales import BLOCKS, NUMBERS, SEQUENCES, SHE, tell  # noqa: E402


class Pool:
    """The blocks and sequences of a tale, by name. A move returns whether it is as it was told."""
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

    def append(self, seq, tokens, *take):
        """These blocks come from the free list, the first perhaps for a copy."""
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
        return taken == list(take)

    def rewind(self, seq, tokens, *back):
        """These blocks go back to the free list, in this order."""
        table, went = self.table[seq], []
        self.length[seq] -= tokens
        while table and (len(table) - 1) * self.size >= self.length[seq]:
            block = table.pop()
            if self.users(block) == 0:
                self.free.insert(len(self.free) if block in self.signs else 0, block)
                went.append(block)
        return went == list(back)

    def end(self, seq, *back):
        return self.rewind(seq, self.length[seq], *back)

    def share(self, parent, child):
        self.length[child], self.table[child] = self.length[parent], self.table[parent][:]
        return True

    def put_up_sign(self, block):
        self.signs.add(block)
        return True

    def find(self, seq, block):
        self.free.remove(block)
        self.length[seq], self.table[seq] = self.size, [block]
        return block in self.signs


# What the first sentence of a passage has; the names and numbers of the passage, in order; and what
# must be true in the pool p. a, b, c are blocks; s, t, o, w are sequences; m, n are numbers; x, y
# are guessed words. A capital letter is a pronoun of that name.
RULES = [
    ('a block named', 'a n A A b c', lambda p, n, a, b, c: p.begin(n, a, b, c)),
    ('The whole pool', 'n', lambda p, n: n == 3 * p.size),
    ('a sequence named', 's n', lambda p, s, n: p.size == 0 and p.come(s, n)),
    ('a block named', 's a n A A b c s a',
     lambda p, s, n, a, b, c: [*p.came] == [s] and p.begin(n, a, b, c)),
    # A sequence comes.
    ('a sequence named', 's n s a', lambda p, s, n, a: p.come(s, n) and p.free[0] == a),
    ('tokens? into', 's n a m',
     lambda p, s, n, a, m: n == p.came[s] and p.append(s, n, a) and m == p.size - n),
    ('tokens? into', 's n a a',
     lambda p, s, n, a: n == p.came[s] == p.size and p.append(s, n, a)),
    ('tokens? into', 's n a b c',
     lambda p, s, n, a, b, c: n == p.came[s] and p.append(s, n, a, b, c)),
    ('a sequence named', 't n t', lambda p, t, n: p.come(t, n) and not p.free),
    ('At last', 's c b a a t n', lambda p, s, t, n, a, b, c: (
        p.end(s, c, b, a) and n == p.came[t] and p.append(t, n, a))),
    ('came with twenty', 't t a t',
     lambda p, t, a: p.come(t, 20) and 20 > 3 * p.size and p.free[0] == a),
    ('a sequence named', 't n b', lambda p, t, n, b: p.come(t, n) and p.append(t, n, b)),
    ('was done, and', 's a', lambda p, s, a: p.end(s, a) and p.free[0] == a),
    ('had a new token', 't b a t b a',
     lambda p, t, a, b: p.is_full(t) and p.append(t, 1, a) and p.table[t] == [b, a]),
    ('a sequence named', 't n b c', lambda p, t, n, b, c: p.come(t, n) and p.append(t, n, b, c)),
    ('had a new token', 's a t T c b T s b S b a t a b', lambda p, s, t, a, b, c: (
        p.table[s] == [a] and p.is_full(s) and not p.free and p.end(t, c, b) and p.append(s, 1, b)
        and p.end(s, b, a) and p.append(t, p.came[t], a, b))),
    # It grows, alone or not.
    ('had a new token', 's a b s a b s b a a b c', lambda p, s, a, b, c: (
        p.is_full(s) and p.append(s, 1, b) and p.table[s] == [a, b] and p.end(s, b, a)
        and p.free == [a, b, c])),
    ('began just like', 't s a',
     lambda p, s, t, a: p.come(t, 0) and p.share(s, t) and p.table[t] == [a]),
    ('had a new token', 'w o a w b a w b o a w b',
     lambda p, w, o, a, b: p.append(w, 1, b) and p.table == {o: [a], w: [b]}),
    (', too', 'o a A',
     lambda p, o, a: p.users(a) == 1 and p.table[o] == [a] and p.append(o, 1)),
    ('had a new token', 'w a A b w b',
     lambda p, w, a, b: p.is_full(w) and p.append(w, 1, b) and p.users(a) == 2),
    ('At last', 's t a a', lambda p, s, t, a: p.end(s) and p.table[t][0] == a),
    ('had a new token', 't a t', lambda p, t, a: p.table[t] == [a] and p.append(t, 1)),
    # It guesses.
    ('guessed that', 's x a y s x S y x', lambda p, s, a, x, y: (
        x != y and p.append(s, 1) and p.rewind(s, 1) and p.append(s, 1) and p.table[s] == [a])),
    ('guessed two', 's n a b', lambda p, s, n, a, b: (
        p.table[s] == [a] and p.append(s, n, b) and p.length[s] == p.size + 1)),
    ('rewound', 's n b', lambda p, s, n, b: p.rewind(s, n, b)),
    ('Both were right', 'b n', lambda p, n, b: [b] == [*p.table.values()][0][1:] and n == 1),
    # It puts up a sign.
    ('A full block may', 's a',
     lambda p, s, a: p.table[s] == [a] and p.is_full(s) and p.put_up_sign(a)),
    (r'Soon \w+ was done\.', 's a b c',
     lambda p, s, a, b, c: p.end(s, a) and p.free == [b, c, a] and a in p.signs),
    ('a sequence named', 't n m T a m b', lambda p, t, n, m, a, b: (
        p.come(t, n) and p.find(t, a) and n > m == p.size and p.append(t, n - m, b))),
    ('a sequence named', 't n m T T s a b', lambda p, s, t, n, m, a, b: (
        p.come(t, n) and a in p.signs and p.share(s, t) and n > m == p.size
        and p.append(t, n - m, b))),
    (r'Then \w+ was done and', 't c b a',
     lambda p, t, a, b, c: p.end(t, c, b) and p.free == [b, c, a] and a in p.signs),
    ('a sequence named', 't n T b c a', lambda p, t, n, a, b, c: (
        p.come(t, n) and p.append(t, n, b, c, a) and not p.signs)),
    ('took the last token', 's S a s', lambda p, s, a: (
        p.rewind(s, 1) and p.users(a) == 1 and p.append(s, 1) and not p.signs)),
]
BEGINS = re.compile('|'.join(begin for begin, _, _ in RULES))
KINDS = {letter: words for letters, words in (
    ('abc', BLOCKS), ('stow', SEQUENCES), ('mn', NUMBERS), ('xy', 'cheese honey moon rain'.split()))
    for letter in letters}
NUMBER = '|'.join(NUMBERS)
WORD = re.compile(rf'\b(?:{"|".join(BLOCKS + SEQUENCES + KINDS["x"])}|[Hh]e|his|him|[Ss]he|her|'
                  rf'(?:{NUMBER})(?= (?:\w+ )?(?:slot|token)| were))\b')
WRONG_NUMBER = re.compile(r'one (\w+ )?(slots|tokens|slot were)|'
                          rf'\b(?!one)({NUMBER}) (\w+ )?(slot\b|token\b|slots was)')


def values(letters, words):
    """What the letters stand for; None if the words are not of these kinds."""
    known, letters = {}, letters.split()
    for letter, word in zip(letters, words):
        if letter.isupper():
            woman = known[letter.lower()] in SHE
            fits = word in (('she', 'She', 'her') if woman else ('he', 'He', 'his', 'him'))
        else:
            fits = word in KINDS[letter] and known.get(letter, word) == word
            known[letter] = word
        if not fits:
            return None
    known.update((n, NUMBERS.index(known[n])) for n in 'mn' if n in known)
    return known if len(letters) == len(words) else None


def is_true(pool, passage):
    text = ' '.join(passage)
    words = WORD.findall(text)
    if WRONG_NUMBER.search(text):
        return False
    for begin, letters, true in RULES:
        known = values(letters, words)
        if known and re.search(begin, passage[0]):
            try:
                return true(pool, **known)
            except (LookupError, ValueError):  # of a name that is not in the pool, for example
                return False
    return False


def untrue(tale):
    """The first passage of a tale that is not true, or not known."""
    pool, passages = Pool(), []
    for sentence in re.split(r'(?<=\.) ', ' '.join(tale.split())):
        if not passages or BEGINS.search(sentence):
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


def wrong_start(name, end=''):
    """The tale after a prompt with this block, if it is untrue; or nothing. The judge does not know
    the name and meets it as that of a block which is not in the tale."""
    tale, = tell_tales(f'-p "One day a block named {name} had four empty slots{end}"')
    if name not in tale.split('.', 1)[1]:
        return tale
    for known in BLOCKS:
        if (known == name or known not in tale) and not untrue(tale.replace(name, known)):
            return ''
    return tale


def report_tales(name, wrong, allowed=0):
    """Shows what is wrong in the first of these tales, if there are more than are allowed."""
    wrong = list(filter(None, wrong))
    shown = [f'{tale}\nuntrue: {untrue(tale) or "nothing"}' for tale in wrong[:3]]
    report(f'tales: {name}', shown if len(wrong) > allowed else [])


def main():
    rng = random.Random(7)
    told = [tell(rng) for _ in range(1000)]
    report_tales('a thousand of the grammar are true', filter(untrue, told))
    report_tales('their lines fit into a terminal',
                 [tale for tale in told if max(map(len, tale.split('\n'))) > 80])
    report_tales('none is true with one of its names exchanged',
                 [tale for whole in told[:100] for tale in exchanges(whole) if not untrue(tale)])
    report_tales('the one that llama tells is true', filter(untrue, tell_tales('')))
    report_tales('the first sampled one is true', filter(untrue, tell_tales('-t 0.7')))
    sampled = tell_tales('-t 0.7 --samples 50')
    true = [tale for tale in sampled if not untrue(tale)]
    report_tales(f'of 50 at temperature 0.7, {len(true)} are true', filter(untrue, sampled), 6)
    report('tales: 50 were told', [] if len(sampled) == 50 else sampled)
    report_tales('a prompt may end in a full stop', [wrong_start(name, '.') for name in BLOCKS])
    report_tales('a block may have the name of a sequence', map(wrong_start, SEQUENCES), 1)
    return finish()


if __name__ == '__main__':
    sys.exit(main())
