// Activations to int8 in groups of 32 columns, half to even: what nested matrices are multiplied with.
// A warp for each group.

#include "group.cuh"

#define THREADS 256u

KERNEL(THREADS, quantize, QuantizeParams) {
    u32 groups = (params.cols + 31) / 32;
    u64 cell = static_cast<u64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    if (cell >= static_cast<u64>(params.rows) * params.parts * groups) {
        return;
    }
    u64 place = cell / groups;
    u32 col = static_cast<u32>(cell % groups) * 32 + lane_of_thread();
    const float* x = params.x + place / params.parts * params.stride +
                     place % params.parts * params.part_stride;
    float value = col < params.cols ? x[col] : 0.0f;
    if (params.is_rotated) {
        value = rotated(value);
    }
    quantize_group(value, params.values + cell * 32, params.scales + cell);
}
