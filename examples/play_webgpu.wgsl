// play_webgpu.wgsl: what the kernel needs around it in WGSL. After it comes the text that
// play_webgpu.awk makes; before it, what play_webgpu.js knows of the adapter. In a Job, pointers are
// numbers: k_plane and v_plane say where a plane begins in `planes`; tables and lse, if they are null.
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

// Rung 1: a copy of each sequence, in words, as WGSL does not store 16 bits alone. A thread block
// copies a token.
@compute @workgroup_size(THREADS)
fn gather(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
    let job = the_job;
    let width = job.config.head_dim;
    for (var i = i32(thread) * PER_WORD; i < job.config.num_kv_heads * width; i += THREADS * PER_WORD) {
        let source = token_offset(job, job_offsets[block.y], i32(block.x), i / width) + i % width;
        let copy = dense_offset(job, job_offsets[block.y], i32(block.x), i / width) + i % width;
        copies[job.k_plane + copy / PER_WORD] = planes[job.k_plane + source / PER_WORD];
        copies[job.v_plane + copy / PER_WORD] = planes[job.v_plane + source / PER_WORD];
    }
}
