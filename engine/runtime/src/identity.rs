//! Model identity: everything besides tokens and levels that the KV cache depends on.

use nestling_core::kv_cache::KvDtype;
use nestling_core::weights::ActivationMode;
use sha2::{Digest, Sha256};

/// Length of an encoded identity in bytes.
pub(crate) const IDENTITY_BYTES: usize = 56;

/// Version of the page contents. Increment it with every change of the layout.
const PAGE_VERSION: u8 = 2;

/// Identity of a model and its arithmetic, stored in snapshots and in the keys of shared pages.
///
/// The KV cache and recurrent states depend on it besides tokens and levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelIdentity {
    /// Hash of the store or checkpoint.
    pub source: u128,
    /// Hash of the allocation of levels to single matrices. 0 without an allocation.
    pub allocation: u128,
    /// Hash of the level router of dual routing. 0 without dual routing.
    pub level_router: u128,
    /// Bits of the highest level. 0 for weights without levels.
    pub level: u8,
    /// Arithmetic used for nested matrices.
    pub activation_mode: ActivationMode,
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Page layout of the backend: [`nestling_core::Backend::PAGE_KIND`].
    pub page_kind: u8,
    /// True if the long-context RoPE angles are used.
    pub long_angles: bool,
}

impl ModelIdentity {
    /// Encodes the identity: the three hashes in little-endian order, then one byte each for level,
    /// activation mode, KV type, page kind, angles and page version, then two zero bytes.
    pub(crate) fn to_bytes(self) -> [u8; IDENTITY_BYTES] {
        let mode = match self.activation_mode {
            ActivationMode::Int8 => 0,
            ActivationMode::Float => 1,
        };
        let dtype = match self.kv_dtype {
            KvDtype::F32 => 4,
            KvDtype::F16 => 2,
            KvDtype::Int8 => 1,
        };
        let angles = u8::from(self.long_angles);
        let last = [self.level, mode, dtype, self.page_kind, angles, PAGE_VERSION, 0, 0];
        let mut bytes = [0; IDENTITY_BYTES];
        for (at, hash) in [self.source, self.allocation, self.level_router].into_iter().enumerate()
        {
            bytes[at * 16..][..16].copy_from_slice(&hash.to_le_bytes());
        }
        bytes[48..].copy_from_slice(&last);
        bytes
    }

    /// Returns the first half of the SHA-256 of the encoded identity, used in page keys.
    pub(crate) fn digest(self) -> u128 {
        let hash: [u8; 32] = Sha256::digest(self.to_bytes()).into();
        let mut half = [0; 16];
        half.copy_from_slice(&hash[..16]);
        u128::from_le_bytes(half)
    }

    /// Decodes the output of [`Self::to_bytes`]. Returns `None` if the bytes are invalid.
    pub(crate) fn from_bytes(bytes: &[u8; IDENTITY_BYTES]) -> Option<Self> {
        let (hashes, last) = bytes.as_chunks::<16>();
        let &[source, allocation, level_router] = hashes else { return None };
        let &[level, mode, dtype, page_kind, angles, PAGE_VERSION, 0, 0] = last else {
            return None;
        };
        let activation_mode = match mode {
            0 => ActivationMode::Int8,
            1 => ActivationMode::Float,
            _ => return None,
        };
        let kv_dtype = match dtype {
            4 => KvDtype::F32,
            2 => KvDtype::F16,
            1 => KvDtype::Int8,
            _ => return None,
        };
        let long_angles = match angles {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self {
            source: u128::from_le_bytes(source),
            allocation: u128::from_le_bytes(allocation),
            level_router: u128::from_le_bytes(level_router),
            level,
            activation_mode,
            kv_dtype,
            page_kind,
            long_angles,
        })
    }

    /// Describes the fields that differ: first the values of `self`, then the values of `other`.
    ///
    /// Returns `None` if all are equal.
    pub(crate) fn difference(&self, other: &Self) -> Option<(String, String)> {
        let mut words = (Vec::new(), Vec::new());
        for (one, other) in self.fields().into_iter().zip(other.fields()) {
            if one != other {
                words.0.push(one);
                words.1.push(other);
            }
        }
        (!words.0.is_empty()).then(|| (words.0.join(", "), words.1.join(", ")))
    }

    fn fields(&self) -> [String; 8] {
        let hash = |what: &str, hash: u128| match hash {
            0 => format!("no {what}"),
            _ => format!("{what} {hash:032x}"),
        };
        [
            hash("weights", self.source),
            hash("levels of single matrices", self.allocation),
            hash("router of levels", self.level_router),
            match self.level {
                0 => "no levels".to_owned(),
                level => format!("level {level}"),
            },
            format!("{:?} activations", self.activation_mode),
            format!("{:?} keys and values", self.kv_dtype),
            match self.page_kind {
                0 => "pages of the processor".to_owned(),
                kind => format!("pages of backend {kind}"),
            },
            match self.long_angles {
                true => "angles of a long context".to_owned(),
                false => "angles of a short context".to_owned(),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::{IDENTITY_BYTES, ModelIdentity};
    use nestling_core::kv_cache::KvDtype;
    use nestling_core::weights::ActivationMode;

    /// Identities that each differ from the first in one field.
    fn identities() -> Vec<ModelIdentity> {
        let first = ModelIdentity { source: 1, level: 8, ..ModelIdentity::default() };
        vec![
            first,
            ModelIdentity { source: 1 << 127, ..first },
            ModelIdentity { allocation: 2, ..first },
            ModelIdentity { level_router: 3, ..first },
            ModelIdentity { level: 0, ..first },
            ModelIdentity { activation_mode: ActivationMode::Float, ..first },
            ModelIdentity { kv_dtype: KvDtype::F16, ..first },
            ModelIdentity { kv_dtype: KvDtype::Int8, ..first },
            ModelIdentity { page_kind: 2, ..first },
            ModelIdentity { long_angles: true, ..first },
        ]
    }

    #[test]
    fn every_field_is_kept_and_told_apart() {
        let all = identities();
        for one in &all {
            assert_eq!(ModelIdentity::from_bytes(&one.to_bytes()), Some(*one));
            let differing = all.iter().filter(|other| one.difference(other).is_some()).count();
            assert_eq!(differing, all.len() - 1, "{one:?}");
        }
    }

    #[test]
    fn what_differs_is_named_and_nothing_else() {
        let all = identities();
        let (one, other) = all[6].difference(&all[4]).unwrap();
        assert_eq!(
            (one.as_str(), other.as_str()),
            ("level 8, F16 keys and values", "no levels, F32 keys and values")
        );
    }

    #[test]
    fn bytes_that_no_identity_has_are_none() {
        let whole = identities()[0].to_bytes();
        for at in 49..IDENTITY_BYTES {
            let mut bytes = whole;
            bytes[at] = 77;
            // Any page kind is valid.
            assert_eq!(ModelIdentity::from_bytes(&bytes).is_some(), at == 51, "{at}");
        }
    }
}
