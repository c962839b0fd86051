//! Linker arguments of the extension module.

fn main() {
    // The interpreter that loads the module provides its undefined symbols.
    pyo3_build_config::add_extension_module_link_args();
    // Exports only `PyInit__core`: llguidance has its own C API (`llg_*`). Dependencies reach the linker as
    // archives.
    // Default: an unknown system gets no linker option.
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "linux" | "android" | "freebsd") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
