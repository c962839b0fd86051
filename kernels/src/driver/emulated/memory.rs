//! Memory of an emulated device. Every allocation is next to inaccessible guard pages and filled with NaN
//! bytes. Addresses of freed memory are never reused.

use std::collections::BTreeMap;

use bytemuck::Pod;

use super::Address;

/// Fill byte of unwritten memory: floats are NaN and addresses are invalid.
const POISON: u8 = 0xff;

/// Alignment in bytes of allocations, which end at a guard page.
const ALIGN: usize = 256;

/// Live and freed allocations.
#[derive(Default)]
pub(super) struct Memory {
    live: BTreeMap<Address, Block>,
    released: BTreeMap<Address, Block>,
}

struct Block {
    what: &'static str,
    bytes: usize,
    pages: pages::Pages,
}

/// Location of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocationRange {
    pub what: &'static str,
    pub start: Address,
    pub bytes: u64,
}

impl Memory {
    /// Allocates bytes and returns their address, a multiple of 256. Returns `None` if the system is out of
    /// memory.
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

    /// Frees memory. Later accesses are detected.
    ///
    /// # Errors
    /// Returns an error if bytes beside the allocation were overwritten.
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

    /// Returns the allocation that contains an address.
    pub fn find(&self, address: Address) -> Option<AllocationRange> {
        let (start, block) = self.live.range(..=address).next_back()?;
        let found = AllocationRange { what: block.what, start: *start, bytes: block.bytes as u64 };
        (address - start < found.bytes).then_some(found)
    }

    /// Returns the purpose of the freed allocation that contained an address.
    pub fn find_released(&self, address: Address) -> Option<&'static str> {
        let (start, block) = self.released.range(..=address).next_back()?;
        (address - start < block.bytes as u64).then_some(block.what)
    }

    /// Returns a pointer to a range of bytes.
    ///
    /// # Errors
    /// Returns an error if the range is not entirely allocated.
    pub fn pointer(&self, address: Address, bytes: u64) -> Result<*mut u8, String> {
        if let Some(AllocationRange { what, start, bytes: all }) = self.find(address) {
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

    /// Reads a value.
    ///
    /// # Errors
    /// Fails like [`Memory::pointer`].
    pub fn read<T: Pod>(&self, address: Address) -> Result<T, String> {
        let pointer = self.pointer(address, size_of::<T>() as u64)?;
        // SAFETY: the range has enough bytes, and any bytes are a valid value.
        Ok(unsafe { pointer.cast::<T>().read_unaligned() })
    }

    /// Copies bytes. The ranges may overlap.
    ///
    /// # Errors
    /// Fails like [`Memory::pointer`].
    pub fn copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), String> {
        let (from, to) = (self.pointer(from, bytes)?, self.pointer(to, bytes)?);
        // SAFETY: both ranges have enough bytes; nothing else runs meanwhile.
        unsafe { to.copy_from(from, bytes as usize) };
        Ok(())
    }

    /// Invalidates the contents of a range.
    ///
    /// # Errors
    /// Fails like [`Memory::pointer`].
    pub fn forget(&self, address: Address, bytes: u64) -> Result<(), String> {
        let pointer = self.pointer(address, bytes)?;
        // SAFETY: the range has enough bytes; nothing else runs meanwhile.
        unsafe { pointer.write_bytes(POISON, bytes as usize) };
        Ok(())
    }
}

#[cfg(unix)]
mod pages {
    use std::ffi::c_void;
    use std::ptr;

    /// Memory between two inaccessible guard pages.
    pub(super) struct Pages {
        start: usize,
        bytes: usize,
        guard: usize,
    }

    fn mapped(at: *mut c_void, bytes: usize, flags: i32) -> Option<usize> {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: maps new memory, or, with `MAP_FIXED`, replaces memory that the caller owns.
        let start = unsafe { libc::mmap(at, bytes, libc::PROT_NONE, flags, -1, 0) };
        (start != libc::MAP_FAILED).then(|| start.expose_provenance())
    }

    impl Pages {
        /// Maps at least `bytes` bytes.
        pub fn new(bytes: usize) -> Option<Self> {
            // SAFETY: queries a number.
            let guard = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
            let inner = bytes.checked_next_multiple_of(guard)?;
            let all = inner.checked_add(2 * guard)?;
            let start = mapped(ptr::null_mut(), all, 0)?;
            let pages = Self { start, bytes: inner, guard };
            let (inside, access) = (pages.inside(), libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: the pages were just mapped.
            let opened = unsafe { libc::mprotect(inside.cast(), inner, access) };
            (opened == 0).then_some(pages)
        }

        fn inside(&self) -> *mut u8 {
            ptr::with_exposed_provenance_mut(self.start + self.guard)
        }

        pub fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: the memory is mapped and initialized until `hide`, after which this is not called.
            unsafe { std::slice::from_raw_parts_mut(self.inside(), self.bytes) }
        }

        /// Makes all pages inaccessible and returns their memory to the system.
        pub fn hide(&mut self) {
            let all = self.bytes + 2 * self.guard;
            mapped(ptr::with_exposed_provenance_mut(self.start), all, libc::MAP_FIXED);
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            let start = ptr::with_exposed_provenance_mut(self.start);
            // SAFETY: mapped by `new` and not used afterwards.
            unsafe { libc::munmap(start, self.bytes + 2 * self.guard) };
        }
    }
}

#[cfg(not(unix))]
mod pages {
    use super::POISON;

    /// Memory without guard pages.
    pub(super) struct Pages(Vec<u8>, usize);

    impl Pages {
        /// Allocates at least `bytes` bytes.
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
