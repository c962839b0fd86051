//! An open device: its queue, limits, memory allocation and reported errors.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use nestling_core::sync::whole;

use crate::adapters::{AdapterError, Uploads};
use crate::error::WgpuError;
use crate::wait::{self, block_on};
use nestling_gpu::{DeviceBudget, Purpose, Reservation};

/// An open device. Errors reported asynchronously are stored until [`Gpu::check`].
#[derive(Debug)]
pub(crate) struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    pub features: wgpu::Features,
    pub name: String,
    reports: Arc<Mutex<Reports>>,
    /// Reserved memory.
    pub budget: DeviceBudget,
    freed: Arc<Freed>,
    /// Number of submissions, and number of the last submission known to be complete.
    submitted: Mutex<u64>,
    done: Arc<AtomicU64>,
    /// Bytes written to the queue since the last submission.
    staged: AtomicU64,
}

/// Device memory that counts towards the budget.
#[derive(Clone, Debug)]
pub struct Memory {
    pub raw: wgpu::Buffer,
    _counted: Arc<CountedMemory>,
}

/// Reservation of a buffer, and the list that the buffer joins once it is freed.
#[derive(Debug)]
struct CountedMemory {
    _reservation: Reservation,
    raw: wgpu::Buffer,
    freed: Arc<Freed>,
}

/// Deallocations of a device.
#[derive(Debug, Default)]
struct Freed {
    times: AtomicU64,
    /// Buffers to destroy once the commands that use them are submitted. A browser frees a buffer that is only
    /// dropped when it collects garbage, which need not happen soon. Other systems free it at once.
    buffers: Mutex<Vec<wgpu::Buffer>>,
}

impl Drop for CountedMemory {
    fn drop(&mut self) {
        self.freed.times.fetch_add(1, Ordering::Relaxed);
        if cfg!(target_family = "wasm") {
            whole(self.freed.buffers.lock()).push(self.raw.clone());
        }
    }
}

impl Deref for Memory {
    type Target = wgpu::Buffer;

    fn deref(&self) -> &wgpu::Buffer {
        &self.raw
    }
}

/// Maximum bytes written to the queue before the host waits for the device.
const STAGED_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Default)]
struct Reports {
    lost: Option<String>,
    refused: Option<String>,
}

/// Features that shaders have variants for, or that make transfers faster.
const WANTED: wgpu::Features = wgpu::Features::SHADER_F16
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::PIPELINE_CACHE)
    .union(wgpu::Features::TIMESTAMP_QUERY);

impl Gpu {
    /// Opens a device with these limits. Allocations beyond the budget are refused.
    ///
    /// # Errors
    /// Fails with [`AdapterError::NoDevice`].
    pub fn open(
        adapter: &wgpu::Adapter,
        limits: wgpu::Limits,
        uploads: Uploads,
        budget: Option<u64>,
    ) -> Result<Self, WgpuError> {
        let info = adapter.get_info();
        let wanted = match uploads {
            Uploads::Straight => WANTED.union(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
            Uploads::Staged => WANTED,
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("nestling"),
            required_features: adapter.features() & wanted,
            required_limits: limits,
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = block_on(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|error| AdapterError::NoDevice {
            adapter: info.name.clone(),
            reason: error.to_string(),
        })?;
        let reports = Arc::new(Mutex::new(Reports::default()));
        let lost = Arc::clone(&reports);
        device.set_device_lost_callback(move |reason, text| {
            lock(&lost).lost = Some(format!("{reason:?}: {text}"));
        });
        let refused = Arc::clone(&reports);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            lock(&refused).refused.get_or_insert(error.to_string());
        }));
        let (limits, features) = (device.limits(), device.features());
        let name = format!("{}, {:?}", info.name, info.backend);
        let (budget, staged) = (DeviceBudget::new(budget), AtomicU64::new(0));
        Ok(Self {
            device,
            queue,
            limits,
            features,
            name,
            reports,
            budget,
            freed: Arc::default(),
            submitted: Mutex::default(),
            done: Arc::default(),
            staged,
        })
    }

    /// Returns an error that the device reported.
    ///
    /// # Errors
    /// Fails with [`WgpuError::Lost`] on every call after the device is lost. Fails with
    /// [`WgpuError::Refused`] once for each refusal.
    pub fn check(&self) -> Result<(), WgpuError> {
        let mut reports = lock(&self.reports);
        if let Some(reason) = &reports.lost {
            return Err(WgpuError::Lost { reason: reason.clone() });
        }
        match reports.refused.take() {
            Some(reason) => Err(WgpuError::Refused { reason }),
            None => Ok(()),
        }
    }

    /// Returns the maximum size in bytes of a buffer binding, a multiple of 256.
    pub fn binding_bytes_max(&self) -> u64 {
        let binding = self.limits.max_storage_buffer_binding_size;
        binding.min(self.limits.max_buffer_size) & !255
    }

    /// Allocates memory for steps, usable by shaders and transfers.
    ///
    /// # Errors
    /// Fails with [`WgpuError::Limit`], [`WgpuError::OverBudget`] or [`WgpuError::OutOfMemory`].
    pub fn buffer(&self, what: &'static str, bytes: u64) -> Result<Memory, WgpuError> {
        self.counted(Purpose::Work, what, bytes, wgpu::BufferUsages::empty())
    }

    /// Allocates memory for weights. Memory set aside for steps is not available to weights.
    ///
    /// # Errors
    /// Fails like [`Gpu::buffer`].
    pub fn weights(&self, what: &'static str, bytes: u64) -> Result<Memory, WgpuError> {
        self.counted(Purpose::Weights, what, bytes, wgpu::BufferUsages::empty())
    }

    /// Allocates memory for streamed experts. The host can map it if the device was opened for direct writes.
    ///
    /// # Errors
    /// Fails like [`Gpu::weights`].
    pub fn slots(&self, bytes: u64) -> Result<Memory, WgpuError> {
        use wgpu::BufferUsages as Usage;
        let is_mappable = self.features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS);
        let more = if is_mappable { Usage::MAP_WRITE } else { Usage::empty() };
        self.counted(Purpose::Weights, "experts", bytes, more)
    }

    /// Allocates memory that shaders can also bind as uniform parameters.
    ///
    /// # Errors
    /// Fails like [`Gpu::buffer`].
    pub fn parameters(&self, what: &'static str, bytes: u64) -> Result<Memory, WgpuError> {
        self.counted(Purpose::Work, what, bytes, wgpu::BufferUsages::UNIFORM)
    }

    fn counted(
        &self,
        purpose: Purpose,
        what: &'static str,
        bytes: u64,
        more: wgpu::BufferUsages,
    ) -> Result<Memory, WgpuError> {
        use wgpu::BufferUsages as Usage;
        let limit = self.binding_bytes_max();
        if bytes > limit {
            return Err(WgpuError::Limit { what, limit, found: bytes });
        }
        let size = size_of(bytes);
        let reservation = self.budget.reserve(purpose, size).map_err(|least| {
            let budget = self.budget.total_bytes().unwrap_or(u64::MAX);
            WgpuError::OverBudget { what, bytes: size, budget, least }
        })?;
        let usage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST | more;
        let raw = self.memory(what, bytes, usage)?;
        let freed = Arc::clone(&self.freed);
        let counted = CountedMemory { _reservation: reservation, raw: raw.clone(), freed };
        Ok(Memory { raw, _counted: Arc::new(counted) })
    }

    /// Returns the number of deallocations. If it changed, cached objects that refer to memory should be
    /// dropped.
    pub fn times_freed(&self) -> u64 {
        self.freed.times.load(Ordering::Relaxed)
    }

    /// Destroys freed buffers where dropping them is not enough. No recorded command may use them.
    pub fn destroy_freed(&self) {
        whole(self.freed.buffers.lock()).drain(..).for_each(|buffer| buffer.destroy());
    }

    /// Allocates a mapped staging buffer, which the host writes and the device copies from.
    ///
    /// # Errors
    /// Fails with [`WgpuError::OutOfMemory`].
    pub fn staging(&self, bytes: u64) -> Result<wgpu::Buffer, WgpuError> {
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        self.create("staging", bytes, usage, true)
    }

    /// Writes directly to memory that shaders read. No pending command may use it. Returns false if the host
    /// cannot map the memory.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn write_straight(
        &self,
        buffer: &wgpu::Buffer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool, WgpuError> {
        if bytes.is_empty() || !buffer.usage().contains(wgpu::BufferUsages::MAP_WRITE) {
            return Ok(false);
        }
        let end = offset + (bytes.len() as u64).next_multiple_of(4);
        let (sender, receiver) = mpsc::channel();
        buffer.slice(offset..end).map_async(wgpu::MapMode::Write, move |result| {
            // The receiver is dropped only if the wait failed.
            let _ = sender.send(result.is_ok());
            wait::wake();
        });
        let _ = self.device.poll(wgpu::PollType::Poll);
        let mapped = match receiver.try_recv() {
            Ok(mapped) => mapped,
            // Cancelling the mapping is not safe: it could satisfy the next request too early. Another
            // polling thread may be about to deliver the result, so wait for it.
            Err(_) => {
                let received = wait::received(&self.device, &receiver);
                self.check()?;
                // Default: a request without an answer has mapped nothing.
                received.unwrap_or(false)
            }
        };
        if !mapped {
            return Ok(false);
        }
        let written = write_mapped(buffer, offset, bytes);
        buffer.unmap();
        written.map(|()| true)
    }

    /// Returns whether the first `submissions` submissions are complete.
    pub fn is_done(&self, submissions: u64) -> bool {
        if self.done.load(Ordering::Acquire) < submissions {
            let _ = self.device.poll(wgpu::PollType::Poll);
        }
        self.done.load(Ordering::Acquire) >= submissions
    }

    /// Returns the maximum bytes to allocate ahead for weights. Under a budget, little memory may be left
    /// unused.
    pub fn spare_bytes_max(&self) -> u64 {
        self.budget.total_bytes().map_or(u64::MAX, |budget| budget / 16)
    }

    /// Allocates memory for other uses.
    ///
    /// # Errors
    /// Fails with [`WgpuError::OutOfMemory`].
    pub fn memory(
        &self,
        what: &'static str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, WgpuError> {
        self.create(what, bytes, usage, false)
    }

    fn create(
        &self,
        what: &'static str,
        bytes: u64,
        usage: wgpu::BufferUsages,
        mapped_at_creation: bool,
    ) -> Result<wgpu::Buffer, WgpuError> {
        let size = size_of(bytes);
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let descriptor =
            wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation };
        let buffer = self.device.create_buffer(&descriptor);
        match block_on(scope.pop()) {
            None => Ok(buffer),
            Some(_) => Err(WgpuError::OutOfMemory { what, bytes }),
        }
    }

    /// Allocates memory that starts with `contents`.
    ///
    /// # Errors
    /// Fails like [`Gpu::buffer`].
    pub fn upload(&self, what: &'static str, contents: &[u8]) -> Result<Memory, WgpuError> {
        let buffer = self.buffer(what, contents.len() as u64)?;
        self.write(&buffer, 0, contents);
        Ok(buffer)
    }

    /// Writes bytes before the next submission, through mapped memory. Bytes up to the next multiple of 4 are
    /// zeroed.
    pub fn write(&self, buffer: &wgpu::Buffer, offset: u64, bytes: &[u8]) {
        let (whole, rest) = bytes.split_at(bytes.len() & !3);
        if !whole.is_empty() {
            self.queue.write_buffer(buffer, offset, whole);
        }
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            self.queue.write_buffer(buffer, offset + whole.len() as u64, &last);
        }
        let length = bytes.len() as u64;
        if self.staged.fetch_add(length, Ordering::Relaxed) + length > STAGED_BYTES_MAX {
            // The driver frees staging memory only after the device reports completion.
            self.submit(None);
            // The error can be ignored: a lost device also fails the next check.
            let _ = self.wait_for_all();
        }
    }

    /// Submits commands and earlier writes. Returns the number of submissions so far.
    pub fn submit(&self, commands: Option<wgpu::CommandBuffer>) -> u64 {
        self.staged.store(0, Ordering::Relaxed);
        let mut submitted = whole(self.submitted.lock());
        *submitted += 1;
        let (number, done) = (*submitted, Arc::clone(&self.done));
        self.queue.submit(commands);
        self.queue.on_submitted_work_done(move || {
            done.fetch_max(number, Ordering::Release);
            wait::wake();
        });
        number
    }

    /// Waits until all submissions are complete.
    ///
    /// # Errors
    /// Returns an error if the device is lost or refused a command.
    pub fn wait(&self) -> Result<(), WgpuError> {
        let waited = self.wait_for_all();
        self.check()?;
        waited.map_err(|reason| WgpuError::Refused { reason })
    }

    fn wait_for_all(&self) -> Result<(), String> {
        let submitted = *whole(self.submitted.lock());
        wait::idle(&self.device, || self.done.load(Ordering::Acquire) >= submitted)
    }

    /// Passes the contents of mappable memory to `take` after all submissions are complete.
    ///
    /// # Errors
    /// Fails like [`Gpu::wait`].
    pub fn read_mapped(
        &self,
        buffer: &wgpu::Buffer,
        bytes: u64,
        take: impl FnOnce(&[u8]),
    ) -> Result<(), WgpuError> {
        let (sender, receiver) = mpsc::channel();
        let slice = buffer.slice(..bytes);
        slice.map_async(wgpu::MapMode::Read, move |mapped| {
            // The receiver is dropped only if the wait failed.
            let _ = sender.send(mapped);
            wait::wake();
        });
        let received = wait::received(&self.device, &receiver);
        self.check()?;
        let refused = |reason: String| WgpuError::Refused { reason };
        let mapped = received.map_err(refused)?;
        mapped.map_err(|error| refused(error.to_string()))?;
        let view = slice.get_mapped_range().map_err(|error| refused(format!("{error:?}")))?;
        take(&view);
        drop(view);
        buffer.unmap();
        Ok(())
    }
}

/// Writes mapped memory. `offset` must be a multiple of 8; bytes up to the next multiple of 4 are zeroed.
///
/// # Errors
/// Returns an error if the memory is not mapped because the device is lost.
pub(crate) fn write_mapped(
    buffer: &wgpu::Buffer,
    offset: u64,
    bytes: &[u8],
) -> Result<(), WgpuError> {
    let length = (bytes.len() as u64).next_multiple_of(4).max(4);
    let view = buffer.slice(offset..offset + length).get_mapped_range_mut();
    let mut view = view.map_err(|error| WgpuError::Refused { reason: format!("{error:?}") })?;
    view.slice(..bytes.len()).copy_from_slice(bytes);
    view.slice(bytes.len()..).fill(0);
    Ok(())
}

/// Returns the size of a buffer that holds `bytes` bytes.
pub(crate) fn size_of(bytes: u64) -> u64 {
    bytes.max(16).next_multiple_of(16)
}

fn lock(reports: &Mutex<Reports>) -> std::sync::MutexGuard<'_, Reports> {
    whole(reports.lock())
}
