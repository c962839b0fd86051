//! Which pages of which histories are the same: hashes over everything that keys and values depend on.

use nestling_core::batch::LevelPolicy;
use nestling_core::kv_cache::{PAGE_POSITIONS, PrefixKey};
use nestling_formats::memory::try_reserve;
use sha2::{Digest, Sha256};

use crate::levels::encode_levels;

/// What comes first in every hash, so that it is no other program's.
const DOMAIN: &[u8] = b"nestling prefix 2";

/// What the beginning of a history says besides its tokens: whose pages it may share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixScope {
    /// Digest of the identity of the model and of the way to compute it.
    pub identity: u128,
    /// Levels that keys and values are computed with.
    pub levels: LevelPolicy,
    /// Those with another one share nothing.
    pub salt: Option<String>,
}

impl PrefixScope {
    /// The key before the first page; none where pages depend on more than the scope and the tokens.
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
        // A salt of no bytes is another one than none.
        hash.update([u8::from(self.salt.is_some())]);
        // Default: without a salt, nothing is hashed for it.
        hash.update(self.salt.as_deref().unwrap_or_default());
        Some(PrefixKey(hash.finalize().into()))
    }
}

/// Keys of the first whole pages of `tokens`, so many at most, each with all that comes before it; none where the
/// levels have none, or where there is no memory for them.
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

/// The key of a page, after that of the page before it.
pub(crate) fn page_key(before: &PrefixKey, tokens: &[u32; PAGE_POSITIONS]) -> PrefixKey {
    let mut hash = Sha256::new();
    hash.update(before.0);
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    PrefixKey(hash.finalize().into())
}

/// How often prefixes were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixStatus {
    /// Tokens of prompts in whole pages that a session did not hold itself.
    pub asked_tokens: u64,
    /// Of these, how many were computed for somebody before and not again.
    pub found_tokens: u64,
}

impl PrefixStatus {
    /// Share of tokens that were found; none before any was asked for.
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
    use nestling_experts::dual::{DualPolicy, LevelMode, Threshold};
    use nestling_formats::Level;

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
