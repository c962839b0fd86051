//! Plan of the kit's steps, in order of priority, with their time budgets.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One step: one process, or several in sequence within one budget.
#[derive(Clone, Debug)]
pub struct Step {
    pub name: String,
    pub action: Action,
    /// Program and arguments.
    pub program: Vec<String>,
    pub env: Vec<(String, String)>,
    pub budget: Duration,
    /// Key of the object that contains the results, or `None` for the top level.
    pub under: Option<&'static str>,
    /// Missing requirement of the step, which is then skipped.
    pub lacks: Option<String>,
}

/// Interpretation of a process's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Cases of Rust's test harness, stored under this name in the record's cases.
    Cases(&'static str),
    /// Lines of JSON in a file, merged into the record.
    Measure,
    /// A table of `nvidia-smi`, stored under this name.
    Table(&'static str),
    /// Cases under a tool of compute-sanitizer.
    Sanitize(&'static str),
    /// Tables printed by Nsight Compute.
    Profile,
}

/// Properties of the machine that the plan depends on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Program with all cases and measurements.
    pub cases: PathBuf,
    /// True for a dry run: emulated device, software Vulkan, small shapes, few cases.
    pub is_dry: bool,
    /// Reason why there is no CUDA device.
    pub lacks_cuda: Option<String>,
    /// Vulkan drivers in the loader's format, or the reason why there are none.
    pub vulkan: Result<String, String>,
}

impl Machine {
    pub fn detect(cases: PathBuf, is_dry: bool) -> Self {
        let shown = ["/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg"];
        let has_cuda = is_dry || shown.iter().any(|path| Path::new(path).exists());
        let lacks_cuda = (!has_cuda).then(|| "there is no NVIDIA driver".to_owned());
        let vulkan = vulkan_drivers(is_dry).map(|drivers| match (&lacks_cuda, is_dry) {
            (None, false) => of_nvidia(drivers),
            _ => drivers.join(":"),
        });
        Self { cases, is_dry, lacks_cuda, vulkan }
    }
}

/// Returns the description files of Vulkan drivers: only hardware drivers, or only software drivers.
fn vulkan_drivers(software: bool) -> Result<Vec<String>, String> {
    const FOLDERS: [&str; 3] = ["/etc", "/usr/local/share", "/usr/share"];
    for name in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        if let Ok(given) = env::var(name) {
            return Ok(given.split(':').map(str::to_owned).collect());
        }
    }
    let files = FOLDERS.iter().flat_map(|folder| fs::read_dir(format!("{folder}/vulkan/icd.d")));
    let paths = files.flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<String> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter(|path| is_software(path) == software)
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    found.sort();
    if found.is_empty() {
        let kind = if software { "Vulkan in software" } else { "a Vulkan driver of a GPU" };
        return Err(format!(
            "{kind} is not installed: none in {}/vulkan/icd.d",
            FOLDERS.join(", ")
        ));
    }
    Ok(found)
}

/// Selects only NVIDIA's driver if present, so that both backends use the same card.
fn of_nvidia(drivers: Vec<String>) -> String {
    let own: Vec<String> =
        drivers.iter().filter(|driver| driver.contains("nvidia")).cloned().collect();
    if own.is_empty() { drivers.join(":") } else { own.join(":") }
}

fn is_software(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    ["lvp", "lavapipe", "swiftshader"].iter().any(|kind| name.contains(kind))
}

/// Fields queried from nvidia-smi.
const QUERY: &str = "--query-gpu=name,uuid,driver_version,vbios_version,memory.total,memory.used,\
clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,power.limit,temperature.gpu,utilization.gpu,\
pcie.link.gen.current,pcie.link.width.current,compute_mode,ecc.mode.current,mig.mode.current";

const PROFILED: &str =
    "regex:^(matvec_nested|matvec_gated_quantize|attend_split_f16|matmul_nested|argmax.*)$";

/// Tools of compute-sanitizer.
const TOOLS: [&str; 4] = ["memcheck", "racecheck", "synccheck", "initcheck"];

pub fn steps(machine: &Machine) -> Vec<Step> {
    let plan = Plan { machine };
    let mut steps = vec![plan.smi("nvidia_smi")];
    steps.extend(plan.cuda_cases());
    steps.extend(plan.measures(Device::Cuda));
    steps.push(plan.smi("nvidia_smi_after"));
    steps.extend(plan.vulkan_cases());
    steps.extend(plan.measures(Device::Vulkan));
    steps.extend(TOOLS.map(|tool| plan.sanitize(tool)));
    steps.push(plan.profile());
    steps
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Cuda,
    Vulkan,
}

struct Plan<'a> {
    machine: &'a Machine,
}

impl Plan<'_> {
    fn step(&self, name: &str, action: Action, program: &[&str], seconds: u64) -> Step {
        Step {
            name: name.into(),
            action,
            program: program.iter().map(|word| (*word).to_owned()).collect(),
            env: Vec::new(),
            budget: Duration::from_secs(seconds),
            under: None,
            lacks: None,
        }
    }

    fn program(&self) -> String {
        self.machine.cases.to_string_lossy().into_owned()
    }

    /// Sets the environment and requirements of a step on a device.
    fn on(&self, device: Device, mut step: Step) -> Step {
        let machine = self.machine;
        let mut tell = |name: &str, value: &str| step.env.push((name.into(), value.into()));
        let name = match device {
            Device::Cuda if machine.is_dry => "emulated",
            Device::Cuda => "cuda",
            Device::Vulkan => "vulkan",
        };
        tell("NESTLING_KIT_DEVICE", name);
        if machine.is_dry {
            tell("NESTLING_KIT_DRY", "1");
        } else {
            tell("NESTLING_TEST_CUDA", "required");
        }
        match device {
            Device::Cuda => step.lacks = machine.lacks_cuda.clone(),
            Device::Vulkan => {
                tell("NESTLING_TEST_GPU", "required");
                match &machine.vulkan {
                    Ok(drivers) => {
                        tell("VK_DRIVER_FILES", drivers);
                        tell("VK_ICD_FILENAMES", drivers);
                    }
                    Err(why) => step.lacks = Some(why.clone()),
                }
                step.under = Some("vulkan");
            }
        }
        step
    }

    fn cases(
        &self,
        device: Device,
        name: &str,
        table: &'static str,
        all: &str,
        few: &[&str],
        seconds: u64,
    ) -> Step {
        let program = self.program();
        let mut words = vec![program.as_str()];
        words.extend(if self.machine.is_dry { few } else { std::slice::from_ref(&all) });
        let step = self.step(name, Action::Cases(table), &words, seconds);
        Step { under: None, ..self.on(device, step) }
    }

    fn cuda_cases(&self) -> [Step; 2] {
        const OPERATIONS: &[&str] = &["cuda_operations::elementwise::", "cuda_operations::norms::"];
        const MODELS: &[&str] = &["cuda_models::families::olmoe", "cuda_models::families::gpt_oss"];
        let cases =
            |name, all, few, seconds| self.cases(Device::Cuda, name, "cuda", all, few, seconds);
        [
            cases("CUDA: every operation", "cuda_operations::", OPERATIONS, 90),
            cases("CUDA: models and families", "cuda_models::", MODELS, 120),
        ]
    }

    fn vulkan_cases(&self) -> [Step; 2] {
        const OPERATIONS: &[&str] =
            &["vulkan_operations::elementwise::", "vulkan_operations::norms::"];
        const MODELS: &[&str] = &["vulkan_models::families::olmoe"];
        let cases =
            |name, all, few, seconds| self.cases(Device::Vulkan, name, "vulkan", all, few, seconds);
        [
            cases("Vulkan: every operation", "vulkan_operations::", OPERATIONS, 60),
            cases("Vulkan: models and families", "vulkan_models::", MODELS, 90),
        ]
    }

    fn measures(&self, device: Device) -> Vec<Step> {
        // Description and name of each measurement, with its budgets in seconds for CUDA and Vulkan.
        const MEASURES: [(&str, &str, [u64; 2]); 7] = [
            ("the card", "card", [20, 10]),
            ("bandwidth of the memory", "memory", [20, 15]),
            ("bandwidth of large products", "products", [60, 40]),
            ("a layer of Qwen3-30B-A3B", "layer", [45, 30]),
            ("argmax", "argmax", [15, 15]),
            ("a model of OLMoE's shape, resident", "resident", [90, 60]),
            ("the same with a quarter of its experts on the card", "quarter", [80, 40]),
        ];
        let program = self.program();
        let measure = |(what, test, seconds): (&str, &str, [u64; 2])| {
            let (whose, seconds) = match device {
                Device::Cuda => ("CUDA", seconds[0]),
                Device::Vulkan => ("Vulkan", seconds[1]),
            };
            let test = format!("measure::{test}");
            let words = [&program, "--ignored", "--exact", "--nocapture", &test];
            let step = self.step(&format!("{whose}: {what}"), Action::Measure, &words, seconds);
            self.on(device, step)
        };
        MEASURES.map(measure).into()
    }

    fn smi(&self, key: &'static str) -> Step {
        let name = if key.ends_with("after") { "nvidia-smi, afterwards" } else { "nvidia-smi" };
        let words = ["nvidia-smi", QUERY, "--format=csv,nounits"];
        self.tool(self.step(name, Action::Table(key), &words, 15))
    }

    fn sanitize(&self, tool: &'static str) -> Step {
        let program = self.program();
        let words = [
            "compute-sanitizer",
            "--tool",
            tool,
            "--error-exitcode",
            "97",
            &program,
            "--test-threads=1",
            "--show-output",
            "cuda_operations::",
        ];
        let name = format!("compute-sanitizer {tool}");
        let step = self.step(&name, Action::Sanitize(tool), &words, 60);
        self.tool(self.on(Device::Cuda, step))
    }

    fn profile(&self) -> Step {
        let program = self.program();
        let words = [
            "ncu",
            "--set",
            "full",
            "--kernel-name",
            PROFILED,
            "--launch-count",
            "12",
            "--csv",
            "--page",
            "details",
            &program,
            "--ignored",
            "--exact",
            "--nocapture",
            "measure::profiled",
        ];
        let step = self.step("Nsight Compute, five kernels", Action::Profile, &words, 90);
        self.tool(self.on(Device::Cuda, step))
    }

    /// Resolves the path of a step's tool. The step is skipped if the tool is not installed.
    fn tool(&self, mut step: Step) -> Step {
        match find(&step.program[0]) {
            _ if self.machine.is_dry => {
                step.lacks = Some("a dry run has no device for it".into());
            }
            Some(path) => step.program[0] = path,
            None => step.lacks = Some(format!("{} is not installed", step.program[0])),
        }
        step
    }
}

/// Finds a tool on the path or in the folders of CUDA toolkits.
fn find(tool: &str) -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let toolkits = ["/usr/local", "/opt/nvidia", "/opt/nvidia/nsight-compute"];
    for parent in toolkits {
        let mut found: Vec<_> = fs::read_dir(parent).into_iter().flatten().flatten().collect();
        found.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
        for entry in found {
            folders.extend([entry.path().join("bin"), entry.path()]);
        }
    }
    let there = folders.iter().map(|folder| folder.join(tool)).find(|path| path.is_file());
    there.map(|path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(is_dry: bool) -> Machine {
        let vulkan = Ok("/icd.json".into());
        Machine { cases: "/kit/gpu-cases".into(), is_dry, lacks_cuda: None, vulkan }
    }

    #[test]
    fn a_card_is_never_tested_by_the_emulated_device() {
        for step in steps(&machine(false)) {
            let told = |name: &str| step.env.iter().find(|(known, _)| known == name);
            if !matches!(step.action, Action::Table(_)) {
                assert_eq!(told("NESTLING_TEST_CUDA").unwrap().1, "required", "{}", step.name);
                assert_ne!(told("NESTLING_KIT_DEVICE").unwrap().1, "emulated", "{}", step.name);
                assert!(told("NESTLING_KIT_DRY").is_none(), "{}", step.name);
            }
        }
    }

    #[test]
    fn a_dry_run_measures_nothing_real() {
        for step in steps(&machine(true)) {
            let dry = step.env.iter().any(|(name, _)| name == "NESTLING_KIT_DRY");
            assert!(dry || step.lacks.is_some(), "{}", step.name);
        }
    }

    #[test]
    fn what_is_lacking_is_said() {
        let lacks_cuda = Some("no driver".to_owned());
        let lacking = Machine { lacks_cuda, vulkan: Err("no ICD".into()), ..machine(false) };
        assert!(steps(&lacking).iter().all(|step| step.lacks.is_some()));
    }
}
