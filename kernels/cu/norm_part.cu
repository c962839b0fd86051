// Normalizes parts of rows in place, by their own root mean square. A warp for each part.

#include "math.cuh"

#define THREADS 256u

KERNEL(THREADS, norm_part, NormPartParams) {
    u32 part = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (part >= params.count) {
        return;
    }
    float* x = params.x + static_cast<u64>(part / params.parts) * params.row_stride + params.first +
               static_cast<u64>(part % params.parts) * params.part_stride;
    float scale = norm_scale(x, params.length, params.eps);
    __syncwarp();
    for (u32 i = lane_of_thread(); i < params.length; i += WARP) {
        x[i] = (x[i] * scale) * params.weight[i];
    }
}
