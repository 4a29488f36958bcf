// What the scripts that drive docs/play.html share: checks/play.sh puts this before each of them.

const say = text => { for (const line of text.split('\n')) if (line) console.log(line); };
const texts = (things, between = '') => [...things].map(one => one.textContent).join(between);
// What stands in the row of a sequence: its text box, or table- or words-.
const part = (row, what = '') => $(what + row.dataset.name);
const event = (type, more) => ({bubbles: true, cancelable: true, ...more});

// The page has nothing left to do.
async function ended() {
  const all = [bench, oneText, kernel, ...quizzes];
  while (all.some(({pending}) => pending)) for (const {last} of all) await last;
}

// Chooses a value, or slides to it.
function choose(id, value) {
  $(id).value = value;
  for (const type of ['input', 'change']) $(id).dispatchEvent(new Event(type, event()));
}

// The act of the kernel is opened, or closed; its event has come, and what that asks for is done.
async function unfold(open = true) {
  if ($('kernel').open !== open) await new Promise(done => {
    $('kernel').addEventListener('toggle', done, {once: true});
    $('kernel').open = open;
  });
  await ended();
}

// Presses a key, as a hand does: the text changes only if no listener prevents that.
function press(key, ctrlKey = false, repeat = false) {
  const input = document.activeElement;
  const down = new KeyboardEvent('keydown', event('', {key, ctrlKey, repeat}));
  if (!input.dispatchEvent(down)) return;
  if (ctrlKey || input.localName !== 'input') return;
  const remove = key === 'Backspace', {selectionStart: from, selectionEnd: to} = input;
  const more = event('', {inputType: remove ? 'deleteContentBackward' : 'insertText',
    data: remove ? null : key});
  if (key.length > 1 && !remove) return;
  if (!input.dispatchEvent(new InputEvent('beforeinput', more))) return;
  input.setRangeText(remove ? '' : key, Math.max(0, from - (remove && from === to)), to, 'end');
  input.dispatchEvent(new InputEvent('input', more));
}

// The bits that the act of the kernel shows in the end, if it has no fault: the result, and m, l
// and o of each thread.
function bitsOf({record, call: {args}}) {
  if (!record || args[2]) return '';
  const {steps, writes, arrays} = stepsOf(record), out = [];
  const hex = bits => (bits >>> 0).toString(16).padStart(8, '0');
  for (const {array, index, bits} of writes) if (arrays[array] === 'out') out[index] = hex(bits);
  const seen = steps.at(-1).lanes.flatMap(({m, l, o}) => [m, l, o]).map(n =>
    hex(new Int32Array(new Float32Array([n]).buffer)[0]));
  return `out: ${out.join('')}\nm, l and o: ${seen.join('')}\n`;
}

// From now on, what the engines print is kept. They begin anew, as the first calls belong to it.
async function listen() {
  const {ask} = Place.prototype, runs = race.player.turn;
  Place.prototype.ask = function (fresh, calls, take) {
    return ask.call(this, fresh, calls, state => {
      this.log = `${this.log ?? ''}${bitsOf(state)}${state.printed}`;
      take(state);
    });
  };
  await ended();
  race.player.stop();
  await race.last;
  for (const {place} of race.sides) delete place.log;
  race.begun = false;
  if (runs) race.player.run();
  for (const {place} of [bench, oneText, ...quizzes]) {
    place.worker.terminate();
    place.worker = null;
  }
  await bench.begin(bench.story);
  for (const figure of [...quizzes, oneText]) await figure.begin();
  $('bench').open = true;
}
function tell_log(place) {
  say(place.log ?? '');
  place.log = '';
}
