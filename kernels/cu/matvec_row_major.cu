// Products of nested matrices that lie row after row, as tables for gathers do, and int8 activations.
//
// A warp takes a row: its lanes a group each, whose exact sums then pass through the warp in ascending
// order: acc = fma(sum, activation scale * weight scale, acc).

#include "weights.cuh"

#define THREADS 128u

DEVICE float row_product(const ProductParams& params, const Matrix& matrix, u32 level, u32 row, u32 x_row) {
    Codec codec = read_codec(matrix);
    float total = 0.0f;
    for (u32 first = 0; first < matrix.groups; first += WARP) {
        u32 group = first + lane_of_thread();
        float sum = 0.0f, scale = 0.0f;
        if (group < matrix.groups) {
            u64 cell = static_cast<u64>(x_row) * params.x_groups + group;
            int exact = 0;
            for (u32 k = 0; k < 32; k++) {
                u32 code = code_at(matrix, level, row, group * 32 + k);
                exact += value_of_code(matrix, codec, level, row, code) * params.x_values[cell * 32 + k];
            }
            sum = static_cast<float>(exact);
            scale = params.x_scales[cell] * weight_scale(matrix, codec, level, row, group);
        }
        u32 groups = matrix.groups - first < WARP ? matrix.groups - first : WARP;
        for (u32 i = 0; i < groups; i++) {
            float next = __shfl_sync(FULL_WARP, sum, i), factor = __shfl_sync(FULL_WARP, scale, i);
            total = fused(next, factor, total);
        }
    }
    return total;
}

KERNEL_OF_MANY_REGISTERS(THREADS, matvec_row_major, ProductParams) {
    const Block& block = params.blocks[blockIdx.y];
    const Matrix& matrix = *block.matrix;
    u32 level = prefix_of(matrix, block.level);
    u32 row = block.first_row + blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (row >= block.end_row || level == NO_LEVEL) {
        return;
    }
    for (u32 r = 0; r < block.pairs; r++) {
        Pair pair = params.pairs[block.first_pair + r];
        float value = row_product(params, matrix, level, row, pair.x_row);
        u32 from_first = row - block.first_row;
        float* out = params.out + static_cast<u64>(pair.out_row) * params.out_cols + block.out_col + from_first;
        if (lane_of_thread() == 0) {
            value = block.bias ? value + block.bias[from_first] : value;
            *out = params.adds ? *out + value : value;
        }
    }
}
