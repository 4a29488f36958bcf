// What the scripts that drive docs/play.html share: checks/play.sh puts this before each of them.

const say = text => { for (const line of text.split('\n')) if (line) console.log(line); };
const texts = (things, between = '') => [...things].map(one => one.textContent).join(between);
const event = (type, more) => ({bubbles: true, cancelable: true, ...more});

// The page has nothing left to do.
async function ended() {
  for (let last; last !== queue;) await (last = queue);
}

// Presses a key, as a hand does: the text changes only if no listener prevents that.
function press(key, ctrlKey = false, repeat = false) {
  const input = document.activeElement;
  const down = new KeyboardEvent('keydown', event('', {key, ctrlKey, repeat}));
  if (!input.dispatchEvent(down)) return;
  if (ctrlKey || input.localName !== 'input' || input.readOnly) return;
  const remove = key === 'Backspace', {selectionStart: from, selectionEnd: to} = input;
  const more = event('', {inputType: remove ? 'deleteContentBackward' : 'insertText',
    data: remove ? null : key});
  if (key.length > 1 && !remove) return;
  if (!input.dispatchEvent(new InputEvent('beforeinput', more))) return;
  if (!remove && input.value.length > 31) return;
  input.setRangeText(remove ? '' : key, Math.max(0, from - (remove && from === to)), to, 'end');
  input.dispatchEvent(new InputEvent('input', more));
}

// From now on, what the engines print is kept. They begin anew, as the first calls belong to it.
async function listen() {
  const {ask} = Place.prototype, runs = race.turn;
  Place.prototype.ask = function (fresh, calls, take) {
    return ask.call(this, fresh, calls, state => {
      this.log = `${this.log ?? ''}${state.printed}`;
      take(state);
    });
  };
  await ended();
  race.stop();
  await race.stepping;
  for (const {place} of race.sides) delete place.log;
  race.begun = false;
  if (runs) race.run();
  place.worker.terminate();
  place.worker = null;
  await run(moment());
}
function tell_log(place) {
  say(place.log ?? '');
  place.log = '';
}
