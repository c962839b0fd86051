// Floats compared as integers, and what is larger of two.

// Both zeros are equal; 0 is below every number.
fn order_of_bits(bits: u32) -> u32 {
    if bits << 1u == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

// Whether the first of two comes before the second; of equal ones that with the lower number does.
fn is_before(order_a: u32, number_a: u32, order_b: u32, number_b: u32) -> bool {
    return order_a > order_b || (order_a == order_b && number_a < number_b);
}
