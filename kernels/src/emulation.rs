//! Kernels built by the host compiler, for tests without a device. The C++ sources are in `emulation/`.
#![expect(unsafe_code, reason = "kernels are C++, and their parameters are addresses")]

mod fault;
mod memory;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use thiserror::Error;

pub use self::fault::{Fault, FaultKind, FaultThread, Space};
pub use self::memory::MemoryMap;

use self::fault::RawFault;
use crate::params::{Launch, StructLayout};

/// Order of blocks, and of threads between two barriers. A kernel whose result depends on the order lacks a
/// barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Ascending order.
    #[default]
    Ascending,
    /// Descending order.
    Descending,
    /// Random order from a seed, with several blocks interleaved.
    Random(u64),
}

/// Options of one kernel run.
#[derive(Clone, Copy, Default)]
pub struct Run<'a> {
    /// Order of blocks and threads.
    pub schedule: Schedule,
    /// Memory map for checking every access. A race, or an access that is out of bounds, misaligned or reads
    /// unwritten memory, ends the launch with an error.
    pub checks: Option<&'a MemoryMap>,
    /// Source line of a barrier that is skipped, to test the effect of its absence.
    pub ignored: Option<&'a Line>,
    /// Collects the source lines at which threads wait.
    pub lines: Option<&'a RefCell<BTreeSet<Line>>>,
}

/// A line of a kernel source file: file name and line number.
pub type Line = (String, u32);

/// Failure of a kernel run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EmulationError {
    /// The kernel was not built by the host compiler.
    #[error("no such kernel")]
    Unknown,
    /// The parameters have the wrong size.
    #[error("parameters of another size")]
    WrongParams,
    /// The launch exceeds a device's limit of threads or shared memory.
    #[error("more threads or shared memory than a device has")]
    TooLarge,
    /// The host lacks memory for the threads' stacks.
    #[error("no memory for the stacks of threads")]
    NoMemory,
    /// The kernel performed an invalid operation.
    #[error("{0}")]
    Fault(Box<Fault>),
}

#[repr(C)]
struct RawRegion {
    start: u64,
    bytes: u64,
    written: *const u8,
}

/// Maximum number of collected lines of a launch.
const LINES_MAX: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct RawLine {
    file: [u8; 40],
    line: u32,
}

#[repr(C)]
struct RawLines {
    count: u32,
    lines: [RawLine; LINES_MAX],
}

#[repr(C)]
struct EmulatedLaunch {
    name: *const c_char,
    params: *const c_void,
    params_bytes: usize,
    halt: *const u32,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    order: c_uint,
    seed: u64,
    regions: *const RawRegion,
    region_count: usize,
    ignored_file: *const c_char,
    lines: *mut RawLines,
    ignored_line: c_uint,
    is_checked: c_uint,
}

unsafe extern "C" {
    fn nestling_emulation_launch(launch: *const EmulatedLaunch, fault: *mut RawFault) -> c_int;
    fn nestling_emulation_field(
        index: usize,
        field: *mut *const c_char,
        offset: *mut usize,
        bytes: *mut usize,
    ) -> *const c_char;
}

/// Grid and block size of a launch.
#[derive(Clone, Copy, Debug)]
pub struct LaunchShape {
    /// Number of blocks in three dimensions.
    pub grid: [u32; 3],
    /// Threads of a block in three dimensions.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// Runs a kernel to completion. `miss_flag` is the address of the miss flag, or 0.
///
/// # Errors
/// Returns an error if the launch exceeds a device's limits, threads deadlock, or a check fails.
///
/// # Safety
/// Every address among the parameters must refer to host memory that the kernel may access as it does.
pub unsafe fn launch(
    launch: &Launch,
    params: &[u8],
    miss_flag: u64,
    run: Run<'_>,
) -> Result<(), EmulationError> {
    let shape =
        LaunchShape { grid: launch.grid, block: launch.block, shared_bytes: launch.shared_bytes };
    // SAFETY: guaranteed by the caller.
    unsafe { launch_named(launch.kernel.name(), shape, params, miss_flag, run) }
}

/// Runs a kernel by name and shape. Unlike [`launch`], it also runs the faulty kernels of
/// `emulation/faults/`.
///
/// # Errors
/// Fails like [`launch`].
///
/// # Safety
/// As for [`launch`].
pub unsafe fn launch_named(
    name: &str,
    shape: LaunchShape,
    params: &[u8],
    miss_flag: u64,
    run: Run<'_>,
) -> Result<(), EmulationError> {
    let LaunchShape { grid, block, shared_bytes } = shape;
    let name = CString::new(name).map_err(|_| EmulationError::Unknown)?;
    // Default: a run without checks has no memory map.
    let memory = run.checks.map(MemoryMap::list).unwrap_or_default();
    let region = |region: &memory::Region| RawRegion {
        start: region.start,
        bytes: region.bytes,
        written: region.written.as_ref().map_or(std::ptr::null(), |bits| bits.as_ptr().cast()),
    };
    let regions: Vec<RawRegion> = memory.iter().map(region).collect();
    let (order, seed) = match run.schedule {
        Schedule::Ascending => (0, 0),
        Schedule::Descending => (1, 0),
        Schedule::Random(seed) => (2, seed),
    };
    // Default: no line is ignored, which the null pointer below indicates.
    let (ignored_file, ignored_line) = run.ignored.cloned().unwrap_or_default();
    let ignored_file = CString::new(ignored_file).map_err(|_| EmulationError::Unknown)?;
    let mut lines = RawLines { count: 0, lines: [RawLine { file: [0; 40], line: 0 }; LINES_MAX] };
    let call = EmulatedLaunch {
        name: name.as_ptr(),
        params: params.as_ptr().cast(),
        params_bytes: params.len(),
        halt: std::ptr::with_exposed_provenance(miss_flag as usize),
        grid,
        block,
        shared_bytes,
        order,
        seed,
        regions: regions.as_ptr(),
        region_count: regions.len(),
        ignored_file: run.ignored.map_or(std::ptr::null(), |_| ignored_file.as_ptr()),
        lines: &mut lines,
        ignored_line,
        is_checked: c_uint::from(run.checks.is_some()),
    };
    let mut fault = RawFault::NONE;
    // SAFETY: name, parameters and regions outlive the call; the bits of regions are accessed atomically; the
    // rest is guaranteed by the caller.
    let outcome = unsafe { nestling_emulation_launch(&call, &mut fault) };
    if let Some(places) = run.lines {
        let found = &lines.lines[..(lines.count as usize).min(LINES_MAX)];
        places.borrow_mut().extend(found.iter().map(|raw| (fault::text(&raw.file), raw.line)));
    }
    match outcome {
        0 => Ok(()),
        1 => Err(EmulationError::Unknown),
        2 => Err(EmulationError::WrongParams),
        3 => Err(EmulationError::TooLarge),
        4 => Err(EmulationError::NoMemory),
        _ => Err(EmulationError::Fault(Box::new(fault.fault()))),
    }
}

/// Returns the layouts of all parameter structs as the C++ compiler defines them.
pub fn layouts() -> Vec<StructLayout> {
    let mut structs: Vec<StructLayout> = Vec::new();
    for index in 0.. {
        let (mut field, mut offset, mut bytes) = (std::ptr::null(), 0, 0);
        // SAFETY: all three outputs are written before the call returns a name.
        let name = unsafe { nestling_emulation_field(index, &mut field, &mut offset, &mut bytes) };
        if name.is_null() || field.is_null() {
            break;
        }
        // SAFETY: both are static NUL-terminated texts of the library.
        let text = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let (name, field) = (text(name).into_owned(), text(field).into_owned());
        match structs.last_mut() {
            Some(last) if last.name == name && !field.is_empty() => {
                last.fields.push((field, offset, bytes));
            }
            _ => structs.push(StructLayout { name, bytes, fields: Vec::new() }),
        }
    }
    structs
}
