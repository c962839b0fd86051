// A Mamba-2 layer's convolution of every channel with the rows before it, then SiLU, for rows of one sequence; and
// the rows that the next step sees. One invocation for each channel; rows pass in order.

struct Params {
    // Rows, and the first of them in the step.
    rows: u32,
    first_row: u32,
    // Rows that the convolution sees, the own one included.
    taps: u32,
    channels: u32,
    // Elements from row to row of what was projected, and before its channels.
    stride: u32,
    first_channel: u32,
    // Where the state before the rows is.
    source: u32,
    // 1: sums start with the bias; 0: with zero.
    has_bias: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // [T, stride]
@group(0) @binding(2) var<storage, read> taps: array<f32>; // [taps, channels]
@group(0) @binding(3) var<storage, read> bias: array<f32>; // [channels]
@group(0) @binding(4) var<storage, read> before: array<f32>; // begins with [taps - 1, channels]
@group(0) @binding(5) var<storage, read_write> after: array<f32>; // begins with [taps - 1, channels]
@group(0) @binding(6) var<storage, read_write> mixed: array<f32>; // [T, channels]

// include: element
// include: window
// include: exp

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let channel = element(group, groups, lane);
    let channels = params.channels;
    if channel >= channels {
        return;
    }
    let newest = params.taps - 1u;
    var window = window_before(channel);
    var start = 0.0;
    if params.has_bias != 0u {
        start = bias[channel];
    }
    for (var row = params.first_row; row < params.first_row + params.rows; row += 1u) {
        window[newest] = projected[row * params.stride + params.first_channel + channel];
        var sum = start;
        for (var tap = 0u; tap < params.taps; tap += 1u) {
            sum = fma(taps[tap * channels + channel], window[tap], sum);
        }
        mixed[row * channels + channel] = silu(sum);
        for (var tap = 0u; tap < newest; tap += 1u) {
            window[tap] = window[tap + 1u];
        }
    }
    write_window(channel, window);
}
