//! A discrete-event simulation of a model that serves many generations: the scheduler of the engine
//! ([`nestling_core::schedule`]) on a machine that is made up.

use nestling_core::kv_cache::pages_for;
use nestling_core::schedule::{
    Candidate, Claim, Rows, ScheduleLimits, Scheduler, Standing, Turn, Wishes, admit, victim,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// What steps cost, and what there is room for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceMachine {
    /// Seconds that any step takes.
    pub step_seconds: f64,
    /// Seconds that the weights of all experts take, of which a step of few rows reads few.
    pub expert_seconds: f64,
    /// Rows whose experts are nearly all of them.
    pub expert_rows: f64,
    /// Seconds that a row takes.
    pub row_seconds: f64,
    /// How much longer or shorter a step takes by chance, at most: 0.1 for a tenth.
    pub noise: f64,
    /// Pages of keys and values.
    pub pages: usize,
}

impl ServiceMachine {
    /// Seconds of a step of so many rows, chance left out.
    pub fn seconds(&self, rows: usize) -> f64 {
        let experts = 1.0 - (-(rows as f64) / self.expert_rows).exp();
        self.step_seconds + self.expert_seconds * experts + self.row_seconds * rows as f64
    }
}

/// A generation that is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// When.
    pub at: f64,
    /// Tokens of its prompt, at least 1.
    pub prompt: usize,
    /// Tokens of its answer, at least 1.
    pub answer: usize,
    /// What is wished for it; the deadline on the clock of the simulation.
    pub wishes: Wishes,
}

/// What became of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Served {
    /// When its first token came.
    pub first_token: f64,
    /// When its last one did.
    pub end: f64,
    /// The waits between its tokens while it kept its pages, each as a share of the gap that was in force.
    pub gaps: Vec<f64>,
    /// How often it lost its pages.
    pub preemptions: usize,
    /// Whether its first token came after the deadline.
    pub is_late: bool,
}

/// What a simulation found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceReport {
    /// By request.
    pub served: Vec<Served>,
    /// Steps.
    pub steps: usize,
    /// Seconds until all had ended.
    pub seconds: f64,
    /// Rows that were computed.
    pub rows: usize,
}

struct Generation {
    request: usize,
    turn: Turn,
    standing: Standing,
    tokens: usize,
    computed: usize,
    answer_left: usize,
    last_token: Option<f64>,
}

impl Generation {
    fn held(&self) -> usize {
        pages_for(self.computed)
    }

    fn claim(&self) -> Claim {
        Claim {
            turn: self.turn,
            standing: self.standing,
            held: self.held(),
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

/// Serves requests, ordered by when they come, to their ends. Each fits alone in the pages, or it is left out.
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
            served: vec![Served::default(); requests.len()],
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
            standing: Standing::Waiting,
            tokens: prompt,
            computed: 0,
            answer_left: answer,
            last_token: None,
        });
    }

    fn free(&self) -> usize {
        let held: usize = self.alive.iter().map(Generation::held).sum();
        self.machine.pages.saturating_sub(held)
    }

    fn claims(&self) -> Vec<Claim> {
        self.alive.iter().map(Generation::claim).collect()
    }

    fn step(&mut self) {
        let admission = admit(&self.claims(), self.free(), usize::MAX, self.now);
        admission.park.into_iter().for_each(|index| self.park(index));
        for index in admission.begin {
            self.alive[index].standing = Standing::Running;
        }
        let runs = |index: &usize| self.alive[*index].standing == Standing::Running;
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

    /// Takes the pages of some rows; false where it cannot, or has just lost its own.
    fn take(&mut self, Rows { index, rows }: Rows) -> bool {
        if self.alive[index].standing != Standing::Running {
            return false;
        }
        let wanted = pages_for(self.alive[index].computed + rows);
        while wanted.saturating_sub(self.alive[index].held()) > self.free() {
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
        (one.computed, one.standing) = (0, Standing::Parked);
        one.turn.preempt();
        self.report.served[one.request].preemptions += 1;
    }

    /// It says a token, if all that it has is computed.
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
