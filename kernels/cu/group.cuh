// One group of 32 activations, a lane each: rotated, and quantized to int8.
#pragma once

#include "reduce.cuh"

// The Walsh-Hadamard transform: sums and differences at distances 1, 2, 4, 8 and 16, then one
// multiplication by 2^(-5/2).
DEVICE float rotated(float value) {
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        float other = __shfl_xor_sync(FULL_WARP, value, distance);
        value = lane_of_thread() & distance ? other - value : value + other;
    }
    return value * __uint_as_float(0x3e3504f3u);
}

// Half to even; the scale is the largest magnitude by 127. Magnitudes are compared by their bits, so
// that what is not finite reaches the scale.
DEVICE void quantize_group(float value, i8* values, float* scale) {
    u32 largest = max_of_warp(__float_as_uint(value) & 0x7fffffffu);
    float amax = __uint_as_float(largest);
    float factor = largest ? 127.0f / amax : 0.0f;
    float scaled = value * factor;
    // Nothing in a group of which 127 is infinitely often the largest.
    scaled = scaled != scaled ? 0.0f : scaled;
    scaled = scaled > 127.0f ? 127.0f : scaled;
    scaled = scaled < -127.0f ? -127.0f : scaled;
    // Added to a float of magnitude below 2^22, leaves the nearest integer in the low bits.
    const float round = 12582912.0f;
    values[lane_of_thread()] = static_cast<i8>(__float_as_int(scaled + round));
    if (lane_of_thread() == 0) {
        *scale = amax / 127.0f;
    }
}
