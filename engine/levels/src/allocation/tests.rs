use std::sync::Arc;

use nestling_formats::nested::{Layout, NestedCodec, PlaneForm};
use nestling_formats::store::{
    GroupId, Matrix, Measures, MemoryStorage, Store, StorePlan, StoreWriter, levels_with_offset,
};

use super::*;

/// Returns a pseudo-random number in [0, 1).
fn noise(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 40) as f32 / (1u64 << 24) as f32
}

fn nested(kind: MatrixKind, rows: usize, cols: usize, offset: usize) -> Matrix {
    let layout = if kind == MatrixKind::Embedding { Layout::RowMajor } else { Layout::Tile16 };
    let encoding = Encoding::Nested { layout, codec: 0, form: PlaneForm::Nested };
    Matrix { kind, rows, cols, encoding, levels: levels_with_offset(offset, Level::L8) }
}

/// A store of zero weights with an embedding, one layer and some experts.
fn store(experts: u32, offset: usize, seed: Option<u64>) -> Store {
    store_with("{}", experts, offset, seed)
}

fn store_with(parameters: &str, experts: u32, offset: usize, seed: Option<u64>) -> Store {
    let mut plan = StorePlan::new(b"source", parameters);
    plan.measures = Measures::PerMatrix;
    plan.add_codec(1);
    plan.add_asset("config.json", 2);
    plan.add_group(GroupId::Embedding, vec![nested(MatrixKind::Embedding, 64, 64, 0)], Vec::new());
    let dense = vec![nested(MatrixKind::Query, 32, 64, 0), nested(MatrixKind::Output, 64, 32, 0)];
    plan.add_group(GroupId::Dense { layer: 0 }, dense, Vec::new());
    for expert in 0..experts {
        let matrices = vec![
            nested(MatrixKind::Gate, 48, 64, 0),
            nested(MatrixKind::Up, 48, 64, 0),
            nested(MatrixKind::Down, 64, 48, offset),
        ];
        plan.add_group(GroupId::expert_of(0, expert), matrices, Vec::new());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    let writer = StoreWriter::create(&path, &plan).unwrap();
    let codec = NestedCodec::from_bytes(&codec_bytes()).unwrap();
    writer.set_codec(0, &codec).unwrap();
    let index = writer.index().clone();
    for extent in index.extents() {
        let id = &index.group_of(extent).unwrap().id;
        writer.write_extent(id, extent.plane, &vec![0; extent.length as usize]).unwrap();
    }
    if let Some(mut seed) = seed {
        for group in index.groups().iter().filter(|group| group.id != GroupId::Embedding) {
            for matrix in &group.matrices {
                let mut scale = 10.0 * (0.1 + noise(&mut seed));
                let drops = Level::ALL.map(|_| {
                    scale *= 0.15 + 0.2 * noise(&mut seed);
                    Some(scale)
                });
                writer.set_matrix_error_drops(&group.id, matrix.kind, drops).unwrap();
            }
            if group.id.expert().is_some() {
                writer.set_frequency(&group.id, noise(&mut seed)).unwrap();
                writer.set_weight_square(&group.id, 0.01 + noise(&mut seed)).unwrap();
            }
        }
    }
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    Store::from_storage(Arc::new(MemoryStorage::new("memory", bytes)), false).unwrap()
}

/// Codec with alpha 0.6, no stretch and one ascending table.
fn codec_bytes() -> Vec<u8> {
    let alpha = 9830u16;
    let mut bytes = Vec::new();
    bytes.extend(alpha.to_le_bytes());
    bytes.extend((32768 - 2 * alpha).to_le_bytes());
    bytes.extend([16, 1, 0, 0]);
    bytes.extend([-90i8, -30, 30, 90].map(|v| v as u8));
    bytes.extend((0..8i32).map(|v| (v * 30 - 105) as u8));
    bytes.extend((0..16i32).map(|v| (v * 15 - 112) as u8));
    bytes
}

/// Expected cost of an allocation, computed directly from the records.
fn cost(index: &Index, allocation: &Allocation) -> f64 {
    let mut cost = 0.0;
    for group in index.groups() {
        let uses = group.frequency.map_or(1.0, |frequency| {
            f64::from(frequency) * f64::from(group.weight_square.unwrap())
        });
        for (drops, level) in group.error_drops.iter().zip(allocation.levels(&group.id)) {
            let above = Level::ALL.into_iter().filter(|above| above > level);
            let left = above.filter_map(|above| drops[above.index()]).map(f64::from);
            cost += uses * left.sum::<f64>();
        }
    }
    cost
}

fn chosen(
    index: &Index,
    top: Level,
    budget: u64,
    counting: Counting,
) -> Result<Allocation, EngineError> {
    choose(index, &ChooseOptions { top, budget, counting, dense: None })
}

fn range(index: &Index, counting: Counting) -> (u64, u64) {
    let least = chosen(index, Level::L8, 0, counting).unwrap_err();
    let EngineError::WeightBudget { asked: 0, least } = least else { panic!("{least}") };
    (least, weight_bytes(index, &Allocation::of_level(index, Level::L8), counting))
}

#[test]
fn budgets_are_kept_and_greater_ones_contain_smaller_ones() {
    for (seed, offset, experts) in [
        (Some(7), 0, 5),
        (Some(8), 1, 5),
        (None, 0, 5),
        (None, 1, 5),
        (Some(9), 0, 0),
        (None, 0, 0),
    ] {
        let store = store(experts, offset, seed);
        let index = store.index();
        for counting in [Counting::Memory, Counting::File] {
            let (least, all) = range(index, counting);
            assert!(chosen(index, Level::L8, least - 1, counting).is_err());
            let mut before: Option<Allocation> = None;
            for step in 0..=40 {
                let budget = least + (all - least) * step / 40;
                let found = chosen(index, Level::L8, budget, counting).unwrap();
                assert!(weight_bytes(index, &found, counting) <= budget);
                assert_eq!(chosen(index, Level::L8, budget, counting).unwrap(), found);
                if let Some(before) = before {
                    for group in index.groups() {
                        let levels = before.levels(&group.id).iter().zip(found.levels(&group.id));
                        assert!(levels.into_iter().all(|(before, now)| before <= now));
                    }
                    assert!(cost(index, &found) <= cost(index, &before) + 1e-9);
                    assert_eq!(before.hash() == found.hash(), before == found);
                }
                before = Some(found);
            }
            let whole = Allocation::of_level(index, Level::L8);
            assert_eq!(before, Some(whole.clone()));
            assert_eq!(chosen(index, Level::L8, u64::MAX, counting).unwrap(), whole);
        }
    }
}

#[test]
fn no_choice_of_as_many_bytes_is_better() {
    // Two dense matrices at level 6 or 8, and three expert matrices: all 2^2 · 5^3 choices. Planes are
    // counted without alignment, so that an allocation's own bytes are spent exactly.
    let store = store(1, 0, Some(3));
    let index = store.index();
    let (least, all) = range(index, Counting::Memory);
    let mut choices = Vec::new();
    for number in 0..4 * 5usize.pow(3) {
        let of = |place: usize| Level::ALL[number / 4 / 5usize.pow(place as u32) % 5];
        let dense = |place: usize| if number >> place & 1 == 0 { Level::L6 } else { Level::L8 };
        let choice = Allocation::new(index, Level::L8, |group, place| match group.id {
            GroupId::Embedding => Level::L6,
            GroupId::Dense { .. } => dense(place),
            _ => of(place),
        });
        let bytes = weight_bytes(index, &choice, Counting::Memory);
        choices.push((bytes, cost(index, &choice)));
    }
    for step in 0..=60 {
        let budget = least + (all - least) * step / 60;
        let found = chosen(index, Level::L8, budget, Counting::Memory).unwrap();
        if found.levels(&GroupId::Embedding) != [Level::L6] {
            continue;
        }
        let (bytes, found) = (weight_bytes(index, &found, Counting::Memory), cost(index, &found));
        let within = choices.iter().filter(|choice| choice.0 <= bytes);
        let best = within.map(|choice| choice.1).fold(f64::INFINITY, f64::min);
        assert!(found <= best * (1.0 + 1e-6), "{found} at {bytes} bytes, {best} is possible");
    }
}

#[test]
fn bytes_are_those_of_a_store_that_holds_no_more() {
    for offset in [0, 1] {
        let store = store(4, offset, Some(11));
        let index = store.index();
        let (least, all) = range(index, Counting::File);
        for step in 0..6 {
            let budget = least + (all - least) * step / 5;
            let found = chosen(index, Level::L8, budget, Counting::File).unwrap();
            let mut plan = StorePlan::new(b"source", "{}");
            plan.alignment = Some(index.alignment());
            plan.add_codec(1);
            for group in index.groups() {
                let levels = found.levels(&group.id).iter();
                let cut_to = |(matrix, level): (&Matrix, &Level)| cut(matrix, *level);
                let matrices: Vec<Matrix> = group.matrices.iter().zip(levels).map(cut_to).collect();
                if !matrices.is_empty() {
                    plan.add_group(group.id.clone(), matrices, Vec::new());
                }
            }
            let planned = plan.index().unwrap();
            let extents = planned.extents().iter();
            let bytes: u64 = extents.map(|e| e.length.next_multiple_of(index.alignment())).sum();
            assert_eq!(weight_bytes(index, &found, Counting::File), bytes);
        }
    }
}

#[test]
fn a_level_is_an_allocation_and_bounds_others() {
    let store = store(3, 1, Some(2));
    let index = store.index();
    let three = Allocation::of_level(index, Level::L3);
    assert_eq!(three.levels(&GroupId::expert_of(0, 0)), [Level::L3, Level::L3, Level::L4]);
    assert_eq!(three.levels(&GroupId::Dense { layer: 0 }), [Level::L6; 2]);
    let expert = store.group(&GroupId::expert_of(0, 0)).unwrap();
    assert_eq!(
        (three.extents(expert), three.level(expert, MatrixKind::Down)),
        (2, Some(Level::L4))
    );
    assert_eq!(chosen(index, Level::L3, u64::MAX, Counting::Memory).unwrap(), three);
    let dense = three.with_dense_level(index, Level::L3, Level::L3);
    assert_eq!(dense.levels(&GroupId::Dense { layer: 0 }), [Level::L3; 2]);
    assert_eq!(dense.levels(&GroupId::Embedding), [Level::L6]);
    assert_ne!(dense.hash(), three.hash());
    assert!(three.check(index.id()).is_ok());
    assert!(three.check(StoreId([7; 16])).is_err());
    let summary = AllocationSummary::of(index, &three);
    assert_eq!(summary.shares.last().unwrap().matrices, [0, 0, 3, 0, 0]);
    // Gate and up have as many weights as down.
    assert!((summary.expert_bits.unwrap() - 10.0 / 3.0).abs() < 1e-12);
}

#[test]
fn a_model_without_experts_lies_between_two_levels() {
    let store = store(0, 0, Some(11));
    let (index, counting) = (store.index(), Counting::File);
    let uniform = Level::ALL.map(|level| Allocation::of_level(index, level));
    let bytes = uniform.each_ref().map(|allocation| weight_bytes(index, allocation, counting));
    for (place, pair) in uniform.windows(2).enumerate() {
        let budget = (bytes[place] + bytes[place + 1]) / 2;
        let found = chosen(index, Level::L8, budget, counting).unwrap();
        for group in index.groups() {
            let bounds = pair[0].levels(&group.id).iter().zip(pair[1].levels(&group.id));
            let mut levels = found.levels(&group.id).iter().zip(bounds);
            assert!(levels.all(|(level, (low, high))| low <= level && level <= high));
        }
        assert_eq!(chosen(index, Level::L8, bytes[place], counting).unwrap(), pair[0]);
    }
}

#[test]
fn a_tied_head_has_the_level_of_the_embedding() {
    let store = store(1, 0, None);
    let allocation = Allocation::of_level(store.index(), Level::L3);
    assert!(store.index().group(&GroupId::Head).is_none());
    assert_eq!(allocation.levels(&GroupId::Embedding), [Level::L6]);
    assert_eq!(allocation.levels(&GroupId::Head), [Level::L6]);
}

#[test]
fn dense_matrices_fall_below_level_6_only_by_measured_divergence() {
    let lowest = |parameters: &str, seed| {
        let store = store_with(parameters, 4, 0, seed);
        let least = range(store.index(), Counting::Memory).0;
        let allocation = chosen(store.index(), Level::L8, least, Counting::Memory).unwrap();
        allocation.levels(&GroupId::Dense { layer: 0 }).to_vec()
    };
    let divergence = r#"{"measures": "divergence"}"#;
    assert_eq!(lowest(divergence, Some(7)), [Level::L2; 2]);
    assert_eq!(lowest(divergence, None), [Level::L6; 2], "nothing was measured");
    for other in ["{}", r#"{"measures": "stream"}"#, r#"{"measures": 1}"#, "[]"] {
        assert_eq!(lowest(other, Some(7)), [Level::L6; 2], "{other}");
    }
}
