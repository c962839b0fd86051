// Scaled integers (FORMAT.md): from planes to values, scales and minima, at every level. Digits lie as
// those of the nested code.

const NO_MINIMA: u32 = 0u;
const MINIMA_OF_SPANS: u32 = 1u;

const SCALES_NONE: u32 = 0u;
const SCALES_F16: u32 = 1u;
const SCALES_BF16: u32 = 2u;

const SUBS_NONE: u32 = 0u;
const SUBS_U8: u32 = 1u;
const SUBS_I8: u32 = 2u;
const SUBS_E4M3: u32 = 3u;
const SUBS_E8M0: u32 = 4u;
const SUBS_NIBBLES: u32 = 5u;

// A codec as a store holds it, of one level.
struct Scaled {
    // Bits of a complete code.
    bits: u32,
    // Sub-blocks of a group.
    subs: u32,
    // Groups of a span.
    span: u32,
    scales: u32,
    sub_scales: u32,
    minima: u32,
    // What the values of the level are counted in.
    unit: f32,
    // Values of prefixes at levels 6 and 8.
    stride: i32,
    zero: i32,
    // Word of the table of a level up to 4.
    table: u32,
}

fn read_scaled(at: u32, level: u32) -> Scaled {
    let exponent = i32(slab_byte(at, 6u + level) << 24u) >> 24u;
    var stride = 0;
    var zero = 0;
    if (level >= LEVEL_6) {
        stride = i32(slab_byte(at, 16u + 4u * (level - LEVEL_6)));
        zero = i32(slab_half(at, 9u + 2u * (level - LEVEL_6)) << 16u) >> 16u;
    }
    return Scaled(
        slab_byte(at, 0u),
        32u / slab_byte(at, 1u),
        slab_byte(at, 2u),
        slab_byte(at, 3u),
        slab_byte(at, 4u),
        slab_byte(at, 5u),
        bitcast<f32>(u32(127 + exponent) << 23u),
        stride,
        zero,
        // t2, t3 and t4 are 4, 8 and 16 bytes.
        at + 6u + ((1u << min(level, LEVEL_4)) - 1u),
    );
}

// The digits of one row's 32 codes in one group. Of a code of five bits the last lies in P6 alone.
fn scaled_digits(matrix: Matrix, scaled: Scaled, level: u32, row: u32, group: u32) -> Digits {
    if (level != LEVEL_6 || scaled.bits != 5u) {
        return read_digits(matrix, level, row, group);
    }
    var digits = read_digits(matrix, LEVEL_4, row, group);
    if (is_row_major(matrix)) {
        let last = min(row, matrix.rows - 1u);
        digits.p6.x = transpose_bits(slab[matrix.p6 + last * matrix.groups + group]);
    } else {
        digits.p6.x = slab[matrix.p6 + (row / 16u * matrix.groups + group) * 16u + row % 16u];
    }
    return digits;
}

// The prefixes of the codes of chunk c, one in each byte.
fn scaled_prefixes(digits: Digits, merged: u32, scaled: Scaled, level: u32, c: u32) -> u32 {
    let leading = leading_bits(digits, merged, level, c);
    if (level < LEVEL_6) {
        return leading;
    }
    if (level == LEVEL_6 && scaled.bits == 5u) {
        return (leading << 1u) | ((digits.p6.x >> c) & 0x01010101u);
    }
    let pair = c % 4u * 2u;
    let six = (leading << 2u) | ((digits.p6[c / 4u] >> pair) & 0x03030303u);
    if (level == LEVEL_6) {
        return six;
    }
    return (six << 2u) | ((digits.p8[c / 4u] >> pair) & 0x03030303u);
}

// The value of one prefix.
fn scaled_value(scaled: Scaled, level: u32, prefix: u32) -> i32 {
    if (level >= LEVEL_6) {
        return i32(prefix) * scaled.stride - scaled.zero;
    }
    return i32(slab_byte(scaled.table, prefix & 15u) << 24u) >> 24u;
}

// The number of a span of a row, of scales or of what minima are multiples of.
fn span_number(matrix: Matrix, scaled: Scaled, part: u32, row: u32, group: u32) -> f32 {
    let spans = (matrix.groups + scaled.span - 1u) / scaled.span;
    var index = (row / 16u * spans + group / scaled.span) * 16u + row % 16u;
    if (is_row_major(matrix)) {
        index = min(row, matrix.rows - 1u) * spans + group / scaled.span;
    }
    switch scaled.scales {
        case SCALES_NONE: {
            return 1.0;
        }
        case SCALES_F16: {
            return f16_to_f32(slab_half(part, index));
        }
        case SCALES_BF16: {
            return bitcast<f32>(slab_half(part, index) << 16u);
        }
        default: {
            return bitcast<f32>(slab[part + index]);
        }
    }
}

// The byte of a sub-block of a row, in a part that has them.
fn sub_byte(matrix: Matrix, scaled: Scaled, part: u32, row: u32, group: u32, sub: u32) -> u32 {
    if (is_row_major(matrix)) {
        let last = min(row, matrix.rows - 1u);
        return slab_byte(part, (last * matrix.groups + group) * scaled.subs + sub);
    }
    let cell = row / 16u * matrix.groups + group;
    return slab_byte(part, (cell * scaled.subs + sub) * 16u + row % 16u);
}

fn sub_factor(sub_scales: u32, byte: u32) -> f32 {
    switch sub_scales {
        case SUBS_U8: {
            return f32(byte);
        }
        case SUBS_I8: {
            return f32(i32(byte << 24u) >> 24u);
        }
        case SUBS_E4M3: {
            if (byte < 8u) {
                // Subnormal: so many times 2^-9.
                return f32(byte) * 0.001953125;
            }
            // A bias that is less by 120, and 20 bits of mantissa less.
            return bitcast<f32>((byte << 20u) + (120u << 23u));
        }
        case SUBS_E8M0: {
            return bitcast<f32>(max(byte << 23u, 1u << 22u));
        }
        default: {
            return f32(byte & 15u);
        }
    }
}

// The factor from the values of a sub-block to its weights.
fn sub_scale(matrix: Matrix, scaled: Scaled, row: u32, group: u32, sub: u32) -> f32 {
    var scale = span_number(matrix, scaled, matrix.scales, row, group);
    if (scaled.sub_scales != SUBS_NONE) {
        let byte = sub_byte(matrix, scaled, matrix.steps, row, group, sub);
        scale *= sub_factor(scaled.sub_scales, byte);
    }
    return scale * scaled.unit;
}

// What is added to the weights of a sub-block, of a codec that has minima.
fn sub_minimum(matrix: Matrix, scaled: Scaled, row: u32, group: u32, sub: u32) -> f32 {
    let number = span_number(matrix, scaled, matrix.tables, row, group);
    if (scaled.minima == MINIMA_OF_SPANS) {
        return number;
    }
    if (scaled.sub_scales == SUBS_NIBBLES) {
        let byte = sub_byte(matrix, scaled, matrix.steps, row, group, sub);
        return -(number * f32(byte >> 4u));
    }
    return -(number * f32(sub_byte(matrix, scaled, matrix.step_high, row, group, sub)));
}
