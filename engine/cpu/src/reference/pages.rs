//! KV pages, stored as f32 after rounding to the element type.

use half::f16;

use crate::math;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS, PageId};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Position {
    /// Factor of the elements; 1 unless they are integers.
    pub key_scale: f32,
    pub value_scale: f32,
    pub key: Vec<f32>,   // [head_dim], or what follows the value
    pub value: Vec<f32>, // [elements of a value]
}

impl Position {
    /// Returns the position with a key that starts with the value, both multiplied by their scales.
    fn shared(&self) -> Self {
        let scaled = |x: &[f32], scale: f32| x.iter().map(|x| x * scale).collect::<Vec<_>>();
        let value = scaled(&self.value, self.value_scale);
        let key = [value.clone(), scaled(&self.key, self.key_scale)].concat();
        Self { key_scale: 1.0, value_scale: 1.0, key, value }
    }
}

/// KV pages of one layer, each `[64 positions, heads]`.
#[derive(Clone, Debug)]
pub struct ReferencePool {
    shape: KvShape,
    pages: Vec<Vec<Position>>, // empty until first written
}

/// Returns elements rounded to the type, with their scale.
fn rounded(dtype: KvDtype, x: &[f32]) -> (f32, Vec<f32>) {
    match dtype {
        KvDtype::F32 => (1.0, x.to_vec()),
        KvDtype::F16 => (1.0, x.iter().map(|x| f16::from_f32(*x).to_f32()).collect()),
        KvDtype::Int8 => {
            let mut integers = vec![0; x.len()];
            let scale = math::quantize_group(x, &mut integers);
            (scale, integers.into_iter().map(f32::from).collect())
        }
    }
}

impl ReferencePool {
    pub(super) fn new(shape: KvShape) -> Self {
        Self { shape, pages: vec![Vec::new(); shape.pages] }
    }

    pub(crate) fn shape(&self) -> &KvShape {
        &self.shape
    }

    fn missing(&self, page: PageId) -> EngineError {
        let expected = format!("a written page of {}", self.shape.pages);
        EngineError::mismatch("key/value page", expected, page.0)
    }

    pub(super) fn page(&self, page: PageId) -> Result<&[Position], EngineError> {
        match self.pages.get(page.0 as usize) {
            Some(positions) if !positions.is_empty() => Ok(positions),
            _ => Err(self.missing(page)),
        }
    }

    pub(super) fn page_mut(&mut self, page: PageId) -> Result<&mut Vec<Position>, EngineError> {
        let missing = self.missing(page);
        let scale = if self.shape.dtype == KvDtype::Int8 { 0.0 } else { 1.0 };
        let (key, value) = (vec![0.0; self.key_dim()], vec![0.0; self.value_dim()]);
        let zero = Position { key_scale: scale, value_scale: scale, key, value };
        let positions = self.pages.get_mut(page.0 as usize).ok_or(missing)?;
        positions.resize(PAGE_POSITIONS * self.shape.num_key_value_heads, zero);
        Ok(positions)
    }

    pub(super) fn at(
        &self,
        page: PageId,
        position: usize,
        head: usize,
    ) -> Result<Position, EngineError> {
        let index = position * self.shape.num_key_value_heads + head;
        let found = self.page(page)?.get(index).ok_or_else(|| self.missing(page))?;
        Ok(match self.shape.values {
            KvValues::Beside => found.clone(),
            KvValues::KeyPrefix(_) => found.shared(),
        })
    }

    /// Returns the number of elements of a stored key, without the ones stored as its value.
    fn key_dim(&self) -> usize {
        match self.shape.values {
            KvValues::Beside => self.shape.head_dim,
            KvValues::KeyPrefix(dim) => self.shape.head_dim - dim,
        }
    }

    fn value_dim(&self) -> usize {
        self.shape.values.dim(self.shape.head_dim)
    }

    /// Stores the keys of one position, `[heads, head_dim]`, which start with their values.
    pub(super) fn store_shared(
        &mut self,
        page: PageId,
        position: usize,
        keys: &[f32],
    ) -> Result<(), EngineError> {
        let KvShape { num_key_value_heads: heads, head_dim: d, dtype, .. } = self.shape;
        let value_dim = self.value_dim();
        let out = &mut self.page_mut(page)?[position * heads..][..heads];
        for (out, key) in out.iter_mut().zip(keys.chunks_exact(d)) {
            let (value, rest) = key.split_at(value_dim);
            (out.key_scale, out.key) = rounded(dtype, rest);
            (out.value_scale, out.value) = rounded(dtype, value);
        }
        Ok(())
    }

    /// Stores the keys and values of one position, `[heads, head_dim]` each.
    pub(super) fn store(
        &mut self,
        page: PageId,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), EngineError> {
        let KvShape { num_key_value_heads: heads, head_dim: d, dtype, .. } = self.shape;
        let out = &mut self.page_mut(page)?[position * heads..][..heads];
        for (out, (key, value)) in
            out.iter_mut().zip(keys.chunks_exact(d).zip(values.chunks_exact(d)))
        {
            (out.key_scale, out.key) = rounded(dtype, key);
            (out.value_scale, out.value) = rounded(dtype, value);
        }
        Ok(())
    }

    /// Writes the elements in their type, followed by the scales of integers.
    pub(super) fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), EngineError> {
        for position in self.page(page)? {
            for value in position.key.iter().chain(&position.value) {
                match self.shape.dtype {
                    KvDtype::F32 => out.extend_from_slice(&value.to_le_bytes()),
                    KvDtype::F16 => out.extend_from_slice(&f16::from_f32(*value).to_le_bytes()),
                    KvDtype::Int8 => out.extend_from_slice(&(*value as i8).to_le_bytes()),
                }
            }
            if self.shape.dtype == KvDtype::Int8 {
                out.extend_from_slice(&position.key_scale.to_le_bytes());
                out.extend_from_slice(&position.value_scale.to_le_bytes());
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        let (dtype, expected) = (self.shape.dtype, self.shape.page_bytes());
        let (key_dim, value_dim) = (self.key_dim(), self.value_dim());
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a page", expected, bytes.len()));
        }
        let position_bytes = (key_dim + value_dim) * dtype.bytes() + 2 * dtype.scale_bytes();
        let positions = self.page_mut(page)?.iter_mut();
        for (position, bytes) in positions.zip(bytes.chunks_exact(position_bytes.max(1))) {
            let (keys, rest) = bytes.split_at(key_dim * dtype.bytes());
            let (values, scales) = rest.split_at(value_dim * dtype.bytes());
            let scales: Vec<f32> =
                scales.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            position.key_scale = scales.first().copied().unwrap_or(1.0);
            position.value_scale = scales.last().copied().unwrap_or(1.0);
            for (out, bytes) in [(&mut position.key, keys), (&mut position.value, values)] {
                match dtype {
                    KvDtype::F32 => nestling_formats::DType::F32.decode(bytes, out),
                    KvDtype::F16 => nestling_formats::DType::F16.decode(bytes, out),
                    KvDtype::Int8 => {
                        out.iter_mut().zip(bytes).for_each(|(x, b)| *x = f32::from(*b as i8));
                    }
                }
            }
        }
        Ok(())
    }
}
