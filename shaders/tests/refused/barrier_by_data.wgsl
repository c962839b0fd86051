// A barrier in a loop whose length is each invocation's own.

@group(0) @binding(0) var<storage, read> lengths: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var at = 0u; at < lengths[lane]; at += 1u) {
        workgroupBarrier();
        out[lane] += 1u;
    }
}
