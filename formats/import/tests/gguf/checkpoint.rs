//! GGUF files opened as checkpoints.

use std::fs;
use std::path::Path;

use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};
use nestling_import::gguf::GgufHeader;
use nestling_import::{Checkpoint, ImportError, RopeScaling, TokenMixer};

use super::builder::text;
use super::data;

pub const MODELS: &[&str] = &[
    "qwen3-moe",
    "k-quants",
    "olmoe",
    "mixtral",
    "granite-moe",
    "qwen2-moe",
    "gpt-oss",
    "deepseek-v2-lite",
    "glm4-moe-lite",
    "gemma4",
    "qwen3-next",
    "qwen3-5-moe",
    "bailing-moe-v2",
    "bailing-moe-v2-bf16",
    "ernie4-5-moe",
    "ernie4-5-moe-bf16",
    "glm4-moe",
    "kimi-k2",
    "minimax-m2",
    "dots1",
    "solar-open",
    "granite-moe-shared",
    "qwen3-vl-moe",
    "qwen3-moe-nvfp4",
];

fn matrix(kind: MatrixKind, layer: u32, expert: Option<u32>) -> MatrixId {
    MatrixId { kind, layer: Some(layer), expert }
}

#[test]
fn every_model_opens_and_every_weight_can_be_read() {
    for name in MODELS {
        let path = data(&format!("{name}.gguf"));
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.directory(), path);
        for shape in &checkpoint.shape().matrices {
            let place = checkpoint.matrix(shape.id).unwrap();
            assert_eq!((place.rows(), place.cols()), (shape.rows, shape.cols), "{name}");
            let values = checkpoint.read_matrix(shape.id).unwrap();
            assert!(values.iter().any(|value| *value != 0.0), "{name} {:?}", shape.id);
        }
        for shape in &checkpoint.shape().floats {
            assert_eq!(checkpoint.read_float(shape.id).unwrap().len(), shape.elements());
        }
        assert_eq!(checkpoint.assets().unwrap().len(), 4);
    }
}

#[test]
fn an_expert_is_a_part_of_a_tensor() {
    let checkpoint = Checkpoint::open(data("qwen3-moe.gguf")).unwrap();
    let tensor = checkpoint.tensor("blk.1.ffn_down_exps.weight").unwrap();
    let all = checkpoint.read_f32(tensor).unwrap();
    let one = checkpoint.read_matrix(matrix(MatrixKind::Down, 1, Some(3))).unwrap();
    assert_eq!(one, all[3 * one.len()..][..one.len()]);
    // A read that starts inside a block.
    let mut part = vec![0.0; 70];
    checkpoint.read_f32_from(tensor, 45, &mut part).unwrap();
    assert_eq!(part, all[45..115]);
    let end = all.len() as u64;
    assert!(checkpoint.read_f32_from(tensor, end - 69, &mut part).is_err());
    assert!(checkpoint.float(FloatId { kind: FloatKind::Sinks, layer: Some(0) }).is_err());
}

#[test]
fn rows_that_llama_cpp_turns_are_turned_back() {
    let checkpoint = Checkpoint::open(data("mixtral.gguf")).unwrap();
    let tensor = checkpoint.tensor("blk.0.attn_q.weight").unwrap();
    // 4 heads of 16 rows each.
    assert_eq!(tensor.shape, [4, 16, 64]);
    let stored = checkpoint.read_f32(tensor).unwrap();
    let rows: Vec<&[f32]> = stored.chunks(64).collect();
    let query = checkpoint.read_matrix(matrix(MatrixKind::Query, 0, None)).unwrap();
    for (index, row) in query.chunks(64).enumerate() {
        let (head, half, pair) = (index / 16, index % 16 / 8, index % 8);
        assert_eq!(row, rows[16 * head + 2 * pair + half], "{index}");
    }
}

/// Only the frequency factors show the rotated part of a head.
#[test]
fn other_proportional_positions_are_refused() {
    let mut bytes = fs::read(data("gemma4.gguf")).unwrap();
    let header = GgufHeader::parse("whole", &bytes, bytes.len() as u64).unwrap();
    let factors = header.tensors.iter().find(|tensor| tensor.name == "rope_freqs.weight").unwrap();
    // The file has 4 of 16 rotated pairs; the change makes it 5.
    let at = factors.offset as usize + 4 * 4;
    bytes[at..at + 4].copy_from_slice(&1f32.to_le_bytes());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    fs::write(&path, bytes).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("rope_freqs.weight") && error.contains("4 times 1"), "{error}");
}

/// Divisors that no formula gives remain a list; divisors of another kind are refused.
#[test]
fn divisors_of_frequencies_are_kept() {
    let original = fs::read(data("llama.gguf")).unwrap();
    let header = GgufHeader::parse("whole", &original, original.len() as u64).unwrap();
    let divisors = header.tensors.iter().find(|tensor| tensor.name == "rope_freqs.weight").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    let with = |value: f32| {
        let mut bytes = original.clone();
        let at = divisors.offset as usize;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        Checkpoint::open(&path)
    };
    let scaling = |checkpoint: &Checkpoint| match checkpoint.config().layers[0].mixer {
        TokenMixer::Attention(attention) => attention.rope.scaling,
        _ => panic!("another mixer"),
    };
    let RopeScaling::Llama3(llama3) = scaling(&with(1.0).unwrap()) else { panic!("another kind") };
    assert_eq!((llama3.factor, llama3.original_max_position_embeddings), (8.0, 64));
    let RopeScaling::LongRope(list) = scaling(&with(1.5).unwrap()) else { panic!("another kind") };
    assert_eq!(list.attention_factor, 1.0);
    assert_eq!((list.factors(1)[0], list.factors(1 << 20)[0]), (1.5, 1.5));
    assert_eq!(list.factors(1).len(), 5);
    for wrong in [f32::NAN, 0.0, -1.0, f32::INFINITY] {
        let error = with(wrong).unwrap_err().to_string();
        assert!(error.contains("rope_freqs.weight") && error.contains("1e-6"), "{error}");
    }
}

/// Tensor table entry, and data.
type Entry = (Vec<u8>, Vec<u8>);

/// Returns the header before the tensor table, without counts, and the tensor entries.
fn pieces(bytes: &[u8], header: &GgufHeader) -> (Vec<u8>, Vec<Entry>) {
    let find = |name: &str| {
        let name = text(name);
        bytes.windows(name.len()).position(|window| window == name).unwrap()
    };
    let keys_end = header.tensors.iter().map(|tensor| find(&tensor.name)).min().unwrap();
    let entries = header.tensors.iter().map(|tensor| {
        let start = find(&tensor.name);
        let length = 8 + tensor.name.len() + 4 + 8 * tensor.shape.len() + 4;
        let (offset, length_bytes) = (tensor.offset as usize, tensor.length as usize);
        (bytes[start..start + length].to_vec(), bytes[offset..offset + length_bytes].to_vec())
    });
    (bytes[24..keys_end].to_vec(), entries.collect())
}

fn part(keys: (u64, &[u8]), number: u16, count: u16, tensors: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((keys.0 + 2).to_le_bytes());
    out.extend(keys.1);
    for (key, value) in [("split.no", number), ("split.count", count)] {
        out.extend(text(key));
        out.extend(2u32.to_le_bytes());
        out.extend(value.to_le_bytes());
    }
    let mut data = Vec::new();
    for (entry, bytes) in tensors {
        data.resize(usize::next_multiple_of(data.len(), 32), 0);
        out.extend(entry);
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

/// Opens a copy of a file with other tensors of type F32 and one dimension. Tensors of the same name are
/// replaced.
fn open_with(name: &str, tensors: &[(&str, &[f32])]) -> Result<Checkpoint, ImportError> {
    let bytes = fs::read(data(name)).unwrap();
    let header = GgufHeader::parse("whole", &bytes, bytes.len() as u64).unwrap();
    let count = header.metadata.iter().count() as u64;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    let (keys, mut entries) = pieces(&bytes, &header);
    for (name, values) in tensors {
        entries.retain(|(entry, _)| !entry.starts_with(&text(name)));
        entries.push(floats(name, &[values.len() as u64], values));
    }
    fs::write(&path, part((count, &keys), 0, 1, &entries)).unwrap();
    Checkpoint::open(&path)
}

/// Scales of other types than NVFP4 change the weights; activation scales do not.
#[test]
fn scales_beside_other_blocks_are_refused_by_name() {
    let eight = [1.5; 8];
    open_with("qwen3-moe.gguf", &[("blk.0.ffn_down_exps.input_scale", &eight)]).unwrap();
    let names = ["blk.0.ffn_up_exps.scale", "blk.0.attn_q.scale", "blk.0.attn_q.input_scale"];
    let error = open_with("qwen3-moe.gguf", &names.map(|name| (name, &eight[..]))).unwrap_err();
    let first = "blk.0.attn_q.scale";
    assert!(
        matches!(&error, ImportError::CompanionScale { tensor, count: 2, .. } if tensor == first),
        "{error}"
    );
    let error = open_with("qwen3-moe.gguf", &[("blk.0.other.scale", &eight)]).unwrap_err();
    assert!(matches!(error, ImportError::UnexpectedTensor { .. }), "{error}");
}

#[test]
fn a_scale_tensor_multiplies_the_weights_of_its_tensor_alone() {
    let query = matrix(MatrixKind::Query, 0, None);
    let up = |expert| matrix(MatrixKind::Up, 0, Some(expert));
    let scales = [1.0, 2.0, -0.5, 0.0, 4.0];
    let read = |factor: f32| {
        let scales = scales.map(|scale| scale * factor);
        let tensors = [("blk.0.ffn_up_exps.scale", &scales[..]), ("blk.0.attn_q.scale", &[factor])];
        let checkpoint = open_with("qwen3-moe-nvfp4.gguf", &tensors).unwrap();
        let ids = [query].into_iter().chain((0..5).map(up));
        ids.map(|id| checkpoint.read_matrix(id).unwrap()).collect::<Vec<_>>()
    };
    let (one, eight) = (read(1.0), read(8.0));
    for (one, eight) in one.iter().zip(&eight) {
        assert!(one.iter().zip(eight).all(|(one, eight)| 8.0 * one == *eight));
    }
    assert!(
        one[0].iter().any(|weight| *weight != 0.0) && one[4].iter().all(|weight| *weight == 0.0)
    );
    // A single scale belongs to all experts.
    let single = [("blk.0.ffn_up_exps.scale", &[2.0f32][..])];
    let checkpoint = open_with("qwen3-moe-nvfp4.gguf", &single).unwrap();
    assert!(checkpoint.read_matrix(up(1)).unwrap() == one[2]);
    let doubled = one[1].iter().map(|weight| 2.0 * weight);
    assert!(checkpoint.read_matrix(up(0)).unwrap().into_iter().eq(doubled));
}

#[test]
fn scale_tensors_that_fit_no_tensor_are_refused() {
    for (name, values, expected) in [
        ("blk.0.attn_q.scale", &[1.0f32; 2][..], "[1] elements"),
        ("blk.0.ffn_up_exps.scale", &[1.0; 4], "[1, 5] elements"),
        ("blk.0.attn_q.scale", &[2e30], "at most 1e30"),
        ("blk.0.attn_q.scale", &[f32::NAN], "not a finite number"),
        ("blk.0.attn_q.scale", &[f32::NEG_INFINITY], "not a finite number"),
    ] {
        let error = open_with("qwen3-moe-nvfp4.gguf", &[(name, values)]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    // The largest scale gives finite weights.
    let checkpoint = open_with("qwen3-moe-nvfp4.gguf", &[("blk.0.attn_q.scale", &[1e30])]).unwrap();
    let weights = checkpoint.read_matrix(matrix(MatrixKind::Query, 0, None)).unwrap();
    assert!(weights.iter().any(|weight| weight.abs() > 1e30));
}

/// Writes a file in three parts, the first without tensors, as some writers do.
fn split(directory: &Path) {
    let bytes = fs::read(data("qwen3-moe.gguf")).unwrap();
    let header = GgufHeader::parse("whole", &bytes, bytes.len() as u64).unwrap();
    let (keys, entries) = pieces(&bytes, &header);
    let count = header.metadata.iter().count() as u64;
    let parts = [
        part((count, &keys), 0, 3, &[]),
        part((0, &[]), 1, 3, &entries[..9]),
        part((0, &[]), 2, 3, &entries[9..]),
    ];
    for (number, bytes) in parts.iter().enumerate() {
        fs::write(directory.join(format!("m-{:05}-of-00003.gguf", number + 1)), bytes).unwrap();
    }
}

fn floats(name: &str, shape: &[u64], values: &[f32]) -> Entry {
    let mut entry = text(name);
    entry.extend((shape.len() as u32).to_le_bytes());
    entry.extend(shape.iter().rev().flat_map(|size| size.to_le_bytes()));
    entry.extend(0u32.to_le_bytes());
    (entry, values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

/// Some files have one tensor with experts' gate rows above up rows. Old files have one tensor for keys and
/// values of latents.
#[test]
fn joined_tensors_are_taken_apart() {
    let bytes = fs::read(data("deepseek-v2-lite.gguf")).unwrap();
    let header = GgufHeader::parse("whole", &bytes, bytes.len() as u64).unwrap();
    let whole = Checkpoint::open(data("deepseek-v2-lite.gguf")).unwrap();
    let values = |name: &str| whole.read_f32(whole.tensor(name).unwrap()).unwrap();
    let (keys, mut entries) = pieces(&bytes, &header);
    let parts = ["attn_k_b", "attn_v_b", "ffn_gate_exps", "ffn_up_exps"];
    let is_joined = |name: &str| parts.iter().any(|part| name.contains(part));
    let mut names = header.tensors.iter().map(|tensor| tensor.name.as_str());
    entries.retain(|_| !is_joined(names.next().unwrap()));
    // 4 heads, a latent of 32, keys and values of 32 each.
    for layer in 0..2 {
        let (key, value) = (
            values(&format!("blk.{layer}.attn_k_b.weight")),
            values(&format!("blk.{layer}.attn_v_b.weight")),
        );
        let mut joined = Vec::new();
        for head in 0..4 {
            let key = &key[head * 1024..][..1024];
            joined.extend((0..1024).map(|at| key[at % 32 * 32 + at / 32]));
            joined.extend(&value[head * 1024..][..1024]);
        }
        entries.push(floats(&format!("blk.{layer}.attn_kv_b.weight"), &[256, 32], &joined));
    }
    let (gate, up) = (values("blk.1.ffn_gate_exps.weight"), values("blk.1.ffn_up_exps.weight"));
    let pairs = gate.chunks(32 * 64).zip(up.chunks(32 * 64));
    let joined: Vec<f32> = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
    entries.push(floats("blk.1.ffn_gate_up_exps.weight", &[7, 64, 64], &joined));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("joined.gguf");
    let count = header.metadata.iter().count() as u64;
    fs::write(&path, part((count, &keys), 0, 1, &entries)).unwrap();
    let joined = Checkpoint::open(&path).unwrap();
    assert_eq!(joined.config(), whole.config());
    for shape in &whole.shape().matrices {
        let read = |checkpoint: &Checkpoint| checkpoint.read_matrix(shape.id).unwrap();
        assert!(read(&joined) == read(&whole), "{:?}", shape.id);
    }
}

#[test]
fn several_parts_are_one_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    split(directory.path());
    let whole = Checkpoint::open(data("qwen3-moe.gguf")).unwrap();
    for name in ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"] {
        let parts = Checkpoint::open(directory.path().join(name)).unwrap();
        assert_eq!(parts.files().count(), 3);
        assert_eq!(parts.config(), whole.config());
        for shape in &whole.shape().matrices {
            let read = |checkpoint: &Checkpoint| checkpoint.read_matrix(shape.id).unwrap();
            assert_eq!(read(&parts), read(&whole));
        }
    }
    let open = || Checkpoint::open(directory.path().join("m-00001-of-00003.gguf"));
    let last = directory.path().join("m-00003-of-00003.gguf");
    let second = directory.path().join("m-00002-of-00003.gguf");
    // A duplicate part.
    let kept = fs::read(&last).unwrap();
    fs::copy(&second, &last).unwrap();
    assert!(open().unwrap_err().to_string().contains("split.no"));
    fs::write(&last, &kept[..kept.len() / 2]).unwrap();
    assert!(open().unwrap_err().to_string().contains("to the file's end"));
    fs::remove_file(&last).unwrap();
    assert!(open().unwrap_err().to_string().contains("m-00003-of-00003.gguf: cannot open"));
    // A part under the name of a file that is not split.
    fs::copy(&second, directory.path().join("alone.gguf")).unwrap();
    let error = Checkpoint::open(directory.path().join("alone.gguf")).unwrap_err();
    assert!(error.to_string().contains("split.count"), "{error}");
}

#[test]
fn a_changed_file_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    fs::copy(data("qwen3-moe.gguf"), &path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut nothing = |_| std::ops::ControlFlow::Continue(());
    let hash = checkpoint.source_hash(&mut nothing).unwrap();
    assert_eq!(hash, Checkpoint::open(&path).unwrap().source_hash(&mut nothing).unwrap());
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(checkpoint.check_unchanged().is_err());
    assert_ne!(hash, Checkpoint::open(&path).unwrap().source_hash(&mut nothing).unwrap());
}
