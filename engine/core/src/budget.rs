//! The memory budget of an engine, in bytes, shared by all its allocations.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::sync::whole;

/// Purpose of a reservation; it determines the advice in the error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Weights of a model.
    Weights,
    /// KV cache pages.
    KeyValue,
    /// Activations of one step.
    Scratch,
    /// Planes of streamed experts.
    Experts,
    /// Remaining memory of the process: code, tokenizer, allocator overhead.
    Program,
}

impl Purpose {
    const ALL: [Self; 5] =
        [Self::Weights, Self::KeyValue, Self::Scratch, Self::Experts, Self::Program];

    fn advice(self) -> &'static str {
        match self {
            Self::Weights => "open the model at a lower level, map it, or raise the budget",
            Self::KeyValue => "use a shorter context, f16 keys and values, or raise the budget",
            Self::Scratch => "take fewer prompt rows per step, or raise the budget",
            Self::Experts | Self::Program => "close another model, or raise the budget",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights",
            Self::KeyValue => "keys and values",
            Self::Scratch => "scratch",
            Self::Experts => "experts",
            Self::Program => "the program",
        })
    }
}

/// Error of a reservation that exceeds the budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetExceeded {
    /// Purpose of the reservation.
    pub purpose: Purpose,
    /// Requested bytes.
    pub needed_bytes: u64,
    /// Free bytes at the time of the request.
    pub available_bytes: u64,
    /// Total bytes of the budget.
    pub total_bytes: u64,
}

impl fmt::Display for BudgetExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} need {}, but only {} of the memory budget of {} is free: {}",
            self.purpose,
            Bytes(self.needed_bytes),
            Bytes(self.available_bytes),
            Bytes(self.total_bytes),
            self.purpose.advice(),
        )
    }
}

impl std::error::Error for BudgetExceeded {}

/// A number of bytes, printed in the largest unit with a value of at least 1.
///
/// ```
/// use nestling_core::budget::Bytes;
///
/// assert_eq!(Bytes(3 << 20).to_string(), "3.0 MiB");
/// assert_eq!(Bytes(512).to_string(), "512 bytes");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.into_iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{:.1} {name}", self.0 as f64 / unit as f64),
            None if self.0 == 1 => f.write_str("1 byte"),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// A memory budget. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    state: Arc<Mutex<BudgetState>>,
}

#[derive(Debug)]
struct BudgetState {
    total_bytes: u64,
    /// Reserved bytes by [`Purpose`], in the order of [`Purpose::ALL`].
    held_bytes: [u64; Purpose::ALL.len()],
}

impl BudgetState {
    fn used(&self) -> u64 {
        self.held_bytes.iter().fold(0, |sum, held| sum.saturating_add(*held))
    }
}

impl Budget {
    /// Creates a budget of `total_bytes`; `None` means unlimited, with counting only.
    pub fn new(total_bytes: Option<u64>) -> Self {
        let total_bytes = total_bytes.unwrap_or(u64::MAX);
        Self {
            state: Arc::new(Mutex::new(BudgetState {
                total_bytes,
                held_bytes: [0; Purpose::ALL.len()],
            })),
        }
    }

    /// Reserves `needed_bytes` until the reservation is dropped.
    ///
    /// ```
    /// use nestling_core::Budget;
    /// use nestling_core::budget::Purpose;
    ///
    /// let budget = Budget::new(Some(100));
    /// let experts = budget.reserve(Purpose::Experts, 70)?;
    /// let error = budget.reserve(Purpose::KeyValue, 40).unwrap_err();
    /// assert_eq!(error.available_bytes, 30);
    /// drop(experts);
    /// assert_eq!(budget.available_bytes(), 100);
    /// # Ok::<(), nestling_core::BudgetExceeded>(())
    /// ```
    ///
    /// # Errors
    /// [`BudgetExceeded`] if the bytes are not free; nothing is reserved.
    pub fn reserve(
        &self,
        purpose: Purpose,
        needed_bytes: u64,
    ) -> Result<Reservation, BudgetExceeded> {
        let mut reservation = Reservation { budget: self.clone(), purpose, bytes: 0 };
        reservation.resize(needed_bytes)?;
        Ok(reservation)
    }

    /// Returns the total bytes of the budget, or `None` if it is unlimited.
    pub fn total_bytes(&self) -> Option<u64> {
        Some(self.lock().total_bytes).filter(|total| *total != u64::MAX)
    }

    /// Returns the reserved bytes.
    pub fn used_bytes(&self) -> u64 {
        self.lock().used()
    }

    /// Returns the bytes reserved for one purpose.
    pub fn held_bytes(&self, purpose: Purpose) -> u64 {
        self.lock().held_bytes[purpose as usize]
    }

    /// Returns the bytes that can still be reserved.
    pub fn available_bytes(&self) -> u64 {
        let state = self.lock();
        state.total_bytes.saturating_sub(state.used())
    }

    /// Changes the limit. Existing reservations are kept even if they exceed it.
    pub fn set_total_bytes(&self, total_bytes: Option<u64>) {
        self.lock().total_bytes = total_bytes.unwrap_or(u64::MAX);
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        // All critical sections leave the counters consistent, so a poisoned lock is usable.
        whole(self.state.lock())
    }
}

/// A reservation of bytes in a budget, released when dropped.
#[derive(Debug)]
#[must_use]
pub struct Reservation {
    budget: Budget,
    purpose: Purpose,
    bytes: u64,
}

impl Reservation {
    /// Returns the reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Grows or shrinks the reservation to `bytes`.
    ///
    /// # Errors
    /// [`BudgetExceeded`] if it cannot grow; its size is unchanged.
    pub fn resize(&mut self, bytes: u64) -> Result<(), BudgetExceeded> {
        let mut state = self.budget.lock();
        let grow = bytes.saturating_sub(self.bytes);
        let available_bytes = state.total_bytes.saturating_sub(state.used());
        if grow > available_bytes {
            return Err(BudgetExceeded {
                purpose: self.purpose,
                needed_bytes: grow,
                available_bytes,
                total_bytes: state.total_bytes,
            });
        }
        let held = &mut state.held_bytes[self.purpose as usize];
        *held = held.saturating_sub(self.bytes).saturating_add(bytes);
        drop(state);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        let held = &mut state.held_bytes[self.purpose as usize];
        *held = held.saturating_sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Bytes, Purpose};

    #[test]
    fn reservations_share_one_limit_and_give_back() {
        let budget = Budget::new(Some(100));
        let first = budget.reserve(Purpose::Weights, 60).unwrap();
        let refused = budget.clone().reserve(Purpose::KeyValue, 41).unwrap_err();
        assert_eq!((refused.needed_bytes, refused.available_bytes), (41, 40));
        let mut second = budget.reserve(Purpose::KeyValue, 40).unwrap();
        assert_eq!(budget.available_bytes(), 0);
        assert!(second.resize(41).is_err());
        assert_eq!(second.bytes(), 40);
        drop(first);
        second.resize(90).unwrap();
        assert_eq!((budget.used_bytes(), budget.held_bytes(Purpose::KeyValue)), (90, 90));
        drop(second);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn lowering_the_limit_takes_nothing_away() {
        let budget = Budget::new(None);
        let held = budget.reserve(Purpose::Scratch, 50).unwrap();
        budget.set_total_bytes(Some(10));
        assert_eq!((budget.used_bytes(), budget.available_bytes()), (50, 0));
        assert!(budget.reserve(Purpose::Scratch, 1).is_err());
        drop(held);
        assert_eq!(budget.available_bytes(), 10);
    }

    #[test]
    fn a_refusal_names_both_sizes_and_what_helps() {
        let refused = Budget::new(Some(1 << 20)).reserve(Purpose::Weights, 3 << 30).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("3.0 GiB") && text.contains("1.0 MiB") && text.contains("lower level")
        );
        assert_eq!(Bytes(12).to_string(), "12 bytes");
    }
}
