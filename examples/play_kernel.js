// The kernel, lane by lane: a part of the script of docs/play.html.

const WARP = 32, THREADS = 128, WARPS = [0, 1, 2, 3], HEAD_DIM = 16, SCALE = .25;

// ---- the stand-in for a GPU ---------------------------------------------------------------------

// Runs a kernel, one thread at a time, and notes what each one does, in pieces. A thread that has
// to meet others is left by an exception. When all have arrived, each is run again from its start,
// with the answers that it has by then and the memory that it saw: only what is new is noted.
function standIn(exports) {
  const LEFT = Symbol(), UNWRITTEN = 0x7fa00000;  // a signaling NaN
  const BARRIER = 2 ** 31 - 1, WARP_BARRIER = -(2 ** 31);  // in the place of a shuffle's bits
  let arrays = [], memory = [], shown, thread, rounds, stuck, fault;
  const words = ({at, size}) => new Int32Array(exports().memory.buffer, at, size / 4);
  const isNew = () => thread.next === thread.answers.length;
  const enter = () => {  // what comes next, in the memory as it was or, the first time, as it is
    const view = thread.views[thread.next] ??= memory;
    if (view !== shown) view.forEach((copy, i) => words(arrays[i]).set(copy));
    shown = view;
  };
  const stop = () => { throw Error('It does not come to an end: an endless loop?'); };
  const begin = (from, asks) => thread.pieces.push(thread.piece = {from, asks, writes: []});
  const note = (values, to) => {  // what a piece has changed, which ends at this line
    for (const name in values)
      if ((name === 'score' || !isNaN(values.m)) && !Object.is(values[name], thread[name]))
        thread[name] = thread.piece[name] = values[name];
    if (to && thread.piece) thread.piece.to = to;
    for (const [i, array] of arrays.entries()) {
      const now = words(array), was = memory[i], changes = [];
      for (let j = 0; j < now.length; j++) if (now[j] !== was[j]) changes.push([i, j, now[j]]);
      if (!changes.length) continue;
      thread.piece.writes.push(...changes);
      memory = memory.map((copy, n) => n === i ? now.slice() : copy);
    }
  };
  function resume(one, block, gx, gy) {
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
    if (first && meets(first)) group.forEach((one, i) => {
      one.answers.push(first.shuffles ? asks[i ^ first.bits].value : 0);
      Object.assign(asks[i], {met: rounds.length - 1, got: one.answers.at(-1)});
      one.asks = null;
    });
  }
  return {
    stop,
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
    meet(line, bits, mask, value, m, l, o) {
      const all = bits === BARRIER, shuffles = !all && bits !== WARP_BARRIER;
      if (fault === 1 && all && thread.barriers++ === 0) return 0;
      if (shuffles && (bits < 0 || bits >= WARP))
        throw Error(`The shuffle in line ${line} reaches beyond its warp.`);
      if (~mask) throw Error(`The mask of the shuffle in line ${line}, 0x${
        (mask >>> 0).toString(16)}, leaves out lanes that take part.`);
      if (!isNew()) {
        const answer = thread.answers[thread.next++];
        enter();
        if (isNew()) begin(line + 1);
        return answer;
      }
      note({m, l, o, score: shuffles ? value : thread.score}, line);
      if (fault === 2 && thread.id === THREADS - 1) thread.done = true;
      else begin(line, thread.asks = {line, bits, all, shuffles, value});
      throw LEFT;
    },
    launch(gx, gy, gz, asked) {
      [rounds, fault, stuck] = [[], asked, false];
      for (let block = 0; block < gx * gy * gz; block++) {
        const threads = Array.from({length: THREADS}, (_, id) => ({id, answers: [], views: []}));
        for (let round = [1]; round.some(ran => ran);) {  // until none has run
          rounds.push(round = []);  // a thread that panics leaves those before it
          for (const one of threads)
            round.push(one.asks || one.done ? null : resume(one, block, gx, gy));
          for (let i = 0; i < THREADS; i += WARP)
            answer(threads.slice(i, i + WARP), ({all}) => !all);
          answer(threads, ({all}) => all);
          if (rounds.length > 400) stop();
        }
        stuck = !threads.every(one => one.done);
      }
    },
    take() {  // what a launch has left
      const record = rounds && {rounds, stuck, arrays: arrays.map(({name}) => name)};
      [arrays, memory, rounds] = [[], [], null];
      return record;
    },
  };
}

// ---- what a record shows ------------------------------------------------------------------------

const warpOf = id => Math.floor(id / WARP);
// The lines of the kernels, and of functions to which a figure leads: text, name of the function.
const SOURCE = new Proxy({}, {get: (lines, n) => lines[n] ?? {text: ''}});
for (const line of new TextDecoder().decode(await unpack($('source').textContent)).match(/.+/g)) {
  const [number, text] = line.split('\t'), [, of] = text.match(/^(?:__|HD).*?(\w+)\(/) ?? [];
  const [, fn] = text.match(/^\w+ (\w+)\(/) ?? [];
  SOURCE[number] = of ? {text, of} : fn ? {text, fn} : {...SOURCE[number - 1], text};
}

// A piece ends where the next one begins, at the latest at a blank line.
function linesOf({from, to, asks}) {
  const lines = [from], {of} = SOURCE[from];
  for (let n = from + 1; !asks && n !== to && SOURCE[n].of === of && SOURCE[n].text.trim(); n++)
    lines.push(n);
  return lines;
}

// What a piece is for, as its effects show. One without effects is shown only as a lane begins.
function kindOf({from, asks, writes: [write], at, m, l, o}, {began, sought}, arrays) {
  if (asks) return '';
  if (write && arrays[write[0]] === 'out') return 'finish';
  if (write) return SOURCE[from].of === 'merge' ? 'merge' : 'share';
  if (at >= 0) return 'read';
  if ((m ?? l ?? o) !== undefined) return sought ? 'update' : 'query';
  return began ? '' : 'launch';
}
// In a round, the warps do first what no other thread sees, side by side. Then they write, one
// after another, as they did.
const ASIDE = ['launch', 'query', 'update', 'read'], WRITING = ['share', 'merge', 'finish'];

// The steps of a record, each with the state of all lanes after it. Of a lane, `read` is where it
// has found keys, and `xors` are the bits of the shuffles that are summed in its score.
function stepsOf({rounds, stuck, arrays}) {
  const lanes = Array.from({length: THREADS}, () => ({})), writes = [], steps = [];
  const show = (kind, lines, more) => steps.push({kind, lines: new Set(lines), warps: [],
    of: SOURCE[lines[0]].of, written: writes.length, lanes: lanes.map(lane => ({...lane})),
    ...more});
  rounds.forEach((round, n) => {
    let parts = [];  // what is to be shown yet
    round.forEach((entry, id) => {
      for (const piece of entry?.pieces ?? []) {
        const lane = lanes[id], kind = kindOf(piece, lane, arrays);
        if (kind) parts.push({id, piece, kind});
        lane.began = true;
        lane.sought ||= piece.at >= 0;
      }
    });
    const arrive = () => round.forEach((entry, id) => {  // who is done waits now, if it has to
      if (!entry || parts.some(part => part.id === id)) return;
      const {asks} = entry.pieces.at(-1) ?? {};
      if (entry.done) lanes[id].back = true;
      if (asks?.all || asks && asks.met !== n) lanes[id].waits = asks.line;
    });
    const go = (kind, warps) => {
      const done = parts.filter(part => part.kind === kind && warps.includes(warpOf(part.id)));
      if (!done.length) return;
      parts = parts.filter(part => !done.includes(part));
      if (kind === 'read') for (const lane of lanes) delete lane.at;
      for (const {id, piece} of done) {
        for (const name of ['m', 'l', 'o', 'score', 'at'])
          if (name in piece) lanes[id][name] = piece[name];
        if (kind === 'read')
          Object.assign(lanes[id], {read: [...lanes[id].read ?? [], piece.at], xors: []});
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
    const shuffled = met.filter(({shuffles}) => shuffles), barrier = met.find(({all}) => all);
    const before = [];
    for (const {id, bits, value, got} of shuffled) {
      const {pieces = []} = rounds[n + 1]?.[id] ?? {}, next = pieces.at(-1)?.asks;
      const sum = Math.fround(value + got), goesOn = !pieces.some(({at}) => at >= 0);
      before[id] = value;  // what became of it, the next shuffle of the same token says
      lanes[id].score = next?.shuffles && goesOn ? next.value : bits > 0 ? sum : value;
      if (Object.is(lanes[id].score, sum)) lanes[id].xors = [...lanes[id].xors ?? [], bits];
    }
    if (shuffled.length) show('shuffle', [shuffled[0].line], {bits: shuffled[0].bits, before,
      warps: WARPS.filter(w => w * WARP in before)});
    for (const lane of barrier ? lanes : []) delete lane.waits;
    if (barrier) show('barrier', [barrier.line]);
  });
  if (stuck) show('stuck', lanes.flatMap(lane => lane.waits ?? []).sort((a, b) => a - b));
  return {steps, writes, arrays};
}

// ---- what is wrong ------------------------------------------------------------------------------

const FLT_MAX = 2 ** 128 - 2 ** 104;
const HEADS = ['m', 'l', ...Array.from({length: HEAD_DIM}, (_, d) => `o${d}`)];  // of a state
const floatOf = bits =>
  bits === undefined ? NaN : new Float32Array(new Int32Array([bits]).buffer)[0];
const differs = (is, should) => !(Math.abs(is - should) <= 1e-5 * Math.max(1, Math.abs(should)));

// The oracle: the state that these tokens make, in double precision.
function partial({q, k, v}, tokens) {
  const dim = q.length, scores = tokens.map(t =>
    q.reduce((sum, x, d) => sum + x * k[dim * t + d], 0) / Math.sqrt(dim));
  const m = Math.max(-FLT_MAX, ...scores), weights = scores.map(score => Math.exp(score - m));
  const sum = valueOf => weights.reduce((all, weight, i) => all + weight * valueOf(tokens[i]), 0);
  return [m, sum(() => 1), ...q.map((_, d) => sum(t => v[dim * t + d]))];
}

// What is wrong with the numbers of a step: a sentence, and the places of these numbers. Nothing if
// they are right. A number has a place, a name, a value, and the value that is right.
function compare(whose, source, numbers) {
  const wrong = numbers.filter(([, , is, should]) => is !== undefined && differs(is, should));
  if (!wrong.length) return null;
  const [[, name, is, should]] = wrong, digits = exact(is) === exact(should) ? 7 : 3;
  return {places: wrong.map(([place]) => place), why: `${whose} is wrong from here: it has ${
    name} = ${exact(is, digits)}, ${source} ${exact(should, digits)}.`};
}
const FLAWS = {
  read(act, {warps, lanes}) {
    const w = warps.find(w => act.text[act.token(lanes[w * WARP].at).t] === undefined);
    if (w === undefined) return null;
    const {t, block, slot} = act.token(lanes[w * WARP].at);
    return {places: [`t ${t}`], why: `Warp ${w} is wrong from here: it reads slot ${slot} of ` +
      `block ${block}, in which there is no token of ${act.name}.`};
  },
  update: (act, {warps, lanes}) => warps.map(w => {
    const first = w * WARP, [m, l, ...o] = partial(act.oracle, act.tokensOf(lanes[first]));
    return compare(`Warp ${w}`, act.tokensMake(lanes[first]), lanes.slice(first, first + WARP)
      .flatMap((lane, i) => [[`m ${first}`, 'm', lane.m, m], [`l ${first}`, 'l', lane.l, l],
        [`o ${first + i}`, `o${i}`, lane.o, o[i] ?? 0]]));
  }).find(Boolean),
  share: (act, {warps: [w], lanes}, fresh) => act.compareState(`The state of warp ${w}`,
    act.tokensMake(lanes[w * WARP]), fresh, act.tokensOf(lanes[w * WARP])),
  merge(act, {lanes}, fresh) {
    const {all, text} = act, read = lanes.flatMap(lane => act.tokensOf(lane));
    const flaw = act.compareState('The merged state', 'the oracle has', fresh, all);
    const lost = all.find(t => !read.includes(t));
    if (flaw && lost >= 0) flaw.why += ` No warp has read t = ${lost}, "${text[lost]}".`;
    return flaw;
  },
  finish: ({expected}, step, fresh) => compare('The result', 'the oracle has', fresh.map(
    ({array, index, bits}) => [`${array} ${index}`, `out[${index}]`, floatOf(bits),
      expected[index]])),
};

// ---- the act ------------------------------------------------------------------------------------

const EXAMPLE = 5;  // the lane whose part is told in numbers, of the first warp of these steps
const exact = (n, digits = 3) => n === undefined ? '–' : n < -1e38 ? '−FLT_MAX'
  : n.toFixed(digits).replace('-', '−');
function short(n) {  // fits a cell
  if (n === undefined) return '';
  const text = isNaN(n) ? 'NaN' : `${+n.toFixed(1)}`.replace('0.', '.');
  return (text.length > 3 ? `${Math.round(n)}` : text).replace('-', '−');
}
function cell(value, most, wrong) {
  const tint = Math.round(60 * Math.min(1, Math.abs(value) / most)) || 0;
  const sign = value === undefined ? 'empty' : wrong || isNaN(value) ? 'wrong'
    : value < 0 ? 'minus' : 'plus';
  return el('i', {class: sign, style: `--w: ${tint}%`, title: exact(value)}, short(value));
}
const heads = (label, names) => el('div', {class: 'lanes'}, el('small', {}, label),
  ...names.map(name => el('i', {}, name)));
const list = names => names.join(', ').replace(/, ([^,]*)$/, ' and $1');

// What a step does, and why, with the numbers of one of its warps.
const SAYS = {
  launch: ({name, text}) => `The newest token of ${name}, "${text.at(-1)}", attends to all ${
    text.length}. 128 threads run these lines, 4 warps of 32 lanes: thread 37, for example, is ` +
    'lane 5 of warp 1.',
  query: ({oracle: {q}}) => `Lane i of each warp takes element i of the query, times the scale. ` +
    `Lane ${EXAMPLE}: ${exact(q[EXAMPLE])} × ${exact(SCALE)} = ${exact(q[EXAMPLE] * SCALE)}. ` +
    'There are 16 elements: lanes 16 to 31 have none, but stay, as a shuffle needs all 32.',
  read(act, {warps, lanes}) {
    const tokens = warps.map(w => {
      const {letter, block, slot} = act.token(lanes[w * WARP].at);
      return `warp ${w} "${letter}" in slot ${slot} of block ${block}`;
    });
    const [q, k] = act.factors(lanes[warps[0] * WARP]).map(row => row[EXAMPLE]);
    return `Through the block table, a warp finds a token of its own: ${list(tokens)}. Lane i ` +
      `multiplies element i of the query and of that key. Lane ${EXAMPLE} of warp ${warps[0]}: ${
        exact(q)} × ${exact(k)} = ${exact(q * k)}.`;
  },
  shuffle(act, {bits, before, lanes, warps: [w]}) {
    const mine = w * WARP + EXAMPLE, other = w * WARP + (EXAMPLE ^ bits), {xors = []} = lanes[mine];
    const {size: summed} = xors.reduce((all, bits) =>
      new Set([...all, ...[...all].map(i => i ^ bits)]), new Set([0]));
    if (bits === 0) return 'A shuffle of 0 bits: each lane gets its own number.';
    return `A shuffle: lane i adds what lane i xor ${bits} has. In lane ${EXAMPLE} of warp ${w}, ${
      exact(before[mine])} + ${exact(before[other])} = ${exact(lanes[mine].score)}. It has the ` +
      `sum of ${summed} lanes${summed < 2 ** xors.length ? ', some of which count more than once.'
        : summed < WARP ? '.' : ': all 32 know the score of their token.'}`;
  },
  update({steps, at}, {warps, lanes}) {
    const own = w => lanes.slice(w * WARP, w * WARP + WARP);
    const split = warps.filter(w => own(w).some(({score}) => !Object.is(score, own(w)[0].score)));
    if (split.length) return `The lanes of warp ${list(split)} do not agree on the score: the ` +
      'shuffles have not summed all 32.';
    const lost = warps.filter(w => isNaN(own(w)[0].score)), [w] = warps, {m, l, score} = own(w)[0];
    if (lost.length) return `The score of warp ${list(lost)} is NaN: where it reads, no token ` +
      'has been written.';
    const was = steps[at - 1].lanes[w * WARP], old = exact(was.l);
    return `A warp adds its token to its state. Warp ${w}: m = max(${exact(was.m)}, ${
      exact(score)}) = ${exact(m)}, l = ${was.l ? `${old} × exp(${exact(was.m - m)}) + ` : ''}exp(${
      exact(score - m)}) = ${exact(l)}. So does o, with exp(score − m) × V, element i in lane i.`;
  },
  share(act, {warps: [w], lanes}) {
    const {m, l} = lanes[w * WARP];
    return `Warp ${w} has no token left${l === 0 ? ', and never had one: its l is 0' : ''}. It ` +
      `writes m = ${exact(m)}, l = ${exact(l)} and o to shared memory, where others can read them.`;
  },
  barrier: () => 'All 128 threads have arrived: each may read what the others wrote. It opens.',
  merge({fault, steps, at}, {lanes}) {
    if (steps.slice(at).some(({kind}) => kind === 'share'))
      return 'merge() reads the states of all four warps, but not all are written: it gets what ' +
        'was there before, here NaN. The barrier would have prevented that.';
    const m = WARPS.map(w => lanes[w * WARP].m), most = Math.max(...m);
    return 'merge() makes one state of four: thread i sums element i, each state times exp(its ' +
      `m − the largest m): ${list(m.map(m => exact(Math.exp(m - most))))}.${
        fault === 1 ? ' All four are written: without the barrier, that is luck.' : ''}`;
  },
  finish(act) {
    const [{bits} = {}] = act.fresh().filter(({index}) => index === 0);
    return `The result is o / l of the merged state, element i in thread i: ${
      exact(floatOf(bits))} in thread 0.${
      act.wrong < 0 ? ' The oracle, without blocks, differs by less than 1e-5.' : ''}`;
  },
  stuck(act, {lines, lanes}) {
    const back = lanes.flatMap((lane, id) => lane.back ? [id] : []);
    const whom = !back.length ? 'each other' : back.length > 1 ? `${back.length} that have returned`
      : `thread ${back}, which has returned`;
    return `Deadlock: at line${lines.size > 1 ? 's' : ''} ${list([...lines])}, ${
      THREADS - back.length} threads wait for ${whom}. CUDA does not define what a GPU does then.`;
  },
};

const kernel = {
  steps: [], writes: [], state: {}, at: 0, wrong: -1, flaw: {},

  // Runs the kernel for the newest token of the sequence in hand.
  attend(on) {
    const {hand: name, size, count, now: {seqs, stopped}} = on, {table, length} = seqs[name] ?? {};
    const text = on.textOf(name), fault = Number($('fault').value), all = [...text].keys();
    Object.assign(this, {on, name, text, all: [...all], table, size, count, fault, steps: [],
      at: 0, state: {}, wrong: -1, flaw: {}, differs: ''});
    if (!stopped && length > 0 && text.length === length && !text.includes('~')) {
      this.state = on.engine.call('lanes', name, {text}, fault);
      if (this.state.record) this.judge(on.engine.exports);
      else this.differs = `Before the kernel began: ${this.state.stopped}`;
      if (this.state.stopped) on.replay(on.wishes);
    }
    $('alarm').textContent = this.differs || on.broken();
    this.draw();
  },
  // Finds the first step that is wrong, and stops there. If the result is right, no step is wrong:
  // a kernel may have states of its own kind.
  judge({memory, k, v, q, attended}) {
    const {state, all} = this, out = [];
    const floats = (at, rows = 1) =>
      Array.from(new Float32Array(memory.buffer, at.value, rows * HEAD_DIM));
    this.oracle = {q: floats(q), k: floats(k, all.length), v: floats(v, all.length)};
    const [, l, ...o] = partial(this.oracle, all), expected = o.map(sum => sum / l);
    const {steps, writes, arrays} = Object.assign(this, {expected}, stepsOf(state.record));
    const results = floats(attended), d = results.findIndex((is, i) => differs(is, expected[i]));
    if (d >= 0) this.differs = `Your attend() differs from the oracle by ${
      exact(results[d] - expected[d])}, first in row 0, head 0, element ${d}: it ` +
      `has ${exact(results[d])}, the oracle ${exact(expected[d])}.`;
    for (const {array, index, bits} of writes)
      if (arrays[array] === 'out') out[index] = floatOf(bits);
    const right = expected.every((should, d) => !differs(out[d], should));
    if (right && !state.stopped && steps.at(-1).kind !== 'stuck') return;
    const flaws = steps.map((step, at) => FLAWS[step.kind]?.(this, step, this.fresh(at)));
    const first = flaws.findIndex(Boolean);
    this.at = this.wrong = first < 0 ? steps.length - 1 : first;
    this.flaw = flaws[this.at] ?? {places: [], why: ''};
  },

  // The token whose K begins at this element of layer 1, and where that is.
  token(at) {
    const {size, count} = this, row = at / 16 - count * size, block = Math.floor(row / size);
    const slot = row % size, entry = this.table.indexOf(block), t = entry * size + slot;
    return {block, slot, t: entry < 0 ? -1 : t, letter: this.text[t] ?? '?'};
  },
  tokensOf({read = []}) { return read.map(at => this.token(at).t); },
  tokensMake({read = []}) {
    return read.length === 1 ? 'its token makes' : `its ${read.length} tokens make`;
  },
  // The numbers that a lane and its neighbours multiply: of the query, and of the key that is read.
  factors({at}) {
    const {q, k} = this.oracle, first = HEAD_DIM * this.token(at).t;
    return [q.map(x => x * SCALE), k.slice(first, first + HEAD_DIM)];
  },
  // What a step has written.
  fresh(at = this.at) {
    return this.writes.slice(this.steps[at - 1]?.written ?? 0, this.steps[at]?.written);
  },
  compareState(whose, source, fresh, tokens) {  // it is written as m, l, o
    const first = Math.min(...fresh.map(({index}) => index));
    return compare(whose, source, partial(this.oracle, tokens).map((should, i) => {
      const {bits} = fresh.find(({index}) => index === first + i) ?? {};
      return [`${fresh[0].array} ${first + i}`, HEADS[i], floatOf(bits), should];
    }));
  },

  draw() {
    const {steps, at, state, wrong} = this, step = steps[at];
    const stopped = at < steps.length - 1 ? '' : state.stopped ?? '', {why, places} = this.flaw;
    const says = step ? `${SAYS[step.kind](this, step)} ${stopped}`
      : stopped || 'There is nothing to attend to.';
    const bad = wrong >= 0 || Boolean(state.stopped);
    this.places = at === wrong ? places : [];
    $('sentence').textContent = at === wrong ? `${why} ${says}`.trim() : says;
    $('sentence').classList.toggle('bad', bad && at >= wrong);
    $('verdict').className = bad ? 'bad' : 'good';
    $('verdict').textContent = bad ? `✗ ${why || 'It stops before its end.'}`
      : steps.length ? '✓ It agrees with the oracle.' : '';
    $('names').hidden = !step || steps.some(({lanes: [lane]}) => (lane.m ?? lane.l) !== undefined);
    $('gpu').hidden = !step;
    [$('when').max, $('when').value] = [steps.length - 1, at];
    if (!step || !$('kernel').open) return;
    this.drawCode(step);
    this.drawTokens(step);
    $('warps').replaceChildren(heads('lane', Array.from({length: WARP}, (_, i) => i)),
      ...WARPS.map(w => this.drawWarp(w, step)));
    this.drawShared(step);
  },
  drawCode({of, lines}) {
    const numbers = Object.keys(SOURCE).map(Number).filter(n => of && SOURCE[n].of === of);
    $('code').replaceChildren(...numbers.map(n =>
      el('span', {class: lines.has(n) && SOURCE[n].text ? 'at' : ''}, `${n} ${SOURCE[n].text}\n`)));
    const line = $('code').querySelector('.at');
    $('code').scrollTop = line ? line.offsetTop - $('code').clientHeight / 3 : 0;
  },
  drawTokens({lanes}) {
    const {size} = this, reader = {};
    lanes.forEach(({at}, id) => { if (at >= 0) reader[this.token(at).t] = warpOf(id); });
    const slot = t => el('span', {class: t in reader ? 'now' : ''}, this.text[t] ?? '',
      el('small', {}, t in reader ? `w${reader[t]}` : ''));
    $('tokens').replaceChildren(...this.table.map((block, entry) => el('li', {},
      el('div', {class: 'slots'}, ...Array.from({length: size}, (_, i) => slot(entry * size + i))),
      el('small', {}, `table[${entry}] = ${block}`))));
  },
  drawWarp(w, {kind, bits, before = [], lanes, warps}) {
    const first = w * WARP, own = numbers => numbers.slice(first, first + WARP);
    const [{m, l, at, waits}] = own(lanes), {letter, t} = at >= 0 ? this.token(at) : {};
    const row = (label, numbers, shown = own(numbers)) => {
      const most = Math.max(1e-9, ...numbers.filter(n => !isNaN(n)).map(Math.abs));
      return el('div', {class: 'lanes'}, el('small', {}, label), ...shown.map((number, i) =>
        cell(number, most, this.places.includes(`${label} ${first + i}`))));
    };
    const number = (name, value) => el('span', {class: this.places.includes(`${name} ${first}`)
      ? 'bad' : ''}, `${name} ${exact(value)}`);
    const valuesOf = name => lanes.map(lane => lane[name]);
    const path = (from, to, name) =>
      el('path', {d: `M${from + .5} 0L${to + .5} 10`, class: name});
    const lines = el('svg', {viewBox: '0 0 32 10', preserveAspectRatio: 'none'});
    const reads = kind === 'read' && warps.includes(w), shuffles = first in before;
    if (shuffles) lines.append(...own(lanes).map((_, i) => path(i ^ bits, i, '')));
    if (shuffles && w === warps[0]) lines.append(path(EXAMPLE ^ bits, EXAMPLE, 'mine'),
      path(EXAMPLE, EXAMPLE, 'mine'));
    const [q, key] = reads ? this.factors(lanes[first]) : [];
    return el('div', {class: `warp ${waits ? 'waits' : ''} ${
      w === warps[0] && /read|shuffle|update|share/.test(kind) ? 'spoken' : ''}`},
      el('p', {},
        el('span', {}, el('b', {}, `warp ${w}`), t >= 0 ? ` has "${letter}", t = ${t}` : ''),
        el('span', {class: 'state'}, number('m', m), '  ', number('l', l)),
        waits ? `waits at line ${waits}: ${SOURCE[waits].text.match(/__\w+/) ?? ''}` : ''),
      ...reads ? [row('q', q, q), row('K', key, key)]
        : shuffles ? [row('score', before), lines, row('sum', valuesOf('score'))]
          : [row('score', valuesOf('score'))],
      row('o', valuesOf('o')));
  },
  drawShared({written}) {  // what a warp has written into an array: m, l, o; `out` is only o
    const rows = {};
    this.writes.forEach(({array, index, bits, warp}, i) => {
      const row = rows[`${array} ${warp}`] ??= {};
      row[index] = i < written ? floatOf(bits) : row[index];
    });
    const keys = Object.keys(rows).sort(([a, , w], [b, , x]) => b - a || w - x);
    $('shared').replaceChildren(heads('', HEADS), ...keys.map(key => {
      const [array, warp] = key.split(' '), name = this.arrays[array];
      const cells = Object.entries(rows[key]).map(([index, value]) =>
        cell(value, 1, this.places.includes(`${array} ${index}`)));
      return el('div', {class: 'lanes'}, el('small', {}, `${name}, warp ${warp}`),
        ...name === 'out' ? [el('i'), el('i')] : [], ...cells);
    }));
  },

  go(to) {
    this.at = Math.max(0, Math.min(this.steps.length - 1, to));
    this.draw();
  },
};
$('act').onclick = ({target: {dataset: {move}}}) => {
  if (move) kernel.go(kernel.at + Number(move));
};
$('act').oninput = ({target: {id, value}}) => {
  if (id === 'when') kernel.go(Number(value));
  if (id === 'fault') kernel.attend(kernel.on);
};
$('kernel').ontoggle = () => kernel.draw();
