//! Cache of the activations after the last completed layer. It is stored beside an unfinished store, so that
//! a resumed conversion need not compute the earlier layers again.
//!
//! A file that is missing, damaged or from another store is ignored.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use nestling_formats::memory::try_with_capacity;
use nestling_formats::store::{StoreError, StoreId};
use nestling_import::ImportError;
use xxhash_rust::xxh3::Xxh3;

use super::ConvertError;
use crate::calibrate::Calibrator;

const MAGIC: [u8; 8] = *b"\x89NESTH\r\n";

/// Number of values converted at once.
const CHUNK: usize = 1 << 14;

/// Length of the header in bytes: magic, store id and layer.
const HEADER_BYTES: usize = MAGIC.len() + 16 + 4;

fn header(id: StoreId, layer: u32) -> Vec<u8> {
    [&MAGIC[..], &id.0, &layer.to_le_bytes()].concat()
}

/// Replaces the file by one with the activations before the calibrator's next layer.
pub(super) fn save(
    path: &Path,
    id: StoreId,
    calibrator: &Calibrator<'_>,
) -> Result<(), ConvertError> {
    let temporary = path.with_extension("hidden.new");
    let header = header(id, calibrator.next_layer());
    let written = write(&temporary, &header, calibrator.hidden());
    written.and_then(|()| fs::rename(&temporary, path)).map_err(|source| {
        let file = path.display().to_string();
        if source.kind() == io::ErrorKind::StorageFull {
            let length = (header.len() + 4 * calibrator.hidden().len()) as u64;
            return ConvertError::Store(StoreError::DiskFull { file, offset: 0, length });
        }
        ConvertError::Checkpoint(ImportError::Io { file, action: "write", source })
    })
}

fn write(path: &Path, header: &[u8], values: &[f32]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut hash = Xxh3::new();
    hash.update(header);
    file.write_all(header)?;
    let mut bytes = Vec::with_capacity(4 * CHUNK);
    for chunk in values.chunks(CHUNK) {
        bytes.clear();
        bytes.extend(chunk.iter().flat_map(|value| value.to_le_bytes()));
        hash.update(&bytes);
        file.write_all(&bytes)?;
    }
    file.write_all(&hash.digest128().to_le_bytes())?;
    file.flush()
}

/// Restores the calibrator from the file, unless the file's layer is beyond `layer_max`.
pub(super) fn load(
    path: &Path,
    id: StoreId,
    layer_max: u32,
    calibrator: &mut Calibrator<'_>,
) -> Result<(), ConvertError> {
    let count = calibrator.hidden().len();
    match read(path, id, count) {
        Ok(Some((layer, hidden))) if layer <= layer_max => Ok(calibrator.resume(layer, hidden)?),
        _ => Ok(()),
    }
}

/// Reads layer and values of a file. Returns `None` if the file is incomplete, damaged or from another store.
fn read(path: &Path, id: StoreId, count: usize) -> io::Result<Option<(u32, Vec<f32>)>> {
    let file = File::open(path)?;
    let expected = (HEADER_BYTES + 16) as u64 + 4 * count as u64;
    if file.metadata()?.len() != expected {
        return Ok(None);
    }
    let mut file = BufReader::new(file);
    let mut found = [0; HEADER_BYTES];
    file.read_exact(&mut found)?;
    let [.., a, b, c, d] = found;
    let layer = u32::from_le_bytes([a, b, c, d]);
    if found[..] != header(id, layer)[..] {
        return Ok(None);
    }
    let mut hash = Xxh3::new();
    hash.update(&found);
    let values = try_with_capacity("activations of the calibration text", count);
    let mut values = values.map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = vec![0; 4 * CHUNK];
    while values.len() < count {
        let part = &mut bytes[..4 * CHUNK.min(count - values.len())];
        file.read_exact(part)?;
        hash.update(part);
        values.extend(part.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    }
    let mut digest = [0; 16];
    file.read_exact(&mut digest)?;
    Ok((digest == hash.digest128().to_le_bytes()).then_some((layer, values)))
}

/// Removes the file after a finished conversion. Errors are ignored, because a leftover file is harmless.
pub(super) fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}
