// Products of nested matrices and int8 activations, for few rows of activations.
//
// Four warps share the cells of some tiles. A lane takes 16 bytes of each plane: one vector of four
// rows, so that a warp reads four cells, 512 bytes that lie together. What two lanes have of a group is
// added exactly; sums and scales go to shared memory, and then a thread for each row adds them up in
// ascending order: acc = fma(sum, activation scale * weight scale, acc). Blocks are small, so that
// others read while one adds up.
#pragma once

#include "nested.cuh"

#define MATVEC_THREADS 128u

// A product is computed by a team of so many threads: a block, or one of two that share one.
DEVICE u32 thread_of_team() { return threadIdx.x % MATVEC_THREADS; }

template <u32 TEAMS>
DEVICE void wait_for_team(CALLER) {
    if (TEAMS == 1) {
        __syncthreads(CALLER_LINE);
    } else if (threadIdx.x < MATVEC_THREADS) {
        wait_at_barrier<1, MATVEC_THREADS>(CALLER_LINE);
    } else {
        wait_at_barrier<2, MATVEC_THREADS>(CALLER_LINE);
    }
}

// What one team computes.
struct MatvecTask {
    const Matrix* matrix;
    const float* bias;
    u32 level; // prefix of the codes
    u32 tile;  // the first one
    u32 tiles;
    u32 first_row;
    u32 end_row;
    u32 out_col;
    u32 pairs;
};

// Where the activations are, and the products go.
struct MatvecRows {
    const Pair* pairs;
    const i8* x_values;
    const float* x_scales;
    float* out;
    u32 x_groups;
    u32 out_cols;
    bool adds;
};

// Sums and scales of so many cells and rows of activations.
template <u32 PAIRS, u32 CELLS>
struct MatvecShared {
    float2 parts[PAIRS][CELLS][16];
    float factors[32];
    FineTable fine;
};

struct Cell {
    u32 tile, group;
    u64 index;
};

// What a lane reads of a cell's planes: one vector of four rows.
struct Planes {
    uint4 p2, p3, p4, p6, p8;
};

template <u32 LEVEL>
DEVICE Planes read_planes(const Matrix& matrix, const Cell& cell) {
    u32 lane = lane_of_thread(), vector = lane / 4 % 2, quad = lane % 4;
    u64 two = cell.index * 128 + vector * 64 + quad * 16, one = cell.index * 64 + quad * 16;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    Planes planes = {load_once(matrix.p2 + two), zero, zero, zero, zero};
    if (LEVEL >= LEVEL_3) {
        planes.p3 = load_once(matrix.p3 + (matrix.is_merged ? two : one));
    }
    if (LEVEL >= LEVEL_4 && !matrix.is_merged) {
        planes.p4 = load_once(matrix.p4 + one);
    }
    if (LEVEL >= LEVEL_6) {
        planes.p6 = load_once(matrix.p6 + two);
    }
    if (LEVEL >= LEVEL_8) {
        planes.p8 = load_once(matrix.p8 + two);
    }
    return planes;
}

DEVICE u32 word_of(const uint4& words, u32 row) {
    return row == 0 ? words.x : row == 1 ? words.y : row == 2 ? words.z : words.w;
}

template <u32 LEVEL>
DEVICE Digits digits_of(const Planes& planes, u32 row, u32 vector, bool is_merged) {
    u32 third = word_of(planes.p3, row), fourth = word_of(planes.p4, row);
    Digits digits;
    digits.p2 = word_of(planes.p2, row);
    digits.middle = LEVEL == LEVEL_2 || is_merged ? third : merged_digit(third, fourth, vector);
    digits.p6 = word_of(planes.p6, row);
    digits.p8 = word_of(planes.p8, row);
    return digits;
}

// The exact sums of four rows of one vector with every row of activations.
template <u32 LEVEL, u32 PAIRS>
DEVICE void vector_sums(const Matrix& matrix, const Cell& cell, const Planes& planes, const MatvecTask& task,
                        const MatvecRows& rows, const FineTable& fine, int sums[PAIRS][4]) {
    u32 vector = lane_of_thread() / 4 % 2;
    bool is_merged = matrix.is_merged != 0;
    uint4 x[PAIRS];
    for (u32 r = 0; r < PAIRS; r++) {
        u32 row = r < task.pairs ? rows.pairs[r].x_row : rows.pairs[0].x_row;
        u64 at = (static_cast<u64>(row) * rows.x_groups + cell.group) * 32 + vector * 16;
        x[r] = load_vector(rows.x_values + at);
        for (u32 i = 0; i < 4; i++) {
            sums[r][i] = 0;
        }
    }
    u32 table[4] = {0, 0, 0, 0};
    if (LEVEL <= LEVEL_4) {
        const u8* at = table_of(matrix, LEVEL, cell.tile);
        for (u32 i = 0; i < (1u << LEVEL); i++) {
            table[i] = load_word(at + 4 * i);
        }
        for (u32 r = 0; r < PAIRS; r++) {
            u32 ordered[4];
            in_table_order(x[r], ordered);
            x[r] = make_uint4(ordered[0], ordered[1], ordered[2], ordered[3]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        Digits digits = digits_of<LEVEL>(planes, i, vector, is_merged);
        if (LEVEL <= LEVEL_4) {
            u32 values[4];
            table_values<LEVEL>(digits, table, values);
#pragma unroll
            for (u32 r = 0; r < PAIRS; r++) {
                int sum = __dp4a(static_cast<int>(values[0]), static_cast<int>(x[r].x), sums[r][i]);
                sum = __dp4a(static_cast<int>(values[1]), static_cast<int>(x[r].y), sum);
                sum = __dp4a(static_cast<int>(values[2]), static_cast<int>(x[r].z), sum);
                sums[r][i] = __dp4a(static_cast<int>(values[3]), static_cast<int>(x[r].w), sum);
            }
        } else {
#pragma unroll
            for (u32 chunk = 0; chunk < 4; chunk++) {
                u32 low, high;
                fine_values(fine, fine_codes<LEVEL>(digits, chunk), low, high);
#pragma unroll
                for (u32 r = 0; r < PAIRS; r++) {
                    u32 inputs = chunk == 0 ? x[r].x : chunk == 1 ? x[r].y : chunk == 2 ? x[r].z : x[r].w;
                    int upper = __dp4a(static_cast<int>(high), static_cast<int>(inputs), 0);
                    sums[r][i] =
                        __dp4a(static_cast<int>(low), static_cast<int>(inputs), sums[r][i]) + 128 * upper;
                }
            }
        }
    }
}

// Steps of two rows that follow each other, the first of them even.
DEVICE uint2 two_steps(const Matrix& matrix, u64 cell, u32 row) {
    u32 low = load_half(matrix.steps + cell * 8 + row % 8) >> (row / 8 * 4);
    u32 high = load_half(matrix.step_high + cell * 2) >> row;
    return make_uint2((low & 15) | (high & 1) << 4, (low >> 8 & 15) | (high >> 1 & 1) << 4);
}

// The cell of a place among those of a task's tiles; the last one for places beyond.
DEVICE Cell cell_at(const Matrix& matrix, const MatvecTask& task, u32 first, u32 groups, u32 place) {
    u32 count = task.tiles * groups;
    place = place < count ? place : count - 1;
    Cell cell;
    cell.tile = task.tile + place / groups;
    cell.group = first + place % groups;
    cell.index = static_cast<u64>(cell.tile) * matrix.groups + cell.group;
    return cell;
}

template <u32 LEVEL, u32 PAIRS, u32 CELLS>
DEVICE void sum_cells(const Matrix& matrix, const MatvecTask& task, const MatvecRows& rows, u32 first,
                      u32 groups, float unit, MatvecShared<PAIRS, CELLS>& shared) {
    u32 lane = lane_of_thread(), warp = thread_of_team() / WARP, vector = lane / 4 % 2, quad = lane % 4;
    u32 count = task.tiles * groups, place = warp * 4 + lane / 8;
    Cell cell = cell_at(matrix, task, first, groups, place), next = cell;
    Planes planes = read_planes<LEVEL>(matrix, cell), following = planes;
    for (u32 base = warp * 4; base < count; base += MATVEC_THREADS / 8) {
        // What comes next is on its way while this is computed.
        if (base + MATVEC_THREADS / 8 < count) {
            next = cell_at(matrix, task, first, groups, place + MATVEC_THREADS / 8);
            following = read_planes<LEVEL>(matrix, next);
        }
        int sums[PAIRS][4];
        vector_sums<LEVEL, PAIRS>(matrix, cell, planes, task, rows, shared.fine, sums);
        // This lane keeps two of the four rows, the lane with the other vector the others.
        u32 row = 4 * quad + 2 * vector;
        uint2 steps = two_steps(matrix, cell.index, row);
        u32 halves = load_word(matrix.row_scales + 2 * (16 * cell.tile + row));
        float scale_0 = (half_to_float(halves & 0xffff) * unit) * shared.factors[steps.x];
        float scale_1 = (half_to_float(halves >> 16) * unit) * shared.factors[steps.y];
#pragma unroll
        for (u32 r = 0; r < PAIRS; r++) {
            int give_0 = vector ? sums[r][0] : sums[r][2], give_1 = vector ? sums[r][1] : sums[r][3];
            int keep_0 = vector ? sums[r][2] : sums[r][0], keep_1 = vector ? sums[r][3] : sums[r][1];
            keep_0 += __shfl_xor_sync(FULL_WARP, give_0, 4);
            keep_1 += __shfl_xor_sync(FULL_WARP, give_1, 4);
            if (place < count && r < task.pairs) {
                u64 at = static_cast<u64>(rows.pairs[r].x_row) * rows.x_groups + cell.group;
                float x_scale = rows.x_scales[at];
                float2* part = &shared.parts[r][place][row];
                part[0] = make_float2(static_cast<float>(keep_0), x_scale * scale_0);
                part[1] = make_float2(static_cast<float>(keep_1), x_scale * scale_1);
            }
        }
        place += MATVEC_THREADS / 8;
        cell = next;
        planes = following;
    }
}

DEVICE void store_product(const MatvecTask& task, const MatvecRows& rows, u32 pair, u32 row, float value) {
    if (row < task.first_row || row >= task.end_row) {
        return;
    }
    u32 from_first = row - task.first_row;
    if (task.bias) {
        value += task.bias[from_first];
    }
    float* out = rows.out + static_cast<u64>(rows.pairs[pair].out_row) * rows.out_cols + task.out_col;
    out[from_first] = rows.adds ? out[from_first] + value : value;
}

// The product of the row and the pair that are this thread's.
template <u32 LEVEL, u32 PAIRS, u32 CELLS, u32 TEAMS>
DEVICE float matvec_sum(const Matrix& matrix, const MatvecTask& task, const MatvecRows& rows,
                        MatvecShared<PAIRS, CELLS>& shared) {
    u32 thread = thread_of_team();
    Codec codec = read_codec(matrix);
    float unit = unit_of(codec.has_octaves, LEVEL);
    if (thread < 32) {
        shared.factors[thread] = step_factor(codec.has_octaves, thread);
    }
    if (LEVEL >= LEVEL_6) {
        fill_fine_table(shared.fine, codec, LEVEL, thread, MATVEC_THREADS);
    }
    wait_for_team<TEAMS>();
    // A thread for each row of each tile, or of each row of activations.
    u32 part = thread / 16, row = thread % 16;
    u32 pair = PAIRS == 1 ? 0 : part, tile = PAIRS == 1 ? part : 0;
    bool adds_up = tile < task.tiles && pair < task.pairs;
    float sum = 0.0f;
    u32 at_once = CELLS / task.tiles;
    for (u32 first = 0; first < matrix.groups; first += at_once) {
        u32 groups = matrix.groups - first < at_once ? matrix.groups - first : at_once;
        sum_cells<LEVEL, PAIRS, CELLS>(matrix, task, rows, first, groups, unit, shared);
        wait_for_team<TEAMS>();
        if (adds_up) {
            const float2(*parts)[16] = &shared.parts[pair][tile * groups];
#pragma unroll 8
            for (u32 group = 0; group < groups; group++) {
                float2 next = parts[group][row];
                sum = fused(next.x, next.y, sum);
            }
        }
        wait_for_team<TEAMS>();
    }
    return sum;
}

template <u32 PAIRS, u32 CELLS, u32 TEAMS>
DEVICE float matvec_sum_of(const MatvecTask& task, const MatvecRows& rows,
                           MatvecShared<PAIRS, CELLS>& shared) {
    const Matrix& matrix = *task.matrix;
    switch (task.level) {
    case LEVEL_2:
        return matvec_sum<LEVEL_2, PAIRS, CELLS, TEAMS>(matrix, task, rows, shared);
    case LEVEL_3:
        return matvec_sum<LEVEL_3, PAIRS, CELLS, TEAMS>(matrix, task, rows, shared);
    case LEVEL_4:
        return matvec_sum<LEVEL_4, PAIRS, CELLS, TEAMS>(matrix, task, rows, shared);
    case LEVEL_6:
        return matvec_sum<LEVEL_6, PAIRS, CELLS, TEAMS>(matrix, task, rows, shared);
    default:
        return matvec_sum<LEVEL_8, PAIRS, CELLS, TEAMS>(matrix, task, rows, shared);
    }
}

// Products of a block that is one team.
template <u32 PAIRS, u32 CELLS>
DEVICE void matvec(const MatvecTask& task, const MatvecRows& rows) {
    typedef MatvecShared<PAIRS, CELLS> Shared;
    SHARED(Shared, shared);
    if (task.level == NO_LEVEL) {
        return;
    }
    float sum = matvec_sum_of<PAIRS, CELLS, 1>(task, rows, shared);
    u32 part = threadIdx.x / 16, row = threadIdx.x % 16;
    u32 pair = PAIRS == 1 ? 0 : part, tile = PAIRS == 1 ? part : 0;
    if (tile < task.tiles && pair < task.pairs) {
        store_product(task, rows, pair, (task.tile + tile) * 16 + row, sum);
    }
}

// So many tiles of one block of a table. False: there are none.
DEVICE bool task_of(const ProductParams& params, u32 index, MatvecTask& task, MatvecRows& rows) {
    const Block& block = params.blocks[index];
    u32 tiles = (block.end_row + 15) / 16;
    task.tile = block.first_row / 16 + blockIdx.x * params.tiles_per_block;
    if (task.tile >= tiles) {
        return false;
    }
    u32 left = tiles - task.tile;
    task.tiles = left < params.tiles_per_block ? left : params.tiles_per_block;
    task.matrix = block.matrix;
    task.bias = block.bias;
    task.level = prefix_of(*block.matrix, block.level);
    task.first_row = block.first_row;
    task.end_row = block.end_row;
    task.out_col = block.out_col;
    task.pairs = block.pairs;
    rows.pairs = params.pairs + block.first_pair;
    rows.x_values = params.x_values;
    rows.x_scales = params.x_scales;
    rows.out = params.out;
    rows.x_groups = params.x_groups;
    rows.out_cols = params.out_cols;
    rows.adds = params.adds != 0;
    return true;
}
