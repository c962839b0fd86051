use super::*;
use nestling_core::runner::PromptSteps;

/// Qwen3's shape on a small CPU: 30 ms per step, 60 ms for all experts, 4 ms per row.
const MACHINE: ServiceMachine = ServiceMachine {
    step_seconds: 0.03,
    expert_seconds: 0.06,
    expert_rows: 16.0,
    row_seconds: 0.004,
    noise: 0.1,
    pages: 4096,
};

const SEEDS: u64 = 200;

fn limits() -> ScheduleLimits {
    ScheduleLimits {
        rows_max: 512,
        gap_seconds: 0.2,
        step_seconds: 2.4,
        prompt_steps: PromptSteps::Timed,
    }
}

struct Random(Xoshiro256PlusPlus);

impl Random {
    fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit
    }
}

fn request(at: f64, prompt: usize, answer: usize) -> Request {
    Request { at, prompt, answer, wishes: SchedulingOptions::default() }
}

/// Returns up to 40 requests within 30 s, some with long prompts, priorities, deadlines and groups.
fn load(seed: u64) -> Vec<Request> {
    let mut random = Random::new(seed);
    let mut requests: Vec<Request> = (0..1 + random.below(40))
        .map(|_| {
            let at = random.below(30_000) as f64 / 1e3;
            let long = if random.below(5) == 0 { 3000 } else { 200 };
            let (prompt, answer) = (1 + random.below(long), 1 + random.below(150));
            let wishes = SchedulingOptions {
                priority: random.below(3) as i8 - 1,
                deadline: (random.below(3) == 0).then(|| at + random.below(20_000) as f64 / 1e3),
                group: (random.below(2) == 0).then(|| random.below(3)),
            };
            Request { at, prompt: prompt as usize, answer: answer as usize, wishes }
        })
        .collect();
    requests.sort_by(|a, b| a.at.total_cmp(&b.at));
    requests
}

/// All requests end, exactly the missed deadlines are reported, and gaps are kept, for any load and number of
/// pages.
#[test]
fn every_generation_ends_and_lateness_is_told() {
    let mut gaps = Vec::new();
    for seed in 0..SEEDS {
        let requests = load(seed);
        let pages = [60, 200, 4096][seed as usize % 3];
        let machine = ServiceMachine { pages, ..MACHINE };
        let report = serve(machine, limits(), &requests, seed);
        let pairs = requests.iter().zip(&report.served);
        for (request, served) in pairs {
            assert!(served.first_token > request.at && served.end >= served.first_token, "{seed}");
            let missed = request.wishes.deadline.is_some_and(|at| served.first_token > at);
            assert_eq!(served.is_late, missed, "{seed}");
        }
        gaps.extend(report.served.into_iter().flat_map(|served| served.gaps));
    }
    gaps.sort_by(f64::total_cmp);
    let p99 = gaps[gaps.len() * 99 / 100];
    assert!(p99 <= 1.2, "{p99} times the gap in force");
}

/// Running generations keep their pace beside a long prompt, from its second step on.
#[test]
fn a_long_prompt_does_not_widen_gaps() {
    for seed in 0..20 {
        let mut requests: Vec<Request> =
            (0..8).map(|i| request(0.01 * f64::from(i), 16, 400)).collect();
        requests.push(request(5.0, 8000, 1));
        let report = serve(MACHINE, limits(), &requests, seed);
        let worst = report.served.iter().flat_map(|served| &served.gaps).fold(0.0, |a, b| b.max(a));
        assert!(worst < 1.3, "{seed}: {worst}");
        // The prompt uses the rest of the 200 ms beside 8 rows.
        let seconds = report.served[8].first_token - 5.0;
        assert!(seconds < 8000.0 * 0.2 / 18.0, "{seconds}");
    }
}

#[test]
fn deadlines_that_can_be_kept_are_kept() {
    for seed in 0..50 {
        let mut requests: Vec<Request> = (0..10).map(|_| request(0.0, 500, 20)).collect();
        // Arrives last, and has the only deadline.
        requests.push(Request {
            wishes: SchedulingOptions { deadline: Some(8.0), ..SchedulingOptions::default() },
            ..request(2.0, 300, 20)
        });
        let report = serve(MACHINE, limits(), &requests, seed);
        assert!(!report.served[10].is_late, "{}", report.served[10].first_token);
        let first = report.served.iter().map(|served| served.first_token).fold(0.0, f64::max);
        assert!(first > 8.0, "without it, it would have been late: {first}");
    }
}

#[test]
fn low_priorities_are_not_starved() {
    // A high-priority load beyond capacity, and one low-priority request.
    let mut requests: Vec<Request> = (0..200)
        .map(|i| Request {
            wishes: SchedulingOptions { priority: 1, ..SchedulingOptions::default() },
            ..request(f64::from(i) * 0.5, 400, 20)
        })
        .collect();
    requests.insert(
        1,
        Request {
            wishes: SchedulingOptions { priority: -1, ..SchedulingOptions::default() },
            ..request(0.1, 400, 20)
        },
    );
    let report = serve(ServiceMachine { pages: 64, ..MACHINE }, limits(), &requests, 1);
    let low = &report.served[1];
    assert!(low.first_token < 40.0, "{}", low.first_token);
    let high = report.served.iter().map(|served| served.first_token).fold(0.0, f64::max);
    assert!(high > 100.0, "{high}");
}

#[test]
fn a_group_with_many_prompts_does_not_hold_up_others() {
    let of = |group, at, prompt| Request {
        wishes: SchedulingOptions { group: Some(group), ..SchedulingOptions::default() },
        ..request(at, prompt, 1)
    };
    let mut requests: Vec<Request> = (0..30).map(|_| of(1, 0.0, 400)).collect();
    requests.push(of(2, 0.5, 400));
    let report = serve(MACHINE, limits(), &requests, 3);
    let before = |served: &&RequestResult| served.first_token < report.served[30].first_token;
    let passed = report.served.iter().filter(before).count();
    assert!(passed <= 3, "{passed} of the other group went first");
}

#[test]
fn short_prompts_pass_long_ones() {
    let requests = [request(0.0, 3000, 1), request(1.0, 50, 1), request(1.0, 3000, 1)];
    let report = serve(MACHINE, limits(), &requests, 4);
    let [long, short, second] = [0, 1, 2].map(|index| report.served[index].first_token);
    assert!(short < 5.0 && short < long && long < second, "{short} {long} {second}");
}

/// A pool that fits an eighth of the requests costs smaller steps, but no recomputed tokens.
#[test]
fn generations_wait_rather_than_lose_their_pages() {
    let requests: Vec<Request> = (0..64).map(|_| request(0.0, 30, 100)).collect();
    let few = serve(ServiceMachine { pages: 32, ..MACHINE }, limits(), &requests, 5);
    let preemptions: usize = few.served.iter().map(|served| served.preemptions).sum();
    assert_eq!(preemptions, 0);
    assert_eq!(few.rows, 64 * 129);
}
