//! The text that a model is calibrated with, as tokens.

use xxhash_rust::xxh3::Xxh3;

use nestling_core::error::EngineError;

/// Fewest tokens that say anything about a model's activations.
pub const CALIBRATION_TOKENS_MIN: usize = 256;

/// Tokens of one sequence, unless said otherwise.
const SEQUENCE_LENGTH: usize = 512;

/// Token ids of a text, cut into sequences of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalibrationTokens {
    tokens: Vec<u32>,
    sequence_length: usize,
}

impl CalibrationTokens {
    /// Tokens in sequences of 512.
    ///
    /// # Errors
    /// [`EngineError::TooFewTokens`] below [`CALIBRATION_TOKENS_MIN`].
    pub fn new(tokens: Vec<u32>) -> Result<Self, EngineError> {
        Self::with_length(tokens, SEQUENCE_LENGTH)
    }

    /// Tokens in sequences of some length, or of the model's context where that is shorter.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_length(tokens: Vec<u32>, sequence_length: usize) -> Result<Self, EngineError> {
        if tokens.len() < CALIBRATION_TOKENS_MIN {
            let (found, needed) = (tokens.len(), CALIBRATION_TOKENS_MIN);
            return Err(EngineError::TooFewTokens { what: "calibration", found, needed });
        }
        Ok(Self { tokens, sequence_length: sequence_length.max(1) })
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of one sequence.
    pub fn sequence_length(&self) -> usize {
        self.sequence_length
    }

    /// XXH3-128 of all tokens and of how they are cut.
    pub fn hash(&self) -> u128 {
        let mut hash = Xxh3::new();
        hash.update(&(self.sequence_length as u64).to_le_bytes());
        for token in &self.tokens {
            hash.update(&token.to_le_bytes());
        }
        hash.digest128()
    }
}
