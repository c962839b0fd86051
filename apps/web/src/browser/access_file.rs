//! Files of the origin private file system.

use send_wrapper::SendWrapper;
use wasm_bindgen::JsValue;
use web_sys::{FileSystemReadWriteOptions, FileSystemSyncAccessHandle};

use crate::blocks::BlockFile;
use crate::ranges::RangeError;

/// A file with a synchronous access handle, which only a dedicated worker has.
pub struct AccessFile {
    handle: SendWrapper<FileSystemSyncAccessHandle>,
}

impl AccessFile {
    pub fn new(handle: FileSystemSyncAccessHandle) -> Self {
        Self { handle: SendWrapper::new(handle) }
    }
}

fn failed(error: &JsValue) -> RangeError {
    RangeError::Storage { reason: super::http::describe(error) }
}

fn at(offset: u64) -> FileSystemReadWriteOptions {
    let options = FileSystemReadWriteOptions::new();
    options.set_at(offset as f64);
    options
}

fn expect_all(transferred: f64, expected: usize) -> Result<(), RangeError> {
    if transferred == expected as f64 {
        return Ok(());
    }
    Err(RangeError::Storage { reason: format!("{transferred} bytes of {expected}") })
}

impl BlockFile for AccessFile {
    fn len(&self) -> Result<u64, RangeError> {
        self.handle.get_size().map(|bytes| bytes as u64).map_err(|error| failed(&error))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), RangeError> {
        let read = self.handle.read_with_u8_array_and_options(out, &at(offset));
        expect_all(read.map_err(|error| failed(&error))?, out.len())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RangeError> {
        let written = self.handle.write_with_u8_array_and_options(bytes, &at(offset));
        expect_all(written.map_err(|error| failed(&error))?, bytes.len())
    }

    fn clear(&mut self) -> Result<(), RangeError> {
        self.handle.truncate_with_f64(0.0).map_err(|error| failed(&error))
    }
}
