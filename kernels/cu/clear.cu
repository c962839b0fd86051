// Makes elements zero.

#include "element.cuh"

KERNEL(ELEMENT_THREADS, clear, ScalarParams) {
    u64 at = element_of_thread();
    if (at < params.count) {
        params.x[at] = 0.0f;
    }
}
