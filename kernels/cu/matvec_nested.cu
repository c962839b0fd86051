// Products of nested matrices with one row of int8 activations a block: decode.

#include "matvec.cuh"

KERNEL(MATVEC_THREADS, matvec_nested, ProductParams) {
    MatvecTask task;
    MatvecRows rows;
    if (task_of(params, blockIdx.y, task, rows) && task.pairs == 1) {
        matvec<1, 128>(task, rows);
    }
}
