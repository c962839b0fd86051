//! A Hub that returns arbitrary statuses, headers, redirects and bodies over real connections. Requests fail
//! or succeed correctly, only announced files are written, and the token is sent to the Hub's own host only.

#![no_main]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nestling_hub::{HubOptions, Limits, NoObserver, Reference, StoreCache, obtain, survey};
use sha2::{Digest, Sha256};

#[derive(Arbitrary, Clone, Debug)]
enum Answer {
    Sound,
    /// Arbitrary bytes instead of head and body.
    Raw(Vec<u8>),
    Status(u16),
    Redirect {
        status: u8,
        location: String,
    },
    /// Redirect to a second host.
    Elsewhere,
    /// Valid response with additional headers first.
    Headers(Vec<(u8, String)>),
    /// Valid response, truncated or with changed bytes.
    Cut(u16),
    Changed(u16, u8),
    More(Vec<u8>),
}

#[derive(Arbitrary, Clone, Debug)]
enum Listing {
    Sound,
    Raw(Vec<u8>),
    Files { sha: Option<String>, files: Vec<File> },
}

#[derive(Arbitrary, Clone, Debug)]
struct File {
    known: u8,
    name: Option<String>,
    size: Option<u64>,
    blob: Option<String>,
    sha256: Option<String>,
}

#[derive(Arbitrary, Clone, Debug)]
struct Input {
    listing: Listing,
    answers: Vec<Answer>,
    config: Option<Vec<u8>>,
    survey: bool,
    /// Opens stores by ranges.
    by_ranges: bool,
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_secret";
const HEADERS: &[&str] = &[
    "Content-Length",
    "Content-Range",
    "Transfer-Encoding",
    "Location",
    "ETag",
    "X-Repo-Commit",
    "X-Linked-Size",
    "X-Linked-Etag",
    "Content-Encoding",
    "Connection",
    "Set-Cookie",
    "Retry-After",
];

/// State shared by the servers and the target.
#[derive(Default)]
struct Script {
    input: Option<Arc<Input>>,
    next: usize,
    leaked: bool,
}

struct Server {
    home: String,
    script: Arc<Mutex<Script>>,
}

fn files() -> &'static Vec<(String, Vec<u8>)> {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../engine/runtime/tests/data/families/granite-moe-bias");
        let names =
            ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"];
        names.map(|name| (name.to_owned(), std::fs::read(folder.join(name)).unwrap())).into()
    })
}

fn sound_listing() -> String {
    let entries =
        files().iter().map(|(name, content)| listed(name, content.len() as u64, None, None));
    let entries: Vec<_> = entries.collect();
    serde_json::json!({"sha": COMMIT, "siblings": entries}).to_string()
}

fn listed(name: &str, size: u64, blob: Option<&str>, sha256: Option<&str>) -> serde_json::Value {
    let hash = hashes().get(name).unwrap_or(&hashes()[""]);
    let lfs = sha256.unwrap_or(hash);
    serde_json::json!({"rfilename": name, "size": size, "blobId": blob.unwrap_or(&hash[..40]),
        "lfs": {"sha256": lfs, "size": size, "pointerSize": 135}})
}

/// Returns the SHA-256 hashes of the files and of an empty file. They are computed once, because hashing
/// takes longer than most executions.
fn hashes() -> &'static HashMap<&'static str, String> {
    static HASHES: OnceLock<HashMap<&str, String>> = OnceLock::new();
    HASHES.get_or_init(|| {
        let hash = |content: &[u8]| {
            Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let all = files().iter().map(|(name, content)| (name.as_str(), hash(content)));
        all.chain([("", hash(&[]))]).collect()
    })
}

fn listing(input: &Input) -> Vec<u8> {
    match &input.listing {
        Listing::Sound => sound_listing().into_bytes(),
        Listing::Raw(bytes) => bytes.clone(),
        Listing::Files { sha, files: made } => {
            let entries = made.iter().take(8).map(|file| {
                let known = &files()[usize::from(file.known) % files().len()];
                let name = file.name.as_deref().unwrap_or(&known.0);
                let size = file.size.unwrap_or(known.1.len() as u64);
                listed(name, size, file.blob.as_deref(), file.sha256.as_deref())
            });
            let entries: Vec<_> = entries.collect();
            let sha = sha.as_deref().unwrap_or(COMMIT);
            serde_json::json!({"sha": sha, "siblings": entries}).to_string().into_bytes()
        }
    }
}

fn content(path: &str, input: &Input) -> Option<Vec<u8>> {
    if path.starts_with("/api/models/") {
        return Some(listing(input));
    }
    let name = path.rsplit('/').next()?;
    if let ("config.json", Some(config)) = (name, &input.config) {
        return Some(config.clone());
    }
    files().iter().find(|(known, _)| known == name).map(|(_, content)| content.clone())
}

/// Returns head and body of a valid response.
fn sound(path: &str, range: Option<(usize, usize)>, input: &Input) -> (String, Vec<u8>) {
    let Some(content) = content(path, input) else {
        return ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n".into(), Vec::new());
    };
    let Some((start, end)) = range else {
        return (format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", content.len()), content);
    };
    let stop = end.saturating_add(1).min(content.len());
    let body = content.get(start..stop).unwrap_or_default().to_vec();
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{end}/{}\r\n",
        body.len(),
        content.len()
    );
    (head, body)
}

fn plain(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect()
}

fn answer(stream: &TcpStream, script: &Mutex<Script>, is_home: bool, second: &str) {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(path) = lines.next().and_then(|line| line.split(' ').nth(1).map(str::to_owned)) else {
        return;
    };
    let path = path.split('?').next().unwrap_or_default().to_owned();
    let (mut range, mut token) = (None, false);
    for line in lines.take_while(|line| !line.is_empty()) {
        let line = line.to_ascii_lowercase();
        token |= line.starts_with("authorization:");
        if let Some((start, end)) =
            line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-'))
        {
            range = start.parse().ok().zip(end.parse().ok());
        }
    }
    let (input, answer) = {
        let mut script = script.lock().unwrap();
        script.leaked |= token && !is_home;
        let Some(input) = script.input.clone() else { return };
        let answer = input.answers.get(script.next).cloned().unwrap_or(Answer::Sound);
        script.next += 1;
        (input, answer)
    };
    let (head, mut body) = sound(&path, range, &input);
    let close = "Connection: close\r\n\r\n";
    let head = match answer {
        Answer::Sound => head + close,
        Answer::Raw(bytes) => {
            body = bytes;
            String::new()
        }
        Answer::Status(status) => {
            format!(
                "HTTP/1.1 {} X\r\nContent-Length: {}\r\n{close}",
                100 + status % 500,
                body.len()
            )
        }
        Answer::Redirect { status, location } => {
            body.clear();
            let status = [301, 302, 303, 307, 308][usize::from(status) % 5];
            let location = plain(&location);
            format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nLocation: {location}\r\n{close}")
        }
        Answer::Elsewhere => {
            body.clear();
            format!("HTTP/1.1 302 X\r\nContent-Length: 0\r\nLocation: {second}{path}\r\n{close}")
        }
        Answer::Headers(headers) => {
            let (first, rest) = head.split_once("\r\n").unwrap_or((&head, ""));
            let mut head = format!("{first}\r\n");
            for (name, value) in headers.iter().take(8) {
                let name = HEADERS[usize::from(*name) % HEADERS.len()];
                head += &format!("{name}: {}\r\n", plain(value));
            }
            head + rest + close
        }
        Answer::Cut(length) => {
            body.truncate(usize::from(length));
            head + close
        }
        Answer::Changed(at, byte) => {
            let at = usize::from(at) % body.len().max(1);
            body.get_mut(at).into_iter().for_each(|found| *found = byte);
            head + close
        }
        Answer::More(bytes) => {
            body.extend(bytes);
            head + close
        }
    };
    let mut stream = stream;
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&body);
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (home, other) = (listen(), listen());
        let address = format!("http://{}", home.local_addr().unwrap());
        let second = format!("http://localhost:{}", other.local_addr().unwrap().port());
        let script = Arc::new(Mutex::new(Script::default()));
        for (listener, is_home) in [(home, true), (other, false)] {
            let (script, second) = (Arc::clone(&script), second.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    answer(&stream, &script, is_home, &second);
                }
            });
        }
        Server { home: address, script }
    })
}

fn options(folder: &Path, by_ranges: bool) -> HubOptions {
    HubOptions {
        endpoint: server().home.clone(),
        downloads: folder.join("hub"),
        stores: StoreCache {
            folder: folder.join("stores"),
            locks: folder.join("locks"),
            calibration: "none".into(),
            gguf_calibration: "none".into(),
        },
        headers: folder.join("headers"),
        token: Some(TOKEN.into()),
        limits: Limits {
            connect: Duration::from_millis(500),
            silence: Duration::from_millis(500),
            listing: Duration::from_secs(2),
            pause: Duration::from_micros(10),
        },
        offline: false,
        in_place: false,
        by_ranges,
        room: u64::MAX,
    }
}

/// Collects the files below a folder and adds up their sizes. Links are not followed.
fn held(folder: &Path, bytes: &mut u64, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let data = entry.metadata().unwrap();
        if data.is_dir() {
            held(&entry.path(), bytes, out);
        } else if data.is_file() {
            *bytes += data.len();
            out.push(entry.path());
        }
    }
}

/// Creates a temporary folder, in memory if possible.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = tempfile::Builder::new().prefix("fuzz-hub").tempdir_in(memory);
    made.or_else(|_| tempfile::tempdir()).unwrap()
}

fuzz_target!(|input: Input| {
    static BUSY: AtomicBool = AtomicBool::new(false);
    assert!(!BUSY.swap(true, Ordering::SeqCst), "one at a time");
    let folder = scratch();
    {
        let mut script = server().script.lock().unwrap();
        *script = Script { input: Some(Arc::new(input.clone())), next: 0, leaked: false };
    }
    let options = options(folder.path(), input.by_ranges);
    let reference = Reference::parse("a/b", "main").unwrap();
    if input.survey {
        let _ = survey(&reference, None, &options, &NoObserver);
    } else if let Ok(obtained) = obtain(&reference, None, &options, &NoObserver) {
        if matches!(input.listing, Listing::Sound) && input.config.is_none() {
            for (name, content) in files() {
                let found = std::fs::read(obtained.checkpoint.join(name)).unwrap();
                assert!(found == *content, "{name} has other bytes");
            }
        }
    }
    let script = std::mem::take(&mut *server().script.lock().unwrap());
    assert!(!script.leaked, "the token went elsewhere");
    let (mut bytes, mut found) = (0, Vec::new());
    held(folder.path(), &mut bytes, &mut found);
    assert!(bytes < 4 << 20, "{bytes} bytes: {found:?}");
    assert!(script.next < 400, "{} requests", script.next);
    BUSY.store(false, Ordering::SeqCst);
});
