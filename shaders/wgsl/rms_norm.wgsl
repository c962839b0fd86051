// Normalizes rows by their root mean square: `out = x / sqrt(mean(x^2) + eps) * weight`, or adds
// that to `out`. One workgroup for each row.

// include: reduce

struct Params {
    rows: u32,
    cols: u32,
    eps: f32,
    // 1: adds to what is there.
    adds: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    // include: lane_arguments
) {
    // include: lane_begin
    let row = group.y * groups.x + group.x;
    if row >= params.rows {
        return;
    }
    let first = row * params.cols;
    var squares = 0.0;
    for (var col = lane; col < params.cols; col += LANES) {
        let value = x[first + col];
        squares = fma(value, value, squares);
    }
    let mean = sum_lanes(lane, width, squares) / f32(params.cols);
    let scale = 1.0 / sqrt(mean + params.eps);
    for (var col = lane; col < params.cols; col += LANES) {
        let value = (x[first + col] * scale) * weight[col];
        if params.adds == 1u {
            out[first + col] += value;
        } else {
            out[first + col] = value;
        }
    }
}
