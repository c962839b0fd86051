//! Second moments of the inputs of matrices that are coded.

use nestling_formats::nested::{
    DampedMoments, InputCalibration, InputTransform, SecondMoments, reorder_moments,
};
use nestling_formats::{MatrixId, MatrixKind};

use super::block::Block;
use super::{Conversion, ConvertError};
use crate::calibrate::{Calibrator, first_with_inputs_of};

/// Damping of an embedding that is also the head. Its rows are looked up as well as multiplied, so that errors
/// in directions without inputs count too.
const TIED_DAMPING: f32 = 0.5;

/// Moments of the inputs of one group's matrices. They are requested in the order of the group: matrices that
/// share inputs are consecutive and share the moments.
pub(super) struct Inputs<'a> {
    conversion: &'a Conversion<'a>,
    calibrator: Option<&'a Calibrator<'a>>,
    last: Option<(MatrixKind, SecondMoments, DampedMoments)>,
}

impl<'a> Inputs<'a> {
    pub fn new(conversion: &'a Conversion<'a>, calibrator: Option<&'a Calibrator<'a>>) -> Self {
        Self { conversion, calibrator, last: None }
    }

    /// Returns the moments of a matrix's inputs. Returns `None` without calibration.
    pub fn of(
        &mut self,
        id: MatrixId,
        cols: usize,
    ) -> Result<Option<InputCalibration<'_>>, ConvertError> {
        // Default: no moments without calibration.
        let Some(calibrator) = self.calibrator else { return Ok(None) };
        let first = first_with_inputs_of(id.kind);
        if self.last.as_ref().is_none_or(|(kind, ..)| *kind != first) {
            let moments = self.conversion.moments(calibrator, id, cols)?;
            let damp = match self.conversion.options.quantize.calibrated.feedback {
                true => DampedMoments::factored,
                false => DampedMoments::new,
            };
            let damped = damp(&moments, self.conversion.damping(id))
                .map_err(|source| ConvertError::Quantize { matrix: id, source })?;
            self.last = Some((first, moments, damped));
        }
        Ok(self.last.as_ref().map(|(_, moments, damped)| InputCalibration { moments, damped }))
    }
}

impl Conversion<'_> {
    /// Returns the second moments of a matrix's inputs in stored form, that is, reordered and transformed.
    fn moments(
        &self,
        calibrator: &Calibrator<'_>,
        id: MatrixId,
        cols: usize,
    ) -> Result<SecondMoments, ConvertError> {
        let failed = |source| ConvertError::Quantize { matrix: id, source };
        let mut moments = calibrator.moments(id)?;
        if id.kind == MatrixKind::Down
            && let Some(order) = self.orders.of(id)?
        {
            moments = reorder_moments(&moments, &order).map_err(failed)?;
        }
        match self.transform(id, cols) {
            InputTransform::None => Ok(moments),
            transform => transform.transform_moments(&moments).map_err(failed),
        }
    }

    /// Returns the mean square of each input, relative to the mean over all inputs, so that all matrices of a
    /// codec have equal weight.
    pub(super) fn importance(
        &self,
        calibrator: Option<&Calibrator<'_>>,
        block: &Block,
    ) -> Result<Option<Vec<f32>>, ConvertError> {
        // Default: all inputs count alike without calibration.
        let Some(calibrator) = calibrator else { return Ok(None) };
        let mut diagonal = match (self.transform(block.id, block.cols), block.id.kind) {
            (InputTransform::None, MatrixKind::Down) => {
                let diagonal = calibrator.diagonal(block.id)?;
                match self.orders.of(block.id)? {
                    Some(order) => order.iter().map(|at| diagonal[*at as usize]).collect(),
                    None => diagonal,
                }
            }
            (InputTransform::None, _) => calibrator.diagonal(block.id)?,
            _ => self.moments(calibrator, block.id, block.cols)?.diagonal(),
        };
        let sum: f64 = diagonal.iter().copied().map(f64::from).sum();
        let factor = diagonal.len() as f64 / sum;
        if !factor.is_finite() {
            return Ok(None);
        }
        diagonal.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
        Ok(Some(diagonal))
    }

    fn damping(&self, id: MatrixId) -> f32 {
        let damping = &self.options.damping;
        match (id.expert, id.kind) {
            (None, MatrixKind::Embedding) => TIED_DAMPING,
            (None, _) => damping.dense,
            (_, MatrixKind::Down) => damping.down,
            _ => damping.gate_up,
        }
    }
}
