// Activations to int8 in groups of 32 columns, half to even: what nested matrices are multiplied
// with. One invocation for each group.

// include: rotate
// include: quantize

struct Quantize {
    rows: u32,
    // Columns that are quantized.
    cols: u32,
    // Parts of a row, quantized each on its own (heads), and elements from one to the next.
    parts: u32,
    part_stride: u32,
    // Elements from one row to the next.
    stride: u32,
    // Whether groups are rotated before.
    rotated: u32,
    padding: vec2<u32>,
}

@group(0) @binding(0) var<uniform> sizes: Quantize;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>; // [rows, parts, groups, 8]
@group(0) @binding(3) var<storage, read_write> scales: array<f32>; // [rows, parts, groups]

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = (workgroup.y * workgroups.x + workgroup.x) * 64u + local;
    let groups = (sizes.cols + 31u) / 32u;
    if (index >= sizes.rows * sizes.parts * groups) {
        return;
    }
    let place = index / groups;
    let group = index % groups;
    let row = place / sizes.parts;
    let at = row * sizes.stride + place % sizes.parts * sizes.part_stride + group * 32u;
    let live = min(32u, sizes.cols - group * 32u);
    for (var k = 0u; k < 32u; k += 1u) {
        numbers[k] = 0.0;
        if (k < live) {
            numbers[k] = x[at + k];
        }
    }
    if (sizes.rotated != 0u) {
        rotate_group();
    }
    quantize_group(index);
}
