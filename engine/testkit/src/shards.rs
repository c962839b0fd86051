//! A small store in several files.

use nestling_convert::convert::{ConvertOptions, convert};
use nestling_core::cancel::CancelToken;
use nestling_import::Checkpoint;
use std::collections::BTreeMap;
use std::path::Path;

/// Converts the tiny Qwen3 checkpoint into a store `m.nest` in shards. Returns the files by name.
pub fn in_shards(bytes_max: u64) -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/tests/data/tiny-qwen3-moe");
    let checkpoint = Checkpoint::open(Path::new(tiny)).unwrap();
    let mut options = ConvertOptions::default();
    options.shard_bytes_max = Some(bytes_max);
    let path = folder.path().join("m.nest");
    convert(&checkpoint, &path, &options, &CancelToken::new(), &mut |_| {}).unwrap();
    let entries = std::fs::read_dir(folder.path()).unwrap().flatten();
    let file = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read(path).unwrap())
    };
    entries.map(|entry| file(&entry.path())).collect()
}
