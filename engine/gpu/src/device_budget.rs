//! The budget of a device's memory. Space for steps and sessions is set aside in advance, so that weights
//! cannot occupy it.

use std::sync::{Arc, Mutex, MutexGuard};

use nestling_core::sync::whole;

/// Purpose of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Weights, and slots for experts.
    Weights,
    /// KV pages, recurrent states, activations and scratch memory.
    Work,
}

/// Bytes reserved for each purpose.
#[derive(Debug, Default)]
struct ReservedBytes {
    weights: u64,
    work: u64,
    /// Bytes set aside for work by all models together. Existing work reservations count towards it.
    kept: u64,
}

impl ReservedBytes {
    fn of(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::Weights => &mut self.weights,
            Purpose::Work => &mut self.work,
        }
    }

    /// Returns the bytes unavailable to new weights: all weights, and the larger of used and set-aside work.
    fn unavailable(&self) -> u64 {
        self.weights.saturating_add(self.work.max(self.kept))
    }
}

/// The memory budget of a device.
#[derive(Debug)]
pub struct DeviceBudget {
    /// Maximum number of bytes. `None` means that only the driver limits allocations.
    budget: Option<u64>,
    taken: Arc<Mutex<ReservedBytes>>,
}

/// Reserved bytes, released on drop.
#[derive(Debug)]
pub struct Reservation {
    bytes: u64,
    purpose: Purpose,
    taken: Arc<Mutex<ReservedBytes>>,
}

/// Bytes set aside for work, released on drop.
#[derive(Debug)]
pub struct WorkReservation {
    bytes: u64,
    taken: Arc<Mutex<ReservedBytes>>,
}

fn lock(taken: &Mutex<ReservedBytes>) -> MutexGuard<'_, ReservedBytes> {
    whole(taken.lock())
}

impl Drop for Reservation {
    fn drop(&mut self) {
        *lock(&self.taken).of(self.purpose) -= self.bytes;
    }
}

impl Drop for WorkReservation {
    fn drop(&mut self) {
        lock(&self.taken).kept -= self.bytes;
    }
}

impl DeviceBudget {
    /// Creates a budget without reservations. `None` means that only the driver limits allocations.
    pub fn new(budget: Option<u64>) -> Self {
        Self { budget, taken: Arc::default() }
    }

    /// Returns the maximum number of bytes that can be reserved.
    pub fn total_bytes(&self) -> Option<u64> {
        self.budget
    }

    /// Returns the number of reserved bytes.
    pub fn taken_bytes(&self) -> u64 {
        let taken = lock(&self.taken);
        taken.weights.saturating_add(taken.work)
    }

    /// Reserves bytes.
    ///
    /// # Errors
    /// Returns the smallest sufficient budget if this one is too small.
    pub fn reserve(&self, purpose: Purpose, bytes: u64) -> Result<Reservation, u64> {
        let mut taken = lock(&self.taken);
        let held = match purpose {
            Purpose::Weights => taken.unavailable(),
            Purpose::Work => taken.weights.saturating_add(taken.work),
        };
        let least = held.saturating_add(bytes);
        if self.budget.is_some_and(|budget| least > budget) {
            return Err(least);
        }
        *taken.of(purpose) += bytes;
        Ok(Reservation { bytes, purpose, taken: Arc::clone(&self.taken) })
    }

    /// Sets `work` bytes aside for a model whose weights will take `weights` bytes.
    ///
    /// # Errors
    /// Returns the smallest sufficient budget if this one is too small.
    pub fn reserve_work(&self, work: u64, weights: u64) -> Result<WorkReservation, u64> {
        let mut taken = lock(&self.taken);
        let kept = taken.kept.saturating_add(work);
        let least = ReservedBytes { kept, ..*taken }.unavailable().saturating_add(weights);
        if self.budget.is_some_and(|budget| least > budget) {
            return Err(least);
        }
        taken.kept = kept;
        Ok(WorkReservation { bytes: work, taken: Arc::clone(&self.taken) })
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceBudget, Purpose};

    #[test]
    fn weights_leave_what_is_kept_for_work() {
        let budget = DeviceBudget::new(Some(100));
        let first = budget.reserve(Purpose::Work, 10).unwrap();
        assert_eq!(budget.reserve_work(40, 61).unwrap_err(), 101);
        let kept = budget.reserve_work(40, 60).unwrap();
        let weights = budget.reserve(Purpose::Weights, 60).unwrap();
        assert!(budget.reserve(Purpose::Weights, 1).is_err());
        // Work may use the bytes set aside, including those it already used.
        let more = budget.reserve(Purpose::Work, 30).unwrap();
        assert_eq!(budget.reserve(Purpose::Work, 2).unwrap_err(), 102);
        drop((first, more, kept));
        assert!(budget.reserve(Purpose::Weights, 40).is_ok());
        drop(weights);
        assert!(budget.reserve(Purpose::Work, 100).is_ok());
        assert!(DeviceBudget::new(None).reserve(Purpose::Work, u64::MAX / 2).is_ok());
    }
}
