// The nested code (FORMAT.md): from planes to values and scales.
//
// A cell is a tile of 16 rows by a group of 32 columns. In a plane of 2 bits it has two vectors of 16
// words, one for each row; byte k of a word belongs to the columns of residue k modulo 4, and digit i of
// a byte to chunk i of the vector (columns 16 v + 4 i and on). A plane of 1 bit has one vector with
// bit c for chunk c.
#pragma once

#include "device.cuh"

// Levels by their place: 2, 3, 4, 6 and 8 bits.
#define LEVEL_2 0u
#define LEVEL_3 1u
#define LEVEL_4 2u
#define LEVEL_6 3u
#define LEVEL_8 4u
#define NO_LEVEL 15u

// A codec as a store holds it: two words of parameters, then 28 bytes for each table.
struct Codec {
    int alpha_a, alpha_b, beta_q;
    bool has_octaves;
};

// Whether rows lie interleaved by 16.
DEVICE bool is_tiled(const Matrix& matrix) {
    return matrix.form == FORM_TILE16 || matrix.form == FORM_SCALED_TILE16;
}

DEVICE Codec read_codec(const Matrix& matrix) {
    u32 first = load_word(matrix.codec), second = load_word(matrix.codec + 4);
    Codec codec;
    codec.alpha_a = first & 0xffff;
    codec.alpha_b = first >> 16;
    codec.beta_q = second & 0xff;
    codec.has_octaves = second >> 24 != 0;
    return codec;
}

// The prefix that a level of the model means.
DEVICE u32 prefix_of(const Matrix& matrix, u32 level) {
    return level > LEVEL_8 ? NO_LEVEL : matrix.prefixes >> (4 * level) & 15;
}

// Size of one unit of a level's values.
DEVICE float unit_of(bool has_octaves, u32 level) {
    if (level >= LEVEL_6) {
        return 1.0f / 8192.0f;
    }
    return has_octaves ? 1.0f / 16.0f : 1.0f / 127.0f;
}

// 2^(-k/8) for k = 0..8, as bits.
CONSTANT u32 FRACTIONS[8] = {0x3f800000, 0x3f6ac0c7, 0x3f5744fd, 0x3f45672a,
                             0x3f3504f3, 0x3f25fed7, 0x3f1837f0, 0x3f0b95c2};

// What the step k multiplies a row scale with: 2^(-k/8) or 2^-k, and 0 for 31.
DEVICE float step_factor(bool has_octaves, u32 k) {
    if (k == 31) {
        return 0.0f;
    }
    if (has_octaves) {
        return __uint_as_float((127 - k) << 23);
    }
    return __uint_as_float(FRACTIONS[k % 8] - (k / 8 << 23));
}

DEVICE int multiply_round(int a, int b) { return (a * b + 16384) >> 15; }

// The value of a code of 6 or 8 bits, in units of 1/8192.
DEVICE int fine_value(const Codec& codec, u32 level, u32 code) {
    int p4, r;
    if (level == LEVEL_6) {
        p4 = code >> 2;
        r = 8 * static_cast<int>(code & 3) - 12;
    } else {
        p4 = code >> 4;
        r = 8 * static_cast<int>(code >> 2 & 3) - 12 + 2 * static_cast<int>(code & 3) - 3;
    }
    int x = 4 * (256 * (2 * p4 - 15) + codec.beta_q * r);
    int slope = codec.alpha_a + multiply_round(x < 0 ? -x : x, codec.alpha_b);
    return multiply_round(x, slope);
}

// The table of a level up to 4, of a tile; entries beyond a level's own are never looked up.
DEVICE const u8* table_of(const Matrix& matrix, u32 level, u32 tile) {
    // The values of levels 2, 3 and 4 are 4, 8 and 16 bytes.
    return matrix.codec + 8 + 28 * matrix.tile_tables[tile] + (4u << level) - 4;
}

// The step of one row in one cell.
DEVICE u32 tile_step(const Matrix& matrix, u64 cell, u32 row) {
    u32 low = matrix.steps[cell * 8 + row % 8] >> (row / 8 * 4) & 15;
    u32 high = load_half(matrix.step_high + cell * 2) >> row & 1;
    return low | high << 4;
}

// Moves bits 0..4 of every byte to bits 0, 2, 4 and 6.
DEVICE u32 spread_bits(u32 bits) {
    u32 pairs = (bits & 0x03030303) | (bits & 0x0c0c0c0c) << 2;
    return (pairs & 0x11111111) | (pairs & 0x22222222) << 1;
}

// The digit of P3 and P4 of one vector, as if they lay merged, from words of both planes.
DEVICE u32 merged_digit(u32 p3, u32 p4, u32 vector) {
    return spread_bits(p3 >> (4 * vector) & 0x0f0f0f0f) << 1 |
           spread_bits(p4 >> (4 * vector) & 0x0f0f0f0f);
}

// One word of every plane: 16 weights of a row.
struct Digits {
    u32 p2, middle, p6, p8;
};

// The 16 values of a word at a level up to 4, four bytes each. Nibbles that select from a table lie in a
// word as chunk 0 and 2, or 1 and 3, of the four residues, so values come out in that order:
// (c0 k0, c2 k0, c0 k1, c2 k1), (c0 k2, ...), (c1 k0, c3 k0, ...), (c1 k2, ...).
template <u32 LEVEL>
DEVICE void table_values(const Digits& digits, const u32 table[4], u32 values[4]) {
    u32 p2 = digits.p2, middle = digits.middle;
    for (u32 odd = 0; odd < 2; odd++) {
        u32 pair = odd ? p2 >> 2 : p2;
        if (LEVEL == LEVEL_2) {
            u32 entries = pair & 0x33333333;
            values[2 * odd] = permute_bytes(table[0], 0, entries);
            values[2 * odd + 1] = permute_bytes(table[0], 0, entries >> 16);
        } else if (LEVEL == LEVEL_3) {
            u32 rest = odd ? middle >> 3 : middle >> 1;
            u32 entries = (pair << 1 & 0x66666666) | (rest & 0x11111111);
            values[2 * odd] = permute_bytes(table[0], table[1], entries);
            values[2 * odd + 1] = permute_bytes(table[0], table[1], entries >> 16);
        } else {
            u32 rest = odd ? middle >> 2 : middle;
            u32 entries = (pair << 2 & 0x44444444) | (rest & 0x33333333);
            // Which half of the table: its own bytes 0 to 3, or those of the other, 4 to 7.
            u32 half = (pair << 1 & 0x44444444) | 0x32103210;
            for (u32 i = 0; i < 2; i++) {
                u32 low = permute_bytes(table[0], table[1], entries >> (16 * i));
                u32 high = permute_bytes(table[2], table[3], entries >> (16 * i));
                values[2 * odd + i] = permute_bytes(low, high, half >> (16 * i));
            }
        }
    }
}

// Sixteen activations in the order of `table_values`.
DEVICE void in_table_order(const uint4& x, u32 ordered[4]) {
    ordered[0] = permute_bytes(x.x, x.z, 0x5140);
    ordered[1] = permute_bytes(x.x, x.z, 0x7362);
    ordered[2] = permute_bytes(x.y, x.w, 0x5140);
    ordered[3] = permute_bytes(x.y, x.w, 0x7362);
}

// Values of levels 6 and 8 split exactly into two digits of int8: 128 * high + low.
DEVICE u32 fine_digits(int value) {
    int high = (value + 64) >> 7;
    return (static_cast<u32>(value - 128 * high) & 0xff) | (static_cast<u32>(high) & 0xff) << 8;
}

// The codes of one chunk of a word at level 6 or 8, one in each byte.
template <u32 LEVEL>
DEVICE u32 fine_codes(const Digits& digits, u32 chunk) {
    u32 codes = (digits.p2 >> (2 * chunk) & 0x03030303) << 4 |
                (digits.middle >> (2 * chunk) & 0x03030303) << 2 |
                (digits.p6 >> (2 * chunk) & 0x03030303);
    if (LEVEL == LEVEL_8) {
        // Six bits in front leave room for two.
        codes = codes << 2 | (digits.p8 >> (2 * chunk) & 0x03030303);
    }
    return codes;
}

// Digits of all codes of a level, as often as lanes look them up without meeting in one bank.
#define FINE_COPIES 8u

struct FineTable {
    u16 digits[256 * FINE_COPIES];
};

DEVICE void fill_fine_table(FineTable& table, const Codec& codec, u32 level, u32 thread, u32 threads) {
    u32 codes = level == LEVEL_6 ? 64 : 256;
    for (u32 code = thread; code < codes; code += threads) {
        u32 digits = fine_digits(fine_value(codec, level, code));
        for (u32 copy = 0; copy < FINE_COPIES; copy++) {
            table.digits[code * FINE_COPIES + copy] = static_cast<u16>(digits);
        }
    }
}

// The low and the high digits of four codes.
DEVICE void fine_values(const FineTable& table, u32 codes, u32& low, u32& high) {
    u32 copy = lane_of_thread() % FINE_COPIES;
    u32 a = table.digits[(codes & 0xff) * FINE_COPIES + copy];
    u32 b = table.digits[(codes >> 8 & 0xff) * FINE_COPIES + copy];
    u32 c = table.digits[(codes >> 16 & 0xff) * FINE_COPIES + copy];
    u32 d = table.digits[(codes >> 24) * FINE_COPIES + copy];
    u32 front = a | b << 16, back = c | d << 16;
    low = permute_bytes(front, back, 0x6420);
    high = permute_bytes(front, back, 0x7531);
}
