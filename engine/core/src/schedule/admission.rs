//! Admission of generations: the choice of those with pages in the KV cache.

use super::Turn;
use crate::kv_cache::pages_for;

/// Maximum number of output tokens that pages are reserved for.
pub const ANSWER_TOKENS: usize = 256;

/// State of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GenerationPhase {
    /// Not yet started.
    #[default]
    Waiting,
    /// Tokens are being computed.
    Running,
    /// Preempted: its pages were released, and it waits for new ones.
    Parked,
}

/// A generation with its current and future pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Priority order of the generation.
    pub turn: Turn,
    /// State of the generation.
    pub standing: GenerationPhase,
    /// Number of pages held.
    pub held: usize,
    /// Number of tokens so far.
    pub tokens: usize,
    /// Maximum number of further tokens.
    pub growth: usize,
    /// True if the events of the generation are being read.
    pub is_read: bool,
}

impl Claim {
    fn growth(&self) -> usize {
        self.growth.min(ANSWER_TOKENS)
    }

    /// Returns the number of pages at the end of the generation, as far as pages are reserved for its output.
    pub fn pages_wanted(&self) -> usize {
        pages_for(self.tokens + self.growth().max(1))
    }
}

/// Pages that the first waiting generation lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Number of additional pages required.
    pub wanted: usize,
    /// Number of free pages among them.
    pub free: usize,
}

/// Result of an admission: generations to start and to preempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admission {
    /// Indices of the generations to start or resume.
    pub begin: Vec<usize>,
    /// Indices of the generations that lose their pages to one of higher priority.
    pub park: Vec<usize>,
    /// Reason why the next generation waits.
    pub short: Option<Shortage>,
}

/// Selects the generations to start, given `free` pages without a holder (pages of idle sessions count as
/// free). In priority order, generations start while all running ones fit to their ends, each adding a token
/// per step. The first that does not fit preempts generations of lower priority, the lowest first. If that is
/// not enough, the search ends, so that large generations do not starve. Generations whose events nobody
/// reads do not start, and do not count as running for two rules: the first may always start if none runs,
/// and at most `running_max` run.
pub fn admit(claims: &[Claim], free: usize, running_max: usize, now: f64) -> Admission {
    let mut waiting: Vec<usize> = (0..claims.len())
        .filter(|&index| {
            claims[index].standing != GenerationPhase::Running && claims[index].is_read
        })
        .collect();
    let mut admission = Admission::default();
    if waiting.is_empty() {
        return admission;
    }
    waiting.sort_by(|&a, &b| claims[a].turn.before(&claims[b].turn, now));
    let runs = |claim: &&Claim| claim.standing == GenerationPhase::Running;
    let mut running: Vec<Claim> = claims.iter().filter(runs).copied().collect();
    let mut room = free + running.iter().map(|claim| claim.held).sum::<usize>();
    for index in waiting {
        let claim = claims[index];
        // Generations whose events are not read do not count, since they may wait for this one.
        let read = running.iter().filter(|other| other.is_read).count();
        if read >= running_max.max(1) {
            break;
        }
        room += claim.held;
        running.push(claim);
        if read == 0 || peak_pages(&running) <= room {
            admission.begin.push(index);
            continue;
        }
        let Some(leaving) = leaving(claims, &running, &claim, room) else {
            let held_by_others = running.iter().map(|other| other.held).sum::<usize>();
            let free = room.saturating_sub(held_by_others);
            let wanted = claim.pages_wanted().saturating_sub(claim.held);
            admission.short = Some(Shortage { wanted, free });
            break;
        };
        running.retain(|other| !leaving.iter().any(|&left| claims[left].turn == other.turn));
        admission.park.extend(leaving);
        admission.begin.push(index);
    }
    admission
}

/// Returns the generations of lower priority to preempt for `newest`, the lowest first, or `None` if that is
/// not enough.
fn leaving(claims: &[Claim], running: &[Claim], newest: &Claim, room: usize) -> Option<Vec<usize>> {
    let lower = |claim: &Claim| claim.turn.level() < newest.turn.level();
    let runs = |claim: &Claim| running.iter().any(|other| other.turn == claim.turn);
    let mut victims: Vec<usize> =
        (0..claims.len()).filter(|&i| lower(&claims[i]) && runs(&claims[i])).collect();
    victims.sort_by(|&a, &b| claims[b].turn.stays_before(&claims[a].turn));
    let mut left = running.to_vec();
    for (count, &victim) in (1..).zip(&victims) {
        left.retain(|other| other.turn != claims[victim].turn);
        if peak_pages(&left) <= room {
            victims.truncate(count);
            return Some(victims);
        }
    }
    None
}

/// Returns the maximum number of pages held together if each generation adds a token per step until its end.
fn peak_pages(claims: &[Claim]) -> usize {
    let at = |steps: usize| -> usize {
        let there = claims.iter().filter(|claim| claim.growth() >= steps);
        there.map(|claim| pages_for(claim.tokens + steps.max(1))).sum()
    };
    claims.iter().map(|claim| at(claim.growth())).fold(0, usize::max)
}

/// Selects the generation to preempt so that `claims[needs]` can continue: one that is not running, else the
/// one of lowest priority below it, else one whose events are not read. Returns `None` if `claims[needs]`
/// itself must wait.
pub fn victim(claims: &[Claim], needs: usize) -> Option<usize> {
    let holds = |index: &usize| *index != needs && claims[*index].held > 0;
    let needing = claims.get(needs)?.turn;
    let below = |index: &usize| needing.stays_before(&claims[*index].turn).is_lt();
    let lowest = |a: &usize, b: &usize| claims[*b].turn.stays_before(&claims[*a].turn);
    let all = || (0..claims.len()).filter(holds);
    let rests = |index: &usize| claims[*index].standing != GenerationPhase::Running;
    let is_unread = |index: &usize| !claims[*index].is_read;
    let resting = all().filter(rests).min_by(lowest);
    let behind = || all().filter(below).min_by(lowest);
    resting.or_else(behind).or_else(|| all().filter(is_unread).min_by(lowest))
}
