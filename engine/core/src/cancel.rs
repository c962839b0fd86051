//! Telling long work to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to stop, shared by everyone who may ask and everyone who must obey.
///
/// Clones are the same token. Work checks it at least once per layer, per extent read and per
/// tensor converted; nothing is interrupted in between.
#[derive(Clone, Debug)]
pub struct CancelToken {
    /// The first flag is this token's own; any flag that is set cancels it.
    flags: Arc<[Arc<AtomicBool>]>,
}

impl CancelToken {
    /// A token that nobody has cancelled yet.
    pub fn new() -> Self {
        Self { flags: Arc::from([Arc::new(AtomicBool::new(false))]) }
    }

    /// Asks for a stop. It cannot be taken back.
    pub fn cancel(&self) {
        if let Some(own) = self.flags.first() {
            own.store(true, Ordering::Release);
        }
    }

    /// Whether this token, or one that it was made from, has been cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.flags.iter().any(|flag| flag.load(Ordering::Acquire))
    }

    /// A token of its own that also stops when this one does; cancelling it leaves this one be.
    pub fn child(&self) -> Self {
        Self::any([self])
    }

    /// A token of its own that also stops when any of `tokens` does.
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
