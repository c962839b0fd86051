//! Shape of a slot that fits any expert of a layer.

use nestling_formats::store::{Encoding, Group, GroupId, Index, Matrix};
use nestling_formats::{Level, MatrixKind, Plane};
use nestling_import::FeedForward;

use super::source::ExpertSource;
use super::store::StoreSource;
use nestling_core::backend::{ExpertShape, MatrixForm, MatrixShape};
use nestling_core::error::EngineError;
use nestling_core::weights::ActivationMode;

impl StoreSource {
    /// Returns the shape that fits any expert of a layer, or `None` for a layer without experts.
    ///
    /// # Errors
    /// Returns an error if an expert is missing, or differs from the others in more than its planes.
    pub fn expert_shape(
        &self,
        layer: usize,
        activations: ActivationMode,
    ) -> Result<Option<ExpertShape>, EngineError> {
        of_layer(self, layer, activations)
    }
}

fn of_layer(
    source: &StoreSource,
    layer: usize,
    activations: ActivationMode,
) -> Result<Option<ExpertShape>, EngineError> {
    let config = source.config();
    let Some(FeedForward::Moe { num_experts, .. }) =
        config.layers.get(layer).map(|layer| layer.feed_forward)
    else {
        return Ok(None);
    };
    let activation = config.activation;
    // Without a gate, up has its place.
    let gate = if activation.has_gate() { MatrixKind::Gate } else { MatrixKind::Up };
    let kinds = [gate, MatrixKind::Up, MatrixKind::Down];
    let mut found: [Option<MatrixShape>; 3] = [None; 3];
    for expert in 0..num_experts as u32 {
        let id = GroupId::expert_of(layer as u32, expert);
        let missing = || EngineError::mismatch(id.to_string(), "in the store", "missing");
        let group = source.store().group(&id).ok_or_else(missing)?;
        for (kind, found) in kinds.into_iter().zip(&mut found) {
            let matrix = group.matrix(kind).ok_or_else(missing)?;
            let one = shape_of(source, group, matrix)?;
            let joined = found.map_or(Some(one), |other| larger(other, one));
            let differ = || EngineError::mismatch(id.to_string(), "alike in its layer", "another");
            *found = Some(joined.ok_or_else(differ)?);
        }
    }
    let [Some(gate), Some(up), Some(down)] = found else { return Ok(None) };
    Ok(Some(ExpertShape { activation, activations, matrices: [gate, up, down] }))
}

fn shape_of(
    source: &StoreSource,
    group: &Group,
    matrix: &Matrix,
) -> Result<MatrixShape, EngineError> {
    let index: &Index = source.store().index();
    let form = match matrix.encoding {
        Encoding::Float(dtype) => MatrixForm::Float(dtype),
        Encoding::Nested { layout, form, .. } => {
            let missing = || EngineError::mismatch(group.id.to_string(), "its codec", "none");
            let codec = index.codec(matrix).ok_or_else(missing)?;
            let codec_bytes = codec.to_bytes().len();
            let extents = Plane::ALL.into_iter().take(source.planes(group));
            let mut level = Level::L2;
            for extent in extents {
                let parts = source.parts_used(group, extent)?;
                let own = parts.filter(|(other, ..)| other.kind == matrix.kind);
                level = own.map(|(_, plane, _)| plane.level()).fold(level, Level::max);
            }
            MatrixForm::Nested { planes: form, layout, inputs: codec.inputs(), codec_bytes, level }
        }
    };
    Ok(MatrixShape { rows: matrix.rows, cols: matrix.cols, form })
}

/// Returns a shape that fits both matrices, or `None` if they differ in more than planes and tables.
fn larger(one: MatrixShape, other: MatrixShape) -> Option<MatrixShape> {
    use MatrixForm::{Float, Nested};
    let form = match (one.form, other.form) {
        (Float(own), Float(theirs)) if own == theirs => one.form,
        (
            Nested { planes, layout, inputs, codec_bytes, level },
            Nested {
                planes: other_planes,
                layout: other_layout,
                inputs: other_inputs,
                codec_bytes: bytes,
                level: most,
            },
        ) if (planes, layout, inputs) == (other_planes, other_layout, other_inputs) => {
            let (codec_bytes, level) = (codec_bytes.max(bytes), level.max(most));
            Nested { planes, layout, inputs, codec_bytes, level }
        }
        _ => return None,
    };
    ((one.rows, one.cols) == (other.rows, other.cols)).then_some(MatrixShape { form, ..one })
}
