// Causal convolutions of recurrent layers, then SiLU. A thread takes one channel of one run; rows pass in order.
#pragma once

#include "math.cuh"

#define TAPS_MAX 16u

// Convolves a channel of `inputs`, whose rows are `stride` apart, with the rows before them, and writes the rows
// that the next step sees. `mixed` is [T, channels].
DEVICE void convolve_channel(const StateRun& run, u32 channel, u32 channels, u32 taps, const float* conv,
                             float start, const float* inputs, u32 stride, float* mixed) {
    u32 before = taps - 1;
    float window[TAPS_MAX], weights[TAPS_MAX];
    for (u32 tap = 0; tap < taps; tap++) {
        weights[tap] = conv[tap * channels + channel];
        bool is_old = run.from && tap < before;
        window[tap] = is_old ? run.from[tap * channels + channel] : 0.0f;
    }
    for (u32 row = run.first_row; row < run.first_row + run.rows; row++) {
        window[before] = inputs[static_cast<u64>(row) * stride + channel];
        float sum = start;
        for (u32 tap = 0; tap < taps; tap++) {
            sum = fused(weights[tap], window[tap], sum);
        }
        mixed[static_cast<u64>(row) * channels + channel] = silu(sum);
        for (u32 tap = 0; tap < before; tap++) {
            window[tap] = window[tap + 1];
        }
    }
    for (u32 tap = 0; tap < before; tap++) {
        run.to[tap * channels + channel] = window[tap];
    }
}
