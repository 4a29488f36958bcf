// On your own GPU: a part of the script of docs/play.html. The engine fills a cache, a GPU attends
// to it in three ways, by the engine's kernel in WGSL (play_webgpu.awk), and the engine judges.

const ownGpu = {
  seqs: 16, length: 1024, kvHeads: 8, qHeads: 32, headDim: 64, blockSize: 16, patience: 30,
  SOFTWARE: /swiftshader|llvmpipe|lavapipe|software|basic render/i,
  WAYS: {paged: 'through the block table', copied: 'copied first', contiguous: 'contiguous'},
  say(text) { $('gpu-says').textContent = text; },
};

// The engine, in a Worker of its own. It prints nothing.
function cacheMaker(module) {
  const none = new Proxy({}, {get: () => () => 8});
  const x = new WebAssembly.Instance(module, {wasi_snapshot_preview1: none, gpu: none}).exports;
  x._initialize();
  return {
    create({seqs, length, kvHeads, headDim, blockSize}, dtype) {
      const seed = Math.floor(Math.random() * 2 ** 31), entries = Math.ceil(length / blockSize);
      const code = x.cache_create(seqs, length, kvHeads, headDim, blockSize, dtype, seed);
      if (code) throw Error(`the error code ${code}`);
      const copy = (at, bytes) => new Int32Array(x.memory.buffer.slice(at, at + bytes));
      const bytes = seqs * entries * blockSize * kvHeads * headDim * (dtype ? 2 : 4);
      return {planes: [0, 1].map(v => copy(x.cache_plane(v), bytes)),
        tables: Array.from({length: seqs}, (_, i) => copy(x.cache_table(i), 4 * entries))};
    },
    difference(seq, qHeads, q, results) {
      const at = x.malloc(4 * (q.length + results.length));
      new Float32Array(x.memory.buffer, at).set([...q, ...results]);
      return x.cache_difference(seq, qHeads, at, at + 4 * q.length);
    },
  };
}
function startMaker() {
  const worker = new Worker(URL.createObjectURL(new Blob([`${cacheMaker}
    let maker;
    onmessage = ({data: [module, fn, ...args]}) => {
      maker ??= cacheMaker(module);
      postMessage(maker[fn](...args));
    }`])));
  const call = (...message) => new Promise((done, fail) => {
    worker.onmessage = ({data}) => done(data);
    worker.onerror = event => {
      event.preventDefault();
      fail(Error(`The engine in this page fails to make the cache: ${event.message}.`));
    };
    worker.postMessage([module, ...message]);
  });
  return {call, end: () => worker.terminate()};
}

const within = (what, promise) => Promise.race([promise, new Promise((_, fail) => {
  setTimeout(() => fail(Error(`${what} did not answer in ${ownGpu.patience} seconds.`)),
    1000 * ownGpu.patience);
})]);

async function findGpu() {
  if (!navigator.gpu) throw Error('This browser has no WebGPU, which a page needs to use a GPU. ' +
    'Chrome, Edge and Safari have it in their newest versions, Firefox on some systems.');
  const adapter = await within('The adapter', navigator.gpu.requestAdapter(
    {powerPreference: 'high-performance'}));
  if (!adapter) throw Error('This browser has WebGPU, but no adapter: it finds no GPU, or does not ' +
    'trust its driver.');
  const {vendor, architecture, description, subgroupMinSize, isFallbackAdapter} = adapter.info;
  const lanes = adapter.features.has('subgroups') ? Math.min(32, subgroupMinSize ?? 1) : 1;
  const device = await within('The adapter', adapter.requestDevice(
    {requiredFeatures: lanes > 1 ? ['subgroups'] : []}));
  const name = [vendor, architecture, description].filter(word => word).join(' ') || 'unnamed GPU';
  return {device, lanes, name, software: isFallbackAdapter || ownGpu.SOFTWARE.test(name)};
}

// Without shuffles, a warp has one lane.
async function compile({device, lanes, dtype}) {
  const shuffle = lanes > 1 ? 'subgroupShuffleXor(x, u32(bits))' : 'x';
  const code = `${lanes > 1 ? 'enable subgroups; diagnostic(off, subgroup_uniformity);' : ''}
    const WARP = ${lanes}; const THREADS = ${Math.min(128, 32 * lanes)};
    const PER_WORD = ${dtype ? 2 : 1}; const PAGED_MAX_HEAD_DIM = ${ownGpu.headDim};
    fn shfl_xor_sync(lanes: i32, x: f32, bits: i32) -> f32 { return ${shuffle}; }
    ${$('wgsl').textContent}`;
  const shader = device.createShaderModule({code}), {messages} = await shader.getCompilationInfo();
  const {lineNum, message} = messages.find(({type}) => type === 'error') ?? {};
  if (!message) return shader;
  const [text, line] = code.split('\n')[lineNum - 1].split('  // ');
  const [, stage] = text.match(/to_write\((\d+)/) ?? [], {textContent: name} = $('engine');
  throw Error(stage ? `Write the functions of stage ${stage} first.` : line
    ? `Line ${line} of ${name} cannot be translated. It became "${text}": ${message}`
    : `The shader does not compile: ${message}`);
}

// What a GPU needs to attend in each way: pipelines, groups of buffers.
async function prepare({device, dtype, cache: {planes: [k, v], tables}}, shader) {
  const {seqs, length, kvHeads, qHeads, headDim, blockSize} = ownGpu, blocks = tables[0].length;
  const bytes = 2 * k.byteLength, {maxStorageBufferBindingSize: most} = device.limits;
  if (bytes > most) throw Error(`The cache has ${bytes} bytes. A buffer of this device: ${most}.`);
  const room = (size, usage = GPUBufferUsage.STORAGE) => device.createBuffer(
    {size, usage: usage | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC});
  const filled = (parts, usage) => {
    const {length: n, 0: {byteLength: size}} = parts, buffer = room(n * size, usage);
    parts.forEach((part, i) => device.queue.writeBuffer(buffer, i * size, part));
    return buffer;
  };
  const job = isPaged => {
    const words = Int32Array.of(0, qHeads, 0, isPaged, 1, 0, k.length, 0,
      kvHeads, headDim, blockSize, seqs * blocks, dtype, 0, 0, 0);
    new Float32Array(words.buffer)[0] = headDim ** -.5;
    return filled([words], GPUBufferUsage.UNIFORM);
  };
  const perSeq = numbers => filled(tables.map((_, i) => Int32Array.from(numbers(i))));
  const q = tables.map(() => Float32Array.from({length: qHeads * headDim}, () =>
    12 * Math.random() - 6));
  const [out, lse] = [room(4 * seqs * qHeads * headDim), room(4 * seqs * qHeads)];
  const common = [perSeq(i => [i * length, i * blocks]), perSeq(i => [i, length - 1]),
    filled(tables), filled(q), out, lse];
  const layout = device.createBindGroupLayout({entries: Array.from({length: 9}, (_, binding) => ({
    binding, visibility: GPUShaderStage.COMPUTE,
    buffer: {type: binding === 0 ? 'uniform' : binding < 6 ? 'read-only-storage' : 'storage'}}))});
  const group = (...buffers) => device.createBindGroup({layout, entries:
    buffers.map((buffer, binding) => ({binding, resource: {buffer}}))});
  const pipeline = entryPoint => device.createComputePipelineAsync({
    layout: device.createPipelineLayout({bindGroupLayouts: [layout]}),
    compute: {module: shader, entryPoint}});
  const [attend, gather] = await within('The compiler for its kernels',
    Promise.all([pipeline('attend'), pipeline('gather')]));
  const blocked = filled([k, v]), copies = room(bytes);
  const paged = group(job(1), blocked, ...common, copies);
  const dense = group(job(0), copies, ...common, blocked);
  const steps = {paged: [[attend, paged]], copied: [[gather, paged], [attend, dense]],
    contiguous: [[attend, dense]]};
  return {q, out, lse, gather, steps};
}

// Milliseconds.
async function time({over, device, out, gather, steps}, way, rows, repeats) {
  const encoder = device.createCommandEncoder();
  encoder.clearBuffer(out);
  const pass = encoder.beginComputePass();
  for (let i = 0; i < repeats; i++) for (const [pipeline, group] of steps[way]) {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    if (pipeline === gather) pass.dispatchWorkgroups(ownGpu.length, rows);
    else pass.dispatchWorkgroups(rows, ownGpu.qHeads);
  }
  pass.end();
  const begin = performance.now();
  device.queue.submit([encoder.finish()]);
  await within('The kernel', device.queue.onSubmittedWorkDone());
  return performance.now() - begin;
}

async function read(device, buffer) {
  const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
  const copy = device.createBuffer({size: buffer.size, usage});
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, copy, 0, buffer.size);
  device.queue.submit([encoder.finish()]);
  await within('The GPU', copy.mapAsync(GPUMapMode.READ));
  return new Float32Array(copy.getMappedRange());
}

// How far the results of four sequences are from the engine's.
async function judge({device, maker, q, out, lse}, rows) {
  const [all, more] = [await read(device, out), await read(device, lse)], worst = [];
  const {qHeads, headDim} = ownGpu, part = (from, i, n) => [...from.slice(i * n, i * n + n)];
  for (let n = 0; n < 4; n++) {
    const i = Math.floor(Math.random() * rows);
    worst.push(await within('The engine', maker.call('difference', i, qHeads, q[i],
      [...part(all, i, qHeads * headDim), ...part(more, i, qHeads)])));
  }
  return Math.max(...worst);
}

// Rounds of all ways, so that what slows the machine down for a while slows all of them.
async function measure(gpu) {
  const {WAYS, seqs} = ownGpu, ways = Object.keys(WAYS), one = [], repeats = {}, results = {};
  for (const way of ways) await time(gpu, way, 1, 1), one.push(await time(gpu, way, 1, 1));
  const rows = Math.max(1, Math.min(seqs, Math.floor(1000 / Math.max(...one))));
  for (const way of ways)
    for (repeats[way] = 1; repeats[way] < 4096; repeats[way] *= 2)
      if (await time(gpu, way, rows, repeats[way]) > 100) break;
  for (let round = 1; round <= 5; round++) for (const way of ways) {
    if (!gpu.over) ownGpu.say(`Round ${round} of 5: ${WAYS[way]} ...`);
    const {times} = results[way] ??= {times: []};
    times.push(await time(gpu, way, rows, repeats[way]) / repeats[way]);
    if (round === 5) results[way].wrong = await judge(gpu, rows);
  }
  for (const way of ways) {
    const [, low, middle, high] = results[way].times.sort((a, b) => a - b);
    Object.assign(results[way], {ms: middle, noise: (high - low) / middle});
  }
  return {rows, results};
}

function show({name, software, dtype}, {rows, results}) {
  const {WAYS, length, kvHeads, headDim, say} = ownGpu, {paged, copied, contiguous} = results;
  const percent = share => `${(100 * share).toFixed(1)} %`, row = (kind, cells) =>
    el('tr', {}, ...cells.map((cell, i) => el(kind, {style: `text-align: ${i ? 'right' : 'left'}; padding-right: 16px`}, cell)));
  const noise = Math.max(paged.noise, copied.noise, contiguous.noise);
  const cost = ({ms}) => Math.abs(ms / contiguous.ms - 1) > noise ? percent(ms / contiguous.ms - 1)
    : `nothing that can be measured (${percent(ms / contiguous.ms - 1)})`;
  $('gpu-table').replaceChildren(row('th', ['K and V', 'ms', 'GB/s', 'times contiguous', 'result']),
    ...Object.entries(results).map(([way, {ms, wrong}]) => row('td', wrong < 1e-4
      ? [WAYS[way], ms.toPrecision(3), ((dtype ? 4 : 8) * rows * length * kvHeads * headDim / ms / 1e6).toPrecision(3), (ms / contiguous.ms).toFixed(2), `right ${wrong}`]
      : [WAYS[way], '', '', '', `wrong by ${wrong.toPrecision(2)}`])));
  if (![paged, copied, contiguous].every(({wrong}) => wrong < 1e-4))
    return say(`On ${name}, not all results are right. A time without a right result says nothing.`);
  say(`On ${name}, paging costs ${cost(paged)}; copying first costs ${cost(copied)}. ` +
    `${rows} sequences; rounds of the same way differ by ${percent(noise)}.` +
    (software ? ' This adapter is software, which runs on the processor: of a GPU, this says nothing.' : ''));
}

async function fillCache() {
  for (const dtype of [1, 0]) {  // an engine of before stage 12 has no f16
    const maker = startMaker(), {seqs, length, kvHeads, headDim, blockSize} = ownGpu;
    try {
      return {maker, dtype, cache: await within('The engine', maker.call('create',
        {seqs, length, kvHeads, headDim, blockSize}, dtype))};
    } catch (error) {
      maker.end();
      if (!dtype) throw error;
    }
  }
}

async function useGpu() {
  if (ownGpu.busy) return;
  const {say} = ownGpu, gpu = {};
  ownGpu.busy = true;
  $('gpu-table').replaceChildren();
  try {
    say('Looking for a GPU ...');
    Object.assign(gpu, await findGpu());
    const broken = new Promise((_, fail) => {
      gpu.fail = fail;
      gpu.device.lost.then(({message}) => fail(Error(`The GPU was lost. ${message}`)));
    });
    const attending = async () => {
      say('The engine fills a cache ...');
      Object.assign(gpu, await fillCache());
      const shader = await compile(gpu);
      gpu.device.onuncapturederror = ({error}) => gpu.fail(error);
      Object.assign(gpu, await prepare(gpu, shader));
      return measure(gpu);
    };
    show(gpu, await Promise.race([broken, attending()]));
  } catch ({message}) { say(message); }
  gpu.over = true;
  gpu.maker?.end();
  gpu.device?.destroy();
  ownGpu.busy = false;
}

$('own-gpu').append(el('p', {}, 'The kernel of this engine, in the language of your browser, '),
  el('div', {class: 'bar'}, el('button', {id: 'gpu-run'}, 'Run')),
  el('p', {id: 'gpu-says', role: 'status'}), el('table', {id: 'gpu-table'}));
$('gpu-run').onclick = useGpu;
