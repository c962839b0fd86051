// Single weights as floats, in whatever form a matrix lies.

// The weight of a row and column; of the nested code with its scale, as one multiplication.
fn weight_at(matrix: Matrix, level: u32, row: u32, col: u32) -> f32 {
    let at = row * matrix.cols + col;
    switch matrix.form {
        case FORM_F32: {
            return bitcast<f32>(slab[matrix.scales + at]);
        }
        case FORM_F16: {
            return f16_to_f32(slab_half(matrix.scales, at));
        }
        case FORM_BF16: {
            return bitcast<f32>(slab_half(matrix.scales, at) << 16u);
        }
        case FORM_SCALED_TILE16, FORM_SCALED_ROW_MAJOR: {
            return scaled_weight(matrix, level, row, col);
        }
        default: {
            return nested_weight(matrix, level, row, col);
        }
    }
}

// Scale times value, an f32 multiplication, and the minimum, an f32 addition. Where a device makes both one
// operation the bits are the same for codecs whose scales have at most 16 bits of mantissa.
fn scaled_weight(matrix: Matrix, level: u32, row: u32, col: u32) -> f32 {
    let scaled = read_scaled(matrix.codec, level);
    let digits = scaled_digits(matrix, scaled, level, row, col / 32u);
    let prefixes = scaled_prefixes(digits, matrix.merged, scaled, level, col % 32u / 4u);
    let prefix = (prefixes >> (col % 4u * 8u)) & 0xffu;
    let sub = col % 32u * scaled.subs / 32u;
    var weight = sub_scale(matrix, scaled, row, col / 32u, sub) * f32(scaled_value(scaled, level, prefix));
    if (scaled.minima != NO_MINIMA) {
        weight += sub_minimum(matrix, scaled, row, col / 32u, sub);
    }
    return weight;
}

fn nested_weight(matrix: Matrix, level: u32, row: u32, col: u32) -> f32 {
    let codec = read_codec(matrix.codec);
    let digits = read_digits(matrix, level, row, col / 32u);
    let chunk = col % 32u / 4u;
    let factor = step_factor(codec.octaves, step_of(matrix, row, col / 32u));
    let scale = row_unit(matrix, codec, level, row) * factor;
    if (level >= LEVEL_6) {
        return scale * f32(fine_values(digits, matrix.merged, codec, level, chunk)[col % 4u]);
    }
    let bits = leading_bits(digits, matrix.merged, level, chunk);
    let entry = (bits >> (col % 4u * 8u)) & 15u;
    let value = slab_byte(table_of(matrix, level, row / 16u), entry);
    return scale * f32(i32(value << 24u) >> 24u);
}
