#include "checks.hpp"

#include <algorithm>

namespace emulation {

namespace {

// A mark's parts: the thread in its block, whether it was an atomic operation, and the clock.
constexpr unsigned THREAD_BITS = 10, ATOMIC = 1u << THREAD_BITS, CLOCK_SHIFT = THREAD_BITS + 1;
constexpr unsigned CLOCK_MAX = ~0u >> CLOCK_SHIFT;

unsigned thread_of(const Mark& mark) { return mark.when & (ATOMIC - 1); }
unsigned clock_of(const Mark& mark) { return mark.when >> CLOCK_SHIFT; }

// Cells for less than there is one for know what the larger one knew.
void refine(Page& page, size_t page_bytes, unsigned shift) {
    size_t each = size_t(1) << (page.shift - shift), count = page_bytes >> shift;
    std::unique_ptr<Cell[]> cells(new Cell[count]);
    for (size_t i = 0; i < count; i++) {
        cells[i] = page.cells[i / each];
    }
    page.cells = std::move(cells);
    page.shift = shift;
}

unsigned shift_of(size_t address, size_t bytes) {
    size_t both = address | bytes;
    return both % 4 == 0 ? 2 : both % 2 == 0 ? 1 : 0;
}

}  // namespace

Fault fault_at(FaultKind kind, const Fiber& fiber, size_t address, size_t bytes, bool writes) {
    Fault fault = {};
    size_t shared = reinterpret_cast<size_t>(fiber.block->shared);
    bool is_shared = address >= shared && address - shared < ARENA_BYTES;
    fault.kind = kind;
    fault.space = is_shared ? Space::Shared : Space::Global;
    fault.address = is_shared ? address - shared : address;
    fault.bytes = bytes;
    fault.threads = 1;
    fault.first = fault_thread(fiber, writes);
    return fault;
}

void Checks::begin_launch(const Options& options) {
    options_ = options;
    last_region_ = nullptr;
    if (next_run_ > 1u << 31) {
        pages_ = {};
        next_run_ = 1;
    }
    first_run_ = next_run_;
    numbers_.clear();
}

void Checks::begin_block(Block& block) {
    block.run = next_run_++;
    numbers_.push_back(block.number);
    Seen* seen = take(block.threads);
    std::fill(seen->clocks.begin(), seen->clocks.end(), 0);
    for (unsigned i = 0; i < block.threads; i++) {
        block.fibers[i]->clock = 1;
        block.fibers[i]->seen = seen;
    }
    seen->uses = block.threads;
}

void Checks::end_block(Block& block) {
    for (unsigned i = 0; i < block.threads; i++) {
        release(block.fibers[i]->seen);
    }
}

Seen* Checks::take(unsigned threads) {
    if (free_seen_.empty()) {
        seen_.push_back(std::make_unique<Seen>());
        free_seen_.push_back(seen_.back().get());
    }
    Seen* seen = free_seen_.back();
    free_seen_.pop_back();
    seen->clocks.resize(threads);
    return seen;
}

void Checks::release(Seen* seen) {
    seen->uses--;
    if (seen->uses == 0) {
        free_seen_.push_back(seen);
    }
}

void Checks::meet(Fiber* const* fibers, size_t count) {
    const Seen* last = fibers[0]->seen;
    Seen* all = take(fibers[0]->block->threads);
    all->clocks = last->clocks;
    for (size_t i = 1; i < count; i++) {
        const Seen* seen = fibers[i]->seen;
        if (seen == last) {
            continue;
        }
        for (size_t thread = 0; thread < all->clocks.size(); thread++) {
            unsigned clock = seen->clocks[thread];
            all->clocks[thread] = clock > all->clocks[thread] ? clock : all->clocks[thread];
        }
        last = seen;
    }
    for (size_t i = 0; i < count; i++) {
        Fiber& fiber = *fibers[i];
        all->clocks[fiber.number] = fiber.clock;
        fiber.clock = fiber.clock < CLOCK_MAX ? fiber.clock + 1 : CLOCK_MAX;
        release(fiber.seen);
        fiber.seen = all;
    }
    all->uses = static_cast<unsigned>(count);
}

Page& Checks::page(size_t number) {
    auto& recent = pages_.recent[number % RECENT];
    if (recent.page == nullptr || recent.number != number) {
        Page& found = pages_.all[number];
        if (!found.cells) {
            found.cells.reset(new Cell[PAGE_BYTES >> found.shift]());
        }
        recent = {number, &found};
    }
    return *recent.page;
}

const Region* Checks::region_of(size_t address, size_t bytes) {
    const Region* region = last_region_;
    if (region == nullptr || address < region->start || address - region->start >= region->bytes) {
        size_t first = 0, end = options_.region_count;
        while (first < end) {
            size_t middle = (first + end) / 2;
            if (options_.regions[middle].start <= address) {
                first = middle + 1;
            } else {
                end = middle;
            }
        }
        if (first == 0) {
            return nullptr;
        }
        region = &options_.regions[first - 1];
        last_region_ = region;
    }
    size_t from = address - region->start;
    return from < region->bytes && bytes <= region->bytes - from ? region : nullptr;
}

void Checks::check_shared(const Fiber& fiber, size_t first, size_t bytes, Use use) const {
    const Block& block = *fiber.block;
    for (size_t i = block.variable_count; i > 0; i--) {
        const Variable& variable = block.variables[i - 1];
        if (first >= variable.first && first + bytes <= variable.first + variable.bytes) {
            return;
        }
    }
    size_t address = reinterpret_cast<size_t>(block.shared) + first;
    fail(fault_at(FaultKind::OutOfBounds, fiber, address, bytes, use != Use::Read));
}

void Checks::check_written(Fiber& fiber, const Region& region, size_t address, size_t bytes, Use use) {
    size_t from = address - region.start;
    for (size_t at = from; at < from + bytes; at++) {
        unsigned char bit = static_cast<unsigned char>(1u << (at % 8));
        unsigned char* byte = &region.written[at / 8];
        if (__atomic_load_n(byte, __ATOMIC_RELAXED) & bit) {
            continue;
        }
        if (use != Use::Write) {
            Fault fault = fault_at(FaultKind::Unwritten, fiber, address, bytes, false);
            fault.region = region.start;
            fail(fault);
        }
        __atomic_fetch_or(byte, bit, __ATOMIC_RELAXED);
    }
}

bool Checks::is_ordered(const Fiber& fiber, const Mark& mark, bool is_shared) const {
    if (mark.run != fiber.block->run) {
        // What is left of another launch; shared memory is of one block after another.
        return is_shared || mark.run < first_run_;
    }
    unsigned thread = thread_of(mark);
    return thread == fiber.number || clock_of(mark) <= fiber.seen->clocks[thread];
}

void Checks::race(const Fiber& fiber, const Mark& other, bool other_writes, size_t address, size_t bytes,
                  Use use) {
    Fault fault = fault_at(FaultKind::Race, fiber, address, bytes, use != Use::Read);
    fault.threads = 2;
    fault.second = fault_thread(numbers_[other.run - first_run_], thread_of(other), other_writes);
    const Region* region = fault.space == Space::Global ? region_of(address, bytes) : nullptr;
    fault.region = region ? region->start : 0;
    fail(fault);
}

void Checks::note(Fiber& fiber, Cell& cell, size_t address, size_t bytes, Use use) {
    bool is_atomic = use == Use::Atomic;
    bool is_shared = address - reinterpret_cast<size_t>(fiber.block->shared) < ARENA_BYTES;
    auto is_fine = [&](const Mark& mark) {
        return is_ordered(fiber, mark, is_shared) || (is_atomic && mark.when & ATOMIC);
    };
    Mark own = {fiber.block->run, fiber.number | (is_atomic ? ATOMIC : 0) | fiber.clock << CLOCK_SHIFT};
    if (!is_fine(cell.write)) {
        race(fiber, cell.write, true, address, bytes, use);
    }
    if (use == Use::Read) {
        for (Mark& read : cell.reads) {
            if (is_ordered(fiber, read, is_shared)) {
                read = own;
                return;
            }
        }
        return;
    }
    for (Mark& read : cell.reads) {
        if (!is_fine(read)) {
            race(fiber, read, false, address, bytes, use);
        }
        read = {};
    }
    cell.write = own;
}

void Checks::access(Fiber& fiber, const void* at, size_t bytes, Use use) {
    size_t address = reinterpret_cast<size_t>(at);
    size_t shared = address - reinterpret_cast<size_t>(fiber.block->shared);
    bool is_shared = shared < ARENA_BYTES;
    if (is_shared) {
        check_shared(fiber, shared, bytes, use);
    } else if (options_.region_count > 0) {
        const Region* region = region_of(address, bytes);
        if (region == nullptr) {
            fail(fault_at(FaultKind::OutOfBounds, fiber, address, bytes, use != Use::Read));
        }
        if (region->written) {
            check_written(fiber, *region, address, bytes, use);
        }
    }
    unsigned shift = shift_of(address, bytes);
    for (size_t end = address + bytes; address < end;) {
        Page& cells = page(address / PAGE_BYTES);
        if (shift < cells.shift) {
            refine(cells, PAGE_BYTES, shift);
        }
        size_t page_end = (address / PAGE_BYTES + 1) * PAGE_BYTES, until = end < page_end ? end : page_end;
        size_t each = size_t(1) << cells.shift;
        for (; address < until; address += each) {
            Cell& cell = cells.cells[address % PAGE_BYTES >> cells.shift];
            if (is_shared && use != Use::Write && cell.write.run != fiber.block->run) {
                fail(fault_at(FaultKind::Unwritten, fiber, address, each, false));
            }
            note(fiber, cell, address, each, use);
        }
    }
}

}  // namespace emulation
