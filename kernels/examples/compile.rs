//! Compiles all kernels for all targets of a release without a GPU, and says what each takes:
//!
//! ```text
//! cargo run -p nestling-cuda --example compile -- [FOLDER]
//! ```
//!
//! needs NVIDIA's compiler (libnvrtc) where the loader finds it. Images are left in FOLDER, if one is
//! named; a build with `NESTLING_CUDA_IMAGES=FOLDER` embeds them. Fails where a kernel spills registers.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program says what it found")]

use std::error::Error;
use std::process::ExitCode;

use nestling_cuda::compile::{KernelImages, Target, compile};
use nestling_cuda::kernel::Kernel;

fn main() -> ExitCode {
    let images = std::env::args_os().nth(1).map(|folder| KernelImages::new(Some(folder.into())));
    match report(images.as_ref()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(spilling) => {
            eprintln!("{spilling} kernels spill registers");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// How many compiled kernels spill.
fn report(images: Option<&KernelImages>) -> Result<usize, Box<dyn Error>> {
    println!("| kernel | target | registers | spilled bytes | stack bytes | shared bytes |");
    println!("|---|---|---:|---:|---:|---:|");
    let mut spilling = 0;
    for &kernel in Kernel::ALL {
        for target in Target::RELEASED {
            let made = compile(kernel, target)?;
            if let Some(images) = images {
                images.keep(kernel, target, &made.image)?;
            }
            let used = made.resources;
            if let Target::Device(..) = target {
                println!(
                    "| {} | {target} | {} | {} | {} | {} |",
                    kernel.name(),
                    used.registers,
                    used.spill_bytes,
                    used.stack_bytes,
                    used.shared_bytes
                );
            }
            spilling += usize::from(used.spill_bytes > 0);
        }
    }
    Ok(spilling)
}
