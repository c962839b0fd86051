// The column of the largest value of each row, from what `argmax` found in its parts. One workgroup for each
// row.

struct Params {
    rows: u32,
    // Parts of a row.
    parts: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> orders: array<u32>; // [rows, parts]
@group(0) @binding(2) var<storage, read> columns: array<u32>; // [rows, parts]
@group(0) @binding(3) var<storage, read_write> out: array<u32>; // [rows]

// include: order

const LANES: u32 = 64u;
const NONE: u32 = 0xffffffffu;

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
    var column = NONE;
    var value = 0u;
    for (var part = lane; part < params.parts; part += LANES) {
        let at = row * params.parts + part;
        if is_before(orders[at], columns[at], value, column) {
            value = orders[at];
            column = columns[at];
        }
    }
    let first = first_of_lanes(lane, value, column);
    if lane == 0u {
        out[row] = first;
    }
}
