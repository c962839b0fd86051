// Adds what the experts of every row gave, weighted: a sum that starts at zero, in ascending rank, is
// added to `out`.

struct Params {
    count: u32,
    cols: u32,
    // Experts of a row.
    per_token: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weights: array<f32>; // [rows, per_token]
@group(0) @binding(2) var<storage, read> expert_rows: array<f32>; // [rows * per_token, cols]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, cols]

// include: element

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = element(group, groups, lane);
    if index >= params.count {
        return;
    }
    let first = index / params.cols * params.per_token;
    let col = index % params.cols;
    var sum = 0.0;
    for (var rank = 0u; rank < params.per_token; rank += 1u) {
        let slot = first + rank;
        sum = fma(weights[slot], expert_rows[slot * params.cols + col], sum);
    }
    out[index] += sum;
}
