//! Models over processes that `mpirun` has started.

use nestling::CancelToken;
use nestling::engine::{Engine, EngineError, Model, ModelOptions, ModelSource, OpenProgress};
#[cfg(feature = "mpi")]
use nestling::ranks::{mpi::MpiRank, open_on_processes};
#[cfg(feature = "mpi")]
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(feature = "mpi")]
use std::time::Duration;

/// Time after which a process that says nothing is lost. Each says that it is alive ten times a second.
#[cfg(feature = "mpi")]
const TIMEOUT: Duration = Duration::from_secs(10);

/// This process's rank, until the program ends.
#[cfg(feature = "mpi")]
static JOINED: Mutex<Option<MpiRank>> = Mutex::new(None);

/// Opens this process's share of a model. Only rank 0 returns: the others serve it, and end with it.
///
/// # Errors
/// Fails as [`open_on_processes`] does.
#[cfg(feature = "mpi")]
#[expect(clippy::exit, reason = "a rank that has served rank 0 has no command to run")]
pub fn open(
    engine: &Engine,
    source: ModelSource,
    options: &ModelOptions,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Model, EngineError> {
    let mpi = MpiRank::join(TIMEOUT)?;
    let group = Arc::clone(&mpi.group);
    let opened = open_on_processes(engine, source, options, group, progress, cancel)?;
    let Some(model) = opened else {
        mpi.close();
        std::process::exit(0);
    };
    *JOINED.lock().unwrap_or_else(PoisonError::into_inner) = Some(mpi);
    Ok(model)
}

/// Fails: this build has no MPI.
///
/// # Errors
/// [`EngineError::NoDevice`].
#[cfg(not(feature = "mpi"))]
pub fn open(
    _: &Engine,
    _: ModelSource,
    _: &ModelOptions,
    _: &mut dyn FnMut(OpenProgress),
    _: &CancelToken,
) -> Result<Model, EngineError> {
    let reason = "this program was built without MPI; build it with `--features mpi`";
    Err(EngineError::NoDevice(reason.into()))
}

/// Leaves the group of processes at the end of the program, after all models were closed.
pub fn leave() {
    #[cfg(feature = "mpi")]
    if let Some(mpi) = JOINED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        mpi.close();
    }
}
