// Your own engine, and every control: a part of the script of docs/play.html.

// ---- what you do, and what comes of it ----------------------------------------------------------

const bench = Object.assign(new Session(place), {later: edit => later(edit)});
// Each thing you do adds a moment to the past: the calls so far, the wishes they came from, and the
// shape of the pool. Undo and Redo go from moment to moment, back over a beginning, too.
const past = [{story: 'letters', size: 4, count: 16, calls: [], wishes: [], from: 0}];
let picked = 0;  // the word of a tale at which it is to fork; 0: the newest
let at = 0, hand = 'a', sights = {}, blind = false;
let problem = '';  // of what you did last
const moment = () => past[at], now = () => bench.now, free = () => bench.free();
const isLive = name => bench.isLive(name), textOf = name => bench.textOf(name);
const reach = ({story, ...more}) => bench.reach({start: modeOf(story).start, ...more});

// What attention sees of each token, for the newest one of the sequence in hand.
async function look() {
  const letters = textOf(hand), {seqs, tales} = now(), held = seqs[hand]?.length ?? 0;
  const known = tales || letters.length === held && !letters.includes('~');
  sights = {};
  if (!tales?.[hand]?.words[picked]) picked = 0;
  if (blind || !held || !known) return;
  const call = tales ? make('look', `&${hand}`) : make('attention', hand, {text: letters});
  await place.ask(false, [call], state => { sights = state; });
  blind = sights.lost;
  if (blind) problem = `${written(call)}: ${sights.stopped}`;
}

// Does what is wished. A wish is a verb, what it is done to, and how; the mode knows its calls.
// Names and texts are those of the moment at which the calls are made; a wish that is out of date
// makes none.
async function grant(wishes, changes) {
  const old = moment(), next = {...old, ...changes};
  next.calls = [...next.calls];
  next.wishes = [...next.wishes, ...wishes];
  next.from = next.calls.length;
  const add = () => { past.length = ++at; past.push(next); };
  if (changes) add(), await reach(next);
  for (const wish of bench.states[0]?.stopped ? [] : wishes) {  // without a pool, nothing
    const first = next.calls.length, {verb, what, how} = parsed(wish);
    for (const call of mode().wishes[verb]?.(bench, what, how) ?? []) {
      if (moment() !== next) add();
      if (/type|begin|find/.test(verb)) hand = what;
      next.calls.push(call);
      await reach(next);
      if (now().lost) {  // it is left out, and the engine begun again
        problem = `${written(next.calls.pop())}: ${now().stopped}`;
        return reach(next);
      }
      if (now().code && next.calls.slice(first).some(({fn}) => fn === 'seq_rewind')) {
        problem += ` ${refusal(now())} The text stays as it was.`;
        next.calls.length = first;  // the letters after a change come back
        return reach(next);
      }
      if (now().code || now().stopped) break;
    }
  }
}

// All that you do goes through one queue, and begins when all before it has ended.
let queue = Promise.resolve(), moving = 0;
const later = edit => {
  moving++;
  return queue = queue
    .then(() => {
      problem = $('note').textContent = '';
      return edit();
    })
    .then(look)
    .then(() => kernel.attend(bench, hand))
    .catch(error => { problem ||= error.message; })
    .then(() => { moving--; draw(); });
};

// ---- modes: letters, or the tales of a model ----------------------------------------------------
// What is said, which rows there are and what their buttons do, and the calls of a wish.

const letters = {
  start: 'start', size: 4, count: 16, begin: ['type a cloud '],
  help: () => 'Fork (or Enter): another sequence begins with these tokens, in the same blocks. ' +
    'Publish: its full blocks can be found by their letters. Look up: begins with blocks that ' +
    'are found. Release: its blocks are free.',
  says: () => 'A token is a letter. Every key you press is a call to the engine.',
  row: (name, live) => ({label: `Text of sequence ${name}`, hint: 'a new sequence',
    ...live ? {fork: 'Fork', publish: 'Publish', release: 'Release'}
      : {begin: 'New', find: 'Look up'}}),
  wishes: LETTERS,
};
const telling = {
  start: 'model', size: 4, count: 64, begin: ['begin a', 'tell 48'],
  help: () => '',
  says() {
    const {steps = 0, computed = 0, recomputed = 0, preemptions = 0} = now();
    return 'A token is a word, or a part of one. As the model writes a name, one of its heads ' +
      'looks where it stood before: such words are marked. Step to the next name. Or pick a ' +
      `word, fork there, and run. ${steps} steps, ${computed} tokens computed, ${recomputed} of them again. ` +
      `Preemptions: ${preemptions}.`;
  },
  row(name, live) {
    const word = name === hand && picked && now().tales[name].words[picked].trim();
    return live ? {fork: word ? `Fork at "${word}"` : 'Fork', release: 'Release'} : {begin: 'New'};
  },
  isOver: () => Object.values(now().tales ?? {}).every(({state}) => state === 'ended'),
  wishes: {
    *begin(on, name) {
      if (isLive(name)) return;
      yield make('tale', `&${name}`, NAMES.indexOf(name));
      yield make('tell');
    },
    *tell(on, n) { for (; n > 0 && !telling.isOver(); n--) yield make('tell'); },
    *fork(on, name, n) {
      if (!isLive(name) || !free() || n > now().tales[name].words.length) return;
      yield make('branch', `&${name}`, Number(n), `&${free()}`);
      yield make('tell');
    },
    *release(on, name) { if (isLive(name)) yield make('forget', `&${name}`); },
  },
};
const MODES = {letters, tales: telling};
const modeOf = story => MODES[story] ?? letters;
const mode = () => modeOf(moment().story);
const teller = new Player('run', async () => {
  const {steps} = now();
  await later(() => mode() === telling && grant(['tell 1']));
  return now().steps > steps && !telling.isOver();
}, () => 50);
// A link leads to letters, to tales, or to a section of the page.
const goTo = link => later(async () => {
  const section = document.querySelector(`main > [id="${CSS.escape(link)}"]`);
  teller.stop();
  section?.setAttribute('tabindex', -1);
  section?.focus({preventScroll: true});
  if (at && section) return;
  if (link && !section && !Object.hasOwn(MODES, link)) problem = `There is no part "${link}". `;
  if (modeOf(link) === telling)
    files ??= await bring().catch(error => { problem = `${error.message} `; });
  if (link && !section) $('bench').open = true, $('bench').firstElementChild.focus();
  const story = !problem && Object.hasOwn(MODES, link) ? link : 'letters';
  const {size, count, begin} = MODES[story];
  [hand, picked] = ['a', 0];
  return grant(begin, {story, size, count, slots: size * count, calls: [], wishes: []});
});

// ---- drawing ------------------------------------------------------------------------------------

// What a call has done to the blocks.
const effect = (was, is) => [[was.free.length - is.free.length, 'taken'],
  [is.free.length - was.free.length, 'freed'], [is.copies - was.copies, 'copied']]
  .filter(([n]) => n > 0).map(([n, what]) => `blocks ${what}: ${n}`).join(', ');

// What went wrong in the newest calls, in words.
const REASONS = {2: 'too few blocks are free. Release a sequence, or add blocks.',
  3: 'that is more than the whole pool can hold.'};
const refusal = ({call, code}) =>
  `${written(call)} = ${codeName(code)}: ${REASONS[code] ?? 'nothing has changed.'}`;
const TILDE = '"~" is a slot without a letter: step() has not written it.';
function complaint() {
  const {wrong, seqs} = now();
  const {call, code, stopped} = bench.states.slice(1 + moment().from).findLast(
    state => state.stopped || state.code) ?? (now().stopped || now().code ? now() : {});
  const unwritten = Object.keys(seqs).find(name => !now().tales && textOf(name).includes('~'));
  const long = Object.keys(seqs).find(name => seqs[name].length !== bench.walk(name).length);
  const found = wrong || (stopped ? `${written(call)}: ${stopped}` : code ? refusal({call, code})
    : long ? `${long}->length is ${seqs[long].length}, but its table has ${
      seqs[long].table.length} blocks.` : '');
  return `${problem} ${found} ${unwritten ? TILDE : ''}`.trim();
}
// What is wrong with the engine itself.
function alarm() {
  const {element, by, is, should} = sights.differs ?? {}, {stopped, wrong} = now();
  if (by) return `Your attend() differs from the oracle by ${by}, first in row ${
    now().seqs[hand].length - 1}, head 0, element ${element}: it has ${is}, the oracle ${
    should}. The bars of attention below are the oracle's.`;
  return stopped || wrong ? complaint() : '';
}

function draw() {
  const {activeElement} = document;
  $('starting').hidden = !(document.querySelector('main').hidden = false);
  $('alarm').textContent = alarm();
  $('message').textContent = complaint();
  $('cache').classList.toggle('telling', Boolean(now().tales));
  drawPool(bench.states[moment().from] ?? now());
  NAMES.forEach(drawRow);
  drawCalls();
  for (const part of ['says', 'help']) $(part).textContent = mode()[part]();
  $('step').hidden = $('run').hidden = mode() !== telling;
  const hash = `#${moment().story}`;
  for (const link of $('own').querySelectorAll('a')) link.ariaCurrent = link.hash === hash;
  if (Object.hasOwn(MODES, location.hash.slice(1)) && location.hash !== hash)
    history.replaceState(null, '', hash);
  keepFocus(activeElement);
  point();
  kernel.draw();
}

function drawPool(old) {
  const {blocks, free} = now(), {size, count} = moment(), taken = blocks.length - free.length;
  const used = new Set(NAMES.flatMap(name => bench.walk(name).map(String))).size;
  $('blocks').replaceChildren(...blocksOf(bench, old, hand, sights.weights));
  $('free').replaceChildren(...free.map(i =>
    el('span', {class: `chip ${blocks[i]?.serial ? 'kept' : 'free'}`}, i)));
  if (!free.length) $('free').append('empty');
  $('numbers').textContent = `${taken} of ${count} blocks taken, ${Math.round(
    100 * used / (taken * size || 1))}% of their slots used. ×: ref_count. #: published. ` +
    'Framed: changed by this step. Bar: attention.';
  [$('size').value, $('count').value] = [size, count];
}

let typing = 0;  // how many changes of texts are still in the queue
let composing = '';
function drawRow(name) {
  const live = isLive(name), input = $(name), row = input.parentNode, letters = textOf(name);
  const looks = mode().row(name, live), {table = []} = now().seqs[name] ?? {};
  row.hidden = !live && name !== free();
  input.hidden = !looks.label;
  input.ariaLabel = looks.label;
  input.placeholder = looks.hint;
  if (!live && row.dataset.live) input.value = '';
  if (live && !now().tales && !typing && composing !== name && input.value !== letters) {
    const [caret, length] = [input.selectionStart, input.value.length];
    input.value = letters;
    if (letters.length >= length) input.setSelectionRange(caret, caret);
  }
  row.dataset.live = live ? 'yes' : '';
  $(`table-${name}`).replaceChildren(...chipsOf(table));
  for (const button of row.querySelectorAll('button')) {
    button.textContent = looks[button.dataset.do] ?? '';
    button.hidden = !button.textContent;
    button.ariaLabel = `${button.textContent} ${name}`;
  }
  drawTale(name);
}

// The words of a tale. One of them is picked; those that attention sees glow.
function drawTale(name) {
  const {words = [], state} = now().tales?.[name] ?? {}, inHand = name === hand;
  $(`words-${name}`).hidden = !words.length;
  $(`words-${name}`).replaceChildren(...words.slice(1).map((word, i) => el('span', {
    'data-word': i + 1, class: inHand && i + 1 === picked ? 'here' : '',
    style: inHand ? `--w: ${sights.weights?.[i + 1] ?? 0}` : ''}, word)),
    {waiting: ' (waits)', ended: words.length > moment().size * moment().count
      ? ' (cut off: no slot is left)' : ' (has ended: its blocks are free)'}[state] ?? '');
}

function drawCalls() {
  const {states} = bench, first = Math.max(0, states.length - 100);
  $('calls').replaceChildren(...states.slice(first).map((state, i) => {
    const {call, code, stopped, said, tales, calls} = state, was = states[first + i - 1] ?? state;
    const inside = tales && calls.map(({call, code}) =>
      `${call}${code ? ` = ${codeName(code)}` : ''}`).join(', ');
    return el('li', {}, el('code', {}, written(call)), ' ',
      el('span', {class: stopped || code ? 'bad' : ''},
        stopped ? 'stopped' : `= ${codeName(code)}`), el('br'),
      el('small', {}, stopped || inside || effect(was, state), said ? ` It prints: ${said}` : ''));
  }));
  $('calls').scrollTop = 1e6;
}

let aim = '';  // the sequence that gets the focus when it is drawn
function keepFocus(focused) {
  if (aim) $(aim).focus(), $(aim).setSelectionRange(MAX_LETTERS, MAX_LETTERS);
  if (aim || visible(focused) || !$('own').contains(focused)) return aim = '';
  const row = focused.closest('.seq');
  const near = (row ? [row, ...$('seqs').children] : [$('own')]).flatMap(part =>
    [...part.querySelectorAll('a, input, button, summary')].filter(visible));
  (near.find(({localName}) => localName === focused.localName) ?? near[0])?.focus();
}

// Says how token t of a sequence is found. Without a token: the newest of the sequence in hand.
function point(name = hand, t = bench.walk(hand).length - 1) {
  const [block, slot] = bench.walk(name)[t] ?? [], {size} = moment();
  const chip = $(`table-${name}`).children[Math.floor(t / size)];
  for (const old of $('cache').querySelectorAll('.here:not(.words *)')) old.classList.remove('here');
  const word = now().tales?.[name]?.words[t], seen = name === hand ? sights.weights?.[t] : -1;
  const says = `${name}: t = ${t}${word ? `, "${word.trim()}"` : ''} → table[${t} / ${size}] = ` +
    `block ${block}, slot ${slot}.${seen >= 0 ? ` Attention: ${Math.round(100 * seen)} %.` : ''}`;
  $('where').textContent = block >= 0 ? says : '';
  chip?.classList.add('here');
  $('blocks').querySelector(`[data-at="${block},${slot}"]`)?.classList.add('here');
}

// ---- what you can do ----------------------------------------------------------------------------

// A token is a letter, of those that C can write down.
function clean(text) {
  const all = text.normalize('NFD').replace(/\p{M}/gu, '').replace(/[^ -}]|["\\]/gu, '?');
  const letters = all.slice(0, MAX_LETTERS), lost = all.length - letters.length;
  if (all !== text.normalize('NFD')) problem = 'A token here is one ASCII character, not " \\ or ~: ' +
    `"${text.slice(0, MAX_LETTERS)}" became "${letters}". `;
  if (lost) problem += `A line has ${MAX_LETTERS} letters at most: the last ${lost} of yours ${
    lost > 1 ? 'are' : 'is'} left out.`;
  return letters;
}
function typed({id, value}) {
  typing++;
  later(() => {
    typing--;
    return type(id, value);
  });
}
const type = (name, text) => isLive(name) && grant([`type ${name} ${clean(text)}`]);
// The same in a pool of another shape. Another block_size keeps the number of slots.
const resize = (id, value) => later(() => {
  const {wishes, ...old} = moment(), size = id === 'size' ? Number(value) : old.size;
  const slots = id === 'size' ? old.slots : size * Math.floor(value) || old.slots;
  const count = Math.max(1, Math.min(MAX_BLOCKS, Math.floor(slots / size)));
  return grant(wishes, {size, count, slots, calls: [], wishes: []});
});
const deeds = {
  undo: () => later(() => reach(past[at = Math.max(1, at - 1)])),
  redo: () => later(() => reach(past[at = Math.min(past.length - 1, at + 1)])),
  step: () => later(() => grant(['tell 1'])),
  copy: () => later(() => navigator.clipboard.writeText([
    '// As calls.c, beside paged.cu.c: cc -DPAGED_NO_MAIN calls.c paged.cu.c -lm && ./a.out',
    '#include "examples/play.c"', 'int main(void)', '{',
    ...bench.states.map(({call}) => `    CALL(${written(call)});`), '}', ''].join('\n'))
    .then(() => {
      $('note').textContent = 'The calls are copied. The first line says how to compile them.';
    })),
};
function actInRow(name, deed) {
  const n = $(name).selectionStart, typing = document.activeElement === $(name);
  later(async () => {
    if (!now().tales && /begin|find/.test(deed)) aim = name;
    if (deed !== 'fork') return grant([`${deed} ${name} ${clean($(name).value)}`]);
    const child = free(), {words} = now().tales?.[name] ?? {};
    if (!child) problem = 'All six names are in use: release a sequence first.';
    await grant([`fork ${name} ${words ? name === hand && picked || words.length : n}`]);
    if (isLive(child)) [hand, picked, aim] = [child, 0, typing ? child : ''];
  });
}
const pick = (name, t) => later(() => { [hand, picked] = [name, t]; });
onclick = ({target}) => {
  if (target.hash && target.hash === location.hash) goTo(target.hash.slice(1));  // once more
  const {do: deed, word} = target.dataset ?? {}, name = target.closest('.seq')?.dataset.name;
  if (deed) teller.stop();
  if (word) pick(name, Number(word));
  if (deed && name) actInRow(name, deed);
  else if (deed) deeds[deed](target);
};
onkeydown = event => {
  const {target, key, ctrlKey, repeat, isComposing} = event, row = target.closest('.seq');
  const pressed = `${ctrlKey ? 'Ctrl+' : ''}${key}`;
  const step = target.matches('.words') && {ArrowLeft: -1, ArrowRight: 1}[key];
  if (step) pick(row.dataset.name, Math.max(1, (picked || target.childElementCount + 1) + step));
  const button = [...document.querySelectorAll('[data-key]:not([hidden])')].find(one =>
    one.dataset.key === pressed && [row, null].includes(one.closest('.seq')));
  if (!button || isComposing || key === 'Enter' && !ctrlKey && !target.matches('input, .words'))
    return;
  event.preventDefault();
  if (!repeat || !button.closest('.seq')) button.click();
};
oninput = ({target, isComposing}) => {
  if (target.closest('.seq') && !isComposing) typed(target);
};
addEventListener('compositionstart', ({target}) => { composing = target.id; });
addEventListener('compositionend', ({target}) => {
  composing = '';
  if (target.closest('.seq')) typed(target);
});
// What you type while a call is to come goes where the focus is after that call.
addEventListener('beforeinput', event => {
  const {target, data, inputType, isComposing} = event;
  if (moving === typing || isComposing || !target.closest('.seq')) return;
  event.preventDefault();
  later(() => {
    const input = document.activeElement;
    if (!input.closest('.seq') || input.localName !== 'input') return;
    const {selectionStart: from, selectionEnd: to, id} = input, text = input.value;
    const back = inputType.startsWith('delete') && from === to ? 1 : 0;
    input.setRangeText(data ?? '', Math.max(0, from - back), to, 'end');
    return type(id, input.value);
  });
});
addEventListener('focusin', ({target: {id}}) => {
  if (NAMES.includes(id) && id !== hand) later(() => { if (isLive(id)) hand = id; });
});
onchange = ({target: {id, value}}) => {
  if (id === 'size' || id === 'count') resize(id, value);
};
onpointerover = onpointerdown = ({target}) => {
  const place = $('blocks').contains(target) && target.dataset.at;
  const find = name => bench.walk(name).findIndex(where => `${where}` === place);
  const [name, t] = [hand, ...NAMES].map(name => [name, find(name)]).find(([, t]) => t >= 0) ?? [];
  if (name) point(name, t);
};
document.onselectionchange = () => {
  const {id, selectionStart} = document.activeElement;
  if (isLive(id) && id === hand && !moving && !now().tales)
    point(id, Math.max(0, selectionStart - 1));
};
onhashchange = () => goTo(location.hash.slice(1));
onresize = () => text.point(text.t);

const KEYS = {fork: 'Enter', begin: 'Enter', publish: 'Ctrl+Enter', find: 'Ctrl+Enter',
  release: 'Ctrl+Delete'};
for (const name of NAMES)
  $('seqs').append(el('div', {class: 'seq', 'data-name': name, style: `--of: var(--${name})`},
    el('label', {class: 'chip', for: name}, name),
    el('input', {id: name, autocomplete: 'off', autocapitalize: 'off',
      spellcheck: false}),
    el('span', {id: `table-${name}`}),
    ...Object.entries(KEYS).map(([deed, key]) =>
      el('button', {'data-do': deed, 'data-key': key, title: key})),
    el('p', {id: `words-${name}`, class: 'words', tabindex: 0})));
