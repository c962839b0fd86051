//! Templates that try to crash the process, to exhaust memory or to run forever. Each is rejected or finishes
//! within 3 s of CPU time (one second on an idle machine) and 64 MiB, on a thread with a stack of 2 MiB.
#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use nestling_template::{RenderLimits, RenderOptions, Template, TemplateError, TemplateErrorKind};
use serde_json::{Map, Value, json};

#[path = "hostile/templates.rs"]
mod templates;

/// Maximum CPU time. An operation without a charge would run for minutes; the work limit takes about a
/// second, more on slow machines.
const TIME_MAX: Duration = Duration::from_secs(3);

struct Counting;

thread_local! {
    /// Bytes allocated by this thread minus bytes freed.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// Maximum of `LIVE`.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(more: usize) {
    let live = LIVE.get().saturating_add_unsigned(more);
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

fn uncount(bytes: usize) {
    LIVE.set(LIVE.get().saturating_sub_unsigned(bytes));
}

// SAFETY: all calls are forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        uncount(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old and the new bytes may exist at the same time.
        count(size);
        uncount(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Outcome {
    result: Result<usize, TemplateError>,
    time: Duration,
    bytes: usize,
}

fn variables() -> Map<String, Value> {
    let message = json!({"role": "user", "content": "Hello, wörld 日本"});
    let variables = json!({
        "messages": [message, {"role": "assistant", "content": "b"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "add_generation_prompt": true,
        "bos_token": "<s>",
    });
    variables.as_object().cloned().unwrap_or_default()
}

/// CPU time of the calling thread, which other work on the machine does not affect.
#[cfg(unix)]
fn computed() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap())
}

/// Wall-clock time, on systems without a CPU clock per thread.
#[cfg(not(unix))]
fn computed() -> Duration {
    static BEGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    BEGIN.elapsed()
}

/// Parses, renders and drops a template on a small stack.
fn run(source: &str) -> Outcome {
    let source = source.to_owned();
    let builder = thread::Builder::new().stack_size(2 << 20);
    let thread = builder.spawn(move || {
        let variables = variables();
        let before = LIVE.get();
        PEAK.set(before);
        let start = computed();
        let template = Template::parse(&source);
        let result = template.and_then(|template| {
            template.render(&variables, &RenderOptions::default()).map(|text| text.len())
        });
        let (time, peak) = (computed() - start, PEAK.get());
        Outcome { result, time, bytes: peak.abs_diff(before) }
    });
    thread.unwrap().join().unwrap()
}

/// A single test, because cancellation and deadlines are measured in wall time.
#[test]
fn hostile_templates_are_refused_in_time_and_memory() {
    let templates = templates::all();
    assert!(templates.len() >= 108, "only {}", templates.len());
    let faults = thread::scope(|scope| {
        let halves = templates.chunks(templates.len().div_ceil(2));
        let halves: Vec<_> = halves.map(|half| scope.spawn(|| faults_of(half))).collect();
        halves.into_iter().map(|half| half.join().unwrap()).collect::<String>()
    });
    assert!(faults.is_empty(), "{faults}");
    cancelled_within_a_quarter_of_a_second(&templates);
    deadlines_hold();
}

/// Returns a line for each template that exceeds its time or memory.
fn faults_of(templates: &[(String, String)]) -> String {
    let mut faults = String::new();
    for (name, source) in templates {
        // Other work on the machine can slow down a run by evicting caches, so that slow runs are repeated up
        // to three times.
        let outcome = (0..3).map(|_| run(source)).find(|o| o.time < TIME_MAX);
        let outcome = outcome.unwrap_or_else(|| run(source));
        let (time, mib) = (outcome.time, outcome.bytes as f64 / f64::from(1 << 20));
        let what = match &outcome.result {
            Ok(bytes) => format!("{bytes} bytes"),
            Err(error) => error.to_string().chars().take(100).collect(),
        };
        if time >= TIME_MAX || outcome.bytes > 64 << 20 || what.contains("internal") {
            writeln!(faults, "{name}: {time:?}, {mib:.1} MiB, {what}").unwrap();
        }
    }
    faults
}

/// Returns the first duration below a limit of up to three, or else the last one: other work on the machine may
/// take the processor from a run.
fn first_below(limit: Duration, mut run: impl FnMut() -> Duration) -> Duration {
    let first = (0..2).map(|_| run()).find(|time| *time < limit);
    first.unwrap_or_else(run)
}

/// Checks that cancellation ends a long rendering quickly.
fn cancelled_within_a_quarter_of_a_second(templates: &[(String, String)]) {
    let unlimited = RenderLimits { work: u64::MAX, ..RenderLimits::default() };
    for (name, source) in templates {
        let Ok(template) = Template::parse(source) else { continue };
        let limit = Duration::from_millis(270);
        let late = first_below(limit, || {
            let start = Instant::now();
            let cancel_at = start + Duration::from_millis(20);
            let cancelled = || Instant::now() >= cancel_at;
            let options =
                RenderOptions { limits: unlimited, cancelled: &cancelled, ..Default::default() };
            // Most templates end by themselves, or by another limit.
            let _ = template.render(&variables(), &options);
            start.elapsed()
        });
        assert!(late < limit, "{name}: {late:?}");
    }
}

fn deadlines_hold() {
    let forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let deadline = Duration::from_millis(50);
    let limits = RenderLimits { work: u64::MAX, deadline, ..RenderLimits::default() };
    let template = Template::parse(forever).unwrap();
    let limit = Duration::from_millis(300);
    let late = first_below(limit, || {
        let start = Instant::now();
        let options = RenderOptions { limits, ..Default::default() };
        let error = template.render(&variables(), &options).unwrap_err();
        assert_eq!(error.kind, TemplateErrorKind::Deadline { limit: deadline });
        start.elapsed()
    });
    assert!(late < limit, "{late:?}");
}
