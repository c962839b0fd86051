//! One open device: its limits, its queue, and what became of it.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use nestling_engine::driver::block_on;

use crate::error::WgpuError;

/// An open device. What it reports out of turn is kept until somebody asks.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    pub features: wgpu::Features,
    pub name: String,
    reports: Arc<Mutex<Reports>>,
    /// Bytes that shaders' buffers take, and the most that weights may bring them to.
    used: Arc<AtomicU64>,
    budget: Option<u64>,
    /// Bytes on their way that no submission has taken along.
    staged: AtomicU64,
}

/// Memory of the device that is counted.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub raw: wgpu::Buffer,
    _claim: Arc<Claim>,
}

#[derive(Debug)]
struct Claim {
    bytes: u64,
    used: Arc<AtomicU64>,
}

impl Deref for Memory {
    type Target = wgpu::Buffer;

    fn deref(&self) -> &wgpu::Buffer {
        &self.raw
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes that may be on their way to the device before the host sees to it that they get there.
const STAGED_BYTES_MAX: u64 = 64 << 20;

/// What the device reported.
#[derive(Debug, Default)]
struct Reports {
    lost: Option<String>,
    refused: Option<String>,
}

/// Features that shaders have variants for, or that make transfers cheaper.
const WANTED: wgpu::Features = wgpu::Features::SHADER_F16
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::PIPELINE_CACHE)
    .union(wgpu::Features::TIMESTAMP_QUERY);

impl Gpu {
    /// Opens a device with all that the adapter allows. Weights are refused memory beyond the budget.
    ///
    /// # Errors
    /// [`WgpuError::NoDevice`].
    pub fn open(adapter: &wgpu::Adapter, budget: Option<u64>) -> Result<Self, WgpuError> {
        let info = adapter.get_info();
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("nestling"),
            required_features: adapter.features() & WANTED,
            required_limits: adapter.limits(),
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = block_on(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|error| WgpuError::NoDevice {
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
        let (used, staged) = (Arc::default(), AtomicU64::new(0));
        Ok(Self { device, queue, limits, features, name, reports, used, budget, staged })
    }

    /// Whether all went well so far.
    ///
    /// # Errors
    /// [`WgpuError::Lost`], now and ever after; [`WgpuError::Refused`], once.
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

    /// Largest part of a buffer that a shader can see at once.
    pub fn binding_bytes_max(&self) -> u64 {
        let binding = self.limits.max_storage_buffer_binding_size;
        binding.min(self.limits.max_buffer_size) & !255
    }

    /// Memory of the device, for shaders and transfers.
    ///
    /// # Errors
    /// [`WgpuError::Limit`]; [`WgpuError::OutOfMemory`].
    pub fn buffer(&self, what: &'static str, bytes: u64) -> Result<Memory, WgpuError> {
        use wgpu::BufferUsages as Usage;
        let limit = self.binding_bytes_max();
        if bytes > limit {
            return Err(WgpuError::Limit { what, limit, found: bytes });
        }
        let usage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
        let raw = self.memory(what, bytes, usage)?;
        let (bytes, used) = (raw.size(), Arc::clone(&self.used));
        used.fetch_add(bytes, Ordering::Relaxed);
        Ok(Memory { raw, _claim: Arc::new(Claim { bytes, used }) })
    }

    /// The same for weights, within the budget.
    ///
    /// # Errors
    /// As [`Gpu::buffer`]; [`WgpuError::OutOfMemory`] beyond the budget.
    pub fn weights(&self, what: &'static str, bytes: u64) -> Result<Memory, WgpuError> {
        if bytes > self.budget_left() {
            return Err(WgpuError::OutOfMemory { what, bytes });
        }
        self.buffer(what, bytes)
    }

    /// Bytes of the budget that nothing takes.
    fn budget_left(&self) -> u64 {
        let used = self.used.load(Ordering::Relaxed);
        self.budget.map_or(u64::MAX, |budget| budget.saturating_sub(used))
    }

    /// Most bytes of memory for weights that are still to come: little of a budget must lie unused.
    pub fn spare_bytes_max(&self) -> u64 {
        self.budget.map_or(u64::MAX, |budget| budget / 16)
    }

    /// Memory for other uses.
    ///
    /// # Errors
    /// [`WgpuError::OutOfMemory`].
    pub fn memory(
        &self,
        what: &'static str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, WgpuError> {
        let size = bytes.max(16).next_multiple_of(16);
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let descriptor =
            wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        match block_on(scope.pop()) {
            None => Ok(buffer),
            Some(_) => Err(WgpuError::OutOfMemory { what, bytes }),
        }
    }

    /// Memory of the device that begins with `contents`.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn upload(&self, what: &'static str, contents: &[u8]) -> Result<Memory, WgpuError> {
        let buffer = self.buffer(what, contents.len() as u64)?;
        self.write(&buffer, 0, contents);
        Ok(buffer)
    }

    /// Writes bytes before whatever is submitted next, by way of mapped memory. Bytes up to the next
    /// multiple of 4 become 0.
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
            // Memory of what has arrived is free again once the device said so.
            self.submit(None);
            let _ = self.device.poll(wgpu::PollType::wait_indefinitely());
        }
    }

    /// Starts the device on commands, and on what was written before.
    pub fn submit(&self, commands: Option<wgpu::CommandBuffer>) {
        self.staged.store(0, Ordering::Relaxed);
        self.queue.submit(commands);
    }

    /// Waits until all that was submitted is done.
    ///
    /// # Errors
    /// A device that is lost or refused a command.
    pub fn wait(&self) -> Result<(), WgpuError> {
        let polled = self.device.poll(wgpu::PollType::wait_indefinitely());
        self.check()?;
        polled.map(|_| ()).map_err(|error| WgpuError::Refused { reason: error.to_string() })
    }

    /// Gives the bytes of mappable memory to `take`, once all that was submitted is done.
    ///
    /// # Errors
    /// As [`Gpu::wait`].
    pub fn read_mapped(
        &self,
        buffer: &wgpu::Buffer,
        bytes: u64,
        take: impl FnOnce(&[u8]),
    ) -> Result<(), WgpuError> {
        let (sender, receiver) = mpsc::channel();
        let slice = buffer.slice(..bytes);
        slice.map_async(wgpu::MapMode::Read, move |mapped| {
            // Nobody listens only where the wait failed.
            let _ = sender.send(mapped);
        });
        self.wait()?;
        let refused = |reason: String| WgpuError::Refused { reason };
        let mapped = receiver.recv().map_err(|error| refused(error.to_string()))?;
        mapped.map_err(|error| refused(error.to_string()))?;
        let view = slice.get_mapped_range().map_err(|error| refused(format!("{error:?}")))?;
        take(&view);
        drop(view);
        buffer.unmap();
        Ok(())
    }
}

fn lock(reports: &Mutex<Reports>) -> std::sync::MutexGuard<'_, Reports> {
    reports.lock().unwrap_or_else(PoisonError::into_inner)
}
