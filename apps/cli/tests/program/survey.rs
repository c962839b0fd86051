//! Tests of `plan -hf`: plans and refusals from headers only.

use super::{ProcessOutput, crate_path, program, store};
use nestling_testkit::hub_server::Standin;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const COMMIT: &str = "77ac0777bcd18fa416d9da3bd8f70d33ebb85d39";
const REPOSITORY: &str = "Nobody/Small-MoE";

type Files = BTreeMap<String, Vec<u8>>;

fn published() -> Files {
    let folder = std::fs::read_dir(crate_path("tests/data/published-layout")).unwrap();
    let paths = folder.map(|entry| entry.unwrap().path());
    let read = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read(path).unwrap())
    };
    paths.map(read).collect()
}

fn serve(files: Files) -> Standin {
    Standin::start(REPOSITORY, COMMIT, files)
}

fn nestling(server: &Standin, home: &Path, arguments: &[&str]) -> ProcessOutput {
    let mut command = program();
    command.env("HF_ENDPOINT", &server.address);
    command.env("HF_HOME", home.join("hf")).env("NESTLING_CACHE", home.join("nestling"));
    command.args(arguments).output().unwrap().into()
}

fn plan(server: &Standin, home: &Path, more: &[&str]) -> ProcessOutput {
    let fixed = ["plan", "--memory-speed", "10GB", "--disk-speed", "1GB", "--memory", "64MiB"];
    nestling(server, home, &[&fixed[..], more].concat())
}

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(super::scratch()).unwrap()
}

#[test]
fn headers_tell_what_a_checkpoint_would_take() {
    let (home, server) = (home(), serve(published()));
    let text = plan(&server, home.path(), &["-hf", REPOSITORY]).ok();
    for words in
        ["Nobody/Small-MoE, ", " k weights", "at most ", "download  ", "to fetch", "store     "]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(
        text.contains("it would run here: ") && text.contains("everything in memory"),
        "{text}"
    );
    let (served, whole) = (server.served(), 518_000);
    assert!(served < whole / 4, "{served} bytes of {whole}");
    assert!(!home.path().join("hf/hub").join("models--Nobody--Small-MoE/blobs").exists());

    // A second plan uses cached headers.
    let json = plan(&server, home.path(), &["-hf", REPOSITORY, "--json"]).ok();
    assert!(server.served() < 10_000);
    let json: Value = serde_json::from_str(&json).unwrap();
    let arrival = &json["arrival"]["download"];
    assert_eq!(arrival["files"], 9);
    assert_eq!(arrival["total_bytes"], arrival["missing_bytes"]);
    assert!(arrival["total_bytes"].as_u64().unwrap() > 518_000);
    assert!(arrival["disks"][0]["needed_bytes"].as_u64() > arrival["total_bytes"].as_u64());
    let levels: Vec<_> = json["levels"].as_array().unwrap().iter().collect();
    assert_eq!(levels.len(), 5);
    assert!(levels.iter().all(|level| level["tokens_per_s"].as_f64().unwrap() > 0.0));

    // The planned size of the converted store is correct except for its tokenizer.
    let run = ["run", "-hf", REPOSITORY, "--calibration", "none", "-p", "x", "-n", "1"];
    nestling(&server, home.path(), &run).ok();
    let folder = home.path().join("nestling/stores/Nobody--Small-MoE");
    let mut stores = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let store = stores.find(|path| path.extension().is_some_and(|e| e == "nest")).unwrap();
    let made = std::fs::metadata(store).unwrap().len();
    let told = json["arrival"]["store_bytes"].as_u64().unwrap() - (16 << 20);
    assert!(made.abs_diff(told) < 16 << 10, "{made} {told}");
}

#[test]
fn a_folder_and_a_store_are_planned_for_alike() {
    let home = home();
    let server = serve(Files::from([("a/tiny.nest".into(), std::fs::read(store()).unwrap())]));
    let folder = crate_path("tests/data/published-layout").display().to_string();
    let text = plan(&server, home.path(), &[&folder]).ok();
    assert!(text.contains("once converted") && !text.contains("download"), "{text}");
    // The header and index of a repository's store are sufficient.
    let text = plan(&server, home.path(), &["-hf", REPOSITORY, "--level", "2"]).ok();
    assert!(text.contains("in 1 file (a store)"), "{text}");
    assert!(server.served() < 80_000);
    let local = plan(&server, home.path(), &[store(), "--level", "2"]).ok();
    let table = |text: &str| text.split("weights of every token").nth(1).unwrap().to_owned();
    let remote = table(&text);
    let (remote, _) = remote.split_once("\nit would run here").unwrap();
    assert_eq!(remote, table(&local));
}

#[test]
fn what_cannot_run_is_said_from_headers() {
    let refused = |change: &dyn Fn(&mut Files), words: &[&str]| {
        let mut files = published();
        change(&mut files);
        let (home, server) = (home(), serve(files));
        for command in [&["plan", "-hf", REPOSITORY][..], &["run", "-hf", REPOSITORY, "-p", "x"]] {
            let ran = nestling(&server, home.path(), command);
            ran.fails(1, "cannot run here", "nothing large was downloaded");
            for word in words {
                assert!(ran.err.contains(word), "{word}: {}", ran.err);
            }
            assert!(server.served() < 130_000);
        }
    };
    let config = |key: &'static str, value: Value| {
        move |files: &mut Files| {
            let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
            config[key] = value.clone();
            files.insert("config.json".into(), config.to_string().into_bytes());
        }
    };
    refused(&config("model_type", "gpt2".into()), &["config.json", "`model_type`", "\"gpt2\""]);
    refused(&config("some_new_option", 3.into()), &["`some_new_option` = 3", "might change"]);
    refused(&config("num_hidden_layers", 9.into()), &["is missing", "model.layers."]);
    refused(&retyped, &["F8_E4M3", "BF16", "model-00002-of-00004.safetensors"]);
}

/// Changes the element type of a shard to an unsupported one.
fn retyped(files: &mut Files) {
    let name = "model-00002-of-00004.safetensors";
    let bytes = files[name].clone();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let json = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let known = ["BF16", "F16", "F32"].into_iter().find(|dtype| json.contains(*dtype)).unwrap();
    let json = json.replacen(&format!("\"{known}\""), "\"F8_E4M3\"", 1);
    let front = (json.len() as u64).to_le_bytes();
    files.insert(name.into(), [&front, json.as_bytes(), &bytes[8 + length..]].concat());
}

#[test]
fn what_a_repository_holds_instead_is_said() {
    let refused = |files: &[&str], wanted: &str, error: &str, advice: &str| {
        let files = files.iter().map(|name| ((*name).to_owned(), vec![0; 100])).collect();
        let (home, server) = (home(), serve(files));
        plan(&server, home.path(), &["-hf", wanted]).fails(1, error, advice);
    };
    refused(&["README.md"], REPOSITORY, "holds no model", "GGUF");
    refused(&["config.json", "pytorch_model.bin"], REPOSITORY, "pytorch_model.bin", "safetensors");
    refused(&["a.nest", "b.nest"], REPOSITORY, "2 stores", "a.nest, b.nest");
    let model = "Nobody/Small-MoE:Q4_K_M";
    refused(&["x-Q8_0.gguf"], model, "is a `Q4_K_M`", "Q8_0 (100 B)");
    refused(&["x-Q9_S.gguf"], REPOSITORY, "none of", "Q4_K_M");
    refused(&["config.json", "model.safetensors"], model, "no GGUF files", "--level");
    refused(&["x-00001-of-00002.gguf"], REPOSITORY, "none of", "Q4_K_M");
    let file = "Nobody/Small-MoE:x-00001-of-00002.gguf";
    refused(&["x-00001-of-00002.gguf"], file, "1 of its 2 parts", "another file");
}
