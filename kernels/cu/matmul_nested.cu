// Products of nested matrices with up to 64 rows of int8 activations a block, on tensor cores: prompts and
// batches, blocks of all experts at all levels in one launch.

#include "matmul.cuh"

KERNEL(MATMUL_THREADS, matmul_nested, ProductParams) {
    SHARED(MatmulShared, shared);
    const Block& block = params.blocks[blockIdx.y];
    u32 tile = block.first_row / 16 + blockIdx.x * (MATMUL_THREADS / WARP);
    if (tile * 16 >= block.end_row) {
        return;
    }
    tile += threadIdx.x / WARP;
    switch (prefix_of(*block.matrix, block.level)) {
    case LEVEL_2:
        return matmul_at<LEVEL_2>(params, block, tile, shared);
    case LEVEL_3:
        return matmul_at<LEVEL_3>(params, block, tile, shared);
    case LEVEL_4:
        return matmul_at<LEVEL_4>(params, block, tile, shared);
    case LEVEL_6:
        return matmul_at<LEVEL_6>(params, block, tile, shared);
    case LEVEL_8:
        return matmul_at<LEVEL_8>(params, block, tile, shared);
    default:
        return;
    }
}
