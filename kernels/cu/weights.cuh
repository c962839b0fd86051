// Single weights, in whatever form a matrix lies.
#pragma once

#include "nested.cuh"
#include "scaled.cuh"

// One digit of a weight in a plane of so many bits.
DEVICE u32 digit_at(const Matrix& matrix, const u8* plane, u32 bits, u32 row, u32 col) {
    if (is_tiled(matrix)) {
        u64 cell = static_cast<u64>(row / 16) * matrix.groups + col / 32;
        u32 chunk = col % 32 / 4, each = 8 / bits;
        u64 byte = (cell * bits + chunk / each) * 64 + row % 16 * 4 + col % 4;
        return plane[byte] >> (chunk % each * bits) & ((1u << bits) - 1);
    }
    u64 byte = static_cast<u64>(row) * matrix.groups * 4 * bits + col * bits / 8;
    return plane[byte] >> (col * bits % 8) & ((1u << bits) - 1);
}

// The code of a weight, its leading bits at a level whose planes are there.
DEVICE u32 code_at(const Matrix& matrix, u32 level, u32 row, u32 col) {
    u32 code = digit_at(matrix, matrix.p2, 2, row, col);
    if (level >= LEVEL_3 && matrix.is_merged) {
        u32 both = digit_at(matrix, matrix.p3, 2, row, col);
        code = level == LEVEL_3 ? code << 1 | both >> 1 : code << 2 | both;
    } else if (level >= LEVEL_3) {
        code = code << 1 | digit_at(matrix, matrix.p3, 1, row, col);
        if (level >= LEVEL_4) {
            code = code << 1 | digit_at(matrix, matrix.p4, 1, row, col);
        }
    }
    if (level >= LEVEL_6) {
        code = code << 2 | digit_at(matrix, matrix.p6, 2, row, col);
    }
    if (level >= LEVEL_8) {
        code = code << 2 | digit_at(matrix, matrix.p8, 2, row, col);
    }
    return code;
}

DEVICE int value_of_code(const Matrix& matrix, const Codec& codec, u32 level, u32 row, u32 code) {
    if (level >= LEVEL_6) {
        return fine_value(codec, level, code);
    }
    return static_cast<i8>(table_of(matrix, level, row / 16)[code]);
}

// The factor from the values of a row's group to its weights.
DEVICE float weight_scale(const Matrix& matrix, const Codec& codec, u32 level, u32 row, u32 group) {
    u32 step;
    if (matrix.form == FORM_TILE16) {
        step = tile_step(matrix, static_cast<u64>(row / 16) * matrix.groups + group, row % 16);
    } else {
        step = matrix.steps[static_cast<u64>(row) * matrix.groups + group] & 31;
    }
    float unit = half_to_float(load_half(matrix.row_scales + 2 * static_cast<u64>(row))) *
                 unit_of(codec.has_octaves, level);
    return unit * step_factor(codec.has_octaves, step);
}

// The prefix of a weight of scaled integers. Of a code of five bits the last lies in P6 alone.
DEVICE u32 scaled_prefix_at(const Matrix& matrix, const Scaled& scaled, u32 level, u32 row, u32 col) {
    if (level == LEVEL_6 && scaled.bits == 5) {
        return code_at(matrix, LEVEL_4, row, col) << 1 | digit_at(matrix, matrix.p6, 1, row, col);
    }
    return code_at(matrix, level, row, col);
}

// Scale times value, plus the minimum: each rounded once.
DEVICE float scaled_weight(const Matrix& matrix, u32 level, u32 row, u32 col) {
    Scaled scaled = read_scaled(matrix, level);
    int value = scaled_value(scaled, level, scaled_prefix_at(matrix, scaled, level, row, col));
    u32 sub = col % 32 * scaled.subs / 32;
    float weight = sub_scale(matrix, scaled, row, col / 32, sub) * static_cast<float>(value);
    return scaled.minima ? weight + sub_minimum(matrix, scaled, row, col / 32, sub) : weight;
}

// The weight of a row and column, at a prefix.
DEVICE float weight_at(const Matrix& matrix, u32 level, u32 row, u32 col) {
    u64 at = static_cast<u64>(row) * matrix.cols + col;
    switch (matrix.form) {
    case FORM_F32:
        return __uint_as_float(load_word(matrix.row_scales + 4 * at));
    case FORM_F16:
        return half_to_float(load_half(matrix.row_scales + 2 * at));
    case FORM_BF16:
        return __uint_as_float(load_half(matrix.row_scales + 2 * at) << 16);
    case FORM_SCALED_TILE16:
    case FORM_SCALED_ROW_MAJOR:
        return scaled_weight(matrix, level, row, col);
    default:
        Codec codec = read_codec(matrix);
        u32 code = code_at(matrix, level, row, col);
        int value = value_of_code(matrix, codec, level, row, code);
        return weight_scale(matrix, codec, level, row, col / 32) * static_cast<float>(value);
    }
}
