// The largest among numbers that come in no order: of equal ones the first, and none beside one that is not
// finite. Values are compared as integers of the same order.
#pragma once

#include "device.cuh"

#define ARGMAX_THREADS 256u
#define NONE 0xffffffffu
// Above the order of every number.
#define DAMAGED 0xffffffffu

// What is largest so far: its order, 0 for nothing, and its column, NONE for what is not finite.
struct Largest {
    u32 order, column;
};

DEVICE bool is_before(Largest a, Largest b) {
    return a.order > b.order || (a.order == b.order && a.column < b.column);
}

// The largest that the threads of a block found, in all of them.
DEVICE Largest largest_of_block(Largest found) {
    SHARED_ARRAY(Largest, all, ARGMAX_THREADS);
    all[threadIdx.x] = found;
    __syncthreads();
    for (u32 half = ARGMAX_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half && is_before(all[threadIdx.x + half], all[threadIdx.x])) {
            all[threadIdx.x] = all[threadIdx.x + half];
        }
        __syncthreads();
    }
    return all[0];
}
