//! `nestling bench synth`: writes a store of random weights.

use crate::args::SynthArgs;
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::explain::explain;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::room;
use nestling::EngineError;
use nestling::formats::store::StoreError;
use nestling_plan::synthetic::{SyntheticOptions, synthetic_store_bytes, write_synthetic_store};
use std::time::Instant;

/// Maximum router skew. Beyond it, all tokens are routed to the same few experts.
const SKEW_MAX: f64 = 100.0;

pub fn synth(args: &SynthArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    check(args)?;
    let shape = args.shape.shape();
    let layers = args.layers.map_or(shape.num_hidden_layers, |layers| layers as usize);
    let options = SyntheticOptions {
        shape: shape.with_layers(layers),
        top_level: args.top_level.0,
        router_skew: args.router_skew,
        seed: args.seed,
    };
    let bytes = synthetic_store_bytes(&options).map_err(|error| explain(&error))?;
    room::check(&args.output, bytes)?;
    let started = Instant::now();
    let mut bar: Option<Progress> = None;
    let report = interrupt.guard(|cancel| {
        write_synthetic_store(&args.output, &options, cancel, &mut |done, total| {
            bar.get_or_insert_with(|| Progress::bytes(console, "writing", total, 0)).set(done);
        })
    });
    drop(bar);
    let report = report.map_err(|error| explain_synth(&error))?;
    let [eighth, quarter, half] = report.busiest_shares.map(|share| 100.0 * share);
    write_out(&format!(
        "{}: {}, experts {}, active per token {} (dense part {}), one expert {}\n\
         the busiest 12.5/25/50 % of the experts take {eighth:.0}/{quarter:.0}/{half:.0} % of the \
         routes; written in {:.1?}\n",
        args.output.display(),
        ByteSize(report.store_bytes),
        ByteSize(report.expert_bytes),
        ByteSize(report.token_bytes),
        ByteSize(report.dense_bytes),
        ByteSize(report.bytes_per_expert),
        started.elapsed(),
    ))
}

/// Explains an error. The partial output is removed, because it cannot be resumed.
fn explain_synth(error: &EngineError) -> Failure {
    match error {
        EngineError::Store(StoreError::DiskFull { file, .. }) => {
            Failure::new(format!("{file}: the disk is full; what was written is removed"))
                .advise("free some space, or write to another disk")
        }
        error => explain(error),
    }
}

fn check(args: &SynthArgs) -> Result<()> {
    let shape = args.shape.shape();
    let most = shape.num_hidden_layers;
    if let Some(layers) = args.layers.filter(|layers| *layers as usize > most) {
        let name = shape.name;
        return Err(Failure::usage(format!("{name} has {most} layers, not {layers}"))
            .advise(format!("give --layers 1 to {most}")));
    }
    if !(0.0..=SKEW_MAX).contains(&args.router_skew) {
        return Err(Failure::usage(format!(
            "a router skew of {} makes no sense",
            args.router_skew
        ))
        .advise("give a number from 0 (all experts alike) to about 1"));
    }
    let output = args.output.display();
    if args.output.is_dir() {
        return Err(Failure::new(format!("{output} is a folder"))
            .advise("give the name of the file to make"));
    }
    if args.output.exists() && !args.force {
        return Err(Failure::new(format!("{output} exists already"))
            .advise("remove it, give another name, or replace it with --force"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_promises_nothing() {
        let (file, offset, length) = ("a.nest.partial".into(), 0, 10);
        let error = EngineError::Store(StoreError::DiskFull { file, offset, length });
        let failure = explain_synth(&error);
        assert!(failure.message.contains("a.nest.partial: the disk is full"), "{failure}");
        assert!(!failure.advice.unwrap().contains("go on"));
    }
}
