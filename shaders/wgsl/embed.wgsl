// Rows of a table: `out[t] = table[tokens[t]]`, each at its level. One invocation for each element;
// rows that lie in another part of the table are left as they are.

struct Embed {
    rows: u32,
    cols: u32,
    // Word of the table's part in the slab.
    matrix: u32,
    padding: u32,
}

@group(0) @binding(0) var<uniform> params: Embed;
@group(0) @binding(1) var<storage, read> slab: array<u32>;
@group(0) @binding(2) var<storage, read> tokens: array<vec2<u32>>; // token, level
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, cols]

// include: half_float
// include: matrix
// include: nested
// include: scaled
// include: weights

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = (workgroup.y * workgroups.x + workgroup.x) * 64u + local;
    let out_row = index / params.cols;
    let col = index % params.cols;
    if (out_row >= params.rows) {
        return;
    }
    let matrix = read_matrix(params.matrix);
    let token = tokens[out_row];
    if (token.x < matrix.first_row || token.x - matrix.first_row >= matrix.rows) {
        return;
    }
    let row = token.x - matrix.first_row;
    out[index] = weight_at(matrix, token.y, row, col);
}
