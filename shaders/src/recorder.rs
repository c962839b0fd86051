//! Records the dispatches of a step into few command buffers.
//!
//! Parameters and row tables from the host are collected in one arena, which is written before the commands
//! that read it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytemuck::Pod;
use nestling_gpu::{
    Allocation, CommandRecorder, LAUNCH_NANOSECONDS, Purpose, WorkKind, WorkMeter, WorkRates,
};

use crate::adapters::AdapterError;
use crate::device::{Gpu, Memory};
use crate::error::WgpuError;
use crate::pipelines::{Pipeline, miss_flag_layout};
use crate::slabs::Slabs;
use crate::slot_uses::SlotUses;
use crate::staging::Staging;

/// Bytes of the arena, enough for the parameters of a few thousand dispatches.
pub(crate) const ARENA_BYTES: usize = 1 << 20;

/// Maximum size of a table in the arena. Larger tables get separate buffers.
const TABLE_BYTES_MAX: usize = ARENA_BYTES / 16;

/// Maximum number of dispatches of a command buffer. The device starts on one while the next is recorded.
const DISPATCHES_MAX: usize = 512;

const GROUPS_MAX: usize = 4096;

/// Bytes of the miss flag, which holds the number of the call that missed an expert.
const MISS_FLAG_BYTES: u64 = 16;

/// Maximum number of workgroups in one dimension of a dispatch.
pub(crate) const WORKGROUPS_MAX: u32 = 65535;

/// Part of a buffer that a shader accesses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    pub buffer: wgpu::Buffer,
    pub offset: u64,
    /// Size in bytes, or `None` for the rest of the buffer.
    pub size: Option<u64>,
}

impl Allocation for Memory {
    type Binding = Binding;

    fn bytes(&self) -> u64 {
        self.raw.size()
    }

    fn binding(&self) -> Binding {
        Binding::from(&self.raw)
    }

    fn range(&self, offset: u64, bytes: u64) -> Binding {
        Binding { buffer: self.raw.clone(), offset, size: Some(bytes) }
    }
}

impl From<&wgpu::Buffer> for Binding {
    fn from(buffer: &wgpu::Buffer) -> Self {
        Self { buffer: buffer.clone(), offset: 0, size: None }
    }
}

/// Recorder of commands that are not yet submitted, and of the data that they read.
pub struct Recorder {
    pub(crate) gpu: Arc<Gpu>,
    commands: Option<wgpu::CommandEncoder>,
    pass: Option<wgpu::ComputePass<'static>>,
    arena: Memory,
    bytes: Vec<u8>,
    align: usize,
    dispatches: usize,
    /// Meter of recorded work and its estimated duration.
    pub(crate) meter: WorkMeter,
    groups: HashMap<(usize, Vec<Binding>), wgpu::BindGroup>,
    /// Value of [`Gpu::times_freed`] when bind groups were last checked.
    freed: u64,
    read_back: Option<wgpu::Buffer>,
    staging: Staging,
    /// True if recorded commands include writes that must run even if the step is discarded.
    has_writes: bool,
    used: SlotUses,
    /// Memory of weights.
    pub(crate) slabs: Slabs,
    /// Memory of biases that streamed experts upload in addition to their matrices.
    pub(crate) late_slabs: Slabs,
    /// The miss flag: the number of the call that missed an expert, or 0.
    miss_flag: Memory,
    /// Bind group through which other shaders read the miss flag.
    miss_group: wgpu::BindGroup,
}

/// Size of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub workgroups: [u32; 3],
    pub kind: WorkKind,
    /// Estimated number of multiplications.
    pub work: u64,
}

impl Cost {
    /// Creates the cost of an elementwise operation with `work` elements.
    pub fn elements(workgroups: [u32; 3], work: u64) -> Self {
        Self { workgroups, kind: WorkKind::Elements, work }
    }
}

/// Returns the grid for `count` workgroups. Shaders number workgroups as `y * num_workgroups.x + x` and skip
/// the excess.
pub(crate) fn spread(count: usize) -> [u32; 3] {
    let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    if count <= WORKGROUPS_MAX {
        return [count, 1, 1];
    }
    let rows = count.div_ceil(WORKGROUPS_MAX);
    [count.div_ceil(rows), rows, 1]
}

impl Recorder {
    /// Creates a recorder without commands.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub(crate) fn new(gpu: Arc<Gpu>, rates: WorkRates) -> Result<Self, WgpuError> {
        let arena = gpu.parameters("parameters", ARENA_BYTES as u64)?;
        let miss_flag = gpu.parameters("miss flag", MISS_FLAG_BYTES)?;
        let resource = miss_flag.as_entire_binding();
        let miss_group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("miss flag"),
            layout: &miss_flag_layout(&gpu),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource }],
        });
        let limits = &gpu.limits;
        let align = limits.min_uniform_buffer_offset_alignment;
        let align = align.max(limits.min_storage_buffer_offset_alignment).max(16) as usize;
        Ok(Self {
            commands: None,
            pass: None,
            arena,
            bytes: Vec::with_capacity(ARENA_BYTES),
            align,
            dispatches: 0,
            meter: WorkMeter::new(rates),
            groups: HashMap::new(),
            freed: 0,
            read_back: None,
            staging: Staging::default(),
            has_writes: false,
            used: SlotUses::default(),
            slabs: Slabs::new(Purpose::Weights),
            late_slabs: Slabs::new(Purpose::Work),
            miss_flag,
            miss_group,
            gpu,
        })
    }

    /// Appends bytes to the arena and returns their offset.
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let start = self.bytes.len().next_multiple_of(self.align);
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(bytes);
        start as u64
    }

    /// Ensures arena space for up to four tables of the next dispatch, so that they are submitted with it.
    ///
    /// # Errors
    /// Fails like [`Recorder::submit`].
    pub(crate) fn make_room(&mut self) -> Result<(), WgpuError> {
        if self.has_room(4 * TABLE_BYTES_MAX + (1 << 12)) { Ok(()) } else { self.submit() }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes + 4 * self.align <= ARENA_BYTES
    }

    /// Records one dispatch. `bindings` are in shader order, starting with binding 1. Recorded commands are
    /// submitted once their estimated duration reaches that of the longest dispatch.
    ///
    /// # Errors
    /// Fails like [`Recorder::submit`], or if there are too many workgroups.
    pub(crate) fn dispatch(
        &mut self,
        pipeline: &Pipeline,
        bindings: &[Binding],
        params: &impl Pod,
        cost: Cost,
    ) -> Result<(), WgpuError> {
        let Cost { workgroups, kind, work } = cost;
        if let Some(&count) = workgroups.iter().find(|count| **count > WORKGROUPS_MAX) {
            let (what, limit) = ("workgroups of a dispatch", u64::from(WORKGROUPS_MAX));
            return Err(WgpuError::Limit { what, limit, found: u64::from(count) });
        }
        if workgroups.contains(&0) {
            return Ok(());
        }
        let params = bytemuck::bytes_of(params);
        let offset = self.put(params);
        self.bytes.resize(offset as usize + params.len().next_multiple_of(16), 0);
        let group = self.group(pipeline, bindings, params.len());
        let miss_group = self.miss_group.clone();
        let pass = self.pass();
        pass.set_pipeline(&pipeline.raw);
        pass.set_bind_group(0, &group, &[offset as u32]);
        if pipeline.reads_miss_flag {
            pass.set_bind_group(1, &miss_group, &[]);
        }
        pass.dispatch_workgroups(workgroups[0], workgroups[1], workgroups[2]);
        pipeline.recorded.store(true, Ordering::Relaxed);
        self.meter.counts.dispatches += 1;
        self.dispatches += 1;
        let is_long = self.meter.add(kind, work) >= LAUNCH_NANOSECONDS;
        if is_long || self.dispatches >= DISPATCHES_MAX || !self.has_room(1 << 12) {
            self.submit()?;
        }
        Ok(())
    }

    /// Returns a cached bind group. Parameters use a dynamic offset, so a bind group can be reused in many
    /// steps.
    fn group(&mut self, pipeline: &Pipeline, bindings: &[Binding], size: usize) -> wgpu::BindGroup {
        let key = (pipeline.id, bindings.to_vec());
        if let Some(group) = self.groups.get(&key) {
            return group.clone();
        }
        if self.groups.len() >= GROUPS_MAX {
            self.groups.clear();
        }
        let params = wgpu::BufferBinding {
            buffer: &self.arena,
            offset: 0,
            size: wgpu::BufferSize::new(size.next_multiple_of(16) as u64),
        };
        let entry = |binding: usize, buffer| wgpu::BindGroupEntry {
            binding: binding as u32,
            resource: wgpu::BindingResource::Buffer(buffer),
        };
        let mut entries = vec![entry(0, params)];
        for (index, binding) in bindings.iter().enumerate() {
            let size = binding.size.and_then(wgpu::BufferSize::new);
            let Binding { buffer, offset, .. } = binding;
            entries.push(entry(index + 1, wgpu::BufferBinding { buffer, offset: *offset, size }));
        }
        let group = self.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(pipeline.name),
            layout: &pipeline.layout,
            entries: &entries,
        });
        self.groups.insert(key, group.clone());
        group
    }

    fn commands(&mut self) -> &mut wgpu::CommandEncoder {
        let device = &self.gpu.device;
        self.commands.get_or_insert_with(|| {
            device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("step") })
        })
    }

    fn pass(&mut self) -> &mut wgpu::ComputePass<'static> {
        if self.pass.is_none() {
            let descriptor = wgpu::ComputePassDescriptor::default();
            let pass = self.commands().begin_compute_pass(&descriptor).forget_lifetime();
            return self.pass.insert(pass);
        }
        let commands = &mut self.commands;
        let device = &self.gpu.device;
        self.pass.get_or_insert_with(|| {
            let encoder = commands.get_or_insert_with(|| {
                device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
            });
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime()
        })
    }

    /// Notes that the last recorded command reads a slot. `None` means any slot that a shader selects.
    pub(crate) fn reads_slot(&mut self, slot: Option<usize>) {
        self.used.add(slot);
    }

    /// Writes weights into a slot after all recorded commands that use it. If the host can map the memory and
    /// the device does not use the slot, it writes directly. Otherwise it writes like
    /// [`Recorder::write_behind`].
    ///
    /// # Errors
    /// Fails like [`Recorder::write_behind`].
    pub(crate) fn upload(
        &mut self,
        slot: Option<usize>,
        buffer: &wgpu::Buffer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WgpuError> {
        self.meter.counts.upload_bytes += bytes.len() as u64;
        let is_used = self.used.may_use(slot, |number| self.gpu.is_done(number));
        if !is_used && self.gpu.write_straight(buffer, offset, bytes)? {
            return Ok(());
        }
        // Later writes to this slot must not overtake this one.
        if slot.is_some() {
            self.used.add(slot);
        }
        self.meter.counts.staged_bytes += bytes.len() as u64;
        self.write_behind(buffer, offset, bytes)
    }

    /// Records a write after all recorded commands that runs even if the step is discarded. Bytes up to the
    /// next multiple of 4 are zeroed.
    ///
    /// # Errors
    /// Returns an error if the host is out of memory or the device is lost.
    pub(crate) fn write_behind(
        &mut self,
        buffer: &wgpu::Buffer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WgpuError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (source, from) = self.staging.put(&self.gpu, bytes)?;
        self.has_writes = true;
        self.copy_buffer(&source, from, buffer, offset, (bytes.len() as u64).next_multiple_of(4));
        Ok(())
    }

    /// Records a copy between buffers. Sizes and offsets must be multiples of 4.
    fn copy_buffer(
        &mut self,
        source: &wgpu::Buffer,
        from: u64,
        destination: &wgpu::Buffer,
        to: u64,
        bytes: u64,
    ) {
        self.pass = None;
        self.commands().copy_buffer_to_buffer(source, from, destination, to, Some(bytes));
    }

    /// Resets the state after recorded commands were submitted or discarded.
    fn forget(&mut self) {
        self.bytes.clear();
        self.slabs.settle();
        self.late_slabs.settle();
        self.has_writes = false;
        self.used.settle();
        self.dispatches = 0;
        self.meter.started();
        let freed = self.gpu.times_freed();
        if std::mem::replace(&mut self.freed, freed) != freed {
            // Cached bind groups keep freed memory alive.
            self.groups.clear();
            self.gpu.destroy_freed();
        }
    }
}

impl CommandRecorder for Recorder {
    type Binding = Binding;
    type Failure = AdapterError;

    fn meter(&mut self) -> &mut WorkMeter {
        &mut self.meter
    }

    fn begin_step(&mut self, _rows: usize) {}

    fn begin_operation(&mut self) -> Result<(), WgpuError> {
        Ok(())
    }

    /// Uploads a table for the next dispatch only. For several tables, call [`Recorder::make_room`] first.
    fn table(&mut self, values: &[impl Pod]) -> Result<Binding, WgpuError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if bytes.len() > TABLE_BYTES_MAX {
            return Ok(self.gpu.upload("table", bytes)?.binding());
        }
        // The parameters of the dispatch must fit after the table.
        if !self.has_room(bytes.len() + (1 << 12)) {
            self.submit()?;
        }
        let offset = self.put(bytes);
        let size = (bytes.len().max(4) as u64).next_multiple_of(4);
        self.bytes.resize((offset + size) as usize, 0);
        Ok(Binding { buffer: self.arena.raw.clone(), offset, size: Some(size) })
    }

    fn write(&mut self, bytes: &[u8], to: &Binding, offset: u64) -> Result<(), WgpuError> {
        if bytes.len() > TABLE_BYTES_MAX {
            // Recorded commands may read the previous contents.
            self.submit()?;
            self.gpu.write(&to.buffer, to.offset + offset, bytes);
            return Ok(());
        }
        let table = self.table(bytes)?;
        let (offset, bytes) = (to.offset + offset, bytes.len() as u64);
        self.copy_buffer(&table.buffer, table.offset, &to.buffer, offset, bytes);
        Ok(())
    }

    fn overwrite(&mut self, bytes: &[u8], to: &Binding, offset: u64) -> Result<(), WgpuError> {
        self.write_behind(&to.buffer, to.offset + offset, bytes)
    }

    fn copy(&mut self, from: &Binding, to: &Binding, bytes: u64) -> Result<(), WgpuError> {
        if from.buffer == to.buffer {
            // A copy within one buffer requires an intermediate buffer.
            let between = self.gpu.buffer("a copy", bytes)?;
            self.copy_buffer(&from.buffer, from.offset, &between, 0, bytes);
            self.copy_buffer(&between, 0, &to.buffer, to.offset, bytes);
        } else {
            self.copy_buffer(&from.buffer, from.offset, &to.buffer, to.offset, bytes);
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), WgpuError> {
        self.pass = None;
        if let Some(commands) = self.commands.take() {
            self.staging.close();
            self.gpu.write(&self.arena, 0, &self.bytes);
            let number = self.gpu.submit(Some(commands.finish()));
            self.staging.recall();
            self.used.submitted(number);
            self.meter.counts.submissions += 1;
        }
        self.forget();
        self.gpu.check()
    }

    /// The sizes of parts must be multiples of 4.
    fn read(
        &mut self,
        parts: &[(Binding, u64)],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), WgpuError> {
        let bytes: u64 = parts.iter().map(|part| part.1).sum();
        if bytes == 0 {
            self.submit()?;
            take(&[]);
            return Ok(());
        }
        let read_back = match &self.read_back {
            Some(buffer) if buffer.size() >= bytes => buffer.clone(),
            _ => {
                use wgpu::BufferUsages as Usage;
                let usage = Usage::MAP_READ | Usage::COPY_DST;
                self.gpu.memory("what is read back", bytes.next_power_of_two(), usage)?
            }
        };
        self.read_back = Some(read_back.clone());
        let mut at = 0;
        for (part, bytes) in parts {
            self.copy_buffer(&part.buffer, part.offset, &read_back, at, *bytes);
            at += bytes;
        }
        self.submit()?;
        self.meter.counts.waits += 1;
        self.gpu.read_mapped(&read_back, bytes, take)
    }

    /// Submits without waiting, because only reads need to wait.
    fn finish(&mut self) -> Result<(), WgpuError> {
        self.submit()
    }

    /// Submits all commands if they include writes that must run. Their other results are not observed.
    fn discard(&mut self) {
        if self.has_writes {
            // The error can be ignored: a lost device also fails the next read.
            let _ = self.submit();
        }
        self.pass = None;
        self.commands = None;
        self.forget();
    }

    fn resume(&mut self) -> Result<(), WgpuError> {
        let miss_flag = self.miss_flag.clone();
        self.write_behind(&miss_flag, 0, &[0; MISS_FLAG_BYTES as usize])
    }

    fn miss_flag(&self) -> Binding {
        self.miss_flag.binding()
    }
}
