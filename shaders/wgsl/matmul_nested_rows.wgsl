// Products of nested matrices and int8 activations, for up to 64 rows at a time.
//
// A workgroup computes a tile of 16 rows. It decodes two groups of 32 columns into shared memory,
// once for all rows of activations; an invocation adds up the products of one row of the matrix
// with four rows of activations, in the order of every other variant:
// acc = fma(sum, activation scale * weight scale, acc), over ascending groups.

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

// Groups that are decoded together.
const GROUPS: u32 = 2u;

// Values in int8, [groups, 8 chunks, 16 rows]; at levels 6 and 8 they are the low digits, and the
// values are 128 times the high ones and these.
var<workgroup> values: array<u32, 256>;
var<workgroup> high: array<u32, 256>;
var<workgroup> scales: array<f32, 32>; // [groups, 16 rows]
var<workgroup> table: array<u32, 16>;

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
    let codec = read_codec(matrix.codec);
    if (index < 16u && block.level < LEVEL_6) {
        // The entries beyond a level's own are never looked up.
        table[index] =
            slab_byte(table_of(matrix, block.level, tile), min(index, (4u << block.level) - 1u));
    }
    workgroupBarrier();
    let row = tile * 16u + local.x;
    let unit = row_unit(matrix, codec, block.level, row);
    var cells = vec4(0u);
    for (var i = 0u; i < 4u; i += 1u) {
        // Missing rows repeat the last one.
        let pair = min(local.y + 16u * i, block.pairs - 1u);
        cells[i] = pairs[block.first_pair + pair].x * products.x_cols;
    }
    // Of four rows of activations, those of this invocation that there are.
    let count = (block.pairs + 15u - local.y) / 16u;
    var acc = vec4(0.0);
    for (var first = 0u; first < matrix.groups; first += GROUPS) {
        let end = min(GROUPS, matrix.groups - first);
        if (local.y / 8u < end) {
            decode_chunk(matrix, codec, block.level, row, first, index);
        }
        if (local.y < end) {
            let factor = step_factor(codec.octaves, step_of(matrix, row, first + local.y));
            scales[index] = unit * factor;
        }
        workgroupBarrier();
        for (var group = 0u; group < end; group += 1u) {
            let scale = scales[group * 16u + local.x];
            for (var i = 0u; i < count; i += 1u) {
                let cell = cells[i] + first + group;
                let sum = f32(sum_group(block.level, group * 128u + local.x, cell));
                acc[i] = fma(sum, x_scales[cell] * scale, acc[i]);
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < count; i += 1u) {
        store(block, pairs[block.first_pair + local.y + 16u * i].y, row, acc[i]);
    }
}

// Four values of one row into shared memory.
fn decode_chunk(
    matrix: Matrix,
    codec: Codec,
    level: u32,
    row: u32,
    first: u32,
    index: u32,
) {
    let chunk = index / 16u % 8u;
    let digits = read_digits(matrix, level, row, first + index / 128u);
    if (level < LEVEL_6) {
        let bits = leading_bits(digits, matrix.merged, level, chunk);
        values[index] = table[bits & 15u]
            | (table[(bits >> 8u) & 15u] << 8u)
            | (table[(bits >> 16u) & 15u] << 16u)
            | (table[(bits >> 24u) & 15u] << 24u);
        return;
    }
    let fine = fine_values(digits, matrix.merged, codec, level, chunk);
    let leading = (fine + vec4(64)) >> vec4(7u);
    high[index] = packed(leading);
    values[index] = packed(fine - 128 * leading);
}

fn packed(bytes: vec4<i32>) -> u32 {
    let low = vec4<u32>(bytes) & vec4(0xffu);
    return low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u);
}

// The sum of a row's values of one group with a row of activations.
fn sum_group(level: u32, at: u32, cell: u32) -> i32 {
    let first = x_values[cell * 2u];
    let second = x_values[cell * 2u + 1u];
    var sum = 0;
    for (var c = 0u; c < 4u; c += 1u) {
        sum += dot_bytes(values[at + 16u * c], first[c]);
        sum += dot_bytes(values[at + 16u * (c + 4u)], second[c]);
    }
    if (level >= LEVEL_6) {
        var leading = 0;
        for (var c = 0u; c < 4u; c += 1u) {
            leading += dot_bytes(high[at + 16u * c], first[c]);
            leading += dot_bytes(high[at + 16u * (c + 4u)], second[c]);
        }
        sum += 128 * leading;
    }
    return sum;
}
