// Norms the heads of queries and keys where they have a norm each, before or after rotating pairs of their
// elements by the angles of the row's position. One workgroup for each head of each row.

struct Params {
    // Heads in all.
    count: u32,
    // Heads of queries and of keys in a row, queries first.
    queries: u32,
    keys: u32,
    // Elements from row to row.
    stride: u32,
    head_dim: u32,
    // First element that is rotated, and how many are.
    rope_first: u32,
    rope_dims: u32,
    // 1: element 2 i with 2 i + 1; 0: element i with i + rope_dims / 2.
    adjacent: u32,
    // Elements that the norms take; 0 for no norm.
    query_norm: u32,
    key_norm: u32,
    // Norms that follow the rotation: 1 for that of queries, plus 2 for that of keys.
    late_norms: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> angles: array<f32>; // [rows, cosines then sines]
@group(0) @binding(2) var<storage, read> query_weight: array<f32>;
@group(0) @binding(3) var<storage, read> key_weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> x: array<f32>;

// include: reduce

var<workgroup> values: array<f32, 1024>;

// Norms the values; each lane those that it loads and stores.
fn norm(lane: u32, width: u32, is_key: bool) {
    let length = select(params.query_norm, params.key_norm, is_key);
    var squares = 0.0;
    for (var i = lane; i < length; i += LANES) {
        squares = fma(values[i], values[i], squares);
    }
    let total = sum_lanes(lane, width, squares);
    if length == 0u {
        return;
    }
    let scale = 1.0 / sqrt(total / f32(length) + params.eps);
    for (var i = lane; i < length; i += LANES) {
        if is_key {
            values[i] = (values[i] * scale) * key_weight[i];
        } else {
            values[i] = (values[i] * scale) * query_weight[i];
        }
    }
}

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
    let heads = params.queries + params.keys;
    let row = index / heads;
    let head = index % heads;
    let is_key = head >= params.queries;
    let first = row * params.stride + head * params.head_dim;
    let is_late = (params.late_norms & select(1u, 2u, is_key)) != 0u;
    for (var i = lane; i < params.head_dim; i += LANES) {
        values[i] = x[first + i];
    }
    if !is_late {
        norm(lane, width, is_key);
    }
    workgroupBarrier();
    let half_dims = params.rope_dims / 2u;
    for (var i = lane; i < half_dims; i += LANES) {
        var a = params.rope_first + i;
        var b = a + half_dims;
        if params.adjacent == 1u {
            a = params.rope_first + 2u * i;
            b = a + 1u;
        }
        let cosine = angles[row * params.rope_dims + i];
        let sine = angles[row * params.rope_dims + half_dims + i];
        let left = values[a];
        let right = values[b];
        values[a] = left * cosine - right * sine;
        values[b] = right * cosine + left * sine;
    }
    workgroupBarrier();
    if is_late {
        norm(lane, width, is_key);
    }
    for (var i = lane; i < params.head_dim; i += LANES) {
        x[first + i] = values[i];
    }
}
