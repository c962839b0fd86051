// The sum of what the parts of a lane's column give.
fn sum_parts(lane: u32, value: f32) -> f32 {
    partial[lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half >= params.cols; half /= 2u) {
        if lane < half {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
    let sum = partial[lane % params.cols];
    workgroupBarrier();
    return sum;
}
