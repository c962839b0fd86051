//! Memory that this process may still allocate (iOS).
#![expect(unsafe_code, reason = "no library declares this function of iOS")]

unsafe extern "C" {
    // SAFETY: `size_t os_proc_available_memory(void)` in <os/proc.h>, since iOS 13. It has no preconditions.
    safe fn os_proc_available_memory() -> usize;
}

/// Returns the bytes that the process can allocate before iOS ends it, or 0 without such a limit.
pub(super) fn available() -> u64 {
    os_proc_available_memory() as u64
}
