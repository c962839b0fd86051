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
mod tests {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;

    fn below(random: &mut Xoshiro256PlusPlus, end: u64) -> u64 {
        random.next_u64() % end
    }

    fn jobs(random: &mut Xoshiro256PlusPlus) -> Vec<ReadJob> {
        let mut jobs = Vec::new();
        for expert in 0..1 + below(random, 3) as u32 {
            let mut rows = 1 + below(random, 9) as u32;
            for plane in Plane::ALL.into_iter().take(1 + below(random, 3) as usize) {
                let (read_ns, compute_ns) = (below(random, 12), below(random, 12));
                jobs.push(ReadJob { expert, plane, rows, read_ns, compute_ns });
                rows = 1 + below(random, u64::from(rows)) as u32;
            }
        }
        jobs
    }

    /// Returns the shortest makespan over all orders that respect the chains.
    fn best(left: &mut Vec<ReadJob>, done: &mut Vec<ReadJob>, busy: u64) -> u64 {
        if left.is_empty() {
            return makespan_ns(done, busy);
        }
        let mut least = u64::MAX;
        for at in 0..left.len() {
            let job = left[at];
            if left.iter().any(|other| other.expert == job.expert && other.plane < job.plane) {
                continue;
            }
            left.remove(at);
            done.push(job);
            least = least.min(best(left, done, busy));
            done.pop();
            left.insert(at, job);
        }
        least
    }

    fn keeps_chains(jobs: &[ReadJob]) -> bool {
        let later = |at: usize| &jobs[at + 1..];
        jobs.iter().enumerate().all(|(at, job)| {
            later(at).iter().all(|next| next.expert != job.expert || next.plane > job.plane)
        })
    }

    #[test]
    fn johnson_is_as_good_as_any_order() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        for _ in 0..400 {
            let mut list = jobs(&mut random);
            let busy = below(&mut random, 20);
            let least = best(&mut list.clone(), &mut Vec::new(), busy);
            order(&mut list, OrderRule::Johnson);
            assert!(keeps_chains(&list), "{list:?}");
            assert_eq!(makespan_ns(&list, busy), least, "{list:?}");
        }
    }

    #[test]
    fn the_hottest_head_is_always_next() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(8);
        for _ in 0..200 {
            let mut list = jobs(&mut random);
            order(&mut list, OrderRule::HottestFirst);
            assert!(keeps_chains(&list), "{list:?}");
            for (at, job) in list.iter().enumerate() {
                let rest = &list[at..];
                let is_head = |head: &&ReadJob| {
                    rest.iter().all(|o| o.expert != head.expert || o.plane >= head.plane)
                };
                assert!(rest.iter().filter(is_head).all(|head| head.rows <= job.rows), "{list:?}");
            }
        }
    }

    #[test]
    fn on_a_slow_disk_with_planes_of_one_size_both_end_alike() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(9);
        for _ in 0..100 {
            let mut list = jobs(&mut random);
            for job in &mut list {
                job.read_ns = 100;
                job.compute_ns = u64::from(job.rows);
            }
            let mut other = list.clone();
            order(&mut list, OrderRule::Johnson);
            order(&mut other, OrderRule::HottestFirst);
            assert_eq!(makespan_ns(&list, 0), makespan_ns(&other, 0));
        }
    }
}
