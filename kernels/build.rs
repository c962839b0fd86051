//! Embeds compiled kernels from the folder that `NESTLING_CUDA_IMAGES` names, if it is set, and builds
//! the kernels with the host compiler where the feature `emulation` asks for it.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=NESTLING_CUDA_IMAGES");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let images = match env::var_os("NESTLING_CUDA_IMAGES") {
        Some(folder) => images(Path::new(&folder))?,
        None => Vec::new(),
    };
    let mut text =
        String::from("/// File names and contents.\nconst EMBEDDED: &[(&str, &[u8])] = &[\n");
    for path in images {
        println!("cargo::rerun-if-changed={}", path.display());
        let name = path.file_name().unwrap_or_default();
        writeln!(text, "    ({name:?}, include_bytes!({path:?})),")?;
    }
    text.push_str("];\n");
    fs::write(out.join("embedded_images.rs"), text)?;
    #[cfg(feature = "emulation")]
    emulation::build()?;
    Ok(())
}

/// All files of a folder, by their whole paths.
fn images(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let folder = folder.canonicalize()?;
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}

#[cfg(feature = "emulation")]
mod emulation {
    use std::error::Error;
    use std::fmt::Write;
    use std::path::{Path, PathBuf};
    use std::{env, fs};

    /// Every kernel is a translation unit of its own, so that names of one are nothing to others.
    pub(crate) fn build() -> Result<(), Box<dyn Error>> {
        println!("cargo::rerun-if-changed=cu");
        println!("cargo::rerun-if-changed=emulation");
        let out = PathBuf::from(env::var("OUT_DIR")?);
        let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").opt_level(2).warnings(false);
        build.include(&out).include(root.join("cu")).include(root.join("emulation"));
        build.define("NESTLING_EMULATION", None);
        // What is fused is written out, here as on a device.
        build.flag("-ffp-contract=off").flag("-fno-strict-aliasing").flag("-U_FORTIFY_SOURCE");
        let names = kernels(&root.join("cu"))?;
        let mut table = String::new();
        for name in &names {
            let unit = out.join(format!("emulated_{name}.cpp"));
            let text = format!(
                "#include \"launch.hpp\"\n#include \"{name}.cu\"\nEMULATED_KERNEL({name})\n"
            );
            write_changed(&unit, &text)?;
            build.file(&unit);
            writeln!(table, "extern \"C\" emulation::Kernel emulated_{name}();")?;
        }
        let getters: Vec<String> = names.iter().map(|name| format!("emulated_{name}")).collect();
        let getters = getters.join(", ");
        writeln!(table, "static emulation::Kernel (*const emulated_kernels[])() = {{{getters}}};")?;
        write_changed(&out.join("emulated_kernels.hpp"), &table)?;
        let params = fs::read_to_string(root.join("cu/params.cuh"))?;
        write_changed(&out.join("params_fields.hpp"), &fields(&params)?)?;
        build.file(root.join("emulation/fibers.cpp")).file(root.join("emulation/entry.cpp"));
        build.compile("nestling_emulation");
        Ok(())
    }

    fn kernels(folder: &Path) -> Result<Vec<String>, Box<dyn Error>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "cu") {
                names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        }
        names.sort();
        Ok(names)
    }

    /// A table of every struct's fields as the C++ compiler sees them.
    fn fields(params: &str) -> Result<String, Box<dyn Error>> {
        let mut table = String::from(
            "struct ParamsField { const char* name; const char* field; size_t offset, bytes; };\n\
             static const ParamsField params_fields[] = {\n",
        );
        let mut name = "";
        for line in params.lines().map(str::trim) {
            let line = line.split("//").next().unwrap_or_default().trim();
            if let Some(rest) = line.strip_prefix("struct ") {
                name = rest.trim_end_matches(['{', ' ']);
                writeln!(table, "    {{\"{name}\", \"\", 0, sizeof({name})}},")?;
            } else if let (Some(field), false) = (line.strip_suffix(';'), line.starts_with('}')) {
                if name.is_empty() || line.starts_with("typedef") {
                    continue;
                }
                let field = field.rsplit([' ', '*']).next().unwrap_or_default();
                let field = field.split('[').next().unwrap_or_default();
                writeln!(
                    table,
                    "    {{\"{name}\", \"{field}\", offsetof({name}, {field}), sizeof({name}::{field})}},"
                )?;
            } else if line.starts_with('}') {
                name = "";
            }
        }
        table.push_str("};\n");
        Ok(table)
    }

    /// So that the compiler is not asked again for what did not change.
    fn write_changed(path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
        if fs::read_to_string(path).ok().as_deref() != Some(text) {
            fs::write(path, text)?;
        }
        Ok(())
    }
}
