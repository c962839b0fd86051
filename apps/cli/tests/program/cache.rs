//! Tests of `list`, `pull`, `rm` and `gc` with a local replacement for the Hub.

use super::{ProcessOutput, crate_path, program, scratch};
use nestling_hub::Uses;
use nestling_testkit::hub_server::Standin;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const COMMIT: &str = "77ac0777bcd18fa416d9da3bd8f70d33ebb85d39";
const REPOSITORY: &str = "Nobody/Tiny-Cache";
const FILE: &str = "Tiny-Q4_0.gguf";

fn gguf() -> PathBuf {
    crate_path("../../engine/runtime/tests/data/gguf/qwen3-moe.gguf")
}

struct HubFixture {
    home: tempfile::TempDir,
    server: Standin,
}

impl HubFixture {
    fn new() -> Self {
        let files = BTreeMap::from([(FILE.to_owned(), std::fs::read(gguf()).unwrap())]);
        let home = tempfile::tempdir_in(scratch()).unwrap();
        Self { home, server: Standin::start(REPOSITORY, COMMIT, files) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.home.path().join(path)
    }

    fn run(&self, arguments: &[&str]) -> ProcessOutput {
        let mut command = program();
        command.env("HF_ENDPOINT", &self.server.address);
        command.env("HF_HOME", self.path("hf")).env("NESTLING_CACHE", self.path("nestling"));
        command.args(arguments).output().unwrap().into()
    }

    fn list(&self) -> Value {
        serde_json::from_str(&self.run(&["list", "--json"]).ok()).unwrap()
    }

    fn models(&self) -> Vec<Value> {
        self.list()["models"].as_array().unwrap().clone()
    }

    fn leftovers(&self) -> Vec<String> {
        let list = self.list();
        let left = list["leftovers"].as_array().unwrap();
        left.iter().map(|left| left["why"].as_str().unwrap().to_owned()).collect()
    }
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Returns the number of bytes from a line such as `1.23 kB are free now`.
fn freed(text: &str) -> &str {
    text.lines().last().unwrap().strip_suffix(" are free now").unwrap()
}

#[test]
fn a_model_is_fetched_listed_used_and_removed() {
    let place = HubFixture::new();
    assert!(place.run(&["list"]).ok().contains("nothing is cached; `nestling pull"));
    let pulled = place.run(&["pull", REPOSITORY]);
    assert!(pulled.err.contains("runs in place"), "{}", pulled.err);
    let path = pulled.ok();
    assert!(path.trim_end().ends_with(&format!("snapshots/{COMMIT}/{FILE}")), "{path}");

    let models = place.models();
    assert_eq!(models.len(), 1);
    let size = std::fs::metadata(gguf()).unwrap().len();
    assert_eq!((&models[0]["name"], &models[0]["kind"]), (&REPOSITORY.into(), &"download".into()));
    // The size includes a small file with the commit.
    assert!((size..size + 100).contains(&models[0]["bytes"].as_u64().unwrap()), "{}", models[0]);
    assert_eq!(models[0]["commits"][0], COMMIT);
    assert!(models[0]["last_used"].is_null() && models[0]["is_open"] == false);

    // A run records the use of the model, and a conversion makes a store of it.
    let run = ["run", "-p", "x", "-n", "1", "--offline", "-hf", REPOSITORY];
    place.run(&run).ok();
    assert!(place.models()[0]["last_used"].as_u64().unwrap() > 1_700_000_000);
    place.run(&["pull", REPOSITORY, "--convert"]).ok();
    let models = place.models();
    let store = models.iter().find(|model| model["kind"] == "converted").unwrap();
    assert_eq!((&store["name"], &store["level"]), (&REPOSITORY.into(), &4.into()));
    assert_eq!(store["made_of"]["commit"], COMMIT);
    assert_eq!(store["made_of"]["is_here"], true);
    let text = place.run(&["list"]).ok();
    for words in ["download", "made of the download 77ac0777", "min ago", "in the caches"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(place.leftovers().is_empty());

    // Standard input is not a terminal, so confirmation requires `--yes`.
    place.run(&["rm", REPOSITORY]).fails(2, "confirmation needs a terminal", "--yes");
    place.run(&["rm", "Nobody/Nothing"]).fails(1, "no model called `Nobody/Nothing`", "list");
    assert_eq!(place.models().len(), 2);
    // First the store by its path only, then everything with the model's name.
    let name = store["path"].as_str().unwrap();
    let removed = place.run(&["rm", name, "--yes"]);
    assert!(removed.err.contains("converted Nobody/Tiny-Cache"), "{}", removed.err);
    assert_ne!(freed(&removed.ok()), "0 B");
    assert!(!Path::new(name).exists());
    assert_eq!(place.models().len(), 1);
    place.run(&["rm", REPOSITORY, "-y"]).ok();
    assert!(place.models().is_empty());
    assert!(!place.path("hf/hub/models--Nobody--Tiny-Cache").exists());
    assert!(!place.path("nestling/headers/Nobody--Tiny-Cache").exists());
}

#[test]
fn what_is_in_use_stays() {
    let place = HubFixture::new();
    place.run(&["pull", REPOSITORY]).ok();
    let file = place.path(&format!("hf/hub/models--Nobody--Tiny-Cache/snapshots/{COMMIT}/{FILE}"));
    let uses = Uses::new(place.path("nestling/uses"));
    let open = uses.begin(&file, None).unwrap().unwrap();
    assert_eq!(place.models()[0]["is_open"], true);
    place.run(&["rm", REPOSITORY, "--yes"]).fails(1, "in use: a process has it open", "end that");
    assert!(file.exists());
    drop(open);
    // The lock of a download.
    let locks = place.path("hf/hub/.locks/models--Nobody--Tiny-Cache");
    let lock = std::fs::read_dir(&locks).unwrap().next().unwrap().unwrap().path();
    let held = std::fs::File::options().append(true).open(lock).unwrap();
    held.lock().unwrap();
    place.run(&["rm", REPOSITORY, "--yes"]).fails(1, "downloads or converts it", "wait for it");
    assert!(file.exists());
    drop(held);
    place.run(&["rm", REPOSITORY, "--yes"]).ok();
    assert!(!file.exists());
}

#[test]
fn a_file_in_place_is_listed_and_never_removed() {
    let place = HubFixture::new();
    let file = place.path("models/own.gguf");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::copy(gguf(), &file).unwrap();
    place.run(&["run", "-m", file.to_str().unwrap(), "-p", "x", "-n", "1"]).ok();
    let model = place.models().remove(0);
    assert_eq!((&model["kind"], &model["name"]), (&"in place".into(), &"own.gguf".into()));
    assert!(model["beside_bytes"].as_u64().unwrap() > 0, "{model}");
    place.run(&["rm", "own.gguf", "--yes"]).ok();
    assert!(file.exists());
    assert!(place.models().is_empty());
    // Saved checksums of a deleted file are leftovers.
    place.run(&["run", "-m", file.to_str().unwrap(), "-p", "x", "-n", "1"]).ok();
    std::fs::remove_file(&file).unwrap();
    assert!(place.leftovers().iter().all(|why| why == "checksums of a file that is gone"));
    assert_eq!(place.leftovers().len(), 2);
    place.run(&["gc"]).ok();
    assert!(place.list()["leftovers"].as_array().unwrap().is_empty());
}

#[test]
fn what_nothing_needs_is_removed_and_nothing_else() {
    let place = HubFixture::new();
    place.run(&["pull", REPOSITORY]).ok();
    let blobs = place.path("hf/hub/models--Nobody--Tiny-Cache/blobs");
    let part = blobs.join(format!("{}.part", "a".repeat(64)));
    write(&part, "half");
    // An unfinished download of another program.
    let foreign = blobs.join(format!("{}.incomplete", "b".repeat(64)));
    write(&foreign, "half");
    let partial = place.path("nestling/stores/gguf/a-b-q1-none.nest.partial");
    write(&partial, "half");
    write(&partial.with_extension("journal"), "half");
    let staged = place.path(&format!("nestling/stores/Nobody--X/{COMMIT}/.x.nest.download"));
    write(&staged.join("x.nest"), "half");
    let mut found = place.leftovers();
    found.sort();
    let conversion = "unfinished conversion";
    let download = "unfinished download";
    assert_eq!(found, [conversion, conversion, download, download]);

    let dry = place.run(&["gc", "--dry-run"]);
    assert!(dry.err.contains("unfinished download: 4 B"), "{}", dry.err);
    assert!(dry.ok().contains("would be free"));
    assert!(part.exists() && partial.exists() && staged.exists());

    // A running conversion keeps its files.
    let lock = place.path("nestling/locks/gguf--a-b-q1-none.nest.lock");
    write(&lock, "");
    let held = std::fs::File::options().append(true).open(&lock).unwrap();
    held.lock().unwrap();
    place.run(&["gc"]).ok();
    assert!(!part.exists() && partial.exists() && !staged.exists());
    drop(held);
    place.run(&["gc"]).ok();
    assert!(!partial.exists() && !partial.with_extension("journal").exists());
    assert!(foreign.exists());
    assert_eq!(place.models().len(), 1);
    let run = ["run", "-p", "x", "-n", "1", "--offline", "-hf", REPOSITORY];
    place.run(&run).ok();
}

#[test]
fn stores_that_no_command_finds_go_where_their_source_is_here() {
    let place = HubFixture::new();
    let file = place.path("models/own.gguf");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::copy(gguf(), &file).unwrap();
    let path = file.to_str().unwrap();
    // A run with an explicit calibration converts the file into a store.
    let run = ["run", "-m", path, "-p", "x", "-n", "1", "--calibration", "none"];
    place.run(&run).ok();
    let store = place.models().into_iter().find(|model| model["kind"] == "converted").unwrap();
    assert_eq!(store["made_of"]["is_here"], true);
    assert_eq!(store["is_outdated"], false);
    // A store whose source is gone cannot be replaced, so it is kept.
    let aside = file.with_extension("aside");
    std::fs::rename(&file, &aside).unwrap();
    place.run(&["gc"]).ok();
    let stored = PathBuf::from(store["path"].as_str().unwrap());
    assert!(stored.exists());
    // A store of an earlier version of its source is never found again.
    let mut bytes = std::fs::read(&aside).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(place.leftovers(), ["outdated store", "outdated store"]);
    place.run(&["gc"]).ok();
    assert!(!stored.exists());
}

#[cfg(unix)]
#[test]
fn nothing_behind_a_linked_folder_is_listed_or_removed() {
    use std::os::unix::fs::symlink;
    let place = HubFixture::new();
    place.run(&["pull", REPOSITORY]).ok();
    let stores = place.path("nestling/stores");
    let outside = |name: &str| place.path("outside").join(name);
    // A folder of stores, one of a revision, an unfinished download, and a repository, each behind a link.
    write(&outside("link/m.nest"), "a store");
    write(&outside("link/m.nest.partial"), "a conversion");
    write(&outside(&format!("revision/{COMMIT}/r.nest")), "a store");
    write(&outside("commit/c.nest"), "a store");
    write(&outside("commit/c.nest.journal"), "a conversion");
    write(&outside("staged/s.nest"), "a download");
    write(&outside(&format!("repository/snapshots/{COMMIT}/x.gguf")), "GGUF");
    write(&outside("repository/blobs/b.part"), "a download");
    write(&outside("locks/a.lock"), "");
    std::fs::create_dir_all(stores.join("own--x")).unwrap();
    let hub = place.path("hf/hub");
    for (target, link) in [
        ("link", stores.join("link--dir")),
        ("revision", stores.join("revision--dir")),
        ("commit", stores.join("own--x").join(COMMIT)),
        ("staged", stores.join("own--x/.s.nest.download")),
        ("repository", hub.join("models--Link--Repository")),
    ] {
        symlink(outside(target), link).unwrap();
    }
    let files = || {
        let mut found = Vec::new();
        let mut folders = vec![place.path("outside")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found.sort();
        found
    };
    let before = files();
    assert_eq!(place.models().len(), 1, "{:?}", place.models());
    assert!(place.leftovers().is_empty(), "{:?}", place.leftovers());
    for name in ["link/dir", "revision/dir", "own/x", "m", "Link/Repository"] {
        place.run(&["rm", "-y", name]).fails(1, "no model called", "list");
    }
    place.run(&["gc"]).ok();
    place.run(&["rm", "-y", REPOSITORY]).ok();
    assert_eq!(files(), before);
    assert!(stores.join("link--dir").is_symlink());
}

#[cfg(unix)]
#[test]
fn a_cache_that_is_a_link_itself_is_used_as_before() {
    let place = HubFixture::new();
    std::fs::create_dir_all(place.path("disk/hub")).unwrap();
    std::fs::create_dir_all(place.path("disk/stores")).unwrap();
    std::fs::create_dir_all(place.path("hf")).unwrap();
    std::fs::create_dir_all(place.path("nestling")).unwrap();
    std::os::unix::fs::symlink(place.path("disk/hub"), place.path("hf/hub")).unwrap();
    std::os::unix::fs::symlink(place.path("disk/stores"), place.path("nestling/stores")).unwrap();
    place.run(&["pull", REPOSITORY, "--convert"]).ok();
    assert_eq!(place.models().len(), 2);
    place.run(&["rm", "-y", REPOSITORY]).ok();
    assert!(place.models().is_empty());
}

#[cfg(unix)]
#[test]
fn pipes_and_links_in_place_of_records_and_locks_hold_nobody_up() {
    let place = HubFixture::new();
    place.run(&["pull", REPOSITORY, "--convert"]).ok();
    let pipe = |path: &Path| {
        let _ = std::fs::remove_file(path);
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    std::fs::create_dir_all(place.path("nestling/uses")).unwrap();
    pipe(&place.path("nestling/uses/0123.use"));
    std::os::unix::fs::symlink(place.path("made"), place.path("nestling/uses/4567.use")).unwrap();
    assert_eq!(place.models().len(), 2);
    place.run(&["gc"]).ok();
    let locks = place.path("nestling/locks");
    let lock = std::fs::read_dir(locks).unwrap().next().unwrap().unwrap().path();
    let refused = || {
        let ran = place.run(&["rm", "-y", REPOSITORY]);
        assert!(ran.code == Some(1) && ran.err.contains("not a regular file"), "{}", ran.err);
    };
    pipe(&lock);
    refused();
    std::fs::remove_file(&lock).unwrap();
    write(&place.path("foreign"), "its text");
    std::os::unix::fs::symlink(place.path("foreign"), &lock).unwrap();
    refused();
    std::fs::remove_file(&lock).unwrap();
    place.run(&["rm", "-y", REPOSITORY]).ok();
    assert!(!place.path("made").exists());
    assert_eq!(std::fs::read_to_string(place.path("foreign")).unwrap(), "its text");
}
