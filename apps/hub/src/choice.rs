//! Choice of the model to use among the contents of a repository.

use crate::error::{HubError, Result};
use crate::gguf::{self, GgufFiles};
use crate::listing::{LISTED_MAX, Listing, RemoteFile};
use crate::repository::Reference;
use crate::shard_names::ShardName;
use nestling_formats::store::StoreError;

/// The chosen model of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Checkpoint in the transformers layout.
    Checkpoint,
    /// Model in GGUF files.
    Gguf(GgufFiles),
    /// Nestling store.
    Store(StoreFiles),
}

/// A store of a repository: a single file, or its shards in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFiles {
    pub shards: Vec<RemoteFile>,
}

impl StoreFiles {
    pub fn first(&self) -> &str {
        self.shards.first().map_or("", |shard| &shard.name)
    }
}

impl Choice {
    /// Chooses a model. Without a requested name, a store is preferred over a checkpoint, and a checkpoint
    /// over GGUF files. `room` is the available memory in bytes.
    pub fn of(listing: &Listing, reference: &Reference, room: u64) -> Result<Self> {
        let wanted = reference.wanted.as_deref();
        let stores = stores(listing);
        let models = gguf::models(listing.files());
        match wanted {
            Some(name) if name.ends_with(".nest") => {
                let store = stores.into_iter().find(|store| store.is(name));
                store.map(Self::Store).ok_or_else(|| no_store(name, listing))
            }
            Some(name) if models.is_empty() => Err(nothing_called(reference, name, listing)),
            Some(_) => gguf::choose(models, wanted, room).map(Self::Gguf),
            None if stores.len() == 1 => Ok(Self::Store(stores[0].clone())),
            None if stores.len() > 1 => Err(several(&stores)),
            None if listing.is_checkpoint() || models.is_empty() => {
                has_weights(listing).map(|()| Self::Checkpoint)
            }
            None => gguf::choose(models, None, room).map(Self::Gguf),
        }
    }
}

impl StoreFiles {
    /// Returns an error that names the first shard that the repository lacks.
    pub fn check_complete(&self) -> Result<()> {
        let Some(name) = ShardName::parse(self.first()) else { return Ok(()) };
        // The number of shards is bounded by their names.
        let shard = self.shards.len() as u32 + 1;
        if shard > name.total {
            return Ok(());
        }
        let (file, shards) = (name.sibling(shard), name.total);
        let reason = "the repository has no such file".into();
        Err(StoreError::Shard { file, shard, shards, reason }.into())
    }

    fn is(&self, name: &str) -> bool {
        self.shards.iter().any(|shard| shard.name == name)
    }
}

/// Returns the stores of a repository: single files, and complete sets of shards.
fn stores(listing: &Listing) -> Vec<StoreFiles> {
    let firsts = listing.files().iter().filter(|file| file.name.ends_with(".nest"));
    let mut found = Vec::new();
    for first in firsts {
        match ShardName::parse(&first.name) {
            None => found.push(StoreFiles { shards: vec![first.clone()] }),
            Some(name) if name.number == 1 => {
                let shard = |number| listing.find(&name.sibling(number));
                let shards: Vec<RemoteFile> = (1..=name.total).map_while(shard).collect();
                found.push(StoreFiles { shards });
            }
            Some(_) => {}
        }
    }
    found
}

fn several(stores: &[StoreFiles]) -> HubError {
    HubError::new(format!("the repository holds {} stores", stores.len()))
        .advise(format!("name one after a colon: {}", listed(stores)))
}

fn listed(stores: &[StoreFiles]) -> String {
    let mut names: Vec<String> =
        stores.iter().take(LISTED_MAX).map(|store| store.first().to_owned()).collect();
    if stores.len() > LISTED_MAX {
        names.push(format!("{} more", stores.len() - LISTED_MAX));
    }
    names.join(", ")
}

fn no_store(name: &str, listing: &Listing) -> HubError {
    let stores = stores(listing);
    let failure = HubError::new(format!("the repository has no store `{name}`"));
    match stores.is_empty() {
        true => failure.advise("leave out what follows the colon"),
        false => failure.advise(format!("it has {}", listed(&stores))),
    }
}

fn nothing_called(reference: &Reference, name: &str, listing: &Listing) -> HubError {
    let repository = &reference.repository;
    let failure = HubError::new(format!("{repository} has no GGUF files, so no `{name}`"));
    match listing.is_checkpoint() || !stores(listing).is_empty() {
        true => failure.advise("leave out what follows the colon and choose bits with --level"),
        false => failure.advise("check the spelling of owner/repo"),
    }
}

/// Returns an error that explains the unsupported format if there are no usable weights.
fn has_weights(listing: &Listing) -> Result<()> {
    if listing.is_checkpoint() {
        return Ok(());
    }
    let ending = |endings: &[&str]| {
        let has = |name: &str| endings.iter().any(|ending| name.ends_with(ending));
        listing.files().iter().find(|file| has(&file.name)).map(|file| file.name.clone())
    };
    let message = match ending(&[".bin", ".pt", ".pth", ".ckpt"]) {
        Some(name) => format!("the repository's weights are in {name}, which is not read"),
        None if ending(&[".safetensors"]).is_some() => {
            "the repository's safetensors files are not a model in the transformers layout".into()
        }
        None => "the repository holds no model".to_owned(),
    };
    Err(HubError::new(message).advise(
        "name one with safetensors in the transformers layout, with GGUF files, or with a .nest store",
    ))
}
