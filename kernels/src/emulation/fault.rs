//! Faults of a kernel: operations that a device does not allow, or whose results are not deterministic.

use std::fmt;

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Two unordered threads access the same location and at least one writes.
    Race,
    /// An access outside of the device's or the kernel's memory.
    OutOfBounds,
    /// A read of memory that was never written.
    Unwritten,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// Threads of a block wait at different barriers.
    BarrierPlaces,
    /// The number of threads at a barrier differs from the expected one.
    BarrierCount,
    /// A thread exited while others wait at a block-wide barrier.
    BarrierExit,
    /// A warp operation includes missing lanes, or excludes the calling lane.
    WarpLanes,
    /// Lanes of a warp wait at different operations.
    WarpPlaces,
    /// Threads wait for each other in a deadlock.
    Stuck,
}

impl FaultKind {
    const ALL: [Self; 10] = [
        Self::Race,
        Self::OutOfBounds,
        Self::Unwritten,
        Self::Misaligned,
        Self::BarrierPlaces,
        Self::BarrierCount,
        Self::BarrierExit,
        Self::WarpLanes,
        Self::WarpPlaces,
        Self::Stuck,
    ];

    fn text(self) -> &'static str {
        match self {
            Self::Race => "a race",
            Self::OutOfBounds => "an access out of bounds",
            Self::Unwritten => "a read of what was never written",
            Self::Misaligned => "a misaligned access",
            Self::BarrierPlaces => "threads of a block at different barriers",
            Self::BarrierCount => "a barrier for another number of threads than come to it",
            Self::BarrierExit => "a thread has ended while others wait for it at a barrier",
            Self::WarpLanes => "a warp operation with lanes that are not there",
            Self::WarpPlaces => "lanes of a warp at different operations",
            Self::Stuck => "threads that wait for each other at different things",
        }
    }
}

/// Memory space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Device memory.
    Global,
    /// Shared memory of a block.
    Shared,
}

/// A thread involved in a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultThread {
    /// Block index.
    pub block: [u32; 3],
    /// Thread index in the block.
    pub thread: [u32; 3],
    /// True if the access is a write.
    pub writes: bool,
    /// File and line of the thread's last barrier or warp operation, if known.
    pub place: Option<(String, u32)>,
}

/// A fault of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Accessed memory: space, byte offset and number of bytes. The offset is relative to shared memory or to
    /// the allocation, or an address if the allocation is unknown.
    pub memory: Option<(Space, u64, u64)>,
    /// Barrier number, expected threads and arrived threads.
    pub barrier: Option<[u32; 3]>,
    /// The one or two threads involved.
    pub threads: Vec<FaultThread>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.text())?;
        if let Some((space, first, bytes)) = self.memory {
            let space = match space {
                Space::Global => "global",
                Space::Shared => "shared",
            };
            write!(f, ": {bytes} bytes at {first:#x} of {space} memory")?;
        }
        if let Some([number, expected, arrived]) = self.barrier {
            write!(f, ": barrier {number} for {expected} threads, of which {arrived} have come")?;
        }
        for thread in &self.threads {
            write!(f, "; thread {:?} of block {:?}", thread.thread, thread.block)?;
            if self.memory.is_some() {
                f.write_str(if thread.writes { " writes" } else { " reads" })?;
            }
            if let Some((file, line)) = &thread.place {
                let word = if self.memory.is_some() { "behind" } else { "at" };
                write!(f, " {word} {file}:{line}")?;
            }
        }
        Ok(())
    }
}

/// Layout shared with the C++ code.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawThread {
    block: [u32; 3],
    thread: [u32; 3],
    writes: u32,
    line: u32,
    file: [u8; 40],
}

/// Layout shared with the C++ code.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawFault {
    kind: u32,
    space: u32,
    threads: u32,
    barrier: u32,
    expected: u32,
    arrived: u32,
    address: u64,
    bytes: u64,
    region: u64,
    first: RawThread,
    second: RawThread,
}

impl RawFault {
    pub const NONE: Self = {
        let thread = RawThread { block: [0; 3], thread: [0; 3], writes: 0, line: 0, file: [0; 40] };
        Self {
            kind: 0,
            space: 0,
            threads: 0,
            barrier: 0,
            expected: 0,
            arrived: 0,
            address: 0,
            bytes: 0,
            region: 0,
            first: thread,
            second: thread,
        }
    };

    pub fn fault(&self) -> Fault {
        let kind = (self.kind as usize).checked_sub(1).and_then(|at| FaultKind::ALL.get(at));
        let space = match self.space {
            1 => Some(Space::Global),
            2 => Some(Space::Shared),
            _ => None,
        };
        let memory = space.map(|space| (space, self.address - self.region, self.bytes));
        let barrier = [self.barrier, self.expected, self.arrived];
        let threads = [self.first, self.second];
        Fault {
            kind: kind.copied().unwrap_or(FaultKind::Stuck),
            memory,
            barrier: (self.expected > 0).then_some(barrier),
            threads: threads[..(self.threads as usize).min(2)].iter().map(thread).collect(),
        }
    }
}

fn thread(raw: &RawThread) -> FaultThread {
    FaultThread {
        block: raw.block,
        thread: raw.thread,
        writes: raw.writes != 0,
        place: (raw.line > 0).then(|| (text(&raw.file), raw.line)),
    }
}

/// Returns the text before the terminating NUL.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = &bytes[..end];
    String::from_utf8_lossy(text).into_owned()
}
