// Threads as fibers: a thread runs until it has to wait for others. `makecontext` makes their stacks;
// after that they are left and entered by `_setjmp` and `_longjmp`, which ask nothing of the kernel.
#undef _FORTIFY_SOURCE
#include "checks.hpp"

#include <cstdlib>
#include <numeric>
#include <sys/mman.h>

namespace emulation {

thread_local Fiber* running = nullptr;
thread_local Checks* checks = nullptr;

namespace {

// Blocks that are under way together, at most.
constexpr unsigned TOGETHER_MAX = 3;

struct Random {
    uint64_t state;

    uint64_t next() {
        uint64_t mixed = state += 0x9e3779b97f4a7c15u;
        mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
        return mixed ^ mixed >> 31;
    }
    unsigned below(unsigned end) { return static_cast<unsigned>((next() >> 32) * end >> 32); }
};

// What runs on this thread of the host.
struct Pool {
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<Fiber*> meeting;
    jmp_buf scheduler;
    const Kernel* kernel = nullptr;
    const void* params = nullptr;
    const unsigned* halt = nullptr;
    Size size = {};
    Outcome outcome = Outcome::Finished;
    Fault fault = {};
    Random random = {0};
    Options options = {};
    std::unique_ptr<Checks> checks;

    ~Pool() { clear(); }

    void clear() {
        for (auto& block : blocks) {
            for (auto& fiber : block->fibers) {
                if (fiber->stack) {
                    munmap(fiber->stack, STACK_BYTES);
                }
            }
        }
        blocks.clear();
    }
};

thread_local Pool pool;

void leave() {
    if (_setjmp(running->left_at) == 0) {
        _longjmp(pool.scheduler, 1);
    }
}

void wait_as(State state) {
    running->state = state;
    running->warp->ready--;
    leave();
}

void fiber_main() {
    for (;;) {
        pool.kernel->call(pool.params, pool.halt);
        running->block->live--;
        wait_as(State::Finished);
    }
}

[[noreturn]] void end_launch(Outcome outcome) {
    pool.outcome = outcome;
    _longjmp(pool.scheduler, 1);
}

void resume(Fiber* fiber) {
    running = fiber;
    if (_setjmp(pool.scheduler) == 0) {
        if (fiber->is_started) {
            _longjmp(fiber->left_at, 1);
        }
        fiber->is_started = true;
        setcontext(&fiber->start);
    }
}

void make_ready(Fiber& fiber) {
    if (fiber.state != State::Ready) {
        fiber.state = State::Ready;
        fiber.warp->ready++;
    }
}

bool is_same(const Place& one, const Place& other) {
    return one.line == other.line && (one.file == other.file || std::strcmp(one.file, other.file) == 0);
}

Fault fault_of(FaultKind kind, const Fiber& one, const Fiber* other) {
    Fault fault = {};
    fault.kind = kind;
    fault.threads = other ? 2 : 1;
    fault.first = fault_thread(one, false);
    if (other) {
        fault.second = fault_thread(*other, false);
    }
    return fault;
}

Fault barrier_fault(FaultKind kind, const Fiber& one, const Fiber* other, unsigned expected, unsigned arrived) {
    Fault fault = fault_of(kind, one, other);
    fault.barrier = one.barrier;
    fault.expected = expected;
    fault.arrived = arrived;
    return fault;
}

const char* file_name(const Place& place) {
    const char* slash = std::strrchr(place.file, '/');
    return slash ? slash + 1 : place.file;
}

// Notes a line where threads wait. False: nobody is to wait there.
bool is_waited_at(const Place& place) {
    const Options& options = pool.options;
    unsigned line = static_cast<unsigned>(place.line);
    if (options.ignored_file && options.ignored_line == line &&
        std::strcmp(options.ignored_file, file_name(place)) == 0) {
        return false;
    }
    Lines* lines = options.lines;
    if (!lines) {
        return true;
    }
    for (unsigned i = 0; i < lines->count; i++) {
        if (lines->lines[i].line == line && std::strcmp(lines->lines[i].file, file_name(place)) == 0) {
            return true;
        }
    }
    if (lines->count < LINES_MAX) {
        Line& added = lines->lines[lines->count++];
        std::strncpy(added.file, file_name(place), sizeof added.file - 1);
        added.line = line;
    }
    return true;
}

void release_barrier(Block& block, unsigned number) {
    bool says = false;
    pool.meeting.clear();
    for (unsigned i = 0; i < block.threads; i++) {
        Fiber* fiber = block.fibers[i].get();
        if (fiber == running || (fiber->state == State::AtBarrier && fiber->barrier == number)) {
            says |= fiber->says;
            pool.meeting.push_back(fiber);
        }
    }
    for (Fiber* fiber : pool.meeting) {
        fiber->received = says;
        make_ready(*fiber);
    }
    if (checks) {
        checks->meet(pool.meeting.data(), pool.meeting.size());
    }
    block.barriers[number] = {};
}

// Whether all lanes of the mask wait for each other.
bool are_lanes_here(const Fiber& fiber) {
    const Warp& warp = *fiber.warp;
    pool.meeting.clear();
    for (unsigned lane = 0; lane < warp.lanes; lane++) {
        if (!(fiber.mask >> lane & 1)) {
            continue;
        }
        Fiber* other = fiber.block->fibers[warp.first + lane].get();
        if (other != &fiber && (other->state != State::AtWarp || other->mask != fiber.mask)) {
            return false;
        }
        if (!is_same(other->place, fiber.place)) {
            fail(fault_of(FaultKind::WarpPlaces, fiber, other));
        }
        pool.meeting.push_back(other);
    }
    return true;
}

// Once all are here, `give` is called with each of them.
template <class Give>
void meet_lanes(unsigned mask, Place place, Give give) {
    Fiber& fiber = *running;
    Warp& warp = *fiber.warp;
    fiber.mask = mask;
    fiber.place = place;
    bool names_absent = warp.lanes < WARP_LANES && mask >> warp.lanes != 0;
    if (names_absent || !(mask >> fiber.lane() & 1)) {
        fail(fault_of(FaultKind::WarpLanes, fiber, nullptr));
    }
    warp.at_warp++;
    if (warp.at_warp < static_cast<unsigned>(__builtin_popcount(mask)) || !are_lanes_here(fiber)) {
        wait_as(State::AtWarp);
        return;
    }
    for (Fiber* lane : pool.meeting) {
        give(*lane);
        make_ready(*lane);
        warp.at_warp--;
    }
    leave();
}

void take_word(Fiber& fiber) {
    const Fiber& source = *fiber.block->fibers[fiber.warp->first + fiber.source];
    if (!(fiber.mask >> fiber.source & 1)) {
        fail(fault_of(FaultKind::WarpLanes, fiber, &source));
    }
    fiber.received = source.given[0];
}

// Why nothing of a block goes on.
Fault stuck(const Block& block) {
    const Fiber *waiting = nullptr, *ended = nullptr, *elsewhere = nullptr;
    for (unsigned i = 0; i < block.threads; i++) {
        const Fiber* fiber = block.fibers[i].get();
        if (fiber->state == State::Finished) {
            ended = ended ? ended : fiber;
        } else if (!waiting || (waiting->state == State::AtBarrier && fiber->state == State::AtWarp)) {
            // Lanes that wait for lanes keep others waiting at barriers.
            waiting = fiber;
        }
    }
    for (unsigned i = 0; i < block.threads; i++) {
        const Fiber* fiber = block.fibers[i].get();
        bool is_alike = fiber->state == waiting->state && fiber->barrier == waiting->barrier;
        if (fiber->state != State::Finished && (!is_alike || !is_same(fiber->place, waiting->place))) {
            elsewhere = elsewhere ? elsewhere : fiber;
        }
    }
    if (waiting->state == State::AtWarp) {
        for (unsigned lane = 0; lane < waiting->warp->lanes; lane++) {
            const Fiber& other = *block.fibers[waiting->warp->first + lane];
            if (waiting->mask >> lane & 1 && other.state == State::Finished) {
                return fault_of(FaultKind::WarpLanes, *waiting, &other);
            }
            if (waiting->mask >> lane & 1 && (other.state != State::AtWarp || other.mask != waiting->mask)) {
                return fault_of(FaultKind::WarpPlaces, *waiting, &other);
            }
        }
        return fault_of(FaultKind::Stuck, *waiting, elsewhere);
    }
    const Barrier& barrier = block.barriers[waiting->barrier];
    FaultKind kind = FaultKind::Stuck;
    if (elsewhere == nullptr) {
        kind = barrier.expected == block.threads && waiting->barrier == 0 ? FaultKind::BarrierExit
                                                                          : FaultKind::BarrierCount;
    }
    return barrier_fault(kind, *waiting, elsewhere ? elsewhere : ended, barrier.expected, barrier.arrived);
}

bool prepare(Block& block, unsigned threads) {
    if (!block.memory) {
        block.memory = std::make_unique<unsigned char[]>(ARENA_BYTES + SHARED_GAP);
        size_t first = reinterpret_cast<size_t>(block.memory.get());
        block.shared = block.memory.get() + (SHARED_GAP - first % SHARED_GAP);
    }
    while (block.fibers.size() < threads) {
        auto fiber = std::make_unique<Fiber>();
        void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED || getcontext(&fiber->start) != 0) {
            return false;
        }
        fiber->stack = static_cast<unsigned char*>(stack);
        fiber->start.uc_stack.ss_sp = stack;
        fiber->start.uc_stack.ss_size = STACK_BYTES;
        fiber->start.uc_link = nullptr;
        makecontext(&fiber->start, fiber_main, 0);
        block.fibers.push_back(std::move(fiber));
    }
    block.warps.resize((threads + WARP_LANES - 1) / WARP_LANES);
    return true;
}

Index index_of(uint64_t number, const Index& size) {
    return Index{static_cast<unsigned>(number % size.x), static_cast<unsigned>(number / size.x % size.y),
                 static_cast<unsigned>(number / size.x / size.y)};
}

void start_block(Block& block, uint64_t number, unsigned threads) {
    block.index = index_of(number, pool.size.grid);
    block.number = static_cast<unsigned>(number);
    block.threads = block.live = threads;
    for (Barrier& barrier : block.barriers) {
        barrier = {};
    }
    // What was never written is NaN.
    block.variables[0] = {nullptr, 0, pool.size.shared_bytes};
    block.variable_count = 1;
    std::memset(block.shared, 0xff, pool.size.shared_bytes);
    for (unsigned i = 0; i < block.warps.size(); i++) {
        unsigned left = threads - i * WARP_LANES, lanes = left < WARP_LANES ? left : WARP_LANES;
        block.warps[i] = {i * WARP_LANES, lanes, lanes, 0};
    }
    for (unsigned i = 0; i < threads; i++) {
        Fiber& fiber = *block.fibers[i];
        fiber.number = i;
        fiber.thread = index_of(i, pool.size.block);
        fiber.block = &block;
        fiber.warp = &block.warps[i / WARP_LANES];
        fiber.state = State::Ready;
        fiber.place = {nullptr, 0};
    }
    if (checks) {
        checks->begin_block(block);
    }
}

// One after another every lane that can go on, until each of them waits or has ended.
void run_warp(const Warp& warp, const Block& block, Order order) {
    unsigned first = 0;
    bool is_upward = order == Order::Ascending;
    if (order == Order::Random) {
        first = pool.random.below(warp.lanes);
        is_upward = pool.random.below(2) == 0;
    }
    for (unsigned i = 0; i < warp.lanes; i++) {
        unsigned lane = (is_upward ? first + i : first + warp.lanes - 1 - i) % warp.lanes;
        Fiber* fiber = block.fibers[warp.first + lane].get();
        if (fiber->state == State::Ready) {
            resume(fiber);
            if (pool.outcome != Outcome::Finished) {
                return;
            }
        }
    }
}

// Which block comes next.
struct BlockOrder {
    Order order;
    uint64_t count, factor = 1, first = 0;

    BlockOrder(Order order, uint64_t count) : order(order), count(count) {
        if (order == Order::Random) {
            first = pool.random.next() % count;
            factor = pool.random.next() % count;
            while (std::gcd(factor, count) != 1) {
                factor++;
            }
        }
    }

    uint64_t at(uint64_t place) const {
        if (order == Order::Random) {
            return static_cast<uint64_t>((static_cast<unsigned __int128>(place) * factor + first) % count);
        }
        return order == Order::Ascending ? place : count - 1 - place;
    }
};

// A warp that can go on and its block; null: none can.
struct Choice {
    Block* block;
    Warp* warp;
};

Choice choose(unsigned together, unsigned warps, Order order, unsigned& cursor) {
    unsigned all = together * warps;
    if (order == Order::Random) {
        cursor = pool.random.below(all);
    }
    for (unsigned i = 0; i < all; i++) {
        unsigned at = (cursor + i) % all;
        Block* block = pool.blocks[at / warps].get();
        unsigned number = order == Order::Descending ? warps - 1 - at % warps : at % warps;
        if (block->live > 0 && block->warps[number].ready > 0) {
            cursor = at;
            return {block, &block->warps[number]};
        }
    }
    return {nullptr, nullptr};
}

void run_blocks(unsigned threads, Order order) {
    const Index& grid = pool.size.grid;
    uint64_t count = static_cast<uint64_t>(grid.x) * grid.y * grid.z, started = 0, ended = 0;
    if (count == 0) {
        return;
    }
    unsigned together = order == Order::Random ? 1 + pool.random.below(TOGETHER_MAX) : 1;
    together = count < together ? static_cast<unsigned>(count) : together;
    while (pool.blocks.size() < together) {
        pool.blocks.push_back(std::make_unique<Block>());
    }
    BlockOrder blocks(order, count);
    for (unsigned i = 0; i < together; i++) {
        if (!prepare(*pool.blocks[i], threads)) {
            pool.outcome = Outcome::NoMemory;
            return;
        }
        start_block(*pool.blocks[i], blocks.at(started++), threads);
    }
    unsigned warps = (threads + WARP_LANES - 1) / WARP_LANES, cursor = 0;
    while (ended < count) {
        Choice choice = choose(together, warps, order, cursor);
        if (!choice.block) {
            unsigned slot = 0;
            while (pool.blocks[slot]->live == 0) {
                slot++;
            }
            pool.fault = stuck(*pool.blocks[slot]);
            pool.outcome = Outcome::Faulty;
            return;
        }
        run_warp(*choice.warp, *choice.block, order);
        if (pool.outcome != Outcome::Finished) {
            return;
        }
        if (choice.block->live == 0) {
            if (checks) {
                checks->end_block(*choice.block);
            }
            ended++;
            if (started < count) {
                start_block(*choice.block, blocks.at(started++), threads);
                cursor = order == Order::Random ? cursor : 0;
            }
        }
    }
}

}  // namespace

Index thread_index() { return running->thread; }
Index block_index() { return running->block->index; }
Index block_size() { return pool.size.block; }
Index grid_size() { return pool.size.grid; }
unsigned lane_index() { return running->lane(); }

void fail(const Fault& fault) {
    pool.fault = fault;
    end_launch(Outcome::Faulty);
}

FaultThread fault_thread(const Fiber& fiber, bool writes) {
    FaultThread thread = {};
    thread.block = fiber.block->index;
    thread.thread = fiber.thread;
    thread.writes = writes;
    if (&fiber == running ? fiber.place.file != nullptr
                          : fiber.state == State::AtBarrier || fiber.state == State::AtWarp) {
        std::strncpy(thread.file, file_name(fiber.place), sizeof thread.file - 1);
        thread.line = static_cast<unsigned>(fiber.place.line);
    }
    return thread;
}

FaultThread fault_thread(unsigned block, unsigned thread, bool writes) {
    FaultThread named = {};
    named.block = index_of(block, pool.size.grid);
    named.thread = index_of(thread, pool.size.block);
    named.writes = writes;
    return named;
}

bool wait_at_barrier(unsigned number, unsigned threads, bool says, Place place) {
    if (!is_waited_at(place)) {
        return says;
    }
    Fiber& fiber = *running;
    Block& block = *fiber.block;
    unsigned expected = threads > 0 ? threads : block.threads;
    Barrier& barrier = block.barriers[number % BARRIERS];
    fiber.barrier = number;
    fiber.place = place;
    fiber.says = says;
    bool is_wrong = number >= BARRIERS || threads % WARP_LANES != 0 || threads > block.threads;
    if (is_wrong || (barrier.arrived > 0 && barrier.expected != expected)) {
        fail(barrier_fault(FaultKind::BarrierCount, fiber, barrier.waiting, expected, barrier.arrived));
    }
    if (barrier.arrived > 0 && threads == 0 && !is_same(barrier.waiting->place, place)) {
        fail(barrier_fault(FaultKind::BarrierPlaces, fiber, barrier.waiting, expected, barrier.arrived));
    }
    barrier.expected = expected;
    barrier.waiting = barrier.arrived > 0 ? barrier.waiting : &fiber;
    barrier.arrived++;
    if (barrier.arrived < expected) {
        wait_as(State::AtBarrier);
    } else {
        release_barrier(block, number);
        leave();
    }
    return fiber.received != 0;
}

void wait_for_lanes(unsigned mask, Place place) {
    if (!is_waited_at(place)) {
        return;
    }
    meet_lanes(mask, place, [](const Fiber& fiber) {
        // Other operations of a warp order no memory.
        if (checks && &fiber == pool.meeting.front()) {
            checks->meet(pool.meeting.data(), pool.meeting.size());
        }
    });
}

unsigned exchange(unsigned mask, unsigned value, unsigned source, Place place) {
    running->given[0] = value;
    running->source = source;
    meet_lanes(mask, place, take_word);
    return running->received;
}

void gather(const unsigned* words, unsigned count, unsigned all[][GIVEN_WORDS], Place place) {
    std::memcpy(running->given, words, count * sizeof *words);
    running->gathered = all;
    meet_lanes(0xffffffffu, place, [](Fiber& fiber) {
        for (unsigned lane = 0; lane < fiber.warp->lanes; lane++) {
            const Fiber& other = *fiber.block->fibers[fiber.warp->first + lane];
            std::memcpy(fiber.gathered[lane], other.given, sizeof other.given);
        }
    });
}

void check_aligned(const void* at, size_t bytes) {
    if (reinterpret_cast<size_t>(at) % bytes != 0) {
        fail(fault_at(FaultKind::Misaligned, *running, reinterpret_cast<size_t>(at), bytes, false));
    }
}

void* dynamic_shared() { return running->block->shared; }

void* static_shared(const void* key, size_t bytes) {
    Block& block = *running->block;
    size_t declared = 0;
    for (size_t i = 1; i < block.variable_count; i++) {
        if (block.variables[i].key == key) {
            return block.shared + block.variables[i].first;
        }
        declared += block.variables[i].bytes;
    }
    if (declared + bytes > STATIC_SHARED_MAX || declared + bytes + pool.size.shared_bytes > SHARED_MAX ||
        block.variable_count > VARIABLES_MAX) {
        end_launch(Outcome::TooLarge);
    }
    const Variable& last = block.variables[block.variable_count - 1];
    size_t first = (last.first + last.bytes + 2 * SHARED_GAP - 1) / SHARED_GAP * SHARED_GAP;
    block.variables[block.variable_count++] = {key, first, bytes};
    std::memset(block.shared + first, 0xff, bytes);
    return block.shared + first;
}

Outcome launch(const Kernel& kernel, const Size& size, const void* params, const unsigned* halt,
               const Options& options, Fault& fault) {
    unsigned threads = size.block.x * size.block.y * size.block.z;
    if (threads == 0 || threads > 1024 || size.shared_bytes > SHARED_MAX) {
        return Outcome::TooLarge;
    }
    pool.kernel = &kernel;
    pool.params = params;
    pool.halt = halt;
    pool.size = size;
    pool.outcome = Outcome::Finished;
    pool.random = {options.seed};
    pool.options = options;
    if (options.is_checked && !pool.checks) {
        pool.checks = std::make_unique<Checks>();
    }
    checks = options.is_checked ? pool.checks.get() : nullptr;
    if (checks) {
        checks->begin_launch(options);
    }
    run_blocks(threads, options.order);
    running = nullptr;
    if (pool.outcome != Outcome::Finished) {
        // Their stacks are in the middle of something.
        pool.clear();
        pool.checks.reset();
        fault = pool.fault;
    }
    checks = nullptr;
    return pool.outcome;
}

}  // namespace emulation
