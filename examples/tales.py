"""The model of ./llama: a grammar that makes up tales, and a Llama that is trained on them.

    python3 examples/tales.py --tales 3    prints three tales of the grammar
    python3 examples/tales.py --train      writes tales.bin and tales-tokenizer.bin beside this file

A tale says what the engine does while it does it: a block stands on the free list, a sequence comes
with tokens, and one of the plots below follows. The names of blocks begin with A to L, those of
sequences with M to Z. What a tale says about them is true: checks/true_tales.py plays it. The files
are those of llama2.c.

Training needs torch and takes some ten minutes of one core. The weights depend on the version of
torch, on its BLAS and on the processor: OMP_NUM_THREADS=1 with torch 1.13 and OpenBLAS of Debian 12
(python3-torch, libopenblas0) makes the very files that lie here. Any other gives a model that tells
other tales than README.md and walkthrough.md quote. Without OpenBLAS it takes five times as long.
"""
import collections
import functools
import random
import re
import struct
import sys

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, CONTEXT = 48, 128, 3, 4, 2, 688, 256
BATCH, WEIGHT, BOS = 16, 10, 1

BLOCKS = 'Ada Bo Cleo Dot Eli Fay Gus Hal Ivy Jim Ken Lou'.split()
SEQUENCES = 'Max Nina Otto Pia Quin Rosa Sam Tess Uma Vic Walt Zoe'.split()
SHE = 'Ada Cleo Dot Fay Ivy Lou Nina Pia Rosa Tess Uma Zoe'.split()
NUMBERS = 'no one two three four five six seven eight nine'.split()
PRONOUNS = 'he she his him her'.split()
GUESSES = 'cheese honey moon rain'.split()
LETTERS = 'abcdefghijklmnopqrstuvwxyz'

# Of training: steps, the learning rate, arguments of tell(), words that count. With any five names,
# the model learns to tell names apart; then it meets what users write, and at last the usual tales.
PHASES = ((5000, 0.01, (0.05, 5, 24), NUMBERS + PRONOUNS),
          (1600, 0.005, (0.04, 1, 24), NUMBERS + PRONOUNS + GUESSES),
          (1000, 0.005, (0.03, 1, 0), NUMBERS + PRONOUNS + GUESSES))

# One of [these|those] is chosen, the first most often; the braces are filled in; a slash ends a
# line. A word in capitals stands for a part that several plots share.

PARTS = dict(part.strip().split(maxsplit=1) for part in '''\
* BEGIN [OPENING ARRIVAL|MEETING]
* OPENING [Once upon a time|One day|Long ago] a block named {a} had {size:empty slot}. / {a.He} was
first on the free list, before {a.his} friends {b} and {c}. /
* POOL The whole pool had room for {room:token}. /
* ARRIVAL [Then|Soon] a sequence named {s} came [along|running|whistling] with {n:token} LUGGAGE. /
ENTRY
* MEETING [One day|Once upon a time|Long ago] a sequence named {s} left home with {n:token}
LUGGAGE. / Soon {s} met a block named {a}, who had {size:empty slot}. / {a.He} was first on the
free list, before {a.his} friends {b} and {c}. / ENTRY
* LUGGAGE [in a basket|in a teapot|on a sled]
* ENTRY "[Is there room|May I come in]?" asked {s}. "[Come in|Welcome]!" said {a}, and left the
free list. / So {s} wrote {n:token} into {where}. /
* SHARE Later a sequence named {t} came and began just like {s}. / So they shared {a}, and
[nothing|not a token] was copied.
* SIGN A full block may have a sign, so {s} put one up on {a}. /
* BACK Soon {s} was done. {a} went to the back of the free list, / behind {b} and {c}, and the sign
stayed up. /
* LIE A sign must never tell a lie.'''.split('* ')[1:])

# A plot begins with how many tokens come: some fill a part of a block, all but the last slot, all
# slots, or more than two blocks. The first plot is told most often.
PLOTS = '''\
* part BEGIN SHARE [Soon|Then] {w} had a new token. / But {o} still used {a}, so {w} must not write
there. / So {b} came from the free list and became a copy of {a}, / and {w} wrote into {b}. Now {o}
had {a}, and {w} had {b}. / [|Later {o} wrote into {a}, too. Nobody else used {a.him} now, so no
copy was made. /] And nobody lost a token.
* more BEGIN POOL Later a sequence named {t} came with {few:token}. / But no block was free, so {t}
[sat down|hummed a song] and waited. / At last {s} was done and gave back {c}, then {b}, and then
{a}. / So {a} was first on the free list again, and {t} wrote {few:token} there.
* part BEGIN SHARE At last {s} was done. / But {t} still used {a}, so {a} did not go back to the
free list. / Then {t} had a new token. Nobody else used {a} now, so {t} wrote it there. / Those who
are alone need no copy.
* part BEGIN Then {s} guessed that the next token was "{x}", and wrote it into {a}. / But the model
said "{y}". So {s} took "{x}" back. / Then {s.he} wrote "{y}" into the same slot, and nobody ever
saw "{x}".
* last BEGIN Then {s} was in a hurry and guessed two tokens. / One went into {a}, and {b} came from
the free list for the other. / The model looked at both in one step. [Only the first was right. /
So {s} rewound one token, and {b} went back to the free list|Both were right. / Now {b} held one
token, and a step was saved|Both were wrong. / So {s} rewound two tokens, and {b} went back to the
free list]. / A guess can do no harm.
* full BEGIN POOL Later a sequence named {t} came with {two:token} and took {b} and {c}. / Then {s}
had a new token, but {a} was full, and no block was free. / As {t} had come last, {t.he} gave back
{c} and {b}, but kept {t.his} tokens. / So {s} wrote into {b}. Soon {s.he} was done and gave back
{b} and {a}. / Then {t} took {a} and {b}, and computed all the tokens again. / And not a word was
changed.
* full BEGIN SIGN BACK Then a sequence named {t} came with {two:token}. The first {size} were the
same. / {t.He} read the sign and took {a}, with {size:token} in place. / Only the rest had to be
computed. It went into {b}.
* full BEGIN SHARE [Soon|Then] {w} had a new token. / But {a} was full, and nobody writes into a
full block. {a.He} stayed shared. / So {b} came from the free list, and {w} wrote into {b}. No copy
was made. / A full block is easy to share.
* full BEGIN Soon {s} had a new token, but {a} was full. So {b} came from the free list. / Now the
table of {s} said: first {a}, then {b}. / When {s} was done, {b} went back first, then {a}. / So
{a} was first on the free list again, before {b} and {c}. / The last one back is first.
* part BEGIN Soon a sequence named {t} came with {size:token} and took {b}. / Then {s} was done,
and {a} was first on the free list again. / Soon {t} had a new token, but {b} was full. So {a} came
from the free list. / Now the table of {t} said: first {b}, then {a}. / Blocks may stand in any
order.
* full BEGIN SIGN Later a sequence named {t} came with {two:token}. / The first {size} were the
same. {t.He} read the sign, so {t.he} and {s} shared {a}. / Only the rest had to be computed. It
went into {b}. / At last {s} was done. / But {t} still used {a}, so {a} did not go back to the free
list. / The same words are computed once.
* full BEGIN SIGN BACK Later a sequence named {t} came with {two:token} and took {b} and {c}. /
Then {t} was done and gave back {c}, then {b}. / They were first on the free list, {a} was the
last. / A block with a sign may rest for long.
* full BEGIN POOL SIGN BACK Later a sequence named {t} came with {many:other token}. / {t.He} took
{b}, then {c}, and at last {a}, as no other block was free. / So the sign came down. LIE
* full BEGIN SIGN Then {s} took the last token back, as {s.he} had a better one. / Nobody else used
{a}, so {s} wrote it there. But first the sign came down. / LIE
* part OPENING POOL Then a sequence named {t} came with twenty tokens. / "May I wait?" asked {t}.
"It will not help," said {a}. "You are too long." / So {t} went home. / ARRIVAL A small tale needs
only a small pool.'''.split('* ')[1:]


class Name(str):
    """Has pronouns: {a.he} is he or she."""
    def __getattr__(self, pronoun):
        return {'he': 'she', 'He': 'She'}.get(pronoun, 'her') if self in SHE else pronoun


class Number(int):
    """Is written as a word: {n} is two, {n:token} is two tokens."""
    def __format__(self, noun):
        return NUMBERS[self] + (noun and f' {noun}{"s" * (self != 1)}')


def tell(rng, strange=0, strangers=5, spelled=24):
    """A tale. What stands first is drawn most often. strange: how often it is as a user may begin
    it, with several sentences in a line, and any name for the first to be named, or for all five.
    spelled: how many names are made up for that."""
    def pick(choices, power=1.5):
        return choices[int(len(choices) * rng.random() ** power)]

    def number(high, low):
        return Number(pick(range(high, low - 1, -1), 2.3))

    def names(pool):
        return map(Name, sorted(pool, key=lambda name: rng.random() * (6 + pool.index(name))))

    come, text = pick(PLOTS).split(maxsplit=1)
    size = number(3 if 'POOL' in text else 4, 2)
    many = number(3 * size, 2 * size + 1)
    n = {'part': number(size - 1, 1), 'last': Number(size - 1), 'full': size, 'more': many}[come]
    where = '{a}, {b} and {c}' if n > size else '{a}. Now {a} was full'
    if n < size:
        where = f'{{a}}, and {Number(size - n):slot} {"was" if n == size - 1 else "were"} left'
    who = dict(zip('abcst', [*names(BLOCKS)][:3] + [*names(SEQUENCES)][:2]))
    other = {}
    if rng.random() < strange:  # names that are made up are not in SHE
        made_up = [''.join(rng.choices(LETTERS + 3 * 'aeiou', k=rng.randrange(2, 8))).capitalize()
                   for _ in range(spelled)]
        other = dict(zip('abcst', map(Name, rng.sample(BLOCKS + SEQUENCES + made_up, 5))))
    w, o = 'ts' if rng.random() < 0.6 else 'st'
    x, y, *_ = names(GUESSES)
    while re.search('[A-Z]{3}|\\[', text):
        text = re.sub('[A-Z]{3,}', lambda part: PARTS[part[0]], text)
        text = re.sub(r'\[([^][]*)\]', lambda choice: pick(choice[1].split('|')), text)
    if strangers == 1:
        first = re.search('{([as])', text)[1]
        other = {k: v for k, v in other.items() if k == first and v not in who.values()}
    who.update(other)
    text = text.replace('{where}', where).format(
        **who, w=who[w], o=who[o], x=x, y=y, size=size, n=n, few=number(size, 1),
        two=number(2 * size, size + 1), many=many, room=Number(3 * size))
    text = re.sub(' ?/ ?', '\n', ' '.join(text.split()))
    return text.replace('\n', ' ', rng.randrange(9) if other else 0)


split = re.compile(r' ?\w+| ?[^\w\s]+\n?').findall  # words; marks, with the end of the line


def merge(parts, text):
    """Joins each two neighbours that make up `text`."""
    for i in range(len(parts) - 1, 0, -1):
        if parts[i - 1] + parts[i] == text:
            parts[i - 1:i + 1] = [text]
    return parts


def learn_tokens(texts, words):
    """Byte pair encoding: adds the characters and what they merge into to `texts`, up to VOCAB.
    Returns a function from a word to its tokens, as encode() of llama_files.h finds them.
    words: {word: count}"""
    def encode(word):
        parts = list(word)
        for text in texts[-merges:]:
            merge(parts, text)
        return [*map(texts.index, parts)]

    texts += sorted({*LETTERS, *LETTERS.upper()}.union(*words))
    merges = VOCAB - len(texts)
    parts = {word: list(word) for word in words}
    for _ in range(merges):
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(parts[word], parts[word][1:]):
                pairs[''.join(pair)] += count
        texts.append(max(pairs, key=lambda text: (pairs[text], text)))
        for word in parts.values():
            merge(word, texts[-1])
    return functools.lru_cache(None)(encode)


def importance(word, facts):
    """How much a token of it counts in the loss. A tale becomes untrue by a name or another of the
    facts; the other words need not be learned as well."""
    return WEIGHT if re.match(' [A-Z]', word) or word.strip().lower() in facts else 1


def forward(weights, tokens):
    """The logits after each token. tokens: [rows][length]"""
    def norm(x, weight):
        return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)

    def heads(x, turns=1):  # [rows][HEADS][length][head_dim], each pair of elements turned
        pairs = x.unflatten(-1, (-1, head_dim // 2, 2)).transpose(1, 2).contiguous()
        x = torch.view_as_real(torch.view_as_complex(pairs) * turns).flatten(-2)
        return x.repeat_interleave(HEADS // x.shape[1], 1)

    length, head_dim = tokens.shape[1], DIM // HEADS
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, head_dim, 2) / head_dim)
    turns = torch.polar(torch.ones_like(angles), angles)
    future = torch.full((length, length), -torch.inf).triu(1)
    embedding, *layers, last = weights
    x = embedding[tokens]
    for rms_att, wq, wk, wv, wo, rms_ffn, w1, w2, w3 in zip(*layers):
        h = norm(x, rms_att)
        scores = heads(h @ wq.T, turns / head_dim ** 0.5) @ heads(h @ wk.T, turns).mT
        seen = (scores + future).softmax(-1) @ heads(h @ wv.T)
        x = x + seen.transpose(1, 2).flatten(2) @ wo.T
        h = norm(x, rms_ffn)
        x = x + torch.nn.functional.silu(h @ w1.T) * (h @ w3.T) @ w2.T
    return norm(x, last) @ embedding.T


def improve(weights, encode, rng, steps, rate, strange, facts):
    optimizer = torch.optim.AdamW([w.requires_grad_() for w in weights], betas=(0.9, 0.99))
    for step in range(steps):
        optimizer.param_groups[0]['lr'] = rate * min((step + 1) / 200, 1 - step / steps)
        tales = [split(' ' + tell(rng, *strange)) for _ in range(BATCH)]
        rows = [[(BOS, 1), *((token, importance(word, facts)) for word in tale
                             for token in encode(word)), (BOS, 1)] for tale in tales]
        batch = torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, rows)], True)
        tokens, counts = batch.unbind(-1)
        losses = torch.nn.functional.cross_entropy(
            forward(weights, tokens[:, :-1]).mT, tokens[:, 1:], reduction='none')
        loss = (losses * counts[:, 1:]).sum() / counts[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f'step {step + 1} of {steps}: loss {loss.item():.3f}', flush=True)


def write(name, *parts):
    with open(f'{sys.path[0]}/{name}', 'a+b') as file:
        file.seek(0)
        same = file.read() == b''.join(parts)
        file.truncate(0)
        file.write(b''.join(parts))
    print(name, 'is what it was.' if same else 'differs: its tales are not those of the texts.')


def train():
    global torch
    import torch
    torch.manual_seed(1)
    rng = random.Random(1)
    texts = ['<unk>', '\n<s>\n', '\n</s>\n', *(f'<0x{byte:02X}>' for byte in range(256))]
    words = collections.Counter(word for _ in range(2000) for word in split(' ' + tell(rng)))
    encode = learn_tokens(texts, words)
    narrow, wide = (DIM // HEADS * KV_HEADS, DIM), (HIDDEN, DIM)
    shapes = (DIM,), (DIM, DIM), narrow, narrow, (DIM, DIM), (DIM,), wide, wide[::-1], wide
    weights = [torch.randn(VOCAB, DIM) / 16, *(
        torch.randn(LAYERS, *shape) / 16 + (len(shape) == 1) for shape in shapes), torch.ones(DIM)]
    for phase in PHASES:
        improve(weights, encode, rng, *phase)
    write('tales.bin', struct.pack('<7i', DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, CONTEXT),
          *(struct.pack(f'<{x.numel()}f', *x.bfloat16().flatten().tolist()) for x in weights),
          bytes(4 * CONTEXT * DIM // HEADS))  # cosines and sines, which llama computes
    write('tales-tokenizer.bin', struct.pack('<i', max(map(len, texts))), *(
        struct.pack('<fi', -i, len(text)) + text.encode()  # what comes first merges first
        for i, text in enumerate(texts)))


if __name__ == '__main__':
    if sys.argv[1:] == ['--train']:
        train()
    elif sys.argv[1:2] == ['--tales']:
        for _ in range(int(sys.argv[2])):
            print(tell(random) + '\n')
    else:
        sys.exit(__doc__)
