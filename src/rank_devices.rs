//! Devices of a model over ranks.

use std::num::NonZero;
use std::sync::Arc;

use nestling_core::group::{Group, RankShare};
use nestling_core::{CancelToken, EngineError};
use nestling_cpu::Cpu;
use nestling_ranks::{RankOptions, agree_on_devices, open_on_processes, open_on_threads};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use nestling_ranks::{open_on_backends, open_process_on};
use nestling_runtime::{Engine, Model, ModelOptions, ModelSource, OpenProgress};

use crate::device::{Device, DeviceOptions, OpenDevice, WithBackend};

/// Devices of a model over ranks that are threads: GPUs, or the CPU for all ranks.
pub struct RankDevices {
    /// The CPU alone, or as many GPUs of one kind as the ranks need.
    devices: Vec<OpenDevice>,
    ranks: RankOptions,
    /// Number of ranks that share a GPU.
    ranks_per_device: usize,
}

impl DeviceOptions {
    /// Opens the devices of several ranks: the GPU of [`DeviceOptions::device`] and those after it in the list of
    /// devices, or the CPU. [`DeviceOptions::device_budget`] is that of each GPU. [`Device::Auto`] is the CPU.
    /// [`DeviceOptions::ranks_per_device`] ranks in a row share a GPU and its budget.
    ///
    /// ```
    /// use nestling::ranks::RankOptions;
    /// use nestling::{Device, DeviceOptions};
    ///
    /// let options = DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() };
    /// assert!(options.open_for_ranks(RankOptions::new(4))?.first().is_cpu());
    /// # Ok::<(), nestling::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`DeviceOptions::open`] does. Also fails with [`EngineError::NoDevice`] if the first GPU is named by
    /// something else than its index; `cuda` alone is the first GPU.
    pub fn open_for_ranks(&self, ranks: RankOptions) -> Result<RankDevices, EngineError> {
        let ranks_per_device = self.sharing();
        let devices = match &self.device {
            Device::Auto | Device::Cpu => vec![OpenDevice::Cpu { reason: None }],
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            device => {
                let nth = |at| Self { device: nth(device, at)?, ..self.clone() }.open();
                (0..ranks.ranks.div_ceil(ranks_per_device)).map(nth).collect::<Result<_, _>>()?
            }
        };
        Ok(RankDevices { devices, ranks, ranks_per_device })
    }

    /// Opens the device of one of several processes. `local` is its place among the processes of its machine: the first
    /// takes the GPU of [`DeviceOptions::device`], and the others those after it, as [`DeviceOptions::open_for_ranks`]
    /// says. All processes of `group` call it, and all get an error if one does.
    ///
    /// # Errors
    /// Fails with [`EngineError::NoDevice`] if a machine has fewer GPUs than its processes need, or if processes share a
    /// GPU and [`DeviceOptions::device_budget`], which they divide, is not given. Otherwise fails as
    /// [`DeviceOptions::open_for_ranks`] and [`agree_on_devices`] do.
    pub fn open_for_process(
        &self,
        local: RankShare,
        group: &dyn Group,
    ) -> Result<OpenDevice, EngineError> {
        agree_on_devices(group, self.of_process(local), |device| device.kind().to_owned())
    }

    #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
    fn of_process(&self, _local: RankShare) -> Result<OpenDevice, EngineError> {
        Ok(OpenDevice::Cpu { reason: None })
    }

    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    fn of_process(&self, local: RankShare) -> Result<OpenDevice, EngineError> {
        let device = match &self.device {
            Device::Auto | Device::Cpu => return Ok(OpenDevice::Cpu { reason: None }),
            device => device,
        };
        let sharing = self.sharing();
        let device_budget = match (sharing, self.device_budget) {
            (1, budget) => budget,
            (_, Some(budget)) => Some(budget / sharing as u64),
            (_, None) => {
                let reason =
                    "processes that share a GPU divide its memory budget, which is not given";
                return Err(EngineError::NoDevice(reason.into()));
            }
        };
        let device = nth(device, local.rank / sharing)?;
        let opened = Self { device, device_budget, ..self.clone() }.open();
        opened.map_err(|error| missing_for(local, error))
    }

    /// Returns the number of ranks that share a GPU.
    fn sharing(&self) -> usize {
        // Default: each rank has a GPU of its own.
        self.ranks_per_device.map_or(1, NonZero::get)
    }
}

/// Adds to an error about a missing device which process needs it.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn missing_for(local: RankShare, error: EngineError) -> EngineError {
    let EngineError::NoDevice(reason) = error else { return error };
    let RankShare { rank, ranks } = local;
    let who = format!("process {rank} of the {ranks} on this machine has no GPU");
    EngineError::NoDevice(format!("{who}: {reason}").into())
}

/// Returns the device that is `rank` places after another in the list of devices.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn nth(device: &Device, rank: usize) -> Result<Device, EngineError> {
    #[cfg(feature = "cuda")]
    use nestling_cuda::CudaDeviceChoice;
    #[cfg(feature = "wgpu")]
    use nestling_wgpu::AdapterChoice;
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(CudaDeviceChoice::Auto) => Ok(Device::Cuda(CudaDeviceChoice::Index(rank))),
        #[cfg(feature = "cuda")]
        Device::Cuda(CudaDeviceChoice::Index(first)) => {
            Ok(Device::Cuda(CudaDeviceChoice::Index(first.saturating_add(rank))))
        }
        #[cfg(feature = "wgpu")]
        Device::Wgpu(AdapterChoice::Index(first)) => {
            Ok(Device::Wgpu(AdapterChoice::Index(first.saturating_add(rank))))
        }
        other => {
            let reason = format!("ranks use GPUs by their index, and `{other}` has none");
            Err(EngineError::NoDevice(reason.into()))
        }
    }
}

impl RankDevices {
    /// Returns the device of rank 0.
    pub fn first(&self) -> &OpenDevice {
        // One device for all ranks, or one for each of at least one rank.
        &self.devices[0]
    }

    /// Returns the devices, each once.
    pub fn all(&self) -> &[OpenDevice] {
        &self.devices
    }

    /// Returns other backends of the same devices.
    ///
    /// # Errors
    /// Returns an error if a device is out of memory.
    pub fn again(&self) -> Result<Self, EngineError> {
        let devices = self.devices.iter().map(OpenDevice::again).collect::<Result<_, _>>()?;
        let Self { ranks, ranks_per_device, .. } = *self;
        Ok(Self { devices, ranks, ranks_per_device })
    }

    /// Returns another backend of a rank's device.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub fn of_rank(&self, rank: usize) -> Result<OpenDevice, EngineError> {
        // Default: the CPU is one device for all ranks.
        self.devices.get(rank / self.ranks_per_device).unwrap_or_else(|| self.first()).again()
    }

    /// Returns the memory budget of an engine for models on these devices: `host`, limited by the memory of all GPUs
    /// together.
    pub fn memory_budget(&self, host: Option<u64>) -> Option<u64> {
        if self.first().is_cpu() {
            return host;
        }
        let each = self.devices.iter().map(|device| device.memory_budget(None));
        let all = each.sum::<Option<u64>>();
        host.into_iter().chain(all).min()
    }

    /// Lets models opened later cache experts in host memory, as [`OpenDevice::keep_in_host`] does; each rank has a share.
    pub fn keep_in_host(&self, host: Option<u64>) {
        let share = host.map(|host| host / self.devices.len() as u64);
        self.devices.iter().for_each(|device| device.keep_in_host(share));
    }

    /// Opens a model over the ranks. Its outputs have the bits of one rank on such a device. A rank that is lost later is
    /// replaced on the same device.
    ///
    /// # Errors
    /// Fails as [`open_on_threads`] does, or with an error of a device.
    pub fn open_model(
        &self,
        engine: &Engine,
        source: ModelSource,
        options: &ModelOptions,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> Result<Model, EngineError> {
        match self.first() {
            OpenDevice::Cpu { .. } => {
                open_on_threads(engine, source, options, self.ranks, progress, cancel)
            }
            #[cfg(feature = "cuda")]
            OpenDevice::Cuda(_) => {
                let again = |device: &OpenDevice| match device {
                    OpenDevice::Cuda(gpu) => Ok(gpu.again()?),
                    other => Err(mixed(self.first(), other)),
                };
                // Held by the model, which opens the GPU of a lost rank again.
                let gpus =
                    self.devices.iter().map(again).collect::<Result<Vec<_>, EngineError>>()?;
                let sharing = self.ranks_per_device;
                let of_rank = move |group: &Arc<dyn Group>| {
                    let gpu = gpus[group.share().rank / sharing].again()?;
                    Ok(nestling_cuda::rank_of(gpu, Arc::clone(group))?)
                };
                open_on_backends(of_rank, engine, source, options, self.ranks, progress, cancel)
            }
            #[cfg(feature = "wgpu")]
            OpenDevice::Wgpu(_) => {
                let again = |device: &OpenDevice| match device {
                    OpenDevice::Wgpu(gpu) => Ok(gpu.again()?),
                    other => Err(mixed(self.first(), other)),
                };
                // Held by the model, which opens the GPU of a lost rank again.
                let gpus =
                    self.devices.iter().map(again).collect::<Result<Vec<_>, EngineError>>()?;
                let sharing = self.ranks_per_device;
                let of_rank = move |group: &Arc<dyn Group>| {
                    let gpu = gpus[group.share().rank / sharing].again()?;
                    Ok(nestling_wgpu::in_group(gpu, Arc::clone(group)))
                };
                open_on_backends(of_rank, engine, source, options, self.ranks, progress, cancel)
            }
        }
    }
}

impl OpenDevice {
    /// Runs `user` with the device's backend as [`OpenDevice::give`] does, connected to a group as the rank that
    /// `group` is.
    pub fn give_rank<U: WithBackend>(
        &self,
        group: &Arc<dyn Group>,
        mut cpu: impl FnMut() -> Cpu,
        user: U,
    ) -> U::Output {
        match self {
            Self::Cpu { .. } => user.with(|| Ok(cpu().in_group(Arc::clone(group)))),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => {
                user.with(|| Ok(nestling_cuda::rank_of(gpu.again()?, Arc::clone(group))?))
            }
            #[cfg(feature = "wgpu")]
            Self::Wgpu(gpu) => {
                user.with(|| Ok(nestling_wgpu::in_group(gpu.again()?, Arc::clone(group))))
            }
        }
    }

    /// Opens this process's share of a model that all processes of a group hold, on the device that
    /// [`DeviceOptions::open_for_process`] returned. Returns the model on rank 0. On other ranks, returns `None` once
    /// rank 0 has closed it.
    ///
    /// # Errors
    /// Fails as [`open_on_processes`] does, or with an error of the device.
    pub fn open_process(
        &self,
        engine: &Engine,
        source: ModelSource,
        options: &ModelOptions,
        group: Arc<dyn Group>,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> Result<Option<Model>, EngineError> {
        match self {
            Self::Cpu { .. } => open_on_processes(engine, source, options, group, progress, cancel),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => {
                let of_rank = |group: &Arc<dyn Group>| {
                    Ok(nestling_cuda::rank_of(gpu.again()?, Arc::clone(group))?)
                };
                open_process_on(of_rank, engine, source, options, group, progress, cancel)
            }
            #[cfg(feature = "wgpu")]
            Self::Wgpu(gpu) => {
                let of_rank = |group: &Arc<dyn Group>| {
                    Ok(nestling_wgpu::in_group(gpu.again()?, Arc::clone(group)))
                };
                open_process_on(of_rank, engine, source, options, group, progress, cancel)
            }
        }
    }
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn mixed(first: &OpenDevice, other: &OpenDevice) -> EngineError {
    EngineError::mismatch("device of a rank", first.name(), other.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    fn of_ranks(device: &str, ranks: usize) -> Result<Vec<String>, EngineError> {
        let first: Device = device.parse().unwrap();
        (0..ranks).map(|rank| nth(&first, rank).map(|device| device.to_string())).collect()
    }

    #[test]
    #[cfg(all(feature = "cuda", feature = "wgpu"))]
    fn ranks_take_the_devices_that_follow() {
        assert_eq!(of_ranks("cuda", 2).unwrap(), ["cuda:0", "cuda:1"]);
        assert_eq!(of_ranks("cuda:2", 3).unwrap(), ["cuda:2", "cuda:3", "cuda:4"]);
        assert_eq!(of_ranks("wgpu:1", 2).unwrap(), ["wgpu:1", "wgpu:2"]);
        for unnumbered in ["cuda:H100", "wgpu", "wgpu:Radeon"] {
            let error = of_ranks(unnumbered, 2).unwrap_err();
            assert!(matches!(error, EngineError::NoDevice(_)), "{error:?}");
            assert!(error.to_string().contains(unnumbered), "{error}");
        }
    }

    #[test]
    fn the_cpu_is_one_device_for_all_ranks() {
        let options = DeviceOptions { device: Device::Auto, ..DeviceOptions::default() };
        let devices = options.open_for_ranks(RankOptions::new(3)).unwrap();
        assert!(devices.first().is_cpu());
        assert_eq!(devices.memory_budget(Some(7)), Some(7));
        assert!(devices.of_rank(2).unwrap().is_cpu());
    }

    /// Opens the device of a process that is alone in its group.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    fn of_process(options: &DeviceOptions, rank: usize) -> EngineError {
        let mut group =
            nestling_ranks::QueueGroup::of_threads(1, std::time::Duration::from_secs(10));
        let local = RankShare { rank, ranks: 128 };
        options.open_for_process(local, &group.remove(0)).err().unwrap()
    }

    #[test]
    #[cfg(feature = "wgpu")]
    fn a_process_without_a_gpu_of_its_own_says_so() {
        let device: Device = "wgpu:0".parse().unwrap();
        let options = DeviceOptions { device, ..DeviceOptions::default() };
        let error = of_process(&options, 99);
        assert!(matches!(error, EngineError::NoDevice(_)), "{error:?}");
        assert!(error.to_string().contains("process 99 of the 128 on this machine"), "{error}");
        let ranks_per_device = NonZero::new(2);
        let error = of_process(&DeviceOptions { ranks_per_device, ..options }, 0);
        assert!(error.to_string().contains("memory budget, which is not given"), "{error}");
    }
}
