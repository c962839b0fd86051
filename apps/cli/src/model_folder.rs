//! Models that a server opens on request, from a folder or from the caches.

use crate::args::{ModelArgs, ResourceArgs, SeveralArgs};
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::located::LocatedModel;
use crate::opened::LoadedModel;
use crate::{freed_memory, hub, opened};
use nestling::CancelToken;
use nestling_hub::{CachedKind, Inventory, is_gguf};
use nestling_server::{ListedModel, ModelSource, OpenModelError, OpenedModel};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Lifetime of a listing, since requests may need it often.
const LISTING_TIME: Duration = Duration::from_secs(2);

const MODELS_MAX: usize = 10_000;

/// Parts of names of GGUF files that contain no text model.
const NO_MODELS: [&str; 4] = ["mmproj", "imatrix", "lora", "adapter"];

/// Models by name, with the options for opening them.
#[derive(Debug)]
pub struct ModelFolder {
    /// Folder with the models; `None` means the caches.
    folder: Option<PathBuf>,
    model: ModelArgs,
    resources: ResourceArgs,
    console: Console,
    /// Latest listing and its time.
    listing: Mutex<Option<(Instant, BTreeMap<String, Entry>)>>,
}

#[derive(Clone, Debug)]
struct Entry {
    listed: ListedModel,
    path: PathBuf,
}

impl ModelFolder {
    /// Reads the folder from the command line.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read.
    pub fn new(
        several: &SeveralArgs,
        model: &ModelArgs,
        resources: &ResourceArgs,
        console: &Console,
    ) -> Result<Self> {
        if let Some(folder) = &several.models {
            std::fs::read_dir(folder).map_err(|error| Failure::file("read", folder, &error))?;
        }
        // Opening and closing models prints nothing, since other requests are running.
        let console = Console { quiet: console.verbose == 0, ..console.clone() };
        Ok(Self {
            folder: several.models.clone(),
            model: model.clone(),
            resources: resources.clone(),
            console,
            listing: Mutex::new(None),
        })
    }

    fn entries(&self) -> BTreeMap<String, Entry> {
        let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        match &*listing {
            Some((made, entries)) if made.elapsed() < LISTING_TIME => entries.clone(),
            _ => {
                let mut entries = BTreeMap::new();
                for (name, path) in match &self.folder {
                    Some(folder) => of_folder(folder),
                    None => of_caches(),
                } {
                    add(&mut entries, name, path);
                }
                *listing = Some((Instant::now(), entries.clone()));
                entries
            }
        }
    }
}

impl ModelSource for ModelFolder {
    fn list(&self) -> Vec<ListedModel> {
        self.entries().into_values().map(|entry| entry.listed).collect()
    }

    fn open(
        &self,
        name: &str,
        room: Option<u64>,
        cancel: &CancelToken,
    ) -> std::result::Result<OpenedModel, OpenModelError> {
        let entry = self.entries().remove(name);
        let entry = entry.ok_or_else(|| OpenModelError {
            message: "the model no longer exists".into(),
            lacks_memory: false,
        })?;
        let memory = room.map(ByteSize).or(self.resources.memory);
        let resources = ResourceArgs { memory, ..self.resources.clone() };
        let located = LocatedModel::at(entry.path.clone());
        let interrupt = Interrupt::by(cancel);
        let opened =
            opened::open_at(located, &self.model, &resources, None, &self.console, &interrupt);
        let opened = opened.map_err(|failure| {
            self.console.warn(format_args!("{name} was not opened: {failure}"));
            not_opened(failure, &entry.path)
        })?;
        let model = opened.model.clone();
        Ok(OpenedModel { model, hold: Box::new(HeldModel { opened: Some(opened) }) })
    }
}

/// A model that a server holds. Its memory returns to the system when it is closed.
struct HeldModel {
    opened: Option<LoadedModel>,
}

impl Drop for HeldModel {
    fn drop(&mut self) {
        drop(self.opened.take());
        freed_memory::give_back();
    }
}

/// Adds a model under its name, or under its file name if the name is taken.
fn add(entries: &mut BTreeMap<String, Entry>, name: String, path: PathBuf) {
    // Default: a file that was removed in the meantime is not listed.
    let Ok(data) = std::fs::metadata(&path) else { return };
    let modified = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = match entries.contains_key(&name) {
        // Default: a path without a file name cannot be a model.
        true => file.unwrap_or_default(),
        false => name,
    };
    let listed = ListedModel {
        name: name.clone(),
        bytes: bytes_of(&path, data.len()),
        created: modified.map_or(0, |since| since.as_secs()),
        format: if is_gguf(&path) { "gguf" } else { "nest" },
    };
    entries.entry(name).or_insert(Entry { listed, path });
}

/// Returns the size of a model in bytes, summed over all its parts.
fn bytes_of(path: &Path, length: u64) -> u64 {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let parts = name.as_deref().and_then(parts_of);
    let Some((start, total, ending)) = parts else { return length };
    let parts = (1..=total).map(|number| format!("{start}-{number:05}-of-{total:05}.{ending}"));
    let length = |name| std::fs::metadata(path.with_file_name(name)).map_or(0, |data| data.len());
    parts.map(length).sum()
}

/// Splits the file name of a first part into prefix, number of parts and extension.
fn parts_of(name: &str) -> Option<(&str, u32, &str)> {
    let (stem, ending) = name.rsplit_once('.')?;
    let (start, total) = stem.rsplit_once("-of-")?;
    let start = start.strip_suffix("-00001")?;
    let total = total.parse().ok().filter(|_| total.len() == 5)?;
    Some((start, total, ending))
}

/// Returns the model name of a file, or `None` unless it is a single-file model or the first part of one.
fn model_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let (stem, ending) = name.rsplit_once('.')?;
    let is_beside = || NO_MODELS.iter().any(|word| stem.to_ascii_lowercase().contains(word));
    let is_model = match ending {
        "nest" => true,
        "gguf" => !is_beside(),
        _ => false,
    };
    if !is_model || name.starts_with('.') || !path.is_file() {
        return None;
    }
    if let Some((start, _, _)) = parts_of(name) {
        return Some(start.to_owned());
    }
    let is_later_part = stem.rsplit_once("-of-").is_some_and(|(start, total)| {
        let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits(total) && start.rsplit_once('-').is_some_and(|(_, number)| digits(number))
    });
    (!is_later_part).then(|| stem.to_owned())
}

/// Returns the models of a folder. A store precedes a GGUF file of the same name.
fn of_folder(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let named = paths.filter_map(|path| Some((model_name(&path)?, path)));
    let mut named: Vec<_> = named.take(MODELS_MAX).collect();
    named.sort_by_key(|(name, path)| (name.clone(), is_gguf(path), path.clone()));
    named
}

fn of_caches() -> Vec<(String, PathBuf)> {
    // Default: an empty list without a cache.
    let inventory = hub::caches().map(|caches| Inventory::of(&caches)).unwrap_or_default();
    let mut found = Vec::new();
    for model in inventory.models {
        match model.kind {
            CachedKind::Store | CachedKind::Converted
                if model.damage.is_none() && !model.is_outdated =>
            {
                found.push((model.name, model.path));
            }
            CachedKind::Download => {
                for commit in &model.commits {
                    let files = of_folder(&model.path.join("snapshots").join(commit));
                    let files = files.into_iter().filter(|(_, path)| is_gguf(path));
                    let name = |stem: String| format!("{}:{stem}", model.name);
                    found.extend(files.map(|(stem, path)| (name(stem), path)));
                }
            }
            CachedKind::InPlace => found.push((model.name, model.path)),
            _ => {}
        }
    }
    found.sort();
    found
}

/// Describes a failure to open a model to clients, without the folder that the model is in.
pub fn not_opened(failure: Failure, path: &Path) -> OpenModelError {
    let folder = path.parent().map(|folder| folder.join("").display().to_string());
    let message = match folder.filter(|folder| !folder.is_empty()) {
        Some(folder) => failure.message.replace(&folder, ""),
        None => failure.message,
    };
    OpenModelError { message, lacks_memory: failure.lacks_memory }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_models_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "a.nest",
            "a.gguf",
            "b-00001-of-00002.gguf",
            "b-00002-of-00002.gguf",
            "mmproj-b.gguf",
            "notes.txt",
            ".hidden.nest",
            "c.nest.partial",
        ] {
            std::fs::write(folder.path().join(name), "GGUF").unwrap();
        }
        let mut entries = BTreeMap::new();
        for (name, path) in of_folder(folder.path()) {
            add(&mut entries, name, path);
        }
        let names: Vec<&str> = entries.keys().map(String::as_str).collect();
        // The second of two models with the same name is listed under its file name.
        assert_eq!(names.len(), 3, "{names:?}");
        assert!(entries.contains_key("a") && entries.contains_key("b"), "{names:?}");
        assert_eq!(entries["b"].listed.bytes, 8);
        assert_eq!(model_name(Path::new("/nowhere/a.nest")), None);
    }
}
