//! Activations, float vectors and routings in device memory.

use std::sync::atomic::{AtomicBool, Ordering};

use nestling_core::EngineError;
use nestling_formats::nested::GROUP;

use crate::allocation::Allocation;
use crate::device_budget::Purpose;
use crate::storage::Storage;
use crate::weight_slabs::WeightRange;

/// Activations, `[rows, cols]` of f32. The buffer grows as needed; its contents after growing are
/// unspecified.
pub struct GpuBuffer<S: Storage> {
    memory: S::Memory,
    /// Elements of a row.
    pub cols: usize,
    /// Number of rows of the step.
    pub rows: usize,
    /// Number of allocated rows, and its limit.
    capacity: usize,
    rows_max: usize,
    int8: Int8Rows<S>,
}

/// The rows of a buffer quantized to int8, written by the kernel that writes the rows.
struct Int8Rows<S: Storage> {
    /// Values, then scales.
    memory: Option<S::Memory>,
    /// [`Storage::epoch`] at which the int8 rows were written, or `None` if the f32 rows changed since.
    made: Option<u64>,
    /// True once a product requested int8 rows. Kernels that write rows then also write int8 rows.
    are_wanted: AtomicBool,
}

/// Quantized activations: values `[rows, groups, 32]`, one byte each, and scales `[rows, groups]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantizedActivations<B> {
    /// Values of the codes.
    pub values: B,
    /// Scales of the groups.
    pub scales: B,
}

impl<S: Storage> GpuBuffer<S> {
    /// Allocates one row. The buffer can grow to `rows_max` rows.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`].
    pub fn new(storage: &mut S, rows_max: usize, cols: usize) -> Result<Self, EngineError> {
        let memory = storage.allocate("activations", 4 * cols as u64)?;
        let int8 = Int8Rows { memory: None, made: None, are_wanted: AtomicBool::new(false) };
        Ok(Self { memory, cols, rows: 0, capacity: 1, rows_max: rows_max.max(1), int8 })
    }

    /// Sets the number of rows. Their contents are unspecified unless the number is unchanged.
    ///
    /// # Errors
    /// Returns an error if `rows` exceeds the buffer's maximum. Fails like [`Storage::allocate`].
    pub fn resize(&mut self, storage: &mut S, rows: usize) -> Result<(), EngineError> {
        if rows > self.capacity {
            if rows > self.rows_max {
                let (what, limit) = ("rows of a buffer", self.rows_max as u64);
                return Err(EngineError::Limit { what, limit, found: rows as u64 });
            }
            let roomy = rows.next_power_of_two().min(self.rows_max);
            let bytes = |rows: usize| 4 * rows as u64 * self.cols as u64;
            let fits = bytes(roomy) <= storage.allocation_bytes_max();
            let capacity = if fits { roomy } else { rows };
            let bytes = bytes(capacity);
            (self.capacity, self.rows) = (0, 0);
            storage.reallocate(&mut self.memory, "activations", bytes)?;
            self.capacity = capacity;
        }
        self.rows = rows;
        self.mark_changed();
        Ok(())
    }

    /// Marks the rows as changed, which invalidates their int8 form.
    pub fn mark_changed(&mut self) {
        self.int8.made = None;
    }

    /// Returns the rows in int8, if available. Otherwise the next kernel that writes the rows also writes
    /// them in int8.
    pub fn int8(&self, storage: &S) -> Option<QuantizedActivations<S::Binding>> {
        self.int8.are_wanted.store(true, Ordering::Relaxed);
        let memory = self.int8.memory.as_ref()?;
        (self.int8.made == Some(storage.epoch())).then(|| self.quantized(memory))
    }

    fn quantized(&self, memory: &S::Memory) -> QuantizedActivations<S::Binding> {
        let groups = (self.rows * self.cols.div_ceil(GROUP)) as u64;
        let values = GROUP as u64 * groups;
        QuantizedActivations {
            values: memory.range(0, values),
            scales: memory.range(values, 4 * groups),
        }
    }

    /// Returns memory for the rows in int8 if a product requested them and the device supports it.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`].
    pub fn make_int8(
        &mut self,
        storage: &mut S,
    ) -> Result<Option<QuantizedActivations<S::Binding>>, EngineError> {
        if !S::KEEPS_INT8 || !self.int8.are_wanted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let groups = (self.capacity * self.cols.div_ceil(GROUP)) as u64;
        let bytes = (GROUP as u64 + 4) * groups;
        match &mut self.int8.memory {
            Some(memory) if memory.bytes() >= bytes => {}
            Some(memory) => storage.reallocate(memory, "activations", bytes)?,
            none => *none = Some(storage.allocate("activations", bytes)?),
        }
        self.int8.made = Some(storage.epoch());
        Ok(self.int8.memory.as_ref().map(|memory| self.quantized(memory)))
    }

    /// Returns the binding of the rows.
    pub fn binding(&self) -> S::Binding {
        self.memory.binding()
    }

    /// Returns a binding of `bytes` bytes of the rows, from byte `offset` on.
    pub fn range(&self, offset: u64, bytes: u64) -> S::Binding {
        self.memory.range(offset, bytes)
    }

    /// Returns the number of elements of all rows.
    pub fn elements(&self) -> usize {
        self.rows * self.cols
    }
}

/// A float vector.
pub struct GpuFloats<S: Storage> {
    /// Memory of the vector.
    pub range: WeightRange<S::Memory>,
    /// Number of elements.
    pub count: usize,
}

impl<S: Storage> GpuFloats<S> {
    /// Uploads a vector for use by commands recorded later. `purpose` selects the part of the memory budget.
    ///
    /// # Errors
    /// Fails like [`Storage::upload_weights`].
    pub fn upload(storage: &mut S, purpose: Purpose, values: &[f32]) -> Result<Self, EngineError> {
        let range = storage.upload_weights(purpose, bytemuck::cast_slice(values))?;
        Ok(Self { range, count: values.len() })
    }

    /// Returns the binding of the vector.
    pub fn binding(&self) -> S::Binding {
        self.range.binding(4 * self.count.max(1) as u64)
    }
}

/// A routing, `[rows, per_token]`: expert indices, ascending in each row, and expert weights.
pub struct GpuRouting<S: Storage> {
    ids: S::Memory,
    weights: S::Memory,
    /// Number of experts of a row.
    pub per_token: usize,
    /// Number of rows of the last routing.
    pub rows: usize,
    /// Maximum number of rows expected.
    pub rows_max: usize,
}

impl<S: Storage> GpuRouting<S> {
    /// Allocates memory for the routing of up to `rows_max` rows.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`].
    pub fn new(storage: &mut S, rows_max: usize, per_token: usize) -> Result<Self, EngineError> {
        let bytes = 4 * (rows_max * per_token) as u64;
        let ids = storage.allocate("chosen experts", bytes)?;
        let weights = storage.allocate("expert weights", bytes)?;
        Ok(Self { ids, weights, per_token, rows: 0, rows_max })
    }

    /// Sets the number of rows and the number of experts of a row, growing the memory if necessary.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`].
    pub fn set(
        &mut self,
        storage: &mut S,
        rows: usize,
        per_token: usize,
    ) -> Result<(), EngineError> {
        let bytes = 4 * (rows.max(self.rows_max) * per_token) as u64;
        for (memory, what) in
            [(&mut self.ids, "chosen experts"), (&mut self.weights, "expert weights")]
        {
            if 4 * (rows * per_token) as u64 > memory.bytes() {
                storage.reallocate(memory, what, bytes)?;
            }
        }
        (self.rows, self.per_token) = (rows, per_token);
        Ok(())
    }

    /// Returns the expert indices, `[rows, per_token]`.
    pub fn ids(&self) -> S::Binding {
        self.ids.binding()
    }

    /// Returns the expert weights, `[rows, per_token]`.
    pub fn weights(&self) -> S::Binding {
        self.weights.binding()
    }
}
