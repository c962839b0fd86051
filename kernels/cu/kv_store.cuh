// Stores keys and values of rows in their pages. A warp for each head of each row.
#pragma once

#include "pages.cuh"

#define KV_STORE_THREADS 128u

// The largest magnitude; by its bits, in which infinity and NaN are larger than any number.
DEVICE float largest_of(const float* x, u32 length) {
    u32 largest = 0;
    for (u32 i = lane_of_thread(); i < length; i += WARP) {
        u32 size = __float_as_uint(x[i]) & 0x7fffffff;
        largest = size > largest ? size : largest;
    }
    for (u32 distance = 16; distance > 0; distance /= 2) {
        u32 other = __shfl_xor_sync(FULL_WARP, largest, distance);
        largest = other > largest ? other : largest;
    }
    return __uint_as_float(largest);
}

DEVICE u32 integer_of(float value, float factor) {
    float scaled = value * factor;
    scaled = scaled > 127.0f ? 127.0f : scaled;
    scaled = scaled < -127.0f ? -127.0f : scaled;
    return __float_as_uint(scaled + 12582912.0f) & 0xff;
}

template <u32 KIND>
DEVICE u32 packed_word(const float* x, float amax) {
    if (KIND == KV_F32) {
        return __float_as_uint(x[0]);
    }
    if (KIND == KV_F16) {
        return float_to_half(x[0]) | float_to_half(x[1]) << 16;
    }
    float factor = amax > 0.0f ? 127.0f / amax : 0.0f;
    return integer_of(x[0], factor) | integer_of(x[1], factor) << 8 | integer_of(x[2], factor) << 16 |
           integer_of(x[3], factor) << 24;
}

template <u32 KIND>
DEVICE void kv_store(const KvStoreParams& params) {
    u32 index = blockIdx.x * (KV_STORE_THREADS / WARP) + threadIdx.x / WARP, lane = lane_of_thread();
    if (index >= params.rows * params.heads) {
        return;
    }
    u32 row = index / params.heads, head = index % params.heads;
    RowPlace place = params.places[row];
    u32 position = place.position % PAGE_POSITIONS;
    u32* page = reinterpret_cast<u32*>(params.pages[place.first_page + place.position / PAGE_POSITIONS]);
    u32* out = page + static_cast<u64>(head) * params.head_words;
    const float* key = params.x + static_cast<u64>(row) * params.stride + params.first +
                       static_cast<u64>(head) * params.head_dim;
    const float* value = key + static_cast<u64>(params.heads) * params.head_dim;
    float key_max = 0.0f, value_max = 0.0f;
    if (KIND == KV_INT8) {
        key_max = largest_of(key + params.prefix, params.head_dim - params.prefix);
        value_max = params.prefix ? largest_of(key, params.prefix) : largest_of(value, params.head_dim);
        if (lane == 0) {
            u32* scales = page + params.scale_first + head * 2 * PAGE_POSITIONS + position;
            scales[0] = __float_as_uint(key_max / 127.0f);
            scales[PAGE_POSITIONS] = __float_as_uint(value_max / 127.0f);
        }
    }
    u32 each = 1u << KIND, words = params.head_dim / each;
    for (u32 word = lane; word < words; word += WARP) {
        float amax = word * each < params.prefix ? value_max : key_max;
        out[word * PAGE_POSITIONS + position] = packed_word<KIND>(key + word * each, amax);
        if (params.prefix == 0) {
            out[params.value_first + position * words + word] =
                packed_word<KIND>(value + word * each, value_max);
        }
    }
}
