// What compilers call in front of every access where they are told to instrument it for the thread
// sanitizer: here it is this emulation's checks that are called, not the sanitizer.
#include "checks.hpp"

namespace {

using emulation::Use;

void access(const void* at, size_t bytes, Use use) {
    emulation::Fiber* fiber = emulation::running;
    if (!emulation::checks || !fiber) {
        return;
    }
    // A thread's own memory.
    size_t from_stack = static_cast<size_t>(static_cast<const unsigned char*>(at) - fiber->stack);
    if (from_stack >= emulation::STACK_BYTES) {
        emulation::checks->access(*fiber, at, bytes, use);
    }
}

void aligned(const void* at, size_t bytes, Use use) {
    size_t address = reinterpret_cast<size_t>(at);
    emulation::Fiber* fiber = emulation::running;
    if (address % bytes != 0 && emulation::checks && fiber) {
        emulation::fail(
            emulation::fault_at(emulation::FaultKind::Misaligned, *fiber, address, bytes, use != Use::Read));
    }
    access(at, bytes, use);
}

}  // namespace

#define PLAIN(bytes)                                                                         \
    void __tsan_read##bytes(void* at) { aligned(at, bytes, Use::Read); }                     \
    void __tsan_write##bytes(void* at) { aligned(at, bytes, Use::Write); }                   \
    void __tsan_volatile_read##bytes(void* at) { aligned(at, bytes, Use::Read); }            \
    void __tsan_volatile_write##bytes(void* at) { aligned(at, bytes, Use::Write); }          \
    void __tsan_unaligned_read##bytes(void* at) { access(at, bytes, Use::Read); }            \
    void __tsan_unaligned_write##bytes(void* at) { access(at, bytes, Use::Write); }          \
    void __tsan_unaligned_volatile_read##bytes(void* at) { access(at, bytes, Use::Read); }   \
    void __tsan_unaligned_volatile_write##bytes(void* at) { access(at, bytes, Use::Write); }

#define ATOMIC_CHANGE(Type, bits, name)                                                         \
    Type __tsan_atomic##bits##_##name(volatile Type* at, Type value, int) {                     \
        aligned(const_cast<const Type*>(at), sizeof(Type), Use::Atomic);                        \
        return __atomic_##name(at, value, __ATOMIC_SEQ_CST);                                    \
    }

#define ATOMIC(Type, bits)                                                                      \
    Type __tsan_atomic##bits##_load(const volatile Type* at, int) {                             \
        aligned(const_cast<const Type*>(at), sizeof(Type), Use::Atomic);                        \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                           \
    }                                                                                           \
    void __tsan_atomic##bits##_store(volatile Type* at, Type value, int) {                      \
        aligned(const_cast<const Type*>(at), sizeof(Type), Use::Atomic);                        \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                          \
    }                                                                                           \
    Type __tsan_atomic##bits##_exchange(volatile Type* at, Type value, int) {                   \
        aligned(const_cast<const Type*>(at), sizeof(Type), Use::Atomic);                        \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                \
    }                                                                                           \
    Type __tsan_atomic##bits##_compare_exchange_val(volatile Type* at, Type expected, Type value, int, \
                                                    int) {                                      \
        aligned(const_cast<const Type*>(at), sizeof(Type), Use::Atomic);                        \
        __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        return expected;                                                                        \
    }                                                                                           \
    ATOMIC_CHANGE(Type, bits, fetch_add)                                                        \
    ATOMIC_CHANGE(Type, bits, fetch_sub)                                                        \
    ATOMIC_CHANGE(Type, bits, fetch_and)                                                        \
    ATOMIC_CHANGE(Type, bits, fetch_or)                                                         \
    ATOMIC_CHANGE(Type, bits, fetch_xor)

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_read_range(void* at, size_t bytes) { access(at, bytes, Use::Read); }
void __tsan_write_range(void* at, size_t bytes) { access(at, bytes, Use::Write); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
    access(from, bytes, Use::Read);
    access(to, bytes, Use::Write);
    return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
    access(from, bytes, Use::Read);
    access(to, bytes, Use::Write);
    return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
    access(to, bytes, Use::Write);
    return std::memset(to, value, bytes);
}
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
ATOMIC(unsigned, 32)
ATOMIC(unsigned long, 64)
}
