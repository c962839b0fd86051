//! Kernels that the host compiler built, for tests without a device: `emulation/`.
#![expect(unsafe_code, reason = "kernels are C++, and their parameters are addresses")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use thiserror::Error;

use crate::params::{Launch, StructLayout};

/// In which order the threads of a block run between two barriers; a kernel whose result depends on
/// it lacks a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadOrder {
    /// The first one first.
    #[default]
    Ascending,
    /// The last one first.
    Descending,
}

/// Why a kernel did not run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EmulationError {
    /// The host compiler was not given such a kernel.
    #[error("no such kernel")]
    Unknown,
    /// Parameters of another struct.
    #[error("parameters of another size")]
    WrongParams,
    /// More threads or shared memory than a device has.
    #[error("more threads or shared memory than a device has")]
    TooLarge,
    /// No memory for the stacks of threads.
    #[error("no memory for the stacks of threads")]
    NoMemory,
    /// Something is read at an address that a device refuses for its size.
    #[error("an address that is no multiple of what is read there")]
    Misaligned,
    /// Lanes of a warp wait for others that never come.
    #[error("lanes of a warp wait for others that never come")]
    Diverged,
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
    descending: c_uint,
}

unsafe extern "C" {
    fn nestling_emulation_launch(launch: *const EmulatedLaunch) -> c_int;
    fn nestling_emulation_field(
        index: usize,
        field: *mut *const c_char,
        offset: *mut usize,
        bytes: *mut usize,
    ) -> *const c_char;
}

/// Runs a kernel to its end: its parameters, and the address of the word that halts it, or 0.
///
/// # Errors
/// A launch that no device would take, and lanes that wait for ever.
///
/// # Safety
/// Every address among the parameters is that of host memory that the kernel may use as it does.
pub unsafe fn launch(
    launch: &Launch,
    (params, halt): (&[u8], u64),
    order: ThreadOrder,
) -> Result<(), EmulationError> {
    let name = CString::new(launch.kernel.name()).map_err(|_| EmulationError::Unknown)?;
    let call = EmulatedLaunch {
        name: name.as_ptr(),
        params: params.as_ptr().cast(),
        params_bytes: params.len(),
        halt: std::ptr::with_exposed_provenance(halt as usize),
        grid: launch.grid,
        block: launch.block,
        shared_bytes: launch.shared_bytes,
        descending: c_uint::from(order == ThreadOrder::Descending),
    };
    // SAFETY: name and parameters outlive the call; the rest is the caller's.
    match unsafe { nestling_emulation_launch(&call) } {
        0 => Ok(()),
        1 => Err(EmulationError::Unknown),
        2 => Err(EmulationError::WrongParams),
        3 => Err(EmulationError::TooLarge),
        4 => Err(EmulationError::NoMemory),
        6 => Err(EmulationError::Misaligned),
        _ => Err(EmulationError::Diverged),
    }
}

/// All structs of parameters, as the C++ compiler lays them out.
pub fn layouts() -> Vec<StructLayout> {
    let mut structs: Vec<StructLayout> = Vec::new();
    for index in 0.. {
        let (mut field, mut offset, mut bytes) = (std::ptr::null(), 0, 0);
        // SAFETY: the three places are written before the call returns a name.
        let name = unsafe { nestling_emulation_field(index, &mut field, &mut offset, &mut bytes) };
        if name.is_null() || field.is_null() {
            break;
        }
        // SAFETY: both are text that the library holds, ended by zero.
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
