// Adds rows that are multiplied by a sigmoid each: `out[t] += sigmoid(gate[t]) * x[t]`.

struct Params {
    count: u32,
    cols: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate: array<f32>; // [rows]
@group(0) @binding(2) var<storage, read> x: array<f32>; // [rows, cols]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, cols]

// include: element
// include: exp

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = element(group, groups, lane);
    if index < params.count {
        out[index] = fma(sigmoid(gate[index / params.cols]), x[index], out[index]);
    }
}
