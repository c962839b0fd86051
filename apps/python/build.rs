//! What a linker is told of a module whose symbols are those of the interpreter that loads it.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
