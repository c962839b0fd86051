//! Enumeration, description and selection of graphics adapters.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use crate::vulkan;
use crate::wait::block_on;

mod apis;

/// A graphics adapter: a device accessed through one graphics API. A device may be listed once for each API.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterDescription {
    /// Index in the list of [`devices`], as used by [`AdapterChoice::Index`].
    pub index: usize,
    /// Name reported by the driver.
    pub name: String,
    /// Kind of device.
    pub kind: AdapterKind,
    /// Graphics API: `vulkan`, `metal`, `dx12` or `webgpu`.
    pub api: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Size in bytes of the largest heap of device memory, if the API reports it.
    pub memory_bytes: Option<u64>,
    /// Relevant limits.
    pub limits: AdapterLimits,
    /// Relevant features.
    pub features: AdapterFeatures,
    /// Reason why the adapter cannot be used, or `None` if it can.
    pub refusal: Option<Refusal>,
}

/// Reason why an adapter cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Direct3D 12 without `dxcompiler.dll`. The compiler bundled with Windows, FXC, does not support half
    /// floats, subgroups or four-byte dot products, and the shaders are untested with it.
    #[error(
        "Direct3D 12 needs dxcompiler.dll (1.8.2502 or newer) beside the program or on PATH; Vulkan does \
         without it"
    )]
    NoShaderCompiler,
}

/// Kind of an adapter's device, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdapterKind {
    /// A GPU with dedicated memory.
    Discrete,
    /// A GPU that shares memory with the CPU.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// A kind that the driver does not report.
    Other,
    /// A software renderer on the CPU. Its results are correct, but it is slower than the CPU backend.
    Software,
}

/// Limits that affect how models are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterLimits {
    /// Maximum size of a storage buffer binding in bytes.
    pub storage_binding_bytes: u64,
    /// Maximum size of a buffer in bytes.
    pub buffer_bytes: u64,
    /// Shared memory of a workgroup in bytes.
    pub workgroup_storage_bytes: u32,
    /// Maximum number of invocations of a workgroup.
    pub workgroup_invocations: u32,
    /// Maximum number of storage buffers of a shader.
    pub storage_buffers: u32,
}

/// Features that determine which shaders are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterFeatures {
    /// True if four-byte dot products are known to be native instructions. Otherwise they are emulated, with
    /// the same results.
    pub int8_dot: bool,
    /// True if shaders support 16-bit floats.
    pub f16: bool,
    /// Minimum and maximum subgroup size. `None` if shaders do not support subgroups.
    pub subgroup_sizes: Option<(u32, u32)>,
    /// True if the host can map buffers that shaders use.
    pub mappable_buffers: bool,
    /// Method of writing streamed experts' planes to slots.
    pub uploads: Uploads,
    /// True if compiled pipelines can be cached on disk.
    pub pipeline_cache: bool,
    /// True if the device supports timestamps.
    pub timestamps: bool,
    /// True if sums are known to keep their source order after compilation. A row's bits then depend neither
    /// on the shader variant nor on the other rows computed with it. The compilers of Metal and Direct3D 12
    /// may reorder sums.
    pub exact: bool,
}

impl AdapterFeatures {
    /// Returns whether shaders add and compare in subgroups. A workgroup of 64 must consist of whole
    /// subgroups.
    pub fn sums_in_subgroups(&self) -> bool {
        matches!(self.subgroup_sizes, Some((4.., ..=64)))
    }
}

/// Method of writing streamed experts' planes to memory that shaders read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uploads {
    /// The host writes directly to shared memory while the device does not use it.
    Straight,
    /// The host writes to a staging buffer, and the device copies from it.
    #[default]
    Staged,
}

impl Uploads {
    /// Selects direct writes if memory is shared and mappable. A device with dedicated memory may also offer
    /// mappable buffers, but only for a part of its memory or across the bus.
    fn of(kind: AdapterKind, mappable: bool) -> Self {
        match kind {
            AdapterKind::Integrated | AdapterKind::Software if mappable => Self::Straight,
            _ => Self::Staged,
        }
    }
}

/// Selection of an adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdapterChoice {
    /// The best GPU, with discrete ones preferred. Never selects a software renderer.
    #[default]
    Auto,
    /// The adapter with this index in the list of [`devices`], of any kind.
    Index(usize),
    /// The first adapter whose name contains this text, of any kind. Case is ignored.
    Name(String),
}

/// Failure to select or open an adapter. `found` lists the available ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The system has no driver for any supported graphics API, or its drivers have no devices.
    #[error("no graphics adapter was found: the system has no Vulkan, Metal or Direct3D 12 driver")]
    NoneFound,
    /// All adapters are software renderers, which must be selected explicitly.
    #[error("no GPU was found, only software: {found}")]
    OnlySoftware {
        /// Available adapters.
        found: String,
    },
    /// The index exceeds the list of adapters.
    #[error("there is no graphics adapter {index}, only {found}")]
    NoSuchIndex {
        /// Requested index.
        index: usize,
        /// Available adapters.
        found: String,
    },
    /// The name matches no adapter.
    #[error("there is no graphics adapter named `{name}`, only {found}")]
    NoSuchName {
        /// Requested name.
        name: String,
        /// Available adapters.
        found: String,
    },
    /// The adapter failed to open a device.
    #[error("{adapter} gives no device: {reason}")]
    NoDevice {
        /// Name of the adapter.
        adapter: String,
        /// Message of the driver.
        reason: String,
    },
    /// The adapter exists but cannot be used.
    #[error("{name} cannot be used: {refusal}")]
    Refused {
        /// Name of the adapter.
        name: String,
        /// Reason why it cannot be used.
        refusal: Refusal,
    },
}

/// Returns all adapters of the machine. The list is empty if there is no driver for a supported graphics API.
pub fn devices() -> Vec<AdapterDescription> {
    list().into_iter().map(|(_, description)| description).collect()
}

/// Returns the description of the selected adapter without opening it.
///
/// # Errors
/// Fails with [`AdapterError`] if there is no such adapter.
pub fn device(choice: &AdapterChoice) -> Result<AdapterDescription, AdapterError> {
    choose(choice).map(|(_, description)| description)
}

/// Returns the selected adapter.
///
/// # Errors
/// Fails with [`AdapterError`] if there is no such adapter.
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

/// Enumerates the adapters of some APIs. The list has no Direct3D 12 adapters if `compiler` cannot be loaded.
fn adapters_of(backends: wgpu::Backends, compiler: wgpu::Dx12Compiler) -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor {
        backends,
        // Disables validation layers and debug names in all build profiles.
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
    /// Returns an error with the adapter's name if it cannot be used.
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

/// Parses `auto`, an index, or a part of a name.
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
