// Drives the section "On your own GPU" of docs/play.html, with a small cache: checks/play.sh adds
// this to the end of its script. In the console appears what the section says. ?gpu=results: with
// shuffles and without; ?gpu=reasons: why it cannot, of each kind; otherwise: as things are.

Object.assign(ownGpu.shape, {seqs: 3, length: 37});
Object.assign(ownGpu, {seconds: 0, patience: 120});
const present = navigator.gpu;
async function hear(what, requestAdapter) {
  const value = requestAdapter && {requestAdapter};
  if (what) Object.defineProperty(navigator, 'gpu', {value, configurable: true});
  await useGpu();
  print(what);
}
const print = what => say([what, ...[...document.querySelectorAll('#gpu-says, #gpu-table tr')].map(
  ({textContent}) => textContent.replace(/\s+/g, ' '))].join(' | '));
const replace = (object, name, value) => Object.defineProperty(object, name, {value});
// The adapter that there is, changed, or with a device that is changed.
const changed = (changeAdapter, changeDevice) => async () => {
  const adapter = await present.requestAdapter();
  changeAdapter?.(adapter);
  replace(adapter, 'requestDevice', async wanted => {
    const device = await GPUAdapter.prototype.requestDevice.call(adapter, wanted);
    changeDevice?.(device);
    return device;
  });
  return adapter;
};
const changedDevice = change => changed(null, change);

race.stop();
if (!/=/.test(location.search)) await hear('');
if (location.search === '?gpu=results') {
  await hear('with shuffles', changed());
  await hear('without', changed(adapter => replace(adapter, 'features', new Set())));
}
if (location.search === '?gpu=reasons') {
  await hear('no WebGPU');
  await hear('no adapter', async () => null);
  ownGpu.patience = .1;
  await hear('no answer', () => new Promise(() => {}));
  ownGpu.patience = 120;
  await hear('lost', changedDevice(device =>
    replace(device.queue, 'submit', () => device.destroy())));
  await hear('too small', changedDevice(({limits}) =>
    replace(limits, 'maxStorageBufferBindingSize', 99)));
  await hear('a shader', changedDevice(device => replace(device, 'createShaderModule', ({code}) =>
    GPUDevice.prototype.createShaderModule.call(device, {code: `${code} logf`}))));
  for (const line of Object.values(SOURCE)) line.text = line.text.replace('logf', 'log2f');
  await hear('a line', changed());
  const way = (name, ms, noise = .01) => ({name, ms, noise, wrong: 0});
  const gpu = {name: 'it', lanes: 32, bytes: 2 ** 25};
  const ways = [way('contiguous', .25), way('copied first', .6)];
  show({...gpu, ways: [...ways, way('paged', .26)]}, 3);
  print('costs');
  show({...gpu, ways: [...ways, way('paged', .26, .2)]}, 3);
  print('noise');
}
console.log('END');
