// The last part of gated DeltaNet: what each head gave is normed and multiplied by `silu(gate)`, in
// place. One workgroup for each head of a row.

struct Params {
    // Heads of all rows, and of one.
    count: u32,
    heads: u32,
    head_dim: u32,
    // Elements from row to row of what was projected, and before its gates.
    stride: u32,
    first_gate: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // [T, stride]
@group(0) @binding(2) var<storage, read> weight: array<f32>; // [head_dim]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [T, heads * head_dim]

// include: exp
// include: reduce

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    // include: lane_arguments
) {
    // include: lane_begin
    let index = group.y * groups.x + group.x;
    if index >= params.count {
        return;
    }
    let first = index * params.head_dim;
    let row = index / params.heads;
    let gates = row * params.stride + params.first_gate + index % params.heads * params.head_dim;
    var squares = 0.0;
    for (var col = lane; col < params.head_dim; col += LANES) {
        let value = out[first + col];
        squares = fma(value, value, squares);
    }
    let mean = sum_lanes(lane, width, squares) / f32(params.head_dim);
    let scale = 1.0 / sqrt(mean + params.eps);
    for (var col = lane; col < params.head_dim; col += LANES) {
        let value = (out[first + col] * scale) * weight[col];
        out[first + col] = value * silu(projected[gates + col]);
    }
}
