use super::*;

fn limits(rows_max: usize, prompt_steps: PromptSteps) -> ScheduleLimits {
    ScheduleLimits { rows_max, gap_seconds: 0.2, step_seconds: 2.4, prompt_steps }
}

fn candidate(turn: Turn, pending: usize) -> Candidate {
    Candidate { turn, pending, is_under_way: pending == 1 }
}

fn arrive(scheduler: &mut Scheduler, rows: usize) -> Turn {
    scheduler.turns.arrive(SchedulingOptions::default(), rows, 0.0)
}

/// Returns the rows of a step, by order of arrival of their generations.
fn orders(candidates: &[Candidate], chosen: &[Rows]) -> Vec<(u64, usize)> {
    chosen.iter().map(|rows| (candidates[rows.index].turn.order, rows.rows)).collect()
}

#[test]
fn decoding_goes_first_and_prompts_fill_the_time() {
    let mut scheduler = Scheduler::new(limits(512, PromptSteps::Timed));
    let turns: Vec<Turn> = [1000, 1, 1].map(|rows| arrive(&mut scheduler, rows)).to_vec();
    let candidates = [1000, 1, 1].map(|rows| rows);
    let candidates: Vec<_> =
        turns.iter().zip(candidates).map(|(turn, rows)| candidate(*turn, rows)).collect();
    for rows in [2, 66, 130] {
        scheduler.costs.measured(rows, 0.05 + 0.001 * rows as f64);
    }
    let chosen = scheduler.choose(&candidates, 1, 0.0);
    let prompt = chosen[2].rows;
    assert_eq!(orders(&candidates, &chosen), [(1, 1), (2, 1), (0, prompt)]);
    assert!((100..=149).contains(&prompt), "{prompt}");
    // Steps of a second model alternate with the steps of this one.
    assert!(scheduler.choose(&candidates, 2, 0.0)[2].rows < 50);
    assert_eq!(scheduler.gap_in_force(), 0.2);
}

#[test]
fn a_target_that_cannot_be_kept_is_replaced_by_the_nearest() {
    let mut scheduler = Scheduler::new(limits(512, PromptSteps::Timed));
    let turns = [arrive(&mut scheduler, 1000), arrive(&mut scheduler, 1)];
    let candidates = [candidate(turns[0], 1000), candidate(turns[1], 1)];
    scheduler.costs.measured(1, 0.15);
    scheduler.costs.measured(17, 0.3);
    let chosen = scheduler.choose(&candidates, 1, 0.0);
    assert_eq!(orders(&candidates, &chosen), [(1, 1), (0, PROMPT_ROWS_MIN)]);
    assert!((scheduler.gap_in_force() - 0.3).abs() < 0.01, "{}", scheduler.gap_in_force());
}

#[test]
fn a_streamed_step_takes_what_pays() {
    let mut scheduler = Scheduler::new(limits(4096, PromptSteps::Long));
    let turns = [arrive(&mut scheduler, 9000), arrive(&mut scheduler, 1)];
    let alone = [candidate(turns[0], 9000)];
    assert_eq!(scheduler.choose(&alone, 1, 0.0)[0].rows, 4096);
    // Cost: reads take 2 s, each row 10 ms.
    for rows in [1, 4096] {
        scheduler.costs.measured(rows, 2.0 + 0.01 * rows as f64);
    }
    let both = [candidate(turns[0], 9000), candidate(turns[1], 1)];
    let chosen = scheduler.choose(&both, 1, 0.0);
    assert_eq!(orders(&both, &chosen), [(1, 1), (0, 200)]);
    assert!(scheduler.gap_in_force() > 3.0);
}

#[test]
fn prompts_are_cut_evenly() {
    let mut scheduler = Scheduler::new(limits(512, PromptSteps::Timed));
    let turn = arrive(&mut scheduler, 130);
    assert_eq!(scheduler.choose(&[candidate(turn, 130)], 1, 0.0)[0].rows, 44);
    assert_eq!(scheduler.choose(&[candidate(turn, 86)], 1, 0.0)[0].rows, 43);
}

#[test]
fn short_prompts_pass_long_ones_and_groups_share() {
    let mut turns = FairTurns::default();
    let now = 0.0;
    let long = turns.arrive(SchedulingOptions::default(), 10_000, now);
    let short = turns.arrive(SchedulingOptions::default(), 100, now);
    assert!(short.before(&long, now).is_lt());
    turns.pass(9_950, 1);
    let late = turns.arrive(SchedulingOptions::default(), 100, now);
    assert!(long.before(&late, now).is_lt(), "it is passed no more");
    let wishes = |group| SchedulingOptions { group: Some(group), ..SchedulingOptions::default() };
    let of_one = [0; 3].map(|_| turns.arrive(wishes(1), 100, now));
    let of_two = turns.arrive(wishes(2), 150, now);
    assert!(of_one[0].before(&of_two, now).is_lt());
    assert!(of_two.before(&of_one[1], now).is_lt());
}

#[test]
fn priorities_deadlines_and_age_decide() {
    let mut turns = FairTurns::default();
    let mut come = |priority, deadline| {
        turns.arrive(SchedulingOptions { priority, deadline, group: None }, 100, 0.0)
    };
    let (low, plain, high) = (come(-1, None), come(0, None), come(1, None));
    let (soon, later) = (come(0, Some(1.0)), come(0, Some(2.0)));
    let first = |a: &Turn, b: &Turn, now| a.before(b, now).is_lt();
    assert!(first(&high, &soon, 0.0) && first(&soon, &later, 0.0) && first(&later, &plain, 0.0));
    assert!(first(&plain, &later, 2.5), "what is late anyway has lost its deadline");
    let mut served = plain;
    served.serve(AGING_SECONDS);
    assert!(
        first(&plain, &low, 0.0) && first(&low, &served, AGING_SECONDS),
        "nobody waits for ever"
    );
    let mut preempted = low;
    preempted.preempt();
    assert_eq!(preempted.level(), plain.level());
}

fn claim(turn: Turn, standing: GenerationPhase, tokens: usize, growth: usize) -> Claim {
    let held = if standing == GenerationPhase::Running { tokens.div_ceil(64) } else { 0 };
    Claim { turn, standing, held, tokens, growth, is_read: true }
}

#[test]
fn a_generation_begins_when_it_fits_to_its_end() {
    let mut turns = FairTurns::default();
    let mut come = || turns.arrive(SchedulingOptions::default(), 60, 0.0);
    let running = claim(come(), GenerationPhase::Running, 60, 60);
    let waiting = claim(come(), GenerationPhase::Waiting, 60, 60);
    assert_eq!(admit(&[running, waiting], 3, usize::MAX, 0.0).begin, [1]);
    let admission = admit(&[running, waiting], 2, usize::MAX, 0.0);
    assert!(admission.begin.is_empty());
    assert_eq!(admission.short, Some(Shortage { wanted: 2, free: 2 }));
    // The running generation ends before the other grows.
    let ends = claim(running.turn, GenerationPhase::Running, 119, 1);
    assert_eq!(admit(&[ends, waiting], 1, usize::MAX, 0.0).begin, [1]);
    assert_eq!(admit(&[waiting], 0, usize::MAX, 0.0).begin, [0], "alone it may try");
}

#[test]
fn the_lowest_priority_leaves_first() {
    let mut turns = FairTurns::default();
    let mut come = |priority| {
        turns.arrive(SchedulingOptions { priority, ..SchedulingOptions::default() }, 60, 0.0)
    };
    let claims: Vec<Claim> = [0, -1, -1, 1]
        .map(|priority| claim(come(priority), GenerationPhase::Running, 100, 20))
        .to_vec();
    assert_eq!(victim(&claims, 0), Some(2), "the younger of the lowest");
    assert_eq!(victim(&claims, 1), Some(2));
    assert_eq!(victim(&claims, 2), None);
    let mut unread = claims.clone();
    unread[3].is_read = false;
    assert_eq!(victim(&unread, 2), Some(3), "its reader may wait for this one");
    let resting = Claim { standing: GenerationPhase::Waiting, ..claims[0] };
    let with_resting = [resting, claims[1], claims[2]];
    assert_eq!(victim(&with_resting, 2), Some(0), "it does not use its pages yet");
    let newest = claim(come(1), GenerationPhase::Waiting, 200, 20);
    let all = [claims.as_slice(), &[newest]].concat();
    let admission = admit(&all, 0, usize::MAX, 0.0);
    assert_eq!((admission.begin, admission.park), (vec![4], vec![2, 1]));
    let newest = claim(come(-1), GenerationPhase::Waiting, 200, 20);
    let all = [claims.as_slice(), &[newest]].concat();
    assert!(admit(&all, 0, usize::MAX, 0.0).begin.is_empty());
}
