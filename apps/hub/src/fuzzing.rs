//! What the fuzz targets reach of this crate without a server; it is built for them alone.

use crate::client::{origin, target};
use crate::listing::{Listing, read_shard_names};
use crate::names::{is_file_name, is_hash, is_path};

/// Reads any bytes as a listing.
///
/// # Panics
/// If what came through would not be a safe name.
pub fn read_listing(bytes: &[u8]) {
    // Default: what is no listing is refused.
    let Ok(listing) = Listing::read(bytes) else { return };
    assert!(listing.commit.len() == 40 && is_hash(&listing.commit));
    for file in listing.files() {
        assert!(is_path(&file.name) && is_hash(&file.blob), "{file:?}");
        assert!(!file.name.contains("..") || !file.name.split('/').any(|part| part == ".."));
        assert_eq!(listing.find(&file.name).map(|found| found.name).as_ref(), Some(&file.name));
    }
    let _ = (listing.is_checkpoint(), listing.description());
}

/// Reads any bytes as the index of a checkpoint in several files.
///
/// # Panics
/// If what came through would not be a safe name.
pub fn read_index(bytes: &[u8]) {
    if let Ok(names) = read_shard_names(bytes) {
        assert!(names.iter().all(|name| is_file_name(name)), "{names:?}");
    }
}

/// Follows a redirect of any words from an address of any words.
///
/// # Panics
/// If it leads elsewhere than to the web.
pub fn follow(from: &str, location: &str) {
    // Default: what is no address is asked of nobody.
    let Ok(from) = from.parse() else { return };
    // Default: what leads nowhere is refused.
    let Some(next) = target(&from, location) else { return };
    assert!(matches!(next.scheme_str(), Some("http" | "https")), "{next}");
    assert!(next.host().is_some_and(|host| !host.is_empty()), "{next}");
    // Who is shown the token is whom the request goes to.
    if origin(&from) == origin(&next) {
        let name = |uri: &ureq::http::Uri| uri.host().map(str::to_ascii_lowercase);
        assert_eq!(name(&from), name(&next));
        assert_eq!(from.scheme(), next.scheme());
    }
}
