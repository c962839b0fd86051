// The column of the largest value of each row, of equal ones the first, among so many first columns; NONE
// of a row that has a value, of all, that is not finite. One workgroup for each row.
//
// Values are compared as integers of the same order: devices may pass over what is no number, and take
// the smallest ones for 0.

struct Params {
    rows: u32,
    cols: u32,
    among: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>; // [rows, cols], bits of floats
@group(0) @binding(2) var<storage, read_write> out: array<u32>; // [rows]

// include: order

const LANES: u32 = 64u;
const NONE: u32 = 0xffffffffu;
const EXPONENT: u32 = 0x7f800000u;

var<workgroup> damaged: atomic<u32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.y * groups.x + group.x;
    if row >= params.rows {
        return;
    }
    if lane == 0u {
        atomicStore(&damaged, 0u);
    }
    workgroupBarrier();
    var column = NONE;
    var value = 0u;
    for (var col = lane; col < params.cols; col += LANES) {
        let bits = x[row * params.cols + col];
        if (bits & EXPONENT) == EXPONENT {
            atomicStore(&damaged, 1u);
        }
        let other = order_of_bits(bits);
        if col < params.among && other > value {
            column = col;
            value = other;
        }
    }
    let first = first_of_lanes(lane, value, column);
    if lane == 0u {
        out[row] = select(first, NONE, atomicLoad(&damaged) != 0u);
    }
}
