//! Checks of a checkpoint's tensors: all tensors of the model in their shapes, and no others.

use std::collections::HashSet;

use super::slices::{innermost, outermost};
use super::{Checkpoint, FloatPlace, MatrixPlace};
use crate::names::Runs;
use crate::{FloatShape, ImportError, MatrixShape};
use nestling_formats::memory::try_zeroed;
use nestling_formats::{FloatKind, MatrixId, MatrixKind};

impl Checkpoint {
    /// Checks that the checkpoint has each weight in its shape, and no unexpected tensors.
    pub(super) fn check_tensors(&self) -> Result<(), ImportError> {
        let mut used = HashSet::new();
        for matrix in &self.shape.matrices {
            let place = self.matrix(matrix.id).map_err(|error| wanting(error, matrix))?;
            self.check_matrix(matrix, &place)?;
            for part in place.parts {
                used.extend(part.companion.map(|(name, _)| name.to_owned()));
                used.insert(part.slice.name);
                used.extend(part.scales.map(|(name, _)| name));
            }
        }
        for float in &self.shape.floats {
            let place = self.float(float.id)?;
            self.check_float(float, &place)?;
            used.insert(place.source.name);
        }
        if self.config.tie_word_embeddings && self.is_whole() {
            self.check_repeated_head()?;
        }
        let unexpected = |name: &&String| {
            !used.contains(*name) && !(self.naming.is_redundant)(&self.config, name)
        };
        let is_scale = |name: &&String| {
            let scaled = name.strip_suffix(".scale").map(|scaled| format!("{scaled}.weight"));
            unexpected(name) && scaled.is_some_and(|scaled| used.contains(&scaled))
        };
        if let Some(first) = self.tensors.keys().find(is_scale) {
            return Err(ImportError::CompanionScale {
                file: self.directory.display().to_string(),
                tensor: first.clone(),
                count: self.tensors.keys().filter(is_scale).count(),
            });
        }
        match self.tensors.keys().find(unexpected) {
            None => Ok(()),
            Some(first) => Err(ImportError::UnexpectedTensor {
                file: self.directory.display().to_string(),
                tensor: first.clone(),
                count: self.tensors.keys().filter(unexpected).count(),
            }),
        }
    }

    fn check_matrix(&self, shape: &MatrixShape, place: &MatrixPlace) -> Result<(), ImportError> {
        let even = place.parts.iter().all(|part| part.taken[1] == shape.cols);
        let (Some(part), false) =
            (place.parts.first(), even && (place.rows(), place.cols()) == (shape.rows, shape.cols))
        else {
            return Ok(());
        };
        let error = self.wrong_shape(&part.slice.name, part.tensor, String::new());
        Err(wanting(error, shape))
    }

    /// Checks the shape of a float tensor. Dimensions of size 1 are ignored.
    fn check_float(&self, shape: &FloatShape, place: &FloatPlace) -> Result<(), ImportError> {
        let tensor = place.tensor;
        let mut found = tensor.shape.clone();
        if let Some(first) = found.first_mut() {
            // Default: missing rows are rejected below.
            *first = place.source.rows.count(outermost(tensor)).unwrap_or(0) as u64;
        }
        if let Some(last) = found.last_mut().filter(|_| place.source.columns != Runs::ALL) {
            // Default: missing columns are rejected below.
            *last = place.source.columns.count(innermost(tensor)).unwrap_or(0) as u64;
        }
        found.retain(|&size| size != 1);
        if shape.id.kind == FloatKind::Mamba2Norm {
            // llama.cpp writes a row for each group of heads.
            found = vec![found.iter().copied().fold(1, u64::saturating_mul)];
        }
        let mut wanted = vec![shape.rows as u64, shape.cols as u64];
        wanted.retain(|&size| size != 1);
        if found == wanted {
            return Ok(());
        }
        let expected = match shape.rows {
            1 => format!("shape [{}]", shape.cols),
            rows => format!("shape [{rows}, {}]", shape.cols),
        };
        Err(self.wrong_shape(&place.source.name, tensor, expected))
    }

    /// Checks that a tied head, if the checkpoint contains one, equals the embedding.
    fn check_repeated_head(&self) -> Result<(), ImportError> {
        let id = |kind| MatrixId { kind, layer: None, expert: None };
        let Ok(head) = self.matrix(id(MatrixKind::Head)) else { return Ok(()) };
        let embedding = self.matrix(id(MatrixKind::Embedding))?;
        let size = (embedding.rows(), embedding.cols());
        let mut same = head.element() == embedding.element() && (head.rows(), head.cols()) == size;
        let step = (super::CHUNK_BYTES / size.1.max(1)).max(1);
        let mut row = 0;
        while same && row < size.0 {
            let count = step.min(size.0 - row) * size.1;
            let mut one = try_zeroed("rows of a matrix", count)?;
            let mut two = try_zeroed("rows of a matrix", count)?;
            self.read_rows(&head, row, &mut one)?;
            self.read_rows(&embedding, row, &mut two)?;
            same = one == two;
            row += step;
        }
        let Some(part) = head.parts.first().filter(|_| !same) else { return Ok(()) };
        Err(ImportError::Tensor {
            file: self.file_name(part.tensor.file),
            tensor: part.slice.name.clone(),
            offset: part.tensor.offset,
            expected: "what the embedding holds, as `tie_word_embeddings` is true".into(),
            found: "other values".into(),
        })
    }
}

/// Adds the expected shape to the error of a tensor.
fn wanting(error: ImportError, shape: &MatrixShape) -> ImportError {
    match error {
        ImportError::Tensor { file, tensor, offset, found, .. } => {
            let expected = format!("shape [{}, {}], or one that holds it", shape.rows, shape.cols);
            ImportError::Tensor { file, tensor, offset, expected, found }
        }
        other => other,
    }
}
