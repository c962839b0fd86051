//! Pages of the KV cache in their element type.

use half::f16;

use super::attention::{self, KvBlock, SharedRows};
use super::kernels::Kernels;
use super::math;
use nestling_core::arena::AlignedBytes;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS, PageId};

// Kernels and pages agree.
const _: () = assert!(attention::PAGE_POSITIONS == PAGE_POSITIONS);

/// KV pages of one layer, allocated when they are first written.
///
/// A page holds its heads consecutively, each with its transposed keys, `[head_dim, 64]`, and its values,
/// `[64, head_dim]`. Integers are followed by the scales of all heads, `[heads, keys and values, 64]`.
///
/// If values are the first elements of keys, each head has only rows of keys, `[64, head_dim]`. Integers are
/// then followed by the scales of the values and of the other elements, `[heads, 64, 2]`.
#[derive(Debug)]
pub struct CpuPool {
    shape: KvShape,
    pages: Vec<Option<AlignedBytes>>,
}

/// Number of elements of a key that are converted at once.
const CHUNK: usize = 64;

impl CpuPool {
    pub(super) fn new(shape: KvShape) -> Self {
        Self { shape, pages: (0..shape.pages).map(|_| None).collect() }
    }

    pub(super) fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Returns the location of values and the number of elements of one.
    pub(super) fn values(&self) -> (KvValues, usize) {
        (self.shape.values, self.shape.values.dim(self.shape.head_dim))
    }

    fn missing(&self, page: PageId) -> EngineError {
        let expected = format!("a written page of {}", self.shape.pages);
        EngineError::mismatch("key/value page", expected, page.0)
    }

    fn page(&self, page: PageId) -> Result<&AlignedBytes, EngineError> {
        let found = self.pages.get(page.0 as usize).and_then(Option::as_ref);
        found.ok_or_else(|| self.missing(page))
    }

    fn page_mut(&mut self, page: PageId) -> Result<&mut AlignedBytes, EngineError> {
        let bytes = self.shape.page_bytes();
        if page.0 as usize >= self.pages.len() {
            return Err(self.missing(page));
        }
        match &mut self.pages[page.0 as usize] {
            Some(page) => Ok(page),
            page => Ok(page.insert(AlignedBytes::zeroed("keys and values", bytes)?)),
        }
    }

    /// Returns an error if the page was not written.
    pub(super) fn check(&self, page: PageId) -> Result<(), EngineError> {
        self.page(page).map(|_| ())
    }

    pub(super) fn head(&self, page: PageId, head: usize) -> Result<KvBlock<'_>, EngineError> {
        if let KvValues::KeyPrefix(_) = self.shape.values {
            return Ok(KvBlock::Shared(self.shared_rows(page, head)?));
        }
        let d = self.shape.head_dim;
        let (bytes, size) = (self.page(page)?.as_ref(), PAGE_POSITIONS * d);
        fn part<T: bytemuck::Pod>(bytes: &[u8], head: usize, size: usize) -> (&[T], &[T]) {
            let start = 2 * head * size * size_of::<T>();
            let elements: &[T] = bytemuck::cast_slice(&bytes[start..][..2 * size * size_of::<T>()]);
            elements.split_at(size)
        }
        Ok(match self.shape.dtype {
            KvDtype::F32 => {
                let (keys, values) = part(bytes, head, size);
                KvBlock::F32 { keys, values }
            }
            KvDtype::F16 => {
                let (keys, values) = part(bytes, head, size);
                KvBlock::F16 { keys, values }
            }
            KvDtype::Int8 => {
                let (keys, values) = part(bytes, head, size);
                let scales = &bytes[2 * size * self.shape.num_key_value_heads..];
                let (key_scales, value_scales) = part(scales, head, PAGE_POSITIONS);
                KvBlock::Int8 { keys, values, key_scales, value_scales }
            }
        })
    }

    /// Returns the keys of one head whose first elements are the values.
    fn shared_rows(&self, page: PageId, head: usize) -> Result<SharedRows<'_>, EngineError> {
        let KvShape { num_key_value_heads: heads, head_dim: d, dtype, .. } = self.shape;
        let head_bytes = PAGE_POSITIONS * d * dtype.bytes();
        let (elements, scales) = self.page(page)?.as_ref().split_at(heads * head_bytes);
        let rows = &elements[head * head_bytes..][..head_bytes];
        Ok(match dtype {
            KvDtype::F32 => SharedRows::F32(bytemuck::cast_slice(rows)),
            KvDtype::F16 => SharedRows::F16(bytemuck::cast_slice(rows)),
            KvDtype::Int8 => {
                let scales: &[[f32; 2]] = bytemuck::cast_slice(scales);
                let scales = &scales[head * PAGE_POSITIONS..][..PAGE_POSITIONS];
                SharedRows::Int8 { rows: bytemuck::cast_slice(rows), scales }
            }
        })
    }

    /// Takes a page out, so that several threads can write pages; see [`Self::put_back`].
    ///
    /// # Errors
    /// Fails if the pool does not have the page.
    pub(super) fn take(&mut self, page: PageId) -> Result<TakenPage, EngineError> {
        self.page_mut(page)?;
        let bytes = self.pages[page.0 as usize].take();
        Ok(TakenPage { page, shape: self.shape, bytes: bytes.ok_or_else(|| self.missing(page))? })
    }

    /// Returns a page to its place in the pool.
    pub(super) fn put_back(&mut self, taken: TakenPage) {
        if let Some(page) = self.pages.get_mut(taken.page.0 as usize) {
            *page = Some(taken.bytes);
        }
    }

    pub(super) fn copy(&mut self, source: PageId, destination: PageId) -> Result<(), EngineError> {
        self.check(source)?;
        self.page_mut(destination)?;
        let (from, to) = (source.0 as usize, destination.0 as usize);
        let Some(mut copy) = self.pages[to].take() else { return Err(self.missing(destination)) };
        // If source and destination are the same page, it was taken out and needs no copy.
        if let Some(page) = &self.pages[from] {
            copy.bytes_mut().copy_from_slice(page.as_ref());
        }
        self.pages[to] = Some(copy);
        Ok(())
    }

    pub(super) fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), EngineError> {
        out.extend_from_slice(self.page(page)?.as_ref());
        Ok(())
    }

    pub(super) fn write(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        let expected = self.shape.page_bytes();
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a page", expected, bytes.len()));
        }
        self.page_mut(page)?.bytes_mut().copy_from_slice(bytes);
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct TakenPage {
    page: PageId,
    shape: KvShape,
    bytes: AlignedBytes,
}

impl TakenPage {
    /// Stores the keys and values of one position, `[heads, head_dim]` each.
    pub fn store(&mut self, kernels: &Kernels, position: usize, keys: &[f32], values: &[f32]) {
        let (d, heads, dtype) =
            (self.shape.head_dim, self.shape.num_key_value_heads, self.shape.dtype);
        let head_bytes = 2 * PAGE_POSITIONS * d * dtype.bytes();
        let (elements, scales) = self.bytes.bytes_mut().split_at_mut(heads * head_bytes);
        let scales: &mut [f32] = bytemuck::cast_slice_mut(scales);
        let rows = keys.chunks_exact(d).zip(values.chunks_exact(d));
        for (head, (rows, out)) in rows.zip(elements.chunks_exact_mut(head_bytes)).enumerate() {
            match dtype {
                KvDtype::F32 => {
                    let mut slot = Slot::new(bytemuck::cast_slice_mut(out), position, d);
                    slot.put_key(0, rows.0);
                    slot.value().copy_from_slice(rows.1);
                }
                KvDtype::F16 => {
                    let mut slot = Slot::new(bytemuck::cast_slice_mut(out), position, d);
                    for (part, keys) in rows.0.chunks(CHUNK).enumerate() {
                        let mut halves = [f16::ZERO; CHUNK];
                        kernels.narrow(keys, &mut halves[..keys.len()]);
                        slot.put_key(part * CHUNK, &halves[..keys.len()]);
                    }
                    kernels.narrow(rows.1, slot.value());
                }
                KvDtype::Int8 => {
                    let mut slot = Slot::new(bytemuck::cast_slice_mut(out), position, d);
                    let at = 2 * head * PAGE_POSITIONS + position;
                    scales[at] = slot.put_quantized_key(rows.0);
                    scales[at + PAGE_POSITIONS] = math::quantize_group(rows.1, slot.value());
                }
            }
        }
    }
}

impl TakenPage {
    /// Stores the keys of one position, `[heads, head_dim]`, whose first `value_dim` elements are the values.
    pub fn store_shared(
        &mut self,
        kernels: &Kernels,
        position: usize,
        keys: &[f32],
        value_dim: usize,
    ) {
        let KvShape { num_key_value_heads: heads, head_dim: d, dtype, .. } = self.shape;
        let head_bytes = PAGE_POSITIONS * d * dtype.bytes();
        let (elements, scales) = self.bytes.bytes_mut().split_at_mut(heads * head_bytes);
        let scales: &mut [[f32; 2]] = bytemuck::cast_slice_mut(scales);
        let rows = keys.chunks_exact(d).zip(elements.chunks_exact_mut(head_bytes));
        for (head, (key, out)) in rows.enumerate() {
            let row_bytes = d * dtype.bytes();
            let out = &mut out[position * row_bytes..][..row_bytes];
            match dtype {
                KvDtype::F32 => bytemuck::cast_slice_mut(out).copy_from_slice(key),
                KvDtype::F16 => kernels.narrow(key, bytemuck::cast_slice_mut(out)),
                KvDtype::Int8 => {
                    let (value, rest) = key.split_at(value_dim.min(d));
                    let (value_out, rest_out) =
                        bytemuck::cast_slice_mut(out).split_at_mut(value.len());
                    scales[head * PAGE_POSITIONS + position] = [
                        math::quantize_group(value, value_out),
                        math::quantize_group(rest, rest_out),
                    ];
                }
            }
        }
    }
}

/// Memory of one position in one head of a page.
struct Slot<'a, T> {
    keys: &'a mut [T],   // [head_dim, 64]
    values: &'a mut [T], // [64, head_dim]
    position: usize,
    head_dim: usize,
}

impl<'a, T: Copy> Slot<'a, T> {
    fn new(head: &'a mut [T], position: usize, head_dim: usize) -> Self {
        let (keys, values) = head.split_at_mut(PAGE_POSITIONS * head_dim);
        Self { keys, values, position, head_dim }
    }

    /// Stores the elements of the key from `first` on.
    fn put_key(&mut self, first: usize, key: &[T]) {
        let rows = self.keys.chunks_exact_mut(PAGE_POSITIONS).skip(first);
        rows.zip(key).for_each(|(row, element)| row[self.position] = *element);
    }

    fn value(&mut self) -> &mut [T] {
        &mut self.values[self.position * self.head_dim..][..self.head_dim]
    }
}

impl Slot<'_, i8> {
    /// Quantizes a key, using the memory of the value, which is written afterwards, as a buffer.
    fn put_quantized_key(&mut self, key: &[f32]) -> f32 {
        let (keys, position, d) = (&mut *self.keys, self.position, self.head_dim);
        let row = &mut self.values[position * d..][..d];
        let scale = math::quantize_group(key, row);
        let rows = keys.chunks_exact_mut(PAGE_POSITIONS).zip(row);
        rows.for_each(|(keys, element)| keys[position] = *element);
        scale
    }
}
