//! `nestling upgrade`: downloads the missing sections of a store.

use crate::args::{CalibrationArgs, UpgradeArgs};
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::failure::{Failure, Result};
use crate::hub;
use crate::stores::open_store;
use nestling_hub::{HubOptions, Reference};
use std::path::PathBuf;

pub fn upgrade(args: &UpgradeArgs, console: &Console) -> Result<()> {
    let mut options = hub::options(&args.hub, &CalibrationArgs::default())?;
    options.by_ranges = true;
    let parse = |repo: &String| Reference::parse(repo, &args.hub.hf_revision);
    let reference = args.hub.hf_repo.as_ref().map(parse).transpose()?;
    let path = path(args, reference.as_ref(), &options)?;
    let level = args.level.map(|level| level.0);
    let done = nestling_hub::upgrade(&path, reference.as_ref(), level, &options, console)?;
    let store = open_store(&done.path)?;
    let sections = store.index().sections();
    let last = done.sections_now.checked_sub(1).and_then(|last| sections.get(last));
    // Default: no section has no bytes.
    let bytes = ByteSize(last.map_or(0, |last| last.end));
    // Default: without a complete section, the level is that of the store.
    let level = done.level.unwrap_or_else(|| store.level());
    let what = match done.sections_now > done.sections_before {
        true => "now has",
        false => "has",
    };
    write_out(&format!("{} {what} level {level}, {bytes}\n", done.path.display()))
}

/// Returns the named store, or the store downloaded from the repository.
fn path(
    args: &UpgradeArgs,
    reference: Option<&Reference>,
    options: &HubOptions,
) -> Result<PathBuf> {
    if let Some(path) = &args.store {
        return Ok(path.clone());
    }
    let Some(reference) = reference else {
        return Err(Failure::usage("nothing to upgrade was named")
            .advise("name a store, or the repository that it came from with -hf OWNER/REPO"));
    };
    nestling_hub::downloaded(reference, options).ok_or_else(|| {
        Failure::new(format!("no store of {reference} is here"))
            .advise(format!("download one with `nestling run -hf {reference} --level 2`"))
    })
}
