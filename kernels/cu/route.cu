// The experts of every row and their weights, ascending, by the router's rule. Of equal scores the
// lower expert wins; NaN counts as largest, so that it is not lost. A block for each row.

#include "math.cuh"

#define THREADS 128u
#define EXPERTS_MAX 1024u
#define GROUPS_MAX 64u
#define CHOSEN_MAX 64u
// The order of negative infinity, which nothing but what was taken is below.
#define MASKED 0x007fffffu

struct RouteShared {
    float scores[EXPERTS_MAX];
    // What is compared, as integers of the same order; 0 for experts that were taken.
    u32 order[EXPERTS_MAX];
    float group_scores[GROUPS_MAX];
    u32 best_order[THREADS], best_expert[THREADS];
    u32 chosen[CHOSEN_MAX];
    float chosen_weights[CHOSEN_MAX];
    float lanes[16];
    float largest;
};

DEVICE u32 order_of(float value) {
    u32 bits = value == 0.0f ? 0 : __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return 0xffffffff;
    }
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

DEVICE float value_of(u32 order) {
    return __uint_as_float(order >> 31 ? order & 0x7fffffff : ~order);
}

// The largest logit, and after the exponentials their sum: 16 lanes and their tree, as on the CPU.
DEVICE void find_largest(const RouteParams& params, RouteShared& shared) {
    if (threadIdx.x < WARP) {
        float largest = NEGATIVE_INFINITY;
        for (u32 expert = threadIdx.x; expert < params.experts; expert += WARP) {
            float logit = shared.scores[expert];
            largest = logit > largest ? logit : largest;
        }
        for (u32 distance = 16; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(FULL_WARP, largest, distance);
            largest = other > largest ? other : largest;
        }
        if (threadIdx.x == 0) {
            shared.largest = largest;
        }
    }
    __syncthreads();
}

DEVICE float sum_of_scores(const RouteParams& params, RouteShared& shared) {
    if (threadIdx.x < 16) {
        float sum = 0.0f;
        for (u32 expert = threadIdx.x; expert < params.experts; expert += 16) {
            sum += shared.scores[expert];
        }
        shared.lanes[threadIdx.x] = sum;
    }
    __syncthreads();
    float lanes[16];
    for (u32 i = 0; i < 16; i++) {
        lanes[i] = shared.lanes[i];
    }
    for (u32 half = 8; half > 0; half /= 2) {
        for (u32 i = 0; i < half; i++) {
            lanes[i] += lanes[i + half];
        }
    }
    return lanes[0];
}

DEVICE void make_scores(const RouteParams& params, RouteShared& shared) {
    const float* logits = params.logits + static_cast<u64>(blockIdx.x) * params.experts;
    for (u32 expert = threadIdx.x; expert < params.experts; expert += THREADS) {
        float logit = logits[expert];
        shared.scores[expert] = params.logit_bias ? logit + params.logit_bias[expert] : logit;
    }
    __syncthreads();
    find_largest(params, shared);
    for (u32 expert = threadIdx.x; expert < params.experts; expert += THREADS) {
        float logit = shared.scores[expert];
        shared.scores[expert] = params.is_sigmoid ? sigmoid(logit) : exp_of(logit - shared.largest);
    }
    __syncthreads();
    float sum = params.is_sigmoid ? 1.0f : sum_of_scores(params, shared);
    for (u32 expert = threadIdx.x; expert < params.experts; expert += THREADS) {
        float score = shared.scores[expert];
        score = params.is_sigmoid ? score : score / sum;
        shared.scores[expert] = score;
        shared.order[expert] =
            order_of(params.selection_bias ? score + params.selection_bias[expert] : score);
    }
    __syncthreads();
}

// Masks all groups of experts but the best; of equal groups the lower is kept.
DEVICE void mask_groups(const RouteParams& params, RouteShared& shared) {
    u32 size = params.experts / params.groups, group = threadIdx.x;
    size = size > 0 ? size : 1;
    if (group < params.groups) {
        float best = NEGATIVE_INFINITY, second = NEGATIVE_INFINITY;
        for (u32 i = 0; i < size; i++) {
            float value = value_of(shared.order[group * size + i]);
            if (value > best) {
                second = best;
                best = value;
            } else if (value > second) {
                second = value;
            }
        }
        const float lowest = -3.40282347e38f;
        second = second > lowest ? second : lowest;
        shared.group_scores[group] = params.two_best ? best + second : best;
    }
    __syncthreads();
    if (group < params.groups) {
        u32 before = 0;
        for (u32 other = 0; other < params.groups; other++) {
            float own = shared.group_scores[group], theirs = shared.group_scores[other];
            before += theirs > own || (theirs == own && other < group);
        }
        if (before >= params.groups_kept) {
            for (u32 i = 0; i < size; i++) {
                shared.order[group * size + i] = MASKED;
            }
        }
    }
    __syncthreads();
}

// The best expert that was not taken yet, in `best_expert[0]`.
DEVICE void find_best(const RouteParams& params, RouteShared& shared) {
    u32 best = 0, at = 0, thread = threadIdx.x;
    for (u32 expert = thread; expert < params.experts; expert += THREADS) {
        if (shared.order[expert] > best) {
            best = shared.order[expert];
            at = expert;
        }
    }
    shared.best_order[thread] = best;
    shared.best_expert[thread] = at;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) {
            u32 own = shared.best_order[thread], theirs = shared.best_order[thread + half];
            u32 expert = shared.best_expert[thread + half];
            if (theirs > own || (theirs == own && expert < shared.best_expert[thread])) {
                shared.best_order[thread] = theirs;
                shared.best_expert[thread] = expert;
            }
        }
        __syncthreads();
    }
}

// The weights of the chosen, best first, and then both in ascending order of experts.
DEVICE void finish(const RouteParams& params, RouteShared& shared) {
    u64 row = static_cast<u64>(blockIdx.x) * params.per_token;
    float sum = 0.0f;
    for (u32 i = 0; i < params.per_token; i++) {
        shared.chosen_weights[i] = shared.scores[shared.chosen[i]];
        sum += shared.chosen_weights[i];
    }
    for (u32 i = 0; i < params.per_token; i++) {
        u32 expert = shared.chosen[i], place = 0;
        float weight = shared.chosen_weights[i];
        weight = params.normalizes ? weight / sum : weight;
        weight *= params.scale;
        weight = params.expert_scale ? weight * params.expert_scale[expert] : weight;
        for (u32 other = 0; other < params.per_token; other++) {
            place += shared.chosen[other] < expert;
        }
        params.ids[row + place] = expert;
        params.weights[row + place] = weight;
    }
}

KERNEL(THREADS, route, RouteParams) {
    SHARED(RouteShared, shared);
    make_scores(params, shared);
    if (params.groups > 0) {
        mask_groups(params, shared);
    }
    for (u32 i = 0; i < params.per_token; i++) {
        find_best(params, shared);
        if (threadIdx.x == 0) {
            shared.chosen[i] = shared.best_expert[0];
            shared.order[shared.best_expert[0]] = 0;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        finish(params, shared);
    }
}
