//! A storage with injected faults.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use nestling_formats::store::{FileStorage, Storage, StorageChanged, Store};

/// Fault of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Delay(Duration),
    /// The read fails with an error of this kind.
    Error(io::ErrorKind),
    /// The file ends too early.
    Short,
    /// One bit is flipped.
    Corrupt,
    /// The file has changed.
    Changed,
    /// The reading code panics.
    Panic,
}

#[derive(Default)]
struct Plan {
    faults: BTreeMap<u64, Fault>,
    /// Number of reads since the plan was set.
    count: u64,
    /// Number of the read from which on all fail, as if the disk had vanished.
    gone_from: Option<u64>,
    offsets: Vec<u64>,
    held: bool,
    waiting: usize,
}

/// A file whose reads fail as planned.
pub struct FaultyStorage {
    inner: FileStorage,
    plan: Mutex<Plan>,
    changed: Condvar,
}

impl FaultyStorage {
    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    /// Plans faults for reads by number, counted from this call. Replaces the previous plan.
    pub fn plan(&self, faults: impl IntoIterator<Item = (u64, Fault)>) {
        self.start(faults.into_iter().collect(), None);
    }

    fn start(&self, faults: BTreeMap<u64, Fault>, gone_from: Option<u64>) {
        let mut plan = self.lock();
        let waiting = plan.waiting;
        *plan = Plan { faults, gone_from, waiting, ..Plan::default() };
        self.changed.notify_all();
    }

    /// Makes all reads fail from a number on, counted from this call.
    pub fn vanish_at(&self, number: u64) {
        self.start(BTreeMap::new(), Some(number));
    }

    /// Holds all reads until [`Self::release`].
    pub fn hold(&self) {
        self.lock().held = true;
    }

    pub fn release(&self) {
        self.lock().held = false;
        self.changed.notify_all();
    }

    /// Waits until `count` reads are held.
    pub fn wait_for_held(&self, count: usize) {
        let mut plan = self.lock();
        while plan.waiting < count {
            plan = self.changed.wait(plan).unwrap();
        }
    }

    /// Returns the offsets of the reads since the plan was set.
    pub fn offsets(&self) -> Vec<u64> {
        self.lock().offsets.clone()
    }
}

impl Storage for FaultyStorage {
    fn name(&self) -> String {
        "faulty.nest".into()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut plan = self.lock();
        let number = plan.count;
        plan.count += 1;
        plan.offsets.push(offset);
        plan.waiting += 1;
        self.changed.notify_all();
        while plan.held {
            plan = self.changed.wait(plan).unwrap();
        }
        plan.waiting -= 1;
        let fault = plan.faults.get(&number).copied();
        let gone = plan.gone_from.is_some_and(|from| number >= from);
        drop(plan);
        if gone {
            return Err(io::ErrorKind::NotFound.into());
        }
        match fault {
            Some(Fault::Delay(time)) => std::thread::sleep(time),
            Some(Fault::Error(kind)) => return Err(kind.into()),
            Some(Fault::Changed) => return Err(io::Error::other(StorageChanged)),
            Some(Fault::Short) => {
                let half = out.len() / 2;
                self.inner.read_at(offset, &mut out[..half])?;
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Some(Fault::Panic) => panic!("a bug in a storage"),
            Some(Fault::Corrupt) | None => {}
        }
        self.inner.read_at(offset, out)?;
        if fault == Some(Fault::Corrupt) {
            let middle = out.len() / 2;
            out[middle] ^= 0x10;
        }
        Ok(())
    }
}

/// Returns the path of the bundled store.
pub fn bundled() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest")
}

/// Opens the bundled store on a faulty storage without planned faults.
pub fn faulty_store() -> (Arc<FaultyStorage>, Arc<Store>) {
    let inner = FileStorage::open(&bundled(), 0, None).unwrap();
    let (plan, changed) = (Mutex::default(), Condvar::new());
    let storage = Arc::new(FaultyStorage { inner, plan, changed });
    let store = Store::from_storage(storage.clone(), false).unwrap();
    storage.plan([]);
    (storage, Arc::new(store))
}
