// The column of the largest of every row, from what `argmax` found in its parts. A block for each row.

#include "argmax.cuh"

KERNEL(ARGMAX_THREADS, argmax_merge, ArgmaxMergeParams) {
    u64 first = static_cast<u64>(blockIdx.x) * params.parts;
    Largest best = {0, NONE};
    for (u32 part = threadIdx.x; part < params.parts; part += ARGMAX_THREADS) {
        Largest other = {params.orders[first + part], params.columns[first + part]};
        if (is_before(other, best)) {
            best = other;
        }
    }
    best = largest_of_block(best);
    if (threadIdx.x == 0) {
        params.out[blockIdx.x] = best.column;
    }
}
