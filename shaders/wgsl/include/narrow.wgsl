// A float to the nearest half float, half to even, in integer arithmetic: the built-in conversion
// may round otherwise or flush subnormal numbers.
fn f32_to_f16(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if size >= 0x7f800000u {
        return sign | 0x7c00u | select(0u, 0x200u, size > 0x7f800000u);
    }
    // Half way beyond the largest: infinity.
    if size >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    var shift = 13u;
    var mantissa = size;
    if size < 0x38800000u {
        // Subnormal: the implicit bit is written out and moved to its place.
        let exponent = size >> 23u;
        if exponent < 102u {
            return sign;
        }
        mantissa = (size & 0x7fffffu) | 0x800000u;
        shift = 126u - exponent;
    }
    let kept = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let middle = 1u << (shift - 1u);
    let up = select(0u, 1u, rest > middle || (rest == middle && (kept & 1u) == 1u));
    let rounded = kept + up;
    // The exponent of normal numbers is moved from a bias of 127 to one of 15.
    return sign | select(rounded, rounded - (112u << 10u), shift == 13u);
}
