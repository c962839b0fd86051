// Normalizes rows by their root mean square, or adds that to what is there.

#include "rms_norm.cuh"

KERNEL(NORM_THREADS, rms_norm, RmsNormParams) {
    u64 first = static_cast<u64>(blockIdx.x) * params.cols;
    const float* x = params.x + first;
    float* out = params.out + first;
    float scale = row_scale(params, x);
    for (u32 col = threadIdx.x; col < params.cols; col += NORM_THREADS) {
        float value = (x[col] * scale) * params.weight[col];
        out[col] = params.adds ? out[col] + value : value;
    }
}
