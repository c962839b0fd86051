//! Reading of written stores: complete, truncated and within a bundle.

use std::fs;

use crate::support::{bytes_of, damage, expect_contents, nested, open_bytes, small_plan, write};
use nestling_formats::store::{
    Extent, GroupId, OpenOptions, PartItem, Section, Store, StoreError, StorePlan,
};
use nestling_formats::{Level, MatrixKind, Plane};

#[test]
fn a_written_store_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    let plan = small_plan();
    write(&path, &plan);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.level(), Level::L8);
    assert_eq!(store.index().alignment(), 4096);
    assert_eq!(store.index().parameters_json(), r#"{"maker":"test"}"#);
    assert_eq!(store.asset_names().collect::<Vec<_>>(), ["config.json", "tokenizer.json"]);
    assert_eq!(store.config_json().unwrap().len(), 10);
    assert_eq!(store.asset("absent.json").unwrap(), None);
    expect_contents(&store, &plan);
    assert!(damage(&store).is_empty());
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "temporary files stay behind: {left:?}");
}

#[test]
fn every_alignment_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut lengths = Vec::new();
    for alignment in [512, 1024, 16384] {
        let path = folder.path().join(format!("{alignment}.nest"));
        let mut plan = small_plan();
        plan.alignment = Some(alignment);
        write(&path, &plan);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.index().alignment(), alignment);
        assert!(store.index().extents().iter().all(|extent| extent.offset % alignment == 0));
        expect_contents(&store, &plan);
        assert!(damage(&store).is_empty());
        lengths.push(fs::metadata(&path).unwrap().len());
    }
    assert!(lengths.is_sorted() && lengths[0] < lengths[1], "{lengths:?}");
}

#[test]
fn writing_twice_gives_the_same_bytes() {
    assert_eq!(bytes_of(&small_plan()), bytes_of(&small_plan()));
}

#[test]
fn another_source_is_another_store() {
    let mut other = small_plan();
    other.source = b"another".to_vec();
    assert_ne!(small_plan().index().unwrap().id(), other.index().unwrap().id());
    let mut other = small_plan();
    other.parameters_json = "{}".into();
    assert_ne!(small_plan().index().unwrap().id(), other.index().unwrap().id());
}

#[test]
fn sections_have_the_default_order() {
    let index = small_plan().index().unwrap();
    let names: Vec<_> = index.sections().iter().map(|section| section.name.as_str()).collect();
    assert_eq!(names, ["2", "3", "4", "6", "8"]);
    let mut start = 0;
    for section in index.sections() {
        let end = section.extents_end as usize;
        for extent in &index.extents()[start..end] {
            let group = index.group_of(extent).unwrap();
            let expected = match (section.name.as_str(), &group.id) {
                (name, GroupId::Expert(_)) => extent.plane.level().to_string() == name,
                ("2", _) => extent.plane != Plane::P8,
                ("4", GroupId::Head) => extent.plane == Plane::P8,
                ("8", id) => *id != GroupId::Head && extent.plane == Plane::P8,
                _ => false,
            };
            assert!(expected, "{} {:?} in section {}", group.id, extent.plane, section.name);
        }
        start = end;
    }
}

#[test]
fn p8_of_the_head_comes_with_p4_of_the_experts() {
    let section_of_p8 = |id: GroupId, has_head: bool, has_experts: bool| {
        let mut plan = StorePlan::new(b"source", "{}");
        let codec = plan.add_codec(1);
        let matrix = |kind| vec![nested(kind, 64, 64, codec, 0)];
        plan.add_group(GroupId::Embedding, matrix(MatrixKind::Embedding), vec![]);
        if has_head {
            plan.add_group(GroupId::Head, matrix(MatrixKind::Head), vec![]);
        }
        plan.add_group(GroupId::Dense { layer: 0 }, matrix(MatrixKind::Query), vec![]);
        if has_experts {
            plan.add_group(GroupId::expert_of(0, 0), matrix(MatrixKind::Gate), vec![]);
        }
        let index = plan.index().unwrap();
        let mut extents = index.extents().iter();
        let is_p8 = |e: &Extent| index.group_of(e).unwrap().id == id && e.plane == Plane::P8;
        let place = extents.position(is_p8).unwrap();
        let holds = |section: &&Section| place < section.extents_end as usize;
        index.sections().iter().find(holds).unwrap().name.clone()
    };
    assert_eq!(section_of_p8(GroupId::Head, true, true), "4");
    assert_eq!(section_of_p8(GroupId::Embedding, true, true), "8");
    assert_eq!(section_of_p8(GroupId::Embedding, false, true), "4");
    assert_eq!(section_of_p8(GroupId::Embedding, false, false), "8");
    assert_eq!(section_of_p8(GroupId::Head, true, false), "8");
}

#[test]
fn a_plane_ahead_brings_more_bits_of_down() {
    let index = small_plan().index().unwrap();
    let group = index.group(&GroupId::expert_of(1, 0)).unwrap();
    let items = |plane| -> Vec<_> {
        let parts = group.parts(plane).unwrap();
        assert!(parts.iter().all(|part| part.range.start % 64 == 0));
        parts.into_iter().map(|part| part.item).collect()
    };
    let plane = |matrix, plane| PartItem::Plane { matrix, plane };
    assert_eq!(
        items(Plane::P2),
        [plane(0, Plane::P2), plane(1, Plane::P2), plane(2, Plane::P2), plane(2, Plane::P3)]
    );
    assert_eq!(items(Plane::P8), [plane(0, Plane::P8), plane(1, Plane::P8)]);
    assert_eq!(group.matrix(MatrixKind::Down).unwrap().level_after(1), Some(Level::L3));
    assert_eq!(group.matrix(MatrixKind::Gate).unwrap().level_after(1), Some(Level::L2));
}

#[test]
fn a_store_cut_after_a_section_is_a_smaller_model() {
    let plan = small_plan();
    let bytes = bytes_of(&plan);
    let whole = open_bytes(bytes.clone()).unwrap();
    for (number, level) in Level::ALL.into_iter().enumerate() {
        let end = whole.index().sections()[number].end as usize;
        let cut = open_bytes(bytes[..end].to_vec()).unwrap();
        assert_eq!(cut.level(), level);
        assert_eq!(cut.sections_present(), number + 1);
        expect_contents(&cut, &plan);
        assert!(damage(&cut).is_empty());
        for group in whole.groups() {
            let planes = whole.index().planes_at(group, level).unwrap();
            let present = Plane::ALL.iter().filter(|plane| cut.extent(group, **plane).is_some());
            assert_eq!(planes, present.count(), "{} at level {level}", group.id);
        }
    }
}

#[test]
fn a_store_cut_elsewhere_opens_only_as_partial() {
    let bytes = bytes_of(&small_plan());
    let whole = open_bytes(bytes.clone()).unwrap();
    let ends: Vec<_> = whole.index().sections().iter().map(|section| section.end).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.nest");
    let partial = OpenOptions { partial: true, ..OpenOptions::default() };
    for (length, level) in
        [(ends[0] + 1, Level::L2), (ends[2] - 1, Level::L3), (ends[4] - 1, Level::L6)]
    {
        fs::write(&path, &bytes[..length as usize]).unwrap();
        assert!(matches!(Store::open(&path), Err(StoreError::Truncated { .. })));
        let store = Store::open_with(&path, &partial).unwrap();
        assert_eq!(store.level(), level);
        assert!(damage(&store).is_empty());
    }
    fs::write(&path, &bytes[..ends[0] as usize - 1]).unwrap();
    let error = Store::open_with(&path, &partial).unwrap_err();
    assert!(matches!(error, StoreError::Truncated { section, .. } if section == "2"));
}

#[test]
fn a_store_within_a_bundle() {
    let plan = small_plan();
    let bytes = bytes_of(&plan);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bundle.bin");
    for offset in [4096, 777] {
        let mut bundle = vec![7; offset];
        bundle.extend_from_slice(&bytes);
        bundle.extend_from_slice(b"more of the bundle");
        fs::write(&path, &bundle).unwrap();
        let options =
            OpenOptions { offset: offset as u64, length: Some(bytes.len() as u64), partial: false };
        let store = Store::open_with(&path, &options).unwrap();
        expect_contents(&store, &plan);
        assert!(damage(&store).is_empty());
        let beyond = OpenOptions { length: Some(bundle.len() as u64), ..options.clone() };
        assert!(matches!(Store::open_with(&path, &beyond), Err(StoreError::Length { .. })));
        let rest = OpenOptions { length: None, ..options };
        assert!(matches!(Store::open_with(&path, &rest), Err(StoreError::Malformed(_))));
    }
}
