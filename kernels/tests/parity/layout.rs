//! Compares the layouts of parameter structs between Rust and the C++ compiler.

use nestling_cuda::emulation;
use nestling_cuda::kernel::{HEADERS, Kernel};
use nestling_cuda::params::{EmbedParams, Matrix, layouts};

use crate::harness::{address, outcome};

#[test]
fn params_are_laid_out_as_the_kernels_see_them() {
    let found = emulation::layouts();
    assert!(found.len() > 10);
    assert_eq!(found, layouts());
}

/// Checks that the kernels compiled at run time are the files of the folder.
#[test]
fn every_file_is_embedded() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/cu");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut found: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    let kernels = Kernel::ALL.iter().map(|kernel| format!("{}.cu", kernel.name()));
    let headers = HEADERS.iter().map(|header| header.name.to_owned());
    let mut expected: Vec<_> = kernels.chain(headers).collect();
    expected.sort();
    assert_eq!(found, expected);
    for kernel in Kernel::ALL {
        let function = format!(", {}, ", kernel.name());
        assert!(kernel.source().contains(&function), "{} has no kernel", kernel.name());
    }
}

/// The emulation refuses misaligned accesses, as a device does.
#[test]
#[should_panic(expected = "a misaligned access")]
fn addresses_are_multiples_of_what_is_read_there() {
    let (values, tokens) = ([0f32; 2], [0u32]);
    let row_scales = address(&values) + 2;
    let table = Matrix { row_scales, rows: 1, cols: 1, ..Matrix::default() };
    outcome(&[0f32], |out| {
        let table = address(std::slice::from_ref(&table));
        let (tokens, levels) = (address(&tokens), address(&tokens));
        let params = EmbedParams { table, tokens, levels, out, rows: 1, cols: 1 };
        (params.launch(), params)
    });
}
