//! Compiles all kernels for all release targets, without a GPU, and prints their resources:
//!
//! ```text
//! cargo run -p nestling-cuda --example compile -- [FOLDER [TARGET...]]
//! ```
//!
//! It requires NVIDIA's compiler (libnvrtc) on the loader's path. If FOLDER is given, images are written
//! there; a build with `NESTLING_CUDA_IMAGES=FOLDER` embeds them. Targets given by name (`sm_120`) replace
//! the release targets. Fails if a kernel of a release spills registers.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program says what it found")]

use std::error::Error;
use std::process::ExitCode;

use nestling_cuda::compile::{KernelImages, Target, compile};
use nestling_cuda::kernel::Kernel;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let images = arguments.next().map(|folder| KernelImages::new(Some(folder.into())));
    let names: Vec<String> = arguments.map(|name| name.to_string_lossy().into_owned()).collect();
    let Some(named) = names.iter().map(|name| Target::of_name(name)).collect::<Option<Vec<_>>>()
    else {
        eprintln!("targets are named as sm_90 or compute_90 are, not {}", names.join(" "));
        return ExitCode::FAILURE;
    };
    let targets = if named.is_empty() { &Target::RELEASED } else { &named[..] };
    match report(images.as_ref(), targets) {
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

/// Prints the resources of all kernels. Returns the number of release kernels that spill registers.
fn report(images: Option<&KernelImages>, targets: &[Target]) -> Result<usize, Box<dyn Error>> {
    println!("| kernel | target | registers | spilled bytes | stack bytes | shared bytes |");
    println!("|---|---|---:|---:|---:|---:|");
    let mut spilling = 0;
    for &kernel in Kernel::ALL {
        for &target in targets {
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
            let is_released = Target::RELEASED.contains(&target);
            spilling += usize::from(is_released && used.spill_bytes > 0);
        }
    }
    Ok(spilling)
}
