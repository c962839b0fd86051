// Sums and maxima over a workgroup of 64, in the tree of the plain text, with the same bits: what is
// further apart than a subgroup is wide through workgroup memory, the rest between invocations. All
// subgroups do the same, so that nobody waits for what comes out. `width` is the subgroup's, passed so that
// it can be seen to be the same in all of its invocations: what is read of a private variable cannot.

const LANES: u32 = 64u;

// The least subgroups have 4 invocations, each of which joins 16 values.
const PARTS: u32 = 16u;

var<workgroup> reduced: array<f32, 64>;

// Place in the subgroup.
var<private> subgroup_lane: u32;

// The sum of every lane's value, in all lanes.
fn sum_lanes(lane: u32, width: u32, value: f32) -> f32 {
    reduced[lane] = value;
    workgroupBarrier();
    var parts: array<f32, PARTS>;
    let count = LANES / width;
    for (var k = 0u; k < count; k += 1u) {
        parts[k] = reduced[subgroup_lane + k * width];
    }
    for (var half = count / 2u; half > 0u; half /= 2u) {
        for (var k = 0u; k < half; k += 1u) {
            parts[k] += parts[k + half];
        }
    }
    var sum = parts[0];
    for (var half = width / 2u; half > 0u; half /= 2u) {
        sum += subgroupShuffleXor(sum, half);
    }
    workgroupBarrier();
    return subgroupBroadcastFirst(sum);
}

// The largest of every lane's value, in all lanes; NaN is passed over.
fn max_lanes(lane: u32, width: u32, value: f32) -> f32 {
    reduced[lane] = value;
    workgroupBarrier();
    var parts: array<f32, PARTS>;
    let count = LANES / width;
    for (var k = 0u; k < count; k += 1u) {
        parts[k] = reduced[subgroup_lane + k * width];
    }
    for (var half = count / 2u; half > 0u; half /= 2u) {
        for (var k = 0u; k < half; k += 1u) {
            if parts[k + half] > parts[k] {
                parts[k] = parts[k + half];
            }
        }
    }
    var largest = parts[0];
    for (var half = width / 2u; half > 0u; half /= 2u) {
        let other = subgroupShuffleXor(largest, half);
        if other > largest {
            largest = other;
        }
    }
    workgroupBarrier();
    return subgroupBroadcastFirst(largest);
}
