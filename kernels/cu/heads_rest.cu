// What follows the first elements of every head follows their products:
// `out[t, h, N..] = x[t, h, K..]`.

#include "element.cuh"

KERNEL(ELEMENT_THREADS, heads_rest, HeadsRestParams) {
    u64 at = element_of_thread(), place = at / params.rest;
    if (place < params.places) {
        u32 element = static_cast<u32>(at % params.rest);
        params.out[place * (params.outputs + params.rest) + params.outputs + element] =
            params.x[place * (params.inputs + params.rest) + params.inputs + element];
    }
}
