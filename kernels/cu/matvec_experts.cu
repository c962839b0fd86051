// Products of the experts that a router chose, found on the device: gate and up of every use, side by
// side, or down. One launch for all experts at all levels.

#include "matvec.cuh"

KERNEL(MATVEC_THREADS) matvec_experts(const ExpertProductParams params) {
    u32 matrices = params.first_matrix == 0 ? 2 : 1;
    u32 use = blockIdx.y / matrices, which = blockIdx.y % matrices;
    u32 expert = params.ids[use], token = use / params.per_token;
    if (expert >= params.experts) {
        return;
    }
    const Matrix* matrix = params.matrices + expert * 3 + params.first_matrix + which;
    u32 tiles = (matrix->rows + 15) / 16;
    MatvecTask task;
    task.tile = blockIdx.x * params.tiles_per_block;
    if (task.tile >= tiles) {
        return;
    }
    u32 left = tiles - task.tile;
    task.tiles = left < params.tiles_per_block ? left : params.tiles_per_block;
    task.matrix = matrix;
    task.bias = nullptr;
    task.level = prefix_of(*matrix, params.levels[token]);
    task.first_row = 0;
    task.end_row = matrix->rows;
    task.out_col = which * matrix->rows;
    task.pairs = 1;
    Pair pair = {params.x_per_token ? token : use, use};
    MatvecRows rows;
    rows.pairs = &pair;
    rows.x_values = params.x_values;
    rows.x_scales = params.x_scales;
    rows.out = params.out;
    rows.x_groups = params.x_groups;
    rows.out_cols = params.out_cols;
    rows.adds = false;
    matvec<1, 128>(task, rows);
}
