// A gated DeltaNet layer's convolution of every column with the rows before it, then SiLU, and the rows
// that the next step sees. A thread for each column of each run; rows pass in order.

#include "math.cuh"

#define THREADS 128u
#define TAPS_MAX 16u

KERNEL(THREADS, delta_net_conv, DeltaNetParams) {
    u32 channel = blockIdx.x * THREADS + threadIdx.x;
    if (channel >= params.channels) {
        return;
    }
    StateRun run = params.runs[blockIdx.y];
    u32 before = params.taps - 1;
    float window[TAPS_MAX], weights[TAPS_MAX];
    for (u32 tap = 0; tap < params.taps; tap++) {
        weights[tap] = params.conv[tap * params.channels + channel];
        bool is_old = run.from && tap < before;
        window[tap] = is_old ? run.from[tap * params.channels + channel] : 0.0f;
    }
    for (u32 row = run.first_row; row < run.first_row + run.rows; row++) {
        window[before] = params.projected[static_cast<u64>(row) * params.stride + channel];
        float sum = 0.0f;
        for (u32 tap = 0; tap < params.taps; tap++) {
            sum = fused(weights[tap], window[tap], sum);
        }
        params.mixed[static_cast<u64>(row) * params.channels + channel] = silu(sum);
        for (u32 tap = 0; tap < before; tap++) {
            window[tap] = window[tap + 1];
        }
    }
    for (u32 tap = 0; tap < before; tap++) {
        run.to[tap * params.channels + channel] = window[tap];
    }
}
