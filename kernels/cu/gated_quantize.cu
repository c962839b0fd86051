// Joins gate and up of feed-forward parts and quantizes what they give to int8, for a product with a
// nested matrix.

#include "gated.cuh"

KERNEL(GATED_THREADS, gated_quantize, GatedParams) {
    u64 cell;
    u32 col;
    float value;
    if (gated_value(params, cell, col, value)) {
        quantize_group(value, params.values + cell * 32, params.scales + cell);
    }
}
