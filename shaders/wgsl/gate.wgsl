// Multiplies by gates: `out *= function(gate)`, where each gate multiplies adjacent elements.

struct Params {
    count: u32,
    // Elements that a gate multiplies.
    width: u32,
    // 1: softplus; 0: sigmoid.
    is_softplus: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// include: element
// include: exp
// include: softplus

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = element(group, groups, lane);
    if index < params.count {
        let x = gate[index / params.width];
        if params.is_softplus == 1u {
            out[index] *= softplus(x);
        } else {
            out[index] *= sigmoid(x);
        }
    }
}
