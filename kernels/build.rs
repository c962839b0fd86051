//! Embeds the compiled kernels of the folder `NESTLING_CUDA_IMAGES`, if set. With the feature `emulation`,
//! also builds the kernels with the host compiler.

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
        let name = path.file_name().ok_or("an image without a name")?;
        writeln!(text, "    ({name:?}, include_bytes!({path:?})),")?;
    }
    text.push_str("];\n");
    fs::write(out.join("embedded_images.rs"), text)?;
    #[cfg(feature = "emulation")]
    emulation::build()?;
    Ok(())
}

/// Returns the full paths of all files of a folder.
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

    /// Builds every kernel twice: unchanged, and with a check before every access.
    pub(crate) fn build() -> Result<(), Box<dyn Error>> {
        println!("cargo::rerun-if-changed=cu");
        println!("cargo::rerun-if-changed=emulation");
        let out = PathBuf::from(env::var("OUT_DIR")?);
        let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
        let mut names = kernels(&root.join("cu"))?;
        names.extend(kernels(&root.join("emulation/faults"))?);
        write_changed(&out.join("emulated_kernels.hpp"), &table(&names)?)?;
        let params = fs::read_to_string(root.join("cu/params.cuh"))?;
        write_changed(&out.join("params_fields.hpp"), &fields(&params)?)?;

        let mut plain = compiler(&root, &out);
        units(&mut plain, &out, "plain", &names)?;
        for name in ["checks", "entry", "fibers", "hooks"] {
            plain.file(root.join(format!("emulation/{name}.cpp")));
        }
        plain.compile("nestling_emulation");

        let mut checked = compiler(&root, &out);
        units(&mut checked, &out, "checked", &names)?;
        // The thread sanitizer inserts calls before every access. `hooks.cpp` implements them; the sanitizer
        // itself is not linked. The other options prevent the compiler from merging or splitting accesses.
        // Clang's driver may add the sanitizer's runtime to an object, as Zig's does, unless it does not see the flag.
        if checked.get_compiler().is_like_clang() {
            checked.flag("-Xclang");
        }
        checked.flag("-fsanitize=thread").flag("-fno-tree-vectorize");
        checked.flag_if_supported("-fno-tree-loop-distribute-patterns");
        checked.flag_if_supported("-fno-store-merging").flag_if_supported("-fno-tree-sra");
        checked.flag_if_supported("--param=tsan-instrument-func-entry-exit=0");
        checked.compile("nestling_emulation_checked");
        Ok(())
    }

    fn compiler(root: &Path, out: &Path) -> cc::Build {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").opt_level(2).warnings(false);
        build.include(out).include(root.join("emulation"));
        build.include(root.join("cu")).include(root.join("emulation/faults"));
        build.define("NESTLING_EMULATION", None);
        // As on a device, fused operations must be explicit in the source.
        build.flag("-ffp-contract=off").flag("-fno-strict-aliasing").flag("-U_FORTIFY_SOURCE");
        build
    }

    /// Writes one translation unit for each kernel. Names are local to it, so kernels and their two forms do
    /// not collide.
    fn units(
        build: &mut cc::Build,
        out: &Path,
        form: &str,
        names: &[String],
    ) -> Result<(), Box<dyn Error>> {
        for name in names {
            let unit = out.join(format!("{form}_{name}.cpp"));
            let text = format!(
                "#include \"launch.hpp\"\nnamespace {{\n#include \"{name}.cu\"\n}}\n\
                 EMULATED_KERNEL({form}, {name})\n"
            );
            write_changed(&unit, &text)?;
            build.file(&unit);
        }
        Ok(())
    }

    /// Returns a C++ table of all kernels in both forms.
    fn table(names: &[String]) -> Result<String, Box<dyn Error>> {
        let mut table = String::from(
            "struct EmulatedKernel { emulation::Kernel (*plain)(); emulation::Kernel (*checked)(); };\n",
        );
        for name in names {
            writeln!(table, "extern \"C\" emulation::Kernel plain_{name}(), checked_{name}();")?;
        }
        writeln!(table, "static const EmulatedKernel emulated_kernels[] = {{")?;
        for name in names {
            writeln!(table, "    {{plain_{name}, checked_{name}}},")?;
        }
        table.push_str("};\n");
        Ok(table)
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

    /// Returns a C++ table of all struct fields as the compiler lays them out.
    fn fields(params: &str) -> Result<String, Box<dyn Error>> {
        let mut table = String::from(
            "struct ParamsField { const char* name; const char* field; size_t offset, bytes; };\n\
             static const ParamsField params_fields[] = {\n",
        );
        let mut name = "";
        for line in params.lines().map(str::trim) {
            let line = line.split_once("//").map_or(line, |(code, _)| code).trim();
            if let Some(rest) = line.strip_prefix("struct ") {
                name = rest.trim_end_matches(['{', ' ']);
                writeln!(table, "    {{\"{name}\", \"\", 0, sizeof({name})}},")?;
            } else if let (Some(field), false) = (line.strip_suffix(';'), line.starts_with('}')) {
                if name.is_empty() || line.starts_with("typedef") {
                    continue;
                }
                let field = field.rsplit_once([' ', '*']).map_or(field, |(_, name)| name);
                let field = field.split_once('[').map_or(field, |(name, _)| name);
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

    /// Writes a file only if its contents changed, to avoid recompilation.
    fn write_changed(path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
        if fs::read_to_string(path).ok().as_deref() != Some(text) {
            fs::write(path, text)?;
        }
        Ok(())
    }
}
