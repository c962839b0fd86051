// Normalizes rows by their root mean square, and quantizes them to int8 as products take them: a warp for
// each group of 32.

#include "rms_norm.cuh"

KERNEL(NORM_THREADS, rms_norm_quantize, RmsNormParams) {
    u64 first = static_cast<u64>(blockIdx.x) * params.cols;
    u32 groups = (params.cols + 31) / 32;
    const float* x = params.x + first;
    float scale = row_scale(params, x);
    for (u32 group = threadIdx.x / WARP; group < groups; group += NORM_THREADS / WARP) {
        u32 col = group * 32 + lane_of_thread();
        float value = 0.0f;
        if (col < params.cols) {
            value = (x[col] * scale) * params.weight[col];
            params.out[first + col] = value;
        }
        u64 cell = static_cast<u64>(blockIdx.x) * groups + group;
        quantize_group(value, params.values + cell * 32, params.scales + cell);
    }
}
