// The largest of every part of every row: its order, and its column among so many first ones, of equal ones
// the first; DAMAGED and NONE of a part that has a value, of all columns, that is not finite. One workgroup
// for each part; `argmax_merge` chooses between those of a row.
//
// Values are compared as integers of the same order: devices may pass over what is no number, and take
// the smallest ones for 0.

struct Params {
    // Parts of all rows, and of one.
    count: u32,
    parts: u32,
    cols: u32,
    among: u32,
    // Columns of each part but the last.
    part_cols: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>; // [rows, cols], bits of floats
@group(0) @binding(2) var<storage, read_write> orders: array<u32>; // [rows, parts]
@group(0) @binding(3) var<storage, read_write> columns: array<u32>; // [rows, parts]

// include: order

const LANES: u32 = 64u;
const NONE: u32 = 0xffffffffu;
// Above the order of every number.
const DAMAGED: u32 = 0xffffffffu;
const EXPONENT: u32 = 0x7f800000u;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    if index >= params.count {
        return;
    }
    let row = index / params.parts;
    let start = index % params.parts * params.part_cols;
    let end = min(start + params.part_cols, params.cols);
    var column = NONE;
    var value = 0u;
    for (var col = start + lane; col < end; col += LANES) {
        let bits = x[row * params.cols + col];
        let is_damaged = (bits & EXPONENT) == EXPONENT;
        let order = select(order_of_bits(bits), DAMAGED, is_damaged);
        if (col < params.among || is_damaged) && order > value {
            column = select(col, NONE, is_damaged);
            value = order;
        }
    }
    let first = first_of_lanes(lane, value, column);
    if lane == 0u {
        orders[index] = best_orders[0];
        columns[index] = first;
    }
}
