//! Float tensors of a layer.

use nestling_formats::FloatKind;

use nestling_core::backend::Backend;
use nestling_core::error::EngineError;
use nestling_experts::expert::ExpertSource;

pub(super) struct Floats {
    layer: Option<u32>,
    list: Vec<(FloatKind, Vec<f32>)>,
}

impl Floats {
    pub(super) fn read(source: &dyn ExpertSource, layer: Option<u32>) -> Result<Self, EngineError> {
        Ok(Self { layer, list: source.floats(layer)? })
    }

    pub(super) fn get(&self, kind: FloatKind, size: usize) -> Result<&[f32], EngineError> {
        let found = self.list.iter().find(|(found, _)| *found == kind);
        let values = found.map_or(&[][..], |(_, values)| values);
        if values.len() == size {
            return Ok(values);
        }
        let layer = self.layer.map_or("the model".into(), |layer| format!("layer {layer}"));
        let what = format!("{kind:?} of {layer}");
        Err(EngineError::mismatch(what, format!("{size} values"), values.len()))
    }

    pub(super) fn upload<B: Backend>(
        &self,
        backend: &mut B,
        kind: FloatKind,
        size: usize,
    ) -> Result<B::Floats, EngineError> {
        backend.upload_floats(self.get(kind, size)?)
    }

    /// Returns the weights of a convolution, stored `[channels, taps]`, as `[taps, channels]`.
    ///
    /// # Errors
    /// Returns an error if the number of weights differs.
    pub(super) fn by_tap(
        &self,
        kind: FloatKind,
        channels: usize,
        taps: usize,
    ) -> Result<Vec<f32>, EngineError> {
        let weights = self.get(kind, channels * taps)?;
        let by_tap = (0..taps).flat_map(|tap| weights.iter().skip(tap).step_by(taps));
        Ok(by_tap.copied().collect())
    }
}
