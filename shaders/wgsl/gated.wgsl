// Joins gate and up of feed-forward parts: `out = activation(gate, up)`, for a product with float
// activations. Both lie in one row, gate in front.

// include: exp
// include: rotate
// include: gated

@group(0) @binding(2) var<storage, read_write> out: array<f32>; // [rows, cols]

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = (workgroup.y * workgroups.x + workgroup.x) * 64u + local;
    let groups = (params.cols + 31u) / 32u;
    let row = index / groups;
    let group = index % groups;
    if (row >= params.rows) {
        return;
    }
    let live = min(32u, params.cols - group * 32u);
    for (var k = 0u; k < live; k += 1u) {
        numbers[k] = joined(row, group * 32u + k);
    }
    if (params.rotated != 0u) {
        rotate_group();
    }
    for (var k = 0u; k < live; k += 1u) {
        out[row * params.cols + group * 32u + k] = numbers[k];
    }
}
