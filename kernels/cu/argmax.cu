// The largest of every row; of equal ones the first. NaN counts as largest, so that it is not lost. A
// block for each row.

#include "device.cuh"

#define THREADS 256u

// An integer of the same order; both zeros are equal.
DEVICE u32 order_of(float value) {
    u32 bits = value == 0.0f ? 0 : __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return 0xffffffff;
    }
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

KERNEL(THREADS, argmax, ArgmaxParams) {
    __shared__ u32 orders[THREADS], places[THREADS];
    const float* x = params.x + static_cast<u64>(blockIdx.x) * params.cols;
    u32 best = 0, place = 0xffffffff;
    for (u32 col = threadIdx.x; col < params.cols; col += THREADS) {
        u32 order = order_of(x[col]);
        if (order > best || place == 0xffffffff) {
            best = order;
            place = col;
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
