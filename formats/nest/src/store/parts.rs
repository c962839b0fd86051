//! Layout within an extent, determined by the group's shapes alone.

use std::ops::Range;

use super::format::PART_ALIGNMENT;
use super::index::{Encoding, FloatTensor, Group, GroupId, Matrix};
use crate::nested::{Layout, PlaneForm};
use crate::{Level, Plane};

/// Content of a part of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartItem {
    /// One plane of a matrix of the group.
    Plane {
        /// Number of the matrix within its group.
        matrix: usize,
        /// Plane of the matrix; an extent may contain several planes of a matrix.
        plane: Plane,
    },
    /// Planes P3 and P4 of a matrix of the group as one digit; only with [`Digits::Merged`].
    Merged {
        /// Number of the matrix within its group.
        matrix: usize,
    },
    /// All floats of a matrix of the group.
    Floats {
        /// Number of the matrix within its group.
        matrix: usize,
    },
    /// A float tensor of the group.
    Tensor {
        /// Number of the tensor within its group.
        tensor: usize,
    },
}

/// Storage of planes P3 and P4 of a scaled-integer matrix in an extent that contains both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digits {
    /// Separate planes, one after the other, as in all files.
    Apart,
    /// One merged digit, as used on the CPU ([`crate::nested::merge_p3_p4`]), at the same offset; for tiled
    /// layouts only. Files never contain it.
    Merged,
}

/// A range of bytes within an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Content of the part.
    pub item: PartItem,
    /// Byte range in the extent. It starts at a multiple of 64 and is zero-padded to the next one.
    pub range: Range<usize>,
}

impl Matrix {
    /// Returns the planes that the extent of `plane` adds to this matrix.
    pub(super) fn planes_in(&self, plane: Plane) -> impl Iterator<Item = Plane> {
        let index = plane.index();
        let before = index.checked_sub(1).and_then(|index| self.levels[index]);
        let after = self.levels[index];
        Plane::ALL.into_iter().filter(move |added| {
            let level = Some(added.level());
            level > before && level <= after
        })
    }

    /// Returns the level reached with the first `planes` extents of the group.
    pub fn level_after(&self, planes: usize) -> Option<Level> {
        planes.checked_sub(1).and_then(|last| self.levels.get(last).copied().flatten())
    }

    /// Returns the size of all values in bytes, or `None` if they are not floats or the size overflows.
    pub(super) fn float_bytes(&self) -> Option<usize> {
        match self.encoding {
            Encoding::Float(dtype) => self.rows.checked_mul(self.cols)?.checked_mul(dtype.bytes()),
            Encoding::Nested { .. } => None,
        }
    }
}

impl FloatTensor {
    /// Returns the size of all elements in bytes, or `None` if it overflows.
    pub fn bytes(&self) -> Option<usize> {
        let count = self.shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size))?;
        count.checked_mul(self.dtype.bytes())
    }
}

impl Group {
    /// Returns the parts of the extent of `plane`, in order, or `None` if the sizes overflow.
    ///
    /// The list is empty if the group has no such extent, and for assets, whose extent is the file itself.
    pub fn parts(&self, plane: Plane) -> Option<Vec<Part>> {
        let mut parts = Vec::new();
        self.visit(plane, |part| parts.push(part))?;
        Some(parts)
    }

    /// Returns [`Group::parts`] of a store with the given digits.
    pub fn parts_as(&self, plane: Plane, digits: Digits) -> Option<Vec<Part>> {
        let parts = self.parts(plane)?;
        if digits == Digits::Apart {
            return Some(parts);
        }
        let mut merged: Vec<Part> = Vec::with_capacity(parts.len());
        for part in parts {
            match merged.last_mut() {
                Some(last) if self.are_digits(last, &part) => {
                    let PartItem::Plane { matrix, .. } = part.item else { return None };
                    last.item = PartItem::Merged { matrix };
                    last.range.end = part.range.end;
                }
                _ => merged.push(part),
            }
        }
        Some(merged)
    }

    /// Returns whether two parts are P3 and P4 of a tiled matrix of scaled integers.
    fn are_digits(&self, first: &Part, second: &Part) -> bool {
        let PartItem::Plane { matrix, plane: Plane::P3 } = first.item else { return false };
        let follows = second.item == PartItem::Plane { matrix, plane: Plane::P4 };
        let encoding = self.matrices.get(matrix).map(|matrix| matrix.encoding);
        let is_tiled = matches!(
            encoding,
            Some(Encoding::Nested { layout: Layout::Tile16, form: PlaneForm::Scaled(_), .. })
        );
        follows && is_tiled && first.range.end == second.range.start
    }

    /// Returns the size in bytes of the extent of `plane`, 0 if there is none. Returns `None` if the sizes
    /// overflow.
    pub(super) fn extent_bytes(&self, plane: Plane) -> Option<usize> {
        self.visit(plane, |_| ())
    }

    /// Calls `each` with all parts and returns the size of the extent in bytes.
    fn visit(&self, plane: Plane, mut each: impl FnMut(Part)) -> Option<usize> {
        let mut end = 0usize;
        let mut place = |item, length: usize| {
            let range = end..end.checked_add(length)?;
            end = range.end.checked_next_multiple_of(PART_ALIGNMENT)?;
            each(Part { item, range });
            Some(())
        };
        for (number, matrix) in self.matrices.iter().enumerate() {
            match matrix.encoding {
                Encoding::Nested { layout, form, .. } => {
                    for added in matrix.planes_in(plane) {
                        let bytes = form.plane_bytes(layout, matrix.rows, matrix.cols, added)?;
                        place(PartItem::Plane { matrix: number, plane: added }, bytes)?;
                    }
                }
                Encoding::Float(_) if plane == Plane::P2 => {
                    place(PartItem::Floats { matrix: number }, matrix.float_bytes()?)?;
                }
                Encoding::Float(_) => (),
            }
        }
        if plane == Plane::P2 {
            for (number, tensor) in self.tensors.iter().enumerate() {
                place(PartItem::Tensor { tensor: number }, tensor.bytes()?)?;
            }
        }
        Some(end)
    }

    /// Returns true if the group is a file rather than weights.
    pub(super) fn is_asset(&self) -> bool {
        matches!(self.id, GroupId::Asset { .. })
    }
}
