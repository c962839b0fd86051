// Multiplies by a constant.

#include "element.cuh"

KERNEL(ELEMENT_THREADS, scale, ScalarParams) {
    u64 at = element_of_thread();
    if (at < params.count) {
        params.x[at] *= params.value;
    }
}
