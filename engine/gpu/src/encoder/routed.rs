//! Experts that kernels find by themselves: the routing is not read back before them.

use nestling_core::EngineError;
use nestling_formats::Level;

use crate::device::Device;
use crate::expert_form::RoutedRows;
use crate::expert_table::GpuExpertTable;
use crate::memory::{GpuBuffer, GpuRouting};
use crate::operation::{Operation, RoutedExperts};

pub(super) fn experts<D: Device>(
    device: &mut D,
    table: &GpuExpertTable<D>,
    levels: &[Level],
    routing: &GpuRouting<D>,
    x: &GpuBuffer<D>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let (routed, out_cols) = (routing.rows, out.cols);
    let rows = RoutedRows { x: (x.rows, x.cols), routed, levels, out_cols };
    table.form.check(rows, |level| table.check(level))?;
    let uses = x.rows * routing.per_token;
    out.resize(device, uses)?;
    device.record(Operation::RoutedExperts(RoutedExperts { table, levels, routing, x, out, uses }))
}
