// The column of the largest value of each row, of equal ones the first; minus infinity is the smallest,
// and values that are no numbers must not be there. One workgroup for each row.

struct Params {
    rows: u32,
    cols: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, cols]
@group(0) @binding(2) var<storage, read_write> out: array<u32>; // [rows]

const LANES: u32 = 64u;
// The column of an invocation that saw none.
const NONE: u32 = 0xffffffffu;

var<workgroup> largest: array<f32, 64>;
var<workgroup> columns: array<u32, 64>;

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
    var value = 0.0;
    for (var col = lane; col < params.cols; col += LANES) {
        let other = x[row * params.cols + col];
        if column == NONE || other > value {
            column = col;
            value = other;
        }
    }
    largest[lane] = value;
    columns[lane] = column;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane < half {
            let other = largest[lane + half];
            let other_column = columns[lane + half];
            let is_first = other == largest[lane] && other_column < columns[lane];
            if other_column != NONE && (columns[lane] == NONE || other > largest[lane] || is_first) {
                largest[lane] = other;
                columns[lane] = other_column;
            }
        }
        workgroupBarrier();
    }
    if lane == 0u {
        out[row] = columns[0];
    }
}
