//! Tests of device selection. The machine may have any number of adapters.

use super::{ProcessOutput, bundled, program, run};
use serde_json::Value;

fn without_drivers(arguments: &[&str]) -> ProcessOutput {
    let mut command = program();
    command.env("VK_DRIVER_FILES", "/no/such.json").env("VK_ICD_FILENAMES", "/no/such.json");
    command.args(arguments).output().unwrap().into()
}

const PROMPT: [&str; 6] = ["-p", "The ship", "-n", "4", "--temp", "0"];

fn with(device: &str) -> Vec<String> {
    let arguments = ["run", "-m", bundled(), "--device", device];
    arguments.iter().chain(&PROMPT).map(|text| (*text).to_owned()).collect()
}

#[test]
fn everything_that_can_compute_is_listed() {
    let text = run(&["devices"]).ok();
    assert!(text.starts_with("cpu "), "{text}");
    let json: Value = serde_json::from_str(&run(&["devices", "--json"]).ok()).unwrap();
    let gpus = json["gpus"].as_array().unwrap();
    for (index, gpu) in gpus.iter().enumerate() {
        let name = format!("wgpu:{index}");
        assert_eq!(gpu["device"], name.as_str());
        assert!(gpu["limits"]["storage_binding_bytes"].as_u64() > Some(0), "{gpu}");
        assert!(text.contains(&name) && text.contains(gpu["name"].as_str().unwrap()), "{text}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_gpu_the_cpu_computes_and_only_verbose_says_why() {
    let devices = without_drivers(&["devices"]).ok();
    assert!(devices.contains("no GPU"), "{devices}");
    let lines =
        |ran: &ProcessOutput| ran.err.lines().filter(|line| line.contains("on the CPU")).count();
    let arguments = with("auto");
    let auto = without_drivers(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(lines(&auto), 0, "{}", auto.err);
    let verbose: Vec<&str> = arguments.iter().map(String::as_str).chain(["-v"]).collect();
    let verbose = without_drivers(&verbose);
    assert_eq!(lines(&verbose), 1, "{}", verbose.err);
    assert!(verbose.err.contains("no GPU was found"), "{}", verbose.err);
    let arguments = with("cpu");
    let cpu = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(lines(&cpu), 0, "{}", cpu.err);
    assert_eq!(auto.ok(), cpu.ok());
}

#[test]
#[cfg(target_os = "linux")]
fn ranks_on_gpus_need_the_index_of_the_first() {
    for (device, words) in [
        ("wgpu:Radeon", "ranks use GPUs by their index, and `wgpu:Radeon` has none"),
        ("wgpu:0", "no graphics adapter"),
    ] {
        let mut arguments = with(device);
        arguments.extend(["--ranks".into(), "2".into()]);
        let ran = without_drivers(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        ran.fails(1, words, "give 2 GPUs by the index of the first");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_device_that_is_not_there_is_an_error() {
    for (device, words) in
        [("wgpu", "no graphics adapter was found"), ("wgpu:3", "no graphics adapter")]
    {
        let arguments = with(device);
        let ran = without_drivers(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        ran.fails(1, words, "--device cpu");
    }
    let bench = without_drivers(&["bench", "-m", bundled(), "--no-bandwidth", "--device", "wgpu"]);
    bench.fails(1, "no graphics adapter was found", "--device cpu");
}

/// A machine with CUDA devices has no 99th one, and a machine without them reports the reason.
#[test]
fn a_cuda_device_that_is_not_there_is_an_error() {
    let arguments = with("cuda:99");
    let ran = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    ran.fails(1, "CUDA", "--device cpu");
}

#[test]
fn devices_that_are_not_known() {
    let arguments = with("gpu");
    let ran = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("the devices are auto, cpu, cuda, wgpu"), "{}", ran.err);
}
