//! Verification of downloads against the hashes in the Hub's listing.

use crate::listing::RemoteFile;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// An incremental hash.
pub enum Digest {
    /// SHA-256 of the content of a large file.
    Sha256(Sha256),
    /// Git blob hash of a small file.
    Git(Sha1),
}

impl Digest {
    /// Creates the kind of hash that the listing contains for a file.
    pub fn of(file: &RemoteFile) -> Self {
        if file.blob.len() == 64 {
            return Self::Sha256(Sha256::new());
        }
        Self::Git(Sha1::new().chain_update(format!("blob {}\0", file.size)))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::Git(_) => "SHA-1",
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
        }
    }

    /// Returns true if the hash equals that of the listing.
    pub fn matches(self, file: &RemoteFile) -> bool {
        let text = match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::Git(hash) => hex(&hash.finalize()),
        };
        text == file.blob
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_has_the_name_that_git_gives_it() {
        // `printf 'hello\n' | git hash-object --stdin`
        let blob = "ce013625030ba8dba906f756967f9e9ca394464a".to_owned();
        let file = RemoteFile { name: "a".into(), size: 6, blob };
        let mut digest = Digest::of(&file);
        digest.update(b"hel");
        digest.update(b"lo\n");
        assert!(digest.matches(&file));
        assert!(!Digest::of(&file).matches(&file));
    }
}
