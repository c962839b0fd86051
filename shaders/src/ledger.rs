//! Memory of the device under a budget: what is taken, and what is promised to steps and sessions before
//! they come, so that weights never take it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::WgpuError;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Weights, and slots for experts.
    Weights,
    /// Pages, states, activations, and what operations use among themselves.
    Work,
}

/// Bytes of each purpose.
#[derive(Debug, Default)]
struct Taken {
    weights: u64,
    work: u64,
    /// What work may come to, of all models together.
    promised: u64,
}

impl Taken {
    fn of(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::Weights => &mut self.weights,
            Purpose::Work => &mut self.work,
        }
    }

    /// Bytes that are taken or kept free for work, and all weights.
    fn held(&self) -> u64 {
        self.weights.saturating_add(self.work.max(self.promised))
    }
}

/// The memory of a device.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Most bytes that may be taken; none for what the driver gives.
    budget: Option<u64>,
    taken: Arc<Mutex<Taken>>,
}

/// Bytes that are taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    bytes: u64,
    purpose: Purpose,
    taken: Arc<Mutex<Taken>>,
}

/// Bytes that are kept free for work until this is dropped.
#[derive(Debug)]
pub(crate) struct Promise {
    bytes: u64,
    taken: Arc<Mutex<Taken>>,
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Claim {
    fn drop(&mut self) {
        *lock(&self.taken).of(self.purpose) -= self.bytes;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        lock(&self.taken).promised -= self.bytes;
    }
}

impl Ledger {
    pub fn new(budget: Option<u64>) -> Self {
        Self { budget, taken: Arc::default() }
    }

    /// Most bytes that may be taken.
    pub fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Bytes that are taken.
    pub fn taken_bytes(&self) -> u64 {
        let taken = lock(&self.taken);
        taken.weights.saturating_add(taken.work)
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// [`WgpuError::OverBudget`].
    pub fn claim(
        &self,
        purpose: Purpose,
        what: &'static str,
        bytes: u64,
    ) -> Result<Claim, WgpuError> {
        let mut taken = lock(&self.taken);
        let held = match purpose {
            Purpose::Weights => taken.held(),
            Purpose::Work => taken.weights.saturating_add(taken.work),
        };
        let least = held.saturating_add(bytes);
        if let Some(budget) = self.budget.filter(|budget| least > *budget) {
            return Err(WgpuError::OverBudget { what, bytes, budget, least });
        }
        *taken.of(purpose) += bytes;
        Ok(Claim { bytes, purpose, taken: Arc::clone(&self.taken) })
    }

    /// Keeps `work` bytes free for a model whose weights are going to take `weights`; gives the least
    /// budget that would do where this one does not.
    pub fn promise(&self, work: u64, weights: u64) -> Result<Promise, u64> {
        let mut taken = lock(&self.taken);
        let promised = taken.promised.saturating_add(work);
        let least = Taken { promised, ..*taken }.held().saturating_add(weights);
        if self.budget.is_some_and(|budget| least > budget) {
            return Err(least);
        }
        taken.promised = promised;
        Ok(Promise { bytes: work, taken: Arc::clone(&self.taken) })
    }
}

#[cfg(test)]
mod tests {
    use super::{Ledger, Purpose};

    #[test]
    fn weights_leave_what_was_promised_to_work() {
        let ledger = Ledger::new(Some(100));
        let first = ledger.claim(Purpose::Work, "pages", 10).unwrap();
        assert_eq!(ledger.promise(40, 61).unwrap_err(), 101);
        let promise = ledger.promise(40, 60).unwrap();
        let weights = ledger.claim(Purpose::Weights, "weights", 60).unwrap();
        assert!(ledger.claim(Purpose::Weights, "weights", 1).is_err());
        // Work may come to what was promised, with what it took before.
        let more = ledger.claim(Purpose::Work, "pages", 30).unwrap();
        let error = ledger.claim(Purpose::Work, "pages", 2).unwrap_err().to_string();
        assert!(error.contains("(102 bytes)"), "{error}");
        drop((first, more, promise));
        assert!(ledger.claim(Purpose::Weights, "weights", 40).is_ok());
        drop(weights);
        assert!(ledger.claim(Purpose::Work, "pages", 100).is_ok());
        assert!(Ledger::new(None).claim(Purpose::Work, "pages", u64::MAX / 2).is_ok());
    }
}
