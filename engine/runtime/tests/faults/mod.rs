//! A storage that misbehaves on command.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use nestling_formats::store::{FileStorage, Storage, StorageChanged, Store};

/// What goes wrong with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It takes longer.
    Delay(Duration),
    /// It ends with an error of this kind.
    Error(io::ErrorKind),
    /// The end of the file comes too early.
    Short,
    /// One bit of it is another.
    Corrupt,
    /// The file is another.
    Changed,
    /// The code that reads has a bug.
    Panic,
}

#[derive(Default)]
struct Plan {
    faults: BTreeMap<u64, Fault>,
    /// Reads since the plan was made.
    count: u64,
    /// From this read on, all fail: the disk is gone.
    gone_from: Option<u64>,
    /// Where the reads began, in order.
    offsets: Vec<u64>,
    /// Whether reads wait.
    held: bool,
    /// Reads that wait.
    waiting: usize,
}

/// A file whose reads go wrong as planned.
pub struct FaultyStorage {
    inner: FileStorage,
    plan: Mutex<Plan>,
    changed: Condvar,
}

impl FaultyStorage {
    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    /// Lets the reads with these numbers, counted from now, go wrong, and no others.
    pub fn plan(&self, faults: impl IntoIterator<Item = (u64, Fault)>) {
        self.start(faults.into_iter().collect(), None);
    }

    fn start(&self, faults: BTreeMap<u64, Fault>, gone_from: Option<u64>) {
        let mut plan = self.lock();
        let waiting = plan.waiting;
        *plan = Plan { faults, gone_from, waiting, ..Plan::default() };
        self.changed.notify_all();
    }

    /// Lets all reads fail from that one on, counted from now.
    pub fn vanish_at(&self, number: u64) {
        self.start(BTreeMap::new(), Some(number));
    }

    /// Lets reads wait until [`Self::release`].
    pub fn hold(&self) {
        self.lock().held = true;
    }

    pub fn release(&self) {
        self.lock().held = false;
        self.changed.notify_all();
    }

    /// Waits until as many reads are held.
    pub fn wait_for_held(&self, count: usize) {
        let mut plan = self.lock();
        while plan.waiting < count {
            plan = self.changed.wait(plan).unwrap();
        }
    }

    /// Where the reads since the plan was made began.
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

/// The bundled store's file.
pub fn bundled() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest")
}

/// The bundled store on such a storage, with no fault planned.
pub fn faulty_store() -> (Arc<FaultyStorage>, Arc<Store>) {
    let inner = FileStorage::open(&bundled(), 0, None).unwrap();
    let (plan, changed) = (Mutex::default(), Condvar::new());
    let storage = Arc::new(FaultyStorage { inner, plan, changed });
    let store = Store::from_storage(storage.clone(), false).unwrap();
    storage.plan([]);
    (storage, Arc::new(store))
}
