//! Which generations have their keys and values in the pool at once.

use super::Turn;
use crate::kv_cache::pages_for;

/// Tokens of an answer that room is kept for where more may come.
pub const ANSWER_TOKENS: usize = 256;

/// Where a generation stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It has not begun.
    #[default]
    Waiting,
    /// Its tokens are computed.
    Running,
    /// It lost its pages, and waits until they are there again.
    Parked,
}

/// A generation and the pages that it has and is going to have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Its turn.
    pub turn: Turn,
    /// Where it stands.
    pub standing: Standing,
    /// Pages that it holds.
    pub held: usize,
    /// Tokens that it has.
    pub tokens: usize,
    /// Tokens that it may still add.
    pub growth: usize,
    /// Whether somebody reads what it says.
    pub is_read: bool,
}

impl Claim {
    fn growth(&self) -> usize {
        self.growth.min(ANSWER_TOKENS)
    }

    /// Pages that it holds at its end, as far as room is kept for it.
    pub fn pages_wanted(&self) -> usize {
        pages_for(self.tokens + self.growth().max(1))
    }
}

/// What kept the first of those that wait from beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Pages that it lacks.
    pub wanted: usize,
    /// Pages of these that there are.
    pub free: usize,
}

/// Who begins, and who leaves for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admission {
    /// Indices of those that begin, or go on.
    pub begin: Vec<usize>,
    /// Indices of those that lose their pages to one of a higher priority.
    pub park: Vec<usize>,
    /// Why the next one waits.
    pub short: Option<Shortage>,
}

/// Decides who begins with `free` pages that nobody holds (those of sessions at rest among them). In their turn generations begin
/// while all that run then fit to their ends, each adding a token a step; the first that does not fit ends the
/// search, so that no large one waits for ever. It takes the places of those of lower priority, the lowest first.
/// The first may always begin where none runs, and no more than `running_max` run.
pub fn admit(claims: &[Claim], free: usize, running_max: usize, now: f64) -> Admission {
    let mut waiting: Vec<usize> = (0..claims.len())
        .filter(|&index| claims[index].standing != Standing::Running && claims[index].is_read)
        .collect();
    let mut admission = Admission::default();
    if waiting.is_empty() {
        return admission;
    }
    waiting.sort_by(|&a, &b| claims[a].turn.before(&claims[b].turn, now));
    let runs = |claim: &&Claim| claim.standing == Standing::Running;
    let mut running: Vec<Claim> = claims.iter().filter(runs).copied().collect();
    let mut room = free + running.iter().map(|claim| claim.held).sum::<usize>();
    for index in waiting {
        let claim = claims[index];
        // One whose events nobody reads may wait for this one's.
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

/// Those of lower priority that leave so that `newest` fits, the lowest first; none where that is not enough.
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

/// The most pages that these hold together if each adds a token a step and leaves at its end.
fn peak_pages(claims: &[Claim]) -> usize {
    let at = |steps: usize| -> usize {
        let there = claims.iter().filter(|claim| claim.growth() >= steps);
        there.map(|claim| pages_for(claim.tokens + steps.max(1))).sum()
    };
    claims.iter().map(|claim| at(claim.growth())).fold(0, usize::max)
}

/// Who loses its pages so that `claims[needs]` goes on: one that does not run yet, else the lowest of those
/// that stay behind it, else one that nobody reads. None where it is its own turn to wait.
pub fn victim(claims: &[Claim], needs: usize) -> Option<usize> {
    let holds = |index: &usize| *index != needs && claims[*index].held > 0;
    let needing = claims.get(needs)?.turn;
    let below = |index: &usize| needing.stays_before(&claims[*index].turn).is_lt();
    let lowest = |a: &usize, b: &usize| claims[*b].turn.stays_before(&claims[*a].turn);
    let all = || (0..claims.len()).filter(holds);
    let rests = |index: &usize| claims[*index].standing != Standing::Running;
    let is_unread = |index: &usize| !claims[*index].is_read;
    let resting = all().filter(rests).min_by(lowest);
    let behind = || all().filter(below).min_by(lowest);
    resting.or_else(behind).or_else(|| all().filter(is_unread).min_by(lowest))
}
