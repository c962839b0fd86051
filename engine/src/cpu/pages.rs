//! Pages of keys and values in their element type.

use half::f16;

use super::kernels::KvBlock;
use crate::error::EngineError;
use crate::kv_cache::{KvDtype, KvShape, PAGE_POSITIONS, PageId};

/// The pages of one layer; each `[keys and values, heads, 64 positions, head_dim]`, allocated when
/// first written.
#[derive(Clone, Debug)]
pub struct CpuPool {
    shape: KvShape,
    pages: Vec<Page>,
}

#[derive(Clone, Debug)]
enum Page {
    Missing,
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl CpuPool {
    pub(super) fn new(shape: KvShape) -> Self {
        Self { shape, pages: vec![Page::Missing; shape.pages] }
    }

    fn missing(&self, page: PageId) -> EngineError {
        let expected = format!("a written page of {}", self.shape.pages);
        EngineError::mismatch("key/value page", expected, page.0)
    }

    fn page_mut(&mut self, page: PageId) -> Result<&mut Page, EngineError> {
        let (missing, shape) = (self.missing(page), self.shape);
        let elements = shape.page_bytes() / shape.dtype.bytes();
        let page = self.pages.get_mut(page.0 as usize).ok_or(missing)?;
        if matches!(page, Page::Missing) {
            *page = match shape.dtype {
                KvDtype::F32 => Page::F32(vec![0.0; elements]),
                KvDtype::F16 => Page::F16(vec![f16::ZERO; elements]),
            };
        }
        Ok(page)
    }

    /// Whether the page was written.
    pub(super) fn check(&self, page: PageId) -> Result<(), EngineError> {
        match self.pages.get(page.0 as usize) {
            None | Some(Page::Missing) => Err(self.missing(page)),
            Some(_) => Ok(()),
        }
    }

    /// Keys and values of the first positions of one head; nothing for a page never written.
    pub(super) fn head(&self, page: PageId, head: usize, positions: usize) -> KvBlock<'_> {
        fn part<T>(values: &[T], start: usize, length: usize) -> (&[T], &[T]) {
            let (keys, values) = values.split_at(values.len() / 2);
            (&keys[start..start + length], &values[start..start + length])
        }
        let d = self.shape.head_dim;
        let (start, length) = (head * PAGE_POSITIONS * d, positions * d);
        match self.pages.get(page.0 as usize) {
            Some(Page::F32(page)) => {
                let (keys, values) = part(page, start, length);
                KvBlock::F32(keys, values)
            }
            Some(Page::F16(page)) => {
                let (keys, values) = part(page, start, length);
                KvBlock::F16(keys, values)
            }
            None | Some(Page::Missing) => KvBlock::F32(&[], &[]),
        }
    }

    /// Stores the keys and values of one position, `[heads, head_dim]` each.
    pub(super) fn store(
        &mut self,
        page: PageId,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), EngineError> {
        let d = self.shape.head_dim;
        fn fill<T>(page: &mut [T], at: (usize, usize), x: [&[f32]; 2], convert: fn(f32) -> T) {
            let (position, d) = at;
            let (keys, values) = page.split_at_mut(page.len() / 2);
            for (out, x) in [keys, values].into_iter().zip(x) {
                for (head, x) in x.chunks_exact(d).enumerate() {
                    let out = &mut out[(head * PAGE_POSITIONS + position) * d..][..d];
                    out.iter_mut().zip(x).for_each(|(out, x)| *out = convert(*x));
                }
            }
        }
        match self.page_mut(page)? {
            Page::F32(page) => fill(page, (position, d), [keys, values], |x| x),
            Page::F16(page) => fill(page, (position, d), [keys, values], f16::from_f32),
            Page::Missing => {}
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, source: PageId, destination: PageId) -> Result<(), EngineError> {
        self.check(source)?;
        let page = self.pages[source.0 as usize].clone();
        *self.page_mut(destination)? = page;
        Ok(())
    }

    pub(super) fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), EngineError> {
        match self.pages.get(page.0 as usize) {
            Some(Page::F32(page)) => out.extend(page.iter().flat_map(|x| x.to_le_bytes())),
            Some(Page::F16(page)) => out.extend(page.iter().flat_map(|x| x.to_le_bytes())),
            None | Some(Page::Missing) => return Err(self.missing(page)),
        }
        Ok(())
    }

    pub(super) fn write(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        let expected = self.shape.page_bytes();
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a page", expected, bytes.len()));
        }
        match self.page_mut(page)? {
            Page::F32(page) => {
                let elements = bytes.as_chunks::<4>().0.iter();
                page.iter_mut()
                    .zip(elements)
                    .for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes));
            }
            Page::F16(page) => {
                let elements = bytes.as_chunks::<2>().0.iter();
                page.iter_mut()
                    .zip(elements)
                    .for_each(|(x, bytes)| *x = f16::from_le_bytes(*bytes));
            }
            Page::Missing => {}
        }
        Ok(())
    }
}
