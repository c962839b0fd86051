// Joins gate and up of feed-forward parts and quantizes what they give to int8, for a product with
// a nested matrix. Both lie in one row, gate in front.

struct Gated {
    rows: u32,
    // Columns of gate, and of up.
    cols: u32,
    // Which function, and its parameters.
    kind: u32,
    alpha: f32,
    limit: f32,
    // Whether groups of 32 are rotated.
    rotated: u32,
    padding: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Gated;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, 2 * cols]
@group(0) @binding(2) var<storage, read_write> values: array<u32>; // [rows, groups, 8]
@group(0) @binding(3) var<storage, read_write> scales: array<f32>; // [rows, groups]

// include: exp
// include: rotate
// include: quantize

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = (workgroup.y * workgroups.x + workgroup.x) * 64u + local;
    let groups = (params.cols + 31u) / 32u;
    let row = index / groups;
    let group = index % groups;
    if (row >= params.rows) {
        return;
    }
    let live = min(32u, params.cols - group * 32u);
    let gate = row * 2u * params.cols + group * 32u;
    for (var k = 0u; k < 32u; k += 1u) {
        numbers[k] = 0.0;
        if (k < live) {
            let up = x[gate + params.cols + k];
            numbers[k] = activation(params.kind, x[gate + k], up, params.alpha, params.limit);
        }
    }
    if (params.rotated != 0u) {
        rotate_group();
    }
    quantize_group(index);
}
