// Lets rows of one sequence pass the states of a Mamba-2 layer, in order. For one token of a head with the matrix S:
//
//     step    = ln(1 + e^(time + bias))
//     S[n][p] = B[n] step x[p] + e^(rate step) S[n][p]
//     y[p]    = D x[p] + sum of C[n] S[n][p]
//     out[p]  = y[p] silu(z[p])
//
// One workgroup for some columns of a head, which it keeps while all rows pass. A column's sum has so many parts as
// 64 invocations leave for it, each in ascending rows, which the shape alone decides.

struct Params {
    // Rows, and the first of them in the step.
    rows: u32,
    first_row: u32,
    heads: u32,
    // Groups of heads that share B and C.
    n_groups: u32,
    head_dim: u32,
    // Rows of a matrix.
    state_size: u32,
    // Columns of a workgroup, a power of two up to 64.
    cols: u32,
    // Rows of the window, which a state begins with.
    window: u32,
    // Elements from row to row of what was projected.
    stride: u32,
    channels: u32,
    source: u32,
}

// Where the state before the first row is.
const BEFORE: u32 = 1u;
const IN_PLACE: u32 = 2u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // [T, stride]
@group(0) @binding(2) var<storage, read> mixed: array<f32>; // [T, channels]
@group(0) @binding(3) var<storage, read> rates: array<f32>; // [heads]
@group(0) @binding(4) var<storage, read> biases: array<f32>; // [heads]
@group(0) @binding(5) var<storage, read> skips: array<f32>; // [heads]
@group(0) @binding(6) var<storage, read> before: array<f32>;
// The window [window, channels], then matrices [heads, state_size, head_dim].
@group(0) @binding(7) var<storage, read_write> after: array<f32>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>; // [T, heads * head_dim]

// include: exp
// include: softplus

const LANES: u32 = 64u;

var<workgroup> state: array<f32, 3072>; // [state_size, cols]
var<workgroup> partial: array<f32, 64>; // [parts, cols]
// Decay and step of 64 rows.
var<workgroup> factors: array<vec2<f32>, 64>;

// include: sum_parts

fn factors_of(row: u32, head: u32) -> vec2<f32> {
    let place = row * params.stride + params.heads * params.head_dim + params.channels + head;
    let step = softplus(projected[place] + biases[head]);
    return vec2(exp_of(rates[head] * step), step);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    let blocks = (params.head_dim + params.cols - 1u) / params.cols;
    if index >= params.heads * blocks {
        return;
    }
    let head = index / blocks;
    let local = lane % params.cols;
    let col = index % blocks * params.cols + local;
    let is_here = col < params.head_dim;
    let first = params.window * params.channels + head * params.state_size * params.head_dim + col;
    let parts = LANES / params.cols;
    let part = lane / params.cols;
    for (var i = part; i < params.state_size; i += parts) {
        let at = first + i * params.head_dim;
        var value = 0.0;
        if is_here && params.source == BEFORE {
            value = before[at];
        } else if is_here && params.source == IN_PLACE {
            value = after[at];
        }
        state[i * params.cols + local] = value;
    }
    let inner = params.heads * params.head_dim;
    let b = inner + head * params.n_groups / params.heads * params.state_size;
    let c = b + params.n_groups * params.state_size;
    let own = head * params.head_dim + col;
    for (var at = 0u; at < params.rows; at += 1u) {
        let row = params.first_row + at;
        if at % LANES == 0u {
            workgroupBarrier();
            factors[lane] = factors_of(min(row + lane, params.first_row + params.rows - 1u), head);
            workgroupBarrier();
        }
        let first_mixed = row * params.channels;
        let factor = factors[at % LANES];
        var x = 0.0;
        if is_here {
            x = mixed[first_mixed + own];
        }
        let fresh = x * factor.y;
        var sum = 0.0;
        for (var i = part; i < params.state_size; i += parts) {
            let place = i * params.cols + local;
            let value = fma(mixed[first_mixed + b + i], fresh, factor.x * state[place]);
            state[place] = value;
            sum = fma(mixed[first_mixed + c + i], value, sum);
        }
        let given = sum_parts(lane, sum);
        if part == 0u && is_here {
            out[row * inner + own] = fma(skips[head], x, given) * silu(projected[row * params.stride + own]);
        }
    }
    if is_here {
        for (var i = part; i < params.state_size; i += parts) {
            after[first + i * params.head_dim] = state[i * params.cols + local];
        }
    }
}
