// The race: a part of the script of docs/play.html. Two engines tell the same six tales in the same
// memory. One has blocks of 16 tokens. To the other, a block is what the longest tale may need: so
// works a server that reserves.

const SLOTS = 512, STRIP = 16, PAUSES = [1000, 400, 120, 40, 0];
const race = {
  sides: [
    {title: 'Reserved', size: 256, why: 'for the longest tale', place: new Place(), state: {}},
    {title: 'Paged', size: 16, why: 'at a time', place: new Place(), state: {}},
  ],
  turn: null, begun: false, stepping: Promise.resolve(),

  ask: (side, fresh, calls) => side.place.ask(fresh, calls, state => {
    side.state = {...side.state, ...state};
  }),
  // Each side's next word, after those that have been asked for before.
  step() {
    return this.stepping = this.stepping.then(async () => {
      const fresh = !this.begun || this.isOver(), begin = ({size}) =>
        [make('model', size, SLOTS / size), ...NAMES.map((name, i) =>
          make('tale', `&${name}`, {text: ''}, i))];
      this.begun = true;
      await Promise.all(this.sides.map(side =>
        this.ask(side, fresh, [...fresh ? begin(side) : [], make('tell')])));
      this.draw();
    });
  },
  count: ({state}, what) =>
    Object.values(state.tales ?? {}).filter(({state}) => state === what).length,
  isOver() {
    return this.sides.some(({state}) => state.stopped) || this.count(this.sides[1], 'ended') === 6;
  },
  async run() {
    const turn = this.turn = {};
    for (let first = true; this.turn === turn && (first || !this.isOver()); first = false) {
      await this.step();
      await new Promise(requestAnimationFrame);
      await new Promise(done => setTimeout(done, PAUSES[$('speed').value]));
    }
    if (this.turn === turn) this.stop();
  },
  stop() {
    this.turn = null;
    this.draw();
  },

  draw() {
    $('racing').textContent = this.turn ? 'Stop' : 'Run';
    $('racing').hidden = calm.matches;
    $('race').classList.toggle('none', !files);
    $('lap').textContent = this.says();
    $('sides').replaceChildren(...this.sides.map(side => this.drawSide(side)));
  },
  says() {
    const [left, right] = this.sides, stopped = left.state.stopped || right.state.stopped;
    const ended = side => capital(word(this.count(side, 'ended')));
    if (!files) return 'Without tales.js beside this page, there is no race to see here.';
    if (stopped) return `${left.state.stopped ? left.title : right.title}: ${stopped}`;
    if (this.isOver()) return `After ${right.state.steps} words each: ${ended(right)} tales are ` +
      `told with paging, ${ended(left).toLowerCase()} without.`;
    if (right.state.preemptions) return 'Now the right side is full, too. The newest tale has ' +
      'given its blocks back and waits; later, its tokens are computed again. That is the price.';
    return 'A word needs a slot. On the left, a tale reserves 256 slots, as it may get that ' +
      'long: two tales fill the memory. On the right, it takes 16 when it needs them.';
  },
  drawSide(side) {
    const {title, size, why, state: {tales = {}, seqs = {}}} = side;
    const used = Object.values(seqs).reduce((sum, {length}) => sum + length, 0);
    const holder = {};
    for (const name in seqs)
      seqs[name].table.forEach((block, entry) => { holder[block] = [name, entry * size]; });
    const strip = (_, i) => {
      const [name, first] = holder[Math.floor(i * STRIP / size)] ?? [];
      const n = name ? seqs[name].length - first - i * STRIP % size : 0;
      return el('i', {class: name ? 'taken' : '', style: name ? `--of: var(--${name}); --n: ${
        Math.max(0, Math.min(STRIP, n))}` : ''});
    };
    const row = name => {
      const {state = 'waiting', words = []} = tales[name] ?? {};
      const text = state === 'waiting' ? 'waits' : words.slice(1).slice(-60).join('');
      return el('li', {class: state},
        el('span', {class: 'chip', style: `--of: var(--${name})`}, name),
        el('span', {class: 'tail'}, el('span', {}, text)));
    };
    const count = (number, what) => el('span', {}, el('b', {}, number), ` ${what}`);
    return el('div', {class: 'side'}, el('h2', {}, `${title}: ${size} slots ${why}`),
      el('p', {class: 'counts'}, count(this.count(side, 'running'), 'run together'),
        count(used, `of ${SLOTS} slots used`), count(this.count(side, 'waiting'), 'wait')),
      el('div', {class: 'strips'}, ...Array.from({length: SLOTS / STRIP}, strip)),
      el('ol', {}, ...NAMES.map(row)));
  },
};
$('racing').onclick = () => race.turn ? race.stop() : race.run();
$('pace').onclick = () => {
  race.stop();
  race.step();
};
calm.onchange = () => race.stop();
