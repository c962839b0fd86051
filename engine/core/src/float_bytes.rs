//! Additional memory of floats that are widened when loaded from a store.

use nestling_formats::FloatKind;
use nestling_formats::store::{FloatTensor, Group};

/// Size of an element in memory in bytes.
pub const FLOAT_BYTES: u64 = 4;

/// Returns the additional bytes when the floats of a group are loaded as 32-bit floats; routers are not
/// widened.
pub fn widened(group: &Group) -> u64 {
    let tensors = group.tensors.iter().filter(|tensor| tensor.kind != FloatKind::Router);
    tensors.map(widened_tensor).sum()
}

fn widened_tensor(tensor: &FloatTensor) -> u64 {
    let elements = tensor.shape.iter().fold(1u64, |all, size| all.saturating_mul(*size as u64));
    elements.saturating_mul(FLOAT_BYTES.saturating_sub(tensor.dtype.bytes() as u64))
}
