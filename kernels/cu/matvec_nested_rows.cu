// Products of nested matrices with two to eight rows of int8 activations a block; one tile a block.

#include "matvec.cuh"

KERNEL_OF_MANY_REGISTERS(MATVEC_THREADS, matvec_nested_rows, ProductParams) {
    MatvecTask task;
    MatvecRows rows;
    if (task_of(params, blockIdx.y, task, rows) && task.pairs > 1) {
        matvec<8, 32>(task, rows);
    }
}
