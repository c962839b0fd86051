//! Routing on the device: builds tables of resident experts, updates the entries of streamed ones, and runs
//! the experts of a routing.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{Backend, DeviceRouting, FeedForward, HeldExpert, LevelWeights};
use nestling_formats::Level;

use crate::StepEncoder;
use crate::allocation::Allocation;
use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::expect;
use crate::expert_form::ExpertForm;
use crate::expert_table::{GpuExpertTable, TableEntries, TableExperts, linears};
use crate::memory::{GpuBuffer, GpuRouting};

/// Returns `None` if gate and up differ in form, or if no kernel supports the matrices.
fn form_of<D: Device>(expert: &FeedForward<D>) -> Option<ExpertForm> {
    let forms = linears(expert).map(|linear| linear.matrix.form);
    ExpertForm::of(expert.activation, forms).filter(D::TableEntries::takes)
}

fn has_bias<B: Backend>(expert: &FeedForward<B>) -> bool {
    linears(expert).iter().any(|linear| linear.bias.is_some())
}

/// Concatenates the biases of all gates, all ups and all downs, in this order.
fn join_biases<D: Device>(
    device: &mut D,
    form: &ExpertForm,
    experts: &[Arc<FeedForward<D>>],
) -> Result<D::Memory, EngineError> {
    let bytes = 4 * form.bias_floats(experts.len()) as u64;
    let joined = device.allocate("biases of experts", bytes)?;
    for (index, expert) in experts.iter().enumerate() {
        let ranges = form.biases(experts.len(), index);
        for (linear, (rows, at)) in linears(expert).into_iter().zip(ranges) {
            let bias = linear.bias.as_ref();
            let bias = bias.ok_or_else(|| EngineError::mismatch("an expert", "a bias", "none"))?;
            expect("bias", rows, bias.count)?;
            let bytes = 4 * rows as u64;
            device.recorder().copy(&bias.binding(), &joined.range(4 * at as u64, bytes), bytes)?;
        }
    }
    device.recorder().submit()?;
    Ok(joined)
}

/// Returns the size of one expert's table entry in bytes.
fn entry_bytes<D: Device>() -> usize {
    size_of::<<D::TableEntries as TableEntries<D>>::Entry>()
}

impl<D: Device> GpuExpertTable<D> {
    /// Checks that all resident experts support a level.
    ///
    /// # Errors
    /// Fails with [`EngineError::LevelMissing`] if a resident expert lacks the level.
    pub(crate) fn check(&self, level: Level) -> Result<(), EngineError> {
        let Some(experts) = &self.resident else { return Ok(()) };
        let mut all = experts.iter().flat_map(|expert| linears(expert));
        all.try_for_each(|linear| linear.matrix.check(level))
    }

    /// Writes into the table at byte `offset`, after all recorded commands.
    fn overwrite(&self, device: &mut D, bytes: &[u8], offset: usize) -> Result<(), EngineError> {
        Ok(device.recorder().overwrite(bytes, &self.entries.binding(), offset as u64)?)
    }

    /// Builds a table of resident experts. Returns `None` if they differ in form or if kernels cannot address
    /// them as one table.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory.
    pub fn resident(
        device: &mut D,
        experts: &[Arc<FeedForward<D>>],
    ) -> Result<Option<Self>, EngineError> {
        let Some(form) = experts.first().and_then(|first| form_of(first)) else {
            return Ok(None);
        };
        if experts.iter().any(|expert| form_of(expert) != Some(form)) {
            return Ok(None);
        }
        let biased = experts.iter().filter(|expert| has_bias(expert)).count();
        if biased != 0 && biased != experts.len() {
            return Ok(None);
        }
        let Some(entries) = D::TableEntries::new(device, TableExperts::Resident(experts))? else {
            return Ok(None);
        };
        let biases = match biased {
            0 => None,
            _ => Some(join_biases(device, &form, experts)?),
        };
        let (count, resident) = (experts.len(), Some(experts.to_vec()));
        Ok(Some(Self { form, experts: count, entries, by_weight: false, biases, resident }))
    }
}

impl<D: Device> DeviceRouting<D> for GpuExpertTable<D>
where
    for<'a> D: Backend<Encoder<'a> = StepEncoder<'a, D>>,
{
    fn set_expert(
        &mut self,
        encoder: &mut StepEncoder<'_, D>,
        expert: u32,
        held: Option<HeldExpert<'_, D>>,
    ) -> Result<(), EngineError> {
        if expert as usize >= self.experts {
            let expected = format!("an expert below {}", self.experts);
            return Err(EngineError::mismatch("table of experts", expected, expert));
        }
        if let Some(HeldExpert { weights, .. }) = held {
            let bias = self.biases.is_some();
            let is_alike = linears(weights).iter().all(|linear| linear.bias.is_some() == bias);
            if !is_alike || form_of(weights) != Some(self.form) {
                let (what, expected) = ("expert of a table", "one like the others");
                return Err(EngineError::mismatch(what, expected, "another"));
            }
        }
        let entry = D::TableEntries::entry(held)?;
        let offset = entry_bytes::<D>() * expert as usize;
        self.overwrite(encoder.inner().inner().device, bytemuck::bytes_of(&entry), offset)
    }

    fn set_level_weights(
        &mut self,
        encoder: &mut StepEncoder<'_, D>,
        least: Option<&[LevelWeights]>,
    ) -> Result<(), EngineError> {
        self.by_weight = least.is_some();
        let Some(least) = least else { return Ok(()) };
        expect("weights of levels", self.experts, least.len())?;
        let offset = entry_bytes::<D>() * self.experts;
        self.overwrite(encoder.inner().inner().device, bytemuck::cast_slice(least), offset)
    }

    fn routed_experts(
        &self,
        encoder: &mut StepEncoder<'_, D>,
        levels: &[Level],
        routing: &GpuRouting<D>,
        x: &GpuBuffer<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        encoder.inner().inner().routed_experts(self, levels, routing, x, out)
    }

    fn take_readback(encoder: &mut StepEncoder<'_, D>, uses: &mut Vec<u32>) -> Option<usize> {
        encoder.inner().inner().take_readback(uses)
    }
}
