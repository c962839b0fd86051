//! Trait for recording the commands of a step and submitting them to a device.

use std::error::Error;

use bytemuck::Pod;

use crate::error::GpuError;
use crate::work_meter::WorkMeter;

/// A command recorder. The device runs commands in recording order.
pub trait CommandRecorder {
    /// A kernel argument: a device address, or a range of a buffer.
    type Binding;
    /// The backend's specific error type.
    type Failure: Error + Send + Sync + 'static;

    /// Returns the meter of recorded work and its estimated duration.
    fn meter(&mut self) -> &mut WorkMeter;

    /// Starts a step of `rows` rows.
    fn begin_step(&mut self, rows: usize);

    /// Starts an operation. Tables created by [`Self::table`] stay valid until the operation ends.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    fn begin_operation(&mut self) -> Result<(), GpuError<Self::Failure>>;

    /// Uploads a table that kernels of the current operation read.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory.
    fn table(&mut self, values: &[impl Pod]) -> Result<Self::Binding, GpuError<Self::Failure>>;

    /// Records a write of `bytes` at byte `offset` of `to`, as a separate operation.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory.
    fn write(
        &mut self,
        bytes: &[u8],
        to: &Self::Binding,
        offset: u64,
    ) -> Result<(), GpuError<Self::Failure>>;

    /// Records a write that runs after all recorded commands, even if the step is discarded. The host relies
    /// on its result.
    ///
    /// # Errors
    /// Returns an error if the host is out of memory or the device is lost.
    fn overwrite(
        &mut self,
        bytes: &[u8],
        to: &Self::Binding,
        offset: u64,
    ) -> Result<(), GpuError<Self::Failure>>;

    /// Records a copy of `bytes` bytes.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory.
    fn copy(
        &mut self,
        from: &Self::Binding,
        to: &Self::Binding,
        bytes: u64,
    ) -> Result<(), GpuError<Self::Failure>>;

    /// Submits all recorded commands to the device.
    ///
    /// # Errors
    /// Returns an error if the device is lost or refuses a command.
    fn submit(&mut self) -> Result<(), GpuError<Self::Failure>>;

    /// Submits all recorded commands, waits, and passes parts of device memory to `take` as one slice. Each
    /// part is a binding and a length in bytes; the slice holds them in order.
    ///
    /// # Errors
    /// Returns an error if the device is lost or refuses a command.
    fn read(
        &mut self,
        parts: &[(Self::Binding, u64)],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), GpuError<Self::Failure>>;

    /// Submits all recorded commands and waits for them.
    ///
    /// # Errors
    /// Returns an error if the device is lost or refuses a command.
    fn finish(&mut self) -> Result<(), GpuError<Self::Failure>>;

    /// Discards commands that were recorded but not submitted.
    fn discard(&mut self);

    /// Clears the miss flag after all recorded commands.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    fn resume(&mut self) -> Result<(), GpuError<Self::Failure>>;

    /// Returns the miss flag. A kernel sets it to a nonzero value if an expert is missing; later kernels then
    /// skip their work.
    fn miss_flag(&self) -> Self::Binding;
}
