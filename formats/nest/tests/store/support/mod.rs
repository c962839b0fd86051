//! A small store with one of each kind of content, for tests.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use nestling_formats::nested::{
    InputTransform, Layout, NestedCodec, NestedTables, PlaneForm, ScaleSteps,
};
use nestling_formats::store::{
    Encoding, FloatTensor, GroupId, Matrix, MemoryStorage, Store, StoreError, StorePlan,
    StoreWriter, levels_with_offset,
};
use nestling_formats::{DType, FloatKind, Level, MatrixKind, Plane};

pub mod memory_disk;
pub mod seal;

/// The xorshift64* generator, with the same output on all machines.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next().to_le_bytes()[7]).collect()
    }
}

/// Returns the smallest plan with assets, floats, planes and a codec, in extents of 512 bytes.
pub fn least_plan() -> StorePlan {
    let mut plan = StorePlan::new(b"source", r#"{"maker":"test"}"#);
    plan.alignment = Some(512);
    let codec = plan.add_codec(1);
    plan.add_asset("config.json", 10);
    let norm = tensor(FloatKind::FinalNorm, DType::F32, &[8]);
    plan.add_group(GroupId::Floats { layer: None }, vec![], vec![norm]);
    let gate = nested(MatrixKind::Gate, 8, 8, codec, 0);
    plan.add_group(GroupId::expert_of(0, 0), vec![gate], vec![]);
    plan
}

pub fn nested(kind: MatrixKind, rows: usize, cols: usize, codec: u32, offset: usize) -> Matrix {
    let layout = if kind == MatrixKind::Embedding { Layout::RowMajor } else { Layout::Tile16 };
    let levels = levels_with_offset(offset, Level::L8);
    Matrix {
        kind,
        rows,
        cols,
        encoding: Encoding::Nested { layout, codec, form: PlaneForm::Nested },
        levels,
    }
}

pub fn tensor(kind: FloatKind, dtype: DType, shape: &[usize]) -> FloatTensor {
    FloatTensor { kind, dtype, shape: shape.to_vec() }
}

pub fn codec(tables: usize) -> NestedCodec {
    let mut codec = NestedCodec {
        alpha_a: 8192,
        alpha_b: 32768 - 2 * 8192,
        beta_q: 16,
        tables: Vec::new(),
        inputs: InputTransform::None,
        steps: ScaleSteps::Eighths,
    };
    for table in 0..tables {
        let ramp = |size: i32, index: usize| (((2 * index as i32 + 1 - size) * 120) / size) as i8;
        codec.tables.push(NestedTables {
            t2: std::array::from_fn(|i| ramp(4, i) + (table % 3) as i8),
            t3: std::array::from_fn(|i| ramp(8, i) + (table % 5) as i8),
            t4: std::array::from_fn(|i| ramp(16, i) + (table % 7) as i8),
        });
    }
    codec
}

/// Returns a plan of two layers, one dense and one of three experts; in the experts, down is a plane ahead.
pub fn small_plan() -> StorePlan {
    let mut plan = StorePlan::new(b"source", r#"{"maker":"test"}"#);
    plan.alignment = Some(4096);
    let codec = plan.add_codec(1);
    let expert_codec = plan.add_codec(3);
    plan.add_asset("config.json", 10);
    plan.add_asset("tokenizer.json", 5000);
    let norm = tensor(FloatKind::FinalNorm, DType::F32, &[40]);
    plan.add_group(GroupId::Floats { layer: None }, vec![], vec![norm]);
    for layer in 0..2 {
        let norm = tensor(FloatKind::AttentionNorm, DType::Bf16, &[40]);
        let router = tensor(FloatKind::Router, DType::F16, &[3, 40]);
        plan.add_group(GroupId::Floats { layer: Some(layer) }, vec![], vec![norm, router]);
    }
    let embedding = nested(MatrixKind::Embedding, 70, 40, codec, 0);
    plan.add_group(GroupId::Embedding, vec![embedding], vec![]);
    let head = Matrix { kind: MatrixKind::Head, ..nested(MatrixKind::Head, 70, 40, codec, 0) };
    plan.add_group(GroupId::Head, vec![head], vec![]);
    for layer in 0..2 {
        let mut matrices = vec![nested(MatrixKind::Query, 48, 40, codec, 0)];
        let levels = [Some(Level::L8); 5];
        let encoding = Encoding::Float(DType::Bf16);
        matrices.push(Matrix { kind: MatrixKind::Key, rows: 8, cols: 40, encoding, levels });
        plan.add_group(GroupId::Dense { layer }, matrices, vec![]);
    }
    for expert in 0..3 {
        let matrices = vec![
            nested(MatrixKind::Gate, 24, 40, expert_codec, 0),
            nested(MatrixKind::Up, 24, 40, expert_codec, 0),
            nested(MatrixKind::Down, 40, 24, expert_codec, 1),
        ];
        plan.add_group(GroupId::expert_of(1, expert), matrices, vec![]);
    }
    plan
}

/// Returns the contents of a planned store's extents, which depend only on the plan.
pub fn contents(plan: &StorePlan) -> HashMap<(GroupId, Plane), Vec<u8>> {
    let index = plan.index().unwrap();
    let mut random = Random(0x5eed);
    let extents = index.extents().iter().map(|extent| {
        let group = index.group_of(extent).unwrap();
        ((group.id.clone(), extent.plane), random.bytes(extent.length as usize))
    });
    extents.collect()
}

/// Writes all missing parts and finishes the store.
pub fn fill(writer: StoreWriter, plan: &StorePlan) -> Result<(), StoreError> {
    for (number, slot) in writer.index().codecs().to_vec().iter().enumerate() {
        let tables = (slot.bytes - NestedCodec::encoded_bytes(0)) / 28;
        writer.set_codec(number as u32, &codec(tables))?;
    }
    let contents = contents(plan);
    let index = writer.index().clone();
    for extent in index.extents() {
        let id = index.group_of(extent).unwrap().id.clone();
        if !writer.is_group_written(&id) {
            writer.write_extent(&id, extent.plane, &contents[&(id.clone(), extent.plane)])?;
        }
    }
    writer.finish()
}

/// Writes a planned store to `path`.
pub fn write(path: &Path, plan: &StorePlan) {
    fill(StoreWriter::create(path, plan).unwrap(), plan).unwrap();
}

/// Returns the bytes of a planned store that fits in one file.
pub fn bytes_of(plan: &StorePlan) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    write(&path, plan);
    std::fs::read(path).unwrap()
}

pub fn open_bytes(bytes: Vec<u8>) -> Result<Store, StoreError> {
    Store::from_storage(Arc::new(MemoryStorage::new("memory", bytes)), false)
}

/// Returns the damage found by a full verification.
pub fn damage(store: &Store) -> Vec<StoreError> {
    store.verify(&mut |_| ControlFlow::Continue(())).unwrap().damage
}

/// Compares all present extents of a store with the plan's contents.
pub fn expect_contents(store: &Store, plan: &StorePlan) {
    for ((id, plane), expected) in contents(plan) {
        let group = store.group(&id).unwrap();
        let Some(extent) = store.extent(group, plane) else {
            let planned = store.index().extent(group, plane).unwrap();
            assert!(!store.is_present(planned));
            continue;
        };
        assert_eq!(store.read_extent_vec(extent).unwrap(), expected, "{id} {plane:?}");
    }
}

/// Returns the plan of a store of a few pages: one expert, one norm, two assets.
pub fn tiny_plan() -> StorePlan {
    let mut plan = StorePlan::new(b"tiny", "{}");
    plan.alignment = Some(4096);
    let codec = plan.add_codec(1);
    plan.add_asset("config.json", 2);
    let norm = tensor(FloatKind::FinalNorm, DType::F32, &[8]);
    plan.add_group(GroupId::Floats { layer: None }, vec![], vec![norm]);
    let mut gate = nested(MatrixKind::Gate, 16, 32, codec, 0);
    gate.levels = levels_with_offset(0, Level::L4);
    let mut down = nested(MatrixKind::Down, 16, 32, codec, 1);
    down.levels = levels_with_offset(1, Level::L4);
    plan.add_group(GroupId::expert_of(0, 0), vec![gate, down], vec![]);
    plan
}
