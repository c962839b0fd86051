//! Properties implied by an adapter's graphics API.
//!
//! Direct3D 12 shaders are compiled by `dxcompiler.dll`. The system's loader searches for it beside the
//! program, in the system folders, in the working folder, and on PATH. wgpu lists no Direct3D 12 adapters if
//! the library cannot be loaded. Windows otherwise always has at least a software adapter.

use wgpu::{Backend, Backends};

/// Returns whether Direct3D 12 adapters are missing because the compiler is unavailable. This is the case if
/// the API is built in and none of the `shown` adapters uses it.
pub(super) fn lacks_compiler(built_for: Backends, shown: &[Backend]) -> bool {
    built_for.contains(Backends::DX12) && !shown.contains(&Backend::Dx12)
}

/// Returns whether four-byte dot products are native instructions. `vulkan` is the value reported by Vulkan.
/// Direct3D 12 has the instructions from shader model 6.4; for older models, naga emulates them with the same
/// results. Metal has none.
pub(super) fn has_int8_dot(api: Backend, vulkan: Option<bool>) -> bool {
    match api {
        Backend::Dx12 => true,
        _ => vulkan == Some(true),
    }
}

/// Returns whether sums are known to keep their source order after compilation. WGSL does not guarantee it.
/// wgpu uses Metal's default, fast math, which also assumes that NaN and infinity never occur. For Direct3D
/// it requests strict syntax but not strict arithmetic; neither setting can be changed through wgpu. Vulkan
/// shaders carry no such permission, and the software drivers used by tests keep the order.
pub(super) fn is_exact(api: Backend) -> bool {
    api == Backend::Vulkan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct3d_without_adapters_lacks_its_compiler() {
        let windows = Backends::VULKAN | Backends::DX12;
        assert!(lacks_compiler(windows, &[]));
        assert!(lacks_compiler(windows, &[Backend::Vulkan]));
        assert!(!lacks_compiler(windows, &[Backend::Vulkan, Backend::Dx12]));
        // Other systems have no Direct3D.
        assert!(!lacks_compiler(Backends::VULKAN, &[]));
        assert!(!lacks_compiler(Backends::METAL, &[Backend::Metal]));
    }

    #[test]
    fn only_vulkan_is_exact() {
        assert!(is_exact(Backend::Vulkan));
        assert!(!is_exact(Backend::Metal) && !is_exact(Backend::Dx12));
    }

    #[test]
    fn byte_products_are_known_of_vulkan_and_direct3d() {
        assert!(has_int8_dot(Backend::Dx12, None));
        assert!(has_int8_dot(Backend::Vulkan, Some(true)));
        assert!(!has_int8_dot(Backend::Vulkan, Some(false)));
        assert!(!has_int8_dot(Backend::Metal, None));
    }
}
