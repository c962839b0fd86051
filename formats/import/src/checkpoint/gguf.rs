//! GGUF files, single or split, as checkpoints.

use nestling_formats::{DType, Invariant};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::{Asset, Checkpoint, SmallFiles, TensorInfo};
use crate::config::{AttentionConfig, RopeConfig, RopeScaling, TokenMixer};
use crate::gguf::{GgufHeader, assets, config_json, part_names};
use crate::limits::MAX_HEAD_DIM;
use crate::names::{self, FREQUENCY_FACTORS};
use crate::read_at::SourceFile;
use crate::weight_files::{io_error, read_source};
use crate::{ElementType, GenerationDefaults, ImportError, ModelConfig, ModelShape};

/// Key of the number of parts of a split file.
const PARTS: &str = "split.count";

/// Key of the number of tensors in all parts.
const ALL_TENSORS: &str = "split.tensors.count";

/// Returns true if the file starts with the GGUF magic.
pub(super) fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = SourceFile::open(path).and_then(|file| file.read_exact_at(0, &mut magic));
    read.is_ok() && magic == *b"GGUF"
}

/// Opens a GGUF file, with all parts if it is part of a split file.
pub(super) fn open(path: &Path) -> Result<Checkpoint, ImportError> {
    let open =
        |path: &PathBuf| SourceFile::open(path).map_err(|source| io_error(path, "open", source));
    of_parts(path, paths(path)?.iter().map(open).collect::<Result<_, _>>()?)
}

/// Opens the parts of a GGUF file, in their order. A file that is not split is one part.
pub(super) fn of_parts(path: &Path, files: Vec<SourceFile>) -> Result<Checkpoint, ImportError> {
    let mut tensors = BTreeMap::new();
    let mut first: Option<GgufHeader> = None;
    let mut hash = Xxh3::new();
    for (number, file) in files.iter().enumerate() {
        let mut header = read_header(file)?;
        hash.update(header.metadata.bytes());
        check_parts(&header, files.len(), number)?;
        // The parts form one checkpoint: the first part has the metadata, the others only tensors.
        let found = std::mem::take(&mut header.tensors);
        for tensor in &found {
            let info = TensorInfo {
                element: tensor.element,
                shape: tensor.shape.clone(),
                file: number,
                offset: tensor.offset,
                length: tensor.length,
            };
            if tensors.insert(tensor.name.clone(), info).is_some() {
                return Err(ImportError::Malformed {
                    file: file.path().display().to_string(),
                    what: format!("tensor `{}`", tensor.name),
                    offset: tensor.offset,
                    expected: "a name that no other part has".into(),
                    found: "one used before".into(),
                });
            }
        }
        match &mut first {
            None => first = Some(GgufHeader { tensors: found, ..header }),
            Some(first) => first.tensors.extend(found),
        }
    }
    let Some(mut header) = first else { return Err(super::not_a_checkpoint(path)) };
    check_count(&header)?;
    header.frequency_divisors = frequency_divisors(&files, &tensors)?;
    let checkpoint = whole(path, header, files, tensors)?;
    Ok(Checkpoint { headers_hash: Some(hash.digest128()), ..checkpoint })
}

/// Reads the divisors of the RoPE frequencies, of files that have them and are complete.
fn frequency_divisors(
    files: &[SourceFile],
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Option<Vec<f32>>, ImportError> {
    const MAX: u64 = (MAX_HEAD_DIM / 2) as u64;
    let Some(tensor) = tensors.get(FREQUENCY_FACTORS) else { return Ok(None) };
    let file = files.get(tensor.file).invariant("a tensor is in one of the files")?;
    let wrong = |expected: String, found: String| ImportError::Tensor {
        file: file.path().display().to_string(),
        tensor: FREQUENCY_FACTORS.into(),
        offset: tensor.offset,
        expected,
        found,
    };
    let count = match (tensor.element, &tensor.shape[..]) {
        (ElementType::Float(DType::F32), [count]) if *count <= MAX => *count,
        (element, shape) => {
            let expected = format!("F32 of shape [n], n up to {MAX}");
            return Err(wrong(expected, format!("{} of shape {shape:?}", element.name())));
        }
    };
    if !file.is_whole() {
        return Ok(None);
    }
    let mut bytes = vec![0; 4 * count as usize];
    read_source(file, tensor.offset, &mut bytes)?;
    let mut divisors = vec![0.0; count as usize];
    DType::F32.decode(&bytes, &mut divisors);
    // Gemma's files have 1e30 for pairs that are not rotated.
    match divisors.iter().find(|divisor| !(1e-6..=1e30).contains(*divisor)) {
        Some(found) => Err(wrong("divisors from 1e-6 to 1e30".into(), found.to_string())),
        None => Ok(Some(divisors)),
    }
}

fn whole(
    path: &Path,
    header: GgufHeader,
    files: Vec<SourceFile>,
    mut tensors: BTreeMap<String, TensorInfo>,
) -> Result<Checkpoint, ImportError> {
    let label = path.display().to_string();
    let config = ModelConfig::from_json(&label, &config_json(&header)?)?;
    for (name, heads) in names::split_into_heads(&config) {
        if let Some(TensorInfo { shape, .. }) = tensors.get_mut(&name)
            && let [rows, cols] = shape[..]
            && rows.is_multiple_of(heads as u64)
        {
            *shape = vec![heads as u64, rows / heads as u64, cols];
        }
    }
    let shape = ModelShape::new(&config);
    let naming = names::in_gguf(config.architecture);
    let (directory, small) = (path.to_owned(), SmallFiles::Written(Vec::new()));
    let generation = GenerationDefaults::default();
    let headers_hash = None;
    let mut checkpoint = Checkpoint {
        directory,
        small,
        config,
        generation,
        shape,
        naming,
        files,
        tensors,
        headers_hash,
        companions: BTreeMap::new(),
    };
    checkpoint.companions = checkpoint.read_companions()?;
    checkpoint.check_tensors()?;
    checkpoint.check_frequency_factors()?;
    // Tokenizers are large, so they are generated after all other checks.
    let small = assets(&header)?;
    let generation = small.iter().find(|asset: &&Asset| asset.name == "generation_config.json");
    let generation = generation.invariant("a GGUF file's assets say how text is generated")?;
    checkpoint.generation = GenerationDefaults::from_json(&label, &generation.bytes)?;
    checkpoint.small = SmallFiles::Written(small);
    Ok(checkpoint)
}

impl Checkpoint {
    /// Checks that proportional RoPE matches the configuration of the family. Only the first pairs of a head
    /// are rotated; for the others, files contain a factor of 1e30 that disables the rotation.
    fn check_frequency_factors(&self) -> Result<(), ImportError> {
        let mixers = self.config.layers.iter().map(|layer| layer.mixer);
        let attention = mixers.filter_map(|mixer| match mixer {
            TokenMixer::Attention(AttentionConfig { rope, .. }) => Some(rope),
            _ => None,
        });
        let mut proportional = attention.filter_map(|rope| match rope.scaling {
            RopeScaling::Proportional { pairs } if rope != RopeConfig::NONE => {
                Some((pairs, rope.dims / 2))
            }
            _ => None,
        });
        let Some((turning, all)) = proportional.next() else { return Ok(()) };
        if !self.is_whole() {
            return Ok(());
        }
        let name = FREQUENCY_FACTORS;
        let Some(tensor) = self.tensor(name) else {
            let file = self.directory.display().to_string();
            return Err(ImportError::MissingTensor { file, tensor: name.into() });
        };
        let is_right = tensor.shape == [all as u64] && {
            let factors = self.read_f32(tensor)?;
            let (turn, stay) = factors.split_at(turning);
            turn.iter().all(|factor| *factor == 1.0) && stay.iter().all(|factor| *factor >= 1e29)
        };
        if is_right {
            return Ok(());
        }
        Err(ImportError::Tensor {
            file: self.file_name(tensor.file),
            tensor: name.into(),
            offset: tensor.offset,
            expected: format!("{turning} times 1 and {} times 1e30", all - turning),
            found: format!("other values, or another shape: {:?}", tensor.shape),
        })
    }
}

fn paths(path: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Ok(vec![path.into()]);
    };
    Ok(part_names(name)?.into_iter().map(|name| path.with_file_name(name)).collect())
}

fn read_header(file: &SourceFile) -> Result<GgufHeader, ImportError> {
    let name = file.path().display().to_string();
    let mut read = |offset: u64, out: &mut [u8]| read_source(file, offset, out);
    GgufHeader::read(&name, file.length(), &mut read)
}

/// Checks that the split metadata of a part matches its file name.
fn check_parts(header: &GgufHeader, count: usize, number: usize) -> Result<(), ImportError> {
    let metadata = &header.metadata;
    let said = metadata.unsigned(PARTS)?.unwrap_or(1).max(1);
    if said != count as u64 {
        let expected = format!("{count}, as its name says");
        return Err(metadata.wrong(PARTS, &expected));
    }
    let own = metadata.unsigned("split.no")?;
    match own {
        Some(own) if own != number as u64 => {
            Err(metadata.wrong("split.no", &format!("{number}, as its name says")))
        }
        _ => Ok(()),
    }
}

fn check_count(header: &GgufHeader) -> Result<(), ImportError> {
    match header.metadata.unsigned(ALL_TENSORS)? {
        Some(count) if count != header.tensors.len() as u64 => {
            let expected = format!("{}, as many as all parts have", header.tensors.len());
            Err(header.metadata.wrong(ALL_TENSORS, &expected))
        }
        _ => Ok(()),
    }
}
