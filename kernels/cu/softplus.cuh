// Time steps of recurrent layers.
#pragma once

#include "math.cuh"

// ln(1 + e^x), in double precision as on the CPU.
DEVICE float softplus(float x) {
    return x > 20.0f ? x : static_cast<float>(log1p_of(static_cast<double>(exp_of(x))));
}
