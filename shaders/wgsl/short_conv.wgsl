// A gated short convolution, for rows of one sequence: the inputs times their gates, convolved with the rows
// before them, times the output gates. One invocation for each channel; rows pass in order.

struct Params {
    // Rows, and the first of them in the step.
    rows: u32,
    first_row: u32,
    // Rows that the convolution sees, the own one included.
    taps: u32,
    channels: u32,
    // Where the state before the rows is.
    source: u32,
    // 1: sums start with the bias; 0: with zero.
    has_bias: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // [T, 3 * channels]
@group(0) @binding(2) var<storage, read> taps: array<f32>; // [taps, channels]
@group(0) @binding(3) var<storage, read> bias: array<f32>; // [channels]
@group(0) @binding(4) var<storage, read> before: array<f32>; // [taps - 1, channels]
@group(0) @binding(5) var<storage, read_write> after: array<f32>; // [taps - 1, channels]
@group(0) @binding(6) var<storage, read_write> out: array<f32>; // [T, channels]

// include: element
// include: window

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
        let at = row * 3u * channels + channel;
        window[newest] = projected[at] * projected[at + 2u * channels];
        var sum = start;
        for (var tap = 0u; tap < params.taps; tap += 1u) {
            sum = fma(taps[tap * channels + channel], window[tap], sum);
        }
        out[row * channels + channel] = projected[at + channels] * sum;
        for (var tap = 0u; tap < newest; tap += 1u) {
            window[tap] = window[tap + 1u];
        }
    }
    write_window(channel, window);
}
