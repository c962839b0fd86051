//! Measures the cost of the rest of a step after a miss, in two forms. In the first, every workgroup starts,
//! reads the miss flag and returns. In the second, no workgroup starts: the dispatch reads its workgroup
//! counts from memory that the miss zeroed, with and without wgpu's validation of such counts. Also measures
//! both without a miss. Runs on the first adapter. One iteration is a step as the backend records it:
//! parameters at an offset, one pass.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use nestling_core::driver::block_on;

/// Dispatches of a step: ten in each of twelve layers.
const DISPATCHES: u32 = 120;

/// Workgroups of a dispatch: a norm of a row, a dense product, products of eight experts.
const WORKGROUPS: [u32; 3] = [1, 64, 1024];

/// Distance between the parameters of two dispatches in bytes, sufficient for any adapter's alignment.
const PARAMS: u64 = 256;

/// Bytes of the workgroup counts of a dispatch.
const COUNTS: u64 = 12;

/// A minimal kernel, so that the cost of starting it dominates.
const KERNEL: &str = "
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> values: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) global: vec3<u32>) {
    //halted
    values[global.x] += params.x;
}
";

const HALTED: &str = "@group(1) @binding(0) var<uniform> halted: vec4<u32>;\n";
const RETURN: &str = "if halted.x != 0u { return; }";

/// Method of skipping a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkipMethod {
    /// Early return: each workgroup reads a flag.
    EarlyReturn,
    /// Workgroup counts are read from device memory.
    Indirect,
    /// Workgroup counts are read from device memory and validated by wgpu.
    IndirectChecked,
}

/// One form on a separate device.
struct SkipBench {
    device: wgpu::Device,
    queue: wgpu::Queue,
    form: SkipMethod,
    pipeline: wgpu::ComputePipeline,
    own: wgpu::BindGroup,
    flag_group: wgpu::BindGroup,
    flag: wgpu::Buffer,
    counts: wgpu::Buffer,
}

fn buffer(device: &wgpu::Device, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    let usage = usage | wgpu::BufferUsages::COPY_DST;
    let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    device.create_buffer(&descriptor)
}

fn layout(
    device: &wgpu::Device,
    types: &[(wgpu::BufferBindingType, bool)],
) -> wgpu::BindGroupLayout {
    let entry = |(binding, (ty, has_dynamic_offset)): (usize, &(wgpu::BufferBindingType, bool))| {
        wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: *ty,
                has_dynamic_offset: *has_dynamic_offset,
                min_binding_size: None,
            },
            count: None,
        }
    };
    let entries: Vec<_> = types.iter().enumerate().map(entry).collect();
    let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
    device.create_bind_group_layout(&descriptor)
}

fn group(
    device: &wgpu::Device,
    layout: &wgpu::BindGroupLayout,
    buffers: &[(&wgpu::Buffer, Option<NonZeroU64>)],
) -> wgpu::BindGroup {
    let parts =
        buffers.iter().map(|(buffer, size)| wgpu::BufferBinding { buffer, offset: 0, size: *size });
    let entry = |(binding, part)| wgpu::BindGroupEntry {
        binding,
        resource: wgpu::BindingResource::Buffer(part),
    };
    let entries: Vec<_> = (0u32..).zip(parts).map(entry).collect();
    device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
}

/// Opens the first adapter's device. Returns `None` if there is no adapter.
fn open(form: SkipMethod) -> Option<(wgpu::Device, wgpu::Queue)> {
    let backends = wgpu::Instance::enabled_backend_features();
    let flags = match form {
        SkipMethod::IndirectChecked => wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL,
        SkipMethod::EarlyReturn | SkipMethod::Indirect => wgpu::InstanceFlags::empty(),
    };
    let descriptor = wgpu::InstanceDescriptor {
        backends,
        flags,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    let instance = wgpu::Instance::new(descriptor);
    let adapter = block_on(instance.enumerate_adapters(backends)).into_iter().next()?;
    let descriptor = wgpu::DeviceDescriptor {
        required_limits: adapter.limits(),
        ..wgpu::DeviceDescriptor::default()
    };
    block_on(adapter.request_device(&descriptor)).ok()
}

impl SkipBench {
    fn new(form: SkipMethod) -> Option<Self> {
        use wgpu::BufferBindingType::{Storage, Uniform};
        use wgpu::BufferUsages as Usage;
        let (device, queue) = open(form)?;
        let params = buffer(&device, PARAMS * u64::from(DISPATCHES), Usage::UNIFORM);
        let most = WORKGROUPS.iter().max().map_or(1, |count| u64::from(*count));
        let values = buffer(&device, 64 * 4 * most, Usage::STORAGE);
        let flag = buffer(&device, 16, Usage::UNIFORM);
        let counts = buffer(&device, COUNTS * u64::from(DISPATCHES), Usage::INDIRECT);
        let layouts = [
            layout(&device, &[(Uniform, true), (Storage { read_only: false }, false)]),
            layout(&device, &[(Uniform, false)]),
        ];
        let own = [(&params, NonZeroU64::new(16)), (&values, None)];
        let own = group(&device, &layouts[0], &own);
        let flag_group = group(&device, &layouts[1], &[(&flag, None)]);
        let both = [Some(&layouts[0]), Some(&layouts[1])];
        let returns = form == SkipMethod::EarlyReturn;
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            bind_group_layouts: if returns { &both } else { &both[..1] },
            ..wgpu::PipelineLayoutDescriptor::default()
        });
        let text = match returns {
            true => HALTED.to_owned() + &KERNEL.replace("//halted", RETURN),
            false => KERNEL.to_owned(),
        };
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        Some(Self { device, queue, form, pipeline, own, flag_group, flag, counts })
    }

    /// Sets whether later steps are halted, and their number of workgroups if they are not.
    fn set(&self, is_halted: bool, workgroups: u32) {
        let flag = [u32::from(is_halted), 0, 0, 0];
        self.queue.write_buffer(&self.flag, 0, &words(&flag));
        let counts = if is_halted { [0, 0, 0] } else { [workgroups, 1, 1] };
        let counts = words(&counts).repeat(DISPATCHES as usize);
        self.queue.write_buffer(&self.counts, 0, &counts);
        self.step(workgroups);
        self.wait();
    }

    fn step(&self, workgroups: u32) {
        let mut commands = self.device.create_command_encoder(&Default::default());
        let mut pass = commands.begin_compute_pass(&Default::default());
        for index in 0..DISPATCHES {
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, &self.own, &[index * PARAMS as u32]);
            match self.form {
                SkipMethod::EarlyReturn => {
                    pass.set_bind_group(1, &self.flag_group, &[]);
                    pass.dispatch_workgroups(workgroups, 1, 1);
                }
                SkipMethod::Indirect | SkipMethod::IndirectChecked => {
                    pass.dispatch_workgroups_indirect(&self.counts, u64::from(index) * COUNTS);
                }
            }
        }
        drop(pass);
        self.queue.submit(Some(commands.finish()));
    }

    fn wait(&self) {
        let waited = self.device.poll(wgpu::PollType::wait_indefinitely());
        assert!(waited.is_ok(), "{waited:?}");
    }
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Measures the host's part of a step, then the whole step.
fn measure(group: &mut BenchmarkGroup<'_, WallTime>, device: &SkipBench, workgroups: u32) {
    let form = device.form;
    group.bench_function(format!("{form:?}, {workgroups} workgroups, host"), |b| {
        b.iter_custom(|count| {
            let mut spent = Duration::ZERO;
            for _ in 0..count {
                let started = Instant::now();
                device.step(workgroups);
                spent += started.elapsed();
                device.wait();
            }
            spent
        });
    });
    group.bench_function(format!("{form:?}, {workgroups} workgroups, done"), |b| {
        b.iter(|| {
            device.step(workgroups);
            device.wait();
        });
    });
}

fn halted(criterion: &mut Criterion) {
    let forms = [SkipMethod::EarlyReturn, SkipMethod::Indirect, SkipMethod::IndirectChecked];
    let devices: Vec<SkipBench> = forms.into_iter().filter_map(SkipBench::new).collect();
    if devices.is_empty() {
        #[expect(clippy::print_stderr, reason = "what is skipped should be seen")]
        {
            eprintln!("SKIPPED, nothing was measured: no adapter");
        }
    }
    for (name, is_halted) in [("120 dispatches, halted", true), ("120 dispatches", false)] {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10);
        group.warm_up_time(Duration::from_millis(200));
        group.measurement_time(Duration::from_millis(500));
        for workgroups in WORKGROUPS {
            for device in &devices {
                device.set(is_halted, workgroups);
                measure(&mut group, device, workgroups);
            }
        }
    }
}

criterion_group!(benches, halted);
criterion_main!(benches);
