// Cases that docs/play.html once got wrong: checks/play.sh adds this to the end of its script. What
// is wrong appears in the console after "! ". ?cases=WORDS: only those with such a name.
// ?narrow=WORDS: in narrow frames, too, what is in the window stays in place.

const see = (what, right) => { if (!right) say(`! ${what}`); };
if (window !== top) document.documentElement.style.scrollbarWidth = 'none';
const width = document.documentElement.clientWidth;
const same = (what, is, should) => see(`${what}: "${is}", not "${should}"`, is === should);
const wide = selector => document.querySelector(selector).getBoundingClientRect();
const to = link => bench.begin(STORIES[link]);
async function paste(id, text) {  // as if it were pasted at the cursor
  $(id).focus();
  $(id).setRangeText(text, 0, 0, 'end');
  $(id).dispatchEvent(new InputEvent('input', event('', {inputType: 'insertFromPaste'})));
  await ended();
}
const cases = {
  async 'the race begins by itself; with reduced motion it only steps'() {
    const words = () => race.sides[1].state.tales?.a.words.length ?? 0;
    const [run, step] = [$('racing'), $('pace')];
    say(`reduced motion: ${calm.matches}`);
    same('it runs', Boolean(race.player.turn), !calm.matches);
    same('its button is hidden', run.hidden, calm.matches);
    if (race.player.turn) run.click();
    await race.last;
    const before = words();
    step.click();
    step.click();
    await race.last;
    same('the words after two steps', words(), before + 2);
    same('it runs', Boolean(race.player.turn), false);
    if (calm.matches) return;
    $('speed').value = 4;
    run.click();
    while (!race.isOver() && race.player.turn) {
      await new Promise(done => setTimeout(done, 99));
      const said = $('lap').textContent, waits = race.named(race.sides[1], 'waiting').length > 0;
      see(said, waits === said.includes('gave all blocks back') || race.isOver());
    }
    await race.last;
    const {textContent: said} = $('lap');
    see(said, /Six tales are told with paging, two without/.test(said));
    same('what is left of them', texts($('sides').lastChild.querySelectorAll('b, .taken'), ' '),
      '0 0 0 6');
    for (const {firstChild: text} of document.querySelectorAll('.tail'))
      see('the newest word is out of sight', text.scrollWidth <= text.offsetWidth);
    step.click();
    await race.last;
    same('the words after a step from the end', words(), 2);
  },
  async 'Enter forks a sequence, or begins one'() {
    await to('letters');
    $('a').focus();
    $('a').setSelectionRange(3, 3);
    press('Enter');
    await ended();
    same('the call', written(bench.now.call), 'seq_fork(a, 3, &b)');
    same('the focus', document.activeElement.id, 'b');
    $('c').focus();
    $('c').value = 'hi';
    press('Enter');
    await ended();
    same('the text', bench.textOf('c'), 'hi');
  },
  async 'an answer is right or wrong, and then it is shown'() {
    for (const [id, i, said, taken] of [['sampling', 0, 'Right: none. ', 2],
      ['sampling', 2, 'No: one. ', 3], ['full', 2, 'Right: PAGED_TOO_LONG. ', 3]]) {
      const quiz = quizzes.find(({box}) => box.id === id), button = quiz.bar.children[i];
      button.focus();
      button.click();
      await ended();
      see(`"${quiz.verdict}"`, quiz.verdict.startsWith(said));
      same('what it says', quiz.says.textContent, quiz.verdict);
      same('blocks taken', quiz.now.blocks.length - quiz.now.free.length, taken);
      see('the focus is lost', document.activeElement === button);
    }
    const [quiz] = quizzes, [button] = quiz.bar.children;
    button.focus();
    button.click();
    await ended();
    see('the focus is lost at the end', document.activeElement === quiz.bar.lastChild);
    for (const quiz of quizzes) await quiz.begin();
  },
  async 'the second click of two counts for Step, and not for an answer'() {
    const second = element => element.dispatchEvent(
      new MouseEvent('click', event('', {detail: 2})));
    await to('tales');
    const {steps} = bench.now;
    second($('step'));
    await ended();
    same('the steps', bench.now.steps, steps + 1);
    second(quizzes[0].bar.firstChild);
    await ended();
    same('the questions that are answered', quizzes[0].asked, 0);
  },
  async 'an arrow leads from a letter to its slot'() {
    await oneText.type('once upon');
    for (const t of [0, 5, 8]) {
      oneText.point('a', t);
      const here = $('typed-blocks').querySelector('.here'), [block, slot] = oneText.walk('a')[t];
      same('the slot', here.dataset.at, `${block},${slot}`);
      same('its letter', here.textContent, 'once upon'[t]);
      const end = $('typed-arrow').firstChild.getPointAtLength(0), from = wide('#typed');
      see('the arrow begins at the letter',
        Math.abs(end.x + wide('#typed-figure').x - from.x - 12 - (t + .5) * letterWidth()) < 2);
    }
    $('typed').focus();
    $('typed').setSelectionRange(9, 9);
    await new Promise(done => setTimeout(done, 99));
    $('typed').setSelectionRange(3, 3);
    await new Promise(done =>
      document.addEventListener('selectionchange', done, {once: true}));
    see($('typed-where').textContent, /^Token 2 of a/.test($('typed-where').textContent));
    await oneText.type('');
    same('the slots without a letter', $('typed-figure').querySelectorAll('.here, path').length, 0);
    await oneText.type('x'.repeat(17));
    see($('typed-says').textContent, /TOO_LONG/.test($('typed-says').textContent));
    same('the text', $('typed').value, '');
    await oneText.type('once up');
  },
  async 'a tap on a slot points at it, and a tap on a button counts once'() {
    const tap = element => {  // as a browser tells of a finger
      for (const type of ['pointerover', 'pointerdown', 'pointerup', 'pointerout'])
        element.dispatchEvent(new PointerEvent(type, event('', {pointerType: 'touch'})));
      for (const type of ['mouseover', 'mousedown', 'mouseup', 'click'])
        element.dispatchEvent(new MouseEvent(type, event('', {detail: 1})));
      return ended();
    };
    await to('letters');
    await oneText.type('once up');
    for (const [figure, where] of [[bench, 'where'], [oneText, 'typed-where']]) {
      const [block, slot] = figure.walk('a')[1];
      await tap(figure.box.querySelector(`[data-at="${block},${slot}"]`));
      see($(where).textContent, $(where).textContent.startsWith('Token 1 of a'));
    }
    await to('tales');
    const {steps} = bench.now;
    await tap($('step'));
    same('the steps', bench.now.steps, steps + 1);
    await tap(quizzes[0].bar.firstChild);
    same('the questions that are answered', quizzes[0].asked, 1);
    await quizzes[0].begin();
    const {at} = kernel;
    await tap(document.querySelector('[data-move="1"]'));
    same('the step of the kernel', kernel.at, at + 1);
  },
  async 'the race fits one screen, 1280 by 800 pixels'() {
    if (innerWidth >= 1280) see(`${wide('#race').height} pixels`, wide('#race').height <= 792);
  },
  async 'the kernel attends for the text that was typed last'() {
    await oneText.type('hi');
    same('the text', kernel.text, 'hi');
    await to('letters');
    same('the text', kernel.text, bench.textOf('a'));
    see($('verdict').textContent, $('verdict').textContent.startsWith('✓'));
    choose('fault', 2);
    await ended();
    see($('verdict').textContent, $('verdict').textContent.startsWith('✗'));
    see($('sentence').textContent, /Deadlock/.test($('sentence').textContent));
    see('it is not red', $('sentence').matches('.bad'));
    choose('fault', 0);
    await ended();
    same('the step', kernel.at, 0);
  },
  async 'a link to nothing changes nothing'() {
    await to('tales');
    for (const link of ['x'.repeat(3000), '__proto__', 'constructor', '%', 'size']) {
      location.hash = link;
      await new Promise(done => addEventListener('hashchange', done, {once: true}));
      await ended();
      same('the story', bench.story, STORIES.tales);
      same('the width', document.documentElement.scrollWidth, width);
    }
  },
  async 'letters that find no room are left out, and that is said'() {
    const said = () => $('message').textContent;
    await to('letters');
    await paste('a', 'x'.repeat(10000));
    same('the letters of a', bench.textOf('a').length, 32);
    see(said(), /the last 9974 of yours are left out/.test(said()));
    $('a').focus();
    $('a').setSelectionRange(32, 32);
    press('y');
    await ended();
    same('the letters of a', bench.textOf('a'), 'x'.repeat(32));
    see(said(), /the last 1 of yours is left out/.test(said()));
  },
  async 'the story of a model opens on its climax'() {
    await to('tales');
    see(bench.weights, Math.max(...bench.weights) > .9);
  },
  async 'reduced motion, once asked for, stops what moves'() {
    await to('tales');
    bench.player.run();
    race.player.run();
    calm.dispatchEvent(new Event('change'));
    await ended();
    same('what moves', [bench, race].filter(({player}) => player.turn).length, 0);
  },
  async 'without checkVisibility(), the focus is kept'() {
    const {checkVisibility} = Element.prototype;
    delete Element.prototype.checkVisibility;
    await to('letters');
    const button = document.querySelector('[data-name=a] [data-deed=release]');
    button.focus();
    button.click();
    await ended();
    see('the focus is lost', document.activeElement !== document.body && !bench.problem);
    Element.prototype.checkVisibility = checkVisibility;
  },
  async 'no link leaves the page'() {
    for (const {href} of document.links)
      see(href, href.split('#')[0] === location.href.split('#')[0]);
  },
  async 'a figure leads on'() {
    for (const {box, read} of quizzes) {
      const {textContent: code} = box.querySelector('pre');
      see(`the text of ${read}()`, code.includes(` ${read}(`) && code.endsWith('}'));
      say(`lead: ${box.querySelector('summary').textContent}`);
    }
  },
  async 'Run draws each word and can be stopped; another shape has the same tale'() {
    await to('tales');
    const seen = new Set(), count = () => document.querySelectorAll('#words-a span').length;
    const first = count(), watch = new MutationObserver(() => seen.add(count()));
    watch.observe($('seqs'), {childList: true, subtree: true});
    $('run').click();
    while (seen.size < 20) await new Promise(done => setTimeout(done));
    same('the button', $('run').textContent, 'Stop');
    $('run').click();
    await ended();
    watch.disconnect();
    same('the words that were not drawn', count() - first - seen.size, 0);
    const {words, state} = bench.now.tales.a;
    same('the tale', state, 'running');
    same('the button', $('run').textContent, 'Run');
    choose('size', 8);
    await ended();
    same('what is told', bench.now.tales.a.words.join(''), words.join(''));
  },
  async 'Undo takes back what was done last, and a wish that was refused is not to be undone'() {
    await to('letters');
    await bench.type('a', 'a cloud is');
    await bench.type('a', 'x'.repeat(32));
    await bench.press('a', 'fork');
    await bench.undo();
    same('the text', bench.textOf('a'), 'x'.repeat(32));
    choose('count', 8);
    await ended();
    await bench.press('a', 'fork');
    await bench.type('b', 'a cloud');
    see($('message').textContent, /OUT_OF_BLOCKS/.test($('message').textContent));
    await bench.undo();
    same('the sequences', Object.keys(bench.now.seqs).join(), 'a');
  },
  async 'another block_size and back: the pool is the old one'() {
    await to('tales');
    for (const size of [8, 16, 4]) choose('size', size), await ended();
    same('the blocks', bench.now.blocks.length, STORIES.tales.count);
    choose('count', '');
    await ended();
    same('the blocks after no number', bench.now.blocks.length, STORIES.tales.count);
  },
  async 'what is begun can be typed on'() {
    await to('letters');
    document.querySelector('[data-name=b] [data-deed=begin]').focus();
    document.activeElement.click();
    await ended();
    same('the focus', document.activeElement.id, 'b');
  },
  async 'a text that does not fit stays out, and nothing is lost'() {
    await to('letters');
    choose('count', 5);
    await ended();
    for (const wish of ['type a once upo', 'type b he was her']) await bench.grant(wish);
    const text = bench.textOf('a');
    await paste('a', 'é'.repeat(25));
    same('the text', bench.textOf('a'), text);
    same('the line', $('a').value, text);
    for (const part of ['PAGED_TOO_LONG', '"é'])
      see(`no ${part} in "${$('message').textContent}"`, $('message').textContent.includes(part));
  },
  async 'nor when the end of the text was shared'() {
    await to('letters');
    const long = 'x'.repeat(43);
    for (const wish of ['type a 0123456789', 'fork a 10', `type c ${long}`])
      await bench.grant(wish);  // three blocks are shared
    choose('count', 14);
    await ended();
    const text = bench.textOf('a');
    await paste('a', 'xyz');
    same('the text', bench.textOf('a'), text);
    see(`no code in "${$('message').textContent}"`, /OUT_OF_BLOCKS/.test($('message').textContent));
  },
  async 'only a line has a text box; it has a name that says what is in it'() {
    await to('tales');
    same('text boxes of tales', document.querySelectorAll('.seq input:not([hidden])').length, 0);
    await to('letters');
    see(`"${$('a').ariaLabel}"`, /\w+ .*\ba\b/.test($('a').ariaLabel));
  },
  async 'the buttons of a figure stay in place'() {
    for (const quiz of quizzes) {
      const tops = new Set();
      for (; quiz.questions[quiz.asked]; await quiz.later(() => quiz.answer(SHOW)))
        tops.add(Math.round(quiz.bar.getBoundingClientRect().top - wide(`#${quiz.box.id}`).top));
      same(`#${quiz.box.id}: the places of its buttons`, [...tops].join(' '), `${[...tops][0]}`);
      await quiz.begin();
    }
  },
  async 'it fits its window, with blocks of any size'() {
    for (const link of ['letters', 'tales'])
      for (const size of [1, 8, 16]) {
        await to(link);
        choose('size', size);
        await unfold();
        const {scrollWidth} = document.documentElement;
        same(`#${link}, block_size ${size}: the width`, scrollWidth, width);
      }
    $('kernel').open = false;
  },
  async 'who holds a slot is visible in forced colours'() {
    await to('letters');
    await bench.perform(() => bench.grant('fork a 6'));
    const look = node => ['backgroundImage', 'backgroundColor'].map(name =>
      getComputedStyle(node)[name]).join();
    for (const kind of ['.seq label', '.seq span .chip', '#blocks .held'])
      for (const node of document.querySelectorAll(kind))
        see(`${kind} cannot be told from what is free: ${look(node)}`,
          /gradient|rgb\((?!255, 255, 255|0, 0, 0)/.test(look(node)));
    say(`forced colours: ${matchMedia('(forced-colors: active)').matches}`);
  },
  async 'nothing covers the controls of the kernel'() {
    await to('letters');
    await unfold();
    for (const button of document.querySelectorAll('#act .bar button, #act .bar input')) {
      for (const block of ['start', 'center', 'end', 'nearest']) {
        button.scrollIntoView({block});
        const {x, y} = button.getBoundingClientRect();
        see(`${button.textContent} is covered when at ${block}`,
          document.elementFromPoint(x + 9, y + 9) === button);
      }
    }
    $('kernel').open = false;
  },
};

const only = decodeURI(location.search.split('=')[1] ?? '');
addEventListener('error', ({message}) => say(`! ${message}`));
addEventListener('unhandledrejection', ({reason}) => say(`! ${reason}`));
async function driveCases() {
  const names = Object.keys(cases).filter(name => name.includes(only));
  for (const name of names) {
    if (window !== top && !/window|place|covers/.test(name)) continue;
    try { await cases[name](); } catch ({stack}) { say(`! ${stack.replaceAll('\n', ' ')}`); }
    say(`${width}: ${name}`);
  }
}
$('bench').open = true;
await driveCases();
if (window === top)
  for (const width of location.search.startsWith('?narrow') ? [320, 390] : []) {
    const frame = el('iframe', {src: location.pathname + location.search,
      style: `width: ${width}px; height: 800px; border: 0`});
    await new Promise(done => {
      onmessage = done;
      document.body.append(frame);
    });
    frame.remove();
  }
else parent.postMessage('done', '*');
if (window === top) console.log('END');
