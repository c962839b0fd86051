//! Models over processes that `mpirun` has started.

#[cfg(feature = "mpi")]
use nestling::engine::group::RankShare;
use nestling::engine::{Engine, EngineError, Model, ModelOptions, ModelSource, OpenProgress};
#[cfg(feature = "mpi")]
use nestling::ranks::{QueueGroup, mpi::MpiRank};
use nestling::{CancelToken, DeviceOptions, OpenDevice};
#[cfg(feature = "mpi")]
use std::sync::atomic::{AtomicBool, Ordering};
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

/// True once a model was opened over the processes.
#[cfg(feature = "mpi")]
static HAS_OPENED: AtomicBool = AtomicBool::new(false);

/// Joins the processes that `mpirun` has started. Returns true for rank 0, which runs the command.
///
/// # Errors
/// Fails as [`MpiRank::join`] does.
#[cfg(feature = "mpi")]
pub fn join_as_lead() -> Result<bool, EngineError> {
    with_rank(MpiRank::is_lead)
}

/// Joins the group if the process has not yet.
#[cfg(feature = "mpi")]
fn with_rank<T>(take: impl FnOnce(&MpiRank) -> T) -> Result<T, EngineError> {
    let mut joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
    let rank = match joined.as_ref() {
        Some(rank) => rank,
        None => joined.insert(MpiRank::join(TIMEOUT)?),
    };
    Ok(take(rank))
}

/// Joins the group if the process has not yet. Returns its place among the processes of its machine, and the group.
#[cfg(feature = "mpi")]
fn placed() -> Result<(RankShare, Arc<QueueGroup>), EngineError> {
    with_rank(|rank| (rank.local, Arc::clone(&rank.group)))
}

/// Opens the device of this process, before the model. All processes call it.
///
/// # Errors
/// Fails as [`DeviceOptions::open_for_process`] does, and with [`EngineError::NoDevice`] if a model was opened already.
#[cfg(feature = "mpi")]
pub fn open_device(options: &DeviceOptions) -> Result<OpenDevice, EngineError> {
    if HAS_OPENED.load(Ordering::Relaxed) {
        return Err(only_once());
    }
    let (local, group) = placed()?;
    options.open_for_process(local, &*group)
}

#[cfg(feature = "mpi")]
fn only_once() -> EngineError {
    EngineError::NoDevice("processes under MPI open one model, once".into())
}

/// Opens this process's share of a model, once in a process. Only rank 0 returns: the others serve it, and end
/// with it.
///
/// # Errors
/// Fails as [`OpenDevice::open_process`] does, and with [`EngineError::NoDevice`] if a model was opened already.
#[cfg(feature = "mpi")]
#[expect(clippy::exit, reason = "a rank that has served rank 0 has no command to run")]
pub fn open(
    device: &OpenDevice,
    engine: &Engine,
    source: ModelSource,
    options: &ModelOptions,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Model, EngineError> {
    if HAS_OPENED.swap(true, Ordering::Relaxed) {
        return Err(only_once());
    }
    let (_, group) = placed()?;
    match device.open_process(engine, source, options, group, progress, cancel)? {
        Some(model) => Ok(model),
        None => {
            leave();
            std::process::exit(0);
        }
    }
}

/// Fails: this build has no MPI.
///
/// # Errors
/// [`EngineError::NoDevice`].
#[cfg(not(feature = "mpi"))]
pub fn join_as_lead() -> Result<bool, EngineError> {
    Err(without_mpi())
}

/// Fails: this build has no MPI.
///
/// # Errors
/// [`EngineError::NoDevice`].
#[cfg(not(feature = "mpi"))]
pub fn open_device(_: &DeviceOptions) -> Result<OpenDevice, EngineError> {
    Err(without_mpi())
}

#[cfg(not(feature = "mpi"))]
fn without_mpi() -> EngineError {
    let reason = "this program was built without MPI; build it with `--features mpi`";
    EngineError::NoDevice(reason.into())
}

/// Fails: this build has no MPI.
///
/// # Errors
/// [`EngineError::NoDevice`].
#[cfg(not(feature = "mpi"))]
pub fn open(
    _: &OpenDevice,
    _: &Engine,
    _: ModelSource,
    _: &ModelOptions,
    _: &mut dyn FnMut(OpenProgress),
    _: &CancelToken,
) -> Result<Model, EngineError> {
    Err(without_mpi())
}

/// Leaves the group of processes at the end of the program, after all models were closed.
pub fn leave() {
    #[cfg(feature = "mpi")]
    if let Some(mpi) = JOINED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        mpi.close();
    }
}
