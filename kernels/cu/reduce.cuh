// Sums and maxima over a warp or a block, in a tree that is fixed by the block's size alone.
#pragma once

#include "device.cuh"

DEVICE float sum_of_warp(float value) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(FULL_WARP, value, distance);
    }
    return value;
}

// NaN is passed over.
DEVICE float max_of_warp(float value) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        float other = __shfl_xor_sync(FULL_WARP, value, distance);
        value = other > value ? other : value;
    }
    return value;
}

DEVICE u32 max_of_warp(u32 value) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        u32 other = __shfl_xor_sync(FULL_WARP, value, distance);
        value = other > value ? other : value;
    }
    return value;
}

// The sum over a block of whole warps, in all threads.
template <u32 THREADS>
DEVICE float sum_of_block(float value) {
    SHARED_ARRAY(float, warps, THREADS / WARP);
    value = sum_of_warp(value);
    if (lane_of_thread() == 0) {
        warps[threadIdx.x / WARP] = value;
    }
    __syncthreads();
    float sum = 0.0f;
    for (u32 i = 0; i < THREADS / WARP; i++) {
        sum += warps[i];
    }
    __syncthreads();
    return sum;
}
