//! Accounting of a rendering: memory, work and time, each with a limit.

use std::cell::Cell;
use std::rc::Rc;

use web_time::Instant;

use super::error::{Fault, TemplateErrorKind};
use super::limits::{CHECK_WORK, FILTER_DEPTH_MAX, RenderLimits};

/// Memory in use, in bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    used: Cell<usize>,
    limit: usize,
}

impl Memory {
    fn take(&self, bytes: usize) -> Result<(), Fault> {
        let used = self.used.get().checked_add(bytes).filter(|used| *used <= self.limit);
        self.used.set(used.ok_or(Fault::Memory)?);
        Ok(())
    }
}

/// Bytes charged for a live value. The charge is released on drop.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Rc<Memory>,
    bytes: usize,
}

impl Charge {
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Fault> {
        self.memory.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Releases `bytes` of the charge.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.memory.used.set(self.memory.used.get().saturating_sub(bytes));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// Account of one rendering. Allocations and work on bytes are charged here before they happen.
pub(crate) struct Meter<'a> {
    memory: Rc<Memory>,
    work: Cell<u64>,
    next_check: Cell<u64>,
    limits: RenderLimits,
    /// Deadline; `None` if the time limit exceeds the range of the clock.
    deadline: Option<Instant>,
    cancelled: &'a dyn Fn() -> bool,
    filter_depth: Cell<u32>,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(limits: RenderLimits, cancelled: &'a dyn Fn() -> bool) -> Self {
        Self {
            memory: Rc::new(Memory { used: Cell::new(0), limit: limits.memory_bytes }),
            work: Cell::new(0),
            next_check: Cell::new(0),
            limits,
            deadline: Instant::now().checked_add(limits.deadline),
            cancelled,
            filter_depth: Cell::new(0),
        }
    }

    /// Charges `units` of work.
    #[inline]
    pub(crate) fn work(&self, units: u64) -> Result<(), Fault> {
        let work = self.work.get().saturating_add(units);
        self.work.set(work);
        if work < self.next_check.get() { Ok(()) } else { self.check(work) }
    }

    #[cold]
    fn check(&self, work: u64) -> Result<(), Fault> {
        if work > self.limits.work {
            return Err(Fault::Work);
        }
        if (self.cancelled)() {
            return Err(Fault::Cancelled);
        }
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Fault::Deadline);
        }
        self.next_check.set(work.saturating_add(CHECK_WORK).min(self.limits.work));
        Ok(())
    }

    /// Charges the work of copying or searching `bytes`, many at a time.
    #[inline]
    pub(crate) fn scan(&self, bytes: usize) -> Result<(), Fault> {
        self.work(bytes as u64 / 4 + 4)
    }

    /// Charges the work of searching `bytes` for a text.
    #[inline]
    pub(crate) fn search(&self, bytes: usize) -> Result<(), Fault> {
        self.work(bytes as u64 + 8)
    }

    /// Charges the work of inspecting `count` characters or values one by one.
    #[inline]
    pub(crate) fn walk(&self, count: usize) -> Result<(), Fault> {
        self.work((count as u64).saturating_mul(4).saturating_add(8))
    }

    /// Charges `bytes` of memory.
    pub(crate) fn charge(&self, bytes: usize) -> Result<Charge, Fault> {
        self.memory.take(bytes)?;
        Ok(Charge { memory: Rc::clone(&self.memory), bytes })
    }

    pub(crate) fn text_bytes_max(&self) -> usize {
        self.limits.text_bytes
    }

    /// Runs `inner`, a filter inside a filter. Returns an error if filters are nested too deeply.
    pub(crate) fn nested<T>(&self, inner: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let depth = self.filter_depth.get();
        if depth >= FILTER_DEPTH_MAX {
            return Err(Fault::failed("filters that apply filters are nested too deeply"));
        }
        self.filter_depth.set(depth + 1);
        let result = inner();
        self.filter_depth.set(depth);
        result
    }

    /// Converts a fault to the public error kind.
    pub(crate) fn explain(&self, fault: Fault) -> TemplateErrorKind {
        match fault {
            Fault::Failed(why) => TemplateErrorKind::Failed(why),
            Fault::Refused(message) => TemplateErrorKind::Refused(message),
            Fault::Work => TemplateErrorKind::Work { limit: self.limits.work },
            Fault::Memory => TemplateErrorKind::Memory { limit: self.limits.memory_bytes },
            Fault::Text => TemplateErrorKind::Text { limit: self.limits.text_bytes },
            Fault::Deadline => TemplateErrorKind::Deadline { limit: self.limits.deadline },
            Fault::Cancelled => TemplateErrorKind::Cancelled,
        }
    }
}
