// Threads as fibers: a thread runs until it has to wait for others. `makecontext` makes their stacks;
// after that they are left and entered by `_setjmp` and `_longjmp`, which ask nothing of the kernel.
#undef _FORTIFY_SOURCE
#include "launch.hpp"

#include <csetjmp>
#include <cstdlib>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

namespace emulation {

namespace {

constexpr size_t STACK_BYTES = 128 << 10;
constexpr unsigned WARP = 32;
constexpr unsigned WORDS = 8;

enum class State { Ready, AtBlock, AtWarp, Finished };

struct Warp {
    // Of the exchange that goes on and of the one before it, whose readers may be late.
    unsigned slots[2][WARP * WORDS];
};

struct Fiber {
    Thread thread;
    State state = State::Finished;
    Warp* warp = nullptr;
    unsigned parity = 0;
    bool is_started = false;
    jmp_buf place;
    ucontext_t start;
    void* stack = nullptr;
};

// The threads of the block that runs on this thread of the host.
struct Pool {
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Warp> warps;
    std::vector<unsigned char> shared;
    jmp_buf scheduler;
    Fiber* running = nullptr;
    const Kernel* kernel = nullptr;
    const void* params = nullptr;
    const unsigned* halt = nullptr;
    bool is_misaligned = false;

    ~Pool() { clear(); }

    void clear() {
        for (auto& fiber : fibers) {
            if (fiber->stack) {
                munmap(fiber->stack, STACK_BYTES);
            }
        }
        fibers.clear();
    }
};

thread_local Pool pool;

void leave(State state) {
    Fiber* fiber = pool.running;
    fiber->state = state;
    if (_setjmp(fiber->place) == 0) {
        _longjmp(pool.scheduler, 1);
    }
}

void fiber_main() {
    for (;;) {
        pool.kernel->call(pool.params, pool.halt);
        leave(State::Finished);
    }
}

bool prepare(unsigned threads) {
    while (pool.fibers.size() < threads) {
        auto fiber = std::make_unique<Fiber>();
        void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED || getcontext(&fiber->start) != 0) {
            return false;
        }
        fiber->stack = stack;
        fiber->start.uc_stack.ss_sp = stack;
        fiber->start.uc_stack.ss_size = STACK_BYTES;
        fiber->start.uc_link = nullptr;
        makecontext(&fiber->start, fiber_main, 0);
        pool.fibers.push_back(std::move(fiber));
    }
    return true;
}

void resume(Fiber* fiber) {
    pool.running = fiber;
    current = &fiber->thread;
    if (_setjmp(pool.scheduler) == 0) {
        if (fiber->is_started) {
            _longjmp(fiber->place, 1);
        }
        fiber->is_started = true;
        setcontext(&fiber->start);
    }
}

// Runs the lanes of one warp until each has ended or waits for the block. False: some wait for lanes
// that never come.
bool run_warp(unsigned first, unsigned end, Order order) {
    for (;;) {
        unsigned waiting = 0, at_block = 0;
        for (unsigned i = 0; i < end - first; i++) {
            unsigned index = order == Order::Ascending ? first + i : end - 1 - i;
            Fiber* fiber = pool.fibers[index].get();
            if (fiber->state == State::Ready) {
                resume(fiber);
            }
            waiting += fiber->state == State::AtWarp;
            at_block += fiber->state == State::AtBlock;
        }
        if (waiting == 0) {
            return true;
        }
        if (waiting < end - first) {
            return false;
        }
        for (unsigned i = first; i < end; i++) {
            pool.fibers[i]->state = State::Ready;
        }
    }
}

bool run_block(unsigned threads, Order order) {
    unsigned warps = (threads + WARP - 1) / WARP;
    for (;;) {
        for (unsigned i = 0; i < warps; i++) {
            unsigned warp = order == Order::Ascending ? i : warps - 1 - i;
            unsigned end = (warp + 1) * WARP < threads ? (warp + 1) * WARP : threads;
            if (!run_warp(warp * WARP, end, order)) {
                return false;
            }
        }
        unsigned waiting = 0;
        for (unsigned i = 0; i < threads; i++) {
            Fiber* fiber = pool.fibers[i].get();
            if (fiber->state == State::AtBlock) {
                fiber->state = State::Ready;
                waiting++;
            }
        }
        if (waiting == 0) {
            return true;
        }
    }
}

void place_threads(const Size& size, Index block, unsigned threads) {
    for (unsigned i = 0; i < threads; i++) {
        Fiber* fiber = pool.fibers[i].get();
        const Index& of = size.block;
        fiber->thread.thread = Index{i % of.x, i / of.x % of.y, i / of.x / of.y};
        fiber->thread.block = block;
        fiber->thread.block_size = of;
        fiber->thread.grid_size = size.grid;
        fiber->thread.lane = i % WARP;
        fiber->warp = &pool.warps[i / WARP];
        fiber->parity = 0;
        fiber->state = State::Ready;
    }
}

}  // namespace

thread_local Thread* current = nullptr;

void wait_for_block() { leave(State::AtBlock); }
void wait_for_warp() { leave(State::AtWarp); }

const unsigned* gather(const unsigned* words, unsigned count) {
    Fiber* fiber = pool.running;
    unsigned* slots = fiber->warp->slots[fiber->parity];
    fiber->parity ^= 1;
    std::memcpy(slots + fiber->thread.lane * WORDS, words, count * sizeof(unsigned));
    leave(State::AtWarp);
    return slots;
}

unsigned exchange(unsigned value, unsigned source) { return gather(&value, 1)[source * WORDS]; }

void check_aligned(const void* at, size_t bytes) {
    pool.is_misaligned |= reinterpret_cast<size_t>(at) % bytes != 0;
}

void* dynamic_shared() { return pool.shared.data(); }

Outcome launch(const Kernel& kernel, const Size& size, const void* params, const unsigned* halt,
               Order order) {
    unsigned threads = size.block.x * size.block.y * size.block.z;
    if (threads == 0 || threads > 1024 || size.shared_bytes > 227u << 10) {
        return Outcome::TooLarge;
    }
    if (!prepare(threads)) {
        return Outcome::NoMemory;
    }
    pool.warps.resize((threads + WARP - 1) / WARP);
    pool.kernel = &kernel;
    pool.params = params;
    pool.halt = halt;
    pool.is_misaligned = false;
    for (unsigned z = 0; z < size.grid.z; z++) {
        for (unsigned y = 0; y < size.grid.y; y++) {
            for (unsigned x = 0; x < size.grid.x; x++) {
                // What was never written is NaN.
                pool.shared.assign(size.shared_bytes, 0xff);
                place_threads(size, Index{x, y, z}, threads);
                if (!run_block(threads, order)) {
                    // Their stacks are in the middle of something.
                    pool.clear();
                    return Outcome::Diverged;
                }
            }
        }
    }
    return pool.is_misaligned ? Outcome::Misaligned : Outcome::Finished;
}

}  // namespace emulation
