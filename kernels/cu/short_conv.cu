// A gated short convolution: the inputs times their gates, convolved with the rows before them, times the output
// gates; and the rows that the next step sees. A thread for each channel of each run; rows pass in order.

#include "math.cuh"

#define THREADS 128u
#define TAPS_MAX 16u

KERNEL(THREADS, short_conv, ShortConvParams) {
    u32 channel = blockIdx.x * THREADS + threadIdx.x, channels = params.channels;
    if (channel >= channels) {
        return;
    }
    StateRun run = params.runs[blockIdx.y];
    u32 before = params.taps - 1;
    float window[TAPS_MAX], weights[TAPS_MAX];
    for (u32 tap = 0; tap < params.taps; tap++) {
        weights[tap] = params.conv[tap * channels + channel];
        bool is_old = run.from && tap < before;
        window[tap] = is_old ? run.from[tap * channels + channel] : 0.0f;
    }
    float start = params.bias ? params.bias[channel] : 0.0f;
    for (u32 row = run.first_row; row < run.first_row + run.rows; row++) {
        const float* x = params.projected + static_cast<u64>(row) * 3 * channels + channel;
        window[before] = x[0] * x[2 * static_cast<u64>(channels)];
        float sum = start;
        for (u32 tap = 0; tap < params.taps; tap++) {
            sum = fused(weights[tap], window[tap], sum);
        }
        params.out[static_cast<u64>(row) * channels + channel] = x[channels] * sum;
        for (u32 tap = 0; tap < before; tap++) {
            window[tap] = window[tap + 1];
        }
    }
    for (u32 tap = 0; tap < before; tap++) {
        run.to[tap * channels + channel] = window[tap];
    }
}
