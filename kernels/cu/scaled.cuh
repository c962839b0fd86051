// Scaled integers (FORMAT.md): from planes to values, scales and minima. Digits lie as those of the nested
// code.
#pragma once

#include "nested.cuh"

enum ScaleType { SCALES_NONE = 0, SCALES_F16 = 1, SCALES_BF16 = 2, SCALES_F32 = 3 };
enum SubScaleType { SUBS_NONE = 0, SUBS_U8 = 1, SUBS_I8 = 2, SUBS_E4M3 = 3, SUBS_E8M0 = 4, SUBS_NIBBLES = 5 };
enum MinimaType { MINIMA_NONE = 0, MINIMA_OF_SPANS = 1, MINIMA_OF_SUB_BLOCKS = 2 };

// A codec as a store holds it, of one level.
struct Scaled {
    u32 bits; // of a complete code
    u32 subs; // sub-blocks of a group
    u32 span; // groups of a span
    u32 scales;
    u32 sub_scales;
    u32 minima;
    float unit; // what the values of the level are counted in
    int stride; // values of prefixes at levels 6 and 8
    int zero;
    const u8* table; // of a level up to 4
};

DEVICE Scaled read_scaled(const Matrix& matrix, u32 level) {
    const u8* codec = matrix.codec;
    Scaled scaled;
    scaled.bits = codec[0];
    scaled.subs = 32u / codec[1];
    scaled.span = codec[2];
    scaled.scales = codec[3];
    scaled.sub_scales = codec[4];
    scaled.minima = codec[5];
    scaled.unit = __uint_as_float(static_cast<u32>(127 + static_cast<i8>(codec[6 + level])) << 23);
    const u8* linear = codec + (level == LEVEL_8 ? 20 : 16);
    scaled.stride = linear[0];
    scaled.zero = static_cast<short>(load_half(linear + 2));
    // t2, t3 and t4 are 4, 8 and 16 bytes.
    scaled.table = codec + 24 + ((4u << level) - 4);
    return scaled;
}

// The value of one prefix.
DEVICE int scaled_value(const Scaled& scaled, u32 level, u32 prefix) {
    if (level >= LEVEL_6) {
        return static_cast<int>(prefix) * scaled.stride - scaled.zero;
    }
    return static_cast<i8>(scaled.table[prefix]);
}

// The number of a span of a row, of scales or of what minima are multiples of.
DEVICE float span_number(const Matrix& matrix, const Scaled& scaled, const u8* part, u32 row, u32 group) {
    u64 spans = (matrix.groups + scaled.span - 1) / scaled.span, span = group / scaled.span;
    u64 at = is_tiled(matrix) ? (row / 16 * spans + span) * 16 + row % 16 : row * spans + span;
    switch (scaled.scales) {
    case SCALES_NONE:
        return 1.0f;
    case SCALES_F16:
        return half_to_float(load_half(part + 2 * at));
    case SCALES_BF16:
        return __uint_as_float(load_half(part + 2 * at) << 16);
    default:
        return __uint_as_float(load_word(part + 4 * at));
    }
}

// The byte of a sub-block of a row, in a part that has them.
DEVICE u32 sub_byte(const Matrix& matrix, const Scaled& scaled, const u8* part, u32 row, u32 group, u32 sub) {
    if (is_tiled(matrix)) {
        u64 cell = static_cast<u64>(row / 16) * matrix.groups + group;
        return part[(cell * scaled.subs + sub) * 16 + row % 16];
    }
    return part[(static_cast<u64>(row) * matrix.groups + group) * scaled.subs + sub];
}

DEVICE float sub_factor(u32 sub_scales, u32 byte) {
    switch (sub_scales) {
    case SUBS_U8:
        return static_cast<float>(byte);
    case SUBS_I8:
        return static_cast<float>(static_cast<i8>(byte));
    case SUBS_E4M3:
        // Subnormal: so many times 2^-9. Else a bias that is less by 120, and 20 bits of mantissa less.
        return byte < 8 ? static_cast<float>(byte) * 0.001953125f : __uint_as_float((byte << 20) + (120u << 23));
    case SUBS_E8M0:
        return __uint_as_float(byte == 0 ? 1u << 22 : byte << 23);
    default:
        return static_cast<float>(byte & 15);
    }
}

// The factor from the values of a sub-block to its weights.
DEVICE float sub_scale(const Matrix& matrix, const Scaled& scaled, u32 row, u32 group, u32 sub) {
    float scale = span_number(matrix, scaled, matrix.row_scales, row, group);
    if (scaled.sub_scales != SUBS_NONE) {
        scale *= sub_factor(scaled.sub_scales, sub_byte(matrix, scaled, matrix.steps, row, group, sub));
    }
    return scale * scaled.unit;
}

// What is added to the weights of a sub-block, of a codec that has minima.
DEVICE float sub_minimum(const Matrix& matrix, const Scaled& scaled, u32 row, u32 group, u32 sub) {
    float number = span_number(matrix, scaled, matrix.tile_tables, row, group);
    if (scaled.minima == MINIMA_OF_SPANS) {
        return number;
    }
    u32 factor = scaled.sub_scales == SUBS_NIBBLES
                     ? sub_byte(matrix, scaled, matrix.steps, row, group, sub) >> 4
                     : sub_byte(matrix, scaled, matrix.step_high, row, group, sub);
    return -(number * static_cast<float>(factor));
}
