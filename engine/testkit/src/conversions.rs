//! Stores of checkpoints that no test changes: each is converted once in a program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use nestling_convert::convert::{ConvertOptions, convert};
use nestling_core::cancel::CancelToken;
use nestling_import::Checkpoint;

/// Bytes of a store that one test converts and the others copy.
type StoreBytes = Arc<OnceLock<Vec<u8>>>;

/// Writes the store of a checkpoint to `path`, as default options convert it.
pub fn convert_once(checkpoint: &Path, path: &Path) {
    static STORES: Mutex<BTreeMap<PathBuf, StoreBytes>> = Mutex::new(BTreeMap::new());
    let bytes = Arc::clone(STORES.lock().unwrap().entry(checkpoint.to_owned()).or_default());
    let bytes = bytes.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("once.nest");
        let (options, cancel) = (ConvertOptions::default(), CancelToken::new());
        convert(&Checkpoint::open(checkpoint).unwrap(), &path, &options, &cancel, &mut |_| {})
            .unwrap();
        fs::read(path).unwrap()
    });
    fs::write(path, bytes).unwrap();
}
