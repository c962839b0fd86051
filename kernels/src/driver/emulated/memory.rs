//! Memory of an emulated device: every allocation lies against pages that nobody may touch, holds what is no
//! number until it is written, and is never there again once it was released.

use std::collections::BTreeMap;

use bytemuck::Pod;

use super::Address;

/// What memory holds that nobody wrote: floats of it are no numbers, and addresses are nowhere.
const POISON: u8 = 0xff;

/// Allocations end at multiples of so many bytes before the page behind them.
const ALIGN: usize = 256;

/// All allocations, and those that were released.
#[derive(Default)]
pub(super) struct Memory {
    live: BTreeMap<Address, Block>,
    released: BTreeMap<Address, Block>,
}

/// One allocation.
struct Block {
    what: &'static str,
    bytes: usize,
    pages: pages::Pages,
}

/// Where an allocation lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub what: &'static str,
    pub start: Address,
    pub bytes: u64,
}

impl Memory {
    /// The address of so many bytes, a multiple of 256; none where the system gives no memory.
    pub fn allocate(&mut self, what: &'static str, bytes: usize) -> Option<Address> {
        let room = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let mut pages = pages::Pages::new(room)?;
        let all = pages.bytes_mut();
        all.fill(POISON);
        let start = all.len() - room;
        let address = all[start..].as_ptr().expose_provenance() as Address;
        self.live.insert(address, Block { what, bytes, pages });
        Some(address)
    }

    /// Gives memory back: whoever uses it from now on is found.
    ///
    /// # Errors
    /// Somebody wrote beside it.
    pub fn release(&mut self, address: Address) -> Result<(), String> {
        let Some(mut block) = self.live.remove(&address) else { return Ok(()) };
        let start = block.pages.bytes_mut().len() - block.bytes.max(1).next_multiple_of(ALIGN);
        let (before, from) = block.pages.bytes_mut().split_at(start);
        let is_whole =
            before.iter().chain(from.iter().skip(block.bytes)).all(|byte| *byte == POISON);
        let (what, bytes) = (block.what, block.bytes);
        block.pages.hide();
        self.released.insert(address, block);
        if is_whole {
            return Ok(());
        }
        Err(format!("something was written beside the {bytes} bytes of {what} at {address:#x}"))
    }

    /// The allocation that an address lies in.
    pub fn find(&self, address: Address) -> Option<Found> {
        let (start, block) = self.live.range(..=address).next_back()?;
        let found = Found { what: block.what, start: *start, bytes: block.bytes as u64 };
        (address - start < found.bytes).then_some(found)
    }

    /// What an address was of, if it was released.
    pub fn find_released(&self, address: Address) -> Option<&'static str> {
        let (start, block) = self.released.range(..=address).next_back()?;
        (address - start < block.bytes as u64).then_some(block.what)
    }

    /// Where so many bytes are.
    ///
    /// # Errors
    /// They are not allocated, or not all of them.
    pub fn pointer(&self, address: Address, bytes: u64) -> Result<*mut u8, String> {
        if let Some(Found { what, start, bytes: all }) = self.find(address) {
            if bytes <= all - (address - start) {
                return Ok(std::ptr::with_exposed_provenance_mut(address as usize));
            }
            return Err(format!(
                "{bytes} bytes at {address:#x} end beyond the {all} of {what} at {start:#x}"
            ));
        }
        Err(match self.find_released(address) {
            Some(what) => format!("{bytes} bytes at {address:#x} are of {what} that were released"),
            None => format!("{bytes} bytes at {address:#x} are not allocated"),
        })
    }

    /// What lies at an address.
    ///
    /// # Errors
    /// As [`Memory::pointer`].
    pub fn read<T: Pod>(&self, address: Address) -> Result<T, String> {
        let pointer = self.pointer(address, size_of::<T>() as u64)?;
        // SAFETY: so many bytes are there, and any bytes are a value.
        Ok(unsafe { pointer.cast::<T>().read_unaligned() })
    }

    /// Copies bytes; the ranges may overlap.
    ///
    /// # Errors
    /// As [`Memory::pointer`].
    pub fn copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), String> {
        let (from, to) = (self.pointer(from, bytes)?, self.pointer(to, bytes)?);
        // SAFETY: so many bytes are at both; nothing else runs meanwhile.
        unsafe { to.copy_from(from, bytes as usize) };
        Ok(())
    }

    /// What lies there is not known any more.
    ///
    /// # Errors
    /// As [`Memory::pointer`].
    pub fn forget(&self, address: Address, bytes: u64) -> Result<(), String> {
        let pointer = self.pointer(address, bytes)?;
        // SAFETY: so many bytes are there; nothing else runs meanwhile.
        unsafe { pointer.write_bytes(POISON, bytes as usize) };
        Ok(())
    }
}

#[cfg(unix)]
mod pages {
    use std::ffi::c_void;
    use std::ptr;

    /// Memory between two pages that nobody may touch.
    pub(super) struct Pages {
        start: usize,
        bytes: usize,
        guard: usize,
    }

    fn mapped(at: *mut c_void, bytes: usize, flags: i32) -> Option<usize> {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, or, where flags say so, in place of memory that the caller owns.
        let start = unsafe { libc::mmap(at, bytes, libc::PROT_NONE, flags, -1, 0) };
        (start != libc::MAP_FAILED).then(|| start.expose_provenance())
    }

    impl Pages {
        /// At least so many bytes.
        pub fn new(bytes: usize) -> Option<Self> {
            // SAFETY: asks for a number.
            let guard = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
            let inner = bytes.checked_next_multiple_of(guard)?;
            let all = inner.checked_add(2 * guard)?;
            let start = mapped(ptr::null_mut(), all, 0)?;
            let pages = Self { start, bytes: inner, guard };
            let (inside, access) = (pages.inside(), libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: pages that were just mapped.
            let opened = unsafe { libc::mprotect(inside.cast(), inner, access) };
            (opened == 0).then_some(pages)
        }

        fn inside(&self) -> *mut u8 {
            ptr::with_exposed_provenance_mut(self.start + self.guard)
        }

        pub fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: so many bytes are there with contents until they are hidden, after which nobody asks.
            unsafe { std::slice::from_raw_parts_mut(self.inside(), self.bytes) }
        }

        /// Nobody may touch any of it; the system has its memory back.
        pub fn hide(&mut self) {
            let all = self.bytes + 2 * self.guard;
            mapped(ptr::with_exposed_provenance_mut(self.start), all, libc::MAP_FIXED);
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            let start = ptr::with_exposed_provenance_mut(self.start);
            // SAFETY: mapped by `new`, and nobody uses it.
            unsafe { libc::munmap(start, self.bytes + 2 * self.guard) };
        }
    }
}

#[cfg(not(unix))]
mod pages {
    use super::POISON;

    /// Memory beside which nothing is watched.
    pub(super) struct Pages(Vec<u8>, usize);

    impl Pages {
        /// At least so many bytes.
        pub fn new(bytes: usize) -> Option<Self> {
            let mut all = Vec::new();
            all.try_reserve_exact(bytes.checked_add(super::ALIGN)?).ok()?;
            all.resize(bytes + super::ALIGN, POISON);
            let end = (all.as_ptr().addr() + all.len()) / super::ALIGN * super::ALIGN;
            let end = end - all.as_ptr().addr();
            Some(Self(all, end))
        }

        pub fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0[..self.1]
        }

        pub fn hide(&mut self) {
            self.0.fill(POISON);
        }
    }
}
