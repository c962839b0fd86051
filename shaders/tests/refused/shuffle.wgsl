// A shuffle in a loop whose length nobody can see to be the same in all of a subgroup.

@group(0) @binding(0) var<storage, read_write> out: array<f32>;

var<private> width: u32;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_size) own_width: u32,
) {
    width = own_width;
    var sum = f32(lane);
    for (var half = width / 2u; half > 0u; half /= 2u) {
        sum += subgroupShuffleXor(sum, half);
    }
    out[lane] = sum;
}
