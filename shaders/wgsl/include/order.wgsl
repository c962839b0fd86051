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

var<workgroup> best_orders: array<u32, 64>;
var<workgroup> best_numbers: array<u32, 64>;

// The number of the first among what the lanes of a workgroup of 64 found, in all lanes.
fn first_of_lanes(lane: u32, order: u32, number: u32) -> u32 {
    best_orders[lane] = order;
    best_numbers[lane] = number;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half /= 2u) {
        let other = lane + half;
        if lane < half
            && is_before(best_orders[other], best_numbers[other], best_orders[lane], best_numbers[lane]) {
            best_orders[lane] = best_orders[other];
            best_numbers[lane] = best_numbers[other];
        }
        workgroupBarrier();
    }
    let first = best_numbers[0];
    workgroupBarrier();
    return first;
}
