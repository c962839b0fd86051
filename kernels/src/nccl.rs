//! Connection among the devices of ranks through NCCL, which is loaded when ranks are connected.
//!
//! It was compiled only, and run by no test over several devices: the tests of the exchange use
//! `PeerHub` of the emulation. The types are cudarc's. Its loader is not used, since it does not know
//! `libnccl.so.2`, the name that NVIDIA's packages install, and panics without a library.
//!
//! A communicator is non-blocking: calls return at once, and their outcome is asked for until a deadline, so that a lost
//! peer cannot hold this rank. A communicator that failed or was late is aborted.

#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclUniqueId};
use libloading::Library;
use nestling_core::EngineError;
use nestling_core::group::RankShare;
use nestling_gpu::{PeerLink, PeerPart, PeerState};

use crate::backend::CudaBackend;
use crate::driver::{Address, Driver, DriverApi, Event, Stream};
use crate::error::CudaError;

/// Names of the library, of which the first is that of NVIDIA's packages.
const LIBRARY_NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Time for all ranks to connect, and for the parts of a transfer to arrive.
const CONNECT_MAX: Duration = Duration::from_secs(60);
const TRANSFER_MAX: Duration = Duration::from_secs(60);

/// Number of questions after which a waiting rank sleeps between questions.
const SPINS: u32 = 2_000;
const SLEEP: Duration = Duration::from_micros(50);

/// Results of calls. They are read as numbers, since a later NCCL may return others.
const SUCCESS: u32 = 0;
const IN_PROGRESS: u32 = 7;

/// Data type of bytes.
const UINT8: u32 = 1;

/// Value of options that are not set, and the mark and version of the options' layout, of NCCL 2.17.
const UNSET: c_int = c_int::MIN;
const CONFIG_MAGIC: u32 = 0xcafe_beef;
const CONFIG_VERSION: u32 = 21_700;

type Result<T> = std::result::Result<T, CudaError>;

/// The functions of NCCL that are called here.
struct Nccl {
    unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> u32,
    init:
        unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> u32,
    async_error: unsafe extern "C" fn(ncclComm_t, *mut u32) -> u32,
    abort: unsafe extern "C" fn(ncclComm_t) -> u32,
    broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        u32,
        c_int,
        ncclComm_t,
        cudaStream_t,
    ) -> u32,
    group_start: unsafe extern "C" fn() -> u32,
    group_end: unsafe extern "C" fn() -> u32,
    error_text: unsafe extern "C" fn(u32) -> *const c_char,
    /// Keeps the functions loaded.
    _library: Library,
}

impl Nccl {
    /// Returns the library, loaded at the first call.
    fn get() -> Result<&'static Self> {
        static NCCL: OnceLock<std::result::Result<Nccl, String>> = OnceLock::new();
        let loaded = NCCL.get_or_init(|| Self::load().map_err(|error| error.to_string()));
        loaded.as_ref().map_err(|error| refused(format!("NCCL: {error}")))
    }

    fn load() -> std::result::Result<Self, libloading::Error> {
        let [first, second] = LIBRARY_NAMES;
        // SAFETY: NCCL's initialization has no conditions, and neither has that of a library under its name.
        let library = unsafe { Library::new(first).or_else(|_| Library::new(second))? };
        // SAFETY: the types are those of NCCL's header since version 2.17, and `_library` outlives the functions.
        unsafe {
            Ok(Self {
                unique_id: *library.get("ncclGetUniqueId")?,
                init: *library.get("ncclCommInitRankConfig")?,
                async_error: *library.get("ncclCommGetAsyncError")?,
                abort: *library.get("ncclCommAbort")?,
                broadcast: *library.get("ncclBroadcast")?,
                group_start: *library.get("ncclGroupStart")?,
                group_end: *library.get("ncclGroupEnd")?,
                error_text: *library.get("ncclGetErrorString")?,
                _library: library,
            })
        }
    }

    /// Converts the result of a call that may go on.
    fn check(&self, what: &str, result: u32) -> Result<()> {
        if matches!(result, SUCCESS | IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: NCCL returns a static text for every number.
        let text = unsafe { (self.error_text)(result) };
        if text.is_null() {
            return Err(refused(format!("NCCL: {what}: result {result}")));
        }
        // SAFETY: the text is static and NUL-terminated.
        let text = unsafe { CStr::from_ptr(text) };
        Err(refused(format!("NCCL: {what}: {}", text.to_string_lossy())))
    }
}

fn refused(reason: String) -> CudaError {
    CudaError::Refused { reason }
}

/// Runs calls of NCCL, which use the thread's current context, in the context of a device.
///
/// # Errors
/// Fails with the error of `act`, or with [`CudaError::Refused`] on an emulated device.
fn within<T>(driver: &Driver, act: impl FnOnce() -> Result<T>) -> Result<T> {
    driver.with(|api| match api {
        DriverApi::Cuda(cuda) => cuda.within(act),
        DriverApi::Emulated(_) => Err(refused("an emulated device has no context".into())),
    })
}

/// A communicator, as its address; aborted on drop. Aborting needs no other rank.
struct Communicator {
    nccl: &'static Nccl,
    driver: Arc<Driver>,
    raw: usize,
}

impl Communicator {
    fn raw(&self) -> ncclComm_t {
        ptr::with_exposed_provenance_mut(self.raw)
    }

    /// Asks for the outcome of the last call until it is known and `is_done`.
    fn wait(
        &self,
        what: &str,
        most: Duration,
        beat: &dyn Fn(),
        is_done: &dyn Fn() -> Result<bool>,
    ) -> Result<()> {
        let (begun, mut asked) = (Instant::now(), 0u32);
        loop {
            let mut outcome = SUCCESS;
            // SAFETY: the communicator is alive, and the call writes a number.
            let answer = unsafe { (self.nccl.async_error)(self.raw(), &raw mut outcome) };
            self.nccl.check(what, answer)?;
            self.nccl.check(what, outcome)?;
            if outcome == SUCCESS && is_done()? {
                return Ok(());
            }
            if begun.elapsed() > most {
                return Err(refused(format!("NCCL: {what}: no end after {} s", most.as_secs())));
            }
            beat();
            asked = asked.saturating_add(1);
            match asked {
                0..SPINS => std::hint::spin_loop(),
                _ => thread::sleep(SLEEP),
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // The error can be ignored: nothing is done with the communicator afterwards.
        let _ = within(&self.driver, || {
            // SAFETY: the communicator is alive, and this is its last use.
            self.nccl.check("abort", unsafe { (self.nccl.abort)(self.raw()) })
        });
    }
}

/// A device's link to those of the other ranks through NCCL.
///
/// Not tested over several devices. Two ranks on one device cannot be connected; the host moves their bytes.
pub struct NcclLink {
    communicator: Option<Communicator>,
    stream: Stream,
    done: Event,
    state: PeerState,
    driver: Arc<Driver>,
}

impl NcclLink {
    /// Creates the link of a backend, without a connection. Does not load NCCL.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn new(backend: &CudaBackend) -> Result<Self> {
        let driver = Arc::clone(&backend.driver);
        Ok(Self {
            communicator: None,
            stream: driver.stream()?,
            done: driver.event()?,
            state: PeerState::Closed,
            driver,
        })
    }

    fn start(&self, share: RankShare, id: ncclUniqueId) -> Result<Communicator> {
        let nccl = Nccl::get()?;
        let (rank, ranks) = (number(share.rank)?, number(share.ranks)?);
        let mut config = ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cgaClusterSize: UNSET,
            minCTAs: UNSET,
            maxCTAs: UNSET,
            netName: ptr::null(),
            splitShare: UNSET,
        };
        let mut raw: ncclComm_t = ptr::null_mut();
        within(&self.driver, || {
            // SAFETY: the context of the device is current; NCCL writes the address of a communicator, and copies the
            // options.
            let answer = unsafe { (nccl.init)(&raw mut raw, ranks, id, rank, &raw mut config) };
            nccl.check("connect", answer)
        })?;
        if raw.is_null() {
            return Err(refused("NCCL: connect: no communicator".into()));
        }
        let raw = raw.expose_provenance();
        Ok(Communicator { nccl, driver: Arc::clone(&self.driver), raw })
    }

    /// Starts the copies of a transfer on the stream.
    fn send(&self, communicator: &Communicator, parts: &[PeerPart<Address>]) -> Result<()> {
        let nccl = communicator.nccl;
        within(&self.driver, || {
            // SAFETY: a group is ended below, whatever happens between.
            nccl.check("group", unsafe { (nccl.group_start)() })?;
            let mut sent = Ok(());
            for (rank, part) in parts.iter().enumerate().filter(|(_, part)| part.bytes > 0) {
                let memory = ptr::with_exposed_provenance_mut::<c_void>(part.memory as usize);
                sent = sent.and(number(rank)).and_then(|root| {
                    // SAFETY: the part lies in scratch memory of the device that stays allocated until the transfer is
                    // complete or aborted, and no command of another stream is pending on it.
                    let answer = unsafe {
                        (nccl.broadcast)(
                            memory,
                            memory,
                            part.bytes as usize,
                            UINT8,
                            root,
                            communicator.raw(),
                            self.stream.raw.raw(),
                        )
                    };
                    nccl.check("broadcast", answer)
                });
            }
            // SAFETY: the group was started above.
            let ended = nccl.check("group", unsafe { (nccl.group_end)() });
            sent.and(ended)
        })
    }
}

fn number(value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| refused(format!("NCCL: {value} ranks")))
}

impl PeerLink<Address> for NcclLink {
    fn state(&self) -> PeerState {
        self.state
    }

    fn new_id(&mut self) -> std::result::Result<Vec<u8>, EngineError> {
        let nccl = Nccl::get()?;
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: NCCL writes an id.
        nccl.check("id", unsafe { (nccl.unique_id)(&raw mut id) })?;
        Ok(id.internal.iter().map(|byte| *byte as u8).collect())
    }

    fn connect(
        &mut self,
        share: RankShare,
        id: &[u8],
        beat: &dyn Fn(),
    ) -> std::result::Result<(), EngineError> {
        self.communicator = None;
        self.state = PeerState::Closed;
        let Ok(bytes) = <[u8; 128]>::try_from(id) else {
            return Err(refused(format!("NCCL: an id of {} bytes", id.len())).into());
        };
        let number = PeerState::number_of(id);
        let id = ncclUniqueId { internal: bytes.map(|byte| byte as c_char) };
        let communicator = self.start(share, id)?;
        communicator.wait("connect", CONNECT_MAX, beat, &|| Ok(true))?;
        self.communicator = Some(communicator);
        self.state = PeerState::Open(number);
        Ok(())
    }

    fn broadcast_each(
        &mut self,
        parts: &[PeerPart<Address>], // [ranks]
        beat: &dyn Fn(),
    ) -> std::result::Result<(), EngineError> {
        let Some(communicator) = &self.communicator else {
            return Err(refused("NCCL: the devices are not connected".into()).into());
        };
        self.send(communicator, parts)?;
        communicator.wait("start of a transfer", TRANSFER_MAX, beat, &|| Ok(true))?;
        self.stream.record(&self.done)?;
        Ok(communicator.wait("transfer", TRANSFER_MAX, beat, &|| self.done.is_done())?)
    }

    fn give_up(&mut self) {
        self.communicator = None;
        self.state = PeerState::HostOnly;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout of NCCL's header of version 2.17, which later versions extend at the end.
    #[test]
    fn options_have_the_layout_of_the_header() {
        assert_eq!(size_of::<ncclConfig_t>(), 48);
        assert_eq!(std::mem::offset_of!(ncclConfig_t, blocking), 16);
        assert_eq!(size_of::<ncclUniqueId>(), 128);
    }
}
