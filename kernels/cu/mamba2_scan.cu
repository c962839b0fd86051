// A Mamba-2 layer's states: rows of a run pass one after another. A warp takes 32 columns of one head's matrix,
// which stays in shared memory while rows pass, or where it is written if it has many rows; a column has one chain
// of sums.
//
//   S[n][p] = fma(B[n], step x[p], e^(rate step) S[n][p])
//   y[p]    = sum of C[n] S[n][p]                              n ascending
//   out[p]  = fma(D, x[p], y[p]) silu(z[p])

#include "softplus.cuh"

// Most rows of a matrix that is kept in shared memory: 32 columns in what every device has.
#define KEPT_ROWS_MAX 340u

// `state` is one column, its elements so many floats apart; not there beyond the last column.
DEVICE void pass_rows(const Mamba2Params& params, const StateRun& run, float* memory, float* state, u32 apart) {
    u32 states = params.state_size, lane = threadIdx.x, head = blockIdx.y;
    u32 column = blockIdx.x * WARP + lane;
    bool is_there = column < params.head_dim;
    u32 inner = params.heads * params.head_dim, at = head * params.head_dim + column;
    u32 first_b = inner + head * params.groups / params.heads * states;
    float* b = memory;
    float* c = b + states;
    for (u32 row = run.first_row; row < run.first_row + run.rows; row++) {
        const float* mixed = params.mixed + static_cast<u64>(row) * params.channels;
        const float* projected = params.projected + static_cast<u64>(row) * params.stride;
        __syncwarp();
        for (u32 i = lane; i < states; i += WARP) {
            b[i] = mixed[first_b + i];
            c[i] = mixed[first_b + params.groups * states + i];
        }
        __syncwarp();
        float step = softplus(projected[inner + params.channels + head] + params.time_bias[head]);
        float decay = exp_of(params.rate[head] * step);
        if (!is_there) {
            continue;
        }
        float x = mixed[at];
        float fresh = x * step;
        float out = 0.0f;
        for (u32 i = 0; i < states; i++) {
            float* place = &state[i * apart];
            *place = fused(b[i], fresh, decay * *place);
            out = fused(c[i], *place, out);
        }
        params.out[static_cast<u64>(row) * inner + at] = silu(projected[at]) * fused(params.skip[head], x, out);
    }
}

KERNEL(WARP, mamba2_scan, Mamba2Params) {
    DYNAMIC_SHARED(float, memory);
    u32 states = params.state_size, column = blockIdx.x * WARP + threadIdx.x, head = blockIdx.y;
    bool is_there = column < params.head_dim;
    StateRun run = params.runs[blockIdx.z];
    u64 matrix = static_cast<u64>(params.taps - 1) * params.channels +
                 static_cast<u64>(head) * states * params.head_dim + column;
    float* kept = memory + 2 * states + threadIdx.x; // [state_size, 32]
    float* written = run.to + matrix;
    bool is_kept = states <= KEPT_ROWS_MAX;
    for (u32 i = 0; i < states && is_there; i++) {
        u64 at = static_cast<u64>(i) * params.head_dim;
        float value = run.from ? run.from[matrix + at] : 0.0f;
        if (is_kept) {
            kept[i * WARP] = value;
        } else {
            written[at] = value;
        }
    }
    // Twice, so that each is compiled for its kind of memory.
    if (!is_kept) {
        pass_rows(params, run, memory, written, params.head_dim);
        return;
    }
    pass_rows(params, run, memory, kept, WARP);
    for (u32 i = 0; i < states && is_there; i++) {
        written[static_cast<u64>(i) * params.head_dim] = kept[i * WARP];
    }
}
