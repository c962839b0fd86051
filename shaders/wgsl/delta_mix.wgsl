// The first part of gated DeltaNet, for rows of one sequence: a convolution of every channel with the
// rows before it, SiLU, and the norms of queries and keys. One workgroup for each head of queries,
// keys or values of a row.

struct Params {
    // Rows, and the first of them in the step.
    rows: u32,
    first_row: u32,
    // Heads of queries, as many of keys, and of values.
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    // Rows that the convolution sees, the own one included.
    taps: u32,
    // Elements from row to row of what was projected.
    stride: u32,
    channels: u32,
    // 1: a state holds the rows before the first; 0: there were none.
    has_state: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // [T, stride]
@group(0) @binding(2) var<storage, read> before: array<f32>; // begins with [taps - 1, channels]
@group(0) @binding(3) var<storage, read> conv: array<f32>; // [taps, channels]
@group(0) @binding(4) var<storage, read> query_norm: array<f32>; // [key_dim]
@group(0) @binding(5) var<storage, read> key_norm: array<f32>; // [key_dim]
@group(0) @binding(6) var<storage, read_write> mixed: array<f32>; // [T, channels]

// include: exp
// include: reduce

// The input of a channel, so many rows after the oldest that the row's convolution sees.
fn input(row: u32, tap: u32, channel: u32) -> f32 {
    let window = params.taps - 1u;
    if row + tap >= window {
        return projected[(params.first_row + row + tap - window) * params.stride + channel];
    }
    if params.has_state == 0u {
        return 0.0;
    }
    return before[(row + tap) * params.channels + channel];
}

fn convolved(row: u32, channel: u32) -> f32 {
    var sum = 0.0;
    for (var tap = 0u; tap < params.taps; tap += 1u) {
        sum = fma(conv[tap * params.channels + channel], input(row, tap, channel), sum);
    }
    return silu(sum);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    // include: lane_arguments
) {
    // include: lane_begin
    let parts = 2u * params.key_heads + params.value_heads;
    let index = group.y * groups.x + group.x;
    if index >= params.rows * parts {
        return;
    }
    let row = index / parts;
    let part = index % parts;
    let first_out = (params.first_row + row) * params.channels;
    if part >= 2u * params.key_heads {
        let head = part - 2u * params.key_heads;
        let first = 2u * params.key_heads * params.key_dim + head * params.value_dim;
        for (var col = lane; col < params.value_dim; col += LANES) {
            mixed[first_out + first + col] = convolved(row, first + col);
        }
        return;
    }
    let first = part * params.key_dim;
    var squares = 0.0;
    for (var col = lane; col < params.key_dim; col += LANES) {
        let value = convolved(row, first + col);
        mixed[first_out + first + col] = value;
        squares = fma(value, value, squares);
    }
    let mean = sum_lanes(lane, width, squares) / f32(params.key_dim);
    let scale = 1.0 / sqrt(mean + params.eps);
    for (var col = lane; col < params.key_dim; col += LANES) {
        let at = first_out + first + col;
        let weight = select(key_norm[col], query_norm[col], part < params.key_heads);
        mixed[at] = (mixed[at] * scale) * weight;
    }
}
