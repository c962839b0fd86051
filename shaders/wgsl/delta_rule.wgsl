// Lets rows of one sequence pass the states of gated DeltaNet, in order, and writes the window that
// the next convolution sees. For one token of a value head with the matrix S:
//
//     decay    = e^(rate softplus(alpha + bias))
//     beta     = sigmoid of what was projected for it
//     seen[c]  = sum of key[i] S[i][c]
//     delta[c] = (value[c] - decay seen[c]) beta
//     S[i][c]  = key[i] delta[c] + decay S[i][c]
//     out[c]   = sum of query[i] S[i][c]
//
// One workgroup for some columns of a head, which it keeps while all rows pass. A column's sums have
// so many parts as 64 invocations leave for it, each in ascending rows, which the shape alone decides.

struct Params {
    // Rows, and the first of them in the step.
    rows: u32,
    first_row: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    // Columns of a workgroup, a power of two up to 64.
    cols: u32,
    // Rows of the window.
    window: u32,
    // Elements from row to row of what was projected.
    stride: u32,
    channels: u32,
    source: u32,
}

// Where the state before the first row is.
const NOWHERE: u32 = 0u;
const BEFORE: u32 = 1u;
const IN_PLACE: u32 = 2u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // [T, stride]
@group(0) @binding(2) var<storage, read> mixed: array<f32>; // [T, channels]
@group(0) @binding(3) var<storage, read> rates: array<f32>; // [value_heads]
@group(0) @binding(4) var<storage, read> biases: array<f32>; // [value_heads]
@group(0) @binding(5) var<storage, read> before: array<f32>;
// The window [window, channels], then matrices [value_heads, key_dim, value_dim].
@group(0) @binding(6) var<storage, read_write> after: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>; // [T, value_heads * value_dim]

// include: exp

const LANES: u32 = 64u;

var<workgroup> state: array<f32, 3072>; // [key_dim, cols]
var<workgroup> partial: array<f32, 64>; // [parts, cols]
// Decay and beta of 64 rows.
var<workgroup> factors: array<vec2<f32>, 64>;

fn old(at: u32) -> f32 {
    if params.source == BEFORE {
        return before[at];
    }
    if params.source == IN_PLACE {
        return after[at];
    }
    return 0.0;
}

// include: softplus

// Decay and beta of a row.
fn factors_of(row: u32, head: u32) -> vec2<f32> {
    let values = params.value_heads * params.value_dim;
    let place = row * params.stride + params.channels + values + head;
    let time = softplus(projected[place + params.value_heads] + biases[head]);
    return vec2(exp_of(rates[head] * time), sigmoid(projected[place]));
}

// include: sum_parts

// The rows that the next convolution sees, of one channel. Places are written after what is read of
// them, so that it may be done in place.
fn write_window(channel: u32) {
    for (var row = 0u; row < params.window; row += 1u) {
        let at = params.rows + row;
        var value: f32;
        if at >= params.window {
            let own = params.first_row + at - params.window;
            value = projected[own * params.stride + channel];
        } else {
            value = old(at * params.channels + channel);
        }
        after[row * params.channels + channel] = value;
    }
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    let blocks = (params.value_dim + params.cols - 1u) / params.cols;
    let all = params.value_heads * blocks;
    if index >= all {
        return;
    }
    for (var channel = index * LANES + lane; channel < params.channels; channel += all * LANES) {
        write_window(channel);
    }
    let head = index / blocks;
    let local = lane % params.cols;
    let col = index % blocks * params.cols + local;
    let is_here = col < params.value_dim;
    let first = params.window * params.channels + head * params.key_dim * params.value_dim + col;
    let parts = LANES / params.cols;
    let part = lane / params.cols;
    for (var i = part; i < params.key_dim; i += parts) {
        var value = 0.0;
        if is_here {
            value = old(first + i * params.value_dim);
        }
        state[i * params.cols + local] = value;
    }
    let shared_head = head * params.key_heads / params.value_heads;
    let keys = (params.key_heads + shared_head) * params.key_dim;
    let values = 2u * params.key_heads * params.key_dim + head * params.value_dim;
    for (var at = 0u; at < params.rows; at += 1u) {
        let row = params.first_row + at;
        if at % LANES == 0u {
            workgroupBarrier();
            factors[lane] = factors_of(min(row + lane, params.first_row + params.rows - 1u), head);
            workgroupBarrier();
        }
        let query = row * params.channels + shared_head * params.key_dim;
        let key = row * params.channels + keys;
        let factor = factors[at % LANES];
        var sum = 0.0;
        for (var i = part; i < params.key_dim; i += parts) {
            sum = fma(mixed[key + i], state[i * params.cols + local], sum);
        }
        let seen = sum_parts(lane, sum);
        var value = 0.0;
        if is_here {
            value = mixed[row * params.channels + values + col];
        }
        let delta = fma(-factor.x, seen, value) * factor.y;
        sum = 0.0;
        for (var i = part; i < params.key_dim; i += parts) {
            let place = i * params.cols + local;
            let fresh = fma(mixed[key + i], delta, factor.x * state[place]);
            state[place] = fresh;
            sum = fma(mixed[query + i], fresh, sum);
        }
        let given = sum_parts(lane, sum);
        if part == 0u && is_here {
            out[(row * params.value_heads + head) * params.value_dim + col] = given;
        }
    }
    if is_here {
        for (var i = part; i < params.key_dim; i += parts) {
            after[first + i * params.value_dim] = state[i * params.cols + local];
        }
    }
}
