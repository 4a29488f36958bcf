// What the scripts that drive docs/play.html share: checks/play.sh puts this before each of them.

const say = text => { for (const line of text.split('\n')) if (line) console.log(line); };
const texts = (things, between = '') => [...things].map(one => one.textContent).join(between);
for (const type of ['error', 'unhandledrejection']) addEventListener(type, ({message, reason}) => {
  say(`! ${message || reason}`);
  console.log('END');
});
// The kernel attends at once, if it attends.
const {perform} = Figure.prototype;
let attends = () => true;
Figure.prototype.perform = function (edit) {
  perform.call(this, edit);
  clearTimeout(kernel.timer);
  if (attends()) kernel.attend(this);
};
oneText.perform(() => {});
// What stands in the row of a sequence: its text box, or table-.
const part = (row, what = '') => $(what + row.dataset.name);
const event = more => ({bubbles: true, cancelable: true, ...more});

// Chooses a value, or slides to it.
function choose(id, value) {
  $(id).value = value;
  for (const type of ['input', 'change']) $(id).dispatchEvent(new Event(type, event()));
}

// The act of the kernel is opened, or closed, and its event has come.
async function unfold(open = true) {
  if ($('kernel').open !== open) await new Promise(done => {
    $('kernel').addEventListener('toggle', done, {once: true});
    $('kernel').open = open;
  });
}

// Presses a key, as a hand does: the text changes only if no listener prevents that.
function press(key, repeat = false) {
  const input = document.activeElement;
  const down = new KeyboardEvent('keydown', event({key, repeat}));
  if (!input.dispatchEvent(down)) return;
  if (input.localName !== 'input') return;
  const remove = key === 'Backspace', {selectionStart: from, selectionEnd: to} = input;
  const more = event({inputType: remove ? 'deleteContentBackward' : 'insertText',
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
function listen() {
  for (const user of [bench, oneText, ...quizzes, ...race.sides]) {
    const {call} = user.engine;
    user.log = '';
    user.engine.call = (...asked) => {
      const state = call(...asked);
      user.log += `${bitsOf(state)}${state.printed}`;
      return state;
    };
  }
  for (const side of race.sides) side.state = {};
  race.draw();
  for (const figure of [bench, oneText, ...quizzes]) figure.begin();
  $('bench').open = true;
}
function tell_log(user) {
  say(user.log);
  user.log = '';
}
