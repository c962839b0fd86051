//! Pages of keys and values, held as f32 after rounding to the element type.

use half::f16;

use crate::error::EngineError;
use crate::kv_cache::{KvDtype, KvShape, PAGE_POSITIONS, PageId};

/// The pages of one layer; each `[keys and values, heads, 64 positions, head_dim]`.
#[derive(Clone, Debug)]
pub struct ReferencePool {
    shape: KvShape,
    pages: Vec<Vec<f32>>, // empty until first written
}

impl ReferencePool {
    pub(super) fn new(shape: KvShape) -> Self {
        Self { shape, pages: vec![Vec::new(); shape.pages] }
    }

    fn missing(&self, page: PageId) -> EngineError {
        let expected = format!("a written page of {}", self.shape.pages);
        EngineError::mismatch("key/value page", expected, page.0)
    }

    pub(super) fn page(&self, page: PageId) -> Result<&[f32], EngineError> {
        match self.pages.get(page.0 as usize) {
            Some(values) if !values.is_empty() => Ok(values),
            _ => Err(self.missing(page)),
        }
    }

    pub(super) fn page_mut(&mut self, page: PageId) -> Result<&mut [f32], EngineError> {
        let (missing, elements) = (self.missing(page), self.elements());
        let values = self.pages.get_mut(page.0 as usize).ok_or(missing)?;
        values.resize(elements, 0.0);
        Ok(values)
    }

    fn elements(&self) -> usize {
        self.shape.page_bytes() / self.shape.dtype.bytes()
    }

    /// Keys and values of one head, `[64, head_dim]` each.
    pub(super) fn head(&self, page: PageId, head: usize) -> Result<(&[f32], &[f32]), EngineError> {
        let (keys, values) = self.page(page)?.split_at(self.elements() / 2);
        let size = PAGE_POSITIONS * self.shape.head_dim;
        Ok((&keys[head * size..][..size], &values[head * size..][..size]))
    }

    /// Stores the keys and values of one position, `[heads, head_dim]` each.
    pub(super) fn store(
        &mut self,
        page: PageId,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), EngineError> {
        let (shape, half) = (self.shape, self.elements() / 2);
        let d = shape.head_dim;
        let (key_page, value_page) = self.page_mut(page)?.split_at_mut(half);
        for (page, x) in [(key_page, keys), (value_page, values)] {
            for (head, x) in x.chunks_exact(d).enumerate() {
                let out = &mut page[(head * PAGE_POSITIONS + position) * d..][..d];
                for (out, x) in out.iter_mut().zip(x) {
                    *out = match shape.dtype {
                        KvDtype::F32 => *x,
                        KvDtype::F16 => f16::from_f32(*x).to_f32(),
                    };
                }
            }
        }
        Ok(())
    }

    pub(super) fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), EngineError> {
        for value in self.page(page)? {
            match self.shape.dtype {
                KvDtype::F32 => out.extend_from_slice(&value.to_le_bytes()),
                KvDtype::F16 => out.extend_from_slice(&f16::from_f32(*value).to_le_bytes()),
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        let (dtype, expected) = (self.shape.dtype, self.shape.page_bytes());
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a page", expected, bytes.len()));
        }
        let values = self.page_mut(page)?;
        match dtype {
            KvDtype::F32 => nestling_formats::DType::F32.decode(bytes, values),
            KvDtype::F16 => nestling_formats::DType::F16.decode(bytes, values),
        }
        Ok(())
    }
}
