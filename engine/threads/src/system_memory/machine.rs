//! Memory of the machine, before limits of control groups.

/// Total and available memory of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    pub total_bytes: u64,
    pub available_bytes: u64,
}

#[cfg(any(test, windows, target_os = "macos", target_os = "ios", target_os = "freebsd"))]
impl Machine {
    /// Limits the available memory to the memory that no program uses. macOS counts active pages of other
    /// programs as available. Returns `None` for a total or a result of 0, by which systems report failure.
    pub fn unused(total_bytes: u64, available_bytes: u64, used_bytes: u64) -> Option<Self> {
        let available_bytes = available_bytes.min(total_bytes.saturating_sub(used_bytes));
        (available_bytes > 0).then_some(Self { total_bytes, available_bytes })
    }

    /// Limits the available memory to the bytes that this process may still allocate. 0 means that the system
    /// does not limit the process.
    #[cfg(any(test, target_os = "ios"))]
    pub fn within_process(self, process_bytes: u64) -> Self {
        let process_bytes = if process_bytes == 0 { u64::MAX } else { process_bytes };
        Self { available_bytes: self.available_bytes.min(process_bytes), ..self }
    }
}
