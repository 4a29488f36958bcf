// Your own engine, and every control: a part of the script of docs/play.html.

const REASONS = {2: 'too few blocks are free. Release a sequence, or add blocks.',
  3: 'the text would have more tokens than the pool has slots.'};
const refusal = ({call, code}) =>
  `${written(call)} = ${codeName(code)}: ${REASONS[code] ?? 'nothing has changed.'}`;
const TILDE = '("~" is a slot without a letter: step() has not written it.)';
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

const bench = Object.assign(new Figure(16, $('cache'), await newEngine()), {
  begin() {
    Object.assign(this, {size: 4, count: 16, hand: 'a'});
    this.perform(() => this.replay(['type a a cloud ']));
  },
  type(name, value) {
    this.perform(() => {
      this.hand = name;
      if (this.isLive(name)) this.attempt(`type ${name} ${clean(this, value)}`);
    });
  },
  // The same in a pool of another shape.
  resize() {
    const count = Math.floor($('count').value) || this.count;
    this.size = Number($('size').value);
    this.count = Math.max(1, Math.min(MAX_BLOCKS, count));
    this.perform(() => this.replay(this.wishes));
  },
  undo() { this.perform(() => this.replay(this.wishes.slice(0, -1))); },
  // A button of a row. Its sequence, or one that begins, is the one in hand.
  press(name, deed) {
    const child = deed === 'fork' ? this.free() : name, isNew = !this.isLive(child);
    this.perform(() => {
      const {value, selectionStart} = $(name);
      const how = deed === 'fork' ? selectionStart : isNew ? clean(this, value) : '';
      if (child) this.attempt(`${deed} ${name} ${how}`);
      else this.problem = 'All six names are in use: release a sequence first.';
      this.hand = isNew && this.isLive(child) ? child : name;
    });
  },

  draw() {
    const {activeElement: focused} = document, {free, blocks} = this.now;
    $('message').textContent = this.complaint();
    [$('size').value, $('count').value] = [this.size, this.count];
    $('free').replaceChildren(...free.map(i =>
      el('span', {class: `chip ${blocks[i]?.serial ? 'kept' : 'free'}`}, i)));
    if (!free.length) $('free').append('empty');
    NAMES.forEach(name => this.drawRow(name));
    $('blocks').replaceChildren(...this.blocksOf());
    $('made').textContent = this.problem ? '' : this.made();
    if ($('own').contains(focused) && !visible(focused)) $(this.hand).focus();
  },
  drawRow(name) {
    const isLive = this.isLive(name), row = $(name).parentNode;
    row.hidden = !isLive && name !== this.free();
    $(name).placeholder = isLive ? '' : 'a new sequence';
    if (isLive || row.dataset.live) put($(name), this.textOf(name));
    row.dataset.live = isLive ? 'yes' : '';
    for (const button of row.querySelectorAll('button'))
      button.hidden = isLive === /begin|find/.test(button.dataset.deed);
    $(`table-${name}`).replaceChildren(...this.tableOf(name));
  },
});

const DEEDS = {fork: 'Fork', publish: 'Publish', release: 'Release', begin: 'New', find: 'Look up'};
for (const name of NAMES)
  $('seqs').append(el('div', {class: 'seq', 'data-name': name, style: `--of: var(--${name})`},
    el('label', {class: 'chip', for: name}, name),
    el('input', {id: name, autocomplete: 'off', autocapitalize: 'off', spellcheck: false,
      'aria-label': `Text of sequence ${name}`}),
    el('span', {id: `table-${name}`}),
    ...Object.entries(DEEDS).map(([deed, title]) =>
      el('button', {'data-deed': deed, 'aria-label': `${title} ${name}`}, title))));

// A click in a row takes its sequence in hand.
$('seqs').onclick = ({target}) => {
  const {name} = target.closest('.seq').dataset, {deed} = target.dataset;
  if (deed) bench.press(name, deed);
  else bench.perform(() => { bench.hand = name; });
};
$('undo').onclick = () => bench.undo();
$('anew').onclick = () => bench.begin();
$('size').onchange = $('count').onchange = () => bench.resize();
// Each text box says what is typed; what an input method composes, when that is done.
oninput = ({target: {id, value}, isComposing}) => {
  if (isComposing) return;
  if (NAMES.includes(id)) bench.type(id, value);
  if (id === 'typed') oneText.type(value);
};
addEventListener('compositionend', oninput);
onkeydown = ({target: {id}, key, repeat, isComposing}) => {
  if (key !== 'Enter' || !NAMES.includes(id) || repeat || isComposing) return;
  bench.press(id, bench.isLive(id) ? 'fork' : 'begin');
  $(bench.hand).focus();
};
