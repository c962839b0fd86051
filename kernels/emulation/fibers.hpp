// The threads of the blocks that are under way.
#pragma once

#include "launch.hpp"

#include <csetjmp>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace emulation {

constexpr size_t STACK_BYTES = 128 << 10;
// What all blocks of a device can take, and what kernels may declare.
constexpr size_t SHARED_MAX = 227 << 10, STATIC_SHARED_MAX = 48 << 10;
// Variables in shared memory lie so far apart, and this many of them.
constexpr size_t SHARED_GAP = 256, VARIABLES_MAX = 8;
constexpr size_t ARENA_BYTES = SHARED_MAX + (VARIABLES_MAX + 1) * 2 * SHARED_GAP;
constexpr unsigned BARRIERS = 16;

enum class State { Ready, AtBarrier, AtWarp, Finished };

// How far every thread of a block had come when a barrier let some of them go on.
struct Seen {
    unsigned uses = 0;
    std::vector<unsigned> clocks;
};

struct Block;
struct Warp;

struct Fiber {
    // In its block.
    unsigned number = 0;
    Index thread;
    State state = State::Finished;
    Block* block = nullptr;
    Warp* warp = nullptr;
    // What it waits at, and what it said or gave.
    Place place = {nullptr, 0};
    unsigned barrier = 0, mask = 0, source = 0;
    unsigned given[GIVEN_WORDS];
    bool says = false;
    // What it was told or got, and where the words of all go.
    unsigned received = 0;
    unsigned (*gathered)[GIVEN_WORDS] = nullptr;
    // How often it passed a barrier, and what others had done before that.
    unsigned clock = 0;
    Seen* seen = nullptr;

    bool is_started = false;
    jmp_buf left_at;
    ucontext_t start;
    unsigned char* stack = nullptr;

    unsigned lane() const { return number % WARP_LANES; }
};

struct Warp {
    unsigned first, lanes, ready, at_warp;
};

struct Barrier {
    unsigned arrived, expected;
    // The first of those that wait.
    Fiber* waiting;
};

// A variable in shared memory; the first one is what the launch asked for.
struct Variable {
    const void* key;
    size_t first, bytes;
};

// A block that is under way.
struct Block {
    Index index;
    // Its number among the launch's, and among all that this thread of the host ran.
    unsigned number = 0, run = 0;
    unsigned threads = 0, live = 0;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Warp> warps;
    Barrier barriers[BARRIERS];
    std::unique_ptr<unsigned char[]> memory;
    // Of it, from a multiple of 256 on.
    unsigned char* shared = nullptr;
    Variable variables[VARIABLES_MAX + 1];
    size_t variable_count = 0;
};

// The fiber that runs on this thread of the host.
extern thread_local Fiber* running;

// Ends the launch; the running fiber does not go on.
[[noreturn]] void fail(const Fault& fault);
FaultThread fault_thread(const Fiber& fiber, bool writes);
// The same of a thread that is known by its numbers.
FaultThread fault_thread(unsigned block, unsigned thread, bool writes);

}  // namespace emulation
