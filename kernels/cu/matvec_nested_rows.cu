// Products of nested matrices with up to eight rows of int8 activations a block; one tile a block.

#include "matvec.cuh"

KERNEL(MATVEC_THREADS) matvec_nested_rows(const ProductParams params) {
    MatvecTask task;
    MatvecRows rows;
    if (task_of(params, task, rows)) {
        matvec<8, 32>(task, rows);
    }
}
