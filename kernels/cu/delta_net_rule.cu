// A gated DeltaNet layer's states: rows of a run pass one after another. A warp takes 32 columns of one
// value head's matrix, which stays in shared memory while rows pass, or where it is written if keys are long;
// a column has one chain of sums.
//
//   seen[c]  = sum of key[i] S[i][c]             i ascending
//   delta[c] = fma(-decay, seen[c], value[c]) * beta
//   S[i][c]  = fma(key[i], delta[c], decay * S[i][c])
//   out[c]   = sum of query[i] S[i][c]           i ascending

#include "softplus.cuh"

// Most elements of a key whose matrix is kept in shared memory: 32 columns in what every device has.
#define KEPT_KEYS_MAX 340u

// `state` is one column, its elements so many floats apart; not there beyond the last column.
DEVICE void pass_rows(const DeltaNetParams& params, const StateRun& run, float* memory, float* state, u32 apart) {
    u32 keys = params.key_dim, lane = threadIdx.x;
    float* query = memory;
    float* key = query + keys;
    u32 column = blockIdx.x * WARP + lane, head = blockIdx.y;
    bool is_there = column < params.value_dim;
    u32 all_keys = params.key_heads * keys, values = params.value_heads * params.value_dim;
    u32 shared_head = head * params.key_heads / params.value_heads * keys;
    for (u32 row = run.first_row; row < run.first_row + run.rows; row++) {
        const float* mixed = params.mixed + static_cast<u64>(row) * params.channels;
        const float* rest = params.projected + static_cast<u64>(row) * params.stride + params.channels + values;
        float query_scale = norm_scale(mixed + shared_head, keys, params.unit_eps);
        float key_scale = norm_scale(mixed + all_keys + shared_head, keys, params.unit_eps);
        __syncwarp();
        for (u32 i = lane; i < keys; i += WARP) {
            query[i] = (mixed[shared_head + i] * query_scale) * params.query_norm[i];
            key[i] = (mixed[all_keys + shared_head + i] * key_scale) * params.key_norm[i];
        }
        __syncwarp();
        float beta = sigmoid(rest[head]);
        float decay = exp_of(params.rate[head] *
                             softplus(rest[params.value_heads + head] + params.time_bias[head]));
        if (!is_there) {
            continue;
        }
        float seen = 0.0f;
        for (u32 i = 0; i < keys; i++) {
            seen = fused(key[i], state[i * apart], seen);
        }
        float value = mixed[2 * all_keys + head * params.value_dim + column];
        float delta = fused(-decay, seen, value) * beta;
        float out = 0.0f;
        for (u32 i = 0; i < keys; i++) {
            float* place = &state[i * apart];
            *place = fused(key[i], delta, decay * *place);
            out = fused(query[i], *place, out);
        }
        params.out[static_cast<u64>(row) * values + head * params.value_dim + column] = out;
    }
}

KERNEL(WARP, delta_net_rule, DeltaNetParams) {
    DYNAMIC_SHARED(float, memory);
    u32 keys = params.key_dim, column = blockIdx.x * WARP + threadIdx.x, head = blockIdx.y;
    bool is_there = column < params.value_dim;
    StateRun run = params.runs[blockIdx.z];
    u64 matrix = static_cast<u64>(params.taps - 1) * params.channels +
                 static_cast<u64>(head) * keys * params.value_dim + column;
    float* kept = memory + 2 * keys + threadIdx.x; // [key_dim, 32]
    float* written = run.to + matrix;
    bool is_kept = keys <= KEPT_KEYS_MAX;
    for (u32 i = 0; i < keys && is_there; i++) {
        u64 at = static_cast<u64>(i) * params.value_dim;
        float value = run.from ? run.from[matrix + at] : 0.0f;
        if (is_kept) {
            kept[i * WARP] = value;
        } else {
            written[at] = value;
        }
    }
    // Twice, so that each is compiled for its kind of memory.
    if (!is_kept) {
        pass_rows(params, run, memory, written, params.value_dim);
        return;
    }
    pass_rows(params, run, memory, kept, WARP);
    for (u32 i = 0; i < keys && is_there; i++) {
        written[static_cast<u64>(i) * params.value_dim] = kept[i * WARP];
    }
}
