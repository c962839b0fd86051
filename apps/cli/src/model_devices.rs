//! Devices of a model: one, or those of several ranks.

use crate::args::{DeviceArgs, RanksArg};
use crate::console::Console;
use crate::device;
use crate::failure::Result;
use crate::processes;
use nestling::engine::{Engine, EngineError, Model, ModelOptions, ModelSource, OpenProgress};
use nestling::ranks::RankOptions;
use nestling::{CancelToken, OpenDevice, RankDevices};

/// Devices that a model is opened on.
pub enum ModelDevices {
    /// One device.
    One(OpenDevice),
    /// Devices of ranks that are threads.
    Ranks(RankDevices),
    /// The device of this process under MPI.
    Processes(OpenDevice),
}

impl ModelDevices {
    /// Opens the devices that the command line selects.
    pub fn open(args: &DeviceArgs, ranks: RanksArg, console: &Console) -> Result<Self> {
        match ranks {
            RanksArg::One => device::open(args, console).map(Self::One),
            RanksArg::Threads(ranks) => {
                device::open_each(args, RankOptions::new(ranks), console).map(Self::Ranks)
            }
            RanksArg::Mpi => device::open_for_process(args, console).map(Self::Processes),
        }
    }

    /// Returns the device of rank 0.
    pub fn first(&self) -> &OpenDevice {
        match self {
            Self::One(device) | Self::Processes(device) => device,
            Self::Ranks(devices) => devices.first(),
        }
    }

    /// Returns true if the model is computed on the CPU.
    pub fn is_cpu(&self) -> bool {
        self.first().is_cpu()
    }

    /// Returns the memory budget of an engine for models on these devices.
    pub fn memory_budget(&self, host: Option<u64>) -> Option<u64> {
        match self {
            Self::One(device) | Self::Processes(device) => device.memory_budget(host),
            Self::Ranks(devices) => devices.memory_budget(host),
        }
    }

    /// Lets models opened later cache experts in host memory.
    pub fn keep_in_host(&self, host: Option<u64>) {
        match self {
            Self::One(device) | Self::Processes(device) => device.keep_in_host(host),
            Self::Ranks(devices) => devices.keep_in_host(host),
        }
    }

    /// Opens a model.
    pub fn open_model(
        &self,
        engine: &Engine,
        source: ModelSource,
        options: &ModelOptions,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> std::result::Result<Model, EngineError> {
        match self {
            Self::One(device) => device.open_model(engine, source, options, progress, cancel),
            Self::Ranks(devices) => devices.open_model(engine, source, options, progress, cancel),
            Self::Processes(device) => {
                processes::open(device, engine, source, options, progress, cancel)
            }
        }
    }

    /// Replaces a device that refused a model, if that is allowed.
    pub fn instead(self, args: &DeviceArgs, error: EngineError, console: &Console) -> Result<Self> {
        device::instead(args, self.first(), error, console).map(Self::One)
    }
}
