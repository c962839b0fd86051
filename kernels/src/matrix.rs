//! Weight matrices in device memory.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::weights::{FloatMatrix, MatrixWeights, NestedMatrix};
use nestling_formats::nested::{GROUP, Layout, PlaneForm};
use nestling_formats::{DType, Invariant, Level, Plane};
use nestling_gpu::{
    CommandRecorder, GpuMatrix, HeldLevels, NewMatrix, NewPlanes, PlaneMemory, SlotRegion,
    base_ranges, word,
};

use crate::driver::Address;
use crate::matrix_layout::{CODEC_OFFSET, CudaMatrixLayout, SlotAddresses};
use crate::params::Matrix;
use crate::recorder::Recorder;
use crate::slabs::{SlabRange, address};

/// Prefix of a level that is not resident, as kernels read it.
const NO_PREFIX: u32 = 15;

/// A weight matrix in device memory.
pub type CudaMatrix = GpuMatrix<CudaWeights>;

/// Device memory of a matrix's planes.
pub struct CudaWeights {
    /// Descriptor that kernels read, equal to the copy on the device.
    described: Matrix,
    memory: MatrixMemory,
}

enum MatrixMemory {
    /// Separately allocated ranges.
    Own {
        /// Descriptor followed by the codec.
        head: SlabRange,
        /// Ranges that the descriptor refers to.
        _planes: Vec<SlabRange>,
    },
    /// A slot, whose planes arrive one at a time.
    Slot(SlotAddresses),
}

/// Layout of a matrix, with the numbers that kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum KernelLayout {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    Tile16 = 3,
    RowMajor = 4,
    ScaledTile16 = 5,
    ScaledRowMajor = 6,
}

impl PlaneMemory for CudaWeights {
    type Recorder = Recorder;
    type Binding = Address;
    type MatrixLayout = CudaMatrixLayout;

    fn upload(recorder: &mut Recorder, matrix: NewMatrix<'_>) -> Result<Self, EngineError> {
        let NewMatrix { weights, levels } = matrix;
        let mut described = Matrix {
            rows: word("rows of a matrix", weights.rows())?,
            cols: word("elements of a row", weights.cols())?,
            prefixes: prefixes(levels),
            ..Matrix::default()
        };
        let (codec, planes) = match weights {
            MatrixWeights::Float(matrix) => {
                (Vec::new(), vec![float_plane(recorder, matrix, &mut described)?])
            }
            MatrixWeights::Nested(matrix) => {
                (matrix.codec().to_bytes(), nested_planes(recorder, matrix, &mut described)?)
            }
        };
        let head = recorder.range(CODEC_OFFSET as usize + codec.len())?;
        described.codec = address(&head) + CODEC_OFFSET;
        recorder.fill(&head, 0, bytemuck::bytes_of(&described))?;
        recorder.fill(&head, CODEC_OFFSET, &codec)?;
        Ok(Self { described, memory: MatrixMemory::Own { head, _planes: planes } })
    }

    /// Writes the codec and the base plane. The descriptor is written by [`PlaneMemory::add`].
    fn in_slot(
        recorder: &mut Recorder,
        room: &SlotRegion<Address, CudaMatrixLayout>,
        weights: &MatrixWeights,
    ) -> Result<Self, EngineError> {
        let room = SlotAddresses::in_slot(room.binding, &room.matrix);
        let MatrixWeights::Nested(nested) = weights else {
            return Err(EngineError::mismatch("a matrix in a slot", "the nested code", "floats"));
        };
        let codec = nested.codec().to_bytes();
        let found = CODEC_OFFSET + codec.len() as u64;
        if found > room.head_bytes {
            return Err(EngineError::mismatch("codec in a slot", room.head_bytes, found));
        }
        let mut described = Matrix {
            rows: word("rows of a matrix", nested.rows())?,
            cols: word("elements of a row", nested.cols())?,
            codec: room.head + CODEC_OFFSET,
            ..Matrix::default()
        };
        let base = room.planes[0].invariant("a slot has room for the first plane")?;
        describe_base(nested, base, &mut described)?;
        recorder.overwrite(&codec, &described.codec, 0)?;
        recorder.overwrite(nested.regions().planes().p2, &base, 0)?;
        Ok(Self { described, memory: MatrixMemory::Slot(room) })
    }

    fn add(&mut self, recorder: &mut Recorder, new: NewPlanes<'_>) -> Result<(), EngineError> {
        for plane in new.planes {
            let to = plane.room(self.slot_plane(plane.plane))?;
            recorder.overwrite(plane.bytes, &to, 0)?;
            match plane.plane {
                Plane::P2 => self.described.p2 = to,
                Plane::P3 => self.described.p3 = to,
                Plane::P4 => self.described.p4 = to,
                Plane::P6 => self.described.p6 = to,
                Plane::P8 => self.described.p8 = to,
            }
        }
        self.described.prefixes = prefixes(new.levels);
        Ok(recorder.overwrite(bytemuck::bytes_of(&self.described), &self.address(), 0)?)
    }
}

impl CudaWeights {
    /// Returns the address of the descriptor.
    pub(crate) fn address(&self) -> Address {
        match &self.memory {
            MatrixMemory::Own { head, .. } => address(head),
            MatrixMemory::Slot(slot) => slot.head,
        }
    }

    /// Returns the space of a plane in a slot.
    fn slot_plane(&self, plane: Plane) -> Option<Address> {
        match &self.memory {
            MatrixMemory::Own { .. } => None,
            MatrixMemory::Slot(slot) => slot.planes[plane.index()],
        }
    }

    /// Returns the address of a plane in its slot.
    ///
    /// # Errors
    /// Returns an error if the matrix is not in a slot, or if the slot has no space for the plane.
    pub(crate) fn plane(&self, plane: Plane) -> Result<Address, EngineError> {
        let missing = || EngineError::mismatch("plane of a matrix", "one in a slot", "none");
        self.slot_plane(plane).ok_or_else(missing)
    }
}

/// Packs the prefix of each level, four bits each.
fn prefixes(levels: &HeldLevels) -> u32 {
    let prefixes = Level::ALL.map(|level| levels.prefix(level).unwrap_or(NO_PREFIX));
    (0..).zip(prefixes).fold(0, |all, (index, prefix)| all | prefix << (4 * index))
}

fn float_plane(
    recorder: &mut Recorder,
    matrix: &FloatMatrix,
    described: &mut Matrix,
) -> Result<SlabRange, EngineError> {
    let layout = match matrix.dtype() {
        DType::F32 => KernelLayout::F32,
        DType::F16 => KernelLayout::F16,
        DType::Bf16 => KernelLayout::Bf16,
        DType::U8 => return Err(EngineError::mismatch("float matrix", "floats", "bytes")),
    };
    let range = recorder.upload(matrix.bytes())?;
    (described.form, described.row_scales) = (layout as u32, address(&range));
    Ok(range)
}

/// Fills in the descriptor for a base plane at address `base`, in the layout of a store.
fn describe_base(
    matrix: &NestedMatrix,
    base: Address,
    described: &mut Matrix,
) -> Result<(), EngineError> {
    let (form, layout) = (matrix.codec().form(), matrix.layout());
    let parts = base_ranges(&form, layout, matrix.rows(), matrix.cols());
    let parts = parts.ok_or_else(|| EngineError::mismatch("matrix", "a shape", "none"))?;
    let layout = match (form, layout) {
        (PlaneForm::Nested, Layout::Tile16) => KernelLayout::Tile16,
        (PlaneForm::Nested, Layout::RowMajor) => KernelLayout::RowMajor,
        (PlaneForm::Scaled(_), Layout::Tile16) => KernelLayout::ScaledTile16,
        (PlaneForm::Scaled(_), Layout::RowMajor) => KernelLayout::ScaledRowMajor,
    };
    described.form = layout as u32;
    described.groups = word("groups of a row", matrix.cols().div_ceil(GROUP))?;
    let [scales, tables, steps, step_high, codes] =
        parts.map(|part: Range<usize>| base + part.start as u64);
    (described.row_scales, described.tile_tables) = (scales, tables);
    (described.steps, described.step_high) = (steps, step_high);
    described.p2 = codes;
    Ok(())
}

/// Uploads planes in the layout of a store.
fn nested_planes(
    recorder: &mut Recorder,
    matrix: &NestedMatrix,
    described: &mut Matrix,
) -> Result<Vec<SlabRange>, EngineError> {
    let planes = matrix.regions().planes();
    described.is_merged = u32::from(planes.p34.is_some());
    let base = recorder.upload(planes.p2)?;
    describe_base(matrix, address(&base), described)?;
    let mut ranges = vec![base];
    let p4 = if planes.p34.is_some() { None } else { planes.p4 };
    for (plane, described) in [
        (planes.p34.or(planes.p3), &mut described.p3),
        (p4, &mut described.p4),
        (planes.p6, &mut described.p6),
        (planes.p8, &mut described.p8),
    ] {
        let Some(plane) = plane else { continue };
        let range = recorder.upload(plane)?;
        *described = address(&range);
        ranges.push(range);
    }
    Ok(ranges)
}
