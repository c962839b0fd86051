//! Sensitivity of planes: the reduction of the model's divergence per token, in nats.

use nestling_formats::store::{Encoding, Group, GroupId};
use nestling_formats::{Level, Plane};

use super::block::{blocks, matrix_id};
use super::quantize::Coded;
use super::sensitivity::{CodedMatrix, ExpertErrors, LevelErrors, decode, drops, expert_errors};
use super::{Conversion, ConvertError};
use crate::calibrate::{Calibrator, RoutedSample};
use nestling_experts::expert::{CheckpointSource, expert_biases};

impl Conversion<'_> {
    /// Stores the sensitivity of each plane of a layer's group and of each of its matrices.
    pub(super) fn measure(
        &self,
        group: &Group,
        coded: &[Coded],
        calibrator: &Calibrator<'_>,
    ) -> Result<(), ConvertError> {
        match &group.id {
            GroupId::Expert(id) => match calibrator.routed_sample(id.expert) {
                Some(sample) => self.measure_expert(group, coded, calibrator, &sample),
                None => Ok(()),
            },
            GroupId::Dense { .. } => self.measure_dense(group, coded, calibrator),
            _ => Ok(()),
        }
    }

    fn measure_expert(
        &self,
        group: &Group,
        coded: &[Coded],
        calibrator: &Calibrator<'_>,
        sample: &RoutedSample,
    ) -> Result<(), ConvertError> {
        // Default: float groups have no level errors.
        let Some(errors) = self.feed_forward_errors(group, coded, sample)? else { return Ok(()) };
        let kinds = self.checkpoint.config().activation.matrices();
        let influences = kinds.iter().map(|kind| calibrator.influence(&group.id, *kind));
        let influences = influences.collect::<Result<Vec<_>, _>>()?;
        let together = errors.together_drops(kinds, &influences);
        for (plane, drop) in Plane::ALL.into_iter().zip(together) {
            if group.extents[plane.index()].is_some() {
                self.writer.set_error_drop(&group.id, plane, drop)?;
            }
        }
        self.note_feed_forward(&group.id, &errors, &influences)
    }

    /// Measures the matrices of the mixer one by one, then the dense feed-forward part.
    fn measure_dense(
        &self,
        group: &Group,
        coded: &[Coded],
        calibrator: &Calibrator<'_>,
    ) -> Result<(), ConvertError> {
        let exact = calibrator.mixer_output(None)?;
        let tokens = exact.len() / self.checkpoint.config().hidden_size.max(1);
        let feed_forward = self.checkpoint.config().activation.matrices();
        for (matrix, coded) in group.matrices.iter().zip(coded) {
            let Encoding::Nested { codec, .. } = matrix.encoding else { continue };
            let (Coded::Nested(coded), Some(codec)) = (coded, self.writer.codec(codec)) else {
                continue;
            };
            if feed_forward.contains(&matrix.kind) {
                continue;
            }
            self.check_cancelled()?;
            let id = matrix_id(&group.id, matrix);
            let failed = |source| ConvertError::Quantize { matrix: id, source };
            let mut errors: LevelErrors = [0.0; 6];
            let weights = vec![0.0; coded.rows * coded.cols];
            let known = CodedMatrix { weights: &weights, coded, codec: &codec, bias: &[] };
            let levels = std::iter::once(None).chain(Level::ALL.map(Some));
            for (error, level) in errors.iter_mut().zip(levels) {
                let decoded = level.map(|level| decode(&known, level)).transpose();
                let decoded = decoded.map_err(failed)?;
                let weights = decoded.as_deref().unwrap_or(&weights);
                let output = calibrator.mixer_output(Some((matrix.kind, weights)))?;
                *error = square_distance(&exact, &output);
            }
            let influence = calibrator.influence(&group.id, matrix.kind)? / tokens.max(1) as f64;
            let drops = drops(&errors, influence).map(Some);
            self.writer.set_matrix_error_drops(&group.id, matrix.kind, drops)?;
        }
        // Default: nothing is measured without a sample.
        let Some(sample) = calibrator.dense_sample() else { return Ok(()) };
        // Default: float groups have no level errors.
        let Some(errors) = self.feed_forward_errors(group, coded, &sample)? else { return Ok(()) };
        let square: f64 = sample.weights.iter().map(|weight| f64::from(*weight).powi(2)).sum();
        let square = square / sample.weights.len().max(1) as f64;
        let kinds = feed_forward.iter();
        let influences = kinds.map(|kind| Ok(square * calibrator.influence(&group.id, *kind)?));
        let influences = influences.collect::<Result<Vec<_>, ConvertError>>()?;
        self.note_feed_forward(&group.id, &errors, &influences)
    }

    fn note_feed_forward(
        &self,
        group: &GroupId,
        errors: &ExpertErrors,
        influences: &[f64],
    ) -> Result<(), ConvertError> {
        let kinds = self.checkpoint.config().activation.matrices();
        for (kind, influence) in kinds.iter().zip(influences) {
            let drops = drops(errors.of(*kind), *influence).map(Some);
            self.writer.set_matrix_error_drops(group, *kind, drops)?;
        }
        Ok(())
    }

    /// Returns the errors of a group's gate, up and down. Returns `None` unless the group has all of them in
    /// coded form.
    fn feed_forward_errors(
        &self,
        group: &Group,
        coded: &[Coded],
        sample: &RoutedSample,
    ) -> Result<Option<ExpertErrors>, ConvertError> {
        let activation = self.checkpoint.config().activation;
        let kinds = activation.matrices();
        let mut floats = Vec::with_capacity(kinds.len());
        let mut parts = Vec::with_capacity(kinds.len());
        for &kind in kinds {
            let both = group.matrices.iter().zip(coded);
            let Some((matrix, coded)) = both.into_iter().find(|(matrix, _)| matrix.kind == kind)
            else {
                return Ok(None);
            };
            // Default: float groups have no level errors.
            let Encoding::Nested { codec, .. } = matrix.encoding else { return Ok(None) };
            let (Coded::Nested(coded), Some(codec)) = (coded, self.writer.codec(codec)) else {
                return Ok(None);
            };
            let blocks = blocks(matrix_id(&group.id, matrix), matrix);
            let weights = blocks.map(|block| self.read(&block)).collect::<Result<Vec<_>, _>>()?;
            floats.push(weights.concat());
            parts.push((coded, codec));
        }
        let biases = self.expert_biases(&group.id)?;
        let matrices: Vec<CodedMatrix<'_>> = parts
            .iter()
            .zip(&floats)
            .zip(&biases[biases.len() - kinds.len()..])
            .map(|(((coded, codec), weights), bias)| CodedMatrix { weights, coded, codec, bias })
            .collect();
        let id = matrix_id(&group.id, &group.matrices[0]);
        let errors = expert_errors(&matrices, sample, activation);
        Ok(Some(errors.map_err(|source| ConvertError::Quantize { matrix: id, source })?))
    }

    /// Returns the biases of an expert's gate, up and down, each empty if absent.
    fn expert_biases(&self, group: &GroupId) -> Result<[Vec<f32>; 3], ConvertError> {
        let (Some(layer), Some(expert)) = (group.layer(), group.expert()) else {
            return Ok([const { Vec::new() }; 3]);
        };
        let source = CheckpointSource::new(self.checkpoint);
        let biases = expert_biases(&source, layer)?;
        Ok(biases.map_or([const { Vec::new() }; 3], |all| all.of(expert).map(<[f32]>::to_vec)))
    }
}

fn square_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
}
