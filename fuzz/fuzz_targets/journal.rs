//! Arbitrary journals and unfinished stores. Resuming fails or continues, and a finished store opens and
//! matches the checksums in its index.

#![no_main]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nestling_formats::nested::NestedCodec;
use nestling_formats::store::{Disk, MemoryStorage, Store, StorePlan, StoreWriter};
use xxhash_rust::xxh3::xxh3_64;

#[path = "../../formats/nest/tests/store/support/mod.rs"]
#[expect(dead_code, reason = "the tests of stores use more of it")]
mod support;

use support::memory_disk::MemoryDisk;
use support::{codec, fill, least_plan};

#[derive(Arbitrary, Debug)]
struct Record {
    kind: u8,
    number: u8,
    payload: Vec<u8>,
    /// True to use a valid codec as payload.
    codec: bool,
    /// True to use the extent's correct hash as payload.
    hash: bool,
    /// Wrong length or checksum.
    damage: Option<u32>,
}

#[derive(Arbitrary, Debug)]
struct Input {
    /// Bit mask of the extents that an earlier attempt wrote.
    written: u16,
    /// Length to which the journal is truncated before records are added.
    length: Option<u16>,
    records: Vec<Record>,
    tail: Vec<u8>,
    /// Changes of the unfinished file.
    edits: Vec<(u16, u8)>,
    file_length: Option<u16>,
    /// True if the first file has its final name already.
    renamed: bool,
}

const PATH: &str = "/model.nest";

/// The whole store, and its complete journal.
struct SoundStore {
    plan: StorePlan,
    store: Vec<u8>,
    journal: Vec<u8>,
}

fn sound() -> &'static SoundStore {
    static SOUND: OnceLock<SoundStore> = OnceLock::new();
    SOUND.get_or_init(|| {
        let (plan, disk) = (least_plan(), MemoryDisk::default());
        let open = |disk: &MemoryDisk, resume| {
            StoreWriter::open_on(Arc::new(disk.clone()), Path::new(PATH), &plan, resume).unwrap()
        };
        fill(open(&disk, false), &plan).unwrap();
        let store = disk.contents(Path::new(PATH)).unwrap();
        let disk = MemoryDisk::default();
        let writer = open(&disk, false);
        writer.set_codec(0, &codec(1)).unwrap();
        let contents = support::contents(&plan);
        for extent in writer.index().extents() {
            let id = writer.index().group_of(extent).unwrap().id.clone();
            let key = (id, extent.plane);
            writer.write_extent(&key.0, key.1, &contents[&key]).unwrap();
        }
        drop(writer);
        let journal = disk.contents(&journal_path()).unwrap();
        SoundStore { plan, store, journal }
    })
}

fn journal_path() -> std::path::PathBuf {
    format!("{PATH}.journal").into()
}

impl Record {
    fn bytes(&self) -> Vec<u8> {
        let sound = sound();
        let mut payload = self.payload.clone();
        if self.codec {
            payload = codec(1).to_bytes();
            assert!(NestedCodec::from_bytes(&payload).is_ok());
        } else if self.hash {
            let store = Store::from_storage(
                Arc::new(MemoryStorage::new("sound", sound.store.clone())),
                false,
            );
            let store = store.unwrap();
            let extents = store.index().extents();
            payload = extents[usize::from(self.number) % extents.len()].hash.to_vec();
        }
        let mut bytes = Vec::new();
        bytes.extend(u32::from(self.kind % 9).to_le_bytes());
        bytes.extend(u32::from(self.number).to_le_bytes());
        let length = self.damage.filter(|damage| damage % 2 == 0);
        bytes.extend(length.unwrap_or(payload.len() as u32).to_le_bytes());
        bytes.extend(payload);
        let wrong = self.damage.filter(|damage| damage % 2 == 1);
        let checksum = wrong.map_or_else(|| xxh3_64(&bytes), u64::from);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }
}

/// Returns a disk as left by an earlier attempt or by an attacker.
fn disk_of(input: &Input) -> MemoryDisk {
    let (sound, disk) = (sound(), MemoryDisk::default());
    let write = |path: &Path, bytes: &[u8]| {
        let file = disk.open(path).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync().unwrap();
    };
    let mut journal = sound.journal.clone();
    if let Some(length) = input.length {
        journal.truncate(usize::from(length));
    }
    input.records.iter().take(16).for_each(|record| journal.extend(record.bytes()));
    journal.extend(&input.tail);
    write(&journal_path(), &journal);
    let mut partial = sound.store.clone();
    // The header of a store is written last.
    if !input.renamed {
        partial[..512].fill(0);
    }
    for (number, extent) in partial.chunks_mut(512).skip(1).enumerate() {
        if input.written >> (number % 16) & 1 == 0 {
            extent.fill(0);
        }
    }
    for (at, byte) in input.edits.iter().take(16) {
        let at = usize::from(*at) % partial.len();
        partial[at] = *byte;
    }
    if let Some(length) = input.file_length {
        partial.resize(usize::from(length), 7);
    }
    let name = if input.renamed { PATH.to_owned() } else { format!("{PATH}.partial") };
    write(Path::new(&name), &partial);
    disk
}

fuzz_target!(|input: Input| {
    let (sound, disk) = (sound(), disk_of(&input));
    let resumed = StoreWriter::open_on(Arc::new(disk.clone()), Path::new(PATH), &sound.plan, true);
    let Ok(writer) = resumed else { return };
    let (done, all) = writer.progress_bytes();
    assert!(done <= all);
    // Valid codecs in the journal are trusted, and different ones are then rejected.
    if fill(writer, &sound.plan).is_err() {
        return;
    }
    let bytes = disk.contents(Path::new(PATH)).expect("a finished store has its name");
    assert_eq!(bytes.len(), sound.store.len());
    let store = Store::from_storage(Arc::new(MemoryStorage::new("fuzz", bytes)), true);
    let report = store.expect("a finished store opens").verify(&mut |_| ControlFlow::Continue(()));
    let report = report.expect("a finished store can be read");
    assert!(report.damage.is_empty(), "{report:?}");
});
