// What kernels see of a device when the host compiler builds them: threads of a block are fibers
// that run one after another and meet at barriers and warp operations. `fibers.cpp` runs them,
// `checks.cpp` looks at what they read and write.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>

#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
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

// A line of a kernel's text.
#define EMULATION_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace emulation {

constexpr unsigned WARP_LANES = 32;
// Most words that a lane gives to its warp at once.
constexpr unsigned GIVEN_WORDS = 6;

struct Index {
    unsigned x, y, z;
};

struct Place {
    const char* file;
    int line;
};

// Where the running thread is. It stays there, so that the compiler asks once.
[[gnu::const]] Index thread_index();
[[gnu::const]] Index block_index();
[[gnu::const]] Index block_size();
[[gnu::const]] Index grid_size();
[[gnu::const]] unsigned lane_index();

// Waits at a barrier of the block for so many threads; 0: for all of them. Gives whether any of them said
// yes.
bool wait_at_barrier(unsigned barrier, unsigned threads, bool says, Place place);
// Waits for lanes of the warp.
void wait_for_lanes(unsigned mask, Place place);
// Every lane gives a word, and gets that of another lane.
unsigned exchange(unsigned mask, unsigned value, unsigned source, Place place);
// Every lane gives some words, and gets those of all.
void gather(const unsigned* words, unsigned count, unsigned all[][GIVEN_WORDS], Place place);
// An address that a device would refuse for so many bytes ends the launch as an error.
void check_aligned(const void* at, size_t bytes);
// Shared memory whose size the launch chose.
void* dynamic_shared();
// Shared memory of the block, known by the address of something.
void* static_shared(const void* key, size_t bytes);

template <class To, class From>
static inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

}  // namespace emulation

#define threadIdx (emulation::thread_index())
#define blockIdx (emulation::block_index())
#define blockDim (emulation::block_size())
#define gridDim (emulation::grid_size())

static inline void __syncthreads(EMULATION_CALLER) {
    emulation::wait_at_barrier(0, 0, false, {file, line});
}
static inline int __syncthreads_or(int says, EMULATION_CALLER) {
    return emulation::wait_at_barrier(0, 0, says != 0, {file, line});
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATION_CALLER) {
    emulation::wait_for_lanes(mask, {file, line});
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, unsigned source, EMULATION_CALLER) {
    unsigned given = emulation::bits<unsigned>(value);
    return emulation::bits<T>(emulation::exchange(mask, given, source & 31, {file, line}));
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, unsigned distance, EMULATION_CALLER) {
    return __shfl_sync(mask, value, emulation::lane_index() ^ distance, file, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned distance, EMULATION_CALLER) {
    unsigned lane = emulation::lane_index(), source = lane + distance;
    return __shfl_sync(mask, value, source < 32 ? source : lane, file, line);
}

static inline unsigned atomicAdd(unsigned* at, unsigned value) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
static inline unsigned atomicOr(unsigned* at, unsigned value) {
    return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
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
