//! Tests of partial stores in repositories: the first sections, and later upgrades.

use super::{ProcessOutput, program, store};
use nestling_testkit::hub_server::Standin;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const COMMIT: &str = "5e30e777bcd18fa416d9da3bd8f70d33ebb85d39";
const REPOSITORY: &str = "Nobody/Stores";
const FILE: &str = "nested/tiny.nest";

/// Serves the store from a folder of the repository.
fn server() -> Standin {
    let bytes = std::fs::read(store()).unwrap();
    let files = [(FILE.to_owned(), bytes), ("README.md".into(), b"# A store".to_vec())];
    Standin::start(REPOSITORY, COMMIT, BTreeMap::from(files))
}

/// Returns the level and the end offset of each section of the store.
fn ends() -> Vec<(u64, u64)> {
    let store = nestling::formats::store::Store::open(store()).unwrap();
    let sections = store.index().sections().iter().enumerate();
    let level = |count| u64::from(store.index().complete_level(count).unwrap().bits());
    sections.map(|(number, section)| (level(number + 1), section.end)).collect()
}

fn command(server: &Standin, home: &Path, arguments: &[&str]) -> ProcessOutput {
    let mut command = program();
    command.env("HF_ENDPOINT", &server.address);
    command.env("HF_HOME", home.join("hf")).env("NESTLING_CACHE", home.join("nestling"));
    command.args(arguments).output().unwrap().into()
}

fn run_at(server: &Standin, home: &Path, more: &[&str]) -> ProcessOutput {
    let fixed = ["run", "-hf", REPOSITORY, "-p", "hello", "-n", "8", "--temp", "0"];
    command(server, home, &[&fixed[..], more].concat())
}

/// Downloads the sections of a level.
fn pull_at(server: &Standin, home: &Path, level: &str) -> ProcessOutput {
    command(server, home, &["pull", "-hf", REPOSITORY, "--level", level])
}

fn downloaded(home: &Path) -> PathBuf {
    home.join("nestling/stores/Nobody--Stores").join(COMMIT).join("tiny.nest")
}

fn text_at_level(level: &str) -> String {
    let fixed = ["run", "-m", store(), "-p", "hello", "-n", "8", "--temp", "0", "--level", level];
    super::run(&fixed).ok()
}

#[test]
fn a_level_is_downloaded_alone_and_the_rest_later() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let (server, ends) = (server(), ends());
    let whole = std::fs::read(store()).unwrap();
    let first = pull_at(&server, home.path(), "2");
    assert!(first.err.contains("up to level 2"), "{}", first.err);
    first.ok();
    let path = downloaded(home.path());
    assert_eq!(std::fs::read(&path).unwrap(), whole[..ends[0].1 as usize]);
    assert!(server.served() < ends[0].1 as usize + (80 << 10));

    // Later runs need no network.
    run_at(&server, home.path(), &["--offline"]).ok();
    let again = run_at(&server, home.path(), &[]);
    assert!(again.err.contains("level 2 of the store is here"), "{}", again.err);
    assert_eq!(again.ok(), text_at_level("2"));
    server.served();

    // A higher level downloads only the missing sections, over interrupted transfers.
    server.state.lock().unwrap().cuts = vec![(FILE.into(), 700), (FILE.into(), 1)];
    assert_eq!(run_at(&server, home.path(), &["--level", "4"]).ok(), text_at_level("4"));
    assert!(server.served() < (ends[2].1 - ends[0].1) as usize + (80 << 10));
    assert_eq!(std::fs::read(&path).unwrap(), whole[..ends[2].1 as usize]);

    // The rest is downloaded from the recorded source.
    let name = path.display().to_string();
    let said = command(&server, home.path(), &["upgrade", &name]).ok();
    assert!(said.contains("now has level 8"), "{said}");
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    let said = command(&server, home.path(), &["upgrade", "-hf", REPOSITORY]).ok();
    assert!(said.contains("tiny.nest has level 8"), "{said}");
    assert_eq!(files_beside(&path), ["tiny.nest", "tiny.nest.origin.json"]);
}

fn files_beside(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn nothing_damaged_becomes_visible() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let (server, ends) = (server(), ends());
    let whole = std::fs::read(store()).unwrap();
    pull_at(&server, home.path(), "2").ok();
    let path = downloaded(home.path());
    let before = std::fs::read(&path).unwrap();
    let name = path.display().to_string();
    // The first byte of the second downloaded extent.
    let damaged = ends[1].1 as usize;
    server.state.lock().unwrap().flips = vec![(FILE.into(), damaged)];
    let refused = command(&server, home.path(), &["upgrade", &name]);
    refused.fails(1, "arrived damaged", "run the command again");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    super::run(&["verify", &name]).ok();

    // Undamaged extents are kept, and only the following ones are downloaded again.
    server.state.lock().unwrap().flips.clear();
    server.served();
    command(&server, home.path(), &["upgrade", &name]).ok();
    assert!(server.served() <= whole.len() - damaged + (80 << 10));
    assert_eq!(std::fs::read(&path).unwrap(), whole);
}

#[test]
fn where_it_came_from_must_be_known_and_right() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let (server, ends) = (server(), ends());
    let whole = std::fs::read(store()).unwrap();
    // A store that was truncated and moved by the user.
    let moved = home.path().join("moved.nest");
    std::fs::write(&moved, &whole[..ends[1].1 as usize]).unwrap();
    let name = moved.display().to_string();
    let upgrade =
        |more: &[&str]| command(&server, home.path(), &[&["upgrade", &name][..], more].concat());
    upgrade(&[]).fails(2, "is unknown", "-hf OWNER/REPO");
    upgrade(&["-hf", "Nobody/Nothing"]).fails(1, "does not exist", "spelling");
    upgrade(&["-hf", "Nobody/Stores:other.nest"]).fails(1, "`other.nest`", FILE);
    upgrade(&["-hf", REPOSITORY, "--offline"]).fails(1, "needs the network", "--offline");
    // A different store than that of the repository.
    let other = super::bundled();
    let copy = home.path().join("other.nest");
    std::fs::copy(other, &copy).unwrap();
    let copy = copy.display().to_string();
    let refused = command(&server, home.path(), &["upgrade", &copy, "-hf", REPOSITORY]);
    refused.fails(1, "is not a part of Nobody/Stores/nested/tiny.nest", "came from");
    // A level that the repository's store lacks is refused before downloading.
    assert!(upgrade(&["-hf", REPOSITORY, "--level", "6"]).ok().contains("level 6"));
    assert!(upgrade(&[]).ok().contains("now has level 8"));
    assert_eq!(std::fs::read(&moved).unwrap(), whole);
    let none = command(&server, home.path(), &["upgrade", "-hf", REPOSITORY]);
    none.fails(1, "no store of Nobody/Stores is here", "--level 2");
}

#[test]
fn a_part_of_a_store_says_how_to_get_the_rest() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let server = server();
    pull_at(&server, home.path(), "3").ok();
    let name = downloaded(home.path()).display().to_string();
    let asked = super::run(&["run", "-m", &name, "-p", "hello", "--level", "6"]);
    asked.fails(1, "level 6", "nestling upgrade");
    let shown = super::run(&["inspect", &name]).ok();
    assert!(shown.contains("level 3"), "{shown}");
}

#[test]
fn a_store_in_shards_grows_shard_by_shard() {
    use nestling::engine::convert::{ConvertOptions, convert};
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let shards = home.path().join("shards");
    std::fs::create_dir(&shards).unwrap();
    let mut options = ConvertOptions::default();
    options.shard_bytes_max = Some(100_000);
    let checkpoint = nestling::import::Checkpoint::open(super::checkpoint()).unwrap();
    let cancel = nestling::engine::cancel::CancelToken::new();
    let made = convert(&checkpoint, &shards.join("m.nest"), &options, &cancel, &mut |_| {});
    let first = made.unwrap().path;
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let whole: BTreeMap<String, Vec<u8>> = std::fs::read_dir(&shards)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (name(&path), std::fs::read(&path).unwrap()))
        .collect();
    assert!(whole.len() > 2, "{:?}", whole.keys());
    let server = Standin::start(REPOSITORY, COMMIT, whole.clone());
    let folder = home.path().join("nestling/stores/Nobody--Stores").join(COMMIT);
    let held = || nestling::formats::store::Store::open(folder.join(name(&first))).unwrap();
    for level in ["2", "3", "6"] {
        pull_at(&server, home.path(), level).ok();
        assert_eq!(held().level().bits().to_string(), level);
        let report = held().verify(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    }
    command(&server, home.path(), &["upgrade", "-hf", REPOSITORY]).ok();
    for (name, bytes) in whole {
        assert_eq!(std::fs::read(folder.join(&name)).unwrap(), bytes, "{name}");
    }
}

/// Runs the program on a store on the web.
fn run_from(address: &str, home: &Path, more: &[&str]) -> ProcessOutput {
    let mut command = program();
    command.env("NESTLING_CACHE", home.join("nestling"));
    let fixed = ["run", "-m", address, "-p", "hello", "-n", "8", "--temp", "0"];
    command.args([&fixed[..], more].concat()).output().unwrap().into()
}

#[test]
fn a_store_on_the_web_runs_by_its_address() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let (server, ends) = (server(), ends());
    let address = format!("{}/{REPOSITORY}/resolve/{COMMIT}/{FILE}", server.address);
    let first = run_from(&address, home.path(), &["--level", "2"]);
    assert!(first.err.contains("up to level 2"), "{}", first.err);
    assert_eq!(first.ok(), text_at_level("2"));
    assert!(server.served() < ends[0].1 as usize + (200 << 10));
    // What has arrived needs no network.
    let again = run_from(&address, home.path(), &["--level", "2", "--offline"]);
    assert_eq!(again.ok(), text_at_level("2"));
    assert_eq!(server.served(), 0);
    let lazy = run_from(&address, home.path(), &["--level", "4", "--lazy"]);
    assert_eq!(lazy.ok(), text_at_level("4"));
    server.served();
    let planned = command(&server, home.path(), &["plan", "-m", &address]);
    assert!(planned.err.is_empty() || !planned.err.contains("reads of http"), "{}", planned.err);
    planned.ok();
    assert!(server.served() < 20_000, "a plan reads the index alone");
    assert_eq!(run_from(&address, home.path(), &[]).ok(), text_at_level("8"));
    let wrong = address.replace("tiny.nest", "other.nest");
    let refused = run_from(&wrong, home.path(), &[]);
    assert!(refused.err.contains("has no file other.nest"), "{}", refused.err);
    let web = home.path().join("nestling/stores/web");
    let copies: Vec<_> = std::fs::read_dir(web).unwrap().flatten().map(|e| e.path()).collect();
    assert_eq!(copies.len(), 1);
    assert_eq!(std::fs::read(&copies[0]).unwrap(), std::fs::read(store()).unwrap());
}

#[test]
fn a_store_of_a_repository_runs_by_ranges() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let (server, ends) = (server(), ends());
    let whole = std::fs::read(store()).unwrap();
    let first = run_at(&server, home.path(), &["--level", "2"]);
    assert!(first.err.contains("up to level 2"), "{}", first.err);
    assert_eq!(first.ok(), text_at_level("2"));
    assert!(server.served() < ends[0].1 as usize + (200 << 10));
    let path = downloaded(home.path());
    assert_eq!(files_beside(&path), ["tiny.nest.origin.json", "tiny.nest.sparse"]);
    // What has arrived needs no network, and the rest is an error without it.
    assert_eq!(
        run_at(&server, home.path(), &["--level", "2", "--offline"]).ok(),
        text_at_level("2")
    );
    let refused = run_at(&server, home.path(), &["--level", "4", "--offline"]);
    refused.fails(1, "the network is off", "--offline");
    assert_eq!(server.served(), 0);
    server.state.lock().unwrap().cuts = vec![(FILE.into(), 700), (FILE.into(), 1)];
    let lazy = run_at(&server, home.path(), &["--level", "4", "--lazy"]);
    assert_eq!(lazy.ok(), text_at_level("4"));
    let planned = command(&server, home.path(), &["plan", "-hf", REPOSITORY, "--level", "2"]).ok();
    assert!(!planned.contains("still to fetch"), "{planned}");
    assert_eq!(run_at(&server, home.path(), &[]).ok(), text_at_level("8"));
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    assert_eq!(files_beside(&path), ["tiny.nest", "tiny.nest.origin.json"]);
    server.served();
    assert_eq!(run_at(&server, home.path(), &[]).ok(), text_at_level("8"));
    assert!(server.served() < 4_000, "the listing alone");
}

#[test]
fn an_upgrade_completes_a_copy_that_is_read_by_ranges() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let server = server();
    run_at(&server, home.path(), &["--level", "2"]).ok();
    let path = downloaded(home.path());
    let said = command(&server, home.path(), &["upgrade", "-hf", REPOSITORY, "--level", "3"]).ok();
    assert!(said.contains("tiny.nest.sparse now has level 3"), "{said}");
    let said = command(&server, home.path(), &["upgrade", "-hf", REPOSITORY]).ok();
    assert!(said.contains("tiny.nest now has level 8"), "{said}");
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(store()).unwrap());
}

#[test]
fn a_gated_store_needs_the_token() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let server = server();
    server.state.lock().unwrap().token = Some("secret".into());
    run_at(&server, home.path(), &["--level", "2"]).fails(1, "access token", "HF_TOKEN");
    let given = ["--level", "2", "--lazy", "--hf-token", "secret"];
    assert_eq!(run_at(&server, home.path(), &given).ok(), text_at_level("2"));
}

#[test]
fn a_store_in_shards_runs_by_its_address_and_by_its_repository() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let files = nestling_testkit::in_shards(100_000);
    let first = files.keys().next().unwrap().clone();
    let server = Standin::start(REPOSITORY, COMMIT, files);
    let address = format!("{}/{REPOSITORY}/resolve/{COMMIT}/{first}", server.address);
    let expected = run_from(&address, home.path(), &["--level", "3"]).ok();
    assert_eq!(run_from(&address, home.path(), &["--level", "3", "--lazy"]).ok(), expected);
    assert_eq!(run_at(&server, home.path(), &["--level", "3", "--lazy"]).ok(), expected);
    assert_eq!(run_at(&server, home.path(), &["--level", "3", "--offline"]).ok(), expected);
    assert_eq!(expected, text_at_level("3"));
}

#[cfg(unix)]
#[test]
fn a_chat_with_a_store_of_a_repository_rises() {
    use super::terminal::Terminal;
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let server = server();
    let mut command = program();
    command.env("HF_ENDPOINT", &server.address).env("NESTLING_CACHE", home.path().join("nestling"));
    let history = home.path().join("history.txt").display().to_string();
    command.args(["chat", "-hf", REPOSITORY, "--temp", "0", "-n", "4", "--history", &history]);
    let mut terminal = Terminal::start(command, 100);
    terminal.expect("up to level 2");
    terminal.expect(">>> ");
    // A level answers from the message after its arrival on.
    let has_risen = (0..50).any(|_| {
        terminal.type_in("hello\r");
        let shown = terminal.expect("Generation:");
        terminal.expect(">>> ");
        shown.contains("level 8 has arrived and answers from now on")
    });
    assert!(has_risen);
    terminal.type_in("/bye\r");
    terminal.expect_end(0);
    assert_eq!(files_beside(&downloaded(home.path())), ["tiny.nest", "tiny.nest.origin.json"]);
}
