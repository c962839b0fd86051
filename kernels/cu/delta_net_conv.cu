// A gated DeltaNet layer's convolution of every column with the rows before it, then SiLU, and the rows
// that the next step sees. A thread for each column of each run; rows pass in order.

#include "convolved.cuh"

#define THREADS 128u

KERNEL(THREADS, delta_net_conv, DeltaNetParams) {
    u32 channel = blockIdx.x * THREADS + threadIdx.x;
    if (channel >= params.channels) {
        return;
    }
    convolve_channel(params.runs[blockIdx.y], channel, params.channels, params.taps, params.conv, 0.0f,
                     params.projected, params.stride, params.mixed);
}
