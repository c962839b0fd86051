//! Checkpoints with header files instead of weight files.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use nestling_formats::{MatrixId, MatrixKind};
use nestling_import::{Checkpoint, write_header};

fn published() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data/tiny-qwen3-moe")
}

/// Returns a copy in which each weight file is replaced with its header file.
fn header_files() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(published()).unwrap() {
        let from = entry.unwrap().path();
        let to = copy.path().join(from.file_name().unwrap());
        if from.extension().is_none_or(|ending| ending != "safetensors") {
            fs::copy(&from, &to).unwrap();
            continue;
        }
        let bytes = fs::read(&from).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        write_header(&to, bytes.len() as u64, &bytes[..8 + header]).unwrap();
    }
    copy
}

#[test]
fn headers_are_enough_to_check_a_checkpoint() {
    let (whole, directory) = (Checkpoint::open(published()).unwrap(), header_files());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert!(whole.is_whole() && !checkpoint.is_whole());
    assert_eq!(checkpoint.shape(), whole.shape());
    assert_eq!(checkpoint.weight_bytes(), whole.weight_bytes());
    let id = MatrixId { kind: MatrixKind::Query, layer: Some(0), expert: None };
    let size = |checkpoint: &Checkpoint| checkpoint.matrix(id).unwrap().length();
    assert_eq!(size(&checkpoint), size(&whole));
    let error = checkpoint.read_matrix(id).unwrap_err();
    assert!(error.to_string().contains("only the beginning"), "{error}");
}

#[test]
fn a_header_file_that_is_none_is_refused() {
    let directory = header_files();
    let mut entries = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let header = entries.find(|path| path.extension().is_some_and(|e| e == "front")).unwrap();
    let good = fs::read(&header).unwrap();
    for bad in [&good[..7], &good[..15], &[&b"nestfrnt"[..], &good[8..]].concat()] {
        fs::write(&header, bad).unwrap();
        assert!(Checkpoint::open(directory.path()).is_err());
    }
    // A header that is longer than the whole file.
    let mut long = good.clone();
    long[8..16].copy_from_slice(&10u64.to_le_bytes());
    fs::write(&header, long).unwrap();
    assert!(Checkpoint::open(directory.path()).is_err());
}
