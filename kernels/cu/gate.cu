// Multiplies by sigmoids: `out *= sigmoid(gate)`, element by element.

#include "element.cuh"

KERNEL(ELEMENT_THREADS) gate(const GateParams params) {
    u64 at = element_of_thread();
    if (at < params.count) {
        params.out[at] *= sigmoid(params.gate[at]);
    }
}
