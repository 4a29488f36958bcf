// Cases that docs/play.html once got wrong: checks/play.sh adds this to the end of its script. What
// is wrong appears in the console after "! ". ?cases=WORDS: only those with such a name.
// ?narrow=WORDS: in narrow frames, too, what is in the window stays in place.

const see = (what, right) => { if (!right) say(`! ${what}`); };
if (window !== top) document.documentElement.style.scrollbarWidth = 'none';
const width = document.documentElement.clientWidth;
const same = (what, is, should) => see(`${what}: "${is}", not "${should}"`, is === should);
const wide = selector => document.querySelector(selector).getBoundingClientRect();
function paste(id, text) {  // as if it were pasted at the cursor
  $(id).focus();
  $(id).setRangeText(text, 0, 0, 'end');
  $(id).dispatchEvent(new InputEvent('input', event({inputType: 'insertFromPaste'})));
}
const cases = {
  async 'the race begins by itself; with reduced motion it only steps'() {
    const told = () => race.sides[1].state.tales?.a.text.length ?? 0;
    const [run, step] = [$('racing'), $('pace')];
    say(`reduced motion: ${calm.matches}`);
    same('it runs', Boolean(race.turn), !calm.matches);
    same('its button is hidden', run.hidden, calm.matches);
    if (race.turn) run.click();
    const before = race.sides[1].state.steps;
    step.click();
    step.click();
    same('the steps after two more', race.sides[1].state.steps, before + 2);
    same('it runs', Boolean(race.turn), false);
    if (calm.matches) return;
    race.pause = 0;
    run.click();
    while (!race.isOver() && race.turn) {
      await new Promise(done => setTimeout(done, 99));
      const said = $('lap').textContent, waits = race.named(race.sides[1], 'waiting').length > 0;
      see(said, waits === said.includes('gave all its blocks back') || race.isOver());
    }
    const {textContent: said} = $('lap');
    see(said, /: 6 tales are told with paging, 2 without/.test(said));
    same('what is left of them', texts($('sides').lastChild.querySelectorAll('b, .taken'), ' '),
      '0 0 0 6');
    for (const {firstChild: text} of document.querySelectorAll('.tail'))
      see('the newest word is out of sight', text.scrollWidth <= text.offsetWidth);
    const all = told();
    step.click();
    see('it does not begin anew', told() > 0 && told() < all);
  },
  async 'each word of the race is drawn, and it can be stopped'() {
    if (calm.matches) return;
    race.stop();
    const seen = new Set(), {state: {steps}} = race.sides[1];
    const watch = new MutationObserver(() => seen.add(race.sides[1].state.steps));
    watch.observe($('sides'), {childList: true});
    $('racing').click();
    while (seen.size < 20) await new Promise(done => setTimeout(done));
    same('the button', $('racing').textContent, 'Stop');
    $('racing').click();
    watch.disconnect();
    same('the words that were not drawn', race.sides[1].state.steps - steps - seen.size, 0);
    same('the button', $('racing').textContent, 'Run');
  },
  async 'Enter forks a sequence, or begins one'() {
    bench.begin();
    $('a').focus();
    $('a').setSelectionRange(3, 3);
    press('Enter');
    same('the call', written(bench.now.call), 'seq_fork(a, 3, &b)');
    same('the focus', document.activeElement.id, 'b');
    $('c').focus();
    $('c').value = 'hi';
    press('Enter');
    same('the text', bench.textOf('c'), 'hi');
  },
  async 'an answer is right or wrong, and then it is shown'() {
    for (const [id, i, said, taken] of [['sampling', 0, 'Right: 0. ', 2],
      ['sampling', 2, 'No: 1. ', 3], ['full', 2, 'Right: PAGED_TOO_LONG. ', 3]]) {
      const quiz = quizzes.find(({box}) => box.id === id), button = quiz.bar.children[i];
      button.focus();
      button.click();
      see(`"${quiz.verdict}"`, quiz.verdict.startsWith(said));
      same('what it says', quiz.says.textContent, quiz.verdict);
      same('blocks taken', quiz.now.blocks.length - quiz.now.free.length, taken);
      see('the focus is lost', document.activeElement === button);
    }
    const [quiz] = quizzes, [button] = quiz.bar.children;
    button.focus();
    button.click();
    see('the focus is lost at the end', document.activeElement === quiz.bar.lastChild);
    for (const quiz of quizzes) quiz.begin();
  },
  async 'the second click of two counts for Step, and not for an answer'() {
    const second = element => element.dispatchEvent(
      new MouseEvent('click', event({detail: 2})));
    const {at} = kernel;
    second(document.querySelector('[data-move="1"]'));
    same('the step of the kernel', kernel.at, at + 1);
    second(quizzes[0].bar.firstChild);
    same('the questions that are answered', quizzes[0].asked, 0);
  },
  async 'an arrow leads from a letter to its slot'() {
    oneText.type('once upon');
    for (const t of [0, 5, 8]) {
      oneText.point(t);
      const here = $('typed-blocks').querySelector('.here'), [block, slot] = oneText.walk('a')[t];
      same('the slot', here.dataset.at, `${block},${slot}`);
      same('its letter', here.textContent, 'once upon'[t]);
      const end = $('typed-arrow').firstChild.getPointAtLength(0), from = wide('#typed');
      see('the arrow begins at the letter',
        Math.abs(end.x + wide('#typed-figure').x - from.x - 12 - (t + .5) * letterWidth()) < 2);
    }
    oneText.type('');
    same('the slots without a letter', $('typed-figure').querySelectorAll('.here, path').length, 0);
    oneText.type('x'.repeat(17));
    see($('typed-says').textContent, /TOO_LONG/.test($('typed-says').textContent));
    same('the text', $('typed').value, '');
    oneText.type('once up');
  },
  async 'a tap on a letter points at its slot, and a tap on a button counts once'() {
    const tap = (element, x = 0) => {  // as a browser tells of a finger
      const clientX = element.getBoundingClientRect().x + x;
      for (const type of ['pointerover', 'pointerdown', 'pointerup', 'pointerout'])
        element.dispatchEvent(new PointerEvent(type, event({pointerType: 'touch', clientX})));
      for (const type of ['mouseover', 'mousedown', 'mouseup', 'click'])
        element.dispatchEvent(new MouseEvent(type, event({detail: 1})));
    };
    bench.begin();
    oneText.type('once up');
    tap($('typed'), 12 + 1.5 * letterWidth());
    see($('typed-where').textContent, $('typed-where').textContent.startsWith('Token 1,'));
    tap(quizzes[0].bar.firstChild);
    same('the questions that are answered', quizzes[0].asked, 1);
    quizzes[0].begin();
    const {at} = kernel;
    tap(document.querySelector('[data-move="1"]'));
    same('the step of the kernel', kernel.at, at + 1);
  },
  async 'the race and the kernel fit one screen each, 1280 by 800 pixels'() {
    for (const id of innerWidth >= 1280 ? ['#race', '#act'] : [])
      see(`${id}: ${wide(id).height} pixels`, wide(id).height <= 792);
  },
  async 'the kernel attends for the text that was typed last'() {
    oneText.type('hi');
    same('the text', kernel.text, 'hi');
    bench.begin();
    same('the text', kernel.text, bench.textOf('a'));
    see($('verdict').textContent, $('verdict').textContent.startsWith('✓'));
    choose('fault', 2);
    see($('verdict').textContent, $('verdict').textContent.startsWith('✗'));
    see($('sentence').textContent, /Deadlock/.test($('sentence').textContent));
    see('it is not red', $('sentence').matches('.bad'));
    choose('fault', 0);
    same('the step', kernel.at, 0);
  },
  async 'a letter is drawn before the kernel attends for it'() {
    oneText.type('hi');
    perform.call(oneText, () => oneText.attempt('type a ho'));
    same('the text', $('typed').value, 'ho');
    same('the text of the kernel', kernel.text, 'hi');
    await new Promise(done => setTimeout(done, 500));
    same('the text of the kernel, then', kernel.text, 'ho');
  },
  async 'a link to nothing changes nothing'() {
    bench.type('a', 'hi');
    for (const link of ['x'.repeat(3000), '__proto__', 'constructor', '%', 'size']) {
      location.hash = link;
      await new Promise(done => addEventListener('hashchange', done, {once: true}));
      same('the text', bench.textOf('a'), 'hi');
      same('the width', document.documentElement.scrollWidth, width);
    }
  },
  async 'letters that find no room are left out, and that is said'() {
    const said = () => $('message').textContent;
    bench.begin();
    paste('a', 'x'.repeat(10000));
    same('the letters of a', bench.textOf('a').length, 32);
    see(said(), /the last 9976 of yours are left out/.test(said()));
    $('a').focus();
    $('a').setSelectionRange(32, 32);
    press('y');
    same('the letters of a', bench.textOf('a'), 'x'.repeat(32));
    see(said(), /the last 1 of yours is left out/.test(said()));
  },
  async 'reduced motion, once asked for, stops what moves'() {
    race.run();
    Object.defineProperty(calm, 'matches', {value: true, configurable: true});
    await new Promise(done => setTimeout(done, 500));
    same('what moves', race.turn, null);
    same('its button is hidden', $('racing').hidden, true);
    delete calm.matches;
    race.draw();
  },
  async 'without checkVisibility(), the focus is kept'() {
    const {checkVisibility} = Element.prototype;
    delete Element.prototype.checkVisibility;
    bench.begin();
    const button = document.querySelector('[data-name=a] [data-deed=release]');
    button.focus();
    button.click();
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
  async 'Undo takes back what was done last, and a wish that was refused is not to be undone'() {
    bench.begin();
    bench.type('a', 'a cloud is');
    bench.type('a', 'x'.repeat(32));
    bench.press('a', 'fork');
    bench.undo();
    same('the text', bench.textOf('a'), 'x'.repeat(32));
    choose('count', 8);
    bench.press('a', 'fork');
    bench.type('b', 'a cloud');
    see($('message').textContent, /OUT_OF_BLOCKS/.test($('message').textContent));
    bench.undo();
    same('the sequences', Object.keys(bench.now.seqs).join(), 'a');
  },
  async 'another block_size and back: the pool is the old one'() {
    bench.begin();
    bench.press('a', 'fork');
    for (const size of [8, 16, 4]) choose('size', size);
    same('the blocks', bench.now.blocks.length, 16);
    same('the sequences', Object.keys(bench.now.seqs).join(), 'a,b');
    choose('count', '');
    same('the blocks after no number', bench.now.blocks.length, 16);
  },
  async 'what is begun can be typed on'() {
    bench.begin();
    document.querySelector('[data-name=b] [data-deed=begin]').focus();
    document.activeElement.click();
    same('the focus', document.activeElement.id, 'b');
  },
  async 'a text that does not fit stays out, and nothing is lost'() {
    bench.begin();
    choose('count', 5);
    for (const wish of ['type a once upo', 'type b he was her']) bench.grant(wish);
    const text = bench.textOf('a');
    paste('a', 'é'.repeat(25));
    same('the text', bench.textOf('a'), text);
    same('the line', $('a').value, text);
    for (const part of ['PAGED_TOO_LONG', '"é'])
      see(`no ${part} in "${$('message').textContent}"`, $('message').textContent.includes(part));
  },
  async 'nor when the end of the text was shared'() {
    bench.begin();
    const long = 'x'.repeat(43);
    for (const wish of ['type a 0123456789', 'fork a 10', `type c ${long}`])
      bench.grant(wish);  // three blocks are shared
    choose('count', 14);
    const text = bench.textOf('a');
    paste('a', 'xyz');
    same('the text', bench.textOf('a'), text);
    see(`no code in "${$('message').textContent}"`, /OUT_OF_BLOCKS/.test($('message').textContent));
  },
  async 'a text box has a name that says what is in it'() {
    see(`"${$('a').ariaLabel}"`, /\w+ .*\ba\b/.test($('a').ariaLabel));
  },
  async 'the buttons of a figure stay in place'() {
    for (const quiz of quizzes) {
      const tops = new Set();
      for (; quiz.questions[quiz.asked]; quiz.answer(SHOW))
        tops.add(Math.round(quiz.bar.getBoundingClientRect().top - wide(`#${quiz.box.id}`).top));
      same(`#${quiz.box.id}: the places of its buttons`, [...tops].join(' '), `${[...tops][0]}`);
      quiz.begin();
    }
  },
  async 'it fits its window, with blocks of any size'() {
    bench.begin();
    await unfold();
    for (const size of [1, 8, 16]) {
      choose('size', size);
      same(`block_size ${size}: the width`, document.documentElement.scrollWidth, width);
    }
    $('kernel').open = false;
  },
  async 'who holds a slot is visible in forced colours'() {
    bench.begin();
    bench.perform(() => bench.grant('fork a 6'));
    const look = node => ['backgroundImage', 'backgroundColor'].map(name =>
      getComputedStyle(node)[name]).join();
    for (const kind of ['.seq label', '.seq span .chip', '#blocks .held'])
      for (const node of document.querySelectorAll(kind))
        see(`${kind} cannot be told from what is free: ${look(node)}`,
          /gradient|rgb\((?!255, 255, 255|0, 0, 0)/.test(look(node)));
    say(`forced colours: ${matchMedia('(forced-colors: active)').matches}`);
  },
  async 'nothing covers the controls of the kernel'() {
    bench.begin();
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
