//! Converts errors of the library into messages with advice.

use crate::bytes::{ByteSize, Units};
use crate::failure::{Exit, Failure};
use crate::refused_file;
use crate::words::DENSE;
use nestling::ErrorClass;
use nestling::cuda::CudaError;
use nestling::engine::convert::ConvertError;
use nestling::engine::text::TextError;
use nestling::engine::{EngineError, MemoryTooSmall};
use nestling::formats::store::{OpenOptions, Store, StoreError};
use nestling::import::ImportError;
use nestling::wgpu::WgpuError;
use std::path::Path;

pub fn explain(error: &EngineError) -> Failure {
    let lacks_memory = error.class() == ErrorClass::NoRoom;
    Failure { lacks_memory, ..explained(error) }
}

fn explained(error: &EngineError) -> Failure {
    let failure = Failure::sentence(error);
    match error {
        EngineError::Cancelled => Failure::interrupted(),
        EngineError::ContextFull { limit, wanted } => Failure::new(format!(
            "the prompt and room for an answer take at least {wanted} tokens; the context holds {limit}"
        ))
        .advise("shorten the prompt, or set a larger context with -c if the model has one"),
        EngineError::LevelMissing { held, .. } => failure.advise(format!(
            "choose --level {held} or lower, or fetch what a downloaded store lacks with \
                 `nestling upgrade`"
        )),
        EngineError::Budget(_) => {
            failure.advise("raise --memory, lower --level, or shorten the context with -c")
        }
        EngineError::MemoryTooSmall(refused) => too_small(refused),
        EngineError::WeightBudget { asked, least } => {
            let units = Units::of_typed(*asked);
            let (needed, given) = (units.show(*least), units.show(*asked));
            Failure::new(format!("the weights need at least {needed}, the budget is {given}"))
                .advise(format!("give {least} bytes or more"))
        }
        EngineError::SlicesStreamed { .. } => {
            failure.advise("give --experts-over-ranks whole, raise --memory, or lower --level")
        }
        EngineError::ReplicasStreamed { .. } => {
            failure.advise("lower --expert-replicas, raise --memory, or lower --level")
        }
        EngineError::EmptyPrompt => failure.advise("give a prompt with -p or on standard input"),
        EngineError::NotAModel { .. } | EngineError::Unreadable { .. } => failure.advise(
            "name a .nest store, a GGUF file or a Hugging Face checkpoint folder, or leave -m out to \
             use the bundled storyteller",
        ),
        EngineError::Text(error) => match error.downcast_ref() {
            Some(TextError::NoTemplate) => {
                Failure::new("this model has no chat template, so it cannot chat")
                    .advise("complete text with `nestling run` instead")
            }
            _ => failure,
        },
        EngineError::Store(error) => explain_store(error),
        EngineError::Import(error) => explain_import(error),
        EngineError::Device(error) => match least_of_device(&**error) {
            Some(least) => failure.advise(format!(
                "give --vram-budget {least} or more, shorten the context with -c, or lower --level"
            )),
            None => failure,
        },
        EngineError::Constraint(_) => failure.advise(
            "leave out --json-schema, --json-object, --regex or --grammar, or ask for something simpler",
        ),
        EngineError::NotFinite { .. } => failure.advise("check the store with `nestling verify`"),
        _ => failure,
    }
}

/// Returns the smallest sufficient GPU memory budget, if the error says that the budget was too small.
fn least_of_device(error: &(dyn std::error::Error + 'static)) -> Option<u64> {
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(error), _) => WgpuError::least_budget(error),
        (None, Some(error)) => CudaError::least_budget(error),
        (None, None) => None,
    }
}

/// Explains a memory budget that is too small, with streamed experts or for a dense model.
fn too_small(refused: &MemoryTooSmall) -> Failure {
    let units = Units::of_typed(refused.given);
    let show = |bytes| units.show(bytes);
    let experts = match refused.expert_bytes {
        0 => String::new(),
        bytes => format!("one token's experts of one layer {}, ", show(bytes)),
    };
    let why = match refused.expert_bytes {
        0 => format!("; {DENSE}, so streaming them would be as slow as reading the file each time"),
        _ => String::new(),
    };
    Failure::new(format!(
        "{} of memory is too little for this model: the least is {}, of which weights of every \
         token take {}, {experts}keys and values of {} tokens {}, scratch \
         {}, and the program {}{why}",
        show(refused.given),
        show(refused.least()),
        show(refused.dense_bytes),
        refused.context_length,
        show(refused.kv_bytes),
        show(refused.scratch_bytes),
        show(refused.program_bytes),
    ))
    .advise(format!(
        "give --memory {} or more (on a GPU --vram-budget), shorten the context with -c, or lower \
         --level",
        refused.least()
    ))
}

/// Sets the exit code for damaged files.
pub fn damaged(mut failure: Failure) -> Failure {
    failure.exit = Exit::Damaged;
    failure
}

pub fn explain_store(error: &StoreError) -> Failure {
    let failure = Failure::sentence(error);
    match error {
        StoreError::Cancelled { .. } => Failure::interrupted(),
        StoreError::Io { file, action, source, .. } => {
            Failure::file(action, Path::new(file), source)
        }
        StoreError::NotAStore { file } => match refused_file::describe(Path::new(file)) {
            Some(what) => Failure::new(format!("{file} is not a .nest store: it is {what}")),
            None => failure,
        }
        .advise(
            "make a store of a GGUF file or a checkpoint folder with `nestling convert MODEL -o \
             OUT.nest`, or download one with -hf OWNER/REPO",
        ),
        StoreError::Truncated { file, .. } => damaged(failure.advise(match has_a_level(file) {
            true => {
                "finish the download, or use the levels that are complete: `nestling run`, `inspect` \
                 and `verify` take --partial"
            }
            false => "download or convert it again: not even its lowest level is complete",
        })),
        StoreError::Malformed(_) | StoreError::Damaged { .. } | StoreError::Padding { .. } => {
            damaged(failure.advise("convert or download it again"))
        }
        StoreError::Differs { .. } => damaged(failure.advise(
            "download the file again; if it is known to be right, remove the folder `reads` from Nestling's cache",
        )),
        StoreError::Changed { .. } | StoreError::Shard { .. } => {
            failure.advise("keep the files of the store together and unchanged while it is used")
        }
        _ => failure,
    }
}

/// Returns true if a truncated store still contains a complete level.
fn has_a_level(file: &str) -> bool {
    let options = OpenOptions { partial: true, ..OpenOptions::default() };
    Store::open_with(file, &options).is_ok()
}

pub fn explain_import(error: &ImportError) -> Failure {
    let failure = Failure::sentence(error);
    match error {
        ImportError::Cancelled => Failure::interrupted(),
        ImportError::Io { file, action, source } => {
            Failure::file(action, Path::new(file), source)
        }
        ImportError::NotACheckpoint { directory, .. } => {
            refused_file::no_checkpoint(Path::new(directory)).unwrap_or(failure.advise(refused_file::TAKEN))
        }
        ImportError::Dense { .. } => Failure::new(error.to_string()).advise(
            "choose a model of a supported family, such as OLMoE-1B-7B, Qwen3-30B-A3B or SmolLM2-135M",
        ),
        ImportError::Unsupported { .. } | ImportError::UnknownOption { .. } => {
            failure.advise("look for a newer release that knows it")
        }
        ImportError::CompanionScale { .. } => {
            failure.advise("choose another quantization of the model, such as Q4_K_M")
        }
        ImportError::Malformed { .. } => failure.advise("download the checkpoint again"),
        ImportError::Tensor { .. } => failure.advise(
            "see that config.json belongs to these weights, or download the checkpoint again",
        ),
        _ => failure,
    }
}

pub fn explain_convert(error: &ConvertError) -> Failure {
    match error {
        ConvertError::Cancelled => Failure {
            message: "interrupted; run the same command again to resume".into(),
            ..Failure::interrupted()
        },
        ConvertError::Checkpoint(error) => explain_import(error),
        ConvertError::Store(error) => explain_store(error),
        ConvertError::Quantize { .. } => Failure::new(error.to_string())
            .advise("download the checkpoint again; it may be damaged"),
        ConvertError::DestinationExists { .. } => Failure::sentence(error)
            .advise("remove it, give another name, or replace it with --force"),
        ConvertError::Budget { asked, least } => Failure::new(format!(
            "a store of this model needs at least {}, the budget is {}",
            ByteSize(*least),
            ByteSize(*asked),
        ))
        .advise(format!("give --budget {least} or more")),
        other => Failure::sentence(other),
    }
}
