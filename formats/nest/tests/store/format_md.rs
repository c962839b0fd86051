//! Consistency of FORMAT.md with the code.

use nestling_formats::store::format as f;

/// Returns the table of constants as FORMAT.md must contain it.
fn table() -> String {
    let hex = |bytes: [u8; 8]| bytes.map(|byte| format!("{byte:02x}")).join(" ");
    let rows = [
        ("MAGIC", hex(f::MAGIC), "first bytes of every file of a store"),
        ("VERSION_NESTED", f::VERSION_NESTED.to_string(), "version without scaled integers"),
        ("VERSION_SCALED", f::VERSION_SCALED.to_string(), "version with them, the newest"),
        ("HEADER_BYTES", f::HEADER_BYTES.to_string(), "header"),
        ("ALIGNMENT_MIN", f::ALIGNMENT_MIN.to_string(), "smallest alignment of extents"),
        ("ALIGNMENT_MAX", f::ALIGNMENT_MAX.to_string(), "largest alignment of extents"),
        ("ALIGNMENT_SMALL", f::ALIGNMENT_SMALL.to_string(), "alignment of small stores"),
        ("ALIGNMENT_DEFAULT", f::ALIGNMENT_DEFAULT.to_string(), "alignment of other stores"),
        ("SMALL_STORE_BYTES", f::SMALL_STORE_BYTES.to_string(), "stores below this are small"),
        ("PART_ALIGNMENT", f::PART_ALIGNMENT.to_string(), "alignment of parts in an extent"),
        ("PLANES", f::PLANES.to_string(), "most planes of a group"),
        ("INDEX_BYTES_MAX", f::INDEX_BYTES_MAX.to_string(), "longest index"),
        ("ASSET_BYTES_MAX", f::ASSET_BYTES_MAX.to_string(), "longest asset"),
        ("INDEX_HEAD_BYTES", f::INDEX_HEAD_BYTES.to_string(), "counts at the index's front"),
        ("SHARD_RECORD_BYTES", f::SHARD_RECORD_BYTES.to_string(), "record"),
        ("SECTION_RECORD_BYTES", f::SECTION_RECORD_BYTES.to_string(), "record"),
        ("CODEC_RECORD_BYTES", f::CODEC_RECORD_BYTES.to_string(), "record"),
        ("GROUP_RECORD_BYTES", f::GROUP_RECORD_BYTES.to_string(), "record"),
        ("MATRIX_RECORD_BYTES", f::MATRIX_RECORD_BYTES.to_string(), "record"),
        ("TENSOR_RECORD_BYTES", f::TENSOR_RECORD_BYTES.to_string(), "record"),
        ("EXTENT_RECORD_BYTES", f::EXTENT_RECORD_BYTES.to_string(), "record"),
        ("MEASURE_RECORD_BYTES", f::MEASURE_RECORD_BYTES.to_string(), "record"),
        ("NONE", format!("{:#x}", f::NONE), "none in u32 fields, not measured in f32 fields"),
        ("NAME_BYTES_MAX", f::NAME_BYTES_MAX.to_string(), "longest name"),
        ("SHARDS_MAX", f::SHARDS_MAX.to_string(), "most shards"),
        ("CODEC_NESTED", f::CODEC_NESTED.to_string(), "codec id of the nested code"),
        ("CODEC_SCALED", f::CODEC_SCALED.to_string(), "codec id of scaled integers"),
        ("JOURNAL_MAGIC", hex(f::JOURNAL_MAGIC), "first bytes of a journal"),
    ];
    let mut text = String::from("| constant | value | |\n|---|---|---|\n");
    for (name, value, meaning) in rows {
        text.push_str(&format!("| `{name}` | {value} | {meaning} |\n"));
    }
    text
}

#[test]
fn the_constants_are_those_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../FORMAT.md");
    let text = std::fs::read_to_string(path).unwrap();
    let begin = text.find("<!-- constants: begin").unwrap();
    let begin = begin + text[begin..].find('\n').unwrap() + 1;
    let end = text.find("<!-- constants: end").unwrap();
    let expected = table();
    assert!(text[begin..end] == expected, "FORMAT.md should say:\n{expected}");
}

/// An old store of format version 1 still opens.
#[test]
fn the_first_versions_fixture_opens() {
    let bytes = include_bytes!("../data/small-v1.nest").to_vec();
    let store = crate::support::open_bytes(bytes.clone()).unwrap();
    assert!(crate::support::damage(&store).is_empty());
    assert_eq!(store.id().to_string(), FIXTURE_ID);
    assert!(bytes == crate::support::bytes_of(&crate::support::tiny_plan()), "the writer changed");
}

/// Id of the fixture, which may only change with the format version.
const FIXTURE_ID: &str = "90132c1d79728536c3daf84cae51d5ac";

/// Regenerates the fixture and the fuzz seeds: `cargo test -p nestling-formats -- --ignored fixture`.
#[test]
#[ignore = "writes committed files"]
fn write_the_fixture() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let mut tiny = crate::support::tiny_plan();
    tiny.alignment = Some(512);
    for (path, plan) in [
        ("tests/data/small-v1.nest", &crate::support::tiny_plan()),
        // Short, so that mutations rarely hit weights.
        ("../../fuzz/seeds/store_index/least.nest", &crate::support::least_plan()),
        ("../../fuzz/seeds/store_index/small.nest", &tiny),
    ] {
        let bytes = crate::support::bytes_of(plan);
        let path = std::path::Path::new(root).join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &bytes).unwrap();
    }
}
