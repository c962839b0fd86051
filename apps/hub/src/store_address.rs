//! Address of a store on a web server.

use crate::client::absolute;
use crate::error::{HubError, Result};
use crate::names::is_file_name;
use crate::shard_names::ShardName;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::path::{Path, PathBuf};
use ureq::http::Uri;

/// Folder of the copies within the cache of stores.
pub const FOLDER: &str = "web";

/// Number of bytes of an address's hash in the name of its copy.
const HASH_BYTES: usize = 8;

/// Address of one `.nest` file, such as `https://models.example/small.nest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    text: String,
    uri: Uri,
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StoreAddress {
    /// Returns true for an address on the web, as opposed to a path.
    ///
    /// ```
    /// use nestling_hub::StoreAddress;
    ///
    /// assert!(StoreAddress::is_address("https://models.example/small.nest"));
    /// assert!(!StoreAddress::is_address("models/small.nest"));
    /// ```
    pub fn is_address(text: &str) -> bool {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        matches!(scheme.as_deref(), Some("http" | "https"))
    }

    /// Parses the address of a `.nest` file.
    ///
    /// # Errors
    /// Returns an error for other schemes, for credentials in the address, and for other file names.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |problem: &str| {
            Err(HubError::usage(format!("`{}` {problem}", text.escape_debug()))
                .advise("name a file, such as https://models.example/small.nest"))
        };
        // Default: an address without a fragment is used as it is.
        let text = text.split('#').next().unwrap_or(text);
        let Some(uri) = absolute(text) else { return wrong("is no address of a web server") };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return wrong("contains credentials, which would be logged");
        }
        let address = Self { text: text.to_owned(), uri };
        match address.file_name().ends_with(".nest") && is_file_name(address.file_name()) {
            true => Ok(address),
            false => wrong("is not the address of a `.nest` file"),
        }
    }

    /// Returns the file name.
    pub fn file_name(&self) -> &str {
        let path = self.uri.path();
        // Default: a path without a slash is a name.
        path.rsplit_once('/').map_or(path, |(_, name)| name)
    }

    /// Returns the host, for messages.
    pub(crate) fn host(&self) -> &str {
        // Default: `absolute` refuses addresses without a host.
        self.uri.host().unwrap_or_default()
    }

    /// Returns the address of another shard, numbered from 1. A single file is its own first shard.
    pub(crate) fn shard(&self, number: u32) -> Self {
        let Some(name) = ShardName::parse(self.file_name()) else { return self.clone() };
        let path_end = self.text.find('?').unwrap_or(self.text.len());
        let (path, query) = self.text.split_at(path_end);
        // Default: `file_name` is the end of the path.
        let folder = path.strip_suffix(self.file_name()).unwrap_or(path);
        let text = format!("{folder}{}{query}", name.sibling(number));
        // Default: only the digits of the name differ, so that the address is valid too.
        absolute(&text).map_or_else(|| self.clone(), |uri| Self { text, uri })
    }

    /// Returns the path of the complete copy in a cache of stores; of the first file for a store in shards.
    pub(crate) fn copy_in(&self, stores: &Path) -> PathBuf {
        let hash = Sha256::digest(self.text.as_bytes());
        let hash: String = hash.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
        let name = self.file_name();
        if let Some(shard) = ShardName::parse(name).filter(|shard| shard.total > 1) {
            return stores.join(FOLDER).join(shard.renamed(&hash).sibling(shard.number));
        }
        // Default: other names are refused by `parse`.
        let stem = name.strip_suffix(".nest").unwrap_or(name);
        stores.join(FOLDER).join(format!("{stem}-{hash}.nest"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_stores_are_taken() {
        for text in [
            "https://models.example/small.nest",
            "HTTP://127.0.0.1:8080/a/b/small-1.nest",
            "https://models.example/small.nest?token=x",
            "https://models.example/small.nest#part",
        ] {
            let address = StoreAddress::parse(text).unwrap();
            assert!(address.file_name().starts_with("small"), "{text}");
            assert!(!address.to_string().contains('#'));
        }
        for text in [
            "ftp://models.example/small.nest",
            "https:///small.nest",
            "https://models.example/",
            "https://models.example/small.gguf",
            "https://models.example/.nest",
            "https://models.example/a%2fb.nest",
            "https://user:secret@models.example/small.nest",
            "small.nest",
        ] {
            assert!(StoreAddress::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shards_have_numbers_in_their_addresses() {
        let address =
            StoreAddress::parse("https://a.example/b/m-00001-of-00003.nest?x=1/2").unwrap();
        assert_eq!(address.shard(3).to_string(), "https://a.example/b/m-00003-of-00003.nest?x=1/2");
        let copy = address.copy_in(Path::new("stores"));
        let name = copy.file_name().unwrap().to_string_lossy();
        assert!(name.starts_with("m-") && name.ends_with("-00001-of-00003.nest"), "{name}");
    }

    #[test]
    fn copies_of_different_addresses_have_different_names() {
        let copy = |text| StoreAddress::parse(text).unwrap().copy_in(Path::new("stores"));
        let (a, b) = (copy("https://a.example/x.nest"), copy("https://b.example/x.nest"));
        assert_ne!(a, b);
        assert!(a.starts_with("stores/web") && a.extension().unwrap() == "nest");
    }
}
