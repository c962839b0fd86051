// Adds what the experts of every row gave, weighted: a sum that starts at zero, in ascending rank, is
// added to `out`.

#include "element.cuh"

KERNEL(ELEMENT_THREADS, experts_sum, ExpertsSumParams) {
    u64 at = element_of_thread();
    if (at >= static_cast<u64>(params.rows) * params.cols) {
        return;
    }
    u64 first = at / params.cols * params.per_token, col = at % params.cols;
    float sum = 0.0f;
    for (u32 rank = 0; rank < params.per_token; rank++) {
        sum = fused(params.weights[first + rank], params.expert_rows[(first + rank) * params.cols + col],
                    sum);
    }
    params.out[at] += sum;
}
