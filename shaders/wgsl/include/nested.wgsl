// The nested code (FORMAT.md): from planes to values and scales, at every level.

// Levels by their place: 2, 3, 4, 6 and 8 bits.
const LEVEL_2: u32 = 0u;
const LEVEL_3: u32 = 1u;
const LEVEL_4: u32 = 2u;
const LEVEL_6: u32 = 3u;
const LEVEL_8: u32 = 4u;

// 2^(-k/8) for k = 0..8, as bits.
const FRACTIONS = array<u32, 8>(
    0x3f800000u, 0x3f6ac0c7u, 0x3f5744fdu, 0x3f45672au,
    0x3f3504f3u, 0x3f25fed7u, 0x3f1837f0u, 0x3f0b95c2u,
);

// A codec as a store holds it: parameters in two words, then seven words for each table.
struct Codec {
    alpha_a: i32,
    alpha_b: i32,
    beta_q: i32,
    octaves: bool,
}

fn read_codec(at: u32) -> Codec {
    let first = slab[at];
    let second = slab[at + 1u];
    return Codec(
        i32(first & 0xffffu),
        i32(first >> 16u),
        i32(second & 0xffu),
        (second >> 24u) != 0u,
    );
}

// What a row of a tile is multiplied by at a level: row scale times the unit of its values.
fn row_unit(matrix: Matrix, codec: Codec, level: u32, row: u32) -> f32 {
    if (matrix.form == FORM_ROW_MAJOR && row >= matrix.rows) {
        return 0.0;
    }
    var unit = 1.0 / 127.0;
    if (codec.octaves) {
        unit = 1.0 / 16.0;
    }
    if (level >= LEVEL_6) {
        unit = 1.0 / 8192.0;
    }
    return f16_to_f32(slab_half(matrix.scales, row)) * unit;
}

// What the step k multiplies a row scale with.
fn step_factor(octaves: bool, k: u32) -> f32 {
    if (k == 31u) {
        return 0.0;
    }
    if (octaves) {
        return bitcast<f32>((127u - k) << 23u);
    }
    var fractions = FRACTIONS;
    return bitcast<f32>(fractions[k % 8u] - ((k / 8u) << 23u));
}

// The step of one row in one group.
fn step_of(matrix: Matrix, row: u32, group: u32) -> u32 {
    if (matrix.form == FORM_ROW_MAJOR) {
        return slab_byte(matrix.steps, min(row, matrix.rows - 1u) * matrix.groups + group) & 31u;
    }
    let cell = row / 16u * matrix.groups + group;
    let lane = row % 16u;
    let low = slab_byte(matrix.steps, cell * 8u + lane % 8u) >> (lane / 8u * 4u);
    let high = slab_half(matrix.step_high, cell) >> lane;
    return (low & 15u) | ((high & 1u) << 4u);
}

// The digits of one row's 32 codes in one group. Byte k of a word belongs to the columns of residue
// k modulo 4; chunk c, columns 4 c and on, is at bit c % 4 * 2 of word c / 4 (planes of 2 bits) or
// at bit c (planes of 1 bit).
struct Digits {
    p2: vec2<u32>,
    // P3 and P4, or the two merged in `p3`.
    p3: vec2<u32>,
    p4: u32,
    p6: vec2<u32>,
    p8: vec2<u32>,
}

fn read_digits(matrix: Matrix, level: u32, row: u32, group: u32) -> Digits {
    if (is_row_major(matrix)) {
        return row_major_digits(matrix, level, min(row, matrix.rows - 1u), group);
    }
    var digits: Digits;
    let cell = row / 16u * matrix.groups + group;
    let two = cell * 32u + row % 16u;
    let one = cell * 16u + row % 16u;
    digits.p2 = vec2(slab[matrix.p2 + two], slab[matrix.p2 + two + 16u]);
    if (level >= LEVEL_3) {
        if (matrix.merged != 0u) {
            digits.p3 = vec2(slab[matrix.p3 + two], slab[matrix.p3 + two + 16u]);
        } else {
            digits.p3 = vec2(slab[matrix.p3 + one], 0u);
            if (level >= LEVEL_4) {
                digits.p4 = slab[matrix.p4 + one];
            }
        }
    }
    if (level >= LEVEL_6) {
        digits.p6 = vec2(slab[matrix.p6 + two], slab[matrix.p6 + two + 16u]);
    }
    if (level >= LEVEL_8) {
        digits.p8 = vec2(slab[matrix.p8 + two], slab[matrix.p8 + two + 16u]);
    }
    return digits;
}

fn row_major_digits(matrix: Matrix, level: u32, row: u32, group: u32) -> Digits {
    var digits: Digits;
    let one = row * matrix.groups + group;
    let two = one * 2u;
    digits.p2 = transpose_pairs(vec2(slab[matrix.p2 + two], slab[matrix.p2 + two + 1u]));
    if (level >= LEVEL_3) {
        if (matrix.merged != 0u) {
            let words = vec2(slab[matrix.p3 + two], slab[matrix.p3 + two + 1u]);
            digits.p3 = transpose_pairs(words);
        } else {
            digits.p3 = vec2(transpose_bits(slab[matrix.p3 + one]), 0u);
            if (level >= LEVEL_4) {
                digits.p4 = transpose_bits(slab[matrix.p4 + one]);
            }
        }
    }
    if (level >= LEVEL_6) {
        digits.p6 = transpose_pairs(vec2(slab[matrix.p6 + two], slab[matrix.p6 + two + 1u]));
    }
    if (level >= LEVEL_8) {
        digits.p8 = transpose_pairs(vec2(slab[matrix.p8 + two], slab[matrix.p8 + two + 1u]));
    }
    return digits;
}

// Digit j of byte i becomes digit i of byte j, in each word.
fn transpose_pairs(words: vec2<u32>) -> vec2<u32> {
    let near = (words ^ (words >> vec2(6u))) & vec2(0x00cc00ccu);
    let half = words ^ near ^ (near << vec2(6u));
    let far = (half ^ (half >> vec2(12u))) & vec2(0x0000f0f0u);
    return half ^ far ^ (far << vec2(12u));
}

// Bit 4 c + k becomes bit c of byte k.
fn transpose_bits(word: u32) -> u32 {
    var out = 0u;
    for (var c = 0u; c < 8u; c += 1u) {
        let bits = word >> (4u * c);
        let spread = (bits & 1u) | ((bits & 2u) << 7u) | ((bits & 4u) << 14u) | ((bits & 8u) << 21u);
        out |= spread << c;
    }
    return out;
}

// The leading bits of the codes of chunk c, up to level 4, one in each byte.
fn leading_bits(digits: Digits, merged: u32, level: u32, c: u32) -> u32 {
    let pair = c % 4u * 2u;
    var bits = (digits.p2[c / 4u] >> pair) & 0x03030303u;
    if (level == LEVEL_2) {
        return bits;
    }
    if (merged != 0u) {
        let middle = (digits.p3[c / 4u] >> pair) & 0x03030303u;
        if (level == LEVEL_3) {
            return (bits << 1u) | ((middle >> 1u) & 0x01010101u);
        }
        return (bits << 2u) | middle;
    }
    bits = (bits << 1u) | ((digits.p3.x >> c) & 0x01010101u);
    if (level == LEVEL_3) {
        return bits;
    }
    return (bits << 1u) | ((digits.p4 >> c) & 0x01010101u);
}

fn bytes_of(word: u32) -> vec4<i32> {
    return vec4<i32>((vec4(word) >> vec4(0u, 8u, 16u, 24u)) & vec4(0xffu));
}

fn multiply_round(a: vec4<i32>, b: vec4<i32>) -> vec4<i32> {
    return (a * b + vec4(16384)) >> vec4(15u);
}

// The values of chunk c at levels 6 and 8, in units of 1/8192.
fn fine_values(digits: Digits, merged: u32, codec: Codec, level: u32, c: u32) -> vec4<i32> {
    let pair = c % 4u * 2u;
    let p4 = bytes_of(leading_bits(digits, merged, level, c));
    let d6 = bytes_of((digits.p6[c / 4u] >> pair) & 0x03030303u);
    var r = 8 * d6 - vec4(12);
    if (level == LEVEL_8) {
        r += 2 * bytes_of((digits.p8[c / 4u] >> pair) & 0x03030303u) - vec4(3);
    }
    let x = 4 * (256 * (2 * p4 - vec4(15)) + codec.beta_q * r);
    let f = vec4(codec.alpha_a) + multiply_round(abs(x), vec4(codec.alpha_b));
    return multiply_round(x, f);
}

// Where the values of a level up to 4 begin in a table of the codec, in words.
fn table_of(matrix: Matrix, level: u32, tile: u32) -> u32 {
    let table = slab_byte(matrix.tables, tile);
    // t2, t3 and t4 are 4, 8 and 16 bytes.
    return matrix.codec + 2u + 7u * table + ((1u << level) - 1u);
}
