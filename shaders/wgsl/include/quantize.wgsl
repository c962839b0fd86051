// The group of 32 activations in `numbers` to int8.

// The magnitudes are compared by their bits, so that what is not finite reaches the scale. A device may take
// subnormal numbers for 0 where a float is computed: the factor of such a group is infinite or 0 and its values
// are anything up to 127, but their scale is below 2^-132 or 0, and so is what they add to a product.
fn quantize_group(cell: u32) {
    var largest = 0u;
    for (var k = 0u; k < 32u; k += 1u) {
        largest = max(largest, bitcast<u32>(numbers[k]) & 0x7fffffffu);
    }
    let amax = bitcast<f32>(largest);
    var factor = 0.0;
    if (largest != 0u) {
        factor = 127.0 / amax;
    }
    for (var word = 0u; word < 8u; word += 1u) {
        var packed = 0u;
        for (var k = 0u; k < 4u; k += 1u) {
            let scaled = clamp(numbers[word * 4u + k] * factor, -127.0, 127.0);
            packed |= (u32(i32(round(scaled))) & 0xffu) << (8u * k);
        }
        values[cell * 8u + word] = packed;
    }
    scales[cell] = amax / 127.0;
}
