//! All compute pipelines, compiled when the device is opened.

use std::sync::atomic::AtomicBool;

use wgpu::{BindGroupLayoutEntry, BindingType, BufferBindingType, ShaderStages};

use crate::adapters::AdapterFeatures;
use crate::device::Gpu;
use crate::error::WgpuError;
use crate::wait::block_on;

/// A compiled shader with the layout of its bindings.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub name: &'static str,
    /// Unique identifier.
    pub id: usize,
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    /// True if the shader does nothing after an expert was missing.
    pub reads_miss_flag: bool,
    /// Set when the shader is first recorded.
    pub recorded: AtomicBool,
}

/// Returns the bind group layout of the miss flag, shared by all pipelines.
pub(crate) fn miss_flag_layout(gpu: &Gpu) -> wgpu::BindGroupLayout {
    gpu.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some("miss flag"),
        entries: &[layout_entry(0, BufferBindingType::Uniform, false)],
    })
}

fn layout_entry(
    binding: usize,
    ty: BufferBindingType,
    has_dynamic_offset: bool,
) -> BindGroupLayoutEntry {
    BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
        count: None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}
use Access::{Read, Write};

/// Instructions that shaders use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShaderVariant {
    /// True if sums and maxima use subgroup operations, with bit-identical results.
    pub subgroups: bool,
    /// True if pages of half floats are read with native half floats. Results may only differ for subnormal
    /// values, which a device may flush to zero.
    pub halves: bool,
}

impl ShaderVariant {
    /// Instructions that every adapter supports.
    pub const PLAIN: Self = Self { subgroups: false, halves: false };

    /// Returns the best variant for an adapter.
    pub fn of(features: &AdapterFeatures) -> Self {
        Self { subgroups: features.sums_in_subgroups(), halves: features.f16 }
    }
}

struct Source {
    name: &'static str,
    /// Texts: plain, with subgroups, with half floats, and with both.
    texts: [&'static str; 4],
    /// Buffers from binding 1; binding 0 holds the parameters.
    bindings: &'static [Access],
    /// Values of `override` constants.
    constants: &'static [(&'static str, f64)],
}

/// Expands one line of `pipelines!` to a `Source`.
macro_rules! source {
    ($name:ident, $file:literal, [$($access:ident),*], {$($key:ident = $value:expr),*}) => {
        Source {
            name: stringify!($name),
            texts: [
                include_str!(concat!(env!("OUT_DIR"), "/", $file, ".wgsl")),
                include_str!(concat!(env!("OUT_DIR"), "/subgroups/", $file, ".wgsl")),
                include_str!(concat!(env!("OUT_DIR"), "/f16/", $file, ".wgsl")),
                include_str!(concat!(env!("OUT_DIR"), "/f16_subgroups/", $file, ".wgsl")),
            ],
            bindings: &[$($access),*],
            constants: &[$((stringify!($key), $value)),*],
        }
    };
}

/// Declares the pipelines: `field: "file" [bindings] {constants}`.
macro_rules! pipelines {
    ($($name:ident: $file:literal [$($access:ident),*] {$($key:ident = $value:expr),*};)*) => {
        /// All pipelines by name.
        #[derive(Debug)]
        pub(crate) struct Pipelines { $(pub $name: Pipeline,)* }

        impl Pipelines {
            /// Compiles all pipelines.
            ///
            /// # Errors
            /// Returns an error if the driver refuses a shader.
            pub fn compile(
                gpu: &Gpu,
                cache: Option<&wgpu::PipelineCache>,
                variant: ShaderVariant,
            ) -> Result<Self, WgpuError> {
                let mut id = 0;
                let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
                let miss_flag = miss_flag_layout(gpu);
                let mut next = |source: Source| {
                    id += 1;
                    compile(gpu, cache, id, variant, &miss_flag, &source)
                };
                let pipelines = Self {
                    $($name: next(
                        source!($name, $file, [$($access),*], {$($key = $value),*})
                    ),)*
                };
                match block_on(scope.pop()) {
                    None => gpu.check().map(|()| pipelines),
                    Some(error) => Err(WgpuError::Refused { reason: error.to_string() }),
                }
            }

            /// Iterates over all pipelines.
            pub fn all(&self) -> impl Iterator<Item = &Pipeline> {
                [$(&self.$name),*].into_iter()
            }
        }

        #[cfg(test)]
        const SOURCES: &[Source] =
            &[$(source!($name, $file, [$($access),*], {$($key = $value),*}),)*];
    };
}

pipelines! {
    rms_norm: "rms_norm" [Read, Read, Write] {};
    norm_part: "norm_part" [Read, Write] {};
    scale: "scale" [Write] {};
    softcap: "softcap" [Write] {};
    gate: "gate" [Read, Write] {};
    add_gated: "add_gated" [Read, Read, Write] {};
    gather_rows: "gather_rows" [Read, Read, Write] {};
    argmax: "argmax" [Read, Write, Write] {};
    argmax_merge: "argmax_merge" [Read, Read, Write] {};
    rope: "rope" [Read, Read, Read, Write] {};
    kv_store_f32: "kv_store" [Read, Read, Write] { KIND = 0.0 };
    kv_store_f16: "kv_store" [Read, Read, Write] { KIND = 1.0 };
    kv_store_int8: "kv_store" [Read, Read, Write] { KIND = 2.0 };
    attend_f32: "attend" [Read, Read, Read, Read, Read, Read, Read, Write] { KIND = 0.0 };
    attend_f16: "attend" [Read, Read, Read, Read, Read, Read, Read, Write] { KIND = 1.0 };
    attend_int8: "attend" [Read, Read, Read, Read, Read, Read, Read, Write] { KIND = 2.0 };
    attend_split_f32: "attend" [Read, Read, Read, Read, Read, Read, Read, Write]
        { KIND = 0.0, SPLIT = 1.0 };
    attend_split_f16: "attend" [Read, Read, Read, Read, Read, Read, Read, Write]
        { KIND = 1.0, SPLIT = 1.0 };
    attend_split_int8: "attend" [Read, Read, Read, Read, Read, Read, Read, Write]
        { KIND = 2.0, SPLIT = 1.0 };
    attend_merge: "attend_merge" [Read, Read, Read, Write] {};
    route: "route" [Read, Read, Read, Read, Write, Write] {};
    expert_blocks: "expert_blocks" [Read, Read, Read, Read, Write, Write, Write] {};
    clear: "clear" [Write] {};
    experts_sum: "experts_sum" [Read, Read, Write] {};
    embed: "embed" [Read, Read, Write] {};
    quantize: "quantize" [Read, Write, Write] {};
    matmul_nested: "matmul_nested" [Read, Read, Read, Read, Read, Read, Write] { DOT4 = 1.0 };
    matmul_nested_plain: "matmul_nested" [Read, Read, Read, Read, Read, Read, Write]
        { DOT4 = 0.0 };
    matmul_nested_rows: "matmul_nested_rows" [Read, Read, Read, Read, Read, Read, Write]
        { DOT4 = 1.0 };
    matmul_nested_rows_plain: "matmul_nested_rows" [Read, Read, Read, Read, Read, Read, Write]
        { DOT4 = 0.0 };
    matmul_scaled: "matmul_scaled" [Read, Read, Read, Read, Read, Read, Write] { DOT4 = 1.0 };
    matmul_scaled_plain: "matmul_scaled" [Read, Read, Read, Read, Read, Read, Write]
        { DOT4 = 0.0 };
    matmul_float: "matmul_float" [Read, Read, Read, Read, Read, Write] {};
    gated: "gated" [Read, Write] {};
    gated_quantize: "gated_quantize" [Read, Write, Write] {};
    heads_rest: "heads_rest" [Read, Write] {};
    delta_mix: "delta_mix" [Read, Read, Read, Read, Read, Write] {};
    delta_rule: "delta_rule" [Read, Read, Read, Read, Read, Write, Write] {};
    delta_gate: "delta_gate" [Read, Read, Write] {};
    short_conv: "short_conv" [Read, Read, Read, Read, Write, Write] {};
    mamba2_conv: "mamba2_conv" [Read, Read, Read, Read, Write, Write] {};
    mamba2_scan: "mamba2_scan" [Read, Read, Read, Read, Read, Read, Write, Write] {};
    mamba2_norm: "mamba2_norm" [Read, Write] {};
}

/// Constant of kernels that support several kinds of pages, with its value for half floats.
const HALVES: (&str, f64) = ("KIND", 1.0);

impl Source {
    /// Returns the text of a variant. Text for half floats is only used for pages of half floats.
    fn text(&self, variant: ShaderVariant) -> &'static str {
        let halves = variant.halves && self.constants.contains(&HALVES);
        self.texts[2 * usize::from(halves) + usize::from(variant.subgroups)]
    }
}

fn compile(
    gpu: &Gpu,
    cache: Option<&wgpu::PipelineCache>,
    id: usize,
    variant: ShaderVariant,
    miss_flag: &wgpu::BindGroupLayout,
    source: &Source,
) -> Pipeline {
    let name = source.name;
    let mut entries = vec![layout_entry(0, BufferBindingType::Uniform, true)];
    for (index, access) in source.bindings.iter().enumerate() {
        let read_only = *access == Read;
        let storage = BufferBindingType::Storage { read_only };
        entries.push(layout_entry(index + 1, storage, false));
    }
    let text = source.text(variant);
    let reads_miss_flag = text.contains("> halted: ");
    let device = &gpu.device;
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some(name),
        entries: &entries,
    });
    let both = [Some(&layout), Some(miss_flag)];
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(name),
        bind_group_layouts: if reads_miss_flag { &both } else { &both[..1] },
        ..wgpu::PipelineLayoutDescriptor::default()
    });
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(name),
        source: wgpu::ShaderSource::Wgsl(text.into()),
    });
    let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(name),
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            constants: source.constants,
            zero_initialize_workgroup_memory: false,
        },
        cache,
    });
    Pipeline { name, id, raw, layout, reads_miss_flag, recorded: AtomicBool::new(false) }
}

#[cfg(test)]
mod tests;
