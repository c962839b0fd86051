//! Which tokens may come next, a bit for each.

/// Bits of a word.
const WORD_BITS: usize = u32::BITS as usize;

/// A set of tokens: one bit for each id of a vocabulary, the lowest ids in the lowest bits of the first word, as a
/// device would read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    tokens: usize,
}

impl TokenMask {
    /// A mask over `tokens` ids that allows none.
    pub fn none(tokens: usize) -> Self {
        Self { words: vec![0; tokens.div_ceil(WORD_BITS)], tokens }
    }

    /// A mask over `tokens` ids that allows each of them.
    pub fn all(tokens: usize) -> Self {
        let mut mask = Self::none(tokens);
        mask.allow_all();
        mask
    }

    /// How many ids there are.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Allows every token.
    pub fn allow_all(&mut self) {
        self.words.fill(u32::MAX);
        self.clear_padding();
    }

    /// Allows no token.
    pub fn forbid_all(&mut self) {
        self.words.fill(0);
    }

    /// Allows a token; ids beyond the vocabulary are none.
    pub fn allow(&mut self, token: u32) {
        if let Some((word, bit)) = self.word(token) {
            *word |= bit;
        }
    }

    /// Forbids a token.
    pub fn forbid(&mut self, token: u32) {
        if let Some((word, bit)) = self.word(token) {
            *word &= !bit;
        }
    }

    /// Whether a token is allowed.
    pub fn allows(&self, token: u32) -> bool {
        let index = token as usize;
        let word = self.words.get(index / WORD_BITS);
        index < self.tokens && word.is_some_and(|word| word >> (index % WORD_BITS) & 1 == 1)
    }

    /// How many tokens are allowed.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no token is allowed.
    pub fn is_none(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The bits, 32 tokens to a word. Bits beyond the vocabulary are 0.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Takes the bits of `words`, laid out as [`Self::words`]; what they lack is forbidden, what they have beyond the
    /// vocabulary left out.
    pub fn set_words(&mut self, words: &[u32]) {
        self.words.fill(0);
        for (word, bits) in self.words.iter_mut().zip(words) {
            *word = *bits;
        }
        self.clear_padding();
    }

    /// Makes the logits of tokens that are not allowed minus infinity.
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
        // A mask of fewer tokens allows none beyond.
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
