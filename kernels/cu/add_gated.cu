// Adds rows that are multiplied by a sigmoid each: `out[t] += sigmoid(gate[t]) * x[t]`.

#include "element.cuh"

KERNEL(ELEMENT_THREADS, add_gated, AddGatedParams) {
    u64 at = element_of_thread();
    if (at < static_cast<u64>(params.rows) * params.cols) {
        params.out[at] = fused(sigmoid(params.gate[at / params.cols]), params.x[at], params.out[at]);
    }
}
