//! Writing that is interrupted, runs out of space, or has invalid arguments.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_formats::store::format::ASSET_BYTES_MAX;
use nestling_formats::store::{
    GroupId, MatrixData, Measures, StoreError, StorePlan, StoreWriter, pack_extent, shard_path,
};
use nestling_formats::{DType, FloatKind, MatrixKind, Plane};

use crate::support::memory_disk::{Fault, MemoryDisk};
use crate::support::seal::seal;
use crate::support::{
    Random, bytes_of, codec, contents, damage, fill, open_bytes, small_plan, tensor,
};

const DESTINATION: &str = "folder/model.nest";

/// Writes the first `count` extents, then stops like a killed process.
fn write_some(path: &Path, plan: &StorePlan, count: usize) {
    let writer = StoreWriter::create(path, plan).unwrap();
    writer.set_codec(1, &codec(3)).unwrap();
    let contents = contents(plan);
    for extent in &writer.index().extents()[..count] {
        let id = writer.index().group_of(extent).unwrap().id.clone();
        writer.write_extent(&id, extent.plane, &contents[&(id.clone(), extent.plane)]).unwrap();
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

#[test]
fn an_interrupted_store_resumes_to_the_same_bytes() {
    let plan = small_plan();
    let expected = bytes_of(&plan);
    let extents = plan.index().unwrap().extents().len();
    for count in [0, 1, 2, extents / 2, extents - 1, extents] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.nest");
        write_some(&path, &plan, count);
        assert!(!path.exists());
        let writer = StoreWriter::resume(&path, &plan).unwrap();
        let written: u64 =
            writer.index().extents()[..count].iter().map(|extent| extent.length).sum();
        assert_eq!(writer.progress_bytes().0, written);
        assert_eq!(*writer.codec(1).unwrap(), codec(3));
        assert_eq!(writer.codec(0), None);
        fill(writer, &plan).unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected, "after {count} extents");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn what_was_damaged_in_between_is_written_again() {
    let plan = small_plan();
    let expected = bytes_of(&plan);
    let extents = plan.index().unwrap().extents().to_vec();
    let mut random = Random(3);
    for round in 0..30 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.nest");
        write_some(&path, &plan, extents.len() - 5);
        let (partial, journal) = (beside(&path, ".partial"), beside(&path, ".journal"));
        for file in [&partial, &journal] {
            let mut bytes = fs::read(file).unwrap();
            match (round + random.below(2)) % 4 {
                0 => (0..20).for_each(|_| {
                    let at = random.below(bytes.len());
                    bytes[at] ^= 0x10;
                }),
                1 => bytes.truncate(random.below(bytes.len())),
                2 => bytes.extend_from_slice(&random.next().to_le_bytes()),
                _ => (),
            }
            fs::write(file, bytes).unwrap();
        }
        fill(StoreWriter::resume(&path, &plan).unwrap(), &plan).unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected, "round {round}");
    }
}

#[test]
fn another_plan_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    write_some(&path, &small_plan(), 20);
    let mut other = small_plan();
    other.source = b"another".to_vec();
    let writer = StoreWriter::resume(&path, &other).unwrap();
    assert_eq!(writer.progress_bytes().0, 0);
    fill(writer, &other).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes_of(&other));
}

/// Tries to write the store on a disk that may fail, from the start or resuming.
fn attempt(disk: &MemoryDisk, plan: &StorePlan, resume: bool) -> Result<(), StoreError> {
    let disk = Arc::new(disk.clone());
    fill(StoreWriter::open_on(disk, Path::new(DESTINATION), plan, resume)?, plan)
}

/// Returns the store's files on a disk, concatenated.
fn result(disk: &MemoryDisk, plan: &StorePlan) -> Option<Vec<u8>> {
    let count = plan.index().unwrap().shards().len() as u32;
    let paths = (0..count).map(|shard| shard_path(Path::new(DESTINATION), shard, count));
    let files: Option<Vec<_>> = paths.map(|path| disk.contents(&path)).collect();
    Some(files?.concat())
}

fn plans() -> [StorePlan; 2] {
    let mut sharded = small_plan();
    sharded.shard_bytes_max = Some(60_000);
    [small_plan(), sharded]
}

#[test]
fn every_operation_may_fail_once_or_for_good() {
    for plan in plans() {
        let disk = MemoryDisk::default();
        attempt(&disk, &plan, false).unwrap();
        let (operations, expected) = (disk.operations(), result(&disk, &plan).unwrap());
        assert_eq!(disk.names().len(), plan.index().unwrap().shards().len());
        // The last operation removes the journal, when the store is already complete.
        for operation in 0..operations - 1 {
            for fault in [
                Fault::Once(ErrorKind::TimedOut),
                Fault::Sticky(ErrorKind::TimedOut),
                Fault::Once(ErrorKind::StorageFull),
                Fault::Sticky(ErrorKind::StorageFull),
            ] {
                let disk = MemoryDisk::default();
                disk.fail_at(operation, fault);
                let error = attempt(&disk, &plan, false).unwrap_err();
                let full = matches!(
                    fault,
                    Fault::Once(ErrorKind::StorageFull) | Fault::Sticky(ErrorKind::StorageFull)
                );
                match error {
                    StoreError::DiskFull { .. } => assert!(full),
                    StoreError::Io { .. } => assert!(!full),
                    error => panic!("operation {operation}, {fault:?}: {error}"),
                }
                disk.heal();
                attempt(&disk, &plan, true).unwrap();
                let found = result(&disk, &plan);
                assert!(found.as_ref() == Some(&expected), "operation {operation}, {fault:?}");
            }
        }
    }
}

#[test]
fn a_full_disk_says_so_and_goes_on_after_room_was_made() {
    let plan = small_plan();
    let expected = bytes_of(&plan);
    let disk = MemoryDisk::default();
    for limit in [100, 172_500, 173_000] {
        disk.limit(Some(limit));
        let error = attempt(&disk, &plan, true).unwrap_err();
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error:?}");
        assert!(error.to_string().contains("the disk is full"), "{error}");
        assert!(disk.contents(Path::new(DESTINATION)).is_none());
    }
    disk.limit(None);
    attempt(&disk, &plan, true).unwrap();
    assert_eq!(result(&disk, &plan), Some(expected));
}

#[test]
fn power_may_fail_at_any_operation() {
    let mut random = Random(4);
    for plan in plans() {
        let disk = MemoryDisk::default();
        attempt(&disk, &plan, false).unwrap();
        let (operations, expected) = (disk.operations(), result(&disk, &plan).unwrap());
        for operation in 0..operations {
            let disk = MemoryDisk::default();
            let mut left = operation;
            // Power fails up to three times before the store is complete.
            for resume in [false, true, true] {
                disk.fail_at(left, Fault::Sticky(ErrorKind::BrokenPipe));
                let _ = attempt(&disk, &plan, resume);
                disk.lose_power(&mut random);
                disk.heal();
                if let Some(found) = result(&disk, &plan) {
                    assert!(found == expected, "an incomplete store has the final name");
                }
                left = left / 2 + 3;
            }
            attempt(&disk, &plan, true).unwrap();
            assert!(result(&disk, &plan) == Some(expected.clone()), "operation {operation}");
        }
    }
}

#[test]
fn what_a_failed_sync_lost_is_written_again() {
    let mut random = Random(5);
    for plan in plans() {
        let disk = MemoryDisk::default();
        attempt(&disk, &plan, false).unwrap();
        let (operations, expected) = (disk.operations(), result(&disk, &plan).unwrap());
        for operation in 0..operations {
            let disk = MemoryDisk::default();
            disk.fail_at(operation, Fault::Once(ErrorKind::TimedOut));
            let first = attempt(&disk, &plan, false);
            disk.heal();
            if first.is_err() {
                attempt(&disk, &plan, true).unwrap();
            }
            disk.lose_power(&mut random);
            assert!(result(&disk, &plan) == Some(expected.clone()), "operation {operation}");
        }
    }
}

#[test]
fn a_store_whose_name_may_be_lost_is_unfinished() {
    let plan = small_plan();
    let disk = MemoryDisk::default();
    attempt(&disk, &plan, false).unwrap();
    // The sync of the folder, which is followed by the removal of the journal.
    let sync = disk.operations() - 2;
    let disk = MemoryDisk::default();
    disk.fail_at(sync, Fault::Once(ErrorKind::TimedOut));
    let error = attempt(&disk, &plan, false).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    disk.heal();
    assert!(disk.contents(Path::new(DESTINATION)).is_none(), "the store has its final name");
    attempt(&disk, &plan, true).unwrap();
    assert_eq!(result(&disk, &plan), Some(bytes_of(&plan)));
}

#[test]
fn two_writers_do_not_meet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    let first = StoreWriter::create(&path, &small_plan()).unwrap();
    for second in
        [StoreWriter::create(&path, &small_plan()), StoreWriter::resume(&path, &small_plan())]
    {
        assert!(matches!(second, Err(StoreError::Busy { .. })));
    }
    first.abandon().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_writer_refuses_what_was_not_planned() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan();
    let writer = StoreWriter::create(&folder.path().join("model.nest"), &plan).unwrap();
    let id = GroupId::expert_of(1, 0);
    let short = writer.write_extent(&id, Plane::P2, &[0; 64]);
    assert!(matches!(short, Err(StoreError::Length { found: 64, .. })));
    let absent = writer.write_extent(&GroupId::expert_of(1, 3), Plane::P2, &[]);
    assert!(matches!(absent, Err(StoreError::Absent { .. })));
    assert!(matches!(writer.set_codec(2, &codec(1)), Err(StoreError::Plan { .. })));
    assert!(matches!(writer.set_codec(1, &codec(1)), Err(StoreError::Plan { .. })));
    let mut wrong = codec(3);
    wrong.beta_q = 0;
    assert!(matches!(writer.set_codec(1, &wrong), Err(StoreError::Plan { .. })));
    writer.set_codec(1, &codec(3)).unwrap();
    writer.set_codec(1, &codec(3)).unwrap();
    let mut other = codec(3);
    other.beta_q = 20;
    assert!(matches!(writer.set_codec(1, &other), Err(StoreError::Plan { .. })));
    assert!(matches!(writer.set_frequency(&id, f32::NAN), Err(StoreError::Plan { .. })));
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, StoreError::Unfinished { what, .. } if what == "asset `config.json`"));
}

#[test]
fn measured_values_are_kept() {
    let plan = small_plan();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    let id = GroupId::expert_of(1, 2);
    let writer = StoreWriter::create(&path, &plan).unwrap();
    writer.set_error_drop(&id, Plane::P4, 0.25).unwrap();
    writer.set_frequency(&id, 0.0).unwrap();
    drop(writer);
    fill(StoreWriter::resume(&path, &plan).unwrap(), &plan).unwrap();
    let store = open_bytes(fs::read(&path).unwrap()).unwrap();
    let group = store.group(&id).unwrap();
    assert_eq!(group.frequency, Some(0.0));
    assert_eq!(store.extent(group, Plane::P4).unwrap().error_drop, Some(0.25));
    assert_eq!(store.extent(group, Plane::P3).unwrap().error_drop, None);
    assert!(damage(&store).is_empty());
}

#[test]
fn measures_of_matrices_are_kept_where_there_is_room() {
    let id = GroupId::expert_of(1, 2);
    let drops = [Some(9.0), Some(2.0), None, Some(0.5), Some(0.0)];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    let writer = StoreWriter::create(&path, &small_plan()).unwrap();
    let refused = writer.set_matrix_error_drops(&id, MatrixKind::Down, drops);
    assert!(matches!(refused, Err(StoreError::Absent { .. })));
    drop(writer);

    let mut plan = small_plan();
    plan.measures = Measures::PerMatrix;
    let writer = StoreWriter::create(&path, &plan).unwrap();
    writer.set_matrix_error_drops(&id, MatrixKind::Down, drops).unwrap();
    writer.set_weight_square(&id, 0.375).unwrap();
    let refused = writer.set_matrix_error_drops(&id, MatrixKind::Query, drops);
    assert!(matches!(refused, Err(StoreError::Absent { .. })));
    let refused = writer.set_matrix_error_drops(&id, MatrixKind::Up, [Some(-1.0); 5]);
    assert!(matches!(refused, Err(StoreError::Plan { .. })));
    drop(writer);
    fill(StoreWriter::resume(&path, &plan).unwrap(), &plan).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let store = open_bytes(bytes.clone()).unwrap();
    let group = store.group(&id).unwrap();
    assert_eq!(group.weight_square, Some(0.375));
    assert_eq!(group.error_drops, [[None; 5], [None; 5], drops]);
    assert!(store.groups().iter().all(|group| group.error_drops.len() == group.matrices.len()));
    assert!(damage(&store).is_empty());

    // The record of the last expert's last matrix is the last one, directly before the codecs.
    let at = 9f32.to_le_bytes();
    let at = bytes.windows(4).position(|window| window == at).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    seal(&mut bytes);
    let error = open_bytes(bytes).unwrap_err().to_string();
    assert!(error.contains("measure 14: error drop at byte"), "{error}");
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let refuse = |change: fn(&mut StorePlan)| {
        let mut plan = small_plan();
        change(&mut plan);
        match plan.index() {
            Err(StoreError::Plan { what, reason }) => format!("{what}: {reason}"),
            other => panic!("{other:?}"),
        }
    };
    assert!(refuse(|plan| plan.add_asset("../climb", 4)).contains("letters"));
    assert!(refuse(|plan| plan.add_asset("empty", 0)).contains("is empty"));
    let large = refuse(|plan| plan.add_asset("large", ASSET_BYTES_MAX + 1));
    assert!(large.contains("67108865, expected 1 to 67108864"), "{large}");
    assert!(refuse(|plan| plan.add_asset("config.json", 4)).contains("planned twice"));
    assert!(refuse(|plan| plan.alignment = Some(5000)).contains("power of two"));
    assert!(refuse(|plan| plan.parameters_json = "{".into()).contains("JSON"));
    assert!(refuse(|plan| _ = plan.add_codec(17)).contains("tables"));
    assert!(
        refuse(|plan| plan.add_group(GroupId::Dense { layer: 9 }, vec![], vec![]))
            .contains("at least one")
    );
    let misplaced = refuse(|plan| {
        let norm = tensor(FloatKind::FinalNorm, DType::F32, &[4]);
        plan.add_group(GroupId::Dense { layer: 9 }, vec![], vec![norm]);
    });
    assert!(misplaced.contains("tensor count"), "{misplaced}");
    let bytes = refuse(|plan| {
        let norm = tensor(FloatKind::FinalNorm, DType::U8, &[4]);
        plan.add_group(GroupId::Floats { layer: Some(7) }, vec![], vec![norm]);
    });
    assert!(bytes.contains("FinalNorm has values of U8"), "{bytes}");
    let empty = StorePlan::new(b"", "{}").index();
    assert!(matches!(empty, Err(StoreError::Plan { .. })));
}

#[test]
fn alignment_follows_the_size() {
    let mut plan = small_plan();
    plan.alignment = None;
    assert_eq!(plan.index().unwrap().alignment(), 512);
    for number in 0..5 {
        plan.add_asset(format!("large{number}.bin"), 60 << 20);
    }
    let index = plan.index().unwrap();
    assert_eq!(index.alignment(), 16384);
    assert!(index.extents().iter().all(|extent| extent.offset % 16384 == 0));
}

#[test]
fn an_extent_is_packed_from_its_parts() {
    let mut plan = StorePlan::new(b"", "{}");
    let id = GroupId::Floats { layer: Some(0) };
    let tensors = vec![
        tensor(FloatKind::AttentionNorm, DType::Bf16, &[3]),
        tensor(FloatKind::Router, DType::F32, &[2, 3]),
    ];
    plan.add_group(id.clone(), vec![], tensors);
    let index = plan.index().unwrap();
    let group = index.group(&id).unwrap();
    let (norm, router) = ([1u8; 6], [2u8; 24]);
    let mut out = vec![9; 500];
    let data = [MatrixData::Floats(&norm), MatrixData::Floats(&router)];
    pack_extent(group, Plane::P2, &data, &mut out).unwrap();
    let mut expected = vec![0; 128];
    expected[..6].fill(1);
    expected[64..88].fill(2);
    assert_eq!(out, expected);
    assert_eq!(index.extent(group, Plane::P2).unwrap().length, 128);
    pack_extent(group, Plane::P3, &data, &mut out).unwrap();
    assert!(out.is_empty());
    assert!(pack_extent(group, Plane::P2, &data[..1], &mut out).is_err());
    let wrong = [MatrixData::Floats(&router), MatrixData::Floats(&norm)];
    assert!(pack_extent(group, Plane::P2, &wrong, &mut out).is_err());
}

#[test]
fn a_destination_in_no_folder_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("absent").join("model.nest");
    assert!(matches!(StoreWriter::create(&path, &small_plan()), Err(StoreError::Io { .. })));
    let file = folder.path().join("file");
    File::create(&file).unwrap();
    let below = StoreWriter::create(&file.join("model.nest"), &small_plan());
    assert!(matches!(below, Err(StoreError::Io { .. })));
}
