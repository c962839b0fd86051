// The gated outputs of a Mamba-2 layer, normed group by group, in place. A warp for each group of each row.

#include "math.cuh"

#define THREADS 128u

KERNEL(THREADS, mamba2_norm, Mamba2Params) {
    u64 index = static_cast<u64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    if (index >= static_cast<u64>(params.rows) * params.groups) {
        return;
    }
    u32 width = params.heads * params.head_dim / params.groups;
    float* out = params.out + index * width;
    const float* norm = params.norm + index % params.groups * width;
    float scale = norm_scale(out, width, params.eps);
    __syncwarp();
    for (u32 i = lane_of_thread(); i < width; i += WARP) {
        out[i] = (out[i] * scale) * norm[i];
    }
}
