//! Downloads the remaining sections of a partial store.

use crate::choice::{Choice, StoreFiles};
use crate::download::Hub;
use crate::error::{HubError, Result};
use crate::observer::Observer;
use crate::options::HubOptions;
use crate::origin::Origin;
use crate::remote_store;
use crate::repository::Reference;
use crate::sections::{Sections, sections_of};
use crate::web_store::WebStore;
use nestling_formats::Level;
use std::path::{Path, PathBuf};

/// Number of sections before and after an upgrade.
#[derive(Debug)]
pub struct SectionCounts {
    /// Number of sections before the upgrade.
    pub sections_before: usize,
    /// Number of sections after the upgrade.
    pub sections_now: usize,
    /// Path of the store, which changes when a copy becomes complete.
    pub path: PathBuf,
    /// Highest level that is complete.
    pub level: Option<Level>,
}

/// Downloads the missing sections of a store up to a level, from its recorded origin or from `reference`.
///
/// # Errors
/// Returns an error if the origin is unknown, or if the sections cannot be downloaded and checked.
pub fn upgrade(
    path: &Path,
    reference: Option<&Reference>,
    level: Option<Level>,
    options: &HubOptions,
    observer: &dyn Observer,
) -> Result<SectionCounts> {
    if options.offline {
        return Err(HubError::new("an upgrade needs the network, which is off")
            .advise("leave out --offline (and HF_HUB_OFFLINE)"));
    }
    if WebStore::is_copy(path) {
        return fetch_copy(path, level, options, observer);
    }
    let reference = match reference {
        Some(reference) => reference.clone(),
        None => remembered(path)?,
    };
    let cache = reference.repository.cache(options.downloads.clone());
    let hub = Hub::new(&reference.repository, &cache, options);
    let listing = hub.listing().map_err(|trouble| hub.explain(trouble))?;
    let files = match Choice::of(&listing, &reference, options.room)? {
        Choice::Store(files) => files,
        _ => {
            return Err(HubError::new(format!("{reference} holds no store"))
                .advise("name the repository that the store came from with -hf OWNER/REPO"));
        }
    };
    let commit = listing.commit.as_str();
    let file = files.first().to_owned();
    let upgraded = fetch(&hub, commit, files, path, level, observer)?;
    let repository = reference.repository.id.clone();
    Origin { repository, commit: commit.into(), file }.remember(path)?;
    Ok(upgraded)
}

fn fetch(
    hub: &Hub<'_>,
    commit: &str,
    files: StoreFiles,
    path: &Path,
    level: Option<Level>,
    observer: &dyn Observer,
) -> Result<SectionCounts> {
    let (storage, source) = remote_store::open(hub, commit, files)?;
    let sections = Sections { hub, storage: &storage, source: &source, path };
    let sections_before = sections.present()?;
    let wanted = sections_of(&source, level)?;
    if wanted > sections_before {
        sections.announce(wanted, observer)?;
        sections.bring(wanted, observer)?;
    }
    let sections_now = wanted.max(sections_before);
    let level = source.index().complete_level(sections_now);
    Ok(SectionCounts { sections_before, sections_now, path: path.to_owned(), level })
}

/// Fetches sections into a copy that is read by ranges.
fn fetch_copy(
    path: &Path,
    level: Option<Level>,
    options: &HubOptions,
    observer: &dyn Observer,
) -> Result<SectionCounts> {
    let copy = WebStore::open(path, &options.access())?;
    let sections_before = copy.sections_present();
    copy.bring(copy.sections_for(level)?, observer, &|| false)?;
    let sections_now = copy.sections_present();
    let levels = copy.section_levels();
    // Default: without a complete section, no level is complete.
    let level = sections_now.checked_sub(1).and_then(|last| levels.get(last).copied().flatten());
    // Default: the copy, until it is complete.
    let path = copy.finish()?.unwrap_or_else(|| path.to_owned());
    Ok(SectionCounts { sections_before, sections_now, path, level })
}

fn remembered(path: &Path) -> Result<Reference> {
    let origin = Origin::of(path).ok_or_else(|| {
        HubError::usage(format!("the source of {} is unknown", path.display()))
            .advise("name the repository that holds it with -hf OWNER/REPO[:FILE.nest]")
    })?;
    Reference::parse(&format!("{}:{}", origin.repository, origin.file), &origin.commit)
}
