//! What a layer wants of an expert, and how far that is:
//!
//! ```text
//! Unplaced ──(room for its planes, pinned)──► Placed ──(all arrived, or late ones left out)──► Given
//!    │                                                                                           │
//!    └──(its planes lie in host memory)──► OnHost ──────────(computed)──► released ◄──(computed)─┘
//! ```
//!
//! A request that ends early releases whatever is Placed or Given.

use std::ops::Range;

use nestling_formats::Level;

use crate::residency::Worth;
use nestling_core::batch::LevelPolicy;

/// What is done about planes that have not arrived when there is nothing else to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatePlanes {
    /// They are waited for.
    WaitFor,
    /// They are left out, P2 never.
    LeaveOut,
}

impl LatePlanes {
    /// What planes are worth keeping for.
    pub fn worth(self) -> Worth {
        match self {
            Self::WaitFor => Worth::Bytes,
            Self::LeaveOut => Worth::Error,
        }
    }

    /// How many of the planes that are asked for are waited for.
    pub fn awaited(self, planes: usize) -> usize {
        match self {
            Self::WaitFor => planes,
            Self::LeaveOut => planes.min(1),
        }
    }

    /// Planes are left out where every row of a step allows it.
    pub fn of(policies: &[LevelPolicy]) -> Self {
        if policies.iter().all(|levels| levels.leaves_out_late()) {
            Self::LeaveOut
        } else {
            Self::WaitFor
        }
    }
}

/// An expert that a layer wants.
pub(super) struct Wanted {
    pub expert: u32,
    /// Planes that its rows need, from the first.
    pub planes: usize,
    /// Its rows in the request's uses.
    pub uses: Range<usize>,
    /// The highest level that its planes make, where some were left out.
    pub cut: Option<Level>,
    pub progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There was no room for its planes yet.
    Unplaced,
    /// Pinned; its planes are there or on their way.
    Placed,
    /// Pinned, and being computed.
    Given,
    /// Left to the CPU, which computes it where it lies in host memory.
    OnHost,
}

impl Wanted {
    /// The processor computes it where it lies.
    pub fn give_to_host(&mut self) {
        self.progress = Progress::OnHost;
    }

    /// Whether the processor computes it.
    pub fn is_on_host(&self) -> bool {
        self.progress == Progress::OnHost
    }
}
