// play_webgpu.wgsl: what a kernel needs around it in WGSL. play_webgpu.js puts before it what it
// knows of the adapter; after it comes the kernel, from play_webgpu.awk. In a Job, a pointer is a
// number: k_plane and v_plane say where in `planes` they begin; tables and lse are 0 if null.
struct PoolConfig { num_kv_heads: i32, head_dim: i32, block_size: i32, num_blocks: i32, dtype: i32 }
struct SeqOffset { token: i32, entry: i32 }
struct QueryToken { seq: i32, position: i32 }
struct Job {
    scale: f32, num_q_heads: i32, layer: i32, tables: i32, lse: i32, k_plane: i32, v_plane: i32,
    @align(16) config: PoolConfig
}
@group(0) @binding(0) var<uniform> the_job: Job;
@group(0) @binding(1) var<storage, read> planes: array<u32>;
@group(0) @binding(2) var<storage, read> job_offsets: array<SeqOffset>;
@group(0) @binding(3) var<storage, read> job_queries: array<QueryToken>;
@group(0) @binding(4) var<storage, read> job_tables: array<i32>;
@group(0) @binding(5) var<storage, read> job_q: array<f32>;
@group(0) @binding(6) var<storage, read_write> job_out: array<f32>;
@group(0) @binding(7) var<storage, read_write> job_lse: array<f32>;
@group(0) @binding(8) var<storage, read_write> copies: array<u32>;
var<private> threadIdx: vec3i;
var<private> blockIdx: vec3i;
const WARPS = THREADS / WARP;
const PER_LANE = (PAGED_MAX_HEAD_DIM + WARP - 1) / WARP;
const STATE = PAGED_MAX_HEAD_DIM + 2;
const PAGED_F32 = 0; const PAGED_F16 = 1; const PAGED_BF16 = 2;
const ALL_LANES = 0; const FLT_MAX = 0x1.fffffep+127f;
fn fmaxf(a: f32, b: f32) -> f32 { return max(a, b); }
fn expf(x: f32) -> f32 { return exp(x); }
fn logf(x: f32) -> f32 { return log(x); }
fn syncthreads() { workgroupBarrier(); }
fn load_element(plane: i32, i: i32, dtype: i32) -> f32 {
    if (dtype == PAGED_F32) { return bitcast<f32>(planes[plane + i]); }
    return unpack2x16float(planes[plane + i / 2])[i % 2];
}

@compute @workgroup_size(THREADS)
fn attend(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_id) thread: vec3u) {
    blockIdx = vec3i(block);
    threadIdx = vec3i(thread);
    attend_paged(the_job);
}

// Rung 1 copies K and V, here in words, as WGSL stores no 16 bits: a token in each thread block.
@compute @workgroup_size(THREADS)
fn gather(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
    let job = the_job;
    let dim = job.config.head_dim;
    let end = job.config.num_kv_heads * dim;
    for (var i = PER_WORD * i32(thread); i < end; i += PER_WORD * THREADS) {
        let begin = job_offsets[block.y];
        let at = token_offset(job, begin, i32(block.x), i / dim) + i % dim;
        let copy = dense_offset(job, begin, i32(block.x), i / dim) + i % dim;
        copies[job.k_plane + copy / PER_WORD] = planes[job.k_plane + at / PER_WORD];
        copies[job.v_plane + copy / PER_WORD] = planes[job.v_plane + at / PER_WORD];
    }
}
