//! Linker arguments of the extension module.

fn main() {
    // The interpreter that loads the module provides its undefined symbols.
    pyo3_build_config::add_extension_module_link_args();
    // Exports only `PyInit__core`: llguidance has its own C API (`llg_*`). Dependencies reach the linker as
    // archives. Zig's linker refuses the option; Python loads modules so that their symbols do not meet.
    let is =
        |name, matches: fn(&str) -> bool| std::env::var(name).is_ok_and(|value| matches(&value));
    let has_option = is("CARGO_CFG_TARGET_OS", |os| matches!(os, "linux" | "android" | "freebsd"));
    let is_zig = is("RUSTC_LINKER", |linker| linker.contains("zig"));
    if has_option && !is_zig {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
