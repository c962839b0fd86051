// Adds up the splits of every head in ascending order. A block for each head of each row.

#include "attend.cuh"

KERNEL(ATTEND_THREADS, attend_merge, AttendParams) {
    u32 index = blockIdx.x, row = index / params.heads, width = params.value_dim + 2;
    if (row >= params.rows) {
        return;
    }
    u32 end = params.places[row].position + 1;
    u32 start = end > params.window ? end - params.window : 0;
    const float* parts = params.parts + static_cast<u64>(index) * params.splits * width;
    float* out = params.out + static_cast<u64>(index) * params.value_dim;
    for (u32 i = threadIdx.x; i < params.value_dim; i += ATTEND_THREADS) {
        AttentionState total = {NEGATIVE_INFINITY, 0.0f};
        float gathered = 0.0f;
        for (u32 split = start / (SPLIT_PAGES * PAGE_POSITIONS); split < splits_of(end); split++) {
            const float* part = parts + static_cast<u64>(split) * width;
            float2 factors = merge(total, part[0], part[1]);
            gathered = fused(gathered, factors.x, part[2 + i] * factors.y);
        }
        out[i] = finished(params, index % params.heads, total, gathered);
    }
}
