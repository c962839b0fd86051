// Keeps values within a cap: `x = cap * tanh(x / cap)`, element by element.

#include "element.cuh"

KERNEL(ELEMENT_THREADS, softcap, ScalarParams) {
    u64 at = element_of_thread();
    if (at < params.count) {
        params.x[at] = params.value * tanh_of(params.x[at] / params.value);
    }
}
