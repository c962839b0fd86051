// One group of 32 activations to int8.

var<private> numbers: array<f32, 32>;

// The Walsh-Hadamard transform: sums and differences at distances 1, 2, 4, 8 and 16, then one
// multiplication by 2^(-5/2).
fn rotate_group() {
    for (var distance = 1u; distance < 32u; distance *= 2u) {
        for (var pair = 0u; pair < 16u; pair += 1u) {
            let low = pair / distance * distance * 2u + pair % distance;
            let a = numbers[low];
            let b = numbers[low + distance];
            numbers[low] = a + b;
            numbers[low + distance] = a - b;
        }
    }
    for (var k = 0u; k < 32u; k += 1u) {
        numbers[k] *= bitcast<f32>(0x3e3504f3u);
    }
}

// The magnitudes are compared by their bits, so that what is not finite reaches the scale.
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
