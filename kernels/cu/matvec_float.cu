// Products with float activations: float matrices (routers), and nested ones whose weights alone are
// judged.
//
// A block computes four rows of a matrix for four rows of activations at a time. All threads bring 512
// columns of both to shared memory; then lane l of a row adds up the columns l, l + 16, ... in ascending
// order, and the lanes are added 8 + 8, 4 + 4, 2 + 2, 1 + 1: the CPU's order, and its bits.

#include "weights.cuh"

#define THREADS 128u
#define ROWS 4u
#define PAIRS 4u
#define COLS 512u

struct FloatShared {
    float weights[ROWS][COLS];
    float x[PAIRS][COLS];
};

// Four sums of one lane: those of one row with the pairs from `first` on.
DEVICE void lane_sums(const ProductParams& params, const Block& block, u32 row, u32 first, u32 pairs,
                      FloatShared& shared, float sums[PAIRS]) {
    const Matrix& matrix = *block.matrix;
    u32 level = matrix.form >= FORM_TILE16 ? prefix_of(matrix, block.level) : 0;
    u32 own = threadIdx.x / 16, lane = threadIdx.x % 16;
    for (u32 start = 0; start < matrix.cols; start += COLS) {
        u32 cols = matrix.cols - start < COLS ? matrix.cols - start : COLS;
        __syncthreads();
        for (u32 at = threadIdx.x; at < ROWS * COLS; at += THREADS) {
            u32 r = at / COLS, col = at % COLS;
            if (col < cols && row + r < block.end_row) {
                shared.weights[r][col] = weight_at(matrix, level, row + r, start + col);
            }
            if (col < cols && r < pairs) {
                u64 x_row = params.pairs[block.first_pair + first + r].x_row;
                shared.x[r][col] = params.x[x_row * params.x_stride + start + col];
            }
        }
        __syncthreads();
        if (own < ROWS && row + own < block.end_row) {
            for (u32 col = lane; col < cols; col += 16) {
                float weight = shared.weights[own][col];
#pragma unroll
                for (u32 r = 0; r < PAIRS; r++) {
                    if (r < pairs) {
                        sums[r] = fused(weight, shared.x[r][col], sums[r]);
                    }
                }
            }
        }
    }
}

KERNEL(THREADS, matvec_float, ProductParams) {
    SHARED(FloatShared, shared);
    const Block& block = params.blocks[blockIdx.y];
    u32 row = block.first_row + blockIdx.x * ROWS, own = row + threadIdx.x / 16;
    if (row >= block.end_row) {
        return;
    }
    for (u32 first = 0; first < block.pairs; first += PAIRS) {
        u32 pairs = block.pairs - first < PAIRS ? block.pairs - first : PAIRS;
        float sums[PAIRS] = {0.0f, 0.0f, 0.0f, 0.0f};
        lane_sums(params, block, row, first, pairs, shared, sums);
#pragma unroll
        for (u32 r = 0; r < PAIRS; r++) {
            for (u32 distance = 8; distance > 0; distance /= 2) {
                sums[r] += __shfl_xor_sync(FULL_WARP, sums[r], distance);
            }
            if (threadIdx.x % 16 == 0 && threadIdx.x / 16 < ROWS && own < block.end_row && r < pairs) {
                u64 out_row = params.pairs[block.first_pair + first + r].out_row;
                float* out = params.out + out_row * params.out_cols + block.out_col + own - block.first_row;
                float value = block.bias ? sums[r] + block.bias[own - block.first_row] : sums[r];
                *out = params.adds ? *out + value : value;
            }
        }
    }
}
