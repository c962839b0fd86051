//! Which slots of experts the device still reads or writes, so that the host writes straight into none of them.

use std::collections::HashSet;

/// Slots that commands use which are recorded, and the last submission that used any.
#[derive(Debug, Default)]
pub(crate) struct SlotUses {
    /// Those that the host knows.
    slots: HashSet<usize>,
    /// Whether there are others: a shader finds them.
    has_unknown: bool,
    /// The last submission.
    submitted: u64,
    /// The last submission that may use a slot.
    used_until: u64,
}

impl SlotUses {
    /// What was just recorded uses a slot; none for whichever a shader finds. Its commands may be submitted already: a
    /// dispatch that takes long is.
    pub fn add(&mut self, slot: Option<usize>) {
        match slot {
            Some(slot) => self.slots.extend([slot]),
            None => self.has_unknown = true,
        }
    }

    /// Commands were submitted under this number.
    pub fn submitted(&mut self, number: u64) {
        self.submitted = number;
    }

    /// Nothing is recorded any more: it was submitted, or given up.
    pub fn settle(&mut self) {
        if self.has_unknown || !self.slots.is_empty() {
            self.used_until = self.submitted;
        }
        self.slots.clear();
        self.has_unknown = false;
    }

    /// Whether the device may use a slot, or any for none, as long as submissions up to some number are not done.
    pub fn may_use(&self, slot: Option<usize>, is_done: impl FnOnce(u64) -> bool) -> bool {
        let is_recorded = |slot| self.has_unknown || self.slots.contains(&slot);
        slot.is_none_or(is_recorded) || !is_done(self.used_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a slot is used while submissions up to `done` are done.
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
        // What is submitted is not told apart.
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
        // A long dispatch is submitted by itself; then its slot is noted, and nothing else is recorded.
        uses.submitted(5);
        uses.settle();
        uses.add(Some(3));
        uses.settle();
        assert!(is_used(&uses, 3, 4), "the device still reads it");
        assert!(!is_used(&uses, 3, 5));
    }
}
