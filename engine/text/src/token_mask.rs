//! Bit mask of allowed tokens.

/// Bits per word.
const WORD_BITS: usize = u32::BITS as usize;

/// A set of tokens with one bit per id of a vocabulary. The lowest ids are in the lowest bits of the first
/// word, the layout that devices read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    tokens: usize,
}

impl TokenMask {
    /// Creates a mask over `tokens` ids that allows no token.
    pub fn none(tokens: usize) -> Self {
        Self { words: vec![0; tokens.div_ceil(WORD_BITS)], tokens }
    }

    /// Creates a mask over `tokens` ids that allows all tokens.
    pub fn all(tokens: usize) -> Self {
        let mut mask = Self::none(tokens);
        mask.allow_all();
        mask
    }

    /// Returns the number of ids.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Allows all tokens.
    pub fn allow_all(&mut self) {
        self.words.fill(u32::MAX);
        self.clear_padding();
    }

    /// Forbids all tokens.
    pub fn forbid_all(&mut self) {
        self.words.fill(0);
    }

    /// Allows a token. Ids beyond the vocabulary are ignored.
    pub fn allow(&mut self, token: u32) {
        if let Some((word, bit)) = self.word(token) {
            *word |= bit;
        }
    }

    /// Forbids a token. Ids beyond the vocabulary are ignored.
    pub fn forbid(&mut self, token: u32) {
        if let Some((word, bit)) = self.word(token) {
            *word &= !bit;
        }
    }

    /// Returns whether a token is allowed.
    pub fn allows(&self, token: u32) -> bool {
        let index = token as usize;
        let word = self.words.get(index / WORD_BITS);
        index < self.tokens && word.is_some_and(|word| word >> (index % WORD_BITS) & 1 == 1)
    }

    /// Returns the number of allowed tokens.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether no token is allowed.
    pub fn is_none(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Returns the bits, 32 tokens per word. Bits beyond the vocabulary are 0.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Sets the bits from `words`, in the layout of [`Self::words`]. Tokens beyond the end of `words` are
    /// forbidden; bits beyond the vocabulary are ignored.
    pub fn set_words(&mut self, words: &[u32]) {
        self.words.fill(0);
        for (word, bits) in self.words.iter_mut().zip(words) {
            *word = *bits;
        }
        self.clear_padding();
    }

    /// Sets the logits of disallowed tokens to minus infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let mut chunks = logits.chunks_mut(WORD_BITS);
        for (chunk, word) in chunks.by_ref().zip(&self.words) {
            if *word == u32::MAX {
                continue;
            }
            for (bit, logit) in chunk.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        // Logits beyond the mask are disallowed too.
        chunks.for_each(|chunk| chunk.fill(f32::NEG_INFINITY));
    }

    fn word(&mut self, token: u32) -> Option<(&mut u32, u32)> {
        let index = token as usize;
        let word = self.words.get_mut(index / WORD_BITS).filter(|_| index < self.tokens)?;
        Some((word, 1 << (index % WORD_BITS)))
    }

    fn clear_padding(&mut self) {
        let used = self.tokens % WORD_BITS;
        if let Some(last) = self.words.last_mut().filter(|_| used > 0) {
            *last &= (1 << used) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TokenMask;

    #[test]
    fn bits_beyond_the_vocabulary_are_none() {
        let mut mask = TokenMask::all(37);
        assert_eq!((mask.count(), mask.words()), (37, &[u32::MAX, 31][..]));
        mask.allow(37);
        mask.allow(u32::MAX);
        mask.set_words(&[0, u32::MAX, u32::MAX]);
        assert_eq!((mask.count(), mask.allows(36), mask.allows(37)), (5, true, false));
        mask.set_words(&[1]);
        assert_eq!((mask.count(), mask.allows(0)), (1, true));
        mask.forbid(0);
        assert!(mask.is_none());
    }

    #[test]
    fn what_is_not_allowed_is_minus_infinity() {
        let mut mask = TokenMask::none(34);
        mask.allow(1);
        mask.allow(33);
        let mut logits = [0.5; 40];
        mask.apply(&mut logits);
        let left: Vec<usize> = (0..40).filter(|at| logits[*at] == 0.5).collect();
        assert_eq!(left, [1, 33]);
        let mut logits = [0.5; 34];
        TokenMask::all(34).apply(&mut logits);
        assert_eq!(logits, [0.5; 34]);
    }
}
