// Rows of a table: `out[t] = table[tokens[t]]`, each at its level. A block for 256 columns of a row.

#include "weights.cuh"

#define THREADS 256u

KERNEL(THREADS, embed, EmbedParams) {
    u32 row = blockIdx.y, col = blockIdx.x * THREADS + threadIdx.x;
    const Matrix& table = *params.table;
    if (row >= params.rows || col >= params.cols || params.tokens[row] >= table.rows) {
        return;
    }
    u32 level = prefix_of(table, params.levels[row]);
    params.out[static_cast<u64>(row) * params.cols + col] =
        weight_at(table, level, params.tokens[row], col);
}
