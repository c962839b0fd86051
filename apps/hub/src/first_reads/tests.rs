use super::*;
use nestling_convert::in_place::open_in_place;
use nestling_formats::store::{Digits, StoreError};
use nestling_import::Checkpoint;
use std::sync::Arc;

fn model() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data/gguf");
    std::fs::read(Path::new(path).join("qwen3-moe.gguf")).unwrap()
}

fn open(path: &Path) -> Store {
    open_in_place(Arc::new(Checkpoint::open(path).unwrap()), Digits::Merged).unwrap()
}

fn read_all(store: &Store) -> std::result::Result<(), StoreError> {
    store.index().extents().iter().try_for_each(|extent| store.read_extent_vec(extent).map(drop))
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn what_was_read_is_known_in_another_process_and_damage_is_seen() {
    let root = tempfile::tempdir().unwrap();
    let (path, folder) = (root.path().join("model.gguf"), root.path().join("reads"));
    let reads = FirstReads::new(&folder);
    std::fs::write(&path, model()).unwrap();
    let first = open(&path);
    assert_eq!(reads.recall(&first), 0);
    reads.keep(&first).unwrap();
    assert_eq!(files(&folder), 0, "nothing was read");
    read_all(&first).unwrap();
    reads.keep(&first).unwrap();
    let count = first.index().extents().len();
    let second = open(&path);
    assert_eq!(reads.recall(&second), count);
    read_all(&second).unwrap();
    // Simulates a failing disk: the bytes differ although the file was not written.
    let mut firsts = second.first_checksums().unwrap();
    let expert = second.groups().iter().find(|group| group.id.expert().is_some()).unwrap();
    let number = expert.extents.iter().flatten().next().copied().unwrap() as usize;
    firsts[number].as_mut().unwrap()[0] ^= 1;
    std::fs::write(reads.path(&second), encode(&second, &firsts)).unwrap();
    let third = open(&path);
    assert_eq!(reads.recall(&third), count);
    let error = read_all(&third).unwrap_err().to_string();
    for words in ["damaged since it was first read", "`blk.0.ffn_gate_exps.weight` from byte "] {
        assert!(error.contains(words), "{error}");
    }
    // The damaged extent alone is refused, and the report lists all damage.
    let report = third.verify(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert_eq!((report.extents, report.damage.len()), (count, 1));
}

#[test]
fn what_cannot_be_believed_is_thrown_away() {
    let root = tempfile::tempdir().unwrap();
    let (path, folder) = (root.path().join("model.gguf"), root.path().join("reads"));
    let reads = FirstReads::new(&folder);
    std::fs::write(&path, model()).unwrap();
    let store = open(&path);
    read_all(&store).unwrap();
    reads.keep(&store).unwrap();
    let kept = reads.path(&store);
    let good = std::fs::read(&kept).unwrap();
    for at in (0..good.len()).step_by(7) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&kept, &bad).unwrap();
        assert_eq!(reads.recall(&open(&path)), 0, "byte {at}");
        assert!(!kept.exists(), "byte {at}");
    }
    for length in [0, 7, 40, good.len() - 1] {
        std::fs::write(&kept, &good[..length]).unwrap();
        assert_eq!(reads.recall(&open(&path)), 0, "{length} bytes");
    }
    // A record with a valid checksum but an extent number out of range.
    let mut far = good[..good.len() - TAIL_BYTES].to_vec();
    far[HEAD_BYTES..HEAD_BYTES + 8].fill(0xff);
    far.extend(Sha256::digest(far.clone()));
    std::fs::write(&kept, far).unwrap();
    assert_eq!(reads.recall(&open(&path)), 0);
    std::fs::write(&kept, [&good[..], &[0; 1 << 20]].concat()).unwrap();
    assert_eq!(reads.recall(&open(&path)), 0);
}

#[test]
fn a_file_in_another_state_is_another() {
    let root = tempfile::tempdir().unwrap();
    let (path, folder) = (root.path().join("model.gguf"), root.path().join("reads"));
    let reads = FirstReads::new(&folder);
    let mut bytes = model();
    std::fs::write(&path, &bytes).unwrap();
    let store = open(&path);
    read_all(&store).unwrap();
    reads.keep(&store).unwrap();
    let time = path.metadata().unwrap().modified().unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    // Package managers set fixed times.
    File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let other = open(&path);
    if cfg!(unix) {
        assert_ne!(other.id(), store.id());
        assert_eq!(reads.recall(&other), 0);
        read_all(&other).unwrap();
    }
}

#[test]
fn two_processes_keep_what_both_have_read() {
    let root = tempfile::tempdir().unwrap();
    let (path, folder) = (root.path().join("model.gguf"), root.path().join("reads"));
    let reads = FirstReads::new(&folder);
    std::fs::write(&path, model()).unwrap();
    let (a, b) = (open(&path), open(&path));
    let count = a.index().extents().len();
    a.read_extent_vec(&a.index().extents()[0]).unwrap();
    b.read_extent_vec(&b.index().extents()[count - 1]).unwrap();
    reads.keep(&a).unwrap();
    reads.keep(&b).unwrap();
    assert_eq!(reads.recall(&open(&path)), 2);
    // The number of records stays at its maximum.
    for number in 0..FILES_MAX + 3 {
        std::fs::write(folder.join(format!("{number}.{ENDING}")), "old").unwrap();
    }
    a.read_extent_vec(&a.index().extents()[1]).unwrap();
    reads.keep(&a).unwrap();
    assert_eq!(files(&folder), FILES_MAX);
    assert_eq!(reads.recall(&open(&path)), 3);
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_and_no_more() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("model.gguf");
    std::fs::write(&path, model()).unwrap();
    let store = open(&path);
    read_all(&store).unwrap();
    // A file instead of the folder.
    let reads = FirstReads::new(&path);
    assert_eq!(reads.recall(&store), 0);
    assert!(matches!(reads.keep(&store), Err(HubError::File { .. })));
}
