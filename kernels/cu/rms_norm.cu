// Normalizes rows by their root mean square: `out = x / sqrt(mean(x^2) + eps) * weight`, or adds that
// to `out`. One block for each row.

#include "reduce.cuh"

#define THREADS 256u

KERNEL(THREADS, rms_norm, RmsNormParams) {
    u64 first = static_cast<u64>(blockIdx.x) * params.cols;
    const float* x = params.x + first;
    float* out = params.out + first;
    float squares = 0.0f;
    for (u32 col = threadIdx.x; col < params.cols; col += THREADS) {
        squares = fused(x[col], x[col], squares);
    }
    float mean = sum_of_block<THREADS>(squares) / static_cast<float>(params.cols);
    float scale = 1.0f / sqrtf(mean + params.eps);
    for (u32 col = threadIdx.x; col < params.cols; col += THREADS) {
        float value = (x[col] * scale) * params.weight[col];
        out[col] = params.adds ? out[col] + value : value;
    }
}
