// The kernel, lane by lane: a part of the script of docs/play.html.

// Runs a kernel, in the Worker, one thread at a time, and notes what each one does. A thread that
// has to meet others is left by an exception. When all have arrived, each is run again from its
// start, with the answers that it has by then and the shared memory that it saw: only what is new
// is noted. `fault`: 1, no thread waits at its first barrier; 2, the last thread leaves early.
function standIn(exports) {
  const WARP = 32, THREADS = 128, LEFT = Symbol();
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
      asks[i].met = true;
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
      memory = shown = [...memory, words(arrays.at(-1)).fill(-1).slice()];  // NaN
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
