//! A device of host memory: everything is done at once, and kernels are functions of the host.

#![expect(unsafe_code, reason = "kernels find memory by its address, as on a device")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Address;
use super::commands::{Command, Commands};
use super::cuda::PinnedBytes;
use crate::error::CudaError;
use crate::params::Launch;

/// Runs a kernel on the host: blocks and threads as given, parameters at a multiple of 16. Addresses
/// among them are those of host memory, and so is that of the word that halts it, 0 for none.
pub type HostLaunch = fn(&Launch, &[u8], u64) -> Result<(), CudaError>;

/// Alignment of all memory.
const ALIGN: usize = 256;

/// Bytes behind an allocation that nobody may write.
const GUARD_BYTES: usize = 256;

/// What they hold.
const GUARD: u8 = 0xa5;

/// The device.
pub(crate) struct Emulated {
    launch: HostLaunch,
    memory: Mutex<HashMap<Address, Layout>>,
    /// Kernels that are still run before the device is lost.
    left: AtomicU64,
    late: Mutex<LateCopies>,
}

/// Copies that may be done later than all else.
#[derive(Default)]
struct LateCopies {
    /// Bytes, and where they go.
    copies: Vec<(Vec<u8>, Address)>,
    /// How often somebody asks before they are done, and how often somebody may still ask.
    questions: u64,
    left: u64,
}

impl Emulated {
    pub fn new(launch: HostLaunch) -> Self {
        Self {
            launch,
            memory: Mutex::default(),
            left: AtomicU64::new(u64::MAX),
            late: Mutex::default(),
        }
    }

    fn late(&self) -> MutexGuard<'_, LateCopies> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Late copies are done when somebody waits for them, or has asked so often.
    pub fn delay_copies(&self, questions: u64) {
        self.late().questions = questions;
    }

    /// As [`Emulated::copy_in`], but maybe later.
    ///
    /// # Errors
    /// Memory that was not allocated.
    pub fn copy_in_late(&self, source: &[u8], to: Address) -> Result<(), CudaError> {
        let mut late = self.late();
        if late.questions == 0 {
            drop(late);
            return self.copy_in(source, to);
        }
        late.left = late.questions;
        late.copies.push((source.to_vec(), to));
        Ok(())
    }

    /// Whether late copies are done, which they are once this was asked often enough.
    ///
    /// # Errors
    /// As [`Emulated::copy_in`].
    pub fn are_late_copies_done(&self) -> Result<bool, CudaError> {
        let mut late = self.late();
        if !late.copies.is_empty() && late.left > 0 {
            late.left -= 1;
            return Ok(false);
        }
        drop(late);
        self.do_late_copies().map(|()| true)
    }

    /// Does all late copies.
    ///
    /// # Errors
    /// As [`Emulated::copy_in`].
    pub fn do_late_copies(&self) -> Result<(), CudaError> {
        let copies = std::mem::take(&mut self.late().copies);
        copies.iter().try_for_each(|(bytes, to)| self.copy_in(bytes, *to))
    }

    /// Waits for something, which is a late copy or not.
    ///
    /// # Errors
    /// As [`Emulated::copy_in`].
    pub fn wait(&self, is_late: bool) -> Result<(), CudaError> {
        if is_late { self.do_late_copies() } else { Ok(()) }
    }

    /// The device is lost when so many kernels more were run.
    pub fn lose_after(&self, kernels: u64) {
        self.left.store(kernels, Ordering::Relaxed);
    }

    fn run_kernel(&self, launch: &Launch, params: &[u8], halt: Address) -> Result<(), CudaError> {
        let one_less = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(_) => (self.launch)(launch, params, halt),
            Err(_) => Err(CudaError::Lost { reason: "as it was told to be".into() }),
        }
    }

    fn blocks(&self) -> MutexGuard<'_, HashMap<Address, Layout>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn allocate(&self, what: &'static str, bytes: u64) -> Result<Address, CudaError> {
        let full = || CudaError::OutOfMemory { what, bytes };
        let size = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(GUARD_BYTES));
        let layout = size.and_then(|size| Layout::from_size_align(size, ALIGN).ok());
        let layout = layout.ok_or_else(full)?;
        // SAFETY: the layout is not empty, since it holds the guard.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(full());
        }
        // SAFETY: the last bytes of what was just allocated.
        unsafe { start.add(layout.size() - GUARD_BYTES).write_bytes(GUARD, GUARD_BYTES) };
        let address = start.expose_provenance() as Address;
        self.blocks().insert(address, layout);
        Ok(address)
    }

    /// Gives memory back; the guard behind it must be whole.
    pub fn free(&self, address: Address) {
        let Some(layout) = self.blocks().remove(&address) else { return };
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: it was allocated with this layout and was not given back, since it was listed.
        let is_whole = unsafe {
            let guard = start.add(layout.size() - GUARD_BYTES);
            let is_whole =
                std::slice::from_raw_parts(guard, GUARD_BYTES).iter().all(|byte| *byte == GUARD);
            dealloc(start, layout);
            is_whole
        };
        debug_assert!(is_whole || std::thread::panicking(), "a kernel wrote behind its memory");
    }

    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn allocate_pinned(
        &self,
        what: &'static str,
        bytes: usize,
    ) -> Result<PinnedBytes, CudaError> {
        let address = self.allocate(what, bytes as u64)?;
        Ok(PinnedBytes::new(address as usize, bytes))
    }

    pub fn free_pinned(&self, bytes: &mut PinnedBytes) {
        self.free(bytes.take() as Address);
    }

    /// # Errors
    /// Memory that was not allocated.
    fn place(&self, address: Address, bytes: usize) -> Result<*mut u8, CudaError> {
        let (start, end) = (address, address.saturating_add(bytes as u64));
        let holds = |(first, layout): (&Address, &Layout)| {
            *first <= start && end <= first + (layout.size() - GUARD_BYTES) as u64
        };
        if !self.blocks().iter().any(holds) {
            let reason = format!("{bytes} bytes at {address:#x} are not allocated");
            return Err(CudaError::Lost { reason });
        }
        Ok(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// # Errors
    /// Memory that was not allocated.
    pub fn copy_in(&self, source: &[u8], to: Address) -> Result<(), CudaError> {
        let to = self.place(to, source.len())?;
        // SAFETY: so many bytes are allocated there; nothing else runs meanwhile on this device's
        // streams, which do their work at once.
        unsafe { to.copy_from(source.as_ptr(), source.len()) };
        Ok(())
    }

    /// # Errors
    /// Memory that was not allocated.
    pub fn copy_out(&self, from: Address, to: &mut [u8]) -> Result<(), CudaError> {
        let from = self.place(from, to.len())?;
        // SAFETY: as in `copy_in`.
        unsafe { to.as_mut_ptr().copy_from(from, to.len()) };
        Ok(())
    }

    /// # Errors
    /// A kernel that is not there; memory that was not allocated.
    pub fn run(&self, commands: &Commands) -> Result<(), CudaError> {
        commands.list().iter().try_for_each(|command| match *command {
            Command::Launch(launch, params, halt) => {
                self.run_kernel(&launch, commands.params(params), halt)
            }
            Command::Copy { from, to, bytes } => {
                let bytes = bytes as usize;
                let (from, to) = (self.place(from, bytes)?, self.place(to, bytes)?);
                // SAFETY: as in `copy_in`; the places may overlap.
                unsafe { to.copy_from(from, bytes) };
                Ok(())
            }
        })
    }
}
