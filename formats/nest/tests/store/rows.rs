//! Rows read individually equal the rows of the whole matrix, or fail with an error.

use std::sync::{Arc, Mutex};

use nestling_formats::nested::{
    CodecFitter, Layout, NestedPlanes, NestedView, QuantizeOptions, quantize_matrix,
};
use nestling_formats::store::{
    GroupId, MatrixData, MemoryStorage, RowError, RowScratch, Storage, Store, StoreError,
    StorePlan, StoreWriter, StoredRows, pack_extent,
};
use nestling_formats::{Level, MatrixKind, Plane};

use crate::support::{Random, nested};

const ROWS: usize = 70;
const COLS: usize = 40;

/// Returns a store with only an embedding, whose extents contain one or several planes.
fn store_bytes(offset: usize) -> Vec<u8> {
    let mut random = Random(7);
    let weights: Vec<f32> =
        (0..ROWS * COLS).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect();
    let options = QuantizeOptions::default();
    let mut fitter = CodecFitter::new(&options);
    fitter.add(&weights, ROWS, COLS, None).unwrap();
    let codec = fitter.finish().unwrap();
    let coded = quantize_matrix(&weights, ROWS, COLS, &codec, None, &options).unwrap();
    let mut plan = StorePlan::new(b"rows", "{}");
    plan.alignment = Some(512);
    let number = plan.add_codec(codec.tables.len());
    plan.add_asset("config.json", 2);
    let matrix = nested(MatrixKind::Embedding, ROWS, COLS, number, offset);
    plan.add_group(GroupId::Embedding, vec![matrix], vec![]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.nest");
    let writer = StoreWriter::create(&path, &plan).unwrap();
    writer.set_codec(number, &codec).unwrap();
    writer.write_extent(&GroupId::asset("config.json"), Plane::P2, b"{}").unwrap();
    let group = writer.index().group(&GroupId::Embedding).unwrap().clone();
    let mut bytes = Vec::new();
    for plane in Plane::ALL.into_iter().filter(|plane| group.extents[plane.index()].is_some()) {
        pack_extent(&group, plane, &[MatrixData::Nested(&coded)], &mut bytes).unwrap();
        writer.write_extent(&GroupId::Embedding, plane, &bytes).unwrap();
    }
    writer.finish().unwrap();
    std::fs::read(path).unwrap()
}

fn open(bytes: Vec<u8>) -> Arc<Store> {
    let storage = Arc::new(MemoryStorage::new("memory", bytes));
    Arc::new(Store::from_storage(storage, false).unwrap())
}

fn rows(store: &Arc<Store>, level: Level) -> Result<Option<StoredRows>, RowError> {
    StoredRows::open(store, store.group(&GroupId::Embedding).unwrap(), level)
}

/// Reads the planes of the embedding from the parts of its extents.
fn planes(store: &Store) -> [Vec<u8>; 5] {
    let group = store.group(&GroupId::Embedding).unwrap();
    let mut planes: [Vec<u8>; 5] = Default::default();
    for plane in Plane::ALL {
        let Some(extent) = store.extent(group, plane) else { continue };
        let bytes = store.read_extent_vec(extent).unwrap();
        for part in group.parts(plane).unwrap() {
            if let nestling_formats::store::PartItem::Plane { plane, .. } = part.item {
                planes[plane.index()] = bytes[part.range].to_vec();
            }
        }
    }
    planes
}

#[test]
fn rows_are_those_of_the_whole_matrix() {
    for offset in 0..=3 {
        let store = open(store_bytes(offset));
        let [p2, p3, p4, p6, p8] = planes(&store);
        let group = store.group(&GroupId::Embedding).unwrap();
        let codec = store.index().codec(&group.matrices[0]).unwrap().clone();
        let all = NestedPlanes {
            p2: &p2,
            p3: Some(&p3),
            p4: Some(&p4),
            p34: None,
            p6: Some(&p6),
            p8: Some(&p8),
        };
        let view = NestedView::new(ROWS, COLS, Layout::RowMajor, &codec, all).unwrap();
        for top in Level::ALL {
            let stored = rows(&store, top).unwrap().unwrap();
            assert_eq!((stored.rows(), stored.cols(), stored.level()), (ROWS, COLS, top));
            assert!(stored.kept_bytes() <= 11 * ROWS as u64);
            let mut scratch = RowScratch::default();
            for (row, level) in (0..ROWS).flat_map(|row| Level::ALL.map(|level| (row, level))) {
                let (mut found, mut expected) = (vec![9.0; COLS], vec![0.0; COLS]);
                let read = stored.read(level, row, &mut scratch, &mut found);
                if level > top {
                    assert!(matches!(read, Err(RowError::Nested(_))), "{level} of {top}");
                    continue;
                }
                read.unwrap();
                view.dequantize_row(level, row, &mut expected).unwrap();
                assert_eq!(found, expected, "row {row} at {level} of {top}");
            }
            for (row, cols) in [(ROWS, COLS), (usize::MAX, COLS), (0, COLS - 1), (0, COLS + 1)] {
                let read = stored.read(Level::L2, row, &mut scratch, &mut vec![0.0; cols]);
                assert!(matches!(read, Err(RowError::Nested(_))), "row {row}, {cols} columns");
            }
        }
    }
}

/// Storage whose bytes change after a store was opened.
struct ChangingStorage(Mutex<Vec<u8>>);

impl Storage for ChangingStorage {
    fn name(&self) -> String {
        "changing".into()
    }

    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        let bytes = self.0.lock().unwrap();
        let end = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let from = bytes.get(offset as usize..offset as usize + out.len()).ok_or(end)?;
        out.copy_from_slice(from);
        Ok(())
    }
}

/// Flips each bit of each extent: the affected row gives an error, all others are read.
#[test]
fn rows_that_changed_are_errors() {
    let good = store_bytes(1);
    let storage = Arc::new(ChangingStorage(Mutex::new(good.clone())));
    let store =
        Arc::new(Store::from_storage(Arc::<ChangingStorage>::clone(&storage), false).unwrap());
    let stored = rows(&store, Level::L6).unwrap().unwrap();
    let mut scratch = RowScratch::default();
    let mut read = |row: usize| stored.read(Level::L6, row, &mut scratch, &mut [0.0; COLS]);
    let group = store.group(&GroupId::Embedding).unwrap();
    let (mut damaged, mut random) = (0, Random(3));
    for plane in Plane::ALL {
        let Some(extent) = store.extent(group, plane) else { continue };
        for at in extent.offset..extent.offset + extent.length {
            storage.0.lock().unwrap()[at as usize] ^= 1 << random.below(8);
            let failed: Vec<usize> = (0..ROWS)
                .filter(|row| match read(*row) {
                    Ok(()) => false,
                    Err(RowError::Store(StoreError::Damaged { .. })) => true,
                    Err(error) => panic!("{error}"),
                })
                .collect();
            assert!(failed.len() <= 1, "byte {at}: {failed:?}");
            damaged += failed.len();
            storage.0.lock().unwrap()[at as usize] = good[at as usize];
        }
    }
    // Steps (2 groups), and 6 of 8 bits of 64 columns with padding. Scales and tables are kept in memory.
    assert_eq!(damaged, ROWS * (2 + 6 * 64 / 8));
    storage.0.lock().unwrap().truncate(good.len() / 2);
    assert!((0..ROWS).all(|row| read(row).is_err()));
}

#[test]
fn a_damaged_matrix_is_not_opened() {
    let good = store_bytes(0);
    let store = open(good.clone());
    let group = store.group(&GroupId::Embedding).unwrap();
    for plane in Plane::ALL {
        let Some(extent) = store.extent(group, plane) else { continue };
        let mut bytes = good.clone();
        bytes[extent.offset as usize + 5] ^= 1;
        let opened = rows(&open(bytes), Level::L8);
        assert!(matches!(opened, Err(RowError::Store(StoreError::Damaged { .. }))));
    }
}
