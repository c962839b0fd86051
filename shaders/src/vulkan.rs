//! What Vulkan tells of an adapter and wgpu does not pass on.
#![cfg_attr(
    any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"),
    expect(unsafe_code, reason = "Vulkan's own handles are behind unsafe functions")
)]

/// Facts about an adapter that is reached through Vulkan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VulkanFacts {
    /// Bytes of the largest heap of device memory.
    pub memory_bytes: u64,
    /// Whether the driver has instructions for products of four bytes at once.
    pub int8_dot: bool,
}

/// The facts; none for an adapter of another API.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(crate) fn facts(adapter: &wgpu::Adapter) -> Option<VulkanFacts> {
    /// Version 1.3, in which integer dot products became part of Vulkan.
    const VERSION_1_3: u32 = 1 << 22 | 3 << 12;
    /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: the handle is only asked for facts, and dropped before the adapter is.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let properties = adapter.physical_device_capabilities();
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: the physical device is of this instance, and both live as long as the guard.
    let memory =
        unsafe { instance.get_physical_device_memory_properties(adapter.raw_physical_device()) };
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
    let local = heaps.filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0);
    let int8_dot = properties.properties().api_version >= VERSION_1_3
        || properties.supports_extension(c"VK_KHR_shader_integer_dot_product");
    Some(VulkanFacts { memory_bytes: local.map(|heap| heap.size).max()?, int8_dot })
}

/// The facts; none for an adapter of another API.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(crate) fn facts(_adapter: &wgpu::Adapter) -> Option<VulkanFacts> {
    None
}
