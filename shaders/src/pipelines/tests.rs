//! Translates every pipeline in every variant for each graphics API, as wgpu does. No driver is needed.
//!
//! If `NESTLING_SHADER_TEXTS=FOLDER` is set, the shaders are written to that folder as WGSL and SPIR-V for
//! other validators (`.ci/shaders`).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use naga::back::spv::Capability;
use naga::back::{PipelineConstants, hlsl, msl, pipeline_constants, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Module, ResourceBinding, ShaderStage};

use super::*;

const VARIANTS: [(&str, ShaderVariant); 4] = [
    ("plain", ShaderVariant::PLAIN),
    ("subgroups", ShaderVariant { subgroups: true, halves: false }),
    ("f16", ShaderVariant { subgroups: false, halves: true }),
    ("f16_subgroups", ShaderVariant { subgroups: true, halves: true }),
];

/// Versions of the Metal language, starting with the first that has subgroup names.
const METAL: [(u8, u8); 4] = [(2, 1), (2, 4), (3, 2), (4, 0)];

/// Shader models of Direct3D 12: the first with subgroups, with half floats and with packed dot products, and
/// the latest. FXC supports none of them.
const SHADER_MODELS: [hlsl::ShaderModel; 4] = [
    hlsl::ShaderModel::V6_0,
    hlsl::ShaderModel::V6_2,
    hlsl::ShaderModel::V6_4,
    hlsl::ShaderModel::V6_9,
];

/// SPIR-V version and capabilities of a Vulkan version.
#[derive(Clone, Copy)]
struct Vulkan {
    name: &'static str,
    version: (u8, u8),
    has_dot: bool,
}

const VULKANS: [Vulkan; 2] = [
    Vulkan { name: "vulkan1.1", version: (1, 3), has_dot: false },
    Vulkan { name: "vulkan1.3", version: (1, 6), has_dot: true },
];

struct Shader {
    module: Module,
    info: ModuleInfo,
}

impl Shader {
    fn parse(text: &str, constants: &[(&str, f64)]) -> Result<Self, String> {
        let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
        let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
        let info = validator.validate(&module).map_err(|e| e.emit_to_string(text))?;
        let set: PipelineConstants =
            constants.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let main = Some((ShaderStage::Compute, "main"));
        let (module, info) = pipeline_constants::process_overrides(&module, &info, main, &set)
            .map_err(|error| error.to_string())?;
        Ok(Self { module: module.into_owned(), info: info.into_owned() })
    }

    /// Translates like wgpu-hal's `metal/device.rs`.
    fn to_metal(&self, lang_version: (u8, u8), slots: &Slots) -> Result<String, String> {
        let resources = msl::EntryPointResources {
            resources: slots.metal(),
            immediates_buffer: None,
            sizes_buffer: Some(slots.count()),
        };
        let restrict = BoundsCheckPolicy::Restrict;
        let options = msl::Options {
            lang_version,
            fake_missing_bindings: false,
            per_entry_point_map: [("main".to_owned(), resources)].into(),
            bounds_check_policies: policies(restrict),
            zero_initialize_workgroup_memory: false,
            ..msl::Options::default()
        };
        let pipeline = msl::PipelineOptions {
            entry_point: Some((ShaderStage::Compute, "main".to_owned())),
            vertex_pulling_transform: true,
            ..msl::PipelineOptions::default()
        };
        let written = msl::write_string(&self.module, &self.info, &options, &pipeline);
        let (text, info) = written.map_err(|error| error.to_string())?;
        info.entry_point_names[0].as_ref().map_err(|error| error.to_string())?;
        Ok(text)
    }

    /// Translates like wgpu-hal's `dx12/device.rs`.
    fn to_direct3d(&self, model: hlsl::ShaderModel, slots: &Slots) -> Result<String, String> {
        let options = hlsl::Options {
            shader_model: model,
            binding_map: slots.direct3d(),
            fake_missing_bindings: false,
            zero_initialize_workgroup_memory: false,
            ..hlsl::Options::default()
        };
        let pipeline =
            hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, "main".to_owned())) };
        let mut text = String::new();
        let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
        let written = writer.write(&self.module, &self.info, None);
        let names = written.map_err(|error| error.to_string())?.entry_point_names;
        names[0].as_ref().map_err(|error| error.to_string())?;
        Ok(text)
    }

    /// Translates like wgpu-hal's `vulkan/adapter.rs` and `vulkan/device.rs`.
    fn to_vulkan(
        &self,
        variant: ShaderVariant,
        vulkan: Vulkan,
        slots: &Slots,
    ) -> Result<Vec<u32>, String> {
        let mut capabilities = vec![Capability::Shader, Capability::Matrix];
        if variant.subgroups {
            capabilities.extend([
                Capability::GroupNonUniform,
                Capability::GroupNonUniformVote,
                Capability::GroupNonUniformArithmetic,
                Capability::GroupNonUniformBallot,
                Capability::GroupNonUniformShuffle,
                Capability::GroupNonUniformShuffleRelative,
                Capability::GroupNonUniformQuad,
            ]);
        }
        if variant.halves {
            capabilities.push(Capability::Float16);
        }
        if vulkan.has_dot {
            capabilities.extend([
                Capability::DotProductInputAllKHR,
                Capability::DotProductInput4x8BitKHR,
                Capability::DotProductInput4x8BitPackedKHR,
                Capability::DotProductKHR,
                Capability::Int8,
            ]);
        }
        let options = spv::Options {
            lang_version: vulkan.version,
            flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
            capabilities: Some(capabilities.into_iter().collect()),
            bounds_check_policies: policies(BoundsCheckPolicy::Restrict),
            zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
            binding_map: slots.vulkan(),
            ..spv::Options::default()
        };
        let pipeline = spv::PipelineOptions {
            shader_stage: ShaderStage::Compute,
            entry_point: "main".to_owned(),
        };
        spv::write_vec(&self.module, &self.info, &options, Some(&pipeline))
            .map_err(|error| error.to_string())
    }
}

fn policies(bounds: BoundsCheckPolicy) -> BoundsCheckPolicies {
    BoundsCheckPolicies {
        index: bounds,
        buffer: bounds,
        image_load: bounds,
        binding_array: BoundsCheckPolicy::Unchecked,
    }
}

/// Bindings of a pipeline in layout order: parameters, buffers, and the miss flag.
struct Slots(Vec<(ResourceBinding, Kind)>);

#[derive(Clone, Copy)]
enum Kind {
    Uniform,
    Storage(Access),
}

impl Slots {
    fn of(source: &Source) -> Self {
        let at = |group, binding| ResourceBinding { group, binding };
        let own = source.bindings.iter().zip(1..);
        let own = own.map(|(access, binding)| (at(0, binding), Kind::Storage(*access)));
        let first = [(at(0, 0), Kind::Uniform)];
        Self(first.into_iter().chain(own).chain([(at(1, 0), Kind::Uniform)]).collect())
    }

    fn count(&self) -> u8 {
        u8::try_from(self.0.len()).unwrap()
    }

    fn metal(&self) -> msl::BindingMap {
        let targets = self.0.iter().zip(0..).map(|((binding, kind), slot)| {
            let mutable = matches!(kind, Kind::Storage(Write));
            let target = msl::BindTarget { buffer: Some(slot), mutable, ..Default::default() };
            (*binding, target)
        });
        targets.collect()
    }

    fn direct3d(&self) -> hlsl::BindingMap {
        let mut registers = [0; 3];
        let targets = self.0.iter().map(|(binding, kind)| {
            let class = match kind {
                Kind::Uniform => 0,
                Kind::Storage(Read) => 1,
                Kind::Storage(Write) => 2,
            };
            let register = registers[class];
            registers[class] += 1;
            (*binding, hlsl::BindTarget { register, ..Default::default() })
        });
        targets.collect()
    }

    fn vulkan(&self) -> spv::BindingMap {
        let infos = self.0.iter().map(|(at, _)| {
            let info = spv::BindingInfo {
                descriptor_set: at.group,
                binding: at.binding,
                binding_array_size: None,
            };
            (*at, info)
        });
        infos.collect()
    }
}

/// Visits every pipeline in every variant with distinct text.
fn each(mut what: impl FnMut(&'static str, ShaderVariant, &Source, &Shader)) {
    for source in SOURCES {
        let mut texts = Vec::new();
        for (name, variant) in VARIANTS {
            let text = source.text(variant);
            if texts.contains(&text) {
                continue;
            }
            texts.push(text);
            let shader = Shader::parse(text, source.constants);
            let shader = shader.unwrap_or_else(|error| panic!("{}, {name}: {error}", source.name));
            what(name, variant, source, &shader);
        }
    }
}

fn pipeline(name: &str) -> &'static Source {
    SOURCES.iter().find(|source| source.name == name).unwrap()
}

#[test]
fn every_form_is_translated_for_metal() {
    let mut count = 0;
    each(|variant, _, source, shader| {
        for version in METAL {
            let text = shader.to_metal(version, &Slots::of(source));
            let text =
                text.unwrap_or_else(|e| panic!("{}, {variant}, {version:?}: {e}", source.name));
            assert!(text.contains("kernel void"), "{}, {variant}", source.name);
            count += 1;
        }
    });
    assert!(count >= METAL.len() * SOURCES.len());
}

#[test]
fn every_form_is_translated_for_direct3d() {
    each(|name, variant, source, shader| {
        for model in SHADER_MODELS {
            if variant.halves && model < hlsl::ShaderModel::V6_2 {
                continue;
            }
            let text = shader.to_direct3d(model, &Slots::of(source));
            let text = text.unwrap_or_else(|e| panic!("{}, {name}, {model:?}: {e}", source.name));
            assert!(text.contains("numthreads"), "{}, {name}", source.name);
            // Shader model 6.4 and later have a four-byte dot product instruction.
            let is_packed = model >= hlsl::ShaderModel::V6_4;
            if source.constants.contains(&("DOT4", 1.0)) {
                assert_eq!(text.contains("dot4add_i8packed"), is_packed, "{}", source.name);
            }
        }
    });
}

#[test]
fn every_form_is_translated_for_vulkan() {
    let folder = std::env::var_os("NESTLING_SHADER_TEXTS").map(PathBuf::from);
    let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    each(|name, variant, source, shader| {
        let text = source.text(variant).into();
        files.insert(format!("wgsl/{name}/{}.wgsl", source.name).into(), text);
        for vulkan in VULKANS {
            let words = shader.to_vulkan(variant, vulkan, &Slots::of(source));
            let words = words.unwrap_or_else(|e| panic!("{}, {name}: {e}", source.name));
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let file = format!("{}/{name}/{}.spv", vulkan.name, source.name);
            files.insert(file.into(), bytes);
        }
    });
    let Some(folder) = folder else { return };
    for (file, bytes) in files {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn what_an_api_cannot_express_is_an_error() {
    let source = pipeline("attend_f16");
    let (variant, slots) = (VARIANTS[3].1, Slots::of(source));
    let shader = Shader::parse(source.text(variant), source.constants).unwrap();
    // Half floats and subgroups that the device does not support.
    for lacking in [VARIANTS[1].1, VARIANTS[2].1] {
        assert!(shader.to_vulkan(lacking, VULKANS[1], &slots).is_err(), "{lacking:?}");
    }
    // A buffer without a slot.
    let mut fewer = Slots::of(source);
    fewer.0.remove(3);
    assert!(shader.to_metal(METAL[0], &fewer).is_err());
    assert!(shader.to_direct3d(SHADER_MODELS[1], &fewer).is_err());
    // Invalid text.
    let text = source.text(variant).replacen("fn score(", "fn score(surplus: f32, ", 1);
    assert!(Shader::parse(&text, source.constants).is_err());
}

#[test]
fn a_device_with_too_low_limits_refuses_shaders() {
    let choice = crate::AdapterChoice::Index(0);
    let Ok((adapter, _)) = crate::adapters::choose(&choice) else { return };
    // Four buffers per shader, but attention uses eight.
    let low = wgpu::Limits::downlevel_defaults();
    for (limits, is_enough) in [(wgpu::Limits::default(), true), (low, false)] {
        let gpu = Gpu::open(&adapter, limits, crate::Uploads::Staged, None).unwrap();
        let compiled = Pipelines::compile(&gpu, None, ShaderVariant::PLAIN);
        assert_eq!(compiled.is_ok(), is_enough, "{:?}", compiled.err());
    }
}
