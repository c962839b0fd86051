//! What a kernel did that no device allows, or that a device does differently each time.

use std::fmt;

/// What kind of fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Two threads use the same place, at least one of them writes, and nothing orders them.
    Race,
    /// Memory that is not the device's, or not the kernel's.
    OutOfBounds,
    /// Something is read that nobody wrote.
    Unwritten,
    /// An address that is no multiple of what is read or written there.
    Misaligned,
    /// Threads of a block meet at barriers of different lines.
    BarrierPlaces,
    /// A barrier waits for another number of threads than come to it.
    BarrierCount,
    /// A thread has ended while others wait for the whole block.
    BarrierExit,
    /// A warp operation names lanes that are not there, or not the lane that calls it.
    WarpLanes,
    /// Lanes of a warp wait for each other at different lines.
    WarpPlaces,
    /// Threads wait for each other at different things.
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

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// In the device's memory.
    Global,
    /// In a block's shared memory.
    Shared,
}

/// A thread that has to do with a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultThread {
    /// Its block.
    pub block: [u32; 3],
    /// Its place in the block.
    pub thread: [u32; 3],
    /// Whether it writes, where memory is concerned.
    pub writes: bool,
    /// File and line of the barrier or warp operation that it came to last, where that is known.
    pub place: Option<(String, u32)>,
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind it is.
    pub kind: FaultKind,
    /// The memory that is concerned: where it is, its first byte (from the beginning of shared memory, or
    /// from that of its allocation where that is known), and how many bytes.
    pub memory: Option<(Space, u64, u64)>,
    /// Its number, the threads that it waits for, and those that have come, of a barrier.
    pub barrier: Option<[u32; 3]>,
    /// One thread, or the two that are concerned.
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

/// As the C++ side gives it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawThread {
    block: [u32; 3],
    thread: [u32; 3],
    writes: u32,
    line: u32,
    file: [u8; 40],
}

/// As the C++ side gives it.
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

/// What is in front of a zero.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = &bytes[..end];
    String::from_utf8_lossy(text).into_owned()
}
