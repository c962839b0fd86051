// One thread for each element.
#pragma once

#include "math.cuh"

#define ELEMENT_THREADS 256u

DEVICE u64 element_of_thread() {
    return static_cast<u64>(blockIdx.x) * ELEMENT_THREADS + threadIdx.x;
}
