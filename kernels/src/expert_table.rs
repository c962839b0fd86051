//! The experts of one layer, where kernels find them.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{DeviceRouting, ExpertShape, FeedForward, HeldExpert, LevelWeights};
use nestling_formats::Level;
use nestling_gpu::{
    DeviceExpertTable, DeviceMatrix, ExpertForm, GpuBuffer, GpuEncoder, GpuFloats, GpuRouting,
    ProductForm, ProductKind, expect,
};

use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::matrix::CudaMatrix;
use crate::params::ExpertEntry;
use crate::recorder::Recorder;
use crate::slabs::Place;

/// Such that the kernels which compute found experts take them.
fn taken(form: ExpertForm) -> Option<ExpertForm> {
    let is_taken = |form: ProductForm| form.kind == ProductKind::Float || form.is_tiled;
    Some(form).filter(|form| is_taken(form.gate) && is_taken(form.down))
}

/// None where gate and up differ, or no kernel takes the matrices.
fn form_of(expert: &FeedForward<CudaBackend>) -> Option<ExpertForm> {
    let forms = matrices(expert).map(|matrix| matrix.form);
    ExpertForm::of(expert.activation, forms).and_then(taken)
}

/// Who holds a table's experts.
enum Held {
    /// All are there, and stay.
    Resident(Vec<Arc<FeedForward<CudaBackend>>>),
    /// Some are, in slots.
    Streamed,
}

/// The experts of one layer, all alike in shape and form.
pub struct CudaExpertTable {
    pub(crate) form: ExpertForm,
    pub(crate) experts: usize,
    /// `[experts]`.
    entries: Place,
    /// Least weights of levels, `[experts, 4]`, as bits.
    least: Option<Place>,
    /// Biases of all gates, then of all ups, then of all downs.
    biases: Option<Place>,
    /// Whether the levels of uses go by their weights.
    by_weight: bool,
    held: Held,
}

fn matrices(expert: &FeedForward<CudaBackend>) -> [&CudaMatrix; 3] {
    [&expert.gate.matrix, &expert.up.matrix, &expert.down.matrix]
}

fn biases(
    FeedForward { gate, up, down, .. }: &FeedForward<CudaBackend>,
) -> [Option<&GpuFloats<CudaBackend>>; 3] {
    [gate, up, down].map(|linear| linear.bias.as_ref())
}

/// What kernels read of an expert of which the planes of so many levels are there.
fn entry(expert: &FeedForward<CudaBackend>, levels: usize) -> ExpertEntry {
    let matrices = matrices(expert).map(CudaMatrix::address);
    ExpertEntry { matrices, levels: levels as u32, padding: 0 }
}

/// The biases of all gates, then of all ups, then of all downs.
fn join_biases(
    recorder: &mut Recorder,
    form: &ExpertForm,
    experts: &[Arc<FeedForward<CudaBackend>>],
) -> Result<Place, EngineError> {
    let joined = recorder.place(4 * form.bias_floats(experts.len()))?;
    for (index, expert) in experts.iter().enumerate() {
        let places = form.biases(experts.len(), index);
        for (bias, (rows, at)) in biases(expert).into_iter().zip(places) {
            let bias = bias.ok_or_else(|| EngineError::mismatch("an expert", "a bias", "none"))?;
            expect("bias", rows, bias.count)?;
            recorder.copy(bias.binding(), joined.address() + 4 * at as u64, 4 * rows as u64)?;
        }
    }
    recorder.submit()?;
    Ok(joined)
}

impl CudaExpertTable {
    /// A table of these experts; none where they differ in form or no kernel takes them.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub(crate) fn new(
        recorder: &mut Recorder,
        experts: &[Arc<FeedForward<CudaBackend>>],
    ) -> Result<Option<Self>, EngineError> {
        let Some(form) = experts.first().and_then(|first| form_of(first)) else {
            return Ok(None);
        };
        if experts.iter().any(|expert| form_of(expert) != Some(form)) {
            return Ok(None);
        }
        let has_bias = |expert: &FeedForward<_>| biases(expert).iter().any(Option::is_some);
        let biases = match experts.iter().filter(|expert| has_bias(expert)).count() {
            0 => None,
            count if count == experts.len() => Some(join_biases(recorder, &form, experts)?),
            _ => return Ok(None),
        };
        // A level that is not held is refused before a kernel looks here.
        let all = Level::ALL.len();
        let entries: Vec<ExpertEntry> = experts.iter().map(|expert| entry(expert, all)).collect();
        let entries = recorder.upload(bytemuck::cast_slice(&entries))?;
        let held = Held::Resident(experts.to_vec());
        let experts = experts.len();
        Ok(Some(Self { form, experts, entries, least: None, biases, by_weight: false, held }))
    }

    /// A table of so many experts in slots, none of which is there yet; none where no kernel takes
    /// them.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub(crate) fn streamed(
        recorder: &mut Recorder,
        shape: &ExpertShape,
        (experts, biases): (usize, Option<&[f32]>),
    ) -> Result<Option<Self>, EngineError> {
        let Some(form) = ExpertForm::of_shape(shape).and_then(taken) else { return Ok(None) };
        let biases = biases.map(|values| recorder.upload(bytemuck::cast_slice(values)));
        let biases = biases.transpose()?;
        let entries = vec![ExpertEntry::default(); experts];
        let entries = recorder.upload(bytemuck::cast_slice(&entries))?;
        let held = Held::Streamed;
        Ok(Some(Self { form, experts, entries, least: None, biases, by_weight: false, held }))
    }

    /// Has the levels of uses go by their weights from now on, or by their rows again.
    ///
    /// # Errors
    /// Weights of other experts than those of the table; a device that is lost or whose memory is
    /// full.
    pub(crate) fn set_level_weights(
        &mut self,
        recorder: &mut Recorder,
        least: Option<&[LevelWeights]>,
    ) -> Result<(), EngineError> {
        self.by_weight = least.is_some();
        let Some(least) = least else { return Ok(()) };
        expect("weights of levels", self.experts, least.len())?;
        match &self.least {
            Some(place) => recorder.overwrite(bytemuck::cast_slice(least), place.address())?,
            None => self.least = Some(recorder.upload(bytemuck::cast_slice(least))?),
        }
        Ok(())
    }

    /// Writes what there is of an expert in a slot, behind all that was recorded.
    ///
    /// # Errors
    /// An expert that the table does not have, or of another form; a device that is lost.
    pub(crate) fn set(
        &mut self,
        recorder: &mut Recorder,
        expert: u32,
        held: Option<HeldExpert<'_, CudaBackend>>,
    ) -> Result<(), EngineError> {
        if expert as usize >= self.experts {
            let expected = format!("an expert below {}", self.experts);
            return Err(EngineError::mismatch("table of experts", expected, expert));
        }
        let entry = match held {
            None => ExpertEntry::default(),
            Some(HeldExpert { weights, level }) => {
                let bias = self.biases.is_some();
                let is_alike = biases(weights).iter().all(|found| found.is_some() == bias);
                if !is_alike || form_of(weights) != Some(self.form) {
                    let (what, expected) = ("expert of a table", "one like the others");
                    return Err(EngineError::mismatch(what, expected, "another"));
                }
                entry(weights, level.index() + 1)
            }
        };
        let to = self.entries.address() + size_of::<ExpertEntry>() as u64 * u64::from(expert);
        Ok(recorder.overwrite(bytemuck::bytes_of(&entry), to)?)
    }

    /// Where the entries are, the least weights of levels, and the biases; 0 for none.
    pub(crate) fn addresses(&self) -> [Address; 3] {
        let of = |place: &Option<Place>| place.as_ref().map_or(0, Place::address);
        let least = if self.by_weight { of(&self.least) } else { 0 };
        [self.entries.address(), least, of(&self.biases)]
    }

    /// Whether an expert may be missing.
    pub(crate) fn may_miss(&self) -> bool {
        matches!(self.held, Held::Streamed)
    }
}

impl DeviceExpertTable for CudaExpertTable {
    fn form(&self) -> &ExpertForm {
        &self.form
    }

    fn check(&self, level: Level) -> Result<(), EngineError> {
        let Held::Resident(experts) = &self.held else { return Ok(()) };
        experts.iter().flat_map(|expert| matrices(expert)).try_for_each(|one| one.check(level))
    }
}

impl DeviceRouting<CudaBackend> for CudaExpertTable {
    fn set_expert(
        &mut self,
        encoder: &mut GpuEncoder<'_, CudaBackend>,
        expert: u32,
        held: Option<HeldExpert<'_, CudaBackend>>,
    ) -> Result<(), EngineError> {
        self.set(&mut encoder.device.recorder, expert, held)
    }

    fn set_level_weights(
        &mut self,
        encoder: &mut GpuEncoder<'_, CudaBackend>,
        least: Option<&[LevelWeights]>,
    ) -> Result<(), EngineError> {
        self.set_level_weights(&mut encoder.device.recorder, least)
    }

    fn routed_experts(
        &self,
        encoder: &mut GpuEncoder<'_, CudaBackend>,
        levels: &[Level],
        routing: &GpuRouting<CudaBackend>,
        x: &GpuBuffer<CudaBackend>,
        out: &mut GpuBuffer<CudaBackend>,
    ) -> Result<(), EngineError> {
        encoder.routed_experts(self, levels, routing, x, out)
    }

    fn take_readback(
        encoder: &mut GpuEncoder<'_, CudaBackend>,
        uses: &mut Vec<u32>,
    ) -> Option<usize> {
        encoder.take_readback(uses)
    }
}
