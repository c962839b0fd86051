//! Conversion: contents of the store, reproducibility, interruption, rejected input.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nestling_convert::convert::{
    ConvertError, ConvertOptions, ConvertPhase, ConvertProgress, ConvertReport, convert,
    estimate_store_bytes,
};
use nestling_core::CancelToken;
use nestling_formats::nested::{
    Layout, NestedPlanes, NestedView, NeuronOrder, reorder_columns, reorder_rows,
};
use nestling_formats::store::{Encoding, GroupId, PartItem, Store};
use nestling_formats::{FloatId, FloatKind, Level, MatrixId, MatrixKind, Plane};
use nestling_import::{Checkpoint, names};
use nestling_levels::allocation::Allocation;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn options(change: impl FnOnce(&mut ConvertOptions)) -> ConvertOptions {
    let mut options = ConvertOptions::default();
    options.threads = 2;
    change(&mut options);
    options
}

fn run(
    source: &Path,
    destination: &Path,
    options: &ConvertOptions,
) -> Result<ConvertReport, ConvertError> {
    let checkpoint = Checkpoint::open(source)?;
    convert(&checkpoint, destination, options, &CancelToken::new(), &mut |_| {})
}

/// Returns the bytes of a store converted without interruption.
fn whole(name: &str, directory: &Path) -> Vec<u8> {
    let path = directory.join("whole.nest");
    run(&data(name), &path, &options(|_| {})).unwrap();
    fs::read(&path).unwrap()
}

fn decode(store: &Store, id: &GroupId, kind: MatrixKind, level: Level) -> Vec<f32> {
    let group = store.group(id).unwrap();
    let number = group.matrices.iter().position(|matrix| matrix.kind == kind).unwrap();
    let matrix = &group.matrices[number];
    let Encoding::Nested { layout, .. } = matrix.encoding else { panic!("{id} is float") };
    let mut parts = [const { None }; 5];
    for extent_plane in Plane::ALL {
        let Some(extent) = store.extent(group, extent_plane) else { continue };
        let bytes = store.read_extent_vec(extent).unwrap();
        for part in group.parts(extent_plane).unwrap() {
            if let PartItem::Plane { matrix, plane } = part.item
                && matrix == number
            {
                parts[plane.index()] = Some(bytes[part.range].to_vec());
            }
        }
    }
    let [p2, p3, p4, p6, p8] = &parts;
    let planes = NestedPlanes {
        p2: p2.as_deref().unwrap(),
        p3: p3.as_deref(),
        p4: p4.as_deref(),
        p34: None,
        p6: p6.as_deref(),
        p8: p8.as_deref(),
    };
    let codec = store.index().codec(matrix).unwrap();
    let view = NestedView::new(matrix.rows, matrix.cols, layout, codec, planes).unwrap();
    let mut out = vec![0.0; matrix.rows * matrix.cols];
    for (row, out) in out.chunks_mut(matrix.cols).enumerate() {
        view.dequantize_row(level, row, out).unwrap();
    }
    out
}

/// Squared error relative to the square of the weights.
fn relative_error(weights: &[f32], decoded: &[f32]) -> f64 {
    let sum =
        |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let error = sum(&mut weights.iter().zip(decoded).map(|(a, b)| a - b));
    error / sum(&mut weights.iter().copied())
}

#[test]
fn every_matrix_is_the_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.nest");
    let source = data("tiny-qwen3-moe");
    run(&source, &path, &options(|_| {})).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let store = Store::open(&path).unwrap();
    assert_eq!(store.level(), Level::L8);
    assert_eq!(store.config_json().unwrap(), fs::read(source.join("config.json")).unwrap());
    let tokenizer = store.asset("tokenizer.json").unwrap().unwrap();
    assert_eq!(tokenizer, fs::read(source.join("tokenizer.json")).unwrap());
    let mut matrices = 0;
    for group in store.groups() {
        for matrix in &group.matrices {
            let (layer, expert) = (group.id.layer(), group.id.expert());
            let id = MatrixId { kind: matrix.kind, layer, expert };
            let weights = checkpoint.read_matrix(id).unwrap();
            let errors = Level::ALL.map(|level| {
                relative_error(&weights, &decode(&store, &group.id, matrix.kind, level))
            });
            // Half a cell of a uniform code with that many bits, over three standard deviations, has a
            // relative error of 3 / 4^bits. A wrong matrix has an error of 2.
            for (level, error) in Level::ALL.into_iter().zip(errors) {
                let bound = 3.0 / 4f64.powi(i32::from(level.bits()));
                assert!(error < bound, "{id:?} at level {level}: {error} is not under {bound}");
            }
            matrices += 1;
        }
    }
    assert_eq!(matrices, checkpoint.shape().matrices.len());
    for float in &checkpoint.shape().floats {
        assert_float_is_exact(&store, &checkpoint, float.id);
    }
    store.verify(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
}

fn assert_float_is_exact(store: &Store, checkpoint: &Checkpoint, id: FloatId) {
    let group = store.group(&GroupId::Floats { layer: id.layer }).unwrap();
    let number = group.tensors.iter().position(|tensor| tensor.kind == id.kind).unwrap();
    let bytes = store.read_extent_vec(store.extent(group, Plane::P2).unwrap()).unwrap();
    let parts = group.parts(Plane::P2).unwrap();
    let found = parts.into_iter().find_map(|part| match part.item {
        PartItem::Tensor { tensor } if tensor == number => Some(bytes[part.range].to_vec()),
        _ => None,
    });
    let expected = checkpoint.read_float_bytes(id).unwrap();
    assert_eq!(found.unwrap(), expected, "{id:?}");
}

#[test]
fn a_tied_matrix_is_held_once_in_the_layout_of_products() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tied.nest");
    run(&data("tiny-tied"), &path, &options(|_| {})).unwrap();
    let store = Store::open(&path).unwrap();
    let Encoding::Nested { layout, .. } =
        store.group(&GroupId::Embedding).unwrap().matrices[0].encoding
    else {
        panic!("the embedding is float")
    };
    assert_eq!(layout, Layout::Tile16);
    assert!(store.group(&GroupId::Head).is_none());
    let bias = FloatId { kind: FloatKind::OutputBias, layer: Some(2) };
    assert_float_is_exact(&store, &Checkpoint::open(data("tiny-tied")).unwrap(), bias);
}

#[test]
fn threads_and_repetition_change_no_byte() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["tiny-qwen3-moe", "tiny-tied"] {
        let expected = whole(name, directory.path());
        fs::remove_file(directory.path().join("whole.nest")).unwrap();
        for threads in [1, 3] {
            let path = directory.path().join(format!("{name}-{threads}.nest"));
            run(&data(name), &path, &options(|o| o.threads = threads)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), expected, "{name} on {threads} threads");
        }
    }
}

/// Experts have their checkpoint's neurons in the requested order, with several tables, and the same bytes on
/// any number of threads.
#[test]
fn experts_in_other_orders_with_several_tables() {
    let directory = tempfile::tempdir().unwrap();
    let source = data("tiny-qwen3-moe");
    let checkpoint = Checkpoint::open(&source).unwrap();
    for order in NeuronOrder::ALL {
        let [one, two] = [1, 2].map(|threads| {
            let path = directory.path().join(format!("{}-{threads}.nest", order.name()));
            let change = |o: &mut ConvertOptions| {
                (o.order, o.quantize.tables, o.threads) = (order, 3, threads);
            };
            run(&source, &path, &options(change)).unwrap();
            path
        });
        assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap(), "{order:?}");
        let store = Store::open(&one).unwrap();
        for group in store.groups().iter().filter(|group| group.id.expert().is_some()) {
            let (layer, expert) = (group.id.layer(), group.id.expert());
            let kinds = [MatrixKind::Gate, MatrixKind::Up, MatrixKind::Down];
            let [gate, up, down] =
                kinds.map(|kind| checkpoint.read_matrix(MatrixId { kind, layer, expert }).unwrap());
            let (hidden, dim) = (40, 72);
            let neurons = order.order(&gate, &up, &down, hidden).unwrap();
            let moved = [
                reorder_rows(&gate, dim, &neurons).unwrap(),
                reorder_rows(&up, dim, &neurons).unwrap(),
                reorder_columns(&down, hidden, &neurons).unwrap(),
            ];
            for (kind, weights) in kinds.into_iter().zip(&moved) {
                let error = relative_error(weights, &decode(&store, &group.id, kind, Level::L4));
                assert!(error < 0.02, "{order:?}, {kind:?} of {}: {error}", group.id);
            }
            for matrix in &group.matrices {
                assert_eq!(store.index().codec(matrix).unwrap().nested().unwrap().tables.len(), 3);
            }
        }
    }
}

#[test]
fn a_lower_top_level_makes_a_smaller_store() {
    let directory = tempfile::tempdir().unwrap();
    let size = |level| {
        let path = directory.path().join(format!("{level}.nest"));
        let report = run(&data("tiny-qwen3-moe"), &path, &options(|o| o.level = level)).unwrap();
        let store = Store::open(&path).unwrap();
        assert_eq!((store.level(), store.id()), (level, report.id));
        assert_eq!(fs::metadata(&path).unwrap().len(), report.store_bytes);
        report.store_bytes
    };
    let sizes = Level::ALL.map(size);
    assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
}

#[test]
fn shards_hold_the_same_weights() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.nest");
    let sharded = options(|o| o.shard_bytes_max = Some(200_000));
    let report = run(&data("tiny-qwen3-moe"), &path, &sharded).unwrap();
    assert!(report.path.to_string_lossy().contains("00001-of-0000"), "{:?}", report.path);
    let store = Store::open(&report.path).unwrap();
    let one = directory.path().join("one.nest");
    run(&data("tiny-qwen3-moe"), &one, &options(|_| {})).unwrap();
    let one = Store::open(&one).unwrap();
    let id = GroupId::expert_of(2, 4);
    let both = [&store, &one].map(|store| decode(store, &id, MatrixKind::Down, Level::L8));
    assert_eq!(both[0], both[1]);
}

#[test]
fn progress_counts_every_byte() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(data("tiny-qwen3-moe")).unwrap();
    let mut seen: Vec<ConvertProgress> = Vec::new();
    let path = directory.path().join("a.nest");
    let token = CancelToken::new();
    convert(&checkpoint, &path, &options(|_| {}), &token, &mut |p| seen.push(p)).unwrap();
    for phase in [ConvertPhase::Hashing, ConvertPhase::Quantizing] {
        let of_phase: Vec<_> = seen.iter().filter(|p| p.phase == phase).collect();
        assert!(of_phase.is_sorted_by_key(|p| p.done_bytes), "{phase:?}");
        let last = of_phase.last().unwrap();
        assert_eq!(last.done_bytes, last.total_bytes, "{phase:?}");
        assert_eq!(last.remaining, Some(Duration::ZERO), "{phase:?}");
    }
    assert_eq!(seen.last().unwrap().phase, ConvertPhase::Finishing);
    let layers: Vec<u32> = seen.iter().filter_map(|p| p.layer).collect();
    assert!(layers.is_sorted() && layers.first() == Some(&0) && layers.last() == Some(&2));
}

#[test]
fn a_cancelled_conversion_goes_on_to_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let expected = whole("tiny-qwen3-moe", directory.path());
    let checkpoint = Checkpoint::open(data("tiny-qwen3-moe")).unwrap();
    let path = directory.path().join("b.nest");
    let mut attempts = 0;
    let mut resumed = Vec::new();
    let report = loop {
        let token = CancelToken::new();
        let mut seen = 0;
        // Beyond the hash, and one or two groups further than the last attempt.
        let result = convert(&checkpoint, &path, &options(|o| o.threads = 1), &token, &mut |p| {
            seen += usize::from(p.phase == ConvertPhase::Quantizing);
            if seen > 2 {
                token.cancel();
            }
        });
        attempts += 1;
        match result {
            Err(ConvertError::Cancelled) => assert!(!path.exists(), "no name before its end"),
            result => break result.unwrap(),
        }
        assert!(attempts < 100, "it never ends");
        let journal = directory.path().join("b.nest.journal");
        resumed.push(fs::metadata(journal).unwrap().len());
    };
    assert!(attempts > 4 && resumed.is_sorted_by(|a, b| a < b), "{resumed:?}");
    assert!(report.resumed_bytes > report.store_bytes / 2);
    assert_eq!(fs::read(&path).unwrap(), expected);
    // Errors of matrices quantized by earlier attempts are included.
    let uninterrupted =
        run(&data("tiny-qwen3-moe"), &directory.path().join("c.nest"), &options(|_| {})).unwrap();
    assert_eq!(report.errors, uninterrupted.errors);
    assert!(report.errors.by_kind().any(|(kind, ..)| kind == MatrixKind::Embedding));
    fs::remove_file(directory.path().join("c.nest")).unwrap();
    let left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing else is left: {left:?}");
}

/// The errors of a smaller store cover exactly its levels.
#[test]
fn errors_are_those_of_the_levels_that_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.nest");
    let report = run(&data("tiny-qwen3-moe"), &path, &options(|_| {})).unwrap();
    let store = Store::open(&path).unwrap();
    let checkpoint = Checkpoint::open(data("tiny-qwen3-moe")).unwrap();
    assert_eq!((report.errors.unknown(), report.errors.weighted()), (0, None));
    let mut before = 0.0;
    for level in Level::ALL.into_iter().rev() {
        let allocation = Allocation::of_level(store.index(), level);
        let errors = report.errors.at(&allocation);
        let kind = MatrixKind::Query;
        let square = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
        let (mut wrong, mut all) = (0.0, 0.0);
        for layer in 0..3 {
            let matrix = MatrixId { kind, layer: Some(layer), expert: None };
            let weights = checkpoint.read_matrix(matrix).unwrap();
            let id = GroupId::Dense { layer };
            let level = allocation.level(store.group(&id).unwrap(), kind).unwrap();
            let found = decode(&store, &id, kind, level);
            wrong += weights.iter().zip(&found).map(square).sum::<f64>();
            all += weights.iter().map(|weight| f64::from(*weight).powi(2)).sum::<f64>();
        }
        let expected = (wrong / all).sqrt();
        let found = errors.by_kind().find(|(found, ..)| *found == kind).unwrap().2;
        assert!((found / expected - 1.0).abs() < 1e-6, "{level}: {found} {expected}");
        let overall = errors.overall().unwrap();
        assert!(overall > before, "{level}");
        before = overall;
    }
    assert_eq!(report.errors.at(&Allocation::of_level(store.index(), Level::L8)), report.errors);
}

#[test]
fn another_checkpoint_is_never_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let expected = whole("tiny-tied", directory.path());
    let other = Checkpoint::open(data("tiny-qwen3-moe")).unwrap();
    let path = directory.path().join("c.nest");
    let token = CancelToken::new();
    let mut seen = 0;
    let stopped = convert(&other, &path, &options(|_| {}), &token, &mut |_| {
        seen += 1;
        if seen == 9 {
            token.cancel();
        }
    });
    assert!(matches!(stopped, Err(ConvertError::Cancelled)), "{stopped:?}");
    let report = run(&data("tiny-tied"), &path, &options(|_| {})).unwrap();
    assert_eq!(report.resumed_bytes, 0);
    assert_eq!(fs::read(&path).unwrap(), expected);
}

/// Body of the processes killed by the next test. Does nothing by default.
#[test]
fn child_that_is_killed() {
    let Ok(path) = std::env::var("NESTLING_TEST_CONVERT_TO") else { return };
    let checkpoint = Checkpoint::open(data("tiny-qwen3-moe")).unwrap();
    let slow = &mut |_| std::thread::sleep(Duration::from_millis(15));
    convert(&checkpoint, Path::new(&path), &options(|_| {}), &CancelToken::new(), slow).unwrap();
}

#[cfg(unix)]
#[test]
fn a_killed_conversion_goes_on_to_the_same_bytes() {
    use std::process::{Command, Stdio};

    let directory = tempfile::tempdir().unwrap();
    let expected = whole("tiny-qwen3-moe", directory.path());
    let path = directory.path().join("d.nest");
    let journal = directory.path().join("d.nest.journal");
    let length = || fs::metadata(&journal).map_or(0, |metadata| metadata.len());
    let mut kills = 0;
    while !path.exists() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed"])
            .env("NESTLING_TEST_CONVERT_TO", &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // After some records, at a moment independent of the journal.
        let before = length() + 400;
        while child.try_wait().unwrap().is_none() && length() <= before {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(kills * 700));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        assert!(kills < 200, "it never ends");
    }
    assert!(kills > 3, "killed {kills} times: too quick to be a test");
    assert_eq!(fs::read(&path).unwrap(), expected);
}

#[test]
fn refusals_come_before_any_work() {
    let directory = tempfile::tempdir().unwrap();
    let source = data("tiny-tied");
    let says = |source: &Path, destination: &Path, part: &str| {
        let checkpoint = Checkpoint::open(source).unwrap();
        let token = CancelToken::new();
        let mut calls = 0;
        let result =
            convert(&checkpoint, destination, &options(|_| {}), &token, &mut |_| calls += 1);
        let text = result.unwrap_err().to_string();
        assert!(text.contains(part), "no `{part}` in: {text}");
        assert_eq!(calls, 0, "{text}");
    };
    let there = directory.path().join("there.nest");
    fs::write(&there, "x").unwrap();
    says(&source, &there, "it exists already");
    says(&source, directory.path(), "it is a directory");
    says(&source, &directory.path().join("no/a.nest"), "its directory does not exist");
    let bare = directory.path().join("bare");
    fs::create_dir(&bare).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.join(name), bare.join(name)).unwrap();
    }
    says(&bare, &directory.path().join("b.nest"), "no `tokenizer.json`");
    run(&source, &there, &options(|o| o.overwrite = true)).unwrap();
    assert!(Store::open(&there).is_ok());
}

#[test]
fn a_weight_that_is_no_number_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("bad");
    fs::create_dir(&source).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(data("tiny-tied").join(name), source.join(name)).unwrap();
    }
    let checkpoint = Checkpoint::open(&source).unwrap();
    let id = MatrixId { kind: MatrixKind::Up, layer: Some(1), expert: Some(3) };
    let [slice] = &names::matrix_tensors(checkpoint.config(), id)[..] else { panic!("one tensor") };
    let at = checkpoint.tensor(&slice.name).unwrap().offset as usize + 2 * 7;
    drop(checkpoint);
    let path = source.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    bytes[at..at + 2].copy_from_slice(&[0xc0, 0x7f]);
    fs::write(&path, bytes).unwrap();
    let error = run(&source, &directory.path().join("bad.nest"), &options(|_| {})).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("layers.1.mlp.experts.3.up_proj.weight"), "{text}");
    assert!(text.contains("element 7 is NaN"), "{text}");
}

#[test]
fn the_estimate_is_near() {
    let directory = tempfile::tempdir().unwrap();
    let report =
        run(&data("tiny-qwen3-moe"), &directory.path().join("a.nest"), &options(|_| {})).unwrap();
    let checkpoint = Checkpoint::open(data("tiny-qwen3-moe")).unwrap();
    let estimate = estimate_store_bytes(checkpoint.config(), &options(|_| {})).unwrap();
    let room = 16 << 20;
    assert!(estimate >= report.store_bytes, "{estimate} for {}", report.store_bytes);
    assert!(estimate - room <= report.store_bytes, "{estimate} for {}", report.store_bytes);
}
