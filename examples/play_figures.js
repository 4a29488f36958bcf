// The figures of docs/play.html, a part of its script: one idea each, and an engine of its own.

const WORDS = ['none', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight'];
const word = n => WORDS[n] ?? `${n}`;
const capital = text => text[0].toUpperCase() + text.slice(1);

// ---- what you wish for, and the calls that make it so -------------------------------------------

const alike = (a, b) => [...a].findIndex((letter, i) => letter !== b[i]);
const LETTERS = {
  *type(on, name, text) {
    const old = on.textOf(name), same = alike(`${text}\0`, old), more = text.length - same;
    if (!on.isLive(name)) yield make('seq_create', 'pool', `&${name}`);
    if (same < old.length) yield make('seq_rewind', name, old.length - same);
    if (!more) return;
    yield make('seq_append', name, more);
    yield make('step', name, {text});
  },
  *begin(on, name, text) { if (!on.isLive(name)) yield* this.type(on, name, text); },
  *find(on, name, text) {
    if (on.isLive(name)) return;
    yield make('seq_create', 'pool', `&${name}`);
    yield make('seq_lookup', name, {tokens: text}, text.length);
    yield* this.type(on, name, text);
  },
  *fork(on, name, n) {
    if (!on.isLive(name) || !on.free()) return;
    yield make('seq_fork', name, Math.min(n, on.textOf(name).length), `&${on.free()}`);
  },
  *publish(on, name) {
    const text = on.textOf(name);
    if (on.isLive(name)) yield make('seq_publish', name, {tokens: text}, text.length);
  },
  *release(on, name) { if (on.isLive(name)) yield make('seq_release', name); },
};

// ---- questions ----------------------------------------------------------------------------------

// What questions ask for, from the states before and after, and those between.
const taken = (was, is) => word(was.free.length - is.free.length);
const freed = (was, is) => taken(is, was);
const copied = (was, is) => word(is.copies - was.copies);
const published = (was, is) => word(is.blocks.filter(block => block.serial).length);
const codeOf = (was, is, all) =>
  codeName(all.findLast(({call}) => call.fn === 'seq_append')?.code);
const found = (was, is, all) => word(Object.entries(
  all.find(({call}) => call.fn === 'seq_lookup')?.seqs ?? {}).at(-1)?.[1].length);
const FEW = ['none', 'one', 'two', 'three'], MANY = ['none', 'four', 'eight', 'eleven'];
const RETURNS = ['PAGED_OK', 'PAGED_OUT_OF_BLOCKS', 'PAGED_TOO_LONG'];
// A figure: what is done at first and why, and then questions: what is asked, what is done to see
// it, what to look for, the answers and which of them is right, and why. It leads to a chapter of
// the walkthrough and to a function of the engine.
const FIGURES = {
  sampling: {title: 'Two answers share their prompt', count: 8, chapter: 8, read: 'seq_fork',
    first: ['type a cloud '], told: 'A server is asked for two answers to one prompt, a. It ' +
      'forks a: the copy begins with the same tokens.', questions: [
      ['b is forked from a. How many blocks does that take?', ['fork a 6'], taken, FEW, 0,
        'Both tables name the same blocks. The ref_count, ×2, says how many tables do.'],
      ['a gets a letter. How many blocks are copied?', ['type a cloud s'], copied, FEW, 1,
        'Its last block was shared. This is copy-on-write.'],
      ['b gets a letter. How many copies now?', ['type b cloud i'], copied, FEW, 0,
        'By now only b uses the original.']]},
  draft: {title: 'Guess ahead, and rewind', count: 8, chapter: 9, read: 'seq_rewind',
    first: ['type a once upon a time t'], told: 'A small model guesses "here". The large one ' +
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
    first: ['type a be kind. Hi', 'publish a', 'release a'], told: 'a was "be kind. Hi". It was ' +
      'published: its full blocks can be found by their letters. It has ended, so they are free, ' +
      'but they keep what they hold until others need them.', questions: [
      ['"be kind. Bye" comes and is looked up. How many of its letters are found?',
        ['find b be kind. Bye'], found, MANY, 2,
        'Full blocks are found, each by its letters and all before them.'],
      ['It publishes and ends. A text of 27 letters takes 7 of the 8 blocks. How many of the 3 ' +
        'published blocks remain?',
        ['publish b', 'release b', 'find c once upon a time, in a land'], published, FEW, 1,
        'First it takes those that hold nothing, then the ends of texts.'],
      ['It ends. How many letters does the next "be kind. Hi" find?',
        ['release c', 'find d be kind. Hi'], found, MANY, 1,
        'The end was evicted before the beginning.']]},
  full: {title: 'When no block is left', count: 5, chapter: 11, read: 'seq_append',
    first: ['type a once', 'type b he was'],
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

// ---- drawing ------------------------------------------------------------------------------------

// The blocks of a pool: each slot with what is in it, the colours of the sequences that hold it,
// and how much the sequence in hand sees of it. Framed: what differs from an older state.
function blocksOf(on, old, hand, weights) {
  const {blocks, seqs, tales} = on.now, holders = {}, seen = {}, words = {};
  for (const name in seqs)
    on.walk(name).forEach((place, t) => {
      (holders[place] ??= []).push(name);
      words[place] = tales?.[name].words[t];
    });
  on.walk(hand).forEach((place, t) => { seen[place] = weights?.[t]; });
  const slot = (letter, place) => {
    const names = holders[place] ?? [], bands = names.map((name, n) =>
      `, var(--${name}) 0 ${100 * (n + 1) / names.length}%`);
    const background = names.length ? `linear-gradient(180deg${bands.join('')})` : '';
    const kind = names.length ? 'held' : letter ? 'kept' : '';
    return el('span', {class: `${kind} ${seen[place] >= 0 ? 'seen' : ''}`, 'data-at': place,
      style: `background: ${background}; --w: ${seen[place]}`}, letter ?? '');
  };
  return blocks.map(({ref_count, serial, slots}, i) => {
    const same = !old.blocks[i] || JSON.stringify(blocks[i]) === JSON.stringify(old.blocks[i]);
    return el('li', {class: same ? '' : 'new'}, el('div', {class: 'slots'},
      ...slots.map((letter, j) => slot(letter ?? words[[i, j]], [i, j]))), el('b', {}, i),
    el('small', {}, `${ref_count ? ` ×${ref_count}` : ''}${serial ? ` #${serial}` : ''}`));
  });
}
const chipsOf = table => table.map(block => el('span', {class: 'chip'}, block));

// A figure makes calls in an engine of its own, one wish after another.
class Figure {
  constructor(id, count) {
    Object.assign(this, {id, size: 4, count, calls: [], on: new Session(new Place()),
      queue: Promise.resolve(), old: NOTHING});
    this.on.later = edit => this.later(edit);
  }
  later(edit) {
    return this.queue = this.queue.then(edit)
      .catch(error => { problem = error.message; }).then(() => this.draw());
  }
  async grant(wishes) {
    for (const wish of wishes) {
      const {verb, what, how} = parsed(wish);
      for (const call of LETTERS[verb](this.on, what, how)) {
        this.calls.push(call);
        await this.on.reach(this);
        if (this.on.now.code || this.on.now.stopped) break;
      }
    }
  }
  async reset(wishes) {
    this.calls = [];
    await this.on.reach(this);
    await this.grant(wishes);
    this.old = this.on.now;
  }
}

// One with questions.
const SHOW = 4;  // the button that answers nothing
class Quiz extends Figure {
  constructor(id) {
    super(id, FIGURES[id].count);
    Object.assign(this, FIGURES[id]);
    const part = (name, tag, more) => this[name] = el(tag, {class: name, ...more});
    part('bar', 'div').append(...Array.from({length: SHOW + 1}, (_, i) =>
      el('button', {'data-answer': i})));
    $(id).append(el('h2', {}, this.title), el('p', {}, this.told),
      part('asks', 'p'), this.bar, part('says', 'p', {role: 'status'}), part('made', 'p'),
      part('rows', 'div'), part('blocks', 'ol'), sourceOf(this.read, this.chapter));
    this.bar.onclick = ({target: {dataset: {answer}}, detail}) => {
      if (answer && detail < 2) this.later(() => this.answer(Number(answer)));
    };
  }
  begin() { return this.later(() => this.again()); }
  again() {
    Object.assign(this, {asked: 0, verdict: ''});
    return this.reset(this.first);
  }
  // Shows what comes of a question, after a guess or without. After the last one all begins anew.
  async answer(guess) {
    const [, wishes, measure, answers, right, because] = this.questions[this.asked] ?? [];
    if (!wishes) return this.again();
    const was = this.old = this.on.now;
    this.from = this.on.states.length;
    await this.grant(wishes);
    const shown = measure(was, this.on.now, this.on.states.slice(this.from));
    const verdict = guess === SHOW ? capital(answers[right])
      : `${guess === right ? 'Right' : 'No'}: ${answers[right]}`;
    this.verdict = shown === answers[right] ? `${verdict}. ${because}`
      : `${capital(shown)}, in this engine. The right answer is: ${answers[right]}. ${because}`;
    this.asked++;
  }
  draw() {
    const {on} = this, [asks, , , answers = []] = this.questions[this.asked] ?? [];
    const focused = document.activeElement, {stopped, wrong} = on.now;
    this.says.textContent = this.verdict;
    this.asks.textContent = asks ?? '';
    for (const [i, button] of [...this.bar.children].entries()) {
      button.textContent = i < SHOW ? answers[i] ?? '' : asks ? 'Show me' : 'Once more';
      button.hidden = !button.textContent;
    }
    if (this.bar.contains(focused) && !visible(focused)) this.bar.lastChild.focus();
    this.made.textContent = stopped || wrong || (this.asked
      ? on.states.slice(this.from).map(({call, code}) => `${written(call)} = ${codeName(code)}`)
        .join(', ') : '');
    this.rows.replaceChildren(...NAMES.filter(name => on.isLive(name)).map(name =>
      el('p', {class: 'row', style: `--of: var(--${name})`}, el('span', {class: 'chip'}, name),
        el('code', {}, on.textOf(name)), el('span', {}, ...chipsOf(on.now.seqs[name].table)))));
    this.blocks.replaceChildren(...blocksOf(on, this.asked ? this.old : on.now));
  }
}
// What a figure leads to: a chapter, and a function, whose text the page has.
function sourceOf(read, chapter) {
  const numbers = Object.keys(SOURCE).filter(n => SOURCE[n].fn === read);
  return el('details', {class: 'leads'}, el('summary', {}, `${read}(), line ${numbers[0]} of ${
    $('engine').textContent}; chapter ${chapter} of walkthrough.md`),
  el('pre', {tabindex: 0, 'aria-label': read}, numbers.map(n => SOURCE[n].text).join('\n')));
}
const quizzes = Object.keys(FIGURES).map(id => new Quiz(id));

// One text, one table, four blocks: an arrow leads from a letter to its slot. The kernel attends
// for this text, until another one is typed below.
const text = Object.assign(new Figure('table', 4), {
  pending: 0,  // how many changes are still in the queue
  type(letters) {
    this.pending++;
    return this.later(async () => {
      this.pending--;
      this.old = this.on.now;
      problem = '';
      await this.grant([`type a ${clean(letters)}`]);
      const {code, stopped} = this.on.now;
      this.said = `${problem} ${stopped || (code ? refusal(this.on.now) : '')} ${
        this.on.textOf('a').includes('~') ? TILDE : ''}`.trim();
      if (code) await this.on.reach(Object.assign(this, {calls: this.good}));
      this.good = [...this.calls];
      await kernel.attend(this.on, 'a');
      this.t = this.on.textOf('a').length - 1;
    });
  },
  begin() {
    return this.later(() => this.reset(['type b once', 'type c upon', 'release b', 'release c']))
      .then(() => this.type('once up'));
  },
  draw() {
    const {on} = this, {table = []} = on.now.seqs.a ?? {}, letters = on.textOf('a');
    for (const input of [$('typed'), $('attends')]) {
      const caret = input.selectionStart, same = this.pending || input.value === letters;
      if (!same) input.value = letters;
      if (!same && document.activeElement === input) input.setSelectionRange(caret, caret);
    }
    $('typed-says').textContent = this.said ?? '';
    $('typed-table').replaceChildren(...table.map((block, i) =>
      el('li', {}, el('small', {}, `table[${i}]`), ...chipsOf([block]))));
    $('typed-blocks').replaceChildren(...blocksOf(on, this.old));
    this.point(this.t);
    kernel.draw();
  },
  point(t) {
    const {on} = this, [block, slot] = on.walk('a')[this.t = t] ?? [], box = $('typed-figure');
    const to = box.querySelector(`[data-at="${block},${slot}"]`);
    for (const one of box.querySelectorAll('.here')) one.classList.remove('here');
    $('typed-where').textContent = to ? `Letter ${t}, "${on.textOf('a')[t]}", is in block table[${
      t} / 4] = ${block}, slot ${t} % 4 = ${slot}.` : 'No letter: no block is taken.';
    $('typed-arrow').replaceChildren();
    if (!to) return;
    to.classList.add('here');
    $('typed-table').children[Math.floor(t / 4)].classList.add('here');
    const [from, end, {x, y}] = [$('typed'), to, box].map(one => one.getBoundingClientRect());
    const a = from.x - x + 12 + (t + .5) * letterWidth() - $('typed').scrollLeft;
    const b = from.bottom - y, u = end.x + end.width / 2 - x, v = end.y - y - 3;
    $('typed-arrow').append(el('path', {d: `M${a} ${b}C${a} ${b + 40} ${u} ${v - 40} ${u} ${v}` +
      'm-5 -8l5 8l5 -8'}));
  },
});
const letterWidth = () => $('typed-letter').getBoundingClientRect().width / 10;
for (const input of [$('typed'), $('attends')]) {
  input.oninput = ({isComposing}) => { if (!isComposing) text.type(input.value); };
  input.addEventListener('compositionend', () => text.type(input.value));
}
$('typed').onpointermove = $('typed').onpointerdown = ({offsetX}) => text.point(Math.max(0, Math.min(
  $('typed').value.length - 1,
  Math.floor((offsetX - 12 + $('typed').scrollLeft) / letterWidth()))));
document.addEventListener('selectionchange', () => {
  const {id, selectionStart} = document.activeElement;
  if (id === 'typed' && !text.pending) text.point(Math.max(0, selectionStart - 1));
});
