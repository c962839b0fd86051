// Products with float activations: float matrices, and nested ones whose weights alone are judged.
//
// A workgroup computes a tile of 16 rows for the rows of one block. Lane l of a row adds up the
// columns l, l + 16, … in ascending order, and the lanes are added 8 + 8, 4 + 4, 2 + 2, 1 + 1.

// include: blocks
// include: half_float
// include: matrix
// include: nested
// include: scaled
// include: weights
// include: store

@group(0) @binding(0) var<uniform> products: Products;
@group(0) @binding(1) var<storage, read> slab: array<u32>;
@group(0) @binding(2) var<storage, read> blocks: array<Block>;
// Row of the input, row of the output.
@group(0) @binding(3) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read> x: array<f32>;
@group(0) @binding(5) var<storage, read> biases: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

// Rows of activations whose sums a lane holds together.
const ROWS: u32 = 4u;

var<workgroup> lanes: array<vec4<f32>, 256>;

@compute @workgroup_size(16, 16)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let block = blocks[workgroup.y];
    let tile = block.first_row / 16u + workgroup.x;
    if (tile * 16u >= block.end_row) {
        return;
    }
    let matrix = read_matrix(block.matrix);
    let row = tile * 16u + local.y;
    for (var first = 0u; first < block.pairs; first += ROWS) {
        lanes[index] = lane_sums(matrix, block, first, min(row, matrix.rows - 1u), local.x);
        workgroupBarrier();
        for (var half = 8u; half > 0u; half /= 2u) {
            if (local.x < half) {
                lanes[index] += lanes[index + half];
            }
            workgroupBarrier();
        }
        // One lane for each of the rows that were added up.
        if (local.x < min(ROWS, block.pairs - first)) {
            let pair = pairs[block.first_pair + first + local.x];
            store(block, pair.y, row, lanes[index - local.x][local.x]);
        }
        workgroupBarrier();
    }
}

// One lane's sums for the block's rows from `first` on.
fn lane_sums(matrix: Matrix, block: Block, first: u32, row: u32, lane: u32) -> vec4<f32> {
    var starts = vec4(0u);
    for (var r = 0u; r < ROWS; r += 1u) {
        // Missing rows repeat the last one.
        let pair = min(first + r, block.pairs - 1u);
        starts[r] = pairs[block.first_pair + pair].x * products.x_cols;
    }
    var sums = vec4(0.0);
    for (var col = lane; col < matrix.cols; col += 16u) {
        let weight = weight_at(matrix, block.level, row, col);
        let inputs = vec4(
            x[starts.x + col],
            x[starts.y + col],
            x[starts.z + col],
            x[starts.w + col],
        );
        sums = fma(vec4(weight), inputs, sums);
    }
    return sums;
}
