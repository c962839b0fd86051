// Float functions: the arithmetic of `engine/math/src/math.rs`, operation by operation, so that the bits
// are the CPU's. Nothing is fused but what says so: kernels are compiled without contraction.
#pragma once

#include "device.cuh"

#define NEGATIVE_INFINITY __uint_as_float(0xff800000u)

DEVICE float power_of_two(int n) { return __uint_as_float(static_cast<u32>(n + 127) << 23); }

// e^x = 2^n (1 + rest).
DEVICE float exp_parts(float x, int& n) {
    const float round = 12582912.0f;
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = fused(x, 1.44269502f, round);
    float whole = shifted - round;
    float r = fused(whole, 1.9046543e-9f, fused(whole, -0.693147182f, x));
    float series = 1.0f / 5040.0f;
    series = fused(series, r, 1.0f / 720.0f);
    series = fused(series, r, 1.0f / 120.0f);
    series = fused(series, r, 1.0f / 24.0f);
    series = fused(series, r, 1.0f / 6.0f);
    series = fused(series, r, 0.5f);
    n = static_cast<int>(__float_as_uint(shifted) - __float_as_uint(round));
    return fused(series * r, r, r);
}

// What is -104 or below, infinity too, gives 0, which attention relies on for positions that are not seen: there
// n is -150 and 1 + rest 0.972, and 0.486 of the least number is rounded down. Half of it, and so something
// else than 0, is reached at -103.97.
DEVICE float exp_of(float x) {
    int n;
    float rest = exp_parts(x, n);
    int half = n >> 1;
    return (rest + 1.0f) * power_of_two(half) * power_of_two(n - half);
}

// The upper half of a number's bits, and the number with another one.
DEVICE u32 upper_word(double x) {
#ifdef NESTLING_EMULATION
    u64 bits;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<u32>(bits >> 32);
#else
    return static_cast<u32>(__double2hiint(x));
#endif
}

DEVICE double with_upper_word(double x, u32 word) {
#ifdef NESTLING_EMULATION
    u64 bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = static_cast<u64>(word) << 32 | (bits & 0xffffffff);
    std::memcpy(&x, &bits, sizeof bits);
    return x;
#else
    return __hiloint2double(static_cast<int>(word), __double2loint(x));
#endif
}

// ln(1 + x) for x from 0 to 2^53: `log1p` of libm, which the CPU has, operation by operation. CUDA's own is
// within one unit of the last place, and so of other bits once in a while.
//
// Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved.
// Developed at SunPro, a Sun Microsystems, Inc. business. Permission to use, copy, modify, and distribute this
// software is freely granted, provided that this notice is preserved.
DEVICE double log1p_of(double x) {
    u32 upper = upper_word(x);
    if (upper >= 0x7ff00000 || upper < 0x3ca00000) {
        return x; // no number, or below 2^-53
    }
    // 1 + x = 2^k (1 + f) with 1 + f from sqrt(1/2) to sqrt(2), up to what rounding took of it: c.
    double f = x, c = 0.0;
    int k = 0;
    if (upper >= 0x3fda827a) {
        double u = 1.0 + x;
        u32 shifted = upper_word(u) + (0x3ff00000 - 0x3fe6a09e);
        k = static_cast<int>(shifted >> 20) - 0x3ff;
        c = (k >= 2 ? 1.0 - (u - x) : x - (u - 1.0)) / u;
        f = with_upper_word(u, (shifted & 0x000fffff) + 0x3fe6a09e) - 1.0;
    }
    double half = 0.5 * f * f, s = f / (2.0 + f), z = s * s, w = z * z;
    double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    double odd = z * (6.666666666666735130e-01 +
                      w * (2.857142874366239149e-01 +
                           w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    return s * (half + (odd + even)) + (k * 1.90821492927058770002e-10 + c) - half + f +
           k * 6.93147180369123816490e-01;
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

DEVICE float silu(float x) { return x / (1.0f + exp_of(-x)); }

// e / (e + 2) with e = e^2|x| - 1, which keeps the digits of small x.
DEVICE float tanh_of(float x) {
    float size = fabsf(x);
    size = size > 10.0f ? 10.0f : size;
    int n;
    float rest = exp_parts(2.0f * size, n);
    float power = power_of_two(n);
    float e = fused(rest, power, power - 1.0f);
    return copysignf(e / (e + 2.0f), x);
}

// x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
DEVICE float gelu_tanh(float x) {
    float cubed = fused(0.044715f * x * x, x, x);
    return x / (1.0f + exp_of(-1.595769f * cubed));
}

// Gate and up joined; `kind` is 0 for SiLU, 1 for the clamped kind, 2 for GELU.
DEVICE float activation(u32 kind, float gate, float up, float alpha, float limit) {
    if (kind == 0) {
        return silu(gate) * up;
    }
    if (kind == 2) {
        return gelu_tanh(gate) * up;
    }
    if (kind == 3) {
        return (gate < 0.0f ? 0.0f : gate) * up;
    }
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return gate / (1.0f + exp_of(-alpha * gate)) * (up + 1.0f);
}

// The sum of squares of some numbers, by the 16 lanes of the CPU: element i belongs to lane i % 16, and
// lanes are added in a tree. For all lanes of a warp.
DEVICE float squares_of_lanes(const float* x, u32 length) {
    u32 lane = lane_of_thread() % 16;
    float sum = 0.0f;
    for (u32 i = lane; i < length; i += 16) {
        sum = fused(x[i], x[i], sum);
    }
    for (u32 distance = 8; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    }
    return sum;
}

// What a norm of so many numbers multiplies them by.
DEVICE float norm_scale(const float* x, u32 length, float eps) {
    return 1.0f / sqrtf(squares_of_lanes(x, length) / static_cast<float>(length) + eps);
}
