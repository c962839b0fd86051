// What follows the first elements of every head follows their products:
// `out[t, h, N..] = x[t, h, K..]`. One invocation for each element.

struct HeadTail {
    // Heads of all rows.
    places: u32,
    // Elements of a head that were multiplied, K, and their products, N.
    inputs: u32,
    outputs: u32,
    // Elements that follow.
    rest: u32,
}

@group(0) @binding(0) var<uniform> params: HeadTail;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, heads * (K + rest)]
@group(0) @binding(2) var<storage, read_write> out: array<f32>; // [rows, heads * (N + rest)]

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = (workgroup.y * workgroups.x + workgroup.x) * 64u + local;
    let place = index / params.rest;
    if (place >= params.places) {
        return;
    }
    let element = index % params.rest;
    let from_x = place * (params.inputs + params.rest) + params.inputs + element;
    out[place * (params.outputs + params.rest) + params.outputs + element] = x[from_x];
}
