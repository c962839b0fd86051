//! The hash that the Hub announces of a file, taken as the file arrives.

use crate::listing::RemoteFile;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// A hash in the making.
pub enum Digest {
    /// Of a large file's content.
    Sha256(Sha256),
    /// Of a small file, as git names it.
    Git(Sha1),
}

impl Digest {
    /// The kind of hash that is announced of a file.
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

    /// Whether what was read is the file.
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
