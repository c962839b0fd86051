// Products of scaled integers and int8 activations, for up to four rows at a time, in whatever form the
// integers are.
//
// A workgroup computes a tile of 16 rows. Its lanes take a group of 32 columns each, whose exact sums
// they leave in shared memory, one for each sub-block; one lane for each row of activations then adds
// them up, group by group in ascending order, as every other variant does: for each sub-block
// acc = fma(sum, activation scale * weight scale, acc), and then, with minima, for each sub-block
// acc = fma(activation scale * sum of activations, minimum, acc).

// include: blocks
// include: half_float
// include: matrix
// include: nested
// include: scaled
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

// Groups that a workgroup computes at once.
const LANES: u32 = 16u;
// Most rows of a block, at most LANES.
const ROWS: u32 = 4u;

// Exact sums of both sub-blocks.
var<workgroup> sums: array<vec2<f32>, 1024>; // [rows, lanes, 16]
// Weight scales of both sub-blocks, then their minima.
var<workgroup> factors: array<vec4<f32>, 256>; // [lanes, 16]
// The scale of activations, then that times their sums in both sub-blocks.
var<workgroup> inputs: array<vec3<f32>, 64>; // [rows, lanes]
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
    let scaled = read_scaled(matrix.codec, block.level);
    if (index < 16u && block.level < LEVEL_6) {
        // The entries beyond a level's own are never looked up.
        table[index] = slab_byte(scaled.table, min(index, (4u << block.level) - 1u));
    }
    workgroupBarrier();
    let row = tile * 16u + local.x;
    let lane = local.y;
    var acc = 0.0;
    for (var first = 0u; first < matrix.groups; first += LANES) {
        if (first + lane < matrix.groups) {
            sum_group(matrix, scaled, block, row, first + lane, lane);
        }
        if (index < LANES * block.pairs && first + index % LANES < matrix.groups) {
            inputs[index] = input_of(scaled, block, index / LANES, first + index % LANES);
        }
        workgroupBarrier();
        if (lane < block.pairs) {
            let end = min(LANES, matrix.groups - first);
            for (var other = 0u; other < end; other += 1u) {
                acc = add_group(scaled, lane * LANES + other, other * 16u + local.x, local.x, acc);
            }
        }
        workgroupBarrier();
    }
    if (lane < block.pairs) {
        store(block, pairs[block.first_pair + lane].y, row, acc);
    }
}

// The scale of a row of activations in a group, and what minima are multiplied with.
fn input_of(scaled: Scaled, block: Block, r: u32, group: u32) -> vec3<f32> {
    let cell = pairs[block.first_pair + r].x * products.x_cols + group;
    var halves = vec2(0);
    if (scaled.minima != NO_MINIMA) {
        for (var c = 0u; c < 8u; c += 1u) {
            halves[c * scaled.subs / 8u] += dot_bytes(x_values[cell * 2u + c / 4u][c % 4u], 0x01010101u);
        }
    }
    let scale = x_scales[cell];
    return vec3(scale, scale * f32(halves.x), scale * f32(halves.y));
}

// Goes on with a sum: products of every sub-block of a group, then their minima.
fn add_group(scaled: Scaled, input: u32, factor: u32, row: u32, before: f32) -> f32 {
    let sum = sums[input * 16u + row];
    let x = inputs[input];
    let weights = factors[factor];
    var acc = fma(sum.x, x.x * weights.x, before);
    if (scaled.subs == 2u) {
        acc = fma(sum.y, x.x * weights.y, acc);
    }
    if (scaled.minima != NO_MINIMA) {
        acc = fma(x.y, weights.z, acc);
        if (scaled.subs == 2u) {
            acc = fma(x.z, weights.w, acc);
        }
    }
    return acc;
}

// Four values as the bytes of a word.
fn values_of(scaled: Scaled, level: u32, prefixes: u32) -> u32 {
    if (level < LEVEL_6) {
        return table[prefixes & 15u]
            | (table[(prefixes >> 8u) & 15u] << 8u)
            | (table[(prefixes >> 16u) & 15u] << 16u)
            | (table[(prefixes >> 24u) & 15u] << 24u);
    }
    let values = bytes_of(prefixes) * scaled.stride - vec4(scaled.zero);
    let low = vec4<u32>(values) & vec4(0xffu);
    return low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u);
}

// The sums of one row and group of the matrix with every row of the block, and the factors of its weights.
fn sum_group(matrix: Matrix, scaled: Scaled, block: Block, row: u32, group: u32, lane: u32) {
    let digits = scaled_digits(matrix, scaled, block.level, row, group);
    var values: array<u32, 8>;
    for (var c = 0u; c < 8u; c += 1u) {
        let prefixes = scaled_prefixes(digits, matrix.merged, scaled, block.level, c);
        values[c] = values_of(scaled, block.level, prefixes);
    }
    var own = vec4(0.0);
    for (var sub = 0u; sub < scaled.subs; sub += 1u) {
        own[sub] = sub_scale(matrix, scaled, row, group, sub);
        if (scaled.minima != NO_MINIMA) {
            own[2u + sub] = sub_minimum(matrix, scaled, row, group, sub);
        }
    }
    factors[lane * 16u + row % 16u] = own;
    for (var r = 0u; r < block.pairs; r += 1u) {
        let cell = pairs[block.first_pair + r].x * products.x_cols + group;
        var of_subs = vec2(0);
        for (var c = 0u; c < 8u; c += 1u) {
            of_subs[c * scaled.subs / 8u] += dot_bytes(values[c], x_values[cell * 2u + c / 4u][c % 4u]);
        }
        sums[(r * LANES + lane) * 16u + row % 16u] = vec2<f32>(of_subs);
    }
}
