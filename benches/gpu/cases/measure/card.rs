//! Properties of the card as reported by drivers.

use std::error::Error;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use nestling_wgpu::AdapterError;
use serde_json::{Map, Value, json};

use super::device::{name, tell};

/// Records the properties reported by the CUDA driver, or by Vulkan.
pub fn describe() -> Result<(), Box<dyn Error>> {
    let card = match name().as_str() {
        "emulated" => json!({ "name": "emulated CUDA device" }),
        "vulkan" => match adapters() {
            found if found.is_empty() => return Err(AdapterError::NoneFound.into()),
            found => json!({ "adapters": found }),
        },
        _ => cuda()?,
    };
    tell(&json!({ "card": card }));
    Ok(())
}

/// Numeric properties of the card, with their names in the record.
const NUMBERS: &[(&str, Attribute)] = &[
    ("multiprocessors", Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    ("clock_khz", Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
    ("memory_clock_khz", Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
    ("memory_bus_bits", Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
    ("l2_bytes", Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
    (
        "shared_bytes_per_multiprocessor",
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
    ),
    (
        "registers_per_multiprocessor",
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
    ),
    ("threads_per_multiprocessor", Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
    ("blocks_per_multiprocessor", Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR),
    ("ecc", Attribute::CU_DEVICE_ATTRIBUTE_ECC_ENABLED),
    ("watchdog", Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT),
    ("integrated", Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
    ("copy_engines", Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
];

fn cuda() -> Result<Value, Box<dyn Error>> {
    // The error describes why there is no device.
    let found = nestling_cuda::device(&nestling_cuda::CudaDeviceChoice::default())?;
    let context = CudaContext::new(found.index)?;
    let mut card = Map::new();
    let mut tell = |key: &str, value: Value| card.insert(key.into(), value);
    let (free, total) = context.mem_get_info()?;
    tell("name", found.name.into());
    tell("compute_capability", found.compute_capability.to_string().into());
    tell("cuda_of_driver", found.driver.to_string().into());
    tell("memory_bytes", total.into());
    tell("free_memory_bytes", free.into());
    tell("bandwidth_by_clock", found.memory_bandwidth.into());
    tell("devices", nestling_cuda::devices()?.len().into());
    for (name, attribute) in NUMBERS {
        // Older drivers may not support all attributes.
        tell(name, context.attribute(*attribute).ok().into());
    }
    Ok(Value::Object(card))
}

fn adapters() -> Vec<Value> {
    let adapters = nestling_wgpu::devices().into_iter().map(|adapter| {
        json!({
            "name": adapter.name,
            "kind": adapter.kind.to_string(),
            "api": adapter.api,
            "driver": adapter.driver,
            "memory_bytes": adapter.memory_bytes,
            "int8_dot": adapter.features.int8_dot,
            "f16": adapter.features.f16,
            "subgroup_sizes": adapter.features.subgroup_sizes,
            "timestamps": adapter.features.timestamps,
            "storage_binding_bytes": adapter.limits.storage_binding_bytes,
        })
    });
    adapters.collect()
}
