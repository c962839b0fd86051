// The column of the largest of every row's parts, of equal ones the first, among so many first columns; NONE
// of a part that has a value, of all, that is not finite. A block for each part of each row; where a row
// has several, `argmax_merge` chooses between them.

#include "argmax.cuh"

// Both zeros are equal; 0 is below every number.
DEVICE u32 order_of(u32 bits) {
    if ((bits & 0x7f800000) == 0x7f800000) {
        return DAMAGED;
    }
    if (bits << 1 == 0) {
        return 0x80000000;
    }
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

KERNEL(ARGMAX_THREADS, argmax, ArgmaxParams) {
    u32 part = blockIdx.x, row = blockIdx.y, first = part * params.part_cols;
    u32 left = params.cols - first, cols = left < params.part_cols ? left : params.part_cols;
    const u32* x = params.x + static_cast<u64>(row) * params.cols + first;
    Largest best = {0, NONE};
    for (u32 at = threadIdx.x; at < cols; at += ARGMAX_THREADS) {
        u32 order = order_of(x[at]), column = first + at;
        if (order > best.order && (column < params.among || order == DAMAGED)) {
            best.order = order;
            best.column = order == DAMAGED ? NONE : column;
        }
    }
    best = largest_of_block(best);
    if (threadIdx.x == 0) {
        u64 place = static_cast<u64>(row) * params.parts + part;
        params.orders[place] = best.order;
        params.columns[place] = best.column;
    }
}
