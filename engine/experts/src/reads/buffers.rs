//! Reusable buffers that planes are read into.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
#[cfg(not(any(target_os = "linux", target_family = "wasm")))]
use memmap2::MmapMut;

#[cfg(target_os = "linux")]
use super::slab::{self, Slab, SlabBuffer};
use nestling_core::backend::HostPlane;
use nestling_core::error::EngineError;
use nestling_core::sync::{Mutex, MutexGuard, whole};

/// Alignment of buffers and unit of their size in bytes, as required by direct reads.
pub(super) const PAGE_BYTES: usize = 4096;

/// Size in bytes from which buffers get separate system pages, huge ones on Linux.
#[cfg(not(target_family = "wasm"))]
const OWN_PAGES_BYTES: usize = 128 << 10;

/// Returns the maximum memory in bytes that a plane of `length` bytes takes, wherever it is located in its
/// file.
pub fn buffer_bytes(length: u64) -> u64 {
    // Direct reads start and end at multiples of the disk's block size.
    length.div_ceil(PAGE_BYTES as u64).saturating_add(1).saturating_mul(PAGE_BYTES as u64)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

enum Memory {
    Pages(Vec<Page>),
    #[cfg(target_os = "linux")]
    SlabBuffer(SlabBuffer),
    #[cfg(not(any(target_os = "linux", target_family = "wasm")))]
    Mapped(MmapMut),
}

impl Memory {
    /// Allocates one or more buffers of a size. All but the last take no memory before they are used.
    fn new(length: usize) -> io::Result<Vec<Self>> {
        #[cfg(target_os = "linux")]
        if length >= OWN_PAGES_BYTES {
            return Ok(slab::pieces(length)?.into_iter().map(Self::SlabBuffer).collect());
        }
        #[cfg(not(any(target_os = "linux", target_family = "wasm")))]
        if length >= OWN_PAGES_BYTES {
            return Ok(vec![Self::Mapped(MmapMut::map_anon(length)?)]);
        }
        let mut pages = Vec::new();
        pages.try_reserve_exact(length / PAGE_BYTES).map_err(io::Error::other)?;
        pages.resize(length / PAGE_BYTES, Page::zeroed());
        Ok(vec![Self::Pages(pages)])
    }

    /// Marks the buffer as used. Returns the change in warm bytes: bytes that take memory but are unused.
    fn fill(&mut self) -> isize {
        match self {
            #[cfg(target_os = "linux")]
            Self::SlabBuffer(piece) => piece.fill(),
            _ => 0,
        }
    }

    /// Releases the buffer's memory to the system. Returns the hollow buffer if it can be reused, and the
    /// number of warm bytes released with it.
    fn hollow(self) -> (Option<Self>, usize) {
        match self {
            #[cfg(target_os = "linux")]
            Self::SlabBuffer(mut piece) => {
                let cooled = piece.hollow();
                (Some(Self::SlabBuffer(piece)), cooled)
            }
            _ => (None, 0),
        }
    }

    /// Returns the warm bytes around the buffer, which take memory but are unused.
    fn warm(&self) -> usize {
        match self {
            #[cfg(target_os = "linux")]
            Self::SlabBuffer(piece) => piece.warm(),
            _ => 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Pages(pages) => bytemuck::cast_slice(pages),
            #[cfg(target_os = "linux")]
            Self::SlabBuffer(piece) => piece.bytes(),
            #[cfg(not(any(target_os = "linux", target_family = "wasm")))]
            Self::Mapped(pages) => pages,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Pages(pages) => bytemuck::cast_slice_mut(pages),
            #[cfg(target_os = "linux")]
            Self::SlabBuffer(piece) => piece.bytes_mut(),
            #[cfg(not(any(target_os = "linux", target_family = "wasm")))]
            Self::Mapped(pages) => pages,
        }
    }
}

/// Buffer pool of one [`super::Reads`].
///
/// Free buffers take at most the larger of the limit and the total minus the lent bytes.
pub(super) struct BufferPool {
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Free buffers, keyed by size in bytes.
    free: BTreeMap<usize, Vec<Memory>>,
    /// Buffers without memory until they are used, keyed by size in bytes.
    hollow: BTreeMap<usize, Vec<Memory>>,
    #[cfg(target_os = "linux")]
    slabs: Vec<Arc<Slab>>,
    free_bytes: u64,
    /// Warm bytes of all slabs. Temporarily negative if cooling is counted before the warming it undoes.
    warm_bytes: i64,
    lent_bytes: u64,
    limit: u64,
    total: u64,
}

impl BufferPool {
    pub fn new(limit: u64) -> Self {
        let state = PoolState { limit, ..PoolState::default() };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        whole(self.state.lock())
    }

    /// Returns a buffer of at least `length` bytes with unspecified contents.
    pub fn take(self: &Arc<Self>, length: usize) -> Result<Buffer, EngineError> {
        let length = length.max(1).checked_next_multiple_of(PAGE_BYTES);
        let length = length.ok_or(EngineError::Limit {
            what: "bytes of a plane",
            limit: (usize::MAX - PAGE_BYTES) as u64,
            found: u64::MAX,
        })?;
        let mut state = self.lock();
        state.lent_bytes += length as u64;
        if let Some(memory) = state.reuse(length) {
            return Ok(Buffer { memory: Some(memory), pool: Arc::clone(self) });
        }
        let hollow = state.warmest(length);
        drop(state);
        // Allocates outside the lock, because system calls are slow.
        let memory = hollow.map_or_else(|| self.make(length), Ok);
        let mut memory = memory.map_err(|source| {
            self.lock().lent_bytes -= length as u64;
            EngineError::OutOfMemory { bytes: length as u64, source }
        })?;
        self.settle(|_| {});
        let warmed = memory.fill();
        self.settle(|state| state.warm_bytes += warmed as i64);
        Ok(Buffer { memory: Some(memory), pool: Arc::clone(self) })
    }

    /// Allocates a new buffer and keeps the others allocated with it.
    fn make(&self, length: usize) -> io::Result<Memory> {
        let mut made = Memory::new(length)?;
        let memory = made.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        let mut state = self.lock();
        #[cfg(target_os = "linux")]
        if let Memory::SlabBuffer(piece) = &memory {
            state.slabs.push(Arc::clone(piece.slab()));
        }
        state.hollow.entry(length).or_default().append(&mut made);
        Ok(memory)
    }

    /// Applies a change, then releases excess memory to the system.
    fn settle(&self, change: impl FnOnce(&mut PoolState)) {
        let mut state = self.lock();
        change(&mut state);
        let excess = state.excess();
        if excess == 0 {
            return;
        }
        let (mut state, excess) = self.cool(state, excess);
        let released = state.release(excess);
        drop(state);
        self.hollow(released);
    }

    /// Releases warm bytes, and returns the excess that remains.
    #[cfg(target_os = "linux")]
    fn cool<'a>(
        &'a self,
        state: MutexGuard<'a, PoolState>,
        excess: usize,
    ) -> (MutexGuard<'a, PoolState>, usize) {
        if state.warm_bytes <= 0 {
            return (state, excess);
        }
        let slabs = state.slabs.clone();
        drop(state);
        let mut cooled = 0;
        for slab in slabs {
            if cooled >= excess {
                break;
            }
            cooled += slab.cool();
        }
        let mut state = self.lock();
        state.warm_bytes -= cooled as i64;
        let excess = state.excess();
        (state, excess)
    }

    #[cfg(not(target_os = "linux"))]
    fn cool<'a>(
        &'a self,
        state: MutexGuard<'a, PoolState>,
        excess: usize,
    ) -> (MutexGuard<'a, PoolState>, usize) {
        (state, excess)
    }

    /// Releases the memory of buffers to the system and keeps the hollow buffers.
    fn hollow(&self, released: Vec<Memory>) {
        for memory in released {
            let length = memory.bytes().len();
            let (hollow, cooled) = memory.hollow();
            let mut state = self.lock();
            state.warm_bytes -= cooled as i64;
            state.hollow.entry(length).or_default().extend(hollow);
        }
    }

    /// Returns the lent bytes and the free bytes.
    pub fn bytes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.lent_bytes, state.free_bytes)
    }

    pub fn set_limit(&self, bytes: u64) {
        self.settle(|state| state.limit = bytes);
    }

    /// Sets the maximum bytes of lent and free buffers together.
    pub fn set_total(&self, bytes: u64) {
        self.settle(|state| state.total = bytes);
    }

    pub fn trim(&self) {
        let released = self.lock().release(usize::MAX);
        self.hollow(released);
    }

    fn put_back(&self, memory: Memory) {
        let length = memory.bytes().len();
        self.settle(|state| {
            state.lent_bytes -= length as u64;
            state.free_bytes += length as u64;
            state.free.entry(length).or_default().push(memory);
        });
    }
}

impl PoolState {
    fn reuse(&mut self, length: usize) -> Option<Memory> {
        let memory = self.free.get_mut(&length)?.pop()?;
        self.free_bytes -= length as u64;
        Some(memory)
    }

    /// Takes a hollow buffer, preferring the one with the most warm bytes.
    fn warmest(&mut self, length: usize) -> Option<Memory> {
        let hollow = self.hollow.get_mut(&length)?;
        if self.warm_bytes <= 0 {
            return hollow.pop();
        }
        let warmest = (0..hollow.len()).max_by_key(|at| hollow[*at].warm())?;
        // `remove` keeps the order of the others: the last one is next to the one used last.
        Some(hollow.remove(warmest))
    }

    /// Returns the free and warm bytes that exceed the limits.
    fn excess(&self) -> usize {
        let may = self.limit.max(self.total.saturating_sub(self.lent_bytes));
        let unused = self.free_bytes.saturating_add_signed(self.warm_bytes);
        usize::try_from(unused.saturating_sub(may)).unwrap_or(usize::MAX)
    }

    /// Takes out free buffers until they have `bytes` bytes or the pool is empty. The size with the most
    /// bytes is taken first, so that the pool adapts to the sizes in demand.
    fn release(&mut self, bytes: usize) -> Vec<Memory> {
        let mut released = Vec::new();
        let mut sum = 0usize;
        while sum < bytes {
            let classes = self.free.iter_mut().filter(|(_, free)| !free.is_empty());
            let most = classes.max_by_key(|(length, free)| **length * free.len());
            let Some((length, memory)) = most.and_then(|(at, free)| Some((*at, free.pop()?)))
            else {
                break;
            };
            sum = sum.saturating_add(length);
            self.free_bytes -= length as u64;
            released.push(memory);
        }
        released
    }
}

/// A buffer that returns to its pool when dropped.
pub(super) struct Buffer {
    /// `None` only during drop.
    memory: Option<Memory>,
    pool: Arc<BufferPool>,
}

impl Buffer {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // Default: the memory is only missing during drop.
        self.memory.as_mut().map(Memory::bytes_mut).unwrap_or_default()
    }

    pub fn bytes(&self) -> &[u8] {
        // Default: the memory is only missing during drop.
        self.memory.as_ref().map(Memory::bytes).unwrap_or_default()
    }

    /// Converts the buffer to a plane whose bytes are in `range`.
    pub fn arrived(self, range: Range<usize>) -> ArrivedPlane {
        ArrivedPlane(Bytes::Read { buffer: self, range })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.put_back(memory);
        }
    }
}

/// Bytes of an extent as stored, aligned to 64 bytes. The memory is reused after drop.
pub struct ArrivedPlane(Bytes);

enum Bytes {
    Read {
        buffer: Buffer,
        range: Range<usize>,
    },
    /// Bytes read earlier, which were in device memory in between.
    Held(HostPlane),
}

impl ArrivedPlane {
    /// Returns the memory it takes in bytes, including the unused rest of its buffer.
    pub fn memory_bytes(&self) -> u64 {
        match &self.0 {
            Bytes::Read { buffer, .. } => buffer.bytes().len() as u64,
            Bytes::Held(bytes) => (**bytes).as_ref().len() as u64,
        }
    }

    /// Wraps a plane in host memory.
    pub(crate) fn held(bytes: HostPlane) -> Self {
        Self(Bytes::Held(bytes))
    }
}

impl AsRef<[u8]> for ArrivedPlane {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Read { buffer, range } => &buffer.bytes()[range.clone()],
            Bytes::Held(bytes) => (**bytes).as_ref(),
        }
    }
}

impl std::fmt::Debug for ArrivedPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArrivedPlane({} bytes)", self.as_ref().len())
    }
}
