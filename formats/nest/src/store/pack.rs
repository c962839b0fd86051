//! Assembly of extents from quantized matrices.

use super::error::StoreError;
use super::index::{Encoding, Group};
use super::parts::PartItem;
use crate::Plane;
use crate::memory::try_reserve;
use crate::nested::{PlaneForm, QuantizedMatrix, ScaledRows, pack_plane, pack_scaled_plane};

/// Values of a matrix or tensor of a group.
#[derive(Clone, Copy, Debug)]
pub enum MatrixData<'a> {
    /// Matrix of nested codes.
    Nested(&'a QuantizedMatrix),
    /// Matrix of scaled integers.
    Scaled(&'a ScaledRows),
    /// Little-endian floats of the planned type, row by row.
    Floats(&'a [u8]),
}

/// Fills `out` with the extent of `plane`. `data` holds the group's matrices, then its tensors.
///
/// `out` is left empty if the group has no such extent.
///
/// # Errors
/// [`StoreError::Plan`] if the data do not match the planned group.
pub fn pack_extent(
    group: &Group,
    plane: Plane,
    data: &[MatrixData<'_>],
    out: &mut Vec<u8>,
) -> Result<(), StoreError> {
    let error = |reason: String| StoreError::plan(group.id.to_string(), reason);
    let expected = group.matrices.len() + group.tensors.len();
    if data.len() != expected {
        return Err(error(format!("has {expected} matrices and tensors, not {}", data.len())));
    }
    let parts = group.parts(plane).ok_or_else(|| error("is too large".into()))?;
    out.clear();
    let bytes = group.extent_bytes(plane).ok_or_else(|| error("is too large".into()))?;
    try_reserve(out, "an extent", bytes)?;
    out.resize(bytes, 0);
    for part in parts {
        let number = match part.item {
            PartItem::Plane { matrix, .. }
            | PartItem::Merged { matrix }
            | PartItem::Floats { matrix } => matrix,
            PartItem::Tensor { tensor } => group.matrices.len() + tensor,
        };
        let bytes = out.get_mut(part.range);
        let (Some(data), Some(bytes)) = (data.get(number), bytes) else {
            return Err(error(format!("has no matrix {number}")));
        };
        match (*data, part.item) {
            (MatrixData::Nested(_) | MatrixData::Scaled(_), PartItem::Plane { matrix, plane }) => {
                let planned = group.matrices.get(matrix).map(|matrix| matrix.encoding);
                let packed = match (*data, planned) {
                    (
                        MatrixData::Nested(quantized),
                        Some(Encoding::Nested { layout, form: PlaneForm::Nested, .. }),
                    ) => pack_plane(quantized, layout, plane, bytes),
                    (
                        MatrixData::Scaled(rows),
                        Some(Encoding::Nested { layout, form: PlaneForm::Scaled(form), .. }),
                    ) => pack_scaled_plane(rows, &form, layout, plane, bytes),
                    _ => {
                        let reason = format!("matrix {matrix} was planned with another codec");
                        return Err(error(reason));
                    }
                };
                packed.map_err(|fault| error(format!("matrix {matrix}: {fault}")))?;
            }
            (MatrixData::Floats(floats), PartItem::Floats { .. } | PartItem::Tensor { .. })
                if floats.len() == bytes.len() =>
            {
                bytes.copy_from_slice(floats);
            }
            _ => return Err(error(format!("item {number} has another type or size than planned"))),
        }
    }
    Ok(())
}
