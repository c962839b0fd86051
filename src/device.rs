//! Compute devices: parsing, opening, and passing their backends to models.

use std::fmt;
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;

use nestling_core::{Backend, CancelToken, EngineError};
use nestling_cpu::Cpu;
use nestling_runtime::{Engine, Model, ModelOptions, ModelSource, OpenProgress};

#[cfg(feature = "cuda")]
use nestling_cuda::{CudaBackend, CudaDeviceChoice, CudaDeviceError, CudaError, CudaOptions};
#[cfg(feature = "wgpu")]
use nestling_wgpu::{AdapterChoice, AdapterError, WgpuBackend, WgpuError, WgpuOptions};

/// Number of GPU backends in this build.
const BACKENDS: usize = cfg!(feature = "cuda") as usize + cfg!(feature = "wgpu") as usize;

/// A compute device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The best device of this build and machine: a GPU, or otherwise the CPU.
    ///
    /// Software emulation of a GPU is never chosen.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU through CUDA.
    #[cfg(feature = "cuda")]
    Cuda(CudaDeviceChoice),
    /// A GPU through Vulkan, Metal, Direct3D 12 or WebGPU.
    #[cfg(feature = "wgpu")]
    Wgpu(AdapterChoice),
}

/// Error for a text that names no device of this build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Unknown device name.
    #[error(
        "`{text}` is not a device; the devices are auto, cpu, cuda, wgpu, and both with :INDEX or :NAME"
    )]
    Unknown {
        /// Text that was parsed.
        text: String,
    },
    /// Device without a backend in this build.
    #[error("this build has no {device} backend")]
    NotBuilt {
        /// Name of the device.
        device: String,
    },
}

/// Parses `auto`, `cpu`, `cuda` or `wgpu`, the last two optionally with `:INDEX` or `:NAME`.
///
/// ```
/// use nestling::{Device, DeviceError};
///
/// assert_eq!("auto".parse(), Ok(Device::Auto));
/// assert_eq!("cpu".parse::<Device>()?.to_string(), "cpu");
/// assert!(matches!("gpu".parse::<Device>(), Err(DeviceError::Unknown { .. })));
/// # Ok::<(), DeviceError>(())
/// ```
impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let (device, which) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
        match (device, which) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            #[cfg(feature = "wgpu")]
            ("wgpu", which) if which != Some("") => {
                let Ok(choice) = which.unwrap_or("auto").parse();
                Ok(Self::Wgpu(choice))
            }
            #[cfg(not(feature = "wgpu"))]
            ("wgpu", _) => Err(DeviceError::NotBuilt { device: device.to_owned() }),
            #[cfg(feature = "cuda")]
            ("cuda", which) if which != Some("") => {
                let Ok(choice) = which.unwrap_or("auto").parse();
                Ok(Self::Cuda(choice))
            }
            #[cfg(not(feature = "cuda"))]
            ("cuda", _) => Err(DeviceError::NotBuilt { device: device.to_owned() }),
            _ => Err(DeviceError::Unknown { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            #[cfg(feature = "cuda")]
            Self::Cuda(CudaDeviceChoice::Auto) => f.write_str("cuda"),
            #[cfg(feature = "cuda")]
            Self::Cuda(choice) => write!(f, "cuda:{choice}"),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(AdapterChoice::Auto) => f.write_str("wgpu"),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(choice) => write!(f, "wgpu:{choice}"),
        }
    }
}

/// Options for opening a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Device to open.
    pub device: Device,
    /// Budget in bytes for a GPU's memory ([`OpenDevice::memory_budget`]). `None` means all of it. Ignored
    /// for the CPU.
    pub device_budget: Option<u64>,
    /// Directory that caches compiled shaders and kernels between runs. `None` compiles them at each start.
    pub pipeline_cache: Option<PathBuf>,
    /// Number of ranks that share a GPU. `None` means one. Ignored unless a model is opened over ranks.
    pub ranks_per_device: Option<NonZero<usize>>,
}

/// An opened device, ready for a model.
#[non_exhaustive]
pub enum OpenDevice {
    /// The CPU.
    Cpu {
        /// Reason why no GPU is used, if one was looked for.
        reason: Option<String>,
    },
    /// An NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(Box<CudaBackend>),
    /// A GPU.
    #[cfg(feature = "wgpu")]
    Wgpu(Box<WgpuBackend>),
}

impl DeviceOptions {
    /// Opens the device.
    ///
    /// ```
    /// use nestling::{Device, DeviceOptions};
    ///
    /// let options = DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() };
    /// assert!(options.open()?.is_cpu());
    /// # Ok::<(), nestling::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// Fails with [`EngineError::NoDevice`] if a device requested by name is unavailable, and with
    /// [`EngineError::Device`] if it cannot be opened.
    pub fn open(&self) -> Result<OpenDevice, EngineError> {
        match &self.device {
            Device::Cpu => Ok(OpenDevice::Cpu { reason: None }),
            Device::Auto => Ok(self.best()),
            #[cfg(feature = "cuda")]
            Device::Cuda(choice) => {
                Ok(OpenDevice::Cuda(Box::new(self.cuda(choice).map_err(unavailable)?)))
            }
            #[cfg(feature = "wgpu")]
            Device::Wgpu(choice) => {
                Ok(OpenDevice::Wgpu(Box::new(self.gpu(choice).map_err(unavailable)?)))
            }
        }
    }

    /// Opens the best device: CUDA first, then other GPUs, then the CPU.
    fn best(&self) -> OpenDevice {
        let errors: [EngineError; BACKENDS] = [
            #[cfg(feature = "cuda")]
            match self.cuda(&CudaDeviceChoice::Auto) {
                Ok(gpu) => return OpenDevice::Cuda(Box::new(gpu)),
                Err(error) => error,
            },
            #[cfg(feature = "wgpu")]
            match self.gpu(&AdapterChoice::Auto) {
                Ok(gpu) => return OpenDevice::Wgpu(Box::new(gpu)),
                Err(error) => error,
            },
        ];
        OpenDevice::Cpu { reason: why_none(&errors) }
    }

    /// Returns a substitute for a device that rejected a model: another backend or the CPU.
    ///
    /// Only an automatically chosen device is replaced, and only if another one may support the model.
    ///
    /// # Errors
    /// Returns `error` if there is no substitute.
    pub fn instead(
        &self,
        refusing: &OpenDevice,
        error: EngineError,
    ) -> Result<OpenDevice, EngineError> {
        let is_refusal = matches!(
            error,
            EngineError::Limit { .. }
                | EngineError::Mismatch { .. }
                | EngineError::Budget(_)
                | EngineError::MemoryTooSmall(_)
                | EngineError::Device(_)
                | EngineError::DeviceLost(_)
        );
        if self.device != Device::Auto || refusing.is_cpu() || !is_refusal {
            return Err(error);
        }
        let reason = format!("{} does not take this model: {error}", refusing.name());
        #[cfg(all(feature = "cuda", feature = "wgpu"))]
        if let (OpenDevice::Cuda(_), Ok(gpu)) = (refusing, self.gpu(&AdapterChoice::Auto)) {
            return Ok(OpenDevice::Wgpu(Box::new(gpu)));
        }
        Ok(OpenDevice::Cpu { reason: Some(reason) })
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, choice: &CudaDeviceChoice) -> Result<CudaBackend, EngineError> {
        Ok(CudaBackend::open(&CudaOptions {
            device: choice.clone(),
            device_budget: self.device_budget,
            kernel_cache: self.pipeline_cache.as_ref().map(|folder| folder.join("cuda")),
            ..CudaOptions::default()
        })?)
    }

    #[cfg(feature = "wgpu")]
    fn gpu(&self, choice: &AdapterChoice) -> Result<WgpuBackend, EngineError> {
        Ok(WgpuBackend::open(&WgpuOptions {
            adapter: choice.clone(),
            device_budget: self.device_budget,
            pipeline_cache: self.pipeline_cache.clone(),
            ..WgpuOptions::default()
        })?)
    }
}

/// Returns the reason why no GPU is used: the backends' failures, or otherwise that no GPU was found.
fn why_none(errors: &[EngineError]) -> Option<String> {
    let failed: Vec<_> =
        errors.iter().filter(|error| !is_absence(error)).map(ToString::to_string).collect();
    match (errors, failed.as_slice()) {
        ([], _) => None,
        (_, []) => Some("no GPU was found".into()),
        _ => Some(failed.join("; ")),
    }
}

/// Converts an error about a device that the machine does not have to [`EngineError::NoDevice`].
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn unavailable(error: EngineError) -> EngineError {
    let is_absent = is_absence(&error);
    match error {
        EngineError::Device(source) if is_absent || is_unknown(&*source) => {
            EngineError::NoDevice(source)
        }
        other => other,
    }
}

/// Returns true if an error states that an index or name selects no device.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn is_unknown(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    #[cfg(feature = "cuda")]
    if let Some(CudaError::Backend(error)) = error.downcast_ref() {
        use CudaDeviceError::{NoSuchIndex, NoSuchName};
        return matches!(error, NoSuchIndex { .. } | NoSuchName { .. });
    }
    #[cfg(feature = "wgpu")]
    if let Some(WgpuError::Backend(error)) = error.downcast_ref() {
        use AdapterError::{NoSuchIndex, NoSuchName};
        return matches!(error, NoSuchIndex { .. } | NoSuchName { .. });
    }
    false
}

/// Returns true if an error only states that the machine has no GPU.
fn is_absence(error: &EngineError) -> bool {
    let EngineError::Device(error) = error else { return false };
    #[cfg(feature = "cuda")]
    if let Some(CudaError::Backend(error)) = error.downcast_ref() {
        return matches!(error, CudaDeviceError::NoDriver | CudaDeviceError::NoneFound);
    }
    #[cfg(feature = "wgpu")]
    if let Some(WgpuError::Backend(error)) = error.downcast_ref() {
        return matches!(error, AdapterError::NoneFound | AdapterError::OnlySoftware { .. });
    }
    let _ = error;
    false
}

/// Generic operation over the backend of a device.
pub trait WithBackend {
    /// Result of the operation.
    type Output;

    /// Runs the operation. Each call of `backend` returns another backend of the same device.
    fn with<B: Backend>(self, backend: impl FnMut() -> Result<B, EngineError>) -> Self::Output;
}

impl OpenDevice {
    /// Returns true for the CPU.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Cpu { .. })
    }

    /// Returns the kind of the device: `cpu`, `cuda` or `wgpu`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Cpu { .. } => "cpu",
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => "cuda",
            #[cfg(feature = "wgpu")]
            Self::Wgpu(_) => "wgpu",
        }
    }

    /// Returns the human-readable name of the device.
    pub fn name(&self) -> String {
        match self {
            Self::Cpu { .. } => "the processor".into(),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.name(),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(gpu) => gpu.name(),
        }
    }

    /// Returns the memory budget of an engine for models on this device: `host`, limited by the device's
    /// memory.
    ///
    /// Weights in a GPU's memory pass through host memory, and streamed experts are stored in both.
    pub fn memory_budget(&self, host: Option<u64>) -> Option<u64> {
        match self {
            Self::Cpu { .. } => host,
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => host.into_iter().chain(gpu.memory_bytes()).min(),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(gpu) => host.into_iter().chain(gpu.memory_bytes()).min(),
        }
    }

    /// Lets models opened later cache in host memory the experts that do not fit a GPU's memory.
    ///
    /// They are then not read from disk again. The cache takes half of the engine's host budget. Only CUDA
    /// devices support it.
    pub fn keep_in_host(&self, host: Option<u64>) {
        match self {
            #[cfg(feature = "cuda")]
            // Default: without a host budget, no experts are cached.
            Self::Cuda(gpu) => gpu.set_host_bytes(host.unwrap_or(0) / 2),
            _ => {
                let _ = host;
            }
        }
    }

    /// Runs `user` with the device's backend. `cpu` creates the backend of the CPU.
    pub fn give<U: WithBackend>(&self, mut cpu: impl FnMut() -> Cpu, user: U) -> U::Output {
        match self {
            Self::Cpu { .. } => user.with(|| Ok(cpu())),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => user.with(|| Ok(gpu.again()?)),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(gpu) => user.with(|| Ok(gpu.again()?)),
        }
    }

    /// Returns another backend of the same device.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub fn again(&self) -> Result<Self, EngineError> {
        match self {
            Self::Cpu { reason } => Ok(Self::Cpu { reason: reason.clone() }),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => Ok(Self::Cuda(Box::new(gpu.again()?))),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(gpu) => Ok(Self::Wgpu(Box::new(gpu.again()?))),
        }
    }

    /// Opens a model on the device.
    ///
    /// ```no_run
    /// use nestling::{CancelToken, DeviceOptions, Engine, EngineOptions, ModelOptions, ModelSource};
    ///
    /// let device = DeviceOptions::default().open()?;
    /// let engine = Engine::new(EngineOptions::default())?;
    /// let (source, options) = (ModelSource::at("qwen3.nest")?, ModelOptions::default());
    /// let cancel = CancelToken::new();
    /// let model = device.open_model(&engine, source, &options, &mut |_| {}, &cancel)?;
    /// println!("opened on {}", device.name());
    /// # Ok::<(), nestling::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Model::open_source`] does, or with an error of the device.
    pub fn open_model(
        &self,
        engine: &Engine,
        source: ModelSource,
        options: &ModelOptions,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> Result<Model, EngineError> {
        match self {
            Self::Cpu { .. } => Model::open_source(engine, source, options, progress, cancel),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => {
                Model::open_source_on(gpu.again()?, engine, source, options, progress, cancel)
            }
            #[cfg(feature = "wgpu")]
            Self::Wgpu(gpu) => {
                Model::open_source_on(gpu.again()?, engine, source, options, progress, cancel)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_shown() {
        for text in ["auto", "cpu"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        let unknown = "gpu".parse::<Device>().unwrap_err().to_string();
        assert!(unknown.contains("`gpu` is not a device"), "{unknown}");
    }

    #[test]
    fn only_a_chosen_gpu_is_replaced() {
        let refusal = || EngineError::Limit { what: "head_dim", limit: 1, found: 2 };
        let cpu = OpenDevice::Cpu { reason: None };
        let chosen = DeviceOptions::default();
        assert!(matches!(chosen.instead(&cpu, refusal()), Err(EngineError::Limit { .. })));
        let Ok(gpu) = software() else { return };
        let instead = chosen.instead(&gpu, refusal()).unwrap();
        let OpenDevice::Cpu { reason: Some(reason) } = instead else { panic!("no reason") };
        assert!(reason.contains("head_dim: 2 exceeds the limit of 1"), "{reason}");
        assert!(matches!(
            chosen.instead(&gpu, EngineError::Cancelled),
            Err(EngineError::Cancelled)
        ));
        let named = DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() };
        assert!(named.instead(&gpu, refusal()).is_err());
    }

    #[test]
    #[cfg(all(feature = "cuda", feature = "wgpu"))]
    fn absent_gpus_are_told_in_few_words_and_failures_in_their_own() {
        let absent = || EngineError::from(WgpuError::from(AdapterError::NoneFound));
        let found = nestling_cuda::Version::new(11, 4);
        let old = || EngineError::from(CudaError::from(CudaDeviceError::OldDriver { found }));
        assert_eq!(why_none(&[]), None);
        assert_eq!(why_none(&[absent(), absent()]).unwrap(), "no GPU was found");
        assert_eq!(why_none(&[old(), absent()]).unwrap(), old().to_string());
    }

    #[test]
    #[cfg(all(feature = "cuda", feature = "wgpu"))]
    fn a_device_that_does_not_exist_is_the_callers_error() {
        let found = "none".to_owned();
        for missing in [
            EngineError::from(WgpuError::from(AdapterError::NoneFound)),
            EngineError::from(WgpuError::from(AdapterError::NoSuchIndex { index: 7, found })),
            EngineError::from(CudaError::from(CudaDeviceError::NoDriver)),
        ] {
            let text = missing.to_string();
            let error = unavailable(missing);
            assert!(matches!(error, EngineError::NoDevice(_)), "{error:?}");
            assert_eq!(error.class(), nestling_core::ErrorClass::Caller);
            assert_eq!(error.to_string(), text);
        }
        let found = nestling_cuda::Version::new(11, 4);
        let old = EngineError::from(CudaError::from(CudaDeviceError::OldDriver { found }));
        assert!(matches!(unavailable(old), EngineError::Device(_)));
    }

    /// Opens any adapter. Fails if there is none.
    #[cfg(feature = "wgpu")]
    fn software() -> Result<OpenDevice, EngineError> {
        let device = Device::Wgpu(AdapterChoice::Index(0));
        DeviceOptions { device, ..DeviceOptions::default() }.open()
    }

    #[cfg(not(feature = "wgpu"))]
    fn software() -> Result<OpenDevice, EngineError> {
        Err(EngineError::Cancelled)
    }

    #[test]
    #[cfg(feature = "wgpu")]
    fn adapters_are_named_by_number_or_name() {
        for text in ["wgpu", "wgpu:1", "wgpu:Radeon: RX"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        assert_eq!("wgpu:1".parse(), Ok(Device::Wgpu(AdapterChoice::Index(1))));
        assert!("wgpu:".parse::<Device>().is_err());
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn cuda_devices_are_named_by_number_or_name() {
        for text in ["cuda", "cuda:1", "cuda:H200"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        assert!("cuda:".parse::<Device>().is_err());
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_build_without_cuda_says_so() {
        let error = "cuda:0".parse::<Device>().unwrap_err();
        assert_eq!(error.to_string(), "this build has no cuda backend");
    }

    #[test]
    #[cfg(not(feature = "wgpu"))]
    fn a_build_without_a_backend_says_so() {
        let error = "wgpu:0".parse::<Device>().unwrap_err();
        assert_eq!(error.to_string(), "this build has no wgpu backend");
        assert!(matches!(DeviceOptions::default().open(), Ok(OpenDevice::Cpu { reason: None })));
    }
}
