//! Joins each kernel of `wgsl/` with the files that it includes and writes the result to `OUT_DIR`, in one folder per
//! variant: plain, with subgroups, with half floats, with both.
//!
//! A line `// include: NAME` is replaced by the file `wgsl/include/NAME.wgsl`, or by the file of that name in
//! `wgsl/include/subgroups` or `wgsl/include/f16` for a variant that has one. Included files include nothing. Each
//! kernel first reads a flag that says that an expert was missing, and returns if the flag is set. A kernel with a
//! line `// halts` sets the flag and does not read it. `tests/params.rs` parses and validates the results.
//!
//! For WebAssembly, whose module is downloaded, comments and indentation are left out, and so are subgroups, which wgpu
//! does not offer there.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

const INCLUDE: &str = "// include: ";

/// Folders of `wgsl/include` searched before the default folder.
type Folders = &'static [&'static str];

/// Variants of a kernel: the subfolder of `OUT_DIR`, and the include folders.
const FORMS: [(&str, Folders); 4] = [
    ("", &[]),
    ("subgroups", &[SUBGROUPS]),
    ("f16", &[HALVES]),
    ("f16_subgroups", &[HALVES, SUBGROUPS]),
];

/// Include folder of text that uses subgroups.
const SUBGROUPS: &str = "subgroups";

/// Include folder of text that uses half floats, and the directive that enables them.
const HALVES: &str = "f16";
const ENABLE: &str = "enable f16;\n";

/// Line that marks a kernel as setting the miss flag.
const HALTS: &str = "// halts";

/// Declaration and check of the miss flag, added to all other kernels.
const HALTED: &str = "@group(1) @binding(0) var<uniform> halted: vec4<u32>;\n";
const RETURN: &str = "\n    if halted.x != 0u {\n        return;\n    }";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=wgsl");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let is_downloaded = env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "wasm");
    for entry in fs::read_dir("wgsl")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "wgsl") {
            continue;
        }
        let name = path.file_name().ok_or("a kernel without a name")?;
        for (form, folders) in FORMS {
            let included: Vec<_> = folders
                .iter()
                .copied()
                .filter(|folder| !is_downloaded || *folder != SUBGROUPS)
                .collect();
            let text = joined(&path, &included)?;
            let text = halting(text).ok_or_else(|| format!("{}: no main", path.display()))?;
            let text = if is_downloaded { bare(&text) } else { text };
            fs::create_dir_all(out.join(form))?;
            fs::write(out.join(form).join(name), text)?;
        }
    }
    Ok(())
}

/// Returns a kernel's text with its includes, in one variant.
fn joined(path: &Path, folders: &[&str]) -> Result<String, Box<dyn Error>> {
    let include = Path::new("wgsl/include");
    let (mut text, mut has_halves) = (String::new(), false);
    for line in fs::read_to_string(path)?.lines() {
        match line.trim_start().strip_prefix(INCLUDE) {
            Some(name) => {
                let file = Path::new(name).with_extension("wgsl");
                let own = folders.iter().find(|folder| include.join(folder).join(&file).is_file());
                has_halves |= own == Some(&HALVES);
                let included = own.map_or(include.into(), |folder| include.join(folder)).join(file);
                let read = fs::read_to_string(&included);
                text += &read.map_err(|error| format!("{}: {error}", included.display()))?;
            }
            None => text += line,
        }
        text.push('\n');
    }
    Ok(if has_halves { ENABLE.to_owned() + &text } else { text })
}

/// Returns a kernel's text without comment lines and indentation.
fn bare(text: &str) -> String {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Adds the check of the miss flag to a kernel. Returns `None` if the kernel has no `main`.
fn halting(mut text: String) -> Option<String> {
    if text.lines().any(|line| line == HALTS) {
        return Some(text);
    }
    let main = text.find("fn main(")?;
    let body = main + text.get(main..)?.find(") {")? + ") {".len();
    text.insert_str(body, RETURN);
    text.push_str(HALTED);
    Some(text)
}
