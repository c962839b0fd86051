//! What a step works on, in memory of the device.

use std::sync::Arc;

use crate::device::{Gpu, Memory};
use crate::error::WgpuError;
use crate::recorder::Binding;
use crate::slabs::{Place, Slabs};

/// Activations, `[rows, cols]` of f32. Grows to the rows that come; what a larger step finds in it
/// is unspecified.
pub struct WgpuBuffer {
    raw: Memory,
    pub(crate) cols: usize,
    pub(crate) rows: usize,
    /// Rows that `raw` has room for, and the most that it may have.
    capacity: usize,
    rows_max: usize,
}

impl WgpuBuffer {
    pub(crate) fn new(gpu: &Gpu, rows_max: usize, cols: usize) -> Result<Self, WgpuError> {
        let raw = gpu.buffer("activations", 4 * cols as u64)?;
        Ok(Self { raw, cols, rows: 0, capacity: 1, rows_max: rows_max.max(1) })
    }

    /// Sets the number of rows; what they hold is unspecified unless there were as many.
    pub(crate) fn resize(&mut self, gpu: &Gpu, rows: usize) -> Result<(), WgpuError> {
        if rows > self.capacity {
            let (what, limit) = ("rows of a buffer", self.rows_max as u64);
            if rows > self.rows_max {
                return Err(WgpuError::Limit { what, limit, found: rows as u64 });
            }
            let roomy = rows.next_power_of_two().min(self.rows_max);
            let bytes = |rows: usize| 4 * rows as u64 * self.cols as u64;
            let fits = bytes(roomy) <= gpu.binding_bytes_max();
            let capacity = if fits { roomy } else { rows };
            // A budget has no room for both, the old and the new.
            (self.raw, self.capacity, self.rows) = (gpu.buffer("activations", 0)?, 0, 0);
            self.raw = gpu.buffer("activations", bytes(capacity))?;
            self.capacity = capacity;
        }
        self.rows = rows;
        Ok(())
    }

    /// The memory, for shaders.
    pub(crate) fn binding(&self) -> Binding {
        Binding::from(&self.raw)
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }

    /// Elements of all rows.
    pub(crate) fn len(&self) -> usize {
        self.rows * self.cols
    }
}

/// A float vector.
pub struct WgpuFloats {
    pub(crate) place: Place,
    pub(crate) len: usize,
}

impl WgpuFloats {
    /// Uploads a vector, before whatever is submitted next.
    pub(crate) fn new((gpu, slabs): (&Gpu, &Slabs), values: &[f32]) -> Result<Self, WgpuError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let place = slabs.place(gpu, bytes.len() as u64)?;
        gpu.write(&place.buffer, place.offset, bytes);
        Ok(Self { place, len: values.len() })
    }

    pub(crate) fn binding(&self) -> Binding {
        let size = Some(4 * self.len.max(1) as u64);
        Binding { buffer: self.place.buffer.clone(), offset: self.place.offset, size }
    }
}

/// The router's choice, `[rows, per_token]`: numbers of experts, ascending in each row, and their weights.
pub struct WgpuRouting {
    pub(crate) ids: Memory,
    pub(crate) weights: Memory,
    pub(crate) per_token: usize,
    /// Rows that were routed last.
    pub(crate) rows: usize,
    pub(crate) rows_max: usize,
}

impl WgpuRouting {
    pub(crate) fn new(gpu: &Gpu, rows_max: usize, per_token: usize) -> Result<Self, WgpuError> {
        let bytes = 4 * (rows_max * per_token) as u64;
        let ids = gpu.buffer("chosen experts", bytes)?;
        let weights = gpu.buffer("expert weights", bytes)?;
        Ok(Self { ids, weights, per_token, rows: 0, rows_max })
    }

    /// Sets the rows that are routed, and how many experts each has.
    pub(crate) fn set(
        &mut self,
        gpu: &Gpu,
        rows: usize,
        per_token: usize,
    ) -> Result<(), WgpuError> {
        if 4 * (rows * per_token) as u64 > self.ids.size() {
            *self = Self::new(gpu, self.rows_max.max(rows), per_token)?;
        }
        (self.rows, self.per_token) = (rows, per_token);
        Ok(())
    }
}

/// A size as shaders take it.
///
/// # Errors
/// One that does not fit.
pub(crate) fn word(what: &'static str, size: usize) -> Result<u32, WgpuError> {
    let limit = u64::from(u32::MAX);
    u32::try_from(size).map_err(|_| WgpuError::Limit { what, limit, found: size as u64 })
}

/// Shared by everything that an open device serves.
pub(crate) type SharedGpu = Arc<Gpu>;
