//! Opens the compute device that the command line selects, and implements `nestling devices`.

use crate::args::{DeviceArgs, DevicesArgs};
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::explain::explain;
use crate::failure::{Failure, Result};
use crate::kernels::kernels;
use crate::places;
use crate::processes;
use nestling::cuda::{self, CudaDeviceDescription, CudaDeviceError};
use nestling::ranks::RankOptions;
use nestling::wgpu::{AdapterChoice, AdapterDescription, AdapterKind, Uploads, device, devices};
use nestling::{Device, DeviceOptions, EngineError, OpenDevice, RankDevices};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The CUDA devices, or the reason why there are none.
type CudaDevices = std::result::Result<Vec<CudaDeviceDescription>, CudaDeviceError>;

fn options(args: &DeviceArgs) -> DeviceOptions {
    DeviceOptions {
        device: args.device.clone(),
        device_budget: args.vram_budget.map(|size| size.0),
        pipeline_cache: places::shader_folder().ok(),
        ranks_per_device: Some(args.ranks_per_device),
    }
}

/// Opens the devices of several ranks that are threads: GPUs if one is named, otherwise the CPU.
pub fn open_each(args: &DeviceArgs, ranks: RankOptions, console: &Console) -> Result<RankDevices> {
    let devices = options(args).open_for_ranks(ranks);
    let devices = devices.map_err(|error| {
        explain(&error).advise(format!(
            "give {} GPUs by the index of the first, such as --device cuda:0, or omit --device",
            ranks.ranks.div_ceil(args.ranks_per_device.get())
        ))
    })?;
    warn_of_budget(args, devices.first(), console);
    Ok(devices)
}

fn warn_of_budget(args: &DeviceArgs, device: &OpenDevice, console: &Console) {
    if device.is_cpu() && args.vram_budget.is_some() {
        console.warn("--vram-budget has no effect on the CPU");
    }
}

/// Opens the compute device. It is announced only under `--verbose`; a chat shows it on its welcome screen.
pub fn open(args: &DeviceArgs, console: &Console) -> Result<OpenDevice> {
    let device = options(args).open();
    let device = device.map_err(|error| {
        let failure = explain(&error);
        let has_advice = failure.advice.is_some();
        if has_advice { failure } else { failure.advise(instead_of(&args.device)) }
    })?;
    if console.verbose > 0 {
        tell(&device, console);
    }
    warn_of_budget(args, &device, console);
    Ok(device)
}

/// Opens the device of this process, one of those that `mpirun` has started: a GPU if one is named, otherwise the CPU.
pub fn open_for_process(args: &DeviceArgs, console: &Console) -> Result<OpenDevice> {
    let device = processes::open_device(&options(args));
    let device = device.map_err(|error| match error {
        EngineError::NoDevice(_) if !matches!(args.device, Device::Auto | Device::Cpu) => {
            explain(&error).advise(
                "start as many processes on each machine as it has GPUs from that of --device on; --ranks-per-device \
                 N lets N share one, with --vram-budget",
            )
        }
        error => explain(&error),
    })?;
    warn_of_budget(args, &device, console);
    Ok(device)
}

/// Opens the device that replaces one which refused a model. Fails with the original error if no replacement
/// is allowed.
pub fn instead(
    args: &DeviceArgs,
    refusing: &OpenDevice,
    error: EngineError,
    console: &Console,
) -> Result<OpenDevice> {
    let device = options(args).instead(refusing, error).map_err(|error| {
        let failure = explain(&error);
        // A device named by the user is never replaced silently.
        let has_advice = failure.advice.is_some();
        let is_device = matches!(error, EngineError::Device(_) | EngineError::Limit { .. });
        match refusing.is_cpu() || has_advice || !is_device {
            true => failure,
            false => {
                failure.advise("use the CPU with --device cpu, or --device auto to do so unasked")
            }
        }
    })?;
    tell(&device, console);
    Ok(device)
}

/// Announces the compute device and, for a CPU fallback, the reason.
fn tell(device: &OpenDevice, console: &Console) {
    match device {
        OpenDevice::Cpu { reason: Some(reason) } => {
            console.note(format_args!("Computing on the CPU: {reason}. See `nestling devices`."));
        }
        OpenDevice::Cpu { reason: None } => {}
        gpu => console.note(format_args!("computing on {}", gpu.name())),
    }
}

/// Returns advice for an unavailable device.
fn instead_of(device: &Device) -> String {
    let others = devices();
    match device {
        Device::Cuda(_) if others.is_empty() => {
            "install NVIDIA's driver, or use the CPU with --device cpu".into()
        }
        _ => instead_of_missing(&others),
    }
}

/// Returns advice for an unavailable device, given the GPUs that were found.
fn instead_of_missing(gpus: &[AdapterDescription]) -> String {
    let cpu = "use the CPU with --device cpu";
    let usable = gpus.iter().filter(|gpu| gpu.refusal.is_none());
    match usable.min_by_key(|gpu| gpu.kind) {
        Some(gpu) if gpu.kind == AdapterKind::Software => {
            format!("{cpu}; software that stands in for a GPU is --device {}, and slow", name(gpu))
        }
        Some(gpu) => {
            format!("use {} with --device {}, or the CPU with --device cpu", gpu.name, name(gpu))
        }
        None => format!("install a driver for Vulkan, or {cpu}"),
    }
}

/// Returns the memory budget in bytes and the name of the selected GPU, without opening it. The budget is the
/// smaller one of `host` and the GPU's. Without a GPU, returns `host` and `None`.
pub fn planned(args: &DeviceArgs, host: Option<u64>) -> Result<(Option<u64>, Option<String>)> {
    let cuda = match &args.device {
        Device::Auto => cuda::device(&cuda::CudaDeviceChoice::Auto).ok(),
        Device::Cuda(choice) => {
            let found = cuda::device(choice)
                .map_err(|error| Failure::new(error.to_string()).advise(instead_of(&args.device)));
            Some(found?)
        }
        _ => None,
    };
    if let Some(gpu) = cuda {
        let own = args.vram_budget.map_or(gpu.memory_bytes, |size| size.0);
        let named = format!("{} ({})", cuda_name(&gpu), gpu.name);
        return Ok((host.into_iter().chain([own]).min(), Some(named)));
    }
    let gpu = match &args.device {
        Device::Cpu => None,
        Device::Wgpu(choice) => {
            let found = device(choice).map_err(|error| {
                Failure::new(error.to_string()).advise(instead_of_missing(&devices()))
            });
            Some(found?)
        }
        _ => device(&AdapterChoice::Auto).ok(),
    };
    let Some(gpu) = gpu else { return Ok((host, None)) };
    let own = args.vram_budget.map(|size| size.0).or(gpu.memory_bytes);
    Ok((host.into_iter().chain(own).min(), Some(format!("{} ({})", name(&gpu), gpu.name))))
}

/// `nestling devices`.
pub fn list(args: &DevicesArgs) -> Result<()> {
    let (kernels, cuda, gpus) = (kernels()?.name(), cuda::devices(), devices());
    write_out(&match args.format.is_json() {
        true => format!("{:#}\n", as_json(kernels, &cuda, &gpus)),
        false => as_text(kernels, &cuda, &gpus),
    })
}

/// Returns the value of `--device` that selects a GPU.
fn name(gpu: &AdapterDescription) -> String {
    format!("wgpu:{}", gpu.index)
}

fn cuda_name(gpu: &CudaDeviceDescription) -> String {
    format!("cuda:{}", gpu.index)
}

/// Formats the CUDA devices, or the driver's error unless the driver is simply not installed.
fn cuda_text(found: &CudaDevices) -> String {
    let gpus = match found {
        Ok(gpus) => gpus,
        Err(CudaDeviceError::NoDriver) => return String::new(),
        Err(error) => return format!("no cuda  {error}\n"),
    };
    let mut text = String::new();
    for gpu in gpus {
        let memory = ByteSize(gpu.memory_bytes);
        let _ = writeln!(text, "{:<8} {}, {memory}", cuda_name(gpu), gpu.name);
        let _ = writeln!(
            text,
            "         compute capability {}, {} multiprocessors, driver for CUDA {}",
            gpu.compute_capability, gpu.multiprocessors, gpu.driver,
        );
    }
    text
}

fn as_text(kernels: &str, cuda: &CudaDevices, gpus: &[AdapterDescription]) -> String {
    let mut text = format!("{:<8} the processor, {kernels} kernels\n", Device::Cpu.to_string());
    text += &cuda_text(cuda);
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
        if let Some(refusal) = gpu.refusal {
            let _ = writeln!(text, "         cannot be used: {refusal}");
        } else if !gpu.features.exact {
            text += "         last bits may depend on batch and chunking: its compiler may reorder sums\n";
        }
    }
    if gpus.is_empty() {
        text += "no GPU: the system has no Vulkan, Metal or Direct3D 12 driver\n";
    } else if gpus.iter().all(|gpu| gpu.kind == AdapterKind::Software) {
        text += "no GPU: the software device is slow, and only used if --device names it\n";
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
        match features.uploads {
            Uploads::Straight => "experts written straight into slots".into(),
            Uploads::Staged => "experts copied into slots".into(),
        },
        has(features.pipeline_cache, "pipeline cache"),
        has(features.timestamps, "timestamps"),
    ]
}

fn cuda_json(gpu: &CudaDeviceDescription) -> Value {
    json!({
        "device": cuda_name(gpu),
        "name": gpu.name,
        "compute_capability": [gpu.compute_capability.major, gpu.compute_capability.minor],
        "multiprocessors": gpu.multiprocessors,
        "memory_bytes": gpu.memory_bytes,
        "l2_bytes": gpu.l2_bytes,
        "driver": [gpu.driver.major, gpu.driver.minor],
    })
}

fn as_json(kernels: &str, cuda: &CudaDevices, gpus: &[AdapterDescription]) -> Value {
    let cuda: Vec<Value> = cuda.iter().flatten().map(cuda_json).collect();
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
                "straight_uploads": features.uploads == Uploads::Straight,
                "pipeline_cache": features.pipeline_cache,
                "timestamps": features.timestamps,
                "exact": features.exact,
            },
            "refusal": gpu.refusal.map(|refusal| refusal.to_string()),
        })
    });
    json!({
        "cpu": { "device": "cpu", "kernels": kernels },
        "cuda": cuda,
        "gpus": gpus.collect::<Vec<_>>(),
    })
}
