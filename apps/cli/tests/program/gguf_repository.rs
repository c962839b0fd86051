//! Tests of `-hf` with GGUF repositories: choice of the file, planning and running.

use super::{ProcessOutput, program, scratch};
use nestling_testkit::hub_server::Standin;
use std::collections::BTreeMap;
use std::path::Path;

const COMMIT: &str = "66ac0777bcd18fa416d9da3bd8f70d33ebb85d39";
const REPOSITORY: &str = "Nobody/Tiny-MoE-GGUF";

fn data(name: &str) -> String {
    format!("{}/../../engine/runtime/tests/data/gguf/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns one model in every quantization, and files that are not models.
fn files() -> BTreeMap<String, Vec<u8>> {
    let read = |name: &str| std::fs::read(data(name)).unwrap();
    let named = |name: &str, content| (name.to_owned(), content);
    BTreeMap::from([
        named("README.md", b"# A model".to_vec()),
        named("mmproj-Tiny-MoE-F16.gguf", vec![0; 100]),
        named("Tiny-MoE-IQ1_S.gguf", vec![0; 100]),
        named("Tiny-MoE-Q4_0.gguf", read("qwen3-moe.gguf")),
        named("Tiny-MoE-Q8_0.gguf", read("mixtral.gguf")),
    ])
}

fn nestling(server: &Standin, home: &Path, arguments: &[&str]) -> ProcessOutput {
    let mut command = program();
    command.env("HF_ENDPOINT", &server.address);
    command.env("HF_HOME", home.join("hf")).env("NESTLING_CACHE", home.join("nestling"));
    command.args(arguments).output().unwrap().into()
}

fn run(server: &Standin, home: &Path, repository: &str, more: &[&str]) -> ProcessOutput {
    let fixed = ["run", "-p", "Once upon", "-n", "8", "--temp", "0", "--calibration", "none"];
    nestling(server, home, &[&fixed[..], &["-hf", repository], more].concat())
}

fn plan(server: &Standin, home: &Path, more: &[&str]) -> ProcessOutput {
    let fixed = ["plan", "--memory-speed", "10GB", "--disk-speed", "1GB", "--memory", "64MiB"];
    nestling(server, home, &[&fixed[..], more].concat())
}

#[test]
fn from_a_quantization_to_text() {
    let home = tempfile::tempdir_in(scratch()).unwrap();
    let server = Standin::start(REPOSITORY, COMMIT, files());
    let chosen = format!("{REPOSITORY}:q4_0");
    let whole = files()["Tiny-MoE-Q4_0.gguf"].len();

    // Planned from the header only, which is most of such a small file.
    let text = plan(&server, home.path(), &["-hf", &chosen]).ok();
    assert!(text.contains("in 1 file (GGUF Q4_0)"), "{text}");
    assert!(text.contains("it would run here: "), "{text}");
    let table = |text: &str| text.split("read/token\n").nth(1).unwrap().to_owned();
    let local = plan(&server, home.path(), &[&data("qwen3-moe.gguf")]).ok();
    let line = |text: &str| table(text).lines().next().unwrap().to_owned();
    assert_eq!(line(&text), line(&local));

    let first = run(&server, home.path(), &chosen, &[]);
    for words in ["Tiny-MoE-Q4_0.gguf (Q4_0)", "download: 126 kB in 1 file", "converted into"] {
        assert!(first.err.contains(words), "{words}: {}", first.err);
    }
    let text = first.ok();
    let snapshot = format!("hf/hub/models--Nobody--Tiny-MoE-GGUF/snapshots/{COMMIT}");
    let downloaded = home.path().join(snapshot).join("Tiny-MoE-Q4_0.gguf");
    assert_eq!(std::fs::metadata(&downloaded).unwrap().len(), whole as u64);
    assert!(server.requests().iter().all(|request| !request.contains("Q8_0")));

    // Output of the local file.
    let local = ["run", "-p", "Once upon", "-n", "8", "--temp", "0", "--calibration", "none"];
    let path = data("qwen3-moe.gguf");
    let local = nestling(&server, home.path(), &[&local[..], &["-m", &path]].concat()).ok();
    assert_eq!(text, local);

    // The store alone is sufficient, both for a named quantization and if it is the only one.
    std::fs::remove_file(downloaded).unwrap();
    let before = server.requests().len();
    assert_eq!(run(&server, home.path(), &chosen, &["--offline"]).ok(), text);
    assert_eq!(run(&server, home.path(), REPOSITORY, &["--offline"]).ok(), text);
    assert_eq!(server.requests().len(), before);
}

#[test]
fn another_file_is_another_model() {
    let home = tempfile::tempdir_in(scratch()).unwrap();
    let server = Standin::start(REPOSITORY, COMMIT, files());
    // The largest supported file that fits is chosen by default.
    let ran = run(&server, home.path(), REPOSITORY, &[]);
    assert!(ran.err.contains("Tiny-MoE-Q8_0.gguf (Q8_0)"), "{}", ran.err);
    let largest = ran.ok();
    let file = format!("{REPOSITORY}:Tiny-MoE-Q4_0.gguf");
    assert_ne!(run(&server, home.path(), &file, &[]).ok(), largest);
    let stores = home.path().join("nestling/stores/Nobody--Tiny-MoE-GGUF");
    let stores = std::fs::read_dir(stores).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(stores.filter(|path| path.extension().is_some_and(|e| e == "nest")).count(), 2);
    let unread = format!("{REPOSITORY}:IQ1_S");
    let refused = run(&server, home.path(), &unread, &[]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
}
