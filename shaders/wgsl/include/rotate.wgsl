// One group of 32 activations, and its rotation.

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
