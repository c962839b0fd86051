// Products of gates and ups with one row of int8 activations each, joined and quantized to int8 as the
// next product takes them: decode. A block of two teams, one for each matrix, computes a group of 32.

#include "gated.cuh"
#include "matvec.cuh"

KERNEL(2 * MATVEC_THREADS, matvec_gated_quantize, GatedProductParams) {
    typedef MatvecShared<1, 128> Shared;
    SHARED_ARRAY(Shared, shared, 2);
    SHARED_ARRAY(float, ups, 32);
    u32 team = threadIdx.x / MATVEC_THREADS, thread = thread_of_team();
    MatvecTask task;
    MatvecRows rows;
    bool has_task = task_of(params.products, 2 * blockIdx.y + team, task, rows) && task.level != NO_LEVEL;
    // One without the other computes nothing.
    if (__syncthreads_or(!has_task)) {
        return;
    }
    u32 row = task.tile * 16 + thread;
    float product = matvec_sum_of<1, 128, 2>(task, rows, shared[team]);
    if (task.bias && thread < 32 && row < task.end_row) {
        product += task.bias[row];
    }
    if (team == 1 && thread < 32) {
        ups[thread] = product;
    }
    __syncthreads();
    if (threadIdx.x >= WARP) {
        return;
    }
    float value = 0.0f;
    if (row < task.end_row) {
        value = activation(params.kind, product, ups[thread], params.alpha, params.limit);
    }
    if (params.is_rotated) {
        value = rotated(value);
    }
    u64 cell = static_cast<u64>(rows.pairs[0].out_row) * ((task.end_row + 31) / 32) + blockIdx.x;
    quantize_group(value, params.values + cell * 32, params.scales + cell);
}
