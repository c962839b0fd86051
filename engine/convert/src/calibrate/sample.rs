//! Tokens that are routed to an expert: what its output error is measured on.

use super::{Calibrator, Current};

/// Most tokens of a sample. Errors are means over tokens and hidden units together, so that few
/// tokens say enough.
const TOKENS_MAX: usize = 64;

/// Inputs of one expert.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedSample {
    /// `[T, hidden_size]`.
    pub inputs: Vec<f32>,
    /// What the router gives the expert's output; 1 for tokens that are not routed to it.
    pub weights: Vec<f32>, // [T]
}

impl Calibrator<'_> {
    /// Tokens of an expert of the layer that was begun, evenly over the text; tokens of all where
    /// none is routed to it. None if there is no such expert.
    pub fn routed_sample(&self, expert: u32) -> Option<RoutedSample> {
        // Default: outside of a layer nothing is sampled.
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

    /// Mean square of the residual stream after the layer that was begun, summed over its width:
    /// what errors of the experts' sum are measured by. Where norms come after that, it is divided
    /// by how much they enlarge the sum, squared. At least the smallest positive number.
    pub fn residual_square(&self) -> f64 {
        // Default: outside of a layer nothing is scaled.
        let Current::Layer(layer) = &self.current else { return 1.0 };
        let gain = layer.feed_forward.gain.max(f64::MIN_POSITIVE);
        (self.stream_square() / gain).max(f64::MIN_POSITIVE)
    }
}

/// At most [`TOKENS_MAX`] places, evenly spread.
pub(super) fn spread(count: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(TOKENS_MAX);
    (0..taken).map(move |at| at * count / taken)
}
