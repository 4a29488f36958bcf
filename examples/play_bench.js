// Your own engine, and every control: a part of the script of docs/play.html.

// ---- stories: letters, or the tales of a model --------------------------------------------------

const STORIES = {letters: {
  start: 'start', size: 4, count: 16, opening: ['type a cloud '], verbs: LETTERS,
  help: 'Fork (or Enter): another sequence begins with these tokens, in the same blocks. ' +
    'Publish: its full blocks can be found by their letters. Look up: begins with blocks that ' +
    'are found. Release: its blocks are free.',
  says: 'A token is a letter. Every key you press is a call to the engine.',
}, tales: {
  start: 'model', size: 4, count: 64, opening: ['begin a', 'tell 48'], help: '',
  says: 'A token is a word, or a part of one. As the model writes a name, one of its heads ' +
    'looks where it stood before: such words are marked. Step to the next name, or fork, and run.',
  verbs: {
    *begin(on, name) {
      if (on.isLive(name)) return;
      yield make('tale', `&${name}`, NAMES.indexOf(name));
      yield make('tell');
    },
    *tell(on, n) { for (; n > 0 && !on.isOver(); n--) yield make('tell'); },
    *fork(on, name, n) {
      if (!on.isLive(name) || !on.free()) return;
      const at = Math.min(n, on.now.tales[name].words.length, on.size * on.count);
      yield make('branch', `&${name}`, at, `&${on.free()}`);
      yield make('tell');
    },
  },
}};

// ---- what you do --------------------------------------------------------------------------------

const REASONS = {2: 'too few blocks are free. Release a sequence, or add blocks.',
  3: 'that is more than the whole pool can hold.'};
const refusal = ({call, code}) =>
  `${written(call)} = ${codeName(code)}: ${REASONS[code] ?? 'nothing has changed.'}`;
const TILDE = '"~" is a slot without a letter: step() has not written it.';
// A token is a letter, of those that C can write down. What becomes of others is said.
function clean(on, text) {
  const all = text.normalize('NFD').replace(/\p{M}/gu, '').replace(/[^ -}]|["\\]/gu, '?');
  const letters = all.slice(0, MAX_LETTERS), lost = all.length - letters.length;
  if (all !== text.normalize('NFD')) on.problem = 'A token here is one ASCII character, not " \\ ' +
    `or ~: "${text.slice(0, MAX_LETTERS)}" became "${letters}". `;
  if (lost) on.problem += `A line has ${MAX_LETTERS} letters at most: the last ${lost} of yours ${
    lost > 1 ? 'are' : 'is'} left out. `;
  return letters;
}

const bench = Object.assign(new Figure(16, $('cache')), {
  story: STORIES.letters, sight: {},
  aim: '',  // the sequence that gets the focus when it is drawn
  isOver() { return Object.values(this.now.tales ?? {}).every(({state}) => state === 'ended'); },

  // What you do, and then: what does the newest token of the sequence in hand see of each?
  perform(edit) {
    return this.later(async () => {
      this.problem = '';
      await edit();
      if (!this.isLive(this.hand)) this.hand = NAMES.find(name => this.isLive(name)) ?? 'a';
      const call = make('look', `&${this.hand}`), see = state => { this.sight = state; };
      if (!this.now.tales) see(await kernel.attend(this));
      else if (this.isLive(this.hand)) await this.place.ask(false, [call], see);
      this.weights = this.sight.weights ?? [];
    });
  },
  begin(story) {
    return this.perform(() => {
      if (story === STORIES.tales && !files) {
        this.problem = 'tales.js is not beside this page.';
        story = STORIES.letters;
      }
      const {start, size, count, opening, verbs} = story;
      Object.assign(this, {story, start, size, count, verbs, hand: 'a'});
      return this.replay(opening);
    });
  },
  step() { return this.perform(() => this.story === STORIES.tales && this.attempt('tell 1')); },
  type(name, value) {
    return this.perform(() => {
      this.hand = name;
      return this.isLive(name) && this.attempt(`type ${name} ${clean(this, value)}`);
    });
  },
  // The same in a pool of another shape.
  resize() {
    const size = Number($('size').value), count = Math.floor($('count').value);
    return this.perform(() => {
      this.size = size;
      this.count = Math.max(1, Math.min(MAX_BLOCKS, count || this.count));
      return this.replay(this.wishes);
    });
  },
  undo() { return this.perform(() => this.replay(this.wishes.slice(0, -1))); },
  // A button of a row. Its sequence, or one that begins, is the one in hand.
  press(name, deed, isKey) {
    const caret = $(name).selectionStart;
    return this.perform(async () => {
      const child = deed === 'fork' ? this.free() : name;
      if (!child) throw Error('All six names are in use: release a sequence first.');
      const how = deed !== 'fork' ? clean(this, $(name).value) : this.now.tales ? 1e9 : caret;
      const isNew = !this.isLive(child);
      await this.attempt(`${deed} ${name} ${how}`);
      this.hand = isNew && this.isLive(child) ? child : name;
      if (isNew && (isKey || child === name)) this.aim = child;
    });
  },

  // What went wrong in the newest calls, in words.
  complaint() {
    const {now, problem} = this, {wrong, seqs} = now;
    const bad = this.states.slice(this.first).findLast(({stopped, code}) => stopped || code) ?? now;
    const long = Object.keys(seqs).find(name => seqs[name].length !== this.walk(name).length);
    const found = wrong || (bad.stopped ? `${written(bad.call)}: ${bad.stopped}`
      : bad.code ? refusal(bad) : long ? `${long}->length is ${seqs[long].length}, but its table ` +
        `has ${seqs[long].table.length} blocks.` : '');
    const isWritten = now.tales || Object.keys(seqs).every(name => !/~/.test(this.textOf(name)));
    return `${problem} ${found} ${isWritten ? '' : TILDE}`.trim();
  },
  // What is wrong with the engine itself.
  alarm() {
    const {element, by, is, should} = this.sight.differs ?? {}, {stopped, wrong} = this.now;
    if (by) return `Your attend() differs from the oracle by ${by}, first in row ${
      this.weights.length - 1}, head 0, element ${element}: it has ${is}, the oracle ${
      should}. The bars of attention below are the oracle's.`;
    return stopped || wrong ? this.complaint() : '';
  },

  draw() {
    const {activeElement: focused} = document, {now, story} = this, {free, blocks} = now;
    $('starting').hidden = !(document.querySelector('main').hidden = false);
    $('alarm').textContent = this.alarm();
    $('message').textContent = this.complaint();
    $('says').textContent = story.says;
    $('help').textContent = story.help;
    $('step').hidden = $('run').hidden = story !== STORIES.tales;
    for (const link of $('own').querySelectorAll('a'))
      link.ariaCurrent = STORIES[link.hash.slice(1)] === story;
    [$('size').value, $('count').value] = [this.size, this.count];
    $('cache').classList.toggle('telling', story === STORIES.tales);
    $('free').replaceChildren(...free.map(i =>
      el('span', {class: `chip ${blocks[i]?.serial ? 'kept' : 'free'}`}, i)));
    if (!free.length) $('free').append('empty');
    $('numbers').textContent = `${blocks.length - free.length} of ${this.count} blocks taken. ` +
      '×: ref_count. #: published. Framed: changed by this step. Bar: attention.';
    NAMES.forEach(name => this.drawRow(name));
    $('blocks').replaceChildren(...this.blocksOf());
    this.point(this.hand, this.walk(this.hand).length - 1);
    this.drawCalls();
    const goals = [...$('seqs').querySelectorAll('button')];
    if (this.aim) goals.unshift($(this.aim));
    if (this.aim || $('own').contains(focused) && !visible(focused)) goals.find(visible)?.focus();
    this.aim = '';
  },
  drawRow(name) {
    const {now, story} = this, isLive = this.isLive(name), row = $(name).parentNode;
    const {words = [], state} = now.tales?.[name] ?? {};
    row.hidden = !isLive && name !== this.free();
    $(name).placeholder = isLive ? '' : 'a new sequence';
    $(name).hidden = story === STORIES.tales;
    if (isLive || row.dataset.live) put($(name), this.textOf(name));
    row.dataset.live = isLive ? 'yes' : '';
    for (const button of row.querySelectorAll('button')) {
      const {deed} = button.dataset;
      button.hidden = !story.verbs[deed] || isLive === /begin|find/.test(deed);
    }
    $(`table-${name}`).replaceChildren(...this.tableOf(name));
    // The words of a tale: those that attention sees glow.
    $(`words-${name}`).replaceChildren(...words.slice(1).map((word, i) =>
      el('span', {style: `--w: ${name === this.hand && this.weights[i + 1] || 0}`}, word)),
    {waiting: ' (waits)', ended: words.length > this.size * this.count
      ? ' (cut off: no slot is left)' : ' (has ended: its blocks are free)'}[state] ?? '');
  },
  drawCalls() {
    const {states} = this, first = Math.max(0, states.length - 100);
    $('calls').replaceChildren(...states.slice(first).map((is, i) => {
      const {call, code, stopped, said} = is, was = states[first + i - 1] ?? is;
      const taken = was.free.length - is.free.length;
      const effect = [[taken, 'taken'], [-taken, 'freed'], [is.copies - was.copies, 'copied']]
        .filter(([n]) => n > 0).map(([n, what]) => `blocks ${what}: ${n}`).join(', ');
      return el('li', {}, el('code', {}, written(call)),
        el('span', {class: stopped || code ? 'bad' : ''},
          stopped ? ` stopped: ${stopped}` : ` = ${codeName(code)}`), el('br'),
        el('small', {}, effect, said ? ` It prints: ${said}` : ''));
    }));
    $('calls').scrollTop = 1e6;
  },
  point(name, t) { $('where').textContent = this.mark(name, t); },
});
bench.player = new Player('run', async () => {
  const {steps} = bench.now;
  await bench.step();
  return bench.now.steps > steps && !bench.isOver();
}, () => 50);

const DEEDS = {fork: 'Fork', publish: 'Publish', release: 'Release', begin: 'New', find: 'Look up'};
for (const name of NAMES)
  $('seqs').append(el('div', {class: 'seq', 'data-name': name, style: `--of: var(--${name})`},
    el('label', {class: 'chip', for: name}, name),
    el('input', {id: name, autocomplete: 'off', autocapitalize: 'off', spellcheck: false,
      'aria-label': `Text of sequence ${name}`}),
    el('span', {id: `table-${name}`}),
    ...Object.entries(DEEDS).map(([deed, title]) =>
      el('button', {'data-deed': deed, 'aria-label': `${title} ${name}`}, title)),
    el('p', {id: `words-${name}`, class: 'words'})));

// A click in a row takes its sequence in hand.
$('bench').onclick = ({target}) => {
  const {id, hash, dataset: {deed}} = target, {name} = target.closest('.seq')?.dataset ?? {};
  if (!hash && !name && !/step|undo/.test(id)) return;
  if (id !== 'run') bench.player.stop();
  if (hash) bench.begin(STORIES[hash.slice(1)]);
  if (deed) bench.press(name, deed);
  else if (name) bench.perform(() => { bench.hand = name; });
  if (id === 'step') bench.step();
  if (id === 'undo') bench.undo();
};
$('bench').onchange = ({target: {id}}) => { if (/size|count/.test(id)) bench.resize(); };
// Each text box says what is typed; what an input method composes, when that is done.
oninput = ({target: {id, value}, isComposing}) => {
  if (!isComposing && NAMES.includes(id)) bench.type(id, value);
  if (!isComposing && /typed|attends/.test(id)) oneText.type(value);
};
addEventListener('compositionend', oninput);
onkeydown = ({target: {id}, key, repeat, isComposing}) => {
  if (key === 'Enter' && NAMES.includes(id) && !repeat && !isComposing)
    bench.press(id, bench.isLive(id) ? 'fork' : 'begin', true);
};
onpointerover = onpointerdown = ({target}) => {
  const figure = [oneText, bench].find(({box}) => box.contains(target));
  const token = figure?.tokenAt(target);
  if (token) figure.point(...token);
};
