//! Experts that kernels look up on the device, so that the host need not read the routing back first.

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_formats::Level;

use super::experts::gated;
use super::products::input_for;
use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::expert_form::{ExpertForm, RoutedRows};
use crate::expert_table::GpuExpertTable;
use crate::memory::{GpuBuffer, GpuRouting};
use crate::operation::{
    FindExperts, FoundExperts, FoundProducts, GatedProducts, GatesAndUps, Joint, NotedCall,
    Operation, Output,
};
use crate::scratch::ScratchRoom;
use crate::storage::word;

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
    let noted = reserve_notes(device, uses, table.may_miss())?;
    let found = device.find_experts(&FindExperts { table, levels, routing, uses, noted })?;
    multiply(device, table, &found, x, out)
}

/// Reserves space for the expert uses of a call.
fn reserve_notes<D: Device>(
    device: &mut D,
    uses: usize,
    may_miss: bool,
) -> Result<NotedCall<D::Binding>, EngineError> {
    let mut notes = std::mem::take(&mut device.state().notes);
    let taken = notes.take(device, uses);
    if may_miss {
        notes.uses.open();
    }
    let call = notes.uses.calls();
    device.state().notes = notes;
    let (notes, first) = taken?;
    Ok(NotedCall { notes, first: word("uses of experts", first)?, call: word("layers", call)? })
}

/// Records gate and up products, the activation that joins them, and down products.
fn multiply<D: Device>(
    device: &mut D,
    table: &GpuExpertTable<D>,
    found: &FoundExperts<D::FoundBlocks>,
    x: &GpuBuffer<D>,
    out: &GpuBuffer<D>,
) -> Result<(), EngineError> {
    let ExpertForm { activation, gate: form, down } = table.form;
    let (rows, cols) = (out.rows, form.rows);
    let input = &input_for(device, x, form.kind)?;
    let joint = Joint { activation, kind: down.kind, rotated: down.rotated };
    let products = GatesAndUps::Found { blocks: &found.inner, form };
    let input = match device.record_gated(&GatedProducts { products, input, joint, rows, cols })? {
        Some(input) => input,
        None => {
            let gate_up = device.scratch(ScratchRoom::GateUp, 2 * rows * cols)?;
            let values = gate_up.clone();
            let output = &Output { values, cols: 2 * cols, write: Write::Set };
            let blocks = &found.inner;
            let products = FoundProducts { table, blocks, form, input, output };
            device.record(Operation::FoundProducts(products))?;
            gated(device, joint, gate_up, rows, cols)?
        }
    };
    let (blocks, form) = (&found.outer, down);
    let (input, output) = (&input, &Output::of(out, Write::Set));
    device.record(Operation::FoundProducts(FoundProducts { table, blocks, form, input, output }))
}
