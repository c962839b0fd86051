// A barrier that half of the workgroup does not reach.

@group(0) @binding(0) var<storage, read_write> out: array<f32>;

var<workgroup> reduced: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    reduced[lane] = f32(lane);
    if lane < 32u {
        workgroupBarrier();
        out[lane] = reduced[lane + 32u];
    }
}
