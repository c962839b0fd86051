//! Devices of a model over ranks.

use nestling_core::{CancelToken, EngineError};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use nestling_ranks::open_on_backends;
use nestling_ranks::{RankOptions, open_on_threads};
use nestling_runtime::{Engine, Model, ModelOptions, ModelSource, OpenProgress};

use crate::device::{Device, DeviceOptions, OpenDevice};

/// Devices of a model over ranks that are threads: a GPU for each rank, or the CPU for all.
pub struct RankDevices {
    /// The CPU alone, or as many GPUs of one kind as there are ranks.
    devices: Vec<OpenDevice>,
    ranks: RankOptions,
}

impl DeviceOptions {
    /// Opens the devices of several ranks: the GPU of [`DeviceOptions::device`] and those after it in the list of
    /// devices, or the CPU. [`DeviceOptions::device_budget`] is that of each GPU. [`Device::Auto`] is the CPU.
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
        let devices = match &self.device {
            Device::Auto | Device::Cpu => vec![OpenDevice::Cpu { reason: None }],
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            device => {
                let nth = |rank| Self { device: nth(device, rank)?, ..self.clone() }.open();
                (0..ranks.ranks).map(nth).collect::<Result<_, _>>()?
            }
        };
        Ok(RankDevices { devices, ranks })
    }
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
                let of_rank = move |group: &GroupRef| {
                    let gpu = gpus[group.share().rank].again()?;
                    Ok(nestling_cuda::in_group(gpu, group.clone()))
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
                let of_rank = move |group: &GroupRef| {
                    let gpu = gpus[group.share().rank].again()?;
                    Ok(nestling_wgpu::in_group(gpu, group.clone()))
                };
                open_on_backends(of_rank, engine, source, options, self.ranks, progress, cancel)
            }
        }
    }
}

/// A rank's connection to the others.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
type GroupRef = std::sync::Arc<dyn nestling_core::group::Group>;

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
    }
}
