// Joins gate and up of feed-forward parts, for a product with float activations.

#include "gated.cuh"

KERNEL(GATED_THREADS, gated, GatedParams) {
    u64 cell;
    u32 col;
    float value;
    if (gated_value(params, cell, col, value) && col < params.cols) {
        params.out[cell / ((params.cols + 31) / 32) * params.cols + col] = value;
    }
}
