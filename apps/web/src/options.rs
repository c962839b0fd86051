//! Options of a tab.

use nestling::{ModelOptions, Residence};
use serde::Deserialize;

/// Options of a tab.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TabOptions {
    /// Highest level to fetch, in bits. `None` means the whole store.
    pub level: Option<u8>,
    /// Budget in bytes for weights, KV cache and scratch memory. `None` means no limit.
    pub memory_budget: Option<u64>,
    /// Maximum number of tokens of a conversation. `None` means the model's.
    pub context_length: Option<usize>,
    /// True to stream experts from the device also if all of them fit the budget, which can then be halved.
    pub streamed: bool,
    /// Device that [`crate::tab::Tab::open_device`] opens.
    pub device: DeviceChoice,
}

impl TabOptions {
    /// Returns the options of the model.
    pub(crate) fn model_options(&self) -> ModelOptions {
        let residence = if self.streamed { Residence::Streamed } else { Residence::Auto };
        let context_length = self.context_length;
        ModelOptions { context_length, residence, ..ModelOptions::default() }
    }
}

/// Choice of the device that computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeviceChoice {
    /// A GPU that is no software emulation, or the CPU for a model or a browser without one.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The browser's adapter, of any kind.
    Gpu,
}
