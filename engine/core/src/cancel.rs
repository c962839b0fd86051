//! Cancellation of long-running work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A cancellation request, shared between requesters and workers.
///
/// Clones are the same token. Work checks it at least once per layer, per extent read and per tensor
/// converted; it is not interrupted in between.
///
/// ```
/// use nestling_core::CancelToken;
///
/// let engine = CancelToken::new();
/// let generation = engine.child();
/// assert!(!generation.is_cancelled());
/// engine.cancel();
/// assert!(generation.is_cancelled());
/// ```
#[derive(Clone, Debug)]
pub struct CancelToken {
    /// Flags that cancel the token if any is set; the first is the token's own.
    flags: Arc<[Arc<AtomicBool>]>,
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> Self {
        Self { flags: Arc::from([Arc::new(AtomicBool::new(false))]) }
    }

    /// Requests cancellation, irrevocably.
    pub fn cancel(&self) {
        if let Some(own) = self.flags.first() {
            own.store(true, Ordering::Release);
        }
    }

    /// Returns whether this token, or one of its ancestors, was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.flags.iter().any(|flag| flag.load(Ordering::Acquire))
    }

    /// Creates a child token. Cancelling the parent cancels the child, but not the reverse.
    pub fn child(&self) -> Self {
        Self::any([self])
    }

    /// Creates a child token of several parents, which is cancelled when any of `tokens` is.
    ///
    /// ```
    /// use nestling_core::CancelToken;
    ///
    /// let (caller, engine) = (CancelToken::new(), CancelToken::new());
    /// let either = CancelToken::any([&caller, &engine]);
    /// caller.cancel();
    /// assert!(either.is_cancelled() && !engine.is_cancelled());
    /// ```
    pub fn any<'a>(tokens: impl IntoIterator<Item = &'a Self>) -> Self {
        let own = Arc::new(AtomicBool::new(false));
        let others = tokens.into_iter().flat_map(|token| token.flags.iter().cloned());
        Self { flags: std::iter::once(own).chain(others).collect() }
    }
}

impl Default for CancelToken {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::CancelToken;

    #[test]
    fn clones_are_one_token_and_children_are_not() {
        let parent = CancelToken::new();
        let same = parent.clone();
        let child = parent.child();
        child.cancel();
        assert!(child.is_cancelled() && !parent.is_cancelled());
        let second = parent.child();
        same.cancel();
        assert!(parent.is_cancelled() && second.is_cancelled());
    }

    #[test]
    fn any_follows_every_source() {
        let (a, b) = (CancelToken::new(), CancelToken::new());
        let either = CancelToken::any([&a, &b]);
        assert!(!either.is_cancelled());
        b.cancel();
        assert!(either.is_cancelled() && !a.is_cancelled());
        assert!(!CancelToken::any([]).is_cancelled());
    }
}
