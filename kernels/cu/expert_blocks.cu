// What products compute for the experts that a router chose: the blocks of their gates and ups, and of
// their downs, and the pairs of rows that those are for. Uses of one expert at one level lie together, so
// that its planes are read once for all of them; every use has a place for a block, which has no rows
// where another use's does it.
//
// Where planes of an expert are missing, the call's number is left in `halt`, and no kernel that comes
// after does anything; what was chosen is noted all the same.

#include "device.cuh"

#define THREADS 256u
#define USES_MAX 1024u
#define LEVELS 5u
#define INFINITE 0x7f800000u

struct Found {
    // What uses have in common that are computed together.
    u32 keys[USES_MAX];
};

DEVICE u32 level_of(const ExpertBlocksParams& params, u32 use, u32 expert) {
    if (!params.least) {
        return params.levels[use / params.per_token];
    }
    // A weight that is no number counts as zero.
    u32 weight = params.weights[use] & 0x7fffffffu;
    weight = weight > INFINITE ? 0 : weight;
    u32 level = 0;
    while (level < 4 && weight >= params.least[expert * 4 + level]) {
        level++;
    }
    return level;
}

DEVICE void put_block(const ExpertBlocksParams& params, Block* to, u32 which, u32 key, uint2 pairs) {
    u32 expert = key / 8;
    u32 rows = which == 2 ? params.out_rows : params.inner_rows;
    u64 bias = static_cast<u64>(which) * params.experts * params.inner_rows + static_cast<u64>(expert) * rows;
    Block block;
    block.matrix = params.entries[expert].matrices[which];
    block.bias = params.biases ? params.biases + bias : nullptr;
    block.level = key % 8;
    block.first_pair = pairs.x;
    block.pairs = pairs.y;
    block.first_row = 0;
    block.end_row = pairs.y > 0 ? rows : 0;
    block.out_col = which == 1 ? params.inner_rows : 0;
    *to = block;
}

DEVICE void put_use(const ExpertBlocksParams& params, const Found& found, u32 use) {
    // The use's place among all, and among those like it, by their order; and how many those are.
    u32 key = found.keys[use], place = 0, before = 0, alike = 0;
    for (u32 other = 0; other < params.uses; other++) {
        u32 theirs = found.keys[other];
        place += theirs < key || (theirs == key && other < use);
        before += theirs == key && other < use;
        alike += theirs == key;
    }
    u32 left = alike - before, most = params.together;
    uint2 pairs = make_uint2(place, before % most == 0 ? (left < most ? left : most) : 0);
    put_block(params, params.inner + 2 * use, 0, key, pairs);
    put_block(params, params.inner + 2 * use + 1, 1, key, pairs);
    put_block(params, params.outer + use, 2, key, pairs);
    Pair inner = {use / params.per_token, use}, outer = {use, use};
    params.inner_pairs[place] = inner;
    params.outer_pairs[place] = outer;
}

KERNEL(THREADS, expert_blocks, ExpertBlocksParams) {
    SHARED(Found, found);
    bool is_missing = false;
    for (u32 use = threadIdx.x; use < params.uses; use += THREADS) {
        u32 chosen = params.ids[use];
        // A router chooses none that there is not.
        u32 expert = chosen < params.experts ? chosen : params.experts - 1;
        u32 level = level_of(params, use, expert);
        found.keys[use] = expert * 8 + level;
        params.notes[use] = chosen | (params.least ? (level + 1) << 16 : 0);
        is_missing |= level < LEVELS && params.entries[expert].levels <= level;
    }
    is_missing = __syncthreads_or(is_missing);
    for (u32 use = threadIdx.x; use < params.uses; use += THREADS) {
        put_use(params, found, use);
    }
    if (threadIdx.x == 0 && is_missing) {
        *params.halt = params.call;
    }
}
