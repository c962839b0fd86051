//! Discrete-event simulation of a model that serves many generations. It drives the engine's scheduler
//! ([`nestling_core::schedule`]) on a simulated machine.

use nestling_core::kv_cache::pages_for;
use nestling_core::schedule::{
    Candidate, Claim, GenerationPhase, Rows, ScheduleLimits, Scheduler, SchedulingOptions, Turn,
    admit, victim,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Cost of steps and memory capacity of a simulated machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceMachine {
    /// Fixed seconds per step.
    pub step_seconds: f64,
    /// Seconds to read the weights of all experts. Steps with few rows read a part of them.
    pub expert_seconds: f64,
    /// Number of rows that use about 63 % of the experts (`1 - 1/e`).
    pub expert_rows: f64,
    /// Seconds per row.
    pub row_seconds: f64,
    /// Maximum random deviation of a step's time, as a share: 0.1 for ten percent.
    pub noise: f64,
    /// Number of KV pages.
    pub pages: usize,
}

impl ServiceMachine {
    /// Returns the expected seconds of a step with `rows` rows.
    pub fn seconds(&self, rows: usize) -> f64 {
        let experts = 1.0 - (-(rows as f64) / self.expert_rows).exp();
        self.step_seconds + self.expert_seconds * experts + self.row_seconds * rows as f64
    }
}

/// A requested generation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Arrival time in seconds.
    pub at: f64,
    /// Number of prompt tokens, at least 1.
    pub prompt: usize,
    /// Number of output tokens, at least 1.
    pub answer: usize,
    /// Scheduling preferences; the deadline is in simulated time.
    pub wishes: SchedulingOptions,
}

/// Result of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestResult {
    /// Time of the first token.
    pub first_token: f64,
    /// Time of the last token.
    pub end: f64,
    /// Gaps between tokens until the first preemption, each as a share of the gap in force.
    pub gaps: Vec<f64>,
    /// Number of preemptions.
    pub preemptions: usize,
    /// True if the first token came after the deadline.
    pub is_late: bool,
}

/// Result of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceReport {
    /// Results by request.
    pub served: Vec<RequestResult>,
    /// Number of steps.
    pub steps: usize,
    /// Seconds until all generations ended.
    pub seconds: f64,
    /// Number of computed rows.
    pub rows: usize,
}

struct Generation {
    request: usize,
    turn: Turn,
    standing: GenerationPhase,
    tokens: usize,
    computed: usize,
    answer_left: usize,
    last_token: Option<f64>,
}

impl Generation {
    fn pages_in_use(&self) -> usize {
        pages_for(self.computed)
    }

    fn claim(&self) -> Claim {
        Claim {
            turn: self.turn,
            standing: self.standing,
            held: self.pages_in_use(),
            tokens: self.tokens,
            growth: self.answer_left,
            is_read: true,
        }
    }
}

struct Simulation<'a> {
    machine: ServiceMachine,
    requests: &'a [Request],
    scheduler: Scheduler,
    alive: Vec<Generation>,
    report: ServiceReport,
    random: Xoshiro256PlusPlus,
    now: f64,
}

/// Simulates requests, ordered by arrival, until all have ended. Requests that alone exceed the pages are
/// skipped.
pub fn serve(
    machine: ServiceMachine,
    limits: ScheduleLimits,
    requests: &[Request],
    seed: u64,
) -> ServiceReport {
    let mut simulation = Simulation {
        machine,
        requests,
        scheduler: Scheduler::new(limits),
        alive: Vec::new(),
        report: ServiceReport {
            served: vec![RequestResult::default(); requests.len()],
            ..ServiceReport::default()
        },
        random: Xoshiro256PlusPlus::seed_from_u64(seed),
        now: 0.0,
    };
    let mut next = 0;
    loop {
        while let Some(request) = requests.get(next).filter(|request| request.at <= simulation.now)
        {
            simulation.arrive(next, request);
            next += 1;
        }
        match requests.get(next) {
            Some(request) if simulation.alive.is_empty() => simulation.now = request.at,
            None if simulation.alive.is_empty() => break,
            _ => simulation.step(),
        }
    }
    simulation.report.seconds = simulation.now;
    simulation.report
}

impl Simulation<'_> {
    fn arrive(&mut self, index: usize, request: &Request) {
        let Request { prompt, answer, wishes, .. } = *request;
        if pages_for(prompt + answer) > self.machine.pages {
            return;
        }
        let turn = self.scheduler.turns.arrive(wishes, prompt, self.now);
        self.alive.push(Generation {
            request: index,
            turn,
            standing: GenerationPhase::Waiting,
            tokens: prompt,
            computed: 0,
            answer_left: answer,
            last_token: None,
        });
    }

    fn free(&self) -> usize {
        let held: usize = self.alive.iter().map(Generation::pages_in_use).sum();
        self.machine.pages.saturating_sub(held)
    }

    fn claims(&self) -> Vec<Claim> {
        self.alive.iter().map(Generation::claim).collect()
    }

    fn step(&mut self) {
        let admission = admit(&self.claims(), self.free(), usize::MAX, self.now);
        admission.park.into_iter().for_each(|index| self.park(index));
        for index in admission.begin {
            self.alive[index].standing = GenerationPhase::Running;
        }
        let runs = |index: &usize| self.alive[*index].standing == GenerationPhase::Running;
        let running: Vec<usize> = (0..self.alive.len()).filter(runs).collect();
        let candidates: Vec<Candidate> = running
            .iter()
            .map(|&index| &self.alive[index])
            .map(|one| Candidate {
                turn: one.turn,
                pending: one.tokens - one.computed,
                is_under_way: one.last_token.is_some() && one.computed > 0,
            })
            .collect();
        let mut chosen = self.scheduler.choose(&candidates, 1, self.now);
        for rows in &mut chosen {
            rows.index = running[rows.index];
        }
        let alive = &self.alive;
        chosen.sort_by(|a, b| alive[a.index].turn.stays_before(&alive[b.index].turn));
        let taken: Vec<Rows> = chosen.into_iter().filter(|rows| self.take(*rows)).collect();
        let rows: usize = taken.iter().map(|rows| rows.rows).sum();
        let share = (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let chance = 1.0 + self.machine.noise * (2.0 * share - 1.0);
        let seconds = self.machine.seconds(rows) * chance;
        self.now += seconds;
        self.scheduler.costs.measured(rows, seconds);
        self.report.steps += 1;
        self.report.rows += rows;
        for Rows { index, .. } in taken {
            self.say(index);
        }
        self.alive.retain(|one| one.answer_left > 0);
    }

    /// Allocates pages for rows, preempting others if needed. Returns false if that is impossible or the
    /// generation itself was preempted.
    fn take(&mut self, Rows { index, rows }: Rows) -> bool {
        if self.alive[index].standing != GenerationPhase::Running {
            return false;
        }
        let wanted = pages_for(self.alive[index].computed + rows);
        while wanted.saturating_sub(self.alive[index].pages_in_use()) > self.free() {
            match victim(&self.claims(), index) {
                Some(victim) => self.park(victim),
                None => return false,
            }
        }
        let now = self.now;
        let one = &mut self.alive[index];
        one.turn.serve(now);
        one.computed += rows;
        true
    }

    fn park(&mut self, index: usize) {
        let one = &mut self.alive[index];
        (one.computed, one.standing) = (0, GenerationPhase::Parked);
        one.turn.preempt();
        self.report.served[one.request].preemptions += 1;
    }

    /// Emits a token if all tokens so far are computed.
    fn say(&mut self, index: usize) {
        let (now, in_force) = (self.now, self.scheduler.gap_in_force());
        let one = &mut self.alive[index];
        if one.computed < one.tokens {
            return;
        }
        let served = &mut self.report.served[one.request];
        match one.last_token.replace(now) {
            None => {
                served.first_token = now;
                let deadline = self.requests[one.request].wishes.deadline;
                served.is_late = deadline.is_some_and(|deadline| now > deadline);
            }
            Some(last) if served.preemptions == 0 => served.gaps.push((now - last) / in_force),
            Some(_) => {}
        }
        one.tokens += 1;
        one.answer_left -= 1;
        served.end = now;
    }
}

#[cfg(test)]
mod tests;
