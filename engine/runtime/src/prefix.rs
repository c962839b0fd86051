//! Keys of shared prefixes: hashes over everything that the contents of KV pages depend on.

use nestling_core::batch::LevelPolicy;
use nestling_core::kv_cache::{PAGE_POSITIONS, PrefixKey};
use nestling_formats::memory::try_reserve;
use sha2::{Digest, Sha256};

use crate::levels::encode_levels;

/// Domain separator hashed first, so that keys cannot equal hashes of other programs.
const DOMAIN: &[u8] = b"nestling prefix 2";

/// Inputs of a page key besides the tokens. Histories share pages only if their scopes are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixScope {
    /// Digest of the model identity.
    pub identity: u128,
    /// Levels used to compute the KV cache.
    pub levels: LevelPolicy,
    /// Salt: histories with different salts share no pages.
    pub salt: Option<String>,
}

impl PrefixScope {
    /// Returns the key that precedes the first page.
    ///
    /// Returns `None` if the pages depend on more than scope and tokens, as in elastic mode.
    pub fn root(&self) -> Option<PrefixKey> {
        if self.levels.leaves_out_late() {
            return None;
        }
        let (levels, threshold) = encode_levels(self.levels);
        let mut hash = Sha256::new();
        hash.update(DOMAIN);
        hash.update(self.identity.to_le_bytes());
        hash.update(levels);
        hash.update(threshold.to_le_bytes());
        // An empty salt differs from no salt.
        hash.update([u8::from(self.salt.is_some())]);
        // Default: a missing salt is hashed as zero bytes.
        hash.update(self.salt.as_deref().unwrap_or_default());
        Some(PrefixKey(hash.finalize().into()))
    }
}

/// Returns the keys of up to `pages` leading whole pages of `tokens`.
///
/// Each key covers all tokens before its page. The result is empty if the levels allow no keys or memory is
/// exhausted.
pub(crate) fn page_keys(scope: &PrefixScope, tokens: &[u32], pages: usize) -> Vec<PrefixKey> {
    let (whole, _) = tokens.as_chunks::<PAGE_POSITIONS>();
    let whole = &whole[..pages.min(whole.len())];
    let mut keys = Vec::new();
    // Default: pages of elastic levels have no keys.
    let Some(mut key) = scope.root() else { return keys };
    if try_reserve(&mut keys, "keys of pages", whole.len()).is_ok() {
        for tokens in whole {
            key = page_key(&key, tokens);
            keys.push(key);
        }
    }
    keys
}

/// Returns the key of the page that follows the page with key `before`.
pub(crate) fn page_key(before: &PrefixKey, tokens: &[u32; PAGE_POSITIONS]) -> PrefixKey {
    let mut hash = Sha256::new();
    hash.update(before.0);
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    PrefixKey(hash.finalize().into())
}

/// Hit counts of the shared prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixStatus {
    /// Prompt tokens looked up: those in whole pages that the session itself did not hold.
    pub asked_tokens: u64,
    /// Prompt tokens found, and therefore not recomputed.
    pub found_tokens: u64,
}

impl PrefixStatus {
    /// Returns the fraction of tokens found. Returns `None` before the first lookup.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.asked_tokens > 0).then(|| self.found_tokens as f64 / self.asked_tokens as f64)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.asked_tokens += other.asked_tokens;
        self.found_tokens += other.found_tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::{PrefixScope, page_key};
    use nestling_core::batch::LevelPolicy;
    use nestling_core::kv_cache::PAGE_POSITIONS;
    use nestling_formats::Level;
    use nestling_levels::dual::{DualPolicy, LevelMode, Threshold};

    #[test]
    fn everything_that_matters_makes_another_key() {
        let fixed = LevelPolicy::Fixed(Level::L4);
        let strict = DualPolicy::up_to(Level::L4, Threshold::new(0.5));
        let other = DualPolicy { threshold: Threshold::new(0.25), ..strict };
        let scope = |identity, levels, salt: Option<&str>| {
            PrefixScope { identity, levels, salt: salt.map(str::to_owned) }.root().unwrap()
        };
        let mut keys = vec![
            scope(1, fixed, None),
            scope(2, fixed, None),
            scope(1, LevelPolicy::Fixed(Level::L6), None),
            scope(1, LevelPolicy::Dual(strict), None),
            scope(1, LevelPolicy::Dual(other), None),
            scope(1, fixed, Some("")),
            scope(1, fixed, Some("a")),
        ];
        let mut tokens = [7; PAGE_POSITIONS];
        keys.push(page_key(&keys[0], &tokens));
        keys.push(page_key(&keys[1], &tokens));
        tokens[63] = 8;
        keys.push(page_key(&keys[0], &tokens));
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
        let elastic = LevelPolicy::Dual(DualPolicy { mode: LevelMode::Elastic, ..strict });
        assert_eq!(PrefixScope { identity: 1, levels: elastic, salt: None }.root(), None);
    }
}
