// What the heads of a gated DeltaNet layer gave, normed and multiplied with `silu(gate)`. A warp for
// each head of each row.

#include "math.cuh"

#define THREADS 128u

KERNEL(THREADS, delta_net_gate, DeltaNetParams) {
    u64 index = static_cast<u64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    u64 row = index / params.value_heads, head = index % params.value_heads;
    if (row >= params.rows) {
        return;
    }
    float* out = params.out + index * params.value_dim;
    const float* gate = params.projected + row * params.stride + params.channels + head * params.value_dim;
    float scale = norm_scale(out, params.value_dim, params.eps);
    __syncwarp();
    for (u32 i = lane_of_thread(); i < params.value_dim; i += WARP) {
        out[i] = ((out[i] * scale) * params.norm[i]) * silu(gate[i]);
    }
}
