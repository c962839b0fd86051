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
use nestling_formats::Level;
use std::path::Path;

/// Number of sections before and after an upgrade.
#[derive(Debug)]
pub struct SectionCounts {
    /// Number of sections before the upgrade.
    pub sections_before: usize,
    /// Number of sections after the upgrade.
    pub sections_now: usize,
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
    let reference = match reference {
        Some(reference) => reference.clone(),
        None => remembered(path)?,
    };
    if options.offline {
        return Err(HubError::new("an upgrade needs the network, which is off")
            .advise("leave out --offline (and HF_HUB_OFFLINE)"));
    }
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
    Ok(SectionCounts { sections_before, sections_now: wanted.max(sections_before) })
}

fn remembered(path: &Path) -> Result<Reference> {
    let origin = Origin::of(path).ok_or_else(|| {
        HubError::usage(format!("the source of {} is unknown", path.display()))
            .advise("name the repository that holds it with -hf OWNER/REPO[:FILE.nest]")
    })?;
    Reference::parse(&format!("{}:{}", origin.repository, origin.file), &origin.commit)
}
