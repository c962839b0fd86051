//! Order of reads of missing planes, chosen so that neither disk nor CPU is idle.
//!
//! Reading and computing form a two-machine flow shop: a plane is read, then the rows whose level it
//! completes are computed. Planes of an expert form a chain, base first. Johnson's rule ("Optimal two- and
//! three-stage production schedules", 1954) minimizes the completion time of independent jobs. If the rule
//! would reverse neighbours of a chain, they are merged into one job (Kurisu, "Two-machine scheduling under
//! required precedence among jobs", 1976) and the rule orders the result. With planes of one size and a slow
//! disk, this is the "hottest expert, bit first" order of D²MoE (arXiv 2504.15299).

use std::cmp::{Ordering, Reverse};

use nestling_formats::Plane;

/// A read of one plane of one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadJob {
    /// Index of the expert in its layer.
    pub expert: u32,
    /// Plane to read.
    pub plane: Plane,
    /// Number of rows that need the plane.
    pub rows: u32,
    /// Estimated read time in nanoseconds.
    pub read_ns: u64,
    /// Time of the computation that the plane unblocks, in nanoseconds.
    pub compute_ns: u64,
}

/// Rule for ordering reads. All rules keep the planes of an expert in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OrderRule {
    /// Johnson's rule with merged chains: earliest completion.
    #[default]
    Johnson,
    /// Repeatedly, the next plane of the expert with the most waiting rows.
    HottestFirst,
    /// Order of experts and planes: a baseline.
    ById,
}

/// Sorts jobs into the order of reading.
pub fn order(jobs: &mut [ReadJob], rule: OrderRule) {
    ReadOrder::default().sort(jobs, rule);
}

/// Works like [`order`], with reusable memory.
#[derive(Debug, Default)]
pub struct ReadOrder {
    runs: Vec<Run>,
    ordered: Vec<ReadJob>,
}

impl ReadOrder {
    /// Sorts jobs into the order of reading.
    pub fn sort(&mut self, jobs: &mut [ReadJob], rule: OrderRule) {
        jobs.sort_unstable_by_key(|job| (job.expert, job.plane));
        match rule {
            OrderRule::ById => {}
            OrderRule::HottestFirst => hottest_first(jobs),
            OrderRule::Johnson => self.johnson(jobs),
        }
    }

    fn johnson(&mut self, jobs: &mut [ReadJob]) {
        let Self { runs, ordered } = self;
        runs.clear();
        for (start, job) in jobs.iter().enumerate() {
            let ReadJob { read_ns, compute_ns, expert, .. } = *job;
            let mut run = Run { read_ns, compute_ns, expert, start, end: start + 1 };
            while let Some(before) = runs.last().copied() {
                if before.expert != run.expert || before.compare(&run) == Ordering::Less {
                    break;
                }
                runs.pop();
                run = before.then(run);
            }
            runs.push(run);
        }
        // Ties are broken by index.
        runs.sort_unstable_by(|a, b| a.compare(b).then(a.start.cmp(&b.start)));
        ordered.clear();
        ordered.extend(runs.iter().flat_map(|run| &jobs[run.start..run.end]));
        jobs.copy_from_slice(ordered);
    }
}

/// Returns the time at which the last job is computed. The first read starts at 0, and the CPU is busy with
/// other work until `busy_ns`.
pub fn makespan_ns(jobs: &[ReadJob], busy_ns: u64) -> u64 {
    let ends = jobs.iter().fold((0u64, busy_ns), |(read, computed), job| {
        let read = read.saturating_add(job.read_ns);
        (read, read.max(computed).saturating_add(job.compute_ns))
    });
    ends.1
}

/// Sorts by waiting rows. Planes never have more rows than those before them in their chain, so sorting
/// equals taking the hottest head repeatedly.
fn hottest_first(jobs: &mut [ReadJob]) {
    let mut least = u32::MAX;
    let mut of = None;
    let heads = jobs.iter().map(|job| {
        least = if of == Some(job.expert) { least.min(job.rows) } else { job.rows };
        of = Some(job.expert);
        (least, *job)
    });
    let mut heads: Vec<(u32, ReadJob)> = heads.collect();
    heads.sort_by_key(|(rows, _)| Reverse(*rows));
    jobs.iter_mut().zip(heads).for_each(|(slot, (_, job))| *slot = job);
}

/// Consecutive jobs of a chain merged into one job.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Read time before computation can start, minus the overlap within the run.
    read_ns: u64,
    /// Compute time after all reads, minus the same overlap.
    compute_ns: u64,
    expert: u32,
    start: usize,
    end: usize,
}

impl Run {
    fn then(self, next: Self) -> Self {
        let overlap = self.compute_ns.min(next.read_ns);
        Self {
            read_ns: self.read_ns.saturating_add(next.read_ns - overlap),
            compute_ns: next.compute_ns.saturating_add(self.compute_ns - overlap),
            end: next.end,
            ..self
        }
    }

    /// Compares by Johnson's rule. Jobs that compute longer than they read come first, by ascending read
    /// time. The others follow, by descending compute time.
    fn compare(&self, other: &Self) -> Ordering {
        let fills = |run: &Self| run.read_ns < run.compute_ns;
        match (fills(self), fills(other)) {
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (true, true) => self.read_ns.cmp(&other.read_ns),
            (false, false) => other.compute_ns.cmp(&self.compute_ns),
        }
    }
}

#[cfg(test)]
mod tests;
