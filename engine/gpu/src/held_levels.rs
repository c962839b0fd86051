//! What the levels of a model mean for a matrix in memory of a device, and planes that come one by one.

use nestling_formats::{Level, Plane};

use nestling_core::EngineError;
use nestling_core::weights::{MatrixWeights, NestedMatrix};

use crate::expect;

/// What every level of a model means for one matrix.
#[derive(Clone, Copy, Debug)]
pub struct HeldLevels([HeldLevel; 5]);

#[derive(Clone, Copy, Debug)]
struct HeldLevel {
    /// Place of the prefix among the levels, or what is asked for and held, in bits.
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
    /// With all planes that there are of a matrix.
    pub fn of(weights: &MatrixWeights) -> Self {
        Self(Level::ALL.map(|level| HeldLevel::of(weights, level)))
    }

    /// The prefix of its codes that a level means, as its index among the levels.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`] if its planes are not held.
    pub fn prefix(&self, level: Level) -> Result<u32, EngineError> {
        let prefix = self.0[level.index()].prefix;
        prefix.map_err(|(asked, held)| EngineError::LevelMissing { asked, held })
    }

    /// Bytes that a product reads at a level.
    pub fn read_bytes(&self, level: Level) -> u64 {
        self.0[level.index()].read_bytes
    }

    /// Bytes of the planes that a level uses, as a store holds them.
    pub fn prefix_bytes(&self, level: Level) -> u64 {
        self.0[level.index()].prefix_bytes
    }
}

/// The planes of a nested matrix in a slot, which come one by one.
#[derive(Clone, Copy, Debug)]
pub struct SlotPlanes {
    /// Bytes of each plane.
    bytes: [usize; Plane::ALL.len()],
    /// The highest level that the planes make which are there.
    held: Level,
    /// The prefix that each level of the model means once its planes are there.
    prefixes: [Level; 5],
}

impl SlotPlanes {
    /// The first plane of a matrix alone.
    ///
    /// # Errors
    /// A shape whose planes have sizes that overflow.
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

    /// The planes above the first that a matrix has, in their order.
    pub fn above_base(matrix: &NestedMatrix) -> impl Iterator<Item = (Plane, &[u8])> {
        let held = matrix.regions().planes();
        let above = Plane::ALL.into_iter().skip(1);
        let above = above.zip([held.p3, held.p4, held.p6, held.p8]);
        above.map_while(|(plane, bytes)| Some((plane, bytes?)))
    }

    /// Whether a plane is there.
    pub fn holds(&self, plane: Plane) -> bool {
        plane.level() <= self.held
    }

    /// Bytes of a plane.
    pub fn bytes_of(&self, plane: Plane) -> usize {
        self.bytes[plane.index()]
    }

    /// Checks a plane that is to come next.
    ///
    /// # Errors
    /// A plane of another size; one that is there, or lacks the one before.
    pub fn check_next(&self, plane: Plane, bytes: &[u8]) -> Result<(), EngineError> {
        if self.held.index() + 1 != plane.index() {
            let expected = format!("the one after level {}", self.held.bits());
            return Err(EngineError::mismatch("plane of a matrix", expected, format!("{plane:?}")));
        }
        expect("bytes of a plane", self.bytes_of(plane), bytes.len())
    }

    /// A plane is there now.
    pub fn add(&mut self, plane: Plane) {
        self.held = plane.level();
    }

    /// What levels mean with the planes that are there.
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
