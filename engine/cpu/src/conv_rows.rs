//! Rows that causal convolutions read: those of a step, and those before it from the states.

use nestling_core::batch::Run;

use super::states::CpuStates;

/// Maximum number of positions that a convolution sees.
pub const CONV_TAPS_MAX: usize = 16;

/// Inputs of a causal convolution over the rows of sequences.
#[derive(Clone, Copy)]
pub struct ConvRows<'a> {
    pub channels: usize,
    /// Number of rows before a row that its convolution reads.
    pub window: usize,
    /// Inputs of the step's rows.
    pub rows: &'a [f32], // [T, stride]
    pub stride: usize,
    pub zeros: &'a [f32], // [channels]
}

impl<'a> ConvRows<'a> {
    /// Returns the window at the start of the state before a run, if there is one.
    pub fn before<'s>(self, run: &Run, states: &'s CpuStates) -> Option<&'s [f32]> {
        states.get(run.from?).ok()?.get(..self.window * self.channels)
    }

    /// Returns row `at` of the sequence whose first row in this step is `first`, or zeros before the
    /// sequence's start. `before` holds the rows before the first, oldest row first.
    fn row(self, before: Option<&'a [f32]>, first: usize, at: isize) -> &'a [f32] {
        let offset = at - first as isize;
        let row = match offset {
            0.. => self.rows.get(at as usize * self.stride..),
            _ => before.and_then(|before| {
                before.get((self.window as isize + offset) as usize * self.channels..)
            }),
        };
        // Default: convolutions see zeros before the first token.
        row.and_then(|row| row.get(..self.channels)).unwrap_or(self.zeros)
    }

    /// Returns the rows that the convolution of a row reads, oldest first; `taps` has `window + 1` places.
    pub fn taps(self, run: &Run, states: &'a CpuStates, row: usize, taps: &mut [&'a [f32]]) {
        let before = self.before(run, states);
        let oldest = row as isize - self.window as isize;
        for (at, tap) in (oldest..).zip(taps) {
            *tap = self.row(before, run.first, at);
        }
    }

    /// Writes the window after a run, `[window, channels]`.
    pub fn window_after(self, run: &Run, states: &CpuStates, out: &mut [f32]) {
        let before = self.before(run, states);
        let oldest = run.rows.end as isize - self.window as isize;
        for (at, out) in (oldest..).zip(out.chunks_exact_mut(self.channels.max(1))) {
            out.copy_from_slice(ConvRows::row(self, before, run.first, at));
        }
    }
}
