// On your own GPU: a part of the script of docs/play.html. A GPU attends to a cache in three ways,
// with the engine's kernel in WGSL, and the oracle of the kernel's act judges the results.

const ownGpu = {
  shape: {seqs: 16, length: 1024, kvHeads: 8, qHeads: 32, headDim: 64, blockSize: 16},
  software: /swiftshader|llvmpipe|lavapipe|software|basic render/i,
  patience: 30, seconds: 10, say(text) { $('gpu-says').textContent = text; },
};
const within = (what, ...promises) => Promise.race([...promises, new Promise((_, fail) => {
  setTimeout(() => fail(Error(`${what} did not answer in ${ownGpu.patience} seconds.`)),
    1000 * ownGpu.patience);
})]);

// ---- the kernel in WGSL ------------------------------------------------------------------------

// C to WGSL, statement by statement: each stays in its lines. A pointer to floats becomes an index
// into `floats`, the shared memory of a thread block; job->q[i] becomes job_q[i]. What is not known
// here stays as it is, for the compiler to refuse.
function translate(text) {
  const newlines = text => text.replace(/./g, '');
  let rest = text.replace(/\/\/.*|\/\*[^]*?\*\/| = \{0\}/g, newlines), wgsl = '', pointers;
  const shared = [0];  // the size of each array

  // What is in brackets is folded to a number, so the first ; ends a statement.
  const folded = [], fold = inside => `@${folded.push(inside) - 1}@`;
  const unfold = text => text.replace(/@(\d+)@/g, (_, i) => unfold(folded[i]));
  for (let depth = 0; depth < 30; depth++) rest = rest.replace(/[([][^()[\]]*[)\]]/g, fold);
  // Takes what matches from the front of the rest.
  const eat = pattern => {
    const found = rest.match(pattern);
    rest = rest.slice(found[0].length);
    return found;
  };

  // "float x", "float *x", "float x[N]", "const Job *x" in WGSL: "x: float"
  const declared = text => text.replace(
    /(?:const )?(__shared__ )?(\w+)([ *]+)\b(\w+)(?:\[(.*)\])?/,
    (_, isShared, type, gap, name, size) => {
      if (size && !isShared) return `${name}: array<${type}, ${size}>`;
      if (type !== 'float' || !isShared && !gap.includes('*')) return `${name}: ${type}`;
      pointers.add(name);
      if (!isShared) return `${name}: int`;
      shared.push(size);
      return `${name} = ${shared.slice(0, -1).join(' + ')}`;
    });
  const value = text => text.replace(/->/g, '.').replace(/\b__/g, '').replace(/&job\b/g, 'job')
    .replace(/\((int|unsigned|size_t|u?int\d+_t)\)\s*/g, '')
    .replace(/([\w.]+)\[/g, (found, name) =>
      pointers.has(name) ? `floats[${name} + ` : found.replace('job.', 'job_'))
    .replace(/\bjob\.(tables|lse)\b/g, 'has_$1')
    .replace(/^([^=!<>]*=\s|\s*return\s)?([^]*)\?([^]*):([^]*)$/, '$1select($4,$3,$2)');
  // What has no statement in it: a declaration, an expression, several of these.
  const simple = text => {
    const [, type] = text.match(/^\s*(?!return\b)((?:(?:const|__shared__) )?\w+)[ *]+[a-z]/i) ?? [];
    return text.split(',').map(unfold).map((part, i) => {
      if (!type) return `${value(part)};`;
      const whole = i > 0 ? part.replace(/^\s*/, `$&${type} `) : part;
      return `var ${value(declared(whole))};`;
    }).join(' ');
  };
  const statement = () => {
    const [, space, brace, word, head] = eat(/^(\s*)(?:([{])|(for|if|while)\s*(@\d+@))?/);
    if (brace) {
      let block = `${space}{`;
      while (/^\s*[^\s}]/.test(rest)) block += statement();
      return block + eat(/^\s*}?/);
    }
    if (!word) return space + simple(eat(/^([^;]*);?/)[1]);
    const inside = unfold(head).slice(1, -1);
    if (word === 'for') {
      const [begin, test, next] = inside.replace(/\n/g, '').split(';');
      const loop = `${space}{ ${simple(begin)} loop { if (!(${value(test)})) { break; }`;
      return `${loop}${newlines(inside)} ${statement()} continuing { ${simple(next)} } } }`;
    }
    const first = `${space}${word} (${value(inside)}) { ${statement()} }`;
    return /^\s*else\b/.test(rest) ? `${first}${eat(/^\s*else/)} { ${statement()} }` : first;
  };

  while (rest.trim()) {
    pointers = new Set();
    const [head] = eat(/^[^{]*/);
    wgsl += unfold(head).replace(/^(\s*).* (\w+) (\w+)\(([^]*)\)/, (_, space, type, name, list) =>
      `${space}fn ${name}(${list.split(',').map(declared)}) -> ${type}`).replace(' -> void', '');
    wgsl += statement();
  }
  return `${wgsl}\nvar<workgroup> floats: array<f32, ${shared.join(' + ')}>;`;
}

// What a kernel needs around it in WGSL. k_plane and v_plane say where in `planes` they begin.
const AROUND = `
alias float = f32; alias int = i32; alias unsigned = i32; alias size_t = i32;
struct PoolConfig {
    num_layers: i32, num_kv_heads: i32, head_dim: i32, block_size: i32, num_blocks: i32, dtype: i32
}
struct SeqOffset { token: i32, entry: i32 } struct QueryToken { seq: i32, position: i32 }
struct Job {
    config: PoolConfig, num_q_heads: i32, scale: f32, layer: i32, k_plane: i32, v_plane: i32
}
override has_tables: bool; const has_lse = false;
@group(0) @binding(0) var<storage, read> config: PoolConfig;
@group(0) @binding(1) var<storage, read> job_offsets: array<SeqOffset>;
@group(0) @binding(2) var<storage, read> job_queries: array<QueryToken>;
@group(0) @binding(3) var<storage, read> job_tables: array<i32>;
@group(0) @binding(4) var<storage, read> job_q: array<f32>;
@group(0) @binding(5) var<storage, read> planes: array<u32>;
@group(0) @binding(6) var<storage, read_write> job_out: array<f32>;
@group(0) @binding(7) var<storage, read_write> copies: array<u32>;
var<private> job_lse: array<f32, 1>;
var<private> threadIdx: vec3i; var<private> blockIdx: vec3i;
const WARPS = THREADS / WARP;
const PER_LANE = (PAGED_MAX_HEAD_DIM + WARP - 1) / WARP;
const STATE = PAGED_MAX_HEAD_DIM + 2;
const PAGED_F32 = 0; const PAGED_F16 = 1; const PAGED_BF16 = 2;
const ALL_LANES = 0; const FLT_MAX = 0x1.fffffep+127f;
fn fmaxf(a: f32, b: f32) -> f32 { return max(a, b); }
fn expf(x: f32) -> f32 { return exp(x); } fn logf(x: f32) -> f32 { return log(x); }
fn syncthreads() { workgroupBarrier(); }
fn load_element(plane: i32, i: i32, dtype: i32) -> f32 {
    return unpack2x16float(planes[plane + i / 2])[i % 2];
}
fn the_job() -> Job {
    let v_plane = i32(arrayLength(&planes)) / 2;
    return Job(config, Q_HEADS, inverseSqrt(f32(config.head_dim)), 0, 0, v_plane);
}
@compute @workgroup_size(THREADS)
fn attend(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_id) thread: vec3u) {
    blockIdx = vec3i(block);
    threadIdx = vec3i(thread);
    attend_paged(the_job());
}
// Rung 1 copies K and V, in words, since WGSL cannot store 16 bits: a token in each thread block.
@compute @workgroup_size(THREADS)
fn gather(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
    let job = the_job();
    let dim = config.head_dim;
    for (var i = 2 * i32(thread); i < config.num_kv_heads * dim; i += 2 * THREADS) {
        let begin = job_offsets[block.y];
        let at = token_offset(job, begin, i32(block.x), i / dim) + i % dim;
        let copy = dense_offset(job, begin, i32(block.x), i / dim) + i % dim;
        copies[copy / 2] = planes[at / 2];
        copies[job.v_plane + copy / 2] = planes[job.v_plane + at / 2];
    }
}
`;

// ---- a cache, and a GPU -------------------------------------------------------------------------

// A cache of random numbers in f16, from 1/8 to 2 and of both signs, in blocks that are in no
// order. `inputs` are what the kernel gets besides: the shape, a plan, queries.
function fillCache() {
  const {seqs, length, kvHeads, qHeads, headDim, blockSize} = ownGpu.shape;
  const perSeq = Math.ceil(length / blockSize), blocks = seqs * perSeq;
  const planes = new Uint16Array(2 * blocks * blockSize * kvHeads * headDim).map(() =>
    0x3000 + Math.random() * 0x1000 | Math.random() * 2 << 15);
  const pairs = of => new Int32Array(2 * seqs).map((_, i) => of(i >> 1)[i % 2]);
  const tables = new Int32Array(blocks).map((_, i) => i).sort(() => Math.random() - .5);
  const q = new Float32Array(seqs * qHeads * headDim).map(() => 12 * Math.random() - 6);
  return {planes, tables, q, inputs: [Int32Array.of(1, kvHeads, headDim, blockSize, blocks, 1),
    pairs(seq => [seq * length, seq * perSeq]), pairs(seq => [seq, length - 1]), tables, q]};
}
// What attention is for the newest token of a sequence, by the oracle.
function expectedOf({planes, tables, q}, seq) {
  const {length, kvHeads, qHeads, headDim, blockSize} = ownGpu.shape;
  const tokens = [...new Array(length).keys()], perSeq = Math.ceil(length / blockSize);
  const gather = (begin, kvHead) => tokens.flatMap(t => {
    const block = tables[seq * perSeq + Math.floor(t / blockSize)];
    const at = begin + ((block * kvHeads + kvHead) * blockSize + t % blockSize) * headDim;
    return Array.from(planes.subarray(at, at + headDim), bits =>
      (bits >> 15 ? -1 : 1) * 2 ** ((bits >> 10 & 31) - 15) * (1 + bits % 1024 / 1024));
  });
  const keys = Array.from({length: kvHeads}, (_, kvHead) =>
    ({k: gather(0, kvHead), v: gather(planes.length / 2, kvHead)}));
  return Array.from({length: qHeads}, (_, head) => {
    const at = (seq * qHeads + head) * headDim, {k, v} = keys[Math.floor(head * kvHeads / qHeads)];
    const [, l, ...o] = partial({q: Array.from(q.subarray(at, at + headDim)), k, v}, tokens);
    return o.map(sum => sum / l);
  }).flat();
}

async function findGpu() {
  if (!navigator.gpu)
    throw Error('This browser has no WebGPU. The newest Chrome, Edge and Safari have it.');
  const adapter = await within('The adapter', navigator.gpu.requestAdapter(
    {powerPreference: 'high-performance'}));
  if (!adapter) throw Error('WebGPU finds no adapter: there is no GPU, or the browser does not ' +
    'trust its driver.');
  const {vendor, architecture, description, subgroupMinSize, isFallbackAdapter} = adapter.info;
  const name = [vendor, architecture, description].join(' ').trim();
  const lanes = adapter.features.has('subgroups') ? Math.min(32, subgroupMinSize ?? 1) : 1;
  const device = await within('The adapter', adapter.requestDevice(
    {requiredFeatures: lanes > 1 ? ['subgroups'] : []}));
  const broken = new Promise((_, fail) => {
    device.lost.then(({message}) => fail(Error(`The GPU was lost. ${message}`)));
    device.onuncapturederror = ({error}) => fail(error);
  });
  broken.catch(() => {});  // run() hears of it
  return {device, broken, lanes, name: name || 'a GPU without a name',
    isSoftware: isFallbackAdapter || ownGpu.software.test(name)};
}

// A warp has as many lanes as can shuffle on this GPU: one, if none can.
async function compile({device, lanes}) {
  const {headDim, qHeads} = ownGpu.shape;
  const lines = Object.keys(SOURCE).filter(line => !SOURCE[line].fn);
  const kernel = lines.map(line => SOURCE[line].text).join('\n');
  const [, stage] = kernel.match(/to_write\((\d+)/) ?? [];
  if (stage) throw Error(`Your kernel runs here from stage ${stage} on.`);
  const enable = lanes > 1 ? 'enable subgroups; diagnostic(off, subgroup_uniformity);' : '';
  const shuffled = lanes > 1 ? 'subgroupShuffleXor(x, u32(bits))' : 'x';
  const code = `${enable}${translate(kernel)}
    const WARP = ${lanes}; const THREADS = ${Math.min(128, 32 * lanes)};
    const PAGED_MAX_HEAD_DIM = ${headDim}; const Q_HEADS = ${qHeads};
    fn shfl_xor_sync(mask: i32, x: f32, bits: i32) -> f32 { return ${shuffled}; }
    ${AROUND}`;
  const shader = device.createShaderModule({code}), {messages} = await shader.getCompilationInfo();
  const {lineNum, message} = messages.find(({type}) => type === 'error') ?? {};
  if (!message) return shader;
  const line = lines[lineNum - 1], text = code.split('\n')[lineNum - 1]?.trim();
  throw Error(!line ? `The shader does not compile: ${message}.`
    : `Line ${line} of ${$('engine').textContent} cannot be translated. As "${text}": ${message}.`);
}

// Buffers, and the ways. Of each launch of a way: a pipeline, its buffers, its grid.
function prepare({device}, module, cache) {
  const {length, qHeads} = ownGpu.shape, bytes = cache.planes.byteLength;
  const limit = device.limits.maxStorageBufferBindingSize;
  if (bytes > limit)
    throw Error(`The cache needs ${bytes} bytes. A buffer of this device has at most ${limit}.`);
  const {STORAGE, COPY_DST, COPY_SRC, MAP_READ} = GPUBufferUsage;
  const room = (size, usage = STORAGE | COPY_DST | COPY_SRC) => device.createBuffer({size, usage});
  const filled = array => {
    const buffer = room(array.byteLength);
    device.queue.writeBuffer(buffer, 0, array);
    return buffer;
  };
  const bindings = device.createBindGroupLayout({entries: Array.from({length: 8}, (_, binding) => ({
    binding, visibility: GPUShaderStage.COMPUTE,
    buffer: {type: binding < 6 ? 'read-only-storage' : 'storage'}}))});
  const layout = device.createPipelineLayout({bindGroupLayouts: [bindings]});
  const planes = filled(cache.planes), copies = room(bytes), out = room(cache.q.byteLength);
  const inputs = cache.inputs.map(filled);
  const launch = (entryPoint, has_tables, from, to, grid) => ({grid,
    pipeline: device.createComputePipeline(
      {layout, compute: {module, entryPoint, constants: {has_tables}}}),
    group: device.createBindGroup({layout: bindings, entries: [...inputs, from, out, to].map(
      (buffer, binding) => ({binding, resource: {buffer}}))})});
  const gather = launch('gather', true, planes, copies, rows => [length, rows]);
  const paged = launch('attend', true, planes, copies, rows => [rows, qHeads]);
  const contiguous = launch('attend', false, copies, planes, rows => [rows, qHeads]);
  const way = (name, ...launches) => ({name, launches, repeats: 1, times: [], wrong: 0});
  return {cache, out, seen: room(out.size, COPY_DST | MAP_READ), bytes, ways: [
    way('contiguous', contiguous), way('copied first', gather, contiguous), way('paged', paged)]};
}

// Goes a way, as often as it says: how long that takes, and the result.
async function run({device, broken, out, seen}, {launches, repeats}, rows) {
  const encoder = device.createCommandEncoder();
  encoder.clearBuffer(out);
  const pass = encoder.beginComputePass();
  for (let i = 0; i < repeats; i++) for (const {pipeline, group, grid} of launches) {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(...grid(rows));
  }
  pass.end();
  encoder.copyBufferToBuffer(out, 0, seen, 0, out.size);
  const begin = performance.now();
  device.queue.submit([encoder.finish()]);
  await within('The GPU', broken, seen.mapAsync(GPUMapMode.READ).catch(() => broken));
  const ms = performance.now() - begin, result = new Float32Array(seen.getMappedRange().slice());
  seen.unmap();
  return {ms, result};
}

// All ways in turn: what slows a machine slows all. A slow GPU attends for a part of the sequences.
async function measure(gpu) {
  const {shape, seconds, say} = ownGpu, {ways} = gpu, start = performance.now();
  let first;
  for (const way of [...ways, ...ways]) first = await run(gpu, way, 1);
  const rows = Math.max(1, Math.min(shape.seqs, Math.floor(500 / first.ms)));
  const expected = [];
  for (let row = 0; row < rows; row++) {
    say(`What is right, for sequence ${row} ...`);
    await new Promise(done => setTimeout(done));  // it is seen
    expected.push(...expectedOf(gpu.cache, row));
  }
  for (const way of ways)
    while (way.repeats < 4096 && (await run(gpu, way, rows)).ms < 100) way.repeats *= 2;
  for (let round = 1; round < 4 || performance.now() - start < 1000 * seconds; round++)
    for (const way of ways) {
      say(`Round ${round}: ${way.name} ...`);
      const {ms, result} = await run(gpu, way, rows);
      way.times.push(ms / way.repeats);
      way.wrong = expected.reduce((most, should, i) =>
        Math.max(most, Math.abs(result[i] - should)), way.wrong);
    }
  for (const way of ways) {
    const times = way.times.sort((a, b) => a - b), n = times.length;
    way.ms = times[n >> 1];
    way.noise = (times[3 * n >> 2] - times[n >> 2]) / way.ms;
  }
  return rows;
}

function show({name, lanes, isSoftware, bytes, ways}, rows) {
  const {shape: {seqs, length}, say} = ownGpu, [contiguous, copied, paged] = ways;
  const allRight = ways.every(({wrong}) => wrong < 1e-4);
  const noise = Math.max(...ways.map(way => way.noise));
  const row = (kind, ...cells) => el('tr', {}, ...cells.map(cell => el(kind, {}, cell)));
  $('gpu-table').replaceChildren(row('th', 'K and V', 'ms', 'GB/s', 'ratio', 'result'),
    ...ways.map(({name, ms, wrong}) => {
      if (!(wrong < 1e-4)) return row('td', name, '', '', '', `wrong by ${wrong.toFixed(5)}`);
      return row('td', name, ms.toPrecision(3), (bytes * rows / seqs / ms / 1e6).toPrecision(3),
        allRight && noise <= .1 ? (ms / contiguous.ms).toFixed(2) : '', 'right');
    }));
  const percent = share => `${(100 * share).toFixed(1)} %`;
  const cost = ({ms}) => percent(ms / contiguous.ms - 1);
  say(`On ${name}, ${!allRight ? 'a result is wrong' : noise > .1
    ? `times differ by ${percent(noise)} from round to round, too much to compare them`
    : `paging costs ${cost(paged)}; copying first costs ${cost(copied)}`}. Sequences: ${rows} ` +
    `of ${seqs}, of ${length} tokens. Lanes of a warp: ${lanes}.${
      isSoftware ? ' This adapter is software: its times say nothing about a GPU.' : ''}`);
}

async function useGpu() {
  const gpu = {}, {say} = ownGpu;
  $('gpu-run').onclick = null;
  $('gpu-table').replaceChildren();
  say('Looking for a GPU ...');
  try {
    Object.assign(gpu, await findGpu());
    Object.assign(gpu, prepare(gpu, await compile(gpu), fillCache()));
    show(gpu, await measure(gpu));
  } catch ({message}) { say(message); }
  gpu.device?.destroy();
  $('gpu-run').onclick = useGpu;
}
$('gpu-run').onclick = useGpu;
