// Rows by their numbers: `out[i] = x[indices[i]]`.

#include "element.cuh"

KERNEL(ELEMENT_THREADS, gather_rows, GatherRowsParams) {
    u64 at = element_of_thread();
    if (at < static_cast<u64>(params.rows) * params.cols) {
        u64 row = params.indices[at / params.cols];
        params.out[at] = params.x[row * params.cols + at % params.cols];
    }
}
