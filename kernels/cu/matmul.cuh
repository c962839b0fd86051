// Products of nested matrices and many rows of int8 activations, on tensor cores.
//
// One `mma` of m16n8k32 multiplies a tile of 16 rows by eight rows of activations over one group of 32
// columns: its sums are the exact sums of the group, and a thread then adds its own in ascending groups,
// acc = fma(sum, activation scale * weight scale, acc), so the bits are those of every other way.
#pragma once

#include "nested.cuh"

// Weights as `mma` takes them: register i has four values of row `lane / 4 + 8 (i % 2)`, columns
// `4 (lane % 4) + 16 (i / 2)` and on.
struct Fragment {
    u32 words[4];
};

// Sums start here, so that their bits are those of floats: 2^23 + 2^22 and the sum.
#define SUM_BIAS 0x4b400000
#define SUM_BIAS_FLOAT 12582912.0f
// Weights are at most 128 in magnitude here, activations 127, and a group has 32 of them.
static_assert(32 * 128 * 127 < 1 << 22, "a group's sum leaves the float that its bits are");

// sums += weights * activations, for rows lane / 4 and 8 on, and columns 2 (lane % 4) and the next.
DEVICE void multiply_tile(int sums[4], const Fragment& weights, u32 x_low, u32 x_high) {
#ifdef NESTLING_EMULATION
    u32 own[6] = {weights.words[0], weights.words[1], weights.words[2], weights.words[3], x_low, x_high};
    u32 all[WARP][emulation::GIVEN_WORDS];
    emulation::gather(own, 6, all, {__FILE__, __LINE__});
    u32 lane = lane_of_thread();
    for (u32 i = 0; i < 4; i++) {
        u32 row = lane / 4, column = 2 * (lane % 4) + i % 2;
        for (u32 part = 0; part < 4; part++) {
            const u32* a = all[4 * row + part];
            const u32* b = all[4 * column + part];
            sums[i] = __dp4a(static_cast<int>(a[i / 2]), static_cast<int>(b[4]), sums[i]);
            sums[i] = __dp4a(static_cast<int>(a[2 + i / 2]), static_cast<int>(b[5]), sums[i]);
        }
    }
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(weights.words[0]), "r"(weights.words[1]), "r"(weights.words[2]), "r"(weights.words[3]),
          "r"(x_low), "r"(x_high));
#else
    // Four of the smaller ones, whose fragments are parts of these.
    for (u32 half = 0; half < 2; half++) {
        for (u32 k = 0; k < 2; k++) {
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+r"(sums[2 * half]), "+r"(sums[2 * half + 1])
                : "r"(weights.words[half + 2 * k]), "r"(k ? x_high : x_low));
        }
    }
#endif
}

#define MATMUL_THREADS 128u
// Rows of activations of a block, and groups that are brought to shared memory together.
#define MATMUL_PAIRS 64u
#define MATMUL_GROUPS 4u
// Words of a row there: one group more than there are spreads rows over the banks.
#define X_STRIDE (8 * MATMUL_GROUPS + 4)
static_assert(X_STRIDE % 4 == 0, "rows are stored by 16 bytes");

struct __align__(16) MatmulShared {
    u32 x[MATMUL_PAIRS][X_STRIDE];
    float x_scales[MATMUL_GROUPS][MATMUL_PAIRS];
    u32 x_rows[MATMUL_PAIRS];
    FineTable fine;
};

// Four nibbles or bits that lie in four bytes, as a selector of bytes.
DEVICE u32 selector_of(u32 entries) {
    u32 pairs = (entries | entries >> 4) & 0x00ff00ff;
    return (pairs | pairs >> 8) & 0xffff;
}

// The values of one chunk's codes at a level up to 4.
template <u32 LEVEL>
DEVICE u32 chunk_values(u32 p2, u32 middle, u32 chunk, const u32 table[4]) {
    u32 leading = p2 >> (2 * chunk) & 0x03030303, rest = middle >> (2 * chunk) & 0x03030303;
    if (LEVEL == LEVEL_2) {
        return permute_bytes(table[0], 0, selector_of(leading));
    }
    if (LEVEL == LEVEL_3) {
        return permute_bytes(table[0], table[1], selector_of(leading << 1 | (rest >> 1 & 0x01010101)));
    }
    u32 entries = selector_of((leading << 2 & 0x04040404) | rest);
    u32 half = selector_of(leading << 1 & 0x04040404) | 0x3210;
    u32 low = permute_bytes(table[0], table[1], entries), high = permute_bytes(table[2], table[3], entries);
    return permute_bytes(low, high, half);
}

// One word of every plane that a level needs: 16 columns of a row.
template <u32 LEVEL>
DEVICE Digits read_digits(const Matrix& matrix, u64 cell, u32 row, u32 vector) {
    Digits digits = {0, 0, 0, 0};
    u64 two = cell * 128 + vector * 64 + row * 4, one = cell * 64 + row * 4;
    digits.p2 = load_word(matrix.p2 + two);
    if (LEVEL >= LEVEL_3) {
        if (matrix.is_merged) {
            digits.middle = load_word(matrix.p3 + two);
        } else {
            u32 fourth = LEVEL >= LEVEL_4 ? load_word(matrix.p4 + one) : 0;
            digits.middle = merged_digit(load_word(matrix.p3 + one), fourth, vector);
        }
    }
    if (LEVEL >= LEVEL_6) {
        digits.p6 = load_word(matrix.p6 + two);
    }
    if (LEVEL >= LEVEL_8) {
        digits.p8 = load_word(matrix.p8 + two);
    }
    return digits;
}

// The weights of one cell; `high` only at levels 6 and 8.
template <u32 LEVEL>
DEVICE void read_fragments(const Matrix& matrix, u64 cell, const u32 table[4], const FineTable& fine,
                           Fragment& low, Fragment& high) {
    u32 lane = lane_of_thread(), chunk = lane % 4;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        Digits digits = read_digits<LEVEL>(matrix, cell, lane / 4 + 8 * (i % 2), i / 2);
        if (LEVEL <= LEVEL_4) {
            low.words[i] = chunk_values<LEVEL>(digits.p2, digits.middle, chunk, table);
        } else {
            fine_values(fine, fine_codes<LEVEL>(digits, chunk), low.words[i], high.words[i]);
        }
    }
}

// Brings some groups of all rows of activations to shared memory; what is beyond the matrix is zero.
DEVICE void bring_rows(const ProductParams& params, u32 first, u32 groups, u32 pairs, MatmulShared& shared) {
    const u32 words = 8 * MATMUL_GROUPS;
    for (u32 at = threadIdx.x; at < MATMUL_PAIRS * words / 4; at += MATMUL_THREADS) {
        u32 row = at / (words / 4), word = at % (words / 4) * 4;
        uint4 value = make_uint4(0, 0, 0, 0);
        if (row < pairs && word / 8 < groups) {
            u64 cell = static_cast<u64>(shared.x_rows[row]) * params.x_groups + first;
            value = load_vector(params.x_values + cell * 32 + word * 4);
        }
        *reinterpret_cast<uint4*>(&shared.x[row][word]) = value;
    }
    for (u32 at = threadIdx.x; at < MATMUL_PAIRS * MATMUL_GROUPS; at += MATMUL_THREADS) {
        u32 row = at / MATMUL_GROUPS, group = at % MATMUL_GROUPS;
        bool is_there = row < pairs && group < groups;
        u64 cell = static_cast<u64>(shared.x_rows[row]) * params.x_groups + first + group;
        shared.x_scales[group][row] = is_there ? params.x_scales[cell] : 0.0f;
    }
}

// What one warp computes: a tile of 16 rows for all rows of activations.
struct TileSums {
    float acc[MATMUL_PAIRS / 8][4];
};

// Adds one group.
template <u32 LEVEL>
DEVICE void add_group(const Matrix& matrix, u64 cell, u32 group, u32 pairs, const float units[2],
                      const u32 table[4], bool has_octaves, const MatmulShared& shared, TileSums& tile) {
    u32 lane = lane_of_thread();
    Fragment low, high;
    read_fragments<LEVEL>(matrix, cell, table, shared.fine, low, high);
    float scales[2];
    for (u32 i = 0; i < 2; i++) {
        scales[i] = units[i] * step_factor(has_octaves, tile_step(matrix, cell, lane / 4 + 8 * i));
    }
#pragma unroll
    for (u32 n = 0; n < MATMUL_PAIRS / 8; n++) {
        if (8 * n >= pairs) {
            continue;
        }
        const u32* x = &shared.x[8 * n + lane / 4][8 * group + lane % 4];
        int sums[4] = {SUM_BIAS, SUM_BIAS, SUM_BIAS, SUM_BIAS};
        multiply_tile(sums, low, x[0], x[4]);
        int leading[4] = {SUM_BIAS, SUM_BIAS, SUM_BIAS, SUM_BIAS};
        if (LEVEL >= LEVEL_6) {
            multiply_tile(leading, high, x[0], x[4]);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float sum = __int_as_float(sums[i]) - SUM_BIAS_FLOAT;
            if (LEVEL >= LEVEL_6) {
                // Both are exact, and the sum is rounded once, as that of integers.
                sum = fused(128.0f, __int_as_float(leading[i]) - SUM_BIAS_FLOAT, sum);
            }
            float x_scale = shared.x_scales[group][8 * n + 2 * (lane % 4) + i % 2];
            tile.acc[n][i] = fused(sum, x_scale * scales[i / 2], tile.acc[n][i]);
        }
    }
}

DEVICE void store_tile(const ProductParams& params, const Block& block, u32 tile, const TileSums& sums) {
    u32 lane = lane_of_thread();
#pragma unroll
    for (u32 n = 0; n < MATMUL_PAIRS / 8; n++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 pair = 8 * n + 2 * (lane % 4) + i % 2, row = tile * 16 + lane / 4 + 8 * (i / 2);
            if (pair >= block.pairs || row < block.first_row || row >= block.end_row) {
                continue;
            }
            u32 from_first = row - block.first_row;
            float value = sums.acc[n][i];
            value = block.bias ? value + block.bias[from_first] : value;
            u64 out_row = params.pairs[block.first_pair + pair].out_row;
            float* out = params.out + out_row * params.out_cols + block.out_col + from_first;
            *out = params.adds ? *out + value : value;
        }
    }
}

// Four tiles, one for each warp.
template <u32 LEVEL>
DEVICE void matmul_at(const ProductParams& params, const Block& block, u32 tile, MatmulShared& shared) {
    const Matrix& matrix = *block.matrix;
    Codec codec = read_codec(matrix);
    u32 lane = lane_of_thread(), tiles = (block.end_row + 15) / 16;
    bool has_tile = tile < tiles;
    tile = has_tile ? tile : tiles - 1;
    if (LEVEL >= LEVEL_6) {
        fill_fine_table(shared.fine, codec, LEVEL, threadIdx.x, MATMUL_THREADS);
    }
    for (u32 at = threadIdx.x; at < MATMUL_PAIRS; at += MATMUL_THREADS) {
        shared.x_rows[at] = at < block.pairs ? params.pairs[block.first_pair + at].x_row : 0;
    }
    u32 table[4] = {0, 0, 0, 0};
    if (LEVEL <= LEVEL_4) {
        for (u32 i = 0; i < (1u << LEVEL); i++) {
            table[i] = load_word(table_of(matrix, LEVEL, tile) + 4 * i);
        }
    }
    float units[2];
    for (u32 i = 0; i < 2; i++) {
        u32 half = load_half(matrix.row_scales + 2 * (tile * 16 + lane / 4 + 8 * i));
        units[i] = half_to_float(half) * unit_of(codec.has_octaves, LEVEL);
    }
    TileSums sums;
    for (u32 n = 0; n < MATMUL_PAIRS / 8; n++) {
        for (u32 i = 0; i < 4; i++) {
            sums.acc[n][i] = 0.0f;
        }
    }
    for (u32 first = 0; first < matrix.groups; first += MATMUL_GROUPS) {
        u32 groups = matrix.groups - first < MATMUL_GROUPS ? matrix.groups - first : MATMUL_GROUPS;
        __syncthreads();
        bring_rows(params, first, groups, block.pairs, shared);
        __syncthreads();
        for (u32 group = 0; group < groups; group++) {
            u64 cell = static_cast<u64>(tile) * matrix.groups + first + group;
            add_group<LEVEL>(matrix, cell, group, block.pairs, units, table, codec.has_octaves, shared, sums);
        }
    }
    if (has_tile) {
        store_tile(params, block, tile, sums);
    }
}
