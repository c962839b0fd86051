// Joins gate and up of feed-forward parts and quantizes what they give to int8, for a product with
// a nested matrix. Both lie in one row, gate in front.

// include: exp
// include: rotate
// include: quantize
// include: gated

@group(0) @binding(2) var<storage, read_write> values: array<u32>; // [rows, groups, 8]
@group(0) @binding(3) var<storage, read_write> scales: array<f32>; // [rows, groups]

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
    for (var k = 0u; k < 32u; k += 1u) {
        numbers[k] = 0.0;
        if (k < live) {
            numbers[k] = joined(row, group * 32u + k);
        }
    }
    if (params.rotated != 0u) {
        rotate_group();
    }
    quantize_group(index);
}
