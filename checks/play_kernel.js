// Drives the act of the kernel in docs/play.html: checks/play.sh adds this to the end of its
// script. ?kernel=SEED,N: N random deeds. In the console appear all calls with what they print,
// which a native program repeats, and after "! " what the act shows that is wrong. Without a seed:
// the sentence of each step.

const textsOf = selector => [...document.querySelectorAll(selector)].map(one => one.textContent);
const click = element => { element.focus(); element.click(); };

async function drive(seed, n) {
  const random = n => (seed = seed * 48271 % 2147483647) % n;
  const pick = things => things[random(things.length)];
  const moves = [...document.querySelectorAll('[data-move]')];
  const line = () => Array.from({length: 1 + random(32)}, () => pick('once upon a time')).join('');
  const deed = {
    type: () => bench.type(bench.hand, line()),
    fork() {
      const {hand} = bench, child = bench.free();
      $(hand).setSelectionRange(random(9), 9);
      bench.press(hand, 'fork');
      const more = `${bench.textOf(child)}${pick('abc')}`.slice(0, 32);
      if (child && random(2)) bench.type(child, more);
    },
    release: () => bench.press(bench.hand, 'release'),
    shape: () => choose('size', 1 << random(5)),
    step: () => { for (let i = random(9); i >= 0; i--) click(pick(moves)); },
    slide: () => choose('when', random(kernel.steps.length + 1)),
    fault: () => choose('fault', pick([0, 0, 1, 2])),
    fold: () => unfold(!$('kernel').open),
    anew: () => bench.begin(),
    text: () => oneText.type(line()),
  };
  // What is shown of a step, in words; the same each time.
  const seen = {};
  const shown = () =>
    [$('sentence').textContent, ...textsOf('#code .at, #tokens li, .warp, #shared div')];
  function judge() {
    const {name, at, steps, writes, text, table, fault, size, count} = kernel, all = shown();
    const key = `${[name, text, table, size, count, fault]}`;
    const wrong = (what, is, should) => {
      if (is !== should) say(`! ${key}, step ${at}: ${what} is "${is}", not "${should}"`);
    };
    if (!$('kernel').open || !steps.length) return;
    wrong('the line', text, kernel.on.textOf(kernel.on.hand));
    wrong('what it shows now and before', all.join('/'), (seen[`${key} ${at}`] ??= all.join('/')));
    if (!fault) wrong('the number of steps', steps.length, 10 + 7 * Math.ceil(text.length / 4));
    const readers = [...all.join('\n').matchAll(/warp (\d) has "(.)", t = (\d+)/g)];
    wrong('the number of marks', textsOf('#tokens .now').length, readers.length);
    for (const [, w, letter, t] of readers) {
      wrong(`the letter of warp ${w}`, letter, text[t]);
      wrong(`the token of warp ${w}`, t % 4, Number(w));
      wrong(`the mark of token ${t}`, textsOf('#tokens .now small').includes(`w${w}`), true);
      const block = table[Math.floor(t / size)];
      const where = `warp ${w} "${letter}" in slot ${t % size} of block ${block}`;
      if (steps[at].kind === 'read' && steps[at].warps.includes(Number(w)))
        wrong(`where warp ${w} reads`, all[0].includes(where), true);
    }
    const [a, b, sum] = all[0].replaceAll('−', '-')
      .match(/, (-?[\d.]+) \+ (-?[\d.]+) = (-?[\d.]+)\. /)?.slice(1).map(Number) ?? [0, 0, 0];
    wrong('the sum of a shuffle', Math.abs(a + b - sum) < .002, true);
    if (steps[at]?.kind === 'shuffle') wrong('that a sum is shown', /\d \+ .*=/.test(all[0]), true);
    if (at === 1) wrong('the states', new Set(textsOf('.warp .state')).size, 1);
    if (at < steps.length - 1) return;
    wrong('a deadlock', all[0].includes('Deadlock'), fault === 2);
    // Without the barrier: right if warp 0, which merges, comes after all the others.
    if (fault === 1) wrong('NaN', all[0].includes(': NaN in'), text.length % 4 !== 1);
    wrong('the verdict', $('verdict').textContent[0],
      fault === 2 || fault === 1 && text.length % 4 !== 1 ? '✗' : '✓');
    if (fault) return;
    const {lanes} = steps[at];  // whose bits are those of ./paged: see bitsOf()
    textsOf('.warp .state').forEach((head, w) => wrong(`the state of warp ${w}`, head,
      `m ${exact(lanes[32 * w].m)}  l ${exact(lanes[32 * w].l)}`));
    wrong('o', textsOf('.warp .lanes:last-child i').join(), lanes.map(({o}) => short(o)).join());
    const out = textsOf('#shared div:last-child i').slice(-HEAD_DIM);
    const last = writes.slice(-out.length).map(({bits}) => short(floatOf(bits)));
    wrong('out', out.join(), last.join());
    wrong('the oracle', /The oracle, .*, differs by less than 1e-5/.test(all[0]), true);
  }
  listen();
  for (let i = 0; i < n; i++) {
    await deed[pick(Object.keys(deed))]();
    await unfold(random(4) ? $('kernel').open : true);
    tell_log(bench);
    judge();
    if (random(2)) choose('when', kernel.steps.length - 1), judge();
    if (random(2)) choose('when', random(kernel.steps.length)), judge();
    if (random(8) === 0) choose('when', 1), judge();
    const {textContent} = $('message');
    if (textContent && !/OUT_OF_BLOCKS|TOO_LONG|six names/.test(textContent))
      say(`! ${textContent}`);
  }
  tell_log(oneText);
}
await unfold();
const [, seed, n] = location.search.match(/(\d+),(\d+)/) ?? [];
if (seed) await drive(Number(seed), Number(n));
if (!seed) say($('verdict').textContent), say($('names').hidden ? '' : $('names').textContent);
for (let i = kernel.at; !seed && i < Math.max(1, kernel.steps.length); i++) {
  say($('sentence').textContent);
  say(textsOf('.warp p').join('; '));
  click(document.querySelector('[data-move="1"]'));
}
console.log('END');
