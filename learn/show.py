#!/usr/bin/env python3
"""Draws the scenes of learn/show.c in a terminal: the reader's engine, call by call.

    make show             the last stage that is finished in learn/paged.cu.c; without that file,
                          all stages, on the finished engine. N=8: the scene of stage 8
    make show PLAY=1      goes on by itself. In a pipe or a file, the frames follow one another

A box is a block in use. What a call has changed is in brackets, or has a double border. A scene
runs before it is shown, in a process of its own, which may crash or never end.
"""
import argparse
import ast
import locale
import os
import re
import select
import signal
import sys
import termios
import textwrap

import learn
from plant import read, run

SLOTS = 4  # of a block
BORDERS = '┌    ┐ └    ┘', '┌────┐│└────┘', '╔════╗║╚════╝'  # free, in use, changed
BARS = ' ▀█'
ASCII = str.maketrans('┌┐└┘─│╔╗╚╝═║▀█', '++++-|####=#\'#')


class Frame:
    """A call: what to predict, what it returned, and the states after and before it."""
    def __init__(self, title, before, question=''):
        self.title, self.before, self.question = title, before, question
        self.call, self.value, self.state, self.said = '', '', {}, []

    def ask(self):
        return ['', self.question, '> ' + self.call] * bool(self.call)

    def lines(self):
        lines = self.ask()
        if 'key' in self.state:
            lines += ['', *draw_plane(self.state)]
        elif self.state and self.call:
            lines += ['', *draw_pool(self.state, self.before)]
        if self.value:
            lines[2] += '  = ' + self.value
        return lines + [part for line in self.said for part in textwrap.wrap(line, 79)]


# ---- drawing ----

def mark(number, changed):
    return ('[%d]' if changed else ' %d ') % number


def draw_row(name, cells):
    return ('%-10s' % name + '  '.join('%-6s' % cell for cell in cells)).rstrip()


def draw_plane(state):
    """Stage 1: the plane of K, a character for each key."""
    yield '         block 0      block 1      block 2      block 3'
    yield 'head      0    1       0    1       0    1       0    1'
    for layer in range(2):
        heads = [state['keys'][i:i + SLOTS] for i in range(32 * layer, 32 * layer + 32, SLOTS)]
        yield 'layer %d  ' % layer + '  '.join(map('│%s│%s│'.__mod__, zip(heads[::2], heads[1::2])))
        block, key = divmod(state['at'] // 2 % 32, 8)
        if state['at'] // 64 == layer:
            yield ' ' * (10 + 13 * block + key + key // SLOTS) + '^'
    if state['at'] % 2 or state['at'] >= 128:
        yield 'WRONG: no key begins there'


def looks(state):
    """Of each block: ref_count, serial, parent, letters. A '.' is a token without a letter."""
    tokens = {(table[t // SLOTS], t % SLOTS) for text, _, table in state['seqs'].values()
              for t in range(len(text)) if t // SLOTS < len(table)}
    return [(*numbers, ''.join(' ' if letter == '.' and (i, slot) not in tokens else letter
                               for slot, letter in enumerate(letters)))
            for i, (*numbers, letters) in enumerate(state['blocks'])]


def draw_pool(state, before):
    blocks = looks(state)
    changed = [now != old for now, old in zip(blocks, looks(before) if before else blocks)]
    borders = [BORDERS[(1 + new) * (block[0] > 0)] for block, new in zip(blocks, changed)]
    yield 'free list  ' + ' '.join(mark(block, before and block not in before['free'])
                                 for block in state['free'])
    yield draw_row('block', [' %s' % mark(i, new) for i, new in enumerate(changed)])
    yield draw_row('', [border[:6] for border in borders])
    yield draw_row('', [border[6] + block[3] + border[6] for border, block in zip(borders, blocks)])
    yield draw_row('', [border[7:] for border in borders])
    if state['weights']:
        yield from draw_bars(state)
    else:
        yield draw_row('ref_count', ['  %d' % block[0] if block[0] else '' for block in blocks])
    for name, column in ('serial', 1), ('parent', 2):
        if any(block[1] for block in blocks):
            yield draw_row(name, ['  %d' % block[column] if block[1] else '' for block in blocks])
    yield from [''] * bool(state['seqs'])
    for name in state['seqs']:
        yield from draw_table(name, state, before)
    if state['wrong']:
        yield 'WRONG: ' + state['wrong']


def draw_bars(state):
    """The weights, under their letters; the largest has a full bar."""
    blocks = [[float(weight) for block, weight in state['weights'] if block == i]
              for i in range(len(state['blocks']))]
    largest = max(weight for weight in [1e-9, *sum(blocks, [])] if weight <= 1)
    for row in range(4):
        yield draw_row('', [' ' + ''.join(
            BARS[max(0, min(2, round(8 * weight / largest) - 2 * row))] if 0 <= weight <= 1 else '?'
            for weight in block) for block in blocks])
    yield draw_row('sum', [' %.2f' % sum(block) if block else '' for block in blocks]
                   ) + '     m %s  l %s' % (state['m'], state['l'])


def draw_table(name, state, before):
    text, computed, table = state['seqs'][name]
    old = before['seqs'].get(name, ('', 0, []))[2] if before else table
    entries = [mark(block, i >= len(old) or block != old[i]) for i, block in enumerate(table)]
    parts = [text[i:i + SLOTS] for i in range(0, len(text), SLOTS)]
    yield '%s  %-20s  table  %s' % (name, '|'.join(parts), ' '.join(entries))
    letters = {block: part for block, (*_, part) in enumerate(state['blocks'])}
    memory = ''.join(letters.get(block, '????') for block in table)[:computed]
    if memory != text[:computed]:
        yield 'WRONG: memory holds ' + memory


# ---- frames ----

def play_scene(program, stage):
    """Runs a scene. Returns its frames, the last of which may have ended with a crash."""
    text, status = run([*program, str(stage.number)], 20, learn.LIMITS)
    title, state, keys = 'Stage %d: %s' % (stage.number, stage.name), {}, '.' * 64
    frames = [Frame(title, state)]
    for line in text.splitlines():
        frame = frames[-1]
        if line.startswith('? '):
            frames.append(Frame(title, state, line[2:]))
        elif line.startswith('> '):
            frame.call = line[2:]
        elif line.startswith('= '):
            frame.value = line[2:]
        elif re.match(r"{'(free|key)': .*}$", line):
            state = ast.literal_eval(line)
            frame.state = frame.state or state
            if 'key' in state:
                at = state['at'] // 2 % 64
                keys = state['keys'] = keys[:at] + state['key'] + keys[at + 1:]
        else:
            frame.said.append(line)
    if status in (None, -signal.SIGXCPU):
        frames[-1].said.append('WRONG: this call does not end')
    elif status < 0:
        frames[-1].said.append('Here it ends: %s.' % signal.strsignal(-status))
    return frames, status == 0 and not any(
        line.startswith('WRONG') for frame in frames for line in frame.lines())


# ---- the terminal ----

def wait_for_key(seconds):
    """The key that was pressed, or ''. Then the terminal is as it was before."""
    before, mode = termios.tcgetattr(0), termios.tcgetattr(0)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[6][termios.VSUSP] = b'\0'  # a stopped program would leave the terminal like this
    try:
        termios.tcsetattr(0, termios.TCSANOW, mode)
        ready, _, _ = select.select([0], [], [], seconds)
        return os.read(0, 8).decode('ascii', 'replace') if ready else ''
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)


def step_through(frames, paint, seconds):
    """A screen has a call, the picture after it, and the next call."""
    at = 0
    while at < len(frames):
        title, lines = frames[at].title, frames[at].lines()
        if at + 1 < len(frames) and frames[at + 1].title == title:
            lines += frames[at + 1].ask()
        print('\33[H\33[2J%s\n%s\n\n[any key: go on; b: back; n: next scene; q: quit] '
              % (title, paint(lines)), end='', flush=True)
        key = wait_for_key(seconds)
        if key in ('q', '\4'):
            break
        if key in ('b', '\33[D', '\x7f'):
            at = max(at - 1, 0)
            continue
        at += 1
        while key == 'n' and at < len(frames) and frames[at].title == title:
            at += 1
    print()


def choose(number, stages):
    """The engine and the stages to show."""
    if number is not None and not 1 <= number <= len(stages):
        raise SystemExit('There are stages 1 to %d.' % len(stages))
    engine, shown = os.path.abspath('paged.cu.c'), stages
    if os.path.exists(learn.MINE):
        engine, mine = learn.MINE, read(learn.MINE)
        for stage in [stage for stage in stages if stage.write]:  # up to the first unfinished one
            if stage.number > 1 and any(learn.unwritten(mine, name) for name in stage.write):
                break
            shown = [stage]
    return engine, shown if number is None else [stages[number - 1]]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('number', nargs='?', type=int)
    parser.add_argument('--play', action='store_true')
    options = parser.parse_args()
    engine, stages = choose(options.number, learn.read_stages())
    program = learn.BUILD + '/show'
    compiles, text = learn.build(program, ['-O0'], 'learn/show.c', engine)
    if not compiles and engine == learn.MINE:
        learn.compile_mine()  # which says it in fewer words
    if not compiles:
        raise SystemExit(text + 'learn/show.c does not compile with %s.' % engine)
    scenes = [play_scene([program], stage) for stage in stages]
    frames = [frame for scene, _ in scenes for frame in scene]
    locale.setlocale(locale.LC_CTYPE, '')
    utf8 = locale.nl_langinfo(locale.CODESET) == 'UTF-8'
    colour = sys.stdout.isatty() and 'NO_COLOR' not in os.environ

    def paint(lines):
        text = '\n'.join(line.rstrip() for line in lines)
        if colour:
            text = re.sub(r'\[\d+\]|(?<=║)[^║ ]+|WRONG.*', '\33[7m\\g<0>\33[27m', text)
        return text if utf8 else text.translate(ASCII)

    if sys.stdin.isatty() and sys.stdout.isatty():
        step_through(frames, paint, 4 if options.play else None)
    else:
        for frame in frames:
            print(paint([frame.title] * (not frame.call) + frame.lines()))
    return not all(well for _, well in scenes)


if __name__ == '__main__':
    for ending in signal.SIGTERM, signal.SIGHUP:
        signal.signal(ending, lambda *_: sys.exit(1))  # so that `finally` is run
    try:
        sys.exit(main())
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
