// Operators whose order WGSL leaves open without parentheses.

@group(0) @binding(0) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    out[lane] = out[lane] & 0xffffu | lane << 16u;
}
