//! What a step works on, in memory of the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nestling_formats::nested::GROUP;

use crate::driver::{Address, DeviceMemory, Driver};
use crate::error::CudaError;
use crate::recorder::Recorder;
use crate::scratch::Quantized;
use crate::slabs::Place;

/// Activations, `[rows, cols]` of f32. Grows to the rows that come; what a larger step finds in it
/// is unspecified.
pub struct CudaBuffer {
    memory: DeviceMemory,
    pub(crate) cols: usize,
    pub(crate) rows: usize,
    /// Rows that there is room for, and the most that there may be.
    capacity: usize,
    rows_max: usize,
    int8: Int8Rows,
}

/// A buffer's rows in int8 as products take them, made along with the rows themselves.
#[derive(Default)]
struct Int8Rows {
    /// Values, then scales.
    memory: Option<DeviceMemory>,
    /// [`Recorder::epoch`] when they were made of what the buffer holds now.
    made: Option<u64>,
    /// Whether a product took them: whoever makes rows makes these too from then on.
    are_wanted: AtomicBool,
}

impl CudaBuffer {
    pub(crate) fn new(
        driver: &Arc<Driver>,
        rows_max: usize,
        cols: usize,
    ) -> Result<Self, CudaError> {
        let memory = driver.allocate("activations", 4 * cols as u64)?;
        let (rows_max, int8) = (rows_max.max(1), Int8Rows::default());
        Ok(Self { memory, cols, rows: 0, capacity: 1, rows_max, int8 })
    }

    /// Sets the number of rows; what they hold is unspecified unless there were as many.
    pub(crate) fn resize(&mut self, recorder: &mut Recorder, rows: usize) -> Result<(), CudaError> {
        if rows > self.capacity {
            let (what, limit) = ("rows of a buffer", self.rows_max as u64);
            if rows > self.rows_max {
                return Err(CudaError::Limit { what, limit, found: rows as u64 });
            }
            let capacity = rows.next_power_of_two().min(self.rows_max);
            let bytes = 4 * capacity as u64 * self.cols as u64;
            let memory = recorder.driver.allocate("activations", bytes)?;
            recorder.retire(Some(std::mem::replace(&mut self.memory, memory)));
            self.capacity = capacity;
        }
        self.rows = rows;
        self.changed();
        Ok(())
    }

    /// Its rows are others now.
    pub(crate) fn changed(&mut self) {
        self.int8.made = None;
    }

    /// Its rows in int8, if they are at hand; if not, they will be once the rows are made again.
    pub(crate) fn int8(&self, recorder: &Recorder) -> Option<Quantized> {
        self.int8.are_wanted.store(true, Ordering::Relaxed);
        let memory = self.int8.memory.as_ref()?;
        (self.int8.made == Some(recorder.epoch())).then(|| self.quantized(memory))
    }

    fn quantized(&self, memory: &DeviceMemory) -> Quantized {
        let groups = (self.rows * self.cols.div_ceil(GROUP)) as u64;
        let values = memory.address();
        Quantized { values, scales: values + GROUP as u64 * groups }
    }

    /// Where whoever makes its rows makes them in int8 too, if a product wants them.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::OverBudget`].
    pub(crate) fn make_int8(
        &mut self,
        recorder: &mut Recorder,
    ) -> Result<Option<Quantized>, CudaError> {
        if !self.int8.are_wanted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let groups = (self.capacity * self.cols.div_ceil(GROUP)) as u64;
        let bytes = (GROUP as u64 + 4) * groups;
        let memory = match self.int8.memory.take() {
            Some(memory) if memory.bytes() >= bytes => memory,
            smaller => {
                recorder.retire(smaller);
                recorder.driver.allocate("activations", bytes)?
            }
        };
        self.int8.made = Some(recorder.epoch());
        let made = self.quantized(&memory);
        self.int8.memory = Some(memory);
        Ok(Some(made))
    }

    pub(crate) fn address(&self) -> Address {
        self.memory.address()
    }

    /// Elements of all rows.
    pub(crate) fn len(&self) -> usize {
        self.rows * self.cols
    }
}

/// A float vector.
pub struct CudaFloats {
    place: Place,
    pub(crate) len: usize,
}

impl CudaFloats {
    pub(crate) fn new(recorder: &mut Recorder, values: &[f32]) -> Result<Self, CudaError> {
        let place = recorder.upload(bytemuck::cast_slice(values))?;
        Ok(Self { place, len: values.len() })
    }

    pub(crate) fn address(&self) -> Address {
        self.place.address()
    }
}

/// The router's choice, `[rows, per_token]`: numbers of experts, ascending in each row, and their
/// weights.
pub struct CudaRouting {
    memory: DeviceMemory,
    pub(crate) per_token: usize,
    /// Rows that were routed last.
    pub(crate) rows: usize,
    pub(crate) rows_max: usize,
}

impl CudaRouting {
    pub(crate) fn new(
        driver: &Arc<Driver>,
        rows_max: usize,
        per_token: usize,
    ) -> Result<Self, CudaError> {
        let memory = driver.allocate("chosen experts", 8 * (rows_max * per_token) as u64)?;
        Ok(Self { memory, per_token, rows: 0, rows_max })
    }

    /// Sets the rows that are routed, and how many experts each has.
    pub(crate) fn set(
        &mut self,
        recorder: &mut Recorder,
        rows: usize,
        per_token: usize,
    ) -> Result<(), CudaError> {
        if 8 * (rows * per_token) as u64 > self.memory.bytes() {
            let larger = Self::new(&recorder.driver, self.rows_max.max(rows), per_token)?;
            let old = std::mem::replace(self, larger);
            recorder.retire(Some(old.memory));
        }
        (self.rows, self.per_token) = (rows, per_token);
        Ok(())
    }

    /// Chosen experts, `[rows, per_token]`.
    pub(crate) fn ids(&self) -> Address {
        self.memory.address()
    }

    /// Their weights, `[rows, per_token]`.
    pub(crate) fn weights(&self) -> Address {
        self.memory.address() + 4 * (self.rows * self.per_token) as u64
    }
}

/// A size as kernels take it.
///
/// # Errors
/// One that does not fit.
pub(crate) fn word(what: &'static str, size: usize) -> Result<u32, CudaError> {
    let limit = u64::from(u32::MAX);
    u32::try_from(size).map_err(|_| CudaError::Limit { what, limit, found: size as u64 })
}
