// The stories of docs/play.html, a part of its script.

// What questions ask for, from the states before and after, and those between.
const WORDS = ['none', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight'];
const word = n => WORDS[n] ?? `${n}`;
const taken = (was, now) => word(was.free.length - now.free.length);
const freed = (was, now) => taken(now, was);
const copied = (was, now) => word(now.copies - was.copies);
const published = (was, now) => word(now.blocks.filter(block => block.serial).length);
const codeOf = (was, now, all) =>
  codeName(all.findLast(({call}) => call.fn === 'seq_append')?.code);
const found = (was, now, all) => word(Object.entries(
  all.find(({call}) => call.fn === 'seq_lookup')?.seqs ?? {}).at(-1)?.[1].length);
// The answers that a question offers.
const offers = measure => measure === codeOf
  ? ['PAGED_OK', 'PAGED_OUT_OF_BLOCKS', 'PAGED_TOO_LONG']
  : measure === found ? ['none', 'four', 'eight', 'eleven'] : ['none', 'one', 'two', 'three'];
// A story: what is done and told at first, and then questions: what is asked, what is done to see
// it, what to look for, what a right engine shows, and why. It leads to a chapter of the
// walkthrough and to a function of the engine.
const STORIES = {
  sampling: {title: 'Parallel sampling', size: 4, count: 16,
    chapter: '8-sharing-fork-and-copy-on-write', read: 'seq_fork',
    begin: ['type a cloud '], told: 'a is a prompt that is to get two answers.', questions: [
      ['A fork begins with the tokens of another sequence. b is forked from a. How many blocks ' +
        'does that take?', ['fork a 6'], taken, 'none',
        'Both tables name the same blocks. ref_count, ×2, says how many tables do.'],
      ['a gets a letter. How many blocks are copied?', ['type a cloud s'], copied, 'one',
        'Its last block was shared.'],
      ['b gets a letter. How many copies now?', ['type b cloud i'], copied, 'none',
        'By now only b uses the original.']]},
  beam: {title: 'Beam search', size: 4, count: 16,
    chapter: '8-sharing-fork-and-copy-on-write', read: 'seq_append',
    begin: ['type a she s', 'fork a 5', 'type a she sat', 'type b she sai'],
    told: 'The two likeliest continuations survive each step: here a and b.', questions: [
      ['Both survivors continue b: c is forked from it, and a ends. How many blocks become free?',
        ['fork b 7', 'release a'], freed, 'one', 'No other table named it.'],
      ['b and c get a letter each. How many blocks are copied?',
        ['type b she said', 'type c she sail'], copied, 'one',
        'b found a ref_count of 2 and copied; then c found 1.']]},
  draft: {title: 'Speculative decoding', size: 4, count: 16,
    chapter: '9-speculative-decoding-and-rewind', read: 'seq_rewind',
    begin: ['type a once upon a time t'], told: 'a is to get a draft, "here".', questions: [
      ['How many blocks do these four guesses take?', ['type a once upon a time there'],
        taken, 'one', 'The last block had room for two of them.'],
      ['Only the "h" is right. How many blocks does the rewind free?',
        ['type a once upon a time th'], freed, 'one', 'Only wrong guesses were in it.'],
      ['b is forked from a. Then a rewinds into a block that b uses. How many copies?',
        ['fork a 19', 'type a once upon a'], copied, 'none',
        'A rewind takes no block: it cannot fail.'],
      ['a gets a letter. How many copies now?', ['type a once upon a '], copied, 'one',
        'The next append pays for it.']]},
  prefix: {title: 'Prefix cache', size: 4, count: 8,
    chapter: '10-the-prefix-cache', read: 'seq_lookup',
    begin: ['type a be kind. Hi', 'publish a', 'release a'], told: '"be kind. Hi" was ' +
      'published: its full blocks can be found. It has ended; they are free.', questions: [
      ['"be kind. Bye" comes and is looked up. How many of its letters are found?',
        ['find b be kind. Bye'], found, 'eight',
        'Full blocks are found, each by its letters and all before them.'],
      ['It publishes and ends. A text of 27 letters takes 7 of the 8 blocks. How many of the 3 ' +
        'published blocks remain?',
        ['publish b', 'release b', 'find c once upon a time, in a land'], published, 'one',
        'First it takes those that hold nothing, then the ends of texts.'],
      ['It ends. How many letters does the next "be kind. Hi" find?',
        ['release c', 'find d be kind. Hi'], found, 'four',
        'The end was evicted before the beginning.']]},
  full: {title: 'Out of blocks', size: 4, count: 5, chapter: '11-running-out', read: 'seq_append',
    begin: ['type a once', 'type b he was'],
    told: 'In a pool of five blocks, a and b grow.', questions: [
      ['c needs 35 tokens. What does its append return?',
        ['type c once upon a time in a land far away', 'release c'], codeOf, 'PAGED_TOO_LONG',
        'The pool has 20 slots. That is final: c is refused.'],
      ['a has 8 letters, b has 10. What does the 9th of a return?',
        ['type a once upo', 'type b he was her', 'type a once upon'], codeOf, 'PAGED_OUT_OF_BLOCKS',
        'It may try again later. Nothing has changed.'],
      ['b is newer, and gives way. And now?', ['release b', 'type a once upon'], codeOf, 'PAGED_OK',
        'b waits until a ends, and then all its tokens are computed again.']]},
  tales: {title: 'A real model', size: 4, count: 64,
    chapter: '13-a-real-model-on-top', read: 'pool_plan', begin: ['begin a', 'tell 48'],
    told: 'As the model writes a name, one of its heads looks where it stood before: such words ' +
      'are marked. Step to the next name. Or pick a word, fork there, and run.'},
  crowd: {title: 'Tales in a small pool', size: 4, count: 48,
    chapter: '11-running-out', read: 'seq_release',
    begin: ['begin a', 'begin b', 'begin c', 'tell 30'],
    told: 'Three tales grow in a pool too small for all of them. Run: as it fills, the newest ' +
      'gives its blocks back and waits. Later, all its tokens are computed again.'},
};
function leads({story} = moment()) {
  const names = Object.keys(STORIES), next = names[(names.indexOf(story) + 1) % names.length];
  const {chapter, read} = STORIES[story], file = $('engine').textContent;
  const line = Object.keys(SOURCE).find(n => SOURCE[n].text.includes(` ${read}(`));
  const text = Object.keys(SOURCE).filter(n => SOURCE[n].fn === read).map(n => SOURCE[n].text);
  return ['Next: ', el('a', {href: `#${next}`}, STORIES[next].title),
    `. Read chapter ${parseInt(chapter)} of walkthrough.md, in the folder above this page. Write it: `,
    el('code', {}, 'make learn'), '.', el('details', {}, el('summary', {}, `${read}(), line ${
      line} of ${file}`), el('pre', {tabindex: 0, 'aria-label': read}, text.join('\n')))];
}
const alike = (a, b) => [...a].findIndex((letter, i) => letter !== b[i]);

// ---- modes: what differs from story to story ----------------------------------------------------
// What is said of it, which rows there are and what their buttons do, and the calls of a wish.

const letters = {
  start: 'start',
  token: () => 'Here a token is a letter.',
  help: () => 'Fork (or Enter): another sequence begins with these tokens, in the same blocks. ' +
    'Publish: its full blocks can be found by their letters. Look up: begins with blocks that ' +
    'are found. Release: its blocks are free.',
  says: () => moment().answer,
  asks: () => question() ? (moment().mine ? 'Back to the story: ' : '') + question()[0]
    : 'Go on: type, or choose another block_size.',
  row: (name, live) => ({label: `Text of sequence ${name}`, hint: 'a new sequence',
    ...live ? {fork: 'Fork', publish: 'Publish', release: 'Release'}
      : {begin: 'New', find: 'Look up'}}),
  wishes: {
    *type(name, text) {
      const old = textOf(name), same = alike(`${text}\0`, old), more = text.length - same;
      hand = name;
      if (!isLive(name)) yield make('seq_create', 'pool', `&${name}`);
      if (same < old.length) yield make('seq_rewind', name, old.length - same);
      if (!more) return;
      yield make('seq_append', name, more);
      yield make('step', name, {text});
    },
    *begin(name, text) { if (!isLive(name)) yield* this.type(name, text); },
    *find(name, text) {
      if (isLive(name)) return;
      yield make('seq_create', 'pool', `&${name}`);
      yield make('seq_lookup', name, {tokens: text}, text.length);
      yield* this.type(name, text);
    },
    *fork(name, n) {
      if (!isLive(name) || !free()) return;
      yield make('seq_fork', name, Math.min(n, textOf(name).length), `&${free()}`);
    },
    *publish(name) {
      const text = textOf(name);
      if (isLive(name)) yield make('seq_publish', name, {tokens: text}, text.length);
    },
    *release(name) { if (isLive(name)) yield make('seq_release', name); },
  },
};

const telling = {
  start: 'model',
  help: () => '',
  token: () => 'Here a token is a word, or a part of one.',
  says() {
    const {steps = 0, computed = 0, recomputed = 0, preemptions = 0} = now();
    return `${steps} steps, ${computed} tokens computed, ${recomputed} of them again. ` +
      `Preemptions: ${preemptions}.`;
  },
  asks: () => STORIES[moment().story].told,
  row(name, live) {
    const word = name === hand && picked && now().tales[name].words[picked].trim();
    return live ? {fork: word ? `Fork at "${word}"` : 'Fork', release: 'Release'} : {begin: 'New'};
  },
  isOver: () => Object.values(now().tales ?? {}).every(({state}) => state === 'ended'),
  wishes: {
    *begin(name) {
      if (isLive(name)) return;
      yield make('tale', `&${name}`, NAMES.indexOf(name));
      yield make('tell');
    },
    *tell(n) { for (; n > 0 && !telling.isOver(); n--) yield make('tell'); },
    *fork(name, n) {
      if (!isLive(name) || !free() || n > now().tales[name].words.length) return;
      yield make('branch', `&${name}`, Number(n), `&${free()}`);
      yield make('tell');
    },
    *release(name) { if (isLive(name)) yield make('forget', `&${name}`); },
  },
};
const modeOf = story => ({tales: telling, crowd: telling})[story] ?? letters;
const mode = () => modeOf(moment().story);
const teller = new Player('run', async () => {
  const {steps} = now();
  await later(() => mode() === telling && act(['tell 1']));
  return now().steps > steps && !telling.isOver();
}, () => 50);

// ---- a story -----------------------------------------------------------------------------------

// The weights of the model are in a file beside the page.
const bring = () => new Promise((done, fail) => document.head.append(Object.assign(
  document.createElement('script'), {src: 'tales.js', onload: () => done(Promise.all(
    tales.map(unpack))), onerror: () => fail(Error('tales.js is not beside this page.'))})));
const question = ({story, asked} = moment()) => STORIES[story].questions?.[asked];
const capital = text => text[0].toUpperCase() + text.slice(1);
const open = link => later(async () => {
  teller.stop();
  if (link && !Object.hasOwn(STORIES, link)) problem = `There is no story "${link}". `;
  if (modeOf(link) === telling)
    files ??= await bring().catch(error => { problem = `${error.message} `; });
  const story = link && !problem ? link : 'sampling', {size, count, begin, told} = STORIES[story];
  if (problem) $(`to-${story}`).focus({preventScroll: true});
  $('stories').scrollLeft = $(`to-${story}`).offsetLeft - 24;
  const back = at && moment().mine ? ' Undo brings your lines back.' : '';
  [hand, picked] = ['a', 0];
  return act(begin, {story, asked: 0, size, count, slots: size * count, calls: [], wishes: [],
    mine: false, answer: told + back});
});
// A story goes on from where it was, whatever you have done since. Undo goes back to that.
const tell = guess => later(async () => {
  const told = past.slice(0, at + 1).findLast(({mine}) => !mine);
  const [, wishes, measure, right, because] = question(told) ?? [];
  if (!wishes) return;
  await run(told);
  const was = now();
  await act(wishes, {...told, asked: told.asked + 1, answer: ''});
  const shown = measure(was, now(), states.slice(1 + told.calls.length));
  const verdict = !guess ? capital(right) : guess === right ? `Right: ${right}` : `No: ${right}`;
  moment().answer = shown === right ? `${verdict}. ${because}`
    : `${capital(shown)}, in this engine. The right answer is: ${right}. ${because}`;
}).then(() => document.querySelector('#blocks .new')?.scrollIntoView({block: 'nearest'}));
