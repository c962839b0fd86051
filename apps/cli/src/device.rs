//! What computes: opened as the command line says, and `nestling devices`.

use crate::args::{DeviceArgs, DevicesArgs};
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::explain::explain;
use crate::failure::Result;
use crate::places;
use nestling::engine::cpu::kernels::Kernels;
use nestling::wgpu::{AdapterDescription, AdapterKind, devices};
use nestling::{Device, DeviceOptions, OpenDevice};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Opens what computes, and says so where it is not what one would hope for.
pub fn open(args: &DeviceArgs, console: &Console) -> Result<OpenDevice> {
    let options = DeviceOptions {
        device: args.device.clone(),
        vram_budget: args.vram_budget.map(|size| size.0),
        pipeline_cache: places::shader_folder().ok(),
    };
    let device = options.open().map_err(|error| {
        explain(&error).advise("see `nestling devices`, or use the CPU with --device cpu")
    })?;
    if let OpenDevice::Cpu { reason } = &device {
        if let Some(reason) = reason {
            console.note(format_args!("computing on the CPU: {reason}"));
        }
        if args.vram_budget.is_some() {
            console.note("--vram-budget has no effect on the CPU");
        }
    }
    Ok(device)
}

/// `nestling devices`.
pub fn list(args: &DevicesArgs) -> Result<()> {
    let (kernels, gpus) = (Kernels::detect().name(), devices());
    write_out(&match args.format.is_json() {
        true => format!("{:#}\n", as_json(kernels, &gpus)),
        false => as_text(kernels, &gpus),
    })
}

/// What `--device` calls it.
fn name(gpu: &AdapterDescription) -> String {
    format!("wgpu:{}", gpu.index)
}

fn as_text(kernels: &str, gpus: &[AdapterDescription]) -> String {
    let mut text = format!("{:<8} the processor, {kernels} kernels\n", Device::Cpu.to_string());
    for gpu in gpus {
        let memory = gpu.memory_bytes.map_or(String::new(), |bytes| {
            let whose = if gpu.kind == AdapterKind::Discrete { "" } else { " of shared memory" };
            format!(", {}{whose}", ByteSize(bytes))
        });
        let _ = writeln!(text, "{:<8} {}, {}{memory}", name(gpu), gpu.name, gpu.kind);
        let _ = writeln!(text, "         {}, driver {}", gpu.api, gpu.driver);
        let limits = &gpu.limits;
        let _ = writeln!(
            text,
            "         largest binding {}, largest buffer {}, {} shared by a workgroup",
            ByteSize(limits.storage_binding_bytes),
            ByteSize(limits.buffer_bytes),
            ByteSize(limits.workgroup_storage_bytes.into()),
        );
        let _ = writeln!(text, "         {}", features(gpu).join(", "));
    }
    if gpus.is_empty() {
        text += "no GPU: the system has no Vulkan, Metal or Direct3D 12 driver\n";
    } else if gpus.iter().all(|gpu| gpu.kind == AdapterKind::Software) {
        text += "no GPU: software is used only where --device names it\n";
    }
    text
}

fn features(gpu: &AdapterDescription) -> Vec<String> {
    let features = &gpu.features;
    let has = |there: bool, name: &str| format!("{}{name}", if there { "" } else { "no " });
    vec![
        has(features.int8_dot, "int8 dot products"),
        has(features.f16, "f16"),
        match features.subgroup_sizes {
            Some((least, most)) if least == most => format!("subgroups of {least}"),
            Some((least, most)) => format!("subgroups of {least} to {most}"),
            None => "no subgroups".into(),
        },
        has(features.mappable_buffers, "mappable buffers"),
        has(features.pipeline_cache, "pipeline cache"),
        has(features.timestamps, "timestamps"),
    ]
}

fn as_json(kernels: &str, gpus: &[AdapterDescription]) -> Value {
    let gpus = gpus.iter().map(|gpu| {
        let (limits, features) = (&gpu.limits, &gpu.features);
        json!({
            "device": name(gpu),
            "name": gpu.name,
            "kind": gpu.kind.to_string(),
            "api": gpu.api,
            "driver": gpu.driver,
            "memory_bytes": gpu.memory_bytes,
            "limits": {
                "storage_binding_bytes": limits.storage_binding_bytes,
                "buffer_bytes": limits.buffer_bytes,
                "workgroup_storage_bytes": limits.workgroup_storage_bytes,
                "workgroup_invocations": limits.workgroup_invocations,
                "storage_buffers": limits.storage_buffers,
            },
            "features": {
                "int8_dot": features.int8_dot,
                "f16": features.f16,
                "subgroup_sizes": features.subgroup_sizes,
                "mappable_buffers": features.mappable_buffers,
                "pipeline_cache": features.pipeline_cache,
                "timestamps": features.timestamps,
            },
        })
    });
    json!({
        "cpu": { "device": "cpu", "kernels": kernels },
        "gpus": gpus.collect::<Vec<_>>(),
    })
}
