// Sums and maxima over a workgroup of 64, in a tree that is fixed by the size alone. `width` is that of a
// subgroup where shaders use them.

const LANES: u32 = 64u;

var<workgroup> reduced: array<f32, 64>;

// The sum of every lane's value, in all lanes.
fn sum_lanes(lane: u32, width: u32, value: f32) -> f32 {
    reduced[lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane < half {
            reduced[lane] += reduced[lane + half];
        }
        workgroupBarrier();
    }
    let sum = reduced[0];
    workgroupBarrier();
    return sum;
}

// The largest of every lane's value, in all lanes; NaN is passed over.
fn max_lanes(lane: u32, width: u32, value: f32) -> f32 {
    reduced[lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane < half && reduced[lane + half] > reduced[lane] {
            reduced[lane] = reduced[lane + half];
        }
        workgroupBarrier();
    }
    let largest = reduced[0];
    workgroupBarrier();
    return largest;
}
