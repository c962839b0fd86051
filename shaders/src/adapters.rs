//! Which graphics adapters a machine has, what they can do, and the choice of one.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use nestling_core::driver::block_on;

use crate::vulkan;

mod apis;

/// An adapter as the system shows it: a device through one graphics API. The same device may
/// show up once for each API.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterDescription {
    /// Its index in the list of [`devices`]: what [`AdapterChoice::Index`] takes.
    pub index: usize,
    /// The name that its driver gives it.
    pub name: String,
    /// What kind of device it is.
    pub kind: AdapterKind,
    /// The graphics API that reaches it: `vulkan`, `metal` or `dx12`.
    pub api: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Bytes of its largest heap of device memory, where the API tells.
    pub memory_bytes: Option<u64>,
    /// The limits that matter here.
    pub limits: AdapterLimits,
    /// The features that matter here.
    pub features: AdapterFeatures,
    /// Why it cannot be used; none if it can.
    pub refusal: Option<Refusal>,
}

/// Why an adapter that is there cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Direct3D 12 without `dxcompiler.dll`: the compiler that Windows comes with, FXC, knows neither half
    /// floats nor subgroups nor products of four bytes, and shaders have never been tried with it.
    #[error(
        "Direct3D 12 needs dxcompiler.dll (1.8.2502 or newer) beside the program or on PATH; Vulkan does \
         without it"
    )]
    NoShaderCompiler,
}

/// What kind of device an adapter is, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// What the driver does not say.
    Other,
    /// A program on the processor: correct, and slower than the CPU backend.
    Software,
}

/// Limits that decide how models are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterLimits {
    /// Bytes of the largest part of a buffer that a shader can see at once.
    pub storage_binding_bytes: u64,
    /// Bytes of the largest buffer.
    pub buffer_bytes: u64,
    /// Bytes that the invocations of a workgroup share.
    pub workgroup_storage_bytes: u32,
    /// Most invocations of a workgroup.
    pub workgroup_invocations: u32,
    /// Most storage buffers that a shader can see.
    pub storage_buffers: u32,
}

/// Features that decide which shaders run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterFeatures {
    /// Whether products of four bytes at once are instructions of the API, as far as that is known. Where
    /// they are not, they are emulated, to the same results.
    pub int8_dot: bool,
    /// Whether shaders compute with 16-bit floats.
    pub f16: bool,
    /// Smallest and largest size of a subgroup; none where shaders have no subgroups.
    pub subgroup_sizes: Option<(u32, u32)>,
    /// Whether the host can map the buffers that shaders use.
    pub mappable_buffers: bool,
    /// How planes of streamed experts get into their slots.
    pub uploads: Uploads,
    /// Whether compiled pipelines can be kept on disk.
    pub pipeline_cache: bool,
    /// Whether the device can tell how long its work took.
    pub timestamps: bool,
    /// Whether sums are known to be compiled in the order that they are written in, so that a row's bits depend
    /// neither on which form of a shader computes it nor on what is computed beside it. The compilers of Metal
    /// and of Direct3D 12 are free to reorder them.
    pub exact: bool,
}

impl AdapterFeatures {
    /// Whether shaders add and compare in subgroups here: a workgroup of 64 must be whole ones.
    pub fn sums_in_subgroups(&self) -> bool {
        matches!(self.subgroup_sizes, Some((4.., ..=64)))
    }
}

/// How planes of streamed experts get into memory that shaders see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uploads {
    /// The host writes them there, where the device is not at work on that memory: host and device share
    /// it.
    Straight,
    /// The host writes them somewhere else, and the device copies them.
    #[default]
    Staged,
}

impl Uploads {
    /// Straight where memory is shared and the host can map it. A device with memory of its own may offer
    /// that too, of a part of its memory or across the bus.
    fn of(kind: AdapterKind, mappable: bool) -> Self {
        match kind {
            AdapterKind::Integrated | AdapterKind::Software if mappable => Self::Straight,
            _ => Self::Staged,
        }
    }
}

/// Which adapter is to be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdapterChoice {
    /// The best GPU: discrete ones before integrated ones. Never a program on the processor.
    #[default]
    Auto,
    /// The one with this index in the list of [`devices`], whatever it is.
    Index(usize),
    /// The first one whose name has this in it, in small or capital letters, whatever it is.
    Name(String),
}

/// An adapter that is not there. `found` lists what is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The system has no driver for any supported graphics API, or drivers without devices.
    #[error("no graphics adapter was found: the system has no Vulkan, Metal or Direct3D 12 driver")]
    NoneFound,
    /// All adapters are programs on the processor, which are used only where they are asked for.
    #[error("no GPU was found, only software: {found}")]
    OnlySoftware {
        /// The adapters.
        found: String,
    },
    /// The list of adapters is shorter.
    #[error("there is no graphics adapter {index}, only {found}")]
    NoSuchIndex {
        /// What was asked for.
        index: usize,
        /// The adapters.
        found: String,
    },
    /// No adapter has such a name.
    #[error("there is no graphics adapter named `{name}`, only {found}")]
    NoSuchName {
        /// What was asked for.
        name: String,
        /// The adapters.
        found: String,
    },
    /// The adapter gives no device.
    #[error("{adapter} gives no device: {reason}")]
    NoDevice {
        /// Name of the adapter.
        adapter: String,
        /// The driver's answer.
        reason: String,
    },
    /// The adapter is there and cannot be used.
    #[error("{name} cannot be used: {refusal}")]
    Refused {
        /// Name of the adapter.
        name: String,
        /// Why not.
        refusal: Refusal,
    },
}

/// All adapters of the machine; none where it has no driver for a supported graphics API.
pub fn devices() -> Vec<AdapterDescription> {
    list().into_iter().map(|(_, description)| description).collect()
}

/// What is known of the adapter that `choice` means, without opening it.
///
/// # Errors
/// [`AdapterError`] where there is none.
pub fn device(choice: &AdapterChoice) -> Result<AdapterDescription, AdapterError> {
    choose(choice).map(|(_, description)| description)
}

/// The adapter that `choice` means.
///
/// # Errors
/// [`AdapterError`] where there is none.
pub(crate) fn choose(
    choice: &AdapterChoice,
) -> Result<(wgpu::Adapter, AdapterDescription), AdapterError> {
    let mut adapters = list();
    let descriptions: Vec<_> = adapters.iter().map(|(_, description)| description).collect();
    let index = choice.among(&descriptions)?;
    Ok(adapters.swap_remove(index))
}

fn list() -> Vec<(wgpu::Adapter, AdapterDescription)> {
    let backends = wgpu::Instance::enabled_backend_features();
    if backends.is_empty() {
        return Vec::new();
    }
    let usable = adapters_of(backends, wgpu::Dx12Compiler::default_dynamic_dxc());
    let shown: Vec<_> = usable.iter().map(|adapter| adapter.get_info().backend).collect();
    let refused = match apis::lacks_compiler(backends, &shown) {
        true => adapters_of(wgpu::Backends::DX12, wgpu::Dx12Compiler::Fxc),
        false => Vec::new(),
    };
    let usable = usable.into_iter().map(|adapter| (adapter, None));
    let refused = refused.into_iter().map(|adapter| (adapter, Some(Refusal::NoShaderCompiler)));
    let described = |(index, (adapter, refusal))| {
        let description = describe(index, refusal, &adapter);
        (adapter, description)
    };
    usable.chain(refused).enumerate().map(described).collect()
}

/// The adapters of some APIs, Direct3D 12's with this compiler: none where it cannot be loaded.
fn adapters_of(backends: wgpu::Backends, compiler: wgpu::Dx12Compiler) -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor {
        backends,
        // Neither validation layers nor debug names, in whatever profile this is compiled.
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    descriptor.backend_options.dx12.shader_compiler = compiler;
    block_on(wgpu::Instance::new(descriptor).enumerate_adapters(backends))
}

fn describe(index: usize, refusal: Option<Refusal>, adapter: &wgpu::Adapter) -> AdapterDescription {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let known = vulkan::facts(adapter);
    let has = |feature| features.contains(feature);
    let sizes = (info.subgroup_min_size, info.subgroup_max_size);
    let kind = AdapterKind::of(info.device_type);
    let mappable_buffers = has(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS);
    AdapterDescription {
        index,
        kind,
        api: info.backend.to_string(),
        driver: [&*info.driver, &*info.driver_info].join(" ").trim().to_owned(),
        name: info.name,
        memory_bytes: known.map(|known| known.memory_bytes),
        limits: AdapterLimits {
            storage_binding_bytes: limits.max_storage_buffer_binding_size,
            buffer_bytes: limits.max_buffer_size,
            workgroup_storage_bytes: limits.max_compute_workgroup_storage_size,
            workgroup_invocations: limits.max_compute_invocations_per_workgroup,
            storage_buffers: limits.max_storage_buffers_per_shader_stage,
        },
        features: AdapterFeatures {
            int8_dot: apis::has_int8_dot(info.backend, known.map(|known| known.int8_dot)),
            f16: has(wgpu::Features::SHADER_F16),
            subgroup_sizes: has(wgpu::Features::SUBGROUP).then_some(sizes),
            mappable_buffers,
            uploads: Uploads::of(kind, mappable_buffers),
            pipeline_cache: has(wgpu::Features::PIPELINE_CACHE),
            timestamps: has(wgpu::Features::TIMESTAMP_QUERY),
            exact: apis::is_exact(info.backend),
        },
        refusal,
    }
}

impl AdapterKind {
    fn of(kind: wgpu::DeviceType) -> Self {
        match kind {
            wgpu::DeviceType::DiscreteGpu => Self::Discrete,
            wgpu::DeviceType::IntegratedGpu => Self::Integrated,
            wgpu::DeviceType::VirtualGpu => Self::Virtual,
            wgpu::DeviceType::Other => Self::Other,
            wgpu::DeviceType::Cpu => Self::Software,
        }
    }
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Other => "other",
            Self::Software => "software",
        })
    }
}

impl AdapterChoice {
    /// The index of the adapter that is meant.
    fn among(&self, adapters: &[&AdapterDescription]) -> Result<usize, AdapterError> {
        if adapters.is_empty() {
            return Err(AdapterError::NoneFound);
        }
        let found = || listed(adapters);
        match self {
            Self::Auto => {
                let gpus = || {
                    let all = adapters.iter().enumerate();
                    all.filter(|(_, adapter)| adapter.kind != AdapterKind::Software)
                };
                let usable = gpus().filter(|(_, adapter)| adapter.refusal.is_none());
                match usable.min_by_key(|(_, adapter)| adapter.kind) {
                    Some((index, _)) => Ok(index),
                    None => match gpus().min_by_key(|(_, adapter)| adapter.kind) {
                        Some((index, adapter)) => adapter.usable().map(|()| index),
                        None => Err(AdapterError::OnlySoftware { found: found() }),
                    },
                }
            }
            Self::Index(index) => match adapters.get(*index) {
                Some(adapter) => adapter.usable().map(|()| *index),
                None => Err(AdapterError::NoSuchIndex { index: *index, found: found() }),
            },
            Self::Name(name) => {
                let wanted = name.to_lowercase();
                let is_meant =
                    |adapter: &&AdapterDescription| adapter.name.to_lowercase().contains(&wanted);
                let is_usable =
                    |adapter: &&AdapterDescription| is_meant(adapter) && adapter.refusal.is_none();
                let missing = || AdapterError::NoSuchName { name: name.clone(), found: found() };
                let usable = adapters.iter().position(is_usable);
                let index = usable.or_else(|| adapters.iter().position(is_meant));
                let index = index.ok_or_else(missing)?;
                adapters[index].usable().map(|()| index)
            }
        }
    }
}

impl AdapterDescription {
    /// An error that names it if it cannot be used.
    fn usable(&self) -> Result<(), AdapterError> {
        let refused = |refusal| AdapterError::Refused { name: self.name.clone(), refusal };
        self.refusal.map_or(Ok(()), |refusal| Err(refused(refusal)))
    }
}

fn listed(adapters: &[&AdapterDescription]) -> String {
    let names: Vec<_> =
        adapters.iter().map(|adapter| format!("{} ({})", adapter.index, adapter.name)).collect();
    names.join(", ")
}

impl fmt::Display for AdapterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Index(index) => index.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// `auto`, a number, or a part of a name.
impl FromStr for AdapterChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match (text, text.parse()) {
            ("auto", _) => Self::Auto,
            (_, Ok(index)) => Self::Index(index),
            (name, Err(_)) => Self::Name(name.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests;
