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
    // State before the rows: 0 none, 1 `before`, 2 `after`, which is then changed in place.
    source: u32,
    // 1: sums start with the bias; 0: with zero.
    has_bias: u32,
}

const TAPS_MAX = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // [T, stride]
@group(0) @binding(2) var<storage, read> taps: array<f32>; // [taps, channels]
@group(0) @binding(3) var<storage, read> bias: array<f32>; // [channels]
@group(0) @binding(4) var<storage, read> before: array<f32>; // begins with [taps - 1, channels]
@group(0) @binding(5) var<storage, read_write> after: array<f32>; // begins with [taps - 1, channels]
@group(0) @binding(6) var<storage, read_write> mixed: array<f32>; // [T, channels]

// include: element
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
    var window: array<f32, TAPS_MAX>;
    for (var tap = 0u; tap < newest; tap += 1u) {
        let at = tap * channels + channel;
        var old = 0.0;
        if params.source == 1u {
            old = before[at];
        } else if params.source == 2u {
            old = after[at];
        }
        window[tap] = old;
    }
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
    for (var tap = 0u; tap < newest; tap += 1u) {
        after[tap * channels + channel] = window[tap];
    }
}
