// Causal attention of the query heads that share a head of keys over a row's window of positions.
//
// What a page of 64 positions gives does not depend on others (its sums are those of the CPU, in their
// order); pages of a split are merged in ascending order, and splits are. A split is four pages by their
// absolute place, so a row's bits depend neither on how many blocks share it nor on what else is
// computed: `attend_*` does all splits of a row in one block, `attend_split_*` one, for rows that are few.
#pragma once

#include "pages.cuh"

#define ATTEND_THREADS 128u
#define SPLIT_PAGES 4u
#define HEADS_MAX 8u
// Heads whose sums a thread holds together.
#define HEADS_AT_ONCE 4u

// The largest score so far, and the sum of weights against it.
struct AttentionState {
    float max, sum;
};

// Adds a part; gives the factors of what was gathered before and of the part.
DEVICE float2 merge(AttentionState& state, float part_max, float part_sum) {
    float both = part_max > state.max ? part_max : state.max;
    float old = exp_of(state.max - both), fresh = exp_of(part_max - both);
    state.sum = fused(state.sum, old, part_sum * fresh);
    state.max = both;
    return make_float2(old, fresh);
}

struct AttendShared {
    float weights[HEADS_MAX][PAGE_POSITIONS];
    float2 factors[HEADS_MAX];
    AttentionState states[HEADS_MAX], totals[HEADS_MAX];
};

// One block's part of the work, in shared memory whose size the launch chose.
struct AttendBlock {
    u32 row, kv_head, first_head, heads;
    u32 start, end; // positions that are seen
    u32 first_page;
    float* queries;  // [heads, head_dim]
    float* gathered; // [heads, value_dim]
    float* total;    // the same, of splits that are done
};

// Where the words of one head in one page are.
struct PageWords {
    const u32* keys;
    const u32* values;
    const u32* scales; // of keys, then of values
};

DEVICE PageWords page_words(const AttendParams& params, const AttendBlock& block, u32 page) {
    const u32* words = reinterpret_cast<const u32*>(params.pages[block.first_page + page]);
    PageWords found;
    found.keys = words + static_cast<u64>(block.kv_head) * params.head_words;
    found.values = found.keys + params.value_first;
    found.scales = words + params.scale_first + block.kv_head * 2 * PAGE_POSITIONS;
    return found;
}

// Scores of one position with some heads: products over ascending elements.
template <u32 KIND>
DEVICE void score_position(const AttendParams& params, const AttendBlock& block, const PageWords& page,
                           u32 position, u32 first, bool is_seen, AttendShared& shared) {
    const u32 each = 1u << KIND;
    float sums[HEADS_AT_ONCE] = {0.0f, 0.0f, 0.0f, 0.0f};
    float key_scale = 1.0f, value_scale = 1.0f;
    if (KIND == KV_INT8 && is_seen) {
        key_scale = __uint_as_float(page.scales[position]);
        value_scale = __uint_as_float(page.scales[PAGE_POSITIONS + position]);
    }
    if (is_seen) {
        for (u32 word = 0; word < params.head_dim / each; word++) {
            Word<KIND> key(page.keys[word * PAGE_POSITIONS + position]);
            if (KIND == KV_INT8 && params.prefix_words > 0) {
                float scale = word < params.prefix_words ? value_scale : key_scale;
                for (u32 i = 0; i < each; i++) {
                    key.elements[i] *= scale;
                }
            }
#pragma unroll
            for (u32 h = 0; h < HEADS_AT_ONCE; h++) {
                const float* query = block.queries + (first + h) * params.head_dim + word * each;
                if (first + h < block.heads) {
#pragma unroll
                    for (u32 i = 0; i < each; i++) {
                        sums[h] = fused(query[i], key.elements[i], sums[h]);
                    }
                }
            }
        }
    }
    float factor = KIND == KV_INT8 && params.prefix_words == 0 ? key_scale * params.scale : params.scale;
#pragma unroll
    for (u32 h = 0; h < HEADS_AT_ONCE; h++) {
        if (first + h < block.heads) {
            shared.weights[first + h][position] = is_seen ? sums[h] * factor : NEGATIVE_INFINITY;
        }
    }
}

// Scores of a page become weights, and its maximum and sum join the state: a warp for each head.
template <u32 KIND>
DEVICE void weigh_page(const AttendParams& params, const AttendBlock& block, const PageWords& page,
                       u32 first_position, u32 end_position, AttendShared& shared) {
    u32 lane = lane_of_thread();
    for (u32 head = threadIdx.x / WARP; head < block.heads; head += ATTEND_THREADS / WARP) {
        float* weights = shared.weights[head];
        float low = weights[lane], high = weights[lane + WARP];
        float largest = NEGATIVE_INFINITY;
        largest = low > largest ? low : largest;
        largest = high > largest ? high : largest;
        for (u32 distance = 16; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(FULL_WARP, largest, distance);
            largest = other > largest ? other : largest;
        }
        low = exp_of(low - largest);
        high = exp_of(high - largest);
        // Position p belongs to lane p % 16 of the CPU's sum, and those lanes are added in a tree.
        float low_other = __shfl_xor_sync(FULL_WARP, low, 16);
        float high_other = __shfl_xor_sync(FULL_WARP, high, 16);
        float sum = lane < 16 ? ((low + low_other) + high) + high_other
                              : ((low_other + low) + high_other) + high;
        for (u32 distance = 8; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(FULL_WARP, sum, distance);
        }
        if (KIND == KV_INT8 && params.prefix_words == 0) {
            // Positions that are not seen may have none yet; their weights are 0 and not used.
            u32 upper = lane + WARP;
            if (lane >= first_position && lane < end_position) {
                low *= __uint_as_float(page.scales[PAGE_POSITIONS + lane]);
            }
            if (upper >= first_position && upper < end_position) {
                high *= __uint_as_float(page.scales[PAGE_POSITIONS + upper]);
            }
        }
        weights[lane] = low;
        weights[lane + WARP] = high;
        if (lane == 0) {
            shared.factors[head] = merge(shared.states[head], largest, sum);
        }
    }
}

// Adds a page's values, weighted: a thread for each word of some heads.
template <u32 KIND>
DEVICE void gather_page(const AttendParams& params, const AttendBlock& block, const PageWords& page,
                        u32 first_position, u32 end_position, AttendShared& shared) {
    const u32 each = 1u << KIND;
    u32 words = params.value_dim / each;
    u32 groups = (block.heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE;
    for (u32 at = threadIdx.x; at < words * groups; at += ATTEND_THREADS) {
        u32 word = at % words, first = at / words * HEADS_AT_ONCE;
        float sums[HEADS_AT_ONCE][1u << KIND];
        for (u32 h = 0; h < HEADS_AT_ONCE; h++) {
            for (u32 i = 0; i < each; i++) {
                sums[h][i] = 0.0f;
            }
        }
        for (u32 position = first_position; position < end_position; position++) {
            Word<KIND> value(page.values[position * params.value_position + word * params.value_word]);
            if (KIND == KV_INT8 && params.prefix_words > 0) {
                float scale = __uint_as_float(page.scales[PAGE_POSITIONS + position]);
                for (u32 i = 0; i < each; i++) {
                    value.elements[i] *= scale;
                }
            }
#pragma unroll
            for (u32 h = 0; h < HEADS_AT_ONCE; h++) {
                float weight = shared.weights[first + h][position];
#pragma unroll
                for (u32 i = 0; i < each; i++) {
                    sums[h][i] = fused(weight, value.elements[i], sums[h][i]);
                }
            }
        }
#pragma unroll
        for (u32 h = 0; h < HEADS_AT_ONCE; h++) {
            if (first + h < block.heads) {
                float2 factors = shared.factors[first + h];
                float* gathered = block.gathered + (first + h) * params.value_dim + word * each;
#pragma unroll
                for (u32 i = 0; i < each; i++) {
                    gathered[i] = fused(gathered[i], factors.x, sums[h][i] * factors.y);
                }
            }
        }
    }
}

// The pages of one split, into its states and what it gathers.
template <u32 KIND>
DEVICE void attend_pages(const AttendParams& params, const AttendBlock& block, u32 split,
                         AttendShared& shared) {
    if (threadIdx.x < HEADS_MAX) {
        shared.states[threadIdx.x].max = NEGATIVE_INFINITY;
        shared.states[threadIdx.x].sum = 0.0f;
    }
    for (u32 i = threadIdx.x; i < block.heads * params.value_dim; i += ATTEND_THREADS) {
        block.gathered[i] = 0.0f;
    }
    // Heads are gathered HEADS_AT_ONCE together: those that are not there have no weight.
    u32 heads = (block.heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE * HEADS_AT_ONCE;
    for (u32 i = block.heads * PAGE_POSITIONS + threadIdx.x; i < heads * PAGE_POSITIONS; i += ATTEND_THREADS) {
        shared.weights[i / PAGE_POSITIONS][i % PAGE_POSITIONS] = 0.0f;
    }
    __syncthreads();
    for (u32 page = split * SPLIT_PAGES; page < (split + 1) * SPLIT_PAGES; page++) {
        u32 first = page * PAGE_POSITIONS;
        if (first >= block.end || first + PAGE_POSITIONS <= block.start) {
            continue;
        }
        PageWords words = page_words(params, block, page);
        u32 seen = block.start > first ? block.start - first : 0;
        u32 end = block.end - first < PAGE_POSITIONS ? block.end - first : PAGE_POSITIONS;
        u32 position = threadIdx.x % PAGE_POSITIONS;
        u32 half = threadIdx.x / PAGE_POSITIONS * HEADS_AT_ONCE;
        if (half < block.heads) {
            bool is_seen = position >= seen && position < end;
            score_position<KIND>(params, block, words, position, half, is_seen, shared);
        }
        __syncthreads();
        weigh_page<KIND>(params, block, words, seen, end, shared);
        __syncthreads();
        gather_page<KIND>(params, block, words, seen, end, shared);
        __syncthreads();
    }
}

// What this block computes. False: nothing.
DEVICE bool attend_block(const AttendParams& params, float* memory, AttendBlock& block) {
    u32 parts = (params.sharing + params.block_heads - 1) / params.block_heads;
    u32 kv_heads = params.heads / params.sharing, index = blockIdx.x;
    block.first_head = index % parts * params.block_heads;
    block.kv_head = index / parts % kv_heads;
    block.row = index / parts / kv_heads;
    if (block.row >= params.rows) {
        return false;
    }
    u32 left = params.sharing - block.first_head;
    block.heads = left < params.block_heads ? left : params.block_heads;
    block.first_head += block.kv_head * params.sharing;
    RowPlace place = params.places[block.row];
    block.first_page = place.first_page;
    block.end = place.position + 1;
    block.start = block.end > params.window ? block.end - params.window : 0;
    block.queries = memory;
    block.gathered = block.queries + params.block_heads * params.head_dim;
    block.total = block.gathered + params.block_heads * params.value_dim;
    const float* queries = params.queries + static_cast<u64>(block.row) * params.stride +
                           static_cast<u64>(block.first_head) * params.head_dim;
    for (u32 i = threadIdx.x; i < block.heads * params.head_dim; i += ATTEND_THREADS) {
        block.queries[i] = queries[i];
    }
    return true;
}

// Divides what was gathered by the sum of weights, that of the sink among them.
DEVICE float finished(const AttendParams& params, u32 head, AttentionState state, float gathered) {
    float factor = 1.0f;
    if (params.sinks) {
        factor = merge(state, params.sinks[head], 1.0f).x;
    }
    return gathered * factor / state.sum;
}

DEVICE u32 splits_of(u32 end) {
    return (end + SPLIT_PAGES * PAGE_POSITIONS - 1) / (SPLIT_PAGES * PAGE_POSITIONS);
}

// All splits of a row, one after another.
template <u32 KIND>
DEVICE void attend(const AttendParams& params) {
    SHARED(AttendShared, shared);
    DYNAMIC_SHARED(float, memory);
    AttendBlock block;
    if (!attend_block(params, memory, block)) {
        return;
    }
    u32 count = block.heads * params.value_dim;
    if (threadIdx.x < HEADS_MAX) {
        shared.totals[threadIdx.x].max = NEGATIVE_INFINITY;
        shared.totals[threadIdx.x].sum = 0.0f;
    }
    for (u32 i = threadIdx.x; i < count; i += ATTEND_THREADS) {
        block.total[i] = 0.0f;
    }
    u32 first = block.start / (SPLIT_PAGES * PAGE_POSITIONS);
    for (u32 split = first; split < splits_of(block.end); split++) {
        attend_pages<KIND>(params, block, split, shared);
        if (threadIdx.x < block.heads) {
            AttentionState part = shared.states[threadIdx.x];
            shared.factors[threadIdx.x] = merge(shared.totals[threadIdx.x], part.max, part.sum);
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < count; i += ATTEND_THREADS) {
            float2 factors = shared.factors[i / params.value_dim];
            block.total[i] = fused(block.total[i], factors.x, block.gathered[i] * factors.y);
        }
    }
    float* out = params.out + (static_cast<u64>(block.row) * params.heads + block.first_head) * params.value_dim;
    for (u32 i = threadIdx.x; i < count; i += ATTEND_THREADS) {
        u32 head = i / params.value_dim;
        out[i] = finished(params, block.first_head + head, shared.totals[head], block.total[i]);
    }
}

// One split of a row; `attend_merge` adds them up.
template <u32 KIND>
DEVICE void attend_split(const AttendParams& params) {
    SHARED(AttendShared, shared);
    DYNAMIC_SHARED(float, memory);
    AttendBlock block;
    u32 split = blockIdx.y;
    if (!attend_block(params, memory, block) || split >= splits_of(block.end) ||
        (split + 1) * SPLIT_PAGES * PAGE_POSITIONS <= block.start) {
        return;
    }
    attend_pages<KIND>(params, block, split, shared);
    u32 width = params.value_dim + 2;
    for (u32 i = threadIdx.x; i < block.heads * width; i += ATTEND_THREADS) {
        u32 head = i / width, at = i % width;
        u64 place = (static_cast<u64>(block.row) * params.heads + block.first_head + head) * params.splits;
        float value = at == 0   ? shared.states[head].max
                      : at == 1 ? shared.states[head].sum
                                : block.gathered[head * params.value_dim + at - 2];
        params.parts[(place + split) * width + at] = value;
    }
}
