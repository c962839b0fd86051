// Pages of keys and values (`kernels/src/pages.rs`): 64 positions, heads one after another, each with its
// keys transposed, then its values. Four bytes are a word: one f32, two f16 or four integers.
#pragma once

#include "math.cuh"

#define PAGE_POSITIONS 64u

#define KV_F32 0u
#define KV_F16 1u
#define KV_INT8 2u

// Elements of a word.
template <u32 KIND>
struct Word {
    static const u32 COUNT = 1u << KIND;
    float elements[1u << KIND];

    DEVICE_MEMBER explicit Word(u32 word) {
        if (KIND == KV_F32) {
            elements[0] = __uint_as_float(word);
        } else if (KIND == KV_F16) {
            elements[0] = half_to_float(word & 0xffff);
            elements[1 % COUNT] = half_to_float(word >> 16);
        } else {
            for (u32 i = 0; i < COUNT; i++) {
                elements[i] = static_cast<float>(static_cast<i8>(word >> (8 * i)));
            }
        }
    }
};
