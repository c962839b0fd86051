// Products of nested matrices and int8 activations, for up to four rows at a time.
//
// A workgroup computes a tile of 16 rows. Its lanes take a group of 32 columns each, whose exact
// sums they leave in shared memory; one lane for each row of activations then adds them up in
// ascending order, as every other variant does: acc = fma(sum, activation scale * weight scale, acc).

// include: blocks
// include: half_float
// include: matrix
// include: nested
// include: dot
// include: store

@group(0) @binding(0) var<uniform> products: Products;
@group(0) @binding(1) var<storage, read> slab: array<u32>;
@group(0) @binding(2) var<storage, read> blocks: array<Block>;
// Row of the input, row of the output.
@group(0) @binding(3) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read> x_values: array<vec4<u32>>; // [rows, groups, 2]
@group(0) @binding(5) var<storage, read> x_scales: array<f32>; // [rows, groups]
@group(0) @binding(6) var<storage, read> biases: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

// Groups that a workgroup computes at once, at least ROWS.
override LANES: u32 = 16u;
// Most rows of a block.
const ROWS: u32 = 4u;

var<workgroup> sums: array<vec2<f32>, LANES * 16u * ROWS>; // [rows, lanes, 16]
var<workgroup> factors: array<f32, 32>;
var<workgroup> table: array<u32, 16>;

@compute @workgroup_size(16, LANES)
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
    let codec = read_codec(matrix.codec);
    fill_tables(matrix, codec, block.level, tile, index);
    workgroupBarrier();
    let row = tile * 16u + local.x;
    let lane = local.y;
    let unit = row_unit(matrix, codec, block.level, row);
    var acc = 0.0;
    for (var first = 0u; first < matrix.groups; first += LANES) {
        if (first + lane < matrix.groups) {
            sum_group(matrix, codec, block, row, unit, first + lane, lane);
        }
        workgroupBarrier();
        if (lane < block.pairs) {
            let end = min(LANES, matrix.groups - first);
            for (var other = 0u; other < end; other += 1u) {
                let part = sums[(lane * LANES + other) * 16u + local.x];
                acc = fma(part.x, part.y, acc);
            }
        }
        workgroupBarrier();
    }
    if (lane < block.pairs) {
        store(block, pairs[block.first_pair + lane].y, row, acc);
    }
}

fn fill_tables(matrix: Matrix, codec: Codec, level: u32, tile: u32, index: u32) {
    for (var k = index; k < 32u; k += 16u * LANES) {
        factors[k] = step_factor(codec.octaves, k);
    }
    if (index < 16u && level < LEVEL_6) {
        let at = table_of(matrix, level, tile);
        // The entries beyond a level's own are never looked up.
        table[index] = slab_byte(at, min(index, (4u << level) - 1u));
    }
}

fn table_values(bits: u32) -> u32 {
    return table[bits & 15u]
        | (table[(bits >> 8u) & 15u] << 8u)
        | (table[(bits >> 16u) & 15u] << 16u)
        | (table[(bits >> 24u) & 15u] << 24u);
}

// The sums of one row and group of the matrix with every row of the block.
fn sum_group(
    matrix: Matrix,
    codec: Codec,
    block: Block,
    row: u32,
    unit: f32,
    group: u32,
    lane: u32,
) {
    let digits = read_digits(matrix, block.level, row, group);
    let scale = unit * factors[step_of(matrix, row, group)];
    for (var r = 0u; r < block.pairs; r += 1u) {
        let cell = pairs[block.first_pair + r].x * products.x_cols + group;
        var sum = 0;
        for (var c = 0u; c < 8u; c += 1u) {
            let x = x_values[cell * 2u + c / 4u][c % 4u];
            if (block.level < LEVEL_6) {
                let bits = leading_bits(digits, matrix.merged, block.level, c);
                sum += dot_bytes(table_values(bits), x);
            } else {
                let values = fine_values(digits, matrix.merged, codec, block.level, c);
                let terms = values * signed_bytes(x);
                sum += terms.x + terms.y + terms.z + terms.w;
            }
        }
        sums[(r * LANES + lane) * 16u + row % 16u] = vec2(f32(sum), x_scales[cell] * scale);
    }
}
