// The few words in which the device and its emulation differ.
#pragma once

#ifdef NESTLING_EMULATION
#include "emulation.hpp"
#endif

#include "params.cuh"

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
// A kernel with its threads, its name and what it is given. Each is told where a step is halted, if what
// it computes with may be missing (`expert_blocks`): one that comes after that does nothing.
//
// Without a word on blocks the compiler gives up registers for more of them, spilling a few at times:
// a kernel that is not to be is told that one block is enough.
#define KERNEL(threads, name, Params) KERNEL_WITHIN(__launch_bounds__(threads), name, Params)
#define KERNEL_OF_MANY_REGISTERS(threads, name, Params) \
    KERNEL_WITHIN(__launch_bounds__(threads, 1), name, Params)
#define KERNEL_WITHIN(bounds, name, Params)                                     \
    DEVICE void name##_of(const Params& params);                                \
    KERNEL_FUNCTION void bounds name(const Params params, const u32* halt) {    \
        if (halt && *halt) {                                                    \
            return;                                                             \
        }                                                                       \
        name##_of(params);                                                      \
    }                                                                           \
    DEVICE void name##_of(const Params& params)
#define WARP 32u
#define FULL_WARP 0xffffffffu

// What a function that waits for others is called with: errors of the emulation name the line that calls it.
#ifdef NESTLING_EMULATION
#define CALLER EMULATION_CALLER
#define CALLER_LINE file, line
#else
#define CALLER
#define CALLER_LINE
#endif

// Shared memory of a block: one thing, so many, or what the launch has room for.
#ifdef NESTLING_EMULATION
#define KERNEL_FUNCTION static
#define CONSTANT static const
#define SHARED(type, name)            \
    static const char name##_key = 0; \
    type& name = *static_cast<type*>(emulation::static_shared(&name##_key, sizeof(type)))
#define SHARED_ARRAY(type, name, count) \
    static const char name##_key = 0;   \
    type* name = static_cast<type*>(emulation::static_shared(&name##_key, sizeof(type) * (count)))
#define DYNAMIC_SHARED(type, name) \
    type* name = static_cast<type*>(emulation::dynamic_shared())
#else
#define KERNEL_FUNCTION extern "C" __global__
#define CONSTANT static __constant__ const
#define SHARED(type, name) __shared__ type name
#define SHARED_ARRAY(type, name, count) __shared__ type name[count]
#define DYNAMIC_SHARED(type, name)                                       \
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[]; \
    type* name = reinterpret_cast<type*>(dynamic_shared_bytes)
#endif

// A barrier of its own for so many threads of a block. Both are numbers in the instruction, so that a block
// takes no more barriers than it names.
template <u32 BARRIER, u32 THREADS>
DEVICE void wait_at_barrier(CALLER) {
#ifdef NESTLING_EMULATION
    emulation::wait_at_barrier(BARRIER, THREADS, false, {CALLER_LINE});
#else
    asm volatile("bar.sync %0, %1;" : : "n"(BARRIER), "n"(THREADS) : "memory");
#endif
}

DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

DEVICE u32 lane_of_thread() { return threadIdx.x % WARP; }

// Byte i of the result is the byte of `high:low` that nibble i of `selector` names. Only nibbles below
// 8 are used here.
DEVICE u32 permute_bytes(u32 low, u32 high, u32 selector) {
#ifdef NESTLING_EMULATION
    u64 both = static_cast<u64>(high) << 32 | low;
    u32 result = 0;
    for (u32 i = 0; i < 4; i++) {
        result |= static_cast<u32>(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    }
    return result;
#else
    u32 result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
    return result;
#endif
}

#ifdef NESTLING_EMULATION
template <class T>
static inline T load_aligned(const void* at) {
    emulation::check_aligned(at, sizeof(T));
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}
#else
template <class T>
DEVICE T load_aligned(const void* at) {
    return *static_cast<const T*>(at);
}
#endif

DEVICE uint4 load_vector(const void* at) { return load_aligned<uint4>(at); }
DEVICE u32 load_word(const void* at) { return load_aligned<u32>(at); }
DEVICE u32 load_half(const void* at) { return load_aligned<u16>(at); }

// Weights are read once: they should not push activations out of the first-level cache. Nobody writes
// them meanwhile, so the compiler may move the load.
DEVICE uint4 load_once(const u8* at) {
#ifdef NESTLING_EMULATION
    return load_vector(at);
#else
    uint4 value;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(at));
    return value;
#endif
}

// Exact, subnormal numbers too.
DEVICE float half_to_float(u32 half) {
#ifdef NESTLING_EMULATION
    u32 magnitude = half & 0x7fff;
    u32 exponent = magnitude >> 10;
    float value;
    if (exponent == 0) {
        value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    } else if (exponent == 31) {
        value = __uint_as_float(0x7f800000u | (magnitude & 0x3ff) << 13);
    } else {
        value = __uint_as_float((magnitude << 13) + (112u << 23));
    }
    return __uint_as_float(__float_as_uint(value) | (half & 0x8000) << 16);
#else
    float value;
    asm("{ .reg .f16 h; mov.b16 h, %1; cvt.f32.f16 %0, h; }"
        : "=f"(value)
        : "h"(static_cast<unsigned short>(half)));
    return value;
#endif
}

// Half to even.
DEVICE u32 float_to_half(float value) {
#ifdef NESTLING_EMULATION
    u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x7f800000) {
        return sign | 0x7c00 | (size > 0x7f800000 ? 0x200 : 0);
    }
    if (size >= 0x477ff000) {
        return sign | 0x7c00;
    }
    u32 shift = 13, mantissa = size;
    if (size < 0x38800000) {
        u32 exponent = size >> 23;
        if (exponent < 102) {
            return sign;
        }
        mantissa = (size & 0x7fffff) | 0x800000;
        shift = 126 - exponent;
    }
    u32 kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
    kept += rest > middle || (rest == middle && (kept & 1));
    return sign | (shift == 13 ? kept - (112u << 10) : kept);
#else
    unsigned short half;
    asm("{ .reg .f16 h; cvt.rn.f16.f32 h, %1; mov.b16 %0, h; }" : "=h"(half) : "f"(value));
    return half;
#endif
}
