// Multiplies by sigmoids: `out *= sigmoid(gate)`, element by element.

#include "element.cuh"

KERNEL(ELEMENT_THREADS, gate, GateParams) {
    u64 at = element_of_thread();
    if (at < params.count) {
        params.out[at] *= sigmoid(params.gate[at]);
    }
}
