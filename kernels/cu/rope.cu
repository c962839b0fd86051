// Norms the heads of queries and keys where they have a norm each, before or after rotating pairs of their
// elements by the angles of the row's position. A warp for each head of each row.

#include "math.cuh"

#define THREADS 128u

DEVICE void norm_head(float* x, const float* weight, u32 length, float eps) {
    float scale = norm_scale(x, length, eps);
    __syncwarp();
    for (u32 i = lane_of_thread(); i < length; i += WARP) {
        x[i] = (x[i] * scale) * weight[i];
    }
}

KERNEL(THREADS, rope, RopeParams) {
    u32 heads = params.queries + params.keys;
    u64 index = static_cast<u64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    if (index >= static_cast<u64>(params.rows) * heads) {
        return;
    }
    u64 row = index / heads;
    u32 head = static_cast<u32>(index % heads), lane = lane_of_thread();
    bool is_key = head >= params.queries;
    float* x = params.x + row * params.stride + static_cast<u64>(head) * params.head_dim;
    u32 length = is_key ? params.key_norm : params.query_norm;
    const float* weight = is_key ? params.key_weight : params.query_weight;
    bool is_late = (params.late_norms & (is_key ? 2u : 1u)) != 0;
    if (length > 0 && !is_late) {
        norm_head(x, weight, length, params.eps);
        __syncwarp();
    }
    u32 half = params.rope_dims / 2;
    const float* cosines = params.angles + row * params.rope_dims;
    for (u32 i = lane; i < half; i += WARP) {
        u32 a = params.rope_first + (params.is_adjacent ? 2 * i : i);
        u32 b = params.is_adjacent ? a + 1 : a + half;
        float cosine = cosines[i], sine = cosines[half + i], left = x[a], right = x[b];
        x[a] = left * cosine - right * sine;
        x[b] = right * cosine + left * sine;
    }
    if (length > 0 && is_late) {
        __syncwarp();
        norm_head(x, weight, length, params.eps);
    }
}
