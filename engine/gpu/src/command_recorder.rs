//! What records the commands of a step and gives them to a device.

use std::error::Error;

use bytemuck::Pod;

use crate::error::GpuError;
use crate::work_meter::WorkMeter;

/// Records commands in the order in which a device does them.
pub trait CommandRecorder {
    /// Where a kernel finds something.
    type Binding;
    /// What only errors of this backend say.
    type Failure: Error + Send + Sync + 'static;

    /// What was recorded, and how long it is estimated to take.
    fn meter(&mut self) -> &mut WorkMeter;

    /// A step of so many rows begins.
    fn begin_step(&mut self, rows: usize);

    /// An operation begins: all tables that it takes last until it has ended.
    ///
    /// # Errors
    /// A device that is lost.
    fn begin_operation(&mut self) -> Result<(), GpuError<Self::Failure>>;

    /// A table that kernels of this operation read.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn table(&mut self, values: &[impl Pod]) -> Result<Self::Binding, GpuError<Self::Failure>>;

    /// Records that memory gets these bytes, from an offset on: an operation of its own.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn write(
        &mut self,
        bytes: &[u8],
        to: &Self::Binding,
        offset: u64,
    ) -> Result<(), GpuError<Self::Failure>>;

    /// Writes what the host counts on behind all that was recorded, from an offset on, whatever becomes of
    /// the step.
    ///
    /// # Errors
    /// A host without memory for it; a device that is lost.
    fn overwrite(
        &mut self,
        bytes: &[u8],
        to: &Self::Binding,
        offset: u64,
    ) -> Result<(), GpuError<Self::Failure>>;

    /// Records a copy of so many bytes.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn copy(
        &mut self,
        from: &Self::Binding,
        to: &Self::Binding,
        bytes: u64,
    ) -> Result<(), GpuError<Self::Failure>>;

    /// Starts the device on all that was recorded.
    ///
    /// # Errors
    /// A device that is lost or refused a command.
    fn submit(&mut self) -> Result<(), GpuError<Self::Failure>>;

    /// Starts the device on all that was recorded, waits, and gives parts of memory, one after another,
    /// to `take`: each where it is, and its bytes.
    ///
    /// # Errors
    /// A device that is lost or refused a command.
    fn read(
        &mut self,
        parts: &[(Self::Binding, u64)],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), GpuError<Self::Failure>>;

    /// Runs and waits for all that was recorded.
    ///
    /// # Errors
    /// A device that is lost or refused a command.
    fn finish(&mut self) -> Result<(), GpuError<Self::Failure>>;

    /// Forgets what was recorded and not submitted.
    fn discard(&mut self);

    /// Clears the miss flag, behind all that was recorded.
    ///
    /// # Errors
    /// A device that is lost.
    fn resume(&mut self) -> Result<(), GpuError<Self::Failure>>;

    /// The miss flag: not 0 once a kernel lacked an expert; what comes after does nothing.
    fn miss_flag(&self) -> Self::Binding;
}
