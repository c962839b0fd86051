//! Connection among the devices of ranks that are threads, through the memory of the process. Tests use it in place of
//! NCCL: the encoder sees the same trait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nestling_core::EngineError;
use nestling_core::group::RankShare;
use nestling_core::sync::whole;
use nestling_gpu::{PeerLink, PeerPart, PeerState};

use crate::backend::CudaBackend;
use crate::driver::{Address, Driver, Stream};
use crate::error::CudaError;

/// Interval at which a waiting rank reports that it is alive.
const BEAT: Duration = Duration::from_millis(20);

/// Meeting point of the devices of all ranks.
#[derive(Debug)]
pub struct PeerHub {
    ranks: usize,
    timeout: Duration,
    fault: Option<PeerFault>,
    ids: AtomicU64,
    transfers: AtomicU64,
    table: Mutex<Table>,
    changed: Condvar,
}

/// A planted fault of the last rank's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFault {
    /// Failure of its connection.
    Unconnected,
    /// Flipped bit in each of its parts.
    Bit,
    /// Loss of its part of the transfer with this number.
    Missing(u64),
}

#[derive(Debug, Default)]
struct Table {
    /// Parts of the current transfer.
    brought: Vec<Option<Arc<[u8]>>>, // [ranks]
    /// Parts that all ranks have brought, and the number of ranks that have not taken them yet.
    complete: Option<Complete>,
}

#[derive(Clone, Debug)]
struct Complete {
    parts: Vec<Arc<[u8]>>, // [ranks]
    waiting: usize,
}

impl PeerHub {
    /// Creates the meeting point of `ranks` devices. Transfers fail after `timeout`.
    pub fn new(ranks: usize, timeout: Duration, fault: Option<PeerFault>) -> Arc<Self> {
        let table = Table { brought: vec![None; ranks], complete: None };
        Arc::new(Self {
            ranks,
            timeout,
            fault,
            ids: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            table: Mutex::new(table),
            changed: Condvar::new(),
        })
    }

    /// Returns the number of complete transfers.
    pub fn transfers(&self) -> u64 {
        self.transfers.load(Ordering::Relaxed)
    }

    /// Returns the link of a backend to the devices of the other ranks.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub fn link(self: &Arc<Self>, backend: &CudaBackend) -> Result<EmulatedPeers, CudaError> {
        let driver = Arc::clone(&backend.driver);
        let (hub, stream) = (Arc::clone(self), driver.stream()?);
        Ok(EmulatedPeers { hub, stream, driver, rank: 0, state: PeerState::Closed, count: 0 })
    }

    /// Brings a rank's part, and returns the parts of all.
    fn meet(
        &self,
        rank: usize,
        part: Arc<[u8]>,
        beat: &dyn Fn(),
    ) -> Result<Vec<Arc<[u8]>>, EngineError> {
        let begun = Instant::now();
        let mut table = whole(self.table.lock());
        let mut own = Some(part);
        loop {
            if table.complete.is_none()
                && let Some(part) = own.take()
            {
                table.brought[rank] = Some(part);
                if table.brought.iter().all(Option::is_some) {
                    let parts = table.brought.iter_mut().filter_map(Option::take).collect();
                    table.complete = Some(Complete { parts, waiting: self.ranks });
                    self.transfers.fetch_add(1, Ordering::Relaxed);
                    self.changed.notify_all();
                }
            }
            if own.is_none()
                && let Some(complete) = &mut table.complete
            {
                complete.waiting -= 1;
                let parts = complete.parts.clone();
                if complete.waiting == 0 {
                    table.complete = None;
                    self.changed.notify_all();
                }
                return Ok(parts);
            }
            if begun.elapsed() > self.timeout {
                table.brought[rank] = None;
                return Err(refused("the parts of the other devices did not arrive"));
            }
            beat();
            table = whole(self.changed.wait_timeout(table, BEAT)).0;
        }
    }

    fn fault_of(&self, rank: usize) -> Option<PeerFault> {
        self.fault.filter(|_| rank + 1 == self.ranks)
    }
}

fn refused(reason: &str) -> EngineError {
    CudaError::Refused { reason: reason.into() }.into()
}

/// A device's link to a [`PeerHub`].
pub struct EmulatedPeers {
    hub: Arc<PeerHub>,
    driver: Arc<Driver>,
    stream: Stream,
    rank: usize,
    state: PeerState,
    /// Number of transfers that this rank took part in.
    count: u64,
}

impl PeerLink<Address> for EmulatedPeers {
    fn state(&self) -> PeerState {
        self.state
    }

    fn new_id(&mut self) -> Result<Vec<u8>, EngineError> {
        Ok(self.hub.ids.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec())
    }

    fn connect(&mut self, share: RankShare, id: &[u8], beat: &dyn Fn()) -> Result<(), EngineError> {
        beat();
        self.rank = share.rank;
        if share.ranks != self.hub.ranks
            || self.hub.fault_of(self.rank) == Some(PeerFault::Unconnected)
        {
            return Err(refused("the devices cannot be connected"));
        }
        self.state = PeerState::Open(PeerState::number_of(id));
        Ok(())
    }

    fn broadcast_each(
        &mut self,
        parts: &[PeerPart<Address>], // [ranks]
        beat: &dyn Fn(),
    ) -> Result<(), EngineError> {
        let total: u64 = parts.iter().map(|part| part.bytes).sum();
        let Some(own) = parts.get(self.rank) else { return Err(refused("this rank has no part")) };
        let mut pinned = self.driver.allocate_pinned("parts of ranks", total as usize)?;
        self.stream.copy_out(own.memory, own.bytes as usize, &mut pinned, 0)?;
        self.stream.synchronize()?;
        let mut bytes = pinned.bytes(own.bytes as usize).to_vec();
        self.count += 1;
        match self.hub.fault_of(self.rank) {
            Some(PeerFault::Bit) => {
                if let Some(byte) = bytes.last_mut() {
                    *byte ^= 1;
                }
            }
            Some(PeerFault::Missing(number)) if number + 1 == self.count => {
                return Err(refused("the part of this device is lost"));
            }
            _ => {}
        }
        let all = self.hub.meet(self.rank, bytes.into(), beat)?;
        let mut at = 0;
        for (rank, (part, bytes)) in parts.iter().zip(&all).enumerate() {
            if rank == self.rank || bytes.is_empty() {
                continue;
            }
            if bytes.len() as u64 != part.bytes {
                return Err(refused("a part has another size"));
            }
            pinned.write(at, bytes);
            self.stream.copy_in(&pinned, at, bytes.len(), part.memory)?;
            at += bytes.len();
        }
        Ok(self.stream.synchronize()?)
    }

    fn give_up(&mut self) {
        self.state = PeerState::HostOnly;
    }
}
