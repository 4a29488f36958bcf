// Does random deeds on docs/play.html: checks/play.sh adds this to the end of its script. In the
// console appear all calls with their states and, after "! ", what the page shows that is wrong
// then. ?random=SEED,N: N deeds; ?random=SEED,N,type.shape: of these kinds. ?tales: the tales.

async function drive(seed, n, kinds) {
  const random = n => (seed = seed * 48271 % 2147483647) % n;
  const pick = things => things[random(things.length)];
  const isLine = ({dataset: {name}}) => bench.isLive(name);
  const rows = () => [...document.querySelectorAll('.seq:not([hidden])')];
  function shown() {
    const lines = rows().filter(isLine).map(row => [texts([row.querySelector('label')]),
      part(row).value, texts(part(row, 'table-').children, ' ')]);
    return [...lines, texts($('free').childNodes, ' '), ...poolShown($('blocks'))].join('; ');
  }
  const poolShown = ({children}) => [...children].map(({firstChild, lastChild}) =>
    [...firstChild.children].map(slot => slot.textContent || '~').join('') + texts([lastChild]));
  const poolToBeShown = blocks => blocks.map(({slots, ref_count, serial}) =>
    slots.map(slot => slot ?? '~').join('') + (ref_count ? ` ×${ref_count}` : '') +
    (serial ? ` #${serial}` : ''));
  function to_be_shown({seqs, blocks, free}, {size}) {
    const lines = Object.keys(seqs).sort().map(name => {
      const {length, table} = seqs[name];
      const letter = (_, t) => blocks[table[Math.floor(t / size)]].slots[t % size];
      return [name, Array.from({length}, letter).join(''), table.join(' ')];
    });
    return [...lines, free.join(' ') || 'empty', ...poolToBeShown(blocks)].join('; ');
  }
  function judge_race() {
    race.stop();
    race.sides.forEach(({state: {tales = {}, seqs = {}}, size}, i) => {
      const side = $('sides').children[i], names = Object.keys(tales);
      const count = what => names.filter(name => tales[name].state === what).length;
      const taken = name => [...side.querySelectorAll('.taken')].filter(({style}) =>
        style.getPropertyValue('--of') === `var(--${name})`);
      const running = names.filter(name => tales[name].state === 'running');
      const wanted = [count('running'), running.reduce((n, name) => n + seqs[name].length, 0),
        count('waiting'), count('ended'), ...running.flatMap(name =>
          [seqs[name].table.length * size / 16, seqs[name].length])];
      const counts = texts(side.querySelectorAll('b'), ' ').split(' ');
      const is = [...counts, ...running.flatMap(name =>
         [taken(name).length,
          taken(name).reduce((n, {style}) => n + +style.getPropertyValue('--n'), 0)])];
      if (`${is}` !== `${wanted}`) say(`! the race: ${is}, not ${wanted}`);
      names.forEach((name, n) => {
        const text = side.querySelectorAll('.tail')[n].textContent;
        const {state, text: told} = tales[name];
        if (state === 'waiting' ? text !== 'waits' : !text || !told.endsWith(text))
          say(`! the race: ${name} ${state}: ${text}`.replaceAll('\n', '/'));
      });
    });
    if (random(2)) race.run();
  }
  const deed = {
    type() {
      part(pick(rows())).focus();
      for (let i = random(6); i >= 0; i--)
        press(random(4) ? pick('once upon a time') : 'Backspace');
    },
    enter() {  // and types on
      const input = part(pick(rows()));
      input.focus();
      input.setSelectionRange(random(9), 9);
      press('Enter');
      if (random(3) === 0) press('Enter', true);
      for (let i = random(4); i > 0; i--) press(pick('abc'));
    },
    click() {
      const button = pick(
        [...document.querySelectorAll('.seq:not([hidden]) button:not([hidden])')]);
      button.focus();
      button.click();
    },
    twice() {
      const button = pick([...document.querySelectorAll(
        'button:not([hidden], #act *, #own-gpu *)')]);
      button.click();
      button.click();
    },
    undo: () => $('undo').click(),
    look: () => pick([...document.querySelectorAll('[data-answer]')].filter(visible)).click(),
    text() {  // in the figure of one text
      $('typed').focus();
      for (let i = random(5); i >= 0; i--) press(random(3) ? pick('once upon') : 'Backspace');
    },
    race() {
      race.pause = pick([0, 40, 120]);
      $(pick(['racing', 'pace', 'pace'])).click();
    },
    anew: () => random(3) || $('anew').click(),
    shape() {
      const box = pick([$('size'), $('count')]);
      if (random(3)) return;
      choose(box.id, box.id === 'size' ? 1 << random(5) : random(80));
    },
    odd() {
      part(pick(rows())).focus();
      for (const key of pick(['é', '"\\', '~a', '&<b>'])) press(key);
    },
    again() {  // types and publishes a text, and looks it up, from the new line
      const row = pick(rows().filter(isLine)), child = bench.free();
      if (!row || !child) return;
      const text = `${part(row).value}once upon`.slice(0, 32);
      bench.type(row.dataset.name, text);
      row.querySelector('[data-deed=publish]').click();
      $(child).value = text.slice(0, random(3) ? 32 : 8);
      $(child).parentNode.querySelector('[data-deed=find]').click();
    },
    hand: () => pick(rows()).click(),
    fold() {  // by its summary
      $('kernel').firstElementChild.focus();
      return unfold(!$('kernel').open);
    },
  };
  // Typing alone: what comes out is known beforehand, unless the page says otherwise.
  function typeAlone() {
    const row = pick(rows().filter(isLine));
    if (!row) return;
    const input = part(row), name = input.id, child = bench.free(), fork = child && random(2);
    input.focus();
    const at = random(input.value.length + 1), more = pick(['ab', 'xyz', 'o']), {value} = input;
    input.setSelectionRange(at, at);
    if (fork) press('Enter');
    let said = $('message').textContent;
    for (const key of more) press(key), said += $('message').textContent;
    settle();
    const wanted = fork ? value.slice(0, at) + more : value.slice(0, at) + more + value.slice(at);
    if (wanted.length <= 32 && $(fork ? child : name).value !== wanted && !said)
      say(`! ${name}: "${value}" and ${fork ? 'Enter and ' : ''}"${more}" at ${at} is "${
        $(fork ? child : name).value}"`);
  }
  function settle() {
    tell_log(bench);
    if ($('alarm').textContent) say(`! ${$('alarm').textContent}`);
    const wanted = to_be_shown(bench.now, bench);
    if (shown() !== wanted) say(`! it shows "${shown()}", not "${wanted}"`.replaceAll('\n', '/'));
    if ($('blocks').children.length > 64) say('! more than 64 blocks');
    if (document.activeElement === document.body) say('! the focus is lost');
    for (const {box: {id}, verdict, now, blocks} of quizzes) {
      if (verdict.includes('in this engine')) say(`! ${id}: ${verdict}`);
      if (`${poolShown(blocks)}` !== `${poolToBeShown(now.blocks)}`)
        say(`! ${id} shows ${poolShown(blocks)}`);
    }
    const letters = [...$('typed-table').children].map(({lastChild: {textContent: block}}) =>
      poolShown($('typed-blocks'))[block].slice(0, 4)).join('').replace(/~*$/, '');
    if ($('typed').value !== letters) say(`! the text: "${$('typed').value}", not "${letters}"`);
  }
  attends = () => random(8) === 0;  // it takes long, and has a driver of its own
  listen();
  $('a').focus();
  for (let i = 0; i < n; i++) {
    await deed[pick(kinds ? kinds.split('.') : Object.keys(deed))]();
    if (random(3) === 0) settle();
    if (random(4) === 0) settle(), typeAlone();
    if (random(20) === 0) judge_race();
    if (random(4) === 0) await new Promise(done => setTimeout(done));  // the race goes on
  }
  settle();
  judge_race();
  race.stop();
  for (const user of [...race.sides, ...quizzes, oneText]) tell_log(user);
}

// For engines that are wrong on purpose: looks twice, types, and tells what the page says.
function tell_message() {
  const [sharing] = quizzes, answers = [];
  for (let i = 0; i < 2; i++) {
    sharing.answer(SHOW);
    answers.push(sharing.says.textContent);
  }
  bench.press('a', 'release');
  $('a').value = 'hi';
  bench.press('a', 'begin');
  const said = [$('alarm'), $('message'), $('made'), $('lap')].map(({textContent}) => textContent);
  console.log([...said, ...answers].join(' | ').replace(/\s+/g, ' '));
}

// What the tales of the race say in the end.
function tell_tales() {
  while (!race.isOver()) race.step();
  for (const {text} of Object.values(race.sides[1].state.tales))
    console.log(text.replaceAll('\n', '/'));
}

const [, seed, n, kinds] = location.search.match(/^\?random=(\d+),(\d+),?(.*)/) ?? [];
race.stop();
if (seed) await drive(Number(seed), Number(n), kinds);
else if (location.search === '?tales') tell_tales();
else tell_message();
console.log('END');
