//! The meaning of a model's levels for one matrix, and matrices whose planes arrive one at a time.

use nestling_formats::{Level, Plane};

use nestling_core::EngineError;
use nestling_core::weights::{MatrixWeights, NestedMatrix};

use crate::expect;

/// The effective prefix and size of a matrix at each level of a model.
#[derive(Clone, Copy, Debug)]
pub struct HeldLevels([HeldLevel; 5]);

#[derive(Clone, Copy, Debug)]
struct HeldLevel {
    /// Index of the prefix among the levels. If it is missing: the requested and the resident level, in bits.
    prefix: Result<u32, (u8, u8)>,
    read_bytes: u64,
    prefix_bytes: u64,
}

impl HeldLevel {
    fn of(weights: &MatrixWeights, level: Level) -> Self {
        let prefix = match weights {
            MatrixWeights::Nested(matrix) => match matrix.prefix(level) {
                Ok(prefix) => Ok(prefix.index() as u32),
                Err(EngineError::LevelMissing { asked, held }) => Err((asked, held)),
                Err(_) => Err((level.bits(), 0)),
            },
            _ => Ok(level.index() as u32),
        };
        let (read_bytes, prefix_bytes) = (weights.read_bytes(level), weights.prefix_bytes(level));
        Self { prefix, read_bytes, prefix_bytes }
    }
}

impl HeldLevels {
    /// Returns the levels of a matrix with all planes that it has.
    pub fn of(weights: &MatrixWeights) -> Self {
        Self(Level::ALL.map(|level| HeldLevel::of(weights, level)))
    }

    /// Returns the prefix of the codes at a level, as an index among the levels.
    ///
    /// # Errors
    /// Fails with [`EngineError::LevelMissing`] if the level's planes are not resident.
    pub fn prefix(&self, level: Level) -> Result<u32, EngineError> {
        let prefix = self.0[level.index()].prefix;
        prefix.map_err(|(asked, held)| EngineError::LevelMissing { asked, held })
    }

    /// Returns the number of bytes that a product reads at a level.
    pub fn read_bytes(&self, level: Level) -> u64 {
        self.0[level.index()].read_bytes
    }

    /// Returns the size in a store of the planes that a level uses, in bytes.
    pub fn prefix_bytes(&self, level: Level) -> u64 {
        self.0[level.index()].prefix_bytes
    }
}

/// The resident planes of a nested matrix in a slot. Planes arrive in order, one at a time.
#[derive(Clone, Copy, Debug)]
pub struct SlotPlanes {
    /// Size of each plane in bytes.
    bytes: [usize; Plane::ALL.len()],
    /// Highest level whose planes are all resident.
    held: Level,
    /// Prefix for each level of the model when all planes are resident.
    prefixes: [Level; 5],
}

impl SlotPlanes {
    /// Returns the state of a matrix with only its base plane resident.
    ///
    /// # Errors
    /// Returns an error if the size of a plane overflows.
    pub fn base(matrix: &NestedMatrix) -> Result<Self, EngineError> {
        let overflow = || EngineError::mismatch("planes of a matrix", "sizes that fit", "more");
        let mut bytes = [0; Plane::ALL.len()];
        for plane in Plane::ALL {
            let form = matrix.codec().form();
            let size = form.plane_bytes(matrix.layout(), matrix.rows(), matrix.cols(), plane);
            bytes[plane.index()] = size.ok_or_else(overflow)?;
        }
        Ok(Self { bytes, held: Level::L2, prefixes: matrix.levels() })
    }

    /// Iterates over the resident planes above the base plane, in order.
    pub fn above_base(matrix: &NestedMatrix) -> impl Iterator<Item = (Plane, &[u8])> {
        let held = matrix.regions().planes();
        let above = Plane::ALL.into_iter().skip(1);
        let above = above.zip([held.p3, held.p4, held.p6, held.p8]);
        above.map_while(|(plane, bytes)| Some((plane, bytes?)))
    }

    /// Returns whether a plane is resident.
    pub fn holds(&self, plane: Plane) -> bool {
        plane.level() <= self.held
    }

    /// Returns the size of a plane in bytes.
    pub fn bytes_of(&self, plane: Plane) -> usize {
        self.bytes[plane.index()]
    }

    /// Checks that a plane is the next one and has the right size.
    ///
    /// # Errors
    /// Returns an error if the size differs, the plane is already resident, or the plane before it is
    /// missing.
    pub fn check_next(&self, plane: Plane, bytes: &[u8]) -> Result<(), EngineError> {
        if self.held.index() + 1 != plane.index() {
            let expected = format!("the one after level {}", self.held.bits());
            return Err(EngineError::mismatch("plane of a matrix", expected, format!("{plane:?}")));
        }
        expect("bytes of a plane", self.bytes_of(plane), bytes.len())
    }

    /// Marks a plane as resident.
    pub fn add(&mut self, plane: Plane) {
        self.held = plane.level();
    }

    /// Returns the levels that the resident planes allow.
    pub fn levels(&self) -> HeldLevels {
        let bytes = |plane| self.bytes_of(plane) as u64;
        HeldLevels(self.prefixes.map(|prefix| {
            let prefix = prefix.min(self.held);
            let planes = Plane::ALL.into_iter().filter(|plane| plane.level() <= prefix);
            let bytes = planes.map(bytes).sum();
            HeldLevel { prefix: Ok(prefix.index() as u32), read_bytes: bytes, prefix_bytes: bytes }
        }))
    }
}
