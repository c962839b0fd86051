// Products of scaled integers and int8 activations, in whatever form the integers are and however their
// rows lie.
//
// A warp takes a row of the matrix for up to eight rows of activations at a time: its lanes a group each,
// whose exact sums, one for each sub-block, then pass through the warp in ascending order. For each
// sub-block acc = fma(sum, activation scale * weight scale, acc), and then, with minima, for each
// sub-block acc = fma(activation scale * sum of activations, minimum, acc).

#include "weights.cuh"

#define THREADS 128u
#define PAIRS 8u

// One row of weights in the group of a lane.
struct ScaledGroup {
    u32 values[8]; // four bytes each
    float scales[2], minima[2];
};

// The prefixes of four codes of a tiled matrix, one in each byte.
DEVICE u32 tiled_prefixes(const Matrix& matrix, const Scaled& scaled, u32 level, u64 cell, u32 row, u32 chunk) {
    u64 two = cell * 128 + chunk / 4 * 64 + row * 4, one = cell * 64 + row * 4;
    u32 pair = 2 * (chunk % 4);
    u32 codes = load_word(matrix.p2 + two) >> pair & 0x03030303;
    if (level >= LEVEL_3 && matrix.is_merged) {
        u32 middle = load_word(matrix.p3 + two) >> pair & 0x03030303;
        codes = level == LEVEL_3 ? codes << 1 | (middle >> 1 & 0x01010101) : codes << 2 | middle;
    } else if (level >= LEVEL_3) {
        codes = codes << 1 | (load_word(matrix.p3 + one) >> chunk & 0x01010101);
        if (level >= LEVEL_4) {
            codes = codes << 1 | (load_word(matrix.p4 + one) >> chunk & 0x01010101);
        }
    }
    if (level == LEVEL_6 && scaled.bits == 5) {
        return codes << 1 | (load_word(matrix.p6 + one) >> chunk & 0x01010101);
    }
    if (level >= LEVEL_6) {
        codes = codes << 2 | (load_word(matrix.p6 + two) >> pair & 0x03030303);
    }
    if (level >= LEVEL_8) {
        codes = codes << 2 | (load_word(matrix.p8 + two) >> pair & 0x03030303);
    }
    return codes;
}

DEVICE void read_group(const Matrix& matrix, const Scaled& scaled, u32 level, u32 row, u32 group, ScaledGroup& out) {
    u64 cell = static_cast<u64>(row / 16) * matrix.groups + group;
#pragma unroll
    for (u32 chunk = 0; chunk < 8; chunk++) {
        u32 prefixes = 0, values = 0;
        if (is_tiled(matrix)) {
            prefixes = tiled_prefixes(matrix, scaled, level, cell, row % 16, chunk);
        } else {
            for (u32 k = 0; k < 4; k++) {
                prefixes |= scaled_prefix_at(matrix, scaled, level, row, group * 32 + chunk * 4 + k) << (8 * k);
            }
        }
        for (u32 k = 0; k < 4; k++) {
            int value = scaled_value(scaled, level, prefixes >> (8 * k) & 0xff);
            values |= (static_cast<u32>(value) & 0xff) << (8 * k);
        }
        out.values[chunk] = values;
    }
#pragma unroll
    for (u32 sub = 0; sub < 2; sub++) {
        if (sub < scaled.subs) {
            out.scales[sub] = sub_scale(matrix, scaled, row, group, sub);
            out.minima[sub] = scaled.minima ? sub_minimum(matrix, scaled, row, group, sub) : 0.0f;
        }
    }
}

// What a lane brings to the sum of one row of activations.
struct ScaledTerms {
    float sums[2], factors[2];
    float x_sums[2]; // activation scale times sum of activations
};

DEVICE ScaledTerms terms_of(const ProductParams& params, const Scaled& scaled, const ScaledGroup& own, u64 cell) {
    int sums[2] = {0, 0}, x_sums[2] = {0, 0};
    const int ones = 0x01010101;
#pragma unroll
    for (u32 chunk = 0; chunk < 8; chunk++) {
        int x = static_cast<int>(load_word(params.x_values + cell * 32 + 4 * chunk));
        u32 half = chunk / 4;
        sums[half] = __dp4a(static_cast<int>(own.values[chunk]), x, sums[half]);
        x_sums[half] = __dp4a(ones, x, x_sums[half]);
    }
    if (scaled.subs == 1) {
        sums[0] += sums[1];
        x_sums[0] += x_sums[1];
    }
    float scale = params.x_scales[cell];
    ScaledTerms terms;
#pragma unroll
    for (u32 sub = 0; sub < 2; sub++) {
        terms.sums[sub] = static_cast<float>(sums[sub]);
        terms.factors[sub] = scale * own.scales[sub];
        terms.x_sums[sub] = scale * static_cast<float>(x_sums[sub]);
    }
    return terms;
}

// Goes on with a sum: the terms of so many lanes, in ascending order.
DEVICE float add_terms(const Scaled& scaled, const ScaledTerms& terms, const ScaledGroup& own, u32 lanes, float sum) {
    for (u32 lane = 0; lane < lanes; lane++) {
#pragma unroll
        for (u32 sub = 0; sub < 2; sub++) {
            if (sub < scaled.subs) {
                float next = __shfl_sync(FULL_WARP, terms.sums[sub], lane);
                sum = fused(next, __shfl_sync(FULL_WARP, terms.factors[sub], lane), sum);
            }
        }
#pragma unroll
        for (u32 sub = 0; sub < 2; sub++) {
            if (sub < scaled.subs && scaled.minima) {
                float next = __shfl_sync(FULL_WARP, terms.x_sums[sub], lane);
                sum = fused(next, __shfl_sync(FULL_WARP, own.minima[sub], lane), sum);
            }
        }
    }
    return sum;
}

// A row of a matrix times up to eight rows of activations.
DEVICE void row_products(const ProductParams& params, const Matrix& matrix, const Scaled& scaled, u32 level, u32 row,
                         const Pair* pairs, u32 count, float sums[PAIRS]) {
    for (u32 first = 0; first < matrix.groups; first += WARP) {
        u32 group = first + lane_of_thread();
        u32 lanes = matrix.groups - first < WARP ? matrix.groups - first : WARP;
        ScaledGroup own = {};
        if (group < matrix.groups) {
            read_group(matrix, scaled, level, row, group, own);
        }
#pragma unroll
        for (u32 r = 0; r < PAIRS; r++) {
            if (r < count) {
                ScaledTerms terms = {};
                if (group < matrix.groups) {
                    terms = terms_of(params, scaled, own, static_cast<u64>(pairs[r].x_row) * params.x_groups + group);
                }
                sums[r] = add_terms(scaled, terms, own, lanes, sums[r]);
            }
        }
    }
}

KERNEL_OF_MANY_REGISTERS(THREADS, matvec_scaled, ProductParams) {
    const Block& block = params.blocks[blockIdx.y];
    u32 row = block.first_row + blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    // A block that is another's has no rows, and names no matrix that is there.
    if (row >= block.end_row) {
        return;
    }
    const Matrix& matrix = *block.matrix;
    u32 level = prefix_of(matrix, block.level);
    if (level == NO_LEVEL) {
        return;
    }
    Scaled scaled = read_scaled(matrix, level);
    u32 from_first = row - block.first_row;
    for (u32 first = 0; first < block.pairs; first += PAIRS) {
        u32 count = block.pairs - first < PAIRS ? block.pairs - first : PAIRS;
        const Pair* pairs = params.pairs + block.first_pair + first;
        float sums[PAIRS] = {};
        row_products(params, matrix, scaled, level, row, pairs, count, sums);
#pragma unroll
        for (u32 r = 0; r < PAIRS; r++) {
            if (r < count && lane_of_thread() == 0) {
                float* out = params.out + static_cast<u64>(pairs[r].out_row) * params.out_cols + block.out_col + from_first;
                float value = block.bias ? sums[r] + block.bias[from_first] : sums[r];
                *out = params.adds ? *out + value : value;
            }
        }
    }
}
