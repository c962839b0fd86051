//! Properties that Vulkan reports and wgpu does not expose.
#![cfg_attr(
    any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"),
    expect(unsafe_code, reason = "Vulkan's own handles are behind unsafe functions")
)]

/// Properties of an adapter accessed through Vulkan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VulkanFacts {
    /// Size in bytes of the largest heap of device memory.
    pub memory_bytes: u64,
    /// True if the driver has instructions for four-byte dot products.
    pub int8_dot: bool,
}

/// Returns the properties, or `None` for an adapter of another API.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(crate) fn facts(adapter: &wgpu::Adapter) -> Option<VulkanFacts> {
    /// Version 1.3, the first with integer dot products in core Vulkan.
    const VERSION_1_3: u32 = 1 << 22 | 3 << 12;
    /// Value of `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: the handle is only used for queries, and dropped before the adapter.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let properties = adapter.physical_device_capabilities();
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance, and the guard keeps both alive.
    let memory =
        unsafe { instance.get_physical_device_memory_properties(adapter.raw_physical_device()) };
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
    let local = heaps.filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0);
    let int8_dot = properties.properties().api_version >= VERSION_1_3
        || properties.supports_extension(c"VK_KHR_shader_integer_dot_product");
    Some(VulkanFacts { memory_bytes: local.map(|heap| heap.size).max()?, int8_dot })
}

/// Returns `None`, because this platform has no Vulkan.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(crate) fn facts(_adapter: &wgpu::Adapter) -> Option<VulkanFacts> {
    None
}
