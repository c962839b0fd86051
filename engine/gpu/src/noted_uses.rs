//! The uses of experts that a device found by itself, noted call by call, and the call that lacked one.

use super::fill;
use nestling_core::EngineError;

/// Uses that one step may note.
pub const NOTED_USES_MAX: usize = 1 << 16;

/// Bytes of the word in which a device leaves the call that lacked an expert.
const MISS_FLAG_BYTES: usize = 4;

/// The uses of experts that a device found in a step: four bytes each in its memory, one call's behind
/// those of the one before.
#[derive(Debug, Default)]
pub struct NotedUses {
    /// Where each call's uses end.
    ends: Vec<usize>,
    /// Those of the last step, read back.
    ids: Vec<u32>,
    /// The call that lacked an expert, read back.
    missed: Option<usize>,
    /// Whether what was recorded may lack an expert, and nobody knows yet.
    is_open: bool,
}

impl NotedUses {
    /// A step begins. True if the device must be told that nothing is missing any more.
    pub fn begin(&mut self) -> bool {
        self.ends.clear();
        self.missed = None;
        std::mem::take(&mut self.is_open)
    }

    /// Uses of all calls.
    pub fn count(&self) -> usize {
        // Default: a step without calls has no uses.
        self.ends.last().copied().unwrap_or(0)
    }

    /// Calls of this step: the number of the last one, from 1 on.
    pub fn calls(&self) -> usize {
        self.ends.len()
    }

    /// A call of so many uses: where they begin.
    ///
    /// # Errors
    /// [`EngineError::Limit`] for more than [`NOTED_USES_MAX`] in a step.
    pub fn call(&mut self, uses: usize) -> Result<usize, EngineError> {
        let first = self.count();
        if first + uses > NOTED_USES_MAX {
            let (limit, found) = (NOTED_USES_MAX as u64, (first + uses) as u64);
            return Err(EngineError::Limit { what: "uses of experts in a step", limit, found });
        }
        self.ends.push(first + uses);
        Ok(first)
    }

    /// What is recorded from now on may lack an expert.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// Whether a call may have lacked an expert.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// What the device left: where a call may have lacked an expert its number, from 1 on, or 0; then
    /// all uses.
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

    /// The uses that were read back.
    pub fn ids(&self) -> &Vec<u32> {
        &self.ids
    }

    /// The call that lacked an expert; it and those behind it did not take place.
    pub fn take_missed(&mut self) -> Option<usize> {
        let missed = self.missed.take()?;
        // `missed` is a call of this step: `read_back` takes no other.
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
        // The missed call's uses are known, and it is called again.
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
