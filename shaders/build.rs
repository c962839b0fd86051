//! Joins every kernel of `wgsl/` with the text that it includes, has naga parse and check it, and
//! leaves it in `OUT_DIR` under the same name, and in `OUT_DIR/subgroups` in its form for adapters
//! with subgroups.
//!
//! A line `// include: NAME` stands for the file `wgsl/include/NAME.wgsl`, or, in the other form,
//! `wgsl/include/subgroups/NAME.wgsl` where there is one. Included files include nothing. Every
//! kernel gets a look at a flag put in front: where an expert was missing, all that comes after does
//! nothing. A kernel with a line `// halts` is the one that sets it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use naga::valid::{Capabilities, ValidationFlags, Validator};

const INCLUDE: &str = "// include: ";

/// Forms of a kernel: folders of `OUT_DIR`, and of `wgsl/include`, where what is not there is taken
/// from the folder around.
const FORMS: [&str; 2] = ["", "subgroups"];

/// Line of a kernel that sets the flag.
const HALTS: &str = "// halts";

/// What every other kernel begins with.
const HALTED: &str = "@group(1) @binding(0) var<uniform> halted: vec4<u32>;\n";
const RETURN: &str = "\n    if halted.x != 0u {\n        return;\n    }";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=wgsl");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for entry in fs::read_dir("wgsl")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "wgsl") {
            continue;
        }
        let name = path.file_name().ok_or("a kernel without a name")?;
        for form in FORMS {
            let text = joined(&path, form)?;
            let text = halting(text).ok_or_else(|| format!("{}: no main", path.display()))?;
            check(&text).map_err(|error| format!("{}, {form}:\n{error}", path.display()))?;
            fs::create_dir_all(out.join(form))?;
            fs::write(out.join(form).join(name), text)?;
        }
    }
    Ok(())
}

/// A kernel with the text that it includes in one of its forms.
fn joined(path: &Path, form: &str) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    for line in fs::read_to_string(path)?.lines() {
        match line.trim_start().strip_prefix(INCLUDE) {
            Some(name) => {
                let folder = Path::new("wgsl/include");
                let usual = folder.join(name).with_extension("wgsl");
                let own = folder.join(form).join(name).with_extension("wgsl");
                let included = if own.is_file() { own } else { usual };
                let read = fs::read_to_string(&included);
                text += &read.map_err(|error| format!("{}: {error}", included.display()))?;
            }
            None => text += line,
        }
        text.push('\n');
    }
    Ok(text)
}

/// A kernel that does nothing while the flag is set; none if it has no `main`.
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

/// What naga finds wrong with a kernel, in whatever way its `override` constants are set: their
/// types and uses are checked before they have values.
fn check(text: &str) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.validate(&module).map(drop).map_err(|error| error.emit_to_string(text))
}
