#!/usr/bin/env python3
"""Plays tales on a pool of three blocks: every sentence must be true when it is said.

    python3 checks/tales.py [50]    a thousand of the grammar, and fifty of ./llama (or LLAMA)

It knows the sentences of examples/tales.py, but not how they come about. Ends with "N passed, N
failed, N skipped".
"""
import os
import random
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'examples'))
sys.dont_write_bytecode = True
from tales import tell  # noqa: E402  (the folder has to be known first)

SHE = 'Ada Cleo Dot Fay Ivy Lou Nina Pia Rosa Tess Uma Zoe'.split()
HE = 'Bo Eli Gus Hal Jim Ken Max Otto Quin Sam Vic Walt'.split()
NUMBERS = 'no one two three four five six seven eight nine'.split()
WORDS, WIDTH = range(60, 156), 80


class Pool:
    """The blocks and sequences of a tale, by name."""
    def __init__(self):
        self.size, self.free, self.signs = 0, [], set()
        self.came, self.length, self.table = {}, {}, {}  # of each sequence
        self.last = ''  # the last sequence that came

    def begin(self, size, *blocks):
        self.size, self.free = size, list(blocks)
        return len(set(blocks)) == 3 and max(blocks) < 'M'

    def come(self, seq, tokens):
        new = seq not in self.came and seq > 'M'
        self.last = seq
        self.came[seq], self.length[seq], self.table[seq] = tokens, 0, []
        return new

    def users(self, block):
        return sum(block in table for table in self.table.values())

    def filled(self, seq):  # slots of its last block
        return (self.length[seq] - 1) % self.size + 1

    def append(self, seq, tokens, take='', copy='', down=''):
        """Takes the blocks `take`, of which the first is a copy of `copy`; the sign of `down`, and
        no other, comes down."""
        table, taken, copied, signs = self.table[seq], [], [], set(self.signs)
        if table and self.filled(seq) < self.size and self.users(table[-1]) > 1:
            copied.append(table.pop())
        elif table and self.filled(seq) < self.size:
            self.signs.discard(table[-1])
        self.length[seq] += tokens
        while len(table) * self.size < self.length[seq]:
            taken.append(self.free.pop(0))
            table.append(taken[-1])
            self.signs.discard(taken[-1])
        return (taken, copied, signs - self.signs) == (take.split(), copy.split(), {*down.split()})

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


# Sentences, and what must be true of each; then it is so in the pool. {s} is a name, {s.his} a
# pronoun of that name, {n tokens} a number; and of (these|those), either may stand there.
RULES = [
    ('(Once upon a time|One day|Long ago) a block named {a} had {n empty slots}. {a.He} was first '
     'on the free list, before {a.his} friends {b} and {c}.',
     lambda p, a, b, c, n: p.begin(n, a, b, c)),
    ('The whole pool had room for {n tokens}.', lambda p, n: n == 3 * p.size),

    # A sequence comes.
    ('(Then|Soon) a sequence named {s} came (along|running|whistling) with {n tokens} (in a basket|'
     'in a teapot|on a sled). "(Is there room|May I come in)?" asked {s}. "(Come in|Welcome)!" '
     'said {a}, and left the free list.',
     lambda p, s, n, a: p.come(s, n) and p.free[0] == a),
    ('So {s} wrote {n tokens} into {a}, and {m slots} (was|were) left.',
     lambda p, s, n, a, m: n == p.came[s] and p.append(s, n, a) and m == p.size - n > 0),
    ('So {s} wrote {n tokens} into {a}. Now {a} was full.',
     lambda p, s, n, a: n == p.came[s] == p.size and p.append(s, n, a)),
    ('So {s} wrote {n tokens} into {a}, {b} and {c}.',
     lambda p, s, n, a, b, c: n == p.came[s] and p.append(s, n, f'{a} {b} {c}')),
    ('Later a sequence named {t} came with {n tokens}. But no block was free, so {t} (sat down|'
     'hummed a song) and waited. At last {s} was done and gave back {c}, then {b}, and then {a}. '
     'So {a} was first on the free list again, and {t} wrote {n tokens} there.',
     lambda p, s, t, n, a, b, c: p.come(t, n) and not p.free and p.end(s, f'{c} {b} {a}') and
     p.append(t, n, a)),
    ('Then a sequence named {t} came with twenty tokens. "May I wait?" asked {t}. "It will not '
     'help," said {a}. "You are too long." So {t} went home.',
     lambda p, t, a: p.come(t, 20) and p.free[0] == a and 20 > 3 * p.size),
    ('Later a sequence named {t} came with {n tokens} and took {b} and {c}. Then {s} had a new '
     'token, but {a} was full, and no block was free. As {t} had come last, {t.he} gave back {c} '
     'and {b}, but kept {t.his} tokens. So {s} wrote into {b}. Soon {s.he} was done and gave '
     'back {b} and {a}. Then {t} took {a} and {b}, and computed all the tokens again. And not '
     'a word was changed.',
     lambda p, s, t, n, a, b, c: p.come(t, n) and p.append(t, n, f'{b} {c}') and
     p.table[s] == [a] and p.filled(s) == p.size and not p.free and p.end(t, f'{c} {b}') and
     p.append(s, 1, b) and p.end(s, f'{b} {a}') and p.append(t, n, f'{a} {b}')),

    # It grows, alone or not.
    ('Soon {s} had a new token, but {a} was full. So {b} came from the free list. Now the table of '
     '{s} said: first {a}, then {b}. When {s} was done, {b} went back first, then {a}. '
     'So {a} was first on the free list again, before {b} and {c}. The last one back is first.',
     lambda p, s, a, b, c: p.filled(s) == p.size and p.append(s, 1, b) and
     p.table[s] == [a, b] and p.end(s, f'{b} {a}') and p.free == [a, b, c]),
    ('Later a sequence named {t} came and began just like {s}. So they shared {a}, and (nothing|'
     'not a token) was copied.',
     lambda p, s, t, a: p.come(t, 0) and p.share(s, t) and p.table[t] == [a]),
    ('(Soon|Then) {w} had a new token. But {o} still used {a}, so {w} must not write there. So {b} '
     'came from the free list and became a copy of {a}, and {w} wrote into {b}. Now {o} had {a}, '
     'and {w} had {b}.',
     lambda p, w, o, a, b: p.append(w, 1, b, copy=a) and p.table == {o: [a], w: [b]}),
    ('Later {o} wrote into {a}, too. Nobody else used {a.him} now, so no copy was made.',
     lambda p, o, a: p.users(a) == 1 and p.table[o] == [a] and p.append(o, 1)),
    ('And nobody lost a token.', lambda p: all(p.length.values())),
    ('(Soon|Then) {w} had a new token. But {a} was full, and nobody writes into a full block. '
     '{a.He} stayed shared. So {b} came from the free list, and {w} wrote into {b}. No copy was '
     'made. A full block is easy to share.',
     lambda p, w, a, b: p.filled(w) == p.size and p.append(w, 1, b) and p.users(a) == 2),
    ('At last {s} was done. But {t} still used {a}, so {a} did not go back to the free '
     'list. Then {t} had a new token. Nobody else used {a} now, so {t} wrote it there. Those who '
     'are alone need no copy.',
     lambda p, s, t, a: s != t and p.end(s) and p.table[t] == [a] and p.append(t, 1)),

    # It guesses.
    ('Then {s} guessed that the next token was "{x}", and wrote it into {a}. But the model said '
     '"{y}". So {s} took "{x}" back. Then {s.he} wrote "{y}" into the same slot, and nobody ever '
     'saw "{x}".',
     lambda p, s, a, x, y: x != y and p.append(s, 1) and p.rewind(s, 1) and p.append(s, 1) and
     p.table[s] == [a]),
    ('Then {s} was in a hurry and guessed two tokens. One went into {a}, and {b} came from the '
     'free list for the other. The model looked at both in one step.',
     lambda p, s, a, b: p.table[s] == [a] and p.filled(s) == p.size - 1 and p.append(s, 2, b)),
    ('Only the first was right. So {s} rewound one token, and {b} went back to the free list.',
     lambda p, s, b: p.rewind(s, 1, b)),
    ('Both were wrong. So {s} rewound two tokens, and {b} went back to the free list.',
     lambda p, s, b: p.rewind(s, 2, b)),
    ('Both were right. Now {b} held one token, and a step was saved.',
     lambda p, b: p.table[p.last][-1] == b and p.filled(p.last) == 1),
    ('A guess can do no harm.', lambda p: len(p.table) == 1),

    # It puts up a sign.
    ('A full block may have a sign, so {s} put one up on {a}.',
     lambda p, s, a: p.table[s] == [a] and p.filled(s) == p.size and not p.signs.add(a)),
    ('Soon {s} was done. {a} went to the back of the free list, behind {b} and {c}, and '
     'the sign stayed up.',
     lambda p, s, a, b, c: p.end(s, a) and p.free == [b, c, a] and a in p.signs),
    ('Then a sequence named {t} came with {n tokens}. The first {x} were the same. {t.He} read the '
     'sign and took {a}, with {m tokens} in place. Only the rest had to be computed. It went into '
     '{b}.',
     lambda p, t, n, x, m, a, b: p.come(t, n) and p.find(t, a) and x == NUMBERS[m] and
     n > m == p.size and
     p.append(t, n - m, b)),
    ('Later a sequence named {t} came with {n other tokens}. {t.He} took {b}, then {c}, and at '
     'last {a}, as no other block was free. So the sign came down. A sign must never tell a lie.',
     lambda p, t, n, a, b, c: p.come(t, n) and p.append(t, n, f'{b} {c} {a}', down=a)),
    ('Then {s} took the last token back, as {s.he} had a better one. Nobody else used {a}, so {s} '
     'wrote it there. But first the sign came down. A sign must never tell a lie.',
     lambda p, s, a: p.rewind(s, 1) and p.users(a) == 1 and p.append(s, 1, down=a)),
    ('A small tale needs only a small pool.', lambda p: True),
]


def compiled(sentence):
    """A regular expression, and the names and kinds of its groups."""
    parts = re.split(r'{(\w)(.*?)}', sentence)
    text = [re.sub(r'([.?])', r'\\\1', part).replace('(', '(?:') for part in parts[::3]]
    for i, (field, kind) in enumerate(zip(parts[1::3], parts[2::3])):
        group = r'\w+' if kind or field in 'xy' else '|'.join(SHE + HE)
        text[i] += f'({group})' if kind[:1] != ' ' else f'({group}{kind[:-1]}s?)'
    return re.compile(''.join(text)), list(zip(parts[1::3], parts[2::3]))


RULES = [(*compiled(sentence), true) for sentence, true in RULES]


def values(fields, groups):
    """The names and numbers in a sentence; None if they, or the pronouns, do not fit together."""
    known = {}
    for (field, kind), text in zip(fields, groups):
        value = right = text
        if kind[:1] == '.':
            value = known[field]
            right = {'he': 'she', 'He': 'She'}.get(kind[1:], 'her') if value in SHE else kind[1:]
        elif kind:
            word = text.split()[0]
            value = NUMBERS.index(word) if word in NUMBERS else 0
            right = word + (kind[:-1] if value == 1 else kind)
        if text != right or known.setdefault(field, value) != value:
            return None
    return known


def untrue(tale):
    """The first sentence of a tale that is not true, or not known."""
    pool, text = Pool(), ' '.join(tale.split())
    while text:
        found = [(regex.match(text), fields, true) for regex, fields, true in RULES]
        found = [rule for rule in found if rule[0]]
        if not found:
            return text
        match, fields, true = max(found, key=lambda rule: rule[0].end())
        known = values(fields, match.groups())
        try:
            if known is None or not true(pool, **known):
                return match[0]
        except (LookupError, ValueError):  # of a name that is not in the pool, for example
            return match[0]
        text = text[match.end():].lstrip()
    return '' if pool.size else 'nothing is told'


def misshapen(tale):
    """Too long, too short, or too wide for a terminal."""
    return len(tale.split()) not in WORDS or max(map(len, tale.split('\n'))) > WIDTH


def exchanges(tale):
    """The same tale with one name in one place exchanged for another one of it."""
    names = list(re.finditer(rf'\b({"|".join(SHE + HE)})\b', tale))
    for place in names:
        for name in {name[0] for name in names} - {place[0]}:
            yield tale[:place.start()] + name + tale[place.end():]


def names(tale):
    """Of each name in a tale, whether it is right: one that is introduced is new, any other one is
    known, and after these three words there is another one than before."""
    words, known, last, friends = re.findall(r'\w+', tale), set(), '', False
    for before, word in zip([''] + words, words):
        if word in SHE + HE:
            introduced = before in ('named', 'friends') or friends and before == 'and'
            another = before not in ('of', 'like', 'But') or word != last
            yield another and introduced == (word not in known)
            friends, last = before == 'friends', word
            known.add(word)


def llama(*options):
    """The tales that llama tells."""
    told = subprocess.run([os.environ.get('LLAMA', './llama'), *options], cwd=ROOT, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding='utf-8')
    return [tale.strip() for tale in re.split(r'=== request \d+ ===\n', told.stdout) if tale]


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
    report('they are as long and as wide as they should be', list(filter(misshapen, told)))
    report('none is true with one of its names exchanged',
           [tale for whole in told[:100] for tale in exchanges(whole) if not untrue(tale)])
    report('the one that llama tells is true', list(filter(untrue, llama())))
    samples = (sys.argv[1:] or ['50'])[0]
    told = llama('-t', '0.7', '--samples', samples)
    right = [right for tale in told for right in names(tale)]
    true = len(told) - len(list(filter(untrue, told)))
    report(f'at temperature 0.7, {sum(right)} of {len(right)} names in {samples} of llama are right'
           f', and {true} of these are true', [] if sum(right) >= 0.98 * len(right) > 0 else told)
    print(f'{results.count(True)} passed, {results.count(False)} failed, 0 skipped')
    return not all(results)


if __name__ == '__main__':
    sys.exit(main())
