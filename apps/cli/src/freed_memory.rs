//! Memory that the C library keeps after it was freed.
#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the C library is told to return memory")
)]

/// Returns freed memory to the system. glibc keeps it in the heaps of threads otherwise, and a server that opens and
/// closes models would hold more with each.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() {
    // SAFETY: the function has no requirements, and only releases pages of blocks that are free.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing: other C libraries return memory by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}
