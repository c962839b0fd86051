//! What a step works on, in memory of the device.

use std::sync::atomic::{AtomicBool, Ordering};

use nestling_core::EngineError;
use nestling_formats::nested::GROUP;

use crate::allocation::Allocation;
use crate::device_budget::Purpose;
use crate::storage::Storage;
use crate::weight_slabs::WeightRange;

/// Activations, `[rows, cols]` of f32. Grows to the rows that come; what a larger step finds in it
/// is unspecified.
pub struct GpuBuffer<S: Storage> {
    memory: S::Memory,
    /// Elements of a row.
    pub cols: usize,
    /// Rows of the step.
    pub rows: usize,
    /// Rows that there is room for, and the most that there may be.
    capacity: usize,
    rows_max: usize,
    int8: Int8Rows<S>,
}

/// A buffer's rows in int8 as products take them, made along with the rows themselves.
struct Int8Rows<S: Storage> {
    /// Values, then scales.
    memory: Option<S::Memory>,
    /// [`Storage::epoch`] when they were made of what the buffer holds now.
    made: Option<u64>,
    /// Whether a product took them: whatever makes rows makes these too from then on.
    are_wanted: AtomicBool,
}

/// Quantized activations: values `[rows, groups, 32]` of a byte, and scales `[rows, groups]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantized<B> {
    /// Where values are.
    pub values: B,
    /// Where scales are.
    pub scales: B,
}

impl<S: Storage> GpuBuffer<S> {
    /// Room for one row, which grows up to `rows_max`.
    ///
    /// # Errors
    /// As [`Storage::allocate`].
    pub fn new(storage: &mut S, rows_max: usize, cols: usize) -> Result<Self, EngineError> {
        let memory = storage.allocate("activations", 4 * cols as u64)?;
        let int8 = Int8Rows { memory: None, made: None, are_wanted: AtomicBool::new(false) };
        Ok(Self { memory, cols, rows: 0, capacity: 1, rows_max: rows_max.max(1), int8 })
    }

    /// Sets the number of rows; what they hold is unspecified unless there were as many.
    ///
    /// # Errors
    /// More rows than the buffer may have; as [`Storage::allocate`].
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
        self.changed();
        Ok(())
    }

    /// Its rows are others now.
    pub fn changed(&mut self) {
        self.int8.made = None;
    }

    /// Its rows in int8, if they are at hand; if not, they will be once the rows are made again.
    pub fn int8(&self, storage: &S) -> Option<Quantized<S::Binding>> {
        self.int8.are_wanted.store(true, Ordering::Relaxed);
        let memory = self.int8.memory.as_ref()?;
        (self.int8.made == Some(storage.epoch())).then(|| self.quantized(memory))
    }

    fn quantized(&self, memory: &S::Memory) -> Quantized<S::Binding> {
        let groups = (self.rows * self.cols.div_ceil(GROUP)) as u64;
        let values = GROUP as u64 * groups;
        Quantized { values: memory.range(0, values), scales: memory.range(values, 4 * groups) }
    }

    /// Where its rows are made in int8 too, if a product wants them and the device can.
    ///
    /// # Errors
    /// As [`Storage::allocate`].
    pub fn make_int8(
        &mut self,
        storage: &mut S,
    ) -> Result<Option<Quantized<S::Binding>>, EngineError> {
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

    /// Where kernels find it.
    pub fn binding(&self) -> S::Binding {
        self.memory.binding()
    }

    /// Elements of all rows.
    pub fn elements(&self) -> usize {
        self.rows * self.cols
    }
}

/// A float vector.
pub struct GpuFloats<S: Storage> {
    /// Where it lies.
    pub range: WeightRange<S::Memory>,
    /// Its elements.
    pub count: usize,
}

impl<S: Storage> GpuFloats<S> {
    /// Uploads a vector, for whatever is recorded from now on. `purpose` says whose part of a memory budget it
    /// is.
    ///
    /// # Errors
    /// As [`Storage::upload_weights`].
    pub fn upload(storage: &mut S, purpose: Purpose, values: &[f32]) -> Result<Self, EngineError> {
        let range = storage.upload_weights(purpose, bytemuck::cast_slice(values))?;
        Ok(Self { range, count: values.len() })
    }

    /// Where kernels find it.
    pub fn binding(&self) -> S::Binding {
        self.range.binding(4 * self.count.max(1) as u64)
    }
}

/// The router's choice, `[rows, per_token]`: numbers of experts, ascending in each row, and their
/// weights.
pub struct GpuRouting<S: Storage> {
    ids: S::Memory,
    weights: S::Memory,
    /// Experts of a row.
    pub per_token: usize,
    /// Rows that were routed last.
    pub rows: usize,
    /// Rows that are expected at the most.
    pub rows_max: usize,
}

impl<S: Storage> GpuRouting<S> {
    /// Room for the routing of up to `rows_max` rows.
    ///
    /// # Errors
    /// As [`Storage::allocate`].
    pub fn new(storage: &mut S, rows_max: usize, per_token: usize) -> Result<Self, EngineError> {
        let bytes = 4 * (rows_max * per_token) as u64;
        let ids = storage.allocate("chosen experts", bytes)?;
        let weights = storage.allocate("expert weights", bytes)?;
        Ok(Self { ids, weights, per_token, rows: 0, rows_max })
    }

    /// Sets the rows that are routed, and how many experts each has.
    ///
    /// # Errors
    /// As [`Storage::allocate`].
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

    /// Chosen experts, `[rows, per_token]`.
    pub fn ids(&self) -> S::Binding {
        self.ids.binding()
    }

    /// Their weights, `[rows, per_token]`.
    pub fn weights(&self) -> S::Binding {
        self.weights.binding()
    }
}
