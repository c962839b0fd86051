// The gated outputs of a Mamba-2 layer, normed group by group, in place. One workgroup for each group of a row.

struct Params {
    // Groups of all rows, and of one.
    count: u32,
    n_groups: u32,
    // Elements of a group.
    group_size: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<f32>; // [n_groups * group_size]
@group(0) @binding(2) var<storage, read_write> out: array<f32>; // [T, n_groups * group_size]

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
    let first = index * params.group_size;
    let first_weight = index % params.n_groups * params.group_size;
    var squares = 0.0;
    for (var col = lane; col < params.group_size; col += LANES) {
        let value = out[first + col];
        squares = fma(value, value, squares);
    }
    let mean = sum_lanes(lane, width, squares) / f32(params.group_size);
    let scale = 1.0 / sqrt(mean + params.eps);
    for (var col = lane; col < params.group_size; col += LANES) {
        out[first + col] = (out[first + col] * scale) * weight[first_weight + col];
    }
}
