// The kernel, lane by lane: a part of the script of docs/play.html.

// Runs a kernel, in the Worker, one thread at a time, and notes what each one does. A thread that
// has to meet others is left by an exception. When all have arrived, each is run again from its
// start, with the answers that it has by then and the shared memory that it saw: only what is new
// is noted. `fault`: 1, no thread waits at its first barrier; 2, the last thread leaves early.
function standIn(exports) {
  const WARP = 32, THREADS = 128, LEFT = Symbol(), UNWRITTEN = 0x7fa00000;  // a signaling NaN
  let arrays = [], memory = [], shown, thread, rounds, stuck, fault;
  const bytes = () => new Uint8Array(exports().memory.buffer);
  const words = ({at, size}) => new Int32Array(exports().memory.buffer, at, size / 4);
  const isNew = () => thread.next === thread.answers.length;
  const enter = () => {  // what comes next, in the memory as it was or, the first time, as it is
    const view = thread.views[thread.next] ??= memory;
    if (view !== shown) view.forEach((copy, i) => words(arrays[i]).set(copy));
    shown = view;
  };
  const note = () => arrays.forEach((array, i) => {  // what the last statement has written
    const now = words(array), was = memory[i];
    if (now.every((word, j) => word === was[j])) return;
    const {writes = []} = thread.seen.at(-1);
    now.forEach((word, j) => { if (word !== was[j]) writes.push([i, j, word]); });
    thread.seen.at(-1).writes = writes;
    memory = memory.map((copy, n) => n === i ? now.slice() : copy);
  });
  function run(one, x, y, z) {
    const {gpu_lane, __stack_pointer: stack} = exports(), {value} = stack;
    thread = Object.assign(one, {next: 0, barriers: 0, seen: []});
    enter();
    try { gpu_lane(x, y, z, one.id); note(); one.done = true; }
    catch (error) { if (error !== LEFT) throw error; }
    finally { stack.value = value; }
    shown = memory;
    return {seen: one.seen, asks: one.asks, done: one.done};
  }
  function answer(group, isMeeting) {
    const asks = group.map(one => one.asks), [first] = asks;
    if (!asks.every(one => one && one.line === first.line && one.bits === first.bits)) return;
    if (!isMeeting(first.bits)) return;
    group.forEach((one, i) => {
      one.answers.push(first.bits > 0 ? asks[i ^ first.bits].value : 0);
      asks[i].met = rounds.length;
      one.asks = null;
    });
  }
  return {
    see(line, m, l, score, o) {
      if (!isNew()) return;
      note();
      thread.seen.push({line, m, l, score, o});
    },
    found(at) { if (isNew()) thread.seen.at(-1).at = at; },
    share(name, at, size) {
      if (arrays.some(array => array.at === at)) return;
      arrays.push({at, size,
        name: String.fromCharCode(...bytes().slice(name, bytes().indexOf(0, name)))});
      memory = shown = [...memory, words(arrays.at(-1)).fill(UNWRITTEN).slice()];
    },
    meet(line, bits, value) {
      if (fault === 1 && bits === 0 && thread.barriers++ === 0) return 0;
      if (bits >= WARP) throw Error(`the shuffle in line ${line} reaches beyond its warp`);
      if (!isNew()) {
        const answer = thread.answers[thread.next++];
        enter();
        return answer;
      }
      note();
      if (fault === 2 && thread.id === THREADS - 1) thread.done = true;
      else thread.asks = {line, bits, value};
      throw LEFT;
    },
    launch(gx, gy, gz, asked) {
      [rounds, fault] = [[], asked];
      for (let block = 0; block < gx * gy * gz; block++) {
        const [x, y, z] = [block % gx, Math.floor(block / gx) % gy, Math.floor(block / gx / gy)];
        const threads = Array.from({length: THREADS}, (_, id) => ({id, answers: [], views: []}));
        for (let round = [1]; round.some(one => one); rounds.push(round)) {
          round = threads.map(one => one.asks || one.done ? null : run(one, x, y, z));
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

const WARP = 32, THREADS = 128;
const SOURCE = {};  // the lines of the kernels: their text, and the function that they are in
for (const line of $('source').textContent.trim().split('\n')) {
  const [number, text] = line.split('\t');
  SOURCE[number] = {text, of: text.match(/^__.*?(\w+)\(/)?.[1] ?? SOURCE[number - 1].of};
}

// What a piece of a thread's work was for, as is seen by what it changed.
const PURPOSES = ['', 'read', 'update', 'share', 'merge', 'finish'];
function purpose(piece, found, arrays) {
  const first = piece[0], last = piece.at(-1), then = last.then ?? {}, {of} = SOURCE[last.line];
  const {writes} = piece.find(one => one.writes) ?? {};
  if (writes) return of === 'merge' ? of : arrays[writes[0][0]] === 'out' ? 'finish' : 'share';
  if (piece.some(one => one.at >= 0)) return 'read';
  return found && 'm' in then && SOURCE[then.line].of === of &&
    ['m', 'l', 'o'].some(name => !Object.is(first[name], then[name])) ? 'update' : '';
}

// Cuts a thread's work where it finds a token, at blank lines, and where a function begins or ends.
function cut(seen, found, arrays) {
  const pieces = [];
  for (const one of seen) {
    const piece = pieces.at(-1), {line} = piece?.at(-1) ?? one;
    let ends = !piece || one.at >= 0 || SOURCE[line].of !== SOURCE[one.line].of;
    for (let n = line; n < one.line; n++) ends ||= !SOURCE[n].text.trim();
    if (piece?.length === 1 && !purpose(piece, found, arrays)) ends = false;
    if (ends) pieces.push([one]); else piece.push(one);
  }
  return pieces;
}

// The steps of a record, in each of them the state of all lanes after it. What warps do without a
// write counts as done at the same time; writes come one warp after another, as they did.
function stepsOf({rounds, stuck, arrays}) {
  const lanes = Array.from({length: THREADS}, () => ({})), writes = [], steps = [];
  const show = (kind, lines, more) => steps.push({kind, lines, written: writes.length,
    of: SOURCE[lines.at(-1)]?.of, lanes: lanes.map(lane => ({...lane})), ...more});
  const learn = (lane, then) => {
    if (then && 'value' in then) lane.score = then.value;
    else if (then && (SOURCE[then.line].of === lane.home || !isNaN(then.m))) {
      Object.assign(lane, {home: SOURCE[then.line].of, m: then.m, l: then.l, o: then.o});
      if (!isNaN(then.score)) lane.score = then.score;
    }
  };
  lanes.forEach((lane, id) => {
    let last = {};
    for (const {seen = [], asks} of rounds.map(round => round[id] ?? {}))
      for (const point of asks?.bits > 0 ? [...seen, asks] : seen) last = last.then = point;
  });
  rounds.forEach((round, n) => {
    const works = [[], [], [], []];  // of each warp: pieces with the same number are one step
    round.forEach((entry, id) => {
      if (!entry) return;
      const lane = lanes[id], work = works[Math.floor(id / WARP)];
      let i = 0;
      for (const piece of cut(entry.seen, lane.found, arrays)) {
        const what = purpose(piece, lane.found, arrays);
        lane.found ||= what === 'read';
        if (what || n === 0 && !lane.done) (work[i++] ??= []).push({id, piece, what});
        lane.done ||= !!what;
      }
    });
    const kind = parts => PURPOSES[Math.max(...parts.map(({what}) => PURPOSES.indexOf(what)))];
    const arrive = warp => round.forEach((entry, id) => {
      if (!entry || Math.floor(id / WARP) !== warp) return;
      if (entry.done) lanes[id].back = true;
      if (entry.asks && !(entry.asks.bits && entry.asks.met === n)) lanes[id].waits = entry.asks.line;
    });
    const does = (parts, k) => {
      for (const {id, piece} of parts) {
        const read = piece.find(one => one.at >= 0), warp = Math.floor(id / WARP);
        if (read) lanes[id].at = read.at;
        learn(lanes[id], piece.at(-1).then);
        for (const one of piece)
          for (const [array, index, bits] of one.writes ?? [])
            writes.push({array, index, bits, warp, id});
        if (k === works[warp].length - 1) arrive(warp);
      }
      const lines = parts.flatMap(({piece}) => piece.map(({line}) => line));
      const warps = [...new Set(parts.map(({id}) => Math.floor(id / WARP)))];
      const what = kind(parts) || (SOURCE[lines.at(-1)].text.startsWith('__global__') ? 'launch'
        : steps.length < 2 ? ['launch', 'start'][steps.length] : 'query');
      show(what, lines, {warps});
    };
    const lead = works.map(work => {
      const first = work.findIndex(parts => PURPOSES.indexOf(kind(parts)) > 2);
      return first < 0 ? work.length : first;
    });
    works.forEach((work, warp) => { if (!work.length) arrive(warp); });
    for (let k = 0; k < Math.max(...lead); k++)
      does(works.flatMap((work, warp) => k < lead[warp] ? work[k] : []), k);
    works.forEach((work, warp) => {
      for (let k = lead[warp]; k < work.length; k++) does(work[k], k);
    });
    const met = round.map((entry, id) => ({id, ...entry?.asks})).filter(asks => asks.met === n);
    const shuffled = met.filter(({bits}) => bits > 0), last = met.find(({bits}) => bits === 0);
    for (const {id, then} of shuffled) learn(lanes[id], then);
    if (shuffled.length) show('shuffle', [shuffled[0].line], {bits: shuffled[0].bits,
      before: Object.fromEntries(shuffled.map(({id, value}) => [id, value]))});
    for (const lane of last ? lanes : []) lane.waits = undefined;
    if (last) show('barrier', [last.line]);
  });
  if (stuck) show('stuck', lanes.map(lane => lane.waits).filter(line => line));
  return {steps, writes, arrays};
}

// ---- the act ------------------------------------------------------------------------------------

const exact = n => n === undefined ? '–' : n < -1e38 ? '−FLT_MAX' : n.toFixed(3).replace('-', '−');
const inCell = n => n === undefined ? '' : isNaN(n) ? 'NaN' : Math.abs(n) > 99 ? '−max'
  : `${+n.toFixed(1)}`.replace('0.', '.').replace('-', '−');
const list = names => [names.slice(0, -1).join(', '), names.at(-1)].filter(name => name).join(' and ');
const plural = (word, ids) => `${word}${ids.length > 1 ? 's' : ''} ${list(ids.map(String))}`;
const tint = (value, most) => `--w: ${Math.round(60 * Math.min(1, Math.abs(value) / most)) || 0}%`;
const floatOf = bits => new Float32Array(new Int32Array([bits]).buffer)[0];
const kernelAct = {
  steps: [], writes: [], at: 0, thread: 37, key: '', timer: 0,

  // Runs the kernel for the newest token of a sequence, unless this is what the act shows.
  async look(name, text) {
    const fault = Number($('fault').value), {size, count} = moment(), {table} = now().seqs[name] ?? {};
    const key = JSON.stringify([name, text, table, size, count, fault]);
    if (!$('kernel').open || key === this.key || !worker) return;
    const can = table && text && !text.includes('~') && !now().tales;
    Object.assign(this, {name, text, table, fault, key, steps: [], at: 0, state: {}});
    if (can) await ask(false, [`lanes(${name}, "${text}", ${fault})`], state => {
      Object.assign(this, {state}, state.record && stepsOf(state.record));
      log += state.log;
    });
  },
  // Where the K is that begins at this element of layer 1, and whose it is.
  token(at) {
    const {size, count} = moment(), row = at / 16 - count * size, block = Math.floor(row / size);
    const t = this.table.indexOf(block) * size + row % size;
    return {block, slot: row % size, t, letter: this.text[t] ?? '?'};
  },
  lanesOf(w) { return this.steps[this.at].lanes.slice(w * WARP, w * WARP + WARP); },

  // What the step does, and why.
  says() {
    const {kind, lanes, bits, warps = [], written} = this.steps[this.at], {fault, writes} = this;
    const [first] = warps, {waits, l} = lanes[first * WARP] ?? {};
    const fresh = writes.slice(this.steps[this.at - 1]?.written, written);
    const garbage = fresh.some(({bits}) => isNaN(floatOf(bits)));
    const split = warps.filter(w => new Set(this.lanesOf(w).map(({score}) => score)).size > 1);
    const back = lanes.flatMap((lane, id) => lane.back ? [id] : []);
    const where = [...new Set(lanes.flatMap(({waits}) => waits ?? []))];
    const reads = w => {
      const {letter, block, slot} = this.token(lanes[w * WARP].at);
      return `${w} "${letter}" in block ${block}, slot ${slot}`;
    };
    return {
      launch: () => `The newest token of ${this.name}, "${this.text.at(-1)}", attends to all ${
        this.text.length}. 128 threads start: 4 warps of 32 lanes. All run the same lines.`,
      start: () => 'Each thread finds out who it is. Thread 37, for example, is lane 5 of warp 1.',
      query: () => 'Lane i of each warp takes element i of the query. There are only 16 elements: ' +
        'lanes 16 to 31 have none, but go along, as a shuffle needs all 32.',
      read: () => `Each warp finds a token of its own through the block table. Warp ${
        list(warps.map(reads))}. Lane i multiplies element i of the query and of this K.`,
      shuffle: () => `A shuffle: lane i adds what lane i xor ${bits} has. Now each has the sum of ${
        WARP / bits} lanes${bits > 1 ? '.' : ': all 32 know the score of their token.'}`,
      update: () => split.length ? `The lanes of ${plural('warp', split)} disagree about the score: ` +
        'the shuffles have not summed all 32.'
        : `${plural('Warp', warps)} adds its token: m is the largest score so far, l the sum of ` +
        'exp(score − m), o that of exp(score − m) V. Lane i keeps element i of o.',
      share: () => `Warp ${first} has no token left${l ? '' : ', and never had one: l is 0'}. It writes ` +
        `m, l and o to shared memory, where others can read them${waits ? ', and waits at the barrier'
        : fault === 1 ? '. No barrier stops it' : ''}.`,
      barrier: () => this.steps.slice(0, this.at).some(({kind}) => kind === 'barrier') || fault === 1
        ? 'All 128 threads meet once more: thread 0 has merged l, and all are going to read it.'
        : 'All 128 threads have arrived, so all four states are written. The barrier opens.',
      merge: () => garbage ? 'merge() reads the states of all warps, but some are not written yet: ' +
        'it gets what was there before, NaN. The barrier was there to prevent that.'
        : `merge() makes one state of four: thread i sums element i, weighted by exp(its m − the ` +
        `largest m).${fault === 1 ? ' By luck, the others had written theirs.' : ''}`,
      finish: () => `out = o / l, element i in thread i${garbage ? ': garbage.' : this.state.difference
        ? `. The oracle differs by ${this.state.difference}.` : '.'}`,
      stuck: () => `Deadlock: ${plural('line', where)} ${where.length > 1 ? 'are' : 'is'} where ${
        lanes.length - back.length} threads wait for ${back.length === 1 ? `thread ${back[0]}, which`
        : `${back.length || 'each other'}, which`} has returned. A GPU would hang.`,
    }[kind]() + (fault === 2 && kind === 'read' && this.at < 4
      ? ' Thread 127 has no element, so in this kernel it returns.' : '');
  },

  draw() {
    const {steps, writes, at, state} = this, step = steps[at];
    $('tells').textContent = step ? this.says() : state?.stopped || 'This needs a line with a token.';
    $('gpu').hidden = !step;
    [$('when').max, $('when').value] = [Math.max(0, steps.length - 1), at];
    if (!step) return this.stop();
    document.querySelector('[data-act="0"]').textContent = this.timer ? 'Stop' : 'Run';
    const numbers = Object.keys(SOURCE).filter(n => SOURCE[n].of === step.of), marked = new Set(step.lines);
    $('code').replaceChildren(...numbers.map(n => {
      if (marked.has(Number(n)) && /^ *(for|if)\b.*\)( *\/\/.*)?$/.test(SOURCE[n].text)) marked.add(Number(n) + 1);
      return el('span', {class: marked.has(Number(n)) ? 'at' : ''}, `${n} ${SOURCE[n].text}\n`);
    }));
    const line = $('code').querySelector('.at');
    $('code').scrollTop = line ? line.offsetTop - $('code').clientHeight / 3 : 0;
    this.drawTokens(step);
    $('warps').replaceChildren(...[0, 1, 2, 3].map(w => this.drawWarp(step, w)));
    this.drawShared(step);
    const {thread} = this, {score, m, l, o} = step.lanes[thread], lane = thread % WARP;
    const {[thread]: own, [thread ^ step.bits]: other} = step.before ?? {};
    $('thread').value = thread;
    $('who').textContent = `Thread ${thread} is lane ${lane} of warp ${Math.floor(thread / WARP)}: score ${
      other >= -9e9 ? `${exact(own)} + ${exact(other)} from lane ${lane ^ step.bits} = ` : ''}${
      exact(score)}, m ${exact(m)}, l ${exact(l)}, o[${lane}] ${exact(o)}`;
  },
  drawTokens(step) {
    const {size} = moment(), reading = {}, done = new Set();
    step.lanes.forEach(({at, waits, back}, id) => {
      if (at >= 0 && !waits && !back) reading[this.token(at).t] = Math.floor(id / WARP);
    });
    for (const {kind, warps, lanes} of this.steps.slice(0, this.at + 1))
      if (kind === 'update') for (const w of warps) done.add(this.token(lanes[w * WARP].at).t);
    $('tokens').replaceChildren(...this.table.map((block, entry) => el('li', {},
      el('div', {class: 'slots'}, ...Array.from({length: size}, (_, slot) => {
        const t = entry * size + slot, w = reading[t];
        return el('span', {class: done.has(t) ? 'done' : w >= 0 ? 'now' : ''}, this.text[t] ?? '',
          w >= 0 ? el('small', {}, `w${w}`) : '');
      })), el('small', {}, `table[${entry}] = ${block}`))));
  },
  drawWarp({kind, warps = [], bits, before = {}, lanes}, w) {
    const node = $('warp').content.cloneNode(true).firstChild, [head, was, lines, is, o] = node.children;
    const own = this.lanesOf(w), [{m, l, at, waits, back}] = own, does = w * WARP in before;
    const most = name => Math.max(...lanes.map(lane => Math.abs(lane[name]) || 0), 1e-9);
    const {letter, t} = at >= 0 ? this.token(at) : {};
    const cells = (row, name, values, most) => row.replaceChildren(el('small', {}, name),
      ...values.map((value, i) => el('i', {'data-thread': w * WARP + i,
        class: `${value < 0 ? 'minus' : ''} ${w * WARP + i === this.thread ? 'here' : ''} ${
          own[i].back ? 'back' : own[i].waits ? 'waits' : ''}`,
        style: tint(value, most)}, inCell(value))));
    head.append(el('b', {}, `warp ${w}`), waits ? ` waits at line ${waits}` : back ? ' has returned'
      : t >= 0 ? ` has "${letter}", t = ${t}` : '', el('span', {}, `m ${exact(m)}  l ${exact(l)}`));
    cells(was, 'score', own.map((_, i) => before[w * WARP + i]), most('score'));
    cells(is, does ? 'sum' : 'score', own.map(({score}) => score), most('score'));
    cells(o, 'o', own.map(({o}) => o), most('o'));
    was.classList.toggle('off', !does);
    const mine = this.thread - w * WARP;  // its two numbers come last, over all others
    const pairs = [...own.map((_, i) => [i ^ bits, i]), [mine ^ bits, mine], [mine, mine]];
    if (does) lines.append(...pairs.slice(0, own[mine] ? 34 : 32).map(([from, to], i) => el('path',
      {d: `M${from + .5} 0L${to + .5} 10`, class: i < 32 ? '' : 'mine'})));
    return node;
  },
  drawShared({written}) {
    const cells = {};
    this.writes.forEach(({array, index, bits, warp}, i) => {
      const cell = (cells[array] ??= {})[index] ??= {warp};
      if (i < written) cell.value = floatOf(bits);
    });
    const rows = [];
    for (const array of Object.keys(cells).sort((a, b) => b - a)) {
      let last;
      for (const {warp, value} of Object.values(cells[array])) {
        if (warp !== last) rows.push(el('div', {class: 'lanes'}, el('small', {}, this.arrays[array] +
          (this.arrays[array] === 'out' ? '' : `: warp ${warp}`))));
        rows.at(-1).append(el('i', {class: value === undefined ? 'empty' : value < 0 ? 'minus' : '',
          style: tint(value, 1)}, inCell(value)));
        last = warp;
      }
    }
    $('shared').replaceChildren(...rows);
  },

  go(to) {
    this.at = Math.max(0, Math.min(this.steps.length - 1, to));
    this.draw();
  },
  stop() { clearTimeout(this.timer); this.timer = 0; },
  // A kind of step that has been seen is shown for a shorter time.
  run() {
    const {kind} = this.steps[this.at] ?? {}, seen = this.steps.findIndex(step => step.kind === kind);
    this.timer = setTimeout(() => {
      this.go(this.at + 1);
      if (this.at < this.steps.length - 1) this.run(); else this.stop(), this.draw();
    }, seen < this.at ? 700 : 2500);
  },
};
$('act').onclick = ({target}) => {
  const {act, thread} = target.dataset, {timer} = kernelAct;
  if (thread) kernelAct.thread = Number(thread);
  if (act) kernelAct.stop();
  if (act === '0' && !timer) {
    if (kernelAct.at === kernelAct.steps.length - 1) kernelAct.at = 0;
    kernelAct.run();
  }
  if (act || thread) kernelAct.go(kernelAct.at + Number(act ?? 0));
};
$('act').oninput = ({target: {id, value}}) => {
  kernelAct.stop();
  if (id === 'thread') kernelAct.thread = Number(value);
  if (id === 'fault') later(() => {}); else kernelAct.go(id === 'when' ? Number(value) : kernelAct.at);
};
$('kernel').ontoggle = () => later(() => {});
