//! Tracks slots of experts in use by the device, so that the host does not write directly into them.

use std::collections::HashSet;

/// Slots used by recorded commands, and the last submission that used any.
#[derive(Debug, Default)]
pub(crate) struct SlotUses {
    /// Slots known to the host.
    slots: HashSet<usize>,
    /// True if a shader selects other slots.
    has_unknown: bool,
    submitted: u64,
    /// Number of the last submission that may use a slot.
    used_until: u64,
}

impl SlotUses {
    /// Notes that the last recorded command uses a slot. `None` means any slot that a shader selects. The
    /// command may already be submitted, as happens to a long dispatch.
    pub fn add(&mut self, slot: Option<usize>) {
        match slot {
            Some(slot) => self.slots.extend([slot]),
            None => self.has_unknown = true,
        }
    }

    /// Notes the number of a submission.
    pub fn submitted(&mut self, number: u64) {
        self.submitted = number;
    }

    /// Clears recorded uses after their commands were submitted or discarded.
    pub fn settle(&mut self) {
        if self.has_unknown || !self.slots.is_empty() {
            self.used_until = self.submitted;
        }
        self.slots.clear();
        self.has_unknown = false;
    }

    /// Returns whether the device may use a slot, or any slot for `None`. `is_done` returns whether
    /// submissions up to a number are complete.
    pub fn may_use(&self, slot: Option<usize>, is_done: impl FnOnce(u64) -> bool) -> bool {
        let is_recorded = |slot| self.has_unknown || self.slots.contains(&slot);
        slot.is_none_or(is_recorded) || !is_done(self.used_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a slot is in use once submissions up to `done` are complete.
    fn is_used(uses: &SlotUses, slot: usize, done: u64) -> bool {
        uses.may_use(Some(slot), |number| number <= done)
    }

    #[test]
    fn a_slot_is_used_from_its_commands_until_they_are_done() {
        let mut uses = SlotUses::default();
        assert!(!is_used(&uses, 3, 0));
        uses.add(Some(3));
        assert!(is_used(&uses, 3, 0) && !is_used(&uses, 4, 0));
        uses.submitted(1);
        uses.settle();
        // Slots of submitted commands are not distinguished.
        assert!(is_used(&uses, 3, 0) && is_used(&uses, 4, 0));
        assert!(!is_used(&uses, 3, 1));
        assert!(uses.may_use(None, |_| true));
    }

    #[test]
    fn slots_that_a_shader_finds_are_all() {
        let mut uses = SlotUses::default();
        uses.add(None);
        assert!(is_used(&uses, 3, 0) && is_used(&uses, 4, 0));
    }

    #[test]
    fn commands_that_were_submitted_before_they_were_noted_count() {
        let mut uses = SlotUses::default();
        // A long dispatch is submitted immediately. Its slot is noted afterwards, and nothing else is
        // recorded.
        uses.submitted(5);
        uses.settle();
        uses.add(Some(3));
        uses.settle();
        assert!(is_used(&uses, 3, 4), "the device still reads it");
        assert!(!is_used(&uses, 3, 5));
    }
}
