// Looks at every access of a kernel to shared and global memory: whether the memory is there and was
// written, and whether something orders it with the accesses of others.
#pragma once

#include "fibers.hpp"

#include <unordered_map>

namespace emulation {

// Who used a place last: the block by its run, the thread, and how often it had passed a barrier.
struct Mark {
    unsigned run;
    unsigned when;
};

// What is known of a place: who wrote it last, and two that have read it since.
struct Cell {
    Mark write, reads[2];
};

// The cells of 4096 bytes: for each four, or where less is used alone, for two or one.
struct Page {
    unsigned shift = 2;
    std::unique_ptr<Cell[]> cells;
};

enum class Use { Read, Write, Atomic };

class Checks {
public:
    // The blocks to come are those of a launch.
    void begin_launch(const Options& options);
    // A block begins: its threads have seen nothing of each other.
    void begin_block(Block& block);
    void end_block(Block& block);
    // Threads have met: what each did before is ordered before what any does from now on.
    void meet(Fiber* const* fibers, size_t count);
    void access(Fiber& fiber, const void* at, size_t bytes, Use use);

private:
    static constexpr size_t PAGE_BYTES = 4096, RECENT = 256;

    // Pages of one address after another, those that were used lately in front.
    struct Pages {
        std::unordered_map<size_t, Page> all;
        struct {
            size_t number;
            Page* page;
        } recent[RECENT] = {};
    };

    Page& page(size_t number);
    const Region* region_of(size_t address, size_t bytes);
    void check_shared(const Fiber& fiber, size_t first, size_t bytes, Use use) const;
    void check_written(Fiber& fiber, const Region& region, size_t address, size_t bytes, Use use);
    void note(Fiber& fiber, Cell& cell, size_t address, size_t bytes, Use use);
    bool is_ordered(const Fiber& fiber, const Mark& mark, bool is_shared) const;
    [[noreturn]] void race(const Fiber& fiber, const Mark& other, bool other_writes, size_t address,
                           size_t bytes, Use use);
    Seen* take(unsigned threads);
    void release(Seen* seen);

    Options options_ = {};
    unsigned first_run_ = 1, next_run_ = 1;
    std::vector<unsigned> numbers_;
    const Region* last_region_ = nullptr;
    Pages pages_;
    std::vector<std::unique_ptr<Seen>> seen_;
    std::vector<Seen*> free_seen_;
};

// Of the launch that this thread of the host runs; null where nothing is looked at.
extern thread_local Checks* checks;

// A fault of the running fiber at some bytes.
Fault fault_at(FaultKind kind, const Fiber& fiber, size_t address, size_t bytes, bool writes);

}  // namespace emulation
