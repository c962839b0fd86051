//! Memory of systems without `/proc/meminfo`: macOS, iOS, Windows and FreeBSD.

use super::machine::Machine;
use sysinfo::{MemoryRefreshKind, System};

/// Returns the memory that the system reports, or `None` if the call fails.
pub(super) fn read() -> Option<Machine> {
    let mut system = System::new().ok()?;
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let machine =
        Machine::unused(system.total_memory(), system.available_memory(), system.used_memory())?;
    #[cfg(target_os = "ios")]
    let machine = machine.within_process(super::process::available());
    Some(machine)
}
