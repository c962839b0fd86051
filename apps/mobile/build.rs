//! Hides symbols of dependencies from the shared library's exports: llguidance exports a C API (`llg_*`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Dependencies reach the linker as archives, and the crate itself as objects.
    // Default: an unknown system has no such option.
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "linux" | "android" | "freebsd") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
