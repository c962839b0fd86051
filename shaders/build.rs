//! Builds the shaders. Every kernel of `wgsl/` is joined with the files that it includes, then parsed and
//! validated by naga. The result is written to `OUT_DIR` under the same name. Variants for adapters with
//! subgroups, with half floats, and with both are written to subfolders of `OUT_DIR`.
//!
//! A line `// include: NAME` is replaced by the file `wgsl/include/NAME.wgsl`. In a variant, the file of that
//! name in `wgsl/include/subgroups` or `wgsl/include/f16` is used if it exists. Included files cannot include
//! others. Every kernel starts with a check of the miss flag: if an expert was missing, the kernel does
//! nothing. A kernel with a line `// halts` sets the flag and is exempt from the check.
//!
//! The structs that kernels read, parameters and table entries, become Rust structs in `params.rs` of
//! `OUT_DIR`. Their field offsets are asserted to match naga's layout, so they need no manual maintenance.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{Module, Scalar, ScalarKind, StructMember, TypeInner};

const INCLUDE: &str = "// include: ";

/// Folders of `wgsl/include` searched before the default folder.
type Folders = &'static [&'static str];

/// Variants of a kernel: the subfolder of `OUT_DIR`, and the include folders.
const FORMS: [(&str, Folders); 4] = [
    ("", &[]),
    ("subgroups", &["subgroups"]),
    ("f16", &[HALVES]),
    ("f16_subgroups", &[HALVES, "subgroups"]),
];

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
    let mut structs = BTreeMap::new();
    for entry in fs::read_dir("wgsl")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "wgsl") {
            continue;
        }
        let name = path.file_name().ok_or("a kernel without a name")?;
        for (form, folders) in FORMS {
            let text = joined(&path, folders)?;
            let text = halting(text).ok_or_else(|| format!("{}: no main", path.display()))?;
            let checked = check(&text);
            let module =
                checked.map_err(|error| format!("{}, {form}:\n{error}", path.display()))?;
            let kernel = path.file_stem().ok_or("a kernel without a name")?.to_string_lossy();
            add_structs(&module, &kernel, &mut structs)?;
            fs::create_dir_all(out.join(form))?;
            fs::write(out.join(form).join(name), text)?;
        }
    }
    Ok(fs::write(out.join("params.rs"), structs.into_values().collect::<String>())?)
}

/// Returns a kernel's text with its includes, in one variant.
fn joined(path: &Path, folders: Folders) -> Result<String, Box<dyn Error>> {
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

/// Parses and validates a kernel, or returns naga's error text. The result holds for all values of `override`
/// constants, because naga checks their types and uses before values are set.
fn check(text: &str) -> Result<Module, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.validate(&module).map_err(|error| error.emit_to_string(text))?;
    Ok(module)
}

/// Adds the structs of a kernel's bindings as Rust text. A struct named `Params` is renamed after its kernel;
/// other structs must be identical in all kernels.
fn add_structs(
    module: &Module,
    kernel: &str,
    structs: &mut BTreeMap<String, String>,
) -> Result<(), Box<dyn Error>> {
    for (_, variable) in module.global_variables.iter().filter(|(_, one)| one.binding.is_some()) {
        let element = match module.types[variable.ty].inner {
            TypeInner::Array { base, .. } => &module.types[base],
            _ => &module.types[variable.ty],
        };
        let TypeInner::Struct { members, span } = &element.inner else { continue };
        let name = match element.name.as_deref().ok_or("a struct without a name")? {
            "Params" => camel_case(kernel) + "Params",
            name => name.to_owned(),
        };
        let text = rust_struct(module, &name, members, *span)?;
        if structs.insert(name.clone(), text.clone()).is_some_and(|other| other != text) {
            return Err(format!("{kernel}: {name} differs from that of another kernel").into());
        }
    }
    Ok(())
}

fn camel_case(name: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    name.split('_').map(word).collect()
}

/// Returns a Rust struct, with assertions that its layout matches naga's.
fn rust_struct(
    module: &Module,
    name: &str,
    members: &[StructMember],
    span: u32,
) -> Result<String, Box<dyn Error>> {
    let (mut fields, mut checks) = (String::new(), String::new());
    for member in members {
        let field = member.name.as_deref().ok_or("a field without a name")?;
        let kind = rust_type(&module.types[member.ty].inner)
            .ok_or_else(|| format!("{name}.{field}: of a type that has no twin in Rust"))?;
        writeln!(fields, "    pub {field}: {kind},")?;
        let offset = member.offset;
        writeln!(
            checks,
            "const _: () = assert!(std::mem::offset_of!({name}, {field}) == {offset});"
        )?;
    }
    writeln!(checks, "const _: () = assert!(size_of::<{name}>() == {span});")?;
    let derives = "Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable";
    Ok(format!(
        "#[derive({derives})]\n#[repr(C)]\npub(crate) struct {name} {{\n{fields}}}\n{checks}\n"
    ))
}

fn rust_type(inner: &TypeInner) -> Option<String> {
    let scalar = |scalar: &Scalar| match (scalar.kind, scalar.width) {
        (ScalarKind::Uint, 4) => Some("u32"),
        (ScalarKind::Sint, 4) => Some("i32"),
        (ScalarKind::Float, 4) => Some("f32"),
        _ => None,
    };
    match inner {
        TypeInner::Scalar(one) => scalar(one).map(str::to_owned),
        TypeInner::Vector { size, scalar: one } => {
            Some(format!("[{}; {}]", scalar(one)?, *size as usize))
        }
        _ => None,
    }
}
