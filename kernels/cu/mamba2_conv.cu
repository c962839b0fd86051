// A Mamba-2 layer's convolution of every channel with the rows before it, then SiLU, and the rows that the next
// step sees. A thread for each channel of each run; rows pass in order.

#include "convolved.cuh"

#define THREADS 128u

KERNEL(THREADS, mamba2_conv, Mamba2Params) {
    u32 channel = blockIdx.x * THREADS + threadIdx.x;
    if (channel >= params.channels) {
        return;
    }
    float start = params.bias ? params.bias[channel] : 0.0f;
    convolve_channel(params.runs[blockIdx.y], channel, params.channels, params.taps, params.conv, start,
                     params.projected + params.heads * params.head_dim, params.stride, params.mixed);
}
