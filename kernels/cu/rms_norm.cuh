// Rows by their root mean square: `out = x / sqrt(mean(x^2) + eps) * weight`. One block for each row.
#pragma once

#include "group.cuh"

#define NORM_THREADS 256u

// What a row is multiplied by.
DEVICE float row_scale(const RmsNormParams& params, const float* x) {
    float squares = 0.0f;
    for (u32 col = threadIdx.x; col < params.cols; col += NORM_THREADS) {
        squares = fused(x[col], x[col], squares);
    }
    float mean = sum_of_block<NORM_THREADS>(squares) / static_cast<float>(params.cols);
    return 1.0f / sqrtf(mean + params.eps);
}
