// Half floats in integer arithmetic: the built-in conversion may flush subnormal numbers.

fn f16_to_f32(half: u32) -> f32 {
    let magnitude = (half & 0x7fffu) << 13u;
    let sign = (half & 0x8000u) << 16u;
    var bits = magnitude + (112u << 23u);
    if (magnitude >= (0x7c00u << 13u)) {
        bits = magnitude | 0x7f800000u;
    }
    if (magnitude < (0x0400u << 13u)) {
        // Subnormal: so many times 2^-24, exactly.
        bits = bitcast<u32>(f32(half & 0x3ffu) * 5.9604644775390625e-8);
    }
    return bitcast<f32>(bits | sign);
}
