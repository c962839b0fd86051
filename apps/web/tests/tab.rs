//! A tab with a source that counts and fails.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nestling::{Device, GenerateOptions, Level};
use nestling_web::answer::{AnswerOptions, Step};
use nestling_web::blocks::{BlockFile, Blocks, MemoryFile};
use nestling_web::error::TabError;
use nestling_web::options::TabOptions;
use nestling_web::ranges::{Head, RangeError, RangeSource, Reply};
use nestling_web::tab::{Prompt, Tab};

/// End of the store's first section.
const FIRST_SECTION: u64 = 9_660_000;

const PROMPT: &str = "Once upon a time";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest")
}

/// Fault of a server.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Flips a bit in each third reply.
    Damages,
    /// Flips a bit in every reply.
    Rots,
    /// Cuts each third reply without an error of the connection.
    Cuts,
    /// Breaks the connection of each third request.
    Breaks,
    /// Ignores the requested range.
    IgnoresRanges,
    /// Has another file from the third request on.
    Replaces,
    /// Does not reply.
    Down,
}

#[derive(Default)]
struct Log {
    requests: usize,
    ranges: Vec<Range<u64>>,
}

#[derive(Clone)]
struct Server {
    bytes: Arc<Vec<u8>>,
    etag: String,
    fault: Fault,
    log: Arc<Mutex<Log>>,
}

impl Server {
    fn new(fault: Fault) -> Self {
        Self::of(path(), fault)
    }

    fn of(path: PathBuf, fault: Fault) -> Self {
        let bytes = Arc::new(std::fs::read(path).unwrap());
        Self { bytes, etag: "\"1\"".into(), fault, log: Arc::default() }
    }

    fn sent_bytes(&self) -> u64 {
        self.log.lock().unwrap().ranges.iter().map(|range| range.end - range.start).sum()
    }

    fn unreachable(&self) -> RangeError {
        RangeError::Unreachable { url: self.url(), reason: "as planted".into() }
    }
}

impl RangeSource for Server {
    fn url(&self) -> String {
        "test:model".into()
    }

    fn fetch(&mut self, range: &Range<u64>) -> Result<Reply, RangeError> {
        let total = self.bytes.len() as u64;
        let range = match self.fault {
            Fault::Down => return Err(self.unreachable()),
            Fault::IgnoresRanges => 0..total,
            _ => range.start..range.end.min(total),
        };
        let mut log = self.log.lock().unwrap();
        log.requests += 1;
        let is_due = log.requests.is_multiple_of(3);
        if is_due && self.fault == Fault::Breaks {
            return Err(self.unreachable());
        }
        log.ranges.push(range.clone());
        let mut body = self.bytes[range.start as usize..range.end as usize].to_vec();
        if self.fault == Fault::Rots || (self.fault == Fault::Damages && is_due) {
            let middle = body.len() / 2;
            body[middle] ^= 64;
        }
        if self.fault == Fault::Cuts && is_due {
            body.truncate(body.len() / 2);
        }
        let is_other = self.fault == Fault::Replaces && log.requests >= 3;
        Ok(Reply {
            status: if self.fault == Fault::IgnoresRanges { 200 } else { 206 },
            content_range: Some(format!("bytes {}-{}/{total}", range.start, range.end - 1)),
            etag: Some(if is_other { "\"2\"".into() } else { self.etag.clone() }),
            body,
        })
    }

    fn head(&mut self) -> Result<Head, RangeError> {
        if self.fault == Fault::Down {
            return Err(self.unreachable());
        }
        let (length, etag) = (Some(self.bytes.len() as u64), Some(self.etag.clone()));
        Ok(Head { status: 200, length, etag })
    }
}

/// A file that outlives a tab.
#[derive(Clone, Default)]
struct LastingFile(Arc<Mutex<MemoryFile>>);

impl BlockFile for LastingFile {
    fn len(&self) -> Result<u64, RangeError> {
        self.0.lock().unwrap().len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), RangeError> {
        self.0.lock().unwrap().read_at(offset, out)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RangeError> {
        self.0.lock().unwrap().write_at(offset, bytes)
    }

    fn clear(&mut self) -> Result<(), RangeError> {
        self.0.lock().unwrap().clear()
    }
}

/// Storage of a device.
#[derive(Clone, Default)]
struct Disk {
    data: LastingFile,
    map: LastingFile,
}

impl Disk {
    fn open(&self, server: &Server) -> Result<Tab, TabError> {
        let blocks = Blocks::open(Box::new(self.data.clone()), Box::new(self.map.clone()))?;
        Tab::open(Box::new(server.clone()), blocks, TabOptions::default())
    }
}

/// Fetches until a level is there, repeating failed requests.
fn fetch(tab: &mut Tab, level: u8) -> Result<(), TabError> {
    while tab.status().level < level {
        match tab.fetch_more() {
            Err(error) if error.may_retry() => {}
            other => drop(other?),
        }
    }
    Ok(())
}

fn options() -> AnswerOptions {
    AnswerOptions { max_tokens: Some(16), temperature: Some(0.0), ..AnswerOptions::default() }
}

fn run(tab: &mut Tab) -> (String, u8) {
    let mut text = String::new();
    loop {
        match tab.step().unwrap() {
            Step::Text { text: more } => text.push_str(&more),
            Step::Finished { summary } => return (text, summary.level),
            _ => {}
        }
    }
}

fn start(tab: &mut Tab) -> Result<(), TabError> {
    let session = tab.new_session();
    tab.generate(session, Prompt::Text(PROMPT.into()), options())
}

fn completion(tab: &mut Tab) -> (String, u8) {
    start(tab).unwrap();
    run(tab)
}

/// Returns the text of a model opened from its file.
fn expected(level: Level) -> String {
    let model = nestling::Builder::new(path()).device(Device::Cpu).level(level).threads(1);
    let options = GenerateOptions { max_tokens: Some(16), ..GenerateOptions::greedy() };
    model.open().unwrap().session().generate(PROMPT, &options).unwrap().into_text().unwrap()
}

#[test]
fn each_level_that_arrives_gives_the_text_of_the_file() {
    let server = Server::new(Fault::None);
    let mut tab = Disk::default().open(&server).unwrap();
    assert!(matches!(start(&mut tab), Err(TabError::NotReady)));
    fetch(&mut tab, 2).unwrap();
    assert_eq!(completion(&mut tab), (expected(Level::L2), 2));
    assert!(server.sent_bytes() < FIRST_SECTION + (1 << 20), "{}", server.sent_bytes());
    let chat = tab.new_chat(r#"{"messages": []}"#).unwrap();
    tab.send(chat, "Tell me a story about a ship.", options()).unwrap();
    let before = run(&mut tab);
    fetch(&mut tab, 8).unwrap();
    assert_eq!(completion(&mut tab), (expected(Level::L8), 8));
    tab.send(chat, "And then?", options()).unwrap();
    let after = run(&mut tab);
    assert_eq!((before.1, after.1), (2, 8), "the level rises within a conversation");
    let status = tab.status();
    assert!(status.is_complete);
    assert_eq!(
        (status.fetched_bytes, status.stored_bytes),
        (status.wanted_bytes, status.wanted_bytes)
    );
}

#[test]
fn a_second_visit_fetches_nothing_even_without_a_connection() {
    let (server, device) = (Server::new(Fault::None), Disk::default());
    fetch(&mut device.open(&server).unwrap(), 8).unwrap();
    let sent = server.sent_bytes();
    for fault in [Fault::None, Fault::Down] {
        let mut tab = device.open(&Server { fault, ..server.clone() }).unwrap();
        fetch(&mut tab, 8).unwrap();
        assert_eq!(completion(&mut tab).1, 8);
        assert_eq!((server.sent_bytes(), tab.status().fetched_bytes), (sent, 0));
    }
}

#[test]
fn a_tab_closed_in_mid_download_fetches_nothing_twice() {
    let (server, device) = (Server::new(Fault::None), Disk::default());
    let mut tab = device.open(&server).unwrap();
    for _ in 0..5 {
        tab.fetch_more().unwrap();
    }
    drop(tab);
    assert!(server.sent_bytes() > 4 << 20);
    fetch(&mut device.open(&server).unwrap(), 8).unwrap();
    assert_eq!(server.sent_bytes(), server.bytes.len() as u64);
}

#[test]
fn a_file_that_was_replaced_is_fetched_again() {
    let (server, device) = (Server::new(Fault::None), Disk::default());
    fetch(&mut device.open(&server).unwrap(), 2).unwrap();
    let sent = server.sent_bytes();
    let newer = Server { etag: "\"2\"".into(), ..server.clone() };
    fetch(&mut device.open(&newer).unwrap(), 2).unwrap();
    assert_eq!(server.sent_bytes(), 2 * sent);
    let error = fetch(&mut Disk::default().open(&Server::new(Fault::Replaces)).unwrap(), 2);
    assert_eq!(error.unwrap_err().kind(), "changed");
}

#[test]
fn faults_of_a_server_give_the_right_text() {
    for fault in [Fault::Damages, Fault::Cuts, Fault::Breaks, Fault::IgnoresRanges] {
        let mut tab = Disk::default().open(&Server::new(fault)).unwrap();
        fetch(&mut tab, 8).unwrap();
        assert_eq!(completion(&mut tab), (expected(Level::L8), 8));
    }
}

#[test]
fn faults_that_stay_are_typed_errors() {
    let open = |fault| match Disk::default().open(&Server::new(fault)) {
        Ok(mut tab) => fetch(&mut tab, 8).unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(open(Fault::Rots).kind(), "damaged");
    let error = open(Fault::Down);
    assert_eq!((error.kind(), error.may_retry()), ("network", true));
}

#[test]
fn damage_on_the_device_is_repaired() {
    let (server, mut device) = (Server::new(Fault::None), Disk::default());
    fetch(&mut device.open(&server).unwrap(), 8).unwrap();
    let sent = server.sent_bytes();
    device.data.write_at(5_000_000, &[0xa5; 300]).unwrap();
    let mut tab = device.open(&server).unwrap();
    fetch(&mut tab, 8).unwrap();
    assert_eq!(completion(&mut tab), (expected(Level::L8), 8));
    let again = server.sent_bytes() - sent;
    assert!(again > 0 && again <= 4 << 20, "{again} bytes");
    device.map.write_at(0, b"no map").unwrap();
    let mut tab = device.open(&server).unwrap();
    fetch(&mut tab, 2).unwrap();
    assert!(tab.status().fetched_bytes > 8_000_000);
}

#[test]
fn an_answer_is_cancelled_between_two_steps() {
    let mut tab = Disk::default().open(&Server::new(Fault::None)).unwrap();
    fetch(&mut tab, 2).unwrap();
    start(&mut tab).unwrap();
    assert!(matches!(start(&mut tab), Err(TabError::Busy)));
    while tab.step().unwrap() == Step::Pending {}
    tab.cancel();
    let reason = loop {
        if let Step::Finished { summary } = tab.step().unwrap() {
            break summary.reason;
        }
    };
    assert_eq!(reason, "cancelled");
    assert_eq!(completion(&mut tab).0, expected(Level::L2));
}

#[test]
fn a_session_continues_at_the_next_level_and_from_a_snapshot() {
    let mut tab = Disk::default().open(&Server::new(Fault::None)).unwrap();
    fetch(&mut tab, 2).unwrap();
    let session = tab.new_session();
    let more = |tab: &mut Tab, session, text: &str| {
        tab.generate(session, Prompt::Text(text.into()), options()).unwrap();
        run(tab)
    };
    more(&mut tab, session, PROMPT);
    let tokens = tab.session_tokens(session).unwrap();
    fetch(&mut tab, 8).unwrap();
    let other = tab.new_session();
    tab.generate(other, Prompt::Tokens(tokens.clone()), options()).unwrap();
    let expected = run(&mut tab);
    let fork = tab.fork_session(session).unwrap();
    let snapshot = tab.snapshot(session).unwrap();
    let restored = tab.restore(&snapshot).unwrap();
    for session in [session, fork, restored] {
        assert_eq!(tab.session_tokens(session).unwrap(), tokens);
        assert_eq!(more(&mut tab, session, ""), expected);
    }
    tab.close_session(fork);
    assert_eq!(tab.session_tokens(fork).unwrap_err().kind(), "invalid");
    assert_eq!(tab.restore(&snapshot[..40]).unwrap_err().kind(), "invalid");
}

#[test]
fn options_that_cannot_be_honoured_are_refused() {
    let mut tab = Disk::default().open(&Server::new(Fault::None)).unwrap();
    fetch(&mut tab, 2).unwrap();
    let chat = tab.new_chat(r#"{"messages": []}"#).unwrap();
    let two = AnswerOptions { regex: Some("a".into()), grammar: Some("b".into()), ..options() };
    let named = AnswerOptions { tool_choice: Some("weather".into()), ..options() };
    for wrong in [two, named] {
        assert_eq!(tab.send(chat, "Hello.", wrong).unwrap_err().kind(), "invalid");
    }
    assert_eq!(tab.new_chat(r#"{"messages": 7}"#).unwrap_err().kind(), "invalid");
    let results = vec!["1".into()];
    assert_eq!(tab.reply_to_tools(chat, results, options()).unwrap_err().kind(), "invalid");
    assert!(serde_json::from_str::<AnswerOptions>(r#"{"maxToken": 1}"#).is_err());
    let formed = AnswerOptions { regex: Some("(calm|wild)\\.".into()), ..options() };
    let session = tab.new_session();
    tab.generate(session, Prompt::Text("The sea is".into()), formed).unwrap();
    assert!(["calm.", "wild."].contains(&run(&mut tab).0.as_str()));
}

#[test]
fn a_budget_is_halved_during_an_answer() {
    let server = Server::new(Fault::None);
    let blocks = Blocks::open(Box::new(MemoryFile::default()), Box::new(MemoryFile::default()));
    let options = TabOptions {
        memory_budget: Some(64 << 20),
        context_length: Some(256),
        streamed: true,
        ..TabOptions::default()
    };
    let mut tab = Tab::open(Box::new(server), blocks.unwrap(), options).unwrap();
    fetch(&mut tab, 8).unwrap();
    start(&mut tab).unwrap();
    while tab.step().unwrap() == Step::Pending {}
    let half = tab.status().memory_bytes / 2;
    tab.set_memory_budget(half).unwrap();
    run(&mut tab);
    assert!(tab.status().memory_bytes <= half);
    assert_eq!(tab.set_memory_budget(1).unwrap_err().kind(), "memory");
    assert_eq!(completion(&mut tab), (expected(Level::L8), 8));
}

#[test]
fn a_gguf_file_runs_in_place() {
    let data =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data/gguf");
    let path = data.join("llama.gguf");
    for fault in [Fault::None, Fault::Cuts, Fault::Breaks, Fault::IgnoresRanges] {
        let server = Server::of(path.clone(), fault);
        let mut tab = Disk::default().open(&server).unwrap();
        assert!(!tab.status().is_usable || tab.status().is_complete);
        while !tab.status().is_complete {
            match tab.fetch_more() {
                Err(error) if error.may_retry() => {}
                other => drop(other.unwrap()),
            }
        }
        let tokens = |tab: &mut Tab| {
            let session = tab.new_session();
            let options = AnswerOptions { token_events: true, ignore_end: true, ..options() };
            tab.generate(session, Prompt::Tokens(vec![3, 1, 4, 1, 5]), options).unwrap();
            run(tab);
            tab.session_tokens(session).unwrap()
        };
        let model = nestling::Builder::new(&path).device(Device::Cpu).threads(1).open().unwrap();
        let mut session = model.session();
        let greedy =
            GenerateOptions { max_tokens: Some(16), ignore_end: true, ..GenerateOptions::greedy() };
        session.generate(vec![3, 1, 4, 1, 5], &greedy).unwrap().into_text().unwrap();
        assert_eq!(tokens(&mut tab), session.tokens().unwrap());
    }
    // A header that ends early, and one of another family.
    let mut server = Server::of(path, Fault::None);
    Arc::make_mut(&mut server.bytes).truncate(300);
    assert_eq!(Disk::default().open(&server).unwrap_err().kind(), "damaged");
}
