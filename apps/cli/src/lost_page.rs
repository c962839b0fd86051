#![cfg_attr(
    unix,
    expect(unsafe_code, reason = "a signal handler reads, writes and ends the process")
)]
//! What happens when a page of a mapped file is gone: someone cut the file while it was used in place, or its disk
//! failed. The system says so with SIGBUS, which nothing can be computed after.

use nestling::formats::store::MappedStore;

/// Has the end of the process name the store if pages of it are gone. The library installs no handlers; this is the
/// program's.
pub fn watch(mapped: &MappedStore) {
    #[cfg(unix)]
    for range in mapped.addresses() {
        unix::watch(mapped.store().name(), range);
    }
    #[cfg(not(unix))]
    let _ = mapped;
}

#[cfg(unix)]
mod unix {
    use std::ffi::{c_int, c_void};
    use std::ops::Range;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::failure::Exit;

    /// Files that are told apart; those beyond end the process as files that nobody watches.
    const FILES_MAX: usize = 256;

    /// A handler has nothing else to look at: each entry is written once, and never moves.
    static FILES: [OnceLock<WatchedFile>; FILES_MAX] = [const { OnceLock::new() }; FILES_MAX];
    static FILES_TAKEN: AtomicUsize = AtomicUsize::new(0);

    /// What was done about the signal before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    struct WatchedFile {
        addresses: Range<usize>,
        /// All that is said, made while memory could be had.
        message: String,
    }

    pub(super) fn watch(name: &str, addresses: Range<usize>) {
        let message = format!(
            "\nerror: {name}: a page of the file is gone: it was cut while it was used in place, or its disk failed\n  \
             try: leave --load-mode mmap out where others may write the file\n"
        );
        let at = FILES_TAKEN.fetch_add(1, Ordering::Relaxed);
        if let Some(file) = FILES.get(at) {
            file.get_or_init(|| WatchedFile { addresses, message });
        }
        BEFORE.get_or_init(install);
    }

    /// Installs the handler and gives what was there before. Where the system refuses, that stays.
    fn install() -> libc::sigaction {
        // SAFETY: all zeros are a valid `sigaction`: no flags, no signals blocked, the default action.
        let (mut action, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_lost_page;
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both are valid for the call, and the handler only does what a handler may.
        unsafe { libc::sigaction(libc::SIGBUS, &action, &mut before) };
        before
    }

    /// Calls nothing but `write`, `_exit` and `sigaction`, which a handler may call, and allocates nothing.
    extern "C" fn on_lost_page(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the system passes a valid `siginfo_t` to a handler with `SA_SIGINFO`, and SIGBUS has an address.
        let address = unsafe { (*info).si_addr() } as usize;
        // A later map may lie where one was that is gone.
        let mut files = FILES.iter().rev().filter_map(OnceLock::get);
        if let Some(file) = files.find(|file| file.addresses.contains(&address)) {
            // SAFETY: the message is valid for its length, and never changes; `_exit` takes any status.
            unsafe {
                libc::write(libc::STDERR_FILENO, file.message.as_ptr().cast(), file.message.len());
                libc::_exit(i32::from(Exit::FileCut as u8));
            }
        }
        // Somebody else's: the same instruction raises the signal again, for whoever was there before.
        if let Some(before) = BEFORE.get() {
            // SAFETY: it is what the system gave.
            unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
        } else {
            // SAFETY: the default action is always valid.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, File};
    use std::process::Command;
    use std::sync::Arc;

    use nestling::formats::store::Store;

    use crate::failure::Exit;

    /// Names the store that the child is to cut under itself.
    const CHILD: &str = "NESTLING_TEST_CUT_STORE";

    /// Runs itself again, as a process that may end.
    #[test]
    fn a_store_that_is_cut_under_its_reader_is_named() {
        if let Some(path) = std::env::var_os(CHILD) {
            let store = Arc::new(Store::open(&path).unwrap());
            let mapped = crate::mapped::map(store).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
            for extent in mapped.store().index().extents().iter().rev() {
                let _ = mapped.checked_extent(extent);
            }
            unreachable!("a page that is gone was read");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut.nest");
        let bundled =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
        fs::copy(bundled, &path).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "lost_page::tests::a_store_that_is_cut_under_its_reader_is_named"]);
        let output = child.arg("--nocapture").env(CHILD, &path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(i32::from(Exit::FileCut as u8)), "{said}");
        assert!(said.contains("cut.nest: a page of the file is gone"), "{said}");
    }
}
