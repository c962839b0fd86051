//! Samples of tokens that are routed to an expert, on which its output error is measured.

use super::{Calibrator, Current};

/// Maximum number of tokens of a sample. Errors are averaged over tokens and hidden units, so that few tokens
/// suffice.
const TOKENS_MAX: usize = 64;

/// Inputs of one expert for a sample of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedSample {
    /// Inputs, `[T, hidden_size]`.
    pub inputs: Vec<f32>,
    /// Router weights of the expert's output; 1 for tokens that are not routed to it.
    pub weights: Vec<f32>, // [T]
}

impl Calibrator<'_> {
    /// Returns evenly spaced tokens that are routed to an expert of the current layer. If no token is routed
    /// to it, the sample is taken from all tokens. Returns `None` if there is no such expert.
    pub fn routed_sample(&self, expert: u32) -> Option<RoutedSample> {
        // Default: nothing is sampled outside a layer.
        let Current::Layer(layer) = &self.current else { return None };
        let uses = layer.feed_forward.uses_of(expert)?;
        let tokens = self.token_count();
        let (rows, weights): (Vec<u32>, Vec<f32>) = if uses.is_empty() {
            spread(tokens).filter_map(|at| Some((u32::try_from(at).ok()?, 1.0))).unzip()
        } else {
            spread(uses.len()).filter_map(|at| uses.get(at)).map(|u| (u.row, u.weight)).unzip()
        };
        let inputs = self.normed(rows.into_iter(), &layer.feed_forward.inputs(Some(expert)).norm);
        Some(RoutedSample { inputs, weights })
    }
}

/// Returns up to [`TOKENS_MAX`] evenly spaced indices below `count`.
pub(super) fn spread(count: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(TOKENS_MAX);
    (0..taken).map(move |at| at * count / taken)
}
