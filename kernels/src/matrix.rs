//! Weight matrices in memory of the device.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::{HoldsLevels, Shape, Shaped};
use nestling_core::weights::{ActivationMode, FloatMatrix, MatrixWeights, NestedMatrix};
use nestling_formats::nested::{GROUP, Layout, base_parts};
use nestling_formats::{DType, Invariant, Level, Plane};
use nestling_gpu::{DeviceMatrix, HeldLevels, ProductForm, SlotPlanes};

use crate::driver::Address;
use crate::params::Matrix;
use crate::recorder::Recorder;
use crate::slabs::Place;
use crate::slots::Room;
use nestling_gpu::word;

/// Bytes before the codec in a matrix's head: what kernels read first.
pub(crate) const CODEC_OFFSET: u64 = 256;

/// A prefix that is not held, as kernels read it.
const NO_PREFIX: u32 = 15;

/// Weights with the way to multiply them.
pub struct CudaMatrix {
    pub(crate) form: ProductForm,
    /// What kernels read, as it is on the device too.
    pub(crate) described: Matrix,
    storage: Storage,
    levels: HeldLevels,
}

/// Where it lies.
enum Storage {
    /// In places of its own.
    Own {
        /// The description, then the codec.
        head: Place,
        /// What it names.
        _planes: Vec<Place>,
    },
    /// In a slot, where planes come one by one.
    Slot(InSlot),
}

/// A nested matrix in a slot.
struct InSlot {
    room: Room,
    planes: SlotPlanes,
}

/// How a matrix lies in memory, as kernels number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Form {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    Tile16 = 3,
    RowMajor = 4,
}

impl CudaMatrix {
    /// Uploads a matrix, for whatever is recorded from now on.
    ///
    /// # Errors
    /// A device whose memory is full; weights in a form that no kernel reads.
    pub(crate) fn new(
        recorder: &mut Recorder,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        let levels = HeldLevels::of(weights);
        let mut described = Matrix {
            rows: word("rows of a matrix", weights.rows())?,
            cols: word("elements of a row", weights.cols())?,
            prefixes: prefixes(&levels),
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
        let head = recorder.place(CODEC_OFFSET as usize + codec.len())?;
        described.codec = head.address() + CODEC_OFFSET;
        recorder.fill(&head, 0, bytemuck::bytes_of(&described))?;
        recorder.fill(&head, CODEC_OFFSET, &codec)?;
        Ok(Self {
            form: ProductForm::of(weights, activations),
            described,
            storage: Storage::Own { head, _planes: planes },
            levels,
        })
    }

    /// Puts a matrix into a slot, with the planes that it has, behind all that was recorded.
    ///
    /// # Errors
    /// A matrix that does not fit its place or is no nested one; a device that is lost.
    pub(crate) fn in_slot(
        recorder: &mut Recorder,
        room: Room,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
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
        recorder.overwrite(&codec, described.codec)?;
        recorder.overwrite(nested.regions().planes().p2, base)?;
        let mut matrix = Self {
            form: ProductForm::of(weights, activations),
            described,
            storage: Storage::Slot(InSlot { room, planes: SlotPlanes::base(nested)? }),
            levels: HeldLevels::of(weights),
        };
        for (plane, bytes) in SlotPlanes::above_base(nested) {
            matrix.put_plane(recorder, plane, bytes)?;
        }
        matrix.describe(recorder)?;
        Ok(matrix)
    }

    /// Puts one plane more into the slot, behind all that was recorded.
    ///
    /// # Errors
    /// A matrix that is in no slot or lacks the plane before; a plane of another size or without a
    /// place; a device that is lost.
    pub(crate) fn add_plane(
        &mut self,
        recorder: &mut Recorder,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        self.put_plane(recorder, plane, bytes)?;
        self.describe(recorder)
    }

    fn put_plane(
        &mut self,
        recorder: &mut Recorder,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let Storage::Slot(slot) = &mut self.storage else {
            return Err(EngineError::mismatch("plane of a matrix", "one in a slot", "another"));
        };
        let place = slot.planes.next(plane, slot.room.planes[plane.index()], bytes)?;
        recorder.overwrite(bytes, place)?;
        slot.planes.add(plane);
        match plane {
            Plane::P2 => self.described.p2 = place,
            Plane::P3 => self.described.p3 = place,
            Plane::P4 => self.described.p4 = place,
            Plane::P6 => self.described.p6 = place,
            Plane::P8 => self.described.p8 = place,
        }
        Ok(())
    }

    /// Says what levels of the model mean with the planes that are there.
    fn describe(&mut self, recorder: &mut Recorder) -> Result<(), EngineError> {
        let Storage::Slot(slot) = &self.storage else { return Ok(()) };
        self.levels = slot.planes.levels();
        self.described.prefixes = prefixes(&self.levels);
        Ok(recorder.overwrite(bytemuck::bytes_of(&self.described), slot.room.head)?)
    }

    /// Where its description is.
    pub(crate) fn address(&self) -> Address {
        match &self.storage {
            Storage::Own { head, .. } => head.address(),
            Storage::Slot(slot) => slot.room.head,
        }
    }

    /// Where a plane lies in its slot, and its bytes.
    ///
    /// # Errors
    /// A matrix that is in no slot or lacks the plane.
    pub(crate) fn plane(&self, plane: Plane) -> Result<(Address, usize), EngineError> {
        let missing = || EngineError::mismatch("plane of a matrix", "one in a slot", "none");
        let Storage::Slot(slot) = &self.storage else { return Err(missing()) };
        let place = slot.room.planes[plane.index()].filter(|_| slot.planes.holds(plane));
        Ok((place.ok_or_else(missing)?, slot.planes.bytes_of(plane)))
    }
}

impl Shaped for CudaMatrix {
    fn shape(&self) -> Shape {
        Shape { rows: self.form.rows, cols: self.form.cols }
    }
}

impl HoldsLevels for CudaMatrix {
    fn check_level(&self, level: Level) -> Result<(), EngineError> {
        self.check(level)
    }
}

impl DeviceMatrix for CudaMatrix {
    fn form(&self) -> &ProductForm {
        &self.form
    }

    fn levels(&self) -> &HeldLevels {
        &self.levels
    }
}

/// The prefix of each level, four bits for each.
fn prefixes(levels: &HeldLevels) -> u32 {
    let prefixes = Level::ALL.map(|level| levels.prefix(level).unwrap_or(NO_PREFIX));
    (0..).zip(prefixes).fold(0, |all, (place, prefix)| all | prefix << (4 * place))
}

fn float_plane(
    recorder: &mut Recorder,
    matrix: &FloatMatrix,
    described: &mut Matrix,
) -> Result<Place, EngineError> {
    let form = match matrix.dtype() {
        DType::F32 => Form::F32,
        DType::F16 => Form::F16,
        DType::Bf16 => Form::Bf16,
        DType::U8 => return Err(EngineError::mismatch("float matrix", "floats", "bytes")),
    };
    let place = recorder.upload(matrix.bytes())?;
    (described.form, described.row_scales) = (form as u32, place.address());
    Ok(place)
}

/// Says how a matrix lies whose plane P2 is at `base`, as a store has it.
fn describe_base(
    matrix: &NestedMatrix,
    base: Address,
    described: &mut Matrix,
) -> Result<(), EngineError> {
    let layout = matrix.layout();
    let parts = base_parts(layout, matrix.rows(), matrix.cols());
    let parts = parts.ok_or_else(|| EngineError::mismatch("matrix", "a shape", "none"))?;
    let form = if layout == Layout::Tile16 { Form::Tile16 } else { Form::RowMajor };
    described.form = form as u32;
    described.groups = word("groups of a row", matrix.cols().div_ceil(GROUP))?;
    let at = |part: &Range<usize>| base + part.start as u64;
    described.row_scales = at(&parts.row_scales);
    described.tile_tables = at(&parts.tile_tables);
    described.steps = at(&parts.steps);
    described.step_high = at(&parts.step_high);
    described.p2 = at(&parts.codes);
    Ok(())
}

/// Planes lie as a store has them.
fn nested_planes(
    recorder: &mut Recorder,
    matrix: &NestedMatrix,
    described: &mut Matrix,
) -> Result<Vec<Place>, EngineError> {
    let planes = matrix.regions().planes();
    described.is_merged = u32::from(planes.p34.is_some());
    let base = recorder.upload(planes.p2)?;
    describe_base(matrix, base.address(), described)?;
    let mut places = vec![base];
    let p4 = if planes.p34.is_some() { None } else { planes.p4 };
    for (plane, address) in [
        (planes.p34.or(planes.p3), &mut described.p3),
        (p4, &mut described.p4),
        (planes.p6, &mut described.p6),
        (planes.p8, &mut described.p8),
    ] {
        let Some(plane) = plane else { continue };
        let place = recorder.upload(plane)?;
        *address = place.address();
        places.push(place);
    }
    Ok(places)
}
