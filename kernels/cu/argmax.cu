// The column of the largest of every row, of equal ones the first, among so many first columns; NONE of a
// row that has a value, of all, that is not finite. A block for each row.
//
// Values are compared as integers of the same order.

#include "device.cuh"

#define THREADS 256u
#define NONE 0xffffffffu
// Above the order of every number.
#define DAMAGED 0xffffffffu

// Both zeros are equal; 0 is below every number.
DEVICE u32 order_of(u32 bits) {
    if ((bits & 0x7f800000) == 0x7f800000) {
        return DAMAGED;
    }
    if (bits << 1 == 0) {
        return 0x80000000;
    }
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

KERNEL(THREADS, argmax, ArgmaxParams) {
    __shared__ u32 orders[THREADS], places[THREADS];
    const u32* x = params.x + static_cast<u64>(blockIdx.x) * params.cols;
    u32 best = 0, place = NONE;
    for (u32 col = threadIdx.x; col < params.cols; col += THREADS) {
        u32 order = order_of(x[col]);
        if (order > best && (col < params.among || order == DAMAGED)) {
            best = order;
            place = order == DAMAGED ? NONE : col;
        }
    }
    orders[threadIdx.x] = best;
    places[threadIdx.x] = place;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            u32 other = threadIdx.x + half;
            bool is_larger = orders[other] > orders[threadIdx.x] ||
                             (orders[other] == orders[threadIdx.x] && places[other] < places[threadIdx.x]);
            if (is_larger) {
                orders[threadIdx.x] = orders[other];
                places[threadIdx.x] = places[other];
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        params.out[blockIdx.x] = places[0];
    }
}
