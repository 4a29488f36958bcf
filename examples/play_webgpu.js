// On your own GPU: a part of the script of docs/play.html. The engine fills a cache, a GPU attends
// to it in three ways, with the engine's kernel in WGSL (play_webgpu.awk), and the engine judges.

const ownGpu = {
  shape: {seqs: 16, length: 1024, kvHeads: 8, qHeads: 32, headDim: 64, blockSize: 16},
  ways: {contiguous: 'contiguous', copied: 'copied first', paged: 'paged'},
  software: /swiftshader|llvmpipe|lavapipe|software|basic render/i,
  patience: 30, seconds: 10, say(text) { $('gpu-says').textContent = text; },
};
const within = (what, promise) => Promise.race([promise, new Promise((_, fail) => {
  setTimeout(() => fail(Error(`${what} did not answer in ${ownGpu.patience} seconds.`)),
    1000 * ownGpu.patience);
})]);

// The engine, in a Worker of its own.
function keepCache() {
  let x;
  const answer = {
    create(module, {seqs, length, kvHeads, headDim, blockSize}, dtype) {
      const none = new Proxy({}, {get: () => () => 8}), blocks = Math.ceil(length / blockSize);
      x = new WebAssembly.Instance(module, {wasi_snapshot_preview1: none, gpu: none}).exports;
      x._initialize();
      const code = x.cache_create(seqs, length, kvHeads, headDim, blockSize, dtype);
      if (code) throw Error(`error code ${code}`);
      const copy = (at, bytes) => new Int32Array(x.memory.buffer.slice(at, at + bytes));
      const bytes = seqs * blocks * blockSize * kvHeads * headDim * (dtype ? 2 : 4);
      return {dtype, planes: [0, 1].map(v => copy(x.cache_plane(v), bytes)),
        tables: Array.from({length: seqs}, (_, i) => copy(x.cache_table(i), 4 * blocks))};
    },
    difference(seq, qHeads, q, out) {
      const at = x.malloc(8 * q.length);
      new Float32Array(x.memory.buffer, at).set([...q, ...out]);
      return x.cache_difference(seq, qHeads, at, at + 4 * q.length);
    },
  };
  onmessage = ({data: [what, ...inputs]}) => postMessage(answer[what](...inputs));
}
function startEngine() {
  const worker = new Worker(URL.createObjectURL(new Blob([`(${keepCache})()`])));
  const ask = (...question) => within('The engine in this page', new Promise((done, fail) => {
    worker.onmessage = ({data}) => done(data);
    worker.onerror = event => {
      event.preventDefault();
      fail(Error(`The engine in this page cannot make or judge a cache: ${event.message}.`));
    };
    worker.postMessage(question);
  }));
  return {ask, end: () => worker.terminate()};
}

async function findGpu() {
  if (!navigator.gpu) throw Error('This browser has no WebGPU, by which a page uses a GPU. The ' +
    'newest Chrome, Edge and Safari have it; Firefox has it on some systems.');
  const adapter = await within('The adapter', navigator.gpu.requestAdapter(
    {powerPreference: 'high-performance'}));
  if (!adapter) throw Error('WebGPU finds no adapter: there is no GPU, or the browser does not ' +
    'trust its driver.');
  const {vendor, architecture, description, subgroupMinSize, isFallbackAdapter} = adapter.info;
  const name = [vendor, architecture, description].filter(text => text).join(' ');
  const lanes = adapter.features.has('subgroups') ? Math.min(32, subgroupMinSize ?? 1) : 1;
  const device = await within('The adapter', adapter.requestDevice(
    {requiredFeatures: lanes > 1 ? ['subgroups'] : []}));
  return {device, lanes, name: name || 'a GPU without a name',
    isSoftware: isFallbackAdapter || ownGpu.software.test(name)};
}

// A warp has as many lanes as can shuffle on this GPU: one, if none can.
async function compile({device, lanes}, dtype) {
  ownGpu.wgsl ??= new TextDecoder().decode(await unpack($('wgsl').textContent));
  const code = `${lanes > 1 ? 'enable subgroups; diagnostic(off, subgroup_uniformity);' : ''}
    const WARP = ${lanes}; const THREADS = ${Math.min(128, 32 * lanes)};
    const PER_WORD = ${dtype ? 2 : 1}; const PAGED_MAX_HEAD_DIM = ${ownGpu.shape.headDim};
    fn shfl_xor_sync(mask: i32, x: f32, bits: i32) -> f32 {
      return ${lanes > 1 ? 'subgroupShuffleXor(x, u32(bits))' : 'x'};
    }
    ${ownGpu.wgsl}`;
  const shader = device.createShaderModule({code}), {messages} = await shader.getCompilationInfo();
  const {lineNum, message} = messages.find(({type}) => type === 'error') ?? {};
  if (!message) return shader;
  const [text, line] = code.split('\n')[lineNum - 1].split('  // ');
  const [, stage] = text.match(/to_write\((\d+)/) ?? [];
  throw Error(stage ? `Your kernel runs here from stage ${stage} on.` : line
    ? `Line ${line} of ${$('engine').textContent} cannot be translated. As "${text}": ${message}.`
    : `The shader does not compile: ${message}.`);
}

// Buffers, and the launches of each way: a pipeline, its buffers, its grid.
async function prepare({device}, shader, {dtype, planes: [k, v], tables}) {
  const {seqs, length, kvHeads, qHeads, headDim, blockSize} = ownGpu.shape;
  const blocks = tables[0].length, bytes = 2 * k.byteLength, q = tables.map(() =>
    Float32Array.from({length: qHeads * headDim}, () => 12 * Math.random() - 6));
  const {maxStorageBufferBindingSize: limit} = device.limits, {STORAGE, UNIFORM} = GPUBufferUsage;
  if (bytes > limit)
    throw Error(`The cache needs ${bytes} bytes. A buffer of this device has at most ${limit}.`);
  const room = (size, usage = STORAGE) => device.createBuffer(
    {size, usage: usage | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC});
  const filled = (parts, usage) => {
    const {byteLength: size} = parts[0], buffer = room(size * parts.length, usage);
    parts.forEach((part, i) => device.queue.writeBuffer(buffer, size * i, part));
    return buffer;
  };
  const job = isPaged => {
    const words = Int32Array.of(0, qHeads, 0, isPaged, 0, 0, k.length, 0,
      kvHeads, headDim, blockSize, seqs * blocks, dtype, 0, 0, 0);
    new Float32Array(words.buffer)[0] = headDim ** -.5;
    return filled([words], UNIFORM);
  };
  const layout = device.createBindGroupLayout({entries: Array.from({length: 9}, (_, binding) => ({
    binding, visibility: GPUShaderStage.COMPUTE,
    buffer: {type: binding < 1 ? 'uniform' : binding < 6 ? 'read-only-storage' : 'storage'}}))});
  const group = (...buffers) => device.createBindGroup({layout,
    entries: buffers.map((buffer, binding) => ({binding, resource: {buffer}}))});
  const [attend, gather] = await within('The compiler of the GPU', Promise.all(
    ['attend', 'gather'].map(entryPoint => device.createComputePipelineAsync({
      layout: device.createPipelineLayout({bindGroupLayouts: [layout]}),
      compute: {module: shader, entryPoint}}))));
  const perSeq = numbers => filled(tables.map((_, i) => Int32Array.from(numbers(i))));
  const cache = filled([k, v]), copies = room(bytes), out = room(4 * seqs * qHeads * headDim);
  const rest = [perSeq(i => [i * length, i * blocks]), perSeq(i => [i, length - 1]),
    filled(tables), filled(q), out, room(4)];
  const paged = [attend, group(job(1), cache, ...rest, copies), rows => [rows, qHeads]];
  const contiguous = [attend, group(job(0), copies, ...rest, cache), rows => [rows, qHeads]];
  const copied = [[gather, paged[1], rows => [length, rows]], contiguous];
  return {q, out, bytes, launches: {copied, contiguous: [contiguous], paged: [paged]}};
}

// How many milliseconds it takes to go a way so often.
async function time({device, out, launches}, way, rows, repeats) {
  const encoder = device.createCommandEncoder();
  encoder.clearBuffer(out);
  const pass = encoder.beginComputePass();
  for (let i = 0; i < repeats; i++) for (const [pipeline, group, grid] of launches[way]) {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(...grid(rows));
  }
  pass.end();
  const begin = performance.now();
  device.queue.submit([encoder.finish()]);
  await within('The GPU', device.queue.onSubmittedWorkDone());
  return performance.now() - begin;
}

// How far the results of some rows are from the engine's.
async function judge({device, engine, q, out}, rows) {
  const copy = device.createBuffer(
    {size: out.size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST});
  const encoder = device.createCommandEncoder(), differences = [], n = q[0].length;
  encoder.copyBufferToBuffer(out, 0, copy, 0, out.size);
  device.queue.submit([encoder.finish()]);
  await within('The GPU', copy.mapAsync(GPUMapMode.READ));
  const results = new Float32Array(copy.getMappedRange());
  while (differences.length < 4) {
    const row = Math.floor(Math.random() * rows);
    differences.push(await engine.ask('difference', row, ownGpu.shape.qHeads, q[row],
      results.slice(n * row, n * row + n)));
  }
  return Math.max(...differences);
}

// All ways in turn, so that what slows the machine down for a while slows all of them. A launch
// alone takes `idle`, of which a time should have next to nothing.
async function measure(gpu) {
  const {shape, ways, seconds, say} = ownGpu, results = {}, begin = performance.now();
  const names = Object.keys(gpu.launches);
  let one, idle;
  for (const way of [...names, ...names]) {
    one = await time(gpu, way, 1, 1);
    idle = await time(gpu, way, 1, 0);
  }
  const rows = Math.max(1, Math.min(shape.seqs, Math.floor(500 / Math.max(1, one - idle))));
  for (const way of names) {
    let repeats = 1;
    while (repeats < 4096 && await time(gpu, way, rows, repeats) < 100 + 10 * idle) repeats *= 2;
    results[way] = {repeats, times: [], wrong: await judge(gpu, rows)};
  }
  for (let round = 1; round < 4 || performance.now() - begin < 1000 * seconds; round++)
    for (const way of names) {
      const {repeats, times} = results[way];
      if (!gpu.over) say(`Round ${round}: ${ways[way]} ...`);
      times.push(await time(gpu, way, rows, repeats) / repeats);
    }
  for (const result of Object.values(results)) {
    const times = result.times.sort((a, b) => a - b), n = times.length;
    result.ms = times[n >> 1];
    result.noise = (times[3 * n >> 2] - times[n >> 2]) / result.ms;
  }
  return {rows, results};
}

function show({name, lanes, isSoftware, bytes}, {rows, results}) {
  const {ways, shape: {seqs, length}, say} = ownGpu, {contiguous, copied, paged} = results;
  const isRight = way => results[way].wrong < 1e-4, allRight = Object.keys(ways).every(isRight);
  const row = (kind, ...cells) => el('tr', {}, ...cells.map(cell => el(kind, {}, cell)));
  $('gpu-table').replaceChildren(row('th', 'K and V', 'ms', 'GB/s', 'ratio', 'result'),
    ...Object.keys(ways).map(way => {
      const {ms, wrong} = results[way], speed = bytes * rows / seqs / ms / 1e6;
      if (!isRight(way)) return row('td', ways[way], '', '', '', `wrong by ${wrong.toFixed(5)}`);
      return row('td', ways[way], ms.toPrecision(3), speed.toPrecision(3),
        allRight ? (ms / contiguous.ms).toFixed(2) : '', 'right');
    }));
  const percent = share => `${(100 * share).toFixed(1)} %`;
  const cost = ({ms}) => percent(ms / contiguous.ms - 1);
  const noise = Math.max(contiguous.noise, copied.noise, paged.noise);
  say(`On ${name}, ${!allRight ? 'a result is wrong' : noise > .1
    ? `times differ by ${percent(noise)} from round to round, too much to compare them`
    : `paging costs ${cost(paged)}; copying first costs ${cost(copied)}`}. Sequences: ${rows} ` +
    `of ${seqs}, of ${length} tokens. Lanes of a warp: ${lanes}.` +
    (isSoftware ? ' This adapter is software: its times say nothing about a GPU.' : ''));
}

async function useGpu() {
  if (ownGpu.busy) return;
  const gpu = {engine: startEngine()}, {say, shape} = ownGpu;
  ownGpu.busy = true;
  $('gpu-table').replaceChildren();
  say('Looking for a GPU ...');
  try {
    Object.assign(gpu, await findGpu());
    const broken = new Promise((_, fail) => {
      gpu.fail = fail;
      gpu.device.lost.then(({message}) => fail(Error(`The GPU was lost. ${message}`)));
    });
    const attending = async () => {
      const cache = await gpu.engine.ask('create', module, shape, 1)  // stages 7 to 11 have no f16
        .catch(() => gpu.engine.ask('create', module, shape, 0));
      const shader = await compile(gpu, cache.dtype);
      gpu.device.onuncapturederror = ({error}) => gpu.fail(error);
      Object.assign(gpu, await prepare(gpu, shader, cache));
      return measure(gpu);
    };
    show(gpu, await Promise.race([broken, attending()]));
  } catch ({message}) { say(message); }
  gpu.over = true;
  gpu.engine.end();
  gpu.device?.destroy();
  ownGpu.busy = false;
}

$('own-gpu').hidden = false;
$('own-gpu').append(el('h2', {}, 'On your own GPU'),
  el('p', {}, 'What does a block table cost? Your GPU attends to a cache of 16 sequences of 1024 ' +
    'tokens: to K and V that are contiguous, that are copied so first, and that stay in their ' +
    'blocks. The kernel is that of this engine, translated.'),
  el('div', {class: 'bar'}, el('button', {id: 'gpu-run'}, 'Run')),
  el('p', {id: 'gpu-says', role: 'status'}),
  el('table', {id: 'gpu-table', style: 'white-space: nowrap; text-align: left; ' +
    'border-spacing: 8px 2px; margin-left: -8px'}));
$('gpu-run').onclick = useGpu;
