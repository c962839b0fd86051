//! What follows from the graphics API that an adapter is reached through.
//!
//! Direct3D 12's shaders are compiled by `dxcompiler.dll`, which the system's loader searches for by its name:
//! beside the program, in the system's folders, in the working folder, and on PATH. wgpu shows no adapter of
//! Direct3D 12 where it is not found or cannot be loaded, and Windows always has one otherwise, if only in
//! software.

use wgpu::{Backend, Backends};

/// Whether adapters of Direct3D 12 are missing for want of the compiler: it is among the APIs that this is built
/// for, and nothing `shown` is reached through it.
pub(super) fn lacks_compiler(built_for: Backends, shown: &[Backend]) -> bool {
    built_for.contains(Backends::DX12) && !shown.contains(&Backend::Dx12)
}

/// Whether products of four bytes at once are instructions, where `vulkan` is what Vulkan says of them.
/// Direct3D 12 has them from shader model 6.4 on, and the translation emulates them below, to the same
/// results. Metal has none.
pub(super) fn has_int8_dot(api: Backend, vulkan: Option<bool>) -> bool {
    match api {
        Backend::Dx12 => true,
        _ => vulkan == Some(true),
    }
}

/// Whether sums are known to be compiled in the order that they are written in. WGSL promises it nowhere. wgpu
/// leaves Metal at its default, fast math, which also takes NaN and infinity never to occur, and asks
/// Direct3D's compiler for strict syntax but not for strict arithmetic; neither can be told otherwise through it.
/// What Vulkan's compilers get says nothing of either, and the software ones that tests run on keep the order.
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
        // Elsewhere there is no Direct3D to miss.
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
