//! RMSNorm of rows. Also writes int8 rows if a later product takes them.

use nestling_core::EngineError;
use nestling_core::backend::Write;

use crate::device::Device;
use crate::memory::{GpuBuffer, GpuFloats};
use crate::operation::{Operation, RmsNorm};
use crate::storage::word;

pub(super) fn rms_norm<D: Device>(
    device: &mut D,
    x: &GpuBuffer<D>,
    weight: &GpuFloats<D>,
    eps: f32,
    write: Write,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let int8 = match write {
        Write::Set => {
            out.resize(device, x.rows)?;
            out.make_int8(device)?
        }
        Write::Add => None,
    };
    device.record(Operation::RmsNorm(RmsNorm {
        x: x.binding(),
        weight: weight.binding(),
        out: out.binding(),
        int8,
        rows: word("rows", x.rows)?,
        cols: word("columns", x.cols)?,
        eps,
        write,
    }))
}
