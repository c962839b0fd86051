//! Tokens of the calibration text.

use xxhash_rust::xxh3::Xxh3;

use nestling_core::error::EngineError;

/// Minimum number of calibration tokens.
pub const CALIBRATION_TOKENS_MIN: usize = 256;

/// Default number of tokens per sequence.
const SEQUENCE_LENGTH: usize = 512;

/// Token ids of a text, split into sequences of equal length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalibrationTokens {
    tokens: Vec<u32>,
    sequence_length: usize,
}

impl CalibrationTokens {
    /// Splits tokens into sequences of 512.
    ///
    /// # Errors
    /// Fails with [`EngineError::TooFewTokens`] below [`CALIBRATION_TOKENS_MIN`].
    pub fn new(tokens: Vec<u32>) -> Result<Self, EngineError> {
        Self::with_length(tokens, SEQUENCE_LENGTH)
    }

    /// Splits tokens into sequences of the given length. A shorter context of the model limits the length.
    ///
    /// # Errors
    /// Fails like [`Self::new`].
    pub fn with_length(tokens: Vec<u32>, sequence_length: usize) -> Result<Self, EngineError> {
        if tokens.len() < CALIBRATION_TOKENS_MIN {
            let (found, needed) = (tokens.len(), CALIBRATION_TOKENS_MIN);
            return Err(EngineError::TooFewTokens { what: "calibration", found, needed });
        }
        Ok(Self { tokens, sequence_length: sequence_length.max(1) })
    }

    /// Returns the tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the number of tokens per sequence.
    pub fn sequence_length(&self) -> usize {
        self.sequence_length
    }

    /// Returns the XXH3-128 hash of the tokens and of the sequence length.
    pub fn hash(&self) -> u128 {
        let mut hash = Xxh3::new();
        hash.update(&(self.sequence_length as u64).to_le_bytes());
        for token in &self.tokens {
            hash.update(&token.to_le_bytes());
        }
        hash.digest128()
    }
}
