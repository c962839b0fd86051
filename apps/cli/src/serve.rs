//! `nestling serve`: serves models over HTTP.

use crate::args::{ListenArgs, RanksArg, ServeArgs};
use crate::console::Console;
use crate::explain::explain;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::located::LocatedModel;
use crate::memory::memory_budget;
use crate::model_folder::{ModelFolder, not_opened};
use crate::opened::LoadedModel;
use crate::words::counted;
use crate::{device, opened, processes};
use nestling::engine::text::ToolStyle;
use nestling::formats::open_regular;
use nestling_server::{
    Access, AccessError, ListenError, Listener, ModelSource, OpenedModel, PoolOptions, Reopen,
    Server, ServerOptions, UnknownFields,
};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of an API key file in bytes.
const KEY_FILE_BYTES_MAX: u64 = 1 << 20;

const LOOK: Duration = Duration::from_millis(50);

pub fn serve(args: ServeArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    if args.several.are_given() && args.resources.ranks == RanksArg::Mpi {
        return Err(Failure::usage("processes under MPI open one model, and there are several")
            .advise("name one model with -m, or divide each over threads with --ranks N"));
    }
    if args.resources.ranks == RanksArg::Mpi
        && !processes::join_as_lead().map_err(|error| explain(&error))?
    {
        // Rank 0 alone listens; this one returns only with an error.
        return opened::open(&args.model, &args.resources, console, interrupt).map(drop);
    }
    let access = access(&args.listen)?;
    let unknown_fields = match args.listen.strict_fields {
        true => UnknownFields::Refuse,
        false => UnknownFields::Report,
    };
    let tool_style = match args.listen.no_generic_tools {
        true => ToolStyle::Native,
        false => ToolStyle::Generic,
    };
    // Default: more than any memory.
    let stored = usize::try_from(args.listen.stored_responses.0).unwrap_or(usize::MAX);
    let options = ServerOptions {
        access,
        unknown_fields,
        tool_style,
        stored_responses_bytes_max: stored,
        ..ServerOptions::default()
    };
    let server = Server::new(options);
    // The listener starts first, so that an unavailable address is reported before a model is loaded for
    // minutes.
    let listener =
        Listener::start(&server, &args.listen.host, args.listen.port).map_err(refused)?;
    let address = listener.address();
    interrupt.obey_termination();
    let name = match args.several.are_given() {
        true => several(&server, &args, console)?,
        false => {
            console.note(format_args!("http://{address} answers when the model is loaded"));
            let opened = opened::open(&args.model, &args.resources, console, interrupt)?;
            let name = args.listen.alias.clone().unwrap_or_else(|| opened.name());
            let can = opened.model.capabilities();
            if can.chat && !can.tools && !args.listen.no_generic_tools {
                console
                    .note("its chat template has no place for tools: they are described in text");
            }
            let reopen = reopen(&opened, &args, console);
            server.set_reopenable_model(hold(opened), name.as_str(), reopen);
            format!("{name} is")
        }
    };
    // Printed even under --quiet: with port 0, this is the only place that shows the port.
    console.line(format_args!("{name} served at http://{address}/v1"));
    console.note("Ctrl-C ends it");
    let failed = interrupt.guard(|cancel| {
        while !cancel.is_cancelled() && !listener.has_ended() {
            std::thread::sleep(LOOK);
        }
        !cancel.is_cancelled()
    });
    if failed {
        return Err(
            Failure::new("the server has stopped listening").advise("look into the log with -v")
        );
    }
    console.note("ends what is under way; Ctrl-C again ends it at once");
    listener.end();
    Ok(())
}

/// Wraps a model together with all resources that must live as long.
fn hold(opened: LoadedModel) -> OpenedModel {
    OpenedModel { model: opened.model.clone(), hold: Box::new(opened) }
}

/// Returns a function that opens the same model again after its file has changed.
fn reopen(opened: &LoadedModel, args: &ServeArgs, console: &Console) -> Reopen {
    let (path, is_bundled) = (opened.path.clone(), opened.is_bundled);
    let (model, resources) = (args.model.clone(), args.resources.clone());
    let console = Console { quiet: console.verbose == 0, ..console.clone() };
    Arc::new(move |cancel| {
        let located = LocatedModel { is_bundled, ..LocatedModel::at(path.clone()) };
        let interrupt = Interrupt::by(cancel);
        let opened = opened::open_at(located, &model, &resources, None, &console, &interrupt);
        opened.map(hold).map_err(|failure| {
            console.warn(format_args!("the model was not reopened: {failure}"));
            not_opened(failure, &path)
        })
    })
}

/// Configures the server for several models and returns a text with their number.
fn several(server: &Server, args: &ServeArgs, console: &Console) -> Result<String> {
    if args.listen.alias.is_some() {
        return Err(Failure::usage("--alias names one model, and there are several")
            .advise("omit --alias; `/v1/models` lists the names"));
    }
    let folder = ModelFolder::new(&args.several, &args.model, &args.resources, console)?;
    let count = folder.list().len();
    let device = device::open(&args.resources.device, console)?;
    // Memory of another device is limited by the device, which holds one model at a time.
    let memory = Some(memory_budget(args.resources.memory)).filter(|_| device.is_cpu()).flatten();
    let options = PoolOptions { keep_alive: args.several.keep_alive.0, memory_bytes: memory };
    server.set_source(Arc::new(folder), options);
    let are = if count == 1 { "is" } else { "are" };
    Ok(format!("{} {are}", counted(count, "model")))
}

/// Returns the access rules given on the command line.
fn access(args: &ListenArgs) -> Result<Access> {
    let mut access = Access::default();
    if let Some(path) = &args.api_key_file {
        access.add_keys(&keys(path)?).map_err(|error| {
            let failure = Failure::new(format!("{}: {error}", path.display()));
            failure.advise("write one key a line")
        })?;
    }
    access.share_prefixes(args.share_prefixes);
    let wrong = |error: AccessError| Failure::usage(error.to_string());
    let is_own = |address: &IpAddr| !address.is_loopback() && !address.is_unspecified();
    if args.host.parse::<IpAddr>().is_ok_and(|address| is_own(&address)) {
        access.allow_host(&args.host).map_err(wrong)?;
    }
    if let Some(name) = own_name() {
        // A host name that is invalid in requests is skipped.
        let _ = access.allow_host(&name);
    }
    for host in &args.allow_host {
        access.allow_host(host).map_err(wrong)?;
    }
    for origin in &args.cors_origin {
        access.allow_origin(origin).map_err(wrong)?;
    }
    Ok(access)
}

/// Reads a file of API keys, one a line.
pub fn keys(path: &Path) -> Result<String> {
    let failed = |error| Failure::file("read", path, &error);
    let file = open_regular(path).map_err(failed)?;
    let mut text = String::new();
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 == KEY_FILE_BYTES_MAX {
        let failure = Failure::new(format!("{} is too large for a file of keys", path.display()));
        return Err(failure.advise("write one key a line"));
    }
    Ok(text)
}

fn own_name() -> Option<String> {
    let named = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let named = named.or_else(|| std::env::var("HOSTNAME").ok());
    let named = named.or_else(|| std::env::var("COMPUTERNAME").ok())?;
    Some(named.trim().to_owned()).filter(|name| !name.is_empty())
}

fn refused(error: ListenError) -> Failure {
    let failure = Failure::sentence(&error);
    match error {
        ListenError::OpenToAll { .. } => Failure::usage(failure.message)
            .advise("name a file of keys with --api-key-file, or omit --host"),
        ListenError::Address { .. } => failure.advise("choose another --port or --host"),
        _ => failure,
    }
}
