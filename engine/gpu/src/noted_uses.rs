//! Expert uses that a device selected without the host, recorded call by call, and the call that missed an
//! expert.

use super::fill;
use nestling_core::EngineError;

/// Maximum number of uses in one step.
pub const NOTED_USES_MAX: usize = 1 << 16;

/// Bytes of the miss flag, which holds the number of the call that missed an expert.
const MISS_FLAG_BYTES: usize = 4;

/// Expert uses that a device selected in a step. Device memory holds four bytes for each use, in the order of
/// calls.
#[derive(Debug, Default)]
pub struct NotedUses {
    /// End index of the uses of each call.
    ends: Vec<usize>,
    /// Uses of the last step, read back from the device.
    ids: Vec<u32>,
    /// Index of the call that missed an expert, read back from the device.
    missed: Option<usize>,
    /// True if recorded commands may have missed an expert and the flag is not read back yet.
    is_open: bool,
}

impl NotedUses {
    /// Starts a step. Returns true if the device's miss flag must be cleared.
    pub fn begin(&mut self) -> bool {
        self.ends.clear();
        self.missed = None;
        std::mem::take(&mut self.is_open)
    }

    /// Returns the number of uses of all calls.
    pub fn count(&self) -> usize {
        // Default: a step without calls has no uses.
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the number of calls of this step, which is also the number of the last call, counted from 1.
    pub fn calls(&self) -> usize {
        self.ends.len()
    }

    /// Reserves space for a call's uses and returns the index of the first.
    ///
    /// # Errors
    /// Fails with [`EngineError::Limit`] if a step has more than [`NOTED_USES_MAX`] uses.
    pub fn call(&mut self, uses: usize) -> Result<usize, EngineError> {
        let first = self.count();
        if first + uses > NOTED_USES_MAX {
            let (limit, found) = (NOTED_USES_MAX as u64, (first + uses) as u64);
            return Err(EngineError::Limit { what: "uses of experts in a step", limit, found });
        }
        self.ends.push(first + uses);
        Ok(first)
    }

    /// Records that commands recorded later may miss an expert.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// Returns whether a call may have missed an expert.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Parses the data read back from the device. If a call may have missed an expert, the miss flag comes
    /// first: the call's number, counted from 1, or 0. All uses follow.
    pub fn read_back(&mut self, bytes: &[u8]) {
        let flag_bytes = if self.is_open { MISS_FLAG_BYTES.min(bytes.len()) } else { 0 };
        let (flag, uses) = bytes.split_at(flag_bytes);
        fill(&mut self.ids, uses, u32::from_le_bytes);
        if self.is_open {
            let flag = flag.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
            self.missed = flag.checked_sub(1).filter(|call| *call < self.ends.len());
            self.is_open = flag != 0;
        }
    }

    /// Returns the uses that were read back.
    pub fn ids(&self) -> &Vec<u32> {
        &self.ids
    }

    /// Returns the call that missed an expert. This call and all later ones did not run.
    pub fn take_missed(&mut self) -> Option<usize> {
        let missed = self.missed.take()?;
        // `missed` is a call of this step, as `read_back` ensures.
        self.ids.truncate(self.ends[missed]);
        self.ends.truncate(missed);
        self.is_open = false;
        Some(missed)
    }
}

#[cfg(test)]
mod tests {
    use super::{NOTED_USES_MAX, NotedUses};

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_step_goes_on_from_the_call_that_lacked_an_expert() {
        let mut noted = NotedUses::default();
        assert!(!noted.begin());
        assert_eq!([2, 3, 1].map(|uses| noted.call(uses).unwrap()), [0, 2, 5]);
        noted.open();
        noted.read_back(&bytes(&[2, 10, 11, 12, 13, 14, 15]));
        assert!(noted.is_open());
        assert_eq!(noted.take_missed(), Some(1));
        // The missed call's uses are known, and the call is repeated.
        assert_eq!(noted.ids(), &[10, 11, 12, 13, 14]);
        assert_eq!((noted.calls(), noted.call(3).unwrap()), (1, 2));
        noted.open();
        noted.read_back(&bytes(&[0, 10, 11, 12, 13, 14]));
        assert_eq!((noted.take_missed(), noted.is_open()), (None, false));
        assert_eq!(noted.ids(), &[10, 11, 12, 13, 14]);
    }

    #[test]
    fn a_step_that_ends_without_an_answer_must_be_resumed() {
        let mut noted = NotedUses::default();
        noted.call(1).unwrap();
        noted.open();
        assert!(noted.begin());
        assert_eq!((noted.count(), noted.begin()), (0, false));
    }

    #[test]
    fn calls_that_were_never_made_are_not_missed() {
        let mut noted = NotedUses::default();
        noted.call(1).unwrap();
        noted.open();
        noted.read_back(&bytes(&[9, 4]));
        assert_eq!(noted.take_missed(), None);
    }

    #[test]
    fn more_uses_than_a_step_may_note_are_an_error() {
        let mut noted = NotedUses::default();
        noted.call(NOTED_USES_MAX).unwrap();
        assert!(noted.call(1).is_err());
        assert_eq!(noted.count(), NOTED_USES_MAX);
    }
}
