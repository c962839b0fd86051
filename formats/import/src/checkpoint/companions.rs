//! Scale tensors that llama.cpp writes beside NVFP4 tensors.
//!
//! `NAME.scale` holds one F32 for `NAME.weight`, or one per expert if the tensor stacks experts. llama.cpp
//! multiplies the products of the tensor by it, so it is a factor of all weights.

use std::collections::{BTreeMap, HashSet};

use super::Checkpoint;
use super::slices::outermost;
use crate::gguf::BlockType;
use crate::names::TensorSlice;
use crate::{ElementType, ImportError};
use nestling_formats::DType;
use nestling_formats::memory::try_zeroed;

/// Maximum magnitude of a scale. Up to it, an int8 times an E4M3 number times the scale is finite, as readers
/// of scaled integers require. Scales of real models are below 1.
const SCALE_MAX: f32 = 1e30;

/// Contents of a scale tensor.
#[derive(Debug)]
pub(super) struct Companion {
    /// Name of the scale tensor.
    name: String,
    /// One scale, or one per expert. All are 1 if only the headers of the files are available.
    values: Vec<f32>,
}

impl Checkpoint {
    /// Reads the scale tensors of all NVFP4 tensors.
    ///
    /// # Errors
    /// [`ImportError::Tensor`] for a scale tensor of another type or shape, or with a scale that is infinite,
    /// NaN or above the limit, and the errors of [`Checkpoint::read_f32`].
    pub(super) fn read_companions(&self) -> Result<BTreeMap<String, Companion>, ImportError> {
        // In Gemma 4, the scale of the down projection is a weight of the router.
        let floats = self.shape.floats.iter().filter_map(|float| {
            (self.naming.float)(&self.config, float.id).map(|source| source.name)
        });
        let floats: HashSet<String> = floats.collect();
        let mut companions = BTreeMap::new();
        for (name, tensor) in &self.tensors {
            let Some(stem) = name.strip_suffix(".scale") else { continue };
            let scaled = format!("{stem}.weight");
            let is_nvfp4 = |name: &str| {
                let element = self.tensor(name).map(|tensor| tensor.element);
                element == Some(ElementType::Block(BlockType::Nvfp4))
            };
            let is_redundant = (self.naming.is_redundant)(&self.config, name);
            if floats.contains(name) || is_redundant || !is_nvfp4(&scaled) {
                continue;
            }
            let mut sizes = vec![1];
            // Default: the scaled tensor exists, as its type was compared.
            sizes.extend(self.tensor(&scaled).filter(|_| stem.ends_with("_exps")).map(outermost));
            let count = tensor.shape.iter().product::<u64>();
            let is_f32 = tensor.element == ElementType::Float(DType::F32);
            if !is_f32 || !sizes.iter().any(|size| *size as u64 == count) {
                let expected = format!("F32 with one of {sizes:?} elements");
                return Err(self.wrong_shape(name, tensor, expected));
            }
            let mut values = try_zeroed("scales of tensors", self.buffer_length(count)?)?;
            values.fill(1.0);
            if self.is_whole() {
                self.read_f32_from(tensor, 0, &mut values)?;
            }
            if let Some(value) = values.iter().find(|value| value.abs() > SCALE_MAX) {
                return Err(ImportError::Tensor {
                    file: self.file_name(tensor.file),
                    tensor: name.clone(),
                    offset: tensor.offset,
                    expected: format!("scales of at most {SCALE_MAX:e}"),
                    found: format!("{value:e}"),
                });
            }
            companions.insert(scaled, Companion { name: name.clone(), values });
        }
        Ok(companions)
    }

    /// Returns the scale of a slice with the name of its tensor, if there is one.
    pub(super) fn companion(&self, slice: &TensorSlice) -> Option<(&str, f32)> {
        let Companion { name, values } = self.companions.get(&slice.name)?;
        // Default: a single scale belongs to all experts.
        let scale = slice.index.and_then(|index| values.get(index)).or(values.first())?;
        Some((name, *scale))
    }
}
