// What Rust calls. `emulated_kernels.hpp` and `params_fields.hpp` are written when the crate is built.
#include "launch.hpp"

#include "../cu/params.cuh"
#include "emulated_kernels.hpp"
#include "params_fields.hpp"

struct EmulatedLaunch {
    const char* name;
    const void* params;
    size_t params_bytes;
    const unsigned* halt;
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    unsigned order;
    uint64_t seed;
    const emulation::Region* regions;
    size_t region_count;
    const char* ignored_file;
    emulation::Lines* lines;
    unsigned ignored_line;
    unsigned is_checked;
};

extern "C" int nestling_emulation_launch(const EmulatedLaunch* launch, emulation::Fault* fault) {
    using namespace emulation;
    for (const EmulatedKernel& forms : emulated_kernels) {
        Kernel kernel = launch->is_checked ? forms.checked() : forms.plain();
        if (std::strcmp(kernel.name, launch->name) != 0) {
            continue;
        }
        if (kernel.params_bytes != launch->params_bytes) {
            return static_cast<int>(Outcome::WrongParams);
        }
        Size size{{launch->grid[0], launch->grid[1], launch->grid[2]},
                  {launch->block[0], launch->block[1], launch->block[2]},
                  launch->shared_bytes};
        Options options{static_cast<Order>(launch->order), launch->seed, launch->is_checked != 0,
                        launch->regions, launch->region_count, launch->ignored_file,
                        launch->ignored_line, launch->lines};
        return static_cast<int>(
            emulation::launch(kernel, size, launch->params, launch->halt, options, *fault));
    }
    return static_cast<int>(Outcome::Unknown);
}

// One field of a struct of parameters by its number; null beyond the last. A struct's own size comes
// in front of its fields, without a name.
extern "C" const char* nestling_emulation_field(size_t index, const char** field, size_t* offset,
                                                size_t* bytes) {
    if (index >= sizeof params_fields / sizeof params_fields[0]) {
        return nullptr;
    }
    *field = params_fields[index].field;
    *offset = params_fields[index].offset;
    *bytes = params_fields[index].bytes;
    return params_fields[index].name;
}
