// Starting kernels that the host compiler built.
#pragma once

#include "emulation.hpp"

#include <cstdint>

namespace emulation {

struct Kernel {
    const char* name;
    size_t params_bytes;
    void (*call)(const void* params, const unsigned* halt);
};

struct Size {
    Index grid, block;
    unsigned shared_bytes;
};

// In which order threads run between two barriers, and blocks: a kernel whose result depends on it lacks a
// barrier. At random several blocks are under way at once.
enum class Order : unsigned { Ascending = 0, Descending = 1, Random = 2 };

// Memory of the device.
struct Region {
    uint64_t start, bytes;
    // A bit for each byte that was written; null: all were.
    unsigned char* written;
};

struct Options {
    Order order;
    uint64_t seed;
    // Whether every access is looked at.
    bool is_checked;
    // Ascending; none: all memory is the device's.
    const Region* regions;
    size_t region_count;
    // Nobody waits at a barrier of this line of this file, if there is one: the checks must see that.
    const char* ignored_file;
    unsigned ignored_line;
    // Where lines at which threads waited go; null: nowhere.
    struct Lines* lines;
};

struct Line {
    char file[40];
    unsigned line;
};

constexpr unsigned LINES_MAX = 32;

struct Lines {
    unsigned count;
    Line lines[LINES_MAX];
};

enum class FaultKind : unsigned {
    None = 0,
    // Two threads use a place, at least one of them writes, and nothing orders them.
    Race = 1,
    // Memory that is not the device's, or not the kernel's.
    OutOfBounds = 2,
    // Something is read that nobody wrote.
    Unwritten = 3,
    Misaligned = 4,
    // Threads of a block meet at different lines.
    BarrierPlaces = 5,
    // A barrier waits for a number of threads that is not that of those that come.
    BarrierCount = 6,
    // A thread has ended while others wait for it.
    BarrierExit = 7,
    // A warp operation names lanes that are not there, or not the lane itself.
    WarpLanes = 8,
    // Lanes of a warp meet at different lines.
    WarpPlaces = 9,
    // Threads wait for each other at different things.
    Stuck = 10,
};

enum class Space : unsigned { None = 0, Global = 1, Shared = 2 };

struct FaultThread {
    Index block, thread;
    unsigned writes;
    // Where it waits, if it does.
    unsigned line;
    char file[40];
};

// What a kernel did that a device does not allow, or takes differently each time.
struct Fault {
    FaultKind kind;
    Space space;
    // Of the two.
    unsigned threads;
    // Of a barrier: which one, how many threads it waits for, and how many have come.
    unsigned barrier, expected, arrived;
    // The first byte, in shared memory from its beginning, and how many.
    uint64_t address, bytes;
    // Where the memory that it lies in begins, or 0.
    uint64_t region;
    FaultThread first, second;
};

enum class Outcome {
    Finished = 0,
    Unknown = 1,
    WrongParams = 2,
    TooLarge = 3,
    NoMemory = 4,
    Faulty = 5,
};

Outcome launch(const Kernel& kernel, const Size& size, const void* params, const unsigned* halt,
               const Options& options, Fault& fault);

template <class Params>
static size_t params_bytes(void (*)(Params, const unsigned*)) {
    return sizeof(Params);
}

// What is copied here is the host's.
template <class Params>
__attribute__((no_sanitize("thread"))) static void call(void (*kernel)(Params, const unsigned*),
                                                        const void* params, const unsigned* halt) {
    Params copy;
    std::memcpy(static_cast<void*>(&copy), params, sizeof copy);
    kernel(copy, halt);
}

}  // namespace emulation

// Names the kernel that was included before; `form` is how it was built.
#define EMULATED_KERNEL(form, name)                                                  \
    static void call_##name(const void* params, const unsigned* halt) {              \
        emulation::call(name, params, halt);                                         \
    }                                                                                \
    extern "C" emulation::Kernel form##_##name() {                                   \
        return emulation::Kernel{#name, emulation::params_bytes(name), call_##name}; \
    }
