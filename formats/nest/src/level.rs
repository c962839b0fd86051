//! Levels and planes of the nested code.

use serde::{Deserialize, Serialize};

/// Number of leading bits used of each 8-bit code. Each level is a complete model.
///
/// ```
/// use nestling_formats::{Level, Plane};
///
/// assert_eq!(Level::from_bits(4), Some(Level::L4));
/// assert_eq!(Level::from_bits(5), None);
/// assert!(Level::L2 < Level::L8);
/// assert_eq!(Level::L4.plane(), Plane::P4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Level {
    /// Two bits: plane P2 alone.
    L2 = 2,
    /// Three bits: planes P2 and P3.
    L3 = 3,
    /// Four bits: planes P2 to P4.
    L4 = 4,
    /// Six bits: planes P2 to P6.
    L6 = 6,
    /// Eight bits: all planes.
    L8 = 8,
}

impl Level {
    /// All levels, coarsest first.
    pub const ALL: [Self; 5] = [Self::L2, Self::L3, Self::L4, Self::L6, Self::L8];

    /// Returns the level with `bits` bits, or `None` if there is none.
    pub fn from_bits(bits: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.bits() == bits)
    }

    /// Returns the bits of a weight's code that this level uses.
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// Returns the position in [`Level::ALL`]; also the index of the last plane that the level needs.
    pub const fn index(self) -> usize {
        match self {
            Self::L2 => 0,
            Self::L3 => 1,
            Self::L4 => 2,
            Self::L6 => 3,
            Self::L8 => 4,
        }
    }

    /// Returns the plane that this level adds to the one below it.
    pub const fn plane(self) -> Plane {
        match self {
            Self::L2 => Plane::P2,
            Self::L3 => Plane::P3,
            Self::L4 => Plane::P4,
            Self::L6 => Plane::P6,
            Self::L8 => Plane::P8,
        }
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bits().fmt(f)
    }
}

/// A slice of all codes of a matrix: the bits that a level adds to the one below.
///
/// ```
/// use nestling_formats::{Level, Plane};
///
/// // The planes up to P4 together hold four bits of each code.
/// let planes = Plane::ALL.into_iter().filter(|plane| plane.level() <= Level::L4);
/// assert_eq!(planes.map(Plane::bits).sum::<u8>(), 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Plane {
    /// Bits 7 and 6 of the code, together with the scales and the table index of each tile.
    P2 = 0,
    /// Bit 5.
    P3 = 1,
    /// Bit 4.
    P4 = 2,
    /// Bits 3 and 2.
    P6 = 3,
    /// Bits 1 and 0.
    P8 = 4,
}

impl Plane {
    /// All planes, most significant first.
    pub const ALL: [Self; 5] = [Self::P2, Self::P3, Self::P4, Self::P6, Self::P8];

    /// Returns the position in [`Plane::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the bits that the plane holds per code.
    pub const fn bits(self) -> u8 {
        match self {
            Self::P3 | Self::P4 => 1,
            Self::P2 | Self::P6 | Self::P8 => 2,
        }
    }

    /// Returns the right shift that moves the plane's bits to the bottom of a code.
    pub const fn shift(self) -> u8 {
        8 - self.level().bits()
    }

    /// Returns the level reached with this plane and all lower ones.
    pub const fn level(self) -> Level {
        Level::ALL[self as usize]
    }
}
