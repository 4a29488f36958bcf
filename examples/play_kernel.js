// The kernel, lane by lane: a part of the script of docs/play.html.

// Runs a kernel, in the Worker, one thread at a time, and notes what each one does, in pieces. A
// thread that has to meet others is left by an exception. When all have arrived, each is run again
// from its start, with the answers that it has by then and the shared memory that it saw: only what
// is new is noted. `fault`: see lanes().
function standIn(exports) {
  const WARP = 32, THREADS = 128, LEFT = Symbol(), UNWRITTEN = 0x7fa00000;  // a signaling NaN
  let arrays = [], memory = [], shown, thread, rounds, stuck, fault;
  const words = ({at, size}) => new Int32Array(exports().memory.buffer, at, size / 4);
  const isNew = () => thread.next === thread.answers.length;
  const enter = () => {  // what comes next, in the memory as it was or, the first time, as it is
    const view = thread.views[thread.next] ??= memory;
    if (view !== shown) view.forEach((copy, i) => words(arrays[i]).set(copy));
    shown = view;
  };
  const begin = (from, asks) => thread.pieces.push(thread.piece = {from, asks, writes: []});
  const note = (values, to) => {  // what a piece has changed, which ends at this line
    for (const name in values)
      if (!isNaN(values.m ?? 0) && values[name] !== thread[name])
        thread[name] = thread.piece[name] = values[name];
    if (to && thread.piece) thread.piece.to = to;
    arrays.forEach((array, i) => {
      const now = words(array), was = memory[i];
      if (now.every((word, j) => word === was[j])) return;
      now.forEach((word, j) => { if (word !== was[j]) thread.piece.writes.push([i, j, word]); });
      memory = memory.map((copy, n) => n === i ? now.slice() : copy);
    });
  };
  function run(one, block, gx, gy) {
    const {gpu_lane, __stack_pointer: stack} = exports(), {value} = stack;
    thread = Object.assign(one, {next: 0, barriers: 0, pieces: []});
    enter();
    try {
      gpu_lane(block % gx, Math.floor(block / gx) % gy, Math.floor(block / gx / gy), one.id);
      note();
      one.done = true;
    } catch (error) { if (error !== LEFT) throw error; } finally { stack.value = value; }
    shown = memory;
    return {pieces: one.pieces, done: one.done};
  }
  function answer(group, meets) {
    const asks = group.map(one => one.asks), [first] = asks;
    if (!asks.every(one => one?.line === first?.line && one?.bits === first?.bits)) return;
    if (first && meets(first.bits)) group.forEach((one, i) => {
      one.answers.push(first.bits > 0 ? asks[i ^ first.bits].value : 0);
      Object.assign(asks[i], {met: rounds.length, got: one.answers.at(-1)});
      one.asks = null;
    });
  }
  return {
    see(id, line, m, l, o) {
      if (!isNew()) return;
      note({m, l, o}, line);
      begin(line);
    },
    found(at) {
      if (isNew()) thread.piece.at = at;
      return at;
    },
    share(name, at, size) {
      if (arrays.some(array => array.at === at)) return;
      const bytes = new Uint8Array(exports().memory.buffer);
      const text = String.fromCharCode(...bytes.slice(name, bytes.indexOf(0, name)));
      arrays.push({at, size, name: text});
      memory = shown = [...memory, words(arrays.at(-1)).fill(UNWRITTEN).slice()];
    },
    meet(line, bits, value, m, l, o) {
      if (fault === 1 && bits === 0 && thread.barriers++ === 0) return 0;
      if (bits >= WARP) throw Error(`the shuffle in line ${line} reaches beyond its warp`);
      if (!isNew()) {
        const answer = thread.answers[thread.next++];
        enter();
        if (isNew()) begin(line + 1);
        return answer;
      }
      note({m, l, o}, line);
      if (bits > 0) note({score: value});
      if (fault === 2 && thread.id === THREADS - 1) thread.done = true;
      else begin(line, thread.asks = {line, bits, value});
      throw LEFT;
    },
    launch(gx, gy, gz, asked) {
      [rounds, fault] = [[], asked];
      for (let block = 0; block < gx * gy * gz; block++) {
        const threads = Array.from({length: THREADS}, (_, id) => ({id, answers: [], views: []}));
        for (let round = [1]; round.some(ran => ran); rounds.push(round)) {
          round = threads.map(one => one.asks || one.done ? null : run(one, block, gx, gy));
          for (let i = 0; i < THREADS; i += WARP)
            answer(threads.slice(i, i + WARP), bits => bits !== 0);
          answer(threads, bits => bits === 0);
        }
        stuck = !threads.every(one => one.done);
      }
    },
    take() {  // what a launch has left
      const record = rounds && {rounds, stuck, arrays: arrays.map(({name}) => name)};
      [arrays, memory, rounds] = [[], [], null];
      return record && {record};
    },
  };
}

// ---- what a record shows ------------------------------------------------------------------------

const WARP = 32, THREADS = 128, WARPS = [0, 1, 2, 3];
const warpOf = id => Math.floor(id / WARP);
const SOURCE = {};  // the lines of the kernels: text, name of the function, global or device
for (const line of $('source').textContent.trim().split('\n')) {
  const [number, text] = line.split('\t'), [, kind, of] = text.match(/^__(\w+?)__.*?(\w+)\(/) ?? [];
  SOURCE[number] = of ? {text, of, kind} : {...SOURCE[number - 1], text};
}

// A piece ends where the next one begins, at the latest at a blank line.
function linesOf({from, to, asks}) {
  const lines = [from], {of} = SOURCE[from];
  for (let n = from + 1; !asks && n !== to && SOURCE[n]?.of === of && SOURCE[n].text.trim(); n++)
    lines.push(n);
  return lines;
}

// What a piece is for, as its effects show. Those at the start have none; later, such are left out.
function kindOf({from, asks, writes: [write], at, m, l, o}, {began, found}, arrays) {
  if (asks) return '';
  if (write && arrays[write[0]] === 'out') return 'finish';
  if (write) return SOURCE[from].of === 'merge' ? 'merge' : 'share';
  if (at >= 0) return 'read';
  if ((m ?? l ?? o) !== undefined) return found ? 'update' : 'query';
  return began ? '' : SOURCE[from].kind === 'global' ? 'launch' : 'start';
}
// In a round, the warps do first what no other thread sees, side by side. Then they write, one
// after another, as they did.
const ASIDE = ['launch', 'start', 'query', 'update', 'read'];
const WRITING = ['share', 'merge', 'finish'];

// The steps of a record, each with the state of all lanes after it.
function stepsOf({rounds, stuck, arrays}) {
  const lanes = Array.from({length: THREADS}, () => ({})), writes = [], steps = [];
  const show = (kind, lines, more) => steps.push({kind, lines: new Set(lines), warps: [],
    of: SOURCE[lines[0]]?.of, written: writes.length, lanes: lanes.map(lane => ({...lane})),
    ...more});
  rounds.forEach((round, n) => {
    let parts = [];  // what is to be shown yet
    round.forEach((entry, id) => {
      const lane = lanes[id];
      for (const piece of entry?.pieces ?? []) {
        const kind = kindOf(piece, lane, arrays);
        if (kind) parts.push({id, piece, kind});
        lane.found ||= piece.at >= 0;
        lane.began ||= kind && kind !== 'launch' && kind !== 'start';
      }
      lane.began = true;
    });
    const arrive = () => round.forEach((entry, id) => {  // who is done waits now, if it has to
      if (!entry || parts.some(part => part.id === id)) return;
      const {asks} = entry.pieces.at(-1) ?? {};
      if (entry.done) lanes[id].back = true;
      if (asks?.bits === 0 || asks && asks.met !== n) lanes[id].waits = asks.line;
    });
    const go = (kind, warps) => {
      const done = parts.filter(part => part.kind === kind && warps.includes(warpOf(part.id)));
      if (!done.length) return;
      parts = parts.filter(part => !done.includes(part));
      if (kind === 'read') for (const lane of lanes) delete lane.at;
      for (const {id, piece} of done) {
        for (const name of ['m', 'l', 'o', 'score', 'at'])
          if (name in piece) lanes[id][name] = piece[name];
        for (const [array, index, bits] of piece.writes)
          writes.push({array, index, bits, warp: warpOf(id)});
      }
      for (const [id, lane] of lanes.entries())
        if (WRITING.includes(kind) && warps.includes(warpOf(id))) delete lane.at;
      arrive();
      show(kind, done.flatMap(({piece}) => linesOf(piece)),
        {warps: WARPS.filter(w => done.some(({id}) => warpOf(id) === w))});
    };
    arrive();
    for (const kind of ASIDE) go(kind, WARPS);
    for (const w of WARPS) for (const kind of WRITING) go(kind, [w]);

    const met = round.map((entry, id) => ({id, ...entry?.pieces.at(-1)?.asks}))
      .filter(asks => asks.met === n);
    const shuffled = met.filter(({bits}) => bits > 0), barrier = met.find(({bits}) => bits === 0);
    const before = [];  // the score of each lane that shuffles
    for (const {id, value, got} of shuffled) {
      before[id] = value;
      lanes[id].score = Math.fround(value + got);
    }
    if (shuffled.length) show('shuffle', [shuffled[0].line], {bits: shuffled[0].bits, before});
    for (const lane of barrier ? lanes : []) delete lane.waits;
    if (barrier) show('barrier', [barrier.line]);
  });
  if (stuck) show('stuck', lanes.flatMap(lane => lane.waits ?? []));
  return {steps, writes, arrays};
}

// ---- the act ------------------------------------------------------------------------------------

const EXAMPLE = 5;  // the lane whose part in a shuffle is marked
const exact = n => n === undefined ? '–' : n < -1e38 ? '−FLT_MAX' : n.toFixed(3).replace('-', '−');
function short(n) {  // fits a cell
  if (n === undefined) return '';
  return isNaN(n) ? 'NaN' : `${+n.toFixed(1)}`.replace('0.', '.').replace('-', '−');
}
function cell(value, most) {
  const tint = Math.round(60 * Math.min(1, Math.abs(value) / most)) || 0;
  const sign = value === undefined ? 'empty' : value < 0 ? 'minus' : 'plus';
  return el('i', {class: sign, style: `--w: ${tint}%`, title: exact(value)}, short(value));
}
const floatOf = bits => new Float32Array(new Int32Array([bits]).buffer)[0];
const list = names => names.join(', ').replace(/, ([^,]*)$/, ' and $1');

// What a step does, and why. `garbage`: it has written NaN.
const SAYS = {
  launch: ({name, text}) => `The newest token of ${name}, "${text.at(-1)}", attends to all ${
    text.length}. 128 threads start: 4 warps of 32 lanes. All of them run these lines.`,
  start: () => 'Each thread finds out who it is. Thread 37, for example, is lane 5 of warp 1.',
  query: () => 'Lane i of each warp takes element i of the query. There are 16: lanes 16 to 31 ' +
    'have none, but stay, as a shuffle needs all 32.',
  read(act, {warps, lanes}) {
    const tokens = warps.map(w => {
      const {letter, block, slot} = act.token(lanes[w * WARP].at);
      return `warp ${w} "${letter}" in slot ${slot} of block ${block}`;
    });
    return `Through the block table, a warp finds a token of its own: ${list(tokens)}. Lane i ` +
      'multiplies element i of the query and of that key.';
  },
  shuffle(act, {bits, before, lanes}) {
    const [mine] = WARPS.map(w => w * WARP + EXAMPLE).filter(id => id in before);
    return `A shuffle: lane i adds what lane i xor ${bits} has. In lane ${EXAMPLE} of warp ${
      warpOf(mine)}, ${exact(before[mine])} + ${exact(before[mine ^ bits])} = ${
      exact(lanes[mine].score)}. Each has the sum of ${WARP / bits} lanes${bits > 1 ? '.'
      : ': all 32 know the score of their token.'}`;
  },
  update(act, {warps, lanes}) {
    const split = warps.filter(w => lanes.slice(w * WARP, w * WARP + WARP)
      .some(({score}) => score !== lanes[w * WARP].score));
    return split.length ? `The lanes of warp ${list(split)} do not agree on the score: the ` +
      'shuffles have not summed all 32.' : 'A warp that has a token adds it to its state: m is ' +
      'the largest score so far, l the sum of exp(score − m), o that of exp(score − m) V, ' +
      'element i in lane i.';
  },
  share({fault}, {warps: [w], lanes}) {
    const {l, waits} = lanes[w * WARP];
    return `Warp ${w} has no token left${l === 0 ? ', and never had one: its l is 0' : ''}. It ` +
      `writes m, l and o to shared memory, where others can read them${
      waits ? `, and waits${fault ? ' at the next barrier' : ''}` : fault ? ', and goes on' : ''}.`;
  },
  barrier: ({steps, at}) => steps.slice(0, at).some(({kind}) => kind === 'merge')
    ? 'All 128 threads meet once more: thread 0 has merged l, and all are going to read it.'
    : 'All 128 threads have arrived: all four states are written. The barrier opens.',
  merge({fault, steps, at}, step, garbage) {
    if (garbage && steps.slice(at).some(({kind}) => kind === 'share'))
      return 'merge() reads the states of all four warps, but not all are written: it gets what ' +
        'was there before, here NaN. The barrier would have prevented that.';
    return 'merge() makes one state of four: thread i sums element i, each state times exp(its ' +
      `m − the largest m).${garbage ? ' It writes NaN.' : fault === 1
        ? ' All four are written: without the barrier, that is luck.' : ''}`;
  },
  finish: ({fault, state}, step, garbage) => `The result is o / l, element i in thread i${garbage
    ? ': garbage.' : fault ? '.'
    : `. The oracle, without blocks, differs by ${state.agrees ? 'less' : 'more'} than 1e-6.`}`,
  stuck(act, {lines, lanes}) {
    const back = lanes.flatMap((lane, id) => lane.back ? [id] : []);
    const whom = !back.length ? 'each other' : back.length > 1 ? `${back.length} that have returned`
      : `thread ${back}, which has returned`;
    return `Deadlock: at line${lines.size > 1 ? 's' : ''} ${list([...lines].sort())}, ${
      THREADS - back.length} threads wait for ${whom}. CUDA does not define what a GPU does then.`;
  },
};

const kernelAct = {
  steps: [], writes: [], state: {}, at: 0, key: '',

  // Runs the kernel for the newest token of a sequence, unless that is what the act shows.
  async look(name, text) {
    const {size, count} = moment(), {table} = now().seqs[name] ?? {};
    const fault = Number($('fault').value), key = `${[name, text, table, size, count, fault]}`;
    if (!$('kernel').open || key === this.key || !place.worker) return;
    this.player.stop();
    Object.assign(this, {name, text, table, fault, key, steps: [], at: 0, state: {}});
    if (!table || !text || text.includes('~') || now().tales) return;
    await place.ask(false, [make('lanes', name, {text}, fault)], state => {
      Object.assign(this, {state}, state.record && stepsOf(state.record));
    });
  },
  // The token whose K begins at this element of layer 1, and where that is.
  token(at) {
    const {size, count} = moment(), row = at / 16 - count * size, block = Math.floor(row / size);
    const slot = row % size, t = this.table.indexOf(block) * size + slot;
    return {block, slot, t, letter: this.text[t] ?? '?'};
  },

  draw() {
    const {steps, writes, at, state} = this, step = steps[at];
    const fresh = writes.slice(steps[at - 1]?.written ?? 0, step?.written);
    const garbage = fresh.some(({bits}) => isNaN(floatOf(bits)));
    const stopped = at < steps.length - 1 ? '' : state.stopped ?? '';
    $('tells').textContent = step ? `${SAYS[step.kind](this, step, garbage)} ${stopped}`
      : stopped || 'There is no token yet.';
    $('gpu').hidden = !step;
    [$('when').max, $('when').value] = [steps.length - 1, at];
    $('act').hidden = Boolean(now().tales);
    if (!step || !$('kernel').open) return;
    this.drawCode(step);
    this.drawTokens(step);
    $('warps').replaceChildren(...WARPS.map(w => this.drawWarp(w, step)));
    this.drawShared(step);
  },
  drawCode({of, lines}) {
    const numbers = Object.keys(SOURCE).map(Number).filter(n => SOURCE[n].of === of);
    $('code').replaceChildren(...numbers.map(n =>
      el('span', {class: lines.has(n) && SOURCE[n].text ? 'at' : ''}, `${n} ${SOURCE[n].text}\n`)));
    const line = $('code').querySelector('.at');
    $('code').scrollTop = line ? line.offsetTop - $('code').clientHeight / 3 : 0;
  },
  drawTokens({lanes}) {
    const {size} = moment(), reader = {};
    lanes.forEach(({at}, id) => { if (at >= 0) reader[this.token(at).t] = warpOf(id); });
    const slot = t => el('span', {class: t in reader ? 'now' : ''}, this.text[t] ?? '',
      el('small', {}, t in reader ? `w${reader[t]}` : ''));
    $('tokens').replaceChildren(...this.table.map((block, entry) => el('li', {},
      el('div', {class: 'slots'}, ...Array.from({length: size}, (_, i) => slot(entry * size + i))),
      el('small', {}, `table[${entry}] = ${block}`))));
  },
  drawWarp(w, {bits, before = [], lanes}) {
    const own = numbers => numbers.slice(w * WARP, w * WARP + WARP);
    const [{m, l, at, waits}] = own(lanes), {letter, t} = at >= 0 ? this.token(at) : {};
    const row = (label, numbers) => {
      const most = Math.max(1e-9, ...numbers.filter(n => !isNaN(n)).map(Math.abs));
      return el('div', {class: 'lanes'}, el('small', {}, label),
        ...own(numbers).map(number => cell(number, most)));
    };
    const now = name => lanes.map(lane => lane.back && waits ? undefined : lane[name]);
    const path = (from, to, look) =>
      el('path', {d: `M${from + .5} 0L${to + .5} 10`, class: look});
    const lines = el('svg', {viewBox: '0 0 32 10', preserveAspectRatio: 'none'});
    const shuffles = w * WARP in before;
    if (shuffles) lines.append(...own(lanes).map((_, i) => path(i ^ bits, i, '')),
      path(EXAMPLE ^ bits, EXAMPLE, 'mine'), path(EXAMPLE, EXAMPLE, 'mine'));
    return el('div', {class: `warp ${waits ? 'waits' : ''}`},
      el('p', {},
        el('span', {}, el('b', {}, `warp ${w}`), t >= 0 ? ` has "${letter}", t = ${t}` : ''),
        el('span', {}, `m ${exact(m)}  l ${exact(l)}`)),
      shuffles ? row('score', before) : el('div', {class: 'lanes'}, waits
        ? el('b', {}, `waits at ${SOURCE[waits].text.match(/__\w+/)}(), line ${waits}`) : ''),
      lines, row(shuffles ? 'sum' : 'score', now('score')), row('o', now('o')));
  },
  drawShared({written}) {  // a row for what a warp has written side by side
    const cells = {}, rows = [];
    this.writes.forEach(({array, index, bits, warp}, i) => {
      const cell = (cells[array] ??= {})[index] ??= {};
      Object.assign(cell, {warp}, i < written && {value: floatOf(bits)});
    });
    for (const array of Object.keys(cells).reverse())
      Object.values(cells[array]).forEach(({warp, value}, i, all) => {
        const label = `${this.arrays[array]}: warp ${warp}`;
        if (warp !== all[i - 1]?.warp)
          rows.push(el('div', {class: 'lanes'}, el('small', {}, label)));
        rows.at(-1).append(cell(value, 1));
      });
    $('shared').replaceChildren(...rows);
  },

  go(to) {
    this.at = Math.max(0, Math.min(this.steps.length - 1, to));
    this.draw();
  },
};
// A kind of step that has been shown before is shown for a shorter time.
kernelAct.player = new Player('running', () => {
  const {steps, at} = kernelAct;
  kernelAct.go(at < steps.length - 1 ? at + 1 : 0);
  return kernelAct.at < steps.length - 1;
}, () => {
  const {steps, at} = kernelAct;
  return steps.findIndex(({kind}) => kind === steps[at].kind) < at ? 700 : 2500;
});
$('act').onclick = ({target: {dataset: {move}}}) => {
  if (!move) return;
  kernelAct.player.stop();
  kernelAct.go(kernelAct.at + Number(move));
};
$('act').oninput = ({target: {id, value}}) => {
  kernelAct.player.stop();
  if (id === 'fault') later(() => {}); else kernelAct.go(Number(value));
};
$('kernel').ontoggle = () => later(() => {});
