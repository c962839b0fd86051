// Gate and up of feed-forward parts, which lie in one row, gate in front: a warp for each group of 32.
#pragma once

#include "group.cuh"
#include "math.cuh"

#define GATED_THREADS 256u

// The number of a lane, and where its group is. False: there is no such group.
DEVICE bool gated_value(const GatedParams& params, u64& cell, u32& col, float& value) {
    u32 groups = (params.cols + 31) / 32;
    cell = static_cast<u64>(blockIdx.x) * (GATED_THREADS / WARP) + threadIdx.x / WARP;
    if (cell >= static_cast<u64>(params.rows) * groups) {
        return false;
    }
    col = static_cast<u32>(cell % groups) * 32 + lane_of_thread();
    const float* gate = params.x + cell / groups * 2 * params.cols;
    value = 0.0f;
    if (col < params.cols) {
        value = activation(params.kind, gate[col], gate[col + params.cols], params.alpha, params.limit);
    }
    if (params.is_rotated) {
        value = rotated(value);
    }
    return true;
}
