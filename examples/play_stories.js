// The stories and the challenge of docs/play.html, a part of its script.

// What questions ask for, from the states before and after, and those between.
const WORDS = ['none', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight'];
const word = n => WORDS[n] ?? `${n}`;
const taken = (was, now) => word(was.free.length - now.free.length);
const freed = (was, now) => word(now.free.length - was.free.length);
const copied = (was, now) => word(now.copies - was.copies);
const published = (was, now) => word(now.blocks.filter(block => block.serial).length);
const codeOf = (was, now, all) =>
  codeName(all.findLast(({call}) => call.startsWith('seq_append'))?.code);
const found = (was, now, all) => word(Object.entries(
  all.find(({call}) => call.startsWith('seq_lookup'))?.seqs ?? {}).at(-1)?.[1].length);
// The answers that a question offers.
const offers = measure => measure === codeOf
  ? ['PAGED_OK', 'PAGED_OUT_OF_BLOCKS', 'PAGED_TOO_LONG']
  : measure === found ? ['none', 'four', 'eight', 'eleven'] : ['none', 'one', 'two', 'three'];
// A story: title, block_size, num_blocks, what is done and told at first. Then questions: what is
// asked, what is done to see it, what to look for, what a right engine shows, and why.
const STORIES = {
  sampling: ['Parallel sampling', 4, 16, ['a: cloud '], 'a is a prompt that is to get two answers.',
    ['A fork begins with the tokens of another sequence. b is forked from a. How many blocks does ' +
      'that take?', ['fork a 6'], taken, 'none',
      'Both tables name the same blocks. ref_count, ×2, says how many tables do.'],
    ['a gets a letter. How many blocks are copied?', ['a: cloud s'], copied, 'one',
      'Its last block was shared.'],
    ['b gets a letter. How many copies now?', ['b: cloud i'], copied, 'none',
      'By now only b uses the original.']],
  beam: ['Beam search', 4, 16, ['a: she s', 'fork a 5', 'a: she sat', 'b: she sai'],
    'The two likeliest continuations survive each step: here a and b.',
    ['Both survivors continue b: c is forked from it, and a ends. How many blocks become free?',
      ['fork b 7', 'release a'], freed, 'one', 'No other table named it.'],
    ['b and c get a letter each. How many blocks are copied?', ['b: she said', 'c: she sail'],
      copied, 'one', 'b found a ref_count of 2 and copied; then c found 1.']],
  draft: ['Speculative decoding', 4, 16, ['a: once upon a time t'], 'a is to get a draft, "here".',
    ['How many blocks do these four guesses take?', ['a: once upon a time there'], taken, 'one',
      'The last block had room for three of them.'],
    ['Only the "h" is right. How many blocks does the rewind free?', ['a: once upon a time th'],
      freed, 'one', 'Only the last guess was in it.'],
    ['b is forked from a. Then a rewinds into a block that b uses. How many copies?',
      ['fork a 19', 'a: once upon a'], copied, 'none', 'A rewind takes no block: it cannot fail.'],
    ['a gets a letter. How many copies now?', ['a: once upon a '], copied, 'one',
      'The next append pays for it.']],
  prefix: ['Prefix cache', 4, 8, ['a: be kind. Hi', 'publish a', 'release a'],
    '"be kind. Hi" was published: its full blocks can be found. It has ended; they are free.',
    ['"be kind. Bye" comes and is looked up. How many of its letters are found?', ['b? be kind. Bye'], found,
      'eight', 'Full blocks are found, each by its letters and all before them.'],
    ['It publishes and ends. A text of 27 letters takes 7 of the 8 blocks. How many of the 3 ' +
      'published blocks remain?', ['publish b', 'release b', 'c? once upon a time, in a land'],
      published, 'one', 'First it takes those that hold nothing, then the ends of texts.'],
    ['It ends. How many letters does the next "be kind. Hi" find?', ['release c', 'd? be kind. Hi'],
      found, 'four', 'The end was evicted before the beginning.']],
  full: ['Out of blocks', 4, 5, ['a: once', 'b: he was'], 'In a pool of five blocks, a and b grow.',
    ['c needs 34 tokens. What does its append return?', ['append c 34', 'release c'], codeOf,
      'PAGED_TOO_LONG', 'The pool has 20 slots. That is final: c is refused.'],
    ['a has 8 letters, b has 10. What does the 9th of a return?',
      ['a: once upo', 'b: he was her', 'a: once upon'], codeOf, 'PAGED_OUT_OF_BLOCKS',
      'It may try again later. Nothing has changed.'],
    ['b is newer, and gives way. And now?', ['release b', 'a: once upon'], codeOf, 'PAGED_OK',
      'b waits until a ends, and then all its tokens are computed again.']],
  tales: ['A real model', 4, 64, ['tale a 0', 'tell a 48'], 'Where did the model find the name ' +
    'that it has just written? Pick any word to see what it looked at. Fork or rewind there, ' +
    'with another word, and run.'],
  crowd: ['Tales in a small pool', 4, 48, ['tale a 0', 'tale b 1', 'tale c 2', 'tell a 30'],
    'Three tales grow in a pool that holds one and a half. Run: which has to wait?'],
  serve: ['Challenge: serve five', 4, 8, [], 'Serve these five requests in eight blocks. A step ' +
    'adds a letter to each that is running. 11 steps are enough.'],
};
// Where a story leads: a chapter of the walkthrough, and what to read of the engine.
const LEADS = {
  sampling: ['8-sharing-fork-and-copy-on-write', 'seq_fork'],
  beam: ['8-sharing-fork-and-copy-on-write', 'seq_append'],
  draft: ['9-speculative-decoding-and-rewind', 'seq_rewind'],
  prefix: ['10-the-prefix-cache', 'seq_lookup'],
  full: ['11-running-out', 'seq_append'],
  tales: ['13-a-real-model-on-top', 'pool_plan'],
  crowd: ['11-running-out', 'seq_release'],
  serve: ['11-running-out', 'seq_publish'],
};
function leads({story} = moment()) {
  const names = Object.keys(STORIES), next = names[(names.indexOf(story) + 1) % names.length];
  const [chapter, name] = LEADS[story], file = $('engine').textContent;
  const line = Object.keys(SOURCE).find(n => SOURCE[n].text.includes(` ${name}(`));
  return ['Next: ', el('a', {href: `#${next}`}, STORIES[next][0]), '. Read ',
    el('a', {href: `../walkthrough.md#${chapter}`}, `chapter ${parseInt(chapter)}`), ' and ',
    el('a', {href: `../${file}`}, `${name}(), line ${line} of ${file}`), '. Write it: ',
    el('code', {}, 'make learn'), '.'];
}
// The challenge: five requests, each with a prompt, which is computed at once, and an answer, of
// which each step brings a letter. A name stands for one request. The link has what you did in it.
const REQUESTS = {a: ['tell of Ada', ': sun'], b: ['tell of Bo', ': moon'],
  c: ['tell of Cy', ': rain'], d: ['be kind', ' to me'], e: ['be kind', ' now']};
const textFor = name => REQUESTS[name]?.join('') ?? '';
const hasModel = story => story === 'tales' || story === 'crowd';
const telling = () => hasModel(moment().story);
const challenged = () => moment().story === 'serve';
const alike = (a, b) => [...a].findIndex((letter, i) => letter !== b[i]);
// The waiting request that begins most like this sequence, and how many letters they share.
const heir = name => Object.keys(REQUESTS).filter(other => !isLive(other) && !tally().served[other])
  .map(other => [alike(`${textOf(name)}\0`, textFor(other)), other])
  .sort(([m], [n]) => m - n).at(-1) ?? [0];
// The score, out of the engine's states.
function tally() {
  const computed = {}, distinct = new Set(), served = {};
  let total = 0;
  states.forEach(({call, code, seqs}, i) => {
    const [, verb, name] = call.match(/^(\w+)\((?:pool, &)?(\w)/) ?? [];
    const length = seqs[name]?.length;
    if (verb === 'seq_fork') computed[call.at(-2)] = seqs[call.at(-2)]?.length;
    if (verb === 'seq_create' || verb === 'seq_lookup') computed[name] = length;
    if (verb === 'seq_rewind') computed[name] = Math.min(computed[name], length);
    if (verb === 'seq_release' && states[i - 1].seqs[name]?.length === textFor(name).length)
      served[name] = true;
    if (verb !== 'step' || code) return;
    for (; computed[name] < length; total++)
      distinct.add(textFor(name).slice(0, ++computed[name]));
  });
  const steps = moment().wishes.filter(wish => wish === 'step').length;
  return {served, steps, twice: total - distinct.size, n: Object.keys(served).length};
}
// The weights of the model are in a file beside the page.
const bring = () => new Promise((done, fail) => document.head.append(Object.assign(
  document.createElement('script'), {src: 'tales.js', onload: () => done(Promise.all(
    tales.map(unpack))), onerror: () => fail(Error('tales.js is not beside this page.'))})));
function verdict() {
  const {n, steps, twice} = tally();
  const advice = n < 5 ? 'Begin requests, step, and end those that are complete.'
    : steps + twice > 11 ? 'It can be done in 11 steps, without computing anything twice.'
    : 'No solution is shorter.';
  return `${n} of 5 served in ${steps} steps, ${twice} tokens computed twice. ${advice}`;
}
const question = ({story, asked} = moment()) => STORIES[story][5 + asked];
const capital = text => text[0].toUpperCase() + text.slice(1);
const WISH = /^(step|(begin|find|publish|release) [a-e]|fork [a-e] \d+ [a-e])$/;
function linked(text) {  // a link that cannot be read is a text like others
  try { return decodeURIComponent(text).split('='); } catch { return [text]; }
}
const open = link => later(async () => {
  const [key, deeds = ''] = linked(link);
  if (key && !Object.hasOwn(STORIES, key)) problem = `There is no story "${key}". `;
  if (hasModel(key)) files ??= await bring().catch(error => { problem = `${error.message} `; });
  const story = key && !problem ? key : 'sampling', [, size, count, wishes, told] = STORIES[story];
  if (problem) $(`to-${story}`).focus({preventScroll: true});
  $('stories').scrollLeft = $(`to-${story}`).offsetLeft - 24;
  const back = at && moment().mine ? ' Undo brings your lines back.' : '';
  hand = 'a';
  const more = story === 'serve' ? deeds.split('.').filter(wish => WISH.test(wish)) : [];
  return act([...wishes, ...more], {story, asked: 0, size, count, calls: [], wishes: [],
    mine: false, longest: story === 'serve' ? 16 : 32, answer: told + back});
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
