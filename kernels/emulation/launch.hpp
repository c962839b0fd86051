// Starting kernels that the host compiler built.
#pragma once

#include "emulation.hpp"

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

// In which order the threads of a block run between two barriers: a kernel whose result depends on it
// lacks a barrier.
enum class Order { Ascending, Descending };

enum class Outcome {
    Finished = 0,
    Unknown = 1,
    WrongParams = 2,
    TooLarge = 3,
    NoMemory = 4,
    Diverged = 5,
    Misaligned = 6,
};

Outcome launch(const Kernel& kernel, const Size& size, const void* params, const unsigned* halt,
               Order order);

template <class Params>
static size_t params_bytes(void (*)(Params, const unsigned*)) {
    return sizeof(Params);
}

template <class Params>
static void call(void (*kernel)(Params, const unsigned*), const void* params, const unsigned* halt) {
    Params copy;
    std::memcpy(static_cast<void*>(&copy), params, sizeof copy);
    kernel(copy, halt);
}

}  // namespace emulation

// Names the kernel that was included before.
#define EMULATED_KERNEL(name)                                                        \
    static void call_##name(const void* params, const unsigned* halt) {              \
        emulation::call(name, params, halt);                                         \
    }                                                                                \
    extern "C" emulation::Kernel emulated_##name() {                                 \
        return emulation::Kernel{#name, emulation::params_bytes(name), call_##name}; \
    }
