//! Pages on disk: outputs are the same with and without them, and under any disk fault.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::fake::*;
use nestling_formats::Level;
use nestling_runtime::{
    Engine, GenerateOptions, Model, ModelIdentity, ModelParts, PageFile, PageFiles, PageName,
    PageReads, PageStore, PageStoreOptions, Prefixes,
};

/// Size of a stored page of the fake model in bytes: header, tokens, checksum.
const RECORD_BYTES: u64 = 64 + 64 * 4 + 16;
const ROOMY: u64 = 1 << 20;

/// Storage in memory, which several stores can share like a directory.
#[derive(Clone, Debug, Default)]
struct MemoryFiles {
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Debug, Default)]
struct Faults {
    /// Free space in bytes; `None` means no limit.
    room: Option<usize>,
    reads_fail: bool,
    writes: usize,
    /// Duration of a write.
    write_time: Duration,
}

fn disk_full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl PageFiles for MemoryFiles {
    fn claim(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn list(&self) -> io::Result<Vec<PageFile>> {
        let files = self.files.lock().unwrap();
        let file = |(name, record): (&String, &Vec<u8>)| PageFile {
            name: PageName::parse(name).unwrap(),
            bytes: record.len() as u64,
            used: SystemTime::UNIX_EPOCH,
        };
        Ok(files.iter().map(file).collect())
    }

    fn contains(&self, name: &PageName) -> bool {
        self.files.lock().unwrap().contains_key(&name.to_string())
    }

    fn read(&self, name: &PageName, bytes: usize) -> io::Result<Vec<u8>> {
        if self.faults.lock().unwrap().reads_fail {
            return Err(io::Error::other("the disk is gone"));
        }
        let files = self.files.lock().unwrap();
        let record = files.get(&name.to_string()).ok_or(io::ErrorKind::NotFound)?;
        if record.len() != bytes {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(record.clone())
    }

    fn write(&self, name: &PageName, parts: &[&[u8]]) -> io::Result<()> {
        let mut faults = self.faults.lock().unwrap();
        let (record, time) = (parts.concat(), faults.write_time);
        faults.writes += 1;
        if let Some(room) = &mut faults.room {
            *room = room.checked_sub(record.len()).ok_or_else(disk_full)?;
        }
        drop(faults);
        std::thread::sleep(time);
        self.files.lock().unwrap().insert(name.to_string(), record);
        Ok(())
    }

    fn touch(&self, _: &PageName) {}

    fn remove(&self, name: &PageName) -> io::Result<()> {
        self.files.lock().unwrap().remove(&name.to_string());
        Ok(())
    }
}

impl MemoryFiles {
    fn store(&self, bytes_max: u64) -> PageStore {
        PageStore::over(Box::new(self.clone()), bytes_max, PageReads::Always).unwrap()
    }

    fn count(&self) -> usize {
        self.files.lock().unwrap().len()
    }
}

fn folder_store(directory: &Path, bytes_max: u64) -> PageStore {
    let directory = directory.to_owned();
    PageStore::open(PageStoreOptions { directory, bytes_max, reads: PageReads::Always }).unwrap()
}

fn stored(engine: &Engine, runner: FakeRunner, store: &PageStore) -> Model {
    let page_store = Some(store.clone());
    let parts = ModelParts { page_store, ..parts_of(runner.limits, Box::new(runner)) };
    Model::from_parts(engine, parts).unwrap()
}

fn plain() -> FakeRunner {
    FakeRunner::new(1024, 32, 40)
}

/// Returns the output of a new session, with the number of cached prompt tokens.
fn fresh(model: &Model, prompt: &[u32], options: &GenerateOptions) -> (Vec<u32>, usize) {
    let (tokens, finished) = finish(model.session().generate(prompt.to_vec(), options).unwrap());
    (tokens, finished.usage.cached_tokens)
}

#[test]
fn a_later_engine_finds_what_an_earlier_one_computed() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("pages");
    let history = prompt(1, 300);
    let ask = |end: u32| [&history[..], &[end]].concat();
    for (make, pages, found) in [
        (plain as fn() -> FakeRunner, 4, 256),
        (|| FakeRunner::recurrent(1024, 48, 40, 12), 4 + 1, 256),
    ] {
        {
            let engine = engine();
            let model = stored(&engine, make(), &folder_store(&folder, ROOMY));
            assert_eq!(fresh(&model, &ask(7), &greedy(3)), (expected(&ask(7), 3), 0));
        }
        for engine in [engine(), caller_engine()] {
            let store = folder_store(&folder, ROOMY);
            assert_eq!(store.status().pages, pages, "dropping the engine wrote them");
            let runner = make();
            let seen = Arc::clone(&runner.seen);
            let model = stored(&engine, runner, &store);
            assert_eq!(fresh(&model, &ask(8), &greedy(3)), (expected(&ask(8), 3), found));
            assert_eq!(seen.rows.load(Ordering::Relaxed), 301 - found + 2);
            let status = engine.status();
            assert_eq!(status.page_store, store.status());
            assert_eq!((status.page_store.hits, status.page_store.damaged), (pages as u64, 0));
            assert_eq!(status.prefixes.found_tokens, found as u64);
            assert_eq!(model.free_pages(), 40);
            // Found in memory this time.
            assert_eq!(fresh(&model, &ask(9), &greedy(3)), (expected(&ask(9), 3), found));
            assert_eq!(store.status().hits, pages as u64);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn nothing_is_read_across_models_levels_salts_or_where_it_is_switched_off() {
    let files = MemoryFiles::default();
    let history = prompt(3, 200);
    let salted = |salt: &str| GenerateOptions { cache_salt: Some(salt.into()), ..greedy(4) };
    let at_level_4 = GenerateOptions { level: Some(Level::L4), ..greedy(4) };
    let ask = |options: &GenerateOptions, source, prefixes| {
        let identity = ModelIdentity { source, ..ModelIdentity::default() };
        let (engine, runner) = (engine(), plain());
        let page_store = Some(files.store(ROOMY));
        let parts = parts_of(runner.limits, Box::new(runner));
        let parts = ModelParts { identity, prefixes, page_store, ..parts };
        let model = Model::from_parts(&engine, parts).unwrap();
        let (answer, cached) = fresh(&model, &history, options);
        assert_eq!(answer, expected(&history, 4));
        cached
    };
    for options in [greedy(4), salted("a"), salted(""), at_level_4] {
        assert_eq!(ask(&options, 7, Prefixes::Shared), 0);
        assert_eq!(ask(&options, 7, Prefixes::Alone), 0);
        assert_eq!(ask(&options, 7, Prefixes::Shared), 192);
    }
    assert_eq!(ask(&greedy(4), 8, Prefixes::Shared), 0);
    assert_eq!(ask(&salted("b"), 7, Prefixes::Alone), 0);
    assert_eq!(files.count(), 5 * 3, "what was shared with nobody is not there");
}

/// A damaged page counts as missing. The pages before it are used.
#[test]
fn damaged_pages_are_computed() {
    let files = MemoryFiles::default();
    let history = prompt(4, 260);
    {
        let engine = engine();
        let model = stored(&engine, plain(), &files.store(ROOMY));
        fresh(&model, &history, &greedy(2));
    }
    let whole = files.files.lock().unwrap().clone();
    assert_eq!(whole.len(), 4);
    let mut random = 5u64;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % limit
    };
    // All bytes of the header and the checksum, and some of the contents.
    let regions = (0..64).chain(320..336).chain((64..320).step_by(37));
    let flips = regions.map(Some).chain([None; 20]);
    for at in flips {
        *files.files.lock().unwrap() = whole.clone();
        let chosen = below(4);
        for (index, record) in files.files.lock().unwrap().values_mut().enumerate() {
            match at {
                Some(at) if index == chosen => record[at] ^= 1 << below(8),
                None if index == chosen => record.truncate(below(336)),
                _ => {}
            }
        }
        let engine = caller_engine();
        let store = files.store(ROOMY);
        let model = stored(&engine, plain(), &store);
        let (answer, cached) = fresh(&model, &history, &greedy(9));
        assert_eq!(answer, expected(&history, 9), "{at:?}");
        assert!(cached < 256 && cached % 64 == 0, "{at:?}: {cached}");
        assert_eq!((store.status().damaged, store.status().failed), (1, 0), "{at:?}");
        // The damaged page was removed, and the recomputed one is written.
        assert!(store.flush());
        assert_eq!(*files.files.lock().unwrap(), whole, "{at:?}");
    }
}

/// All pages and states of a prefix are written again by the first engine that finds one of them damaged.
#[test]
fn damaged_runs_are_written_again_at_once() {
    let history = prompt(4, 260);
    let page: fn(usize) -> bool = |bytes| bytes == 336;
    let state: fn(usize) -> bool = |bytes| bytes != 336;
    let all: fn(usize) -> bool = |_| true;
    for (make, damaged) in [
        (plain as fn() -> FakeRunner, all),
        (|| FakeRunner::recurrent(1024, 48, 40, 12), all),
        (|| FakeRunner::recurrent(1024, 48, 40, 12), page),
        (|| FakeRunner::recurrent(1024, 48, 40, 12), state),
    ] {
        let files = MemoryFiles::default();
        let start = || {
            let (engine, store) = (caller_engine(), files.store(ROOMY));
            let (answer, cached) = fresh(&stored(&engine, make(), &store), &history, &greedy(2));
            assert_eq!(answer, expected(&history, 2));
            assert!(store.flush());
            cached
        };
        assert_eq!(start(), 0);
        let found = start();
        assert!(found > 128, "{found}");
        let whole = files.files.lock().unwrap().clone();
        let mut count = 0;
        for record in files.files.lock().unwrap().values_mut() {
            if damaged(record.len()) {
                record[70] ^= 1;
                count += 1;
            }
        }
        assert!(count > 0);
        assert_eq!(start(), 0, "the first page or the only state is damaged");
        assert!(*files.files.lock().unwrap() == whole);
        assert_eq!(start(), found);
    }
}

/// A page stored under the name of another page is rejected.
#[test]
fn pages_that_change_places_are_not_read() {
    let files = MemoryFiles::default();
    let history = prompt(5, 130);
    {
        let engine = engine();
        fresh(&stored(&engine, plain(), &files.store(ROOMY)), &history, &greedy(2));
    }
    {
        let mut files = files.files.lock().unwrap();
        let records: Vec<_> = files.values().rev().cloned().collect();
        files.values_mut().zip(records).for_each(|(place, record)| *place = record);
    }
    let (engine, store) = (engine(), files.store(ROOMY));
    let model = stored(&engine, plain(), &store);
    assert_eq!(fresh(&model, &history, &greedy(9)), (expected(&history, 9), 0));
    assert_eq!(store.status().damaged, 1, "the second was not looked at");
}

#[test]
fn what_computed_no_numbers_is_removed() {
    let files = MemoryFiles::default();
    let bad = [&prompt(6, 70)[..], &[POISON], &prompt(7, 60)].concat();
    let (first, store) = (engine(), files.store(ROOMY));
    let model = stored(&first, plain(), &store);
    // No output is requested, so the non-finite values go unnoticed.
    fresh(&model, &bad, &greedy(0));
    assert!(store.flush());
    assert_eq!(store.status().pages, 2);
    let failed = model.session().generate(bad, &greedy(3)).unwrap();
    assert!(failed.filter_map(Result::err).next().is_some());
    assert!(store.flush());
    assert_eq!((store.status().pages, files.count()), (0, 0));
}

#[test]
fn a_disk_that_fails_ends_the_writing_and_nothing_else() {
    let files = MemoryFiles::default();
    files.faults.lock().unwrap().room = Some(3 * RECORD_BYTES as usize);
    let (history, other) = (prompt(8, 300), prompt(9, 300));
    let (engine, store) = (engine(), files.store(ROOMY));
    let model = stored(&engine, plain(), &store);
    assert_eq!(fresh(&model, &history, &greedy(4)).0, expected(&history, 4));
    assert!(store.flush());
    let status = store.status();
    assert!(!status.is_writing);
    assert_eq!((status.writes, status.dropped, status.failed), (3, 1, 1));
    assert_eq!(fresh(&model, &other, &greedy(4)).0, expected(&other, 4));
    assert!(store.flush());
    assert_eq!((store.status().writes, store.status().dropped), (3, 1 + 4));
    // The disk has vanished: its pages are recomputed.
    files.faults.lock().unwrap().room = None;
    let whole = files.store(ROOMY);
    let model = stored(&engine, plain(), &whole);
    assert_eq!(fresh(&model, &other, &greedy(4)).0, expected(&other, 4));
    assert!(whole.flush());
    let late = files.store(ROOMY);
    files.faults.lock().unwrap().reads_fail = true;
    let model = stored(&engine, plain(), &late);
    assert_eq!(fresh(&model, &other, &greedy(4)), (expected(&other, 4), 0));
    assert_eq!(late.status().failed, 1);
}

#[test]
fn writing_resumes_after_a_disk_was_full_for_a_moment() {
    let files = MemoryFiles::default();
    files.faults.lock().unwrap().room = Some(0);
    let (engine, store) = (engine(), files.store(ROOMY));
    let model = stored(&engine, plain(), &store);
    fresh(&model, &prompt(8, 300), &greedy(4));
    assert!(store.flush());
    assert_eq!((store.status().writes, store.status().is_writing), (0, false));
    files.faults.lock().unwrap().room = None;
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !store.status().is_writing {
        assert!(std::time::Instant::now() < end, "writing was not resumed");
        std::thread::sleep(Duration::from_millis(20));
    }
    fresh(&model, &prompt(9, 300), &greedy(4));
    assert!(store.flush());
    assert_eq!((store.status().writes, store.status().failed), (4, 1));
}

#[test]
fn a_folder_under_the_name_of_one_page_costs_that_page_alone() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = (root.path().join("first"), root.path().join("second"));
    let history = prompt(8, 300);
    let run = |folder: &Path| {
        let (engine, store) = (engine(), folder_store(folder, ROOMY));
        let model = stored(&engine, plain(), &store);
        assert_eq!(fresh(&model, &history, &greedy(4)).0, expected(&history, 4));
        assert!(store.flush());
        store.status()
    };
    assert_eq!(run(&first).writes, 4);
    let page = std::fs::read_dir(&first).unwrap().map(|entry| entry.unwrap().file_name());
    let page = page.into_iter().find(|name| name.to_str().unwrap().ends_with(".page")).unwrap();
    std::fs::create_dir_all(second.join(page).join("in the way")).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&second, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    let status = run(&second);
    assert_eq!((status.writes, status.failed, status.is_writing), (3, 1, true));
}

#[test]
fn what_was_unused_for_longest_makes_room() {
    let files = MemoryFiles::default();
    let store = files.store(6 * RECORD_BYTES + 5);
    let (old, new) = (prompt(10, 260), prompt(11, 260));
    {
        let engine = engine();
        let model = stored(&engine, plain(), &store);
        fresh(&model, &old, &greedy(1));
        assert!(store.flush());
        fresh(&model, &new, &greedy(1));
        assert!(store.flush());
    }
    let status = store.status();
    assert_eq!((status.pages, status.bytes, status.writes), (6, 6 * RECORD_BYTES, 8));
    assert_eq!(files.count(), 6);
    let engine = engine();
    let model = stored(&engine, plain(), &store);
    assert_eq!(fresh(&model, &new, &greedy(1)), (expected(&new, 1), 256));
    assert_eq!(fresh(&model, &old, &greedy(1)), (expected(&old, 1), 128), "its first pages");
    drop((model, engine));
    // A smaller budget applies from the start.
    drop(store);
    assert_eq!(files.store(2 * RECORD_BYTES).status().pages, 2);
    assert_eq!(files.count(), 2);
    assert_eq!(files.store(RECORD_BYTES - 1).status().pages, 0);
}

#[test]
fn of_two_engines_over_one_directory_one_writes() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = (engine(), engine());
    let (writer, reader) = (folder_store(root.path(), ROOMY), folder_store(root.path(), ROOMY));
    let (writes, reads) = (stored(&first, plain(), &writer), stored(&second, plain(), &reader));
    let (history, other) = (prompt(12, 200), prompt(13, 200));
    fresh(&writes, &history, &greedy(2));
    assert!(writer.flush());
    assert_eq!(fresh(&reads, &history, &greedy(2)), (expected(&history, 2), 192));
    assert_eq!(fresh(&reads, &other, &greedy(2)), (expected(&other, 2), 0));
    assert!(reader.flush());
    let status = reader.status();
    assert_eq!((status.is_writing, status.writes, status.dropped, status.hits), (false, 0, 3, 3));
    // The remaining store becomes the writer.
    drop((writes, first, writer));
    fresh(&reads, &other, &greedy(2));
    assert!(reader.flush());
    let status = reader.status();
    assert_eq!((status.is_writing, status.pages, status.writes), (true, 6, 3));
}

/// A page reused before it is written is dropped.
#[test]
fn writing_never_holds_up_a_step() {
    let files = MemoryFiles::default();
    files.faults.lock().unwrap().write_time = Duration::from_millis(20);
    let (engine, store) = (engine(), files.store(ROOMY));
    let model = stored(&engine, FakeRunner::new(512, 64, 8), &store);
    for seed in 20..40 {
        let history = prompt(seed, 400);
        assert_eq!(fresh(&model, &history, &greedy(3)).0, expected(&history, 3));
    }
    assert!(store.flush());
    let status = store.status();
    assert!(status.dropped > 0, "{status:?}");
    assert_eq!(status.writes + status.dropped, 20 * 6);
    // Stored pages match computed ones.
    let other = stored(&engine, FakeRunner::new(512, 64, 8), &store);
    for seed in 20..40 {
        let history = prompt(seed, 400);
        assert_eq!(fresh(&other, &history, &greedy(3)).0, expected(&history, 3));
    }
    assert!(store.status().hits > 0 && store.status().damaged == 0);
}

/// Random prompts with common prefixes, in pools and stores that are too small: each has the same output as
/// alone.
#[test]
fn histories_by_seed_say_what_they_would_say_alone() {
    for seed in 0..12u64 {
        let mut random = seed;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            (random >> 33) as usize % below
        };
        let files = MemoryFiles::default();
        let make = |rows: usize, pages| match seed % 2 {
            0 => FakeRunner::new(512, rows, pages),
            _ => FakeRunner::recurrent(512, rows, pages, 12),
        };
        let mut hits = 0;
        for _ in 0..4 {
            let (engine, store) =
                (caller_engine(), files.store(RECORD_BYTES * (6 + next(20) as u64)));
            let pages = 9 + next(12);
            let model = stored(&engine, make(1 + next(90), pages), &store);
            for _ in 0..25 {
                let mut text = prompt(next(3) as u32, 64 * next(5) + next(70));
                text.extend(prompt(next(5) as u32, 1 + next(60)));
                let tokens = next(20);
                let (answer, _) = fresh(&model, &text, &greedy(tokens));
                assert_eq!(answer, expected(&text, tokens), "seed {seed}");
                if next(6) == 0
                    && let Some(record) = files.files.lock().unwrap().values_mut().next()
                {
                    record[next(RECORD_BYTES as usize).min(79)] ^= 4;
                }
            }
            assert!(store.flush());
            assert_eq!(model.free_pages(), pages, "seed {seed}");
            hits += store.status().hits;
        }
        assert!(hits > 0, "seed {seed}");
    }
}
