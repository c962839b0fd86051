// Normalizes parts of rows in place, by their own root mean square. One workgroup for each part.

struct Params {
    // Parts in all, and in a row.
    count: u32,
    parts: u32,
    // Elements from row to row and from part to part, and before the first part.
    row_stride: u32,
    part_stride: u32,
    first: u32,
    // Elements of a part.
    length: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<f32>; // [length]
@group(0) @binding(2) var<storage, read_write> x: array<f32>;

// include: reduce

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    // include: lane_arguments
) {
    // include: lane_begin
    let part = group.y * groups.x + group.x;
    if part >= params.count {
        return;
    }
    let row = part / params.parts;
    let first = row * params.row_stride + params.first + part % params.parts * params.part_stride;
    var squares = 0.0;
    for (var index = lane; index < params.length; index += LANES) {
        let value = x[first + index];
        squares = fma(value, value, squares);
    }
    let mean = sum_lanes(lane, width, squares) / f32(params.length);
    let scale = 1.0 / sqrt(mean + params.eps);
    for (var index = lane; index < params.length; index += LANES) {
        x[first + index] = (x[first + index] * scale) * weight[index];
    }
}
