// Multiplies by gates: `out *= function(gate)`, where each gate multiplies adjacent elements.

#include "element.cuh"
#include "softplus.cuh"

KERNEL(ELEMENT_THREADS, gate, GateParams) {
    u64 at = element_of_thread();
    if (at < params.count) {
        float x = params.gate[at / params.width];
        params.out[at] *= params.is_softplus ? softplus(x) : sigmoid(x);
    }
}
