#![cfg_attr(
    unix,
    expect(unsafe_code, reason = "a signal handler reads, writes and ends the process")
)]
//! SIGBUS handler for mapped files: a page disappears if the file is truncated while in use, or if its disk
//! fails. The program cannot continue after that.

use nestling::formats::store::MappedStore;

/// Registers a mapped store, so that the handler names it in its message when pages disappear. The library
/// installs no signal handlers; only this program does.
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

    /// Maximum number of registered files. Further files end the process without a message of their own.
    const FILES_MAX: usize = 256;

    /// The only state that the handler reads. Each entry is written once and never moves.
    static FILES: [OnceLock<WatchedFile>; FILES_MAX] = [const { OnceLock::new() }; FILES_MAX];
    static FILES_TAKEN: AtomicUsize = AtomicUsize::new(0);

    /// Previous action for the signal.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    struct WatchedFile {
        addresses: Range<usize>,
        /// Complete message, formatted in advance because the handler must not allocate.
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

    /// Installs the handler and returns the previous action. If the system refuses, the previous action stays
    /// active.
    fn install() -> libc::sigaction {
        // SAFETY: all zeros are a valid `sigaction`: no flags, no signals blocked, the default action.
        let (mut action, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_lost_page;
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both pointers are valid for the call, and the handler is async-signal-safe.
        unsafe { libc::sigaction(libc::SIGBUS, &action, &mut before) };
        before
    }

    /// Prints the file's message and exits. Calls only the async-signal-safe functions `write`, `_exit` and
    /// `sigaction`, and does not allocate.
    extern "C" fn on_lost_page(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the system passes a valid `siginfo_t` to a handler with `SA_SIGINFO`, and SIGBUS has an address.
        let address = unsafe { (*info).si_addr() } as usize;
        // Searched backwards, because a later mapping may reuse the addresses of an earlier one.
        let mut files = FILES.iter().rev().filter_map(OnceLock::get);
        if let Some(file) = files.find(|file| file.addresses.contains(&address)) {
            // SAFETY: the message is valid for its length and never changes; `_exit` accepts any status.
            unsafe {
                libc::write(libc::STDERR_FILENO, file.message.as_ptr().cast(), file.message.len());
                libc::_exit(i32::from(Exit::FileCut as u8));
            }
        }
        // The address belongs to no registered file. Returning repeats the instruction, and the signal
        // reaches the previous handler.
        if let Some(before) = BEFORE.get() {
            // SAFETY: the action was returned by the system.
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

    /// Environment variable with the path of the store that the child process truncates.
    const CHILD: &str = "NESTLING_TEST_CUT_STORE";

    /// Runs this test again in a child process, which is expected to exit with [`Exit::FileCut`].
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
