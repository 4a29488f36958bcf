// The stand-in for a GPU in docs/play.html: a part of its script.

const WARP = 32, THREADS = 128, HEAD_DIM = 16;

// Runs a kernel, one thread at a time, and notes what each one does, in pieces. A
// thread that has to meet others is left by an exception. When all have arrived, each is run again
// from its start, with the answers that it has by then and the shared memory that it saw: only what
// is new is noted. `fault`: see lanes().
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
  const begin = (from, asks) => thread.pieces.push(thread.piece = {from, asks, writes: []});
  const note = (values, to) => {  // what a piece has changed, which ends at this line
    for (const name in values)
      if (!isNaN(values.m ?? 0) && values[name] !== thread[name])
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
      Object.assign(asks[i], {met: rounds.length, got: one.answers.at(-1)});
      one.asks = null;
    });
  }
  return {
    stop() { throw Error('It does not come to an end: an endless loop?'); },
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
      note({m, l, o}, line);
      if (shuffles) note({score: value});
      if (fault === 2 && thread.id === THREADS - 1) thread.done = true;
      else begin(line, thread.asks = {line, bits, all, shuffles, value});
      throw LEFT;
    },
    launch(gx, gy, gz, asked) {
      [rounds, fault] = [[], asked];
      for (let block = 0; block < gx * gy * gz; block++) {
        const threads = Array.from({length: THREADS}, (_, id) => ({id, answers: [], views: []}));
        for (let round = [1]; round.some(ran => ran); rounds.push(round)) {
          round = threads.map(one => one.asks || one.done ? null : resume(one, block, gx, gy));
          for (let i = 0; i < THREADS; i += WARP)
            answer(threads.slice(i, i + WARP), ({all}) => !all);
          answer(threads, ({all}) => all);
          if (rounds.length > 400) this.stop();
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
