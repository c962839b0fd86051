//! Entry points for fuzz targets, compiled only for them.

use crate::client::{origin, target};
use crate::listing::{Listing, read_shard_names};
use crate::names::{is_file_name, is_hash, is_path};

/// Parses any bytes as a listing.
///
/// # Panics
/// Panics if an accepted name is unsafe.
pub fn read_listing(bytes: &[u8]) {
    // Default: an invalid listing is refused.
    let Ok(listing) = Listing::read(bytes) else { return };
    assert!(listing.commit.len() == 40 && is_hash(&listing.commit));
    for file in listing.files() {
        assert!(is_path(&file.name) && is_hash(&file.blob), "{file:?}");
        assert!(!file.name.contains("..") || !file.name.split('/').any(|part| part == ".."));
        assert_eq!(listing.find(&file.name).map(|found| found.name).as_ref(), Some(&file.name));
    }
    let _ = (listing.is_checkpoint(), listing.description());
}

/// Parses any bytes as the index of a sharded checkpoint.
///
/// # Panics
/// Panics if an accepted name is unsafe.
pub fn read_index(bytes: &[u8]) {
    if let Ok(names) = read_shard_names(bytes) {
        assert!(names.iter().all(|name| is_file_name(name)), "{names:?}");
    }
}

/// Resolves any redirect from any address.
///
/// # Panics
/// Panics if the target is not an http or https address with a host.
pub fn follow(from: &str, location: &str) {
    // Default: an invalid address is never requested.
    let Ok(from) = from.parse() else { return };
    // Default: an invalid redirect is refused.
    let Some(next) = target(&from, location) else { return };
    assert!(matches!(next.scheme_str(), Some("http" | "https")), "{next}");
    assert!(next.host().is_some_and(|host| !host.is_empty()), "{next}");
    // The token is sent only to the host that it is meant for.
    if origin(&from) == origin(&next) {
        let name = |uri: &ureq::http::Uri| uri.host().map(str::to_ascii_lowercase);
        assert_eq!(name(&from), name(&next));
        assert_eq!(from.scheme(), next.scheme());
    }
}
