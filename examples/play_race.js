// The race: a part of the script of docs/play.html, which stands after play_figures.js, as it uses
// word() and capital(). Two engines tell the same six tales in the same memory. One has blocks of 16
// tokens. To the other, a block is what the longest tale may need: so works a server that reserves.

const SLOTS = 512, STRIP = 16, PAUSES = [1000, 400, 120, 40, 0];
const race = {
  sides: [
    {title: 'Reserved', size: 256, why: 'for the longest tale', place: new Place(), state: {}},
    {title: 'Paged', size: 16, why: 'at a time', place: new Place(), state: {}},
  ],
  begun: false, stepping: Promise.resolve(),

  // Each side's next word, after those that have been asked for before.
  step() {
    return this.stepping = this.stepping.then(async () => {
      const fresh = !this.begun || this.isOver(), begin = ({size}) =>
        [make('model', size, SLOTS / size), ...NAMES.map((name, i) =>
          make('tale', `&${name}`, i))];
      this.begun = true;
      await Promise.all(this.sides.map(side => side.place.ask(fresh,
        [...fresh ? begin(side) : [], make('tell')],
        state => { side.state = {...side.state, ...state}; })));
      this.draw();
    });
  },
  named: ({state: {tales = {}}}, what) =>
    Object.keys(tales).filter(name => tales[name].state === what),
  isOver() {
    return this.sides.some(({state}) => state.stopped)
      || this.named(this.sides[1], 'ended').length === NAMES.length;
  },

  draw() {
    $('racing').hidden = calm.matches;
    $('race').classList.toggle('none', !files);
    $('lap').textContent = this.says();
    $('sides').replaceChildren(...this.sides.map(side => this.drawSide(side)));
  },
  says() {
    const [left, right] = this.sides, stopped = left.state.stopped || right.state.stopped;
    const ended = side => capital(word(this.named(side, 'ended').length));
    if (!files) return 'Without tales.js beside this page, there is no race to see here.';
    if (stopped) return `${left.state.stopped ? left.title : right.title}: ${stopped}`;
    if (this.isOver()) return `After ${right.state.steps} steps: ${ended(right)} tales are told ` +
      `with paging, ${ended(left).toLowerCase()} without.`;
    if (right.state.preemptions && this.named(right, 'waiting').length > 0)
      return 'The right side has been full, too: who came last gave all blocks back, and waits. ' +
        'Later, these tokens are computed again. That is the price.';
    if (right.state.preemptions) return 'On the right, the tales that waited are back. On the ' +
      `left, ${word(this.named(left, 'waiting').length)} still wait.`;
    return 'A word needs a slot. On the left, a tale reserves 256 slots, as it may get that ' +
      'long: two tales fill the memory. On the right, it takes 16 when it needs them.';
  },
  drawSide(side) {
    const {title, size, why, state: {tales = {}, seqs = {}}} = side;
    const running = Object.keys(seqs), of = name => `--of: var(--${name})`;
    const strips = Array.from({length: SLOTS / STRIP}, () => el('i'));
    for (const name of running)
      for (let i = 0; i < seqs[name].table.length * size / STRIP; i++) {
        const block = seqs[name].table[Math.floor(i * STRIP / size)];
        const used = Math.max(0, Math.min(STRIP, seqs[name].length - i * STRIP));
        Object.assign(strips[block * size / STRIP + i % (size / STRIP)] ?? {},
          {className: 'taken', style: `${of(name)}; --n: ${used}`});
      }
    const row = name => {
      const {state = 'waiting', words = []} = tales[name] ?? {};
      const text = state === 'waiting' ? 'waits' : words.slice(1).slice(-60).join('');
      return el('li', {class: state}, el('span', {class: 'chip', style: of(name)}, name),
        el('span', {class: 'tail'}, el('span', {}, text)));
    };
    const used = running.reduce((sum, name) => sum + seqs[name].length, 0);
    const count = (number, what) => el('span', {}, el('b', {}, number), what);
    return el('div', {class: 'side'}, el('h3', {}, `${title}: ${size} slots ${why}`),
      el('p', {class: 'counts'}, count(running.length, 'running'),
        count(used, 'slots used'), count(this.named(side, 'waiting').length, 'waiting'),
        count(this.named(side, 'ended').length, 'told')),
      el('div', {class: 'strips'}, ...strips), el('ol', {}, ...NAMES.map(row)));
  },
};
race.player = new Player('racing', () => race.step().then(() => !race.isOver()),
  () => PAUSES[$('speed').value]);
$('pace').onclick = () => {
  race.player.stop();
  race.step();
};
calm.onchange = () => {
  for (const player of [race.player, teller, kernel.player]) player.stop();
  race.draw();
};
