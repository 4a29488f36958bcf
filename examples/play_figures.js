// The figures of docs/play.html, a part of its script: one idea each, and an engine of its own.

// ---- a figure: an engine, and what you wish of it -----------------------------------------------

// The calls that a wish asks for: a verb, what it is done to, and how. Some make none any more.
const VERBS = {
  *type(on, name, text) {
    const old = on.textOf(name), kept = [...text, '\0'].findIndex((one, i) => one !== old[i]);
    const more = text.length - kept;
    if (!on.isLive(name)) yield ['seq_create', 'pool', `&${name}`];
    if (kept < old.length) yield ['seq_rewind', name, old.length - kept];
    if (!more) return;
    yield ['seq_append', name, more];
    yield ['step', name, {text}];
  },
  *begin(on, name, text) { if (!on.isLive(name)) yield* this.type(on, name, text); },
  *find(on, name, text) {
    if (on.isLive(name)) return;
    yield ['seq_create', 'pool', `&${name}`];
    yield ['seq_lookup', name, {tokens: text}, text.length];
    yield* this.type(on, name, text);
  },
  *fork(on, name, n) {
    if (!on.isLive(name) || !on.free()) return;
    yield ['seq_fork', name, Math.min(n, on.textOf(name).length), `&${on.free()}`];
  },
  *publish(on, name) {
    const text = on.textOf(name);
    if (on.isLive(name)) yield ['seq_publish', name, {tokens: text}, text.length];
  },
  *release(on, name) { if (on.isLive(name)) yield ['seq_release', name]; },
};

const NOTHING = {copies: 0, free: [], blocks: [], seqs: {}, code: 0, stopped: '', said: ''};
class Figure {
  constructor(count, box, engine) {
    Object.assign(this, {size: 4, count, box, engine, wishes: [], states: [], first: 1, hand: 'a',
      problem: ''});
  }
  get now() { return this.states.at(-1) ?? NOTHING; }
  isLive(name) { return name in this.now.seqs; }
  free() { return NAMES.find(name => !this.isLive(name)); }
  // The walk: block and slot of each token of a sequence. Its text comes out of the keys there. A
  // length that goes beyond the table is not believed.
  walk(name) {
    const {length = 0, table = []} = this.now.seqs[name] ?? {}, {size} = this;
    return Array.from({length: Math.min(length, table.length * size)},
      (_, t) => [table[Math.floor(t / size)], t % size]);
  }
  textOf(name) {
    const {blocks} = this.now;
    return this.walk(name).map(([block, slot]) => blocks[block]?.slots[slot] ?? '~').join('');
  }

  // The state after a call is noted.
  call(...call) { this.states.push({...this.now, ...this.engine.call(...call)}); }
  grant(wish) {
    if (this.states[0].stopped) return;  // there is no pool
    if (this.now.stopped) this.replay(this.wishes);
    const [, verb, what, how] = wish.match(/^(\w+) (\w+) ?(.*)/), first = this.states.length;
    for (const call of VERBS[verb](this, what, how)) {
      this.call(...call);
      if (this.now.code || this.now.stopped) break;
    }
    if (this.states.length === first) return;
    if (!this.now.stopped) this.wishes.push(wish);
    this.first = first;
  }
  // Begins anew, and comes to where these wishes lead.
  replay(wishes) {
    this.engine.reset();
    Object.assign(this, {wishes: [], states: [], first: 1});
    this.call('start', this.size, this.count);
    for (const wish of wishes) if (!this.now.stopped) this.grant(wish);
  }
  // A wish for which there is no room is taken back. Why, is said.
  attempt(wish) {
    const before = [...this.wishes];
    this.grant(wish);
    const {call, code} = this.now;
    if (!code || call.fn !== 'seq_append') return;
    this.problem += refusal(this.now);
    this.replay(before);
  }

  // What you do, and then the newest token of the sequence in hand attends.
  perform(edit) {
    this.problem = '';
    edit();
    if (!this.isLive(this.hand)) this.hand = NAMES.find(name => this.isLive(name)) ?? 'a';
    this.draw();
    clearTimeout(kernel.timer);
    kernel.timer = setTimeout(() => kernel.attend(this), 100);  // it takes longer than a letter
  }

  // The blocks of the pool: each slot with what is in it, and the colours of the sequences that
  // hold it. Framed: what the last wish has changed.
  blocksOf(old = this.states[this.first - 1] ?? this.now) {
    const {blocks, seqs} = this.now, holders = {};
    for (const name in seqs)
      for (const place of this.walk(name)) (holders[place] ??= []).push(name);
    const slot = (letter, place) => {
      const names = holders[place] ?? [], bands = names.map((name, n) =>
        `, var(--${name}) 0 ${100 * (n + 1) / names.length}%`);
      const background = names.length ? `linear-gradient(180deg${bands.join('')})` : '';
      const kind = names.length ? 'held' : letter ? 'kept' : '';
      return el('span', {class: kind, 'data-at': place, style: `background: ${background}`},
        letter ?? '');
    };
    return blocks.map(({ref_count, serial, slots}, i) => {
      const isNew = old.blocks[i] && JSON.stringify(blocks[i]) !== JSON.stringify(old.blocks[i]);
      return el('li', {class: isNew ? 'new' : ''}, el('div', {class: 'slots'},
        ...slots.map((letter, j) => slot(letter, [i, j]))), el('b', {}, i),
      el('small', {}, `${ref_count ? ` ×${ref_count}` : ''}${serial ? ` #${serial}` : ''}`));
    });
  }
  tableOf(name) {
    return (this.now.seqs[name]?.table ?? []).map(block => el('span', {class: 'chip'}, block));
  }
  // What is wrong with the engine itself.
  broken() {
    const {call, stopped, wrong} = this.now;
    return stopped ? `${written(call)}: ${stopped}` : wrong;
  }
  // What went wrong in the newest calls, in words.
  complaint() {
    const {now, problem} = this, {seqs} = now;
    const refused = this.states.slice(this.first).findLast(({code}) => code);
    const long = Object.keys(seqs).find(name => seqs[name].length !== this.walk(name).length);
    const found = this.broken() || (refused ? refusal(refused) : long ? `${long}->length is ${
      seqs[long].length}, but its table has ${seqs[long].table.length} blocks.` : '');
    const unwritten = Object.keys(seqs).some(name => this.textOf(name).includes('~'));
    return `${problem} ${found} ${unwritten ? TILDE : ''}`.trim();
  }
  // The calls since a state, and what they returned or printed.
  made(since = this.first) {
    return this.broken() || this.states.slice(since).map(({call, code, said}) =>
      `${written(call)} = ${codeName(code)}${said && ` and prints: ${said}`}`).join(', ');
  }
}

// ---- questions ----------------------------------------------------------------------------------

// What questions ask for, from the states before and after, and those between.
const taken = (was, is) => was.free.length - is.free.length;
const freed = (was, is) => taken(is, was);
const copied = (was, is) => is.copies - was.copies;
const published = (was, is) => is.blocks.filter(block => block.serial).length;
const codeOf = (was, is, all) =>
  codeName(all.findLast(({call}) => call.fn === 'seq_append')?.code);
const found = (was, is, all) => Object.entries(
  all.find(({call}) => call.fn === 'seq_lookup')?.seqs ?? {}).at(-1)?.[1].length;
const FEW = [0, 1, 2, 3], MANY = [0, 4, 8, 11];
const RETURNS = ['PAGED_OK', 'PAGED_OUT_OF_BLOCKS', 'PAGED_TOO_LONG'];
// A figure: what is done at first and why, and questions: what is asked, what is done to see it,
// what to look for, the answers, which is right, why. It leads to a chapter and to a function.
const FIGURES = {
  sampling: {title: 'Two answers share their prompt', count: 8, chapter: 8, read: 'seq_fork',
    opening: ['type a cloud '], told: 'A server is asked for two answers to one prompt, a. It ' +
      'forks a: the copy begins with the same tokens.', questions: [
      ['b is forked from a. How many blocks does that take?', ['fork a 6'], taken, FEW, 0,
        'Both tables name the same blocks. The ref_count, ×2, says how many tables do.'],
      ['a gets a letter. How many blocks are copied?', ['type a cloud s'], copied, FEW, 1,
        'Its last block was shared. This is copy-on-write.'],
      ['b gets a letter. How many copies now?', ['type b cloud i'], copied, FEW, 0,
        'By now only b uses the original.']]},
  draft: {title: 'Guess ahead, and rewind', count: 8, chapter: 9, read: 'seq_rewind',
    opening: ['type a once upon a time t'], told: 'A small model guesses "here". The large one ' +
      'checks all four letters at once, and keeps those that are right.', questions: [
      ['How many blocks do the four guesses take?', ['type a once upon a time there'],
        taken, FEW, 1, 'The last block had room for two of them.'],
      ['Only the "h" is right. How many blocks does the rewind free?',
        ['type a once upon a time th'], freed, FEW, 1, 'Only wrong guesses were in it.'],
      ['b is forked from a. Then a rewinds into a block that b uses. How many copies?',
        ['fork a 19', 'type a once upon a'], copied, FEW, 0,
        'A rewind takes no block: it cannot fail.'],
      ['a gets a letter. How many copies now?', ['type a once upon a '], copied, FEW, 1,
        'The next append pays for it.']]},
  prefix: {title: 'The same beginning is computed once', count: 8, chapter: 10, read: 'seq_lookup',
    opening: ['type a be kind. Hi', 'publish a', 'release a'], told: '"be kind. Hi" has ended: ' +
      'its blocks are free. But it was published: the full ones can be found by their letters, ' +
      'until others need them.', questions: [
      ['"be kind. Bye" comes and is looked up. How many of its letters are found?',
        ['find b be kind. Bye'], found, MANY, 2,
        'Full blocks are found, each by its letters and all before them.'],
      ['It publishes and ends. 27 letters take 7 of 8 blocks. How many published ones remain?',
        ['publish b', 'release b', 'find c once upon a time, in a land'], published, FEW, 1,
        'First it takes those that hold nothing, then the ends of texts.'],
      ['It ends. How many letters does the next "be kind. Hi" find?',
        ['release c', 'find d be kind. Hi'], found, MANY, 1,
        'The end was evicted before the beginning.']]},
  full: {title: 'When no block is left', count: 5, chapter: 11, read: 'seq_append',
    opening: ['type a once', 'type b he was'],
    told: 'The pool has five blocks. a and b grow.', questions: [
      ['c needs 35 tokens. What does its append return?',
        ['type c once upon a time in a land far away', 'release c'], codeOf, RETURNS, 2,
        'The pool has 20 slots. That is final: c is refused.'],
      ['a has 8 letters, b has 10. What does the 9th of a return?',
        ['type a once upo', 'type b he was her', 'type a once upon'], codeOf, RETURNS, 1,
        'It may try again later. Nothing has changed.'],
      ['b is newer, and gives way. And now?', ['release b', 'type a once upon'], codeOf, RETURNS, 0,
        'b waits until a ends, and then all its tokens are computed again.']]},
};

const SHOW = 4;  // the button that answers nothing
class Quiz extends Figure {
  constructor(id, engine) {
    super(FIGURES[id].count, $(id), engine);
    Object.assign(this, FIGURES[id]);
    const part = (name, tag, more) => this[name] = el(tag, {class: name, ...more});
    part('bar', 'div').append(...Array.from({length: SHOW + 1}, (_, i) =>
      el('button', {'data-answer': i})));
    this.box.append(el('h2', {}, this.title), el('p', {}, this.told),
      part('asks', 'p'), this.bar, part('says', 'p', {role: 'status'}), part('calls', 'p'),
      part('rows', 'div'), part('blocks', 'ol'), sourceOf(this.read, this.chapter));
    this.bar.onclick = ({target: {dataset: {answer}}, detail}) => {
      if (answer && detail < 2) this.answer(Number(answer));
    };
    this.begin();
  }
  begin() {
    Object.assign(this, {asked: 0, verdict: ''});
    this.replay(this.opening);
    this.since = this.states.length;
    this.draw();
  }
  // Shows what comes of a question, after a guess or without. After the last one all begins anew.
  answer(guess) {
    const [, wishes, measure, answers, right, because] = this.questions[this.asked] ?? [];
    if (!wishes || this.now.stopped) return this.begin();
    const was = this.now, since = this.since = this.states.length;
    for (const wish of wishes) if (!this.now.stopped) this.grant(wish);
    const shown = this.now.stopped ? 'It stops' : measure(was, this.now, this.states.slice(since));
    const verdict = guess === SHOW ? answers[right]
      : `${guess === right ? 'Right' : 'No'}: ${answers[right]}`;
    this.verdict = shown === answers[right] ? `${verdict}. ${because}`
      : `${shown}, in this engine. The right answer is: ${answers[right]}. ${because}`;
    this.asked++;
    this.draw();
  }
  draw() {
    const [asks, , , answers = []] = !this.now.stopped && this.questions[this.asked] || [];
    const focused = document.activeElement;
    this.says.textContent = this.verdict;
    this.asks.textContent = asks ?? '';
    for (const [i, button] of [...this.bar.children].entries()) {
      button.textContent = i < SHOW ? answers[i] ?? '' : asks ? 'Show me' : 'Once more';
      button.hidden = !button.textContent;
    }
    if (this.bar.contains(focused) && !visible(focused)) this.bar.lastChild.focus();
    this.calls.textContent = this.made(this.since);
    this.rows.replaceChildren(...NAMES.filter(name => this.isLive(name)).map(name =>
      el('p', {class: 'row', style: `--of: var(--${name})`}, el('span', {class: 'chip'}, name),
        el('code', {}, this.textOf(name)), el('span', {}, ...this.tableOf(name)))));
    this.blocks.replaceChildren(...this.blocksOf(this.states[this.since - 1]));
  }
}
// What a figure leads to: a chapter, and a function, whose text the page has.
function sourceOf(read, chapter) {
  const numbers = Object.keys(SOURCE).filter(n => SOURCE[n].fn === read);
  return el('details', {class: 'leads'}, el('summary', {}, `${read}(), line ${numbers[0]} of ${
    $('engine').textContent}; chapter ${chapter} of walkthrough.md`),
  el('pre', {tabindex: 0, 'aria-label': read}, numbers.map(n => SOURCE[n].text).join('\n')));
}
const quizzes = [];
for (const id of Object.keys(FIGURES)) quizzes.push(new Quiz(id, await newEngine()));

// ---- one text, one table, four blocks -----------------------------------------------------------

// An arrow leads from a letter to its slot. The kernel attends for the text that was typed last.
const oneText = Object.assign(new Figure(4, $('typed-figure'), await newEngine()), {
  type(letters) { this.perform(() => this.attempt(`type a ${clean(this, letters)}`)); },
  begin() {
    this.replay(['type b once', 'type c upon', 'release b', 'release c']);
    this.type('once up');
  },
  draw() {
    const letters = this.textOf('a');
    put($('typed'), letters);
    $('typed-says').textContent = this.complaint();
    $('typed-table').replaceChildren(...this.tableOf('a').map((chip, i) =>
      el('li', {}, el('small', {}, `table[${i}]`), chip)));
    $('typed-blocks').replaceChildren(...this.blocksOf());
    this.point(letters.length - 1);
  },
  // Says where token t is found, and marks it.
  point(t) {
    const [block, slot] = this.walk('a')[t] ?? [], entry = Math.floor(t / this.size);
    for (const old of this.box.querySelectorAll('.here')) old.classList.remove('here');
    $('typed-arrow').replaceChildren();
    $('typed-where').textContent = 'There is no token yet.';
    if (!this.now.blocks[block]) return;
    $('typed-where').textContent = `Token ${t}, "${this.textOf('a')[t]}", is in block table[${t} ` +
      `/ ${this.size}] = ${block}, slot ${t} % ${this.size} = ${slot}.`;
    const slots = this.box.querySelector(`[data-at="${block},${slot}"]`);
    for (const one of [slots, this.box.querySelectorAll('.chip')[entry]]) one.classList.add('here');
    const [box, input, to] = [this.box, $('typed'), slots].map(one => one.getBoundingClientRect());
    const a = input.x - box.x + 12 + (t + .5) * letterWidth() - $('typed').scrollLeft;
    const b = input.bottom - box.y, u = to.x + to.width / 2 - box.x, v = to.y - box.y - 3;
    $('typed-arrow').append(el('path', {d: `M${a} ${b}C${a} ${b + 40} ${u} ${v - 40} ${u} ${v}` +
      'm-5 -8l5 8l5 -8'}));
  },
});
// The caret stays where it is, if what it stands in is drawn anew.
function put(input, value) {
  const {selectionStart: caret} = input;
  if (input.value === value) return;
  input.value = value;
  if (document.activeElement === input) input.setSelectionRange(caret, caret);
}
const letterWidth = () => $('typed-letter').getBoundingClientRect().width / 10;
$('typed').onpointermove = $('typed').onpointerdown = ({offsetX}) => {
  const t = Math.floor((offsetX - 12 + $('typed').scrollLeft) / letterWidth());
  oneText.point(Math.max(0, Math.min($('typed').value.length - 1, t)));
};
onresize = () => oneText.draw();

// ---- the race -----------------------------------------------------------------------------------

// Two engines tell the same six tales in the same memory. One has blocks of 16 tokens. To the
// other, a block is what the longest tale may need: so works a server that reserves.
const SLOTS = 512, STRIP = 16;
const side = async (title, size, why) =>
  ({title, size, why, engine: await newEngine(...files), state: {}});
const race = {
  sides: [
    await side('Reserved', 256, 'for the longest tale'), await side('Paged', 16, 'at a time')],
  turn: null, pause: 120,  // while it runs by itself; milliseconds

  step() {
    const isFirst = !this.sides[0].state.steps || this.isOver();
    for (const side of this.sides) {
      if (isFirst) side.engine.reset();
      if (isFirst) side.state = side.engine.call('model', side.size, SLOTS / side.size);
      side.state = {...side.state, ...side.engine.call('tell')};
    }
    this.draw();
  },
  // Takes steps until the last, or until it is stopped. Each is seen.
  async run() {
    const turn = this.turn = {};
    $('racing').textContent = 'Stop';
    while (this.turn === turn) {
      this.step();
      if (this.isOver() || calm.matches) this.stop();
      await new Promise(done => setTimeout(() => requestAnimationFrame(done), this.pause));
    }
  },
  stop() {
    this.turn = null;
    $('racing').textContent = 'Run';
  },
  named: ({state: {tales = {}}}, what) =>
    Object.keys(tales).filter(name => tales[name].state === what),
  isOver() {
    return this.sides.some(({state}) => state.stopped)
      || this.named(this.sides[1], 'ended').length === NAMES.length;
  },

  draw() {
    if (calm.matches && document.activeElement === $('racing')) $('pace').focus();
    $('racing').hidden = calm.matches;
    $('race').classList.toggle('none', !files.length);
    if ($('lap').textContent !== this.says()) $('lap').textContent = this.says();  // said once
    $('sides').replaceChildren(...this.sides.map(side => this.drawSide(side)));
  },
  says() {
    const [left, right] = this.sides, stopped = left.state.stopped || right.state.stopped;
    const ended = side => this.named(side, 'ended').length;
    if (!files.length) return 'Without tales.js beside this page, there is no race to see here.';
    if (stopped) return `${left.state.stopped ? left.title : right.title}: ${stopped}`;
    if (this.isOver()) return `After ${right.state.steps} steps: ${ended(right)} tales are told ` +
      `with paging, ${ended(left)} without.`;
    if (right.state.preemptions && this.named(right, 'waiting').length > 0)
      return 'The right side has been full, too: the newest tale gave all its blocks back, and ' +
        'waits. These tokens are computed again.';
    return 'A word needs a slot. On the left, a tale reserves 256 slots, since it may grow that ' +
      'long: two tales fill the memory. On the right, it takes 16 when it needs them.';
  },
  drawSide(side) {
    const {title, size, why, state: {tales = {}, seqs = {}}} = side;
    const running = Object.keys(seqs), of = name => `--of: var(--${name})`;
    const strips = Array.from({length: SLOTS / STRIP}, () => el('i'));
    for (const name of running)
      for (let i = 0; i < seqs[name].table.length * size / STRIP; i++) {
        const block = seqs[name].table[Math.floor(i * STRIP / size)];
        const used = Math.max(0, Math.min(STRIP, seqs[name].length - i * STRIP));
        Object.assign(strips[block * size / STRIP + i % (size / STRIP)] ?? {},
          {className: 'taken', style: `${of(name)}; --n: ${used}`});
      }
    const row = name => {
      const {state = 'waiting', text = ''} = tales[name] ?? {};
      return el('li', {class: state}, el('span', {class: 'chip', style: of(name)}, name),
        el('span', {class: 'tail'}, el('span', {}, state === 'waiting' ? 'waits'
          : text.slice(-200))));
    };
    const used = running.reduce((sum, name) => sum + seqs[name].length, 0);
    const count = (number, what) => el('span', {}, el('b', {}, number), what);
    return el('div', {}, el('h3', {}, `${title}: ${size} slots ${why}`),
      el('p', {class: 'counts'}, count(running.length, 'running'),
        count(used, 'slots used'), count(this.named(side, 'waiting').length, 'waiting'),
        count(this.named(side, 'ended').length, 'told')),
      el('div', {class: 'strips'}, ...strips), el('ol', {}, ...NAMES.map(row)));
  },
};
$('racing').onclick = () => race.turn ? race.stop() : race.run();
$('pace').onclick = () => {
  race.stop();
  race.step();
};
calm.onchange = () => race.draw();
