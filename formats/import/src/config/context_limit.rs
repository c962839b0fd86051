//! Limits of contexts other than the length of the training.

/// Reason for the maximum length of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContextLimit {
    /// Length of the training.
    Trained,
    /// Number of positions that sparse attention selects. Only contexts within it are supported, where all
    /// positions are selected.
    Selection {
        /// Context length of the training in positions.
        trained: usize,
    },
}
