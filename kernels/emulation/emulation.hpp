// What kernels see of a device when the host compiler builds them: threads of a block are fibers
// that run one after another and meet at barriers and warp operations. Checks logic, indices and
// bits; neither races between threads that never meet nor speed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>

#define __global__ static
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return float2{x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return uint2{x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return uint4{x, y, z, w};
}

namespace emulation {

struct Index {
    unsigned x, y, z;
};

// Where the running thread is, and what it exchanges with its warp.
struct Thread {
    Index thread, block, block_size, grid_size;
    unsigned lane;
};

extern thread_local Thread* current;

// Waits for all threads of the block, or of the warp.
void wait_for_block();
void wait_for_warp();
// Every lane gives some words, and gets those of another lane, or of all.
unsigned exchange(unsigned value, unsigned source);
const unsigned* gather(const unsigned* words, unsigned count);
// An address that a device would refuse for so many bytes ends the launch as an error.
void check_aligned(const void* at, size_t bytes);
// Shared memory whose size the launch chose.
void* dynamic_shared();

template <class To, class From>
static inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

}  // namespace emulation

#define threadIdx (emulation::current->thread)
#define blockIdx (emulation::current->block)
#define blockDim (emulation::current->block_size)
#define gridDim (emulation::current->grid_size)

static inline void __syncthreads() { emulation::wait_for_block(); }
static inline void __syncwarp() { emulation::wait_for_warp(); }

template <class T>
static inline T __shfl_sync(unsigned, T value, unsigned source) {
    return emulation::bits<T>(emulation::exchange(emulation::bits<unsigned>(value), source & 31));
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, unsigned distance) {
    return __shfl_sync(mask, value, emulation::current->lane ^ distance);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
    unsigned source = emulation::current->lane + distance;
    return __shfl_sync(mask, value, source < 32 ? source : emulation::current->lane);
}

static inline float __uint_as_float(unsigned x) { return emulation::bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return emulation::bits<unsigned>(x); }
static inline float __int_as_float(int x) { return emulation::bits<float>(x); }
static inline int __float_as_int(float x) { return emulation::bits<int>(x); }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

static inline int __dp4a(int a, int b, int sum) {
    for (int byte = 0; byte < 4; byte++) {
        sum += static_cast<signed char>(a >> (8 * byte)) * static_cast<signed char>(b >> (8 * byte));
    }
    return sum;
}
